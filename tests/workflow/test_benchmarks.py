"""The benchmarks do what they are for, each in its smallest form and in this process."""

import argparse
import shutil
from types import SimpleNamespace

import pyarrow as pa
import pytest
import torch
from tiny import WORDS, write_model

import papa
from benchmarks import compare, gpu, learning_rates, overhead, parts, products, smoke_hub, stress, training_samples
from papa.data.readers import SourceRows

SLOTS = 13


@pytest.fixture
def model(tmp_path, monkeypatch):
    write_model(tmp_path / "model")
    torch.set_num_threads(1)
    return str(tmp_path / "model")


class InOneProcess(compare.Comparison):
    """A comparison whose parts are not measured."""

    def run(self, side, step="", threads=None, **more):
        self.asked = [*getattr(self, "asked", []), more]
        settings = self.settings | {"side": side, "step": step} | more
        return compare.Measured(2.0, 3.0, 5 * 10**6, parts.part_of(settings)())


@pytest.fixture
def compared(tmp_path, model, monkeypatch):
    """The folder and the rows of a comparison on a few sentences."""
    for split, rows in (("train", 19), ("validation", 7)):
        sentences = [f"the {WORDS[row % len(WORDS)]} runs,{row % 2}" for row in range(rows)]
        (tmp_path / f"{split}.csv").write_text("\n".join(["sentence,label", *sentences]) + "\n", encoding="utf-8")
    work = tmp_path / "work"
    work.mkdir()
    arguments = argparse.Namespace(rows=17, epochs=2, threads=1, model=model, mirror=None)
    comparison = InOneProcess(work, arguments)
    files = {split: str(tmp_path / f"{split}.csv") for split in ("train", "validation")}
    corpus = {"files": files, "first": "sentence", "train_limit": 17}
    comparison.settings |= {"model": {"name": "minilm"}, "corpus": corpus, "slots": SLOTS}
    monkeypatch.setenv("PAPA_MACHINE", compare.json.dumps(comparison.machine))
    return work, comparison, compare.compare(comparison, inexact=True)


def test_both_sides_are_compared_and_do_the_same_work(compared):
    work, comparison, rows = compared
    assert comparison.run("difference").report["difference"] < 1e-5
    parts = ["averaging", "λ", "probes", "end", "averaging", "λ", "λ", "end", "end"]
    assert [row.part.split()[0] for row in rows] == parts + ["fraction"] * len(compare.FRACTIONS)
    assert all(str(row).count("|") == 8 for row in rows)
    comparison.asked.clear()
    exact = compare.compare(comparison, inexact=False)
    assert not any({"settled", "precision"} & more.keys() for more in comparison.asked)
    assert [row.part for row in exact] == [row.part for row in (*rows[:4], *rows[9:])]
    assert sorted(path.name for path in work.glob("seed-*.json")) == ["seed-1.json", "seed-2.json", "seed-3.json"]


def test_a_part_of_every_fraction_has_a_report():
    """One that is no folder in a folder that is not there."""
    names = [compare.report_name("project", "features", fraction) for fraction in compare.FRACTIONS]
    assert len(set(names)) == len(names) and not any("/" in name for name in names)


def test_parts_and_their_products_are_drawn(compared, tmp_path):
    taken = compare.against_products(compared[1])
    assert [*taken] == [*compare.PARTS.values()] and all(products > 0 for _, products in taken.values())
    compare.drawn(taken, str(tmp_path / "figure.svg"))
    drawn = (tmp_path / "figure.svg").read_text(encoding="utf-8")
    assert ">λ</text>" in drawn and ">only its products and attention</text>" in drawn


def test_products_are_timed_and_nothing_else():
    def work():
        (torch.randn(300, 300) @ torch.randn(300, 300)).tanh().requires_grad_().square().sum().backward()
        return {"said": "done"}

    def no_product():
        return {"sum": torch.randn(300, 300).tanh().sum()}

    report = parts.seconds_of_products(work)
    assert 0 < report["products"] < report["timed"] and parts.seconds_of_products(no_product)["products"] == 0


def test_the_scratch_folder_is_created(tmp_path, monkeypatch):
    class Reached(Exception):
        pass

    def work_in(comparison, inexact):
        raise Reached(comparison.work.parent, inexact)

    monkeypatch.setattr(compare, "compare", work_in)
    monkeypatch.setattr(compare, "Comparison", lambda work, arguments: SimpleNamespace(work=work))
    monkeypatch.setattr("sys.argv", ["compare.py", "--scratch", str(tmp_path / "new/scratch"), "--exact"])
    with pytest.raises(Reached) as reached:
        compare.main()
    assert reached.value.args == (tmp_path / "new/scratch", False)
    assert list((tmp_path / "new/scratch").iterdir()) == [], "temporary files are removed"


def test_learning_rates_are_searched_on_training_rows(compared, tmp_path, capsys):
    work, _, _ = compared
    corpus, task = tmp_path / "results/models/minilm/corpora/few", tmp_path / "results/tasks/t"
    (corpus / "features/original").mkdir(parents=True)
    task.mkdir(parents=True)
    shutil.copy(work / "tokens.parquet", corpus)
    shutil.copy(work / "labels.parquet", task)
    for ending in ("json", "hidden"):
        shutil.copy(work / f"1of1.{ending}", corpus / "features/original")
    asked = ["--task", "t:few:accuracy:4", "--epochs", "2", "--rates", "1e-3", "1e-2"]
    learning_rates.main([str(corpus.parents[1]), *asked])
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert [line[:2] for line in lines] == [["t", "0.001"], ["t", "0.01"]]
    # 3 of the 17 training rows are held out
    assert all(float(score) in (0, 0.333, 0.667, 1) for line in lines for score in line[2:]) and len(lines[0]) == 4


def test_every_stage_of_the_stress_test_runs(tmp_path, model, monkeypatch):
    monkeypatch.setenv("PAPA_MACHINE", "{}")  # each stage sets it
    monkeypatch.setattr(stress, "HELD_OUT", 7)
    stress.write_sentences(tmp_path, 23)
    said = [stress.run_stage(stage, tmp_path, model)["said"] for stage in stress.STAGES]
    assert "23 of 23 train rows" in said[0] and "30 examples" in said[1]
    assert "23 examples" in said[2] and "0 of 4 heads" in said[3]


def test_the_smoke_test_looks_at_its_averages(model, monkeypatch, capsys):
    columns = {name: [f"the {word} runs" for word in WORDS] for name in ("sentence1", "sentence2")}
    monkeypatch.setattr(smoke_hub, "load_rows", lambda corpus, split: SourceRows(pa.table(columns), list(columns)))
    monkeypatch.setattr(smoke_hub, "MODEL", model)
    monkeypatch.setattr(smoke_hub, "SLOTS", SLOTS)
    monkeypatch.setattr(smoke_hub, "BATCH_SIZE", 5)
    smoke_hub.main()
    # three words of each text, [CLS], and [SEP] twice
    assert "averages [2, 2, 13, 13], 9 slots used, rows sum to between 1.000 and 1.000" in capsys.readouterr().out
    other = papa.ConstantMatrices(torch.zeros(3, 2, SLOTS, SLOTS), torch.ones(SLOTS, SLOTS, dtype=torch.long), 1)
    monkeypatch.setattr(papa, "average_attention", lambda *_: other)
    with pytest.raises(SystemExit, match="not finite"):
        smoke_hub.main()


@pytest.mark.slow
def test_a_probe_is_stopped_at_its_first_step(finished):
    assert 0 < overhead.first_step(finished.folder, "config.yaml") < 120
    assert not (finished.folder / "none.json").exists()


@pytest.mark.slow
def test_intervals_cover_the_choice_of_training_rows_only_if_seeds_share_none():
    fixed, parts, halves, bootstrap = (training_samples.coverage(way, 120, 120) for way in training_samples.WAYS)
    assert min(parts) >= 88 and max(fixed) < 75
    assert parts.score > max(halves.score, bootstrap.score)


def test_large_models_are_compared_with_the_stock_model(capsys):
    """Here on the CPU, with tiny models."""
    gpu.main(["--tiny", "--device", "cpu", "--seconds", "0", "--precisions", "bfloat16"])
    rows = [line.split("|") for line in capsys.readouterr().out.splitlines() if line.startswith("| 2 ×")]
    names = [row[2].strip() for row in rows]
    assert names == names[:9] * 4 and names[0] == "stock" and names[7] == "λ step"  # two models, two kinds of lengths
    assert all(float(row[3].replace(",", "")) > 0 for row in rows)


def test_batches_of_several_sizes_are_compared(capsys):
    options = ["--tiny", "--device", "cpu", "--seconds", "0", "--precisions", "float32", "--budgets", "16", "64"]
    gpu.main([*options, "--models", "decoder, 8 billion"])
    rows = [line.split("|")[1:3] for line in capsys.readouterr().out.splitlines() if line.count("|") == 6]
    assert [[cell.strip() for cell in row] for row in rows[2:]] == [["16", "16"], ["63", "16"]]


def test_products_are_compared_with_the_stock_model(model, capsys):
    products.main(["--model", model, "--slots", "13", "--long", "17", "19", "--times", "1"])
    rows = [line for line in capsys.readouterr().out.splitlines() if line.startswith("|") and "--" not in line]
    assert [row.split("|")[1].split()[0] for row in rows] == ["slots", "13", "slots,", "17", "19", "slots,", "17", "19"]
    assert rows[1].count("|") == 3 + len(products.KINDS)
    assert [name.strip() for name in rows[2].split("|")[6:-1]] == [f"{kind}, MB" for kind in products.KINDS[1:-1]]
