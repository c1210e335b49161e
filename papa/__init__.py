"""papa: how much does a pretrained transformer use input-dependent attention?

papa replaces attention matrices with constants, freezes the model, trains probes on top, and measures the drop in
scores (Hassid et al., Findings of EMNLP 2022). Names are imported on first use, so a stage imports only what it needs.
"""

from __future__ import annotations

import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any, NoReturn

if TYPE_CHECKING:
    from papa.data.layout import lay_out
    from papa.errors import DamagedArtefact, InputError
    from papa.jobs.measure import measure
    from papa.method.averages import ConstantMatrices
    from papa.method.averaging import average_attention
    from papa.method.constants import constant_matrices
    from papa.method.notebook import Recipe, fit_probe, learn_lambda
    from papa.method.probes import MlmProbe, SequenceProbe, TokenProbe
    from papa.model.load import load_model
    from papa.model.model import Model
    from papa.model.plain import replaced_attention
    from papa.results.study_results import StudyResults, load
    from papa.results.sweep import sweep

__version__ = "0.2.0"

_MODULES = {
    "lay_out": "papa.data.layout",
    "load_model": "papa.model.load",
    "Model": "papa.model.model",
    "average_attention": "papa.method.averaging",
    "ConstantMatrices": "papa.method.averages",
    "constant_matrices": "papa.method.constants",
    "SequenceProbe": "papa.method.probes",
    "TokenProbe": "papa.method.probes",
    "MlmProbe": "papa.method.probes",
    "replaced_attention": "papa.model.plain",
    "Recipe": "papa.method.notebook",
    "learn_lambda": "papa.method.notebook",
    "fit_probe": "papa.method.notebook",
    "sweep": "papa.results.sweep",
    "load": "papa.results.study_results",
    "StudyResults": "papa.results.study_results",
    "measure": "papa.jobs.measure",
    "InputError": "papa.errors",
    "DamagedArtefact": "papa.errors",
}
_STUDY = ("load", "measure", "sweep")
"""Functions that need the extra study."""

__all__ = [
    "ConstantMatrices",
    "DamagedArtefact",
    "InputError",
    "MlmProbe",
    "Model",
    "Recipe",
    "SequenceProbe",
    "StudyResults",
    "TokenProbe",
    "average_attention",
    "constant_matrices",
    "fit_probe",
    "lay_out",
    "learn_lambda",
    "load",
    "load_model",
    "measure",
    "replaced_attention",
    "sweep",
]


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        known = ", ".join(sorted(_MODULES))
        raise AttributeError(f"papa has no {name!r}; it has {known}", name=name, obj=sys.modules[__name__])
    from papa.errors import missing_extra

    if name in _STUDY and (missing := missing_extra("study", f"papa.{name}")):

        def refuse(*_: object, **__: object) -> NoReturn:
            raise ImportError(missing)

        return refuse
    return getattr(import_module(_MODULES[name]), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *_MODULES])
