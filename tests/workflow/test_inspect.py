"""`papa inspect` on everything that a workflow leaves: known, whole, and damaged in all ways."""

import json

import pytest
from test_damage import AVERAGE, CORPUS, HIDDEN, KINDS, LABELS, RESULTS, RUN, TABLES, TASK, TOKENS, damages, folder
from typer.testing import CliRunner

from papa.cli import app
from papa.files import MEND, is_sealed
from papa.jobs.inspecting.places import kind_at

pytestmark = pytest.mark.usefixtures(folder.__name__)

PROBE = RUN.with_suffix(".safetensors")
PATTERNS = CORPUS / "patterns.parquet"


def inspect(*arguments, code=0):
    result = CliRunner().invoke(app, ["inspect", *map(str, arguments)])
    assert result.exit_code == code, result.output
    return result


def content_of(path, *options, code=0):
    return json.loads(inspect(path, *options, "--json", code=code).stdout)


def test_every_file_is_of_a_known_kind_and_whole():
    """A new kind of artefact belongs into `papa.jobs.inspecting.places`."""
    kinds = set()
    for path in sorted(path for path in RESULTS.rglob("*") if path.is_file()):
        known = kind_at(path.relative_to(RESULTS).as_posix())
        assert known is not None, path
        kind, of = known
        assert kind.sealed == is_sealed(path), path
        found = content_of(path)
        assert found["kind"] == kind.name and found["words"] == kind.words
        assert found["whole"] is (True if kind.sealed or path.suffix == ".hidden" else None), path
        assert found["place"] == path.relative_to(RESULTS).as_posix() and found["bytes"] == path.stat().st_size
        if "model" in of:
            assert found["of"]["model"] == "tiny"
        assert "Damaged" not in inspect(path).stdout
        kinds.add(kind.name)
    assert kinds >= {
        *("texts", "labels", "tokens", "averages", "patterns", "lambda", "order", "hidden", "index", "run", "tensors"),
        *("runs", "summary", "grid", "score_and_drop", "page", "figure", "benchmark", "log"),
    }


@pytest.mark.parametrize("kind", KINDS)
def test_damage_is_said(kind):
    path = KINDS[kind][0]
    whole = path.read_bytes()
    try:
        for what, content in damages(kind).items():
            path.write_bytes(content)
            found = content_of(path, code=1)
            assert found["whole"] is False and not found["content"], what
            assert str(path) in found["damage"] and MEND in found["damage"], what
            assert "\n" not in found["damage"], what
        said = " ".join(inspect(path, code=1).stdout.split())
        assert MEND in said and "Traceback" not in said
    finally:
        path.write_bytes(whole)


@pytest.mark.parametrize("path", [PROBE, PATTERNS])
def test_damage_of_what_no_stage_reads_is_said(path):
    whole = path.read_bytes()
    for content in (whole[:-1], whole[:200] + b"?" + whole[201:], b""):
        path.write_bytes(content)
        try:
            assert MEND in content_of(path, code=1)["damage"]
        finally:
            path.write_bytes(whole)


def test_hidden_states_without_their_tokens_are_held_against_their_index():
    tokens, hidden = TOKENS.read_bytes(), HIDDEN.read_bytes()
    try:
        TOKENS.unlink()
        assert content_of(HIDDEN)["whole"] is True
        HIDDEN.write_bytes(hidden[:-3] + b"???")
        assert "is damaged or of other hidden states" in content_of(HIDDEN, code=1)["damage"]
        HIDDEN.write_bytes(hidden)
        index = HIDDEN.with_suffix(".json")
        content = index.read_bytes()
        index.unlink()
        assert "has no 1of1.json beside it" in content_of(HIDDEN, code=1)["damage"]
        index.write_bytes(content)
    finally:
        TOKENS.write_bytes(tokens)
        HIDDEN.write_bytes(hidden)


def test_what_it_is_of_and_where_it_came_from():
    found = content_of(TASK / "runs/average/lambda/kept-1of2/seed-1.json")
    assert found["of"] == {
        **{"model": "tiny", "task": "animals", "seed": "1"},
        **{"constant": "average", "order": "lambda", "fraction": "1/2"},
    }
    assert found["provenance"]["slots"] == 13 and found["provenance"]["papa_version"]
    assert found["content"]["facts"]["heads"] == "2 of 4 input-dependent"
    assert len(found["content"]["tables"][0]["rows"]) == 1  # an epoch
    assert content_of(CORPUS / "slots-17/tokens.parquet")["of"] == {"model": "tiny", "corpus": "sentences", "slots": 17}
    counted = content_of(LABELS)["content"]["tables"][0]
    assert counted["columns"] == ["label", "train", "validation"]
    assert counted["rows"] == [["0", 12, 6], ["1", 12, 6]]
    summary = content_of(TABLES / "summary.parquet")["content"]
    assert summary["facts"]["rows"] == summary["tables"][0]["total"] > len(summary["tables"][0]["rows"])


def test_a_file_elsewhere_says_where_it_belongs(tmp_path):
    for path in (AVERAGE, RUN, TABLES / "summary.parquet", PROBE):
        moved = tmp_path / f"moved{path.suffix}"
        moved.write_bytes(path.read_bytes())
        found, there = content_of(moved), content_of(path)
        differ = {name for name in found if found[name] != there[name]}
        # beside averages lie the tokens that say which slots are special
        assert differ == ({"path", "content"} if path == AVERAGE else {"path"})
        moved.write_bytes(path.read_bytes()[:-1] + b"?")
        assert content_of(moved, code=1)["whole"] is False


def test_heads_are_chosen():
    shown = content_of(AVERAGE)["content"]
    peaks = shown["heads"]["values"]
    [sharpest] = shown["pictures"]
    assert peaks[sharpest["layer"]][sharpest["head"]] == max(map(max, peaks))
    assert sharpest["special"] == [0, 12]
    rows = sharpest["values"]
    assert len(rows) == len(sharpest["slots"]) and all(len(row) == len(rows) for row in rows)

    def heads(*options):
        pictures = content_of(AVERAGE, *options)["content"]["pictures"]
        return [(picture["layer"], picture["head"]) for picture in pictures]

    assert heads("--layer", 1) == [(1, 0), (1, 1)] and heads("--head", 1) == [(0, 1), (1, 1)]
    assert heads("--layer", 1, "--head", 0) == [(1, 0)]
    drawn = inspect(AVERAGE, "--layer", 1).stdout
    assert "layer 1, head 0: 0 to 0." in drawn and "layer 1, head 1: 0 to 0." in drawn and "\x1b" not in drawn
    assert "no layer 2; layers are 0 to 1" in inspect(AVERAGE, "--layer", 2, code=2).stderr
    assert "has no heads to choose from" in inspect(RUN, "--head", 0, code=2).stderr
