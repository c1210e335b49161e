"""How stable orders of heads are: those that λ gives with other seeds, and with each half of the texts.

Only the order of λ matters, so it is orders that are compared: by Kendall's τ over all heads, and by the share of the
kept heads that two orders have in common at each fraction.
"""

from __future__ import annotations

from fractions import Fraction
from itertools import combinations
from math import floor

import pandas as pd

from papa.config.stages import StabilityOf
from papa.config.study import Job
from papa.config.variant import parts_of
from papa.errors import count
from papa.files import provenance_of, read_table
from papa.results.grids import constant_name
from papa.results.table import Table, write_frame, write_pages

Key = tuple[str, str | None]
"""The seed of a λ, and of which part of the texts it is; None stands for all of them."""
OWNER = ["model", "task", "title", "constant"]
COLUMNS = dict.fromkeys((*OWNER, "a", "b", "fraction"), "string")
COLUMNS |= dict.fromkeys(("tau", "overlap", "by_chance"), "float64")
TITLE = "Stability of orders"
NOTE = (
    "Kendall's τ between the λ of two trainings over all heads: 1 for the same order, 0 for unrelated ones. Kept in "
    "common: of the heads that both would keep at a fraction, the share that is the same; by chance it would be the "
    "fraction itself. Halves: λ learned on each of two random halves of the training texts."
)


def compare_orders(job: Job[StabilityOf]) -> str:
    """Stage *stability*: write how alike the `lambdas` are, in pairs, as Parquet, Markdown and LaTeX."""
    told = job.settings
    learned = pd.DataFrame(told.learned).assign(path=job.inputs["lambdas"])
    if "part" not in learned:
        learned["part"] = None
    frame = stability_of(learned, told.fractions)
    write_frame(frame, COLUMNS, job.output("table"), {"table": "stability"}, job.trace())
    write_pages(TITLE, tables_of(frame), NOTE, job.output("markdown"), job.output("latex"))
    if frame.empty:
        return "one λ of each kind, so none to compare"
    taus = frame.drop_duplicates([*OWNER, "a", "b"])["tau"]
    return f"{count(len(taus), 'pair')} of orders: Kendall's τ {taus.min():.2f} to {taus.max():.2f}"


def stability_of(learned: pd.DataFrame, fractions: tuple[str, ...]) -> pd.DataFrame:
    """A row for each pair of λ and each fraction, with `COLUMNS`.

    Args:
        learned: `model`, `task`, its `title`, `constant`, `seed`, `part` (null for all texts) and `path` of each λ.
            Seeds are compared with each other, and the halves of one seed.
        fractions: the shares of kept heads.
    """
    from scipy.stats import kendalltau

    rows = []
    for owner, own in learned.groupby(OWNER, sort=False):
        paths: dict[Key, str] = {
            (str(seed), part if isinstance(part, str) else None): str(path)
            for seed, part, path in zip(own["seed"], own["part"], own["path"], strict=True)
        }
        seeds = list(dict.fromkeys(seed for seed, part in paths if part is None))
        pairs: list[tuple[Key, Key, str, str]] = [
            ((one, None), (other, None), f"seed {one}", f"seed {other}") for one, other in combinations(seeds, 2)
        ]
        first_half, second_half = parts_of(2)
        for seed in seeds:
            if (seed, first_half) in paths and (seed, second_half) in paths:
                names = f"half 1, seed {seed}", f"half 2, seed {seed}"
                pairs.append(((seed, first_half), (seed, second_half), *names))
        for one, other, a, b in pairs:
            first, second = _last(paths[one]), _last(paths[other])
            about = dict(zip(OWNER, owner, strict=True)) | {"a": a, "b": b}
            about["tau"] = float(kendalltau(first, second).statistic)
            for fraction in fractions:
                kept = floor(Fraction(fraction) * len(first))
                if kept:
                    both = set(first.nlargest(kept).index) & set(second.nlargest(kept).index)
                    chance = kept / len(first)
                    rows.append(about | {"fraction": fraction, "overlap": len(both) / kept, "by_chance": chance})
    return pd.DataFrame(rows, columns=list(COLUMNS))


def _last(path: str) -> pd.Series[float]:
    """λ of each head, or of each unit of heads, after the last epoch, in the order of layers and heads."""
    table = read_table(path)
    rows, size = table.to_pandas(), int(provenance_of(table).get("unit_size", 1))
    rows = rows[rows["epoch"] == rows["epoch"].max()].sort_values(["layer", "head"])
    return pd.Series(rows["value"].to_numpy()[::size])


def tables_of(frame: pd.DataFrame) -> list[Table]:
    """Kendall's τ and overlaps as people read them."""
    text = pd.DataFrame(
        {
            "task": frame["title"],
            "model": frame["model"],
            "constants": frame["constant"].map(constant_name),
            "orders": frame["a"] + " and " + frame["b"],
            "τ": frame["tau"].map("{:.2f}".format),
            "fraction kept": frame["fraction"],
            "kept in common": frame["overlap"].map("{:.0%}".format),
            "by chance": frame["by_chance"].map("{:.0%}".format),
        }
    )
    return [Table("", text, 4)]
