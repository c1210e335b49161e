"""Files of rows: every form gives the same rows, every fault one message; digests are remembered."""

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
from papa.data.readers import read_file
from papa.data.sources import load_rows, source_digests
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
    columns = Columns(name, read_file(tmp_path / name))
    with pytest.raises(InputError, match=re.escape(f"rows ({places})")):
        columns.texts("text")


def test_lines_of_a_text_file_are_those_of_its_rows(tmp_path):
    (tmp_path / "a.txt").write_text("a\n\nb\n", encoding="utf-8")
    assert list(read_file(tmp_path / "a.txt").lines) == [1, 3]


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


def write(path: Path) -> Path:
    """TEXTS and LABELS in the form that the file's suffix names."""
    records = [{"text": text, "label": label} for text, label in zip(TEXTS, LABELS, strict=True)]
    quoted = TEXTS[1].replace('"', '""')
    match path.suffix:
        case ".parquet":
            pq.write_table(pa.Table.from_pylist(records), path)
        case ".json":
            path.write_text(json.dumps(records))
        case ".jsonl":
            path.write_text("\n".join(json.dumps(record) for record in records) + "\n\n")
        case ".csv":
            path.write_text(f'\ufefftext,label\n{TEXTS[0]},yes\n"{quoted}",no\n{TEXTS[2]},yes\n', encoding="utf-8")
        case ".tsv":
            path.write_text("text\tlabel\r\n" + "".join(f"{r['text']}\t{r['label']}\r\n" for r in records))
    return path


@pytest.mark.parametrize("form", ["parquet", "json", "jsonl", "csv", "tsv"])
def test_files_of_every_form_contain_the_same_rows(tmp_path, form):
    corpus = in_file(write(tmp_path / f"a.{form}"))
    rows = load_rows(corpus, "train")
    assert rows.table.to_pydict() == {"text": TEXTS, "label": LABELS} and rows.names == ["text", "label"]
    wanted = load_rows(corpus, "train", ["label", "no such column"])
    assert wanted.table.to_pydict() == {"label": LABELS} and wanted.names == ["text", "label"]


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


LONG = "word " * 30_011  # as long as a book
LONG_ROW = {"text": [LONG], "label": ["yes"]}
TWO = {"words": [["EU"], ["buys"]], "column_2": [["NNP"], ["VBZ"]]}


@pytest.mark.parametrize(
    ("name", "content", "rows"),
    [
        # only line feeds end lines, and keys that a line lacks are null
        ("a.jsonl", '\ufeff{"x": "1\u20282"}\n\r\n{"x": "3", "y": 4}\n', {"x": ["1\u20282", "3"], "y": [None, 4]}),
        ("a.txt", "\ufeffEU rejects\r\n\r\n  \nNew\u2028York here", {"text": ["EU rejects", "New\u2028York here"]}),
        *((f"a.{form}", f"text{by}label\n{LONG}{by}yes\n", LONG_ROW) for form, by in (("csv", ","), ("tsv", "\t"))),
        *(("a.conll", f"EU\tNNP\n{spaces}\nbuys\tVBZ\n", TWO) for spaces in (" ", "\t", " \t  ", "\u00a0")),
    ],
)
def test_files_are_read_as_they_are_meant(tmp_path, name, content, rows):
    (tmp_path / name).write_text(content, encoding="utf-8", newline="")
    assert load_rows(in_file(tmp_path / name), "train").table.to_pydict() == rows


@pytest.mark.parametrize("form", ["json", "jsonl"])
def test_columns_that_nobody_wants_may_mix_types(tmp_path, form):
    records = [{"text": "a", "x": 1}, {"text": "b", "x": "s"}]
    file = tmp_path / f"a.{form}"
    file.write_text(json.dumps(records) if form == "json" else "\n".join(map(json.dumps, records)))
    assert load_rows(in_file(file), "train", ["text"]).table.to_pydict() == {"text": ["a", "b"]}
    with pytest.raises(InputError, match=r"Column x of .* mixes types of values"):
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


CONLL = "-DOCSTART- -X- O\n\nEU NNP B-ORG\nrejects VBZ O\n\n\nNew\u00a0York NNP B-LOC\n"
NAMED = {
    "words": [["EU", "rejects"], ["New\u00a0York"]],
    "pos": [["NNP", "VBZ"], ["NNP"]],
    "ner": [["B-ORG", "O"], ["B-LOC"]],
}


@pytest.mark.parametrize("separator", [" ", "\t", "  "])
def test_conll_sentences(tmp_path, separator):
    file = tmp_path / "a.conll"
    file.write_text(CONLL.replace(" ", separator), encoding="utf-8")
    assert load_rows(in_file(file, columns=("words", "pos", "ner")), "train").table.to_pydict() == NAMED
    assert load_rows(in_file(file), "train").names == ["words", "column_2", "column_3"]
    with pytest.raises(InputError, match=r"has 3 columns, but the corpus lists 2"):
        load_rows(in_file(file, columns=("words", "ner")), "train")


@pytest.mark.parametrize("separator", [" ", "\t"])
def test_comments_of_conll_files_are_no_words(tmp_path, separator):
    file = tmp_path / "a.conll"
    text = CONLL.replace("EU", "# sent_id = 7\n# text of it\nEU").replace("-DOCSTART- -X- O", "# newdoc")
    file.write_text(re.sub("(?m)^(?!#)(.*)$", lambda line: line[0].replace(" ", separator), text), encoding="utf-8")
    corpus = in_file(file, columns=("words", "pos", "ner"))
    assert load_rows(corpus, "train").table.to_pydict() == NAMED
    with open(file, "a", encoding="utf-8") as lines:
        lines.write(separator.join(["\n#", "SYM", "O"]))
    assert load_rows(corpus, "train").table["words"].to_pylist()[-1] == ["#"], "a word like any other"


def test_messages_name_the_line_where_a_sentence_begins(tmp_path):
    file = tmp_path / "a.conll"
    file.write_text("# id\nEU\tNNP\n\n\nbuys\tVBZ\n\u00a0\tNNP\n", encoding="utf-8")
    columns = Columns(str(file), load_rows(in_file(file), "train"))
    with pytest.raises(InputError, match=r"an empty word \(or only spaces\) .* in 1 of 2 rows \(line 5\)"):
        columns.words("words")


@pytest.mark.parametrize("suffix", ["json", "jsonl"])
def test_an_object_of_columns_is_no_row(tmp_path, suffix):
    file = tmp_path / f"a.{suffix}"
    file.write_text('{"text": ["a", "b"], "words": [["a"], ["b"]], "label": [0, 1]}')
    columns = Columns(str(file), read_file(file))
    wanted = "must contain .*; write one object for each row, on a line of its own or in an array"
    for read, name in ((columns.texts, "text"), (columns.words, "words")):
        with pytest.raises(InputError, match=wanted):
            read(name)
    with pytest.raises(InputError, match=wanted):
        columns.classes("label", None, None)


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("a.json", b'{\n"text": ["a"]}', r"line 1 cannot be read as JSON .*; write one object for each row"),
        ("a.jsonl", b'{"label": %d}' % 10**30, r"Column label of .* contains a whole number of more than 64 bits"),
        ("a.jsonl", b'{"label": 1}\n{"label": "x"}', r"Column label of .* mixes types of values"),
        ("a.csv", b"text,label\none,two,three\n", r"line 2 has 3 values for the columns text, label"),
        ("a.csv", b'text,label\n"a\nb",2\none\n', r"line 4 has 1 value for the columns text, label"),
        ("a.csv", b'text,label\na,1\n"never closed,1\n\n', r"begins in line 3 is malformed \(unexpected end of data"),
        ("a.csv", b"text,text\na,b\n", r"distinct column names"),
        ("a.csv", b"", r"distinct column names"),
        ("a.csv", b"text,label\n\xff,1\n", r"not UTF-8 text \(invalid start byte\)"),
        ("a.csv", "text,label\na,1\n".encode("utf-16-le"), r"not UTF-8 text \(it contains NUL bytes, as UTF-16"),
        ("a.csv", "text,label\na,1\n".encode("utf-16"), r"not UTF-8"),
        ("a.jsonl", b'{"text": "a"}\n\n{"text": \n', r"line 3 cannot be read as JSON"),
        ("a.json", b'[{"text": "a"},', r"cannot be read as json"),
        ("a.json", b'["a", "b"]', r"must contain objects"),
        ("a.parquet", b"PAR1 not really", r"cannot be read as parquet"),
        ("a.conll", b"# id\nEU NNP\nrejects\n", r"line 3 has 1 column, but the lines above it have 2"),
    ],
)
def test_bad_files_are_named(tmp_path, name, content, said):
    file = tmp_path / name
    file.write_bytes(content)
    with pytest.raises(InputError, match=said) as caught:
        load_rows(in_file(file), "train")
    assert str(file) in str(caught.value)


def test_missing_files_are_named(tmp_path):
    for read in (lambda corpus: load_rows(corpus, "train"), lambda corpus: source_digests(corpus, None)):
        with pytest.raises(InputError, match=r"There is no file .*nope\.csv"):
            read(in_file(tmp_path / "nope.csv"))


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
