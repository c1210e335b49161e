"""The tokens of a split with the labels of a task, and what a probe makes of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from papa.data.tokens import Tokens, whole_numbers
from papa.errors import DamagedArtefact
from papa.files import MEND, PathLike, provenance_of, read_table
from papa.method.metrics import evaluate
from papa.method.probes import SequenceProbe, TokenProbe

IGNORED = -100
EVALUATED_AT_ONCE = 64
HiddenOf = Callable[[Tensor], Tensor]
"""From example numbers to the hidden states of their tokens, float32 `[token, L+1, hidden]`."""


class Labelled:
    """The tokens of one split with the labels of a task: one per example, or one per word on its first sub-token."""

    def __init__(self, tokens: Tokens, labels: PathLike):
        table = read_table(labels)
        about = provenance_of(table)
        if about.get("fingerprint") != tokens.provenance["corpus"]:
            raise DamagedArtefact(f"{labels} labels other texts than these; {MEND}.")
        rows = table.slice(*tokens.rows)
        self.tokens, self.names = tokens, list(about["label_names"])
        self.subset = rows.column("subset").to_pylist() if "subset" in rows.column_names else None
        values = rows.column("label").combine_chunks()
        self.of_tokens = tokens.words is not None
        if tokens.words is None:
            self.labels = whole_numbers(values)
            return
        flat, lengths = whole_numbers(values.flatten()), whole_numbers(values.value_lengths())
        begin = (lengths.cumsum(0) - lengths).repeat_interleave(tokens.lengths)
        own = flat[(begin + tokens.words).clamp(0, len(flat) - 1)]
        self.labels = torch.where((tokens.words >= 0) & (own >= 0), own, IGNORED)

    def __len__(self) -> int:
        return len(self.tokens)

    def probe(self, about: Mapping[str, Any]) -> SequenceProbe | TokenProbe:
        """A new probe for this task on an encoder of `layers` hidden states of size `hidden`."""
        sizes = (about["hidden"], len(self.names))
        if self.of_tokens:
            return TokenProbe(about["layers"], *sizes, about["initializer_range"])
        return SequenceProbe(
            about["layers"], about["slots"], *sizes, about["probe_dropout"], about["initializer_range"]
        )

    def logits(self, probe: SequenceProbe | TokenProbe, examples: Tensor, hidden_of: HiddenOf) -> tuple[Tensor, Tensor]:
        """Logits and labels of `examples`, or of their labelled tokens."""
        hidden = hidden_of(examples)
        if isinstance(probe, SequenceProbe):
            return probe.packed(hidden, self.tokens.batch(examples).to(hidden.device)), self.labels[examples]
        labels = self.labels[self.tokens.tokens_of(examples)]
        labelled = labels != IGNORED
        return probe.packed(hidden[labelled.to(hidden.device)]), labels[labelled]

    def predictions(self, probe: SequenceProbe | TokenProbe, hidden_of: HiddenOf, examples: Tensor) -> Tensor:
        """The label that the probe gives to each of `examples`, or to each of their labelled words."""
        training = probe.training
        probe.eval()
        with torch.inference_mode():
            parts = examples.split(EVALUATED_AT_ONCE)
            predicted = [self.logits(probe, part, hidden_of)[0].argmax(-1).cpu() for part in parts]
        probe.train(training)
        return torch.cat(predicted)

    def evaluate(self, metric: str, predicted: Tensor, examples: Tensor) -> dict[str, Any]:
        """What `metrics.evaluate` says of `predictions` for `examples`."""
        subset = None if self.subset is None else [self.subset[example] for example in examples.tolist()]
        if not self.of_tokens:
            return evaluate(metric, self.labels[examples].numpy(), predicted.numpy(), self.names, subset)
        words = [self._labelled_words(example) for example in examples.tolist()]
        sizes = [len(own) for own in words]
        if subset and not isinstance(subset[0], str):  # marks of words: those of the words that have a label
            subset = [[marks[word] for word in own] for marks, own in zip(subset, words, strict=True)]
        labels = self.labels[self.tokens.tokens_of(examples)]
        flat = labels[labels != IGNORED], predicted
        gold, found = ([part.numpy() for part in values.split(sizes)] for values in flat)
        return evaluate(metric, gold, found, self.names, subset)

    def _labelled_words(self, example: int) -> list[int]:
        """Numbers of the words of an example that have a label and were not cut off."""
        own = slice(int(self.tokens.offsets[example]), int(self.tokens.offsets[example + 1]))
        words = self.labels[own] if self.tokens.words is None else self.tokens.words[own]
        return words[self.labels[own] != IGNORED].tolist()
