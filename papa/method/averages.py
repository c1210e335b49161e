"""Constant attention matrices: the average over unlabelled text, and their store (paper, Sec. 3.1).

C(l,h)[q,k] is the mean of the attention of head (l,h) from slot q to slot k over the examples in which both slots hold
a token, 0 where no example has both. Sums and counts are all that is needed, and both add up over parts of a corpus.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from papa import __version__
from papa.config import machine
from papa.config.kinds import DATA_FREE
from papa.config.shards import WHOLE, parts_of, rows_of
from papa.data.packed import Examples, Packed
from papa.data.tokens import Tokens, TokensFile
from papa.data.weights import weights_digest
from papa.errors import DamagedArtefact, InputError, first_line
from papa.files import MEND, SEAL, PathLike, check_seal, replacing, unsealed
from papa.method.checkpoints import Checkpoint, State
from papa.method.progress import progress
from papa.model.budget import TokenBudget
from papa.model.load import model_of
from papa.model.model import Model

FORMAT = "papa constant matrices 1"


@dataclass
class ConstantMatrices:
    """Sums, counts and means of attention, and where they came from.

    `sum` float64 `[layer, head, query, key]`, `count` int64 `[query, key]`, `examples` how many were averaged,
    `about` what identifies them: model, weights, corpus fingerprint, layout.
    """

    sum: Tensor
    count: Tensor
    examples: int
    about: dict[str, str] = field(default_factory=dict)

    @property
    def mean(self) -> Tensor:
        """The average attention, float32 `[layer, head, query, key]`; 0 where no example has both slots."""
        return (self.sum / self.count.clamp(min=1)).float()

    @property
    def n(self) -> int:
        """Number of slots."""
        return self.count.shape[0]

    def merge(self, other: ConstantMatrices) -> ConstantMatrices:
        """The average over both sets of examples; raises `InputError` where they are not of one kind."""
        if self.sum.shape != other.sum.shape or self.about != other.about:
            differ = sorted(key for key in self.about | other.about if self.about.get(key) != other.about.get(key)) or [
                f"shape {list(self.sum.shape)} and {list(other.sum.shape)}"
            ]
            raise InputError(f"These averages cannot be merged; they differ in {', '.join(differ)}.")
        return ConstantMatrices(
            self.sum + other.sum, self.count + other.count, self.examples + other.examples, dict(self.about)
        )

    def save(self, path: PathLike) -> None:
        """Write HDF5: datasets sum (float64), count, mean (float32), checksummed, and attributes."""
        import h5py

        # in memory first, for where a disk is full the library ends the process at its exit
        content = BytesIO()
        with h5py.File(content, "w") as store:
            store.attrs.update({"format": FORMAT, "papa_version": __version__, "examples": self.examples, "n": self.n})
            store.attrs[SEAL] = np.bytes_(unsealed(path))
            store.attrs.update({f"about_{key}": value for key, value in self.about.items()})
            options = {"compression": "gzip", "compression_opts": 1, "shuffle": True, "fletcher32": True}
            for name, values in (("sum", self.sum), ("count", self.count), ("mean", self.mean)):
                chunks = (1,) * (values.ndim - 2) + tuple(values.shape[-2:])
                store.create_dataset(name, data=values.cpu().numpy(), chunks=chunks, **options)
        with replacing(path, seal=True) as temporary:
            temporary.write_bytes(content.getbuffer())

    @classmethod
    def load(cls, path: PathLike) -> ConstantMatrices:
        """Read what `save` wrote; raises `DamagedArtefact` where the file is damaged or something else."""
        import h5py

        if not Path(path).exists():
            raise InputError(f"{path} does not exist; average the attention of a corpus first.")
        check_seal(path)
        try:
            with h5py.File(path, "r") as store:
                if store.attrs.get("format") != FORMAT:
                    raise DamagedArtefact(f"{path} is HDF5 but holds no constant matrices of papa; give another file.")
                arrays = {name: torch.from_numpy(np.asarray(store[name])) for name in ("sum", "count", "mean")}
                examples = int(store.attrs["examples"])
                about = {key[6:]: str(value) for key, value in store.attrs.items() if key.startswith("about_")}
        except DamagedArtefact:
            raise
        except Exception as error:  # a file of somebody else's may hold anything, objects among it
            raise DamagedArtefact(f"{path} is damaged ({first_line(error)}); {MEND}.") from error
        constants = cls(arrays["sum"], arrays["count"], examples, about)
        n = arrays["sum"].shape[-1:]
        whole = arrays["sum"].ndim == 4 and arrays["sum"].shape[2:] == (*n, *n) == tuple(arrays["count"].shape)
        if not whole or not torch.equal(constants.mean, arrays["mean"]):
            raise DamagedArtefact(f"{path} is damaged (its sums, counts and means do not agree); {MEND}.")
        return constants


def constant_matrices(kind: str, layers: int, heads: int, slots: int) -> Tensor:
    """Constants that need no text, the same for every head: float32 `[layer, head, query, key]` (Sec. 5.2, Table 1).

    `identity` looks at the slot itself, `toeplitz` at key k from query q in proportion to 1 / (1 + |q - k|), `zeros`
    at nothing. Masked and normalised, row by row, when they are used. Raises `InputError` for another kind.
    """
    if kind not in DATA_FREE:
        raise InputError(f"There are no constants {kind!r} that need no text; there are {', '.join(DATA_FREE)}.")
    slot = torch.arange(slots)
    own = {
        "identity": torch.eye(slots),
        "toeplitz": 1 / (1 + (slot[:, None] - slot).abs()),
        "zeros": torch.zeros(slots, slots),
    }[kind]
    return torch.nn.functional.normalize(own, p=1, dim=-1).expand(layers, heads, slots, slots)


class Averaging:
    """Attention being added up, batch by batch."""

    def __init__(self, encoder: Model, n: int):
        self.encoder, self.n, self.examples = encoder, n, 0
        self.total = torch.zeros(encoder.layers, n * n, encoder.heads, dtype=torch.float64, device=encoder.device)
        """`[layer, query * key, head]`"""
        self.count = torch.zeros(n * n, dtype=torch.long, device=encoder.device)
        self.added = 0
        """Layers of the last batch that are in the sums."""

    def add(self, batch: Packed, first: int = 0) -> None:
        """Add the attention of the layers from `first` on in `batch`, which is on the encoder's device."""
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
            if pairs is not None:  # last, where no memory is asked for any more: a layer is in with its counts, or not
                self.count += pairs
            self.added = layer + 1

        with torch.no_grad():
            self.encoder.observe(batch, observe)
        self.examples += len(batch.lengths)

    def over(self, group: Tokens, budget: TokenBudget) -> Iterator[Tensor]:
        """Add all examples of a group, and yield the numbers of those that are in, batch by batch."""
        return budget.run(self.encoder, group, lambda _, batch, first: self.add(batch, first), lambda: self.added)

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
        sums = self.total.transpose(1, 2).reshape(self.encoder.layers, self.encoder.heads, self.n, self.n)
        return ConstantMatrices(sums.cpu(), self.count.view(self.n, self.n).cpu(), self.examples)


def average_attention(encoder: Model, batches: Iterable[dict[str, Tensor] | Packed]) -> ConstantMatrices:
    """Average the attention of all heads over `batches` of inputs, read once (Sec. 3.1).

    Raises `InputError` where there is no batch or the number of slots changes on the way.
    """
    averaging: Averaging | None = None
    for inputs in batches:
        batch = encoder.pack(inputs)
        averaging = averaging or Averaging(encoder, batch.n)
        if batch.n != averaging.n:
            raise InputError(
                f"A batch has {batch.n} slots after batches of {averaging.n}; one average needs one layout."
            )
        averaging.add(batch)
    if averaging is None:
        raise InputError("There is no batch to average attention over.")
    return averaging.constants()


def average_corpus(model: dict[str, Any], tokens: PathLike, constants: PathLike, part: str = WHOLE) -> str:
    """Stage *average*: the average attention of a model over the training texts of a corpus, as HDF5.

    Of a corpus in several parts, the sums over one of them, for `merge_averages`.
    """
    encoder = model_of(model)
    weights = weights_digest(model)
    budget = TokenBudget(machine.current().token_budget)
    checkpoint = Checkpoint(
        constants, {"model": model, "weights": weights, "part": part, "device": encoder.device.type}, [tokens]
    )
    with TokensFile.opened(tokens) as file:
        train = file.extent("train")
        begin, end = (train.first + row for row in rows_of(part, train.rows))
        about = file.provenance
        averaging, groups = Averaging(encoder, int(about["slots"])), 0
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
        "model": model["name"],
        "hub": str(model.get("hub") or ""),
        "revision": str(model.get("revision") or ""),
        "weights": weights,
        **({} if part == WHOLE else {"part": part}),
        **({"precision": model["precision"]} if "precision" in model else {}),
        **{key: str(about[key]) for key in ("corpus", "style", "segments", "slots")},
    }
    average.save(constants)
    checkpoint.discard()
    return f"averaged attention over {average.examples:,} examples{checkpoint.resumed}"


def merge_averages(parts: Sequence[PathLike], constants: PathLike) -> str:
    """Stage *average*, of a corpus in several parts: their sums and counts added up.

    Raises `InputError` where a part is missing, twice there or of something else.
    """
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
    merged.save(constants)
    return f"averaged attention over {merged.examples:,} examples in {len(parts)} parts"
