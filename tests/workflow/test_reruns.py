"""A run rebuilds whatever does not fit the config, and nothing else, whatever snakemake remembers.

tests/unit/test_study.py tests, without the workflow, which jobs an edit concerns. Here the workflow does what the study
says, on results of a real run. Their copies have no `.snakemake`, and every file in them has a new date.
"""

import copy
import os
import shutil
from collections import Counter

import pytest
from tiny import CONFIG, JOBS, Copy

from papa.config.freshness import FRESH
from papa.config.reading import config_of
from papa.config.study import Plan
from papa.data.local_digests import LocalSourceDigests
from papa.files import read_json, read_table, trace_of

TABLES = {"summarise": 1, "claims": 1, "drawn_analysis": 3, "page": 1}
OF_A_TASK = ("train_lambda", "rank", "hidden_states", "probe")
HALF = "models/tiny/tasks/animals/runs/average/lambda-0/kept-1of2"


@pytest.fixture
def config():
    return copy.deepcopy(CONFIG)


@pytest.fixture
def elsewhere(computed, tmp_path, monkeypatch):
    """A copy of the results, as the current folder: every file has a new date, and snakemake remembers nothing."""
    shutil.copytree(computed.folder, tmp_path / "papa", copy_function=shutil.copyfile, symlinks=True)
    monkeypatch.chdir(tmp_path / "papa")
    return Copy(tmp_path / "papa")


def to_do(config=CONFIG):
    """Jobs by rule that the study in the current folder has to run."""
    checked = config_of(config)
    study = Plan(checked, "results/tiny", LocalSourceDigests(checked.machine))
    return dict(Counter(job.rule for job in study.jobs() if study.state(job) != FRESH))


def test_a_run_prints_one_line_a_job_and_logs_the_rest(fresh_copy, config):
    """A job of each rule; afterwards snakemake remembers them, and reruns what it must."""
    config["run"] |= {"tasks": ["animals"], "fractions": ["1/2"]}
    config["floors"] = []
    process = fresh_copy.run("--cores", "2", "--configfile", fresh_copy.write(config))
    lines = process.stdout.splitlines()
    for rule in JOBS:
        assert sum(line.startswith((f"{rule} ", f"{rule}:")) for line in lines) == 1, rule
    assert {"Tables:  results/tiny/tables/", "Figures: results/tiny/figures/"} <= set(lines)
    folder = fresh_copy.folder / "results/tiny" / HALF
    names = ["outcomes.parquet", "probes.safetensors", "runs.benchmark.tsv", "runs.json"]
    assert sorted(path.name for path in folder.iterdir()) == names
    assert (folder / "runs.benchmark.tsv").read_text().startswith("s\th:m:s\tmax_rss")
    log = (fresh_copy.folder / "results/tiny/logs" / HALF / "runs.log").read_text(encoding="utf-8")
    assert "probe tiny animals average/lambda-0/kept-1of2: accuracy" in log
    assert fresh_copy.planned(None, "--configfile", "config.yaml") == {}
    config["tasks"]["animals"]["learning_rate"] = 0.002
    assert fresh_copy.planned(config) == dict.fromkeys((*OF_A_TASK, *TABLES), 1)


def test_without_a_change_nothing_runs_again(elsewhere):
    for module in ("method/probes.py", "config/study.py", "files.py"):
        with open(elsewhere.folder / "papa" / module, "a", encoding="utf-8") as source:
            source.write("# a comment\n")
    assert elsewhere.planned() == {}


@pytest.mark.parametrize(
    "edit",
    [
        {
            "run": CONFIG["run"] | {"fractions": ["1", "1/2", "1/4", "0"], "orders": ["lambda", "random"]},
            "grids": {"more": {"constants": ["average", "zeros"], "fractions": ["1", "0"], "seeds": [1, 2]}},
        },
        {"fidelity": "published_code", "ranking": {"seeds": [3]}},
    ],
)
def test_the_workflow_plans_what_the_study_says(elsewhere, config, edit):
    assert elsewhere.planned(config | edit) == to_do(config | edit)


def test_results_of_two_learning_rates_are_never_averaged(elsewhere, config):
    """With a further seed and another rate, every seed is trained with the new rate."""
    config["run"] = {"models": ["tiny"], "tasks": ["animals"], "fractions": ["1"], "seeds": [1, 2]}
    config["tasks"]["animals"]["learning_rate"] = 0.5
    process = elsewhere.run("--cores", "2", "--configfile", elsewhere.write(config))
    assert "runs.json is rebuilt: `training.learning_rate` changed from 0.001 to 0.5." in process.stdout
    runs = read_table("results/tiny/tables/runs.parquet").to_pandas()
    assert set(runs.learning_rate) == {0.5} and set(runs.seed) == {1, 2}
    assert to_do(config) == {}


def test_data_that_was_replaced_by_a_file_of_the_same_size_and_time(elsewhere):
    data = elsewhere.folder / "data/sentences.train.csv"
    dates, text = data.stat(), data.read_text(encoding="utf-8")
    data.write_text(text.replace(",0,", ",x,").replace(",1,", ",0,").replace(",x,", ",1,"), encoding="utf-8")
    os.utime(data, ns=(dates.st_atime_ns, dates.st_mtime_ns))
    assert data.stat().st_size == dates.st_size
    changed = to_do()
    assert changed["prepare_labels"] == changed["prepare_texts"] == changed["train_lambda"] == 1
    older = elsewhere.folder / "data/words.train.jsonl"
    older.write_text("".join(reversed(older.read_text(encoding="utf-8").splitlines(keepends=True))), encoding="utf-8")
    os.utime(older, (1, 1))
    assert to_do()["prepare_texts"] == 2


def test_after_pruning_nothing_runs_again_but_for_a_new_seed(elsewhere, config):
    results = elsewhere.folder / "results/tiny"
    next(results.rglob("runs.json")).with_name(".runs.seed-1.checkpoint").write_text("left by a kill")
    prune(elsewhere)
    assert not list(results.rglob("*.hidden")) + list(results.rglob(".*.checkpoint*"))
    for keep in (True, False):
        assert to_do(config | {"keep_hidden_states": keep}) == {}
    assert elsewhere.planned() == {}
    config["run"]["seeds"] = [1, 2]
    for keep in (True, False):
        assert to_do(config | {"keep_hidden_states": keep}) == {"hidden_states": 8, "probe": 8} | TABLES


@pytest.mark.slow
@pytest.mark.parametrize("stay", [True, False])
def test_one_more_seed_after_pruning_trains_its_own_probes_only(elsewhere, config, stay):
    results = elsewhere.folder / "results/tiny"
    prune(elsewhere)
    before = runs_of(results)
    config["run"] |= {"seeds": [1, 2], "tasks": ["animals"], "fractions": ["0"]}
    config |= {"keep_hidden_states": stay, "floors": []}
    process = elsewhere.run("--cores", "2", "--configfile", elsewhere.write(config))
    assert "runs.json is rebuilt" not in process.stdout
    assert "Probes for additional seeds are trained for 1 variant; others stay." in process.stdout
    assert process.stdout.count("accuracy 0.") == 1, process.stdout
    after = runs_of(results)
    assert {key: run for key, run in after.items() if key[1] == 1} == before
    assert len(after) == len(before) + 1
    assert len(list(results.rglob("*.hidden"))) == (1 if stay else 0)
    assert elsewhere.planned(config) == {}


def runs_of(results):
    return {(path, run["seed"]): run for path in results.rglob("runs.json") for run in read_json(path)["runs"]}


def prune(workflow):
    workflow.run("prune", "--cores", "1", "--configfile", "config.yaml")


def test_a_failed_job_fails_again_at_the_next_start(elsewhere, config):
    config["tasks"]["animals"]["label"] = "animl"
    name = elsewhere.write(config)
    for _ in range(2):  # the second start must not take the old tables for those of this config
        process = elsewhere.snakemake("--cores", "1", "--configfile", name)
        assert process.returncode == 1
        assert "Error in prepare_labels animals: data/sentences.train.csv has no column 'animl'" in process.stderr
        assert "Log: results/tiny/logs/tasks/animals/labels.log" in process.stderr
        assert "Traceback" not in process.stdout + process.stderr


def test_every_artefact_records_what_made_it(computed):
    results = computed.folder / "results/tiny"
    trace = trace_of(results / "models/tiny/tasks/animals/runs/average/lambda-0/kept-1of2/runs.json")
    assert trace.settings["training"] == {"learning_rate": 0.001, "batch_size": 8, "epochs": 1}
    assert trace.inputs.keys() >= {"tokens", "labels", "index", "model"}
    models = set()
    for path in [*results.rglob("*.parquet"), *results.rglob("*.json"), *results.rglob("*.h5")]:
        if "figures" not in path.parts:
            assert trace_of(path) is not None, path
            models.add(trace_of(path).inputs.get("model"))
    assert len(models - {None}) == 1, "the same model is known by different digests"
