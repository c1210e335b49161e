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

from benchmarks import models
from papa.config.variant import free_entries
from papa.data.packed import Examples, Packed
from papa.method.tied import TIED, classes_of, structure_of
from papa.model import replacement
from papa.model.attention import allowed_keys
from papa.model.model import Model
from papa.model.products import DistanceClasses
from papa.model.replacement import CONVOLVED_FROM, Attending, Full, Matrices, restrict
from papa.model.visibility import Band, CausalMask, Visibility

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


PRODUCTS = ("by_sums", "by_convolution", "by_shared_matrix", "dense")


@pytest.fixture
def prefer(monkeypatch):
    """Make the rule choose a product wherever it is possible; without matrices, sums are always chosen if possible."""

    def choose(product):
        monkeypatch.setattr(replacement, "CONVOLVED_FROM", 0 if product == "by_convolution" else 10**9)
        monkeypatch.setattr(replacement, "RESTRICTING", 10**9 if product == "by_shared_matrix" else -(10**9))

    return choose


@pytest.fixture
def used(monkeypatch):
    """The products that were used."""
    names = []
    for name in PRODUCTS[:-1]:
        product = getattr(replacement, name)
        monkeypatch.setattr(
            replacement, name, lambda *given, name=name, product=product: names.append(name) or product(*given)
        )
    return names


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


def test_classes_that_were_made_in_inference_mode_can_be_trained():
    structure_of.cache_clear()
    with torch.inference_mode():
        structure_of("by-distance", SLOTS)
    constants = tied("by-distance")
    constants.values.requires_grad_()
    constants.context(torch.ones(1, HEADS, SLOTS, 1), whole(SLOTS), 0.0).sum().backward()
    assert constants.values.grad is not None


def close(actual, dense, seen):
    torch.testing.assert_close(real(actual, seen), real(dense, seen), rtol=1e-6, atol=1e-6)


def test_each_product_equals_the_dense_form(seen, prefer):
    values = values_for(seen)
    for kind in TIED:
        constants = tied(kind)
        dense = expected(constants, values, seen)
        for product in PRODUCTS:
            prefer(product)
            close(constants.context(values, seen, 0.0), dense, seen)


def test_a_matrix_that_examples_share_equals_the_dense_form(seen, prefer):
    values = values_for(seen)
    for lowest in (0.0, -1.0):
        constants = Full(torch.rand(HEADS, SLOTS, SLOTS) * (1 - lowest) + lowest)
        constants.values[:, 2], constants.values[:, :, 7] = 0, 0
        for product in ("by_shared_matrix", "dense"):
            prefer(product)
            close(constants.context(values, seen, 0.0), expected(constants, values, seen), seen)


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-8), (torch.float32, 1e-3)])
def test_gradients_equal_those_of_the_dense_form(seen, prefer, dtype, tolerance):
    """Of constants and of values; the tolerance is relative to the largest gradient."""
    for kind in ("sink", "by-distance", "average"):
        constants = Full(torch.randn(HEADS, SLOTS, SLOTS, dtype=dtype)) if kind == "average" else tied(kind, dtype)
        values, entries = values_for(seen, dtype).requires_grad_(), constants.values.requires_grad_()
        weights = torch.randn_like(real(values, seen))

        def slopes(context, weights=weights, sources=(entries, values)):
            return torch.autograd.grad((real(context, seen) * weights).sum(), sources)

        dense = slopes(expected(constants, values, seen))
        for product in PRODUCTS[:-1]:
            prefer(product)
            for actual, slope in zip(slopes(constants.context(values, seen, 0.0)), dense, strict=True):
                scale = slope.abs().amax()
                torch.testing.assert_close(actual / scale, slope / scale, rtol=tolerance, atol=tolerance)


def test_mixing_equals_the_dense_form(seen, prefer):
    """Contexts, and the slopes of λ, of one head and of one head in one example."""
    values = values_for(seen, torch.float64)
    heads = Attending(torch.randn_like(values), torch.randn_like(values), 0.3, seen.allowed)
    for kind in ("sink", "by-distance"):
        constants = tied(kind, torch.float64)
        for shape in ((HEADS,), (len(values), HEADS)):
            weights = torch.rand(shape, dtype=torch.float64, requires_grad=True)
            results = []
            for product in ("by_convolution", "dense"):
                prefer(product)
                form = constants if product != "dense" else Matrices(constants.values, constants.pairs)
                context = real(form.mixed(weights, heads, values, seen, 0.0), seen)
                results.append((context, *torch.autograd.grad(context.square().sum(), weights)))
            for actual, dense in zip(*results, strict=True):
                torch.testing.assert_close(actual, dense, rtol=1e-9, atol=1e-9)


def test_masked_attention_has_every_bit_of_its_formula(seen):
    for dtype in (torch.float32, torch.float64, torch.bfloat16, torch.float16):
        query, key = (values_for(seen, dtype).requires_grad_() for _ in range(2))
        attention = Attending(query, key, 0.3, seen.allowed).attention()
        scores = query @ key.transpose(2, 3) * 0.3
        formula = (scores if seen.allowed is None else scores.masked_fill(~seen.allowed, -torch.inf)).softmax(-1)
        assert attention.dtype == dtype and torch.equal(attention, formula)
        weights = torch.randn_like(formula)
        actual, expected = (torch.autograd.grad((each * weights).sum(), (query, key)) for each in (attention, formula))
        assert all(map(torch.equal, actual, expected))


def test_a_hidden_key_may_overflow_in_half_precision():
    query, key = torch.ones(1, HEADS, 1, CHANNELS).half(), torch.ones(1, HEADS, 2, CHANNELS).half()
    key[:, :, 1] = 65000
    assert bool((query @ key.transpose(2, 3)).isinf().any())
    attention = Attending(query, key, 0.3, torch.tensor([True, False])[None, None, None]).attention()
    assert torch.equal(attention, torch.tensor([1.0, 0.0]).half().expand_as(attention))


@pytest.mark.parametrize("dropout", [0.0, 0.3])
def test_mixing_has_every_bit_and_every_draw_of_its_formula(seen, dropout):
    """Dropout draws in the order of memory, so the layout of the formula's sum decides which entries are dropped."""
    values, weights = values_for(seen), torch.rand(HEADS)
    heads = Attending(torch.randn_like(values), torch.randn_like(values), 0.3, seen.allowed)
    form = Full(torch.rand(HEADS, SLOTS, SLOTS))
    torch.manual_seed(7)
    actual = form.mixed(weights, heads, values, seen, dropout)
    constants = restrict(form, seen.examples, seen.allowed)
    mixed = constants + weights[:, None, None] * (heads.attention() - constants)
    torch.manual_seed(7)
    assert torch.equal(actual, torch.dropout(mixed, dropout, True) @ values)


def test_ranges_and_bands_are_found_where_they_exist(seen, request):
    rule = next(name for name in sorted(RULES, key=len, reverse=True) if f"[{name}-" in request.node.name)
    assert (seen.ranges is not None) == (rule != "gaps")
    assert (seen.band is not None) == (rule not in ("gaps", "chunks"))
    if seen.band is not None and rule.endswith("window"):
        assert -WINDOW <= seen.band.least <= 0 <= seen.band.most <= WINDOW
        assert rule != "causal-window" or seen.band == Band(0, WINDOW - 1)


def whole(slots, causal=False, examples=1):
    places = torch.arange(slots).expand(examples, -1)
    mask = torch.ones(1, 1, slots, slots).tril().bool().as_subclass(CausalMask) if causal else None
    return Visibility(Examples(places, places, None, slots, packed=True), mask)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("slots", [128, 512])
def test_one_rule_chooses_the_product_that_costs_least(slots, causal, used):
    seen, values = whole(slots, causal), torch.randn(1, 2, slots, 3)
    for kind in TIED:
        Matrices(torch.rand(2, free_entries(kind, slots)), structure_of(kind, slots)).context(values, seen, 0.0)
    by_distance = "by_shared_matrix" if slots < CONVOLVED_FROM else "by_convolution"
    assert used == ["by_sums" if kind in ("sink", "zeros", "uniform") else by_distance for kind in TIED]
    Full(torch.rand(2, slots, slots)).context(values, seen, 0.0)
    assert used[-1] == "by_shared_matrix"


def test_examples_that_fill_few_slots_of_a_layout_get_a_matrix_each(used):
    """A matrix over the slots of all examples would have 68 rows, and that of an example 2."""
    slots = torch.tensor([[first, first + 67] for first in range(34)])
    seen = Visibility(Examples(slots, slots, None, 101, packed=True), None)
    constants, values = Full(torch.rand(2, 101, 101)), torch.randn(34, 2, 2, 3)
    close(constants.context(values, seen, 0.0), expected(constants, values, seen), seen)
    assert used == []


def test_dropout_of_constants_uses_the_dense_form(used):
    tied("sink").context(torch.ones(1, HEADS, SLOTS, 1), whole(SLOTS), 0.5)
    assert used == []


class Largest(TorchDispatchMode):
    """The number of elements of the largest tensor that an operation returned."""

    def __init__(self):
        super().__init__()
        self.elements = 0

    def __torch_dispatch__(self, function, types, given=(), options=None):
        result = function(*given, **(options or {}))
        for tensor in result if isinstance(result, tuple | list) else [result]:
            if isinstance(tensor, torch.Tensor):
                self.elements = max(self.elements, tensor.untyped_storage().nbytes() // tensor.element_size())
        return result


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("kind", ["uniform", "sink", "by-distance", "toeplitz"])
def test_memory_of_structured_constants_grows_with_slots_and_no_product_of_matrices_runs(kind, causal):
    largest = []
    for slots in (1024, 4096):
        constants = Matrices(torch.rand(2, free_entries(kind, slots)), structure_of(kind, slots))
        seen, values = whole(slots, causal), torch.randn(1, 2, slots, 3)
        with FlopCounterMode(display=False) as operations, Largest() as memory:
            constants.context(values, seen, 0.0)
        assert operations.get_total_flops() == 0
        largest.append(memory.elements)
    assert largest[1] <= 4.1 * largest[0] and largest[1] < 4096 * 50


def test_a_shared_matrix_costs_one_product_and_the_sums_of_rows():
    slots, examples = 31, 7
    values = torch.randn(examples, HEADS, slots, CHANNELS)
    for entries in (torch.rand(HEADS, slots, slots), torch.randn(HEADS, slots, slots)):
        with FlopCounterMode(display=False) as operations:
            Full(entries).context(values, whole(slots, examples=examples), 0.0)
        assert operations.get_total_flops() == 2 * HEADS * slots**2 * (examples * CHANNELS + 1)


def test_half_precision_is_summed_in_single_precision():
    values = torch.ones(1, HEADS, 1024, 1, dtype=torch.bfloat16)
    for causal in (False, True):
        constants = Matrices(torch.ones(HEADS, 1), structure_of("uniform", 1024)).to(values)
        assert torch.equal(constants.context(values, whole(1024, causal), 0.0), values)


@pytest.mark.parametrize("kind", ["bert", "deberta", "gpt2", "llama", "modernbert"])
def test_a_models_states_in_512_slots_are_those_of_the_dense_form(kind, monkeypatch):
    monkeypatch.setattr(models, "SIZES", {**models.SIZES, "max_position_embeddings": 512, "n_positions": 512})
    torch.manual_seed(0)
    ours = Model(models.small_model(kind))
    mask = (torch.arange(512) < torch.tensor([512, 300, 177])[:, None]).long()
    ids = torch.randint(6, 90, mask.shape).where(mask.bool(), ours.config.pad_token_id or 0)
    for name in ("uniform", "sink", "by-distance", "toeplitz"):
        weights = Matrices(torch.rand(ours.layers, ours.heads, free_entries(name, 512)), structure_of(name, 512))
        for heads in (None, [(layer, head) for layer in range(ours.layers) for head in (1, 3)]):
            with torch.no_grad():
                actual, expected = (
                    ours.hidden_states({"input_ids": ids, "attention_mask": mask}, constants, heads)
                    for constants in (weights, weights.full)
                )
            assert (actual - expected).abs().max() <= 1e-5 * expected.abs().max()
