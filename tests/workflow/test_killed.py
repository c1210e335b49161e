"""The workflow killed in the middle: the plain command resumes it, to the results of an undisturbed run."""

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

pytestmark = pytest.mark.slow
PLAIN = ("--cores", "2", "--configfile", "config.yaml")
KILLS = int(os.environ.get("PAPA_TEST_KILLS", "12"))
SECONDS = (3.0, 9.0)
"""How long the workflow is left alone: until jobs are at work, and until some are done."""
SEED = int(os.environ.get("PAPA_TEST_SEED", "0"))
"""Another number kills at other times."""


def kill_when(event: Callable[[], bool], process: subprocess.Popen) -> None:
    while not event():
        assert process.poll() is None, process.communicate()
        time.sleep(0.01)
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()


def saved(workflow: Copy, since: float) -> bool:
    states = (workflow.folder / "results/tiny").rglob(".*.checkpoint")
    with suppress(FileNotFoundError):  # a job that is done discards its state
        return any(state.stat().st_mtime > since for state in states)
    return False


def test_the_plain_command_resumes_after_a_kill(finished, finished_copy):
    results = finished_copy.folder / "results/tiny"
    place = "models/tiny/tasks/animals/{}/average/lambda-0/kept-1of2"
    shutil.rmtree(results / place.format("features"))
    (results / place.format("runs") / "runs.json").unlink()
    log = results / "logs" / place.format("features") / "states.log"
    log.unlink()
    kill_when(log.exists, finished_copy.started(*PLAIN))
    before = sorted(results.rglob("*"))
    all_intact(results)
    time.sleep(1)
    assert sorted(results.rglob("*")) == before, "a job continued after the workflow was killed"
    assert not (results / place.format("features") / "states.json").exists()
    finished_copy.run(*PLAIN)
    same_results(finished.folder / "results/tiny", results)
    assert finished_copy.planned() == {}


@pytest.fixture(scope="module")
def config():
    """λ and probes are long enough to be killed in the middle."""
    config = copy.deepcopy(CONFIG) | {"ranking": {"epochs": 60}}
    config["tasks"]["tags"]["epochs"] = 30
    config["tasks"]["animals"]["epochs"] = 30
    return config


def test_killed_again_and_again_it_ends_with_the_same_bytes(fresh, tmp_path, config):
    undisturbed = fresh.copied(tmp_path / "undisturbed")
    undisturbed.write(config)
    undisturbed.run(*PLAIN)
    chance, kills, resumed = random.Random(SEED), 0, 0
    while kills < KILLS:
        workflow = fresh.copied(tmp_path / f"killed-{kills}")
        workflow.write(config)
        checkpoints = workflow.folder / "papa/method/checkpoints.py"
        code = checkpoints.read_text(encoding="utf-8")
        checkpoints.write_text(code.replace("SECONDS = 600.0", "SECONDS = 0.0"), encoding="utf-8")
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
        workflow.run(*PLAIN)
        logs = (workflow.folder / "results/tiny/logs").rglob("*.log")
        resumed += sum(", resumed " in log.read_text(encoding="utf-8") for log in logs)
        same_results(undisturbed.folder / "results/tiny", workflow.folder / "results/tiny")
    assert resumed, "no job was killed in the middle of its work"


@pytest.mark.parametrize("times", [1, 2])
def test_ctrl_c_ends_with_how_to_resume_and_no_traceback(fresh_copy, config, times):
    command = [sys.executable, "-m", "papa", "run", fresh_copy.write(config), "--cores", "2"]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    process = subprocess.Popen(command, cwd=fresh_copy.folder, start_new_session=True, **pipes)
    logs = fresh_copy.folder / "results/tiny/logs"
    until = time.monotonic() + 120
    while not any(logs.rglob("*tokens.log")):  # some jobs run then, and some are starting
        assert process.poll() is None and time.monotonic() < until
        time.sleep(0.05)
    for _ in range(times):
        os.killpg(process.pid, signal.SIGINT)
        time.sleep(0.3)
    printed, _ = process.communicate(timeout=120)
    assert process.returncode == 130 and "Traceback" not in printed and "WorkflowError" not in printed, printed
    assert printed.strip().splitlines()[-1] == f"Stopped. `papa run {command[4]} --cores 2` resumes."
