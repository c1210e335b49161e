"""Declarations: `papa freeze` writes one, and stage claims compares a study with it."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from finished import CONFIG as MADE
from finished import write_results
from tiny import CONFIG, with_keys, write_data, write_model
from typer.testing import CliRunner

from papa import cli
from papa.config.declaration import Declaration, compared, declared_by
from papa.config.freshness import SourceDigests
from papa.config.reading import read_config
from papa.config.settings import Config
from papa.config.study import Study
from papa.data.local_digests import LocalSourceDigests
from papa.errors import InputError
from papa.files import digest_of_json
from papa.jobs.freeze import freeze
from papa.results.analysis import analyse
from papa.results.conclusion import Conclusion
from papa.results.phrases import ASSUMPTIONS, NOT_DECLARED

FROZEN = Path("mine.frozen.json")
SEEDS = {"run.seeds": [1, 2, 3]}


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_data(tmp_path / "data")
    write_model(tmp_path / "models/tiny")
    write(SEEDS)
    return tmp_path


def write(changes: dict[str, Any]) -> str:
    Path("mine.yaml").write_text(yaml.safe_dump(with_keys(CONFIG, SEEDS | changes)), encoding="utf-8")
    return "mine.yaml"


def differences(**changes: Any) -> list[str]:
    """The keys in which a changed config differs from its declaration."""
    config = read_config(write(changes))
    check = compared(Study(config, "results/tiny", LocalSourceDigests(config.machine, ["mine.yaml"])))
    assert check is not None and check["intact"]
    return [difference["key"] for difference in check["differences"]]


def test_a_declaration_has_what_is_claimed_and_is_stable():
    first = freeze("mine.yaml")
    content = json.loads(FROZEN.read_text(encoding="utf-8"))
    declared, expected = content["declared"], content["expected"]
    assert first.changed and first.declaration.intact and set(content) >= {"digest", "written", "papa"}
    assert declared["margin"] == 0.1 and declared["floors"] == ["zeros"] and declared["ranking"]["seeds"] == [0]
    grid = declared["grids"]["score_by_fraction"]
    assert grid["seeds"] == [1, 2, 3] and grid["fractions"] == ["1", "1/2", "0"] and grid["constants"] == ["average"]
    assert declared["settings"]["tasks"]["animals"]["learning_rate"] == 0.001
    assert set(declared["data"]) == {"sentences", "words"} and len(declared["weights"]["tiny"]) == 64
    assert expected["heads_replaced"] == {"score_by_fraction": {"tiny": [0, 2, 4]}}
    assert set(expected["smallest_margins"]) == {"animals", "tags"} and expected["power"] == 0.8
    before = FROZEN.read_bytes()
    assert not freeze("mine.yaml").changed and FROZEN.read_bytes() == before
    write({"device": "cpu", "plots": {"width": 99}, "tasks.animals.title": "Animals", "name": "other"})
    assert not freeze("mine.yaml").changed, "no claim depends on these"
    write({"margin": 0.2, "tasks.animals.epochs": 3})
    with pytest.raises(InputError) as refused:
        freeze("mine.yaml")
    assert str(refused.value) == (
        "mine.frozen.json already declares other values of margin, settings.tasks.animals.epochs; undo this change of "
        "the config, or delete the file to declare the study again."
    )
    assert FROZEN.read_bytes() == before
    FROZEN.unlink()
    assert freeze("mine.yaml").changed


def test_an_existing_declaration_stays_if_only_its_estimates_would_differ(monkeypatch):
    before = freeze("mine.yaml").declaration
    monkeypatch.setattr("papa.jobs.plan.SEED_SPREAD", 0.05)
    assert freeze("mine.yaml").declaration == before


def older(**changes: Any) -> None:
    """Replace the declaration by one of an earlier version, whose digest covered two parts."""
    content = json.loads(FROZEN.read_text(encoding="utf-8")) | changes
    content["digest"] = digest_of_json({name: content[name] for name in ("declared", "expected")})
    FROZEN.write_text(json.dumps(content), encoding="utf-8")


def test_keys_that_an_older_declaration_lacks_have_their_defaults():
    """As if this version had added `unit` and `draws`."""
    declared = freeze("mine.yaml").declaration.model_dump()["declared"]
    del declared["ranking"]["unit"], declared["ranking"]["draws"]
    older(declared=declared)
    assert differences() == [] and not freeze("mine.yaml").changed
    changes = {"ranking.draws": 5}
    assert differences(**changes) == ["ranking.draws"]


def test_the_digest_covers_the_time_except_in_older_declarations():
    freeze("mine.yaml")
    content = json.loads(FROZEN.read_text(encoding="utf-8"))
    FROZEN.write_text(json.dumps(content | {"written": "2020-01-02T03:04:05+00:00"}), encoding="utf-8")
    assert not Declaration.read(FROZEN).intact
    with pytest.raises(InputError, match=r"mine\.frozen\.json was edited after it was written, .* restore it from"):
        freeze("mine.yaml")
    older()
    assert Declaration.read(FROZEN).intact


@pytest.mark.parametrize(
    ("changes", "keys"),
    [
        ({}, []),
        ({"device": "cpu", "token_budget": 7, "tasks.animals.title": "Animals"}, []),
        ({"margin": 0.2, "run.seeds": [1, 2]}, ["grids.score_by_fraction.seeds", "margin"]),
        ({"contextless": False}, ["floors"]),
        ({"run.fractions": ["1", "0"]}, ["grids.score_by_fraction.fractions"]),
        ({"grids": {"more": {"constants": ["toeplitz"]}}}, ["grids.more"]),
        ({"tasks.animals.epochs": 3}, ["settings.tasks.animals.epochs"]),
        (
            {"run.tasks": ["animals"]},
            ["grids.score_by_fraction.tasks", "settings.corpora.words", "settings.tasks.tags"],
        ),
        ({"ranking": {"seeds": [0, 1]}}, ["ranking.seeds"]),
    ],
)
def test_a_changed_config_is_compared_key_by_key(changes, keys):
    freeze("mine.yaml")
    assert differences(**changes) == keys


def test_changed_data_or_weights_differ_and_missing_ones_are_not_compared(folder):
    freeze("mine.yaml")
    with open("data/sentences.train.csv", "a", encoding="utf-8") as file:
        file.write("the cat runs,1,long\n")
    assert differences() == ["data.sentences.train"]
    write_model(folder / "models/tiny", seed=1)
    assert differences() == ["data.sentences.train", "weights.tiny"]
    config = read_config("mine.yaml")
    declaration = Declaration.read(FROZEN)

    class Elsewhere(SourceDigests):
        def declaration(self):
            return declaration

    assert compared(Study(config, "results/tiny", Elsewhere()))["differences"] == []


def test_without_a_declaration_there_is_nothing_to_compare():
    config = read_config("mine.yaml")
    assert compared(Study(config, "results/tiny", LocalSourceDigests(config.machine, ["mine.yaml"]))) is None


def test_an_edited_declaration_does_not_match_its_digest():
    freeze("mine.yaml")
    content = json.loads(FROZEN.read_text(encoding="utf-8"))
    content["declared"]["margin"] = 0.3
    FROZEN.write_text(json.dumps(content), encoding="utf-8")
    assert not Declaration.read(FROZEN).intact
    FROZEN.write_text("{}", encoding="utf-8")
    with pytest.raises(InputError, match=r"mine\.frozen\.json is not a declaration of `papa freeze`; restore it"):
        freeze("mine.yaml")


def test_nothing_is_declared_after_an_outcome(folder):
    outcome = folder / "results/tiny/models/tiny/tasks/animals/runs/average/lambda-0/kept-1of2/outcomes.parquet"
    outcome.parent.mkdir(parents=True)
    outcome.touch()
    result = CliRunner().invoke(cli.app, ["freeze", "mine.yaml"])
    assert result.exit_code == 2 and not FROZEN.exists()
    assert "results/tiny has outcomes (models/tiny/tasks/animals/runs/average" in result.stderr


def test_the_command_says_what_was_declared():
    result = CliRunner().invoke(cli.app, ["freeze", "mine.yaml"])
    assert result.exit_code == 0, result.output
    words = " ".join(result.output.split())
    assert "Declared in mine.frozen.json (digest " in words and "Margin: 10 %. Context-free floors: zeros." in words
    assert "Commit this file before the run, because only a commit " in words and "With 80 % power" in words
    assert "Nothing has changed since" in CliRunner().invoke(cli.app, ["freeze", "mine.yaml"]).output
    content = json.loads(CliRunner().invoke(cli.app, ["freeze", "mine.yaml", "--json"]).output)
    assert content["declared"]["margin"] == 0.1


def test_clusters_make_the_declared_margins_larger():
    expected = freeze("mine.yaml").declaration.expected
    FROZEN.unlink()
    write({"corpora.sentences.cluster": 3})
    clustered = freeze("mine.yaml").declaration.expected
    assert expected["independent_margins"] == {}
    assert clustered["independent_margins"] == {"animals": expected["smallest_margins"]["animals"]}
    assert clustered["smallest_margins"]["animals"] > expected["smallest_margins"]["animals"]
    assert clustered["smallest_margins"]["tags"] == expected["smallest_margins"]["tags"]
    words = " ".join(CliRunner().invoke(cli.app, ["freeze", "mine.yaml"]).output.split())
    assert "so a cluster counts as one example. If examples are independent, the smallest margin is animals " in words


# -- in the claims of a study -----------------------------------------------------------------------------------------


class Declared(SourceDigests):
    """A machine with a declaration next to the config."""

    def __init__(self, written: Declaration | None):
        self.written = written

    def declaration(self) -> Declaration | None:
        return self.written


def declaration(written: str = "2020-01-02T03:04:05+00:00", **declared: Any) -> Declaration:
    """The declaration of the made-up study, with other values of some keys."""
    content = declared_by(Study(Config.model_validate(MADE), "nowhere")) | declared
    return Declaration.of(content, {}, written)


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    return write_results(tmp_path_factory.mktemp("finished"))


def concluded(finished: Study, written: Declaration | None) -> Conclusion:
    study = Study(finished.config, finished.results, Declared(written))
    job = study.analysis("claims").placed(study.results)
    analyse(job)
    return Conclusion.read(job.output("claims"))


@pytest.mark.parametrize(
    ("written", "words"),
    [
        (declaration(), "Declared before the first outcome, according to file times (declaration "),
        (
            declaration("2999-01-02T03:04:05+00:00"),
            ": it was written after the first outcome, according to ",
        ),
        (declaration(margin=0.05), ": margin was declared as 0.05 and is 0.1."),
        (declaration().model_copy(update={"digest": "0" * 64}), "so its digest does not match."),
        (None, NOT_DECLARED),
    ],
)
def test_claims_say_whether_the_study_was_declared(finished, written, words):
    conclusion = concluded(finished, written)
    assert words in conclusion.declared and conclusion.sentence.endswith(conclusion.declared)
    assert (conclusion.declaration is None) == (written is None)
    if written is not None:
        assert conclusion.declaration.digest == written.digest
        assert conclusion.declaration.holds == (words.startswith("Declared"))
    [margin] = [item for item in conclusion.assumptions if item.name == "margin"]
    assert margin.sentence.endswith(conclusion.declared)


def test_claims_are_rebuilt_when_the_declaration_changes(finished):
    """The settings of stage claims contain the digest of the declaration, and those of other stages do not."""

    def settings(written):
        study = Study(finished.config, finished.results, Declared(written))
        return {job.main: job.settings.recorded() for job in study.jobs()}

    before, after, without = settings(declaration()), settings(declaration(margin=0.05)), settings(None)
    for other in (after, without):
        assert [path for path in before if before[path] != other[path]] == ["tables/claims.parquet"]
    assert after["tables/claims.parquet"]["declaration"]["digest"] == declaration(margin=0.05).digest


def test_claims_state_the_estimand_the_recipe_and_the_assumptions(finished):
    conclusion = concluded(finished, None)
    assert conclusion.estimand.floors == ("zeros",)
    assert conclusion.estimand.quantity == "(original - score) / (original - floor)"
    assert [item.name for item in conclusion.assumptions] == [
        name for name in ASSUMPTIONS if name not in ("clusters", "resampled")
    ]
    tested = {item.name: item.tests for item in conclusion.assumptions if item.tested}
    assert list(tested) == ["contribution"]
    tests = {(test.model, test.task): test for test in tested["contribution"]}
    assert len(tests) == 4 and all(test.passed == (test.p < 0.05) for test in tests.values())
    first = conclusion.training[0]
    assert (first.learning_rates, first.batch_size, first.maximum, first.rows) == ((0.001,), 8, 3, 1024)
