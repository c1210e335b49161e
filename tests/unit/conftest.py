"""A tiny random model, its tokenizer, inputs and constants; a corpus laid out for it, with learnable labels."""

import copy
import os

import fake_device  # noqa: F401  a device can be registered only before the first backward pass
import jobs
import pyarrow as pa
import pytest
import torch
from families import laid, letters_tokenizer, random_model, stock
from settled import SettledModels
from sizes import CORPUS_SLOTS, HEADS, LAYERS, SLOTS, TRAIN, VALIDATION, VOCABULARY

from papa.data.tokenize import write_groups
from papa.files import read_table, write_table
from papa.model.load import model_of
from papa.model.model import Model
from papa.model.settling import settle
from papa.stages import Average


@pytest.fixture(autouse=True)
def _fixed_seed():
    torch.manual_seed(0)
    torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))


@pytest.fixture(autouse=True, scope="session")
def settled_models():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("papa.model.model.settle", SettledModels(settle))
        yield


@pytest.fixture
def checked_anew(monkeypatch):
    """Check every model, because the test changes how models are checked."""
    monkeypatch.setattr("papa.model.model.settle", settle)


@pytest.fixture
def family():
    """BERT, where a test module does not say otherwise."""
    return "bert"


@pytest.fixture
def model(family):
    return random_model(family)


@pytest.fixture
def ours(model):
    """The same model with heads that can be replaced."""
    return Model(copy.deepcopy(model))


@pytest.fixture
def tokenizer():
    return letters_tokenizer()


@pytest.fixture
def inputs(model):
    """Dense inputs with gaps between tokens."""
    inputs = laid(model, "between")
    return {"token_type_ids": torch.zeros_like(inputs["input_ids"])} | inputs


@pytest.fixture
def matrices():
    """Constants that are no distributions: signed, with a row of zeros."""
    constants = torch.randn(LAYERS, HEADS, SLOTS, SLOTS)
    constants[:, :, 2] = 0
    return constants


@pytest.fixture
def place_tiny(tmp_path):
    """Save a model, and a tokenizer if there is one, to a folder; returns its path."""

    def place(model, tokenizer=None):
        for part in (model, tokenizer):
            if part is not None:
                part.save_pretrained(tmp_path / "tiny")
        return f"{tmp_path}/tiny"

    return place


@pytest.fixture
def tiny(model, place_tiny):
    return place_tiny(model)


@pytest.fixture
def tiny_decoder(tokenizer, place_tiny):
    """A random decoder, in which two heads share their keys; its tokenizer puts no special token in texts."""
    tokenizer.backend_tokenizer.post_processor = None
    tokenizer.eos_token = "[SEP]"
    return place_tiny(stock("llama"), tokenizer)


@pytest.fixture
def loaded(tiny):
    """The model `tiny` as a job loads it."""
    return model_of(jobs.job(Average(), "averages.h5", tiny))


@pytest.fixture
def data(corpus):
    return {"tokens": corpus / "tokens.parquet", "labels": corpus / "labels.parquet"}


@pytest.fixture
def metric(data):
    return "token_accuracy" if "words" in read_table(data["tokens"]).column_names else "accuracy"


@pytest.fixture(params=["text", "words"])
def corpus(request, tmp_path):
    """Tokens and labels; a text is of class 1 if its second token is above 30, a word if it is itself."""
    generator = torch.Generator().manual_seed(1)
    lengths = torch.randint(3, CORPUS_SLOTS, (TRAIN + VALIDATION,), generator=generator).tolist()
    ids = [
        torch.randint(4, VOCABULARY, (length,), generator=generator).tolist() for length in lengths
    ]
    words = request.param == "words"
    columns = {
        "split": ["train"] * TRAIN + ["validation"] * VALIDATION,
        "row": [*range(TRAIN), *range(VALIDATION)],
        "ids": ids,
        "slots": [[*range(length - 1), CORPUS_SLOTS - 1] for length in lengths],
        "segments": [[0] * length for length in lengths],
        "cut": [int(length == 3) for length in lengths],
        # the first and last token are special; the third continues the word of the second
        "words": [[-1, 0, *([-1] if n > 3 else []), *range(1, n - 3), -1][:n] for n in lengths],
    }
    provenance = {
        "slots": CORPUS_SLOTS,
        "style": "paper",
        "rows": {"train": TRAIN, "validation": VALIDATION},
    }
    table = pa.Table.from_pydict(columns, jobs._schema(words))
    middle = TRAIN // 2
    groups = [table[:middle], table[middle:TRAIN], table[TRAIN:]]
    write_groups(groups, table.schema, tmp_path / "tokens.parquet", provenance)
    if words:
        labels = [[int(row[1] > 30), *(int(token > 30) for token in row[3:-1])] for row in ids]
    else:
        labels = [int(row[1] > 30) for row in ids]
    table = pa.table({"split": columns["split"], "row": columns["row"], "label t": labels})
    write_table(
        table,
        tmp_path / "labels.parquet",
        {"labels": {"t": {"names": ["low", "high"], "train_counts": [1, 1]}}},
    )
    return tmp_path
