"""The stages that average attention over a laid-out corpus, and merge averages."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial

from torch import Tensor

from papa.config.job import Job
from papa.config.stages import AverageOf, MergeOf
from papa.config.variant import WHOLE, part_names, row_range
from papa.data.tokens import TokensFile
from papa.errors import InputError
from papa.method.averages import ConstantMatrices
from papa.method.averaging import Averaging
from papa.method.checkpoints import Checkpoint
from papa.method.progress import progress
from papa.model.budget import TokenBudget
from papa.model.load import model_of, trace_with


def average_corpus(job: Job[AverageOf]) -> str:
    """Stage *average*: average a model's attention over the training texts of a corpus, or over a part of them."""
    encoding, part = job.settings.model, job.settings.part
    model = model_of(encoding, job.machine)
    budget = TokenBudget(model.token_budget)
    trace = trace_with(job, model)
    checkpoint = Checkpoint(job.output("constants"), trace, job.machine, model.device.type)
    with TokensFile.opened(job.input("tokens")) as file:
        train = file.extent("train")
        begin, end = (train.first + row for row in row_range(part, train.rows))
        facts = file.provenance
        averaging, groups = Averaging(model, int(facts["slots"]), job.settings.kind), 0
        if (state := checkpoint.restore()) is not None:
            groups = averaging.resume(state)
            checkpoint.resumed = f", resumed after {averaging.examples:,}"

        def batches() -> Iterator[Tensor]:
            for index, group in file.between(begin, end, groups):
                yield from averaging.add_group(group, budget)
                checkpoint.save(partial(averaging.state, index + 1))

        for _ in progress(batches(), "averaging", end - begin, averaging.examples):
            pass
    averages = averaging.averages()
    averages.about |= {
        "model": encoding.model.name,
        "weights": str(model.weights),
        **({} if part == WHOLE else {"part": part}),
        **({} if encoding.precision == "float32" else {"precision": encoding.precision}),
        **_layout(facts),
    }
    averages.save(job.output("constants"), trace)
    checkpoint.discard()
    return f"averaged {_content(averages)} over {averages.examples:,} examples{checkpoint.resumed}"


def merge_averages(job: Job[MergeOf]) -> str:
    """Stage *merge*: merge the averages over the parts of a corpus.

    Raises:
        InputError: a part is missing or occurs twice, or the parts cannot be merged.
    """
    paths = job.inputs["parts"]
    merged: ConstantMatrices | None = None
    parts = []
    for path in paths:
        averages = ConstantMatrices.load(path)
        parts.append(averages.about.pop("part", WHOLE))
        merged = averages if merged is None else merged.merge(averages)
    expected = part_names(len(paths))
    if merged is None or sorted(parts) != sorted(expected):
        raise InputError(
            f"The averages of these {len(paths)} parts are needed: {', '.join(expected)}; "
            f"those of {', '.join(parts) or 'none'} were given."
        )
    merged.save(job.output("constants"), job.trace())
    return f"averaged {_content(merged)} over {merged.examples:,} examples in {len(paths)} parts"


def _layout(facts: Mapping[str, object]) -> dict[str, str]:
    return {key: str(facts[key]) for key in ("corpus", "style", "segments", "slots")}


def _content(averages: ConstantMatrices) -> str:
    return "the outputs of heads" if averages.kind == "mean-output" else "attention"
