"""`papa.measure` and `papa measure`: a study without the workflow, which runs the same jobs in this process.

The study has a config like any other, and its results have the same form. So `papa inspect`, `papa compare` and the
workflow also read them.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import compress
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, TypeAlias, cast

from papa.config.analyses import grid_view
from papa.config.freshness import FRESH
from papa.config.job import AnyJob, Job
from papa.config.measures import MASKED
from papa.config.reading import config_of
from papa.config.settings import RUN, SPLITS, Config, check_files
from papa.config.stages import ModelId
from papa.config.study import Study
from papa.data.local_digests import LocalSourceDigests
from papa.data.named import facts_in
from papa.errors import InputError
from papa.files import PathLike, read_table, replacing
from papa.jobs.init import Data, as_config, choices_of, columns_of, look_at
from papa.jobs.stage import performed
from papa.jobs.start import lock, note_places
from papa.model.load import keeping_models, saved
from papa.results.conclusion import Conclusion

if TYPE_CHECKING:
    import altair as alt
    import pandas as pd
    from transformers import PreTrainedModel

Texts: TypeAlias = Sequence[str] | Sequence[tuple[str, str]] | Sequence[Sequence[str]]
"""Texts, pairs of texts (as tuples), or lists of words."""
Labels: TypeAlias = Sequence[str] | Sequence[int] | Sequence[Sequence[str]] | Sequence[Sequence[int]]
"""A label for each text or pair, or a list with one for each word."""

HELD_OUT = 5
"""One in this number of different texts is held out for validation if none is given."""
HEADS = ["constant", "seed", "layer", "head", "value", "rank"]
CURVE = ["task", "constant", "order", "fraction", "kept", "heads", "mean", "low", "high"]
CURVE += ["trivial", "contextless", "status", "loss", "loss_low", "loss_high", "loss_bound"]


@dataclass(frozen=True)
class Measured:
    """The results of `measure`, in a folder with all artefacts and the config that made them."""

    folder: Path
    config: Config
    _temporary: tempfile.TemporaryDirectory[str] | None = field(default=None, repr=False)
    """Deletes the folder when the results are deleted."""

    @property
    def claims(self) -> Claims:
        """Conclusions and the numbers behind them, as in `tables/claims.json`; they print as their sentence."""
        return Claims(Conclusion.read(self._path("claims_json")).to_json())

    @property
    def curve(self) -> pd.DataFrame:
        """Scores, floors and losses of the validation split by the fraction of heads that keep their attention."""
        from papa.results.summary import is_main

        curve: pd.DataFrame = self.summary[is_main(self.summary)][CURVE].reset_index(drop=True)
        return curve

    @property
    def summary(self) -> pd.DataFrame:
        """All rows of `tables/summary.parquet`, including those of subsets and further metrics."""
        from papa.results.summary import read_summary

        return read_summary(self._path("summary"))

    @property
    def heads(self) -> pd.DataFrame:
        """λ and rank of every head, for each constant and seed of λ; the head of rank 0 is replaced first.

        The table is empty if no λ was learned.
        """
        import pandas as pd

        frames = []
        for job in self._study.jobs():
            if job.rule == "train_lambda":
                rows = read_table(self.folder / job.main).to_pandas()
                rows = rows[rows["epoch"] == rows["epoch"].max()].sort_values(["value", "layer", "head"])
                about = {"constant": job.wildcards["constant"], "seed": int(job.wildcards["seed"])}
                frames.append(rows.assign(rank=range(len(rows)), **about)[HEADS].sort_values(["layer", "head"]))
        return pd.concat(frames, ignore_index=True) if frames else pd.DataFrame(columns=HEADS)

    @property
    def page(self) -> Path:
        """Path of the HTML report."""
        return self._path("page")

    def plot(self) -> alt.ConcatChart:
        """Plot scores by the number of heads replaced, with floors and intervals."""
        from papa.results.figures import grid_figure
        from papa.results.grids import rows_of

        grid = grid_view(self._study, RUN)
        return grid_figure(rows_of(grid, self.summary), grid)[0]

    def save(self, folder: PathLike) -> Path:
        """Copy all artefacts to a new folder, and return the path of its HTML report.

        Raises:
            InputError: the folder exists.
        """
        if Path(folder).exists():
            raise InputError(f"{folder} is there already and is never overwritten; give another folder.")
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
    """Conclusions as plain values, which print as a sentence."""

    def __str__(self) -> str:
        return str(self["sentence"])

    __repr__ = __str__


def measure(
    model: PathLike | PreTrainedModel,
    train: Texts,
    labels: Labels | None = None,
    validation: tuple[Texts, Labels] | Texts | None = None,
    settings: Mapping[str, object] | None = None,
    folder: PathLike | None = None,
) -> Measured:
    """Measure how much a model needs attention that depends on its input: a whole study, in this process.

    All results equal those of the workflow with the same config. By default there are five probe seeds, and 1, 1/2,
    1/8 and none of the heads keep their attention.

    Args:
        model: an id on the hub, a folder, an installed package, or a model that transformers has loaded, whose
            tokenizer is that of its `name_or_path`.
        train: texts to average attention over, to learn λ from and to train probes on.
        labels: a label for each text, or a list of labels for each list of words. Without labels, a decoder is
            measured by the loss of its own head, and an encoder by masked language modelling.
        validation: texts and their labels, or only texts if there are no labels. By default, a random fifth of the
            training texts is held out.
        settings: keys of a config to change, such as `{"run": {"seeds": [1, 2, 3]}, "margin": 0.05}`. Keys of `tasks`
            and `corpora` come without the name of the task or corpus, because there is only one of each:
            `{"tasks": {"epochs": 3}}`.
        folder: the folder of results; finished jobs of the same study are not run again. By default a temporary
            folder, which is deleted with the returned object.

    Raises:
        InputError: the model, the texts or a setting cannot be used, or another run writes to the folder.

    >>> study = papa.measure("sentence-transformers/all-MiniLM-L6-v2", texts, labels)  # doctest: +SKIP
    >>> print(study.claims)  # doctest: +SKIP
    """
    temporary = tempfile.TemporaryDirectory(prefix="papa-") if folder is None else None
    where = Path(temporary.name if temporary else os.fspath(folder or "")).absolute()
    rows = dict(zip(SPLITS, _splits(train, labels, validation), strict=True))
    if labels is None and set(rows["train"]) != {"first"}:
        raise InputError("Pairs of texts and lists of words were given without labels; give labels, or single texts.")
    with os.fdopen(lock(where)):
        files = {split: where / "data" / f"{split}.parquet" for split in SPLITS}
        for split, columns in rows.items():
            _write(files[split], columns)
        place = os.fspath(model) if isinstance(model, str | os.PathLike) else saved(model, where / "model")
        paths = {split: str(path) for split, path in files.items()}
        if labels is None:
            data = Data.unlabelled(paths, {"first": "first"}, len(rows["train"]["first"]))
        else:
            data = look_at(files["train"], files["validation"], columns_of(()))
        return _measured(place, data, settings or {}, where, temporary)


def measure_files(
    model: str, train: PathLike, validation: PathLike | None, columns: Sequence[str], folder: PathLike
) -> Measured:
    """Measure a model on texts in files, as the command `papa measure` does.

    Args:
        model: an id on the hub, a folder or an installed package.
        train, validation: the files; by default, the validation file is the one that `papa init` would name.
        columns: columns by their use, as "label=NAME"; the others are guessed.
        folder: see `measure`.

    Raises:
        InputError: see `measure`.
    """
    where = Path(folder).absolute()
    data = look_at(train, validation, columns_of(columns))
    with os.fdopen(lock(where)):
        return _measured(model, data, {}, where)


def _measured(
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
    """Run all jobs of a study that are out of date, or those that some targets need, in this process.

    A job runs after those that it needs, and all jobs share one copy of each model.
    """
    from tqdm.auto import tqdm

    waiting = [job for job in study.jobs(*targets) if study.state(job) != FRESH]
    with keeping_models(), tqdm(waiting, unit=" jobs", file=sys.stderr, disable=None) as bar:
        for job in bar:
            bar.set_description(f"{job.rule.replace('_', ' ')} {' '.join(job.wildcards.values())}"[:60])
            performed(_placed(study, job))


def _placed(study: Study, job: AnyJob) -> AnyJob:
    """Return the job as a process of the workflow reads it."""
    placed = job.placed(study.results)
    return Job.of(study.parameters(job), placed.inputs, placed.outputs, study.config.machine)


# -- the config and the texts -----------------------------------------------------------------------------------------


def _config(model: str, data: Data, settings: Mapping[str, object]) -> Config:
    """Return the config that `papa init` would write for the same model and texts, with some settings changed."""
    from papa.data.tokenize import is_decoder

    facts = facts_in(model) if os.path.isdir(model) else {}
    values = as_config(choices_of("study", model, data, facts))
    if data.metric == MASKED.usual_metric:
        config, (name,) = config_of(values), values["models"]
        if is_decoder(ModelId.of(name, config.models[name]), config.machine):
            values = as_config(choices_of("study", model, data.decoded(), facts))
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
    """Return the columns of both splits."""
    columns = _columns("train", train, labels)
    if validation is None:
        # equal texts stay together, or probes would have learned some validation texts
        keys = [key for key in ("first", "second", "words") if key in columns]
        texts = list(map(str, zip(*(columns[key] for key in keys), strict=True)))
        different = list(dict.fromkeys(texts))
        Random(0).shuffle(different)
        out = set(different[: len(different) // HELD_OUT])
        held_out = [text in out for text in texts]
        if not any(held_out):
            raise InputError(
                f"{len(different)} different texts are too few to hold some out; give validation=(texts, labels)."
            )
        rest = [not out for out in held_out]
        train_rows = {name: list(compress(values, rest)) for name, values in columns.items()}
        return train_rows, {name: list(compress(values, held_out)) for name, values in columns.items()}
    if labels is None:
        return columns, _columns("validation", cast(Texts, validation), None)
    if not (isinstance(validation, tuple) and len(validation) == 2):
        raise InputError("validation is a pair (texts, labels) if there are labels; something else was given.")
    return columns, _columns("validation", *validation)


def _columns(split: str, texts: Texts, labels: Labels | None) -> dict[str, list[object]]:
    """Return texts and labels as columns; raises `InputError` if they do not fit together."""
    if hasattr(texts, "columns"):  # iterating over a table would read the names of its columns
        raise InputError(f"{split} is a table; give one of its columns, as in table['text'].")
    listed: list[object] = list(texts) if not isinstance(texts, str) else []
    if not listed:
        wrong = "is one text" if isinstance(texts, str) else "has no text"
        raise InputError(f"{split} {wrong}; give a list of texts, of pairs of texts or of lists of words.")
    if all(isinstance(text, str) for text in listed):
        columns: dict[str, list[object]] = {"first": listed}
    elif all(isinstance(text, tuple) and len(text) == 2 for text in listed):
        pairs = cast(list[tuple[str, str]], listed)
        columns = {"first": [first for first, _ in pairs], "second": [second for _, second in pairs]}
    elif all(isinstance(text, list) and all(isinstance(word, str) for word in text) for text in listed):
        columns = {"words": listed}
    else:
        raise InputError(
            f"{split} has to contain texts, or tuples of two texts, or lists of words, and all of one form; "
            f"its first is a {type(listed[0]).__name__}."
        )
    if labels is not None:
        if len(listed) != len(labels):
            raise InputError(f"There are {len(listed)} texts and {len(labels)} labels in {split}; give one for each.")
        columns["label"] = list(labels)
    return columns


def _write(path: Path, columns: Mapping[str, list[object]]) -> None:
    """Write columns as Parquet, unless the file has them already."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        table = pa.table(dict(columns))
    except pa.ArrowException as error:
        raise InputError(f"Texts and labels must be of one form each ({error}).") from error
    path.parent.mkdir(parents=True, exist_ok=True)
    with suppress(FileNotFoundError):
        if pq.read_table(path).equals(table):
            return
    with replacing(path) as temporary:
        pq.write_table(table, temporary)
