"""The workflow on a real SLURM: jobs are killed while it runs, and what comes out is what a local run gives."""

import subprocess
import sys
import time

import pytest
from comparing import all_intact, same_results
from tiny import CONFIG, copy_of_repository, with_keys, write_inputs

pytestmark = pytest.mark.slow
# what the profile says of clusters without accounting; files are there at once
SLURM = (
    "--workflow-profile",
    "workflow/profiles/slurm",
    "--slurm-no-account",
    "--slurm-status-command",
    "squeue",
    "--latency-wait",
    "10",
)
SNAKEMAKE = """
import asyncio

from snakemake.cli import main
from snakemake_executor_plugin_slurm import Executor

Executor.sleep = lambda executor: asyncio.sleep(1)
main()
"""
"""Looks every second whether a job has ended; the plugin waits up to three minutes, and jobs here take seconds."""
SECONDS = 600.0
LAMBDA = "rule_learn_lambda_"
PROBES = "rule_states_"
"""Jobs that learn λ, and groups of hidden states and their probes."""
LOGS = "results/tiny/logs"


class Started:
    def __init__(self, workflow, *arguments, **environment):
        self.printed = workflow.folder / "printed.txt"
        settings = workflow.settings()
        settings["env"] |= environment
        command = [sys.executable, "-c", SNAKEMAKE, *arguments, "--configfile", "config.yaml"]
        with open(self.printed, "w") as out:
            self.process = subprocess.Popen(
                command, **settings, stdout=out, stderr=subprocess.STDOUT
            )

    def kill(self, cluster, name, logs):
        """Kill the jobs of this name on the cluster, once one has its log and so is at work."""
        end = time.monotonic() + SECONDS
        while self.process.poll() is None and time.monotonic() < end:
            jobs = [
                number for number, called in cluster.running().items() if called.startswith(name)
            ]
            if jobs and any(self.printed.parent.glob(logs)):
                cluster.command("scancel", *jobs)
                return
            time.sleep(0.2)
        raise AssertionError(
            f"No job {name} was at work:\n{self.printed.read_text(encoding='utf-8')}"
        )

    def ended(self):
        """The exit code and the output."""
        return self.process.wait(SECONDS), self.printed.read_text()


@pytest.fixture(scope="module")
def runs(cluster, tmp_path_factory):
    """The folder of a local run and that of one on SLURM, in which λ's job was killed, and later a group of probes."""
    changes = {
        "run.tasks": ["animals"],
        "ranking": {"epochs": 200},  # seconds, in which the job can be killed
        "threads": 1,
    }
    config = with_keys(CONFIG, changes)
    local = copy_of_repository(tmp_path_factory.mktemp("runs") / "local").draw_nothing()
    write_inputs(local.folder)
    local.write(config)
    remote = local.copied(local.folder.with_name("slurm"))
    local.compute(config)

    started = []
    try:
        first = Started(remote, *SLURM, "--retries", "0", **cluster.environment)
        started.append(first)
        first.kill(cluster, LAMBDA, f"{LOGS}/learn_lambda-*.log")
        status, printed = first.ended()
        assert status != 0 and "'CANCELLED'" in printed, printed
        assert not [*remote.folder.glob("results/cache/learn_lambda/*.parquet")]

        second = Started(remote, *SLURM, **cluster.environment)
        started.append(second)
        second.kill(cluster, PROBES, f"{LOGS}/probe-*.log")
        status, printed = second.ended()
        assert status == 0, printed
    finally:
        for process in started:
            process.process.kill()  # asked kindly it would wait for its jobs
            process.process.wait()
    return local.folder / "results", remote.folder / "results"


def test_results_are_those_of_a_local_run(runs):
    all_intact(runs[1])
    same_results(*runs)


def test_what_was_killed_is_tried_again_with_twice_the_memory(runs, cluster):
    lines = cluster.command(
        "squeue", "--noheader", "--states=all", "--sort=i", "--format=%k %T %m"
    ).splitlines()
    jobs = [line.split() for line in lines]
    states = [state for name, state, _ in jobs if name.startswith(LAMBDA)]
    assert states == ["CANCELLED", "COMPLETED"]
    groups = [(state, memory) for name, state, memory in jobs if name.startswith(PROBES)]
    assert {memory[-1] for _, memory in groups} == {"M"}
    killed = [int(memory[:-1]) for state, memory in groups if state == "CANCELLED"]
    completed = [int(memory[:-1]) for state, memory in groups if state == "COMPLETED"]
    assert max(completed) == 2 * killed[0]


def test_only_what_takes_longer_than_seconds_is_queued(runs, cluster):
    lines = cluster.command("squeue", "--noheader", "--states=all", "--format=%k").splitlines()
    queued = {line.split("_wildcards")[0].removeprefix("rule_") for line in lines}
    assert queued == {"tokenize", "average", "learn_lambda", "states_hidden_states_probe"}
