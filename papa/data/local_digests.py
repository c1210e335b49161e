"""Digests of the models, texts and tables that a study reads, from the files on this machine."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from papa.config.freshness import SourceDigests
from papa.config.settings import Corpus, Machine
from papa.config.stages import ModelId
from papa.data.digests import digest_of_file
from papa.data.sources import source_digests
from papa.data.weights import digest_of_model, known_weights
from papa.errors import InputError
from papa.files import PathLike

PUBLISHED = Path(__file__).with_name("published.csv")
"""The file with the numbers of the paper's tables."""


class LocalSourceDigests(SourceDigests):
    """Digests of the files on a machine, each computed only once."""

    def __init__(self, machine: Machine, config_files: Iterable[PathLike] = ()) -> None:
        self._machine, self.config_files = machine, tuple(config_files)
        self._sources: dict[Corpus, dict[str, str]] = {}
        self._models: dict[ModelId, str | None] = {}

    def source(self, corpus: Corpus) -> dict[str, str]:
        if corpus not in self._sources:
            try:
                self._sources[corpus] = source_digests(corpus, self._machine.hub_mirror)
            except OSError as error:
                message = f"{error.filename} cannot be read ({error.strerror}); make it readable and run again."
                raise InputError(message) from error
        return self._sources[corpus]

    def model(self, model: ModelId) -> str | None:
        weights = self.weights(model)
        return None if weights is None else digest_of_model(model, weights, self._machine)

    def weights(self, model: ModelId) -> str | None:
        if model not in self._models:
            self._models[model] = known_weights(model, self._machine)
        return self._models[model]

    def head_list(self, path: str) -> str | None:
        return digest_of_file(path) if Path(path).is_file() else None

    def published(self) -> str:
        return digest_of_file(PUBLISHED)
