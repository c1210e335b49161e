"""Write the lists of heads with which the heads of each layer are replaced alone.

    python benchmarks/layers.py LAYERS HEADS FULL ...    # config/gemma.yaml: 18 4 5 11 17
    python benchmarks/layers.py 12 12    # config/mpnet-layers.yaml, in another folder

Writes layers/layer-N.csv, which lists the heads of all other layers. Heads that are not listed are replaced first, so
with a fraction of (LAYERS - 1)/LAYERS exactly those of layer N are replaced. Likewise, layers/full.csv lists the heads
of all but the FULL layers, and layers/sliding.csv those of the FULL ones.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pandas as pd


def main(layers: int, heads: int, full: list[int]) -> None:
    folder = Path("layers")
    folder.mkdir(exist_ok=True)
    every = pd.MultiIndex.from_product([range(layers), range(heads)], names=["layer", "head"])
    table = every.to_frame(index=False)
    replaced = {f"layer-{layer}": [layer] for layer in range(layers)}
    replaced |= {"full": full, "sliding": [layer for layer in range(layers) if layer not in full]}
    for name, of_these in replaced.items():
        others = table[~table["layer"].isin(of_these)]
        others.to_csv(folder / f"{name}.csv", index=False)
    print(f"Wrote {len(replaced)} files to layers/")


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), list(map(int, sys.argv[3:])))
