"""What `papa init` writes is planned by the workflow itself."""

import pytest
from typer.testing import CliRunner

from papa.cli import app


@pytest.mark.parametrize(
    ("name", "label"),
    [("sentences.{}.csv", "animal"), ("words.{}.jsonl", "tags"), ("run.{}.txt", None)],
)
def test_a_dry_run_takes_it(fresh, monkeypatch, name, label):
    monkeypatch.chdir(fresh.folder)
    train, validation = (f"data/{name.format(split)}" for split in ("train", "validation"))
    if label is None:
        for path in (train, validation):
            (fresh.folder / path).write_text("the old cat sleeps here\n" * 40, encoding="utf-8")
    config = f"init-{label}.yaml"
    given = [
        "--train",
        train,
        "--validation",
        validation,
        "--model",
        "models/tiny",
        *(["--column", f"label={label}"] if label else []),
    ]
    result = CliRunner().invoke(app, ["init", config, *given])
    assert result.exit_code == 0, result.output
    jobs = fresh.planned(None, "--configfile", config)
    trained = "probe" if label else "stream_probe"
    assert jobs["average"] == jobs["train_lambda"] == 1 and jobs[trained] == 4 + 1  # fractions and the floor
