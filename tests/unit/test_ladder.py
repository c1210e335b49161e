"""Constants between nothing and the average: what they know, what they take, and what a model does with them."""

import copy

import jobs
import pytest
import torch
from sizes import CORPUS_SLOTS, HEADS, LAYERS, SLOTS
from test_decoders import stock

import papa
from papa.config.stages import ResampleOf
from papa.config.variant import AVERAGED, LADDER, Constant, entries_of
from papa.data.tokens import Tokens
from papa.errors import DamagedArtefact
from papa.method.averages import ConstantMatrices
from papa.method.constants import TrainedConstants, constants_for
from papa.method.corpus_averages import resample_attention
from papa.method.resampling import resampled_attention
from papa.method.tied import TIED, classes_of
from papa.model.model import Model
from papa.model.replacement import Matrices, Outputs

N = 11


@pytest.fixture(params=["bert", "llama"])
def both(request, model, inputs):
    """An encoder and a decoder with inputs: with gaps, and of texts that begin in slot 0."""
    if request.param == "bert":
        return copy.deepcopy(model), papa.Model(model), inputs
    decoder = stock("llama")
    lengths = torch.tensor([1, N, 5, 7, 7, 3])
    mask = (torch.arange(N) < lengths[:, None]).long()
    return (
        decoder,
        papa.Model(stock("llama")),
        {"input_ids": torch.randint(4, 31, mask.shape) * mask, "attention_mask": mask},
    )


def heads_of(model):
    return model.layers, model.heads


@pytest.mark.parametrize("kind", TIED)
def test_every_pair_has_a_class_and_no_class_is_too_many(kind):
    classes = classes_of(kind, N)
    assert classes.shape == (N, N) and classes.dtype == torch.int32
    assert int(classes.min()) >= 0 and int(classes.max()) < entries_of(kind, N)


@pytest.mark.parametrize(("coarse", "fine"), [("uniform", "sink"), ("sink", "by-distance"), ("toeplitz", "identity")])
def test_a_rung_knows_what_the_one_below_knows(coarse, fine):
    pairs = set(zip(classes_of(fine, N).flatten().tolist(), classes_of(coarse, N).flatten().tolist(), strict=True))
    nested = len(pairs) == len({own for own, _ in pairs})
    assert nested == (fine != "identity")


@pytest.mark.parametrize("kind", ["sink", "by-distance"])
def test_tied_averages_are_the_average_of_a_class_over_the_pairs_that_a_model_can_see(both, kind):
    _, model, inputs = both
    full, tied = (papa.average_attention(model, [inputs, inputs], own) for own in ("average", kind))
    n, classes = full.n, classes_of(kind, full.n)
    seen = torch.ones(n, n).tril().bool() if model.causal else torch.ones(n, n).bool()
    for number in range(entries_of(kind, n)):
        own = (classes == number) & seen
        assert int(tied.count[number]) == int(full.count[own].sum())
        torch.testing.assert_close(tied.sum[:, :, number], full.sum[:, :, own].sum(-1), rtol=1e-9, atol=1e-12)
    assert tied.sum.shape == (*heads_of(model), entries_of(kind, n))
    pairs = tied.by_pair()
    assert torch.equal(pairs.count, torch.where(seen, tied.count[classes.long()], 0))
    total = pairs.mean.sum(-1)
    assert bool(((total - 1).abs().lt(1e-5) | (total == 0)).all()), "rows are normalised, and see nothing to come"


def test_mean_outputs_are_what_the_stock_model_hands_to_its_output_projections(both):
    plain, model, inputs = both
    found = papa.average_attention(model, [inputs, inputs], "mean-output")
    seen: list[torch.Tensor] = []
    layers = plain.encoder.layer if hasattr(plain, "encoder") else plain.model.layers
    for layer in layers:
        projection = layer.attention.output.dense if hasattr(layer, "attention") else layer.self_attn.o_proj
        projection.register_forward_hook(lambda _, given, __: seen.append(given[0]))
    real = inputs["attention_mask"].bool()
    with torch.no_grad():
        plain(**inputs)
    count = real.sum(0)
    assert torch.equal(found.count, 2 * count)
    for layer, contexts in enumerate(seen):
        total = (contexts * real[:, :, None]).sum(0).view(len(count), model.heads, -1).transpose(0, 1)
        expected = total / count.clamp(min=1)[:, None]
        torch.testing.assert_close(found.mean[layer], expected, rtol=1e-5, atol=1e-6)


def test_tied_matrices_do_what_the_same_matrices_in_full_do(both):
    _, model, inputs = both
    tied = Matrices(
        torch.rand(*heads_of(model), 2 * inputs["input_ids"].shape[1]),
        classes_of("by-distance", inputs["input_ids"].shape[1]),
    )
    heads, mixing = [(0, 1), (1, 0), (1, 2)], torch.rand(heads_of(model))
    for how in ({}, {"heads": heads}, {"mixing": mixing}):
        with torch.no_grad():
            found, expected = (model.hidden_states(inputs, own, **how) for own in (tied, tied.full))
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-6)


@pytest.mark.parametrize("how", ["all", "some", "mixed"])
def test_outputs_of_the_text_itself_change_nothing(both, how):
    _, model, inputs = both
    for row in range(len(inputs["input_ids"])):
        own = {name: values[row : row + 1] for name, values in inputs.items()}
        outputs = papa.average_attention(model, [own], "mean-output")
        given = {"all": {}, "some": {"heads": [(0, 1), (1, 0)]}, "mixed": {"mixing": torch.full(heads_of(model), 0.3)}}
        with torch.no_grad():
            found, expected = model.hidden_states(own, outputs, **given[how]), model.hidden_states(own)
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-4)


def test_outputs_replace_what_heads_give_whatever_they_read(both):
    _, model, inputs = both
    n = inputs["input_ids"].shape[1]
    outputs = Outputs(torch.randn(*heads_of(model), n, model.hidden // model.heads))
    changed = {**inputs, "input_ids": inputs["input_ids"].clone()}
    first = int(inputs["attention_mask"][1].nonzero()[0])
    changed["input_ids"][1, first] = 5 + (inputs["input_ids"][1, first] == 5).long()
    with torch.no_grad():
        before, after = (model.hidden_states(own, outputs)[1] for own in (inputs, changed))
    others = [slot for slot in range(n) if slot != first]
    assert torch.equal(before[:, others], after[:, others]) and not torch.equal(before[:, first], after[:, first])


def test_uniform_weighs_all_tokens_that_a_query_may_see_alike(both):
    _, model, inputs = both
    n = inputs["input_ids"].shape[1]
    with torch.no_grad():
        found = model.hidden_states(inputs, constants_for(Constant("uniform"), None, model, {"slots": n}))
        expected = model.hidden_states(inputs, torch.ones(*heads_of(model), n, n))
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-6)


def test_attention_to_one_text_is_its_average(both):
    _, model, inputs = both
    longest = int(inputs["attention_mask"].sum(1).argmax())
    own = {name: values[longest : longest + 1] for name, values in inputs.items()}
    batch = model.pack(own)

    class Train:
        """The one text of a corpus."""

        def __init__(self):
            self.n, self.slots, self.lengths = batch.n, batch.slots.int(), batch.lengths

        def __len__(self):
            return 1

        def batch(self, _):
            return batch

    drawn = resampled_attention(model, Train())
    torch.testing.assert_close(drawn.mean, papa.average_attention(model, [own]).mean, rtol=0, atol=1e-7)
    assert drawn.examples == 1


def test_each_row_is_attention_to_a_text_that_has_its_slot(tiny, corpus, tmp_path):
    told = ResampleOf(model=jobs.encoding(tiny))
    said = resample_attention(
        jobs.job("resample", told, {"tokens": corpus / "tokens.parquet"}, constants=tmp_path / "r.h5")
    )
    found, train = ConstantMatrices.load(tmp_path / "r.h5"), Tokens.read(corpus / "tokens.parquet", "train")["train"]
    model = papa.load_model(tmp_path / "tiny")
    own = [papa.average_attention(model, [train.batch(torch.tensor([row]))]) for row in range(len(train))]
    for slot in range(CORPUS_SLOTS):
        having = [average.mean[:, :, slot] for average in own if average.count[slot, slot]]
        if not having:
            assert not found.count[slot].any()
            continue
        assert any(torch.allclose(found.mean[:, :, slot], rows, atol=1e-6) for rows in having)
    assert found.kind == "resample" and said.startswith("attention to ")
    assert found.examples > 1


@pytest.mark.parametrize("kind", [*AVERAGED[1:], "resample"])
def test_other_constants_are_saved_and_loaded(both, tmp_path, kind):
    _, model, inputs = both
    made = papa.average_attention(model, [inputs], "average" if kind == "resample" else kind)
    made.kind, made.about = kind, {"weights": "w"}
    made.save(tmp_path / "c.h5")
    found = ConstantMatrices.load(tmp_path / "c.h5")
    assert (found.kind, found.n, found.examples) == (kind, made.n, made.examples)
    assert torch.equal(found.sum, made.sum) and torch.equal(found.count, made.count)
    constants, about = ConstantMatrices.load_constants(tmp_path / "c.h5")
    assert about == {"weights": "w", "kind": kind}
    values = constants if isinstance(constants, torch.Tensor) else constants.values
    assert torch.equal(values, made.mean)
    twice = found.merge(found)
    assert (twice.kind, twice.examples) == (kind, 2 * made.examples) and torch.equal(twice.mean, made.mean)


def test_a_file_of_other_shape_than_its_kind_has_is_damaged(both, tmp_path):
    _, model, inputs = both
    made = papa.average_attention(model, [inputs], "sink")
    made.kind = "by-distance"
    made.save(tmp_path / "c.h5")
    with pytest.raises(DamagedArtefact, match="contains no averages of papa"):
        ConstantMatrices.load(tmp_path / "c.h5")


@pytest.mark.parametrize("kind", AVERAGED)
def test_parts_of_a_corpus_add_up_and_constants_know_their_kind(tiny, corpus, tmp_path, kind):
    tokens, made = corpus / "tokens.parquet", {}
    for part in ("1of1", "1of2", "2of2"):
        made[part] = tmp_path / f"{part}.h5"
        jobs.average(tiny, tokens, made[part], part, kind=kind)
    jobs.merge([made["1of2"], made["2of2"]], tmp_path / "merged.h5")
    whole, merged = (ConstantMatrices.load(path) for path in (made["1of1"], tmp_path / "merged.h5"))
    torch.testing.assert_close(merged.mean, whole.mean, rtol=0, atol=1e-6)
    model = papa.load_model(tmp_path / "tiny")
    model.weights = whole.about["weights"]
    facts = {**whole.about, "slots": CORPUS_SLOTS}
    constants_for(Constant(kind), made["1of1"], model, facts)
    with pytest.raises(papa.InputError, match="was made with kind"):
        constants_for(Constant("resample"), made["1of1"], model, facts)


@pytest.mark.parametrize("kind", ["sink", "by-distance"])
def test_trained_constants_learn_one_value_for_a_class(model, inputs, kind):
    papa_model = Model(model)
    start = papa.average_attention(papa_model, [inputs], kind).constants
    heads = [(0, 1), (1, 0)]
    trained = TrainedConstants(start, heads)
    states = papa_model.run(papa_model.pack(inputs), papa_model.replacement(trained(), heads))
    states[-1].square().sum().backward()
    assert trained.matrices.grad.shape == (2, entries_of(kind, SLOTS))
    assert trained.matrices.grad.abs().sum() > 0
    # the slope of a class is that of all its pairs together
    full = TrainedConstants(start.full, heads)
    states = papa_model.run(papa_model.pack(inputs), papa_model.replacement(full(), heads))
    states[-1].square().sum().backward()
    own = torch.zeros(2, entries_of(kind, SLOTS)).index_add(
        1, start.classes.flatten().long(), full.matrices.grad.flatten(1)
    )
    torch.testing.assert_close(trained.matrices.grad, own, rtol=1e-3, atol=1e-3)
    assert set(trained.state_dict()) == {"heads", "matrices"}


def test_what_the_lower_rung_learned_the_upper_one_can_do_and_goes_on_from(model, inputs):
    """Trained rungs that contain one another never do worse on the texts that they are trained on."""
    papa_model, heads = Model(model), [(layer, head) for layer in range(LAYERS) for head in range(HEADS)]
    packed = papa_model.pack(inputs)
    target = torch.randn(len(packed.ids), papa_model.hidden, generator=torch.Generator().manual_seed(5))

    def learn(start, steps=6):
        trained = TrainedConstants(start, heads)
        best = [float("inf"), None]
        descent = torch.optim.SGD(trained.parameters(), lr=1e-3)
        for _ in range(steps):
            loss = (papa_model.run(packed, papa_model.replacement(trained(), heads))[-1] - target).square().mean()
            if (value := loss.item()) < best[0]:
                own = trained()
                best = [value, (own.values if isinstance(own, Matrices) else own).detach()]
            descent.zero_grad()
            loss.backward()
            descent.step()
        return best

    below, start = [], papa.average_attention(papa_model, [inputs], "sink").constants
    for kind, finer in (("sink", "by-distance"), ("by-distance", "average")):
        loss, values = learn(start)
        below.append(loss)
        full = Matrices(values, classes_of(kind, SLOTS)).full  # [layer, head, query, key]
        if finer == "average":
            start = full
            continue
        classes = classes_of(finer, SLOTS)
        values = torch.zeros(LAYERS, HEADS, entries_of(finer, SLOTS))
        values[:, :, classes.flatten().long()] = full.flatten(2)
        start = Matrices(values, classes)
        torch.testing.assert_close(start.full, full)
    below.append(learn(start)[0])
    assert below[1] <= below[0] + 1e-7 and below[2] <= below[1] + 1e-7
    assert below[2] < below[0]


def test_at_1024_slots_a_form_by_distance_takes_a_512th():
    slots = 1024
    assert slots**2 / entries_of("by-distance", slots) == slots / 2
    values = torch.rand(12, 12, entries_of("by-distance", slots))
    assert values.nelement() * 4 == 1_179_648
    assert Matrices(values, classes_of("by-distance", slots)).full.nelement() * 4 == 603_979_776


@pytest.mark.parametrize("kind", LADDER)
def test_rungs_have_names_and_are_parsed_from_them(kind):
    assert Constant.parse(kind) == Constant(kind)


def test_constants_that_are_no_matrices_are_refused_where_matrices_are_needed(both):
    _, model, inputs = both
    outputs = papa.average_attention(model, [inputs], "mean-output")
    with pytest.raises(papa.InputError, match="no matrix"):
        outputs.by_pair()
    with pytest.raises(papa.InputError, match="no tied entries"):
        classes_of("average", 3)
    with pytest.raises(papa.InputError, match="There is no average 'uniform'"):
        papa.average_attention(model, [inputs], "uniform")
    with pytest.raises(papa.InputError, match="this model needs"):
        model.hidden_states(inputs, Matrices(torch.rand(1, 1, 2), classes_of("sink", 5)))
