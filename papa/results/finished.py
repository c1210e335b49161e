"""The finished jobs of a study, read once: outcomes, runs, summary and claims, from which the report is written."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from papa.config.settings import Config
from papa.data.prepare import TEXTS
from papa.files import PathLike, digest_of_json, opened_table, provenance_of, read_provenance, read_table
from papa.plan.jobs import STAGES, AnyJob, Job, Probe, ProbeEncoder, Tokenize, Training
from papa.results.claims import Conclusion, Samples, claims_of, conclusion_of, data_notes, samples_of, tasks_of
from papa.results.outcomes import ITEM_COLUMNS, OUTCOME_COLUMNS, RUN_KEYS, TaskOutcomes, table_of
from papa.results.scores import collect_runs
from papa.results.summary import with_losses
from papa.results.views import grid_views

if TYPE_CHECKING:
    import pyarrow as pa

SPLITS = ("train", "validation")


@dataclass(frozen=True)
class Finished:
    """The finished jobs of a study.

    Args:
        config: the config of the study.
        folder: the folder of its results.
        jobs: all jobs but hidden states and the report.
        data: the table of each corpus.
    """

    config: Config
    folder: Path
    jobs: Sequence[AnyJob]
    data: Mapping[str, Path]

    @classmethod
    def of_plan(cls, plan: Mapping[str, Any], folder: PathLike) -> Finished:
        """Return the finished jobs in a plan, whose paths are relative to the folder."""
        place = lambda path: os.path.normpath(os.path.join(folder, path))  # noqa: E731
        jobs = [
            Job(
                STAGES[made["stage"]].model_validate(made["settings"]),
                made["inputs"],
                {},
                made["name"],
                str(Path(place(made["path"])).parent),
                made["about"],
            )
            for made in plan["artefacts"]
        ]
        data = {name: Path(place(path)) for name, path in plan["data"].items()}
        return cls(Config.model_validate(plan["config"]), Path(folder), jobs, data)

    def of_stage(self, *stages: str, **about: object) -> list[AnyJob]:
        """Return the jobs of some stages with these entries in `about`."""
        return [job for job in self.jobs if job.stage in stages and about.items() <= job.about.items()]

    @cached_property
    def facts(self) -> dict[str, Mapping[str, Any]]:
        """The facts about the table of each corpus."""
        return {name: _facts(path) for name, path in self.data.items()}

    @cached_property
    def packages(self) -> dict[str, list[str]]:
        """The versions of each package with which the study's files were made."""
        versions: dict[str, dict[str, None]] = {}
        for job in self.jobs:
            made = read_provenance(job.output)
            for name, number in (made.packages if made else {}).items():
                versions.setdefault(name, {})[number] = None
        return {name: list(numbers) for name, numbers in versions.items()}

    @cached_property
    def outcomes(self) -> list[TaskOutcomes]:
        """The outcomes of each model on each task, with gold labels, subsets and clusters attached."""
        return [self._task_outcomes(model, task) for model, task in self.config.pairs]

    def outcomes_table(self) -> tuple[pa.Table, dict[str, object]]:
        """Return all outcomes as one table, and facts: what `papa compare` needs to know of tasks and models."""
        table, facts = table_of(self.outcomes)
        tasks: Any = facts["tasks"]
        for name, task in tasks.items():
            settings = self.config.tasks[name]
            corpus = self.config.corpora[settings.corpus]
            task |= {"title": settings.title or name, "metric": settings.metric, "slots": corpus.slots}
            digests = self.facts[settings.corpus]["digests"]["all"]
            texts = {column: digests[column] for column in TEXTS if column in digests}  # not labels of other tasks
            task |= {"texts": digest_of_json(texts), "fidelity": self.config.fidelity}
        packages = {name: ", ".join(numbers) for name, numbers in self.packages.items()}
        models = {
            job.about["model"]: {"files": job.inputs["model"], "precision": self.config.precision, **packages}
            for job in self.of_stage(Tokenize.stage)
        }
        return table, facts | {"models": models, "margin": self.config.margin}

    @cached_property
    def runs(self) -> pd.DataFrame:
        """The scores of all runs: a row for each run, metric and subset."""
        titles = {name: task.title or name for name, task in self.config.tasks.items()}
        return collect_runs([self._run(job) for job in self._probes], self.outcomes, titles)

    @cached_property
    def summary(self) -> pd.DataFrame:
        """Mean scores, drops and losses of all settings."""
        return with_losses(self.runs, self.outcomes)

    @cached_property
    def claims(self) -> pd.DataFrame:
        """The claims about every line of every grid."""
        grids = grid_views(self.config)
        return pd.concat(
            [claims_of(grid, self.summary, self._samples, self.config.margin) for grid in grids], ignore_index=True
        )

    @cached_property
    def conclusion(self) -> Conclusion:
        """The sentences, table and notes that the study ends with, and the records of claims."""
        tasks = pd.concat([tasks_of(grid, self.summary, self._samples) for grid in grid_views(self.config)])
        return conclusion_of(self.claims, tasks, self.config.margin, data_notes(self.config, self.facts, self.summary))

    @cached_property
    def _samples(self) -> Samples:
        return samples_of(self.outcomes)

    @property
    def _probes(self) -> list[AnyJob]:
        return self.of_stage(Probe.stage, ProbeEncoder.stage)

    @cached_property
    def _read(self) -> dict[str, tuple[pa.Table, Mapping[str, Any]]]:
        tables = {job.output: read_table(job.output) for job in self._probes}
        return {path: (table, provenance_of(table)) for path, table in tables.items()}

    def _run(self, job: AnyJob) -> dict[str, Any]:
        """Return the record of a run for the table of runs."""
        about, (_, probed) = job.about, self._read[job.output]
        task, facts = self.config.tasks[about["task"]], self.facts[about["corpus"]]
        laid_out, training = self._laid_out[about["model"], about["corpus"]], Training.of_probe(task)
        rows = {**facts["rows"], "train": training.row_count(facts["rows"]["train"])}
        counts = {"rows": rows, "rows_available": facts["rows_available"], "cut": laid_out["cut"]}
        return {
            **{name: about[name] for name in ("model", "task", "constant", "order", "fraction", "seed")},
            **{name: probed[name] for name in ("kept", "heads")},
            **training.model_dump(exclude={"rows"}),
            "style": laid_out["style"],
            **{f"{name}_{split}": values.get(split, 0) for name, values in counts.items() for split in SPLITS},
        }

    @cached_property
    def _laid_out(self) -> dict[tuple[str, str], Mapping[str, Any]]:
        """The facts about the tokens of each model and corpus; tokens for averages may have the slots of another."""
        return {
            (model, corpus): _facts(job.output)
            for job in self.of_stage(Tokenize.stage)
            for model, corpus in [(job.about["model"], job.about["corpus"])]
            if job.settings.recorded()["slots"] == self.config.corpora[corpus].slots
        }

    def _task_outcomes(self, model: str, task: str) -> TaskOutcomes:
        settings, probes = (
            self.config.tasks[task],
            self.of_stage(Probe.stage, ProbeEncoder.stage, model=model, task=task),
        )
        frames = [self._read[job.output][0].to_pandas().astype({"split": str}) for job in probes]
        items = frames[0][[name for name in ITEM_COLUMNS if name in frames[0]]]
        names, counts = tuple[str, ...](), tuple[int, ...]()
        corpus = self.config.corpora[settings.corpus]
        columns = {f"label {task}": "gold", f"subset {task}": "subset", "cluster": "cluster"}
        table = self._tables[settings.corpus]
        attached = {new: item_values(table, old, items) for old, new in columns.items() if old in table}
        if settings.label is not None:
            labels = self.facts[settings.corpus]["labels"][task]
            names, counts = tuple(labels["names"]), tuple(labels["train_counts"])
            attached["gold"] = attached["gold"].astype(np.int64)
            if "word" in items:
                attached["by_word"] = item_values(
                    table.assign(by_word=pd.Series(_by_word(table, task, counts))), "by_word", items
                )
        if isinstance(corpus.cluster, int):  # the number of consecutive examples in a cluster
            attached["cluster"] = items["example"].to_numpy(np.int64) // corpus.cluster
        elif "cluster" in attached:
            attached["cluster"] = attached["cluster"].astype(np.int64)
        runs = pd.DataFrame([{name: job.about[name] for name in RUN_KEYS} for job in probes], dtype=object)
        values = {name: np.stack([frame[name] for frame in frames]) for name in OUTCOME_COLUMNS if name in frames[0]}
        about = (model, task, settings.metric, names, counts)
        return TaskOutcomes(*about, runs, items.assign(**attached), values, self.config.floors)

    @cached_property
    def _tables(self) -> dict[str, pd.DataFrame]:
        return {name: read_table(path).to_pandas() for name, path in self.data.items() if path.exists()}


def _facts(path: PathLike) -> Mapping[str, Any]:
    with opened_table(path) as file:
        return file.facts


def _by_word(table: pd.DataFrame, task: str, counts: Sequence[int]) -> list[list[int]]:
    """Return, for each word in every row, its most frequent label in the training rows.

    Words that do not occur there get the label with the highest of `counts`.
    """
    counts_by_word: dict[str, Counter[int]] = {}
    train = table[table["split"] == "train"]
    for row, labels in zip(train["words"], train[f"label {task}"], strict=True):
        for word, label in zip(row, labels, strict=True):
            counts_by_word.setdefault(word, Counter())[label] += 1
    label_of = {word: label_counts.most_common(1)[0][0] for word, label_counts in counts_by_word.items()}
    most_frequent = counts.index(max(counts))
    return [[label_of.get(word, most_frequent) for word in row] for row in table["words"]]


def item_values(table: pd.DataFrame, column: str, items: pd.DataFrame) -> np.ndarray:
    """Return each item's value in a column whose cells have one value for a text, or a list of one for each word."""
    result = np.empty(len(items), object)
    words = items["word"].to_numpy() if "word" in items else None
    for split, of_split in table.groupby("split", sort=False)[column]:
        values, rows = of_split.to_numpy(), np.flatnonzero(items["split"] == split)
        examples = items["example"].to_numpy()[rows]
        if words is not None and isinstance(values[0], np.ndarray | list):
            result[rows] = [values[example][word] for example, word in zip(examples, words[rows], strict=True)]
        else:
            result[rows] = values[examples]
    return result
