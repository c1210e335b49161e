"""The command `papa`, called in this process."""

from typer.testing import CliRunner

from papa.cli import app


def invoke(*arguments, code=0, **options):
    """Run the command, compare its exit code, and return the result."""
    result = CliRunner().invoke(app, [*map(str, arguments)], **options)
    assert result.exit_code == code, result.output
    return result


def refusal(*arguments):
    """The one sentence with which the command refuses its arguments."""
    result = invoke(*arguments, code=2)
    assert not result.stdout and len(result.stderr.splitlines()) == 1, result.output
    return result.stderr
