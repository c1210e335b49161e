"""The stage that stores hidden states, so they are computed once and read for every seed and epoch of a probe."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import asdict

import torch
from torch import Tensor

from papa.config.job import Job
from papa.config.stages import HiddenOf
from papa.config.variant import Variant
from papa.data.packed import Packed
from papa.data.tokens import Tokens, TokensFile
from papa.errors import InputError
from papa.files import write_json
from papa.method.hidden import Extent, HiddenWriter, writing_hidden
from papa.method.probes import ProbeSizes
from papa.method.progress import progress
from papa.method.variants import names_of, replaced_by
from papa.model.budget import TokenBudget
from papa.model.load import model_of, trace_with
from papa.model.model import Model
from papa.model.replacement import Replacement, replaced_in


def extract_features(job: Job[HiddenOf]) -> str:
    """Stage *hidden*: store the hidden states of a corpus with the heads of a variant replaced."""
    settings = job.settings
    variant = Variant.parse(settings.variant)
    model = model_of(settings.model, job.machine)
    hidden = job.output("hidden")
    with TokensFile.opened(job.input("tokens")) as file:
        facts = file.provenance
        replacement = model.replacement(*replaced_by(job, model, facts))
        sizes = ProbeSizes.of(model, int(facts["slots"]))
        tokens = sum(group.tokens for group in file.groups)
        extent = Extent(file.rows, tokens, sizes.layers * sizes.hidden * 2)
        with writing_hidden(hidden, extent) as writer, torch.inference_mode():
            for _ in progress(_write_rows(model, replacement, file, writer), "encoding", file.rows):
                pass
            checksums = writer.close()
        replaced, total = replaced_in(replacement), model.layers * model.heads
        write_json(
            {
                "dtype": "float16",
                "rows": extent.rows,
                "tokens": extent.tokens,
                "checksums": checksums,
                "splits": [[group.split, group.first, group.rows, group.tokens] for group in file.splits.values()],
                **asdict(sizes),
                "heads": total,
                "kept": total - len(replaced),
                "replaced": replaced,
                **names_of(variant),
                "model": settings.model.model.name,
                "weights": model.weights,
                "corpus": facts["corpus"],
            },
            job.output("index"),
            trace_with(job, model),
        )
    size = os.path.getsize(hidden) / 1e9
    return f"hidden states with {total - len(replaced)} of {total} heads kept, {size:.3g} GB"


def _write_rows(model: Model, replacement: Replacement, file: TokensFile, writer: HiddenWriter) -> Iterator[Tensor]:
    budget, written = TokenBudget(model.token_budget), 0
    for _, group in file.between(0, file.rows):

        def work(examples: Tensor, batch: Packed, _: int, group: Tokens = group, written: int = written) -> None:
            half = torch.stack([state.half() for state in model.run(batch, replacement)], dim=1).cpu()
            if not torch.isfinite(half).all():
                raise InputError(
                    "A hidden state is not finite in float16, so the hidden states of this model cannot be stored."
                )
            writer.write(group, written, examples, half)

        yield from budget.run(model, group, work)
        written += len(group.ids)
