"""Files of rows: every form gives the same rows, every fault one message; digests are remembered."""

import csv
import hashlib
import json
import os
import re
import time
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from papa.config.settings import Corpus, Machine, corpus_of
from papa.config.stages import ModelId
from papa.data.columns import Columns
from papa.data.digests import digest_of_file
from papa.data.readers import SourceRows, read_file
from papa.data.sources import load_rows, source_digests
from papa.data.splits import RowChanges
from papa.data.tokenize import tokenizer_of
from papa.errors import InputError

TEXTS = ["A cat sat.", 'She said "NA", twice', "1984"]
LABELS = ["yes", "no", "yes"]


@pytest.fixture(autouse=True)
def own_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "own cache"))


def in_file(path: Path, **keys: object) -> Corpus:
    texts = {} if "words" in keys else {"first": "text"}
    return corpus_of(files={"train": str(path)}, **texts, **keys)


def small(folder: Path) -> Machine:
    return Machine(models={"small": {"path": str(folder)}})


ROW = "text,label\n"
LONG = "word " * 30_011  # as long as a book
TWO = {"words": [["EU"], ["buys"]], "column_2": [["NNP"], ["VBZ"]]}
ONE = {"text": ["a"], "label": ["x"]}
CONLL = "-DOCSTART- -X- O\n\nEU NNP B-ORG\nrejects VBZ O\n\n\nNew\u00a0York NNP B-LOC\n"
NAMED = {
    "words": [["EU", "rejects"], ["New\u00a0York"]],
    "pos": [["NNP", "VBZ"], ["NNP"]],
    "ner": [["B-ORG", "O"], ["B-LOC"]],
}
UD = (
    "# newdoc\n#no space\n1-2\tal\t_{0}\n1\ta\ta\tADP{1}\n2\tel\tel\tDET{1}\n2.1\tx\tx\tX{1}\n\n"
    "1\tNew York\tN\tPROPN{1}\n"
).format("\t_" * 7, "\t_" * 6)
GERMEVAL = "#\thttp://a.b [2009]\n1\tAm\tO\n2\tMeer\tB-LOC\n\n#\thttp://c.d\n1\tHa\tO\n"
ONTONOTES = "#begin document (a); part 000\na 0 0 In IN\na 0 1 it PRP\n\na 0 0 Hi UH\n\n#end document\n"


@pytest.mark.parametrize(
    ("name", "content", "rows"),
    [
        # only line feeds end lines, and keys that a line lacks are null
        ("a.jsonl", '\ufeff{"x": "1\u20282"}\n\r\n{"x": "3", "y": 4}\n', {"x": ["1\u20282", "3"], "y": [None, 4]}),
        ("a.jsonl", '{"x": NaN, "y": true}\n{"x": "\\u00e9", "y": null}\n', {"x": [None, "é"], "y": [True, None]}),
        ("a.json", '\n[{"x": "1"},\n\n{"x": "3"}]', {"x": ["1", "3"]}),
        ("a.txt", "\ufeffEU rejects\r\n\r\n  \nNew\u2028York here", {"text": ["EU rejects", "New\u2028York here"]}),
        ("a.txt", '"QT @user\rDESC:manner How ?\r', {"text": ['"QT @user', "DESC:manner How ?"]}),
        *(
            (f"a.{form}", f"text{by}label\n{LONG}{by}yes\n", {"text": [LONG], "label": ["yes"]})
            for form, by in (("csv", ","), ("tsv", "\t"))
        ),
        ("a.csv", "\n\ntext,label\r\na,x\r\n", ONE),
        ("a.csv", "text,label\ra,x\r", ONE),
        ("a.CSV", '\ufeff"text", "label"\n"a", "x"\n', ONE),
        (
            "a.csv",
            'text,label\n"a, ""b""\r\nc",NA\n5" tall,null\n',
            {"text": ['a, "b"\r\nc', '5" tall'], "label": ["NA", "null"]},
        ),
        ("a.csv", ",text,label,,\n0,a,x,,\n", ONE),
        ("a.csv", 'review,sentiment\n"A <br />""Oz""",1984\n', {"review": ['A <br />"Oz"'], "sentiment": ["1984"]}),
        ("a.tsv", 'text\tlabel\n"a" and "b"\tx\n"c"\ty\n', {"text": ['"a" and "b"', '"c"'], "label": ["x", "y"]}),
        ("a.tsv", '#1 String\tQuality\nhe said " no "\t1\n', {"#1 String": ['he said " no "'], "Quality": ["1"]}),
        *(("a.conll", f"EU\tNNP\n{spaces}\nbuys\tVBZ\n", TWO) for spaces in (" ", "\t", " \t  ", "\u00a0")),
        ("a.conll", "# newpar\nEU NNP\n\n# sent id\nbuys VBZ\n", TWO),
        # "#" may also be a word, but then it has a tag of other words, or is inside a sentence
        (
            "a.conll",
            "a\tO\n#\tSYM\n\n#\tO\n#b\tO\n",
            {"words": [["a", "#"], ["#", "#b"]], "column_2": [["O", "SYM"], ["O", "O"]]},
        ),
        (
            "a.conll",
            GERMEVAL,
            {"id": [["1", "2"], ["1"]], "words": [["Am", "Meer"], ["Ha"]], "column_3": [["O", "B-LOC"], ["O"]]},
        ),
        (
            "a.conll",
            "1984 O\n2 O\n\n1 O\nand O\n",
            {"words": [["1984", "2"], ["1", "and"]], "column_2": [["O"] * 2] * 2},
        ),
        # the name of a document, and numbers that no sentence begins anew, are no words
        ("a.conll", "d O\nd O\n\ne O\ne O\n", {"column_1": [["d"] * 2, ["e"] * 2], "column_2": [["O"] * 2] * 2}),
        ("a.conll", "1 O\n2 O\n\n3 O\n4 O\n", {"column_1": [["1", "2"], ["3", "4"]], "column_2": [["O"] * 2] * 2}),
    ],
)
def test_files_are_read_as_they_are_meant(tmp_path, name, content, rows):
    file = tmp_path / f"ü 'a' \"b\".{name}"
    file.write_text(content, encoding="utf-8", newline="")
    assert load_rows(in_file(file), "train").table.to_pydict() == rows


@pytest.mark.parametrize("name", ["a.conll", "a.conllu"])
def test_words_of_conllu_are_the_numbered_tokens(tmp_path, name):
    (tmp_path / name).write_text(UD, encoding="utf-8")
    rows = load_rows(in_file(tmp_path / name), "train")
    assert rows.names == "id words lemma upos xpos feats head deprel deps misc".split()
    assert rows.table["words"].to_pylist() == [["a", "el"], ["New York"]] and [*rows.lines] == [3, 8]
    assert rows.table["upos"].to_pylist() == [["ADP", "DET"], ["PROPN"]]


def test_words_follow_their_numbers_in_a_sentence(tmp_path):
    (tmp_path / "a.conll").write_text(ONTONOTES, encoding="utf-8")
    rows = load_rows(in_file(tmp_path / "a.conll"), "train")
    assert rows.names == ["column_1", "column_2", "id", "words", "column_5"]
    assert rows.table["words"].to_pylist() == [["In", "it"], ["Hi"]]


NO_NAMES = [
    ("a.tsv", "gj04\t1\t\tOur friends\ngj04\t0\t*\tThey drank\n", ("source", "label", "star", "text")),
    ("a.csv", '"1","Wall St.","Our friends"\n"0","B","They drank"\n', ("label", "title", "text")),
]


@pytest.mark.parametrize(("name", "content", "columns"), NO_NAMES)
def test_columns_of_files_without_names(tmp_path, name, content, columns):
    file = tmp_path / name
    file.write_text(content, encoding="utf-8")
    rows = load_rows(in_file(file, columns=columns), "train", ["text", "label"])
    assert rows.table.select(["label", "text"]).to_pydict() == {
        "label": ["1", "0"],
        "text": ["Our friends", "They drank"],
    }
    assert [*rows.lines] == [1, 2] and rows.names == [*columns]
    with pytest.raises(InputError, match=r"line 1 has \d values for 2 columns \(text, label\)"):
        load_rows(in_file(file, columns=("text", "label")), "train")


@pytest.mark.parametrize(
    ("content", "guessed"),
    [
        (NO_NAMES[0][1], "gj04"),
        (NO_NAMES[0][1], "1"),
        ("text\tlabel\nham\tGo\n", ""),
        ("ham\tGo\nham\tOk\n", "ham"),
        (f"x\t{LONG[:41].strip()}s\ny\tb\n", f"{LONG[:41].strip()}s"),
        ("3.5\ta\n4\tb\n", "3.5"),
    ],
)
def test_a_value_is_no_name_of_a_column(tmp_path, content, guessed):
    (tmp_path / "a.tsv").write_text(content, encoding="utf-8")
    columns = Columns("a.tsv", read_file(tmp_path / "a.tsv"))
    if guessed:
        with pytest.raises(
            InputError,
            match=r"a\.tsv seems to have no line of column names, because .* is a value; add .* under `columns`",
        ):
            columns.check_header([guessed])
    else:
        columns.check_header(columns.rows.names)


def rows_of(path: Path, records: list[dict[str, object]]) -> Path:
    """Write records in the format of the file's suffix."""
    match path.suffix:
        case ".parquet":
            pq.write_table(pa.Table.from_pylist(records), path)
        case ".json":
            path.write_text(json.dumps(records))
        case ".jsonl":
            path.write_text("\n".join(json.dumps(record) for record in records) + "\n\n")
        case ".csv":
            with open(path, "w", encoding="utf-8-sig", newline="") as file:
                writer = csv.DictWriter(file, records[0])
                writer.writeheader()
                writer.writerows(records)
        case ".tsv":
            lines = ["\t".join(map(str, values)) for values in (records[0], *(record.values() for record in records))]
            path.write_text("\r\n".join(lines), newline="")
    return path


@pytest.mark.parametrize("form", ["parquet", "json", "jsonl", "csv", "tsv"])
def test_files_of_every_form_contain_the_same_rows(tmp_path, form):
    records = [{"text": text, "label": label} for text, label in zip(TEXTS, LABELS, strict=True)]
    corpus = in_file(rows_of(tmp_path / f"a.{form}", records))
    rows = load_rows(corpus, "train")
    assert rows.table.to_pydict() == {"text": TEXTS, "label": LABELS} and rows.names == ["text", "label"]
    wanted = load_rows(corpus, "train", ["label", "no such column"])
    assert wanted.table.to_pydict() == {"label": LABELS} and wanted.names == ["text", "label"]


@pytest.mark.parametrize("form", ["parquet", "json", "jsonl", "csv", "tsv"])
@pytest.mark.parametrize(
    ("labels", "listed", "said"),
    [
        (
            [3.8, 0.0, 5.0],
            None,
            r"contains numbers such as 0\.0, but papa predicts classes and has no regression; write",
        ),
        ([3.8, 0.5, 3.8], ["0.5", "3.8"], ""),
        ([-1, 1, -1], None, r"has the label -1, .* in 2 of 3 rows \(.*\); list all classes under `labels`"),
        ([-1, 1, -1], ["-1", "1"], ""),
        ([-1, 1, 0], ["0", "1"], r"has no label in column label .* in 1 of 3 rows"),
        ([-1, -1, -1], None, r"Column label of \S+ has no labels \(each is -1\); use a split with labels"),
        (["-", "yes", "no"], None, r"has the label -, which may mean no label, in column label in 1 of 3 rows"),
        ([-2, 2, 2], None, ""),
        (["1.5", "v2", "1.5"], None, ""),
    ],
)
def test_labels_mean_the_same_in_files_of_every_form(tmp_path, form, labels, listed, said):
    file = rows_of(tmp_path / f"a.{form}", [{"text": "a", "label": label} for label in labels])
    columns = Columns(str(file), read_file(file))
    if said:
        with pytest.raises(InputError, match=said):
            columns.classes("label", listed, None)
    else:
        assert columns.classes("label", listed, None) == [[str(label)] for label in labels]


@pytest.mark.parametrize(
    ("labels", "listed", "kept", "said"),
    [
        (["0", "", "1", None], None, [0, 2], ""),
        ([0, -1, 1, -100], ["0", "1"], [0, 2], ""),
        ([0, -1, 1, -100], ["-1", "0", "1"], [0, 1, 2], ""),
        (
            [0, -1, 1, 0, 1, 0, 1, 0, 1, -1, 0, 1],
            None,
            None,
            r"-1, which may mean no label, .* in 2 of 12 rows \(.*: 1, 9",
        ),
        (
            [None, -1, 1, 0, 1, 0, 1, 0, 1, -1],
            None,
            None,
            r"-1, which may mean no label, .* in 2 of 10 rows \(.*: 1, 9",
        ),
    ],
)
def test_only_rows_without_a_label_are_dropped(labels, listed, kept, said):
    table = pa.table({"text": [f"text {row}" for row in range(len(labels))], "label": labels})
    splits, roles = (
        {"train": Columns("a.parquet", SourceRows(table, table.column_names))},
        {"first": "text", "label": "label"},
    )
    if said:
        with pytest.raises(InputError, match=said):
            RowChanges.of(0.5, drop_empty=True).applied(splits, roles, listed)
    else:
        changed, notes = RowChanges.of(drop_empty=True).applied(splits, roles, listed)
        assert [*changed["train"].rows.indices] == kept
        assert notes == [f"Dropped {4 - len(kept)} of 4 rows of a.parquet, which have no text or no label."]


@pytest.mark.parametrize(
    ("name", "content", "places"),
    [
        ("a.csv", 'text,label\n\n"a\nb",1\n\n,1\nc,1\n ,1\n', "lines 6, 8"),
        ("a.tsv", "text\tlabel\n\na\t1\n\n\t1\n", "line 5"),
        ("a.jsonl", '{"text": "a"}\n\n\n{"text": ""}\n', "line 4"),
        ("a.json", '[{"text": "a"},\n\n{"text": ""}]', "counted from 0: 1"),
    ],
)
def test_faults_are_named_by_their_lines_in_the_file(tmp_path, name, content, places):
    """Blank lines are skipped, but counted."""
    (tmp_path / name).write_text(content, encoding="utf-8")
    with pytest.raises(InputError, match=re.escape(f"rows ({places})")):
        Columns(name, read_file(tmp_path / name)).texts("text")


@pytest.mark.parametrize("source", ["files", "hub"])
def test_two_slices_of_a_split_have_all_its_rows_and_none_twice(tmp_path, source):
    file, machine = tmp_path / "some/data/train.parquet", Machine(hub_mirror=str(tmp_path))
    file.parent.mkdir(parents=True)
    pq.write_table(pa.table({"text": TEXTS}), file)

    def texts(train: str, validation: str) -> list[list[str]]:
        corpus = corpus_of(hub="some/data", train=f"train{train}", validation=f"train{validation}", first="text")
        if source == "files":
            corpus = corpus_of(files={"train": f"{file}{train}", "validation": f"{file}{validation}"}, first="text")
            assert corpus.paths == dict.fromkeys(("train", "validation"), str(file)), "the digest is that of the file"
        return [load_rows(corpus, split, machine=machine).table["text"].to_pylist() for split in corpus.splits]

    assert texts("[1:]", "[:1]") == [TEXTS[1:], TEXTS[:1]]
    assert texts("", "[1:2]") == [TEXTS, TEXTS[1:2]]
    with pytest.raises(InputError, match=r"\[9:\]"):
        texts("[9:]", "[:1]")


def parquet(path: Path, described: object) -> Path:
    metadata = {"huggingface": json.dumps(described)}
    pq.write_table(pa.table({"text": TEXTS, "label": [1, 0, 1]}).replace_schema_metadata(metadata), path)
    return path


LABEL = {"_type": "ClassLabel", "names": ["no", "yes"]}


@pytest.mark.parametrize(
    ("described", "names"),
    [
        ({"info": {"features": {"label": LABEL, "text": {"_type": "Value"}}}}, {"label": ["no", "yes"]}),
        ({"info": {"features": {"label": [{"feature": LABEL}]}}}, {"label": ["no", "yes"]}),
        *((wrong, {}) for wrong in ([], "text", {"info": None}, {"info": []}, {"info": {"features": ["label"]}})),
        ({"info": {"features": {"label": []}}}, {}),
        ({"info": {"features": {"label": LABEL | {"names": None}}}}, {}),
    ],
)
def test_parquet_keeps_class_names(tmp_path, described, names):
    rows = load_rows(in_file(parquet(tmp_path / "a.parquet", described)), "train")
    assert rows.class_names == names and rows.table.num_rows == 3


@pytest.mark.parametrize("form", ["json", "jsonl"])
def test_columns_that_nobody_wants_may_mix_types(tmp_path, form):
    file = rows_of(tmp_path / f"a.{form}", [{"text": "a", "x": 1}, {"text": "b", "x": "s"}])
    assert load_rows(in_file(file), "train", ["text"]).table.to_pydict() == {"text": ["a", "b"]}
    with pytest.raises(InputError, match=r"(line 2|row 1 \(counted from 0\)) has 's' in column x, .* use one type"):
        load_rows(in_file(file), "train")


def test_a_text_file_has_words_if_they_are_asked_for(tmp_path):
    (tmp_path / "a.txt").write_text("EU rejects\n\nNew York", encoding="utf-8")
    words = load_rows(in_file(tmp_path / "a.txt", words="words"), "train").table["words"]
    assert words.to_pylist() == [["EU"], ["New"]]


def test_a_split_that_a_corpus_has_not():
    with pytest.raises(InputError, match="corpus of a/b, split train has no validation split; every task needs one"):
        load_rows(corpus_of(hub="a/b", validation=None, first="text"), "validation")
    with pytest.raises(InputError, match=r"corpus of a\.csv has no validation split"):
        load_rows(in_file(Path("a.csv")), "validation")


@pytest.mark.parametrize("separator", [" ", "\t", "  "])
@pytest.mark.parametrize("comments", ["", "# sent_id = 7\n# text of it\n"])
def test_conll_sentences(tmp_path, separator, comments):
    file = tmp_path / "a.conll"
    file.write_text(comments + CONLL.replace(" ", separator), encoding="utf-8")
    assert load_rows(in_file(file, columns=("words", "pos", "ner")), "train").table.to_pydict() == NAMED
    assert load_rows(in_file(file), "train").names == ["words", "column_2", "column_3"]
    with pytest.raises(InputError, match=r"has 3 columns, but the corpus lists 2"):
        load_rows(in_file(file, columns=("words", "ner")), "train")


def test_messages_name_the_line_where_a_sentence_begins(tmp_path):
    file = tmp_path / "a.conll"
    file.write_text("# id\nEU\tNNP\n\n\nbuys\tVBZ\n\u00a0\tNNP\n", encoding="utf-8")
    columns = Columns(str(file), load_rows(in_file(file), "train"))
    with pytest.raises(InputError, match=r"an empty word \(or only spaces\) .* in 1 of 2 rows \(line 5\)"):
        columns.words("words")


ONE_PER_ROW = r".*; write one object per row, as DataFrame\.to_json\(path, orient='records', lines=True\) does\.$"
WIDE = {f"column {number}": {"0": "a"} for number in range(3000)}


@pytest.mark.parametrize("suffix", ["json", "jsonl"])
@pytest.mark.parametrize(
    ("content", "said"),
    [
        ({"text": ["a", "b"], "label": [0, 1]}, "contains list<item: string>, but it must contain a text in each row"),
        ({"text": {"0": "a"}, "label": {"0": "x"}}, r"contains one object for all rows \(text, label\)"),
        (
            {"columns": ["text"], "index": [0], "data": [["a"]]},
            r"contains one object for all rows \(columns, index, data",
        ),
        ({"version": "1.1", "data": [{"title": "x"}]}, r"contains one object for all rows \(version, data\)"),
        (WIDE, r"contains one object for all rows \(column 0, [^;]{1,200} and 2,98\d more\)"),
        ("text", "contains 'text', not only objects"),
    ],
)
def test_a_table_in_one_object_is_no_row(tmp_path, suffix, content, said):
    file = tmp_path / f"a.{suffix}"
    file.write_text(json.dumps(content))
    with pytest.raises(InputError, match=said + ONE_PER_ROW):
        Columns(str(file), read_file(file)).texts("text")


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("a.json", '{\n"text": ["a"]}', r"line 1 cannot be read as JSON .*" + ONE_PER_ROW),
        ("a.json", '[{"text": "a"},\n {"text": "b",}]', r"line 2 cannot be read as JSON"),
        ("a.json", '["a", "b"]', r"contains 'a', not only objects"),
        ("a.jsonl", "", r"has no rows"),
        ("a.jsonl", '{"text": "a"}\n\n{"text": \n', r"line 3 cannot be read as JSON \(Expecting value\)"),
        (
            "a.jsonl",
            '{"text": "a"}\n{"text": "a", "text": "b"}',
            r"line 2 .* \(an object has a key twice: text, text\)",
        ),
        ("a.jsonl", '{"label": 1}\n{"label": Infinity}', r"line 2 cannot be read as JSON \('Infinity'\)"),
        (
            "a.jsonl",
            f'{{"label": 1}}\n\n{{"label": {10**30}}}',
            r"line 3 has 1000+ in column label, which is too large",
        ),
        ("a.jsonl", '{"label": 1}\n{"label": 2}\n{"label": "x"}', r"line 3 has 'x' in column label.* use one type"),
        ("a.jsonl", '{"text": "a"}\n{"text": "\\ud83d"}', r"line 2 has '.*' in column text, which .* no valid text"),
        ("a.csv", ROW + "one,two,three\n", r"line 2 has 3 values for 2 columns \(text, label\); write one value per"),
        ("a.csv", ROW + '"a\nb",2\none\n', r"line 4 has 1 value for 2 columns"),
        ("a.csv", ROW + 'a,1\n"never closed,1\n\n', r"line 3 begins a row with a wrong quote \(unexpected end"),
        ("a.csv", ROW + '"He said \\"no\\"",1\n', r"line 2 begins a row with a wrong quote"),
        ("a.csv", ROW + "a,x\n\ufefftext,label\nb,y\n", r"line 3 repeats the column names \(text, label\); remove"),
        ("a.csv", "text;label\na, b;x\n", r"columns of \S+ are separated by semicolons; save it with commas"),
        ("a.csv", "text\tlabel\na\tb\n", r"columns of \S+ are separated by tabs; name it \.tsv"),
        ("a.tsv", "text,label\na,b\n", r"columns of \S+ are separated by commas; name it \.csv"),
        ("a.csv", "", r"must start with a line of column names"),
        ("a.csv", ",,\n", r"must start with a line of column names"),
        ("a.csv", ROW.encode() + b"a,1\n" * 9000 + b"sch\xf6n,1\n", r"line 9002 is not UTF-8 text; save the file as"),
        (
            "a.csv",
            ROW + "a,1\n" * 3000 + "a\0,1\n",
            r"line 3002 contains NUL characters, as UTF-16 does; save the file",
        ),
        *(
            (f"a.{form}", "text,label\n".encode(code), r"line 1 .* UTF-")
            for form in ("csv", "txt")
            for code in ("utf-16", "utf-16-le")
        ),
        *(
            ("a.tsv", rows, rf"line {line} has a value in quotes, which TSV does not have, .* save the rows as \.csv")
            for line, rows in (
                (3, 'text\tlabel\n5" tall\tx\n"a ""b"""\tx\n'),
                (1, '"text"\t"label"\na\tx\n'),
                (2, 'text\tlabel\n"a"\tx\n"b"\ty\n'),
            )
        ),
        ("a.tsv", 'text\tlabel\n"a\tb"\tx\n', r"line 2 has 3 values for 2 columns"),
        ("a.parquet", "PAR1 not really", r"cannot be read as parquet"),
        ("a.conll", "# id\nEU NNP\nrejects\n", r"line 3 has 1 column, but the lines above it have 2"),
        ("a.conllu", "# id\nEU\tNNP\n", r"line 2 begins no sentence of CoNLL-U, which has ten columns"),
        ("a.xlsx", "", r"has a format that papa cannot read; save it as \.csv"),
        ("a.csv.gz", "", r"has a format that papa cannot read; unpack it first"),
        ("a.arrow", "", r"has a format that papa cannot read; save each split of it with to_parquet of"),
        ("a.data", "", r"has a format that papa cannot read; convert it to one of these: \.parquet"),
        ("a", "", r"cannot read; name it by its format .* or, if save_to_disk wrote it, save each split of it with"),
    ],
)
def test_bad_files_are_named(tmp_path, name, content, said):
    file = tmp_path / name
    file.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(InputError, match=said) as caught:
        read_file(file)
    assert str(file) in str(caught.value) and len(str(caught.value)) < 400 + len(str(file))


def test_files_that_cannot_be_opened_as_asked(tmp_path):
    for read in (lambda corpus: load_rows(corpus, "train"), lambda corpus: source_digests(corpus, None)):
        with pytest.raises(InputError, match=r"There is no file .*nope\.csv"):
            read(in_file(tmp_path / "nope.csv"))
    with pytest.raises(InputError, match=r"is a folder; give a file, or, if save_to_disk wrote it, .* to_parquet"):
        (tmp_path / "a.json").mkdir()
        load_rows(in_file(tmp_path / "a.json"), "train")
    with pytest.raises(InputError, match="`columns` is for files without column names"):
        load_rows(in_file(rows_of(tmp_path / "a.jsonl", [{"text": "a"}]), columns=("text", "label")), "train")


def changed_in_place(file: Path) -> None:
    file.write_bytes(b"other v")


def moved_over(file: Path) -> None:
    new = file.with_name("new")
    new.write_bytes(b"other v")
    os.utime(new, ns=(file.stat().st_mtime_ns,) * 2)
    new.rename(file)


def written_with_its_old_time(file: Path) -> None:
    before = file.stat()
    file.write_bytes(b"other v")
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))


@pytest.mark.parametrize("change", [changed_in_place, moved_over, written_with_its_old_time])
def test_a_digest_is_remembered_until_the_file_changes(monkeypatch, tmp_path, change):
    monkeypatch.setattr("papa.data.digests.MINIMUM_AGE_SECONDS", -1)
    file = tmp_path / "weights"
    file.write_bytes(b"weights")
    assert digest_of_file(file) == hashlib.sha256(b"weights").hexdigest()
    with monkeypatch.context() as patch:
        patch.setattr("papa.data.digests.hashlib", None)  # nothing is read again
        assert digest_of_file(file) == hashlib.sha256(b"weights").hexdigest()
    time.sleep(0.02)  # times of files have steps of some milliseconds
    change(file)
    assert digest_of_file(file) == hashlib.sha256(b"other v").hexdigest()


@pytest.mark.parametrize("damage", [b"", b"[]", b"{", b'{"KEY": 1}', b'{"KEY": []}', b'{"KEY": [1, "x"]}', b"\xff"])
def test_a_damaged_memory_of_digests_is_ignored(monkeypatch, tmp_path, damage):
    monkeypatch.setattr("papa.data.digests.MINIMUM_AGE_SECONDS", -1)
    file, memory = tmp_path / "a", tmp_path / "own cache/papa/digests.json"
    file.write_bytes(b"weights")
    memory.parent.mkdir(parents=True)
    memory.write_bytes(damage.replace(b"KEY", str(file).encode()))
    assert digest_of_file(file) == hashlib.sha256(b"weights").hexdigest()
    assert list(json.loads(memory.read_text())) == [str(file)]


def test_digests_without_a_place_to_remember_them(monkeypatch, tmp_path):
    (tmp_path / "a").write_bytes(b"weights")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "a"))
    monkeypatch.setattr("papa.data.digests.MINIMUM_AGE_SECONDS", -1)
    assert digest_of_file(tmp_path / "a") == hashlib.sha256(b"weights").hexdigest()


def byte_level_tokenizer(folder: Path) -> Path:
    """A RoBERTa model's folder with a tokenizer that knows single bytes only."""
    from tokenizers import Tokenizer, models, pre_tokenizers

    special = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
    vocabulary = {token: place for place, token in enumerate([*special, *sorted(pre_tokenizers.ByteLevel.alphabet())])}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    folder.mkdir()
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "config.json").write_text(json.dumps({"model_type": "roberta"}))
    return folder


def test_byte_level_tokenizer_is_readied_for_words(tmp_path):
    machine = small(byte_level_tokenizer(tmp_path / "m"))
    model = ModelId(name="small")
    words = tokenizer_of(model, machine, words=True)(["a", "b"], is_split_into_words=True, add_special_tokens=False)
    text = tokenizer_of(model, machine)("a b", add_special_tokens=False)
    assert words.tokens() == ["Ġ", "a", "Ġ", "b"]
    assert text.tokens() == ["a", "Ġ", "b"]
