"""Questions with choices, by a decoder's own head: against the stock model, floors, λ, what is refused."""

import json
from dataclasses import replace

import jobs
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
import transformers
from tokenizers import normalizers

import papa
from papa.config.measures import CHOICE
from papa.config.reading import config_of
from papa.config.settings import Corpus
from papa.config.stages import LabelsOf, ModelId, TextsOf, Training
from papa.data.generated.models import DECODERS, random_model
from papa.data.layout import place_choices
from papa.data.prepare import prepare_labels, prepare_texts
from papa.data.tokens import Tokens
from papa.files import provenance_of, read_table
from papa.jobs.resources import sizes_of
from papa.method.likelihoods import Choices, _predicted
from papa.results.losses import losses_of
from papa.results.outcomes import FLOOR, ORIGINALS, read_task_outcomes

SLOTS = 17
ROWS = {"train": 23, "validation": 19}
METRIC = "choice_accuracy"
LETTERS = "ABCDE"


def words(generator, least, most):
    length = int(torch.randint(least, most, (1,), generator=generator))
    return " ".join("abcdefgh"[letter] for letter in torch.randint(8, (length,), generator=generator).tolist())


def questions(split, seed):
    """Rows as the hub has those of ARC, with two to five choices each, and a pair as BLiMP has it."""
    generator = torch.Generator().manual_seed(seed)
    for number in range(ROWS[split]):
        choices = list(dict.fromkeys(words(generator, 1, 6) for _ in range(2 + number % 4)))
        choices = choices if len(choices) > 1 else [*choices, "h g f e d c b"]
        marks = list(LETTERS if number % 3 else "12345")[: len(choices)]
        yield {
            "question": words(generator, 2, 9),
            "choices": {"text": choices, "label": marks},
            "answerKey": marks[(number * 7 + seed) % len(choices)],
            "good": words(generator, 5, 8),
            "bad": words(generator, 2, 5),
            "field": "even" if number % 2 == 0 else "odd",
        }


def write_rows(folder, **rows):
    for split, records in rows.items():
        lines = "\n".join(map(json.dumps, records))
        (folder / f"{split}.jsonl").write_text(lines + "\n", encoding="utf-8")


@pytest.fixture
def data(tmp_path):
    write_rows(tmp_path, **{split: questions(split, seed) for seed, split in enumerate(ROWS)})
    return tmp_path


@pytest.fixture
def tiny(tiny_decoder):
    return tiny_decoder


def corpus_of(folder, **changes):
    files = {split: str(folder / f"{split}.jsonl") for split in ROWS}
    return Corpus.model_validate({"files": files, "slots": SLOTS, **changes})


ARC = {"first": "question", "choices": "choices"}
BLIMP = {"choices": ["good", "bad"]}


def prepare(folder, corpus, label=None, labels=None):
    """The paths of texts, and of labels if there are some."""
    texts, path = folder / "texts.parquet", folder / "labels.parquet"
    prepare_texts(jobs.job("texts", TextsOf(corpus=corpus, source={}), {}, texts=texts))
    if label is None:
        return texts, None
    settings = LabelsOf(corpus=corpus, source={}, label=label, labels=labels, metric=METRIC)
    prepare_labels(jobs.job("labels", settings, {"texts": texts}, labels=path))
    return texts, path


@pytest.fixture(params=["questions", "pairs"])
def corpus(request, data, tiny):
    """Tokens, labels if there are some, and the rows of the validation split."""
    form, label = (ARC, "answerKey") if request.param == "questions" else (BLIMP, None)
    _, labels = prepare(data, corpus_of(data, **form), label)
    return jobs.lay_out(tiny, data, SLOTS), labels, list(questions("validation", 1))


def measure(tokens, name, labels, **options):
    """Outcomes of the model's own head, a row for each validation question."""
    run = tokens.parent / f"{name}.json"
    options |= {"labels": labels} if labels else {}
    jobs.probe(ModelId(name="tiny"), run, METRIC, how=Training.none(), seed=0, tokens=tokens, **options)
    return read_table(jobs.outcomes_of(run)).to_pandas()


def naive(rows, logits_of, tokenizer):
    """Per question: log-likelihood of each choice, one text after another, and how many characters it has."""
    for row in rows:
        choices = row["choices"]["text"] if "question" in row else [row["good"], row["bad"]]
        actual = []
        for choice in choices:
            if "question" in row:
                before = tokenizer(row["question"])["input_ids"]
                ids = tokenizer(f"{row['question']} {choice}")["input_ids"]
            else:
                before, ids = [tokenizer.eos_token_id], [tokenizer.eos_token_id, *tokenizer(choice)["input_ids"]]
            likely = logits_of(ids).double().log_softmax(-1)
            actual.append(sum(float(likely[place - 1, ids[place]]) for place in range(len(before), len(ids))))
        yield np.array(actual), np.array(list(map(len, choices)))


def plain(rows, corpus):
    """The rows as `naive` reads them: a pair has no question."""
    return rows if corpus[1] else [{"good": row["good"], "bad": row["bad"]} for row in rows]


def scored(tokens, labels, model, replacement=None):
    """The log-likelihoods of the validation choices as `Choices` finds them, one question after another."""
    objective = Choices(Tokens.read(tokens), model, labels)
    with torch.inference_mode():
        parts = [
            objective.outcomes(batch, model.scores(model.pack(batch.packed), replacement).float())
            for batch in objective.scored()
        ]
    return objective.in_text_order(torch.cat(parts)).numpy()


@pytest.mark.parametrize("kept", ["1", "1/2", "0"])
def test_choices_are_as_likely_as_a_naive_loop_over_padded_texts_says(corpus, kept):
    """Stock logits at fraction 1; else those of a stock model inside of `replaced_attention`, padded, all of them."""
    tokens, labels, rows = corpus
    folder = tokens.parent / "tiny"
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    other = transformers.AutoModelForCausalLM.from_pretrained(folder, attn_implementation="eager").eval()
    model = papa.load_model(folder, device="cpu")
    every = [(layer, head) for layer in range(model.layers) for head in range(model.heads)]
    heads = {"1": [], "1/2": every[::2], "0": every}[kept]
    zeros = torch.zeros(model.layers, model.heads, SLOTS, SLOTS)

    def logits(ids):
        padded = torch.zeros(1, SLOTS, dtype=torch.long)
        padded[0, : len(ids)] = torch.tensor(ids)
        with torch.no_grad():
            if kept == "1":
                return other(torch.tensor(ids)[None]).logits[0]
            mask = (torch.arange(SLOTS) < len(ids)).long()[None]
            with papa.replaced_attention(other, zeros, heads):
                return other(input_ids=padded, attention_mask=mask).logits[0, : len(ids)]

    rows = plain(rows, corpus)
    replacement = model.replacement(zeros, heads) if heads else None
    actual = scored(tokens, labels, model, replacement)
    by_hand = list(naive(rows, logits, tokenizer))
    np.testing.assert_allclose(actual, np.concatenate([likely for likely, _ in by_hand]), rtol=1e-5)
    if kept != "1/2":
        measured = measure(tokens, "run", labels, **({"variant": "zeros/all"} if kept == "0" else {}))
        assert measured["predicted"].tolist() == [likely.argmax() for likely, _ in by_hand]
        assert measured["normalised"].tolist() == [(likely / characters).argmax() for likely, characters in by_hand]
        gold = [row["choices"]["label"].index(row["answerKey"]) for row in corpus[2]] if labels else 0
        assert (measured["gold"] == gold).all() and measured["example"].tolist() == list(range(ROWS["validation"]))
        share = (measured["gold"] == measured["predicted"]).mean()
        assert jobs.scores(tokens.parent / "run.json", METRIC) == [share]


def test_the_trivial_guess_takes_the_usual_choice_or_knows_nothing(corpus):
    tokens, labels, _ = corpus
    actual = measure(tokens, "run", labels)
    if labels is None:
        assert (actual["trivial"] == 1 / 2).all()
        return
    right = [row["choices"]["label"].index(row["answerKey"]) for row in questions("train", 0)]
    usual = np.bincount(right).argmax()
    assert 0 < actual["trivial"].mean() < 1
    assert (actual["trivial"] == (actual["gold"] == usual)).all()


def test_floors_and_losses_are_made_of_the_outcomes(corpus):
    tokens, labels, _ = corpus
    about = []
    for name, variant, setting in (("run", "original", ORIGINALS), ("zeros", "zeros/all", FLOOR)):
        frame = measure(tokens, name, labels, variant=variant)
        run = tokens.parent / f"{name}.json"
        names = setting._asdict()
        about.append(({"model": "tiny", "task": "t", "seed": 0, **names}, jobs.outcomes_of(run)))
    (measured,) = read_task_outcomes(about, {"t": METRIC}, {"t": labels} if labels else {}, {})
    sample = measured.sample(METRIC, measured.subsets()["all"])
    assert sample.trivial == pytest.approx(frame["trivial"].mean())
    losses = losses_of([measured])
    assert set(losses["metric"]) == {METRIC, "normalised_choice_accuracy"} and not sample.seeded
    if labels is None:  # a random model does not beat a guess, and the table says so in words
        assert losses["status"].str.contains(r"no better than chance \(0.500\)|nothing measurable").all()


def test_lambda_is_learned_on_the_choice_between_choices(corpus):
    """After one step of AdamW λ has moved by the learning rate against its gradient, worked out by differences."""
    tokens, labels, _ = corpus
    options = {"labels": labels} if labels else {}
    moved, loss = jobs.one_step_of_lambda(
        tokens, METRIC, lambda split, model: Choices(split, model, labels), ROWS["train"], **options
    )
    raw = torch.zeros(3, 4, requires_grad=True)
    loss(raw).backward()
    for head in [(0, 0), (1, 3), (2, 1)]:
        step = torch.zeros(3, 4)
        step[head] = 2e-2
        slope = (float(loss(step)) - float(loss(-step))) / 4e-2
        assert float(raw.grad[head]) == pytest.approx(slope, rel=2e-2, abs=1e-5)
        assert np.sign(moved[head] - 0.5) == -np.sign(slope)
        assert abs(moved[head] - 0.5) == pytest.approx(1e-3 / 4, rel=1e-2)


def test_the_loss_is_the_cross_entropy_over_the_choices_of_each_question(corpus):
    tokens, labels, _ = corpus
    folder = tokens.parent / "tiny"
    model, other = papa.load_model(folder, device="cpu"), transformers.AutoModelForCausalLM.from_pretrained(folder)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    objective, taken = Choices(Tokens.read(tokens), model, labels), [3, 7, 4, 20]
    batch = objective.batch(torch.tensor(taken))
    with torch.no_grad():
        loss = float(objective.loss(batch, model.scores(model.pack(batch.packed))))
        rows = [list(questions("train", 0))[number] for number in taken]
        right = [row["choices"]["label"].index(row["answerKey"]) if labels else 0 for row in rows]
        by_hand = naive(plain(rows, corpus), lambda ids: other(torch.tensor(ids)[None]).logits[0], tokenizer)
        nats = [
            float(np.log(np.exp(likely - likely[gold]).sum())) for (likely, _), gold in zip(by_hand, right, strict=True)
        ]
    assert loss == pytest.approx(np.mean(nats), rel=1e-5)


@pytest.mark.parametrize("family", DECODERS)
def test_choices_of_every_small_decoder_are_as_likely(family, tmp_path, tmp_path_factory, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.getbasetemp() / "cache"))
    folder = random_model(family)
    monkeypatch.setenv("PAPA_MACHINE", json.dumps({"models": {"tiny": {"path": str(folder)}}, "device": "cpu"}))
    rows = [
        {"first": "the old nurse near the doctors", "choices": ["sees the cat", "is here", "and the tall doctor"]},
        {"first": "who is that ?", "choices": ["the nurse near the doctor", "today"]},
    ]
    write_rows(tmp_path, train=rows, validation=rows)
    plain = transformers.AutoModelForCausalLM.from_pretrained(folder, attn_implementation="eager").eval()
    tokenizer, model = transformers.AutoTokenizer.from_pretrained(folder), papa.load_model(folder, device="cpu")
    for asked in ({"first": "first"}, {}):
        prepare(tmp_path, corpus_of(tmp_path, choices="choices", **asked))
        tokens = jobs.lay_out(ModelId(name="tiny"), tmp_path, SLOTS)
        table = read_table(tokens).to_pandas().query("split == 'validation'")
        by_hand = []
        for ids, begin in zip(table["ids"], table["begin"], strict=True):
            with torch.no_grad():
                likely = plain(torch.tensor(ids)[None].long()).logits[0].double().log_softmax(-1)
            by_hand.append(sum(float(likely[place - 1, ids[place]]) for place in range(begin, len(ids))))
        np.testing.assert_allclose(scored(tokens, None, model), by_hand, rtol=1e-5)
        choices = [choice for row in rows for choice in row["choices"]]
        assert [
            tokenizer.decode(ids[begin:]).strip() for ids, begin in zip(table["ids"], table["begin"], strict=True)
        ] == choices


def test_an_encoder_is_not_asked_for_choices(tmp_path, model, corpus):
    model.save_pretrained(tmp_path / "encoder")
    with pytest.raises(papa.InputError, match=r"sees later tokens.* choice_accuracy needs a decoder"):
        Choices(Tokens.read(corpus[0]), papa.load_model(tmp_path / "encoder", device="cpu"), corpus[1])


def test_a_tie_is_no_right_answer():
    likely = torch.tensor([[-1.0, -1.0], [-1.0, -2.0], [-3.0, -1.0]])
    assert _predicted(likely, torch.tensor([0, 0, 0])).tolist() == [1, 0, 1]
    assert _predicted(likely, torch.tensor([1, 1, 1])).tolist() == [0, 0, 1]


# -- the layout -------------------------------------------------------------------------------------------------------


def test_a_choice_follows_its_question_and_loses_nothing(tiny, data):
    tokenizer = transformers.AutoTokenizer.from_pretrained(data / "tiny")
    ((first, second),) = place_choices(tokenizer, ["a b c d e "], [[" f", "g hh"]], 6)
    assert tokenizer.convert_ids_to_tokens(first.ids) == list("abcdef")
    assert (first.begin, first.characters, first.cut, first.slots) == (5, 1, 0, list(range(6)))
    assert tokenizer.convert_ids_to_tokens(second.ids) == ["c", "d", "e", "g", "h", "##h"]
    assert (second.begin, second.characters, second.cut) == (3, 4, 2)


def test_a_choice_without_a_question_follows_the_token_that_ends_texts(tiny, data):
    tokenizer = transformers.AutoTokenizer.from_pretrained(data / "tiny")
    ((placed, _),) = place_choices(tokenizer, None, [["a b", "c"]], 6)
    assert tokenizer.convert_ids_to_tokens(placed.ids) == ["[SEP]", "a", "b"] and placed.begin == 1
    tokenizer.eos_token = None
    with pytest.raises(papa.InputError, match="must follow a BOS or EOS token"):
        list(place_choices(tokenizer, None, [["a b", "c"]], 6))


def test_a_choice_that_has_no_room_or_no_token_is_refused(tiny, data):
    tokenizer = transformers.AutoTokenizer.from_pretrained(data / "tiny")
    with pytest.raises(papa.InputError, match="has 6 tokens, too many for 6 slots"):
        list(place_choices(tokenizer, ["a"], [["b", "c d e f g h"]], 6))
    tokenizer.backend_tokenizer.normalizer = normalizers.Replace("z", "")
    with pytest.raises(papa.InputError, match="adds no token to its question"):
        list(place_choices(tokenizer, ["a"], [["b", "z"]], 6))


def test_choices_of_a_question_have_its_row(corpus):
    table = read_table(corpus[0])
    split = Tokens.read(corpus[0], "validation")["validation"]
    assert len(split.questions) == ROWS["validation"]
    of_rows = [len(row["choices"]["text"]) if corpus[1] else 2 for row in corpus[2]]
    assert split.questions.sizes.tolist() == of_rows and table["row"].to_pylist()[-1] == ROWS["validation"] - 1
    assert provenance_of(table)["rows"] == ROWS and provenance_of(table)["style"] == "contiguous"
    some = torch.tensor([4, 0, 7])
    assert split.questions.question[split.questions.choices_of(some)].unique_consecutive().tolist() == some.tolist()


def test_what_a_batch_of_questions_takes_counts_all_of_their_choices(corpus):
    choices = sum(len(split.lengths) for split in Tokens.read(corpus[0]).values())
    sizes = sizes_of(corpus[0])
    assert (sizes.examples, sizes.choices) == (choices, choices / sum(ROWS.values()))
    assert sizes.batch_tokens(3) == pytest.approx(sizes.choices * replace(sizes, choices=1).batch_tokens(3))


def test_questions_are_not_laid_out_for_an_encoder(model, tokenizer, data, place_tiny):
    prepare(data, corpus_of(data, **BLIMP))
    with pytest.raises(papa.InputError, match="Model tiny is not a decoder"):
        jobs.lay_out(place_tiny(model, tokenizer), data, SLOTS)


# -- labels -----------------------------------------------------------------------------------------------------------


def labelled(folder, rows, labels=None):
    """Indices of right choices, of rows that are training and validation rows alike."""
    write_rows(folder, train=rows, validation=rows)
    _, path = prepare(folder, corpus_of(folder, choices="choices"), "answer", labels)
    return read_table(path)["label"].to_pylist()[: len(rows)]


PLAIN = [["x y", "z"], ["v", "w", "u"], ["t", "s"]]


@pytest.mark.parametrize(
    ("answers", "labels"),
    [
        ([1, 2, 0], None),
        (["1", "2", "0"], None),
        (["B", "C", "A"], None),
        (["z", "u", "t"], None),
        (["2", "3", "1"], ["1", "2", "3"]),
        (["no", "perhaps", "yes"], ["yes", "no", "perhaps"]),
    ],
)
def test_a_label_is_a_number_a_letter_a_text_or_a_name(tmp_path, answers, labels):
    rows = [{"choices": choices, "answer": answer} for choices, answer in zip(PLAIN, answers, strict=True)]
    assert labelled(tmp_path, rows, labels=labels) == [1, 2, 0]


def test_one_way_of_reading_labels_fits_all_rows(tmp_path):
    """Of choices that are numbers, "1" may be a text here and there; it is a number if all rows can be read so."""
    rows = [{"choices": ["1", "0"], "answer": "1"}, {"choices": ["5", "7"], "answer": "0"}]
    assert labelled(tmp_path, rows) == [1, 0]


@pytest.mark.parametrize(
    ("choices", "answers", "message"),
    [
        ([["x", "y"], ["x", "y", "z"]], [1, 3], r"not a choice .*in 1 of 2 rows \(line 2\)"),
        ([["x", "y"], ["x", "y"]], [1, -1], r"not a choice .*in 1 of 2 rows"),
        ([["x", "y"], ["x", "y"]], ["x", "w"], r"not a choice \(it must be the text of a choice or"),
        ([["x", "y"], ["x"]], [0, 0], "fewer than two choices in column choices in 1 of 2 rows"),
        ([["x", "y"], ["x", " "]], [0, 1], "an empty choice in column choices in 1 of 2 rows"),
        ([["x", "y"], ["x", "y"]], [1, 1], "All training rows have the same right choice"),
        (["x", "y"], [0, 1], "must contain a list of choices in each row"),
    ],
)
def test_what_is_wrong_with_questions_is_said_in_one_sentence(tmp_path, choices, answers, message):
    rows = [{"choices": texts, "answer": answer} for texts, answer in zip(choices, answers, strict=True)]
    with pytest.raises(papa.InputError, match=message):
        labelled(tmp_path, rows)


def test_rows_that_are_in_training_too_are_counted_by_question(tmp_path):
    rows = [{"choices": choices, "answer": answer} for choices, answer in zip(PLAIN, "BCA", strict=True)]
    labelled(tmp_path, rows)
    assert provenance_of(read_table(tmp_path / "texts.parquet"))["shared"] == {"validation": 3}


# -- no labels --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("blocks", "lengths"), [(False, [7, 4]), (True, [7, 6])])
def test_a_corpus_with_only_a_training_split_is_averaged(tmp_path, model, tokenizer, place_tiny, blocks, lengths):
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


# -- the hub ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def hub(tmp_path, monkeypatch):
    """A mirror with the two datasets in the forms that the hub has them in."""
    monkeypatch.setenv("PAPA_MACHINE", json.dumps({"hub_mirror": str(tmp_path / "hub")}))
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "cache")
    text, lists = pa.string(), pa.list_(pa.string())
    choices = pa.struct({"text": lists, "label": lists})
    arc = pa.schema({"id": text, "question": text, "choices": choices, "answerKey": text})
    for number, split in enumerate(ROWS):
        rows = [{"id": ""} | {name: row[name] for name in arc.names[1:]} for row in questions(split, number)]
        path = tmp_path / f"hub/allenai/ai2_arc/ARC-Easy/{split}-00000-of-00001.parquet"
        path.parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(pa.Table.from_pylist(rows, arc), path)
    pairs = [{"sentence_good": row["good"], "sentence_bad": row["bad"]} for row in questions("train", 0)]
    path = tmp_path / "hub/nyu-mll/blimp/adjunct_island/train-00000-of-00001.parquet"
    path.parent.mkdir(parents=True)
    pq.write_table(pa.Table.from_pylist(pairs), path)
    return tmp_path


def test_arc_is_read_as_the_hub_has_it(hub):
    corpus = Corpus.model_validate({"hub": "allenai/ai2_arc", "config": "ARC-Easy", "slots": SLOTS, **ARC})
    texts, labels = prepare(hub, corpus, "answerKey")
    rows = [row for number, split in enumerate(ROWS) for row in questions(split, number)]
    assert read_table(texts)["choices"].to_pylist() == [row["choices"]["text"] for row in rows]
    assert read_table(labels)["label"].to_pylist() == [row["choices"]["label"].index(row["answerKey"]) for row in rows]


def test_blimp_is_read_as_the_hub_has_it(hub):
    """Its one split is taken for both; the stage says that every row is in training too."""
    given = {"hub": "nyu-mll/blimp", "config": "adjunct_island", "validation": "train", "slots": SLOTS}
    corpus = Corpus.model_validate(given | {"choices": ["sentence_good", "sentence_bad"]})
    texts, _ = prepare(hub, corpus)
    pairs = [[row["good"], row["bad"]] for row in questions("train", 0)]
    assert read_table(texts)["choices"].to_pylist() == pairs * 2
    assert provenance_of(read_table(texts))["shared"] == {"validation": ROWS["train"]}


# -- the config -------------------------------------------------------------------------------------------------------

HOW = {"learning_rate": 1e-2, "batch_size": 4, "epochs": 1}
CONFIG = {
    "name": "c",
    "run": {"models": ["m"], "tasks": ["t"], "fractions": ["1", "0"]},
    "models": {"m": {"random": "gpt2"}},
    "corpora": {
        "q": {"files": {"train": "a.jsonl", "validation": "b.jsonl"}, "first": "f", "choices": "c", "slots": 32}
    },
    "tasks": {"t": {"corpus": "q", "label": "l", "metric": METRIC} | HOW},
}


def changed(corpus=None, task=None, **run):
    config = json.loads(json.dumps(CONFIG))
    for block, changes in ((config["corpora"]["q"], corpus), (config["tasks"]["t"], task), (config["run"], run)):
        block |= changes or {}
        for key in [key for key, value in block.items() if value is None]:
            del block[key]
    return config


def test_a_config_of_questions_is_read():
    task = config_of(changed()).tasks["t"]
    assert task.target is CHOICE
    pairs = config_of(changed({"first": None, "choices": ["good", "bad"]}, {"label": None, "subset": "field"}))
    assert pairs.corpora["q"].columns_of_choices == ("good", "bad")


@pytest.mark.parametrize(
    ("corpus", "task", "run", "message"),
    [
        ({"choices": ["c"]}, {}, {}, "lists only the column c"),
        ({"choices": ["c", "c"]}, {}, {}, "contains 'c' twice"),
        ({"second": "s"}, {}, {}, "leave out `second`"),
        ({"first": None, "words": "w"}, {}, {}, "leave out `words`"),
        ({"blocks": True}, {}, {}, "leave out `blocks`"),
        ({"choices": None}, {}, {}, "choice_accuracy is for tasks with one right choice"),
        ({}, {"metric": "accuracy"}, {}, "use one of choice_accuracy"),
        ({}, {"metric": "log_likelihood", "label": None}, {}, "use one of choice_accuracy"),
        ({}, {"label": "c"}, {}, "because it is `choices` of corpora.q"),
        ({}, {"label": None, "labels": ["A", "B"]}, {}, "no label marks the right one"),
        ({}, {"published": "cola"}, {}, "leave out `published`"),
        (
            {},
            {},
            {"constants": ["average-trained"]},
            "runs t with average-trained, which is trained with a probe of labels",
        ),
    ],
)
def test_a_config_that_does_not_fit_is_refused_in_one_sentence(corpus, task, run, message):
    with pytest.raises(papa.InputError, match=message):
        config_of(changed(corpus, task, **run))
