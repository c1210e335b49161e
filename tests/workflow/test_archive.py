"""Snakemake's own report: an archive of what people look at, with captions, categories and labels."""

import re
import zipfile
from pathlib import Path


def test_the_archive_has_figures_and_tables_with_captions(computed_copy):
    computed_copy.run("--configfile", "config.yaml", "--report", "report.zip")
    with zipfile.ZipFile(computed_copy.folder / "report.zip") as archive:
        names = {Path(name).name: name for name in archive.namelist()}
        page = archive.read(names["report.html"]).decode()
        for read in ("index.html", "score_by_fraction.svg", "score_by_fraction.md", "score_and_drop.svg", "summary.md"):
            kept = (computed_copy.folder / "results/tiny").glob(f"*/{read}")
            assert archive.read(names[read]) == next(kept).read_bytes()
    for said in ("One analysis as a table", "One analysis as a figure", "The HTML report", "Run <strong>tiny"):
        assert said in page
    for category in ("Report", "Figures", "Tables"):
        assert f'"{category}"' in page
    assert re.search(r'"analysis": ?"score_by_fraction"', page)
