"""Constants between nothing and the average: what they know, their memory, and what a model does with them."""

import copy
import itertools

import pytest
import torch
from families import close, of_lengths, rows_of, stock

import papa
from papa.config.variant import TIED
from papa.method.variants import constants_for
from papa.model.check import distance

N = 11


@pytest.fixture(params=["bert", "llama"])
def both(request, model, inputs):
    """An encoder and a decoder with inputs: with gaps, and of texts that begin in slot 0."""
    if request.param == "bert":
        return copy.deepcopy(model), papa.Model(model), inputs
    texts = of_lengths(1, N, 5, 7, 7, 3, slots=N)
    return stock("llama"), papa.Model(stock("llama")), texts


def heads_of(model):
    return model.layers, model.heads


@pytest.mark.parametrize("kind", TIED)
def test_tied_averages_are_the_average_over_the_pairs_of_a_class_that_a_model_can_see(both, kind):
    _, model, inputs = both
    full, tied = (
        papa.average_attention(model, [inputs, inputs], name) for name in ("average", kind)
    )
    n = full.n
    pairs = {}
    for query, key in itertools.product(range(full.n), repeat=2):
        if query >= key or not model.causal:
            pairs.setdefault(
                "first" if not key else query - key if kind == "by-distance" else "other", []
            ).append((query, key))
    expected = torch.zeros(model.layers, model.heads, n, n, dtype=torch.float64)
    for alike in pairs.values():
        query, key = torch.tensor(alike).T
        count = full.count[query, key].sum()
        assert bool((tied.count[query, key] == count).all())
        expected[:, :, query, key] = (full.sum[:, :, query, key].sum(-1) / max(1, int(count)))[
            ..., None
        ]
    rows = expected.sum(-1, keepdim=True)
    torch.testing.assert_close(tied.mean, (expected / rows.clamp(min=1e-30)).float())


def test_mean_outputs_are_the_inputs_of_the_stock_models_output_projections(both):
    plain, model, inputs = both
    averages = papa.average_attention(model, [inputs, inputs], "mean-output")
    seen = []
    for layer in plain.encoder.layer if hasattr(plain, "encoder") else plain.model.layers:
        projection = (
            layer.attention.output.dense if hasattr(layer, "attention") else layer.self_attn.o_proj
        )
        projection.register_forward_hook(lambda _, arguments, __: seen.append(arguments[0]))
    real = inputs["attention_mask"].bool()
    with torch.no_grad():
        plain(**inputs)
    count = real.sum(0)
    assert torch.equal(averages.count, 2 * count)
    for layer, contexts in enumerate(seen):
        total = (
            (contexts * real[:, :, None]).sum(0).view(len(count), model.heads, -1).transpose(0, 1)
        )
        close(averages.mean[layer], total / count.clamp(min=1)[:, None], rtol=1e-5, atol=5e-6)


@pytest.mark.parametrize("replaced", ["all", "some", "mixed"])
def test_outputs_of_the_text_itself_change_nothing(both, replaced):
    _, model, inputs = both
    options = {
        "all": {},
        "some": {"heads": [(0, 1), (1, 0)]},
        "mixed": {"mixing": torch.full(heads_of(model), 0.3)},
    }
    for row in range(len(inputs["input_ids"])):
        text = rows_of(inputs, [row])
        outputs = papa.average_attention(model, [text], "mean-output")
        with torch.no_grad():
            states = (
                model.hidden_states(text, outputs, **options[replaced]),
                model.hidden_states(text),
            )
        close(*states, rtol=1e-5)


def test_mixing_contexts_gives_the_states_and_slopes_of_mixing_matrices(both, monkeypatch):
    _, model, inputs = both
    averages = papa.average_attention(model, [inputs])
    weights = torch.rand(heads_of(model)).requires_grad_()
    found = []
    for longest in (0, 64):
        monkeypatch.setattr("papa.model.replacement.FEW_POSITIONS", longest)
        states = model.hidden_states(inputs, averages, mixing=weights)
        found.append((states.detach(), *torch.autograd.grad(states.square().sum(), weights)))
    for contexts, matrices in zip(*found, strict=True):
        close(contexts, matrices, rtol=1e-4)


def test_uniform_weighs_all_visible_tokens_alike(both):
    _, model, inputs = both
    n = inputs["input_ids"].shape[1]
    uniform = constants_for("uniform", None, model, n)
    with torch.no_grad():
        states = [
            model.hidden_states(inputs, constants)
            for constants in (uniform, torch.ones(*heads_of(model), n, n))
        ]
    assert distance(states[:1], states[1:]) < 1e-6
