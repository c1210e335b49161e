"""The parts of a study that a notebook calls, on batches and labels that are given and lie in no file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import TypeAlias

import torch
from torch import Tensor

from papa.config.measures import NEXT, TEXT, WORD, check_metric
from papa.config.stages import Gating, Training
from papa.data.packed import RawBatch
from papa.data.prepare import in_order
from papa.data.tokens import Tokens
from papa.errors import InputError
from papa.method.labelled import GoldLabels, Labelled
from papa.method.likelihoods import NextTokens
from papa.method.objective import IGNORED, Batch, Objective, States
from papa.method.probes import ProbeSizes, SequenceProbe, TokenProbe
from papa.method.ranking import gates_learned
from papa.method.states import CachedStates
from papa.method.training import probe_trained
from papa.model.model import Batches, Model, check_model, packed_batches
from papa.model.replacement import Constants, Replacement, check_slots

LabelValues: TypeAlias = Sequence[str] | Sequence[int] | Tensor
"""A label for each example, one batch after another; or whole numbers `[example, slot]`, -100 where there is none."""


@dataclass(frozen=True)
class Recipe:
    """How probes and λ are trained, and at which points a sweep measures.

    Args:
        learning_rate: that of AdamW, constant.
        batch_size: examples of a training step.
        epochs: passes over the training examples.
        seeds: a probe for each; two or more give intervals. A decoder's own head needs none.
        fractions: shares of heads that keep their own attention, such as "1/8".
        metric: how predictions are scored; if not given, by accuracy, of labels `[example, slot]` by token_accuracy,
            and without labels by log_likelihood.

    Raises:
        InputError: a number is none that can be.

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
        for name in (name for name, its in wrong.items() if its):
            raise InputError(
                f"{name} is {getattr(self, name)!r}; a recipe has a positive learning_rate, batch_size and epochs, "
                'seeds that differ, and fractions between 0 and 1, such as "1/8".'
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
    """Learn how much each head needs its own attention: λ, by which heads are ordered (Sec. 3.2).

    It is learned together with a probe of the labels, which is thrown away; without labels, on the loss of a decoder's
    own head.

    Args:
        model: a model that `load_model` gave.
        constants: what replaces attention, such as `average_attention` gives.
        batches: inputs `[example, slot]` as `lay_out` returns them, laid out as the texts of the constants were.
        labels: a label for each example, or whole numbers `[example, slot]` with -100 where there is none; None for
            next tokens.
        recipe: learning rate, batch size and epochs; `Recipe()` if not given.
        seed: what the probe and the order of the examples follow from.

    Returns:
        float32 `[layer, head]` in (0, 1); heads of small λ are replaced first.

    Raises:
        InputError: model, constants, batches and labels do not go together.

    >>> weights = papa.learn_lambda(model, constants, [inputs], labels)  # doctest: +SKIP
    """
    splits, right = examples_of(check_model(model), {"train": (batches, labels)}, "learn_lambda")
    check_slots(model.replacement(constants), splits["train"].n)
    torch.manual_seed(seed)
    objective = objective_on(model, splits, right)
    training = (recipe or Recipe()).training
    how = Gating(training=training, seed=seed, encoder_dropout=False, direct=not right)
    return gates_learned(model, constants, objective, how)[-1]


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
        states: a model that `load_model` gave, whose hidden states are computed once; or hidden states
            `[example, L+1, slot, hidden]` of all batches as `Model.hidden_states` returns them.
        batches: inputs `[example, slot]` as `lay_out` returns them.
        labels: a label for each example, or whole numbers `[example, slot]` with -100 where there is none.
        replacement: what the layers of the model do with their heads, as `Model.replacement` gives it; None replaces
            nothing.
        recipe: learning rate, batch size and epochs; `Recipe()` if not given.
        seed: what the probe and the order of the examples follow from.

    Returns:
        The probe, for hidden states of float32; it has a logit for each label, in the order of their names.

    Raises:
        InputError: hidden states, batches and labels do not go together.

    >>> probe = papa.fit_probe(model, [inputs], labels)  # doctest: +SKIP
    >>> probe(model.hidden_states(inputs), inputs["attention_mask"]).argmax(-1)  # doctest: +SKIP
    """
    if isinstance(states, Tensor) and replacement is not None:
        raise InputError("Hidden states were given, and a replacement besides; give the model, or hidden states alone.")
    model = None if isinstance(states, Tensor) else check_model(states)
    splits, right = examples_of(model, {"train": (batches, labels)}, "fit_probe")
    if right is None:
        raise InputError("fit_probe needs labels, for a probe learns nothing without them; none were given.")
    tokens = splits["train"]
    read, sizes = _dense(states, tokens) if isinstance(states, Tensor) else _computed(states, replacement, splits)
    torch.manual_seed(seed)
    objective = Labelled(splits, sizes, right)
    objective.probe.to(states.device)
    probe_trained(objective, read, [objective.probe], (recipe or Recipe()).training, seed)
    return objective.probe.eval()


def _computed(model: Model, replacement: Replacement | None, splits: Mapping[str, Tokens]) -> tuple[States, ProbeSizes]:
    own = model.replacement() if replacement is None else replacement
    return CachedStates(model, own, splits), ProbeSizes.of(model, splits["train"].n)


def _dense(hidden: Tensor, tokens: Tokens) -> tuple[States, ProbeSizes]:
    """Hidden states that are given, and what a probe has to know of them: what BERT's config says of probes."""
    if hidden.ndim != 4 or hidden.shape[0] != len(tokens) or hidden.shape[2] != tokens.n:
        raise InputError(
            f"hidden states are {list(hidden.shape)}, and the batches have {len(tokens)} examples of {tokens.n} slots; "
            "give [example, L+1, slot, hidden] of all batches."
        )

    def read(batch: Batch) -> Tensor:
        own = batch.packed
        found = hidden[batch.examples[own.example_of], :, own.slots].float()
        return found if batch.places is None else found[batch.places]

    return read, ProbeSizes(hidden.shape[1], hidden.shape[3], tokens.n, 0.02, 0.1)


# -- what is given ----------------------------------------------------------------------------------------------------


def examples_of(
    model: Model | None, given: Mapping[str, tuple[Batches, LabelValues | None]], asked: str
) -> tuple[dict[str, Tokens], GoldLabels | None]:
    """The tokens of each split, and their labels, None if there are none.

    Args:
        model: the model that is to run on them; None if no model is.
        given: batches and labels by split, `train` first.
        asked: the function that asks for them, which errors name.

    Raises:
        InputError: they cannot be used, or do not go together.
    """
    packed = {split: list(packed_batches(model, batches, asked)) for split, (batches, _) in given.items()}
    if any(isinstance(batch, RawBatch) for own in packed.values() for batch in own):
        raise InputError(f"{asked} takes texts as lay_out lays them out, and pictures or sound were given.")
    sizes = {split: own[0].n for split, own in packed.items()}
    if len(set(sizes.values())) > 1:
        said = " and ".join(f"{n} in {split}" for split, n in sizes.items())
        raise InputError(f"The batches have {said} slots; {asked} needs one layout for all of them.")
    labels = {split: own for split, (_, own) in given.items() if own is not None}
    of_words = any(isinstance(own, Tensor) and own.ndim == 2 for own in labels.values())
    splits = {split: Tokens.of(own, split, of_words) for split, own in packed.items()}
    if labels and len(labels) < len(given):
        raise InputError(f"Labels were given for {', '.join(labels)} alone; give them for all batches or for none.")
    return splits, labels_of(splits, labels) if labels else None


def labels_of(splits: Mapping[str, Tokens], given: Mapping[str, LabelValues]) -> GoldLabels:
    """Labels as indices of their names, which are the sorted values of the training examples.

    Raises:
        InputError: they are not one for each example, or not of one form, or there is a single one.
    """
    values = {split: _values(tokens, given[split]) for split, tokens in splits.items()}
    distinct = {split: {value for value in own if value != IGNORED} for split, own in values.items()}
    names = in_order(set(map(str, distinct["train"])))
    if len(names) < 2:
        raise InputError(f"All training examples have the label {', '.join(names) or '-100'}; give two or more labels.")
    for split, own in distinct.items():
        if unseen := in_order({str(value) for value in own} - set(names)):
            raise InputError(f"The label {unseen[0]!r} is in {split} alone; give labels that training examples have.")
    index = {name: number for number, name in enumerate(names)}
    numbers = {
        split: torch.tensor([IGNORED if value == IGNORED else index[str(value)] for value in own])
        for split, own in values.items()
    }
    return GoldLabels(numbers, names)


def _values(tokens: Tokens, given: LabelValues) -> list[str | int]:
    """The labels of a split as they were given, `[example]`, or `[token]` if tokens have labels."""
    if isinstance(given, Tensor) and given.ndim == 2:
        if given.shape != (len(tokens), tokens.n) or given.is_floating_point():
            raise InputError(
                f"Labels of tokens are whole numbers [example, slot] = {[len(tokens), tokens.n]}; "
                f"{str(given.dtype).removeprefix('torch.')} {list(given.shape)} were given."
            )
        example = torch.arange(len(tokens)).repeat_interleave(tokens.lengths)
        of_tokens = given.cpu()[example, tokens.slots.long()]
        if int((of_tokens != IGNORED).sum()) < int((given != IGNORED).sum()):
            raise InputError("There are labels in slots that have no token; give -100 there.")
        return list(of_tokens.tolist())
    listed: list[str | int] = given.tolist() if isinstance(given, Tensor) else list(given)
    if len(listed) != len(tokens):
        raise InputError(
            f"There are {len(tokens)} {tokens.split} examples and {len(listed)} labels; give one for each."
        )
    if not (
        all(isinstance(own, str) for own in listed) or all(isinstance(own, int) and own != IGNORED for own in listed)
    ):
        raise InputError(
            "Labels are texts or whole numbers, one for each example, or a tensor [example, slot] of whole numbers; "
            f"the first is a {type(listed[0]).__name__}."
        )
    return listed


def objective_on(model: Model, splits: Mapping[str, Tokens], labels: GoldLabels | None) -> Objective:
    """What is measured: labels by a new probe; without labels next tokens by a decoder's own head."""
    if labels is None:
        if not model.causal:
            raise InputError(
                f"No labels were given, and {type(model.full).__name__} sees later tokens, so that it cannot be asked "
                "for the next one; give labels, or measure masked tokens by papa.measure."
            )
        return NextTokens(splits, model)
    objective = Labelled(splits, ProbeSizes.of(model, splits["train"].n), labels)
    objective.probe.to(model.device)
    return objective


def metric_of(recipe: Recipe, objective: Objective) -> str:
    """The metric of a recipe, or the usual one; raises `InputError` if it does not fit what is measured."""
    target, names = NEXT, None
    if isinstance(objective, Labelled):
        target, names = WORD if objective.of_words else TEXT, objective.names
    metric = recipe.metric or target.usual_metric
    check_metric(metric, target, names)
    return metric
