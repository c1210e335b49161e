"""The objective of a new probe that predicts labels of texts or of words (paper, Sec. 4)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from papa.config.measures import TEXT, WORD
from papa.data.tokens import Tokens, whole_numbers
from papa.errors import DamagedArtefact
from papa.files import REBUILD, PathLike, provenance_of, read_table
from papa.method.fitting import Recorded
from papa.method.objective import IGNORED, Batch, Objective, columns_by_epoch, outcomes_table
from papa.method.probes import ProbeSizes, SequenceProbe, TokenProbe

if TYPE_CHECKING:
    import pyarrow as pa

    from papa.config.job import Job
    from papa.config.stages import OfTask
    from papa.model.model import Model

EVALUATED_AT_ONCE = 64
"""Number of examples whose labels are predicted at once."""


@dataclass(frozen=True)
class GoldLabels:
    """The right labels of each split, and the label names.

    `values` has indices into `names`, int64 for each split: `[example]`, or `[token]` with IGNORED for no label.
    """

    values: Mapping[str, Tensor]
    names: Sequence[str]

    @classmethod
    def read(cls, splits: Mapping[str, Tokens], path: PathLike) -> GoldLabels:
        """Read the labels of all splits; raise `DamagedArtefact` if they belong to other texts."""
        values, table = {}, read_table(path)
        facts = provenance_of(table)
        if facts.get("fingerprint") != splits["train"].provenance["corpus"]:
            raise DamagedArtefact(f"{path} was not made from the texts of these tokens; {REBUILD}.")
        for split, tokens in splits.items():
            column = table.slice(*tokens.rows).column("label").combine_chunks()
            if tokens.words is None:
                values[split] = whole_numbers(column)
                continue
            flat, lengths = whole_numbers(column.flatten()), whole_numbers(column.value_lengths())
            begin = (lengths.cumsum(0) - lengths).repeat_interleave(tokens.lengths)
            token_labels = flat[(begin + tokens.words).clamp(0, len(flat) - 1)]
            values[split] = torch.where((tokens.words >= 0) & (token_labels >= 0), token_labels, IGNORED)
        return cls(values, facts["label_names"])


class Labelled(Objective):
    """An objective with a label for each text, or for each word, which its first sub-token predicts.

    `splits` has the tokens of each split; `sizes` are those of the hidden states that the probe reads.
    """

    probe: SequenceProbe | TokenProbe

    def __init__(self, splits: Mapping[str, Tokens], sizes: ProbeSizes, labels: GoldLabels):
        self.splits, self.labels, self.names = splits, labels.values, list(labels.names)
        self.target = TEXT if splits["train"].words is None else WORD
        shape, spread = (sizes.hidden, len(self.names)), sizes.initializer_range
        if self.target.per_word:
            self.probe = TokenProbe(sizes.layers, *shape, spread)
        else:
            self.probe = SequenceProbe(sizes.layers, sizes.slots, *shape, sizes.probe_dropout, spread)

    @classmethod
    def of(
        cls, job: Job[OfTask], splits: Mapping[str, Tokens], sizes: ProbeSizes, model: Model | None, seed: int
    ) -> Labelled:
        return cls(splits, sizes, GoldLabels.read(splits, job.input("labels")))

    @property
    def facts(self) -> dict[str, object]:
        return {"label_names": self.names}

    def loss(self, batch: Batch, hidden: Tensor) -> Tensor:
        if not len(batch.gold):  # the mean over no words would be NaN
            return 0 * (hidden.sum() + torch.stack([values.sum() for values in self.probe.parameters()]).sum())
        return cross_entropy(self._logits(batch, hidden), batch.gold.to(hidden.device))

    def scored(self) -> Iterator[Batch]:
        for split, tokens in self.splits.items():
            if split != "train":
                for examples in torch.arange(len(tokens)).split(EVALUATED_AT_ONCE):
                    yield self._batch(split, examples)

    def outcomes(self, batch: Batch, hidden: Tensor) -> Tensor:
        """Return the predicted label of each example, or of each labelled word."""
        return self._logits(batch, hidden).argmax(-1) if len(batch.gold) else batch.gold

    def table(self, epochs: Sequence[Recorded]) -> pa.Table:
        """Return a row for each example, or for each labelled word, with the right and the predicted label."""
        import pyarrow as pa

        parts = []
        for split, tokens in self.splits.items():
            if split == "train":
                continue
            labelled, columns = self.labels[split] != IGNORED, {"example": torch.arange(len(tokens))}
            if tokens.words is not None:
                of_tokens = columns["example"].repeat_interleave(tokens.lengths)
                columns = {"example": of_tokens[labelled], "word": tokens.words[labelled]}
            columns |= {"gold": self.labels[split][labelled]}
            columns |= columns_by_epoch("predicted", [epoch[split] for epoch in epochs])
            parts.append(outcomes_table(split, columns))
        return pa.concat_tables(parts).unify_dictionaries()

    def _batch(self, split: str, examples: Tensor) -> Batch:
        tokens, labels = self.splits[split], self.labels[split]
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
