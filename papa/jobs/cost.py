"""`papa cost`: what a model takes as it is and with half and all of its heads replaced, on this machine.

Operations are counted and not timed: they are the same on every machine. Times are taken in turns, stock and replaced
after each other, so that what else the machine does meets all of them.
"""

from __future__ import annotations

import copy
import json
import os
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from platform import machine, processor
from statistics import median
from time import perf_counter
from typing import TYPE_CHECKING, cast

import pandas as pd
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from papa.config.reading import read_config
from papa.config.settings import Machine
from papa.config.stages import ModelId
from papa.data.weights import place_of, revision_of
from papa.errors import InputError, count
from papa.files import JSON
from papa.model.load import refused, stock_model
from papa.model.model import Model
from papa.results.table import Table

if TYPE_CHECKING:
    from rich.console import Console
    from transformers import PreTrainedModel

EXAMPLES, ROUNDS = 8, 7
"""Texts that are run at once, and how often each form is timed."""
FORMS = {"stock": "transformers", "none": "papa, none replaced", "half": "half replaced", "all": "all replaced"}
NOTE = (
    f"{EXAMPLES} texts at once that fill all slots; half: of the heads of every layer. Times are medians of {ROUNDS} "
    "runs, taken in turns; speed is the time of transformers divided by this one."
)


def cost(places: Sequence[str], slots: Sequence[int], device: str = "auto") -> dict[str, JSON]:
    """What models take.

    Args:
        places: folders of models, ids on the hub, or configs, of which all models that are run are meant.
        slots: lengths of texts in tokens.
        device: where they run.

    Returns:
        `models`, a line for each model, length and form: operations and seconds of a text, and the ratio of times to
        that of transformers; and what they were measured on.

    Raises:
        InputError: a model cannot be loaded, its attention cannot be replaced, or texts are longer than it takes.
    """
    lines = []
    for name, (place, revision) in _models(places).items():
        stock = stock_model(place, revision, device).eval()
        with refused(name):
            model = Model(copy.deepcopy(stock))
        for n in slots:
            lines += [{"model": name, "slots": n} | line for line in _of_length(stock, model, n)]
    return {"models": lines, "examples": EXAMPLES, **_machine(model.device)}


def _models(places: Sequence[str]) -> dict[str, tuple[str, str | None]]:
    """Where models lie, and their revisions, by what they are called."""
    found: dict[str, tuple[str, str | None]] = {}
    for place in places:
        if not place.endswith((".yaml", ".yml")):
            found[place] = place, None
            continue
        config = read_config(place)
        os.environ[Machine.VARIABLE] = json.dumps(asdict(config.machine))  # in which models are found
        for name in dict.fromkeys(model for model, _ in config.pairs):
            model = ModelId.of(name, config.models[name])
            found[name] = place_of(model), revision_of(model)
    return found


@torch.inference_mode()
def _of_length(stock: PreTrainedModel, model: Model, n: int) -> list[dict[str, JSON]]:
    base = cast("PreTrainedModel", stock.base_model)
    config = base.config.get_text_config()
    longest = getattr(config, "max_position_embeddings", None)
    if longest is not None and n > longest:
        raise InputError(f"{n} slots are more than the {longest} positions of the model; give a smaller --slots.")
    chance = torch.Generator().manual_seed(0)
    ids = torch.randint(10, config.vocab_size, (EXAMPLES, n), generator=chance).to(model.device)
    inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    packed = model.pack(inputs)
    constants = torch.rand(model.layers, model.heads, n, n, generator=chance)
    size = model.heads // model.groups
    some = [(layer, head) for layer in range(model.layers) for head in range(model.groups // 2 * size)]
    every = [(layer, head) for layer in range(model.layers) for head in range(model.heads)]
    replaced = {name: model.replacement(constants, heads) for name, heads in (("half", some), ("all", every))}
    forms: dict[str, Callable[[], object]] = {"stock": lambda: base(**inputs), "none": lambda: model.run(packed)}
    forms |= {name: lambda own=own: model.run(packed, own) for name, own in replaced.items()}  # type: ignore[misc]
    operations = {name: _operations(run) for name, run in forms.items()}
    times = _times(forms, model.device)
    found = []
    for name in forms:
        ratios = [stock / own for stock, own in zip(times["stock"], times[name], strict=True)]
        found.append(
            {
                "form": name,
                "operations": operations[name] / EXAMPLES,
                "seconds": median(times[name]) / EXAMPLES,
                "ratio": median(ratios),
                "ratio_low": min(ratios),
                "ratio_high": max(ratios),
            }
        )
    return found


def _operations(run: Callable[[], object]) -> int:
    """Floating-point operations of the matrix products, those of attention among them."""
    counter = FlopCounterMode(display=False)
    # the counter knows PyTorch's own products alone, and neither oneDNN's nor those of a fused attention
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of another processor's settings, which the flags set as well
        with torch.backends.mkldnn.flags(enabled=False), sdpa_kernel(SDPBackend.MATH), counter:
            run()
    return int(counter.get_total_flops())


def _times(forms: Mapping[str, Callable[[], object]], device: torch.device) -> dict[str, list[float]]:
    """Seconds of each form in each round; a first round, in which kernels are made, does not count."""
    times: dict[str, list[float]] = {name: [] for name in forms}
    for _ in range(ROUNDS + 1):
        for name, run in forms.items():
            begun = perf_counter()
            run()
            if device.type == "cuda":
                torch.cuda.synchronize(device)
            times[name].append(perf_counter() - begun)
    return {name: own[1:] for name, own in times.items()}


def _machine(device: torch.device) -> dict[str, JSON]:
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else _processor()
    return {"machine": name, "threads": torch.get_num_threads(), "torch": torch.__version__}


def _processor() -> str:
    """What the processor is called, as the system tells it."""
    told = Path("/proc/cpuinfo")
    lines = told.read_text(encoding="utf-8").splitlines() if told.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else processor() or machine()


def print_cost(found: Mapping[str, JSON], console: Console) -> None:
    """Print a table for each model, and on which machine it was measured."""
    frame = pd.DataFrame(found["models"])
    for name, own in frame.groupby("model", sort=False):
        cells = {
            "slots": own["slots"].map(str),
            "form": own["form"].map(FORMS.__getitem__),
            "GFLOP a text": (own["operations"] / 1e9).map("{:.3g}".format),
            "ms a text": (1e3 * own["seconds"]).map("{:.3g}".format),
            "speed": own["ratio"].map("× {:.2f}".format),
            "of all runs": own["ratio_low"].map("{:.2f}".format) + " to " + own["ratio_high"].map("{:.2f}".format),
        }
        rules = tuple(range(len(FORMS), len(own), len(FORMS)))
        Table(str(name), pd.DataFrame(cells), 2, rules=rules).print(console)
    threads = count(found["threads"], "thread")
    console.print(f"{found['machine']}, {threads}, torch {found['torch']}. {NOTE}")
