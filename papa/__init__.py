"""papa: how much does a pretrained transformer use input-dependent attention?

papa replaces attention matrices with constants, freezes the model, trains probes on top, and measures the drop in
scores (Hassid et al., Findings of EMNLP 2022). Names are imported on first use, so a stage imports only what it needs.
"""

from __future__ import annotations

import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any, NoReturn

if TYPE_CHECKING:
    from papa.commands.measure import measure
    from papa.data.layout import lay_out
    from papa.errors import InputError
    from papa.method.averages import Constants
    from papa.method.averaging import average_attention
    from papa.method.in_memory import learn_lambda
    from papa.model.load import load_model
    from papa.model.model import Model
    from papa.model.plain import replaced_attention
    from papa.results.study_results import Study, load

__version__ = "0.5.0.dev0"

_MODULES = {
    "lay_out": "papa.data.layout",
    "load_model": "papa.model.load",
    "Model": "papa.model.model",
    "average_attention": "papa.method.averaging",
    "Constants": "papa.method.averages",
    "learn_lambda": "papa.method.in_memory",
    "replaced_attention": "papa.model.plain",
    "measure": "papa.commands.measure",
    "load": "papa.results.study_results",
    "Study": "papa.results.study_results",
    "InputError": "papa.errors",
}
_STUDY = ("Study", "load", "measure")
"""Names that need the extra study."""

__all__ = [
    "Constants",
    "InputError",
    "Model",
    "Study",
    "average_attention",
    "lay_out",
    "learn_lambda",
    "load",
    "load_model",
    "measure",
    "replaced_attention",
]


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        known = ", ".join(sorted(_MODULES))
        raise AttributeError(
            f"papa has no {name!r}; it has {known}", name=name, obj=sys.modules[__name__]
        )
    from papa.errors import missing_extra

    if name in _STUDY and (missing := missing_extra("study", f"papa.{name}")):

        def refuse(*_: object, **__: object) -> NoReturn:
            raise ImportError(missing)

        return refuse
    return getattr(import_module(_MODULES[name]), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *_MODULES])
