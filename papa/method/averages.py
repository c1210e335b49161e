"""The average attention of a model over unlabelled text, and its file (paper, Sec. 3.1).

C(l,h)[q,k] is the mean of the attention of head (l,h) from slot q to slot k over the examples in which both slots have
a token, 0 if no example has both. Sums and counts are all that is needed, and both add up over parts of a corpus.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from papa.config.settings import Machine
from papa.config.stages import AverageOf, MergeOf
from papa.config.study import Job
from papa.config.variant import WHOLE, parts_of, rows_of
from papa.data.packed import Examples, Packed
from papa.data.tokens import Tokens, TokensFile
from papa.data.weights import sources_of
from papa.errors import DamagedArtefact, InputError, first_line
from papa.files import KEY, MEND, PathLike, Trace, check_arrays, provenance_of_arrays, replacing
from papa.method.fitting import Checkpoint, State
from papa.method.progress import progress
from papa.model.budget import TokenBudget
from papa.model.load import model_of
from papa.model.model import Model, check_model

if TYPE_CHECKING:
    import h5py

TOLERANCE = 1e-6
"""By how much a mean of attention may leave [0, 1], because of rounding."""
INFLATION = 1100
"""The values of a dataset are at most so many times as large as its file: deflate shrinks no content further."""
FILTERS = {1: "deflate", 2: "shuffle", 3: "fletcher32"}
"""What HDF5 may have done to the values, each once."""


@dataclass
class ConstantMatrices:
    """Sums and counts of attention, and where they came from.

    Args:
        sum: float64 `[layer, head, query, key]`, the attention of all examples added up.
        count: int64 `[query, key]`, how many examples have both slots.
        examples: how many examples were averaged.
        about: what identifies the averages: model, weights, corpus, slots, style, segments.
    """

    sum: Tensor
    count: Tensor
    examples: int
    about: dict[str, str] = field(default_factory=dict)

    @property
    def mean(self) -> Tensor:
        """The average attention, float32 `[layer, head, query, key]`; 0 if no example has both slots."""
        mean = torch.empty(self.sum.shape)
        for layer, total in enumerate(self.sum):  # one by one, because a quotient is float64
            mean[layer] = total / self.count.clamp(min=1)
        return mean

    @property
    def n(self) -> int:
        """Number of slots."""
        return self.count.shape[0]

    def merge(self, other: ConstantMatrices) -> ConstantMatrices:
        """The average over both sets of examples.

        Raises:
            InputError: the averages are of different models, layouts or corpora.
        """
        if self.sum.shape != other.sum.shape or self.about != other.about:
            differ = sorted(key for key in self.about | other.about if self.about.get(key) != other.about.get(key)) or [
                f"shape {list(self.sum.shape)} and {list(other.sum.shape)}"
            ]
            raise InputError(f"These averages cannot be merged; they differ in {', '.join(differ)}.")
        return ConstantMatrices(
            self.sum + other.sum, self.count + other.count, self.examples + other.examples, dict(self.about)
        )

    def save(self, path: PathLike, trace: Trace | None = None) -> None:
        """Write HDF5: the datasets sum (float64), count (int64) and mean (float32), and the provenance."""
        import h5py

        arrays = {"sum": self.sum.cpu().numpy(), "count": self.count.cpu().numpy(), "mean": self.mean.cpu().numpy()}
        facts = {**self.about, "examples": self.examples, "shape": list(self.sum.shape)}
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
        arrays, about, examples = _read(path, ("sum", "count", "mean"))
        found = cls(arrays["sum"], arrays["count"], examples, about)
        if bool((found.count < 0).any()):
            raise DamagedArtefact(f"{path} is damaged (a count of examples is negative); {MEND}.")
        if not torch.equal(found.mean, arrays["mean"]):
            raise DamagedArtefact(f"{path} is damaged (its sums, counts and means do not agree); {MEND}.")
        return found

    @classmethod
    def load_mean(cls, path: PathLike) -> tuple[Tensor, dict[str, str]]:
        """The mean alone, float32 `[layer, head, query, key]`, and `about`: a fifth of the memory that all of it takes.

        Raises:
            InputError: there is no such file.
            DamagedArtefact: the file is damaged or something else.
        """
        arrays, about, _ = _read(path, ("mean",))
        return arrays["mean"], about


def _read(path: PathLike, names: Sequence[str]) -> tuple[dict[str, Tensor], dict[str, str], int]:
    """Some datasets of a file of averages, what identifies them, and how many examples they are of.

    No link is followed out of the file, and nothing is read that the file cannot contain.
    """
    import h5py

    if not Path(path).exists():
        raise InputError(f"{path} does not exist; average the attention of a corpus first.")
    try:
        with h5py.File(path, "r") as store:
            size = Path(path).stat().st_size
            arrays = {name: _dataset(store, name, size) for name in names}
            facts = check_arrays(path, str(store.attrs[KEY]), arrays)
        shape = tuple(facts.pop("shape"))
        shapes = {"sum": shape, "mean": shape, "count": shape[2:]}
        if len(shape) != 4 or shape[2] != shape[3] or any(arrays[name].shape != shapes[name] for name in names):
            raise ValueError(f"its datasets are not {list(shape)}")
        examples = int(facts.pop("examples"))
    except DamagedArtefact:
        raise
    except Exception as error:  # a file of somebody else's may contain anything
        raise DamagedArtefact(f"{path} contains no averages of papa ({first_line(error)}); {MEND}.") from error
    tensors = {name: torch.from_numpy(values) for name, values in arrays.items()}
    if "mean" in tensors and tensors["mean"].numel():
        low, high = (float(value) for value in tensors["mean"].aminmax())
        if not (low >= -TOLERANCE and high <= 1 + TOLERANCE):
            raise DamagedArtefact(f"{path} is damaged (a mean of attention is not in [0, 1]); {MEND}.")
    return tensors, {key: str(value) for key, value in facts.items()}, examples


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
    """Attention being added up, batch by batch."""

    def __init__(self, model: Model, n: int):
        self.model, self.n, self.examples = model, n, 0
        self.total = torch.zeros(model.layers, n * n, model.heads, dtype=torch.float64, device=model.device)
        """`[layer, query * key, head]`"""
        self.count = torch.zeros(n * n, dtype=torch.long, device=model.device)
        self.added = 0
        """Layers of the last batch that are in the sums."""

    def add(self, batch: Packed, first: int = 0) -> None:
        """Add the attention of the layers from `first` on in `batch`, which is on the model's device."""
        self.added = first

        def observe(layer: int, attention: Tensor, examples: Examples) -> None:
            if layer < first:
                return
            # examples that use the same slots add up before they are sent to those slots
            slots = examples.slots[:1] if examples.alike else examples.slots
            summed = attention.sum(0, keepdim=True, dtype=torch.float64) if examples.alike else attention.double()
            where = slots[:, :, None] * self.n + slots[:, None, :]
            values = summed.permute(0, 2, 3, 1)  # [example, query, key, head]
            if examples.real is None:
                where, values = where.flatten(), values.flatten(0, 2)
            else:
                both = examples.real[:, :, None] & examples.real[:, None, :]
                where, values = where[both], values[both]
            repeats = len(examples.slots) if examples.alike else 1
            pairs = torch.bincount(where, minlength=self.n**2) * repeats if layer == 0 else None
            self.total[layer].index_add_(0, where, values)
            if pairs is not None:  # last, when no more memory is asked for: a layer is in with its counts, or not
                self.count += pairs
            self.added = layer + 1

        with torch.no_grad():
            self.model.observe(batch, observe)
        self.examples += len(batch.lengths)

    def over(self, group: Tokens, budget: TokenBudget) -> Iterator[Tensor]:
        """Add all examples of a group, and yield the numbers of those that are in, batch by batch."""
        return budget.run(self.model, group, lambda _, batch, first: self.add(batch, first), lambda: self.added)

    def state(self, groups: int) -> State:
        """The sums over so many groups, to go on from."""
        return State({"total": self.total, "count": self.count}, {"examples": self.examples, "groups": groups})

    def go_on(self, state: State) -> int:
        """Take up what `state` gave; return over how many groups it is."""
        self.total.copy_(state.tensors["total"])
        self.count.copy_(state.tensors["count"])
        self.examples = state.values["examples"]
        return int(state.values["groups"])

    def constants(self) -> ConstantMatrices:
        """Sums and counts of all that was added."""
        sums = self.total.transpose(1, 2).reshape(self.model.layers, self.model.heads, self.n, self.n)
        return ConstantMatrices(sums.cpu(), self.count.view(self.n, self.n).cpu(), self.examples)


def average_attention(model: Model, batches: Iterable[dict[str, Tensor] | Packed]) -> ConstantMatrices:
    """Average the attention of all heads over batches, which are read once (Sec. 3.1).

    Args:
        model: a model that `load_model` gave.
        batches: inputs `[example, slot]` as `lay_out` returns them, of one number of slots.

    Returns:
        Sums `[layer, head, query, key]` and counts `[query, key]`, whose `mean` is the average.

    Raises:
        InputError: there is no batch, one batch is given instead of several, or the number of slots changes.
    """
    check_model(model)
    if isinstance(batches, Mapping | Packed):
        raise InputError("average_attention takes several batches, and one was given; put it into a list.")
    averaging: Averaging | None = None
    for inputs in batches:
        batch = model.pack(inputs)
        averaging = averaging or Averaging(model, batch.n)
        if batch.n != averaging.n:
            raise InputError(
                f"A batch has {batch.n} slots after batches of {averaging.n}; one average needs one layout."
            )
        averaging.add(batch)
    if averaging is None:
        raise InputError("There is no batch to average attention over.")
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
        averaging, groups = Averaging(model, int(facts["slots"])), 0
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
    average.about = {
        "model": encoding.model.name,
        "weights": str(model.weights),
        **({} if part == WHOLE else {"part": part}),
        **({} if encoding.precision == "float32" else {"precision": encoding.precision}),
        **{key: str(facts[key]) for key in ("corpus", "style", "segments", "slots")},
    }
    average.save(job.output("constants"), trace)
    checkpoint.discard()
    return f"averaged attention over {average.examples:,} examples{checkpoint.resumed}"


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
    return f"averaged attention over {merged.examples:,} examples in {len(parts)} parts"
