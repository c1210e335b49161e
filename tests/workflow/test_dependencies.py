"""Which modules a script depends on is read from the source."""

from pathlib import Path

from tiny import REPOSITORY

from papa.jobs.dependencies import modules_behind


def write(root: Path, files: dict[str, str]) -> None:
    for name, source in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(source, encoding="utf-8")


def behind(root: Path) -> list[str]:
    return [str(Path(path).relative_to(root)) for path in modules_behind(str(root / "script.py"), str(root))]


def test_imports_are_followed_wherever_they_stand(tmp_path):
    files = {
        "script.py": "from papa.jobs.stage import stage\nwith stage():\n    from papa.a import f\n",
        "papa/a.py": "import os\nfrom papa import b, missing\ndef f():\n    import papa.c\n",
        "papa/b.py": "if TYPE_CHECKING:\n    from papa.e import T\nelse:\n    import papa.d\n",
        "papa/c.py": "from papa.a import f\n",
        "papa/d.py": "",
        "papa/e.py": "",
        "papa/stage.py": "import papa.e\n",
        "papa/unused.py": "",
    }
    write(tmp_path, files)
    assert behind(tmp_path) == ["papa/a.py", "papa/b.py", "papa/c.py", "papa/d.py"]


def test_a_package_counts_with_its_init_but_for_papas_own(tmp_path):
    files = {
        "script.py": "from papa.data.sources import load\n",
        "papa/__init__.py": "import papa.heavy\n",
        "papa/heavy.py": "",
        "papa/sources/__init__.py": "import papa.base\n",
        "papa/sources/texts.py": "",
        "papa/base.py": "",
    }
    write(tmp_path, files)
    assert behind(tmp_path) == ["papa/base.py", "papa/sources/__init__.py", "papa/sources/texts.py"]


def test_scripts_depend_on_what_they_call():
    def stems(script):
        found = modules_behind(str(REPOSITORY / f"workflow/scripts/{script}.py"), str(REPOSITORY))
        return {Path(path).relative_to(REPOSITORY / "papa").as_posix() for path in found}

    assert {"layout.py", "artefacts.py", "sources/models.py"} <= stems("tokenize")
    assert {"training.py", "probes.py", "metrics.py", "features.py"} <= stems("probe")
    assert "plots.py" in stems("plot_grid")
    assert not {"plots.py", "tables.py", "ranking.py", "stage.py"} & stems("probe")
    assert not {"training.py", "encoder.py"} & stems("collect")


def test_every_script_is_short_and_calls_one_stage():
    for script in (REPOSITORY / "workflow/scripts").glob("*.py"):
        source = script.read_text(encoding="utf-8")
        assert len(source.splitlines()) <= 30, script
        assert source.count("from papa.") == 2, script
        assert "snakemake.config" not in source, script
