"""The workflow with a tiny random BERT and a few rows of text: fresh, or with all results computed in this process."""

import pytest
from tiny import CONFIG, copy_of_repository, write_inputs


@pytest.fixture(scope="session")
def fresh(tmp_path_factory):
    """The workflow with a tiny model and its data, nothing run."""
    workflow = copy_of_repository(tmp_path_factory.mktemp("fresh"))
    write_inputs(workflow.folder)
    return workflow


@pytest.fixture(scope="session")
def computed(fresh, tmp_path_factory):
    """The workflow with all results of `CONFIG`, which no test changes."""
    workflow = fresh.copied(tmp_path_factory.mktemp("computed") / "papa")
    workflow.compute(CONFIG)
    return workflow


def copy_of(name):
    @pytest.fixture
    def copied(request, tmp_path):
        """A workflow whose files a test may change."""
        return request.getfixturevalue(name).copied(tmp_path / "papa")

    return copied


fresh_copy, computed_copy = map(copy_of, ("fresh", "computed"))
