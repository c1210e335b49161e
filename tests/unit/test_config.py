"""A config is checked before any job starts; every refusal is one sentence that names the key."""

import copy
import datetime
import json
import math
import random
from contextlib import nullcontext
from dataclasses import asdict
from pathlib import Path
from pkgutil import resolve_name
from typing import get_args

import pytest
import yaml
from tiny import CONFIG, REPOSITORY, with_keys

from papa.config.measures import METRICS, OUTCOME_TYPES, TARGETS, TEXT, WORD, check_metric
from papa.config.reading import check_yaml, config_of, read_config, schema
from papa.config.settings import (
    Config,
    Machine,
    Metric,
    OrderName,
    check_files,
    corpus_of,
    fraction,
    parts_of,
    rows_or_share,
)
from papa.config.variant import ORDERS
from papa.errors import InputError
from papa.method.objective import Objective

CONFIGS = sorted(REPOSITORY.glob("config/*.yaml"))
HUB = {"hub": "some/data", "train": "other", "words": "words", "slots": 11}
MASKED = {key: value for key, value in CONFIG["tasks"]["tags"].items() if key != "label"}
MASKED["metric"] = "negative_log_perplexity"


TRAINED = {"tasks": ["masked"], "constants": ["zeros", "average-trained"]}


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_configs_of_the_project_pass_and_are_written_as_they_were_read(path):
    config = read_config(path)
    assert config.name in (path.stem, "demo")
    for written in (config.model_dump(), config.model_dump(exclude_none=True), config.model_dump(exclude_unset=True)):
        assert Config(**written) == config
    assert Config.model_validate_json(config.model_dump_json(exclude_none=True)) == config


def test_defaults_are_filled_in_and_the_given_config_is_left_alone():
    before = copy.deepcopy(CONFIG)
    config = config_of(CONFIG)
    assert (config.layout, config.threads) == ("paper", 2)
    assert config.run.constants == ("average",) and config.run.orders == ("lambda",)
    assert config.corpora["words"].train_limit is None and config.patterns is None
    assert before == CONFIG


TAGS_BY_HEAD = {"corpus": "sentences", "metric": "log_likelihood", "learning_rate": 0.01, "batch_size": 8, "epochs": 1}


def test_nothing_can_be_changed_afterwards():
    with pytest.raises(ValueError, match="frozen"):
        config_of(CONFIG).run.seeds = (2,)


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        ("modles", {}, "unknown key modles; did you mean models?"),
        ("epochs", 2, "unknown key epochs; did you mean tasks.NAME.epochs?"),
        ("tasks.tags.learning_rte", 1.0, "tasks.tags.learning_rte; did you mean learning_rate?"),
        ("corpora.words.files.test", "a.csv", "corpora.words.files.test"),
        ("pathvars", {"results": "../elsewhere"}, "unknown key pathvars"),
        ("tasks.tags.learning_rate", "2e-5", "learning_rate must be a number.*reads it as text; write 2.0e-5"),
        ("tasks.tags.learning_rate", "1E4", r"write 1.0e\+4"),
        ("tasks.tags.learning_rate", 0, "tasks.tags.learning_rate is 0, but must be above 0"),
        ("tasks.tags.learning_rate", math.nan, "tasks.tags.learning_rate is nan, but must be a finite number"),
        ("tasks.tags.learning_rate", math.inf, "tasks.tags.learning_rate is inf"),
        ("tasks.tags.batch_size", 8.0, "tasks.tags.batch_size must be a whole number"),
        ("tasks.tags.epochs", "4", "tasks.tags.epochs must be a whole number, .*without quotes"),
        ("tasks.tags.epochs", True, "tasks.tags.epochs must be a whole number"),
        ("tasks.tags.metric", "acuracy", "tasks.tags.metric is 'acuracy'; it must be one of accuracy, f1"),
        ("tasks.tags.metric", "accuracy", "tasks.tags.metric: The metric accuracy is for tasks with one label"),
        ("tasks.animals.metric", "entity_f1", "tasks.animals.metric"),
        ("tasks.tags.corpus", "word", "tasks.tags.corpus: no corpus is called 'word'; did you mean words"),
        ("tasks.tags.labels", ["a", "b", "a"], "tasks.tags.labels: 'a' is listed twice"),
        ("run.models", ["bert"], r"run.models\[0\]: no model is called 'bert'; it must be one of tiny"),
        ("run.tasks", ["animals", "pos"], r"run.tasks\[1\]: no task is called 'pos'; it must be one of animals, tags"),
        ("run.tasks", ["tags", "tags"], "run.tasks: 'tags' is listed twice"),
        ("run.tasks", [], "run.tasks is too short; its minimum length is 1 .names of tasks"),
        ("run.tasks", "tags", "run.tasks must be a list, but it is 'tags'"),
        ("run.seeds", [1, 1], "run.seeds: 1 is listed twice"),
        ("run.seeds", [-1], r"run.seeds\[0\] is -1, but must be at least 0"),
        ("run.fractions", ["1", "3/2"], r"run.fractions\[1\]: '3/2' is not a fraction between 0 and 1"),
        ("run.fractions", [0.3333], r"run.fractions\[0\]: 0.3333 has more than three decimals.*a/b"),
        ("run.fractions", ["1/2", 0.5], "run.fractions: '1/2' is listed twice"),
        ("run.fractions", ["1/2", "2/4"], "run.fractions: '1/2' is listed twice"),
        (
            "run.constants",
            ["mean"],
            r"run.constants\[0\]: The constant 'mean' does not exist; use one of average, .*zeros",
        ),
        ("run.constants", ["zeros-trained"], "The constant 'zeros-trained' does not exist"),
        (
            "run.constants",
            ["average-of-mnli"],
            r"run.constants\[0\]: no corpus is called 'mnli'; it must be one of sentences, words",
        ),
        ("run.orders", ["alphabetical"], "'alphabetical'; it must be one of lambda, lambda-reversed, first-layer"),
        ("floors", ["uniform"], r"floors\[0\] is 'uniform'; it must be one of zeros, identity, mean-output"),
        ("floors", ["zeros", "zeros"], "floors: 'zeros' is listed twice; list each value once"),
        ("name", "a\n", "name contains a line break"),
        # the fourth has a Cyrillic е
        *(
            ("name", name, "a name has 1 to 64 characters")
            for name in ("../up", "/root", "a" * 65, "dеmo", "", "ｄｅｍｏ")
        ),
        ("name", 3, "name must be text, but it is 3; put it in quotes"),
        ("name", True, "name must be text, but it is True; put it in quotes, because YAML reads yes, no, on and off"),
        ("tasks.tags.epochs", "08", "epochs must be a whole number, but it is '08'; write 8"),
        ("tasks.tags.title", "Ta\u202egs", r"tasks.tags.title contains U\+202E, an invisible character that reo"),
        ("name", None, "name is empty; set a value"),
        ("models.Tiny", {"path": "a"}, "models.Tiny: 'Tiny' cannot be a name"),
        (("models", 1), {"path": "a"}, r"models\[1\] is a key that YAML does not read as text; put it in quotes"),
        (
            "models.tiny",
            {"path": "a", "package": "b"},
            "models.tiny.package: a model in a folder .`path`. has no `package`; remove it or `path`",
        ),
        ("models.tiny", {}, "models.tiny needs `hub`, `path` or `package`"),
        ("models.tiny.revision", "main", "models.tiny: revision is .* no `hub`; add it"),
        ("models.tiny.hub", "/models/bert", "models.tiny.hub"),
        ("models.tiny.hub", "../model", "models.tiny.hub"),
        ("models.tiny.sha256", "abc", "models.tiny.sha256"),
        (
            "corpora.words.hub",
            "a/b",
            "corpora.words.files: a corpus with `hub` and `words` has no `files`; remove it or `hub`",
        ),
        (
            "corpora.words.config",
            "cola",
            "words.config: a corpus with `files` and `words` has no `config`; remove it or `files`",
        ),
        (
            "corpora.words.first",
            "text",
            "words.first: a corpus with `files` and `words` has no `first`; remove it or `words`",
        ),
        (
            "corpora.words.second",
            "text",
            "words.second: a corpus with `files` and `words` has no `second`; remove it or `words`",
        ),
        ("corpora.words.slots", None, "corpora.words.slots is empty; set a value, or leave out"),
        ("corpora.words", {"words": "words", "slots": 8}, "corpora.words needs `files` or `hub`"),
        ("corpora.words", {"hub": "a/b", "words": "words"}, "tasks.tags.corpus is 'words', which has no slots; add"),
        ("corpora.words", {"files": {"train": "a.txt"}}, "'words', which has no slots and no validation split"),
        ("corpora.words.files", {"validation": "a.jsonl"}, "needs the key corpora.words.files.train"),
        (
            "corpora.words.blocks",
            True,
            "corpora.words.blocks: a corpus with `files` and `words` has no `blocks`; remove it or `words`",
        ),
        ("corpora.sentences.blocks", True, "tasks.animals has labels, but its corpus 'sentences' is cut into blocks"),
        (
            "tasks.tags.metric",
            "negative_log_perplexity",
            "tags.label: a task without labels .*negative_log_perplexity has no `label`; remove it, or change `metric`",
        ),
        (
            "tasks.tags",
            {**MASKED, "metric": "token_accuracy"},
            "The config needs the key tasks.tags.label: column of the labels",
        ),
        (
            "tasks.tags",
            {**MASKED, "subset": "kind"},
            "tasks.tags.subset: a task without labels .*negative_log_perplexity has no `subset`",
        ),
        ("grids.more", TRAINED, "grids.more runs masked with average-trained, which is trained with a probe of labels"),
        ("corpora", [], "corpora must be a block of keys"),
        ("device", "gpu", "device is 'gpu'"),
        ("threads", 0, "threads is 0, but must be at least 1"),
        ("token_budget", 0, "token_budget is 0"),
        ("corpora.words.cluster", 3.5, "corpora.words.cluster must be text or a whole number, but it is 3.5"),
        ("corpora.words.cluster", 1, "corpora.words.cluster is 1, but must be at least 2"),
        ("precision", "float64", "precision is 'float64'; it must be one of float32, tf32, bfloat16"),
        (
            "patterns",
            {"tasks": ["colour"]},
            r"tasks\[0\]: no task that is run is called 'colour'; it must be one of animals, tags",
        ),
        (
            "patterns",
            {"tasks": ["tags"], "heads": [[1, 2, 3]]},
            r"heads\[0\] is too long; its maximum length is 2",
        ),
        ("patterns", {"tasks": ["tags"], "heads": [[1]]}, r"heads\[0\] has too few values; it needs 2"),
        ("fidelity", "code", "fidelity is 'code'; it must be one of paper, published_code"),
        ("keep_hidden_states", "yes", "keep_hidden_states must be true or false, but it is 'yes'"),
        (
            "corpora.words.validation",
            ["test"],
            "words.validation: a corpus with `files` and `words` has no `validation`; remove it or `files`",
        ),
        ("corpora.words", HUB | {"validation": ["a", "all"]}, "lists 'all', a name already in use"),
        ("corpora.words", HUB | {"validation": ["a", "train"]}, "lists 'train', a name already in use"),
        ("corpora.words", HUB | {"validation": ["b", "a", "a"]}, "lists 'a', .* in use; list each .* once"),
        ("grids", {"more": {"tasks": ["colour"]}}, r"grids.more.tasks\[0\]: no task is called 'colour'"),
        ("grids", {"more": {"fractions": ["2"]}}, r"grids.more.fractions\[0\]: '2' is not a fraction"),
        ("grids", {"More": {}}, "grids.More: 'More' cannot be a name"),
        ("run.title", "Mine", "unknown key run.title"),
        ("name", "demo\0", "name contains a line break or another control character"),
        (("corpora", "../up"), {}, r"corpora.'../up': '../up' cannot be a name: a name has 1 to 64 characters"),
        (("tasks", "tags\n"), {}, r"'tags\\n' cannot be a name"),
        ("grids", {"/root": {}}, "'/root' cannot be a name"),
        ("run.constants", ["average-of-../up"], r"run.constants\[0\]: no corpus is called '../up'"),
        ("run.constants", ["average\n"], r"run.constants\[0\] contains a line break"),
        ("models.tiny.hub", "some/..", "models.tiny.hub is 'some/..', but must match"),
        ("models.tiny.hub", "some/model\n", "models.tiny.hub contains a line break"),
        ("models.tiny", {"hub": "a/b", "revision": "../../up"}, "models.tiny.revision is '../../up'.*must match"),
        ("models.tiny", {"package": "os;x"}, "models.tiny.package is 'os;x'"),
        ("corpora.words", HUB | {"config": "../up"}, "corpora.words.config is '../up'.*must match"),
        ("corpora.words.files.train", "{a}.csv", "corpora.words.files.train is '{a}.csv'.*must match"),
        ("corpora.words.files.train", "<a>.csv", "corpora.words.files.train is '<a>.csv'.*must match"),
        ("device", "cuda:0\n", "device contains a line break"),
        ("device", "cuda:100", "device is 'cuda:100'"),
        ("tasks.tags.title", "a\ud800", "tasks.tags.title contains a line break or another control character"),
        (("tasks", "tags", "learning_rte\n"), 1, r"unknown key tasks.tags.'learning_rte\\n'; did you mean"),
        (("tasks", "tags", 3), 1, r"tasks.tags\[3\] is a key that YAML does not read as text"),
        ("tasks.tags.label", "words", "'words', but that column contains texts, .* is `words` of"),
        ("tasks.animals.label", "sentence", "tasks.animals.label is 'sentence', .* `first` of corpora.sentences"),
        ("corpora.words.files.train", "a.xlsx", "train: 'a.xlsx' has a format .*convert it to .*: .parquet, .json"),
        ("corpora.words.files.validation", "a", "corpora.words.files.validation: 'a' has a format that"),
        ("hub_mirror", 3, "hub_mirror must be text or null, but it is 3; put it in quotes"),
        ("hub_mirror", "", "hub_mirror is too short"),
        ("tasks.animals.labels", ["a", None], r"tasks.animals.labels\[1\] is empty"),
        ("name", datetime.date(2020, 1, 1), "name must be text, but it is datetime.date.*; put it in quotes"),
    ],
)
def test_refused(path, value, message):
    config = with_keys(CONFIG, {"tasks.masked": MASKED, path: value})
    with pytest.raises(InputError, match=message) as refusal:
        config_of(config)
    assert str(refusal.value).isprintable() and str(refusal.value).endswith((".", "?"))


@pytest.mark.parametrize("key", ["name", "run", "models", "corpora", "tasks"])
def test_missing_key(key):
    config = {name: value for name, value in CONFIG.items() if name != key}
    with pytest.raises(InputError, match=f"The config needs the key {key}: "):
        config_of(config)


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        *(("1/8", "1/8"), ("2/16", "1/8"), ("0", "0"), (0, "0"), (1, "1"), ("3/3", "1"), ("0/7", "0")),
        *((0.5, "1/2"), ("0.5", "1/2"), (0.125, "1/8"), ("0.0", "0"), (1.0, "1"), (0.333, "333/1000")),
    ],
)
def test_fractions_in_lowest_terms(written, expected):
    assert fraction(written) == expected


@pytest.mark.parametrize(
    "written", ["", "a", "1/", "/2", " 1/2", "1/2\n", "1e0", ".5", "0.3333", 1.5, 1e-9, "٢/٣", "2", "9" * 9, None, True]
)
def test_no_fractions(written):
    with pytest.raises(InputError, match="is not a fraction between 0 and 1"):
        fraction(written)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, ("paper", False)),
        ({"fidelity": "paper"}, ("paper", False)),
        ({"fidelity": "published_code"}, ("published_code", True)),
        ({"fidelity": "published_code", "layout": "paper"}, ("paper", True)),
    ],
)
def test_fidelity_is_the_default_of_what_it_stands_for(given, expected):
    config = config_of(CONFIG | given)
    assert (config.layout, config.encoder_dropout) == expected


def test_fractions_come_back_in_lowest_terms_and_what_yaml_shares_is_changed_in_none():
    shared = ["0", "4/8"]
    config = copy.deepcopy(CONFIG)
    config["run"]["fractions"] = config["tasks"]["animals"]["labels"] = shared
    given = config_of(config)
    assert given.run.fractions == ("0", "1/2") and given.tasks["animals"].labels == ("0", "4/8")
    assert shared == ["0", "4/8"]


def test_an_empty_config_is_refused():
    with pytest.raises(InputError, match="The config must be a block of keys, but it is empty"):
        config_of(None)
    with pytest.raises(InputError, match=r"The config must be a block of keys, but it is \['name'\]"):
        config_of(["name"])


def test_every_key_of_the_schema_is_described_and_others_are_refused():
    blocks = [schema(), *schema()["$defs"].values()]
    assert len(blocks) > 9
    for block in blocks:
        assert block["additionalProperties"] is False and block["description"].endswith(".")
        for name, rules in block["properties"].items():
            assert rules.get("description"), f"{name} has no description"


def test_grids_inherit_keys_of_run():
    config = config_of(CONFIG | {"grids": {"more": {"title": "More", "tasks": ["tags"], "seeds": [5]}}})
    assert list(config.analyses) == ["score_by_fraction", "more"]
    run, more = config.analyses.values()
    assert (run.title, run.tasks, run.seeds) == (None, ("animals", "tags"), (1,))
    assert (more.title, more.tasks, more.seeds, more.models) == ("More", ("tags",), (5,), ("tiny",))
    assert more.fractions == run.fractions == ("1", "1/2", "0")


def test_each_pair_and_corpus_that_is_run_comes_once():
    grids = {"more": {"models": ["other"], "tasks": ["tags"], "constants": ["zeros", "average-of-lines"]}}
    config = copy.deepcopy(CONFIG) | {"grids": grids}
    config["models"]["other"] = config["models"]["unused"] = {"hub": "a/b"}
    config["corpora"]["lines"] = config["corpora"]["unused"] = {"files": {"train": "a.txt"}}
    read = config_of(config)
    assert read.pairs == [("tiny", "animals"), ("tiny", "tags"), ("other", "tags")]
    assert read.corpora_run == ["sentences", "words", "lines"]


@pytest.mark.parametrize(
    ("corpus", "splits"),
    [
        (HUB, ("train", "validation")),
        (HUB | {"validation": None}, ("train",)),
        (HUB | {"train": "x", "validation": ["y", "z"]}, ("train", "validation", "z")),
        ({"files": {"train": "a.txt"}}, ("train",)),
        ({"files": {"train": "a.txt", "validation": "b.txt"}}, ("train", "validation")),
    ],
)
def test_splits_of_a_corpus(corpus, splits):
    given = corpus_of(**corpus)
    assert given.splits == splits
    assert corpus_of(**given.model_dump(exclude_none=True)) == given


@pytest.mark.parametrize(
    ("corpus", "first"),
    [
        ({"files": {"train": "a.txt"}}, "text"),
        ({"files": {"train": "a.TXT", "validation": "b.txt"}}, "text"),
        ({"files": {"train": "a.txt"}, "words": "words"}, None),
        ({"files": {"train": "a.txt"}, "first": "line"}, "line"),
    ],
)
def test_lines_are_the_column_text(corpus, first):
    assert corpus_of(**corpus).first == first


def test_a_task_without_label_is_masked():
    tasks = config_of(with_keys(CONFIG, {"tasks.masked": MASKED})).tasks
    assert tasks["masked"].target.decoder is False and tasks["tags"].target is WORD


def test_the_machine_goes_through_the_environment(monkeypatch):
    moved = with_keys(CONFIG, {"models.tiny": {"package": "somewhere_else"}})
    moved["models"]["hub"] = {"hub": "a/b"}
    moved |= {"hub_mirror": "/mirror", "device": "cuda:1", "threads": 7, "token_budget": 5}
    machine = config_of(moved).machine
    assert machine == Machine("/mirror", "cuda:1", 5, {"tiny": {"package": "somewhere_else"}})
    monkeypatch.setenv(Machine.VARIABLE, json.dumps(asdict(machine)))
    assert Machine.current() == machine
    monkeypatch.delenv(Machine.VARIABLE)
    assert Machine.current() == Machine()


def test_metrics_fit_what_is_labelled():
    for metric, measure in METRICS.items():
        check_metric(metric, measure.target)
        for target in TARGETS:
            if target != measure.target:
                with pytest.raises(InputError, match=f"The metric {metric} is for tasks"):
                    check_metric(metric, target)
    with pytest.raises(InputError, match=r"There is no metric 'bleu'; for a task with one .* accuracy, f1"):
        check_metric("bleu", TEXT)
    with pytest.raises(InputError, match="f1 needs two labels, but there are 3"):
        check_metric("f1", TEXT, ["a", "b", "c"])
    check_metric("entity_f1", WORD, ["O", "B-PER", "I-PER", "E-X-Y", "S-LOC"])
    with pytest.raises(InputError, match=r"entity_f1 needs labels O, .* but there is 'X'"):
        check_metric("entity_f1", WORD, ["O", "B-X", "X"])


def test_targets_name_objectives_and_columns_that_exist():
    for target in TARGETS:
        assert issubclass(resolve_name(target.objective), Objective)
        assert target.right in OUTCOME_TYPES


def test_types_and_tables_name_the_same():
    assert get_args(Metric) == tuple(METRICS) and {measure.target for measure in METRICS.values()} == set(TARGETS)
    assert get_args(OrderName) == ORDERS


@pytest.mark.parametrize("name", ["score_by_fraction", "outcomes", "claims", "score_and_drop", "summary"])
def test_no_grid_has_the_name_of_another_table(name):
    with pytest.raises(InputError, match=f"The grid '{name}' has the name of another table"):
        config_of(CONFIG | {"grids": {name: {}}})


# Files


def test_a_file_changes_and_what_is_read_from_it(tmp_path):
    path = tmp_path / "a.yaml"
    path.write_text(yaml.safe_dump(CONFIG), encoding="utf-8")
    assert read_config(path, {"device": None}) == config_of(CONFIG)
    assert read_config(path, {"device": "cpu", "hub_mirror": "/m"}).machine.device == "cpu"
    changed = read_config(path, {"run": {"seeds": [7, 11]}, "margin": 0.3})
    assert changed.run.seeds == (7, 11) and changed.margin == 0.3 and changed.run.models == config_of(CONFIG).run.models


def bomb(block, first="x"):
    """YAML of 9 levels, each with nine aliases of the level below."""
    levels = [", ".join([first] * 9), *(", ".join([f"*l{level}"] * 9) for level in range(9))]
    return "\n".join(f"l{level}: &l{level} {block.format(text)}" for level, text in enumerate(levels)).encode()


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"# nothing", "The config must be a block of keys, but it is empty"),
        (b"name: \xff", "cannot be read as YAML .*utf-8"),
        (b"name: [", "cannot be read as YAML"),
        (b"name: a\n---\nname: b", "cannot be read as YAML .*single document"),
        (b"name: 2020-99-99", "cannot be read as YAML .*month"),
        (b"name: a\nrun: {}\nname: b", "contains the key 'name' twice .*, in lines 1 and 3; keep one"),
        (b"models:\n  a: {path: b}\n  a: {path: c}", "contains the key 'a' twice .*, in lines 2 and 3"),
        (b"name: a\nrun: &run\n- *run\n", "has a block in line 2 that contains itself by an alias"),
        (b"a: &a {b: &b {c: *a}}", "has a block in line 1 that contains itself by an alias"),
        (bomb("[{}]"), "expands to more than 100,000 values"),
        (bomb("{{a: [{}]}}"), "expands to more than 100,000 values"),
        (bomb("{{<<: [{}]}}", "{a: 1}"), "expands to more than 100,000 values"),
        (b"run: {seeds: [1:30]}", 'contains 1:30 in line 1, which YAML reads as 90; write "1:30" if text is meant'),
        (b"corpora:\n  a: {slots: 020}", "contains 020 in line 2, which YAML reads as 16"),
        (b"margin: 1:30.5", "contains 1:30.5 in line 1, which YAML reads as 90.5"),
    ],
)
def test_files_that_are_no_configs(tmp_path, content, said):
    path = tmp_path / "a.yaml"
    path.write_bytes(content)
    with pytest.raises(InputError, match=said) as refusal:
        read_config(path)
    assert "\n" not in str(refusal.value)


def test_merged_keys_aliases_and_numbers_as_people_read_them_are_taken(tmp_path):
    numbers = "a: &a [0, -7, 10, 1_000, 0.5, -0.25, 1.0e-3, 0]\nb: [*a, *a, '020', \"1:30\"]\n"
    for text in ("a: &a {x: 1, y: 2}\nb: {<<: *a, x: 3}\nc: {<<: *a}\n", numbers):
        (tmp_path / "a.yaml").write_text(text, encoding="utf-8")
        check_yaml(tmp_path / "a.yaml")


def test_a_file_that_is_not_there():
    with pytest.raises(InputError, match=r"nowhere.yaml cannot be read \(No such file"):
        read_config("nowhere.yaml")


@pytest.fixture
def there(tmp_path, monkeypatch):
    """A folder with everything that `CONFIG` needs."""
    monkeypatch.chdir(tmp_path)
    texts = [path for corpus in CONFIG["corpora"].values() for path in corpus["files"].values()]
    for path in map(Path, ["models/tiny/config.json", *texts]):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        ("margin", 0.2, None),
        ("corpora.words.files.train", "a.csv", r"corpora.words.files.train: there is no file a.csv \(relative"),
        ("models.tiny", {"path": "nowhere"}, "models.tiny.path: there is no config.json in nowhere .*folder"),
        ("models.tiny", {"path": "models"}, "models.tiny.path: there is no config.json in models"),
        ("models.tiny", {"package": "json"}, None),
        ("models.tiny", {"package": "no_such_thing"}, "the package no_such_thing is not installed"),
        ("models.tiny", {"package": "no_such.thing"}, "the package no_such.thing is not installed"),
        ("models.tiny", {"hub": "a/b"}, None),
        ("models.unused", {"path": "nowhere"}, None),
        ("corpora.unused", {"files": {"train": "nowhere.txt"}}, None),
    ],
)
@pytest.mark.usefixtures("there")
def test_what_is_run_must_be_on_this_machine(path, value, message):
    config = config_of(with_keys(CONFIG, {path: value}))
    with nullcontext() if message is None else pytest.raises(InputError, match=message):
        check_files(config)


def places(value, path=()):
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, part in items:
        yield (*path, key)
        yield from places(part, (*path, key))


WRONG = [
    *("", " ", "a\n", "../up", "null", "1/2", "2e-5", "\ud800", "dеmo", "average-of-", "cuda:0", "published_code"),
    *(0, -1, 3.0, 0.5, math.nan, math.inf, 2**32, None, True, [], {}, [None], [[]], {"a": None}, {1: 2}, ["a", "a"]),
    *(datetime.date(2020, 1, 1), b"bytes"),
]


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_mutated_configs_pass_or_are_refused_in_one_sentence(path):
    chance = random.Random(path.stem)
    original = yaml.safe_load(path.read_text(encoding="utf-8"))
    refused = 0
    for _ in range(100):
        config = copy.deepcopy(original)
        *parents, last = chance.choice(list(places(config)))
        place = config
        for part in parents:
            place = place[part]
        match chance.choice(["value", "value", "delete", "key", "wrap"]):
            case "value":
                place[last] = chance.choice(WRONG)
            case "delete":
                del place[last]
            case "key" if isinstance(place, dict):
                place[chance.choice(["", "x", "a\n", "../up", 1, None, True, str(last) * 2])] = place[last]
            case _:
                place[last] = [place[last]]
        try:
            config_of(config)
        except InputError as error:
            refused += 1
            assert str(error).isprintable() and str(error).endswith((".", "?")) and len(str(error)) < 1000
    assert refused > 30


@pytest.mark.parametrize(
    ("written", "expected"), [("1/4", "1/4"), (0.25, "1/4"), ("2/8", "1/4"), (500, 500), (2, 2), (1, "1"), ("1", "1")]
)
def test_training_rows_are_a_share_or_a_number(written, expected):
    assert rows_or_share(written) == expected
    if isinstance(expected, str):
        assert parts_of(expected) == {"1/4": 4, "1": 1}[expected]


@pytest.mark.parametrize("written", ["0", 0, "3/2", -3, True, "half", None, 1.5])
def test_other_training_rows_are_refused(written):
    with pytest.raises(InputError, match="is neither a share of rows nor a number of rows"):
        rows_or_share(written)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"tasks.tags.resample_training": True}, "train_rows must be the share of each seed, such as"),
        ({"tasks.tags.resample_training": True, "tasks.tags.train_rows": 9}, "must be the share of each seed"),
        (
            {"tasks.tags.resample_training": True, "tasks.tags.train_rows": "2/5", "run.seeds": [1, 2, 5]},
            r"with train_rows 2/5 has 2 parts .* seeds 1 and 5 of run.seeds would share one",
        ),
        (
            {"tasks.tags.resample_training": True, "tasks.tags.train_rows": "1/3", "ranking.seeds": [0, 3]},
            "seeds 0 and 3 of ranking.seeds would share one",
        ),
    ],
)
def test_recipes_that_do_not_fit_are_refused(changes, message):
    with pytest.raises(InputError, match=message):
        config_of(with_keys(CONFIG, changes))


def test_recipes_that_fit():
    recipe = {"train_rows": "1/3", "resample_training": True}
    config = config_of(with_keys(CONFIG, {"tasks.tags": CONFIG["tasks"]["tags"] | recipe, "run.seeds": [1, 2, 3]}))
    assert config.tasks["tags"].train_rows == "1/3"
    masked = MASKED | {"train_rows": "1/2", "resample_training": True}
    assert config_of(with_keys(CONFIG, {"tasks.tags": masked, "run.seeds": [1, 2]}))


@pytest.mark.parametrize(("written", "near"), [(1 / 3, "1/3"), (0.0625, "1/16")])
def test_a_number_with_many_decimals_is_not_said_to_be_outside_0_and_1(written, near):
    with pytest.raises(InputError, match=f'has more than three decimals; write it as "a/b", for example "{near}"'):
        fraction(written)
    assert fraction(0.5) == fraction("0.5") == "1/2"
