"""What the jobs of a config will take, from measured rates: time, encoder passes and disk.

Arithmetic alone: `papa.jobs.measuring` measures the rates. All of it is counted from the start.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction

from papa.config.graph import setting
from papa.config.grids import Config
from papa.config.jobs import MERGED, ONCE, OUTPUTS, THROUGH_ENCODER, Job

ENCODING = ("average", "average_part", "train_lambda", "features_of_corpus", "features_of_task", THROUGH_ENCODER)
WITH_TORCH = ("rank", "order_heads", "probe", "patterns", "plot_patterns", MERGED)
CHAIN = (
    ("prepare_texts",),
    ("prepare_labels", "tokenize"),
    ("average", "average_part"),
    (MERGED,),
    ("train_lambda",),
    ("rank", "order_heads"),
    ("features_of_corpus", "features_of_task"),
    ("probe", THROUGH_ENCODER),
)
"""The longest chain of jobs that wait for each other, for one model and task."""


@dataclass(frozen=True)
class Shape:
    """A model's sizes, and the seconds that a job takes until its encoder is ready."""

    layers: int
    heads: int
    hidden: int
    start: float


@dataclass(frozen=True)
class LaidOut:
    """A corpus in the slots of a model: examples and real tokens of each split, seconds to lay it out, and seconds per
    token of the encoder as it is, with every head replaced, and when its attention is averaged."""

    slots: int
    examples: Mapping[str, float]
    tokens: Mapping[str, float]
    laying_out: float
    encoding: float
    encoding_replaced: float
    averaging: float

    @property
    def all_tokens(self) -> float:
        """Tokens of all splits."""
        return sum(self.tokens.values())

    @property
    def scored(self) -> float:
        """Examples that probes are scored on."""
        return sum(self.examples.values()) - self.examples["train"]


@dataclass(frozen=True)
class Training:
    """Seconds of a training step and of scoring, each per example, and how many parameters the probe has."""

    step: float
    score: float
    parameters: int


@dataclass(frozen=True)
class Measured:
    """What was measured. What could not be is missing, and `problems` says why, by model, corpus or task.

    `start` are seconds until a job without an encoder begins its work ("probe" for rules that use torch, else ""),
    `reading` seconds to read a corpus; `layouts` go by model and laid-out corpus, `trainings` by model, task
    and `Job.training`.
    """

    device: str
    start: Mapping[str, float]
    reading: Mapping[str, float] = field(default_factory=dict)
    models: Mapping[str, Shape] = field(default_factory=dict)
    layouts: Mapping[tuple[str, str], LaidOut] = field(default_factory=dict)
    trainings: Mapping[tuple[str, str, str], Training] = field(default_factory=dict)
    problems: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Cost:
    """What jobs take: seconds by their own clock and of processors, tokens through the encoder, passes of it over the
    training split, bytes on disk."""

    elapsed: float = 0.0
    processor: float = 0.0
    tokens: float = 0.0
    passes: float = 0.0
    disk: float = 0.0

    def __add__(self, other: Cost) -> Cost:
        return Cost(*(getattr(self, name) + getattr(other, name) for name in self.__dataclass_fields__))


def cost_of(job: Job, config: Config, measured: Measured) -> Cost | None:
    """What one job takes; None where something about it could not be measured."""
    start = measured.start["probe" if job.rule in WITH_TORCH else ""]
    if not job.model or not job.corpus:
        read = measured.reading.get(job.corpus) if job.corpus else 0.0
        return None if read is None else _cost(start + read)
    shape, texts = measured.models.get(job.model), measured.layouts.get((job.model, job.corpus))
    if shape is None or texts is None:
        return None
    if job.training:
        return _cost_of_training(job, config, measured, start, shape, texts)
    threads = config["threads"]["encoder"]
    if job.rule == "tokenize":
        return _cost(shape.start + texts.laying_out)
    share = 1 / int(job.part.split("of")[1]) if job.part else 1.0
    # sums and means; float64 and float32, before compression
    averages: float = texts.slots**2 * (shape.layers * shape.heads * (8 + 4) + 8)
    if job.rule in ("average", "average_part"):
        tokens = share * texts.tokens["train"]
        return _cost(shape.start + texts.averaging * tokens, threads, texts, tokens, averages)
    if job.rule == MERGED:
        return _cost(start, disk=averages)
    if job.rule in ENCODING:
        kept = float(Fraction(setting(job.variant)["fraction"] or 1))
        seconds, tokens = kept * texts.encoding + (1 - kept) * texts.encoding_replaced, share * texts.all_tokens
        # float16, and a checksum for each example
        disk = tokens * (shape.layers + 1) * shape.hidden * 2 + share * sum(texts.examples.values()) * 4
        return _cost(shape.start + seconds * tokens, threads, texts, tokens, disk)
    return _cost(start)


def _cost_of_training(
    job: Job, config: Config, measured: Measured, start: float, shape: Shape, texts: LaidOut
) -> Cost | None:
    training = measured.trainings.get((job.model, job.task, job.training))
    if training is None:
        return None
    epochs: float = config["tasks"][job.task]["epochs"]
    if job.training == "lambda":
        epochs = config["ranking"].get("epochs", epochs)
    work = epochs * (training.step * texts.examples["train"] + training.score * texts.scored)
    if job.training == "stored":
        return _cost(start + work, config["threads"]["probe"], disk=4 * training.parameters)
    threads = config["threads"]["encoder"]
    if job.training == "lambda":
        return _cost(shape.start + work, threads, texts, epochs * texts.tokens["train"])
    learned: float = training.parameters
    if job.training == "trained":
        heads = shape.layers * shape.heads
        learned += (heads - int(Fraction(setting(job.variant)["fraction"] or 1) * heads)) * texts.slots**2
    return _cost(shape.start + work, threads, texts, epochs * texts.all_tokens, 4 * learned)


def _cost(seconds: float, threads: int = 1, texts: LaidOut | None = None, tokens: float = 0, disk: float = 0) -> Cost:
    passes = tokens / texts.tokens["train"] if texts else 0.0
    return Cost(seconds, seconds * threads, tokens, passes, disk)


@dataclass(frozen=True)
class Row:
    """The jobs of one rule for one model ("" for those of no model); `cost` is that of the `known` ones among them."""

    model: str
    rule: str
    jobs: int
    known: int
    cost: Cost


@dataclass(frozen=True)
class Plan:
    """A config's rows, its whole cost, and how long it takes at least on any number of cores: `longest`."""

    rows: list[Row]
    total: Cost
    longest: float
    on_device: float
    stored: Mapping[str, float]
    """Bytes of hidden states by corpus."""

    def elapsed(self, cores: int) -> float:
        """Seconds by the clock: all cores busy, but no shorter than the longest chain or the jobs of one GPU."""
        return max(self.total.processor / cores, self.longest, self.on_device)

    @property
    def jobs(self) -> dict[str, int]:
        """Number of jobs of each rule, as a dry run of the workflow counts them."""
        found: Counter[str] = Counter()
        for row in self.rows:
            found[row.rule] += row.jobs
        return dict(found)


def plan_of(jobs: Sequence[Job], config: Config, measured: Measured) -> Plan:
    """The plan of `jobs`: what each rule takes for each model, and all of them together."""
    costs = {job: cost_of(job, config, measured) for job in jobs}
    known = {job: cost for job, cost in costs.items() if cost is not None}
    rows = []
    rules = [*OUTPUTS, *ONCE]
    rules.insert(rules.index("probe") + 1, THROUGH_ENCODER)
    rules.insert(rules.index("average_part") + 1, MERGED)
    kinds = dict.fromkeys((job.model, job.rule) for job in jobs)
    models = list(dict.fromkeys(model for model, _ in kinds))
    for model, rule in sorted(kinds, key=lambda kind: (models.index(kind[0]), rules.index(kind[1]))):
        own = [job for job in jobs if (job.model, job.rule) == (model, rule)]
        found = [known[job] for job in own if job in known]
        rows.append(Row(model, rule, len(own), len(found), sum(found, Cost())))
    stored: Counter[str] = Counter()
    for job, cost in known.items():
        if job.rule.startswith("features"):
            stored[job.corpus] += int(cost.disk)
    gpu = sum(cost.elapsed for job, cost in known.items() if job.rule in ENCODING and measured.device != "cpu")
    return Plan(rows, sum(known.values(), Cost()), _longest(known), gpu, dict(stored))


def _longest(costs: Mapping[Job, Cost]) -> float:
    """Seconds of the longest chain: for a model and task, the longest job of every step on the way to its probes."""
    steps = {rule: number for number, rules in enumerate(CHAIN) for rule in rules}
    found: dict[tuple[str, str], float] = {}
    for model, task, corpus in {(job.model, job.task, job.corpus) for job in costs if job.rule.startswith("probe")}:
        slowest = [0.0] * len(CHAIN)
        for job, cost in costs.items():
            if job.rule in steps and job.model in ("", model) and job.task in ("", task) and job.corpus in ("", corpus):
                slowest[steps[job.rule]] = max(slowest[steps[job.rule]], cost.elapsed)
        found[model, task] = sum(slowest)
    return max(found.values(), default=0.0)


def notes_on(plan: Plan, config: Config, free: float) -> list[str]:
    """What a user should know before starting: a disk of `free` bytes that is too small, and what takes most time."""
    notes = []
    if plan.total.disk > free:
        tasks, left = [], plan.total.disk
        for corpus, size in sorted(plan.stored.items(), key=lambda entry: -entry[1]):
            if left > free and size:
                tasks += [task for task, own in config["tasks"].items() if own["corpus"] == corpus]
                left -= size
        notes.append(
            f"The disk is too small by {(plan.total.disk - free) / 1e9:.1f} GB: put results on a larger one, lower "
            f"train_limit, or set `features: stream` for {', '.join(tasks)}"
            + ("." if left <= free else ", which is not enough by itself.")
        )
    for rule, what, advice in (
        ("train_lambda", "Learning λ takes", "ranking.epochs makes it shorter"),
        (THROUGH_ENCODER, "Probes trained through the encoder take", "fewer seeds or fractions make it shorter"),
    ):
        share = sum(row.cost.processor for row in plan.rows if row.rule == rule) / (plan.total.processor or 1)
        if share > 0.5:
            notes.append(f"{what} {share:.0%} of the time; {advice}.")
    return notes
