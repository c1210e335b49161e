import copy

import pytest
import torch
from torch import nn

from papa.model.linear import FrozenLinear, freeze_linears, some_outputs

SHAPES = [(0, 23), (23,), (1, 23), (5, 23), (2, 3, 23), (67, 23), (1, 1031, 23)]


@pytest.fixture(params=[True, False], ids=["bias", "no bias"])
def plain(request):
    torch.manual_seed(1)
    return nn.Linear(23, 37, bias=request.param)


@pytest.fixture
def frozen(plain):
    return FrozenLinear(plain.weight, plain.bias)


def close(ours, theirs):
    torch.testing.assert_close(ours, theirs, atol=1e-4, rtol=1e-5)


def outputs_and_gradients(layer, inputs, upstream):
    inputs = inputs.clone().requires_grad_()
    outputs = layer(inputs)
    return outputs, *torch.autograd.grad(outputs, inputs, upstream)


@pytest.mark.parametrize("shape", SHAPES)
def test_outputs_and_gradients_are_those_of_a_plain_layer(plain, frozen, shape):
    inputs, upstream = torch.randn(shape), torch.randn(*shape[:-1], 37)
    close(outputs_and_gradients(frozen, inputs, upstream), outputs_and_gradients(plain, inputs, upstream))


def test_a_part_computes_only_its_outputs(plain, frozen):
    inputs = torch.randn(7, 23)
    for outputs in ([3, 5, 36], [0], [3, 5, 36]):
        close(frozen.only(torch.tensor(outputs))(inputs), plain(inputs)[:, outputs])


def test_weights_changed_in_place_are_followed(frozen):
    inputs = torch.randn(7, 23)
    frozen(inputs)
    frozen.weight.mul_(2)
    close(frozen(inputs), nn.functional.linear(inputs, frozen.weight, frozen.bias))


def test_training_may_follow_inference_mode(frozen):
    inputs = torch.randn(7, 23, requires_grad=True)
    with torch.inference_mode():
        frozen(inputs)
        frozen.only(torch.tensor([2, 3]))(inputs)
    frozen(inputs).sum().backward()
    close(inputs.grad, frozen.weight.sum(0).expand(7, 23))
    close(
        torch.autograd.grad(frozen.only(torch.tensor([2]))(inputs).sum(), inputs)[0], frozen.weight[[2]].expand(7, 23)
    )


def test_freezing_keeps_names_and_weights():
    model = nn.Sequential(nn.Linear(3, 5), nn.Sequential(nn.GELU(), nn.Linear(5, 2)))
    before = copy.deepcopy(model.state_dict())
    freeze_linears(model)
    assert isinstance(model[1][1], FrozenLinear) and not any(values.requires_grad for values in model.parameters())
    torch.testing.assert_close(dict(model.state_dict()), dict(before), atol=0, rtol=0)


def test_some_outputs_of_a_layer_that_does_more_than_its_weight_says(plain):
    class Doubled(nn.Linear):
        def forward(self, inputs):
            return 2 * super().forward(inputs)

    doubled, inputs = Doubled(23, 37), torch.randn(7, 23)
    doubled.load_state_dict(plain.state_dict(), strict=False)
    close(some_outputs(doubled, inputs, torch.tensor([3, 5])), doubled(inputs)[:, [3, 5]])
