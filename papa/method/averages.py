"""The average attention of a model over unlabelled text, and its file (paper, Sec. 3.1).

C(l,h)[q,k] is the mean of the attention of head (l,h) from slot q to slot k over the examples in which both slots have
a token, 0 if no example has both. Sums and counts are all that is needed, and both add up over parts of a corpus.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from html import escape
from io import BytesIO
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from papa.config.settings import Machine
from papa.config.stages import AverageOf, MergeOf, ResampleOf
from papa.config.study import Job
from papa.config.variant import AVERAGED, RESAMPLED, WHOLE, entries_of, parts_of, rows_of
from papa.data.packed import Examples, Packed
from papa.data.tokens import Tokens, TokensFile
from papa.data.weights import sources_of
from papa.errors import DamagedArtefact, InputError, count, first_line
from papa.files import KEY, MEND, PathLike, Trace, check_arrays, provenance_of_arrays, replacing
from papa.method.fitting import Checkpoint, State
from papa.method.pictures import pictures
from papa.method.progress import progress
from papa.method.tied import TIED, classes_of
from papa.model.attention import Layer
from papa.model.budget import TokenBudget
from papa.model.load import model_of
from papa.model.model import Batches, Model, check_model, packed_batches
from papa.model.replacement import Matrices, Outputs

if TYPE_CHECKING:
    import altair as alt
    import h5py

TOLERANCE = 1e-6
"""By how much a mean of attention may leave [0, 1], because of rounding."""
INFLATION = 1100
"""The values of a dataset are at most so many times as large as its file: deflate shrinks no content further."""
FILTERS = {1: "deflate", 2: "shuffle", 3: "fletcher32"}
"""What HDF5 may have done to the values, each once."""


@dataclass
class ConstantMatrices:
    """Sums and counts of attention, or of what heads give, and where they came from.

    Args:
        sum: float64 `[layer, head, query, key]`, the attention of all examples added up; `[layer, head, class]` if
            pairs of slots share a value, `[layer, head, slot, channel]` for what heads give.
        count: int64 `[query, key]`, how many examples have both slots; `[class]` or `[slot]` likewise.
        examples: how many examples were averaged.
        about: what identifies the averages: model, weights, corpus, slots, style, segments.
        kind: which constants these are, one of `papa.config.variant.AVERAGED`, or `resample`.
        n: number of slots.
    """

    sum: Tensor
    count: Tensor
    examples: int
    about: dict[str, str] = field(default_factory=dict)
    kind: str = "average"
    n: int = 0

    def __post_init__(self) -> None:
        self.n = self.n or self.count.shape[0]

    @property
    def mean(self) -> Tensor:
        """The average, float32, of the shape of `sum`; 0 where nothing was counted."""
        mean = torch.empty(self.sum.shape)
        count = self.count.clamp(min=1)
        count = count.view(*count.shape, *(1,) * (self.sum.ndim - 2 - count.ndim))
        for layer, total in enumerate(self.sum):  # one by one, because a quotient is float64
            mean[layer] = total / count
        return mean

    @property
    def constants(self) -> Tensor | Matrices | Outputs:
        """The average as what takes the place of attention."""
        return _as_constants(self.mean, self.kind, self.n)

    def by_pair(self) -> ConstantMatrices:
        """The same with an entry for each pair of slots, also where pairs share it; raises `InputError` for outputs.

        Where pairs share it, rows are normalised, as they are when they are used.
        """
        own = self.constants
        if isinstance(own, Outputs):
            raise InputError("What heads give is no matrix, and has no entry for a pair of slots.")
        if isinstance(own, Tensor):
            return self
        count, full = self.count[own.classes.long()], own.full.double()
        if self.about.get("causal") == "True":  # what no query sees
            count, full = count.tril(), full.tril()
        full = full / full.sum(-1, keepdim=True).clamp(min=1e-30)
        return ConstantMatrices(full * count, count, self.examples, self.about)

    def plot(self, layer: int, head: int) -> alt.ConcatChart:
        """A picture of the average of a head, both counted from 0: rows are queries, columns keys, in slots in use.

        Colours go with the square root of the mean attention, up to the largest of this head. Pairs of slots that no
        example has are grey.

        Raises:
            InputError: there is no such head, or these are averages of what heads give.

        >>> constants.plot(2, 4)  # doctest: +SKIP
        """
        return pictures(self, [(layer, head)], 260)

    def __repr__(self) -> str:
        layers, heads = self.sum.shape[:2]
        what = "" if self.kind == "average" else f"{self.kind} of "
        return (
            f"<papa.ConstantMatrices: {what}{count(layers, 'layer')} of {count(heads, 'head')} in "
            f"{count(self.n, 'slot')}, over {count(self.examples, 'example')}>"
        )

    def _repr_html_(self) -> str:
        return f"<p>{escape(repr(self)[1:-1])}</p>"

    def merge(self, other: ConstantMatrices) -> ConstantMatrices:
        """The average over both sets of examples.

        Raises:
            InputError: the averages are of different models, layouts or corpora.
        """
        own, others = ({**one.about, "kind": one.kind} for one in (self, other))
        if self.sum.shape != other.sum.shape or own != others:
            differ = sorted(key for key in own | others if own.get(key) != others.get(key)) or [
                f"shape {list(self.sum.shape)} and {list(other.sum.shape)}"
            ]
            raise InputError(f"These averages cannot be merged; they differ in {', '.join(differ)}.")
        sums, counts = self.sum + other.sum, self.count + other.count
        return replace(self, sum=sums, count=counts, examples=self.examples + other.examples, about=dict(self.about))

    def save(self, path: PathLike, trace: Trace | None = None) -> None:
        """Write HDF5: the datasets sum (float64), count (int64) and mean (float32), and the provenance."""
        import h5py

        arrays = {"sum": self.sum.cpu().numpy(), "count": self.count.cpu().numpy(), "mean": self.mean.cpu().numpy()}
        facts = {**self.about, "examples": self.examples, "shape": list(self.sum.shape)}
        facts |= {} if self.kind == "average" else {"kind": self.kind, "n": self.n}
        # in memory first, because on a full disk the library ends the process at its exit
        content = BytesIO()
        with h5py.File(content, "w") as store:
            store.attrs[KEY] = provenance_of_arrays(facts, trace, arrays)
            options = {"compression": "gzip", "compression_opts": 1, "shuffle": True, "fletcher32": True}
            for name, values in arrays.items():
                chunks = (1,) * (values.ndim - 2) + tuple(values.shape[-2:])
                store.create_dataset(name, data=values, chunks=chunks, **options)
        with replacing(path) as temporary:
            temporary.write_bytes(content.getbuffer())

    @classmethod
    def load(cls, path: PathLike) -> ConstantMatrices:
        """Read what `save` wrote.

        Raises:
            InputError: there is no such file.
            DamagedArtefact: the file is damaged or something else.
        """
        found, mean = _read(path, ("sum", "count"))
        if bool((found.count < 0).any()):
            raise DamagedArtefact(f"{path} is damaged (a count of examples is negative); {MEND}.")
        if not torch.equal(found.mean, mean):
            raise DamagedArtefact(f"{path} is damaged (its sums, counts and means do not agree); {MEND}.")
        return found

    @classmethod
    def load_constants(cls, path: PathLike) -> tuple[Tensor | Matrices | Outputs, dict[str, str]]:
        """What takes the place of attention alone, and `about` with its kind: a fifth of the memory that all takes.

        Raises:
            InputError: there is no such file.
            DamagedArtefact: the file is damaged or something else.
        """
        found, mean = _read(path, ())
        return _as_constants(mean, found.kind, found.n), found.about | {"kind": found.kind}


def _as_constants(mean: Tensor, kind: str, slots: int) -> Tensor | Matrices | Outputs:
    if kind == "mean-output":
        return Outputs(mean)
    return Matrices(mean, classes_of(kind, slots)) if kind in TIED else mean


def _read(path: PathLike, names: Sequence[str]) -> tuple[ConstantMatrices, Tensor]:
    """A file of averages with sum and count if they are named, else without, and its mean.

    No link is followed out of the file, and nothing is read that the file cannot contain.
    """
    import h5py

    if not Path(path).exists():
        raise InputError(f"{path} does not exist; average the attention of a corpus first.")
    try:
        with h5py.File(path, "r") as store:
            size = Path(path).stat().st_size
            arrays = {name: _dataset(store, name, size) for name in (*names, "mean")}
            facts = check_arrays(path, str(store.attrs[KEY]), arrays)
        shape, kind = tuple(facts.pop("shape")), str(facts.pop("kind", "average"))
        if kind not in (*AVERAGED, RESAMPLED):
            raise ValueError(f"there are no constants {kind}")
        slots = int(facts.pop("n", shape[2]))
        counted = {"mean-output": (slots,)}.get(kind, (entries_of(kind, slots),) if kind in TIED else (slots, slots))
        shapes = {"sum": shape, "mean": shape, "count": counted}
        fits = len(shape) == 3 if kind in TIED else len(shape) == 4
        if (
            not fits
            or shape[2 : 2 + len(counted)] != counted
            or any(arrays[own].shape != shapes[own] for own in arrays)
        ):
            raise ValueError(f"its datasets are not {list(shape)}")
        examples = int(facts.pop("examples"))
    except DamagedArtefact:
        raise
    except Exception as error:  # a file of somebody else's may contain anything
        raise DamagedArtefact(f"{path} contains no averages of papa ({first_line(error)}); {MEND}.") from error
    tensors = {name: torch.from_numpy(values) for name, values in arrays.items()}
    mean, nothing = tensors.pop("mean"), torch.empty(0)
    if mean.numel() and kind != "mean-output":
        low, high = (float(value) for value in mean.aminmax())
        if not (low >= -TOLERANCE and high <= 1 + TOLERANCE):
            raise DamagedArtefact(f"{path} is damaged (a mean of attention is not in [0, 1]); {MEND}.")
    about = {key: str(value) for key, value in facts.items()}
    sums, count = tensors.get("sum", nothing), tensors.get("count", nothing)
    return ConstantMatrices(sums, count, examples, about, kind, slots), mean


def _dataset(store: h5py.File, name: str, size: int) -> np.ndarray:
    """The values of a dataset that is contained in a file of so many bytes; raises ValueError if they may not be."""
    import h5py

    if not isinstance(store.get(name, getlink=True), h5py.HardLink):
        raise ValueError(f"{name} is a link to elsewhere, or is not there")
    dataset = store[name]
    if not isinstance(dataset, h5py.Dataset) or dataset.external or dataset.is_virtual:
        raise ValueError(f"the values of {name} lie elsewhere")
    created = dataset.id.get_create_plist()
    filters = [created.get_filter(number)[0] for number in range(created.get_nfilters())]
    if len(filters) != len(set(filters)) or not set(filters) <= FILTERS.keys():
        raise ValueError(f"{name} is compressed in another way than papa does it")
    if dataset.dtype.kind not in "fi" or dataset.nbytes > INFLATION * size:
        raise ValueError(f"{name} is declared as {list(dataset.shape)}, which {size:,} bytes cannot contain")
    values: np.ndarray = dataset[()]
    return values


class Averaging:
    """Attention being added up, batch by batch, or what heads give; `kind` as in `ConstantMatrices`."""

    def __init__(self, model: Model, n: int, kind: str = "average"):
        self.model, self.n, self.kind, self.examples = model, n, kind, 0
        self.outputs, self.places = kind == "mean-output", n if kind == "mean-output" else entries_of(kind, n)
        self.classes = classes_of(kind, n).long().flatten().to(model.device) if kind in TIED else None
        self.count = torch.zeros(self.places, dtype=torch.long, device=model.device)
        self.total = torch.zeros(0)
        """`[layer, query * key, head]`, `[layer, class, head]` or `[layer, slot, head * channel]`; empty before the
        first batch."""
        self.added = 0
        """Layers of the last batch that are in the sums."""

    def add(self, batch: Packed, first: int = 0) -> None:
        """Add the layers from `first` on in `batch`, which is on the model's device."""
        self.added = first

        def watch(of: Layer, attention: Tensor) -> None:
            layer, examples = of.number, of.examples
            if layer < first:
                return
            seen = attention @ of.values(None) if self.outputs else attention
            # examples that use the same slots add up before they are sent to those slots
            summed = seen.sum(0, keepdim=True, dtype=torch.float64) if examples.alike else seen.double()
            where, counted = self._places(examples)
            values = summed.transpose(1, 2).flatten(2) if self.outputs else summed.permute(0, 2, 3, 1)
            if counted is None:
                where, values = where.flatten(), values.flatten(0, -2)
            else:
                counted = counted.expand(where.shape)
                where, values = where[counted], values[counted]
            repeats = len(examples.slots) if examples.alike else 1
            pairs = torch.bincount(where, minlength=self.places) * repeats if layer == 0 else None
            if not self.total.numel():
                shape = (self.model.layers, self.places, values.shape[-1])
                self.total = torch.zeros(shape, dtype=torch.float64, device=self.model.device)
            self.total[layer].index_add_(0, where, values)
            if pairs is not None:  # last, when no more memory is asked for: a layer is in with its counts, or not
                self.count += pairs
            self.added = layer + 1

        with torch.no_grad():
            self.model.watch(batch, watch)
        self.examples += len(batch.lengths)

    def _places(self, examples: Examples) -> tuple[Tensor, Tensor | None]:
        """Where in the sums the slots or pairs of slots of examples go, and which of them count (None: all)."""
        slots, real = examples.slots[:1] if examples.alike else examples.slots, examples.real
        if self.outputs:
            return slots, real
        where = slots[:, :, None] * self.n + slots[:, None, :]  # [example, query, key]
        counted = None if real is None else real[:, :, None] & real[:, None, :]
        if self.classes is None:
            return where, counted
        if self.model.causal:  # pairs that no query sees would count as zeros of their class
            seen = slots[:, :, None] >= slots[:, None, :]
            counted = seen if counted is None else counted & seen
        return self.classes[where], counted

    def over(self, group: Tokens, budget: TokenBudget) -> Iterator[Tensor]:
        """Add all examples of a group, and yield the numbers of those that are in, batch by batch."""
        return budget.run(self.model, group, lambda _, batch, first: self.add(batch, first), lambda: self.added)

    def state(self, groups: int) -> State:
        """The sums over so many groups, to go on from."""
        return State({"total": self.total, "count": self.count}, {"examples": self.examples, "groups": groups})

    def go_on(self, state: State) -> int:
        """Take up what `state` gave; return over how many groups it is."""
        self.total = state.tensors["total"].to(self.count.device)
        self.count.copy_(state.tensors["count"])
        self.examples = state.values["examples"]
        return int(state.values["groups"])

    def constants(self) -> ConstantMatrices:
        """Sums and counts of all that was added."""
        heads, layers = self.model.heads, self.model.layers
        if self.outputs:
            sums, axes = self.total.view(layers, self.n, heads, -1).transpose(1, 2), [self.n]
        else:
            axes = [self.n, self.n] if self.classes is None else [self.places]
            sums = self.total.transpose(1, 2).reshape(layers, heads, *axes)
        about = {"causal": str(self.model.causal)} if self.classes is not None else {}
        return ConstantMatrices(sums.cpu(), self.count.view(axes).cpu(), self.examples, about, self.kind, self.n)


def average_attention(model: Model, batches: Batches, kind: str = "average") -> ConstantMatrices:
    """Average the attention of all heads over batches, which are read once (Sec. 3.1).

    Args:
        model: a model that `load_model` gave.
        batches: inputs `[example, slot]` as `lay_out` returns them, of one number of slots.
        kind: `average`; or, for much less memory and information, `sink` or `by-distance`, in which pairs of slots
            share entries, or `mean-output`, the average of what heads give in each slot.

    Returns:
        Sums `[layer, head, query, key]` and counts `[query, key]`, whose `mean` is the average; their shapes for other
        kinds stand at `ConstantMatrices`.

    Raises:
        InputError: there is no batch, one batch is given instead of several, the number of slots changes, or there is
            no such kind.
    """
    check_model(model)
    if kind not in AVERAGED:
        raise InputError(f"There is no average {kind!r}; there are {', '.join(AVERAGED)}.")
    packed = packed_batches(model, batches, "average_attention")
    first = next(packed)  # there is one, or this says that there is none
    averaging = Averaging(model, first.n, kind)
    for batch in chain([first], packed):
        averaging.add(batch)
    return averaging.constants()


def average_corpus(job: Job[AverageOf]) -> str:
    """Stage *average*: the average attention of a model over the training texts of a corpus, or of a part of it."""
    encoding, part = job.settings.model, job.settings.part
    model = model_of(encoding)
    budget = TokenBudget(Machine.current().token_budget)
    trace = job.trace(**sources_of(encoding.model, str(model.weights)))
    checkpoint = Checkpoint(job.output("constants"), trace, model.device.type)
    with TokensFile.opened(job.input("tokens")) as file:
        train = file.extent("train")
        begin, end = (train.first + row for row in rows_of(part, train.rows))
        facts = file.provenance
        averaging, groups = Averaging(model, int(facts["slots"]), job.settings.kind or "average"), 0
        if (state := checkpoint.restore()) is not None:
            groups = averaging.go_on(state)
            checkpoint.resumed = f", resumed after {averaging.examples:,}"

        def batches() -> Iterator[Tensor]:
            for number, group in file.between(begin, end, groups):
                yield from averaging.over(group, budget)
                checkpoint.save(partial(averaging.state, number + 1))

        for _ in progress(batches(), "averaging", end - begin, averaging.examples):
            pass
    average = averaging.constants()
    average.about |= {
        "model": encoding.model.name,
        "weights": str(model.weights),
        **({} if part == WHOLE else {"part": part}),
        **({} if encoding.precision == "float32" else {"precision": encoding.precision}),
        **{key: str(facts[key]) for key in ("corpus", "style", "segments", "slots")},
    }
    average.save(job.output("constants"), trace)
    checkpoint.discard()
    what = "what heads give" if averaging.outputs else "attention"
    return f"averaged {what} over {average.examples:,} examples{checkpoint.resumed}"


def resample_attention(job: Job[ResampleOf]) -> str:
    """Stage *resample*: attention to single training texts, which shows what averaging adds."""
    encoding = job.settings.model
    model = model_of(encoding)
    train = Tokens.read(job.input("tokens"), "train")["train"]
    found = drawn_attention(model, train)
    found.about = {
        "model": encoding.model.name,
        "weights": str(model.weights),
        **{key: str(train.provenance[key]) for key in ("corpus", "style", "segments", "slots")},
    }
    found.save(job.output("constants"), job.trace(**sources_of(encoding.model, str(model.weights))))
    return f"attention to {count(found.examples, 'text')}"


def drawn_attention(model: Model, train: Tokens, seed: int = 0) -> ConstantMatrices:
    """Each row of the matrices, that of the query in a slot, is its attention to a text of its own.

    The text is drawn from all that have a token in the slot, and is the same for all heads. `count` is 1 in the rows
    that there are, and `examples` the number of texts that were drawn.
    """
    chance = torch.Generator().manual_seed(seed)
    example_of = torch.arange(len(train)).repeat_interleave(train.lengths)
    rows_of_text: dict[int, list[int]] = {}
    for slot in train.slots.unique().tolist():
        having = example_of[train.slots == slot]
        drawn = int(having[torch.randint(len(having), (1,), generator=chance)])
        rows_of_text.setdefault(drawn, []).append(slot)
    matrices = torch.zeros(model.layers, model.heads, train.n, train.n, dtype=torch.float64)
    filled = torch.zeros(train.n, train.n, dtype=torch.long)
    for number, slots in rows_of_text.items():
        batch, rows = train.batch(torch.tensor([number])), torch.tensor(slots)

        def observe(layer: int, attention: Tensor, _: Examples) -> None:
            own = attention[0].double().cpu()  # [head, query, key], of the tokens of one text
            chosen = torch.searchsorted(batch.slots, rows)  # noqa: B023  called before the next text
            matrices[layer][:, rows[:, None], batch.slots] = own[:, chosen]  # noqa: B023

        with torch.no_grad():
            model.observe(batch.to(model.device), observe)
        filled[rows] = 1
    return ConstantMatrices(matrices, filled, len(rows_of_text), {}, RESAMPLED)


def merge_averages(job: Job[MergeOf]) -> str:
    """Stage *merge*, of a corpus in several parts: their sums and counts added up.

    Raises:
        InputError: a part is missing, given twice or of something else.
    """
    parts = job.inputs["parts"]
    merged: ConstantMatrices | None = None
    found = []
    for path in parts:
        own = ConstantMatrices.load(path)
        found.append(own.about.pop("part", WHOLE))
        merged = own if merged is None else merged.merge(own)
    expected = parts_of(len(parts))
    if merged is None or sorted(found) != sorted(expected):
        raise InputError(
            f"The averages of {len(parts)} parts are needed, {', '.join(expected)}; "
            f"those given are of {', '.join(found) or 'none'}."
        )
    merged.save(job.output("constants"), job.trace())
    what = "what heads give" if merged.kind == "mean-output" else "attention"
    return f"averaged {what} over {merged.examples:,} examples in {len(parts)} parts"
