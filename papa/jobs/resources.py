"""What a job needs from a machine: memory, walltime and disk.

The sizes of model and corpus are read from the footer of the laid-out corpus, which exists when a job is about to run.
`BUILDERS` turns a job into multiples of these sizes (`Needs`), and memory, time and disk are sums over them. Memory was
measured, and a margin is added to it (docs/cluster.md); walltime assumes slow processors.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache

from papa.config.job import AnyJob, Job
from papa.config.measures import METRICS
from papa.config.settings import Config, Corpus
from papa.config.stages import (
    LEFT_OUT_OF,
    AverageOf,
    HiddenOf,
    LabelsOf,
    LambdaOf,
    MergeOf,
    ProbeOf,
    ResampleOf,
    Settings,
    SubsetsOf,
    TextsOf,
    TokensOf,
    WeightsOf,
)
from papa.config.study import Study
from papa.config.variant import OBSERVED, Constant, Variant, entries_of
from papa.files import PathLike, footer_of

MB = 10**6
FLOAT, HALF, DOUBLE = 4, 2, 8
"""Bytes of a number: of weights and activations, of stored hidden states, of sums of attention."""
AUTOCAST = 3
"""Bytes of an activation in half precision: linear layers give 2, softmax and normalisation 4."""
CONSTANT = 12
"""Bytes of an entry of the matrices that replace attention: as read, on the device, and in the form that layers use."""
SUMMED = 2 * DOUBLE + FLOAT
"""Bytes of an entry of the matrices while they are averaged: in double precision, twice, and in single."""
MARGIN, SLACK = 1.3, 2.0
"""Factors between the estimated memory and walltime and what a job asks for."""
START_MB, START_ENCODER_MB, START_CUDA_MB = 300, 480, 3000
"""Megabytes of Python with torch, the same with transformers, and what CUDA's libraries add."""
UNKNOWN_MB, UNKNOWN_TEXTS_MB, TABLES_MB = 1000, 4000, 2000
"""If the corpus cannot be read, enough to say so; if its texts come from the hub; and for tables and figures."""
LOADED = 1.75
"""Copies of the weights in memory: as they are loaded, and in another order for linear layers."""
START_SECONDS, START_MINUTES = 10, 10
"""Until a job is at work; and on a busy machine with a slow file system."""
BYTES_OF_A_TOKEN = 32
"""Of a token in memory: its number, slot, segment and word, while they are read."""
SCORED_AT_ONCE = 64
"""Examples whose hidden states are in memory at a time when a probe is scored."""
LONGER = 2.0
"""Length of the examples in the largest batch, as a multiple of the mean length."""
OF_A_LABEL, OF_A_TEXT = (5, 1), (15, 10)
"""Bytes of an outcome in Parquet, once and for each epoch: of a label, and of the loss of a text.
Measured on 1,000 to 100,000 rows. With 2 to 17 labels, one epoch took 5.0 to 6.2 bytes of a text and 0.6 to 3.6 of a
word, and each further epoch 0.1 to 1.0. Losses took 23 to 24 and 9.1 to 9.5."""
FLOPS_CPU, FLOPS_GPU, FLOPS_GPU_HALF = 1e10, 5e12, 2e13
"""Floating-point operations a second: of a thread, and of a GPU, in float32 and in half precision."""
BYTES_A_SECOND, STEP = 1e8, 5e-9
"""Bytes a second of a shared file system, and seconds of an optimiser step for each parameter."""
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
        """Parameters of a probe, most of which are in its dense layer."""
        return self.states * self.hidden

    @property
    def mean_length(self) -> float:
        """Tokens of an example."""
        return self.tokens / max(self.examples, 1)

    def tokens_of(self, examples: int) -> float:
        """Tokens of a batch of longer examples, or of longer questions with all their choices."""
        return examples * self.choices * min(self.slots, LONGER * self.mean_length)


def sizes_of(tokens: PathLike) -> Sizes | None:
    """The sizes behind a laid-out corpus; None if they cannot be read, which the job itself will explain.

    Raises:
        FileNotFoundError: the corpus is not there yet.
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
    """Megabytes that a job of a study asks for; raises FileNotFoundError if the files it follows from are missing."""
    settings = job.settings
    if isinstance(settings, TextsOf | LabelsOf | SubsetsOf):
        files = _files_of(settings.corpus)
        return memory_of_files(*files) if files else UNKNOWN_TEXTS_MB
    return memory_of(job, study.config, _sizes_behind(study, job))


def walltime(study: Study, job: AnyJob) -> int:
    """Minutes that a job of a study asks for; raises FileNotFoundError if the files it follows from are missing."""
    settings = job.settings
    if isinstance(settings, TextsOf | LabelsOf | SubsetsOf):
        return walltime_of_files(*_files_of(settings.corpus))
    if isinstance(settings, TokensOf):
        return walltime_of_files(str(study.results / job.input("texts")))
    return walltime_of(job, study.config, _sizes_behind(study, job), study.threads(job))


def _sizes_behind(study: Study, job: AnyJob) -> Sizes | None:
    """The sizes of the laid-out corpus that a job reads, or whose parts it merges; None if it reads no corpus."""
    source = job.needs["parts"][0] if isinstance(job.settings, MergeOf) else job
    tokens = source.maybe("tokens")
    try:
        return sizes_of(str(study.results / tokens)) if tokens else None
    except FileNotFoundError as error:  # snakemake waits for a file only if the job itself reads it
        missing = job.inputs["parts"][0] if isinstance(job.settings, MergeOf) else tokens
        raise FileNotFoundError(error.errno, error.strerror, str(study.results / str(missing))) from None


def _files_of(corpus: Corpus) -> list[str]:
    return [path for _, path in corpus.files or () if path is not None]


# -- the sums ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Needs:
    """What a job needs, as multiples of the sizes of its model and corpus.

    Args:
        kind: the kind of the constants that it makes or uses; `zeros` take no room.
        start: megabytes of Python and its libraries.
        weights, constants, classes, tokens, probe: bytes in memory for each number of that size.
        activations: bytes in memory for each number of a token inside a layer.
        states: bytes in memory for each number of the hidden states of a token.
        logits: bytes in memory for each word of the vocabulary.
        passes: how often all texts go through the model; backwards counts twice.
        probings: texts or tokens that go through the probe and back.
        decodings: tokens that get a logit of every word, and gradients.
        steps: steps of the optimiser of the probe.
        readings: how often all stored hidden states are read.
        written: bytes on the disk.
    """

    kind: str = "zeros"
    start: int = START_ENCODER_MB
    weights: float = LOADED * FLOAT
    constants: float = CONSTANT
    classes: float = FLOAT
    tokens: float = 0
    probe: float = 0
    activations: float = 0
    states: float = 0
    logits: float = 0
    passes: float = 0
    probings: float = 0
    decodings: float = 0
    steps: float = 0
    readings: float = 0
    written: float = 0


def memory_of(job: AnyJob, config: Config, sizes: Sizes | None) -> int:
    """Megabytes that a job on a corpus of these sizes asks for."""
    if sizes is None or (needs := _needs(job, config, sizes)) is None:
        return UNKNOWN_MB if job.inputs.get("tokens") else TABLES_MB
    held = needs.weights * sizes.weights + needs.activations * sizes.between + needs.states * sizes.states
    held += needs.constants * sizes.constants(needs.kind) + needs.classes * sizes.classes(needs.kind)
    held += needs.tokens * sizes.tokens + needs.probe * sizes.probe + needs.logits * sizes.vocabulary
    cuda = START_CUDA_MB * (config.device.startswith("cuda") and needs.weights > 0)
    return _rounded_up(MARGIN * (needs.start + cuda + held / MB), 100)


def seconds(job: AnyJob, config: Config, sizes: Sizes | None, threads: int) -> float:
    """Seconds that a job takes on slow processors: operations over their rate, optimiser steps, and reading.

    A pass takes 2 operations for each weight of the layers and each token. What is learned takes 6 for each parameter.
    """
    if sizes is None or (needs := _needs(job, config, sizes)) is None:
        return START_SECONDS
    rate = FLOPS_CPU * threads
    if config.device.startswith("cuda") and needs.weights > 0:
        rate = FLOPS_GPU if job.settings.model.precision == "float32" else FLOPS_GPU_HALF
    operations = needs.passes * (2 * sizes.matrices + 4 * sizes.layers * sizes.slots * sizes.hidden) * sizes.tokens
    operations += 6 * needs.probings * sizes.probe + 6 * needs.decodings * sizes.vocabulary * sizes.hidden
    read = needs.readings * HALF * sizes.states * sizes.tokens
    return START_SECONDS + operations / rate + needs.steps * sizes.probe * STEP + read / BYTES_A_SECOND


def walltime_of(job: AnyJob, config: Config, sizes: Sizes | None, threads: int) -> int:
    """Minutes that a job asks for: twice the estimate, and the start on a busy machine."""
    return _rounded_up(START_MINUTES + SLACK * (seconds(job, config, sizes, threads) - START_SECONDS) / 60, 5)


def disk(job: AnyJob, config: Config, sizes: Sizes | None) -> int:
    """Megabytes that a job writes, at most; what is small counts as one."""
    needs = None if sizes is None else _needs(job, config, sizes)
    return _rounded_up(needs.written / MB, 1) or 1 if needs else 1


def disk_in_table(job: AnyJob, sizes: Sizes | None) -> float:
    """Megabytes of a job's outcomes in the table of all outcomes, at most: those after the last epoch."""
    settings = job.settings
    if sizes is None or not isinstance(settings, ProbeOf):
        return 0.0
    return len(settings.seeds) * _outcomes(settings, sizes, epochs=1) / MB


# -- the table --------------------------------------------------------------------------------------------------------


def _needs(job: AnyJob, config: Config, sizes: Sizes) -> Needs | None:
    """What a job needs; None if that does not depend on a laid-out corpus."""
    build = BUILDERS.get(type(job.settings))
    return build(job, config, sizes) if build else None


def _one_pass(job: AnyJob, config: Config) -> Needs:
    """All texts go through the model once, a budget of tokens at a time."""
    return Needs(_kind(job.settings), activations=_activation(job) * config.token_budget, passes=1)


def _average(job: Job[AverageOf], config: Config, sizes: Sizes) -> Needs:
    needs, parts, written = _one_pass(job, config), _parts(job.settings.part), _averages(_kind(job.settings), sizes)
    return replace(needs, constants=SUMMED, classes=FLOAT + DOUBLE, passes=1 / parts, written=written)


def _merge(job: Job[MergeOf], config: Config, sizes: Sizes) -> Needs:
    kind = _kind(job.needs["parts"][0].settings)
    return Needs(kind, START_MB, weights=0, constants=SUMMED, classes=0, written=_averages(kind, sizes))


def _resample(job: Job[ResampleOf], config: Config, sizes: Sizes) -> Needs:
    share = min(1.0, sizes.slots / max(sizes.examples, 1))  # at most one text for each slot
    needs, written = _one_pass(job, config), _averages("average", sizes)
    return replace(needs, constants=SUMMED, classes=FLOAT + DOUBLE, passes=share, written=written)


def _hidden(job: Job[HiddenOf], config: Config, sizes: Sizes) -> Needs:
    parts, states = _parts(job.settings.part), (2 * FLOAT + HALF) * config.token_budget
    written = (HALF * sizes.states * sizes.tokens + FLOAT * sizes.examples) / parts
    return replace(_one_pass(job, config), states=states, passes=1 / parts, written=written)


def _weigh(job: Job[WeightsOf], config: Config, sizes: Sizes) -> Needs:
    """Weights that are observed in attention take one pass; the others follow from the loss of a probe."""
    if job.settings.by in OBSERVED:
        return _one_pass(job, config)
    return _learn(job, config, sizes)


def _learn(job: Job[LambdaOf] | Job[WeightsOf] | Job[ProbeOf], config: Config, sizes: Sizes) -> Needs:
    """Learn a probe, λ or constants, on stored hidden states or through the model, and measure what was learned."""
    settings, target = job.settings, config.tasks[job.wildcards["task"]].target
    scores = isinstance(settings, ProbeOf)
    seeds, epochs = len(settings.seeds) if isinstance(settings, ProbeOf) else 1, settings.training.epochs
    kind, trained, stored = _kind(settings), _trained(settings), "index" in job.needs
    model = not (stored and scores)

    # tokens that are in memory while something is learned and while it is scored
    batch = sizes.tokens_of(settings.training.batch_size)
    scored = sizes.tokens_of(min(SCORED_AT_ONCE, sizes.scored)) if scores else 0.0
    layers = sizes.layers if trained or (isinstance(settings, WeightsOf) and settings.by == "gradient") else 1
    activations = max(batch * layers, scored)
    if scored and not target.probed:
        scored = float(config.token_budget)
    read = max(batch if epochs else 0.0, scored)
    # finished probes wait until all are written, and are in memory once more as a file
    finished = 2 * FLOAT * seeds * scores

    measured = 0.0
    if isinstance(settings, WeightsOf):
        measured = _passes(settings, sizes)
    elif scores and not target.probed:  # only validation texts, each twice: with heads replaced and as they are
        measured = 2 * sizes.scored / max(sizes.examples, 1)
    rounds = seeds * epochs
    decoded = target.decoded * sizes.tokens
    probed = rounds + measured / 3  # what is only measured does not go backwards
    written = 0.0
    if isinstance(settings, ProbeOf):
        learned = target.probed * sizes.probe + trained * sizes.constants(kind)
        written = seeds * (FLOAT * learned + _outcomes(settings, sizes, epochs))
    return Needs(
        kind,
        START_ENCODER_MB if model else START_MB,
        weights=LOADED * FLOAT * model,
        constants=(CONSTANT + FLOAT * (OPTIMISER - 1) * (trained and scores)) * model + finished * trained,
        classes=FLOAT * model,
        tokens=BYTES_OF_A_TOKEN,
        probe=(FLOAT * OPTIMISER + finished) * target.probed,
        activations=_activation(job) * activations * model,
        states=(3 * FLOAT + HALF) * read * target.probed,
        logits=4 * FLOAT * target.decoded * read,
        passes=rounds * (0 if stored else 3 if trained else 1) + measured,
        probings=probed * (sizes.tokens if target.per_word else decoded or sizes.examples) * target.probed,
        decodings=probed * decoded,
        steps=rounds * sizes.examples / settings.training.batch_size * target.probed,
        readings=rounds * stored,
        written=written,
    )


BUILDERS: dict[type[Settings], Callable[[AnyJob, Config, Sizes], Needs]] = {
    AverageOf: _average,
    MergeOf: _merge,
    ResampleOf: _resample,
    HiddenOf: _hidden,
    WeightsOf: _weigh,
    LambdaOf: _learn,
    ProbeOf: _learn,
}
"""What the jobs of each stage need that reads a laid-out corpus."""


def _kind(settings: Settings) -> str:
    """The kind of the constants that a job makes or uses; `zeros` if there are none."""
    if isinstance(settings, AverageOf):
        return settings.kind
    if isinstance(settings, LambdaOf | WeightsOf):
        return Constant.parse(settings.constant).start if settings.constant else "zeros"
    constant = Variant.parse(settings.variant).constant if isinstance(settings, HiddenOf | ProbeOf) else None
    return "average" if isinstance(settings, ResampleOf) else "zeros" if constant is None else constant.start


def _trained(settings: Settings) -> bool:
    """Whether gradients go through the model to what is trained."""
    return isinstance(settings, LambdaOf) or (isinstance(settings, ProbeOf) and Variant.parse(settings.variant).trained)


def _passes(settings: WeightsOf, sizes: Sizes) -> float:
    """How often the training texts go through the model to weigh heads by a loss; backwards counts twice."""
    if settings.by == "gradient":
        return 3.0
    units = sizes.layers * (1 if settings.unit == "layer" else sizes.heads)
    return (1 + units) * min(1.0, LEFT_OUT_OF / max(sizes.examples, 1))


def _parts(part: str) -> int:
    return int(part.split("of")[1])


def _activation(job: AnyJob) -> int:
    """Bytes of an activation."""
    return FLOAT if job.settings.model.precision == "float32" else AUTOCAST


def _averages(kind: str, sizes: Sizes) -> float:
    """Bytes of averages on the disk: sums, means, and counts for each entry."""
    return (DOUBLE + FLOAT) * sizes.constants(kind) + DOUBLE * entries_of(kind, sizes.slots)


def _outcomes(settings: ProbeOf, sizes: Sizes, epochs: int) -> float:
    """Bytes of the outcomes of one seed: at most one for each token, if words are labelled."""
    target = METRICS[settings.metric].target
    once, each = OF_A_LABEL if target.labelled else OF_A_TEXT
    labels = sizes.mean_length if target.per_word else 1
    return sizes.scored * labels * (once + each * (epochs if target.probed else 2))


def memory_of_files(*files: PathLike) -> int:
    """Megabytes of a job that reads texts: Python with its libraries, and several copies of the texts."""
    return _rounded_up(MARGIN * (START_ENCODER_MB + 12 * _bytes_of(files) / MB), 100)


def walltime_of_files(*files: PathLike) -> int:
    """Minutes of a job that reads texts, at 100 kB a second."""
    return _rounded_up(START_MINUTES + _bytes_of(files) / 1e5 / 60, 5)


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


def _bytes_of(files: tuple[PathLike, ...]) -> int:
    return sum(os.stat(file).st_size for file in files)


def _rounded_up(amount: float, step: int) -> int:
    return step * math.ceil(amount / step)
