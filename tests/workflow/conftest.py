"""The workflow with a tiny random BERT and a few rows of text: fresh, computed in this process, and really run."""

import fcntl

import pytest
import yaml
from tiny import CONFIG, REPOSITORY, Copy, copy_of_repository, empty_figure, write_data, write_model

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
    """The workflow with all results of `CONFIG`, with empty figures, which no test changes.

    They are computed in this process: a run of the workflow loads the libraries again for each of its 36 jobs.
    """
    workflow = fresh.copied(tmp_path_factory.mktemp("computed") / "papa")
    workflow.write(CONFIG)
    config = config_of(CONFIG)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(workflow.folder)
        patch.setattr("papa.results.analysis.save_figure", empty_figure)
        run_here(Study(config, "results/tiny", LocalSourceDigests(config.machine)))
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
