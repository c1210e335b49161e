"""The workflow killed in the middle: the plain command goes on, and in the end all is what an undisturbed run makes."""

import copy
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress

import pytest
from comparing import all_intact, same_results
from tiny import CONFIG, Copy

PLAIN = ("--cores", "2", "--configfile", "config.yaml")
KILLS = 12
SECONDS = (3.0, 9.0)
"""How long the workflow is left alone: until jobs are at work, and until some are done."""


def kill_when(event: Callable[[], bool], process: subprocess.Popen) -> None:
    """Kill all processes of a workflow as soon as something is so."""
    while not event():
        assert process.poll() is None, process.communicate()
        time.sleep(0.01)
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()


def saved(workflow: Copy, since: float) -> bool:
    """Whether a job has saved a state since then."""
    states = (workflow.folder / "results/tiny").rglob(".*.checkpoint")
    with suppress(FileNotFoundError):  # a job that is done discards its state
        return any(state.stat().st_mtime > since for state in states)
    return False


@pytest.mark.slow
def test_the_plain_command_goes_on_after_a_kill(finished, finished_copy):
    results = finished_copy.folder / "results/tiny"
    own = "models/tiny/tasks/animals/{}/average/lambda-0/kept-1of2"
    shutil.rmtree(results / own.format("features"))
    (results / own.format("runs") / "runs.json").unlink()
    log = results / "logs" / own.format("features") / "1of1.log"
    log.unlink()
    kill_when(log.exists, finished_copy.started(*PLAIN))
    before = sorted(results.rglob("*"))
    all_intact(results)
    time.sleep(1)
    assert sorted(results.rglob("*")) == before, "a job went on after the workflow was killed"
    assert not (results / own.format("features") / "1of1.json").exists()
    process = finished_copy.snakemake(*PLAIN)
    assert process.returncode == 0, process.stdout + process.stderr
    same_results(finished.folder / "results/tiny", results)
    assert finished_copy.planned() == {}


@pytest.fixture(scope="module")
def config():
    """λ and probes are long enough to be killed in the middle, and keep every step."""
    config = copy.deepcopy(CONFIG) | {"checkpoint_minutes": 0, "ranking": {"epochs": 60}}
    config["corpora"]["words"]["shards"] = 2
    config["tasks"]["tags"] |= {"features": "stream", "epochs": 30}
    config["tasks"]["animals"]["epochs"] = 30
    return config


@pytest.mark.slow
def test_killed_again_and_again_it_ends_with_the_same_bytes(fresh, tmp_path, config):
    shutil.copytree(fresh.folder, tmp_path / "undisturbed", symlinks=True)
    undisturbed = Copy(tmp_path / "undisturbed")
    undisturbed.write(config)
    process = undisturbed.snakemake(*PLAIN)
    assert process.returncode == 0, process.stdout + process.stderr
    chance, kills, resumed = random.Random(0), 0, 0
    while kills < KILLS:
        workflow = Copy(tmp_path / f"killed-{kills}")
        shutil.copytree(fresh.folder, workflow.folder, symlinks=True)
        workflow.write(config)
        while kills < KILLS:
            begun, running = time.time(), workflow.started(*PLAIN)
            until = time.monotonic() + chance.uniform(*SECONDS)
            # every second time wherever the workflow is, else in the middle of a training
            while running.poll() is None and (time.monotonic() < until or (kills % 2 and not saved(workflow, begun))):
                time.sleep(0.05)
            if running.poll() is not None:
                break
            kill_when(lambda: True, running)
            kills += 1
            all_intact(workflow.folder / "results/tiny")
        process = workflow.snakemake(*PLAIN)
        assert process.returncode == 0, process.stdout + process.stderr
        logs = (workflow.folder / "results/tiny/logs").rglob("*.log")
        resumed += sum(", resumed " in log.read_text(encoding="utf-8") for log in logs)
        same_results(undisturbed.folder / "results/tiny", workflow.folder / "results/tiny")
    assert resumed, "no job was killed in the middle of its work"


@pytest.mark.slow
@pytest.mark.parametrize("times", [1, 2])
def test_ctrl_c_ends_with_how_to_resume_and_no_traceback(fresh, tmp_path, config, times):
    shutil.copytree(fresh.folder, tmp_path / "papa", symlinks=True)
    workflow = Copy(tmp_path / "papa")
    command = [sys.executable, "-m", "papa.cli", "run", workflow.write(config), "--cores", "2"]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    process = subprocess.Popen(command, cwd=workflow.folder, start_new_session=True, **pipes)
    logs = workflow.folder / "results/tiny/logs"
    until = time.monotonic() + 120
    while not any(logs.rglob("*tokens.log")):  # some jobs run then, and some are starting
        assert process.poll() is None and time.monotonic() < until
        time.sleep(0.05)
    for _ in range(times):
        os.killpg(process.pid, signal.SIGINT)
        time.sleep(0.3)
    printed, _ = process.communicate(timeout=120)
    assert process.returncode == 1 and "Traceback" not in printed and "WorkflowError" not in printed, printed
    assert printed.strip().splitlines()[-1] == f"Stopped. `papa run {command[4]} --cores 2` resumes."
