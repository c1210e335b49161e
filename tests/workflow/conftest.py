"""A copy of the workflow that really ran once, on a tiny random BERT and a few rows of text."""

import shutil

import pytest
from tiny import CONFIG, Copy, copy_of_repository, write_data, write_model


@pytest.fixture(scope="session")
def fresh(tmp_path_factory):
    """The workflow with a tiny model and its data, nothing run."""
    workflow = copy_of_repository(tmp_path_factory.mktemp("fresh"))
    write_model(workflow.folder / "models/tiny")
    write_data(workflow.folder / "data")
    return workflow


@pytest.fixture(scope="session")
def finished(fresh, tmp_path_factory):
    """The workflow after a run of `CONFIG`; `finished.printed` is what the run printed."""
    folder = tmp_path_factory.mktemp("finished") / "papa"
    shutil.copytree(fresh.folder, folder)
    workflow = Copy(folder)
    process = workflow.snakemake("--cores", "2", "--configfile", workflow.write(CONFIG))
    assert process.returncode == 0, process.stdout + process.stderr
    workflow.printed = process.stdout
    return workflow


@pytest.fixture
def finished_copy(finished, tmp_path):
    """A copy of the finished workflow whose files a test may change."""
    shutil.copytree(finished.folder, tmp_path / "papa")
    return Copy(tmp_path / "papa")
