"""Every model and padding against the oracles: its own stock model, the formula, and collected attention."""

import copy

import pytest
import torch
import transformers
from families import (
    DECODERS,
    DISTINCT,
    FAMILIES,
    OTHER_ENCODERS,
    WITHOUT_EXPERTS,
    close,
    laid,
    only,
    random_model,
    real,
    rows_of,
    states_of,
    stock,
    stock_attention,
    stock_states,
)
from packaging.version import Version
from refusals import input_error
from sizes import CHANNELS, EXAMPLES, HEADS, LAYERS, SLOTS, VOCABULARY
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

import papa
from papa.model.check import distance
from papa.model.model import Model
from papa.model.reference import Reference

TABLE = [(name, "between") for name in dict.fromkeys([*FAMILIES, *OTHER_ENCODERS])]
TABLE += [(name, padding) for name in DECODERS for padding in ("after", "before")]
FROM_SLOT_0 = [
    row for row in TABLE if row[1] != "before"
]  # decoders count slots from the first token


@pytest.fixture(params=FAMILIES)
def family(request):
    return request.param


def made(name):
    return random_model(name) if name in FAMILIES else stock(name)


@pytest.fixture(params=TABLE, ids="-".join)
def row(request):
    """A model, inputs with this padding, constants that are no distributions, and the model with replaceable heads."""
    model = made(request.param[0])
    inputs = laid(model, request.param[1])
    ours = Model(copy.deepcopy(model))
    constants = torch.randn(ours.layers, ours.heads, SLOTS, SLOTS)
    constants[:, :, 2] = 0
    return model, inputs, constants, ours


def same(actual, expected):
    """Hidden states `[token, layer + 1, hidden]` differ by rounding only."""
    assert distance(list(actual.unbind(1)), list(expected.unbind(1))) < 1e-5


def test_nothing_replaced_is_the_stock_model(row):
    model, inputs, _, ours = row
    expected = states_of(model, inputs)
    for inference in (
        False,
        True,
        True,
    ):  # what is kept from one pass to the next is there at the last
        with torch.inference_mode(inference):
            hidden = ours.hidden_states(inputs)
            same(real(hidden, inputs), expected)
    assert hidden.shape == (EXAMPLES, ours.states, SLOTS, ours.hidden)
    assert not hidden.transpose(1, 2)[inputs["attention_mask"] == 0].any()
    if ours.causal:
        mask = inputs["attention_mask"].bool()
        close(ours.logits(inputs)[mask], model(**inputs).logits[mask])


def test_replaced_heads_follow_the_formula(row):
    """Packed, padded in a plain model, and in an independent implementation, which counts slots from slot 0."""
    model, inputs, constants, ours = row
    mask = inputs["attention_mask"]
    layers = range(ours.layers)
    for heads in (None, [(0, 1), (2, 3), (2, 0)], [(1, head) for head in range(ours.heads)], []):
        with papa.replaced_attention(model, constants, heads):
            expected = states_of(model, inputs)
        for inference in (False, True):
            with torch.inference_mode(inference):
                same(real(ours.hidden_states(inputs, constants, heads), inputs), expected)
        by_name = ours.session.known.softmax is None
        if by_name and (not ours.causal or mask[:, 0].all()):
            every = (
                [(layer, head) for layer in layers for head in range(ours.heads)]
                if heads is None
                else heads
            )
            positive = constants.abs()
            with Reference(model.base_model, positive, every, mask):
                formula = states_of(model, inputs)
            same(real(ours.hidden_states(inputs, positive, heads), inputs), formula)


# with sinks, attention does not sum to one
@pytest.mark.parametrize(
    "row", [row for row in FROM_SLOT_0 if row[0] != "gpt-oss"], indirect=True, ids="-".join
)
def test_constants_that_are_the_texts_own_attention_change_nothing(row):
    model, inputs, _, ours = row
    for place in (0, 1, 5):
        text = rows_of(inputs, [place])
        attention = stock_attention(model, text)[0]
        expected = states_of(model, text)
        for options in (
            {},
            {"heads": [(0, 2), (1, 3), (2, 0)]},
            {"mixing": torch.rand(ours.layers, ours.heads)},
        ):
            same(real(ours.hidden_states(text, attention, **options), text), expected)


@pytest.mark.parametrize("row", FROM_SLOT_0, indirect=True, ids="-".join)
def test_averages_are_those_of_collected_attention(row):
    model, inputs, _, ours = row
    mask = inputs["attention_mask"].double()
    both = mask[:, :, None] * mask[:, None, :]
    constants = papa.average_attention(
        ours, [rows_of(inputs, part) for part in (slice(0, 4), slice(4, None))]
    )
    close(constants.sum, (stock_attention(model, inputs).double() * both[:, None, None]).sum(0))
    assert not ours.causal or not constants.sum.triu(1).any()
    close(constants.count.double(), both.sum(0))


@pytest.mark.parametrize(
    "name", [*DISTINCT, *WITHOUT_EXPERTS]
)  # experts do not multiply in float64
def test_mixing_and_constants_have_gradients(name):
    """Against central differences; the step is large for models that round to float32 on the way."""
    exact = name in ("roberta", "electra")
    model = made(name).double()
    step = 1e-5 if exact else 1e-2
    ours = Model(model)
    inputs = laid(model, "after")
    mixing = torch.full((ours.layers, ours.heads), 0.4, dtype=torch.float64, requires_grad=True)
    constants = torch.rand(*mixing.shape, SLOTS, SLOTS, dtype=torch.float64, requires_grad=True)

    def loss(mixing, constants):
        return ours.hidden_states(inputs, constants, mixing=mixing).square().mean()

    loss(mixing, constants).backward()
    with torch.no_grad():
        for place, values in enumerate((mixing, constants) if exact else (mixing,)):
            at = (1, 2, 4, 3)[: values.ndim]
            losses = []
            for moved in (step, -step):
                given = [mixing.clone(), constants.clone()]
                given[place][at] += moved
                losses.append(float(loss(*given)))
            slope = (losses[0] - losses[1]) / (2 * step)
            assert slope == pytest.approx(
                float(values.grad[at]), rel=1e-4 if exact else 2e-2, abs=1e-10
            )


def operations(ours, inputs, constants=None, heads=None):
    """Floating-point operations of matrix products, those of the first batch."""
    counter = FlopCounterMode(display=False)
    with sdpa_kernel(SDPBackend.MATH), torch.no_grad(), counter:
        ours.hidden_states(inputs, constants, heads)
    return counter.get_total_flops()


@only(*(name for name in FAMILIES if not name.startswith("deberta")))
def test_a_layer_whose_heads_are_all_replaced_computes_no_query_and_no_key(
    model, ours, inputs, matrices
):
    packed = ours.form.rows == "packed"
    hidden = HEADS * CHANNELS
    assert packed or Version(transformers.__version__) < Version("5.17"), (
        "only older versions need padding"
    )
    tokens = int(inputs["attention_mask"].sum()) if packed else inputs["attention_mask"].numel()
    none, some, every = (
        operations(Model(copy.deepcopy(model)), inputs, *given)
        for given in (
            (),
            (matrices, [(layer, head) for layer in (0, 2) for head in range(HEADS)]),
            (matrices,),
        )
    )
    # with every head replaced: values, the output projection, two linear layers, the constants times the values, and,
    # if rows are packed, the sums of the constants' rows
    layer = 2 * tokens * hidden * (2 * hidden + 2 * 41) + 2 * EXAMPLES * HEADS * SLOTS**2 * (
        CHANNELS + packed
    )
    projected = hasattr(model, "embeddings_project")
    pooler = (
        2 * hidden * hidden if getattr(model, "pooler", None) is not None else 0
    )  # of one token of each row
    pooler *= 1 if packed else EXAMPLES
    assert every == LAYERS * layer + (2 * tokens * 13 * hidden if projected else 0) + pooler
    # and every layer that is not replaced adds the same
    assert (none - some) * LAYERS == (none - every) * 2 > 0


@only(*DISTINCT)
def test_a_plain_model_still_learns_while_its_attention_is_replaced(model, inputs, matrices):
    for trained in (True, False):  # also if only embeddings and norms learn
        for module in model.modules():
            if isinstance(module, torch.nn.Linear):
                module.requires_grad_(trained)
        model.zero_grad()
        with papa.replaced_attention(model, matrices, [(0, 1), (2, 4)]):
            states_of(model, inputs).square().mean().backward()
        for name, weight in model.encoder.named_parameters():
            assert not weight.requires_grad or (
                weight.grad is not None and weight.grad.isfinite().all()
            ), name


@only("deberta")
def test_heads_that_are_mixed_cannot_be_replaced(model):
    model.config.talking_head = True
    with input_error("neither looks up its attention by name"):
        Model(transformers.DebertaModel(model.config))


# positions 0 and 1 of the first four are never those of a token
LIMITS = dict.fromkeys(("roberta", "xlm-roberta", "camembert", "data2vec"), 45)
LIMITS |= dict.fromkeys(("bert", "electra", "deberta", "deberta-far", "ernie", "splinter"), 47)


@pytest.mark.parametrize(("family", "slots"), LIMITS.items(), indirect=["family"])
def test_every_position_of_a_token_is_a_slot_and_no_other(model, ours, slots):
    assert ours.slots_limit == slots
    ids = torch.randint(4, VOCABULARY, (2, slots))
    inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    close(ours.hidden_states(inputs), stock_states(model, inputs))
    longer = {name: torch.cat([values, values[:, :1]], dim=1) for name, values in inputs.items()}
    with input_error(f"{slots + 1} slots, but the model has {slots} positions"):
        ours.hidden_states(longer)
