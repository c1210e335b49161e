"""The table of all objectives, by what is predicted."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from papa.config.measures import CHOICE, MASKED, NEXT, TEXT, WORD, Target
from papa.data.masking import Masking
from papa.data.tokenize import tokenizer_of
from papa.data.tokens import Tokens
from papa.errors import InputError
from papa.files import PathLike
from papa.method.labelled import GoldLabels, Labelled
from papa.method.likelihoods import Choices, NextTokens
from papa.method.masked_tokens import MaskedTokens
from papa.method.objective import Objective
from papa.method.probes import ProbeSizes
from papa.model.model import Model

if TYPE_CHECKING:
    from papa.config.job import Job
    from papa.config.settings import Machine
    from papa.config.stages import LambdaOf, ModelId, ProbeOf, WeightsOf


@dataclass(frozen=True)
class _Parts:
    """Everything that some objective is made from; see `objective_of`."""

    splits: Mapping[str, Tokens]
    sizes: ProbeSizes
    labels: PathLike | None
    identity: ModelId
    machine: Machine
    loaded: Model | None
    seed: int

    @property
    def model(self) -> Model:
        if self.loaded is None:
            raise InputError("A task without a probe of labels needs the model; stream the hidden states.")
        return self.loaded


def _labelled(parts: _Parts) -> Objective:
    assert parts.labels is not None
    return Labelled(parts.splits, parts.sizes, GoldLabels.read(parts.splits, parts.labels))


def _masked(parts: _Parts) -> Objective:
    if parts.model.causal:
        raise InputError(
            f"Model {parts.identity.name} sees no later tokens, so that it cannot guess masked ones from both sides; "
            "measure it by log_likelihood, or leave it out of masked language modelling."
        )
    masking = Masking.of(tokenizer_of(parts.identity, parts.machine), parts.identity.name)
    return MaskedTokens(parts.splits, parts.model, masking, parts.seed)


OBJECTIVES: dict[Target, Callable[[_Parts], Objective]] = {
    TEXT: _labelled,
    WORD: _labelled,
    MASKED: _masked,
    NEXT: lambda parts: NextTokens(parts.splits, parts.model),
    CHOICE: lambda parts: Choices(parts.splits, parts.model, parts.labels),
}


def objective_of(
    job: Job[LambdaOf] | Job[ProbeOf] | Job[WeightsOf],
    splits: Mapping[str, Tokens],
    sizes: ProbeSizes,
    model: Model | None,
    seed: int,
) -> Objective:
    """Return the objective of a job, with a new probe if one is trained.

    Args:
        job: may read `labels`.
        splits: the tokens of all splits.
        sizes: those of the model whose hidden states are read.
        model: that model; None if hidden states are stored.
        seed: determines the masks.

    Raises:
        InputError: the model does not fit the task.
    """
    labels, settings = job.maybe("labels"), job.settings
    target = _target(splits["train"], labels is not None, bool(settings.direct))
    objective = OBJECTIVES[target](_Parts(splits, sizes, labels, settings.model.model, job.machine, model, seed))
    if model is not None:
        objective.probe.to(model.device)
    return objective


def _target(train: Tokens, labelled: bool, direct: bool) -> Target:
    if labelled and not direct:
        return TEXT if train.words is None else WORD
    if train.questions is not None:
        return CHOICE
    return NEXT if direct else MASKED
