from dataclasses import replace
from importlib.metadata import PackageNotFoundError

import jobs
import pyarrow as pa
import pytest
import torch
import transformers
from families import ROBERTA, byte_tokenizer, letters_tokenizer
from random_models import random_model
from refusals import input_error
from sentencepiece import SentencePieceProcessor, SentencePieceTrainer
from tokenizers import normalizers, processors

import papa
from papa.commands.verify import verify
from papa.data.layout import place_texts, texts_in_blocks
from papa.data.tokenize import (
    check_tokenizer,
    meaningless_tokens,
    missing_packages,
    sizes_of_model,
    tokenize_corpus,
    tokenizer_of,
    without_meaning,
)
from papa.files import read_facts, read_table, write_table
from papa.stages import Tokenize

GPT2 = ("GPT2", ["<|endoftext|>"])


def tokens_at(tokenizer, inputs, row):
    return {
        slot: tokenizer.convert_ids_to_tokens(int(inputs["input_ids"][row, slot]))
        for slot in inputs["attention_mask"][row].nonzero().flatten().tolist()
    }


@pytest.mark.parametrize(
    ("first", "second", "slots", "tokens", "segment_1"),
    [
        ("a bc", None, 11, {0: "[CLS]", 1: "a", 2: "b", 3: "##c", 10: "[SEP]"}, []),
        ("d", None, 11, {0: "[CLS]", 1: "d", 10: "[SEP]"}, []),
        (
            "a b",
            "c d",
            10,
            {0: "[CLS]", 1: "a", 2: "b", 5: "[SEP]", 6: "c", 7: "d", 9: "[SEP]"},
            [6, 7, 9],
        ),
    ],
)
def test_texts_start_at_slot_0_and_end_in_the_last_and_pairs_share_the_slots(
    tokenizer, first, second, slots, tokens, segment_1
):
    inputs = papa.lay_out(
        tokenizer, [first, "d"], None if second is None else [second, "d"], slots=slots
    )
    assert tokens_at(tokenizer, inputs, 0) == tokens
    assert (inputs["input_ids"][inputs["attention_mask"] == 0] == tokenizer.pad_token_id).all()
    assert inputs["token_type_ids"][0].nonzero().flatten().tolist() == segment_1
    assert papa.lay_out(tokenizer, [], slots=slots)["input_ids"].shape == (0, slots)


LETTERS = "a b c d e f g h i j k l m"


@pytest.mark.parametrize(
    ("first", "second", "slots", "style", "used", "cut"),
    [
        (LETTERS, None, 9, "paper", [*range(9)], 13 - 7),
        (LETTERS, "a", 12, "paper", [*range(8), 11], 13 - 5),
        ("a", LETTERS, 12, "paper", [0, 1, 6, 7, 8, 9, 10, 11], 13 - 4),
        (LETTERS, None, 10, "published_code", [0, 1, 2, 3, 4, 9], 13 - 4),  # half of the slots
        (LETTERS.split(), None, 17, "published_code", [*range(14), 16], 0),
    ],
)
def test_a_text_longer_than_its_room_is_cut_and_counted(
    tokenizer, first, second, slots, style, used, cut
):
    placed = next(place_texts(tokenizer, [first], second and [second], slots=slots, style=style))
    assert (placed.slots, placed.cut) == (used, cut)


@pytest.mark.parametrize("slots", [11, 12])
def test_segments_of_the_published_code_are_those_of_its_tokenizer_call_for_cut_pairs_too(
    tokenizer, slots
):
    pairs = [(first, second) for first in (1, 3, 5, 7, 13) for second in (1, 2, 4, 5, 6, 7, 17)]
    texts = [[letters(length) for length in lengths] for lengths in zip(*pairs, strict=True)]
    inputs = papa.lay_out(tokenizer, *texts, slots=slots, style="published_code")
    expected = stock_inputs(tokenizer, *texts, slots)["token_type_ids"] * inputs["attention_mask"]
    assert inputs["token_type_ids"].tolist() == expected.tolist()


def test_a_word_is_numbered_on_its_first_sub_token(tokenizer):
    (placed,) = place_texts(tokenizer, [["ab", "c", "def"]], None, slots=13)
    assert placed.words == [-1, 0, -1, 1, 2, -1, -1, -1]
    (placed,) = place_texts(
        byte_tokenizer(*GPT2, add_prefix_space=True), [["ab", "c"]], None, slots=11
    )
    assert placed.words == [0, -1, -1, 1, -1]
    assert placed.slots == [
        0,
        1,
        2,
        3,
        4,
    ]  # a decoder has no special token


WORDS = [["\u200d"], ["\u00ad", "ab", "\ufe0f"], ["c", "\ufeff", "\x01"]]


def test_every_word_has_a_token(tokenizer):
    """So all models predict the same words; those that the tokenizer drops become its unknown token."""
    tokenizer.backend_tokenizer.normalizer = normalizers.BertNormalizer()
    placed = list(place_texts(tokenizer, WORDS, None, slots=7))
    assert [one.words for one in placed] == [[-1, 0, -1], [-1, 0, 1, -1, 2, -1], [-1, 0, 1, 2, -1]]
    assert [one.unknown for one in placed] == [1, 2, 2]
    assert tokenizer.convert_ids_to_tokens(placed[1].ids[1:-1]) == ["[UNK]", "a", "##b", "[UNK]"]
    tokenizer.unk_token = None
    with input_error(r"has no token for the word '\\u200d', and no unknown token; leave"):
        list(place_texts(tokenizer, WORDS, None, slots=7))


@pytest.mark.parametrize(
    ("words", "tokens", "begun"),
    [(["ab", "c", "def"], "a b c d e f", [0, -1, 1, 2, -1, -1]), (["", "b"], "[UNK] b", [0, 1])],
)
def test_python_tokenizers_take_words_one_by_one(tmp_path, words, tokens, begun):
    """They do not say which token belongs to which word; to this one, every character is a token."""
    vocabulary = tmp_path / "vocab.txt"
    vocabulary.write_text("[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\na\nb\nc\nd\ne\nf")
    tokenizer = transformers.BertJapaneseTokenizer(
        str(vocabulary),
        word_tokenizer_type="basic",
        subword_tokenizer_type="character",
        do_lower_case=False,
    )
    (placed,) = place_texts(tokenizer, [words], None, slots=11)
    assert placed.words == [-1, *begun, -1]
    assert tokenizer.convert_ids_to_tokens(placed.ids[1:-1]) == tokens.split()


@pytest.mark.parametrize("name", ["ByT5", "Canine"])
def test_a_tokenizer_that_joins_words_is_refused_for_words(name):
    tokenizer = getattr(transformers, f"{name}Tokenizer")()
    assert len(papa.lay_out(tokenizer, ["ab c"], slots=23)["input_ids"])
    with input_error(r"joins the words of a list without spaces.* or use a model whose"):
        papa.lay_out(tokenizer, [["ab", "c"]], slots=23)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"first": ["a"], "slots": 2}, "no room"),
        ({"first": ["a"], "slots": 9, "style": "code"}, "paper, published_code"),
        ({"first": ["a"], "second": ["b", "c"], "slots": 9}, "equally long lists"),
        ({"first": "a b", "slots": 9}, "list of texts"),
        ({"first": ["a", "b"], "second": "ab", "slots": 9}, "list of texts"),
        ({"first": [("a", "b")], "slots": 9}, "pairs are two lists"),
        ({"first": [["a"]], "second": ["b"], "slots": 9}, "leave out the second texts"),
        ({"first": ["a"], "slots": 600}, "set fewer slots"),
    ],
)
def test_what_cannot_be_laid_out_is_said(tokenizer, arguments, message):
    tokenizer.model_max_length = 512
    with input_error(message):
        papa.lay_out(tokenizer, **arguments)


@pytest.mark.parametrize(("kind", "size"), [("gemma3", 9216), ("gpt_neo", 8192)])
def test_sizes_are_those_of_the_part_for_text_and_the_usual_ones_if_unset(kind, size, tmp_path):
    transformers.AutoConfig.for_model(kind).save_pretrained(tmp_path)
    assert sizes_of_model(str(tmp_path))["intermediate"] == size


def test_a_model_without_tokenizer_files_is_refused(tmp_path):
    transformers.AutoConfig.for_model("bert").save_pretrained(tmp_path)
    with input_error(r"^m has no tokenizer files"):
        tokenizer_of(str(tmp_path), "m")


def test_a_tokenizer_that_is_only_a_sentencepiece_file(tmp_path, monkeypatch):
    """As of DeBERTa v3 and T5 on the hub; its pieces are those of the package itself."""
    (tmp_path / "texts").write_text("a bad cab\n" * 99)
    places = {"input": f"{tmp_path}/texts", "model_prefix": f"{tmp_path}/spm"}
    special = {"pad_piece": "[PAD]", "bos_piece": "[CLS]", "eos_piece": "[SEP]"}
    ids = {"pad_id": 0, "bos_id": 1, "eos_id": 2, "unk_id": 3, "unk_piece": "[UNK]"}
    SentencePieceTrainer.train(vocab_size=9, minloglevel=2, **places, **special, **ids)
    transformers.DebertaV2Config().save_pretrained(tmp_path)
    pieces = SentencePieceProcessor(f"{tmp_path}/spm.model").encode("bad cab", out_type=str)
    assert tokenizer_of(str(tmp_path)).tokenize("bad cab") == pieces

    def version(package):
        raise PackageNotFoundError(package)

    monkeypatch.setattr("papa.data.tokenize.version", version)
    said = "is in spm.model, which needs sentencepiece and protobuf: pip install"
    with input_error(f"^The tokenizer of m {said}"):
        tokenizer_of(str(tmp_path), "m")
    found = verify(str(tmp_path))
    assert (found["kind"], found["form"]) == ("deberta-v2", "refused")
    assert said in found["why"]
    (tmp_path / "tokenizer.json").touch()
    assert missing_packages(str(tmp_path)) is None


def job_on(folder, model=None, **settings):
    """The job that lays out the texts of a folder."""
    settings = Tokenize(**{"slots": 7, "layout": "paper"} | settings)
    model = model or random_model("bert")
    return jobs.job(settings, folder / "tokens.parquet", model, texts=folder / "texts.parquet")


def tokenized(columns, folder, *model, **settings):
    """Lay out the texts of a table; returns the stage's message and the table of tokens."""
    write_table(pa.table(columns), folder / "texts.parquet", {})
    job = job_on(folder, *model, **settings)
    return tokenize_corpus([job]), read_table(job.output)


@pytest.fixture
def of_tokenizer(tokenizer, monkeypatch):
    """The stage takes the test's tokenizer."""
    monkeypatch.setattr("papa.data.tokenize.tokenizer_of", lambda folder, name, words: tokenizer)
    monkeypatch.setattr(
        "papa.data.tokenize.sizes_of_model", lambda folder, name: {"vocabulary": 56}
    )


def test_a_token_without_an_embedding_and_words_without_a_token_are_said(
    tmp_path, of_tokenizer, tokenizer
):
    tokenizer.backend_tokenizer.normalizer = normalizers.BertNormalizer()
    rows = {"split": ["train"] * 2, "row": [3, 5]}
    said, table = tokenized(rows | {"words": [["a", "\u200d"], ["\u00ad"]]}, tmp_path)
    assert said.endswith("tokens ([UNK]). Warning: 2 words without a token became [UNK]")
    assert table.select(["split", "row"]).to_pydict() == rows
    assert table["words"][0].as_py() == [
        -1,
        0,
        1,
        -1,
    ]
    tokenizer.add_tokens(["<e1>"])
    tokenizer.backend_tokenizer.post_processor = processors.TemplateProcessing(
        single="$A", pair="$A $B", special_tokens=[]
    )
    assert not papa.lay_out(tokenizer, ["", "a"], slots=3)["attention_mask"][0].any()
    with input_error("Row 5 of the train split has no token for model tiny; leave it out"):
        tokenized(rows | {"first": ["a", "\u200d"]}, tmp_path)
    said = r"model tiny has the token '<e1>' \(row 5 of the train split\), but the model has no embedding 56; call"
    with input_error(said):
        tokenized(rows | {"first": ["a", "a <e1> b"]}, tmp_path)
    with input_error(r"has the token '<e1>' \(in the text 'a <e1> b'\), but"):
        check_tokenizer("f", "tiny", 7, False, ["a", "a <e1> b"])


@pytest.mark.parametrize(
    ("columns", "said"),
    [
        (
            {"first": ["é", "é a"]},
            "0 examples cut. Warning: 1 example with only unknown tokens ([UNK])",
        ),
        ({"first": ["é", "a"], "second": ["a", "é"]}, "0 examples cut"),
        ({"words": [["é", "é"], ["a"]]}, "Warning: 1 example with only unknown tokens ([UNK])"),
    ],
)
def test_texts_of_unknown_tokens_are_counted(tmp_path, of_tokenizer, columns, said):
    report, _ = tokenized({"split": ["train"] * 2, "row": [0, 1]} | columns, tmp_path)
    assert report.endswith(said)
    assert read_facts(tmp_path / "tokens.parquet")["unknown"] == {"train": int("unknown" in said)}


def test_the_space_of_sentencepiece_is_no_known_token():
    tokenizer = letters_tokenizer()
    tokenizer.add_tokens(["\u2581"])
    tokens = tokenizer.convert_ids_to_tokens(without_meaning(tokenizer))
    assert sorted(tokens) == ["[CLS]", "[PAD]", "[SEP]", "[UNK]", "\u2581"]
    assert meaningless_tokens(tokenizer) == "unknown tokens ([UNK])"
    tokenizer.unk_token = None
    assert meaningless_tokens(tokenizer) == "special tokens"


@pytest.mark.parametrize("columns", [{"words": [["a"]]}, {"first": ["a"], "second": ["b"]}])
def test_only_single_texts_are_cut_in_blocks(tmp_path, of_tokenizer, columns):
    with input_error("only single texts can be cut into blocks"):
        tokenized({"split": ["train"], "row": [0]} | columns, tmp_path, blocks=True)


@pytest.mark.parametrize("family", ["bert", "llama"])
def test_tokens_have_facts_and_nothing_of_the_tasks(tmp_path, family):
    texts = {
        "split": ["train", "train", "validation"],
        "row": [0, 4, 0],
        "first": ["a b c d e f g h i", "a", "b"],
        "label t": [0, 1, 0],
        "cluster": [0, 1, 0],
    }
    model = random_model(family)
    _, table = tokenized(texts, tmp_path, model)
    assert table.column_names == ["split", "row", "ids", "slots", "segments", "cut"]
    assert read_facts(tmp_path / "tokens.parquet") == {
        "sizes": sizes_of_model(model),
        "slots": 7,
        "style": "contiguous" if family == "llama" else "paper",
        "rows": {"train": 2, "validation": 1},
        "cut": {"train": 1, "validation": 0},
        "unknown": {"train": 0, "validation": 0},
    }
    job = job_on(tmp_path, model)
    changed = replace(job, record=job.settings.record({"texts": "t", "model": "another digest"}))
    with input_error(r"files of model tiny in .* have changed since this run began; start"):
        tokenize_corpus([changed])
    _, blocks = tokenized(texts, tmp_path, model, blocks=True)
    assert read_facts(tmp_path / "tokens.parquet")["rows"]["train"] == len(blocks) - 1
    assert blocks["row"].to_pylist()[-1] == 0


LENGTHS = [(1, 1), (3, 9), (13, 2), (2, 17), (11, 11), (19, 19), (1, 30), (30, 1)]
ALPHABET = "abcdefghijklmnopqrstuvwxyzabcdefghij"


def letters(count):
    return " ".join(ALPHABET[:count])


def stock_inputs(tokenizer, first, second, slots):
    options = {
        "truncation": True,
        "padding": "max_length",
        "max_length": slots,
        "return_token_type_ids": True,
    }
    return tokenizer(first, second, **options, return_tensors="pt")


@pytest.mark.parametrize("slots", [11, 12, 23])
@pytest.mark.parametrize("pairs", [False, True])
@pytest.mark.parametrize("kind", ["letters", "roberta"])
def test_inputs_are_those_of_the_stock_tokenizer(tokenizer, kind, pairs, slots):
    if kind == "roberta":
        tokenizer = byte_tokenizer(*ROBERTA)
    first, second = (
        [letters(length) for length in lengths] for lengths in zip(*LENGTHS, strict=True)
    )
    texts = (first, second) if pairs else (first, None)
    expected = stock_inputs(tokenizer, *texts, slots)
    for name, values in papa.lay_out(tokenizer, *texts, slots=slots, style="natural").items():
        assert torch.equal(
            values, expected[name] * (1 if name == "input_ids" else expected["attention_mask"])
        ), name


@pytest.mark.parametrize(
    ("name", "marks", "ends"),
    [(*ROBERTA, [11, 12, 21]),
     ("Deberta", ["[PAD]", "[CLS]", "[SEP]", "[UNK]", "[MASK]"], [11, 21])],
)  # fmt: skip
def test_separators_are_in_the_middle_and_in_the_last_slot(name, marks, ends):
    """RoBERTa has two in the middle; DeBERTa was pretrained with one."""
    tokenizer = byte_tokenizer(name, marks)
    inputs = papa.lay_out(tokenizer, ["ab", "a b c d e f g"], ["c", "defg"], slots=22)
    assert inputs["input_ids"][0].eq(2).nonzero().flatten().tolist() == ends
    assert inputs["input_ids"].eq(tokenizer.pad_token_id).eq(inputs["attention_mask"] == 0).all()
    split = byte_tokenizer(name, marks, add_prefix_space=True)
    tokens = split.convert_ids_to_tokens(
        papa.lay_out(split, [["ab", "c"]], slots=11)["input_ids"][0, 1:6].tolist()
    )
    assert tokens == ["Ġ", "a", "b", "Ġ", "c"], (
        "words have the space before them that they have in a text"
    )


def test_texts_of_a_decoder_follow_each_other_from_slot_0():
    tokenizer = byte_tokenizer(*GPT2)
    inputs = papa.lay_out(tokenizer, ["abc", "abcdefgh"], ["de", "ij"], slots=7)
    assert inputs["attention_mask"].tolist() == [[1, 1, 1, 1, 1, 0, 0], [1, 1, 1, 1, 1, 1, 1]]
    rows = zip(inputs["input_ids"], inputs["attention_mask"], strict=True)
    shown = ["".join(tokenizer.convert_ids_to_tokens(row[mask.bool()])) for row, mask in rows]
    assert shown == ["abcde", "abcdeij"]  # the longer text is cut


def test_special_tokens_of_a_decoder_are_next_to_its_texts(tokenizer):
    inputs = papa.lay_out(tokenizer, ["a b"], ["c"], slots=11, style="contiguous")
    assert tokens_at(tokenizer, inputs, 0) == dict(
        enumerate(["[CLS]", "a", "b", "[SEP]", "c", "[SEP]"])
    )
    assert inputs["token_type_ids"][0, :6].tolist() == [0, 0, 0, 0, 1, 1]
    blocks = list(texts_in_blocks(tokenizer, [letters(11)], 9, contiguous=True))
    assert [block.slots for block in blocks] == [[*range(9)], [*range(6)]], (
        "nor has the last block a gap"
    )


def test_byte_level_tokenizer_is_readied_for_words(tmp_path):
    byte_tokenizer(*ROBERTA).save_pretrained(tmp_path)
    (tmp_path / "config.json").write_text('{"model_type": "roberta"}')
    tokenizer = tokenizer_of(str(tmp_path), words=True)
    words = tokenizer(["a", "b"], is_split_into_words=True, add_special_tokens=False)
    assert words.tokens() == ["Ġ", "a", "Ġ", "b"]
    assert tokenizer_of(str(tmp_path))("a b", add_special_tokens=False).tokens() == ["a", "Ġ", "b"]
