"""The stage that averages a model's attention over the training texts of a corpus (paper, Sec. 3.1)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

from torch import Tensor

from papa.data.tokens import TokensFile
from papa.method.averaging import Averaging
from papa.method.checkpoints import Checkpoint
from papa.method.progress import progress
from papa.model.budget import TokenBudget
from papa.model.load import model_of
from papa.plan.jobs import Average, Job


def average_corpus(jobs: Sequence[Job[Average]]) -> str:
    """Stage *average*: average a model's attention, or the outputs of its heads, over the training texts."""
    (job,) = jobs
    model = model_of(job)
    budget, checkpoint = TokenBudget(model.token_budget), Checkpoint(job, model.device.type)
    with TokensFile.opened(job.reads["tokens"]) as file:
        train = file.extent("train")
        averaging, groups = Averaging(model, int(file.provenance["slots"]), job.settings.kind), 0
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
    averages.save(job.output, job.record)
    checkpoint.discard()
    content = "the outputs of heads" if averages.kind == "mean-output" else "attention"
    return f"averaged {content} over {averages.examples:,} examples{checkpoint.resumed}"
