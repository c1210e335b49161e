"""A decoder built by hand has the results predicted by hand, and attention of a random model contributes nothing."""

import math
import runpy
from random import Random

import pytest
from random_models import random_model

import papa
from benchmarks import known, tokens
from papa.commands.measure import run_here
from papa.config.reading import config_of
from papa.files import read_json, read_table
from papa.plan.study import Plan
from papa.results.reliance import replaceable

pytestmark = pytest.mark.slow
ROWS = {"train": 120, "validation": 80}
WORDS = runpy.run_path(str(known.DEMO / "write.py"))["VOCABULARY"]
UNIFORM = -math.log(len(WORDS))


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    folder = tmp_path_factory.mktemp("known")
    config = config_of(known.config(folder / "data", ROWS))
    run_here(Plan(config, folder, cache=folder / "cache"))
    return folder


def scores(results, task, constant, order):
    """The scores of a line, from all heads to none."""
    rows = read_table(results / "tables/summary.parquet").to_pandas()
    rows = rows[rows["main"] & rows["task"].eq(task) & rows["constant"].isin([constant, None])]
    rows = rows[rows["order"].isin([order, None])].sort_values("kept", ascending=False)
    return dict(zip(rows["kept"], rows["mean"], strict=True))


def expected_row():
    """The score of the induction head: words that come again are sure, all others as likely as any."""
    rows = [
        row["text"].split() for row in known.generate("repeats", "validation", ROWS["validation"])
    ]
    sure = sum(len(words) - len(set(words)) - 1 for words in rows)
    return UNIFORM * (1 - sure / sum(map(len, rows)))


@pytest.mark.parametrize(
    ("task", "constant", "order", "needed"),
    [
        ("repeats", "average", "lambda", 1),  # the induction head is replaced last
        ("repeats", "average", "first-layer-first", 3),  # it is the third from the end
        (
            "repeats",
            "zeros",
            "first-layer-first",
            9,
        ),  # the previous-token head is the second of all
        ("no-repeats", "average", "lambda", None),  # nothing is needed
    ],
)
def test_the_curve_is_the_one_predicted_by_hand(results, task, constant, order, needed):
    expected = {
        kept: expected_row() if needed is not None and kept >= needed else UNIFORM
        for kept in range(11)
    }
    assert scores(results, task, constant, order) == pytest.approx(expected, abs=2e-3)


def test_all_heads_but_one_are_claimed(results):
    assert dict(known.orders(results))["repeats/average/lambda/0"] == 1
    claims = read_json(results / "tables/claims.json")
    frame = read_table(results / "tables/claims.parquet").to_pandas()
    joint = frame[frame["task"].isna()].groupby(["grid", "constant"])
    numbers = {names: replaceable(rows) for names, rows in joint}
    assert numbers["scores_by_heads_replaced", "average"] == 9
    assert numbers["averages-and-zeros", "average"] == 7
    assert numbers["averages-and-zeros", "zeros"] == 1
    of_run = [task for task in claims["tasks"] if task["grid"] == "scores_by_heads_replaced"]
    assert [task["task"] for task in of_run if task["untested"]] == ["No-repeats"]
    assert "9 of 10 heads" in claims["sentences"][1]
    assert "induction" in (results / "report/index.html").read_text()


def test_only_words_that_occurred_before_rely_on_their_input(results):
    lines = [line.split(" | ") for line in tokens.table(results) if "| repeats |" in line]
    found = {line[2]: line[4:] for line in lines}
    original, averages, *_, reliance = found["complete a repeated pair"]
    assert float(original) > UNIFORM / 2
    assert float(averages) == pytest.approx(UNIFORM, abs=2e-3)
    assert reliance.startswith("100% (")
    *new, _, _, without_share = found["new in the text"]
    assert [float(score) for score in new] == pytest.approx([UNIFORM] * 3, abs=2e-3)
    assert without_share == "- |"


# -- a model that knows nothing ----------------------------------------------------------------------------------------

CONTROL_ROWS = {"train": 1201, "validation": 499}


def words_to_count(split):
    """Texts of five words, and whether most of them are in the first half of the vocabulary: no word needs another."""
    chance = Random(split)
    texts = [chance.sample(WORDS, 5) for _ in range(CONTROL_ROWS[split])]
    labels = [
        "yes" if sum(WORDS.index(word) < len(WORDS) / 2 for word in words) > 2 else "no"
        for words in texts
    ]
    return [" ".join(words) for words in texts], labels


def test_attention_contributes_nothing_significant_to_a_random_model():
    settings = {
        "run": {"fractions": ["1", "0"], "seeds": [1, 2, 3]},
        "corpora": {"slots": 23},
        "tasks": {"epochs": 7, "learning_rate": 1.0e-3, "batch_size": 16},
    }
    validation = words_to_count("validation")
    study = papa.measure(
        random_model("bert"), *words_to_count("train"), validation=validation, settings=settings
    )
    assert [task["untested"] for task in study.claims["tasks"]] == [
        "attention's contribution is not significant"
    ]
    assert [claim["p"] for claim in study.claims["claims"]] == [None, None]
    assert "attention's contribution is not significant" in str(study.claims)
    scores = study.summary.query("main and subset == 'all' and fraction == '1'")
    assert scores["mean"].max() > scores["trivial"].max() + 0.1, (
        "the probe has learned the task in part"
    )
