"""Models and datasets of the hub, in a mirror or in the cache; the places of models, and the digests of their files."""

import hashlib
import importlib.util
import json
import re
import sys
import types
from pathlib import Path
from types import SimpleNamespace

import huggingface_hub
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from huggingface_hub.errors import LocalEntryNotFoundError
from tiny import ABSENT, CONFIG, with_keys, write_model

import papa
from papa.config.reading import config_of
from papa.config.settings import Machine, corpus_of
from papa.config.stages import ModelId
from papa.config.study import Plan
from papa.data.hub import CONFIGS_AND_TOKENIZERS, download, files_of_configs, files_of_model, is_local, with_snapshots
from papa.data.local_digests import LocalSourceDigests
from papa.data.named import facts_in, folder_in_package, named
from papa.data.sources import load_rows, source_digests
from papa.data.weights import digest_of_model, known_weights, location_of, weights_digest
from papa.errors import InputError

COMMIT = "c" * 40
MODEL = ModelId(name="small", hub="some/model", revision="abc")
TEXTS = ["A cat sat.", 'She said "NA", twice', "1984"]


@pytest.fixture(autouse=True)
def nowhere(monkeypatch, tmp_path):
    """No test can reach the network or the user's caches."""
    import socket

    import datasets

    def refuse(*_, **__):
        raise OSError("no network in tests")

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "own cache"))
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path / "hub cache"))
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", False)


class FakeHub:
    """The repositories in a folder, owner/name/…; `cache` has a folder of files for each that was downloaded."""

    def __init__(self, folder, cache):
        self.folder, self.cache, self.asked, self.mismatches, self.error = folder, cache, [], [], None

    def info(self, hub, revision=None):
        self.asked.append(f"info {hub}@{revision}")
        if self.error is not None:
            raise self.error
        names = [str(path.relative_to(self.folder / hub)) for path in (self.folder / hub).rglob("*") if path.is_file()]
        return SimpleNamespace(sha=COMMIT, siblings=[SimpleNamespace(rfilename=name) for name in names], card_data=None)

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
    for name, call in (("model_info", fake.info), ("dataset_info", fake.info), ("verify_repo_checksums", fake.verify)):
        monkeypatch.setattr(huggingface_hub.HfApi, name, staticmethod(call))
    monkeypatch.setattr(huggingface_hub, "snapshot_download", fake.snapshot)
    return fake


def mirror(folder, readme=True):
    """A folder with a dataset `some/data` of the config `tiny`, its label a numbered class with names."""
    features = {"text": {"dtype": "string", "_type": "Value"}}
    features["label"] = {"names": ["no", "yes"], "_type": "ClassLabel"}
    features["tags"] = {"feature": {"names": ["O", "X"], "_type": "ClassLabel"}, "_type": "List"}
    table = pa.table({"text": TEXTS, "label": [1, 0, 1], "tags": [[0], [1], [0]]})
    table = table.replace_schema_metadata({"huggingface": json.dumps({"info": {"features": features}})})
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


def small(folder):
    return Machine(models={"small": {"path": str(folder)}})


# -- what a run downloads ---------------------------------------------------------------------------------------------


def test_a_run_downloads_what_its_jobs_read_once_and_checks_what_is_new(hub, tmp_path):
    write_model(hub.folder / "some/model")
    (hub.folder / "some/model/pytorch_model.bin").write_bytes(b"not needed")
    mirror(hub.folder)
    corpus = on_hub(first="text", slots=13, validation="validation_matched").model_dump(exclude_unset=True)
    keys = {"models.tiny": {"hub": "some/model"}, "corpora.sentences": corpus, "run.tasks": ["animals"]}
    config = config_of(with_keys(CONFIG, keys | {"tasks.animals.label": "label", "tasks.animals.subset": ABSENT}))
    study = Plan(config, tmp_path, LocalSourceDigests(config.machine))
    machine = with_snapshots(config.machine, study.jobs(), print)
    of_model = "config.json model.safetensors tokenizer.json tokenizer_config.json"
    files = "README.md tiny/train-00000-of-00001.parquet tiny/validation_matched-00000-of-00001.parquet"
    expected = {
        *("info some/model@None", f"download some/model@None: {of_model}", "verify some/model"),
        *("info some/data@None", f"download some/data@None: {files}", "verify some/data"),
    }
    assert set(hub.asked) == expected and len(hub.asked) == len(expected)
    assert all(folder.endswith(COMMIT) for folder in machine.snapshots.values())
    hub.asked.clear()
    with_snapshots(config.machine, study.jobs(), print)
    assert not [asked for asked in hub.asked if asked.startswith("verify")], "files of the cache were checked before"
    hub.asked.clear()
    assert load_rows(config.corpora["sentences"], "train", machine=machine).table["text"].to_pylist() == TEXTS
    identity = ModelId.of("tiny", config.models["tiny"])
    place = machine.snapshots["model some/model@main"]
    assert location_of(identity, machine) == location_of(identity, Machine()) == place
    assert papa.load_model(place, device="cpu").layers == 2
    assert not hub.asked, "jobs and `papa plan` ask for nothing"


def test_what_is_in_the_mirror_is_never_downloaded(hub, tmp_path):
    model_folder(tmp_path / "mirror/some/model")
    keys = {"models.tiny": {"hub": "some/model"}, "hub_mirror": str(tmp_path / "mirror"), "run.tasks": ["tags"]}
    config = config_of(with_keys(CONFIG, keys))
    assert with_snapshots(config.machine, Plan(config, tmp_path).jobs(), print).snapshots == {} and not hub.asked


def test_without_an_answer_the_cache_is_read(hub):
    model_folder(hub.folder / "some/model")
    hub.error, said = ConnectionError("no answer\nof the hub"), []
    with pytest.raises(InputError, match=r"The model some/model at revision abc .* \(no answer\); check the network"):
        download("model", "some/model", "abc")
    hub.error = None
    folder = download("model", "some/model", "abc")
    hub.error = ConnectionError("no answer\nof the hub")
    assert download("model", "some/model", "abc", say=said.append) == folder
    assert said == [f"The model some/model is read from the hub's cache, at commit {COMMIT} (no answer)."]
    (folder / "model.safetensors").unlink()
    with pytest.raises(InputError, match="cannot be downloaded"):
        download("model", "some/model", "abc")


def test_a_damaged_file_is_deleted(hub):
    model_folder(hub.folder / "some/model")
    hub.mismatches = ["model.safetensors"]
    with pytest.raises(InputError, match=r"^model\.safetensors of the model some/model differs from .*; run the same"):
        download("model", "some/model")
    assert [path.name for path in hub.cache.rglob("*") if path.is_file()] == ["config.json"]


def test_files_that_are_downloaded():
    others = ["config.json", "onnx/config.json", "README.md", "tf_model.h5", "vocab.txt", "pytorch_model.bin"]
    weights = ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors", "model.safetensors.index.json"]
    assert files_of_model("m", [*others, *weights]) == [*weights, "config.json", "vocab.txt"]
    assert files_of_model("m", others) == ["pytorch_model.bin", "config.json", "vocab.txt"]
    with pytest.raises(InputError, match=r"cannot load the model m: .* and the repository .*1.h5.{,200} more."):
        files_of_model("m", [f"{n}.h5" for n in range(999)])
    files = ["README.md", "a/train.csv", "b/train.csv", "c.csv"]
    card = [{"config_name": "b", "data_files": [{"split": "train", "path": "c.*"}]}]
    for config, listed, names in (("a", None, files[:2]), ("b", card, ["README.md", "c.csv"]), ("x", None, files)):
        assert files_of_configs(files, listed, [config]) == names
    assert files_of_configs(files, card, [None]) == ["README.md", "c.csv"]


# -- datasets ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("readme", [True, False])
def test_rows_are_those_of_the_files_as_they_are_now(tmp_path, readme):
    """Without a README, folders stand for configs."""
    machine = mirror(tmp_path, readme=readme)
    corpus = on_hub(validation="validation_matched" if readme else "validation")
    rows = load_rows(corpus, "validation", ["text"], machine)
    assert rows.table.to_pydict() == {"text": TEXTS} and rows.names == ["text", "label", "tags"]
    rows = load_rows(on_hub(), "train", machine=machine)
    assert rows.table["text"].to_pylist() == TEXTS and rows.class_names == {"label": ["no", "yes"], "tags": ["O", "X"]}
    (file,) = tmp_path.rglob("train*.parquet") if readme else tmp_path.rglob("train/*.parquet")
    pq.write_table(pq.read_table(file).slice(1), file)
    assert load_rows(on_hub(), "train", machine=machine).table["text"].to_pylist() == TEXTS[1:]


def test_digests_of_sources_are_those_of_their_content(tmp_path):
    (tmp_path / "a.csv").write_bytes(b"text\na\n")
    corpus = corpus_of(files={"train": str(tmp_path / "a.csv")}, first="text")
    assert source_digests(corpus, None) == {"train": hashlib.sha256(b"text\na\n").hexdigest()}
    folder = mirror(tmp_path / "hub").hub_mirror
    assert source_digests(on_hub(), None) == source_digests(on_hub(hub="other/data"), folder) == {}
    before, other = source_digests(on_hub(), folder), Path(folder, "some/data/other/train.parquet")
    other.parent.mkdir()
    other.write_bytes(b"of another config")
    assert source_digests(on_hub(), folder) == before != source_digests(on_hub(config=None), folder)
    next(Path(folder).rglob("tiny/train*")).write_bytes(b"changed")
    assert source_digests(on_hub(), folder) != before and list(before) == ["mirror"]


# -- models -----------------------------------------------------------------------------------------------------------


def test_places_of_a_model_in_their_order(hub, tmp_path):
    with pytest.raises(InputError, match=r"^Model small \(some/model@abc\) is not on this machine; start a run"):
        location_of(MODEL, Machine())
    model_folder(hub.folder / "some/model")
    places = [download("model", "some/model", "abc")]
    places += [model_folder(tmp_path / name) for name in ("snapshot", "mirror/some/model", "named")]
    keys = {"snapshots": {"model some/model@abc": str(places[1])}, "hub_mirror": str(tmp_path / "mirror")}
    keys["models"] = {"small": {"path": str(places[3])}}
    for number, place in enumerate(places):
        assert location_of(MODEL, Machine(**dict([*keys.items()][:number]))) == str(place)


def test_a_model_in_a_package(monkeypatch, tmp_path):
    def place(package):
        return location_of(MODEL, Machine(models={"small": {"package": package}}))

    folder = model_folder(tmp_path / "inside")
    monkeypatch.setitem(sys.modules, "some_package", types.SimpleNamespace(get_model_path=lambda: folder))
    assert place("some_package") == str(folder)
    with pytest.raises(InputError, match=r"not_installed_anywhere\.small, which is not installed"):
        place("not_installed_anywhere.small")


def test_files_of_all_tokenizers_are_downloaded_and_have_a_digest(tmp_path):
    library = Path(importlib.util.find_spec("transformers").origin).parent
    code = "\n".join(path.read_text(encoding="utf-8") for path in library.rglob("tokenization*.py"))
    tables = re.findall(r"VOCAB_FILES_NAMES\s*=\s*\{(.*?)\}", code, re.DOTALL)
    names = {name for table in tables for name in re.findall(r':\s*"([^"]+)"', table)} | {"tiktoken.model"}
    assert {"spm.model", "vocab.txt", "tokenizer.model"} <= names
    assert [name for name in names if not re.fullmatch(CONFIGS_AND_TOKENIZERS, name)] == []
    folder = model_folder(tmp_path / "m")
    before = digest_of_model(MODEL, "w", small(folder))
    (folder / "spm.model").write_bytes(b"pieces")
    assert digest_of_model(MODEL, "w", small(folder)) != before


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
    with pytest.raises(InputError, match=r"lists 'c\.safetensors', which is not a file"):
        weights_digest(MODEL, machine)
    assert known_weights(MODEL, machine) is None
    (folder / "c.safetensors").write_text("c")
    assert weights_digest(MODEL, machine) == hashlib.sha256(f"{index}abcdefg".encode()).hexdigest()


@pytest.mark.parametrize("listed", ["../../etc/passwd", "/etc/passwd", "a/b.safetensors", "..", ""])
def test_an_index_lists_only_files_of_its_folder(tmp_path, listed):
    folder = model_folder(tmp_path / "m")
    (folder / "model.safetensors").unlink()
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"x": listed}}))
    with pytest.raises(InputError, match=r"index\.json lists '.*', which is not a file in its folder"):
        weights_digest(MODEL, small(folder))


@pytest.mark.parametrize("place", ["./models/small", "/models/small", "~/small", "a/b/c", "a b", "a//b"])
def test_what_can_only_be_a_folder_is_never_asked_of_the_hub(monkeypatch, place):
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    assert is_local(place) and not is_local("some/model") and not is_local("bert-base-uncased")
    with pytest.raises(InputError, match="but there is no such folder"):
        weights_digest(ModelId(name="small", hub=place), Machine())


def test_a_package_is_named_as_python_or_as_pip_names_it(monkeypatch, tmp_path):
    """Its code is not run."""
    package, about = tmp_path / "site/tiny_bert_l2", tmp_path / "site/tiny_bert_l2-1.0.dist-info"
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
