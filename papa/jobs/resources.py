"""Memory, walltime and disk that a job needs.

They follow from the sizes of the model and the corpus, which are in the footer of the laid-out corpus. `_needs` has one
entry for each stage. Memory was measured, and a margin is added to it (docs/cluster.md); walltime assumes slow CPUs.
"""

from __future__ import annotations

import errno
import math
import os
from dataclasses import dataclass, replace
from functools import cache

from papa.config.job import AnyJob
from papa.config.measures import METRICS
from papa.config.settings import Config
from papa.config.stages import (
    LEFT_OUT_OF,
    AverageOf,
    HiddenOf,
    LambdaOf,
    MergeOf,
    OfCorpus,
    OfEncoding,
    ProbeOf,
    ResampleOf,
    Settings,
    TokensOf,
    WeightsOf,
)
from papa.config.study import Study
from papa.config.variant import OBSERVED, Constant, Variant, entries_of
from papa.files import PathLike, footer_of

MB = 10**6
FLOAT, HALF, DOUBLE = 4, 2, 8
"""Bytes of a weight or activation, of a stored hidden state, and of a sum of attention."""
AUTOCAST = 3
"""Bytes of an activation in half precision: linear layers give 2, softmax and normalisation 4."""
CONSTANT = 12
"""Bytes of an entry of the matrices that replace attention: as read, on the device, and in the form that layers use."""
SUMMED = 2 * DOUBLE + FLOAT
"""Bytes of an entry of the matrices while they are averaged: in double precision, twice, and in single precision."""
MARGIN, SLACK = 1.3, 2.0
"""Factors between the estimated memory and walltime and those that a job requests."""
START_MB, START_ENCODER_MB, START_CUDA_MB = 300, 480, 3000
"""Megabytes of Python with torch, the same with transformers, and what CUDA's libraries add."""
UNKNOWN_MB, UNKNOWN_TEXTS_MB, TABLES_MB = 1000, 4000, 2000
"""Memory of a job whose corpus is unreadable, which says so; of texts from the hub; and of tables and figures."""
LOADED = 1.75
"""Copies of the weights in memory: as they are loaded, and in another order for linear layers."""
START_SECONDS, START_MINUTES = 10, 10
"""Time until a job is at work; and the same on a busy machine with a slow file system."""
BYTES_OF_A_TOKEN = 32
"""Memory of a token while it is read: its number, slot, segment and word."""
TOKENS_OF_A_WORD, SPECIAL_TOKENS = 1.3, 3
"""Mean tokens of an English word, and tokens that a model adds to a text."""
SCORED_AT_ONCE = 64
"""Examples whose hidden states are in memory at a time when a probe is scored."""
LONGER = 2.0
"""Length of the examples in the largest batch, as a multiple of the mean length."""
OF_A_LABEL, OF_A_TEXT = (5, 1), (15, 10)
"""Bytes of an outcome in Parquet, once and for each epoch: of a label, and of the loss of a text.
Measured on 1,000 to 100,000 rows. With 2 to 17 labels, one epoch took 5.0 to 6.2 bytes of a text and 0.6 to 3.6 of a
word, and each further epoch 0.1 to 1.0. Losses took 23 to 24 and 9.1 to 9.5."""
FLOPS_CPU, FLOPS_GPU, FLOPS_GPU_HALF = 1e10, 5e12, 2e13
"""Floating-point operations per second: of a thread, and of a GPU in float32 and in half precision."""
BYTES_A_SECOND, TEXT_A_SECOND, STEP = 1e8, 1e5, 5e-9
"""Bytes per second of a shared file system and of texts that are parsed; seconds of an optimiser step per parameter."""
OPTIMISER = 4
"""Numbers in memory for a trained parameter: itself, its gradient, two means."""


@dataclass(frozen=True)
class Sizes:
    """A model and a corpus laid out for it: `examples` and `tokens` of all splits, examples `scored` in the largest.

    Each choice of a question is an example; `choices` is their number per question, and 1 for other corpora.
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
    choices: float = 1.0

    @property
    def matrices(self) -> int:
        """Weights of the layers: four projections and two linear layers each."""
        return self.layers * (4 * self.hidden**2 + 2 * self.hidden * self.intermediate)

    @property
    def weights(self) -> int:
        """All weights: those of the layers, and the embeddings of words and slots."""
        return self.matrices + (self.vocabulary + 512) * self.hidden

    @property
    def operations(self) -> int:
        """Operations of one pass of all texts: 2 for each weight of the layers and each token, and attention's."""
        return (2 * self.matrices + 4 * self.layers * self.slots * self.hidden) * self.tokens

    def constants(self, kind: str) -> int:
        """Numbers in the constants of all heads."""
        if kind == "mean-output":
            return self.layers * self.slots * self.hidden
        return self.layers * self.heads * entries_of(kind, self.slots)

    def classes(self, kind: str) -> int:
        """Numbers in the table that maps pairs of slots to entries, if entries are tied."""
        return self.slots**2 * (entries_of(kind, self.slots) < self.slots**2)

    @property
    def states(self) -> int:
        """Numbers in the hidden states of a token."""
        return (self.layers + 1) * self.hidden

    @property
    def between(self) -> int:
        """Numbers of a token inside a layer: projections, the linear layers, attention before and after softmax."""
        return 8 * self.hidden + 2 * self.intermediate + 2 * self.heads * self.slots

    @property
    def probe(self) -> int:
        """Parameters of a probe's dense layer; the others are few."""
        return self.states * self.hidden

    @property
    def mean_length(self) -> float:
        """Tokens of an example."""
        return self.tokens / max(self.examples, 1)

    def tokens_of(self, examples: int) -> float:
        """Tokens of a batch of longer examples, or of longer questions with all their choices."""
        return examples * self.choices * min(self.slots, LONGER * self.mean_length)


def sizes_of(tokens: PathLike) -> Sizes | None:
    """Read the sizes behind a laid-out corpus; None if they are unreadable, which the job itself will explain.

    Raises:
        FileNotFoundError: the corpus does not exist yet.
    """
    return _sizes_of(str(tokens), os.stat(tokens).st_mtime_ns)


@cache
def _sizes_of(tokens: str, changed: int) -> Sizes | None:
    try:
        facts, values = footer_of(tokens)
        scored = max((rows for split, rows in facts["rows"].items() if split != "train"), default=0)
        choices = values["split"] / sum(facts["rows"].values()) if "begin" in values else 1.0
        corpus = {"slots": facts["slots"], "examples": values["split"], "tokens": values["ids"]}
        return Sizes(**facts["sizes"], **corpus, scored=round(choices * scored), choices=choices)
    except Exception:  # a damaged footer may contain anything
        return None


def memory(study: Study, job: AnyJob) -> int:
    """Megabytes that a job of a study requests; raises FileNotFoundError if a file that they follow from is missing."""
    if isinstance(job.settings, OfCorpus):
        files = files_of(job)
        return memory_of_files(*files) if files else UNKNOWN_TEXTS_MB
    return memory_of(job, study.config, _sizes_behind(study, job))


def walltime(study: Study, job: AnyJob) -> int:
    """Minutes that a job of a study requests; raises FileNotFoundError if a file that they follow from is missing."""
    if isinstance(job.settings, OfCorpus | TokensOf):
        laid_out = isinstance(job.settings, TokensOf)
        files = [study.results / job.input("texts")] if laid_out else files_of(job)
        return _rounded_up(START_MINUTES + sum(map(os.path.getsize, files)) / TEXT_A_SECOND / 60, 5)
    return walltime_of(job, study.config, _sizes_behind(study, job), study.threads(job))


def files_of(job: AnyJob) -> list[str]:
    """List the files of texts that a job parses, or that its texts were prepared from."""
    sources = (job, *job.needs.get("texts", ()))
    corpora = [source.settings.corpus for source in sources if isinstance(source.settings, OfCorpus)]
    return [path for corpus in corpora[:1] for _, path in corpus.files or () if path]


def reader_of(job: AnyJob) -> AnyJob:
    """Return the job that reads the laid-out corpus: a job itself, or a part that it merges."""
    return job.needs["parts"][0] if "parts" in job.needs else job


def _sizes_behind(study: Study, job: AnyJob) -> Sizes | None:
    tokens = reader_of(job).maybe("tokens")
    if tokens is None:
        return None
    try:
        return sizes_of(study.results / tokens)
    except FileNotFoundError:  # snakemake waits for a file only if the job itself reads it
        missing = study.results / job.inputs.get("parts", (tokens,))[0]
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(missing)) from None


# -- estimates --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Needs:
    """The needs of a job on a laid-out corpus.

    Args:
        memory: bytes, apart from Python and its libraries.
        operations: floating-point operations.
        seconds: time of optimiser steps, and of reading hidden states.
        written: bytes on the disk.
        runs_model: whether the model is loaded.
    """

    memory: float
    operations: float = 0
    seconds: float = 0
    written: float = 0
    runs_model: bool = True


def memory_of(job: AnyJob, config: Config, sizes: Sizes | None) -> int:
    """Megabytes that a job on a corpus of these sizes requests."""
    if sizes is None or (needs := _needs(job, config, sizes)) is None:
        return UNKNOWN_MB if job.inputs.get("tokens") else TABLES_MB
    start = START_ENCODER_MB if needs.runs_model else START_MB
    cuda = START_CUDA_MB * (config.device.startswith("cuda") and needs.runs_model)
    return _rounded_up(MARGIN * (start + cuda + needs.memory / MB), 100)


def memory_of_files(*files: PathLike) -> int:
    """Megabytes that a job which parses texts requests: Python with its libraries, and several copies of the texts."""
    return _rounded_up(MARGIN * (START_ENCODER_MB + 12 * sum(map(os.path.getsize, files)) / MB), 100)


def seconds(job: AnyJob, config: Config, sizes: Sizes | None, threads: int) -> float:
    """Seconds that a job takes on slow CPUs: operations over their rate, optimiser steps, and reading."""
    if sizes is None or (needs := _needs(job, config, sizes)) is None:
        return START_SECONDS
    rate = FLOPS_CPU * threads
    if config.device.startswith("cuda") and needs.runs_model:
        rate = FLOPS_GPU if _is_precise(job) else FLOPS_GPU_HALF
    return START_SECONDS + needs.operations / rate + needs.seconds


def walltime_of(job: AnyJob, config: Config, sizes: Sizes | None, threads: int) -> int:
    """Minutes that a job requests: twice the estimate, and the start on a busy machine."""
    return _rounded_up(START_MINUTES + SLACK * (seconds(job, config, sizes, threads) - START_SECONDS) / 60, 5)


def disk(job: AnyJob, config: Config, sizes: Sizes | None) -> int:
    """Megabytes that a job writes, at most, and at least 1."""
    needs = None if sizes is None else _needs(job, config, sizes)
    return max(1, _rounded_up(needs.written / MB, 1)) if needs else 1


def disk_in_table(job: AnyJob, sizes: Sizes | None) -> float:
    """Megabytes of a job's outcomes in the table of all outcomes, at most: those after the last epoch."""
    settings = job.settings
    if sizes is None or not isinstance(settings, ProbeOf):
        return 0.0
    return len(settings.seeds) * _outcomes(settings, sizes, epochs=1) / MB


# -- the table --------------------------------------------------------------------------------------------------------


def _needs(job: AnyJob, config: Config, sizes: Sizes) -> Needs | None:
    """The needs of a job by its stage; None if they do not depend on a laid-out corpus."""
    match job.settings:
        case AverageOf(part=part, kind=kind):
            return _one_pass(job, config, sizes, 1 / _parts(part), _averages(kind, sizes))
        case MergeOf():
            kind = _kind(reader_of(job).settings)
            return Needs(SUMMED * sizes.constants(kind), written=_averages(kind, sizes), runs_model=False)
        case ResampleOf():
            share = min(1.0, sizes.slots / max(sizes.examples, 1))  # at most one text for each slot
            return _one_pass(job, config, sizes, share, _averages("average", sizes))
        case HiddenOf(part=part):
            stored = HALF * sizes.states * sizes.tokens + FLOAT * sizes.examples
            needs = _one_pass(job, config, sizes, 1 / _parts(part), stored / _parts(part))
            return replace(needs, memory=needs.memory + (2 * FLOAT + HALF) * config.token_budget * sizes.states)
        case WeightsOf(by=by) if by in OBSERVED:
            return _one_pass(job, config, sizes)
        case LambdaOf() | WeightsOf() | ProbeOf() as settings:
            return _learn(job, settings, config, sizes)
    return None


def _one_pass(job: AnyJob, config: Config, sizes: Sizes, share: float = 1.0, written: float = 0.0) -> Needs:
    """A share of the texts goes through the model once, a budget of tokens at a time."""
    averages = isinstance(job.settings, AverageOf | ResampleOf)
    memory = _model(job, sizes, config.token_budget, averages)
    return Needs(memory, share * sizes.operations, written=written)


def _learn(job: AnyJob, settings: LambdaOf | WeightsOf | ProbeOf, config: Config, sizes: Sizes) -> Needs:
    """Learn a probe, λ or constants, on stored hidden states or through the model, and measure what was learned."""
    target = config.tasks[job.wildcards["task"]].target
    probe = settings if isinstance(settings, ProbeOf) else None
    kind, stored, epochs = _kind(settings), "index" in job.needs, settings.training.epochs
    seeds = len(probe.seeds) if probe else 1
    trained = Variant.parse(probe.variant).trained if probe else isinstance(settings, LambdaOf)
    learned = seeds * (target.probed * sizes.probe + trained * sizes.constants(kind)) if probe else 0
    runs_model = not (stored and probe)

    # tokens that are in memory while something is learned and while it is scored
    batch = sizes.tokens_of(settings.training.batch_size)
    scored = sizes.tokens_of(min(SCORED_AT_ONCE, sizes.scored)) if probe else 0.0
    backwards = trained or (isinstance(settings, WeightsOf) and settings.by == "gradient")
    activations = max(batch * sizes.layers if backwards else batch, scored)
    if scored and not target.probed:
        scored = float(config.token_budget)
    read = max(batch if epochs else 0.0, scored)
    memory = BYTES_OF_A_TOKEN * sizes.tokens + 4 * FLOAT * target.decoded * read * sizes.vocabulary
    if runs_model:
        memory += _model(job, sizes, activations)
    if target.probed:
        memory += FLOAT * OPTIMISER * sizes.probe + (3 * FLOAT + HALF) * read * sizes.states
    if trained and probe:
        memory += FLOAT * (OPTIMISER - 1) * sizes.constants(kind)
    memory += 2 * FLOAT * learned  # finished probes wait until all are written, and are in memory again as a file

    rounds, measured = seeds * epochs, 0.0
    if isinstance(settings, WeightsOf):
        measured = _passes(settings, sizes)
    elif probe and not target.probed:  # only validation texts, each twice: with heads replaced and as they are
        measured = 2 * sizes.scored / max(sizes.examples, 1)
    passes = rounds * (0 if stored else 3 if trained else 1) + measured
    probed = rounds + measured / 3  # a measurement does not go backwards
    decoded = target.decoded * sizes.tokens
    predictions = sizes.tokens if target.per_word else decoded or sizes.examples
    operations = passes * sizes.operations + 6 * probed * decoded * sizes.vocabulary * sizes.hidden
    operations += 6 * probed * predictions * sizes.probe * target.probed
    steps = rounds * sizes.examples / settings.training.batch_size * target.probed
    waiting = steps * sizes.probe * STEP + rounds * stored * HALF * sizes.states * sizes.tokens / BYTES_A_SECOND
    outcomes = seeds * _outcomes(probe, sizes, epochs) if probe else 0.0
    return Needs(memory, operations, waiting, FLOAT * learned + outcomes, runs_model)


def _is_precise(job: AnyJob) -> bool:
    return not isinstance(job.settings, OfEncoding) or job.settings.model.precision == "float32"


def _model(job: AnyJob, sizes: Sizes, activations: float, averages: bool = False) -> float:
    """Bytes of the model with its constants, and of these many tokens inside a layer; more if it `averages`."""
    kind, activation = _kind(job.settings), FLOAT if _is_precise(job) else AUTOCAST
    memory = LOADED * FLOAT * sizes.weights + activation * activations * sizes.between
    memory += (SUMMED if averages else CONSTANT) * sizes.constants(kind)
    return memory + (FLOAT + DOUBLE * averages) * sizes.classes(kind)


def _kind(settings: Settings) -> str:
    """The kind of the constants that a job makes or uses; `zeros`, which take no room, if there are none."""
    constant: Constant | None = None
    match settings:
        case AverageOf(kind=kind):
            return kind
        case ResampleOf():
            return "average"
        case LambdaOf(constant=name) | WeightsOf(constant=str(name)):
            constant = Constant.parse(name)
        case HiddenOf(variant=variant) | ProbeOf(variant=variant):
            constant = Variant.parse(variant).constant
    return constant.start if constant else "zeros"


def _passes(settings: WeightsOf, sizes: Sizes) -> float:
    """Passes of the training texts through the model to weigh heads by a loss; backwards counts twice."""
    if settings.by == "gradient":
        return 3.0
    units = sizes.layers * (1 if settings.unit == "layer" else sizes.heads)
    return (1 + units) * min(1.0, LEFT_OUT_OF / max(sizes.examples, 1))


def _parts(part: str) -> int:
    return int(part.split("of")[1])


def _averages(kind: str, sizes: Sizes) -> float:
    """Bytes of averages on the disk: sums, means, and counts for each entry."""
    return (DOUBLE + FLOAT) * sizes.constants(kind) + DOUBLE * entries_of(kind, sizes.slots)


def _outcomes(settings: ProbeOf, sizes: Sizes, epochs: int) -> float:
    """Bytes of the outcomes of one seed: at most one for each token, if words are labelled."""
    target = METRICS[settings.metric].target
    once, each = OF_A_LABEL if target.labelled else OF_A_TEXT
    labels = sizes.mean_length if target.per_word else 1
    return sizes.scored * labels * (once + each * (epochs if target.probed else 2))


# -- numbers for readers ----------------------------------------------------------------------------------------------


def duration(seconds: float) -> str:
    """Seconds for readers: "40 s", "5 min", "1.2 hours", "3.4 days"."""
    if 0 < seconds < 1:
        return "< 1 s"
    for limit, unit, name, digits in ((120, 1, "s", 0), (7200, 60, "min", 0), (172800, 3600, "hours", 1)):
        if seconds < limit:
            return f"{seconds / unit:.{digits}f} {name}"
    return f"{seconds / 86400:.1f} days"


def size(amount: float) -> str:
    """Bytes for readers: "1.2 GB", "41 GB"."""
    step = next((step for step in range(4) if amount < 1000 ** (step + 1)), 4)
    number, unit = amount / 1000**step, ("B", "kB", "MB", "GB", "TB")[step]
    return f"{number:.1f} {unit}" if number < 9.95 and number != int(number) else f"{number:,.0f} {unit}"


def _rounded_up(amount: float, step: int) -> int:
    return step * math.ceil(amount / step)
