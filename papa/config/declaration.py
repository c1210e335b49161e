"""A declaration: the claims that a study will make, written down before any outcome exists.

`papa freeze` writes it next to the config, and stage *claims* compares it with the config that was run. All that is
declared follows from the config and from the digests of its data and weights, so a comparison reads no result.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import BaseModel, ConfigDict, JsonValue, ValidationError

from papa import __version__
from papa.config.settings import OF_MACHINES, Grid, Ranking
from papa.config.stages import ModelId
from papa.errors import InputError
from papa.files import PathLike, digest_of_json

if TYPE_CHECKING:
    from papa.config.study import Study

DECLARED_SEPARATELY = {"name", "run", "grids", "margin", "floors", "ranking"}
"""Keys of a config that a declaration has under other names, and the name, on which nothing depends."""
PRESENTATION = {"patterns": True} | {"tasks": {"__all__": {"title", "published", "features"}}}
"""Keys of a config on which no claim depends."""
IN_EARLIER_DIGESTS = {"declared", "expected"}
IN_DIGEST = IN_EARLIER_DIGESTS | {"written", "papa"}
"""The parts of a declaration that its digest covers."""
EITHER_UNKNOWN = ("data", "weights")
"""Parts of a declaration that are compared only if both sides have them, because they may be on another machine."""


class Declaration(BaseModel):
    """The content of a declaration's file.

    Args:
        declared: all that the claims depend on; see `declared_by`.
        expected: the numbers of replaced heads and the smallest margin of each task, as estimated beforehand.
        written: the time of writing.
        papa: the version of papa that wrote it.
        digest: the digest of all of these.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    declared: dict[str, JsonValue]
    expected: dict[str, JsonValue]
    written: str
    papa: str
    digest: str

    @classmethod
    def of(cls, declared: dict[str, JsonValue], expected: dict[str, JsonValue], written: str) -> Declaration:
        """Return a declaration with its digest."""
        content = {"declared": declared, "expected": expected, "written": written, "papa": __version__}
        return cls.model_validate(content | {"digest": digest_of_json(content)})

    @classmethod
    def read(cls, path: PathLike) -> Declaration:
        """Read a declaration; raise `InputError` if the file contains something else."""
        try:
            return cls.model_validate(json.loads(Path(path).read_text(encoding="utf-8")))
        except (OSError, ValueError, ValidationError) as error:
            raise InputError(
                f"{path} is not a declaration of `papa freeze`; restore it from version control, or delete it."
            ) from error

    @property
    def intact(self) -> bool:
        """Whether the digest matches the content; digests of earlier versions do not cover time and version."""
        content, earlier = (self.model_dump(include=names) for names in (IN_DIGEST, IN_EARLIER_DIGESTS))
        return self.digest in (digest_of_json(content), digest_of_json(earlier))


def declared_by(study: Study) -> dict[str, JsonValue]:
    """Return all that the claims of a study depend on.

    Settings with their default values are left out of `settings`; grids and the ranking are complete. A key that a
    later version adds changes neither: `differences` fills in the default values that grids and ranking lack.
    """
    config = study.config
    models, tasks = (list(dict.fromkeys(names)) for names in zip(*config.pairs, strict=True))
    settings = config.model_dump(
        mode="json",
        exclude=dict.fromkeys(DECLARED_SEPARATELY, True) | OF_MACHINES | PRESENTATION,
        exclude_none=True,
        exclude_defaults=True,
    )
    for block, names in {"models": models, "corpora": config.corpora_run, "tasks": tasks}.items():
        settings[block] = {name: settings[block].get(name, {}) for name in names}
    weights = {name: study.sources.weights(ModelId.of(name, config.models[name])) for name in models}
    content = {
        "margin": config.margin,
        "floors": list(config.floors),
        "grids": {name: grid.model_dump(mode="json", exclude={"title"}) for name, grid in study.grids.items()},
        "ranking": config.ranking.model_dump(mode="json", exclude_none=True),
        "settings": settings,
        "data": {name: dict(study.sources.source(config.corpora[name])) for name in config.corpora_run}
        | {name: {"file": study.sources.head_list(listed.file)} for name, listed in config.lists.items()},
        "weights": {name: digest for name, digest in weights.items() if digest},
    }
    plain: dict[str, JsonValue] = json.loads(json.dumps(content))
    return plain


def compared(study: Study) -> dict[str, JsonValue] | None:
    """Compare the declaration next to a study's config with the study; None if there is none."""
    declaration = study.sources.declaration()
    if declaration is None:
        return None
    return {
        "digest": declaration.digest,
        "written": declaration.written,
        "intact": declaration.intact,
        "differences": list(differences(declaration.declared, declared_by(study))),
    }


def differences(
    declared: dict[str, JsonValue], now: dict[str, JsonValue], key: str = ""
) -> Iterator[dict[str, JsonValue]]:
    """Yield the keys whose values differ, with both values; a missing value is left out."""
    names = declared.keys() & now.keys() if key.split(".")[0] in EITHER_UNKNOWN else declared.keys() | now.keys()
    for name in sorted(names):
        inner = f"{key}.{name}" if key else name
        before, after = declared[name] if name in declared else _default(inner), now.get(name)
        if isinstance(before, dict) and isinstance(after, dict):
            yield from differences(before, after, inner)
        elif before != after:
            values = {"declared": before, "measured": after}
            yield {"key": inner, **{side: value for side, value in values.items() if value is not None}}


def _default(key: str) -> JsonValue:
    """Return the default value of a key of a grid or of the ranking, for a declaration that lacks it; else None."""
    match key.split("."):
        case ["grids", _, name]:
            field = Grid.model_fields.get(name)
        case ["ranking", name]:
            field = Ranking.model_fields.get(name)
        case _:
            return None
    plain: JsonValue = None if field is None or field.is_required() else json.loads(json.dumps(field.default))
    return plain
