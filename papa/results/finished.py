"""The finished jobs of a study, read once: outcomes, runs, summary and claims, from which the report is written."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, cast

import numpy as np
import pandas as pd
import pyarrow as pa

from papa.config.settings import SPLITS, Config
from papa.config.variant import Constant
from papa.data.prepare import TEXTS
from papa.files import PathLike, digest_of_json, read_facts, read_provenance, read_table
from papa.results.claims import (
    Samples,
    claims_of,
    conclusion_of,
    data_notes,
    samples_of,
    tasks_of,
)
from papa.results.orders import orders_of
from papa.results.outcomes import (
    ITEM_COLUMNS,
    OUTCOME_COLUMNS,
    RUN_KEYS,
    TaskOutcomes,
    is_probed,
    table_of,
)
from papa.results.phrases import covered
from papa.results.reliance import effects_of
from papa.results.scores import IDENTITY, collect_runs
from papa.results.summary import summary_of
from papa.results.table import Row
from papa.results.views import grid_views
from papa.stages import AnyJob, Average, Job, Probe, ProbeEncoder, Tokenize

PROBES = (Probe.stage, ProbeEncoder.stage)


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
    def of_plan(cls, plan: Row, folder: PathLike) -> Finished:
        """Return the finished jobs in a plan, whose paths are relative to the folder."""
        jobs = [Job.of_content(made) for made in plan["artefacts"]]
        data = {
            name: Path(os.path.normpath(os.path.join(folder, path)))
            for name, path in plan["data"].items()
        }
        return cls(Config.model_validate(plan["config"]), Path(folder), jobs, data)

    def of_stage(self, *stages: str, **about: object) -> list[AnyJob]:
        """Return the jobs of some stages with these entries in `about`."""
        return [
            job for job in self.jobs if job.stage in stages and about.items() <= job.about.items()
        ]

    def only(self, stage: str, **about: object) -> AnyJob | None:
        """Return the only job of a stage with these entries in `about`; None if there is none."""
        jobs = self.of_stage(stage, **about)
        if len(jobs) > 1:
            raise RuntimeError(f"{len(jobs)} jobs of {stage} have {about}")
        return jobs[0] if jobs else None

    def averages(self, model: str, corpus: str, constant: Constant) -> AnyJob | None:
        """Return the job of the averages from which a constant of a task on `corpus` comes; None if there are none."""
        if constant.data_free:
            return None
        return self.only(
            Average.stage,
            model=model,
            corpus=constant.corpus or corpus,
            slots=self.config.corpora[corpus].slots,
            kind=constant.averaged,
        )

    @cached_property
    def probes(self) -> list[Job[Probe]]:
        """The jobs of all probes."""
        return cast("list[Job[Probe]]", self.of_stage(*PROBES))

    @cached_property
    def facts(self) -> dict[str, Row]:
        """The facts about the table of each corpus."""
        return {name: read_facts(path) for name, path in self.data.items()}

    @cached_property
    def packages(self) -> dict[str, list[str]]:
        """The versions of each package with which the study's files were made."""
        versions: dict[str, list[str]] = {}
        for job in self.jobs:
            made = read_provenance(job.output)
            for name, number in (made.packages if made else {}).items():
                numbers = versions.setdefault(name, [])
                numbers += [number] if number not in numbers else []
        return versions

    @cached_property
    def outcomes(self) -> list[TaskOutcomes]:
        """The outcomes of each model on each task, with gold labels, subsets and clusters attached."""
        return [self._task_outcomes(model, task) for model, task in self.config.pairs]

    def outcomes_table(self) -> tuple[pa.Table, Row]:
        """Return all outcomes as one table, and facts: what `papa compare` needs to know of tasks and models."""
        table, facts = table_of(self.outcomes)
        for name, task in facts["tasks"].items():
            settings = self.config.tasks[name]
            digests = self.facts[settings.corpus]["digests"]["all"]
            # not labels of other tasks
            texts = {column: digests[column] for column in TEXTS if column in digests}
            task |= {
                "title": self.config.titles[name],
                "metric": settings.metric,
                "slots": self.config.corpora[settings.corpus].slots,
                "texts": digest_of_json(texts),
                "fidelity": self.config.fidelity,
            }
        shared: Row = {"precision": self.config.precision}
        shared |= {name: ", ".join(numbers) for name, numbers in self.packages.items()}
        models = {
            job.about["model"]: {"files": job.inputs["model"], **shared}
            for job in self.of_stage(Tokenize.stage)
        }
        return table, facts | {"models": models, "margin": list(self.config.margin)}

    @cached_property
    def runs(self) -> pd.DataFrame:
        """The scores of all runs: a row for each run, metric and subset."""
        runs = [self._run(job) for job in self.probes]
        return collect_runs(runs, self.outcomes, self.config.titles)

    @cached_property
    def summary(self) -> pd.DataFrame:
        """Mean scores, drops and effects of all settings."""
        return summary_of(self.runs, effects_of(self.outcomes))

    @cached_property
    def claims(self) -> pd.DataFrame:
        """The claims about every line of every grid."""
        return pd.concat(
            [
                claims_of(grid, self.summary, self._samples, self.config.margin)
                for grid in grid_views(self.config)
            ],
            ignore_index=True,
        )

    @cached_property
    def conclusion(self) -> Row:
        """The sentences, table and notes that the study ends with, and the records of claims."""
        tasks = pd.concat(
            [
                tasks_of(grid, self.summary, self._samples, self.config.margin)
                for grid in grid_views(self.config)
            ]
        )
        notes = data_notes(self.config, self.facts, self.summary, self._laid_out)
        return conclusion_of(self.claims, tasks, self.config.margin, orders_of(self.runs), notes)

    @cached_property
    def covered(self) -> str:
        """The sources of variance that the intervals of the study cover."""
        return covered(
            probed=bool(is_probed(self.runs["metric"]).any()),
            resampled=any(job.about["sample"] > 1 for job in self.probes),
            ordered=bool(self.claims["orders"].gt(1).any()),
        )

    @cached_property
    def _samples(self) -> Samples:
        return samples_of(self.outcomes)

    def _run(self, job: Job[Probe]) -> Row:
        """Return the record of a run for the table of runs."""
        about = job.about
        probed = read_facts(job.output)
        facts = self.facts[about["corpus"]]
        laid_out = self._laid_out[about["model"], about["corpus"]]
        run = {name: about[name] for name in IDENTITY}
        run |= {"kept": probed["kept"], "heads": probed["heads"], "style": laid_out["style"]}
        run |= job.settings.training.model_dump()
        for split in SPLITS:
            run[f"rows_{split}"] = facts["rows"].get(split, 0)
            run[f"rows_available_{split}"] = facts["rows_available"].get(split, 0)
            run[f"cut_{split}"] = laid_out["cut"].get(split, 0)
        return run

    @cached_property
    def _laid_out(self) -> dict[tuple[str, str], Row]:
        """The facts about the tokens of each model and corpus of a task."""
        tokens = {
            (job.about["model"], job.about["corpus"]): job.reads["tokens"] for job in self.probes
        }
        return {names: read_facts(path) for names, path in tokens.items()}

    def _task_outcomes(self, model: str, task: str) -> TaskOutcomes:
        settings = self.config.tasks[task]
        probes = self.of_stage(*PROBES, model=model, task=task)
        corpus = self.config.corpora[settings.corpus]
        table = self._tables[settings.corpus]
        frames = [read_table(job.output).to_pandas().astype({"split": str}) for job in probes]
        # all probes of a task predict the same items in the same order
        items = frames[0][frames[0].columns.intersection(ITEM_COLUMNS)]
        columns = {f"label {task}": "gold", f"subset {task}": "subset", "cluster": "cluster"}
        attached = {
            new: item_values(table, old, items) for old, new in columns.items() if old in table
        }
        labels = self.facts[settings.corpus]["labels"].get(task, {"names": (), "train_counts": ()})
        if isinstance(corpus.cluster, int):  # the number of consecutive examples in a cluster
            attached["cluster"] = items["example"] // corpus.cluster
        integers = dict.fromkeys(("gold", "cluster") & attached.keys(), np.int64)
        # as objects, because pandas would turn None next to numbers into NaN, and these into floats
        runs = pd.DataFrame([job.about for job in probes], columns=RUN_KEYS, dtype=object)
        outcomes = frames[0].columns.intersection(OUTCOME_COLUMNS)
        return TaskOutcomes(
            model=model,
            task=task,
            metric=settings.metric,
            names=tuple(labels["names"]),
            train_counts=tuple(labels["train_counts"]),
            runs=runs,
            items=items.assign(**attached).astype(integers),
            values={name: np.stack([frame[name] for frame in frames]) for name in outcomes},
            floors=self.config.floors,
        )

    @cached_property
    def _tables(self) -> dict[str, pd.DataFrame]:
        return {name: read_table(path).to_pandas() for name, path in self.data.items()}


def item_values(table: pd.DataFrame, column: str, items: pd.DataFrame) -> pd.Series[Any]:
    """Return each item's value in a column whose cells have one value for a text, or a list of one for each word."""
    rows = table[["split", column]].assign(
        example=table.groupby("split", sort=False, observed=True).cumcount()
    )
    rows = rows[rows["split"].isin(items["split"])]
    keys = ["split", "example"]
    if isinstance(rows[column].iloc[0], np.ndarray | list):
        rows = rows.explode(column)
        rows["word"] = rows.groupby(level=0).cumcount()
        keys.append("word")
    return items[keys].merge(rows.astype({"split": str}), how="left", on=keys)[column]
