"""The settings of each stage; its numbers depend on them and on its input files only.

Each stage has a version. A change of a stage's numbers raises its version, and all its artefacts are rebuilt. A
comment, or a faster way to the same numbers, reruns nothing.
"""

from __future__ import annotations

from pathlib import PurePath
from typing import ClassVar, Literal

from pydantic import BaseModel, ConfigDict

from papa.config.measures import Target, measure_of
from papa.config.settings import Corpus, ModelSettings, Plots, Task
from papa.config.variant import WHOLE

Unit = Literal["head", "group", "layer"]
"""The unit that is replaced at once: a head, the heads that share their keys and values, or all heads of a layer."""


class Settings(BaseModel):
    """The settings of a stage; its artefacts record them without the places of files."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    stage: ClassVar[str] = ""
    version: ClassVar[int] = 1
    runs: ClassVar[str] = ""
    """The function that makes the outputs, as module:function; it gets the job and returns a line for the terminal."""
    places: ClassVar[frozenset[str]] = frozenset()
    """Fields that artefacts do not record: no number depends on them, or the facts contain them."""

    @property
    def threads(self) -> Literal["encoder", "probe"] | None:
        """The key of the job's number of threads in the config; None stands for one thread."""
        return None

    @property
    def stamp(self) -> tuple[str, int]:
        """The stage and its version, which artefacts record."""
        return self.stage, self.version

    @property
    def function(self) -> str:
        """The function that makes the outputs, as module:function."""
        return self.runs

    def recorded(self) -> dict[str, object]:
        """Return the settings as an artefact records them: as JSON, without places and without default values.

        A new setting whose default keeps the old numbers therefore leaves finished artefacts fresh. A default that
        changes needs a new version of each stage that records it: a record without the setting means the old default.
        """
        return self.model_dump(mode="json", exclude_none=True, exclude_defaults=True, exclude=set(self.places))


class ModelId(Settings):
    """A model: its name in the config and the origin of its files. Its weights are an input, not a setting.

    Args:
        weights: SHA-256 of the weights, if they are on this machine when the workflow begins.
    """

    places = frozenset({"hub", "revision", "random", "known", "weights"})

    name: str
    hub: str | None = None
    revision: str | None = None
    random: str | None = None
    known: str | None = None
    weights: str | None = None

    @classmethod
    def of(cls, name: str, settings: ModelSettings) -> ModelId:
        """The model that a config calls `name`; its weights are not known yet."""
        fields = settings.model_dump(include={"hub", "revision", "random", "known"})
        return cls(name=name, **fields)

    @property
    def origin(self) -> str:
        """The origin of the model, in one line."""
        if self.random is not None:
            return f"random {self.random}"
        if self.known is not None:
            return f"known {self.known}"
        return "a folder" if self.hub is None else f"{self.hub}@{self.revision or 'main'}"


class OfModel(Settings):
    model: ModelId

    def recorded(self) -> dict[str, object]:
        return super().recorded() | {"model": self.model.recorded()}


class Encoding(Settings):
    """A model, and the number format that it computes in."""

    model: ModelId
    precision: str = "float32"


class OfEncoding(Settings):
    model: Encoding

    @property
    def threads(self) -> Literal["encoder", "probe"] | None:
        return "encoder"

    def recorded(self) -> dict[str, object]:
        model = {"name": self.model.model.name, "precision": self.model.precision}
        return super().recorded() | {"model": model}


class OfTask(OfEncoding):
    """A stage that uses the loss or the outcomes of a task.

    The metric decides which objective the task has. Another metric of the same objective changes no number.
    """

    places = frozenset({"metric"})

    metric: str | None = None

    @property
    def target(self) -> Target:
        """The target that a model has to predict."""
        return measure_of(self.metric or "").target

    def recorded(self) -> dict[str, object]:
        by_model = self.metric is not None and not self.target.probed
        return super().recorded() | ({"direct": True} if by_model else {})


class Training(Settings):
    """The training of a probe, λ or constants."""

    learning_rate: float
    batch_size: int
    epochs: int

    @classmethod
    def of(cls, task: Task, epochs: int | None = None) -> Training:
        """Return the training of a task's probe, for another number of epochs if one is set."""
        return cls(learning_rate=task.learning_rate, batch_size=task.batch_size, epochs=epochs or task.epochs)

    @classmethod
    def none(cls, batch_size: int = 1) -> Training:
        """Return no training: no epochs."""
        return cls(learning_rate=0, batch_size=batch_size, epochs=0)


class OfCorpus(Settings):
    """A corpus; `source` has the digests of its files, by split or by name."""

    of_rows: ClassVar[tuple[str, ...]] = ()
    """Keys that choose rows, which are not recorded if the texts, an input of the stage, record them."""

    corpus: Corpus
    source: dict[str, str]

    def recorded(self) -> dict[str, object]:
        """Return the settings with the formats of files in place of their paths."""
        recorded = super().recorded()
        left_out = {"slots", "shards", *self.of_rows}
        corpus = self.corpus.model_dump(mode="json", exclude_none=True, exclude_defaults=True, exclude=left_out)
        if files := self.corpus.files:
            corpus["files"] = {split: PurePath(path).suffix.lower() for split, path in files if path}
        return recorded | {"corpus": corpus}


class TextsOf(OfCorpus):
    """Stage *texts*: the texts of a corpus as one table."""

    stage = "texts"
    runs = "papa.data.prepare:prepare_texts"


class LabelsOf(OfCorpus):
    """Stage *labels*: the labels of a task, row by row with its texts. The metric decides what they are."""

    stage = "labels"
    version = 2
    runs = "papa.data.prepare:prepare_labels"
    of_rows = ("train_limit",)
    places = frozenset({"metric"})

    label: str
    labels: tuple[str, ...] | None = None
    metric: str

    def recorded(self) -> dict[str, object]:
        usual, target = self.corpus.targets[0], measure_of(self.metric).target
        return super().recorded() | ({} if target is usual else {"labels_are": target.right})


class SubsetsOf(OfCorpus):
    """Stage *subsets*: examples or words that are also scored separately."""

    stage = "subsets"
    runs = "papa.data.prepare:prepare_subsets"
    of_rows = ("train_limit",)

    subset: str


class TokensOf(OfModel):
    """Stage *tokens*: the texts of a corpus in the slots of a model."""

    stage = "tokens"
    runs = "papa.data.tokenize:tokenize_corpus"

    slots: int
    style: str
    segments: str
    blocks: bool


class AverageOf(OfEncoding):
    """Stage *average*: the average attention of every head over a corpus, or over a part of it.

    `kind` is one of `AVERAGED`; "average" is attention, slot by slot.
    """

    stage = "average"
    runs = "papa.method.corpus_averages:average_corpus"

    part: str
    kind: str = "average"


class MergeOf(Settings):
    """Stage *average*, of a corpus in parts: the sums over all parts."""

    stage = "average"
    runs = "papa.method.corpus_averages:merge_averages"


class ResampleOf(OfEncoding):
    """Stage *resample*: attention in single texts of a corpus, one text for each slot of a query."""

    stage = "resample"
    runs = "papa.method.corpus_averages:resample_attention"


class Gating(Settings):
    """The training of λ."""

    training: Training
    seed: int
    encoder_dropout: bool
    part: str = WHOLE
    """The part of the training texts that λ is learned on."""
    unit: Unit = "head"
    """The unit that has one λ."""
    start: Literal["half", "open"] = "half"
    """The start of λ."""
    l1: float = 0.0
    """The weight of the mean of all λ in the loss."""
    settled: float | None = None
    """Kendall's τ between the orders of two epochs at which learning ends; None if it never ends early."""


class LambdaOf(OfTask, Gating):
    """Stage *lambda*: the need of every head for its attention, learned with a probe."""

    stage = "lambda"
    runs = "papa.method.head_weights:train_lambda"

    constant: str

    def recorded(self) -> dict[str, object]:
        return super().recorded() | {"masked": self.target.probed and not self.target.labelled}


LEFT_OUT_OF = 1000
"""Largest number of training examples for *leave-one-out*, which runs all of them once for each unit."""


class WeightsOf(OfTask):
    """Stage *weights*: the weight of every head by another measure than λ, on the training texts of a task.

    A setting that the measure does not depend on is None, and is not recorded.
    """

    stage = "weights"
    runs = "papa.method.head_weights:weigh_heads"

    by: str
    constant: str | None = None
    seed: int | None = None
    training: Training
    """The training of the probe whose loss is used."""
    encoder_dropout: bool | None = None
    """Whether the encoder applies dropout while that probe is trained."""
    unit: Unit = "head"


class OrderFromWeights(Settings):
    """Stage *rank*: heads in an order by their weights."""

    stage = "rank"
    runs = "papa.method.orders:rank_heads"

    order: str


class OrderFromModel(OfModel):
    """Stage *order*: heads in an order that needs no text. Only a random one depends on the seed."""

    stage = "order"
    runs = "papa.method.orders:order_heads"

    order: str
    seed: int
    unit: Unit = "head"


class HiddenOf(OfEncoding):
    """Stage *hidden*: all hidden states of a corpus, or of a part of it, with some heads replaced."""

    stage = "hidden"
    runs = "papa.method.features:extract_features"

    variant: str
    part: str


class ProbeOf(OfTask):
    """Stage *probe*: a trained probe for each seed, and its outcome on every validation example.

    Streamed hidden states are computed when they are read. The files may also have probes of further seeds. If the
    model's own head makes the predictions, nothing is trained.
    """

    stage = "probe"
    version = 4
    runs = "papa.method.training:train_probe"
    places = frozenset({"streamed", "metric", "seeds"})

    task: str
    training: Training
    seeds: tuple[int, ...]
    variant: str
    encoder_dropout: bool
    streamed: bool

    @property
    def threads(self) -> Literal["encoder", "probe"] | None:
        return "encoder" if self.streamed else "probe"


class TaskOf(Settings):
    """The title of a task and the metric that scores it."""

    title: str
    metric: str


class GridView(BaseModel):
    """The lines, columns and tasks of a grid, in the order in which its table and figure show them.

    Args:
        tasks: the tasks, and the corpus of each.
        order: the tasks in the order in which they are shown, because JSON objects have none.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    title: str
    models: tuple[str, ...]
    constants: tuple[str, ...]
    orders: tuple[str, ...]
    fractions: tuple[str, ...]
    tasks: dict[str, str]
    plots: Plots
    drawn: bool
    order: tuple[str, ...] = ()


class AnalysisOf(Settings):
    """An analysis of `papa.config.analyses`. Its table records the parameters; they are the fields of its class.

    Args:
        name: its stage, as its table records it.
        number: the version of that stage.
        made_by: its class, as module:class.
        parameters: the values of the fields of that class.
    """

    stage = "analysis"

    name: str
    number: int = 1
    made_by: str
    parameters: dict[str, object]

    @property
    def stamp(self) -> tuple[str, int]:
        """The stage and the version of this analysis."""
        return self.name, self.number

    @property
    def function(self) -> str:
        """The function that makes any analysis."""
        return "papa.results.analysis:analyse"

    def recorded(self) -> dict[str, object]:
        """The parameters."""
        return self.parameters


class PageOf(Settings):
    """Stage *page*: the HTML report. `config` has the keys of everything that was run, without places."""

    stage = "page"
    runs = "papa.results.page:write_report"

    config: dict[str, object]


class FetchOf(Settings):
    """Stage *fetch*: models and corpora to download from the hub to the mirror folder."""

    stage = "fetch"
    runs = "papa.data.mirror:fetch"

    models: tuple[ModelId, ...]
    corpora: tuple[Corpus, ...]


_KINDS: list[type[Settings]] = [
    kind for kind in globals().values() if isinstance(kind, type) and issubclass(kind, Settings)
]
STAGES = {kind.__name__: kind for kind in _KINDS if kind.stage}
"""The settings of all stages, by the name of the class."""
