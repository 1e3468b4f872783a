"""relation_kl equals the float64 reference and keeps the properties a relation loss must have, on every device present."""

import weakref

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import FlopCounterMode

from limbeck import UserError
from limbeck.kernels import relation_kl
from reference import ALL_RELATIONS, relation_losses

BATCH, N, HEADS = 4, 7, 4
WIDTHS = 24, 16
TOLERANCE = {torch.float64: 1e-10, torch.float32: 1e-5}

LENGTHS = torch.tensor([[7], [4], [1], [0]])
MASKS = {
    "no mask": None,
    "nothing padded": torch.ones(BATCH, N, dtype=torch.bool),
    "right": torch.arange(N) < LENGTHS,
    "left": torch.arange(N) >= N - LENGTHS,
    "scattered": torch.tensor([[1, 0, 1, 1, 0, 1, 0], [0, 1, 1, 0, 1, 0, 1], [0] * 7, [0, 0, 0, 1, 0, 0, 0]]).bool(),
}


@pytest.fixture
def device(device):
    """Each kind of device, made the default."""
    with device:
        yield device


@pytest.fixture(params=MASKS.values(), ids=MASKS.keys())
def mask(request, device):
    return None if request.param is None else request.param.to(device)


def features(width, names="qkv", *, batch=BATCH, n=N, seed=0, dtype=torch.float64):
    """Random features that require grad."""
    generator = torch.Generator().manual_seed(seed)
    drawn = {name: torch.randn(batch, n, width, generator=generator, dtype=dtype, device="cpu") for name in names}
    return {name: x.to(torch.get_default_device()).requires_grad_() for name, x in drawn.items()}


def teacher_and_student(relation="qk", *, widths=WIDTHS, **how):
    """The pair of features that each of the two compares."""
    drawn = (features(width, relation, seed=seed, **how) for seed, width in enumerate(widths))
    return tuple(tuple(each[i] for i in relation) for each in drawn)


def loss_and_gradients(teacher, student, *learnt, heads=HEADS, **how):
    """The loss, then its gradients by the student's features and whatever else is learnt."""
    loss = relation_kl(teacher=teacher, student=student, relation_heads=heads, **how)
    return loss.detach(), *torch.autograd.grad(loss, [*dict.fromkeys(student), *learnt])


def expected(teacher, student, *learnt, heads=HEADS, mask=None, **how):
    losses = relation_losses(teacher, student, heads, mask, **how)
    loss = losses.sum() / (len(losses) if mask is None else mask.any(dim=1).sum())
    return loss.detach(), *torch.autograd.grad(loss, [*dict.fromkeys(student), *learnt])


def assert_same(actual, wanted, tolerance):
    """Every tensor is within a relative distance, in norm, of the one that is wanted."""
    assert len(actual) == len(wanted)
    for a, w in zip(actual, wanted, strict=True):
        assert torch.isfinite(a).all()
        assert (a.double() - w.double()).norm() <= tolerance * w.double().norm()


# Equality with the reference


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("relation", ALL_RELATIONS)
def test_every_relation_equals_the_reference_under_every_padding(relation, mask, dtype):
    pairs = teacher_and_student(relation, dtype=dtype)
    loss, *gradients = loss_and_gradients(*pairs, mask=mask)
    assert loss.dtype == dtype
    assert_same([loss, *gradients], expected(*pairs, mask=mask), TOLERANCE[dtype])


@pytest.mark.parametrize("case", ["plain", "mask", "bias", "pair_mask", "all"])
@pytest.mark.parametrize("relation", ["qq", "qk"])
def test_gradients_pass_gradcheck(relation, case, device):
    teacher = features(6, relation, batch=2, n=3, seed=1)
    student = features(4, relation, batch=2, n=3, seed=2)
    bias_t, bias_s = (x.unsqueeze(1) for x in features(3, "ts", batch=2, n=3, seed=3).values())
    how = {}
    if case in ("mask", "all"):
        how["mask"] = torch.tensor([[1, 1, 1], [1, 0, 1]]).bool()
    if case in ("pair_mask", "all"):
        how["pair_mask"] = torch.tensor([[1, 1, 1], [0, 0, 0], [1, 0, 1]]).bool().expand(1, 1, 3, 3)

    def loss(bias_s, *tensors):
        chosen = dict(zip(student, tensors, strict=True))
        return relation_kl(
            teacher=tuple(teacher[i] for i in relation),
            student=tuple(chosen[i] for i in relation),
            relation_heads=2,
            bias=(bias_t, bias_s) if case in ("bias", "all") else (None, None),
            reduction="none",
            **how,
        )

    assert torch.autograd.gradcheck(loss, (bias_s, *student.values()))


@pytest.mark.parametrize("relation", ["vv", "qk"])
def test_bfloat16_features_stay_close_to_the_reference_on_the_same_numbers(relation, device):
    pairs = teacher_and_student(relation, widths=(96, 64), batch=3, n=48, dtype=torch.bfloat16)
    mask = torch.arange(48) < torch.tensor([[48], [31], [9]])
    loss, *gradients = loss_and_gradients(*pairs, heads=8, mask=mask)
    wanted, *wanted_gradients = expected(*pairs, heads=8, mask=mask)
    assert loss.dtype == torch.float32
    assert_same([loss], [wanted], 2e-3)
    assert_same(gradients, wanted_gradients, 1e-2)


def test_float16_features_neither_overflow_nor_lose_their_gradient(device):
    """Scores beyond 65504 and a loss scaled by 2^17 are ordinary numbers in float32."""
    teacher, student = ((300 * x.detach(),) * 2 for x, _ in teacher_and_student("vv", dtype=torch.float16))
    student[0].requires_grad_()
    loss = relation_kl(teacher=teacher, student=student, relation_heads=HEADS)
    assert_same([loss.detach()], expected(teacher, student)[:1], 1e-5)
    (2.0**17 / loss.detach() * loss).backward()
    assert student[0].grad.isfinite().all()


def test_autocast_changes_nothing(device):
    pairs = teacher_and_student("vv", dtype=torch.float32)
    plain = loss_and_gradients(*pairs)
    with torch.autocast(device.type, torch.bfloat16):
        loss, *gradients = loss_and_gradients(*pairs)
    assert loss.dtype == torch.float32
    assert_same([loss, *gradients], plain, 1e-6)


def test_scores_far_below_any_threshold_are_scores(device):
    """Only a mask masks: keys at -1e4 compete with one another like any others."""
    teacher, student = teacher_and_student("vv")
    low = torch.full((N,), -1e4, dtype=torch.float64)
    low[0] += 1
    how = {"mask": MASKS["right"].to(device), "bias": (low, low)}
    assert_same(loss_and_gradients(teacher, student, **how), expected(teacher, student, **how), 1e-10)


# Bias, scale and pair mask


@pytest.mark.parametrize("shape", [(N, N), (HEADS, N, N), (BATCH, 1, N, N), (BATCH, HEADS, N, N), (BATCH, 1, 1, N)], ids=str)
def test_bias_is_added_to_the_scores_and_the_students_is_learnt(shape, mask):
    pairs = teacher_and_student("qk")
    numbers = torch.arange(torch.Size(shape).numel(), dtype=torch.float64).view(shape)
    bias = ((2 * numbers).sin(), (5 * numbers).sin().requires_grad_())
    wanted = expected(*pairs, bias[1], mask=mask, bias=bias)
    assert_same(loss_and_gradients(*pairs, bias[1], mask=mask, bias=bias), wanted, 1e-10)


@pytest.mark.parametrize("scale", [(0.3, 0.7), (None, 0.7), (0.3, None)], ids=str)
def test_a_given_scale_replaces_one_over_the_root_of_the_head_width(scale, mask):
    pairs = teacher_and_student("kv")
    assert_same(loss_and_gradients(*pairs, mask=mask, scale=scale), expected(*pairs, mask=mask, scale=scale), 1e-10)


@pytest.mark.parametrize("relation", ["qk", "vv"])
@pytest.mark.parametrize("shape", [(1, 1), (BATCH, 1), (1, HEADS), (BATCH, HEADS)], ids=str)
def test_pair_mask_narrows_the_relation_and_a_row_without_keys_counts_nothing(shape, relation, mask):
    pairs = teacher_and_student(relation)
    near = (torch.arange(N)[:, None] - torch.arange(N)).abs() < 3
    allowed = near & (torch.arange(shape[0] * shape[1] * N * N).view(*shape, N, N) % 5 > 0)
    allowed[..., 2, :] = False
    how = {"mask": mask, "pair_mask": allowed}
    assert_same(loss_and_gradients(*pairs, **how), expected(*pairs, **how), 1e-10)


# Blocks


@pytest.mark.parametrize("elements", [1, 7, 21, 64, 100])  # one row, bands of rows, whole matrices
@pytest.mark.parametrize("tables", [False, True], ids=["plain", "bias and pair mask"])
@pytest.mark.parametrize("relation", ["vv", "qk"])
def test_the_size_of_blocks_changes_nothing(relation, tables, elements, mask, monkeypatch):
    bias = torch.linspace(-1, 1, HEADS * N * N).double().view(1, HEADS, N, N).requires_grad_()
    inputs = (*teacher_and_student(relation), *([bias] if tables else []))
    how = {"bias": (bias.detach().cos(), bias), "pair_mask": bias < 0.9} if tables else {}
    wanted = expected(*inputs, mask=mask, **how)
    monkeypatch.setattr("limbeck.kernels.relation.BLOCK_ELEMENTS", elements)
    assert_same(loss_and_gradients(*inputs, mask=mask, **how), wanted, 1e-10)


# Padding and empty sequences


@pytest.mark.parametrize("content", [0.0, 1e30, float("inf"), float("nan")])
@pytest.mark.parametrize("places", [range(N), range(3, N + 3), range(0, 2 * N, 2)], ids=["right", "left", "holes"])
@pytest.mark.parametrize("relation", ["vv", "qk"])
def test_padding_changes_neither_loss_nor_gradients_whatever_it_contains(relation, places, content, device):
    pairs = teacher_and_student(relation)
    mask = torch.zeros(BATCH, places[-1] + 4, dtype=torch.bool)
    mask[:, places] = True

    def padded(pair):
        wider = {x: torch.full((*mask.shape, x.shape[-1]), content, dtype=x.dtype) for x in pair}
        for x, wide in wider.items():
            wide[:, places] = x.detach()
        return tuple(wider[x].requires_grad_() for x in pair)

    loss, *gradients = loss_and_gradients(*map(padded, pairs), mask=mask)
    assert_same([loss, *(g[:, places] for g in gradients)], loss_and_gradients(*pairs), 1e-12)
    for gradient in gradients:
        assert not gradient[~mask].any()


def test_a_padded_batch_costs_the_products_of_its_valid_tokens(device):
    pairs = teacher_and_student("qk")

    def products(teacher, student, mask=None):
        with FlopCounterMode(display=False) as counter:
            loss_and_gradients(teacher, student, mask=mask)
        return counter.get_total_flops()

    lone = [products(*(tuple(x[:1, :length] for x in pair) for pair in pairs)) for length in (7, 4, 1)]
    assert products(*pairs, mask=MASKS["right"].to(device)) == sum(lone)


def test_a_batch_without_valid_tokens_gives_a_zero_loss_that_carries_zero_gradient(device):
    teacher, student = teacher_and_student("qk")
    loss, *gradients = loss_and_gradients(teacher, student, mask=torch.zeros(BATCH, N, dtype=torch.bool))
    assert loss == 0
    assert not any(gradient.any() for gradient in gradients)


def test_the_mean_is_over_sequences_that_have_a_token(device):
    teacher, student = teacher_and_student("qk")
    mask = MASKS["right"].to(device)
    losses = relation_kl(teacher=teacher, student=student, relation_heads=HEADS, mask=mask, reduction="none")
    assert losses.shape == (BATCH,)
    assert losses[3] == 0
    assert_same([relation_kl(teacher=teacher, student=student, relation_heads=HEADS, mask=mask)], [losses[:3].mean()], 1e-12)


def test_each_sequences_gradient_follows_its_own_weight(device):
    """With reduction "none" the losses may be weighted before the backward pass."""
    teacher, student = teacher_and_student("vv")
    mask, weight = MASKS["right"].to(device), torch.tensor([0.5, -2.0, 3.0, 1.0]).double()
    losses = relation_kl(teacher=teacher, student=student, relation_heads=HEADS, mask=mask, reduction="none")
    wanted = relation_losses(teacher, student, HEADS, mask)
    assert_same(*(torch.autograd.grad(each @ weight, student[0]) for each in (losses, wanted)), 1e-10)


# Invariances


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("relation", ["vv", "qk"])
def test_a_student_equal_to_its_teacher_has_no_loss(relation, dtype, mask):
    pair, _ = teacher_and_student(relation, dtype=dtype)
    loss, *gradients = loss_and_gradients(tuple(x.detach() for x in pair), pair, mask=mask)
    assert loss == 0
    assert not any(gradient.any() for gradient in gradients)


def test_the_order_of_tokens_does_not_matter_if_both_share_it(mask):
    teacher, student = teacher_and_student("qk")
    order = torch.tensor([3, 0, 6, 1, 5, 2, 4])
    moved = None if mask is None else mask[:, order]
    loss, *gradients = loss_and_gradients(teacher, student, mask=mask)
    reordered = [tuple(x[:, order] for x in pair) for pair in (teacher, student)]
    assert_same(loss_and_gradients(*reordered, mask=moved), [loss, *(g[:, order] for g in gradients)], 1e-12)
    assert not torch.isclose(loss_and_gradients(teacher, reordered[1], mask=moved)[0], loss)


def test_relation_heads_slice_each_tokens_vector(device):
    """Attention heads are concatenated per token before they are split anew, not reshaped across tokens."""
    per_head = torch.arange(24.0).double().view(1, 2, 3, 4)  # batch, attention heads, n, head width
    teacher = per_head.transpose(1, 2).reshape(1, 3, 8)
    student = torch.cat([teacher.flip(1)[..., :2], teacher[..., 2:]], dim=-1).requires_grad_()  # differs in one slice of four
    loss, gradient = loss_and_gradients((teacher, teacher), (student, student), scale=(0.02, 0.02))

    def alone(relation_head):
        x = torch.tensor([relation_head]).double()
        return relation_losses((x, x), (x.flip(1), x.flip(1)), heads=1, scale=(0.02, 0.02))[0] / HEADS

    assert_same([loss], [alone([[0, 1], [4, 5], [8, 9]])], 1e-12)
    assert not torch.isclose(loss, alone([[0, 1], [2, 3], [4, 5]]))
    assert gradient[..., :2].any()
    assert not gradient[..., 2:].any()


def test_the_loss_does_not_grow_with_batch_length_or_heads(device):
    """Repeating sequences, tokens or heads repeats the same rows of relations, whose mean stays."""
    pairs = teacher_and_student("qk")
    loss = loss_and_gradients(*pairs)[:1]
    for dim, heads in ((0, HEADS), (1, HEADS), (2, 2 * HEADS)):
        repeated = [tuple(torch.cat([x, x], dim) for x in pair) for pair in pairs]
        assert_same(loss_and_gradients(*repeated, heads=heads)[:1], loss, 1e-12)


def test_the_teacher_gets_no_gradient(device):
    teacher, student = teacher_and_student("qk")
    relation_kl(teacher=teacher, student=student, relation_heads=HEADS).backward()
    assert all(x.grad is None for x in teacher)
    assert all(x.grad.any() for x in student)


# Errors


@pytest.mark.parametrize(
    ("heads", "widths"),
    [(48, (768, 312)), (48, (768, 512)), (48, (1024, 384)), (64, (1024, 312)), (12, (768, 512)), (0, (24, 16))],
)
def test_heads_that_do_not_divide_both_widths_are_refused_with_those_that_do(heads, widths, device):
    teacher, student = teacher_and_student("vv", widths=widths, batch=1, n=2)
    with pytest.raises(UserError, match="do not divide the feature widths") as refused:
        relation_kl(teacher=teacher, student=student, relation_heads=heads)
    listed = [int(count) for count in str(refused.value).rstrip(".").split("choose one of ")[1].split(", ")]
    assert listed == [count for count in range(1, max(widths)) if not any(width % count for width in widths)]
    for count in listed:
        relation_kl(teacher=teacher, student=student, relation_heads=count)


@pytest.mark.parametrize(
    ("wrong", "what"),
    [
        ({"teacher": (torch.zeros(4, 7, 24), torch.zeros(4, 7, 16))}, "teacher's features"),
        ({"teacher": (torch.zeros(4, 6, 24),) * 2}, "teacher's features"),
        ({"student": (torch.zeros(4, 7, 16), torch.zeros(4, 6, 16))}, "student's features"),
        ({"student": (torch.zeros(4, 7, 4, 4),) * 2}, "student's features"),
        ({"mask": torch.ones(4, 6).bool()}, "mask"),
        ({"mask": torch.ones(4, 1, 7).bool()}, "mask"),
        ({"pair_mask": torch.ones(3, 1, 7, 7).bool()}, "pair_mask"),
        ({"bias": (torch.zeros(4, 3, 7, 7), None)}, "bias"),
        ({"bias": (None, torch.zeros(6, 6))}, "bias"),
    ],
)
def test_shapes_that_do_not_fit_are_refused(wrong, what):
    teacher, student = teacher_and_student("qk")
    with pytest.raises(UserError, match=f"relation_kl: the {what} ha"):
        relation_kl(**{"teacher": teacher, "student": student, "relation_heads": HEADS, **wrong})


# Memory


class Allocations(TorchDispatchMode):
    """Follows what operations allocate: the most bytes alive at once, all bytes, and the elements of the largest tensor."""

    def __init__(self):
        super().__init__()
        self.peak = self.total = self.largest = 0
        self._alive = {}

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self._follow((args, kwargs), new=False)
        result = func(*args, **(kwargs or {}))
        self._follow(result, new=True)
        self.peak = max(self.peak, sum(self._alive.values()))
        return result

    def _follow(self, tree, *, new):
        for tensor in (leaf for leaf in tree_leaves(tree) if isinstance(leaf, torch.Tensor)):
            self.largest = max(self.largest, tensor.numel())
            storage = tensor.untyped_storage()
            if storage._cdata not in self._alive:
                self._alive[storage._cdata] = storage.nbytes() if new else 0
                self.total += self._alive[storage._cdata]
                weakref.finalize(storage, self._alive.pop, storage._cdata)


def allocations(batch, n, **how):
    """What loss and gradients of Q-Q with 48 heads allocate beyond the features."""
    pairs = teacher_and_student("qq", widths=(768, 384), batch=batch, n=n, dtype=torch.float32)
    with Allocations() as seen:
        loss_and_gradients(*pairs, heads=48, **how)
    return seen


def test_the_meter_sees_what_lives_at_once(device):
    with Allocations() as seen:
        held = torch.zeros(1000)
        for _ in range(3):
            held = held.view(10, 100) + 1
    assert (seen.peak, seen.total, seen.largest) == (8000, 16000, 1000)


def test_memory_grows_with_the_length_not_with_its_square(device):
    seen = {n: allocations(1, n) for n in (128, 512, 2048)}
    one_relation = 4 * 48 * 2048 * 2048
    assert seen[2048].peak < 5 * seen[512].peak
    assert seen[2048].peak - seen[512].peak < 5 * (seen[512].peak - seen[128].peak)  # whatever a block takes aside
    assert seen[2048].peak < one_relation / 10
    for n, each in seen.items():
        assert each.largest < 48 * n * n


def test_all_that_is_allocated_grows_with_the_batch_not_with_its_square(device):
    """No sequence's gradient is spread out over the whole batch before it is added up."""
    mask = torch.arange(32) < torch.tensor([[32], [20], [20], [7]])
    few, many = (allocations(4 * k, 32, mask=mask.repeat(k, 1)).total for k in (2, 16))
    assert many < 9 * few


def test_a_batch_without_sequences_is_zero():
    feature = torch.zeros(0, 4, 8, requires_grad=True)
    loss = relation_kl(teacher=(feature.detach(),) * 2, student=(feature, feature), relation_heads=2)
    loss.backward()
    assert loss.item() == 0
    assert feature.grad.shape == feature.shape


def test_an_unknown_reduction_is_refused():
    feature = torch.zeros(1, 4, 8)
    with pytest.raises(UserError, match='"mean" or "none"'):
        relation_kl(teacher=(feature, feature), student=(feature, feature), relation_heads=2, reduction="sum")


def test_a_pair_mask_may_hold_numbers_but_is_no_additive_mask(device):
    teacher, student = teacher_and_student("qk")
    pairs = torch.rand(N, N) < 0.6
    settings = {"teacher": teacher, "student": student, "relation_heads": HEADS}
    expected = relation_kl(**settings, pair_mask=pairs)
    for numbers in (pairs.int(), pairs.float()):
        assert torch.equal(relation_kl(**settings, pair_mask=numbers), expected)
    with pytest.raises(UserError, match="pair_mask"):
        relation_kl(**settings, pair_mask=pairs.float() * -1e9)


@pytest.mark.parametrize("other", [torch.float32, torch.bfloat16])
def test_features_of_a_pair_may_differ_in_type(device, other):
    teacher, student = teacher_and_student("qk")
    expected = relation_kl(teacher=teacher, student=student, relation_heads=HEADS)
    mixed = [(a, b.to(other)) for a, b in (teacher, student)]
    loss = relation_kl(teacher=mixed[0], student=mixed[1], relation_heads=HEADS)
    assert loss.dtype == torch.float64
    torch.testing.assert_close(loss, expected, rtol=2e-2, atol=0)


def test_what_is_no_pair_and_no_number_of_heads_is_refused():
    feature = torch.zeros(3, 4, 8)
    with pytest.raises(UserError, match="a pair"):
        relation_kl(teacher=feature, student=(feature, feature), relation_heads=2)
    with pytest.raises(UserError, match="whole number"):
        relation_kl(teacher=(feature, feature), student=(feature, feature), relation_heads=8 / 4)
