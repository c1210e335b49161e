"""Only what a change touches runs again: dry runs of edited copies of a workflow that has really run."""

import copy
import shutil

import pytest
from tiny import CONFIG, JOBS, a_task

REPORT = {"report": 1}  # it reads everything, and shows the config
FIGURES = {"plot_grid": 1, "plot_score_and_drop": 1}
TABLES = {"collect": 1, "summarise": 1, "latex": 1, "gather": 1, "score_and_drop": 1} | FIGURES | REPORT
OF_A_TASK = {"train_lambda": 1, "rank": 1, "features_of_task": 1, "probe": 3}
OF_A_LAYOUT = {"train_lambda": 2, "rank": 2, "features_of_corpus": 4, "features_of_task": 2, "probe": 6}
OF_A_CORPUS = {"tokenize": 1, "average": 1, "features_of_corpus": 2}


@pytest.fixture
def config():
    return copy.deepcopy(CONFIG)


def test_every_rule_runs_and_prints_one_line(finished):
    lines = finished.printed.splitlines()
    for rule, number in JOBS.items():
        assert sum(line.startswith((f"{rule} ", f"{rule}:")) for line in lines) == number, rule
    assert "Tables:  results/tiny/tables/" in lines
    assert "Figures: results/tiny/figures/" in lines


def test_logs_hold_progress_and_the_result(finished):
    log = finished.folder / "results/tiny/logs/models/tiny/tasks/animals/runs/original/seed-1.log"
    assert "examples" in log.read_text(encoding="utf-8")
    assert "probe tiny animals original 1: accuracy" in log.read_text(encoding="utf-8")


def test_seconds_and_memory_are_in_files_of_their_own(finished):
    runs = finished.folder / "results/tiny/models/tiny/tasks/animals/runs/original"
    assert (runs / "seed-1.benchmark.tsv").read_text().startswith("s\th:m:s\tmax_rss")
    assert sorted(path.name for path in runs.iterdir()) == [
        "seed-1.benchmark.tsv",
        "seed-1.json",
        "seed-1.safetensors",
    ]


def test_nothing_changed(finished, config):
    assert finished.planned(config) == {}


def test_learning_rate_of_one_task(finished, config):
    config["tasks"]["tags"]["learning_rate"] = 0.002
    assert finished.planned(config) == OF_A_TASK | TABLES


def test_seed_added(finished, config):
    config["run"]["seeds"] = [1, 2]
    assert finished.planned(config) == {"probe": 6} | TABLES


def test_fraction_added(finished, config):
    config["run"]["fractions"].append("1/4")
    assert finished.planned(config) == {"features_of_task": 2, "probe": 2} | TABLES


def test_same_fraction_written_differently(finished, config):
    config["run"]["fractions"] = [1, "2/4", 0]
    assert finished.planned(config) == {}


def test_task_added(finished, config):
    config["corpora"]["more"] = copy.deepcopy(config["corpora"]["sentences"]) | {"slots": 17}
    config["tasks"]["more"] = a_task(corpus="more")
    config["run"]["tasks"].append("more")
    assert finished.planned(config) == {"prepare_texts": 1, "prepare_labels": 1} | OF_A_CORPUS | OF_A_TASK | TABLES


def test_shards_added(finished, config):
    config["corpora"]["words"]["shards"] = 3
    own = {"average_part": 3, "merge_averages": 1, "features_of_corpus": 6, "features_of_task": 3}
    assert finished.planned(config) == {"train_lambda": 1, "rank": 1, "probe": 3} | own | TABLES


def test_precision_of_the_encoder(finished, config):
    config["precision"] = "bfloat16"
    own = {"average": 2, "features_of_corpus": 4, "train_lambda": 2, "rank": 2, "features_of_task": 2, "probe": 6}
    assert finished.planned(config) == own | TABLES


def test_task_defined_but_not_run(finished, config):
    config["tasks"]["more"] = a_task(label="long")
    assert finished.planned(config) == {}


def test_second_labelling_of_the_same_texts(finished, config):
    config["tasks"]["lengths"] = a_task(label="long")
    config["run"]["tasks"].append("lengths")
    assert finished.planned(config) == {"prepare_labels": 1} | OF_A_TASK | TABLES


@pytest.fixture
def masked(config):
    """`config` with a task of masked language modelling, on blocks of the sentences that it has."""
    config["corpora"]["running"] = config["corpora"]["sentences"] | {"blocks": True}
    config["tasks"]["masked"] = {key: value for key, value in a_task(corpus="running").items() if key != "label"}
    config["tasks"]["masked"]["metric"] = "negative_log_perplexity"
    config["run"]["tasks"].append("masked")
    return config


def test_masked_language_modelling_added(finished, masked):
    own = {"prepare_texts": 1, "tokenize": 1, "average": 1, "train_lambda": 1, "rank": 1, "probe_through_encoder": 3}
    assert finished.planned(masked) == own | TABLES


def test_masked_language_modelling_on_a_corpus_that_is_there(finished, masked):
    masked["tasks"]["masked"]["corpus"] = "words"
    assert finished.planned(masked) == {"train_lambda": 1, "rank": 1, "probe_through_encoder": 3} | TABLES


def test_masked_language_modelling_without_a_mask_token(finished_copy, masked):
    masked["run"] |= {"tasks": ["masked"], "fractions": ["1"]}
    process = finished_copy.snakemake("--cores", "1", "--configfile", finished_copy.write(masked))
    assert process.returncode == 1 and "Traceback" not in process.stdout + process.stderr
    assert "Error in probe_through_encoder tiny masked original 1: The tokenizer of model tiny has no" in process.stderr


def test_averages_of_a_text_file(finished_copy, config):
    """Without labels, validation split and slots of its own: averaged at the slots of each task."""
    (finished_copy.folder / "data/plain.txt").write_text("the old cat sleeps\n", encoding="utf-8")
    config["corpora"]["plain"] = {"files": {"train": "data/plain.txt"}}
    config["run"] |= {"constants": ["average", "average-of-plain"], "fractions": ["1", "0"]}
    own = {"prepare_texts": 1, "tokenize": 2, "average": 2, "features_of_corpus": 2, "probe": 2}
    assert finished_copy.planned(config) == own | TABLES


def test_model_added(finished, config):
    config["models"]["other"] = {"path": "models/other"}
    config["run"]["models"].append("other")
    twice = {rule: 2 * number for rule, number in (OF_A_CORPUS | OF_A_TASK).items()}
    assert finished.planned(config) == twice | TABLES


@pytest.mark.parametrize(
    ("order", "jobs"),
    [
        ("lambda-reversed", {"rank": 2, "features_of_task": 2, "probe": 2}),
        ("last-layer-first", {"order_heads": 1, "features_of_task": 2, "probe": 2}),
        ("random", {"order_heads": 3, "features_of_task": 6, "probe": 6}),
    ],
)
def test_order_added(finished, config, order, jobs):
    config["run"]["orders"] = ["lambda", order]
    assert finished.planned(config) == jobs | TABLES


OF_A_KIND = {"train_lambda": 2, "rank": 2, "features_of_task": 2}


@pytest.mark.parametrize(
    ("constant", "jobs"),
    [
        ("toeplitz", OF_A_KIND | {"features_of_corpus": 2, "probe": 4}),
        # trained from averages: the λ and the order of the averages, and no hidden states
        ("average-trained", {"probe_through_encoder": 4}),
        # words laid out in the slots of sentences; for words itself it is the average that is there
        (
            "average-of-words",
            {"tokenize": 1, "average": 1, "features_of_corpus": 1, "train_lambda": 1, "rank": 1}
            | {"features_of_task": 1, "probe": 2},
        ),
    ],
)
def test_constants_added(finished, config, constant, jobs):
    config["run"]["constants"] = ["average", constant]
    assert finished.planned(config) == jobs | TABLES


def test_averages_of_one_corpus_are_shared_by_tasks_of_the_same_slots(finished, config):
    config["corpora"]["copy"] = config["corpora"]["sentences"] | {"slots": 11}
    config["tasks"]["copied"] = config["tasks"]["animals"] | {"corpus": "copy"}
    config["run"] |= {"tasks": ["tags", "copied"], "constants": ["average-of-sentences"], "fractions": ["0"]}
    planned = finished.planned(config)
    assert {rule: planned[rule] for rule in ("prepare_texts", "tokenize", "average")} == {
        "prepare_texts": 1,
        "tokenize": 2,
        "average": 1,
    }


def test_style_of_plots(finished, config):
    config["plots"] = {"width": 300}
    assert finished.planned(config) == FIGURES | REPORT


@pytest.mark.parametrize(
    ("grid", "jobs"),
    [
        ({"tasks": ["tags"]}, {"gather": 1, "plot_grid": 1} | REPORT),
        ({"title": "Kinds", "fractions": ["0", "1"]}, {"gather": 1} | REPORT),
        (
            {"constants": ["average", "zeros"], "fractions": ["1", "0"]},
            {"features_of_corpus": 2, "probe": 2} | TABLES | {"gather": 2},
        ),
    ],
)
def test_grid_added(finished, config, grid, jobs):
    config["grids"] = {"more": grid}
    assert finished.planned(config) == jobs


THROUGH_ENCODER = {"train_lambda": 2, "rank": 2, "probe_through_encoder": 6}


@pytest.mark.parametrize(
    ("keys", "jobs"),
    [
        ({"fidelity": "paper"}, {}),
        ({"encoder_dropout": True}, THROUGH_ENCODER | TABLES),
        ({"score_validation": "all"}, REPORT),  # these corpora have no further splits
        ({"layout": {"style": "published_code"}}, {"tokenize": 2, "average": 2} | OF_A_LAYOUT | TABLES),
        ({"fidelity": "published_code"}, {"tokenize": 2, "average": 2} | THROUGH_ENCODER | TABLES),
        ({"fidelity": "published_code", "layout": {"style": "paper", "segments": "aligned"}}, THROUGH_ENCODER | TABLES),
    ],
)
def test_switches_between_paper_and_published_code(finished, config, keys, jobs):
    assert finished.planned(config | keys) == jobs


def test_streaming_a_task_trains_its_probes_again_and_may_leave_them(finished, config):
    config["tasks"]["tags"]["features"] = "stream"
    assert finished.planned(config) == {"probe_through_encoder": 3} | TABLES
    assert finished.planned(config, "--rerun-triggers", "mtime") == {}
    config["tasks"]["tags"]["features"] = "store"
    assert finished.planned(config) == REPORT


@pytest.mark.parametrize("change", [{"seed": 1}, {"epochs": 7}])
def test_training_of_lambda(finished, config, change):
    config["ranking"] = change
    assert finished.planned(config) == {"train_lambda": 2, "rank": 2, "features_of_task": 2, "probe": 2} | TABLES


def test_slots_of_one_corpus(finished, config):
    config["corpora"]["words"]["slots"] = 12
    assert finished.planned(config) == OF_A_CORPUS | OF_A_TASK | TABLES


def test_places_and_machine_rerun_nothing(finished, config):
    config |= {"hub_mirror": "data/hub", "device": "cpu", "threads": {"encoder": 1, "probe": 2}, "token_budget": 100}
    config["models"]["tiny"] = {"path": "elsewhere/tiny"}
    config["checkpoint_minutes"] = 0
    assert finished.planned(config) == {}


def test_mirror_given_on_the_command_line(finished, config):
    assert finished.planned(config, "--config", "hub_mirror=data/hub") == {}


@pytest.mark.parametrize(
    ("module", "expected"),
    [
        ("plots", FIGURES | REPORT),
        ("summary", TABLES),
        ("probes", {"train_lambda": 2, "rank": 2, "features_of_task": 2, "probe": 6} | TABLES),
        ("stage", {}),
        ("config", REPORT),
        ("graph", REPORT),
    ],
)
def test_module_edited(finished_copy, module, expected):
    append_comment(finished_copy.folder / f"papa/{module}.py")
    assert finished_copy.planned() == expected


def test_modules_in_the_middle_leave_earlier_stages_alone(finished_copy):
    append_comment(finished_copy.folder / "papa/metrics.py")
    planned = finished_copy.planned()
    assert planned["probe"] == 6
    assert not planned.keys() & {"prepare_texts", "prepare_labels", "tokenize", "average", "features_of_corpus"}
    append_comment(finished_copy.folder / "papa/constants.py")
    planned = finished_copy.planned()
    assert planned["average"] == 2
    assert not planned.keys() & {"prepare_texts", "prepare_labels", "tokenize"}


def test_module_touched_but_not_edited(finished_copy):
    (finished_copy.folder / "papa/errors.py").touch()
    assert finished_copy.planned() == {}


def test_own_data_changed(finished_copy):
    data = finished_copy.folder / "data/words.train.jsonl"
    data.write_text(data.read_text() + data.read_text().splitlines()[0] + "\n")
    one = {"prepare_texts": 1, "prepare_labels": 1}
    assert finished_copy.planned() == one | OF_A_CORPUS | OF_A_TASK | TABLES


def test_hidden_states_may_be_deleted(finished_copy):
    for path in (finished_copy.folder / "results/tiny/models").rglob("*.hidden"):
        path.unlink()
    assert finished_copy.planned() == {}


def test_what_a_failed_job_leaves_missing_is_made_again(finished_copy):
    config = copy.deepcopy(CONFIG)
    config["tasks"]["animals"]["label"] = "animl"
    name = finished_copy.write(config)
    for _ in range(2):  # the second start must not take the old tables for those of this config
        process = finished_copy.snakemake("--cores", "1", "--configfile", name)
        assert process.returncode == 1
        assert "Error in prepare_labels animals: data/sentences.train.csv has no column 'animl'" in process.stderr
        assert "Log: results/tiny/logs/tasks/animals/labels.log" in process.stderr
        assert "Traceback" not in process.stdout + process.stderr
    assert not (finished_copy.folder / "results/tiny/tasks/animals/labels.parquet").exists()


def test_same_bytes_of_scores_whatever_the_cores(finished, finished_copy):
    shutil.rmtree(finished_copy.folder / "results/tiny/models/tiny/tasks/animals/runs")
    process = finished_copy.snakemake("--cores", "1", "--configfile", finished_copy.write(CONFIG))
    assert process.returncode == 0, process.stderr
    runs = (finished.folder / "results/tiny/models/tiny/tasks/animals/runs").rglob("seed-1.*")
    runs = [path for path in runs if path.suffix in (".json", ".safetensors")]
    assert len(runs) == 6
    for path in runs:
        assert path.read_bytes() == (finished_copy.folder / path.relative_to(finished.folder)).read_bytes()


def append_comment(path):
    path.write_text(path.read_text(encoding="utf-8") + "# edited\n", encoding="utf-8")


def test_features_and_checkpoints_are_pruned_on_request_and_runs_stay(finished_copy):
    run = next(finished_copy.folder.rglob("seed-1.json"))
    for left in (".seed-1.json.checkpoint", "..seed-1.json.checkpoint.77.partial"):
        (run.parent / left).write_text("left by a kill", encoding="utf-8")
    process = finished_copy.snakemake("prune", "--cores", "1", "--configfile", "config.yaml")
    assert process.returncode == 0, process.stdout + process.stderr
    assert not list(finished_copy.folder.rglob("*.hidden")) + list(finished_copy.folder.rglob(".*.checkpoint*"))
    assert list(finished_copy.folder.rglob("seed-1.json"))
    assert finished_copy.planned(CONFIG) == {}


def test_a_title_is_only_a_name(finished, config):
    config["tasks"]["animals"]["title"] = "Animals in sentences"
    assert finished.planned(config) == TABLES
