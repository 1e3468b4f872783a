"""Compiled layers: the same features and gradients, a run as good as any, and a way back."""

from functools import partialmethod
from pathlib import Path

import pytest
import torch
from torch import nn

from kinds import KINDS, TEXTS
from limbeck.encoders.capture import Capture
from limbeck.encoders.compiled import compile_layers, compile_no_more
from limbeck.training import compiling
from runs import log_of

READ = {"last layer": {"q": [3], "k": [3], "v": [3]}, "every layer": {"hidden": [0, 1, 2, 3], "v": [2]}}


@pytest.fixture
def traced(monkeypatch):
    """Layers are traced and run as torch's own operations: what the compiler makes of these is torch's concern."""
    monkeypatch.setattr(nn.Module, "compile", partialmethod(nn.Module.compile, backend="aot_eager"))


def features_and_gradients(model, batch, reader):
    model.zero_grad()
    tensors = reader(**batch).tensors
    sum(tensor.square().mean() for layers in tensors.values() for tensor in layers.values()).backward()
    read = {(feature, layer): tensor.detach() for feature, layers in tensors.items() for layer, tensor in layers.items()}
    gradients = {name: parameter.grad for name, parameter in model.named_parameters() if parameter.grad is not None}
    return read | gradients


@pytest.mark.parametrize("read", READ)
@pytest.mark.parametrize("kind", ["bert", "mpnet", "modernbert"])
def test_features_and_gradients_are_the_same(kind, read, traced, request):
    tokenizer = request.getfixturevalue(KINDS[kind].tokenizer)
    model = KINDS[kind].model(tokenizer)
    batch = tokenizer(TEXTS, return_tensors="pt", padding=True)
    reader = Capture(model, READ[read])
    plain = features_and_gradients(model, batch, reader)
    parts = compile_layers(model)
    assert parts, "something was compiled"
    compiled = features_and_gradients(model, batch, reader)
    assert compiled.keys() == plain.keys()
    for name, tensor in plain.items():
        torch.testing.assert_close(compiled[name], tensor, rtol=1e-4, atol=1e-6)
    compile_no_more(parts)
    assert not any(module._compiled_call_impl for module in model.modules())


def test_torchs_own_compiler_makes_the_same_features(tiny_tokenizer):
    model = KINDS["bert"].model(tiny_tokenizer, num_hidden_layers=2)
    batch = tiny_tokenizer(TEXTS, return_tensors="pt", padding=True)
    reader = Capture(model, {"q": [2]})
    with torch.no_grad():
        plain = reader(**batch).tensors["q"][2]
        compile_layers(model)
        torch.testing.assert_close(reader(**batch).tensors["q"][2], plain, rtol=1e-4, atol=1e-6)


def test_a_compiled_run_is_resumed_to_the_bit_and_mimics_as_an_uncompiled_one(distil, stopping, traced):
    settings = {"compile": "always", "packing": "full", "steps": 3, "dropout": 0.1}
    plain, whole = distil("plain", **{**settings, "compile": "never"}), distil("whole", **settings)
    assert "compile: always\n" in Path(whole.path / "recipe.yaml").read_text()
    losses = [[record["loss"] for record in log_of(run)] for run in (plain, whole)]
    assert losses[1] == pytest.approx(losses[0], rel=0.1), "dropout is another one"
    with stopping(2):
        distil("halves", **settings)
    halves = distil("halves", resume="auto", **settings)
    assert log_of(halves) == log_of(whole)


def test_what_cannot_be_compiled_runs_as_it_is_and_says_so(distil, monkeypatch, capsys):
    def broken(*given, **more):
        raise RuntimeError("no compiler\nwas found")

    monkeypatch.setattr(nn.Module, "compile", lambda self, **settings: setattr(self, "_compiled_call_impl", broken))
    run = distil(compile="always", quiet=False)
    assert "torch.compile failed: no compiler was found" in " ".join(capsys.readouterr().err.split())
    assert "compile: never\n" in Path(run.path / "recipe.yaml").read_text()


@pytest.mark.parametrize(
    ("precision", "seconds", "tried"),
    [
        ("float32", [], "never"),  # nothing to gain
        ("bf16", [1e-6], "never"),  # soon over
        ("bf16", [1e6, 9e5], "always"),
        ("bf16", [1e6, 2e6], "never"),  # slower
    ],
)
def test_auto_compiles_where_a_long_training_becomes_faster(precision, seconds, tried, distil, monkeypatch):
    left = iter(seconds)
    monkeypatch.setattr(compiling, "trial_seconds", lambda stage, *, bf16: next(left))
    compiled = []
    monkeypatch.setattr(nn.Module, "compile", lambda self, **settings: compiled.append(self))
    run = distil(precision=precision)
    assert f"compile: {tried}\n" in Path(run.path / "recipe.yaml").read_text()
    assert not list(left)
    assert bool(compiled) == (len(seconds) == 2)
