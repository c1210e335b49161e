"""The schema and the table of all keys are what the types of the config say."""

import json

import pytest
from typer.testing import CliRunner

from papa.cli import app
from papa.config import reading
from papa.config.reading import README, SCHEMA, documented, key_table, keys, schema, schema_file, with_key_table
from papa.errors import InputError


def test_the_files_are_what_the_types_say():
    assert SCHEMA.read_text(encoding="utf-8") == schema_file(), f"{SCHEMA} is stale; run `make docs`"
    page = README.read_text(encoding="utf-8")
    assert page == with_key_table(page), f"{README} is stale; run `make docs`"


def test_a_page_that_is_stale_is_noticed(monkeypatch):
    edited = json.loads(json.dumps(schema()))
    edited["properties"]["token_budget"]["default"] = 17
    monkeypatch.setattr(reading, "schema", lambda: edited)
    page = README.read_text(encoding="utf-8")
    assert "| `token_budget` | whole number ≥ 1 | `17` | tokens |" in with_key_table(page) != page
    assert SCHEMA.read_text(encoding="utf-8") != schema_file()


def test_a_page_without_the_marks_is_refused():
    with pytest.raises(InputError, match="lacks the lines"):
        with_key_table("# Configs\n")


def test_each_key_has_a_line_with_its_effect():
    lines = key_table().splitlines()[2:]
    assert len(lines) == len(list(keys(schema()))) > 80
    for line in lines:
        key, kind, _, _, effect = (cell.strip() for cell in line.strip("|").split("|"))
        assert key.startswith("`") and kind and len(effect) > 10, line


@pytest.mark.parametrize(
    "line",
    [
        "| `run` | block of keys | required |  |",
        '| `run.constants` | list of text | `["average"]` |  |',
        "| `run.fractions` | list of text or number | required | share of heads |",
        "| `grids.NAME.fractions` | list of text or number |  | share of heads |",
        '| `corpora.NAME.validation` | text or null | `"validation"` |  |',
        "| `corpora.NAME.files.train` | text | required |  |",
        "| `tasks.NAME.learning_rate` | number > 0, ≤ 10 | required | none |",
        "| `patterns.heads` | list of [whole number ≥ 0, whole number ≥ 0] |  | layer, head |",
        "| `encoder_dropout` | true or false |  |  |",
        "| `hub_mirror` | text or null |  |  |",
    ],
)
def test_lines_of_the_table(line):
    assert sum(row.startswith(line) for row in key_table().splitlines()) == 1


def test_every_number_says_its_unit_or_that_it_has_none():
    def number(rules):
        kinds = [*rules.get("anyOf", []), *rules.get("prefixItems", [])]
        kinds += [rules["items"]] if "items" in rules else []
        return rules.get("type") in ("integer", "number") or any(map(number, kinds))

    wrong = [key for key, rules, _ in keys(schema()) if number(rules) != ("unit" in rules)]
    assert not wrong


@pytest.mark.parametrize(
    ("asked", "shown"),
    [
        ("tasks.NAME.metric", ["tasks.NAME.metric"]),
        ("tasks.mood.metric", ["tasks.NAME.metric"]),
        ("metric", ["tasks.NAME.metric"]),
        ("threads", ["threads", "threads.encoder", "threads.probe"]),
        ("seeds", ["run.seeds", "grids.NAME.seeds", "ranking.seeds"]),
    ],
)
def test_a_key_is_explained_as_in_the_table(asked, shown):
    result = CliRunner().invoke(app, ["config", asked])
    lines = result.output.splitlines()
    assert [line.removesuffix(" (required)") for line in lines if not line.startswith(" ")] == shown
    for key in documented(asked):
        assert f"| `{key['key']}` | {key['type']} |" in README.read_text(encoding="utf-8")


def test_all_keys_are_listed_and_fit_the_terminal():
    result = CliRunner().invoke(app, ["config"])
    assert len([line for line in result.output.splitlines() if not line.startswith(" ")]) == len(documented())
    assert max(map(len, result.output.splitlines())) <= 80
    assert len(json.loads(CliRunner().invoke(app, ["config", "--json"]).output)["keys"]) == len(documented())


@pytest.mark.parametrize(("wrong", "meant"), [("task.NAME.metrik", "tasks.NAME.metric"), ("train_limt", "train_limit")])
def test_an_unknown_key_gives_the_closest(wrong, meant):
    result = CliRunner().invoke(app, ["config", wrong])
    assert result.exit_code == 2 and not result.stdout
    assert f"There is no key '{wrong}'; did you mean " in result.stderr and meant in result.stderr
