"""The HTML report as a file: it needs nothing else, and no text of a config in it can become code."""

import json
import re
from base64 import b64encode
from dataclasses import replace
from hashlib import sha256
from html.parser import HTMLParser
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import patch

import pytest
from finished import (
    CONFIG,
    EXAMPLES,
    LABELS,
    NO_SKILL,
    SHARED,
    SUBSET,
    TEXTS,
    TITLE,
    page_of,
    report_job,
    write_results,
)
from refusals import damage_error, input_error

import papa
from papa.files import read_provenance
from papa.results.page import first_rows, versions_note

SMALL = {
    "run": CONFIG["run"] | {"models": ["small"], "tasks": ["second"]},
    "grids": {},
}
"""One model and one task, and no second grid."""


class Page(HTMLParser):
    """The elements of a report: tags with their attributes, the text of each script, and all cells of each table."""

    def __init__(self, text):
        super().__init__()
        self.tags = []
        self.scripts = []
        self.tables = {}
        self.open = []
        self.table = self.text = ""
        self.feed(text)
        self.words = " ".join(self.text.split())
        self.data = json.loads(self.scripts[0])

    def handle_starttag(self, tag, attributes):
        self.tags.append((tag, dict(attributes)))
        if tag not in ("meta", "link", "img", "source"):
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

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if "script" in self.open:
            self.scripts[-1] += data
        elif "style" not in self.open:
            self.text += data
            if {"td", "th"} & set(self.open):
                self.tables[self.table][-1][-1] += data.strip()


@pytest.fixture(scope="module", autouse=True)
def without_drawing():
    """Drawing takes seconds."""
    with (
        patch("papa.results.section.draw", return_value="<svg/>"),
        patch("papa.results.page.narrow_svg", return_value="<svg/>"),
    ):
        yield


@pytest.fixture(scope="module")
def study(tmp_path_factory):
    return write_results(tmp_path_factory.mktemp("report"))


@pytest.fixture(scope="module")
def written(study):
    return page_of(study)


@pytest.fixture(scope="module")
def page(written):
    return Page(written)


def test_nothing_is_loaded_and_only_the_script_of_the_report_may_run(page, written):
    for tag, attributes in page.tags:
        assert (attributes.get("src") or "data:").startswith("data:"), tag
        assert (attributes.get("href") or "#").startswith(("#", "data:")), tag
    [policy] = [tag["content"] for _, tag in page.tags if tag.get("http-equiv")]
    assert "default-src 'none'" in policy
    assert "connect-src" not in policy
    assert "eval" not in policy
    data, script = page.scripts
    assert re.findall(r"'sha256-([^']+)'", policy) == [
        b64encode(sha256(script.encode()).digest()).decode()
    ]
    assert data.startswith("{")
    assert TITLE not in written
    assert SUBSET not in written  # hostile names stay text
    assert TITLE in {cell for lines in page.tables.values() for line in lines for cell in line}
    assert page.data["maps"][0]["title"].startswith(TITLE)
    assert {tag for tag, _ in page.tags} & {"iframe", "object"} == set()
    assert not page.open
    assert "somewhere/on/this/machine" not in written


def test_the_first_rows_are_shown_as_they_were_read_with_the_labels_of_each_task(page, study):
    header, *rows = page.tables["rows-texts"]
    assert header == ["first", TITLE, "Second"]
    assert [row[1:] for row in rows] == [[LABELS[0]] * 2] * 3
    assert [row[0] for row in rows] == [TEXTS[0], "**a line** and another", "word " * 23 + "wor …"]
    tasks = {
        name: task.model_copy(update={"title": "first"})
        for name, task in study.config.tasks.items()
    }
    [row, *_] = first_rows(replace(study, config=study.config.model_copy(update={"tasks": tasks})))[
        "texts"
    ]
    assert row == {"first": TEXTS[0], "first (label)": LABELS[0]}, "a task's title hides no text"


def test_the_conclusion_comes_first_then_its_table_and_notes_then_the_figure_of_reliances(
    page, study
):
    sentences, notes = (study.conclusion[name] for name in ("sentences", "notes"))
    parts = [
        "How much do these models rely on attention that depends on its input?",
        *sentences,
        "task heads replaced lost",
        *notes,
        "Each dot is a reliance",
    ]
    places = [page.words.index(" ".join(part.split())) for part in parts]
    assert places == sorted(places)
    assert len(sentences) <= 4
    assert len(notes) > 1
    header, *lines = page.tables["claims-0"]
    assert header == [
        "line",
        "task",
        "heads replaced",
        "lost (points)",
        "attention contributes",
        "reliance",
    ]
    numbers = [
        [line, "mean", f"{replaced} of 15"] for line in ("small", "other") for replaced in (8, 15)
    ]
    assert [line[:3] for line in lines if line[1] == "mean"] == numbers


def test_where_no_probe_beats_the_majority_nothing_is_claimed_but_what_is_lost_is_said(tmp_path):
    page = Page(page_of(write_results(tmp_path, {"second": NO_SKILL}, **SMALL)))
    why = f"the probe is not significantly better than the majority class, {LABELS[0]} (0.750)"
    said = f"Nothing is claimed, because no task allows a test: Second ({why})."
    assert said in page.words
    assert "small loses 0.1 points of accuracy on Second" in page.words
    assert page.tables["claims-0"][-1][:2] == ["Second", "15 of 15"]
    assert "claims-1" not in page.tables
    # nor is there a section for the one dot of one model and one constant
    # a plot without a dot, or tables of which there are none
    ids = {attributes.get("id") for _, attributes in page.tags}
    assert ids.isdisjoint({"section-score_and_drop", "figure-reliance", "tables"})


def test_every_analysis_is_there_with_its_table_and_a_described_figure(page):
    sections = ["section-scores_by_heads_replaced", "section-score_and_drop"]
    shown = [attributes.get("id") for tag, attributes in page.tags if tag in ("header", "section")]
    assert shown == ["result", *sections, "heads", "tables", "runs"]
    described = [attributes["alt"] or "" for tag, attributes in page.tags if tag == "img"]
    assert len(described) == page.words.count(f"n = {EXAMPLES} validation examples per task") == 3
    for words in described:
        assert len(re.findall(r"\d", words)) > 5 and not re.search(r"\d\.\d{5}|nan|None", words), (
            words
        )
    assert any("Second, small: 0.750 with 0 of 15 heads replaced" in words for words in described)


def test_data_and_subsets_say_what_was_used_and_what_training_had_already(page):
    assert f"scored separately: column kind: {SUBSET}, position." in page.words
    assert page.tables["scores_by_heads_replaced-1"][1][:4] == [
        TITLE,
        "small",
        SUBSET,
        str(EXAMPLES // 2),
    ]
    header, first, *_ = page.tables["data-0"]
    cells = dict(zip(header, first, strict=True))
    assert (cells["training rows"], cells["validation rows"]) == (
        "1,024 of 2,048",
        f"all {EXAMPLES}",
    )
    assert cells["validation rows also in training"] == str(SHARED)


def test_same_results_give_the_same_page_and_a_report_that_was_interrupted_is_unfinished(
    study, written
):
    assert page_of(study) == written
    assert papa.load(study.folder).config == study.config
    (averages, *_) = study.of_stage("average")
    path = Path(averages.output)
    intact = path.read_bytes()
    path.write_bytes(intact[:-1])
    try:
        with damage_error(path.name):
            page_of(study)
        with input_error("not a finished study"):
            papa.load(study.folder)
    finally:
        path.write_bytes(intact)
    assert page_of(study) == written
    assert read_provenance(report_job(study).output).record == report_job(study).record


@pytest.mark.slow
def test_files_of_grids_that_are_no_longer_in_the_config_disappear(tmp_path):
    finished = write_results(tmp_path)
    page_of(finished)
    tables = finished.folder / "tables"
    assert {path.suffix for path in tables.glob("ends.*")} == {".parquet", ".md", ".tex"}
    page_of(replace(finished, config=finished.config.model_copy(update={"grids": {}})))
    left = {path.name for path in tables.iterdir()}
    assert not list(tables.glob("ends.*"))
    assert {"runs.parquet", "outcomes.parquet", "claims.json"} <= left


def test_different_versions_of_packages_are_named():
    finished = SimpleNamespace(packages={"numpy": ["2.0"], "torch": ["2.9", "2.8"]})
    said = "The study's files were made with different versions of packages: torch 2.8 and 2.9."
    assert versions_note(finished) == said
