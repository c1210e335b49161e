"""Ctrl-C and SIGTERM: one or several stop a run without a traceback, and the last line says how to resume."""

import signal
import subprocess

import pytest
from tiny import python_process

INT = signal.SIGINT
TERM = signal.SIGTERM
WORK = """
import sys, time
from papa.run.stopping import resumable
sys.argv = ["papa", "run", "my config.yaml"]
with resumable():
    try:
        print("working", flush=True)
        time.sleep(60)
    finally:
        print("tidying up", flush=True)
        time.sleep(1)
        print("tidy", flush=True)
        {ending}
"""


@pytest.mark.parametrize(
    "signals", [[INT], [TERM], [INT, INT, INT], [TERM, INT, TERM], [INT, TERM]]
)
def test_the_last_line_says_how_to_resume_and_the_code_names_the_first_signal(signals):
    printed, ended = stopped(WORK.format(ending=""), *signals)
    assert printed == [
        "working",
        "tidying up",
        "tidy",
        "Stopped. `papa run 'my config.yaml'` resumes.",
    ]
    assert ended == 128 + signals[0]


HANDLER = "import signal; signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))"
JOB = "import subprocess; subprocess.Popen(['sleep', '60'], start_new_session=True).wait()"


@pytest.mark.parametrize(
    ("ending", "work", "given", "code"),
    [
        ("sys.exit(1)", ("ZZ", ""), INT, 130),  # snakemake ends with 1 if it was interrupted
        ("", ("try:\n", f"try:\n        {HANDLER}\n"), TERM, 143),  # and handles SIGTERM by itself
        ("", ("time.sleep(60)", JOB), INT, 130),  # jobs that are still starting end, too
    ],
)
def test_the_exit_code_is_that_of_a_stop_whatever_the_stopped_work_does(ending, work, given, code):
    printed, ended = stopped(WORK.format(ending=ending).replace(*work), given)
    assert printed[-1].startswith("Stopped.")
    assert ended == code


def test_a_signal_while_the_process_exits_is_ignored():
    """Python waits for its threads then."""
    waiting = "import threading; threading.Thread(target=lambda: time.sleep(2)).start()\n"
    process = started(waiting + WORK.format(ending=""))
    while (line := process.stdout.readline()) and not line.startswith("Stopped."):
        if line == "working\n":
            process.send_signal(INT)
    process.send_signal(INT)
    printed, _ = process.communicate(timeout=30)
    assert printed == ""
    assert process.returncode == 130


def test_a_handler_imports_nothing():
    """It may interrupt an import of the same modules, which would then fail."""
    work = WORK.format(ending="print(sorted(set(sys.modules) - loaded), flush=True)")
    printed, _ = stopped(work.replace("try:", "loaded = set(sys.modules)\n    try:"), INT)
    assert printed[-2] == "[]"


def started(work):
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    return subprocess.Popen(**python_process(work), **pipes)


def stopped(work, *signals):
    """The lines that work prints which gets some signals, and its exit code."""
    process = started(work)
    lines = [process.stdout.readline().strip()]
    for number in signals:
        process.send_signal(number)
        if len(lines) == 1:
            lines.append(process.stdout.readline().strip())
    rest, _ = process.communicate(timeout=30)
    return lines + rest.splitlines(), process.returncode
