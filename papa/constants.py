"""Constant attention matrices: the average over unlabelled text, and their store (paper, Sec. 3.1).

C(l,h)[q,k] is the mean of the attention of head (l,h) from slot q to slot k over the examples in which both slots hold
a token, 0 where no example has both. Sums and counts are all that is needed, and both add up over parts of a corpus.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from papa import __version__, machine
from papa.artefacts import PathLike, replacing
from papa.encoder import Encoder, encoder_of
from papa.errors import DamagedArtefact, InputError
from papa.kinds import DATA_FREE
from papa.packed import Examples, Packed
from papa.progress import progress
from papa.sources import first_line
from papa.sources.models import weights_digest
from papa.tokens import Tokens

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

        with replacing(path) as temporary, h5py.File(temporary, "w") as store:
            store.attrs.update({"format": FORMAT, "papa_version": __version__, "examples": self.examples, "n": self.n})
            store.attrs.update({f"about_{key}": value for key, value in self.about.items()})
            options = {"compression": "gzip", "compression_opts": 1, "shuffle": True, "fletcher32": True}
            for name, values in (("sum", self.sum), ("count", self.count), ("mean", self.mean)):
                chunks = (1,) * (values.ndim - 2) + tuple(values.shape[-2:])
                store.create_dataset(name, data=values.cpu().numpy(), chunks=chunks, **options)

    @classmethod
    def load(cls, path: PathLike) -> ConstantMatrices:
        """Read what `save` wrote; raises `DamagedArtefact` where the file is damaged or something else."""
        import h5py

        mend = "delete it and run the workflow again to rebuild it."
        if not Path(path).exists():
            raise InputError(f"{path} does not exist; average the attention of a corpus first.")
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
            raise DamagedArtefact(f"{path} is damaged ({first_line(error)}); {mend}") from error
        constants = cls(arrays["sum"], arrays["count"], examples, about)
        n = arrays["sum"].shape[-1:]
        whole = arrays["sum"].ndim == 4 and arrays["sum"].shape[2:] == (*n, *n) == tuple(arrays["count"].shape)
        if not whole or not torch.equal(constants.mean, arrays["mean"]):
            raise DamagedArtefact(f"{path} is damaged (its sums, counts and means do not agree); {mend}")
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


def average_attention(encoder: Encoder, batches: Iterable[dict[str, Tensor] | Packed]) -> ConstantMatrices:
    """Average the attention of all heads over `batches` of inputs, read once (Sec. 3.1).

    Raises `InputError` where there is no batch or the number of slots changes on the way.
    """
    total = count = None
    examples_seen = 0
    for inputs in batches:
        batch = encoder.pack(inputs)
        if total is None or count is None:
            n = batch.n
            shape = (encoder.layers, n * n, encoder.heads)
            total = torch.zeros(shape, dtype=torch.float64, device=encoder.device)
            count = torch.zeros(n * n, dtype=torch.long, device=encoder.device)
        if batch.n != n:
            raise InputError(f"A batch has {batch.n} slots after batches of {n}; one average needs one layout.")
        with torch.no_grad():
            count += _add_up(encoder, batch, total)
        examples_seen += len(batch.lengths)
    if total is None or count is None:
        raise InputError("There is no batch to average attention over.")
    sums = total.transpose(1, 2).reshape(encoder.layers, encoder.heads, n, n)
    return ConstantMatrices(sums.cpu(), count.view(n, n).cpu(), examples_seen)


def _add_up(encoder: Encoder, batch: Packed, total: Tensor) -> Tensor:
    """Add the attention of `batch` to `total` `[layer, query * key, head]`; return the counts `[query * key]`."""
    pairs: list[Tensor] = []

    def observe(layer: int, attention: Tensor, examples: Examples) -> None:
        # examples that use the same slots add up before they are sent to those slots
        slots = examples.slots[:1] if examples.alike else examples.slots
        summed = attention.sum(0, keepdim=True, dtype=torch.float64) if examples.alike else attention.double()
        where = slots[:, :, None] * batch.n + slots[:, None, :]
        values = summed.permute(0, 2, 3, 1)  # [example, query, key, head]
        if examples.real is None:
            where, values = where.flatten(), values.flatten(0, 2)
        else:
            both = examples.real[:, :, None] & examples.real[:, None, :]
            where, values = where[both], values[both]
        total[layer].index_add_(0, where, values)
        if not pairs:
            repeats = len(examples.slots) if examples.alike else 1
            pairs.append(torch.bincount(where, minlength=batch.n**2) * repeats)

    encoder.observe(batch, observe)
    return pairs[0]


def average_corpus(model: dict[str, Any], tokens: PathLike, constants: PathLike) -> str:
    """Stage *average*: the average attention of a model over the training texts of a corpus, as HDF5."""
    train = Tokens.read(tokens, "train")["train"]
    encoder = encoder_of(model)
    steps = progress(train.batches(machine.current().token_budget), "averaging", train.lengths, "examples")
    average = average_attention(encoder, map(train.batch, steps))
    average.about = {
        "model": model["name"],
        "hub": str(model.get("hub") or ""),
        "revision": str(model.get("revision") or ""),
        "weights": weights_digest(model),
        **{key: str(train.provenance[key]) for key in ("corpus", "style", "segments", "slots")},
    }
    average.save(constants)
    return f"averaged attention over {average.examples:,} examples, {int(train.lengths.sum()):,} tokens"
