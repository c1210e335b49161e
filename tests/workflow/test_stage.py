"""A job seen from its script: what goes to the log, what to the terminal, with which threads."""

import os
from pathlib import Path

import pytest
import yaml
from tiny import in_python

from papa.files import Trace, trace_of, write_json
from papa.jobs.start import ALLOCATOR, started

SCRIPT = """
import os, sys
from types import SimpleNamespace
from papa.config.settings import Machine
from papa.errors import InputError
from papa.jobs.stage import stage

job = SimpleNamespace(rule="probe", wildcards=["tiny", "tags"], log=["logs/job.log"], threads=5)
with stage(job, Machine.current()) as say:
    {}
"""


def run(folder: Path, body: str, **environment: str):
    """Run a script with one stage in `folder`; its stderr is a pipe."""
    return in_python(SCRIPT.format(body), folder=folder, **environment)


def log(folder: Path) -> str:
    return (folder / "logs/job.log").read_text(encoding="utf-8")


DONE, ERROR = "probe tiny tags: done (0 s)\n", "Error in probe tiny tags: There is no column.\n"
REFUSAL = "say('done'); raise InputError('There is no column.')"


@pytest.mark.parametrize(
    ("body", "environment", "printed", "logged"),
    [
        ("print('50', file=sys.stderr); os.system('echo from C >&2'); say('done')", {}, (0, DONE, ""), "50\nfrom C\n"),
        (REFUSAL, {}, (1, DONE, f"{ERROR}Log: logs/job.log\n"), ""),
    ],
    ids=["done", "refused"],
)
def test_one_line_for_the_terminal_and_the_rest_in_the_log(tmp_path, body, environment, printed, logged):
    process = run(tmp_path, body, **environment)
    assert (process.returncode, process.stdout, process.stderr) == printed
    assert log(tmp_path) == logged + DONE + ERROR * (body == REFUSAL)


def test_what_nobody_expected_leaves_its_traceback_in_the_log(tmp_path):
    process = run(tmp_path, "{}['missing']")
    assert process.returncode == 1
    assert process.stderr == "Error in probe tiny tags: KeyError: 'missing'\nLog: logs/job.log\n"
    assert "Traceback" in log(tmp_path) and log(tmp_path).endswith("\nError in probe tiny tags: KeyError: 'missing'\n")


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


def test_a_terminal_that_is_gone_fails_no_job(tmp_path):
    process = run(tmp_path, "os.dup2(os.open('/dev/full', os.O_WRONLY), 1); say('done')")
    assert (process.returncode, process.stderr, log(tmp_path)) == (0, "", DONE)


def test_a_log_that_cannot_be_begun(tmp_path):
    (tmp_path / "logs").write_text("a file")
    process = run(tmp_path, "say('not reached')")
    assert (process.returncode, process.stdout) == (1, "")
    assert process.stderr == "Error: logs/job.log could not be written (File exists); fix the cause and run again.\n"


def test_threads_are_those_of_the_workflow(tmp_path):
    process = run(tmp_path, "say(os.environ['OMP_NUM_THREADS'])", OMP_NUM_THREADS="11")
    assert process.stdout == "probe tiny tags: 5 (0 s)\n"


def test_neither_the_line_nor_the_traceback_has_the_token(tmp_path):
    process = run(tmp_path, "{}[os.environ['HF_TOKEN']]", HF_TOKEN="hf_secret")
    assert process.stderr == "Error in probe tiny tags: KeyError: '[token]'\nLog: logs/job.log\n"
    assert "Traceback" in log(tmp_path) and "hf_secret" not in log(tmp_path)


def test_a_limit_on_memory_is_named(tmp_path):
    limit = "import resource; resource.setrlimit(resource.RLIMIT_AS, (3 << 30, 3 << 30)); bytes(4 << 30)"
    said = "(a cause may be the limit of 3,072 MB of virtual memory; raise it with ulimit -v unlimited)"
    assert run(tmp_path, limit).stderr.startswith(f"Error in probe tiny tags: MemoryError: MemoryError {said}\n")


def test_jobs_do_not_ask_the_hub(tmp_path):
    body = "say(os.environ['HF_HUB_OFFLINE'])"
    assert run(tmp_path, body, HF_HUB_OFFLINE="0").stdout == "probe tiny tags: 1 (0 s)\n"


def test_jobs_keep_memory_that_they_freed_unless_the_user_said_otherwise(monkeypatch):
    ours, theirs = ALLOCATOR
    monkeypatch.setenv(ours, "1")
    for name in (
        theirs,
        "PYTHONPATH",
        "PYTHONIOENCODING",
        "PAPA_MACHINE",
    ):  # what is set here is put back
        monkeypatch.setenv(name, "")
    monkeypatch.delenv(theirs)
    demo = Path(__file__).parents[2] / "config/config.yaml"
    started(yaml.safe_load(demo.read_text(encoding="utf-8")), [demo])
    assert (os.environ[ours], os.environ[theirs]) == ("1", ALLOCATOR[theirs])


CALL = """
from types import SimpleNamespace
from papa.config import stages
from papa.files import write_json
from papa.jobs.stage import run

class Ranked(stages.OrderFromWeights):
    function = "__main__:rank"

stages.STAGES["Ranked"] = Ranked
def rank(job):
    write_json({{"order": job.settings.order}}, job.output("order"), job.trace())
    return f"ranked by {{job.settings.order}}"

rule = {{"rule": "rank", "wildcards": ["tiny"], "log": ["job.log"], "threads": 1, "params": {params}}}
read = {{"lambdas": "lambda.json", "outdated": ".outdated"}}
run(SimpleNamespace(**rule, input=read, output={{"order": "order.json"}}))
"""


def rank(folder: Path, request: str):
    parameters = {"settings_of": "Ranked", "settings": {"order": "lambda"}, "requests": {"lambdas": [request]}}
    return in_python(CALL.format(params={"parameters": parameters}), folder=folder)


def test_a_script_calls_one_stage_with_its_job(tmp_path):
    made = Trace("lambda", 1, {"seed": 7}, {})
    write_json({"λ": [0.5]}, tmp_path / "lambda.json", made)
    process = rank(tmp_path, made.request)
    assert (process.returncode, process.stdout) == (0, "rank tiny: ranked by lambda (0 s)\n"), process.stderr
    trace = trace_of(tmp_path / "order.json")
    assert (trace.stage, trace.settings) == ("rank", {"order": "lambda"}) and list(trace.inputs) == ["lambdas"]


def test_an_input_of_other_settings_is_refused(tmp_path):
    write_json({"λ": [0.5]}, tmp_path / "lambda.json", Trace("lambda", 1, {"seed": 7}, {}))
    process = rank(tmp_path, Trace("lambda", 1, {"seed": 8}, {}).request)
    assert process.returncode == 1 and not (tmp_path / "order.json").exists()
    assert (
        "lambda.json does not match the config: it was made by stage lambda, version 1, with seed 7" in process.stderr
    )
    write_json({"λ": [0.5]}, tmp_path / "lambda.json")
    assert "lambda.json does not record how it was made" in rank(tmp_path, "any").stderr
