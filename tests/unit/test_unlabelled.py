"""Corpora without labels: only a training split, laid out text by text or in blocks, and averaged."""

import jobs
import pytest
from test_choice import prepare

import papa
from papa.config.settings import Corpus
from papa.data.tokens import Tokens
from papa.files import provenance_of, read_table


@pytest.mark.parametrize(("blocks", "lengths"), [(False, [7, 4]), (True, [7, 6])])
def test_a_training_split_alone_is_averaged(tmp_path, model, tokenizer, place_tiny, blocks, lengths):
    tiny = place_tiny(model, tokenizer)
    (tmp_path / "wiki.txt").write_text("a b c d e f g\n\nh i\n", encoding="utf-8")
    texts, _ = prepare(tmp_path, Corpus(files={"train": str(tmp_path / "wiki.txt")}, blocks=blocks))
    assert read_table(texts)["split"].to_pylist() == ["train"] * 2
    tokens = jobs.lay_out(tiny, tmp_path, 7, blocks=blocks)
    assert provenance_of(read_table(tokens))["rows"] == {"train": 2}
    assert Tokens.read(tokens, "train")["train"].lengths.tolist() == lengths
    with pytest.raises(papa.InputError, match="The validation split has no examples"):
        Tokens.read(tokens)
    jobs.average(tiny, tokens, tmp_path / "average.h5")
    average = papa.ConstantMatrices.load(tmp_path / "average.h5")
    assert average.examples == 2 and average.n == 7
    assert average.sum[0, 0, 0].sum().item() == pytest.approx(2.0)
