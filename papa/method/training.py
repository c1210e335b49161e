"""Training of probes, and the runs that are written (paper, App. B).

There is one way for all of them: what differs is the objective, where hidden states come from (a store, or the model as
it goes), and whether constants are trained beside the probe.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from papa import __version__
from papa.config.freshness import SourceDigests
from papa.config.job import Job
from papa.config.stages import ProbeOf, Training
from papa.config.variant import Variant
from papa.data.tokens import Tokens
from papa.data.weights import sources_of
from papa.errors import DamagedArtefact, InputError, count
from papa.files import (
    JSON,
    Trace,
    provenance_of,
    read_json,
    read_table,
    read_tensors,
    trace_of,
    write_json,
    write_table,
    write_tensors,
)
from papa.method.checkpoints import Checkpoint
from papa.method.constants import TrainedConstants
from papa.method.fitting import Diverged, Epoch, TrainingTask, fit
from papa.method.metrics import score_of_table
from papa.method.objective import Objective, States
from papa.method.objectives import objective_of
from papa.method.probes import ProbeSizes
from papa.method.states import StreamedStates, stored_states
from papa.method.variants import names_of, replaced_by
from papa.model.load import model_of
from papa.model.model import Model
from papa.model.replacement import Outputs, Replacement, replaced_in

if TYPE_CHECKING:
    import pyarrow as pa

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Run:
    """One measured point: what was trained, and on what. Its outcomes, of which scores are made, have a file beside it.

    `constant` and `order` are None if they are not used; `fraction`, such as "1/8", is the share of heads that keep
    their own attention, `kept` of `heads`. `rows` and `rows_available` count the examples of each split with and
    without limits, `cut` those that lost tokens. `curve` has the mean training loss of each epoch, of which there are
    none if nothing was trained; `provenance` weights, corpus, layout, dropout and version of papa.
    """

    model: str
    task: str
    constant: str | None
    order: str | None
    fraction: str
    kept: int
    heads: int
    learning_rate: float
    batch_size: int
    epochs: int
    seed: int
    rows: Mapping[str, int]
    rows_available: Mapping[str, int]
    cut: Mapping[str, int]
    curve: Sequence[Mapping[str, float]]
    provenance: Mapping[str, JSON]


@dataclass(frozen=True)
class Source:
    """Where the hidden states of a job come from, and what they are.

    Args:
        states: gives them, batch by batch.
        sizes: what a probe has to know of them.
        heads: how many heads the model has.
        kept: how many of them keep their own attention.
        weights: digest of the model's weights.
        sources: what the trace says of the model that the hidden states are of.
        model: the model, if it runs along; None if hidden states are stored.
        beside: gives what is trained with a probe, as it is at the start: constants, or nothing.
    """

    states: States
    sizes: ProbeSizes
    heads: int
    kept: int
    weights: str
    sources: Mapping[str, str]
    model: Model | None = None
    beside: Callable[[], Sequence[TrainedConstants]] = tuple

    @property
    def device(self) -> str:
        """The kind of device on which hidden states are."""
        return "cpu" if self.model is None else self.model.device.type


@dataclass(frozen=True)
class Trained:
    """What is known of the probe of one seed.

    Args:
        run: what was measured.
        outcomes: what became of every validation example, with the column `seed`.
        facts: what outcomes say of the variant and its labels.
        state: what was learned, by name.
    """

    run: Mapping[str, JSON]
    outcomes: pa.Table
    facts: Mapping[str, JSON]
    state: Mapping[str, Tensor]

    def score(self, metric: str) -> float:
        """The score on all validation examples."""
        return score_of_table(metric, self.outcomes, self.facts.get("label_names", ()))


def train_probe(job: Job[ProbeOf]) -> str:
    """Stage *probe*: train a probe for each seed and note what each makes of every validation example (Sec. 4).

    Writes the runs as JSON, the outcomes of all validation examples as Parquet, and the probes as safetensors: with the
    matrices that were trained beside them, and without the embeddings that a probe of masked tokens is tied to. Probes
    of other seeds that were made alike stay in these files. The metric is only named in the line for the terminal.
    Where the model's own head takes the place of a probe, nothing is trained, and the file of the probes is empty.

    Raises:
        Diverged: the loss is not finite any more; the state after the last good epoch is kept beside the probes.
        InputError: constants or order are those of another model, or constants are to be trained on masked tokens.
        DamagedArtefact: stored hidden states are those of another job.
    """
    import pyarrow as pa

    settings, splits = job.settings, Tokens.read(job.input("tokens"))
    with (_streamed if settings.streamed else _read)(job, splits) as source:
        trace = job.trace(**source.sources)
        trained, checkpoints = _trained_before(job, trace), dict[int, Checkpoint]()
        for seed in settings.seeds:
            if seed not in trained:
                # only the identity of what is under way depends on one seed; what is finished waits for the others
                own = replace(trace, settings={**trace.settings, "seed": seed})
                place = Path(job.output("runs")).with_suffix(f".seed-{seed}")
                more = seed != settings.seeds[-1]
                checkpoints[seed] = Checkpoint(place, own, job.machine, source.device, to_the_end=more)
                trained[seed] = _train(job, splits, source, seed, checkpoints[seed])
    several = [trained[seed] for seed in sorted(trained)]
    score = fmean(trained[seed].score(settings.metric) for seed in settings.seeds)
    tensors = {f"seed-{own.run['seed']}/{name}": values for own in several for name, values in own.state.items()}
    write_tensors(tensors, job.output("probes"), {}, trace)
    outcomes = pa.concat_tables([own.outcomes for own in several]).unify_dictionaries()
    write_table(outcomes, job.output("outcomes"), several[-1].facts, trace)
    runs = {"runs": [own.run for own in several]}
    # the last, because who finds it takes the rest for written
    write_json(runs, job.output("runs"), trace, {"seeds": sorted(trained)})
    for checkpoint in checkpoints.values():
        checkpoint.discard()
    kept, heads = (several[-1].run[name] for name in ("kept", "heads"))
    over = "" if settings.direct else f" over {count(len(settings.seeds), 'seed')}"
    said = f"{settings.metric} {score:.3f}{over} with {kept} of {heads} heads"
    return said + "".join(f"; seed {seed}{own.resumed}" for seed, own in checkpoints.items() if own.resumed)


def _train(
    job: Job[ProbeOf], splits: Mapping[str, Tokens], source: Source, seed: int, checkpoint: Checkpoint
) -> Trained:
    """Train the probe of one seed."""
    import pyarrow as pa

    settings = job.settings
    torch.manual_seed(seed)
    objective = objective_of(job, splits, source.sizes, source.model, seed)
    modules = [objective.probe, *source.beside()]
    try:
        epochs = probe_trained(objective, source.states, modules, settings.training, seed, checkpoint)
    except Diverged as error:
        good = Path(job.output("probes")).with_suffix(f".seed-{seed}.last-good.safetensors")
        write_tensors(_state_of(modules), good, {}, job.trace(**source.sources))
        raise Diverged(f"{error} The state after epoch {error.good} is kept in {good}.") from None
    variant = Variant.parse(settings.variant)
    names, facts = names_of(variant), splits["train"].provenance
    run = Run(
        model=settings.model.model.name,
        task=settings.task,
        constant=names["constant"],
        order=names["order"],
        fraction=str(variant.fraction),
        kept=source.kept,
        heads=source.heads,
        **settings.training.model_dump(),
        seed=seed,
        rows=facts["rows"],
        rows_available=facts["rows_available"],
        cut={split: tokens.cut for split, tokens in splits.items()},
        curve=[
            {"epoch": number, "loss": epoch.loss}
            for number, epoch in enumerate(epochs[: settings.training.epochs], start=1)
        ],
        provenance={
            "weights": source.weights,
            **{key: facts[key] for key in ("corpus", "slots", "style", "segments")},
            "encoder_dropout": settings.encoder_dropout,
            "papa_version": __version__,
        },
    )
    about = {name: getattr(run, name) for name in ("model", "task", "constant", "order", "fraction")}
    about |= {"weights": source.weights, "corpus": facts["corpus"], **objective.facts}
    outcomes = objective.table([epoch.kept for epoch in epochs])
    outcomes = outcomes.add_column(0, "seed", pa.repeat(pa.scalar(seed, pa.int32()), len(outcomes)))
    return Trained(asdict(run), outcomes, about, _state_of(modules))


def probe_trained(
    objective: Objective,
    states: States,
    modules: Sequence[nn.Module],
    training: Training,
    seed: int,
    checkpoint: Checkpoint | None = None,
) -> list[Epoch]:
    """Train the probe of an objective; each epoch keeps what the probe makes of all that is scored.

    Args:
        objective: what is measured; it was just made, with this seed.
        states: hidden states, or logits of the model's own head.
        modules: the probe, and what is trained beside it. If they have no parameters, nothing is trained.
        training: learning rate, batch size and epochs.
        seed: what the order of the examples follows from.
        checkpoint: where to go on from.

    Raises:
        Diverged: see `fit`.
    """
    parameters = [values for module in modules for values in module.parameters()]
    if not parameters:
        return [Epoch(math.nan, objective.outcomes_on(states))]
    task = TrainingTask(
        name=f"probe, seed {seed}",
        parameters=parameters,
        examples=objective.examples,
        loss=objective.loss_on(states),
        before_epoch=objective.begin,
        after_epoch=lambda: objective.outcomes_on(states),
    )
    return fit(task, training, seed, checkpoint)


def _trained_before(job: Job[ProbeOf], trace: Trace) -> dict[int, Trained]:
    """The probes that are in all outputs of a job, by their seeds, if they were made alike and nothing is damaged."""
    import pyarrow.compute as pc

    if any(trace_of(path) != trace for path in job.outputs.values()):
        return {}
    try:
        runs = {run["seed"]: run for run in read_json(job.output("runs"))["runs"]}
        outcomes = read_table(job.output("outcomes"))
        tensors, _ = read_tensors(job.output("probes"))
    except DamagedArtefact as error:
        log.warning("%s All its probes are trained anew.", error)
        return {}
    states: dict[int, dict[str, Tensor]] = {}
    for path, values in tensors.items():
        seed, _, name = path.removeprefix("seed-").partition("/")
        states.setdefault(int(seed), {})[name] = values
    facts, rows = provenance_of(outcomes), outcomes.replace_schema_metadata(None)
    own = {seed: rows.filter(pc.equal(rows["seed"], seed)) for seed in states}
    # a kill between two of the files leaves a seed in some of them
    there = [seed for seed in runs if seed in states and len(own[seed])]
    return {seed: Trained(runs[seed], own[seed], facts, states[seed]) for seed in there}


@contextmanager
def _read(job: Job[ProbeOf], splits: Mapping[str, Tokens]) -> Iterator[Source]:
    """Hidden states that the jobs before have stored."""
    settings, indices = job.settings, job.inputs["index"]
    with stored_states(indices, splits, settings.model.model.name, Variant.parse(settings.variant)) as (states, index):
        sizes = ProbeSizes(**{field.name: index[field.name] for field in fields(ProbeSizes)})
        made = trace_of(indices[0])
        sources = {name: own for name, own in made.inputs.items() if name in SourceDigests.names} if made else {}
        yield Source(states, sizes, index["heads"], index["kept"], index["weights"], sources)


@contextmanager
def _streamed(job: Job[ProbeOf], splits: Mapping[str, Tokens]) -> Iterator[Source]:
    """Hidden states through the model, which go through float16 as stored ones do.

    If constants are trained or a task has no labels, hidden states stay float32, because nothing like them is stored.
    """
    settings, tokens = job.settings, splits["train"]
    variant, unlabelled = Variant.parse(settings.variant), job.maybe("labels") is None
    if variant.trained and (unlabelled or settings.direct):
        raise InputError(
            f"The constant of {variant.path} is trained, which needs labels and a probe; give a task without them "
            "another constant."
        )
    model = model_of(settings.model, job.machine)
    constants, heads = replaced_by(job, model, tokens.provenance)
    fixed, trained = model.replacement(constants, heads), list[TrainedConstants]()
    replaced = replaced_in(fixed)

    def beside() -> list[TrainedConstants]:
        if variant.trained and constants is not None and not isinstance(constants, Outputs):
            trained[:] = [TrainedConstants(constants, replaced).to(model.device)]
        return trained

    def replacement() -> Replacement:
        return model.replacement(trained[0](), replaced) if trained else fixed

    rounded = not (variant.trained or unlabelled)
    states = StreamedStates(model, replacement, settings.encoder_dropout, rounded, settings.direct)
    total = model.layers * model.heads
    weights = str(model.weights)
    sources, kept = sources_of(settings.model.model, weights, job.machine), total - len(replaced)
    yield Source(states, ProbeSizes.of(model, tokens.n), total, kept, weights, sources, model, beside)


def _state_of(modules: Sequence[nn.Module]) -> dict[str, Tensor]:
    """A copy of what the modules have learned."""
    return {name: value.detach().cpu().clone() for module in modules for name, value in module.state_dict().items()}
