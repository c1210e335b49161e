"""A GPU for each job of one machine, chosen before torch is imported and kept apart by locks of the kernel."""

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
    """Take one GPU for this process until it ends, and hide all others from CUDA; waits while all are taken.

    The config's `device` leaves the choice to papa if it is "auto" or "cuda"; otherwise nothing is taken.
    """
    if device in ("auto", "cuda") and (there := visible()):
        os.environ[VARIABLE] = take(there, lock_folder())
        log.info("this job has the GPU %s", os.environ[VARIABLE])


def visible() -> list[str]:
    """The GPUs that this process may use, by the names that CUDA_VISIBLE_DEVICES takes: what it says, else all."""
    if (given := os.environ.get(VARIABLE)) is not None:  # CUDA too takes what stands before the first that is no name
        names = takewhile(re.compile("[0-9]+|(GPU|MIG)-.+").fullmatch, map(str.strip, given.split(",")))
        return list(dict.fromkeys(names))
    files = list(Path("/dev").glob("nvidia[0-9]*"))  # made when a GPU is first used; until then the driver lists them
    number = sum(os.access(file, os.R_OK | os.W_OK) for file in files) if files else len([*Path(DRIVER).glob("*")])
    return [str(device) for device in range(number)]


def take(devices: Sequence[str], folder: Path) -> str:
    """Lock the file in `folder` of the first device that is free, until this process ends; waits while none is."""
    told = False
    while True:
        for device in devices:
            file = os.open(folder / device.replace("/", "_"), os.O_RDWR | os.O_CREAT, 0o600)
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                os.close(file)
            else:
                os.utime(file)  # so that what cleans up old temporary files lets it be
                return device  # the file stays open, because closing it would free the device
        if not told:
            number, told = len(devices), True
            log.info("all GPUs (%s) are taken; waiting for one (limit: --resources gpu=%d)", ", ".join(devices), number)
        time.sleep(BETWEEN_TRIES)


def lock_folder() -> Path:
    """Where the user's jobs on this machine lock their GPUs; raises `InputError` if it is someone else's.

    Every job of SLURM has a folder of its own, because it has its GPUs for itself and may call each first one 0.
    """
    parts = ["papa-gpus", str(os.getuid()), *filter(None, [os.environ.get("SLURM_JOB_ID")])]
    folder = Path(tempfile.gettempdir(), "-".join(parts))
    with suppress(FileExistsError):
        folder.mkdir(mode=0o700)
    if not stat.S_ISDIR((found := folder.lstat()).st_mode) or found.st_uid != os.getuid():
        raise InputError(
            f"{folder}, where jobs lock the GPU they use, is not a folder of yours; "
            "remove it, or set TMPDIR to a folder of your own, the same for all jobs."
        )
    return folder
