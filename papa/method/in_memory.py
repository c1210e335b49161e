"""Learn λ from batches and labels in memory."""

from __future__ import annotations

from collections.abc import Sequence
from numbers import Integral
from typing import TypeAlias

import torch
from torch import Tensor

from papa.data.prepare import sorted_names
from papa.data.tokens import Tokens
from papa.errors import InputError
from papa.method.head_weights import learn_gates
from papa.method.objectives import IGNORED, GoldLabels, Labelled, Objective, ProbeSizes
from papa.method.token_prediction import NextTokens
from papa.model.model import Batches, Model, check_model, packed_batches
from papa.model.replacement import AnyConstants, check_slots
from papa.stages import OfTask, Training

LabelValues: TypeAlias = Sequence[str] | Sequence[int] | Tensor
"""One label for each example of all batches; or whole numbers `[example, slot]`, -100 for slots without a label."""


def learn_lambda(  # noqa: PLR0913 - settings are keywords
    model: Model,
    constants: AnyConstants,
    batches: Batches,
    labels: LabelValues | None = None,
    *,
    learning_rate: float = 1e-3,
    batch_size: int = 16,
    epochs: int = 4,
    seed: int = 0,
) -> Tensor:
    """Learn λ, which measures how much the model relies on each head (Sec. 3.2).

    λ is learned together with a probe for the labels, which is discarded. Without labels, a decoder's prediction head
    predicts the next tokens.

    Args:
        model: a model that `load_model` returned.
        constants: the constants that replace attention, such as the result of `average_attention`.
        batches: inputs `[example, slot]` as `lay_out` returns them, in the same layout as the constants.
        labels: one label for each example, or whole numbers `[example, slot]`, -100 for slots without a label; None for
            next tokens.
        learning_rate: constant learning rate of AdamW.
        batch_size: number of examples in a training step.
        epochs: number of passes over the examples.
        seed: determines the probe and the order of the examples.

    Returns:
        float32 `[layer, head]` in (0, 1); heads with small λ are replaced first.

    Raises:
        InputError: model, constants, batches and labels do not match, or a setting is not positive.

    >>> weights = papa.learn_lambda(model, constants, [inputs], labels)  # doctest: +SKIP
    """
    if not (learning_rate > 0 and batch_size >= 1 and epochs >= 1):
        raise InputError(
            f"learning_rate is {learning_rate}, batch_size {batch_size} and epochs {epochs}; all must be positive."
        )
    per_token = isinstance(labels, Tensor) and labels.ndim == 2
    packed = packed_batches(check_model(model), batches, "learn_lambda")
    tokens = Tokens.of(packed, per_token)
    check_slots(model.replacement(constants), tokens.n)
    training = Training(learning_rate=learning_rate, batch_size=batch_size, epochs=epochs)
    with (
        # the caller's random numbers stay what they would have been
        torch.random.fork_rng([model.device] if model.device.type == "cuda" else []),
        # a notebook may have switched gradients off
        torch.inference_mode(False),
        torch.enable_grad(),
    ):
        torch.manual_seed(seed)
        objective = _objective_on(model, tokens, labels)
        return learn_gates(
            model, constants, objective, OfTask(kind="text", training=training, seed=seed)
        )[-1]


def _objective_on(model: Model, tokens: Tokens, labels: LabelValues | None) -> Objective:
    """Return an objective with a new probe for these labels; without labels, the objective for next tokens."""
    splits = {"train": tokens}
    if labels is None:
        if not model.causal:
            raise InputError(
                f"No labels were given, and {type(model.full).__name__} sees later tokens, so it cannot predict "
                "the next one; give labels, or measure masked tokens with papa.measure."
            )
        return NextTokens(splits, model)
    values = _values(tokens, labels)
    names = sorted_names({str(value) for value in values if value != IGNORED})
    if len(names) < 2:
        raise InputError(
            f"All training examples have the label {', '.join(names) or '-100'}; give two or more labels."
        )
    index_of = {name: index for index, name in enumerate(names)}
    indices = torch.tensor(
        [IGNORED if value == IGNORED else index_of[str(value)] for value in values]
    )
    objective = Labelled(splits, ProbeSizes.of(model), GoldLabels(indices, names))
    objective.probe.to(model.device)
    return objective


def _values(tokens: Tokens, labels: LabelValues) -> list[str | int]:
    """Return the labels of a split as a list, `[example]`, or `[token]` from labels `[example, slot]`."""
    if isinstance(labels, Tensor) and labels.ndim == 2:
        if labels.shape != (len(tokens), tokens.n) or labels.is_floating_point():
            raise InputError(
                f"Labels of tokens must be whole numbers [example, slot] = {[len(tokens), tokens.n]}, but "
                f"{str(labels.dtype).removeprefix('torch.')} {list(labels.shape)} were given."
            )
        example = torch.arange(len(tokens)).repeat_interleave(tokens.lengths)
        token_labels = labels.cpu()[example, tokens.slots.long()]
        if int((token_labels != IGNORED).sum()) < int((labels != IGNORED).sum()):
            raise InputError("Some slots without a token have labels; give -100 for these slots.")
        return token_labels.tolist()
    listed: list[str | int] = labels.tolist() if hasattr(labels, "tolist") else list(labels)
    if len(listed) != len(tokens):
        raise InputError(
            f"There are {len(tokens)} {tokens.split} examples and {len(listed)} labels; give one each."
        )
    texts = all(isinstance(label, str) for label in listed)
    wrong = [label for label in listed if not isinstance(label, Integral) or label == IGNORED]
    if wrong and not texts:
        raise InputError(
            "Labels must be texts or whole numbers, one per example, or whole numbers in a tensor [example, slot]; "
            f"one is {wrong[0]!r}."
        )
    return listed
