"""The heads that keep their attention at a fraction, as files that `orders: [{file: …}]` reads."""

from __future__ import annotations

from fractions import Fraction
from math import floor
from pathlib import Path

from papa.config.artefacts import ARTEFACTS
from papa.config.variant import RANDOM, Order
from papa.files import PathLike, read_table


def write_kept_heads(results: PathLike, target: PathLike, fraction: str = "1/2", model: str = "*") -> list[Path]:
    """Write the kept heads of each order of a study to `target/MODEL-TASK-CONSTANT-ORDER.csv`; skip random orders.

    Args:
        results: a results folder.
        target: a folder, made if needed.
        fraction: share of heads that keep their attention.
        model: name of the model; by default, all.

    Returns:
        The files, with the columns layer and head. The head that is replaced last comes first.
    """
    written = []
    artefact, wildcards = ARTEFACTS["order"], dict.fromkeys(("task", "constant", "order"), "*")
    for path in sorted(Path(results).glob(artefact.path(model=model, **wildcards))):
        parsed = artefact.parsed(path)
        if parsed is None or Order.parse(parsed[1]["order"]).base == RANDOM:
            continue
        rows = read_table(path).select(["layer", "head"]).to_pylist()[::-1]
        lines = [f"{row['layer']},{row['head']}" for row in rows[: floor(Fraction(fraction) * len(rows))]]
        file = Path(target, "-".join(parsed[1].values()) + ".csv")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("\n".join(["layer,head", *lines, ""]), encoding="utf-8")
        written.append(file)
    return written
