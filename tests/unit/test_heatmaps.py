"""The pictures of heads: which heads, which slots, which numbers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

import papa
from papa.results.heatmaps import MOST_SLOTS, drawn_slots, plot_heads

LAYERS, HEADS, N = 3, 5, 7


def averages(uses: list[int], layers: int = LAYERS) -> papa.ConstantMatrices:
    """Averages whose slot s is used by `uses[s]` examples, the last by all, with an entry of its own for each cell."""
    use = torch.tensor(uses)
    count = torch.minimum(use[:, None], use)
    mean = torch.arange(layers * HEADS * len(uses) ** 2).view(layers, HEADS, len(uses), len(uses)) / 1000
    return papa.ConstantMatrices((mean * count).double(), count, max(uses))


def draw(folder: Path, constants: papa.ConstantMatrices, **options: Any) -> tuple[str, dict[str, Path]]:
    constants.save(folder / "average.h5")
    files = {kind: folder / f"heads.{kind}" for kind in ("svg", "png", "html")}
    return plot_heads(folder / "average.h5", **files, **({"style": {}} | options)), files


def test_pictures_of_chosen_heads(tmp_path: Path) -> None:
    constants = averages([101, 101, 53, 1, 0, 0, 101])
    said, files = draw(tmp_path, constants, heads=[[0, 4], [2, 1]], style={"scale": 1})
    assert said == "2 heads drawn in 4 of 5 used slots, as SVG, PNG and HTML"
    svg = files["svg"].read_text(encoding="utf-8")
    assert all(f">{text}<" in svg for text in ("layer 0, head 4", "layer 2, head 1", "query slot", "key slot", "6"))
    assert files["png"].read_bytes().startswith(b"\x89PNG")
    page = files["html"].read_text(encoding="utf-8")
    spec, _ = json.JSONDecoder().raw_decode(page, page.index("const spec = ") + len("const spec = "))
    [values] = spec["datasets"].values()
    cells = {(cell["query"], cell["key"]): cell for cell in values}
    assert len(cells) == len(values) == 4 * 4
    assert cells[2, 6] == {
        "query": 2,
        "key": 6,
        "examples": 53,
        "0_4": pytest.approx(float(constants.mean[0, 4, 2, 6]), abs=1e-4),
        "2_1": pytest.approx(float(constants.mean[2, 1, 2, 6]), abs=1e-4),
    }
    [first, _] = spec["concat"]
    # rows are queries and columns keys, slot 0 in the upper left corner
    assert (first["encoding"]["y"]["field"], first["encoding"]["x"]["field"]) == ("query", "key")


def test_pairs_of_slots_that_no_example_has_are_no_cells(tmp_path: Path) -> None:
    constants = averages([5, 5, 5, 5, 5, 5, 5])
    constants.count[2, 3] = constants.count[3, 2] = 0
    page = draw(tmp_path, constants, heads=[(0, 0)])[1]["html"].read_text(encoding="utf-8")
    assert page.count('"examples": 5') == N * N - 2


def test_slots_in_most_use_are_drawn() -> None:
    n = 131
    uses = [200 - slot for slot in range(n)]
    uses[n - 1], uses[97] = 200, 199
    slots = drawn_slots(averages(uses, layers=1))
    assert slots == [*range(MOST_SLOTS - 2), 97, n - 1]
    with pytest.raises(papa.InputError, match="over no token"):
        drawn_slots(averages([0, 0, 0]))


def test_heads_that_do_not_exist_are_named(tmp_path: Path) -> None:
    constants = averages([3] * N)
    with pytest.raises(papa.InputError, match=r"no head \[0, 11\].*layers are 0 to 2 and heads 0 to 4"):
        draw(tmp_path, constants)  # the paper's heads
    with pytest.raises(papa.InputError, match=r"no head \[-1, 2\]"):
        draw(tmp_path, constants, heads=[(-1, 2)])
    with pytest.raises(papa.InputError, match=r"no head \[1\].*as \[layer, head\]"):
        draw(tmp_path, constants, heads=[(1,)])
    with pytest.raises(papa.InputError, match="no heads to draw"):
        draw(tmp_path, constants, heads=[])
    with pytest.raises(papa.InputError, match="no 'colour'"):
        draw(tmp_path, constants, heads=[(1, 1)], style={"colour": 1})
    with pytest.raises(papa.InputError, match="width is 'wide'"):
        draw(tmp_path, constants, heads=[(1, 1)], style={"width": "wide"})
    assert [path.name for path in tmp_path.iterdir()] == ["average.h5"]
