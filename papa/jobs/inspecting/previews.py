"""The beginning of what a file of papa holds, in plain values, whatever its form.

A preview has `facts` (name to value), `tables` (`title`, `columns`, `rows`, and of how many rows `total`), `heads` (a
value for each head, `[layer][head]`, and what they are), `pictures` (matrices of single heads) and `text` (lines),
each where the file has it.
"""

from __future__ import annotations

import csv
import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

from papa.errors import DamagedArtefact
from papa.files import MEND, SEAL, opened_table, provenance_of, read_json, read_table

ROWS, LINES = 5, 20
"""Of a table and of a text that much is shown."""

RESULT_COLUMNS = ("model", "task", "constant", "order", "fraction")
COLUMNS: dict[str, tuple[str, ...]] = {
    "runs": (*RESULT_COLUMNS, "seed", "subset", "score"),
    "summary": (*RESULT_COLUMNS, "subset", "mean", "half_width", "relative_drop"),
    "grid": (*RESULT_COLUMNS, "subset", "mean", "half_width", "relative_drop"),
    "published": ("model", "task", "setting", "metric", "published", "ours", "half_width", "inside"),
    "patterns": ("layer", "head", "offset", "diagonal_lift", "special_mass", "dominant_rows"),
}
"""Columns of wide tables that are shown; all columns of other tables."""

Shown = dict[str, Any]


def preview(kind: str, path: Path, layer: int | None = None, head: int | None = None) -> Shown:
    """`provenance` and `content` of a whole file of a kind (of `papa.jobs.inspecting.places.KINDS`).

    Raises `DamagedArtefact` where it does not hold what this version of papa writes.
    """
    try:
        if kind != "averages":
            return READERS.get(kind, _nothing)(path)
        from papa.jobs.inspecting.averages import averages

        return _shown(**averages(path, layer, head))
    except KeyError as error:
        raise DamagedArtefact(
            f"{path} is whole but has no {error.args[0]}, so another version of papa wrote it; {MEND}."
        ) from error


def _shown(provenance: Mapping[str, Any], **content: Any) -> Shown:
    said = {name: value for name, value in provenance.items() if value not in (None, "")}
    return {"provenance": said, "content": content}


def _table(title: str, columns: Sequence[str], rows: Sequence[Sequence[Any]], total: int | None = None) -> Shown:
    shown = [list(row) for row in rows]
    return {"title": title, "columns": list(columns), "rows": shown, "total": len(shown) if total is None else total}


def _rows(path: Path, wanted: Sequence[str] = ()) -> Shown:
    """The first rows of any table, and the names and types of its columns."""
    with opened_table(path) as file:
        types = {field.name: str(field.type) for field in file.schema_arrow}
        total, provenance = file.metadata.num_rows, provenance_of(file)
        columns = [name for name in wanted if name in types] or list(types)
        first = next(file.iter_batches(ROWS, columns=columns), None)
        rows = [list(row.values()) for row in first.to_pylist()] if first else []
    facts = {"rows": total, "columns": ", ".join(types)}
    return _shown(provenance, facts=facts, tables=[_table("First rows", columns, rows, total)])


def _of_splits(provenance: Mapping[str, Any]) -> Shown:
    available = provenance.get("rows_available") or {}
    return {
        f"{split} rows": f"{rows:,} of {available.get(split, rows):,}" for split, rows in provenance["rows"].items()
    }


def _texts(path: Path) -> Shown:
    shown = _rows(path)
    shown["content"]["facts"] = _of_splits(shown["provenance"]) | {"columns": shown["content"]["facts"]["columns"]}
    return shown


def _labels(path: Path) -> Shown:
    """How often each label is there in each split."""
    table = read_table(path)
    provenance = provenance_of(table)
    counts: dict[str, Counter[int]] = {}
    for split, label in zip(table.column("split").to_pylist(), table.column("label").to_pylist(), strict=True):
        counts.setdefault(split, Counter()).update(label if isinstance(label, list) else [label])
    names = provenance["label_names"]
    rows = [[name, *(own[number] for own in counts.values())] for number, name in enumerate(names)]
    unit = "words" if str(table.schema.field("label").type).startswith("list") else "rows"
    facts = {"labels": len(names), "column": provenance["column"]}
    return _shown(provenance, facts=facts, tables=[_table(f"Labels, in {unit}", ["label", *counts], rows)])


def _tokens(path: Path) -> Shown:
    shown = _rows(path, ("split", "row", "ids", "slots"))
    provenance = shown["provenance"]
    with opened_table(path) as file:
        table = file.read(columns=["ids", "cut"], use_threads=False)
    lengths = [length for chunk in table.column("ids").chunks for length in chunk.value_lengths().to_pylist()]
    shown["content"]["facts"] = _of_splits(provenance) | {
        "slots": provenance["slots"],
        "tokens": sum(lengths),
        "tokens of an example": f"{sum(lengths) / len(lengths):.1f} on average, {max(lengths)} at most",
        "examples cut": sum(cut > 0 for cut in table.column("cut").to_pylist()),
    }
    return shown


def _lambda(path: Path) -> Shown:
    table = read_table(path).to_pydict()
    epochs = max(table["epoch"])
    last = [
        entry[1:]
        for entry in zip(*(table[name] for name in ("epoch", "layer", "head", "value")), strict=True)
        if entry[0] == epochs
    ]
    values = _by_head(last)
    flat = list(chain.from_iterable(values))
    facts = {"epochs": epochs, "λ": f"{min(flat):.3f} to {max(flat):.3f}"}
    return _shown(
        provenance_of(read_table(path)),
        facts=facts,
        heads={"title": "λ after the last epoch (heads of small λ are replaced first)", "values": values},
    )


def _order(path: Path) -> Shown:
    table = read_table(path)
    ranked = list(zip(*(table.column(name).to_pylist() for name in ("layer", "head", "rank")), strict=True))
    ranked.sort(key=lambda entry: entry[2])

    def said(entries: Sequence[tuple[int, int, int]]) -> str:
        return ", ".join(f"({layer}, {head})" for layer, head, _ in entries)

    facts = {"order": provenance_of(table)["order"], "heads": len(ranked)}
    facts |= {"replaced first (layer, head)": said(ranked[:5]), "replaced last": said(ranked[-5:])}
    heads = {"title": "Rank: the head with 0 is replaced first", "values": _by_head(ranked)}
    return _shown(provenance_of(table), facts=facts, heads=heads)


def _by_head(entries: Sequence[tuple[int, int, Any]]) -> list[list[Any]]:
    """Values given as (layer, head, value) as `[layer][head]`."""
    grid: dict[int, dict[int, Any]] = {}
    for layer, head, value in entries:
        grid.setdefault(layer, {})[head] = value
    return [[own[head] for head in sorted(own)] for _, own in sorted(grid.items())]


def _index(path: Path) -> Shown:
    about = read_json(path)
    shape = f"[{about['tokens']:,} tokens, {about['layers']} layers, {about['hidden']}]"
    facts = {
        "hidden states": f"{about['dtype']} {shape}",
        "rows": "{:,} to before {:,}".format(*about["rows"]),
        "heads": f"{about['kept']} of {about['heads']} input-dependent",
        "constant": about["constant"] or "none",
        "order": about["order"] or "none",
        "splits": ", ".join(f"{split} {rows:,}" for split, _, rows, _ in about["splits"]),
    }
    stored = path.with_suffix(".hidden")
    facts["file of them"] = stored.name if stored.is_file() else "not there; the next job that reads it makes it again"
    own = ("model", "weights", "corpus", "slots", "papa_version")
    return _shown({name: about[name] for name in own}, facts=facts)


def _hidden(path: Path) -> Shown:
    shown = _index(path.with_suffix(".json"))
    del shown["content"]["facts"]["file of them"]
    return shown


def _run(path: Path) -> Shown:
    run = read_json(path)
    facts = {
        run["metric"]: run["score"],
        **{name: score for name, score in run["scores"].items() if name != run["metric"]},
        "heads": f"{run['kept']} of {run['heads']} input-dependent",
        **{name: run[name] for name in ("seed", "learning_rate", "batch_size", "epochs")},
        **_of_splits(run),
    }
    curve = [[epoch["epoch"], epoch["loss"], epoch["score"]] for epoch in run["curve"]]
    tables = [_table("Epochs", ["epoch", "training loss", "validation score"], curve)]
    if run["subsets"]:
        apart = [[name, own["score"], own["examples"]] for name, own in run["subsets"].items()]
        tables.append(_table("Subsets, scored apart", ["subset", run["metric"], "examples"], apart))
    return _shown(run["provenance"], facts=facts, tables=tables)


def _tensors(path: Path) -> Shown:
    from safetensors import safe_open

    with safe_open(path, framework="np") as file:
        metadata = {key: value for key, value in (file.metadata() or {}).items() if key != SEAL}
        shapes = {name: (file.get_slice(name).get_shape(), file.get_slice(name).get_dtype()) for name in file.keys()}  # noqa: SIM118
    values = json.loads(metadata.pop("values", "{}"))
    facts = {name: value for name, value in values.items() if isinstance(value, int | float | str)}
    rows = [[name, " × ".join(map(str, shape)) or "1", kind] for name, (shape, kind) in shapes.items()]
    return _shown(metadata, facts=facts, tables=[_table("Tensors", ["name", "shape", "type"], rows)])


def _json(path: Path) -> Shown:
    content = read_json(path)
    return _shown({}, text=json.dumps(content, indent=1, ensure_ascii=False).splitlines()[:LINES])


def _page(path: Path) -> Shown:
    return _shown({}, text=path.read_text(encoding="utf-8", errors="replace").splitlines()[:LINES])


def _log(path: Path) -> Shown:
    """The last lines; of a progress bar, what was drawn last."""
    lines = path.read_text(encoding="utf-8", errors="replace").split("\n")
    return _shown({}, text=[line.rpartition("\r")[2] for line in lines if line.strip()][-LINES:])


def _benchmark(path: Path) -> Shown:
    with open(path, encoding="utf-8", newline="") as lines:
        measured = next(csv.DictReader(lines, delimiter="\t"), {})
    names = {"s": "seconds", "max_rss": "most memory, MB", "cpu_time": "processor seconds"}
    return _shown({}, facts={words: measured[name] for name, words in names.items() if name in measured})


def _nothing(path: Path) -> Shown:
    return _shown({})


READERS: dict[str, Callable[[Path], Shown]] = {
    "texts": _texts,
    "labels": _labels,
    "tokens": _tokens,
    "lambda": _lambda,
    "order": _order,
    "hidden": _hidden,
    "index": _index,
    "run": _run,
    "tensors": _tensors,
    "json": _json,
    "page": _page,
    "log": _log,
    "benchmark": _benchmark,
    **{name: partial(_rows, wanted=columns) for name, columns in COLUMNS.items()},
    **dict.fromkeys(("score_and_drop", "table"), _rows),
}
