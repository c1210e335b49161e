"""The stage that averages attention over a laid-out corpus."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from torch import Tensor

from papa.config.job import Job
from papa.config.stages import AverageOf
from papa.data.tokens import TokensFile
from papa.method.averaging import Averaging
from papa.method.checkpoints import Checkpoint
from papa.method.progress import progress
from papa.model.budget import TokenBudget
from papa.model.load import model_of, trace_with


def average_corpus(job: Job[AverageOf]) -> str:
    """Stage *average*: average a model's attention over the training texts of a corpus."""
    encoding = job.settings.model
    model = model_of(encoding, job.machine)
    budget = TokenBudget(model.token_budget)
    trace = trace_with(job, model)
    checkpoint = Checkpoint(job.output("constants"), trace, job.machine, model.device.type)
    with TokensFile.opened(job.input("tokens")) as file:
        train = file.extent("train")
        facts = file.provenance
        averaging, groups = Averaging(model, int(facts["slots"]), job.settings.kind), 0
        if (state := checkpoint.restore()) is not None:
            groups = averaging.resume(state)
            checkpoint.resumed = f", resumed after {averaging.examples:,}"

        def batches() -> Iterator[Tensor]:
            for index, group in file.between(train.first, train.first + train.rows, groups):
                yield from averaging.add_group(group, budget)
                checkpoint.save(partial(averaging.state, index + 1))

        for _ in progress(batches(), "averaging", train.rows, averaging.examples):
            pass
    averages = averaging.averages()
    averages.about |= {
        "model": encoding.model.name,
        "weights": str(model.weights),
        **({} if encoding.precision == "float32" else {"precision": encoding.precision}),
        **{key: str(facts[key]) for key in ("corpus", "style", "slots")},
    }
    averages.save(job.output("constants"), trace)
    checkpoint.discard()
    content = "the outputs of heads" if averages.kind == "mean-output" else "attention"
    return f"averaged {content} over {averages.examples:,} examples{checkpoint.resumed}"
