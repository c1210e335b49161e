"""Two results held against each other: which scores differ beyond what seeds make differ, and which settings do."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from papa.errors import InputError
from papa.files import PathLike, check_seal, provenance_of, read_json, read_table
from papa.results.summary import DATA_COLUMNS, Row, mean_relative_drops, read_rows
from papa.results.tables import CONFIDENCE, TRAINING_COLUMNS, summarise

SETTING = ("model", "task", "constant", "order", "fraction", "metric", "subset")
"""What must be the same for two rows to be held against each other."""
OF_RUNS = tuple(TRAINING_COLUMNS)
FROM = ("weights", "corpus", "slots", "style", "segments", "encoder_dropout", "masked", "papa_version")
"""What runs say about where they came from."""
OF_DATA = tuple(name for name in DATA_COLUMNS if name != "examples")
OF_AVERAGES = ("hub", "revision", "precision")
"""What averages say of their model, and runs do not."""


def compare(a: PathLike, b: PathLike) -> dict[str, Any]:
    """What differs between two results folders, or two files `summary.parquet` or `runs.parquet`, in plain values.

    `compared` counts the settings (`SETTING`) that both have: `equal` of them have the same mean and spread, `within`
    differ within intervals, those listed under `beyond` differ beyond them, and those under `untested` differ where one
    side has no interval. `only_a`, `only_b`: settings that one side has. `settings`: hyperparameters, data, revisions
    and versions that differ. `mean_drops`: mean relative drops that differ.

    A difference of means over seeds is tested by Welch's t-test, which takes neither equal spread nor equal numbers
    of seeds for granted; `low` and `high` are the 95 % interval of B - A. Scores of one seed are not paired: what a
    seed fixes (first weights of a probe, the order of batches) means the same only where all else is the same, and a
    pair of three seeds leaves 2 degrees of freedom where Welch's test has up to 4. Where equal seeds do go together the
    test is on the safe side. A difference is `beyond` where its p, by Holm's correction over all tests, is under 5 %:
    one difference among equal results would else be expected of each twenty. Where no seed differs from another on
    either side, any difference is beyond.

    Raises `InputError` where something is no result, is damaged, or nothing can be compared.
    """
    left, right = _Results.read(a), _Results.read(b)
    common = [key for key in left.rows if key in right.rows]
    if not common:
        raise InputError(
            f"{a} and {b} have no setting in common: {left.described()} and {right.described()}; results are compared "
            "by the names of models and tasks."
        )
    found = [difference(left.rows[key], right.rows[key]) for key in common]
    tested = [entry for entry in found if entry["p"] is not None]
    for entry, p in zip(tested, holm([entry["p"] for entry in tested]), strict=True):
        entry["p_holm"] = p
    beyond = [entry for entry in tested if entry["p_holm"] < 1 - CONFIDENCE]
    within = [entry for entry in tested if not entry["equal"] and entry not in beyond]
    return {
        "a": str(a),
        "b": str(b),
        "confidence": CONFIDENCE,
        "correction": "Holm",
        "compared": len(found),
        "equal": sum(entry["equal"] for entry in found),
        "tested": len(tested),
        "within": len(within),
        "within_but_outside_own_interval": sum(entry["p"] < 1 - CONFIDENCE for entry in within),
        "untested": [entry for entry in found if entry["p"] is None and not entry["equal"]],
        "beyond": sorted(beyond, key=lambda entry: entry["p"]),
        "only_a": [dict(zip(SETTING, key, strict=True)) for key in left.rows if key not in right.rows],
        "only_b": [dict(zip(SETTING, key, strict=True)) for key in right.rows if key not in left.rows],
        "settings": _differing(left.settings, right.settings),
        "mean_drops": _drops(left.rows.values(), right.rows.values()),
    }


def difference(a: Row, b: Row) -> dict[str, Any]:
    """Two rows of summaries held against each other: means, B - A with interval, and Welch's p, where there are any."""
    about = {name: a[name] for name in SETTING} | {"title": a["title"], "a": a["mean"], "b": b["mean"]}
    about |= {"seeds_a": a["seeds"], "seeds_b": b["seeds"], "drop_a": a["relative_drop"], "drop_b": b["relative_drop"]}
    equal = all(a[name] == b[name] for name in ("mean", "half_width", "seeds"))
    none = {"equal": equal, "difference": None, "low": None, "high": None, "p": None}
    if a["mean"] is None or b["mean"] is None:
        return about | none
    shift = b["mean"] - a["mean"]
    if a["half_width"] is None or b["half_width"] is None:
        return about | none | {"difference": shift}
    return about | {"equal": equal, "difference": shift} | _welch(shift, a, b)


def _welch(shift: float, a: Row, b: Row) -> dict[str, float]:
    """Interval and p of a difference of means whose spread over seeds follows from the intervals of both."""
    from scipy.stats import t

    errors = [row["half_width"] / t.ppf((1 + CONFIDENCE) / 2, row["seeds"] - 1) for row in (a, b)]
    error = math.hypot(*errors)
    if error == 0:
        return {"low": shift, "high": shift, "p": 0.0 if shift else 1.0}
    shares = [(own / error) ** 4 / (row["seeds"] - 1) for own, row in zip(errors, (a, b), strict=True)]
    freedom = 1 / sum(shares)
    half = error * float(t.ppf((1 + CONFIDENCE) / 2, freedom))
    return {"low": shift - half, "high": shift + half, "p": 2 * float(t.sf(abs(shift) / error, freedom))}


def holm(values: Sequence[float]) -> list[float]:
    """The p values, in their order, such that all under a level together err no more often than that level says."""
    adjusted, largest = [0.0] * len(values), 0.0
    for rank, place in enumerate(sorted(range(len(values)), key=values.__getitem__)):
        largest = max(largest, min(1.0, (len(values) - rank) * values[place]))
        adjusted[place] = largest
    return adjusted


class _Results:
    """The summary of some results by setting, and what their runs were made with, by model and task."""

    def __init__(self, rows: Iterable[Row], settings: Mapping[tuple[str, str, str], list[Any]]):
        self.rows = {tuple(row[name] for name in SETTING): row for row in rows}
        self.settings = dict(settings)
        for row in self.rows.values():
            _add(self.settings, (row["model"], "", "heads"), row["heads"])
            for name in OF_DATA:
                _add(self.settings, (row["model"], row["task"], name), row[name])

    @classmethod
    def read(cls, place: PathLike) -> _Results:
        path = Path(place)
        if path.is_dir():
            summary = path / "tables/summary.parquet"
            if not summary.is_file():
                raise InputError(
                    f"{place} has no tables/summary.parquet, so it is no folder of finished results; give "
                    "results/NAME, and run its workflow to the end first."
                )
            return cls(read_rows(summary), _settings_in(path))
        if not path.is_file():
            raise InputError(f"There is no {place}; give a results folder, or its summary.parquet or runs.parquet.")
        kind = provenance_of(read_table(path)).get("table")
        if kind not in ("summary", "runs"):
            raise InputError(
                f"{place} is neither a summary nor a table of runs; give a results folder, or its summary.parquet or "
                "runs.parquet."
            )
        if kind == "summary":
            return cls(read_rows(path), {})
        settings: dict[tuple[str, str, str], list[Any]] = {}
        for run in read_table(path).to_pylist():
            for name in OF_RUNS:
                _add(settings, (run["model"], run["task"], name), run[name])
        with TemporaryDirectory() as folder:
            summary = Path(folder, "summary.parquet")
            summarise(path, summary, Path(folder, "summary.md"))
            return cls(read_rows(summary), settings)

    def described(self) -> str:
        """Which models on which tasks, for messages."""
        models, tasks = (list(dict.fromkeys(key[place] for key in self.rows)) for place in (0, 1))
        return f"{', '.join(models)} on {', '.join(tasks)}"


def _settings_in(folder: Path) -> dict[tuple[str, str, str], list[Any]]:
    """What the runs of a results folder say they were made with, each value once, by model, task and what it is."""
    found: dict[tuple[str, str, str], list[Any]] = {}
    for path in sorted(folder.glob("models/*/tasks/*/runs/**/seed-*.json")):
        run = read_json(path)
        about = {name: run[name] for name in OF_RUNS} | {
            name: run["provenance"][name] for name in FROM if name in run["provenance"]
        }
        for name, value in about.items():
            task = "" if name in ("weights", "papa_version") else run["task"]
            _add(found, (run["model"], task, name), value)
    for path in sorted(folder.glob("models/*/corpora/**/average.h5")):
        for name, value in _about_averages(path).items():
            _add(found, (path.relative_to(folder).parts[1], "", name), value)
    return found


def _about_averages(path: Path) -> dict[str, str]:
    import h5py

    check_seal(path)
    with h5py.File(path, "r") as store:
        about = {name: str(store.attrs.get(f"about_{name}", "")) for name in OF_AVERAGES}
    return about | {"precision": about["precision"] or "float32"}


def _add(found: dict[tuple[str, str, str], list[Any]], where: tuple[str, str, str], value: Any) -> None:
    own = found.setdefault(where, [])
    if value not in own:
        own.append(value)


def _differing(a: Mapping[tuple[str, str, str], list[Any]], b: Mapping[tuple[str, str, str], list[Any]]) -> list[Row]:
    """Settings of models and tasks that both have, where they are not the same."""
    return [
        {"model": where[0], "task": where[1] or None, "setting": where[2], "a": a[where], "b": b[where]}
        for where in a
        if where in b and sorted(map(str, a[where])) != sorted(map(str, b[where]))
    ]


def _drops(a: Iterable[Row], b: Iterable[Row]) -> list[Row]:
    """Mean relative drops over tasks that both have and that are not the same."""
    names = ("model", "constant", "order", "fraction")
    left, right = ({tuple(drop[name] for name in names): drop for drop in mean_relative_drops(rows)} for rows in (a, b))
    return [
        dict(zip(names, key, strict=True))
        | {"a": drop["mean_relative_drop"], "b": right[key]["mean_relative_drop"]}
        | {"tasks_a": drop["tasks"], "tasks_b": right[key]["tasks"]}
        for key, drop in left.items()
        if key in right and drop["mean_relative_drop"] != right[key]["mean_relative_drop"]
    ]
