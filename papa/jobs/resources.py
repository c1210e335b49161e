"""What a job asks a machine for: memory, walltime and disk, by what it works on.

The sizes of model and corpus are read from the footer of the laid-out corpus, which is there when a job is about to
run. Memory was measured and is asked for with a margin (docs/cluster.md); walltime supposes slow processors.
"""

from __future__ import annotations

import math
import os
from dataclasses import dataclass
from functools import cache
from typing import Any

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
from papa.config.study import Job, Study
from papa.config.variant import OBSERVED, Constant, Variant, entries_of
from papa.files import PathLike, footer_of

MB = 10**6
FLOAT, HALF, DOUBLE = 4, 2, 8
"""Bytes of a number: of weights and activations, of stored hidden states, of sums of attention."""
AUTOCAST = 3
"""Bytes of an activation in half precision: linear layers give 2, softmax and normalisation 4."""
CONSTANT = 12
"""Bytes of an entry of the matrices that replace attention: as read from the file, on the device, as layers use it."""
MARGIN, SLACK = 1.3, 2.0
"""How many times the memory and the walltime that were reckoned are asked for."""
START_MB, START_ENCODER_MB, START_CUDA_MB = 300, 480, 3000
"""Megabytes of Python with torch, the same with transformers, and what CUDA's libraries add."""
UNKNOWN_MB, UNKNOWN_TEXTS_MB, TABLES_MB = 1000, 4000, 2000
"""For a job whose corpus cannot be read, to say so; whose texts come from the hub; and for tables and figures."""
LOADED = 1.75
"""How many times the weights are in memory: as they are loaded, and as linear layers keep them in another order."""
START_SECONDS, START_MINUTES = 10, 10
"""Until a job is at work; and on a busy machine with a slow file system."""
BYTES_OF_A_TOKEN = 32
"""Of a token that is in memory: its number, slot, segment and word, while they are read."""
SCORED_AT_ONCE = 64
"""Examples whose hidden states are in memory at a time when a probe is scored."""
LONGER = 2.0
"""How many times the mean length the examples of the largest batch have."""
OF_A_LABEL, OF_A_TEXT = (5, 1), (15, 10)
"""Bytes of outcomes in Parquet, of what stands there once and of each epoch: for a label, and for the loss of a text.
Measured on 1,000 to 100,000 rows. With 2 to 17 labels, one epoch took 5.0 to 6.2 bytes of a text and 0.6 to 3.6 of a
word, and each further epoch 0.1 to 1.0. Losses took 23 to 24 and 9.1 to 9.5."""
FLOPS_CPU, FLOPS_GPU, FLOPS_GPU_HALF = 1e10, 5e12, 2e13
"""Floating-point operations a second: of a thread, and of a GPU, in float32 and in half precision."""
BYTES_A_SECOND, STEP = 1e8, 5e-9
"""What a shared file system gives, and seconds that a step of the optimiser takes for a parameter."""
OPTIMISER = 4
"""Numbers that are in memory of a trained parameter: itself, its gradient, two means."""


@dataclass(frozen=True)
class Sizes:
    """A model and a corpus laid out for it: `examples` and `tokens` of all splits, examples `scored` in the largest.

    Of questions every choice is an example; `choices` is how many there are of a question, else 1.
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
        """Numbers of the constants of all heads."""
        if kind == "mean-output":
            return self.layers * self.slots * self.hidden
        return self.layers * self.heads * entries_of(kind, self.slots)

    def classes(self, kind: str) -> int:
        """Numbers of the table that says which entry belongs to which pair of slots, if entries are tied."""
        return self.slots**2 * (entries_of(kind, self.slots) < self.slots**2)

    @property
    def states(self) -> int:
        """Numbers of the hidden states of a token."""
        return (self.layers + 1) * self.hidden

    @property
    def between(self) -> int:
        """Numbers of a token inside a layer: projections, the linear layers, attention before and after softmax."""
        return 8 * self.hidden + 2 * self.intermediate + 2 * self.heads * self.slots

    @property
    def probe(self) -> int:
        """Parameters of a probe, which are mainly those of its dense layer."""
        return self.states * self.hidden

    def tokens_of(self, examples: int) -> float:
        """Tokens of a batch of so many examples (or questions with all their choices), of the longer ones."""
        return examples * self.choices * min(self.slots, LONGER * self.tokens / max(self.examples, 1))


def sizes_of(tokens: PathLike) -> Sizes | None:
    """The sizes behind a laid-out corpus; None if they cannot be read, which the job itself will say more of.

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
        own = {"slots": facts["slots"], "examples": values["split"], "tokens": values["ids"]}
        return Sizes(**facts["sizes"], **own, scored=round(choices * scored), choices=choices)
    except Exception:  # a damaged footer may contain anything
        return None


def memory(study: Study, job: Job[Any]) -> int:
    """Megabytes that a job of a study asks for; raises FileNotFoundError if what it follows from is not there yet."""
    told = job.settings
    if isinstance(told, TextsOf | LabelsOf | SubsetsOf):
        files = _files_of(told.corpus)
        return memory_of_files(*files) if files else UNKNOWN_TEXTS_MB
    return memory_of(job, study.config, _sizes_behind(study, job))


def walltime(study: Study, job: Job[Any]) -> int:
    """Minutes that a job of a study asks for; raises FileNotFoundError likewise."""
    told = job.settings
    if isinstance(told, TextsOf | LabelsOf | SubsetsOf):
        return walltime_of_files(*_files_of(told.corpus))
    if isinstance(told, TokensOf):
        return walltime_of_files(str(study.results / job.input("texts")))
    return walltime_of(job, study.config, _sizes_behind(study, job), study.threads(job))


def _sizes_behind(study: Study, job: Job[Any]) -> Sizes | None:
    """The sizes of the laid-out corpus that a job reads, or whose parts it merges; None if it has nothing of that."""
    source = job.needs["parts"][0] if isinstance(job.settings, MergeOf) else job
    tokens = source.maybe("tokens")
    try:
        return sizes_of(str(study.results / tokens)) if tokens else None
    except FileNotFoundError as error:  # snakemake waits for a file only if the job itself reads it
        own = job.inputs["parts"][0] if isinstance(job.settings, MergeOf) else tokens
        raise FileNotFoundError(error.errno, error.strerror, str(study.results / str(own))) from None


def _files_of(corpus: Corpus) -> list[str]:
    return [path for _, path in corpus.files or () if path is not None]


def memory_of(job: Job[Any], config: Config, sizes: Sizes | None) -> int:
    """Megabytes that a job on a corpus of these sizes asks for: those of Python and its libraries, and

    - merge: constants in double precision, twice, and in single
    - average: weights; constants in double precision, twice, and in single; activations of the token budget
    - hidden: weights; constants; activations and all hidden states of the token budget
    - probe: token ids; the probe with its gradient and two means; hidden states of what is read at a time
    - probe through the model: that; weights; constants, and for those that are trained a gradient and two means;
      activations of a batch in all layers if constants are trained, or of one layer while it is scored
    - lambda: as with trained constants, without scoring
    - weights: the same where a loss is passed back, of one layer where attention is looked at or heads are left out

    Neither average nor hidden has a corpus in memory.
    """
    told = job.settings
    if sizes is not None and isinstance(told, MergeOf):
        constants = sizes.constants(_kind(job.needs["parts"][0].settings))
        return _rounded_up(MARGIN * (START_MB + (2 * DOUBLE + FLOAT) * constants / MB), 100)
    if sizes is None or not isinstance(told, AverageOf | ResampleOf | HiddenOf | LambdaOf | WeightsOf | ProbeOf):
        return UNKNOWN_MB if job.inputs.get("tokens") else TABLES_MB
    if isinstance(told, ProbeOf) and not told.streamed:
        return _rounded_up(MARGIN * (START_MB + _of_probe(job, config, sizes) / MB), 100)
    activations = (FLOAT if told.model.precision == "float32" else AUTOCAST) * sizes.between
    constants, classes = sizes.constants(_kind(told)), sizes.classes(_kind(told))
    held = LOADED * FLOAT * sizes.weights + FLOAT * classes
    if isinstance(told, AverageOf | ResampleOf):
        held += (2 * DOUBLE + FLOAT) * constants + DOUBLE * classes + activations * config.token_budget
    elif isinstance(told, HiddenOf):
        held += CONSTANT * constants + (activations + (2 * FLOAT + HALF) * sizes.states) * config.token_budget
    elif isinstance(told, WeightsOf) and told.by in OBSERVED:
        held += CONSTANT * constants + activations * config.token_budget
    else:
        trained, scores = _trained(told), isinstance(told, ProbeOf)
        held += (CONSTANT + FLOAT * (OPTIMISER - 1) * (trained and scores)) * constants
        through = trained or (isinstance(told, WeightsOf) and told.by == "gradient")
        batch = sizes.tokens_of(told.training.batch_size) * activations * (sizes.layers if through else 1)
        scored = sizes.tokens_of(min(SCORED_AT_ONCE, sizes.scored)) * activations if scores else 0.0
        held += max(batch, scored) + _of_probe(job, config, sizes)
    cuda = START_CUDA_MB * config.device.startswith("cuda")
    return _rounded_up(MARGIN * (START_ENCODER_MB + cuda + held / MB), 100)


def walltime_of(job: Job[Any], config: Config, sizes: Sizes | None, threads: int) -> int:
    """Minutes that a job asks for: twice what is reckoned, and what it takes to start on a busy machine."""
    return _rounded_up(START_MINUTES + SLACK * (seconds(job, config, sizes, threads) - START_SECONDS) / 60, 5)


def seconds(job: Job[Any], config: Config, sizes: Sizes | None, threads: int) -> float:
    """Seconds that a job takes, on slow processors.

    Operations over their rate: 2 for each weight of the layers and each token that the model takes, 3 times that if
    gradients go through it, 6 for each parameter of a probe and what it classifies; and the optimiser's steps and the
    reading of hidden states by their bytes. All of it as often as there are epochs.
    """
    told = job.settings
    if sizes is None or not isinstance(told, AverageOf | ResampleOf | HiddenOf | LambdaOf | WeightsOf | ProbeOf):
        return START_SECONDS
    stored = "index" in job.needs
    alone = stored and isinstance(told, ProbeOf)  # without the model, and so on no GPU
    of_gpu = FLOPS_GPU if told.model.precision == "float32" else FLOPS_GPU_HALF
    flops = of_gpu if config.device.startswith("cuda") and not alone else FLOPS_CPU * threads
    encoding = (2 * sizes.matrices + 4 * sizes.layers * sizes.slots * sizes.hidden) * sizes.tokens / flops
    if isinstance(told, ResampleOf):  # a text for each slot at most
        return START_SECONDS + encoding * min(1.0, sizes.slots / max(sizes.examples, 1))
    if isinstance(told, AverageOf | HiddenOf):
        return START_SECONDS + encoding / int(told.part.split("of")[1])
    if isinstance(told, WeightsOf) and told.by in OBSERVED:
        return START_SECONDS + encoding
    decoded, of_tokens = _metric(job, config)
    of_probe = 6 * sizes.probe * (sizes.tokens if of_tokens else sizes.examples)
    decoding = int(decoded * 6 * sizes.vocabulary * sizes.hidden * sizes.tokens)
    if told.direct and isinstance(told, ProbeOf):  # validation texts alone, each twice: replaced, and as it is
        return START_SECONDS + 2 * (encoding + decoding / 3 / flops) * sizes.scored / max(sizes.examples, 1)
    if told.direct and isinstance(told, WeightsOf):
        return START_SECONDS + _passes(told, sizes) * (encoding + decoding / 3 / flops)
    if told.direct:
        return START_SECONDS + told.training.epochs * (3 * encoding + decoding / flops)
    if decoded:
        of_probe = int(decoded * of_probe) + decoding
    epoch = of_probe / flops + sizes.examples / told.training.batch_size * sizes.probe * STEP
    epoch += HALF * sizes.states * sizes.tokens / BYTES_A_SECOND if stored else (3 if _trained(told) else 1) * encoding
    seeds = len(told.seeds) if isinstance(told, ProbeOf) else 1
    measured = _passes(told, sizes) * (encoding + of_probe / 3 / flops) if isinstance(told, WeightsOf) else 0.0
    return START_SECONDS + seeds * told.training.epochs * epoch + measured


def disk(job: Job[Any], sizes: Sizes | None) -> int:
    """Megabytes that a job writes, at most; what is small counts as one."""
    told, written = job.settings, 0.0
    if sizes is not None and isinstance(told, AverageOf | MergeOf | ResampleOf):
        kind = _kind(job.needs["parts"][0].settings if isinstance(told, MergeOf) else told)
        written = (DOUBLE + FLOAT) * sizes.constants(kind) + DOUBLE * entries_of(kind, sizes.slots)
    elif sizes is not None and isinstance(told, HiddenOf):
        written = (HALF * sizes.states * sizes.tokens + FLOAT * sizes.examples) / int(told.part.split("of")[1])
    elif sizes is not None and isinstance(told, ProbeOf):
        written = FLOAT * ((not told.direct) * sizes.probe + _trained(told) * sizes.constants(_kind(told)))
        written += _of_outcomes(told, sizes, told.training.epochs)
        written *= len(told.seeds)
    return _rounded_up(written / MB, 1) or 1


def disk_in_table(job: Job[Any], sizes: Sizes | None) -> float:
    """Megabytes that the outcomes of a job take in the table of all outcomes, at most: those after the last epoch."""
    told = job.settings
    if sizes is None or not isinstance(told, ProbeOf):
        return 0.0
    return len(told.seeds) * _of_outcomes(told, sizes, epochs=1) / MB


def memory_of_files(*files: PathLike) -> int:
    """Megabytes of a job that reads texts: Python with its libraries, and the texts several times over."""
    return _rounded_up(MARGIN * (START_ENCODER_MB + 12 * _bytes_of(files) / MB), 100)


def walltime_of_files(*files: PathLike) -> int:
    """Minutes of a job that reads texts, at 100 kB a second."""
    return _rounded_up(START_MINUTES + _bytes_of(files) / 1e5 / 60, 5)


def duration(seconds: float) -> str:
    """Seconds as people say it: "40 s", "5 min", "1.2 hours", "3.4 days"."""
    if 0 < seconds < 1:
        return "< 1 s"
    for limit, unit, name, digits in ((120, 1, "s", 0), (7200, 60, "min", 0), (172800, 3600, "hours", 1)):
        if seconds < limit:
            return f"{seconds / unit:.{digits}f} {name}"
    return f"{seconds / 86400:.1f} days"


def size(amount: float) -> str:
    """Bytes as people say it: "1.2 GB", "41 GB"."""
    step = next((step for step in range(4) if amount < 1000 ** (step + 1)), 4)
    said, unit = amount / 1000**step, ("B", "kB", "MB", "GB", "TB")[step]
    return f"{said:.1f} {unit}" if said < 9.95 and said != int(said) else f"{said:,.0f} {unit}"


def _kind(told: Settings) -> str:
    """The kind of the constants that a job makes or uses; `zeros`, which take no room, where there are none."""
    if isinstance(told, AverageOf):
        return told.kind or "average"
    if isinstance(told, LambdaOf | WeightsOf):
        return Constant.parse(told.constant).start if told.constant else "zeros"
    constant = Variant.parse(told.variant).constant if isinstance(told, HiddenOf | ProbeOf) else None
    return "average" if isinstance(told, ResampleOf) else "zeros" if constant is None else constant.start


def _trained(told: Settings) -> bool:
    """Whether something is trained by gradients that go through the model."""
    return isinstance(told, LambdaOf) or (isinstance(told, ProbeOf) and Variant.parse(told.variant).trained)


def _passes(told: WeightsOf, sizes: Sizes) -> float:
    """How many times the training texts go through the model to weigh heads by a loss; backwards counts twice."""
    if told.by == "gradient":
        return 3.0
    units = sizes.layers * (1 if told.unit == "layer" else sizes.heads)
    return (1 + units) * min(1.0, LEFT_OUT_OF / max(sizes.examples, 1))


def _metric(job: Job[Any], config: Config) -> tuple[float, bool]:
    """The share of the tokens that are guessed among all words of the vocabulary, and whether probes read tokens."""
    target = config.tasks[job.wildcards["task"]].target
    return target.decoded, target.per_word or target.decoded > 0


def _of_probe(job: Job[Any], config: Config, sizes: Sizes) -> float:
    """Bytes of token ids, of a probe with all that is in memory of its parameters, and of what it reads at a time."""
    told, direct = job.settings, bool(job.settings.direct)
    batch = sizes.tokens_of(told.training.batch_size) if told.training.epochs else 0.0
    scored = sizes.tokens_of(min(SCORED_AT_ONCE, sizes.scored)) if isinstance(told, ProbeOf) else 0.0
    scored = float(config.token_budget) if direct and scored else scored
    states = 0.0 if direct else (3 * FLOAT + HALF) * sizes.states * max(batch, scored)
    decoded = 4 * FLOAT * _metric(job, config)[0] * max(batch, scored) * sizes.vocabulary
    # probes that are done wait until all are written, and are in memory once more as a file
    probe = 0 if direct else sizes.probe
    learned = probe + _trained(told) * sizes.constants(_kind(told))
    done = 2 * FLOAT * len(told.seeds) * learned if isinstance(told, ProbeOf) else 0
    return BYTES_OF_A_TOKEN * sizes.tokens + FLOAT * OPTIMISER * probe + done + states + decoded


def _of_outcomes(told: ProbeOf, sizes: Sizes, epochs: int) -> float:
    """Bytes of what became of every example that is scored: at most of every token, if words are labelled."""
    target = METRICS[told.metric].target
    once, each = OF_A_LABEL if target.labelled else OF_A_TEXT
    labels = sizes.tokens / max(sizes.examples, 1) if target.per_word else 1
    return sizes.scored * labels * (once + each * (2 if told.direct else epochs))


def _bytes_of(files: tuple[PathLike, ...]) -> int:
    return sum(os.stat(file).st_size for file in files)


def _rounded_up(amount: float, step: int) -> int:
    return step * math.ceil(amount / step)
