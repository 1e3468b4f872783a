"""The losses as the papers write them: in float64, one sequence, head and token at a time, sharing nothing with limbeck."""

import itertools

import torch
from torch.nn.functional import log_softmax, softmax

ALL_RELATIONS = ["".join(pair) for pair in itertools.product("qkv", repeat=2)]


def relation_losses(teacher, student, heads, mask=None, pair_mask=None, bias=(None, None), scale=(None, None)):
    """1 / (A_r |x|) sum_a sum_t KL(R^T_{a,t} || R^S_{a,t}) for every sequence x of the batch; 0 for an empty one."""
    batch, n, _ = student[0].shape
    mask = torch.ones(batch, n, dtype=torch.bool, device=student[0].device) if mask is None else mask
    losses = []
    for x in range(batch):
        valid = mask[x].nonzero().flatten()
        loss = torch.zeros((), dtype=torch.float64, device=mask.device)
        for a in range(heads):
            t_scores, s_scores = (
                _scores([f[x] for f in pair], heads, a, factor)
                + (0 if table is None else table.double().expand(batch, heads, n, n)[x, a])
                for pair, table, factor in zip((teacher, student), bias, scale, strict=True)
            )
            for t in valid:
                keys = valid if pair_mask is None else valid[pair_mask.expand(batch, heads, n, n)[x, a, t, valid]]
                loss = loss + _kl(t_scores[t, keys], s_scores[t, keys]) / (heads * len(valid))
        losses.append(loss)
    return torch.stack(losses)


def minilm(teacher, student, attention_heads, mask=None):
    """Both terms of MiniLM for every sequence, from the queries, keys and values {"q": ..., "k": ..., "v": ...}."""
    terms = minilmv2(teacher, student, attention_heads, ["qk", "vv"], mask)
    return {"attention": terms["qk"], "value_relation": terms["vv"]}


def minilmv2(teacher, student, relation_heads, relations, mask=None):
    """Each relation's loss for every sequence."""
    return {ij: relation_losses([teacher[i] for i in ij], [student[i] for i in ij], relation_heads, mask) for ij in relations}


def _scores(pair, heads, a, factor):
    """A_a B_a^T / sqrt(d_r), where the a-th slice of each token's vector is the a-th relation head."""
    width = pair[0].shape[-1] // heads
    left, right = (feature[:, a * width : (a + 1) * width].double() for feature in pair)
    return left @ right.T * (width**-0.5 if factor is None else factor)


def _kl(t_scores, s_scores):
    return (softmax(t_scores, dim=-1) * (log_softmax(t_scores, dim=-1) - log_softmax(s_scores, dim=-1))).sum()
