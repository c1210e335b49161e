"""The outcome of every validation example in every run: the only source of scores, floors and reliance."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import pyarrow as pa

from papa.config.measures import (
    MEASURES,
    OUTCOME_TYPES,
    Counts,
    Guess,
    Measure,
    Outcomes,
    pseudo_values,
)
from papa.config.variant import CONTEXT_FREE, Order
from papa.data.prepare import ALL
from papa.results.statistics import PseudoValues, Spread
from papa.results.table import Row, arrow_of, records_of

OUTCOME_COLUMNS = list(dict.fromkeys(measure.column for measure in MEASURES.values()))
"""The columns of an item that differ between runs, such as the predicted label or the loss."""
VARIANT_KEYS = ["constant", "order", "fraction"]
RUN_KEYS = [*VARIANT_KEYS, "seed", "sample"]
"""The columns that identify a run of a model on a task; sample 0 are all training rows."""
ITEM_COLUMNS = [name for name in OUTCOME_TYPES if name not in OUTCOME_COLUMNS]
"""The columns of an item that are the same in every run; an item is a label or a text."""
ITEM_TYPES = {"split": str, "subset": str} | dict.fromkeys(
    ("cluster", "word", "gold", "position"), int
)
"""The types of the columns of items that a table of several tasks stores as others."""
COLUMNS = dict.fromkeys(("model", "task", *VARIANT_KEYS), "string") | {
    "seed": "int64",
    "sample": "int64",
}
COLUMNS |= OUTCOME_TYPES
"""The columns of the table of all outcomes."""


class Setting(NamedTuple):
    """A constant, an order (without draw or seed) and a fraction."""

    constant: str | None = None
    order: str | None = None
    fraction: str = "1"


ORIGINALS = Setting()
FLOOR = Setting(CONTEXT_FREE[0], fraction="0")
"""A context-free floor; see `Sample.floor_settings`."""


def is_probed(metrics: pd.Series[str]) -> pd.Series[bool]:
    """Select the metrics that score probes, which have seeds; all others score a model's own head."""
    return metrics.isin([name for name, measure in MEASURES.items() if measure.target.probed])


@dataclass(frozen=True)
class TaskOutcomes:
    """All outcomes of one model on one task.

    Args:
        model, task: their names in the config.
        metric: the main metric of the task.
        names: the names of the labels; empty for losses.
        train_counts: the number of training rows with each label.
        runs: a row for each run, with the columns `RUN_KEYS`.
        items: a row for each label or text, with columns of `ITEM_COLUMNS`.
        values: an array `[run, item]` for each recorded column of `OUTCOME_COLUMNS`.
        floors: the constants of the context-free floors.
    """

    model: str
    task: str
    metric: str
    names: tuple[str, ...]
    train_counts: tuple[int, ...]
    runs: pd.DataFrame
    items: pd.DataFrame
    values: Mapping[str, np.ndarray]
    floors: tuple[str, ...] = CONTEXT_FREE

    def subsets(self) -> dict[str, np.ndarray]:
        """Return a mask `[item]` for each subset that is scored: all examples first, further splits last."""
        split = self.items["split"].to_numpy()
        validation = split == "validation"
        masks = {ALL: validation}
        if "subset" in self.items:
            subset = self.items["subset"]
            names = sorted({*subset[validation].dropna()} - {""})
            masks |= {name: validation & subset.eq(name).to_numpy() for name in names}
        further = dict.fromkeys(split[~validation])
        return masks | {name: split == name for name in further}

    def scored(self) -> Iterator[tuple[str, str, np.ndarray]]:
        """Yield what is scored: a subset, a metric, and the mask of the subset; only the main metric scores subsets."""
        for subset, mask in self.subsets().items():
            if mask.any():
                metrics = MEASURES[self.metric].readings if subset == ALL else (self.metric,)
                yield from ((subset, metric, mask) for metric in metrics)

    def counts(self, metric: str, mask: np.ndarray, values: np.ndarray | None = None) -> Counts:
        """Return the counts `[run, unit, count]` that each text or sentence (unit) of the items adds to a metric.

        `values` `[run, item]` are scored instead of the outcomes of the runs.
        """
        measure = MEASURES[metric]
        values = self.values[measure.column] if values is None else values
        kind = np.int64 if measure.target.labelled else np.float64
        gold, unit = (
            self.items.loc[mask, name].to_numpy(np.int64)
            for name in (measure.target.right, "example")
        )
        return np.stack(
            [
                measure.counts(Outcomes(gold, row[mask].astype(kind), unit, self.names))
                for row in values
            ]
        )

    def clusters(self, mask: np.ndarray) -> np.ndarray | None:
        """Return the cluster `[unit]` of each text or sentence in `counts`; None if each is drawn by itself."""
        if "cluster" not in self.items:
            return None
        return self.items[mask].drop_duplicates("example")["cluster"].to_numpy(np.int64)

    def trivial(self, metric: str, mask: np.ndarray) -> Counts:
        """Return the counts `[1, unit, count]` of the best guess that ignores the input; see `counts`."""
        label = self.guess(metric).label
        if label is None:
            return self.counts(metric, mask, self.items["trivial"].to_numpy(float)[None])
        return self.counts(metric, mask, np.full((1, len(self.items)), label))

    def units(self, mask: np.ndarray) -> np.ndarray:
        """Return the places of texts in the validation split, or the clusters, in ascending order, `[unit]`."""
        column = "cluster" if "cluster" in self.items else "example"
        return np.unique(self.items.loc[mask, column].to_numpy())

    def guess(self, metric: str) -> Guess:
        """Return the best guess that ignores the input, based on the labels of the training rows."""
        measure = MEASURES[metric]
        return (measure.guess or measure.target.guess)(self.names, self.train_counts)

    def settings(self, resampled: bool = False) -> dict[Setting, list[int]]:
        """Return the indices of the runs of each setting: those on all training rows, or those on samples of them."""
        indices: dict[Setting, list[int]] = {}
        for index, run in enumerate(records_of(self.runs)):
            if bool(run["sample"]) == resampled:
                base = run["order"] and Order.parse(run["order"]).base
                setting = Setting(run["constant"], base, run["fraction"])
                indices.setdefault(setting, []).append(index)
        return indices

    def sample(self, metric: str, mask: np.ndarray) -> Sample:
        """Score all runs on the selected items by a metric that has floors.

        A model's own head was never trained to read states without attention. If it scores lower on a floor than the
        best guess that ignores the input, that guess replaces the floor.
        """
        return Sample(
            metric=MEASURES[metric],
            counts=self.counts(metric, mask),
            trivial_counts=self.trivial(metric, mask),
            settings=self.settings(),
            runs=self.runs,
            floors=self.floors,
            units=self.units(mask),
            clusters=self.clusters(mask),
            resampled=self.settings(resampled=True),
        )


def by_cluster(counts: Counts, clusters: np.ndarray | None) -> Counts:
    """Sum counts `[run, unit, count]` over the units of each cluster `[unit]`; None leaves them as they are."""
    if clusters is None:
        return counts
    # `reduceat` sums neighbours, but the texts of a cluster may be far apart
    order = np.argsort(clusters, kind="stable")
    begins = np.unique(clusters[order], return_index=True)[1]
    return np.add.reduceat(counts[:, order], begins, axis=1)


@dataclass(frozen=True)
class Sample:
    """Scores of all runs of a model on a task or a subset by one metric, with the contribution of each example.

    A unit is what intervals resample: a text or a sentence, or a cluster of them.

    Args:
        metric: the metric of the scores.
        counts: `[run, text, count]`, the counts of each text or sentence.
        trivial_counts: `[1, text, count]`, those of the trivial classifier.
        settings: the indices of the runs of each setting.
        runs: a row for each run.
        floors: the constants of the context-free floors; those that were not run are ignored.
        units: the index of each unit in the corpus, or its cluster, `[unit]`; by default 0, 1, 2, …
        clusters: the cluster of each text or sentence `[text]`; None if each is a unit.
        resampled: the indices of the runs of each setting on samples of the training rows.
    """

    metric: Measure
    counts: Counts
    trivial_counts: Counts
    settings: Mapping[Setting, list[int]]
    runs: pd.DataFrame
    floors: tuple[str, ...] = CONTEXT_FREE
    units: np.ndarray | None = None
    clusters: np.ndarray | None = None
    resampled: Mapping[Setting, list[int]] = field(default_factory=dict)

    @property
    def seeded(self) -> bool:
        """Whether runs depend on a seed."""
        return self.metric.target.probed

    @cached_property
    def scores(self) -> np.ndarray:
        """The score of each run, `[run]`."""
        return self.metric.score(self.counts.sum(1))

    @cached_property
    def trivial(self) -> float:
        """The score of the trivial classifier."""
        return float(self.metric.score(self.trivial_counts.sum(1))[0])

    @cached_property
    def values(self) -> np.ndarray:
        """The pseudo-values of each run, `[run, unit]`."""
        return pseudo_values(self.metric, by_cluster(self.counts, self.clusters))

    @cached_property
    def trivial_values(self) -> np.ndarray:
        """The pseudo-values of the trivial classifier, `[unit]`."""
        counts = by_cluster(self.trivial_counts, self.clusters)
        values: np.ndarray = pseudo_values(self.metric, counts)[0]
        return values

    def mean(self, setting: Setting) -> float:
        """Return the mean score of a setting over its runs; NaN if there are none."""
        runs = self.settings.get(setting)
        return self.scores[runs].mean() if runs else math.nan

    @cached_property
    def floor_settings(self) -> tuple[Setting, ...]:
        """The context-free floors that were run, the one with the highest score first."""
        floors = [Setting(name, fraction="0") for name in self.floors]
        known = [floor for floor in floors if floor in self.settings]
        return tuple(sorted(known, key=self.mean, reverse=True))

    @cached_property
    def guesses(self) -> frozenset[Setting]:
        """The floors of a model's own head that the trivial classifier replaces, because it scores higher."""
        floors = () if self.seeded else self.floor_settings
        return frozenset(floor for floor in floors if self.mean(floor) < self.trivial)

    @property
    def floor(self) -> float | None:
        """The score of the highest context-free floor, or of the guess that replaces it; None if unknown."""
        if not self.floor_settings:
            return None
        highest = self.floor_settings[0]
        return self.trivial if highest in self.guesses else self.mean(highest)

    @cached_property
    def runs_of(self) -> dict[Setting, pd.DataFrame]:
        """The index of each run of a setting by order (rows) and seed (columns); every order has these seeds."""
        runs = self.runs.fillna({"order": ""}).assign(index=self.runs.index)
        return {
            setting: runs.loc[indices]
            .pivot(index="order", columns="seed", values="index")
            .dropna(axis=1)
            .astype(int)
            for setting, indices in self.settings.items()
        }

    def samples_of(self, setting: Setting) -> Mapping[Any, pd.Index[int]]:
        """Map each sample of the training rows to the indices of the runs of a setting on it, one for each order."""
        return self.runs.loc[self.resampled.get(setting, [])].groupby("sample").groups

    @property
    def examples(self) -> int:
        """The number of texts or sentences."""
        return int(self.counts.shape[1])

    @cached_property
    def step(self) -> float:
        """The typical change of a unit's pseudo-value if attention changes its outcome (root mean square).

        Such changes are those between the original and the highest floor or, if there are none, the trivial classifier.
        Losses change in every unit, and never by chance in none, so only deviations from their mean change count.
        """
        floors = [floor for floor in self.floor_settings[:1] if floor not in self.guesses]
        moved = self._moved(*floors)
        if not len(moved):
            moved = self._moved()
        if self.metric.log_scaled and len(moved):
            moved = moved - moved.mean()
        return np.sqrt(np.mean(moved**2)) if len(moved) else 0.0

    def _moved(self, *floor: Setting) -> np.ndarray:
        """Return by how much pseudo-values change from the original to a floor, by default the trivial classifier.

        Only units whose outcome differs are listed.
        """
        common = _common_runs([(self, setting) for setting in (ORIGINALS, *floor)])
        if common is None:
            return np.empty(0)
        original, *of_floor = (runs[0] for runs in common)
        without = of_floor[0] if floor else [-1]
        counts = by_cluster(np.concatenate([self.counts, self.trivial_counts]), self.clusters)
        values = np.vstack([self.values, self.trivial_values])
        differs = (counts[original] != counts[without]).any(-1)
        changes: np.ndarray = (values[original] - values[without])[differs]
        return changes


Scores = Sequence[tuple[Sample, Setting]]
"""Settings, each with the sample that contains its runs."""


def joint_spread(scores: Scores, step: float | None = None) -> Spread | None:
    """Return the joint spread of the scores of a trivial classifier and of several settings with the same units.

    Quantity 0 is the trivial classifier of the first sample; the settings follow in the order passed. Only common runs
    are used: seeds that all settings have, and draws of an order that all settings with this order have. If there are
    several orders, the same number of draws of each is used. None if a setting was not run, or if the settings have no
    seed or no draw in common.

    Args:
        scores: the settings.
        step: see `Sample.step`; by default that of the first sample.
    """
    return spread_over([[scores]], step)


def spread_over(corpora: Sequence[Sequence[Scores]], step: float | None = None) -> Spread | None:
    """Return the joint spread of the scores of several tasks of each corpus; see `joint_spread`.

    All tasks use the same seeds, and the same draws of an order: seed k is one source for all tasks, and so is draw k,
    because it trains λ with the same seed or is the same random order. A task without seeds varies only with orders and
    examples.
    """
    runs = _common_runs([score for tasks in corpora for scores in tasks for score in scores])
    if runs is None:
        return None
    remaining = iter(runs)

    def table(scores: Scores) -> PseudoValues:
        first = scores[0][0]
        indices = [next(remaining) for _ in scores]
        trivial = first.trivial_values
        drawn = [sample.samples_of(setting) for sample, setting in scores]
        numbers = _common(drawn)
        quantities = 1 + len(scores)
        values = np.tile(trivial, (quantities, *indices[0].shape, 1))
        resampled = np.tile(trivial, (quantities, len(numbers), 1))
        for place, (sample, _) in enumerate(scores):
            values[place + 1] = sample.values[indices[place]]
            for row, number in zip(resampled[place + 1], numbers, strict=True):
                row[:] = sample.values[drawn[place][number]].mean(0)
        return PseudoValues(
            values=values,
            step=first.step if step is None else step,
            seeded=first.seeded,
            units=first.units,
            resampled=resampled,
        )

    return Spread.over([[table(scores) for scores in tasks] for tasks in corpora])


def _common_runs(scores: Scores) -> list[np.ndarray] | None:
    """Return the runs `[order, seed]` of each setting that all settings have in common; None if there are none."""
    if any(setting not in sample.settings for sample, setting in scores):
        return None
    tables = [sample.runs_of[setting] for sample, setting in scores]
    by_order: dict[str | None, list[Iterable[str | int]]] = {}
    for (_, setting), table in zip(scores, tables, strict=True):
        by_order.setdefault(setting.order, []).append(table.index)
    draws = {order: _common(indices) for order, indices in by_order.items()}
    # without any seed, all have the same columns, which then count as seeds
    any_seeded = any(sample.seeded for sample, _ in scores)
    by_seed = [sample.seeded or not any_seeded for sample, _ in scores]
    seeds = _common(table.columns for table, varies in zip(tables, by_seed, strict=True) if varies)
    runs = []
    for (_, setting), table, varies in zip(scores, tables, by_seed, strict=True):
        columns = seeds if varies else table.columns
        runs.append(table.loc[draws[setting.order], columns].to_numpy())
    draw_counts = [len(indices) for indices in runs if len(indices) != 1]
    # a setting without an order has a single row, which stands for every draw
    draw_count = min(draw_counts, default=1)
    if not seeds or not draw_count:
        return None
    return [np.broadcast_to(indices[:draw_count], (draw_count, len(seeds))) for indices in runs]


def _common(indices: Iterable[Iterable[str | int]]) -> list[str | int]:
    return sorted(set.intersection(*map(set, indices)))


def table_of(task_outcomes: Sequence[TaskOutcomes]) -> tuple[pa.Table, Row]:
    """Return all outcomes as one table with `COLUMNS`, and facts about each task to record in it."""
    # names repeat for every item of every run, and a code takes only 4 bytes
    dictionary = pa.dictionary(pa.int32(), pa.string())
    present = {name for outcomes in task_outcomes for name in outcomes.items}
    types = {
        name: dictionary if kind == "string" else kind
        for name, kind in COLUMNS.items()
        if name != "cluster" or name in present
    }
    schema = pa.schema(list(types.items()))
    # columns that only other tasks have become null
    tables = [schema.empty_table()]
    facts = Row()
    for outcomes in task_outcomes:
        facts[outcomes.task] = {
            "label_names": list(outcomes.names),
            "train_counts": list(outcomes.train_counts),
        }
        runs = outcomes.runs.assign(model=outcomes.model, task=outcomes.task)
        size = len(outcomes.items)
        columns = {name: pa.array(values.reshape(-1)) for name, values in outcomes.values.items()}
        for frame, rows in (
            (runs, np.repeat(np.arange(len(runs)), size)),
            (outcomes.items, np.tile(np.arange(size), len(runs))),
        ):
            table = arrow_of(frame, {name: types[name] for name in frame if name in types})
            columns |= zip(table.column_names, table.take(rows).columns, strict=True)
        of_task = pa.schema([field for field in schema if field.name in columns])
        tables.append(pa.table(columns, schema=of_task))
    joint = pa.concat_tables(tables, promote_options="default").combine_chunks()
    return joint, {"tasks": facts, "floors": task_outcomes[0].floors}


def outcomes_in(table: pa.Table, about: Row) -> Iterator[TaskOutcomes]:
    """Read back the outcomes that `table_of` returned, with the facts of their file."""
    facts = about["tasks"]
    # as codes, because a name for every item of every run would take much memory
    frame = table.to_pandas(strings_to_categorical=True)
    # observed, or pandas would add a group for each pair of categories that does not occur
    for (model, task), rows in frame.groupby(["model", "task"], sort=False, observed=True):
        # columns that only other kinds of tasks have
        rows = rows.dropna(axis=1, how="all")
        of_runs = rows.reindex(columns=RUN_KEYS).astype(object)
        size = len(rows) // len(of_runs.drop_duplicates())
        runs = of_runs.iloc[::size].reset_index(drop=True)
        items = rows[rows.columns.intersection(ITEM_COLUMNS)].iloc[:size].reset_index(drop=True)
        types = {name: form for name, form in ITEM_TYPES.items() if name in items}
        values = rows[rows.columns.intersection(OUTCOME_COLUMNS)]
        of_task = facts[str(task)]
        yield TaskOutcomes(
            model=str(model),
            task=str(task),
            metric=of_task["metric"],
            names=tuple(of_task["label_names"]),
            train_counts=tuple(of_task["train_counts"]),
            runs=runs.where(runs.notna(), None),
            items=items.astype(types),
            values={name: column.to_numpy().reshape(-1, size) for name, column in values.items()},
            floors=tuple(about["floors"]),
        )
