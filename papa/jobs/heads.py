"""The heads that keep their attention at a fraction, as files that `orders: [{file: …}]` reads."""

from __future__ import annotations

from fractions import Fraction
from math import floor
from pathlib import Path

import pandas as pd

from papa.files import PathLike


def write_kept_heads(heads: pd.DataFrame, target: PathLike, fraction: str = "1/2") -> list[Path]:
    """Write the kept heads of each learned order to `target/MODEL-TASK-CONSTANT-ORDER-SEED.csv`.

    Args:
        heads: the heads of a study (`Study.heads`).
        target: a folder, made if needed.
        fraction: share of heads that keep their attention.

    Returns:
        The files, with the columns layer and head. The head that is replaced last comes first.
    """
    written = []
    for names, rows in heads.groupby(["model", "task", "constant", "order", "seed"], sort=False):
        best = rows.sort_values("rank", ascending=False)[["layer", "head"]]
        file = Path(target, "-".join(map(str, names)) + ".csv")
        file.parent.mkdir(parents=True, exist_ok=True)
        best.head(floor(Fraction(fraction) * len(best))).to_csv(file, index=False)
        written.append(file)
    return written
