"""Hidden states: computed by the model whenever they are needed, or stored once for every seed and epoch of a probe."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, astuple, dataclass

import torch
from torch import Tensor

from papa.data.packed import Packed
from papa.data.tokens import Tokens, TokensFile
from papa.errors import InputError, format_bytes
from papa.method.checkpoints import progress
from papa.method.hidden import HiddenWriter, Index, rounded, scaled, writing_hidden
from papa.method.objectives import Batch, ProbeSizes
from papa.method.variants import replaced_by
from papa.model.budget import TokenBudget
from papa.model.load import model_of
from papa.model.model import Model, stacked
from papa.model.replacement import Replacement, replaced_in
from papa.stages import HiddenStates, Job


@dataclass(frozen=True)
class StreamedStates:
    """Hidden states that the model computes whenever they are needed.

    Args:
        model: the frozen model.
        replacement: returns the current replacement of heads in each layer.
        dropout: whether the model uses dropout on training examples.
        rounded: whether hidden states are rounded like stored ones; they then have no gradient.
        probed: whether a probe reads them; otherwise the model's prediction head converts them to logits.
        whole: whether a batch must stay whole, because the replacement has weights for each of its examples.
    """

    model: Model
    replacement: Callable[[], Replacement]
    dropout: bool = False
    rounded: bool = False
    probed: bool = True
    whole: bool = False

    def __call__(self, batch: Batch) -> Tensor:
        """Return float32 `[position, L+1, hidden]`, or logits `[token, word]`, on the model's device."""
        dropout = self.dropout and batch.tokens.split == "train"
        if not self.probed:
            packed = self.model.pack(batch.packed)
            return self.model.scores(packed, self.replacement(), dropout).float()
        with torch.set_grad_enabled(torch.is_grad_enabled() and not self.rounded):
            states = self._run(self.model.pack(batch.packed), dropout)
        if batch.positions is not None:
            positions = batch.positions.to(self.model.device)
            # before they are stacked, which copies all that is left
            states = [state.index_select(0, positions) for state in states]
        hidden = stacked(states).float()
        return rounded(hidden) if self.rounded else hidden

    def _run(self, packed: Packed, dropout: bool) -> list[Tensor]:
        """Run the model; if it pads examples to the longest one, those of similar length together.

        The probe still gets the batch in one piece. A GPU takes as long for a few examples as for many.
        """
        replacement = self.replacement()
        divides = self.model.form.rows == "compact" and self.model.device.type == "cpu"
        if self.whole or dropout or not divides:
            return self.model.run(packed, replacement, dropout)
        tokens, parts = zip(*packed.by_length(), strict=True)
        places = torch.cat(tokens).argsort()
        states = [self.model.run(part, replacement) for part in parts]
        return [torch.cat(layer)[places] for layer in zip(*states, strict=True)]


def store_states(jobs: Sequence[Job[HiddenStates]]) -> str:
    """Stage *hidden states*: store the hidden states of a corpus under each variant."""
    model = model_of(jobs[0])
    for job in jobs:
        _store(job, model)
    size = sum(os.path.getsize(job.output) for job in jobs)
    return f"hidden states of {len(jobs)} variants, {format_bytes(size)}"


def _store(job: Job[HiddenStates], model: Model) -> None:
    with TokensFile.opened(job.reads["tokens"]) as file:
        replacement = model.replacement(*replaced_by(job, job.settings, model, file.slots))
        total = model.layers * model.heads
        facts = {
            "rows": file.rows,
            "tokens": sum(group.tokens for group in file.groups),
            "splits": list(map(astuple, file.splits.values())),
            **asdict(ProbeSizes.of(model)),
            "heads": total,
            "kept": total - len(replaced_in(replacement)),
        }
        try:
            _write(job, model, replacement, file, facts)
        except _BeyondFloat16:  # begin again, because the file has room for exponents or has none
            _write(job, model, replacement, file, facts | {"scaled": True})


class _BeyondFloat16(Exception):
    """A hidden state is finite, but not in float16."""


def _write(
    job: Job[HiddenStates],
    model: Model,
    replacement: Replacement,
    file: TokensFile,
    facts: Index,
) -> None:
    """Write the hidden states of a corpus to a file with these facts; raise `_BeyondFloat16` if they do not fit."""
    with writing_hidden(job.output, facts, job.record) as writer, torch.inference_mode():
        written = _write_rows(model, replacement, file, writer)
        for _ in progress(written, "encoding", file.rows):
            pass


def _write_rows(
    model: Model, replacement: Replacement, file: TokensFile, writer: HiddenWriter
) -> Iterator[Tensor]:
    budget = TokenBudget(model.token_budget)
    written = 0
    for _, group in file.between(0, file.rows):

        def work(
            examples: Tensor, batch: Packed, _: int, group: Tokens = group, written: int = written
        ) -> None:
            half = _halved(model.run(batch, replacement), writer.scaled)
            writer.write(group, written, examples, half)

        yield from budget.run(model, group, work)
        written += len(group.ids)


def _halved(states: Sequence[Tensor], scaling: bool) -> Tensor:
    """Return the hidden states of a batch as a file stores them, on the CPU.

    Raises:
        InputError: a state is not finite.
    """
    joined = stacked(states if scaling else [state.half() for state in states])
    half = (scaled(joined.float()) if scaling else joined).cpu()
    if torch.isfinite(half).all():
        return half
    if all(state.isfinite().all() for state in states):
        raise _BeyondFloat16
    raise InputError(
        "A hidden state of this model is NaN or infinite, so the hidden states cannot be stored; use another model, or "
        "precision float32."
    )
