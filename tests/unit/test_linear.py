"""Frozen linear layers and their parts, against torch's own."""

import copy

import pytest
import torch
import transformers
from torch import nn

from papa.model.linear import freeze_linears, part_of, some_outputs


def close(ours, theirs):
    torch.testing.assert_close(ours, theirs, atol=1e-4, rtol=1e-5)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("rows", [[3, 5, 36], [0]])
def test_a_part_computes_its_outputs_and_their_gradients(bias, rows):
    plain = nn.Linear(23, 37, bias=bias)
    inputs, rows = torch.randn(2, 7, 23, requires_grad=True), torch.tensor(rows, dtype=torch.long)
    expected, upstream = plain(inputs)[..., rows], torch.randn(2, 7, len(rows))
    (gradient,) = torch.autograd.grad(expected, inputs, upstream, retain_graph=True)
    freeze_linears(parent := nn.Sequential(plain))
    with torch.inference_mode():
        part = part_of(parent[0], rows)  # training may follow scoring
    for actual in (part(inputs), some_outputs(plain, inputs, rows)):
        close(actual, expected)
        close(torch.autograd.grad(actual, inputs, upstream)[0], gradient)
    more = nn.Sequential(plain, nn.GELU())  # which does more than a weight says
    close(some_outputs(more, inputs, rows), more(inputs)[..., rows])


def test_freezing_changes_no_output_and_no_name():
    model = nn.Sequential(nn.Linear(3, 5), nn.Sequential(nn.GELU(), transformers.pytorch_utils.Conv1D(2, 5)))
    inputs, before = torch.randn(7, 3), copy.deepcopy(model)
    freeze_linears(model)
    assert type(model[1][1]) is nn.Linear and not any(values.requires_grad for values in model.parameters())
    assert [*model.state_dict()] == [*before.state_dict()]
    close(model(inputs), before(inputs))
