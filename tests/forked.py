"""Run snakemake in forks of one process that has imported it, because the import takes longer than a dry run.

A fork is like a new `python -m snakemake`: nothing of papa is imported before it has its folder and environment.
"""

import functools
import json
import os
import signal
import subprocess
import sys
import tempfile


def run(arguments, folder, environment):
    """Run snakemake in a folder; returns the finished process with its output."""
    server = _server()
    with tempfile.NamedTemporaryFile() as output, tempfile.NamedTemporaryFile() as errors:
        request = [arguments, str(folder), environment, output.name, errors.name]
        print(json.dumps(request), file=server.stdin, flush=True)
        code = int(server.stdout.readline())
        printed = [file.read().decode() for file in (output, errors)]
    return subprocess.CompletedProcess(arguments, code, *printed)


@functools.cache
def _server():
    """The process that forks; it ends when the tests do, with its stdin."""
    pipe = subprocess.PIPE
    return subprocess.Popen([sys.executable, __file__], stdin=pipe, stdout=pipe, text=True)


def _next_request():
    """For each line of stdin, return in a fork, and print its exit code here."""
    for line in sys.stdin:
        fork = os.fork()
        if fork == 0:
            return json.loads(line)
        _, status = os.waitpid(fork, 0)
        print(os.waitstatus_to_exitcode(status), flush=True)
    raise SystemExit


if __name__ == "__main__":
    from snakemake.cli import main

    arguments, folder, environment, *outputs = _next_request()
    signal.alarm(1800)  # kills a run that hangs
    sys.argv[1:] = arguments  # papa reads them, too
    os.chdir(folder)
    sys.path[0] = folder
    os.environ.clear()
    os.environ.update(environment)
    for number, path in enumerate([os.devnull, *outputs]):
        os.dup2(os.open(path, os.O_RDWR), number)
    main()
