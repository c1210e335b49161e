"""config/README.md describes every key, in the words of the schema."""

import copy

import pytest
import yaml
from tiny import REPOSITORY

from papa.config.reference import keys, table_of_keys, with_keys
from papa.errors import InputError

SCHEMA = yaml.safe_load((REPOSITORY / "workflow/schemas/config.schema.yaml").read_text(encoding="utf-8"))
README = (REPOSITORY / "config/README.md").read_text(encoding="utf-8")


def test_the_page_is_what_the_schema_says():
    assert with_keys(README, SCHEMA) == README, "config/README.md is behind the schema; run `make docs`"


def test_a_page_behind_the_schema_is_noticed():
    edited = copy.deepcopy(SCHEMA)
    edited["properties"]["token_budget"]["default"] = 17
    assert with_keys(README, edited) != README
    assert "| `token_budget` | whole number ≥ 1 | `17` | tokens |" in with_keys(README, edited)


def test_a_page_without_the_marks_is_refused():
    with pytest.raises(InputError, match="lacks the lines"):
        with_keys("# Configs\n", SCHEMA)


def test_each_key_has_a_line_with_its_effect():
    lines = table_of_keys(SCHEMA).splitlines()[2:]
    assert len(lines) == len(list(keys(SCHEMA))) > 80
    for line in lines:
        key, kind, _, _, effect = (cell.strip() for cell in line.strip("|").split("|"))
        assert key.startswith("`") and kind and len(effect) > 10, line


def test_every_number_says_its_unit_or_that_it_has_none():
    def numbers(rules):
        kinds = [rules.get("type")] if isinstance(rules.get("type"), str) else rules.get("type", [])
        return bool({"integer", "number"} & set(kinds)) or ("items" in rules and numbers(rules["items"]))

    without = [key for key, rules, _ in keys(SCHEMA) if numbers(rules) and "unit" not in rules]
    assert not without
    assert not [key for key, rules, _ in keys(SCHEMA) if "unit" in rules and not numbers(rules)]
