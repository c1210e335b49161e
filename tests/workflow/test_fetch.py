"""Models and data fetched into a mirror, from a hub on loopback; jobs that read them with the hub switched off."""

import copy
import json
import logging
import subprocess
import sys
from contextlib import nullcontext
from types import SimpleNamespace

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hub import Fault, hub_in
from tiny import CONFIG, Copy, copy_of_repository, write_model

from papa.config.job import Job
from papa.config.settings import Corpus, Machine
from papa.config.stages import FetchOf, ModelId
from papa.data.hub import refusal
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
def hub(tmp_path):
    """A hub with a model and a dataset, which this process and those that it starts take for the only one."""
    with hub_in(tmp_path / "home") as served:
        model = {name: name.encode() for name in ("config.json", "model.safetensors")}
        served.push("model", "some/model", model | OTHERS)
        served.push("dataset", "some/data", dataset())
        yield served


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


@pytest.fixture
def waits(monkeypatch):
    """The waits before requests are repeated, in seconds, instead of waiting."""
    seconds = []
    # shorter waits are for locks
    monkeypatch.setattr("time.sleep", lambda wait: seconds.append(wait) if wait >= 1 else None)
    return seconds


def gets(hub, name):
    return sum(request.startswith("GET") and request.endswith(f"/{name}") for request in hub.asked)


@pytest.mark.parametrize("times", [1, 1000])
def test_complete_files_are_kept_for_the_next_fetch(hub, fetched, tmp_path, waits, times):
    hub.fail("lfs/.*model.safetensors", keep=0.5, times=times)
    if times == 1:  # the library resumes
        fetched([MODEL], [], tmp_path)
        assert gets(hub, "model.safetensors") == 2
    else:
        with pytest.raises(InputError, match=r"The model some/model cannot be fetched.*peer closed.*complete files"):
            fetched([MODEL], [], tmp_path)
        assert not list(tmp_path.glob("some/[!.]*"))
        hub.faults.clear()
        fetched([MODEL], [], tmp_path)
    assert gets(hub, "config.json") == 1
    assert set(without_records(tmp_path / "some/model")) == {"config.json", "model.safetensors"}
    assert (tmp_path / "some/model/model.safetensors").read_bytes() == b"model.safetensors"
    assert [path.name for path in tmp_path.glob("some/*")] == ["model"]


def test_an_interrupted_fetch_leaves_the_earlier_revision(hub, fetched, tmp_path, waits):
    fetched([], [PETS], tmp_path)
    before = files(tmp_path / "some/data")
    newer = hub.push("dataset", "some/data", dataset("newer"))
    hub.fail("lfs/.*pets/train", keep=0.5)
    with pytest.raises(InputError, match=rf"The dataset some/data at revision {newer} cannot be fetched"):
        fetched([], [PETS | {"revision": newer}], tmp_path)
    assert files(tmp_path / "some/data") == before
    newest = hub.push("dataset", "some/data", dataset("newest"))
    hub.faults.clear()
    fetched([], [PETS | {"revision": newest}], tmp_path)
    assert [path.name for path in tmp_path.glob("some/*")] == ["data"], "what was kept of the other commit is deleted"


def test_files_of_configs_that_are_no_longer_requested_are_dropped(hub, fetched, tmp_path, waits):
    hub.fail("lfs/.*pets/validation", keep=0.5)
    with pytest.raises(InputError, match="cannot be fetched"):
        fetched([], [PETS, FARM], tmp_path)
    hub.faults.clear()
    fetched([], [PETS], tmp_path)
    assert set(without_records(tmp_path / "some/data")) == {path for path in dataset() if "farm" not in path}


BUSY = {"status": 503, "times": 1}


@pytest.mark.parametrize(
    ("fault", "expected"),
    [
        ({"path": "/api/", **BUSY, "status": 500}, {1}),
        ({"path": "/api/", **BUSY, "times": 3}, {1, 2, 4}),
        ({"path": "/api/", **BUSY, "status": 429, "headers": {"Retry-After": "7"}}, {7}),
        ({"path": "resolve/.*/config.json", "method": "HEAD", **BUSY, "times": 2}, {1}),  # by the library
        ({"path": "lfs/.*model.safetensors", "method": "GET", **BUSY}, {1}),
        ({"path": "lfs/.*model.safetensors", **BUSY, "status": 429, "headers": {"Retry-After": "7"}}, {8}),  # also
    ],
)
def test_busy_answers_are_waited_out(hub, fetched, tmp_path, waits, fault, expected):
    hub.faults.append(Fault(**fault))
    assert "1 repository" in fetched([MODEL], [], tmp_path)
    assert hub.faults[0].times == 0 and set(waits) == expected


@pytest.mark.parametrize(
    ("path", "status", "headers", "said"),
    [
        ("/api/", 429, {"Retry-After": "3600"}, r"status 429, Quota.* wait some minutes and run again; complete files"),
        ("/api/", 429, {"Retry-After": "Fri, 31 Dec 2100 23:59:59 GMT"}, "status 429"),
        (
            "/api/",
            503,
            {},
            r"\(status 503, Quota of some kind\); this is a fault of the hub; run again later;",
        ),
        ("lfs/", 502, {"Retry-After": "Mon, 01 Jan 2001 00:00:00 GMT"}, "status 502"),
    ],
)
def test_a_hub_that_stays_busy_ends_the_fetch(hub, fetched, tmp_path, waits, path, status, headers, said):
    hub.fail(path, status, headers=headers, message="Quota of some kind.")
    with pytest.raises(InputError, match=said):
        fetched([MODEL], [], tmp_path)
    asked = sum(path in request for request in hub.asked)
    long = "3600" in str(headers) or "2100" in str(headers)
    assert asked == (1 if long else 4) and sum(waits) == {"/api/": 0 if long else 7, "lfs/": 0}[path]


GETS = {"model.safetensors": 1, "config.json": 1}


@pytest.mark.parametrize("name", GETS)
def test_wrong_bytes_are_refused(hub, fetched, tmp_path, name):
    hub.fail(f"{name}$", flip=True, method="GET", times=1)
    with pytest.raises(InputError, match=rf"{name} has the digest .* the hub reports .*run the same command again\.$"):
        fetched([MODEL], [], tmp_path)
    assert not (tmp_path / "some/model").exists()
    fetched([MODEL], [], tmp_path)
    assert {each: gets(hub, each) for each in ("model.safetensors", "config.json")} == GETS | {name: GETS[name] + 1}
    assert (tmp_path / "some/model" / name).read_bytes() == name.encode()


@pytest.mark.parametrize(
    ("token", "said"),
    [
        (
            None,
            r"status 401, Access to some/model is restricted.*; ask for access at http://.*/some/model, and set",
        ),
        (
            "hf_stranger",
            r"status 403, You are not in the authorized list .*; ask for access at .*/some/model, with ",
        ),
        ("hf_member", None),
    ],
)
def test_gated_repositories_need_access(hub, fetched, tmp_path, monkeypatch, token, said):
    hub.gated, hub.members = {"some/model"}, {"hf_member"}
    if token is not None:
        monkeypatch.setenv("HF_TOKEN", token)
    with nullcontext() if said is None else pytest.raises(InputError, match=said):
        fetched([MODEL], [], tmp_path)
    assert (tmp_path / "some/model").exists() == (said is None)


TOKEN = "hf_secretsecretsecret"


def test_a_token_is_only_for_the_hub(hub, fetched, tmp_path, monkeypatch, waits, caplog, capfd):
    """It is neither sent to the storage, nor written to logs, messages, files or records."""
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    caplog.set_level(logging.INFO)  # as in jobs
    hub.fail("/api/", 503, times=1, message=f"The token {TOKEN} is too long.")
    fetched([MODEL], [PETS], tmp_path)
    hub.fail("/api/", 403, message=f"The token {TOKEN} has expired.")
    with pytest.raises(InputError, match=r"The token \[token\] has expired\)") as error:
        fetched([{"hub": "other/model"}], [], tmp_path)
    assert {host for host, authorization in hub.authorized if authorization} == {hub.endpoint.removeprefix("http://")}
    assert {authorization for _, authorization in hub.authorized} == {None, f"Bearer {TOKEN}"}
    everywhere = [str(error.value), caplog.text, *capfd.readouterr(), *map(repr, files(tmp_path).values())]
    assert "busy" in caplog.text and not any(TOKEN in text for text in everywhere)


def test_a_password_in_an_address_is_not_shown(monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", "http://me:hunter2@localhost:1")
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    error = OSError(f"We couldn't connect to 'http://me:hunter2@localhost:1' with {TOKEN}.")
    assert "OSError: We couldn't connect to 'http://localhost:1' with [token])" in str(refusal("It", error, "a/b"))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    error.response = SimpleNamespace(status_code=403, headers={}, reason_phrase="No")
    assert "ask for access at http://localhost:1/a/b, with" in str(refusal("It", error, "a/b"))


def test_offline_mode_is_named(hub, fetched, tmp_path, monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(InputError, match=r"HF_HUB_OFFLINE is set; unset it, or run `papa run CONFIG fetch"):
        fetched([MODEL], [], tmp_path)
    assert not hub.asked


def test_what_was_laid_out_by_hand_stays(hub, fetched, tmp_path):
    (tmp_path / "some/data").mkdir(parents=True)
    (tmp_path / "some/data/own.csv").write_text("a\n")
    assert "1 unchanged" in fetched([MODEL], [PETS | {"revision": "0" * 40}], tmp_path)
    assert set(files(tmp_path / "some/data")) == {"own.csv"}


@pytest.mark.parametrize(
    ("models", "corpora", "said"),
    [
        ([{"hub": "no/model"}], [], r"no/model cannot be fetched .*\(status 401, Log in first\); check the id; if"),
        ([MODEL | {"revision": "v9"}], [], r"some/model at revision v9 .*\(status 404, Invalid .*; correct `revision`"),
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
