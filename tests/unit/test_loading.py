"""Loading models of every family: what is checked, what is said, what is refused."""

import logging

import pytest
import torch
import transformers
from families import DISTINCT, FAMILIES, close, only, real, stock_states
from sizes import SLOTS, VOCABULARY

import papa
from papa.method.features import probe_sizes
from papa.model import load
from papa.model.load import _pickled as is_pickled
from papa.model.replacement import attend, plan_layers


@pytest.fixture(params=FAMILIES)
def family(request):
    return request.param


def test_loading_from_a_folder(tmp_path, model, inputs):
    model.save_pretrained(tmp_path / "tiny")
    encoder = papa.load_model(str(tmp_path / "tiny"), device="cpu")
    close(real(encoder.hidden_states(inputs), inputs), real(stock_states(model, inputs), inputs))
    sizes = probe_sizes(encoder, SLOTS)
    counted_positions = type(model).__name__.startswith(("Roberta", "XLMRoberta", "Camembert", "Data2Vec"))
    assert sizes["probe_dropout"] == (0.0 if counted_positions else 0.1) and sizes["initializer_range"] == 0.4


@only(*DISTINCT)
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_loading_at_half_precision(tmp_path, model, inputs, dtype):
    model.save_pretrained(tmp_path / "tiny")
    assert papa.load_model(str(tmp_path / "tiny"), device="cpu", dtype=dtype).hidden_states(inputs).isfinite().all()


@only("roberta")
def test_pickled_weights_are_loaded_weights_only_and_that_is_said(tmp_path, model, inputs, caplog):
    model.save_pretrained(tmp_path / "tiny")
    with caplog.at_level(logging.WARNING, logger="papa"):
        papa.load_model(str(tmp_path / "tiny"), device="cpu")
        assert not caplog.records
        (tmp_path / "tiny" / "model.safetensors").unlink()
        torch.save(model.state_dict(), tmp_path / "tiny" / "pytorch_model.bin")
        encoder = papa.load_model(str(tmp_path / "tiny"), device="cpu")
    assert "weights-only" in caplog.text
    close(real(encoder.hidden_states(inputs), inputs), real(stock_states(model, inputs), inputs))
    torch.save([model.config], tmp_path / "tiny" / "pytorch_model.bin")  # objects, not weights
    with pytest.raises(papa.InputError, match="could not be loaded"):
        papa.load_model(str(tmp_path / "tiny"), device="cpu")


@pytest.mark.parametrize(("cached", "pickled"), [("model.safetensors.index.json", False), ("pytorch_model.bin", True)])
def test_weights_of_the_hub_are_looked_up_where_they_were_put(monkeypatch, cached, pickled):
    def look_up(repository, name, revision):
        return "/cache/it" if (repository, name, revision) == ("some/model", cached, "v2") else None

    monkeypatch.setattr("huggingface_hub.try_to_load_from_cache", look_up)
    assert is_pickled("some/model", "v2") == pickled


@only("roberta")
@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda patch: patch.setattr("papa.model.model.patch", lambda *_: None), "was not replaced"),
        (
            lambda patch: patch.setattr("papa.model.families.positions_of", lambda _, batch: batch.slots),
            "from those of",
        ),
        (
            lambda patch: patch.setattr("papa.model.model.plan_layers", lambda shape, *_, **__: plan_layers(shape)),
            "changes nothing",
        ),
        (
            lambda patch: patch.setattr("papa.model.bert.attend", lambda *_, **__: 0.99 * attend(*_, **__)),
            "from those of",
        ),
        (lambda patch: patch.setattr(load, "stock_states", lambda _: torch.tensor(torch.inf)), "not finite"),
    ],
)
def test_a_model_that_would_run_wrong_is_not_loaded(tmp_path, model, monkeypatch, change, message):
    model.save_pretrained(tmp_path / "tiny")
    change(monkeypatch)
    with pytest.raises(papa.InputError, match=rf"tiny cannot be used: .*{message}"):
        papa.load_model(str(tmp_path / "tiny"), device="cpu")


@pytest.mark.parametrize("other", ["DebertaV2", "MegatronBert", "DistilBert", "GPT2"])
def test_another_family_is_refused_with_what_is_supported(tmp_path, other):
    config = {"vocab_size": VOCABULARY, "hidden_size": 6, "num_hidden_layers": 1, "num_attention_heads": 2}
    made = getattr(transformers, f"{other}Config")(**config, intermediate_size=5, bos_token_id=1, eos_token_id=2)
    getattr(transformers, f"{other}Model")(made).save_pretrained(tmp_path / "other")
    with pytest.raises(papa.InputError, match=r"supported are .* BERT, .* DeBERTa .*, ELECTRA, .* RoBERTa"):
        papa.load_model(str(tmp_path / "other"), device="cpu")


@only("bert")
def test_a_device_that_is_not_there_is_said_in_a_sentence(tmp_path, model, monkeypatch):
    model.save_pretrained(tmp_path / "tiny")
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("torch.cuda.device_count", lambda: 2)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,3")
    with pytest.raises(papa.InputError, match=r"device is cuda:2, but .* finds 2 CUDA GPUs here .*'0,3'"):
        papa.load_model(str(tmp_path / "tiny"), device="cuda:2")
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    with pytest.raises(papa.InputError, match=r"device is cuda, but .* finds 0 CUDA GPUs here; give auto"):
        papa.load_model(str(tmp_path / "tiny"), device="cuda")
    monkeypatch.setattr("torch.backends.mps.is_available", lambda: False)
    with pytest.raises(papa.InputError, match="device is mps"):
        papa.load_model(str(tmp_path / "tiny"), device="mps")
    assert papa.load_model(str(tmp_path / "tiny"), device="auto").device.type == "cpu"
