"""Vocabularies that a tokenizer's type or file name gives away; all others are in files that no argument holds.

Sources at Megatron-LM d98e8a64: core/tokenizers/text/libraries/tiktoken_tokenizer.py (DEFAULT_TIKTOKEN_MAX_VOCAB),
core/tokenizers/utils/build_tokenizer.py. Sizes of tokenizers on the Hugging Face hub: ``search_spaces/hub``.
"""

from __future__ import annotations

from pathlib import PurePosixPath

from autotune.workload.hub import tokenizer_sizes

_GPT2 = 50257  # tokens of GPT-2's BPE files
_TIKTOKEN = 2**17
_LLAMA2 = 32000  # of the SentencePiece model that Llama 2 and Mixtral share
_FILES = {"nemotron_2_256k.model": 256000}


def vocabulary_of(tokenizer: str | None, model: str | None) -> tuple[int, str] | None:
    """Tokens of a tokenizer, and a note on where the number is from; None where only its files say.

    Args:
        tokenizer: ``--tokenizer-type``; None is Megatron's default, GPT-2's.
        model: ``--tokenizer-model``: a path or a name on the Hugging Face hub.
    """
    name = PurePosixPath(model or "").name
    known: int | None = None
    if tokenizer in (None, "GPT2BPETokenizer"):
        known = _GPT2
    elif tokenizer == "TikTokenizer":
        known = _TIKTOKEN
    elif tokenizer in ("GPTSentencePieceTokenizer", "SentencePieceTokenizer"):
        known = _FILES.get(name)
    elif tokenizer == "Llama2Tokenizer":
        known = _LLAMA2
    elif tokenizer == "HuggingFaceTokenizer":
        known = tokenizer_sizes().get(model or "")
    if known is None:
        return None
    return known, f"no vocabulary size is given: {known} tokens taken for {tokenizer or 'GPT-2'}{f' with {name}' if name else ''}"
