"""The results of a study as tables, figures and claims, whether `papa run`, `papa measure` or Python made them."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from html import escape
from math import floor
from pathlib import Path
from typing import Any

import altair as alt
import pandas as pd

from papa.config.settings import Config
from papa.config.settings import fraction as lowest_terms
from papa.config.variant import Constant
from papa.errors import InputError
from papa.files import PathLike, read_json, read_table
from papa.method.averages import Constants
from papa.results.figures import grid_figure
from papa.results.forest import COLUMNS as RELIANCE_COLUMNS
from papa.results.reliance import CONTRIBUTED, LOST, RELIANCE
from papa.results.summary import is_main, read_summary
from papa.results.views import grid_views, rows_of
from papa.stages import Average

CURVE_COLUMNS = [
    "model",
    "task",
    "constant",
    "order",
    "fraction",
    "kept",
    "heads",
    "mean",
    "low",
    "high",
    "trivial",
    "context_free",
    "status",
    *LOST,
    *CONTRIBUTED,
    *RELIANCE,
]
AVERAGES = "averages"
"""The folder of a saved study's averages."""
DECIDING = ("model", "corpus", "slots", "kind")
"""All facts that decide a file of averages of a study."""


@dataclass(frozen=True)
class Study:
    """The results of a study: a folder with tables, figures and a report, and the config that they were made with."""

    folder: Path
    config: Config
    _artefacts: Sequence[Mapping[str, Any]] = field(default=(), repr=False)
    """The files that the results were made from, with paths relative to the folder."""
    _temporary: tempfile.TemporaryDirectory[str] | None = field(default=None, repr=False)
    """Deletes the folder when this object is garbage-collected."""

    @property
    def claims(self) -> Claims:
        """Claims and the numbers behind them, as in `tables/claims.json`; printed as a sentence."""
        return Claims(read_json(self.folder / "tables/claims.json"))

    @property
    def reliance(self) -> pd.DataFrame:
        """The points lost with every head replaced, and the reliance, with 95% intervals, by task and subset."""
        if (self.folder / "tables/reliance.parquet").exists():
            return self._table("reliance")
        return pd.DataFrame(columns=list(RELIANCE_COLUMNS))

    @property
    def curve(self) -> pd.DataFrame:
        """Scores, floors and effects on the validation split, by the fraction of heads that keep their attention."""
        rows = self.summary[is_main(self.summary)]
        return rows[CURVE_COLUMNS].reset_index(drop=True)

    @property
    def summary(self) -> pd.DataFrame:
        """All rows of `tables/summary.parquet`, including subsets and other metrics."""
        return read_summary(self.folder / "tables/summary.parquet")

    @property
    def outcomes(self) -> pd.DataFrame:
        """The outcome of every run on every validation example, as in `tables/outcomes.parquet`."""
        return self._table("outcomes")

    @property
    def heads(self) -> pd.DataFrame:
        """λ and rank of every head, for each model, task, constant and λ seed; the head of rank 0 is replaced first.

        The `order` is lambda, or gradient if `value` is a mean absolute gradient. The table is empty if no weights were
        learned.
        """
        return self._table("heads")

    def constants(
        self, task: str, model: str | None = None, constant: str | None = None
    ) -> Constants:
        """Return the averages that replace a model's attention on a task.

        Args:
            task: name of the task in the config.
            model: name of the model in the config; not needed if the study has only one.
            constant: a constant that is computed from texts, such as "average"; by default the first one in the config.

        Raises:
            InputError: the study has no such task, model or constant, or several models, or its averages were deleted.
        """
        config = self.config
        models, tasks = (list(dict.fromkeys(names)) for names in zip(*config.pairs, strict=True))
        every = dict.fromkeys(name for grid in config.analyses.values() for name in grid.constants)
        of_texts = [name for name in every if not Constant.parse(name).data_free]
        corpus = config.tasks[_chosen("task", task, tasks)].corpus
        first = next(iter(of_texts), None)
        replacing = Constant.parse(_chosen("constant", constant or first, of_texts))
        about = (
            _chosen("model", model, models),
            replacing.corpus or corpus,
            config.corpora[corpus].slots,
            replacing.averaged,
        )
        path = self._averages.get(about)
        if path is None or not path.exists():
            missing = path or ", ".join(map(str, about))
            raise InputError(
                f"The averages {missing} are missing; run the study again to compute them."
            )
        return Constants.load(path, replacing.start)

    @property
    def _averages(self) -> dict[tuple[object, ...], Path]:
        """The files of averages, which `save` copies to the folder, by all that decides them."""
        copies = self.folder / AVERAGES
        files: dict[tuple[object, ...], Path] = {}
        for made in self._artefacts:
            if made["stage"] == Average.stage:
                about = tuple(made["about"][name] for name in DECIDING)
                path = Path(made["path"])
                files[about] = copies / path.name if copies.exists() else self.folder / path
        return files

    @property
    def page(self) -> Path:
        """Path of the HTML report."""
        return self.folder / "report/index.html"

    def plot(self) -> alt.ConcatChart:
        """Plot scores against the number of replaced heads, with floors and intervals."""
        grid = grid_views(self.config)[0]
        return grid_figure(rows_of(grid, self.summary), grid)[0]

    def save(self, folder: PathLike) -> Path:
        """Copy the results and averages to a new folder, which `papa.load` reads; return the path of its HTML report.

        Raises:
            InputError: the folder exists.
        """
        target = Path(folder)
        if target.exists():
            raise InputError(
                f"{folder} exists, and papa never overwrites a folder; give another folder."
            )
        for name in ("tables", "figures", "report"):
            if (self.folder / name).exists():
                shutil.copytree(self.folder / name, target / name)
        (target / AVERAGES).mkdir(parents=True)
        for path in self._averages.values():
            if path.exists():
                shutil.copy(path, target / AVERAGES)
        return target / "report/index.html"

    def __repr__(self) -> str:
        return f"<papa.Study: {self.claims}>"

    def _repr_html_(self) -> str:
        return f"<p>{escape(str(self.claims))}</p>{self.curve.to_html(index=False, float_format='{:.3f}'.format)}"

    def _table(self, name: str) -> pd.DataFrame:
        table: pd.DataFrame = read_table(self.folder / f"tables/{name}.parquet").to_pandas()
        return table


class Claims(dict[str, Any]):
    """Claims as plain values, printed as sentences, with a line for each note."""

    def __str__(self) -> str:
        return "\n".join([" ".join(self["sentences"]), *(f"- {note}" for note in self["notes"])])

    __repr__ = __str__


def load(folder: PathLike) -> Study:
    """Load the results of a finished study, without its model and texts.

    Args:
        folder: a results folder of `papa run`, `papa measure` or `papa.measure`, or a folder that `save` wrote.

    Raises:
        InputError: there is no such folder, or it has no results of a finished study.

    >>> study = papa.load("results/mine")  # doctest: +SKIP
    >>> study.reliance, study.constants("mood")  # doctest: +SKIP
    """
    results = Path(folder)
    made_from = min((results / "report").glob("*.json"), default=None)
    if made_from is None or not (results / "report/index.html").exists():
        problem = "is not a folder"
        if results.is_dir():
            problem = "has no HTML report, so it is not a finished study"
        raise InputError(
            f"{folder} {problem}; give a results folder, and finish its study with `papa run`."
        )
    content = read_json(made_from)
    # the current folder may change while the object is in use
    return Study(results.absolute(), Config.model_validate(content["config"]), content["artefacts"])


def write_kept_heads(heads: pd.DataFrame, target: PathLike, fraction: str = "1/2") -> list[Path]:
    """Write the kept heads of each learned order to `target/MODEL-TASK-CONSTANT-ORDER-SEED.csv`, a list for `orders`.

    Args:
        heads: the heads of a study (`Study.heads`).
        target: a folder, made if needed.
        fraction: share of heads that keep their attention.

    Returns:
        The files, with the columns layer and head. The head that is replaced last comes first.
    """
    written = []
    share = Fraction(lowest_terms(fraction))
    if heads.empty:
        raise InputError(
            "The study has no learned order of heads; run it with a fraction between 0 and 1."
        )
    for names, rows in heads.groupby(["model", "task", "constant", "order", "seed"], sort=False):
        best = rows.sort_values("rank", ascending=False)[["layer", "head"]]
        file = Path(target, "-".join(map(str, names)) + ".csv")
        file.parent.mkdir(parents=True, exist_ok=True)
        # rounded as when heads are replaced
        best.head(floor(share * len(best))).to_csv(file, index=False)
        written.append(file)
    return written


def _chosen(noun: str, name: str | None, names: Sequence[str]) -> str:
    """Return `name`, or the only one of `names` if it is None; raise `InputError` if there is no such name."""
    if name is None and len(names) == 1:
        return names[0]
    if name is None or name not in names:
        problem = (
            f"no {noun} {name!r}"
            if name
            else f"several {noun}s"
            if names
            else f"no {noun} computed from texts"
        )
        raise InputError(f"The study has {problem}; give one of: {', '.join(names) or 'none'}.")
    return name
