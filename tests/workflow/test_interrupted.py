"""A run that is stopped or killed, however and whenever, resumes and ends with the same results.

That every kind of job resumes to the same bytes is in tests/unit/test_checkpoints.py.
"""

import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import psutil
import pytest
from comparing import all_intact, completes, results_in, same_results
from tiny import CONFIG, ONE_CORE, with_keys

pytestmark = pytest.mark.slow
RESULTS = Path("results/tiny")


@pytest.mark.parametrize(
    ("number", "whom", "said"),
    [
        (signal.SIGINT, "everybody", "Terminating processes on user request"),
        (signal.SIGTERM, "everybody", "Interrupted: hidden_states tiny-animals"),
        (signal.SIGTERM, "snakemake", "Will exit after finishing currently running jobs"),
        (signal.SIGKILL, "everybody", ""),
        (signal.SIGKILL, "snakemake", ""),
        (signal.SIGKILL, "the job", "died with <Signals.SIGKILL: 9>"),
    ],
)
def test_stopped_in_the_middle(computed, unfinished, number, whom, said):
    """By Ctrl-C, a machine that goes down or a kill, which reach every process, or by a kill of one process only."""
    source = unfinished.folder / "papa/method/hidden.py"
    text = source.read_text()
    last = "        if not self._written.all():"
    assert text.count(last) == 1
    source.write_text(text.replace(last, f"        __import__('time').sleep(5)\n{last}"))
    process = unfinished.started(*ONE_CORE)
    while not any((unfinished.folder / RESULTS / "states").glob(".*.partial")):
        assert process.poll() is None, process.communicate()
        time.sleep(0.01)
    if whom == "the job":
        [job] = [
            each
            for each in psutil.Process(process.pid).children(recursive=True)
            if not each.children()
        ]
        job.kill()
    else:
        (os.killpg if whom == "everybody" else os.kill)(process.pid, number)
    output, errors = process.communicate()
    killed = number == signal.SIGKILL and whom != "the job"
    assert process.returncode == (-number if killed else 1)
    assert said in output + errors and "Traceback" not in output + errors, output + errors
    source.write_text(text)
    completes(unfinished, computed)


@pytest.fixture(scope="module")
def config():
    """λ and probes are long enough to be killed in the middle, and hidden states are deleted."""
    changes = {
        "ranking": {"epochs": 20},
        "run.tasks": ["animals"],
        "run.fractions": ["1/2"],
        "tasks.animals.epochs": 20,
        "floors": [],
        "keep_hidden_states": False,
    }
    return with_keys(CONFIG, changes)


@pytest.fixture(scope="module")
def undisturbed(fresh, tmp_path_factory, config):
    """The results of a run that nothing disturbs."""
    workflow = fresh.copied(tmp_path_factory.mktemp("undisturbed") / "papa")
    workflow.compute(config)
    return workflow.folder / "results"


def test_two_configs_at_once_share_one_cache(undisturbed, fresh_copy, config):
    """Both make the same files, and each file is there once, with the values of an undisturbed run."""
    names = [
        fresh_copy.write(config | {"name": name}, f"{name}.yaml") for name in ("tiny", "second")
    ]
    runs = [fresh_copy.started("--cores", "1", "--configfile", name) for name in names]
    for run in runs:
        printed = run.communicate()
        assert run.returncode == 0, printed
    results = fresh_copy.folder / "results"
    for folder in ("cache", "tiny"):
        same_results(undisturbed / folder, results / folder)
    assert len([*results_in(results / "second")]) == len([*results_in(results / "tiny")])


def test_killed_again_and_again_it_ends_with_the_same_bytes(undisturbed, fresh_copy, config):
    """While λ and a probe are trained, once each has saved a state."""
    command = ("--cores", "2", "--configfile", fresh_copy.write(config))
    checkpoints = fresh_copy.folder / "papa/method/checkpoints.py"
    checkpoints.write_text(checkpoints.read_text().replace("SECONDS = 600.0", "SECONDS = 0.0"))
    for _ in range(2):
        begun = time.time()
        running = fresh_copy.started(*command)
        while not saved(fresh_copy, begun):
            assert running.poll() is None, running.communicate()
            time.sleep(0.01)
        os.killpg(running.pid, signal.SIGKILL)
        running.communicate()
        all_intact(fresh_copy.folder / "results")
    fresh_copy.run(*command)
    logs = (fresh_copy.folder / RESULTS / "logs").rglob("*.log")
    assert any(", resumed " in log.read_text() for log in logs), "no job was killed in its work"
    same_results(undisturbed, fresh_copy.folder / "results")


def saved(workflow, since):
    with suppress(FileNotFoundError):  # a job that is done discards its state
        return any(
            state.stat().st_mtime > since
            for state in (workflow.folder / "results").rglob(".*.checkpoint")
        )
    return False


def test_ctrl_c_ends_with_how_to_resume_and_no_traceback(fresh_copy, config):
    """Also if it is pressed twice."""
    command = [sys.executable, "-m", "papa", "run", fresh_copy.write(config), "--cores", "2"]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    process = subprocess.Popen(command, cwd=fresh_copy.folder, start_new_session=True, **pipes)
    until = time.monotonic() + 120
    while not any((fresh_copy.folder / RESULTS / "logs").rglob("tokenize*.log")):
        assert process.poll() is None
        assert time.monotonic() < until
        time.sleep(0.05)
    for _ in range(2):
        os.killpg(process.pid, signal.SIGINT)
        time.sleep(0.3)
    printed, _ = process.communicate(timeout=120)
    assert process.returncode == 130 and "Traceback" not in printed, printed
    assert printed.strip().splitlines()[-1] == "Stopped. `papa run config.yaml --cores 2` resumes."
