"""The live view: what it works out of the jobs, and what a terminal and a pipe get to see."""

import io
import logging
import os
import pty
import re
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from rich.console import Console

from papa.jobs.live import MOST_BARS, Jobs, LiveView

HEARD = '''
import logging, os, sys, time
from papa.jobs import live

def tell(event=None, message=None, **more):
    logger.info(message, extra={"event": event, **more})

def drawn():
    """Wait until the view, where there is one, has drawn what it heard."""
    for view in logger.handlers[1:]:
        pictures, draw = [], type(view).picture
        view.picture = lambda now: pictures.append(now) or draw(view, now)
        while view.drawing and len(pictures) < 3:
            time.sleep(0.01)

def job(number, stage, log):
    tell("job_info", jobid=number, rule_name=stage, log=[log])

logger = logging.getLogger("snakemake")
logger.setLevel(logging.INFO)
logger.addHandler(logging.StreamHandler(sys.stderr))
logger.handlers[0].addFilter(lambda record: record.event is None)
live.watch(logger, quiet="quiet" in sys.argv)
tell("run_info", stats={"probe": 2, "collect": 1, "total": 3})
if "dry" not in sys.argv:
    tell("job_started", jobs=[1, 2])
job(1, "probe", "none.log")
job(2, "probe", "bar.log")
drawn()
tell("job_finished", job_id=1)
tell(message="said by snakemake")
if live.LINES in os.environ:
    with open(os.environ[live.LINES], "a") as lines:
        lines.write("said by a job [red]\\n")
drawn()
tell("job_error", jobid=2)
job(2, "probe", "bar.log")
drawn()
tell("job_finished", job_id=2)
job(3, "collect", "none.log")
tell("job_finished", job_id=3)
tell("progress", done=3, total=3)
tell(message="the end")
'''


def environment() -> dict[str, str]:
    ours = {key: value for key, value in os.environ.items() if key not in ("PAPA_LINES", "NO_COLOR")}
    return ours | {"PYTHONPATH": str(Path(__file__).parents[2]), "TERM": "xterm", "COLUMNS": "100"}


def shown(folder: Path, *arguments: str) -> str:
    """All that a terminal receives."""
    (folder / "bar.log").write_text("begin\n\rtraining:  34%|###   | 5.1k/15k [00:30<00:59]", encoding="utf-8")
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-c", HEARD, *arguments], cwd=folder, env=environment(), stdout=theirs, stderr=theirs
    )
    os.close(theirs)
    received = b""
    while True:
        try:
            received += os.read(ours, 65536)
        except OSError:  # the other end is closed
            break
    os.close(ours)
    assert process.wait(timeout=60) == 0
    return received.decode()


def test_rates_and_times_left_follow_from_the_jobs():
    jobs = Jobs(planned={"probe": 10, "collect": 1})
    for number in range(4):
        jobs.begin(number, "probe", now=100 + 5 * (number // 2))
    assert (jobs.rate("probe", now=104), jobs.left(now=104)) == (None, None)
    for number in range(2):
        jobs.end(number, now=105)
    jobs.end(2, now=110)
    # 3 of 10 done in 10 s, in 5 s each and two at a time; one runs and should be done by now: 6 × 5 s, side by side
    assert jobs.rate("probe", now=110) == pytest.approx(0.3)
    assert jobs.left(now=110) == (pytest.approx(6 * 5 / 2), False)
    jobs.end(3, now=110, well=False)
    assert jobs.left(now=110) == (pytest.approx(7 * 5 / 1.5), False)
    jobs.planned["collect"] = 0
    assert jobs.left(now=110) == (pytest.approx(7 * 5 / 1.5), True)


def test_jobs_may_begin_and_end_while_it_draws():
    between = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)  # threads take turns all the time
    view = LiveView(Console(), logging.getLogger("none"))
    over = threading.Event()

    def tell():
        while not over.is_set():
            for event in ("job_info", "job_finished"):
                for number in range(500):
                    about = {"jobid": number, "rule_name": f"stage {number % 7}", "log": [], "job_id": number}
                    view.handle(logging.makeLogRecord({"event": event, **about}))

    teller = threading.Thread(target=tell)
    teller.start()
    try:
        drawn = [view.picture(now=time.monotonic()) for _ in range(50)]
    finally:
        over.set()
        teller.join()
        sys.setswitchinterval(between)
    assert len(drawn) == 50 and view.jobs.done


def test_a_terminal_sees_stages_move_and_every_line(tmp_path):
    received = shown(tmp_path)
    plain = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", received)
    assert re.search(r"probe × 2 +━+ +0 of 2", plain)
    assert re.search(r"probe +[━╸╺]+ +1 of 2 .* / (s|min) +.* left", plain)
    assert re.search(r"all stages +[━╸╺]+ +1 of 3", plain)
    assert "training:  34%|###   | 5.1k/15k [00:30<00:59]" in plain
    assert plain.count("said by a job [red]") == plain.count("said by snakemake") == plain.count("the end") == 1
    # the picture is wiped: nothing is drawn behind the last line
    assert plain.rindex("all stages") < plain.rindex("the end")
    assert re.search(r"\x1b\[2K[^━]*the end\r?\n$", received)


def test_of_many_jobs_the_oldest_show_their_bars(tmp_path):
    console = Console(width=100, file=io.StringIO())
    view = LiveView(console, logging.getLogger("none"))
    for number in range(3 * MOST_BARS):
        log = tmp_path / f"{number}.log"
        log.write_text(f"training {number}:  34%|###   |", encoding="utf-8")
        about = {"event": "job_info", "jobid": number, "rule_name": "probe", "log": [str(log)]}
        view.handle(logging.makeLogRecord(about))
    console.print(view.picture(now=time.monotonic()))
    bars = [line.split(":")[0] for line in console.file.getvalue().splitlines() if "34%" in line]
    assert bars == [f"training {number}" for number in range(MOST_BARS)]


def test_asked_to_be_quiet_it_draws_nothing(tmp_path):
    assert shown(tmp_path, "quiet").split() == "said by snakemake the end".split()


def test_a_dry_run_draws_nothing(tmp_path):
    assert shown(tmp_path, "dry").split() == "said by snakemake the end".split()


def test_a_pipe_gets_the_lines_alone(tmp_path):
    process = subprocess.run(
        [sys.executable, "-c", HEARD], cwd=tmp_path, env=environment(), capture_output=True, text=True, timeout=60
    )
    assert (process.returncode, process.stdout, process.stderr) == (0, "", "said by snakemake\nthe end\n")
