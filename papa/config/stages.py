"""What each stage is told: everything that its numbers depend on beside its input files, and nothing else.

`VERSIONS` has a number for each stage. Whoever changes the numbers of a stage raises it, and everything that was made by
the stage before is made again; a comment or a faster way to the same numbers reruns nothing.
"""

from __future__ import annotations

from pathlib import PurePath
from typing import Any, ClassVar

from pydantic import BaseModel, ConfigDict

from papa.config.settings import Corpus, Plots

VERSIONS = {
    "texts": 1,
    "labels": 1,
    "subsets": 1,
    "tokens": 1,
    "average": 1,
    "lambda": 1,
    "rank": 1,
    "order": 1,
    "hidden": 1,
    "probe": 1,
    "summary": 1,
    "grid": 1,
    "drops": 1,
    "published": 1,
    "patterns": 1,
    "page": 1,
}


class Settings(BaseModel):
    """What a stage is told. `recorded` is what its artefacts say of that, which leaves out where things lie."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    places: ClassVar[frozenset[str]] = frozenset()
    """Fields that say where things lie; no number depends on them."""

    def recorded(self) -> dict[str, Any]:
        """The settings as an artefact records them: as JSON, without places and without what is not given."""
        return self.model_dump(mode="json", exclude_none=True, exclude=set(self.places))


class ModelId(Settings):
    """Which model: by its name in the config, and where its files come from. Its weights are an input, not a setting.

    Args:
        weights: SHA-256 of the weights, if they are on this machine when the workflow begins.
    """

    places = frozenset({"hub", "revision", "random", "weights"})

    name: str
    hub: str | None = None
    revision: str | None = None
    random: str | None = None
    weights: str | None = None

    @property
    def origin(self) -> str:
        """Where the model comes from, in one line."""
        if self.random is not None:
            return f"random {self.random}"
        return "a folder" if self.hub is None else f"{self.hub}@{self.revision or 'main'}"


class _OfModel(Settings):
    model: ModelId

    def recorded(self) -> dict[str, Any]:
        return super().recorded() | {"model": self.model.recorded()}


class Encoding(Settings):
    """A model, and what it computes in."""

    model: ModelId
    precision: str = "float32"


class _OfEncoding(Settings):
    model: Encoding

    def recorded(self) -> dict[str, Any]:
        own = {"name": self.model.model.name, "precision": self.model.precision}
        return super().recorded() | {"model": own}


class Training(Settings):
    """How something is trained."""

    learning_rate: float
    batch_size: int
    epochs: int


class _OfCorpus(Settings):
    """A corpus as it is read. `source` has digests of what it is read from, by split or by name."""

    corpus: Corpus
    source: dict[str, str]

    def recorded(self) -> dict[str, Any]:
        """With forms of files in place of their paths; where the content is known, its revision says nothing more."""
        corpus = {key: value for key, value in self._read().items() if key not in ("slots", "shards")}
        if self.corpus.files is not None:
            corpus["files"] = {split: PurePath(path).suffix.lower() for split, path in corpus["files"].items()}
        if self.source and self.corpus.hub is not None:
            corpus.pop("revision", None)
        return super().recorded() | {"corpus": corpus}

    def _read(self) -> dict[str, Any]:
        return self.corpus.model_dump(mode="json", exclude_none=True)


class TextsOf(_OfCorpus):
    """Stage *texts*: the texts of a corpus as one table."""


class LabelsOf(_OfCorpus):
    """Stage *labels*: the labels of a task, row by row beside its texts. The metric is only checked against them."""

    places = frozenset({"metric"})

    label: str
    labels: tuple[str, ...] | None = None
    metric: str


class SubsetsOf(_OfCorpus):
    """Stage *subsets*: which examples or words are also scored apart."""

    subset: str


class TokensOf(_OfModel):
    """Stage *tokens*: the texts of a corpus in the slots of a model."""

    slots: int
    style: str
    segments: str
    blocks: bool


class AverageOf(_OfEncoding):
    """Stage *average*: the average attention of every head over a corpus, or over a part of it."""

    part: str


class MergeOf(Settings):
    """Stage *average*, of a corpus in parts: the sums over all of them."""


class LambdaOf(_OfEncoding):
    """Stage *lambda*: how much every head needs its own attention, learned with a probe."""

    training: Training
    masked: bool
    seed: int
    constant: str
    encoder_dropout: bool


class RankOf(Settings):
    """Stage *rank*: heads in an order that is made of λ."""

    order: str


class OrderOf(_OfModel):
    """Stage *order*: heads in an order that needs no text. Only a random one depends on the seed."""

    order: str
    seed: int


class HiddenOf(_OfEncoding):
    """Stage *hidden*: all hidden states of a corpus, or of a part of it, with some heads replaced."""

    variant: str
    part: str


class ProbeOf(_OfEncoding):
    """Stage *probe*: one probe, trained and scored. Streamed hidden states are computed when they are read."""

    places = frozenset({"streamed"})

    task: str
    metric: str
    training: Training
    seed: int
    variant: str
    encoder_dropout: bool
    streamed: bool


class RunsOf(Settings):
    """Stage *summary*: all runs as a table, and their means. `titles` says what people call the tasks."""

    titles: dict[str, str]


class GridOf(Settings):
    """Stage *grid*: the table and the figure of one grid, which show these values in this order."""

    name: str
    title: str
    models: tuple[str, ...]
    constants: tuple[str, ...]
    orders: tuple[str, ...]
    fractions: tuple[str, ...]
    tasks: dict[str, str]
    """The tasks, and the corpus of each."""
    plots: Plots
    drawn: bool


class DropsOf(Settings):
    """Stage *drops*: original scores beside what is lost when every head is replaced."""

    plots: Plots


class PublishedOf(Settings):
    """Stage *published*: numbers beside those that the paper prints.

    Args:
        models: the hub id of each model.
        tasks: the published task of each task.
        more_settings: published settings of constants that were averaged over another corpus.
        values: digest of the published numbers.
    """

    models: dict[str, str | None]
    tasks: dict[str, str]
    more_settings: dict[str, str]
    values: str


class PatternsOf(Settings):
    """Stage *patterns*: what the averaged attention of each head looks like, and pictures of some heads."""

    heads: tuple[tuple[int, int], ...] | None
    plots: Plots


class PageOf(Settings):
    """Stage *page*: everything on one page. `config` is what was run, without places."""

    config: dict[str, Any]
