"""What the published code computed on small random models: recorded numbers in data/."""

import json
from functools import partial
from pathlib import Path

from safetensors.torch import load_file
from torch.testing import assert_close

DATA = Path(__file__).parent / "data"
close = partial(assert_close, atol=1e-4, rtol=0)


def recorded(name):
    """The folder of a case, what the published code made of its inputs, and the heads in their order."""
    folder = DATA / name
    expected = load_file(folder / "expected.safetensors")
    return str(folder), expected, json.loads((folder / "heads.json").read_text())


def probe_state(expected):
    """The recorded weights of the probe, by the names that its parameters have here."""
    slot_weights = next(name for name in expected if name.endswith("pooler.weights_per_layer"))
    dense = slot_weights.replace("weights_per_layer", "dense_across_layers")
    return {
        "slot_weights": expected[slot_weights],
        "dense.weight": expected[f"{dense}.weight"],
        "dense.bias": expected[f"{dense}.bias"],
        "output.weight": expected["probe.classifier.weight"],
        "output.bias": expected["probe.classifier.bias"],
    }
