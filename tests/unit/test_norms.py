"""Norms that are trained with a probe, and probes of the original that read a modified model."""

import copy
import re

import jobs
import pytest
import torch
from families import FAMILIES, random_model
from jobs import training
from sizes import CORPUS_SLOTS, HEADS, LAYERS, TRAIN, VALIDATION
from test_decoders import ENCODERS, MODELS, stock

import papa
from papa.data.tokens import Tokens
from papa.files import read_table
from papa.method.trained_norms import TrainedNorms
from papa.model.model import Model
from papa.model.norms import norm_parameters, with_parameters

NORMS, UNADAPTED = "zeros/all/adapt-norms", "zeros/all/adapt-none"


def norms_by_name(model):
    """The parameters of modules whose class or path is called a norm."""
    return {
        f"{path}.{name}"
        for path, module in model.named_modules()
        if re.search("norm", type(module).__name__, re.IGNORECASE)
        for name, _ in module.named_parameters(recurse=False)
    }


@pytest.mark.parametrize("name", [*FAMILIES, *MODELS, *ENCODERS])
def test_norms_are_found_in_every_family_by_what_they_compute(name):
    model = (random_model(name) if name in FAMILIES else stock(name)).base_model
    parameters = norm_parameters(model)
    assert set(parameters) == norms_by_name(model) and parameters
    assert all(value.ndim == 1 for value in parameters.values())
    # papa's changes to the model hide none of them
    assert set(norm_parameters(Model(copy.deepcopy(model)).model)) == set(parameters)


def test_a_model_without_gains_has_no_norms():
    with pytest.raises(papa.InputError, match="Sequential has no normalisation layer with gains"):
        norm_parameters(torch.nn.Sequential(torch.nn.Linear(3, 5), torch.nn.PReLU(5), torch.nn.Tanh()))


@pytest.mark.parametrize("fails", [False, True])
def test_the_model_has_the_same_weights_afterwards(ours, inputs, fails):
    """Also the same objects, so optimisers, caches and other users of the model notice nothing."""
    before = {name: (value, value.clone()) for name, value in ours.full.named_parameters()}
    norms, packed = TrainedNorms(ours), ours.pack(inputs)
    usual = ours.run(packed)
    with torch.no_grad():
        for value in norms.parameters():
            value.add_(0.25)
    try:
        with norms.applied_to(ours):
            other = ours.run(packed)
            if fails:
                raise KeyboardInterrupt
    except KeyboardInterrupt:
        pass
    assert not torch.allclose(other[-1], usual[-1], atol=0.1)
    after = dict(ours.full.named_parameters())
    assert list(after) == list(before)
    for name, (value, content) in before.items():
        assert after[name] is value and torch.equal(value, content) and not value.requires_grad
    assert all(torch.equal(now, then) for now, then in zip(ours.run(packed), usual, strict=True))


def test_an_unknown_parameter_changes_nothing(ours):
    before = dict(ours.model.named_parameters())
    norms = norm_parameters(ours.model)
    wrong = {name: torch.nn.Parameter(2 * value) for name, value in norms.items()} | {"no.such": torch.nn.Parameter()}
    with pytest.raises(AttributeError), with_parameters(ours.model, wrong):
        pass
    assert all(value is before[name] for name, value in ours.model.named_parameters())


@pytest.mark.parametrize("name", ["bert", "gpt2", "llama", "modernbert"])
def test_gradients_are_those_of_the_stock_model(name):
    """Of a weighted sum of all states of the real tokens, in each gain and bias."""
    theirs = random_model(name) if name in FAMILIES else stock(name).base_model
    ours = Model(copy.deepcopy(theirs))
    lengths = torch.tensor([3, 11, 1, 7])
    mask = (torch.arange(11) < lengths[:, None]).long()
    texts = {"input_ids": torch.randint(4, 31, mask.shape) * mask, "attention_mask": mask}
    packed, norms = ours.pack(texts), TrainedNorms(ours)
    weights = torch.randn(int(mask.sum()), ours.states, ours.hidden)
    with norms.applied_to(ours):
        states = torch.stack(ours.run(packed), dim=1)
    (states * weights).sum().backward()  # after the model has its weights back
    theirs.eval().requires_grad_(False)
    expected = norm_parameters(theirs)
    for value in expected.values():
        value.requires_grad_(True)
    output = theirs(**texts, output_hidden_states=True).hidden_states
    (torch.stack([state[mask.bool()] for state in output], dim=1) * weights).sum().backward()
    actual = {path.replace("/", "."): value.grad for path, value in norms.norms.items()}
    assert set(actual) == set(expected)
    for path, value in expected.items():
        torch.testing.assert_close(
            actual[path], value.grad, atol=2e-3, rtol=2e-3, msg=lambda text, path=path: f"{path}: {text}"
        )
        assert value.grad.abs().max() > 0.01, path


def test_norms_of_queries_that_no_head_computes_stay_as_they_are(place_tiny, corpus, data, metric):
    tiny = place_tiny(stock("qwen3").base_model)
    jobs.probe(tiny, corpus / "run.json", metric, variant="uniform/all/adapt-norms", how=training(epochs=1), **data)
    start = norm_parameters(papa.load_model(str(corpus / "tiny"), device="cpu").model)
    state = jobs.state_of(corpus / "run.json")
    for name, value in start.items():
        moved = not torch.equal(state[f"norms.{name.replace('.', '/')}"], value)
        assert moved == ("q_norm" not in name and "k_norm" not in name), name


def test_outcomes_are_those_of_the_written_norms_and_probe(tiny, corpus, data, metric):
    """In a model that is saved with the norms of the file, as any user would load them."""
    jobs.probe(tiny, corpus / "run.json", metric, variant=NORMS, how=training(epochs=2), **data)
    state, run = jobs.state_of(corpus / "run.json"), jobs.run_of(corpus / "run.json")
    assert (run["constant"], run["fraction"], run["adapt"], run["kept"]) == ("zeros", "0", "norms", 0)
    model = papa.load_model(str(corpus / "tiny"), device="cpu")
    norms = {name.removeprefix("norms."): state.pop(name) for name in [*state] if name.startswith("norms.")}
    start = norm_parameters(model.model)
    assert {name.replace("/", ".") for name in norms} == set(start)
    assert all(not torch.equal(value, start[name.replace("/", ".")]) for name, value in norms.items())
    for name, value in norms.items():
        start[name.replace("/", ".")].data.copy_(value)
    assert predicted(corpus / "run.json") == read_by(model, state, data, metric, rounded=False)


def test_the_probe_of_the_original_reads_the_modified_model(tiny, corpus, data, metric):
    original, run = corpus / "original.json", corpus / "run.json"
    jobs.probe(tiny, original, metric, seed=(1, 2), **data)
    jobs.store(tiny, corpus / "1of1.json", "zeros/all", tokens=data["tokens"])
    read = {"probes": original.with_suffix(".safetensors"), "index": corpus / "1of1.json"}
    jobs.probe(tiny, run, metric, variant=UNADAPTED, seed=(1, 2), **read, **data)
    record = jobs.run_of(run, 2)
    assert (record["adapt"], record["curve"], record["epochs"]) == ("none", [], jobs.TRAINING.epochs)
    model, state = papa.load_model(str(corpus / "tiny"), device="cpu"), jobs.state_of(original, 2)
    assert predicted(run, 2) == read_by(model, state, data, metric)
    assert predicted(run, 1) == read_by(model, jobs.state_of(original, 1), data, metric)
    assert jobs.state_of(run, 2) == {}
    streamed = corpus / "streamed.json"
    jobs.probe(tiny, streamed, metric, variant=UNADAPTED, seed=2, probes=read["probes"], **data)
    assert predicted(streamed, 2) == predicted(run, 2)
    with pytest.raises(papa.InputError, match=r"original\.safetensors has no probe of seed 3, which has to read"):
        jobs.probe(tiny, run, metric, variant=UNADAPTED, seed=3, **read, **data)


def predicted(run, seed=1):
    table = read_table(jobs.outcomes_of(run)).to_pandas()
    return table.loc[table["seed"] == seed, "predicted"].tolist()


def read_by(model, state, data, metric, rounded=True):
    """The labels that a probe with this state predicts from a model with zeros in all heads."""
    part = Tokens.read(data["tokens"])["validation"]
    batch, zeros = part.batch(torch.arange(len(part))), torch.zeros(LAYERS, HEADS, CORPUS_SLOTS, CORPUS_SLOTS)
    hidden = torch.stack(model.run(model.pack(batch), model.replacement(zeros)), dim=1)
    hidden = hidden.half().float() if rounded else hidden
    if metric == "accuracy":
        probe = papa.SequenceProbe(LAYERS + 1, CORPUS_SLOTS, model.hidden, 2)
        probe.load_state_dict(state)
        return probe.eval().packed(hidden, batch).argmax(-1).tolist()
    probe = papa.TokenProbe(LAYERS + 1, model.hidden, 2)
    probe.load_state_dict(state)
    words = read_table(data["tokens"]).slice(TRAIN).column("words").to_pylist()
    assert len(words) == VALIDATION
    return probe.eval().packed(hidden[[word >= 0 for row in words for word in row]]).argmax(-1).tolist()
