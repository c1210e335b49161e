"""The model's own dropout: where it drops, how much, and that it is off unless asked for."""

import copy
from contextlib import ExitStack

import pytest
import torch
from families import DISTINCT, close, only, real, states_of
from sizes import CHANNELS, HEADS, LAYERS
from torch import nn

from papa.data.packed import Examples, Packed
from papa.model.attention import Session, running
from papa.model.forms import patch
from papa.model.model import Model
from papa.model.replacement import replacement_of

KINDS = (
    "embeddings.dropout",
    "attention.self.dropout",
    "pos_dropout",
    "attention.output.dropout",
    "output.dropout",
)
EXAMPLE_COUNT = 701
PLACES = CHANNELS
SHARE = 0.3


def only_dropout(model, kind, share):
    """Leave only the dropout of one kind in `model`; returns the number of its modules."""
    number = 0
    for name, module in model.named_modules():
        if isinstance(module, nn.Dropout):
            meant = name.endswith(kind) and not (kind == "output.dropout" and ".attention." in name)
            module.p = share if meant else 0.0
            number = number + meant
    return number


def dropped_states(ours, inputs, constants=None, mixing=None):
    batch = Packed.of(inputs)
    return torch.stack(
        ours.run(batch, ours.replacement(constants, mixing=mixing), dropout=True), dim=1
    )


@pytest.mark.parametrize("kind", KINDS)
@only("bert", *DISTINCT)
def test_what_is_dropped_whole_is_what_the_stock_model_drops(model, inputs, kind):
    """Dropout of 1 leaves nothing to chance: every place where the stock model drops, and no other."""
    number = only_dropout(model, kind, 1.0)
    assert number == {
        "embeddings.dropout": 1,
        "pos_dropout": LAYERS if hasattr(model.encoder, "rel_embeddings") else 0,
    }.get(kind, LAYERS)
    model.set_attn_implementation("eager")
    ours = Model(copy.deepcopy(model))
    stock = states_of(model.train(), inputs)
    close(dropped_states(ours, inputs), stock)
    assert not number or not torch.allclose(
        stock, real(ours.hidden_states(inputs), inputs), atol=1e-2
    )


@only("bert", "deberta")
def test_constants_are_dropped_too_and_dropout_of_nothing_changes_nothing(model, inputs, matrices):
    only_dropout(model, "attention.self.dropout", 1.0)
    ours = Model(model)
    nothing = real(ours.hidden_states(inputs, torch.zeros_like(matrices)), inputs)
    mixing = torch.rand(LAYERS, HEADS)
    for mixed in (None, mixing):
        close(dropped_states(ours, inputs, matrices, mixed), nothing)
    only_dropout(model, "", 0.0)
    plain = real(ours.hidden_states(inputs, matrices, mixing=mixing), inputs)
    close(dropped_states(ours, inputs, matrices, mixing), plain)


def attention(model, share, replaced, mixing=None):
    """The attention that a layer uses, `[example, query, head, key]`: values are the rows of the identity."""
    torch.manual_seed(1)
    matrices = torch.rand(1, HEADS, PLACES, PLACES) + 0.1
    heads = None if mixing is not None else [(0, head) for head in replaced]
    slots = torch.arange(PLACES).expand(EXAMPLE_COUNT, -1)
    examples = Examples(slots, slots, None, PLACES, packed=True)
    assert (
        examples.same_slots
    )  # the constant is the same for all examples; what is dropped of it is not
    session = Session(replacement_of((1, HEADS), matrices, heads, mixing), examples=examples)
    patch(model, ExitStack())
    layer = model.encoder.layer[0].attention.self.train()
    layer.dropout.p = share
    layer.value.register_forward_hook(
        lambda *_: torch.eye(PLACES).repeat(EXAMPLE_COUNT, HEADS)[None]
    )
    with torch.no_grad(), running(session):
        used, _ = layer(0.3 * torch.randn(PLACES, HEADS * CHANNELS).repeat(EXAMPLE_COUNT, 1)[None])
    return used.view(EXAMPLE_COUNT, PLACES, HEADS, PLACES)


@pytest.mark.parametrize("mixing", [None, torch.full((1, HEADS), 0.4)])
def test_the_attention_of_every_head_is_dropped_at_its_rate(model, mixing):
    replaced = [1, 3]
    plain, dropped = (attention(model, share, replaced, mixing) for share in (0.0, SHARE))
    zero = dropped == 0
    close(zero.float().mean((0, 1, 3)), torch.full((HEADS,), SHARE), atol=0.02)
    close(dropped[~zero], plain[~zero] / (1 - SHARE), atol=1e-5)
    close(dropped.mean(0), plain.mean(0), atol=0.06)
    assert bool((zero.float().mean(0) < 1).all()), "each example has draws of its own"
