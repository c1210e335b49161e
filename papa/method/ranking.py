"""Which heads are replaced first: λ of each, learned with a probe, and the orders made of weights (Sec. 3.2)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from hashlib import sha256

import torch
from torch import Tensor, nn

from papa.config.stages import Gating, LambdaOf, OrderOf, RankOf
from papa.config.study import Job
from papa.config.variant import BY_LAMBDA, OBSERVED, PROBED, Constant, Order, Variant
from papa.data.tokenize import shape_of_model
from papa.data.tokens import Tokens
from papa.data.weights import sources_of, weights_digest
from papa.errors import InputError, count
from papa.files import JSON, PathLike, Trace, provenance_of, read_table, write_table
from papa.method.constants import constants_for, must_agree
from papa.method.fitting import Checkpoint, Kept, Lesson, fit
from papa.method.objectives import Objective, Through, objective_of
from papa.method.probes import Sizes
from papa.method.weights import units_of, write_weights
from papa.model.load import model_of
from papa.model.model import Model
from papa.model.replacement import Constants, Head, Matrices, Outputs, Replacement

START = {None: 0.5, "open": 0.95}
"""Where λ starts, by the name of the setting."""


def train_lambda(job: Job[LambdaOf]) -> str:
    """Stage *train λ*: learn how much each head needs its own attention, together with a probe; Parquet per epoch.

    See `gates_learned`; the probe that is learned on the way is thrown away.
    """
    settings, identity = job.settings, job.settings.model.model
    split = Tokens.read(job.input("tokens"), "train")
    train, facts = split["train"], split["train"].provenance
    model, constant = model_of(settings.model), Constant.parse(settings.constant)
    matrices = constants_for(constant, job.maybe("constants"), model, facts)
    torch.manual_seed(settings.seed)
    objective = objective_of(job, split, Sizes.of(model, train.n), model, job.settings.seed)
    trace = job.trace(**sources_of(identity, str(model.weights)))
    checkpoint = Checkpoint(job.output("lambdas"), trace, model.device.type)
    values = gates_learned(model, matrices, objective, settings, checkpoint)
    size = model.heads // units_of(settings.unit, model.heads, model.groups)
    about = {"model": identity.name, "weights": model.weights, "unit_size": size}
    write_weights(values, job.output("lambdas"), about, facts, trace)
    checkpoint.discard()
    low, high = float(values[-1].min()), float(values[-1].max())
    examples = len(_part_of(objective.examples, settings.part))
    return (
        f"λ between {low:.3f} and {high:.3f} after {count(len(values), 'epoch')} of {count(examples, 'example')}"
        f"{checkpoint.resumed}"
    )


def gates_learned(
    model: Model, constants: Constants, objective: Objective, how: Gating, checkpoint: Checkpoint | None = None
) -> Tensor:
    """λ of every head after each epoch, `[epoch, layer, head]`, learned together with what the objective trains.

    Head (l, h) uses λ·attention + (1-λ)·constant with λ = sigmoid(raw), raw = 0 at the start (Sec. 3.2). Heads of one
    unit (`ranking.unit`) have one λ. Of next tokens and of choices the model's own head has the loss, and λ alone is
    learned. The settings may say that λ starts open (`START`), and that the mean of all λ times `l1` is added to the
    loss.

    Args:
        model: the frozen model.
        constants: what replaces attention.
        objective: has the loss, and was just made, with the seed that is in `how`.
        how: how λ is learned.
        checkpoint: where to go on from.
    """
    given = constants if isinstance(constants, Tensor | Matrices | Outputs) else constants.constants
    matrices, units = given.to(model.device), units_of(how.unit, model.heads, model.groups)
    start = torch.tensor(START[how.start]).logit().item()
    raw = nn.Parameter(torch.full((model.layers, units), start, device=model.device))

    def lambdas() -> Tensor:
        return raw.sigmoid().repeat_interleave(model.heads // units, dim=1)  # [layer, head]

    def mixed() -> Replacement:
        return model.replacement(matrices, mixing=lambdas())

    def learned() -> Kept:
        return {"lambda": lambdas().detach().cpu()}

    through = Through(model, mixed, how.encoder_dropout, direct=bool(how.direct))
    task_loss, parameters = objective.loss_on(through), objective.probe.parameters()

    def loss(examples: Tensor) -> Tensor:
        own = task_loss(examples)
        return own if how.l1 is None else own + how.l1 * raw.sigmoid().mean()

    rows = _part_of(objective.examples, how.part)
    lesson = Lesson("learning λ", [raw, *parameters], len(rows), lambda own: loss(rows[own]), objective.begin, learned)
    epochs = fit(lesson, how.training, how.seed, checkpoint)
    return torch.stack([epoch.kept["lambda"] for epoch in epochs])


def _part_of(examples: int, part: str | None) -> Tensor:
    """The numbers of the training examples that are in a part, drawn because files are often sorted; None is all."""
    rows = torch.arange(examples)
    if part is not None:
        number, parts = map(int, part.split("of"))
        rows = torch.randperm(len(rows), generator=torch.Generator().manual_seed(0))[number - 1 :: parts]
        if not len(rows):
            raise InputError(f"{examples} training examples cannot be cut in {parts} parts to learn λ from each.")
    return rows


def rank_heads(job: Job[RankOf]) -> str:
    """Stage *rank*: the heads in the order in which they are replaced; rank 0 goes first.

    `lambda-SEED` goes from the smallest λ after the last epoch up, over all layers together, ties by layer, then head
    (the paper's order, Sec. 3.2); `lambda-reversed-SEED` is the same backwards. Orders by other weights likewise go
    from the smallest up.

    Raises:
        InputError: the order is not made of weights.
    """
    name = job.settings.order
    if not Order.parse(name).by_weight:
        raise InputError(
            f"The order {name!r} is not made of λ or other weights; those made of them are "
            f"{', '.join((*BY_LAMBDA, *PROBED, *OBSERVED))}."
        )
    table = read_table(job.input("lambdas"))
    rows = list(zip(*(table.column(key).to_pylist() for key in ("epoch", "value", "layer", "head")), strict=True))
    last = max(row[0] for row in rows)
    heads = smallest_first({(layer, head): value for epoch, value, layer, head in rows if epoch == last})
    heads = heads[::-1] if Order.parse(name).base == "lambda-reversed" else heads
    return _write_order(heads, job.output("order"), {**provenance_of(table), "order": name}, job.trace())


def order_heads(job: Job[OrderOf]) -> str:
    """Stage *order*: an order that needs no data (Figure 5): by layer, or drawn at random.

    `first-layer-first` and `last-layer-first` go head by head within a layer; `random-1`, `random-2`, … are draws of
    their own, each the same for a seed whatever other draws there are.

    Raises:
        InputError: the order is made of weights, or there is no such order.
    """
    settings, order = job.settings, Order.parse(job.settings.order)
    if order.by_weight:
        raise InputError(f"The order {order.name!r} needs λ or other weights of heads, which depend on a task.")
    layers, heads, groups = shape_of_model(settings.model)
    units = units_of(settings.unit, heads, groups)
    listed = [(layer, unit) for layer in range(layers) for unit in range(units)]
    if order.base == "last-layer-first":
        listed.sort(key=lambda unit: -unit[0])
    elif order.draw is not None:
        drawn = sha256(f"{settings.seed}/{order.draw}".encode()).digest()[:6]
        generator = torch.Generator().manual_seed(int.from_bytes(drawn))
        listed = [listed[place] for place in torch.randperm(len(listed), generator=generator).tolist()]
    weights, size = weights_digest(settings.model), heads // units
    about = {"model": settings.model.name, "weights": weights, "order": order.name, "unit_size": size}
    trace = job.trace(**sources_of(settings.model, weights))
    in_order = [(layer, unit * size + own) for layer, unit in listed for own in range(size)]
    return _write_order(in_order, job.output("order"), about, trace)


def smallest_first(weights: Mapping[Head, float]) -> list[Head]:
    """Heads in the order in which they are replaced: from the smallest weight up, ties by layer, then head."""
    return sorted(weights, key=lambda head: (weights[head], head))


def _write_order(heads: list[Head], path: PathLike, about: Mapping[str, JSON], trace: Trace) -> str:
    import pyarrow as pa

    columns = {"rank": range(len(heads)), "layer": [head[0] for head in heads], "head": [head[1] for head in heads]}
    write_table(pa.table(columns), path, about, trace)
    return f"{len(heads)} heads ranked; layer {heads[0][0]}, head {heads[0][1]} goes first"


def heads_to_replace(order: PathLike, variant: Variant, model: Model) -> list[Head]:
    """The heads that an order gives up first, down to the fraction of its units that a variant keeps.

    Raises:
        InputError: the order is another, or that of another model.
    """
    table = read_table(order)
    facts = provenance_of(table)
    must_agree(order, facts, {"weights": model.weights, "order": variant.order and variant.order.name})
    ranked = list(zip(table.column("layer").to_pylist(), table.column("head").to_pylist(), strict=True))
    check_ranked(ranked, model, str(order))
    size = int(facts.get("unit_size", 1))
    if size not in (1, model.heads // model.groups, model.heads):
        raise InputError(
            f"{order} takes {size} heads at once, but in this model {model.heads // model.groups} of the {model.heads} "
            "heads of a layer share their keys; rank by head or by layer (`ranking.unit`)."
        )
    return given_up(ranked, variant, size)


def check_ranked(ranked: Sequence[Head], model: Model, what: str) -> None:
    """Raise `InputError` unless an order, which errors call `what`, has each head of a model once."""
    if sorted(ranked) != [(layer, head) for layer in range(model.layers) for head in range(model.heads)]:
        raise InputError(
            f"{what} does not order the heads of this model, which has {model.layers} layers of {model.heads} heads; "
            "rank the heads of this model again."
        )


def given_up(ranked: Sequence[Head], variant: Variant, size: int = 1) -> list[Head]:
    """The first heads of an order, down to the fraction of its units, of so many heads each, that a variant keeps."""
    return list(ranked[: len(ranked) - size * variant.kept(len(ranked) // size)])
