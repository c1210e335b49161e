"""`papa init`: what it writes loads, what it guesses is said, and nothing is overwritten."""

import json
import shlex
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

from papa.cli import app
from papa.config.reading import config_of, read_config
from papa.data.readers import read_file
from papa.jobs.init import Data, as_config, as_yaml, choices_of, look_at

ROWS = [("the cat sees a dog", "good"), ("a dog", "bad"), ("here and now", "bad"), ("one", "good")] * 10
NONE: dict[str, str] = {}


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def csv(path, header, rows):
    path.write_text("\n".join([header, *(",".join(row) for row in rows)]) + "\n", encoding="utf-8")
    return path


def model_in(folder, **facts):
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(facts), encoding="utf-8")
    return folder


def init(*arguments, code=0):
    result = CliRunner().invoke(app, ["init", *map(str, arguments)])
    assert result.exit_code == code, result.output
    return result


def loaded(path="papa.yaml"):
    return read_config(path).model_dump(mode="json", exclude_none=True)


def dumped(choices):
    """The config of some choices, which is the same as data and as a file."""
    assert yaml.safe_load(as_yaml(choices)) == as_config(choices)
    return config_of(as_config(choices)).model_dump(mode="json", exclude_none=True)


def test_without_options_it_names_examples(here):
    said = " ".join(init().stdout.split())
    config = loaded()
    assert config["name"] == "papa" and config["models"]["bert-base-uncased"]["hub"] == "google-bert/bert-base-uncased"
    assert config["corpora"]["texts"]["files"]["train"] == "data/train.csv"
    assert "replace both paths" in (here / "papa.yaml").read_text(encoding="utf-8")
    assert "papa plan papa.yaml" in said and "papa run papa.yaml" in said
    assert "Not found: data/train.csv, data/validation.csv." in said


def test_columns_are_guessed_and_said(here):
    train, validation = (csv(here / f"{name}.csv", "Sentence,Category", ROWS) for name in ("train", "dev"))
    content = json.loads(init("--train", train.name, "--validation", validation.name, "--json").stdout)
    assert content["columns"] == {"first": "Sentence", "label": "Category"} and not content["missing_files"]
    assert content["reasons"]["first"] == "guessed from the columns Sentence, Category"
    config = loaded()
    assert config["name"] == "papa" and config["tasks"]["classes"]["label"] == "Category"
    assert (config["tasks"]["classes"]["metric"], config["corpora"]["texts"]["slots"]) == ("accuracy", 16)


def test_pairs_need_room_for_both(here):
    rows = [(" ".join(["word"] * 20), "one two", label) for label in ("yes", "no", "maybe")] * 5
    data = look_at(csv(here / "train.csv", "premise,hypothesis,label", rows), None, NONE)
    assert data.columns == {"first": "premise", "second": "hypothesis", "label": "label", "cluster": "premise"}
    assert data.slots == 56  # two halves of 20 words at 1.3 tokens, 3 special tokens, in steps of 8


@pytest.mark.parametrize(("repeated", "column"), [(3, "premise"), (2, None)])
def test_pairs_whose_first_texts_repeat_form_clusters(here, repeated, column):
    premises = ["again"] * (repeated + 1) + [f"premise {row}" for row in range(19 - repeated)]
    rows = [(premise, "one two", ("yes", "no")[row % 2]) for row, premise in enumerate(premises)]
    data = look_at(csv(here / "train.csv", "premise,hypothesis,label", rows), None, NONE)
    assert data.columns.get("cluster") == column
    init("--train", "train.csv")
    assert loaded()["corpora"]["texts"].get("cluster") == column
    reason = f"{20 - repeated} different first texts in 20 pairs, so intervals resample texts"
    assert (reason in (here / "papa.yaml").read_text(encoding="utf-8")) == (column is not None)


def test_words_and_their_metric(here):
    for tags, metric in ((["B-PER", "O"], "entity_f1"), (["NOUN", "VERB"], "token_accuracy")):
        line = json.dumps({"tokens": ["ann", "runs"], "ner_tags": tags})
        (here / "train.jsonl").write_text(f"{line}\n" * 5, encoding="utf-8")
        data = look_at(here / "train.jsonl", None, NONE)
        assert (data.columns, data.metric) == ({"words": "tokens", "label": "ner_tags"}, metric)
    (here / "train.conll").write_text("ann NNP B-PER\nruns VBZ O\n\nbob NNP B-PER\nran VBD O\n", encoding="utf-8")
    data = look_at(here / "train.conll", None, {"label": "column_3"})
    config = dumped(choices_of("c", "owner/name", data, {}))
    assert config["corpora"]["texts"]["columns"] == ["words", "column_2", "column_3"] and data.metric == "entity_f1"


def test_a_rare_class_is_not_scored_by_accuracy(here):
    rows = [("some text", "no")] * 9 + [("other text", "yes")]
    assert look_at(csv(here / "train.csv", "text,label", rows), None, NONE).metric == "matthews_correlation"


@pytest.mark.parametrize(
    ("architecture", "metric"), [("GPT2LMHeadModel", "log_likelihood"), ("GPT2Model", None), (None, None)]
)
def test_running_text_is_masked_unless_a_decoder_says_the_next_token(here, architecture, metric):
    (here / "train.txt").write_text("some words\nmore words\n", encoding="utf-8")
    model_in(here / "mine", model_type="gpt2", architectures=[architecture])
    init("--train", "train.txt", *(["--model", "mine"] if architecture else []))
    config, written = loaded(), (here / "papa.yaml").read_text(encoding="utf-8")
    (task,) = config["tasks"].values()
    assert task["metric"] == (metric or "negative_log_perplexity") and config["corpora"]["texts"]["blocks"]
    assert ("one probe per seed" in written) == (metric is None) != ("no probe is trained" in written)


def rows_in(path):
    return [tuple(row.values()) for row in read_file(path).table.to_pylist()]


def test_without_validation_texts_some_can_be_held_out(here):
    texts = [(f"text {number % 25}", ("good", "bad")[number % 2]) for number in range(50)]
    csv(here / "train.csv", "text,label", texts)
    content = json.loads(init("--train", "train.csv", "--json").stdout)
    assert content["missing_files"] == {"validation": "validation.csv"}
    said = init("more.yaml", "--train", "train.csv").stdout
    assert "`papa init` with --hold-out 0.2 holds out a fifth of the training texts instead." in said
    said = init("held.yaml", "--train", "train.csv", "--hold-out", "0.2").stdout
    assert "Held out 10 of 50 rows of train.csv for validation." in said and "Not found" not in said
    files = loaded("held.yaml")["corpora"]["texts"]["files"]
    assert files == {"train": "held.train.parquet", "validation": "held.validation.parquet"}
    train, held = (rows_in(here / file) for file in files.values())
    assert sorted(train + held) == sorted(texts) and len(held) == 10
    assert not {text for text, _ in train} & {text for text, _ in held}, "copies of a text stay in one split"


def test_rows_without_text_or_label_are_dropped_and_counted(here):
    texts = [*ROWS, ("", "good"), ("no label", " ")]
    for name in ("train", "dev"):
        csv(here / f"{name}.csv", "text,mood", texts)
    files = ["--train", "train.csv", "--validation", "dev.csv", "--column", "label=mood"]
    assert "has no text in column text in 1 of 42 rows (line 42)" in init(*files, code=2).stderr
    content = json.loads(init(*files, "--drop-empty", "--json").stdout)
    assert content["notes"] == [
        f"Dropped 2 of 42 rows of {name}.csv, which have no text or no label." for name in ("train", "dev")
    ]
    assert [rows_in(here / file) for file in content["files"].values()] == [ROWS, ROWS]
    (here / "papa.yaml").unlink()
    assert "papa.train.parquet exists, and papa never overwrites a file" in init(*files, "--drop-empty", code=2).stderr
    csv(here / "none.csv", "text,mood", [("", "good"), ("a", "")])
    none = init("none.yaml", "--train", "none.csv", "--column", "label=mood", "--drop-empty", code=2).stderr
    assert none == "Each of the 2 rows of none.csv lacks a text or a label; fix the rows.\n"


def test_settings_can_be_given_at_once(here):
    csv(here / "train.csv", "text,label", ROWS)
    options = ["--seeds", "3,5", "--fractions", "1, 1/3,0", "--slots", "21", "--order", "gradient"]
    init("--train", "train.csv", *options)
    config = loaded()
    assert config["run"]["orders"] == ["gradient"]
    assert (config["run"]["seeds"], config["run"]["fractions"]) == ([3, 5], ["1", "1/3", "0"])
    assert config["corpora"]["texts"]["slots"] == 21 and "slots: 21  # as given" in (here / "papa.yaml").read_text()


def test_size_of_the_model_chooses_the_training(here):
    model_in(here / "small", hidden_size=384)
    for given, rate in ((str(here / "small"), 1.0e-3), ("owner/MiniLM", 2.0e-5)):
        (here / "papa.yaml").unlink(missing_ok=True)
        init("--model", given)
        assert loaded()["tasks"]["classes"]["learning_rate"] == rate
    assert loaded()["models"] == {"minilm": {"hub": "owner/MiniLM"}}
    assert "exists, and papa never overwrites a file" in init(code=2).stderr


def test_the_type_of_a_package_is_read_without_its_code(here, monkeypatch):
    model_in(here / "packages/bert_inside/model", model_type="bert", hidden_size=384)
    (here / "packages/bert_inside/__init__.py").write_text("raise SystemExit('init runs no code of others')")
    monkeypatch.syspath_prepend(here / "packages")
    init("--model", "bert_inside")
    assert loaded()["tasks"]["classes"]["learning_rate"] == 1.0e-3


STRANGE = ["a b", "it's", 'the "best"', "key: value", "a #1", "[x], {y}", "größe", "- on", "5", "日本"]


@pytest.mark.parametrize("name", [name for name in STRANGE if "{" not in name and name[0] != "-"])
def test_strange_file_names_stay_what_they_are(here, name):
    """The config goes through, and a shell takes what is said to be done next."""
    csv(here / f"{name}.csv", "text,mood", ROWS)
    content = json.loads(init(f"{name}.yaml", "--train", f"{name}.csv", "--column", "label=mood", "--json").stdout)
    assert content["files"] == {"train": f"{name}.csv", "validation": f"{name}.validation.csv"}
    assert loaded(f"{name}.yaml")["corpora"]["texts"]["files"] == content["files"]
    assert [shlex.split(command)[-1] for command in content["next"]] == [f"{name}.yaml"] * 2
    init(f"{name}.2.yaml", "--train", f"{name}.csv", "--column", "label=mood", "--hold-out", "1/2")
    files = loaded(f"{name}.2.yaml")["corpora"]["texts"]["files"]
    assert files == {split: f"{name}.2.{split}.parquet" for split in ("train", "validation")}
    assert sorted(row for file in files.values() for row in rows_in(Path(file))) == sorted(ROWS)


def test_values_of_a_data_set_end_no_comment(here):
    data = Data({"train": "a.csv", "validation": "b.csv"}, {"first": "t", "label": "l"}, 16, "accuracy", 3,
                dict.fromkeys(("first", "label", "slots", "metric"), "a\nname: other\u2028"))  # fmt: skip
    assert dumped(choices_of("c", "owner/name", data, {}))["name"] == "c"


@pytest.mark.parametrize(
    ("train", "label", "name"),
    [
        ("train.csv", "mood", "mood"),
        ("movies/train.csv", "label", "movies"),
        ("data/train.csv", "Étiquette", "etiquette"),
        ("data/train.csv", "label", "classes"),
    ],
)
def test_tasks_have_a_name_that_says_something(here, train, label, name):
    (here / train).parent.mkdir(exist_ok=True)
    csv(here / train, f"text,{label}", ROWS)
    init("--train", train, "--column", f"label={label}")
    assert list(loaded()["tasks"]) == [name]


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--train", "nowhere.csv"], "There is no file nowhere.csv"),
        (["--column", "label=mood"], "add --train FILE"),
        (["--hold-out", "0.2"], "add --train FILE"),
        (["--train", "train.csv", "--hold-out", "1"], "share of texts to hold out is 1; it must be between 0 and 1"),
        (["--train", "train.csv", "--hold-out", "20 %"], "'20 %' is not a fraction between 0 and 1"),
        (["--train", "train.csv", "--hold-out", "1/50"], "4 distinct texts of train.csv are too few to hold some out"),
        (["--train", "train.csv", "--validation", "train.csv", "--hold-out", "0.2"], "give only one"),
        (["--train", "train.csv", "--seeds", "a"], "--seeds is 'a', but must be whole numbers separated by commas"),
        (["--train", "train.csv", "--fractions", "1,2"], "'2' is not a fraction between 0 and 1"),
        (["--train", "train.csv", "--order", "gradients"], "gradients"),
        (["--train", "train.csv", "--column", "label=nope"], "has no column 'nope'"),
        (["--train", "train.csv", "--validation", "other.csv"], "other.csv has no column"),
        (["--train", "ids.csv"], "No column of ids.csv looks like labels"),
        (["--column", "mood"], "must be first=COLUMN, second=COLUMN or label=COLUMN"),
        (["--model", "./gone"], "neither a folder here, nor an id"),
        (["--model", "."], "no readable config.json"),
    ],
)
def test_what_is_wrong_is_one_sentence_and_nothing_is_written(here, arguments, expected):
    csv(here / "train.csv", "text,label", ROWS)
    csv(here / "other.csv", "texts,mood", ROWS)
    csv(here / "ids.csv", "id,body", [(str(number), f"text {number}") for number in range(60)])
    result = init(*arguments, code=2)
    assert expected in result.stderr and len(result.stderr.splitlines()) == 1 and not result.stdout
    assert not (here / "papa.yaml").exists()


def test_a_config_elsewhere_runs_from_there(here, monkeypatch):
    """Paths start from the current folder, so they are absolute where the config is in another."""
    model_in(here / "mine", model_type="bert")
    for name in ("train", "dev"):
        csv(here / f"{name}.csv", "text,mood", ROWS)
    init(
        "studies/mood.yaml",
        "--train",
        "train.csv",
        "--validation",
        "dev.csv",
        "--model",
        "mine",
        "--column",
        "label=mood",
    )
    monkeypatch.chdir(here / "studies")
    config = loaded("mood.yaml")
    assert config["models"]["mine"]["path"] == str(here / "mine")
    assert config["corpora"]["texts"]["files"] == {
        split: str(here / f"{name}.csv") for split, name in (("train", "train"), ("validation", "dev"))
    }


def test_no_more_slots_than_the_model_has_positions():
    data = Data.unlabelled({"train": "t.txt"}, {"first": "text"}, 3)
    assert data.within({"n_positions": 48}).slots == 48 < data.slots == data.within({}).slots
    assert data.within({"max_position_embeddings": 512}) == data
    assert data.within({"max_position_embeddings": 50, "model_type": "roberta", "pad_token_id": 1}).slots == 48
