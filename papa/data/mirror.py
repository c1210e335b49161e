"""What is known of a folder of the mirror: the commit of the hub that its files are of."""

from __future__ import annotations

import json
import re
from dataclasses import asdict, dataclass
from pathlib import Path

from papa.errors import DamagedArtefact, InputError

RECORD = ".papa-revision.json"
COMMIT = "[0-9a-f]{40}"


@dataclass(frozen=True)
class Record:
    """What was fetched into a folder of the mirror; lies beside the files.

    `kind` is "model" or "dataset". `revision` is what was asked for (None for the default branch) and `commit` what it
    stood for. `configs` are those of a dataset that are here, None where all are.
    """

    repository: str
    kind: str
    revision: str | None
    commit: str
    configs: list[str] | None = None

    def write(self, folder: Path) -> None:
        (folder / RECORD).write_text(json.dumps(asdict(self), indent=2) + "\n", encoding="utf-8")


def recorded(folder: Path) -> Record | None:
    """The record of a folder of the mirror; None where it has none, for it was laid out by other hands."""
    try:
        return Record(**json.loads((folder / RECORD).read_text(encoding="utf-8")))
    except FileNotFoundError:
        return None
    except (ValueError, TypeError) as error:
        raise DamagedArtefact(f"{folder / RECORD} is damaged ({error}); delete {folder} and fetch it again.") from error


def check_recorded(folder: Path, revision: str | None, config: str | None = None) -> None:
    """Raise `InputError` where `revision` is a commit and the folder is recorded as another, or without `config`.

    What a branch or tag stands for only the hub can tell, and folders without a record are taken as they are.
    """
    record = recorded(folder)
    if record is None:
        return
    if revision and re.fullmatch(COMMIT, revision) and record.commit != revision:
        raise InputError(
            f"{folder} holds {record.repository} at commit {record.commit}, but the config has revision {revision}; "
            "run `snakemake fetch` with this config, which replaces it, or correct the revision."
        )
    if config and record.configs is not None and config not in record.configs:
        raise InputError(
            f"{folder} holds of {record.repository} only {', '.join(record.configs)}, not {config}; "
            "run `snakemake fetch` with this config, which adds it."
        )
