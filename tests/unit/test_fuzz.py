"""Configs with errors that nobody thought of: each passes and can be planned, or is refused in a sentence."""

import contextlib
import copy
import datetime
import math
import random
import re
import time

import pytest
import yaml
from typer.testing import CliRunner

from papa.cli import SCHEMA, _checked, app
from papa.config.graph import Graph
from papa.config.grids import pairs
from papa.config.jobs import jobs_of
from papa.config.parameters import Parameters
from papa.config.settings import NAME, checked
from papa.errors import InputError

CONFIGS = {path.stem: path.read_text(encoding="utf-8") for path in sorted(SCHEMA.parents[2].glob("config/*.yaml"))}
CONFIGS["small"] = """
name: small
run: {models: [one], tasks: [colours, tags, masked], fractions: ["1", "1/2", "0"], seeds: [1], orders: [lambda, random]}
grids: {more: {title: More, constants: [average-of-lines, zeros], tasks: [colours]}}
models: {one: {hub: some/model, revision: main, path: models/one}, two: {package: some.package}}
corpora:
  texts: {hub: some/data, config: en, first: text, slots: 12, more_validation: [other]}
  words: {files: {train: a.conll, validation: b.conll}, columns: [words, tags], words: words, slots: 8}
  lines: {files: {train: a.txt}, blocks: true}
  blocks: {files: {train: a.txt, validation: b.txt}, blocks: true, slots: 16, train_limit: 10}
tasks:
  colours: {corpus: texts, label: colour, labels: [red, blue], subset: kind, metric: f1, learning_rate: 0.01,
            batch_size: 2, epochs: 1, title: Colours}
  tags: {corpus: words, label: tags, metric: token_accuracy, learning_rate: 0.01, batch_size: 2, epochs: 1,
         features: store}
  masked: {corpus: blocks, metric: negative_log_perplexity, learning_rate: 0.01, batch_size: 2, epochs: 1}
ranking: {seed: 3, draws: 2}
patterns: {tasks: [tags], heads: [[0, 1]]}
plots: {width: 100}
hub_mirror: mirror
device: cpu
"""
"""The configs of the project, and one with keys that they lack."""

BOMB = "a0: &a0 [x]\n" + "".join(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]\n" for n in range(1, 9))
"""A hundred million values in 500 characters."""
SECONDS = 2.0
SAFE = re.compile(r"<results>(/[a-z0-9_][A-Za-z0-9_.-]*)+")
"""A path in the folder of results; `.` and `..` are no part of it."""


def cyclic():
    around = {"name": "a"}
    around["again"] = [around]
    return around


def bomb():
    layer = ["x"]
    for _ in range(9):
        layer = [layer] * 10
    return layer


def deep(levels):
    nested = "x"
    for level in range(levels):
        nested = {"a": nested} if level % 2 else [nested]
    return nested


TEXTS = [
    *(
        "",
        " ",
        ".",
        "..",
        "../up",
        "/root",
        "a/..",
        "a/../b",
        "a\n",
        "\n",
        "a\tb",
        "a b",
        "a\0b",
        "\x1b[31m",
        "a\x85",
        "~",
    ),
    *(
        "dеmo",
        "ｄｅｍｏ",
        "é",
        "😀",
        "\ud800",
        "\u2028",
        "\u202e",
        "A",
        "-a",
        "_a",
        "a" * 64,
        "a" * 65,
        "a" * 5000,
        "/".join(["b" * 200] * 40),
    ),
    *(
        "{a}",
        "<results>",
        "$(touch x)",
        "%s",
        "{0}",
        "__class__",
        "null",
        "yes",
        "1",
        "1/2",
        "1e400",
        "2e-5",
        "٣",
        "0x10",
    ),
    *(
        "average-of-",
        "average-of-../up",
        "average-of-a\n",
        "average-trained",
        "average-of-words",
        "cuda:0",
        "published_code",
    ),
    *("constructor", "runs", "summary", "all", "train", "original", "lambda", "store", "stream"),
]
NUMBERS = [0, -1, 1, 2, 3.0, 0.5, -0.0, 1e308, math.nan, math.inf, -math.inf, 10**30, -(10**30), 10**5000, 2**31, 2**32]
OTHERS = [
    *(None, True, False, [], {}, [None], [[]], {"a": None}, [1, "1"], ["1/2", "2/4"], ["a", "a"], {"a": {"b": []}}),
    *(datetime.date(2020, 1, 1), datetime.datetime(2020, 1, 1, 1), b"bytes", (1, 2), {1, 2}, 1j, len, object()),
    *([0] * 30_000, {f"k{number}": number for number in range(3_000)}),
    *(cyclic(), bomb(), deep(5), deep(12), deep(5_000)),
]
KEYS = ["", " ", "a\n", "../up", "а", "\ud800", "a" * 300, "a.b", "name", "models", "x", "seeds", "epochs"]
KEYS += [None, True, 1, 10**5000, 1.5, math.nan, (1, 2), datetime.date(2020, 1, 1), b"a"]


SLIPS = [
    "\t",
    "\n",
    " ",
    ":",
    ": ",
    "- ",
    "'",
    '"',
    "{",
    "}",
    "[",
    "]",
    ",",
    "&a ",
    "*a",
    "!",
    "!!int ",
    "%",
    "@",
    "|",
    ">",
    "#",
]
SLIPS += [
    "\0",
    "\x1b",
    "é",
    "\u2028",
    "\ufeff",
    "0",
    "9" * 5000,
    ".inf",
    "~",
    "<<: ",
    "? ",
    "---\n",
    "2020-99-99",
    "1_0",
]


def places(value, path=()):
    """The paths of all keys and items."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, own in items:
        yield (*path, key)
        yield from places(own, (*path, key))


def at(config, path):
    for part in path:
        config = config[part]
    return config


def mutated(original, chance):
    """`original` with a thing or two wrong, or not, and the keys that it has to do with (None: nothing is left)."""
    if chance.random() < 0.02:
        return chance.choice([*TEXTS, *NUMBERS, *OTHERS]), None
    config, named = copy.deepcopy(original), set()
    first, *second = chance.sample(list(places(original)), chance.choice([1, 1, 1, 2]))
    named |= mutate(config, first, original, chance)
    for path in second:
        if path[: len(first)] != first and first[: len(path)] != path:
            with contextlib.suppress(LookupError, TypeError):
                named |= mutate(config, path, original, chance)
    return config, named


def mutate(config, path, original, chance):
    """Change the key or item at `path`; returns the keys that the change has to do with."""
    place, last = at(config, path[:-1]), path[-1]
    value = chance.choice([chance.choice(TEXTS), chance.choice(NUMBERS), chance.choice(OTHERS)])
    named = {part for part in path if isinstance(part, str)}
    kind = chance.choice(["value", "value", "value", "delete", "rename", "key", "move", "twice", "wrap"])
    if kind == "value":
        place[last] = value
    elif kind == "wrap":
        place[last] = chance.choice([[place[last]], {"a": place[last]}, [[place[last]]], str(place[last])])
    elif kind == "move":  # the value of another place
        place[last] = copy.deepcopy(at(original, chance.choice(list(places(original)))))
    elif isinstance(place, list):
        if kind == "delete":
            del place[last]
        else:
            place.insert(last, place[last] if kind == "twice" else value)
    else:
        key = chance.choice(KEYS) if chance.random() < 0.6 else chance.choice(str(last) + "x") * chance.randint(1, 3)
        named.add(key)
        if kind == "delete":
            del place[last]
        elif kind == "rename":
            place[key] = place.pop(last)
        else:
            place[key] = copy.deepcopy(place[last]) if kind == "twice" else value
    return named


def plan(config):
    """Everything that the workflow and `papa plan` make of a checked config, without running it."""
    graph, parameters = Graph(config), Parameters(config)
    paths = [*graph.artefacts(), *graph.analyses()]
    unsafe = [path for path in paths if not SAFE.fullmatch(path) or ".." in path]
    assert not unsafe
    assert re.fullmatch(NAME, config["name"])
    jobs = jobs_of(graph)
    assert len(jobs) == len(set(jobs))
    assert {job.rule for job in jobs} >= {"probe"} or {job.rule for job in jobs} >= {"probe_through_encoder"}
    re.compile(graph.stored())
    parameters.machine(), parameters.titles(), parameters.published(), parameters.heads_drawn()
    for name in graph.grids:
        parameters.grid(name)
    for model, task in pairs(config):
        parameters.layout(model, graph.corpus_of(task)), parameters.labels(task)
        for variant, seeds in graph.variants(model, task).items():
            parameters.hidden(model, variant), graph.behind(model, task, variant)
            for seed in seeds:
                parameters.probe_through_encoder(model, task, variant, str(seed))


def refusal(check):
    """What `check` says of a config; None where it passes."""
    begin = time.process_time()
    try:
        plan(check())
        said = None
    except InputError as error:
        said = str(error)
        assert len(said.splitlines()) == 1 and said.isprintable() and said.endswith("."), said
        assert len(said) < 2000
    assert time.process_time() - begin < SECONDS
    return said


def written(key):
    """How messages write a key, in part."""
    if isinstance(key, str) and re.fullmatch(r"[\w.-]+", key, re.ASCII):
        return key[:20]
    return "a number of thousands of digits" if key == 10**5000 else repr(key)[:20]


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("name", CONFIGS)
def test_mutated_configs_pass_or_are_refused_by_the_name_of_a_key(name, seed):
    chance = random.Random(f"{name} {seed}")
    original = yaml.safe_load(CONFIGS[name])
    refused = 0
    for _ in range(15):
        config, named = mutated(original, chance)
        said = refusal(lambda: checked(config, SCHEMA))  # noqa: B023
        refused += said is not None
        if said is not None and named is not None:
            assert any(written(key) in said for key in named), (named, said)
    assert refused


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("name", ["config", "families", "small"])
def test_garbled_text_is_read_or_refused(tmp_path, name, seed):
    """What an editor that slips makes of a config: characters lost, doubled, swapped or put in."""
    chance = random.Random(f"{name} {seed}")
    file = tmp_path / "config.yaml"
    for _ in range(20):
        text = list(CONFIGS[name])
        for _ in range(chance.choice([1, 1, 2, 5, 40])):
            place, kind = chance.randrange(len(text)), chance.choice(["lose", "double", "swap", "put", "put", "cut"])
            if kind == "lose":
                del text[place]
            elif kind == "double":
                text[place:place] = text[place : place + chance.randint(1, 60)]
            elif kind == "swap":
                text[place : place + 2] = reversed(text[place : place + 2])
            elif kind == "put":
                text[place:place] = chance.choice(SLIPS)
            elif chance.random() < 0.1:
                del text[place:]
                break
        file.write_text("".join(text), encoding="utf-8")
        refusal(lambda: _checked(file, {}))


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (None, "cannot be read as YAML .*Is a directory"),
        (b"", "The config must be a block of keys, but it is empty"),
        (b"# nothing", "The config must be a block of keys, but it is empty"),
        (b"- name: a", r"The config must be a block of keys, but it is \[{'name': 'a'}\]"),
        (b"name", "The config must be a block of keys, but it is 'name'"),
        (b"name: \xff", "cannot be read as YAML .*utf-8"),
        (b"name: a\0", "cannot be read as YAML .*not allowed"),
        (b"name: [", "cannot be read as YAML"),
        (b"name: a\n---\nname: b", "cannot be read as YAML .*single document"),
        (b"name: 2020-99-99", "cannot be read as YAML .*month"),
        (b"name: !!timestamp a", "cannot be read as YAML"),
        (b"name: !!int a", "cannot be read as YAML"),
        (b"name: *nobody", "cannot be read as YAML .*nobody"),
        (b"name: " + b"9" * 5000, "cannot be read as YAML .*digits"),
        (b"name: 0x" + b"9" * 5000, "name is a number of thousands of digits"),
        (b"[" * 100_000, "cannot be read as YAML .*recursion"),
        (b"run: &a\n  models: *a", "run.models.models.* lies deeper"),
        (BOMB.encode(), "20,000 values"),
    ],
)
def test_files_that_are_no_configs(tmp_path, content, said):
    file = tmp_path if content is None else tmp_path / "config.yaml"
    if content is not None:
        file.write_bytes(content)
    result = CliRunner().invoke(app, ["plan", str(file)])
    assert result.exit_code == 2 and result.stdout == ""
    assert len(result.stderr.splitlines()) == 1 and re.match(f"Config error: .*{said}", result.stderr), result.stderr
