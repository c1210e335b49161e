"""Jobs in containers: a stand-in for apptainer records how it is called, and runs jobs with the image's papa."""

import json
import os
import shutil
import sys

import pytest
from tiny import CONFIG, REPOSITORY, with_keys

IMAGE_PYTHON = """#!/bin/sh
PYTHONPATH="${{PYTHONPATH:+$PYTHONPATH:}}{image}" exec {python} "$@"
"""
APPTAINER = """#!{python}
import json, os, sys
if sys.argv[1:] == ["--version"]:
    sys.exit(print("apptainer version 1.4.0"))
words = sys.argv[1:]
at = words.index("{image}/papa.sif")
with open("{image}/calls.jsonl", "a") as file:
    file.write(json.dumps({{"options": words[:at], "bind": os.environ.get("APPTAINER_BIND")}}) + "\\n")
inside = dict(os.environ, PATH="{image}/bin:" + os.environ["PATH"])
for name in list(inside):
    if name.startswith("APPTAINERENV_"):
        inside[name.removeprefix("APPTAINERENV_")] = inside.pop(name)
os.execvpe(words[at + 1], words[at + 1 :], inside)
"""


@pytest.fixture
def image(tmp_path, monkeypatch):
    """A folder with a python of its own, in which papa is another copy that records which rules it ran."""
    image = tmp_path / "image"
    shutil.copytree(REPOSITORY / "papa", image / "papa", ignore=shutil.ignore_patterns("__pycache__"))
    with open(image / "papa/jobs/stage.py", "a", encoding="utf-8") as file:
        file.write(f"\nwith open({str(image / 'jobs')!r}, 'a') as file:\n    file.write(f'{{__file__}}\\n')\n")
    (image / "papa.sif").touch()
    for path, text in {"bin/python": IMAGE_PYTHON, "host/apptainer": APPTAINER}.items():
        (image / path).parent.mkdir()
        (image / path).write_text(text.format(image=image, python=sys.executable), encoding="utf-8")
        (image / path).chmod(0o755)
    monkeypatch.setenv("PATH", f"{image}/host:{os.environ['PATH']}")
    return image


@pytest.mark.slow
def test_jobs_run_in_the_image_and_see_models_and_data_elsewhere(image, fresh_copy, tmp_path):
    for folder in ("models", "data"):
        shutil.move(fresh_copy.folder / folder, tmp_path / "far" / folder)
    (fresh_copy.folder / "data").symlink_to(tmp_path / "far/data")
    model = str(tmp_path / "far/models/tiny")
    contained = {"models.tiny.path": model, "container": str(image / "papa.sif"), "run.tasks": ["animals"]}
    config = fresh_copy.write(with_keys(CONFIG, contained))
    fresh_copy.run("--cores", "2", "--configfile", config, "--sdm", "apptainer", "--until", "average")
    calls = [json.loads(line) for line in (image / "calls.jsonl").read_text(encoding="utf-8").splitlines()]
    jobs = (image / "jobs").read_text(encoding="utf-8").splitlines()
    assert jobs == [str(image / "papa/jobs/stage.py")] * len(calls) and len(calls) == 3
    for call in calls:
        assert call["options"][:3] == ["exec", "--home", str(fresh_copy.folder)]
        assert set(call["bind"].split(",")) == {str(tmp_path / "far/data"), model}
    [_] = (fresh_copy.folder / "results/tiny").rglob("average.h5")


def test_an_image_that_does_not_exist_is_refused(fresh):
    process = fresh.snakemake("-n", "--configfile", fresh.write(CONFIG | {"container": "papa.sif"}, "contained.yaml"))
    assert process.returncode == 1
    assert "Config error: container: there is no image papa.sif (relative paths start from" in process.stderr
