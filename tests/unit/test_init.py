"""`papa init`: what it writes loads, what it chose is printed, and nothing is overwritten."""

import json
import shlex
from fractions import Fraction
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import yaml
from command import invoke, refusal
from families import letters_tokenizer

from papa.commands.init import config_text
from papa.config.reading import config_of, read_config
from papa.data.choose import DataSet
from papa.data.readers import read_file

ROWS = [
    ("the cat sees a dog", "good"),
    ("a dog", "bad"),
    ("here and now", "bad"),
    ("one", "good"),
] * 10
MORE = [*ROWS, ("", "good"), ("no label", " ")]
COPIES = [(f"text {number % 25}", ("good", "bad")[number % 2]) for number in range(50)]
REPEATED = [
    ("again" if row < 4 else f"premise {row}", f"one {row}", ("yes", "no")[row % 2])
    for row in range(20)
]
FILES = {
    "train.csv": ("text,label", ROWS),
    "dev.csv": ("text,label", ROWS),
    "other.csv": ("texts,mood", ROWS),
    "ids.csv": ("id,body", [(str(number), f"text {number}") for number in range(60)]),
    "copies.csv": ("text,label", COPIES),
    "more.csv": ("text,label", MORE),
    "none.csv": ("text,label", [("", "good"), ("a", "")]),
    "pairs.csv": ("premise,hypothesis,label", REPEATED),
    "words.csv": ("text,mood", ROWS),
}


@pytest.fixture
def here(tmp_path, monkeypatch):
    """A folder with files of texts, and models without weights."""
    monkeypatch.chdir(tmp_path)
    for name, (header, rows) in FILES.items():
        (tmp_path / name).write_text("\n".join([header, *map(",".join, rows)]) + "\n")
    (tmp_path / "train.txt").write_text("some words\nmore words\n")
    (tmp_path / "train.conll").write_text("ann B-PER\nruns O\n\nbob B-PER\nran O\n")
    facts = {"small": {"hidden_size": 384, "model_type": "bert"}}
    facts["GPT2LMHeadModel"] = {"model_type": "gpt2", "architectures": ["GPT2LMHeadModel"]}
    for name, content in facts.items():
        letters_tokenizer().save_pretrained(tmp_path / "models" / name)
        (tmp_path / "models" / name / "config.json").write_text(json.dumps(content))
    return tmp_path


init = partial(invoke, "init")


def loaded(path="papa.yaml"):
    return read_config(path).model_dump(mode="json", exclude_none=True)


def value(content, path):
    for key in path.split("."):
        content = content[key] if key != "*" else next(iter(content.values()))
    return content


@pytest.mark.parametrize(
    ("options", "expected", "written"),
    [
        (
            "",
            {
                "name": "papa",
                "models.bert-base-uncased.hub": "google-bert/bert-base-uncased",
                "corpora.texts.files.train": "data/train.csv",
                "tasks.*.learning_rate": 2e-5,
            },
            "replace both paths",
        ),
        (
            "--train train.csv",
            {
                "corpora.texts.first": "text",
                "corpora.texts.slots": 16,
                "tasks.classes.label": "label",
                "run.seeds": [1, 2, 3, 4, 5],
            },
            "2 labels, the most",
        ),
        ("--slots 32", {"corpora.texts.slots": 32}, "slots: 32  # replace: the maximum"),
        ("--train train.csv --seeds 3,5", {"run.seeds": [3, 5]}, "one probe per seed"),
        (
            "--train train.csv --labels good,bad",
            {"tasks.classes.labels": ["good", "bad"]},
            "that of the second",
        ),
        (
            "--train train.csv --model models/small",
            {"models.small.path": "models/small"},
            "slots: 16  # 100% of 80 texts fit",
        ),
        (
            "--train train.csv --validation copies.csv --slots 8 --model models/small",
            {"margin": ["10%"]},
            "slots: 8  # 77% of 90 texts fit",
        ),
        (
            "--model models/small",
            {"tasks.*.learning_rate": 1e-3, "tasks.*.epochs": 6},
            "a guess for a small model",
        ),
        (
            "--model inside",
            {"models.inside.package": "inside", "tasks.*.learning_rate": 1e-3},
            "or f1, matthews",
        ),
        (
            "--train train.txt --validation train.txt",
            {"tasks.*.metric": "negative_log_perplexity", "corpora.texts.blocks": True},
            "which cross texts; without this key, each row is a text",
        ),
        (
            "--train train.txt --validation train.txt --model models/GPT2LMHeadModel",
            {"tasks.*.metric": "log_likelihood"},
            "no probe is",
        ),
        (
            "--train train.conll --validation train.conll",
            {"corpora.texts.words": "words", "tasks.*.metric": "entity_f1"},
            "margin: 10%  # choose it and the seeds before the run",
        ),
        (
            "--train pairs.csv --validation pairs.csv",
            {"corpora.texts.cluster": "premise"},
            "17 different first texts in 20 pairs",
        ),
        (
            "--train words.csv --validation words.csv --column label=mood",
            {"tasks.mood.label": "mood"},
            "",
        ),
    ],
)
def test_what_is_written_loads(here, monkeypatch, options, expected, written):
    (here / "packages/inside/model").mkdir(parents=True)
    (here / "packages/inside/model/config.json").write_text(
        '{"model_type": "bert", "hidden_size": 384}'
    )
    (here / "packages/inside/__init__.py").write_text(
        "raise SystemExit('init runs no code of others')"
    )
    monkeypatch.syspath_prepend(here / "packages")
    content = json.loads(init("--json", *options.split()).stdout)
    config = loaded()
    text = (here / "papa.yaml").read_text()
    assert {path: value(config, path) for path in expected} == expected
    assert written in text
    assert text.endswith("\n")
    assert not any(line != line.rstrip() for line in text.splitlines())
    assert content["files"] == config["corpora"]["texts"]["files"]


def rows_in(path):
    return [tuple(row.values()) for row in read_file(path).table.to_pylist()]


@pytest.mark.parametrize(
    ("options", "note", "rows"),
    [
        (
            "--train copies.csv --hold-out 0.2",
            "Held out 10 of 50 rows of copies.csv for validation.",
            COPIES,
        ),
        (
            "--train more.csv --validation more.csv --drop-empty",
            "Dropped 2 of 42 rows of more.csv,",
            2 * ROWS,
        ),
    ],
)
def test_rows_that_change_are_written_next_to_the_config(here, options, note, rows):
    said = init("held.yaml", *options.split()).stdout
    assert note in said
    assert "Not found" not in said
    files = loaded("held.yaml")["corpora"]["texts"]["files"]
    assert files == {split: f"held.{split}.parquet" for split in ("train", "validation")}
    train, held = (rows_in(here / file) for file in files.values())
    assert sorted(train + held) == sorted(rows)
    assert "drop" in options or not {text for text, _ in train} & {text for text, _ in held}, (
        "copies stay in one split"
    )
    (here / "held.yaml").unlink()
    said = refusal("init", "held.yaml", *options.split())
    assert "held.train.parquet exists, and papa never" in said
    (here / "link.yaml").symlink_to("nowhere/link.yaml")
    assert "give another FILE" in refusal("init", "link.yaml", *options.split())
    assert not [*here.glob("link.*.parquet")], "rows without a config"


@pytest.mark.parametrize("name", ["it's", 'the "best"', "key: value", "a #1", "5", "日本"])
def test_strange_file_names_stay_what_they_are(here, name):
    """The config goes through, and a shell takes what is said to be done next."""
    (here / f"{name}.csv").write_text((here / "train.csv").read_text())
    content = json.loads(
        init(f"{name}.yaml", "--train", f"{name}.csv", "--hold-out", "1/2", "--json").stdout
    )
    assert content["files"] == {
        split: f"{name}.{split}.parquet" for split in ("train", "validation")
    }
    assert loaded(f"{name}.yaml")["corpora"]["texts"]["files"] == content["files"]
    assert [shlex.split(command)[-1] for command in content["next"]] == [f"{name}.yaml"] * 2
    assert sorted(
        row for file in content["files"].values() for row in rows_in(Path(file))
    ) == sorted(ROWS)


@pytest.mark.parametrize(
    "text", ["a\nname: other\u2028", "it's # 5", "- on", "[x], {y}", "{{ name }}", "key: value"]
)
def test_values_of_a_data_set_end_no_comment_and_no_value(text):
    reasons = dict.fromkeys(("first", "label", "slots", "metric"), text)
    files = {"train": "a.csv", "validation": "b.csv"}
    data = DataSet(files, {"first": text.split("\n")[0], "label": "l"}, "accuracy", 3, reasons)
    settings = {
        "seeds": np.arange(2),
        "fractions": [1, Fraction(1, 2)],
    }  # any sequence and number of Python
    config = config_of(yaml.safe_load(config_text("c", "owner/name", data, {}, settings)))
    assert (config.name, config.corpora["texts"].first) == ("c", text.split("\n")[0])
    assert (config.run.seeds, config.run.fractions) == ((0, 1), ("1", "1/2"))


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ("--train nowhere.csv", "There is no file nowhere.csv"),
        (
            "--train train.csv --hold-out 1",
            "share of texts to hold out is 1; it must be between 0 and 1",
        ),
        (
            "--train train.csv --hold-out 1/50",
            "4 distinct texts of train.csv are too few to hold some out",
        ),
        ("--train train.csv --validation train.csv --hold-out 0.2", "give only one"),
        (
            "--train train.csv --seeds a",
            "--seeds is 'a', but must be whole numbers separated by commas",
        ),
        (
            "--train train.txt --validation train.txt --model models/GPT2LMHeadModel --seeds 1",
            "Nothing is trained here, so seeds has",
        ),
        ("--train train.csv --column label=nope", "has no column 'nope'"),
        ("--train train.csv --validation other.csv", "other.csv has no column"),
        (
            "--train ids.csv",
            "labels; give label=COLUMN (--column), or text=COLUMN for running text without labels",
        ),
        (
            "--train none.csv --validation none.csv --drop-empty",
            "Each of the 2 rows of none.csv lacks a text or a label",
        ),
        ("--train ids.csv --column text=id", "give --validation FILE, or --hold-out 0.2"),
        ("--model ./gone", "neither a folder here, nor an id"),
        ("exists.yaml", "exists.yaml exists, and papa never overwrites a file"),
    ],
)
def test_what_is_wrong_is_one_sentence_and_nothing_is_written(here, arguments, expected):
    (here / "exists.yaml").write_text("name: mine\n")
    assert expected in refusal("init", *arguments.split())
    assert not (here / "papa.yaml").exists()
    assert (here / "exists.yaml").read_text() == "name: mine\n"


def test_a_config_elsewhere_runs_from_there(here, monkeypatch):
    """Paths start from the current folder, so they are absolute where the config is in another."""
    said = init("studies/mood.yaml", *"--train train.csv --model models/small".split()).stdout
    assert "Validation texts: dev.csv, found beside train.csv." in said
    monkeypatch.chdir(here / "studies")
    config = loaded("mood.yaml")
    assert config["models"]["small"]["path"] == f"{here}/models/small"
    assert config["corpora"]["texts"]["files"] == {
        split: f"{here}/{name}.csv" for split, name in (("train", "train"), ("validation", "dev"))
    }
