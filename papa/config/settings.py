"""The types of a config: its keys, their descriptions, and the valid values and combinations.

The key table in config/README.md and the error messages are generated from these types, which `papa.config.reading`
reads from YAML. Planning imports this module, so it imports nothing heavy.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from fractions import Fraction
from itertools import product
from pathlib import Path
from textwrap import shorten
from typing import TYPE_CHECKING, Annotated, Any, Literal, Union

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Discriminator,
    Field,
    Tag,
    model_validator,
)

from papa.config.margin import SHARE, Margin, margin_for
from papa.config.measures import METRICS, TEXT, WORD, Target, check_metric
from papa.config.variant import (
    CONTEXT_FREE,
    LIST_NAME_PATTERN,
    LIST_PREFIX,
    NAMES,
    ORDERS,
    TRAINED_NAMES,
    Constant,
)
from papa.errors import InputError

NAME_PATTERN = "[a-z0-9][a-z0-9_-]{0,63}"
"""Names of configs, models, corpora, tasks and grids. They become parts of paths and must stay within results/."""

RUN = "scores_by_heads_replaced"  # the name of the table and figure of `run`; other grids have names in the config

RESERVED = (
    RUN,
    "runs",
    "summary",
    "claims",
    "outcomes",
    "heads",
    "reliance",
    "stability",
    "score_and_drop",
    "published",
    "patterns",
)
"""The names of tables that papa writes, which no grid can have."""

FORMATS = (".parquet", ".json", ".jsonl", ".csv", ".tsv", ".conll", ".conllu", ".txt")
"""The extensions of files that papa can read."""
TO_PARQUET = "save each split of it with to_parquet of the library datasets"
ADVICE = {
    "": f"name it by its format ({', '.join(FORMATS)}), or, if save_to_disk wrote it, {TO_PARQUET}",
    ".arrow": TO_PARQUET,
    **dict.fromkeys((".gz", ".bz2", ".xz", ".zip", ".zst", ".tar", ".tgz"), "unpack it first"),
    **dict.fromkeys((".xlsx", ".xls", ".ods"), "save it as .csv"),
}
"""Advice on files that papa cannot read, by their extension."""

SPLITS = ("train", "validation")

OF_MACHINES = dict.fromkeys(
    ["hub_mirror", "device", "threads", "token_budget", "keep_hidden_states"], True
) | {"models": {"__all__": {"path", "package"}}}
"""Keys that may differ from machine to machine; no result depends on them, beyond rounding."""

if TYPE_CHECKING:
    Metric = str
    OrderName = str
    Floor = str
else:
    Metric = Literal[tuple(METRICS)]
    OrderName = Literal[ORDERS]
    Floor = Literal[CONTEXT_FREE]


def number(written: object) -> object:
    """Return what is written as a number such as 2e-5, which YAML reads as text."""
    is_number = isinstance(written, str) and re.fullmatch("[0-9]+[eE][+-]?[0-9]+", written)
    return float(str(written)) if is_number else written


def fraction(written: object) -> str:
    """Return a fraction of heads, such as "1/8" or 0.125, in lowest terms; raise `InputError` if it is invalid."""
    match = re.fullmatch(r"[0-9]{1,6}/0*[1-9][0-9]{0,5}|[0-9]{1,6}|[0-9]\.[0-9]{1,3}", str(written))
    if not match or isinstance(written, bool) or Fraction(match[0]) > 1:
        raise InputError(
            f'{written!r} is not a fraction between 0 and 1; write it as "a/b", for example "1/8", or as a number with '
            "at most three decimals."
        )
    return str(Fraction(match[0]))


def _listed(written: object) -> object:
    """Return a single name as a list, and null as an empty list."""
    if isinstance(written, str):
        return (written,)
    return tuple(written) if isinstance(written, list) else written or ()


def margins_of(written: object) -> tuple[str, ...]:
    """Return one or several margins in their usual form; a share applies to all metrics, so it is the only one."""
    listed = written if isinstance(written, list | tuple) else [written]
    margins = [Margin.parse(each) for each in listed]
    units = {margin.unit for margin in margins}
    if not margins or len(units) < len(margins) or (len(margins) > 1 and SHARE in units):
        raise InputError(
            "give either one share of attention's contribution, or at most one margin in points and one in nats."
        )
    return tuple(map(str, margins))


def _once(values: tuple[Any, ...] | None) -> tuple[Any, ...] | None:
    """Refuse a list that contains a value twice, or two lists of heads with one name."""
    names = Counter(getattr(value, "order", value) for value in values or ())
    for name, times in names.items():
        if times > 1:
            raise InputError(f"{name!r} is listed twice; list each value once.")
    return values


def _name(written: str) -> str:
    if not re.fullmatch(NAME_PATTERN, written):
        raise InputError(
            f"{written!r} cannot be a name: a name has 1 to 64 characters (a-z, 0-9, _ and -), and the first is a "
            "letter or digit."
        )
    return written


def _not_the_cache(name: str) -> str:
    if name == "cache":
        raise InputError(
            "'cache' is the folder of the files that all studies share; choose another name."
        )
    return name


def unit(name: str) -> Any:
    """Name the unit of a number for the key table."""
    return Field(json_schema_extra={"unit": name})


Name = Annotated[str, AfterValidator(_name)]
Text = Annotated[str, Field(min_length=1)]
# for tuples, because YAML has only lists, which strict pydantic refuses
NonEmpty = Field(min_length=1, strict=False)
Texts = Annotated[tuple[Text, ...], NonEmpty]
Once = AfterValidator(_once)
Seed = Annotated[int, Field(ge=0, le=2**32 - 1)]
Share = Annotated[str, BeforeValidator(fraction, json_schema_input_type=str | float)]
Shares = Annotated[tuple[Share, ...], NonEmpty, Once]
Seeds = Annotated[tuple[Seed, ...], NonEmpty, Once]
Index = Annotated[int, Field(ge=0)]
Head = Annotated[tuple[Index, Index], Field(strict=False)]
Positive = Annotated[int, Field(ge=1)]
Margins = Annotated[
    tuple[str, ...], BeforeValidator(margins_of, json_schema_input_type=str | float | list[str])
]
HUB_NAME = "[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9_])?"
# the hub allows no -- and .. in names; -- separates owner and name in its cache
HUB_ID = rf"(?!.*(--|[.][.])){HUB_NAME}(/{HUB_NAME})?"
HubId = Annotated[str, Field(pattern=f"^{HUB_ID}$")]
Revision = Annotated[str, Field(pattern=r"^[A-Za-z0-9_+@-]+([./][A-Za-z0-9_+@-]+)*$")]
FilePath = Annotated[str, Field(pattern=r"^(?!.*//)[^{}<>]+$")]


class Block(BaseModel):
    """An immutable block of keys that rejects unknown keys; the docstrings of its keys are in the key table."""

    # pydantic's own regex engine has no look-ahead, which patterns of ids and paths need
    model_config = ConfigDict(
        frozen=True, extra="forbid", strict=True, allow_inf_nan=False, regex_engine="python-re",
        use_attribute_docstrings=True,
        defer_build=True,  # because most jobs import this module and read no config
    )  # fmt: skip


def _by_key(**kinds: type[Block]) -> object:
    """Return the type of a block of one of several kinds: the first whose key is written, or else the last."""

    # for a plain union, pydantic would report the errors of every kind
    def kind_of(written: object) -> str:
        if isinstance(written, Block):
            return type(written).__name__
        present = written if isinstance(written, Mapping) else {}
        return next(
            (kinds[key] for key in kinds if present.get(key) is not None), [*kinds.values()][-1]
        ).__name__

    tagged = (Annotated[kind, Tag(kind.__name__)] for kind in kinds.values())
    return Annotated[Union[tuple(tagged)], Discriminator(kind_of)]  # noqa: UP007


class HeadFile(Block):
    """An order of heads by a list in a file."""

    file: FilePath
    """CSV with the columns layer and head, counted from 0; the head in the first line is replaced last, and heads that
    are not listed are replaced before all others, from the first layer on"""
    name: Annotated[
        str,
        Field(pattern=f"^{LIST_NAME_PATTERN}$"),
        Field(
            description=f"name of the list: a-z, 0-9 and -, after a letter; the order is called {LIST_PREFIX}NAME"
        ),
    ]

    @property
    def order(self) -> str:
        """The name of the order."""
        return LIST_PREFIX + self.name


AnyOrder = Annotated[
    Annotated[OrderName, Tag("[name]")] | Annotated[HeadFile, Tag("HeadFile")],
    Discriminator(
        lambda written: "HeadFile" if isinstance(written, Mapping | HeadFile) else "[name]"
    ),
]
Orders = Annotated[tuple[AnyOrder, ...], NonEmpty, Once]
AnyConstant = Annotated[str, AfterValidator(lambda name: Constant.parse(name).name)]
Constants = Annotated[tuple[AnyConstant, ...], NonEmpty, Once]


class RunSettings(Block):
    """The models and tasks to run, and the constants, orders, fractions and seeds to run them with."""

    models: Annotated[Texts, Once]
    """names of models, each defined under `models`"""
    tasks: Annotated[Texts, Once]
    """names of tasks, each defined under `tasks`"""
    constants: Annotated[
        Constants,
        Field(
            description=f"constants that replace the attention of a head: {', '.join(NAMES)}, and trained ones: "
            f"{', '.join(TRAINED_NAMES)}"
        ),
    ] = ("average",)
    orders: Orders = ("lambda",)
    """orders in which heads are replaced, for fractions between 0 and 1; a list of heads in a file is {file: PATH,
    name: NAME}"""
    fractions: Annotated[Shares, unit("share of heads")]
    """fractions of heads that keep their attention, each "a/b" or a number between 0 and 1"""
    seeds: Annotated[Seeds, unit("none")] = (1, 2, 3, 4, 5)
    """seeds of the probes; one probe is trained for each seed, and scores are averaged"""

    @property
    def lists(self) -> dict[str, HeadFile]:
        """The orders by lists in files, by their names."""
        return {order.order: order for order in self.orders if isinstance(order, HeadFile)}

    @property
    def order_names(self) -> tuple[str, ...]:
        """The names of all orders, without the number of a draw or a seed."""
        return tuple(order.order if isinstance(order, HeadFile) else order for order in self.orders)


class Grid(RunSettings):
    """A grid of runs with its own table and figure; a missing key has its value in `run`."""

    title: Text | None = None
    """title of the grid's table and figure (default: its name)"""


class _Model(Block):
    """A model: its identity (hub, revision, sha256) and its location on this machine (path, package)."""

    hub: HubId | None = None
    """id on the hub, owner/name (a folder is a `path`); a mirror has a folder of that name"""
    revision: Revision | None = None
    """branch, tag or commit on the hub"""
    sha256: Annotated[str | None, Field(pattern=r"^[0-9a-f]{64}$")] = None
    """SHA-256 of model.safetensors, checked when a run is planned"""

    @model_validator(mode="after")
    def _has_a_hub_for_the_revision(self) -> _Model:
        if self.revision and not self.hub:
            raise InputError(
                "`revision` is one on the hub, but there is no `hub`; add it, or remove `revision`."
            )
        return self


class HubModel(_Model):
    """A model on the hub, in its cache or in a mirror."""

    hub: HubId


class FolderModel(_Model):
    """A model in a folder."""

    path: Text
    """a local folder that contains the model; moving the folder reruns nothing"""


class PackageModel(_Model):
    """A model in an installed package."""

    package: Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_-]*(\.[A-Za-z_][A-Za-z0-9_-]*)*$")]
    """an installed Python package with get_model_path(), or its name for pip; like `path`, only a location"""


SLICE = re.compile(r"\[([0-9]*):([0-9]*)\]$")
"""A slice of rows at the end of a split's name or file, as in train[1000:]; the first row has the number 0."""


def suffix_of(path: str) -> str:
    """Return the extension of a data file, which determines its format; a slice of rows may follow it."""
    return Path(SLICE.sub("", path)).suffix.lower()


def readable(path: str) -> str:
    """Return the path of a data file; raise `InputError` if papa cannot read its format."""
    suffix = suffix_of(path)
    if suffix not in FORMATS:
        advice = ADVICE.get(suffix, f"convert it to one of these: {', '.join(FORMATS)}")
        raise InputError(f"{path!r} has a format that papa cannot read; {advice}.")
    return path


DataFile = Annotated[FilePath, AfterValidator(readable)]


class Files(Block):
    """A local file, or a slice of its rows, for each split."""

    train: DataFile
    """file of the training split, or a slice of its rows, such as data.csv[1000:]"""
    validation: DataFile | None = None
    """file of the validation split, or a slice of its rows, such as data.csv[:1000]; not needed for a corpus that is
    only averaged"""


class _Corpus(Block):
    """A corpus of texts, pairs, words or running text; its source is the hub (`OnHub`) or files (`InFiles`)."""

    first: Text | None = None
    """column of the texts, or of the first texts of pairs; not needed for .txt files"""
    second: Text | None = None
    """column of the second texts of pairs"""
    words: Text | None = None
    """column of lists of words, for tasks that label words"""
    slots: Annotated[int | None, Field(ge=4, le=100_000), unit("slots")] = None
    """number of slots per example; longer texts are truncated, which is counted and reported; a corpus that is only
    averaged uses the slots of the task"""
    blocks: bool = False
    """whether the texts are running text, to be cut into blocks that fill the slots; for language modelling (masked or
    next tokens) and averages"""
    train_limit: Annotated[Positive | None, unit("rows")] = None
    """maximum number of training rows; the sample is always the same, and is reported in the results"""
    cluster: Annotated[Text | Annotated[int, Field(ge=2)] | None, unit("examples")] = None
    """unit that intervals resample: the column that names each example's cluster, such as its document, or the number
    of consecutive rows in use in a cluster (default: every example by itself); changing it reruns probes on samples"""

    @model_validator(mode="after")
    def _has_columns_of_one_kind(self) -> _Corpus:
        if not self.first and not self.words:
            raise InputError(
                "there is no column of texts; set `first`, or `words` for lists of words."
            )
        for pair in ("words first", "words second", "words blocks", "blocks second"):
            key, other = pair.split()
            if getattr(self, key) and getattr(self, other):
                raise InputError(f"`{key}` and `{other}` do not go together; remove one of them.")
        if self.blocks and isinstance(self.cluster, str):
            raise InputError(
                "with `blocks`, `cluster` must be a number of consecutive blocks, not a column."
            )
        return self

    @property
    def target(self) -> Target:
        """The target of tasks with labels on this corpus."""
        return WORD if self.words else TEXT


class OnHub(_Corpus):
    """A corpus on the hub."""

    hub: HubId
    """id of a dataset on the hub, owner/name; a mirror has a folder of that name"""
    config: Annotated[str | None, Field(pattern=r"^[^./\\][^/\\]*(/[^./\\][^/\\]*)*$")] = None
    """config of the dataset on the hub"""
    revision: Revision | None = None
    """branch, tag or commit of the dataset on the hub"""
    train: Text = "train"
    """name of the training split of the dataset on the hub, or a slice of its rows, such as train[1000:]"""
    validation: Annotated[
        tuple[Text, ...], BeforeValidator(_listed, json_schema_input_type=str | list[str])
    ] = ("validation",)
    """name of the validation split of the dataset on the hub, or a slice of rows, such as train[:1000]; or a list: all
    are scored (if tasks have labels), and the first is reported; null if it has none"""

    @model_validator(mode="after")
    def _has_splits_with_different_names(self) -> OnHub:
        taken = ["train", "validation", "all", self.train, *self.validation[:1]]
        for split in self.validation[1:]:
            if split in taken:
                raise InputError(
                    f"validation lists {split!r}, a name already in use; list each further split once, "
                    "but not the training or validation split, and no split called train, validation or all."
                )
            taken.append(split)
        return self

    @property
    def sources(self) -> dict[str, str]:
        """The name on the hub of the training split, of the validation split if there is one, and of further ones."""
        names = dict(zip(("validation", *self.further_splits), self.validation, strict=False))
        return {"train": self.train} | names

    @property
    def further_splits(self) -> tuple[str, ...]:
        """The validation splits after the first, which is reported; they are scored separately."""
        return self.validation[1:]


class InFiles(_Corpus):
    """A corpus in local files."""

    files: Files
    """local files, one path for each split (.parquet, .json, .jsonl, .csv, .tsv, .conll, .conllu, .txt); each line
    of a .txt file is a text"""
    columns: Texts | None = None
    """names of the columns of files without a line of names (.csv, .tsv, .conll)"""

    @model_validator(mode="before")
    @classmethod
    def _name_column_of_lines(cls, written: object) -> object:
        """Set `first` to `text`, the column that contains the lines of .txt files."""
        if not isinstance(written, Mapping) or written.get("words") or written.get("first"):
            return written
        files = written.get("files")
        paths = files.values() if isinstance(files, Mapping) else []
        suffixes = {suffix_of(path) for path in paths if isinstance(path, str)}
        return {**written, "first": "text"} if suffixes == {".txt"} else written

    @property
    def sources(self) -> dict[str, str]:
        """The file, or the slice of its rows, of the training split, and of the validation split if there is one."""
        return {split: path for split, path in self.files if path}

    @property
    def paths(self) -> dict[str, str]:
        """The file of each split, without a slice of rows."""
        return {split: SLICE.sub("", path) for split, path in self.sources.items()}

    @property
    def further_splits(self) -> tuple[str, ...]:
        """Nothing, because only datasets on the hub have further validation splits."""
        return ()


class Task(Block):
    """A task: a corpus, its labels, a metric and the hyperparameters of its probes.

    A task without labels is masked language modelling, or language modelling by the model's own head. That head needs
    no probe, so learning rate, batch size and epochs only apply to λ.
    """

    title: Text | None = None
    """title of the task in tables and figures (default: its name)"""
    corpus: str
    """name of the corpus, defined under `corpora`"""
    label: Text | None = None
    """column of the labels: one per example, or a list with one per word; tasks of language modelling have none"""
    labels: Annotated[tuple[Text, ...] | None, Field(min_length=2, strict=False), Once] = None
    """names of the labels in order (default: the names in the data, or the sorted values); f1 is that of the second"""
    subset: Text | None = None
    """column that divides the examples (or words) into subsets, which are also scored separately"""
    published: Literal["cola", "mrpc", "sst2", "mnli_mismatched", "ner", "pos"] | None = None
    """task of the paper to compare with, if the model is one of the paper's"""
    metric: Metric
    """metric that scores predictions"""
    learning_rate: Annotated[float, Field(gt=0, le=10), BeforeValidator(number), unit("none")]
    """constant learning rate of AdamW"""
    batch_size: Annotated[Positive, unit("examples")]
    """examples per training step"""
    epochs: Annotated[Positive, unit("epochs")]
    """passes over the training split"""

    @property
    def target(self) -> Target:
        """The kind of task, which follows from the metric."""
        return METRICS[self.metric].target

    @model_validator(mode="after")
    def _fits_metric(self) -> Task:
        target = self.target
        if target.labelled and self.label is None:
            raise InputError(
                f"a task {target.description} needs `label`, the column of the labels; set it, or change `metric`."
            )
        for key in () if target.labelled else ("label", "labels", "subset", "published"):
            if getattr(self, key) is not None:
                raise InputError(
                    f"a task {target.description} has no `{key}`; remove it, or change `metric`."
                )
        return self


if TYPE_CHECKING:
    ModelSettings = HubModel | FolderModel | PackageModel
    Corpus = OnHub | InFiles
else:
    ModelSettings = _by_key(path=FolderModel, package=PackageModel, hub=HubModel)
    Corpus = _by_key(files=InFiles, hub=OnHub)


class Ranking(Block):
    """Ranking of heads."""

    seeds: Annotated[Seeds, unit("none")] = (0,)
    """seeds of the training for λ and gradient; each seed gives one order of heads, and with several seeds, intervals
    include the differences between orders"""
    draws: Annotated[int, Field(ge=1, le=99), unit("orders")] = 3
    """number of random orders; the summary contains their mean"""
    epochs: Annotated[Positive | None, unit("epochs")] = None
    """passes over the training split when orders are learned (default: the epochs of the task)"""


class Patterns(Block):
    """Pictures and statistics of the averaged attention of each model (the paper's Figure 4)."""

    tasks: Texts
    """tasks whose average attention is shown; each must be a task that is run"""
    heads: Annotated[tuple[Head, ...] | None, NonEmpty, unit("layer, head")] = None
    """heads to draw, [layer, head] each, counted from 0 (default: those of the paper), if the model has them"""


class Config(Block):
    """A config: the runs of a study, with their models, texts and labels, and their locations on this machine."""

    name: Annotated[Name, AfterValidator(_not_the_cache)]
    """name of this config; results go to results/<name>/"""
    run: RunSettings
    """models and tasks to run, and the constants, orders, fractions and seeds to run them with"""
    grids: dict[Name, Grid] = {}
    """further grids of runs by name, each with its own table and figure; a key that a grid omits has its value in
    `run`"""
    models: Annotated[dict[Name, ModelSettings], Field(min_length=1)]
    """models by name"""
    corpora: Annotated[dict[Name, Corpus], Field(min_length=1)]
    """corpora by name; work that depends only on a corpus is done once for all its tasks"""
    tasks: Annotated[dict[Name, Task], Field(min_length=1)]
    """tasks by name"""
    fidelity: Literal["paper", "published_code"] = "paper"
    """version to follow if the paper and the published code differ; it sets the default of `layout`, and whether the
    frozen encoder applies its dropout while λ and probes are trained, as in the published code"""
    margin: Margins = ("10%",)
    """what a task may lose if heads count as replaceable, chosen before the run: a share of what attention contributes
    to it, such as 10%, or points of its metric, such as 1 point or 0.05 nats; a list has one for points and one for
    nats"""
    resamples: Annotated[int, Field(ge=0, le=999), unit("probes")] = 5
    """further probes of each variant with stored hidden states, each on training rows drawn with replacement, so that
    intervals cover the choice of training rows; scores stay those of probes on all rows; 0: intervals do not cover
    it"""
    floors: Annotated[tuple[Floor, ...], Field(strict=False), Once] = CONTEXT_FREE
    """context-free floors: constants that replace every head, so no token sees another; every claim must hold against
    each of them"""
    layout: Literal["paper", "published_code", "natural"] = "paper"
    """layout of texts in slots: as in the paper; as in its code, which cuts single texts to half of the slots and
    leaves the segment ids of pairs where tokens were before; or natural, without gaps, as in pretraining, to check what
    fixed slots change (default: set by `fidelity`)"""
    ranking: Annotated[Ranking, Field(default_factory=Ranking)]
    """ranking of heads"""
    patterns: Patterns | None = None
    """pictures and statistics of the averaged attention of each model (the paper's Figure 4)"""
    hub_mirror: Text | None = None
    """folder laid out like the hub, owner/name/…, from which data and models are read; moving it reruns nothing"""
    device: Annotated[str, Field(pattern=r"^(auto|cpu|cuda(:[0-9]{1,2})?)$")] = "auto"
    """device that encoders run on: auto (a GPU if there is one), cpu, cuda or cuda:N; changing it reruns
    nothing"""
    threads: Annotated[int, Field(ge=1, le=1024), unit("threads")] = 1
    """threads of a job that runs the encoder or trains probes; --cores changes no result, unless it is smaller"""
    precision: Literal["float32", "tf32", "bfloat16"] = "float32"
    """floating-point precision of the frozen encoder: tf32 is float32 with faster matrix products on NVIDIA GPUs;
    bfloat16 uses autocast; averages are always summed in float64"""
    keep_hidden_states: bool = True
    """whether stored hidden states are kept after all jobs that read them; if not, a run needs much less disk, but
    adding a seed later recomputes them"""
    token_budget: Annotated[Positive | None, unit("tokens")] = None
    """number of tokens that the encoder processes at once when it averages or stores hidden states; by default 1,024 on
    a CPU and 4,096 on a GPU"""

    @model_validator(mode="before")
    @classmethod
    def _fill_in_defaults(cls, written: object) -> object:
        """Copy missing keys of grids from `run`, and apply the defaults of `fidelity: published_code`."""
        if not isinstance(written, dict):
            return written
        # a copy, because the mapping belongs to the caller, such as Snakemake
        written = dict(written)
        run = written.get("run")
        grids = written.get("grids")
        if isinstance(run, dict) and isinstance(grids, dict):
            written["grids"] = {
                name: run | grid if isinstance(grid, dict) else grid for name, grid in grids.items()
            }
        if written.get("fidelity") == "published_code":
            written.setdefault("layout", "published_code")
        return written

    @model_validator(mode="after")
    def _fits_together(self) -> Config:
        _check_names(self)
        for name, task in self.tasks.items():
            _check_task(f"tasks.{name}", task, self.corpora[task.corpus])
        _check_trained(self)
        for _, name in self.pairs:
            margin_for(self.margin, self.tasks[name].metric)
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
    def grids_by_key(self) -> dict[str, RunSettings]:
        """The grids of runs by the key that defines them."""
        return {"run": self.run, **{f"grids.{name}": grid for name, grid in self.grids.items()}}

    @property
    def lists(self) -> dict[str, HeadFile]:
        """The orders by lists in files, by their names."""
        return {
            name: order for grid in self.analyses.values() for name, order in grid.lists.items()
        }

    @property
    def pairs(self) -> list[tuple[str, str]]:
        """The pairs of a model and a task that are run, each once."""
        grids = self.analyses.values()
        pairs = [pair for grid in grids for pair in product(grid.models, grid.tasks)]
        return list(dict.fromkeys(pairs))

    @property
    def titles(self) -> dict[str, str]:
        """The title of each task for readers, by its name."""
        return {name: task.title or name for name, task in self.tasks.items()}

    @property
    def corpora_run(self) -> list[str]:
        """The corpora that tasks and averages of the runs need, each once."""
        grids = self.analyses.values()
        used = [self.tasks[task].corpus for grid in grids for task in grid.tasks]
        averaged = [Constant.parse(name).corpus for grid in grids for name in grid.constants]
        return list(dict.fromkeys(filter(None, [*used, *averaged])))

    def shown(self) -> dict[str, object]:
        """Return the config as the report shows it: only what is run, and without machine-dependent keys."""
        content = self.model_dump(mode="json", exclude_none=True, exclude=OF_MACHINES)
        models, tasks = zip(*self.pairs, strict=True)
        for block, names in {"models": models, "corpora": self.corpora_run, "tasks": tasks}.items():
            content[block] = {name: content[block][name] for name in dict.fromkeys(names)}
        return content

    @property
    def machine(self) -> Machine:
        """The folder of data and models on this machine, and the device to use; raise `InputError` without it."""
        # not a validator, because reports and other machines also read this config
        if self.hub_mirror and not os.path.isdir(self.hub_mirror):
            raise InputError(
                f"hub_mirror: there is no folder {self.hub_mirror!r} on this machine; correct the path."
            )
        return Machine(self.hub_mirror, self.device, self.token_budget)


def budget_on(device: str, tokens: int | None = None) -> int:
    """Return the number of tokens that a model on this device processes at once: `tokens`, or the default."""
    return tokens or (4096 if device.startswith("cuda") else 1024)


@dataclass(frozen=True)
class Machine:
    """Settings that may differ between machines; they change no path and, beyond rounding, no result.

    `snapshots` has the folders of what was downloaded from the hub when the run started (`papa.data.hub`).
    """

    hub_mirror: str | None = None
    device: str = "auto"
    token_budget: int | None = None
    snapshots: dict[str, str] = field(default_factory=dict)


# Checks of keys in several blocks. Each raises `InputError` with one sentence that names the keys.


def _check_names(config: Config) -> None:
    for where, what, names, defined in _names_used(config):
        for unknown in (name for name in names if name not in defined):
            raise InputError(
                f"{where}: no {what} is called {unknown!r}; {suggested(unknown, defined)}"
            )
    # tables name tasks by their titles
    for title, times in Counter(config.titles.values()).items():
        if times > 1:
            raise InputError(f"Two tasks have the title {title!r}; give each its own.")
    for where, grid in config.grids_by_key.items():
        for name, order in grid.lists.items():
            if order != config.lists[name]:
                raise InputError(
                    f"{where}.orders has a list with the name {order.name!r}, but another grid has a different one "
                    "with this name; rename one of them, or give both the same file."
                )
    for name in config.grids:
        if name in RESERVED or name.startswith("patterns-"):
            raise InputError(
                f"The grid {name!r} has the name of another table that papa writes; rename the grid."
            )


def _names_used(config: Config) -> Iterator[tuple[str, str, Iterable[str], Iterable[str]]]:
    """Yield a key, what its names are called, the names, and those that the config defines."""
    for where, grid in config.grids_by_key.items():
        averaged = filter(None, (Constant.parse(constant).corpus for constant in grid.constants))
        yield f"{where}.models", "model", grid.models, config.models
        yield f"{where}.tasks", "task", grid.tasks, config.tasks
        yield f"{where}.constants", "corpus", averaged, config.corpora
    for name, task in config.tasks.items():
        yield f"tasks.{name}.corpus", "corpus", [task.corpus], config.corpora
    if config.patterns is not None:
        run = [name for grid in config.analyses.values() for name in grid.tasks]
        yield "patterns.tasks", "task that is run", config.patterns.tasks, run


CLOSE = (
    0.75  # how similar a valid name has to be, from 0 to 1, to be suggested instead of a wrong one
)


def suggested(name: object, valid: Iterable[str]) -> str:
    """Return the words after a wrong name: the valid name that is most like it, or the valid names."""
    names = [*valid]
    if close := get_close_matches(str(name), names, 1, CLOSE):
        return f"did you mean {close[0]}?"
    return shorten(f"it must be one of {', '.join(names)}", 200, placeholder=" …") + "."


def _check_task(where: str, task: Task, corpus: Corpus) -> None:
    present = {"slots": corpus.slots, "validation split": corpus.sources.get("validation")}
    if lacking := [key for key, value in present.items() if value is None]:
        raise InputError(
            f"{where}.corpus is {task.corpus!r}, which has no {' and no '.join(lacking)}; add it, because only a "
            f"corpus that is just averaged (average-of-{task.corpus}) can do without."
        )
    if task.label is None:
        return
    try:
        check_metric(task.metric, corpus.target)
    except InputError as error:
        raise InputError(f"{where}.metric: {error}") from None
    if corpus.blocks:
        raise InputError(
            f"{where} has labels, but its corpus {task.corpus!r} is cut into blocks, which have no labels; "
            "use a corpus without `blocks`."
        )
    for key in ("first", "second", "words"):
        if getattr(corpus, key) == task.label:
            raise InputError(
                f"{where}.label is {task.label!r}, but that column contains texts, because it is `{key}` of "
                f"corpora.{task.corpus}; use the column of the labels."
            )


def _check_trained(config: Config) -> None:
    """Reject trained constants for tasks without labels or probes."""
    for where, grid in config.grids_by_key.items():
        for constant, task in product(grid.constants, grid.tasks):
            if Constant.parse(constant).trained and config.tasks[task].label is None:
                raise InputError(
                    f"{where} runs {task} with {constant}, which is trained with a probe of labels, but {task} has "
                    "none; put such tasks into a separate grid in `grids`, with other constants."
                )
