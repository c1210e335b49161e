"""Decide which jobs of a study are up to date, and why the others are not.

A job is up to date if its artefact records the current version of its stage, its current settings, and the current
content of its inputs. Neither file timestamps nor the workflow's metadata are needed. An edit that does not change the
content of an input rebuilds nothing.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from papa.config import stages
from papa.config.job import AnyJob, has_trace
from papa.config.measures import METRICS
from papa.config.settings import Corpus
from papa.files import Provenance, Trace, digest_of_json, read_provenance

if TYPE_CHECKING:
    from papa.config.study import Plan

MISSING, FRESH = "missing", "fresh"
INPUT_OUTDATED = "has to be rebuilt"
"""The end of the reason why an artefact is out of date, if an input has to be rebuilt."""
PRUNED = "its hidden states were deleted, and a job has to read them"
"""The reason to rebuild hidden states whose index is up to date; artefacts made from them are kept."""
LACKS_SEEDS = "it lacks some seeds"  # the reason to train further probes; finished probes are kept
MARKER = ".outdated"  # the name of a file that is newer than every outdated artefact
MTIME_MARGIN_SECONDS = 60.0  # the minimum age of an outdated artefact, by its timestamp, when the marker is written
DIGEST = re.compile("[0-9a-f]{40,}")  # matches a digest, which is not shown in a reason
MAX_REASON_LENGTH = 200  # the maximum number of characters of a reason that shows the values of a setting


class Freshness:
    """The states of a study's jobs, from the traces in its artefacts.

    Each state and each request is looked up once and cached.
    """

    def __init__(self, study: Plan):
        self._study = study
        self._states: dict[AnyJob, str] = {}
        self._requests: dict[AnyJob, str] = {}
        self._provenances: dict[str, Provenance | None] = {}

    def state(self, job: AnyJob) -> str:
        """Return `FRESH`, `MISSING`, or the reason why the job's artefact is out of date, as a clause."""
        if job not in self._states:
            self._states[job] = self._state(job)
        return self._states[job]

    def request(self, job: AnyJob) -> str:
        """Return the `Trace.request` that the job's artefact has, or will have once the job has run."""
        if job not in self._requests:
            provenance = self._provenance(job.main)
            made = provenance.trace if provenance is not None and self.state(job) == FRESH else None
            trace = made or Trace(job.stage, job.settings.stamp[1], job.settings.recorded(), {})
            self._requests[job] = trace.request
        return self._requests[job]

    def outdated(self) -> dict[str, str]:
        """Map paths of outdated artefacts to reasons, except those that only lack seeds or have an outdated input."""
        states = {job.main: self.state(job) for job in self._study.jobs()}
        expected = (FRESH, MISSING, LACKS_SEEDS)
        return {path: why for path, why in states.items() if why not in expected and not why.endswith(INPUT_OUTDATED)}

    def changed(self, later: Freshness) -> bool:
        """Return whether a state that was looked up here differs in `later`."""
        return any(later.state(job) != state for job, state in self._states.items())

    def mark(self) -> str:
        """Write the marker, which is newer than all outdated artefacts and an input of every job; return its path."""
        path = self._study.results / MARKER
        path.parent.mkdir(parents=True, exist_ok=True)
        outdated = [job for job in self._study.jobs() if self.state(job) not in (FRESH, MISSING)]
        if outdated or not path.exists():
            path.write_text(f"{time.time_ns()}\n", encoding="utf-8")
        for output in (self._study.results / output for job in outdated for output in job.outputs.values()):
            # a clock that was fast, or timestamps in whole seconds, must not make an artefact newer than the marker
            if output.exists() and output.stat().st_mtime > time.time() - MTIME_MARGIN_SECONDS:
                os.utime(output, (time.time() - MTIME_MARGIN_SECONDS,) * 2)
        return str(path)

    def _state(self, job: AnyJob) -> str:
        outputs = (path for name, path in job.outputs.items() if name != "hidden")
        if not all(os.path.exists(os.path.join(self._study.results, path)) for path in outputs):
            return MISSING
        provenance = self._provenance(job.main)
        if provenance is None or provenance.trace is None:
            return "it has no record of how it was made"
        trace, version = provenance.trace, job.settings.stamp[1]
        if (trace.stage, trace.version) != (job.stage, version):
            made_by = f"stage {trace.stage}, version {trace.version}"
            return f"it was made by {made_by}, but the current one is {job.stage}, version {version}"
        current, recorded = _without_irrelevant(job.settings.recorded(), trace.settings, provenance.facts)
        for needed in job.needed:
            if self.state(needed) not in (FRESH, PRUNED):
                return f"{needed.main} {INPUT_OUTDATED}"
        if difference := _difference(current, recorded):
            named = difference.startswith("`source.") and _changed_files(job.settings, recorded["source"])
            return named or difference
        if isinstance(job.settings, stages.LabelsOf):  # run the job, which fails with this explanation
            metric = METRICS[job.settings.metric]
            if misfit := metric.misfit(provenance.facts.get("label_names", ())):
                return f"the metric {metric.name} {misfit}"
        now = self._digests(job) | self._study.sources.of(job.settings)
        for name in sorted(now.keys() | trace.inputs.keys()):
            if name == "sha256" and name not in trace.inputs:
                continue  # the config had no digest yet
            if name in now and name not in trace.inputs and name not in SourceDigests.names:
                return f"it now also depends on {name}"
            if name in now and now[name] != trace.inputs.get(name, ""):
                return f"its {name} has changed"
            if name not in now and name not in SourceDigests.names:
                return f"it no longer depends on {name}"
        if isinstance(job.settings, stages.ProbeOf):  # a killed job may have replaced only some of its files
            traces = [record.trace for path in job.outputs.values() if (record := self._provenance(path))]
            if traces != [trace] * len(job.outputs):
                return "its files were not all made by the same run"
            if not set(job.settings.seeds) <= set(provenance.facts.get("seeds", ())):
                return LACKS_SEEDS
        if "hidden" in job.outputs and not (self._study.results / job.outputs["hidden"]).exists():
            self._states[job] = FRESH  # does a job that reads these hidden states have to run for another reason?
            readers = [each for each in (*self._study.probes(), *self._study.weights()) if job in each.needed]
            return PRUNED if any(self._state(reader) != FRESH for reader in readers) else FRESH
        return FRESH

    def _digests(self, job: AnyJob) -> dict[str, str]:
        """Return the digests of the inputs that papa made, by name."""
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
    """Digests of models, texts and tables that papa did not make.

    This class has none; its subclass in `papa.data.local_digests` computes them from files.
    """

    of_origin = ("origin", "sha256")
    """Names in a trace that matter only if a model's files are not on this machine: origin and digest of weights."""
    names = ("model", *of_origin)
    """All names in a trace that describe a model."""
    config_files: tuple[str | os.PathLike[str], ...] = ()
    """The files of the config."""

    def source(self, corpus: Corpus) -> dict[str, str]:
        """Return the digests of a corpus's files by split or name; empty if the files are only on the hub."""
        return {}

    def model(self, model: stages.ModelId) -> str | None:
        """Return the digest of a model's files; None if they are not on this machine."""
        return None

    def weights(self, model: stages.ModelId) -> str | None:
        """Return the SHA-256 of a model's weights; None if they are not on this machine."""
        return None

    def head_list(self, path: str) -> str | None:
        """Return the digest of a file with a list of heads; None if it is not on this machine."""
        return None

    def published(self) -> str:
        """Return the digest of the published results."""
        return ""

    def of(self, settings: stages.Settings) -> dict[str, str]:
        """Return the inputs of a job's trace that describe its model.

        If the model's files are on this machine, the digest of their content is used. Otherwise it is unknown, so the
        origin is used, and the digest of the weights if the config has it.
        """
        model = getattr(settings, "model", None)
        model = model.model if isinstance(model, stages.Encoding) else model
        if model is None:
            return {}
        digest = self.model(model)
        if digest is None:
            return {"origin": model.origin} | ({"sha256": model.weights} if model.weights else {})
        return {"model": digest}


def _without_irrelevant(
    current: Mapping[str, Any], recorded: Mapping[str, Any], facts: Mapping[str, Any]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the config's settings and those recorded in an artefact, without differences that change no result.

    There are three: a row limit that the training split does not reach, label names equal to those in the data, and
    the revision of a dataset, if both sides have the digest of its content. If only one has it, revisions are compared.
    """
    current, recorded = {**current}, {**recorded}
    for settings in (current, recorded):
        if "corpus" in settings:
            settings["corpus"] = {**settings["corpus"]}
            rows = facts.get("rows_available", {}).get("train")
            if rows is not None and settings["corpus"].get("train_limit", 0) >= rows:
                del settings["corpus"]["train_limit"]
    # facts contain the names in the data only if none were configured
    if "labels" not in recorded and current.get("labels") == facts.get("label_names"):
        current.pop("labels", None)
    if "hub" in current.get("corpus", {}) and "hub" in recorded.get("corpus", {}):
        known = [bool(settings.get("source")) for settings in (current, recorded)]
        for settings in (current, recorded):
            if all(known):
                settings["corpus"].pop("revision", None)
            elif any(known):
                settings.pop("source", None)
    return current, recorded


def _changed_files(settings: stages.Settings, digests: Mapping[str, str]) -> str:
    """Name the files of a corpus whose digests changed, as a clause; empty if it has no files."""
    if not isinstance(settings, stages.OfCorpus):
        return ""
    files = settings.corpus.paths.items()
    changed = [os.path.basename(path) for name, path in files if digests.get(name) != settings.source.get(name)]
    return f"{', '.join(changed)} changed" if changed else ""


def _difference(current: Mapping[str, object], recorded: Mapping[str, object], prefix: str = "") -> str:
    """Describe the first setting that differs, as a clause; empty if none does."""
    for key in sorted(current.keys() | recorded.keys()):
        new, old = current.get(key, "the default"), recorded.get(key, "the default")
        if isinstance(new, Mapping) and isinstance(old, Mapping):
            if nested := _difference(new, old, f"{prefix}{key}."):
                return nested
        elif new != old:
            if DIGEST.fullmatch(str(new)) or DIGEST.fullmatch(str(old)):
                return f"`{prefix}{key}` changed"
            reason = f"`{prefix}{key}` changed from {old} to {new}"
            return reason if len(reason) < MAX_REASON_LENGTH and "[[" not in reason else f"`{prefix}{key}` changed"
    return ""
