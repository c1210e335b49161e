"""The table of a grid: every score in its cell, empty cells for missing scores, lines in the grid's order."""

import re

from builders import frame_of, grid_view, summary_row

from papa.results.grids import GRID_COLUMNS, section_of
from papa.results.table import arrow_of


def row(task, constant, fraction, mean, **columns):
    about = {
        "task": task,
        "constant": constant,
        "metric": "entity_f1",
        "heads": 23,
        "trivial": 0.1,
        "context_free": 0.2,
    }
    if constant is not None:
        about |= {"reliance": 0.254, "reliance_low": 0.1, "reliance_high": 0.406}
        about |= {"lost": 0.0254, "lost_low": 0.01, "lost_high": 0.0406}
    about |= {"contributed": 0.1, "contributed_low": 0.08, "contributed_high": 0.12}
    return summary_row(fraction, mean, **about | columns)


class Grid:
    def __init__(self, rows, **fields):
        view = {
            "title": "Table 1: kinds",
            "tasks": {"cola": "glue", "ner": "conll"},
            "fractions": ("0", "1"),
        } | fields
        self.section = section_of(grid_view(**view), frame_of(rows), "seeds")
        self.rows = arrow_of(self.section.frame, GRID_COLUMNS).to_pylist()
        self.tables = {table.title: table for table in self.section.tables}
        self.lines = self.section.tables[0].markdown().splitlines()

    def cells(self):
        """The cells of each line of the only table, by the heading of their column."""
        header, _, *lines = (
            [cell.strip() for cell in line.split("|")[1:-1]] for line in self.lines
        )
        return [dict(zip(header, line, strict=True)) for line in lines]


def test_constants_are_lines_and_tasks_columns():
    rows = [
        row("ner", "zeros", "0", 0.5),
        row("ner", "average", "0", 0.7),
        row("ner", None, "1", 0.9),
        row("cola", "average", "0", 0.3),
        row("cola", "identity", "0", 0.1),
        row("ner", "average", "1/2", 0.99),
        row("other", "zeros", "0", 0.99),
        row("ner", "average", "0", 0.99, model="n"),
        row("ner", "average", "0", 0.98, metric="token_accuracy", main=False),
    ]
    grid = Grid(rows, constants=["zeros", "toeplitz-trained", "average"])
    assert grid.lines == [
        "| constants | COLA | NER |",
        "| --- | --- | --- |",
        "| original |  | 0.900 ±.013 |",
        "| trivial | 0.100 | 0.100 |",
        "| context-free | 0.200 | 0.200 |",
        "| zeros |  | 0.500 ±.013 |",
        "| Toeplitz, trained |  |  |",
        "| average | **0.300 ±.013** | **0.700 ±.013** |",
    ]
    lost = grid.tables["m (23 heads). Lost"].markdown().splitlines()[2:]
    assert lost[:2] == [
        "| attention contributes | 10.0 (8.0 to 12.0) | 10.0 (8.0 to 12.0) |",
        "| zeros |  | 2.5 (1.0 to 4.1) |",
    ]
    reliances = ["| zeros |  | 25% (10 to 41) |", "| Toeplitz, trained |  |  |"]
    shown = grid.tables["m (23 heads). Reliance"].markdown().splitlines()
    assert shown[2:] == [*reliances, "| average | 25% (10 to 41) | 25% (10 to 41) |"]
    # the original is a point of every line
    assert [(r["line"], r["task"], r["constant"], r["mean"]) for r in grid.rows if r["main"]] == [
        ("average", "cola", "average", 0.3),
        ("zeros", "ner", None, 0.9),
        ("zeros", "ner", "zeros", 0.5),
        ("Toeplitz, trained", "ner", None, 0.9),
        ("average", "ner", None, 0.9),
        ("average", "ner", "average", 0.7),
    ]
    assert [r["mean"] for r in grid.rows if not r["main"]] == [0.98]
    assert list(grid.rows[0]) == list(GRID_COLUMNS)
    assert grid.section.facts == {"title": "Table 1: kinds", "lines": "constants"}
    assert grid.section.chart is None


def test_each_model_has_a_table_and_a_task_without_reliance_says_what_attention_contributes():
    why = {"status": "the probe is not significantly better than the majority class, yes (0.690)"}
    missing = {
        "context_free": None,
        "contributed": None,
        "reliance": None,
        "status": "no context-free floor was measured",
        "model": "n",
    }
    rows = [
        row("ner", None, "1", 0.9),
        row("ner", "average", "0", 0.7),
        row("cola", None, "1", 0.7, **why),
        row("cola", "average", "0", 0.7, reliance=None, **why),
        row("ner", None, "1", 0.8, **missing),
        row("ner", "average", "0", 0.5, **missing),
    ]
    grid = Grid(rows, models=["m", "n"])
    tables = {title: table.markdown() for title, table in grid.tables.items()}
    parts = ("", ". Lost", ". Reliance")
    assert list(tables) == [f"{model} (23 heads){part}" for model in "mn" for part in parts]
    contributes = "attention contributes 10.0 points (8.0 to 12.0)"
    assert f"| average | {contributes} | 25% (10 to 41) |" in tables["m (23 heads). Reliance"]
    note = grid.tables["m (23 heads). Reliance"].note
    assert (
        "No reliance: COLA (m): the probe is not significantly better than the majority class, yes (0.690)."
        in note
    )
    assert "NER:" not in note
    assert "Reliance: lost / contributed" in note
    # a floor that was not measured has no line
    assert re.findall(r"\| (\S+) \|  \| (\S+)", tables["n (23 heads)"]) == [
        ("original", "0.800"),
        ("trivial", "0.100"),
        ("average", "0.500"),
    ]
    assert "| average |  | - |" in tables["n (23 heads). Reliance"]


def test_averages_of_other_texts():
    """NER is a task on conll: its average is the average of conll."""
    rows = [
        row("cola", "average", "0", 0.3),
        row("cola", "average-of-conll", "0", 0.2),
        row("ner", "average", "0", 0.7),
    ]
    grid = Grid(rows, constants=["average", "average-of-conll"], fractions=["0"])
    assert grid.lines[4:] == [
        "| average, own texts | **0.300 ±.013** | **0.700 ±.013** |",
        "| average, texts of conll | 0.200 ±.013 | **0.700 ±.013** |",
    ]


def test_numbers_of_replaced_heads_are_columns():
    scores = {"1": (None, 0.9), "1/16": ("average", 0.8), "0": ("average", 0.6)}
    rows = [
        row(
            task,
            constant,
            fraction,
            score - less,
            model=model,
            relative_drop=0.25 if fraction == "0" else None,
        )
        for model, less in (("m", 0.0), ("n", 0.1))
        for task in ("ner", "cola")
        for fraction, (constant, score) in scores.items()
    ]
    grid = Grid(rows[:-1], models=["n", "m"], fractions=["0", "1/16", "1"])
    n = ["0.800", "0.700", "0.500"]
    m = ["0.900", "0.800", "0.600"]
    cells = [
        [cell[:5] for cell in map(line.get, ("task", "model", "0 of 23", "22 of 23", "23 of 23"))]
        for line in grid.cells()
    ]
    assert cells == [
        ["COLA", "n", *n[:2], ""],
        ["COLA", "m", *m],
        ["NER", "n", *n],
        ["NER", "m", *m],
    ]
    columns = ("23 of 23", "trivial", "context-free", "drop at 23 of 23", "reliance at 23 of 23")
    columns += ("lost at 23 of 23",)
    first, _, _, last = ([line[name] for name in columns] for line in grid.cells())
    effects = ["25.0%", "25% (10 to 41)", "2.5 (1.0 to 4.1)"]
    assert last == ["0.600 ±.013", "0.100", "0.200", *effects]
    assert first[3:] == ["-"] * 3


def test_fractions_with_the_same_number_of_heads_are_one_column():
    rows = [row("ner", "average", "1/2", 0.7), row("cola", "average", "11/23", 0.6)]
    grid = Grid(rows, fractions=["1/2", "11/23"])
    assert [line["12 of 23"][:5] for line in grid.cells()] == ["0.600", "0.700"]


def test_orders_are_lines_that_share_their_ends():
    rows = [row("ner", None, "1", 0.9), row("ner", "average", "0", 0.6)]
    rows += [row("ner", "average", f, 0.8) for f in ("1/16", "1/19")]
    rows += [row("ner", "average", f, 0.7, order="random") for f in ("1/16", "1/19")]
    fields = {"tasks": {"ner": "conll"}, "fractions": ("1", "1/16", "1/19", "0")}
    grid = Grid(rows, orders=["random", "lambda"], **fields)
    names = ("order", "0 of 23", "22 of 23", "23 of 23")
    assert [[line[name][:5] for name in names] for line in grid.cells()] == [
        ["rando", "0.900", "0.700", "0.600"],
        ["λ", "0.900", "0.800", "0.600"],
    ], "two fractions at which one head is kept have one column"
