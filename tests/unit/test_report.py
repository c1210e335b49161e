"""The HTML report as a file: it needs nothing else, and no text of a config in it can become code."""

import json
import re
from base64 import b64encode
from hashlib import sha256
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from finished import CONFIG, EXAMPLES, LABELS, NO_SKILL, SHARED, SUBSET, TEXTS, TITLE, page_job, write_results

from papa.config.study import Plan
from papa.errors import DamagedArtefact
from papa.files import digest_of, read_json, trace_of
from papa.results.page import write_report
from papa.results.page_data import first_rows

SMALL: dict[str, Any] = {"run": CONFIG["run"] | {"models": ["small"], "tasks": ["second"]}, "grids": {}}
"""One model and one task, and no second grid."""


class Page(HTMLParser):
    """The elements of a report: tags with their attributes, the text of each script, and all cells of each table."""

    def __init__(self, text: str):
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.scripts: list[str] = []
        self.tables: dict[str, list[list[str]]] = {}
        self.open: list[str] = []
        self.table = self.text = ""
        self.feed(text)
        self.words = " ".join(self.text.split())
        self.data: Any = json.loads(self.scripts[0])

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attributes)))
        if tag not in ("meta", "link", "img", "input"):
            self.open.append(tag)
        match tag:
            case "script":
                self.scripts.append("")
            case "table":
                self.table = dict(attributes)["id"] or ""
                self.tables[self.table] = []
            case "tr":
                self.tables[self.table].append([])
            case "td" | "th":
                self.tables[self.table][-1].append("")

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if "script" in self.open:
            self.scripts[-1] += data
        elif "style" not in self.open:
            self.text += data
            if {"td", "th"} & set(self.open):
                self.tables[self.table][-1][-1] += data.strip()


def text_of(study: Plan) -> str:
    job = page_job(study)
    write_report(job)
    return Path(job.output("page")).read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Plan:
    return write_results(tmp_path_factory.mktemp("report"))


@pytest.fixture(scope="module")
def written(study: Plan) -> str:
    return text_of(study)


@pytest.fixture(scope="module")
def page(written: str) -> Page:
    return Page(written)


def test_nothing_is_loaded_and_only_the_script_of_the_report_may_run(page, written):
    for tag, attributes in page.tags:
        assert (attributes.get("src") or "data:").startswith("data:"), tag
        assert (attributes.get("href") or "#").startswith(("#", "data:")), tag
    [policy] = [tag["content"] for _, tag in page.tags if tag.get("http-equiv")]
    assert policy and "default-src 'none'" in policy and "connect-src" not in policy and "eval" not in policy
    data, script = page.scripts
    assert re.findall(r"'sha256-([^']+)'", policy) == [b64encode(sha256(script.encode()).digest()).decode()]
    assert data.startswith("{") and TITLE not in written and SUBSET not in written  # hostile names stay text
    assert TITLE in {cell for lines in page.tables.values() for line in lines for cell in line}
    assert page.data["maps"][0]["title"].startswith(TITLE)
    assert {tag for tag, _ in page.tags} & {"iframe", "object"} == set() and not page.open
    assert "somewhere/on/this/machine" not in written


def test_the_first_rows_are_shown_as_they_were_read_with_the_labels_of_each_task(page, study):
    header, *rows = page.tables["rows-texts"]
    assert header == ["first", TITLE, "Second"] and [row[1:] for row in rows] == [[LABELS[0]] * 2] * 3
    assert [row[0] for row in rows] == [TEXTS[0], "**a line** and another", "word " * 23 + "wor …"]
    tasks = {name: task.model_copy(update={"title": "first"}) for name, task in study.config.tasks.items()}
    [row, *_] = first_rows(Plan(study.config.model_copy(update={"tasks": tasks}), study.results))["texts"]
    assert row == {"first": TEXTS[0], "first (label)": LABELS[0]}, "a task's title hides no text"


def test_the_conclusion_comes_first_then_the_figure_of_losses_then_claims(page, study):
    lines = read_json(page_job(study).input("claims"))["lines"]
    sentences = [line["sentence"] for line in lines if line["grid"] == "score_by_fraction"]
    parts = ["How much does attention depend on its input?", *sentences, "Each dot is a loss"]
    places = [page.words.index(" ".join(part.split())) for part in parts]
    assert places == sorted(places) and len(sentences) == 2
    header, *lines = page.tables["claims-score_by_fraction-0"]
    assert header[:4] == ["line", "heads replaced", "tasks", "loss"]
    numbers = [[line, f"{replaced} of 15", "2"] for line in ("small", "other") for replaced in (8, 15)]
    assert [line[:3] for line in lines] == numbers
    assert [row[0] for row in page.tables["claims-score_by_fraction-1"][1:]] == ["small", "small", "other", "other"]


def test_where_no_probe_beats_the_majority_nothing_is_claimed(tmp_path):
    page = Page(text_of(write_results(tmp_path, {"second": NO_SKILL}, **SMALL)))
    nothing = "Nothing can be concluded about small with heads replaced by average constants in the order of λ."
    assert f"{nothing} Second: the probe is no better than the majority class, {LABELS[0]} (0.750)." in page.words
    assert "Nothing can be concluded, so there is no table of claims." in page.words
    assert "claims-score_by_fraction-0" not in page.tables
    # nor is there a section for the one dot of one model and one constant
    assert "section-score_and_drop" not in {attributes.get("id") for _, attributes in page.tags}


def test_every_analysis_is_there_with_its_table_and_a_described_figure(page):
    sections = {"section-score_by_fraction", "section-ends", "section-score_and_drop", "heads", "runs"}
    assert sections <= {attributes.get("id") for _, attributes in page.tags}
    described = [attributes["alt"] or "" for tag, attributes in page.tags if tag == "img"]
    assert len(described) == page.words.count(f"n = {EXAMPLES} validation examples per task") == 3
    for words in described:
        assert len(re.findall(r"\d", words)) > 5 and not re.search(r"\d\.\d{5}|nan|None", words), words
    assert any("Second, small: 0.750 with 15 of 15 heads kept" in words for words in described)


def test_data_and_subsets_say_what_was_used_and_what_training_had_already(page):
    assert f"scored separately: column kind: {SUBSET}, position." in page.words
    assert page.tables["score_by_fraction-1"][1][:4] == [TITLE, "small", SUBSET, str(EXAMPLES // 2)]
    header, first, *_ = page.tables["data-0"]
    cells = dict(zip(header, first, strict=True))
    assert cells["training rows used / available"] == "1,024 / 2,048"
    assert cells["validation rows used / available"] == f"{EXAMPLES} / {EXAMPLES}"
    assert cells["validation rows also in training"] == str(SHARED)


def test_same_results_give_the_same_page_and_a_damaged_one_is_named(study, written):
    job, path = page_job(study), study.results / "models/small/corpora/texts/average.h5"
    write_report(job)
    page = Path(job.output("page"))
    assert page.read_text(encoding="utf-8") == written
    trace = trace_of(page)
    assert trace is not None and trace.stage == "page"
    assert trace.inputs["summary"] == digest_of(job.input("summary"))
    intact = path.read_bytes()
    path.write_bytes(intact[:-1])
    page.unlink()
    try:
        with pytest.raises(DamagedArtefact, match=r"average\.h5"):
            write_report(job)
        assert not page.exists()
    finally:
        path.write_bytes(intact)


def test_a_report_reads_nothing_that_its_inputs_were_not_made_from(tmp_path):
    """Then it is outdated whenever something that it shows changes."""
    study = write_results(tmp_path, **SMALL)
    before = text_of(study)
    upstream, jobs = set[str](), [study.job("page")]
    while jobs:
        job = jobs.pop()
        jobs += job.needed
        upstream |= set(job.outputs.values())
    for file in [file for file in study.results.rglob("*") if file.is_file()]:
        if file.relative_to(study.results).as_posix() not in upstream:
            file.write_bytes(b"")
    assert text_of(study) == before
