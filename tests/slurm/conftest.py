"""A SLURM for the tests, where this machine has its commands."""

import os

import pytest
from cluster import PACKAGES, missing, one_node


@pytest.fixture(scope="session")
def cluster(tmp_path_factory):
    lacking = missing()
    if lacking:
        why = f"no {', '.join(lacking)}; on Debian: apt-get install {PACKAGES}"
        # where it must be tested, as in continuous integration, a skip would pass for a success
        pytest.fail(why) if os.environ.get("PAPA_REQUIRE_SLURM") else pytest.skip(why)
    with one_node(tmp_path_factory.mktemp("slurm")) as running:
        yield running
