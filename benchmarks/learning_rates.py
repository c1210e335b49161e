"""Search for learning rates at fraction 1, on the training split only; all fractions then use the same rate.

    python benchmarks/learning_rates.py results/minilm/models/minilm --task cola:cola:matthews_correlation:16

For each task and rate, a probe is trained on four fifths of (a sample of) the training rows and scored on the last
fifth after every epoch. Reads tokens, labels and the original hidden states, which the workflow has made.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import fields
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from papa.config.measures import MEASURES
from papa.config.stages import Training
from papa.data.tokens import Tokens
from papa.method.fitting import Recorded, TrainingTask, fit
from papa.method.hidden import HiddenStates
from papa.method.labelled import GoldLabels, Labelled
from papa.method.metrics import Outcomes
from papa.method.objective import Batch, States
from papa.method.probes import ProbeSizes


class Search(NamedTuple):
    """A task, its corpus and metric, the batch size, and the numbers of epochs and training rows."""

    task: str
    corpus: str
    metric: str
    batch_size: int
    epochs: int
    rows: int


def search(model: Path, asked: Search, rates: Sequence[float]) -> Iterator[tuple[float, list[float]]]:
    """Yield (rate, scores after each epoch) on the held-out fifth of the training rows.

    Args:
        model: the folder of the model in the results.
        asked: task, corpus, metric and training.
        rates: the learning rates to try.
    """
    corpus, labels = model / "corpora" / asked.corpus, model.parent.parent / "tasks" / asked.task / "labels.parquet"
    splits = Tokens.read(corpus / "tokens.parquet")
    order = torch.randperm(len(splits["train"]), generator=torch.Generator().manual_seed(0))[: asked.rows]
    held, fitted = order[: len(order) // 5], order[len(order) // 5 :]
    with HiddenStates.opened(sorted((corpus / "features/original").glob("*.json"))) as stored:
        sizes = ProbeSizes(**{field.name: stored.index[field.name] for field in fields(ProbeSizes)})

        def states(batch: Batch) -> Tensor:
            hidden = stored.read(batch.examples, batch.tokens)
            return hidden if batch.positions is None else hidden[batch.positions]

        for rate in rates:
            torch.manual_seed(0)
            labelled, scores = Labelled(splits, sizes, GoldLabels.read(splits, labels)), list[float]()
            loss = labelled.loss_on(states)

            def after_epoch(labelled: Labelled = labelled, scores: list[float] = scores) -> Recorded:
                scores.append(score(labelled, states, held, asked.metric))
                return {}

            task = TrainingTask(
                name=f"{asked.task} at {rate:g}",
                parameters=list(labelled.probe.parameters()),
                examples=len(fitted),
                loss=lambda examples, loss=loss: loss(fitted[examples]),  # type: ignore[misc]
                before_epoch=labelled.begin,
                after_epoch=after_epoch,
            )
            fit(task, Training(learning_rate=rate, batch_size=asked.batch_size, epochs=asked.epochs), seed=0)
            yield rate, scores


def score(labelled: Labelled, states: States, examples: Tensor, metric: str) -> float:
    """Return the score of the probe on some training examples."""
    parts = []
    labelled.probe.eval()
    with torch.inference_mode():
        for unit, example in enumerate(examples):  # one at a time: a text, or a sentence with its words
            batch = labelled.batch(example[None])
            predicted = labelled.outcomes(batch, states(batch))
            parts.append(torch.stack([batch.gold, predicted, torch.full_like(batch.gold, unit)]))
    labelled.probe.train()
    gold, predicted, units = torch.cat(parts, dim=1).numpy()
    measure = MEASURES[metric]
    return float(measure.score(measure.counts(Outcomes(gold, predicted, units, labelled.names)).sum(0)))


def main(arguments: Sequence[str] | None = None) -> None:
    """Read the arguments, search, and print the scores after each epoch of each rate."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path, help="results/NAME/models/MODEL")
    parser.add_argument("--task", required=True, help="TASK:CORPUS:METRIC:BATCH", action="append")
    parser.add_argument("--epochs", type=int, default=6)
    parser.add_argument("--rows", type=int, default=5000, help="training rows to take, four fifths of them fitted")
    parser.add_argument("--rates", type=float, nargs="+", default=[1e-4, 3e-4, 1e-3, 3e-3])
    given = parser.parse_args(arguments)
    torch.set_num_threads(1)
    for entry in given.task:
        task, corpus, metric, batch = entry.split(":")
        for rate, scores in search(
            given.model, Search(task, corpus, metric, int(batch), given.epochs, given.rows), given.rates
        ):
            print(f"{task:8s} {rate:g}  " + " ".join(f"{score:.3f}" for score in scores), flush=True)


if __name__ == "__main__":
    main()
