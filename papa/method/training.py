"""The stage that measures a variant: it trains a probe for each seed and records the outcomes and the run (App. B).

All probes are trained in the same way. They differ in the objective, in the source of hidden states (the store or the
model), and in whether constants are trained with the probe.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from papa import __version__
from papa.config.artefacts import LAST_GOOD
from papa.config.freshness import SourceDigests
from papa.config.job import Job
from papa.config.stages import ProbeOf
from papa.config.variant import Variant
from papa.data.tokens import Tokens
from papa.data.weights import sources_of
from papa.errors import DamagedArtefact, InputError, count
from papa.files import Trace, provenance_of, read_table, read_tensors, trace_of, write_table, write_tensors
from papa.method.checkpoints import Checkpoint
from papa.method.constants import TrainedConstants
from papa.method.fitting import Diverged
from papa.method.metrics import score_of_table
from papa.method.objective import States, fit_objective, objective_of
from papa.method.probes import ProbeSizes
from papa.method.runs import TRAINING_FIELDS, Origin, Run, SplitCounts, read_runs, write_runs
from papa.method.states import StreamedStates, stored_states
from papa.method.variants import names_of, replaced_by
from papa.model.load import model_of
from papa.model.model import Model
from papa.model.replacement import Replacement, replaced_in

if TYPE_CHECKING:
    import pyarrow as pa

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class StateSource:
    """The source of a job's hidden states: the store or the model.

    Args:
        states: maps a batch to its hidden states.
        sizes: the sizes of the hidden states.
        heads, kept: number of heads in the model, and number of heads that keep their attention.
        weights_digest: digest of the model's weights.
        digests: digests of the model, for the trace of the job.
        model: the model that computes the states; None if they are stored.
        trained_with_probe: creates the constants that are trained with a probe, if any.
    """

    states: States
    sizes: ProbeSizes
    heads: int
    kept: int
    weights_digest: str
    digests: Mapping[str, str]
    model: Model | None = None
    trained_with_probe: Callable[[], Sequence[nn.Module]] = tuple

    @property
    def device(self) -> str:
        """Type of the device that holds the hidden states, such as "cpu"."""
        return "cpu" if self.model is None else self.model.device.type


@dataclass(frozen=True)
class TrainedProbe:
    """The probe of one seed: its run, its outcomes with their facts, and its trained tensors by name."""

    run: Run
    outcomes: pa.Table
    facts: Mapping[str, Any]
    state: Mapping[str, Tensor]


def train_probe(job: Job[ProbeOf]) -> str:
    """Stage *probe*: train a probe for each seed and record its outcome on every validation example (Sec. 4).

    Runs are written as JSON, outcomes as Parquet, and probes as safetensors. A probe's tensors include constants
    that were trained with it, but not the embeddings to which a probe for masked tokens is tied. Existing probes
    of other seeds are kept if their trace is the same. If the model's prediction head is used,
    nothing is trained, and the probes file has no tensors.

    Raise `Diverged` if the loss is no longer finite; the parameters after the last finite epoch are saved next to the
    probes.
    """
    import pyarrow as pa

    settings, splits = job.settings, Tokens.read(job.input("tokens"))
    with (_streamed if settings.streamed else _stored)(job, splits) as source:
        trace = job.trace(**source.digests)
        probe_of, checkpoints = _finished_probes(job, trace), dict[int, Checkpoint]()
        for seed in settings.seeds:
            if seed not in probe_of:
                seed_trace = replace(trace, settings={**trace.settings, "seed": seed})
                path = Path(job.output("runs")).with_suffix(f".seed-{seed}")
                is_last = seed == settings.seeds[-1]
                # a finished probe stays in its checkpoint until the probes of all seeds are written
                checkpoints[seed] = Checkpoint(path, seed_trace, job.machine, source.device, to_the_end=not is_last)
                probe_of[seed] = _train(job, splits, source, seed, checkpoints[seed])
    probes = [probe_of[seed] for seed in sorted(probe_of)]
    names = probes[-1].facts.get("label_names", ())
    score = fmean(score_of_table(str(settings.metric), probe_of[seed].outcomes, names) for seed in settings.seeds)
    tensors = {f"seed-{probe.run.seed}/{name}": values for probe in probes for name, values in probe.state.items()}
    write_tensors(tensors, job.output("probes"), {}, trace)
    outcomes = pa.concat_tables([probe.outcomes for probe in probes]).unify_dictionaries()
    write_table(outcomes, job.output("outcomes"), probes[-1].facts, trace)
    # runs are written last, because their readers expect the other files to exist
    write_runs([probe.run for probe in probes], job.output("runs"), trace)
    for checkpoint in checkpoints.values():
        checkpoint.discard()
    seeds = f" over {count(len(settings.seeds), 'seed')}" if settings.target.probed else ""
    run = probes[-1].run
    report = f"{settings.metric} {score:.3f}{seeds} with {run.kept} of {run.heads} heads"
    resumed = (f"; seed {seed}{checkpoint.resumed}" for seed, checkpoint in checkpoints.items() if checkpoint.resumed)
    return report + "".join(resumed)


def _train(
    job: Job[ProbeOf], splits: Mapping[str, Tokens], source: StateSource, seed: int, checkpoint: Checkpoint
) -> TrainedProbe:
    import pyarrow as pa

    settings = job.settings
    torch.manual_seed(seed)
    objective = objective_of(job, splits, source.sizes, source.model, seed)
    variant, facts = Variant.parse(settings.variant), splits["train"].provenance
    modules = [objective.probe, *source.trained_with_probe()]
    try:
        epochs = fit_objective(objective, source.states, modules, settings.training, seed, checkpoint)
    except Diverged as error:
        last_good = Path(job.output("probes")).with_suffix(LAST_GOOD.format(seed=seed))
        write_tensors(_state_of(modules), last_good, {}, job.trace(**source.digests))
        raise Diverged(f"{error} The state after epoch {error.finite_epochs} is saved in {last_good}.") from None
    point: dict[str, Any] = {"model": settings.model.model.name, "task": settings.task, **names_of(variant)}
    point |= {"fraction": str(variant.fraction)}
    layout = {key: facts[key] for key in ("corpus", "slots", "style")}
    trained_epochs = epochs[: settings.training.epochs]
    sampled = {} if settings.training.rows is None else {"train": settings.training.row_count(objective.examples)}
    run = Run(
        **point,
        kept=source.kept,
        heads=source.heads,
        **settings.training.model_dump(include={*TRAINING_FIELDS}),
        seed=seed,
        rows=SplitCounts(**facts["rows"] | sampled),
        rows_available=SplitCounts(**facts["rows_available"]),
        cut=SplitCounts(**{split: tokens.cut for split, tokens in splits.items()}),
        curve=[{"epoch": number, "loss": epoch.loss} for number, epoch in enumerate(trained_epochs, start=1)],
        provenance=Origin(
            weights=source.weights_digest, **layout, encoder_dropout=settings.encoder_dropout, papa_version=__version__
        ),
    )
    point |= {"weights": source.weights_digest, "corpus": facts["corpus"], **objective.facts}
    outcomes = objective.table([epoch.recorded for epoch in epochs])
    outcomes = outcomes.add_column(0, "seed", pa.repeat(pa.scalar(seed, pa.int32()), len(outcomes)))
    return TrainedProbe(run, outcomes, point, _state_of(modules))


def _finished_probes(job: Job[ProbeOf], trace: Trace) -> dict[int, TrainedProbe]:
    """Read the finished probes in a job's outputs, by seed; none if a trace differs or a file is damaged."""
    import pyarrow.compute as pc

    if any(_of_content(trace_of(path)) != _of_content(trace) for path in job.outputs.values()):
        return {}
    try:
        runs = {run.seed: run for run in read_runs(job.output("runs"))}
        outcomes = read_table(job.output("outcomes"))
        tensors, _ = read_tensors(job.output("probes"))
    except DamagedArtefact as error:
        log.warning("%s All its probes are trained again.", error)
        return {}
    states: dict[int, dict[str, Tensor]] = {}
    for path, values in tensors.items():
        seed, _, name = path.removeprefix("seed-").partition("/")
        states.setdefault(int(seed), {})[name] = values
    facts, rows = provenance_of(outcomes), outcomes.replace_schema_metadata(None)
    by_seed = {seed: rows.filter(pc.equal(rows["seed"], seed)) for seed in states}
    # a job that was killed may have written a seed to only some of the files
    complete = [seed for seed in runs if seed in states and len(by_seed[seed])]
    return {seed: TrainedProbe(runs[seed], by_seed[seed], facts, states[seed]) for seed in complete}


def _of_content(trace: Trace | None) -> Trace | None:
    """Return a trace without the model's origin, which is irrelevant if the content is the same."""
    left_out = SourceDigests.of_origin
    content = {name: digest for name, digest in (trace.inputs if trace else {}).items() if name not in left_out}
    return trace and replace(trace, inputs=content)


@contextmanager
def _stored(job: Job[ProbeOf], splits: Mapping[str, Tokens]) -> Iterator[StateSource]:
    settings, path = job.settings, job.input("index")
    with stored_states(path, splits, settings.model.model.name, Variant.parse(settings.variant)) as (states, index):
        sizes = ProbeSizes(**{field.name: index[field.name] for field in fields(ProbeSizes)})
        trace = trace_of(path)
        inputs = trace.inputs if trace else {}
        digests = {name: digest for name, digest in inputs.items() if name in SourceDigests.names}
        yield StateSource(states, sizes, index["heads"], index["kept"], index["weights"], digests)


@contextmanager
def _streamed(job: Job[ProbeOf], splits: Mapping[str, Tokens]) -> Iterator[StateSource]:
    """Compute hidden states with the model.

    They are rounded like stored ones, unless constants are trained or no probe learns labels: such states are
    never stored and stay float32.
    """
    settings, tokens = job.settings, splits["train"]
    variant, target = Variant.parse(settings.variant), settings.target
    if variant.trained and not target.labelled:
        raise InputError(
            f"The constant of {variant.path} is trained, which needs labels and a probe; choose another constant for "
            "this task."
        )
    model = model_of(settings.model, job.machine)
    constants, heads = replaced_by(job, model, tokens.provenance)
    fixed, trained = model.replacement(constants, heads), list[TrainedConstants]()
    replaced, total = replaced_in(fixed), model.layers * model.heads

    def trained_with_probe() -> Sequence[nn.Module]:
        if variant.trained and isinstance(constants, Tensor):
            trained[:] = [TrainedConstants(constants, replaced).to(model.device)]
        return trained

    def replacement() -> Replacement:
        return model.replacement(trained[0](), replaced) if trained else fixed

    rounded = target.labelled and not variant.trained
    states = StreamedStates(model, replacement, settings.encoder_dropout, rounded, target.probed)
    weights, sizes = str(model.weights), ProbeSizes.of(model, tokens.n)
    digests = sources_of(settings.model.model, weights, job.machine)
    yield StateSource(states, sizes, total, total - len(replaced), weights, digests, model, trained_with_probe)


def _state_of(modules: Sequence[nn.Module]) -> dict[str, Tensor]:
    return {name: value.detach().cpu().clone() for module in modules for name, value in module.state_dict().items()}
