"""Learn λ and train probes in a notebook, from batches and labels in memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import TypeAlias, cast

import torch
from torch import Tensor

from papa.config.measures import check_metric
from papa.config.stages import Gating, Training
from papa.data.prepare import sorted_names
from papa.data.tokens import Tokens
from papa.errors import InputError
from papa.method.gates import learn_gates
from papa.method.labelled import GoldLabels, Labelled
from papa.method.likelihoods import NextTokens
from papa.method.objective import IGNORED, Batch, Objective, States, fit_objective
from papa.method.probes import ProbeSizes, SequenceProbe, TokenProbe
from papa.method.states import CachedStates
from papa.model.model import Batches, Model, check_model, packed_batches
from papa.model.replacement import Constants, Replacement, check_slots

LabelValues: TypeAlias = Sequence[str] | Sequence[int] | Tensor
"""One label for each example of all batches; or whole numbers `[example, slot]`, -100 for slots without a label."""


@dataclass(frozen=True)
class Recipe:
    """Settings for training probes and λ, and for the points that a sweep measures.

    Args:
        learning_rate: constant learning rate of AdamW.
        batch_size: number of examples in a training step.
        epochs: number of passes over the training examples.
        seeds: a probe is trained for each seed; intervals need two or more. Next tokens need no probe.
        fractions: shares of heads that keep their attention, such as "1/8".
        metric: by default accuracy, token_accuracy for labels `[example, slot]`, and log_likelihood without labels.

    Raises:
        InputError: a value is invalid.

    >>> Recipe(epochs=2).seeds
    (1, 2, 3, 4, 5)
    """

    learning_rate: float = 1e-3
    batch_size: int = 16
    epochs: int = 4
    seeds: Sequence[int] = (1, 2, 3, 4, 5)
    fractions: Sequence[str] = ("1", "1/2", "1/8", "0")
    metric: str | None = None

    def __post_init__(self) -> None:
        wrong = {
            "learning_rate": not self.learning_rate > 0,
            "batch_size": self.batch_size < 1,
            "epochs": self.epochs < 1,
            "seeds": not self.seeds or len(set(self.seeds)) < len(self.seeds),
            "fractions": not self.fractions or not all(map(_is_share, self.fractions)),
        }
        for name in (name for name, is_wrong in wrong.items() if is_wrong):
            raise InputError(
                f"{name} is {getattr(self, name)!r}; a recipe needs a positive learning_rate, batch_size and epochs, "
                'distinct seeds, and fractions between 0 and 1, such as "1/8".'
            )

    @property
    def training(self) -> Training:
        """Learning rate, batch size and epochs."""
        return Training(learning_rate=self.learning_rate, batch_size=self.batch_size, epochs=self.epochs)


def _is_share(fraction: str) -> bool:
    try:
        return 0 <= Fraction(fraction) <= 1
    except (TypeError, ValueError, ZeroDivisionError):
        return False


def learn_lambda(
    model: Model,
    constants: Constants,
    batches: Batches,
    labels: LabelValues | None = None,
    recipe: Recipe | None = None,
    seed: int = 0,
) -> Tensor:
    """Learn λ, which measures how much each head needs its attention (Sec. 3.2).

    λ is learned together with a probe for the labels, which is discarded. Without labels, a decoder's prediction head
    predicts the next tokens.

    Args:
        model: a model that `load_model` returned.
        constants: the constants that replace attention, such as the result of `average_attention`.
        batches: inputs `[example, slot]` as `lay_out` returns them, in the same layout as the constants.
        labels: one label for each example, or whole numbers `[example, slot]`, -100 for slots without a label; None for
            next tokens.
        recipe: learning rate, batch size and epochs; by default `Recipe()`.
        seed: determines the probe and the order of the examples.

    Returns:
        float32 `[layer, head]` in (0, 1); heads with small λ are replaced first.

    Raises:
        InputError: model, constants, batches and labels do not match.

    >>> weights = papa.learn_lambda(model, constants, [inputs], labels)  # doctest: +SKIP
    """
    splits, right = examples_of(check_model(model), {"train": (batches, labels)}, "learn_lambda")
    check_slots(model.replacement(constants), splits["train"].n)
    torch.manual_seed(seed)
    objective = objective_on(model, splits, right)
    training = (recipe or Recipe()).training
    gating = Gating(training=training, seed=seed, encoder_dropout=False)
    return learn_gates(model, constants, objective, gating)[-1]


def fit_probe(
    states: Model | Tensor,
    batches: Batches,
    labels: LabelValues,
    replacement: Replacement | None = None,
    recipe: Recipe | None = None,
    seed: int = 1,
) -> SequenceProbe | TokenProbe:
    """Train a probe on all hidden states of a frozen model (Sec. 4).

    Args:
        states: a model that `load_model` returned, whose hidden states are computed once; or hidden states
            `[example, L+1, slot, hidden]` of all batches as `Model.hidden_states` returns them.
        batches: inputs `[example, slot]` as `lay_out` returns them.
        labels: one label for each example, or whole numbers `[example, slot]`, -100 for slots without a label.
        replacement: the heads to replace and their constants, from `Model.replacement`; None replaces no head.
        recipe: learning rate, batch size and epochs; by default `Recipe()`.
        seed: determines the probe and the order of the examples.

    Returns:
        A probe for float32 hidden states; its logits are in the order of the sorted labels.

    Raises:
        InputError: hidden states, batches and labels do not match.

    >>> probe = papa.fit_probe(model, [inputs], labels)  # doctest: +SKIP
    >>> probe(model.hidden_states(inputs), inputs["attention_mask"]).argmax(-1)  # doctest: +SKIP
    """
    if isinstance(states, Tensor) and replacement is not None:
        raise InputError(
            "A replacement was given with hidden states; give the model and the replacement, or only hidden states."
        )
    model = None if isinstance(states, Tensor) else check_model(states)
    splits, right = examples_of(model, {"train": (batches, labels)}, "fit_probe")
    if right is None:
        raise InputError("fit_probe needs labels, but none were given; give a label for each example.")
    tokens = splits["train"]
    read, sizes = _dense(states, tokens) if isinstance(states, Tensor) else _cached(states, replacement, splits)
    torch.manual_seed(seed)
    objective = Labelled(splits, sizes, right)
    objective.probe.to(states.device)
    fit_objective(objective, read, [objective.probe], (recipe or Recipe()).training, seed)
    return cast("SequenceProbe | TokenProbe", objective.probe.eval())  # the paper's, which is the default


def _cached(model: Model, replacement: Replacement | None, splits: Mapping[str, Tokens]) -> tuple[States, ProbeSizes]:
    replacement = model.replacement() if replacement is None else replacement
    return CachedStates(model, replacement, splits), ProbeSizes.of(model, splits["train"].n)


def _dense(hidden: Tensor, tokens: Tokens) -> tuple[States, ProbeSizes]:
    """Return a function that reads dense hidden states, and the sizes of a probe with BERT's settings."""
    if hidden.ndim != 4 or hidden.shape[0] != len(tokens) or hidden.shape[2] != tokens.n:
        raise InputError(
            f"The hidden states are {list(hidden.shape)}, but the batches have {len(tokens)} examples of {tokens.n} "
            "slots; give the hidden states of all batches, [example, L+1, slot, hidden]."
        )

    def read(batch: Batch) -> Tensor:
        packed = batch.packed
        of_tokens = hidden[batch.examples[packed.example_of], :, packed.slots].float()
        return of_tokens if batch.positions is None else of_tokens[batch.positions]

    return read, ProbeSizes(hidden.shape[1], hidden.shape[3], tokens.n, 0.02, 0.1)


# -- batches and labels -----------------------------------------------------------------------------------------------


def examples_of(
    model: Model | None, data: Mapping[str, tuple[Batches, LabelValues | None]], caller: str
) -> tuple[dict[str, Tokens], GoldLabels | None]:
    """Return the tokens of each split, and their labels.

    Args:
        model: the model that will read the tokens, if any.
        data: batches and their labels (None without labels), by split, `train` first.
        caller: the name of the public function, for errors.

    Raises:
        InputError: batches or labels are invalid, or do not match.
    """
    packed = {split: list(packed_batches(model, batches, caller)) for split, (batches, _) in data.items()}
    sizes = {split: batches[0].n for split, batches in packed.items()}
    if len(set(sizes.values())) > 1:
        slots = " and ".join(f"{n} in {split}" for split, n in sizes.items())
        raise InputError(f"The batches have {slots} slots; {caller} needs one layout for all of them.")
    labels = {split: values for split, (_, values) in data.items() if values is not None}
    per_token = any(isinstance(values, Tensor) and values.ndim == 2 for values in labels.values())
    splits = {split: Tokens.of(batches, split, per_token) for split, batches in packed.items()}
    if labels and len(labels) < len(data):
        raise InputError(f"Labels were given for {', '.join(labels)} only; give them for all batches or for none.")
    return splits, labels_of(splits, labels) if labels else None


def labels_of(splits: Mapping[str, Tokens], labels: Mapping[str, LabelValues]) -> GoldLabels:
    """Return labels as indices into the label names, which are the sorted labels of the training examples.

    Raises:
        InputError: an example has no label, the labels have different forms, or all are equal.
    """
    values = {split: _values(tokens, labels[split]) for split, tokens in splits.items()}
    distinct = {split: {value for value in each if value != IGNORED} for split, each in values.items()}
    names = sorted_names(set(map(str, distinct["train"])))
    if len(names) < 2:
        raise InputError(f"All training examples have the label {', '.join(names) or '-100'}; give two or more labels.")
    for split, listed in distinct.items():
        if unseen := sorted_names({str(value) for value in listed} - set(names)):
            raise InputError(
                f"The label {unseen[0]!r} occurs only in {split}; give labels that also occur in training examples."
            )
    index_of = {name: index for index, name in enumerate(names)}
    indices = {
        split: torch.tensor([IGNORED if value == IGNORED else index_of[str(value)] for value in each])
        for split, each in values.items()
    }
    return GoldLabels(indices, names)


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
        return list(token_labels.tolist())
    listed: list[str | int] = labels.tolist() if isinstance(labels, Tensor) else list(labels)
    if len(listed) != len(tokens):
        raise InputError(
            f"There are {len(tokens)} {tokens.split} examples and {len(listed)} labels; give one for each."
        )
    texts = all(isinstance(label, str) for label in listed)
    if not texts and not all(isinstance(label, int) and label != IGNORED for label in listed):
        raise InputError(
            "Labels must be texts or whole numbers, one per example, or whole numbers in a tensor [example, slot]; "
            f"the first is a {type(listed[0]).__name__}."
        )
    return listed


def objective_on(model: Model, splits: Mapping[str, Tokens], labels: GoldLabels | None) -> Objective:
    """Return an objective with a new probe for these labels; without labels, the objective for next tokens."""
    if labels is None:
        if not model.causal:
            raise InputError(
                f"No labels were given, and {type(model.full).__name__} sees later tokens, so it cannot predict "
                "the next one; give labels, or measure masked tokens with papa.measure."
            )
        return NextTokens(splits, model)
    objective = Labelled(splits, ProbeSizes.of(model, splits["train"].n), labels)
    objective.probe.to(model.device)
    return objective


def metric_of(recipe: Recipe, objective: Objective) -> str:
    """Return a recipe's metric, by default the objective's usual one; raise `InputError` if it does not fit."""
    metric = recipe.metric or objective.target.usual_metric
    check_metric(metric, objective.target, objective.facts.get("label_names"))
    return metric
