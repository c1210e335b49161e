"""Where a training step of a probe of words spends its time, and how near its matrix products are to the peak.

python benchmarks/probe_step.py                 # MPNet on NER: 12 layers, 768, batches of 160 tokens
python benchmarks/probe_step.py 12 768 160
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable

import torch
from torch.nn.functional import cross_entropy

from papa.method.objectives import TokenProbe
from papa.method.training import TrainingState

LABELS = 9
RUNS = 20


def seconds(work: Callable[[], object]) -> float:
    """Return the mean seconds of `RUNS` runs, after two others."""
    for _ in range(2):
        work()
    begin = time.perf_counter()
    for _ in range(RUNS):
        work()
    return (time.perf_counter() - begin) / RUNS


def main(layers: int = 12, hidden: int = 768, tokens: int = 160) -> None:
    """Print the parts of a step in milliseconds, and the speed of its products and of one large product."""
    probe = TokenProbe(layers + 1, hidden, LABELS)
    state = TrainingState(list(probe.parameters()), 1e-4)
    stored = torch.randn(tokens, layers + 1, hidden).half()
    states = stored.float()
    gold = torch.randint(LABELS, (tokens,))

    def learn() -> None:
        cross_entropy(probe.packed(states), gold).backward()

    def step() -> None:
        learn()
        state.step()

    square = torch.randn(1024, 1024)
    peak = 2 * 1024**3 / seconds(lambda: square @ square)
    whole = seconds(step)
    products = seconds(learn)
    read = seconds(stored.float)
    # forward, and the gradient of the weights; hidden states have none
    operations = 4 * tokens * sum(values.numel() for values in probe.parameters())
    print(f"{sum(values.numel() for values in probe.parameters()):,} weights, {tokens} tokens")
    print(f"read states {1000 * read:.1f} ms, products {1000 * products:.1f} ms, ", end="")
    print(f"optimizer {1000 * (whole - products):.1f} ms")
    print(f"products at {operations / products / 1e9:.0f} GFLOP/s, ", end="")
    print(f"{operations / products / peak:.0%} of a large product ({peak / 1e9:.0f} GFLOP/s)")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
