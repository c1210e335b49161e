"""The search for learning rates: at fraction 1, on the training split alone, the same for all fractions afterwards.

    python benchmarks/learning_rates.py results/minilm/models/minilm --task cola:cola:matthews_correlation:16

For each task four fifths of (a sample of) its training rows are fitted and one fifth is scored after every epoch, for
each rate of the grid. Reads what the workflow has made: laid-out tokens, labels and the original hidden states.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from papa.method.labelled import Labelled
from torch.nn.functional import cross_entropy

from papa.data.tokens import Tokens
from papa.method.fitting import fit
from papa.method.hidden import HiddenStates


def search(
    model: Path, task: str, corpus: str, metric: str, batch_size: int, epochs: int, rates: list[float], rows: int
):
    """Yield (rate, scores after each epoch) on the held-out fifth of the training rows."""
    features = model / "corpora" / corpus / "features" / "original"
    hidden, about = HiddenStates.opened(sorted(features.glob("*.hidden")), sorted(features.glob("*of*.json")))
    tokens = Tokens.read(model / "corpora" / corpus / "tokens.parquet")["train"]
    labelled = Labelled(tokens, model.parent.parent / "tasks" / task / "labels.parquet")
    order = torch.randperm(len(labelled), generator=torch.Generator().manual_seed(0))[:rows]
    held, fitted = order[: len(order) // 5], order[len(order) // 5 :]

    def read(examples: torch.Tensor) -> torch.Tensor:
        return hidden.read(examples, tokens)

    for rate in rates:
        torch.manual_seed(0)
        probe = labelled.probe(about)
        scores: list[float] = []

        def loss_of(examples: torch.Tensor, probe=probe) -> torch.Tensor:
            return cross_entropy(*labelled.logits(probe, fitted[examples], read))

        def after_epoch(epoch: int, probe=probe, scores=scores) -> dict[str, torch.Tensor]:
            predicted = labelled.predictions(probe, read, held)
            scores.append(labelled.evaluate(metric, predicted, held)["score"])
            return {}

        training = {"learning_rate": rate, "batch_size": batch_size, "epochs": epochs}
        fit(
            list(probe.parameters()),
            loss_of,
            len(fitted),
            training,
            torch.Generator().manual_seed(0),
            after_epoch,
            task,
        )
        yield rate, scores


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path, help="results/NAME/models/MODEL")
    parser.add_argument("--task", required=True, help="TASK:CORPUS:METRIC:BATCH", action="append")
    parser.add_argument("--epochs", type=int, default=6)
    parser.add_argument("--rows", type=int, default=5000, help="training rows to take, four fifths of them fitted")
    parser.add_argument("--rates", type=float, nargs="+", default=[1e-4, 3e-4, 1e-3, 3e-3])
    given = parser.parse_args()
    torch.set_num_threads(1)
    for entry in given.task:
        task, corpus, metric, batch = entry.split(":")
        for rate, scores in search(
            given.model, task, corpus, metric, int(batch), given.epochs, given.rates, given.rows
        ):
            print(f"{task:8s} {rate:g}  " + " ".join(f"{score:.3f}" for score in scores), flush=True)
