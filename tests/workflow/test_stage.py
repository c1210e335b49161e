"""A job seen from its script: what goes to the log, what to the terminal, with which threads."""

from pathlib import Path

import pytest
from tiny import in_python

from papa.files import Trace, write_json

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


DONE, ERROR = "probe tiny tags: done (0 s)\n", "Error in probe tiny tags: {}\n"
KEY, TOKEN = (f"KeyError: '{name}'" for name in ("missing", "[token]"))
MEMORY = "(a cause may be the limit of 3,072 MB of virtual memory; raise it with ulimit -v unlimited)"
LIMIT = "import resource; resource.setrlimit(resource.{0}, ({1}, {1})); "


@pytest.mark.parametrize(
    ("body", "code", "printed", "error", "logged"),
    [
        ("print('50', file=sys.stderr); os.system('echo C >&2'); say('done')", 0, DONE, "", "50\nC\n" + DONE),
        ("say('done'); raise InputError('No column.')", 1, DONE, "No column.", DONE + ERROR.format("No column.")),
        ("{}['missing']", 1, "", KEY, ERROR.format(KEY)),
        ("{}[os.environ['HF_TOKEN']]", 1, "", TOKEN, ERROR.format(TOKEN)),
        (
            LIMIT.format("RLIMIT_AS", 3 << 30) + "bytes(4 << 30)",
            1,
            "",
            f"MemoryError: MemoryError {MEMORY}",
            MEMORY + "\n",
        ),
        (LIMIT.format("RLIMIT_FSIZE", 5) + "print('1234567', file=sys.stderr); say('done')", 0, DONE, "", "12345"),
        ("os.dup2(os.open('/dev/full', os.O_WRONLY), 1); say('done')", 0, "", "", DONE),
        ("say(os.environ['OMP_NUM_THREADS'])", 0, DONE.replace("done", "5"), "", DONE.replace("done", "5")),
        ("say(os.environ['HF_HUB_OFFLINE'])", 0, DONE.replace("done", "1"), "", DONE.replace("done", "1")),
    ],
    ids=["done", "refused", "unexpected", "token", "memory", "full log", "full terminal", "threads", "offline"],
)
def test_one_line_for_the_terminal_and_the_rest_in_the_log(tmp_path, body, code, printed, error, logged):
    process = run(tmp_path, body, HF_TOKEN="hf_secret", OMP_NUM_THREADS="11", HF_HUB_OFFLINE="0")
    assert (process.returncode, process.stdout) == (code, printed)
    assert process.stderr == (f"{ERROR.format(error)}Log: logs/job.log\n" if error else "")
    assert log(tmp_path).endswith(logged) and "hf_secret" not in log(tmp_path)
    assert ("Traceback" in log(tmp_path)) == ("Error: " in error)


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


def test_an_input_of_other_settings_is_refused(tmp_path):
    write_json({"λ": [0.5]}, tmp_path / "lambda.json", Trace("lambda", 1, {"seed": 7}, {}))
    process = rank(tmp_path, Trace("lambda", 1, {"seed": 8}, {}).request)
    assert process.returncode == 1 and not (tmp_path / "order.json").exists()
    assert (
        "lambda.json does not match the config: it was made by stage lambda, version 1, with seed 7" in process.stderr
    )
    write_json({"λ": [0.5]}, tmp_path / "lambda.json")
    assert "lambda.json does not record how it was made" in rank(tmp_path, "any").stderr
