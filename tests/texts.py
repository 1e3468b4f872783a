"""Text and tokenizers that the tests of the data layer share."""

from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast, RobertaTokenizerFast

from limbeck.data.text import Unit


def units(*texts):
    """One unit a document."""
    return [Unit(text, document) for document, text in enumerate(texts)]


def pieces(tokens):
    """The ids of each unit."""
    return [tokens.read(start, length).tolist() for start, length in zip(tokens.offsets, tokens.lengths, strict=True)]


def word_tokenizer(vocabulary):
    """A tokenizer that knows whole words only, with the ids it is given."""
    backend = Tokenizer(models.WordLevel({"[UNK]": 0, **vocabulary}, unk_token="[UNK]"))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    return PreTrainedTokenizerFast(tokenizer_object=backend, unk_token="[UNK]")


def roberta_tokenizer():
    """A byte-level tokenizer without merges that joins pairs as RoBERTa does: <s> A </s></s> B </s>."""
    special = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {token: number for number, token in enumerate([*special, *alphabet])}
    backend = Tokenizer(models.BPE(vocabulary, [], unk_token="<unk>"))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.post_processor = processors.RobertaProcessing(("</s>", 2), ("<s>", 0))
    return RobertaTokenizerFast(tokenizer_object=backend)
