"""The objective of a job: labels, masked tokens, next tokens or choices."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from papa.data.masking import Masking
from papa.data.tokenize import tokenizer_of
from papa.data.tokens import Tokens
from papa.errors import InputError
from papa.method.labelled import GoldLabels, Labelled
from papa.method.likelihoods import Choices, NextTokens
from papa.method.masked_tokens import MaskedTokens
from papa.method.objective import Objective
from papa.method.probes import ProbeSizes
from papa.model.model import Model

if TYPE_CHECKING:
    from papa.config.job import Job
    from papa.config.stages import LambdaOf, ProbeOf, WeightsOf


def objective_of(
    job: Job[LambdaOf] | Job[ProbeOf] | Job[WeightsOf],
    splits: Mapping[str, Tokens],
    sizes: ProbeSizes,
    model: Model | None,
    seed: int,
) -> Objective:
    """Return the objective of a job, with a new probe if one is trained.

    Args:
        job: may read `labels`; its settings say whether the model's own head makes the predictions (`direct`).
        splits: the tokens of all splits.
        sizes: those of the model whose hidden states are read.
        model: that model; None if hidden states are stored.
        seed: determines the masks.

    Raises:
        InputError: the model does not fit the task.
    """
    labels, direct = job.maybe("labels"), job.settings.direct
    if labels is not None and not direct:
        objective: Objective = Labelled(splits, sizes, GoldLabels.read(splits, labels))
    elif model is None:
        raise InputError("A task without a probe of labels needs the model; stream the hidden states.")
    elif direct:
        questions = splits["train"].questions
        objective = NextTokens(splits, model) if questions is None else Choices(splits, model, labels)
    else:
        identity = job.settings.model.model
        if model.causal:
            raise InputError(
                f"Model {identity.name} sees no later tokens, so that it cannot guess masked ones from both sides; "
                "measure it by log_likelihood, or leave it out of masked language modelling."
            )
        masking = Masking.of(tokenizer_of(identity, job.machine), identity.name)
        objective = MaskedTokens(splits, model, masking, seed)
    if model is not None:
        objective.probe.to(model.device)
    return objective
