"""Reserve one GPU per job with a kernel lock, before torch is imported."""

from __future__ import annotations

import fcntl
import logging
import os
import re
import stat
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from importlib.metadata import version
from itertools import takewhile
from pathlib import Path

from papa.errors import InputError

VARIABLE = "CUDA_VISIBLE_DEVICES"
DRIVER = "/proc/driver/nvidia/gpus"
RETRY_SECONDS = 1.0
log = logging.getLogger(__name__)


def claim(device: str) -> None:
    """Reserve one GPU for this process until it ends, and hide the others from CUDA; wait if all are taken.

    Nothing is reserved unless `device` is "auto" or "cuda", nor for a build of torch without CUDA, unless the
    environment names GPUs.
    """
    # from the package's metadata, because GPUs must be hidden before torch is imported
    without = device == "auto" and VARIABLE not in os.environ and version("torch").endswith("+cpu")
    if device in ("auto", "cuda") and not without and (gpus := visible_gpus()):
        os.environ[VARIABLE] = take(gpus, lock_folder())
        log.info("this job uses GPU %s", os.environ[VARIABLE])


def visible_gpus() -> list[str]:
    """List the GPUs that this process may use, by their names in CUDA_VISIBLE_DEVICES; all if it is not set."""
    listed = os.environ.get(VARIABLE)
    if listed is not None:
        # like CUDA, stop at the first invalid name
        is_name = re.compile("[0-9]+|(GPU|MIG)-.+").fullmatch
        names = takewhile(is_name, map(str.strip, listed.split(",")))
        return list(dict.fromkeys(names))
    files = list(Path("/dev").glob("nvidia[0-9]*"))
    usable = [file for file in files if os.access(file, os.R_OK | os.W_OK)]
    if not files:  # they exist once a GPU was used; before that, ask the driver
        usable = list(Path(DRIVER).glob("*"))
    return [str(device) for device in range(len(usable))]


def take(devices: Sequence[str], folder: Path) -> str:
    """Wait for a free device, lock its file until this process ends, and return it."""
    waiting = False
    while True:
        for device in devices:
            # names of MIG partitions may contain slashes
            file = os.open(folder / device.replace("/", "_"), os.O_RDWR | os.O_CREAT, 0o600)
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                # a job that waits for hours would run out of open files
                os.close(file)
            except OSError as error:
                problem = "GPUs cannot be locked in %s (%s); this job takes one by chance"
                log.warning(problem, folder, error.strerror)
                return devices[os.getpid() % len(devices)]
            else:
                os.utime(file)  # or a cleaner of old temporary files may delete it
                return device  # the file stays open, because closing it would unlock it
        if not waiting:
            waiting = True
            taken = "all GPUs (%s) are taken; waiting for one (limit: --resources gpu=%d)"
            log.info(taken, ", ".join(devices), len(devices))
        # the kernel can wait for one lock, but not for the first of several
        time.sleep(RETRY_SECONDS)


def lock_folder() -> Path:
    """Return the folder of this user's GPU locks; raise `InputError` if it belongs to someone else.

    Each SLURM job has a separate folder, because SLURM may number the GPUs of every job from 0.
    """
    parts = ["papa-gpus", str(os.getuid()), *filter(None, [os.environ.get("SLURM_JOB_ID")])]
    folder = Path(tempfile.gettempdir(), "-".join(parts))
    with suppress(FileExistsError):
        folder.mkdir(mode=0o700)
    # not `stat`: in a public folder, another user could have put a link there
    status = folder.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid():
        advice = "remove it, or set TMPDIR to a folder that you own, the same for all jobs"
        raise InputError(
            f"{folder}, in which jobs lock their GPUs, is not a folder that you own; {advice}."
        )
    return folder
