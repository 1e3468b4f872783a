"""What speed is measured against computes the same loss."""

import sys
from pathlib import Path

import pytest
import torch
from transformers import AutoModel

from limbeck import MiniLMv2
from limbeck.encoders.capture import Capture
from limbeck.encoders.shape import EncoderShape

BENCHMARKS = Path(__file__).parent.parent / "benchmarks"


@pytest.fixture
def reference(monkeypatch):
    """benchmarks/reference.py, whose name another module has here."""
    monkeypatch.syspath_prepend(BENCHMARKS)
    monkeypatch.delitem(sys.modules, "reference", raising=False)
    import reference

    yield reference
    del sys.modules["reference"]


def test_the_reference_step_has_limbecks_loss_and_gradients(reference, save_bert, tmp_path):
    folders = [save_bert(tmp_path / str(layers), num_hidden_layers=layers, seed=layers) for layers in (3, 2)]
    teacher, student = (AutoModel.from_pretrained(folder, attn_implementation="eager").eval() for folder in folders)
    ids = torch.arange(24).view(3, 8) + 5
    mask = (torch.arange(8) < torch.tensor([[8], [5], [3]])).long()
    theirs = reference.PublicMiniLMv2(teacher, student, 2, 8)(ids, mask)
    theirs.backward()
    expected = {name: each.grad.clone() for name, each in student.named_parameters() if each.grad is not None}
    student.zero_grad(set_to_none=True)

    shapes = [EncoderShape.of(model.config) for model in (teacher, student)]
    objective = MiniLMv2(relation_heads=8, teacher_layer=2).resolve(*shapes)
    readers = [Capture(model, wants) for model, wants in zip((teacher, student), objective.wants(*shapes), strict=True)]
    with torch.no_grad():
        features = readers[0](input_ids=ids, attention_mask=mask)
    terms = objective.sums(features, readers[1](input_ids=ids, attention_mask=mask), mask.bool())
    ours = sum(terms.values()) / len(ids)
    ours.backward()
    assert float(ours.detach()) == pytest.approx(float(theirs.detach()), rel=1e-5)
    for name, parameter in student.named_parameters():
        if parameter.grad is None:
            assert name not in expected
        else:
            assert torch.allclose(parameter.grad, expected[name], rtol=1e-4, atol=1e-7)
