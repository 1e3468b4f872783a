"""The reference that speed is measured against: a step of MiniLMv2 as today's public implementations take it.

They run the teacher whole, ask both models for all hidden states and attention maps (which takes eager attention), compute the
relations of the whole batch with autograd, and loop over its sequences for the KL divergence, each cut out of the padded batch.
The loss is Limbeck's; a test compares the two.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.functional import kl_div, log_softmax, softmax
from transformers import PreTrainedModel

CLIP = 1.0


class PublicMiniLMv2(nn.Module):
    """Relations Q-Q, K-K and V-V between a layer of the teacher and the student's last one, of BERT-like models.

    Args:
        teacher: with eager attention, frozen.
        student: with eager attention.
        teacher_layer: numbered from 1.
        relation_heads: A_r.
    """

    def __init__(self, teacher: PreTrainedModel, student: PreTrainedModel, teacher_layer: int, relation_heads: int) -> None:
        super().__init__()
        self.teacher, self.student = teacher.eval().requires_grad_(False), student
        self.teacher_layer, self.relation_heads = teacher_layer, relation_heads

    def forward(self, input_ids: Tensor, attention_mask: Tensor, **inputs: Tensor) -> Tensor:
        """The loss of a padded batch, (batch, n) each."""
        everything = {"output_hidden_states": True, "output_attentions": True}
        with torch.no_grad():
            theirs = self.teacher(input_ids=input_ids, attention_mask=attention_mask, **inputs, **everything)
        ours = self.student(input_ids=input_ids, attention_mask=attention_mask, **inputs, **everything)
        last = self.student.config.num_hidden_layers
        loss = input_ids.new_zeros((), dtype=torch.float32)
        for feature in ("query", "key", "value"):
            with torch.no_grad():
                states = self._states(self.teacher, theirs.hidden_states, self.teacher_layer, feature)
                teacher = relation(states, self.relation_heads)
            student = relation(self._states(self.student, ours.hidden_states, last, feature), self.relation_heads)
            loss = loss + divergence(teacher, student, attention_mask.sum(dim=1))
        return loss

    def _states(self, model: PreTrainedModel, hidden_states: tuple[Tensor, ...], layer: int, feature: str) -> Tensor:
        """A feature of a layer, projected once more from what enters it."""
        projection = model.get_submodule(f"encoder.layer.{layer - 1}.attention.self.{feature}")
        states: Tensor = projection(hidden_states[layer - 1])
        return states


def relation(states: Tensor, relation_heads: int) -> Tensor:
    """Scaled dot products of a feature with itself, (batch, n, width) -> (batch, A_r, n, n)."""
    heads = states.view(*states.shape[:2], relation_heads, -1).transpose(1, 2)
    scores: Tensor = heads @ heads.transpose(-1, -2) / heads.shape[-1] ** 0.5
    return scores


def divergence(teacher: Tensor, student: Tensor, lengths: Tensor) -> Tensor:
    """KL of the teacher's and the student's rows, the mean over heads, tokens and sequences.

    Args:
        teacher: scores, (batch, A_r, n, n).
        student: likewise.
        lengths: (batch,) valid tokens; padding stands behind them.
    """
    loss = teacher.new_zeros((), dtype=torch.float32)
    for sequence, length in enumerate(lengths.tolist()):
        p = softmax(teacher[sequence, :, :length, :length].float(), dim=-1)
        log_q = log_softmax(student[sequence, :, :length, :length].float(), dim=-1)
        loss = loss + kl_div(log_q, p, reduction="sum") / (teacher.shape[1] * length)
    return loss / len(lengths)


class ReferenceStep:
    """An optimiser step as a training script of today takes it: fused AdamW, clipped gradients, autocast if asked for."""

    def __init__(self, module: PublicMiniLMv2, precision: str, learning_rate: float = 6e-4) -> None:
        self.module, self.precision = module, precision
        trained = [parameter for parameter in module.student.parameters() if parameter.requires_grad]
        self.optimizer = torch.optim.AdamW(trained, lr=learning_rate, eps=1e-6, weight_decay=0.01, fused=True)

    def __call__(self, batch: dict[str, Tensor]) -> float:
        """Take the step; returns the loss."""
        self.module.student.train()
        with torch.autocast(batch["input_ids"].device.type, torch.bfloat16, enabled=self.precision == "bf16"):
            loss = self.module(**batch)
        loss.backward()
        nn.utils.clip_grad_norm_(self.module.student.parameters(), CLIP)
        self.optimizer.step()
        self.optimizer.zero_grad()
        return float(loss.detach())
