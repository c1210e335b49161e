"""A conclusion comes back from JSON."""

import math
from typing import Any

import pytest
from builders import line_claim

from papa.errors import DamagedArtefact
from papa.files import write_json
from papa.results.conclusion import Conclusion, JointStep

STEP: dict[str, Any] = {"tasks": 1, "fraction": "1/2"}
STEPS = (
    JointStep(**STEP, replaced=4),
    JointStep(**STEP, replaced=8, loss=math.nan, low=-math.inf, high=math.inf, bound=0.1, margin=0.1, worst="A"),
    JointStep(**STEP, replaced=12, loss=0.2, low=0.1, high=0.3, bound=math.inf, margin=math.inf, worst="A"),
)


def test_infinity_is_null_and_what_is_not_known_is_left_out(tmp_path):
    path, before = tmp_path / "claims.json", Conclusion(sentence="A holds.", margin=0.1, lines=(line_claim(STEPS),))
    content = before.to_json()
    unknown, open_ended, unbounded = content["lines"][0]["steps"]
    assert not {"loss", "low", "high", "bound", "margin", "worst"} & unknown.keys()
    assert [open_ended[name] for name in ("loss", "low", "high", "bound")] == [None, None, None, 0.1]
    assert unbounded["bound"] is unbounded["margin"] is None and content["lines"][0]["excluded"] == []
    write_json(content, path)
    after = Conclusion.read(path)
    assert after.to_json() == content
    steps = after.lines[0].steps
    assert steps[0].margin is None and (steps[1].low, steps[1].high, steps[2].margin) == (-math.inf, math.inf, math.inf)
    assert steps[1].loss is not None and math.isnan(steps[1].loss)
    write_json({"sentence": "A holds.", "margin": 0.1, "lines": [{"grid": "g"}]}, path)
    with pytest.raises(DamagedArtefact, match=r"no valid `lines\.0\.line`, so papa cannot read its claims; delete it"):
        Conclusion.read(path)
