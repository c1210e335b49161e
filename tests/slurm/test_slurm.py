"""The workflow on a real SLURM: jobs are killed while it runs, and what comes out is what a local run gives."""

import copy
import subprocess
import time
from pathlib import Path

import pytest
from tiny import CONFIG, copy_of_repository, write_data, write_model

from papa.files import read_table

pytestmark = pytest.mark.slow
# what the profile says of clusters without accounting; jobs here take seconds, and files are there at once
SLURM = (
    *("--workflow-profile", "workflow/profiles/slurm", "--slurm-no-account", "--slurm-status-command", "squeue"),
    *("--slurm-init-seconds-before-status-checks", "2", "--latency-wait", "10"),
)
SECONDS = 600.0
LAMBDA, PROBES = "rule_train_lambda_", "rule_probes-tiny-animals_"
TASK = "results/tiny/models/tiny/tasks/animals"
LOGS = "results/tiny/logs/models/tiny/tasks/animals"


class Started:
    def __init__(self, workflow, *arguments, **environment):
        self.printed, settings = workflow.folder / "printed.txt", workflow.settings()
        settings["env"] |= environment
        command = workflow.command([*arguments, "--configfile", "config.yaml"])
        with open(self.printed, "w") as out:
            self.process = subprocess.Popen(command, **settings, stdout=out, stderr=subprocess.STDOUT)

    def kill(self, cluster, name, log):
        """Kill the job of this name on the cluster, once it has its log and so is at work."""
        end = time.monotonic() + SECONDS
        while self.process.poll() is None and time.monotonic() < end:
            jobs = [number for number, called in cluster.running().items() if called.startswith(name)]
            if jobs and log.exists():
                cluster.command("scancel", *jobs)
                return
            time.sleep(0.2)
        raise AssertionError(f"No job {name} was at work:\n{self.printed.read_text(encoding='utf-8')}")

    def ended(self):
        """The exit code and the output."""
        return self.process.wait(SECONDS), self.printed.read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def runs(cluster, tmp_path_factory):
    """The folder of a local run and that of one on SLURM, in which λ's job was killed, and later a group of probes."""
    config = copy.deepcopy(CONFIG)
    config["run"]["tasks"] = ["animals"]
    config["ranking"] = {"epochs": 200}  # seconds, in which the job can be killed
    config["threads"] = 1
    local = copy_of_repository(tmp_path_factory.mktemp("runs") / "local")
    write_model(local.folder / "models/tiny")
    write_data(local.folder / "data")
    local.write(config)
    remote = local.copied(local.folder.with_name("slurm"))
    local.compute(config)

    started = []
    try:
        started.append(Started(remote, *SLURM, "--retries", "0", **cluster.environment))
        started[-1].kill(cluster, LAMBDA, remote.folder / LOGS / "average/lambda-0.log")
        status, printed = started[-1].ended()
        assert status != 0 and "'CANCELLED'" in printed, printed
        assert not (remote.folder / TASK / "average/lambda-0.parquet").exists()

        started.append(Started(remote, *SLURM, **cluster.environment))
        started[-1].kill(cluster, PROBES, remote.folder / LOGS / "runs/original/runs.log")
        status, printed = started[-1].ended()
        assert status == 0, printed
    finally:
        for process in started:
            process.process.kill()  # asked kindly it would wait for its jobs
            process.process.wait()
    return local.folder / "results/tiny", remote.folder / "results/tiny"


@pytest.mark.parametrize("form", ["parquet", "json", "safetensors", "md", "tex", "hidden"])
def test_results_are_those_of_a_local_run(runs, form):
    local, remote = ({path.relative_to(folder): path for path in folder.rglob(f"*.{form}")} for folder in runs)
    assert local and local.keys() == remote.keys()
    read = read_table if form == "parquet" else Path.read_bytes
    for name in local:
        assert read(local[name]) == read(remote[name]), name


def test_what_was_killed_is_tried_again_with_twice_the_memory(runs, cluster):
    lines = cluster.command("squeue", "--noheader", "--states=all", "--sort=i", "--format=%k %T %m").splitlines()
    states = {name: [line.split()[1:] for line in lines if line.startswith(name)] for name in (LAMBDA, PROBES)}
    assert [state for state, _ in states[LAMBDA]] == ["CANCELLED", "COMPLETED"]
    (killed, before), (again, after) = states[PROBES]
    assert (killed, again) == ("CANCELLED", "COMPLETED")
    assert int(after.rstrip("MG")) == 2 * int(before.rstrip("MG")) and before[-1] == after[-1]


def test_only_what_takes_longer_than_seconds_is_queued(runs, cluster):
    lines = cluster.command("squeue", "--noheader", "--states=all", "--format=%k").splitlines()
    encoding = {"tokenize", "average", "hidden_states", "train_lambda"}
    assert {line.split("_wildcards")[0].removeprefix("rule_") for line in lines} == encoding | {
        "probes-tiny-animals_probe"
    }
