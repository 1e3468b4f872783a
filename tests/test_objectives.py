"""MiniLM and MiniLMv2: what they decide, what they refuse, what they read, and that their terms are the papers'."""

from dataclasses import replace

import pytest
import torch
from transformers import AutoConfig

from limbeck import MiniLM, MiniLMv2, UserError
from limbeck.encoders.capture import Capture
from limbeck.encoders.features import Features
from limbeck.encoders.shape import EncoderShape
from reference import ALL_RELATIONS, minilm, minilmv2

MASK = torch.tensor([[1, 1, 1, 1, 1, 1], [1, 1, 1, 1, 0, 0], [0, 0, 1, 0, 1, 1], [0] * 6, [0, 0, 0, 0, 0, 1]]).bool()


def shape(layers=12, width=768, heads=None, model_type="bert"):
    heads = heads or (12 if width % 12 == 0 else 8)
    config = AutoConfig.for_model(model_type, num_hidden_layers=layers, hidden_size=width, num_attention_heads=heads)
    return EncoderShape.of(config)


def random_features(objective, *shapes):
    """The features that a resolved objective wants of teacher and student, in float64 for `MASK`'s batch."""
    generator = torch.Generator().manual_seed(0)

    def drawn(wants, width):
        numbers = {name: torch.randn(*MASK.shape, width, generator=generator, dtype=torch.float64) for name in wants}
        return {name: {layer: numbers[name].requires_grad_()} for name, (layer,) in wants.items()}

    return [Features(each, drawn(wants, each.width)) for each, wants in zip(shapes, objective.wants(*shapes), strict=True)]


def by_name(features):
    return {name: features.only(name) for name in features.tensors}


def assert_terms(objective, teacher, student, mask, wanted):
    """The counts, sums and gradients of every term are those of a {term: (batch,) losses}."""
    sums, counts = objective.sums(teacher, student, mask), objective.counts(mask)
    assert list(sums) == list(counts) == list(objective.weights()) == list(wanted)
    read = list(by_name(student).values())
    for term, losses in wanted.items():
        assert counts[term] == mask.any(dim=1).sum()
        torch.testing.assert_close(sums[term], losses.sum(), rtol=1e-10, atol=0)
        gradients = (torch.autograd.grad(loss, read, materialize_grads=True) for loss in (sums[term], losses.sum()))
        torch.testing.assert_close(*gradients, rtol=1e-10, atol=1e-12)


@pytest.fixture
def berts(tiny_bert):
    """Features of two real encoders with equal heads and different widths, the batch's mask, and their attention maps."""
    mask = MASK[MASK.any(dim=1)]
    inputs = {"input_ids": torch.arange(10, 10 + mask.numel()).view(mask.shape), "attention_mask": mask.long()}
    read, maps = [], []
    for seed, sizes in enumerate(({}, {"num_hidden_layers": 2, "hidden_size": 16, "intermediate_size": 64})):
        model = tiny_bert(seed=seed, attn_implementation="eager", **sizes).double().requires_grad_(False)
        maps.append(model(**inputs, output_attentions=True).attentions[-1])
        read.append(Capture(model, dict.fromkeys("qkv", (model.config.num_hidden_layers,)))(**inputs))
    for feature in by_name(read[1]).values():
        feature.requires_grad_()
    return *read, mask, maps


# What "auto" decides


@pytest.mark.parametrize(
    ("teacher", "student", "heads"),
    [(768, 384, 48), (1024, 384, 64), (384, 312, 24), (768, 312, 24), (768, 768, 48), (1024, 768, 64), (768, 512, 32), (8, 8, 1)],
)  # fmt: skip
def test_auto_relation_heads_are_the_papers_or_the_largest_smaller_number_that_divides(teacher, student, heads):
    assert MiniLMv2().resolve(shape(width=teacher), shape(width=student)).relation_heads == heads


@pytest.mark.parametrize("heads", [1, 12, 24, 96, 384])
def test_relation_heads_asked_for_are_never_changed(heads):
    assert MiniLMv2(relation_heads=heads).resolve(shape(width=768), shape(width=384)).relation_heads == heads


def test_relation_heads_that_do_not_divide_both_widths_are_refused_with_those_that_do():
    with pytest.raises(UserError, match=r"48 relation heads .* choose one of 1, 2, 3, 4, 6, 8, 12, 24\."):
        MiniLMv2(relation_heads=48).resolve(shape(width=768), shape(width=312))


@pytest.mark.parametrize(
    ("model_type", "layers", "layer"),
    [
        ("bert", 6, 6),
        ("bert", 12, 12),
        ("bert", 24, 21),
        ("roberta", 24, 19),
        ("xlm-roberta", 24, 19),
        ("electra", 24, 20),
        ("bert", 36, 30),
        ("roberta", 36, 30),
    ],
)
def test_auto_teacher_layer_is_the_papers_choice(model_type, layers, layer):
    teacher = shape(layers, model_type=model_type)
    assert MiniLMv2().resolve(teacher, shape(6)).teacher_layer == layer
    assert MiniLM().resolve(teacher, shape(6)).teacher_layer == layers  # MiniLM's is always the last


@pytest.mark.parametrize("method", [MiniLM, MiniLMv2])
def test_a_teacher_layer_asked_for_is_kept_and_must_exist(method):
    for layer in (1, 7, 12):
        assert method(teacher_layer=layer).resolve(shape(12), shape(6)).teacher_layer == layer
    with pytest.raises(UserError, match="no layer 13; its layers go from 1 to 12"):
        method(teacher_layer=13).resolve(shape(12), shape(6))
    with pytest.raises(ValueError, match="greater than or equal to 1"):
        method(teacher_layer=0)


def test_minilm_refuses_unequal_heads_and_suggests_minilmv2():
    with pytest.raises(UserError, match=r"teacher has 16 and the student 12: .* use minilmv2"):
        MiniLM().resolve(shape(width=1024, heads=16), shape(width=384, heads=12))


# Relations and their weights


@pytest.mark.parametrize(
    ("relations", "weights"),
    [
        (["qq", "vk"], {"qq": 1, "vk": 1}),
        (("qq", "vk"), {"qq": 1, "vk": 1}),
        ("qq,vk", {"qq": 1, "vk": 1}),
        ("qq, vk", {"qq": 1, "vk": 1}),
        ("vv", {"vv": 1}),
        ({"qq": 1, "vv": 0.5}, {"qq": 1, "vv": 0.5}),
        (ALL_RELATIONS, dict.fromkeys(ALL_RELATIONS, 1)),
    ],
)
def test_relations_are_written_as_a_list_a_text_or_with_weights(relations, weights):
    objective = MiniLMv2(relations=relations)
    assert objective.weights() == weights
    assert objective.resolve(shape(), shape(width=384)).weights() == weights


def test_the_papers_relations_are_the_default():
    assert MiniLMv2().weights() == {"qq": 1, "kk": 1, "vv": 1}
    assert MiniLM().weights() == {"attention": 1, "value_relation": 1}


@pytest.mark.parametrize(
    "relations",
    ["qx", "q", "qqq", "QQ", "", "qq,", [], {}, {"qq": -1}, {"qq": 0}, {"qq": float("nan")}, {"qx": 1}, 3],
    ids=repr,
)
def test_relations_that_do_not_exist_or_weigh_nothing_are_refused(relations):
    with pytest.raises(ValueError, match="relations"):
        MiniLMv2(relations=relations)


# Features


@pytest.mark.parametrize(
    ("objective", "read"),
    [
        (MiniLM(), "qkv"),
        (MiniLMv2(), "qkv"),
        (MiniLMv2(relations="qk"), "qk"),
        (MiniLMv2(relations="vq,qv"), "qv"),
        (MiniLMv2(relations="vv"), "v"),
        (MiniLMv2(relations={"kk": 2.0}), "k"),
    ],
    ids=str,
)
def test_only_the_features_that_the_loss_reads_are_wanted(objective, read):
    """Of the teacher's layer and the student's last."""
    shapes = shape(12), shape(6, width=384)
    for asked, layer in ((objective, 12), (replace(objective, teacher_layer=7), 7)):
        teacher, student = asked.resolve(*shapes).wants(*shapes)
        assert teacher == dict.fromkeys(read, (layer,))
        assert student == dict.fromkeys(read, (6,))


# The terms


def test_minilmv2s_terms_are_the_references_for_all_relations():
    shapes = shape(12, width=24), shape(6, width=16)
    objective = MiniLMv2(relations=ALL_RELATIONS, relation_heads=4).resolve(*shapes)
    teacher, student = random_features(objective, *shapes)
    assert_terms(objective, teacher, student, MASK, minilmv2(by_name(teacher), by_name(student), 4, ALL_RELATIONS, MASK))


def test_minilms_terms_are_the_references():
    shapes = shape(12, width=24, heads=4), shape(6, width=16, heads=4)
    objective = MiniLM().resolve(*shapes)
    teacher, student = random_features(objective, *shapes)
    assert_terms(objective, teacher, student, MASK, minilm(by_name(teacher), by_name(student), 4, MASK))


@pytest.mark.parametrize("method", [MiniLM, MiniLMv2])
def test_without_a_mask_every_token_is_valid(method):
    shapes = shape(12, width=24, heads=4), shape(6, width=16, heads=4)
    objective = method().resolve(*shapes)
    teacher, student = random_features(objective, *shapes)
    assert objective.sums(teacher, student, None) == objective.sums(teacher, student, torch.ones_like(MASK))


@pytest.mark.parametrize("method", [MiniLM, MiniLMv2])
def test_sums_over_micro_batches_divided_by_all_counts_are_the_whole_batchs_mean(method):
    shapes = shape(12, width=24, heads=4), shape(6, width=16, heads=4)
    objective = method().resolve(*shapes)
    teacher, student = random_features(objective, *shapes)

    def part(features, rows):
        return Features(features.shape, {name: {1: feature[rows]} for name, feature in by_name(features).items()})

    micro_batches = [slice(0, 2), slice(2, 4), slice(4, 5)]
    sums = [objective.sums(part(teacher, rows), part(student, rows), MASK[rows]) for rows in micro_batches]
    counts = [objective.counts(MASK[rows]) for rows in micro_batches]
    for term, whole in objective.sums(teacher, student, MASK).items():
        mean = sum(each[term] for each in sums) / sum(each[term] for each in counts)
        torch.testing.assert_close(mean, whole / MASK.any(dim=1).sum(), rtol=1e-12, atol=0)


def test_minilm_is_minilmv2_with_qk_and_vv_at_the_attention_heads_of_bert(berts):
    teacher, student, mask, _ = berts
    first = MiniLM().resolve(teacher.shape, student.shape)
    second = MiniLMv2(relations="qk,vv", relation_heads=4).resolve(teacher.shape, student.shape)
    assert [*first.sums(teacher, student, mask).values()] == [*second.sums(teacher, student, mask).values()]
    assert_terms(first, teacher, student, mask, minilm(by_name(teacher), by_name(student), 4, mask))


def test_minilms_attention_term_compares_the_maps_that_bert_itself_computes(berts):
    teacher, student, mask, maps = berts
    t, s = (each.transpose(1, 2)[mask] for each in maps)  # (valid tokens, heads, n), zero at padded keys
    kl = (torch.special.xlogy(t, t) - torch.special.xlogy(t, s)).sum(dim=-1).mean(dim=-1)
    wanted = sum(sequence.mean() for sequence in kl.split(mask.sum(dim=1).tolist()))
    torch.testing.assert_close(MiniLM().sums(teacher, student, mask)["attention"].detach(), wanted, rtol=1e-10, atol=0)
