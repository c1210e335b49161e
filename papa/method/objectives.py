"""Objectives: what is learned from hidden states and scored, and the probes of labelled tasks (paper, Sec. 4, App. B).

An objective has the loss of a batch, and the outcomes of examples, from which scores are computed. It is independent of
the source of hidden states: the store, memory, or the model (`papa.method.states`). Probes are small classifiers on all
hidden states of a frozen model, which they read packed, `[token, L+1, hidden]`. If the model's prediction head is used
instead of a probe, its logits replace hidden states, and nothing is trained.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, embedding_bag

from papa.config.measures import OUTCOME_TYPES, TEXT, WORD
from papa.data.packed import Packed
from papa.data.tokens import Tokens, whole_numbers
from papa.files import PathLike, read_facts, read_table
from papa.model.forms import probe_dropout
from papa.model.model import Model

if TYPE_CHECKING:
    import pyarrow as pa
    from transformers import PreTrainedConfig

    from papa.config.measures import Target

Splits = Mapping[str, Tokens]
"""The tokens of each split of a corpus."""
OutcomesBySplit = Mapping[str, Tensor]
"""The outcomes of all scored examples, by split."""
IGNORED = -100
"""The label of tokens without a label."""
EVALUATED_AT_ONCE = 64
"""Number of examples whose labels are predicted at once."""


@dataclass(frozen=True)
class Batch:
    """Examples of a split, and the tokens whose hidden states are read.

    Args:
        tokens: the split.
        examples: int64 `[example]`, their indices in the split.
        packed: their packed row, as the model reads it.
        gold: int64, the right labels or tokens: `[example]`, or `[position]` if `positions` are given.
        positions: int64 `[position]`, the tokens of the row whose hidden states are read; None means all.
    """

    tokens: Tokens
    examples: Tensor
    packed: Packed
    gold: Tensor
    positions: Tensor | None = None


States = Callable[[Batch], Tensor]
"""Maps a batch to the hidden states at its positions, float32 `[position, L+1, hidden]`, or logits `[token, word]`."""


class Objective(ABC):
    """The loss and the outcomes of a task, and the new probe to be trained for it, if any."""

    target: Target
    probe: nn.Module
    splits: Splits

    @property
    def examples(self) -> int:
        """Number of training examples."""
        return len(self.splits["train"])

    def begin(self, epoch: int) -> None:  # noqa: B027  most objectives have the same examples in every epoch
        """Prepare for an epoch, counted from 1."""

    def batch(self, examples: Tensor) -> Batch:
        """Return training examples by index."""
        return self._batch("train", examples)

    @abstractmethod
    def _batch(self, split: str, examples: Tensor) -> Batch:
        """Return examples of a split by index."""

    @abstractmethod
    def loss(self, batch: Batch, hidden: Tensor) -> Tensor:
        """Return the mean loss of a batch; 0 if the batch has nothing to predict."""

    @abstractmethod
    def scored(self) -> Iterator[Batch]:
        """Yield all examples that are scored, batch by batch and split by split."""

    @abstractmethod
    def outcomes(self, batch: Batch, hidden: Tensor) -> Tensor:
        """Return the outcomes of a scored batch, one for each label or token that is predicted."""

    @abstractmethod
    def table(self, outcomes: OutcomesBySplit) -> pa.Table:
        """Return a row for each outcome of the scored examples; `OUTCOME_TYPES` lists the columns."""

    def predictions(self, batch: Batch) -> int:
        """Return the number of predictions over which the loss of a batch is averaged."""
        return len(batch.gold)

    def divided(self, examples: Tensor) -> Sequence[Tensor]:
        """Return training examples in parts that need little memory for logits."""
        return [examples]

    def weighted(self, parts: Sequence[Tensor]) -> list[tuple[Tensor, float]]:
        """Return parts of a batch, divided again if necessary, with the weights of their losses in the batch's loss."""
        small = [part for whole in parts for part in self.divided(whole)]
        if len(small) == 1:
            return [(small[0], 1.0)]
        sizes = [self.predictions(self.batch(part)) for part in small]
        # a batch may have nothing to predict
        return [(part, size / max(1, sum(sizes))) for part, size in zip(small, sizes, strict=True)]

    def loss_on(self, states: States, examples: Tensor) -> Tensor:
        """Return the mean loss of training examples, by index, on these hidden states."""
        batch = self.batch(examples)
        return self.loss(batch, states(batch))

    def outcomes_on(self, states: States) -> OutcomesBySplit:
        """Return the outcomes of all scored examples, by split."""
        outcomes: dict[str, list[Tensor]] = {}
        self.probe.eval()
        with torch.inference_mode():
            for batch in self.scored():
                outcomes.setdefault(batch.tokens.split, []).append(
                    self.outcomes(batch, states(batch)).cpu()
                )
        self.probe.train()
        return {split: torch.cat(parts) for split, parts in outcomes.items()}


def outcomes_table(split: str, columns: Mapping[str, Tensor]) -> pa.Table:
    """Build the outcomes of a split from columns named as in `OUTCOME_TYPES`."""
    import pyarrow as pa

    arrays = {
        name: pa.array(values.numpy(), OUTCOME_TYPES[name]) for name, values in columns.items()
    }
    return pa.table(
        {"split": pa.array([split] * len(columns["example"])).dictionary_encode()} | arrays
    )


@dataclass(frozen=True)
class ProbeSizes:
    """The sizes of hidden states, and the settings of a probe that follow from the model.

    Args:
        layers: number of hidden states per token: L+1, including the embeddings.
        hidden: size of a hidden state.
        initializer_range: standard deviation of initial weights.
        probe_dropout: dropout before the output of a sequence probe.
    """

    layers: int
    hidden: int
    initializer_range: float
    probe_dropout: float

    @classmethod
    def of(cls, model: Model) -> ProbeSizes:
        spread = spread_of(model.config)
        return cls(model.states, model.hidden, spread, probe_dropout(model.config))


def spread_of(config: PreTrainedConfig) -> float:
    """Return the standard deviation of a model's initial weights; 0.02 if its config has none."""
    return float(getattr(config, "initializer_range", 0.02))


class SequenceProbe(nn.Module):
    """A probe for whole examples: a learned weighted sum over slots in each layer, then dense, tanh, dropout, output.

    The weights `slot_weights` `[L+1, slot]` start at 1/slots; the L+1 sums are concatenated.
    """

    def __init__(
        self,
        layers: int,
        slots: int,
        hidden: int,
        labels: int,
        dropout: float = 0.0,
        initializer_range: float = 0.02,
    ):
        super().__init__()
        self.slot_weights = nn.Parameter(torch.full((layers, slots), 1.0 / slots))
        self.dense = nn.Linear(layers * hidden, hidden)
        self.dropout = nn.Dropout(dropout)
        self.output = nn.Linear(hidden, labels)
        initialise(self, initializer_range)

    def packed(self, hidden: Tensor, batch: Packed) -> Tensor:
        """Return logits `[example, label]` from packed `hidden` `[token, L+1, hidden]`."""
        tokens, layers, size = hidden.shape
        layer = torch.arange(layers, device=hidden.device)[:, None]
        begin = batch.lengths.cumsum(0) - batch.lengths
        # a weighted copy of all hidden states would take as much memory as these
        pooled = embedding_bag(
            (torch.arange(tokens, device=hidden.device) * layers + layer).flatten(),
            hidden.reshape(-1, size),
            (begin + layer * tokens).flatten(),  # a bag for every layer and example
            mode="sum",
            per_sample_weights=self.slot_weights.index_select(1, batch.slots).flatten(),
        )
        pooled = (
            pooled.view(layers, -1, size).transpose(0, 1).flatten(1)
        )  # [example, (L+1) * hidden]
        logits: Tensor = self.output(self.dropout(torch.tanh(self.dense(pooled))))
        return logits


class TokenProbe(nn.Module):
    """A probe for tokens: the L+1 vectors of each token are concatenated, then dense, tanh, output."""

    def __init__(self, layers: int, hidden: int, labels: int, initializer_range: float = 0.02):
        super().__init__()
        self.dense = nn.Linear(layers * hidden, hidden)
        self.output = nn.Linear(hidden, labels)
        initialise(self, initializer_range)

    def packed(self, hidden: Tensor) -> Tensor:
        """Return logits `[token, label]` from packed `hidden` `[token, L+1, hidden]`."""
        logits: Tensor = self.output(torch.tanh(self.dense(hidden.flatten(1))))
        return logits


def initialise(probe: nn.Module, spread: float) -> None:
    """Draw the weights of a probe with this standard deviation; biases are zero."""
    for module in probe.modules():
        if isinstance(module, nn.Linear):
            nn.init.normal_(module.weight, std=spread)
            nn.init.zeros_(module.bias)


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
        values = table.slice(0, len(train)).column(column).combine_chunks()
        if train.words is None:
            return cls(whole_numbers(values), names)
        flat = whole_numbers(values.flatten())
        lengths = whole_numbers(values.value_lengths())
        begin = (lengths.cumsum(0) - lengths).repeat_interleave(train.lengths)
        # tokens that begin no word have index -1; their label is ignored in the next line
        labels = flat[(begin + train.words).clamp(0, len(flat) - 1)]
        return cls(torch.where((train.words >= 0) & (labels >= 0), labels, IGNORED), names)


class Labelled(Objective):
    """An objective with a label for each text, or for each word, which its first sub-token predicts.

    `splits` has the tokens of each split; `sizes` are those of the hidden states that the probe reads.
    """

    probe: SequenceProbe | TokenProbe

    def __init__(self, splits: Splits, sizes: ProbeSizes, labels: GoldLabels):
        self.splits = splits
        self.names = list(labels.names)
        # of other splits, every text or every word is predicted
        self.predicted = {split: tokens for split, tokens in splits.items() if split != "train"}
        self.labels = {"train": labels.values}
        for split, tokens in self.predicted.items():
            words = torch.zeros(len(tokens)) if tokens.words is None else tokens.words
            self.labels[split] = torch.where(words < 0, IGNORED, 0)
        self.target = TEXT if splits["train"].words is None else WORD
        shape = (sizes.hidden, len(self.names))
        spread = sizes.initializer_range
        if self.target.per_word:
            self.probe = TokenProbe(sizes.layers, *shape, spread)
        else:
            slots = splits["train"].n
            self.probe = SequenceProbe(sizes.layers, slots, *shape, sizes.probe_dropout, spread)

    def loss(self, batch: Batch, hidden: Tensor) -> Tensor:
        if not len(batch.gold):  # the mean over no words would be NaN
            # zero, but connected to every parameter, so all get a gradient
            parameters = torch.stack([values.sum() for values in self.probe.parameters()])
            return 0 * (hidden.sum() + parameters.sum())
        return cross_entropy(self._logits(batch, hidden), batch.gold.to(hidden.device))

    def scored(self) -> Iterator[Batch]:
        for split, tokens in self.predicted.items():
            for examples in torch.arange(len(tokens)).split(EVALUATED_AT_ONCE):
                yield self._batch(split, examples)

    def outcomes(self, batch: Batch, hidden: Tensor) -> Tensor:
        """Return the predicted label of each example, or of each labelled word."""
        return self._logits(batch, hidden).argmax(-1) if len(batch.gold) else batch.gold

    def table(self, outcomes: OutcomesBySplit) -> pa.Table:
        """Return a row for each example, or for each word that has a token, with the predicted label."""
        import pyarrow as pa

        parts = []
        for split, tokens in self.predicted.items():
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
