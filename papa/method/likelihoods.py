"""Objectives without a probe: a decoder's prediction head predicts the next tokens of texts or of choices."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from papa.config.measures import CHOICE, NEXT
from papa.data.packed import Packed
from papa.data.tokens import Tokens, whole_numbers
from papa.errors import InputError
from papa.files import PathLike, provenance_of
from papa.method.fitting import Recorded
from papa.method.objective import IGNORED, Batch, States, labels_file, outcomes_table
from papa.method.original_logits import OriginalLogits
from papa.method.token_prediction import DECODED_AT_ONCE, TokenPrediction, table_of_texts
from papa.model.model import Model

if TYPE_CHECKING:
    import pyarrow as pa

    from papa.config.job import Job
    from papa.config.stages import OfTask


class NextTokens(TokenPrediction):
    """Next tokens: each token of a text except the first, special or not, is predicted from those before it.

    Raises:
        InputError: the model sees later tokens, or no validation text has two tokens.

    Outcomes have the divergence from the `original`; None runs it on each text again.
    """

    target = NEXT

    def __init__(self, splits: Mapping[str, Tokens], model: Model, original: OriginalLogits | None = None):
        _check_causal(model, "log_likelihood needs a decoder, and negative_log_perplexity masks tokens")
        if "validation" in splits and not bool((splits["validation"].lengths > 1).any()):
            raise InputError(
                "No text of the validation split has a next token, because each has only one token; use longer texts."
            )
        self.splits, self.model, self.probe = splits, model, nn.Identity()
        self.original = original or OriginalLogits(model)

    @classmethod
    def of_model(cls, job: Job[OfTask], splits: Mapping[str, Tokens], model: Model, seed: int) -> NextTokens:
        return cls(splits, model, OriginalLogits.of(job, model))

    def loss(self, batch: Batch, hidden: Tensor) -> Tensor:
        """Return the mean cross-entropy in nats, differentiable in the logits `hidden` `[token, word]`."""
        predicted = (batch.gold != IGNORED).sum().clamp(min=1)
        return cross_entropy(hidden, batch.gold.to(hidden.device), ignore_index=IGNORED, reduction="sum") / predicted

    def predictions(self, batch: Batch) -> int:
        return int((batch.gold != IGNORED).sum())

    def outcomes_on(self, states: States) -> Recorded:
        with self.original.kept():
            return super().outcomes_on(states)

    def outcomes(self, batch: Batch, hidden: Tensor) -> Tensor:
        """Return each text's summed loss, and its summed divergence from the original, in nats: `[example, 2]`."""
        original = self.original.logits(batch.packed, hidden)
        gold = batch.gold.to(hidden.device)
        text = batch.example_of.to(hidden.device)
        sums = hidden.new_zeros(len(batch.examples), 2, dtype=torch.float64)
        for chunk in torch.arange(len(gold), device=hidden.device).split(DECODED_AT_ONCE):
            rows = chunk[gold[chunk] != IGNORED]
            predicted, reference = hidden[rows].log_softmax(-1), original[rows].log_softmax(-1)
            loss = -predicted.gather(1, gold[rows, None]).squeeze(1)
            divergence = (reference.exp() * (reference - predicted)).sum(-1)
            sums.index_add_(0, text[rows], torch.stack([loss, divergence], dim=1).double())
        return sums

    def table(self, epochs: Sequence[Recorded]) -> pa.Table:
        """Return a row for each text of the validation split: its number of tokens, summed loss and divergence.

        `trivial` is the loss of a guess from the token counts in the training texts, each increased by one.
        """
        tokens, train = self.splits["validation"], self.splits["train"]
        words = int(self.model.config.get_text_config().vocab_size)
        counts = torch.bincount(train.ids[_has_predecessor(train)].long(), minlength=words).double()
        loss, kl = self.in_text_order(epochs[-1]["validation"]).unbind(1)
        return table_of_texts(tokens, _has_predecessor(tokens), counts + 1, {"loss": loss, "kl": kl})

    def _batch(self, split: str, examples: Tensor) -> Batch:
        tokens = self.splits[split]
        packed = tokens.batch(examples)
        return Batch(tokens, examples, packed, _next_tokens(packed))


class Choices(TokenPrediction):
    """Choices after their questions; the prediction is the choice with the highest likelihood.

    The likelihood of a choice is that of its tokens after the question. The softmax over the log-likelihoods of a
    question's choices yields their probabilities; the loss is the cross-entropy of the right choice in nats. A training
    example is a question, but choices are scored one by one. Without a file of `labels`, the first choice is right.

    Raises:
        InputError: the model sees later tokens.
        DamagedArtefact: the labels belong to other texts.
    """

    target = CHOICE

    def __init__(self, splits: Mapping[str, Tokens], model: Model, labels: PathLike | None):
        _check_causal(model, "choice_accuracy needs a decoder")
        self.splits, self.model, self.probe = splits, model, nn.Identity()
        self.questions = {split: tokens.questions for split, tokens in splits.items() if tokens.questions is not None}
        self.most_frequent: int | None = None
        """The choice that is right most often in training; None without a file of labels."""
        if labels is None:
            self.right = {split: torch.zeros(len(each), dtype=torch.long) for split, each in self.questions.items()}
        else:
            self.right, self.most_frequent = _right_choices(splits, labels)

    @classmethod
    def of_model(cls, job: Job[OfTask], splits: Mapping[str, Tokens], model: Model, seed: int) -> Choices:
        return cls(splits, model, job.optional_input("labels"))

    @property
    def facts(self) -> dict[str, object]:
        choices = max(int(questions.sizes.max()) for questions in self.questions.values())
        return {"label_names": [str(index) for index in range(choices)]}

    @property
    def examples(self) -> int:
        """Number of training questions."""
        return len(self.questions["train"])

    def batch(self, examples: Tensor) -> Batch:
        """Return all choices of some training questions, given the indices of the questions."""
        return self._batch("train", self.questions["train"].choices_of(examples))

    def loss(self, batch: Batch, hidden: Tensor) -> Tensor:
        """Return the mean cross-entropy of the right choices, differentiable in the logits `hidden` `[token, word]`."""
        split = batch.tokens.split
        questions, sizes = self.questions[split].question[batch.examples].unique_consecutive(return_counts=True)
        likely = _by_question(self._log_likelihoods(batch, hidden), sizes)
        return cross_entropy(likely, self.right[split][questions].to(likely.device))

    def predictions(self, batch: Batch) -> int:
        """Return the number of questions."""
        return len(self.questions[batch.tokens.split].question[batch.examples].unique())

    def scored_splits(self) -> list[str]:
        return [split for split in self.splits if split != "train"]

    def outcomes(self, batch: Batch, hidden: Tensor) -> Tensor:
        """Return the log-likelihood of each choice in nats, `[example]`."""
        return self._log_likelihoods(batch, hidden).double()

    def table(self, epochs: Sequence[Recorded]) -> pa.Table:
        """Return a row for each question, with the right choice and the predicted ones.

        A choice is predicted by its total log-likelihood, and by its mean log-likelihood per character.

        `trivial` is 1 if the choice that is right most often in training is also right here, and otherwise 0. Without a
        file of labels, it is one divided by the number of choices.
        """
        import pyarrow as pa

        parts, usual = [], self.most_frequent
        for split in self.scored_splits():
            questions, right = self.questions[split], self.right[split]
            likely = self.in_text_order(epochs[-1][split], split)
            columns = {
                "example": torch.arange(len(questions)),
                "gold": right,
                "trivial": 1 / questions.sizes.double() if usual is None else (right == usual).double(),
                "predicted": _predicted(_by_question(likely, questions.sizes), right),
                "normalised": _predicted(_by_question(likely / questions.characters, questions.sizes), right),
            }
            parts.append(outcomes_table(split, columns))
        return pa.concat_tables(parts).unify_dictionaries()

    def _batch(self, split: str, examples: Tensor) -> Batch:
        tokens = self.splits[split]
        packed = tokens.batch(examples)
        first = packed.lengths.cumsum(0) - packed.lengths + self.questions[split].begin[examples]
        of_choice = torch.arange(len(packed.ids)) >= (first - 1).repeat_interleave(packed.lengths)
        return Batch(tokens, examples, packed, _next_tokens(packed).where(of_choice, IGNORED))

    def _log_likelihoods(self, batch: Batch, hidden: Tensor) -> Tensor:
        """Return the log-likelihoods of choices in nats, summed over their tokens, `[example]`."""
        gold = batch.gold.to(hidden.device)
        positions = (gold != IGNORED).nonzero().squeeze(1)
        choice = batch.example_of.to(hidden.device)[positions]
        parts = [cross_entropy(hidden[rows], gold[rows], reduction="none") for rows in positions.split(DECODED_AT_ONCE)]
        nats = torch.cat(parts)
        return nats.new_zeros(len(batch.examples)).index_add(0, choice, -nats)


def _right_choices(splits: Mapping[str, Tokens], labels: PathLike) -> tuple[dict[str, Tensor], int]:
    """Return the right choice of each question, `[question]` by split, and the most frequent one in training."""
    import pyarrow.compute as pc

    table = labels_file(labels, splits)
    right = {}
    for split, tokens in splits.items():
        labels_of_split = table.filter(pc.equal(table["split"], tokens.source)).column("label").combine_chunks()
        right[split] = whole_numbers(labels_of_split).long()
        if tokens.questions is not None:
            right[split] = right[split][tokens.questions.rows]
    counts = list(provenance_of(table)["train_counts"])
    return right, counts.index(max(counts))


def _by_question(values: Tensor, sizes: Tensor) -> Tensor:
    """Return `values` `[example]` as `[question, choice]`, padded with -inf; `sizes` counts choices."""
    exists = torch.arange(int(sizes.max())) < sizes[:, None]
    return values.new_full(exists.shape, -torch.inf).masked_scatter(exists.to(values.device), values)


def _predicted(likely: Tensor, right: Tensor) -> Tensor:
    """Return the most likely choice of each question; if the right one ties with another, return the other.

    `likely` is `[question, choice]`, and `right` has the right choices, `[question]`.
    """
    best, wrong = likely.scatter(1, right[:, None], -torch.inf).max(1)
    return torch.where(likely.gather(1, right[:, None]).squeeze(1) > best, right, wrong)


def _check_causal(model: Model, needed: str) -> None:
    if not model.causal:
        raise InputError(f"{type(model.full).__name__} sees later tokens, so it cannot predict the next one; {needed}.")


def _next_tokens(packed: Packed) -> Tensor:
    """Return the token that follows each token of a packed row in its text, `[token]`; IGNORED at the end of a text."""
    gold = packed.ids.roll(-1)
    gold[packed.lengths.cumsum(0) - 1] = IGNORED
    return gold


def _has_predecessor(tokens: Tokens) -> Tensor:
    """Return whether each token of a split is preceded by another in its text, bool `[token]`."""
    preceded = torch.ones(len(tokens.ids), dtype=torch.bool)
    preceded[tokens.offsets[:-1]] = False
    return preceded
