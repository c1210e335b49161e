"""Every family of encoders against its own stock model, padded."""

import copy

import pytest
import torch
import transformers
from families import DISTINCT, FAMILIES, byte_tokenizer, close, only, real, stock_attention, stock_states
from packaging.version import Version
from sizes import CHANNELS, EXAMPLES, HEADS, LAYERS, SLOTS, VOCABULARY
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

import papa
from papa.model.model import Model


@pytest.fixture(params=FAMILIES)
def family(request):
    return request.param


def test_nothing_replaced_equals_stock_transformers(model, ours, inputs):
    hidden = ours.hidden_states(inputs)
    assert hidden.shape == (EXAMPLES, LAYERS + 1, SLOTS, HEADS * CHANNELS)
    close(real(hidden, inputs), real(stock_states(model, inputs), inputs))
    assert not hidden.transpose(1, 2)[inputs["attention_mask"] == 0].any()


def test_packed_equals_padded_with_any_heads_replaced(model, ours, inputs, matrices):
    for heads in (None, [(0, 1), (2, 4), (2, 0)], [(1, head) for head in range(HEADS)], []):
        with papa.replaced_attention(model, matrices, heads):
            padded = stock_states(model, inputs)
        close(real(ours.hidden_states(inputs, matrices, heads), inputs), real(padded, inputs))


def test_a_constant_that_is_the_examples_own_attention_changes_nothing(model, ours, inputs):
    for row in (0, 1, 5):
        one = {name: values[row : row + 1] for name, values in inputs.items()}
        attention = stock_attention(model, one)[0]
        stock = real(stock_states(model, one), one)
        for heads in (None, [(0, 2), (1, 4), (2, 0)]):
            close(real(ours.hidden_states(one, attention, heads), one), stock)
        close(real(ours.hidden_states(one, attention, mixing=torch.rand(LAYERS, HEADS)), one), stock)


def test_averages_are_those_of_collected_attention(model, ours, inputs):
    mask = inputs["attention_mask"].double()
    both = mask[:, :, None] * mask[:, None, :]
    halves = [{name: values[part] for name, values in inputs.items()} for part in (slice(0, 4), slice(4, None))]
    constants = papa.average_attention(ours, halves)
    close(constants.sum, (stock_attention(model, inputs).double() * both[:, None, None]).sum(0))
    close(constants.count.double(), both.sum(0))


def test_in_inference_mode_hidden_states_are_the_same(model, ours, inputs, matrices):
    for heads in ([(0, 1), (2, 4)], None, []):
        expected = ours.hidden_states(inputs, matrices, heads)
        with torch.inference_mode():
            for _ in range(2):  # what is kept from one pass to the next is there at the second
                close(ours.hidden_states(inputs, matrices, heads), expected)


def operations(ours, inputs, constants=None, heads=None):
    """Floating-point operations of matrix products, those of the first batch."""
    counter = FlopCounterMode(display=False)
    with sdpa_kernel(SDPBackend.MATH), torch.no_grad(), counter:
        ours.hidden_states(inputs, constants, heads)
    return counter.get_total_flops()


def test_a_replaced_head_computes_no_query_no_key_and_no_distances(model, inputs, matrices):
    packed, hidden = str(Model(copy.deepcopy(model)).form) == "packed", HEADS * CHANNELS
    assert packed or Version(transformers.__version__) < Version("5.17"), "only older versions need padding"
    tokens = int(inputs["attention_mask"].sum()) if packed else inputs["attention_mask"].numel()
    none, some, every = (
        operations(Model(copy.deepcopy(model)), inputs, *given)
        for given in ((), (matrices, [(layer, head) for layer in range(LAYERS) for head in (0, 3)]), (matrices,))
    )
    # with every head replaced: values, the output projection, two linear layers, the constants times the values, and
    # the sums of the constants' rows
    layer = 2 * tokens * hidden * (hidden + hidden + 2 * 41) + 2 * EXAMPLES * HEADS * SLOTS * SLOTS * (CHANNELS + 1)
    projected = hasattr(model, "embeddings_project")
    pooler = 2 * hidden * hidden if getattr(model, "pooler", None) is not None else 0  # of one token of each row
    pooler *= 1 if packed else EXAMPLES
    assert every == LAYERS * layer + (2 * tokens * 13 * hidden if projected else 0) + pooler
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
    ours = Model(model)
    few = {name: values[:3] for name, values in inputs.items()}
    mixing = torch.rand(LAYERS, HEADS, dtype=torch.float64, requires_grad=True)
    constants = matrices.double().requires_grad_()
    query, key = few["attention_mask"][2].nonzero()[:2, 0].tolist()
    step, (layer, head) = 1e-6, (1, 3)
    for weights, heads in ((mixing, None), (None, [(0, 1), (1, 3), (1, 0)])):

        def loss(weights, matrices, heads=heads):
            return ours.hidden_states(few, matrices, heads, weights).square().mean()

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
    ours = Model(copy.deepcopy(model))
    ours.hidden_states(inputs)
    ours.hidden_states(inputs, matrices, [(0, 1)])
    with torch.no_grad():
        for each in (model, ours.model):
            each.encoder.rel_embeddings.weight.mul_(1.25)
    for heads in ([(0, 1)], [(0, 2)], []):
        with papa.replaced_attention(model, matrices, heads):
            padded = stock_states(model, inputs)
        close(real(ours.hidden_states(inputs, matrices, heads), inputs), real(padded, inputs))
    longer = {name: torch.nn.functional.pad(values, (0, 6)) for name, values in inputs.items()}
    close(real(ours.hidden_states(longer), longer), real(stock_states(model, longer), longer))


@only("deberta")
def test_the_span_is_that_of_the_padded_layout(model, ours, inputs):
    """The same tokens in the same slots, of a longer layout: DeBERTa sees more distances, and so do we."""
    few = {name: values[2:5, :11].clone() for name, values in inputs.items()}
    few["input_ids"][:, 0], few["attention_mask"][:, 0] = 7, 1
    few["input_ids"][:, 10], few["attention_mask"][:, 10] = 9, 1
    longer = {name: torch.nn.functional.pad(values, (0, 29)) for name, values in few.items()}
    for given in (few, longer):
        close(real(ours.hidden_states(given), given), real(stock_states(model, given), given))


@only("deberta")
def test_heads_that_are_mixed_cannot_be_replaced(model):
    model.config.talking_head = True
    with pytest.raises(papa.InputError, match="talking_head"):
        Model(transformers.DebertaModel(model.config))


COUNTED = ("roberta", "xlm-roberta", "camembert", "data2vec")  # their positions 0 and 1 are never those of a token
OTHERS = ("bert", "electra", "deberta", "deberta-far", "ernie", "splinter")


@pytest.mark.parametrize(
    ("family", "slots"), [*((name, 45) for name in COUNTED), *((name, 47) for name in OTHERS)], indirect=["family"]
)
def test_every_position_of_a_token_is_a_slot_and_no_other(model, ours, slots):
    assert ours.slots_limit == slots
    ids = torch.randint(4, VOCABULARY, (2, slots))
    inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    close(ours.hidden_states(inputs), stock_states(model, inputs))
    longer = {name: torch.cat([values, values[:, :1]], dim=1) for name, values in inputs.items()}
    with pytest.raises(papa.InputError, match=f"{slots + 1} slots, but the model has {slots} positions"):
        ours.hidden_states(longer)


ROBERTA = ("Roberta", ["<s>", "<pad>", "</s>", "<unk>", "<mask>"])
DEBERTA = ("Deberta", ["[PAD]", "[CLS]", "[SEP]", "[UNK]", "[MASK]"])


@only("roberta", "deberta")
def test_texts_laid_out_by_the_familys_tokenizer_against_the_padded_model(family, model):
    tokenizer = byte_tokenizer(*(ROBERTA if family == "roberta" else DEBERTA))
    model.resize_token_embeddings(len(tokenizer))
    inputs = papa.lay_out(tokenizer, ["ab", "a b c d e f g"], ["c", "defg"], slots=SLOTS - 1)
    ends = [11, 12, 21] if family == "roberta" else [11, 21]  # at n/2 (RoBERTa: two) and n-1
    assert inputs["input_ids"][0].eq(2).nonzero().flatten().tolist() == ends
    assert inputs["input_ids"].eq(tokenizer.pad_token_id).eq(inputs["attention_mask"] == 0).all()
    hidden = Model(copy.deepcopy(model)).hidden_states(inputs)
    close(real(hidden, inputs), real(stock_states(model, inputs), inputs))


@pytest.mark.parametrize("tokenizer", [ROBERTA, DEBERTA])
def test_words_have_the_space_before_them_that_they_have_in_a_text(tokenizer):
    split = byte_tokenizer(*tokenizer, add_prefix_space=True)
    inputs = papa.lay_out(split, [["ab", "c"]], slots=11)
    tokens = split.convert_ids_to_tokens(inputs["input_ids"][0, :6].tolist())
    assert tokens[1:] == ["Ġ", "a", "b", "Ġ", "c"]


@only("roberta")
def test_a_segment_that_the_model_does_not_have_is_named(ours, inputs):
    inputs["token_type_ids"][1, 3] = 1
    with pytest.raises(papa.InputError, match="Segment 1 is not one of the model's 1"):
        ours.hidden_states(inputs)
