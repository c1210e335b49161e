"""The objective of each kind of task: a new probe predicts labels of texts or of words (paper, Sec. 4), or tokens."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from papa.config.measures import TEXT, WORD
from papa.data.tokenize import tokenizer_of
from papa.data.tokens import Tokens, whole_numbers
from papa.files import PathLike, read_facts, read_table
from papa.method.objective import IGNORED, Batch, Objective, OutcomesBySplit, outcomes_table
from papa.method.probes import ProbeSizes, SequenceProbe, TokenProbe
from papa.method.token_prediction import MaskedTokens, Masking, NextTokens
from papa.model.model import Model
from papa.stages import Job, OfTask

if TYPE_CHECKING:
    import pyarrow as pa

EVALUATED_AT_ONCE = 64
"""Number of examples whose labels are predicted at once."""


@dataclass(frozen=True)
class GoldLabels:
    """The right labels of the training split, and the label names.

    `values` has indices into `names`, int64: `[example]`, or `[token]` with IGNORED for no label.
    """

    values: Tensor
    names: Sequence[str]

    @classmethod
    def read(cls, path: PathLike, column: str, train: Tokens) -> GoldLabels:
        """Read a column of labels from the table of the corpus; those of other splits never reach a probe."""
        table = read_table(path)
        names = read_facts(path)["labels"][column.removeprefix("label ")]["names"]
        values = table.slice(0, train.rows[1]).column(column).combine_chunks()
        if train.words is None:
            return cls(whole_numbers(values), names)
        flat = whole_numbers(values.flatten())
        lengths = whole_numbers(values.value_lengths())
        begin = (lengths.cumsum(0) - lengths).repeat_interleave(train.lengths)
        labels = flat[(begin + train.words).clamp(0, len(flat) - 1)]
        return cls(torch.where((train.words >= 0) & (labels >= 0), labels, IGNORED), names)


class Labelled(Objective):
    """An objective with a label for each text, or for each word, which its first sub-token predicts.

    `splits` has the tokens of each split; `sizes` are those of the hidden states that the probe reads.
    """

    probe: SequenceProbe | TokenProbe

    def __init__(self, splits: Mapping[str, Tokens], sizes: ProbeSizes, labels: GoldLabels):
        self.splits = splits
        self.names = list(labels.names)
        # of other splits, every text or every word is predicted
        self.labels = {"train": labels.values}
        for split in splits.keys() - {"train"}:
            words = splits[split].words
            values = (
                torch.zeros(len(splits[split]), dtype=torch.long) if words is None else words.long()
            )
            self.labels[split] = values.clamp(max=0).masked_fill(values < 0, IGNORED)
        self.target = TEXT if splits["train"].words is None else WORD
        shape = (sizes.hidden, len(self.names))
        spread = sizes.initializer_range
        if self.target.per_word:
            self.probe = TokenProbe(sizes.layers, *shape, spread)
        else:
            self.probe = SequenceProbe(
                sizes.layers, sizes.slots, *shape, sizes.probe_dropout, spread
            )

    def loss(self, batch: Batch, hidden: Tensor) -> Tensor:
        if not len(batch.gold):  # the mean over no words would be NaN
            return 0 * (
                hidden.sum()
                + torch.stack([values.sum() for values in self.probe.parameters()]).sum()
            )
        return cross_entropy(self._logits(batch, hidden), batch.gold.to(hidden.device))

    def scored(self) -> Iterator[Batch]:
        for split, tokens in self.splits.items():
            if split != "train":
                for examples in torch.arange(len(tokens)).split(EVALUATED_AT_ONCE):
                    yield self._batch(split, examples)

    def outcomes(self, batch: Batch, hidden: Tensor) -> Tensor:
        """Return the predicted label of each example, or of each labelled word."""
        return self._logits(batch, hidden).argmax(-1) if len(batch.gold) else batch.gold

    def table(self, outcomes: OutcomesBySplit) -> pa.Table:
        """Return a row for each example, or for each word that has a token, with the predicted label."""
        import pyarrow as pa

        parts = []
        for split, tokens in self.splits.items():
            if split == "train":
                continue
            columns = {"example": torch.arange(len(tokens))}
            if tokens.words is not None:
                labelled = self.labels[split] != IGNORED
                of_tokens = columns["example"].repeat_interleave(tokens.lengths)
                columns = {"example": of_tokens[labelled], "word": tokens.words[labelled]}
            parts.append(outcomes_table(split, columns | {"predicted": outcomes[split]}))
        return pa.concat_tables(parts).unify_dictionaries()

    def _batch(self, split: str, examples: Tensor) -> Batch:
        tokens = self.splits[split]
        labels = self.labels[split]
        packed = tokens.batch(examples)
        if not self.target.per_word:
            return Batch(tokens, examples, packed, labels[examples])
        token_labels = labels[tokens.tokens_of(examples)]
        positions = (token_labels != IGNORED).nonzero().squeeze(1)
        return Batch(tokens, examples, packed, token_labels[positions], positions)

    def _logits(self, batch: Batch, hidden: Tensor) -> Tensor:
        """Return logits `[example, label]`, or `[labelled token, label]`."""
        if isinstance(self.probe, SequenceProbe):
            return self.probe.packed(hidden, batch.packed.to(hidden.device))
        return self.probe.packed(hidden)


def objective_of(
    job: Job[OfTask], splits: Mapping[str, Tokens], sizes: ProbeSizes, model: Model | None
) -> Objective:
    """Return the objective of a job, with a new probe if one is trained; raise `InputError` if the model does not fit.

    The model is None if hidden states are stored. The seed of the job determines the masks.
    """
    target = job.settings.target
    objective: Objective
    if target.labelled:
        labels = GoldLabels.read(job.reads["labels"], job.label, splits["train"])
        objective = Labelled(splits, sizes, labels)
    elif model is None:
        raise RuntimeError(f"{target.name} needs the model")
    elif target.probed:
        MaskedTokens.check(model)  # first, because the tokenizer of a decoder has no mask
        name = job.about["model"]
        masking = Masking.of(tokenizer_of(job.reads["model"], name), name)
        objective = MaskedTokens(splits, model, masking, job.settings.seed)
    else:
        objective = NextTokens(splits, model, f"task {job.about['task']}")
    if model is not None:
        objective.probe.to(model.device)
    return objective
