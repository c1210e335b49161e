"""Artefacts that were damaged or swapped on the disk: whoever reads them says so in one sentence and makes nothing."""

import copy
import shutil
from fnmatch import fnmatchcase
from pathlib import Path

import pytest
from comparing import DRAWN, PASSING, same_results
from papa.config.machine import VARIABLE
from papa.config.parameters import Parameters
from papa.method.streaming import train_probe_through_encoder
from papa.results.analyses import gather
from papa.results.heatmaps import plot_heads
from papa.results.latex import write_latex
from papa.results.plots import plot_grid, plot_score_and_drop
from papa.results.tables import collect_runs, summarise
from tiny import CONFIG, REPOSITORY, a_task

from papa.config.settings import checked
from papa.data.prepare import prepare_labels
from papa.data.tokenize import tokenize_corpus
from papa.errors import DamagedArtefact
from papa.files import MEND
from papa.method.averages import average_corpus, merge_averages
from papa.method.features import extract_features
from papa.method.patterns import describe_patterns
from papa.method.ranking import order_heads, rank_heads, train_lambda
from papa.method.training import train_probe
from papa.results.drops import score_and_drop
from papa.results.page import write_report
from papa.results.published import beside_published
from papa.results.summary import print_summary

MORE = copy.deepcopy(CONFIG)
MORE["tasks"]["lengths"] = a_task(label="long")
MORE["grids"] = {"tags": {"tasks": ["tags"]}}
MORE = checked(MORE, REPOSITORY / "workflow/schemas/config.schema.yaml")
GIVEN = Parameters(MORE)

RESULTS = Path("results/tiny")
TEXTS = RESULTS / "corpora/sentences/texts.parquet"
LABELS = RESULTS / "tasks/animals/labels.parquet"
CORPUS = RESULTS / "models/tiny/corpora/sentences"
TOKENS, AVERAGE = CORPUS / "tokens.parquet", CORPUS / "average.h5"
TASK = RESULTS / "models/tiny/tasks/animals"
ORDER = TASK / "average/lambda/order.parquet"
BY_LAYER = RESULTS / "models/tiny/orders/last-layer-first.parquet"
HIDDEN, INDEX = (CORPUS / f"features/original/1of1.{form}" for form in ("hidden", "json"))
RUN = TASK / "runs/original/seed-1.json"
TABLES = RESULTS / "tables"

KINDS = {
    "corpora/*/texts.parquet": (TEXTS, "corpora/words/texts.parquet", "tokenize prepare_labels"),
    "tasks/*/labels.parquet": (LABELS, "tasks/lengths/labels.parquet", "train_lambda probe probe_through_encoder"),
    "models/*/corpora/*/tokens.parquet": (
        TOKENS,
        "models/tiny/corpora/sentences/slots-17/tokens.parquet",
        "average features train_lambda probe probe_through_encoder patterns report",
    ),
    "models/*/corpora/*/average.h5": (
        AVERAGE,
        "models/tiny/corpora/words/average.h5",
        "features train_lambda probe_through_encoder patterns plot_patterns report",
    ),
    "models/*/corpora/*/average/*.h5": (
        CORPUS / "average/1of2.h5",
        "models/tiny/corpora/sentences/average/2of2.h5",
        "merge_averages",
    ),
    "models/*/tasks/*/lambda.parquet": (
        TASK / "average/lambda.parquet",
        "models/tiny/tasks/animals/zeros/lambda.parquet",
        "rank report",
    ),
    "models/*/tasks/*/order.parquet": (
        ORDER,
        "models/tiny/tasks/animals/average/lambda-reversed/order.parquet",
        "features probe_through_encoder report",
    ),
    "models/*/orders/*.parquet": (BY_LAYER, "models/tiny/orders/first-layer-first.parquet", "features_by_layer"),
    "models/*/features/*.hidden": (HIDDEN, "models/tiny/corpora/sentences/features/average/all/1of1.hidden", "probe"),
    "models/*/features/*.json": (INDEX, "models/tiny/corpora/sentences/features/average/all/1of1.json", "probe"),
    "models/*/runs/*.json": (RUN, "models/tiny/tasks/tags/runs/original/seed-1.json", "collect report"),
    "tables/runs.parquet": (TABLES / "runs.parquet", "tables/summary.parquet", "summarise report"),
    "tables/summary.parquet": (
        TABLES / "summary.parquet",
        "tables/score_by_fraction.parquet",
        "latex gather published print_summary report",
    ),
    "tables/score_by_fraction.parquet": (
        TABLES / "score_by_fraction.parquet",
        "tables/tags.parquet",
        "plot_grid score_and_drop report",
    ),
    "tables/tags.parquet": (TABLES / "tags.parquet", "tables/score_by_fraction.parquet", "plot_second_grid report"),
    "tables/score_and_drop.parquet": (
        TABLES / "score_and_drop.parquet",
        "tables/score_by_fraction.parquet",
        "plot_score_and_drop report",
    ),
}
"""For each kind of artefact that a stage reads: one of them, another that it could be taken for, and the stages."""

READ_BY_NO_STAGE = [
    *(f"*{form}" for form in (*DRAWN, *PASSING, ".md", ".tex")),
    "*/runs/*.safetensors",
    "*/patterns.parquet",
]


def drawn(out: Path) -> dict[str, Path]:
    return {form: out / f"figure.{form}" for form in ("svg", "png", "html")}


def written(out: Path) -> dict[str, Path]:
    return {"table": out / "table.parquet", "markdown": out / "table.md", "latex": out / "table.tex"}


def a_probe(out: Path) -> dict[str, Path]:
    return {"run": out / "run.json", "probe": out / "run.safetensors"}


def states(out: Path) -> dict[str, Path]:
    return {"hidden": out / "1of1.hidden", "index": out / "1of1.json"}


STYLE = {"style": {}}
VARIANT = "average/lambda/kept-1of2"

STAGES = {
    "tokenize": lambda out: tokenize_corpus(
        texts=TEXTS, tokens=out / "tokens.parquet", **GIVEN.layout("tiny", "sentences")
    ),
    "prepare_labels": lambda out: prepare_labels(texts=TEXTS, labels=out / "labels.parquet", **GIVEN.labels("animals")),
    "average": lambda out: average_corpus(GIVEN.encoder("tiny"), TOKENS, out / "average.h5"),
    "merge_averages": lambda out: merge_averages(
        [CORPUS / f"average/{part}.h5" for part in ("1of2", "2of2")], out / "average.h5"
    ),
    "train_lambda": lambda out: train_lambda(
        tokens=TOKENS,
        labels=LABELS,
        constants=AVERAGE,
        lambdas=out / "lambda.parquet",
        **GIVEN.ranking("tiny", "animals", "average"),
    ),
    "rank": lambda out: rank_heads(TASK / "average/lambda.parquet", out / "order.parquet"),
    "features": lambda out: extract_features(
        tokens=TOKENS, constants=AVERAGE, order=ORDER, **states(out), **GIVEN.hidden("tiny", VARIANT)
    ),
    "features_by_layer": lambda out: extract_features(
        tokens=TOKENS,
        constants=AVERAGE,
        order=BY_LAYER,
        **states(out),
        **GIVEN.hidden("tiny", "average/last-layer-first/kept-1of2"),
    ),
    "probe": lambda out: train_probe(
        tokens=TOKENS,
        labels=LABELS,
        hidden=[HIDDEN],
        index=[INDEX],
        **a_probe(out),
        **GIVEN.probe("tiny", "animals", "original", "1"),
    ),
    "probe_through_encoder": lambda out: train_probe_through_encoder(
        tokens=TOKENS,
        labels=LABELS,
        constants=AVERAGE,
        order=ORDER,
        **a_probe(out),
        **GIVEN.probe_through_encoder("tiny", "animals", VARIANT, "1"),
    ),
    "collect": lambda out: collect_runs([RUN, TASK / "runs/average/all/seed-1.json"], out / "runs.parquet"),
    "summarise": lambda out: summarise(TABLES / "runs.parquet", out / "summary.parquet", out / "summary.md"),
    "latex": lambda out: write_latex(TABLES / "summary.parquet", out / "summary.tex"),
    "gather": lambda out: gather(TABLES / "summary.parquet", **written(out), **GIVEN.grid("tags")),
    "published": lambda out: beside_published(TABLES / "summary.parquet", **written(out), models={}, tasks={}),
    "print_summary": lambda out: print_summary(TABLES / "summary.parquet"),
    "plot_grid": lambda out: plot_grid(TABLES / "score_by_fraction.parquet", **drawn(out), **STYLE),
    "plot_second_grid": lambda out: plot_grid(TABLES / "tags.parquet", **drawn(out), **STYLE),
    "score_and_drop": lambda out: score_and_drop(TABLES / "score_by_fraction.parquet", **written(out)),
    "plot_score_and_drop": lambda out: plot_score_and_drop(TABLES / "score_and_drop.parquet", **drawn(out), **STYLE),
    "patterns": lambda out: describe_patterns(AVERAGE, TOKENS, **written(out)),
    "report": lambda out: write_report(RESULTS, out / "index.html", GIVEN.told()),
    "plot_patterns": lambda out: plot_heads(AVERAGE, **drawn(out), **STYLE, heads=[(0, 1)]),
}


@pytest.fixture(scope="module")
def folder(finished, tmp_path_factory):
    """The finished workflow, with artefacts that its config does not ask for; what runs here runs in its folder."""
    own = tmp_path_factory.mktemp("damage") / "papa"
    shutil.copytree(finished.folder, own)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(own)
        patch.setenv(VARIABLE, GIVEN.machine())
        prepare_labels(texts=TEXTS, labels=RESULTS / "tasks/lengths/labels.parquet", **GIVEN.labels("lengths"))
        tokenize_corpus(
            texts=TEXTS, tokens=CORPUS / "slots-17/tokens.parquet", **GIVEN.layout("tiny", "sentences/slots-17")
        )
        for part in ("1of2", "2of2"):
            average_corpus(GIVEN.encoder("tiny"), TOKENS, CORPUS / f"average/{part}.h5", part)
        train_lambda(
            tokens=TOKENS,
            labels=LABELS,
            lambdas=TASK / "zeros/lambda.parquet",
            **GIVEN.ranking("tiny", "animals", "zeros"),
        )
        rank_heads(TASK / "average/lambda.parquet", TASK / "average/lambda-reversed/order.parquet", "lambda-reversed")
        for order in ("first-layer-first", "last-layer-first"):
            order_heads(order=RESULTS / f"models/tiny/orders/{order}.parquet", **GIVEN.ordering("tiny", order))
        describe_patterns(
            AVERAGE, TOKENS, **{form: path.with_stem("patterns") for form, path in written(CORPUS).items()}
        )
        gather(
            TABLES / "summary.parquet",
            **{form: path.with_stem("tags") for form, path in written(TABLES).items()},
            **GIVEN.grid("tags"),
        )
        yield own


def test_every_kind_of_file_has_its_cases(folder):
    names = [path.relative_to(RESULTS).as_posix() for path in RESULTS.rglob("*") if path.is_file()]
    used = set()
    for name in names:
        known = [pattern for pattern in (*KINDS, *READ_BY_NO_STAGE) if fnmatchcase(name, pattern)]
        assert len(known) == 1, f"{name} is of the kinds {known}"
        used |= set(known)
    assert KINDS.keys() <= used
    assert {stage for _, _, stages in KINDS.values() for stage in stages.split()} == STAGES.keys()


def damages(kind: str) -> dict[str, bytes]:
    """What may stand in an artefact of a kind instead of its content."""
    path, other, _ = KINDS[kind]
    content = path.read_bytes()

    def flipped(place: int) -> bytes:
        return content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :]

    return {
        "cut in the middle": content[: len(content) // 2],
        "cut at the end": content[:-1],
        "first byte flipped": flipped(0),
        "middle byte flipped": flipped(len(content) // 2),
        "last byte flipped": flipped(len(content) - 1),
        "emptied": b"",
        "of another kind": (TOKENS if path != TOKENS else LABELS).read_bytes(),
        "swapped": (RESULTS / other).read_bytes(),
    }


@pytest.mark.parametrize(("kind", "stage"), [(kind, stage) for kind in KINDS for stage in KINDS[kind][2].split()])
def test_damage_is_said_and_nothing_made(folder, tmp_path, kind, stage):
    path = KINDS[kind][0]
    whole = path.read_bytes()
    try:
        for what, content in damages(kind).items():
            path.write_bytes(content)
            try:
                STAGES[stage](tmp_path)
            except DamagedArtefact as error:
                message = str(error)
                assert str(path) in message and MEND in message, what
                assert message.endswith(".") and "\n" not in message, what
            else:
                pytest.fail(f"{path} was {what}, and {stage} did not see it")
            assert not list(tmp_path.iterdir()), what
    finally:
        path.write_bytes(whole)


@pytest.mark.parametrize(
    ("path", "content", "wanted"),
    [
        (ORDER, "models/tiny/tasks/tags/average/lambda/order.parquet", []),
        (HIDDEN, None, [str(RUN)]),
        (TABLES / "summary.parquet", "tables/runs.parquet", []),
    ],
)
def test_the_advice_mends_it(finished, finished_copy, path, content, wanted):
    """Through snakemake: the job fails with the sentence, and once the file is deleted all is as it was."""
    place = finished_copy.folder / path
    whole = place.read_bytes()
    place.write_bytes(whole[:-1] + b"?" if content is None else (finished.folder / RESULTS / content).read_bytes())
    process = finished_copy.snakemake(*wanted, "--cores", "1", "--configfile", "config.yaml")
    assert process.returncode == 1 and "Traceback" not in process.stdout + process.stderr
    said = next(line for line in process.stderr.splitlines() if line.startswith("Error in "))
    assert str(path) in said and said.endswith(f"; {MEND}.")
    place.unlink()
    process = finished_copy.snakemake(*wanted, "--cores", "2", "--configfile", "config.yaml")
    assert process.returncode == 0, process.stderr
    same_results(finished.folder / RESULTS, finished_copy.folder / RESULTS)
