"""The table of a grid: every score in its cell, what is missing empty, the lines in the grid's order."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import analyses
import pyarrow as pa
import pytest

from papa.config.settings import Plots
from papa.config.stages import GridView
from papa.errors import DamagedArtefact, InputError
from papa.files import provenance_of, read_table, trace_of, write_table
from papa.results.analysis import analyse
from papa.results.grids import GRID_COLUMNS
from papa.results.phrases import constant_name
from papa.results.summary import SUMMARY_COLUMNS

KEPT = {"1": 23, "1/2": 11, "1/16": 1, "1/19": 1, "0": 0}
GRID = {
    "models": ["m"],
    "tasks": {"cola": "glue", "ner": "conll"},
    "constants": ["average"],
    "orders": ["lambda"],
    "fractions": ["0", "1"],
}


def row(task: str, constant: str | None, fraction: str, mean: float | None, **other: Any) -> dict[str, Any]:
    setting = {"model": "m", "task": task, "title": task.upper(), "constant": constant, "fraction": fraction}
    setting |= {"order": None if fraction in ("1", "0") else "lambda", "kept": KEPT[fraction], "heads": 23}
    known = {} if mean is None else {"half_width": 0.013, "low": mean - 0.013, "high": mean + 0.013}
    reading = {"metric": "entity_f1", "main": True, "subset": "all", "mean": mean, "seeds": 3}
    reading |= {"trivial": 0.1, "contextless": 0.2, "status": "counts"}
    if constant is not None:
        reading |= {"loss": 0.254, "loss_low": 0.1, "loss_high": 0.406}
    return dict.fromkeys(SUMMARY_COLUMNS) | setting | reading | known | other


class Made:
    """The files of a grid."""

    def __init__(self, folder: Path, rows: list[dict[str, Any]], title: str = "Table 1: kinds", **grid: Any):
        summary = folder / "summary.parquet"
        write_table(pa.Table.from_pylist(rows, schema=pa.schema(list(SUMMARY_COLUMNS.items()))), summary, {})
        self.table = folder / "grid.parquet"
        view = GridView(name="grid", title=title, plots=Plots(), drawn=False, **GRID | grid)
        self.job = analyses.job("grid", view.model_dump(mode="json"), {"summary": summary}, folder / "grid")
        self.said = analyse(self.job)
        self.rows = read_table(self.table).to_pylist()
        self.markdown = (folder / "grid.md").read_text(encoding="utf-8")
        self.latex = (folder / "grid.tex").read_text(encoding="utf-8")
        self.lines = [line for line in self.markdown.split("Loss\n")[0].splitlines() if line.startswith("|")]
        self.lost = [line for line in self.markdown.split("Loss\n")[-1].splitlines() if line.startswith("|")]

    def cell(self, number: int, column: str) -> str:
        """A cell of a line of the only table, by the heading of its column."""
        header, _, *lines = ([cell.strip() for cell in line.split("|")[1:-1]] for line in self.lines)
        return dict(zip(header, lines[number], strict=True))[column]


def test_constants_are_lines_and_tasks_columns(tmp_path: Path) -> None:
    rows = [row("ner", "zeros", "0", 0.5), row("ner", "average", "0", 0.7), row("ner", None, "1", 0.9)]
    rows += [row("cola", "average", "0", 0.3), row("cola", "identity", "0", 0.1)]
    rows += [
        row("ner", "average", "1/2", 0.99),
        row("other", "zeros", "0", 0.99),
        row("ner", "average", "0", 0.99, model="n"),
    ]
    rows += [row("ner", "average", "0", 0.98, metric="token_accuracy", main=False)]
    made = Made(tmp_path, rows, constants=["zeros", "toeplitz-trained", "average"])
    assert made.lines == [
        "| constants | COLA | NER |",
        "| --- | --- | --- |",
        "| original |  | 0.900 ±.013 |",
        "| trivial | 0.100 | 0.100 |",
        "| contextless | 0.200 | 0.200 |",
        "| zeros |  | 0.500 ±.013 |",
        "| Toeplitz, trained |  |  |",
        "| average | **0.300 ±.013** | **0.700 ±.013** |",
    ]
    assert made.lost == [
        "| constants | COLA | NER |",
        "| --- | --- | --- |",
        "| zeros |  | 25 % (10 to 41) |",
        "| Toeplitz, trained |  |  |",
        "| average | 25 % (10 to 41) | 25 % (10 to 41) |",
    ]
    assert "# Table 1: kinds\n" in made.markdown and "## m (23 heads)" in made.markdown
    assert "Metrics: COLA, Entity F1; NER, Entity F1." in made.markdown
    assert r"average & \textbf{0.300 $\pm$.013} & \textbf{0.700 $\pm$.013} \\" in made.latex
    assert r"\caption{Table 1: kinds, m (23 heads). In the lines of constants" in made.latex
    assert made.latex.count(r"\midrule") == 3 and made.latex.count(r"\begin{table}") == 2
    assert "Trivial: the best guess that ignores the input." in made.markdown
    # the original is a point of every line
    own = [(r["line"], r["task"], r["constant"], r["fraction"], r["mean"]) for r in made.rows if r["main"]]
    assert own == [
        ("average", "cola", "average", "0", 0.3),
        ("zeros", "ner", None, "1", 0.9),
        ("zeros", "ner", "zeros", "0", 0.5),
        ("Toeplitz, trained", "ner", None, "1", 0.9),
        ("average", "ner", None, "1", 0.9),
        ("average", "ner", "average", "0", 0.7),
    ]
    assert [r["mean"] for r in made.rows if not r["main"]] == [0.98]
    assert list(made.rows[0]) == list(GRID_COLUMNS)
    assert provenance_of(read_table(made.table)) == {"table": "grid", "title": "Table 1: kinds", "lines": "constants"}
    assert trace_of(made.table) == made.job.trace() and made.said == "Table 1: kinds: 7 rows"


def test_each_model_has_a_table(tmp_path: Path) -> None:
    rows = [
        row("ner", constant, fraction, mean, model=model)
        for model, scores in (("n", (0.9, 0.7)), ("m", (0.8, 0.5)))
        for constant, fraction, mean in ((None, "1", scores[0]), ("average", "0", scores[1]))
    ]
    made = Made(tmp_path, rows, models=["m", "n"], tasks={"ner": "conll"})
    tables = made.markdown.split("## ")[1:]
    titles = ["m (23 heads)", "m (23 heads). Loss", "n (23 heads)", "n (23 heads). Loss"]
    assert [table.split("\n")[0] for table in tables] == titles
    for table, scores in zip(tables[::2], ((0.8, 0.5), (0.9, 0.7)), strict=True):
        assert f"| original | {scores[0]:.3f} ±.013 |" in table
        assert table.rstrip().endswith(f"| average | {scores[1]:.3f} ±.013 |")


def test_a_task_without_a_say_is_named_with_the_reason(tmp_path: Path) -> None:
    why = {"status": "the probe is no better than the majority class, yes (0.690)"}
    rows = [row("ner", None, "1", 0.9), row("ner", "average", "0", 0.7)]
    rows += [row("cola", None, "1", 0.7, **why), row("cola", "average", "0", 0.7, loss=None, **why)]
    made = Made(tmp_path, rows)
    assert made.lost[2] == "| average | - | 25 % (10 to 41) |"
    note = made.markdown.split("Loss\n")[1]
    assert "No loss: COLA: the probe is no better than the majority class, yes (0.690)." in note
    assert "NER:" not in note and "(original - score) / (original - contextless)" in note


def test_a_floor_that_was_not_measured_has_no_line(tmp_path: Path) -> None:
    missing = {"contextless": None, "loss": None, "status": "no contextless floor was measured"}
    rows = [row("ner", None, "1", 0.9, **missing), row("ner", "average", "0", 0.7, **missing)]
    made = Made(tmp_path, rows, tasks={"ner": "conll"})
    assert [line.split("|")[1].strip() for line in made.lines[2:]] == ["original", "trivial", "average"]
    assert made.lost[2] == "| average | - |"


def test_equal_scores_are_both_best_and_an_undefined_one_is_not(tmp_path: Path) -> None:
    rows = [row("ner", "zeros", "0", 0.7002), row("ner", "average", "0", 0.7001), row("ner", "identity", "0", None)]
    made = Made(tmp_path, rows, constants=["zeros", "average", "identity"], tasks={"ner": "conll"}, fractions=["0"])
    cells = ["| zeros | **0.700 ±.013** |", "| average | **0.700 ±.013** |", "| identity | - |"]
    floors = ["| trivial | 0.100 |", "| contextless | 0.200 |"]
    assert made.lines == ["| constants | NER |", "| --- | --- |", *floors, *cells]


def test_averages_of_other_texts(tmp_path: Path) -> None:
    rows = [
        row("cola", "average", "0", 0.3),
        row("cola", "average-of-conll", "0", 0.2),
        row("ner", "average", "0", 0.7),
    ]
    made = Made(tmp_path, rows, constants=["average", "average-of-conll"], fractions=["0"])
    # NER is a task on conll: its average is the average of conll
    assert made.lines[4:] == [
        "| average, own texts | **0.300 ±.013** | **0.700 ±.013** |",
        "| average, texts of conll | 0.200 ±.013 | **0.700 ±.013** |",
    ]


def test_fractions_are_columns(tmp_path: Path) -> None:
    rows = []
    for model, less in (("m", 0.0), ("n", 0.1)):
        for task in ("ner", "cola"):
            rows += [
                row(task, None, "1", 0.9 - less, model=model),
                row(task, "average", "1/16", 0.8 - less, model=model),
            ]
            rows += [row(task, "average", "0", 0.6 - less, model=model, relative_drop=0.25)]
    made = Made(tmp_path, rows[:-1], models=["n", "m"], fractions=["0", "1/16", "1"])
    assert [made.cell(line, "task") + made.cell(line, "model") for line in range(4)] == [
        "COLAn",
        "COLAm",
        "NERn",
        "NERm",
    ]
    scores = [[made.cell(line, fraction)[:5] for fraction in ("1", "1/16", "0")] for line in range(4)]
    n, m = ["0.800", "0.700", "0.500"], ["0.900", "0.800", "0.600"]
    assert scores == [["0.800", "0.700", ""], m, n, m]
    assert made.cell(1, "0") == "0.600 ±.013" and made.cell(0, "drop at 0") == made.cell(0, "loss at 0") == "-"
    assert (made.cell(3, "trivial"), made.cell(3, "contextless")) == ("0.100", "0.200")
    assert (made.cell(3, "drop at 0"), made.cell(3, "loss at 0")) == ("25.0 %", "25 % (10 to 41)")
    assert "of heads that keep their own attention. Constants: average; order: λ. Cells" in made.markdown
    assert "the score of a seed is its mean over the orders" in made.markdown and "Loss: " in made.markdown
    assert "same number" not in made.markdown
    assert made.latex.count(r"\midrule") == 2
    assert r"\caption{Table 1: kinds. Columns" in made.latex


def test_orders_are_lines_that_share_their_ends(tmp_path: Path) -> None:
    rows = [row("ner", None, "1", 0.9), row("ner", "average", "0", 0.6)]
    rows += [row("ner", "average", f, 0.8, same_heads_as=s) for f, s in (("1/16", "1/19"), ("1/19", "1/16"))]
    rows += [row("ner", "average", f, 0.7, order="random", same_heads_as="1/17") for f in ("1/16", "1/19")]
    grid = {"tasks": {"ner": "conll"}, "orders": ["random", "lambda"], "fractions": ["1", "1/16", "1/19", "0"]}
    made = Made(tmp_path, rows, **grid)
    fractions = ("1", "1/16", "1/19", "0")
    for line, (order, between) in enumerate((("random", "0.700 ±.013"), ("λ", "0.800 ±.013"))):
        assert made.cell(line, "order") == order
        assert [made.cell(line, f) for f in fractions] == ["0.900 ±.013", between, between, "0.600 ±.013"]
    assert made.markdown.count("Fractions with the same number of heads: m keeps 1 of 23 at 1/19 and 1/16.") == 1
    assert "Model: m; constants: average. Cells" in made.markdown
    words = "If an order is drawn or learned several times, the score of a seed is its mean over the orders."
    assert words in made.markdown
    assert "over the orders" not in Made(tmp_path, rows, **grid | {"orders": ["top-down"]}).markdown


@pytest.mark.parametrize(
    ("constant", "name"),
    [("toeplitz", "Toeplitz"), ("average-trained", "average, trained"), ("zeros", "zeros")],
)
def test_names_of_constants(constant: str, name: str) -> None:
    assert constant_name(constant) == name


def test_a_grid_that_was_not_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"summary\.parquet has no run of 'Mine'"):
        Made(tmp_path, [row("ner", None, "1", 0.9)], title="Mine", models=["other"])
    assert not (tmp_path / "grid.parquet").exists()
    with pytest.raises(DamagedArtefact, match="has no rows"):
        Made(tmp_path, [])
