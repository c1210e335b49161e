"""The summary of all runs: means over seeds with intervals, relative drops and losses, and its tables."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from fractions import Fraction
from pathlib import Path
from statistics import fmean, stdev
from typing import TYPE_CHECKING, Any

import pandas as pd

from papa.config.artefacts import ARTEFACTS
from papa.config.job import Job
from papa.config.measures import MEASURES, METRICS
from papa.config.stages import AnalysisOf, TaskOf
from papa.errors import InputError, count
from papa.files import PathLike, digest_of, provenance_of, read_table, trace_of
from papa.method.metrics import counts_of
from papa.method.runs import Run, read_runs
from papa.results.analysis import Analysis, Computed
from papa.results.conclusion import Conclusion, Exclusion
from papa.results.losses import COUNTS, LOSS_COLUMNS, losses_of
from papa.results.outcomes import ALL, TaskOutcomes, assembled, is_probed, table_of
from papa.results.phrases import ABOUT_LOSS, loss_text, mean_text, without_loss
from papa.results.scores import (
    DATA_COLUMNS,
    READING_COLUMNS,
    RUN_COLUMNS,
    SETTING_COLUMNS,
    collect_runs,
    without_draws,
)
from papa.results.table import Table, arrow_of, metric_name, printable, read_frame, score_text, texts, used

if TYPE_CHECKING:
    import pyarrow as pa
    from rich.console import Console

CONFIDENCE = 0.95

ABOUT_DROPS = (
    "Drop: (original - score) / |original|, not defined (-) for a log-scale score, or if the original's interval"
    " contains 0 or is not known."
)
ABOUT_MEANS = "Its mean is over the tasks for which it is defined."
ABOUT_DIRECT = (
    "The model's own head is not trained, so there are no seeds. If it does worse with zeros than the trivial guess, "
    "that guess is its floor."
)
ABOUT_DATA = "Rows used, of all available rows; examples cut have more tokens than slots."

FLOORS = ("trivial", "contextless")
BY_FRACTION = "fraction of heads that keep their own attention"
OLDER = "{} is older than this summary: `snakemake` without --until rebuilds it."
TITLE = "Scores by fraction of input-dependent heads"
SUMMARY_COLUMNS = SETTING_COLUMNS | READING_COLUMNS | {"mean": "float64", "seeds": "int64"}
SUMMARY_COLUMNS |= dict.fromkeys(("half_width", "low", "high", "relative_drop"), "float64")
MEAN_COLUMNS = SUMMARY_COLUMNS | {"same_heads_as": "string"} | DATA_COLUMNS
SUMMARY_COLUMNS = SUMMARY_COLUMNS | {"same_heads_as": "string"} | LOSS_COLUMNS | DATA_COLUMNS
SETTING = ["model", "task", "constant", "order", "fraction"]
CURVE_COLUMNS = dict.fromkeys(SETTING, "string") | {"seed": "int64", "epoch": "int64"}
CURVE_COLUMNS |= {"loss": "float64", "score": "float64"}
"""Training loss, and the score by the task's metric, of every run after every epoch."""
READING = ["model", "task", "metric", "subset"]
"""The columns that an original shares with the settings that are compared with it."""


class Summary(Analysis):
    """Score the outcomes of all runs, and average the scores over seeds.

    Args:
        tasks: the title and the metric of each task.
        seeds: the seeds that are used of each input, which may contain more.
    """

    columns = SUMMARY_COLUMNS
    title_text = TITLE
    in_report = False  # each grid shows its part

    tasks: dict[str, TaskOf]
    seeds: tuple[tuple[int, ...], ...]

    def compute(self, job: Job[AnalysisOf]) -> Computed:
        """Score all `runs`; all runs, outcomes and curves become tables of their own.

        Raises:
            DamagedArtefact: a file is no intact run, or outcomes, labels and subsets do not go together.
            InputError: there is no run, or runs do not go together; see `collect_runs`.
        """
        files = list[tuple[Run, PathLike]]()
        outcomes_of = dict(zip(job.inputs["runs"], job.inputs["outcomes"], strict=True))
        for path, seeds in zip(job.inputs["runs"], self.seeds, strict=True):
            files += ((run, path) for run in read_runs(path) if run.seed in seeds)
        metrics = {name: task.metric for name, task in self.tasks.items()}
        labels = {name: _by_task(job.inputs.get(name, ())) for name in ("labels", "subsets")}
        about = [(run.model_dump(), outcomes_of[str(path)]) for run, path in files]
        measured = assembled(about, metrics, labels["labels"], labels["subsets"])
        runs = collect_runs(files, measured, {name: task.title for name, task in self.tasks.items()})
        outcomes, facts = table_of(measured)
        more: dict[str, tuple[pa.Table, Mapping[str, object]]] = {
            "runs": (arrow_of(runs, RUN_COLUMNS), {"table": "runs", "runs": len(files)}),
            "curves": (arrow_of(curves_of(about, metrics), CURVE_COLUMNS), {"table": "curves"}),
            "all_outcomes": (outcomes, {"table": "outcomes"} | facts),
        }
        return Computed(with_losses(runs, measured), {"table": "summary", "confidence": CONFIDENCE}, more)

    def note(self, rows: pd.DataFrame) -> str:
        return legend(rows)

    def tables(self, rows: pd.DataFrame) -> list[Table]:
        return tables_of(rows)

    def sentence(self, rows: pd.DataFrame) -> str:
        """Return the number of runs, and the mean drops at fraction 0."""
        drops = mean_relative_drops(rows[rows["fraction"] == "0"])
        drops = drops[["model", "constant", "mean_relative_drop", "tasks"]]
        at_end = ", ".join(
            f"{model}, {constant} {mean_text(drop)} over {count(tasks, 'task')}"
            for model, constant, drop, tasks in drops.itertuples(index=False)
        )
        numbers = f"{count(sum(map(len, self.seeds)), 'run')}, {count(len(rows), 'summary row')}"
        return f"{numbers}; mean relative drop at fraction 0: {at_end}" if at_end else numbers


def with_losses(runs: pd.DataFrame, measured: Sequence[TaskOutcomes]) -> pd.DataFrame:
    """Return a summary with floors, losses and their intervals: the table that `read_summary` reads.

    Args:
        runs: a table of runs.
        measured: their outcomes.
    """
    summary = summary_of(runs).merge(losses_of(measured), how="left", on=[*SETTING, "metric", "subset"])
    half = summary["half_width"] = summary["half_width"].fillna(summary["half"])
    summary["low"], summary["high"] = summary["mean"] - half, summary["mean"] + half
    return summary


def summary_of(runs: pd.DataFrame) -> pd.DataFrame:
    """Return mean, 95 % Student-t interval over seeds and relative drop of every setting in a table of runs.

    If heads are replaced in random orders, a seed's score is its mean over the draws.

    drop = (original - score) / |original| for the same model, task, metric and subset (Sec. 4). It is null for
    log-scaled metrics, and if the original's interval contains 0 or is not known, as with one seed. `same_heads_as`
    lists other fractions at which the model keeps the same number of heads.

    Returns:
        A table with `MEAN_COLUMNS`, ordered as the runs are; fractions fall.
    """
    runs = without_draws(runs)
    keys = [*SETTING_COLUMNS, "metric", "subset"]
    runs["setting"] = runs.groupby(keys, dropna=False, sort=False).ngroup()
    by_seed = runs.dropna(subset="score").groupby(["setting", "seed"])["score"].agg(fmean)
    numbers = by_seed.groupby("setting").agg(mean=fmean, seeds="size", half_width=half_width)
    rows = runs.drop_duplicates("setting").set_index("setting").join(numbers)
    rows["seeds"] = rows["seeds"].fillna(0).astype("int64")
    rows["low"], rows["high"] = rows["mean"] - rows["half_width"], rows["mean"] + rows["half_width"]
    originals = rows[rows["constant"].isna()].drop_duplicates(READING, keep="last").set_index(READING)
    original = originals[["mean", "low", "high"]].reindex(pd.MultiIndex.from_frame(rows[READING])).set_index(rows.index)
    defined = ((original["low"] > 0) | (original["high"] < 0)) & has_drop(rows["metric"])
    rows["relative_drop"] = ((original["mean"] - rows["mean"]) / original["mean"].abs()).where(defined)
    fractions = rows.groupby(["model", "kept"])["fraction"].unique()
    rows["same_heads_as"] = [
        ", ".join(equal for equal in fractions[model, kept] if equal != fraction) or None
        for model, kept, fraction in zip(rows["model"], rows["kept"], rows["fraction"], strict=True)
    ]
    by = ["model", "task", "fraction", "constant", "order", "metric", "subset"]
    rows = rows.sort_values(by, key=_places, kind="stable")
    return rows[list(MEAN_COLUMNS)].reset_index(drop=True)


def _by_task(paths: Sequence[str]) -> dict[str, str]:
    """Return the files of labels or subsets by task, which is the name of their folder."""
    return {Path(path).parent.name: path for path in paths}


def curves_of(runs: Iterable[tuple[Mapping[str, Any], PathLike]], metrics: Mapping[str, str]) -> pd.DataFrame:
    """Return loss and score of every run after every epoch, with `CURVE_COLUMNS`."""
    import pyarrow.compute as pc

    rows = []
    tables: dict[PathLike, pa.Table] = {}
    for about, path in runs:
        if path not in tables:
            tables = {path: read_table(path)}
        table = tables[path]
        names, metric = provenance_of(table).get("label_names", ()), metrics[about["task"]]
        rows_of_run = table.filter(
            pc.and_(pc.equal(table["split"], "validation"), pc.equal(table["seed"], about["seed"]))
        )
        setting = {name: about[name] for name in (*SETTING, "seed")}
        for epoch in about["curve"] or [{"epoch": 0, "loss": math.nan}]:  # nothing was trained
            last = epoch["epoch"] == len(about["curve"])
            counts = counts_of(metric, rows_of_run, names, None if last else int(epoch["epoch"]))
            rows.append(setting | epoch | {"score": float(MEASURES[metric].score(counts.sum(0)))})
    return pd.DataFrame(rows, columns=list(CURVE_COLUMNS))


def _places(column: pd.Series[str]) -> pd.Series[float]:
    """Return the positions of values in an ordered summary: fractions fall, other values keep their order."""
    if column.name == "fraction":
        return -column.map(Fraction).astype("float64")
    return pd.Series(pd.factorize(column, use_na_sentinel=False)[0], column.index)


def half_width(scores: Sequence[float]) -> float:
    """Return half of the 95 % Student-t interval of the mean of `scores`; NaN if there is one score."""
    from scipy.stats import t

    if len(scores) < 2:
        return math.nan
    return float(t.ppf((1 + CONFIDENCE) / 2, len(scores) - 1)) * stdev(scores) / math.sqrt(len(scores))


def read_summary(path: PathLike) -> pd.DataFrame:
    """Read the rows of a summary; raises `DamagedArtefact` if the file is another table, or empty."""
    return read_frame(path, SUMMARY_COLUMNS, "summary")


def has_drop(metrics: pd.Series[str]) -> pd.Series[bool]:
    """Select the metrics with a relative drop: those whose score 0 is the absence of skill."""
    return ~metrics.isin([name for name, measure in MEASURES.items() if measure.log_scaled])


def is_main(rows: pd.DataFrame) -> pd.Series[bool]:
    """Select the rows that represent their task: its metric on all examples."""
    return rows["main"].eq(True) & rows["subset"].eq(ALL)


def mean_relative_drops(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the mean relative drop over tasks for each model, constant, order and fraction in a summary's rows.

    `tasks` is the number of tasks whose drop is defined; settings without such a task are left out.
    """
    known = rows[is_main(rows)].dropna(subset="relative_drop")
    drops = known.groupby(["model", "constant", "order", "fraction"], dropna=False, sort=False)["relative_drop"]
    return drops.agg(mean_relative_drop=fmean, tasks="size").reset_index()


def series(rows: pd.DataFrame) -> list[tuple[str, pd.DataFrame]]:
    """Split summary rows into series along the fraction: one constant in one order, named in words.

    Fraction 1 has no constant and fraction 0 no order, so each belongs to every series that it bounds. A task belongs
    to the series that it was run in. The context-free floor is no series if there are other constants.
    """
    constants, orders = rows["constant"], rows["order"]
    ran = set(constants.dropna())
    shown = ran - {"zeros"} if set(rows.loc[constants.eq("zeros"), "fraction"]) == {"0"} and len(ran) > 1 else ran
    replaced, parts = rows[constants.isin(shown)], []  # zeros at 0 are the floor, which has a column
    for constant, order in replaced[["constant", "order"]].drop_duplicates().to_numpy().tolist():
        ordered = isinstance(order, str)
        exact = constants.eq(constant) & (orders.eq(order) if ordered else orders.isna())
        belongs = rows["task"].isin(rows.loc[exact, "task"]) & (constants.isna() | constants.eq(constant))
        if not ordered:
            belongs &= ~rows["task"].isin(rows.loc[constants.eq(constant) & orders.notna(), "task"])
        words = f"{constant} constants, {order} order" if ordered else f"{constant} constants"
        parts.append((words, rows[belongs & (orders.isna() | orders.eq(order))]))
    parts.append(("nothing replaced", rows[~rows["task"].isin(replaced["task"])]))
    return [(words, part) for words, part in parts if len(part)]


def fractions_of(rows: pd.DataFrame) -> list[str]:
    """Return the fractions in `rows`, largest first."""
    return sorted(rows["fraction"].unique(), key=Fraction, reverse=True)


def tables_of(rows: pd.DataFrame) -> list[Table]:
    """Return, for each model and series, tables of scores, subsets and further readings; then a table of the data."""
    tables, reading = [], {"task": "title", "metric": "metric"}
    subset = {"task": "title", "subset": "subset", "examples": "examples"}
    for title, block in _blocks(rows):
        tables.append(_with_means(title, block, is_main(block), reading))
        for name, which, names in (
            ("Subsets, scored separately", block["subset"].ne(ALL), subset),
            ("Further readings", block["main"].eq(False), reading),
        ):
            if which.any():
                tables.append(Table(f"{title}. {name}", by_fraction(block, which, names), len(names)))
    return [*tables, _data(rows)]


def print_summary(rows: pd.DataFrame, console: Console) -> None:
    """Print a summary as tables that fit the console: scores and losses by fraction, subsets below their task."""
    indented = rows["title"].where(rows["subset"] == ALL, "  " + rows["subset"])
    for title, block in _blocks(rows.assign(indented=indented)):
        console.print(printable(title), style="bold")
        kept = block.drop_duplicates("fraction").set_index("fraction")["kept"]
        headings = {fraction: f"{fraction}\n{count(kept[fraction], 'head')}" for fraction in kept.index}
        shown, lines = _laid_out(block, block["main"].eq(True), {"": "indented"})
        tables = [("Score", _floors(lines, shown).join(_cells(shown, "score_text", fractions_of(block))))]
        if shown["loss"].notna().any():
            lost = [fraction for fraction in fractions_of(block) if fraction != "1"]
            tables.append(("Loss and its 95 % interval", lines.join(_cells(shown, "loss_text", lost).replace("", "-"))))
        for what, frame in tables:
            whole = Table(f"{what}, by {BY_FRACTION}", frame.rename(columns=headings), 1)
            for table in whole.fitting(console.width):
                table.print(console)
    console.print(f"{about_scores(rows)} {ABOUT_LOSS} {excluded(rows)}".strip())


def _blocks(rows: pd.DataFrame) -> list[tuple[str, pd.DataFrame]]:
    """Return heading and rows of each model and series."""
    return [
        (f"{model} ({count(block['heads'].iloc[0], 'head')}): {words}", block)
        for model, of_model in rows.groupby("model", sort=False)
        for words, block in series(of_model)
    ]


def _with_means(title: str, rows: pd.DataFrame, which: pd.Series[bool], names: Mapping[str, str]) -> Table:
    """Return the table of `by_fraction`, with mean relative drops in the last line if any drop is defined."""
    frame = by_fraction(rows, which, names)
    means = mean_relative_drops(rows).set_index("fraction")["mean_relative_drop"]
    if means.empty:
        return Table(title, frame, len(names))
    fractions = fractions_of(rows)
    last = dict.fromkeys(frame.columns, "") | {next(iter(names)): "mean drop"}
    last |= {fraction: mean_text(means.get(fraction)) for fraction in fractions}
    last[f"drop at {fractions[-1]}"] = last[fractions[-1]]
    return Table(title, pd.concat([frame, pd.DataFrame([last])]), len(names), rules=(len(frame),))


def by_fraction(rows: pd.DataFrame, which: pd.Series[bool], names: Mapping[str, str]) -> pd.DataFrame:
    """Return the text of a table with the floors, a column for each fraction, and drop and loss at the last fraction.

    A task has a line for each metric and subset, and for each `line` if rows have one.

    Args:
        rows: rows of a summary; their fractions are the columns.
        which: the rows that are shown.
        names: headings of the first columns, and the columns of `rows` that they show.
    """
    fractions = fractions_of(rows)
    shown, lines = _laid_out(rows, which, names)
    at_end = shown[shown["fraction"] == fractions[-1]].set_index("place").reindex(lines.index)
    drop, loss = at_end["relative_drop"].map(mean_text), at_end["loss_text"].fillna("-")
    last = {f"drop at {fractions[-1]}": drop, f"loss at {fractions[-1]}": loss}
    return _floors(lines, shown).join(_cells(shown, "score_text", fractions)).assign(**last)


def _laid_out(
    rows: pd.DataFrame, which: pd.Series[bool], names: Mapping[str, str]
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return the rows that a table shows, with cell texts and the `place` of their line; and the names of lines."""
    keys = ["task", "metric", "subset", *rows.columns.intersection(["line"])]
    shown = rows[which]
    shown = shown.assign(
        place=shown.groupby(keys, sort=False).ngroup(),
        score_text=texts(score_text, shown, "mean", "half_width"),
        loss_text=texts(loss_text, shown, "loss", "loss_low", "loss_high"),
    ).drop_duplicates(["place", "fraction"], keep="last")
    names_shown = shown.assign(
        metric=shown["metric"].map(metric_name), examples=shown["examples"].map("{:,.0f}".format)
    )
    return shown, names_shown.drop_duplicates("place").set_index("place")[list(names.values())].set_axis(
        list(names), axis=1
    )


def _cells(shown: pd.DataFrame, text: str, fractions: list[str]) -> pd.DataFrame:
    """Return a column of texts for each fraction, by the line of the table; empty if nothing was run."""
    return shown.pivot(index="place", columns="fraction", values=text).reindex(columns=fractions).fillna("")


def _floors(lines: pd.DataFrame, shown: pd.DataFrame) -> pd.DataFrame:
    """Return the names of lines, with a column for each floor."""
    by_place = shown.groupby("place")
    floors = {name: [score_text(score, math.nan) for score in by_place[name].first()] for name in FLOORS}
    return lines.assign(**floors)


def legend(rows: pd.DataFrame) -> str:
    """Return the note below tables by fraction: the meaning of columns, cells, drops and losses."""
    columns = f"Columns: {BY_FRACTION}."
    return " ".join((columns, about_scores(rows), ABOUT_DROPS, ABOUT_MEANS, ABOUT_LOSS, excluded(rows))).strip()


def excluded(rows: pd.DataFrame) -> str:
    """Name the tasks without a loss and the reasons, in a sentence; empty if every task has one."""
    main = rows[is_main(rows)].drop_duplicates(["model", "task"])
    several = main["model"].nunique() > 1
    named = main.loc[main["status"].ne(COUNTS), ["model", "title", "status"]].dropna().itertuples(index=False)
    return without_loss(
        Exclusion(task=f"{title} ({model})" if several else title, why=status) for model, title, status in named
    )


def about_scores(rows: pd.DataFrame) -> str:
    """Return the meaning of cells with scores."""
    main = rows[is_main(rows)]
    notes = [measure.note for name, measure in METRICS.items() if measure.note and main["metric"].eq(name).any()]
    seeds = main.loc[is_probed(main["metric"]), "seeds"]
    about_probes = [_about_seeds(seeds)] if len(seeds) else []
    return " ".join([*about_probes, *notes, ABOUT_DIRECT] if notes else about_probes)


def _about_seeds(seeds: pd.Series[int]) -> str:
    least, most = seeds.min(), seeds.max()
    if most == 1:
        return "Cells: validation score, one seed, so no interval."
    number = f"{most}" if least == most else f"{least} to {most}"
    text = f"Cells: validation score, mean over {number} seeds ± half width of the 95 % Student-t interval"
    return text + ("; one seed has none." if least == 1 else ".")


def same_heads(rows: pd.DataFrame) -> str:
    """Name the fractions in `rows` at which a model keeps the same number of heads; empty if there are none."""
    there, same = fractions_of(rows), []
    known = rows.dropna(subset="same_heads_as")
    for model, kept, heads, *both in known[["model", "kept", "heads", "fraction", "same_heads_as"]].to_numpy().tolist():
        equal = [fraction for fraction in ", ".join(both).split(", ") if fraction in there]
        if len(equal) > 1:
            same.append(f"{model} keeps {kept} of {heads} at {' and '.join(sorted(equal, key=Fraction))}")
    return "Fractions with the same number of heads: " + "; ".join(dict.fromkeys(same)) + "." if same else ""


def _data(rows: pd.DataFrame) -> Table:
    """Return the numbers of used rows and of cut examples."""
    main = rows[is_main(rows)]
    frame = pd.DataFrame({"task": main["title"], "model": main["model"]})
    for split, words in (("train", "training"), ("validation", "validation")):
        frame[f"{words} rows"] = texts(used, main, f"rows_{split}", f"rows_available_{split}")
        frame[f"{words} examples cut"] = main[f"cut_{split}"].map("{:,.0f}".format)
    return Table("Data", frame.drop_duplicates(), 2, f"{ABOUT_DATA} {same_heads(rows)}".strip())


def print_results(results: Path) -> None:
    """Print the summary of a folder of results, the conclusion, and the paths of tables, figures and report."""
    from rich.console import Console

    summary, claims, page = (results / ARTEFACTS[name].path() for name in ("summary", "claims_json", "page"))
    console = Console(markup=False, highlight=False, emoji=False)
    try:
        rows = read_summary(summary)
        print_summary(rows, console)
        if claims.exists():
            sentence = _older(claims, summary=summary) or printable(Conclusion.read(claims).sentence)
            console.print(f"\n{sentence}", soft_wrap=sentence.startswith(str(claims)))  # an unbroken path can be copied
        report = (_older(page, summary=summary, claims=claims) or str(page)) if page.exists() else ""
    except InputError as error:
        raise SystemExit(str(error)) from None
    print(f"\nTables:  {summary.parent}/")
    if (figures := results / ARTEFACTS["figure_svg"].folder()).exists():
        print(f"Figures: {figures}/")
    if report:
        print(f"Report:  {report}")


def _older(path: Path, **sources: Path) -> str:
    """Return a sentence if an artefact was made from other `sources` than the present ones; otherwise nothing."""
    trace = trace_of(path)
    made_of = {} if trace is None else trace.inputs
    same = all(made_of.get(name) in (None, digest_of(source)) for name, source in sources.items() if source.exists())
    return "" if same else OLDER.format(path)
