"""The whole workflow killed at 20 moments and started again each time: in the end, what an undisturbed run makes."""

import copy
import os
import random
import shutil
import signal
import subprocess
import sys
import time

import pytest
from comparing import SEALED, results_in, same_results
from tiny import CONFIG, Copy

from papa.files import check_seal

KILLS = 20
SECONDS = (3.0, 9.0)
"""How long the workflow is left alone: until jobs are at work, and until some are done."""


@pytest.fixture(scope="module")
def config():
    """λ and probes are long enough to be killed in the middle, and keep every step."""
    config = copy.deepcopy(CONFIG) | {"checkpoint_minutes": 0, "ranking": {"epochs": 60}}
    config["corpora"]["words"]["shards"] = 2
    config["tasks"]["tags"] |= {"features": "stream", "epochs": 30}
    config["tasks"]["animals"]["epochs"] = 30
    return config


def start(workflow):
    """The workflow, started as after a crash, in a process group of its own."""
    command = [sys.executable, "-m", "snakemake", "--cores", "2", "--configfile", "config.yaml"]
    unlocked = subprocess.run([*command, "--unlock"], cwd=workflow.folder, capture_output=True, text=True, check=False)
    assert unlocked.returncode == 0, unlocked.stderr
    profile = ["--workflow-profile", "workflow/profiles/default"]
    with open(workflow.folder / "printed.txt", "a", encoding="utf-8") as printed:
        return subprocess.Popen(
            [*command, *profile], cwd=workflow.folder, stdout=printed, stderr=printed, start_new_session=True
        )


def whatever_has_its_name_is_whole(folder):
    for name in results_in(folder):
        if name.endswith(SEALED) and not name.split("/")[-1].startswith("."):
            check_seal(folder / name)


def test_killed_again_and_again_it_ends_with_the_same_bytes(fresh, tmp_path, config):
    shutil.copytree(fresh.folder, tmp_path / "undisturbed")
    undisturbed = Copy(tmp_path / "undisturbed")
    undisturbed.write(config)
    process = undisturbed.snakemake("--cores", "2", "--configfile", "config.yaml")
    assert process.returncode == 0, process.stdout + process.stderr
    chance, kills, resumed = random.Random(0), 0, 0
    while kills < KILLS:
        workflow = Copy(tmp_path / f"killed-{kills}")
        shutil.copytree(fresh.folder, workflow.folder)
        workflow.write(config)
        while True:
            running = start(workflow)
            try:
                ended = running.wait(chance.uniform(*SECONDS) if kills < KILLS else 600)
            except subprocess.TimeoutExpired:
                os.killpg(running.pid, signal.SIGKILL)
                running.wait()
                kills += 1
                whatever_has_its_name_is_whole(workflow.folder / "results/tiny")
                continue
            printed = (workflow.folder / "printed.txt").read_text(encoding="utf-8")
            assert ended == 0, printed
            break
        resumed += printed.count(", resumed ")
        same_results(undisturbed.folder / "results/tiny", workflow.folder / "results/tiny")
    assert resumed, "no job was killed in the middle of its work"


def test_jobs_die_with_the_workflow(fresh, tmp_path, config):
    """What a job was writing when all was killed is taken for nothing, and nobody goes on writing it."""
    workflow = Copy(tmp_path / "killed")
    shutil.copytree(fresh.folder, workflow.folder)
    workflow.write(config)
    running = start(workflow)
    log = workflow.folder / "results/tiny/logs/models/tiny/tasks/animals/average/lambda.log"
    end = time.monotonic() + 300
    while not log.exists() and time.monotonic() < end:
        time.sleep(0.05)
    os.killpg(running.pid, signal.SIGKILL)
    running.wait()
    before = sorted(workflow.folder.rglob("*"))
    time.sleep(2)
    assert sorted(workflow.folder.rglob("*")) == before
    assert not (workflow.folder / "results/tiny/models/tiny/tasks/animals/average/lambda.parquet").exists()
