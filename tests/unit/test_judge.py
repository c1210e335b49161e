"""Judging lists: on a model with a known answer, and the numbers that are read from the results of a study."""

import json
from fractions import Fraction
from io import StringIO

import pandas as pd
import pyarrow as pa
import pytest
from builders import grid_view, summary_of
from rich.console import Console
from test_floors import NO_CURVES
from test_orders import outcomes_of
from typer.testing import CliRunner

import papa
from benchmarks.known import judged
from papa.cli import app
from papa.config.artefacts import ARTEFACTS
from papa.config.variant import LIST_PREFIX
from papa.data.generated import generate
from papa.data.generated.known import HEADS, INDUCTION, LAYERS, known_model
from papa.files import read_table, write_json, write_table
from papa.jobs.judge import (
    INCONCLUSIVE,
    PASSES,
    REJECTED,
    TIE_DRAWS,
    _claimed,
    judge,
    judgements,
    print_judged,
    verdicts_of,
)
from papa.results.claims import claims_of, lines_of
from papa.results.random_orders import compared_with_random

SLOTS = 48
HOW = {"learning_rate": 1e-2, "batch_size": 8, "epochs": 2}
IDLE = (INDUCTION[0], (INDUCTION[1] + 1) % HEADS)


def texts(split, rows, seed=5):
    return generate("repeats", split, rows, seed=seed)["first"].tolist()


def named(folder, name, *heads):
    path = folder / f"{name}.yaml"
    path.write_text(json.dumps([f"{layer}-{head}" for layer, head in heads]))
    return str(path)


@pytest.mark.slow
@pytest.mark.usefixtures("no_figures")
def test_a_list_without_the_induction_head_is_rejected_and_one_with_it_passes(tmp_path):
    lists = [named(tmp_path, "Right one", INDUCTION), named(tmp_path, "wrong", IDLE)]
    settings = {"corpora": {"slots": SLOTS, "blocks": False}, "tasks": HOW}
    how = {"validation": texts("validation", 96), "settings": settings, "folder": tmp_path / "study"}
    (right, wrong), study = judge(lists, known_model("induction"), texts("train", 48), **how)
    assert (right["list"], wrong["list"]) == ("list right one", "list wrong")
    assert (right["verdict"], wrong["verdict"]) == (PASSES, REJECTED)
    assert right["kept"] == wrong["kept"] == 1 and right["heads"] == LAYERS * HEADS
    assert abs(right["loss"]) < 0.02 and right["bound"] < 0.1 < 0.9 < wrong["low"]
    assert right["minus"]["lambda"]["difference"] == pytest.approx(0, abs=0.02)
    assert wrong["minus"]["lambda"]["difference"] == pytest.approx(wrong["loss"], abs=0.05)
    assert wrong["minus"]["lambda"]["low"] > 0.8 and wrong["minus"]["gradient"]["p"] < 0.01
    places = read_table(study.folder / ARTEFACTS["table"].path(analysis="random_orders")).to_pandas()
    shuffled = places[places["among"].eq(f"{LIST_PREFIX}wrong-shuffled")]
    assert shuffled["order"].tolist() == ["list-wrong"] and shuffled["draws"].tolist() == [19]
    assert right["random"]["draws"] == 19 and right["random"]["smaller"] < wrong["random"]["smaller"]
    assert right["same_layers"]["p"] <= 0.5 and wrong["same_layers"]["smaller"] == 19, "nothing costs more"


@pytest.mark.slow
def test_verdicts_on_new_texts_are_right(tmp_path):
    """A small version of `benchmarks/known.py --lists 200`."""
    for seed in (101, 102):
        folder = tmp_path / str(seed)
        folder.mkdir()
        assert judged(seed, folder) == {"right": PASSES, "wrong": REJECTED}


def claimed(folder, *lists, fraction="1/2"):
    unit, orders = _claimed(lists, str(folder), fraction)
    return unit, [(order.name, order.draws, share) for order, share in orders]


def test_a_list_claims_its_heads_or_a_share(tmp_path):
    folder = known_model("induction")
    (tmp_path / "all.tsv").write_text("1\t2\t3\t4\t5\n" * LAYERS)
    best = named(tmp_path, "2nd best", INDUCTION, IDLE)
    unit, orders = claimed(folder, f"Mine={tmp_path / 'all.tsv'}", best, fraction="3/10")
    assert (unit, orders) == ("head", [("mine", TIE_DRAWS, Fraction(3, 10)), ("list-2nd-best", 1, Fraction(2, 10))])
    assert claimed(folder, str(tmp_path / "all.tsv"), fraction="4/10")[1] == [("all", 1, Fraction(4, 10))]
    with pytest.raises(papa.InputError, match="would keep 0 of 10 heads; a list must keep some, but not all"):
        claimed(folder, str(tmp_path / "all.tsv"), fraction="1/20")
    with pytest.raises(papa.InputError, match="Two lists have the same name; give different ones as NAME=FILE"):
        claimed(folder, best, best)
    wrong = CliRunner().invoke(app, ["judge", best, "--model", str(tmp_path), "--train", "texts.txt"])
    assert wrong.exit_code == 2 and "config.json" in wrong.output


def test_lists_are_judged_with_other_constants(tmp_path, monkeypatch):
    class Given(Exception):
        pass

    def given(*arguments):
        raise Given(arguments[4])

    monkeypatch.setattr("papa.jobs.judge.measure", given)
    lists = [named(tmp_path, name, INDUCTION) for name in ("one", "two")]
    given_settings = {"run": {"seeds": [1, 2]}, "ranking": {"halves": True}}
    with pytest.raises(Given) as passed:
        judge(lists, known_model("induction"), [], settings=given_settings, constant="streaming-1-2", draws=3)
    settings = passed.value.args[0]
    assert settings["run"]["seeds"] == [1, 2] and settings["ranking"] == {"halves": True, "draws": 3, "unit": "head"}
    assert settings["run"]["constants"] == settings["grids"]["list-two"]["constants"] == ["streaming-1-2"]
    assert settings["run"]["fractions"] == ["1", "1/10", "0"] and settings["grids"]["list-two"]["orders"][1:] == [
        *("lambda", "gradient", "random")
    ]
    with pytest.raises(papa.InputError, match=r"run\.orders, which other arguments of judge determine; leave it out"):
        judge(lists, known_model("induction"), [], settings={"run": {"orders": ["lambda"]}})


ORDERS = ("list-duo", "lambda", "gradient", "random", "list-duo-shuffled")
HALVES = {"list-duo-1": 340, "lambda-0": 350, "gradient-0": 300}
HALVES |= {f"random-{n}": 200 + 8 * n for n in range(1, 20)} | {f"list-duo-shuffled-{n}": 338 + n for n in range(1, 20)}


@pytest.fixture(scope="module")
def measured(tmp_path_factory):
    """The results of a study in which `HALVES` are right at 1/2, 360 at 1, and 200 without context."""
    folder, tasks = tmp_path_factory.mktemp("results"), [outcomes_of(HALVES)]
    lines = lines_of(grid_view(["t"], orders=ORDERS), summary_of(tasks), tasks)
    _, conclusion = claims_of(lines, 0.2, NO_CURVES)
    write_json(conclusion.to_json(), folder / ARTEFACTS["claims_json"].path())
    places = pd.DataFrame(compared_with_random(lines, 0))
    write_table(pa.Table.from_pandas(places), folder / ARTEFACTS["table"].path(analysis="random_orders"), {})
    return folder, conclusion


def test_losses_are_compared_with_those_of_other_orders(measured):
    (row,) = judgements(measured[0], ["list-duo"])
    loss = {name: (360 - HALVES[name]) / 160 for name in HALVES}
    assert row["loss"] == pytest.approx(loss["list-duo-1"]) and row["low"] < row["loss"] < row["high"]
    for other in ("lambda", "gradient"):
        minus = row["minus"][other]
        assert minus["difference"] == pytest.approx(loss["list-duo-1"] - loss[f"{other}-0"])
        assert minus["low"] < minus["difference"] < minus["high"]
    assert row["minus"]["gradient"]["high"] < 0 and row["minus"]["gradient"]["p"] < 0.05
    assert row["random"] == {"draws": 19, "smaller": 2, "p": 3 / 20}
    assert row["same_layers"]["smaller"] == 18
    out = Console(file=StringIO(), width=200)
    print_judged([row], out)
    shown = out.file.getvalue()
    assert "list duo" in shown and "18 of 19 (p = 0.95)" in shown and "below the margin of 20 %" in shown


def test_verdicts_follow_from_the_interval(measured):
    line = next(line for line in measured[1].lines if line.order == "list-duo")
    step, (task,), margin = line.steps[0], line.by_task, measured[1].margin

    def claims(low, p):
        """The claims about a list with this lower end of the interval, and this p value of a smaller loss."""
        changed = task.model_copy(update={"steps": (task.steps[0].model_copy(update={"p": p}), *task.steps[1:])})
        steps = (step.model_copy(update={"low": low}), *line.steps[1:])
        return line.model_copy(update={"steps": steps, "by_task": (changed,)})

    assert verdicts_of([claims(0.0, 0.04)], margin) == [PASSES]
    assert verdicts_of([claims(0.0, 0.06)], margin) == [INCONCLUSIVE]
    assert verdicts_of([claims(margin + 0.01, 1.0), claims(margin - 0.01, 1.0)], margin) == [REJECTED, INCONCLUSIVE]
    several = [claims(0.0, 0.04), claims(0.0, 0.04), claims(0.0, 0.01)]
    assert verdicts_of(several, margin) == [INCONCLUSIVE, INCONCLUSIVE, PASSES], "corrected for three lists"
    nothing = line.model_copy(update={"steps": (), "by_task": ()})
    assert verdicts_of([nothing], margin) == [INCONCLUSIVE]
