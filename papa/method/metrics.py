"""Scores of predictions: the metric of a task, further readings of the same predictions, and subsets apart."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypedDict

from papa.config.settings import METRICS
from papa.errors import InputError

if TYPE_CHECKING:
    import numpy as np

    Labels = Sequence[Any] | np.ndarray
    """Numbers of label names: one for each text, or a row of them for each list of words."""
    Subsets = Sequence[str] | Sequence[Sequence[str]]
    """A subset for each example, or one for each of its words."""


class Subset(TypedDict):
    """The score of some of the examples."""

    score: float
    examples: int


class Scores(TypedDict):
    """The score of predictions, further readings of them by metric, and subsets apart by their value."""

    score: float
    scores: dict[str, float]
    subsets: dict[str, Subset]


def evaluate(
    metric: str,
    gold: Labels,
    predicted: Labels,
    label_names: Sequence[str],
    subset: Subsets | None = None,
) -> Scores:
    """Score predictions.

    `gold` and `predicted` are indices into `label_names`: [example] for metrics of texts, [example][word] for metrics
    of words, where words with `gold` < 0 are left out. "scores" has the metric itself and further readings:

    - `f1` (of the class with index 1) and `matthews_correlation` come with `accuracy`.
    - `token_accuracy` is the share of right words, which is micro F1 over words. Beside it stands `chunk_f1`: the
      label names handed to seqeval as they are, bare part-of-speech tags too, as the published code does.
    - `entity_f1` is micro F1 over entities as seqeval's default mode finds them; beside it stands `token_accuracy`.

    `subset` has a string per example, or a list of strings per word; what has an empty one is in no subset. A subset
    of words cuts every sentence down to these words, and its "examples" are the sentences that have one. Scores that
    are not defined (no positive example, one class only) are 0. Raises `InputError` for an unknown metric, lengths
    that disagree, an index without a name, and nothing to score.
    """
    if metric not in _READINGS:
        raise InputError(f"There is no metric {metric!r}; there are {', '.join(_READINGS)}.")
    units = _units(gold, predicted, len(label_names), by_word=METRICS[metric] == "token")
    read = _READINGS[metric]
    scores = read(units, label_names)
    subsets: dict[str, Subset] = {}
    for value, members in _members(subset, gold, units).items():
        part = units.only(members)
        subsets[value] = {"score": read(part, label_names)[metric], "examples": part.examples}
    return {"score": scores[metric], "scores": scores, "subsets": subsets}


@dataclass(frozen=True)
class _Units:
    """What is scored, words or texts, one after the other: labels, predictions, number of the example [unit]."""

    gold: np.ndarray
    predicted: np.ndarray
    example: np.ndarray

    def only(self, members: np.ndarray) -> _Units:
        return _Units(self.gold[members], self.predicted[members], self.example[members])

    @property
    def examples(self) -> int:
        return len(set(self.example.tolist()))

    def sentences(self, labels: np.ndarray, names: Sequence[str]) -> list[list[str]]:
        """The names of `labels`, those of one example together."""
        import numpy as np

        starts = np.flatnonzero(np.diff(self.example)) + 1
        return [[names[label] for label in part.tolist()] for part in np.split(labels, starts)]


def _units(gold: Labels, predicted: Labels, labels: int, by_word: bool) -> _Units:
    """Everything with a label, laid out flat; raises `InputError` if gold and predictions do not correspond."""
    import numpy as np

    sizes = [len(row) for row in gold] if by_word else [1] * len(gold)
    if len(predicted) != len(gold) or (by_word and [len(row) for row in predicted] != sizes):
        raise InputError("There must be one prediction for each label; gold and predicted differ in length.")
    # the type is said, because an empty sentence alone would make floating-point numbers of all labels
    if by_word:
        none = np.zeros(0, np.int64)
        right, found = (
            np.concatenate([none, *(np.asarray(row, np.int64) for row in rows)]) for rows in (gold, predicted)
        )
    else:
        right, found = (np.asarray(rows, np.int64) for rows in (gold, predicted))
    if right.ndim != 1 or found.ndim != 1:
        raise InputError("This metric takes one label per example, but gold and predicted have several.")
    units = _Units(right, found, np.repeat(np.arange(len(gold)), sizes)).only(right >= 0)
    if not len(units.gold):
        raise InputError("There is nothing to score: no example has a label.")
    if max(units.gold.max(), units.predicted.max()) >= labels or units.predicted.min() < 0:
        raise InputError(f"Labels and predictions must be indices of the {labels} label names.")
    return units


def _members(subset: Subsets | None, gold: Labels, units: _Units) -> dict[str, np.ndarray]:
    """For each value of `subset`, in sorted order, the units that have it [unit]."""
    import numpy as np

    if subset is None:
        return {}
    if len(subset) != len(gold):
        raise InputError(f"There are {len(gold)} examples, but subsets of {len(subset)}.")
    if all(isinstance(mark, str) for mark in subset):
        marks = np.asarray(subset, dtype=object)[units.example]
    elif [len(row) for row in subset] != [np.size(row) for row in gold]:
        raise InputError("A list of subsets must have one for each word of its example.")
    else:
        labelled = np.concatenate([np.atleast_1d(row) for row in gold]) >= 0
        marks = np.asarray([mark for row in subset for mark in row], dtype=object)[labelled]
    return {value: marks == value for value in sorted(set(marks)) if value}


def _accuracy(units: _Units, names: Sequence[str]) -> dict[str, float]:
    return {"accuracy": float((units.gold == units.predicted).mean())}


def _f1(units: _Units, names: Sequence[str]) -> dict[str, float]:
    from sklearn.metrics import f1_score

    # labels=[1] and not pos_label=1, which raises if no example and no prediction has that class
    score = f1_score(units.gold, units.predicted, labels=[1], average="micro", zero_division=0.0)
    return {"f1": float(score)} | _accuracy(units, names)


def _matthews_correlation(units: _Units, names: Sequence[str]) -> dict[str, float]:
    from sklearn.metrics import matthews_corrcoef

    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="A single label was found")
        score = matthews_corrcoef(units.gold, units.predicted)
    return {"matthews_correlation": float(score)} | _accuracy(units, names)


def _entity_f1(units: _Units, names: Sequence[str]) -> dict[str, float]:
    return {"entity_f1": _seqeval_f1(units, names), "token_accuracy": _accuracy(units, names)["accuracy"]}


def _token_accuracy(units: _Units, names: Sequence[str]) -> dict[str, float]:
    return {"token_accuracy": _accuracy(units, names)["accuracy"], "chunk_f1": _seqeval_f1(units, names)}


def _seqeval_f1(units: _Units, names: Sequence[str]) -> float:
    from seqeval.metrics import f1_score

    gold, predicted = (units.sentences(labels, names) for labels in (units.gold, units.predicted))
    with warnings.catch_warnings():
        # It warns at every tag that is none of an entity's, which bare part-of-speech tags never are.
        warnings.filterwarnings("ignore", message=".*seems not to be NE tag")
        return float(f1_score(gold, predicted, average="micro", zero_division=0))


_READINGS: dict[str, Callable[[_Units, Sequence[str]], dict[str, float]]] = {
    "accuracy": _accuracy,
    "f1": _f1,
    "matthews_correlation": _matthews_correlation,
    "entity_f1": _entity_f1,
    "token_accuracy": _token_accuracy,
}
