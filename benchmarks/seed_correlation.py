"""Correlation between tasks of the effects of a probe's seed, measured in finished results.

    python benchmarks/seed_correlation.py results/minilm

The same seed trains the probe of every task. If it is a good seed on one task, is it a good seed on another? For each
pair of tasks, prints the correlation over seeds of the score lost with all heads replaced, and of the loss. Reads
`tables/outcomes.parquet`.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations
from pathlib import Path

import numpy as np
import pandas as pd

from papa.config.artefacts import ARTEFACTS
from papa.results.compare import read_outcomes
from papa.results.outcomes import ALL, FLOOR, ORIGINALS, Sample, Setting


def effects_of(sample: Sample, setting: Setting) -> pd.DataFrame:
    """Return the score `lost` in a setting and the `loss` with each seed, averaged over orders.

    The loss is linearised, because the ratio of one seed has no mean: score lost minus loss times contribution, as a
    share of the contribution.
    """
    scores = {
        name: pd.Series(sample.scores[table.to_numpy()].mean(0), table.columns)
        for name, table in ((name, sample.runs_of(name)) for name in (ORIGINALS, FLOOR, setting))
    }
    lost, contribution = scores[ORIGINALS] - scores[setting], scores[ORIGINALS] - scores[FLOOR]
    ratio = lost.mean() / contribution.mean()
    return pd.DataFrame({"lost": lost, "loss": (lost - ratio * contribution) / contribution.mean()}).dropna()


def correlated(effects: Mapping[str, pd.DataFrame]) -> Iterator[list[str]]:
    """Yield two tasks, the number of common seeds, and the correlation of each column with its 95 % interval."""
    for first, second in combinations(effects, 2):
        pair = effects[first].join(effects[second], how="inner", lsuffix="_a", rsuffix="_b")
        if len(pair) > 3:
            cells = [_correlation(pair[f"{name}_a"], pair[f"{name}_b"]) for name in ("lost", "loss")]
            yield [first, second, str(len(pair)), *cells]


def _correlation(first: pd.Series[float], second: pd.Series[float]) -> str:
    """Return Pearson's r with Fisher's interval."""
    r = float(np.corrcoef(first, second)[0, 1])
    half = 1.96 / math.sqrt(len(first) - 3)
    low, high = (math.tanh(math.atanh(r) + side * half) for side in (-1, 1))
    return f"{r:.2f} ({low:.2f} to {high:.2f})"


def main(arguments: Sequence[str] | None = None) -> None:
    """Print a table for each model and each constant that replaces all heads."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", type=Path)
    outcomes, _ = read_outcomes(parser.parse_args(arguments).results / ARTEFACTS["all_outcomes"].path())
    samples = {key: task.sample(task.metric, task.subsets()[ALL]) for key, task in outcomes.items()}
    samples = {key: sample for key, sample in samples.items() if {ORIGINALS, FLOOR} <= sample.settings.keys()}
    settings = dict.fromkeys(setting for sample in samples.values() for setting in sample.settings)
    for setting in (setting for setting in settings if setting[2] == "0" and setting != FLOOR):
        for model in dict.fromkeys(model for model, _ in samples):
            chosen = {task: sample for (name, task), sample in samples.items() if name == model and sample.seeded}
            effects = {
                task: effects_of(sample, setting) for task, sample in chosen.items() if setting in sample.settings
            }
            if len(effects) < 2:
                continue
            print(f"{model}, all heads replaced by {setting[0]}:\n")
            print("| tasks | | seeds | r of original − averages | r of the loss |\n|---|---|--:|--:|--:|")
            for cells in correlated(effects):
                print(f"| {' | '.join(cells)} |")
            for task, values in effects.items():
                lost, loss = values["lost"].std(), values["loss"].std()
                print(f"\n{task}: standard deviation over seeds {lost:.4f}, of the loss {loss:.3f}")


if __name__ == "__main__":
    main()
