import pytest
import torch
from sizes import EXAMPLES, LAYERS, SLOTS

from papa.method.objectives import TokenProbe

HIDDEN = 13
LABELS = 2


@pytest.fixture
def hidden(inputs):
    """Dense states `[example, L+1, slot, hidden]`, and the packed ones of the tokens."""
    states = torch.randn(EXAMPLES, LAYERS + 1, SLOTS, HIDDEN)
    mask = inputs["attention_mask"]
    return states, states.transpose(1, 2)[mask.bool()]


def test_token_probe_is_the_papers_formula(hidden, inputs):
    probe = TokenProbe(layers=LAYERS + 1, hidden=HIDDEN, labels=LABELS)
    expected = probe.output(torch.tanh(probe.dense(hidden[0].transpose(1, 2).flatten(2))))
    torch.testing.assert_close(probe.packed(hidden[1]), expected[inputs["attention_mask"].bool()])
