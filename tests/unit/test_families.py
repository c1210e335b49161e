"""Every family of encoders against its own stock model, padded."""

import copy
import logging

import pytest
import torch
import transformers
from sizes import CHANNELS, EXAMPLES, HEADS, LAYERS, SLOTS, VOCABULARY
from tokenizers import pre_tokenizers
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

import papa
from papa import selfcheck
from papa.attention.replacement import attend, plan_layers
from papa.encoder import Encoder
from papa.features import probe_sizes
from papa.linear import rounded_up

RELATIVE = {"relative_attention": True, "position_biased_input": False}
FAMILIES = {
    "roberta": ("Roberta", {"type_vocab_size": 1, "pad_token_id": 1}),
    "electra": ("Electra", {"embedding_size": 13}),
    "electra-unprojected": ("Electra", {"embedding_size": HEADS * CHANNELS}),
    "deberta": ("Deberta", RELATIVE | {"pos_att_type": "c2p|p2c"}),
    "deberta-far": (
        "Deberta",
        {"relative_attention": True, "pos_att_type": "c2p|p2c", "max_relative_positions": 17, "type_vocab_size": 2},
    ),
    "deberta-c2p": ("Deberta", RELATIVE | {"pos_att_type": "c2p"}),
    "deberta-p2c": ("Deberta", RELATIVE | {"pos_att_type": "p2c"}),
    "deberta-absolute": ("Deberta", {}),
    "xlm-roberta": ("XLMRoberta", {"type_vocab_size": 1}),
    "camembert": ("Camembert", {"type_vocab_size": 1}),
    "data2vec": ("Data2VecText", {"type_vocab_size": 1}),
    "ernie": ("Ernie", {"use_task_id": True}),
    "splinter": ("Splinter", {}),
}
DISTINCT = ("roberta", "electra", "deberta", "deberta-far")


def random_model(family):
    name, options = FAMILIES[family]
    sizes = {
        "vocab_size": VOCABULARY,
        "hidden_size": HEADS * CHANNELS,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS,
        "intermediate_size": 41,
        "max_position_embeddings": 47,
        "initializer_range": 0.4,
    }
    model = getattr(transformers, f"{name}Model")(getattr(transformers, f"{name}Config")(**sizes | options)).eval()
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if name.endswith("bias"):  # zero at the start, which would hide one that is left out
                weight.normal_(std=0.3)
    return model


@pytest.fixture(params=FAMILIES)
def family(request):
    return request.param


@pytest.fixture
def model(family):
    return random_model(family)


@pytest.fixture
def inputs(inputs, model):
    real = inputs["attention_mask"].bool()
    inputs["input_ids"] = torch.where(real, inputs["input_ids"], model.config.pad_token_id)
    if model.config.type_vocab_size < 2:
        inputs["token_type_ids"] = torch.zeros_like(inputs["token_type_ids"])
    return inputs


@pytest.fixture
def encoder(model):
    return Encoder(copy.deepcopy(model))


def only(*families):
    return pytest.mark.parametrize("family", families, indirect=True)


def real(hidden, inputs):
    return hidden.transpose(1, 2)[inputs["attention_mask"].bool()]


def stock_states(model, inputs):
    return torch.stack(model(**inputs, output_hidden_states=True).hidden_states, dim=1)


def stock_attention(model, inputs):
    eager = copy.deepcopy(model)
    eager.set_attn_implementation("eager")
    return torch.stack(eager(**inputs, output_attentions=True).attentions, dim=1)  # [example, layer, head, query, key]


def close(found, expected, atol=1e-4):
    torch.testing.assert_close(found, expected, atol=atol, rtol=0)


def test_nothing_replaced_equals_stock_transformers(model, encoder, inputs):
    hidden = encoder.hidden_states(inputs)
    assert hidden.shape == (EXAMPLES, LAYERS + 1, SLOTS, HEADS * CHANNELS)
    close(real(hidden, inputs), real(stock_states(model, inputs), inputs))
    assert not hidden.transpose(1, 2)[inputs["attention_mask"] == 0].any()


def test_packed_equals_padded_with_any_heads_replaced(model, encoder, inputs, matrices):
    for heads in (None, [(0, 1), (2, 4), (2, 0)], [(1, head) for head in range(HEADS)], []):
        with papa.replaced_attention(model, matrices, heads):
            padded = stock_states(model, inputs)
        close(real(encoder.hidden_states(inputs, matrices, heads), inputs), real(padded, inputs))


def test_a_constant_that_is_the_examples_own_attention_changes_nothing(model, encoder, inputs):
    for row in (0, 1, 5):
        one = {name: values[row : row + 1] for name, values in inputs.items()}
        own = stock_attention(model, one)[0]
        stock = real(stock_states(model, one), one)
        for heads in (None, [(0, 2), (1, 4), (2, 0)]):
            close(real(encoder.hidden_states(one, own, heads), one), stock)
        close(real(encoder.hidden_states(one, own, mixing=torch.rand(LAYERS, HEADS)), one), stock)


def test_averages_are_those_of_collected_attention(model, encoder, inputs):
    mask = inputs["attention_mask"].double()
    both = mask[:, :, None] * mask[:, None, :]
    halves = [{name: values[part] for name, values in inputs.items()} for part in (slice(0, 4), slice(4, None))]
    constants = papa.average_attention(encoder, halves)
    close(constants.sum, (stock_attention(model, inputs).double() * both[:, None, None]).sum(0))
    close(constants.count.double(), both.sum(0))


def operations(encoder, inputs, constants=None, heads=None):
    """Floating-point operations of matrix products, those of the first batch."""
    counter = FlopCounterMode(display=False)
    with sdpa_kernel(SDPBackend.MATH), torch.no_grad(), counter:
        encoder.hidden_states(inputs, constants, heads)
    return counter.get_total_flops()


def test_a_replaced_head_computes_no_query_no_key_and_no_distances(model, inputs, matrices, monkeypatch):
    monkeypatch.setattr("papa.linear._onednn_takes", lambda _: False)  # the counter does not know its products
    tokens, hidden = rounded_up(int(inputs["attention_mask"].sum())), HEADS * CHANNELS
    none, some, every = (
        operations(Encoder(copy.deepcopy(model)), inputs, *given)
        for given in ((), (matrices, [(layer, head) for layer in range(LAYERS) for head in (0, 3)]), (matrices,))
    )
    # with every head replaced: values, the output projection, two linear layers, and the constants times the values
    layer = 2 * tokens * hidden * (hidden + hidden + 2 * 41) + 2 * EXAMPLES * HEADS * SLOTS * SLOTS * CHANNELS
    projected = hasattr(model, "embeddings_project")
    assert every == LAYERS * layer + (2 * tokens * 13 * hidden if projected else 0)
    # and every head that is not replaced adds the same
    assert (none - some) * HEADS == (none - every) * 2 > 0


@only(*DISTINCT)
def test_mixing_and_constants_are_differentiable(model, inputs, matrices):
    for parent in list(model.double().modules()):
        for name, norm in parent.named_children():
            if type(norm).__name__ == "DebertaLayerNorm":  # rounds to float32 on the way
                exact = torch.nn.LayerNorm(norm.weight.shape, eps=norm.variance_epsilon, dtype=torch.float64)
                exact.load_state_dict(norm.state_dict())
                setattr(parent, name, exact)
    encoder = Encoder(model)
    few = {name: values[:3] for name, values in inputs.items()}
    mixing = torch.rand(LAYERS, HEADS, dtype=torch.float64, requires_grad=True)
    constants = matrices.double().requires_grad_()
    query, key = few["attention_mask"][2].nonzero()[:2, 0].tolist()
    step, (layer, head) = 1e-6, (1, 3)
    for weights, heads in ((mixing, None), (None, [(0, 1), (1, 3), (1, 0)])):

        def loss(weights, matrices, heads=heads):
            return encoder.hidden_states(few, matrices, heads, weights).square().mean()

        mixing.grad = constants.grad = None
        here = loss(weights, constants)
        here.backward()
        here = here.detach()
        if weights is not None:
            bumped = mixing.detach().clone()
            bumped[layer, head] += step
            slope = (loss(bumped, constants).detach() - here) / step
            assert float(slope) == pytest.approx(float(mixing.grad[layer, head]), rel=1e-3)
        bumped = constants.detach().clone()
        bumped[layer, head, query, key] += step
        slope = (loss(weights, bumped).detach() - here) / step
        assert float(slope) == pytest.approx(float(constants.grad[layer, head, query, key]), rel=1e-3, abs=1e-9)


@only(*DISTINCT)
def test_a_plain_model_still_learns_while_its_attention_is_replaced(model, inputs, matrices):
    with papa.replaced_attention(model, matrices, [(0, 1), (2, 4)]):
        real(stock_states(model, inputs), inputs).square().mean().backward()
    for name, weight in model.encoder.named_parameters():
        assert weight.grad is not None and weight.grad.isfinite().all(), name


@only("deberta", "deberta-far")
def test_projected_distances_follow_heads_layouts_and_weights(model, inputs, matrices):
    encoder = Encoder(copy.deepcopy(model))
    encoder.hidden_states(inputs)
    encoder.hidden_states(inputs, matrices, [(0, 1)])
    with torch.no_grad():
        for each in (model, encoder.model):
            each.encoder.rel_embeddings.weight.mul_(1.25)
    for heads in ([(0, 1)], [(0, 2)], []):
        with papa.replaced_attention(model, matrices, heads):
            padded = stock_states(model, inputs)
        close(real(encoder.hidden_states(inputs, matrices, heads), inputs), real(padded, inputs))
    longer = {name: torch.nn.functional.pad(values, (0, 6)) for name, values in inputs.items()}
    close(real(encoder.hidden_states(longer), longer), real(stock_states(model, longer), longer))


@only("deberta")
def test_the_span_is_that_of_the_padded_layout(model, encoder, inputs):
    """The same tokens in the same slots, of a longer layout: DeBERTa sees more distances, and so do we."""
    few = {name: values[2:5, :11].clone() for name, values in inputs.items()}
    few["input_ids"][:, 0], few["attention_mask"][:, 0] = 7, 1
    few["input_ids"][:, 10], few["attention_mask"][:, 10] = 9, 1
    longer = {name: torch.nn.functional.pad(values, (0, 29)) for name, values in few.items()}
    for given in (few, longer):
        close(real(encoder.hidden_states(given), given), real(stock_states(model, given), given))


@only("deberta")
def test_heads_that_are_mixed_cannot_be_replaced(model):
    model.config.talking_head = True
    with pytest.raises(papa.InputError, match="talking_head"):
        Encoder(transformers.DebertaModel(model.config))


@only("roberta", "xlm-roberta", "camembert", "data2vec")
def test_positions_behind_that_of_padding_are_slots_to_use(model, encoder):
    assert encoder.slots_limit == 47 - 2  # positions 0 and 1 are never those of a token
    ids = torch.randint(4, VOCABULARY, (2, 45))
    inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    close(encoder.hidden_states(inputs), stock_states(model, inputs))
    longer = {name: torch.cat([values, values[:, :1]], dim=1) for name, values in inputs.items()}
    with pytest.raises(papa.InputError, match="46 slots, the model has positions for 45"):
        encoder.hidden_states(longer)


@only("electra", "deberta", "deberta-far", "ernie", "splinter")
def test_other_families_have_a_position_for_every_slot(model, encoder):
    assert encoder.slots_limit == 47
    ids = torch.randint(4, VOCABULARY, (2, 47))
    inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    close(encoder.hidden_states(inputs), stock_states(model, inputs))


def test_loading_from_a_folder(tmp_path, model, inputs):
    model.save_pretrained(tmp_path / "tiny")
    encoder = papa.load_encoder(str(tmp_path / "tiny"), device="cpu")
    close(real(encoder.hidden_states(inputs), inputs), real(stock_states(model, inputs), inputs))
    sizes = probe_sizes(encoder, SLOTS)
    counted_positions = type(model).__name__.startswith(("Roberta", "XLMRoberta", "Camembert", "Data2Vec"))
    assert sizes["probe_dropout"] == (0.0 if counted_positions else 0.1) and sizes["initializer_range"] == 0.4


@only(*DISTINCT)
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_loading_at_half_precision(tmp_path, model, inputs, dtype):
    model.save_pretrained(tmp_path / "tiny")
    assert papa.load_encoder(str(tmp_path / "tiny"), device="cpu", dtype=dtype).hidden_states(inputs).isfinite().all()


@only("roberta")
def test_pickled_weights_are_loaded_weights_only_and_that_is_said(tmp_path, model, inputs, caplog):
    model.save_pretrained(tmp_path / "tiny")
    with caplog.at_level(logging.WARNING, logger="papa"):
        papa.load_encoder(str(tmp_path / "tiny"), device="cpu")
        assert not caplog.records
        (tmp_path / "tiny" / "model.safetensors").unlink()
        torch.save(model.state_dict(), tmp_path / "tiny" / "pytorch_model.bin")
        encoder = papa.load_encoder(str(tmp_path / "tiny"), device="cpu")
    assert "weights-only" in caplog.text
    close(real(encoder.hidden_states(inputs), inputs), real(stock_states(model, inputs), inputs))
    torch.save([model.config], tmp_path / "tiny" / "pytorch_model.bin")  # objects, not weights
    with pytest.raises(papa.InputError, match="could not be loaded"):
        papa.load_encoder(str(tmp_path / "tiny"), device="cpu")


@only("roberta")
@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda patch: patch.setattr("papa.encoder.patch", lambda *_: None), "was not replaced"),
        (lambda patch: patch.setattr("papa.architecture.positions_of", lambda _, batch: batch.slots), "from those of"),
        (
            lambda patch: patch.setattr("papa.encoder.plan_layers", lambda shape, *_, **__: plan_layers(shape)),
            "changes nothing",
        ),
        (lambda patch: patch.setattr("papa.attention.bert.attend", lambda *_: 0.99 * attend(*_)), "from those of"),
        (lambda patch: patch.setattr(selfcheck, "stock_states", lambda _: torch.tensor(torch.inf)), "not finite"),
    ],
)
def test_a_model_that_would_run_wrong_is_not_loaded(tmp_path, model, monkeypatch, change, message):
    model.save_pretrained(tmp_path / "tiny")
    change(monkeypatch)
    with pytest.raises(papa.InputError, match=rf"tiny cannot be used: .*{message}"):
        papa.load_encoder(str(tmp_path / "tiny"), device="cpu")


@pytest.mark.parametrize("other", ["DebertaV2", "MegatronBert", "DistilBert", "GPT2"])
def test_another_family_is_refused_with_what_is_supported(tmp_path, other):
    config = {"vocab_size": VOCABULARY, "hidden_size": 6, "num_hidden_layers": 1, "num_attention_heads": 2}
    made = getattr(transformers, f"{other}Config")(**config, intermediate_size=5, bos_token_id=1, eos_token_id=2)
    getattr(transformers, f"{other}Model")(made).save_pretrained(tmp_path / "other")
    with pytest.raises(papa.InputError, match=r"supported are .* BERT, .* DeBERTa .*, ELECTRA, .* RoBERTa"):
        papa.load_encoder(str(tmp_path / "other"), device="cpu")


def byte_tokenizer(name, marks, **options):
    """The family's own tokenizer but for its size: every byte is a token."""
    vocabulary = {mark: number for number, mark in enumerate([*marks, *sorted(pre_tokenizers.ByteLevel.alphabet())])}
    return getattr(transformers, f"{name}Tokenizer")(vocab=vocabulary, merges=[], **options)


ROBERTA = ("Roberta", ["<s>", "<pad>", "</s>", "<unk>", "<mask>"])
DEBERTA = ("Deberta", ["[PAD]", "[CLS]", "[SEP]", "[UNK]", "[MASK]"])


@only("roberta", "deberta")
def test_texts_laid_out_by_the_familys_tokenizer_against_the_padded_model(family, model):
    tokenizer = byte_tokenizer(*(ROBERTA if family == "roberta" else DEBERTA))
    model.resize_token_embeddings(len(tokenizer))
    inputs = papa.lay_out(tokenizer, ["ab", "a b c d e f g"], ["c", "defg"], slots=SLOTS - 1)
    # at n/2 (RoBERTa: two) and n-1
    assert inputs["input_ids"][0].eq(2).nonzero().flatten().tolist() == (
        [11, 12, 21] if family == "roberta" else [11, 21]
    )
    assert inputs["input_ids"].eq(tokenizer.pad_token_id).eq(inputs["attention_mask"] == 0).all()
    hidden = Encoder(copy.deepcopy(model)).hidden_states(inputs)
    close(real(hidden, inputs), real(stock_states(model, inputs), inputs))


@pytest.mark.parametrize("tokenizer", [ROBERTA, DEBERTA])
def test_words_have_the_space_before_them_that_they_have_in_a_text(tokenizer):
    split = byte_tokenizer(*tokenizer, add_prefix_space=True)
    inputs = papa.lay_out(split, [["ab", "c"]], slots=11)
    tokens = split.convert_ids_to_tokens(inputs["input_ids"][0, :6].tolist())
    assert tokens[1:] == ["Ġ", "a", "b", "Ġ", "c"]


@only("roberta")
def test_a_segment_that_the_model_does_not_have_is_named(encoder, inputs):
    inputs["token_type_ids"][1, 3] = 1
    with pytest.raises(papa.InputError, match="Segment 1 is not one of the model's 1"):
        encoder.hidden_states(inputs)
