from typing import get_args

import pytest
import torch
from transformers import AutoModel, AutoTokenizer

import papa
from papa.config.settings import Machine, Random
from papa.config.stages import ModelId
from papa.data.generated.known import known_model
from papa.data.generated.models import DECODERS, FAMILIES, random_model
from papa.data.weights import location_of, weights_digest


@pytest.fixture(scope="module")
def caches(tmp_path_factory):
    return [tmp_path_factory.mktemp("cache") for _ in range(2)]


@pytest.mark.parametrize("family", FAMILIES)
def test_a_family_is_one_model_with_its_own_tokenizer(family, caches, monkeypatch):
    digests, tokenized = [], []
    for cache in caches:
        monkeypatch.setenv("XDG_CACHE_HOME", str(cache))
        model = ModelId(name="tiny", random=family)
        assert location_of(model, Machine.current()) == str(random_model(family))
        digests.append(weights_digest(model, Machine.current()))
        tokenizer = AutoTokenizer.from_pretrained(location_of(model, Machine.current()))
        tokenized.append(tokenizer("the old nurse near the doctors", "who is that ?").input_ids)
    assert digests[0] == digests[1] and tokenized[0] == tokenized[1]
    assert tokenizer.unk_token_id not in tokenized[0][:5]
    bare = family in DECODERS and family != "modernbert-decoder"  # which has the tokenizer of its encoder
    assert (tokenizer.mask_token_id is None) == bare
    loaded = AutoModel.from_pretrained(location_of(model, Machine.current()))
    assert loaded.config.model_type == family
    assert loaded.config.pad_token_id == (None if bare else tokenizer.pad_token_id)  # Qwen's tokenizer has one anyway
    assert loaded.config.vocab_size == len(tokenizer)
    ours = papa.load_model(location_of(model, Machine.current()), device="cpu")
    assert ours.causal == (family in DECODERS)
    pair = papa.lay_out(tokenizer, ["the old nurse"], ["who is that ?"], slots=32)
    assert torch.isfinite(ours.hidden_states(pair)).all()  # with no segment that the model does not have
    # the last slot has a position
    inputs = papa.lay_out(tokenizer, ["who is that ?"], slots=tokenizer.model_max_length)
    assert torch.isfinite(loaded(**inputs).last_hidden_state).all()


def test_what_is_half_made_is_not_taken(caches, monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(
        "papa.data.generated.models._make", lambda family, folder: (_ for _ in ()).throw(OSError("disk"))
    )
    with pytest.raises(OSError, match="disk"):
        random_model("bert")
    assert not list(tmp_path.rglob("*bert*"))


@pytest.mark.parametrize("damage", ["changed", "added", "removed", "unsealed"])
def test_a_damaged_model_in_the_cache_is_rebuilt(damage, monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    for name, make in (("random", lambda: random_model("bert")), ("known", lambda: known_model("lookup"))):
        folder = make()
        intact = {path.name: path.read_bytes() for path in folder.iterdir()}
        weights = folder / "model.safetensors"
        if damage == "changed":
            content = bytearray(weights.read_bytes())
            content[-400:] = b"\x01" * 400
            assert bytes(content) != weights.read_bytes()
            weights.write_bytes(content)
        elif damage == "added":
            (folder / "spiece.model").write_text("")
        else:
            (folder / {"removed": "config.json", "unsealed": ".sealed"}[damage]).unlink()
        assert make() == folder
        assert {path.name: path.read_bytes() for path in folder.iterdir()} == intact, name


def test_an_intact_model_in_the_cache_stays(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    folder = random_model("bert")
    before = (folder / "model.safetensors").stat().st_ino
    assert (random_model("bert") / "model.safetensors").stat().st_ino == before


def test_unknown_families_are_listed():
    with pytest.raises(papa.InputError, match="there are bert, roberta, deberta, electra"):
        random_model("gpt")
    assert get_args(Random) == FAMILIES
