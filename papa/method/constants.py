"""Constants, which replace attention: averages, matrices that need no text, and learned ones (Sec. 3.1, 5.2)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import normalize

from papa.config.variant import DATA_FREE, TIED, Constant
from papa.errors import InputError
from papa.files import PathLike, must_agree
from papa.method.averages import ConstantMatrices
from papa.model.model import Model
from papa.model.replacement import Head, Loaded


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
    distances = (torch.arange(slots)[:, None] - torch.arange(slots)).abs()
    matrices = {
        "identity": (distances == 0).float(),
        "toeplitz": 1 / (1 + distances),
        "zeros": torch.zeros(slots, slots),
        "uniform": torch.ones(slots, slots),
    }
    if kind not in matrices:
        raise InputError(f"{kind!r} is not a constant that needs no text; give one of {', '.join(DATA_FREE)}.")
    return normalize(matrices[kind], p=1, dim=-1).expand(layers, heads, slots, slots)


def constants_for(constant: Constant, averages: PathLike | None, model: Model, facts: Mapping[str, Any]) -> Loaded:
    """Return the constants that replace a model's attention; `facts` are those of the texts it reads.

    They are read from a file of `averages`, unless they need no text.

    Raises:
        InputError: the file contains another kind of constant, or was made with other weights, slots, layout or texts.
    """
    if constant.data_free:
        return constant_matrices(constant.start, model.layers, model.heads, int(facts["slots"]))
    if averages is None:
        raise InputError(f"The constant {constant.name} is read from a file of averages, but none was given; give one.")
    constants, about = ConstantMatrices.load_constants(averages)
    expected = {"weights": model.weights, "slots": facts["slots"], "style": facts["style"], "kind": constant.averaged}
    if constant.corpus is None:
        expected["corpus"] = facts["corpus"]
    must_agree(averages, about, expected)
    return ConstantMatrices.load(averages).tied(constant.start).mean if constant.start in TIED else constants


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
