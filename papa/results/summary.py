"""The summary of all runs: mean scores over seeds with intervals, relative drops and reliance, and their tables."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from fractions import Fraction
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING

import pandas as pd

from papa.config.measures import MEASURES, METRICS
from papa.config.settings import Config
from papa.config.variant import CONTEXT_FREE
from papa.errors import DamagedArtefact, InputError, count
from papa.files import REBUILD, PathLike, read_json, read_table
from papa.results.outcomes import ALL, VARIANT_KEYS, TaskOutcomes, is_probed
from papa.results.phrases import COVERED, RELIANCE_NOTE, floor_name, reliance_text, share_replaced
from papa.results.reliance import COUNTS, RELIANCE_COLUMNS, reliances_of
from papa.results.scores import (
    DATA_COLUMNS,
    METRIC_COLUMNS,
    RECIPE_COLUMNS,
    SETTING_COLUMNS,
    without_draws,
)
from papa.results.table import Table, mean_text, metric_name, printable, score_text, texts, used

if TYPE_CHECKING:
    from rich.console import Console

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
TITLE = "Scores by number of replaced heads"
SUMMARY_COLUMNS = SETTING_COLUMNS | METRIC_COLUMNS | {"mean": "float64", "seeds": "int64"}
SUMMARY_COLUMNS |= dict.fromkeys(("half_width", "low", "high", "relative_drop"), "float64")
SUMMARY_COLUMNS |= RELIANCE_COLUMNS | DATA_COLUMNS
SETTING = ["model", "task", *VARIANT_KEYS]
SHARED_WITH_ORIGINAL = ["model", "task", "metric", "subset"]
"""The columns in which a setting and its original agree."""


def with_reliance(runs: pd.DataFrame, outcomes: Sequence[TaskOutcomes]) -> pd.DataFrame:
    """Summarise a table of runs and their outcomes, with floors, reliance and intervals (`SUMMARY_COLUMNS`)."""
    return summary_of(runs, reliances_of(outcomes))


def summary_of(runs: pd.DataFrame, measured: pd.DataFrame) -> pd.DataFrame:
    """Return the mean, 95% interval and relative drop of every setting in a table of runs.

    If heads are replaced in several random orders, a seed's score is its mean over these orders. `measured` has the
    `half_width` of intervals, and the columns of reliance; see `reliances_of`.

    drop = (original - score) / |original| for the same model, task, metric and subset (Sec. 4). It is null for
    log-scaled metrics, and if the original's interval contains 0 or is unknown, as with one seed. Rows are in the order
    of the runs, with fractions in descending order.
    """
    runs = without_draws(runs)
    keys = [*SETTING_COLUMNS, "metric", "subset"]
    runs["setting"] = runs.groupby(keys, dropna=False, sort=False).ngroup()
    by_seed = runs.dropna(subset="score").groupby(["setting", "seed"])["score"].agg(fmean)
    numbers = by_seed.groupby("setting").agg(mean=fmean, seeds="size")
    rows = runs.drop_duplicates("setting").set_index("setting").join(numbers)
    rows["seeds"] = rows["seeds"].fillna(0).astype("int64")
    rows = rows.merge(measured, how="left", on=[*SETTING, "metric", "subset"])
    rows["low"], rows["high"] = rows["mean"] - rows["half_width"], rows["mean"] + rows["half_width"]
    shared = rows[SHARED_WITH_ORIGINAL]
    originals = rows[rows["constant"].isna()].drop_duplicates([*shared], keep="last")
    originals = originals.set_index([*shared])[["mean", "low", "high"]]
    original = originals.reindex(pd.MultiIndex.from_frame(shared)).set_index(rows.index)
    defined = ((original["low"] > 0) | (original["high"] < 0)) & has_drop(rows["metric"])
    rows["relative_drop"] = ((original["mean"] - rows["mean"]) / original["mean"].abs()).where(
        defined
    )
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


def series(rows: pd.DataFrame) -> list[tuple[str, pd.DataFrame]]:
    """Split summary rows into named series by fraction, one for each constant and order.

    Rows at fraction 1 have no constant and rows at fraction 0 no order, so they belong to several series. A series has
    the tasks that were run with its constant and order. A constant that was run only as a context-free floor is a
    separate series only if there are no other constants.
    """
    constants, orders = rows["constant"], rows["order"]
    names = set(constants.dropna())
    only_floors = {
        name for name in CONTEXT_FREE if set(rows.loc[constants.eq(name), "fraction"]) == {"0"}
    }
    shown = names - only_floors or names  # the floor has a column
    replaced, parts = rows[constants.isin(shown)], []
    for constant, order in replaced[["constant", "order"]].drop_duplicates().to_numpy().tolist():
        ordered = isinstance(order, str)
        exact = constants.eq(constant) & (orders.eq(order) if ordered else orders.isna())
        belongs = rows["task"].isin(rows.loc[exact, "task"]) & (
            constants.isna() | constants.eq(constant)
        )
        if not ordered:
            belongs &= ~rows["task"].isin(rows.loc[constants.eq(constant) & orders.notna(), "task"])
        words = f"{constant} constants{f', {order} order' if ordered else ''}"
        parts.append((words, rows[belongs & (orders.isna() | orders.eq(order))]))
    parts.append(("nothing replaced", rows[~rows["task"].isin(replaced["task"])]))
    return [(words, part) for words, part in parts if len(part)]


def fractions_of(rows: pd.DataFrame) -> list[str]:
    """Return the fractions in `rows`, largest first."""
    return sorted(rows["fraction"].unique(), key=Fraction, reverse=True)


def tables_of(rows: pd.DataFrame) -> list[Table]:
    """Return tables of scores, subsets and other metrics for each model and series, then a table of the data."""
    tables, by_metric = [], {"task": "title", "metric": "metric"}
    by_subset = {"task": "title", "subset": "subset", "examples": "examples"}
    for title, block in _blocks(rows):
        for name, selected, names in (
            ("", is_main(block), by_metric),
            (". Subsets, scored separately", block["subset"].ne(ALL), by_subset),
            (". Other metrics", block["main"].eq(False), by_metric),
        ):
            if selected.any():
                tables.append(
                    Table(f"{title}{name}", by_fraction(block, selected, names), len(names))
                )
    data = Table("Data", data_of(rows[is_main(rows)]), 2, DATA_NOTE)
    return [*tables, data, *recipe_tables(rows)]


def print_summary(rows: pd.DataFrame, console: Console) -> None:
    """Print scores and reliance in tables that fit the console, with subsets below their task."""
    indented = rows["title"].where(rows["subset"] == ALL, "  " + rows["subset"])
    for title, block in _blocks(rows.assign(indented=indented)):
        console.print(printable(title), style="bold")
        headings = headings_of(block)
        shown, names = _laid_out(block, block["main"].eq(True), {"": "indented"})
        tables = [
            (
                "Score",
                _with_floors(names, shown).join(_cells(shown, "score_text", fractions_of(block))),
            )
        ]
        if shown["reliance"].notna().any():
            below_one = [fraction for fraction in fractions_of(block) if fraction != "1"]
            reliances = _cells(shown, "reliance_text", below_one).replace("", "-")
            tables.append(("Reliance and its 95% interval", names.join(reliances)))
        for title, frame in tables:
            whole = Table(f"{title}, by {BY_NUMBER}", _by_number(frame, headings), 1)
            for table in whole.fitting(console.width):
                table.print(console)


def _blocks(rows: pd.DataFrame) -> list[tuple[str, pd.DataFrame]]:
    return [
        (f"{model} ({count(block['heads'].iloc[0], 'head')}): {words}", block)
        for model, rows_of_model in rows.groupby("model", sort=False)
        for words, block in series(rows_of_model)
    ]


def by_fraction(
    rows: pd.DataFrame, selected: pd.Series[bool], names: Mapping[str, str]
) -> pd.DataFrame:
    """Return the cells of a table: floors, the score at each fraction, and drop and reliance at the smallest fraction.

    The table has a row for each task, metric and subset of the `selected` rows, and for each `line` if the rows of a
    grid have lines. Each fraction of `rows` has a column. `names` has the headings of the first columns, and the column
    that each shows.
    """
    fractions = fractions_of(rows)
    shown, table = _laid_out(rows, selected, names)
    at_last = shown[shown["fraction"] == fractions[-1]].set_index("row").reindex(table.index)
    drop, reliance = at_last["relative_drop"].map(mean_text), at_last["reliance_text"].fillna("-")
    headings = headings_of(rows)
    cells = _by_number(_cells(shown, "score_text", fractions), headings)
    last = {
        f"{name} at {headings[fractions[-1]]}": text
        for name, text in (("drop", drop), ("reliance", reliance))
    }
    return _with_floors(table, shown).join(cells).assign(**last)


def headings_of(rows: pd.DataFrame) -> dict[str, str]:
    """Map fractions to headings: the number of heads replaced, or their share if models have different numbers."""
    headings = {}
    for fraction in fractions_of(rows):
        numbers = rows.loc[rows["fraction"].eq(fraction), ["kept", "heads"]].drop_duplicates()
        kept, heads = numbers.iloc[0]
        headings[fraction] = (
            f"{heads - kept:,} of {heads:,}" if len(numbers) == 1 else share_replaced(fraction)
        )
    return headings


def _by_number(cells: pd.DataFrame, headings: Mapping[str, str]) -> pd.DataFrame:
    """Rename fractions to `headings`; fractions with the same number of replaced heads become one column."""
    renamed = cells.rename(columns=headings)
    return renamed.mask(renamed == "").T.groupby(level=0, sort=False).first().T.fillna("")


def _laid_out(
    rows: pd.DataFrame, selected: pd.Series[bool], names: Mapping[str, str]
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return the selected rows, with the text of cells and the `row` of the table; and the table's first columns."""
    keys = ["task", "metric", "subset", *rows.columns.intersection(["line"])]
    shown = rows[selected]
    shown = shown.assign(
        row=shown.groupby(keys, sort=False).ngroup(),
        score_text=texts(score_text, shown, "mean", "half_width"),
        reliance_text=texts(reliance_text, shown, "reliance", "reliance_low", "reliance_high"),
    ).drop_duplicates(["row", "fraction"], keep="last")
    metrics = texts(metric_name, shown, "metric", "positive")
    table = shown.assign(metric=metrics, examples=shown["examples"].map("{:,.0f}".format))
    table = table.drop_duplicates("row").set_index("row")[list(names.values())]
    return shown, table.set_axis(list(names), axis=1)


def _cells(shown: pd.DataFrame, text: str, fractions: list[str]) -> pd.DataFrame:
    return (
        shown.pivot(index="row", columns="fraction", values=text)
        .reindex(columns=fractions)
        .fillna("")
    )


def _with_floors(table: pd.DataFrame, shown: pd.DataFrame) -> pd.DataFrame:
    by_row = shown.groupby("row")
    floors = {
        floor_name(name): [score_text(score, math.nan) for score in by_row[name].first()]
        for name in FLOORS
    }
    return table.assign(**floors)


def legend(rows: pd.DataFrame) -> str:
    """Return the note below tables by fraction, which explains columns, cells, drops and reliance."""
    columns = f"Columns: {BY_NUMBER}."
    return " ".join(
        (columns, score_note(rows), DROP_NOTE, RELIANCE_NOTE, exclusion_note(rows))
    ).strip()


def cluster_note(config: Config) -> str:
    """Return a sentence that names the clusters of each task; empty if every example is drawn by itself."""
    units = dict[str, str]()
    for _, name in config.pairs:
        task = config.tasks[name]
        unit = config.corpora[task.corpus].cluster
        if unit is not None:
            units[task.title or name] = (
                f"one per {unit}" if isinstance(unit, str) else f"{unit} consecutive examples each"
            )
    named = "; ".join(f"{title}, {words}" for title, words in units.items())
    return f"Intervals of reliance resample whole clusters of examples: {named}." if named else ""


def exclusion_note(rows: pd.DataFrame) -> str:
    """Return a sentence that lists the tasks without a reliance and the reasons; empty if there are none."""
    main = rows[is_main(rows)].drop_duplicates(["model", "task"])
    several = main["model"].nunique() > 1
    named = (
        main.loc[main["status"].ne(COUNTS), ["model", "title", "status"]]
        .dropna()
        .itertuples(index=False)
    )
    reasons = [
        f"{title}{f' ({model})' if several else ''}: {status}" for model, title, status in named
    ]
    return f"Excluded (-): {'; '.join(reasons)}." if reasons else ""


def score_note(rows: pd.DataFrame) -> str:
    """Return the sentences that explain the cells with scores."""
    main = rows[is_main(rows)]
    notes = [
        measure.note
        for name, measure in METRICS.items()
        if measure.note and main["metric"].eq(name).any()
    ]
    seeds = main.loc[is_probed(main["metric"]), "seeds"]
    notes += [MODEL_HEAD_NOTE] if notes else []
    if seeds.empty:
        return " ".join(notes)
    least, most = seeds.min(), seeds.max()
    over = f"{most}" if least == most else f"{least} to {most}"
    note = f"mean over {over} seeds ± half-width of the 95% interval over {COVERED}"
    note += "; a single seed has no interval" if least == 1 else ""
    return " ".join(
        [f"Cells: validation score, {'one seed, so no interval' if most == 1 else note}.", *notes]
    )


def data_of(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the cells of a table of the numbers of rows used and of examples cut."""
    frame = pd.DataFrame({"task": rows["title"], "model": rows["model"]})
    for split, words in (("train", "training"), ("validation", "validation")):
        frame[f"{words} rows"] = texts(used, rows, f"rows_{split}", f"rows_available_{split}")
        frame[f"{words} examples cut"] = rows[f"cut_{split}"].map("{:,.0f}".format)
    return frame.drop_duplicates()


def recipe_tables(rows: pd.DataFrame) -> list[Table]:
    """Return a table of how the probes of each task were trained; nothing if no probe was trained."""
    if "style" not in rows:
        return []
    trained = rows[is_main(rows) & is_probed(rows["metric"])].dropna(subset="style")
    if trained.empty:
        return []
    main = trained.drop_duplicates(["model", "task"])
    cells = {
        "task": main["title"],
        "model": main["model"],
        "learning rate": main["learning_rate"].map("{:g}".format),
    }
    cells |= {
        name: main[name.replace(" ", "_")].map("{:.0f}".format) for name in ("batch size", "epochs")
    }
    cells |= {"training rows": main["rows_train"].map("{:,.0f}".format), "layout": main["style"]}
    return [Table("Training of probes", pd.DataFrame(cells), 2)]


def print_results(results: Path) -> None:
    """Print the conclusion in a results folder, its summary, and the paths of tables, figures and HTML report."""
    from rich.console import Console

    console = Console(markup=False, highlight=False, emoji=False)
    try:
        rows = read_summary(results / "tables/summary.parquet")
        claims = read_json(results / "tables/claims.json")
        console.print("", *map(printable, claims["sentences"]), "", sep="\n")
        if claims["table"]["data"]:
            Table("", pd.DataFrame(**claims["table"]), 2).print(console)
        console.print(*(f"- {printable(note)}" for note in claims["notes"]), "", sep="\n")
        print_summary(rows, console)
        console.print(WHERE_DEFINED)
    except InputError as error:
        raise SystemExit(str(error)) from None
    if results.is_relative_to(Path.cwd()):
        results = results.relative_to(Path.cwd())
    print(f"\nTables:  {results / 'tables'}/")
    if (figures := results / "figures").exists():
        print(f"Figures: {figures}/")
    if (page := results / "report/index.html").exists():
        print(f"Report:  {page}")
