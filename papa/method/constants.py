"""Constants, which replace attention: averages, matrices that need no text, and learned ones (Sec. 3.1, 5.2)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from papa.config.variant import DATA_FREE, KINDS, Constant
from papa.errors import InputError
from papa.files import PathLike, must_agree
from papa.method.averages import ConstantMatrices
from papa.method.tied import structure_of
from papa.model.model import Model
from papa.model.replacement import Head, Loaded, Matrices


def constant_matrices(kind: str, layers: int, heads: int, slots: int) -> Tensor:
    """Return constants that need no text and are the same for every head (Sec. 5.2, Table 1).

    Their rows are masked and normalised when they are used.

    Args:
        kind: one of `DATA_FREE`. With `identity`, each slot attends to itself; with `zeros`, to nothing; with
            `uniform`, to all slots equally; with `toeplitz`, slot q attends to k in proportion to 1 / (1 + |q - k|).
        layers: number of layers in the model.
        heads: number of heads in each layer.
        slots: number of slots in the layout.

    Returns:
        float32 `[layer, head, query, key]`.

    Raises:
        InputError: there is no such kind.

    >>> constant_matrices("identity", 2, 3, 5)[0, 0].diagonal()
    tensor([1., 1., 1., 1., 1.])
    """
    matrix = _tied(kind, slots).full
    return torch.nn.functional.normalize(matrix, p=1, dim=-1).expand(layers, heads, slots, slots)


def _tied(kind: str, slots: int) -> Matrices:
    """Return a matrix that needs no text, as one value per class of slot pairs."""
    values = KINDS[kind].values if kind in KINDS else None
    if values is None:
        raise InputError(f"{kind!r} is not a constant that needs no text; give one of {', '.join(DATA_FREE)}.")
    return Matrices(torch.tensor(values(slots)), structure_of(kind, slots))


def constants_for(constant: Constant, averages: PathLike | None, model: Model, facts: Mapping[str, Any]) -> Loaded:
    """Return the constants that replace a model's attention; `facts` are those of the texts it reads.

    They are read from a file of `averages`, unless they need no text.

    Raises:
        InputError: the file contains another kind of constant, or was made with other weights, slots, layout or texts.
    """
    if constant.data_free:
        kind, slots = constant.start, int(facts["slots"])
        if constant.trained:  # training starts from normalised rows
            return constant_matrices(kind, model.layers, model.heads, slots)
        tied = _tied(kind, slots)
        return Matrices(tied.values.expand(model.layers, model.heads, -1), tied.classes)
    if averages is None:
        raise InputError(f"The constant {constant.name} is read from a file of averages, but none was given; give one.")
    constants, about = ConstantMatrices.load_constants(averages)
    expected = {"weights": model.weights, "slots": facts["slots"], "style": facts["style"], "kind": constant.start}
    if constant.corpus is None:
        expected["corpus"] = facts["corpus"]
    must_agree(averages, about, expected)
    return constants


class TrainedConstants(nn.Module):
    """Constants of the replaced heads, learned with the probe (Sec. 5.2).

    The parameter `matrices` is `[replaced, query, key]`. Rows are masked and normalised when they are used. The buffer
    `heads`, int64 `[replaced, 2]`, has the layer and head of each matrix.
    """

    heads: Tensor

    def __init__(self, start: Tensor, heads: list[Head]):
        """Initialise the matrices of `heads` from `start` `[layer, head, query, key]`."""
        super().__init__()
        replaced = torch.tensor(heads, dtype=torch.long).view(-1, 2)
        self.register_buffer("heads", replaced)
        self.matrices = nn.Parameter(start[replaced[:, 0], replaced[:, 1]].clone())
        self.shape = start.shape

    def forward(self) -> Tensor:
        """Return the constants of all heads, zero for heads that are not replaced; differentiable."""
        zeros = self.matrices.new_zeros(self.shape)
        return zeros.index_put((self.heads[:, 0], self.heads[:, 1]), self.matrices)
