"""`papa cost`: measure time and operations of a stock model, and of papa with no, half or all heads replaced.

Operations are counted, so they are the same on every machine. The forms of a model are timed in turns, so other work
on the machine slows all of them equally.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from platform import machine, processor
from statistics import median
from time import perf_counter
from typing import TYPE_CHECKING, Any, cast

import pandas as pd
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from papa.config.reading import read_config
from papa.config.stages import ModelId
from papa.data.weights import locate, location_of, revision_of
from papa.errors import InputError, count, first_line
from papa.model.load import refused, stock_model
from papa.model.model import Model
from papa.results.table import Table

if TYPE_CHECKING:
    from rich.console import Console
    from transformers import PreTrainedModel

EXAMPLES, ROUNDS = 8, 7
"""Number of texts per batch, and of timed rounds."""
DEFAULT_ATTENTION = "sdpa"
"""Transformers' default attention for models that support it."""
FORMS = {"stock": "transformers", "none": "papa, none replaced", "half": "half replaced", "all": "all replaced"}
NOTE = (
    f"Batches have {EXAMPLES} texts, which fill all slots; half: half of the heads in every layer. Times are medians "
    f"of {ROUNDS} runs, taken in turns; speed is the time of transformers divided by this time."
)


def cost(places: Sequence[str], slots: Sequence[int], device: str = "auto", attention: str = "") -> dict[str, object]:
    """Measure models in their stock form and with replaced heads.

    Args:
        places: hub ids, folders, installed packages, or configs, which stand for all models that they run.
        slots: lengths of texts in tokens.
        device: device that runs the models.
        attention: attention of the stock model, such as "eager"; the default is that of transformers, sdpa.

    Returns:
        `models`, with a row for each model, length and form, and facts about the machine. A row has operations and
        seconds per text, the ratio of the stock model's time to this time, and the stock model's attention.

    Raises:
        InputError: a model cannot be loaded, its attention cannot be replaced or set, or texts are too long for it.
    """
    rows = []
    for name, (place, revision) in _models(places).items():
        stock = stock_model(place, revision, device).eval()
        with refused(name):
            model = Model(copy.deepcopy(stock))
        about = {"model": name, "attention": _set_attention(stock, attention)}
        for n in slots:
            rows += [about | {"slots": n} | row for row in _of_length(stock, model, n)]
    return {"models": rows, "examples": EXAMPLES, **_machine(model.device)}


def _set_attention(stock: PreTrainedModel, attention: str) -> str:
    """Set the stock model's attention, and return the one that the model then uses."""
    try:
        stock.set_attn_implementation(attention or DEFAULT_ATTENTION)
    except (ValueError, ImportError) as error:
        if attention:
            raise InputError(
                f"This model does not support {attention!r} attention ({first_line(error)}); try eager."
            ) from error
    base = cast("PreTrainedModel", stock.base_model)
    return str(base.config.get_text_config()._attn_implementation)


def _models(places: Sequence[str]) -> dict[str, tuple[str, str | None]]:
    """Map the name of each model to its location and revision."""
    models: dict[str, tuple[str, str | None]] = {}
    for place in places:
        if not place.endswith((".yaml", ".yml")):
            models[place] = locate(place), None
            continue
        config = read_config(place)
        for name in dict.fromkeys(model for model, _ in config.pairs):
            model = ModelId.of(name, config.models[name])
            models[name] = location_of(model, config.machine), revision_of(model, config.machine)
    return models


@torch.inference_mode()
def _of_length(stock: PreTrainedModel, model: Model, n: int) -> list[dict[str, object]]:
    base = cast("PreTrainedModel", stock.base_model)
    config = base.config.get_text_config()
    longest = getattr(config, "max_position_embeddings", None)
    if longest is not None and n > longest:
        raise InputError(f"--slots is {n}, but the model has only {longest} positions; give a smaller number.")
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(10, config.vocab_size, (EXAMPLES, n), generator=generator).to(model.device)
    inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    packed = model.pack(inputs)
    constants = torch.rand(model.layers, model.heads, n, n, generator=generator)
    size = model.heads // model.groups
    some = [(layer, head) for layer in range(model.layers) for head in range(model.groups // 2 * size)]
    every = [(layer, head) for layer in range(model.layers) for head in range(model.heads)]
    replaced = {name: model.replacement(constants, heads) for name, heads in (("half", some), ("all", every))}
    forms: dict[str, Callable[[], object]] = {"stock": lambda: base(**inputs), "none": lambda: model.run(packed)}
    forms |= {name: partial(model.run, packed, replacement) for name, replacement in replaced.items()}
    times = _times(forms, model.device)
    rows: list[dict[str, object]] = []
    for name, run in forms.items():
        ratios = [stock / seconds for stock, seconds in zip(times["stock"], times[name], strict=True)]
        row = {"form": name, "operations": _operations(run) / EXAMPLES, "seconds": median(times[name]) / EXAMPLES}
        rows.append(row | {"ratio": median(ratios), "ratio_low": min(ratios), "ratio_high": max(ratios)})
    return rows


def _operations(run: Callable[[], object]) -> int:
    """Count the floating-point operations of matrix products, including those of attention."""
    counter = FlopCounterMode(display=False)
    # the counter recognises only PyTorch's own products, not those of oneDNN and fused attention
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # setting these flags also sets those of other devices, which warn
        with torch.backends.mkldnn.flags(enabled=False), sdpa_kernel(SDPBackend.MATH), counter:
            run()
    return int(counter.get_total_flops())


def _times(forms: Mapping[str, Callable[[], object]], device: torch.device) -> dict[str, list[float]]:
    """Measure the seconds that each form takes in each round, after an untimed round that compiles kernels."""
    times: dict[str, list[float]] = {name: [] for name in forms}
    for _ in range(ROUNDS + 1):
        for name, run in forms.items():
            begin = perf_counter()
            run()
            if device.type == "cuda":
                torch.cuda.synchronize(device)
            times[name].append(perf_counter() - begin)
    return {name: seconds[1:] for name, seconds in times.items()}


def _machine(device: torch.device) -> dict[str, object]:
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else _processor()
    return {"machine": name, "threads": torch.get_num_threads(), "torch": torch.__version__}


def _processor() -> str:
    file = Path("/proc/cpuinfo")
    lines = file.read_text(encoding="utf-8").splitlines() if file.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else processor() or machine()


def print_cost(measured: Mapping[str, Any], console: Console) -> None:
    """Print a table for each model, and facts about the machine."""
    frame = pd.DataFrame(measured["models"])
    for name, rows in frame.groupby("model", sort=False):
        stock = f"{FORMS['stock']} ({rows['attention'].iloc[0]})"
        cells = {
            "slots": rows["slots"].map(str),
            "form": rows["form"].map(FORMS | {"stock": stock}),
            "GFLOP per text": (rows["operations"] / 1e9).map("{:.3g}".format),
            "ms per text": (1e3 * rows["seconds"]).map("{:.3g}".format),
            "speed": rows["ratio"].map("× {:.2f}".format),
            "range": rows["ratio_low"].map("{:.2f}".format) + " to " + rows["ratio_high"].map("{:.2f}".format),
        }
        rules = tuple(range(len(FORMS), len(rows), len(FORMS)))
        Table(str(name), pd.DataFrame(cells), 2, rules=rules).print(console)
    threads = count(measured["threads"], "thread")
    console.print(f"{measured['machine']}, {threads}, torch {measured['torch']}. {NOTE}")
