"""The paper's tables read as losses: the printed values, ranges from rounding, and the losses of a study."""

from itertools import product

import numpy as np
import pandas as pd
import pytest
from builders import analysis_job, summary_row, write_rows

from papa.config.settings import Plots
from papa.files import provenance_of, read_table
from papa.results.analysis import analyse
from papa.results.published import published_values
from papa.results.published_losses import (
    AXIS,
    COLUMNS,
    INTERVALS,
    PAPER,
    STUDY,
    TASK_TITLES,
    loss_range,
    losses_figure,
    losses_of_study,
    published_losses,
    rounded,
    tables_of,
)

TASKS = ("cola", "mrpc", "sst2", "mnli_mismatched", "ner", "pos")
PRINTED = {
    ("1", "roberta-base"): """
original 0.47 0.85 0.91 0.78 0.92 0.93
identity 0.04 0.80 0.80 0.63 0.55 0.87
toeplitz 0.08 0.81 0.79 0.65 0.77 0.90
zeros 0.09 0.80 0.80 0.66 0.57 0.87
toeplitz_trained 0.08 0.81 0.79 0.68 0.78 0.91
average_trained 0.34 0.81 0.87 0.72 0.89 0.93
average 0.31 0.82 0.87 0.69 0.89 0.93""",
    ("2", "roberta-base"): """
per_task 0.31 0.82 0.87 - 0.89 0.93
mnli 0.32 0.81 0.87 - 0.89 0.93""",
    ("4", "roberta-large"): """
original 0.53 0.87 0.93 0.81 0.93 0.93
identity 0.09 0.72 0.80 0.65 0.56 0.87
toeplitz 0.11 0.79 0.80 0.65 0.74 0.89
zeros 0.09 0.80 0.81 0.66 0.57 0.87
toeplitz_trained 0.11 0.78 0.80 0.68 0.75 0.89
average_trained 0.35 0.81 0.88 0.73 0.91 0.93
average 0.34 0.81 0.85 0.68 0.89 0.92""",
    ("5", "roberta-large"): """
per_task 0.34 0.80 0.85 - 0.89 0.92
mnli 0.35 0.81 0.85 - 0.88 0.92""",
}
"""Tables 1, 2, 4 and 5, typed from the paper, with a column for each of `TASKS`."""


def loss_of(model, task, constant="average", floor=""):
    """A published loss with its range, in percent."""
    rows = published_losses()
    [row] = rows[rows["model"].eq(model) & rows["published_task"].eq(task) & rows["constant"].eq(constant)].to_dict(
        "records"
    )
    suffix = f"_{floor}" if floor else ""
    return tuple(round(100 * row[f"{name}{suffix}"], 1) for name in ("loss", "low", "high"))


def test_all_values_are_those_that_the_paper_prints():
    expected = {
        (*table, setting, task, float(value))
        for table, text in PRINTED.items()
        for setting, *cells in map(str.split, text.split("\n")[1:])
        for task, value in zip(TASKS, cells, strict=True)
        if value != "-"
    }
    values = published_values()[["table", "model", "setting", "task", "value"]]
    assert set(values.itertuples(index=False, name=None)) == expected and len(values) == len(expected) == 104


@pytest.mark.parametrize(
    ("model", "losses"),
    [
        ("RoBERTa BASE", {"mnli_mismatched": 75, "cola": 42, "sst2": 36, "ner": 9, "pos": 0}),
        ("RoBERTa LARGE", {"mnli_mismatched": 87, "cola": 43, "sst2": 67, "ner": 11, "pos": 17}),
    ],
)
def test_losses_with_averages_are_those_worked_out_by_hand(model, losses):
    assert {task: round(loss_of(model, task)[0]) for task in losses} == losses


def test_ranges_are_those_worked_out_by_hand():
    # from (.775 - .695) / (.775 - .655) to (.785 - .685) / (.785 - .665)
    assert loss_of("RoBERTa BASE", "mnli_mismatched") == (75.0, 66.7, 83.3)
    # from (.845 - .825) / (.845 - .795) to (.855 - .815) / (.855 - .805)
    assert loss_of("RoBERTa BASE", "mrpc") == (60.0, 40.0, 80.0)
    # from (.925 - .935) / (.925 - .875) to (.935 - .925) / (.935 - .875)
    assert loss_of("RoBERTa BASE", "pos") == (0.0, -20.0, 16.7)


def test_a_range_holds_all_losses_of_its_box_and_reaches_its_ends():
    chance = np.random.default_rng(1)
    for _ in range(40):
        floor, score, original = chance.uniform(0, 1, 3)
        half = 0.3 * chance.random()
        box = [(value, value - half, value + half) for value in (original, score, floor)]
        value, low, high = loss_range(*box)
        if box[0][1] <= box[2][2]:
            assert (low, high) == (-np.inf, np.inf)
            continue
        inside = [chance.uniform(*ends[1:], 500) for ends in box]
        losses = (inside[0] - inside[1]) / (inside[0] - inside[2])
        corners = [(one - two) / (one - three) for one, two, three in product(*(ends[1:] for ends in box))]
        assert low <= losses.min() and losses.max() <= high and low < value < high
        assert (low, high) == pytest.approx((min(corners), max(corners)))


@pytest.mark.parametrize("floor", [0.79, 0.80, 0.81])
def test_without_a_certain_contribution_a_range_is_unbounded(floor):
    """0.80 may be as low as 0.795, and 0.79 as high as 0.795."""
    loss, low, high = loss_range(rounded(0.80), rounded(0.70), rounded(floor))
    assert (low, high) == (-np.inf, np.inf) and (np.isnan(loss) or floor < 0.8)
    assert loss_range(rounded(0.80), rounded(0.70), rounded(0.78)).high < np.inf


def test_the_better_floor_has_the_higher_score():
    assert loss_of("RoBERTa BASE", "cola", floor="zeros") == loss_of("RoBERTa BASE", "cola")  # .09 against .04
    assert loss_of("RoBERTa BASE", "cola", floor="identity")[0] == 37.2
    assert loss_of("RoBERTa LARGE", "mrpc", floor="identity")[0] == 40.0  # .72, zeros .80
    assert loss_of("RoBERTa LARGE", "mrpc")[0] == 85.7
    # identity .80 and zeros .80: the better one of two rounded scores is between .795 and .805 too
    assert loss_of("RoBERTa BASE", "sst2") == loss_of("RoBERTa BASE", "sst2", floor="identity")


def test_every_other_score_of_tables_1_and_4_has_a_loss():
    rows = published_losses()
    assert list(rows) == list(COLUMNS) and len(rows) == 2 * 6 * 4
    assert set(rows["constant"]) == {"average", "average-trained", "toeplitz", "toeplitz-trained"}
    assert set(rows["table"]) == {"1", "4"} and set(rows["interval"]) == {INTERVALS[PAPER]}
    assert rows["published_task"].drop_duplicates().tolist() == list(TASK_TITLES)
    assert dict(zip(rows["published_task"], rows["metric"], strict=True))["pos"] == "chunk_f1"


LOST = {"loss": 0.82, "loss_low": 0.73, "loss_high": 0.93}
ABOUT = {"model": "mine", "task": "pairs", "metric": "accuracy", "constant": "average"}


def summary_rows():
    """A study with a loss that the paper has, and with others that it does not have."""
    return [
        summary_row("1", 0.546, **ABOUT | {"constant": None}),
        summary_row("0", 0.498, **ABOUT | LOST),
        summary_row("0", 0.512, **ABOUT | LOST | {"constant": "average-trained", "loss": 0.6}),
        summary_row("0", 0.5, **ABOUT | LOST | {"constant": "uniform"}),
        summary_row("1/2", 0.545, **ABOUT | LOST),
        summary_row("0", 0.4, **ABOUT | LOST | {"subset": "hard"}),
        summary_row("0", 0.4, **ABOUT | LOST | {"main": False}),
        summary_row("0", 0.4, **ABOUT | LOST | {"task": "other"}),
        summary_row("0", 0.4, **ABOUT | {"task": "cola", "status": "excluded"}),
    ]


def job(folder, rows):
    write_rows(rows, folder / "summary.parquet")
    parameters = {"tasks": {"pairs": "mnli_mismatched", "cola": "cola"}, "values": "v"}
    parameters |= {"plots": Plots().model_dump(mode="json")}
    return analysis_job(
        "published_losses", parameters, {"summary": folder / "summary.parquet"}, folder / "p", drawn=True
    )


def test_losses_of_a_study_are_next_to_the_published_ones(tmp_path):
    message = analyse(job(tmp_path, summary_rows()))
    rows = [row for row in read_table(tmp_path / "p.parquet").to_pylist() if row["source"] == STUDY]
    assert [(row["model"], row["constant"], row["loss"]) for row in rows] == [
        ("mine", "average", 0.82),
        ("mine", "average-trained", 0.6),
    ]
    assert (rows[0]["low"], rows[0]["high"], rows[0]["original"], rows[0]["score"]) == (0.73, 0.93, 0.546, 0.498)
    assert rows[0]["interval"] == INTERVALS[STUDY] and rows[0]["loss_zeros"] is None
    page = (tmp_path / "p.md").read_text(encoding="utf-8")
    assert "| RoBERTa BASE | MNLI | Accuracy | 0.78 | 0.66 | 0.63 | 0.69 | 75 % (67 to 83) | 60 % (53 to 67) |" in page
    assert "| MNLI | 75 % (67 to 83) | 87 % (80 to 93) | 82 % (73 to 93) |" in page
    assert "| CoLA | 42 % (39 to 45) | 43 % (41 to 45) | - |" in page
    assert "from rounding only" in page and "from rounding only: RoBERTa BASE: MNLI 75 % (67 to 83)," in message
    assert provenance_of(read_table(tmp_path / "p.parquet"))["rounding"] == 0.005
    assert "measured by papa, 95 % interval" in (tmp_path / "p.svg").read_text(encoding="utf-8")


def test_a_study_without_such_losses_has_the_published_ones_only(tmp_path):
    analyse(job(tmp_path, summary_rows()[:1]))
    assert {row["source"] for row in read_table(tmp_path / "p.parquet").to_pylist()} == {PAPER}
    page = (tmp_path / "p.md").read_text(encoding="utf-8")
    assert "those of this study\n" not in page and "Toeplitz, trained" in page


def test_published_dots_are_hollow_and_those_of_a_study_are_filled(tmp_path):
    summary = read_table(write_rows(summary_rows(), tmp_path / "s.parquet")).to_pandas()
    rows = published_losses()
    study = losses_of_study(summary, {"pairs": "mnli_mismatched"})
    rows.loc[rows["constant"].eq("average").idxmax(), "low"] = -3.0
    both = pd.concat([rows, study], ignore_index=True)
    specification = losses_figure(both, Plots()).to_dict()
    _, intervals, hollow, filled = specification["layer"]
    points = max(specification["datasets"].values(), key=len)
    assert len(points) == 12 + 1 and min(point["low"] for point in points) == AXIS[0]
    assert intervals["mark"]["type"] == "rule" and hollow["mark"]["type"] == filled["mark"]["type"] == "point"
    assert hollow["encoding"]["fill"]["scale"]["range"][0] == "white"
    assert filled["encoding"]["fill"]["field"] == filled["encoding"]["color"]["field"] == "model"
    domain = hollow["encoding"]["color"]["scale"]["domain"]
    assert domain == ["RoBERTa BASE", "RoBERTa LARGE", "mine"]
    assert tables_of(both)[-1].header == ["task", *domain]
