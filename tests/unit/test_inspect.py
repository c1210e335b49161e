"""`papa inspect`: what a file is, what it was made from, whether it is intact, and the beginning of it."""

import json
import re

import pyarrow as pa
import pytest
import torch
from typer.testing import CliRunner

from papa.cli import app
from papa.files import REBUILD, Trace, write_json, write_page, write_table, write_tensors
from papa.jobs.inspect import print_inspected
from papa.method.averages import ConstantMatrices

LAYERS, HEADS, SLOTS, EXAMPLES = 2, 3, 7, 5


def trace(stage, **settings):
    return Trace(stage, 1, settings, {"tokens": "0123456789abcdef"})


def averages(path):
    count = torch.full((SLOTS, SLOTS), EXAMPLES)
    count[3] = count[:, 3] = 0
    total = torch.rand(LAYERS, HEADS, SLOTS, SLOTS, dtype=torch.double) * (count > 0)
    ConstantMatrices(total, count, EXAMPLES, {"model": "tiny"}).save(path, trace("average", part="1of1"))


def by_head(path, stage, name, values, epochs=1, **told):
    places = [
        (epoch, layer, head) for epoch in range(1, epochs + 1) for layer in range(LAYERS) for head in range(HEADS)
    ]
    columns = {"layer": [place[1] for place in places], "head": [place[2] for place in places], name: values}
    if stage == "lambda":
        columns["epoch"] = [place[0] for place in places]
    write_table(pa.table(columns), path, {}, trace(stage, seed=13, **told))


def texts(path):
    rows = {"split": ["train"] * 11, "row": [*range(11)], "first": [f"text {row}" for row in range(11)]}
    write_table(pa.table(rows), path, {"rows": {"train": 11}}, trace("texts", corpus={"first": "sentence"}))


def outcomes(path, **columns):
    """Six validation examples, four of them right, and one of a further split."""
    columns = {"gold": [0, 1, 1, 0, 1, 0, 1], "predicted": [0, 1, 0, 0, 1, 1, 0]} | columns
    split = pa.array(["validation"] * 6 + ["more"]).dictionary_encode()
    about = {"task": "t", "label_names": ["no", "yes"]}
    write_table(
        pa.table({"seed": [1] * 7, "split": split, "example": [*range(6), 0]} | columns), path, about, trace("probe")
    )


def tables(path, **columns):
    rows = {"model": ["tiny"], "task": ["t"], "constant": ["average"]} | columns
    stage = {"claims.parquet": "claims", "stability.parquet": "stability"}.get(path.name, "summary")
    write_table(pa.table(rows), path, {"table": path.stem}, trace(stage))


def claims(path):
    line = {"grid": "g", "line": "tiny", "model": "m", "heads": 6, "replaceable": 4, "tasks": ["CoLA", "RTE"]}
    line |= {"seeds": 3, "orders": 1, "measured": [], "sentence": "tiny keeps up."}
    line |= dict.fromkeys(("constant", "order", "examples", "half_margin", "at_end", "area"))
    line |= {key: [] for key in ("without", "ceiling", "rising", "steps")}
    areas = [{"grid": "g", "a": "one", "b": "two", "verdict": "cannot tell", "p": 0.3}]
    areas[0] |= dict.fromkeys(("difference", "low", "high"))
    told = {"sentence": "tiny keeps up.", "margin": 0.05, "lines": [line], "areas": areas}
    write_json(told, path, trace("claims"))


RUN = {"kept": 0.75, "seed": 1, "curve": [{"epoch": 1, "loss": 0.5}]}
OTHER = RUN | {"seed": 2, "curve": [{"epoch": 1, "loss": 0.25}]}
FILES = {
    "texts.parquet": texts,
    "lambda.parquet": lambda path: by_head(
        path, "lambda", "value", [0.5] * 6 + [0.4891, 0.5113, 0.5, 0.5, 0.5, 0.5], 2
    ),
    "weights.parquet": lambda path: by_head(path, "weights", "value", [0.5, 1.5, 2.5, 3.5, 4.5, 5.5], by="gradient"),
    "order.parquet": lambda path: by_head(path, "rank", "rank", [5, 4, 3, 2, 1, 0]),
    "1of2.parquet": lambda path: by_head(path, "lambda", "value", [0.5] * 6, part="1of2"),
    "runs.json": lambda path: write_json({"runs": [RUN, OTHER]}, path, trace("probe")),
    "outcomes.parquet": outcomes,
    "tables/outcomes.parquet": lambda path: tables(path, predicted=[1]),
    "curves.parquet": lambda path: tables(path, epoch=[1], loss=[0.5]),
    "claims.parquet": lambda path: tables(path, margin=[0.05]),
    "claims.json": claims,
    "stability.parquet": lambda path: tables(path, tau=[0.75]),
    "probes.safetensors": lambda path: write_tensors(
        {"seed-1/dense": torch.ones(3, 5)}, path, {"epochs": 3}, trace("probe")
    ),
    "average.h5": averages,
    "index.html": lambda path: write_page("<head></head>", path, trace("page")),
}


@pytest.fixture
def file(tmp_path):
    def made(name):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        FILES[name](tmp_path / name)
        return tmp_path / name

    return made


def inspect(*arguments, code=0):
    result = CliRunner().invoke(app, ["inspect", *map(str, arguments)])
    assert result.exit_code == code, result.output
    return result


def content_of(path, *options, code=0):
    return json.loads(inspect(path, *options, "--json", code=code).stdout)


@pytest.mark.parametrize("name", FILES)
def test_every_file_says_what_made_it(file, name):
    path = file(name)
    found = content_of(path)
    assert found["intact"] and found["bytes"] == path.stat().st_size
    assert found["made"]["version"] == 1 and found["inputs"] == {"tokens": "0123456789abcdef"}
    said = inspect(path).stdout
    assert "Intact" in said and "tokens  0123456789ab\n" in said and f"Made by stage {found['made']['stage']}" in said


@pytest.mark.parametrize("name", FILES)
def test_damage_is_said(file, name):
    path = file(name)
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    found = content_of(path, code=1)
    assert found["intact"] is False and REBUILD in found["damage"] and "\n" not in found["damage"]
    assert REBUILD in " ".join(inspect(path, code=1).stdout.split())


def test_changed_values_are_found(file):
    path = file("runs.json")
    path.write_text(path.read_text(encoding="utf-8").replace("0.75", "0.85"), encoding="utf-8")
    assert str(path) in content_of(path, code=1)["damage"]


def test_settings_and_first_rows_are_shown(file):
    said = inspect(file("texts.parquet")).stdout
    assert re.search(r"corpus +first sentence", said) and "5 of 11 rows" in said and "text 4" in said
    assert "text 5" not in said


def test_a_table_wider_than_the_terminal_is_cut_between_columns(capsys):
    from rich.console import Console

    columns = [f"a_long_name_{number}" for number in range(40)]
    table = {"columns": columns, "rows": [["0.123"] * 40], "total": 1}
    found = {"what": "Table", "bytes": 1, "damage": None, "intact": True, "made": None, "inputs": {}, "table": table}
    print_inspected(found, Console(width=80))
    lines = capsys.readouterr().out.splitlines()
    assert all(any(name in line for line in lines) for name in columns) and max(map(len, lines)) <= 80


def test_weights_have_three_decimals_and_are_those_of_the_last_epoch(file):
    path = file("lambda.parquet")
    assert content_of(path)["heads"]["values"] == [[0.4891, 0.5113, 0.5], [0.5, 0.5, 0.5]]
    said = inspect(path).stdout
    assert re.search(r"^0 +0\.489 +0\.511 +0\.500", said, re.MULTILINE) and "λ after 2 epochs" in said


def test_ranks_are_shown_by_head(file):
    path = file("order.parquet")
    assert content_of(path)["heads"]["values"] == [[5, 4, 3], [2, 1, 0]]
    assert re.search(r"^1 +2 +1 +0$", inspect(path).stdout, re.MULTILINE)


def test_a_run_shows_its_curve_and_its_tensors(file):
    found = content_of(file("runs.json"))
    assert found["table"]["columns"] == ["epoch", "loss, seed 1", "loss, seed 2"]
    assert found["table"]["rows"] == [[1, 0.5, 0.25]] and found["facts"] == {"seeds": [1, 2], "kept": 0.75}
    assert content_of(file("probes.safetensors"))["table"]["rows"] == [["seed-1/dense", "3 × 5", "float32"]]


def test_outcomes_have_scores_by_split(file, tmp_path):
    found = content_of(file("outcomes.parquet"))
    assert found["what"] == "Outcomes of probes" and found["facts"]["rows"] == 7
    scores = found["facts"]["scores"]
    assert list(scores) == ["validation", "more"]
    assert scores["validation"] == {
        "accuracy": pytest.approx(4 / 6),
        "f1": pytest.approx(2 / 3),
        "matthews_correlation": pytest.approx(1 / 3),
    }
    assert scores["more"] == {"accuracy": 0, "f1": 0, "matthews_correlation": 0}
    said = " ".join(inspect(tmp_path / "outcomes.parquet").stdout.split())
    outcomes(tmp_path / "two.outcomes.parquet", seed=[1, 1, 1, 2, 2, 2, 2])
    of_two = content_of(tmp_path / "two.outcomes.parquet")["facts"]["scores"]["validation"]
    assert of_two["f1"] == pytest.approx((2 / 3 + 2 / 3) / 2), "the mean of the seeds' scores"
    assert "scores validation accuracy 0.6667, f1 0.6667" in said and "more accuracy 0" in said
    outcomes(tmp_path / "2.outcomes.parquet", word=[0, 1, 2, 3, 4, 5, 0])
    words = content_of(tmp_path / "2.outcomes.parquet")["facts"]["scores"]["validation"]
    assert words == {"token_accuracy": pytest.approx(4 / 6)}, "no, yes are no names of entities"
    masked = {"seed": [1, 1], "split": ["validation"] * 2, "example": [0, 1], "tokens": [3, 1], "loss": [2.0, 1.0]}
    write_table(pa.table(masked), tmp_path / "3.outcomes.parquet", {"masked": 4}, trace("probe"))
    losses = content_of(tmp_path / "3.outcomes.parquet")["facts"]["scores"]
    assert losses == {"validation": {"negative_log_perplexity": pytest.approx(-0.75)}}


def test_a_run_has_the_scores_of_the_outcomes_beside_it(file, tmp_path):
    run = file("runs.json")
    assert "scores" not in content_of(run)["facts"]
    beside = file("outcomes.parquet")
    assert content_of(run)["facts"]["scores"] == content_of(beside)["facts"]["scores"]
    intact = beside.read_bytes()
    damaged = bytearray(intact)
    damaged[damaged.index(b"PAR1") + 40] ^= 1
    beside.write_bytes(damaged)
    found = content_of(run)
    assert (
        found["intact"] and found["facts"]["scores"].startswith("not known: ") and REBUILD in found["facts"]["scores"]
    )
    write_json({"runs": [RUN]}, run, trace("probe", seed=2))
    beside.write_bytes(intact)
    assert "scores" not in content_of(run)["facts"], "those are the outcomes of another run"


def test_every_table_has_a_description(file):
    names = ("tables/outcomes.parquet", "curves.parquet", "claims.parquet", "claims.json", "stability.parquet")
    outcomes, curves, *claimed, alike = (content_of(file(name))["what"] for name in names)
    assert (outcomes, curves) == ("Outcomes of all probes", "Losses and scores after each epoch")
    assert claimed == ["Analysis: claims"] * 2 and alike == "Analysis: stability"
    assert content_of(file("texts.parquet"))["what"] == "The texts of a corpus as one table"
    found = content_of(file("claims.json"))
    assert found["table"]["rows"] == [["g", "tiny", 6, 4, "CoLA, RTE"]]
    said = inspect(file("claims.json")).stdout
    assert "tiny keeps up." in said and "one and two (g) cannot tell" in said and "CoLA, RTE" in said


def test_lambda_of_a_part_says_so(file):
    assert content_of(file("1of2.parquet"))["heads"]["title"].startswith("λ after 1 epoch of part 1of2 of the texts;")


def test_weights_of_heads_say_what_they_are(file):
    heads = content_of(file("weights.parquet"))["heads"]
    assert heads["title"] == "gradient: heads of small values are replaced first"
    assert heads["values"] == [[0.5, 1.5, 2.5], [3.5, 4.5, 5.5]]


def test_heads_are_chosen(file):
    path = file("average.h5")
    shown = content_of(path)
    peaks = shown["heads"]["values"]
    [sharpest] = shown["pictures"]
    assert peaks[sharpest["layer"]][sharpest["head"]] == max(map(max, peaks))

    def heads(*options):
        return [(picture["layer"], picture["head"]) for picture in content_of(path, *options)["pictures"]]

    assert heads("--layer", 1) == [(1, 0), (1, 1), (1, 2)] and heads("--head", 1) == [(0, 1), (1, 1)]
    assert heads("--layer", 1, "--head", 0) == [(1, 0)]
    [picture] = content_of(path, "--layer", 1, "--head", 0)["pictures"]
    values, slots = picture["values"], picture["slots"]
    largest = max((value, row, column) for row, line in enumerate(values) for column, value in enumerate(line) if value)
    itself = [line[row] for row, line in enumerate(values) if line[row] is not None]
    printed = inspect(path, "--layer", 1, "--head", 0).stdout
    assert f"{largest[0]:.3f} ({slots[largest[1]]} to {slots[largest[2]]})" in printed
    assert re.search(rf"^1 +0 +{sum(itself) / len(itself):.3f} ", printed, re.MULTILINE)
    assert len(inspect(path).stdout.splitlines()) < 40
    assert "no layer 2; layers are 0 to 1" in inspect(path, "--layer", 2, code=2).stderr
    assert "has no heads to choose from" in inspect(file("runs.json"), "--head", 0, code=2).stderr
