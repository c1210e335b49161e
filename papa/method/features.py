"""Hidden states of a model some of whose heads are replaced, computed once and read by every seed and epoch."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict
from functools import partial

import torch
from torch import Tensor

from papa.config.settings import Machine
from papa.config.stages import HiddenOf, ProbeOf
from papa.config.study import Job
from papa.config.variant import Variant, rows_of
from papa.data.packed import Packed
from papa.data.tokens import Tokens, TokensFile
from papa.data.weights import sources_of
from papa.errors import InputError
from papa.files import JSON, write_json
from papa.method.constants import constants_for
from papa.method.hidden import Extent, HiddenWriter, writing_hidden
from papa.method.objectives import Batch
from papa.method.orders import heads_to_replace
from papa.method.probes import Sizes
from papa.method.progress import progress
from papa.model.budget import TokenBudget
from papa.model.load import model_of
from papa.model.model import Model
from papa.model.replacement import Head, Matrices, Outputs, Replacement, replaced_in


def extract_features(job: Job[HiddenOf]) -> str:
    """Stage *hidden*: all hidden states of a corpus or a part of it, with the heads replaced that a variant says.

    Raises:
        InputError: constants or order belong to another model or layout, the disk is too small, or a value does not fit
            float16.
    """
    settings, identity = job.settings, job.settings.model.model
    variant = Variant.parse(settings.variant)
    model = model_of(settings.model)
    hidden = job.output("hidden")
    with TokensFile.opened(job.input("tokens")) as file:
        facts = file.provenance
        replacement = model.replacement(*replaced_by(job, model, facts))
        begin, end = rows_of(settings.part, file.rows)
        first = file.tokens_before(begin)
        sizes = Sizes.of(model, int(facts["slots"]))
        extent = Extent(begin, end, first, file.tokens_before(end) - first, sizes.layers * sizes.hidden * 2)
        with writing_hidden(hidden, extent) as writer, torch.inference_mode():
            for _ in progress(_written(model, replacement, file, extent, writer), "encoding", end - begin):
                pass
            checksums = writer.close()
        replaced, total = replaced_in(replacement), model.layers * model.heads
        write_json(
            {
                "dtype": "float16",
                "part": settings.part,
                "rows": [begin, end],
                "first_token": first,
                "tokens": extent.tokens,
                "checksums": checksums,
                "splits": [[own.split, own.first, own.rows, own.tokens] for own in file.splits.values()],
                **asdict(sizes),
                "heads": total,
                "kept": total - len(replaced),
                "replaced": replaced,
                **names_of(variant),
                "model": identity.name,
                "weights": model.weights,
                "corpus": facts["corpus"],
            },
            job.output("index"),
            job.trace(**sources_of(identity, str(model.weights))),
        )
    size = os.path.getsize(hidden) / 1e9
    return f"hidden states with {total - len(replaced)} of {total} heads input-dependent, {size:.3g} GB"


def names_of(variant: Variant) -> dict[str, str | None]:
    """What the constant and the order of a variant are called; None for what it has not."""
    named = {"constant": variant.constant, "order": variant.order}
    return {what: None if its is None else its.name for what, its in named.items()}


def replaced_by(
    job: Job[HiddenOf] | Job[ProbeOf], model: Model, facts: Mapping[str, JSON]
) -> tuple[Tensor | Matrices | Outputs | None, list[Head] | None]:
    """What takes the place of attention in a job, and in which heads: what `Model.replacement` takes.

    Args:
        job: its settings name a variant; it may read `constants` and an `order`.
        model: the model whose heads are replaced.
        facts: corpus, slots and style of the texts.

    Returns:
        What `constants_for` gives, None if nothing is replaced; and the heads, None for all.
    """
    variant, order = Variant.parse(job.settings.variant), job.maybe("order")
    if variant.constant is None:
        return None, None
    constants = constants_for(variant.constant, job.maybe("constants"), model, facts)
    if variant.order is None:
        return constants, None
    if order is None:
        raise InputError(f"The variant {variant.path} needs an order of heads, and none was given.")
    return constants, heads_to_replace(order, variant, model)


def _written(
    model: Model, replacement: Replacement, file: TokensFile, extent: Extent, writer: HiddenWriter
) -> Iterator[Tensor]:
    """Write the hidden states of the rows of an extent, and yield the numbers of examples that are done."""
    budget = TokenBudget(Machine.current().token_budget)
    for _, group in file.between(extent.begin, extent.end):
        store = partial(writer.write, group, file.tokens_before(group.rows[0]))
        yield from _encoded(model, replacement, group, budget, store)


def _encoded(
    model: Model,
    replacement: Replacement,
    group: Tokens,
    budget: TokenBudget,
    store: Callable[[Tensor, Tensor], None],
) -> Iterator[Tensor]:
    """Give `store` examples and their hidden states, float16 `[token, L+1, hidden]`; yield the examples."""

    def work(examples: Tensor, batch: Packed, _: int) -> None:
        states = model.run(batch, replacement)
        half = torch.stack([state.half() for state in states], dim=1).cpu()
        if not torch.isfinite(half).all():
            raise InputError("A hidden state is not finite in float16; this model cannot be stored so.")
        store(examples, half)

    yield from budget.run(model, group, work)


class Remembered:
    """Hidden states of all splits in memory, as they would be stored: what probes read.

    Args:
        model: the frozen model.
        replacement: what its layers do with their heads.
        splits: the tokens of all splits.
    """

    def __init__(self, model: Model, replacement: Replacement, splits: Mapping[str, Tokens]):
        self.device = model.device
        self.half: dict[str, Tensor] = {}
        """Float16 `[token, L+1, hidden]` by split."""
        budget = TokenBudget(Machine.current().token_budget)
        for name, tokens in splits.items():
            own = torch.empty(len(tokens.ids), model.states, model.hidden, dtype=torch.float16)

            def store(examples: Tensor, half: Tensor, own: Tensor = own, tokens: Tokens = tokens) -> None:
                own[tokens.tokens_of(examples)] = half

            with torch.inference_mode():
                for _ in progress(_encoded(model, replacement, tokens, budget, store), "encoding", len(tokens)):
                    pass
            self.half[name] = own

    def __call__(self, batch: Batch) -> Tensor:
        """Float32 `[place, L+1, hidden]`, on the model's device."""
        where = batch.tokens.tokens_of(batch.examples)
        own = self.half[batch.tokens.split][where if batch.places is None else where[batch.places]]
        return own.to(self.device).float()
