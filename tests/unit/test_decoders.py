"""Decoders, plain models with replaced attention, and models that BERT's form does not fit."""

import copy
import gc
import weakref
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
import transformers
from families import (
    DECODERS,
    ENDS,
    GROUPED,
    SIZES,
    close,
    real,
    states_of,
    stock,
    stock_states,
    texts,
)
from refusals import input_error
from sizes import LAYERS, SLOTS, VOCABULARY

import papa
from papa.data.tokenize import sizes_of_model
from papa.model.check import distance
from papa.model.forms import Form
from papa.model.model import Model
from papa.model.replacement import Matrices
from papa.model.settling import stock_of
from papa.model.verification import verify

HEADS = 4


@pytest.fixture(params=DECODERS)
def decoder(request):
    return stock(request.param)


@pytest.fixture
def inputs(decoder):
    return texts(padding=decoder.config.pad_token_id)


@pytest.fixture
def constants():
    return torch.rand(LAYERS, HEADS, SLOTS, SLOTS, generator=torch.Generator().manual_seed(2))


@pytest.mark.parametrize(
    "prompts", ["padded in front", "alone without a mask", "three with a mask"]
)
def test_prompts_are_continued_as_whole_passes_over_each_text_would(decoder, constants, prompts):
    """transformers drops a mask of ones before the first pass, and passes an empty cache."""
    inputs = {
        name: values[:3, -12:] for name, values in texts(True, decoder.config.pad_token_id).items()
    }
    if prompts != "padded in front":
        ids = torch.randint(4, VOCABULARY, (3, 12), generator=torch.Generator().manual_seed(1))
        inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
        inputs = inputs if prompts.startswith("three") else {"input_ids": ids[:1]}
    options = {"max_new_tokens": 5, "do_sample": False, "eos_token_id": None}

    def generated():
        return decoder.generate(**inputs, **options)

    with torch.no_grad():
        expected = generated()
        with papa.replaced_attention(decoder, constants, []):
            assert torch.equal(generated(), expected)
        with papa.replaced_attention(decoder, constants, [(0, 1), (1, 0), (2, 2)]):
            continued = generated()
            for row, whole in enumerate(continued):
                real = inputs["attention_mask"][row].sum() if "attention_mask" in inputs else 12
                ids = whole[12 - int(real) :][None]
                for length in range(ids.shape[1] - 5, ids.shape[1]):
                    assert int(decoder(ids[:, :length]).logits[0, -1].argmax()) == int(
                        ids[0, length]
                    )
    assert not prompts.startswith("three") or not torch.equal(continued, expected)


@pytest.mark.parametrize(
    "decoder", [name for name in DECODERS if name != "gpt2"], indirect=True
)  # it counts padding
def test_gradients_are_the_same_on_either_side_of_padding(decoder, constants):
    """A query of padding before the tokens sees nothing in a window, and nothing reads it."""
    ours = Model(decoder)

    def gradient(left):
        inputs = texts(left, decoder.config.pad_token_id)
        mixing = torch.full((LAYERS, HEADS), 0.4, requires_grad=True)
        return torch.autograd.grad(
            ours.logits(inputs, constants, mixing=mixing).square().sum() / 1e5, mixing
        )[0]

    close(gradient(True), gradient(False))


def test_of_layers_those_that_attend_are_counted_and_the_others_stay_as_they_are(
    constants, tmp_path
):
    def mixed():
        torch.manual_seed(0)
        layers = ["conv", "full_attention", "conv", "conv", "full_attention"]
        config = transformers.Lfm2Config(
            **SIZES | GROUPED | ENDS | {"num_hidden_layers": 5, "layer_types": layers}
        )
        return transformers.Lfm2ForCausalLM._from_config(config, attn_implementation="eager").eval()

    verified = verify(mixed())
    assert (verified.form, verified.layers, verified.numbers) == ("padded", 2, (1, 4)), verified
    assert max(verified.stock, verified.half, verified.all) < 1e-5
    assert verified.skipped == 1
    model = papa.Model(mixed())
    inputs = texts()
    heads = [(0, 0), (0, 3), (1, 1)]
    states = model.hidden_states(inputs, constants[:2], heads)
    assert states.shape[1] == 6
    plain = mixed()
    with papa.replaced_attention(plain, constants[:2], heads), torch.no_grad():
        close(states_of(plain, inputs)[:, -1], real(states, inputs)[:, -1])
    with input_error(r"this model needs a torch tensor \[layer, head, query, key\] = \[2, 4"):
        model.hidden_states(inputs, constants)
    plain.save_pretrained(tmp_path)
    sizes = sizes_of_model(str(tmp_path))
    assert (sizes["layers"], sizes["heads"]) == (2, 4)


def test_a_layer_computes_the_keys_that_a_later_layer_reads(constants):
    """As in Gemma 4: the fourth layer reads those of the first, whose heads are all replaced."""
    torch.manual_seed(0)
    layers = [f"{name}_attention" for name in ("sliding", "full", "full", "sliding", "full")]
    config = transformers.Gemma4TextConfig(
        **SIZES | GROUPED | ENDS | {"num_hidden_layers": 5, "layer_types": layers},
        num_kv_shared_layers=2,
        global_head_dim=16,
        initializer_range=0.3,
        vocab_size_per_layer_input=VOCABULARY,
        hidden_size_per_layer_input=4,
    )
    model = transformers.Gemma4ForCausalLM._from_config(config, attn_implementation="eager").eval()
    inputs = texts(True)
    matrices = constants[:1].expand(5, -1, -1, -1)
    heads = [(0, head) for head in range(HEADS)]
    with papa.replaced_attention(model, matrices, heads), torch.no_grad():
        expected = states_of(model, inputs)
        model.generate(**inputs, max_new_tokens=1)
    ours = papa.Model(model)
    close(real(ours.hidden_states(inputs, matrices, heads), inputs), expected)
    with input_error("no mean-output"):
        papa.average_attention(ours, [inputs], "mean-output")


def test_a_decoder_needs_no_mask_if_padding_follows_the_tokens(constants):
    plain = stock("llama")
    inputs = texts()
    ends = inputs["attention_mask"].bool()
    with papa.replaced_attention(plain, constants), torch.no_grad():
        close(plain(inputs["input_ids"]).logits[ends], plain(**inputs).logits[ends])
    plain = stock("distilbert")
    said = "Call the model with input_ids and attention_mask"
    with papa.replaced_attention(plain, constants), input_error(said):
        plain(inputs["input_ids"])


@pytest.mark.parametrize(
    ("name", "given", "said"),
    [
        ("DistilBertModel", 5, "DistilBertModel has no head, so it returns no logits"),
        # one text of five tokens and five labels would have logits of the shape of those of tokens
        (
            "BertForSequenceClassification",
            1,
            r"The head of BertForSeq.* returns logits \[\d, 5\] for inputs \[",
        ),
        (
            "GPT2ForSequenceClassification",
            5,
            r"The head of GPT2ForSeq.* returns logits \[\d, 5\] for inputs \[",
        ),
        ("BertForTokenClassification", 5, None),
    ],
)
def test_only_a_head_that_says_something_of_each_token_has_logits(name, given, said):
    kind = getattr(transformers, name)
    plain = kind(kind.config_class(**SIZES | ENDS, num_labels=5)).eval()
    inputs = {key: values[-given:, :5] for key, values in texts().items()}
    expected = plain(**inputs)
    ours = Model(plain)
    if said is None:
        real = inputs["attention_mask"].bool()
        close(ours.logits(inputs)[real], expected.logits[real])
        return
    with input_error(said):
        ours.logits(inputs)


@pytest.mark.usefixtures("checked_anew")
def test_a_plain_model_that_would_be_replaced_otherwise_than_the_formula_says_is_refused(
    monkeypatch, constants
):
    model = stock("llama").train()
    before = [module.training for module in model.modules()]
    monkeypatch.setattr(Matrices, "context", lambda _, layer, heads: 0.9 * layer.values(heads))
    with input_error("hidden states differ from the formula"):
        papa.replaced_attention(model, constants).__enter__()
    assert [module.training for module in model.modules()] == before
    stays = [(name, weights.requires_grad) for name, weights in model.named_parameters()]
    with input_error("differ from the formula"):
        Model(model)
    assert stays == [(name, weights.requires_grad) for name, weights in model.named_parameters()]
    with input_error(r"the weights of LlamaForCausalLM are torch\.float16; load it in "):
        papa.replaced_attention(model.half(), constants).__enter__()


def test_rotary_frequencies_stay_float32_in_a_model_of_bfloat16(tmp_path):
    stock("llama").save_pretrained(tmp_path)
    model = papa.load_model(tmp_path, device="cpu", dtype="bfloat16").model
    assert model.rotary_emb.inv_freq.dtype == torch.float32 != next(model.parameters()).dtype


def test_states_of_several_sizes_are_no_input_of_a_probe():
    config = transformers.OPTConfig(**SIZES | ENDS, ffn_dim=16, word_embed_proj_dim=HEADS)
    model = Model(transformers.OPTForCausalLM(config).eval())
    assert model.logits(texts()).isfinite().all()
    with input_error("another size than the others, so no probe"):
        model.hidden_states(texts())


def test_slots_are_counted_from_the_first_token_whichever_side_padding_is_on(constants):
    """Of a packed row, in a padded batch and in a plain model; Mistral's positions are only distances."""
    decoder = stock("mistral")
    heads = [(0, 1), (1, 0), (2, 2)]
    actual = []
    sums = []
    ours = Model(copy.deepcopy(decoder))
    padded = Model(copy.deepcopy(decoder))
    padded.form = Form("padded")
    for given in (texts(), texts(left=True)):
        actual += [
            real(model.hidden_states(given, constants, heads), given)[:, -1]
            for model in (ours, padded)
        ]
        with papa.replaced_attention(decoder, constants, heads):
            actual.append(states_of(decoder, given)[:, -1])
        sums.append(papa.average_attention(ours, [given]).sum)
    assert max(distance([states], actual[:1]) for states in actual) < 1e-5
    close(*sums)


@pytest.mark.usefixtures("checked_anew")
def test_a_model_that_is_wrong_with_padding_before_the_tokens_refuses_it(monkeypatch, constants):
    decoder = stock("llama")

    def other(model, where):
        batch, states = stock_of(model, where)
        return batch, [2 * state for state in states] if where == "before" else states

    monkeypatch.setattr("papa.model.settling.stock_of", other)
    ours = Model(copy.deepcopy(decoder))
    assert not ours.padding_before
    assert ours.hidden_states(texts()).isfinite().all()
    with input_error(
        r"^LlamaModel gives correct results only with padding after the tokens; put",
    ):
        ours.hidden_states(texts(left=True))
    with papa.replaced_attention(decoder, constants):
        assert decoder(**texts()).logits.isfinite().all()
        with input_error(r"^LlamaForCausalLM gives correct results only with padding after"):
            decoder(**texts(left=True))


@pytest.mark.parametrize("name", ["llama", "deberta-v2"])
def test_within_replaced_attention_there_is_no_second_one(name, constants):
    model = stock(name)
    given = texts()

    def last_states():
        return stock_states(model, given)[:, -1]

    before = last_states()
    with papa.replaced_attention(model, constants):
        inside = last_states()
        with input_error("is already papa's; leave the other"):
            papa.replaced_attention(model, constants).__enter__()
        assert torch.equal(last_states(), inside)
    assert torch.equal(last_states(), before)


def test_a_plain_model_takes_its_mask_by_place_and_refuses_what_it_cannot_place(constants):
    model = stock("gpt2")
    given = texts(left=True)
    real = given["attention_mask"].bool()
    expected = model(**given).logits[real]
    with papa.replaced_attention(model, constants, []):
        close(model(given["input_ids"], None, given["attention_mask"]).logits[real], expected)
        ids = given["input_ids"][:1]
        positions = torch.arange(SLOTS)[None] % 9
        for more in ({}, {"attention_mask": torch.ones_like(ids)}):
            with input_error("position_ids restart within a row"):
                model(ids, position_ids=positions, **more)
        for key, value in {
            "head_mask": torch.ones(3, 4),
            "attention_mask": 1 + (ids > 9).long(),
        }.items():
            with input_error(f"^{key} "):
                model(**{"input_ids": ids, "attention_mask": torch.ones_like(ids), key: value})
        with input_error(r"^A part of a model with papa's attention was called directly"):
            model.base_model(**given)
        for inputs in (given, {"input_ids": given["input_ids"][-1:]}):
            vars(model).pop(
                "_cache", None
            )  # transformers 5.4 cannot reuse a cache that was not filled
            with input_error("with a cache that grows"):
                model.generate(**inputs, max_new_tokens=2, cache_implementation="static")


def test_padding_may_have_the_id_of_a_token():
    """As in decoders that were trained without padding; then only the mask shows what is real."""
    model = stock("gpt2")
    given = texts()
    model.config.pad_token_id = model.config.eos_token_id
    given["input_ids"][1, 18] = model.config.eos_token_id
    real = given["attention_mask"].bool()
    close(Model(copy.deepcopy(model)).logits(given)[real], model(**given).logits[real])


def test_threads_take_turns(constants):
    ours = Model(stock("llama"))
    given = texts()
    tasks = [() if number % 2 else (constants,) for number in range(24)]
    expected = [ours.hidden_states(given), ours.hidden_states(given, constants)]
    with ThreadPoolExecutor(4) as pool:
        actual = list(pool.map(lambda arguments: ours.hidden_states(given, *arguments), tasks))
    for arguments, states in zip(tasks, actual, strict=True):
        close(states, expected[len(arguments)], atol=1e-5)


def test_models_replaced_at_once_are_called_from_any_thread_and_freed_later(constants):
    model = stock("llama")
    given = texts()
    other = copy.deepcopy(model)
    with torch.no_grad(), papa.replaced_attention(model, constants):
        expected = model(**given).logits
        with papa.replaced_attention(other, constants, []), ThreadPoolExecutor(3) as pool:
            for each in [pool.submit(lambda: model(**given).logits) for _ in range(9)]:
                assert torch.equal(each.result(), expected)
            assert not torch.equal(other(**given).logits, expected)
            assert torch.equal(model(**given).logits, expected)
    alive = weakref.ref(other)
    del other
    gc.collect()
    assert alive() is None


def test_a_state_that_is_not_finite_is_within_no_limit():
    good = torch.ones(2, 3)
    bad = torch.full((2, 3), torch.nan)
    for actual in ([good, bad], [bad, good]):
        assert not distance(actual, [good, good]) <= 1
    assert distance([good, good], [good, good]) == 0
