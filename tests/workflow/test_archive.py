"""Snakemake's own report: an archive that holds what people look at, with captions, categories and labels."""

import re
import zipfile
from pathlib import Path

REPOSITORY = Path(__file__).parents[2]


def test_the_archive_has_figures_and_tables_with_captions(finished_copy):
    process = finished_copy.snakemake("--configfile", "config.yaml", "--report", "report.zip")
    assert process.returncode == 0, process.stdout + process.stderr
    with zipfile.ZipFile(finished_copy.folder / "report.zip") as archive:
        names = {Path(name).name: name for name in archive.namelist()}
        page = archive.read(names["report.html"]).decode()
        for read in ("index.html", "score_by_fraction.svg", "score_by_fraction.md", "score_and_drop.svg", "summary.md"):
            kept = (finished_copy.folder / "results/tiny").glob(f"*/{read}")
            assert archive.read(names[read]) == next(kept).read_bytes()
    for said in ("for the grid", "Validation score against the fraction", "Mean relative drop", "Run <strong>tiny"):
        assert said in page
    for category in ("Report", "Figures", "Tables"):
        assert f'"{category}"' in page
    assert re.search(r'"figure": ?"score_by_fraction"', page)


def test_every_figure_and_table_that_people_read_has_a_caption():
    """What a rule adds to `figures/` and every Markdown table is in the archive, with a caption that exists."""
    captions = set()
    for rules in (REPOSITORY / "workflow/rules").glob("*.smk"):
        text = rules.read_text(encoding="utf-8")
        for output in re.findall(r"(?:svg|markdown)=\s*(.*)", text):
            assert output.startswith("report("), (rules.name, output)
        captions |= set(re.findall(r'caption="\.\./report/(\w+\.rst)"', text))
    assert captions | {"workflow.rst"} == {path.name for path in (REPOSITORY / "workflow/report").iterdir()}
