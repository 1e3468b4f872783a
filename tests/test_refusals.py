"""The table of refusals: wrong input, the line a person reads, the exit code, and that nothing is left half-written."""

import gzip
import json
import shutil
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import GPT2Config, GPT2Model

from limbeck.cli import main
from limbeck.encoders.loading import no_progress_bars

LINES = "a b c d e\nthe still\n" * 40


@dataclass
class Bench:
    """A command that works, and what it reads."""

    folder: Path
    teacher: Path
    text: Path
    save_bert: object
    make_tokenizer: object

    @property
    def run(self):
        return self.folder / "run"

    def command(self, *more):
        return [
            *("distill", "--teacher", str(self.teacher), "--corpus", str(self.text), "--student", "1x32/4", "--steps", "2"),
            *("--batch-size", "4", "--max-length", "16", "--precision", "float32", "-o", str(self.run), *map(str, more)),
        ]

    def write(self, name, content):
        file = self.folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content.encode() if isinstance(content, str) else content)
        return file

    def change_weights(self, change):
        weights = load_file(self.teacher / "model.safetensors")
        change(weights)
        save_file(weights, self.teacher / "model.safetensors", metadata={"format": "pt"})

    def change_config(self, **changes):
        file = self.teacher / "config.json"
        file.write_text(json.dumps(json.loads(file.read_text()) | changes))

    def other_model(self, name="other", **settings):
        return self.save_bert(self.folder / name, **{**SIZES, **settings})


SIZES = {"num_hidden_layers": 2, "hidden_size": 32, "num_attention_heads": 4, "intermediate_size": 64}


@pytest.fixture
def bench(save_bert, make_tokenizer, tmp_path):
    teacher = save_bert(tmp_path / "teacher", **SIZES)
    text = tmp_path / "text.txt"
    text.write_text(LINES)
    return Bench(tmp_path, teacher, text, save_bert, make_tokenizer)


def lacks_a_weight(bench):
    bench.change_weights(lambda weights: weights.pop("encoder.layer.1.attention.self.query.weight"))


def has_a_weight_too_many(bench):
    bench.change_weights(lambda weights: weights.update({"encoder.layer.2.output.dense.bias": torch.zeros(32)}))


def has_nan(bench):
    bench.change_weights(lambda weights: weights["encoder.layer.0.output.dense.bias"].fill_(float("nan")))


def has_no_tokenizer(bench):
    for file in ("tokenizer.json", "vocab.txt", "tokenizer_config.json"):
        (bench.teacher / file).unlink(missing_ok=True)


def is_a_pickle(bench):
    (bench.teacher / "model.safetensors").rename(bench.teacher / "pytorch_model.bin")


def is_cut_off(bench):
    file = bench.teacher / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-100])


def is_a_decoder(bench):
    bench.change_config(is_decoder=True)


def is_another_family(bench):
    shutil.rmtree(bench.teacher)
    with no_progress_bars():
        GPT2Model(GPT2Config(n_layer=1, n_embd=8, n_head=1, vocab_size=10)).save_pretrained(bench.teacher)


TEACHERS = {
    "missing weight": (lacks_a_weight, ["lacks", "encoder.layer.1.attention.self.query.weight"]),
    "weight too many": (has_a_weight_too_many, ["encoder.layer.2.output.dense.bias", "do not belong together"]),
    "not a number": (has_nan, ["NaN", "encoder.layer.0.output.dense.bias"]),
    "no tokenizer": (has_no_tokenizer, ["tokenizer", "put the model's own there"]),
    "pickled weights": (is_a_pickle, ["pytorch_model.bin", "save_pretrained"]),
    "truncated weights": (is_cut_off, ["model.safetensors", "broken", "fetch it again"]),
    "a decoder": (is_a_decoder, ["decoder", "give an encoder"]),
    "an unsupported family": (is_another_family, ["gpt2", "supported", "bert"]),
}


@pytest.mark.parametrize(("damage", "words"), TEACHERS.values(), ids=TEACHERS)
def test_a_teacher_that_is_not_whole_is_refused(bench, capsys, damage, words):
    damage(bench)
    check_refused(bench, capsys, bench.command(), words)


SHAPES = {
    "relation heads that divide no width": (["--relation-heads", "5"], ["5 relation heads", "choose one of 1, 2, 4, 8, 16, 32"]),
    "48 heads and width 312": (["--relation-heads", "48", "--student", "1x312/4"], ["32 and 312", "choose one of 1, 2, 4, 8"]),
    "heads that do not divide the width": (["--student", "1x30/4"], ["30", "4 attention heads", "1, 2, 3, 5, 6, 10, 15, 30"]),
    "unequal heads": (["--objective", "minilm", "--student", "1x32/8"], ["4", "8", "minilmv2"]),
    "too long": (["--max-length", "65"], ["65", "64 positions"]),
    "no shape": (["--student", "small"], ["LAYERSxWIDTH"]),
    "no layer": (["--teacher-layer", "3"], ["no layer 3", "1 to 2"]),
    "a cut deeper than the teacher": (["--student", "3x32", "--init", "layers"], ["cannot be cut", "--init random"]),
    "a cut of another width": (["--student", "1x16/4", "--init", "layers"], ["do not fit", "--init random"]),
}


@pytest.mark.parametrize(("flags", "words"), SHAPES.values(), ids=SHAPES)
def test_what_cannot_be_compared_is_refused(bench, capsys, flags, words):
    check_refused(bench, capsys, bench.command(*flags), words)


def test_a_start_with_another_vocabulary_is_refused(bench, capsys):
    vocabulary = sorted(ids := bench.make_tokenizer().get_vocab(), key=ids.get)
    vocabulary[10], vocabulary[11] = vocabulary[11], vocabulary[10]
    start = bench.save_bert(
        bench.folder / "start", tokenizer=bench.make_tokenizer(vocabulary), **{**SIZES, "num_hidden_layers": 1}
    )
    check_refused(bench, capsys, bench.command("--init", start), ["2 tokens", repr(vocabulary[10]), "--init random"])


TEXTS = {
    "no file": (lambda bench: [bench.folder / "no.txt"], ["no.txt", "check the path"]),
    "an empty file": (lambda bench: [bench.write("a.txt", "\n \n")], ["no text"]),
    "a folder without text": (lambda bench: [bench.write("docs/a.pdf", "x").parent], ["docs", "name the files"]),
    "latin-1": (lambda bench: [bench.write("a.txt", "one\nfünf".encode("latin-1"))], ["a.txt, line 2", "UTF-8"]),
    "half a gzip file": (
        lambda bench: [bench.write("a.txt.gz", gzip.compress(LINES.encode())[:-12])],
        ["a.txt.gz", "fetch it again"],
    ),
    "half a zstd file": (lambda bench: [bench.write("a.txt.zst", zstd(LINES)[:-6])], ["a.txt.zst", "fetch it again"]),
    "broken JSON": (lambda bench: [bench.write("a.jsonl", '{"text": "a"}\n{"text"\n')], ["a.jsonl, line 2", "JSON"]),
    "a list in JSON lines": (lambda bench: [bench.write("a.jsonl", '["a"]\n')], ["a.jsonl, line 1", "object"]),
    "another column": (lambda bench: [bench.write("a.jsonl", '{"body": "a"}\n')], ["a.jsonl, line 1", "--text-column", "body"]),
    "a number for text": (lambda bench: [bench.write("a.jsonl", '{"text": 3}\n')], ["a.jsonl, line 1", "no text"]),
    "broken Parquet": (lambda bench: [bench.write("a.parquet", b"PAR1" + bytes(50))], ["a.parquet", "fetch it again"]),
    "a link into nothing": (lambda bench: [link(bench.write("d/a.txt", "a").parent / "b.txt")], ["b.txt", "cannot be read"]),
    "a data set that cannot be reached": (lambda bench: ["datasets:no/such"], ["no/such", "HF_HUB_OFFLINE"]),
    "too few weights": (lambda bench: [bench.text, "--corpus-weights", "1", "2"], ["2 corpus_weights", "1 corpora"]),
    "too little to hold out": (lambda bench: [bench.write("b.txt", "a\n"), "--holdout", "0.1"], ["too small", "file of its own"]),
    "all of it held out": (lambda bench: [bench.text, "--holdout", bench.text], ["all the text", "name other text"]),
}


def zstd(text):
    return pytest.importorskip("zstandard").ZstdCompressor().compress(text.encode())


def link(path):
    path.symlink_to("nowhere")
    return path.parent


@pytest.mark.parametrize(("corpus", "words"), TEXTS.values(), ids=TEXTS)
def test_text_that_cannot_be_read_is_refused(bench, capsys, corpus, words):
    given = [str(part) for part in corpus(bench)]
    command = bench.command()
    command[command.index("--corpus") + 1 : command.index("--student")] = given
    check_refused(bench, capsys, command, words)


def test_text_of_unknown_tokens_alone_is_refused(bench, capsys):
    bench.text.write_text("東京\n京都\n" * 20)
    check_refused(bench, capsys, bench.command(), ["every token is unknown", "language"])


SETTINGS = {
    "no steps": (["--steps", "0"], ["--steps"]),
    "two lengths": (["--tokens", "100"], ["steps and tokens", "give one"]),
    "a learning rate of nothing": (["--learning-rate", "nan"], ["--learning-rate"]),
    "an unknown flag": (["--bach-size", "4"], ["--bach-size"]),
    "an unknown objective": (["--objective", "minilm3"], ["minilm3", "minilmv2", "minilm"]),
}


@pytest.mark.parametrize(("flags", "words"), SETTINGS.values(), ids=SETTINGS)
def test_settings_that_make_no_sense_are_refused(bench, capsys, flags, words):
    check_refused(bench, capsys, bench.command(*flags), words)


FILES = {
    "duplicate": ("steps: 3\nsteps: 4\n", ["steps", "line 2"]),
    "unknown": ("bach_size: 3\n", ["bach_size", "batch_size"]),
    "truth for a number": ("log_every: yes\n", ["log_every"]),
    "no mapping": ("- steps\n", ["recipe.yaml"]),
    "no YAML": ("steps: [\n", ["recipe.yaml"]),
}


@pytest.mark.parametrize(("content", "words"), FILES.values(), ids=FILES)
def test_a_recipe_file_that_makes_no_sense_is_refused(bench, capsys, content, words):
    check_refused(bench, capsys, bench.command("--config", bench.write("recipe.yaml", content)), words)


def check_refused(bench, capsys, command, words):
    """One line that names all the words, exit code 2, and nothing written."""
    before = {path: path.lstat().st_mtime_ns for path in bench.folder.rglob("*")}
    assert main(command) == 2
    output = capsys.readouterr()
    assert output.out == ""
    (line,) = [line for line in output.err.splitlines() if line.startswith("limbeck: ")]
    assert "Traceback" not in output.err
    assert [word for word in words if word not in line] == [], line
    assert {path: path.lstat().st_mtime_ns for path in bench.folder.rglob("*")} == before
