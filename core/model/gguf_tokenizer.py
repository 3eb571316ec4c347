"""Builds a tokenizer from the vocabulary in a GGUF file.

Owns the two kinds of vocabulary that language models use: byte-level BPE ("gpt2") and sentencepiece BPE ("llama").
Refuses others, and ways of splitting text before BPE that it does not know: a near miss would only show as worse text.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tokenizers
from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers, processors

from core.errors import ConfigError
from core.model.gguf_reader import GgufFile
from core.model.tokenizer import Tokenizer

_NORMAL, _UNKNOWN, _CONTROL, _USER_DEFINED, _UNUSED, _BYTE = range(1, 7)
_SPACE = "▁"

# The published patterns of Llama 3 and Qwen 2 tokenizers.
_LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
    r"|\s+(?!\S)|\s+"
)
_QWEN2 = _LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")


def build_tokenizer(file: GgufFile) -> Tokenizer:
    """The tokenizer of a GGUF file.

    Raises: ConfigError for a kind of vocabulary or of splitting that is not supported, named.
    """
    kind = file.require("tokenizer.ggml.model")
    tokens, types = file.require("tokenizer.ggml.tokens"), file.require("tokenizer.ggml.token_type")
    if kind == "gpt2":
        backend = _byte_level(file, tokens)
    elif kind == "llama":
        backend = _sentencepiece(file, tokens, types)
    else:
        raise ConfigError(f"{file.path} has a tokenizer of kind {kind!r}: core knows 'gpt2' and 'llama'")
    # Sentencepiece looks for them in normalised text. Where that begins with a space more, they would get it too.
    in_normalised = kind == "llama" and not file.get("tokenizer.ggml.add_space_prefix", True)
    _add_tokens(backend, tokens, types, in_normalised)
    has_bos = kind == "llama" or file.get("tokenizer.ggml.pre") in _LLAMA3_NAMES
    _add_around(backend, file, tokens, has_bos)
    return Tokenizer(backend)


def _add_around(backend: tokenizers.Tokenizer, file: GgufFile, tokens: Sequence[str], has_bos: bool) -> None:
    """Makes `encode` add the begin of a sequence before a text, and its end after it, where the file says so."""
    ids = {}
    for name, default in (("bos", has_bos), ("eos", False)):
        if file.get(f"tokenizer.ggml.add_{name}_token", default):
            ids[name] = file.require(f"tokenizer.ggml.{name}_token_id")
    single = [f"{tokens[ids['bos']]}:0"] if "bos" in ids else []
    single += ["$A:0", *([f"{tokens[ids['eos']]}:0"] if "eos" in ids else [])]
    backend.post_processor = processors.TemplateProcessing(
        single=single, pair=[*single, "$B:1"], special_tokens=[(tokens[i], i) for i in set(ids.values())]
    )


def _add_tokens(
    backend: tokenizers.Tokenizer, tokens: Sequence[str], types: Sequence[int], in_normalised: bool
) -> None:
    """Tokens that are found in a text before anything else. Control tokens are special: no text of their own.

    in_normalised   the others are looked for in the text as it is normalised
    """
    kinds = (_CONTROL, _USER_DEFINED, _UNKNOWN)
    added = [
        AddedToken(token, special=kind != _USER_DEFINED, normalized=in_normalised and kind == _USER_DEFINED)
        for token, kind in zip(tokens, types, strict=True)
        if kind in kinds
    ]
    backend.add_tokens(added)


def _byte_level(file: GgufFile, tokens: Sequence[str]) -> tokenizers.Tokenizer:
    name = file.get("tokenizer.ggml.pre", "default")
    if name not in _SPLITTERS:
        known = ", ".join(sorted(_SPLITTERS))
        raise ConfigError(f"{file.path} splits text as {name!r} before BPE: core knows {known}")
    merges = [tuple(merge.split(" ", 1)) for merge in file.require("tokenizer.ggml.merges")]
    vocab = {token: i for i, token in enumerate(tokens)}
    backend = tokenizers.Tokenizer(models.BPE(vocab, merges, ignore_merges=name in _LLAMA3_NAMES))
    if name in _QWEN2_NAMES:
        backend.normalizer = normalizers.NFC()
    backend.pre_tokenizer = pre_tokenizers.Sequence(_SPLITTERS[name])
    backend.decoder = decoders.ByteLevel()
    return backend


def _byte_chars(use_regex: bool) -> Any:
    return pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=use_regex)


def _pattern(regex: str) -> list[Any]:
    return [pre_tokenizers.Split(Regex(regex), behavior="isolated"), _byte_chars(use_regex=False)]


_LLAMA3_NAMES = ("llama-bpe", "llama3", "llama-v3")
_QWEN2_NAMES = ("qwen2", "deepseek-r1-qwen")
_SPLITTERS: dict[str, list[Any]] = {
    "default": [_byte_chars(use_regex=True)],
    "gpt-2": [_byte_chars(use_regex=True)],
    "smollm": [pre_tokenizers.Digits(individual_digits=True), _byte_chars(use_regex=True)],
    **dict.fromkeys(_LLAMA3_NAMES, _pattern(_LLAMA3)),
    **dict.fromkeys(_QWEN2_NAMES, _pattern(_QWEN2)),
}


def _sentencepiece(file: GgufFile, tokens: Sequence[str], types: Sequence[int]) -> tokenizers.Tokenizer:
    """Sentencepiece BPE as BPE with byte fallback, spaces written as one visible character."""
    vocab = {token: i for i, token in enumerate(tokens)}
    mergeable = {t: i for t, i in vocab.items() if types[i] in (_NORMAL, _USER_DEFINED)}
    merges = _derive_merges(mergeable, file.require("tokenizer.ggml.scores"))
    unknown = tokens[file.get("tokenizer.ggml.unknown_token_id", 0)]
    model = models.BPE(vocab, merges, unk_token=unknown, fuse_unk=True, byte_fallback=_BYTE in types)
    backend = tokenizers.Tokenizer(model)
    prefix = file.get("tokenizer.ggml.add_space_prefix", True)
    spaces = normalizers.Replace(" ", _SPACE)
    backend.normalizer = normalizers.Sequence([normalizers.Prepend(_SPACE), spaces]) if prefix else spaces
    steps = [decoders.Replace(_SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    backend.decoder = decoders.Sequence([*steps, decoders.Strip(" ", 1, 0)] if prefix else steps)
    return backend


def _derive_merges(vocab: dict[str, int], scores: Sequence[float]) -> list[tuple[str, str]]:
    """Every way to make a token of two others, best score first.

    Sentencepiece merges the neighbours whose whole has the highest score: a list of merges in that order does the same.
    Of the ways to make one token, the one whose left part has the lowest id comes first, as in published conversions.
    """
    merges = []
    for token, token_id in vocab.items():
        for cut in range(1, len(token)):
            left, right = vocab.get(token[:cut]), vocab.get(token[cut:])
            if left is not None and right is not None:
                merges.append((-scores[token_id], left, right, token[:cut], token[cut:]))
    merges.sort()
    return [(left, right) for *_, left, right in merges]
