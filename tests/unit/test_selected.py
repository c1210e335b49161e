"""Selected training examples: their tokens, labels and hidden states are those of the rows that were selected."""

import jobs
import pytest
import torch
from sizes import CORPUS_SLOTS, LAYERS, TRAIN
from test_choice import ARC, ROWS, SLOTS, corpus_of, prepare, questions, write_rows
from test_hidden import stored

import papa
from papa.data.tokens import Tokens
from papa.method.hidden import HiddenStates
from papa.method.labelled import GoldLabels, Labelled
from papa.method.likelihoods import Choices
from papa.method.probes import ProbeSizes

UNITS = torch.tensor([17, 2, 5, 2, 11])
SIZES = ProbeSizes(LAYERS + 1, 35, CORPUS_SLOTS, 0.4, 0.0)


@pytest.fixture
def splits(data):
    """All training rows, and some of them, one twice, as a validation split."""
    train = Tokens.read(data["tokens"])["train"]
    return {"train": train, "validation": train.select(UNITS, "validation")}


def test_tokens_of_a_selection_are_those_of_its_rows(splits):
    train, selected = splits["train"], splits["validation"]
    assert (len(train), len(selected), selected.units, selected.split) == (TRAIN, 5, 5, "validation")
    for examples in (torch.tensor([0, 4]), torch.tensor([3, 1, 2])):
        batch, expected = selected.batch(examples), train.batch(UNITS[examples])
        for name in ("ids", "slots", "segments", "lengths"):
            assert torch.equal(getattr(batch, name), getattr(expected, name)), name
    again = selected.select(torch.tensor([4, 0]), "train")
    assert torch.equal(again.ids, train.batch(torch.tensor([11, 17])).ids.int())


def test_labels_and_hidden_states_of_a_selection_are_those_of_its_rows(tiny, corpus, data, splits):
    labels = GoldLabels.read(splits, data["labels"])
    objective = Labelled(splits, SIZES, labels)
    chosen = torch.tensor([4, 0, 3])
    selected, original = (
        objective._batch(split, rows) for split, rows in (("validation", chosen), ("train", UNITS[chosen]))
    )
    assert len(selected.gold) and torch.equal(selected.gold, original.gold)
    with HiddenStates.opened(stored(tiny, corpus, shards=3)) as hidden:
        states = [hidden.read(batch.examples, batch.tokens, batch.positions) for batch in (selected, original)]
    assert torch.equal(*states) and states[0].abs().sum() > 1


def test_a_selection_of_questions_has_all_their_choices_and_right_answers(tmp_path, tiny_decoder):
    write_rows(tmp_path, **{split: questions(split, seed) for seed, split in enumerate(ROWS)})
    _, labels = prepare(tmp_path, corpus_of(tmp_path, **ARC), "answerKey")
    train, units = Tokens.read(jobs.lay_out(tiny_decoder, tmp_path, SLOTS))["train"], torch.tensor([13, 4, 7])
    selected = train.select(units, "validation")
    assert selected.units == 3 and len(selected) == int(train.questions.sizes[units].sum())
    decoder = papa.load_model(tmp_path / "tiny", device="cpu")
    objective = Choices({"train": train, "validation": selected}, decoder, labels)
    assert objective.right["validation"].tolist() == objective.right["train"][units].tolist()
    assert len(set(objective.right["validation"].tolist())) > 1
    choices = torch.arange(len(selected))
    batches = objective._batch("validation", choices), objective._batch("train", train.questions.choices_of(units))
    assert torch.equal(batches[0].gold, batches[1].gold)
