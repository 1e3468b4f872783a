"""What holds for every family in the table: features, attention, loading, students, distillation, and what is left out."""

import copy
import json

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModel, AutoModelForSequenceClassification, AutoTokenizer

import limbeck
from conftest import TINY, noisy
from kinds import KINDS, TEXTS
from limbeck import MiniLM, MiniLMv2, capture
from limbeck.encoders.attention import use_own_attention
from limbeck.encoders.capture import Capture
from limbeck.encoders.configuration import student_config
from limbeck.encoders.cost import capture_flops, count_parameters, flop_counter, layer_flops
from limbeck.encoders.families import FAMILIES, family_of
from limbeck.encoders.loading import check_same_tokenizer, load_encoder
from limbeck.encoders.shape import EncoderShape, StudentShape
from limbeck.encoders.stand_ins import LeftOut
from limbeck.encoders.students import build_student
from limbeck.tasks.heads import answer_head, load_sentence_head
from limbeck.training.export import export_student
from limbeck.training.reach import modules_of
from limbeck.training.stage import Teacher, keep_no_activations, set_dropout
from runs import equal

WITH_SCORES = [name for name in KINDS if name != "deberta-v2"]


@pytest.fixture
def make(request):
    """Build a tiny model of a family with its tokenizer."""

    def build(name, **settings):
        tokenizer = request.getfixturevalue(KINDS[name].tokenizer)
        return KINDS[name].model(tokenizer, **settings), tokenizer

    return build


@pytest.fixture
def save(make, save_bert):
    """Write a tiny model of a family with its tokenizer."""

    def write(name, folder, **settings):
        return save_bert(folder, *make(name, **settings))

    return write


def batch_of(model, tokenizer, texts=TEXTS):
    batch = tokenizer(texts, padding=True, return_tensors="pt")
    if EncoderShape.of(model.config).segments < 2:
        batch.pop("token_type_ids", None)
    return batch


def test_every_family_in_the_table_is_tested_here():
    assert [name for family in FAMILIES for name in family.model_types] == [*KINDS]


# Features


@pytest.mark.parametrize("name", KINDS)
def test_features_are_what_a_projection_by_hand_gives(make, name):
    model, tokenizer = make(name)
    batch, family = batch_of(model, tokenizer), family_of(model.config)
    assert not batch["attention_mask"].all()
    states = model(**batch, output_hidden_states=True).hidden_states
    layers = [1, 2, 3]
    features = capture(model, batch, {"q": layers, "k": layers, "v": layers, "hidden": [0, *layers]})
    assert all(torch.equal(features["hidden"][layer], states[layer]) for layer in range(3))
    last = features["hidden"][3]
    if KINDS[name].norm:  # transformers counts the norm behind the layers in
        last = model.get_submodule("final_norm" if name == "modernbert" else "norm")(last)
    assert torch.equal(last, states[3])
    for layer in layers:
        module = family.layer_list(model)[layer - 1]
        entering = states[layer - 1] if KINDS[name].norm is None else module.get_submodule(KINDS[name].norm)(states[layer - 1])
        projected = {feature: module.get_submodule(path)(entering) for feature, path in family.projections.items()}
        if name == "modernbert":
            projected = dict(zip("qkv", projected["q"].split(32, dim=-1), strict=True))
        for feature, expected in projected.items():
            torch.testing.assert_close(features[feature][layer], expected, rtol=1e-5, atol=1e-6)
            assert expected.shape[-1] == EncoderShape.of(model.config).feature_width(feature)


def distributions(attention, heads):
    """The attention distributions of rebuilt scores, (batch, heads, n, n)."""
    q, k = (each.view(*each.shape[:2], heads, -1).transpose(1, 2) for each in (attention.q, attention.k))
    scores = q @ k.transpose(2, 3) / q.shape[-1] ** 0.5
    scores = scores if attention.bias is None else scores + attention.bias
    if attention.pair_mask is not None:
        scores = scores.masked_fill(~attention.pair_mask, -torch.inf)
    return scores


@pytest.mark.parametrize("name", WITH_SCORES)
def test_rebuilt_attention_equals_the_models_own_maps(make, name):
    model, tokenizer = make(name)
    eager = copy.deepcopy(model)
    eager.set_attn_implementation("eager")
    batch = batch_of(model, tokenizer)
    maps = eager(**batch, output_attentions=True).attentions
    shape, mask = EncoderShape.of(model.config), batch["attention_mask"].bool()
    for layer in (1, 2, 3):
        features = Capture(model, dict.fromkeys(shape.attention_features, (layer,)))(**batch)
        scores = distributions(features.attention(), shape.heads).masked_fill(~mask[:, None, None], -torch.inf)
        expected = maps[layer - 1] * mask[:, None, :, None]
        found = scores.softmax(-1).nan_to_num() * mask[:, None, :, None]
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("name", KINDS)
def test_padding_changes_no_feature_of_a_token(make, name):
    model, tokenizer = make(name)
    padded = capture(model, batch_of(model, tokenizer), {"q": 3})["q"]
    for row, text in enumerate(TEXTS):
        alone = capture(model, batch_of(model, tokenizer, [text]), {"q": 3})["q"]
        torch.testing.assert_close(padded[row, : alone.shape[1]], alone[0], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", KINDS)
def test_nothing_beyond_the_deepest_feature_is_computed(make, name):
    model, tokenizer = make(name)
    batch = batch_of(model, tokenizer, ["copper " * 8])
    shape, length = EncoderShape.of(model.config), batch["input_ids"].shape[1]

    def counted(layer):
        with torch.no_grad(), flop_counter() as counter:
            capture(model, batch, dict.fromkeys("qkv", layer))
        return counter.get_total_flops()

    with torch.no_grad(), flop_counter() as counter:
        model(**batch)
    assert counted(1) < counted(2) < counted(3) < counter.get_total_flops()
    if name != "deberta-v2":  # whose attention computes more than the formula has
        assert counted(3) - counted(2) == layer_flops(shape, 1, length)
        assert counted(3) - counted(1) == capture_flops(shape, 3, "qkv", 1, length) - capture_flops(shape, 1, "qkv", 1, length)


@pytest.mark.parametrize("name", KINDS)
def test_a_tap_gives_the_features_and_gradients_that_an_exception_gives(make, name):
    model, tokenizer = make(name)
    batch, shape = batch_of(model, tokenizer), EncoderShape.of(model.config)
    names = [*(shape.attention_features if name in WITH_SCORES else "qk"), "v"]
    found = []
    for tap in (False, True):
        reader = Capture(model, dict.fromkeys(names, (2,)), tap=tap)
        features = reader(**batch)
        reader.close()
        read = [features.only(feature) for feature in "qkv"]
        if name in WITH_SCORES:
            attention = features.attention()
            read += [each for each in (attention.q, attention.k, attention.bias) if each is not None]
        model.zero_grad()
        sum((tensor.sin() * (place + 1)).sum() for place, tensor in enumerate(read)).backward()
        found.append((read, {key: parameter.grad for key, parameter in model.named_parameters()}))
    (features, gradients), (tapped, tapped_gradients) = found
    assert all(map(torch.equal, features, tapped))
    for key, gradient in gradients.items():
        same = tapped_gradients[key] is None if gradient is None else torch.equal(gradient, tapped_gradients[key])
        assert same, key
    assert len(list(family_of(model.config).layer_list(model))) == 3
    torch.testing.assert_close(model(**batch).last_hidden_state, make(name)[0](**batch).last_hidden_state)


@pytest.mark.parametrize("name", KINDS)
def test_layers_that_are_computed_once_more_give_the_same_gradients(make, name, refused):
    if name in ("albert", "mpnet"):
        with refused(name, "gradient checkpointing"):
            keep_no_activations(make(name)[0])
        return
    found = []
    for again in (False, True):
        model, tokenizer = make(name)
        if again:
            keep_no_activations(model)
        set_dropout(model.train(), 0.1)
        use_own_attention(model)
        reader = Capture(model, {"q": (3,), "v": (3,)})
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            features = reader(**batch_of(model, tokenizer))
            sum(features.only(feature).sin().sum() for feature in "qv").backward()
        found.append({key: parameter.grad for key, parameter in model.named_parameters() if parameter.grad is not None})
    assert equal(*found)


@pytest.mark.parametrize("name", ["modernbert", "eurobert", "nomic_bert"])
def test_a_teacher_in_bf16_knows_far_positions_exactly(make, name):
    positions = []
    for halved in (False, True):
        model, tokenizer = make(name, max_position_embeddings=2048)
        teacher = Teacher(model, {"positions": (2,), "q": (2,)})
        if halved:
            teacher.hold_in_bf16()
        features = teacher({"input_ids": torch.full((1, 2000), tokenizer.mask_token_id)})
        assert (features.only("q").dtype == torch.bfloat16) is halved
        positions.append(torch.stack(features.only("positions")).float())
    torch.testing.assert_close(*positions, rtol=2**-8, atol=2**-8)


# Relations


def test_keys_and_values_are_repeated_in_mixed_relations_alone(make):
    model, tokenizer = make("eurobert")
    shape = EncoderShape.of(model.config)
    features = Capture(model, dict.fromkeys("qkv", (3,)))(**batch_of(model, tokenizer))
    k = features.only("k")
    assert (shape.heads, shape.key_value_heads, k.shape[-1]) == (4, 2, 16)
    assert features.pair("kk")[0] is features.pair("kk")[1] is k
    twice = torch.cat([k[..., :8], k[..., :8], k[..., 8:], k[..., 8:]], dim=-1)
    assert torch.equal(features.pair("qk")[1], twice)
    assert torch.equal(features.pair("kv")[0], twice)
    assert MiniLMv2(relations=("qq", "kk")).resolve(shape, shape).relation_heads == 2


def test_relation_heads_must_divide_the_stored_widths_too(make, refused):
    shape = EncoderShape.of(make("eurobert")[0].config)
    with refused("32 relation heads", "1, 2, 4, 8, 16"):
        MiniLMv2(relation_heads=32).resolve(shape, shape)
    assert MiniLMv2(relation_heads=32, relations=("qq", "qk")).resolve(shape, shape).relation_heads == 32


def test_attention_that_cannot_be_rebuilt_is_refused(make, refused):
    disentangled, plain = (EncoderShape.of(make(name)[0].config) for name in ("deberta-v2", "bert"))
    for teacher, student in ((disentangled, plain), (plain, disentangled)):
        with refused("deberta-v2", "minilmv2"):
            MiniLM().resolve(teacher, student)
        MiniLMv2().resolve(teacher, student)


def test_layers_that_attend_to_other_tokens_are_refused_and_named(make, refused):
    teacher = EncoderShape.of(make("modernbert", num_hidden_layers=4)[0].config)
    plain = EncoderShape.of(make("bert")[0].config)
    assert teacher.windows == (None, 4, 4, None)
    assert MiniLM().resolve(teacher, plain).teacher_layer == 4
    with refused("Layer 2", "4 tokens far", "to all tokens", "--teacher-layer among 1, 4"):
        MiniLM(teacher_layer=2).resolve(teacher, plain)


# Loading and students

FEED_FORWARD = {"modernbert": 36}
"""Of students 24 wide, as is usual in the family."""


@pytest.mark.parametrize("name", KINDS)
def test_a_model_with_a_head_is_loaded_as_its_encoder(save, make, tmp_path, name):
    folder = save(name, tmp_path, head="ForSequenceClassification", num_labels=3)
    encoder, original = load_encoder(folder), make(name, head="ForSequenceClassification", num_labels=3)[0]
    batch = batch_of(encoder.model, encoder.tokenizer)
    expected = original.base_model(**batch).last_hidden_state
    torch.testing.assert_close(encoder.model(**batch).last_hidden_state, expected)


@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize(("shape", "init"), [("2x16/4", "random"), ("2x32", "layers")])
def test_a_student_loads_again_as_it_was(save, tmp_path, name, shape, init):
    teacher = load_encoder(save(name, tmp_path / "teacher"))
    student = build_student(teacher, StudentShape.parse(shape), init, seed=1)
    batch = batch_of(student.model, teacher.tokenizer)
    with torch.no_grad():
        before = student.model(**batch).last_hidden_state
    export_student(tmp_path / "student", student, "card")
    again = load_encoder(tmp_path / "student")
    assert again.shape == student.shape
    assert again.shape.model_type == name
    assert again.shape.positions == teacher.shape.positions
    assert again.shape.feed_forward / again.shape.width == teacher.shape.feed_forward / teacher.shape.width
    with torch.no_grad():
        assert torch.equal(again.model(**batch).last_hidden_state, before)
        assert torch.equal(AutoModel.from_pretrained(tmp_path / "student").eval()(**batch).last_hidden_state, before)


@pytest.mark.parametrize(
    ("teacher", "student"),
    [
        ("modernbert", "bert"),
        ("mpnet", "bert"),
        ("bert", "modernbert"),
        ("bert", "roberta"),
        ("xlm-roberta", "mpnet"),
        ("bert", "eurobert"),
    ],
)
def test_a_student_may_be_of_another_family_and_shares_the_tokenizer(save, sample_text, tmp_path, teacher, student):
    folder = save(teacher, tmp_path / "teacher")
    ours = load_encoder(folder)
    made = build_student(ours, StudentShape.parse("2x24/4"), "random", seed=0, family=student)
    assert (made.shape.model_type, made.shape.vocabulary) == (student, ours.shape.vocabulary)
    assert made.shape.positions == ours.shape.positions == 64
    assert made.tokenizer.model_max_length == 64
    assert made.shape.feed_forward == FEED_FORWARD.get(student, 96)
    assert made.model.config.pad_token_id == ours.tokenizer.pad_token_id
    named = {name: getattr(made.model.config, name, None) for name in ("cls_token_id", "sep_token_id", "mask_token_id")}
    assert all(value in (None, getattr(ours.tokenizer, name)) for name, value in named.items())
    export_student(tmp_path / "student", made, "card")
    model, tokenizer = AutoModel.from_pretrained(tmp_path / "student"), AutoTokenizer.from_pretrained(tmp_path / "student")
    assert tokenizer(TEXTS)["input_ids"] == ours.tokenizer(TEXTS)["input_ids"]
    model(**tokenizer(TEXTS, padding=True, return_tensors="pt"))
    again = load_encoder(tmp_path / "student")
    check_same_tokenizer(ours.tokenizer, again.tokenizer)
    for layers in ("layers", "layers:1,3"):
        with pytest.raises(limbeck.UserError, match="do not fit a student of type"):
            build_student(ours, StudentShape.parse("2x32/4"), layers, seed=0, family=student)


def test_a_family_that_cannot_count_its_positions_with_the_tokenizer_is_refused(save, tmp_path, refused):
    teacher = load_encoder(save("bert", tmp_path))
    with refused("'mpnet'", "needs 1 as the id", "has 0"):
        student_config(StudentShape(2, 24), teacher.model.config, family="mpnet")
    with refused("'t5x'", "; supported: bert"):
        student_config(StudentShape(2, 24), teacher.model.config, family="t5x")
    with refused("'ModernBERT'", "did you mean modernbert?"):
        student_config(StudentShape(2, 24), teacher.model.config, family="ModernBERT")


def test_a_student_has_no_more_positions_than_teacher_and_family_and_its_tokenizer_no_more_tokens(save, tmp_path):
    # RoBERTa's bare configuration has 512 rows, of which its models use two for other things.
    for name, rows, expected in (("bert", 512, 512), ("bert", 64, 64), ("modernbert", 8192, 512)):
        teacher = load_encoder(save(name, tmp_path / f"{name}-{rows}", max_position_embeddings=rows))
        assert teacher.tokenizer.model_max_length == rows
        student = build_student(teacher, StudentShape.parse("1x16/4"), "random", seed=0, family="roberta")
        assert (student.shape.positions, student.tokenizer.model_max_length) == (expected, expected)
        assert teacher.tokenizer.model_max_length == rows
        export_student(tmp_path / "student", student, "card")
        model, tokenizer = AutoModel.from_pretrained(tmp_path / "student"), AutoTokenizer.from_pretrained(tmp_path / "student")
        batch = tokenizer("a " * 600, truncation=True, return_tensors="pt")
        assert batch["input_ids"].shape == (1, expected)
        assert model(**batch).last_hidden_state.shape == (1, expected, 16)


def test_a_tail_of_which_nothing_fits_is_refused(save, sample_text, tmp_path, refused):
    (tmp_path / "text.txt").write_text("\n".join(sample_text[:60]))
    settings = {"student": "2x32/4", "corpus": tmp_path / "text.txt", "steps": 1, "max_length": 16, "quiet": True}
    teacher = save("bert", tmp_path / "teacher")
    with refused("--tail teacher", "bert", "modernbert", "--tail hidden"):
        limbeck.distill(teacher, family="modernbert", tail="teacher", output=tmp_path / "run", **settings)
    assert not (tmp_path / "run").exists()


def test_students_keep_what_the_teachers_layers_attend_to(make):
    teacher = make("modernbert", num_hidden_layers=4)[0].config
    assert EncoderShape.of(student_config(StudentShape(2, 24, heads=4), teacher)).windows == (None, None)
    assert EncoderShape.of(student_config(StudentShape(2, 24, heads=4), teacher, cut=(1, 3))).windows == (None, 4)


def test_heads_of_queries_share_keys_and_values_as_in_the_teacher(make):
    teacher = make("eurobert")[0].config
    config = student_config(StudentShape(2, 48, heads=6), teacher)
    assert (config.num_attention_heads, config.num_key_value_heads, config.head_dim) == (6, 3, 8)
    assert student_config(StudentShape(2, 48, heads=3), teacher).num_key_value_heads == 3


# Families without a row


@pytest.mark.parametrize(("model_type", "positions"), [("megatron-bert", 64), ("ernie", 64), ("data2vec-text", 62), ("gte", 64)])
def test_a_family_whose_parts_are_told_by_their_names_needs_no_row(model_type, positions, save_bert, tiny_tokenizer, tmp_path):
    config = AutoConfig.for_model(model_type, **{**TINY, "pad_token_id": 0 if positions == 64 else 1, "bos_token_id": None})
    model = noisy(AutoModel.from_config, config, seed=0)
    tokenizer = copy.deepcopy(tiny_tokenizer)
    if positions == 62:
        tokenizer.pad_token = "[UNK]"
    encoder = load_encoder(save_bert(tmp_path, model, tokenizer))
    assert (encoder.shape.model_type, encoder.shape.positions, encoder.shape.scores) == (model_type, positions, None)
    batch = batch_of(model, tokenizer)
    states = model(**batch, output_hidden_states=True).hidden_states
    features = capture(model, batch, {"v": [1, 3], "hidden": [0, 1, 2]})
    assert all(torch.equal(features["hidden"][layer], states[layer]) for layer in range(3))
    if model_type in ("ernie", "data2vec-text"):  # whose norms come last, and who call their parts as BERT does
        value = model.encoder.layer[2].attention.self.value
        torch.testing.assert_close(features["v"][3], value(states[2]))
    student = build_student(encoder, StudentShape(2, 32, heads=4), "layers", seed=0)
    assert student.shape.model_type == model_type
    with pytest.raises(limbeck.UserError, match="cannot be rebuilt"):
        MiniLM().resolve(encoder.shape, student.shape)


@pytest.mark.parametrize(
    "model_type", ["gpt2", "t5", "funnel", "convbert", "wav2vec2", "flaubert", "longformer", "big_bird", "no-such-type"]
)
def test_a_family_that_cannot_be_told_is_refused_with_what_is_supported(model_type, tmp_path, refused):
    (tmp_path / "config.json").write_text(json.dumps({"model_type": model_type}))
    with refused(model_type, "supported: bert, roberta", "modernbert, eurobert, nomic_bert"):
        load_encoder(tmp_path)


# Parts of a model


@pytest.mark.parametrize("name", KINDS)
def test_layers_that_are_not_asked_for_are_not_held(save, tmp_path, name):
    folder = save(name, tmp_path)
    whole, part = load_encoder(folder), load_encoder(folder, layers=(1, 2))
    batch = batch_of(whole.model, whole.tokenizer)
    asked = {"q": 2, "hidden": [1, 2]}
    expected, found = capture(whole.model, batch, asked), capture(part.model, batch, asked)
    assert torch.equal(found["q"], expected["q"])
    assert torch.equal(found["hidden"][2], expected["hidden"][2])
    assert part.shape == whole.shape
    held, all_of_them = (count_parameters(encoder.model) for encoder in (part, whole))
    if part.family.shared_layers:
        assert held == all_of_them
        return
    assert [type(layer) is LeftOut for layer in part.family.layer_list(part.model)] == [False, False, True]
    one = sum(parameter.numel() for parameter in whole.family.layer_list(whole.model)[2].parameters())
    assert all_of_them.transformer - held.transformer == one
    with pytest.raises(RuntimeError, match="not loaded"):
        part.model(**batch)


LABELS, WORDS = ("cold", "warm"), ("still", "river", "stone", "glass", "large", "small")


@pytest.mark.parametrize("name", KINDS)
def test_a_student_is_fine_tuned_and_loads_in_plain_transformers(save, tmp_path, name):
    model = save(name, tmp_path / "model")
    rows = [f"{word} {label} {word} water,{label}" for word in WORDS for label in LABELS]
    (tmp_path / "task.csv").write_text("\n".join(["text,label", *rows]))
    run = limbeck.finetune(
        model,
        data=tmp_path / "task.csv",
        text="text",
        label="label",
        output=tmp_path / "run",
        epochs=2,
        learning_rate=1e-3,
        precision="float32",
        quiet=True,
    )
    plain = AutoModelForSequenceClassification.from_pretrained(run.student).eval()
    tokenizer = AutoTokenizer.from_pretrained(run.student)
    texts = {row.split(",")[1]: row.split(",")[0] for row in rows}
    outputs = plain(**tokenizer([*texts.values()], padding=True, return_tensors="pt")).logits
    assert outputs.shape == (2, 2)
    assert [plain.config.id2label[place] for place in (0, 1)] == ["cold", "warm"]
    again = load_sentence_head(run.student)
    torch.testing.assert_close(again.model(**batch_of(plain, tokenizer)).logits, plain(**batch_of(plain, tokenizer)).logits)


@pytest.mark.parametrize("name", KINDS)
def test_a_head_for_answers_is_made_where_transformers_has_one(save, tmp_path, name, refused):
    encoder = load_encoder(save(name, tmp_path))
    if name in ("eurobert", "nomic_bert"):
        with refused(f"no model of type '{name}'", "another type"):
            answer_head(encoder, seed=0)
        return
    made = answer_head(encoder, seed=0)
    batch = batch_of(encoder.model, encoder.tokenizer)
    assert made.model(**batch).start_logits.shape == batch["input_ids"].shape


def test_of_a_teacher_only_the_layers_that_run_or_are_copied_are_read(save, sample_text, tmp_path, refused):
    teacher = save("bert", tmp_path / "teacher", num_hidden_layers=4)
    (tmp_path / "text.txt").write_text("\n".join(sample_text[:20]))
    weights = load_file(teacher / "model.safetensors")
    broken = {name: value * torch.nan if ".layer.3." in name else value for name, value in weights.items()}
    save_file(broken, teacher / "model.safetensors", metadata={"format": "pt"})

    def distil(layer, init="random", tail="keep"):
        return limbeck.distill(
            teacher,
            student="2x32",
            objective=MiniLMv2(teacher_layer=layer),
            init=init,
            tail=tail,
            corpus=tmp_path / "text.txt",
            output=tmp_path / f"{layer}-{init[-1]}-{tail}",
            steps=2,
            batch_size=4,
            max_length=32,
            precision="float32",
            quiet=True,
        )

    for settings in ((3,), (3, "layers:1,3"), (3, "random", "hidden"), (2, "random", "teacher")):
        run = distil(*settings)
        assert run.summary["teacher"]["layers"] == 4
        assert run.summary["teacher"]["parameters"]["total"] == sum(value.numel() for value in weights.values())
    for settings in ((4,), (3, "layers"), (2, "layers:1,4")):
        with refused("NaN or infinity in encoder.layer.3."):
            distil(*settings)


# Distillation


@pytest.mark.parametrize("objective", ["minilmv2", "minilm"])
@pytest.mark.parametrize("name", KINDS)
def test_twenty_steps_of_distillation_lower_the_loss(save, sample_text, tmp_path, name, objective, refused):
    teacher = save(name, tmp_path / "teacher")
    (tmp_path / "text.txt").write_text("\n".join(sample_text[:60]))
    settings = {"steps": 20, "batch_size": 8, "max_length": 32, "learning_rate": 5e-3, "precision": "float32", "log_every": 1}

    def distil():
        return limbeck.distill(
            teacher,
            student="2x16/4",
            objective={"name": objective},
            corpus=tmp_path / "text.txt",
            output=tmp_path / "run",
            quiet=True,
            **settings,
        )

    if objective == "minilm" and name not in WITH_SCORES:
        with refused("minilmv2"):
            distil()
        return
    run = distil()
    losses = [json.loads(line)["loss"] for line in (run.path / "log.jsonl").read_text().splitlines()]
    assert sum(losses[-3:]) < 0.9 * sum(losses[:3])
    card, student = (run.student / "README.md").read_text(), load_encoder(run.student)
    beyond = run.summary["untrained"]["out_of_reach"]
    assert f"does not reach {len(beyond)} tensors ({', '.join(modules_of(beyond))})" in card
    assert ("The pooler was not trained in this run; its weights are random" in card) == (student.parameters.pooler > 0)
    assert ("pooler" in card) == (student.parameters.pooler > 0)
    # Of ALBERT, whose layers are one, only the pooler is out of reach.
    assert ("Fine-tune it before you use its output" in card) == (name != "albert")
