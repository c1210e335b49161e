"""Is λ, or another order of heads, better than random orders? From the outcomes of a finished study with both.

    python benchmarks/orders.py results/minilm-orders
    python benchmarks/orders.py results/gemma 3     # without tokens of this ID, such as that of <unk>

An order's score is its mean over the probe seeds that all orders have. An order made without regard to the task is
exchangeable with random orders, so p = (1 + random orders that score at least as high) / (1 + random orders),
one-sided. The noise of probes costs power, but p stays valid. Prints a Markdown table.
"""

import sys
from collections.abc import Iterator, Mapping
from itertools import combinations
from pathlib import Path

import numpy as np
import pandas as pd

import papa
from benchmarks.tokens import kinds, tokens_of
from papa.config.variant import RANDOM, SEEDED, Order
from papa.results.compare import OUTCOMES, read_outcomes
from papa.results.outcomes import ALL, TaskOutcomes
from papa.results.phrases import order_name
from papa.results.statistics import holm
from papa.results.table import Table

ROUNDING = 1e-12
"""Scores that differ by less are equal."""
NOTE = """
A point is 0.01 of the score. The test of a learned order's first seed is fixed beforehand; p is corrected for all of
these tests (Holm's method). A mean over seeds varies less than a single order, so it has no p. A p is about the choice
of orders, for this model and this validation set. It says nothing about other texts."""


def among(score: float, drawn: np.ndarray) -> dict[str, object]:
    """Return the place of a score among those of random orders, `[draw]`."""
    return {
        "score": f"{score:.3f}",
        "random orders": len(drawn),
        "median (5 to 95%)": "{:.3f} ({:.3f} to {:.3f})".format(*np.percentile(drawn, [50, 5, 95])),
        "points above their mean": f"{round(100 * (score - drawn.mean()), 1) + 0.0:+.1f}",
        "random orders it beats": f"{np.mean(drawn < score - ROUNDING):.0%}",
        "p": (1 + np.sum(drawn > score - ROUNDING)) / (1 + len(drawn)),
    }


def compared(
    outcomes: TaskOutcomes, replaced: Mapping[tuple[str, str], int], mask: np.ndarray | None = None
) -> Iterator[dict[str, object]]:
    """Yield rows of the table of a task; `replaced` is the number of heads by model and fraction.

    The mask, `[outcome]`, chooses some outcomes; all of them by default.
    """
    sample = outcomes.sample(outcomes.metric, outcomes.subsets()[ALL] if mask is None else mask)
    settings = [setting for setting in sample.settings if setting.order is not None]
    for part in dict.fromkeys((setting.constant, setting.fraction) for setting in settings):
        tables = [
            sample.runs_of[each] for each in settings if (each.constant, each.fraction) == part
        ]
        runs = pd.concat(tables, join="inner")  # the seeds that all orders have
        scores = dict[str, dict[int, float]]()  # by the name of an order, and its seed or draw
        for name, places in zip(runs.index, runs.to_numpy(), strict=True):
            order = Order.parse(str(name))
            scores.setdefault(order.base, {})[order.draw or 0] = float(sample.scores[places].mean())
        if RANDOM not in scores or runs.empty:
            continue
        drawn = np.array([*scores[RANDOM].values()])
        about = {"model": outcomes.model, "task": outcomes.task, "constants": part[0]}
        about["heads replaced"] = str(replaced[outcomes.model, part[1]])
        for base in [base for base in scores if base != RANDOM]:
            learned = base in SEEDED
            for seed, score in sorted(scores[base].items()):
                name = order_name(base) + (f", seed {seed}" if learned else "")
                row = about | {"order": name} | among(score, drawn)
                yield row | {"fixed": learned and seed == min(scores[base])}
            if len(scores[base]) > 1:
                mean = among(float(np.mean([*scores[base].values()])), drawn)
                yield (
                    about
                    | {"order": f"{order_name(base)}, mean"}
                    | mean
                    | {"p": np.nan, "fixed": False}
                )


def table(rows: list[dict[str, object]]) -> str:
    """Return the table as Markdown, with p values that are corrected for all tests of first seeds."""
    frame = pd.DataFrame(rows)
    frame["corrected p"] = holm(frame["p"].where(frame.pop("fixed")).tolist())
    for name in ("p", "corrected p"):
        frame[name] = ["-" if np.isnan(p) else f"{p:.3f}" for p in frame[name]]
    return Table("", frame, 5).markdown()


def agreement(heads: pd.DataFrame) -> str:
    """Return Kendall's τ between learned weights of heads, and with the layer, as Markdown."""
    first = heads[heads["seed"] == heads["seed"].min()]
    rows = []
    for about, of_task in first.groupby(["model", "task", "constant"]):
        weights = of_task.pivot_table(index=["layer", "head"], columns="order", values="value")
        weights["layer"] = weights.index.get_level_values("layer")
        taus = weights.rename(columns=order_name).corr("kendall")
        rows += [
            [*about, f"{one} and {other}", f"{taus.loc[one, other]:.2f}"]
            for one, other in combinations(taus.columns, 2)
        ]
    columns = ["model", "task", "constants", "weights of heads", "Kendall's τ"]
    return Table("", pd.DataFrame(rows, columns=columns), 4).markdown()


def without(results: Path, task: TaskOutcomes, left_out: int) -> np.ndarray:
    """Return which outcomes of a decoder are those of other tokens, `[outcome]`."""
    [(_, mask), *_] = kinds(task, tokens_of(results, task), left_out)
    return mask


def main(results: Path, left_out: int | None = None) -> None:
    try:
        study = papa.load(results)
        of_runs = study.summary[["model", "fraction", "heads", "kept"]].to_numpy().tolist()
        replaced = {(model, fraction): heads - kept for model, fraction, heads, kept in of_runs}
        rows = []
        for task in read_outcomes(results / OUTCOMES)[0].values():
            mask = None if left_out is None else without(results, task, left_out)
            rows += compared(task, replaced, mask)
        if not rows:
            raise papa.InputError(
                f"{results} needs random orders and others, with the same heads and seeds."
            )
        print(table(rows), NOTE, "", agreement(study.heads), sep="\n")
    except papa.InputError as error:
        raise SystemExit(f"Error: {error}") from None


if __name__ == "__main__":
    main(Path(sys.argv[1]), *map(int, sys.argv[2:]))
