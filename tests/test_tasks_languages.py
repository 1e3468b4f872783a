"""Real pairs and questions in every language there is, under a tiny model that has learned nothing.

A fifth of XNLI's pairs and a tenth of MLQA's articles are taken, so that this takes seconds; benchmarks/languages.py takes all.
"""

from functools import cache
from itertools import chain

import pytest
import torch
from accelerate import Accelerator
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerFast

from limbeck.encoders.loading import load_encoder
from limbeck.tasks.predict import predict
from limbeck.tasks.question_data import read_questions
from limbeck.tasks.questions import QuestionAssignment
from limbeck.tasks.sentences import SentenceAssignment
from limbeck.tasks.squad import read_squad
from limbeck.tasks.xnli import LANGUAGES, divided, read_xnli

MLQA = ("ar", "de", "en", "es", "hi", "vi", "zh")
SPECIAL = ["<s>", "<pad>", "</s>", "<unk>"]


@cache
def pairs(folder):
    return divided(read_xnli(folder), ["en"], 0.2)


@cache
def questions(folder):
    return read_questions("mlqa", [folder / "squad" / "mlqa"], dev=0.1, train_languages=["en"])


@cache
def tokenizer_of(folder):
    """Pieces of words in every script, made of the data itself; pairs are joined as XLM-R joins them."""
    texts = [example.text for name, split in pairs(folder).splits.items() if name != "dev" for example in split.examples]
    passages = [question.passage for question in questions(folder).splits["dev"]]
    backend = Tokenizer(models.BPE(unk_token="<unk>"))
    backend.normalizer = normalizers.NFKC()
    backend.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.UnicodeScripts(), pre_tokenizers.Whitespace()])
    trainer = trainers.BpeTrainer(vocab_size=8000, special_tokens=SPECIAL, show_progress=False)
    backend.train_from_iterator(chain(texts, passages), trainer)
    marks = [(mark, backend.token_to_id(mark)) for mark in ("<s>", "</s>")]
    backend.post_processor = processors.TemplateProcessing("<s> $A </s>", "<s> $A </s> </s> $B </s>", marks)
    names = dict(zip(("cls_token", "pad_token", "sep_token", "unk_token"), SPECIAL, strict=True))
    return PreTrainedTokenizerFast(tokenizer_object=backend, **names)


@pytest.fixture
def encoder(real_data, save_bert, tmp_path):
    """A model of 2 layers of 32 with such a tokenizer."""
    tokenizer = tokenizer_of(real_data)
    sizes = {"vocab_size": len(tokenizer), "num_hidden_layers": 2, "max_position_embeddings": 384}
    return load_encoder(save_bert(tmp_path / "model", tokenizer=tokenizer, **sizes))


def judged(assignment, model, split):
    return predict(assignment, split, model, Accelerator(cpu=True), 32)


def even_head(assignment, encoder, split):
    """The encoder under a head that gives each class about as often: left alone it would have one answer to everything."""
    model = assignment.head(encoder, seed=0).model
    with torch.no_grad():
        model.classifier.weight *= 100
        logits = [entry["outputs"] for entry in judged(assignment, model, split).predictions]
        model.classifier.bias -= torch.tensor(logits).mean(dim=0)
    return model


def test_every_language_of_xnli(real_data, encoder):
    data = pairs(real_data)
    trained = {example.group for example in data.split("train").examples}
    held = {example.group for example in data.split("dev").examples}
    assert not trained & held
    assert len(trained | held) == 830
    assignment = SentenceAssignment(data, encoder.tokenizer, max_length=128)
    assert {*assignment.splits} == {"dev", *(f"dev-{language}" for language in LANGUAGES)}
    model = even_head(assignment, encoder, "dev-en")
    for language in LANGUAGES:
        split = data.split(f"dev-{language}")
        assert {example.group for example in split.examples} == held
        unknown = (assignment.source(split.name).collate([*range(50)])["input_ids"] == encoder.tokenizer.unk_token_id).float()
        assert unknown.mean() < 0.01, language
        result = judged(assignment, model, split.name)
        assert len(result.predictions) == len(split)
        assert result.scores["accuracy"] == pytest.approx(1 / 3, abs=0.05), language
        assert len({entry["prediction"] for entry in result.predictions}) == 3


def test_every_language_of_mlqa(real_data, encoder):
    data = questions(real_data)
    assert [*data.splits] == ["dev", *(f"dev-{language}" for language in MLQA)]
    trained = {question.id for question in data.train}
    assignment = QuestionAssignment(data, encoder.tokenizer, max_length=256, overlap=64)
    model = assignment.head(encoder, seed=0).model
    for language in MLQA:
        asked = data.splits[f"dev-{language}"]
        assert {question.language for question in asked} == {language}
        assert not trained & {question.id for question in asked}
        whole = read_squad(real_data / "squad" / "mlqa" / f"dev-context-{language}-question-{language}.json").questions
        assert 0.04 < len(asked) / len(whole) < 0.2
        result = judged(assignment, model, f"dev-{language}")
        assert [entry["id"] for entry in result.predictions] == [question.id for question in asked]
        assert all(entry["prediction"] in question.passage for entry, question in zip(result.predictions, asked, strict=True))
        assert all(entry["prediction"] for entry in result.predictions)
        assert result.scores["exact"] <= 0.05
        assert 0 < result.scores["f1"] < 0.2
