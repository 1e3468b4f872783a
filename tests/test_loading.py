"""Strict loading, the check of tokenizers, and how a student begins."""

import json
import socket
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from huggingface_hub import constants
from safetensors.torch import load_file, save_file
from transformers import (
    BertForMaskedLM,
    BertForPreTraining,
    BertForSequenceClassification,
    BertModel,
    GPT2Config,
)

import limbeck
from hub import answering
from limbeck.encoders import folders
from limbeck.encoders.configuration import default_cut
from limbeck.encoders.loading import check_same_tokenizer, load_encoder, new_encoder
from limbeck.encoders.shape import StudentShape
from limbeck.encoders.students import build_student, chosen_layers

# Loading


def output(model):
    """What an encoder makes of a padded batch."""
    ids = torch.arange(40).view(2, 20) + 5
    mask = torch.arange(20) < torch.tensor([[20], [13]])
    with torch.no_grad():
        return model(input_ids=ids, attention_mask=mask)


def same_output(first, second):
    a, b = output(first), output(second)
    return torch.equal(a.last_hidden_state, b.last_hidden_state) and torch.equal(a.pooler_output, b.pooler_output)


def same_weights(first, second):
    a, b = first.state_dict(), second.state_dict()
    return a.keys() == b.keys() and all(torch.equal(a[key], b[key]) for key in a)


def edit_weights(folder, edit):
    file = folder / "model.safetensors"
    save_file({key: value.contiguous() for key, value in edit(load_file(file)).items()}, file, metadata={"format": "pt"})


def edit_config(folder, **changes):
    file = folder / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))


def rename(*replacements):
    """Rename keys: replace each (old, new) in turn, an empty old meaning the front."""

    def edit(weights):
        for old, new in replacements:
            weights = {key.replace(old, new) if old else new + key: value for key, value in weights.items()}
        return weights

    return edit


OLD_NORMS = (("LayerNorm.weight", "LayerNorm.gamma"), ("LayerNorm.bias", "LayerNorm.beta"))
POSITION_IDS = {"embeddings.position_ids": torch.arange(64)[None]}
VARIANTS = {
    "as it is": rename(),
    "bert. prefix": rename(("", "bert.")),
    "module. prefix": rename(("", "module.")),
    "gamma and beta": rename(*OLD_NORMS),
    "stored position_ids": lambda weights: weights | POSITION_IDS,
    "foreign head": lambda weights: weights | {"classifier.weight": torch.ones(2, 32), "cls.predictions.bias": torch.ones(9)},
    "all at once": lambda weights: rename(("", "module.bert."), *OLD_NORMS)(weights | POSITION_IDS),
}


@pytest.mark.parametrize("edit", VARIANTS.values(), ids=VARIANTS.keys())
def test_every_known_variant_of_key_names_gives_the_original_model(tiny_bert, save_bert, tmp_path, edit):
    original = tiny_bert()
    edit_weights(save_bert(tmp_path, original), edit)
    encoder = load_encoder(tmp_path)
    assert same_output(encoder.model, original)
    assert encoder.pooler_trained


@pytest.mark.parametrize("model_class", [BertForMaskedLM, BertForPreTraining, BertForSequenceClassification])
def test_a_model_with_a_task_head_gives_its_encoder(tiny_bert, save_bert, tmp_path, model_class):
    original = tiny_bert(model_class)
    encoder = load_encoder(save_bert(tmp_path, original))
    assert type(encoder.model) is BertModel
    assert torch.equal(output(encoder.model).last_hidden_state, output(original.bert).last_hidden_state)
    assert encoder.pooler_trained == (original.bert.pooler is not None)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_weights_become_float32(tiny_bert, save_bert, tmp_path, dtype):
    half = tiny_bert().to(dtype)
    encoder = load_encoder(save_bert(tmp_path, half))
    assert same_output(encoder.model, half.float())
    assert {tensor.dtype for tensor in encoder.model.parameters()} == {torch.float32}


@pytest.mark.parametrize("model_class", [BertModel, BertForMaskedLM])
def test_what_half_precision_weights_lack_and_what_is_built_from_them_is_float32_too(tiny_bert, save_bert, tmp_path, model_class):
    half = tiny_bert(model_class).half()
    teacher = load_encoder(save_bert(tmp_path, half))
    for init in ("random", "layers"):
        student = build_student(teacher, StudentShape(2, 32), init, seed=0)
        for model in (teacher.model, student.model):
            assert {tensor.dtype for tensor in model.parameters()} == {torch.float32}
            assert model.config.dtype == torch.float32


def test_loading_gives_an_encoder_ready_to_be_read(save_bert, tmp_path, tiny_tokenizer):
    encoder = load_encoder(str(save_bert(tmp_path)))
    assert not encoder.model.training
    assert str(encoder.shape) == "3x32:128/4"
    assert encoder.source == str(tmp_path)
    assert encoder.tokenizer.get_vocab() == tiny_tokenizer.get_vocab()


def test_a_missing_pooler_is_random_but_always_the_same_and_known_to_be_untrained(tiny_bert, save_bert, tmp_path):
    original = tiny_bert()
    edit_weights(save_bert(tmp_path, original), lambda weights: {k: v for k, v in weights.items() if "pooler" not in k})
    torch.manual_seed(1)
    first = load_encoder(tmp_path)
    torch.manual_seed(2)
    second = load_encoder(tmp_path)
    assert not first.pooler_trained
    assert torch.equal(output(first.model).last_hidden_state, output(original).last_hidden_state)
    assert same_weights(first.model, second.model)


def test_loading_leaves_the_random_state_alone(save_bert, tmp_path):
    save_bert(tmp_path)
    before = torch.get_rng_state()
    load_encoder(tmp_path)
    assert torch.equal(torch.get_rng_state(), before)


def test_weights_may_be_sharded(tiny_bert, save_bert, tmp_path):
    original = tiny_bert()
    save_bert(tmp_path, original)
    (tmp_path / "model.safetensors").unlink()
    original.save_pretrained(tmp_path, max_shard_size="20kB")
    assert len(list(tmp_path.glob("model-*.safetensors"))) > 1
    assert same_output(load_encoder(tmp_path).model, original)


def test_a_real_model_loads_whole(minilm):
    encoder = load_encoder(minilm)
    assert str(encoder.shape) == "6x384:1536/12"
    assert encoder.pooler_trained


def without(*keys):
    return lambda weights: {key: value for key, value in weights.items() if key not in keys}


NORM = "encoder.layer.1.output.LayerNorm.weight"
WORDS = "embeddings.word_embeddings.weight"


@pytest.mark.parametrize(
    ("edit", "key"),
    [
        (without(NORM), NORM),
        (without(WORDS), WORDS),
        (rename(("encoder.layer.2.", "encoder.layer.3.")), "encoder.layer.2."),
        (lambda weights: weights | {"encoder.layer.3.output.dense.bias": torch.ones(32)}, "encoder.layer.3.output.dense.bias"),
        (lambda weights: weights | {NORM: torch.ones(33)}, NORM),
        (rename(("", "electra.")), "embeddings."),
        (without("pooler.dense.bias"), "pooler.dense.bias"),
    ],
    ids=["missing", "missing table", "misnumbered", "superfluous", "misshapen", "unknown prefix", "half a pooler"],
)
def test_weights_that_do_not_fit_are_refused_with_their_name(save_bert, tmp_path, refused, edit, key):
    edit_weights(save_bert(tmp_path), edit)
    with refused(tmp_path, key, "do not belong together"):
        load_encoder(tmp_path)


def test_a_checkpoint_that_has_a_weight_twice_is_refused(save_bert, tmp_path, refused):
    edit_weights(save_bert(tmp_path), lambda weights: weights | {f"bert.{NORM}": torch.zeros(32)})
    with refused(NORM, "twice"):
        load_encoder(tmp_path)


@pytest.mark.parametrize(
    ("layers", "key"), [(2, "encoder.layer.2.attention.output.LayerNorm.bias"), (4, "encoder.layer.3.attention.output.LayerNorm")]
)
def test_another_depth_than_the_configurations_is_refused(save_bert, tmp_path, refused, layers, key):
    edit_config(save_bert(tmp_path), num_hidden_layers=layers)
    with refused(tmp_path, key, "13 more"):
        load_encoder(tmp_path)


def shorten(file):
    file.write_bytes(file.read_bytes()[:-100])


def replace_by_pickle(folder):
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")


def replace_by_pickles(folder):
    (folder / "model.safetensors").rename(folder / "pytorch_model-00001-of-00001.bin")


def shard_index(text):
    def edit(folder):
        (folder / "model.safetensors").unlink()
        (folder / "model.safetensors.index.json").write_text(text)

    return edit


BROKEN = {
    "no config": (lambda folder: (folder / "config.json").unlink(), "no config.json"),
    "broken config": (lambda folder: shorten(folder / "config.json"), "config.json"),
    "no layers": (lambda folder: edit_config(folder, num_hidden_layers=0), "layers"),
    "list of fields": (lambda folder: (folder / "config.json").write_text("[]"), "no fields"),
    "heads that do not divide": (lambda folder: edit_config(folder, num_attention_heads=5), "attention heads (5)"),
    "size that is no number": (lambda folder: edit_config(folder, hidden_size="wide"), "hidden_size"),
    "no weights": (lambda folder: (folder / "model.safetensors").unlink(), "no model.safetensors"),
    "pickle only": (replace_by_pickle, "save_pretrained"),
    "pickles only": (replace_by_pickles, "save_pretrained"),
    "weights of an adapter": (
        lambda folder: (folder / "model.safetensors").rename(folder / "adapter_model.safetensors"),
        "it holds adapter_model.safetensors, config.json",
    ),
    "truncated weights": (lambda folder: shorten(folder / "model.safetensors"), "fetch it again"),
    "broken index": (shard_index("{"), "fetch it again"),
    "index of nothing": (shard_index("{}"), "fetch it again"),
    "index of lists": (shard_index('{"weight_map": ["model-1.safetensors"]}'), "fetch it again"),
    "index that is a list": (shard_index('["weight_map"]'), "fetch it again"),
    "index of numbers": (shard_index('{"weight_map": {"a": 1}}'), "fetch it again"),
    "index of nested brackets": (shard_index("[" * 100_000), "fetch it again"),
    "index that leads up": (shard_index('{"weight_map": {"a": "../model.safetensors"}}'), "outside"),
    "index that leads elsewhere": (shard_index('{"weight_map": {"a": "/model.safetensors"}}'), "outside"),
    "missing shard": (shard_index('{"weight_map": {"a": "model-1.safetensors"}}'), "model-1.safetensors"),
    "no tokenizer": (lambda folder: (folder / "tokenizer.json").unlink(), "no tokenizer"),
    "broken tokenizer": (lambda folder: shorten(folder / "tokenizer.json"), "no tokenizer"),
    "strange tokenizer": (lambda folder: (folder / "tokenizer.json").write_text("[]"), "no tokenizer"),
}


@pytest.mark.parametrize(("damage", "words"), BROKEN.values(), ids=BROKEN.keys())
def test_a_folder_that_is_no_whole_encoder_is_refused(save_bert, tmp_path, refused, damage, words):
    damage(save_bert(tmp_path))
    with refused(tmp_path, words):
        load_encoder(tmp_path)


def test_an_unsupported_kind_of_model_is_refused_with_those_that_are_supported(save_bert, tmp_path, refused):
    GPT2Config().save_pretrained(save_bert(tmp_path))
    with refused("gpt2", "supported: bert"):
        load_encoder(tmp_path)
    edit_config(tmp_path, model_type="distillatron")
    with refused("distillatron", "supported: bert"):
        load_encoder(tmp_path)


def test_code_that_a_folder_brings_is_refused_without_a_question(save_bert, tmp_path, monkeypatch, refused):
    monkeypatch.setattr("builtins.input", lambda *_: pytest.fail("a question was asked"))
    edit_config(save_bert(tmp_path), model_type="distillatron", auto_map={"AutoConfig": "code.Config"})
    with refused(tmp_path, "code of its own"):
        load_encoder(tmp_path)


@pytest.mark.parametrize("name", ["AutoModel", "AutoConfig"])
def test_code_for_a_supported_family_is_refused_as_well(save_bert, tmp_path, refused, name):
    edit_config(save_bert(tmp_path), auto_map={name: "code.Model"})
    with refused(tmp_path, "auto_map", "supported: bert"):
        load_encoder(tmp_path)


def test_code_for_a_tasks_head_is_passed_over(save_bert, tmp_path):
    edit_config(save_bert(tmp_path), auto_map={"AutoModelForSequenceClassification": "code.Model"})
    assert load_encoder(tmp_path).shape.layers == 3


def test_a_tokenizer_with_more_ids_than_the_model_has_rows_is_refused(save_bert, tmp_path, tiny_tokenizer, refused):
    tiny_tokenizer.add_tokens(["limbeck"])
    rows = len(tiny_tokenizer) - 1
    save_bert(tmp_path, tokenizer=tiny_tokenizer)
    with refused(tmp_path, f"ids up to {rows}", f"only {rows} embedding rows"):
        load_encoder(tmp_path)


@pytest.mark.parametrize(
    "name",
    [
        "missing",
        "./missing",
        "../missing",
        "runs/missing/student",
        "owner/missing",
        "a--b",
        "file.txt",
        "~nobody-here/model",
        "x" * 5000,
    ],
)
def test_what_is_no_folder_and_no_reachable_hub_model_is_refused(tmp_path, monkeypatch, refused, name):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file.txt").write_text("text")
    with refused(f"There is no model folder '{name}'"):
        load_encoder(name)


# Layouts


def sentence_transformer(folder, path, first):
    """Write the files in which sentence-transformers says what a model is made of."""
    modules = [
        {"idx": 0, "name": "0", "path": path, "type": first},
        {"idx": 1, "name": "1", "path": "1_Pooling", "type": "sentence_transformers.models.Pooling"},
    ]
    (folder / "modules.json").write_text(json.dumps(modules))
    (folder / "1_Pooling").mkdir()
    (folder / "1_Pooling" / "config.json").write_text("{}")


@pytest.mark.parametrize(
    ("given", "expected"), [(16, 16), (10**30, 64), (-1, 64), (0, 64), (True, 64), ("16", 64), ([16], 64), (16.0, 16)]
)
def test_a_tokenizer_lets_pass_what_the_model_takes_whatever_its_file_says(save_bert, tmp_path, given, expected):
    folder = save_bert(tmp_path)
    settings = json.loads((folder / "tokenizer_config.json").read_text())
    (folder / "tokenizer_config.json").write_text(json.dumps({**settings, "model_max_length": given}))
    assert load_encoder(folder).tokenizer.model_max_length == expected


@pytest.mark.parametrize("field", ["num_attention_heads", "hidden_size"])
def test_a_model_without_width_or_heads_is_refused(save_bert, tmp_path, field, refused):
    folder = save_bert(tmp_path)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, field: 0}))
    with refused("no width or no attention heads"):
        load_encoder(folder)


@pytest.mark.parametrize("path", ["", "0_Transformer"])
@pytest.mark.parametrize(
    "first", ["sentence_transformers.models.Transformer", "sentence_transformers.base.modules.transformer.Transformer"]
)
def test_a_sentence_transformer_of_either_layout_gives_its_transformer(tiny_bert, save_bert, tmp_path, path, first):
    original = tiny_bert()
    save_bert(tmp_path / path, original)
    sentence_transformer(tmp_path, path, first)
    encoder = load_encoder(tmp_path)
    assert same_output(encoder.model, original)
    assert encoder.source == str(tmp_path)


def test_what_sentence_transformers_saves_is_read(tiny_bert, save_bert, tmp_path):
    sentence_transformers = pytest.importorskip("sentence_transformers")
    original = tiny_bert()
    sentence_transformers.SentenceTransformer(str(save_bert(tmp_path / "plain", original)), device="cpu").save(
        str(tmp_path / "saved")
    )
    assert (tmp_path / "saved" / "modules.json").is_file()
    assert same_output(load_encoder(tmp_path / "saved").model, original)


def test_sentence_embeddings_without_a_transformer_are_refused(save_bert, tmp_path, refused):
    sentence_transformer(save_bert(tmp_path), "", "sentence_transformers.models.StaticEmbedding")
    with refused(tmp_path, "StaticEmbedding", "give an encoder"):
        load_encoder(tmp_path)


@pytest.mark.parametrize(
    "text",
    ["", "{", "[]", "{}", "3", "[3]", '[{"path": ""}]', '[{"type": "x.Transformer"}]']
    + [json.dumps([{"type": "x.Transformer", "path": path}]) for path in (3, None, "..", "../other", "/", "a\0b", "missing")],
)
def test_a_list_of_modules_that_leads_nowhere_is_refused(save_bert, tmp_path, refused, text):
    (save_bert(tmp_path / "model") / "modules.json").write_text(text)
    save_bert(tmp_path / "other")
    with refused(tmp_path / "model"):
        load_encoder(tmp_path / "model")


def test_a_runs_directory_stands_for_its_student(save_bert, tmp_path, tiny_tokenizer):
    (tmp_path / "text.txt").write_text("a drop of spirit in the still\n" * 40)
    recipe = {"corpus": tmp_path / "text.txt", "student": "2x16/4", "steps": 1, "batch_size": 2, "max_length": 16}
    first = limbeck.distill(save_bert(tmp_path / "teacher"), **recipe, output=tmp_path / "first", quiet=True)
    encoder = load_encoder(first.path)
    assert encoder.source == str(first.path)
    assert same_weights(encoder.model, load_encoder(first.student).model)
    second = limbeck.distill(first.path, **recipe, init=first.path, output=tmp_path / "second", quiet=True)
    assert str(load_encoder(second.path).shape) == "2x16:64/4"


def test_a_run_without_a_student_is_refused_with_what_lies_there(save_bert, tmp_path, refused):
    save_bert(tmp_path / "models" / "2x16")
    (tmp_path / "recipe.yaml").write_text("student: 2x16\n")
    with refused(tmp_path, "no student", Path("models") / "2x16"):
        load_encoder(tmp_path)


def test_a_folder_above_models_is_refused_with_the_models_in_it(save_bert, tmp_path, refused):
    for step in range(7):
        save_bert(tmp_path / f"checkpoint-{step}")
    with refused(tmp_path, "no config.json", "there are models in checkpoint-0, checkpoint-1", "and 2 more"):
        load_encoder(tmp_path)


def test_an_empty_folder_is_refused(tmp_path, refused):
    with refused(tmp_path, "it holds nothing"):
        load_encoder(tmp_path)


# The hub


@pytest.fixture
def hub(monkeypatch, tmp_path):
    """Let the hub's address be one on this machine, with nothing fetched before."""

    def use(endpoint):
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
        monkeypatch.setattr(constants, "ENDPOINT", endpoint)
        monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))

    return use


@pytest.mark.parametrize("endpoint", ["nonsense", "http://[::", "", "http://127.0.0.1:1"])
def test_an_address_of_the_hub_that_leads_nowhere_is_refused(hub, refused, endpoint):
    hub(endpoint)
    with refused("There is no model folder 'owner/model'", "HF_ENDPOINT"):
        load_encoder("owner/model")


@pytest.mark.parametrize(
    ("status", "code", "remedy"),
    [
        (401, "GatedRepo", "ask for access"),
        (403, "GatedRepo", "hf auth login"),
        (401, "RepoNotFound", "check the spelling"),
        (404, "RepoNotFound", "hf auth login"),
        (503, "", "cannot be reached"),
        (200, "", "cannot be reached"),
    ],
)
def test_a_hub_that_does_not_give_the_model_says_what_to_do(hub, refused, status, code, remedy):
    with answering(status, code) as endpoint:
        hub(endpoint)
        with refused("There is no model folder 'owner/model'", remedy):
            load_encoder("owner/model")


def test_a_hub_that_never_answers_is_not_waited_for(hub, monkeypatch, refused):
    monkeypatch.setattr(folders, "HUB_SECONDS", 0.1)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        hub(f"http://127.0.0.1:{silent.getsockname()[1]}")
        with refused("There is no model folder 'owner/model'", "cannot be reached"):
            load_encoder("owner/model")


def test_without_leave_to_fetch_nothing_is_fetched(refused):
    with refused("There is no model folder 'owner/model'", "HF_HUB_OFFLINE"):
        load_encoder("owner/model")


def test_a_model_that_was_fetched_before_needs_no_hub(hub, tiny_bert, save_bert, tmp_path):
    hub("nonsense")
    original = tiny_bert()
    repository = tmp_path / "cache" / "models--owner--model"
    save_bert(repository / "snapshots" / ("0" * 40), original)
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text("0" * 40)
    assert same_output(load_encoder("owner/model").model, original)


# Tokenizers


def test_equal_tokenizers_pass(make_tokenizer, tmp_path, save_bert):
    check_same_tokenizer(make_tokenizer(), make_tokenizer())
    check_same_tokenizer(make_tokenizer(), load_encoder(save_bert(tmp_path)).tokenizer)


def test_tokens_in_another_order_are_refused_by_name(make_tokenizer, refused):
    vocabulary = make_tokenizer().get_vocab()
    a, b = vocabulary["copper"], vocabulary["still"]
    vocabulary |= {"copper": b, "still": a}
    with refused("do not share a tokenizer", "2 tokens", f"'copper' ({a} and {b})", f"'still' ({b} and {a})"):
        check_same_tokenizer(make_tokenizer(), make_tokenizer(sorted(vocabulary, key=vocabulary.get)))


def test_further_tokens_are_refused_by_name(make_tokenizer, refused):
    vocabulary = list(make_tokenizer().get_vocab())
    with refused("1 tokens", f"'limbeck' (none and {len(vocabulary)})"):
        check_same_tokenizer(
            make_tokenizer(), make_tokenizer([*sorted(vocabulary, key=make_tokenizer().get_vocab().get), "limbeck"])
        )


@pytest.mark.parametrize(
    ("settings", "difference"),
    [({"do_lower_case": False}, "becomes"), ({"cls_token": "[MASK]", "mask_token": "[CLS]"}, "special tokens")],
    ids=["casing", "special tokens"],
)
def test_other_settings_of_the_same_vocabulary_are_refused(make_tokenizer, refused, settings, difference):
    with refused("do not share a tokenizer", difference, "--init"):
        check_same_tokenizer(make_tokenizer(), make_tokenizer(**settings))


# Students


@pytest.fixture
def teacher(save_bert, tmp_path):
    return load_encoder(save_bert(tmp_path / "teacher", num_hidden_layers=6))


def layer_weights(encoder, layer):
    return encoder.model.encoder.layer[layer - 1].state_dict()


@pytest.mark.parametrize(("init", "cut"), [("layers", [1, 4, 6]), ("layers:1,3,6", [1, 3, 6]), ("layers:2,3,4", [2, 3, 4])])
def test_a_cut_student_has_exactly_the_chosen_layers_and_all_that_stands_around_them(teacher, init, cut):
    student = build_student(teacher, StudentShape(3, 32), init, seed=0)
    assert str(student.shape) == "3x32:128/4"
    assert student.source == f"layers {', '.join(map(str, cut))} of the teacher"
    assert student.pooler_trained
    expected = {key: value for key, value in teacher.model.state_dict().items() if not key.startswith("encoder.layer.")}
    for place, layer in enumerate(cut):
        expected |= {f"encoder.layer.{place}.{key}": value for key, value in layer_weights(teacher, layer).items()}
    weights = student.model.state_dict()
    assert weights.keys() == expected.keys()
    assert all(torch.equal(weights[key], expected[key]) for key in weights)


def test_a_student_cut_whole_computes_what_the_teacher_does(teacher):
    assert same_output(build_student(teacher, StudentShape(6, 32), "layers", seed=0).model, teacher.model)


def test_the_default_cut_ascends_from_the_first_layer_to_the_last():
    assert default_cut(6, 3) == [1, 4, 6]
    assert default_cut(12, 6) == [1, 3, 5, 8, 10, 12]  # as in DistilBERT
    for teacher in range(1, 50):
        assert default_cut(teacher, 1) == [teacher]
        for student in range(2, teacher + 1):
            cut = default_cut(teacher, student)
            gaps = {after - before for before, after in pairwise(cut)}
            assert len(cut) == student
            assert (cut[0], cut[-1]) == (1, teacher)
            assert min(gaps) > 0
            assert max(gaps) - min(gaps) <= 1


@pytest.mark.parametrize("init", ["layers:1,2", "layers:1,2,3,4", "layers:1,3,2", "layers:1,1,2", "layers:0,1,2", "layers:1,2,7"])
def test_layers_that_cannot_be_cut_are_refused(refused, init):
    with refused(init, "name 3 of the teacher's layers 1 to 6"):
        chosen_layers(init, teacher_layers=6, student_layers=3)


def test_a_cut_that_is_not_understood_is_refused(refused):
    with refused("layers:a,b", "layers:1,3,6"):
        chosen_layers("layers:a,b", teacher_layers=6, student_layers=3)


def test_a_student_deeper_than_its_teacher_cannot_be_cut_from_it(refused):
    with refused("7 layers", "teacher of 6", "--init random"):
        chosen_layers("layers", teacher_layers=6, student_layers=7)


@pytest.mark.parametrize("shape", [StudentShape(3, 16), StudentShape(3, 32, feed_forward=64), StudentShape(3, 32, heads=8)])
def test_layers_of_another_size_cannot_be_cut(teacher, refused, shape):
    with refused("6x32:128/4", "must be equal", "--init random"):
        build_student(teacher, shape, "layers", seed=0)


def test_random_weights_follow_from_the_seed_alone(teacher):
    def student(seed):
        return build_student(teacher, StudentShape(2, 16), "random", seed).model

    torch.manual_seed(1)
    first = student(0)
    torch.manual_seed(2)
    assert same_weights(first, student(0))
    assert not same_weights(first, student(1))


def test_building_leaves_the_random_state_alone(teacher, device):
    state = torch.get_rng_state if device.type == "cpu" else torch.cuda.get_rng_state
    before = state()
    for init in ("random", "layers"):
        build_student(teacher, StudentShape(2, 32), init, seed=3)
    assert torch.equal(state(), before)


def test_a_random_student_knows_that_its_pooler_is_untrained(teacher):
    student = build_student(teacher, StudentShape(2, 16), "random", seed=0)
    assert not student.pooler_trained
    assert student.source == "random"


def test_a_student_may_begin_as_an_earlier_one(teacher, save_bert, tiny_bert, tmp_path):
    earlier = tiny_bert(seed=1, num_hidden_layers=2)
    student = build_student(teacher, StudentShape(2, 32), str(save_bert(tmp_path / "earlier", earlier)), seed=0)
    assert same_output(student.model, earlier)


@pytest.mark.parametrize("shape", [StudentShape(2, 36), StudentShape(2, 36, 72), StudentShape(2, 36, None, 9)])
def test_what_the_shape_leaves_open_is_the_earlier_students(teacher, save_bert, tmp_path, shape):
    sizes = {"hidden_size": 36, "intermediate_size": 72, "num_attention_heads": 9, "num_hidden_layers": 2}
    earlier = save_bert(tmp_path / "earlier", **sizes)
    assert str(build_student(teacher, shape, str(earlier), seed=0, teacher_heads=True).shape) == "2x36:72/9"


@pytest.mark.parametrize(
    ("shape", "asked"),
    [
        (StudentShape(3, 32), "3x32:128/4"),
        (StudentShape(2, 16), "2x16:128/4"),
        (StudentShape(2, 32, 64), "2x32:64/4"),
        (StudentShape(2, 32, None, 8), "2x32:128/8"),
    ],
)
def test_an_earlier_student_of_another_shape_is_refused(teacher, save_bert, tmp_path, refused, shape, asked):
    earlier = save_bert(tmp_path / "earlier", num_hidden_layers=2)
    with refused(earlier, "2x32:128/4", asked):
        build_student(teacher, shape, str(earlier), seed=0)


def test_an_earlier_student_with_another_tokenizer_is_refused(teacher, save_bert, make_tokenizer, tmp_path, refused):
    earlier = save_bert(tmp_path / "earlier", tokenizer=make_tokenizer(do_lower_case=False), num_hidden_layers=2)
    with refused("do not share a tokenizer"):
        build_student(teacher, StudentShape(2, 32), str(earlier), seed=0)


@pytest.mark.parametrize("init", ["random", "layers"])
def test_a_student_shares_nothing_with_its_teacher(teacher, init):
    config, weights = teacher.model.config.to_dict(), {k: v.clone() for k, v in teacher.model.state_dict().items()}
    student = build_student(teacher, StudentShape(2, 32), init, seed=0)
    configs = [module.config for module in student.model.modules() if hasattr(module, "config")]
    assert all(config is not teacher.model.config for config in configs)
    with torch.no_grad():
        for parameter in student.model.parameters():
            parameter += 1
    student.model.config.hidden_dropout_prob = 0.9
    student.model.train()
    assert teacher.model.config.to_dict() == config
    assert all(torch.equal(value, weights[key]) for key, value in teacher.model.state_dict().items())
    assert not any(module.training for module in teacher.model.modules())


def test_a_student_loads_again_as_a_teacher(teacher, tmp_path):
    student = build_student(teacher, StudentShape(2, 32), "layers", seed=0)
    student.model.save_pretrained(tmp_path / "student")
    student.tokenizer.save_pretrained(tmp_path / "student")
    again = load_encoder(tmp_path / "student")
    assert same_output(again.model, student.model)
    assert str(again.shape) == str(student.shape)


def test_a_new_encoder_is_in_evaluation_mode(teacher):
    assert not new_encoder(teacher.model.config, teacher.tokenizer, seed=0).model.training
