"""Which heads are replaced first: a weight per head, learned with a probe, and the orders made of it (Sec. 3.2)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from papa.artefacts import PathLike, provenance_of, read_table, write_table
from papa.constants import ConstantMatrices
from papa.encoder import encoder_of
from papa.errors import InputError
from papa.features import check_origin, probe_sizes
from papa.layout import Tokens
from papa.sources.models import weights_digest
from papa.training import Labelled, fit

ORDERS = ("lambda",)


def train_lambda(
    model: Mapping[str, Any],
    tokens: PathLike,
    labels: PathLike,
    constants: PathLike,
    lambdas: PathLike,
    task: Mapping[str, Any],
    seed: int,
) -> str:
    """Stage *train λ*: learn how much each head needs its own attention, together with a probe; Parquet per epoch.

    Head (l, h) uses λ·attention + (1-λ)·constant with λ = sigmoid(raw), raw = 0 at the start (Sec. 3.2). The probe that
    is learned on the way is thrown away.
    """
    import pyarrow as pa

    train = Tokens.read(tokens)["train"]
    labelled = Labelled(train, labels)
    average = ConstantMatrices.load(constants)
    encoder = encoder_of(model)
    check_origin(average, train.provenance, weights_digest(model), constants)
    matrices = average.mean.to(encoder.device)
    torch.manual_seed(seed)
    generator = torch.Generator().manual_seed(seed)
    probe = labelled.probe(probe_sizes(encoder, train.n)).to(encoder.device)
    raw = nn.Parameter(torch.zeros(encoder.layers, encoder.heads, device=encoder.device))
    epochs: list[Tensor] = []

    def mixed_hidden(examples: Tensor) -> Tensor:
        plan = encoder.plan(matrices, mixing=raw.sigmoid())
        return torch.stack(encoder.run(encoder.pack(train.batch(examples)), plan), dim=1)

    def loss_of(examples: Tensor) -> Tensor:
        logits, gold = labelled.logits(probe, examples, mixed_hidden)
        return cross_entropy(logits, gold.to(logits.device))

    fit(
        [raw, *probe.parameters()],
        loss_of,
        len(labelled),
        task,
        generator,
        lambda epoch, loss: epochs.append(raw.detach().sigmoid().cpu().clone()),
        "learning λ",
    )
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
    return f"λ between {low:.3f} and {high:.3f} after {task['epochs']} epochs of {len(labelled):,} examples"


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
