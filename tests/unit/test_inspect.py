"""`papa inspect`: what a file is, what it was made from, whether it is intact, and the beginning of it."""

import json
import re

import pyarrow as pa
import pytest
import torch
from builders import head_rows, line_claim, run_record
from rich.console import Console
from typer.testing import CliRunner

from papa.cli import app
from papa.files import REBUILD, Trace, write_json, write_page, write_table, write_tensors
from papa.jobs.inspect import inspect as inspected
from papa.jobs.inspect import print_inspected
from papa.method.averages import ConstantMatrices
from papa.results.conclusion import Conclusion

LAYERS, HEADS, SLOTS, EXAMPLES = 2, 3, 7, 5


def trace(stage, **settings):
    return Trace(stage, 1, settings, {"tokens": "0123456789abcdef"})


def averages(path):
    count = torch.full((SLOTS, SLOTS), EXAMPLES)
    count[3] = count[:, 3] = 0
    total = torch.rand(LAYERS, HEADS, SLOTS, SLOTS, dtype=torch.double) * (count > 0)
    ConstantMatrices(total, count, EXAMPLES, {"model": "tiny"}).save(path, trace("average", part="1of1"))


def texts(path):
    rows = {"split": ["train"] * 11, "row": [*range(11)], "first": [f"text {row}" for row in range(11)]}
    write_table(pa.table(rows), path, {"rows": {"train": 11}}, trace("texts", corpus={"first": "sentence"}))


def outcomes(path, **columns):
    """Six validation examples, four of them right, and one of a further split."""
    split = pa.array(["validation"] * 6 + ["more"]).dictionary_encode()
    rows = {"seed": [1] * 7, "split": split, "example": [*range(6), 0]}
    rows |= {"gold": [0, 1, 1, 0, 1, 0, 1], "predicted": [0, 1, 0, 0, 1, 1, 0]} | columns
    write_table(pa.table(rows), path, {"task": "t", "label_names": ["no", "yes"]}, trace("probe"))


def table(stage, **columns):
    rows = {"model": ["tiny"], "task": ["t"], "constant": ["average"]} | columns
    return lambda path: write_table(pa.table(rows), path, {"table": path.stem}, trace(stage))


def weights(stage, *epochs, **settings):
    """λ or other weights of two layers of three heads."""
    return lambda path: write_table(head_rows(*epochs, heads=HEADS), path, {}, trace(stage, seed=13, **settings))


def ranks(path):
    order = head_rows([5, 4, 3, 2, 1, 0], heads=HEADS).drop(["epoch"]).rename_columns({"value": "rank"})
    write_table(order, path, {}, trace("rank", seed=13))


def claims(path):
    line = line_claim(line="tiny", heads=6, replaceable=4, tasks=("CoLA", "RTE"), sentence="tiny keeps up.")
    conclusion = Conclusion(sentence="tiny keeps up.", margin=0.05, lines=(line,))
    write_json(conclusion.to_json(), path, trace("claims"))


RUNS = [run_record(seed=seed, kept=0.75, curve=[{"epoch": 1, "loss": 0.5 / seed}]) for seed in (1, 2)]
FILES = {
    "texts.parquet": texts,
    "lambda.parquet": weights("lambda", [0.5] * 6, [0.4891, 0.5113, 0.5, 0.5, 0.5, 0.5]),
    "weights.parquet": weights("weights", [0.5, 1.5, 2.5, 3.5, 4.5, 5.5], by="gradient"),
    "order.parquet": ranks,
    "1of2.parquet": weights("lambda", [0.5] * 6, part="1of2"),
    "runs.json": lambda path: write_json({"runs": RUNS}, path, trace("probe")),
    "outcomes.parquet": outcomes,
    "tables/outcomes.parquet": table("summary", predicted=[1]),
    "curves.parquet": table("summary", epoch=[1], loss=[0.5]),
    "claims.parquet": table("claims", margin=[0.05]),
    "claims.json": claims,
    "stability.parquet": table("stability", tau=[0.75]),
    "probes.safetensors": lambda path: write_tensors(
        {"seed-1/dense": torch.ones(3, 5)}, path, {"epochs": 3}, trace("probe")
    ),
    "average.h5": averages,
    "index.html": lambda path: write_page("<head></head>", path, trace("page")),
}


@pytest.fixture
def file(tmp_path):
    (tmp_path / "tables").mkdir()
    return lambda name: FILES[name](tmp_path / name) or tmp_path / name


def inspect(*arguments, code=0):
    result = CliRunner().invoke(app, ["inspect", *map(str, arguments)])
    assert result.exit_code == code, result.output
    return result


def words_of(path, **options):
    return " ".join(inspect(path, **options).stdout.split())


def content_of(path, *options, code=0):
    return json.loads(inspect(path, *options, "--json", code=code).stdout)


@pytest.mark.parametrize("name", FILES)
def test_every_file_says_what_made_it_and_whether_it_is_damaged(file, name):
    path = file(name)
    content, text = content_of(path), inspect(path).stdout
    assert content["intact"] and content["bytes"] == path.stat().st_size
    assert content["made"]["version"] == 1 and content["inputs"] == {"tokens": "0123456789abcdef"}
    for words in ("Intact", "tokens  0123456789ab\n", f"Made by stage {content['made']['stage']}"):
        assert words in text
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    content = content_of(path, code=1)
    assert content["intact"] is False and REBUILD in content["damage"] and "\n" not in content["damage"]
    assert REBUILD in words_of(path, code=1)


def test_changed_values_are_noticed(file):
    path = file("runs.json")
    path.write_text(path.read_text(encoding="utf-8").replace("0.75", "0.85"), encoding="utf-8")
    assert str(path) in content_of(path, code=1)["damage"]


def test_settings_and_first_rows_are_shown(file):
    text = inspect(file("texts.parquet")).stdout
    assert re.search(r"corpus +first sentence", text) and "5 of 11 rows" in text and "text 4" in text
    assert "text 5" not in text


def test_a_table_wider_than_the_terminal_is_cut_between_columns(capsys):
    columns = [f"a_long_name_{number}" for number in range(40)]
    content = {"what": "Table", "bytes": 1, "damage": None, "intact": True, "made": None, "inputs": {}}
    content["table"] = {"columns": columns, "rows": [["0.123"] * 40], "total": 1}
    print_inspected(content, Console(width=80))
    lines = capsys.readouterr().out.splitlines()
    assert all(any(name in line for line in lines) for name in columns) and max(map(len, lines)) <= 80


HEADS_SHOWN = {
    "lambda.parquet": ([[0.4891, 0.5113, 0.5], [0.5] * 3], "λ after 2 epochs", r"^0 +0\.489 +0\.511 +0\.500"),
    "order.parquet": ([[5, 4, 3], [2, 1, 0]], "", r"^1 +2 +1 +0$"),
    "1of2.parquet": ([[0.5] * 3] * 2, "λ after 1 epoch on part 1of2 of the texts;", ""),
    "weights.parquet": ([[0.5, 1.5, 2.5], [3.5, 4.5, 5.5]], "gradient: heads with small values are replaced first", ""),
}


@pytest.mark.parametrize("name", HEADS_SHOWN)
def test_heads_have_a_value_each_of_the_last_epoch(file, name):
    path, (values, title, line) = file(name), HEADS_SHOWN[name]
    heads = content_of(path)["heads"]
    assert heads["values"] == values and heads["title"].startswith(title)
    assert re.search(line, inspect(path).stdout, re.MULTILINE)


def test_a_run_shows_its_curve_and_its_tensors(file):
    content = content_of(file("runs.json"))
    assert content["table"]["columns"] == ["epoch", "loss, seed 1", "loss, seed 2"]
    assert content["table"]["rows"] == [[1, 0.5, 0.25]]
    assert (content["facts"]["seeds"], content["facts"]["kept"]) == ([1, 2], 0.75)
    assert "curve" not in content["facts"] and "seed" not in content["facts"]
    assert content_of(file("probes.safetensors"))["table"]["rows"] == [["seed-1/dense", "3 × 5", "float32"]]


def test_outcomes_have_scores_by_split(file, tmp_path):
    def scores(**columns):
        outcomes(tmp_path / "more.outcomes.parquet", **columns)
        return content_of(tmp_path / "more.outcomes.parquet")["facts"]["scores"]

    path = file("outcomes.parquet")
    content = content_of(path)
    assert content["what"] == "Outcomes of probes" and content["facts"]["rows"] == 7
    assert content["facts"]["scores"] == {
        "validation": pytest.approx({"accuracy": 4 / 6, "f1": 2 / 3, "matthews_correlation": 1 / 3}),
        "more": {"accuracy": 0, "f1": 0, "matthews_correlation": 0},
    }
    words = words_of(path)
    assert "scores validation accuracy 0.6667, f1 0.6667" in words and "more accuracy 0" in words
    of_two_seeds = scores(seed=[1, 1, 1, 2, 2, 2, 2])["validation"]
    assert of_two_seeds["f1"] == pytest.approx((2 / 3 + 2 / 3) / 2), "the mean of the seeds' scores"
    of_words = scores(word=[0, 1, 2, 3, 4, 5, 0])["validation"]
    assert of_words == {"token_accuracy": pytest.approx(4 / 6)}, "no, yes are no names of entities"
    masked = {"seed": [1, 1], "split": ["validation"] * 2, "example": [0, 1], "tokens": [3, 1], "loss": [2.0, 1.0]}
    facts = {"masked": 4, "metric": "negative_log_perplexity"}
    write_table(pa.table(masked), tmp_path / "3.outcomes.parquet", facts, trace("probe"))
    losses = content_of(tmp_path / "3.outcomes.parquet")["facts"]["scores"]
    assert losses == {"validation": {"negative_log_perplexity": pytest.approx(-0.75)}}


def test_a_run_has_the_scores_of_the_outcomes_in_its_folder(file):
    runs = file("runs.json")
    assert "scores" not in content_of(runs)["facts"]
    path = file("outcomes.parquet")
    assert content_of(runs)["facts"]["scores"] == content_of(path)["facts"]["scores"]
    intact = path.read_bytes()
    damaged = bytearray(intact)
    damaged[damaged.index(b"PAR1") + 40] ^= 1
    path.write_bytes(damaged)
    content = content_of(runs)
    message = content["facts"]["scores"]
    assert content["intact"] and message.startswith("unknown: ") and REBUILD in message
    write_json({"runs": RUNS[:1]}, runs, trace("probe", seed=2))
    path.write_bytes(intact)
    assert "scores" not in content_of(runs)["facts"], "those are the outcomes of another run"


def test_every_table_has_a_description(file):
    descriptions = {
        "tables/outcomes.parquet": "Outcomes of all probes",
        "curves.parquet": "Losses and scores after each epoch",
        "claims.parquet": "Analysis: claims",
        "claims.json": "Analysis: claims",
        "stability.parquet": "Analysis: stability",
        "texts.parquet": "The texts of a corpus as one table",
    }
    assert {name: content_of(file(name))["what"] for name in descriptions} == descriptions
    path = file("claims.json")
    assert content_of(path)["table"]["rows"] == [["g", "tiny", 6, 4, "CoLA, RTE"]]
    text = inspect(path).stdout
    assert "tiny keeps up." in text and "CoLA, RTE" in text


@pytest.mark.parametrize("kind", ["average", "by-distance"])
def test_the_memory_of_constants_is_shown(kind, tmp_path):
    shape = [SLOTS, SLOTS] if kind == "average" else [2 * SLOTS]
    total, count = torch.rand(LAYERS, HEADS, *shape, dtype=torch.double), torch.full(shape, EXAMPLES)
    ConstantMatrices(total, count, EXAMPLES, {}, kind, SLOTS).save(tmp_path / "a.h5", trace("average"))
    facts, numbers = content_of(tmp_path / "a.h5")["facts"], total[0, 0].numel()
    memory = f"{4 * LAYERS * HEADS * numbers:,} B" if kind == "by-distance" else "1.2 kB"
    assert (facts["numbers per head"], facts["memory of all heads"], facts["slots"]) == (numbers, memory, SLOTS)


def test_heads_are_chosen(file):
    path = file("average.h5")
    content = content_of(path)
    peaks = content["heads"]["values"]
    [sharpest] = content["pictures"]
    assert peaks[sharpest["layer"]][sharpest["head"]] == max(map(max, peaks))
    used, mean = [0, 1, 2, 4, 5, 6], ConstantMatrices.load(path).mean[sharpest["layer"], sharpest["head"]]
    assert sharpest["slots"] == used, "the slot that no example has is left out"
    assert sharpest["values"] == [pytest.approx(row, abs=1e-4) for row in mean[used][:, used].tolist()]

    def heads(*options):
        return [(picture["layer"], picture["head"]) for picture in content_of(path, *options)["pictures"]]

    assert heads("--layer", 1) == [(1, 0), (1, 1), (1, 2)] and heads("--head", 1) == [(0, 1), (1, 1)]
    assert heads("--layer", 1, "--head", 0) == [(1, 0)]
    [picture] = content_of(path, "--layer", 1, "--head", 0)["pictures"]
    values, slots = picture["values"], picture["slots"]
    largest = max((value, row, column) for row, line in enumerate(values) for column, value in enumerate(line) if value)
    itself = [line[row] for row, line in enumerate(values) if line[row] is not None]
    text = inspect(path, "--layer", 1, "--head", 0).stdout
    assert f"{largest[0]:.3f} ({slots[largest[1]]} to {slots[largest[2]]})" in text
    assert re.search(rf"^1 +0 +{sum(itself) / len(itself):.3f} ", text, re.MULTILINE)
    assert len(inspect(path).stdout.splitlines()) < 40
    assert "no layer 2; layers are 0 to 1" in inspect(path, "--layer", 2, code=2).stderr
    assert "does not contain averages" in inspect(file("runs.json"), "--head", 0, code=2).stderr


def test_a_wide_table_is_transposed(tmp_path, capsys):
    """At 80 columns, each column is a line, and as many rows as fit are side by side."""
    columns = {
        "model": ["tiny"] * 7,
        **{f"column_{index}": [f"value {index} {row}" for row in range(7)] for index in range(9)},
    }
    columns["status"] = ["a sentence that is longer than a cell"] * 7
    path = tmp_path / "wide.parquet"
    write_table(pa.table(columns), path, {}, trace("summary"))
    print_inspected(inspected(path), Console(markup=False, highlight=False, emoji=False, width=80))
    text = capsys.readouterr().out
    assert max(map(len, text.splitlines())) <= 80 and "4 of 7 rows" in text
    assert re.search(r"^column_8 +value 8 0 +value 8 1 +value 8 2", text, re.MULTILINE)
    assert text.count("column_3") == 1 and "a sentence that…" in text
