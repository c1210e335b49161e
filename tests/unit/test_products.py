"""Products of constants and values, compared with the dense form: restricted, normalised matrices times values."""

import pytest
import torch
from sizes import CHANNELS, HEADS, SLOTS
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode
from transformers.masking_utils import (
    bidirectional_mask_function,
    causal_mask_function,
    sliding_window_bidirectional_mask_function,
    sliding_window_causal_mask_function,
)

from papa.config.variant import free_entries
from papa.data.packed import Examples, Packed
from papa.method.tied import TIED, classes_of, structure_of
from papa.model import replacement
from papa.model.attention import allowed_keys
from papa.model.products import DistanceClasses
from papa.model.replacement import Full, Matrices, restrict
from papa.model.visibility import Band, Visibility

EXAMPLES, WINDOW = 5, 3
LENGTHS = [1, SLOTS, 11, 2, 17]
RULES = {
    "all": bidirectional_mask_function,
    "causal": causal_mask_function,
    "window": sliding_window_bidirectional_mask_function(WINDOW),
    "causal-window": sliding_window_causal_mask_function(WINDOW),
    "chunks": lambda _, __, query, key: (query // 7 == key // 7) & (key <= query),
    "gaps": lambda _, __, query, key: (query - key) % 2 == 0,
}


def mask_of(padding):
    if padding == "between":  # tokens in any slots, with slot 0 empty in some examples
        return torch.stack([torch.randperm(SLOTS) < length for length in LENGTHS]).long()
    mask = (torch.arange(SLOTS) < torch.tensor(LENGTHS)[:, None]).long()
    if padding == "before":
        return mask.flip(1)
    return torch.ones_like(mask) if padding == "none" else mask


LAYOUTS = [
    (rule, padding, packed)
    for rule in RULES
    for padding in ("none", "after", "before", "between")
    for packed in (True, False)
]


@pytest.fixture(params=LAYOUTS, ids=lambda layout: f"{layout[0]}-{layout[1]}-{'packed' if layout[2] else 'padded'}")
def seen(request):
    """The keys that queries see, under a rule of transformers."""
    rule, padding, packed = request.param
    mask, from_first = mask_of(padding), "causal" in rule
    if packed:
        examples = Examples.of_packed(Packed.of({"input_ids": mask, "attention_mask": mask}), from_first)
    else:
        examples = Examples.of_mask(mask, from_first=from_first)
    return Visibility(examples, allowed_keys(RULES[rule], examples))


@pytest.fixture(params=["sums", "convolution", "shared", "dense"])
def product(request, monkeypatch):
    """Make the rule choose a product wherever it is possible."""
    monkeypatch.setattr(replacement, "CONVOLVED_FROM", 0 if request.param == "convolution" else 10**9)
    monkeypatch.setattr(replacement, "RESTRICTING", 10**9 if request.param == "shared" else -(10**9))
    return request.param


def tied(kind, dtype=torch.float32):
    """Constants of a kind, signed and as small as 1e-4 at some distances."""
    scale = 10 ** (-4 * torch.rand(HEADS, free_entries(kind, SLOTS), dtype=torch.float64))
    values = torch.randn(HEADS, free_entries(kind, SLOTS), dtype=torch.float64) * scale
    return Matrices(values.to(dtype), structure_of(kind, SLOTS))


def values_for(seen, dtype=torch.float32):
    return torch.randn(*seen.examples.slots.shape[:1], HEADS, seen.examples.slots.shape[1], CHANNELS, dtype=dtype)


def expected(constants, values, seen):
    return restrict(constants, seen.examples, seen.allowed) @ values


def real(context, seen):
    """The contexts of tokens; those of padding are never read."""
    tokens = context.transpose(1, 2)
    return tokens.flatten(0, 1) if seen.examples.real is None else tokens[seen.examples.real]


@pytest.mark.parametrize("kind", TIED)
def test_the_structure_of_a_kind_is_that_of_all_pairs_of_slots(kind):
    for slots in (1, 2, 3, SLOTS):
        structure, slot = structure_of(kind, slots), torch.arange(slots)
        assert isinstance(structure, DistanceClasses) and len(structure) == slots
        assert torch.equal(structure.of(slot[:, None], slot).int(), classes_of(kind, slots))


@pytest.mark.parametrize("kind", TIED)
def test_each_product_equals_the_dense_form(kind, seen, product):
    constants, values = tied(kind), values_for(seen)
    torch.testing.assert_close(
        real(constants.context(values, seen, 0.0), seen),
        real(expected(constants, values, seen), seen),
        rtol=1e-6,
        atol=1e-6,
    )


@pytest.mark.parametrize("lowest", [0.0, -1.0])
def test_the_shared_matrix_equals_the_dense_form(lowest, seen, product):
    constants, values = Full(torch.rand(HEADS, SLOTS, SLOTS) * (1 - lowest) + lowest), values_for(seen)
    constants.values[:, 2], constants.values[:, :, 7] = 0, 0
    torch.testing.assert_close(
        real(constants.context(values, seen, 0.0), seen),
        real(expected(constants, values, seen), seen),
        rtol=1e-6,
        atol=1e-6,
    )


@pytest.mark.parametrize("kind", ["sink", "by-distance", "average"])
def test_gradients_equal_those_of_the_dense_form(kind, seen, product):
    for dtype, tolerance in ((torch.float64, 1e-10), (torch.float32, 1e-4)):
        constants = Full(torch.randn(HEADS, SLOTS, SLOTS, dtype=dtype)) if kind == "average" else tied(kind, dtype)
        values, slopes = values_for(seen, dtype).requires_grad_(), torch.randn(1, dtype=dtype)
        entries = constants.values.requires_grad_()
        weights = torch.randn_like(real(values, seen))
        gradients = [
            torch.autograd.grad((real(context, seen) * weights * slopes).sum(), (entries, values))
            for context in (constants.context(values, seen, 0.0), expected(constants, values, seen))
        ]
        for actual, dense in zip(*gradients, strict=True):
            scale = dense.abs().amax()
            torch.testing.assert_close(actual / scale, dense / scale, rtol=tolerance, atol=tolerance)
