"""Two results held against each other: which scores differ beyond what seeds make differ, and which settings do."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from papa.config.artefacts import ARTEFACTS
from papa.errors import InputError, count
from papa.files import JSON, PathLike, provenance_of, read_table, trace_of
from papa.results.runs import ALL, DATA_COLUMNS, TRAINING_COLUMNS, Origin, read_run, read_runs
from papa.results.summary import CONFIDENCE, mean_relative_drops, read_summary, summary_of
from papa.results.table import Table, metric_name, percent, printable

if TYPE_CHECKING:
    from rich.console import Console

SETTING = ["model", "task", "constant", "order", "fraction", "metric", "subset"]
"""What must be the same for two rows to be held against each other."""
OF_MODEL = ("weights", "papa_version", "precision", "heads")
"""Settings of a model; all others are of a model and a task."""
OF_SUMMARY = ["heads", *(name for name in DATA_COLUMNS if name != "examples")]
OWNER = ["model", "task"]
DIGEST = 16
"""Characters that are shown of a digest, or of another text without an end."""
MOST = 10
"""Lines that are printed of settings that only one side has."""

Found = dict[str, JSON]


def compare(a: PathLike, b: PathLike) -> Found:
    """What differs between two results folders, or two files `summary.parquet` or `runs.parquet`, in plain values.

    `compared` counts the settings (`SETTING`) that both have: `equal` of them have the same mean and spread, `within`
    differ within intervals, those listed under `beyond` differ beyond them, and those under `untested` differ but one
    side has no interval. `only_a`, `only_b`: settings that one side has. `settings`: hyperparameters, data, weights
    and versions that differ. `mean_drops`: mean relative drops that differ.

    A difference of means over seeds is tested by Welch's t-test, which takes neither equal spread nor equal numbers
    of seeds for granted; `low` and `high` are the 95 % interval of B - A. Scores of one seed are not paired: what a
    seed fixes (first weights of a probe, the order of batches) means the same only if all else is the same, and a
    pair of three seeds leaves 2 degrees of freedom where Welch's test has up to 4. If equal seeds do go together the
    test is on the safe side. A difference is `beyond` if its p, by Holm's correction over all tests, is under 5 %:
    one difference among equal results would else be expected of each twenty. If no seed differs from another on
    either side, any difference is beyond.

    Raises:
        InputError: Something is no result, is damaged, or nothing can be compared.
    """
    (left, settings_a), (right, settings_b) = _read(Path(a)), _read(Path(b))
    both = left.merge(right, on=SETTING, suffixes=("_a", "_b"))
    if both.empty:
        raise InputError(
            f"{a} and {b} have no setting in common: {_described(left)} and {_described(right)}; results are compared "
            "by the names of models and tasks."
        )
    found = _tested(both)
    tested, level = found["p"].notna(), 1 - CONFIDENCE
    beyond, within = tested & (found["p_holm"] < level), tested & ~found["equal"] & ~(found["p_holm"] < level)
    return {
        "a": str(a),
        "b": str(b),
        "confidence": CONFIDENCE,
        "correction": "Holm",
        "compared": len(found),
        "equal": int(found["equal"].sum()),
        "tested": int(tested.sum()),
        "within": int(within.sum()),
        "within_but_outside_own_interval": int((within & (found["p"] < level)).sum()),
        "untested": _plain(found[~tested & ~found["equal"]]),
        "beyond": _plain(found[beyond].sort_values("p", kind="stable")),
        "only_a": _plain(_only(left, right)),
        "only_b": _plain(_only(right, left)),
        "settings": _plain(_differing(settings_a, settings_b)),
        "mean_drops": _plain(_mean_drops(left, right)),
    }


def _read(place: Path) -> tuple[pd.DataFrame, pd.DataFrame]:
    """The summary of some results, and what they were made with: `ABOUT`, and a `value` for each run or row."""
    if place.is_dir():
        path = place / ARTEFACTS["summary"].path()
        if not path.is_file():
            raise InputError(
                f"{place} has no {ARTEFACTS['summary'].path()}, so it is no folder of finished results; give "
                "results/NAME, and run its workflow to the end first."
            )
        summary, runs = read_summary(path), _runs_in(place)
    elif not place.is_file():
        raise InputError(f"There is no {place}; give a results folder, or its summary.parquet or runs.parquet.")
    elif (what := provenance_of(read_table(place)).get("table")) == "summary":
        summary = read_summary(place)
        runs = summary[OWNER]
    elif what == "runs":
        runs = read_runs(place)
        summary, runs = summary_of(runs), runs[[*OWNER, *TRAINING_COLUMNS]]
    else:
        raise InputError(
            f"{place} is neither a summary nor a table of runs; give a results folder, or its summary.parquet or "
            "runs.parquet."
        )
    made = [rows.astype(object).melt(OWNER, var_name="setting") for rows in (runs, summary[[*OWNER, *OF_SUMMARY]])]
    settings = pd.concat(made).dropna(subset="value")
    return summary, settings.assign(task=settings["task"].mask(settings["setting"].isin(OF_MODEL), None))


def _runs_in(folder: Path) -> pd.DataFrame:
    """What each run of a results folder says that it was made with; None for what it does not say."""
    rows = []
    for path in sorted(folder.glob(ARTEFACTS["run"].path(model="*", task="*", variant="**", seed="*"))):
        run, trace = read_run(path), trace_of(path)
        about = run.model_dump() | run.provenance.model_dump()
        rows.append(about | {"precision": trace.settings["model"]["precision"] if trace else None})
    return pd.DataFrame(rows, columns=[*OWNER, *TRAINING_COLUMNS, *Origin.model_fields, "precision"], dtype=object)


def _described(rows: pd.DataFrame) -> str:
    """Which models on which tasks, for messages."""
    return f"{', '.join(rows['model'].unique())} on {', '.join(rows['task'].unique())}"


def _tested(both: pd.DataFrame) -> pd.DataFrame:
    """Rows of two summaries side by side: means, B - A with its interval, and Welch's p, as far as there are any."""
    read = {"title": "title_a", "a": "mean_a", "b": "mean_b", "seeds_a": "seeds_a", "seeds_b": "seeds_b"}
    read |= {"drop_a": "relative_drop_a", "drop_b": "relative_drop_b"}
    found = both[SETTING].assign(**{name: both[column] for name, column in read.items()})
    sides = [both[[f"{name}_{side}" for name in ("mean", "half_width", "seeds")]].to_numpy() for side in "ab"]
    found["equal"] = ((sides[0] == sides[1]) | (np.isnan(sides[0]) & np.isnan(sides[1]))).all(axis=1)
    found["difference"] = found["b"] - found["a"]
    found["low"], found["high"], found["p"] = _welch(found["difference"], both)
    tested = found["p"].dropna()
    return found.assign(p_holm=pd.Series(holm(tested.tolist()), tested.index))


def _welch(shift: pd.Series[float], both: pd.DataFrame) -> tuple[pd.Series[float], ...]:
    """Interval and p of differences of means whose spread over seeds follows from the intervals of both sides."""
    from scipy.stats import t

    share = (1 + CONFIDENCE) / 2
    freedom = {side: (both[f"seeds_{side}"] - 1).where(both[f"half_width_{side}"].notna()) for side in "ab"}
    errors = {side: both[f"half_width_{side}"] / t.ppf(share, freedom[side]) for side in "ab"}
    error = np.hypot(errors["a"], errors["b"])
    together = 1 / sum((errors[side] / error) ** 4 / freedom[side] for side in "ab")
    half, p = error * t.ppf(share, together), 2 * t.sf(shift.abs() / error, together)
    some = error.ne(0)
    half, p = half.where(some, 0.0), pd.Series(p, shift.index).where(some, shift.eq(0).astype(float))
    return shift - half, shift + half, p


def holm(values: Sequence[float]) -> list[float]:
    """The p values, in their order, such that all under a level together err no more often than that level says."""
    order, adjusted = np.argsort(values, kind="stable"), np.empty(len(values))
    adjusted[order] = np.maximum.accumulate(np.asarray(values)[order] * np.arange(len(values), 0, -1)).clip(max=1)
    return list(adjusted.tolist())


def _only(rows: pd.DataFrame, others: pd.DataFrame) -> pd.DataFrame:
    """The settings of `rows` that `others` does not have."""
    sides = rows[SETTING].merge(others[SETTING], how="left", indicator=True)
    return sides.loc[sides["_merge"] == "left_only", SETTING]


def _differing(a: pd.DataFrame, b: pd.DataFrame) -> pd.DataFrame:
    """Settings of models and tasks that both have, if they are not the same; each value is listed once."""
    sides = (side.groupby([*OWNER, "setting"], dropna=False, sort=False)["value"] for side in (a, b))
    once = [side.agg(lambda own: list(own.unique())) for side in sides]
    both = pd.concat(once, axis=1, join="inner", keys=["a", "b"]).reset_index()
    in_order = both[["a", "b"]].map(lambda values: sorted(map(str, values)))
    return both[in_order["a"] != in_order["b"]]


def _mean_drops(a: pd.DataFrame, b: pd.DataFrame) -> pd.DataFrame:
    """Mean relative drops over tasks that both have and that are not the same."""
    drops = [mean_relative_drops(side).rename(columns={"mean_relative_drop": ""}) for side in (a, b)]
    both = drops[0].merge(drops[1], on=["model", "constant", "order", "fraction"], suffixes=("_a", "_b"))
    both = both.rename(columns={"_a": "a", "_b": "b"})
    return both[both["a"].ne(both["b"])]


def _plain(rows: pd.DataFrame) -> list[Found]:
    """Rows as plain values; None for what is not known."""
    plain = rows.astype(object)
    return [dict(zip(rows.columns, row, strict=True)) for row in plain.where(plain.notna(), None).to_numpy().tolist()]


def print_comparison(found: Found, console: Console) -> None:
    """Print what `compare` found."""
    console.print(f"A: {printable(found['a'])}\nB: {printable(found['b'])}\n")

    def show(title: str, lines: list[dict[str, str]], names: int = 3) -> None:
        if lines:
            Table(title, pd.DataFrame(lines), names).print(console)

    settings = [
        {"model": row["model"], "task": row["task"] or "", "setting": row["setting"]}
        | {side.upper(): " ".join(map(_value, row[side])) for side in "ab"}
        for row in found["settings"]
    ]
    show("Settings that differ", settings, names=5)
    show("Beyond intervals", [_scores(row) for row in found["beyond"]])
    show("Different, but with one seed there is no interval", [_scores(row) for row in found["untested"]])
    drops = [
        {"model": row["model"], "setting": _setting(row), "A": percent(row["a"]), "B": percent(row["b"])}
        for row in found["mean_drops"]
    ]
    show("Mean relative drops over tasks that differ (not tested)", drops, names=2)
    for side in ("a", "b"):
        only = found[f"only_{side}"]
        title = f"Only in {side.upper()}: {count(len(only), 'setting')}"
        show(title + (f", the first {MOST}" if len(only) > MOST else ""), [_names(row) for row in only[:MOST]])
    beyond, untested = len(found["beyond"]), len(found["untested"])
    if found["equal"] == found["compared"]:
        everything = not (found["only_a"] or found["only_b"])
        what = "the scores" if everything else f"the {count(found['compared'], 'score')} that both have"
        but = "; settings differ" if found["settings"] else ""
        console.print(f"The same: {what} agree to the last digit{but}.", style="bold green")
        return
    said = f"{count(found['compared'], 'setting')} in both: {found['equal']:,} equal, {found['within']:,} different "
    said += f"within intervals, {beyond:,} beyond them" + (f", {untested:,} without an interval" if untested else "")
    console.print(f"{said}.", style="bold red" if beyond else "bold yellow" if untested else "bold green")
    if found["tested"]:
        console.print(
            f"Welch's t-test over seeds, {count(found['tested'], 'test')}, {100 * (1 - CONFIDENCE):.0f} % for all of "
            f"them together ({found['correction']}'s correction). Outside of its own 95 % interval, but not after the "
            f"correction: {found['within_but_outside_own_interval']:,}."
        )


def _names(row: Found) -> dict[str, str]:
    """Which score: its model, its task with its metric and, if it has one, its subset, and what was replaced."""
    subset = "" if row["subset"] == ALL else f", {row['subset']}"
    reading = f"{row['task']}{subset} ({metric_name(row['metric'])})"
    return {"model": row["model"], "task": reading, "setting": _setting(row)}


def _setting(row: Found) -> str:
    return " ".join(filter(None, (row["fraction"], row["constant"], row["order"])))


def _scores(row: Found) -> dict[str, str]:
    """Two scores beside each other; with their interval and p if there is a test."""
    shift = "" if row["difference"] is None else f"{row['difference']:+.3f}"
    scores = {side.upper(): "-" if row[side] is None else f"{row[side]:.3f}" for side in "ab"}
    if row["p"] is None:
        return _names(row) | scores | {"B - A": shift}
    tested = {"B - A [95 %]": f"{shift} [{row['low']:+.3f}, {row['high']:+.3f}]", "p (Holm)": f"{row['p_holm']:.1g}"}
    return _names(row) | scores | tested


def _value(value: object) -> str:
    text = str(value)
    return text if len(text) <= DIGEST or " " in text else f"{text[:DIGEST]}…"
