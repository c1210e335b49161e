"""The benchmarks do what they are for, each in its smallest form and in this process."""

import argparse
import json
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from builders import labelled
from finished import CONFIG, page_of, write_results
from tiny import CONFIG as TINY
from tiny import WORDS, write_data, write_model
from torch.nn.functional import cross_entropy

from benchmarks import (
    articles,
    compare,
    coverage,
    gpu,
    layers,
    learning_rates,
    orders,
    parts,
    rehearse,
)
from papa.data.packed import Packed
from papa.method.objectives import SequenceProbe, TokenProbe
from papa.method.training import TrainingTask, drawn_rows, fit
from papa.model import settling
from papa.stages import OfTask, Training

SLOTS = 13


@pytest.fixture
def model(tmp_path):
    write_model(tmp_path / "model")
    torch.set_num_threads(1)
    return f"{tmp_path}/model"


class InOneProcess(compare.Comparison):
    """A comparison whose parts are not measured."""

    def run(self, side, step="", threads=None, **more):
        settings = self.settings | {"side": side, "step": step} | more
        return compare.Measured(2.0, 3.0, 5 * 10**6, parts.part_of(settings)())


def test_both_sides_are_compared_and_do_the_same_work(tmp_path, model):
    for split, number in (("train", 19), ("validation", 7)):
        sentences = [f"the {WORDS[row % len(WORDS)]} runs,{row % 2}" for row in range(number)]
        (tmp_path / f"{split}.csv").write_text("\n".join(["sentence,label", *sentences]) + "\n")
    (work := tmp_path / "work").mkdir()
    comparison = InOneProcess(
        work, argparse.Namespace(rows=17, epochs=2, threads=1, model=model, mirror=None)
    )
    files = {split: f"{tmp_path}/{split}.csv" for split in ("train", "validation")}
    comparison.settings |= {
        "corpus": {"files": files, "first": "sentence", "train_limit": 17},
        "slots": SLOTS,
    }
    rows = compare.compare(comparison)
    assert compare.difference(comparison.settings) < 1e-5
    assert [row.part.split()[0] for row in rows] == ["averaging", "λ", "probes", "end"]
    assert all(str(row).count("|") == 8 for row in rows)
    assert len([*work.glob("cache/probe/*kept-1of2-*.parquet")]) == len(compare.SEEDS)


def objective(probe, states, gold):
    """An objective on the rows of a study, as far as training needs one."""

    def loss_on(_, rows):
        slots = torch.arange(coverage.SLOTS).repeat(len(rows))
        lengths = torch.full((len(rows),), coverage.SLOTS)
        packed = [Packed(slots, slots, slots, lengths, coverage.SLOTS)] * isinstance(
            probe, SequenceProbe
        )
        return cross_entropy(
            probe.packed(states[rows].flatten(0, 1), *packed), gold[rows].flatten()
        )

    return SimpleNamespace(
        examples=len(gold),
        begin=lambda epoch: None,
        weighted=lambda parts: [(parts[0], 1.0)],
        loss_on=loss_on,
    )


@pytest.mark.parametrize(
    "case", [coverage.Case(train=37, epochs=3), coverage.Case("entity_f1", train=23, epochs=3)]
)
def test_probes_that_are_trained_at_once_are_those_that_papa_trains(case):
    study = coverage.drawn(case, 3)
    seeds = [4, 5]
    rows = study.rows["train"]
    states = rows.states(case, np.ones(coverage.FEATURES))
    gold = torch.from_numpy(rows.gold)
    samples = [torch.arange(case.train), drawn_rows(torch.arange(case.train), 1)]
    together = coverage.train(
        case, states.expand(2, *states.shape), gold.expand(2, -1, -1), samples, seeds
    )
    for place, (seed, sample) in enumerate(zip(seeds, samples, strict=True)):
        torch.manual_seed(seed)
        sizes = (
            (coverage.LAYERS, coverage.HIDDEN, 3)
            if case.per_word
            else (2, coverage.SLOTS, coverage.HIDDEN, 2)
        )
        probe = (TokenProbe if case.per_word else SequenceProbe)(*sizes)
        task = TrainingTask("probe", [probe], objective(probe, states, gold), None, sample)
        training = Training(learning_rate=5e-3, batch_size=16, epochs=3)
        fit(task, OfTask(kind="word" if case.per_word else "text", training=training, seed=seed))
        for ours, papas in zip(together.parameters, probe.parameters(), strict=True):
            torch.testing.assert_close(ours[place], papas.detach(), atol=2e-5, rtol=1e-3)


@pytest.mark.slow
def test_intervals_cover_the_choice_of_training_rows_if_probes_are_trained_on_samples():
    _, held = coverage.coverage(coverage.Case(), 60)
    assert max(held[0][:2]) < 0.88
    assert min(*held[5][:2], *held[10][:2]) >= 0.9
    assert held[0][2] > 0.12 > held[5][2]


@pytest.mark.parametrize("way", [[], ["--own-code"]])
def test_large_models_are_compared_with_the_stock_model(capsys, monkeypatch, way):
    """Here on the CPU, with tiny models."""
    monkeypatch.setattr("papa.model.model.settle", settling.settle)  # checks each model anew
    monkeypatch.setattr(settling, "patch", settling.patch)  # restores it
    gpu.main(["--tiny", "--device", "cpu", "--seconds", "0", "--precisions", "bfloat16", *way])
    rows = [
        line.split("|") for line in capsys.readouterr().out.splitlines() if line.startswith("| 2 ×")
    ]
    names = [row[2].strip() for row in rows]
    assert names == names[:7] * 4
    assert names[0] == "stock"
    assert names[5] == "λ step"  # two models, two kinds of lengths
    assert all(float(row[3].replace(",", "")) > 0 for row in rows)


def test_a_learned_order_has_its_rank_among_random_orders():
    """The best of ten, one in the middle, and ties; random orders lack the third probe seed."""
    right = {f"random-{draw}": [100 + 2 * draw] * 2 for draw in range(1, 10)}
    right |= {"lambda-0": [190, 190, 0], "lambda-1": [112, 112, 200], "gradient-0": [118, 118]}
    right["last-layer-first"] = [120, 112]
    scores = {
        ("average", name, "1/8"): [np.arange(200) < k for k in of_seeds]
        for name, of_seeds in right.items()
    }
    rows = [*orders.compared(labelled(scores), {("m", "1/8"): 14})]
    lines = [
        [cell.strip() for cell in line.split("|")[4:-1]]
        for line in orders.table(rows).splitlines()[2:]
    ]
    drawn = ["9", "0.550 (0.514 to 0.586)"]
    assert lines == [
        ["14", "λ, seed 0", "0.950", *drawn, "+40.0", "100%", "0.100", "0.200"],
        ["14", "λ, seed 1", "0.560", *drawn, "+1.0", "56%", "0.500", "-"],
        ["14", "λ, mean", "0.755", *drawn, "+20.5", "100%", "-", "-"],
        ["14", "gradient, seed 0", "0.590", *drawn, "+4.0", "89%", "0.200", "0.200"],
        ["14", "last layer first", "0.580", *drawn, "+3.0", "78%", "0.300", "-"],
    ]


@pytest.mark.usefixtures("no_figures")
@pytest.mark.slow
def test_orders_of_a_study_are_compared_or_the_lacking_ones_are_named(tmp_path, capsys):
    """In the made-up study, λ is best."""
    for names in (["lambda", "random"], ["lambda"], ["random"]):
        run = CONFIG["run"] | {"models": ["small"], "tasks": ["second"], "orders": names}
        study = write_results(tmp_path / "-".join(names), run=run, grids={}, ranking={"draws": 4})
        page_of(study)
        if len(names) == 2:
            orders.main(study.folder)
            lines = capsys.readouterr().out.splitlines()
            assert lines[2].endswith("| 100% | 0.200 | 0.200 |")
            assert lines[-1].startswith("| small | second | average | λ and layer |")
        else:
            with pytest.raises(
                SystemExit, match="made needs random orders and others, with the same heads"
            ):
                orders.main(study.folder)


@pytest.mark.slow
def test_the_paper_is_rehearsed_by_the_workflow_and_resumes(tmp_path, capfd):
    texts = [f"the {word} runs and sees a small red dog" for word in WORDS]
    work = tmp_path / "work"
    for name, corpus in rehearse.PAPER["corpora"].items():
        columns = {corpus[key]: texts for key in ("first", "second") if key in corpus}
        folder = tmp_path / corpus["hub"] / corpus["config"]
        table = pa.table(columns | {"label": 5 * [0, 1, 2]})
        folder.mkdir(parents=True)
        for split in ("train", "validation_matched" if name == "mnli" else "validation"):
            pq.write_table(table, folder / f"{split}-0.parquet")
    words = f"--small --mirror {tmp_path} --work {work} --models electra-base --tasks mnli".split()
    for fresh in (True, False):
        rehearse.main(words)
        lines = capfd.readouterr().out.splitlines()
        assert any(line.startswith("tokenize electra-base-mnli: ") for line in lines) == fresh
        assert len([line for line in lines if line.startswith("| electra-base | ")]) == 5  # stages


def test_training_rows_are_split_by_clusters():
    table = pd.DataFrame({"split": ["train"] * 40 + ["validation"] * 5, "cluster": [*range(9)] * 5})
    parts_of = learning_rates.split_rows(table)
    train, held_out = (set(part["cluster"]) for part in parts_of.values())
    assert not train & held_out
    assert len(held_out) == 2  # of nine
    assert sum(map(len, parts_of.values())) == 40


def test_a_learning_rate_is_chosen_on_held_out_training_rows(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    write_model(tmp_path / "model")
    write_data(tmp_path / "data")
    (tmp_path / "config.yaml").write_text(json.dumps(TINY))
    learning_rates.main("config.yaml --work work --model model".split())
    header, _, *rows = capsys.readouterr().out.splitlines()
    assert header.split("|")[2:5] == [" 0.0001 ", " 0.0003 ", " 0.001 "]
    for row in rows:
        _, _, *scores, chosen, _ = row.split("|")
        values = [float(score) for score in scores]
        assert float(chosen) == learning_rates.RATES[values.index(max(values))]
    assert [row.split("|")[1].strip() for row in rows] == ["animals", "tags"]


def test_articles_begin_at_titles_between_empty_lines():
    lines = [
        " \n",
        " = One = \n",
        " \n",
        " a = b \n",
        " = not a title = \n",
        " \n",
        " = Two = \n",
        " \n",
        " c \n",
    ]
    first = " = One = \n a = b \n = not a title = \n"
    assert list(articles.articles(lines)) == [first, " = Two = \n c \n"]


def test_texts_of_an_article_have_127_tokens_and_begin_at_words():
    """Each word of the article has two tokens: the space with a letter, and another letter."""
    places = [place for place in range(3000) if place % 3 != 1]
    spans = zip(places, [*places[1:], 3000], strict=True)
    texts = articles.pieces(" ab" * 1000, lambda *_, **__: {"offset_mapping": spans})
    assert texts == [" ab" * 63] * 8


def test_lists_of_layers_have_all_other_heads(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    layers.main(3, 2, [1])
    for name, others in [("layer-2", [0, 1]), ("full", [0, 2]), ("sliding", [1])]:
        table = pd.read_csv(f"layers/{name}.csv").to_numpy().tolist()
        assert table == [[layer, head] for layer in others for head in range(2)]
