"""The configs of the known decoder and encoder, really run with few texts: results are those predicted by hand."""

import json
import math
from random import Random

import pytest

import papa
from benchmarks import known
from benchmarks.known import auroc, claimed_by_order, small
from papa.data.generated import generate
from papa.data.generated.known import INDUCTION
from papa.data.generated.looking import LOOKUP
from papa.data.generated.models import random_model
from papa.data.generated.recall import WORDS
from papa.files import read_table

pytestmark = pytest.mark.slow
ROWS = {"train": 120, "validation": 80}
UNIFORM = -math.log(len(WORDS))


@pytest.fixture(scope="module")
def results(results_of):
    return results_of("known", lambda config: [corpus.update(rows=ROWS) for corpus in config["corpora"].values()])


def scores(results, task, constant, order):
    """The scores of a line, from all heads to none."""
    rows = read_table(results / "tables/summary.parquet").to_pandas()
    rows = rows[rows["main"] & rows["task"].eq(task) & rows["constant"].isin([constant, None])]
    rows = rows[rows["order"].isin([order, None])].sort_values("kept", ascending=False)
    return dict(zip(rows["kept"], rows["mean"], strict=True))


def expected_row():
    """The score of the induction head: words that come again are sure, all others as likely as any."""
    rows = generate("repeats", "validation", ROWS["validation"], 0)["first"].map(str.split)
    sure = sum(len(words) - len(set(words)) - 1 for words in rows)
    return UNIFORM * (1 - sure / rows.map(len).sum())


@pytest.mark.parametrize(
    ("task", "constant", "order", "needed"),
    [
        ("repeats", "average", "lambda", 1),  # the induction head is replaced last
        ("repeats", "average", "first-layer-first", 3),  # it is the third from the end
        ("repeats", "zeros", "first-layer-first", 9),  # the previous-token head is the second of all
        ("no-repeats", "average", "lambda", None),  # nothing is needed
    ],
)
def test_the_curve_is_the_one_predicted_by_hand(results, task, constant, order, needed):
    expected = {kept: expected_row() if needed is not None and kept >= needed else UNIFORM for kept in range(11)}
    assert scores(results, task, constant, order) == pytest.approx(expected, abs=2e-3)


def test_all_heads_but_one_are_claimed(results):
    assert auroc(results / "models/induction/tasks/repeats/average/lambda-0/order.parquet", [INDUCTION]) == 1
    claims = json.loads((results / "tables/claims.json").read_text())
    lines = {(line["grid"], line["constant"]): line for line in claims["lines"]}
    assert lines["score_by_fraction", "average"]["replaceable"] == 9
    assert lines["averages-and-zeros", "average"]["replaceable"] == 7
    assert lines["averages-and-zeros", "zeros"]["replaceable"] == 1
    [excluded] = lines["score_by_fraction", "average"]["without"]
    assert excluded["task"] == "No-repeats"
    assert "9 of 10 heads" in claims["sentence"]
    assert "induction" in (results / "report/index.html").read_text()


# -- the encoder -----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def lookup(results_of):
    def shorten(config):
        config["run"] |= {"fractions": ["1", "1/10", "0"], "seeds": [1, 2]}
        config["corpora"]["twice"]["rows"] = {"train": 1000, "validation": 200}
        del config["grids"]

    return results_of("known-lookup", shorten)


def test_without_attention_that_depends_on_the_input_one_half_is_lost_and_the_other_is_not(lookup):
    rows = read_table(lookup / "tables/summary.parquet").to_pandas().query("main").set_index(["kept", "subset"])
    original, last, none = (rows.loc[kept] for kept in (10, 1, 0))
    assert original["mean"].min() > 0.98 and last["mean"].min() > 0.98  # the lookup head alone is enough
    assert original.loc[["lookup", "position"], "contextless"].between(0.4, 0.6).all()  # zeros destroy both halves
    averages = none[none["constant"] == "average"]
    assert averages.loc["lookup", "mean"] < 0.6 and averages.loc["position", "mean"] > 0.95
    assert averages.loc["lookup", "loss"] > 0.85 and abs(averages.loc["position", "loss"]) < 0.1


def test_all_heads_but_the_lookup_head_are_claimed(lookup):
    assert auroc(lookup / "models/lookup/tasks/twice/average/lambda-0/order.parquet", [LOOKUP]) == 1
    (line,) = json.loads((lookup / "tables/claims.json").read_text())["lines"]
    assert line["replaceable"] == 9
    assert "lookup" in (lookup / "report/index.html").read_text()


# -- heads that interact -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", [3, 5, 11])
@pytest.mark.parametrize("name", ["redundant", "trap"])
def test_lambda_sees_interactions_and_leave_one_out_does_not(name, seed, tmp_path):
    config = small(seed, name)
    config["run"]["orders"] = ["lambda", "leave-one-out", "first-layer-first"]
    claimed = claimed_by_order(config, tmp_path)
    # leave-one-out keeps the canceller, and without the wrong token it is useless
    expected = {"redundant": {"lambda": 9, "first-layer-first": 8}}
    expected |= {"trap": {"lambda": 9, "leave-one-out": 8, "first-layer-first": 5}}
    assert {order: claimed[order] for order in expected[name]} == expected[name]


# -- long texts --------------------------------------------------------------------------------------------------------


def test_the_study_of_long_texts_claims_all_heads_but_the_induction_head(tmp_path):
    """Here in 256 of the 4,096 slots."""
    rows = [line.strip("| ").split(" | ") for line in known.long_texts(256, tmp_path)][2:]
    lines = [[constant, order] for constant in known.LONG_CONSTANTS for order in ("lambda", "gradient")]
    assert [[*row[:3], row[5]] for row in rows] == [[*line, "10", "9"] for line in lines]
    nine, ten = ([float(row[column].split()[0]) for row in rows] for column in (3, 4))
    assert nine == [0.0] * 4 and ten == pytest.approx([100.0] * 4, abs=1)


# -- a model that knows nothing ----------------------------------------------------------------------------------------

CONTROL_ROWS = {"train": 1201, "validation": 499}


def words_to_count(split):
    """Texts of five words, and whether most of them are in the first half of the vocabulary: no word needs another."""
    chance = Random(split)
    texts = [chance.sample(WORDS, 5) for _ in range(CONTROL_ROWS[split])]
    labels = ["yes" if sum(WORDS.index(word) < len(WORDS) / 2 for word in words) > 2 else "no" for words in texts]
    return [" ".join(words) for words in texts], labels


def test_attention_of_a_random_model_contributes_nothing_measurable(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    settings = {
        "run": {"fractions": ["1", "0"], "seeds": [1, 2, 3]},
        "corpora": {"slots": 23},
        "tasks": {"epochs": 7, "learning_rate": 1.0e-3, "batch_size": 16},
    }
    validation = words_to_count("validation")
    study = papa.measure(random_model("bert"), *words_to_count("train"), validation=validation, settings=settings)
    [line] = study.claims["lines"]
    assert [excluded["why"] for excluded in line["without"]] == ["attention contributes nothing measurable"]
    assert line["replaceable"] is None and line["at_end"] is None
    assert "attention contributes nothing measurable" in str(study.claims)
    scores = study.summary.query("main and subset == 'all' and fraction == '1'")
    assert scores["mean"].max() > scores["trivial"].max() + 0.1, "the probe has learned the task in part"
