"""What heads weigh: numbers that orders are made of, and measures of them beside λ, on the training texts of a task.

All weights have one form, λ too: a value for each head, and heads of small value are replaced first. What stands here
is measured, and no gate is learned. Two measures follow from a loss, and so from a probe that is trained at own
attention first, as that of the original is: the `gradient` of the loss by a gate on each head, and what the loss rises
by if one is replaced, `leave-one-out`. Two are seen in attention itself: its `variance` around the constant, and the
`output-norm` of heads.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import product

import torch
from torch import Tensor

from papa.config.job import Job
from papa.config.stages import LEFT_OUT_OF, WeightsOf
from papa.config.variant import OBSERVED, ORIGINAL, Constant, Variant
from papa.data.packed import Packed
from papa.data.tokens import Tokens
from papa.data.weights import sources_of
from papa.errors import InputError, count
from papa.files import JSON, PathLike, Trace, write_table
from papa.method.checkpoints import Checkpoint
from papa.method.constants import constants_for
from papa.method.fitting import TrainingTask, fit
from papa.method.objective import Objective, States
from papa.method.objectives import objective_of
from papa.method.orders import units_of
from papa.method.probes import ProbeSizes
from papa.method.progress import progress
from papa.method.states import StreamedStates, stored_states
from papa.model.attention import Layer
from papa.model.budget import TokenBudget
from papa.model.load import model_of
from papa.model.model import Model
from papa.model.replacement import Constants, Mix, Replace, Replacement

RowsOf = Callable[[Layer, Tensor], Tensor]
"""From a layer and its attention `[example, head, query, key]` to a number for each `[example, head, query]`."""


def write_weights(
    values: Tensor, path: PathLike, about: Mapping[str, JSON], facts: Mapping[str, JSON], trace: Trace
) -> None:
    """Write weights of heads as Parquet: `epoch` (counted from 1), `layer`, `head`, `value`.

    Args:
        values: `[epoch, layer, head]`; what is measured and not learned has one epoch.
        path: of the file.
        about: the name of the model, its weights, and the size of a unit.
        facts: what the tokens say of themselves.
        trace: how the weights were made.
    """
    import pyarrow as pa

    epoch, layer, head = torch.meshgrid(*map(torch.arange, values.shape), indexing="ij")
    columns = {"epoch": epoch + 1, "layer": layer, "head": head, "value": values}
    table = pa.table({name: column.flatten().numpy() for name, column in columns.items()})
    write_table(table, path, {**about, **{key: facts[key] for key in ("corpus", "slots", "style")}}, trace)


def weigh_heads(job: Job[WeightsOf]) -> str:
    """Stage *weights*: measure what each head weighs; Parquet like that of λ, with one epoch.

    Heads of one unit have one value: that of a gate that they share, of replacing them together, or their mean.

    Raises:
        InputError: constants are of another model or layout, or a weight is not finite.
    """
    settings, identity = job.settings, job.settings.model.model
    split = Tokens.read(job.input("tokens"), "train")
    train, facts = split["train"], split["train"].provenance
    model = model_of(settings.model, job.machine)
    units = units_of(settings.unit, model.heads, model.groups)
    trace = job.trace(**sources_of(identity, str(model.weights), job.machine))
    checkpoint = Checkpoint(job.output("weights"), trace, job.machine, model.device.type, to_the_end=True)
    constants: Constants = torch.empty(0)
    if settings.constant is not None:
        constants = constants_for(Constant.parse(settings.constant), job.maybe("constants"), model, facts)
        constants = constants.to(model.device)
    begin = time.monotonic()
    examples, of_probe = len(train), ""
    if settings.by in OBSERVED:
        of_rows = distances_to(model.replacement(constants)) if settings.by == "variance" else norms_of_contexts
        values = mean_over_tokens(model, train, of_rows).view(model.layers, units, -1).mean(2)  # [layer, unit]
    else:
        probed = _probed(job, split, model, checkpoint)
        if settings.training.epochs:
            of_probe = f" after {time.monotonic() - begin:.1f} s of its probe"
        begin = time.monotonic()
        if settings.by == "gradient":
            values = probed.gradients(constants, units)
        else:
            examples = min(probed.examples, LEFT_OUT_OF)
            values = probed.left_out(constants, units)
    took = f"{time.monotonic() - begin:.1f} s{of_probe}"
    if not bool(values.isfinite().all()):
        raise InputError(
            f"The {settings.by} of a head of {identity.name} is not finite; lower the learning rate of the task, or "
            "run the model in float32."
        )
    of_heads = values.float().repeat_interleave(model.heads // units, dim=1)  # [layer, head]
    about = {"model": identity.name, "weights": model.weights, "unit_size": model.heads // units}
    write_weights(of_heads[None].cpu(), job.output("weights"), about, facts, trace)
    checkpoint.discard()
    low, high = float(values.min()), float(values.max())
    over = f"over {count(examples, 'example')} in {took}{checkpoint.resumed}"
    return f"{settings.by} between {low:.3g} and {high:.3g} {over}"


# -- what follows from a loss -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Probed:
    """A model with a loss on the training texts of a task, of which nothing is learned any more.

    Args:
        model: the frozen model.
        objective: has the loss, by a probe that is trained or by the model's own head; what it draws is drawn.
        train: the training texts.
        batch_size: how many examples pass at once.
        seed: what a sample of them follows from.
        direct: whether the loss is that of the model's own head.
    """

    model: Model
    objective: Objective
    train: Tokens
    batch_size: int
    seed: int
    direct: bool

    @property
    def examples(self) -> int:
        """How many training examples there are."""
        return self.objective.examples

    def _owners(self, examples: Tensor) -> Tensor:
        """The place among some examples that each text of their batch belongs to: of questions, each choice is one."""
        places, questions = torch.arange(len(examples)), self.train.questions
        return places if questions is None else places.repeat_interleave(questions.sizes[examples])

    def gradients(self, constants: Constants, units: int) -> Tensor:
        """The mean over training examples of |∂loss/∂gate| of a gate on each unit, float64 `[layer, unit]`.

        Head (l, h) uses gate·attention + (1-gate)·constant with gate = 1. Each example has gates of its own, so that
        the absolute value is that of one example (Michel et al. 2019), and a gate of a unit is one of all its heads.

        Args:
            constants: what would replace attention.
            units: how many units a layer has.
        """
        open_gates = torch.ones(self.model.layers, self.model.heads)
        mixes = [own for own in self.model.replacement(constants, mixing=open_gates) if isinstance(own, Mix)]
        gates: list[Tensor] = []  # of each layer, [example, head]
        mixed: Replacement = []
        loss = self.objective.loss_on(StreamedStates(self.model, lambda: mixed, direct=self.direct))
        total = torch.zeros(self.model.layers, units, dtype=torch.float64, device=self.model.device)
        for own in progress(torch.arange(self.examples).split(self.batch_size), "gradients", self.examples):
            owners = self._owners(own).to(self.model.device)
            gates[:] = [mix.weights.new_ones(len(owners), self.model.heads).requires_grad_() for mix in mixes]
            mixed[:] = [replace(mix, weights=gate) for mix, gate in zip(mixes, gates, strict=True)]
            of_texts = torch.stack(torch.autograd.grad(loss(own), gates)).double()  # [layer, text, head]
            slopes = of_texts.new_zeros(len(gates), len(own), self.model.heads).index_add(1, owners, of_texts)
            # the loss is a mean over the batch, in which each example has its share
            total += slopes.unflatten(2, (units, -1)).sum(3).abs().sum(1) * len(own)
        return total / self.examples

    def left_out(self, constants: Constants, units: int) -> Tensor:
        """What the loss rises by if one unit is replaced, float64 `[layer, unit]`, in nats.

        It is measured on `LEFT_OUT_OF` training examples at most, the same ones for all units, drawn by the seed.

        Args:
            constants: what would replace attention.
            units: how many units a layer has.
        """
        drawn = torch.randperm(self.examples, generator=torch.Generator().manual_seed(self.seed))
        sample, size = drawn[:LEFT_OUT_OF].sort().values, self.model.heads // units

        def loss_with(replacement: Replacement) -> float:
            loss = self.objective.loss_on(StreamedStates(self.model, lambda: replacement, direct=self.direct))
            with torch.inference_mode():
                return sum(float(loss(own)) * len(own) for own in sample.split(self.batch_size)) / len(sample)

        original = loss_with(self.model.replacement())
        values = torch.zeros(self.model.layers, units, dtype=torch.float64)
        places = torch.tensor(list(product(range(self.model.layers), range(units))))
        for place in progress(places.split(1), "units left out", len(places)):
            layer, unit = place[0].tolist()
            heads = [(layer, head) for head in range(unit * size, (unit + 1) * size)]
            values[layer, unit] = loss_with(self.model.replacement(constants, heads)) - original
        return values


def _probed(job: Job[WeightsOf], split: Mapping[str, Tokens], model: Model, checkpoint: Checkpoint) -> Probed:
    """The loss of a job, with the probe that the original has with this seed; of next tokens nothing is trained."""
    settings, train = job.settings, split["train"]
    if settings.seed is None:
        raise InputError(f"The weights {settings.by} follow from a probe, and a probe needs a seed; give one.")
    torch.manual_seed(settings.seed)
    objective = objective_of(job, split, ProbeSizes.of(model, train.n), model, settings.seed)
    direct = settings.direct
    if not direct:
        with _states_of_the_original(job, split, model) as states:
            task = TrainingTask(
                name="probe of the original",
                parameters=list(objective.probe.parameters()),
                examples=objective.examples,
                loss=objective.loss_on(states),
                before_epoch=objective.begin,
                after_epoch=dict,
            )
            fit(task, settings.training, settings.seed, checkpoint)
    objective.probe.eval()
    objective.begin(settings.training.epochs + 1)  # masks that the probe has not seen
    return Probed(model, objective, train, settings.training.batch_size, settings.seed, direct)


@contextmanager
def _states_of_the_original(job: Job[WeightsOf], split: Mapping[str, Tokens], model: Model) -> Iterator[States]:
    """Hidden states with no head replaced: stored ones if the job reads an index, else from the model as it goes."""
    indices, usual = job.inputs.get("index"), model.replacement()
    if indices:
        with stored_states(indices, split, job.settings.model.model.name, Variant.parse(ORIGINAL)) as (read, _):
            yield lambda batch: read(batch).to(model.device)
    else:
        labelled = job.maybe("labels") is not None
        yield StreamedStates(model, lambda: usual, bool(job.settings.encoder_dropout), rounded=labelled)


# -- what is seen in attention ----------------------------------------------------------------------------------------


def mean_over_tokens(model: Model, train: Tokens, of_rows: RowsOf) -> Tensor:
    """The mean over all tokens of the training texts of what each head does with a query, float64 `[layer, head]`."""
    total = torch.zeros(model.layers, model.heads, dtype=torch.float64, device=model.device)

    def add(_: Tensor, batch: Packed, __: int) -> None:
        own = torch.zeros_like(total)  # a batch that does not fit into memory leaves nothing behind

        def watch(layer: Layer, attention: Tensor) -> None:
            rows, real = of_rows(layer, attention).double(), layer.examples.real
            own[layer.number] = (rows if real is None else rows.where(real[:, None], 0)).sum((0, 2))

        with torch.no_grad():
            model.watch(batch, watch)
        total.add_(own)

    budget = TokenBudget(model.token_budget)
    for _ in progress(budget.run(model, train, add), "weighing heads", len(train)):
        pass
    return total / len(train.ids)


def distances_to(replacement: Replacement) -> RowsOf:
    """The squared distance of each row of attention to that of the constant, as the example would use it.

    `replacement` replaces all heads. If a constant is what heads give, the distance is that of what they give.
    """

    constants = [own.constant for own in replacement if isinstance(own, Replace)]

    def of_rows(layer: Layer, attention: Tensor) -> Tensor:
        return layer.distances(attention, constants[layer.number])

    return of_rows


def norms_of_contexts(layer: Layer, attention: Tensor) -> Tensor:
    """The norm of the context that each head gives to a query: attention times values, before any projection."""
    return (attention @ layer.values(None)).float().square().sum(-1).sqrt()
