"""What may be concluded: how much is lost, how many heads are replaceable at a margin, and what cannot be told.

k heads are replaceable at margin δ if, for k and every smaller measured number, the one-sided 95 % upper bound of the
loss of every task that counts is below δ. All tasks have to pass (intersection-union), in the order of k (fixed
sequence), so that no correction for many tests is due; see docs/statistics.md.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from math import ceil, inf, isfinite

import numpy as np
import pandas as pd

from papa.config.stages import ClaimsOf, GridOf
from papa.config.study import Job
from papa.config.variant import Constant, Order
from papa.errors import count
from papa.files import JSON, read_table, write_json
from papa.results.grids import constant_name, rows_of
from papa.results.losses import COUNTS, MORE_THAN_ALL, RISING, at_ceiling
from papa.results.outcomes import ALL, FLOOR, ORIGINALS, Measured, Sample, Setting, is_probed, measured_in
from papa.results.phrases import in_order
from papa.results.statistics import Estimate, Interval, Spread, holm, together
from papa.results.summary import is_main, read_summary
from papa.results.table import Table, read_frame, write_frame, write_pages

CLAIM_COLUMNS = dict.fromkeys(("grid", "line", "model", "constant", "order", "fraction"), "string")
CLAIM_COLUMNS |= {"replaced": "int64", "heads": "int64", "tasks": "int64"}
CLAIM_COLUMNS |= dict.fromkeys(("loss", "low", "high", "bound", "margin"), "float64") | {"worst": "string"}

Weights = Mapping[Setting, float]
"""What scores weigh in a sum, each setting once."""
CONTRIBUTION: Weights = {ORIGINALS: 1.0, FLOOR: -1.0}
"""What attention contributes: original - contextless."""

ENDS = {ORIGINALS: "original", FLOOR: "contextless floor"}
REPLACED = "replaced heads"
"""What a loss is measured between, and what is measured, in words."""
SUBSETS_TOLD = 4
"""So many subsets are told in a sentence; tables have all of them."""

TITLE = "Claims"
ABOUT = (
    "Loss: mean over the tasks that count of (original - score) / (original - contextless), with its 95 % interval "
    "over probe seeds, validation examples and, where there are several, orders of heads. Largest bound: the one-sided "
    "95 % upper bound of the task that may lose most. Margin: so many heads are replaceable at every margin above "
    "this, because with this many replaced and with every smaller measured number all tasks that count lose less. "
    f"Tasks whose original does not beat both floors have no say. Above 100 %, {MORE_THAN_ALL}."
)


@dataclass(frozen=True)
class Line:
    """A model, a constant and an order along the fraction of heads.

    Args:
        grid, name: which line of which grid.
        rows: its rows of the summary, of main scores.
        samples: the scores of each task by its metric on all validation examples.
        parts: its rows of the summary of main metrics on subsets, with every head replaced.
    """

    grid: str
    name: str
    rows: pd.DataFrame
    samples: Mapping[str, Sample]
    parts: pd.DataFrame

    @property
    def heads(self) -> int:
        """How many heads the model has."""
        return int(self.rows["heads"].iloc[0])

    @property
    def steps(self) -> pd.DataFrame:
        """The measured numbers of replaced heads, rising: `fraction` and `replaced`."""
        found = self.rows[["fraction", "kept"]].drop_duplicates()
        found = found.assign(replaced=self.heads - found["kept"])
        found = found[found["replaced"] > 0].sort_values("replaced", kind="stable")
        return found.drop_duplicates("replaced")[["fraction", "replaced"]]

    def counting(self) -> list[str]:
        """The tasks that count."""
        status = self.rows.drop_duplicates("task").set_index("task")["status"]
        return [task for task in status.index if status[task] == COUNTS and task in self.samples]

    def setting(self, task: str, fraction: str) -> Setting | None:
        """What was run for a task at a fraction; None if nothing was."""
        own = self.rows[self.rows["task"].eq(task) & self.rows["fraction"].eq(fraction)]
        if own.empty:
            return None
        constant, order = own[["ran", "order"]].astype(object).where(own.notna(), None).iloc[0]
        return (constant, order, fraction)

    def loss(self, fraction: str) -> tuple[Interval, int] | None:
        """The mean loss over the tasks that count and were run at a fraction, and how many they are."""
        found = []
        for task in self.counting():
            setting = self.setting(task, fraction)
            if setting and (share := share_of(self.samples[task], _lost({setting: 1.0}))) is not None:
                found.append(share)
        return (_mean(found), len(found)) if found else None

    def area(self, task: str) -> Weights | None:
        """What scores weigh in the area under the loss of a task.

        The area is that under straight lines through the measured points, over the share of heads that is replaced,
        from none, where nothing is lost, to all. None if it was not measured to the end.
        """
        steps = self.steps
        settings = [self.setting(task, fraction) for fraction in steps["fraction"]]
        x = np.array([0.0, *(steps["replaced"] / self.heads)])
        if len(x) < 2 or x[-1] != 1:
            return None
        widths = np.diff(x)
        weights = (np.array([*widths, 0]) + np.array([0, *widths]))[1:] / 2
        known = {setting: float(weight) for setting, weight in zip(settings, weights, strict=True) if setting}
        return _lost(known) if len(known) == len(settings) else None


@dataclass(frozen=True)
class Share:
    """A sum of scores as a share of what attention contributes.

    Args:
        spread: how these scores vary together.
        above, below: what each weighs in the sum, and in what attention contributes.
    """

    spread: Spread
    above: Sequence[float]
    below: Sequence[float]

    def estimate(self) -> Estimate:
        """What can be added to others."""
        return self.spread.share(self.above, self.below)


def _mean(shares: Sequence[Share]) -> Interval:
    """The mean of shares: of one, its own interval as tables of losses have it."""
    if len(shares) == 1:
        return shares[0].spread.ratio(shares[0].above, shares[0].below)
    return together([share.estimate() for share in shares], [1 / len(shares)] * len(shares)).interval()


def share_of(sample: Sample, above: Weights) -> Share | None:
    """A sum of scores as a share of what attention contributes; None if some of these were not run together.

    What is in the sum and in the contribution is one score. So is what two lines have in common, such as the model with
    every head replaced, which is the same in every order.
    """
    settings = list(dict.fromkeys([*CONTRIBUTION, *(setting for setting, weight in above.items() if weight)]))
    spread = sample.spread(*settings)
    weights = [[0.0, *(own.get(setting, 0.0) for setting in settings)] for own in (above, CONTRIBUTION)]
    return None if spread is None else Share(spread, *weights)


def _lost(weights: Weights) -> Weights:
    """The weighted sum of what is lost with each setting: of the original minus its score."""
    return _sum({ORIGINALS: sum(weights.values())}, weights, -1)


def _sum(one: Weights, other: Weights, sign: int) -> Weights:
    return {setting: one.get(setting, 0.0) + sign * other.get(setting, 0.0) for setting in {**one, **other}}


def conclude(job: Job[ClaimsOf]) -> str:
    """Stage *claims*: write what may be concluded from `all_outcomes` as Parquet, JSON, Markdown and LaTeX.

    Returns:
        The sentence that leads the page, for the terminal.
    """
    told, trace = job.settings, job.trace()
    summary = read_summary(job.input("summary"))
    metrics = {name: task.metric for name, task in told.tasks.items()}
    measured = list(measured_in(read_table(job.input("all_outcomes")), metrics))
    curves = read_frame(job.input("curves"), {"epoch": "int64", "score": "float64"}, "table of curves")
    lines = [line for grid in told.grids for line in lines_of(grid, summary, measured)]
    frame, found = claims_of(lines, told.margin, curves)
    write_frame(frame, CLAIM_COLUMNS, job.output("table"), {"table": "claims", "margin": told.margin}, trace)
    write_pages(TITLE, tables_of(frame), ABOUT, job.output("markdown"), job.output("latex"))
    write_json(found, job.output("claims"), trace)
    return str(found["sentence"])


def lines_of(grid: GridOf, summary: pd.DataFrame, measured: Sequence[Measured]) -> list[Line]:
    """The lines of a grid along which some heads are replaced."""
    rows = rows_of(grid, summary[summary["main"].eq(True)])
    ran = [
        Constant.parse(constant).on(grid.tasks[task]).name if isinstance(constant, str) else None
        for constant, task in zip(rows["constant"], rows["task"], strict=True)
    ]
    rows = rows.assign(ran=pd.Series(ran, rows.index, object))
    found = []
    for name, own in rows.groupby("line", sort=False):
        model = own["model"].iloc[0]
        samples = {
            one.task: one.sample(one.metric, one.subsets()[ALL])
            for one in measured
            if one.model == model and one.task in grid.tasks
        }
        whole = is_main(own)
        line = Line(grid.name, str(name), own[whole], samples, own[~whole & own["fraction"].eq("0")])
        if len(line.steps):
            found.append(line)
    return found


def claims_of(lines: Sequence[Line], margin: float, curves: pd.DataFrame) -> tuple[pd.DataFrame, dict[str, JSON]]:
    """The table of claims with `CLAIM_COLUMNS`, and all that the page and the terminal tell, as plain values."""
    rows, told = [], []
    for line in lines:
        own = _steps(line)
        rows += own
        told.append(_told(line, own, margin, curves))
    sentences = []
    for grid in dict.fromkeys(line.grid for line in lines):
        alike: dict[tuple[JSON, JSON], list[dict[str, JSON]]] = {}
        for one in told:
            if one["grid"] == grid:
                alike.setdefault((one["model"], one["constant"]), []).append(one)
        for own in alike.values():
            for one in own:
                one["sentence"] = sentence_of([one], margin, len(alike) > 1)
        sentences.append(" ".join(sentence_of(own, margin, len(alike) > 1) for own in alike.values()))
    sentence = next(iter(sentences), "No heads are replaced, so there is nothing to conclude.")
    found: dict[str, JSON] = {"sentence": sentence, "margin": margin, "lines": told, "areas": _compared(lines, margin)}
    # JSON has no infinity and no NaN: a bound that is not there is null
    return pd.DataFrame(rows, columns=list(CLAIM_COLUMNS)), json.loads(
        json.dumps(found, default=float), parse_constant=lambda _: None
    )


def _steps(line: Line) -> list[dict[str, object]]:
    """A row for each measured number of replaced heads."""
    first = line.rows.iloc[0]
    about = {"grid": line.grid, "line": line.name, "model": first["model"], "heads": line.heads}
    about |= {name: next(iter(line.rows[name].dropna()), None) for name in ("constant", "order")}
    titles = dict(zip(line.rows["task"], line.rows["title"], strict=True))
    rows, margin = [], 0.0
    for fraction, replaced in line.steps.to_numpy().tolist():
        loss = line.loss(fraction)
        row: dict[str, object] = about | {
            "fraction": fraction,
            "replaced": int(replaced),
            "tasks": loss[1] if loss else 0,
        }
        if loss is not None:
            row |= {"loss": loss[0].mean, "low": loss[0].low, "high": loss[0].high}
        if line.counting():
            at = line.rows[line.rows["fraction"].eq(fraction)].set_index("task")["loss_bound"]
            bounds = at.reindex(line.counting()).fillna(inf)  # of a task whose loss is not known here nothing is shown
            margin = max(margin, float(bounds.max()))
            row |= {"bound": float(bounds.max()), "margin": margin, "worst": titles[bounds.idxmax()]}
        rows.append(row)
    return rows


def _told(line: Line, steps: Sequence[Mapping[str, object]], margin: float, curves: pd.DataFrame) -> dict[str, JSON]:
    """What is told of a line, in numbers."""
    main = line.rows.drop_duplicates("task")
    known = [step for step in steps if "margin" in step]
    passed = [step for step in known if float(str(step["margin"])) < margin]
    half = [step for step in known if 2 * int(str(step["replaced"])) >= line.heads]
    sizes = [line.samples[task].values.shape[1] for task in main["task"] if task in line.samples]
    runs = pd.concat([line.samples[task].runs for task in main["task"] if task in line.samples])
    order = next(iter(line.rows["order"].dropna()), None)
    orders = map(Order.parse, runs.loc[runs["constant"].isin(line.rows["ran"].dropna()), "order"].dropna().unique())
    return {
        "grid": line.grid,
        "line": line.name,
        "model": main["model"].iloc[0],
        "constant": next(iter(line.rows["constant"].dropna()), None),
        "order": order,
        "heads": line.heads,
        "seeds": _seeds(line),
        "orders": sum(own.base == order and own.draw is not None for own in orders),
        "examples": [min(sizes), max(sizes)] if sizes else None,
        "tasks": [title for task, title in zip(main["task"], main["title"], strict=True) if task in line.counting()],
        "without": [
            {"task": title, "why": status}
            for title, status in zip(main["title"], main["status"], strict=True)
            if status != COUNTS
        ],
        "ceiling": [
            title
            for task, title in zip(main["task"], main["title"], strict=True)
            if task in line.samples and at_ceiling(line.samples[task])
        ],
        "rising": _rising(line, curves),
        "replaceable": int(str(passed[-1]["replaced"])) if passed else 0 if known else None,
        "measured": [int(str(step["replaced"])) for step in known],
        "half_margin": half[0]["margin"] if half else None,
        "at_end": _at_end(line),
        "area": _area(line),
        "steps": [dict(step) for step in steps],
    }


def _seeds(line: Line) -> int | None:
    """The seeds of the probes; None if no probe was trained."""
    trained = is_probed(line.rows["metric"]) & line.rows["fraction"].ne("1")
    return int(line.rows.loc[trained, "seeds"].min()) if trained.any() else None


def _at_end(line: Line) -> dict[str, JSON] | None:
    """What is lost with every head replaced: the mean, each task that counts, and each subset of any task."""
    loss = line.loss("0")
    if loss is None:
        return None
    rows = line.rows[line.rows["fraction"].eq("0") & line.rows["task"].isin(line.counting())]
    subsets = [
        {
            "subset": name,
            "tasks": _losses(own[own["status"].eq(COUNTS) & own["loss"].notna()]),
            "without": [
                {"task": task, "why": why}
                for task, why in own.loc[own["status"].ne(COUNTS), ["title", "status"]].itertuples(index=False)
            ],
        }
        for name, own in line.parts.groupby("subset", sort=False)
    ]
    found = loss[0]
    at = {"loss": found.mean, "low": found.low, "high": found.high}
    return {**at, "tasks": _losses(rows), "subsets": subsets}


def _losses(rows: pd.DataFrame) -> list[dict[str, JSON]]:
    columns = ["title", "loss", "loss_low", "loss_high"]
    return [dict(zip(("task", "loss", "low", "high"), own, strict=True)) for own in rows[columns].to_numpy().tolist()]


def _area(line: Line) -> dict[str, JSON] | None:
    """The mean area under the loss over the tasks that count, with its interval."""
    found = [area for task in line.counting() if (area := _area_of(line, task)) is not None]
    if not found or len(found) < len(line.counting()):
        return None
    own = _mean(found)
    return {"mean": own.mean, "low": own.low, "high": own.high}


def _area_of(line: Line, task: str) -> Share | None:
    area = line.area(task)
    return None if area is None else share_of(line.samples[task], area)


def _compared(lines: Sequence[Line], margin: float) -> list[dict[str, JSON]]:
    """Differences between the areas of two lines of a grid: paired within a model, and between models as they are."""
    found: list[dict[str, JSON]] = []
    for grid in dict.fromkeys(line.grid for line in lines):
        pairs = []
        for one, other in combinations([line for line in lines if line.grid == grid], 2):
            if (own := _difference(one, other)) is not None:
                pairs.append((one, other, own))
        corrected = holm([own.p() for _, _, own in pairs])
        for (one, other, own), p in zip(pairs, corrected, strict=True):
            interval, narrow = own.interval(), own.interval(0.9)
            verdict = "cannot tell"
            if p < 0.05:
                verdict = "differs"
            elif -margin < narrow.low and narrow.high < margin:
                verdict = "equal within the margin"
            about = {"grid": grid, "a": one.name, "b": other.name, "verdict": verdict, "p": p}
            found.append(about | {"difference": interval.mean, "low": interval.low, "high": interval.high})
    return found


def _difference(one: Line, other: Line) -> Estimate | None:
    """Mean over tasks of the area of one line minus that of another; None if either has none."""
    tasks = [task for task in one.counting() if task in other.counting()]
    parts, same = [], one.rows["model"].iloc[0] == other.rows["model"].iloc[0]
    for task in tasks:
        if same:
            areas = one.area(task), other.area(task)
            share = areas[0] and areas[1] and share_of(one.samples[task], _sum(areas[0], areas[1], -1))
            own = share and share.estimate()
        else:
            both = [area.estimate() for line in (one, other) if (area := _area_of(line, task)) is not None]
            own = together(both, [1, -1]) if len(both) == 2 else None
        if not own:
            return None
        parts.append(own)
    return together(parts, [1 / len(parts)] * len(parts)) if parts else None


def _rising(line: Line, curves: pd.DataFrame) -> list[dict[str, JSON]]:
    """The tasks with a setting of the line whose probes still gained at the end: which `runs`, and what `loss` may be.

    The last quarter of the epochs is better than the one before, because scores of single epochs go up and down, and
    the gain is not over: from the first to the last epoch of that quarter (if it is one epoch, in that), seeds gain on
    average, and by more than twice the standard error.
    """
    found, setting = [], ["constant", "order", "fraction"]
    for task, title in line.rows[["task", "title"]].drop_duplicates().itertuples(index=False):
        own = curves[curves["model"].eq(line.rows["model"].iloc[0]) & curves["task"].eq(task)]
        scores = own.fillna({name: "" for name in setting}).pivot(
            index=[*setting, "seed"], columns="epoch", values="score"
        )
        epochs = scores.shape[1]
        if epochs < 2:
            continue
        part = max(epochs // 4, 1)
        late, before = scores.iloc[:, -part:], scores.iloc[:, -2 * part : -part]
        higher = (late.mean(axis=1) - before.mean(axis=1)).groupby(setting).mean() > RISING
        gains = (late.iloc[:, -1] - (late if part > 1 else before).iloc[:, 0]).groupby(setting)
        gained = (gains.mean() > RISING) & ~(gains.mean() <= 2 * gains.sem())
        settings = scores.groupby(setting).size()[higher & gained].index
        runs = list(dict.fromkeys(filter(None, (_role(line, task, *own) for own in settings))))
        if runs:
            found.append({"task": str(title), "runs": runs, "loss": _moved(line, task, runs)})
    return found


def _role(line: Line, task: str, constant: str, order: str, fraction: str) -> str:
    """What a setting is to a line; empty if it belongs to another."""
    setting = (constant or None, Order.parse(order).base if order else None, fraction)
    if setting in ENDS:
        return ENDS[setting]
    return REPLACED if setting == line.setting(task, fraction) else ""


def _moved(line: Line, task: str, rising: Sequence[str]) -> str | None:
    """Whether a loss of a task may be `larger` or `smaller` if what still rises is trained longer; None without any.

    A higher floor makes the contribution of attention smaller, so that a loss is a larger share of it. A higher
    original moves a loss towards 100 %, and a higher score makes it smaller.
    """
    losses = line.rows.loc[line.rows["task"].eq(task), "loss"].dropna()
    if losses.empty:
        return None
    first = ENDS[ORIGINALS] in rising
    ways = {
        "larger": ENDS[FLOOR] in rising or (first and losses.min() < 1),
        "smaller": REPLACED in rising or (first and losses.max() > 1),
    }
    return " or ".join(way for way, may_be in ways.items() if may_be) or None


def rising_text(own: Mapping[str, JSON]) -> str:
    """A task that still rises in words: which of its runs do, and what that means for its loss."""
    means = f": its loss may be {own['loss']} than measured" if own["loss"] else ""
    runs = " and ".join(filter(None, [", ".join(own["runs"][:-1]), own["runs"][-1]]))
    return f"{own['task']} ({runs}{means})"


def sentence_of(told: Sequence[Mapping[str, JSON]], margin: float, named: bool) -> str:
    """What may be concluded, in plain sentences made of numbers.

    Args:
        told: lines of one model and one constant, in different orders.
        margin: the loss that is accepted.
        named: whether to name them in each sentence, because there are others beside.
    """
    first = told[0]
    several = len(first["tasks"]) + len(first["without"]) > 1
    parts = [
        _opening(told),
        *(_replaceable(line, margin, named) for line in told if line["tasks"] and line["measured"]),
    ]
    no_more = "; nothing can be concluded" if first["tasks"] else ""  # else that was said of all tasks
    of = f" ({first['model']})" if named else ""
    parts += [f"{own['task']}{of}: {own['why']}{no_more}." for own in first["without"]]
    if rising := dict.fromkeys(rising_text(own) for line in told for own in line["rising"]):
        parts.append(f"Still rising{of}, train longer: {', '.join(rising)}.")
    seeds, examples = sorted({line["seeds"] for line in told if line["seeds"]}), first["examples"] or [0]
    over = f"{seeds[0]} to {count(seeds[-1], 'seed')} and " if len(seeds) > 1 else ""
    over = f"{count(seeds[0], 'seed')} and " if len(seeds) == 1 else over
    each = " to ".join(dict.fromkeys(f"{number:,}" for number in examples))
    noun = "example" if examples[-1] == 1 else "examples"
    parts.append(f"From {over}{each} validation {noun}{' a task' if several else ''}.")
    return " ".join(filter(None, parts)).replace("?.", "?")  # a title may be a question


def _opening(told: Sequence[Mapping[str, JSON]]) -> str:
    """What is lost with every head of a model replaced by a constant, which no order changes."""
    first = told[0]
    at_end, tasks, model, constants = first["at_end"], first["tasks"], first["model"], _constants(first["constant"])
    if not tasks:
        orders = " or ".join(filter(None, map(_in_order, told)))
        return f"Nothing can be concluded of {model} with heads replaced by {constants}{orders and f' {orders}'}."
    if at_end is None:
        return "" if first["measured"] else f"No loss of {model} was measured with heads replaced by {constants}."
    over = f"on average over {count(len(tasks), 'task')}" if len(tasks) > 1 else f"on {tasks[0]}"
    replaced = f"With all {count(first['heads'], 'head')} of {model} replaced by {constants}"
    if at_end["low"] == at_end["high"] == 1:
        return f"{replaced}, all that attention contributes is lost, by definition."
    lost = f"{replaced}, {_share(at_end)} of what attention contributes is lost {over}."
    if len(tasks) < 2:
        return f"{lost}{_above(at_end)}{_by_subset(at_end['subsets'])}"
    ranked = sorted(at_end["tasks"], key=lambda own: -own["loss"])
    most = f"Most is lost on {_named(ranked[0])}, least on {_named(ranked[-1])}."
    return f"{lost} {most}{_above(ranked[0])}{_by_subset(at_end['subsets'])}"


def _by_subset(subsets: Sequence[Mapping[str, JSON]]) -> str:
    """What is lost on each subset by itself; empty without subsets, or if there are too many to be read."""
    if not 0 < len(subsets) <= SUBSETS_TOLD:
        return ""
    return f" By subset: {'; '.join(map(_on_subset, subsets))}."


def _on_subset(own: Mapping[str, JSON]) -> str:
    """A subset with its loss, or with the span of its losses on several tasks."""
    on, tasks, without = f"on {own['subset']}", sorted(own["tasks"], key=lambda task: task["loss"]), own["without"]
    reasons = {other["why"] for other in without}
    why = reasons.pop() if len(reasons) == 1 else "nothing can be concluded"
    if not tasks:
        return f"{on} {why}"
    if len(tasks) + len(without) == 1:
        return f"{on} {_share(tasks[0])}"
    low, high = round(100 * tasks[0]["loss"]), round(100 * tasks[-1]["loss"])
    span = f"{high} %" if low == high else f"{low} to {high} %"
    rest = f"; in {len(without)} more {why}" if without else ""
    return f"{on} {span} ({count(len(tasks), 'task')}{rest})"


def _replaceable(line: Mapping[str, JSON], margin: float, named: bool) -> str:
    """How many heads of a line are replaceable, in its order, and what stops the next number."""
    found, heads, by = line["replaceable"], "heads", ""
    if named or line["at_end"] is None:  # else a sentence before has named them
        heads, by = f"heads of {line['model']}", f" by {_constants(line['constant'])}"
    all_heads = f"{line['heads']} {heads}"
    at = f"replaceable{by} at a margin of {100 * margin:g} %"
    following = next((step for step in line["steps"] if "margin" in step and step["replaced"] > found), None)
    if following is None:
        tried_all = found == line["heads"]
        said = f"all {all_heads} are {at}" if tried_all else f"{found} of {all_heads} are {at}; no more were tried"
    else:
        bound = f"up to {at_most(following['bound'])}" if isfinite(following["bound"]) else "any share"
        why = f"with {following['replaced']} replaced, {following['worst']} may lose {bound}"
        said = f"{found} of {all_heads} are {at}; {why}" if found else f"no measured number of {heads} is {at}: {why}"
    said = ", ".join(filter(None, [_in_order(line), said]))
    return f"{said[0].upper()}{said[1:]}."


def _constants(name: str) -> str:
    """What heads are replaced by: "average constants"."""
    constant = Constant.parse(name)
    if constant.start == "zeros":
        return "zeros"
    words = f"{constant_name(constant.start)} constants"
    if constant.corpus is not None:
        return f"{words} of the texts of {constant.corpus}"
    return f"trained {words}" if constant.trained else words


def _in_order(line: Mapping[str, JSON]) -> str:
    return in_order(line["order"], line["orders"])


def _above(own: Mapping[str, JSON]) -> str:
    """What a loss above 100 % says; empty if it is not."""
    return f" Above 100 %, {MORE_THAN_ALL}." if round(100 * own["loss"]) > 100 else ""


def _named(own: Mapping[str, JSON]) -> str:
    return f"{own['task']} ({_percent(own['loss'])})"


def _share(own: Mapping[str, JSON]) -> str:
    """A loss with its interval."""
    text = _percent(own["loss"])
    if not isfinite(own["low"]) or not isfinite(own["high"]):
        return f"{text} (no interval, because what attention contributes is not sure enough)"
    return f"{text} (95 % interval {round(100 * own['low'])} to {_percent(own['high'])})"


def tables_of(frame: pd.DataFrame) -> list[Table]:
    """The claims of each grid as people read them."""
    tables = []
    for grid, own in frame.groupby("grid", sort=False):
        text = pd.DataFrame(
            {
                "line": own["line"],
                "heads replaced": own["replaced"].map("{:,}".format) + " of " + own["heads"].map("{:,}".format),
                "tasks": own["tasks"],
                "loss": own["loss"].map(_percent),
                "95 % interval": [_between(*both) for both in zip(own["low"], own["high"], strict=True)],
                "largest bound": own["bound"].map(at_most),
                "of": own["worst"].fillna("-"),
                "margin": own["margin"].map(at_most),
            }
        )
        rules = np.flatnonzero(own["line"].ne(own["line"].shift()).to_numpy()).tolist()
        tables.append(Table(str(grid).replace("_", " ").capitalize(), text, 2, rules=tuple(rules)))
    return tables


def at_most(share: float) -> str:
    """An upper bound in whole percent, which rounding must not lower."""
    return f"{ceil(100 * share - 1e-9)} %" if isfinite(share) else _percent(share)


def _between(low: float, high: float) -> str:
    return "-" if pd.isna(low) else f"{_percent(low)} to {_percent(high)}"


def _percent(share: float) -> str:
    return "-" if pd.isna(share) else f"{round(100 * share)} %" if isfinite(share) else "no bound"
