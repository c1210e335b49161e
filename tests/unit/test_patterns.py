"""Patterns of heads against matrices made by hand, whose pattern and numbers are known."""

import pyarrow as pa
import pytest
import torch
from refusals import input_error

import papa
from papa.data.tokens import Tokens
from papa.files import write_table
from papa.results.attention_patterns import COLUMNS, measure_patterns, special_slots
from papa.results.attention_patterns import patterns_of as section_of
from papa.results.table import arrow_of
from papa.stages import Average, Job, Tokenize

N = 13
LAST = N - 1
TIMES = 7
SPECIAL = [0, LAST]
EVERY = [list(range(N))]


def averages(*heads, examples=EVERY, layers=1):
    """Averages of `heads`, restricted to the slots of an example and normalised, over `TIMES` copies of each."""
    total = torch.zeros(len(heads), N, N, dtype=torch.double)
    count = torch.zeros(N, N, dtype=torch.long)
    for slots in examples:
        here = torch.tensor(slots)
        pairs = here[:, None], here
        count[pairs] += TIMES
        for number, head in enumerate(heads):
            part = head.double()[pairs]
            row_sums = part.sum(1, keepdim=True)
            total[number][pairs] += TIMES * part / row_sums.clamp(min=1e-300)
    return papa.Constants(total.view(layers, -1, N, N), count, TIMES * len(examples))


def shifted(offset):
    """Every query reads `offset` slots back, a little everywhere else; specials read themselves."""
    head = torch.full((N, N), 1e-9)
    for query in range(N):
        key = query - offset
        head[query, key if 0 <= key < N else query] = 1
    return head


def column(*keys):
    head = torch.full((N, N), 1e-9)
    head[:, list(keys)] = 1
    return head


FEW = torch.zeros(N, N)
FEW[[0, 1, LAST], 1] = 1
FEW[2, LAST] = 1


def patterns_of(head, examples=EVERY):
    """The patterns of the only head; `flags` are those that it has."""
    [row] = measure_patterns(averages(head, examples=examples), SPECIAL)
    return row | {"flags": flags(row)}


def flags(row):
    return [name for name in ("diagonal", "mostly_special", "concentrated") if row[name]]


def test_a_band_has_an_offset_and_layers_and_heads_keep_their_places():
    rows = measure_patterns(
        averages(*(shifted(offset) for offset in (-2, -1, 0, 1, 2, 0)), layers=2), SPECIAL
    )
    places = [(row["layer"], row["head"], row["offset"]) for row in rows]
    assert places == [(0, 0, -2), (0, 1, -1), (0, 2, 0), (1, 0, 1), (1, 1, 2), (1, 2, 0)]
    for row in rows:
        assert flags(row) == ["diagonal", "concentrated"]
        assert row["dominant_rows"] == 1
        # 11 text keys; the rows that look outside of the text have no key on the band, and do not count
        assert (row["diagonal_mass"], row["diagonal_lift"]) == pytest.approx((1, N - 2), rel=1e-6)


RARE = [[0, 1, 2, LAST], [0, 1, LAST], [0, 1, LAST]]


@pytest.mark.parametrize(
    ("head", "examples", "expected"),
    [
        (
            torch.ones(N, N),
            EVERY,
            {"flags": [], "offset": 0, "diagonal_lift": 1.0, "special_mass": 2 / N},
        ),
        (
            torch.ones(N, N),
            [SPECIAL],
            {"offset": None, "diagonal_lift": None, "diagonal_mass": None},
        ),
        # a head can be diagonal in what the separator leaves
        (
            0.8 * column(LAST) + 0.2 * shifted(1),
            EVERY,
            {"flags": ["diagonal", "mostly_special", "concentrated"], "diagonal_mass": 0.2},
        ),
        (column(0), EVERY, {"flags": ["mostly_special", "concentrated"], "first_mass": 1.0}),
        (
            column(0, LAST),
            EVERY,
            {"flags": ["mostly_special"], "special_mass": 1.0},
        ),  # halves: no entry dominates
        (column(5), EVERY, {"flags": ["concentrated"]}),  # one column is no diagonal
        # slots 0, 1 and 12 in both examples, 2 in one: mass on special keys is 1 in row 2 and 0 in the others
        (
            FEW,
            RARE[1::-1],
            {
                "special_mass": 1 / 7,
                "separator_mass": 1 / 7,
                "dominant_rows": 1,
                "concentrated": True,
            },
        ),
        # C[q,2] is 1 wherever slot 2 is used at all, but only one example in three uses it: rows 0, 1 and 12 spend a
        # third there, and thirds of the rest on each of their slots; row 2 spends all: 1 of 10
        (column(2), RARE, {"dominant_rows": 1 / 10}),
        # slot 3 has no neighbour in the second example, which does not count
        (shifted(1), [[0, 1, 2, 3, LAST], [0, 1, 3, LAST]], {"offset": 1, "diagonal_mass": 1.0}),
    ],
)
def test_numbers_are_those_by_hand(head, examples, expected):
    row = patterns_of(head, examples)
    for name, value in expected.items():
        assert row[name] == (pytest.approx(value) if isinstance(value, float) else value), name
    lengths = [[*range(m), LAST] for m in range(2, N)]
    assert patterns_of(torch.ones(N, N), lengths)["diagonal_lift"] < 1.2


@pytest.mark.parametrize(
    ("special", "examples", "message"),
    [
        ([0, 0], [[0, 1, 12]], "give each once"),
        ([0, 11], [[0, 1, 12]], r"slots are \[0, 11\].*\(3 of 13, from 0 to 12\)"),
        (SPECIAL, [], "over no token"),
    ],
)
def test_wrong_special_slots_and_constants_of_nothing_are_refused(special, examples, message):
    with input_error(message):
        measure_patterns(averages(torch.ones(N, N), examples=examples), special)


def test_the_last_token_of_a_full_block_of_a_decoder_is_not_special():
    table = pa.table(
        {
            "ids": [[0, 5, 6, 5], [0, 6, 5, 6]],
            "slots": [[0, 1, 2, 3]] * 2,
            "segments": [[0] * 4] * 2,
            "cut": [0] * 2,
        }
    )
    assert special_slots(Tokens.of_table(table, "train", 0, 4)) == [0]


def test_two_separators_between_texts():
    """As RoBERTa has them; a text may hold a separator's id too, and all second texts may begin alike."""
    start = 0
    end = 2
    word = 7
    slots = [[0, 1, 6, 7, 8, 9, 12], [0, 1, 2, 3, 6, 7, 8, 9, 12], [0, 1, 6, 7, 8, 12]]
    ids = [
        [start, 5, end, end, word, 9, end],
        [start, 5, 6, end, end, end, word, end, end],
        [start, 5, end, end, word, end],
    ]
    table = pa.table({"ids": ids, "slots": slots, "segments": ids, "cut": [0] * 3})
    assert special_slots(Tokens.of_table(table, "train", 0, N)) == [0, 6, 7, 12]


def test_the_table_its_sentence_and_the_pictures(tmp_path):
    names = {"model": "tiny", "corpus": "texts"}
    tokens = f"{tmp_path}/tokens.parquet"
    path = f"{tmp_path}/average.h5"
    job = Job(Average(), Average().record({}), {"tokens": tokens}, path, names)
    averages(shifted(1), column(12), torch.ones(N, N), column(5), shifted(0)).save(path, job.record)
    lists = dict.fromkeys(("ids", "slots", "segments"), [[0, 1, 12]] * 2)
    columns = {"split": ["train"] * 2, "row": [0, 1], **lists, "cut": [0, 0]}
    record = Tokenize(slots=N, layout="paper").record({})
    write_table(pa.table(columns), tokens, {"slots": N, "rows": {"train": 2}}, record)
    section = section_of(job, [(0, 4)])
    words = (
        "5 heads: 40% diagonal, 20% mostly on special tokens, 80% with one dominant entry per row"
    )
    assert section.alternative.endswith(words)
    assert section.name == "patterns-tiny-texts"
    table = arrow_of(section.frame, section.columns)
    assert table.column_names == list(COLUMNS)
    assert table.num_rows == 5
    assert section.facts["special"] == [0, 12]
    assert section.facts["examples"] == TIMES
    assert "| 0 | 0 | 1 | 11.00 | 1.00 |" in section.tables[1].markdown()
    (picture,) = section.chart.to_dict()["concat"]
    assert picture["title"] == "layer 0, head 4"
    (picture,) = section_of(job).chart.to_dict()["concat"]  # has none of the paper's heads
    assert picture["title"] == "layer 0, head 0"
