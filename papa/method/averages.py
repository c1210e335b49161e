"""The average attention of a model over a corpus, stored as sums and counts (paper, Sec. 3.1).

C(l,h)[q,k] is the mean attention of head (l,h) from slot q to slot k, over the examples that have a token in both
slots. It is 0 if there are none. Sums and counts can be added over the parts of a corpus.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn.functional import normalize

from papa.config.variant import DATA_FREE, KINDS, TIED
from papa.errors import InputError, count, first_line, missing_extra
from papa.files import PathLike, Record, damaged
from papa.method.hdf5 import read_arrays, write_arrays
from papa.model.replacement import Loaded, Outputs

if TYPE_CHECKING:
    import altair as alt

MEAN_TOLERANCE = 1e-6
"""Distance by which a mean of attention may be outside [0, 1], because of rounding."""


@dataclass(eq=False)
class Constants:
    """Sums and counts of attention, or of the outputs of heads.

    Args:
        sum: float64 `[layer, head, query, key]`, the attention summed over all examples; for outputs of heads,
            `[layer, head, slot, channel]`.
        count: int64 `[query, key]`, the number of examples that use both slots; for outputs of heads, `[slot]`.
        examples: number of averaged examples.
        about: facts about the averages, such as `causal` if no token sees a later one.
        kind: one of `papa.config.variant.KINDS`.
    """

    sum: Tensor
    count: Tensor
    examples: int
    about: dict[str, str] = field(default_factory=dict)
    kind: str = "average"

    @property
    def n(self) -> int:
        """Number of slots."""
        return len(self.count)

    @classmethod
    def of(cls, kind: str, layers: int, heads: int, slots: int) -> Constants:
        """Return constants that need no text and are the same for every head (Sec. 5.2, Table 1).

        Their rows are masked and normalised when they are used.

        Args:
            kind: with `identity`, each slot attends to itself; with `zeros`, to nothing; with `uniform`, to all slots
                equally; with `toeplitz`, slot q attends to k in proportion to 1 / (1 + |q - k|).
            layers: number of layers in the model.
            heads: number of heads in each layer.
            slots: number of slots in the layout.

        Raises:
            InputError: there is no such kind.

        >>> Constants.of("identity", 2, 3, 5).mean[0, 0].diagonal()
        tensor([1., 1., 1., 1., 1.])
        """
        matrix = data_free_matrix(kind, slots)
        count = torch.ones(slots, slots, dtype=torch.long)
        return cls(matrix.double().expand(layers, heads, slots, slots), count, 0, kind=kind)

    @property
    def mean(self) -> Tensor:
        """The averages, float32, in the shape of `sum`; 0 if the count is 0."""
        mean = torch.empty(self.sum.shape)
        count = self.count.clamp(min=1)
        count = count.view(*count.shape, *(1,) * (self.sum.ndim - 2 - count.ndim))
        for layer, total in enumerate(
            self.sum
        ):  # one layer at a time, because the quotient is float64
            mean[layer] = total / count
        return mean

    @property
    def constants(self) -> Loaded:
        """The averages in the form that replaces attention."""
        return Outputs(self.mean) if self.kind == "mean-output" else self.mean

    def tied(self, kind: str) -> Constants:
        """Return averages that know less, in which pairs of slots share an entry; rows are normalised.

        Args:
            kind: `sink`, with an entry for the first key and one for all others; or `by-distance`, with an entry for
                the first key and one for each distance. In decoders, later keys have none.
        """
        if self.kind != "average" or kind not in TIED:
            raise InputError(
                f"{self.kind} cannot be tied as {kind}; only average can, as {' or '.join(TIED)}."
            )
        n = self.n
        slots = torch.arange(n)
        ones = torch.ones(n, n, dtype=torch.long)
        visible = ones.tril() if self.about.get("causal") == "True" else ones
        distances = slots[:, None] - slots + n if kind == "by-distance" else ones
        # the first key is a separate class, because heads attend to it if no other token matters
        classes = torch.where(slots > 0, distances, 0)
        # q - k + n is between 1 and 2n - 1, and the class of the first key is 0
        count = torch.zeros(2 * n, dtype=torch.long)
        count.index_add_(0, classes.flatten(), (self.count * visible).flatten())
        total = torch.zeros(*self.sum.shape[:2], 2 * n, dtype=torch.float64)
        total.index_add_(2, classes.flatten(), self.sum.flatten(2))
        mean = (total / count.clamp(min=1))[..., classes] * visible
        mean /= mean.sum(-1, keepdim=True).clamp(min=1e-30)
        return replace(self, sum=mean * count[classes], count=count[classes] * visible, kind=kind)

    def plot(self, layer: int, head: int) -> alt.ConcatChart:
        """Draw the average attention of a head: rows are queries, columns are keys. Layers and heads count from 0.

        Colours follow the square root of the mean attention. Pairs of slots that no example uses are grey.

        Raises:
            InputError: there is no such head, or these are averages of the outputs of heads.
            ImportError: the extra study is not installed.

        >>> constants.plot(2, 4)  # doctest: +SKIP
        """
        if missing := missing_extra("study", "Constants.plot"):
            raise ImportError(missing)
        from papa.method.pictures import pictures

        return pictures(self, [(layer, head)])

    def __repr__(self) -> str:
        layers, heads = self.sum.shape[:2]
        kind = "" if self.kind == "average" else f"{self.kind} of "
        return (
            f"<papa.Constants: {kind}{count(layers, 'layer')} of {count(heads, 'head')} in "
            f"{count(self.n, 'slot')}, over {count(self.examples, 'example')}>"
        )

    def save(self, path: PathLike, record: Record | None = None) -> None:
        """Write HDF5 with the datasets sum (float64), count (int64) and mean (float32)."""
        arrays = {
            "sum": self.sum.cpu().numpy(),
            "count": self.count.cpu().numpy(),
            # most jobs read only the mean
            "mean": self.mean.cpu().numpy(),
        }
        facts = {**self.about, "examples": self.examples, "shape": list(self.sum.shape)}
        facts |= {} if self.kind == "average" else {"kind": self.kind}
        write_arrays(arrays, path, facts, record)

    @classmethod
    def load(cls, path: PathLike, kind: str = "") -> Constants:
        """Read a file that `save` wrote; with `sink` or `by-distance` as `kind`, its averages are `tied`.

        Raises:
            InputError: there is no such file, or it has no such constants.
            DamagedArtefact: the file is damaged or contains something else.
        """
        averages, mean = _read(path, ("sum", "count"))
        if (averages.count < 0).any():
            raise damaged(path, "is damaged (a count of examples is negative)")
        # bit by bit, because the same division made both
        if not torch.equal(averages.mean, mean):
            raise damaged(path, "is damaged (its sums, counts and means do not agree)")
        if kind in TIED:
            return averages.tied(kind)
        if kind not in ("", averages.kind):
            raise InputError(
                f"The constants are {kind!r}, but {path} has {averages.kind}; write {' or '.join(TIED)}, or nothing."
            )
        return averages

    @classmethod
    def load_constants(cls, path: PathLike) -> Loaded:
        """Read only the averages, in the form that replaces attention; `load` needs five times the memory.

        Raise the same errors as `load`.
        """
        averages, mean = _read(path, ())
        return Outputs(mean) if averages.kind == "mean-output" else mean


def data_free_matrix(kind: str, slots: int) -> Tensor:
    """Return the matrix `[query, key]`, float32, of a constant that needs no text; see `Constants.of`."""
    distances = (torch.arange(slots)[:, None] - torch.arange(slots)).abs()
    matrices = {
        "identity": (distances == 0).float(),
        "toeplitz": 1 / (1 + distances),
        "zeros": torch.zeros(slots, slots),
        "uniform": torch.ones(slots, slots),
    }
    if kind not in matrices:
        raise InputError(
            f"{kind!r} is not a constant that needs no text; give one of {', '.join(DATA_FREE)}."
        )
    return normalize(matrices[kind], p=1, dim=-1)


def _is_attention(mean: Tensor) -> bool:
    """Whether all values are in [0, 1], except for rounding."""
    if not mean.numel():
        return True
    low, high = mean.aminmax()
    # false for nan
    return bool(low >= -MEAN_TOLERANCE and high <= 1 + MEAN_TOLERANCE)


def _read(path: PathLike, names: Sequence[str]) -> tuple[Constants, Tensor]:
    """Read averages and their mean; sum and count stay empty unless they are among `names`."""
    if not Path(path).exists():
        raise InputError(f"{path} does not exist; average the attention of a corpus first.")
    arrays, facts = read_arrays(path, (*names, "mean"))
    try:
        shape = tuple(facts.pop("shape"))
        kind = str(facts.pop("kind", "average"))
        if kind not in KINDS:
            raise ValueError(f"{kind} is not a kind of constant")
        examples = int(facts.pop("examples"))
        outputs = kind == "mean-output"
        counted = shape[2:3] if outputs else shape[2:]
        shapes = {"sum": shape, "mean": shape, "count": counted}
        fitting = len(shape) == 4 and (outputs or shape[2] == shape[3])
        if not fitting or any(values.shape != shapes[name] for name, values in arrays.items()):
            raise ValueError(f"its datasets do not have the shape {list(shape)}")
    except (LookupError, TypeError, ValueError) as error:  # an untrusted file may contain anything
        raise damaged(path, f"contains no averages made by papa ({first_line(error)})") from error
    tensors = {name: torch.from_numpy(values) for name, values in arrays.items()}
    mean = tensors["mean"]
    if not (outputs or _is_attention(mean)):
        raise damaged(path, "is damaged (a mean of attention is not in [0, 1])")
    about = {key: str(value) for key, value in facts.items()}
    sums, counts = (tensors.get(name, torch.empty(0)) for name in ("sum", "count"))
    return Constants(sums, counts, examples, about, kind), mean
