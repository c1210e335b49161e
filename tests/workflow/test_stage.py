"""A job seen from its script: what goes to the log, what to the terminal, with which threads."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = """
import os, sys
from types import SimpleNamespace
from papa.errors import InputError
from papa.jobs.stage import stage

job = SimpleNamespace(rule="probe", wildcards=["tiny", "tags"], log=["logs/job.log"], threads=1)
with stage(job, threads="probe") as say:
    {}
"""


def run(folder: Path, body: str, **environment: str):
    """Run a script with one stage in `folder`; its stderr is a pipe."""
    settings = {"PYTHONPATH": str(Path(__file__).parents[2])}
    return subprocess.run(
        [sys.executable, "-c", SCRIPT.format(body)],
        cwd=folder,
        env=os.environ | settings | environment,
        capture_output=True,
        text=True,
        timeout=60,
    )


def log(folder: Path) -> str:
    return (folder / "logs/job.log").read_text(encoding="utf-8")


def test_one_line_for_the_terminal_and_the_rest_in_the_log(tmp_path):
    process = run(tmp_path, "print('50 %', file=sys.stderr); os.system('echo from C >&2'); say('done')")
    assert (process.returncode, process.stdout, process.stderr) == (0, "probe tiny tags: done (0 s)\n", "")
    assert log(tmp_path) == "50 %\nfrom C\nprobe tiny tags: done (0 s)\n"


def test_what_the_user_can_mend_is_one_sentence(tmp_path):
    process = run(tmp_path, "raise InputError('There is no column.')")
    assert process.returncode == 1
    assert process.stderr == "Error in probe tiny tags: There is no column.\nLog: logs/job.log\n"
    assert log(tmp_path) == "Error: There is no column.\n"


def test_what_nobody_expected_leaves_its_traceback_in_the_log(tmp_path):
    process = run(tmp_path, "{}['missing']")
    assert process.returncode == 1
    assert process.stderr.startswith("Error in probe tiny tags: KeyError: 'missing'\nThe traceback is in the log: ")
    assert "Traceback" not in process.stderr
    assert "Traceback" in log(tmp_path)


@pytest.mark.parametrize("signal", ["SIGINT", "SIGTERM"])
def test_a_stopped_job_says_so_and_leaves_nothing(tmp_path, signal):
    body = f"""
    import signal
    from papa.files import replacing
    with replacing("half.json") as temporary:
        temporary.write_text("half")
        os.kill(os.getpid(), signal.{signal})
        say("not reached")
    """
    process = run(tmp_path, body)
    assert (process.returncode, process.stdout) == (130, "")
    assert process.stderr == "Interrupted: probe tiny tags\n"
    assert [path.name for path in tmp_path.iterdir()] == ["logs"]


def test_a_log_without_room_fails_no_job(tmp_path):
    limited = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (5, 5)); print('1234567', file=sys.stderr)"
    process = run(tmp_path, f"{limited}; say('done')")
    assert process.stdout.startswith("probe tiny tags: done")
    assert (process.returncode, process.stderr) == (0, "")
    assert log(tmp_path) == "12345"


def test_a_log_that_cannot_be_begun(tmp_path):
    (tmp_path / "logs").write_text("a file")
    process = run(tmp_path, "say('not reached')")
    assert (process.returncode, process.stdout) == (1, "")
    assert process.stderr == "Error: logs/job.log could not be written (File exists); mend that and run again.\n"


def test_threads_are_those_of_the_machine(tmp_path):
    body = "say(os.environ['OMP_NUM_THREADS'])"
    process = run(tmp_path, body, PAPA_MACHINE='{"probe_threads": 3}', OMP_NUM_THREADS="7")
    assert process.stdout == "probe tiny tags: 3 (0 s)\n"


def test_jobs_do_not_ask_the_hub_where_there_is_a_mirror(tmp_path):
    body = "say(os.environ['HF_HUB_OFFLINE'])"
    for machine, offline in (('{"hub_mirror": "hub"}', 1), ("{}", 0)):
        process = run(tmp_path, body, PAPA_MACHINE=machine, HF_HUB_OFFLINE="0")
        assert process.stdout == f"probe tiny tags: {offline} (0 s)\n"
