"""A run makes again what does not fit the config any more, and nothing else, whatever snakemake remembers.

Which jobs an edit concerns is tested without the workflow (tests/unit/test_study.py). Here the workflow does as the
study says: on results that really were made, in copies whose files all have new dates and without `.snakemake`.
"""

import copy
import os
import shutil
from collections import Counter

import pytest
from tiny import CONFIG, JOBS, Copy, write_model

from papa.config.freshness import FRESH
from papa.config.reading import config_of
from papa.config.study import Study
from papa.data.local_digests import LocalSourceDigests
from papa.files import read_json, read_table, trace_of

TABLES = {"summarise": 1, "claims": 1, "drawn_analysis": 2, "page": 1}
OF_A_TASK = {"train_lambda": 1, "rank": 1, "hidden_states": 1, "probe": 4}


@pytest.fixture
def config():
    return copy.deepcopy(CONFIG)


@pytest.fixture
def elsewhere(finished, tmp_path):
    """Finished results that were copied: every file has a new date, and snakemake remembers nothing."""
    ignored = shutil.ignore_patterns(".snakemake")
    shutil.copytree(finished.folder, tmp_path / "papa", copy_function=shutil.copyfile, ignore=ignored, symlinks=True)
    return Copy(tmp_path / "papa")


def test_every_rule_runs_and_prints_one_line(finished):
    lines = finished.printed.splitlines()
    for rule, number in JOBS.items():
        assert sum(line.startswith((f"{rule} ", f"{rule}:")) for line in lines) == number, rule
    assert "Tables:  results/tiny/tables/" in lines
    assert "Figures: results/tiny/figures/" in lines


def test_logs_contain_progress_and_the_result(finished):
    log = finished.folder / "results/tiny/logs/models/tiny/tasks/animals/runs/original/runs.log"
    assert "examples" in log.read_text(encoding="utf-8")
    assert "probe tiny animals original: accuracy" in log.read_text(encoding="utf-8")


def test_seconds_and_memory_are_in_files_of_their_own(finished):
    runs = finished.folder / "results/tiny/models/tiny/tasks/animals/runs/original"
    assert (runs / "runs.benchmark.tsv").read_text().startswith("s\th:m:s\tmax_rss")
    names = ["outcomes.parquet", "probes.safetensors", "runs.benchmark.tsv", "runs.json"]
    assert sorted(path.name for path in runs.iterdir()) == names


def test_nothing_changed(finished, elsewhere):
    assert finished.planned() == {}
    assert elsewhere.planned() == {}


@pytest.mark.parametrize("remembered", [True, False])
def test_a_learning_rate_reruns_what_it_must(finished, elsewhere, config, remembered):
    config["tasks"]["tags"]["learning_rate"] = 0.002
    workflow = finished if remembered else elsewhere
    assert workflow.planned(config) == OF_A_TASK | TABLES


@pytest.mark.parametrize(
    "edit",
    [
        {"run": CONFIG["run"] | {"fractions": ["1", "1/2", "1/4", "0"], "orders": ["lambda", "random"]}},
        {"encoder_dropout": True},
        {"fidelity": "published_code"},
        {"precision": "bfloat16", "ranking": {"seeds": [3]}},
        {"grids": {"more": {"constants": ["average", "zeros"], "fractions": ["1", "0"], "seeds": [1, 2]}}},
    ],
)
def test_the_workflow_plans_what_the_study_says(elsewhere, config, edit, monkeypatch):
    monkeypatch.chdir(elsewhere.folder)
    study = Study(config_of(config | edit), "results/tiny", LocalSourceDigests(config_of(config | edit).machine))
    # these models and files are where the config says: no environment is needed to find them
    expected = Counter(job.rule for job in study.jobs() if study.state(job) != FRESH)
    planned = elsewhere.planned(config | edit)
    model_unknown = {rule: number for rule, number in expected.items() if planned.get(rule) != number}
    assert not model_unknown, (planned, expected)
    assert planned == dict(expected)


def test_results_of_two_learning_rates_are_never_averaged(elsewhere, config):
    """Without what snakemake remembers, a further seed and another rate: every seed is trained with the new rate."""
    config["run"] = {"models": ["tiny"], "tasks": ["animals"], "fractions": ["1"], "seeds": [1, 2]}
    config["tasks"]["animals"]["learning_rate"] = 0.5
    process = elsewhere.snakemake("--cores", "2", "--configfile", elsewhere.write(config))
    assert process.returncode == 0, process.stdout + process.stderr
    assert "runs.json is rebuilt: training.learning_rate is 0.5, but it was made with 0.001." in process.stdout
    runs = read_table(elsewhere.folder / "results/tiny/tables/runs.parquet").to_pandas()
    assert set(runs.learning_rate) == {0.5}
    assert set(runs.seed) == {1, 2}
    assert elsewhere.planned(config) == {}


def test_a_model_that_was_replaced_at_its_path(elsewhere):
    write_model(elsewhere.folder / "models/other", seed=1)
    shutil.copyfile(
        elsewhere.folder / "models/other/model.safetensors", elsewhere.folder / "models/tiny/model.safetensors"
    )
    planned = elsewhere.planned()
    assert planned["train_lambda"] == planned["average"] == 2
    assert planned["probe"] == JOBS["probe"]


def test_data_that_was_replaced_by_a_file_of_the_same_size_and_time(elsewhere):
    data = elsewhere.folder / "data/sentences.train.csv"
    dates, text = data.stat(), data.read_text(encoding="utf-8")
    data.write_text(text.replace(",0,", ",x,").replace(",1,", ",0,").replace(",x,", ",1,"), encoding="utf-8")
    os.utime(data, ns=(dates.st_atime_ns, dates.st_mtime_ns))
    assert data.stat().st_size == dates.st_size
    planned = elsewhere.planned()
    assert planned["prepare_labels"] == planned["prepare_texts"] == 1
    assert planned["train_lambda"] == 1
    older = elsewhere.folder / "data/words.train.jsonl"
    older.write_text("".join(reversed(older.read_text(encoding="utf-8").splitlines(keepends=True))), encoding="utf-8")
    os.utime(older, (1, 1))
    assert elsewhere.planned()["prepare_texts"] == 2


@pytest.mark.slow
def test_artefacts_of_another_study_are_made_again(elsewhere, config):
    """λ, an order and averages with the right names, which another config made."""
    other = elsewhere.folder / "results/other"
    shutil.copytree(elsewhere.folder / "results/tiny", other)
    config = config | {"name": "other", "ranking": {"epochs": 3}, "layout": {"style": "published_code"}}
    config["run"]["tasks"] = ["animals"]
    process = elsewhere.snakemake("--cores", "2", "--configfile", elsewhere.write(config, "other.yaml"))
    assert process.returncode == 0, process.stdout + process.stderr
    for name in (
        "models/tiny/tasks/animals/average/lambda-0.parquet",
        "models/tiny/tasks/animals/average/lambda-0/order.parquet",
        "models/tiny/corpora/sentences/average.h5",
    ):
        own = elsewhere.folder / "results/tiny" / name
        kept = own.read_bytes()
        shutil.copyfile(other / name, own)
        planned = elsewhere.planned()
        assert planned["probe"] >= 1, name
        own.write_bytes(kept)
    assert elsewhere.planned() == {}


def test_reruns_follow_meaning(elsewhere):
    for module in ("method/probes.py", "config/study.py", "files.py"):
        with open(elsewhere.folder / "papa" / module, "a", encoding="utf-8") as source:
            source.write("# a comment\n")
    assert elsewhere.planned() == {}
    stages = elsewhere.folder / "papa/config/stages.py"
    text = stages.read_text(encoding="utf-8")
    assert text.count('    stage = "lambda"\n') == 1
    stages.write_text(
        text.replace('    stage = "lambda"\n', '    stage = "lambda"\n    version = 99\n'), encoding="utf-8"
    )
    assert elsewhere.planned() == {"train_lambda": 2, "rank": 2, "hidden_states": 2, "probe": 2} | TABLES


def test_after_pruning_nothing_is_made_again_but_for_a_new_seed(elsewhere, config):
    results = elsewhere.folder / "results/tiny"
    left = next(results.rglob("runs.json")).with_name(".runs.seed-1.checkpoint")
    left.write_text("left by a kill", encoding="utf-8")
    prune(elsewhere)
    assert not list(results.rglob("*.hidden")) + list(results.rglob(".*.checkpoint*"))
    assert elsewhere.planned() == {}
    config["run"]["seeds"] = [1, 2]
    assert elsewhere.planned(config) == {"hidden_states": 8, "probe": 8} | TABLES


def test_whether_hidden_states_stay_makes_nothing_again(elsewhere, config):
    config["keep_hidden_states"] = False
    assert elsewhere.planned(config) == {}
    prune(elsewhere)
    assert elsewhere.planned(config) == {}
    config["run"]["seeds"] = [1, 2]
    assert elsewhere.planned(config) == {"hidden_states": 8, "probe": 8} | TABLES


@pytest.mark.slow
@pytest.mark.parametrize("stay", [True, False])
def test_one_more_seed_after_pruning_trains_its_own_probes_alone(elsewhere, config, stay):
    results = elsewhere.folder / "results/tiny"
    prune(elsewhere)
    before = runs_of(results)
    config["run"] |= {"seeds": [1, 2], "tasks": ["animals"]}
    config["keep_hidden_states"] = stay
    process = elsewhere.snakemake("--cores", "2", "--configfile", elsewhere.write(config))
    assert process.returncode == 0, process.stdout + process.stderr
    assert "runs.json is rebuilt" not in process.stdout
    assert "Probes of further seeds are trained for 4 variants; the others stay." in process.stdout
    logs = [path.read_text(encoding="utf-8") for path in (results / "logs").rglob("animals/runs/**/runs.log")]
    assert len(logs) == 4 and all("seed 2" in log and "seed 1:" not in log for log in logs)
    after = runs_of(results)
    assert {key: own for key, own in after.items() if key[1] == 1} == before
    assert len(after) == len(before) + 4
    assert len(list(results.rglob("*.hidden"))) == (4 if stay else 0)
    assert elsewhere.planned(config) == {}


def runs_of(results):
    """All runs of a folder, by their file and seed."""
    return {(path, run["seed"]): run for path in results.rglob("runs.json") for run in read_json(path)["runs"]}


def prune(workflow):
    process = workflow.snakemake("prune", "--cores", "1", "--configfile", "config.yaml")
    assert process.returncode == 0, process.stdout + process.stderr


def test_what_a_failed_job_leaves_missing_is_made_again(elsewhere, config):
    config["tasks"]["animals"]["label"] = "animl"
    name = elsewhere.write(config)
    for _ in range(2):  # the second start must not take the old tables for those of this config
        process = elsewhere.snakemake("--cores", "1", "--configfile", name)
        assert process.returncode == 1
        assert "Error in prepare_labels animals: data/sentences.train.csv has no column 'animl'" in process.stderr
        assert "Log: results/tiny/logs/tasks/animals/labels.log" in process.stderr
        assert "Traceback" not in process.stdout + process.stderr


@pytest.mark.slow
def test_same_bytes_of_scores_whatever_the_cores(finished, elsewhere):
    shutil.rmtree(elsewhere.folder / "results/tiny/models/tiny/tasks/animals/runs")
    process = elsewhere.snakemake("--cores", "1", "--configfile", "config.yaml", "--until", "probe")
    assert process.returncode == 0, process.stderr
    runs = (finished.folder / "results/tiny/models/tiny/tasks/animals/runs").rglob("*.*")
    runs = [path for path in runs if path.suffix in (".json", ".safetensors")]
    assert len(runs) == 8
    for path in runs:
        assert path.read_bytes() == (elsewhere.folder / path.relative_to(finished.folder)).read_bytes()


def test_every_artefact_says_what_made_it(finished):
    results = finished.folder / "results/tiny"
    run = results / "models/tiny/tasks/animals/runs/average/lambda-0/kept-1of2/runs.json"
    trace = trace_of(run)
    assert trace.settings["training"] == {"learning_rate": 0.001, "batch_size": 8, "epochs": 1}
    assert trace.inputs.keys() >= {"tokens", "labels", "index", "model"}
    models = set()
    for path in [*results.rglob("*.parquet"), *results.rglob("*.json"), *results.rglob("*.h5")]:
        if "figures" not in path.parts:
            assert trace_of(path) is not None, path
            models.add(trace_of(path).inputs.get("model"))
    assert len(models - {None}) == 1, "the same model is known by different digests"
