"""Pictures of the average attention of chosen heads, side by side (the paper's Figure 4)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from papa.errors import InputError
from papa.files import PathLike
from papa.method.averages import ConstantMatrices
from papa.results.plots import COLUMNS, full_style, save_figure

if TYPE_CHECKING:
    import altair as alt

PAPER_HEADS = ((0, 11), (4, 4), (6, 3))
"""(layer, head) of RoBERTa BASE in the paper's Figure 4, counted from 0."""
MOST_SLOTS = 64
LEAST_USE = 0.02
SIDE = 240
"""Pixels of a side of one picture, which is square, where the style gives no width."""


def plot_heads(
    constants: PathLike,
    svg: PathLike,
    png: PathLike,
    html: PathLike,
    style: Mapping[str, Any],
    heads: Sequence[Sequence[int]] = PAPER_HEADS,
) -> str:
    """Draw C of `heads` ((layer, head) from 0), rows are queries and columns keys, in slots that examples use (Fig. 4).

    Each head has its own scale of colours, from 0 to its largest entry, as a diagonal of 0.2 would vanish beside a
    [SEP] of 0.9. Slots that under 2 % of the examples use are left out, and of others only the 64 in most use are
    drawn, earlier ones first among equals: a picture of 256 slots would have more cells than pixels. White is no
    attention, grey a pair of slots that no example has. `style`: about the `width` of a picture, `scale` of the PNG.
    Raises `InputError` for heads that the constants do not have.
    """
    style = full_style({"width": SIDE} | dict(style))
    averages = ConstantMatrices.load(constants)
    layers, per_layer = averages.sum.shape[:2]
    if not heads:
        raise InputError("There are no heads to draw; give at least one as [layer, head].")
    for head in heads:
        if len(head) != 2 or not (0 <= head[0] < layers and 0 <= head[1] < per_layer):
            raise InputError(
                f"There is no head {list(head)} in {constants}; give heads as [layer, head], "
                f"layers are 0 to {layers - 1} and heads 0 to {per_layer - 1}."
            )
    slots = drawn_slots(averages)
    save_figure(_figure(averages, heads, slots, int(style["width"])), svg, png, html, style["scale"])
    used = int((averages.count.diagonal() > 0).sum())
    return f"{len(heads)} heads drawn in {len(slots)} of {used} used slots, as SVG, PNG and HTML"


def drawn_slots(averages: ConstantMatrices, most: int = MOST_SLOTS) -> list[int]:
    """The slots to draw, in rising order: at most `most` of those that `LEAST_USE` of the examples use."""
    uses = averages.count.diagonal().tolist()
    enough = [slot for slot, use in enumerate(uses) if use and use >= LEAST_USE * averages.examples]
    if not enough:
        raise InputError("These constants are an average over no token; average the attention of a corpus.")
    return sorted(sorted(enough, key=lambda slot: -uses[slot])[:most])


def _figure(averages: ConstantMatrices, heads: Sequence[Sequence[int]], slots: list[int], side: int) -> alt.ConcatChart:
    import altair as alt

    mean, count = averages.mean, averages.count
    cells = [
        {"query": query, "key": key, "examples": seen}
        | {f"{layer}_{head}": round(float(mean[layer, head, query, key]), 4) for layer, head in heads}
        for query in slots
        for key in slots
        if (seen := int(count[query, key]))
    ]
    # slots are names and not numbers here: what is left out takes no place
    step = 1 + len(slots) // 16
    labelled = [*slots[: -step or None : step], slots[-1]]
    scale = alt.Scale(domain=slots)
    axis = alt.Axis(values=labelled, labelAngle=0, labelOverlap=False, ticks=False, domain=False)
    side = max(1, round(side / len(slots))) * len(slots)  # whole pixels for each cell leave no seams between them
    x = alt.X("key:O", title="key slot", scale=scale, axis=axis)
    y = alt.Y("query:O", title="query slot", scale=scale, axis=axis)

    def picture(layer: int, head: int) -> alt.Chart:
        value = f"{layer}_{head}:Q"
        largest = max(cell[f"{layer}_{head}"] for cell in cells) or 1
        color = alt.Color(
            value,
            scale=alt.Scale(range=["white", "#0072B2", "#00213a"], domain=[0, largest / 2, largest], interpolate="rgb"),
            legend=alt.Legend(title=None, gradientLength=side, tickCount=4),
        )
        tooltip = [
            alt.Tooltip("query:O", title="query slot"),
            alt.Tooltip("key:O", title="key slot"),
            alt.Tooltip(value, title="mean attention", format=".4f"),
            alt.Tooltip("examples:Q", title="examples with both"),
        ]
        chart = alt.Chart(width=side, height=side, title=f"layer {layer}, head {head}")
        return chart.mark_rect(aria=False).encode(x, y, color, tooltip=tooltip)

    return (
        alt.concat(*(picture(*head) for head in heads), columns=min(COLUMNS, len(heads)), data=alt.InlineData(cells))
        .resolve_scale(color="independent")
        .configure_axis(labelFontSize=10, titleFontSize=11, titleFontWeight="normal", grid=False)
        .configure_title(fontSize=13, anchor="start", frame="group")
        .configure_view(stroke=None, fill="#e6e6e6")
    )
