"""The table of all keys is what the types of the config say."""

import json

import pytest

from papa.config import reading
from papa.config.reading import README, key_table, keys, schema, with_key_table
from papa.errors import InputError


def test_the_table_is_what_the_types_say():
    page = README.read_text(encoding="utf-8")
    assert page == with_key_table(page), f"{README} is stale; run `make docs`"


def test_a_page_that_is_stale_is_noticed(monkeypatch):
    edited = json.loads(json.dumps(schema()))
    edited["properties"]["token_budget"]["default"] = 17
    monkeypatch.setattr(reading, "schema", lambda: edited)
    page = README.read_text(encoding="utf-8")
    assert "| `token_budget` | whole number ≥ 1 | `17` | tokens |" in with_key_table(page) != page


def test_a_page_without_the_marks_is_refused():
    with pytest.raises(InputError, match="lacks the lines"):
        with_key_table("# Configs\n")


def test_each_key_has_a_line_with_its_effect():
    lines = key_table().splitlines()[2:]
    assert len(lines) == len(list(keys(schema()))) > 40
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
        '| `corpora.NAME.validation` | text or list of text | `["validation"]` |  |',
        "| `corpora.NAME.files.train` | text | required |  |",
        "| `tasks.NAME.learning_rate` | number > 0, ≤ 10 | required | none |",
        "| `patterns.heads` | list of [whole number ≥ 0, whole number ≥ 0] |  | layer, head |",
        "| `layout` | `paper`, `published_code`, `natural` |  |  |",
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
