import pytest
import torch
from sizes import EXAMPLES, LAYERS, SLOTS

import papa
from papa.data.packed import Packed
from papa.method.probes import SequenceProbe, TokenProbe

HIDDEN, LABELS = 13, 2


@pytest.fixture
def hidden(inputs):
    states = torch.randn(EXAMPLES, LAYERS + 1, SLOTS, HIDDEN)
    return states * inputs["attention_mask"][:, None, :, None]


def packed(hidden, inputs):
    return hidden.transpose(1, 2)[inputs["attention_mask"].bool()]


def test_sequence_probe_is_the_papers_formula(hidden, inputs):
    probe = SequenceProbe(layers=LAYERS + 1, slots=SLOTS, hidden=HIDDEN, labels=LABELS)
    torch.testing.assert_close(probe.slot_weights.detach(), torch.full((LAYERS + 1, SLOTS), 1 / SLOTS))
    with torch.no_grad():
        probe.slot_weights.copy_(torch.randn_like(probe.slot_weights))
    masked = probe.slot_weights[None, :, :, None] * inputs["attention_mask"][:, None, :, None]
    pooled = (masked * hidden).sum(2).flatten(1)  # [example, (L+1) * hidden]
    expected = probe.output(torch.tanh(probe.dense(pooled)))
    torch.testing.assert_close(probe(hidden, inputs["attention_mask"]), expected)
    torch.testing.assert_close(probe.packed(packed(hidden, inputs), Packed.of(inputs)), expected)


def test_token_probe_is_the_papers_formula(hidden, inputs):
    probe = TokenProbe(layers=LAYERS + 1, hidden=HIDDEN, labels=LABELS)
    logits = probe(hidden)
    assert logits.shape == (EXAMPLES, SLOTS, LABELS)
    expected = probe.output(torch.tanh(probe.dense(hidden[3, :, 5].flatten())))
    torch.testing.assert_close(logits[3, 5], expected)
    torch.testing.assert_close(probe.packed(packed(hidden, inputs)), logits[inputs["attention_mask"].bool()])


def test_linear_layers_start_at_the_models_range():
    probe = SequenceProbe(5, 7, 101, 3, initializer_range=0.5)
    assert float(probe.dense.weight.detach().std()) == pytest.approx(0.5, rel=0.05)
    assert not probe.dense.bias.any() and not probe.output.bias.any()


def test_dropout_acts_in_training_only(hidden, inputs):
    probe = SequenceProbe(LAYERS + 1, SLOTS, HIDDEN, LABELS, dropout=0.5)
    mask = inputs["attention_mask"]
    assert not torch.equal(probe(hidden, mask), probe(hidden, mask))
    assert torch.equal(probe.eval()(hidden, mask), probe(hidden, mask))


def test_shapes_that_do_not_fit_are_refused(hidden, inputs):
    probe = SequenceProbe(LAYERS + 1, SLOTS + 1, HIDDEN, LABELS)
    with pytest.raises(papa.InputError, match="do not fit"):
        probe(hidden, inputs["attention_mask"])
    with pytest.raises(papa.InputError, match="it must be"):
        TokenProbe(LAYERS, HIDDEN, LABELS)(hidden)
