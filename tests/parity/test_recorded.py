"""The package against what the published code computed on small random models (recorded numbers in data/)."""

import pytest
import torch
from recorded import close, probe_state, recorded
from torch.nn.functional import cross_entropy

import papa
from papa.data.packed import Packed
from papa.method.objectives import SequenceProbe

CASES = [
    f"{family}-{texts}" for family in ("bert", "roberta", "deberta") for texts in ("single", "pair")
]


@pytest.fixture(params=CASES)
def case(request):
    folder, expected, heads = recorded(request.param)
    inputs = {name[6:]: values for name, values in expected.items() if name.startswith("input.")}
    labels = inputs.pop("labels")
    half = [tuple(head) for head in heads["heads_by_rank"][: heads["replaced"]["half"]]]
    return papa.load_model(folder, device="cpu"), inputs, labels, expected, half


def published_probe(expected):
    state = probe_state(expected)
    layers, slots = state["slot_weights"].shape
    labels, hidden = state["output.weight"].shape
    probe = SequenceProbe(layers, slots, hidden, labels)
    probe.load_state_dict(state)
    return probe


def replacements(expected, half):
    averages = {"constants": expected["attention_mean"]}
    mixing = expected["lambda.raw"].sigmoid()
    return {
        "original": {},
        "half": averages | {"heads": half},
        "all": averages,
        "lambda": averages | {"mixing": mixing},
    }


def test_attention_sums_counts_and_means(case):
    encoder, inputs, _, expected, _ = case
    parts = [
        {name: values[part] for name, values in inputs.items()}
        for part in (slice(0, 5), slice(5, None))
    ]
    constants = papa.average_attention(encoder, parts)
    close(constants.sum.float(), expected["attention_sum"])
    assert torch.equal(constants.count.float(), expected["attention_count"])
    close(constants.mean, expected["attention_mean"], atol=1e-5)


@pytest.mark.parametrize("which", ["original", "half", "all", "lambda"])
def test_hidden_states_logits_and_losses(case, which):
    encoder, inputs, labels, expected, half = case
    hidden = encoder.hidden_states(inputs, **replacements(expected, half)[which])
    real = inputs["attention_mask"].bool()
    computed, wanted = (
        states.transpose(1, 2)[real] for states in (hidden, expected[f"hidden_states.{which}"])
    )
    close(computed, wanted)
    logits = published_probe(expected).packed(computed, Packed.of(inputs))
    close(logits, expected[f"logits.{which}"])
    close(cross_entropy(logits, labels), expected[f"loss.{which}"])


def test_lambda_gradients(case):
    encoder, inputs, labels, expected, _ = case
    raw = expected["lambda.raw"].clone().requires_grad_()
    hidden = encoder.hidden_states(inputs, expected["attention_mean"], mixing=raw.sigmoid())
    tokens = hidden.transpose(1, 2)[inputs["attention_mask"].bool()]
    cross_entropy(published_probe(expected).packed(tokens, Packed.of(inputs)), labels).backward()
    close(raw.grad, expected["lambda.grad"], rtol=1e-3, atol=1e-6)


def test_a_plain_model_with_replaced_attention(case):
    from transformers import AutoModel

    encoder, inputs, _, expected, half = case
    model = AutoModel.from_pretrained(encoder.config._name_or_path).eval()
    real = inputs["attention_mask"].bool()
    for which, heads in (("half", half), ("all", None)):
        with papa.replaced_attention(model, expected["attention_mean"], heads):
            states = torch.stack(model(**inputs, output_hidden_states=True).hidden_states, dim=1)
        wanted = expected[f"hidden_states.{which}"].transpose(1, 2)[real]
        close(states.transpose(1, 2)[real], wanted)
