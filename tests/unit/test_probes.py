import pytest
import torch
from sizes import EXAMPLES, LAYERS, SLOTS

from papa.data.packed import Packed
from papa.method.probes import SequenceProbe, TokenProbe

HIDDEN, LABELS = 13, 2


@pytest.fixture
def hidden(inputs):
    """Dense states `[example, L+1, slot, hidden]`, and the packed ones of the tokens."""
    states, mask = torch.randn(EXAMPLES, LAYERS + 1, SLOTS, HIDDEN), inputs["attention_mask"]
    return states, states.transpose(1, 2)[mask.bool()]


def test_sequence_probe_is_the_papers_formula(hidden, inputs):
    probe = SequenceProbe(layers=LAYERS + 1, slots=SLOTS, hidden=HIDDEN, labels=LABELS, dropout=0.5)
    torch.testing.assert_close(probe.slot_weights.detach(), torch.full((LAYERS + 1, SLOTS), 1 / SLOTS))
    with torch.no_grad():
        probe.slot_weights.copy_(torch.randn_like(probe.slot_weights))
    masked = probe.slot_weights[None, :, :, None] * inputs["attention_mask"][:, None, :, None]
    pooled = (masked * hidden[0]).sum(2).flatten(1)  # [example, (L+1) * hidden]
    expected = probe.output(torch.tanh(probe.dense(pooled)))
    batch = Packed.of(inputs)
    assert not torch.equal(probe.packed(hidden[1], batch), probe.packed(hidden[1], batch)), "dropout in training only"
    torch.testing.assert_close(probe.eval().packed(hidden[1], batch), expected)


def test_token_probe_is_the_papers_formula(hidden, inputs):
    probe = TokenProbe(layers=LAYERS + 1, hidden=HIDDEN, labels=LABELS)
    expected = probe.output(torch.tanh(probe.dense(hidden[0].transpose(1, 2).flatten(2))))
    torch.testing.assert_close(probe.packed(hidden[1]), expected[inputs["attention_mask"].bool()])


def test_linear_layers_start_at_the_models_range():
    probe = SequenceProbe(5, 7, 101, 3, initializer_range=0.5)
    assert float(probe.dense.weight.detach().std()) == pytest.approx(0.5, rel=0.05)
    assert not probe.dense.bias.any() and not probe.output.bias.any()
