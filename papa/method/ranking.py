"""Which heads are replaced first: a weight per head, learned with a probe, and the orders made of it (Sec. 3.2)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from hashlib import sha256
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from papa.config.kinds import BY_LAMBDA, order_of
from papa.data.masking import Masking
from papa.data.tokens import Tokens
from papa.data.weights import shape_of_model, tokenizer_of, weights_digest
from papa.errors import InputError
from papa.files import PathLike, provenance_of, read_table, write_table
from papa.method.checkpoints import Checkpoint
from papa.method.features import matrices_of, probe_sizes
from papa.method.fitting import Kept, fit
from papa.method.labelled import Labelled
from papa.method.mlm import MaskedTraining
from papa.model.load import model_of
from papa.model.model import Model
from papa.model.replacement import Replacement

LossWith = Callable[[Tensor, Replacement], Tensor]
"""From example numbers and what the layers do with their heads to the mean loss of these examples."""


def train_lambda(
    model: Mapping[str, Any],
    tokens: PathLike,
    labels: PathLike | None,
    lambdas: PathLike,
    task: Mapping[str, Any],
    seed: int,
    constants: PathLike | None = None,
    kind: str = "average",
    encoder_dropout: bool = False,
) -> str:
    """Stage *train λ*: learn how much each head needs its own attention, together with a probe; Parquet per epoch.

    Head (l, h) uses λ·attention + (1-λ)·constant with λ = sigmoid(raw), raw = 0 at the start (Sec. 3.2); the constant
    is one of `kind`, averages are in the file `constants`. The probe that is learned on the way is thrown away. Without
    `labels` the task is masked language modelling. With `encoder_dropout` the frozen encoder drops, as in the published
    code.
    """
    import pyarrow as pa

    train = Tokens.read(tokens, "train")["train"]
    encoder = model_of(model)
    weights = weights_digest(model)
    matrices = matrices_of(kind, constants, encoder, train.provenance, weights).to(encoder.device)
    torch.manual_seed(seed)
    generator = torch.Generator().manual_seed(seed)
    loss_with, probe, begin = _learning(encoder, train, labels, model, seed, encoder_dropout)
    raw = nn.Parameter(torch.zeros(encoder.layers, encoder.heads, device=encoder.device))
    job = {
        "model": model,
        "weights": weights,
        "task": task,
        "seed": seed,
        "kind": kind,
        "encoder_dropout": encoder_dropout,
        "device": encoder.device.type,
    }
    checkpoint = Checkpoint(lambdas, job, (tokens, labels, constants))

    def loss_of(examples: Tensor) -> Tensor:
        return loss_with(examples, encoder.replacement(matrices, mixing=raw.sigmoid()))

    def after_epoch(epoch: int) -> Kept:
        return {"lambda": raw.detach().sigmoid().cpu()}

    learned = [raw, *probe.parameters()]
    epochs = fit(learned, loss_of, len(train), task, generator, after_epoch, "learning λ", begin, checkpoint)
    values = torch.stack([epoch.kept["lambda"] for epoch in epochs])  # [epoch, layer, head]
    epoch, layer, head = torch.meshgrid(*map(torch.arange, values.shape), indexing="ij")
    columns = {"epoch": epoch + 1, "layer": layer, "head": head, "value": values}
    about = {key: train.provenance[key] for key in ("model", "corpus", "slots", "style")}
    write_table(
        pa.table({name: column.flatten().numpy() for name, column in columns.items()}),
        lambdas,
        about | {"seed": seed, "encoder_dropout": encoder_dropout, **task},
    )
    checkpoint.discard()
    low, high = float(values[-1].min()), float(values[-1].max())
    return (
        f"λ between {low:.3f} and {high:.3f} after {task['epochs']} epochs of {len(train):,} examples"
        f"{checkpoint.resumed}"
    )


def _learning(
    encoder: Model, train: Tokens, labels: PathLike | None, model: Mapping[str, Any], seed: int, dropout: bool
) -> tuple[LossWith, nn.Module, Callable[[int], None]]:
    """The loss of a task, the new probe that it trains, and what has to be done before an epoch."""
    if labels is None:
        masked = MaskedTraining(encoder, train, Masking.of(tokenizer_of(model), model["name"]), seed, dropout)
        return masked.loss, masked.probe, masked.begin
    labelled = Labelled(train, labels)
    probe = labelled.probe(probe_sizes(encoder, train.n)).to(encoder.device)

    def loss(examples: Tensor, plan: Replacement) -> Tensor:
        def hidden_of(these: Tensor) -> Tensor:
            return torch.stack(encoder.run(encoder.pack(train.batch(these)), plan, dropout), dim=1)

        logits, gold = labelled.logits(probe, examples, hidden_of)
        return cross_entropy(logits, gold.to(logits.device))

    return loss, probe, lambda epoch: None


def rank_heads(lambdas: PathLike, order: PathLike, kind: str = "lambda") -> str:
    """Stage *rank*: the heads in the order in which they are replaced; rank 0 goes first.

    `lambda` goes from the smallest λ after the last epoch up, over all layers together, ties by layer, then head (the
    paper's order, Sec. 3.2); `lambda-reversed` is the same backwards.
    """
    if kind not in BY_LAMBDA:
        raise InputError(f"The order {kind!r} is not made of λ; those made of it are {', '.join(BY_LAMBDA)}.")
    table = read_table(lambdas).to_pandas()
    last = table[table.epoch == table.epoch.max()].sort_values(["value", "layer", "head"])
    heads = [(int(layer), int(head)) for layer, head in zip(last["layer"], last["head"], strict=True)]
    return _write_order(heads if kind == "lambda" else heads[::-1], order, provenance_of(read_table(lambdas)), kind)


def order_heads(model: Mapping[str, Any], order: PathLike, kind: str, seed: int = 0) -> str:
    """Stage *order*: an order that needs no data (Figure 5): by layer, or drawn at random.

    `first-layer-first` and `last-layer-first` go head by head within a layer; `random-1`, `random-2`, … are draws of
    their own, each the same for a seed whatever other draws there are.
    """
    layers, heads = shape_of_model(model)
    chosen, draw = order_of(kind)
    listed = [(layer, head) for layer in range(layers) for head in range(heads)]
    if chosen == "last-layer-first":
        listed.sort(key=lambda head: -head[0])
    elif draw is not None:
        generator = torch.Generator().manual_seed(int.from_bytes(sha256(f"{seed}/{draw}".encode()).digest()[:6]))
        listed = [listed[place] for place in torch.randperm(len(listed), generator=generator).tolist()]
    elif chosen in BY_LAMBDA:
        raise InputError(f"The order {kind!r} needs λ, which is learned on a task.")
    return _write_order(listed, order, {"model": model["name"]}, kind)


def _write_order(heads: list[tuple[int, int]], path: PathLike, about: Mapping[str, Any], kind: str) -> str:
    import pyarrow as pa

    columns = {"rank": range(len(heads)), "layer": [head[0] for head in heads], "head": [head[1] for head in heads]}
    write_table(pa.table(columns), path, {**about, "order": kind})
    return f"{len(heads)} heads ranked; layer {heads[0][0]}, head {heads[0][1]} goes first"
