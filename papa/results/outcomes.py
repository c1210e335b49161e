"""The outcome of every validation example in every run: the only source of scores, floors and reliance."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pandas as pd

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
from papa.results.statistics import PseudoValues, Spread

if TYPE_CHECKING:
    import pyarrow as pa

ALL = "all"
"""The subset of all validation examples."""
OUTCOME_COLUMNS = list(dict.fromkeys(measure.column for measure in MEASURES.values()))
"""The columns of an item that differ between runs, such as the predicted label or the loss."""
VARIANT_KEYS = ["constant", "order", "fraction"]
RUN_KEYS = [*VARIANT_KEYS, "seed", "sample"]
"""The columns that identify a run of a model on a task; sample 0 are all training rows."""
ITEM_COLUMNS = [name for name in OUTCOME_TYPES if name not in OUTCOME_COLUMNS]
"""The columns of an item that are the same in every run; an item is a label or a text."""
ITEM_TYPES = {"split": str, "subset": str, "cluster": int}
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
            subset = self.items["subset"].fillna("").to_numpy(str)
            masks |= {
                name: validation & (subset == name)
                for name in sorted(set(subset[validation]))
                if name
            }
        return masks | {
            name: split == name for name in dict.fromkeys(split) if name != "validation"
        }

    def scored(self) -> Iterator[tuple[str, str, np.ndarray]]:
        """Yield what is scored: a subset, a metric, and the mask of the subset; only the main metric scores subsets."""
        for subset, mask in self.subsets().items():
            if mask.any():
                metrics = MEASURES[self.metric].readings if subset == ALL else (self.metric,)
                yield from ((subset, metric, mask) for metric in metrics)

    def examples(self, mask: np.ndarray) -> int:
        """Count the selected texts or sentences."""
        return int(self.items.loc[mask, "example"].nunique())

    def counts(self, metric: str, mask: np.ndarray, values: np.ndarray | None = None) -> Counts:
        """Return the counts `[run, unit, count]` that each text or sentence (unit) of the items adds to a metric.

        `values` `[run, item]` are scored instead of the outcomes of the runs.
        """
        measure = MEASURES[metric]
        values = self.values[measure.column] if values is None else values
        items = {
            name: self.items[name].to_numpy()[mask] for name in ("example", measure.target.right)
        }
        return np.stack(
            [measure.counts(Outcomes.of(measure, items, row[mask], self.names)) for row in values]
        )

    def clusters(self, mask: np.ndarray) -> np.ndarray | None:
        """Return the cluster `[unit]` of each text or sentence in `counts`; None if each is drawn by itself."""
        if "cluster" not in self.items:
            return None
        return self.items[mask].drop_duplicates("example")["cluster"].to_numpy(np.int64)

    def trivial(self, metric: str, mask: np.ndarray) -> Counts:
        """Return the counts `[1, unit, count]` of the best guess that ignores the input; see `counts`."""
        label = self.guess(metric).label
        if label is not None:
            return self.counts(metric, mask, np.full((1, len(self.items)), label))
        return self.counts(metric, mask, self.items["trivial"].to_numpy(float)[None])

    def units(self, mask: np.ndarray) -> np.ndarray:
        """Return the places of texts in the validation split, or the clusters, in ascending order, `[unit]`."""
        return np.unique(
            self.items.loc[mask, "cluster" if "cluster" in self.items else "example"].to_numpy()
        )

    def guess(self, metric: str) -> Guess:
        """Return the best guess that ignores the input, based on the labels of the training rows."""
        measure = MEASURES[metric]
        return (measure.guess or measure.target.guess)(self.names, self.train_counts)

    def settings(self, resampled: bool = False) -> dict[Setting, list[int]]:
        """Return the indices of the runs of each setting: those on all training rows, or those on samples of them."""
        columns = self.runs[[*VARIANT_KEYS, "sample"]].astype(object).where(self.runs.notna(), None)
        indices: dict[Setting, list[int]] = {}
        for index, (constant, order, fraction, sample) in enumerate(columns.to_numpy().tolist()):
            if bool(sample) == resampled:
                base = None if order is None else Order.parse(order).base
                indices.setdefault(Setting(constant, base, fraction), []).append(index)
        return indices

    def sample(self, metric: str, mask: np.ndarray) -> Sample:
        """Score all runs on the selected items by a metric that has floors.

        A model's own head was never trained to read states without attention. If it scores lower on a floor than the
        best guess that ignores the input, that guess replaces the floor.
        """
        measure = MEASURES[metric]
        settings = self.settings()
        counts = self.counts(metric, mask)
        trivial = self.trivial(metric, mask)
        scores = measure.score(counts.sum(1))
        floor = float(measure.score(trivial.sum(1))[0])
        clusters = self.clusters(mask)
        return Sample(
            measure,
            counts,
            scores,
            pseudo_values(measure, by_cluster(counts, clusters)),
            pseudo_values(measure, by_cluster(trivial, clusters))[0],
            settings,
            self.runs,
            floor,
            measure.target.probed,
            self.floors,
            self.units(mask),
            clusters,
            self.settings(resampled=True),
        )


def by_cluster(counts: Counts, clusters: np.ndarray | None) -> Counts:
    """Sum counts `[run, unit, count]` over the units of each cluster `[unit]`; None leaves them as they are."""
    if clusters is None:
        return counts
    # `reduceat` sums neighbours, but the texts of a cluster may be far apart
    order = np.argsort(clusters, kind="stable")
    begins = np.flatnonzero(np.diff(clusters[order], prepend=clusters[order[:1]] - 1))
    summed: Counts = np.add.reduceat(counts[:, order], begins, axis=1)
    return summed


@dataclass(frozen=True)
class Sample:
    """Scores of all runs of a model on a task or a subset by one metric, with the contribution of each example.

    A unit is what intervals resample: a text or a sentence, or a cluster of them.

    Args:
        metric: the metric of the scores.
        counts: `[run, text, count]`, the counts of each text or sentence.
        scores: `[run]`.
        values: pseudo-values `[run, unit]`.
        trivial_values: pseudo-values `[unit]` of the trivial classifier.
        settings: the indices of the runs of each setting.
        runs: a row for each run.
        trivial: the score of the trivial classifier.
        seeded: whether runs depend on a seed.
        floors: the constants of the context-free floors; those that were not run are ignored.
        units: the index of each unit in the corpus, or its cluster, `[unit]`; by default 0, 1, 2, …
        clusters: the cluster of each text or sentence `[text]`; None if each is a unit.
        resampled: the indices of the runs of each setting on samples of the training rows.
    """

    metric: Measure
    counts: Counts
    scores: np.ndarray
    values: np.ndarray
    trivial_values: np.ndarray
    settings: Mapping[Setting, list[int]]
    runs: pd.DataFrame
    trivial: float
    seeded: bool = True
    floors: tuple[str, ...] = CONTEXT_FREE
    units: np.ndarray | None = None
    clusters: np.ndarray | None = None
    resampled: Mapping[Setting, list[int]] = field(default_factory=dict)
    _tables: dict[Setting, pd.DataFrame] = field(default_factory=dict, repr=False)

    def mean(self, setting: Setting) -> float | None:
        """Return the mean score of a setting over its runs; None if there are none."""
        return (
            float(np.mean(self.scores[self.settings[setting]]))
            if setting in self.settings
            else None
        )

    @cached_property
    def floor_settings(self) -> tuple[Setting, ...]:
        """The context-free floors that were run, the one with the highest score first."""
        scores = {
            setting: self.mean(setting)
            for setting in (Setting(name, fraction="0") for name in self.floors)
        }
        known = {setting: score for setting, score in scores.items() if score is not None}
        return tuple(sorted(known, key=known.__getitem__, reverse=True))

    @cached_property
    def guesses(self) -> frozenset[Setting]:
        """The floors of a model's own head that the trivial classifier replaces, because it scores higher."""
        floors = () if self.seeded else self.floor_settings
        return frozenset(
            floor for floor in floors if self.scores[self.settings[floor]].mean() < self.trivial
        )

    @property
    def floor(self) -> float | None:
        """The score of the highest context-free floor, or of the guess that replaces it; None if unknown."""
        if not self.floor_settings:
            return None
        return (
            self.trivial
            if self.floor_settings[0] in self.guesses
            else self.mean(self.floor_settings[0])
        )

    def runs_of(self, setting: Setting) -> pd.DataFrame:
        """Return the index of each run of a setting by order (rows) and seed (columns); every order has these seeds."""
        if setting in self._tables:
            return self._tables[setting]
        runs = self.runs.loc[self.settings[setting]]
        table = pd.DataFrame(
            {"order": runs["order"].fillna("").to_numpy(), "seed": runs["seed"].to_numpy()}
        )
        table = table.assign(index=self.settings[setting]).pivot(
            index="order", columns="seed", values="index"
        )
        return self._tables.setdefault(setting, table.dropna(axis=1).astype(int))

    def samples_of(self, setting: Setting) -> Mapping[str | int, list[int]]:
        """Map each sample of the training rows to the indices of the runs of a setting on it, one for each order."""
        found: dict[str | int, list[int]] = {}
        for index in self.resampled.get(setting, []):
            found.setdefault(int(self.runs["sample"].iloc[index]), []).append(index)
        return found

    @property
    def examples(self) -> int:
        """The number of texts or sentences."""
        return int(self.counts.shape[1])

    @cached_property
    def step(self) -> float:
        """The typical change of a unit's pseudo-value if attention changes its outcome (root mean square).

        Losses change in every unit, and never by chance in none, so only deviations from their mean change count.
        """
        if ORIGINALS not in self.settings or not self.floor_settings:
            return 0.0
        floor = self.floor_settings[0]
        originals = self.runs_of(ORIGINALS)
        floors = self.runs_of(floor)
        seeds = originals.columns.intersection(floors.columns)
        if not len(seeds):
            return 0.0
        with_context, without = (table[seeds].to_numpy()[0] for table in (originals, floors))
        sums = [by_cluster(self.counts[runs], self.clusters) for runs in (with_context, without)]
        differs = (sums[0] != sums[1]).any(-1)
        values = self.trivial_values if floor in self.guesses else self.values[without]
        moved = (self.values[with_context] - values)[differs]
        if self.metric.log_scaled and len(moved):
            moved = moved - moved.mean()
        return float(np.sqrt(np.mean(moved**2))) if len(moved) else 0.0


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
    return spread_over([[scores]], step, guess_as_floor=False)


def spread_over(
    corpora: Sequence[Sequence[Scores]], step: float | None = None, guess_as_floor: bool = True
) -> Spread | None:
    """Return the joint spread of the scores of several tasks of each corpus; see `joint_spread`.

    With `guess_as_floor`, the trivial classifier replaces floors that score lower; see `Sample.guesses`.

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
        trivial = np.broadcast_to(
            first.trivial_values, (*indices[0].shape, len(first.trivial_values))
        )
        values = [
            trivial if guess_as_floor and setting in sample.guesses else sample.values[chosen]
            for (sample, setting), chosen in zip(scores, indices, strict=True)
        ]
        drawn = [sample.samples_of(setting) for sample, setting in scores]
        numbers = _common(drawn)
        resampled = [
            np.broadcast_to(first.trivial_values, (len(numbers), len(first.trivial_values)))
        ]
        resampled += [
            np.stack([sample.values[each[number]].mean(0) for number in numbers])
            if numbers
            else resampled[0]
            for (sample, _), each in zip(scores, drawn, strict=True)
        ]
        about = first.step if step is None else step, first.seeded, first.units
        return PseudoValues(np.stack([trivial, *values]), *about, np.stack(resampled))

    return Spread.over([[table(scores) for scores in tasks] for tasks in corpora])


def _common_runs(scores: Scores) -> list[np.ndarray] | None:
    """Return the runs `[order, seed]` of each setting that all settings have in common; None if there are none."""
    if any(setting not in sample.settings for sample, setting in scores):
        return None
    tables = [sample.runs_of(setting) for sample, setting in scores]
    draws = _common_draws([setting.order for _, setting in scores], tables)
    # without any seed, all have the same columns, which then count as seeds
    any_seeded = any(sample.seeded for sample, _ in scores)
    by_seed = [sample.seeded or not any_seeded for sample, _ in scores]
    seeds = _common(table.columns for table, varies in zip(tables, by_seed, strict=True) if varies)
    runs = list[np.ndarray]()
    for (_, setting), table, varies in zip(scores, tables, by_seed, strict=True):
        columns = seeds if varies else table.columns
        runs.append(table.loc[draws[setting.order], columns].to_numpy())
    draw_counts = [len(indices) for indices in runs if len(indices) != 1]
    # a setting without an order has a single row, which stands for every draw
    draw_count = min(draw_counts, default=1)
    if not seeds or not draw_count:
        return None
    return [np.broadcast_to(indices[:draw_count], (draw_count, len(seeds))) for indices in runs]


def _common_draws(
    orders: Sequence[str | None], tables: Sequence[pd.DataFrame]
) -> dict[str | None, list[str | int]]:
    """Return the draws of each order that all its settings have."""
    by_order: dict[str | None, list[pd.DataFrame]] = {}
    for order, table in zip(orders, tables, strict=True):
        by_order.setdefault(order, []).append(table)
    return {
        order: _common(table.index for table in of_order) for order, of_order in by_order.items()
    }


def _common(indices: Iterable[Iterable[str | int]]) -> list[str | int]:
    return sorted(set.intersection(*map(set, indices)))


def table_of(task_outcomes: Sequence[TaskOutcomes]) -> tuple[pa.Table, dict[str, object]]:
    """Return all outcomes as one table with `COLUMNS`, and facts about each task to record in it."""
    import pyarrow as pa

    # names repeat for every item of every run, and a code takes only 4 bytes
    dictionary = pa.dictionary(pa.int32(), pa.string())
    present = {name for outcomes in task_outcomes for name in outcomes.items}
    columns_of_all = {
        name: form for name, form in COLUMNS.items() if name != "cluster" or name in present
    }
    schema = pa.schema(
        [(name, dictionary if form == "string" else form) for name, form in columns_of_all.items()]
    )
    tables = []
    facts = dict[str, object]()
    for outcomes in task_outcomes:
        facts[outcomes.task] = {
            "label_names": list(outcomes.names),
            "train_counts": list(outcomes.train_counts),
        }
        size = len(outcomes.items)
        runs = len(outcomes.runs)
        of_runs = {
            name: pa.array(outcomes.runs[name], COLUMNS[name], from_pandas=True)
            for name in RUN_KEYS
        }
        shared = outcomes.items.columns.intersection(ITEM_COLUMNS)
        of_items = {
            name: pa.array(outcomes.items[name], COLUMNS[name], from_pandas=True) for name in shared
        }
        columns = {
            name: pa.repeat(getattr(outcomes, name), size * runs) for name in ("model", "task")
        }
        columns |= {
            name: column.take(np.repeat(np.arange(runs), size)) for name, column in of_runs.items()
        }
        columns |= {
            name: column.take(np.tile(np.arange(size), runs)) for name, column in of_items.items()
        }
        columns |= {name: pa.array(values.reshape(-1)) for name, values in outcomes.values.items()}
        arrays = [
            columns[field.name].cast(field.type)
            if field.name in columns
            else pa.nulls(size * runs, field.type)
            for field in schema
        ]
        tables.append(pa.table(arrays, schema=schema))
    return pa.concat_tables(tables).combine_chunks(), {
        "tasks": facts,
        "floors": task_outcomes[0].floors,
    }


def outcomes_in(table: pa.Table, about: Mapping[str, Any]) -> Iterator[TaskOutcomes]:
    """Read back the outcomes that `table_of` returned, with the facts of their file."""
    facts = about["tasks"]
    # as codes, because a name for every item of every run would take much memory
    frame = table.to_pandas(strings_to_categorical=True)
    # observed, or pandas would add a group for each pair of categories that does not occur
    for (model, task), rows in frame.groupby(["model", "task"], sort=False, observed=True):
        # columns that only other kinds of tasks have
        rows = rows.dropna(axis=1, how="all")
        size = len(rows) // len(rows.reindex(columns=RUN_KEYS).drop_duplicates())
        runs = rows.iloc[::size].reindex(columns=RUN_KEYS).astype(object).reset_index(drop=True)
        items = rows.iloc[:size].reset_index(drop=True)
        items = items[[name for name in ITEM_COLUMNS if name in items]]
        yield TaskOutcomes(
            str(model),
            str(task),
            facts[str(task)]["metric"],
            tuple(facts[str(task)]["label_names"]),
            tuple(facts[str(task)]["train_counts"]),
            runs.where(runs.notna(), None),
            items.astype({name: form for name, form in ITEM_TYPES.items() if name in items}),
            {
                name: rows[name].to_numpy().reshape(-1, size)
                for name in OUTCOME_COLUMNS
                if name in rows
            },
            tuple(about["floors"]),
        )
