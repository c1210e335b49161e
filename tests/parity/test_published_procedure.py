"""The benchmark's plain form of the published procedure gives what the published code itself gave."""

from types import SimpleNamespace

import pytest
import torch
from recorded import close, probe_state, recorded
from torch.nn import functional

from benchmarks import published

VARIANTS = ["original", "half", "all", "lambda"]


@pytest.fixture(params=["bert-single", "bert-pair"])
def case(request):
    """A fresh model, its probe with the recorded weights, its inputs, and what the published code made of them."""
    folder, expected, heads = recorded(request.param)
    inputs = {
        name: expected[f"input.{name}"]
        for name in ("input_ids", "attention_mask", "token_type_ids")
    }
    model = published.load_model(folder)
    probe = published.Probe(model, slots=16, labels=3).eval()
    probe.load_state_dict(probe_state(expected))
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield SimpleNamespace(model=model, probe=probe, inputs=inputs, expected=expected, heads=heads)
    torch.set_num_threads(threads)


def give_constants(case, variant):
    if variant == "lambda":
        published.use_constants(case.model, case.expected["attention_mean"], mix=True)
        for raw, wanted in zip(
            published.lambdas(case.model), case.expected["lambda.raw"], strict=True
        ):
            raw.data.copy_(wanted)
    elif variant != "original":
        replaced = case.heads["heads_by_rank"][: case.heads["replaced"][variant]]
        published.use_constants(case.model, case.expected["attention_mean"], replaced)


def test_averages(case):
    batches = [inputs for _, inputs in published.batches_of(case.inputs, 5)]
    total, mean, count = published.average_attention(case.model, batches)
    close(total, case.expected["attention_sum"], atol=1e-5)
    close(mean, case.expected["attention_mean"], atol=1e-5)
    close(count, case.expected["attention_count"], atol=0)


@pytest.mark.parametrize("variant", VARIANTS)
def test_hidden_states_logits_and_loss(case, variant):
    give_constants(case, variant)
    real = case.inputs["attention_mask"].bool()
    with torch.no_grad():
        hidden_states = case.model(**case.inputs, output_hidden_states=True).hidden_states
        logits = published.logits_of(case.model, case.probe, case.inputs)
    states = torch.stack(hidden_states, dim=1).transpose(1, 2)[real]
    wanted = case.expected[f"hidden_states.{variant}"].transpose(1, 2)[real]
    close(states, wanted)
    close(logits, case.expected[f"logits.{variant}"])
    loss = functional.cross_entropy(logits, case.expected["input.labels"])
    close(loss, case.expected[f"loss.{variant}"])


def test_gradients_of_the_lambdas(case):
    give_constants(case, "lambda")
    logits = published.logits_of(case.model, case.probe, case.inputs)
    loss = functional.cross_entropy(logits, case.expected["input.labels"])
    slopes = torch.stack(torch.autograd.grad(loss, published.lambdas(case.model)))
    wanted = case.expected["lambda.grad"]
    assert (slopes - wanted).norm() <= 1e-3 * wanted.norm()
    close(slopes, wanted, atol=1e-6, rtol=1e-3)
