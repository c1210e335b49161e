"""The command `papa` and `python -m papa`: check that its packages are installed, then run `papa.cli`."""

from __future__ import annotations

import atexit
import os
import shutil
import sys
from pathlib import Path


def main() -> None:
    hide_current_folder()
    ensure_home()
    from papa.errors import missing_extra

    if missing := missing_extra("workflow", "The command papa"):
        print(missing, file=sys.stderr)
        sys.exit(2)
    from papa.cli import main as run_command

    run_command()


def hide_current_folder() -> None:
    """Keep modules in the current folder, such as a user's random.py, from replacing libraries here and in children.

    Python looks there first for `python -m`, and for an empty entry of PYTHONPATH. A folder that it names stays.
    """
    named = [entry for entry in os.environ.get("PYTHONPATH", "").split(os.pathsep) if entry]
    os.environ |= {"PYTHONPATH": os.pathsep.join(named), "PYTHONSAFEPATH": "1"}
    try:
        here = os.getcwd()
    except FileNotFoundError:
        sys.exit("The current folder no longer exists; change to another one.")
    if here not in map(os.path.abspath, named):
        sys.path[:] = [entry for entry in sys.path if entry not in ("", here)]


def ensure_home() -> None:
    """Set HOME to a temporary folder if the user has none and no entry in the list of users, as in containers.

    Libraries look for their settings there, here and in children.
    """
    try:
        Path.home()
    except RuntimeError:
        # tempfile would import a user's random.py
        home = os.path.join(os.environ.get("TMPDIR", "/tmp"), f"papa-home-{os.urandom(8).hex()}")
        os.mkdir(home, mode=0o700)
        atexit.register(shutil.rmtree, home, ignore_errors=True)
        os.environ["HOME"] = home


if __name__ == "__main__":
    main()
