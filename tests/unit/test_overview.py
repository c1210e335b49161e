"""`papa inspect` of a results folder: the study, how much is finished, what it concluded, and what to open."""

import json
from pathlib import Path

import pytest
from finished import CHANCE, SHARED, page_job, write_results
from typer.testing import CliRunner

from papa.cli import app
from papa.files import Trace, trace_of, write_json
from papa.jobs.overview import overview
from papa.results.conclusion import Conclusion
from papa.results.page import write_report

GRIDLESS = {"grids": {}}


def invoke(*arguments: str, code: int = 0) -> str:
    result = CliRunner().invoke(app, list(arguments))
    assert result.exit_code == code, result.output
    return result.stderr if code else result.stdout


@pytest.fixture(scope="module")
def study(tmp_path_factory):
    made = write_results(tmp_path_factory.mktemp("overview"), {"first": CHANCE, "second": CHANCE}, **GRIDLESS)
    write_report(page_job(made))
    return made


def test_a_folder_is_summarised_by_its_study_its_claim_and_what_to_open(study):
    content = json.loads(invoke("inspect", str(study.results), "--json"))
    made = [path for path in study.results.rglob("*") if path.is_file() and trace_of(path)]
    assert (content["name"], content["models"], content["tasks"]) == ("made", ["small", "other"], ["first", "second"])
    assert content["jobs"] == len(study.jobs()) > 20 and content["artefacts"] == len(made)
    missing = [job.main for job in study.jobs() if not Path(study.results, job.main).exists()]
    assert content["finished"] == content["jobs"] - len(missing)
    assert content["sentence"] == Conclusion.read(study.results / "tables/claims.json").sentence
    assert f"also in training: {SHARED} rows of texts." in content["leakage"]
    assert all(Path(path).is_file() for path in content["files"]) and len(content["files"]) == 4


def test_the_summary_fits_80_columns_except_for_paths(study):
    text = invoke("inspect", str(study.results))
    assert text.startswith("Results of the study made (") and "Nothing can be concluded about small" in text
    assert all(len(line) <= 80 for line in text.splitlines() if str(study.results) not in line)
    assert f"  {study.results}/report/index.html: the HTML report" in text


def test_a_study_without_a_report_is_not_finished(tmp_path):
    runs = tmp_path / "half/models/small/tasks/first/runs/original/runs.json"
    write_json({"runs": []}, runs, Trace("probe", 1, {}, {}))
    content = overview(tmp_path / "half")
    assert (content["name"], content["models"], content["tasks"]) == ("half", ["small"], ["first"])
    assert (content["artefacts"], content["jobs"], content["sentence"]) == (1, None, "")
    assert "the study is not finished: `papa run CONFIG` resumes it" in " ".join(
        invoke("inspect", str(tmp_path / "half")).split()
    )
    (tmp_path / "empty").mkdir()
    assert "is a folder without results of papa" in invoke("inspect", str(tmp_path / "empty"), code=2)


def test_heads_of_a_study_that_concluded_nothing_say_so(study):
    text = " ".join(invoke("heads", str(study.results), "--of", "small/first").split())
    assert "Numbers are heads that keep their attention, from 0; · is a replaced head." in text
    assert "Nothing could be concluded about small with average constants" in text


def test_heads_of_a_study_with_claims_have_no_remark(tmp_path):
    made = write_results(tmp_path, **GRIDLESS)
    text = invoke("heads", str(made.results), "--of", "small/first")
    assert "· is a replaced head." in text and "Nothing" not in text
