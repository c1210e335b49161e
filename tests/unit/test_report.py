"""The report as a file: one page that needs nothing else, in which no text of a config can become code."""

from __future__ import annotations

import json
import re
from base64 import b64encode
from hashlib import sha256
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from finished import CONFIG, SUBSET, TITLE, config, write_results

from papa.config.graph import Graph
from papa.errors import DamagedArtefact
from papa.results.costs import costs_of
from papa.results.page import write_report


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
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_results(tmp_path_factory.mktemp("report"))


@pytest.fixture(scope="module")
def written(results: Path) -> str:
    write_report(results, results / "report/index.html", config())
    return (results / "report/index.html").read_text(encoding="utf-8")


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
    assert page.tables["data-0"][1] == [TITLE, "small", "1,024", "2,048", "24", "24", "3", "0"]


def test_published_values_stand_beside_ours(tmp_path: Path) -> None:
    models = CONFIG["models"] | {"small": {"hub": "FacebookAI/roberta-base"}}
    tasks = CONFIG["tasks"] | {"second": CONFIG["tasks"]["second"] | {"published": "sst2"}}
    results = write_results(tmp_path, models=models, tasks=tasks)
    write_report(results, tmp_path / "page.html", config(models=models, tasks=tasks))
    page = Page((tmp_path / "page.html").read_text(encoding="utf-8"))
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


def test_seconds_and_memory_are_those_that_were_left(results: Path, page: Page) -> None:
    jobs = {line[0]: line[1:] for line in page.tables["jobs-0"]}
    # "other" has files of its own elsewhere; one of two jobs was too short for its memory to be seen
    assert jobs["probe"] == ["42", "2", "4", "300"]
    assert jobs["collect"] == ["1", "1", "2", "101"]
    assert jobs["report"] == ["1", "0", "–", "–"]
    stray = results / "models/small/tasks/gone/runs/original/seed-1.benchmark.tsv"
    stray.parent.mkdir(parents=True)
    stray.write_text("s\tmax_rss\n1000\t1000\n", encoding="utf-8")
    assert {row["rule"]: row["seconds"] for row in costs_of(results, Graph(config()))}["probe"] == 3.5


def test_same_results_give_the_same_page(results: Path, written: str, tmp_path: Path) -> None:
    write_report(results, tmp_path / "again.html", config())
    assert (tmp_path / "again.html").read_text(encoding="utf-8") == written


def test_a_damaged_result_is_named_and_nothing_written(results: Path, tmp_path: Path) -> None:
    path = results / "models/small/corpora/texts/average.h5"
    whole = path.read_bytes()
    path.write_bytes(whole[:-1])
    try:
        with pytest.raises(DamagedArtefact, match=r"average\.h5"):
            write_report(results, tmp_path / "page.html", config())
    finally:
        path.write_bytes(whole)
    assert not list(tmp_path.iterdir())
