"""Patterns of heads against matrices made by hand, whose pattern and numbers are known."""

from pathlib import Path
from typing import Any

import jobs
import pyarrow as pa
import pytest
import torch
from builders import analysis_job

import papa
from papa.data.tokens import Tokens
from papa.files import digest_of, provenance_of, read_table, trace_of, write_table
from papa.method.patterns import COLUMNS, measure_patterns, special_slots
from papa.results.analysis import analyse

N, TIMES = 13, 7
SPECIAL = [0, N - 1]
EVERY = [list(range(N))]


def averages(*heads: torch.Tensor, examples: list[list[int]] = EVERY, layers: int = 1) -> papa.Constants:
    """Averages of `heads`, restricted to the slots of an example and normalised, over `TIMES` copies of each."""
    total, count = torch.zeros(len(heads), N, N, dtype=torch.double), torch.zeros(N, N, dtype=torch.long)
    for slots in examples:
        here = torch.tensor(slots)
        count[here[:, None], here] += TIMES
        for number, head in enumerate(heads):
            part = head.double()[here[:, None], here]
            total[number][here[:, None], here] += TIMES * part / part.sum(1, keepdim=True).clamp(min=1e-300)
    return papa.Constants(total.view(layers, -1, N, N), count, TIMES * len(examples))


def shifted(offset: int) -> torch.Tensor:
    """Every query reads `offset` slots back, a little everywhere else; specials read themselves."""
    head = torch.full((N, N), 1e-9)
    for query in range(N):
        key = query - offset
        head[query, key if 0 <= key < N else query] = 1
    return head


def column(*keys: int) -> torch.Tensor:
    head = torch.full((N, N), 1e-9)
    head[:, list(keys)] = 1
    return head


MIXED = 0.8 * column(N - 1) + 0.2 * shifted(1)
FEW = torch.zeros(N, N)
FEW[[0, 1, N - 1], 1] = 1
FEW[2, N - 1] = 1


def patterns_of(head: torch.Tensor, examples: list[list[int]] = EVERY) -> dict[str, Any]:
    """The patterns of the only head; `flags` are those that it has."""
    [row] = measure_patterns(averages(head, examples=examples), SPECIAL)
    return row | {"flags": flags(row)}


def flags(row: dict[str, Any]) -> list[str]:
    return [name for name in ("diagonal", "mostly_special", "concentrated") if row[name]]


def test_a_band_has_an_offset_and_layers_and_heads_keep_their_places():
    rows = measure_patterns(averages(*(shifted(offset) for offset in (-2, -1, 0, 1, 2, 0)), layers=2), SPECIAL)
    places = [(row["layer"], row["head"], row["offset"]) for row in rows]
    assert places == [(0, 0, -2), (0, 1, -1), (0, 2, 0), (1, 0, 1), (1, 1, 2), (1, 2, 0)]
    for row in rows:
        assert flags(row) == ["diagonal", "concentrated"] and row["dominant_rows"] == 1
        # 11 text keys; the rows that look outside of the text have no key on the band, and do not count
        assert (row["diagonal_mass"], row["diagonal_lift"]) == pytest.approx((1, N - 2), rel=1e-6)


RARE = [[0, 1, 2, N - 1], [0, 1, N - 1], [0, 1, N - 1]]


@pytest.mark.parametrize(
    ("head", "examples", "expected"),
    [
        (torch.ones(N, N), EVERY, {"flags": [], "offset": 0, "diagonal_lift": 1.0, "special_mass": 2 / N}),
        (torch.ones(N, N), [SPECIAL], {"offset": None, "diagonal_lift": None, "diagonal_mass": None}),
        # a head can be diagonal in what the separator leaves
        (MIXED, EVERY, {"flags": ["diagonal", "mostly_special", "concentrated"], "diagonal_mass": 0.2}),
        (column(0), EVERY, {"flags": ["mostly_special", "concentrated"], "first_mass": 1.0}),
        (column(0, N - 1), EVERY, {"flags": ["mostly_special"], "special_mass": 1.0}),  # halves: no entry dominates
        (column(5), EVERY, {"flags": ["concentrated"]}),  # one column is no diagonal
        # slots 0, 1 and 12 in both examples, 2 in one: mass on special keys is 1 in row 2 and 0 in the others
        (FEW, RARE[1::-1], {"special_mass": 1 / 7, "separator_mass": 1 / 7, "dominant_rows": 1, "concentrated": True}),
        # C[q,2] is 1 wherever slot 2 is used at all, but only one example in three uses it: rows 0, 1 and 12 spend a
        # third there, and thirds of the rest on each of their slots; row 2 spends all: 1 of 10
        (column(2), RARE, {"dominant_rows": 1 / 10}),
        # slot 3 has no neighbour in the second example, which does not count
        (shifted(1), [[0, 1, 2, 3, N - 1], [0, 1, 3, N - 1]], {"offset": 1, "diagonal_mass": 1.0}),
    ],
)
def test_numbers_are_those_by_hand(head, examples, expected):
    row = patterns_of(head, examples)
    for name, value in expected.items():
        assert row[name] == (pytest.approx(value) if isinstance(value, float) else value), name
    lengths = [[*range(m), N - 1] for m in range(2, N)]
    assert patterns_of(torch.ones(N, N), lengths)["diagonal_lift"] < 1.2


@pytest.mark.parametrize(
    ("special", "examples", "message"),
    [
        ([], [[0, 1, 12]], "give each once"),
        ([0, 11], [[0, 1, 12]], r"slots are \[0, 11\].*\(3 of 13, from 0 to 12\)"),
        (SPECIAL, [], "over no token"),
    ],
)
def test_wrong_special_slots_and_constants_of_nothing_are_refused(special, examples, message):
    with pytest.raises(papa.InputError, match=message):
        measure_patterns(averages(torch.ones(N, N), examples=examples), special)


@pytest.fixture
def corpus(tmp_path, model, tokenizer, place_tiny):
    """Lay out texts that all begin alike, single ones or pairs, and return the path of the tokens."""
    tiny = place_tiny(model, tokenizer)

    def lay_out(**columns):
        size = len(columns["first"])
        table = pa.table({"split": ["train"] * (size - 1) + ["validation"], "row": range(size), **columns})
        write_table(table, tmp_path / "texts.parquet", {"fingerprint": "f", "rows": {}, "rows_available": {}})
        return jobs.lay_out(tiny, tmp_path, N)

    return lay_out


def test_two_separators_between_texts():
    """As RoBERTa has them; a text may hold a separator's id too, and all second texts may begin alike."""
    start, end, word = 0, 2, 7
    slots = [[0, 1, 6, 7, 8, 9, 12], [0, 1, 2, 3, 6, 7, 8, 9, 12], [0, 1, 6, 7, 8, 12]]
    ids = [[start, 5, end, end, word, 9, end], [start, 5, 6, end, end, end, word, end, end]]
    ids += [[start, 5, end, end, word, end]]
    lists = {name: pa.array(rows, pa.list_(pa.int32())) for name, rows in (("ids", ids), ("slots", slots))}
    table = pa.table(lists | {"segments": lists["ids"], "cut": pa.array([0] * 3, pa.int32())})
    assert special_slots(Tokens.of_table(table, "train", 0, {"slots": N})) == [0, 6, 7, 12]


def test_the_table_its_sentence_and_the_pictures(corpus, tmp_path):
    constants = averages(shifted(1), column(12), torch.ones(N, N), column(5), shifted(0))
    constants.about = {"model": "tiny", "corpus": "f", "style": "paper", "slots": "13"}
    constants.save(tmp_path / "average.h5")
    inputs = {"constants": tmp_path / "average.h5", "tokens": corpus(first=["a b", "a c d", "a"])}
    job = analysis_job("patterns", {"heads": [[0, 4]]}, inputs, tmp_path / "patterns", drawn=True)
    assert analyse(job) == "5 heads: 40 % diagonal, 20 % mostly on special tokens, 80 % with one dominant entry per row"
    table = read_table(job.output("table"))
    assert table.column_names == list(COLUMNS) and table.num_rows == 5
    about = provenance_of(table)
    assert about["special"] == [0, 12] and about["constants"]["model"] == "tiny" and about["examples"] == TIMES
    assert about["thresholds"]["diagonal_lift"] == 2
    trace = trace_of(job.output("table"))
    assert trace is not None and trace.inputs["constants"] == digest_of(job.input("constants"))
    assert "| 0 | 0 | 1 | 11.00 | 1.00 |" in Path(job.output("markdown")).read_text(encoding="utf-8")
    assert ">layer 0, head 4<" in Path(job.output("svg")).read_text(encoding="utf-8")
    for file in tmp_path.glob("patterns.*"):
        file.unlink()
    constants.about |= {"corpus": "other"}
    constants.save(tmp_path / "average.h5")
    with pytest.raises(papa.InputError, match=r"with corpus other, but .*tokens\.parquet has f"):
        analyse(job)
    assert not list(tmp_path.glob("patterns.*"))
