"""Pictures of constants, and the style of all figures."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from papa.errors import InputError

if TYPE_CHECKING:
    import altair as alt
    import pandas as pd

    from papa.method.averages import ConstantMatrices

PANELS = 3
"""Panels in a row."""
RAMP = ["white", "#0072B2", "#00213a"]
"""Colors from no attention to the most."""
MAXIMUM_SLOTS = 64
"""Slots that a picture shows at most."""
MINIMUM_USE = 0.02
"""A picture shows only slots that at least this share of the examples uses."""


def drawn_slots(averages: ConstantMatrices, most: int = MAXIMUM_SLOTS) -> list[int]:
    """Return at most `most` slots for a picture, in rising order: those that most examples use.

    Raises:
        InputError: the averages are over no example.
    """
    uses = averages.count.diagonal().tolist()
    enough = [slot for slot, use in enumerate(uses) if use and use >= MINIMUM_USE * averages.examples]
    if not enough:
        raise InputError("These constants are an average over no token; average the attention of a corpus.")
    return sorted(sorted(enough, key=lambda slot: -uses[slot])[:most])


def pictures(averages: ConstantMatrices, heads: Sequence[tuple[int, int]], side: float) -> alt.ConcatChart:
    """Draw the average attention of some heads: rows are queries, columns are keys.

    Each head has a separate scale of colours up to its largest entry, because a diagonal of 0.2 would vanish next to a
    [SEP] of 0.9. Colours follow the square root, so more than [CLS] and [SEP] is visible. Pairs of slots that no
    example has are grey.

    Args:
        averages: the attention of all heads.
        heads: (layer, head) of each picture, counted from 0.
        side: width and height of a picture, about, in pixels.

    Raises:
        InputError: there are no such heads, or no pairs of slots to show.
    """
    import altair as alt
    import pandas as pd

    layers, per_layer = averages.sum.shape[:2]
    for layer, head in heads:
        if not (0 <= layer < layers and 0 <= head < per_layer):
            raise InputError(
                f"There is no head {[layer, head]} in these constants; give heads as [layer, head], "
                f"layers are 0 to {layers - 1} and heads 0 to {per_layer - 1}."
            )
    averages = averages.by_pair()
    slots, mean, seen = drawn_slots(averages), averages.mean, averages.count
    pairs = [(query, key) for query in slots for key in slots if seen[query, key]]
    cells = pd.DataFrame(pairs, columns=["query", "key"])
    cells["examples"] = [int(seen[pair]) for pair in pairs]
    for layer, head in heads:
        cells[f"{layer}_{head}"] = [round(float(mean[layer, head, *pair]), 4) for pair in pairs]
    # slots are names and not numbers, so no space is left for slots that are not shown
    step = 1 + len(slots) // 16
    labelled = [*slots[: -step or None : step], slots[-1]]
    scale = alt.Scale(domain=slots)
    axis = alt.Axis(values=labelled, labelAngle=0, labelOverlap=False, ticks=False, domain=False)
    side = max(1, round(side / len(slots))) * len(slots)  # cells have seams unless they are whole pixels
    x = alt.X("key:O", title="key slot", scale=scale, axis=axis)
    y = alt.Y("query:O", title="query slot", scale=scale, axis=axis)

    def picture(layer: int, head: int) -> alt.Chart:
        value = f"{layer}_{head}"
        largest = cells[value].max() or 1
        steps = [largest * part**2 for part in (0, 0.25, 0.5, 0.75, 1)]  # equidistant on the scale
        color = alt.Color(
            f"{value}:Q",
            scale=alt.Scale(type="sqrt", range=RAMP, domain=[0, largest / 4, largest], interpolate="rgb"),
            legend=alt.Legend(
                title=["mean attention,", "square-root scale"], gradientLength=side - 36, values=steps, format=".2r"
            ),
        )
        tooltip = [
            alt.Tooltip("query:O", title="query slot"),
            alt.Tooltip("key:O", title="key slot"),
            alt.Tooltip(f"{value}:Q", title="mean attention", format=".4f"),
            alt.Tooltip("examples:Q", title="examples with both"),
        ]
        chart = alt.Chart(width=side, height=side, title=f"layer {layer}, head {head}")
        drawn: alt.Chart = chart.mark_rect(aria=False).encode(x, y, color, tooltip=tooltip)
        return drawn

    pictures = alt.concat(*(picture(*head) for head in heads), columns=min(PANELS, len(heads)), data=inline(cells))
    drawn = styled(pictures.resolve_scale(color="independent")).configure_view(stroke=None, fill="#e6e6e6")
    figure: alt.ConcatChart = drawn.configure_axis(
        labelFontSize=10, titleFontSize=11, titleFontWeight="normal", grid=False
    )
    return figure


def styled(figure: Any) -> Any:
    """Give a figure the fonts and lines of all figures; the HTML report overrides its colors."""
    return (
        figure.configure_axis(labelFontSize=11, titleFontSize=11, titleFontWeight="normal", gridColor="#e6e6e6")
        .configure_title(fontSize=13, subtitleFontSize=11, anchor="start", frame="group")
        .configure_view(stroke=None)
    )


def inline(frame: pd.DataFrame) -> alt.InlineData:
    """Return the rows of a frame as data of a figure; Altair refuses frames with more than 5,000 rows."""
    import altair as alt

    rows = frame.astype(object).where(frame.notna(), None).to_dict("records")
    return alt.InlineData([{str(name): value for name, value in row.items()} for row in rows])
