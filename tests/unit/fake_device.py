"""A device without hardware: its tensors compute on the CPU, refuse to meet CPU tensors, and count waits for a GPU.

It follows PyTorch's rules for devices. An operation that mixes devices raises an error as on a GPU. CPU tensors of zero
dimensions are allowed, and CPU indices of its tensors. Each read of a value makes the host wait for a GPU: examples are
`float(tensor)`, `tensor.cpu()`, `nonzero` and an index by a mask. `FakeDevice.waits` counts them by their line in papa.

If torch finds a GPU, tests use it instead, and torch itself counts the waits; PAPA_TEST_DEVICE names another device.
"""

import os
import sys
import warnings
from collections import Counter
from contextlib import contextmanager, nullcontext
from pathlib import Path

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_map_only
from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

FAKE = "fakegpu"
NAME = os.environ.get("PAPA_TEST_DEVICE") or ("cuda" if torch.cuda.is_available() else FAKE)
NEAR = {"atol": 2e-5 if NAME == FAKE else 2e-4, "rtol": 1e-4}
"""How near results on the device are to those of the CPU. A GPU adds in another order."""
PAPA = str(Path(__file__).parents[2] / "papa")
READS = {
    "_local_scalar_dense",
    "is_nonzero",
    "item",
    "equal",
    "allclose",
    "nonzero",
    "nonzero_numpy",
    "masked_select",
    "_unique2",
    "unique_dim",
    "unique_consecutive",
    "bincount",
}
"""Operations whose result, or its size, the host reads."""
MAY_MIX = {"copy_", "_to_copy", "index", "index_put", "index_put_", "_index_put_impl_"}
"""Operations that accept tensors of several devices."""
BOOL = (torch.bool, torch.uint8)


class MixedDevices(RuntimeError):
    """An operation got tensors of two devices."""


class FakeDevice:
    """The counts of one device; `installed` returns it. `waits` counts by line the reads for which the host waits."""

    def __init__(self):
        self.waits = Counter()

    @contextmanager
    def counting(self):
        """Count only what happens inside the `with` block."""
        self.waits.clear()
        yield self.waits


class RealDevice(FakeDevice):
    """A GPU. Its waits are those that torch warns of."""

    @contextmanager
    def counting(self):
        self.waits.clear()
        with warnings.catch_warnings(record=True) as warned:
            warnings.simplefilter("always")
            torch.cuda.set_sync_debug_mode("warn")
            try:
                yield self.waits
            finally:
                torch.cuda.set_sync_debug_mode("default")
        waits = [
            warning for warning in warned if "synchronizing CUDA operation" in str(warning.message)
        ]
        self.waits.update(f"{Path(warning.filename).name}:{warning.lineno}" for warning in waits)


DEVICE = FakeDevice() if NAME == FAKE else RealDevice()


class OnDevice(torch.Tensor):
    """A tensor on the fake device; `held` is the CPU tensor that has its values."""

    held: torch.Tensor

    @staticmethod
    def __new__(cls, held):
        facts = {"dtype": held.dtype, "layout": held.layout, "requires_grad": held.requires_grad}
        places = {"strides": held.stride(), "storage_offset": held.storage_offset()}
        return torch.Tensor._make_wrapper_subclass(
            cls, held.size(), **places, **facts, device=torch.device(NAME, 0)
        )

    def __init__(self, held):
        self.held = held

    def __repr__(self):
        return f"OnDevice({self.held!r})"

    def tolist(self):
        DEVICE.waits[f"tolist {line()}"] += 1
        return self.held.tolist()

    def as_subclass(self, kind):
        return type(f"{kind.__name__}OnDevice", (OnDevice, kind), {})(self.held)

    @classmethod
    def __torch_dispatch__(cls, function, types, args=(), kwargs=None):
        return dispatched(function, args, kwargs or {})


class Dispatching(TorchDispatchMode):
    """Lets the fake device see operations without tensors, such as `torch.zeros`."""

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        return dispatched(function, args, kwargs or {})


def dispatched(function, args, kwargs):
    """Compute an operation on the CPU, after the checks and counts of the device."""
    name = function._schema.name.split("::")[1]
    tensors = [
        value for value in tree_flatten((args, kwargs))[0] if isinstance(value, torch.Tensor)
    ]
    on_device = [value for value in tensors if isinstance(value, OnDevice)]
    others = [value for value in tensors if not isinstance(value, OnDevice)]
    wanted = None if kwargs.get("device") is None else torch.device(kwargs["device"])
    if on_device:
        check_devices(name, args, others)
        count_waits(name, args, kwargs, wanted)
    plain = (
        kwargs
        if wanted is None or wanted.type == "meta"
        else {**kwargs, "device": torch.device("cpu")}
    )
    unwrapped_args, unwrapped = tree_map_only(OnDevice, lambda value: value.held, (args, plain))
    result = function(*unwrapped_args, **unwrapped)
    if (
        function._schema.is_mutable
        and name.endswith("_")
        and args
        and isinstance(args[0], torch.Tensor)
    ):
        return args[0]
    first = next(iter(tensors), None)
    stays = bool(on_device) if wanted is None else wanted.type == NAME
    if name in MAY_MIX - {"_to_copy"}:
        stays = isinstance(first, OnDevice)
    out = kwargs.get("out")
    if out is not None:
        return out
    return tree_map_only(torch.Tensor, OnDevice, result) if stays else result


def check_devices(name, args, others):
    """Raise what PyTorch raises if an operation mixes devices."""
    if name in ("index", "index_put", "index_put_") and not isinstance(args[0], OnDevice):
        raise MixedDevices(
            f"indices should be on the device of the indexed tensor (cpu), in {name} at {line()}"
        )
    if name not in MAY_MIX and any(value.dim() for value in others):
        shapes = [list(value.shape) for value in others]
        raise MixedDevices(
            f"{name} at {line()} got tensors of {NAME} and CPU tensors of shapes {shapes}"
        )


def count_waits(name, args, kwargs, wanted):
    """Count an operation if the host waits for its result."""
    reads = name in READS or (name == "repeat_interleave" and kwargs.get("output_size") is None)
    if name in ("index", "index_put", "index_put_", "_index_put_impl_"):
        reads = any(isinstance(index, torch.Tensor) and index.dtype in BOOL for index in args[1])
    if name == "_to_copy":
        reads = wanted is not None and wanted.type == "cpu"
    if name == "copy_":
        reads = not isinstance(args[0], OnDevice)
    if reads:
        DEVICE.waits[f"{name} {line()}"] += 1


def line():
    """Return the innermost line of papa that is running, as "file:line"."""
    frame = sys._getframe(1)
    while frame is not None:
        if frame.f_code.co_filename.startswith(PAPA):
            return f"{frame.f_code.co_filename.removeprefix(PAPA + '/')}:{frame.f_lineno}"
        frame = frame.f_back
    return "outside papa"


def _register():
    """Register the device and the operations that create and copy its tensors outside of a mode."""
    _setup_privateuseone_for_python_backend(NAME)
    getattr(torch, NAME).get_amp_supported_dtype = lambda: [
        torch.bfloat16,
        torch.float16,
    ]  # autocast asks for it
    library = torch.library.Library("aten", "IMPL")

    def empty_strided(size, stride, *, dtype=None, layout=None, device=None, pin_memory=None):
        return OnDevice(torch.empty_strided(size, stride, dtype=dtype, device="cpu"))

    def empty(size, *, dtype=None, layout=None, device=None, pin_memory=None, memory_format=None):
        return OnDevice(torch.empty(size, dtype=dtype, device="cpu"))

    def copy(source, target, non_blocking=False):
        if not isinstance(target, OnDevice):
            DEVICE.waits[f"copy {line()}"] += 1
        plain = [value.held if isinstance(value, OnDevice) else value for value in (target, source)]
        plain[0].copy_(plain[1])
        return target

    library.impl("empty_strided", empty_strided, "PrivateUse1")
    library.impl("empty.memory_format", empty, "PrivateUse1")
    library.impl("_copy_from", copy, "PrivateUse1")
    return library


LIBRARY = (
    _register() if NAME == FAKE else None
)  # on import, because autograd counts devices in its first backward pass


@contextmanager
def installed():
    """Let the device count and check inside the `with` block, and return its counts."""
    with Dispatching() if NAME == FAKE else nullcontext(), DEVICE.counting():
        yield DEVICE
