"""`papa plan`: its jobs are those of the study, its bytes those that a run writes; problems come first."""

import copy
import json
import math
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import yaml
from builders import labelled
from random_models import random_model
from tiny import CONFIG, REPOSITORY, ROWS, write_data, write_model
from typer.testing import CliRunner

from papa.cli import app
from papa.config.reading import config_of
from papa.config.study import Study
from papa.files import Trace, write_table
from papa.jobs.plan import ASSUMED, ASSUMED_IN_CLUSTERS, Noise, SplitSize, describe_margins
from papa.jobs.resources import format_duration
from papa.results.outcomes import Setting, table_of
from papa.results.statistics import UNSEEN_UNITS, smallest_loss


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("plan")
    write_data(folder / "data")
    write_model(folder / "models/tiny")
    return folder


@pytest.fixture
def plan(folder, monkeypatch):
    monkeypatch.chdir(folder)
    monkeypatch.setenv("PAPA_MACHINE", "{}")  # the command sets it for good
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")

    def run(config, *options):
        (folder / "planned.yaml").write_text(yaml.safe_dump(config), encoding="utf-8")
        return CliRunner().invoke(app, ["plan", "planned.yaml", *options])

    return run


def changed(**blocks):
    config = copy.deepcopy(CONFIG)
    for block, values in blocks.items():
        config[block] = config.get(block, {}) | values
    return config


def with_long_texts(text, runs, **rows):
    """`CONFIG` with a corpus of equal texts and one task; `rows` are the numbers of rows of each split."""
    for split in ROWS:
        lines = "\n".join(["sentence,animal", *(f"{text},{row % 2}" for row in range(rows[split]))])
        with open(f"data/long.{split}.csv", "w", encoding="utf-8") as file:
            file.write(lines + "\n")
    files = {"files": {split: f"data/long.{split}.csv" for split in ROWS}, "first": "sentence", "slots": 13}
    config = changed(corpora={"sentences": files}, run={"tasks": ["animals"]} | runs)
    del config["tasks"]["animals"]["subset"]
    return config


def stages_of(plan, config, *options):
    planned = json.loads(plan(config, "--json", *options).stdout)
    return {stage["stage"]: stage for stage in planned["stages"]}


def test_jobs_are_those_of_the_study(plan):
    result = plan(CONFIG, "--json", "--cores", "3")
    assert result.exit_code == 0, result.output
    planned = json.loads(result.stdout)
    rules = [job.rule for job in Study(config_of(CONFIG), "results/tiny").jobs()]
    assert {stage["stage"]: stage["jobs"] for stage in planned["stages"]} == {rule: rules.count(rule) for rule in rules}
    assert planned["total"]["jobs"] == len(rules) and planned["cores"] == 3
    assert not planned["problems"] and not planned["total"]["unknown"]
    order = [stage["stage"] for stage in planned["stages"]]
    assert order.index("average") < order.index("train_lambda") < order.index("hidden_states") < order.index("probe")


def test_disk_follows_from_rows_words_and_sizes(plan):
    """All rows fill their slots: every token is stored as 3 hidden states of 8 numbers in float16."""
    config = with_long_texts(" ".join(["cat"] * 40), {"fractions": ["1"]}, train=20_000, validation=20_000)
    config["floors"] = []

    def stored(*options, **changes):
        return stages_of(plan, config | changes, *options)["hidden_states"]["disk_mb"]

    assert stored() == -(-(40_000 * 13 * 3 * 8 * 2 + 40_000 * 4) // 10**6)
    config["corpora"]["sentences"]["train_limit"] = 10_000
    limited = -(-(30_000 * 13 * 3 * 8 * 2 + 30_000 * 4) // 10**6)
    assert stored() == limited
    # several variants, of which few are there at a time if they do not stay
    config["run"]["fractions"] = ["1", "1/2", "1/8", "0"]
    assert stored("--cores", "1") == 4 * limited
    assert stored("--cores", "1", keep_hidden_states=False) == 2 * limited
    # those of the original wait until all gradients are taken
    config["run"]["orders"] = ["gradient"]
    assert stored("--cores", "1", keep_hidden_states=False) == 3 * limited


def test_the_memory_of_constants_is_that_of_their_numbers(plan):
    """In float32, for 2 layers of 2 heads of 4 channels and 13 slots."""
    constants = ["average", "by-distance", "mean-output", "average-trained", "zeros"]
    config = with_long_texts("a cat", {"constants": constants, "fractions": ["0"]}, train=24, validation=24)
    sizes = {"average": 4 * 13**2, "by-distance": 4 * 26, "mean-output": 4 * 13 * 4}
    listed = json.loads(plan(config, "--json").stdout)["constants"]
    assert {each.pop("constant"): each.pop("bytes") for each in listed} == {name: 4 * n for name, n in sizes.items()}
    assert all(each == {"model": "tiny", "slots": 13} for each in listed)
    printed = " ".join(plan(config).stdout.split())
    assert "by-distance of tiny in 13 slots 416 B, mean-output of tiny in 13 slots 832 B." in printed


def test_the_table_of_all_outcomes_is_counted(plan):
    """Every run of every seed has one for each validation text; 60,000 texts, so that they are more than rounding."""
    config = with_long_texts("a cat", {"seeds": [1, 2, 3]}, train=24, validation=60_000)
    planned = json.loads(plan(config, "--json").stdout)
    stages = {stage["stage"]: stage for stage in planned["stages"]}
    variants = stages["probe"]["jobs"]
    assert planned["total"]["outcomes_mb"] == pytest.approx(3 * variants * 60_000 * 6 / 10**6)
    assert stages["summarise"]["disk_mb"] == 1 + math.ceil(planned["total"]["outcomes_mb"]) > variants
    said = " ".join(plan(config).stdout.split())
    assert f"tables/outcomes.parquet takes at most {planned['total']['outcomes_mb']:.1f} MB of it." in said


def test_a_likely_time_is_said_for_cpus_only(plan):
    config = with_long_texts("the cat", {}, train=24, validation=24)
    seconds = json.loads(plan(config, "--json").stdout)["total"]["elapsed_seconds"]
    said = " ".join(plan(config).stdout.split())
    likely = " to ".join(format_duration(seconds / divisor) for divisor in (13, 3))
    assert f"the demo took 1/13 to 1/3 of it: here {likely}." in said
    assert "the demo took" not in " ".join(plan(config | {"device": "cuda"}).stdout.split())


def test_a_model_that_is_not_here_is_said_first(plan):
    models = {"gone": {"hub": "owner/gone"}, "away": {"path": "models/away"}}
    result = plan(changed(models=models, run={"models": ["tiny", *models]}))
    assert result.exit_code == 0, result.output
    said = " ".join(result.stdout.split())
    assert said.startswith("Model gone: ") and "Model away: Model away should" in said
    assert said.index("Model away") < said.index("memory per job") and re.search(r"average 6 \(4 unknown\)", said)


def test_texts_that_are_not_here_are_said_first(plan):
    gone = {"files": {split: f"data/gone.{split}.csv" for split in ROWS}, "first": "sentence", "slots": 13}
    said = " ".join(plan(changed(corpora={"sentences": gone})).stdout.split())
    assert said.startswith("Corpus sentences: There is no file data/gone.train.csv") and "average 2 (1 unknown)" in said


@pytest.mark.parametrize("key", ["label", "subset"])
def test_a_column_that_a_task_lacks_is_said_before_anything_runs(plan, key):
    config = changed(run={"tasks": ["animals"]})
    config["tasks"]["animals"][key] = "feeling"
    said = " ".join(plan(config).stdout.split())
    assert said.startswith("Corpus sentences: it has no column 'feeling'; its columns are ")


def test_where_nothing_is_known_the_exit_code_says_so(plan):
    texts = {"hub": "owner/texts", "first": "sentence", "slots": 13}
    config = changed(corpora={"sentences": texts}, run={"tasks": ["animals"]})
    result = plan(config)
    said = " ".join(result.stdout.split())
    assert "Corpus sentences: owner/texts, split train is not on this machine; start a run" in said
    assert result.exit_code == 1 and "hidden_states 4 (4 unknown) ? ? ?" in said


def smallest_of(plan, **run):
    """The smallest loss in the plan of a config of only the sentences, and the plan."""
    result = plan(changed(run={"tasks": ["animals"]} | run), "--json")
    assert result.exit_code == 0, result.output
    planned = json.loads(result.stdout)
    [entry] = planned["smallest_losses"]
    return entry, planned


def test_the_smallest_loss_before_a_run_is_worked_out_by_hand(plan):
    """Seeds vary by .005 of the range, 5 % of the examples differ and one that was not seen, attention gives .2."""
    config = with_long_texts("the cat", {"seeds": [1, 2, 3]}, train=408, validation=408)
    config["tasks"]["animals"]["title"] = "MRPC"
    planned = json.loads(plan(config, "--json").stdout)
    [entry] = planned["smallest_losses"]
    expected = smallest_loss(3, 0.005 / 0.2, ((0.05 + 2 * UNSEEN_UNITS / 408) / 408) ** 0.5 / 0.2)
    assert entry["smallest"] == pytest.approx(expected) and 0.14 < expected < 0.15
    assert (entry["seeds"], entry["examples"], entry["measured"], entry["helps"]) == (3, 408, False, "examples")
    said = " ".join(plan(config).stdout.split())
    for words in (
        "Smallest margin that can be shown with 80 % power if nothing is lost, as a share of attention's "
        "contribution: MRPC 15 % (3 seeds, 408 examples).",
        ASSUMED,
        "A margin of 10 % is unlikely to be shown for MRPC with 3 seeds and 408 examples (smallest: 15 %): add "
        "examples; more seeds would help little.",
    ):
        assert words in said
    assert "standard deviation of 0.005 of the score's range; replacing heads changes the outcome of 5 % of" in ASSUMED
    wide = " ".join(plan(config | {"margin": 0.2}).stdout.split())
    assert "MRPC 15 %" in wide and "unlikely" not in wide


@pytest.mark.parametrize(
    ("cluster", "effect"), [(17, 17), (29, (14 * 29**2 + 2**2) / 408), ("document", 8 * (1 + 50**2) / 408)]
)
def test_before_a_run_a_cluster_counts_as_one_example(plan, cluster, effect):
    """Against the variance of a mean of equal rows: the sum of squared sizes of clusters, divided by the rows."""
    config = with_long_texts("the cat", {"seeds": [1, 2, 3]}, train=408, validation=408)
    config["corpora"]["sentences"]["cluster"] = cluster
    lines = [f"the cat,{size % 2},d{place}" for place, size in enumerate([1, 50] * 8) for _ in range(size)]
    for split in ROWS:
        Path(f"data/long.{split}.csv").write_text("\n".join(["sentence,animal,document", *lines]), encoding="utf-8")
    planned = json.loads(plan(config, "--json").stdout)
    [entry] = planned["smallest_losses"]
    units = 408 / effect
    expected = smallest_loss(3, 0.005 / 0.2, ((0.05 + 2 * UNSEEN_UNITS / units) / units) ** 0.5 / 0.2)
    independent = smallest_loss(3, 0.005 / 0.2, ((0.05 + 2 * UNSEEN_UNITS / 408) / 408) ** 0.5 / 0.2)
    assert entry["smallest"] == pytest.approx(expected) and entry["independent"] == pytest.approx(independent)
    assert entry["examples"] == 408 and expected > 2 * independent
    sentence = f"{ASSUMED_IN_CLUSTERS} animals 15 %."
    assert sentence in describe_margins(planned)
    assert ASSUMED in describe_margins(planned)


def test_the_column_of_clusters_has_to_exist(plan):
    config = with_long_texts("the cat", {"seeds": [1, 2]}, train=24, validation=24)
    config["corpora"]["sentences"]["cluster"] = "document"
    assert "it has no column 'document'" in " ".join(plan(config).stdout.split())


def test_models_that_do_not_fit_a_task_are_named_before_the_run(plan):
    corpora = {"blocks": {**CONFIG["corpora"]["sentences"], "blocks": True}}
    how = {"corpus": "blocks", "learning_rate": 1e-3, "batch_size": 2, "epochs": 1}
    tasks = {metric.split("_")[0]: how | {"metric": metric} for metric in ("negative_log_perplexity", "log_likelihood")}
    config = CONFIG | {
        "models": {"gpt": {"path": random_model("gpt2")}, "bert": {"path": random_model("bert")}},
        "corpora": corpora,
    }
    config |= {"tasks": tasks, "run": CONFIG["run"] | {"tasks": [*tasks], "models": ["gpt", "bert"]}}
    assert json.loads(plan(config, "--json").stdout)["problems"] == [
        "Model gpt: it is a decoder, which cannot predict the masked tokens of task negative; use the metric "
        "log_likelihood.",
        "Model bert: its config lists no architecture that predicts next tokens, which task log needs "
        "(log_likelihood).",
    ]


def test_configs_of_models_that_are_not_here_are_planned_as_far_as_they_can_be(plan):
    config = yaml.safe_load((REPOSITORY / "config/decoders.yaml").read_text(encoding="utf-8"))
    planned = json.loads(plan(config, "--json").stdout)
    assert planned["total"]["jobs"] == len(Study(config_of(config), "results/planned").jobs())
    missing = [f"Model {model}:" for model in config["models"]] + [f"Corpus {corpus}:" for corpus in config["corpora"]]
    assert all(problem.startswith(tuple(missing)) for problem in planned["problems"])


def test_without_seeds_or_a_floor_nothing_can_be_claimed(plan):
    entry, planned = smallest_of(plan)
    assert (entry["smallest"], entry["why"]) == (None, "one seed")
    assert describe_margins(planned) == ["With one seed, nothing can be claimed for animals; use at least two."]
    config = changed(run={"tasks": ["animals"], "seeds": [1, 2]})
    [entry] = json.loads(plan(config | {"floors": []}, "--json").stdout)["smallest_losses"]
    assert entry["why"] == "without `floors` no loss is measured"
    nothing = changed(run={"tasks": ["animals"], "fractions": ["1"], "seeds": [1, 2]})
    assert not json.loads(plan(nothing, "--json").stdout)["smallest_losses"]
    entry, planned = smallest_of(plan, seeds=[1, 2])  # of 12 examples
    assert entry["smallest"] > 1 and "animals 100 % or more (2 seeds, 12 examples)" in describe_margins(planned)[0]


def entry_of(smallest, helps, **more):
    about = {"task": "t", "title": "T", "seeds": 3, "examples": 1024, "measured": False, "move": None, "why": None}
    return about | {"independent": None} | {"smallest": smallest, "helps": helps, **more}


def test_unused_training_rows_are_suggested_if_they_suffice(plan):
    config = with_long_texts("the cat", {"seeds": [1, 2, 3]}, train=4000, validation=408)
    corpus = config["corpora"]["sentences"]

    def planned(**keys):
        corpus.update(keys)
        content = json.loads(plan(config, "--json").stdout)
        return content["smallest_losses"][0], describe_margins(content)

    entry, sentences = planned(train_limit=500)
    assert entry["examples"] == 408 and entry["smallest"] > 0.1 and 0 < entry["move"] <= 3500
    advice = (
        f"Unused training rows of animals would suffice: set `validation_from_train: {entry['move']}` in its corpus."
    )
    assert advice in sentences
    after, _ = planned(validation_from_train=entry["move"])
    assert after["examples"] == 408 + entry["move"] and after["smallest"] < 0.1 and after["move"] is None
    before, _ = planned(validation_from_train=entry["move"] - 100)
    assert before["smallest"] >= 0.1 and before["move"] == entry["move"]
    assert planned(train_limit=4000 - entry["move"] // 2, validation_from_train=1)[0]["move"] is None, "too few rows"


def test_settings_with_fewer_seeds_are_named(plan):
    grid = {"more": {"fractions": ["1/2", "0"], "constants": ["zeros"], "seeds": [1, 2]}}
    config = changed(run={"tasks": ["animals"], "seeds": [1, 2, 3]}) | {"grids": grid}
    [warning] = json.loads(plan(config, "--json").stdout)["warnings"]
    assert warning.startswith(
        "animals has 3 seeds, but some settings have fewer (zeros/lambda-0/kept-1of2 2): a comparison uses only the "
        "seeds that all its settings have"
    )
    assert " ".join(warning.split()) in " ".join(plan(config).stdout.split())
    grid["more"]["seeds"] = [1, 2, 3]
    assert not json.loads(plan(config, "--json").stdout)["warnings"]


def test_tasks_that_differ_only_in_their_recipe_are_named(plan):
    animals = CONFIG["tasks"]["animals"]
    tasks = {"few": animals | {"train_rows": "1/2", "patience": 1, "title": "Few rows"}}
    config = changed(tasks=tasks, run={"tasks": ["animals", "few"], "seeds": [1, 2]})
    [warning] = json.loads(plan(config, "--json").stdout)["warnings"]
    assert warning == (
        "animals and Few rows have the same labels (they differ in: train_rows, patience), but count as 2 tasks in the "
        "joint claim and in Holm's correction, which makes claims harder; compare recipes in a config of their own."
    )
    apart = changed(tasks=tasks, run={"tasks": ["animals"], "seeds": [1, 2]}) | {"grids": {"more": {"tasks": ["few"]}}}
    assert not json.loads(plan(apart, "--json").stdout)["warnings"], "each grid has claims of its own"
    config["tasks"]["few"]["metric"] = "f1"
    assert not any("same labels" in warning for warning in json.loads(plan(config, "--json").stdout)["warnings"])


def test_clusters_that_may_be_on_both_sides_are_named(plan):
    config = with_long_texts("the cat", {"seeds": [1, 2]}, train=24, validation=24)
    corpus = config["corpora"]["sentences"]
    for keys, warned in (({"cluster": "animal"}, 0), ({"validation_from_train": 5}, 1)):
        corpus.update(keys)
        warnings = json.loads(plan(config, "--json").stdout)["warnings"]
        assert len(warnings) == warned
    assert (
        "Corpus sentences moves random training rows to validation, and other rows of their clusters (animal)"
        in (warnings[0])
    )
    del corpus["cluster"]
    assert not json.loads(plan(config, "--json").stdout)["warnings"]


@pytest.mark.parametrize(("metric", "warns"), [("f1", True), ("matthews_correlation", True), ("accuracy", False)])
def test_few_rows_of_a_class_are_counted(plan, metric, warns):
    config = with_long_texts("the cat", {"seeds": [1, 2]}, train=24, validation=131)
    config["tasks"]["animals"]["metric"] = metric
    warnings = json.loads(plan(config, "--json").stdout)["warnings"]
    assert [warning.split(",")[0] for warning in warnings] == [
        "animals has only 65 validation rows of its rarest class"
    ] * warns
    config = with_long_texts("the cat", {"seeds": [1, 2]}, train=24, validation=200)
    config["tasks"]["animals"]["metric"] = metric
    assert not json.loads(plan(config, "--json").stdout)["warnings"]


def test_what_helps_is_what_would(plan):
    """Where few examples decide, it is examples; where they are many, it is seeds; the order of heads is neither."""
    assert Noise.assumed().best_addition(3, 300) == "examples" and Noise.assumed().best_addition(3, 10**6) == "seeds"
    assert Noise.assumed().best_addition(3, 2000) == "both"
    assert Noise(0.1, 0.1, mostly_orders=True).best_addition(3, 300) == "orders"
    for helps, words in (
        ("seeds", "add seeds; more examples would help little."),
        ("both", "add seeds and examples."),
        ("orders", "so add orders (`ranking`)."),
    ):
        sentences = describe_margins({"margin": 0.1, "power": 0.8, "smallest_losses": [entry_of(0.1301, helps)]})
        assert "10 % is unlikely to be shown for T with 3 seeds and 1,024 examples (smallest: 14 %): " in sentences[-1]
        assert sentences[-1].endswith(words)


def measured(path, seeds, shift, floor=0.5, examples=600, cluster=None):
    """Outcomes of a config that was run: with heads replaced, scores fall more with every seed."""
    chance = np.random.default_rng(0)
    right = np.repeat((chance.random(examples) < 0.9)[None], seeds, axis=0)
    without = right & (chance.random(examples) > floor)
    half = right.copy()
    for seed in range(seeds):
        half[seed, : shift * (seed + 1)] = False
    settings = {
        Setting(None, None, "1"): right,
        Setting("zeros", None, "0"): without,
        Setting("average", "lambda-0", "1/2"): half,
    }
    outcomes = labelled(settings, model="tiny", task="animals", names=("0", "1"), train_counts=(1, 1))
    recorded = {"tasks": {"animals": {"title": "animals", "metric": "accuracy"}}}
    if cluster:
        outcomes = replace(outcomes, items=outcomes.items.assign(cluster=np.arange(examples) // cluster))
        recorded["clusters"] = {"animals": cluster}
    table, facts = table_of([outcomes])
    trace = Trace("summary", 2, recorded, {})
    write_table(table, path, {"table": "outcomes"} | facts, trace)
    return outcomes


def test_the_smallest_loss_after_a_run_is_what_was_measured(plan, folder, monkeypatch):
    rows = dict.fromkeys(("train", "validation"), SplitSize(600, 5.0))
    monkeypatch.setattr("papa.jobs.plan._count_rows", lambda corpus, texts, columns, mirror: rows)
    path = folder / "results/tiny/tables/outcomes.parquet"
    try:
        outcomes = measured(path, 4, 6)
        sample = outcomes.sample("accuracy", np.ones(600, bool))
        spread = sample.spread(
            Setting(None, None, "1"), Setting("zeros", None, "0"), Setting("average", "lambda", "1/2")
        )
        lost = spread.estimate([0, 1, 0, -1])
        unit = lost.variance / (spread.means[1] - spread.means[2]) ** 2
        entry, planned = smallest_of(plan, seeds=[1, 2, 3, 4])
        assert entry["measured"] and entry["examples"] == 600
        assert not any("Assumed" in said for said in describe_margins(planned))
        assert "Estimated from the measured results of animals." in describe_margins(planned)
        share = lost.shares["examples"]
        assert 0 < share < 1
        expected = smallest_loss(4, (unit * (1 - share) * 4) ** 0.5, (unit * share) ** 0.5)
        assert entry["smallest"] == pytest.approx(expected)
        more, _ = smallest_of(plan, seeds=list(range(1, 17)))
        assert more["smallest"] < entry["smallest"]

        measured(path, 4, 6, floor=0)
        entry, planned = smallest_of(plan, seeds=[1, 2, 3, 4])
        assert entry["smallest"] is None and entry["measured"]
        assert describe_margins(planned) == [
            "No smallest margin for animals: attention contributes nothing measurable."
        ]

        measured(path, 1, 6)  # one seed says nothing
        assert not smallest_of(plan, seeds=[1, 2])[0]["measured"]
        path.write_bytes(path.read_bytes()[:-50])
        assert not smallest_of(plan, seeds=[1, 2])[0]["measured"]
    finally:
        path.unlink()


def test_after_a_run_clusters_are_in_the_measured_variance(plan, monkeypatch):
    """The replaced heads fail in whole clusters, which varies more than as many failures of single examples."""
    rows = dict.fromkeys(("train", "validation"), SplitSize(600, 5.0, design_effect=7.0))
    monkeypatch.setattr("papa.jobs.plan._count_rows", lambda corpus, texts, columns, mirror: rows)
    path, corpus = Path("results/tiny/tables/outcomes.parquet"), CONFIG["corpora"]["sentences"]

    def planned(cluster):
        keys = {} if cluster is None else {"cluster": cluster}
        config = changed(run={"tasks": ["animals"], "seeds": [1, 2, 3, 4]}, corpora={"sentences": corpus | keys})
        return json.loads(plan(config, "--json").stdout)["smallest_losses"][0]

    try:
        measured(path, 4, 6)
        single = planned(None)
        assert single["measured"] and not planned(7)["measured"], "its outcomes do not have these clusters"
        outcomes = measured(path, 4, 6, cluster=7)
        clustered = planned(7)
        assert clustered["measured"] and clustered["independent"] is None
        assert not planned(5)["measured"] and not planned(None)["measured"]
        sample = outcomes.sample("accuracy", np.ones(600, bool))
        assert sample.values.shape[1] == math.ceil(600 / 7)
        ends = Setting(None, None, "1"), Setting("zeros", None, "0"), Setting("average", "lambda", "1/2")
        spread = sample.spread(*ends)
        lost = spread.estimate([0, 1, 0, -1])
        unit, share = lost.variance / (spread.means[1] - spread.means[2]) ** 2, lost.shares["examples"]
        expected = smallest_loss(4, (unit * (1 - share) * 4) ** 0.5, (unit * share) ** 0.5)
        assert clustered["smallest"] == pytest.approx(expected) and expected > 1.1 * single["smallest"]
    finally:
        path.unlink()


@pytest.mark.parametrize(
    ("name", "label"), [("sentences.{}.csv", "animal"), ("words.{}.jsonl", "tags"), ("run.{}.txt", None)]
)
def test_configs_of_init_have_no_problem(plan, folder, name, label):
    files = [f"data/{name.format(split)}" for split in ROWS]
    if label is None:
        for path in files:
            (folder / path).write_text("the old cat sleeps here\n" * 40, encoding="utf-8")
    options = ["--train", files[0], "--validation", files[1], "--model", "models/tiny"]
    options += ["--column", f"label={label}"] if label else []
    result = CliRunner().invoke(app, ["init", f"init-{label}.yaml", *options])
    assert result.exit_code == 0, result.output
    config = yaml.safe_load((folder / f"init-{label}.yaml").read_text(encoding="utf-8"))
    planned = json.loads(plan(config, "--json").stdout)
    jobs = {stage["stage"]: stage["jobs"] for stage in planned["stages"]}
    trained = "probe" if label else "stream_probe"
    assert jobs["train_lambda"] == 1 and jobs["average"] == 2  # averages of attention and of outputs
    assert jobs[trained] == 4 + 3  # fractions and floors
    assert not planned["problems"] and not planned["total"]["unknown"]


def test_a_wrong_config_is_one_sentence(plan):
    result = plan(CONFIG | {"device": "gpu"})
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.startswith("Config error: device is 'gpu'") and len(result.stderr.splitlines()) == 1
    missing = CliRunner().invoke(app, ["plan", "nowhere.yaml"])
    assert missing.exit_code == 2 and "nowhere.yaml cannot be read" in missing.stderr
