"""`papa plan`: its jobs are those of the study, its bytes those that a run writes; problems come first."""

import json
import re
from collections import Counter
from pathlib import Path
from types import SimpleNamespace

import pytest
import transformers
import yaml
from random_models import random_model
from tiny import ABSENT, CONFIG, ROWS, with_keys, write_inputs, write_model
from typer.testing import CliRunner

from papa.cli import app
from papa.commands.plan import ASSUMED
from papa.config.reading import config_of
from papa.data.weights import float32_bytes
from papa.plan.study import Plan
from papa.results.statistics import UNSEEN_UNITS, smallest_margin


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("plan")
    write_inputs(folder)
    return folder


@pytest.fixture
def plan(folder, monkeypatch):
    monkeypatch.chdir(folder)
    monkeypatch.setenv("PAPA_MACHINE", "{}")  # the command sets it for good
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")

    def run(config, *options):
        (folder / "planned.yaml").write_text(yaml.safe_dump(config))
        return CliRunner().invoke(app, ["plan", "planned.yaml", *options])

    return run


@pytest.fixture
def planned(plan):
    """What `papa plan --json` prints."""

    def run(config, *options):
        return json.loads(plan(config, "--json", *options).stdout)

    return run


def said_by(result):
    """What the command printed, on one line."""
    return " ".join((result.stdout or result.stderr).split())


def stages_of(planned):
    """The stages of a plan by name."""
    return {stage["stage"]: stage for stage in planned["stages"]}


def with_long_texts(text, runs, rows):
    """`CONFIG` with a corpus of equal texts and one task; `rows` is the number of rows of each split."""
    for split in ROWS:
        lines = "\n".join(["sentence,animal", *(f"{text},{row % 2}" for row in range(rows))])
        Path(f"data/long.{split}.csv").write_text(lines + "\n")
    files = {
        "files": {split: f"data/long.{split}.csv" for split in ROWS},
        "first": "sentence",
        "slots": 13,
    }
    runs = {f"run.{key}": value for key, value in ({"tasks": ["animals"]} | runs).items()}
    return with_keys(CONFIG, {"corpora.sentences": files, "tasks.animals.subset": ABSENT} | runs)


def test_jobs_are_those_of_the_study(planned):
    study = planned(CONFIG, "--cores", "3")
    rules = [batch.rule for batch in Plan(config_of(CONFIG), "results/tiny", save=False).missing]
    assert {name: stage["jobs"] for name, stage in stages_of(study).items()} == Counter(rules)
    assert study["total"]["jobs"] == len(rules)
    assert study["cores"] == 3
    assert not study["problems"]
    assert not study["total"]["unknown"]


def test_states_that_are_deleted_need_space_for_one_batch_per_core(planned, monkeypatch):
    total = planned(CONFIG)["total"]["disk_mb"]
    monkeypatch.setattr("shutil.disk_usage", lambda _: SimpleNamespace(free=0.9e6 * total))
    for keep, cores, remedy in (
        (True, "1", "keep_hidden_states"),
        (False, "1", None),
        (False, "99", "fewer cores"),
    ):
        study = planned(CONFIG | {"keep_hidden_states": keep}, "--cores", cores)
        assert [remedy in problem for problem in study["problems"]] == [True] * bool(remedy)


def test_disk_follows_from_rows_words_and_sizes(planned):
    """All rows fill their slots: every token is stored as 3 hidden states of 8 numbers in float16."""
    config = with_long_texts(" ".join(["cat"] * 40), {"fractions": ["1"]}, rows=2_000)
    config["floors"] = []
    assert planned(config)["total"]["disk_mb"] == pytest.approx(4_000 * 13 * 3 * 8 * 2 / 10**6)
    config["corpora"]["sentences"]["train_limit"] = 1_000
    assert planned(config)["total"]["disk_mb"] == pytest.approx(3_000 * 13 * 48 / 10**6)
    config["run"] |= {"constants": ["average", "mean-output"], "fractions": ["0"]}
    assert stages_of(planned(config))["average"]["disk_mb"] == pytest.approx(
        12 * 2 * (2 * 13**2 + 13 * 8) / 10**6
    )


def test_memory_is_that_of_the_largest_job_of_a_stage(planned, monkeypatch):
    """Weights, and what a pass keeps: for gradients of all layers, otherwise of one."""
    sizes = {name: stage["memory_mb"] for name, stage in stages_of(planned(CONFIG)).items()}
    assert sizes["tokenize"] == sizes["probe"] == sizes["report"] == 1000
    weights = float32_bytes("models/tiny", "tiny")
    monkeypatch.setattr("papa.commands.plan.float32_bytes", lambda *_: weights + 10**9)
    larger = planned(CONFIG)
    for stage in larger["stages"]:
        runs_model = stage["stage"] in ("average", "learn_lambda", "hidden_states")
        added = stage["memory_mb"] - sizes[stage["stage"]]
        assert added == pytest.approx(1000 if runs_model else 0)
    assert larger["total"]["memory_mb"] == max(stage["memory_mb"] for stage in larger["stages"])


def test_padded_texts_are_timed_in_batches_of_as_many_slots_as_in_a_run(plan, monkeypatch):
    numbers = []

    def run(_, packed):
        numbers.append(len(packed.lengths))
        return [packed.ids.float()]

    monkeypatch.setattr("papa.model.model.Model.run", run)
    monkeypatch.setattr("papa.model.forms.Form.padded", True)
    assert plan(CONFIG | {"token_budget": 130}, "--json").exit_code == 0
    assert set(numbers) == {10, 11}  # the corpora have 13 and 11 slots


def test_time_is_that_of_a_batch_times_the_passes(planned, monkeypatch):
    """With 13 tokens a second; each epoch of λ has three passes, because of its gradients."""
    monkeypatch.setattr("papa.commands.plan._tokens_per_second", lambda *_: 13.0)
    config = with_long_texts(" ".join(["cat"] * 40), {"seeds": [1, 2]}, rows=24)
    epochs = config["tasks"]["animals"]["epochs"]
    stages = stages_of(planned(config))
    passes = {
        "average": 1,
        "learn_lambda": 3 * epochs,
        "hidden_states": 4,
        "probe": 4 * 0.15 * 2 * epochs,
    }
    for name, number in passes.items():
        assert stages[name]["seconds"] == pytest.approx(stages[name]["jobs"] * 10 + 48 * number), (
            name
        )
    assert stages["report"]["seconds"] == 10


@pytest.mark.parametrize(("speed", "said"), [(1.0, True), (10**6, False)])
def test_a_long_study_comes_with_ways_to_make_it_smaller(plan, monkeypatch, speed, said):
    monkeypatch.setattr("papa.commands.plan._tokens_per_second", lambda *_: speed)
    assert ("To make it smaller" in plan(CONFIG).stdout) == said


def test_nothing_to_do_is_one_sentence(plan, monkeypatch):
    monkeypatch.setattr(Plan, "missing", [])
    assert plan(CONFIG).stdout.startswith(
        "Every file of the study tiny exists, so nothing has to run.\n"
    )


COLUMN = r"\S+ has no column 'feeling'; its columns are "


@pytest.mark.parametrize(
    ("keys", "code", "expected"),
    [
        (
            {"models.gone": {"hub": "owner/gone"}, "run.models": ["tiny", "gone"]},
            0,
            r"Model gone is not on this machine; .* stage jobs time, one job at a time .* average 4 \(2 unknown\)",
        ),
        # where nothing is known, the exit code says so
        (
            {
                "corpora.sentences": {
                    "hub": "owner/texts",
                    "first": "sentence",
                    "slots": 13,
                    "cluster": "document",
                },
                "run.tasks": ["animals"],
            },
            1,
            r"Corpus sentences is not on this machine; .* hidden_states 2 \(2 unknown\)",
        ),
        ({"models.tiny.path": "models/away"}, 2, ".*models/away"),
        (
            {"corpora.sentences.files": {"train": "gone.csv", "validation": "data/gone.csv"}},
            2,
            ".* gone.csv",
        ),
        ({"corpora.sentences.first": "feeling", "run.tasks": ["animals"]}, 2, COLUMN),
    ],
)
def test_what_is_not_here_is_said_first(plan, keys, code, expected):
    result = plan(with_keys(CONFIG, keys))
    assert result.exit_code == code
    assert re.match(expected, said_by(result))


def test_a_model_or_tokenizer_that_cannot_be_used_is_said_first(plan, planned, folder):
    runs = {"fractions": ["1"], "models": ["added", "adapted"]}
    config = with_long_texts("the <e1> cat", runs, rows=3)
    rows = '{"sentence": "a cat", "animal": "1"}\n{"sentence": "the <e1> cat", "animal": "0"}\n'
    (folder / "data/long.jsonl").write_text(rows)
    config["corpora"]["sentences"]["files"]["train"] = "data/long.jsonl"
    config["models"] = {name: {"path": f"models/{name}"} for name in ("added", "adapted")}
    for name in config["models"]:
        write_model(folder / f"models/{name}")
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder / "models/added")
    tokenizer.add_tokens(["<e0>", "<e1>"])
    tokenizer.save_pretrained(folder / "models/added")
    added = planned(config)["problems"][0]
    assert re.search(
        r"token '<e1>' \(in the text 'the <e1> cat'\), but the model has no embedding \d+; call",
        added,
    )
    (folder / "models/adapted/adapter_config.json").write_text("{}")
    assert "has an adapter (adapter_config.json); merge it" in plan(config).stderr


@pytest.mark.parametrize(
    ("keys", "expected"),
    [
        (
            {"metric": "f1"},
            "animals: F1 of yes. Warning: F1 is that of yes, the class of 67% of the training rows",
        ),
        ({"metric": "f1", "labels": ["yes", "no"]}, "animals: F1 of no."),
        (
            {"labels": ["yes", "maybe"]},
            "olumn animal contains 'no', but `labels` lists only yes, maybe",
        ),
    ],
)
def test_labels_are_read_before_anything_runs(plan, folder, keys, expected):
    config = with_long_texts("the cat", {"fractions": ["1"], "tasks": ["animals"]}, rows=9)
    for file in config["corpora"]["sentences"]["files"].values():
        rows = "".join(f"the cat {row},{'yes' if row % 3 else 'no'}\n" for row in range(9))
        (folder / file).write_text(f"{config['corpora']['sentences']['first']},animal\n{rows}")
    config["tasks"]["animals"] |= keys | {"label": "animal"}
    config["tasks"]["animals"].pop("subset", None)
    result = plan(config)
    assert expected in said_by(result)


def test_the_smallest_margin_is_worked_out_by_hand(plan, planned):
    """Seeds vary by .005 of the range, 5% of the examples differ and one that was not seen, attention gives .2."""
    runs = {"seeds": [1, 2, 3], "tasks": ["animals", "rte"]}
    config = with_long_texts("the cat", runs, rows=408)
    config["tasks"]["rte"] = config["tasks"]["animals"] | {"title": "RTE"}
    entry, _ = planned(config)["smallest_margins"]
    expected = smallest_margin(3, 0.005, ((0.05 + 2 * UNSEEN_UNITS / 408) / 408) ** 0.5)
    assert entry["in_score"] == pytest.approx(expected)
    assert 0.028 < expected < 0.03
    assert entry["smallest"] == pytest.approx(expected / 0.2)
    assert (entry["seeds"], entry["examples"]) == (3, 408)
    said = said_by(plan(config))
    sizes = (
        "contribution: animals 3.0 points or 15% (3 seeds, 408 examples), RTE 3.0 points or 15% ("
    )
    assert sizes in said
    assert ASSUMED in said
    assert (
        "A margin of 10% is unlikely for animals, RTE: add examples, or seeds if there are few."
        in said
    )
    for margin, unlikely in ((0.2, False), ("3 points", False), ("2 points", True)):
        assert ("unlikely" in plan(config | {"margin": margin}).stdout) == unlikely


@pytest.mark.parametrize(
    ("cluster", "effect"),
    [(17, 17), (29, (14 * 29**2 + 2**2) / 408), ("document", 8 * (1 + 50**2) / 408)],
)
def test_a_cluster_counts_as_one_example(planned, cluster, effect):
    """Against the variance of a mean of equal rows: the sum of squared sizes of clusters, divided by the rows."""
    config = with_long_texts("the cat", {"seeds": [1, 2, 3]}, rows=408)
    config["corpora"]["sentences"]["cluster"] = cluster
    lines = [
        f"the cat,{size % 2},d{place}"
        for place, size in enumerate([1, 50] * 8)
        for _ in range(size)
    ]
    for split in ROWS:
        Path(f"data/long.{split}.csv").write_text("\n".join(["sentence,animal,document", *lines]))
    [entry] = planned(config)["smallest_margins"]
    units = 408 / effect
    expected = smallest_margin(
        3, 0.005 / 0.2, ((0.05 + 2 * UNSEEN_UNITS / units) / units) ** 0.5 / 0.2
    )
    assert entry["smallest"] == pytest.approx(expected)


def test_models_that_do_not_fit_a_task_are_named_before_the_run(planned):
    corpora = {"blocks": {**CONFIG["corpora"]["sentences"], "blocks": True}}
    how = {"corpus": "blocks", "learning_rate": 1e-3, "batch_size": 2, "epochs": 1}
    tasks = {
        metric.split("_")[0]: how | {"metric": metric}
        for metric in ("negative_log_perplexity", "log_likelihood")
    }
    models = {"gpt": {"path": random_model("gpt2")}, "bert": {"path": random_model("bert")}}
    config = CONFIG | {
        "models": models,
        "corpora": corpora,
        "tasks": tasks,
        "run": CONFIG["run"] | {"tasks": [*tasks], "models": ["gpt", "bert"]},
    }
    estimates = planned(config)
    assert estimates["smallest_margins"][1]["why"] == "the score has no upper limit"
    assert estimates["problems"] == [
        "Model gpt: it is a decoder, which cannot predict the masked tokens of task negative; use the metric "
        "log_likelihood.",
        "Model bert: its config lists no architecture that predicts next tokens, which task log needs "
        "(log_likelihood).",
    ]


def test_without_seeds_or_a_floor_nothing_can_be_claimed(plan):
    reasons = {
        "one seed shows nothing; use at least two": {},
        "without `floors` no reliance is measured": {"floors": []},
    }
    for why, keys in reasons.items():
        said = said_by(plan(CONFIG | keys))
        assert said.endswith(f"No smallest margin is estimated for animals, tags: {why}.")
