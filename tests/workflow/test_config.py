"""Configs are checked before any job starts; every refusal is one sentence that names the key."""

import copy
import json
import math
import re

import pytest
import yaml
from tiny import CONFIG, REPOSITORY

from papa.config.graph import CONSTANT, CORPUS_VARIANTS, KEPT, ORDER, TRAINED_VARIANTS, Graph, setting, variant
from papa.config.grids import pairs
from papa.config.parameters import Parameters
from papa.config.schema import filled_in
from papa.config.settings import checked, fraction
from papa.errors import InputError

SCHEMA = REPOSITORY / "workflow/schemas/config.schema.yaml"


HUB = {"hub": "some/data", "train": "other", "words": "words", "slots": 11}
MASKED = {key: value for key, value in CONFIG["tasks"]["tags"].items() if key != "label"}
MASKED["metric"] = "negative_log_perplexity"


def edited(path, value):
    """`CONFIG` with the key at `path` (names and numbers) set to `value`."""
    config = copy.deepcopy(CONFIG)
    place = config
    for part in path[:-1]:
        place = place[part]
    place[path[-1]] = value
    return config


@pytest.mark.parametrize("name", ["config.yaml", "families.yaml", "minilm.yaml", "paper.yaml"])
def test_configs_of_the_project_pass(name):
    config = checked(yaml.safe_load((REPOSITORY / "config" / name).read_text(encoding="utf-8")), SCHEMA)
    assert {task for _, task in pairs(config)} == set(config["tasks"])


def test_defaults_are_filled_in_and_the_given_config_is_left_alone():
    before = copy.deepcopy(CONFIG)
    config = checked(CONFIG, SCHEMA)
    assert config["layout"] == {"style": "paper", "segments": "aligned"}
    assert config["threads"] == {"encoder": 2, "probe": 1}
    assert config["run"]["constants"] == ["average"]
    assert before == CONFIG
    assert checked(edited(["threads"], {"probe": 3}), SCHEMA)["threads"] == {"encoder": 2, "probe": 3}


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        (["modles"], {}, "unknown key modles; did you mean models?"),
        (["tasks", "tags", "learning_rte"], 1.0, "tasks.tags.learning_rte; did you mean learning_rate?"),
        (["corpora", "words", "files", "test"], "a.csv", "corpora.words.files.test"),
        (["pathvars"], {"results": "../elsewhere"}, "unknown key pathvars"),
        (["tasks", "tags", "learning_rate"], "2e-5", "tasks.tags.learning_rate must be a number.*write 2.0e-5"),
        (["tasks", "tags", "learning_rate"], "1E4", r"write 1.0e\+4"),
        (["tasks", "tags", "learning_rate"], 0, "tasks.tags.learning_rate is 0, but must be above 0"),
        (["tasks", "tags", "learning_rate"], math.nan, "tasks.tags.learning_rate is nan"),
        (["tasks", "tags", "learning_rate"], math.inf, "tasks.tags.learning_rate is inf"),
        (["tasks", "tags", "batch_size"], 8.0, "tasks.tags.batch_size must be a whole number"),
        (["tasks", "tags", "epochs"], "4", "tasks.tags.epochs must be a whole number, .*without quotes"),
        (["tasks", "tags", "epochs"], True, "tasks.tags.epochs must be a whole number"),
        (["tasks", "tags", "metric"], "acuracy", "tasks.tags.metric is 'acuracy'; it must be one of accuracy, f1"),
        (["tasks", "tags", "metric"], "accuracy", "tasks.tags.metric: The metric accuracy is for tasks with one label"),
        (["tasks", "animals", "metric"], "entity_f1", "tasks.animals.metric"),
        (["tasks", "tags", "corpus"], "word", "tasks.tags.corpus is 'word'.*defined are sentences, words"),
        (["tasks", "tags", "labels"], ["a", "b", "a"], "tasks.tags.labels has 'a' twice"),
        (["run", "models"], ["bert"], "run.models names 'bert'.*defined are tiny"),
        (["run", "tasks"], ["animals", "pos"], "run.tasks names 'pos'.*defined are animals, tags"),
        (["run", "tasks"], ["tags", "tags"], "run.tasks has 'tags' twice"),
        (["run", "tasks"], [], "run.tasks has too little in it"),
        (["run", "tasks"], "tags", "run.tasks must be a list, but it is 'tags'"),
        (["run", "seeds"], [1, 1], "run.seeds has 1 twice"),
        (["run", "seeds"], [-1], r"run.seeds\[0\] is -1, but must be at least 0"),
        (["run", "fractions"], ["1", "3/2"], r"run.fractions\[1\]: '3/2' is no fraction between 0 and 1"),
        (["run", "fractions"], [0.5], r"run.fractions\[0\]: 0.5 is no fraction.*a/b"),
        (["run", "fractions"], ["1/0"], r"run.fractions\[0\]"),
        (["run", "fractions"], ["-1/2"], r"run.fractions\[0\]"),
        (["run", "fractions"], ["1/2", "2/4"], "run.fractions has '1/2' twice"),
        (
            ["run", "constants"],
            ["mean"],
            r"run.constants\[0\]: There are no constants 'mean'; there are average, .*zeros",
        ),
        (["run", "constants"], ["zeros-trained"], "There are no constants 'zeros-trained'"),
        (["run", "constants"], ["average-of-mnli"], "no corpus is called 'mnli'; defined are sentences, words"),
        (["run", "orders"], ["alphabetical"], "'alphabetical'; it must be one of lambda, lambda-reversed, first-layer"),
        (["models", "tiny"], {"random": "bert", "path": "a"}, "models.tiny is random, so .* leave out path"),
        (["models", "tiny"], {"random": "gpt2"}, "must be one of bert, roberta, deberta, electra"),
        (["name"], "../up", "names are 1 to 64 characters"),
        (["name"], "/root", "names are 1 to 64 characters"),
        (["name"], "a\n", "names are 1 to 64 characters"),
        (["name"], "a" * 65, "names are 1 to 64 characters"),
        (["name"], "dеmo", "names are 1 to 64 characters"),  # Cyrillic е
        (["name"], "", "names are 1 to 64 characters"),
        (["name"], 3, "name must be text, but it is 3; put it in quotes"),
        (["name"], None, "name must be text"),
        (["models", "Tiny"], {"path": "a"}, "'Tiny' .a key of models."),
        (["models", 1], {"path": "a"}, "models has the key 1"),
        (["models", "tiny"], {"path": "a", "package": "b"}, "models.tiny has both path and package"),
        (["models", "tiny"], {}, "models.tiny says nowhere what the model is"),
        (["models", "tiny", "revision"], "main", "models.tiny.revision"),
        (["models", "tiny", "hub"], "/models/bert", "models.tiny.hub"),
        (["models", "tiny", "hub"], "../model", "models.tiny.hub"),
        (["models", "tiny", "sha256"], "abc", "models.tiny.sha256"),
        (["corpora", "words", "hub"], "a/b", "corpora.words must have one source.*hub and files"),
        (["corpora", "words", "config"], "cola", "corpora.words.config means something with hub only"),
        (["corpora", "words", "first"], "text", "corpora.words needs either first .* or words"),
        (["corpora", "words", "second"], "text", "corpora.words.second is for pairs"),
        (["corpora", "words", "slots"], None, "corpora.words.slots must be a whole number"),
        (["corpora", "words"], {"generated": "agreement", "first": "text", "slots": 8}, "corpora.words .* needs rows"),
        (["corpora", "words"], {"words": "words", "slots": 8}, "corpora.words must have one source"),
        (
            ["corpora", "words"],
            {"hub": "a/b", "words": "words"},
            "tasks.tags.corpus is 'words', which has no slots; give",
        ),
        (["corpora", "words"], {"files": {"train": "a.txt"}}, "'words', which has no slots and no validation split"),
        (["corpora", "words", "files"], {"validation": "a.jsonl"}, "needs the key corpora.words.files.train"),
        (["corpora", "words", "blocks"], True, "corpora.words.blocks is for running text"),
        (
            ["corpora", "sentences", "blocks"],
            True,
            "tasks.animals has labels, but its corpus 'sentences' is cut in blocks",
        ),
        (["tasks", "tags", "metric"], "negative_log_perplexity", "tasks.tags.label is for tasks with labels"),
        (["tasks", "tags"], {**MASKED, "metric": "accuracy"}, "tasks.tags needs a label for its metric accuracy"),
        (["tasks", "tags"], {**MASKED, "subset": "kind"}, "tasks.tags.subset is for tasks with labels"),
        (
            ["grids"],
            {"more": {"tasks": ["masked"], "constants": ["zeros", "average-trained"]}},
            "grids.more runs masked, masked language modelling, with average-trained, but constants are trained with",
        ),
        (["corpora"], [], "corpora must be a block of keys"),
        (["device"], "gpu", "device is 'gpu'"),
        (["threads", "encoder"], 0, "threads.encoder is 0, but must be at least 1"),
        (["token_budget"], 0, "token_budget is 0"),
        (
            ["patterns"],
            {"tasks": ["colour"]},
            "patterns.tasks names 'colour', which is not run; those that are run: animals, tags",
        ),
        (["patterns"], {"tasks": ["tags"], "heads": [[1, 2, 3]]}, r"patterns.heads\[0\] has too much in it, at most 2"),
        (["fidelity"], "code", "fidelity is 'code'; it must be one of paper, published_code"),
        (["tasks", "tags", "features"], "disk", "tasks.tags.features is 'disk'; it must be one of store, stream"),
        (["encoder_dropout"], "yes", "encoder_dropout must be true or false, but it is 'yes'"),
        (["corpora", "words", "more_validation"], ["test"], "more_validation means something with hub only"),
        (["corpora", "words"], HUB | {"more_validation": ["other"]}, "names 'other', which is taken"),
        (["corpora", "words"], HUB | {"more_validation": ["train"]}, "names 'train', which is taken"),
        (["corpora", "words"], HUB | {"more_validation": ["a", "a"]}, "names 'a', which is taken; name each .* once"),
        (["grids"], {"more": {"tasks": ["colour"]}}, "grids.more.tasks names 'colour', which is not defined"),
        (["grids"], {"more": {"fractions": ["2"]}}, r"grids.more.fractions\[0\]: '2' is no fraction"),
        (["grids"], {"More": {}}, r"'More' \(a key of grids\) cannot be a name"),
        (["grids"], {"summary": {}}, "No grid can be called 'summary'"),
        (["run", "title"], "Mine", "unknown key run.title"),
        (["plots"], {"width": 100000}, "plots.width is 100000, but must be at most"),
        (["name"], "demo\0", "names are 1 to 64 characters"),
        (["name"], "ｄｅｍｏ", "names are 1 to 64 characters"),
        (["corpora", "../up"], {}, r"'../up' \(a key of corpora\) cannot be a name: names are 1 to 64 characters"),
        (["tasks", "tags\n"], {}, r"'tags\\n' \(a key of tasks\) cannot be a name"),
        (["grids"], {"/root": {}}, r"'/root' \(a key of grids\) cannot be a name"),
        (["run", "constants"], ["average-of-../up"], r"run.constants\[0\] is .*no corpus is called '../up'"),
        (["run", "constants"], ["average\n"], r"run.constants\[0\] has a line break"),
        (["models", "tiny", "hub"], "some/..", "models.tiny.hub is 'some/..', which cannot be right.*must match"),
        (["models", "tiny", "hub"], "some/model\n", "models.tiny.hub has a line break"),
        (["models", "tiny", "hub"], "a" * 256, "models.tiny.hub is too long, 256 bytes"),
        (["models", "tiny"], {"hub": "a/b", "revision": "../../up"}, "models.tiny.revision is '../../up'.*must match"),
        (["models", "tiny"], {"package": "os;x"}, "models.tiny.package is 'os;x'"),
        (["corpora", "words"], HUB | {"config": "../up"}, "corpora.words.config is '../up'.*must match"),
        (["corpora", "words", "files", "train"], "{a}.csv", "corpora.words.files.train is '{a}.csv'.*must match"),
        (["corpora", "words", "files", "train"], "<a>.csv", "corpora.words.files.train is '<a>.csv'.*must match"),
        (["device"], "cuda:0\n", "device has a line break"),
        (["device"], "cuda:100", "device is 'cuda:100'"),
        (["tasks", "tags", "title"], "a\ud800", "tasks.tags.title has a line break or another control character"),
        (["tasks", "tags", "epochs"], 10**30, "tasks.tags.epochs is 1000.*must be at most 4,294,967,295"),
        (["corpora", "words", "slots"], -(10**30), "corpora.words.slots is -1000.*must be at least -4,294,967,295"),
        (["tasks", "tags", "learning_rte\n"], 1, r"The key tasks.tags.'learning_rte\\n' has a line break"),
    ],
)
def test_refused(path, value, message):
    config = copy.deepcopy(CONFIG) | {"threads": {}}
    config["tasks"]["masked"] = MASKED
    place = config
    for part in path[:-1]:
        place = place[part]
    place[path[-1]] = value
    with pytest.raises(InputError, match=message) as refusal:
        checked(config, SCHEMA)
    assert "\n" not in str(refusal.value)


def test_patterns_are_matched_from_the_first_character_to_the_last():
    rules = {"type": "object", "properties": {"key": {"type": "string", "pattern": "b|abc"}}}
    assert filled_in({"key": "abc"}, rules) == {"key": "abc"}
    with pytest.raises(InputError, match="key is 'abcd', which cannot be right; it must match"):
        filled_in({"key": "abcd"}, rules)


def test_what_yaml_shares_between_keys_is_changed_in_none():
    shared = ["0", "4/8"]
    config = edited(["run", "fractions"], shared)
    config["tasks"]["animals"]["labels"] = shared
    given = checked(config, SCHEMA)
    assert given["run"]["fractions"] == ["0", "1/2"] and given["tasks"]["animals"]["labels"] == ["0", "4/8"] == shared


@pytest.mark.parametrize("key", ["name", "run", "models", "corpora", "tasks"])
def test_missing_key(key):
    config = {name: value for name, value in CONFIG.items() if name != key}
    with pytest.raises(InputError, match=f"The config needs the key {key}: "):
        checked(config, SCHEMA)


def test_every_key_of_the_schema_is_described_and_others_are_refused():
    def visit(rules, where):
        assert rules.get("description"), f"{where} has no description"
        if rules.get("type") == "object":
            others = rules.get("additionalProperties")
            assert others is False or isinstance(others, dict), f"{where} takes keys that nobody knows"
            for name, own in rules.get("properties", {}).items():
                visit(own, f"{where}.{name}")
            if others:
                visit(others, f"{where}.*")

    visit(yaml.safe_load(SCHEMA.read_text(encoding="utf-8")), "config")


@pytest.mark.parametrize(
    ("written", "expected"),
    [("1/8", "1/8"), ("2/16", "1/8"), ("0", "0"), (0, "0"), (1, "1"), ("3/3", "1"), ("0/7", "0")],
)
def test_fractions_in_lowest_terms(written, expected):
    assert fraction(written) == expected


@pytest.mark.parametrize(
    "written", ["", "a", "1/", "/2", " 1/2", "1/2\n", "1e0", "0.5", "٢/٣", "2", "9" * 9, None, True]
)
def test_no_fractions(written):
    with pytest.raises(InputError, match="is no fraction between 0 and 1"):
        fraction(written)


@pytest.mark.parametrize(
    ("kept", "name", "constant", "order"),
    [
        ("1", "original", None, None),
        ("0", "average/all", "average", None),
        ("1/16", "average/lambda/kept-1of16", "average", "lambda"),
        ("1/2", "average-of-words/random-2/kept-1of2", "average-of-words", "random-2"),
        ("0", "toeplitz-trained/all", "toeplitz-trained", None),
    ],
)
def test_variants_name_what_is_replaced_and_nothing_else(kept, name, constant, order):
    assert variant(constant or "average", order or "lambda", kept) == name
    patterns = (CORPUS_VARIANTS, f"{CONSTANT}/{ORDER}/{KEPT}", TRAINED_VARIANTS)
    assert sum(bool(re.fullmatch(pattern, name)) for pattern in patterns) == 1
    assert setting(name) == {"constant": constant, "order": order, "fraction": kept}


def test_places_are_in_no_parameter():
    def parameters(config):
        own = Parameters(checked(config, SCHEMA))
        return [
            own.model("tiny"),
            own.corpus("words"),
            own.labels("tags"),
            own.layout("tiny", "words"),
            own.hidden("tiny", "original"),
            own.training("tags"),
            own.ranking("tiny", "tags", "average"),
            own.probe("tiny", "tags", "average/lambda/kept-1of2", "1"),
            own.told(),
        ]

    moved = edited(["models", "tiny"], {"package": "somewhere_else"})
    moved |= {"hub_mirror": "/mirror", "device": "cuda:1", "threads": {"encoder": 7}, "token_budget": 5}
    moved["checkpoint_minutes"] = 0.5
    assert parameters(moved) == parameters(CONFIG)
    machine = json.loads(Parameters(checked(moved, SCHEMA)).machine())
    assert machine == {
        "hub_mirror": "/mirror",
        "device": "cuda:1",
        "encoder_threads": 7,
        "probe_threads": 1,
        "token_budget": 5,
        "checkpoint_minutes": 0.5,
        "models": {"tiny": {"package": "somewhere_else"}},
    }


def test_the_report_tells_what_is_run_and_is_a_config_itself():
    more = edited(["tasks", "unused"], CONFIG["tasks"]["tags"]) | {"grids": {"tags": {"tasks": ["tags"]}}}
    more["corpora"]["unused"], more["models"]["unused"] = more["corpora"]["words"], {"hub": "a/b"}
    told = Parameters(checked(more, SCHEMA)).told()
    assert (list(told["models"]), list(told["tasks"])) == (["tiny"], ["animals", "tags"])
    assert list(told["corpora"]) == ["sentences", "words"] and told["grids"] == more["grids"]
    assert Graph(told).runs() == Graph(checked(more, SCHEMA)).runs()
    assert Graph(told).analyses() == Graph(checked(more, SCHEMA)).analyses()


def test_grids_take_from_run_what_they_leave_out():
    config = copy.deepcopy(CONFIG) | {"grids": {"more": {"tasks": ["tags"], "constants": ["zeros"], "seeds": [5]}}}
    graph = Graph(checked(config, SCHEMA))
    before = Graph(checked(CONFIG, SCHEMA))
    assert graph.variants("tiny", "animals") == before.variants("tiny", "animals")
    assert graph.variants("tiny", "tags") == before.variants("tiny", "tags") | {
        "original": [1, 5],
        "zeros/lambda/kept-1of2": [5],
        "zeros/all": [5],
    }


def test_every_grid_has_a_table_and_those_between_none_and_all_heads_a_figure():
    grids = {"between": {"title": "aa", "tasks": ["tags"]}, "ends": {"fractions": [0, 1]}}
    given = checked(copy.deepcopy(CONFIG) | {"grids": grids}, SCHEMA)
    tables = {"score_by_fraction", "score_and_drop", "between", "ends"}
    wanted = {f"<results>/tables/{name}.{form}" for name in tables for form in ("parquet", "md", "tex")}
    wanted |= {f"<results>/figures/{name}.{form}" for name in tables - {"ends"} for form in ("svg", "png", "html")}
    assert set(Graph(given).analyses()) == wanted
    assert Parameters(given).grid("between") == {
        "title": "aa",
        "grid": {
            "models": ["tiny"],
            "constants": ["average"],
            "orders": ["lambda"],
            "fractions": ["1", "1/2", "0"],
            "tasks": {"tags": "words"},
        },
    }
    assert Parameters(given).grid("score_by_fraction")["title"] == "Score by fraction"
    alone = Graph(checked(edited(["run", "fractions"], ["1"]), SCHEMA)).analyses()
    assert not any("score_and_drop" in path for path in alone)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, ("paper", "aligned", False, "reported")),
        ({"fidelity": "paper"}, ("paper", "aligned", False, "reported")),
        ({"fidelity": "published_code"}, ("published_code", "published_code", True, "all")),
        ({"fidelity": "published_code", "layout": {"style": "paper"}}, ("paper", "published_code", True, "all")),
        (
            {"fidelity": "published_code", "encoder_dropout": False, "score_validation": "reported"},
            ("published_code", "published_code", False, "reported"),
        ),
        ({"fidelity": "paper", "encoder_dropout": True}, ("paper", "aligned", True, "reported")),
    ],
)
def test_fidelity_is_the_default_of_what_it_stands_for(given, expected):
    config = checked(copy.deepcopy(CONFIG) | given, SCHEMA)
    layout = config["layout"]
    assert (layout["style"], layout["segments"], config["encoder_dropout"], config["score_validation"]) == expected


def test_further_splits_count_only_where_they_are_scored():
    config = edited(["corpora", "words"], HUB)
    more = copy.deepcopy(config)
    more["corpora"]["words"]["more_validation"] = ["test"]

    def corpora(config, **keys):
        own = Parameters(checked(config | keys, SCHEMA))
        return own.corpus("words"), own.labels("tags")["corpus"]

    assert corpora(more) == corpora(config)
    assert all(corpus["more_validation"] == ["test"] for corpus in corpora(more, score_validation="all"))


@pytest.mark.parametrize(
    ("keys", "run", "message"),
    [
        ({}, {}, None),
        ({}, {"constants": ["average-trained"], "fractions": ["1"]}, None),
        ({}, {"constants": ["average-trained"], "tasks": ["animals"]}, None),
        ({}, {"constants": ["zeros", "average-trained"]}, "run with average-trained, which is trained along"),
        ({"grids": {"more": {"constants": ["toeplitz-trained"]}}}, {}, "run with toeplitz-trained"),
        ({"encoder_dropout": True}, {}, "encoder_dropout is on, so that"),
        ({"fidelity": "published_code"}, {}, "encoder_dropout is on, so that"),
        ({"fidelity": "published_code", "encoder_dropout": False}, {}, None),
    ],
)
def test_what_changes_in_every_epoch_cannot_be_stored(keys, run, message):
    config = edited(["tasks", "tags", "features"], "store") | keys
    config["run"] |= run
    if message is None:
        checked(config, SCHEMA)
        return
    with pytest.raises(InputError, match=f"tasks.tags.features is store, but .*{message}"):
        checked(config, SCHEMA)


@pytest.mark.parametrize(
    ("keys", "streamed"),
    [({}, {"tags"}), ({"encoder_dropout": True}, {"tags", "animals"})],
)
def test_what_is_streamed_asks_for_no_features_and_goes_to_one_rule(keys, streamed):
    config = edited(["tasks", "tags", "features"], "stream") | keys
    config["run"]["constants"] = ["average", "average-trained"]
    graph = Graph(checked(config, SCHEMA))
    wanted = graph.artefacts()
    for task in ("tags", "animals"):
        corpus = graph.corpus_of(task)
        assert any(f"{corpus}/features" in path or f"{task}/features" in path for path in wanted) == (
            task not in streamed
        )
        assert bool(re.fullmatch(graph.stored(), task)) == (task not in streamed)
        for name in graph.variants("tiny", task):
            assert graph.streamed(task, name) == (task in streamed or "trained" in name)


def test_without_replaced_heads_nothing_is_averaged():
    config = edited(["run", "fractions"], ["1"])
    wanted = Graph(checked(config, SCHEMA)).artefacts()
    assert not any("average" in path for path in wanted)
    assert len(wanted) == len(set(wanted))


# What the command line makes of it


def test_default_config_alone_and_with_one_key(fresh):
    planned = fresh.planned(None)
    assert planned["probe"] > 0
    process = fresh.snakemake("-n", "--quiet", "rules", "--config", "name=other")
    assert process.returncode == 0
    assert "results/other/" in fresh.snakemake("-n", "--config", "name=other").stdout
    assert fresh.planned(None, "--config", "name=other") == planned


def test_a_given_config_stands_alone(fresh):
    assert set(fresh.planned(CONFIG).values()) == {1, 2, 4, 6}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["--config", "token_budgt=1"],
            "Config error: The config has an unknown key token_budgt; did you mean token_budget?",
        ),
        (["--config", "token_budget=many"], "Config error: token_budget must be a whole number, but it is 'many'."),
        (["--config", "name=../up"], "Config error: '../up' (name) cannot be a name: names are 1 to 64 characters"),
        (
            ["--configfile", "refused.yaml"],
            "Config error: corpora.words.files.train: there is no file data/nowhere.jsonl",
        ),
    ],
)
def test_refusals_are_one_line_without_traceback(fresh, arguments, message):
    fresh.write(edited(["corpora", "words", "files", "train"], "data/nowhere.jsonl"), "refused.yaml")
    process = fresh.snakemake("-n", "--quiet", "host", *arguments)
    assert process.returncode == 1
    # snakemake itself says that the default config is extended
    assert [line for line in process.stdout.splitlines() if not line.startswith("Config file ")] == []
    assert len(process.stderr.splitlines()) == 1
    assert process.stderr.startswith(message)
