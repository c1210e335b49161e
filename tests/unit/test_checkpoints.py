"""Killed jobs resume to the same bytes; states that are not theirs are not used."""

import errno
import json
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
EPOCH = [*["step"] * STEPS, "evaluate"]
MOMENTS = {
    "in the first epoch": 1,
    "in the middle of an epoch": len(EPOCH) + 2,
    "while an epoch is evaluated": 2 * len(EPOCH) - 1,
    "right after an epoch": 2 * len(EPOCH),
    "before the result is written": 3 * len(EPOCH),
}


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
            (averages.ConstantMatrices, "save", "write"),
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
    here = json.loads(os.environ["PAPA_MACHINE"]) | {"checkpoint_minutes": 0}
    monkeypatch.setenv("PAPA_MACHINE", json.dumps(here))


def job_of(kind, model, folder, name, epochs=3):
    """A stage, ready to run, and the artefacts that it makes."""
    data, how = {"tokens": folder / "tokens.parquet"}, HOW.model_copy(update={"epochs": epochs})
    run, lambdas, metric = folder / f"{name}.json", folder / f"{name}.parquet", "negative_log_perplexity"
    if "masked" not in kind:
        data["labels"], metric = folder / "labels.parquet", "token_accuracy" if "words" in kind else "accuracy"
    if kind == "average":
        average = folder / f"{name}.h5"
        return lambda: jobs.average(model, data["tokens"], average), [average]
    if "lambda" in kind:
        more = {"settled": -0.999} if kind == "settled lambda" else {}  # any two orders have settled
        options = {"constant": "toeplitz", "seed": 1, "encoder_dropout": kind == "lambda", "more": more}
        return lambda: jobs.learn(model, lambdas, how, **options, **data), [lambdas]
    variant = "toeplitz-trained/all" if kind == "trained constants" else "toeplitz/all"
    if "stored" in kind:
        data["index"] = folder / "1of1.json"
        if not data["index"].exists():
            jobs.store(model, data["index"], variant, tokens=data["tokens"])
    options = {"variant": variant, "encoder_dropout": kind == "dropout"}
    artefacts = [run, run.with_suffix(".safetensors"), jobs.outcomes_of(run)]
    return lambda: jobs.probe(model, run, metric, how, **options, **data), artefacts


def checkpoints_in(folder):
    return [path for path in folder.rglob(".*.checkpoint*") if path.is_file()]


def assert_same(undisturbed, artefacts, folder):
    """Assert that artefacts have the same bytes, and that no state is left."""
    assert [path.read_bytes() for path in undisturbed] == [path.read_bytes() for path in artefacts]
    assert not checkpoints_in(folder)


def assert_goes_on(course, job_named, folder, moments, epoch, epochs=3):
    """A job killed at all of these moments, one after the other, makes what it makes undisturbed, no step twice."""
    job, undisturbed = job_named("undisturbed")
    assert course.of(job)[0] == [*epoch * epochs, "write"]
    job, artefacts = job_named("killed")
    begin = 0
    for moment in moments:
        done, _ = course.of(job, killed_at=moment - begin)
        assert begin + len(done) == moment and not artefacts[0].exists()
        assert len(checkpoints_in(folder)) == 1
        begin = moment
    rest, said = course.of(job)
    assert rest == [*epoch * epochs, "write"][begin:]
    assert f", resumed in epoch {min(begin // len(epoch) + 1, 3)}" in said
    assert_same(undisturbed, artefacts, folder)


@pytest.mark.parametrize("corpus", ["text"], indirect=True)
@pytest.mark.parametrize("kind", ["streamed", "dropout", "trained constants"])
def test_a_probe_through_the_encoder_resumes_to_the_same_bytes(always, course, tiny, corpus, kind):
    assert_goes_on(course, lambda name: job_of(kind, tiny, corpus, name), corpus, MOMENTS.values(), EPOCH)


@pytest.mark.parametrize("corpus", ["text", "words"], indirect=True)
def test_a_probe_on_stored_states_resumes_at_every_moment(always, course, tiny, corpus, request):
    kind = {"text": "stored", "words": "stored words"}[request.node.callspec.params["corpus"]]
    every = range(1, 3 * len(EPOCH) + 1)
    assert_goes_on(course, lambda name: job_of(kind, tiny, corpus, name), corpus, every, EPOCH)


@pytest.mark.parametrize("corpus", ["text"], indirect=True)
@pytest.mark.parametrize(("kind", "epochs"), [("lambda", 3), ("settled lambda", 2)])
def test_lambda_resumes_to_the_same_bytes(always, course, tiny, corpus, kind, epochs):
    moments = [1, STEPS + 2, *(epoch * STEPS for epoch in range(2, epochs + 1))]
    steps = ["step"] * STEPS
    assert_goes_on(course, lambda name: job_of(kind, tiny, corpus, name), corpus, moments, steps, epochs)


def test_averaging_resumes_at_every_group_to_the_same_bytes(always, course, tiny, corpus):
    job, [undisturbed] = job_of("average", tiny, corpus, "undisturbed")
    assert course.of(job)[0] == ["group", "group", "write"]
    job, [killed] = job_of("average", tiny, corpus, "killed")
    assert course.of(job, killed_at=1)[0] == ["group"] and len(checkpoints_in(corpus)) == 1
    assert course.of(job, killed_at=1)[0] == ["group"] and not killed.exists()
    done, said = course.of(job)
    assert done == ["write"] and said.endswith("67 examples, resumed after 67")
    assert killed.read_bytes() == undisturbed.read_bytes() and not checkpoints_in(corpus)


@pytest.mark.parametrize("kind", ["masked", "masked lambda"])
def test_masked_language_modelling_resumes_to_the_same_bytes(always, course, tmp_path, monkeypatch, kind):
    model = ModelId(name="electra", hub=random_model("electra"))
    texts = [f"the old nurse near the {word} sees the teacher ." for word in ["doctors", "tree", "dogs"] * 33]
    jobs.write_texts(tmp_path, train=texts[:TRAIN], validation=texts[TRAIN:])
    jobs.lay_out(model, tmp_path, 17)
    epoch, moments = EPOCH, MOMENTS.values()
    if kind == "masked lambda":
        epoch, moments = ["step"] * STEPS, [STEPS + 2, 2 * STEPS]
    assert_goes_on(course, lambda name: job_of(kind, model, tmp_path, name), tmp_path, moments, epoch)


@pytest.mark.parametrize("corpus", ["text"], indirect=True)
def test_a_kill_in_a_later_seed_repeats_no_earlier_one(monkeypatch, course, tiny, corpus):
    """Without a state that was saved on the way, a finished probe waits for the others."""
    here = json.loads(os.environ["PAPA_MACHINE"]) | {"checkpoint_minutes": 60}
    monkeypatch.setenv("PAPA_MACHINE", json.dumps(here))
    data = {"tokens": corpus / "tokens.parquet", "labels": corpus / "labels.parquet"}

    def job_named(name):
        run = corpus / f"{name}.json"
        files = [run, run.with_suffix(".safetensors"), jobs.outcomes_of(run)]
        return lambda: jobs.probe(tiny, run, how=HOW, seed=(1, 2, 3), **data), files

    job, undisturbed = job_named("undisturbed")
    one_seed = [*EPOCH * 3]
    assert course.of(job)[0] == [*one_seed * 3, "write"]
    job, killed = job_named("killed")
    course.of(job, killed_at=len(one_seed) + 2)
    assert [path.name for path in checkpoints_in(corpus)] == [".killed.seed-1.checkpoint"]
    done, said = course.of(job)
    assert done == [*one_seed * 2, "write"] and said.endswith("; seed 1, resumed in epoch 3")
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
        return plain(path, content)

    monkeypatch.setattr(Path, "write_bytes", full)
    job, artefacts = job_of("stored", tiny, corpus, "full")
    job()
    assert "continues without a checkpoint" in caplog.text and "No space left on device" in caplog.text
    assert_same(undisturbed, artefacts, corpus)


@pytest.mark.parametrize("corpus", ["text"], indirect=True)
def test_after_an_edit_a_job_starts_from_the_beginning(always, course, tiny, corpus, caplog):
    job, _ = job_of("stored", tiny, corpus, "run")
    course.of(job, killed_at=7)
    labels = corpus / "labels.parquet"
    write_table(read_table(labels), labels, {"fingerprint": "f", "label_names": ["low", "higher"]})
    done, said = course.of(job)
    assert done == [*EPOCH * 3, "write"] and "resumed" not in said
    assert "other settings, inputs, versions" in caplog.text and not checkpoints_in(corpus)


@pytest.mark.parametrize("corpus", ["text"], indirect=True)
def test_a_job_resumes_if_an_input_is_written_again_with_the_same_content(always, course, tiny, corpus):
    job, _ = job_of("stored", tiny, corpus, "run")
    course.of(job, killed_at=7)
    labels = corpus / "labels.parquet"
    labels.write_bytes(labels.read_bytes())
    assert "resumed" in course.of(job)[1]


@pytest.mark.parametrize("corpus", ["text"], indirect=True)
def test_a_resumed_job_that_diverges_keeps_the_last_good_state(always, course, tiny, corpus, monkeypatch):
    job, (run, probe, _) = job_of("stored", tiny, corpus, "run")
    course.of(job, killed_at=len(EPOCH) + 2)
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


def checkpoint_in(folder, minutes=0, trace=TRACE):
    return Checkpoint(folder / "run.json", trace, Machine(checkpoint_minutes=minutes))


def test_a_state_comes_back_as_it_was(tmp_path):
    checkpoint_in(tmp_path).save(lambda: STATE)
    assert [path.name for path in tmp_path.iterdir()] == [".run.json.checkpoint"]
    checkpoint = checkpoint_in(tmp_path)
    restored = checkpoint.restore()
    assert restored.values == STATE.values and restored.tensors.keys() == STATE.tensors.keys()
    for name, values in STATE.tensors.items():
        assert restored.tensors[name].dtype == values.dtype and torch.equal(restored.tensors[name], values)
    (tmp_path / "..run.json.checkpoint.77.partial").write_bytes(b"left by a kill")
    checkpoint.discard()
    assert not list(tmp_path.iterdir()) and checkpoint.restore() is None


def test_nothing_damaged_is_trusted(tmp_path, caplog):
    checkpoint = checkpoint_in(tmp_path)
    checkpoint.save(lambda: STATE)
    intact = checkpoint.path.read_bytes()
    flipped = [intact[:place] + bytes([intact[place] ^ 4]) + intact[place + 1 :] for place in range(0, len(intact), 7)]
    for content in (*flipped, b"", intact[:-1], intact + b"0", intact[: len(intact) // 2], bytes(len(intact))):
        caplog.clear()
        checkpoint.path.write_bytes(content)
        restored = checkpoint.restore()
        assert restored is None or restored.values == STATE.values  # a space in the header may become another
        assert restored is not None or "starts from the beginning" in caplog.text
        for name in STATE.tensors if restored else ():
            assert torch.equal(restored.tensors[name], STATE.tensors[name])


@pytest.mark.parametrize(
    "other",
    [
        Trace("lambda", 1, {"seed": 1}, {"tokens": "a"}),
        Trace("probe", 2, {"seed": 1}, {"tokens": "a"}),
        Trace("probe", 1, {"seed": 2}, {"tokens": "a"}),
        Trace("probe", 1, {"seed": 1}, {"tokens": "b"}),
    ],
)
def test_a_state_is_used_by_its_own_job_only(tmp_path, caplog, other):
    checkpoint_in(tmp_path).save(lambda: STATE)
    assert checkpoint_in(tmp_path, trace=other).restore() is None and "other settings" in caplog.text
    assert Checkpoint(tmp_path / "run.json", TRACE, Machine(), "cuda").restore() is None
    assert checkpoint_in(tmp_path, minutes=60).restore() is not None


def test_a_state_is_used_with_the_same_versions_and_threads_only(tmp_path, monkeypatch):
    checkpoint_in(tmp_path).save(lambda: STATE)
    with monkeypatch.context() as patch:
        patch.setattr(torch, "get_num_threads", lambda: 7)
        assert checkpoint_in(tmp_path).restore() is None
    with monkeypatch.context() as patch:
        patch.setattr(checkpoints, "version", lambda name: "9" if name == "torch" else "1")
        assert checkpoint_in(tmp_path).restore() is None
    assert checkpoint_in(tmp_path).restore() is not None


def test_states_are_saved_when_it_is_time(tmp_path, monkeypatch):
    clock, saved = [1000.0], []
    monkeypatch.setattr(checkpoints.time, "monotonic", lambda: clock[0])
    checkpoint = checkpoint_in(tmp_path, minutes=2)
    for seconds in (119, 0, 2, 1, 118, 2):
        clock[0] += seconds
        checkpoint.save(lambda: saved.append(clock[0]) or STATE)
    assert saved == [1121.0, 1242.0]


def test_a_folder_that_takes_no_file_is_survived(tmp_path, caplog):
    (tmp_path / "folder").write_text("a file")
    checkpoint = checkpoint_in(tmp_path / "folder")
    checkpoint.save(lambda: STATE)
    assert "continues without a checkpoint" in caplog.text
    assert checkpoint.restore() is None
    checkpoint.discard()
