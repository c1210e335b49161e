"""Constants between nothing and the average: what they know, their memory, and what a model does with them."""

import copy

import jobs
import pytest
import torch
from sizes import CORPUS_SLOTS, HEADS, LAYERS, SLOTS
from test_decoders import stock
from tiny import CONFIG, with_keys, write_data, write_model

import papa
from papa.config.reading import config_of
from papa.config.settings import Machine
from papa.config.stages import ResampleOf
from papa.config.study import Study
from papa.config.variant import AVERAGED, LADDER, Constant, Variant, free_entries
from papa.data.local_digests import LocalSourceDigests
from papa.data.tokens import Tokens
from papa.errors import DamagedArtefact
from papa.files import read_json
from papa.jobs.measure import run_here
from papa.method.averages import ConstantMatrices
from papa.method.constants import TrainedConstants, constants_for
from papa.method.corpus_averages import resample_attention
from papa.method.resampling import resampled_attention
from papa.method.tied import TIED, classes_of
from papa.model.check import distance
from papa.model.model import Model
from papa.model.replacement import Matrices, Outputs

N = 11


@pytest.fixture(params=["bert", "llama"])
def both(request, model, inputs):
    """An encoder and a decoder with inputs: with gaps, and of texts that begin in slot 0."""
    if request.param == "bert":
        return copy.deepcopy(model), papa.Model(model), inputs
    mask = (torch.arange(N) < torch.tensor([1, N, 5, 7, 7, 3])[:, None]).long()
    texts = {"input_ids": torch.randint(4, 31, mask.shape) * mask, "attention_mask": mask}
    return stock("llama"), papa.Model(stock("llama")), texts


def heads_of(model):
    return model.layers, model.heads


def row_of(inputs, row):
    return {name: values[row : row + 1] for name, values in inputs.items()}


@pytest.mark.parametrize("kind", TIED)
def test_every_pair_has_a_class_and_no_class_is_too_many(kind):
    classes = classes_of(kind, N)
    assert classes.shape == (N, N) and classes.dtype == torch.int32
    assert int(classes.min()) >= 0 and int(classes.max()) < free_entries(kind, N)


@pytest.mark.parametrize(("coarse", "fine"), [("uniform", "sink"), ("sink", "by-distance"), ("toeplitz", "identity")])
def test_a_rung_knows_what_the_one_below_knows(coarse, fine):
    pairs = set(zip(classes_of(fine, N).flatten().tolist(), classes_of(coarse, N).flatten().tolist(), strict=True))
    nested = len(pairs) == len({of_fine for of_fine, _ in pairs})
    assert nested == (fine != "identity")


@pytest.mark.parametrize("kind", ["sink", "by-distance"])
def test_tied_averages_are_the_average_of_a_class_over_the_pairs_that_a_model_can_see(both, kind):
    _, model, inputs = both
    full, tied = (papa.average_attention(model, [inputs, inputs], name) for name in ("average", kind))
    n, classes = full.n, classes_of(kind, full.n)
    seen = torch.ones(n, n).tril().bool() if model.causal else torch.ones(n, n).bool()
    for number in range(free_entries(kind, n)):
        alike = (classes == number) & seen
        assert int(tied.count[number]) == int(full.count[alike].sum())
        torch.testing.assert_close(tied.sum[:, :, number], full.sum[:, :, alike].sum(-1), rtol=1e-9, atol=1e-12)
    assert tied.sum.shape == (*heads_of(model), free_entries(kind, n))
    pairs = tied.by_pair()
    assert torch.equal(pairs.count, torch.where(seen, tied.count[classes.long()], 0))
    total = pairs.mean.sum(-1)
    assert bool(((total - 1).abs().lt(1e-5) | (total == 0)).all()), "rows are normalised, and see nothing to come"


@pytest.mark.parametrize("slots", [5, 47])
@pytest.mark.parametrize("kind", ["sink", "by-distance"])
def test_constants_by_distance_serve_texts_with_other_numbers_of_slots(both, kind, slots):
    """Each pair of slots gets the mean of its distance, or of the largest quarter of the distances that were seen."""
    _, model, inputs = both
    tied = papa.average_attention(model, [inputs], kind)
    n, moved = tied.n, tied.at(slots)
    seen = [entry - n for entry in range(1, len(tied.count)) if tied.count[entry]]  # distances, if by distance
    expected = torch.zeros(*heads_of(model), slots, slots)
    for query in range(slots):
        for key in range(slots):
            distance, entries = query - key, [int(key > 0)]
            if kind == "by-distance" and key > 0:
                entries = [distance + n]
            if kind == "by-distance" and key > 0 and distance not in range(min(seen), max(seen) + 1):
                end = max(seen) if distance > 0 else min(seen)
                entries = [end + n - step * (1 if end > 0 else -1) for step in range(max(1, abs(end) // 4))]
            total, count = tied.sum[..., entries].sum(-1), int(tied.count[entries].sum())
            expected[:, :, query, key] = total / max(1, count)
    assert moved.n == slots
    torch.testing.assert_close(moved.constants.full, expected)
    length = torch.tensor([slots, slots - 2, 3])
    mask = (torch.arange(slots) < length[:, None]).long()
    texts = {"input_ids": torch.randint(4, 31, mask.shape) * mask, "attention_mask": mask}
    with torch.no_grad():
        states = [model.hidden_states(texts, constants) for constants in (moved, expected)]
    torch.testing.assert_close(*states, rtol=0, atol=1e-4)
    assert tied.at(n) is tied


def test_a_study_takes_constants_from_shorter_texts(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_data(tmp_path / "data")
    write_model(tmp_path / "models/tiny")
    short = CONFIG["corpora"]["sentences"] | {"slots": 5}
    others = {"short": short, "longer": short | {"slots": 15}, "bare": {k: v for k, v in short.items() if k != "slots"}}
    names = ["by-distance", *(f"by-distance-of-{name}" for name in others), "average-of-short"]
    run = {"run.tasks": ["animals"], "run.constants": names, "run.fractions": ["1", "0"]}
    run |= {f"corpora.{name}": corpus for name, corpus in others.items()}
    study = Study(config_of(with_keys(CONFIG, run)), tmp_path, LocalSourceDigests(Machine.current()))
    run_here(study, study.job("summarise"))
    paths = [study.constants("tiny", "sentences", Constant.parse(name))[0].main for name in names]
    whole, of_short, of_longer = paths[:3]
    assert [ConstantMatrices.load(path).n for path in paths] == [13, 5, 15, 13, 13]
    probes = [study.probe_of("tiny", "animals", Variant.parse(f"{name}/all")) for name in names]
    losses = [read_json(probe.outputs["runs"])["runs"][0]["curve"][-1]["loss"] for probe in probes]
    # "bare" has the texts of "sentences", and its slots come from there
    assert losses[3] == losses[0] and len({losses[0], losses[1], losses[4]}) == 3
    model, facts = papa.load_model("models/tiny"), ConstantMatrices.load(whole).about
    model.weights = facts["weights"]
    for name, path in ((names[2], of_longer), (names[1], of_short)):
        used = constants_for(Constant.parse(name), path, model, facts)
        assert used.slots == 13 and torch.equal(used.full, ConstantMatrices.load(path).at(13).constants.full)
    with pytest.raises(papa.InputError, match="was made with kind"):
        constants_for(Constant.parse("sink-of-short"), of_short, model, facts)


@pytest.mark.parametrize("kind", ["average", "mean-output"])
def test_constants_with_an_entry_for_each_slot_serve_no_other_number(ours, inputs, kind):
    averages = papa.average_attention(ours, [inputs], kind)
    with pytest.raises(papa.InputError, match=f"are {kind}, which .* texts with 47 slots, or use sink or by-distance"):
        averages.at(47)
    with pytest.raises(papa.InputError, match="need 2 or more slots, but 1 was given"):
        papa.average_attention(ours, [inputs], "sink").at(1)


def test_mean_outputs_are_the_inputs_of_the_stock_models_output_projections(both):
    plain, model, inputs = both
    averages = papa.average_attention(model, [inputs, inputs], "mean-output")
    seen: list[torch.Tensor] = []
    for layer in plain.encoder.layer if hasattr(plain, "encoder") else plain.model.layers:
        projection = layer.attention.output.dense if hasattr(layer, "attention") else layer.self_attn.o_proj
        projection.register_forward_hook(lambda _, arguments, __: seen.append(arguments[0]))
    real = inputs["attention_mask"].bool()
    with torch.no_grad():
        plain(**inputs)
    count = real.sum(0)
    assert torch.equal(averages.count, 2 * count)
    for layer, contexts in enumerate(seen):
        total = (contexts * real[:, :, None]).sum(0).view(len(count), model.heads, -1).transpose(0, 1)
        torch.testing.assert_close(averages.mean[layer], total / count.clamp(min=1)[:, None], rtol=1e-5, atol=1e-6)


def test_tied_matrices_do_what_the_same_matrices_in_full_do(both):
    _, model, inputs = both
    slots = inputs["input_ids"].shape[1]
    tied = Matrices(torch.rand(*heads_of(model), 2 * slots), classes_of("by-distance", slots))
    for options in ({}, {"heads": [(0, 1), (1, 0), (1, 2)]}, {"mixing": torch.rand(heads_of(model))}):
        with torch.no_grad():
            states = [model.hidden_states(inputs, matrices, **options) for matrices in (tied, tied.full)]
        torch.testing.assert_close(*states, rtol=0, atol=1e-6)


@pytest.mark.parametrize("replaced", ["all", "some", "mixed"])
def test_outputs_of_the_text_itself_change_nothing(both, replaced):
    _, model, inputs = both
    options = {"all": {}, "some": {"heads": [(0, 1), (1, 0)]}, "mixed": {"mixing": torch.full(heads_of(model), 0.3)}}
    for row in range(len(inputs["input_ids"])):
        text = row_of(inputs, row)
        outputs = papa.average_attention(model, [text], "mean-output")
        with torch.no_grad():
            states = model.hidden_states(text, outputs, **options[replaced]), model.hidden_states(text)
        torch.testing.assert_close(*states, rtol=1e-5, atol=1e-4)


def test_outputs_replace_those_of_heads_whatever_they_read(both):
    _, model, inputs = both
    n = inputs["input_ids"].shape[1]
    outputs = Outputs(torch.randn(*heads_of(model), n, model.hidden // model.heads))
    changed = {**inputs, "input_ids": inputs["input_ids"].clone()}
    first = int(inputs["attention_mask"][1].nonzero()[0])
    changed["input_ids"][1, first] = 5 + (inputs["input_ids"][1, first] == 5).long()
    with torch.no_grad():
        before, after = (model.hidden_states(texts, outputs)[1] for texts in (inputs, changed))
    same = (before == after).all(-1).all(0)
    assert same.tolist() == [slot != first for slot in range(n)]


def test_uniform_weighs_all_visible_tokens_alike(both):
    _, model, inputs = both
    n = inputs["input_ids"].shape[1]
    uniform = constants_for(Constant("uniform"), None, model, {"slots": n})
    with torch.no_grad():
        states = [model.hidden_states(inputs, constants) for constants in (uniform, torch.ones(*heads_of(model), n, n))]
    assert distance(states[:1], states[1:]) < 1e-6


def test_attention_to_one_text_is_its_average(both):
    _, model, inputs = both
    text = row_of(inputs, int(inputs["attention_mask"].sum(1).argmax()))
    packed = model.pack(text)

    class OneText(list):
        """The one text of a corpus."""

        n, slots, lengths = packed.n, packed.slots.int(), packed.lengths

        def batch(self, _):
            return packed

    drawn = resampled_attention(model, OneText([text]))
    torch.testing.assert_close(drawn.mean, papa.average_attention(model, [text]).mean, rtol=0, atol=1e-7)
    assert drawn.examples == 1


def test_each_row_is_attention_to_a_text_that_has_its_slot(tiny, corpus, tmp_path):
    tokens, path = corpus / "tokens.parquet", tmp_path / "r.h5"
    settings = ResampleOf(model=jobs.encoding(tiny))
    message = resample_attention(jobs.job("resample", settings, {"tokens": tokens}, constants=path))
    resampled, train = ConstantMatrices.load(path), Tokens.read(tokens, "train")["train"]
    model = papa.load_model(tmp_path / "tiny")
    texts = [papa.average_attention(model, [train.batch(torch.tensor([row]))]) for row in range(len(train))]
    for slot in range(CORPUS_SLOTS):
        rows = [text.mean[:, :, slot] for text in texts if text.count[slot, slot]]
        if rows:
            assert any(torch.allclose(resampled.mean[:, :, slot], row, atol=1e-6) for row in rows)
        else:
            assert not resampled.count[slot].any()
    assert resampled.kind == "resample" and message.startswith("attention to ") and resampled.examples > 1


@pytest.mark.parametrize("kind", [*AVERAGED[1:], "resample"])
def test_other_constants_are_saved_and_loaded(both, tmp_path, kind):
    _, model, inputs = both
    saved = papa.average_attention(model, [inputs], "average" if kind == "resample" else kind)
    saved.kind, saved.about = kind, {"weights": "w"}
    saved.save(tmp_path / "c.h5")
    loaded = ConstantMatrices.load(tmp_path / "c.h5")
    assert (loaded.kind, loaded.n, loaded.examples) == (kind, saved.n, saved.examples)
    assert torch.equal(loaded.sum, saved.sum) and torch.equal(loaded.count, saved.count)
    constants, about = ConstantMatrices.load_constants(tmp_path / "c.h5")
    assert about == {"weights": "w", "kind": kind}
    assert torch.equal(constants if isinstance(constants, torch.Tensor) else constants.values, saved.mean)
    twice = loaded.merge(loaded)
    assert (twice.kind, twice.examples) == (kind, 2 * saved.examples) and torch.equal(twice.mean, saved.mean)


def test_a_file_of_other_shape_than_its_kind_has_is_damaged(both, tmp_path):
    _, model, inputs = both
    averages = papa.average_attention(model, [inputs], "sink")
    averages.kind = "by-distance"
    averages.save(tmp_path / "c.h5")
    with pytest.raises(DamagedArtefact, match="contains no averages made by papa"):
        ConstantMatrices.load(tmp_path / "c.h5")


@pytest.mark.parametrize("kind", AVERAGED)
def test_parts_of_a_corpus_add_up_and_constants_know_their_kind(tiny, corpus, tmp_path, kind):
    paths = {part: tmp_path / f"{part}.h5" for part in ("1of1", "1of2", "2of2", "merged")}
    for part in ("1of1", "1of2", "2of2"):
        jobs.average(tiny, corpus / "tokens.parquet", paths[part], part, kind=kind)
    jobs.merge([paths["1of2"], paths["2of2"]], paths["merged"])
    whole, merged = (ConstantMatrices.load(paths[part]) for part in ("1of1", "merged"))
    torch.testing.assert_close(merged.mean, whole.mean, rtol=0, atol=1e-6)
    model = papa.load_model(tmp_path / "tiny")
    model.weights = whole.about["weights"]
    facts = {**whole.about, "slots": CORPUS_SLOTS}
    constants_for(Constant(kind), paths["1of1"], model, facts)
    with pytest.raises(papa.InputError, match="was made with kind"):
        constants_for(Constant("resample"), paths["1of1"], model, facts)


@pytest.mark.parametrize("kind", ["sink", "by-distance"])
def test_trained_constants_learn_one_value_for_a_class(model, inputs, kind):
    papa_model, heads = Model(model), [(0, 1), (1, 0)]
    start = papa.average_attention(papa_model, [inputs], kind).constants

    def slopes(constants):
        trained = TrainedConstants(constants, heads)
        states = papa_model.run(papa_model.pack(inputs), papa_model.replacement(trained(), heads))
        states[-1].square().sum().backward()
        assert set(trained.state_dict()) == {"heads", "matrices"}
        return trained.matrices.grad

    tied, full = slopes(start), slopes(start.full)
    assert tied.shape == (2, free_entries(kind, SLOTS)) and tied.abs().sum() > 0
    # the slope of a class is that of all its pairs together
    together = torch.zeros_like(tied).index_add(1, start.pairs.flatten(), full.flatten(1))
    torch.testing.assert_close(tied, together, rtol=1e-3, atol=1e-3)


def test_an_upper_rung_resumes_from_what_the_lower_one_learned(model, inputs):
    """Trained rungs that contain one another never do worse on the texts that they are trained on."""
    papa_model, heads = Model(model), [(layer, head) for layer in range(LAYERS) for head in range(HEADS)]
    packed = papa_model.pack(inputs)
    target = torch.randn(len(packed.ids), papa_model.hidden, generator=torch.Generator().manual_seed(5))

    def learn(start, steps=6):
        """The smallest loss, and the values that have it."""
        trained = TrainedConstants(start, heads)
        best = (float("inf"), None)
        descent = torch.optim.SGD(trained.parameters(), lr=1e-3)
        for _ in range(steps):
            loss = (papa_model.run(packed, papa_model.replacement(trained(), heads))[-1] - target).square().mean()
            if (value := loss.item()) < best[0]:
                constants = trained()
                best = value, (constants.values if isinstance(constants, Matrices) else constants).detach().clone()
            descent.zero_grad()
            loss.backward()
            descent.step()
        return best

    sink, values = learn(papa.average_attention(papa_model, [inputs], "sink").constants)
    full = Matrices(values, classes_of("sink", SLOTS)).full  # [layer, head, query, key]
    classes = classes_of("by-distance", SLOTS)
    start = torch.zeros(LAYERS, HEADS, free_entries("by-distance", SLOTS))
    start[:, :, classes.flatten().long()] = full.flatten(2)
    torch.testing.assert_close(Matrices(start, classes).full, full)
    by_distance, values = learn(Matrices(start, classes))
    average, _ = learn(Matrices(values, classes).full)
    assert by_distance <= sink + 1e-7 and average <= by_distance + 1e-7 and average < sink


def test_at_1024_slots_a_form_by_distance_needs_a_512th():
    slots = 1024
    assert slots**2 / free_entries("by-distance", slots) == slots / 2
    values = torch.rand(12, 12, free_entries("by-distance", slots))
    assert values.nelement() * 4 == 1_179_648
    assert Matrices(values, classes_of("by-distance", slots)).full.nelement() * 4 == 603_979_776


@pytest.mark.parametrize("kind", LADDER)
def test_rungs_have_names_and_are_parsed_from_them(kind):
    assert Constant.parse(kind) == Constant(kind)


def test_constants_that_are_no_matrices_are_refused_where_matrices_are_needed(both):
    _, model, inputs = both
    outputs = papa.average_attention(model, [inputs], "mean-output")
    with pytest.raises(papa.InputError, match="no entries for pairs of slots"):
        outputs.by_pair()
    for kind in ("average", "unheard-of"):
        with pytest.raises(papa.InputError, match="no tied entries"):
            classes_of(kind, 3)
    with pytest.raises(papa.InputError, match="'uniform' is not a kind of average"):
        papa.average_attention(model, [inputs], "uniform")
    with pytest.raises(papa.InputError, match="this model needs"):
        model.hidden_states(inputs, Matrices(torch.rand(1, 1, 2), classes_of("sink", 5)))
