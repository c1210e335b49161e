"""Averages in blocks of queries: the numbers of whole attention, and memory that grows with the slots."""

import logging

import fake_device
import pytest
import torch
from families import close, of_lengths, stock
from refusals import input_error
from sizes import SLOTS

from papa.config.variant import AVERAGED
from papa.method.averaging import Averaging
from papa.model.model import Model

AT_ONCE = "papa.method.averaging.OBSERVED_AT_ONCE"


@pytest.fixture(params=["modernbert", "gpt-oss", "deberta-v2", "t5"])
def loaded(request):
    """Models with windows, sinks, and biases of pairs of tokens."""
    return Model(stock(request.param))


@pytest.mark.parametrize("kind", AVERAGED)
def test_blocks_give_the_averages_of_whole_attention(loaded, kind, monkeypatch):
    sums = []
    blocks = []
    for at_once in (2**26, 2 * loaded.heads * 3 * SLOTS):
        monkeypatch.setattr(AT_ONCE, at_once)
        averaging = Averaging(loaded, SLOTS, kind)
        watch = loaded.watch
        monkeypatch.setattr(
            loaded, "watch", lambda *given, watch=watch: (blocks.append(given[2]), watch(*given))
        )
        for lengths in ([SLOTS, 5], [7, 7, 7], [2, SLOTS, 4]):
            averaging.add(loaded.pack(of_lengths(*lengths)))
        sums.append(averaging.averages())
    whole, in_blocks = sums
    assert blocks[0] > blocks[-1]
    assert whole.examples == in_blocks.examples == 8
    assert torch.equal(whole.count, in_blocks.count)
    assert float(whole.sum.abs().max()) > 0.5
    close(in_blocks.sum, whole.sum, rtol=1e-3)  # random models amplify rounding


@pytest.mark.skipif(
    fake_device.NAME != fake_device.FAKE, reason="only the device without hardware knows all sizes"
)
def test_sums_that_do_not_fit_are_on_the_host(monkeypatch, caplog):
    stock_model = stock("llama")
    expected = Averaging(model := Model(stock_model), SLOTS)
    expected.add(model.pack(of_lengths(SLOTS)))
    memory = {
        "cpu": 10**12,
        fake_device.NAME: sum(values.nbytes for values in stock_model.parameters()),
    }
    monkeypatch.setattr("papa.method.averaging.memory_of", lambda device: memory[device.type])
    monkeypatch.setattr(torch, "inference_mode", lambda mode=True: torch.no_grad())
    with fake_device.installed(), caplog.at_level(logging.INFO):
        model = Model(stock("llama").to(fake_device.NAME))
        averaging = Averaging(model, SLOTS)
        averaging.add(model.pack(of_lengths(SLOTS)))
        averages = averaging.averages()
    assert averaging.total.device.type == "cpu"
    assert "sums of averages are on the host" in caplog.text
    close(averages.sum, expected.averages().sum, atol=1e-6, rtol=1e-5)
    memory["cpu"] = 1000
    with (
        fake_device.installed(),
        input_error(r"on cpu, which has .* GB; use fewer slots"),
    ):
        Averaging(model, SLOTS)
