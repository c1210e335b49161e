"""The choice of a GPU for a job: many processes at once, with numbers in place of GPUs."""

import os
import signal
import subprocess
import time
from pathlib import Path

import pytest
from refusals import input_error
from tiny import python_process

from papa.run import gpu as devices

JOB = """
import os, sys, time
from pathlib import Path
from papa.run import gpu as devices

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
UUIDS = (
    "GPU-8932f937-d72c-4106-c12f-20bd9faed9f6",
    "MIG-GPU-8932f937-d72c-4106-c12f-20bd9faed9f6/1/0",
)


@pytest.fixture(autouse=True)
def _folder_of_the_test(tmp_path, monkeypatch):
    (tmp_path / "locks").mkdir()
    monkeypatch.setenv("TMPDIR", f"{tmp_path}/locks")
    monkeypatch.setattr("tempfile.tempdir", None)  # read TMPDIR again
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)


@pytest.fixture
def start(tmp_path):
    """Starts processes that each take a GPU, note in a folder that they are on it, and end after some seconds."""
    started = []
    (tmp_path / "taken").mkdir()

    def start(number, seconds, visible):
        process = python_process(JOB, tmp_path / "taken", seconds, CUDA_VISIBLE_DEVICES=visible)
        pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
        jobs = [subprocess.Popen(**process, **pipes) for _ in range(number)]
        started.extend(jobs)
        for job in jobs:
            assert job.stdout.readline() == "ready\n"
        for job in jobs:
            job.stdin.write("\n")
            job.stdin.flush()
        return jobs

    yield start
    for job in started:
        job.kill()
        job.communicate()


def test_jobs_that_start_at_once_never_share_a_gpu_and_all_get_one(start):
    ends = [(*job.communicate(timeout=60), job.returncode) for job in start(9, 0.1, "4,7,5")]
    assert all(code == 0 for *_, code in ends), ends
    assert len(ends) == 9
    assert {output for output, *_ in ends} == {"4\n", "5\n", "7\n"}


def test_a_killed_job_gives_its_gpu_back(start, tmp_path):
    (holder,) = start(1, 60, "3")
    assert holder.stdout.readline() == "3\n"
    (waiting,) = start(1, 0, "3")
    time.sleep(0.3)
    assert waiting.poll() is None
    (tmp_path / "taken/3").rmdir()  # what the holder cannot do any more
    holder.send_signal(signal.SIGKILL)
    output, errors = waiting.communicate(timeout=30)
    assert (waiting.returncode, output) == (0, "3\n"), errors


@pytest.mark.parametrize(
    ("given", "there"),
    [
        ("2,0", ["2", "0"]),
        (" 1, 3 ", ["1", "3"]),
        (",".join(UUIDS), list(UUIDS)),
        ("0,0", ["0"]),
        ("0,-1,1", ["0"]),
        ("", []),
        ("NoDevFiles", []),
    ],
)
def test_gpus_are_those_of_the_environment(monkeypatch, given, there):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", given)
    assert devices.visible_gpus() == there


def test_gpus_are_counted_where_the_environment_does_not_say(monkeypatch):
    """Device files that cannot be opened are those that a cluster keeps from a job; none at all are not yet made."""
    files = ["nvidia0", "nvidia1", "nvidia10"]
    driver = ["0000:01:00.0", "0000:02:00.0"]
    names = {"/dev": files, devices.DRIVER: driver}
    monkeypatch.setattr(
        Path, "glob", lambda folder, _: iter(folder / name for name in names[str(folder)])
    )
    monkeypatch.setattr(os, "access", lambda path, _: Path(path).name != "nvidia1")
    assert devices.visible_gpus() == ["0", "1"]
    files.clear()
    driver.append("0000:03:00.0")
    assert devices.visible_gpus() == ["0", "1", "2"]
    driver.clear()
    assert devices.visible_gpus() == []


@pytest.mark.parametrize("device", ["cpu", "cuda:0", "auto", "cuda", "auto with a torch for CPUs"])
def test_nothing_is_taken_where_the_user_chose_or_there_are_no_gpus(monkeypatch, tmp_path, device):
    monkeypatch.setattr(
        devices, "visible_gpus", lambda: [] if device in ("auto", "cuda") else ["0", "1"]
    )
    monkeypatch.setattr(devices, "version", lambda _: "2.13.0+cpu" if " " in device else "2.13.0")
    device = device.partition(" ")[0]
    devices.claim(device)
    assert "CUDA_VISIBLE_DEVICES" not in os.environ
    assert not list((tmp_path / "locks").iterdir())


def test_gpus_are_taken_by_name_in_the_order_given_and_by_each_job_of_slurm_anew(monkeypatch):
    """Each job of SLURM has GPUs of its own, and SLURM may call the first of every job 0."""
    for job in (None, "17", "18"):
        if job:
            monkeypatch.setenv("SLURM_JOB_ID", job)
        assert [devices.take(UUIDS, devices.lock_folder()) for _ in UUIDS] == list(UUIDS)


def test_the_folder_of_locks_is_the_users_own(monkeypatch):
    folder = devices.lock_folder()
    assert folder == devices.lock_folder()
    assert folder.stat().st_mode & 0o777 == 0o700
    folder.rename(folder.with_name("elsewhere"))
    folder.symlink_to("elsewhere")
    with input_error("is not a folder that you own"):
        devices.lock_folder()
    other = os.getuid() + 1
    folder.with_name("elsewhere").rename(folder.with_name(f"papa-gpus-{other}"))
    monkeypatch.setattr(os, "getuid", lambda: other)
    with input_error("is not a folder that you own"):
        devices.lock_folder()
