"""Claims from outcomes whose losses are known by construction."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
import pytest
from scipy.stats import norm

from papa.config.settings import Plots
from papa.config.stages import GridView
from papa.results.claims import Line, claims_of, lines_of, tables_of
from papa.results.conclusion import Conclusion
from papa.results.losses import COUNTS, difference, losses_of, lost, share_of
from papa.results.outcomes import FLOOR, ORIGINALS, RUN, TaskOutcomes, measured_in, table_of
from papa.results.phrases import percent
from papa.results.statistics import Estimate
from papa.results.summary import CURVE_COLUMNS, SETTING, summary_of

EXAMPLES, HEADS = 400, 16
KEPT = {"1": 16, "1/2": 8, "1/8": 2, "0": 0}
RIGHT = {"1": 360, "1/2": 358, "1/8": 300, "0": 280, "floor": 200}
"""How many examples are right: attention contributes 160 of 400, of which 1 %, 38 % and 50 % are lost."""


def measured(
    task: str, right: dict[str, int] = RIGHT, seeds: int = 5, orders: tuple[str, ...] = ("lambda-0",)
) -> TaskOutcomes:
    """Outcomes of a task with two labels, the first of which 60 % of the rows have; seeds differ a little."""
    gold = (np.arange(EXAMPLES) % 5 > 2).astype(int)
    runs, values = [], []
    for seed in range(seeds):
        for fraction, number in right.items():
            settings: list[tuple[str | None, str | None, str]] = [("average", order, fraction) for order in orders]
            if fraction == "floor":
                settings = [("zeros", None, "0")]
            elif fraction in ("0", "1"):
                settings = [(None if fraction == "1" else "average", None, fraction)]
            for place, (constant, order, kept) in enumerate(settings):
                runs.append(dict(zip(RUN, (constant, order, kept, seed), strict=True)))
                wrong = np.arange(EXAMPLES) * 7 % EXAMPLES >= number + seed % 3 - 1 - 3 * place
                values.append(np.where(wrong, 1 - gold, gold))
    items = pd.DataFrame({"split": "validation", "example": range(EXAMPLES), "gold": gold})
    names = ("no", "yes")
    outcomes = {"predicted": np.stack(values)}
    return TaskOutcomes("m", task, "accuracy", names, (60, 40), pd.DataFrame(runs, dtype=object), items, outcomes)


def grid(tasks: list[str], orders: tuple[str, ...] = ("lambda",), fractions: tuple[str, ...] = tuple(KEPT)) -> GridView:
    return GridView(
        name="run",
        title="Run",
        models=("m",),
        constants=("average",),
        orders=orders,
        fractions=fractions,
        tasks=dict.fromkeys(tasks, "texts"),
        plots=Plots(),
        drawn=True,
    )


def summary(found: list[TaskOutcomes]) -> pd.DataFrame:
    """The summary of these outcomes, with losses."""
    rows = []
    for own in found:
        right = own.values["predicted"] == own.items["gold"].to_numpy()
        for name, part in own.subsets().items():
            about = {"model": "m", "task": own.task, "title": own.task.upper(), "heads": HEADS, "metric": "accuracy"}
            about |= {"main": True, "subset": name, "examples": int(part.sum())}
            for run, score in zip(own.runs.to_dict("records"), right[:, part].mean(1), strict=True):
                rows.append(run | about | {"kept": KEPT[run["fraction"]], "score": score})
    runs = pd.DataFrame(rows).reindex(columns=[*dict.fromkeys([*rows[0], *_data_columns()])])
    return summary_of(runs).merge(losses_of(found), how="left", on=[*SETTING, "metric", "subset"])


def _data_columns() -> list[str]:
    return [f"{name}_{split}" for name in ("rows", "rows_available", "cut") for split in ("train", "validation")]


def concluded(
    found: list[TaskOutcomes], margin: float = 0.1, curves: pd.DataFrame | None = None, **of_grid: Any
) -> Any:
    """The claims of one grid: the table, and the conclusion as JSON."""
    own = grid([one.task for one in found], **of_grid)
    return claimed(lines_of(own, summary(found), found), margin, curves)


def claimed(lines: list[Line], margin: float = 0.1, curves: pd.DataFrame | None = None) -> Any:
    """The table of claims, and the conclusion as JSON, which it equals when it is read again."""
    empty = pd.DataFrame(columns=list(CURVE_COLUMNS))
    frame, conclusion = claims_of(lines, margin, empty if curves is None else curves)
    content = conclusion.to_json()
    assert Conclusion.of_json(content).to_json() == content
    return frame, content


def test_losses_are_shares_of_what_attention_contributes() -> None:
    rows = summary([measured("a")]).set_index(["fraction", "constant"])
    assert rows.loc["1/2"]["loss"].iloc[0] == pytest.approx(2 / 160, rel=0.1)
    assert rows.loc["1/8"]["loss"].iloc[0] == pytest.approx(60 / 160, rel=0.01)
    at_end = rows.loc[("0", "average")]
    assert (
        at_end["loss"] == pytest.approx(0.5) and at_end["loss_low"] < 0.5 < at_end["loss_bound"] < at_end["loss_high"]
    )
    assert at_end["trivial"] == 0.6 and at_end["contextless"] == pytest.approx(0.5, abs=0.005)
    assert set(rows["status"]) == {COUNTS}


def test_heads_are_replaceable_up_to_the_first_number_at_which_a_task_may_lose_more() -> None:
    frame, claims = concluded([measured("a"), measured("b")])
    [line] = claims["lines"]
    assert (line["replaceable"], line["measured"], line["tasks"]) == (8, [8, 14, 16], ["A", "B"])
    assert line["half_margin"] == pytest.approx(frame["margin"].iloc[0]) and frame["margin"].is_monotonic_increasing
    assert "8 of 16 heads are replaceable at a margin of 10 %" in line["sentence"]
    assert "with 14 replaced" in line["sentence"] and "50 %" in line["sentence"]
    _, wide = concluded([measured("a"), measured("b")], margin=0.9)
    assert (
        wide["lines"][0]["replaceable"] == 16
        and "In the order of λ, all 16 heads are replaceable" in wide["lines"][0]["sentence"]
    )


def test_one_task_that_loses_is_enough() -> None:
    worse = measured("b", RIGHT | {"1/2": 330})
    _, claims = concluded([measured("a"), worse])
    assert claims["lines"][0]["replaceable"] == 0
    said = "In the order of λ, no measured number of heads is replaceable at a margin of 10 %: with 8 replaced, the"
    assert said in claims["sentence"]


def test_a_later_number_that_passes_does_not_help_after_one_that_failed() -> None:
    _, claims = concluded([measured("a", RIGHT | {"1/2": 300, "1/8": 360})])
    assert claims["lines"][0]["replaceable"] == 0


@pytest.mark.parametrize(
    ("right", "why"),
    [
        (dict.fromkeys(RIGHT, 240), "the probe is no better than the majority class, no (0.600)"),
        (dict.fromkeys(RIGHT, 396), "attention contributes nothing measurable"),
    ],
)
def test_a_task_that_does_not_beat_both_floors_is_excluded(right: dict[str, int], why: str) -> None:
    alone = measured("b", right)
    frame, claims = concluded([alone])
    of = "Nothing can be concluded about m with heads replaced by average constants in the order of λ."
    assert claims["sentence"].startswith(f"{of} B: {why}. From")
    assert claims["lines"][0]["replaceable"] is None and frame["loss"].isna().all()
    _, beside = concluded([measured("a"), alone])
    assert beside["lines"][0]["replaceable"] == 8 and beside["lines"][0]["tasks"] == ["A"]
    assert beside["lines"][0]["without"] == [{"task": "B", "why": why}]


def test_a_task_that_was_not_run_at_a_number_of_heads_may_lose_all_there() -> None:
    whole, part = measured("a"), measured("b")
    frame, claims = concluded([whole, without(part, "1/2")])
    assert (
        claims["lines"][0]["replaceable"] == 0
        and "with 8 replaced, the loss on B has no upper bound" in claims["sentence"]
    )
    assert frame["bound"].tolist()[0] == math.inf and frame["tasks"].tolist() == [1, 2, 2]


def without(own: TaskOutcomes, fraction: str, order: str | None = None) -> TaskOutcomes:
    """Outcomes without the runs at a fraction, in one order or in all."""
    kept = (own.runs["fraction"] != fraction) | ((order is not None) & (own.runs["order"] != order))
    runs = own.runs[kept].reset_index(drop=True)
    return replace(own, runs=runs, values={"predicted": own.values["predicted"][kept.to_numpy()]})


def test_a_number_of_heads_that_was_run_with_other_seeds_shows_nothing() -> None:
    own = measured("a")
    seeds = own.runs["seed"].where(own.runs["fraction"] != "1/2", own.runs["seed"] + 100)
    frame, claims = concluded([replace(own, runs=own.runs.assign(seed=seeds))])
    assert claims["lines"][0]["replaceable"] == 0 and claims["lines"][0]["area"] is None
    assert frame["loss"].isna().tolist() == [True, False, False] and frame["margin"].tolist()[0] == math.inf


def test_only_orders_that_were_run_everywhere_are_compared() -> None:
    """A λ that was not run everywhere is left out, and no other takes its place."""
    names = ("lambda-0", "lambda-1", "lambda-2")
    some = without(measured("a", orders=names), "1/8", "lambda-0")
    spreads = [
        own.sample("accuracy", np.ones(EXAMPLES, bool)).spread(*(("average", "lambda", own) for own in ("1/2", "1/8")))
        for own in (some, measured("a", orders=names))
    ]
    places = [(358 - 3 * place) / 400 for place in (1, 2)]
    assert spreads[0] is not None and spreads[0].means[1] == pytest.approx(np.mean(places), abs=1e-3)
    assert spreads[1] is not None and spreads[1].means[1] > spreads[0].means[1]
    for left in names[1:]:
        some = without(some, "1/8", left) if left == "lambda-1" else without(some, "1/2", left)
    sample = without(some, "1/2", "lambda-1").sample("accuracy", np.ones(EXAMPLES, bool))
    assert sample.spread(("average", "lambda", "1/2"), ("average", "lambda", "1/8")) is None, "none in common"


def test_of_one_task_the_interval_is_that_of_its_loss() -> None:
    found = measured("a")
    frame, claims = concluded([found])
    own = summary([found]).set_index("fraction").loc[["1/2", "1/8"], ["loss", "loss_low", "loss_high"]]
    assert frame[["loss", "low", "high"]].to_numpy()[:2] == pytest.approx(own.to_numpy())
    end = claims["lines"][0]["at_end"]
    assert (end["low"], end["high"]) == (end["tasks"][0]["low"], end["tasks"][0]["high"])


def test_one_seed_concludes_nothing() -> None:
    _, claims = concluded([measured("a", seeds=1)])
    assert (
        claims["sentence"].startswith("Nothing can be concluded about m ")
        and "A: one seed, so no" in claims["sentence"]
    )


def test_one_example_concludes_nothing() -> None:
    own = measured("a")
    alone = replace(own, items=own.items[:1], values={"predicted": own.values["predicted"][:, :1]})
    _, claims = claimed(lines_of(grid(["a"]), summary([alone]), [alone]))
    assert "A: one validation example, so no interval. From 5 seeds and 1 validation example." in claims["sentence"]


def test_a_task_at_its_ceiling_is_named() -> None:
    _, claims = concluded([measured("a", RIGHT | {"1": 399, "1/2": 399})])
    assert claims["lines"][0]["ceiling"] == ["A"]


@pytest.mark.parametrize(
    ("scores", "rising", "noise"),
    [
        ([0.52, 0.54], True, 0.0),
        ([0.52, 0.54], False, 0.03),
        ([0.54, 0.544], False, 0.0),
        ([0.5, 0.5, 0.6, 0.604], False, 0.0),
        ([0.5, 0.5, 0.6, 0.61], True, 0.0),
        ([0.50, 0.52, 0.54, 0.56, 0.58, 0.60, 0.62, 0.64], True, 0.0),
        ([0.50, 0.52, 0.54, 0.56, 0.58, 0.60, 0.64, 0.64], False, 0.0),  # the gain is over
        ([0.60, 0.60, 0.60, 0.60, 0.64, 0.60, 0.60, 0.62], False, 0.0),  # up and down
    ],
)
def test_probes_that_still_gain_are_named(scores: list[float], rising: bool, noise: float) -> None:
    rows = [
        {"model": "m", "task": "a", "constant": None, "order": None, "fraction": "1", "seed": seed, "epoch": epoch}
        | {"loss": 1.0, "score": score + (seed - 1) * (0.001 if epoch % 2 else noise)}
        for seed in range(3)
        for epoch, score in enumerate(scores, start=1)
    ]
    _, claims = concluded([measured("a")], curves=pd.DataFrame(rows))
    found = {"task": "A", "runs": ["original"], "loss": "larger"}
    assert claims["lines"][0]["rising"] == [found] * rising
    said = "Still rising, train longer: A (original: its loss may be larger than measured)."
    assert (said in claims["sentence"]) == rising


@pytest.mark.parametrize(
    ("settings", "right", "said"),
    [
        ([("zeros", None, "0")], RIGHT, "A (context-free floor: its loss may be larger than measured)"),
        ([("average", "lambda-0", "1/8")], RIGHT, "A (replaced heads: its loss may be smaller than measured)"),
        ([("average", None, "0")], RIGHT, "A (replaced heads: its loss may be smaller than measured)"),
        (
            [(None, None, "1"), ("average", "lambda-0", "1/2")],
            RIGHT,
            "A (original and replaced heads: its loss may be larger or smaller than measured)",
        ),
        ([(None, None, "1")], RIGHT | {"0": 100}, "A (original: its loss may be larger or smaller than measured)"),
        ([(None, None, "1")], dict.fromkeys(RIGHT, 240), "A (original)"),
        ([("toeplitz", None, "0"), ("average", "random-1", "1/8")], RIGHT, None),
    ],
)
def test_what_still_rises_is_named_with_what_it_means(
    settings: list[tuple[str | None, str | None, str]], right: dict[str, int], said: str | None
) -> None:
    """Runs of other lines, with another constant or order, mean nothing to a line."""
    columns = ["constant", "order", "fraction"]
    rows = [
        {"model": "m", "task": "a", "seed": seed, "epoch": epoch, "loss": 1.0, "score": score + seed / 1000}
        | dict(zip(columns, setting, strict=True))
        for setting in settings
        for seed in range(3)
        for epoch, score in enumerate([0.5, 0.5, 0.6, 0.7], start=1)
    ]
    _, claims = concluded([measured("a", right)], curves=pd.DataFrame(rows))
    assert (f"Still rising, train longer: {said}." in claims["sentence"]) == (said is not None)
    assert ("Still rising" in claims["sentence"]) == (said is not None)


def test_a_loss_above_all_that_attention_contributes_is_explained() -> None:
    means = " Above 100 %, more is lost than attention contributes: worse than no context at all."
    worse = measured("b", RIGHT | {"0": 180})
    _, claims = concluded([measured("a"), worse])
    assert f"Most is lost on B (112 %), least on A (50 %).{means} In the order of" in claims["sentence"]
    _, alone = concluded([worse])
    assert f"is lost on B.{means} In the order of" in alone["sentence"]
    _, less = concluded([measured("a")])
    assert "Above 100 %" not in less["sentence"]


def test_the_area_is_that_under_the_loss() -> None:
    _, claims = concluded([measured("a")])
    steps = np.array([0, 8, 14, 16]) / 16
    losses = np.array([0, 2 / 160, 60 / 160, 80 / 160])
    area = float(np.sum(np.diff(steps) * (losses[1:] + losses[:-1]) / 2))
    assert claims["lines"][0]["area"]["mean"] == pytest.approx(area, rel=0.02)


def test_orders_are_compared_in_pairs() -> None:
    both = measured("a", orders=("lambda-0", "first-layer-first"))
    worse = (both.runs["order"] == "first-layer-first").to_numpy()
    values = both.values["predicted"].copy()
    gold = both.items["gold"].to_numpy()
    values[worse] = np.where(np.arange(EXAMPLES) % 10 == 0, 1 - gold, values[worse])
    changed = replace(both, values={"predicted": values})
    _, claims = concluded([changed], orders=("lambda", "first-layer-first"))
    [pair] = claims["areas"]
    assert pair["verdict"] == "differs" and pair["difference"] < 0 and pair["high"] < 0
    _, alike = concluded([both], orders=("lambda", "first-layer-first"))
    assert alike["areas"][0]["verdict"] != "differs" or abs(alike["areas"][0]["difference"]) < 0.02


def test_several_orders_of_lambda_count_as_one_line() -> None:
    _, claims = concluded([measured("a", orders=("lambda-0", "lambda-1", "lambda-2"))])
    [line] = claims["lines"]
    assert line["orders"] == 3 and "Averaged over 3 orders of λ, " in line["sentence"]


# -- sentences ---------------------------------------------------------------------------------------------


def test_of_one_task() -> None:
    _, claims = concluded([measured("a")])
    assert claims["sentence"] == (
        "With all 16 heads of m replaced by average constants, 50 % (95 % interval 42 to 58 %) of what attention "
        "contributes is lost on A. In the order of λ, 8 of 16 heads are replaceable at a margin of 10 %; with 14 "
        "replaced, the upper bound of the loss on A is 44 %. From 5 seeds and 400 validation examples."
    )


def test_of_two_orders_each_is_named_and_what_they_share_is_said_once() -> None:
    both = measured("a", orders=("lambda-0", "lambda-reversed-0"))
    _, claims = concluded([both], orders=("lambda", "lambda-reversed"))
    assert [line["orders"] for line in claims["lines"]] == [1, 1]
    stopped = "8 of 16 heads are replaceable at a margin of 10 %; with 14 replaced, the upper bound of the loss …."
    assert re.sub(r"\d+ to \d+ %|on A is \d+ %", "…", claims["sentence"]) == (
        "With all 16 heads of m replaced by average constants, 50 % (95 % interval …) of what attention contributes is "
        f"lost on A. In the order of λ, {stopped} In the reverse order of λ, {stopped} From 5 seeds and 400 validation "
        "examples."
    )
    one, other = (line["sentence"] for line in claims["lines"])
    assert "In the order of λ, 8 of 16" in one and "In the reverse order of λ, 8 of 16" in other
    _, nothing = concluded(
        [measured("a", dict.fromkeys(RIGHT, 240), orders=("lambda-0", "first-layer-first"))],
        orders=("lambda", "first-layer-first"),
    )
    assert "in the order of λ or from the first layer to the last. A: the probe is" in nothing["sentence"]
    assert len({line["sentence"] for line in nothing["lines"]}) == 2


def test_of_two_models_each_is_named() -> None:
    one = measured("a")
    two = [one, replace(one, model="n")]
    asked = grid(["a"]).model_copy(update={"models": ("m", "n")})
    rows = summary([one])
    both = pd.concat([rows, rows.assign(model="n")], ignore_index=True)
    _, claims = claimed(lines_of(asked, both, two))
    sentences = [part for line in claims["lines"] for part in line["sentence"].split(". ")]
    assert len(claims["lines"]) == 2 and claims["sentence"] == " ".join(line["sentence"] for line in claims["lines"])
    assert len(set(sentences)) == len(sentences) - 1, "but for the numbers of seeds and examples"
    assert all(f"8 of 16 heads of {name} are replaceable by average constants" in claims["sentence"] for name in "mn")
    # nor do they read alike if not all heads were ever replaced
    few = asked.model_copy(update={"fractions": ("1", "1/2")})
    _, claims = claimed(lines_of(few, both, two))
    assert claims["sentence"] == " ".join(
        f"In the order of λ, 8 of 16 heads of {name} are replaceable by average constants at a margin of 10 %; no more "
        "were tried. From 5 seeds and 400 validation examples."
        for name in "mn"
    )


def test_of_zeros_all_is_lost_by_definition() -> None:
    asked = grid(["a"], fractions=("1", "1/2", "0")).model_copy(update={"constants": ("zeros",)})
    _, claims = claimed(lines_of(asked, summary([drawn()]), [drawn()]))
    all_lost = "With all 16 heads of m replaced by zeros, all that attention contributes is lost, by definition."
    assert claims["sentence"].startswith(all_lost)


def test_what_is_lost_is_told_by_subset() -> None:
    """The first 200 examples to be right are so without any attention: what it contributes is in the other subset."""
    hard = np.arange(EXAMPLES) * 7 % EXAMPLES >= 203

    def parted(task: str, right: dict[str, int] = RIGHT) -> TaskOutcomes:
        own = measured(task, right)
        return replace(own, items=own.items.assign(subset=np.where(hard, "hard", "easy")))

    _, claims = concluded([parted("a")])
    said = "By subset: on easy attention contributes nothing measurable; on hard 51 % (95 % interval "
    assert said in claims["sentence"]
    _, claims = concluded([parted("a"), replace(measured("b"), items=measured("b").items.assign(subset="easy"))])
    assert "on easy 50 % (1 task; in 1 more attention contributes nothing measurable)" in claims["sentence"]
    _, claims = concluded([parted("a"), parted("b", RIGHT | {"0": 360}), measured("c")])
    by_subset = "By subset: on easy attention contributes nothing measurable; on hard 0 to 51 % (2 tasks)."
    assert by_subset in claims["sentence"]
    easy, hard_ones = claims["lines"][0]["at_end"]["subsets"]
    assert [own["task"] for own in easy["without"]] == ["A", "B"] and not easy["tasks"]
    assert [own["task"] for own in hard_ones["tasks"]] == ["A", "B"]
    # a loss may be unknown where a subset counts: its runs have no seed in common with those of the floor
    rows = summary([parted("a")])
    rows.loc[rows["subset"].eq("hard"), ["loss", "loss_low", "loss_high"]] = math.nan
    _, claims = claimed(lines_of(grid(["a"]), rows, [parted("a")]))
    assert "; on hard nothing can be concluded." in claims["sentence"]


def test_a_title_that_is_a_question_ends_its_sentence() -> None:
    rows = summary([drawn()]).assign(title="Is it so?")
    _, claims = claimed(lines_of(grid(["a"]), rows, [drawn()]))
    assert "is lost on Is it so? In the order of λ" in claims["sentence"]


def test_upper_bounds_are_not_rounded_down() -> None:
    assert [percent(share, upper=True) for share in (0.07, 0.1, 0.1001, 0.291)] == ["7 %", "10 %", "11 %", "30 %"]
    assert [percent(share, upper=True) for share in (math.inf, math.nan)] == ["no bound", "-"]


def test_outcomes_come_back_from_their_table(tmp_path: Any) -> None:
    from papa.files import Trace, read_table, write_table

    before = measured("a")
    table, facts = table_of([before])
    write_table(table, tmp_path / "outcomes.parquet", facts, Trace("summary", 1, {}, {}))
    [after] = measured_in(read_table(tmp_path / "outcomes.parquet"), {"a": "accuracy"})
    assert (after.values["predicted"] == before.values["predicted"]).all() and after.names == before.names
    pd.testing.assert_frame_equal(after.runs, before.runs, check_dtype=False)


def test_the_table_reads_well() -> None:
    frame, _ = concluded([measured("a"), measured("b", dict.fromkeys(RIGHT, 240))])
    [table] = tables_of(frame)
    assert table.lines[0][:3] == ["m", "8 of 16", "1"]
    assert not any("nan" in cell for line in table.lines for cell in line)


# -- areas against a bootstrap ----------------------------------------------------------------------------------------

SKILLS = {
    ("1", None): 0.8,
    ("0", "zeros"): 0.55,
    ("1/2", "zeros"): 0.7,
    ("1/2", "average"): 0.77,
    ("0", "average"): 0.7,
}


def drawn(orders: tuple[str, ...] = ("lambda-0",), seeds: int = 14) -> TaskOutcomes:
    """Outcomes of probes: examples are more or less hard, each setting changes some, and seeds differ a little."""
    chance = np.random.default_rng(5)
    hard, own = chance.normal(size=EXAMPLES), chance.normal(0, 0.15, seeds)
    runs, values = [], []
    for (fraction, constant), skill in SKILLS.items():
        for order in orders if fraction == "1/2" else (None,):
            lift = norm.ppf(skill) - 0.2 * (order == "first-layer-first")
            shift = chance.normal(0, 0.5, EXAMPLES)
            for seed in range(seeds):
                runs.append(dict(zip(RUN, (constant, order, fraction, seed), strict=True)))
                values.append(hard + chance.normal(0, 0.5, EXAMPLES) < lift + shift + own[seed])
    gold = (np.arange(EXAMPLES) % 2).astype(int)
    items = pd.DataFrame({"split": "validation", "example": range(EXAMPLES), "gold": gold})
    outcomes = {"predicted": np.where(np.stack(values), gold, 1 - gold)}
    return TaskOutcomes(
        "m", "a", "accuracy", ("no", "yes"), (50, 50), pd.DataFrame(runs, dtype=object), items, outcomes
    )


def lines(own: TaskOutcomes) -> dict[str, Line]:
    orders = tuple(dict.fromkeys(order.removesuffix("-0") for order in own.runs["order"].dropna()))
    asked = grid(["a"], orders, ("1", "1/2", "0")).model_copy(update={"constants": ("average", "zeros")})
    return {line.name: line for line in lines_of(asked, summary([own]), [own])}


def tables_by_setting(own: TaskOutcomes) -> dict[Any, np.ndarray]:
    """Whether each example is right with each seed, by (constant, order, fraction)."""
    right = own.values["predicted"] == own.items["gold"].to_numpy()
    settings = own.runs[["constant", "order", "fraction"]].apply(tuple, axis=1)
    return {setting: right[[own == setting for own in settings]] for setting in settings}


def mean_of(own: TaskOutcomes) -> Any:
    tables = tables_by_setting(own)
    return lambda *setting: tables[setting].mean()


def bootstrapped(own: TaskOutcomes, area: Any) -> float:
    """The standard deviation of something made of mean scores, by drawing seeds, examples, and both.

    Drawing both counts three times what seeds and examples make together, which drawing one of them counts once.

    Args:
        own: outcomes.
        area: from a function of (constant, order, fraction) to its mean score, to a number.
    """
    tables, chance = tables_by_setting(own), np.random.default_rng(6)
    seeds = np.arange(len(next(iter(tables.values()))))
    examples, variances = np.arange(EXAMPLES), []
    for of_seeds, of_examples in ((True, False), (False, True), (True, True)):
        found = []
        for _ in range(800):
            rows = chance.choice(seeds, len(seeds)) if of_seeds else seeds
            columns = chance.choice(examples, EXAMPLES) if of_examples else examples
            means = {setting: float(table[rows][:, columns].mean()) for setting, table in tables.items()}
            found.append(area(lambda *setting, means=means: means[setting]))
        variances.append(np.var(found))
    return math.sqrt(2 * (variances[0] + variances[1]) - variances[2])


def area_in(score: Any, constant: str, order: str = "lambda-0") -> float:
    """The area under straight lines through (0, 0), half of the heads and all of them."""
    original, floor = score(None, None, "1"), score("zeros", None, "0")
    half, end = (
        (original - score(*setting)) / (original - floor)
        for setting in ((constant, order, "1/2"), (constant, None, "0"))
    )
    return float(half / 4 + (half + end) / 4)


def estimated(one: Line, other: Line | None = None) -> Estimate:
    """The estimate of the area of a line, or of the difference between two."""
    widths = [(line and line.widths("a")) or {} for line in (one, other)]
    found = share_of(one.samples["a"], difference(*map(lost, widths)))
    assert found is not None
    return found.estimate()


@pytest.mark.parametrize("constant", ["average", "zeros"])
def test_an_area_varies_as_in_a_bootstrap(constant: str) -> None:
    own = drawn()
    found = estimated(lines(own)[constant])
    assert found.mean == pytest.approx(area_in(mean_of(own), constant))
    assert math.sqrt(found.variance) == pytest.approx(
        bootstrapped(own, lambda score: area_in(score, constant)), rel=0.1
    )


def test_a_difference_between_areas_varies_as_in_a_bootstrap() -> None:
    """The floor is in what is lost, at the end of one of the lines, and in what attention contributes."""
    own = drawn()

    def difference(score: Any) -> float:
        return area_in(score, "average") - area_in(score, "zeros")

    found = estimated(lines(own)["average"], lines(own)["zeros"])
    assert found.mean == pytest.approx(difference(mean_of(own)))
    assert math.sqrt(found.variance) == pytest.approx(bootstrapped(own, difference), rel=0.1)


def numbers(own: Estimate) -> list[float]:
    return [own.mean, own.variance, own.freedom, *own.skews]


def test_a_score_that_is_in_a_sum_twice_counts_once() -> None:
    """By hand: the line of zeros ends at the floor, and two orders end at the same runs."""
    own = drawn(("lambda-0", "first-layer-first"))
    sample = own.sample("accuracy", np.ones(EXAMPLES, bool))
    zeros, floor = sample.spread(ORIGINALS, ("zeros", "lambda", "1/2"), FLOOR), [0.0, 1.0, 0.0, -1.0]
    assert zeros is not None
    expected = zeros.share([0, 3 / 4, -1 / 2, -1 / 4], floor)
    found = estimated(lines(own)["zeros / λ"])
    assert numbers(found) == pytest.approx(numbers(expected))
    names = [("average", order, "1/2") for order in ("lambda", "first-layer-first")]
    both = sample.spread(ORIGINALS, *names, FLOOR)
    assert both is not None
    expected = both.share([0, 0, -1 / 2, 1 / 2, 0], [0, 1, 0, 0, -1])
    found = estimated(lines(own)["average / λ"], lines(own)["average / first layer first"])
    assert numbers(found) == pytest.approx(numbers(expected))
