"""The frame of claims: the floors that were measured, the unit of resampling, and what a seed draws."""

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from builders import grid_view, labelled, summary_of

from papa.results.assumptions import framed
from papa.results.claims import claims_of, lines_of
from papa.results.conclusion import Conclusion
from papa.results.outcomes import FLOOR, ORIGINALS, Setting, TaskOutcomes
from papa.results.phrases import ASSUMPTIONS, estimand
from papa.results.summary import CURVE_COLUMNS

SIZE = 401
EASE = np.arange(SIZE) * 7 % SIZE
REPLACED, IDENTITY = Setting("average", None, "0"), Setting("identity", None, "0")
RIGHT = {ORIGINALS: 360, REPLACED: 350, FLOOR: 200}


def task(name: str, right: Mapping[Setting, int] = RIGHT, cluster: int = 0, **fields: object) -> TaskOutcomes:
    """A task whose examples come in clusters of this size, if it is not 0."""
    runs = {setting: [number + seed % 3 > EASE for seed in range(3)] for setting, number in right.items()}
    outcomes = labelled(runs, task=name, **fields)
    return replace(outcomes, items=outcomes.items.assign(cluster=np.arange(SIZE) // cluster)) if cluster else outcomes


def concluded(*tasks: TaskOutcomes, resampled: tuple[str, ...] = ()) -> Conclusion:
    summary = summary_of(tasks)
    summary = summary.assign(resampled=summary["task"].isin(resampled))
    lines = lines_of(grid_view([each.task for each in tasks], fractions=("1", "0")), summary, tasks)
    conclusion = claims_of(lines, 0.2, pd.DataFrame(columns=list(CURVE_COLUMNS)))[1]
    return Conclusion.from_json(framed(conclusion, lines).to_json())


def sentences(conclusion: Conclusion) -> dict[str, str]:
    return {item.name: item.sentence for item in conclusion.assumptions}


def test_without_clusters_and_samples_the_assumptions_are_those_of_the_default() -> None:
    words = sentences(concluded(task("a"), task("b")))
    assert set(ASSUMPTIONS) - words.keys() == {"clusters", "resampled"}
    assert words["examples"] == "The validation examples are independent draws from the texts of interest."
    assert words["texts"] == "The training rows are fixed, and so are the constants averaged over them."


def test_clusters_are_the_unit_that_is_assumed_to_be_independent() -> None:
    conclusion = concluded(task("a", cluster=7), task("b", cluster=11))
    words = sentences(conclusion)
    assert "examples" not in words
    assert words["clusters"].startswith("The clusters of validation examples are independent draws")
    assert conclusion.lines[0].clusters == {"A": 58, "B": 37}
    assert " Intervals resample whole clusters of examples: 58 on A and 37 on B." in conclusion.sentence


def test_assumptions_about_some_tasks_name_them() -> None:
    conclusion = concluded(task("a", cluster=7), task("b"), task("c"), resampled=("a", "c"))
    words = sentences(conclusion)
    assert words["clusters"].endswith(" (A).") and words["examples"].endswith(" (B, C).")
    assert words["texts"].endswith(" (B).")
    assert words["resampled"].startswith("Each seed also draws its training rows") and words["resampled"].endswith(
        "(A, C)."
    )
    assert words["seeds"] == f"{ASSUMPTIONS['seeds']}."
    assert "Intervals resample whole clusters of examples: 58 on A." in conclusion.sentence


@pytest.mark.parametrize(
    ("right", "floors", "words"),
    [
        (RIGHT, ("zeros",), "Floors tried: zeros."),
        (RIGHT | {IDENTITY: 210}, ("identity", "zeros"), "Floors tried: zeros, identity."),
        (
            {setting: RIGHT[setting] for setting in (ORIGINALS, REPLACED)},
            ("zeros",),
            "No context-free floor was measured.",
        ),
    ],
)
def test_the_floors_that_were_measured_are_named(
    right: Mapping[Setting, int], floors: tuple[str, ...], words: str
) -> None:
    """Whether a config lists them as floors or as constants of a grid."""
    conclusion = concluded(task("a", right, floors=floors))
    assert conclusion.estimand is not None and estimand(conclusion.estimand).endswith(words)
