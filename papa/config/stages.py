"""Settings of the stages; the numbers that a stage computes depend only on its settings and its input files.

Each stage has a version. A change to the code that changes a stage's numbers raises the version, so the stage's
artefacts are rebuilt. Other changes to the code rebuild nothing.
"""

from __future__ import annotations

from fractions import Fraction
from pathlib import PurePath
from typing import ClassVar

from pydantic import BaseModel, ConfigDict

from papa.config.measures import Target, measure_of
from papa.config.settings import Corpus, InFiles, ModelSettings, Task
from papa.errors import InputError


class Settings(BaseModel):
    """Settings of a stage, which its artefacts record."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    stage: ClassVar[str] = ""
    version: ClassVar[int] = 1
    function: ClassVar[str] = ""
    """The function that makes the outputs, as module:function. It reads a job and returns a line for the terminal."""
    unrecorded: ClassVar[frozenset[str]] = frozenset()
    """Fields that artefacts do not record, because no number depends on them or because the facts contain them."""

    @property
    def runs_encoder(self) -> bool:
        """Whether the job runs the encoder, on the config's device."""
        return False

    @property
    def stamp(self) -> tuple[str, int]:
        """The stage and its version, as artefacts record them."""
        return self.stage, self.version

    def recorded(self) -> dict[str, object]:
        """Return the settings as an artefact records them: as JSON, without `unrecorded` fields and default values.

        So finished artefacts stay fresh if you add a setting whose default changes no number. If you change a default,
        raise the version of every stage that records the setting: a record without the setting means the old default.
        """
        return self.model_dump(mode="json", exclude_none=True, exclude_defaults=True, exclude=set(self.unrecorded))


class ModelId(Settings):
    """A model: its name in the config and the origin of its files. Its weights are an input, not a setting."""

    unrecorded = frozenset({"hub", "revision", "weights"})

    name: str
    hub: str | None = None
    revision: str | None = None
    weights: str | None = None  # SHA-256 of the weights, if they are on this machine when the workflow starts

    @classmethod
    def of(cls, name: str, settings: ModelSettings) -> ModelId:
        """Return the identity of the config's model `name`, without the digest of its weights."""
        return cls(name=name, hub=settings.hub, revision=settings.revision)

    @property
    def origin(self) -> str:
        """The origin of the model as a short text."""
        return "a folder" if self.hub is None else f"{self.hub}@{self.revision or 'main'}"


class OfModel(Settings):
    model: ModelId

    def recorded(self) -> dict[str, object]:
        return super().recorded() | {"model": self.model.recorded()}


class Encoding(Settings):
    """A model and its floating-point precision."""

    model: ModelId
    precision: str = "float32"


class OfEncoding(Settings):
    model: Encoding

    @property
    def runs_encoder(self) -> bool:
        return True

    def recorded(self) -> dict[str, object]:
        model = {"name": self.model.model.name, "precision": self.model.precision}
        return super().recorded() | {"model": model}


class Training(Settings):
    """Hyperparameters for training a probe, λ or constants."""

    learning_rate: float
    batch_size: int
    epochs: int
    rows: str | int | None = None
    """The share or the number of training rows to learn from; None: all rows."""
    resampled: bool = False
    """Whether each seed learns from its own part of the training rows."""

    @classmethod
    def of(cls, task: Task, epochs: int | None = None) -> Training:
        """Return the hyperparameters of a task's probe; `epochs`, if given, replaces the task's number of epochs."""
        return cls(
            learning_rate=task.learning_rate,
            batch_size=task.batch_size,
            epochs=epochs or task.epochs,
            rows=None if task.train_rows == "1" else task.train_rows,
            resampled=bool(task.resample_training),
        )

    def row_count(self, available: int) -> int:
        """Return the number of training rows to learn from, at least one; raise `InputError` if there are fewer."""
        if isinstance(self.rows, int) and self.rows > available:
            raise InputError(
                f"train_rows is {self.rows:,}, but the corpus has {available:,} training rows; set a smaller number."
            )
        share = self.rows if isinstance(self.rows, int) else int(Fraction(self.rows or 1) * available)
        return max(1, share)

    @classmethod
    def of_probe(cls, task: Task, batch_size: int = 1) -> Training:
        """Return the hyperparameters of a task's probe; if it has none, zero epochs in batches of this size."""
        return cls.of(task) if task.target.probed else cls.none(batch_size)

    @classmethod
    def none(cls, batch_size: int = 1) -> Training:
        """Return hyperparameters with which nothing is trained."""
        return cls(learning_rate=0, batch_size=batch_size, epochs=0)


class OfTask(OfEncoding):
    """A stage that uses the loss or the outcomes of a task.

    The metric determines the objective. Changing to another metric with the same objective changes no number.
    """

    unrecorded = frozenset({"metric"})

    training: Training
    metric: str | None = None

    @property
    def target(self) -> Target:
        """The target that a model has to predict."""
        return measure_of(self.metric or "").target

    def recorded(self) -> dict[str, object]:
        return super().recorded() | ({} if self.metric is None else self.target.recorded)


class OfCorpus(Settings):
    """A corpus; `source` contains the digests of its files, by split or name."""

    row_keys: ClassVar[tuple[str, ...]] = ("train_limit",)
    """Keys that select rows. Only the texts record them, which are an input of the other stages."""

    corpus: Corpus
    source: dict[str, str]

    def recorded(self) -> dict[str, object]:
        """Return the settings with file formats, and slices of rows, instead of paths."""
        recorded = super().recorded()
        left_out = {"slots", *self.row_keys}
        corpus = self.corpus.model_dump(mode="json", exclude_none=True, exclude_defaults=True, exclude=left_out)
        if isinstance(self.corpus, InFiles):
            corpus["files"] = {split: PurePath(path).suffix.lower() for split, path in self.corpus.files if path}
        return recorded | {"corpus": corpus}


class TextsOf(OfCorpus):
    """Stage *texts*: the texts of a corpus as one table."""

    stage = "texts"
    function = "papa.data.prepare:prepare_texts"
    row_keys = ()


class LabelsOf(OfCorpus):
    """Stage *labels*: the labels of a task, in the order of its texts. The metric determines their kind."""

    stage = "labels"
    version = 2
    function = "papa.data.prepare:prepare_labels"
    unrecorded = frozenset({"metric"})

    label: str
    labels: tuple[str, ...] | None = None
    metric: str


class SubsetsOf(OfCorpus):
    """Stage *subsets*: the subset of each example or word; every subset is also scored separately."""

    stage = "subsets"
    function = "papa.data.prepare:prepare_subsets"

    subset: str


class ClustersOf(OfCorpus):
    """Stage *clusters*: the cluster of each example, from a column; intervals resample whole clusters."""

    stage = "clusters"
    function = "papa.data.prepare:prepare_clusters"

    cluster: str


class TokensOf(OfModel):
    """Stage *tokens*: the texts of a corpus, tokenized for a model and laid out in slots."""

    stage = "tokens"
    function = "papa.data.tokenize:tokenize_corpus"

    slots: int
    style: str
    blocks: bool


class AverageOf(OfEncoding):
    """Stage *average*: averages of every head over a corpus; `kind` is one of `AVERAGED`."""

    stage = "average"
    function = "papa.method.corpus_averages:average_corpus"

    kind: str = "average"


class Gating(Settings):
    """Settings for learning λ, or the probe whose loss weighs heads."""

    training: Training
    seed: int
    encoder_dropout: bool


class LambdaOf(OfTask, Gating):
    """Stage *lambda*: λ, the learned weight of every head's attention relative to its constant."""

    stage = "lambda"
    function = "papa.method.head_weights:train_lambda"

    constant: str

    def recorded(self) -> dict[str, object]:
        return super().recorded() | {"masked": self.target.probed and not self.target.labelled}


class WeightsOf(OfTask, Gating):
    """Stage *weights*: the mean absolute gradient of each head's gate, from the training texts of a task."""

    stage = "weights"
    function = "papa.method.head_weights:weigh_heads"

    constant: str


class OrderFromWeights(Settings):
    """Stage *rank*: an order of heads by their weights."""

    stage = "rank"
    function = "papa.method.orders:rank_heads"

    order: str  # the name of the order


class OrderFromModel(OfModel):
    """Stage *order*: an order of heads that needs no text. Only random orders depend on the seed."""

    stage = "order"
    function = "papa.method.orders:order_heads"
    unrecorded = frozenset({"file"})

    order: str
    seed: int
    # the list of heads, if the order is one, and `digest` that of its content; None if the file is unknown
    file: str | None = None
    digest: str | None = None


class HiddenOf(OfEncoding):
    """Stage *hidden*: the hidden states of a corpus under a variant."""

    stage = "hidden"
    function = "papa.method.features:extract_features"

    variant: str


class ProbeOf(OfTask):
    """Stage *probe*: a trained probe for each seed, and its outcomes on all validation examples.

    The files may also contain other seeds than those in `seeds`. Nothing is trained if the model's prediction head
    makes the predictions. Streamed hidden states are computed during training.
    """

    stage = "probe"
    version = 4
    function = "papa.method.training:train_probe"
    unrecorded = frozenset({"streamed", "metric", "seeds"})

    task: str
    training: Training
    variant: str
    encoder_dropout: bool
    streamed: bool
    seeds: tuple[int, ...]

    @property
    def runs_encoder(self) -> bool:
        return self.streamed


class TaskOf(Settings):
    """The title of a task and the metric that scores it."""

    title: str
    metric: str


class GridView(BaseModel):
    """The parts of a grid that its table and figure need."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    title: str
    models: tuple[str, ...]
    constants: tuple[str, ...]
    orders: tuple[str, ...]
    fractions: tuple[str, ...]
    tasks: dict[str, str]  # the corpus of each task
    order: tuple[str, ...] = ()  # the tasks in the order in which they are shown, because JSON objects are unordered


class AnalysisOf(Settings):
    """An entry of `papa.config.analyses`; the table of the analysis records its parameters."""

    stage = "analysis"
    function = "papa.results.analysis:analyse"

    name: str  # the stage that the table records
    number: int = 1  # the version of that stage
    made_by: str  # the class of the analysis, as module:class
    parameters: dict[str, object]  # the fields of that class

    @property
    def stamp(self) -> tuple[str, int]:
        return self.name, self.number

    def recorded(self) -> dict[str, object]:
        return self.parameters


class PageOf(Settings):
    """Stage *page*: the HTML report; `config` contains what `Config.shown` returns."""

    stage = "page"
    version = 2
    function = "papa.results.page:write_report"

    config: dict[str, object]


_CLASSES: list[type[Settings]] = [
    value for value in globals().values() if isinstance(value, type) and issubclass(value, Settings)
]
STAGES = {settings.__name__: settings for settings in _CLASSES if settings.stage}
"""The settings of all stages, by class name."""
