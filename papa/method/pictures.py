"""Pictures of constants, and the style of all figures."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from papa.errors import InputError

if TYPE_CHECKING:
    import altair as alt
    import pandas as pd
    from torch import Tensor

Figure = TypeVar("Figure", bound="alt.TopLevelMixin")
PANELS_PER_ROW = 3
WIDTH = 220
HEIGHT = 160
"""The size of a panel in pixels."""
COLOR_RAMP = ["white", "#0072B2", "#00213a"]
"""Colours from no attention to the highest attention."""
MAXIMUM_SLOTS = 64
"""Maximum number of slots in a picture."""
MINIMUM_SHARE = 0.02
"""A picture shows only slots that are used by at least this share of the examples."""


class Averages(Protocol):
    """The parts of `papa.Constants` that a picture shows."""

    sum: Tensor
    count: Tensor
    examples: int
    kind: str

    @property
    def mean(self) -> Tensor: ...


def drawn_slots(averages: Averages, maximum: int = MAXIMUM_SLOTS) -> list[int]:
    """Return at most `maximum` slots for a picture, in ascending order: those that the most examples use."""
    uses = averages.count.diagonal().tolist()
    least = max(1, MINIMUM_SHARE * averages.examples)
    used = [slot for slot, use in enumerate(uses) if use >= least]
    if not used:
        raise InputError(
            "These constants are averages over no tokens; average the attention of a corpus."
        )
    return sorted(sorted(used, key=lambda slot: -uses[slot])[:maximum])


def pictures(averages: Averages, heads: Sequence[tuple[int, int]]) -> alt.ConcatChart:
    """Draw the average attention of some heads: rows are queries, columns are keys.

    Each head has a separate colour scale up to its largest entry; otherwise a diagonal of 0.2 would vanish next to a
    [SEP] of 0.9. Colours follow the square root, so that more than [CLS] and [SEP] is visible. Pairs of slots that no
    example uses are grey.
    """
    import altair as alt
    import pandas as pd

    _check_heads(averages, heads)
    slots = drawn_slots(averages)
    mean = averages.mean
    examples = averages.count
    pairs = [(query, key) for query in slots for key in slots if examples[query, key]]
    cells = pd.DataFrame(pairs, columns=["query", "key"])
    for layer, head in heads:
        cells[f"{layer}_{head}"] = [round(float(mean[layer, head, *pair]), 4) for pair in pairs]
    figure = alt.concat(
        *(_picture(cells, slots, layer, head) for layer, head in heads),
        columns=min(PANELS_PER_ROW, len(heads)),
        data=inline(cells),
    )
    figure = styled(figure.resolve_scale(color="independent"))
    figure = figure.configure_view(stroke=None, fill="#e6e6e6")
    drawn: alt.ConcatChart = figure.configure_axis(
        labelFontSize=10, titleFontSize=11, titleFontWeight="normal", grid=False
    )
    return drawn


def _check_heads(averages: Averages, heads: Sequence[tuple[int, int]]) -> None:
    """Raise `InputError` if a head does not exist, or if these averages are no attention."""
    layers, per_layer = averages.sum.shape[:2]
    for layer, head in heads:
        if not (0 <= layer < layers and 0 <= head < per_layer):
            raise InputError(
                f"There is no head {[layer, head]} in these constants; give heads as [layer, head], with "
                f"layers 0 to {layers - 1} and heads 0 to {per_layer - 1}."
            )
    if averages.kind == "mean-output":
        raise InputError(
            "The average output of a head has no entries for pairs of slots; average its attention."
        )


def _picture(cells: pd.DataFrame, slots: Sequence[int], layer: int, head: int) -> alt.Chart:
    """Draw a head's column of `cells`, between the slots that are shown."""
    import altair as alt

    column = f"{layer}_{head}"
    largest = cells[column].max() or 1
    side = max(1, round(WIDTH / len(slots))) * len(slots)  # cells of whole pixels have no seams
    color = alt.Color(
        f"{column}:Q",
        scale=alt.Scale(
            type="sqrt", range=COLOR_RAMP, domain=[0, largest / 4, largest], interpolate="rgb"
        ),
        legend=alt.Legend(
            title=["mean attention,", "square-root scale"],
            gradientLength=side - 36,
            # equidistant on the scale
            values=[largest * share**2 for share in (0, 0.25, 0.5, 0.75, 1)],
            format=".2r",
        ),
    )
    # slots are categories, so no space is left for slots that are not shown
    scale = alt.Scale(domain=slots)
    step = 1 + len(slots) // 16
    labelled = [*slots[:-step:step], slots[-1]]
    axis = alt.Axis(values=labelled, labelAngle=0, labelOverlap=False, ticks=False, domain=False)
    chart = alt.Chart(width=side, height=side, title=f"layer {layer}, head {head}")
    drawn: alt.Chart = chart.mark_rect().encode(
        alt.X("key:O", title="key slot", scale=scale, axis=axis),
        alt.Y("query:O", title="query slot", scale=scale, axis=axis),
        color,
    )
    return drawn


def styled(figure: Figure) -> Figure:
    """Apply the fonts and lines of all figures to a figure."""
    drawn: Figure = (
        figure.configure_axis(
            labelFontSize=11, titleFontSize=11, titleFontWeight="normal", gridColor="#e6e6e6"
        )
        .configure_title(fontSize=13, subtitleFontSize=11, anchor="start", frame="group")
        .configure_view(stroke=None)
    )
    return drawn


def inline(frame: pd.DataFrame) -> alt.InlineData:
    """Return the rows of a frame as inline data of a figure; Altair refuses frames with more than 5,000 rows."""
    import altair as alt

    # JSON has no NaN
    rows: Any = frame.astype(object).where(frame.notna(), None).to_dict("records")
    return alt.InlineData(rows)
