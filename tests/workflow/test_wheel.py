"""The wheel, next to the packages of this environment: `papa run` in an empty folder, far from any clone."""

import json
import os
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest
import yaml
from tiny import CONFIG, REPOSITORY, succeeded, write_inputs

pytestmark = pytest.mark.slow
ONE_TASK = json.dumps(
    CONFIG | {"run": CONFIG["run"] | {"tasks": ["animals"], "fractions": ["1", "0"]}}
)
LONG = {name: name[0] * 64 for name in ("tiny", "sentences", "animals")}
for short, name in LONG.items():  # file names contain several of them
    ONE_TASK = ONE_TASK.replace(f'"{short}"', f'"{name}"')


def done(*command, cwd):
    """A command as in a new shell: nothing of this process's Python or of the clone is found."""
    ours = ("PYTHONPATH", "VIRTUAL_ENV", "COLUMNS")
    environment = {
        key: value
        for key, value in os.environ.items()
        if key not in ours and not key.startswith("PAPA_")
    }
    return succeeded(
        subprocess.run(
            command, cwd=cwd, env=environment, capture_output=True, text=True, timeout=3000
        )
    )


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    folder = tmp_path_factory.mktemp("wheel")
    # as for a release: the wheel is built from the source distribution
    done(sys.executable, "-m", "build", "--outdir", folder, REPOSITORY, cwd=folder)
    return next(folder.glob("papa_attention-*.whl"))


@pytest.fixture(scope="module")
def installed(wheel, tmp_path_factory):
    """The folder with the commands of an environment with the wheel; it sees no editable papa of this one."""
    folder = tmp_path_factory.mktemp("environment")
    done(sys.executable, "-m", "venv", "--without-pip", folder, cwd=folder)
    [packages] = folder.glob("lib/python*/site-packages")
    (packages / "others.pth").write_text(sysconfig.get_path("purelib") + "\n")
    pip = (sys.executable, "-m", "pip", "--python", folder / "bin/python", "install", "--quiet")
    done(*pip, "--no-deps", "--ignore-installed", wheel, cwd=folder)
    return folder / "bin"


def test_the_wheel_has_what_a_clone_has(wheel):
    """Every module, the workflow with its profiles and schema, configs and pages; and nothing of tests or results."""
    with zipfile.ZipFile(wheel) as archive:
        names = {name for name in archive.namelist() if ".dist-info/" not in name}
    listed = done("git", "ls-files", "papa", cwd=REPOSITORY).stdout.split()
    folders = ("Snakefile", "workflow", "config", "data/demo", "README.md", "docs", "results")
    carried = done("git", "ls-files", *folders, cwd=REPOSITORY).stdout.split()
    assert names == {*listed, *(f"papa/repository/{path}" for path in carried)}


def test_installed_it_runs_a_study_in_an_empty_folder(installed, tmp_path):
    write_inputs(tmp_path)
    config = json.loads(ONE_TASK) | {
        "grids": {LONG["tiny"]: {"constants": [f"average-of-{LONG['sentences']}"]}}
    }
    (tmp_path / "mine.yaml").write_text(yaml.safe_dump(config))
    for again in (False, True):  # there is nothing to do the second time, and the end is the same
        process = done(
            installed / "papa", "run", "mine.yaml", "--config", "run={seeds: [1]}", cwd=tmp_path
        )
        said = " ".join(process.stdout.split())
        assert (
            "Nothing is claimed, because no task allows a test: "
            f"{LONG['animals']} (one seed, so no interval)." in said
        )
        assert process.stdout.endswith(f"Report: results/{LONG['tiny']}/report/index.html\n")
        assert ("tokenize, 1 file: new." in process.stdout) != again
    assert (tmp_path / "results" / LONG["tiny"] / "report/index.html").stat().st_size > 10_000
    assert {path.name for path in tmp_path.iterdir()} == {
        "models",
        "data",
        "mine.yaml",
        "results",
        ".snakemake",
    }
    at = done(installed / "python", "-c", "import papa; print(papa.__file__)", cwd=tmp_path).stdout
    assert Path(at.strip()).is_relative_to(installed.parent)
