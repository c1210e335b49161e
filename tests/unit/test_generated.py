"""Generated corpora: reproducible, balanced, without shared fillers; a bag of words is at chance where it has to be."""

import hashlib

import pytest

from papa.data.generated import GRAMMAR_VERSION, KNOWN_DECODER_GRAMMARS, KNOWN_ENCODER_GRAMMARS, NAMES, generate, models
from papa.errors import InputError

ROWS = {"train": 601, "validation": 307}
TEXTS = [*(name for name in NAMES if name != "reading"), *KNOWN_ENCODER_GRAMMARS]


def words_of(frame):
    if "words" in frame:
        return [set(words) for words in frame.words]
    texts = frame["first"] + " " + frame.get("second", "")
    return [set(text.split()) for text in texts]


@pytest.mark.parametrize("name", [*NAMES, *KNOWN_ENCODER_GRAMMARS, *KNOWN_DECODER_GRAMMARS])
def test_the_same_seed_gives_the_same_rows_and_no_text_twice(name):
    frame = generate(name, "train", ROWS["train"], 5)
    assert frame.equals(generate(name, "train", ROWS["train"], 5))
    assert not frame.equals(generate(name, "train", ROWS["train"], 6))
    columns = ["words"] if name == "reading" else [column for column in ("first", "second") if column in frame]
    assert not frame[columns].map(str).duplicated().any()
    assert len(frame) == ROWS["train"]


def test_other_texts_have_another_version():
    """If this fails, raise `GRAMMAR_VERSION`, so everything that was made of the old texts is rebuilt."""
    digests = {1: ("6b5b0a74a359c896", "3f2f0a8c12ceb12d", "0fb766458212a779")}
    corpora = (NAMES, KNOWN_DECODER_GRAMMARS, KNOWN_ENCODER_GRAMMARS)
    texts = [[generate(name, split, 11, 3).to_json() for name in names for split in ROWS] for names in corpora]
    actual = tuple(hashlib.sha256("".join(rows).encode()).hexdigest()[:16] for rows in texts)
    assert actual == digests[GRAMMAR_VERSION]


@pytest.mark.parametrize("name", [*NAMES, *KNOWN_ENCODER_GRAMMARS])
def test_splits_share_only_words_of_the_grammar(name):
    """Words that both splits use occur in many rows of each; a filler would be in only one."""
    train, validation = (words_of(generate(name, split, 2000 if split == "train" else 1000, 0)) for split in ROWS)
    shared = set().union(*train) & set().union(*validation)
    assert len(shared) < 80, sorted(shared)
    rare = [word for word in shared if sum(word in row for row in train) < 10]
    assert not rare


@pytest.mark.parametrize("name", TEXTS)
def test_labels_and_kinds_are_balanced(name):
    counts = generate(name, "train", 600, 0).groupby(["label", "kind"]).size()
    assert counts.max() - counts.min() <= 1


@pytest.mark.parametrize("name", TEXTS)
def test_a_bag_of_words_is_at_chance_where_content_must_be_looked_up(name):
    from sklearn.feature_extraction.text import CountVectorizer
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline

    train, validation = (generate(name, split, 2400 if split == "train" else 1200, 0) for split in ROWS)
    train, validation = train[train.kind == "lookup"], validation[validation.kind == "lookup"]

    def bag(frame):
        texts = frame["first"]
        return (
            texts + " | " + frame["second"].map(lambda text: " ".join(f"second_{w}" for w in text.split()))
            if ("second" in frame)
            else texts
        )

    model = make_pipeline(CountVectorizer(token_pattern=r"\S+"), LogisticRegression(max_iter=500))
    model.fit(bag(train), train.label)
    chance = 1 / train.label.nunique()
    assert model.score(bag(validation), validation.label) < chance + 0.1


def test_words_have_one_label_and_one_kind_each():
    frame = generate("reading", "train", 101, 0)
    for column in ("entity", "word_class", "kind"):
        assert (frame[column].map(len) == frame.words.map(len)).all()
    rows = frame.explode(["words", "word_class", "kind"])
    rows = rows[rows.kind != ""]
    assert set(rows.kind) == {"position", "lookup"}
    assert (rows.groupby("words").word_class.nunique() > 1).mean() > 0.5  # a word alone does not decide


def test_bad_requests_say_what_there_is():
    with pytest.raises(InputError, match="there are agreement, negation"):
        generate("poems", "train", 10, 0)
    with pytest.raises(InputError, match="they have train, validation"):
        generate("roles", "test", 10, 0)
    with pytest.raises(InputError, match="more would repeat examples"):
        generate("negation", "validation", 100_000, 0)


@pytest.mark.parametrize(
    "change", [("RECIPE", 7919), ("VOCABULARY", 601), ("SIZES", {}), ("SLOTS", 127), ("GRAMMAR_VERSION", 7919)]
)
def test_random_models_of_another_recipe_are_others(monkeypatch, tmp_path, change):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))

    def make(_, folder):
        folder.mkdir()
        (folder / "model.safetensors").touch()

    monkeypatch.setattr(models, "_make", make)
    before = models.random_model("bert")
    assert models.random_model("bert") == before != models.random_model("electra")
    monkeypatch.setattr(models, *change)
    assert models.random_model("bert") != before
