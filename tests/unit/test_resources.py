"""What jobs request, and numbers as people read them."""

import pytest
from tiny import CONFIG, write_model

from papa.config.reading import config_of
from papa.config.study import Plan
from papa.errors import format_bytes
from papa.jobs.resources import JOB_MB, MODEL_MB, format_duration, memory, walltime


@pytest.fixture
def study(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_model(tmp_path / "models/tiny")
    return Plan(config_of(CONFIG), tmp_path / "results")


def test_a_job_that_runs_a_model_asks_for_its_weights_four_times(study, tmp_path):
    weights = tmp_path / "models/tiny/model.safetensors"
    weights.write_bytes(b"0" * 5_000_000)
    average = study.job("average", model="tiny", laid_out="words", averaged="average")
    rank = next(job for job in study.jobs() if job.rule == "rank")
    assert memory(study, average) == MODEL_MB + 20 and memory(study, rank) == JOB_MB
    assert walltime(study, average) > walltime(study, rank)
    weights.unlink()
    assert memory(study, average) == MODEL_MB, "a model that is not here asks for the constant"


def test_numbers_as_people_say_them():
    readable = [format_duration(amount) for amount in (0.2, 40, 300, 4320, 5 * 3600, 3.4 * 86400)]
    assert readable == ["< 1 s", "40 s", "5 min", "72 min", "5.0 hours", "3.4 days"]
    readable = [format_bytes(amount) for amount in (7, 5e6, 1.25e9, 41e9, 2e12)]
    assert readable == ["7 B", "5 MB", "1.2 GB", "41 GB", "2 TB"]
