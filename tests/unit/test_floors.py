"""Several context-free floors: which one losses use, what they are against the others, and what a choice costs."""

import numpy as np
import pandas as pd
import pytest
from builders import grid_view, labelled, summary_of, texts

from papa.files import read_table, write_table
from papa.results.claims import claims_of, lines_of
from papa.results.losses import losses_of
from papa.results.outcomes import ORIGINALS, outcomes_in, table_of

SIZE = 2003
REPLACED = ("average", None, "0")
ZEROS, IDENTITY = ("zeros", None, "0"), ("identity", None, "0")
NO_CURVES = pd.DataFrame(
    {name: [] for name in ("model", "task", "constant", "order", "fraction", "seed", "epoch", "score")}
)


def right(share):
    """Three seeds that are right about the same share of examples, but for one example each."""
    examples = np.arange(SIZE)
    return np.stack([(examples * 7 % SIZE < share * SIZE) ^ (examples == seed) for seed in range(3)])


def task(floors, replaced=0.8):
    runs = {ORIGINALS: right(0.9), ZEROS: right(0.5), IDENTITY: right(0.7), REPLACED: right(replaced)}
    return labelled(runs, floors=floors)


@pytest.mark.parametrize(
    ("floors", "loss"), [(("zeros",), 1 / 4), (("identity", "zeros"), 1 / 2), (("zeros", "identity"), 1 / 4)]
)
def test_a_loss_is_measured_against_the_first_floor(floors, loss):
    rows = losses_of([task(floors)]).set_index(["constant"])
    assert rows.loc["average", "loss"] == pytest.approx(loss, abs=0.01)
    assert rows.loc[floors[0], "loss"] == 1.0
    assert rows.loc["average", "contextless"] == pytest.approx({"zeros": 0.5, "identity": 0.7}[floors[0]], abs=0.002)


def test_the_table_of_outcomes_keeps_the_floors(tmp_path):
    table, facts = table_of([task(("identity", "zeros"))])
    assert facts["floors"] == {"m/t": ["identity", "zeros"]}
    write_table(table, tmp_path / "outcomes.parquet", facts)
    (back,) = outcomes_in(read_table(tmp_path / "outcomes.parquet"), {"t": "accuracy"})
    assert back.floors == ("identity", "zeros")
    assert "floors" not in table_of([task(("zeros",))])[1], "results of one floor stay as they were"


def test_a_blind_guess_stays_the_floor_of_a_head_that_does_worse_with_every_constant():
    nats = {ORIGINALS: np.full(101, 3.0), ZEROS: np.full(101, 9.0), IDENTITY: np.full(101, 3.5)}
    nats[REPLACED] = np.full(101, 3.25) + np.linspace(-0.1, 0.1, 101)
    measured = texts(nats, np.full(101, 7), floors=("identity", "zeros"))
    sample = measured.sample("log_likelihood", np.ones(101, bool))
    assert (sample.guess_as_floor, sample.floor) == (False, pytest.approx(-3.5))
    assert (sample.against("zeros").guess_as_floor, sample.against("zeros").floor) == (True, pytest.approx(-4.0))


def conclusion_of(floors, replaced):
    measured = [task(floors, replaced)]
    summary = summary_of(measured)
    lines = lines_of(grid_view(fractions=("1", "0"), orders=("lambda",)), summary, measured)
    return claims_of(lines, 0.2, NO_CURVES)[1]


def test_a_verdict_that_depends_on_the_floor_is_said_first():
    conclusion = conclusion_of(("identity", "zeros"), replaced=0.84)  # lost: 15 % against zeros, 30 % against identity
    (line,) = conclusion.lines
    assert line.by_floor == {"identity": 0, "zeros": 24} and line.replaceable == 0
    assert conclusion.sentence.startswith(
        "The verdict depends on the context-free floor. At a margin of 20 %, the number of replaceable heads (of 24) "
        "is 0 against identity and 24 against zeros. With all 24 heads"
    )


@pytest.mark.parametrize("floors", [("zeros",), ("zeros", "identity")])
def test_a_blind_guess_as_the_floor_is_said_with_the_examples_that_decided(floors):
    wave = np.linspace(-0.1, 0.1, 101)

    def concluded(nats_of_zeros):
        nats = {ORIGINALS: 3.0, ZEROS: nats_of_zeros, IDENTITY: 9.5, REPLACED: 3.25}
        task = texts({setting: value + wave for setting, value in nats.items()}, np.full(101, 7), floors=floors)
        return claims_of(lines_of(grid_view(fractions=("1", "0")), summary_of([task]), [task]), 0.2, NO_CURVES)[1]

    with_guess, without = concluded(9.0), concluded(3.5)
    assert with_guess.lines[0].guesses == ("T",)
    sentence = "A blind guess is the floor on T: it scores higher on the validation examples than the model's own head"
    assert sentence in with_guess.sentence and "blind guess" not in without.sentence
    assert ("The context-free floor is zeros, of" in with_guess.sentence) == (len(floors) > 1)
    assert "guesses" not in without.to_json()["lines"][0]


def test_a_verdict_that_does_not_depend_on_the_floor_is_not_introduced():
    conclusion = conclusion_of(("identity", "zeros"), replaced=0.898)
    assert conclusion.lines[0].by_floor == {"identity": 24, "zeros": 24}
    assert conclusion.sentence.startswith("With all 24 heads")
    single = conclusion_of(("zeros",), replaced=0.898)
    assert "context-free floor is" not in single.sentence and "by_floor" not in single.to_json()["lines"][0]
