"""The heads that an order keeps and replaces, as a file that can be shared along with their constants."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import cached_property
from typing import Self

from pydantic import BaseModel, ConfigDict, PrivateAttr, ValidationError, computed_field

from papa.config.variant import Constant
from papa.data.shared import shared_file
from papa.errors import DamagedArtefact, InputError
from papa.files import PathLike
from papa.method.averages import ConstantMatrices
from papa.method.constants import constant_matrices
from papa.model.replacement import Constants

HEADS_FILE = "heads.json"


class Heads(BaseModel):
    """The heads that one order keeps and replaces at a fraction; a head is a pair (layer, head).

    Args:
        model, task, constant, order: their names in the study.
        fraction: share of heads that keep their attention.
        kept, replaced: the heads that keep their attention, and the others.
        values: the weight of each head, `[layer][head]`.
        unit_size: number of heads that are replaced together.
        slots: number of slots of the constants; None if unknown.
    """

    model_config = ConfigDict(frozen=True)

    model: str
    task: str
    constant: str
    order: str
    fraction: str
    kept: tuple[tuple[int, int], ...]
    replaced: tuple[tuple[int, int], ...]
    values: tuple[tuple[float, ...], ...]
    unit_size: int
    slots: int | None = None
    _place: tuple[PathLike, str | None] | None = PrivateAttr(None)

    @computed_field
    def prune(self) -> dict[str, list[int]]:
        """The replaced heads of each layer."""
        by_layer: dict[str, list[int]] = {}
        for layer, head in self.replaced:
            by_layer.setdefault(str(layer), []).append(head)
        return by_layer

    @classmethod
    def load(cls, place: PathLike, revision: str | None = None) -> Self:
        """Read what `papa heads --save` or `--push` wrote.

        Args:
            place: the folder, or the id of a repository on the hub, owner/name.
            revision: branch, tag or commit of the repository.

        Raises:
            InputError: there is no such folder or repository, or it cannot be read.
            DamagedArtefact: it contains something else.

        >>> heads = papa.Heads.load("owner/name")  # doctest: +SKIP
        >>> with papa.replaced_attention(model, heads.constants, heads.replaced): ...  # doctest: +SKIP
        """
        try:
            heads = cls.model_validate_json(shared_file(place, HEADS_FILE, revision).read_text(encoding="utf-8"))
        except (ValidationError, UnicodeDecodeError) as error:
            raise DamagedArtefact(f"{HEADS_FILE} in {place} has no heads that `papa heads --save` wrote.") from error
        heads._place = place, revision
        return heads

    @cached_property
    def constants(self) -> Constants:
        """The constants that replace the heads' attention.

        Raises:
            InputError: these heads were not loaded, or their constants cannot be read.
        """
        if self._place is None or self.slots is None:
            raise InputError("These heads have no constants; load them from a folder of `papa heads --save`.")
        constant = Constant.parse(self.constant)
        if constant.data_free:
            return constant_matrices(constant.start, len(self.values), len(self.values[0]), self.slots)
        place, revision = self._place
        return ConstantMatrices.load(place, revision).at(self.slots)

    def as_list(self, name: str) -> str:
        """Return the heads in a format of other tools, one of `LIST_FORMATS`, which `papa heads --format` prints.

        Raises:
            InputError: there is no such format.

        >>> print(heads.as_list("csv"))  # doctest: +SKIP
        """
        if name not in LIST_FORMATS:
            raise InputError(f"There is no format {name!r} for lists of heads; use one of {', '.join(LIST_FORMATS)}.")
        return LIST_FORMATS[name](self)

    @property
    def _weighted(self) -> list[tuple[int, int, float]]:
        """Layer, head and weight of each head."""
        return [(layer, head, value) for layer, row in enumerate(self.values) for head, value in enumerate(row)]


def _matrix(heads: Heads) -> str:
    """Return a line for each layer, with the weight of each head, or of each group if groups are replaced."""
    step = heads.unit_size if heads.unit_size < len(heads.values[0]) else 1  # a unit may also be a whole layer
    return "\n".join("\t".join(map(str, row[::step])) for row in heads.values)


def _kept_by_layer(heads: Heads) -> str:
    by_layer: dict[int, list[int]] = {layer: [] for layer in range(len(heads.values))}
    for layer, head in heads.kept:
        by_layer[layer].append(head)
    return json.dumps(by_layer)


def _named(heads: Heads) -> str:
    return f'attn_head_set: "{",".join(f"{layer}-{head}" for layer, head in heads.kept)}" # top{len(heads.kept)}'


LIST_FORMATS: dict[str, Callable[[Heads], str]] = {
    "duo": _matrix,
    "retrieval": lambda heads: json.dumps({f"{layer}-{head}": [value] for layer, head, value in heads._weighted}),
    "qrhead": _named,
    "csv": lambda heads: "\n".join(["layer,head,score", *(",".join(map(str, row)) for row in heads._weighted)]),
    "kept": _kept_by_layer,
}
"""The formats of lists by name. `papa.data.head_lists` reads each of them."""
