"""The workflow with a tiny random BERT and a few rows of text: fresh, or with all results computed in this process.

Its figures are empty files: drawing takes most of a small study's time, and shows nothing that tables do not.
"""

import shutil

import pytest
from tiny import CONFIG, ONE_CORE, copy_of_repository, write_inputs


@pytest.fixture(scope="session")
def fresh(tmp_path_factory):
    """The workflow with a tiny model and its data, nothing run."""
    workflow = copy_of_repository(tmp_path_factory.mktemp("fresh")).draw_nothing()
    write_inputs(workflow.folder)
    return workflow


@pytest.fixture(scope="session")
def computed(fresh, tmp_path_factory):
    """The workflow with all results of `CONFIG`, which no test changes."""
    workflow = fresh.copied(tmp_path_factory.mktemp("computed") / "papa")
    workflow.compute(CONFIG)
    return workflow


@pytest.fixture(scope="session")
def recorded(computed, tmp_path_factory):
    """The same, with what snakemake records of the jobs that it has run."""
    workflow = computed.copied(tmp_path_factory.mktemp("recorded") / "papa")
    workflow.run("--touch", "--forceall", *ONE_CORE)
    assert [*workflow.folder.glob(".snakemake/metadata/*")]
    return workflow


def copy_of(name):
    @pytest.fixture
    def copied(request, tmp_path):
        """A workflow whose files a test may change."""
        return request.getfixturevalue(name).copied(tmp_path / "papa")

    return copied


fresh_copy = copy_of("fresh")
computed_copy = copy_of("computed")
recorded_copy = copy_of("recorded")


@pytest.fixture
def unfinished(computed_copy):
    """The finished workflow without the hidden states and the probe of an order of heads, and without its plan."""
    for lacking in (
        "tiny/states/tiny-animals-*.hidden",
        "cache/probe/tiny-animals-average-lambda-0-*",
        "tiny/plan.json",
    ):
        [path] = computed_copy.folder.glob(f"results/{lacking}")
        path.unlink()
    shutil.rmtree(computed_copy.folder / "results/tiny/jobs")
    return computed_copy
