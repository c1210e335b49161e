"""`papa inspect MODEL`: check whether papa can use a model, and how exactly it computes its hidden states."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path

import pandas as pd
from rich.console import Console

from papa.data.tokenize import missing_packages
from papa.data.weights import facts_in, locate
from papa.model import verification
from papa.model.load import stock_model
from papa.results.table import Row, Table

COLUMNS = {
    "kind": "type",
    "form": "runs",
    "causal": "causal",
    "sizes": "layers × heads (key heads)",
    "stock": "as it is",
    "half": "half replaced",
    "all": "all replaced",
    "own_attention": "heads' own attention",
    "skipped": "skipped",
}
WITH_HEAD = "The checkpoint has a prediction head ({kind})."
WITHOUT_HEAD = (
    "The checkpoint has no prediction head ({kind}); tasks with labels and masked tokens need none."
)
DECODER_WITHOUT_HEAD = (
    "The checkpoint has no prediction head ({kind}), so the metric log_likelihood cannot be used; tasks with labels "
    "need none."
)
SENTENCE_ENCODER = (
    "It is a sentence encoder (modules.json). papa measures hidden states, before the encoder's pooling and "
    "normalisation; to measure those, use papa.replaced_attention."
)
NOTE = (
    "Runs: packed rows of tokens; compact rows, without unused slots, or padded rows, both slower, if the model's own "
    "code computes attention. As it is: the largest distance of hidden states from those of transformers, relative to "
    "their norm. Half and all replaced: the distance from a dense reference; - if the model does not look up its "
    "attention by name. Heads' own attention: the distance from "
    "transformers if each head's constant is its attention to the same text; - if that does not sum to one, as with "
    "sinks. Skipped: the share of queries and keys that papa does not compute if all heads are replaced."
)


def verify(model: str, device: str = "auto") -> Row:
    """Check a model, given as a hub id, a folder or an installed package.

    Raises:
        InputError: the model cannot be loaded.
    """
    folder = locate(model)
    parts: list[str] = []
    if missing := missing_packages(folder, model):
        kind = str(facts_in(folder).get("model_type"))
        verified = verification.Verified(kind, "refused", missing)
    else:
        stock = stock_model(folder, device=device)
        verified = verification.verify(stock)
        sentence = WITH_HEAD
        if stock.base_model is stock:
            sentence = DECODER_WITHOUT_HEAD if verified.causal else WITHOUT_HEAD
        parts = [sentence.format(kind=type(stock).__name__)]
    if Path(folder, "modules.json").is_file():
        parts.append(SENTENCE_ENCODER)
    packages = {name: version(name) for name in ("transformers", "torch")}
    return {"model": model} | asdict(verified) | {"parts": parts} | packages


def print_verified(check: Row, console: Console) -> None:
    """Print a table of the checks, and the reason for a refusal."""
    table = table_of([check])
    frame = pd.DataFrame({"model": table.header, check["model"]: table.rows[0]})
    Table("", frame, 1).print(console)
    if check["why"]:
        console.print(f"{check['model']}: {check['why']}")
    for sentence in check["parts"]:
        console.print(sentence)
    console.print(f"transformers {check['transformers']}, torch {check['torch']}. {NOTE}")


def table_of(models: Sequence[Row]) -> Table:
    """Return a table with a row for each model."""
    frame = pd.DataFrame(models)
    frame["causal"] = frame["causal"].map({True: "yes", False: "no"})
    frame["sizes"] = list(map(_sizes, models))
    frame["skipped"] = frame["skipped"].map("{:.0%}".format, na_action="ignore")
    for name in ("stock", "half", "all", "own_attention"):
        distances = frame[name].map("{:.0e}".format, na_action="ignore")
        frame[name] = distances.replace("0e+00", "0")
    return Table("", frame[list(COLUMNS)].fillna("-").rename(columns=COLUMNS), 1)


def _sizes(check: Row) -> str:
    if not check["layers"]:
        return "-"
    some = f", only layers {', '.join(map(str, check['numbers']))}" if check["numbers"] else ""
    return f"{check['layers']} × {check['heads']} ({check['groups']}){some}"
