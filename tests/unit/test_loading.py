"""Loading models of every family: what is checked, what is said, what is refused."""

import json
import logging
import re
from pathlib import Path

import jobs
import pytest
import torch
import transformers
from families import (
    ENDS,
    EXPERTS,
    FAMILIES,
    GROUPED,
    SIZES,
    close,
    laid,
    needs_t5,
    only,
    real,
    states_of,
    stock,
    stock_states,
)
from random_models import random_model
from refusals import input_error
from safetensors.torch import load_file, save_file
from sizes import HEADS, LAYERS, SLOTS, VOCABULARY

import papa
from papa.config.settings import FolderModel, Machine
from papa.data.weights import float32_bytes, model_source
from papa.model import forms, replacement, settling
from papa.model.load import model_of
from papa.model.replacement import kept_context, replacement_of
from papa.stages import Average

GIVEN = {
    "input_ids": torch.arange(4, 13).view(1, 9),
    "attention_mask": torch.ones(1, 9, dtype=torch.long),
}


def loaded(folder, **options):
    return papa.load_model(folder, device="cpu", **options)


@pytest.fixture(params=FAMILIES)
def family(request):
    return request.param


@pytest.fixture
def saved(tiny):
    """The folder of the saved model."""
    return Path(tiny)


def same_states(ours, model, inputs):
    """Assert that both have the same states at real tokens."""
    states = real(ours.hidden_states(inputs), inputs)
    close(states, states_of(model, inputs))


def test_loading_from_a_folder(saved, model, inputs):
    ours = loaded(saved)
    same_states(ours, model, inputs)
    assert loaded(saved, dtype="bfloat16").hidden_states(inputs).isfinite().all()
    counted_positions = type(model).__name__.startswith(
        ("Roberta", "XLMRoberta", "Camembert", "Data2Vec")
    )
    assert forms.probe_dropout(ours.config) == (0.0 if counted_positions else 0.1)
    assert not any(parameter.requires_grad for parameter in ours.model.parameters())


@only("roberta")
def test_pickled_weights_are_loaded_weights_only_and_that_is_said(saved, model, inputs, caplog):
    with caplog.at_level(logging.WARNING, logger="papa"):
        loaded(saved)
        assert not caplog.records
        (saved / "model.safetensors").unlink()
        torch.save(model.state_dict(), saved / "pytorch_model.bin")
        ours = loaded(saved)
    assert "weights-only" in caplog.text
    same_states(ours, model, inputs)


@only("roberta")
@pytest.mark.parametrize(
    ("owner", "name", "instead", "message"),
    [
        (forms.Form, "_positions", lambda _, batch: batch.slots, None),
        (
            settling,
            "replacement_of",
            lambda shape, *_, **__: replacement_of(shape),
            "changes nothing",
        ),
        (replacement, "kept_context", lambda *_: 0.99 * kept_context(*_), "from those of"),
        (forms.Form, "tokens", lambda *_: torch.tensor([torch.inf]), "not finite"),
    ],
)
def test_a_model_that_would_run_wrong_is_not_loaded(
    saved, monkeypatch, owner, name, instead, message
):
    monkeypatch.setattr(owner, name, instead)
    if message is None:  # wrong positions of a packed row are found, and the model runs padded
        assert loaded(saved).form.rows == "padded"
        return
    with input_error(rf"tiny cannot be used: .*{message}"):
        loaded(saved)


@only("bert", "roberta", "electra", "deberta")
def test_a_config_without_an_id_of_padding(place_tiny, model, inputs):
    """Positions of RoBERTa are counted from that id, which nobody can guess; the others do without."""
    expected = states_of(model, inputs)
    model.config.pad_token_id = None
    tiny = place_tiny(model)
    if "Roberta" in type(model).__name__:
        with input_error(r"RobertaModel cannot run.* set pad_token_id in its config"):
            loaded(tiny)
    else:
        close(real(loaded(tiny).hidden_states(inputs), inputs), expected)


def random_like(names, shape):
    return lambda weights: weights | {name: torch.randn(shape) for name in names.split()}


def renamed(change):
    return lambda weights: {change(name): values for name, values in weights.items()}


def without(part):
    return lambda weights: {name: values for name, values in weights.items() if part not in name}


def pruned(weights):
    first = "encoder.layer.0.attention.self."
    return {name: values[6:] if first in name else values for name, values in weights.items()}


def deberta(weights):
    more = "config deberta.embeddings.position_ids deberta.embeddings.word_embeddings._weight"
    more += " lm_head.bias lm_predictions.lm_head.dense.weight mask_predictions.dense.weight pooler.dense.weight"
    return random_like(more, 3)({f"deberta.{name}": values for name, values in weights.items()})


def halved(weights):
    return {name: values.half() for name, values in weights.items()}


def damaged(part, value):
    """One number of a tensor is another; the last one, so that it is in no tiny batch."""

    def change(weights):
        weights[part].view(-1)[-1] = value
        return weights

    return change


SAME = None
NO_PLACE = "no place for 1 tensor in the weights of {} "
BERT = "BertForMaskedLM"
INSIDE = "bert.encoder.layer.1."
BERT_HEADS = "bert.pooler.dense.weight cls.seq_relationship.weight classifier.bias bert.embeddings.position_ids"
ELECTRA = "electra.embeddings_project.weight electra.embeddings.position_ids"
ADAPTED = [
    # published checkpoints: tensors of other heads, of poolers, and what models once stored
    (BERT, random_like(BERT_HEADS, 3), {}, SAME),
    (BERT, renamed(lambda name: name.replace("LayerNorm.weight", "LayerNorm.gamma")), {}, SAME),
    (
        "RobertaForMaskedLM",
        random_like("roberta.pooler.dense.weight roberta.embeddings.position_ids", 3),
        {},
        SAME,
    ),
    ("DebertaModel", deberta, {"architectures": None}, SAME),
    ("ElectraForPreTraining", random_like(ELECTRA, 3), {}, SAME),
    (
        "GPT2LMHeadModel",
        random_like("transformer.h.1.attn.bias transformer.h.1.attn.masked_bias", 3),
        {},
        SAME,
    ),
    ("DistilBertForMaskedLM", random_like("pre_classifier.weight qa_outputs.bias", 3), {}, SAME),
    ("OPTForCausalLM", random_like("model.decoder.version", 1), {}, SAME),
    ("T5ForTokenClassification", dict, {}, SAME),
    # ways to adapt a model
    (BERT, random_like(f"{INSIDE}attention.self.distance_embedding.weight", 3), {}, NO_PLACE),
    (BERT, random_like(f"{INSIDE}attention.self.query.lora_A.weight", 3), {}, NO_PLACE),
    (BERT, random_like("prompt_embeddings", 3), {}, NO_PLACE),
    (BERT, random_like("bert.emotion.weight", 3), {}, SAME),
    (
        BERT,
        dict,
        {"position_embedding_type": "relative_key"},
        r"relative positions \(relative_key\)",
    ),
    (BERT, dict, {"return_dict": False, "torchscript": True}, SAME),
    (BERT, halved, {"dtype": "float16"}, SAME),
    (
        BERT,
        pruned,
        {"pruned_heads": {"0": [0]}},
        r"attention\.self\.key\.bias has the shape \[18\] instead of \[24\]",
    ),
    (
        BERT,
        dict,
        {"quantization_config": {"quant_method": "gptq", "bits": 4}},
        "are quantised, which papa does not",
    ),
    (BERT, dict, {"vocab_size": VOCABULARY + 2}, r"has the shape \[61, 24\] instead of \[63, 24\]"),
    (
        BERT,
        dict,
        {"num_hidden_layers": 4},
        r"lack 16 tensors of the model \(bert\.encoder\.layer\.3",
    ),
    (BERT, dict, {"num_hidden_layers": 2}, "no place for 16 tensors"),
    (BERT, without("cls.predictions.decoder"), {}, SAME),  # tied to the embeddings
    (
        BERT,
        renamed(lambda name: f"module.{name}"),
        {},
        r"lack .* tensors .*, and module\..* is not one of its tensors",
    ),
    (
        BERT,
        damaged("bert.embeddings.word_embeddings.weight", torch.nan),
        {},
        "^bert.embeddings.word_embeddings.weight of {} contains NaN, so the checkpoint is damaged",
    ),
    (
        BERT,
        damaged(f"{INSIDE}output.dense.weight", -torch.inf),
        {},
        r"layer\.1\.output\.dense\.weight of {} contains infinity, so",
    ),
    (BERT, damaged("bert.embeddings.position_embeddings.weight", 3e38), {}, SAME),
]


@pytest.mark.parametrize(("architecture", "change", "keys", "refusal"), ADAPTED)
def test_a_checkpoint_is_exactly_the_model_or_is_refused(
    tmp_path, architecture, change, keys, refusal
):
    """Tensors of other heads are left out; tensors that would change hidden states are not."""
    _ = architecture.startswith("T5") and needs_t5()
    kind = getattr(transformers, architecture)
    stock = kind(
        kind.config_class(**SIZES | ENDS | {"embedding_size": SIZES["hidden_size"]})
    ).eval()
    stock.save_pretrained(tmp_path)
    weights = change(
        {name: values.clone() for name, values in load_file(tmp_path / "model.safetensors").items()}
    )
    save_file(weights, tmp_path / "model.safetensors", {"format": "pt"})
    (tmp_path / "config.json").write_text(
        json.dumps(json.loads((tmp_path / "config.json").read_text()) | keys)
    )
    if refusal is not SAME:
        with input_error(refusal.format(re.escape(str(tmp_path)))) as error:
            loaded(tmp_path)
        assert "\n" not in str(error.value)
        assert len(str(error.value)) < 500
        return
    stock.load_state_dict({name: values.float() for name, values in weights.items()}, strict=False)
    ours = loaded(tmp_path)
    close(ours.hidden_states(GIVEN), stock_states(stock.base_model, GIVEN))
    if hasattr(stock, "lm_head") or hasattr(stock, "cls"):
        close(ours.logits(GIVEN), stock(**GIVEN, return_dict=True).logits)


@pytest.mark.parametrize("name", ["adapter_config.json", "adapters"])
def test_an_adapter_beside_the_weights_is_refused(saved, name):
    (saved / "adapter_config.json").write_text("{}")
    if name == "adapters":
        (saved / "config.json").unlink()
    with input_error(
        r"tiny has an adapter \(adapter_config\.json\); merge it .*merge_and_un",
    ):
        loaded(saved)
    with input_error(r"has an adapter"):
        model_source("tiny", FolderModel(path=str(saved)), Machine())


def test_weights_under_other_names_are_refused(saved):
    (saved / "shard-00000-model-00001-of-00001.safetensors").touch()
    with input_error(
        r"are in other files than model\.safetensors, which papa does not read",
    ):
        model_source("tiny", FolderModel(path=str(saved)), Machine())


@only("bert")
def test_a_job_gets_its_model_in_its_precision_and_only_with_its_weights(tiny, tmp_path, model):
    output = tmp_path / "a.h5"
    job = jobs.job(Average(precision="bfloat16"), output, tiny)
    ours = model_of(job)
    assert (ours.dtype, ours.precision) == (torch.float32, torch.bfloat16)
    ours = model_of(jobs.job(Average(precision="tf32"), output, tiny))
    assert (ours.dtype, ours.precision) == (torch.float32, torch.float32)
    assert torch.get_float32_matmul_precision() == "highest", "a CPU ignores tf32"
    with torch.no_grad():
        model.embeddings.LayerNorm.bias += 1
    model.save_pretrained(tiny)
    with input_error(r"model tiny in .*tiny .*changed since .* start"):
        model_of(job)


@only("bert")
def test_a_model_is_checked_once_for_its_files_and_the_code(tiny, tmp_path, model, monkeypatch):
    given = []
    monkeypatch.setattr(
        "papa.model.model.settle", lambda *parts: given.append(parts[2]) or settling.settle(*parts)
    )
    job = jobs.job(Average(), tmp_path / "a.h5", tiny)
    batch = laid(model, "between")
    first = model_of(job)
    again = model_of(job)
    assert given == [None, first.checked], "only the first one is checked"
    constants = torch.rand(LAYERS, HEADS, SLOTS, SLOTS)
    heads = [(0, 1), (1, 0)]
    assert torch.equal(*[each.hidden_states(batch, constants, heads) for each in (first, again)])
    with monkeypatch.context() as patch:
        patch.setattr("papa.model.load.version", lambda name: "0")
        model_of(job)
    with torch.no_grad():
        model.embeddings.LayerNorm.bias += 1
    model.save_pretrained(tiny)
    edited = jobs.job(Average(), job.output, tiny)
    model_of(edited)
    assert given[2:] == [None, None], "other packages, other files"
    for path in (tmp_path / "check").iterdir():
        path.write_text("{}")
    with input_error(r"check/tiny-\w+\.json .*delete it"):
        model_of(edited)


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        ("llama", "for an encoder, but no token of model tiny sees a later one"),
        ("distilbert", "for a decoder, but tokens of model tiny see later ones"),
    ],
)
def test_tokens_laid_out_for_the_other_kind_of_model_are_refused(
    tmp_path, tokenizer, place_tiny, monkeypatch, kind, said
):
    tiny = place_tiny(stock(kind), tokenizer)
    jobs.write_texts(tmp_path, train=["a b c", "c"])
    right = jobs.lay_out(tiny, tmp_path, SLOTS, "right")
    assert model_of(jobs.job(Average(), tmp_path / "a.h5", tiny, tokens=right))
    monkeypatch.setattr("papa.data.tokenize.is_decoder", lambda *_: kind != "llama")
    wrong = jobs.lay_out(tiny, tmp_path, SLOTS, "wrong")
    with input_error(f"wrong.parquet is laid out {said}; delete this"):
        model_of(jobs.job(Average(), tmp_path / "a.h5", tiny, tokens=wrong))


@pytest.mark.parametrize("kind", ["Bart", "Pegasus", "Marian"])
def test_an_encoder_with_a_decoder_is_refused_and_its_encoder_is_not(tmp_path, kind):
    """The encoder that the message names can be given."""
    heads = {
        "encoder_attention_heads": 2,
        "decoder_attention_heads": 2,
        "encoder_layers": 2,
        "decoder_layers": 2,
    }
    sizes = {"vocab_size": VOCABULARY, "d_model": 8, "encoder_ffn_dim": 9, "decoder_ffn_dim": 9}
    ends = ENDS | {"pad_token_id": 0, "decoder_start_token_id": 2, "forced_eos_token_id": 2}
    made = getattr(transformers, f"{kind}Config")(**heads | sizes | ends)
    name = f"{kind}MTModel" if kind == "Marian" else f"{kind}ForConditionalGeneration"
    getattr(transformers, name)(made).save_pretrained(tmp_path / "two")
    with input_error(rf"two is an encoder-decoder \({kind.lower()}\).*get_encoder") as refusal:
        loaded(tmp_path / "two")
    encoder = re.search(r"transformers\..*?\(\)", str(refusal.value))[0]
    assert papa.Model(eval(encoder)).layers == 2


def test_an_encoder_that_was_saved_without_its_decoder_is_loaded_as_one(tmp_path):
    needs_t5()
    sizes = {
        "d_model": 8,
        "d_kv": 4,
        "d_ff": 9,
        "num_layers": 2,
        "num_heads": 2,
        "vocab_size": VOCABULARY,
    }
    transformers.T5Model(transformers.T5Config(**sizes)).save_pretrained(tmp_path / "whole")
    alone = transformers.T5EncoderModel.from_pretrained(tmp_path / "whole")
    alone.save_pretrained(tmp_path / "alone")
    for name in ("whole", "alone"):
        ours = loaded(tmp_path / name)
        close(ours.hidden_states(GIVEN)[:, -1], alone(GIVEN["input_ids"]).last_hidden_state)


@pytest.mark.parametrize(
    "name", ["MllamaForCausalLM", "Llama4ForCausalLM", "BertGenerationDecoder"]
)
def test_a_head_that_the_checkpoint_has_is_loaded_whatever_the_library_maps_its_config_to(
    place_tiny, name
):
    kind = getattr(transformers, name)
    if kind.config_class.model_type not in transformers.CONFIG_MAPPING:
        pytest.skip("this version of transformers cannot load it either")
    sizes = SIZES | ENDS | GROUPED | EXPERTS | {"cross_attention_layers": []}
    if name.endswith("Decoder"):
        sizes |= {"is_decoder": True}
    stock = kind(kind.config_class(**sizes)).eval()
    close(loaded(place_tiny(stock)).logits(GIVEN), stock(**GIVEN).logits)


@only("bert")
def test_a_checkpoint_without_its_prediction_head_has_states_but_no_logits(saved, tmp_path):
    stock = transformers.BertModel(
        transformers.AutoConfig.from_pretrained(saved), add_pooling_layer=False
    ).eval()
    stock.save_pretrained(tmp_path / "bare")
    path = tmp_path / "bare/config.json"
    described = json.loads(path.read_text())
    described["architectures"] = ["BertForMaskedLM"]
    path.write_text(json.dumps(described))
    model = loaded(tmp_path / "bare")
    close(model.hidden_states(GIVEN), stock_states(stock, GIVEN))
    with input_error("BertModel has no head"):
        model.logits(GIVEN)


@only("bert")
def test_a_checkpoint_with_a_part_of_its_head_is_damaged(saved, tmp_path):
    transformers.BertForMaskedLM(transformers.AutoConfig.from_pretrained(saved)).save_pretrained(
        tmp_path / "masked"
    )
    path = tmp_path / "masked/model.safetensors"
    weights = load_file(path)
    del weights["cls.predictions.transform.LayerNorm.bias"]
    save_file(weights, path, {"format": "pt"})
    with input_error("lack 1 tensor of the model"):
        papa.load_model(tmp_path / "masked")


def test_memory_of_weights_is_that_in_float32(tmp_path):
    stock = transformers.AutoModel.from_pretrained(random_model("gpt2"))
    expected = 4 * sum(weights.numel() for weights in stock.parameters())
    for dtype, size in (
        (torch.float32, "1GB"),
        (torch.bfloat16, "20kB"),
    ):  # in one file, in several
        folder = tmp_path / size
        stock.to(dtype).save_pretrained(folder, max_shard_size=size)
        assert float32_bytes(str(folder), "m") == expected
    assert len([*folder.glob("*.safetensors")]) > 1


def test_tied_embeddings_are_the_head_of_a_decoder_saved_without_one(tmp_path):
    stock = transformers.AutoModelForCausalLM.from_pretrained(random_model("gpt2")).eval()
    stock.base_model.save_pretrained(tmp_path)
    with torch.no_grad():
        expected = stock(**GIVEN).logits
    close(loaded(tmp_path).logits(GIVEN), expected)
