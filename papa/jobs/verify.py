"""`papa verify`: whether models can be used, and how exactly papa computes what they compute."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

import pandas as pd

from papa.results.table import Table

if TYPE_CHECKING:
    from rich.console import Console

COLUMNS = {
    "model": "model",
    "kind": "type",
    "form": "runs",
    "causal": "causal",
    "sizes": "layers × heads (key heads)",
    "stock": "as it is",
    "half": "half replaced",
    "all": "all replaced",
    "own": "own attention",
    "skipped": "skipped",
}
NOTE = (
    "Runs: on packed rows of tokens, or padded as the stock model does, which is slower. As it is: the largest "
    "distance of hidden states from those of transformers, relative to their norm. Half and all replaced: the same "
    "from a dense reference; - if the attention of the model is a module of its own. Own attention: the distance from "
    "transformers if all heads use their own attention to the one text as constants; - if it does not sum to one, as "
    "with sinks. Skipped: the share of queries "
    "and keys that is not computed if all heads are replaced."
)


def verify(places: Sequence[str], device: str = "auto") -> dict[str, Any]:
    """What is found about models, which are folders, ids on the hub or installed packages.

    Raises:
        InputError: a model cannot be loaded.
    """
    from papa.data.weights import found_at
    from papa.model import verification
    from papa.model.load import stock_model

    found = [
        {"model": place} | asdict(verification.verify(stock_model(found_at(place), device=device))) for place in places
    ]
    return {"models": found, "transformers": version("transformers"), "torch": version("torch")}


def print_verified(found: dict[str, Any], console: Console) -> None:
    """Print a table, and why models are refused."""
    table_of(found["models"], ["model"]).print(console)
    for one in found["models"]:
        if one["why"]:
            console.print(f"{one['model']}: {one['why']}")
    console.print(f"transformers {found['transformers']}, torch {found['torch']}. {NOTE}")


def table_of(models: Sequence[dict[str, Any]], names: Sequence[str] = ()) -> Table:
    """Models, a line each; `names` are columns before their type."""
    lines = [
        one
        | {
            "causal": "yes" if one["causal"] else "no",
            "sizes": _sizes(one),
            **{name: _distance(one[name]) for name in ("stock", "half", "all", "own")},
            "skipped": "-" if pd.isna(one["skipped"]) else f"{100 * one['skipped']:.0f} %",
        }
        for one in models
    ]
    shown = [name for name in COLUMNS if name not in ("model",) or name in names]
    frame = pd.DataFrame([[str(line[name]) for name in shown] for line in lines], columns=[COLUMNS[n] for n in shown])
    return Table("", frame, len(names) + 1)


def _sizes(one: dict[str, Any]) -> str:
    if not one["layers"]:
        return "-"
    others = f", of its layers {', '.join(map(str, one['numbers']))}" if one["numbers"] else ""
    return f"{one['layers']} × {one['heads']} ({one['groups']}){others}"


def _distance(value: float) -> str:
    return "-" if pd.isna(value) else "0" if value == 0 else f"{value:.0e}"
