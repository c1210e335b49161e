"""`papa.measure` and `papa measure`: run a study's jobs in this process, without the workflow.

The study has an ordinary config and ordinary results, so `papa inspect`, `papa compare` and the workflow can read them.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import compress
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, TypeAlias, cast

from papa.config.analyses import grid_view
from papa.config.freshness import FRESH
from papa.config.job import AnyJob, Job
from papa.config.reading import config_of
from papa.config.settings import RUN, SPLITS, Config, Machine, check_files
from papa.config.stages import ModelId
from papa.config.study import Study
from papa.config.variant import RETRAINED
from papa.data.local_digests import LocalSourceDigests
from papa.data.named import facts_in, named
from papa.data.snapshots import with_snapshots
from papa.errors import InputError
from papa.files import PathLike, read_table, replacing
from papa.jobs.display import shown_here
from papa.jobs.init import Data, as_config, choices_of, columns_of, look_at
from papa.jobs.stage import performed
from papa.jobs.start import lock, note_places
from papa.model.load import keeping_models, saved
from papa.results.conclusion import Conclusion
from papa.results.leakage import leakage_note

if TYPE_CHECKING:
    import altair as alt
    import pandas as pd
    from transformers import PreTrainedModel

Texts: TypeAlias = Sequence[str] | Sequence[tuple[str, str]] | Sequence[Sequence[str]]
"""Texts, pairs of texts (tuples), or lists of words."""
Labels: TypeAlias = Sequence[str] | Sequence[int] | Sequence[Sequence[str]] | Sequence[Sequence[int]]
"""One label per text or pair, or one list of labels per list of words."""

HELD_OUT_ONE_IN = 5
"""If no validation texts are given, one of this many distinct texts is held out."""
HEAD_COLUMNS = ["constant", "seed", "layer", "head", "value", "rank"]
CURVE_COLUMNS = ["task", "constant", "order", "fraction", "kept", "heads", "mean", "low", "high"]
CURVE_COLUMNS += ["trivial", "contextless", "status", "loss", "loss_low", "loss_high", "loss_bound"]


@dataclass(frozen=True)
class Measured:
    """The results of `measure`: a folder with all artefacts, and the config that they were made with."""

    folder: Path
    config: Config
    _temporary: tempfile.TemporaryDirectory[str] | None = field(default=None, repr=False)
    """Deletes the folder when this object is garbage-collected."""

    @property
    def claims(self) -> Claims:
        """Claims and the numbers behind them, as in `tables/claims.json`; printed as a sentence."""
        claims = Claims(Conclusion.read(self._path("claims_json")).to_json())
        corpora = (self.config.tasks[task].corpus for _, task in self.config.pairs)
        return Claims(claims | ({"leakage": note} if (note := leakage_note(self.folder, corpora)) else {}))

    @property
    def curve(self) -> pd.DataFrame:
        """Scores, floors and losses on the validation split, by the fraction of heads that keep their attention."""
        from papa.results.summary import is_main

        rows = self.summary[is_main(self.summary) & self.summary["adapt"].eq(RETRAINED)]
        curve: pd.DataFrame = rows[CURVE_COLUMNS].reset_index(drop=True)
        return curve

    @property
    def summary(self) -> pd.DataFrame:
        """All rows of `tables/summary.parquet`, including subsets and other metrics."""
        from papa.results.summary import read_summary

        return read_summary(self._path("summary"))

    @property
    def heads(self) -> pd.DataFrame:
        """λ and rank of every head, for each constant and λ seed; the head of rank 0 is replaced first.

        The table is empty if no λ was trained.
        """
        import pandas as pd

        frames = []
        for job in self._study.jobs():
            if job.rule == "train_lambda":
                rows = read_table(self.folder / job.main).to_pandas()
                rows = rows[rows["epoch"] == rows["epoch"].max()].sort_values(["value", "layer", "head"])
                about = {"constant": job.wildcards["constant"], "seed": int(job.wildcards["seed"])}
                frames.append(rows.assign(rank=range(len(rows)), **about)[HEAD_COLUMNS].sort_values(["layer", "head"]))
        return pd.concat(frames, ignore_index=True) if frames else pd.DataFrame(columns=HEAD_COLUMNS)

    @property
    def page(self) -> Path:
        """Path of the HTML report."""
        return self._path("page")

    def plot(self) -> alt.ConcatChart:
        """Plot scores against the number of replaced heads, with floors and intervals."""
        from papa.results.figures import grid_figure
        from papa.results.grids import rows_of

        grid = grid_view(self._study, RUN)
        return grid_figure(rows_of(grid, self.summary), grid)[0]

    def save(self, folder: PathLike) -> Path:
        """Copy all artefacts to a new folder, and return the path of the HTML report in it.

        Raises:
            InputError: the folder exists.
        """
        if Path(folder).exists():
            raise InputError(f"{folder} exists, and papa never overwrites a folder; give another folder.")
        shutil.copytree(self.folder, folder)
        return Path(folder) / self.page.relative_to(self.folder)

    def __repr__(self) -> str:
        return f"<papa.measure: {self.claims}>"

    def _repr_html_(self) -> str:
        from html import escape

        return f"<p>{escape(str(self.claims))}</p>{self.curve.to_html(index=False, float_format='{:.3f}'.format)}"

    @property
    def _study(self) -> Study:
        return Study(self.config, self.folder, LocalSourceDigests(self.config.machine))

    def _path(self, artefact: str) -> Path:
        return self.folder / self._study.path(artefact)


class Claims(dict[str, object]):
    """Claims as plain values, printed as sentences; `leakage` is about validation rows that are also in training."""

    def __str__(self) -> str:
        return " ".join(str(self[name]) for name in ("sentence", "leakage") if name in self)

    __repr__ = __str__


def measure(
    model: PathLike | PreTrainedModel,
    train: Texts,
    labels: Labels | None = None,
    validation: tuple[Texts, Labels] | Texts | None = None,
    settings: Mapping[str, object] | None = None,
    folder: PathLike | None = None,
) -> Measured:
    """Measure how much a model needs input-dependent attention: run a whole study in this process.

    All results equal those of the workflow with the same config. By default, papa trains probes with five seeds, and
    keeps the attention of all, 1/2, 1/8 or none of the heads in turn.

    Args:
        model: a hub id, a folder, an installed package, or a loaded transformers model, whose tokenizer is loaded from
            its `name_or_path`.
        train: texts for averaging attention and for training λ and probes.
        labels: one label per text, or one list of labels per list of words. Without labels, a decoder is measured by
            the loss of its prediction head, and an encoder by masked language modelling.
        validation: texts and their labels, or only texts if there are no labels. By default, a random fifth of the
            training texts is held out.
        settings: config keys to change, such as `{"run": {"seeds": [1, 2, 3]}, "margin": 0.05}`. Below `models`,
            `tasks` and `corpora`, leave out the name, because there is only one of each: `{"tasks": {"epochs": 3}}`.
        folder: folder for the results; finished jobs of the same study are not run again. By default a temporary
            folder, which is deleted together with the returned object.

    Raises:
        InputError: the model, the texts or a setting cannot be used, or another run is writing to the folder.

    >>> study = papa.measure("sentence-transformers/all-MiniLM-L6-v2", texts, labels)  # doctest: +SKIP
    >>> print(study.claims)  # doctest: +SKIP
    """
    temporary = tempfile.TemporaryDirectory(prefix="papa-") if folder is None else None
    results = Path(temporary.name if temporary else os.fspath(folder or "")).absolute()
    rows = dict(zip(SPLITS, _splits(train, labels, validation), strict=True))
    if labels is None and set(rows["train"]) != {"first"}:
        raise InputError("Pairs of texts or lists of words were given without labels; give labels, or single texts.")
    with os.fdopen(lock(results)):
        files = {split: results / "data" / f"{split}.parquet" for split in SPLITS}
        for split, columns in rows.items():
            _write(files[split], columns)
        location = os.fspath(model) if isinstance(model, str | os.PathLike) else saved(model, results / "model")
        paths = {split: str(path) for split, path in files.items()}
        if labels is None:
            data = Data.unlabelled(paths, {"first": "first"}, len(rows["train"]["first"]))
        else:
            data = look_at(files["train"], files["validation"], columns_of(()))
        return _run_study(location, data, settings or {}, results, temporary)


def measure_files(
    model: str, train: PathLike, validation: PathLike | None, columns: Sequence[str], folder: PathLike
) -> Measured:
    """Measure a model on texts in files, as the command `papa measure` does.

    Args:
        model: a hub id, a folder or an installed package.
        train, validation: the files; the default validation file is the one that `papa init` chooses.
        columns: columns by role, as "label=NAME"; papa guesses the others.
        folder: see `measure`.

    Raises:
        InputError: see `measure`.
    """
    results = Path(folder).absolute()
    named(model)
    data = look_at(train, validation, columns_of(columns))
    with os.fdopen(lock(results)):
        return _run_study(model, data, {}, results)


def _run_study(
    model: str,
    data: Data,
    settings: Mapping[str, object],
    folder: Path,
    temporary: tempfile.TemporaryDirectory[str] | None = None,
) -> Measured:
    config = _config(model, data, settings)
    check_files(config)
    study = Study(config, folder, LocalSourceDigests(config.machine))
    study.check_weights()
    note_places(study)
    run_here(study)
    return Measured(folder, config, temporary)


def run_here(study: Study, *targets: AnyJob) -> None:
    """Run all outdated jobs of a study in this process; if there are `targets`, only these and their dependencies.

    A job runs after its dependencies, and all jobs share one copy of each model.
    """
    waiting = [job for job in study.jobs(*targets) if study.state(job) != FRESH]
    machine = with_snapshots(study.config.machine, waiting, print)
    with keeping_models(), shown_here([job.rule for job in waiting]) as run:
        for job in waiting:
            run(" ".join([job.rule, *job.wildcards.values()]), partial(performed, _placed(study, job, machine)))


def _placed(study: Study, job: AnyJob, machine: Machine) -> AnyJob:
    """Rebuild a job from its plain parameters, as a workflow process does, with its paths in the results folder."""
    placed = job.placed(study.results)
    return Job.of(study.parameters(job), placed.inputs, placed.outputs, machine)


# -- the config and the texts -----------------------------------------------------------------------------------------


def _config(model: str, data: Data, settings: Mapping[str, object]) -> Config:
    """Return the config that `papa init` would write for this model and data, with some settings changed."""
    from papa.data.tokenize import is_decoder

    facts = facts_in(model) if os.path.isdir(model) else {}
    values = as_config(choices_of("study", model, data, facts))
    if "label" not in data.columns:
        config, (name,) = config_of(values), values["models"]
        if is_decoder(ModelId.of(name, config.models[name]), config.machine):
            values = as_config(choices_of("study", model, data.for_decoder(), facts))
    for key, value in settings.items():
        if not isinstance(value, Mapping):
            values[key] = value
        elif key in ("models", "tasks", "corpora"):
            (only,) = values[key].values()
            only |= value
        else:
            values[key] = values.get(key, {}) | dict(value)
    return config_of(values)


def _splits(
    train: Texts, labels: Labels | None, validation: tuple[Texts, Labels] | Texts | None
) -> tuple[dict[str, list[object]], dict[str, list[object]]]:
    """Return the columns of the training and the validation split."""
    columns = _columns("train", train, labels)
    if validation is None:
        # copies of a text stay in one split, or probes would be trained on validation texts
        keys = [key for key in ("first", "second", "words") if key in columns]
        texts = list(map(str, zip(*(columns[key] for key in keys), strict=True)))
        distinct = list(dict.fromkeys(texts))
        Random(0).shuffle(distinct)
        validation_texts = set(distinct[: len(distinct) // HELD_OUT_ONE_IN])
        held_out = [text in validation_texts for text in texts]
        if not any(held_out):
            raise InputError(
                f"{len(distinct)} distinct texts are too few to hold some out; give validation=(texts, labels)."
            )
        train_rows = {name: [*compress(values, (not out for out in held_out))] for name, values in columns.items()}
        return train_rows, {name: list(compress(values, held_out)) for name, values in columns.items()}
    if labels is None:
        return columns, _columns("validation", cast(Texts, validation), None)
    if not (isinstance(validation, tuple) and len(validation) == 2):
        raise InputError(
            f"With labels, validation must be a pair (texts, labels); a {type(validation).__name__} was given."
        )
    return columns, _columns("validation", *validation)


def _columns(split: str, texts: Texts, labels: Labels | None) -> dict[str, list[object]]:
    """Return texts and labels as columns; raise `InputError` if they do not match."""
    if hasattr(texts, "columns"):  # iterating over a table yields its column names
        raise InputError(f"{split} is a table; give one of its columns, as in table['text'].")
    listed: list[object] = list(texts) if not isinstance(texts, str) else []
    if not listed:
        problem = "is a single text" if isinstance(texts, str) else "is empty"
        raise InputError(f"{split} {problem}; give a list of texts, of pairs of texts or of lists of words.")
    if all(isinstance(text, str) for text in listed):
        columns: dict[str, list[object]] = {"first": listed}
    elif all(isinstance(text, tuple) and len(text) == 2 for text in listed):
        pairs = cast(list[tuple[str, str]], listed)
        columns = {"first": [first for first, _ in pairs], "second": [second for _, second in pairs]}
    elif all(isinstance(text, list) and all(isinstance(word, str) for word in text) for text in listed):
        columns = {"words": listed}
    else:
        raise InputError(
            f"{split} must contain only texts, only tuples of two texts, or only lists of words; its first item is a "
            f"{type(listed[0]).__name__}."
        )
    if labels is not None:
        if len(listed) != len(labels):
            raise InputError(f"{split} has {len(listed)} texts but {len(labels)} labels; give one label per text.")
        columns["label"] = list(labels)
    return columns


def _write(path: Path, columns: Mapping[str, list[object]]) -> None:
    """Write columns as Parquet, unless the file already contains them."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        table = pa.table(dict(columns))
    except pa.ArrowException as error:
        raise InputError(f"All texts must have one type, and all labels one type ({error}).") from error
    path.parent.mkdir(parents=True, exist_ok=True)
    with suppress(FileNotFoundError):
        if pq.read_table(path).equals(table):
            return
    with replacing(path) as temporary:
        pq.write_table(table, temporary)
