"""The loss on each rung of the ladder of constants, against outcomes whose losses are known by construction."""

from dataclasses import replace

import numpy as np
import pytest
from builders import labelled, texts

from papa.config.settings import Plots
from papa.results.ladder import (
    ADDED_INFORMATION,
    BLIND_GUESS,
    COLUMNS,
    FLOORS_NOTE,
    OWN_ATTENTION,
    Ladder,
    ladder_figure,
    ladder_of,
    sentence_of,
    tables_of,
)
from papa.results.outcomes import ORIGINALS, Setting, TaskOutcomes

EXAMPLES = 400
RIGHT = {"zeros": 200, "uniform": 240, "sink": 240, "average": 280, OWN_ATTENTION: 360}
"""How many examples are right: attention contributes 160 of 400."""


def setting(rung: str) -> Setting:
    return ORIGINALS if rung == OWN_ATTENTION else Setting(rung, None, "0")


def measured(task: str = "t", right: dict[str, int] = RIGHT, seeds: int = 5) -> TaskOutcomes:
    ease, examples = np.arange(EXAMPLES) * 7 % EXAMPLES, np.arange(EXAMPLES)
    rows = {setting(rung): [ease < k + seed % 3 - 1 for seed in range(seeds)] for rung, k in right.items()}
    subset = np.where(examples % 2, "lookup", "position")
    return labelled(rows, gold=examples % 5 > 2, subset=subset, task=task, train_counts=(60, 40))


def test_losses_fall_by_steps_that_add_up_to_all_that_attention_contributes() -> None:
    frame = ladder_of([measured()], {"t": "T"})
    rungs = frame[frame["subset"] == "all"].set_index("rung")
    assert list(rungs.index) == ["zeros", "uniform", "sink", "average", OWN_ATTENTION]
    assert rungs["loss"].tolist() == pytest.approx([1, 0.75, 0.75, 0.5, 0], abs=0.01)
    assert np.isnan(rungs["step"].iloc[0])
    assert rungs["step"].tolist()[1:] == pytest.approx([0.25, 0, 0.25, 0.5], abs=0.01)
    assert rungs["step"].sum() == pytest.approx(1)
    between = rungs.loc[["uniform", "average"]]
    assert (between["low"] < between["loss"]).all() and (between["loss"] < between["high"]).all()
    assert (between["step_low"] < between["step"]).all() and (between["step"] < between["step_high"]).all()
    assert rungs.loc["zeros", ["low", "high"]].tolist() == [1, 1] and rungs.loc[OWN_ATTENTION, "loss"] == 0
    assert set(frame["subset"]) == {"all", "lookup", "position"} and list(frame.columns) == list(COLUMNS)
    adds = rungs["adds"].to_dict()
    assert adds["uniform"] == "a bias in each slot, which tokens there are", "what no rung between them was run for"
    assert (
        adds["average"] == "the distance of two slots, the slots themselves"
        and adds[OWN_ATTENTION] == ADDED_INFORMATION[OWN_ATTENTION]
    )


@pytest.mark.parametrize("floors", [("identity", "zeros"), ("zeros", "identity")])
def test_steps_add_up_to_one_whichever_floor_is_best(floors: tuple[str, ...]) -> None:
    """Identity is no rung. If losses were measured from it, they would be twice as large, and so would the steps."""
    outcomes = measured(right=RIGHT | {"identity": 280})
    frame = ladder_of([replace(outcomes, floors=floors)], {"t": "T"})
    rungs = frame[frame["subset"] == "all"].set_index("rung")
    assert rungs["loss"].tolist() == pytest.approx([1, 0.75, 0.75, 0.5, 0], abs=0.01)
    assert rungs["step"].sum() == pytest.approx(1)


def test_a_ladder_without_zeros_begins_at_its_first_rung() -> None:
    right = {rung: number for rung, number in RIGHT.items() if rung != "zeros"} | {"identity": 200}
    outcomes = replace(measured(right=right), floors=("identity",))
    rungs = ladder_of([outcomes], {"t": "T"}).set_index(["subset", "rung"]).loc["all"]
    assert rungs["loss"].tolist() == pytest.approx([1, 1, 2 / 3, 0], abs=0.01)
    assert rungs["step"].sum() == pytest.approx(1)


def test_the_note_names_the_difference_between_floors_only_if_there_are_several() -> None:
    default = Ladder(tasks={}, plots=Plots())
    several = Ladder(tasks={}, plots=Plots(), floors=("zeros", "identity"))
    nothing = ladder_of([], {})
    assert several.note(nothing) == default.note(nothing) + FLOORS_NOTE


def test_the_largest_step_is_named() -> None:
    other = measured("u", RIGHT | {"sink": 330, "average": 340})
    silent = measured("v", dict.fromkeys(RIGHT, 300))
    frame = ladder_of([measured(), other, silent], {"t": "T", "u": "U", "v": "V"})
    sentence = sentence_of(frame)
    assert sentence.startswith("T: given the rungs above, the largest step is the content of the text, 50 % (")
    words = "U: given the rungs above, the largest step is the first token, 56 % ("
    assert "; the next " in sentence and words in sentence
    assert sentence.endswith("; V: attention contributes nothing measurable, so no step is known.")
    assert frame.loc[frame["task"] == "v", ["loss", "step"]].isna().all().all()


def test_a_blind_guess_is_the_lowest_rung_of_a_model_that_does_worse_with_zeros() -> None:
    """Of a model's own head, whose floor is then the guess: a loss of 100 % has the score that it is measured from."""
    losses = {"zeros": 6.0, "uniform": 5.0, "average": 3.0, OWN_ATTENTION: 2.0}
    wave = 0.05 * np.cos(np.arange(60))
    outcomes = texts({setting(rung): loss + wave for rung, loss in losses.items()}, np.full(60, 10))
    rungs = ladder_of([outcomes], {"t": "T"}).set_index("rung")
    assert (
        rungs["score"].tolist() == pytest.approx([-4, -5, -3, -2], abs=0.01)
        and rungs.loc["zeros", "adds"] == BLIND_GUESS
    )
    assert rungs["loss"].tolist() == pytest.approx([1, 1.5, 0.5, 0], abs=0.01)
    assert rungs["step"].tolist()[1:] == pytest.approx([-0.5, 1, 0.5], abs=0.01)


def test_two_ends_and_the_average_are_no_ladder() -> None:
    few = {kind: RIGHT[kind] for kind in ("zeros", "average", OWN_ATTENTION)}
    frame = ladder_of([measured(right=few)], {"t": "T"})
    assert frame.empty and sentence_of(frame) == "No model was run with enough constants for a ladder."


def test_tables_and_figure_show_each_rung_once() -> None:
    frame = ladder_of([measured()], {"t": "T"})
    (table,) = tables_of(frame)
    assert table.title == "m" and len(table.rows) == 15 and table.rules == (0, 5, 10)
    assert table.rows[0] == ["T", "nothing", "zeros", "0.499", "100 % (100 to 100)", "-"]
    assert (
        table.rows[4][:3] == ["T", "the content of the text", "the model's own attention"]
        and table.rows[4][4] == "0 % (0 to 0)"
    )
    assert table.rows[5][0] == "T, lookup"
    specification = ladder_figure(frame, Plots()).to_dict()
    drawn = specification["concat"][0]["layer"][1]
    assert drawn["mark"]["type"] == "line"
    rungs = specification["concat"][0]["layer"][0]["encoding"]["x"]["sort"]
    assert rungs == ["zeros", "uniform", "sink", "average", OWN_ATTENTION]
    nothing = ladder_of([measured(right=dict.fromkeys(RIGHT, 300))], {"t": "T"})
    assert "text" in ladder_figure(nothing, Plots()).to_dict()["mark"]["type"]
