"""Which jobs of a study are up to date, and why the others are not.

A job is up to date if its artefact records this version of the stage, these settings, and inputs with this content. No
time of a file and no memory of the workflow is needed for that. An edit that leaves the content of an input as it is
rebuilds nothing.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from papa.config import stages
from papa.config.job import AnyJob, has_trace
from papa.config.settings import Corpus
from papa.files import Provenance, Trace, digest_of_json, read_provenance

if TYPE_CHECKING:
    from papa.config.study import Study

MISSING, FRESH, AGAIN = "missing", "fresh", "has to be rebuilt"
PRUNED = "its hidden states were deleted, and a job has to read them"
"""The reason to rebuild hidden states whose index is up to date; artefacts made from them stay."""
MORE = "it lacks some seeds"
"""The reason to train further probes next to finished ones, which stay."""
OUTDATED = ".outdated"
"""A file that is newer than every artefact that is out of date."""
MARGIN = 60.0
"""Seconds by which an artefact that is out of date looks older than that file, at least."""
LONGEST = 200
"""Characters of a sentence about a setting that differs."""


class Freshness:
    """The state of every job of a study, from what the artefacts in its results record.

    Args:
        study: its states are looked up once, so a study describes the moment at which it is made.
    """

    def __init__(self, study: Study):
        self._study = study
        self._states: dict[AnyJob, str] = {}
        self._provenances: dict[str, Provenance | None] = {}

    def state(self, job: AnyJob) -> str:
        """Return `FRESH`, `MISSING`, or why the artefact of a job is out of date, as part of a sentence."""
        if job not in self._states:
            self._states[job] = self._state(job)
        return self._states[job]

    def request(self, job: AnyJob) -> str:
        """Return the `Trace.request` that the artefact of a job has, or will have when the job is done."""
        provenance = self._provenance(job.main)
        if self.state(job) == FRESH and provenance is not None and provenance.trace is not None:
            return provenance.trace.request
        return Trace(job.stage, job.settings.stamp[1], job.settings.recorded(), {}).request

    def outdated(self) -> dict[str, str]:
        """Return why artefacts are out of date, by path, without those that only follow from another artefact."""
        states = {job.main: self.state(job) for job in self._study.jobs()}
        expected = (FRESH, MISSING, MORE)
        return {path: why for path, why in states.items() if why not in expected and not why.endswith(AGAIN)}

    def changed(self, now: Freshness) -> bool:
        """Whether a job that was looked up has another state now."""
        return any(now.state(job) != state for job, state in self._states.items())

    def mark(self) -> str:
        """Write and return the path of a file that every job reads: newer than all artefacts that are out of date."""
        path = self._study.results / OUTDATED
        path.parent.mkdir(parents=True, exist_ok=True)
        outdated = [job for job in self._study.jobs() if self.state(job) not in (FRESH, MISSING)]
        if outdated or not path.exists():
            path.write_text(f"{time.time_ns()}\n", encoding="utf-8")
        for output in (self._study.results / output for job in outdated for output in job.outputs.values()):
            # a clock that was ahead, or one of whole seconds, must not make it look newer
            if output.exists() and output.stat().st_mtime > time.time() - MARGIN:
                os.utime(output, (time.time() - MARGIN,) * 2)
        return str(path)

    def _state(self, job: AnyJob) -> str:
        if any(not (self._study.results / path).exists() for name, path in job.outputs.items() if name != "hidden"):
            return MISSING
        provenance = self._provenance(job.main)
        if provenance is None or provenance.trace is None:
            return "it has no record of how it was made"
        trace, version = provenance.trace, job.settings.stamp[1]
        if (trace.stage, trace.version) != (job.stage, version):
            return (
                f"it was made by stage {trace.stage}, version {trace.version}; this is {job.stage}, version {version}"
            )
        asked, made = _compared(job.settings.recorded(), trace.settings, provenance.facts)
        for needed in job.needed:
            if self.state(needed) not in (FRESH, PRUNED):
                return f"{needed.main} {AGAIN}"
        if difference := _difference(asked, made):
            return difference
        now = self._digests(job) | self._study.sources.of(job.settings)
        for name in sorted(now.keys() | trace.inputs.keys()):
            if name in now and name not in trace.inputs and name not in SourceDigests.names:
                return f"it was made without {name}, and is now made with it"
            if name in now and now[name] != trace.inputs.get(name, ""):
                return f"its {name} has changed"
            if name not in now and name not in SourceDigests.names:
                return f"it was made with {name}, and is now made without it"
        if isinstance(job.settings, stages.ProbeOf):  # a kill may leave some files of each training
            traces = [record.trace for path in job.outputs.values() if (record := self._provenance(path))]
            if traces != [trace] * len(job.outputs):
                return "not all files of this job were made together"
            if not set(job.settings.seeds) <= set(provenance.facts.get("seeds", ())):
                return MORE
        return self._pruned(job) or FRESH

    def _pruned(self, job: AnyJob) -> str:
        """Return `PRUNED` if hidden states were deleted and a job that has to run reads them."""
        hidden = job.outputs.get("hidden")
        if hidden is None or (self._study.results / hidden).exists():
            return ""
        return PRUNED if self._is_read(job) else ""

    def _is_read(self, hidden: AnyJob) -> bool:
        """Whether a job that reads these hidden states has to run for another reason."""
        self._states[hidden] = FRESH
        readers = [job for job in (*self._study.probes(), *self._study.weights()) if hidden in job.needed]
        return any(self._state(job) != FRESH for job in readers)

    def _digests(self, job: AnyJob) -> dict[str, str]:
        """Return the digest of each input that papa made, by its name."""
        digests = {}
        for name, paths in job.inputs.items():
            if paths and has_trace(paths[0]):
                every = [made.digest if (made := self._provenance(path)) else "" for path in paths]
                digests[name] = every[0] if len(every) == 1 else digest_of_json(every)
        return digests

    def _provenance(self, path: str) -> Provenance | None:
        if path not in self._provenances:
            self._provenances[path] = read_provenance(self._study.results / path)
        return self._provenances[path]


class SourceDigests:
    """Digests of what jobs read and papa did not make. This class knows none; `papa.data.local_digests` reads files."""

    names = ("model", "origin", "tokenizer")
    """Names in a trace: the content of a model's files, their origin, and the files of a rare tokenizer."""

    def source(self, corpus: Corpus) -> dict[str, str]:
        """Return the digests of the files of a corpus, by split or name; empty if only the hub has them."""
        return {}

    def model(self, model: stages.ModelId) -> str | None:
        """Return the digest of the files of a model; None if they are not on this machine."""
        return None

    def weights(self, model: stages.ModelId) -> str | None:
        """Return SHA-256 of the weights of a model; None if they are not on this machine."""
        return None

    def vocabulary(self, model: stages.ModelId) -> str:
        """Return the digest of the files that only rare tokenizers have; empty if there are none."""
        return ""

    def published(self) -> str:
        """Return the digest of the published numbers."""
        return ""

    def of(self, settings: stages.Settings) -> dict[str, str]:
        """Return the inputs of a job's trace that describe its model.

        If the model's files are here, their content counts and their origin does not. Else only the origin is known.
        """
        model = getattr(settings, "model", None)
        model = model.model if isinstance(model, stages.Encoding) else model
        if model is None:
            return {}
        digest = self.model(model)
        if digest is None:
            return {"origin": model.origin}
        more = {"tokenizer": self.vocabulary(model)} if isinstance(settings, stages.TokensOf) else {}
        return {"model": digest, **more}


def _compared(
    asked: Mapping[str, Any], made: Mapping[str, Any], facts: Mapping[str, Any]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the settings of the config and of an artefact with these facts, without differences that do not matter.

    Three differences do not: a limit that all training rows fit, names of labels that equal those of the data, and the
    revision of a dataset whose content is known on both sides. If it is known on one side only, the revision decides.
    """
    asked, made = ({**settings} for settings in (asked, made))
    for settings in (asked, made):
        if "corpus" in settings:
            settings["corpus"] = {**settings["corpus"]}
            rows = facts.get("rows_available", {}).get("train")
            if rows is not None and settings["corpus"].get("train_limit", 0) >= rows:
                del settings["corpus"]["train_limit"]
    # if no names were listed, the facts have those of the data; if some were, the names in the data are unknown;
    # and names of choices change how labels are read
    from_data = "labels" not in made and "choices" not in made.get("corpus", {})
    if from_data and asked.get("labels") == facts.get("label_names"):
        asked.pop("labels", None)
    if "hub" in asked.get("corpus", {}) and "hub" in made.get("corpus", {}):
        known = [bool(settings.get("source")) for settings in (asked, made)]
        for settings in (asked, made):
            if all(known):
                settings["corpus"].pop("revision", None)
            elif any(known):
                settings.pop("source", None)
    return asked, made


def _difference(asked: Mapping[str, object], made: Mapping[str, object], place: str = "") -> str:
    """Return the first setting that differs, as part of a sentence; empty if none does."""
    for key in sorted(asked.keys() | made.keys()):
        new, old = asked.get(key), made.get(key)
        if isinstance(new, Mapping) and isinstance(old, Mapping):
            if inner := _difference(new, old, f"{place}{key}."):
                return inner
        elif new != old:
            sentence = f"{place}{key} is {new}, but it was made with {old}"
            return sentence if len(sentence) < LONGEST and "[[" not in sentence else f"{place}{key} have changed"
    return ""
