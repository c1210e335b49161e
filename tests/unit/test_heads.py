"""The kept heads of a study as files: those that were replaced last."""

import pyarrow as pa

from papa.config.artefacts import ARTEFACTS
from papa.files import write_table
from papa.jobs.heads import write_kept_heads

RANKED = [(1, 0), (0, 0), (1, 2), (0, 2), (1, 1), (0, 1)]


def test_the_heads_that_are_replaced_last_are_kept(tmp_path):
    columns = {"rank": range(6), "layer": [layer for layer, _ in RANKED], "head": [head for _, head in RANKED]}
    for order in ("lambda-0", "random-1"):
        path = ARTEFACTS["order"].path(model="m", task="t", constant="average", order=order)
        write_table(pa.table(columns), tmp_path / path, {})
    (file,) = write_kept_heads(tmp_path, tmp_path / "kept")
    assert file.name == "m-t-average-lambda-0.csv" and file.read_text() == "layer,head\n0,1\n1,1\n0,2\n"
    (file,) = write_kept_heads(tmp_path, tmp_path / "few", "1/7")
    assert file.read_text() == "layer,head\n"
    assert write_kept_heads(tmp_path, tmp_path / "none", model="n") == []
