"""Input is data: models, data sets, averages and configs that bring code along cannot make it run."""

import ast
import json
import os
import pickle
from pathlib import Path

import h5py
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
import yaml
from command import refusal
from refusals import damage_error, input_error
from tiny import corpus_of

import papa
from papa.config.reading import CarefulLoader
from papa.config.settings import Machine
from papa.data.sources import load_splits
from papa.data.tokenize import sizes_of_model, tokenizer_of
from papa.errors import InputError

PACKAGE = Path(papa.__file__).parent


@pytest.fixture
def trap(tmp_path, monkeypatch):
    """Code that leaves a file behind. After the test there must be none, and nobody may have been asked anything."""

    questions = []
    monkeypatch.setattr("builtins.input", lambda question="": questions.append(question) or "y")
    sprung = tmp_path / "sprung"
    yield Trap(sprung)
    assert not sprung.exists()
    assert not questions


class Trap:
    def __init__(self, sprung):
        self.sprung = sprung
        self.source = f"open({str(sprung)!r}, 'w').close()\n"

    def __reduce__(self):
        return os.mkdir, (str(self.sprung),)


@pytest.fixture
def folder(model, tokenizer, place_tiny):
    """A model and its tokenizer, as the model `tiny` of this machine."""
    return Path(place_tiny(model, tokenizer))


def change(file, **keys):
    file.write_text(json.dumps({**json.loads(file.read_text()), **keys}))


OWN = {
    "AutoConfig": "own.OwnConfig",
    "AutoModel": "own.OwnModel",
    "AutoTokenizer": ["own.Own", "own.Own"],
}


@pytest.mark.parametrize("model_type", ["unheard-of", "bert"])
@pytest.mark.parametrize("code", [OWN, OWN["AutoTokenizer"]])
def test_code_of_a_model_and_its_tokenizer(folder, trap, model_type, code):
    (folder / "own.py").write_text(
        trap.source + "class OwnConfig: pass\nclass OwnModel: pass\nclass Own: pass\n"
    )
    change(
        folder / "config.json", model_type=model_type, **({"auto_map": code} if code is OWN else {})
    )
    change(folder / "tokenizer_config.json", tokenizer_class="Own", auto_map=code)
    loads = [lambda: tokenizer_of(str(folder))]
    if code is OWN:
        loads += [
            lambda: papa.load_model(folder, device="cpu"),
            lambda: sizes_of_model(str(folder)),
        ]
    for load in loads:
        if model_type == "bert":  # transformers has code of its own for these
            assert load()
            continue
        with input_error(r"custom code.*Code that comes with a model is never run\.") as refusal:
            load()
        assert "\n" not in str(refusal.value)


@pytest.mark.parametrize("key", ["attn_implementation", "_attn_implementation"])
def test_code_of_attention(folder, trap, monkeypatch, key):
    monkeypatch.setattr(
        "transformers.modeling_utils.lazy_import_flash_attention",
        lambda *_, **__: trap.sprung.touch(),
    )
    change(folder / "config.json", **{key: "somebody/kernel"})
    assert papa.load_model(folder, device="cpu").layers


@pytest.mark.parametrize("name", ["pytorch_model.bin", "model.safetensors"])
def test_pickle_for_weights(folder, trap, model, name):
    (folder / "model.safetensors").unlink()
    torch.save({**model.state_dict(), "more": trap}, folder / name)
    with input_error("could not be loaded"):
        papa.load_model(folder, device="cpu")


@pytest.mark.parametrize(
    "name", ["config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"]
)
def test_a_link_out_of_a_model_shows_nothing_of_the_file(folder, tmp_path, name):
    (tmp_path / "private").write_text("password: hunter2\n")
    (folder / name).unlink(missing_ok=True)
    (folder / name).symlink_to(tmp_path / "private")
    with pytest.raises(InputError) as refusal:
        papa.load_model(folder, device="cpu")
        tokenizer_of(str(folder))
    assert "hunter2" not in str(refusal.value)
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize("with_data", [True, False])
@pytest.mark.parametrize(
    ("code", "named"), [("data.py", False), ("data.py", True), ("train.pkl", True)]
)
def test_code_of_a_data_set(tmp_path, trap, with_data, code, named):
    place = tmp_path / "hub/some/data"
    place.mkdir(parents=True)
    (place / code).write_bytes(pickle.dumps(trap) if code == "train.pkl" else trap.source.encode())
    if named:
        (place / "README.md").write_text(
            f"---\nconfigs:\n- config_name: default\n  data_files: {code}\n---\n"
        )
    if with_data:
        pq.write_table(pa.table({"text": ["a", "b"]}), place / "train.parquet")
    try:
        corpus = corpus_of(hub="some/data", first="text", validation=None)
        assert load_splits(corpus, None, Machine(hub_mirror=f"{tmp_path}/hub"))[
            "train"
        ].table.num_rows
    except InputError as refusal:
        assert str(refusal).startswith("some/data, split train cannot be loaded")
        assert "\n" not in str(refusal)


def test_pickles_in_a_table(tmp_path, trap):
    described = {b"pandas": pickle.dumps(trap), b"huggingface": pickle.dumps(trap)}
    extension = {
        b"ARROW:extension:name": b"arrow.py_extension_type",
        b"ARROW:extension:metadata": pickle.dumps(trap),
    }
    field = pa.field("text", pa.string(), metadata=extension)
    corpus = corpus_of(files={"train": f"{tmp_path}/a.parquet"}, first="text")
    pq.write_table(pa.table([["a"]], pa.schema([field], described)), tmp_path / "a.parquet")
    assert load_splits(corpus, None, Machine())["train"].table.column("text").to_pylist() == ["a"]


@pytest.mark.parametrize("name", ["sum", "count", "mean"])
def test_objects_in_averages(tmp_path, trap, name):
    file = tmp_path / "average.h5"
    from papa.method.averages import Constants

    Constants(torch.zeros(1, 1, 2, 2), torch.zeros(2, 2, dtype=torch.long), 1).save(file)
    with h5py.File(file, "a") as store:
        del store[name]
        store.create_dataset(name, (2, 2), dtype=h5py.special_dtype(vlen=bytes))
        store[name][0] = pickle.dumps(trap, protocol=0)
        store[name].attrs["trap"] = np.void(pickle.dumps(trap))
    with damage_error(r"average\.h5"):
        Constants.load(file)


@pytest.mark.parametrize(
    "text",
    [
        "name: !!python/object/apply:os.mkdir [{path}]",
        "!!python/object/new:os.mkdir [{path}]",
        "__use_yte__: true\nname: ?__import__('os').mkdir('{path}') or 'a'",
        "__use_yte__: true\n__definitions__: [\"__import__('os').mkdir('{path}')\"]\nname: a",
    ],
)
def test_code_in_a_config(tmp_path, trap, text):
    assert issubclass(CarefulLoader, yaml.SafeLoader)
    (tmp_path / "config.yaml").write_text(text.format(path=trap.sprung))
    refusal("plan", tmp_path / "config.yaml")


BANNED = """eval exec compile __import__ os.system os.popen yaml.full_load yaml.unsafe_load np.load numpy.load
    pd.read_pickle pandas.read_pickle""".split()
PICKLING = {"pickle", "cPickle", "cloudpickle", "dill", "joblib", "marshal", "shelve"}
NEEDED = {"yaml.load": {"Loader": "CarefulLoader"}, "torch.load": {"weights_only": "True"}}
HARMLESS = {"shell": "False", "allow_pickle": "False", "trust_remote_code": "False"}


@pytest.mark.parametrize("file", sorted(PACKAGE.rglob("*.py")), ids=str)
def test_papa_has_nothing_that_runs_what_it_reads(file):
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import | ast.ImportFrom):
            names = {alias.name.split(".")[0] for alias in node.names} | {
                (getattr(node, "module", "") or "").split(".")[0]
            }
            assert not names & PICKLING
        if isinstance(node, ast.Call):
            call = ast.unparse(node.func)
            given = {word.arg: ast.unparse(word.value) for word in node.keywords}
            where = f"{call} in line {node.lineno}"
            assert call not in BANNED and HARMLESS | given == given | HARMLESS, where
            assert NEEDED.get(call, {}).items() <= given.items(), where
            automatic = call.startswith(("Auto", "transformers.Auto")) and call.endswith(
                ".from_pretrained"
            )
            assert not automatic or "trust_remote_code" in given or None in given, where
