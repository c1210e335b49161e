"""The objective of a new probe that predicts labels of texts or of words (paper, Sec. 4)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from papa.data.tokens import Tokens, whole_numbers
from papa.files import JSON, PathLike, provenance_of, read_table
from papa.method.fitting import Kept
from papa.method.objective import IGNORED, Batch, Objective, check_labels_belong, columns_by_epoch
from papa.method.probes import ProbeSizes, SequenceProbe, TokenProbe

if TYPE_CHECKING:
    import pyarrow as pa

EVALUATED_AT_ONCE = 64
"""Examples whose labels are predicted together."""


@dataclass(frozen=True)
class GoldLabels:
    """The right labels of the examples of each split, or of their words.

    Args:
        values: int64 by split, indices of names: `[example]`, or `[token]` with IGNORED where a token has no label.
        names: the names of the labels.
    """

    values: Mapping[str, Tensor]
    names: Sequence[str]

    @classmethod
    def read(cls, splits: Mapping[str, Tokens], path: PathLike) -> GoldLabels:
        """Read the labels of all splits from their file; raise `DamagedArtefact` if they are those of other texts."""
        table, values = read_table(path), {}
        facts = provenance_of(table)
        check_labels_belong(path, facts, splits)
        for split, tokens in splits.items():
            column = table.slice(*tokens.rows).column("label").combine_chunks()
            if tokens.words is None:
                values[split] = whole_numbers(column)
                continue
            flat, lengths = whole_numbers(column.flatten()), whole_numbers(column.value_lengths())
            begin = (lengths.cumsum(0) - lengths).repeat_interleave(tokens.lengths)
            of_tokens = flat[(begin + tokens.words).clamp(0, len(flat) - 1)]
            values[split] = torch.where((tokens.words >= 0) & (of_tokens >= 0), of_tokens, IGNORED)
        return cls(values, facts["label_names"])


class Labelled(Objective):
    """One label for each text, or one for each word on its first sub-token.

    Args:
        splits: the tokens of all splits.
        sizes: those of the model whose hidden states are read.
        labels: the right labels.
    """

    probe: SequenceProbe | TokenProbe

    def __init__(self, splits: Mapping[str, Tokens], sizes: ProbeSizes, labels: GoldLabels):
        self.splits, self.labels, self.names = splits, labels.values, list(labels.names)
        self.of_words = splits["train"].words is not None
        shape = sizes.hidden, len(self.names)
        if self.of_words:
            self.probe = TokenProbe(sizes.layers, *shape, sizes.initializer_range)
        else:
            self.probe = SequenceProbe(sizes.layers, sizes.slots, *shape, sizes.probe_dropout, sizes.initializer_range)

    @property
    def facts(self) -> dict[str, JSON]:
        """The names of the labels."""
        return {"label_names": self.names}

    def batch(self, examples: Tensor) -> Batch:
        return self._batch("train", examples)

    def loss(self, batch: Batch, hidden: Tensor) -> Tensor:
        if not len(batch.gold):  # the mean over no word is not a number
            return 0 * (hidden.sum() + torch.stack([values.sum() for values in self.probe.parameters()]).sum())
        return cross_entropy(self._logits(batch, hidden), batch.gold.to(hidden.device))

    def scored(self) -> Iterator[Batch]:
        for split, tokens in self.splits.items():
            if split != "train":
                for examples in torch.arange(len(tokens)).split(EVALUATED_AT_ONCE):
                    yield self._batch(split, examples)

    def outcomes(self, batch: Batch, hidden: Tensor) -> Tensor:
        """Return the label that the probe predicts for each example, or for each labelled word."""
        return self._logits(batch, hidden).argmax(-1) if len(batch.gold) else batch.gold

    def table(self, epochs: Sequence[Kept]) -> pa.Table:
        """Return a row for each example, or for each labelled word, with its right and its predicted label."""
        import pyarrow as pa

        parts = []
        for split, tokens in self.splits.items():
            if split == "train":
                continue
            labels = self.labels[split]
            labelled = labels != IGNORED
            columns = {"example": torch.arange(len(tokens))}
            if tokens.words is not None:
                columns = {
                    "example": columns["example"].repeat_interleave(tokens.lengths)[labelled],
                    "word": tokens.words[labelled],
                }
            columns |= {"gold": labels[labelled]}
            columns |= columns_by_epoch("predicted", [epoch[split] for epoch in epochs])
            types = {"example": pa.int32(), "word": pa.int32()}
            arrays = {name: pa.array(values.numpy(), types.get(name, pa.int16())) for name, values in columns.items()}
            split_column = pa.array([split] * int(labelled.sum())).dictionary_encode()
            parts.append(pa.table({"split": split_column} | arrays))
        return pa.concat_tables(parts).unify_dictionaries()

    def _batch(self, split: str, examples: Tensor) -> Batch:
        tokens, labels = self.splits[split], self.labels[split]
        packed = tokens.batch(examples)
        if not self.of_words:
            return Batch(tokens, examples, packed, labels[examples])
        of_tokens = labels[tokens.tokens_of(examples)]
        places = (of_tokens != IGNORED).nonzero().squeeze(1)
        return Batch(tokens, examples, packed, of_tokens[places], places)

    def _logits(self, batch: Batch, hidden: Tensor) -> Tensor:
        """Return logits `[example, label]`, or `[labelled token, label]`."""
        if isinstance(self.probe, SequenceProbe):
            return self.probe.packed(hidden, batch.packed.to(hidden.device))
        return self.probe.packed(hidden)
