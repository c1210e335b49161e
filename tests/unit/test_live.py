"""The logger of snakemake: what it works out of the jobs, and what a terminal and a pipe get to see of a run."""

import io
import logging
import os
import re
import subprocess
import sys
from types import SimpleNamespace

import pytest
from rich.console import Console
from tiny import REPOSITORY, on_a_terminal

from papa.jobs.display import MOST_BARS, Jobs, shown_here
from snakemake_logger_plugin_papa import LogHandler

SNAKEFILE = """
rule all:
    input: expand("{i}.txt", i=range(3)), "last.txt"
rule probe:
    output: "{i}.txt"
    log: "{i}.log"
    shell: "printf 'begin\\n\\rtraining:  34%%|###   | 5.1k/15k\\n' > {log}; sleep 1; "
           "echo 'probe {wildcards.i}: score 0.5 [red] of 8 heads (1 s)' >> {log}; touch {output}"
rule last:
    input: expand("{i}.txt", i=range(3))
    output: "last.txt"
    log: "last.log"
    shell: "echo 'last: none (0 s)' > {log}; touch {output}"
rule wrong:
    output: "wrong.txt"
    log: "wrong.log"
    shell: "echo 'Error in wrong: There is no column.' > {log}; exit 1"
"""
TOLD = {"printshellcmds": False, "nocolor": False, "quiet": None, "debug_dag": False, "verbose": False}
TOLD |= {"show_failed_logs": False, "stdout": False, "dryrun": False}


def command(*arguments):
    return [sys.executable, "-m", "snakemake", "--cores", "2", "--logger", "papa", "--nocolor", *arguments]


def settings(folder):
    ours = {key: value for key, value in os.environ.items() if key not in ("PAPA_LOGGER", "NO_COLOR")}
    ours |= {"PYTHONPATH": str(REPOSITORY), "TERM": "xterm", "COLUMNS": "100"}
    (folder / "Snakefile").write_text(SNAKEFILE, encoding="utf-8")
    return {"cwd": folder, "env": ours}


@pytest.fixture
def handler(monkeypatch):
    monkeypatch.setenv("PAPA_LOGGER", "as it was")  # the handler sets it for good
    return LogHandler(SimpleNamespace(**TOLD), None)


def test_rates_and_times_left_follow_from_the_jobs():
    jobs = Jobs(planned={"probe": 10, "collect": 1})
    for number in range(4):
        jobs.begin(number, "probe", now=100 + 5 * (number // 2))
    assert (jobs.rate("probe", now=104), jobs.left(now=104)) == ("", None)
    for number in range(2):
        jobs.end(number, now=105)
    jobs.end(2, now=110)
    # 3 of 10 done in 10 s, in 5 s each and two at a time; one runs and should be done by now: 6 × 5 s, side by side;
    # a job of another stage is taken to last as long
    assert jobs.rate("probe", now=110) == "18 / min"
    assert jobs.left(now=110) == pytest.approx((6 + 1) * 5 / 2)
    jobs.end(3, now=110, well=False)
    assert jobs.left(now=110) == pytest.approx((7 + 1) * 5 / 1.5)


def test_a_rate_keeps_its_unit():
    jobs = Jobs(planned={"probe": 7})
    jobs.begin(0, "probe", now=0)
    jobs.end(0, now=10)
    assert [jobs.rate("probe", now=now) for now in (10, 59, 700)] == ["6.0 / min", "1.0 / min", "0.1 / min"]


def test_a_terminal_sees_stages_move_and_every_line(tmp_path):
    received, code = on_a_terminal(command("--quiet", "rules", "host"), **settings(tmp_path))
    assert code == 0, received
    plain = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", received)
    assert re.search(r"probe × 2 +━+ +0 of 3", plain)
    assert re.search(r"probe × 1 +[━╸╺]+ +2 of 3 +[0-9.]+ / (s|min)", plain)
    assert re.search(r"all stages +[━╸╺]+ +2 of 4 .*left", plain), "the rule `all` is no job"
    assert "training:  34%|###   | 5.1k/15k" in plain
    for line in (*(f"probe {i}: score 0.5 [red] of 8 heads (1 s)" for i in range(3)), "last: none (0 s)"):
        assert plain.count(line) == 1
    assert plain.rindex("all stages") < plain.rindex("Complete log")  # the picture is wiped


def test_a_pipe_gets_a_line_for_each_job(tmp_path):
    process = subprocess.run(command("--quiet", "rules"), **settings(tmp_path), capture_output=True, text=True)
    assert process.returncode == 0 and not process.stdout
    lines = [line for line in process.stderr.splitlines() if line.startswith(("probe", "last"))]
    assert sorted(lines[:3]) == [f"probe {i}: score 0.5 [red] of 8 heads (1 s)" for i in range(3)]
    assert lines[3:] == ["last: none (0 s)"] and "\x1b" not in process.stderr and "Select jobs" not in process.stderr


def test_an_error_is_what_the_job_said(tmp_path):
    process = subprocess.run(command("wrong"), **settings(tmp_path), capture_output=True, text=True)
    assert process.returncode == 1
    assert "Error in wrong: There is no column.\nLog: wrong.log\n" in process.stderr
    assert "Error in rule wrong" not in process.stderr


def test_a_dry_run_is_snakemakes_own(tmp_path):
    process = subprocess.run(command("-n", "--quiet", "rules"), **settings(tmp_path), capture_output=True, text=True)
    assert process.returncode == 0
    assert len(re.findall(r"^probe +3$", process.stdout, re.MULTILINE)) == 1, "jobs are counted once"


def test_of_many_jobs_the_oldest_show_their_bars(tmp_path, handler):
    for number in range(3 * MOST_BARS):
        log = tmp_path / f"{number}.log"
        log.write_text(f"training {number}:  34%|###   |", encoding="utf-8")
        about = {"event": "job_info", "jobid": number, "rule_name": "probe", "log": [str(log)]}
        handler.handle(logging.makeLogRecord(about))
    console = Console(width=100, file=io.StringIO())
    console.print(handler.display.picture())
    bars = [line.split(":")[0] for line in console.file.getvalue().splitlines() if "34%" in line]
    assert bars == [f"training {number}" for number in range(MOST_BARS)]


HERE = """
import sys, time
from tqdm import tqdm
from papa.jobs.display import shown_here
with shown_here(["probe", "probe", "last"]) as run:
    def probe():
        for _ in tqdm(range(3), desc="training", mininterval=0):
            time.sleep(0.2)
        print("A warning of a library.", file=sys.stderr)
        return "score 0.5 [red]"
    for name in "ab":
        run(f"probe {name}", probe)
    run("last", lambda: "none. Warning: one row")
"""


def test_jobs_in_this_process_look_like_those_of_the_workflow(tmp_path):
    received, code = on_a_terminal([sys.executable, "-c", HERE], **settings(tmp_path))
    assert code == 0, received
    assert "\x1b[33mlast: none. Warning: one row (0 s)\x1b[0m" in received, "warnings are yellow"
    plain = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", received)
    assert re.search(r"probe × 1 +[━╸╺]+ +0 of 2", plain) and re.search(r"all stages +[━╸╺]+ +1 of 3 .*left", plain)
    assert "training:  33%|" in plain
    for line in (*(f"probe {name}: score 0.5 [red] (1 s)" for name in "ab"), "last: none. Warning: one row (0 s)"):
        assert plain.count(line) == 1
    assert plain.count("A warning of a library.") == 2


def test_jobs_in_this_process_write_lines_into_a_pipe(tmp_path):
    process = subprocess.run([sys.executable, "-c", HERE], **settings(tmp_path), capture_output=True, text=True)
    assert process.returncode == 0 and not process.stdout
    probes = [f"A warning of a library.\nprobe {name}: score 0.5 [red] (1 s)\n" for name in "ab"]
    assert process.stderr == "".join([*probes, "last: none. Warning: one row (0 s)\n"])


def test_an_error_in_a_job_ends_the_picture_and_is_raised(capsys):
    def failing():
        raise ValueError("no column")

    before = sys.stderr
    with pytest.raises(ValueError, match="no column"), shown_here(["probe"]) as run:
        run("probe a", failing)
    assert sys.stderr is before and capsys.readouterr().err == ""
