"""The results of a study as tables, figures and claims, whether `papa run`, `papa measure` or Python made them."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from papa.config.analyses import grid_view
from papa.config.artefacts import ARTEFACTS
from papa.config.settings import RUN, Config
from papa.config.study import Plan
from papa.config.variant import TIED, Constant
from papa.errors import InputError
from papa.files import PathLike, read_table, trace_of
from papa.results.caveats import data_caveats
from papa.results.conclusion import Conclusion

if TYPE_CHECKING:
    import altair as alt
    import pandas as pd

    from papa.method.averages import Constants

HEAD_COLUMNS = ["model", "task", "constant", "seed", "layer", "head", "value", "rank"]
CURVE_COLUMNS = ["model", "task", "constant", "order", "fraction", "kept", "heads", "mean", "low", "high"]
CURVE_COLUMNS += ["trivial", "contextless", "status", "loss", "loss_low", "loss_high", "loss_bound"]


@dataclass(frozen=True)
class Study:
    """The results of a study: a folder with all artefacts, and the config that they were made with."""

    folder: Path
    config: Config
    _temporary: tempfile.TemporaryDirectory[str] | None = field(default=None, repr=False)
    """Deletes the folder when this object is garbage-collected."""

    @property
    def claims(self) -> Claims:
        """Claims and the numbers behind them, as in `tables/claims.json`; printed as a sentence."""
        claims = Claims(Conclusion.read(self._path("claims_json")).to_json())
        corpora = {task: self.config.tasks[task].corpus for _, task in self.config.pairs}
        return Claims(claims | ({"caveats": note} if (note := data_caveats(self.folder, corpora)) else {}))

    @property
    def losses(self) -> pd.DataFrame:
        """Losses with every head replaced, and their 95 % intervals, on average, on each task and on its subsets."""
        from papa.results.forest import losses_of

        return losses_of([line for line in Conclusion.read(self._path("claims_json")).lines if line.grid == RUN])

    @property
    def curve(self) -> pd.DataFrame:
        """Scores, floors and losses on the validation split, by the fraction of heads that keep their attention."""
        from papa.results.summary import is_main

        rows = self.summary[is_main(self.summary)]
        curve: pd.DataFrame = rows[CURVE_COLUMNS].reset_index(drop=True)
        return curve

    @property
    def summary(self) -> pd.DataFrame:
        """All rows of `tables/summary.parquet`, including subsets and other metrics."""
        from papa.results.summary import read_summary

        return read_summary(self._path("summary"))

    @property
    def outcomes(self) -> pd.DataFrame:
        """The outcome of every run on every validation example, as in `tables/outcomes.parquet`."""
        outcomes: pd.DataFrame = read_table(self._path("all_outcomes")).to_pandas()
        return outcomes

    @property
    def heads(self) -> pd.DataFrame:
        """λ and rank of every head, for each model, task, constant and λ seed; the head of rank 0 is replaced first.

        The table is empty if no λ was trained.
        """
        import pandas as pd

        frames = []
        for job in self._study.jobs():
            if job.rule == "train_lambda":
                rows = read_table(self.folder / job.main).to_pandas()
                rows = rows[rows["epoch"] == rows["epoch"].max()].sort_values(["value", "layer", "head"])
                about = dict(job.wildcards) | {"seed": int(job.wildcards["seed"])}
                frames.append(rows.assign(rank=range(len(rows)), **about)[HEAD_COLUMNS].sort_values(["layer", "head"]))
        return pd.concat(frames, ignore_index=True) if frames else pd.DataFrame(columns=HEAD_COLUMNS)

    def constants(self, task: str, model: str | None = None, constant: str | None = None) -> Constants:
        """Return the averages that replace a model's attention on a task.

        Args:
            task: name of the task in the config.
            model: name of the model in the config; not needed if the study has only one.
            constant: a constant that is computed from texts, such as "average"; by default the first one in the config.

        Raises:
            InputError: the study has no such task, model or constant, or several models.
        """
        from papa.method.averages import Constants

        models, tasks = (list(dict.fromkeys(names)) for names in zip(*self.config.pairs, strict=True))
        every = dict.fromkeys(name for grid in self.config.analyses.values() for name in grid.constants)
        of_texts = [name for name in every if not Constant.parse(name).data_free]
        corpus = self.config.tasks[_chosen("task", task, tasks)].corpus
        replacing = Constant.parse(_chosen("constant", constant or next(iter(of_texts), None), of_texts))
        (job,) = self._study.constants(_chosen("model", model, models), corpus, replacing)
        averages = Constants.load(self.folder / job.output("constants"))
        return averages.tied(replacing.start) if replacing.start in TIED else averages

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
        """Copy all artefacts to a new folder, which `papa.load` reads; return the path of the HTML report in it.

        Raises:
            InputError: the folder exists.
        """
        if Path(folder).exists():
            raise InputError(f"{folder} exists, and papa never overwrites a folder; give another folder.")
        shutil.copytree(self.folder, folder)
        return Path(folder) / self.page.relative_to(self.folder)

    def __repr__(self) -> str:
        return f"<papa.Study: {self.claims}>"

    def _repr_html_(self) -> str:
        from html import escape

        return f"<p>{escape(str(self.claims))}</p>{self.curve.to_html(index=False, float_format='{:.3f}'.format)}"

    @property
    def _study(self) -> Plan:
        return Plan(self.config, self.folder)

    def _path(self, artefact: str) -> Path:
        return self.folder / ARTEFACTS[artefact].path()


class Claims(dict[str, object]):
    """Claims as plain values, printed as sentences; `caveats` are about the data, see `data_caveats`."""

    def __str__(self) -> str:
        return " ".join(str(self[name]) for name in ("sentence", "caveats") if name in self)

    __repr__ = __str__


def load(folder: PathLike) -> Study:
    """Load the results of a finished study, without its model and texts.

    Args:
        folder: a results folder of `papa run`, `papa measure` or `papa.measure`, or a folder that `save` wrote.

    Raises:
        InputError: there is no such folder, or it has no results of a finished study.

    >>> study = papa.load("results/mine")  # doctest: +SKIP
    >>> study.losses, study.constants("mood")  # doctest: +SKIP
    """
    from papa.results.page import reported_config

    results = Path(folder)
    if (trace := trace_of(results / ARTEFACTS["page"].path())) is None:
        problem = "has no HTML report, so it is not a finished study" if results.is_dir() else "is not a folder"
        raise InputError(f"{folder} {problem}; give a results folder, and finish its study with `papa run`.")
    return Study(results.absolute(), reported_config(trace.settings["config"]))


def _chosen(noun: str, name: str | None, names: Sequence[str]) -> str:
    """Return `name`, or the only one of `names` if it is None; raise `InputError` if there is no such name."""
    if name is None and len(names) == 1:
        return names[0]
    if name is None or name not in names:
        problem = f"no {noun} {name!r}" if name else f"several {noun}s" if names else f"no {noun} computed from texts"
        raise InputError(f"The study has {problem}; give one of: {', '.join(names) or 'none'}.")
    return name
