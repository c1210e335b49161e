"""Lists of heads in files of other tools: scores of all heads, scores of all groups, or the names of the best heads.

A group is the heads that share keys and values. docs/lists.md shows the formats.
"""

from __future__ import annotations

import csv
import json
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import numpy as np

from papa.errors import InputError, count, first_line
from papa.files import PathLike, read_table

if TYPE_CHECKING:
    Place = tuple[int, int]
    Shape = tuple[int, int]

PLACE = re.compile(r"\s*([0-9]{1,5})-([0-9]{1,5})\s*")
"""A layer and a head, as in 13-18."""
HEAD_SET = "attn_head_set"
"""The key of a YAML file that contains the best heads."""


@dataclass(frozen=True)
class HeadList:
    """A list of heads, or of groups of heads, and their scores.

    Args:
        path: the file, for messages.
        places: the listed heads or groups, as pairs (layer, head) or (layer, group).
        scores: the scores `[instance, place]`; heads with small scores are replaced first.
        unit: whether heads or groups are listed; None if the file does not show it.
        partial: whether only the best heads are listed.
    """

    path: str
    places: tuple[Place, ...]
    scores: np.ndarray
    unit: Literal["head", "group"] | None = None
    partial: bool = False

    def __post_init__(self) -> None:
        if not self.places:
            raise InputError(f"{self.path} lists no heads; list at least one.")
        twice = next((place for place, times in Counter(self.places).items() if times > 1), None)
        if twice is not None:
            raise InputError(f"{self.path} lists {self._named(twice)} twice; list each once.")
        if not np.isfinite(self.scores).all():
            raise InputError(f"{self.path} has a score that is not a finite number; remove or correct it.")
        layers, heads = self.shape
        missing = {(layer, head) for layer in range(layers) for head in range(heads)} - set(self.places)
        if missing and not self.partial:
            raise InputError(
                f"{self.path} has no score for {self._named(min(missing))}; give every head a score, or list only "
                "the best heads, without scores."
            )

    @property
    def shape(self) -> Shape:
        """The smallest numbers of layers and of heads in a layer that contain all listed heads."""
        layers, heads = zip(*self.places, strict=True)
        return max(layers) + 1, max(heads) + 1

    def filled(self, shape: Shape) -> np.ndarray:
        """Return scores `[instance, layer, head]`; heads that are not listed share a score below all others."""
        values = np.repeat(self.scores.min(axis=1)[:, None] - 1, shape[0] * shape[1], axis=1)
        values[:, np.ravel_multi_index(tuple(zip(*self.places, strict=True)), shape)] = self.scores
        return values.reshape(-1, *shape)

    def on(self, layers: int, heads: int, key_heads: int) -> np.ndarray:
        """Return the mean score of each head of a model, `[layer, head]`; the heads of a group have its score.

        Args:
            layers, heads, key_heads: the model's numbers of layers, of heads in a layer, and of key heads in a layer.

        Raises:
            InputError: the list has another shape than the model.
        """
        has = f"the model has {count(layers, 'layer')} of {count(heads, 'head')} in {count(key_heads, 'group')}"
        widths = {"head": [heads], "group": [key_heads], None: [heads, key_heads]}[self.unit]
        if self.partial:
            width = widths[0]
            beyond = next((place for place in self.places if place[0] >= layers or place[1] >= width), None)
            if beyond is not None:
                raise InputError(f"{self.path} lists {self._named(beyond)}, but {has}; use a list for this model.")
        elif self.shape[0] != layers or self.shape[1] not in widths:
            listed = f"{count(self.shape[0], 'layer')} of {count(self.shape[1], self.unit or 'score')}"
            raise InputError(f"{self.path} has {listed}, but {has}; use a list for this model.")
        else:
            width = self.shape[1]
        by_head: np.ndarray = self.filled((layers, width)).mean(axis=0).repeat(heads // width, axis=1)
        return by_head

    def _named(self, place: Place) -> str:
        return f"{self.unit or 'head'} {place[1]} of layer {place[0]}"


def read_list(path: PathLike) -> HeadList:
    """Read a list of heads; the suffix of the file and its content determine the format.

    Args:
        path: `.tsv`, a line for each layer with the score of each head or group; `.csv`, with the columns layer, head
            (or group) and perhaps score; `.json`, with scores by "layer-head" (a number, or a list with a score for
            each instance), with kept heads by layer, or written by `papa heads --json`; `.yaml`, a list of
            "layer-head"; `.parquet`, head weights of a study.

    Raises:
        InputError: the file cannot be read, has another format, or lists heads twice or incompletely.

    >>> read_list("full_attention_heads.tsv").on(32, 32, 8).shape  # doctest: +SKIP
    (32, 32)
    """
    name, suffix = str(path), Path(path).suffix.lower()
    if suffix == ".parquet":
        return _weights(name)
    if suffix not in FORMS:
        raise InputError(f"{name} is no list of heads that papa can read; its suffix must be one of {SUFFIXES}.")
    try:
        return FORMS[suffix](name, Path(path).read_text(encoding="utf-8-sig"))
    except InputError:
        raise
    except OSError as error:
        raise InputError(f"{name} cannot be read ({error.strerror}); give the file of a list of heads.") from error
    except Exception as error:  # malformed files raise more errors than readers document
        why = first_line(error).rstrip(".")
        raise InputError(f"{name} cannot be read as {suffix[1:]} ({why}); see docs/lists.md for formats.") from error


def _best(path: str, places: Sequence[Place], unit: Literal["head", "group"] = "head") -> HeadList:
    """Return a list of heads without scores: each of them has the same."""
    return HeadList(path, tuple(places), np.ones((1, len(places))), unit, partial=True)


def _matrix(path: str, rows: Sequence[Sequence[float]]) -> HeadList:
    """Return a list from a row of scores for each layer."""
    widths = {len(row) for row in rows}
    if len(widths) > 1:
        raise InputError(f"{path} has lines of {min(widths)} to {max(widths)} scores; give every layer one per head.")
    places = tuple(product(range(len(rows)), range(min(widths, default=0))))
    return HeadList(path, places, np.array(rows, float).reshape(1, -1))


def _table(path: str, text: str) -> HeadList:
    """Read a matrix of scores, or a table with a header and a line for each head."""
    separator = "\t" if path.lower().endswith(".tsv") else ","
    header, *lines = [row for row in csv.reader(text.splitlines(), delimiter=separator) if any(map(str.strip, row))]
    columns = [name.strip().lower() for name in header]
    if "layer" not in columns and separator == "\t":
        return _matrix(path, [[float(value) for value in row] for row in (header, *lines)])
    unit: Literal["head", "group"] = "group" if "group" in columns else "head"
    if not {"layer", unit} <= set(columns) <= {"layer", unit, "score"}:
        raise InputError(f"{path} has the columns {', '.join(columns)}; it needs layer, head (or group), and score.")
    rows = [dict(zip(columns, row, strict=True)) for row in lines]
    places = [(int(row["layer"]), int(row[unit])) for row in rows]
    if "score" not in columns:
        return _best(path, places, unit)
    scores, complete = np.array([[float(row["score"]) for row in rows]]), len(places) == _rectangle(places)
    return HeadList(path, tuple(places), scores, unit if not complete or unit == "group" else None, not complete)


def _rectangle(places: Sequence[Place]) -> int:
    layers, heads = zip(*places, strict=True) if places else ((-1,), (-1,))
    return int((max(layers) + 1) * (max(heads) + 1))


def _without_duplicates(path: str, pairs: list[tuple[str, object]]) -> dict[str, object]:
    twice = next((key for key, times in Counter(key for key, _ in pairs).items() if times > 1), None)
    if twice is not None:
        raise InputError(f"{path} contains {twice!r} twice; list each once.")
    return dict(pairs)


def _json(path: str, text: str) -> HeadList:
    content = json.loads(text, object_pairs_hook=partial(_without_duplicates, path))
    if isinstance(content, Mapping) and "values" in content:
        return _matrix(path, content["values"])
    if isinstance(content, Mapping) and content and all(map(str.isdecimal, content)):
        return _best(path, [(int(layer), int(head)) for layer, heads in content.items() for head in heads])
    if not isinstance(content, Mapping) or not all(map(PLACE.fullmatch, content)):
        raise InputError(f'{path} has no scores by "layer-head", such as "13-18"; see docs/lists.md for formats.')
    scores = [value if isinstance(value, list) else [value] for value in content.values()]
    lengths = {len(values) for values in scores}
    if len(lengths) > 1 or 0 in lengths:
        numbers = " and ".join(map(str, sorted(lengths)))
        raise InputError(f"{path} has heads with {numbers} scores; give every head a score for each instance.")
    return HeadList(path, tuple(map(_place, content)), np.array(scores, float).T)


def _yaml(path: str, text: str) -> HeadList:
    import yaml

    content = yaml.safe_load(text)
    heads = content.get(HEAD_SET) if isinstance(content, Mapping) else content
    names = heads.split(",") if isinstance(heads, str) else heads
    if not isinstance(names, list) or not all(isinstance(name, str) and PLACE.fullmatch(name) for name in names):
        raise InputError(f'{path} has no list of heads "layer-head", such as "13-18", as a whole or in `{HEAD_SET}`.')
    return _best(path, list(map(_place, names)))


def _place(name: str) -> Place:
    layer, head = map(int, name.split("-"))
    return layer, head


def _weights(path: str) -> HeadList:
    """Read head weights of a study after the last epoch."""
    table = read_table(path)
    if not {"epoch", "layer", "head", "value"} <= set(table.column_names):
        raise InputError(f"{path} has no weights of heads; give a file such as lambda-0.parquet.")
    epochs, layers, heads, values = (table[name].to_pylist() for name in ("epoch", "layer", "head", "value"))
    end = max(epochs, default=0)
    last = [row[1:] for row in zip(epochs, layers, heads, values, strict=True) if row[0] == end]
    return HeadList(path, tuple(row[:2] for row in last), np.array([[row[2] for row in last]]), "head")


FORMS: dict[str, Callable[[str, str], HeadList]] = {
    ".tsv": _table,
    ".csv": _table,
    ".json": _json,
    ".yaml": _yaml,
    ".yml": _yaml,
}
SUFFIXES = ", ".join((*FORMS, ".parquet"))
"""The suffixes of files that papa can read as lists of heads."""
