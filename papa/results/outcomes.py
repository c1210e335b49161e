"""Outcomes of every validation example in every run: the only source of scores, floors and losses."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from papa.config.measures import MEASURES, OUTCOME_TYPES, Guess, Measure, measure_of
from papa.config.variant import ALL_REPLACED, CONTEXTLESS, Order
from papa.errors import DamagedArtefact
from papa.files import REBUILD, PathLike, provenance_of, read_table
from papa.method.metrics import Counts, Outcomes, pseudo_values
from papa.results.statistics import Spread

if TYPE_CHECKING:
    import pyarrow as pa

ALL = "all"
"""The subset of all validation examples."""
OUTCOME_COLUMNS = list(dict.fromkeys(measure.column for measure in MEASURES.values()))
"""The columns of an item that differ between runs, such as the predicted label or the loss."""
OF_VARIANT = ["constant", "order", "fraction"]
RUN = [*OF_VARIANT, "seed"]
"""The columns that identify a run of a model and a task."""
ITEM_COLUMNS = [name for name in OUTCOME_TYPES if name not in OUTCOME_COLUMNS]
"""The columns of an item that are the same in every run; an item is a label or a text."""
COLUMNS = dict.fromkeys(("model", "task", "constant", "order", "fraction"), "string") | {"seed": "int64"}
COLUMNS |= OUTCOME_TYPES
"""The columns of the table of all outcomes."""

Setting = tuple[str | None, str | None, str]
"""A constant, an order without its draw or seed, and a fraction."""
ORIGINALS: Setting = (None, None, "1")
FLOOR: Setting = (CONTEXTLESS.removesuffix(f"/{ALL_REPLACED}"), None, "0")


def is_probed(metrics: pd.Series[str]) -> pd.Series[bool]:
    """Select the metrics of probes, which have seeds; the others are metrics of a model's own head."""
    return metrics.isin([name for name, measure in MEASURES.items() if measure.target.probed])


@dataclass(frozen=True)
class TaskOutcomes:
    """All outcomes of one model on one task.

    Args:
        model, task: names in the config.
        metric: the main metric of the task.
        names: the names of the labels; none for losses.
        train_counts: how often each label occurs in the training rows.
        runs: a row for each run, with the columns of `RUN`.
        items: a row for each label or text, with columns of `ITEM_COLUMNS`.
        values: `[run, item]` by column, for some of `OUTCOME_COLUMNS`.
    """

    model: str
    task: str
    metric: str
    names: tuple[str, ...]
    train_counts: tuple[int, ...]
    runs: pd.DataFrame
    items: pd.DataFrame
    values: Mapping[str, np.ndarray]

    @classmethod
    def of(
        cls,
        runs: Sequence[tuple[Mapping[str, str], pd.DataFrame]],
        metric: str,
        names: Sequence[str] = (),
        train_counts: Sequence[int] = (),
    ) -> TaskOutcomes:
        """Join the outcomes of runs of one model on one task.

        Args:
            runs: the record of each run with its outcomes; all have the same items.
            metric, names, train_counts: as above.
        """
        record, frame = runs[0]
        items = frame[[name for name in ITEM_COLUMNS if name in frame]]
        table = pd.DataFrame([{name: run[name] for name in RUN} for run, _ in runs], dtype=object)
        values = {
            str(name): np.stack([outcomes[name] for _, outcomes in runs])
            for name in frame.columns.intersection([*OUTCOME_COLUMNS])
        }
        return cls(record["model"], record["task"], metric, tuple(names), tuple(train_counts), table, items, values)

    @property
    def readings(self) -> tuple[str, ...]:
        """The metric of the task, and the metrics reported with it."""
        return measure_of(self.metric).readings

    @property
    def probed(self) -> bool:
        """Whether probes were trained; otherwise the outcomes are of the model's own head, and there are no seeds."""
        return MEASURES[self.metric].target.probed

    def subsets(self) -> dict[str, np.ndarray]:
        """Select the items of each part that is scored, bool `[item]`: all examples first, further splits last."""
        split = self.items["split"].to_numpy()
        validation = split == "validation"
        parts = {ALL: validation}
        if "subset" in self.items:
            marks = self.items["subset"].fillna("").to_numpy(str)
            parts |= {name: validation & (marks == name) for name in sorted(set(marks[validation])) if name}
        return parts | {name: split == name for name in dict.fromkeys(split) if name != "validation"}

    def examples(self, part: np.ndarray) -> int:
        """Count the texts or sentences in a part."""
        return int(self.items.loc[part, "example"].nunique())

    def counts(self, metric: str, part: np.ndarray, values: np.ndarray | None = None) -> Counts:
        """Return the counts that each text or sentence of a part adds to a metric, `[run, unit, count]`.

        Args:
            metric: one of `MEASURES`.
            part: the items that are scored, bool `[item]`.
            values: outcomes `[run, item]` to count instead of those of the runs.
        """
        measure = MEASURES[metric]
        values = self.values[measure.column] if values is None else values
        items = {name: self.items[name].to_numpy()[part] for name in ("example", measure.target.right)}
        return np.stack([measure.counts(Outcomes.of(measure, items, row[part], self.names)) for row in values])

    def trivial(self, metric: str, part: np.ndarray) -> Counts:
        """Return the counts of the best guess that ignores the input, made from the labels of the training rows.

        Args:
            metric: one of `MEASURES`.
            part: the items that are scored, bool `[item]`.

        Returns:
            `[1, unit, count]`.
        """
        label = self.guess(metric).label
        if label is not None:
            return self.counts(metric, part, np.full((1, len(self.items)), label))
        items = self.items[part]
        size = items["tokens"].to_numpy(float) if "tokens" in items else np.ones(len(items))
        return np.stack([items["trivial"].to_numpy(float), size], axis=-1)[None, size > 0]

    def guess(self, metric: str) -> Guess:
        """Return the best guess that ignores the input."""
        return MEASURES[metric].guess_of(self.names, self.train_counts)

    def by_word(self) -> np.ndarray | None:
        """Return the outcomes `[1, item]` of a tagger that only knows words; None for texts."""
        return self.items["by_word"].to_numpy(np.int64)[None] if "by_word" in self.items else None

    def settings(self) -> dict[Setting, list[int]]:
        """Return the rows of the runs of each setting."""
        columns = self.runs[OF_VARIANT].astype(object).where(self.runs.notna(), None)
        places: dict[Setting, list[int]] = {}
        for place, (constant, order, fraction) in enumerate(columns.to_numpy().tolist()):
            base = None if order is None else Order.parse(order).base
            places.setdefault((constant, base, fraction), []).append(place)
        return places

    def sample(self, metric: str, part: np.ndarray) -> Sample:
        """Score all runs on a part by a metric that has floors.

        A model's own head was never trained to read states without attention, and may do worse than a guess that
        ignores the input. Then that guess is the floor.
        """
        measure, settings = MEASURES[metric], self.settings()
        counts, trivial, tagger = self.counts(metric, part), self.trivial(metric, part), self.by_word()
        scores, floor = measure.score(counts.sum(1)), float(measure.score(trivial.sum(1))[0])
        return Sample(
            measure,
            counts,
            scores,
            pseudo_values(measure, counts),
            pseudo_values(measure, trivial)[0],
            settings,
            self.runs,
            floor,
            None if tagger is None else float(measure.score(self.counts(metric, part, tagger).sum(1))[0]),
            self.probed,
            not self.probed and FLOOR in settings and bool(scores[settings[FLOOR]].mean() < floor),
        )


@dataclass(frozen=True)
class Sample:
    """Scores of all runs of a model on a part of a task by one metric, with the contribution of each example.

    Args:
        metric: the measure of the scores.
        counts: `[run, unit, count]`.
        scores: `[run]`.
        values: pseudo-values `[run, unit]`.
        trivial_values: pseudo-values of the trivial classifier, `[unit]`.
        settings: the rows of each setting.
        runs: a row for each run.
        trivial: the score of the trivial classifier.
        by_word: the score of a tagger that only knows words; None for texts.
        seeded: whether runs depend on a seed.
        guessed: whether the trivial classifier takes the place of the context-free floor, because it scores higher.
    """

    metric: Measure
    counts: Counts
    scores: np.ndarray
    values: np.ndarray
    trivial_values: np.ndarray
    settings: Mapping[Setting, list[int]]
    runs: pd.DataFrame
    trivial: float
    by_word: float | None
    seeded: bool = True
    guessed: bool = False
    _tables: dict[Setting, pd.DataFrame] = field(default_factory=dict, repr=False)

    def mean(self, setting: Setting) -> float | None:
        """Return the mean score of a setting over its runs; None if there are none."""
        return float(np.mean(self.scores[self.settings[setting]])) if setting in self.settings else None

    @property
    def floor(self) -> float | None:
        """The score of the context-free floor or of the trivial classifier in its place; None if neither is known."""
        return self.trivial if self.guessed else self.mean(FLOOR)

    def spread(self, *settings: Setting) -> Spread | None:
        """Return the joint spread of the trivial classifier and of several settings; see `joint_spread`."""
        return joint_spread([(self, setting) for setting in settings], guess_as_floor=self.guessed)

    def runs_of(self, setting: Setting) -> pd.DataFrame:
        """Return the places of a setting's runs by order (rows) and by the seeds that every order has (columns)."""
        if setting in self._tables:
            return self._tables[setting]
        runs = self.runs.loc[self.settings[setting]]
        places = pd.DataFrame({"order": runs["order"].fillna("").to_numpy(), "seed": runs["seed"].to_numpy()})
        table = places.assign(place=self.settings[setting]).pivot(index="order", columns="seed", values="place")
        return self._tables.setdefault(setting, table.dropna(axis=1).astype(int))

    @cached_property
    def step(self) -> float:
        """The distance by which a unit moves the score if attention decides its outcome."""
        if not {ORIGINALS, FLOOR} <= self.settings.keys():
            return 0.0
        first, second = (self.runs_of(setting) for setting in (ORIGINALS, FLOOR))
        seeds = first.columns.intersection(second.columns)
        if not len(seeds):
            return 0.0
        with_context, without = (table[seeds].to_numpy()[0] for table in (first, second))
        differs = (self.counts[with_context] != self.counts[without]).any(-1)
        values = self.trivial_values if self.guessed else self.values[without]
        moved = (self.values[with_context] - values)[differs]
        return float(np.sqrt(np.mean(moved**2))) if len(moved) else 0.0


def joint_spread(
    scores: Sequence[tuple[Sample, Setting]], step: float | None = None, guess_as_floor: bool = False
) -> Spread | None:
    """Return the joint spread of the scores of a trivial classifier and of several settings.

    Quantity 0 is the trivial classifier of the first sample; the others are the settings in their order. Only seeds
    that all settings have are used, and only orders that all settings of the same order name have. If orders of
    several names were drawn or learned several times, the smallest number of them counts for all.

    Args:
        scores: settings, each with the sample that has its runs; all samples are of the same units.
        step: the distance by which a unit moves a score if attention decides its outcome; by default that of the
            first sample.
        guess_as_floor: whether the trivial classifier takes the place of the context-free floor.

    Returns:
        None if a setting was not run, or if the settings have no seed or no order in common.
    """
    if any(setting not in sample.settings for sample, setting in scores):
        return None
    first = scores[0][0]
    names = [order for _, (_, order, _) in scores]
    tables = [sample.runs_of(setting) for sample, setting in scores]
    common = {
        name: _common(table.index for order, table in zip(names, tables, strict=True) if order == name)
        for name in names
    }
    tables = [table.loc[common[name]] for name, table in zip(names, tables, strict=True)]
    seeds = _common(table.columns for table in tables)
    orders = min((len(table) for table in tables if len(table) != 1), default=1)
    if not seeds or not orders:
        return None
    trivial = np.broadcast_to(first.trivial_values, (orders, len(seeds), first.values.shape[1]))
    parts = [trivial]
    for (sample, setting), table in zip(scores, tables, strict=True):
        values = sample.values[table[seeds].to_numpy()[:orders]]
        parts.append(trivial if guess_as_floor and setting == FLOOR else np.broadcast_to(values, trivial.shape))
    return Spread.of(np.stack(parts), first.step if step is None else step, first.seeded)


def _common(several: Iterable[pd.Index]) -> list[Any]:
    return sorted(set.intersection(*map(set, several)))


def assembled(
    runs: Sequence[tuple[Mapping[str, str], PathLike]],
    metrics: Mapping[str, str],
    labels: Mapping[str, PathLike],
    subsets: Mapping[str, PathLike],
) -> list[TaskOutcomes]:
    """Read the outcomes of all runs, by model and task, with the labels and subsets of their items.

    Args:
        runs: the record of each run, and the file of its outcomes.
        metrics: the main metric of each task.
        labels, subsets: the files of labels and subsets, of tasks that have them.

    Raises:
        DamagedArtefact: outcomes belong to another run or to other examples, or labels to other texts.
    """
    groups: dict[tuple[str, str], list[tuple[Mapping[str, str], PathLike]]] = {}
    for record, path in runs:
        groups.setdefault((record["model"], record["task"]), []).append((record, path))
    return [
        _assembled(group, metrics[task], labels.get(task), subsets.get(task)) for (_, task), group in groups.items()
    ]


def _assembled(
    runs: Sequence[tuple[Mapping[str, str], PathLike]],
    metric: str,
    labels: PathLike | None,
    subsets: PathLike | None,
) -> TaskOutcomes:
    frames = dict[PathLike, tuple[pd.DataFrame, Mapping[str, Any]]]()
    outcomes = list[tuple[Mapping[str, str], pd.DataFrame]]()
    corpus, names = "", tuple[str, ...]()
    for record, path in runs:
        if path not in frames:
            table = read_table(path)
            frames = {path: (table.to_pandas().astype({"split": str}), provenance_of(table))}
        several, facts = frames[path]
        frame = several[several["seed"] == record["seed"]].reset_index(drop=True)
        if frame.empty or any(facts.get(name) != record[name] for name in ("model", "task", *OF_VARIANT)):
            raise DamagedArtefact(f"{path} has the outcomes of another run; {REBUILD}.")
        columns = [name for name in ITEM_COLUMNS if name in frame]
        if not outcomes:
            corpus, names = facts["corpus"], tuple(facts.get("label_names", ()))
        elif not frame[columns].equals(outcomes[0][1][columns]):
            raise DamagedArtefact(f"{path} has outcomes of other examples than the other runs of its task; {REBUILD}.")
        outcomes.append((record, frame[frame.columns.intersection(list(OUTCOME_COLUMNS))] if outcomes else frame))
    joined = TaskOutcomes.of(outcomes, metric, names)
    if labels is not None:
        table = _table_of_texts(labels, corpus)
        names, counts = (tuple(provenance_of(table)[name]) for name in ("label_names", "train_counts"))
        joined = replace(joined, names=names, train_counts=counts)
        if "word" in joined.items:
            by_word = _of_items(table, "by_word", joined.items)
            joined = replace(joined, items=joined.items.assign(by_word=by_word))
    if subsets is not None:
        subset = _of_items(_table_of_texts(subsets, corpus), "subset", joined.items)
        joined = replace(joined, items=joined.items.assign(subset=subset))
    return joined


def _table_of_texts(path: PathLike, corpus: str) -> pa.Table:
    """Read a table with a row for each text of a corpus."""
    table = read_table(path)
    if provenance_of(table).get("fingerprint") != corpus:
        raise DamagedArtefact(f"{path} was made from other texts than these outcomes; {REBUILD}.")
    return table


def _of_items(table: pa.Table, column: str, items: pd.DataFrame) -> np.ndarray:
    """Return the value of a column for each item: of its row, or of its word if rows have lists."""
    result = np.empty(len(items), object)
    splits = table.column("split").to_pandas().to_numpy(str)
    values = table.column(column).to_pandas().to_numpy(object)
    words = items["word"].to_numpy() if "word" in items else None
    for split in items["split"].unique():
        in_split, rows = values[splits == split], np.flatnonzero(items["split"] == split)
        examples = items["example"].to_numpy()[rows]
        if words is not None and len(in_split) and isinstance(in_split[0], np.ndarray):
            result[rows] = [in_split[example][word] for example, word in zip(examples, words[rows], strict=True)]
        else:
            result[rows] = in_split[examples]
    return result


def table_of(measured: Sequence[TaskOutcomes]) -> tuple[pa.Table, dict[str, object]]:
    """Return all outcomes as one table with `COLUMNS`, and its facts about each task."""
    import pyarrow as pa

    texts = pa.dictionary(pa.int32(), pa.string())
    schema = pa.schema([(name, texts if form == "string" else form) for name, form in COLUMNS.items()])
    parts, facts = [], dict[str, object]()
    for outcomes in measured:
        facts[outcomes.task] = {"label_names": list(outcomes.names), "train_counts": list(outcomes.train_counts)}
        columns = outcomes.items.columns.intersection(ITEM_COLUMNS)
        items = {name: pa.array(outcomes.items[name], COLUMNS[name], from_pandas=True) for name in columns}
        size = len(outcomes.items)
        for place, run in enumerate(outcomes.runs[RUN].astype(object).to_dict("records")):
            record = {"model": outcomes.model, "task": outcomes.task} | run
            filled = items | {name: pa.array(values[place]) for name, values in outcomes.values.items()}
            for name, value in record.items():
                known = None if pd.isna(value) else value
                filled[str(name)] = pa.repeat(pa.scalar(known, COLUMNS[str(name)]), size)
            arrays = [
                filled[field.name].cast(field.type) if field.name in filled else pa.nulls(size, field.type)
                for field in schema
            ]
            parts.append(pa.table(arrays, schema=schema))
    return pa.concat_tables(parts).combine_chunks(), {"tasks": facts}


def measured_in(table: pa.Table, metrics: Mapping[str, str]) -> Iterator[TaskOutcomes]:
    """Yield the outcomes that `table_of` wrote.

    Args:
        table: all outcomes.
        metrics: the main metric of each task.
    """
    facts = provenance_of(table)["tasks"]
    frame = table.to_pandas(strings_to_categorical=True)
    for (model, task), rows in frame.groupby(["model", "task"], sort=False, observed=True):
        rows = rows.dropna(axis=1, how="all")
        identity = ["split", "example", *rows.columns.intersection(["word"])]
        size = int(rows[identity].duplicated().to_numpy().argmax()) or len(rows)  # the first item occurs again here
        runs = rows.iloc[::size].reindex(columns=RUN).astype(object).reset_index(drop=True)
        items = rows.iloc[:size].reset_index(drop=True)
        items = items[[name for name in ITEM_COLUMNS if name in items]]
        if "by_word" in items and items["by_word"].isna().any():
            items = items.drop(columns="by_word")
        yield TaskOutcomes(
            str(model),
            str(task),
            metrics[str(task)],
            tuple(facts[str(task)]["label_names"]),
            tuple(facts[str(task)]["train_counts"]),
            runs.where(runs.notna(), None),
            items.astype({name: str for name in ("split", "subset") if name in items}),
            {name: rows[name].to_numpy().reshape(-1, size) for name in OUTCOME_COLUMNS if name in rows},
        )
