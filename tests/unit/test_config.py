"""A config is checked before any job starts; every refusal is one sentence that names the key."""

import datetime
import math
import random

import pytest
import yaml
from refusals import input_error
from tiny import ABSENT, CONFIG, REPOSITORY, corpus_of, with_keys, without_labels

from papa.config.reading import config_of, read_config, read_yaml
from papa.config.settings import Config, fraction
from papa.errors import InputError

EACH_CONFIG = pytest.mark.parametrize("path", sorted(REPOSITORY.glob("config/*.yaml")), ids=str)
MASKED = without_labels(CONFIG["tasks"]["tags"], "negative_log_perplexity")
START = with_keys(
    CONFIG, {"tasks.masked": MASKED, "tasks.next": MASKED | {"metric": "log_likelihood"}}
)

REFUSED = """
modles: {} => The config has an unknown key modles; did you mean models?
models.tiny.name: bert => unknown key models.tiny.name; valid keys are hub, revision, sha256, path, package.
corpora.words: {fils: {train: a.csv}, words: x} => unknown key corpora.words.fils; did you mean files?

name: (absent) => The config needs the key name: name of this config; results go to results/<name>/.
tasks.tags.metric: (absent) => The config needs the key tasks.tags.metric: metric that scores predictions.

models.tiny: {} => models.tiny needs `hub`, `path` or `package`.
models.tiny: {path: a, package: b} => models.tiny.package: `path` and `package` do not go together; remove one of them.
corpora.words: {words: words, slots: 8} => corpora.words needs `hub` or `files`.
corpora.words: {hub: a/b, slots: 8} => corpora.words: there is no column of texts; set `first`, or `words`
corpora.words: {hub: a/b, words: w, blocks: true} => corpora.words: `words` and `blocks` do not go together; remove one
corpora.words: {hub: a/b, first: a, blocks: true, cluster: b} => `cluster` must be a number of consecutive blocks
corpora.sentences.blocks: true => tasks.animals has labels, but its corpus 'sentences' is cut into blocks
corpora.sentences.blocks: "yes" => corpora.sentences.blocks must be true or false, but it is 'yes'; write it without
corpora.words: {hub: a/b, validation: [a, all], words: w} => words: validation lists 'all', a name already in use
tasks.tags.metric: negative_log_perplexity => a task without labels (masked language modelling) has no `label`
tasks.masked.metric: accuracy => tasks.masked: a task with one label per text (on a corpus without words) needs `label`
resamples: -1 => resamples is -1, but should be greater than or equal to 0

run.tasks: [animals, pos] => run.tasks: no task is called 'pos'; it must be one of animals, tags, masked, next.
run.constants: [average-of-mnli] => run.constants: no corpus is called 'mnli'; it must be one of sentences, words.
run.tasks: [tags, tags] => run.tasks: 'tags' is listed twice; list each value once.
run.seeds: [0, 0] => run.seeds: 0 is listed twice; list each value once.
tasks.tags.metric: accuracy => tasks.tags.metric: The metric accuracy is for tasks with one label per text
tasks.tags.label: words => is 'words', but that column contains texts, because it is `words` of corpora.words; use
corpora.words: {hub: a/b, words: words} => tasks.tags.corpus is 'words', which has no slots; add it
corpora.words: {files: {train: a.txt}} => 'words', which has no slots and no validation split; add it
grids.more: {tasks: [masked], constants: [average-trained]} => grids.more runs masked with average-trained, which is
grids.summary: {} => The grid 'summary' has the name of another table that papa writes; rename the grid.
grids.patterns-tiny-words: {} => The grid 'patterns-tiny-words' has the name of another table that papa writes
tasks.tags.title: animals => Two tasks have the title 'animals'; give each its own.

tasks.tags.learning_rate: 2e-5x => must be a number, but it is '2e-5x'.
tasks.tags.learning_rate: 0 => tasks.tags.learning_rate is 0, but should be greater than 0 (constant learning rate
tasks.tags.learning_rate: .nan => tasks.tags.learning_rate is nan, but should be a finite number
margin: 10 => margin: 10 is not a margin: a share is above 0% and below 100%
margin: 1e-2 => '1e-2' is not a margin; write
margin: much => 'much' is not a margin; write "10%" of what attention contributes, "1 point" or "0.05 nats"
margin: [10%, 1 point] => give either one share of attention's contribution, or at most one margin in points
margin: 0.05 nats => margin: none fits the metric
keep_hidden_states: "false" => 'false'; write it without quotes, or after --config as True or False
tasks.tags.corpus: "" => tasks.tags.corpus: no corpus is called ''
tasks.tags.epochs: "4" => tasks.tags.epochs must be a whole number, but it is '4'; write it without quotes
run.fractions: ["1", "3/2"] => run.fractions[1]: '3/2' is not a fraction between 0 and 1; write it as "a/b"
run.seeds: [-1] => run.seeds[0] is -1, but should be greater than or equal to 0 (seeds
patterns: {tasks: [tags], heads: [[1, 2, 3]]} => patterns.heads[0] is [1, 2, 3], but should have at most 2 items, not
tasks.tags.labels: [1, 2] => tasks.tags.labels[0] must be text, but it is 1; put it in quotes.
name: on => name must be text, but it is True; put it in quotes, because YAML reads yes, no, on and off

name: ../up => name: '../up' cannot be a name: a name has 1 to 64 characters (a-z, 0-9, _ and -)
name: dеmo => name: 'dеmo' cannot be a name
name: "a\\n" => name contains U+000A, a line break or another invisible character; remove it.
tasks.tags.title: "Ta\\u202egs" => tasks.tags.title contains U+202E, a line break or another invisible character
models.tiny.hub: /models/bert => models.tiny.hub is '/models/bert', but should match
models.tiny.hub: my--org/bert => models.tiny.hub is 'my--org/bert', but should match
models.tiny: {hub: a/b, revision: ../../up} => models.tiny.revision is '../../up', but should match
corpora.words.files.train: "{a}.csv" => corpora.words.files.train is '{a}.csv', but should match
corpora.words.files.train: a.xlsx => train: 'a.xlsx' has a format that papa cannot read; save it as .csv
"""
"""An edit of `START` in YAML, and the sentence that refuses it, or a part of it."""


@pytest.mark.parametrize("line", filter(None, REFUSED.splitlines()))
def test_refused(line):
    edit, _, sentence = line.partition(" => ")
    path, _, value = edit.partition(":")
    path = tuple(int(part) if part.isdigit() else part for part in path.split("."))
    assert_refused({path: ABSENT if value == " (absent)" else yaml.safe_load(value)}, sentence)


def assert_refused(changes, sentence):
    with pytest.raises(InputError) as refusal:
        config_of(with_keys(START, changes))
    said = str(refusal.value)
    assert sentence in said
    assert said.isprintable()
    assert said.endswith((".", "?"))


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        (
            {("corpora", "../up"): {"files": {"train": "a.txt"}}},
            "corpora.'../up': '../up' cannot be a name",
        ),
        (
            {"tasks.tags.title": "a\ud800"},
            "tasks.tags.title contains U+D800, a line break or another",
        ),
    ],
)
def test_refused_combinations_and_values_that_are_hard_to_write(changes, sentence):
    assert_refused(changes, sentence)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"# nothing", "The config must be a block of keys, but it is empty"),
        (b"name: \xff", "cannot be read as YAML .*utf-8"),
        (b"name: a\n---\nname: b", "cannot be read as YAML .line 2: expected a single document"),
        (
            b"run:\n\tmodels: [a]",
            "cannot be read as YAML .line 2: it is indented by a tab; use spaces",
        ),
        (
            b"run:\n  models: [a]\n tasks: [b]",
            "line 3: it does not fit the lines above; check their indentation",
        ),
        (
            b"name: mine: yours",
            "line 1: a key needs a colon and a space after it, and a value with a colon",
        ),
        (
            b"name: a\nrun: {}\nname: b",
            "contains the key 'name' twice .*, in lines 1 and 3; keep one",
        ),
        (b"a: &a {b: &b {c: *a}}", "cannot be read as YAML .Circular reference"),
        (
            b"run: {seeds: [1:30]}",
            'contains 1:30 in line 1, which YAML reads as 90; write "1:30" if text is meant',
        ),
        (b"corpora:\n  a: {slots: 020}", "contains 020 in line 2, which YAML reads as 16"),
        (None, r"a.yaml cannot be read \(No such file"),
    ],
)
def test_files_that_are_no_configs(tmp_path, content, said):
    path = tmp_path / "a.yaml"
    if content is not None:
        path.write_bytes(content)
    with input_error(said) as refusal:
        read_config(path)
    assert "\n" not in str(refusal.value)


def test_merged_keys_aliases_and_numbers_as_people_read_them_are_taken(tmp_path):
    numbers = "a: &a [0, -7, 10, 1_000, 0.5, -0.25, 1.0e-3, 0]\nb: [*a, *a, '020', \"1:30\"]\n"
    (tmp_path / "a.yaml").write_text(numbers + "c: &c {x: 1, y: 2}\nd: {<<: *c, x: 3}\n")
    read_yaml(tmp_path / "a.yaml")


def places(value, path=()):
    for key, part in value.items() if isinstance(value, dict) else ():
        yield (*path, key)
        yield from places(part, (*path, key))


WRONG = [
    "",
    " ",
    "a\n",
    "../up",
    "null",
    "1/2",
    "2e-5",
    "\ud800",
    "dеmo",
    "average-of-",
    "cuda:0",
    "published_code",
    0,
    -1,
    3.0,
    0.5,
    math.nan,
    math.inf,
    2**32,
    None,
    True,
    [],
    {},
    [None],
    [[]],
    {"a": None},
    {1: 2},
    ["a", "a"],
    datetime.date(2020, 1, 1),
    b"bytes",
]


@EACH_CONFIG
def test_mutated_configs_pass_or_are_refused_in_one_sentence(path):
    chance = random.Random(path.stem)
    original = yaml.safe_load(path.read_text())
    refused = 0
    paths = list(places(original))
    for _ in range(100):
        *block, last = path = chance.choice(paths)
        key = (*block, chance.choice(["", "x", "a\n", "../up", 1, None, True, last * 2]))
        edits = (
            {path: chance.choice(WRONG)},
            {path: chance.choice(WRONG)},
            {path: ABSENT},
            {key: 1},
            {path: [[]]},
        )
        try:
            config_of(with_keys(original, chance.choice(edits)))
        except InputError as error:
            refused += 1
            assert str(error).isprintable()
            assert str(error).endswith((".", "?"))
            assert len(str(error)) < 1000
    assert refused > 30


@EACH_CONFIG
def test_configs_of_the_project_pass_and_are_written_as_they_were_read(path):
    config = read_config(path)
    assert config.name in (path.stem, "demo")
    for written in (
        config.model_dump(),
        config.model_dump(exclude_none=True),
        config.model_dump(exclude_unset=True),
    ):
        assert Config(**written) == config
    assert Config.model_validate_json(config.model_dump_json(exclude_none=True)) == config


@pytest.mark.parametrize("part", ["orders", "natural"])
def test_parts_of_minilm_have_its_settings(part):
    """So their numbers can be compared with those of minilm.yaml, and share its files."""
    whole, config = (
        read_yaml(REPOSITORY / f"config/{name}.yaml") for name in ("minilm", f"minilm-{part}")
    )
    for block in ("models", "corpora", "tasks"):
        assert config[block].items() <= whole[block].items()


FRACTIONS = [
    ("1/8", "1/8"),
    ("2/16", "1/8"),
    ("0", "0"),
    (0, "0"),
    (1, "1"),
    ("3/3", "1"),
    (0.5, "1/2"),
    ("0.5", "1/2"),
    (0.125, "1/8"),
    ("0/7", "0"),
    (1.0, "1"),
    (0.333, "333/1000"),
]
NO_FRACTIONS = [
    "",
    "a",
    "1/",
    " 1/2",
    "1/2\n",
    "1e0",
    "0.3333",
    1.5,
    1e-9,
    "٢/٣",
    "2",
    "9" * 9,
    None,
    True,
]


@pytest.mark.parametrize("written", ["2e-5", "2E-05", "2.0e-5", "0.00002"])
def test_a_learning_rate_may_be_written_as_people_do(written):
    """YAML reads the first two as text."""
    config = config_of(with_keys(START, {"tasks.tags.learning_rate": yaml.safe_load(written)}))
    assert config.tasks["tags"].learning_rate == 2e-5


def test_fractions():
    for written, expected in FRACTIONS:
        assert fraction(written) == expected
    for written in NO_FRACTIONS:
        with input_error("is not a fraction between 0 and 1"):
            fraction(written)


def test_fidelity_is_the_default_of_what_it_stands_for():
    code = {"fidelity": "published_code"}
    configs = [
        config_of(CONFIG | given)
        for given in ({"fidelity": "paper"}, code, code | {"layout": "paper"})
    ]
    expected = [("paper", False), ("published_code", True), ("paper", True)]
    assert [(config.layout, config.encoder_dropout) for config in configs] == expected


HUB = {"hub": "some/data", "train": "other", "words": "words"}


@pytest.mark.parametrize(
    ("corpus", "kind", "splits", "first"),
    [
        (HUB, "OnHub", ("train", "validation"), None),
        (HUB | {"validation": None}, "OnHub", ("train",), None),
        (HUB | {"validation": ["y", "z"]}, "OnHub", ("train", "validation", "z"), None),
        (
            {"hub": "a/b", "first": "a", "blocks": True, "cluster": 3},
            "OnHub",
            ("train", "validation"),
            "a",
        ),
        (
            {"files": {"train": "a.TXT", "validation": "b.txt[:9]"}},
            "InFiles",
            ("train", "validation"),
            "text",
        ),
        ({"files": {"train": "a.txt"}, "words": "words"}, "InFiles", ("train",), None),
        (
            {"files": {"train": "a.txt"}, "first": "line", "blocks": False},
            "InFiles",
            ("train",),
            "line",
        ),
        ({"files": {"train": "a.txt"}, "blocks": True}, "InFiles", ("train",), "text"),
    ],
)
def test_a_corpus_is_of_the_kind_that_its_keys_choose(corpus, kind, splits, first):
    given = corpus_of(**corpus)
    assert (type(given).__name__, tuple(given.sources), given.first) == (kind, splits, first)
    assert corpus_of(**given.model_dump(exclude_none=True)) == given
    assert type(config_of(with_keys(CONFIG, {"corpora.other": corpus})).corpora["other"]) is type(
        given
    )
