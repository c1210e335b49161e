"""Trained norms: the gains and biases of a model's normalisation layers, while all other weights are frozen."""

from __future__ import annotations

from contextlib import AbstractContextManager

from torch import nn

from papa.model.model import Model
from papa.model.norms import norm_parameters, with_parameters


class TrainedNorms(nn.Module):
    """Copies of a model's gains and biases, to be trained with a probe; the model's weights stay as they are.

    The parameters `norms` have the names that they have in the model, with slashes instead of dots.
    """

    def __init__(self, model: Model):
        super().__init__()
        copies = {name: nn.Parameter(value.detach().clone()) for name, value in norm_parameters(model.model).items()}
        self.norms = nn.ParameterDict({name.replace(".", "/"): value for name, value in copies.items()})

    def applied_to(self, model: Model) -> AbstractContextManager[None]:
        """Let the model use these gains and biases for a while; see `with_parameters`."""
        return with_parameters(model.model, {name.replace("/", "."): value for name, value in self.norms.items()})
