"""Installed packages that contain a model, by the name of the package or of its distribution."""

from __future__ import annotations

import importlib.util
import re
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, distribution


def package_of(name: str) -> str | None:
    """Return the installed package of this name, or the package with a model in the distribution of this name."""
    with suppress(ValueError):  # a module without a spec
        if re.fullmatch("[a-z][a-z0-9_]*", name) and importlib.util.find_spec(name):
            return name
    try:
        files = distribution(name).files or []
    except (PackageNotFoundError, ValueError):
        return None
    folders = {file.parts[0] for file in files if file.name == "config.json" and len(file.parts) > 1}
    return next(iter(folders)) if len(folders) == 1 else None
