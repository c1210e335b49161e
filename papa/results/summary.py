"""The summary of all runs: mean scores with intervals, what is lost and contributed, reliance, and their tables."""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction
from pathlib import Path
from statistics import fmean

import pandas as pd
from rich.console import Console

from papa.config.measures import MEASURES, METRICS
from papa.errors import DamagedArtefact, InputError
from papa.files import REBUILD, PathLike, read_json, read_table
from papa.results.outcomes import ALL, VARIANT_KEYS
from papa.results.phrases import effect_texts, floor_name, reliance_text, share_replaced
from papa.results.reliance import EFFECT_COLUMNS, NOT_SIGNIFICANT, SIGNIFICANT
from papa.results.scores import (
    DATA_COLUMNS,
    METRIC_COLUMNS,
    RECIPE_COLUMNS,
    SETTING_COLUMNS,
    without_draws,
)
from papa.results.table import (
    Table,
    mean_text,
    metric_name,
    printable,
    score_text,
    texts,
    used,
    used_columns,
)

DROP_NOTE = (
    "Drop: (original - score) / |original|. It is undefined (-) for log-scale scores, and if the original's interval"
    " contains 0 or is unknown."
)
MODEL_HEAD_NOTE = (
    "The model's own head is not trained, so there are no seeds. If its context-free score is below the trivial "
    "guess on the same examples, the trivial guess is its floor."
)
DATA_NOTE = "Rows: used of available. Examples cut: examples with more tokens than slots."

FLOORS = ("trivial", "context_free")
BY_NUMBER = "heads replaced"
WHERE_DEFINED = "The HTML report and docs/reliance.md explain floors, reliance and intervals."
SUMMARY_COLUMNS = SETTING_COLUMNS | METRIC_COLUMNS | {"mean": "float64", "seeds": "int64"}
SUMMARY_COLUMNS |= dict.fromkeys(("half_width", "low", "high", "relative_drop"), "float64")
SUMMARY_COLUMNS |= EFFECT_COLUMNS | DATA_COLUMNS
SETTING = ["model", "task", *VARIANT_KEYS]
SHARED_WITH_ORIGINAL = ["model", "task", "metric", "subset"]
"""The columns in which a setting and its original agree."""


def summary_of(runs: pd.DataFrame, measured: pd.DataFrame) -> pd.DataFrame:
    """Return the mean, 95% interval and relative drop of every setting in a table of runs.

    If heads are replaced in several random orders, a seed's score is its mean over these orders. `measured` has the
    `half_width` of intervals, and the columns of effects; see `effects_of`.

    drop = (original - score) / |original| for the same model, task, metric and subset (Sec. 4). It is null for
    log-scaled metrics, and if the original's interval contains 0 or is unknown, as with one seed. Rows are in the order
    of the runs, with fractions in descending order.
    """
    runs = without_draws(runs)
    keys = [*SETTING_COLUMNS, "metric", "subset"]
    # pandas drops groups without a constant or an order by default, and with them the original
    runs["setting"] = runs.groupby(keys, dropna=False, sort=False).ngroup()
    by_seed = runs.dropna(subset="score").groupby(["setting", "seed"])["score"].agg(fmean)
    numbers = by_seed.groupby("setting").agg(mean=fmean, seeds="size")
    rows = runs.drop_duplicates("setting").set_index("setting").join(numbers)
    rows["seeds"] = rows["seeds"].fillna(0).astype("int64")
    rows = rows.merge(measured, how="left", on=[*SETTING, "metric", "subset"])
    rows["low"] = rows["mean"] - rows["half_width"]
    rows["high"] = rows["mean"] + rows["half_width"]
    originals = rows[rows["constant"].isna()].set_index(SHARED_WITH_ORIGINAL)
    original = rows[SHARED_WITH_ORIGINAL].join(
        originals[["mean", "low", "high"]], on=SHARED_WITH_ORIGINAL
    )
    defined = ((original["low"] > 0) | (original["high"] < 0)) & has_drop(rows["metric"])
    drop = (original["mean"] - rows["mean"]) / original["mean"].abs()
    rows["relative_drop"] = drop.where(defined)
    by = ["model", "task", "fraction", "constant", "order", "metric", "subset"]
    rows = rows.sort_values(by, key=_sort_key, kind="stable")
    return rows[list(SUMMARY_COLUMNS | RECIPE_COLUMNS)].reset_index(drop=True)


def _sort_key(column: pd.Series[str]) -> pd.Series[float]:
    """Map values to sort keys: fractions in descending order, all others in order of first appearance."""
    if column.name == "fraction":
        return -column.map(Fraction).astype("float64")
    return pd.Series(pd.factorize(column, use_na_sentinel=False)[0], column.index)


def read_summary(path: PathLike) -> pd.DataFrame:
    """Read a summary; raise `DamagedArtefact` if the file is empty or holds another table."""
    frame: pd.DataFrame = read_table(path).to_pandas()
    if frame.empty or not {*SUMMARY_COLUMNS} <= {*frame}:
        raise DamagedArtefact(f"{path} is not a summary of papa; {REBUILD}.")
    return frame


def has_drop(metrics: pd.Series[str]) -> pd.Series[bool]:
    """Select the metrics with a relative drop: those on which a model without skill scores 0."""
    return ~metrics.isin([name for name, measure in MEASURES.items() if measure.log_scaled])


def is_main(rows: pd.DataFrame) -> pd.Series[bool]:
    """Select the rows that represent their task: its metric on all examples."""
    return rows["main"].eq(True) & rows["subset"].eq(ALL)


def by_fraction(
    rows: pd.DataFrame, selected: pd.Series[bool], names: Mapping[str, str]
) -> pd.DataFrame:
    """Return the cells of a table: floors, scores by fraction, and the effects of the smallest fraction.

    The table has a row for each task, metric and subset of the `selected` rows, and for each `line` if the rows of a
    grid have lines. Each fraction of `rows` has a column. `names` has the headings of the first columns, and the column
    that each shows.
    """
    shown, table = _laid_out(rows, selected, names)
    for name in FLOORS:
        floors = shown.groupby("row")[name].first()
        table[floor_name(name)] = floors.map(score_text)
    headings = headings_of(rows)
    smallest = [*headings][-1]
    scores = shown.pivot(index="row", columns="fraction", values="score_text")
    scores = scores.reindex(columns=[*headings]).rename(columns=headings)
    # fractions with one number of replaced heads are one column; transposed, because pandas no longer groups columns
    scores = scores.T.groupby(level=0, sort=False).first().T.fillna("")
    at_last = shown[shown["fraction"] == smallest].set_index("row").reindex(table.index)
    last = effect_texts(at_last, reliance_text)[["lost", "reliance"]]
    last["drop"] = at_last["relative_drop"].map(mean_text)
    return used_columns(table.join(scores).join(last.add_suffix(f" at {headings[smallest]}")))


def headings_of(rows: pd.DataFrame) -> dict[str, str]:
    """Map fractions, largest first, to the number of heads replaced, or to their share if models differ in it."""
    headings = {}
    for fraction in sorted(rows["fraction"].unique(), key=Fraction, reverse=True):
        numbers = rows.loc[rows["fraction"].eq(fraction), ["kept", "heads"]].drop_duplicates()
        kept, heads = numbers.iloc[0]
        headings[fraction] = f"{heads - kept:,} of {heads:,}"
        if len(numbers) > 1:
            headings[fraction] = share_replaced(fraction)
    return headings


def _laid_out(
    rows: pd.DataFrame, selected: pd.Series[bool], names: Mapping[str, str]
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return the selected rows, with the text of cells and the `row` of the table; and the table's first columns."""
    keys = ["task", "metric", "subset", *rows.columns.intersection(["line"])]
    shown = rows[selected]
    shown = shown.assign(
        row=shown.groupby(keys, sort=False).ngroup(),
        score_text=texts(score_text, shown, "mean", "half_width"),
    ).drop_duplicates(["row", "fraction"], keep="last")
    table = shown.assign(
        metric=texts(metric_name, shown, "metric", "positive"),
        examples=texts("{:,.0f}".format, shown, "examples"),
    )
    table = table.drop_duplicates("row").set_index("row")[list(names.values())]
    return shown, table.set_axis(list(names), axis=1)


def missing_note(rows: pd.DataFrame) -> str:
    """Return a sentence that lists tasks whose lack of a reliance is not seen in cells; empty if there are none."""
    main = rows[is_main(rows)].drop_duplicates(["model", "task"])
    named = main.loc[~main["status"].isin([SIGNIFICANT, NOT_SIGNIFICANT])].dropna(subset="status")
    reasons = named["title"] + " (" + named["model"] + "): " + named["status"]
    return f"No reliance: {'; '.join(reasons)}." if len(named) else ""


def score_note(rows: pd.DataFrame, sources: str) -> str:
    """Return the sentences that explain the cells with scores, whose intervals cover `sources` of variance."""
    metrics = rows.loc[is_main(rows), "metric"].dropna().unique()
    notes = [METRICS[metric].note for metric in metrics if METRICS[metric].note]
    notes += [MODEL_HEAD_NOTE] if notes else []
    cells = f"Cells: validation score ± half-width of the 95% interval over {sources}."
    return " ".join([cells, *notes])


def data_of(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the cells of a table of the numbers of rows used and of examples cut."""
    frame = pd.DataFrame({"task": rows["title"], "model": rows["model"]})
    for split, words in (("train", "training"), ("validation", "validation")):
        frame[f"{words} rows"] = texts(used, rows, f"rows_{split}", f"rows_available_{split}")
        frame[f"{words} examples cut"] = rows[f"cut_{split}"].map("{:,.0f}".format)
    return frame.drop_duplicates()


def print_results(results: Path) -> None:
    """Print the conclusion in a results folder, and the path of its HTML report."""
    console = Console(markup=False, highlight=False, emoji=False)
    try:
        claims = read_json(results / "tables/claims.json")
        console.print("", *map(printable, claims["sentences"]), "", sep="\n")
        if claims["table"]["data"]:
            Table("", pd.DataFrame(**claims["table"]), 1).print(console)
        console.print(*(f"- {printable(note)}" for note in claims["notes"]), "", sep="\n")
        console.print(WHERE_DEFINED)
    except InputError as error:
        raise SystemExit(str(error)) from None
    page = results / "report/index.html"
    shown = page.relative_to(Path.cwd()) if page.is_relative_to(Path.cwd()) else page
    # not by rich, which would break a long path into lines
    print(f"\nReport: {shown}")
