"""Which heads are replaced first: a weight per head, learned with a probe, and the orders made of it (Sec. 3.2)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from papa.artefacts import PathLike, provenance_of, read_table, write_table
from papa.attention.replacement import LayerPlan
from papa.constants import ConstantMatrices
from papa.encoder import Encoder, encoder_of
from papa.errors import InputError
from papa.features import check_origin, probe_sizes
from papa.layout import Tokens
from papa.masking import Masking
from papa.mlm import MaskedTraining
from papa.sources.models import tokenizer_of, weights_digest
from papa.training import Labelled, fit

ORDERS = ("lambda",)
LossWith = Callable[[Tensor, list[LayerPlan]], Tensor]
"""From example numbers and what the layers do with their heads to the mean loss of these examples."""


def train_lambda(
    model: Mapping[str, Any],
    tokens: PathLike,
    labels: PathLike | None,
    constants: PathLike,
    lambdas: PathLike,
    task: Mapping[str, Any],
    seed: int,
) -> str:
    """Stage *train λ*: learn how much each head needs its own attention, together with a probe; Parquet per epoch.

    Head (l, h) uses λ·attention + (1-λ)·constant with λ = sigmoid(raw), raw = 0 at the start (Sec. 3.2). The probe that
    is learned on the way is thrown away. Without `labels` the task is masked language modelling.
    """
    import pyarrow as pa

    train = Tokens.read(tokens)["train"]
    average = ConstantMatrices.load(constants)
    encoder = encoder_of(model)
    check_origin(average, train.provenance, weights_digest(model), constants)
    matrices = average.mean.to(encoder.device)
    torch.manual_seed(seed)
    generator = torch.Generator().manual_seed(seed)
    loss_with, probe, begin = _learning(encoder, train, labels, model, seed)
    raw = nn.Parameter(torch.zeros(encoder.layers, encoder.heads, device=encoder.device))
    epochs: list[Tensor] = []

    def loss_of(examples: Tensor) -> Tensor:
        return loss_with(examples, encoder.plan(matrices, mixing=raw.sigmoid()))

    def after_epoch(epoch: int, loss: float) -> None:
        epochs.append(raw.detach().sigmoid().cpu().clone())
        begin(epoch + 1)

    fit([raw, *probe.parameters()], loss_of, len(train), task, generator, after_epoch, "learning λ")
    values = torch.stack(epochs)  # [epoch, layer, head]
    epoch, layer, head = torch.meshgrid(*map(torch.arange, values.shape), indexing="ij")
    columns = {"epoch": epoch + 1, "layer": layer, "head": head, "value": values}
    about = {key: train.provenance[key] for key in ("model", "corpus", "slots", "style")}
    write_table(
        pa.table({name: column.flatten().numpy() for name, column in columns.items()}),
        lambdas,
        about | {"seed": seed, **task},
    )
    low, high = float(values[-1].min()), float(values[-1].max())
    return f"λ between {low:.3f} and {high:.3f} after {task['epochs']} epochs of {len(train):,} examples"


def _learning(
    encoder: Encoder, train: Tokens, labels: PathLike | None, model: Mapping[str, Any], seed: int
) -> tuple[LossWith, nn.Module, Callable[[int], None]]:
    """The loss of a task, the new probe that it trains, and what has to be done before an epoch after the first."""
    if labels is None:
        masked = MaskedTraining(encoder, train, Masking.of(tokenizer_of(model), model["name"]), seed)
        return masked.loss, masked.probe, masked.begin
    labelled = Labelled(train, labels)
    probe = labelled.probe(probe_sizes(encoder, train.n)).to(encoder.device)

    def loss(examples: Tensor, plan: list[LayerPlan]) -> Tensor:
        def hidden_of(these: Tensor) -> Tensor:
            return torch.stack(encoder.run(encoder.pack(train.batch(these)), plan), dim=1)

        logits, gold = labelled.logits(probe, examples, hidden_of)
        return cross_entropy(logits, gold.to(logits.device))

    return loss, probe, lambda epoch: None


def rank_heads(lambdas: PathLike, order: PathLike, kind: str = "lambda") -> str:
    """Stage *rank*: the heads in the order in which they are replaced; rank 0 goes first.

    `lambda` goes from the smallest λ after the last epoch up, over all layers together; ties by layer, then head.
    """
    import pyarrow as pa

    if kind not in ORDERS:
        raise InputError(f"The order {kind!r} does not exist; it is one of {', '.join(ORDERS)}.")
    table = read_table(lambdas).to_pandas()
    last = table[table.epoch == table.epoch.max()].sort_values(["value", "layer", "head"])
    ranked = pa.table({"rank": range(len(last)), "layer": last["layer"].to_numpy(), "head": last["head"].to_numpy()})
    write_table(ranked, order, provenance_of(read_table(lambdas)) | {"order": kind})
    first = last.iloc[0]
    return f"{len(last)} heads ranked; layer {int(first.layer)}, head {int(first['head'])} goes first"
