"""The kept heads of a study as files: those that were replaced last."""

import pandas as pd
from refusals import input_error

from papa.results.study_results import write_kept_heads

RANKED = [(1, 0), (0, 0), (1, 2), (0, 2), (1, 1), (0, 1)]


def test_the_heads_that_are_replaced_last_are_kept(tmp_path):
    about = {"model": "m", "task": "t", "constant": "average", "order": "lambda", "seed": 0}
    heads = pd.DataFrame(
        about | {"rank": rank, "layer": layer, "head": head}
        for rank, (layer, head) in enumerate(RANKED)
    )
    (file,) = write_kept_heads(heads, tmp_path / "kept")
    assert file.name == "m-t-average-lambda-0.csv"
    assert file.read_text() == "layer,head\n0,1\n1,1\n0,2\n"
    (file,) = write_kept_heads(heads, tmp_path / "few", "1/7")
    assert file.read_text() == "layer,head\n"
    with input_error("no learned order"):
        write_kept_heads(heads[:0], tmp_path / "none")
    with input_error("not a fraction between 0 and 1"):
        write_kept_heads(heads, tmp_path / "none", "2")
