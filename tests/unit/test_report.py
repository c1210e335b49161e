"""The HTML report as a file: it needs nothing else, and no text of a config in it can become code."""

import json
import os
import re
import subprocess
from base64 import b64encode
from dataclasses import replace
from hashlib import sha256
from html.parser import HTMLParser
from pathlib import Path
from shutil import which
from typing import Any

import pandas as pd
import pytest
import yaml
from finished import (
    CEILING,
    CONFIG,
    EXAMPLES,
    LABELS,
    NO_SKILL,
    ONE_LABEL,
    RISING,
    SHARED,
    SUBSET,
    TITLE,
    page_job,
    tasks,
    write_results,
)

import papa
from papa.config.artefacts import BENCHMARK
from papa.config.study import Study
from papa.errors import DamagedArtefact
from papa.files import digest_of, read_json, read_table, trace_of
from papa.results.analysis import analyse
from papa.results.page import GLOSSARY, write_report
from papa.results.page_html import PAGES
from papa.results.page_learning import KEPT_SCORES, mean_curves
from papa.results.phrases import ASSUMPTIONS, bound_text

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

    def values(self, attribute: str) -> list[str]:
        """The values of an attribute of all tags; empty for those that lack it."""
        return [attributes.get(attribute) or "" for _, attributes in self.tags]

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attributes)))
        if tag not in ("meta", "link", "img", "input"):
            self.open.append(tag)
        if tag == "script":
            self.scripts.append("")
        if tag == "table":
            self.table = dict(attributes)["id"] or ""
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


@pytest.fixture(scope="module")
def claims(study: Study) -> Any:
    return read_json(page_job(study).input("claims"))


@pytest.fixture(scope="module")
def wary(tmp_path_factory: pytest.TempPathFactory) -> Page:
    """A report of tasks that are at their ceiling, not trained to the end, or of one label; with two orders of λ."""
    titles = {"easy": "Easy", "long": "Long", "constant": "Constant"}
    skills = {"easy": CEILING, "long": RISING, "constant": ONE_LABEL}
    run = CONFIG["run"] | {"models": ["small"], "tasks": list(titles)}
    changes = {"run": run, "grids": {}, "tasks": tasks(titles), "ranking": {"seeds": [2, 0]}}
    return Page(text_of(write_results(tmp_path_factory.mktemp("wary"), skills, **changes)))


def test_nothing_is_loaded_and_only_the_scripts_of_the_report_may_run(page):
    for tag, attributes in page.tags:
        assert "src" not in attributes, tag
        assert (attributes.get("href") or "#").startswith(("#", "data:")), tag
    [policy] = [tag["content"] for _, tag in page.tags if tag.get("http-equiv")]
    assert policy and "default-src 'none'" in policy and "connect-src" not in policy
    allowed = re.findall(r"'sha256-([^']+)'", policy)
    data, *scripts = page.scripts
    assert allowed == [b64encode(sha256(script.encode()).digest()).decode() for script in scripts]
    assert len(scripts) == 2 and data.startswith("{")


def test_hostile_names_stay_text(page, written):
    assert TITLE not in written and SUBSET not in written
    assert TITLE in {cell for lines in page.tables.values() for line in lines for cell in line}
    assert [entry["title"] for entry in page.data["explorer"]["entries"]][:2] == [TITLE, "Second"]
    assert SUBSET in json.dumps(page.data["figures"], ensure_ascii=False).replace('\\"', '"')
    assert {tag for tag, _ in page.tags} & {"img", "iframe", "object"} == set()
    assert not page.open


def test_the_conclusion_comes_first(page, claims):
    lines = [line for line in claims["lines"] if line["grid"] == "score_by_fraction"]
    sentences = " ".join(line["sentence"] for line in lines)
    assert (
        claims["sentence"].startswith(f"{sentences} The results hold for the paper's layout and ") and len(lines) == 2
    )
    assert claims["sentence"].endswith(claims["declared"])
    for words in claims["sentence"].removeprefix(f"{sentences} ").removesuffix(claims["declared"]), claims["declared"]:
        assert words.strip() in page.words
    parts = [" ".join(line["sentence"].split()).partition(". ") for line in lines]
    (first, second), rests = ([page.words.index(part[place]) for part in parts] for place in (0, 2))
    assert page.words.index("How much does attention depend on its input?") < first < second
    assert second < page.words.index("Each dot is a loss") < page.words.index("loss with all 15 heads replaced")
    assert page.words.index("loss with all 15 heads replaced") < min(rests), "the details follow the figure"


def test_each_line_has_its_numbers_with_intervals_and_reasons(page, claims):
    line = claims["lines"][0]
    end, step = line["at_end"], line["steps"][1]
    assert (line["replaceable"], step["replaced"]) == (8, 15)
    numbers = (step["bound"], line["half_margin"], line["steps"][0]["margin"])
    bound, half, passes = (bound_text(number, claims["margin"]) for number in numbers)
    for words in (
        f"loss with all 15 heads replaced {100 * end['loss']:.0f} % "
        f"95 % interval {100 * end['low']:.0f} to {100 * end['high']:.0f} %; mean over 2 tasks",
        f"replaceable at a margin of 10 % 8 of 15 heads smallest margin that passes: {passes}; "
        f"with 15 replaced, the one-sided upper bound of the loss on {step['worst']} is {bound}",
        f"margin at which half of the heads are replaceable {half} measured with 8 of 15 replaced",
    ):
        assert words in page.words


def test_each_task_has_its_claims_and_assumptions_are_listed(page, claims):
    header, *rows = page.tables["_claims-score_by_fraction-1"]
    assert header == ["line", "task", "by itself", "corrected", "passes at margins above", "next"]
    assert [row[0] for row in rows] == ["small", "small", "other", "other"]
    assert "for all 4 claims of this table" in page.words
    header, *rows = page.tables["_assumptions-0"]
    assert [row[1] for row in rows] == ["yes", *["no"] * (len(ASSUMPTIONS) - 3)], (
        "without clusters, and with fixed rows"
    )
    assert "The margin was not declared beforehand." in page.words
    for words in ("Loss: (original − score) / (original − floor)", "trained for 3 epochs at a learning rate of 0.001"):
        assert words.replace("−", "-") in page.words.replace("−", "-")


def test_claims_are_in_a_table(page):
    header, *lines = page.tables["_claims-score_by_fraction-0"]
    assert header[:4] == ["line", "heads replaced", "tasks", "loss"]
    numbers = [[line, f"{replaced} of 15", "2"] for line in ("small", "other") for replaced in (8, 15)]
    assert [line[:3] for line in lines] == numbers


def drawn_in(figure: dict[str, Any]) -> list[dict[str, Any]]:
    """All rows that a figure draws, each once."""
    data = [*figure.get("datasets", {}).values(), figure.get("data", {}).get("values", [])]
    data += [drawn_in(part) for name in ("layer", "concat") for part in figure.get(name, [])]
    return [json.loads(text) for text in dict.fromkeys(json.dumps(row) for rows in data for row in rows)]


def test_heads_are_drawn_against_the_margin(page, claims):
    rows = drawn_in(page.data["figures"]["_claims-score_by_fraction"])
    *steps, last = [row for row in rows if row.get("line") == "small"]
    assert [row["margin"] for row in steps] == [0, *(step["margin"] for step in claims["lines"][0]["steps"])]
    assert [row["k"] for row in steps] == [0, 8, 15]
    assert last["k"] == 15 and last["margin"] > steps[-1]["margin"]
    assert [row["margin"] for row in rows if "text" in row] == [0.1]


def test_the_glossary_explains_every_word_and_keeps_numbers_with_their_percent(page):
    assert page.text.count("bove 100\u00a0%") >= 2 and "bove 100 %" not in page.text  # also with the claims
    assert all(f"{word} {meaning}." in page.words for word, meaning in GLOSSARY.items())
    assert not re.search(r"(?<!ontext-)\bfree\b", page.words)


def test_where_no_probe_beats_the_majority_nothing_is_claimed(tmp_path):
    page = Page(text_of(write_results(tmp_path, {"second": NO_SKILL}, **SMALL)))
    why = f"the probe is no better than the majority class, {LABELS[0]} (0.750)"
    nothing = "Nothing can be concluded about small with heads replaced by average constants in the order of λ."
    assert f"{nothing} Second: {why}." in page.words
    assert f"Excluded. Second: {why}." in page.words
    assert "Nothing can be concluded, so there is no table of claims." in page.words
    assert "value" not in page.values("class")
    assert not {"_claims-score_by_fraction-0"} & page.tables.keys()
    assert set(page.data["figures"]) == {"score_by_fraction", "_learning"}
    # nor is there a section for the one dot of one model and one constant
    assert "section-score_and_drop" not in page.values("id")


def test_tasks_to_be_wary_of_are_named(wary):
    for words in (
        "Excluded. Constant: the probe is no better than the majority class",
        "At their ceiling. Easy.",
        "Scores were still rising when training ended; train longer or set `patience`. On Long, the probes of the "
        "original and replaced heads were still improving, so the loss may be larger or smaller than measured.",
        "mean over 2 tasks",
    ):
        assert words in wary.words


def test_several_orders_of_lambda_are_compared_and_the_first_is_shown(wary):
    header, *lines = wary.tables["stability-0"]
    assert header[:6] == ["task", "model", "constants", "order", "seeds", "τ"]
    assert {line[0] for line in lines} == {"Easy", "Long", "Constant"}
    assert "3 pairs of seeds: Kendall's τ" in wary.words
    [analysis] = wary.tables["analyses-0"][1:]
    assert analysis[-3:] == ["λ", "2, 0", "1, 2, 3"]


def test_orders_by_several_weights_are_compared_by_what_they_cost(tmp_path):
    run = CONFIG["run"] | {"models": ["small"], "tasks": ["first"], "orders": ["lambda", "gradient", "variance"]}
    study = write_results(tmp_path, run=run, grids={}, ranking={"seeds": [0, 1]})
    page = Page(text_of(study))
    assert [line[3:5] for line in page.tables["stability-0"][1:]] == [["gradient", "0, 1"], ["λ", "0, 1"]]
    costs = {line[3]: line[4:] for line in page.tables["weights-0"][1:]}
    assert costs["gradient"] == ["2", "25", "20", "30"] and costs["λ"] == ["2", "100", "100", "100"]
    assert costs["variance"] == ["1", "–", "–", "–"]


def test_every_analysis_is_there_with_its_figure_and_table(page):
    figures = {"_claims-score_by_fraction", "_learning", "losses", "score_by_fraction", "score_and_drop"}
    assert set(page.data["figures"]) == figures
    sections = {"section-score_by_fraction", "section-ends", "section-score_and_drop", "explorer", "runs"}
    assert sections <= set(page.values("id"))
    names = ["task", "metric", "model", "trivial", "context-free", "1", "1/2", "0", "drop at 0", "loss at 0"]
    assert page.tables["score_by_fraction-0"][0] == names
    assert page.tables["ends-0"][0] == ["constants", TITLE, "Second"]
    assert not any("**" in cell for line in page.tables["ends-0"] for cell in line)
    assert sum("caption" in classes.split() for classes in page.values("class")) == len(figures)
    assert page.words.count(f"n = {EXAMPLES} validation examples per task") == len(figures)


def test_learning_curves_have_a_panel_for_each_task_and_model(page):
    figure = page.data["figures"]["_learning"]
    assert ["".join(panel["title"]) for panel in figure["concat"]] == [
        f"{task} ({model})" for model in ("small", "other") for task in (TITLE, "Second")
    ]
    settings = ["original", "1/2 kept, average, λ order", "0 kept, average", "context-free, zeros"]
    rows = drawn_in(figure)
    assert list(dict.fromkeys(row["setting"] for row in rows)) == settings
    assert {row["epoch"] for row in rows} == {1, 2, 3} and {row["runs"] for row in rows} == {3}
    assert KEPT_SCORES.strip() not in page.words


def test_a_run_that_ended_early_keeps_its_last_score_in_learning_curves():
    """Three seeds end after epochs 1, 3 and 2; another setting of the task lasts longer, which changes nothing."""
    curves = {("a", 1): [0.3], ("a", 2): [0.4, 0.6, 0.8], ("a", 3): [0.5, 0.9], ("b", 1): [0.1, 0.2, 0.3, 0.4, 0.7]}
    rows = [
        {"model": "m", "task": "t", "setting": setting, "order": None, "seed": seed, "epoch": epoch, "score": score}
        for (setting, seed), scores in curves.items()
        for epoch, score in enumerate(scores, start=1)
    ]
    points = mean_curves(pd.DataFrame(rows))
    means = {name: group.set_index("epoch")["score"].to_dict() for name, group in points.groupby("setting")}
    assert means["a"] == pytest.approx({1: 0.4, 2: (0.3 + 0.6 + 0.9) / 3, 3: (0.3 + 0.8 + 0.9) / 3})
    assert means["b"] == pytest.approx({1: 0.1, 2: 0.2, 3: 0.3, 4: 0.4, 5: 0.7})
    assert points.set_index("setting")["runs"].to_dict() == {"a": 3, "b": 1}


def test_every_table_can_be_copied_as_latex(page):
    copies = [tag for _, tag in page.tags if "copy" in (tag.get("class") or "").split() and "data-text" in tag]
    assert len(copies) == len(page.tables) - 1, "all except the table of heads, which the script writes"
    for tag in copies:
        text = tag["data-text"] or ""
        assert text.startswith("% needs \\usepackage{booktabs}\n\\begin{table}") and text.endswith("\\end{table}\n")
        assert (tag["aria-label"] or "").startswith("Copy LaTeX of ")
    [losses] = [
        tag["data-text"] or "" for tag in copies if tag["aria-label"] == "Copy LaTeX of Loss with every head replaced"
    ]
    assert r"mean of all tasks & " in losses and r"\caption{Loss with every head replaced.}" in losses
    labels = [tag["aria-label"] for tag in copies]
    assert len(set(labels)) == len(labels), "each button says which table it copies"


def test_the_citation_has_the_facts_of_the_repository(page):
    citation = yaml.safe_load((Path(__file__).parents[2] / "CITATION.cff").read_text(encoding="utf-8"))
    software, paper = citation["preferred-citation"], citation["references"][0]
    entries = page.text[page.text.index("@software{") :].split("@")[1:]
    fields = [dict(re.findall(r"^ +(\w+) *= \{+(.*?)\}+,$", entry, re.MULTILINE)) for entry in entries[:2]]
    assert [entry.partition("{")[0] for entry in entries[:2]] == ["software", "inproceedings"]
    assert (fields[0]["title"], fields[0]["year"]) == (software["title"], str(software["year"]))
    assert (fields[0]["author"], fields[0]["version"]) == (software["authors"][0]["name"], papa.__version__)
    assert (fields[1]["title"], fields[1]["booktitle"]) == (paper["title"], paper["collection-title"])
    authors = " and ".join(f"{author['family-names']}, {author['given-names']}" for author in paper["authors"])
    assert (fields[1]["author"], fields[1]["doi"]) == (authors, paper["doi"])
    assert (fields[1]["year"], fields[1]["pages"]) == (str(paper["year"]), f"{paper['start']}--{paper['end']}")
    assert f"arXiv:{fields[1]['eprint']}" == paper["identifiers"][0]["value"]


def test_every_figure_is_described_in_numbers(page):
    described = {tag["data-figure"]: tag["aria-label"] or "" for _, tag in page.tags if "data-figure" in tag}
    assert set(described) == set(page.data["figures"])
    for name, words in described.items():
        assert len(re.findall(r"\d", words)) > 5, (name, words)
        assert not re.search(r"\d\.\d{5}|nan|None", words), (name, words)
    assert "Second, small: 0.750 with 15 of 15 heads kept" in described["score_by_fraction"]


def test_subsets_are_explained_and_have_numbers(page):
    assert f"scored separately: column kind: {SUBSET}, position." in page.words
    header, *lines = page.tables["score_by_fraction-1"]
    assert header[:4] == ["task", "model", "subset", "examples"]
    assert len(lines) == 8 and lines[0][:4] == [TITLE, "small", SUBSET, str(EXAMPLES // 2)]


def test_data_says_what_was_used_and_what_training_had_already(page):
    header, first, *_ = page.tables["data-0"]
    cells = dict(zip(header, first, strict=True))
    assert cells["training rows used / available"] == "1,024 / 2,048"
    assert cells["validation rows used / available"] == f"{EXAMPLES} / {EXAMPLES}"
    assert cells["validation rows also in training"] == str(SHARED)
    assert first[-2:] == ["3", "0"]
    assert len(page.tables["data-0"]) == 1 + 4


def test_the_report_waits_for_all_that_it_shows(study):
    rules = {"summarise", "claims", "analysis", "drawn_analysis"}
    assert {job.rule for job in study.job("page").needed} == rules
    assert study.jobs()[-1].rule == "page"


def test_published_values_are_next_to_ours(tmp_path):
    models = CONFIG["models"] | {"small": {"hub": "FacebookAI/roberta-base"}}
    task = CONFIG["tasks"]["second"] | {"published": "sst2"}
    page = Page(text_of(write_results(tmp_path, models=models, **(SMALL | {"tasks": {"second": task}}))))
    header, *lines = page.tables["published-0"]
    assert header[:5] == ["setting", "task", "metric", "published", "ours"]
    assert {(line[1], line[3]) for line in lines if line[0] == "original"} == {("Second", "0.91")}
    assert page.tables["models-0"][1][1] == "FacebookAI/roberta-base"


def test_models_and_config_are_shown_without_places(page, written):
    assert page.tables["models-0"][1:] == [
        ["small", "some/roberta@main", "", "5ba", "0.1.0"],
        ["other", "a folder", "", "5ba", "0.1.0"],
    ]
    assert "somewhere/on/this/machine" not in written
    assert "learning_rate: 0.001" in page.text and "token_budget" not in page.text


def test_seconds_and_memory_are_those_of_the_benchmark_files(page):
    jobs = {line[0]: line[1:] for line in page.tables["jobs-0"]}
    # jobs of a task that the config does not have any more do not count
    assert jobs["probe"][:4] == ["16", "2", "4", "300"]
    assert jobs["summarise"][:4] == ["1", "1", "2", "101"]
    assert (jobs["drawn analysis"][:4], jobs["analysis"][:4]) == (["3", "0", "–", "–"], ["1", "0", "–", "–"])
    assert jobs["all"][1:4] == ["4", "105", "300"]
    assert re.fullmatch(r"\d{4}-\d\d-\d\d \d\d:\d\d", jobs["all"][4]) and jobs["hidden states"][4] == "–"


def test_a_removed_seed_counts_in_no_table(study, tmp_path):
    """Its runs stay in the files of their variants."""
    job = study.analysis("summary").placed(study.results)
    outputs = {name: str(tmp_path / Path(path).name) for name, path in job.outputs.items()}
    parameters = job.settings.parameters | {"seeds": [[1, 3] for _ in job.settings.parameters["seeds"]]}
    settings = job.settings.model_copy(update={"parameters": parameters})
    assert analyse(replace(job, settings=settings, outputs=outputs)).startswith("32 runs, ")
    for name in ("runs", "all_outcomes", "curves"):
        assert set(read_table(outputs[name])["seed"].to_pylist()) == {1, 3}
    assert set(read_table(outputs["table"])["seeds"].to_pylist()) == {2}


def test_same_results_give_the_same_page(study, written):
    job = page_job(study)
    assert write_report(job) == "2 lines, 5 figures and 4 sets of heads in the HTML report"
    assert Path(job.output("page")).read_text(encoding="utf-8") == written


def test_numbers_agree_with_their_nouns(tmp_path):
    run = SMALL["run"] | {"fractions": ["1", "1/2"], "seeds": [1]}
    task = CONFIG["tasks"]["second"] | {"epochs": 1}
    job = page_job(write_results(tmp_path, {}, run=run, grids={}, tasks={"second": task}))
    assert write_report(job) == "1 line, 1 figure and 1 set of heads in the HTML report"
    words = Page(Path(job.output("page")).read_text(encoding="utf-8")).words
    assert "1 seed" in words and "1 seeds" not in words
    assert "3 probes of 1 model on 1 task, seed 1" in words
    assert "Learning curves" not in words  # of one epoch


def test_the_report_records_what_made_it(study, written):
    job = page_job(study)
    trace = trace_of(job.output("page"))
    assert trace is not None and trace.stage == "page"
    assert trace.inputs["summary"] == digest_of(job.input("summary"))
    assert "papa-provenance" in written[:8000]


FORMULAS = ('=HYPERLINK("http://x","y")', "@SUM(1)", "+1+cmd", "-1+cmd")
NO_FORMULAS = ("-1.25", "-3.5%", "+0.010", "-3.512 ±.021", "-", "a=b")


@pytest.mark.skipif(not which("node"), reason="no node to run the page's script with")
def test_no_cell_of_a_download_is_a_formula():
    source = (PAGES / "report.js").read_text(encoding="utf-8")
    functions = "\n".join(re.findall(r"^  const (?:NUMBER|inert|quoted) = .*$", source, re.MULTILINE))
    cells = [*FORMULAS, *NO_FORMULAS]
    script = f"{functions}\nprocess.stdout.write(JSON.stringify({json.dumps(cells)}.map(quoted)));"
    quoted = subprocess.run(["node", "-e", script], capture_output=True, text=True, check=True).stdout
    written = [f"'{cell}" if cell in FORMULAS else cell for cell in cells]
    assert json.loads(quoted) == ['"' + cell.replace('"', '""') + '"' for cell in written]


def test_a_damaged_result_is_named_and_nothing_written(study, written):
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
        if file.relative_to(study.results).as_posix() not in upstream and not file.name.endswith(BENCHMARK):
            ended = file.stat().st_mtime  # the report also shows the time and the date of every job
            file.write_bytes(b"")
            os.utime(file, (ended, ended))
    assert text_of(study) == before
