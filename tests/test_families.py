"""What holds for every family of encoders: its features, positions, segments, tokenizers, checkpoints and students."""

import json
from dataclasses import dataclass
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer
from torch.nn.functional import linear
from transformers import RobertaConfig, XLMRobertaConfig

import limbeck
from limbeck import capture
from limbeck.encoders.capture import Capture
from limbeck.encoders.loading import check_same_tokenizer, load_encoder
from limbeck.encoders.shape import EncoderShape, StudentShape
from limbeck.encoders.students import build_student

CLASSES = {"bert": "Bert", "roberta": "Roberta", "xlm-roberta": "XLMRoberta"}
TASKS = ["ForMaskedLM", "ForSequenceClassification", "ForTokenClassification", "ForQuestionAnswering", "ForMultipleChoice"]
TEXTS = ["The still is warm.", "Copper, glass and a very slow fire over 12 large stones", "a"]
PROJECTIONS = {"q": "query", "k": "key", "v": "value"}


@dataclass
class Kind:
    """One family with a tokenizer of its kind, and how to make tiny models of it."""

    model_type: str
    tokenizer: Any
    make: Any
    """(name of a class without its family's, settings) -> model"""
    save: Any

    def batch(self, **settings):
        return self.tokenizer(TEXTS, padding=True, return_tensors="pt", **settings)


@pytest.fixture(params=CLASSES)
def kind(request, tiny_bert, tiny_fairseq, tiny_tokenizer, bpe_tokenizer, unigram_tokenizer):
    tokenizer = {"bert": tiny_tokenizer, "roberta": bpe_tokenizer, "xlm-roberta": unigram_tokenizer}[request.param]
    save = request.getfixturevalue("save_" + request.param.replace("-", "_"))

    def make(name="Model", **settings):
        model_class = getattr(transformers, CLASSES[request.param] + name)
        if request.param == "bert":
            return tiny_bert(model_class, **settings)
        return tiny_fairseq(model_class, tokenizer, **settings)

    return Kind(request.param, tokenizer, make, save)


# Features


@pytest.mark.parametrize("name", ["Model", "ForMaskedLM"])
def test_features_are_projections_of_the_hidden_states_of_every_layer(kind, name):
    model, batch = kind.make(name), kind.batch()
    assert not batch["attention_mask"].all()
    hidden = model(**batch, output_hidden_states=True).hidden_states
    features = capture(model, batch, {"q": [1, 2, 3], "k": [1, 2, 3], "v": [1, 2, 3], "hidden": [0, 1, 2, 3]})
    assert all(torch.equal(features["hidden"][layer], hidden[layer]) for layer in range(4))
    for feature, name in PROJECTIONS.items():
        for layer in (1, 2, 3):
            module = getattr(model.base_model.encoder.layer[layer - 1].attention.self, name)
            torch.testing.assert_close(features[feature][layer], linear(hidden[layer - 1], module.weight, module.bias))


def test_padding_changes_no_feature_of_a_token(kind):
    model = kind.make()
    padded = capture(model, kind.batch(), {"q": 3})["q"]
    for row, text in enumerate(TEXTS):
        alone = capture(model, kind.tokenizer([text], return_tensors="pt"), {"q": 3})["q"]
        torch.testing.assert_close(padded[row, : alone.shape[1]], alone[0])


# Segments


def test_segments_reach_only_an_encoder_that_has_several(kind):
    pairs = kind.tokenizer(TEXTS, ["glass"] * 3, padding=True, return_tensors="pt")
    ids, mask = pairs["input_ids"], pairs["attention_mask"]
    segments = torch.zeros_like(ids)
    segments[:, 5:] = 1
    for count in (1, 2):
        model = kind.make(type_vocab_size=count)
        reader = Capture(model, {"hidden": [3]})
        read = reader(input_ids=ids, attention_mask=mask, token_type_ids=segments).only("hidden")
        plain = reader(input_ids=ids, attention_mask=mask).only("hidden")
        own = {"token_type_ids": segments} if count > 1 else {}
        assert torch.equal(read, model(input_ids=ids, attention_mask=mask, **own).last_hidden_state)
        assert torch.equal(read, plain) == (count == 1)


# Positions


@pytest.mark.parametrize(
    ("config", "rows", "padding", "tokens"),
    [
        (RobertaConfig, 514, 1, 512),
        (RobertaConfig, 514, 3, 510),
        (XLMRobertaConfig, 514, 1, 512),
        (XLMRobertaConfig, 8194, 1, 8192),
    ],
)
def test_positions_that_begin_behind_the_padding_index_carry_fewer_tokens_than_there_are_rows(config, rows, padding, tokens):
    assert EncoderShape.of(config(max_position_embeddings=rows, pad_token_id=padding)).positions == tokens


def test_as_many_tokens_as_there_are_positions_can_be_encoded_and_not_one_more(kind, refused):
    model = kind.make()
    positions = EncoderShape.of(model.config).positions
    assert positions == 64
    ids = torch.full((2, positions), kind.tokenizer.mask_token_id)
    features = capture(model, {"input_ids": ids}, {"hidden": 3})["hidden"]
    assert torch.equal(features, model(input_ids=ids).last_hidden_state)
    longer = torch.cat([ids, ids[:, :1]], dim=1)
    with pytest.raises((IndexError, RuntimeError)):
        model(input_ids=longer)
    with refused("65 tokens", "max_length=64"):
        capture(model, {"input_ids": longer}, {"hidden": 3})


def test_a_run_may_use_every_position_and_not_one_more(kind, sample_text, tmp_path, refused):
    teacher = kind.save(tmp_path / "teacher")
    (tmp_path / "text.txt").write_text("\n".join(sample_text[:20]))
    recipe = {"student": "2x16/4", "corpus": tmp_path / "text.txt", "steps": 1, "batch_size": 2, "precision": "float32"}
    with refused("65", "only 64 positions"):
        limbeck.distill(teacher, **recipe, max_length=65, output=tmp_path / "longer", quiet=True)
    run = limbeck.distill(teacher, **recipe, max_length=64, output=tmp_path / "run", quiet=True)
    assert load_encoder(run.student).shape.positions == 64


# Checkpoints


def output(model, tokenizer):
    with torch.no_grad():
        return model(**tokenizer(TEXTS, padding=True, return_tensors="pt")).last_hidden_state


def rewrite_weights(folder, edit):
    file = folder / "model.safetensors"
    save_file({name: value.contiguous() for name, value in edit(load_file(file)).items()}, file, metadata={"format": "pt"})


@pytest.mark.parametrize("task", TASKS)
def test_a_task_model_gives_its_encoder_and_its_students_know_nothing_of_the_task(kind, tmp_path, task):
    original = kind.make(
        task, num_labels=5, problem_type="multi_label_classification", auto_map={"AutoModelForMaskedLM": "code.Model"}
    )
    teacher = load_encoder(kind.save(tmp_path, original))
    assert type(teacher.model).__name__ == CLASSES[kind.model_type] + "Model"
    assert torch.equal(output(teacher.model, kind.tokenizer), output(original.base_model, kind.tokenizer))
    assert teacher.pooler_trained == (original.base_model.pooler is not None)
    for init in ("random", "layers", str(tmp_path)):
        config = build_student(teacher, StudentShape(3, 32), init, seed=0).model.config
        saved = config.to_diff_dict().keys()
        assert not saved & {"id2label", "label2id", "num_labels", "problem_type", "auto_map"}
        assert task not in str(config.architectures)


def old_norms(weights):
    return {
        name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta"): value
        for name, value in weights.items()
    }


def test_old_key_names_give_the_original_model(kind, tmp_path):
    original = kind.make()
    prefix = f"module.{original.base_model_prefix}."
    positions = {"embeddings.position_ids": torch.arange(original.config.max_position_embeddings)[None]}

    def age(weights):
        return {prefix + name: value for name, value in (old_norms(weights) | positions).items()}

    rewrite_weights(kind.save(tmp_path, original), age)
    teacher = load_encoder(tmp_path)
    assert teacher.pooler_trained
    assert torch.equal(output(teacher.model, kind.tokenizer), output(original, kind.tokenizer))


@pytest.mark.parametrize(
    "name", ["embeddings.position_embeddings.weight", "encoder.layer.2.attention.self.key.bias", "pooler.dense.bias"]
)
def test_a_missing_weight_is_refused_by_name(kind, tmp_path, refused, name):
    rewrite_weights(kind.save(tmp_path), lambda weights: {key: value for key, value in weights.items() if key != name})
    with refused(tmp_path, f"lacks {name}"):
        load_encoder(tmp_path)


# Tokenizers


def rebuilt(tokenizer, edit):
    """A tokenizer with an edited model: merges, or pieces with their scores."""
    state = json.loads(tokenizer.backend_tokenizer.to_str())
    edit(state["model"])
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer.from_str(json.dumps(state)), **tokenizer.special_tokens_map
    )


def test_a_tokenizer_is_the_same_after_saving_and_loading(kind, tmp_path):
    loaded = load_encoder(kind.save(tmp_path)).tokenizer
    check_same_tokenizer(kind.tokenizer, loaded)
    assert loaded(TEXTS)["input_ids"] == kind.tokenizer(TEXTS)["input_ids"]


def test_equal_vocabularies_in_another_order_are_refused_by_token(bpe_tokenizer, unigram_tokenizer, refused):
    def swap_bpe(model):
        model["vocab"]["a"], model["vocab"]["b"] = model["vocab"]["b"], model["vocab"]["a"]

    def swap_unigram(model):
        pieces = model["vocab"]
        pieces[10], pieces[11] = pieces[11], pieces[10]

    for tokenizer, swap in ((bpe_tokenizer, swap_bpe), (unigram_tokenizer, swap_unigram)):
        other = rebuilt(tokenizer, swap)
        first = next(token for token, place in sorted(tokenizer.get_vocab().items()) if other.get_vocab()[token] != place)
        with refused("2 tokens", repr(first)):
            check_same_tokenizer(tokenizer, other)


def test_equal_vocabularies_with_other_merges_or_scores_are_refused_by_the_first(bpe_tokenizer, unigram_tokenizer, refused):
    def last_merges(model):
        model["merges"][-2:] = model["merges"][:-3:-1]

    def last_score(model):
        model["vocab"][-2][1] -= 0.5

    for tokenizer, edit in ((bpe_tokenizer, last_merges), (unigram_tokenizer, last_score)):
        other = rebuilt(tokenizer, edit)
        assert other.get_vocab() == tokenizer.get_vocab()
        check_same_tokenizer(tokenizer, rebuilt(tokenizer, lambda model: None))
        with refused("other rules", "--init"):
            check_same_tokenizer(tokenizer, other)


@pytest.mark.parametrize("pad", [0, 2, None])
def test_a_padding_id_that_is_not_the_models_is_refused_where_positions_are_counted_from_it(save_roberta, tmp_path, refused, pad):
    with refused(tmp_path, "pads with id 1", f"is {pad}", "positions"):
        load_encoder(save_roberta(tmp_path, pad_token_id=pad))


def test_a_padding_id_that_is_not_the_models_does_no_harm_elsewhere(save_bert, tmp_path):
    assert load_encoder(save_bert(tmp_path, pad_token_id=3)).shape.positions == 64


def test_a_tokenizer_of_another_family_with_too_many_ids_is_refused(
    save_xlm_roberta, tiny_fairseq, bpe_tokenizer, tmp_path, refused
):
    model = tiny_fairseq(transformers.XLMRobertaModel, bpe_tokenizer, vocab_size=300)
    with refused(tmp_path, "ids up to 399", "only 300 embedding rows"):
        load_encoder(save_xlm_roberta(tmp_path, model, bpe_tokenizer))


def test_a_tokenizer_of_two_files_is_read_and_half_of_it_is_refused(save_roberta, bpe_tokenizer, tmp_path, refused):
    save_roberta(tmp_path)
    (tmp_path / "tokenizer.json").unlink()
    bpe_tokenizer.backend_tokenizer.model.save(str(tmp_path))
    check_same_tokenizer(bpe_tokenizer, load_encoder(tmp_path).tokenizer)
    (tmp_path / "merges.txt").unlink()
    with refused(tmp_path, "no tokenizer", "tokenizer.json"):
        load_encoder(tmp_path)


# Students


@pytest.mark.parametrize(("shape", "init"), [("2x16/4", "random"), ("2x32", "layers:1,3")])
def test_a_student_is_of_its_teachers_family_and_survives_saving(kind, tmp_path, shape, init):
    teacher = load_encoder(kind.save(tmp_path / "teacher"))
    student = build_student(teacher, StudentShape.parse(shape), init, seed=1)
    assert type(student.model) is type(teacher.model)
    assert student.shape.positions == teacher.shape.positions
    assert student.model.config.max_position_embeddings == teacher.model.config.max_position_embeddings
    again = load_encoder(kind.save(tmp_path / "student", student.model))
    assert again.shape == student.shape
    assert torch.equal(output(again.model, kind.tokenizer), output(student.model, kind.tokenizer))
    cut = build_student(again, StudentShape(1, student.shape.width), "layers", seed=0)
    assert cut.shape.layers == 1


def test_an_encoder_of_one_family_may_start_a_student_of_another_with_the_same_tokenizer(
    save_roberta, save_bert, tiny_bert, bpe_tokenizer, tmp_path
):
    teacher = load_encoder(save_roberta(tmp_path / "teacher"))
    start = save_bert(tmp_path / "start", tiny_bert(vocab_size=400, num_hidden_layers=2), bpe_tokenizer)
    assert build_student(teacher, StudentShape(2, 32), str(start), seed=0).shape.model_type == "bert"
