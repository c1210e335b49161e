"""Options that commands of papa share, as one parameter each."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass, is_dataclass
from functools import wraps
from pathlib import Path
from typing import Annotated, TypeVar

import typer

from papa.errors import InputError

T = TypeVar("T")


def grouped(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command the fields of a parameter that is a dataclass as options, and pass them to it together."""
    parameters, groups = list[inspect.Parameter](), dict[str, tuple[type, list[str]]]()
    for name, parameter in inspect.signature(command, eval_str=True).parameters.items():
        fields = [parameter]
        if is_dataclass(kind := parameter.annotation) and isinstance(kind, type):
            fields = list(inspect.signature(kind, eval_str=True).parameters.values())
            groups[name] = kind, [field.name for field in fields]
        parameters += (field.replace(kind=inspect.Parameter.KEYWORD_ONLY) for field in fields)

    @wraps(command)
    def ungrouped(**options: object) -> None:
        together = {name: kind(**{key: options.pop(key) for key in keys}) for name, (kind, keys) in groups.items()}
        command(**options, **together)

    ungrouped.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]  # typer reads both
    ungrouped.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return ungrouped


@dataclass(frozen=True)
class TextOptions:
    """Options about texts, for `papa init` and `papa measure`."""

    validation: Annotated[Path | None, typer.Option(metavar="FILE", help="Validation texts, in the same format.")] = (
        None
    )
    column: Annotated[
        list[str] | None,
        typer.Option(
            metavar="ROLE=COLUMN",
            help="A column by its role: first=, second= (for pairs) or label=; papa chooses the others, or asks.",
        ),
    ] = None
    hold_out: Annotated[
        str | None,
        typer.Option(metavar="SHARE", help="Hold out this share of the training texts for validation, such as 0.2."),
    ] = None
    drop_empty: Annotated[
        bool,
        typer.Option("--drop-empty", help="Drop rows without text or label (-1 and -100 are none), and count them."),
    ] = False
    labels: Annotated[
        str | None,
        typer.Option(metavar="LIST", help="The classes in order, such as --labels=-1,1; f1 is that of the second."),
    ] = None

    @property
    def columns(self) -> dict[str, str]:
        """The columns by role."""
        return {role: column for role, _, column in (option.partition("=") for option in self.column or ())}

    @property
    def label_names(self) -> list[str] | None:
        """The classes in order."""
        return list_of(self.labels, "--labels", str)


def list_of(text: str | None, option: str, kind: type[T]) -> list[T] | None:
    """Parse the comma-separated values of an option; None if it was not given."""
    try:
        return None if text is None else [kind(part.strip()) for part in text.split(",")]  # type: ignore[call-arg]
    except ValueError:
        raise InputError(f"{option} is {text!r}, but must be whole numbers separated by commas, as in 1,2,3.") from None


@dataclass(frozen=True)
class SettingOptions:
    """Options that replace chosen settings, for `papa init` and `papa measure`."""

    seeds: Annotated[
        str | None, typer.Option(metavar="LIST", help="Seeds of the probes, such as 1,2,3; the default is five.")
    ] = None
    fractions: Annotated[
        str | None, typer.Option(metavar="LIST", help="Shares of heads that keep their attention, such as 1,1/2,0.")
    ] = None
    slots: Annotated[
        int | None, typer.Option(metavar="N", help="Tokens per text; the default is enough for 99 of 100 texts.")
    ] = None

    order: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Order of heads, such as gradient, which is faster; the default is lambda."),
    ] = None

    def settings(self) -> dict[str, object]:
        """Return the settings that were asked for."""
        lists = {"seeds": list_of(self.seeds, "--seeds", int), "fractions": list_of(self.fractions, "--fractions", str)}
        return {
            name: value
            for name, value in (lists | {"slots": self.slots, "order": self.order}).items()
            if value is not None
        }
