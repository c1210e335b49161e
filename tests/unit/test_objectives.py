"""One contract for all objectives: labels of texts and of words, masked tokens, next tokens."""

from functools import partial

import jobs
import pytest
import torch
from families import close, stock
from sizes import CORPUS_SLOTS, TRAIN, VALIDATION

from papa.data.tokens import Tokens
from papa.method.objectives import ProbeSizes
from papa.method.states import StreamedStates
from papa.method.training import objective_of
from papa.model.load import model_of
from papa.stages import Average

PARTS = torch.arange(17).split([3, 1, 13])
KINDS = [
    ("accuracy", "text"),
    ("token_accuracy", "words"),
    ("negative_log_perplexity", "text"),
    ("log_likelihood", "text"),
]


@pytest.fixture
def made(request, corpus, model, tokenizer, place_tiny):
    """An objective of this metric, and the states of its model with and without context."""
    metric = request.param
    inputs = {"tokens": corpus / "tokens.parquet"}
    if "accuracy" in metric:
        inputs["labels"] = corpus / "labels.parquet"
    else:
        jobs.write_tokens(corpus, CORPUS_SLOTS, train=TRAIN, validation=VALIDATION)
        tokenizer.add_special_tokens({"mask_token": "[MASK]"})
    tiny = place_tiny(stock("llama") if metric == "log_likelihood" else model, tokenizer)
    ours = model_of(jobs.job(Average(), corpus / "a.h5", tiny))
    splits = Tokens.read(inputs["tokens"])
    job = jobs.probe_job(tiny, corpus / "run.parquet", metric=metric, **inputs)
    objective = objective_of(job, splits, ProbeSizes.of(ours), ours)
    objective.begin(1)
    objective.probe.eval()
    floor = ours.replacement(torch.zeros(ours.layers, ours.heads, CORPUS_SLOTS, CORPUS_SLOTS))
    probed = metric != "log_likelihood"
    return objective, *(
        StreamedStates(ours, lambda it=it: it, probed=probed) for it in (ours.replacement(), floor)
    )


@pytest.mark.parametrize(("made", "corpus"), KINDS, indirect=True)
def test_a_loss_is_a_mean_over_predictions_however_examples_are_batched(made):
    objective, original, floor = made
    losses = [partial(objective.loss_on, states) for states in (original, floor)]
    whole = [loss(torch.cat(PARTS)) for loss in losses]
    weighted = objective.weighted(PARTS)
    shares = [share for _, share in weighted]
    in_parts = [sum(share * loss(part) for part, share in weighted) for loss in losses]
    close(torch.stack(in_parts), torch.stack(whole), atol=0, rtol=1e-5)
    assert sum(shares) == pytest.approx(1)
    assert len(set(shares)) == 3
    assert abs(whole[0] - whole[1]) > 1e-4, "attention changes the loss"
    parameters = list(objective.probe.parameters())  # none if the model's own head predicts
    slopes = [
        torch.autograd.grad(it[0], parameters) if parameters else () for it in (whole, in_parts)
    ]
    for wanted, given in zip(*slopes, strict=True):
        close(given, wanted, atol=1e-6, rtol=1e-4)
