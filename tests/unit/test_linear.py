import copy

import pytest
import torch
from torch import nn

from papa.model import linear as linear_module
from papa.model.linear import FrozenLinear, freeze_linears, linear, rounded_up, some_outputs

SHAPES = [(0, 23), (23,), (1, 23), (5, 23), (2, 3, 23), (67, 23), (1, 1031, 23)]


@pytest.fixture(autouse=True, params=[True, False], ids=["oneDNN", "MKL"])
def wide(request, monkeypatch):
    """Both ways, whatever this processor is and has."""
    monkeypatch.setattr(linear_module, "_has_avx512", lambda: request.param)
    monkeypatch.setattr(linear_module, "_is_intel", lambda: False)
    return request.param


@pytest.fixture(params=[True, False], ids=["bias", "no bias"])
def plain(request):
    torch.manual_seed(1)
    return nn.Linear(23, 37, bias=request.param)


@pytest.fixture
def frozen(plain):
    return FrozenLinear(plain.weight, plain.bias)


def close(ours, theirs):
    torch.testing.assert_close(ours, theirs, atol=1e-4, rtol=1e-5)


def outputs_and_gradients(layer, inputs, upstream, parameters):
    inputs = inputs.clone().requires_grad_()
    outputs = layer(inputs)
    return outputs, *torch.autograd.grad(outputs, [inputs, *parameters], upstream)


@pytest.mark.parametrize("shape", SHAPES)
def test_outputs_and_gradients_are_those_of_a_plain_layer(plain, frozen, shape):
    inputs, upstream, parameters = torch.randn(shape), torch.randn(*shape[:-1], 37), list(plain.parameters())
    expected = outputs_and_gradients(plain, inputs, upstream, parameters)
    ours = outputs_and_gradients(lambda x: linear(x, plain.weight, plain.bias), inputs, upstream, parameters)
    close(ours, expected)
    close(outputs_and_gradients(frozen, inputs, upstream, []), expected[:2])


@pytest.mark.parametrize("intel", [False, True])
def test_registers_and_processors_choose_the_way_of_products(plain, frozen, wide, monkeypatch, intel):
    met = []
    monkeypatch.setattr(linear_module, "_is_intel", lambda: intel)
    monkeypatch.setattr(linear_module, "_by_rows", lambda inputs, layer: met.append(len(inputs)) or layer(inputs))
    inputs = torch.randn(7, 23)
    close(frozen(inputs), plain(inputs))
    close(linear(inputs[:5], plain.weight, plain.bias), plain(inputs[:5]))
    assert met == (([7] if intel else [7, 5]) if wide and linear_module._onednn_works() else [])


@pytest.mark.parametrize(
    ("cpuinfo", "theirs"),
    [("vendor_id\t: GenuineIntel\n", True), ("vendor_id\t: AuthenticAMD\n", False), (None, False)],
    ids=["Intel", "AMD", "not Linux"],
)
def test_who_made_the_processor_is_read(cpuinfo, theirs, monkeypatch):
    def read(path):
        assert str(path) == "/proc/cpuinfo"
        if cpuinfo is None:
            raise FileNotFoundError(path)
        return cpuinfo

    monkeypatch.undo()  # what the other tests have in its place
    monkeypatch.setattr(linear_module.Path, "read_text", read)
    monkeypatch.setattr(linear_module.platform, "processor", lambda: "arm")
    assert linear_module._is_intel.__wrapped__() is theirs


def test_few_numbers_of_rows_are_met():
    assert all(rounded_up(rows) >= rows for rows in range(5000))
    assert len({rounded_up(rows) for rows in range(65, 5000)}) < 50


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


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_other_types_go_the_plain_way(plain, dtype):
    plain, inputs = plain.to(dtype), torch.randn(7, 23, dtype=dtype)
    for ours in (FrozenLinear(plain.weight, plain.bias)(inputs), linear(inputs, plain.weight, plain.bias)):
        torch.testing.assert_close(ours, plain(inputs), atol=0, rtol=0)


def test_freezing_keeps_names_and_weights():
    model = nn.Sequential(nn.Linear(3, 5), nn.Sequential(nn.GELU(), nn.Linear(5, 2)))
    before = copy.deepcopy(model.state_dict())
    freeze_linears(model)
    assert isinstance(model[1][1], FrozenLinear) and not any(values.requires_grad for values in model.parameters())
    torch.testing.assert_close(dict(model.state_dict()), dict(before), atol=0, rtol=0)


@pytest.fixture
def probed_again():
    linear_module._onednn_works.cache_clear()
    yield
    linear_module._onednn_works.cache_clear()


@pytest.mark.parametrize("name", ["_multiply", "_prepack"])
@pytest.mark.parametrize("error", [AttributeError, RuntimeError, TypeError])
def test_private_operations_that_are_gone_are_done_without(plain, frozen, monkeypatch, probed_again, name, error):
    def gone(*_):
        raise error("no such operation, or other arguments")

    inputs = torch.randn(7, 23, requires_grad=True)
    monkeypatch.setattr(linear_module, name, gone)
    for ours in (linear(inputs, plain.weight, plain.bias), frozen(inputs)):
        torch.testing.assert_close(ours, plain(inputs), atol=0, rtol=0)
        close(torch.autograd.grad(ours.sum(), inputs)[0], plain.weight.sum(0).expand(7, 23))


def test_operations_that_multiply_otherwise_are_not_used(plain, monkeypatch, probed_again):
    monkeypatch.setattr(linear_module, "_multiply", lambda inputs, *_: torch.zeros(2, 5))
    inputs = torch.randn(7, 23)
    torch.testing.assert_close(linear(inputs, plain.weight, plain.bias), plain(inputs), atol=0, rtol=0)


def test_some_outputs_of_a_layer_that_does_more_than_its_weight_says(plain):
    class Doubled(nn.Linear):
        def forward(self, inputs):
            return 2 * super().forward(inputs)

    doubled, inputs = Doubled(23, 37), torch.randn(7, 23)
    doubled.load_state_dict(plain.state_dict(), strict=False)
    close(some_outputs(doubled, inputs, torch.tensor([3, 5])), doubled(inputs)[:, [3, 5]])
