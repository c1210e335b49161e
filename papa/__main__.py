"""The command `papa` and `python -m papa`: check that its packages are installed, then run `papa.cli`."""

from __future__ import annotations

import sys

from papa.errors import missing_extra


def main() -> None:
    if missing := missing_extra("workflow", "The command papa"):
        print(missing, file=sys.stderr)
        sys.exit(2)
    from papa.cli import main as run_command

    run_command()


if __name__ == "__main__":
    main()
