"""Killed jobs resume to the same bytes; states that are not theirs are not used."""

import errno
import os
from pathlib import Path

import jobs
import pytest
import torch
from random_models import random_model
from safetensors.torch import load_file
from sizes import TRAIN

from papa.config.settings import Machine
from papa.config.stages import ModelId
from papa.files import Trace, read_table, write_table
from papa.method import averages, averaging, checkpoints, fitting, head_weights, labelled, objective, training
from papa.method.checkpoints import Checkpoint, State
from papa.method.fitting import Diverged

HOW = jobs.training(batch_size=17)
STEPS = -(-TRAIN // HOW.batch_size)
PROBE, LAMBDA = [*["step"] * STEPS, "evaluate"] * 3, ["step"] * STEPS * 3
EPOCH = len(PROBE) // 3
SOME = [1, EPOCH + 2, 2 * EPOCH - 1, 2 * EPOCH, 3 * EPOCH]
"""In the first epoch, in the middle of one, while one is evaluated, after it, and before the result is written."""


class Killed(BaseException):
    pass


class Course:
    """The steps, evaluations and results of jobs as they come; before number `killed_at` of a job it is killed."""

    def __init__(self, monkeypatch):
        self.events, self.killed_at = [], None
        for place, name, event in (
            (fitting.TrainingState, "step", "step"),
            (objective.Objective, "outcomes_on", "evaluate"),
            (training, "write_tensors", "write"),
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
        self.events, self.killed_at = [], killed_at
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
    """A stage, ready to run, and the artefacts that it makes."""
    data, how = {"tokens": folder / "tokens.parquet"}, HOW.model_copy(update={"epochs": epochs})
    run, lambdas, metric = folder / f"{name}.json", folder / f"{name}.parquet", "negative_log_perplexity"
    if "masked" not in kind:
        data["labels"], metric = folder / "labels.parquet", "token_accuracy" if "words" in kind else "accuracy"
    if kind == "average":
        average = folder / f"{name}.h5"
        return lambda: jobs.average(model, data["tokens"], average), [average]
    if kind == "lambda":
        options = {"constant": "toeplitz", "seed": 1, "encoder_dropout": True}
        return lambda: jobs.learn(model, lambdas, how, **options, **data), [lambdas]
    variant = "toeplitz-trained/all" if kind == "trained constants" else "toeplitz/all"
    if "stored" in kind:
        data["index"] = folder / "states.json"
        if not data["index"].exists():
            jobs.store(model, data["index"], variant, tokens=data["tokens"])
    options = {"variant": variant, "encoder_dropout": kind == "dropout", "seed": seed}
    artefacts = [run, run.with_suffix(".safetensors"), jobs.outcomes_of(run)]
    return lambda: jobs.probe(model, run, metric, how, **options, **data), artefacts


def checkpoints_in(folder):
    return [path for path in folder.rglob(".*.checkpoint*") if path.is_file()]


def assert_same(undisturbed, artefacts, folder):
    assert [path.read_bytes() for path in undisturbed] == [path.read_bytes() for path in artefacts]
    assert not checkpoints_in(folder), "no state is left"


def assert_resumes(course, kind, model, folder, events, moments):
    job, undisturbed = job_of(kind, model, folder, "undisturbed")
    assert course.of(job)[0] == [*events, "write"]
    job, artefacts = job_of(kind, model, folder, "killed")
    begin = 0
    for moment in moments:
        done, _ = course.of(job, killed_at=moment - begin)
        assert begin + len(done) == moment and not artefacts[0].exists()
        assert len(checkpoints_in(folder)) == 1
        begin = moment
    rest, said = course.of(job)
    assert rest == [*events, "write"][begin:]
    assert ", resumed " in said
    assert_same(undisturbed, artefacts, folder)


@pytest.mark.parametrize(
    ("corpus", "kind", "events", "moments"),
    [
        ("text", "streamed", PROBE, SOME),
        ("text", "dropout", PROBE, SOME),
        ("text", "trained constants", PROBE, SOME),
        ("text", "stored", PROBE, range(1, 3 * EPOCH + 1)),
        ("words", "stored words", PROBE, range(1, 3 * EPOCH + 1)),
        ("text", "lambda", LAMBDA, [1, STEPS + 2, 2 * STEPS, 3 * STEPS]),
        ("text", "average", ["group", "group"], [1, 2]),
    ],
    indirect=["corpus"],
)
def test_a_job_killed_again_and_again_makes_the_same_bytes(always, course, tiny, corpus, kind, events, moments):
    assert_resumes(course, kind, tiny, corpus, events, moments)


def test_masked_language_modelling_resumes_to_the_same_bytes(always, course, tmp_path):
    model = ModelId(name="electra", hub=random_model("electra"))
    texts = [f"the old nurse near the {word} sees the teacher ." for word in ["doctors", "tree", "dogs"] * 33]
    jobs.write_texts(tmp_path, train=texts[:TRAIN], validation=texts[TRAIN:])
    jobs.lay_out(model, tmp_path, 17)
    assert_resumes(course, "masked", model, tmp_path, PROBE, SOME)


@pytest.mark.parametrize("corpus", ["text"], indirect=True)
def test_a_kill_in_a_later_seed_repeats_no_earlier_one(course, tiny, corpus):
    job, undisturbed = job_of("streamed", tiny, corpus, "undisturbed", seed=(1, 2, 3))
    assert course.of(job)[0] == [*PROBE * 3, "write"]
    job, killed = job_of("streamed", tiny, corpus, "killed", seed=(1, 2, 3))
    course.of(job, killed_at=len(PROBE) + 2)
    assert [path.name for path in checkpoints_in(corpus)] == [".killed.seed-1.checkpoint"]
    done, said = course.of(job)
    assert done == [*PROBE * 2, "write"] and said.endswith("; seed 1, resumed in epoch 3")
    assert_same(undisturbed, killed, corpus)


@pytest.mark.parametrize("corpus", ["text"], indirect=True)
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
    job, artefacts = job_of("stored", tiny, corpus, "full")
    job()
    assert "continues without a checkpoint" in caplog.text and "No space left on device" in caplog.text
    assert_same(undisturbed, artefacts, corpus)


@pytest.mark.parametrize("corpus", ["text"], indirect=True)
def test_only_an_edit_makes_a_job_start_from_the_beginning(always, course, tiny, corpus, caplog):
    (first, _), (job, _) = (job_of("stored", tiny, corpus, name) for name in ("first", "second"))
    labels = corpus / "labels.parquet"
    course.of(first, killed_at=7)
    labels.write_bytes(labels.read_bytes())
    assert "resumed" in course.of(first)[1]
    course.of(job, killed_at=7)
    write_table(read_table(labels), labels, {"fingerprint": "f", "label_names": ["low", "higher"]})
    done, said = course.of(job)
    assert done == [*PROBE, "write"] and "resumed" not in said
    assert "other settings, inputs, versions" in caplog.text and not checkpoints_in(corpus)


@pytest.mark.parametrize("corpus", ["text"], indirect=True)
def test_a_resumed_job_that_diverges_keeps_the_last_good_state(always, course, tiny, corpus, monkeypatch):
    job, (run, probe, _) = job_of("stored", tiny, corpus, "run")
    course.of(job, killed_at=EPOCH + 2)
    plain = labelled.cross_entropy
    monkeypatch.setattr(labelled, "cross_entropy", lambda *args: plain(*args) * float("nan"))
    with pytest.raises(Diverged, match=r"became nan in epoch 2 .* The state after epoch 1 is saved"):
        course.of(job)
    monkeypatch.undo()
    job, (_, after_one, _) = job_of("stored", tiny, corpus, "one", epochs=1)
    job()
    kept, expected = load_file(probe.with_suffix(".seed-1.last-good.safetensors")), jobs.state_of(after_one)
    assert kept.keys() == expected.keys() and all(torch.equal(kept[name], expected[name]) for name in kept)
    assert not run.exists() and not checkpoints_in(corpus)


STATE = State({"half": torch.tensor([[1.5, -0.0]]), "numbers": torch.arange(3)}, {"steps": 3, "loss": 0.1})
TRACE = Trace("probe", 1, {"seed": 1}, {"tokens": "a"})


def checkpoint_in(folder, trace=TRACE):
    return Checkpoint(folder / "run.json", trace, Machine())


def test_nothing_damaged_is_trusted(always, tmp_path, caplog):
    checkpoint = checkpoint_in(tmp_path)
    checkpoint.save(lambda: STATE)
    intact, restored = checkpoint.path.read_bytes(), checkpoint.restore()
    assert restored.values == STATE.values
    for name, values in STATE.tensors.items():
        assert restored.tensors[name].dtype == values.dtype and torch.equal(restored.tensors[name], values)
    for content in (b"", intact[:-1], intact + b"0", intact[:-1] + bytes([intact[-1] ^ 4]), bytes(len(intact))):
        caplog.clear()
        checkpoint.path.write_bytes(content)
        assert checkpoint.restore() is None and "starts from the beginning" in caplog.text


def test_a_state_is_used_by_its_own_job_with_the_same_versions_and_threads_only(always, tmp_path, monkeypatch, caplog):
    checkpoint_in(tmp_path).save(lambda: STATE)
    others = ("lambda", 1, {"seed": 1}, "a"), ("probe", 2, {"seed": 1}, "a"), ("probe", 1, {"seed": 2}, "a")
    for stage, version, settings, tokens in (*others, ("probe", 1, {"seed": 1}, "b")):
        other = Trace(stage, version, settings, {"tokens": tokens})
        assert checkpoint_in(tmp_path, other).restore() is None and "other settings" in caplog.text
    assert Checkpoint(tmp_path / "run.json", TRACE, Machine(), "cuda").restore() is None
    for place, name, changed in ((torch, "get_num_threads", lambda: 7), (checkpoints, "version", lambda name: "9")):
        with monkeypatch.context() as patch:
            patch.setattr(place, name, changed)
            assert checkpoint_in(tmp_path).restore() is None
    assert checkpoint_in(tmp_path).restore() is not None
