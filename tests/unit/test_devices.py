"""The choice of a GPU for a job: many processes at once, with numbers in place of GPUs."""

import logging
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from papa.errors import InputError
from papa.jobs import gpu as devices

JOB = """
import os, sys, time
from pathlib import Path
from papa.jobs import gpu as devices

folder, seconds = Path(sys.argv[1]), float(sys.argv[2])
devices.RETRY_SECONDS = 0.02
print("ready", flush=True)
sys.stdin.readline()  # all begin at once
devices.claim("cuda")
device = os.environ["CUDA_VISIBLE_DEVICES"]
os.mkdir(folder / device)  # fails if another job is on it
print(device, flush=True)
time.sleep(seconds)
os.rmdir(folder / device)
"""
UUIDS = "GPU-8932f937-d72c-4106-c12f-20bd9faed9f6", "MIG-GPU-8932f937-d72c-4106-c12f-20bd9faed9f6/1/0"


@pytest.fixture(autouse=True)
def _folder_of_the_test(tmp_path, monkeypatch):
    (tmp_path / "locks").mkdir()
    monkeypatch.setenv("TMPDIR", str(tmp_path / "locks"))
    monkeypatch.setattr("tempfile.tempdir", None)  # read TMPDIR again
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)


class StillTaken(Exception):
    """This process would have waited for a GPU."""


@pytest.fixture(autouse=True)
def waits(monkeypatch):
    """The seconds that this process waited for GPUs: two times, and no third."""
    waits = []

    def sleep(seconds):
        if len(waits) == 2:
            raise StillTaken
        waits.append(seconds)

    monkeypatch.setattr(devices, "time", SimpleNamespace(sleep=sleep))
    return waits


class Jobs:
    """Processes that each take a GPU, note in a folder that they are on it, and end after some seconds."""

    def __init__(self, folder: Path):
        self.folder, self.started = folder / "taken", []
        self.folder.mkdir()

    def start(self, number: int, seconds: float, **environment: str) -> list[subprocess.Popen[str]]:
        jobs = [
            subprocess.Popen(
                [sys.executable, "-c", JOB, str(self.folder), str(seconds)],
                env=os.environ | {"PYTHONPATH": str(Path(__file__).parents[2])} | environment,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
            for _ in range(number)
        ]
        self.started += jobs
        for job in jobs:
            assert job.stdout.readline() == "ready\n"
        for job in jobs:
            job.stdin.write("\n")
            job.stdin.flush()
        return jobs


@pytest.fixture
def jobs(tmp_path):
    started = Jobs(tmp_path)
    yield started
    for job in started.started:
        job.kill()
        job.communicate()


def test_jobs_that_start_at_once_never_share_a_gpu_and_all_get_one(jobs):
    got = []
    for job in jobs.start(20, seconds=0.1, CUDA_VISIBLE_DEVICES="0,1,2"):
        output, errors = job.communicate(timeout=60)
        assert job.returncode == 0, errors
        got += output.split()
    assert len(got) == 20
    assert set(got) == {"0", "1", "2"}


def test_as_many_jobs_as_gpus_run_side_by_side(jobs):
    started = jobs.start(3, seconds=10, CUDA_VISIBLE_DEVICES="4,7,5")
    assert {job.stdout.readline().strip() for job in started} == {"4", "5", "7"}


def test_a_killed_job_gives_its_gpu_back(jobs):
    (holder,) = jobs.start(1, seconds=60, CUDA_VISIBLE_DEVICES="3")
    assert holder.stdout.readline() == "3\n"
    (waiting,) = jobs.start(1, seconds=0, CUDA_VISIBLE_DEVICES="3")
    time.sleep(0.3)
    assert waiting.poll() is None
    (jobs.folder / "3").rmdir()  # what the holder cannot do any more
    holder.send_signal(signal.SIGKILL)
    output, errors = waiting.communicate(timeout=30)
    assert (waiting.returncode, output) == (0, "3\n"), errors


def test_gpus_are_taken_by_name_in_the_order_given(tmp_path):
    folder = devices.lock_folder()
    assert [devices.take(UUIDS, folder) for _ in UUIDS] == list(UUIDS)


def test_a_job_that_waits_says_so_once(waits, caplog):
    folder = devices.lock_folder()
    devices.take(["0"], folder)
    with caplog.at_level(logging.INFO), pytest.raises(StillTaken):
        devices.take(["0"], folder)
    assert waits == [devices.RETRY_SECONDS] * 2
    (message,) = caplog.messages
    assert "all GPUs (0) are taken" in message


@pytest.mark.parametrize(
    ("given", "there"),
    [
        *(("2,0", ["2", "0"]), (" 1, 3 ", ["1", "3"]), (",".join(UUIDS), list(UUIDS))),
        *(("0,0", ["0"]), ("0,-1,1", ["0"]), ("", []), ("NoDevFiles", [])),
    ],
)
def test_gpus_are_those_of_the_environment(monkeypatch, given, there):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", given)
    assert devices.visible_gpus() == there


def test_gpus_are_counted_where_the_environment_does_not_say(monkeypatch):
    """Device files that cannot be opened are those that a cluster keeps from a job; none at all are not yet made."""
    files, driver = ["nvidia0", "nvidia1", "nvidia10"], ["0000:01:00.0", "0000:02:00.0"]
    names = {"/dev": files, devices.DRIVER: driver}
    monkeypatch.setattr(Path, "glob", lambda folder, _: iter(folder / name for name in names[str(folder)]))
    monkeypatch.setattr(os, "access", lambda path, _: Path(path).name != "nvidia1")
    assert devices.visible_gpus() == ["0", "1"]
    files.clear()
    driver.append("0000:03:00.0")
    assert devices.visible_gpus() == ["0", "1", "2"]
    driver.clear()
    assert devices.visible_gpus() == []


@pytest.mark.parametrize("device", ["cpu", "mps", "cuda:0"])
def test_nothing_is_taken_where_the_user_chose(monkeypatch, tmp_path, device):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    devices.claim(device)
    assert os.environ["CUDA_VISIBLE_DEVICES"] == "0,1"
    assert not list((tmp_path / "locks").iterdir())


@pytest.mark.parametrize("device", ["auto", "cuda"])
def test_nothing_is_hidden_where_there_are_no_gpus(monkeypatch, device):
    monkeypatch.setattr(devices, "visible_gpus", list)
    devices.claim(device)
    assert "CUDA_VISIBLE_DEVICES" not in os.environ


def test_jobs_of_slurm_do_not_wait_for_each_other(monkeypatch):
    """Each has GPUs of its own, and SLURM may call the first of every job 0."""
    folders = [devices.lock_folder()]
    for job in ("17", "18"):
        monkeypatch.setenv("SLURM_JOB_ID", job)
        folders.append(devices.lock_folder())
    assert [devices.take(["0"], folder) for folder in folders] == ["0"] * 3


def test_only_the_user_may_read_locks():
    folder = devices.lock_folder()
    assert folder == devices.lock_folder()
    assert folder.stat().st_mode & 0o777 == 0o700


def test_what_is_not_the_users_own_folder_is_refused(monkeypatch):
    folder = devices.lock_folder()
    folder.rename(folder.with_name("elsewhere"))
    folder.symlink_to("elsewhere")
    with pytest.raises(InputError, match="is not a folder that you own"):
        devices.lock_folder()
    other = os.getuid() + 1
    folder.with_name("elsewhere").rename(folder.with_name(f"papa-gpus-{other}"))
    monkeypatch.setattr(os, "getuid", lambda: other)
    with pytest.raises(InputError, match="is not a folder that you own"):
        devices.lock_folder()
