"""Outcomes of runs are put beside labels and subsets, and floors and scores are read off them as by hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from papa.config.measures import MEASURES
from papa.errors import DamagedArtefact
from papa.files import Trace, write_table
from papa.results.losses import losses_of
from papa.results.outcomes import ALL, FLOOR, ORIGINALS, TaskOutcomes, assembled
from papa.results.stability import stability_of, tables_of

TRACE = Trace("probe", 1, {}, {})
NAMES = ["O", "B-X", "I-X"]
WORDS = {"example": [0, 0, 0, 2, 2], "word": [0, 1, 2, 0, 1], "gold": [0, 1, 2, 1, 0]}
"""Two sentences of the validation split with labelled words; the sentence between them has none."""


def run_of(seed: int, fraction: str = "1", **other: Any) -> dict[str, Any]:
    constant = None if fraction == "1" else "average"
    return {"model": "m", "task": "t", "constant": constant, "order": None, "fraction": fraction, "seed": seed} | other


def write_outcomes(path: Path, run: dict[str, Any], columns: dict[str, list[int]], corpus: str = "c") -> Path:
    size = len(columns["example"])
    table = pa.table({"seed": [run["seed"]] * size, "split": ["validation"] * size} | columns)
    write_table(table, path, run | {"weights": "w", "corpus": corpus, "label_names": NAMES}, TRACE)
    return path


def write_beside(path: Path, column: str, values: list[Any], corpus: str = "c", **facts: Any) -> Path:
    """Two training rows, of one and two words, and the three validation rows."""
    splits = ["train"] * 2 + ["validation"] * 3
    table = pa.table({"split": splits, "row": [0, 1, 0, 1, 2], column: values})
    write_table(table, path, {"fingerprint": corpus} | facts, TRACE)
    return path


@pytest.fixture
def words(tmp_path: Path) -> TaskOutcomes:
    runs = []
    for seed, predicted in ((1, [0, 1, 2, 1, 0]), (2, [0, 1, 0, 1, 1])):
        path = write_outcomes(tmp_path / f"{seed}.parquet", run_of(seed), WORDS | {"predicted": predicted})
        runs.append((run_of(seed), path))
    tagged = [[0], [0, 1], [0, 1, 1], [0], [1, 1]]
    labels = write_beside(tmp_path / "l.parquet", "by_word", tagged, label_names=NAMES, train_counts=[5, 2, 1])
    marks = [[""], ["", ""], ["new", "", "new"], [""], ["", "new"]]
    subsets = write_beside(tmp_path / "s.parquet", "subset", marks)
    [found] = assembled(runs, {"t": "entity_f1"}, {"t": labels}, {"t": subsets})
    return found


def test_words_get_their_own_marks_and_labels(words: TaskOutcomes) -> None:
    assert words.items["by_word"].tolist() == [0, 1, 1, 1, 1]
    assert words.items["subset"].tolist() == ["new", "", "new", "", "new"]
    assert {name: part.tolist() for name, part in words.subsets().items()} == {
        ALL: [True] * 5,
        "new": [True, False, True, False, True],
    }
    assert words.examples(words.subsets()["new"]) == 2
    assert (words.names, words.train_counts) == (tuple(NAMES), (5, 2, 1))


def test_scores_and_floors_are_those_by_hand(words: TaskOutcomes) -> None:
    sample = words.sample("entity_f1", words.subsets()[ALL])
    # gold: an entity of two words and one of one word; the second run finds a shorter one, a right and a wrong one
    assert sample.scores.tolist() == [1.0, pytest.approx(2 * 1 / (3 + 2))]
    assert sample.trivial == 0.0, "no entities at all"
    assert sample.by_word == pytest.approx(MEASURES["entity_f1"].score(np.array([1, 4, 2])))
    accuracy = words.sample("token_accuracy", words.subsets()[ALL])
    assert (accuracy.trivial, accuracy.by_word) == (0.4, 0.6)
    assert sample.counts.shape == (2, 2, 3), "two runs, two sentences with words"


def test_for_f1_everything_is_called_positive() -> None:
    items = pd.DataFrame({"split": "validation", "example": range(4), "gold": [0, 0, 0, 1]})
    runs = pd.DataFrame([run_of(1)])[["constant", "order", "fraction", "seed"]].astype(object)
    found = TaskOutcomes("m", "t", "f1", ("no", "yes"), (9, 1), runs, items, {"predicted": np.zeros((1, 4), int)})
    assert found.sample("f1", found.subsets()[ALL]).trivial == pytest.approx(2 * 1 / (4 + 1))
    assert found.sample("accuracy", found.subsets()[ALL]).trivial == 0.75


def test_losses_have_texts_as_units() -> None:
    texts = 40
    tokens = np.arange(texts) % 4
    items = pd.DataFrame({"split": "validation", "example": range(texts), "tokens": tokens, "trivial": 4.0 * tokens})
    settings = {ORIGINALS: 1.0, FLOOR: 3.0, ("average", None, "0"): 2.0}
    told = [dict(zip(("constant", "order", "fraction"), own, strict=True)) for own in settings]
    runs = pd.DataFrame([own | {"seed": seed} for own in told for seed in (1, 2, 3)]).astype(object)
    wave = 0.01 * np.cos(np.arange(texts))
    values = np.stack([tokens * (loss + wave + 0.001 * seed) for loss in settings.values() for seed in range(3)])
    metric = "negative_log_perplexity"
    found = TaskOutcomes("m", "t", metric, (), (), runs, items, {"loss": values})
    sample = found.sample(metric, found.subsets()[ALL])
    assert sample.scores[0] == pytest.approx(-values[0].sum() / tokens.sum()) and sample.trivial == -4.0
    assert sample.values.shape == (9, 30), "texts without a masked token count nothing"
    rows = losses_of([found])
    own = rows[rows["constant"] == "average"].iloc[0]
    assert own["loss"] == pytest.approx(0.5) and own["loss_low"] < 0.5 < own["loss_high"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"seed": 7}, "the outcomes of another run"),
        ({"example": [0, 0, 0, 2, 1]}, "outcomes of other examples than"),
        ({"corpus": "other"}, "was made from other texts than these outcomes"),
    ],
)
def test_what_does_not_belong_together_is_refused(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    predicted = {"predicted": [0] * 5}
    first = write_outcomes(tmp_path / "1.parquet", run_of(1), WORDS | predicted, change.get("corpus", "c"))
    own = run_of(change.get("seed", 2))
    columns = WORDS | predicted | {name: change[name] for name in change if name == "example"}
    second = write_outcomes(tmp_path / "2.parquet", own, columns)
    labels = write_beside(tmp_path / "l.parquet", "by_word", [[0]] * 5, label_names=NAMES, train_counts=[1, 1, 1])
    with pytest.raises(DamagedArtefact, match=message):
        assembled([(run_of(1), first), (run_of(2), second)], {"t": "entity_f1"}, {"t": labels}, {})


def test_orders_are_compared_by_rank(tmp_path: Path) -> None:
    def write(name: str, values: list[float]) -> str:
        rows = [{"epoch": 1, "layer": 0, "head": head, "value": 0.0} for head in range(4)]
        rows += [{"epoch": 2, "layer": 0, "head": head, "value": value} for head, value in enumerate(values)]
        write_table(pa.Table.from_pylist(rows), tmp_path / name, {}, TRACE)
        return str(tmp_path / name)

    owner = {"model": "m", "task": "t", "title": "Tags", "constant": "average", "order": "lambda"}
    learned = pd.DataFrame(
        [
            owner | {"seed": "0", "part": None, "path": write("a", [0.1, 0.2, 0.3, 0.4])},
            owner | {"seed": "1", "part": None, "path": write("b", [0.2, 0.1, 0.3, 0.4])},
            owner | {"seed": "0", "part": "1of2", "path": write("c", [0.4, 0.3, 0.2, 0.1])},
            owner | {"seed": "0", "part": "2of2", "path": write("d", [0.1, 0.2, 0.3, 0.4])},
        ]
    )
    found = stability_of(learned, ("1/2",))
    [table] = tables_of(found)
    assert {line[0] for line in table.lines} == {"Tags"}, "tasks are called by their titles"
    rows = found.set_index("a")
    assert set(found["between"]) == {"seeds", "halves"}
    assert rows.loc["seed 0", "tau"] == pytest.approx((5 - 1) / 6) and rows.loc["seed 0", "overlap"] == 1.0
    half = rows.loc["half 1, seed 0"]
    assert (half["tau"], half["overlap"], half["by_chance"]) == (-1.0, 0.0, 0.5)


def test_weights_are_compared_seed_by_seed_and_task_by_task(tmp_path: Path) -> None:
    def write(name: str, values: list[float]) -> str:
        rows = [{"epoch": 1, "layer": 0, "head": head, "value": value} for head, value in enumerate(values)]
        write_table(pa.Table.from_pylist(rows), tmp_path / name, {}, TRACE)
        return str(tmp_path / name)

    up, down, swapped = [0.1, 0.2, 0.3, 0.4], [4.0, 3.0, 2.0, 1.0], [0.2, 0.1, 0.3, 0.4]
    owner = {"model": "m", "task": "t", "title": "Tags", "constant": "average"}
    other = owner | {"task": "u", "title": "Types"}
    learned = pd.DataFrame(
        [
            owner | {"order": "lambda", "seed": "0", "path": write("a", up)},
            owner | {"order": "lambda", "seed": "1", "path": write("b", down)},
            owner | {"order": "gradient", "seed": "0", "path": write("c", down)},
            owner | {"order": "gradient", "seed": "1", "path": write("d", swapped)},
            owner | {"order": "variance", "path": write("e", up)},
            other | {"order": "variance", "path": write("f", swapped)},
            other | {"order": "lambda", "seed": "0", "path": write("g", swapped)},
        ]
    )
    found = stability_of(learned, ("1/2",))
    near = pytest.approx
    taus = found.fillna({"seed": ""}).set_index(["between", "a", "b", "seed"])["tau"].to_dict()
    assert taus["orders", "lambda", "gradient", "0"] == near(-1)
    assert taus["orders", "lambda", "gradient", "1"] == near(-(5 - 1) / 6)
    assert taus["tasks", "Tags", "Types", ""] == taus["tasks", "Tags", "Types", "0"] == near((5 - 1) / 6)
    orders = found[found["between"].eq("orders") & found["task"].eq("t")]
    assert len(orders) == 2 + 2 + 2, "seeds meet their own, and what has no seed meets all"
    assert len(found[found["between"].eq("seeds")]) == 2
    tables = {table.title: table.lines for table in tables_of(found)}
    assert list(tables) == ["Seeds and halves", "Orders", "Tasks"]
    one = next(line for line in tables["Orders"] if line[0] == "Tags" and line[4] == "λ and gradient")
    assert one[5] == "-0.83 (-1.00 to -0.67)"
    assert [line[3:5] for line in tables["Tasks"]] == [["λ", "Tags and Types"], ["variance", "Tags and Types"]]
