"""Options that commands of papa share, as one parameter."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps
from inspect import Parameter, Signature, signature
from pathlib import Path
from typing import Annotated, Any

import typer

from papa.errors import InputError


def option(metavar: str, text: str) -> Any:
    """Return an option with a value, which its help `text` calls `metavar`."""
    return typer.Option(metavar=metavar, help=text)


@dataclass(frozen=True)
class Options:
    """The options that `papa init` and `papa measure` share: about texts, and settings that replace the chosen ones."""

    validation: Annotated[
        Path | None,
        option(
            "FILE",
            "Validation texts; by default the file beside it with validation, valid, val, dev or test in place of "
            "train in its name.",
        ),
    ] = None
    column: Annotated[
        list[str] | None,
        option(
            "ROLE=COLUMN",
            "A column by its role: first=, second= (for pairs) or label=; or only text=, for running text without "
            "labels. papa chooses the others, or asks.",
        ),
    ] = None
    hold_out: Annotated[
        str | None,
        option(
            "SHARE",
            "Hold out this share of the training texts for validation, such as 0.2.",
        ),
    ] = None
    drop_empty: Annotated[
        bool,
        typer.Option(
            "--drop-empty",
            help="Drop rows without text or label (-1, -100 and nan are none), and count them.",
        ),
    ] = False
    labels: Annotated[
        str | None,
        option(
            "LIST",
            "The classes in order, such as --labels=-1,1; f1 is that of the second.",
        ),
    ] = None
    seeds: Annotated[
        str | None,
        option("LIST", "Seeds of the probes, such as 1,2,3; the default is five."),
    ] = None
    fractions: Annotated[
        str | None,
        option("LIST", "Shares of heads that keep their attention, such as 1,1/2,0."),
    ] = None
    slots: Annotated[
        int | None,
        option("N", "Tokens per text; the default is enough for 99 of 100 texts."),
    ] = None
    order: Annotated[
        str | None,
        option(
            "NAME",
            "Order of heads, such as gradient, which is faster; the default is lambda.",
        ),
    ] = None

    @property
    def columns(self) -> dict[str, str]:
        """The columns by role."""
        # at the first =, because a column's name may contain more
        return dict(each.partition("=")[::2] for each in self.column or ())

    @property
    def label_names(self) -> list[str] | None:
        """The classes in order."""
        return _listed(self.labels)

    @property
    def settings(self) -> dict[str, object]:
        """The settings that were asked for; raises `InputError` if a seed is no whole number."""
        try:
            seeds = None if self.seeds is None else [int(seed) for seed in self.seeds.split(",")]
        except ValueError:
            problem = f"--seeds is {self.seeds!r}, but must be whole numbers separated by commas, as in 1,2,3."
            raise InputError(problem) from None
        settings = {
            "slots": self.slots,
            "order": self.order,
            "seeds": seeds,
            "fractions": _listed(self.fractions),
        }
        return {name: value for name, value in settings.items() if value is not None}


def _listed(text: str | None) -> list[str] | None:
    """Return the comma-separated values of an option; None if it was not given."""
    return None if text is None else [part.strip() for part in text.split(",")]


def with_options(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command the fields of `Options` as options; it receives them together, as the parameter `given`."""
    shared = signature(Options, eval_str=True).parameters
    parameters = list[Parameter]()
    for name, parameter in signature(command, eval_str=True).parameters.items():
        fields = shared.values() if name == "given" else [parameter]
        # of positional parameters, those with a default could not precede those without
        parameters += (field.replace(kind=Parameter.KEYWORD_ONLY) for field in fields)

    @wraps(command)
    def separate(**options: Any) -> None:
        given = Options(**{name: options.pop(name) for name in shared})
        command(given=given, **options)

    separate.__signature__ = Signature(parameters)  # type: ignore[attr-defined]  # typer reads both
    separate.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return separate
