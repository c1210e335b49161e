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
from pathlib import Path

from papa.errors import InputError

VARIABLE = "CUDA_VISIBLE_DEVICES"
DRIVER = "/proc/driver/nvidia/gpus"
BETWEEN_TRIES = 1.0
"""Seconds between two tries to get a GPU, where all are taken."""

log = logging.getLogger(__name__)


def claim(device: str) -> None:
    """Take one GPU for this process, until it ends, and hide all others from CUDA; waits while all are taken.

    `device` is the key of the config. "auto" and "cuda" leave the choice to papa; anything else, such as "cuda:1", is
    the user's own choice, and nothing is taken. Nor is it where there are no GPUs.
    """
    there = visible() if device in ("auto", "cuda") else []
    if there:
        os.environ[VARIABLE] = take(there, lock_folder())
        log.info("this job has the GPU %s", os.environ[VARIABLE])


def visible() -> list[str]:
    """The GPUs that this process may use, by the names that CUDA_VISIBLE_DEVICES takes.

    Where that variable is set (by the user, or by SLURM) they are those in it: numbers, or names of GPUs and of MIG
    instances. Else they are counted: the device files that may be opened, or where none has been made yet, what the
    driver lists.
    """
    given = os.environ.get(VARIABLE)
    if given is not None:
        names: dict[str, None] = {}
        for name in map(str.strip, given.split(",")):
            if not re.fullmatch(r"[0-9]+|(GPU|MIG)-.+", name):
                break  # CUDA too takes what stands before the first name that is none
            names[name] = None
        return list(names)
    files = list(Path("/dev").glob("nvidia[0-9]*"))
    usable = [os.access(file, os.R_OK | os.W_OK) for file in files]
    number = sum(usable) if files else len(list(Path(DRIVER).glob("*")))
    return [str(device) for device in range(number)]


def take(devices: Sequence[str], folder: Path) -> str:
    """Lock the first of `devices` that is free until this process ends, however it ends; waits while none is.

    Each device has a file in `folder`, and whoever locks that file has the device.
    """
    waiting = False
    while True:
        for device in devices:
            file = os.open(folder / device.replace("/", "_"), os.O_RDWR | os.O_CREAT, 0o600)
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                os.close(file)
            else:
                os.utime(file)  # so that what cleans up old temporary files lets it be
                return device  # the file stays open, for closing it would free the device
        if not waiting:
            waiting = True
            log.info(
                "all GPUs (%s) are taken by other jobs; waiting for one (--resources gpu=%d starts no job too many)",
                ", ".join(devices),
                len(devices),
            )
        time.sleep(BETWEEN_TRIES)


def lock_folder() -> Path:
    """Where the user's jobs on this machine lock their GPUs; raises `InputError` where it is someone else's.

    Every job of SLURM has a folder of its own: it has its GPUs for itself, and often calls the first of them 0.
    """
    parts = ["papa-gpus", str(os.getuid()), *filter(None, [os.environ.get("SLURM_JOB_ID")])]
    folder = Path(tempfile.gettempdir(), "-".join(parts))
    try:
        folder.mkdir(mode=0o700)
    except FileExistsError:
        found = folder.lstat()
        if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid():
            raise InputError(
                f"{folder}, where jobs lock the GPU they use, is not a folder of yours; "
                "remove it, or set TMPDIR to a folder of your own, the same for all jobs."
            ) from None
    return folder
