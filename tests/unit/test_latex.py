"""LaTeX tables: the numbers of the summary, and every character as it is read."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from papa.errors import DamagedArtefact
from papa.files import write_table
from papa.results.latex import escape, write_latex
from papa.results.summary import SUMMARY_COLUMNS

KEPT = {"1": 23, "1/2": 11, "0": 0}


def row(fraction: str, mean: float, **other: Any) -> dict[str, Any]:
    setting = {"model": "tiny_1", "task": "t", "title": "100 % of R&D_#1 ± {a}", "metric": "f1", "main": True}
    setting |= {"constant": None if fraction == "1" else "average", "order": "lambda" if fraction == "1/2" else None}
    setting |= {"fraction": fraction, "kept": KEPT[fraction], "heads": 23, "subset": "all", "examples": 1013}
    numbers = {"mean": mean, "seeds": 3, "half_width": 0.013, "low": mean - 0.013, "high": mean + 0.013}
    return dict.fromkeys(SUMMARY_COLUMNS) | setting | numbers | {"relative_drop": (0.8 - mean) / 0.8} | other


def latex(folder: Path, rows: list[dict[str, Any]]) -> tuple[str, str]:
    schema = pa.schema(list(SUMMARY_COLUMNS.items()))
    write_table(pa.Table.from_pylist(rows, schema=schema), folder / "summary.parquet", {})
    said = write_latex(folder / "summary.parquet", folder / "summary.tex")
    return said, (folder / "summary.tex").read_text(encoding="utf-8")


def test_scores_drops_and_rules(tmp_path: Path) -> None:
    said, text = latex(tmp_path, [row(f, mean) for f, mean in zip(KEPT, (0.8, 0.84, 0.6), strict=True)])
    assert said == "1 LaTeX tables"
    title = r"100 \% of R\&D\_\#1 $\pm$ \{a\}"
    assert title + r" & F1 & 0.800 $\pm$.013 & 0.840 $\pm$.013 & 0.600 $\pm$.013 & 25.0\% \\" in text
    assert "\\midrule\n" r"mean drop &  & 0.0\% & $-$5.0\% & 25.0\% & 25.0\% \\" in text
    assert r"\begin{tabular}{llrrrr}" in text
    assert [rule for rule in re.findall(r"\\(\w+)", text) if rule.endswith("rule")] == [
        "toprule",
        "midrule",
        "midrule",
        "bottomrule",
    ]
    assert r"task & metric & 1 & 1/2 & 0 & drop at 0 \\" in text
    assert r"\caption{tiny\_1 (23 heads): average constants, lambda order. Columns: fraction" in text
    assert r"mean over 3 seeds $\pm$ half width of the 95 \% Student-t interval" in text


def test_subsets_and_further_readings_are_tables_of_their_own(tmp_path: Path) -> None:
    rows = [row(f, 0.8) for f in KEPT] + [row(f, 0.7, subset="look^up") for f in KEPT]
    rows += [row(f, -0.3, metric="chunk_f1", main=False) for f in KEPT]
    said, text = latex(tmp_path, rows)
    assert said == "3 LaTeX tables"
    assert r"& look\textasciicircum{}up & 1,013 & 0.700" in text
    assert r"& Chunk F1 & $-$0.300 $\pm$.013" in text
    assert r"\begin{tabular}{lllrrrr}" in text
    assert text.count("Columns: fraction") == 1
    assert "lambda order. Further readings." in text
    for begin, end in ((r"\begin{table}", r"\end{table}"), (r"\begin{tabular}", r"\end{tabular}")):
        assert text.count(begin) == text.count(end) == 3


@pytest.mark.parametrize(
    ("text", "escaped"),
    [
        ("50%", r"50\%"),
        ("a_b & c#d $e", r"a\_b \& c\#d \$e"),
        ("\\~^{}", r"\textbackslash{}\textasciitilde{}\textasciicircum{}\{\}"),
        ("0.1 ±.02", r"0.1 $\pm$.02"),
        ("-0.12", "$-$0.12"),
        ("[CLS]", "{[}CLS]"),
        ("CoNLL-2003, fine-tuned, -", "CoNLL-2003, fine-tuned, -"),
    ],
)
def test_escapes(text: str, escaped: str) -> None:
    assert escape(text) == escaped


def test_another_table_is_refused(tmp_path: Path) -> None:
    write_table(pa.table({"score": [1.0]}), tmp_path / "runs.parquet", {})
    with pytest.raises(DamagedArtefact, match="so it is no summary"):
        write_latex(tmp_path / "runs.parquet", tmp_path / "summary.tex")
    assert not (tmp_path / "summary.tex").exists()
