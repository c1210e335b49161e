"""Corpora without labels: a training split alone, averaged at the slots of some task; few texts."""

import pytest
import torch

import papa
from papa.data.prepare import prepare_texts
from papa.data.tokenize import tokenize_corpus
from papa.data.tokens import Tokens
from papa.files import provenance_of, read_table
from papa.method.averages import average_corpus
from papa.method.ranking import train_lambda
from papa.method.streaming import train_probe_through_encoder


@pytest.fixture
def text_file(tmp_path, tiny, tokenizer):
    tokenizer.save_pretrained(tmp_path / "tiny")
    (tmp_path / "wiki.txt").write_text("a b c d e f g\n\nh i\n", encoding="utf-8")
    return {"files": {"train": str(tmp_path / "wiki.txt")}, "first": "text"}


@pytest.mark.parametrize(("blocks", "lengths"), [(False, [7, 4]), (True, [7, 6])])
def test_a_training_split_alone_is_averaged(tmp_path, tiny, text_file, blocks, lengths):
    texts, tokens, constants = tmp_path / "texts.parquet", tmp_path / "tokens.parquet", tmp_path / "average.h5"
    prepare_texts(text_file | {"blocks": blocks}, texts)
    assert read_table(texts).column("split").to_pylist() == ["train"] * 2
    tokenize_corpus(tiny, texts, tokens, 7, "paper", "aligned", blocks)
    assert provenance_of(read_table(tokens))["rows"] == {"train": 2}
    assert Tokens.read(tokens, "train")["train"].lengths.tolist() == lengths
    average_corpus(tiny, tokens, constants)
    average = papa.ConstantMatrices.load(constants)
    assert average.examples == 2 and average.n == 7
    torch.testing.assert_close(average.sum[0, 0, 0].sum().item(), 2.0)
    with pytest.raises(papa.InputError, match="The validation split has no examples"):
        Tokens.read(tokens)


def test_fewer_examples_than_a_batch_are_one_batch(tiny, corpus):
    tokens, labels = corpus / "tokens.parquet", corpus / "labels.parquet"
    metric = "token_accuracy" if "words" in read_table(tokens).column_names else "accuracy"
    task = {"metric": metric, "learning_rate": 1e-2, "batch_size": 10_007, "epochs": 1}
    average_corpus(tiny, tokens, corpus / "average.h5")
    train_lambda(tiny, tokens, labels, corpus / "lambda.parquet", task, 0, corpus / "average.h5")
    out = corpus / "run.json", corpus / "probe.safetensors"
    said = train_probe_through_encoder(tiny, tokens, labels, *out, task, 1, {})
    assert said.startswith(f"{metric} 0.")
