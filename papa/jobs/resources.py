"""Estimate the memory, walltime and disk space that a job needs.

Estimates follow from the sizes of the model and the corpus; the footer of the tokenized corpus records both. `_needs`
has a case for each stage. Memory coefficients are measured (docs/cluster.md); walltimes assume slow CPUs.
"""

from __future__ import annotations

import errno
import math
import os
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cache

from papa.config.job import AnyJob
from papa.config.measures import Target
from papa.config.settings import Config, budget_on
from papa.config.stages import (
    AverageOf,
    HiddenOf,
    LambdaOf,
    OfCorpus,
    OfEncoding,
    OfProbe,
    ProbeOf,
    Settings,
    TokensOf,
    Training,
    WeightsOf,
)
from papa.config.study import Study
from papa.config.variant import (
    OBSERVED_AT_ONCE,
    ORIGINAL,
    Constant,
    Variant,
)
from papa.files import PathLike, footer_of

MB = 10**6
FLOAT32, FLOAT16, FLOAT64 = 4, 2, 8
"""Bytes per weight or activation, per stored value of a hidden state, and per sum of attention."""
AUTOCAST_BYTES = 3
"""Mean bytes per activation in half precision: 2 after linear layers, 4 after softmax and normalisation."""
BYTES_PER_ENTRY = 12
"""Bytes per entry of a constant: 4 as read, 4 on the device, and 4 in the form that layers use."""
BYTES_PER_SUMMED_ENTRY = 2 * FLOAT64 + FLOAT32
"""Bytes per entry of a constant while it is averaged: two copies in double precision and one in single precision."""
MEMORY_FACTOR, WALLTIME_FACTOR = 1.3, 2.0
"""A job requests this multiple of its estimated memory and walltime."""
GPU_FACTOR, CUDA_CONTEXT_MB = 1.1, 1000
"""Planned multiple of the estimated memory of a GPU, and megabytes of CUDA's context; no GPU was measured."""
START_MB, START_ENCODER_MB, START_CUDA_MB = 300, 480, 3000
"""Megabytes of Python with torch, of Python with torch and transformers, and of the CUDA libraries."""
UNKNOWN_MB, UNKNOWN_TEXTS_MB, TABLES_MB = 1000, 4000, 2000
"""Megabytes requested if the corpus is unreadable, if texts come from the hub, and for tables and figures."""
WEIGHT_COPIES = 1.75
"""Copies of the weights in memory: one as loaded, and most of another that linear layers repack."""
START_SECONDS, START_MINUTES = 10, 10
"""Startup time of a job: typical seconds, and minutes on a busy machine with a slow file system."""
BYTES_PER_TOKEN = 32
"""Bytes per token of a loaded corpus: its id, slot, segment and word."""
TOKENS_PER_WORD, SPECIAL_TOKENS_PER_TEXT = 1.3, 3
"""Mean number of tokens per English word, and number of tokens that a model adds to a text."""
SCORING_BATCH = 64
"""Number of examples whose hidden states are in memory at a time when a probe is scored."""
LENGTH_FACTOR = 2.0
"""Length of the examples in the largest batch, as a multiple of the mean length."""
BYTES_PER_LABEL, BYTES_PER_LOSS = (5, 1), (15, 10)
"""Bytes per outcome in Parquet, as (fixed, per epoch): for a label, and for the loss of a text.
Measured on 1,000 to 100,000 rows with 2 to 17 labels: the first epoch took 5.0 to 6.2 bytes per text and 0.6 to 3.6 per
word, and each further epoch 0.1 to 1.0. Losses took 23 to 24 bytes, and 9.1 to 9.5 per further epoch."""
FLOPS_CPU, FLOPS_GPU, FLOPS_GPU_HALF = 1e10, 5e12, 2e13
"""Floating-point operations per second of a CPU thread, of a GPU in float32, and of a GPU in half precision."""
DISK_BYTES_PER_SECOND, TEXT_BYTES_PER_SECOND = 1e8, 1e5
"""Speed of reading from a shared file system, and of parsing texts."""
MEASURED_SHARES = 1 / 13, 1 / 3
"""Wall-clock time of the demo as shares of its estimate of 91 minutes: 7 on idle cores, 30 on busy ones (docs/demo.md).
Jobs of `config/minilm.yaml` took a fifth of their estimates next to other work, on an AMD EPYC."""
STEP_SECONDS = 5e-9
"""Seconds per parameter of an optimiser step."""
LINEAR_LABELS = 20
"""Number of labels of a linear probe, if it is not known; more than most tasks have."""
TRAINING_FLOATS = 4
"""Floats in memory per trained parameter: its value, its gradient and two moments."""


@dataclass(frozen=True)
class Sizes:
    """Sizes of a model and of a corpus tokenized for it.

    Args:
        examples, tokens: total numbers over all splits.
        scored: number of examples in the largest split other than training.
        parameters, layer_parameters: counts of all parameters, and of those outside of embeddings and prediction head;
            0 if not counted.
    """

    layers: int
    heads: int
    hidden: int
    intermediate: int
    vocabulary: int
    slots: int
    examples: int
    tokens: int
    scored: int
    parameters: int = 0
    layer_parameters: int = 0

    @property
    def layer_weight_count(self) -> int:
        """Number of weights in the layers; if not counted, each has four projections and two other linear layers."""
        return self.layer_parameters or self.layers * (4 * self.hidden**2 + 2 * self.hidden * self.intermediate)

    @property
    def weight_count(self) -> int:
        """Number of all weights, including the embeddings of tokens and positions."""
        return self.parameters or self.layer_weight_count + (self.vocabulary + 512) * self.hidden

    @property
    def operation_count(self) -> int:
        """Operations of one forward pass over all texts: 2 per token and layer weight, plus those of attention."""
        return (2 * self.layer_weight_count + 4 * self.layers * self.slots * self.hidden) * self.tokens

    def constant_entries(self, kind: str) -> int:
        """Number of values in the constants of all heads."""
        if kind == "mean-output":
            return self.layers * self.slots * self.hidden
        return 0 if kind == "zeros" else self.layers * self.heads * self.slots**2

    @property
    def state_size(self) -> int:
        """Number of values in a token's hidden states, over all layers."""
        return (self.layers + 1) * self.hidden

    @property
    def activation_count(self) -> int:
        """Activations per token in a layer: projections, linear layers, and attention before and after softmax."""
        return 8 * self.hidden + 2 * self.intermediate + 2 * self.heads * self.slots

    def probe_parameters(self, probe: str) -> int:
        """Number of parameters in a probe's largest layer; the others are negligible."""
        return self.state_size * (LINEAR_LABELS if probe == "linear" else self.hidden)

    def trained_share(self, training: Training) -> float:
        """Share of the examples that an epoch runs through: the training rows to learn from, and all scored rows."""
        available = max(self.examples - self.scored, 1)
        rows = training.rows if isinstance(training.rows, int) else Fraction(training.rows or 1) * available
        return 1 - max(0.0, available - float(rows)) / max(self.examples, 1)

    @property
    def mean_length(self) -> float:
        """Mean number of tokens per example."""
        return self.tokens / max(self.examples, 1)

    def labels(self, target: Target) -> float:
        """Return an upper bound of the mean number of labels per example."""
        return self.mean_length if target.per_word else 1

    def batch_tokens(self, examples: int) -> float:
        """Estimate the tokens in the largest batch of `examples` texts."""
        return examples * min(self.slots, LENGTH_FACTOR * self.mean_length)


def sizes_of(tokens: PathLike) -> Sizes | None:
    """Read the sizes from the footer of a tokenized corpus; None if it is unreadable, which the job will report.

    Raises:
        FileNotFoundError: the corpus does not exist yet.
    """
    return _sizes_of(str(tokens), os.stat(tokens).st_mtime_ns)


@cache
def _sizes_of(tokens: str, changed: int) -> Sizes | None:
    try:
        facts, values = footer_of(tokens)
        scored = max((rows for split, rows in facts["rows"].items() if split != "train"), default=0)
        corpus = {"slots": facts["slots"], "examples": values["split"], "tokens": values["ids"]}
        return Sizes(**facts["sizes"], **corpus, scored=scored)
    except Exception:  # a damaged footer may contain anything
        return None


def memory(study: Study, job: AnyJob) -> int:
    """Return the megabytes that a job requests; raise FileNotFoundError if a file for the estimate is missing."""
    if isinstance(job.settings, OfCorpus):
        files = files_of(job)
        return memory_of_files(*files) if files else UNKNOWN_TEXTS_MB
    return memory_of(job, study.config, _sizes_behind(study, job))


def walltime(study: Study, job: AnyJob) -> int:
    """Return the minutes that a job requests; raise FileNotFoundError if a file for the estimate is missing."""
    if isinstance(job.settings, OfCorpus | TokensOf):
        laid_out = isinstance(job.settings, TokensOf)
        files = [study.results / job.input("texts")] if laid_out else files_of(job)
        return _rounded_up(START_MINUTES + sum(map(os.path.getsize, files)) / TEXT_BYTES_PER_SECOND / 60, 5)
    return walltime_of(job, study.config, _sizes_behind(study, job), study.threads(job))


def files_of(job: AnyJob) -> list[str]:
    """List the text files that a job parses, or that its texts were prepared from."""
    sources = (job, *job.needs.get("texts", ()))
    corpora = [source.settings.corpus for source in sources if isinstance(source.settings, OfCorpus)]
    return [path for corpus in corpora[:1] for _, path in corpus.files or () if path]


def _sizes_behind(study: Study, job: AnyJob) -> Sizes | None:
    tokens = job.optional_input("tokens")
    if tokens is None:
        return None
    try:
        return sizes_of(study.results / tokens)
    except FileNotFoundError:  # name an input of this job, because snakemake waits for no other file
        missing = study.results / job.inputs.get("parts", (tokens,))[0]
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(missing)) from None


# -- estimates --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Needs:
    """Resources that a job on a tokenized corpus needs.

    Args:
        memory: bytes, excluding Python and its libraries.
        operations: number of floating-point operations.
        seconds: duration of optimiser steps and of reading hidden states.
        written: bytes that are written to disk.
        runs_model: whether the job loads the model.
        on_gpu: bytes in the memory of a GPU, if the job uses one.
    """

    memory: float
    operations: float = 0
    seconds: float = 0
    written: float = 0
    runs_model: bool = True
    on_gpu: float = 0


def memory_of(job: AnyJob, config: Config, sizes: Sizes | None) -> int:
    """Return the megabytes that a job requests on a corpus of these sizes."""
    if sizes is None or (needs := _needs(job, config, sizes)) is None:
        return UNKNOWN_MB if job.inputs.get("tokens") else TABLES_MB
    start = START_ENCODER_MB if needs.runs_model else START_MB
    cuda = START_CUDA_MB * (config.device.startswith("cuda") and needs.runs_model)
    return _rounded_up(MEMORY_FACTOR * (start + cuda + needs.memory / MB), 100)


def gpu_memory_of(job: AnyJob, config: Config, sizes: Sizes | None) -> int:
    """Return the megabytes of GPU memory that a job needs; 0 if it runs no model, or if sizes are unknown."""
    needs = None if sizes is None else _needs(job, config, sizes)
    return _rounded_up(GPU_FACTOR * needs.on_gpu / MB + CUDA_CONTEXT_MB, 100) if needs and needs.on_gpu else 0


def memory_of_files(*files: PathLike) -> int:
    """Return the megabytes requested to parse files: Python with its libraries, and several copies of the texts."""
    return _rounded_up(MEMORY_FACTOR * (START_ENCODER_MB + 12 * sum(map(os.path.getsize, files)) / MB), 100)


def seconds(job: AnyJob, config: Config, sizes: Sizes | None, threads: int) -> float:
    """Estimate a job's seconds on a slow machine: startup, operations, optimiser steps and reading."""
    if sizes is None or (needs := _needs(job, config, sizes)) is None:
        return START_SECONDS
    rate = FLOPS_CPU * threads
    if config.device.startswith("cuda") and needs.runs_model:
        rate = FLOPS_GPU if _is_precise(job) else FLOPS_GPU_HALF
    return START_SECONDS + needs.operations / rate + needs.seconds


def walltime_of(job: AnyJob, config: Config, sizes: Sizes | None, threads: int) -> int:
    """Return the minutes that a job requests: twice the estimate, plus startup on a busy machine."""
    return _rounded_up(START_MINUTES + WALLTIME_FACTOR * (seconds(job, config, sizes, threads) - START_SECONDS) / 60, 5)


def disk(job: AnyJob, config: Config, sizes: Sizes | None) -> int:
    """Return an upper bound of the megabytes that a job writes, and at least 1."""
    needs = None if sizes is None else _needs(job, config, sizes)
    return max(1, _rounded_up(needs.written / MB, 1)) if needs else 1


def disk_in_table(job: AnyJob, sizes: Sizes | None) -> float:
    """Return an upper bound of the megabytes that a job adds to the table of all outcomes (last epoch only)."""
    settings = job.settings
    if sizes is None or not isinstance(settings, ProbeOf):
        return 0.0
    return len(settings.seeds) * _outcome_bytes(settings, sizes, epochs=1) / MB


# -- the table --------------------------------------------------------------------------------------------------------


def _needs(job: AnyJob, config: Config, sizes: Sizes) -> Needs | None:
    """Estimate the needs of a job from its stage; None if they do not depend on a tokenized corpus."""
    match job.settings:
        case AverageOf(kind=kind):
            return _one_pass(job, config, sizes, _average_bytes(kind, sizes))
        case HiddenOf():
            stored = FLOAT16 * sizes.state_size * sizes.tokens + FLOAT32 * sizes.examples
            needs = _one_pass(job, config, sizes, stored)
            copies = (2 * FLOAT32 + FLOAT16) * budget_on(config.device, config.token_budget) * sizes.state_size
            return replace(needs, memory=needs.memory + copies, on_gpu=needs.on_gpu + copies)
        case LambdaOf() | WeightsOf() | ProbeOf() as settings:
            return _learn(job, settings, config, sizes)
    return None


def _one_pass(job: AnyJob, config: Config, sizes: Sizes, written: float = 0.0) -> Needs:
    """Estimate the needs of one forward pass over a share of the texts, in batches of `token_budget` tokens."""
    averages = isinstance(job.settings, AverageOf)
    memory, on_gpu = (  # the host of a GPU has no activations, but its estimate was tested with those of a CPU
        _model_bytes(job, sizes, budget_on(device, config.token_budget), averages, gpu)
        for device, gpu in (("cpu", False), (config.device, True))
    )
    return Needs(memory, sizes.operation_count, written=written, on_gpu=on_gpu)


def _learn(job: AnyJob, settings: LambdaOf | WeightsOf | ProbeOf, config: Config, sizes: Sizes) -> Needs:
    """Estimate the needs of a job that trains or scores probes, λ or constants, or weighs heads by a loss."""
    target = config.tasks[job.wildcards["task"]].target
    probe = settings if isinstance(settings, OfProbe) else None
    variant = Variant.parse(probe.variant if probe else ORIGINAL)
    kind, stored = _kind(settings), "index" in job.needs
    seeds = len(settings.seeds) if isinstance(settings, ProbeOf) else 1
    trained = variant.trained if probe else isinstance(settings, LambdaOf)
    constant_entries = variant.trained * sizes.constant_entries(kind)  # of trained constants
    probe_parameters = target.probed * sizes.probe_parameters(settings.training.probe)
    trained_share = sizes.trained_share(settings.training)
    kept = seeds if isinstance(settings, ProbeOf) else 0
    learned = kept * (probe_parameters + constant_entries)
    runs_model = not (stored and probe)

    # tokens in memory during training and during scoring
    batch = sizes.batch_tokens(settings.training.batch_size)
    scored = sizes.batch_tokens(min(SCORING_BATCH, sizes.scored)) if probe else 0.0
    backwards = trained or isinstance(settings, WeightsOf)
    activations = max(batch * sizes.layers if backwards else batch, scored)
    if scored and not settings.training.epochs:
        scored = float(budget_on(config.device, config.token_budget))
    loaded = max(batch if settings.training.epochs else 0.0, scored)
    memory = BYTES_PER_TOKEN * sizes.tokens + 4 * FLOAT32 * target.decoded * loaded * sizes.vocabulary
    host_only: float = BYTES_PER_TOKEN * sizes.tokens
    if runs_model:
        model, model_on_gpu = (_model_bytes(job, sizes, activations, gpu=gpu) for gpu in (False, True))
        memory, host_only = memory + model, host_only + model - model_on_gpu
    if probe_parameters:
        memory += FLOAT32 * TRAINING_FLOATS * probe_parameters + (3 * FLOAT32 + FLOAT16) * loaded * sizes.state_size
    if trained and probe:
        memory += FLOAT32 * (TRAINING_FLOATS - 1) * constant_entries
    on_gpu = runs_model * (memory - host_only)
    memory += 2 * FLOAT32 * learned  # trained probes and the file with all of them are in memory at once

    rounds, loss_passes = seeds * settings.training.epochs * trained_share, 0.0
    if isinstance(settings, WeightsOf):
        loss_passes = 3.0 * trained_share  # a backward pass counts as two
    elif probe and not settings.training.epochs:
        loss_passes = seeds * sizes.scored / max(sizes.examples, 1)  # passes over the validation texts
    passes = rounds * (0 if stored else 3 if trained else 1) + loss_passes * (not stored or not probe)
    probed = rounds + loss_passes / 3  # scoring has no backward pass
    decoded = target.decoded * sizes.tokens
    predictions = decoded or sizes.examples * sizes.labels(target)
    operations = passes * sizes.operation_count + 6 * probed * decoded * sizes.vocabulary * sizes.hidden
    operations += 6 * probed * predictions * probe_parameters
    steps = rounds * sizes.examples / settings.training.batch_size
    stored_bytes = stored * FLOAT16 * sizes.state_size * sizes.tokens
    step_and_read_seconds = steps * probe_parameters * STEP_SECONDS + rounds * stored_bytes / DISK_BYTES_PER_SECOND
    outcomes = (
        kept * _outcome_bytes(settings, sizes, max(settings.training.epochs, 1))
        if isinstance(settings, ProbeOf)
        else 0.0
    )
    written = FLOAT32 * learned * (settings.training.epochs > 0) + outcomes
    return Needs(memory, operations, step_and_read_seconds, written, runs_model, on_gpu)


def _is_precise(job: AnyJob) -> bool:
    return not isinstance(job.settings, OfEncoding) or job.settings.model.precision in ("float32", "tf32")


def _model_bytes(job: AnyJob, sizes: Sizes, activations: float, averages: bool = False, gpu: bool = False) -> float:
    """Estimate the bytes of the model, its constants, and the activations of this many tokens.

    A `gpu` has one copy of the weights, and of sums of attention, which leave it layer by layer.
    """
    kind, activation = _kind(job.settings), FLOAT32 if _is_precise(job) else AUTOCAST_BYTES
    halved = isinstance(job.settings, OfEncoding) and job.settings.model.precision == "bfloat16_weights"
    weight = FLOAT16 if halved else FLOAT32
    if gpu:
        entry = FLOAT64 if averages else 2 * FLOAT32
        constants = entry * sizes.constant_entries(kind)
        # the attention to a text, before it is summed, in three copies: single precision, double precision, rearranged
        at_once = min(sizes.heads * sizes.slots**2, OBSERVED_AT_ONCE)
        constants += averages * (FLOAT32 + 2 * FLOAT64) * at_once
        return weight * sizes.weight_count + activation * activations * sizes.activation_count + constants
    memory = WEIGHT_COPIES * weight * sizes.weight_count + activation * activations * sizes.activation_count
    return memory + (BYTES_PER_SUMMED_ENTRY if averages else BYTES_PER_ENTRY) * sizes.constant_entries(kind)


def _kind(settings: Settings) -> str:
    """Return the kind of constants that a job makes or uses; `zeros` (no memory) if there are none."""
    constant: Constant | None = None
    match settings:
        case AverageOf(kind=kind):
            return kind
        case LambdaOf(constant=name) | WeightsOf(constant=name):
            constant = Constant.parse(name)
        case HiddenOf(variant=variant) | ProbeOf(variant=variant):
            constant = Variant.parse(variant).constant
    return "zeros" if constant is None else constant.start


def _average_bytes(kind: str, sizes: Sizes) -> float:
    """Return the bytes of stored averages: sums, means, and the count of each entry."""
    return (FLOAT64 + FLOAT32) * sizes.constant_entries(kind) + FLOAT64 * sizes.slots**2


def _outcome_bytes(settings: ProbeOf, sizes: Sizes, epochs: int) -> float:
    """Return an upper bound of the bytes of one seed's outcomes, with one outcome per label."""
    target = settings.target
    fixed, per_epoch = BYTES_PER_LABEL if target.labelled else BYTES_PER_LOSS
    return sizes.scored * sizes.labels(target) * (fixed + per_epoch * (epochs if target.probed else 2))


# -- formatting ------------------------------------------------------------------------------------------------------


def format_duration(seconds: float) -> str:
    """Format a duration: "40 s", "5 min", "1.2 hours", "3.4 days"."""
    if 0 < seconds < 1:
        return "< 1 s"
    for limit, unit, name, digits in ((120, 1, "s", 0), (7200, 60, "min", 0), (172800, 3600, "hours", 1)):
        if seconds < limit:
            return f"{seconds / unit:.{digits}f} {name}"
    return f"{seconds / 86400:.1f} days"


def format_bytes(amount: float) -> str:
    """Format a number of bytes: "1.2 GB", "41 GB"."""
    step = next((step for step in range(4) if amount < 1000 ** (step + 1)), 4)
    number, unit = amount / 1000**step, ("B", "kB", "MB", "GB", "TB")[step]
    return f"{number:.1f} {unit}" if number < 9.95 and number != int(number) else f"{number:,.0f} {unit}"


def _rounded_up(amount: float, step: int) -> int:
    return step * math.ceil(amount / step)
