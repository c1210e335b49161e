"""Models spread over two devices by accelerate: the results of one device, in both orders of the devices.

The two devices are the CPU, which accelerate offloads to unless it is the main device, and the device without hardware
or a GPU if there is one. A GPU accepts some tensors of a CPU, such as indices, and a CPU none of a GPU. So
tests run both orders: what one order accepts, the other refuses.
"""

import copy
import inspect

import fake_device
import pytest
import torch
from families import random_model
from sizes import SLOTS
from test_decoders import stock
from test_fake_gpu import device  # noqa: F401  a fixture

import papa
from papa.config.variant import AVERAGED
from papa.data.packed import Examples
from papa.errors import InputError
from papa.method.averaging import Averaging
from papa.method.importance import gate_slopes
from papa.method.notebook import examples_of, objective_on
from papa.method.tied import structure_of
from papa.model import attention
from papa.model.budget import TokenBudget
from papa.model.model import Model
from papa.model.replacement import Matrices, Outputs
from papa.model.verification import verify

accelerate = pytest.importorskip("accelerate")
pytestmark = pytest.mark.usefixtures("device")
WITHOUT_HARDWARE = pytest.mark.skipif(fake_device.NAME != fake_device.FAKE, reason="a GPU counts no copies, and exists")
GPU = f"{fake_device.NAME}:0"
ORDERS = {"cpu-first": ("cpu", GPU), "gpu-first": (GPU, "cpu")}
HEADS = [(0, 0), (0, 1), (1, 1), (2, 0), (2, 1)]


def spread(model, order):
    """Spread a model: its embeddings and first layers on one device, its last layers and head on the other."""
    first, last = ORDERS[order]
    base = model.base_model
    layers = next(module for module in base.modules() if isinstance(module, torch.nn.ModuleList))
    half = len(layers) // 2
    head = model.get_output_embeddings()
    if head is not None and head.weight is base.get_input_embeddings().weight:
        head = None  # a tied head is where the embeddings are
    place = {module: last for module in [*layers[half:], getattr(base, "norm", None), head]}
    names = {module: name for name, module in model.named_modules()}

    def placed(module):
        if any(other in set(module.modules()) - {module} for other in place):
            return {name: where for child in module.children() for name, where in placed(child).items()}
        return {names[module]: place.get(module, first)}

    skipped = model._skip_keys_device_placement
    return accelerate.dispatch_model(model, placed(model), main_device="cpu", skip_keys=skipped)


@pytest.fixture(params=ORDERS)
def order(request):
    return request.param


@pytest.fixture(params=["llama", "bert"])
def stocked(request):
    return stock("llama") if request.param == "llama" else random_model("bert")


@pytest.fixture
def both(stocked, order):
    """A model on the CPU, and the same model spread over two devices."""
    return Model(copy.deepcopy(stocked)), Model(spread(stocked, order))


@pytest.fixture
def inputs():
    lengths = torch.tensor([2, SLOTS, 5, 7, 11, 3, 4])
    mask = (torch.arange(SLOTS) < lengths[:, None]).long()
    ids = torch.randint(4, 31, mask.shape, generator=torch.Generator().manual_seed(1)) * mask
    return {"input_ids": ids, "attention_mask": mask}


def equal(values, others):
    torch.testing.assert_close(others.detach().cpu(), values.detach().cpu(), **fake_device.NEAR)


def test_layers_are_on_two_devices(both, order):
    one, two = both
    assert list(map(str, dict.fromkeys(two.devices))) == list(ORDERS[order])
    assert one.devices == () and one.form == two.form and str(two.device) == ORDERS[order][0]


def test_hidden_states(both, inputs):
    one, two = (model.hidden_states(inputs) for model in both)
    assert two.device == both[1].device
    equal(one, two)


@pytest.mark.slow
@pytest.mark.parametrize("family", ["gpt2", "gemma2", "modernbert", "deberta-v2", "t5"])
def test_other_families(family, order, inputs):
    """Two kinds of masks, fused projections, distance embeddings, and biases that models compute themselves."""
    model = stock(family)
    one, two = Model(copy.deepcopy(model)), Model(spread(model, order))
    constants = torch.rand(one.layers, one.heads, SLOTS, SLOTS)
    equal(one.hidden_states(inputs), two.hidden_states(inputs))
    equal(*(model.hidden_states(inputs, constants, HEADS) for model in (one, two)))


@pytest.mark.parametrize("kind", AVERAGED)
def test_averages(both, inputs, kind):
    one, two = (papa.average_attention(model, [inputs, inputs], kind) for model in both)
    equal(one.sum, two.sum)
    assert torch.equal(one.count, two.count)


def substitutes(model):
    """Substitutes of all kinds: matrices, classes with and without a matrix, outputs, and nothing."""
    shape, generator = (model.layers, model.heads), torch.Generator().manual_seed(2)

    def drawn(*more):
        return torch.rand((*shape, *more), generator=generator)

    return {
        "average": drawn(SLOTS, SLOTS),
        "zeros": torch.zeros(*shape, SLOTS, SLOTS),
        "uniform": papa.constant_matrices("uniform", *shape, SLOTS),
        "toeplitz": papa.constant_matrices("toeplitz", *shape, SLOTS),
        "by-distance": Matrices(drawn(2 * SLOTS), structure_of("by-distance", SLOTS)),
        "sink": Matrices(drawn(2), structure_of("sink", SLOTS)),
        "classes": Matrices(drawn(3), torch.randint(0, 3, (SLOTS, SLOTS), generator=generator)),
        "mean-output": Outputs(drawn(SLOTS, model.hidden // model.heads)),
    }


@pytest.mark.slow
@pytest.mark.parametrize("convolved", [False, True])
def test_replaced_and_mixed_heads(both, inputs, convolved, monkeypatch):
    if convolved:
        for name in ("CONVOLVED_FROM", "CONVOLVED_FROM_ON_GPU"):
            monkeypatch.setattr(f"papa.model.replacement.{name}", 2)
    mixing = torch.rand(both[0].layers, both[0].heads)
    for name, constants in substitutes(both[0]).items():
        for options in ({}, {"heads": HEADS}, {"mixing": mixing}):
            equal(*(model.hidden_states(inputs, constants, **options) for model in both)), name


@pytest.mark.slow
@pytest.mark.parametrize("recomputed", [False, True])
def test_gradients(both, inputs, recomputed):
    results = []
    for model in both:
        assert not recomputed or (model.recompute() and not model.recompute())
        mixing = torch.full((model.layers, model.heads), 0.3, requires_grad=True)
        constants = substitutes(model)["average"].requires_grad_()
        states = model.run(model.pack(inputs), model.replacement(constants, mixing=mixing))
        torch.stack(states).square().mean().backward()
        changed = substitutes(model)["average"].requires_grad_()
        model.run(model.pack(inputs), model.replacement(changed, HEADS))[-1].square().mean().backward()
        results.append((mixing.grad, constants.grad, changed.grad))
    for value, other in zip(*results, strict=True):
        assert value.abs().max() > 0
        equal(value, other)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["average", "by-distance"])
def test_lambda(both, inputs, kind):
    labels = torch.arange(len(inputs["input_ids"])) % 2
    recipe = papa.Recipe(epochs=2, batch_size=4)
    one, two = (papa.learn_lambda(model, substitutes(model)[kind], [inputs], labels, recipe=recipe) for model in both)
    assert (one - 0.5).abs().max() > 1e-4
    equal(one, two)


@WITHOUT_HARDWARE
def test_a_device_gets_the_layout_and_the_mask_of_a_batch_once(device, inputs):  # noqa: F811  the fixture
    """Not once per layer: the second and third layers are on the device."""
    model = Model(spread(stock("llama"), "cpu-first"))
    constants, (lines, begin) = substitutes(model), inspect.getsourcelines(Examples.on)
    for replacement in (model.replacement(constants["sink"], HEADS), model.replacement(constants["average"])):
        model.run(model.pack(inputs), replacement)  # projections are pruned once
        with device.counting():
            model.run(model.pack(inputs), replacement)
        copies = [upload.split()[1].split(":") for upload in device.uploads.elements()]
        layout = [line for file, line in copies if file == "data/packed.py" and begin <= int(line) < begin + len(lines)]
        assert len(layout) == 4, "slots, columns, real positions and the positions of tokens"
        assert [file for file, _ in copies].count("model/visibility.py") == 1


def test_a_batch_that_runs_out_of_memory_is_halved(both, inputs, monkeypatch):
    one, two = both
    splits, _ = examples_of(two, {"train": ([inputs], None)}, "averages")
    averaging, context_of, calls = Averaging(two, SLOTS), attention.context_of, []

    def scarce(session, layer):
        calls.append(layer.index)
        if len(calls) == two.layers:  # in the last layer of the first batch
            raise torch.OutOfMemoryError("out of memory")
        return context_of(session, layer)

    monkeypatch.setattr(attention, "context_of", scarce)
    monkeypatch.setattr("torch.accelerator.empty_cache", lambda: None)  # the device has no cache
    done = torch.cat([*averaging.add_group(splits["train"], TokenBudget(4096))])
    assert len(calls) == 3 * two.layers and sorted(done.tolist()) == list(range(len(inputs["input_ids"])))
    monkeypatch.undo()
    equal(papa.average_attention(one, [inputs]).sum, averaging.averages().sum)


@pytest.mark.slow
def test_other_weights_of_heads(both, inputs):
    labels, results = torch.arange(len(inputs["input_ids"])) % 2, []
    for model in both:
        torch.manual_seed(0)
        splits, gold = examples_of(model, {"train": ([inputs], labels)}, "weights")
        objective, constants = objective_on(model, splits, gold), substitutes(model)["average"]
        results.append(gate_slopes(model, objective, constants, torch.arange(len(labels)), 4, model.heads))
    assert results[0].abs().max() > 0
    equal(*results)


@pytest.mark.slow
def test_verification_and_a_plain_model(stocked, order, inputs):
    """`papa inspect` copies a model, and `replaced_attention` leaves its linear layers."""
    constants = torch.rand(stocked.config.num_hidden_layers, stocked.config.num_attention_heads, SLOTS, SLOTS)
    states = []
    for model in (copy.deepcopy(stocked), spread(stocked, order)):
        with papa.replaced_attention(model, constants, HEADS) as replaced, torch.no_grad():
            states.append(replaced(**inputs, output_hidden_states=True).hidden_states[-1].cpu())
    real = inputs["attention_mask"].bool()
    equal(*(state[real] for state in states))
    verified = verify(model)
    assert max(verified.stock, verified.half, verified.all, verified.own_attention) < 1e-5


def test_a_model_with_offloaded_weights_is_refused():
    model = stock("llama")
    accelerate.cpu_offload(model, "cpu")
    with pytest.raises(InputError, match="Some weights of this LlamaForCausalLM are on no device"):
        Model(model)


@WITHOUT_HARDWARE
def test_loading(tmp_path, monkeypatch, inputs):
    """transformers spreads a model while it loads it; here over one device, because it offloads layers of the CPU."""
    expected = Model(stock("llama")).hidden_states(inputs)
    stock("llama").save_pretrained(tmp_path)
    with pytest.raises(InputError, match=r"device is 'cuda:all'.* cuda:all to spread a model over all GPUs"):
        papa.load_model(tmp_path, device="cuda:all")
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("torch.cuda.device_count", lambda: 2)
    monkeypatch.setattr("papa.model.load.DEVICE_MAP", {"": GPU})
    model = papa.load_model(tmp_path, device="cuda:all")
    assert str(model.device) == GPU
    equal(expected, model.hidden_states(inputs))
    offloading = {"model": GPU, "lm_head": "cpu"}
    monkeypatch.setattr("papa.model.load.DEVICE_MAP", offloading)
    with pytest.raises(InputError, match="on no device, so accelerate may have left them in the memory of the host"):
        papa.load_model(tmp_path, device="cuda:all")
    monkeypatch.setattr("papa.model.load.find_spec", lambda name: None)
    with pytest.raises(InputError, match="needs the package accelerate; run: pip install accelerate"):
        papa.load_model(tmp_path, device="cuda:all")
