"""A copy of the workflow that really ran once, on a tiny random BERT and a few rows of text."""

import fcntl
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
    """The workflow after a run of `CONFIG`; `finished.printed` is what the run printed.

    It is made once, by the first of the processes that pytest runs at a time, and no test writes to it.
    """
    shared = tmp_path_factory.getbasetemp()
    shared = shared.parent if shared.name.startswith("popen-") else shared  # where pytest-xdist runs several
    workflow, printed = Copy(shared / "finished/papa"), shared / "finished/printed.txt"
    with open(shared / "finished.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not printed.exists():
            shutil.copytree(fresh.folder, workflow.folder, symlinks=True)
            process = workflow.run("--cores", "2", "--configfile", workflow.write(CONFIG))
            printed.write_text(process.stdout + process.stderr, encoding="utf-8")
    workflow.printed = printed.read_text(encoding="utf-8")
    return workflow


@pytest.fixture
def fresh_copy(fresh, tmp_path):
    """A copy of the workflow, nothing run, whose files a test may change."""
    shutil.copytree(fresh.folder, tmp_path / "papa", symlinks=True)
    return Copy(tmp_path / "papa")


@pytest.fixture
def finished_copy(finished, tmp_path):
    """A copy of the finished workflow whose files a test may change."""
    shutil.copytree(finished.folder, tmp_path / "papa", symlinks=True)
    return Copy(tmp_path / "papa")
