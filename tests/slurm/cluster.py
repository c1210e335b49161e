"""A SLURM of one node on the loopback, all of it in one folder: munged, slurmctld and slurmd of this machine."""

import getpass
import os
import secrets
import shutil
import socket
import subprocess
import time
from contextlib import contextmanager

COMMANDS = ("munged", "slurmctld", "slurmd", "sbatch", "squeue", "scancel", "scontrol")
PACKAGES = "slurmctld slurmd slurm-client munge"
NODE = "node"
CPUS = 4
MEMORY = 64_000
STARTING = 60.0
STOPPING = 10.0
"""Most seconds until the daemons are ready, and until they end."""


def missing():
    """The commands of SLURM that this machine does not have."""
    return [command for command in COMMANDS if shutil.which(command, path=_path()) is None]


class Cluster:
    """A running SLURM; `environment` is what its commands need in theirs."""

    def __init__(self, folder):
        self.folder = folder
        path = f"{folder}/bin{os.pathsep}{_path()}"
        self.environment = {"SLURM_CONF": f"{folder}/slurm.conf", "PATH": path}

    def command(self, *arguments):
        done = self.run(*arguments)
        assert done.returncode == 0, f"{' '.join(arguments)}: {done.stderr}"
        return done.stdout

    def run(self, *arguments):
        environment = os.environ | self.environment
        return subprocess.run(
            arguments, env=environment, capture_output=True, text=True, timeout=60
        )

    def running(self):
        """Ids of the running jobs, with what snakemake calls each: rule and wildcards."""
        lines = self.command(
            "squeue", "--noheader", "--states=RUNNING", "--format=%i %k"
        ).splitlines()
        return dict(line.split(maxsplit=1) for line in lines)

    def logs(self):
        return "\n".join(
            path.read_text(errors="replace")[-2000:] for path in self.folder.glob("*.log")
        )


@contextmanager
def one_node(folder):
    """Start the daemons with all that they write in `folder`; stop them at the end, whatever happened."""
    cluster = Cluster(folder)
    (folder / "munge.key").write_bytes(secrets.token_bytes(128))
    (folder / "munge.key").chmod(0o600)
    (folder / "slurm.conf").write_text(_configuration(folder))
    # a step's srun is called by snakemake without the variables of SLURM that name no job
    step = folder / "bin/srun"
    step.parent.mkdir()
    step.write_text(f'#!/bin/sh\nSLURM_CONF={folder}/slurm.conf exec {shutil.which("srun")} "$@"\n')
    step.chmod(0o755)
    started = []
    try:
        # --force: it would refuse a folder below one that others may write to
        munged = [
            "munged",
            "--foreground",
            "--force",
            f"--socket={folder}/munge.sock",
            f"--key-file={folder}/munge.key",
            f"--pid-file={folder}/munged.pid",
            f"--seed-file={folder}/munged.seed",
            f"--log-file={folder}/munged.log",
        ]
        for daemon in (munged, ["slurmctld", "-D"], ["slurmd", "-D", "-N", NODE]):
            with open(folder / f"{daemon[0]}.out.log", "wb") as out:
                environment = os.environ | cluster.environment
                # a session of its own: Ctrl-C is for the tests, which stop the daemons themselves
                started.append(
                    subprocess.Popen(
                        daemon, env=environment, stdout=out, stderr=out, start_new_session=True
                    )
                )
            if daemon is munged:
                _wait(lambda: (folder / "munge.sock").exists(), cluster, started)
        _wait(lambda: _is_idle(cluster), cluster, started)
        yield cluster
    finally:
        _stop(cluster, started)


def _configuration(folder):
    """A node of CPUS and MEMORY, whatever this machine has; no accounting, no cgroups, nothing in /etc or /var."""
    user = getpass.getuser()
    host = socket.gethostname().split(".")[0]
    control, node = _free_ports(2)
    return f"""
ClusterName=papa
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={control}
SlurmdPort={node}
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/munge
AuthInfo=socket={folder}/munge.sock
CredType=cred/munge
MpiDefault=none
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.log
PlugStackConfig={folder}/plugstack.conf
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SchedulerType=sched/backfill
SchedulerParameters=sched_interval=1,bf_interval=1,batch_sched_delay=0
SelectType=select/cons_tres
SelectTypeParameters=CR_Core_Memory
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SwitchType=switch/none
ReturnToService=2
SlurmdParameters=config_overrides
KillWait=2
MinJobAge=3600
NodeName={NODE} NodeHostname={host} NodeAddr=127.0.0.1 CPUs={CPUS} RealMemory={MEMORY} State=UNKNOWN
PartitionName=all Nodes={NODE} Default=YES MaxTime=INFINITE State=UP
"""


def _free_ports(number):
    held = [socket.create_server(("127.0.0.1", 0)) for _ in range(number)]
    ports = [one.getsockname()[1] for one in held]
    for one in held:
        one.close()
    return ports


def _path():
    """PATH with the folders of daemons, which not every user has there."""
    return os.pathsep.join(
        [os.environ.get("PATH", os.defpath), "/usr/local/sbin", "/usr/sbin", "/sbin"]
    )


def _is_idle(cluster):
    return cluster.run("sinfo", "--noheader", "--format=%T").stdout.strip() == "idle"


def _wait(ready, cluster, started):
    end = time.monotonic() + STARTING
    while not ready():
        ended = [daemon.args[0] for daemon in started if daemon.poll() is not None]
        assert not ended and time.monotonic() < end, (
            f"SLURM did not start ({ended} ended):\n{cluster.logs()}"
        )
        time.sleep(0.2)


def _stop(cluster, started):
    if len(started) == 3 and started[1].poll() is None:
        # jobs are processes of the node, which would outlive its daemon
        cluster.run("scancel", "--signal=KILL", "--full", f"--user={getpass.getuser()}")
    for daemon in reversed(started):
        daemon.terminate()
        try:
            daemon.wait(STOPPING)
        except subprocess.TimeoutExpired:
            daemon.kill()
            daemon.wait()
