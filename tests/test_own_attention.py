"""Attention and dropout of Limbeck's own: the same as written plainly, and drawn as they should be."""

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter
from transformers import AutoModel

from limbeck.encoders.attention import NAME, use_own_attention
from limbeck.kernels import attention as kernel
from limbeck.kernels.attention import attention
from limbeck.kernels.dropout import Dropout, draw_kept, dropout, scale_of
from limbeck.training.stage import set_dropout

SHARE = 0.25


def plainly(query, key, value, scale, added, share):
    """The same with the whole maps at once; random numbers are drawn for as many matrices at a time as a block holds."""
    step = max(1, min(6, kernel.BLOCK_ELEMENTS // (query.shape[2] * key.shape[2])))
    sizes = [min(step, 6 - first) for first in range(0, 6, step)]
    kept = torch.cat([draw_kept(torch.empty(size, 5, 7, dtype=torch.uint8), share) for size in sizes]).view(2, 3, 5, 7)
    scores = query @ key.transpose(2, 3) * scale + (0 if added is None else added)
    return (torch.softmax(scores, dim=-1) * kept * scale_of(share)) @ value


def features(dtype=torch.float64, rows=5, columns=7):
    generator = torch.Generator().manual_seed(0)
    sizes = ((2, 3, rows, 4), (2, 3, columns, 4), (2, 3, columns, 4))
    return [torch.randn(size, generator=generator, dtype=torch.float64).to(dtype).requires_grad_() for size in sizes]


def seeded(work):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        return work()


ADDED = {
    "nothing": None,
    "a bias": torch.linspace(-1, 1, 2 * 3 * 5 * 7, dtype=torch.float64).view(2, 3, 5, 7),
    "a mask": torch.zeros(2, 1, 1, 7, dtype=torch.float64).masked_fill_(torch.arange(7) > 4, torch.finfo(torch.float64).min),
}


@pytest.mark.parametrize("elements", [1, 70, 10**6])
@pytest.mark.parametrize("share", [0.0, SHARE])
@pytest.mark.parametrize("added", ADDED)
def test_it_is_what_it_is_written_plainly(added, share, elements, monkeypatch):
    monkeypatch.setattr(kernel, "BLOCK_ELEMENTS", elements)
    ours, theirs = features(), features()
    given = {"scale": 0.3, "added": ADDED[added]}
    out = seeded(lambda: attention(*ours, **given, dropout=share))
    expected = seeded(lambda: plainly(*theirs, **given, share=share))
    assert torch.allclose(out, expected, rtol=1e-12, atol=1e-12)
    above = torch.randn(out.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    (out * above).sum().backward()
    (expected * above).sum().backward()
    for own, other in zip(ours, theirs, strict=True):
        assert torch.allclose(own.grad, other.grad, rtol=1e-11, atol=1e-12)


def test_gradients_pass_gradcheck():
    assert torch.autograd.gradcheck(
        lambda *given: seeded(lambda: attention(*given, scale=0.5, added=ADDED["a mask"], dropout=SHARE)), features()
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_narrow_types_are_computed_in_float32(dtype):
    given = features(dtype)
    out = attention(*given, scale=0.5)
    wide = [each.detach().float().requires_grad_() for each in given]
    assert out.dtype == dtype
    assert torch.equal(out, attention(*wide, scale=0.5).to(dtype))
    out.float().sum().backward()
    assert all(each.grad.dtype == dtype for each in given)


def test_no_map_outlives_its_block(monkeypatch):
    """Beside what is kept of the dropout, a byte each, nothing of the size of all maps is there at a time."""
    monkeypatch.setattr(kernel, "BLOCK_ELEMENTS", 1000)
    made = []

    class Watch(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            result = func(*args, **(kwargs or {}))
            made.extend(each.numel() for each in tree_iter(result) if isinstance(each, torch.Tensor) and each.is_floating_point())
            return result

    given = [torch.randn(4, 4, 64, 8, requires_grad=True) for _ in range(3)]
    with Watch():
        attention(*given, scale=1.0, dropout=SHARE).sum().backward()
    assert max(made) < 4 * 4 * 64 * 64 / 2


# ---------------------------------------------------------------- dropout


def test_dropout_zeroes_its_share_and_keeps_the_mean():
    x = torch.ones(400, 1000, requires_grad=True)
    out = seeded(lambda: dropout(x, 0.1))
    zeroed = (out == 0).float()
    assert float(zeroed.mean()) == pytest.approx(0.1, abs=0.002)
    assert float(zeroed.mean(dim=0).std()) == pytest.approx((0.09 / 400) ** 0.5, rel=0.1)  # as of independent draws
    assert float(zeroed[:, 1:].mul(zeroed[:, :-1]).mean()) == pytest.approx(0.01, abs=0.001)
    assert float(out.detach().mean()) == pytest.approx(1.0, abs=0.005)
    assert out.detach().unique().tolist() == [0.0, pytest.approx(1 / 0.9, rel=1e-4)]
    out.sum().backward()
    assert torch.equal(x.grad, out.detach())


@pytest.mark.parametrize("size", [1, 3, 4, 5, 1023])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_any_size_and_type_is_drawn_from_the_seed(size, dtype):
    x = torch.arange(1.0, size + 1).to(dtype)
    first, again = (seeded(lambda: dropout(x, 0.5)) for _ in range(2))
    assert torch.equal(first, again)
    assert first.dtype == dtype
    assert set((first / x).tolist()) <= {0.0, 2.0}
    assert dropout(x, 0.0) is x


def test_a_model_that_is_not_trained_drops_nothing():
    module, x = Dropout(0.5).eval(), torch.randn(9)
    assert module(x) is x
    model = nn.Sequential(nn.Linear(2, 2), nn.Dropout(0.3))
    set_dropout(model, 0.2)
    assert type(model[1]) is Dropout
    assert model[1].p == 0.2


# ---------------------------------------------------------------- in encoders


def test_an_encoder_attends_as_before_whatever_is_padded(save_bert, tmp_path, monkeypatch):
    folder = save_bert(tmp_path / "model", attention_probs_dropout_prob=0.5, hidden_dropout_prob=0.0)
    theirs, ours = (AutoModel.from_pretrained(folder).train() for _ in range(2))
    use_own_attention(ours)
    assert ours.config._attn_implementation == NAME
    seen = []
    monkeypatch.setattr(kernel, "draw_kept", lambda room, share: seen.append(share) or room.fill_(1))
    monkeypatch.setattr(kernel, "scale_of", lambda share: 1.0)
    ids = torch.arange(24).view(3, 8) + 5
    mask = (torch.arange(8) < torch.tensor([[8], [5], [1]])).long()
    ours_out = ours(input_ids=ids, attention_mask=mask).last_hidden_state
    assert seen == [0.5] * ours.config.num_hidden_layers
    theirs_out = theirs.eval()(input_ids=ids, attention_mask=mask).last_hidden_state
    assert torch.allclose(ours_out[mask.bool()], theirs_out[mask.bool()], atol=1e-5)
    ours_out[mask.bool()].sum().backward()
    assert all(each.grad is None or each.grad.isfinite().all() for each in ours.parameters())
    with torch.no_grad():
        assert torch.equal(ours.eval()(input_ids=ids, attention_mask=mask).last_hidden_state, theirs_out)


def test_a_saved_model_remembers_nothing_of_it(save_bert, tmp_path):
    model = AutoModel.from_pretrained(save_bert(tmp_path / "model"))
    use_own_attention(model)
    model.save_pretrained(tmp_path / "saved")
    assert NAME not in (tmp_path / "saved" / "config.json").read_text()
    assert AutoModel.from_pretrained(tmp_path / "saved").config._attn_implementation == "sdpa"
