"""The part of a config that the tables, figures and claims of a grid need."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import product

import pandas as pd

from papa.config.settings import Config
from papa.config.variant import Constant
from papa.results.outcomes import VARIANT_KEYS
from papa.results.phrases import constant_name, order_name

END_FRACTIONS = {"0", "1"}


@dataclass(frozen=True)
class GridView:
    """The parts of a grid that its table, its figure and its claims need.

    Args:
        name, title: the name in the config, and the title.
        models, constants, orders, fractions: what was run, by the names in the config.
        tasks: the corpus of each task.
    """

    name: str
    title: str
    models: Sequence[str]
    constants: Sequence[str]
    orders: Sequence[str]
    fractions: Sequence[str]
    tasks: Mapping[str, str]

    @property
    def has_between(self) -> bool:
        """Whether some heads are kept and others replaced at any of the fractions."""
        return bool(set(self.fractions) - END_FRACTIONS)

    @property
    def varied(self) -> list[str]:
        """The names of the settings in which the lines of the grid differ; "model" if there is one line."""
        return [name for name, values in self._settings().items() if len(values) > 1] or ["model"]

    @property
    def common_settings(self) -> str:
        """The settings that all lines of the grid share: "Model: minilm; order: λ."."""
        settings = self._settings().items()
        text = "; ".join(f"{name}: {values[0]}" for name, values in settings if len(values) == 1)
        return f"{text[:1].upper()}{text[1:]}." if text else ""

    def line(self, model: str, constant: str, order: str) -> str:
        """Return the name of the line of a model, a constant and an order."""
        names = {
            "model": model,
            "constants": constant_name(constant, self.constants),
            "order": order_name(order),
        }
        return " / ".join(names[name] for name in self.varied)

    def _settings(self) -> dict[str, list[str]]:
        settings = {
            "model": list(self.models),
            "constants": list(map(constant_name, self.constants)),
        }
        if self.has_between:
            settings["order"] = list(map(order_name, self.orders))
        return settings


def grid_views(config: Config) -> list[GridView]:
    """Return the view of each grid of a config, `run` first."""
    return [
        GridView(
            name=name,
            title=grid.title or re.sub("[-_]", " ", name).capitalize(),
            models=grid.models,
            constants=grid.constants,
            orders=grid.order_names,
            fractions=grid.fractions,
            tasks={task: config.tasks[task].corpus for task in grid.tasks},
        )
        for name, grid in config.analyses.items()
    ]


def rows_of(grid: GridView, rows: pd.DataFrame) -> pd.DataFrame:
    """Select the grid's rows from a summary or a table of runs, in the order of the grid and with their `line`.

    With nothing replaced there is no constant, and with everything replaced no order, so these rows belong to several
    lines. The average over a task's own texts is called `average` or `average-of-CORPUS`; a grid may have both.
    """
    # without a fraction between 0 and 1, orders change nothing, and several would repeat lines
    orders = grid.orders if grid.has_between else grid.orders[:1]
    fractions = sorted(grid.fractions, key=Fraction, reverse=True)
    lines = product(grid.tasks.items(), grid.models, grid.constants, orders)
    requested = pd.DataFrame(
        [
            {
                "line": grid.line(model, constant, order),
                "task": task,
                "model": model,
                "fraction": fraction,
                "name": constant,
                "constant": Constant.parse(constant).for_corpus(corpus).name,
                "order": order,
            }
            for (task, corpus), model, constant, order in lines
            for fraction in fractions
        ],
        dtype="str",
    )
    requested.loc[requested["fraction"].eq("1"), ["name", "constant"]] = None
    requested.loc[requested["fraction"].isin(END_FRACTIONS), "order"] = None
    # pandas merges missing keys with each other, so rows without a constant or an order are found, too
    grid_rows = requested.merge(rows, on=["task", "model", *VARIANT_KEYS])
    return grid_rows.assign(constant=grid_rows["name"])[["line", *rows.columns]]
