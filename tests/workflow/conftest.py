"""The workflow with a tiny random BERT and a few rows of text: fresh, computed in this process, and really run."""

import fcntl
import shutil

import pytest
import yaml
from tiny import CONFIG, REPOSITORY, Copy, copy_of_repository, write_data, write_model

from papa.config.reading import config_of
from papa.config.study import Study
from papa.data.local_digests import LocalSourceDigests
from papa.jobs.measure import run_here


@pytest.fixture(scope="module")
def results_of(tmp_path_factory):
    """Run a changed config of the project where nothing is cached; returns the folder of its results."""

    def run(name, change):
        workflow = copy_of_repository(tmp_path_factory.mktemp(name))
        config = yaml.safe_load((REPOSITORY / f"config/{name}.yaml").read_text(encoding="utf-8"))
        change(config)
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("XDG_CACHE_HOME", str(workflow.folder / "cache"))
            workflow.run("--cores", "2", "--configfile", workflow.write(config))
        return workflow.folder / "results" / name

    return run


@pytest.fixture(scope="session")
def fresh(tmp_path_factory):
    """The workflow with a tiny model and its data, nothing run."""
    workflow = copy_of_repository(tmp_path_factory.mktemp("fresh"))
    write_model(workflow.folder / "models/tiny")
    write_data(workflow.folder / "data")
    return workflow


@pytest.fixture(scope="session")
def computed(fresh, tmp_path_factory):
    """The workflow with all results of `CONFIG`, which no test changes.

    They are computed in this process: a run of the workflow loads the libraries again for each of its 36 jobs.
    """
    workflow = Copy(tmp_path_factory.mktemp("computed") / "papa")
    shutil.copytree(fresh.folder, workflow.folder, symlinks=True)
    workflow.write(CONFIG)
    config = config_of(CONFIG)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(workflow.folder)
        run_here(Study(config, "results/tiny", LocalSourceDigests(config.machine)))
    return workflow


@pytest.fixture
def computed_copy(computed, tmp_path):
    """A copy of the workflow with its results, whose files a test may change."""
    shutil.copytree(computed.folder, tmp_path / "papa", symlinks=True)
    return Copy(tmp_path / "papa")


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
            shutil.copytree(fresh.folder, workflow.folder, symlinks=True)
            workflow.run("--cores", "2", "--configfile", workflow.write(CONFIG))
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
