"""A GPU for each job of one machine, chosen before torch is imported and reserved by a lock of the kernel."""

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
from itertools import takewhile
from pathlib import Path

from papa.errors import InputError

VARIABLE = "CUDA_VISIBLE_DEVICES"
DRIVER = "/proc/driver/nvidia/gpus"
BETWEEN_TRIES = 1.0  # seconds
log = logging.getLogger(__name__)


def claim(device: str) -> None:
    """Reserve one GPU for this process until it ends, and hide the others from CUDA; wait while all are taken.

    Only if the config's `device` is "auto" or "cuda" does papa choose; otherwise it reserves nothing.
    """
    if device in ("auto", "cuda") and (there := visible()):
        os.environ[VARIABLE] = take(there, lock_folder())
        log.info("this job has the GPU %s", os.environ[VARIABLE])


def visible() -> list[str]:
    """List the GPUs that this process may use, by their names in CUDA_VISIBLE_DEVICES; all if that is not set."""
    if (listed := os.environ.get(VARIABLE)) is not None:  # like CUDA, stop at the first invalid name
        names = takewhile(re.compile("[0-9]+|(GPU|MIG)-.+").fullmatch, map(str.strip, listed.split(",")))
        return list(dict.fromkeys(names))
    files = list(Path("/dev").glob("nvidia[0-9]*"))  # they appear when a GPU is first used; before that, ask the driver
    number = sum(os.access(file, os.R_OK | os.W_OK) for file in files) if files else len([*Path(DRIVER).glob("*")])
    return [str(device) for device in range(number)]


def take(devices: Sequence[str], folder: Path) -> str:
    """Wait for a free device, lock its file until this process ends, and return it."""
    logged = False
    while True:
        for device in devices:
            file = os.open(folder / device.replace("/", "_"), os.O_RDWR | os.O_CREAT, 0o600)
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                os.close(file)
            else:
                os.utime(file)  # a cleaner of old temporary files would delete it
                return device  # the file stays open, because closing it would unlock it
        if not logged:
            number, logged = len(devices), True
            log.info("all GPUs (%s) are taken; waiting for one (limit: --resources gpu=%d)", ", ".join(devices), number)
        time.sleep(BETWEEN_TRIES)


def lock_folder() -> Path:
    """Return the folder where the user's jobs lock their GPUs; raises `InputError` if it belongs to someone else.

    Each SLURM job has a separate folder, because it has its GPUs for itself and may call the first of them 0.
    """
    parts = ["papa-gpus", str(os.getuid()), *filter(None, [os.environ.get("SLURM_JOB_ID")])]
    folder = Path(tempfile.gettempdir(), "-".join(parts))
    with suppress(FileExistsError):
        folder.mkdir(mode=0o700)
    status = folder.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid():
        raise InputError(
            f"{folder}, in which jobs lock their GPUs, is not a folder of yours; "
            "remove it, or set TMPDIR to a folder of yours, the same for all jobs."
        )
    return folder
