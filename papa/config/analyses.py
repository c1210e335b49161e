"""The table of analyses: the inputs and parameters of each, and the configs that include it.

Each analysis is implemented by a class in `papa.results`. Its entry here only names that class, because planning must
not import pandas. Jobs, rules and the HTML report follow from the entries. To add an analysis, add an entry here and a
module in `papa.results`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import TYPE_CHECKING

from papa.config.artefacts import ARTEFACTS
from papa.config.settings import RUN
from papa.config.stages import AnalysisOf, GridView, TaskOf
from papa.config.variant import AVERAGE_OF, Order

if TYPE_CHECKING:
    from papa.config.job import AnyJob
    from papa.config.study import Plan

Inputs = Mapping[str, Sequence["AnyJob"]]
Parameters = Mapping[str, object]

TABLE_OUTPUTS = {"table": "table", "markdown": "table_md", "latex": "table_tex"}
"""The outputs of every analysis: maps names to keys in `ARTEFACTS`."""
FIGURE_OUTPUTS = {"svg": "figure_svg", "png": "figure_png"}  # the outputs of an analysis with a figure
PATTERNS_OUTPUTS = {"table": "patterns", "markdown": "patterns_md", "latex": "patterns_tex"}
PATTERNS_OUTPUTS |= {"svg": "patterns_svg", "png": "patterns_png"}
"""The outputs of the patterns of a model on a corpus; each pair has its own folder."""


@dataclass(frozen=True)
class Entry:
    """An analysis, as planning needs it."""

    made_by: str  # the class of the analysis, as module:class
    inputs: Callable[[Plan], Inputs]  # the jobs whose outputs the analysis reads, by the name of the input
    parameters: Callable[[Plan], Parameters] = lambda study: {}  # the fields of the class, as JSON
    included: Callable[[Plan], bool] = lambda study: True  # whether a study includes the analysis
    has_figure: bool = False  # whether the analysis has a figure
    # outputs that other analyses do not have, each with its key in `ARTEFACTS`
    more_outputs: Mapping[str, str] = field(default_factory=dict)
    stage: str = ""  # the stage that the table records; the default is the name of the analysis
    version: int = 1  # the version of that stage; raise it when the numbers change

    @property
    def outputs(self) -> dict[str, str]:
        """The key in `ARTEFACTS` of each output."""
        return TABLE_OUTPUTS | (FIGURE_OUTPUTS if self.has_figure else {}) | dict(self.more_outputs)

    def settings(self, name: str, study: Plan) -> AnalysisOf:
        """Return the settings of the analysis `name`."""
        return AnalysisOf(
            name=self.stage or name,
            number=self.version,
            made_by=self.made_by,
            parameters={key: value for key, value in self.parameters(study).items() if value is not None},
        )


def _summary(*names: str) -> Callable[[Plan], Inputs]:
    return lambda study: {name: [study.analysis("summary")] for name in names}


def _tasks(study: Plan) -> object:
    tasks = study.config.tasks
    return {
        task: TaskOf(title=tasks[task].title or task, metric=tasks[task].metric).model_dump(mode="json")
        for _, task in study.config.pairs
    }


def _runs(study: Plan) -> Inputs:
    tasks, probes = dict.fromkeys(task for _, task in study.config.pairs), study.probes()
    clusters = _clusters(study)
    return {
        "runs": probes,
        "outcomes": probes,
        "labels": [job for task in tasks for job in study.labels(task)],
        "subsets": [study.job("prepare_subsets", task=task) for task in tasks if study.config.tasks[task].subset],
        "clusters": [study.job("prepare_clusters", task=task) for task in tasks if isinstance(clusters.get(task), str)],
    }


def _clusters(study: Plan) -> dict[str, str | int]:
    """Map each task whose examples come in clusters to the column of the clusters, or to their size."""
    config, clusters = study.config, dict[str, str | int]()
    for _, task in config.pairs:
        cluster = config.corpora[config.tasks[task].corpus].cluster
        if cluster is not None:
            clusters[task] = cluster
    return clusters


def _summarised(study: Plan) -> Parameters:
    seeds, floors = [list(job.settings.seeds) for job in study.probes()], list(study.config.floors)
    return {"tasks": _tasks(study), "seeds": seeds, "floors": floors, "clusters": _clusters(study) or None}


def _weights(study: Plan) -> Inputs:
    return {"lambdas": study.weights()}


def _seeded_rows(study: Plan) -> object:
    tasks, rows = study.config.tasks, map(_weights_row, study.weights())
    return [row | {"title": tasks[row["task"]].title or row["task"]} for row in rows]


def _published_tasks(study: Plan) -> dict[str, str]:
    """Map each task that the paper has to its published name."""
    tasks = study.config.tasks
    return {name: published for _, name in study.config.pairs if (published := tasks[name].published) is not None}


def _published(study: Plan) -> Parameters:
    tasks, pairs = study.config.tasks, study.config.pairs
    mnli = {task.corpus for task in tasks.values() if task.published == "mnli_mismatched"}
    return {
        "models": {name: study.config.models[name].hub for name, _ in pairs},
        "tasks": _published_tasks(study),
        "more_settings": {f"{AVERAGE_OF}{corpus}": "mnli" for corpus in sorted(mnli)},
        "values": study.sources.published(),
    }


def _claims(study: Plan) -> Parameters:
    grids = [grid_view(study, name).model_dump(mode="json", exclude={"order"}) for name in study.grids]
    return {"grids": grids, "tasks": _tasks(study), "margin": study.config.margin}


ANALYSES = {
    "summary": Entry(
        "papa.results.summary:Summary",
        _runs,
        _summarised,
        more_outputs={"runs": "all_runs", "all_outcomes": "all_outcomes", "curves": "curves"},
        version=4,
    ),
    "claims": Entry(
        "papa.results.claims:ClaimsAnalysis",
        _summary("summary", "all_outcomes"),
        _claims,
        more_outputs={"claims": "claims_json"},
        version=7,
    ),
    "losses": Entry(
        "papa.results.forest:Forest",
        lambda study: {"claims": [study.analysis("claims")]},
        lambda study: {"margin": study.config.margin},
        lambda study: "0" in study.grids[RUN].fractions and bool(study.config.floors),
        has_figure=True,
    ),
    "stability": Entry(
        "papa.results.stability:Stability",
        _weights,
        lambda study: {"learned": _seeded_rows(study)},
        lambda study: len(study.config.ranking.seeds) > 1 and bool(_weights(study)["lambdas"]),
        version=3,
    ),
    "score_and_drop": Entry(
        "papa.results.drops:Drops",
        lambda study: {"grid": [study.analysis(RUN)]},
        included=lambda study: {"0", "1"} <= set(study.grids[RUN].fractions),
        has_figure=True,
        stage="drops",
    ),
    "published": Entry(
        "papa.results.published:Published", _summary("summary"), _published, lambda study: bool(_published_tasks(study))
    ),
}
"""The analyses that any config can have, in the order of the HTML report; grids and patterns depend on the config."""


def reserved_names() -> set[str]:
    """Return the names of tables, which a grid cannot have."""
    paths = [PurePosixPath(artefact.pattern) for artefact in ARTEFACTS.values()]
    return {RUN, *ANALYSES, *(path.stem for path in paths if path.parts[0] == "tables")}


def grid_view(study: Plan, name: str) -> GridView:
    """Return the parts of a grid that its table and figure need."""
    grid, tasks = study.grids[name], study.config.tasks
    return GridView(
        name=name,
        title=grid.title or re.sub("[-_]", " ", name).capitalize(),
        models=grid.models,
        constants=grid.constants,
        orders=grid.order_names,
        fractions=grid.fractions,
        tasks={task: tasks[task].corpus for task in grid.tasks},
        order=tuple(grid.tasks),
    )


def grid_entry(study: Plan, name: str) -> Entry:
    """Return the entry of a grid; `run` has a figure, and so do grids with fractions between 0 and 1."""
    return Entry(
        "papa.results.grids:GridAnalysis",
        _summary("summary"),
        lambda study: grid_view(study, name).model_dump(mode="json"),
        has_figure=name == RUN or bool(set(study.grids[name].fractions) - {"0", "1"}),
        stage="grid",
        version=2,
    )


def patterns_entry(study: Plan, model: str, laid_out: str) -> Entry:
    """Return the entry of the patterns in a model's average attention over a corpus."""
    patterns = study.config.patterns
    return Entry(
        "papa.results.attention_patterns:AttentionPatterns",
        lambda study: {
            "tokens": [study.job("tokenize", model=model, laid_out=laid_out)],
            "constants": [study.averaged(model, laid_out)],
        },
        lambda study: {"heads": patterns and patterns.heads and [list(head) for head in patterns.heads]},
        has_figure=True,
        more_outputs=PATTERNS_OUTPUTS,
        stage="patterns",
    )


def _weights_row(job: AnyJob) -> dict[str, str]:
    """Return the model, task, constant, order and seed of a job's head weights, as far as they apply."""
    row = dict(job.wildcards)
    weights = row.pop("weights", f"lambda-{row.pop('seed', '')}")
    order = Order.parse(weights)
    return row | {"order": order.base} | ({} if order.draw is None else {"seed": str(order.draw)})
