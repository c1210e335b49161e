"""Write the lists of heads with which each layer's heads are replaced alone, for config/gemma.yaml.

    python benchmarks/layers.py LAYERS HEADS    # Gemma 3 270M: 18 4

Writes layers/layer-N.csv, which lists the heads of all other layers. Heads that are not listed are replaced first, so
with a fraction of (LAYERS - 1)/LAYERS exactly those of layer N are replaced.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pandas as pd


def main(layers: int, heads: int) -> None:
    folder = Path("layers")
    folder.mkdir(exist_ok=True)
    every = pd.MultiIndex.from_product([range(layers), range(heads)], names=["layer", "head"])
    table = every.to_frame(index=False)
    for layer in range(layers):
        others = table[table["layer"].ne(layer)]
        others.to_csv(folder / f"layer-{layer}.csv", index=False)
    print(f"Wrote layers/layer-0.csv to layers/layer-{layers - 1}.csv")


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
