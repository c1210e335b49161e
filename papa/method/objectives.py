"""The objective of each kind of task."""

from __future__ import annotations

from collections.abc import Mapping

from papa.data.tokenize import tokenizer_of
from papa.data.tokens import Tokens
from papa.method.labelled import GoldLabels, Labelled
from papa.method.objective import Objective
from papa.method.probes import ProbeSizes
from papa.method.token_prediction import MaskedTokens, Masking, NextTokens
from papa.model.model import Model
from papa.plan.jobs import Job, OfTask


def objective_of(job: Job[OfTask], splits: Mapping[str, Tokens], sizes: ProbeSizes, model: Model | None) -> Objective:
    """Return the objective of a job, with a new probe if one is trained; raise `InputError` if the model does not fit.

    The model is None if hidden states are stored. The seed of the job determines the masks.
    """
    target = job.settings.target
    objective: Objective | None = None
    if target.labelled:
        labels = GoldLabels.read(job.reads["labels"], f"label {job.about['task']}", splits["train"])
        objective = Labelled(splits, sizes, labels)
    elif model is not None and target.probed:
        MaskedTokens.check(model)  # first, because the tokenizer of a decoder has no mask
        name = job.about["model"]
        masking = Masking.of(tokenizer_of(job.reads["model"], name), name)
        objective = MaskedTokens(splits, model, masking, job.settings.seed)
    elif model is not None:
        objective = NextTokens(splits, model)
    if objective is None:
        raise RuntimeError(f"{target.name} needs the model")
    if model is not None:
        objective.probe.to(model.device)
    return objective
