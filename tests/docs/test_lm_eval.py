"""lm-evaluation-harness scores a decoder inside `papa.replaced_attention`, as docs/lm-eval.md shows."""

import copy
import json

import pytest
import torch
import transformers

import papa
from papa.errors import InputError

lm_eval = pytest.importorskip("lm_eval", reason="lm-eval is not installed; pip install -e '.[lm-eval]' brings it")
HFLM = pytest.importorskip("lm_eval.models.huggingface", reason="lm-eval is installed without its extra hf").HFLM

LAYERS, HEADS, SLOTS = 3, 4, 23
WORDS = [f"w{number}" for number in range(47)]
TASK = """task: {name}
dataset_path: json
dataset_kwargs:
  data_files:
    test: {data}
test_split: test
output_type: multiple_choice
doc_to_text: "{{{{text}}}}"
doc_to_choice: "{{{{choices}}}}"
doc_to_target: label
metric_list:
  - metric: acc
"""


@pytest.fixture(scope="module")
def tokenizer():
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from tokenizers.pre_tokenizers import Whitespace

    whole = Tokenizer(WordLevel({word: number for number, word in enumerate(["<pad>", "<s>", *WORDS])}, "<pad>"))
    whole.pre_tokenizer = Whitespace()
    return transformers.PreTrainedTokenizerFast(tokenizer_object=whole, pad_token="<pad>", eos_token="<s>")


@pytest.fixture(scope="module")
def model():
    torch.manual_seed(0)
    sizes = {"hidden_size": 24, "intermediate_size": 41, "num_hidden_layers": LAYERS, "num_attention_heads": HEADS}
    config = transformers.LlamaConfig(
        vocab_size=len(WORDS) + 2, num_key_value_heads=2, pad_token_id=0, bos_token_id=1, eos_token_id=1, **sizes
    )
    model = transformers.LlamaForCausalLM(config).eval()
    with torch.no_grad():
        for weight in model.parameters():
            weight.normal_(std=0.4) if weight.ndim > 1 else weight.add_(torch.rand_like(weight) * 0.2)
    return model


def documents(lengths):
    """Texts of these numbers of words, each with three continuations of one to three words."""
    chance = torch.Generator().manual_seed(1)

    def drawn(number):
        return " ".join(WORDS[word] for word in torch.randint(len(WORDS), (number,), generator=chance).tolist())

    return [{"text": drawn(n), "choices": [drawn(1), drawn(2), drawn(3)], "label": n % 3} for n in lengths]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Tasks of lm-eval on data of this machine: texts that fit, and one that does not."""
    folder = tmp_path_factory.mktemp("tasks")
    for name, lengths in {"papa_short": [2, 3, 5, 7, 11, 13, 17, 19] * 4, "papa_long": [29]}.items():
        data = folder / f"{name}.jsonl"
        data.write_text("\n".join(json.dumps(document) for document in documents(lengths)))
        (folder / f"{name}.yaml").write_text(TASK.format(name=name, data=data))
    return folder


def scored(model, tokenizer, folder, task="papa_short", batch_size=4, max_length=SLOTS):
    """Log-likelihoods of all continuations, `[continuation]`, and the accuracy."""
    from lm_eval.tasks import TaskManager

    wrapped = HFLM(pretrained=model, tokenizer=tokenizer, batch_size=batch_size, max_length=max_length, device="cpu")
    manager = TaskManager(include_path=str(folder), include_defaults=False)
    results = lm_eval.simple_evaluate(wrapped, tasks=[task], task_manager=manager, bootstrap_iters=0)
    samples = sorted(results["samples"][task], key=lambda sample: sample["doc_id"])
    values = [float(answer[0]) for sample in samples for answer in sample["filtered_resps"]]
    return torch.tensor(values), results["results"][task]["acc,none"]


@pytest.fixture(scope="module")
def average(model, tokenizer):
    texts = [document["text"] for document in documents([SLOTS - 1, 19, 17, 13, 11, 7, 5, 3])]
    inputs = tokenizer(texts, padding="max_length", max_length=SLOTS, return_tensors="pt")
    given = {name: inputs[name] for name in ("input_ids", "attention_mask")}
    return papa.average_attention(papa.Model(copy.deepcopy(model)), [given])


def test_heads_that_keep_their_attention_change_no_score(model, tokenizer, folder, average):
    expected, accuracy = scored(model, tokenizer, folder)
    with papa.replaced_attention(model, average, heads=[]):
        scores, again = scored(model, tokenizer, folder)
    torch.testing.assert_close(scores, expected, atol=1e-4, rtol=0)
    assert again == accuracy


def test_constants_change_scores_alike_in_batches_of_any_size(model, tokenizer, folder, average):
    expected, _ = scored(model, tokenizer, folder)
    with papa.replaced_attention(model, average):
        one, _ = scored(model, tokenizer, folder, batch_size=1)
        several, _ = scored(model, tokenizer, folder, batch_size=7)
    torch.testing.assert_close(several, one, atol=1e-4, rtol=0)
    assert (one - expected).abs().max() > 1e-2
    # the same sums, by papa's forward pass, without the harness
    ours = papa.Model(copy.deepcopy(model))
    sums = []
    for document in documents([2, 3, 5, 7, 11, 13, 17, 19] * 4):
        begins = len(document["text"].split())
        for choice in document["choices"]:
            ids = torch.tensor([tokenizer(f"{document['text']} {choice}")["input_ids"]])
            mask = torch.zeros(1, SLOTS, dtype=torch.long)
            mask[:, : ids.shape[1]] = 1
            inputs = {"input_ids": torch.nn.functional.pad(ids, (0, SLOTS - ids.shape[1])), "attention_mask": mask}
            chances = ours.logits(inputs, average).log_softmax(-1)[0]
            sums.append(sum(float(chances[at - 1, ids[0, at]]) for at in range(begins, ids.shape[1])))
    torch.testing.assert_close(one, torch.tensor(sums), atol=1e-3, rtol=0)


def test_an_input_that_is_too_long_is_cut_or_refused_with_a_sentence(model, tokenizer, folder, average):
    with papa.replaced_attention(model, average):
        assert scored(model, tokenizer, folder, "papa_long")[0].isfinite().all()
        with pytest.raises(InputError, match=rf"The constants have {SLOTS} slots, but the inputs use slot \d+"):
            scored(model, tokenizer, folder, "papa_long", max_length=64)
