"""The workflow with a tiny random BERT and a few rows of text: fresh, computed in this process, and really run."""

import fcntl

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
def computed(fresh, tmp_path_factory):
    """The workflow with all results of `CONFIG`, which no test changes."""
    workflow = fresh.copied(tmp_path_factory.mktemp("computed") / "papa")
    workflow.compute(CONFIG)
    return workflow


@pytest.fixture(scope="session")
def finished(fresh, tmp_path_factory):
    """The workflow after a run of `CONFIG`, which slow tests compare with.

    It is made once, by the first of the processes that pytest runs at a time, and no test writes to it.
    """
    shared = tmp_path_factory.getbasetemp()
    shared = shared.parent if shared.name.startswith("popen-") else shared  # where pytest-xdist runs several
    workflow = Copy(shared / "finished/papa")
    with open(shared / "finished.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not workflow.folder.exists():
            fresh.copied(workflow.folder)
            workflow.run("--cores", "2", "--configfile", workflow.write(CONFIG))
    return workflow


def copy_of(name):
    @pytest.fixture
    def copied(request, tmp_path):
        """A workflow whose files a test may change."""
        return request.getfixturevalue(name).copied(tmp_path / "papa")

    return copied


fresh_copy, computed_copy, finished_copy = map(copy_of, ("fresh", "computed", "finished"))
