"""Models and datasets of the hub, in a mirror or in the cache; the places of models, and the digests of their files."""

import hashlib
import importlib.util
import json
import re
import shutil
import sys
import types
from pathlib import Path
from types import SimpleNamespace

import huggingface_hub
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from huggingface_hub.errors import LocalEntryNotFoundError
from refusals import input_error
from tiny import ABSENT, CONFIG, corpus_of, with_keys, write_model

import papa
from papa.config.reading import config_of
from papa.config.settings import FolderModel, HubModel, Machine, PackageModel
from papa.data.hub import (
    CONFIGS_AND_TOKENIZERS,
    download,
    fetch,
    files_of_configs,
    files_of_model,
    folder_of,
    is_local,
)
from papa.data.sources import load_splits, source_digests
from papa.data.weights import facts_in, folder_in_package, model_source, named, weights_digest

COMMIT = "c" * 40
WEIGHTS = hashlib.sha256(b"weights").hexdigest()
MODEL = HubModel(hub="some/model", revision="abc")
TEXTS = ["A cat sat.", 'She said "NA", twice', "1984"]


@pytest.fixture(autouse=True)
def nowhere(monkeypatch, tmp_path):
    """No test can reach the network or the user's caches."""
    import socket

    import datasets

    def refuse(*_, **__):
        raise OSError("no network in tests")

    monkeypatch.setenv("XDG_CACHE_HOME", f"{tmp_path}/own cache")
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", f"{tmp_path}/hub cache")
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", False)


class FakeHub:
    """The repositories in a folder, owner/name/…; `cache` has a folder of files for each that was downloaded."""

    def __init__(self, folder, cache):
        self.folder = folder
        self.cache = cache
        self.asked = []
        self.mismatches = []
        self.error = None

    def info(self, hub, revision=None):
        self.asked.append(f"info {hub}@{revision}")
        if self.error is not None:
            raise self.error
        folder = self.folder / hub
        files = [
            SimpleNamespace(rfilename=str(path.relative_to(folder)))
            for path in folder.rglob("*")
            if path.is_file()
        ]
        return SimpleNamespace(sha=COMMIT, siblings=files, card_data=None)

    def snapshot(self, hub, *, repo_type, revision=None, allow_patterns=(), local_files_only=False):
        target = self.cache / f"{repo_type}s--{hub.replace('/', '--')}/snapshots" / COMMIT
        if local_files_only:
            if not target.is_dir() or revision not in (None, "abc", COMMIT):
                raise LocalEntryNotFoundError("not in the cache")
            return str(target)
        self.asked.append(f"download {hub}@{revision}: {' '.join(sorted(allow_patterns))}")
        for name in allow_patterns:
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            (target / name).write_bytes((self.folder / hub / name).read_bytes())
        return str(target)

    def verify(self, hub, *, repo_type, revision):
        assert revision == COMMIT
        self.asked.append(f"verify {hub}")
        return SimpleNamespace(mismatches=[{"path": name} for name in self.mismatches])


@pytest.fixture
def hub(monkeypatch, tmp_path):
    fake = FakeHub(tmp_path / "there", tmp_path / "hub cache")
    for name, call in (
        ("model_info", fake.info),
        ("dataset_info", fake.info),
        ("verify_repo_checksums", fake.verify),
    ):
        monkeypatch.setattr(huggingface_hub.HfApi, name, staticmethod(call))
    monkeypatch.setattr(huggingface_hub, "snapshot_download", fake.snapshot)
    return fake


def mirror(folder, readme=True):
    """A folder with a dataset `some/data` of the config `tiny`, its label a numbered class with names."""
    features = {"text": {"dtype": "string", "_type": "Value"}}
    features["label"] = {"names": ["no", "yes"], "_type": "ClassLabel"}
    features["tags"] = {"feature": {"names": ["O", "X"], "_type": "ClassLabel"}, "_type": "List"}
    table = pa.table({"text": TEXTS, "label": [1, 0, 1], "tags": [[0], [1], [0]]})
    table = table.replace_schema_metadata(
        {"huggingface": json.dumps({"info": {"features": features}})}
    )
    lines = ["---", "configs:", "- config_name: tiny", "  data_files:"]
    for split in ("train", "validation_matched"):
        # without a README, the hub's own conversion has the splits as folders
        name = f"{split}-00000-of-00001" if readme else f"{split.split('_')[0]}/0000"
        file = folder / "some/data/tiny" / f"{name}.parquet"
        file.parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(table, file)
        lines += [f"  - split: {split}", f"    path: tiny/{split}-*"]
    if readme:
        (folder / "some/data/README.md").write_text("\n".join([*lines, "---", ""]))
    return Machine(hub_mirror=str(folder))


def on_hub(**keys):
    return corpus_of(**{"hub": "some/data", "config": "tiny", "first": "text", **keys})


def model_folder(folder, weights=b"weights"):
    folder.mkdir(parents=True)
    (folder / "config.json").write_text("{}")
    (folder / "model.safetensors").write_bytes(weights)
    return folder


def source_of(model, **machine):
    """The model `small` on a machine with these settings."""
    return model_source("small", model, Machine(**machine))


# -- what a run downloads ---------------------------------------------------------------------------------------------


def test_a_run_downloads_what_its_jobs_read_once_and_checks_what_is_new(hub):
    write_model(hub.folder / "some/model")
    (hub.folder / "some/model/pytorch_model.bin").write_bytes(b"not needed")
    mirror(hub.folder)
    corpus = on_hub(first="text", slots=13, validation="validation_matched").model_dump(
        exclude_unset=True
    )
    keys = {
        "models.tiny": {"hub": "some/model"},
        "corpora.sentences": corpus,
        "run.tasks": ["animals"],
    }
    config = config_of(
        with_keys(CONFIG, keys | {"tasks.animals.label": "label", "tasks.animals.subset": ABSENT})
    )
    assert model_source("tiny", config.models["tiny"], config.machine).folder == ""
    assert not hub.asked
    machine = fetch(config, config.machine, print)
    of_model = "config.json model.safetensors tokenizer.json tokenizer_config.json"
    files = (
        "README.md tiny/train-00000-of-00001.parquet tiny/validation_matched-00000-of-00001.parquet"
    )
    expected = {
        "info some/model@None",
        f"download some/model@None: {of_model}",
        "verify some/model",
        "info some/data@None",
        f"download some/data@None: {files}",
        "verify some/data",
    }
    assert set(hub.asked) == expected
    assert len(hub.asked) == len(expected)
    assert all(folder.endswith(COMMIT) for folder in machine.snapshots.values())
    hub.asked.clear()
    fetch(config, config.machine, print)
    assert not [asked for asked in hub.asked if asked.startswith("verify")], (
        "files of the cache were checked before"
    )
    hub.asked.clear()
    rows = load_splits(config.corpora["sentences"], None, machine)
    assert [rows[split].table["text"].to_pylist() for split in ("train", "validation")] == [
        TEXTS,
        TEXTS,
    ]
    files = model_source("tiny", config.models["tiny"], machine)
    assert files == model_source("tiny", config.models["tiny"], Machine())
    assert files.folder == machine.snapshots["model some/model@main"]
    assert files.sizes == {
        "layers": 2,
        "hidden": 8,
    }
    assert papa.load_model(files.folder, device="cpu").layers == 2
    assert not hub.asked, "jobs and `papa plan` ask for nothing"


def test_what_is_in_the_mirror_is_never_downloaded(hub, tmp_path):
    model_folder(tmp_path / "mirror/some/model")
    keys = {
        "models.tiny": {"hub": "some/model"},
        "hub_mirror": f"{tmp_path}/mirror",
        "run.tasks": ["tags"],
    }
    config = config_of(with_keys(CONFIG, keys))
    assert fetch(config, config.machine, print).snapshots == {}
    assert not hub.asked
    away = config_of(with_keys(CONFIG, keys | {"hub_mirror": "~/mirror"}))
    with input_error(r"^hub_mirror: there is no folder '~/mirror' on this machine; correct"):
        assert away.machine


def test_without_an_answer_the_cache_is_read(hub):
    model_folder(hub.folder / "some/model")
    hub.error = ConnectionError("no answer\nof the hub")
    said = []
    with input_error(
        r"The model some/model at revision abc .* \(no answer\); check the network",
    ):
        download("model", "some/model", "abc")
    hub.error = None
    folder = download("model", "some/model", "abc")
    hub.error = ConnectionError("no answer\nof the hub")
    assert download("model", "some/model", "abc", say=said.append) == folder
    assert said == [
        f"The model some/model is read from the hub's cache, at commit {COMMIT} (no answer)."
    ]
    (folder / "model.safetensors").unlink()  # as if only config.json had been read
    assert folder_of("model", "some/model", "abc", Machine()) is None
    with input_error("cannot be downloaded"):
        download("model", "some/model", "abc")


def test_a_damaged_file_is_deleted(hub):
    model_folder(hub.folder / "some/model")
    hub.mismatches = ["model.safetensors"]
    with input_error(
        r"^model\.safetensors of the model some/model differs from .*; run the same",
    ):
        download("model", "some/model")
    assert [path.name for path in hub.cache.rglob("*") if path.is_file()] == ["config.json"]


def test_files_that_are_downloaded():
    others = [
        "config.json",
        "onnx/config.json",
        "README.md",
        "tf_model.h5",
        "vocab.txt",
        "pytorch_model.bin",
    ]
    weights = [
        "model-00001-of-00002.safetensors",
        "model-00002-of-00002.safetensors",
        "model.safetensors.index.json",
    ]
    assert files_of_model("m", [*others, *weights]) == [*weights, "config.json", "vocab.txt"]
    assert files_of_model("m", others) == ["pytorch_model.bin", "config.json", "vocab.txt"]
    with input_error(r"cannot load the model m: .* and the repository .*1.h5.{,200} more."):
        files_of_model("m", [f"{n}.h5" for n in range(999)])
    files = ["README.md", "a/train.csv", "b/train.csv", "c.csv"]
    paths = [{"split": "train", "path": ["./a/*.csv", "**/c.csv"]}]
    card = [{"config_name": "b", "data_files": [{"split": "train", "path": "c.*"}]}]
    card += [{"config_name": "d", "data_files": paths}]
    for config, listed, names in (
        ("a", None, files[:2]),
        ("b", card, ["README.md", "c.csv"]),
        ("d", card, ["README.md", "a/train.csv", "c.csv"]),
        ("x", None, files),
    ):
        assert files_of_configs(files, listed, [config]) == names
    assert files_of_configs(files, card[:1], [None]) == ["README.md", "c.csv"]


# -- datasets ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("readme", [True, False])
def test_rows_are_those_of_the_files_as_they_are_now(tmp_path, readme):
    """Without a README, folders stand for configs."""
    machine = mirror(tmp_path, readme=readme)
    corpus = on_hub(validation="validation_matched" if readme else "validation")
    rows = load_splits(corpus, ["text"], machine)["validation"]
    assert rows.table.to_pydict() == {"text": TEXTS}
    assert rows.names == ["text", "label", "tags"]
    rows = load_splits(corpus, None, machine)["train"]
    assert rows.table["text"].to_pylist() == TEXTS
    assert rows.class_names == {
        "label": ["no", "yes"],
        "tags": ["O", "X"],
    }
    (file,) = tmp_path.rglob("train*.parquet") if readme else tmp_path.rglob("train/*.parquet")
    pq.write_table(pq.read_table(file).slice(1), file)
    assert load_splits(corpus, None, machine)["train"].table["text"].to_pylist() == TEXTS[1:]


def test_digests_of_sources_are_those_of_their_content(hub, tmp_path):
    (tmp_path / "a.csv").write_bytes(b"text\na\n")
    corpus = corpus_of(files={"train": f"{tmp_path}/a.csv"}, first="text")
    assert source_digests(corpus, Machine()) == {"train": hashlib.sha256(b"text\na\n").hexdigest()}
    machine = mirror(tmp_path / "mirror")
    folder = Path(str(machine.hub_mirror))
    assert (
        source_digests(on_hub(), Machine())
        is source_digests(on_hub(hub="other/data"), machine)
        is None
    )

    def now():
        return source_digests(on_hub(), machine)

    before = now()
    other = folder / "some/data/other/train.parquet"
    other.parent.mkdir()
    other.write_bytes(b"of another config")
    assert now() == before != source_digests(on_hub(config="other"), machine)
    next(folder.rglob("tiny/train*")).write_bytes(b"changed")
    assert now() != before
    shutil.copytree(folder / "some/data", hub.folder / "some/data")
    download("dataset", "some/data", configs=["tiny"])
    assert source_digests(on_hub(), Machine()) == now(), "the place decides nothing"
    (card := folder / "some/data/README.md").write_text(
        "---\nconfigs: [{config_name: tiny, data_files: x/*}]\n---\n"
    )
    (card.parent / "x").mkdir()
    found = [(card.parent / "x/train.csv").write_text(text) and now() for text in "ab"]
    assert found[0] != found[1], "a card may name files outside the folder of a config"


# -- models -----------------------------------------------------------------------------------------------------------


def test_places_of_a_model_in_their_order(hub, tmp_path):
    nowhere = source_of(MODEL)
    assert nowhere.folder == ""
    assert not nowhere.sizes
    assert model_source("other", HubModel(hub="some/model"), Machine()).digest != nowhere.digest
    model_folder(hub.folder / "some/model")
    places = [download("model", "some/model", "abc")]
    places += [model_folder(tmp_path / name) for name in ("snapshot", "mirror/some/model")]
    keys = {
        "snapshots": {"model some/model@abc": str(places[1])},
        "hub_mirror": f"{tmp_path}/mirror",
    }
    found = [source_of(MODEL, **dict([*keys.items()][:number])) for number in range(3)]
    assert [files.folder for files in found] == [*map(str, places)]
    own = FolderModel(path=str(model_folder(tmp_path / "named")), hub="some/model", revision="abc")
    found.append(source_of(own, **keys))
    assert found[-1].folder == own.path
    assert {files.digest for files in found} == {found[0].digest} != {nowhere.digest}, (
        "only content decides"
    )


def test_a_model_in_a_package(monkeypatch, tmp_path):
    def place(package):
        return source_of(PackageModel(package=package)).folder

    folder = model_folder(tmp_path / "inside")
    monkeypatch.setitem(
        sys.modules, "some_package", types.SimpleNamespace(get_model_path=lambda: folder)
    )
    assert place("some_package") == str(folder)
    with input_error(r"not_installed_anywhere\.small, which is not installed"):
        place("not_installed_anywhere.small")


@pytest.mark.parametrize(
    ("name", "content", "changes"),
    [
        ("model.safetensors", b"others", True),
        ("config.json", b'{"hidden_size": 8}', True),
        ("spm.model", b"pieces", True),
        ("tokenizer.json", b"{}", True),
        ("README.md", b"about it", False),
        ("onnx/config.json", b"{}", False),
    ],
)
def test_the_digest_of_a_model_is_that_of_all_files_that_decide_numbers(
    tmp_path, name, content, changes
):
    model = FolderModel(path=str(model_folder(tmp_path / "m")))
    before = source_of(model)
    (tmp_path / "m" / name).parent.mkdir(exist_ok=True)
    (tmp_path / "m" / name).write_bytes(content)
    assert (source_of(model).digest != before.digest) == changes


def test_weights_that_are_not_those_of_the_config_are_refused(tmp_path):
    path = str(model_folder(tmp_path / "m"))
    assert source_of(FolderModel(path=path, sha256=WEIGHTS)).folder == path
    said = f"The weights of model small have SHA-256 {WEIGHTS}, but `sha256` in the config is {'0' * 64}; use the"
    with input_error(said):
        source_of(FolderModel(path=path, sha256="0" * 64))
    with input_error("but there is no such folder; `path` must be the folder of a transformers"):
        source_of(FolderModel(path=f"{path}/nope"))


def test_files_of_all_tokenizers_are_downloaded_and_have_a_digest():
    library = Path(importlib.util.find_spec("transformers").origin).parent
    code = "\n".join(path.read_text() for path in library.rglob("tokenization*.py"))
    tables = re.findall(r"VOCAB_FILES_NAMES\s*=\s*\{(.*?)\}", code, re.DOTALL)
    names = {name for table in tables for name in re.findall(r':\s*"([^"]+)"', table)} | {
        "tiktoken.model"
    }
    assert {"spm.model", "vocab.txt", "tokenizer.model"} <= names
    assert [name for name in names if not re.fullmatch(CONFIGS_AND_TOKENIZERS, name)] == []


def test_digest_of_shards_and_of_bin(tmp_path):
    folder = model_folder(tmp_path / "m")
    place = str(folder)
    assert weights_digest(place, "small") == WEIGHTS
    (folder / "model.safetensors").unlink()
    with input_error(r"none of model\.safetensors"):
        weights_digest(place, "small")
    (folder / "pytorch_model.bin").write_bytes(b"bin")
    assert weights_digest(place, "small") == hashlib.sha256(b"bin").hexdigest()
    shards = "defgabc"  # a set of seven names is hardly ever in their order by chance
    index = json.dumps(
        {
            "weight_map": {
                f"{shard}{part}": f"{shard}.safetensors" for part in "12" for shard in shards
            }
        }
    )
    (folder / "model.safetensors.index.json").write_text(index)
    for shard in shards[:-1]:
        (folder / f"{shard}.safetensors").write_text(shard)
    with input_error(r"lists 'c\.safetensors', which is not a file"):
        weights_digest(place, "small")
    (folder / "c.safetensors").write_text("c")
    assert weights_digest(place, "small") == hashlib.sha256(f"{index}abcdefg".encode()).hexdigest()


@pytest.mark.parametrize("listed", ["../../etc/passwd", "/etc/passwd", "a/b.safetensors", "..", ""])
def test_an_index_lists_only_files_of_its_folder(tmp_path, listed):
    folder = model_folder(tmp_path / "m")
    (folder / "model.safetensors").unlink()
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"x": listed}}))
    with input_error(r"index\.json lists '.*', which is not a file in its folder"):
        weights_digest(str(folder), "small")


@pytest.mark.parametrize(
    "place", ["./models/small", "/models/small", "~/small", "a/b/c", "a b", "a//b", "a--b/c"]
)
def test_what_can_only_be_a_folder_is_never_asked_of_the_hub(monkeypatch, place):
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    assert is_local(place)
    assert not is_local("some/model")
    assert not is_local("bert-base-uncased")
    with input_error("is neither a folder here, nor an id on the hub"):
        named(place)


def test_a_package_is_named_as_python_or_as_pip_names_it(monkeypatch, tmp_path):
    """Its code is not run."""
    package = tmp_path / "site/tiny_bert_l2"
    about = tmp_path / "site/tiny_bert_l2-1.0.dist-info"
    for path, content in {
        package / "__init__.py": "raise SystemExit('code of others was run')",
        package / "model/config.json": '{"model_type": "bert"}',
        about / "METADATA": "Metadata-Version: 2.1\nName: tiny-bert-L2\nVersion: 1.0\n",
        about / "RECORD": "tiny_bert_l2/__init__.py,,\ntiny_bert_l2/model/config.json,,\n",
    }.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
    monkeypatch.syspath_prepend(tmp_path / "site")
    monkeypatch.chdir(tmp_path)
    assert named("tiny_bert_l2") == named("tiny-bert-L2") == {"package": "tiny_bert_l2"}
    assert facts_in(folder_in_package("tiny_bert_l2")) == {"model_type": "bert"}
    assert named("owner/tiny-bert-L2") == {"hub": "owner/tiny-bert-L2"}
    (tmp_path / "tiny_bert_l2").mkdir()
    assert named("tiny_bert_l2") == {"path": "tiny_bert_l2"}, "a folder comes first"
