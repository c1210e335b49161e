"""What a job asks a machine for: memory in megabytes (10^6 bytes) and walltime in minutes, by what it works on.

The sizes of model and corpus are read from the footer of the laid-out corpus, which is there when a job is about to
run. Memory was measured and is asked for with a margin (docs/cluster.md); walltime supposes slow processors.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from papa.config.graph import setting
from papa.config.grids import Config
from papa.config.jobs import THROUGH_ENCODER
from papa.config.kinds import kind_of
from papa.files import PathLike, footer_of

MB = 10**6
TRAINING = ("train_lambda", "probe", THROUGH_ENCODER)
SIZED = ("average", "average_part", "features_of_corpus", "features_of_task", *TRAINING)
"""Rules whose jobs ask for what their model and their laid-out corpus take."""
FLOAT, HALF, DOUBLE = 4, 2, 8
"""Bytes of a number: of weights and activations, of stored hidden states, of sums of attention."""
MARGIN, SLACK = 1.3, 2.0
"""How many times the memory and the walltime that were reckoned are asked for."""
START_MB, START_ENCODER_MB, START_CUDA_MB = 300, 480, 3000
"""Megabytes of Python with torch, the same with transformers, and what CUDA's libraries add."""
UNKNOWN_MB = 1000
"""For a job whose corpus cannot be read, to say so."""
LOADED = 1.75
"""How many times the weights are in memory: as they are loaded, and as linear layers keep them in another order."""
START_MINUTES = 10
"""Until a job is at work on a busy machine with a slow file system."""
BYTES_OF_A_TOKEN = 32
"""Of a token that is held in memory: its number, slot, segment and word, while they are read."""
SCORED_AT_ONCE = 64
"""Examples whose hidden states are in memory at a time when a probe is scored."""
LONGER = 2.0
"""How many times the mean length the examples of the largest batch have."""
MASKED = 0.15
"""Share of the tokens that masked language modelling asks for."""
FLOPS_CPU, FLOPS_GPU = 1e10, 5e12
"""Floating-point operations a second: of a thread, and of a GPU."""
BYTES_A_SECOND, STEP = 1e8, 5e-9
"""What a shared file system gives, and seconds that a step of the optimiser takes for a parameter."""
OPTIMISER = 4
"""Numbers that are held of a trained parameter: itself, its gradient, two means."""


@dataclass(frozen=True)
class Sizes:
    """A model and a corpus laid out for it. `examples` and `tokens` are those of all splits."""

    layers: int
    heads: int
    hidden: int
    intermediate: int
    vocabulary: int
    slots: int
    examples: int
    tokens: int

    @property
    def matrices(self) -> int:
        """Weights of the layers: four projections and two linear layers each."""
        return self.layers * (4 * self.hidden**2 + 2 * self.hidden * self.intermediate)

    @property
    def weights(self) -> int:
        """All weights: those of the layers, and the embeddings of words and slots."""
        return self.matrices + (self.vocabulary + 512) * self.hidden

    @property
    def constants(self) -> int:
        """Numbers of the matrices of all heads."""
        return self.layers * self.heads * self.slots**2

    @property
    def states(self) -> int:
        """Numbers of the hidden states of a token."""
        return (self.layers + 1) * self.hidden

    @property
    def probe(self) -> int:
        """Parameters of a probe, which are mainly those of its dense layer."""
        return self.states * self.hidden

    def tokens_of(self, examples: int) -> float:
        """Tokens of a batch of so many examples, of the longer ones."""
        return examples * min(self.slots, LONGER * self.tokens / max(self.examples, 1))


def sizes_of(tokens: PathLike) -> Sizes | None:
    """The sizes behind a laid-out corpus; None where they cannot be read, which the job itself will say more of.

    Raises FileNotFoundError where there is no file.
    """
    return _sizes_of(str(tokens), os.stat(tokens).st_mtime_ns)


@cache
def _sizes_of(tokens: str, changed: int) -> Sizes | None:
    try:
        about, held = footer_of(tokens)
        return Sizes(**about["sizes"], slots=about["slots"], examples=held["split"], tokens=held["ids"])
    except Exception:  # a damaged footer may hold anything
        return None


@dataclass(frozen=True)
class Work:
    """A job of `rule` on one of `parts` of a corpus: its threads, the tokens that the encoder takes at once, whether
    it has a GPU, the training (batch_size, epochs, metric) of a rule that trains, and whether constants are trained."""

    rule: str
    threads: int
    token_budget: int
    gpu: bool = False
    training: Mapping[str, Any] | None = None
    trained: bool = False
    parts: int = 1

    @classmethod
    def of(cls, config: Config, rule: str, wildcards: Mapping[str, str], threads: int) -> Work:
        """A job of a checked config."""
        training = None
        if rule in TRAINING:
            training = config["tasks"][wildcards["task"]]
            if rule == "train_lambda" and "epochs" in config["ranking"]:
                training = training | {"epochs": config["ranking"]["epochs"]}
        constant = setting(wildcards["variant"])["constant"] if rule == THROUGH_ENCODER else None
        return cls(
            rule,
            threads,
            config["token_budget"],
            config["device"].startswith("cuda"),
            training,
            constant is not None and kind_of(constant).trained,
            int(wildcards.get("part", "1of1").split("of")[1]),
        )

    @property
    def flops(self) -> float:
        """Floating-point operations a second."""
        return FLOPS_GPU if self.gpu and self.rule != "probe" else FLOPS_CPU * self.threads

    @property
    def through(self) -> bool:
        """Whether gradients go through the encoder."""
        return self.rule == "train_lambda" or self.trained


def memory(work: Work, sizes: Sizes | None) -> int:
    """Megabytes that a job asks for: those of Python and its libraries, and

    - average: weights; constants in double precision, twice, and in single; activations of the token budget
    - features: weights; constants; activations and all hidden states of the token budget
    - probe: token ids; the probe with its gradient and two means; hidden states of a batch
    - probe_through_encoder: weights; constants, twice; what a probe has
    - train_lambda, and where constants are trained: that, and the activations of a batch in all layers

    Neither average nor features holds a corpus.
    """
    if sizes is None:
        return UNKNOWN_MB
    if work.rule == "probe":
        return _rounded_up(MARGIN * (START_MB + _of_probe(sizes, work.training or {}) / MB), 100)
    between = 8 * sizes.hidden + 2 * sizes.intermediate + 2 * sizes.heads * sizes.slots  # numbers of a token in a layer
    held = LOADED * FLOAT * sizes.weights
    if work.rule.startswith("average"):
        held += (2 * DOUBLE + FLOAT) * sizes.constants + FLOAT * between * work.token_budget
    elif work.training is None:
        held += FLOAT * sizes.constants + (FLOAT * between + (2 * FLOAT + HALF) * sizes.states) * work.token_budget
    else:
        held += FLOAT * (2 + OPTIMISER * work.trained) * sizes.constants + _of_probe(sizes, work.training)
        if work.through:
            held += FLOAT * sizes.layers * between * sizes.tokens_of(work.training["batch_size"])
    return _rounded_up(MARGIN * (START_ENCODER_MB + START_CUDA_MB * work.gpu + held / MB), 100)


def walltime(work: Work, sizes: Sizes | None) -> int:
    """Minutes that a job asks for.

    Operations over their rate: 2 for each weight of the layers and each token that the encoder takes, 3 times that
    where gradients go through it, 6 for each parameter of a probe and what it classifies; and the optimiser's steps and
    the reading of hidden states by their bytes. All of it as often as there are epochs.
    """
    if sizes is None:
        return START_MINUTES
    encoding = (2 * sizes.matrices + 4 * sizes.layers * sizes.slots * sizes.hidden) * sizes.tokens / work.flops
    if work.training is None:
        return _rounded_up(START_MINUTES + SLACK * encoding / work.parts / 60, 5)
    seconds = _of_training(sizes, work.flops, work.training)
    if work.rule == "probe":
        seconds += HALF * sizes.states * sizes.tokens / BYTES_A_SECOND
    else:
        seconds += (3 if work.through else 1) * encoding
    return _rounded_up(START_MINUTES + SLACK * work.training["epochs"] * seconds / 60, 5)


def memory_of_files(*files: PathLike) -> int:
    """Megabytes of a job that reads texts: Python with its libraries, and the texts several times over."""
    return _rounded_up(MARGIN * (START_ENCODER_MB + 12 * _bytes_of(files) / MB), 100)


def walltime_of_files(*files: PathLike) -> int:
    """Minutes of a job that reads texts, at 100 kB a second."""
    return _rounded_up(START_MINUTES + _bytes_of(files) / 1e5 / 60, 5)


def _of_probe(sizes: Sizes, task: Mapping[str, Any]) -> float:
    """Bytes of token ids, of a probe with all that is held of its parameters, and of what it reads at a time."""
    read = max(sizes.tokens_of(task["batch_size"]), sizes.tokens_of(SCORED_AT_ONCE))
    states = (3 * FLOAT + HALF) * sizes.states * read
    vocabulary = 4 * FLOAT * MASKED * read * sizes.vocabulary if _masked(task) else 0.0
    return BYTES_OF_A_TOKEN * sizes.tokens + FLOAT * OPTIMISER * sizes.probe + states + vocabulary


def _of_training(sizes: Sizes, flops: float, task: Mapping[str, Any]) -> float:
    """Seconds that a probe adds to an epoch: classifying, and the optimiser's steps."""
    of_examples = task["metric"] not in ("token_accuracy", "entity_f1") and not _masked(task)
    classified = sizes.examples if of_examples else sizes.tokens
    work: float = 6 * sizes.probe * classified
    if _masked(task):
        work = MASKED * (work + 6 * sizes.vocabulary * sizes.hidden * sizes.tokens)
    steps = sizes.examples / task["batch_size"]
    return work / flops + steps * sizes.probe * STEP


def _masked(task: Mapping[str, Any]) -> bool:
    return task["metric"] == "negative_log_perplexity"


def _bytes_of(files: tuple[PathLike, ...]) -> int:
    return sum(os.stat(file).st_size for file in files)


def _rounded_up(amount: float, step: int) -> int:
    return step * math.ceil(amount / step)


def duration(seconds: float) -> str:
    """Seconds as people say it: "40 s", "5 min", "1.2 hours", "3.4 days"."""
    if 0 < seconds < 1:
        return "< 1 s"
    for limit, unit, name, digits in ((120, 1, "s", 0), (7200, 60, "min", 0), (172800, 3600, "hours", 1)):
        if seconds < limit:
            return f"{seconds / unit:.{digits}f} {name}"
    return f"{seconds / 86400:.1f} days"
