"""The files in data/demo are those that their scripts write."""

import filecmp
import runpy

import pytest
from tiny import REPOSITORY

DEMO = REPOSITORY / "data/demo"


@pytest.mark.parametrize("script", ["write.py", "induction.py"])
def test_the_files_are_those_that_their_script_writes(script, tmp_path):
    (tmp_path / script).write_bytes((DEMO / script).read_bytes())
    (tmp_path / "write.py").write_bytes((DEMO / "write.py").read_bytes())
    runpy.run_path(str(tmp_path / script), run_name="__main__")
    written = {path.parent.relative_to(tmp_path) for path in tmp_path.glob("*/*")}
    assert written
    for folder in written:
        files = sorted(path.name for path in (DEMO / folder).iterdir())
        assert sorted(path.name for path in (tmp_path / folder).iterdir()) == files
        assert filecmp.cmpfiles(DEMO / folder, tmp_path / folder, files, shallow=False) == (
            files,
            [],
            [],
        )
