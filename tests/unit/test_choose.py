"""What is chosen for a table: columns by their usual names, metric, slots; and what is asked instead."""

import json
import shutil

import pyarrow as pa
import pytest
from families import letters_tokenizer
from refusals import input_error

from papa.data.choose import DataSet, data_in_files, roles_of, validation_file
from papa.data.columns import Columns
from papa.data.readers import read_file
from papa.data.splits import Wanted

KINDS = {
    "text": ["Mara ran", "a dull film", "the bridge", "no one"],
    "class": ["pos", "neg", "pos", "neg"],
    "int": [0, 1, 1, 0],
    "words": [["Mara", "runs"], ["Otto", "met", "Ilse"], ["rain"], ["no", "one"]],
    "tags": [["B-PER", "O"], ["B-PER", "O", "B-PER"], ["O"], ["O", "O"]],
    "ints": [[3, 0], [3, 0, 3], [0], [0, 0]],
}
"""Columns by what they contain; only labels and lists are recognised by content."""
ASK = "give {}=COLUMN"
CUT = "texts are joined and cut into blocks, which cross texts"


def columns_of(header, source="train.csv"):
    """A table from NAME:KIND pairs, without KIND a text; the name - is empty."""
    parts = [part.partition(":") for part in header.split("; ")]
    names = [name.strip() for name, _, _ in parts]
    table = pa.table([pa.array(KINDS[kind or "text"]) for _, _, kind in parts], names=names)
    return Columns(source, table, names)


@pytest.mark.parametrize(
    ("header", "chosen"),
    [
        ("sentence; label:int; idx", "sentence - label"),  # SST-2, CoLA
        ("idx; sentence1; sentence2; label:int", "sentence1 sentence2 label"),  # RTE, MRPC, WNLI
        ("Quality:int; #1 ID; #2 ID; #1 String; #2 String", "?label"),  # MRPC as first published
        ("id; qid1; qid2; question1; question2; is_duplicate:int", "question1 question2 is_duplicate"),
        ("index; promptID; pairID; genre; sentence1_binary_parse; sentence2_binary_parse; "
         "sentence1_parse; sentence2_parse; sentence1; sentence2; label1:class; gold_label:class",
         "sentence1 sentence2 gold_label"),  # MNLI, SNLI
        ("premise; hypothesis; label:int; idx", "premise hypothesis label"),  # MNLI on the hub, CB, SciTail
        ("text; label:int", "text - label"),  # IMDb, Yelp, tweet_eval, AG News, emotion on the hub
        ("target:int; ids; date; flag; user; text", "text - target"),  # Sentiment140
        ("text; labels:ints; id", "?label"),  # GoEmotions: several labels for each text
        ("tokens:words; ner_tags:ints; langs:tags; spans:words", "tokens ner_tags"),  # WikiANN
        ("text", "text"),  # running text: WikiText, TinyStories
        ("story", "story"),
        ("text1; text2; label:class", "text1 text2 label"),  # the partner is not left out silently
        ("review; premise; hypothesis; label:class", "?first"),
        ("hypothesis; premise; label:class", "premise hypothesis label"),
        ("when; where; notes; label:class", "?first"),  # names that nobody knows are asked for
        ("Sentence; Label:class", "Sentence - Label"),
        ("sentence_A; sentence_B; label:class", "sentence_A sentence_B label"),  # SICK
        ("tokens; label:class", "?first"),  # lists that were written as text
        ("text; target", "?label"),  # a text to write, no class
        ("a:words; b:words; tags:tags", "?first"),
        ("words:words; text; tags:tags", "words tags"),
        ("Sentence #; Word; POS:class; Tag:class", "?first"),
        ("document; score; token; label:class", "?first"),
    ],
)  # fmt: skip
def test_columns_are_chosen_if_they_are_certain(header, chosen):
    assert_chosen(columns_of(header), {}, chosen)


def assert_chosen(columns, given, chosen):
    """Compare the columns by role with "FIRST SECOND LABEL" or "WORDS LABEL", or see the question about "?ROLE"."""
    names = chosen.split(" ")
    if chosen.startswith("?"):
        with input_error(ASK.format(chosen[1:])) as asked:
            roles_of(columns, given)
        assert f"Its columns: {', '.join(columns.names[:2])}" in str(asked.value)
        assert len(str(asked.value)) < 600
        return
    keys = ("words", "label") if len(names) == 2 else ("first", "second", "label")[: len(names)]
    assert roles_of(columns, given) == {
        key: name for key, name in zip(keys, names, strict=True) if name != "-"
    }


@pytest.mark.parametrize(
    ("lines", "suffix", "chosen"),
    [
        ("Mara B-PER\nruns O", ".conll", "words column_2"),
        ("B-PER\tMara\nO\truns", ".conll", "?label"),  # the words come second
        ("Mara NNP B-PER\nruns VBZ O", ".conll", "?label"),
        ("1\tMara\tmara\tPROPN" + "\t_" * 6, ".conllu", "?label"),  # upos or deprel
        ("one line", ".txt", "text"),
    ],
)
def test_columns_of_files_without_a_header(tmp_path, lines, suffix, chosen):
    path = tmp_path / f"train{suffix}"
    path.write_text(f"{lines}\n\n{lines}\n")
    assert_chosen(read_file(path), {}, chosen)


@pytest.mark.parametrize(
    ("header", "given", "chosen"),
    [
        (
            "id; question1; question2; label:class",
            {"first": "question1"},
            "question1 - label",
        ),
        (
            "title; body; mood:class",
            {"label": "mood", "first": "title", "second": "body"},
            "title body mood",
        ),
        ("text; mood:class", {"label": "mood"}, "text - mood"),
        ("story; label:class", {"text": "story"}, "story"),
    ],
)
def test_given_columns_are_used_as_they_are(header, given, chosen):
    assert_chosen(columns_of(header), given, chosen)


@pytest.mark.parametrize(
    ("header", "given"),
    [
        ("text; labels:ints", {"label": "labels"}),
        ("text; labels:ints", {"label": "labels", "first": "text"}),
        ("text; label:tags", {}),
    ],
)
def test_lists_of_labels_of_whole_texts_are_refused(header, given):
    with input_error(r"list of labels for each text in column label.*one class"):
        roles_of(columns_of(header), given)


def tagged(*tags):
    return [{"tokens": [f"word{index}" for index in range(len(tags))], "ner_tags": tags}] * 4


SIGNED = [{"text": f"words {row}", "label": (-1, 1)[row % 2]} for row in range(10)]
UNKNOWN = [{"text": f"words {row}", "label": (-1, 0, 1)[row % 3]} for row in range(12)]


@pytest.mark.parametrize(
    ("rows", "wanted", "expected"),
    [
        (tagged("B-PER", "L-PER", "O", "U-PER"), Wanted(), "entity_f1"),
        (tagged("B-PER", "M-PER", "E-PER", "S-LOC", "O"), Wanted(), "entity_f1"),
        (tagged("B-PER", "O", "_"), Wanted(), "token_accuracy"),
        (tagged("B", "M", "E", "S"), Wanted(), "token_accuracy"),
        (tagged("NA", "-", "VB"), Wanted(), "token_accuracy"),
        (
            tagged("B-PER", "-100"),
            Wanted(),
            "label -100, .* if it is a class; or remove these rows",
        ),
        (
            tagged("B-PER", "O"),
            Wanted({"second": "ner_tags"}),
            "words in column tokens, which have no second text",
        ),
        (
            [{"text": f"words {row}", "label": "yes" if row else "no"} for row in range(10)],
            Wanted(),
            "matthews_correlation",
        ),
        (SIGNED, Wanted(labels=["-1", "1"]), "accuracy"),
        (UNKNOWN, Wanted(), "in 4 of 12 rows .* or drop these rows with --drop-empty"),
        (UNKNOWN, Wanted(drop_empty=True), "accuracy"),
        (UNKNOWN, Wanted(drop_empty=True, labels=["0", "1"]), "accuracy"),
        (UNKNOWN, Wanted(labels=["0", "1"]), "no label in column label .* in 4 of 12 rows"),
    ],
)
def test_metrics_are_those_that_accept_the_labels(tmp_path, rows, wanted, expected):
    path = tmp_path / "train.jsonl"
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    if " " in expected:
        with input_error(expected):
            data_in_files(path, path, wanted, tmp_path / "{}.parquet")
        return
    data = data_in_files(path, path, wanted, tmp_path / "{}.parquet")
    assert data.metric == expected
    if wanted.drop_empty:
        note, _ = data.notes
        assert note.startswith(
            f"Dropped 4 of 12 rows of {path}, which have no text or no label (or"
        )
        assert data.unwritten["train"].table.column("label").to_pylist() == [0, 1] * 4


@pytest.fixture(scope="module")
def letters(tmp_path_factory):
    """A model's folder with a tokenizer for which each letter is a token, also without spaces."""
    folder = tmp_path_factory.mktemp("letters")
    letters_tokenizer().save_pretrained(folder)
    (folder / "config.json").write_text('{"model_type": "bert"}')
    return folder


def examples(*numbers, second=0, words=False):
    texts = [["a"] * number if words else [" ".join("a" * number)] for number in numbers]
    return [[*text, " ".join("b" * second)] if second else text for text in texts]


@pytest.mark.parametrize(
    ("lengths", "facts", "slots", "reason", "warning"),
    [
        (examples(*[40] * 198, 90, 90), {}, 48, "99% of 200 texts fit", ""),
        (examples(*[40] * 199, 90), {}, 48, "99% of 200 texts fit", ""),
        (examples(4, 4), {"slots": 0}, 0, "0% of 2 texts fit", "100% of the texts"),  # which a config refuses
        (examples(*[20] * 9, second=4), {}, 48, "100% of 9 texts fit", ""),  # each text has half of the slots
        (examples(*[20] * 9, words=True), {}, 24, "100% of 9 texts fit", ""),
        (examples(*[300] * 9, 4), {}, 256, "10% of 10 texts fit", "90% of the texts have more than 256"),
        (examples(*[30] * 9), {"n_positions": 24}, 24, "0% of 9 texts fit", "100% of the texts"),
        (examples(*[30] * 9), {"slots": 20}, 20, "0% of 9 texts fit", "more than 20 tokens and are cut"),
        ([*examples(4)] * 98 + [["é"]] * 2, {}, 16, "100% of 100 texts fit", "2% of the texts are only unknown"),
        ([*examples(4)] * 99 + [["é"]], {}, 16, "100% of 100 texts fit", ""),
        ([["é", "a"], ["é", "é"]], {}, 16, "100% of 2 texts fit", "50% of the texts are only unknown"),
        ([["é"], [""]], {}, 16, "100% of 2 texts fit", "50% of the texts are only unknown tokens ([UNK])"),
        ([["é"] * 3] * 2, {}, 16, "100% of 2 texts fit", "100% of the texts are only unknown"),
        ([], {"n_positions": 48}, 48, CUT, ""),
        ([], {"max_position_embeddings": 50, "model_type": "roberta"}, 48, CUT, ""),
        ([], {"slots": 32}, 32, CUT, ""),
    ],
)  # fmt: skip
def test_slots_fit_the_tokens_of_the_model(letters, lengths, facts, slots, reason, warning):
    """Unless `slots` are asked for, here next to the facts about the model."""
    roles = {"words" if lengths and len(lengths[0]) > 2 else "first": "text"}
    roles |= {"label": "label"} if lengths else {}
    data = DataSet({}, roles, "accuracy", 9, {}, examples=lengths)
    data = data.fitted(facts, letters, facts.get("slots"))
    assert len(data.notes) == bool(warning)
    assert warning in "".join(data.notes)
    assert data.line.endswith(f"metric = accuracy, slots = {slots} ({reason})")


@pytest.mark.parametrize(
    ("lengths", "slots", "warned"), [(examples(*[90] * 9), 64, True), ([], 64, False)]
)
def test_slots_are_at_most_the_limit_of_the_tokenizer(letters, tmp_path, lengths, slots, warned):
    """It may be smaller than the number of the model's positions."""
    shutil.copytree(letters, tmp_path, dirs_exist_ok=True)
    limited = letters_tokenizer()
    limited.model_max_length = 64
    limited.save_pretrained(tmp_path)
    roles = {"first": "text"} | ({"label": "label"} if lengths else {})
    data = DataSet({}, roles, "accuracy", 9, {}, examples=lengths)
    fitted = data.fitted({"max_position_embeddings": 512}, tmp_path)
    assert (fitted.slots, "have more than 64 tokens" in "".join(fitted.notes)) == (slots, warned)


@pytest.mark.parametrize(
    ("text", "model_type", "slots"),
    [
        ("a " * 20, "gpt2", 24),
        ("a " * 300, "gpt2", None),
        ("a " * 20, "bert", None),
        ("", "gpt2", None),
    ],
)
def test_a_decoder_reads_each_short_text_alone(letters, tmp_path, text, model_type, slots):
    """Long texts, lines of a longer text, and texts for masked language modelling are cut into blocks."""
    path = tmp_path / "names.csv"
    path.write_text("name\n" + "a a a\n" * 9 + f'"{text.strip()}"\n' * 9)
    data = data_in_files(path, path).fitted({"model_type": model_type}, letters)
    assert data.columns == {"first": "name"}
    assert data.blocks == (slots is None)
    assert data.slots == (slots or 128)


@pytest.mark.parametrize(
    ("columns", "said"),
    [
        ({"third": "text"}, "must be first="),
        ({"text": "story", "label": "mood"}, "or only text=COLUMN"),
        ({"first": "text", "label": "text"}, "name one column twice"),
    ],
)
def test_each_role_has_a_column_of_its_own(columns, said):
    with input_error(said):
        Wanted(columns)


def test_without_a_tokenizer_slots_are_estimated_also_for_texts_without_spaces():
    roles = {"first": "text", "label": "label"}
    texts = [["我" * 60]] * 9
    data = DataSet({}, roles, "accuracy", 9, {}, examples=texts, unused=["id", "user"])
    fitted = data.fitted({}, None)
    assert fitted.slots == 64
    assert "estimated without the model's tokenizer" in fitted.line
    assert fitted.line.endswith("; not used: id, user")


@pytest.mark.parametrize(
    ("files", "found"),
    [
        ("reviews_train.csv reviews_test.csv reviews_dev.csv dev.csv", "reviews_dev.csv"),
        ("training-1.csv test-1.csv", "test-1.csv"),
        ("train.csv val.csv valid.csv validation.txt", "valid.csv"),
        ("strain.csv stest.csv", None),
        ("stories.csv validation.csv", None),
    ],
)
def test_validation_texts_have_another_name_in_place_of_train(tmp_path, files, found):
    paths = [tmp_path / name for name in files.split()]
    for path in paths:
        path.touch()
    assert validation_file(paths[0]) == (found and tmp_path / found)
