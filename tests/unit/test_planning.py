"""What a plan says, computed by hand from made-up rates."""

import pytest

from papa.config.graph import Graph
from papa.config.jobs import Job, jobs_of
from papa.jobs.planning import Cost, LaidOut, Measured, Shape, Training, cost_of, notes_on, plan_of

CONFIG = {
    "run": {"models": ["m"], "tasks": ["t"], "constants": ["average", "average-trained"], "orders": ["lambda"]}
    | {"fractions": ["1", "1/2", "0"], "seeds": [1, 2, 3]},
    "grids": {},
    "models": {"m": {}},
    "corpora": {"c": {"slots": 7, "shards": 1}},
    "tasks": {"t": {"corpus": "c", "label": "l", "epochs": 4}},
    "encoder_dropout": False,
    "ranking": {"epochs": 2, "draws": 1},
    "threads": {"encoder": 2, "probe": 1},
}
LAID_OUT = LaidOut(
    slots=7,
    examples={"train": 100, "validation": 20},
    tokens={"train": 1000, "validation": 300},
    laying_out=3,
    encoding=0.01,
    encoding_replaced=0.006,
    averaging=0.02,
)
MEASURED = Measured(
    device="cpu",
    start={"": 0.5, "probe": 1.5},
    reading={"c": 2},
    models={"m": Shape(layers=2, heads=3, hidden=5, start=4)},
    layouts={("m", "c"): LAID_OUT},
    trainings={
        ("m", "t", "lambda"): Training(0.1, 0, 11),
        ("m", "t", "stored"): Training(0.01, 0.001, 11),
        ("m", "t", "trained"): Training(0.2, 0.05, 11),
    },
)


@pytest.mark.parametrize(
    ("job", "elapsed", "threads", "tokens", "passes", "disk"),
    [
        (Job("prepare_texts", corpus="c"), 0.5 + 2, 1, 0, 0, 0),
        (Job("collect"), 0.5, 1, 0, 0, 0),
        (Job("order_heads", "m", variant="random-1"), 1.5, 1, 0, 0, 0),
        (Job("tokenize", "m", "c"), 4 + 3, 1, 0, 0, 0),
        # sums and means of 6 heads, counts
        (Job("average", "m", "c"), 4 + 0.02 * 1000, 2, 1000, 1, 49 * (6 * 12 + 8)),
        # tokens × 3 hidden states × 5 × 2 bytes
        (Job("features_of_corpus", "m", "c", variant="original"), 4 + 13, 2, 1300, 1.3, 1300 * 30 + 120 * 4),
        (Job("features_of_corpus", "m", "c", variant="average/all"), 4 + 7.8, 2, 1300, 1.3, 1300 * 30 + 120 * 4),
        (
            Job("features_of_task", "m", "c", "t", "average/lambda/kept-1of2"),
            4 + 0.008 * 1300,
            2,
            1300,
            1.3,
            1300 * 30 + 120 * 4,
        ),
        # ranking.epochs, training split alone
        (Job("train_lambda", "m", "c", "t", "average"), 4 + 2 * 0.1 * 100, 2, 2000, 2, 0),
        (Job("probe", "m", "c", "t", "original", "1"), 1.5 + 4 * (0.01 * 100 + 0.001 * 20), 1, 0, 0, 44),
        # 6 heads, 3 of them replaced, each with a matrix that is learned
        (
            Job("probe_through_encoder", "m", "c", "t", "average-trained/lambda/kept-1of2", "1"),
            4 + 4 * (0.2 * 100 + 0.05 * 20),
            2,
            4 * 1300,
            4 * 1.3,
            4 * (11 + 3 * 49),
        ),
    ],
)
def test_costs_by_hand(job, elapsed, threads, tokens, passes, disk):
    cost = cost_of(job, CONFIG, MEASURED)
    assert cost == Cost(*map(pytest.approx, (elapsed, elapsed * threads, tokens, passes, disk)))


def test_a_plan_adds_up_and_says_how_long_the_longest_chain_is():
    jobs = jobs_of(Graph(CONFIG))
    plan = plan_of(jobs, CONFIG, MEASURED)
    assert plan.jobs["probe"] == 9 and plan.jobs["probe_through_encoder"] == 6
    total = sum((cost_of(job, CONFIG, MEASURED).processor for job in jobs), 0.0)
    assert plan.total.processor == pytest.approx(total)
    assert plan.stored == {"c": 3 * (1300 * 30 + 120 * 4)}
    assert plan.elapsed(2) == pytest.approx(total / 2)
    # texts, tokens, averages, λ, order, features, and the slowest probe: through the encoder
    chain = 2.5 + 7 + 24 + 24 + 1.5 + 17 + 88
    assert plan.longest == plan.elapsed(1000) == pytest.approx(chain)


def test_what_was_not_measured_is_counted_and_not_estimated():
    measured = Measured("cpu", MEASURED.start, {"c": 2})
    plan = plan_of(jobs_of(Graph(CONFIG)), CONFIG, measured)
    rows = {row.rule: row for row in plan.rows}
    assert (rows["probe"].jobs, rows["probe"].known) == (9, 0)
    assert rows["prepare_texts"].known == 1
    assert plan.jobs == plan_of(jobs_of(Graph(CONFIG)), CONFIG, MEASURED).jobs


def test_on_a_gpu_its_jobs_wait_for_each_other():
    measured = Measured(**MEASURED.__dict__ | {"device": "cuda"})
    plan = plan_of(jobs_of(Graph(CONFIG)), CONFIG, measured)
    on_gpu = sum(row.cost.elapsed for row in plan.rows if row.rule in ("average", "train_lambda")) + sum(
        row.cost.elapsed for row in plan.rows if row.rule.startswith("features") or row.rule == "probe_through_encoder"
    )
    assert plan.elapsed(1000) == pytest.approx(on_gpu)


def test_notes_name_what_does_not_fit_and_what_takes_long():
    plan = plan_of(jobs_of(Graph(CONFIG)), CONFIG, MEASURED)
    # 6 jobs of 88 s on 2 threads, of 1304 s
    assert [note.split(";")[0] for note in notes_on(plan, CONFIG, 1e9)] == [
        "Probes trained through the encoder take 81% of the time"
    ]
    too_small = notes_on(plan, CONFIG, plan.total.disk - 1)[0]
    assert too_small.startswith("The disk is too small by 0.0 GB") and too_small.endswith("`features: stream` for t.")
    assert "not enough by itself" in notes_on(plan, CONFIG, 10)[0]
