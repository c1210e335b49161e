"""Killed jobs resume to the same bytes; states that are not theirs are not used."""

import errno
import os
from dataclasses import replace
from pathlib import Path

import jobs
import pytest
import torch
from random_models import random_model
from refusals import input_error
from sizes import TRAIN
from tiny import with_a_flipped_bit

from papa.config.settings import Machine
from papa.method import (
    averages,
    averaging,
    checkpoints,
    head_weights,
    objectives,
    training,
)
from papa.method.checkpoints import Checkpoint, State
from papa.stages import Probe

HOW = jobs.training(batch_size=17)
STEPS = -(-TRAIN // HOW.batch_size)
LAMBDA = ["step"] * STEPS * 3
PROBE = [*LAMBDA, "evaluate"]
EVERY = range(1, 3 * STEPS + 1)
SOME = [1, STEPS + 2, 2 * STEPS, 3 * STEPS]
"""In the first epoch, in the middle of one, after it, and before predictions."""


class Killed(BaseException):
    pass


class Course:
    """The steps, evaluations and results of jobs as they come; before number `killed_at` of a job it is killed."""

    def __init__(self, monkeypatch):
        self.events = []
        self.killed_at = None
        for place, name, event in (
            (training.TrainingState, "step", "step"),
            (objectives.Objective, "outcomes_on", "evaluate"),
            (training, "write_table", "write"),
            (head_weights, "write_table", "write"),
            (averaging.Averaging, "add_group", "group"),
            (averages.Constants, "save", "write"),
        ):
            monkeypatch.setattr(place, name, self.noting(getattr(place, name), event))

    def noting(self, function, event):
        def noted(*args, **kwargs):
            if len(self.events) == self.killed_at:
                raise Killed
            self.events.append(event)
            return function(*args, **kwargs)

        return noted

    def of(self, job, killed_at=None):
        """The events of a job before it was killed or done, and its message."""
        self.events = []
        self.killed_at = killed_at
        try:
            said = job()
        except Killed:
            said = None
        assert (said is None) == (killed_at is not None)
        return self.events, said


@pytest.fixture
def course(monkeypatch):
    return Course(monkeypatch)


@pytest.fixture
def always(monkeypatch, tiny):
    """States are saved after every step."""
    monkeypatch.setattr(checkpoints, "SECONDS", 0)


def job_of(kind, model, folder, name, epochs=3, seed=1):
    """A stage, ready to run, and the artefact that it makes."""
    data = {"tokens": folder / "tokens.parquet"}
    how = HOW.model_copy(update={"epochs": epochs})
    made = folder / f"{name}.{'h5' if kind == 'average' else 'parquet'}"
    if kind == "average":
        return lambda: jobs.average(model, data["tokens"], made), made
    if kind != "masked":
        data["labels"] = folder / "labels.parquet"
    if kind == "lambda":
        options = {"constant": "toeplitz", "seed": 1, "encoder_dropout": True}
        return lambda: jobs.learn(model, made, how, **options, **data), made
    options = {"variant": "toeplitz-trained/all" if kind == "trained constants" else "toeplitz/all"}
    if kind == "stored":
        options = {"states": folder / "states.hidden"}
        if not options["states"].exists():
            jobs.store(model, options["states"], "toeplitz/all", tokens=data["tokens"])
    options |= {"encoder_dropout": kind == "dropout", "seed": seed}
    options |= {"metric": "negative_log_perplexity"} if kind == "masked" else {}
    return lambda: jobs.probe(model, made, how, **options, **data), made


def checkpoints_in(folder):
    return [path for path in folder.rglob(".*.checkpoint*") if path.is_file()]


def assert_same(undisturbed, made, folder):
    assert undisturbed.read_bytes() == made.read_bytes()
    assert not checkpoints_in(folder), "no state is left"


def assert_resumes(course, kind, model, folder, events, moments):
    job, undisturbed = job_of(kind, model, folder, "undisturbed")
    assert course.of(job)[0] == [*events, "write"]
    job, made = job_of(kind, model, folder, "killed")
    begin = 0
    for moment in moments:
        done, _ = course.of(job, killed_at=moment - begin)
        assert begin + len(done) == moment
        assert not made.exists()
        assert len(checkpoints_in(folder)) == 1
        begin = moment
    rest, said = course.of(job)
    assert rest == [*events, "write"][begin:]
    assert "resumed " in said
    assert_same(undisturbed, made, folder)


@pytest.mark.parametrize(
    ("corpus", "kind", "events", "moments"),
    [
        ("text", "streamed", PROBE, SOME),
        ("text", "dropout", PROBE, SOME),
        ("text", "trained constants", PROBE, SOME),
        ("text", "stored", PROBE, EVERY),
        ("words", "stored", PROBE, EVERY),
        ("text", "lambda", LAMBDA, SOME),
        ("text", "average", ["group", "group"], [1, 2]),
    ],
    indirect=["corpus"],
)
def test_a_job_killed_again_and_again_makes_the_same_bytes(
    always, course, tiny, corpus, kind, events, moments
):
    assert_resumes(course, kind, tiny, corpus, events, moments)


def test_masked_language_modelling_resumes_to_the_same_bytes(always, course, tmp_path):
    model = random_model("electra")
    texts = [
        f"the old nurse near the {word} sees the teacher ."
        for word in ["doctors", "tree", "dogs"] * 33
    ]
    jobs.write_texts(tmp_path, train=texts[:TRAIN], validation=texts[TRAIN:])
    jobs.lay_out(model, tmp_path, 17)
    assert_resumes(course, "masked", model, tmp_path, PROBE, SOME)


@jobs.TEXTS
def test_a_full_disk_stops_no_training(always, tiny, corpus, monkeypatch, caplog):
    job, undisturbed = job_of("stored", tiny, corpus, "undisturbed")
    job()
    plain = Path.write_bytes

    def full(path, content):
        plain(path, content[:100])
        if "checkpoint" in path.name:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        plain(path, content)

    monkeypatch.setattr(Path, "write_bytes", full)
    job, made = job_of("stored", tiny, corpus, "full")
    job()
    assert "continues without a checkpoint" in caplog.text
    assert "No space left on device" in caplog.text
    assert_same(undisturbed, made, corpus)


@jobs.TEXTS
def test_another_job_starts_from_the_beginning(always, course, tiny, corpus, caplog):
    course.of(job_of("stored", tiny, corpus, "run")[0], killed_at=7)
    done, said = course.of(job_of("stored", tiny, corpus, "run", seed=2)[0])
    assert done == [*PROBE, "write"]
    assert "resumed" not in said
    assert "other settings, inputs, versions" in caplog.text
    assert not checkpoints_in(corpus)


@jobs.TEXTS
def test_a_resumed_job_that_diverges_says_in_which_epoch(always, course, tiny, corpus, monkeypatch):
    job, run = job_of("stored", tiny, corpus, "run")
    course.of(job, killed_at=STEPS + 2)
    plain = objectives.cross_entropy
    monkeypatch.setattr(objectives, "cross_entropy", lambda *args: plain(*args) * float("nan"))
    with input_error(r"became nan in epoch 2 "):
        course.of(job)
    assert not run.exists()
    assert not checkpoints_in(corpus)


STATE = State(
    {"half": torch.tensor([[1.5, -0.0]]), "numbers": torch.arange(3)}, {"steps": 3, "loss": 0.1}
)


def checkpoint_in(folder, device="cpu", how=HOW, seed=1, machine=jobs.MACHINE, tokens="a"):
    job = jobs.job(
        Probe(kind="text", training=how, seed=seed), folder / "run.parquet", machine=machine
    )
    return Checkpoint(replace(job, record=job.settings.record({"tokens": tokens})), device)


def test_nothing_damaged_is_trusted(always, tmp_path, caplog):
    checkpoint = checkpoint_in(tmp_path)
    checkpoint.save(lambda: STATE)
    intact = checkpoint.path.read_bytes()
    restored = checkpoint.restore()
    assert restored.values == STATE.values
    for name, values in STATE.tensors.items():
        assert restored.tensors[name].dtype == values.dtype
        assert torch.equal(restored.tensors[name], values)
    for content in (
        b"",
        intact[:-1],
        intact + b"0",
        with_a_flipped_bit(intact, len(intact) - 1),
        bytes(len(intact)),
    ):
        caplog.clear()
        checkpoint.path.write_bytes(content)
        assert checkpoint.restore() is None
        assert "starts from the beginning" in caplog.text


def test_a_state_is_used_by_its_own_job_with_the_same_versions_and_threads_only(
    always, tmp_path, monkeypatch, caplog
):
    checkpoint_in(tmp_path).save(lambda: STATE)
    assert checkpoint_in(tmp_path).restore() is not None
    others = [{"how": jobs.training(epochs=1)}, {"seed": 2}, {"tokens": "b"}, {"device": "cuda"}]
    for changes in (*others, {"machine": Machine(device="cpu", token_budget=38)}):
        caplog.clear()
        assert (
            checkpoint_in(tmp_path, **changes).restore() is None and "other settings" in caplog.text
        ), changes
    places = (
        (torch, "get_num_threads", lambda: 7),
        (checkpoints, "version", lambda name: "9"),
        (Probe, "version", 0),
    )
    for place, name, changed in places:
        with monkeypatch.context() as patch:
            patch.setattr(place, name, changed)
            assert checkpoint_in(tmp_path).restore() is None
    assert checkpoint_in(tmp_path).restore() is not None
