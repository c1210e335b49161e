"""The agreement of lists: with scipy, with counts by hand, and with lists whose agreement is known by construction."""

import io
import json
import re
from itertools import product
from pathlib import Path

import numpy as np
import pytest
from builders import head_rows
from rich.console import Console
from scipy.stats import kendalltau, spearmanr
from typer.testing import CliRunner

import papa
from papa.cli import app
from papa.config.artefacts import ARTEFACTS
from papa.files import write_table
from papa.results.agreement import (
    ABOVE,
    BY_CHANCE,
    REPEATED,
    agree,
    named_lists,
    print_agreement,
    save_matrix,
    similarity,
)

PUBLISHED = Path(__file__).parents[1] / "lists"
DUO, LME, NQ = (str(PUBLISHED / f"llama-3.1-8b-{name}") for name in ("duo.tsv", "qr-lme.yaml", "qr-nq.yaml"))
LAYERS, HEADS, INSTANCES = 8, 12, 30


@pytest.fixture(autouse=True)
def few_permutations(monkeypatch):
    monkeypatch.setattr("papa.results.stability.PERMUTATIONS", 99)


def written(folder, name, scores):
    """A file with scores `[layer, head]`, or with instances `[instance, layer, head]`."""
    places = product(range(scores.shape[-2]), range(scores.shape[-1]))
    content = {f"{layer}-{head}": scores[..., layer, head].tolist() for layer, head in places}
    (folder / f"{name}.json").write_text(json.dumps(content))
    return str(folder / f"{name}.json")


def pair(*lists, **options):
    (row,) = agree(lists, **options)["pairs"]
    return row


def test_correlations_are_those_of_scipy_and_common_heads_are_counted():
    chance = np.random.default_rng(0)
    a, b = chance.permutation(20).reshape(4, 5), chance.permutation(20).reshape(4, 5)
    both = set(np.argsort(a.ravel())[-6:]) & set(np.argsort(b.ravel())[-6:])
    expected = kendalltau(a.ravel(), b.ravel()).statistic, spearmanr(a.ravel(), b.ravel()).statistic, len(both) / 6
    assert similarity(a, b, 6) == pytest.approx(expected)


def test_equal_scores_are_as_often_among_the_best_as_in_random_orders():
    a, b = np.array([[3.0, 2, 2, 2, 1, 0]]), np.array([[1.0, 1, 1, 0, 0, 5]])
    chance, common = np.random.default_rng(1), []
    for _ in range(4000):
        best = [set(np.lexsort((chance.random(6), scores[0]))[-3:]) for scores in (a, b)]
        common.append(len(best[0] & best[1]) / 3)
    assert similarity(a, b, 3).overlap == pytest.approx(np.mean(common), abs=0.02)
    assert np.isnan(similarity(a, np.ones((1, 6)), 3).tau)


def test_published_lists_of_one_model_hardly_agree():
    """The two lists of the best 16 heads have three in common, and more than half of them by their layers."""
    row = pair(LME, NQ, shape="32x32")
    assert (row["best"], row["units"], row["unit"], row["instances"]) == (16, 1024, "units", (1, 1))
    assert row["overlap"] == 3 / 16 and 0.1 < row["overlap_chance"] < 0.15 and row["verdict"] == BY_CHANCE
    assert row["tau_low"] is None and row["repetition"] is None


def test_heads_and_groups_are_compared_as_groups(tmp_path):
    row = pair(f"duo={DUO}", NQ, shape="32x32")
    assert (row["a"], row["b"], row["units"], row["unit"]) == ("duo", "llama-3.1-8b-qr-nq", 256, "groups")
    by_head = np.random.default_rng(0).random((32, 32))
    by_group = by_head.reshape(32, 8, 4).max(axis=2)
    (tmp_path / "groups.tsv").write_text("\n".join("\t".join(map(str, scores)) for scores in by_group))
    row = pair(written(tmp_path, "heads", by_head), str(tmp_path / "groups.tsv"))
    assert row["tau"] == pytest.approx(1) and row["overlap"] == 1 and row["best"] == 64


def test_verdicts_are_those_of_lists_with_known_agreement(tmp_path):
    chance = np.random.default_rng(3)
    layers, truth, other = (chance.normal(size=shape) for shape in ((LAYERS, 1), (LAYERS, HEADS), (LAYERS, HEADS)))
    noise = chance.normal(size=(2, INSTANCES, LAYERS, HEADS))
    shuffled = chance.permuted(truth, axis=1)
    lists = {
        "a": 2 * layers + truth + noise[0],
        "again": 2 * layers + truth + noise[1],
        "related": 2 * layers + truth + other,
        "same layers": 2 * layers + shuffled,
    }
    paths = {name: written(tmp_path, name, scores) for name, scores in lists.items()}
    again, related, layers_only = (pair(paths["a"], paths[name]) for name in ("again", "related", "same layers"))
    assert again["verdict"] == REPEATED and again["tau"] > again["repetition"] > 0.7
    assert again["tau_low"] < again["tau"] + 0.02 and again["tau_high"] - again["tau_low"] < 0.2
    assert related["verdict"] == ABOVE and related["chance_high"] < related["tau"] < related["repetition"]
    assert layers_only["verdict"] == BY_CHANCE and layers_only["tau"] > 0.3, "layers are the same"
    (itself,) = (row for row in agree([paths["a"], paths["related"]])["itself"] if row["a"] == "a")
    assert (
        itself["tau"] == pytest.approx(again["repetition"]) and itself["tau_low"] < itself["tau"] < itself["tau_high"]
    )


def test_more_instances_agree_more_and_shrink_the_interval(tmp_path):
    chance = np.random.default_rng(4)
    truth, wide = chance.normal(size=(LAYERS, HEADS)), 3 * chance.normal(size=(200, LAYERS, HEADS))
    reference = written(tmp_path, "reference", truth)
    rows = [pair(reference, written(tmp_path, f"n{number}", (truth + wide)[:number])) for number in (8, 200)]
    assert rows[0]["repetition"] < rows[1]["repetition"] and rows[0]["tau"] < rows[1]["tau"]
    widths = [row["tau_high"] - row["tau_low"] for row in rows]
    assert widths[0] > 2 * widths[1]


def test_no_heading_is_squeezed_on_a_terminal_of_80_columns(tmp_path):
    """All tables fit, and a list's name, a heading and a number stay in one piece."""
    result = agree([LME, NQ, *(written(tmp_path, f"list-number-{n}", np.random.rand(32, 32)) for n in range(4))])
    console = Console(width=80, record=True, file=io.StringIO())
    print_agreement(result, console)
    lines = console.export_text().splitlines()
    assert max(map(len, lines)) <= 80
    cells = {cell for line in lines for cell in re.split("  +", line.strip())}
    row = result["pairs"][0]
    assert {"list", "other list", "common by chance", "verdict", f"{row['overlap']:.0%}"} <= cells
    assert {f"{row['chance_low']:.2f} to {row['chance_high']:.2f}", "as by chance"} <= cells
    assert sum(line.startswith("common by chance") for line in lines) > 1, "transposed, in several parts"


def test_seeds_of_lambda_are_instances(tmp_path):
    chance, about = np.random.default_rng(5), {"model": "m", "task": "t", "constant": "average"}
    for seed in range(3):
        write_table(
            head_rows(chance.random(8), heads=4), tmp_path / ARTEFACTS["lambda"].path(**about, seed=str(seed)), {}
        )
    path = tmp_path / ARTEFACTS["lambda"].path(**about, seed="1")
    other = written(tmp_path, "other", chance.random((2, 4)))
    assert agree([str(path), other])["itself"][0]["instances"] == (3, 3)


def test_wrong_lists_get_one_sentence(tmp_path):
    small = written(tmp_path, "small", np.random.default_rng(0).random((2, 3)))
    sentences = {
        "small lists 2 layers of 3 heads or groups, which does not fit 32 layers of 8; compare lists of": [small, DUO],
        "Two or more lists with different names are needed": [DUO],
        "Two or more lists with different names": [f"a={DUO}", f"a={LME}"],
    }
    for message, lists in sentences.items():
        with pytest.raises(papa.InputError, match=message):
            agree(lists)
    with pytest.raises(papa.InputError, match="'32' is no shape of a model; write LAYERSxHEADS"):
        agree([LME, NQ], shape="32")
    with pytest.raises(papa.InputError, match="The 300 best of 256 units were asked for"):
        agree([f"a={DUO}", f"b={DUO}"], best=300)
    with pytest.raises(papa.InputError, match="end its name in"):
        save_matrix(agree([small, f"again={small}"]), tmp_path / "matrix.pdf")


def test_names_are_short_if_they_differ(tmp_path):
    folder = tmp_path / "lr=0.02"
    folder.mkdir()
    first, second = (written(place, "heads", np.eye(3)) for place in (tmp_path, folder))
    assert [each.name for each in named_lists([first, second])] == [first, second]
    assert [each.name for each in named_lists([first, f"duo={second}"])] == [first, "duo"]
    assert [each.name for each in named_lists([LME, NQ])] == ["llama-3.1-8b-qr-lme", "llama-3.1-8b-qr-nq"]


def test_the_command_prints_draws_and_returns_the_same(tmp_path):
    chance, truth = np.random.default_rng(6), 2 * np.arange(20).reshape(5, 4) % 7
    a, b = (written(tmp_path, name, truth + chance.random((2, 5, 4))) for name in "ab")
    figure, expected = tmp_path / "matrix.svg", agree([a, f"other={b}"])
    shown = CliRunner().invoke(app, ["agree", a, f"other={b}", "--figure", str(figure)])
    tau = f"{expected['pairs'][0]['tau']:.2f}"
    assert shown.exit_code == 0 and "By chance" in shown.stdout and shown.stdout.count(tau) >= 3
    assert figure.read_text().count(f">{tau}<") == 2, "the matrix has both triangles"
    result = json.loads(CliRunner().invoke(app, ["agree", a, f"other={b}", "--json"]).stdout)
    assert result == json.loads(json.dumps(expected))
    wrong = CliRunner().invoke(app, ["agree", a, "nothing.tsv"])
    assert wrong.exit_code == 2 and "nothing.tsv cannot be read" in wrong.output
