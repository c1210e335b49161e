"""What jobs request, and numbers as people read them."""

import pytest
from tiny import CONFIG, write_model

from papa.config.reading import config_of
from papa.config.study import Plan
from papa.jobs.resources import JOB_MB, MODEL_MB, memory, walltime


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
    assert [*rank.wildcards] == ["model", "task", "constant", "order"]  # as in the lines of snakemake
    assert memory(study, average) == MODEL_MB + 20 and memory(study, rank) == JOB_MB
    assert walltime(study, average) > walltime(study, rank)
    weights.unlink()
    assert memory(study, average) == MODEL_MB, "a model that is not here asks for the constant"
