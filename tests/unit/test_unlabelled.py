"""Corpora without labels: a training split alone, laid out text by text or in blocks, and averaged."""

import pytest

import papa
from papa.config.job import Job
from papa.config.settings import Corpus, Machine
from papa.config.stages import AverageOf, Encoding, ModelId, TextsOf, TokensOf
from papa.data.prepare import prepare_texts
from papa.data.tokenize import tokenize_corpus
from papa.data.tokens import Tokens
from papa.files import provenance_of, read_table
from papa.method.corpus_averages import average_corpus

TINY = ModelId(name="tiny")


@pytest.mark.parametrize(("blocks", "lengths"), [(False, [7, 4]), (True, [7, 6])])
def test_a_training_split_alone_is_averaged(tmp_path, tiny, tokenizer, blocks, lengths):
    tokenizer.save_pretrained(tmp_path / "tiny")
    (tmp_path / "wiki.txt").write_text("a b c d e f g\n\nh i\n", encoding="utf-8")
    texts, tokens, constants = (str(tmp_path / name) for name in ("texts.parquet", "tokens.parquet", "average.h5"))
    corpus = Corpus(files={"train": str(tmp_path / "wiki.txt")}, blocks=blocks)
    prepare_texts(Job("texts", TextsOf(corpus=corpus, source={}), {}, {"texts": texts}))
    assert read_table(texts).column("split").to_pylist() == ["train"] * 2
    layout = TokensOf(model=TINY, slots=7, style="paper", segments="aligned", blocks=blocks)
    tokenize_corpus(Job("tokens", layout, {"texts": (texts,)}, {"tokens": tokens}, machine=Machine.current()))
    assert provenance_of(read_table(tokens))["rows"] == {"train": 2}
    assert Tokens.read(tokens, "train")["train"].lengths.tolist() == lengths
    with pytest.raises(papa.InputError, match="The validation split has no examples"):
        Tokens.read(tokens)
    settings = AverageOf(model=Encoding(model=TINY), part="1of1")
    average_corpus(Job("average", settings, {"tokens": (tokens,)}, {"constants": constants}, machine=Machine.current()))
    average = papa.ConstantMatrices.load(constants)
    assert average.examples == 2 and average.n == 7
    assert average.sum[0, 0, 0].sum().item() == pytest.approx(2.0)
