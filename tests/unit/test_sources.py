"""Files of rows: a table of files with what is read from them, or the sentence that refuses them; digests of files."""

import csv
import hashlib
import json
import os
import time

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from refusals import input_error
from tiny import corpus_of

from papa.config.settings import Machine
from papa.data.columns import Columns
from papa.data.digests import digest_of_file
from papa.data.readers import read_file
from papa.data.sources import load_splits, source_digests
from papa.data.splits import Wanted
from papa.errors import InputError

TEXTS = ["A cat sat.", 'She said "NA", twice', "1984"]
WEIGHTS = hashlib.sha256(b"weights").hexdigest()
FORMS = ("parquet", "json", "jsonl", "csv", "tsv")

# NAME[:COLUMN,…][ ENCODING] | CONTENT | what is read, or a part of the sentence that refuses the file
READ = r"""
a.jsonl | \ufeff{"x": "1\u20282"}\n\r\n{"x": "3", "y": 4}\n | {"x": ["1\u20282", "3"], "y": [null, 4]}
a.json | \n[{"x": "1"},\n\n{"x": "3"}] | {"x": ["1", "3"]}
a.txt | \ufeffEU rejects\r\n\r\n  \nNew\u2028York\n"QT @user\rHow ? | {"text": ["EU rejects", "New\u2028York", "\"QT @user", "How ?"]}
a.txt | EU B-ORG\nrejects O\n\nPeter B-PER\n | name it .conll
a.csv | \n\ntext,label\r\na,x\r\n | {"text": ["a"], "label": ["x"]}
a.CSV | \ufeff"text", "label"\n"a", "null"\n | {"text": ["a"], "label": ["null"]}
a.csv | x,y\n"a, ""b""\r\nc",None\n5" tall,1984\n | {"x": ["a, \"b\"\r\nc", "5\" tall"], "y": ["None", "1984"]}
a.csv:label,title,text | "1","Wall St.","a"\n"0","B","b"\n | {"label": ["1", "0"], "title": ["Wall St.", "B"], "text": ["a", "b"]}
a.tsv:id,y,no,x | gj04\t1\t\ta\ngj04\t0\t*\tb\n | {"id": ["gj04", "gj04"], "y": ["1", "0"], "no": ["", "*"], "x": ["a", "b"]}
a.tsv | x\ty\n"a" and "b"\tx\n"c"\ty\n | {"x": ["\"a\" and \"b\"", "\"c\""], "y": ["x", "y"]}
a.tsv | Study\tO\nof\tO\nserum\tB\n\nStudy\tO\n | name it .conll
a.tsv | marrow\tB\nof\tO\n\nStudy\tO\na\tO\n | name it .conll
a.tsv:x,y | a b\tO\na\tO\n | {"x": ["a b", "a"], "y": ["O", "O"]}
a.tsv | x\tblood\na b\tO\na\tO\n | {"x": ["a b", "a"], "blood": ["O", "O"]}
a.conll | EU\tNNP\n \nbuys\tVBZ\n\t\n\u00a0\n \t  \na\tX | {"words": [["EU"], ["buys"], ["a"]], "column_2": [["NNP"], ["VBZ"], ["X"]]}
a.conll | a\tO\n#\tSYM\n\n#\tO\n#b\tO\n | {"words": [["a", "#"], ["#", "#b"]], "column_2": [["O", "SYM"], ["O", "O"]]}
a.conll | #doc 0\nEU\tB\n#doc 0\nbuys\tO\n\n#id 5 of 7\na\tO | {"words": [["EU", "buys"], ["a"]], "column_2": [["B", "O"], ["O"]]}
a.conll | #\tB-TAG\nhappy\tI-TAG\n\na\tO | {"words": [["#", "happy"], ["a"]], "column_2": [["B-TAG", "I-TAG"], ["O"]]}
a.conll | #\tHT\na\tO\n#\tHT\n\n#\tid 7\na\tO | {"words": [["#", "a", "#"], ["a"]], "column_2": [["HT", "O", "HT"], ["O"]]}
a.conll | #happy B-TAG\na O\n#sad HT\n\n#me HT\n\n#the O | {"words": [["#happy", "a", "#sad"], ["#me"], ["#the"]], "column_2": [["B-TAG", "O", "HT"], ["HT"], ["O"]]}
a.conll | a\t0\nb\t1\n\n#doc 0\na\t1 | line 4 may be a comment or a word ('#doc 0'); write a space after # in comments; a word
a.conll | a O\n\n#1 single\nb O | line 3 may be a comment or a word ('#1 single'); write a space after # in comments; a word needs a tag that other words also have
a.conll | a O\n\n#doc 3\na O | line 3 may be a comment or a word
a.conll | #Text=3 of them\na O | line 1 may be a comment or a word
a.conll | a\tO\n\n#doc\t3\na\tO | line 3 may be a comment or a word
a.conll | a\tO\n\n#happy O\na\tO | line 3 may be a comment or a word
a.conll | #\thttp://a.b\n1\tAm\tO\n2\tMeer\tB\n\n1\tHa\tO\n | {"id": [["1", "2"], ["1"]], "words": [["Am", "Meer"], ["Ha"]], "column_3": [["O", "B"], ["O"]]}
a.conll | #begin document (a)\na 0 0 In\na 0 1 it\n\na 0 0 Hi\n#end document | {"column_1": [["a", "a"], ["a"]], "column_2": [["0", "0"], ["0"]], "column_3": [["0", "1"], ["0"]], "column_4": [["In", "it"], ["Hi"]]}
a.conll | O is\nB-LOC Rome\n | {"column_1": [["O", "B-LOC"]], "column_2": [["is", "Rome"]]}
a.conll:words,pos,ner | -DOCSTART- -X- O\n\n# id = 7\nEU  NNP B-ORG\r\nNew\u00a0York NNP O\n | {"words": [["EU", "New\u00a0York"]], "pos": [["NNP", "NNP"]], "ner": [["B-ORG", "O"]]}
a.conll:words,ner | EU NNP B-ORG\n | has 3 columns, but the corpus lists 2 (`columns`: words, ner); list a name for each column
a.conll | # id\nEU NNP\nrejects\n | line 3 has 1 column, but the lines above it have 2: 'rejects'
a.conllu | # id\nEU\tNNP\n | line 2 begins no sentence of CoNLL-U, which has ten columns separated by tabs
a.json | [{"text": "a"},\n {"text": "b",}] | line 2 cannot be read as JSON
a.json | ["a", "b"] | contains 'a', not only objects; write one object per row, as DataFrame.to_json(path, orient='records'
a.json | {"text": {"0": "a"}, "label": {"0": "x"}} | contains one object for all rows (text, label); write one object per row
a.json | {"text": ["a", "b"], "label": [0, 1]} | contains list<item: string>, but it must contain a text in each row; write one
a.csv | text,label\n | has no rows; every split needs some
a.jsonl | {"text": "a"}\n\n{"text": \n | line 3 cannot be read as JSON (Expecting value)
a.jsonl | {"x": 1}\n{"x": 2}\n{"x": "b"} | has a value of another type, too large or no text (Could not convert 'b'
a.jsonl | {"x": "a"}\n{"x": "\\ud83d"} | has a value of another type, too large or no text
a.jsonl:x,y | {"text": "a"} | `columns` is for files without column names, but
a.csv | text,label\none,two,three\n | line 2 has 3 values for 2 columns (text, label); write one value per column
a.csv | text,label\n"a\nb",2\none\n | line 4 has 1 value for 2 columns
a.csv | text,label\na,x\n\ufefftext,label\nb,y\n | line 3 repeats the column names (text, label); remove this line
a.csv | text,text,label\na,b,x\n | has more than one column 'text'; its columns are text, text, label
a.tsv | text\tlabel\n5" tall\tx\n"a ""b"" c"\tx\n | line 3 has a value in quotes, which TSV does not have
a.tsv | text\tlabel\n"a"\tx\n"b"\ty\n | line 2 has a value in quotes, which TSV does not have
a.tsv | ham\tGo\nham\tOk\n | seems to have no line of column names, because 'ham' in its first line is a value; add this line, or
a.tsv | A very long sentence, which is a text itself\tx\na\ty\n | because 'A very long ...a text itself' in its first line is a value
a.csv latin-1 | text,label\na,1\nsch\u00f6n,1\n | line 3 is not UTF-8 text; save the file as UTF-8
a.csv utf-16 | text,label\n | line 1 contains NUL characters, as UTF-16 does; save the file as UTF-8
a.parquet | PAR1 not really | cannot be read as parquet
a.csv | text,label\n\n"a\nb",1\n\n,1\nc,1\n ,1\n | has no text in column text in 2 of 4 rows (lines 6, 8); fix or remove these
a.json | [{"text": "a"},\n\n{"text": ""}] | has no text in column text in 1 of 2 rows (counted from 0: 1)
a.xlsx | | has a format that papa cannot read; save it as .csv
a | | has a format that papa cannot read; name it by its format (.parquet,
"""  # noqa: E501


@pytest.fixture(autouse=True)
def own_cache(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", f"{tmp_path}/own cache")


@pytest.mark.parametrize("line", READ.strip().splitlines())
def test_files_are_read_as_they_are_meant_or_refused_with_the_line(tmp_path, line):
    written, content, expected = (part.strip(" ") for part in line.split("|"))
    name, _, encoding = written.partition(" ")
    name, _, columns = name.partition(":")
    file = tmp_path / f"ü 'b' {name}"
    text = content.encode("ascii", "backslashreplace").decode("unicode_escape")
    file.write_bytes(text.encode(encoding or "utf-8"))
    given = columns.split(",") if columns else None
    if expected.startswith("{"):
        assert read_file(file, columns=given).table.to_pydict() == json.loads(expected)
        return
    with pytest.raises(InputError) as caught:
        read = read_file(file, columns=given)
        read.check_header(name for name in read.names if name != "text")
        read.texts("text")
    assert expected in str(caught.value)
    assert str(file) in str(caught.value)


@pytest.mark.parametrize("name", ["a.conll", "a.conllu"])
def test_words_of_conllu_are_the_numbered_tokens(tmp_path, name):
    """Neither 1-2 (a range) nor 2.1 (a word left out) is a word."""
    words = "# newdoc|#no space|1-2 al _ _|1 a a ADP|2 el el DET|2.1 x x X||1 New\u00a0York N PROPN".split(
        "|"
    )
    lines = [
        word if word.startswith("#") or not word else "\t".join(word.split(" ") + ["_"] * 6)
        for word in words
    ]
    (tmp_path / name).write_text("\n".join(lines))
    read = read_file(tmp_path / name)
    assert read.names == "id words lemma upos xpos feats head deprel deps misc".split()
    assert [*read.lines] == [3, 8]
    assert read.table["words"].to_pylist() == [["a", "el"], ["New\u00a0York"]]
    assert read.table["upos"].to_pylist() == [["ADP", "DET"], ["PROPN"]]


@pytest.mark.parametrize("by", [",", "\t"])
def test_values_and_faults_far_into_a_file(tmp_path, by):
    file = tmp_path / ("a.csv" if by == "," else "a.tsv")
    text = "word " * 30_011  # as long as a book
    file.write_text(f"text{by}label\n{text}{by}yes\n" * 2)
    with input_error("line 3 repeats the column names"):
        read_file(file)
    for wrong, said in (
        (b"sch\xf6n", "line 9003 is not UTF-8"),
        (b"a\0b", "line 9003 contains NUL"),
    ):
        rows = f"text{by}label\n{text}{by}yes\n" + f"good{by}no\n" * 9000
        file.write_text(rows)
        assert read_file(file).table["text"][0].as_py() == text
        file.write_bytes(rows.encode() + wrong + by.encode() + b"no\n")
        with input_error(said):
            read_file(file)


def rows_of(path, records):
    """Write records in the format of the file's suffix, as pandas does."""
    frame = pd.DataFrame(records)
    if path.suffix == ".parquet":
        frame.to_parquet(path)
    elif path.suffix in (".json", ".jsonl"):
        frame.to_json(path, orient="records", lines=path.suffix == ".jsonl")
    else:
        how = {"sep": "\t", "quoting": csv.QUOTE_NONE} if path.suffix == ".tsv" else {}
        frame.to_csv(path, index=False, encoding="utf-8-sig", **how)
    return path


@pytest.mark.parametrize("form", FORMS)
def test_files_of_every_form_contain_the_same_rows(tmp_path, form):
    records = [
        {"text": text, "label": label}
        for text, label in zip(TEXTS, ["yes", "no", "yes"], strict=True)
    ]
    path = tmp_path / f"a.{form}"
    rows = read_file(rows_of(path, records))
    assert rows.table.to_pylist() == records
    assert rows.names == ["text", "label"]
    wanted = read_file(path, ["label", "no such column"])
    assert wanted.table.to_pydict() == {"label": ["yes", "no", "yes"]}
    assert wanted.names == [
        "text",
        "label",
    ]


NUMBERS = r"contains numbers such as 3\.8, but papa predicts classes and has no regression; write"


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(
    ("labels", "listed", "said"),
    [
        ([3.8, 0.0, 5.0], None, NUMBERS),
        ([4.0, 0.0, 4.0], None, ""),
        ([-1.0, 0.0, 1.0], None, r"has the label -1, "),
        (
            [-1, 1, -1],
            None,
            r"has the label -1, .* in 2 of 3 rows \(.*\); list all classes under `labels`",
        ),
        ([-1, 1, 0], ["0", "1"], r"has no label in column label .* in 1 of 3 rows"),
        (
            [-1, -1, -1],
            None,
            r"Column label of \S+ has no labels \(each is -1\); use a split with labels",
        ),
        (
            ["-", "yes", "no"],
            None,
            r"has the label -, which may mean no label, in column label in 1 of 3 rows",
        ),
        *(
            (
                [missing, "yes", "no"],
                None,
                f"has the label {missing}, which may mean no label, in col",
            )
            for missing in ("nan", "NaN", "None", "NULL", "N/A", "na", "<NA>")
        ),
        (["None", "yes", "no"], ["None", "no", "yes"], ""),
        (
            ["None", "yes", "no"],
            ["no", "yes"],
            r"no label in column label \(it is None\) in 1 of 3",
        ),
        (["0.0", "nan", "1.0"], None, "has the label nan, "),
        (["0.5", "nan", "1.0"], None, r"contains numbers such as 0\.5"),
        (["nan", "nan", "nan"], None, r"has no labels \(each is nan\)"),
        ([-2, 2, 2], None, ""),
    ],
)
def test_labels_mean_the_same_in_files_of_every_form(tmp_path, form, labels, listed, said):
    columns = read_file(
        rows_of(tmp_path / f"a.{form}", [{"text": "a", "label": label} for label in labels])
    )
    if said:
        with input_error(said):
            columns.classes("label", listed, None)
    else:
        assert columns.classes("label", listed, None) == [
            [f"{label:g}" if isinstance(label, float) else str(label)] for label in labels
        ]


NUMBERED = [0, -1, 1, -100]
"""Classes, and two numbers that often stand for no label."""


@pytest.mark.parametrize(
    ("labels", "listed", "kept"),
    [
        (["0", "", "1", None], None, [0, 2]),
        (NUMBERED, ["0", "1"], [0, 2]),
        ([0.0, -1.0, 1.0, None], ["0", "1"], [0, 2]),
        (NUMBERED, ["-1", "0", "1"], [0, 1, 2]),
        (NUMBERED, None, [0, 2]),
        (["-", "yes", "NaN", "no"], None, [1, 3]),
        (["none", "yes", "null", "no"], ["no", "none", "yes"], [0, 1, 3]),
        (
            [None, "_", "a", "b", "a", "b", "a", "b", "a", "x\x1b"],
            None,
            r"has a control character in a label .* in 1 of 10 rows \(.*: a\[9\]",
        ),
    ],
)
def test_only_rows_without_a_label_are_dropped(labels, listed, kept):
    table = pa.table({"text": [f"text {row}" for row in range(len(labels))], "label": labels})
    splits = {"train": Columns("a", table, table.column_names)}
    roles = {"first": "text", "label": "label"}
    if isinstance(kept, str):
        with input_error(kept):
            Wanted(hold_out=0.5, drop_empty=True, labels=listed).changed(splits, roles)
    else:
        changed, notes = Wanted(drop_empty=True, labels=listed).changed(splits, roles)
        assert [*changed["train"].indices] == kept
        assert len(notes) == 1
        assert notes[0].startswith(
            f"Dropped {4 - len(kept)} of 4 rows of a, which have no text or no label"
        )


def test_pairs_with_the_same_first_text_are_held_out_together():
    table = pa.table(
        {"a": [f"premise {row % 10}" for row in range(40)], "b": [str(row) for row in range(40)]}
    )
    splits = {"train": Columns("pairs", table, ["a", "b"])}
    changed, _ = Wanted(hold_out="1/5").changed(splits, {"first": "a", "second": "b"})
    train, held = (set(columns.table["a"].to_pylist()) for columns in changed.values())
    assert len(held) == 2
    assert len(train) == 8
    assert not held & train


@pytest.mark.parametrize(
    ("labels", "listed", "note"),
    [
        (["a", "b"] * 15, None, "Held out 15 of 30 rows of train for validation."),
        (
            [f"rare {row // 2}" for row in range(30)],
            None,
            "for validation; kept 3 more texts, so training has every label.",
        ),
        ([["O", f"B-{row // 2}"] for row in range(30)], None, "kept 3 more texts"),
        ([f"{row // 2}" for row in range(30)], list(map(str, range(15))), "Held out 15 of 30"),
        ([f"{row}" for row in range(30)], None, "are too few to hold some out"),
    ],
)
def test_training_keeps_every_label_that_is_not_listed(labels, listed, note):
    by_word = isinstance(labels[0], list)
    texts = [["a", f"{row}"] if by_word else f"text {row}" for row in range(30)]
    table = pa.table({"text": texts, "label": labels})
    roles = {"words" if by_word else "first": "text", "label": "label"}
    splits = {"train": Columns("train", table, table.column_names)}
    wanted = Wanted(hold_out="1/2", labels=listed)
    if "too few" in note:
        with input_error(note):
            wanted.changed(splits, roles)
        return
    changed, [said] = wanted.changed(splits, roles)
    train, held = ([*map(str, rows.table["label"].to_pylist())] for rows in changed.values())
    assert note in said
    assert sorted(train + held) == sorted(map(str, labels))
    assert bool(listed) == bool({*held} - {*train})


@pytest.mark.parametrize("source", ["files", "hub"])
def test_two_slices_of_a_split_have_all_its_rows_and_none_twice(tmp_path, source):
    file = tmp_path / "some/data/train.parquet"
    machine = Machine(hub_mirror=str(tmp_path))
    file.parent.mkdir(parents=True)
    pq.write_table(pa.table({"text": TEXTS}), file)

    def texts(train, validation):
        corpus = corpus_of(
            hub="some/data", train=f"train{train}", validation=f"train{validation}", first="text"
        )
        if source == "files":
            corpus = corpus_of(
                files={"train": f"{file}{train}", "validation": f"{file}{validation}"}, first="text"
            )
            assert corpus.paths == dict.fromkeys(("train", "validation"), str(file)), (
                "the digest is that of the file"
            )
        return [
            rows.table["text"].to_pylist() for rows in load_splits(corpus, None, machine).values()
        ]

    assert texts("[1:]", "[:1]") == [TEXTS[1:], TEXTS[:1]]
    assert texts("", "[1:2]") == [TEXTS, TEXTS[1:2]]
    with input_error(r"\[9:\]"):
        texts("[9:]", "[:1]")


LABEL = {"_type": "ClassLabel", "names": ["no", "yes"]}


@pytest.mark.parametrize(
    ("described", "names"),
    [
        (
            {"info": {"features": {"label": LABEL, "text": {"_type": "Value"}}}},
            {"label": ["no", "yes"]},
        ),
        ({"info": {"features": {"label": [{"feature": LABEL}]}}}, {"label": ["no", "yes"]}),
        *(
            (wrong, {})
            for wrong in (
                [],
                "text",
                {"info": None},
                {"info": []},
                {"info": {"features": ["label"]}},
            )
        ),
    ],
)
def test_parquet_keeps_class_names(tmp_path, described, names):
    table = pa.table({"text": TEXTS}).replace_schema_metadata(
        {"huggingface": json.dumps(described)}
    )
    pq.write_table(table, tmp_path / "a.parquet")
    assert read_file(tmp_path / "a.parquet").class_names == names


@pytest.mark.parametrize("form", ["json", "jsonl"])
def test_columns_that_nobody_wants_may_mix_types_and_are_not_all_listed(tmp_path, form):
    wide = {f"column {number}": number for number in range(3000)}
    file = rows_of(tmp_path / f"a.{form}", [{"text": "a", "x": 1} | wide, {"text": "b", "x": "s"}])
    rows = read_file(file, ["text"])
    assert rows.table.to_pydict() == {"text": ["a", "b"]}
    with input_error(
        r"no column 'y'; its columns are text, x, column 0, .{1,180} and 2,98\d more",
    ):
        rows.texts("y")


def test_sources_that_cannot_be_read_as_asked(tmp_path):
    (tmp_path / "words.txt").write_text("EU rejects\n\nNew York")
    corpus = corpus_of(files={"train": f"{tmp_path}/words.txt"}, words="words")
    rows = load_splits(corpus, None, Machine())["train"]
    assert rows.table["words"].to_pylist() == [["EU"], ["New"]], (
        "a text file has words if they are asked for"
    )
    for read in (
        lambda corpus: load_splits(corpus, None, Machine()),
        lambda corpus: source_digests(corpus, Machine()),
    ):
        with input_error(r"There is no file .*nope\.csv"):
            read(corpus_of(files={"train": f"{tmp_path}/nope.csv"}, first="text"))
    (tmp_path / "a.json").mkdir()
    with input_error(r"is a folder; give a file, or, if save_to_disk wrote it, .* to_parquet"):
        read_file(tmp_path / "a.json")


def test_a_file_is_read_once_for_all_its_slices(monkeypatch, tmp_path):
    read = []

    def reading(path, *more):
        read.append(path)
        return read_file(path, *more)

    monkeypatch.setattr("papa.data.sources.read_file", reading)
    file = rows_of(tmp_path / "a.csv", [{"text": text} for text in TEXTS])
    corpus = corpus_of(files={"train": f"{file}[1:]", "validation": f"{file}[:1]"}, first="text")
    assert [len(rows.table) for rows in load_splits(corpus, ["text"], Machine()).values()] == [
        2,
        1,
    ]
    assert read == [file]


@pytest.mark.parametrize("change", ["in place", "moved over", "with its old time"])
def test_a_digest_is_remembered_until_the_file_changes(monkeypatch, tmp_path, change):
    monkeypatch.setattr("papa.data.digests.MINIMUM_AGE_SECONDS", -1)
    file = tmp_path / "weights"
    file.write_bytes(b"weights")
    assert digest_of_file(file) == WEIGHTS
    with monkeypatch.context() as patch:
        patch.setattr("papa.data.digests.hashlib", None)  # nothing is read again
        assert digest_of_file(file) == WEIGHTS
    time.sleep(0.02)  # times of files have steps of some milliseconds
    before = file.stat()
    new = tmp_path / "new" if change == "moved over" else file
    new.write_bytes(b"other v")
    if change != "in place":
        os.utime(new, ns=(before.st_atime_ns, before.st_mtime_ns))
    new.rename(file)
    assert digest_of_file(file) == hashlib.sha256(b"other v").hexdigest()


@pytest.mark.parametrize(
    "damage", [b"", b"[]", b"{", b'{"KEY": 1}', b'{"KEY": [1, "x"]}', b"\xff", None]
)
def test_a_damaged_memory_of_digests_is_ignored(monkeypatch, tmp_path, damage):
    monkeypatch.setattr("papa.data.digests.MINIMUM_AGE_SECONDS", -1)
    file = tmp_path / "a"
    memory = tmp_path / "own cache/papa/digests.json"
    file.write_bytes(b"weights")
    if damage is None:  # there is no place for it
        monkeypatch.setenv("XDG_CACHE_HOME", str(file))
    else:
        memory.parent.mkdir(parents=True)
        memory.write_bytes(damage.replace(b"KEY", str(file).encode()))
    assert digest_of_file(file) == WEIGHTS
    assert damage is None or list(json.loads(memory.read_text())) == [str(file)]
