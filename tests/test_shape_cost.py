"""Shapes of students, the parameters they have, and the operations that distilling them takes."""

import subprocess
import sys

import pytest
import torch
from transformers import AutoModel, BertConfig
from transformers.models.bert.modeling_bert import BertLayer

from limbeck import MiniLMv2
from limbeck.encoders.configuration import student_config
from limbeck.encoders.cost import capture_flops, count_parameters, distillation_flops, flop_counter, layer_flops
from limbeck.encoders.shape import EncoderShape, StudentShape
from limbeck.training.stage import build_stage

BERT_BASE = BertConfig()

# Shapes


@pytest.mark.parametrize(
    ("text", "shape"),
    [
        ("6x384", StudentShape(6, 384)),
        (" 4x312:1200 ", StudentShape(4, 312, feed_forward=1200)),
        ("6x384/8", StudentShape(6, 384, heads=8)),
        ("12x384:1536/12", StudentShape(12, 384, 1536, 12)),
    ],
)
def test_a_shape_is_read_as_it_is_written(text, shape):
    assert StudentShape.parse(text) == shape


@pytest.mark.parametrize(
    "text", ["", "6", "6x", "x384", "0x384", "6x0", "00x384", "6x384:0", "6x384/0", "6x384/12:1536", "-6x384", "6×384"]
)
def test_what_is_no_shape_is_refused(text, refused):
    with refused(repr(text), "6x384"):
        StudentShape.parse(text)


def test_an_encoders_shape_reads_like_a_students():
    shape = EncoderShape.of(BERT_BASE)
    assert str(shape) == "12x768:3072/12"
    assert (shape.model_type, shape.vocabulary, shape.positions, shape.segments) == ("bert", 30522, 512, 2)
    assert str(EncoderShape.of(student_config(StudentShape.parse(str(shape)), BERT_BASE))) == str(shape)


@pytest.mark.parametrize(
    ("teacher", "student", "expected"),
    [
        ("12x768:3072/12", "6x384", "6x384:1536/12"),
        ("12x768:1152/12", "6x384", "6x384:576/12"),
        ("24x1024:4096/16", "6x384", "6x384:1536/12"),
        ("24x1024:4096/16", "6x512", "6x512:2048/16"),
        ("6x384:1536/12", "3x192", "3x192:768/12"),
        ("12x768:3072/12", "4x312:1200", "4x312:1200/12"),
        ("12x768:3072/12", "6x384/6", "6x384:1536/6"),
    ],
)
def test_what_is_left_open_follows_the_papers_and_the_teachers_proportions(teacher, student, expected):
    teacher = student_config(StudentShape.parse(teacher), BERT_BASE)
    before = teacher.to_dict()
    config = student_config(StudentShape.parse(student), teacher)
    assert str(EncoderShape.of(config)) == expected
    assert config is not teacher
    assert teacher.to_dict() == before


def test_an_objective_of_single_heads_gives_the_student_as_many_as_the_teacher():
    teacher = student_config(StudentShape.parse("24x1024/16"), BERT_BASE)
    assert student_config(StudentShape.parse("6x384"), teacher, teacher_heads=True).num_attention_heads == 16


def test_all_else_is_the_teachers():
    teacher = BertConfig(hidden_act="relu", layer_norm_eps=1e-5, vocab_size=100, max_position_embeddings=64, pad_token_id=7)
    config = student_config(StudentShape.parse("2x48"), teacher).to_dict()
    sizes = {"num_hidden_layers", "hidden_size", "num_attention_heads", "intermediate_size"}
    assert {name for name, value in config.items() if value != teacher.to_dict()[name]} <= sizes


def test_nothing_of_the_teachers_task_is_the_students():
    task = {"num_labels": 3, "problem_type": "regression", "architectures": ["BertForMaskedLM"], "classifier_dropout": 0.5}
    foreign = {"auto_map": {"AutoModel": "code.Model"}, "task_specific_params": {"a": 1}, "limbeck": "still"}
    teacher = BertConfig(**task, **foreign)
    before = teacher.to_dict()
    assert (
        student_config(StudentShape.parse("2x48"), teacher).to_dict()
        == student_config(StudentShape.parse("2x48"), BERT_BASE).to_dict()
    )
    assert teacher.to_dict() == before


@pytest.mark.parametrize(
    ("student", "teacher_heads", "words"),
    [
        ("6x100", False, ["100", "12 attention heads", "1, 2, 4, 5, 10, 20, 25, 50, 100"]),
        ("6x384/5", False, ["384", "5 attention heads", "6x384/HEADS", "1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192"]),
        ("6x100", True, ["100", "16 attention heads", "teacher", "multiple of 16", "minilmv2"]),
        ("6x100/16", True, ["100", "16 attention heads", "multiple of 16", "minilmv2"]),
    ],
)
def test_heads_that_do_not_divide_the_width_are_refused_with_those_that_do(student, teacher_heads, words, refused):
    teacher = student_config(StudentShape.parse("24x1024/16"), BERT_BASE)
    with refused(*words):
        student_config(StudentShape.parse(student), teacher, teacher_heads=teacher_heads)


# Parameters


@pytest.mark.parametrize(
    ("student", "total", "transformer"),
    [
        ("6x384", 22_713_216, 10_646_784),
        ("6x768", 66_955_008, 42_527_232),
        ("12x384", 33_360_000, 21_293_568),
        ("4x312:1200", 14_350_248, None),
    ],
)
def test_students_of_bert_base_have_the_published_number_of_parameters(student, total, transformer):
    with torch.device("meta"):
        model = AutoModel.from_config(student_config(StudentShape.parse(student), BERT_BASE))
    parameters = count_parameters(model)
    assert parameters.total == total == sum(parameter.numel() for parameter in model.parameters())
    assert transformer in (None, parameters.transformer)
    assert parameters.pooler == model.config.hidden_size**2 + model.config.hidden_size


# Operations


def config_of(layers, width, dropout=0.0):
    return BertConfig(
        vocab_size=100,
        num_hidden_layers=layers,
        hidden_size=width,
        num_attention_heads=4,
        intermediate_size=4 * width,
        max_position_embeddings=64,
        hidden_dropout_prob=dropout,
        attention_probs_dropout_prob=dropout,
        attn_implementation="sdpa",
    )


@pytest.mark.parametrize("masked", [False, True])
def test_a_layers_counted_operations_are_those_of_the_closed_form(masked, device):
    config = config_of(1, 64)
    layer = BertLayer(config).eval().to(device)
    hidden = torch.randn(3, 20, 64, device=device)
    mask = torch.ones(3, 1, 20, 20, dtype=torch.bool, device=device) if masked else None
    with torch.no_grad(), flop_counter() as counter:
        layer(hidden, mask)
    assert counter.get_total_flops() == layer_flops(EncoderShape.of(config), batch=3, length=20)


def test_attention_is_counted_on_the_processor_forward_and_backward(device):
    q, k, v = (torch.randn(2, 4, 10, 8, device=device, requires_grad=True) for _ in range(3))
    product = 2 * 2 * 4 * 10 * 10 * 8
    with flop_counter() as counter:
        attended = torch.nn.functional.scaled_dot_product_attention(q, k, v)
    assert counter.get_total_flops() == 2 * product
    with flop_counter() as counter:
        attended.sum().backward()
    # The scores once more, and two products each for the gradients of both.
    assert counter.get_total_flops() == 5 * product


def test_reading_a_feature_costs_the_layers_below_and_its_projections():
    shape = EncoderShape.of(config_of(4, 64))
    assert capture_flops(shape, layer=1, features="qkv", batch=2, length=10) == 3 * 2 * 20 * 64 * 64
    assert capture_flops(shape, 4, "q", 2, 10) == 3 * layer_flops(shape, 2, 10) + 2 * 20 * 64 * 64


@pytest.mark.parametrize("dropout", [0.0, 0.1])
@pytest.mark.parametrize("teacher_layer", [2, 4])
def test_a_step_of_distillation_spends_hardly_more_than_it_needs(dropout, teacher_layer, device):
    batch, length, relations = 4, 64, ("qq", "kk", "vv")
    configs = [config_of(4, 256, dropout), config_of(2, 128, dropout)]
    teacher, student = map(AutoModel.from_config, configs)
    shapes = [EncoderShape.of(config) for config in configs]
    objective = MiniLMv2(relations=relations, teacher_layer=teacher_layer).resolve(*shapes)
    stage = build_stage(student, teacher, objective, source=None).to(device)
    stage.module.train()
    inputs = {"input_ids": torch.randint(0, 100, (batch, length), device=device)}
    with flop_counter() as counter:
        stage.loss(inputs, stage.teacher(inputs)).backward()
    needed = distillation_flops(shapes[0], teacher_layer, shapes[1], len(relations), batch, length)
    assert 0.9 <= counter.get_total_flops() / needed <= 1.1


# Importing


IMPORT = "import limbeck"
HELP = "from limbeck.cli import main; main({})"


@pytest.mark.parametrize("code", [IMPORT, HELP.format(["--help"]), HELP.format(["distill", "--help"])])
def test_neither_importing_nor_asking_for_help_imports_torch(code):
    check = f"import sys\ntry: {code}\nfinally: sys.exit(sorted({{'torch', 'transformers'}} & set(sys.modules)) or 0)"
    run = subprocess.run([sys.executable, "-c", check], capture_output=True, text=True)
    assert (run.returncode, run.stderr) == (0, "")
