"""Every stage on a device without hardware: the numbers of the CPU, no mixed devices, and few waits for a GPU."""

from contextlib import nullcontext

import fake_device
import jobs
import numpy as np
import pytest
import torch
from fake_device import NEAR
from families import of_lengths, stock
from sizes import CORPUS_SLOTS, SLOTS

import papa
from papa.config.settings import Machine
from papa.data.packed import Packed
from papa.data.tokens import Tokens
from papa.files import read_facts, read_table
from papa.method.averaging import Averaging
from papa.method.hidden import StoredStates
from papa.model import load
from papa.model.model import Model

HOW = jobs.training(batch_size=31, epochs=1)
SOME = "average/lambda-0/kept-1of2"


@pytest.fixture
def device(monkeypatch):
    """The device; the one without hardware has no inference mode, in which a wrapped tensor cannot have views."""
    if fake_device.NAME == fake_device.FAKE:
        monkeypatch.setattr(
            torch, "inference_mode", lambda mode=True: torch.no_grad() if mode else nullcontext()
        )
    else:  # a GPU draws other numbers than the CPU
        fused = torch.nn.functional.scaled_dot_product_attention

        def undropped(*given, dropout_p=0.0, **named):
            return fused(*given, **named)

        monkeypatch.setattr("papa.model.replacement.scaled_dot_product_attention", undropped)
        for name in ("torch.dropout", "torch.nn.functional.dropout"):
            monkeypatch.setattr(name, lambda values, *_, **__: values)
    with fake_device.installed() as device:
        yield device


@pytest.fixture
def on_both(device, monkeypatch):
    """Run a stage on the CPU and on the fake device, and compare its artefacts."""

    def run(stage):
        made = []
        for name in ("cpu", fake_device.NAME):
            monkeypatch.setattr(jobs, "MACHINE", Machine(device=name, token_budget=257))
            torch.manual_seed(0)
            made.append(stage(name))
        assert made[0] != made[1]
        compare(*made)

    return run


def compare(first, second):
    """Assert that two artefacts have nearly the same numbers."""
    for values, others in zip(numbers(first), numbers(second), strict=True):
        halved = (
            values.dtype == np.float16
        )  # hidden states are stored in half precision: one step of rounding
        np.testing.assert_allclose(values, others, **NEAR | ({"rtol": 2e-3} if halved else {}))


def numbers(path):
    """The numbers of an artefact, as arrays."""
    if path.suffix == ".h5":
        constants = papa.Constants.load(path)
        return [constants.sum.numpy(), constants.count.numpy()]
    if path.suffix == ".parquet":
        frame = read_table(path).to_pandas()
        curve = read_facts(path).get("curve", [])
        return [
            np.array(curve),
            *(frame[name].to_numpy(float) for name in frame.select_dtypes("number")),
        ]
    with StoredStates.opened(path) as hidden:
        tokens = Tokens.read(path.with_name("tokens.parquet"))["train"]
        return [hidden.read(torch.arange(len(tokens)), tokens).numpy().astype(np.float16)]


@pytest.mark.skipif(
    fake_device.NAME != fake_device.FAKE, reason="a GPU needs no test of how it refuses and counts"
)
def test_the_device_refuses_mixed_tensors_and_counts_waits(device):
    values = torch.arange(5, device=fake_device.NAME)
    with pytest.raises(fake_device.MixedDevices, match="add"):
        values + torch.ones(5)
    with pytest.raises(fake_device.MixedDevices, match="indices"):
        torch.ones(5)[values]
    with device.counting() as waits:
        assert (values + torch.tensor(2)).sum().device.type == fake_device.NAME
        assert not waits
        assert int(values.sum()) == 10
        assert values[values > 2].tolist() == [3, 4]
        assert values.cpu().tolist() == [0, 1, 2, 3, 4]
        assert bool(values.any())
        assert values.nonzero().shape == (4, 1)
    kinds = [wait.split()[0] for wait in waits.elements()]
    assert sorted(kinds) == sorted(
        ["_local_scalar_dense"] * 2 + ["index", "tolist", "_to_copy", "nonzero"]
    )


@jobs.TEXTS
@pytest.mark.parametrize("kind", ["average", "mean-output"])
@pytest.mark.parametrize("causal", [False, True])
def test_averages(on_both, tiny, place_tiny, corpus, kind, causal, monkeypatch):
    model = place_tiny(stock("llama")) if causal else tiny
    # these texts have gaps, which a decoder's texts never have
    monkeypatch.setattr(load, "_check_layout", lambda *_: None)

    def stage(name):
        jobs.average(model, corpus / "tokens.parquet", path := corpus / f"{name}.h5", kind=kind)
        return path

    on_both(stage)


@pytest.mark.slow
@jobs.TEXTS
@pytest.mark.parametrize(
    ("stage", "variant"),
    [
        ("lambda", "average"),
        ("lambda", "mean-output"),
        ("hidden", "original"),
        ("hidden", SOME),
        ("probe", "original"),
        ("probe", SOME),
        ("probe", "average-trained/all"),
        ("probe", "mean-output/all"),
        ("own head", "original"),
        ("own head", "toeplitz/all"),
    ],
)
def test_other_stages(on_both, request, tiny, corpus, data, stage, variant):
    if stage == "own head":
        tiny = request.getfixturevalue("tiny_decoder")
        jobs.write_tokens(corpus, CORPUS_SLOTS, train=3, validation=3)
    made = {kind: corpus / f"{kind}.h5" for kind in ("average", "mean-output")}
    for kind, path in made.items():
        jobs.average(tiny, data["tokens"], path, kind=kind)
    behind = {"constants": made.get(variant.split("/")[0].removesuffix("-trained"))}
    if variant == SOME:
        jobs.learn(tiny, corpus / "order-lambda.parquet", HOW, constants=made["average"], **data)
        behind["weights"] = corpus / "order-lambda.parquet"

    def run(name):
        path = corpus / f"{name}.{'hidden' if stage == 'hidden' else 'parquet'}"
        if stage == "lambda":
            jobs.learn(tiny, path, HOW, constant=variant, **behind, **data)
        elif stage == "hidden":
            jobs.store(tiny, path, variant, tokens=data["tokens"], **behind)
        elif stage == "own head":
            how = jobs.training(epochs=0)
            given = {"variant": variant, "tokens": data["tokens"]}
            jobs.probe(tiny, path, how, 0, metric="log_likelihood", **given)
        else:
            jobs.probe(tiny, path, HOW, variant=variant, **data, **behind)
        return path

    on_both(run)


@pytest.mark.parametrize("causal", [False, True])
def test_the_host_waits_once_per_batch(device, model, causal):
    """Neither layers nor constants that are new in every step make the host wait; each batch is studied on the host."""
    model = Model((stock("llama") if causal else model).to(fake_device.NAME))
    packed = Packed.of(of_lengths(2, SLOTS, 5, 7, 11, 3, 4))
    averaging = Averaging(model, SLOTS)
    shape = (model.layers, model.heads, SLOTS, SLOTS)
    heads = [
        (layer, head)
        for layer in range(model.layers)
        for head in range(model.heads)
        if (layer + head) % 2
    ]
    constants = torch.rand(shape, device=fake_device.NAME)
    fixed = model.replacement(constants, heads)

    def train():
        changed = constants.clone().requires_grad_()
        model.run(model.pack(packed), model.replacement(changed, heads))[-1].sum().backward()
        assert changed.grad is not None

    passes = {
        "averages": (1, lambda: averaging.add(model.pack(packed))),
        "replaced": (1, lambda: model.run(model.pack(packed), fixed)),
        "trained": (1, train),
    }
    for name, (most, run) in passes.items():
        run()  # projections are pruned once
        with device.counting() as waits:
            run()
        assert waits.total() <= most, f"{name}: {dict(waits)}"
    with device.counting() as waits:
        averaging.averages()
    assert waits.total() == model.layers + 1, (
        "sums leave the device layer by layer, and counts at once"
    )
