"""The types of a config: what keys there are, what they mean, and which values and combinations are legal.

The JSON schema, the key table of config/README.md and the error messages are made from these types; `papa.config.reading`
reads them from YAML. Nothing heavy is imported, because the workflow reads this module whenever it is planned.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from itertools import product
from pathlib import Path
from typing import Annotated, ClassVar, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, JsonValue, model_validator

from papa.config.kinds import kind_of
from papa.errors import InputError

NAME = "[a-z0-9][a-z0-9_-]{0,63}"
"""Names (of configs, models, corpora, tasks, grids) become parts of paths; with these letters they stay in results/."""

RUN = "score_by_fraction"
"""What the table and the figure of `run` are called, beside those of the named grids."""

TAKEN = (RUN, "runs", "summary", "published", "score_and_drop")
"""Tables of every config, which no grid can be called."""

FORMATS = (".parquet", ".json", ".jsonl", ".csv", ".tsv", ".conll", ".txt")
"""Endings of the files that papa reads."""

SPLITS = ("train", "validation")

METRICS: dict[str, Literal["text", "token", "masked"]] = {
    "accuracy": "text",
    "f1": "text",
    "matthews_correlation": "text",
    "entity_f1": "token",
    "token_accuracy": "token",
    "negative_log_perplexity": "masked",
}
"""The metrics, and what the tasks that they score have labels on."""

LABELLED = {
    "text": "with one label per text (on a corpus without words)",
    "token": "with one label per word (on a corpus of words)",
    "masked": "without labels (masked language modelling)",
}

Metric = Literal["accuracy", "f1", "matthews_correlation", "entity_f1", "token_accuracy", "negative_log_perplexity"]
OrderName = Literal["lambda", "lambda-reversed", "first-layer-first", "last-layer-first", "random"]


def check_metric(metric: str, labelled: str, names: Sequence[str] | None = None) -> None:
    """Raise `InputError` if the metric is unknown, or not for tasks labelled so (in `LABELLED`), or not for these names.

    Args:
        metric: one of `METRICS`.
        labelled: what has a label, a key of `LABELLED`.
        names: the names of the labels, if they are known.
    """
    fitting = ", ".join(name for name, its in METRICS.items() if its == labelled)
    if metric not in METRICS:
        raise InputError(f"There is no metric {metric!r}; for a task {LABELLED[labelled]} there are {fitting}.")
    if METRICS[metric] != labelled:
        raise InputError(
            f"The metric {metric} is for tasks {LABELLED[METRICS[metric]]}, but this is a task {LABELLED[labelled]}; "
            f"use one of {fitting}."
        )
    if names and metric == "f1" and len(names) != 2:
        raise InputError(
            f"The metric f1 needs two labels, but there are {len(names)} ({', '.join(names)}); use accuracy."
        )
    unlike = [name for name in names or () if not re.fullmatch(r"O|[BIES]-.+", name)] if metric == "entity_f1" else []
    if unlike:
        few = ", ".join(repr(name[:40]) for name in unlike[:5])
        raise InputError(
            f"The metric entity_f1 needs labels O, B-..., I-... (and E-..., S-...), but there is {few}; "
            "use token_accuracy, or name the classes under labels."
        )


def fraction(written: object) -> str:
    """A fraction of heads such as "1/8", "0" or "1" in lowest terms; raises `InputError` for anything else."""
    match = re.fullmatch(r"([0-9]{1,6})(?:/([0-9]{1,6}))?", str(written))
    if not match or isinstance(written, bool) or int(match[2] or 1) == 0 or Fraction(match[0]) > 1:
        raise InputError(
            f'{written!r} is no fraction between 0 and 1; write it as "a/b", for example "1/8", or 0 or 1.'
        )
    return str(Fraction(match[0]))


def _name(written: str) -> str:
    if not re.fullmatch(NAME, written):
        raise InputError(
            "cannot be a name: a name is 1 to 64 characters long, each a-z, 0-9, _ or -, "
            "and begins with a letter or a digit."
        )
    return written


def unit(name: str) -> dict[str, JsonValue]:
    """What the schema says of the unit of a number."""
    return {"unit": name}


Name = Annotated[str, AfterValidator(_name)]
Text = Annotated[str, Field(min_length=1)]
Texts = Annotated[tuple[Text, ...], Field(min_length=1, strict=False)]
Seed = Annotated[int, Field(ge=0, le=2**32 - 1)]
Share = Annotated[str, BeforeValidator(fraction, json_schema_input_type=str | float)]
Shares = Annotated[tuple[Share, ...], Field(min_length=1, strict=False)]
Seeds = Annotated[tuple[Seed, ...], Field(min_length=1, strict=False)]
Orders = Annotated[tuple[OrderName, ...], Field(min_length=1, strict=False)]
Head = Annotated[tuple[Annotated[int, Field(ge=0)], Annotated[int, Field(ge=0)]], Field(strict=False)]
Positive = Annotated[int, Field(ge=1)]
HubId = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*(/[A-Za-z0-9][A-Za-z0-9._-]*)?$")]
Revision = Annotated[str, Field(pattern=r"^[A-Za-z0-9_+@-]+([./][A-Za-z0-9_+@-]+)*$")]
FilePath = Annotated[str, Field(pattern=r"^(?!.*//)[^{}<>]+$")]


class Block(BaseModel):
    """A block of keys: no others are allowed, and nothing can be changed."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", strict=True, allow_inf_nan=False, regex_engine="python-re", protected_namespaces=()
    )


class Run(Block):
    """Which models and tasks are run, and how."""

    models: Annotated[Texts, Field(description="names of models, each defined under models")]
    tasks: Annotated[Texts, Field(description="names of tasks, each defined under tasks")]
    constants: Annotated[
        Texts,
        Field(
            description="what replaces attention in the heads that are replaced: average, average-of-CORPUS, identity, "
            "toeplitz, zeros, average-trained, toeplitz-trained"
        ),
    ] = ("average",)
    orders: Annotated[
        Orders, Field(description="the order in which heads are replaced, for fractions between 0 and 1")
    ] = ("lambda",)
    fractions: Annotated[
        Shares,
        Field(
            description='fractions of heads that keep their own attention, "a/b" between 0 and 1',
            json_schema_extra=unit("share of heads"),
        ),
    ]
    seeds: Annotated[
        Seeds,
        Field(
            description="seeds of the probes, one probe for each seed; scores are averaged over the seeds",
            json_schema_extra=unit("none"),
        ),
    ]


def _nothing_needed(schema: dict[str, JsonValue]) -> None:
    """A grid takes from `run` what it leaves out."""
    schema.pop("required")
    properties = schema["properties"]
    assert isinstance(properties, dict)
    for rules in properties.values():
        assert isinstance(rules, dict)
        rules.pop("default", None)


class Grid(Run):
    """A grid of runs with a table and a figure of its own, completed from `run`."""

    model_config = ConfigDict(json_schema_extra=_nothing_needed)

    title: Annotated[
        Text | None, Field(description="title of its table and figure (if not given, the name of the grid)")
    ] = None


class Model(Block):
    """A model: its identity (hub, revision, sha256 or random) and its place on this machine (path or package)."""

    hub: Annotated[
        HubId | None, Field(description="id on the hub, owner/name; also the name of the folder in a mirror")
    ] = None
    revision: Annotated[Revision | None, Field(description="branch, tag or commit on the hub")] = None
    sha256: Annotated[
        str | None,
        Field(pattern=r"^[0-9a-f]{64}$", description="SHA-256 of model.safetensors, checked when the model is loaded"),
    ] = None
    path: Annotated[
        Text | None,
        Field(description="a local folder that contains the model; a place, so moving the folder reruns nothing"),
    ] = None
    package: Annotated[
        str | None,
        Field(
            pattern=r"^[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z_][A-Za-z0-9_]*)*$",
            description="an installed Python package with get_model_path(); a place, like path",
        ),
    ] = None
    random: Annotated[
        Literal["bert", "roberta", "deberta", "electra"] | None,
        Field(
            description="family of a small model with random weights, which papa makes itself: to try every stage "
            "without a download"
        ),
    ] = None


class Files(Block):
    """A local file for each split."""

    train: Annotated[FilePath, Field(description="file of the training split")]
    validation: Annotated[
        FilePath | None,
        Field(description="file of the validation split; a corpus that is only averaged does not need one"),
    ] = None

    def __getitem__(self, split: str) -> str:
        """The file of a split."""
        return dict(self)[split]


class Rows(Block):
    """How many examples are generated for each split."""

    train: Annotated[Positive, Field(description="number of training examples", json_schema_extra=unit("examples"))]
    validation: Annotated[
        Positive, Field(description="number of validation examples", json_schema_extra=unit("examples"))
    ]

    def __getitem__(self, split: str) -> int:
        """The number of examples of a split."""
        return dict(self)[split]


class Corpus(Block):
    """A corpus, from one source (hub, files or generated)."""

    hub: Annotated[
        HubId | None,
        Field(description="id of a dataset on the hub, owner/name; also the name of the folder in a mirror"),
    ] = None
    config: Annotated[
        str | None,
        Field(pattern=r"^[^./\\][^/\\]*(/[^./\\][^/\\]*)*$", description="config of the dataset on the hub"),
    ] = None
    revision: Annotated[Revision | None, Field(description="branch, tag or commit of the dataset on the hub")] = None
    files: Annotated[
        Files | None,
        Field(
            description="local files, one path for each split (.parquet, .json, .jsonl, .csv, .tsv, .conll, .txt); "
            "a .txt has one text on each line"
        ),
    ] = None
    columns: Annotated[Texts | None, Field(description="names of the columns of CoNLL files, which have no header")] = (
        None
    )
    generated: Annotated[Text | None, Field(description="form of a diagnostic task that papa makes itself")] = None
    rows: Annotated[Rows | None, Field(description="number of examples to generate for each split")] = None
    seed: Annotated[Seed | None, Field(description="seed of the generated texts", json_schema_extra=unit("none"))] = (
        None
    )
    train: Annotated[Text, Field(description="what the dataset on the hub calls its training split")] = "train"
    validation: Annotated[
        str,
        BeforeValidator(lambda given: "" if given is None else given),
        Field(
            description="what the dataset on the hub calls its validation split; null if it has none",
            json_schema_extra={"type": ["string", "null"]},
        ),
    ] = "validation"
    more_validation: Annotated[
        Texts | None,
        Field(
            description="further splits of the dataset on the hub, which are scored separately if score_validation is all"
        ),
    ] = None
    first: Annotated[
        Text | None,
        Field(description="column of the texts, or of the first texts of pairs; a .txt does not need it"),
    ] = None
    second: Annotated[Text | None, Field(description="column of the second texts of pairs")] = None
    words: Annotated[Text | None, Field(description="column of lists of words, for tasks that label words")] = None
    slots: Annotated[
        int | None,
        Field(
            ge=4,
            le=100_000,
            description="number of slots that an example is laid out in; what does not fit is cut, counted and "
            "reported; a corpus that is only averaged takes the slots of the task",
            json_schema_extra=unit("slots"),
        ),
    ] = None
    blocks: Annotated[
        bool,
        Field(
            description="whether the texts are running text, which is cut into blocks that fill the slots; for masked "
            "language modelling and averages"
        ),
    ] = False
    shards: Annotated[
        int,
        Field(
            ge=1,
            le=999,
            description="number of parts in which the corpus is averaged and encoded, one job each, for a cluster or "
            "for work that takes days; changing it makes averages and hidden states again",
            json_schema_extra=unit("parts"),
        ),
    ] = 1
    train_limit: Annotated[
        Positive | None,
        Field(
            description="the largest number of training rows; the sample never changes, and the results name it",
            json_schema_extra=unit("rows"),
        ),
    ] = None

    @model_validator(mode="before")
    @classmethod
    def _lines_are_texts(cls, given: object) -> object:
        """The lines of .txt files are the column `text`."""
        if not isinstance(given, dict) or given.get("words") or given.get("first"):
            return given
        files = given.get("files")
        paths = files.values() if isinstance(files, dict) else []
        lines = [Path(path).suffix.lower() == ".txt" for path in paths if isinstance(path, str)]
        return given | {"first": "text"} if lines and all(lines) else given

    @property
    def splits(self) -> tuple[str, ...]:
        """Training, validation if there is one, and those under `more_validation`."""
        named = (self.train, self.validation) if self.files is None else (self.files.train, self.files.validation)
        return (*(split for split, name in zip(SPLITS, named, strict=True) if name), *(self.more_validation or ()))


class Task(Block):
    """A task: labels on a corpus (or none, for masked language modelling), a metric and the training of its probes."""

    title: Annotated[
        Text | None, Field(description="what tables and figures call the task (if not given, its name)")
    ] = None
    corpus: Annotated[str, Field(description="name of the corpus, defined under corpora")]
    label: Annotated[
        Text | None,
        Field(
            description="column of the labels, one per example, or a list with one per word; a task without it is "
            "masked language modelling"
        ),
    ] = None
    labels: Annotated[
        tuple[Text, ...] | None,
        Field(
            min_length=2,
            strict=False,
            description="names of the labels in order (if not given, the names in the data or the sorted values)",
        ),
    ] = None
    subset: Annotated[
        Text | None,
        Field(
            description="column whose values divide the examples (or words) into subsets, which are also scored "
            "separately"
        ),
    ] = None
    published: Annotated[
        Literal["cola", "mrpc", "sst2", "mnli_mismatched", "ner", "pos"] | None,
        Field(description="task of the paper to compare with, if the model is one of the paper's"),
    ] = None
    metric: Annotated[Metric, Field(description="how predictions are scored")]
    learning_rate: Annotated[
        float,
        Field(
            gt=0,
            le=10,
            description="constant learning rate of AdamW; write 2.0e-5, because YAML reads 2e-5 as text",
            json_schema_extra=unit("none"),
        ),
    ]
    batch_size: Annotated[Positive, Field(description="examples per training step", json_schema_extra=unit("examples"))]
    epochs: Annotated[Positive, Field(description="passes over the training split", json_schema_extra=unit("epochs"))]
    features: Annotated[
        Literal["store", "stream"] | None,
        Field(
            description="whether hidden states are stored, or computed in every epoch (if not given, they are stored "
            "wherever possible)"
        ),
    ] = None

    @property
    def masked(self) -> bool:
        """Whether the task is masked language modelling: a task without labels."""
        return self.label is None


class Layout(Block):
    """How texts are laid out in slots."""

    style: Annotated[
        Literal["paper", "published_code"],
        Field(description="as in the paper, or as in its code, which cuts single texts to half of the slots"),
    ] = "paper"
    segments: Annotated[
        Literal["aligned", "published_code"],
        Field(
            description="segment ids of pairs aligned with the tokens, or at their old places as in the published code"
        ),
    ] = "aligned"


class Ranking(Block):
    """How heads are ranked."""

    seed: Annotated[
        Seed,
        Field(description="seed of the training that gives every head its weight", json_schema_extra=unit("none")),
    ] = 0
    draws: Annotated[
        int,
        Field(
            ge=1,
            le=99,
            description="how many random orders are drawn, each from the seed and its number; the summary contains "
            "their mean",
            json_schema_extra=unit("orders"),
        ),
    ] = 3
    epochs: Annotated[
        Positive | None,
        Field(
            description="passes over the training split in that training (if not given, as many as the task has)",
            json_schema_extra=unit("epochs"),
        ),
    ] = None


class Patterns(Block):
    """Pictures and statistics of the averaged attention of each model (the paper's Figure 4)."""

    tasks: Annotated[Texts, Field(description="tasks whose averages are described; each must be run")]
    heads: Annotated[
        tuple[Head, ...] | None,
        Field(
            min_length=1,
            strict=False,
            description="heads to draw, [layer, head] each, counted from 0 (if not given, those of the paper)",
            json_schema_extra=unit("layer, head"),
        ),
    ] = None


class Plots(Block):
    """Style of the figures."""

    width: Annotated[int, Field(ge=20, le=4000, description="width of one panel", json_schema_extra=unit("pixels"))] = (
        220
    )
    height: Annotated[
        int, Field(ge=20, le=4000, description="height of one panel", json_schema_extra=unit("pixels"))
    ] = 160
    scale: Annotated[
        float,
        Field(
            gt=0,
            le=10,
            description="resolution of the PNG",
            json_schema_extra=unit("pixels of the PNG per pixel of the figure"),
        ),
    ] = 2.0


class Threads(Block):
    """Threads of one job, independent of --cores, so that results are the same bits everywhere."""

    encoder: Annotated[
        int,
        Field(ge=1, le=1024, description="threads of a job that runs the encoder", json_schema_extra=unit("threads")),
    ] = 2
    probe: Annotated[
        int,
        Field(ge=1, le=1024, description="threads of a job that trains one probe", json_schema_extra=unit("threads")),
    ] = 1


class Config(Block):
    """What is run, on which models, texts and labels, and where this machine keeps them."""

    name: Annotated[Name, Field(description="name of this config; results go to results/<name>/")]
    run: Annotated[Run, Field(description="which of the models and tasks defined below are run, and how")]
    grids: Annotated[
        dict[Name, Grid],
        Field(
            description="further grids of runs by name, each with its own table and figure; a grid takes from run what "
            "it leaves out"
        ),
    ] = {}
    models: Annotated[dict[Name, Model], Field(min_length=1, description="models by name")]
    corpora: Annotated[
        dict[Name, Corpus],
        Field(
            min_length=1,
            description="texts by name; what depends on texts alone is computed once for all tasks on them",
        ),
    ]
    tasks: Annotated[dict[Name, Task], Field(min_length=1, description="tasks by name")]
    fidelity: Annotated[
        Literal["paper", "published_code"],
        Field(
            description="which one is followed if the paper and the published code differ; the default of layout, "
            "encoder_dropout and score_validation"
        ),
    ] = "paper"
    encoder_dropout: Annotated[
        bool,
        Field(
            description="whether the frozen encoder applies the dropout of its config while λ and probes are trained, "
            "as in the published code"
        ),
    ] = False
    score_validation: Annotated[
        Literal["reported", "all"],
        Field(
            description="which validation splits are scored: the one that a corpus reports, or those under "
            "more_validation as well"
        ),
    ] = "reported"
    layout: Annotated[Layout, Field(description="how texts are laid out in slots")] = Layout()
    ranking: Annotated[Ranking, Field(description="how heads are ranked")] = Ranking()
    patterns: Annotated[
        Patterns | None,
        Field(description="pictures and statistics of the averaged attention of each model (the paper's Figure 4)"),
    ] = None
    plots: Annotated[Plots, Field(description="style of the figures")] = Plots()
    hub_mirror: Annotated[
        Text | None,
        Field(
            description="folder laid out like the hub, owner/name/…, from which data and models are taken instead; a "
            "place",
            json_schema_extra={"type": ["string", "null"], "default": None},
        ),
    ] = None
    device: Annotated[
        str,
        Field(
            pattern=r"^(auto|cpu|mps|cuda(:[0-9]{1,2})?)$",
            description="where encoders run: auto (a GPU if there is one), cpu, mps, cuda or cuda:N; a place",
        ),
    ] = "auto"
    threads: Annotated[
        Threads,
        Field(description="threads of one job, independent of --cores, so that results are the same bits everywhere"),
    ] = Threads()
    precision: Annotated[
        Literal["float32", "bfloat16", "float16"],
        Field(
            description="what the frozen encoder computes in, by autocast unless it is float32; averages are summed in "
            "float64 in any case, and float16 is not used where gradients pass through the encoder"
        ),
    ] = "float32"
    token_budget: Annotated[
        Positive,
        Field(
            description="tokens that the encoder takes at once when it averages and when it stores hidden states",
            json_schema_extra=unit("tokens"),
        ),
    ] = 1024
    checkpoint_minutes: Annotated[
        float,
        Field(
            ge=0,
            description="minutes between two states that a long job saves, from which it continues if it is killed and "
            "started again (0 for every step)",
            json_schema_extra=unit("minutes"),
        ),
    ] = 10.0

    @model_validator(mode="before")
    @classmethod
    def _complete(cls, given: object) -> object:
        """Grids take from `run` what they leave out; the published code is the default of what `fidelity` names."""
        if not isinstance(given, dict):
            return given
        given = dict(given)
        run, grids, layout = given.get("run"), given.get("grids"), given.get("layout", {})
        if isinstance(run, dict) and isinstance(grids, dict):
            given["grids"] = {name: run | grid if isinstance(grid, dict) else grid for name, grid in grids.items()}
        if given.get("fidelity") == "published_code":
            given = {"encoder_dropout": True, "score_validation": "all"} | given
            if isinstance(layout, dict):
                given["layout"] = {"style": "published_code", "segments": "published_code"} | layout
        return given

    @property
    def analyses(self) -> dict[str, Grid]:
        """The grids of runs by name: `run` first, then `grids`."""
        return {RUN: Grid(**self.run.model_dump()), **self.grids}

    @property
    def pairs(self) -> list[tuple[str, str]]:
        """The models and tasks that are run together, each pair once."""
        grids = self.analyses.values()
        return list(dict.fromkeys(pair for grid in grids for pair in product(grid.models, grid.tasks)))

    @property
    def corpora_run(self) -> list[str]:
        """The corpora of the tasks that are run, and those that averages are made of, each once."""
        grids = self.analyses.values()
        used = [self.tasks[task].corpus for grid in grids for task in grid.tasks]
        used += [corpus for grid in grids for name in grid.constants if (corpus := kind_of(name).corpus)]
        return list(dict.fromkeys(used))

    @property
    def machine(self) -> Machine:
        """Where data and models lie on this machine, and what they run on."""
        places = {
            name: model.model_dump(include={"path", "package"}, exclude_none=True)
            for name, model in self.models.items()
        }
        return Machine(
            hub_mirror=self.hub_mirror,
            device=self.device,
            encoder_threads=self.threads.encoder,
            probe_threads=self.threads.probe,
            token_budget=self.token_budget,
            checkpoint_minutes=self.checkpoint_minutes,
            models={name: place for name, place in places.items() if place},
        )


@dataclass(frozen=True)
class Machine:
    """What may differ from machine to machine and never changes a path or, beyond rounding, a result.

    `models` maps a model's name to its place on this machine, `{"path": folder}` or `{"package": module}`;
    a model without a place is taken from the mirror or the hub.
    """

    hub_mirror: str | None = None
    device: str = "auto"
    encoder_threads: int = 2
    probe_threads: int = 1
    token_budget: int = 1024
    checkpoint_minutes: float = 10
    models: dict[str, dict[str, str]] = field(default_factory=dict)

    VARIABLE: ClassVar[str] = "PAPA_MACHINE"

    @classmethod
    def current(cls) -> Machine:
        """The machine as the workflow describes it in the environment variable PAPA_MACHINE, else the defaults."""
        return cls(**json.loads(os.environ.get(cls.VARIABLE, "{}")))
