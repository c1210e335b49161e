"""Models and data fetched into a mirror, from a hub on loopback; jobs that read them with the hub switched off."""

import copy
import json
import subprocess
import sys

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hub import Hub
from tiny import CONFIG, Copy, copy_of_repository, write_model

from papa.config.job import Job
from papa.config.settings import Corpus, Machine
from papa.config.stages import FetchOf, ModelId
from papa.data.mirror import RECORD_NAME, fetch, recorded
from papa.data.sources import load_rows
from papa.errors import InputError

CARD = """---
configs:
- config_name: pets
  data_files: [{split: train, path: pets/train-*}, {split: validation, path: pets/validation-*}]
- config_name: farm
  data_files: [{split: train, path: farm/train-*}, {split: validation, path: farm/validation-*}]
---
"""
MODEL = {"hub": "some/model"}
PETS, FARM = ({"hub": "some/data", "config": config} for config in ("pets", "farm"))


@pytest.fixture
def fetched():
    """Fetches models and corpora into a mirror folder, from where this process reads them."""

    def run(models, corpora, mirror):
        settings = FetchOf(
            models=tuple(ModelId(name="some", **model) for model in models),
            corpora=tuple(Corpus(first="sentence", **corpus) for corpus in corpora),
        )
        return fetch(Job("fetch", settings, {}, {}, machine=Machine(hub_mirror=str(mirror))))

    return run


def parquet(sentences: list[str]) -> bytes:
    sink = pa.BufferOutputStream()
    pq.write_table(pa.table({"sentence": sentences, "animal": [row % 2 for row in range(len(sentences))]}), sink)
    return sink.getvalue().to_pybytes()


def dataset(sentence: str = "a cat sees the bird") -> dict[str, bytes]:
    files = {
        f"{config}/{split}-00000-of-00001.parquet": parquet([f"{sentence} {config}"] * rows)
        for config in ("pets", "farm")
        for split, rows in (("train", 6), ("validation", 4))
    }
    return {"README.md": CARD.encode(), **files}


OTHERS = {name: name.encode() for name in ("pytorch_model.bin", "tf_model.h5", "onnx/model.onnx", "onnx/config.json")}
"""Files of a model on the hub that papa does not take."""


@pytest.fixture
def hub(monkeypatch, tmp_path):
    """A hub with a model and a dataset, which this process and those that it starts take for the only one."""
    served = Hub()
    served.push("model", "some/model", {name: name.encode() for name in ("config.json", "model.safetensors")} | OTHERS)
    served.push("dataset", "some/data", dataset())
    monkeypatch.setenv("HF_ENDPOINT", served.endpoint)
    monkeypatch.setenv("HF_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    constants = {
        "ENDPOINT": served.endpoint,
        "HUGGINGFACE_CO_URL_TEMPLATE": served.endpoint + "/{repo_id}/resolve/{revision}/{filename}",
        "HF_HUB_CACHE": str(tmp_path / "home/hub"),
        "HF_HUB_OFFLINE": False,
    }
    for name, value in constants.items():  # read from the environment when the library was imported
        monkeypatch.setattr(f"huggingface_hub.constants.{name}", value)
    yield served
    served.close()


def files(folder):
    return {str(file.relative_to(folder)): file.read_bytes() for file in folder.rglob("*") if file.is_file()}


def without_records(folder):
    return {path: content for path, content in files(folder).items() if not path.endswith(RECORD_NAME)}


def config_of(revision: str | None = None) -> dict:
    config = copy.deepcopy(CONFIG)
    config["run"] |= {"tasks": ["animals"], "constants": ["average", "average-of-farm"]}
    config["models"] = {"tiny": MODEL, "unused": {"hub": "no/model"}}
    pinned = {"revision": revision} if revision else {}
    config["corpora"]["sentences"] = {**PETS, **pinned, "first": "sentence", "slots": 13}
    config["corpora"]["farm"] = {**FARM, "first": "sentence"}
    config["corpora"]["unused"] = {"hub": "no/data", "first": "sentence", "slots": 13}
    return config


@pytest.mark.slow
def test_jobs_run_from_what_was_fetched_with_the_hub_switched_off(hub, tmp_path):
    write_model(tmp_path / "tiny")
    model = {file.name: file.read_bytes() for file in (tmp_path / "tiny").iterdir()}
    hub.push("model", "some/model", model | OTHERS)
    workflow = copy_of_repository(tmp_path / "papa")
    given = ["--cores", "1", "--configfile", workflow.write(config_of()), "--config", "hub_mirror=mirror"]
    papa = [sys.executable, "-m", "papa.cli", "run", given[3]]  # as messages say it
    process = subprocess.run([*papa, "fetch", *given[4:]], cwd=workflow.folder, capture_output=True, text=True)
    assert process.returncode == 0, process.stdout + process.stderr
    assert "fetch: 2 repositories fetched into mirror (0.0 MB), 0 unchanged" in process.stdout + process.stderr
    mirror = workflow.folder / "mirror"
    for name, kind, content in (("some/model", "model", model), ("some/data", "dataset", dataset())):
        record = json.loads((mirror / name / RECORD_NAME).read_text(encoding="utf-8"))
        commit = hub.branches[kind, name]["main"]
        assert (record["repository"], record["repo_type"], record["commit"]) == (name, kind, commit)
        assert without_records(mirror / name) == content

    hub.asked.clear()
    average = "results/tiny/models/tiny/corpora/{}/average.h5"
    targets = [average.format(place) for place in ("sentences", "farm/slots-13")]
    targets.append("results/tiny/tasks/animals/labels.parquet")
    workflow.run(*targets, *given)
    assert all((workflow.folder / target).is_file() for target in targets)
    assert not hub.asked

    pinned = ["--configfile", workflow.write(config_of("0" * 40), "pinned.yaml"), *given[4:]]
    process = workflow.snakemake("--cores", "1", *pinned, "--until", "prepare_texts")
    commit = hub.branches["dataset", "some/data"]["main"]
    said = f"some/data at commit {commit} (main), but the config has revision {'0' * 40}; run `papa run CONFIG fetch`"
    assert process.returncode == 1 and said in process.stderr


@pytest.mark.slow
def test_fetch_needs_a_folder_and_is_no_part_of_a_run(fresh: Copy):
    process = fresh.snakemake("fetch", "--cores", "1", "--configfile", fresh.write(CONFIG))
    assert process.returncode == 1
    said = "Error in fetch: fetch needs a mirror folder for models and data; add --config hub_mirror=FOLDER."
    assert said in process.stderr
    assert "fetch" not in fresh.planned(CONFIG, "--config", "hub_mirror=mirror")


def test_what_was_fetched_is_not_asked_for_again(hub, fetched, tmp_path):
    commit = hub.branches["dataset", "some/data"]["main"]
    fetched([MODEL], [PETS | {"revision": "main"}], tmp_path / "hub")
    before = files(tmp_path / "hub")
    hub.push("dataset", "some/data", dataset("newer"))
    hub.close()
    for revision in ("main", commit, None):
        assert "0 repositories" in fetched([MODEL], [PETS | {"revision": revision}], tmp_path / "hub")
    assert files(tmp_path / "hub") == before


def first_sentence(mirror, **keys):
    return load_rows(Corpus(first="sentence", **PETS, **keys), "train", mirror=str(mirror)).table["sentence"][0].as_py()


def test_another_revision_replaces_what_was_fetched_whole(hub, fetched, tmp_path, monkeypatch):
    fetched([], [PETS, FARM], tmp_path)
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "cache")
    assert first_sentence(tmp_path) == "a cat sees the bird pets"
    newer = hub.push("dataset", "some/data", {**dataset("newer"), "farm/more.txt": b"more"})
    fetched([], [PETS | {"revision": newer}], tmp_path)
    record = recorded(tmp_path / "some/data")
    assert (record.commit, record.configs) == (newer, ["farm", "pets"])
    assert without_records(tmp_path / "some/data") == hub.commits["dataset", "some/data"][newer]
    assert first_sentence(tmp_path, revision=newer) == "newer pets"
    hub.asked.clear()
    hub.branches["dataset", "some/data"]["v2"] = newer
    assert "0 repositories" in fetched([], [PETS | {"revision": "v2"}], tmp_path)
    assert len(hub.asked) == 1, "the hub says what a tag stands for, and it is there"
    assert first_sentence(tmp_path, revision="v2") == first_sentence(tmp_path, revision=newer) == "newer pets"


def test_configs_are_added_at_the_commit_that_is_there(hub, fetched, tmp_path):
    fetched([], [PETS], tmp_path)
    first = recorded(tmp_path / "some/data")
    assert set(without_records(tmp_path / "some/data")) == {path for path in dataset() if "farm" not in path}
    hub.push("dataset", "some/data", dataset("newer"))
    fetched([], [FARM], tmp_path)
    assert recorded(tmp_path / "some/data").commit == first.commit
    assert without_records(tmp_path / "some/data") == dataset()


def test_a_dataset_without_folders_for_configs_is_taken_whole(hub, fetched, tmp_path):
    flat = {"README.md": b"", "data/train.parquet": parquet(["a"]), "more.csv": b"a,b\n"}
    hub.push("dataset", "some/flat", flat)
    fetched([], [{"hub": "some/flat", "config": "pets"}], tmp_path)
    assert without_records(tmp_path / "some/flat") == flat and recorded(tmp_path / "some/flat").configs is None
    hub.close()
    assert "0 repositories" in fetched([], [{"hub": "some/flat", "config": "farm"}], tmp_path)


@pytest.mark.parametrize(
    ("weights", "taken"),
    [
        (["pytorch_model.bin", "tf_model.h5", "flax_model.msgpack"], ["pytorch_model.bin"]),
        ([*(f"model-0000{number}-of-00002.safetensors" for number in (1, 2)), "model.safetensors.index.json"], None),
        (["model.safetensors", "model.fp16.safetensors", "pytorch_model.bin.index.json"], ["model.safetensors"]),
    ],
)
def test_weights_of_one_kind_are_taken(hub, fetched, tmp_path, weights, taken):
    beside = ["config.json", "merges.txt", "spiece.model", "tokenizer.json"]
    others = ["README.md", "bpe_encoder.bin", "1_Pooling/config.json"]
    hub.push("model", "other/model", {name: name.encode() for name in [*weights, *beside, *others]})
    fetched([{"hub": "other/model"}], [], tmp_path)
    assert set(without_records(tmp_path / "other/model")) == {*(taken or weights), *beside}


def test_an_interrupted_download_leaves_what_was_there(hub, fetched, tmp_path, monkeypatch):
    monkeypatch.setattr("time.sleep", lambda seconds: None)  # before the library tries again
    hub.broken = {"model.safetensors"}
    with pytest.raises(InputError, match=r"The model some/model cannot be fetched.*peer closed.*check the network"):
        fetched([MODEL], [PETS], tmp_path)
    assert not files(tmp_path) and not list(tmp_path.glob("some/*"))
    hub.broken = set()
    fetched([MODEL], [PETS], tmp_path)
    before = files(tmp_path)
    newer = hub.push("dataset", "some/data", dataset("newer"))
    hub.broken = {"pets/train-00000-of-00001.parquet"}
    with pytest.raises(InputError, match=rf"The dataset some/data at revision {newer} cannot be fetched"):
        fetched([MODEL], [PETS | {"revision": newer}], tmp_path)
    assert files(tmp_path) == before


def test_what_was_laid_out_by_hand_stays(hub, fetched, tmp_path):
    (tmp_path / "some/data").mkdir(parents=True)
    (tmp_path / "some/data/own.csv").write_text("a\n")
    assert "1 unchanged" in fetched([MODEL], [PETS | {"revision": "0" * 40}], tmp_path)
    assert set(files(tmp_path / "some/data")) == {"own.csv"}


@pytest.mark.parametrize(
    ("models", "corpora", "said"),
    [
        ([{"hub": "no/model"}], [], r"The model no/model cannot be .*RepositoryNotFoundError.*the id and the revision"),
        ([MODEL | {"revision": "v9"}], [], r"some/model at revision v9 cannot be fetched .*RevisionNotFoundError"),
        (
            [],
            [PETS | {"revision": "v1"}, FARM | {"revision": "v2"}],
            r"some/data is requested .* v1 and v2, but",
        ),
        ([{"hub": "some/data"}], [PETS], r"some/data is requested as a model and as a dataset"),
        ([{"hub": "some/weightless"}], [], r"cannot load the model.*has config\.json, model\.onnx"),
    ],
)
def test_what_cannot_be_fetched_is_said_and_leaves_nothing(hub, fetched, tmp_path, models, corpora, said):
    hub.push("model", "some/weightless", {"config.json": b"{}", "model.onnx": b""})
    with pytest.raises(InputError, match=said):
        fetched(models, corpora, tmp_path)
    assert not files(tmp_path) and not list(tmp_path.glob("some/*"))


def test_without_a_network_the_sentence_says_so(hub, fetched, tmp_path):
    hub.close()
    with pytest.raises(InputError, match=r"The model some/model cannot be fetched from the hub \(ConnectError"):
        fetched([MODEL], [], tmp_path)


def test_a_model_does_not_replace_a_dataset(hub, fetched, tmp_path):
    fetched([], [PETS], tmp_path)
    before = files(tmp_path)
    hub.push("model", "some/data", {"config.json": b"{}", "model.safetensors": b""})
    with pytest.raises(InputError, match=r"contains the dataset some/data, but a model with the same id"):
        fetched([{"hub": "some/data"}], [], tmp_path)
    assert files(tmp_path) == before


def test_fetch_needs_a_mirror_folder():
    with pytest.raises(InputError, match="add --config hub_mirror=FOLDER"):
        fetch(Job("fetch", FetchOf(models=(), corpora=()), {}, {}))
