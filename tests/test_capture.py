"""Captured features are the model's own, and nothing behind the deepest is computed."""

import numpy as np
import pytest
import torch
from torch.nn.functional import linear
from transformers import BertForMaskedLM, BertModel, GPT2Config, GPT2Model

from limbeck import capture
from limbeck.encoders.capture import Capture

LAYERS = 3
HEADS = 4
EVERYTHING = {"q": [1, 2, 3], "k": [1, 2, 3], "v": [1, 2, 3], "hidden": [0, 1, 2, 3]}
PROJECTIONS = {"q": "query", "k": "key", "v": "value"}

# transformers renamed it after 5.0.
old_name = pytest.mark.filterwarnings("ignore:`gradient_checkpointing_enable` is deprecated:FutureWarning")


@pytest.fixture(params=[BertModel, BertForMaskedLM], ids=["encoder", "with a head"])
def model(tiny_bert, request):
    return tiny_bert(request.param)


@pytest.fixture
def batch():
    """Three sequences of 12, 7 and 1 valid tokens."""
    ids = torch.randint(5, 100, (3, 12), generator=torch.Generator().manual_seed(0))
    return {"input_ids": ids, "attention_mask": (torch.arange(12) < torch.tensor([[12], [7], [1]])).long()}


def started_modules(model, run):
    """The names of the modules without parts that began to work, in order."""
    started = []
    handles = [
        module.register_forward_pre_hook(lambda _, __, name=name: started.append(name))
        for name, module in model.base_model.named_modules()
        if not list(module.children())
    ]
    run()
    for handle in handles:
        handle.remove()
    return started


def hooks(model):
    return [hook for module in model.modules() for hook in [*module._forward_hooks, *module._forward_pre_hooks]]


def test_hidden_states_are_those_that_enter_and_leave_each_layer(model, batch):
    expected = model(**batch, output_hidden_states=True).hidden_states
    hidden = capture(model, batch, EVERYTHING)["hidden"]
    assert list(hidden) == list(range(LAYERS + 1))
    assert all(torch.equal(hidden[layer], expected[layer]) for layer in hidden)


def test_queries_keys_and_values_are_projections_of_what_enters_the_layer(model, batch, device):
    model.to(device)
    batch = {name: tensor.to(device) for name, tensor in batch.items()}
    entering = model(**batch, output_hidden_states=True).hidden_states
    features = capture(model, batch, EVERYTHING)
    for feature, projection in PROJECTIONS.items():
        for layer in range(1, LAYERS + 1):
            module = getattr(model.base_model.encoder.layer[layer - 1].attention.self, projection)
            expected = linear(entering[layer - 1], module.weight, module.bias)
            torch.testing.assert_close(features[feature][layer], expected)


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
def test_scores_of_captured_features_are_the_models_attention(tiny_bert, batch, attention):
    maps = tiny_bert(attn_implementation="eager")(**batch, output_attentions=True).attentions
    features = capture(tiny_bert(attn_implementation=attention), batch, EVERYTHING)
    padding = ~batch["attention_mask"][:, None, None].bool()
    for layer in range(1, LAYERS + 1):
        q, k = (features[name][layer].unflatten(-1, (HEADS, -1)).transpose(1, 2) for name in "qk")
        scores = q @ k.transpose(2, 3) / q.shape[-1] ** 0.5
        torch.testing.assert_close(scores.masked_fill(padding, float("-inf")).softmax(dim=-1), maps[layer - 1])


def test_a_layer_gives_a_tensor_and_a_list_gives_a_dictionary(model, batch):
    features = capture(model, batch, {"q": 2, "k": [2], "v": [3, 1, 3], "hidden": []})
    assert features["q"].shape == (3, 12, 32)
    assert {feature: list(features[feature]) for feature in ("k", "v", "hidden")} == {"k": [2], "v": [1, 3], "hidden": []}


@pytest.mark.parametrize("one", [np.int64(2), np.int8(2)])
@pytest.mark.parametrize("several", [np.array([1, 3]), (1, 3), range(1, 4, 2), {1, 3}])
def test_layers_may_be_any_whole_numbers(model, batch, one, several):
    features = capture(model, batch, {"q": one, "v": several})
    expected = capture(model, batch, {"q": 2, "v": [1, 3]})
    assert torch.equal(features["q"], expected["q"])
    assert list(features["v"]) == [1, 3]
    assert all(torch.equal(features["v"][layer], expected["v"][layer]) for layer in (1, 3))


@pytest.mark.parametrize("asked", [1.0, True, None, "1", [1, 2.0], [[1]], {"1": 1}])
def test_what_is_no_layer_is_refused(model, batch, refused, asked):
    with refused(repr(asked), "layers of q"):
        capture(model, batch, {"q": asked})
    assert hooks(model) == []


IDS = torch.ones(2, 4, dtype=torch.long)


@pytest.mark.parametrize(
    ("inputs", "words"),
    [
        ({}, ["no input_ids"]),
        ({"attention_mask": IDS}, ["no input_ids"]),
        ({"input_ids": [[1, 2]]}, ["input_ids", 'return_tensors="pt"']),
        ({"input_ids": IDS[0]}, ["input_ids", "(batch, n)"]),
        ({"input_ids": IDS[:0]}, ["empty", "(0, 4)"]),
        ({"input_ids": IDS[:, :0]}, ["empty", "(2, 0)"]),
        ({"input_ids": IDS, "labels": IDS, "special_tokens_mask": IDS}, ["bert", "labels, special_tokens_mask"]),
        ({"input_ids": IDS.repeat(1, 20)}, ["80 tokens", "the 64", "truncation=True"]),
    ],
    ids=["nothing", "no ids", "lists", "one text", "no text", "no token", "unknown", "too long"],
)
def test_inputs_that_are_none_are_refused(model, refused, inputs, words):
    with refused(*words):
        capture(model, inputs, {"q": 1})
    assert hooks(model) == []


def test_positions_may_be_given(model, batch):
    positions = torch.arange(12).remainder(6)[None]
    batch = batch | {"input_ids": batch["input_ids"].repeat(1, 6), "attention_mask": batch["attention_mask"].repeat(1, 6)}
    batch["position_ids"] = positions.repeat(1, 6)
    expected = model(**batch, output_hidden_states=True).hidden_states[2]
    assert torch.equal(capture(model, batch, {"hidden": 2})["hidden"], expected)


def test_a_boolean_mask_is_a_mask(model, batch):
    wants = {"hidden": 3}
    expected = capture(model, batch, wants)["hidden"]
    assert torch.equal(capture(model, {**batch, "attention_mask": batch["attention_mask"].bool()}, wants)["hidden"], expected)


@pytest.mark.parametrize(
    ("wants", "last"),
    [
        ({"hidden": 0}, "embeddings.dropout"),
        ({"q": 1}, "encoder.layer.0.attention.self.query"),
        ({"v": 2, "k": 2, "q": 2}, "encoder.layer.1.attention.self.value"),
        ({"v": 1, "k": 3}, "encoder.layer.2.attention.self.key"),
        ({"q": [2, 1, 2]}, "encoder.layer.1.attention.self.query"),
        ({"q": 3, "hidden": [0, 1]}, "encoder.layer.2.attention.self.query"),
        ({"q": 1, "hidden": 2}, "encoder.layer.1.output.LayerNorm"),
        ({"hidden": 3}, "encoder.layer.2.output.LayerNorm"),
    ],
    ids=str,
)
def test_nothing_behind_the_deepest_feature_is_computed(model, batch, wants, last):
    everything = started_modules(model, lambda: model(**batch))
    expected = everything[: everything.index(last) + 1]
    assert started_modules(model, lambda: capture(model, batch, wants)) == expected


def test_gradients_reach_what_the_feature_was_computed_from_and_nothing_else(model, batch):
    features = capture(model, batch, {"q": 2, "v": 2})
    (features["q"] * features["v"]).sum().backward()
    reached = {name for name, parameter in model.base_model.named_parameters() if parameter.grad is not None}
    layer = "encoder.layer.1."
    expected = {name for name, _ in model.base_model.named_parameters() if name.startswith(("embeddings.", "encoder.layer.0."))}
    expected |= {f"{layer}attention.self.{name}.{part}" for name in ("query", "value") for part in ("weight", "bias")}
    assert reached == expected


@old_name
@pytest.mark.parametrize("dropout", [0.0, 0.1])
def test_gradient_checkpointing_changes_neither_features_nor_gradients(tiny_bert, batch, dropout):
    def train(checkpointing):
        model = tiny_bert(hidden_dropout_prob=dropout, attention_probs_dropout_prob=dropout).train()
        if checkpointing:
            model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
        torch.manual_seed(0)
        features = capture(model, batch, {"q": 3, "v": 2, "hidden": [1]})
        (features["q"].square().sum() + features["v"].sum() + features["hidden"][1].square().sum()).backward()
        return features, {name: parameter.grad for name, parameter in model.named_parameters()}

    features, gradients = train(checkpointing=True)
    expected_features, expected_gradients = train(checkpointing=False)
    torch.testing.assert_close(features, expected_features, rtol=0, atol=0)
    reached = {name for name, gradient in gradients.items() if gradient is not None}
    assert reached == {name for name, gradient in expected_gradients.items() if gradient is not None}
    for name in reached:
        torch.testing.assert_close(gradients[name], expected_gradients[name])


@old_name
def test_reentrant_gradient_checkpointing_is_refused_where_it_would_lose_gradients(tiny_bert, batch, refused):
    model = tiny_bert()
    expected = capture(model, batch, {"q": 3})["q"]
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": True})
    assert torch.equal(capture(model, batch, {"q": 3})["q"], expected)
    model.train()
    with refused("no gradient", '"use_reentrant": False'):
        capture(model, batch, {"q": 3})


def test_the_model_can_be_used_as_usual_between_captures(model, batch):
    expected = model(**batch)[0]
    reader = Capture(model, {"q": [2]})
    reader(**batch)
    assert torch.equal(model(**batch)[0], expected)
    reader.close()
    assert hooks(model) == []


def test_captures_of_one_model_do_not_disturb_each_other(model, batch):
    shallow, deep = Capture(model, {"q": [1]}), Capture(model, {"hidden": [2], "q": [1]})
    first = shallow(**batch).only("q")
    features = deep(**batch)
    assert torch.equal(features.only("q"), first)
    assert features.tensors["hidden"].keys() == {2}
    assert features.shape.layers == LAYERS


def test_hooks_are_removed_even_if_the_model_fails(model):
    with pytest.raises(IndexError):
        capture(model, {"input_ids": torch.tensor([[5]]), "token_type_ids": torch.tensor([[100]])}, {"q": 1})
    assert hooks(model) == []


@pytest.mark.parametrize(
    ("wants", "words"),
    [
        ({}, ["No feature", "q, k, v, hidden"]),
        ({"q": [], "hidden": []}, ["No feature"]),
        ({"scores": 1}, ["'scores'", "q, k, v, hidden"]),
        ({"q": 0}, ["q of layer 0", "from 1 to 3"]),
        ({"v": [1, 4]}, ["v of layer 4", "from 1 to 3"]),
        ({"hidden": -1}, ["hidden of layer -1", "from 0 to 3"]),
    ],
    ids=str,
)
def test_what_a_model_does_not_have_is_refused(model, batch, refused, wants, words):
    with refused(*words):
        capture(model, batch, wants)
    assert hooks(model) == []


def test_a_family_that_is_not_supported_is_refused_with_those_that_are(batch, refused):
    model = GPT2Model(GPT2Config(vocab_size=128, n_positions=16, n_embd=8, n_layer=1, n_head=2))
    with refused("gpt2", "bert"):
        capture(model, batch, {"q": 1})


@pytest.mark.parametrize("ids", [-1, 100_000])
def test_ids_of_another_tokenizer_are_refused(model, batch, refused, ids):
    with refused("tokenizer", ids):
        capture(model, {**batch, "input_ids": torch.full((3, 12), ids)}, {"q": 1})
    assert hooks(model) == []


def test_a_mask_of_another_length_is_refused(model, batch, refused):
    """transformers would take what is missing for padding."""
    for mask in (batch["attention_mask"][:, :2], batch["attention_mask"][:1], batch["attention_mask"].tolist()):
        with refused("attention_mask", "(3, 12)"):
            capture(model, {**batch, "attention_mask": mask}, {"q": 1})


def test_what_is_no_model_batch_or_wish_is_refused(model, batch, refused):
    with refused("DataParallel", "the model inside"):
        capture(torch.nn.DataParallel(model), batch, {"q": 1})
    for given, wants in ((batch["input_ids"], {"q": 1}), (batch, "q")):
        with refused("a batch"):
            capture(model, given, wants)
