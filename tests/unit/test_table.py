"""Printed tables: the numbers of the summary, and every character as it is read."""

import io
import re

import pandas as pd
import pytest
from rich.console import Console

from papa.results.table import Table, escape_latex, write_pages


def printed(table, width=80):
    console = Console(
        markup=False, highlight=False, emoji=False, width=width, record=True, file=io.StringIO()
    )
    table.print(console)
    return console.export_text()


def test_latex_is_ready_to_paste():
    """Booktabs rules, no vertical lines, every special character escaped, and notes after the tabular."""
    special = "50% of a_b & c#d $e {f} ~ ^ | [g] * \\ δ τ ≤".replace("≤", "…")
    frame = pd.DataFrame([[special, "-0.2"], ["**b**", "1"], ["c", "2"]], columns=["na_me", "50%"])
    lines = Table("T & U", frame, 1, note=f"Note: {special}", rules=(0, 2)).latex().splitlines()
    assert lines[:3] == [r"% needs \usepackage{booktabs}", r"\begin{table}", r"\centering"]
    assert lines[3:7] == [
        r"\caption{T \& U.}",
        r"\begin{tabular}{lr}",
        r"\toprule",
        r"na\_me & 50\% \\",
    ]
    assert [line for line in lines if "rule" in line] == [
        r"\toprule",
        r"\midrule",
        r"\midrule",
        r"\bottomrule",
    ]
    end = lines.index(r"\end{tabular}")
    assert lines[-1] == r"\end{table}"
    assert "|" not in "".join(lines)
    assert "".join(lines).isascii()
    rows = [line for line in lines[6 : end - 1] if "rule" not in line]
    assert all(len(re.findall(r"(?<!\\)&", line)) == 1 for line in rows)
    assert r"\textbf{b} & 1 \\" in rows
    for line in lines[3:]:
        plain = re.sub(r"\\[&%$#_{}\\]", "", line)
        assert (
            not re.search("[#%_]", plain)
            and plain.count("{") == plain.count("}")
            and plain.count("$") % 2 == 0
        )


@pytest.mark.parametrize(
    ("text", "escaped"),
    [
        ("50%", r"50\%"),
        ("0.1 ±.02", r"0.1 $\pm$.02"),
        ("-0.12", "$-$0.12"),
        ("[CLS]", "{[}CLS]"),
        ("a_b & c#d $e", r"a\_b \& c\#d \$e"),
        ("\\~^{}", r"\textbackslash{}\textasciitilde{}\textasciicircum{}\{\}"),
        ("CoNLL-2003, fine-tuned, -", "CoNLL-2003, fine-tuned, -"),
    ],
)
def test_escapes(text, escaped):
    assert escape_latex(text) == escaped


def test_a_page_and_a_terminal_get_the_same_text(tmp_path):
    frame = pd.DataFrame([["a\x1b[2Jb", "1"], ["**c**", "-2"]], columns=["name", "number"])
    table = Table("Two | <b>[lines](javascript:a)</b>", frame, 1, note="a\n\n# note", rules=(1,))
    assert (table.header, table.rows) == (["name", "number"], [["a\x1b[2Jb", "1"], ["**c**", "-2"]])
    assert "a·[2Jb" in printed(table)
    write_pages("A page", [table], "of one table", tmp_path / "page.md", tmp_path / "page.tex")
    heading = "## Two | &lt;b&gt;[lines]\\(javascript:a)&lt;/b&gt;"  # no link
    assert (tmp_path / "page.md").read_text().split("\n\n")[:4] == [
        "# A page",
        "of one table",
        heading,
        "a # note",
    ]
    assert (
        r"\caption{A page, Two \textbar{} \textless{}b\textgreater{}{[}lines"
        in (tmp_path / "page.tex").read_text()
    )
    assert "](" not in Table("", pd.DataFrame({"task": ["![x](http://b)"]}), 1).markdown()


def test_names_stay_readable_next_to_many_numbers():
    cells = {f"1/{number}": ["0.896 ±.043"] for number in range(1, 8)}
    shown = printed(Table("", pd.DataFrame({"task": ["Names in context"]} | cells), 1))
    assert "Names in context" in shown
    assert shown.count("0.896") == shown.count("±.043") == 7


def test_a_narrow_terminal_breaks_no_word_and_leaves_out_no_column():
    cells = {"task": ["Names in context"], "attention contributes": ["8.5 (4.6 to 12.4)"]}
    words = printed(Table("", pd.DataFrame(cells), 1), width=20).split()
    shown = "task Names in context attention contributes 8.5 (4.6 to 12.4)"
    assert {*shown.split()} <= {*words}
