"""Constants, which replace attention: averages, matrices that need no text, and learned ones (Sec. 3.1, 5.2)."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from papa.config.variant import TIED, Constant
from papa.files import PathLike
from papa.method.averages import Constants, data_free_matrix
from papa.model.model import Model
from papa.model.replacement import Head, Loaded


def constants_for(constant: Constant, averages: PathLike | None, model: Model, slots: int) -> Loaded:
    """Return the constants that replace a model's attention; those of texts are read from a file of `averages`."""
    if averages is None:
        return data_free_matrix(constant.start, slots).expand(model.layers, model.heads, -1, -1)
    if constant.start in TIED:
        return Constants.load(averages).tied(constant.start).mean
    return Constants.load_constants(averages)[0]


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
