"""The page as a file: one page that needs nothing else, in which no text of a config can become code."""

from __future__ import annotations

import json
import re
import subprocess
from base64 import b64encode
from hashlib import sha256
from html.parser import HTMLParser
from pathlib import Path
from shutil import which
from typing import Any

import pytest
from finished import CONFIG, SHARED, SUBSET, TITLE, page_job, write_results

from papa.config.study import Study
from papa.errors import DamagedArtefact
from papa.files import digest_of, trace_of
from papa.results.page import PAGES, write_report


class Page(HTMLParser):
    """The elements of a page: tags with their attributes, the text of each script, and all cells of each table."""

    def __init__(self, text: str):
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.scripts: list[str] = []
        self.tables: dict[str, list[list[str]]] = {}
        self.open: list[str] = []
        self.table = ""
        self.text = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        own = dict(attributes)
        self.tags.append((tag, own))
        if tag not in ("meta", "link", "img", "input"):
            self.open.append(tag)
        if tag == "script":
            self.scripts.append("")
        if tag == "table":
            self.table = own["id"] or ""
            self.tables[self.table] = []
        if tag == "tr":
            self.tables[self.table].append([])
        if tag in ("td", "th"):
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


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Study:
    return write_results(tmp_path_factory.mktemp("report"))


@pytest.fixture(scope="module")
def written(study: Study) -> str:
    return text_of(study)


def text_of(study: Study) -> str:
    job = page_job(study)
    write_report(job)
    return Path(job.output("page")).read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def page(written: str) -> Page:
    return Page(written)


def told(page: Page) -> Any:
    return json.loads(page.scripts[0])


def test_nothing_is_loaded_from_anywhere(page: Page) -> None:
    for tag, attributes in page.tags:
        assert "src" not in attributes, tag
        assert (attributes.get("href") or "#").startswith(("#", "data:")), tag


def test_only_its_own_scripts_may_run(page: Page) -> None:
    [policy] = [own["content"] for tag, own in page.tags if tag == "meta" and own.get("http-equiv")]
    assert policy and "default-src 'none'" in policy and "connect-src" not in policy
    allowed = re.findall(r"'sha256-([^']+)'", policy)
    data, *scripts = page.scripts
    assert allowed == [b64encode(sha256(script.encode()).digest()).decode() for script in scripts]
    assert len(scripts) == 2 and data.startswith("{")


def test_hostile_names_stay_text(page: Page, written: str) -> None:
    assert TITLE not in written and SUBSET not in written
    cells = {cell for lines in page.tables.values() for line in lines for cell in line}
    assert TITLE in cells
    assert [entry["title"] for entry in told(page)["explorer"]["entries"]][:2] == [TITLE, "Second"]
    assert SUBSET in json.dumps(told(page)["figures"], ensure_ascii=False).replace('\\"', '"')
    assert {tag for tag, _ in page.tags} & {"img", "iframe", "object"} == set()
    assert not page.open


def test_claims_come_first(page: Page) -> None:
    words = " ".join(page.text.split())
    # 0.2 of 0.82 and 0.2 of 0.72, whatever the seed adds
    drop = 100 * (0.2 / 0.82 + 0.2 / 0.72) / 2
    assert f"mean relative drop with all 15 heads replaced {drop:.1f} %" in words
    assert "heads are free: no task lost (53 %) 8 of 15" in words
    assert words.index("95 % interval") < words.index("Score by fraction", words.index("heads are free"))


def test_lines_can_be_compared(page: Page) -> None:
    header, *lines = page.tables["all-claims-0"]
    assert header == ["line", "drop, all heads", "95 % interval", "heads", "free", "next measured", "lost there"]
    assert [line[0] for line in lines] == ["small", "other"]
    assert lines[0][3:] == ["15", "8", "15", f"{TITLE}, Second"]


def test_every_analysis_is_there_with_its_figure_and_table(page: Page) -> None:
    assert set(told(page)["figures"]) == {"score_by_fraction", "score_and_drop"}
    ids = {own.get("id") for _, own in page.tags}
    assert {"section-score_by_fraction", "section-ends", "section-score_and_drop", "explorer", "runs"} <= ids
    assert page.tables["score_by_fraction-0"][0] == ["task", "metric", "model", "1", "1/2", "0", "drop at 0"]
    assert page.tables["ends-0"][0] == ["constants", TITLE, "Second"]
    assert not any("**" in cell for line in page.tables["ends-0"] for cell in line)


def test_data_says_what_was_used_and_what_training_had_already(page: Page) -> None:
    header, first, *_ = page.tables["data-0"]
    told = dict(zip(header, first, strict=True))
    assert told["training rows used / available"] == "1,024 / 2,048"
    assert told["validation rows used / available"] == "24 / 24"
    assert told["validation rows also in training"] == str(SHARED)
    assert first[-2:] == ["3", "0"]
    assert len(page.tables["data-0"]) == 1 + 4


def test_the_page_waits_for_all_that_it_shows(study: Study) -> None:
    assert {job.rule for job in study.job("page").needed} == {
        "summarise",
        "grid",
        "grid_without_figure",
        "score_and_drop",
    }
    assert study.jobs()[-1].rule == "page"


def test_published_values_stand_beside_ours(tmp_path: Path) -> None:
    models = CONFIG["models"] | {"small": {"hub": "FacebookAI/roberta-base"}}
    tasks = CONFIG["tasks"] | {"second": CONFIG["tasks"]["second"] | {"published": "sst2"}}
    page = Page(text_of(write_results(tmp_path, models=models, tasks=tasks)))
    header, *lines = page.tables["published-0"]
    assert header[:5] == ["setting", "task", "metric", "published", "ours"]
    assert {(line[1], line[3]) for line in lines if line[0] == "original"} == {("Second", "0.91")}
    assert page.tables["models-0"][1][1] == "FacebookAI/roberta-base"


def test_models_and_config_are_told_without_places(page: Page, written: str) -> None:
    assert page.tables["models-0"][1:] == [
        ["small", "random roberta", "", "5ba", "0.1.0"],
        ["other", "a folder", "", "5ba", "0.1.0"],
    ]
    assert "somewhere/on/this/machine" not in written
    assert "learning_rate: 0.001" in page.text and "token_budget" not in page.text


def test_seconds_and_memory_are_those_that_were_left(page: Page) -> None:
    jobs = {line[0]: line[1:] for line in page.tables["jobs-0"]}
    # jobs of a task that the config does not have any more do not count
    assert jobs["probe"] == ["42", "2", "4", "300"]
    assert jobs["summarise"] == ["1", "1", "2", "101"]
    assert jobs["grid"] == jobs["grid without figure"] == ["1", "0", "–", "–"]


def test_numbers_agree_with_their_nouns(study: Study, tmp_path: Path) -> None:
    said = write_report(page_job(study))
    assert said == "2 lines, 2 figures and 4 sets of heads on one page"
    run = CONFIG["run"] | {"models": ["small"], "tasks": ["second"], "fractions": ["1", "1/2"], "seeds": [1]}
    small = write_results(tmp_path, run=run, grids={})
    job = page_job(small)
    assert write_report(job) == "1 line, 1 figure and 1 set of heads on one page"
    words = " ".join(Page(Path(job.output("page")).read_text(encoding="utf-8")).text.split())
    assert "1 seed" in words and "1 seeds" not in words


def test_the_page_says_what_made_it(study: Study, written: str) -> None:
    job = page_job(study)
    trace = trace_of(job.output("page"))
    assert trace is not None and trace.stage == "page"
    assert trace.inputs["summary"] == digest_of(job.input("summary"))
    assert "papa-provenance" in written[:8000]


@pytest.mark.skipif(not which("node"), reason="no node to run the page's script with")
@pytest.mark.parametrize(
    ("cell", "written"),
    [
        ('=HYPERLINK("http://x","y")', '\'=HYPERLINK("http://x","y")'),
        ("@SUM(1)", "'@SUM(1)"),
        ("+1+cmd", "'+1+cmd"),
        ("-1+cmd", "'-1+cmd"),
        ("-1.25", "-1.25"),
        ("-3.5%", "-3.5%"),
        ("+0.010", "+0.010"),
        ("-3.512 ±.021", "-3.512 ±.021"),
        ("-", "-"),
        ("a=b", "a=b"),
    ],
)
def test_no_cell_of_a_download_is_a_formula(cell: str, written: str) -> None:
    source = (PAGES / "report.js").read_text(encoding="utf-8")
    functions = "\n".join(re.findall(r"^  const (?:NUMBER|inert|quoted) = .*$", source, re.MULTILINE))
    script = f"{functions}\nprocess.stdout.write(quoted({json.dumps(cell)}));"
    quoted = subprocess.run(["node", "-e", script], capture_output=True, text=True, check=True).stdout
    assert quoted == '"' + written.replace('"', '""') + '"'


def test_same_results_give_the_same_page(study: Study, written: str) -> None:
    assert text_of(study) == written


def test_a_damaged_result_is_named_and_nothing_written(study: Study, written: str) -> None:
    job, path = page_job(study), study.results / "models/small/corpora/texts/average.h5"
    intact = path.read_bytes()
    path.write_bytes(intact[:-1])
    Path(job.output("page")).unlink()
    try:
        with pytest.raises(DamagedArtefact, match=r"average\.h5"):
            write_report(job)
        assert not Path(job.output("page")).exists()
    finally:
        path.write_bytes(intact)
