"""Metrics (`Measure`) and kinds of tasks (`Target`), each with everything that depends on it.

A metric counts something in every unit: a text, or a sentence of labelled words. The score is a function of the summed
counts, so the same counts also give the scores of subsets and the scores without single units.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from papa.errors import InputError

Counts = np.ndarray
"""The counts of a metric: float64 `[..., unit, count]`, or `[..., count]` summed over units."""


class Guess(NamedTuple):
    """The best guess that ignores the input: its description in messages, and the label that it always predicts.

    The label is None if outcomes already contain the score of the guess, in the column `trivial`.
    """

    words: str
    label: int | None = None


Guesser = Callable[[Sequence[str], Sequence[int]], Guess]
"""Maps the names of labels and their counts in the training rows to the guess."""

OUTCOME_TYPES = {
    "split": "string",
    "example": "int32",  # index of the row in its split
    "word": "int32",  # index of the word in its row
    "gold": "int16",  # index of the right label
    "position": "int32",  # place of the token in its text
    "trivial": "float32",  # loss of a guess that ignores the input
    "subset": "string",  # empty for items in no subset
    "cluster": "int32",  # index of the cluster that the text or sentence belongs to
    "predicted": "int16",  # index of a label
    "loss": "float32",  # of the token, in nats
}
"""The columns of outcomes and their types; each kind of task has some of them."""


@dataclass(frozen=True)
class Outcomes:
    """Right and predicted labels of words or of texts; or, for each text, the number of tokens and their summed loss.

    Args:
        gold: `[item]`, the right label, or the number of tokens.
        predicted: `[item]`, the predicted label, or the summed loss.
        unit: `[item]`, the index of the text or sentence of each item, in ascending order.
        names: the label names; empty if there are no labels.
    """

    gold: np.ndarray
    predicted: np.ndarray
    unit: np.ndarray
    names: Sequence[str]

    def __post_init__(self) -> None:
        if self.names and not len(self.gold):
            raise InputError(
                "There is nothing to score, because no example has a label; label some examples."
            )

    def summed(self, *values: np.ndarray) -> Counts:
        """Sum values over the items of each unit, `[unit, count]`."""
        _, index = np.unique(self.unit, return_inverse=True)
        return np.stack([np.bincount(index, column) for column in values], axis=1)


@dataclass(frozen=True, eq=False)
class Target:
    """A kind of task: what a model has to predict.

    Args:
        name: text, word, masked or next.
        description: the words after "a task" in messages.
        usual_metric: the default metric of such a task.
        guess: the best guess that ignores the input.
        labelled: whether a probe learns labels; if not, outcomes are losses.
        probed: whether a probe is trained; if not, the model's prediction head is used, and there are no seeds.
        per_word: whether each word has a label and an outcome, instead of each text.
        decoder: whether the model must be a decoder; None if it can be either.
        right: the column of outcomes that predictions are compared with; losses are not.
    """

    name: str
    description: str
    usual_metric: str
    guess: Guesser
    labelled: bool = False
    probed: bool = True
    per_word: bool = False
    decoder: bool | None = None
    right: str = "gold"


@dataclass(frozen=True)
class Measure:
    """One metric, and everything that depends on it.

    Args:
        name: its name in configs and tables.
        title: its name for readers.
        target: what is predicted.
        counts: maps outcomes to the counts of each unit, `[unit, count]`.
        score: maps summed counts `[..., count]` to scores `[...]`; an undefined score is 0.
        also_reported: other metrics of the same outcomes that are reported with this one.
        low, high: the range of scores.
        column: the column of `OUTCOME_TYPES` that is counted.
        has_floors: whether higher is better, so the score has floors and a reliance.
        log_scaled: whether a score of 0 does not mean no skill, so relative drops are undefined.
        guess: the best guess that ignores the input, if it differs from the target's.
        misfit: returns why label names do not fit the metric, as words after "The metric NAME"; None if they fit.
        note: a sentence below tables that explains scores of the model's prediction head.
        task_name: the default name that `papa init` gives to a task of this metric.
        of_class: whether the score is about the second of two classes only.
    """

    name: str
    title: str
    target: Target
    counts: Callable[[Outcomes], Counts]
    score: Callable[[Counts], np.ndarray]
    also_reported: tuple[str, ...] = ()
    low: float = 0.0
    high: float = 1.0
    column: str = "predicted"
    has_floors: bool = True
    log_scaled: bool = False
    guess: Guesser | None = None
    misfit: Callable[[Sequence[str]], str | None] = lambda names: None
    note: str = ""
    task_name: str = "classes"
    of_class: bool = False

    @property
    def readings(self) -> tuple[str, ...]:
        """The metric itself, and the metrics that are reported with it."""
        return (self.name, *self.also_reported)


def _majority(what: str, names: Sequence[str], train_counts: Sequence[int]) -> Guess:
    label = train_counts.index(max(train_counts))
    return Guess(f"the majority {what}, {names[label]}", label)


def _second_class(names: Sequence[str], train_counts: Sequence[int]) -> Guess:
    # not the majority: if that is the first class, its F1 is 0, and any probe would beat it
    return Guess(f"calling everything {names[1]}", 1)


def _no_entity(names: Sequence[str], train_counts: Sequence[int]) -> Guess:
    return (
        Guess("finding no entity", names.index("O"))
        if "O" in names
        else _majority("tag", names, train_counts)
    )


def _frequent_tokens(names: Sequence[str], train_counts: Sequence[int]) -> Guess:
    return Guess("a guess from how frequent tokens are")


def _not_two_labels(names: Sequence[str]) -> str | None:
    if len(names) == 2:
        return None
    return f"needs two labels, but there are {len(names)} ({', '.join(names)}); use accuracy"


def _not_entity_tags(names: Sequence[str]) -> str | None:
    unlike = [name for name in names if not re.fullmatch(r"O|[BIESLUM]-.+", name)]
    if not unlike:
        return None
    few = ", ".join(repr(name[:40]) for name in unlike[:5])
    return (
        f"needs labels O, B-..., I-... (and E-, S-; or L-, U-; or M-), but there is {few}; use token_accuracy, or name "
        "the classes under labels"
    )


def _right(outcomes: Outcomes) -> Counts:
    """Count correct predictions and all predictions."""
    right = outcomes.gold == outcomes.predicted
    return outcomes.summed(right, np.ones_like(right))


def _binary(outcomes: Outcomes) -> Counts:
    """Count correct, predicted and gold items of the class with index 1."""
    gold = outcomes.gold == 1
    predicted = outcomes.predicted == 1
    return outcomes.summed(gold & predicted, predicted, gold)


def _by_label(outcomes: Outcomes) -> Counts:
    """Count the correct, the gold and the predicted items of each label, `[unit, 3 * label]`."""
    gold = outcomes.gold
    predicted = outcomes.predicted
    # no confusion matrix of each unit, whose size would grow with the square of the number of labels
    labels = range(len(outcomes.names))
    correct = np.where(gold == predicted, gold, -1)
    return outcomes.summed(
        *(items == label for items in (correct, gold, predicted) for label in labels)
    )


LETTERS = {"L": "E", "U": "S", "M": "I"}
"""The letters of BILOU and BMES tags that mean the same as letters of IOBES tags."""


def _entities(outcomes: Outcomes, letters: Mapping[str, str] | None = None) -> Counts:
    """Count correct, predicted and gold entities by the rules of seqeval's default mode, with `letters` replaced."""
    # a label name is a mark (B, I, E, S, O or ".") and a type; the type of a bare tag is the rest of its name
    marks = np.array([(letters or {}).get(name[:1], name[:1]) for name in outcomes.names])
    types = np.array([name[1:].split("-", maxsplit=1)[-1] or "_" for name in outcomes.names])
    kinds, type_numbers = np.unique(types, return_inverse=True)
    # seqeval gives a word outside every entity the same type as a bare tag of one character
    outside = kinds.tolist().index("_") if "_" in kinds else -1
    words = np.arange(len(outcomes.gold))
    ends = np.flatnonzero(np.diff(outcomes.unit, append=outcomes.unit[-1] + 1))
    gaps = words + np.searchsorted(ends, words)
    spans = []
    for labels in (outcomes.gold, outcomes.predicted):
        # like seqeval, put a word outside every entity after each sentence
        size = len(labels) + len(ends) + 1
        mark = np.full(size, "O")
        kind = np.full(size, outside)
        kind[0] = -1
        mark[gaps + 1], kind[gaps + 1] = marks[labels], type_numbers[labels]
        before = mark[:-1]
        now = mark[1:]
        differs = kind[:-1] != kind[1:]
        inside = np.isin(now, ["E", "I"])
        start = np.isin(now, ["B", "S"]) | (np.isin(before, ["E", "S", "O"]) & inside)
        start |= ~np.isin(now, ["O", "."]) & differs
        end = np.isin(before, ["E", "S"]) | (
            np.isin(before, ["B", "I"]) & np.isin(now, ["B", "S", "O"])
        )
        end |= ~np.isin(before, ["O", "."]) & differs
        last_start = np.maximum.accumulate(np.where(start, np.arange(len(start)), 0))
        begin = np.concatenate([[0], last_start[:-1]])
        spans.append((end, begin, kind[:-1]))
    (gold, *gold_spans), (predicted, *predicted_spans) = spans
    same = [first == second for first, second in zip(gold_spans, predicted_spans, strict=True)]
    right = gold & predicted & np.all(same, axis=0)
    # count an entity at its last word, one position before its end
    return outcomes.summed(*(entities[gaps + 1] for entities in (right, predicted, gold)))


def _sums(outcomes: Outcomes) -> Counts:
    """Sum the losses of the tokens of a text, and count these tokens."""
    return outcomes.summed(outcomes.predicted, np.ones(len(outcomes.predicted)))


def _divided(above: np.ndarray, below: np.ndarray) -> np.ndarray:
    """Divide elementwise; quotients with a divisor of 0 are 0."""
    lower = np.asarray(below, float)
    quotient: np.ndarray = np.divide(above, lower, out=np.zeros_like(lower), where=lower != 0)
    return quotient


def _share(counts: Counts) -> np.ndarray:
    return _divided(counts[..., 0], counts[..., 1])


def _f1(counts: Counts) -> np.ndarray:
    """Return F1 from the counts of correct, predicted and gold items."""
    return _divided(2 * counts[..., 0], counts[..., 1] + counts[..., 2])


def _matthews(counts: Counts) -> np.ndarray:
    """Return the correlation of gold and predicted labels from the correct, gold and predicted items of each label."""
    correct, gold, predicted = np.split(counts, 3, axis=-1)
    right = correct.sum(-1)
    total = gold.sum(-1)
    spread = (total**2 - (gold**2).sum(-1)) * (total**2 - (predicted**2).sum(-1))
    return _divided(right * total - (gold * predicted).sum(-1), np.sqrt(spread))


def _nats(counts: Counts) -> np.ndarray:
    """Return the negative mean loss from summed losses and token counts."""
    return -_share(counts)


def _perplexity(counts: Counts) -> np.ndarray:
    """Return the exponential of the mean loss per token."""
    perplexity: np.ndarray = np.exp(_share(counts))
    return perplexity


TEXT = Target(
    "text",
    "with one label per text (on a corpus without words)",
    usual_metric="accuracy",
    guess=partial(_majority, "class"),
    labelled=True,
)
WORD = Target(
    "word",
    "with one label per word (on a corpus of words)",
    usual_metric="token_accuracy",
    guess=partial(_majority, "tag"),
    labelled=True,
    per_word=True,
)
MASKED = Target(
    "masked",
    "without labels (masked language modelling)",
    usual_metric="negative_log_perplexity",
    guess=_frequent_tokens,
    decoder=False,
    right="position",
)
NEXT = Target(
    "next",
    "without labels (language modelling, by a decoder's own head)",
    usual_metric="log_likelihood",
    guess=_frequent_tokens,
    probed=False,
    decoder=True,
    right="position",
)
TARGETS = {target.name: target for target in (NEXT, MASKED, WORD, TEXT)}
"""All kinds of tasks by name."""
_OF_LOSSES: dict[str, Any] = {"low": -math.inf, "high": 0.0, "column": "loss", "log_scaled": True}
_METRICS = (
    Measure("accuracy", "Accuracy", TEXT, counts=_right, score=_share),
    Measure(
        "f1",
        "F1",
        TEXT,
        counts=_binary,
        score=_f1,
        also_reported=("accuracy",),
        guess=_second_class,
        misfit=_not_two_labels,
        of_class=True,
    ),
    Measure(
        "matthews_correlation",
        "Matthews correlation",
        TEXT,
        counts=_by_label,
        score=_matthews,
        also_reported=("accuracy",),
        low=-1.0,
    ),
    Measure(
        "entity_f1",
        "Entity F1",
        WORD,
        counts=partial(_entities, letters=LETTERS),
        score=_f1,
        also_reported=("token_accuracy",),
        guess=_no_entity,
        misfit=_not_entity_tags,
        task_name="entities",
    ),
    Measure(
        "token_accuracy",
        "Token accuracy",
        WORD,
        counts=_right,
        score=_share,
        also_reported=("chunk_f1",),
        task_name="tagging",
    ),
    Measure(
        "negative_log_perplexity",
        "Negative log perplexity",
        MASKED,
        counts=_sums,
        score=_nats,
        task_name="masked",
        **_OF_LOSSES,
    ),
    Measure(
        "log_likelihood",
        "Log-likelihood",
        NEXT,
        counts=_sums,
        score=_nats,
        also_reported=("perplexity",),
        note="Log-likelihood: of a validation token by the model's own head, in nats, ± half-width of the 95% interval "
        "over texts and orders.",
        task_name="next-token",
        **_OF_LOSSES,
    ),
    # like the published code, accept any label names, even tags without a type
    Measure("chunk_f1", "Chunk F1", WORD, counts=_entities, score=_f1),
    Measure(
        "perplexity",
        "Perplexity",
        NEXT,
        counts=_sums,
        score=_perplexity,
        low=1.0,
        high=math.inf,
        column="loss",
        has_floors=False,
    ),
)
MEASURES = {measure.name: measure for measure in _METRICS}
"""All metrics by name, including those that are only reported with a task's metric."""
METRICS = {
    name: measure for name, measure in MEASURES.items() if name not in ("chunk_f1", "perplexity")
}
"""The metrics that a task can have, by name. Losses and likelihoods are per token, in nats."""


def positive_class(metric: str, names: Sequence[str]) -> str | None:
    """Return the class that a metric is about, the second of two; None if it is about all classes."""
    return names[1] if MEASURES[metric].of_class and len(names) == 2 else None


def frequent_class(metric: str, names: Sequence[str], train_counts: Sequence[int]) -> str:
    """Return a sentence if a metric is about the more frequent class, to be shown unless the task lists its labels."""
    positive = positive_class(metric, names)
    if positive is None or train_counts[1] <= train_counts[0]:
        return ""
    share = train_counts[1] / sum(train_counts)
    return (
        f"{MEASURES[metric].title} is that of {positive}, the class of {share:.0%} of the training rows; if {names[0]} "
        f"is the class of interest, list it second under `labels`."
    )


def check_metric(metric: str, target: Target, names: Sequence[str] | None = None) -> None:
    """Raise `InputError` if the metric does not fit the task or the names of its labels.

    Args:
        metric: one of `METRICS`.
        target: what the task predicts.
        names: the names of the labels, if they are known.
    """
    measure = METRICS[metric]
    if measure.target is not target:
        fitting = ", ".join(name for name, other in METRICS.items() if other.target is target)
        raise InputError(
            f"The metric {metric} is for tasks {measure.target.description}, but this is a task {target.description}; "
            f"use one of {fitting}."
        )
    if names and (misfit := measure.misfit(names)):
        raise InputError(f"The metric {metric} {misfit}.")


def pseudo_values(measure: Measure, counts: Counts) -> np.ndarray:
    """Return each unit's contribution to the score of `counts` `[..., unit, count]` (Tukey's jackknife), `[..., unit]`.

    Their mean is the score.
    """
    units = counts.shape[-2]
    total = counts.sum(-2, keepdims=True)
    score = measure.score(total)  # [..., 1]
    if units < 2:
        return np.broadcast_to(score, counts.shape[:-1]).copy()
    values = units * score - (units - 1) * measure.score(total - counts)
    # the mean of raw pseudo-values is the score with a correction of bias, which no table shows
    centred: np.ndarray = values - values.mean(-1, keepdims=True) + score
    return centred
