"""The analyses: an entry says what one reads, which parameters it has, and whether a config asks for it.

A class in `papa.results` computes and shows an analysis. An entry only names it, because plans read this table and
must not import pandas. Jobs, rules and the HTML report follow from the entries. A new analysis is one entry here
and one module there.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import TYPE_CHECKING

from papa.config.artefacts import ARTEFACTS
from papa.config.settings import RUN
from papa.config.stages import AnalysisOf, GridView, TaskOf
from papa.config.variant import LADDER, OF, Constant, Order

if TYPE_CHECKING:
    from papa.config.job import AnyJob
    from papa.config.study import Study

Inputs = Mapping[str, Sequence["AnyJob"]]
Parameters = Mapping[str, object]

TABLE = {"table": "table", "markdown": "table_md", "latex": "table_tex"}
FIGURE = {"svg": "figure_svg", "png": "figure_png", "html": "figure_html"}
"""The files of every analysis and of one with a figure: the name of the output, and the artefact."""
PATTERNS = {"table": "patterns", "markdown": "patterns_md", "latex": "patterns_tex"}
PATTERNS |= {"svg": "patterns_svg", "png": "patterns_png", "html": "patterns_html"}
"""The files of the patterns of a model and a corpus, which have folders of their own."""


@dataclass(frozen=True)
class Entry:
    """An analysis as plans know it.

    Args:
        made_by: its class, as module:class.
        inputs: the jobs whose outputs it reads, by the name of the input.
        parameters: the fields of the class, as JSON.
        wanted: whether a config asks for it.
        drawn: whether it has a figure.
        more: outputs that no other analysis has: the name of the output, and the artefact.
        stage, version: what its table records; raise the version if the numbers change. The stage is called like the
            analysis unless it has another name here.
    """

    made_by: str
    inputs: Callable[[Study], Inputs]
    parameters: Callable[[Study], Parameters] = lambda study: {}
    wanted: Callable[[Study], bool] = lambda study: True
    drawn: bool = False
    more: Mapping[str, str] = field(default_factory=dict)
    stage: str = ""
    version: int = 1

    @property
    def outputs(self) -> dict[str, str]:
        """The artefact of each output."""
        return TABLE | (FIGURE if self.drawn else {}) | dict(self.more)

    def settings(self, name: str, study: Study) -> AnalysisOf:
        """The settings of the job of the analysis `name`."""
        return AnalysisOf(
            name=self.stage or name,
            number=self.version,
            made_by=self.made_by,
            parameters={key: value for key, value in self.parameters(study).items() if value is not None},
        )


def _summary(*names: str) -> Callable[[Study], Inputs]:
    return lambda study: {name: [study.analysis("summary")] for name in names}


def _tasks(study: Study) -> object:
    tasks = study.config.tasks
    return {
        task: TaskOf(title=tasks[task].title or task, metric=tasks[task].metric).model_dump(mode="json")
        for _, task in study.config.pairs
    }


def _plots(study: Study) -> object:
    return study.config.plots.model_dump(mode="json")


def _runs(study: Study) -> Inputs:
    tasks, probes = dict.fromkeys(task for _, task in study.config.pairs), study.probes()
    return {
        "runs": probes,
        "outcomes": probes,
        "labels": [job for task in tasks for job in study.labels(task)],
        "subsets": [study.job("prepare_subsets", task=task) for task in tasks if study.config.tasks[task].subset],
    }


def _weights_of_heads(study: Study) -> Inputs:
    return {"lambdas": study.weights()}


def _seeds(study: Study) -> object:
    return [list(job.settings.seeds) for job in study.probes()]


def _grids(study: Study) -> object:
    return [grid_view(study, name).model_dump(mode="json", exclude={"order"}) for name in study.grids]


def _weights(study: Study) -> object:
    tasks = study.config.tasks
    about = [about_weights(job) for job in study.weights()]
    return [row | {"title": tasks[row["task"]].title or row["task"]} for row in about]


def _fractions_between(study: Study) -> object:
    fractions = dict.fromkeys(fraction for grid in study.grids.values() for fraction in grid.fractions)
    return [fraction for fraction in fractions if fraction not in ("0", "1")]


def _several_weights(study: Study) -> bool:
    """Whether a task has several weights of heads: of seeds, halves of the texts or other measures."""
    of = Counter(tuple(map(job.wildcards.get, ("model", "task", "constant"))) for job in study.weights())
    return max(of.values(), default=0) > 1


def _several_rungs(study: Study) -> bool:
    """Whether a model and a task are run with several rungs above zeros in place of every head."""
    rungs = {Constant(kind) for kind in LADDER[1:]}
    return any(
        len({variant.constant for variant in study.variants(*pair) if not variant.fraction} & rungs) > 1
        for pair in study.config.pairs
    )


def _published(study: Study) -> Parameters:
    tasks, run = study.config.tasks, study.config.pairs
    mnli = {task.corpus for task in tasks.values() if task.published == "mnli_mismatched"}
    return {
        "models": {name: study.config.models[name].hub for name, _ in run},
        "tasks": {name: published for _, name in run if (published := tasks[name].published) is not None},
        "more_settings": {f"{OF}{corpus}": "mnli" for corpus in sorted(mnli)},
        "values": study.sources.published(),
    }


ANALYSES = {
    "summary": Entry(
        "papa.results.summary:Summary",
        _runs,
        lambda study: {"tasks": _tasks(study), "seeds": _seeds(study)},
        more={"runs": "all_runs", "all_outcomes": "all_outcomes", "curves": "curves"},
        version=2,
    ),
    "claims": Entry(
        "papa.results.claims:ClaimsAnalysis",
        _summary("summary", "all_outcomes", "curves"),
        lambda study: {"grids": _grids(study), "tasks": _tasks(study), "margin": study.config.margin},
        more={"claims": "claims_json"},
        version=4,
    ),
    "stability": Entry(
        "papa.results.stability:Stability",
        _weights_of_heads,
        lambda study: {"learned": _weights(study), "fractions": _fractions_between(study)},
        _several_weights,
        version=2,
    ),
    "score_and_drop": Entry(
        "papa.results.drops:Drops",
        lambda study: {"grid": [study.analysis(RUN)]},
        lambda study: {"plots": _plots(study)},
        lambda study: {"0", "1"} <= set(study.grids[RUN].fractions),
        drawn=True,
        stage="drops",
    ),
    "ladder": Entry(
        "papa.results.ladder:Ladder",
        _summary("all_outcomes"),
        lambda study: {"tasks": _tasks(study), "plots": _plots(study)},
        _several_rungs,
        drawn=True,
    ),
    "published": Entry(
        "papa.results.published:Published",
        _summary("summary"),
        _published,
        lambda study: any(study.config.tasks[task].published for _, task in study.config.pairs),
    ),
}
"""The analyses of every config, in the order of the HTML report; grids and patterns are named by a config."""


def taken_names() -> set[str]:
    """The tables of every config; no grid can be called like one of them."""
    paths = [PurePosixPath(artefact.pattern) for artefact in ARTEFACTS.values()]
    return {RUN, *ANALYSES, *(path.stem for path in paths if path.parts[0] == "tables")}


def grid_view(study: Study, name: str) -> GridView:
    """The view of a grid: the lines, columns and tasks of its table and figure."""
    grid = study.grids[name]
    return GridView(
        name=name,
        title=grid.title or re.sub("[-_]", " ", name).capitalize(),
        models=grid.models,
        constants=grid.constants,
        orders=grid.orders,
        fractions=grid.fractions,
        tasks={task: study.config.tasks[task].corpus for task in grid.tasks},
        plots=study.config.plots,
        drawn=grid_drawn(study, name),
        order=tuple(grid.tasks),
    )


def grid_drawn(study: Study, name: str) -> bool:
    """Whether a grid has a figure: `run`, and those with fractions between 0 and 1."""
    return name == RUN or bool(set(study.grids[name].fractions) - {"0", "1"})


def grid_entry(study: Study, name: str) -> Entry:
    """The entry of a grid."""
    return Entry(
        "papa.results.grids:GridAnalysis",
        _summary("summary"),
        lambda study: grid_view(study, name).model_dump(mode="json"),
        drawn=grid_drawn(study, name),
        stage="grid",
    )


def patterns_entry(study: Study, model: str, laid_out: str) -> Entry:
    """The entry of the patterns of a model's average attention over a corpus."""
    patterns = study.config.patterns
    return Entry(
        "papa.results.attention_patterns:AttentionPatterns",
        lambda study: {
            "tokens": [study.job("tokenize", model=model, laid_out=laid_out)],
            "constants": [study.averaged(model, laid_out)],
        },
        lambda study: {
            "heads": patterns and patterns.heads and [list(head) for head in patterns.heads],
            "plots": _plots(study),
        },
        drawn=True,
        more=PATTERNS,
        stage="patterns",
    )


def about_weights(job: AnyJob) -> dict[str, str]:
    """Which model, task, constant and part the weights of a job belong to, and which order and seed."""
    about = dict(job.wildcards)
    order = Order.parse(about.pop("weights", f"lambda-{about.pop('seed', '')}"))
    return about | {"order": order.base} | ({} if order.draw is None else {"seed": str(order.draw)})
