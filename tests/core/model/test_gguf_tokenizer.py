"""Tokenizers built from a vocabulary: against brute force, published patterns and the original."""

import json
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from transformers.models.qwen2.tokenization_qwen2 import PRETOKENIZE_REGEX

from core.errors import ConfigError
from core.model.gguf_reader import GgufFile
from core.model.gguf_tokenizer import _LLAMA3, _QWEN2, build_tokenizer
from core.model.tokenizer import Tokenizer, load_tokenizer

TEXTS = ["", "the quick fox", " 12345 x10", "größer 你好 👍🏽", "<|im_start|>user\nhi<|im_end|>", "a  b\n\n c\td "]


@pytest.mark.parametrize("text", TEXTS)
def test_byte_level_is_the_original(text: str, tiny_llama_dir: Path, make_gguf: Callable[..., Path]) -> None:
    ours, original = build_tokenizer(GgufFile(make_gguf(tiny_llama_dir))), load_tokenizer(tiny_llama_dir)
    assert ours.encode(text) == original.encode(text)
    assert ours.decode(original.encode(text)) == original.decode(original.encode(text))


@pytest.mark.parametrize(
    ("pre", "pieces"),
    [
        ("smollm", ["x", "Ġ", "1", "2", "3", "4", "Ġit", "'s", "ĊĊĠĠ", "Ġok"]),
        ("gpt-2", ["x", "Ġ1234", "Ġit", "'s", "ĊĊĠĠ", "Ġok"]),
        ("llama-bpe", ["x", "Ġ", "123", "4", "Ġit", "'s", "ĊĊ", "ĠĠ", "Ġok"]),
        ("qwen2", ["x", "Ġ", "1", "2", "3", "4", "Ġit", "'s", "ĊĊ", "ĠĠ", "Ġok"]),
    ],
)
def test_text_is_split_before_merging(
    pre: str, pieces: list[str], tiny_llama_dir: Path, make_gguf: Callable[..., Path]
) -> None:
    tokenizer = build_tokenizer(GgufFile(make_gguf(tiny_llama_dir, metadata={"tokenizer.ggml.pre": pre})))
    split = tokenizer._backend.pre_tokenizer.pre_tokenize_str("x 1234 it's\n\n   ok")
    assert [piece for piece, _ in split] == pieces


def test_patterns_are_the_published_ones() -> None:
    assert _QWEN2 == PRETOKENIZE_REGEX
    assert _LLAMA3.replace("{1,3}", "") == _QWEN2


@pytest.mark.parametrize(
    ("pre", "flags", "around"),
    [
        ("gpt-2", {}, ([], [])),
        ("llama-bpe", {}, ([0], [])),
        ("llama-bpe", {"add_bos_token": False}, ([], [])),
        ("gpt-2", {"add_bos_token": True, "add_eos_token": True}, ([0], [2])),
    ],
)
def test_flags_say_what_is_added(
    pre: str, flags: dict, around: tuple, tiny_llama_dir: Path, make_gguf: Callable[..., Path]
) -> None:
    tokenizer = build_tokenizer(GgufFile(make_gguf(tiny_llama_dir, metadata=keys(pre=pre, **flags))))
    plain = tokenizer.encode("hello", add_special_tokens=False)
    assert tokenizer.encode("hello") == [*around[0], *plain, *around[1]]


WORDS = ["▁", *"abcd", "ab", "▁a", "cd", "bc", "▁ab", "abc", "bcd", "aa", "abcd"]
SPM_TOKENS = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *WORDS, "<user>"]
SPM_TYPES = [2, 3, 3, *[6] * 256, *[1] * len(WORDS), 4]
SPM_SCORES = [0.0] * 259 + [-float(i) for i in range(len(WORDS))] + [0.0]


def keys(**values: object) -> dict[str, object]:
    return {f"tokenizer.ggml.{key}": value for key, value in values.items()}


def sentencepiece(path_of: Callable[..., Path], **more: object) -> Tokenizer:
    ids = {"bos_token_id": 1, "eos_token_id": 2, "unknown_token_id": 0}
    metadata = keys(model="llama", tokens=SPM_TOKENS, token_type=SPM_TYPES, scores=SPM_SCORES, **ids, **more)
    return build_tokenizer(GgufFile(path_of(metadata)))


def brute_force(text: str) -> list[int]:
    """Sentencepiece's own way: merge the neighbours whose whole scores best, leftmost first, until none is left."""
    ids = {token: i for i, token in enumerate(SPM_TOKENS)}
    parts = list("▁" + text.replace(" ", "▁")) if text else []
    while True:
        pairs = [(-SPM_SCORES[ids[a + b]], i) for i, (a, b) in enumerate(pairwise(parts)) if a + b in WORDS]
        if not pairs:
            break
        _, i = min(pairs)
        parts[i : i + 2] = [parts[i] + parts[i + 1]]
    out = [1]
    for part in parts:
        out += [ids[part]] if part in ids else [3 + byte for byte in part.encode()]
    return out


def test_sentencepiece_is_brute_force(make_bare_gguf: Callable[..., Path]) -> None:
    tokenizer = sentencepiece(make_bare_gguf)

    @given(st.text("abcd é你", max_size=20))
    def check(text: str) -> None:
        assert tokenizer.encode(text) == brute_force(text)
        assert tokenizer.decode(tokenizer.encode(text)) == text

    check()


def test_sentencepiece_flags(make_bare_gguf: Callable[..., Path]) -> None:
    tokenizer = sentencepiece(make_bare_gguf, add_space_prefix=False, add_bos_token=False, add_eos_token=True)
    tokens = [tokenizer.id_to_token(i) for i in tokenizer.encode("ab<user>ab")]
    assert tokens == ["ab", "<user>", "ab", "</s>"]
    assert tokenizer.decode(tokenizer.encode(" ab<user>")) == " ab<user>"
    assert tokenizer.special_ids == {0, 1, 2}


def test_saved_tokenizer_is_the_same(make_bare_gguf: Callable[..., Path], tmp_path: Path) -> None:
    tokenizer = sentencepiece(make_bare_gguf)
    tokenizer.save(tmp_path / "tokenizer.json")
    again = load_tokenizer(tmp_path)
    assert isinstance(json.loads((tmp_path / "tokenizer.json").read_text()), dict)
    assert again.encode("ab é<user>") == tokenizer.encode("ab é<user>")


def test_refused_by_name(make_bare_gguf: Callable[..., Path]) -> None:
    def build(**values: object) -> None:
        metadata = keys(tokens=["a", "b", "ab"], token_type=[1, 1, 1], merges=["a b"], **values)
        build_tokenizer(GgufFile(make_bare_gguf(metadata)))

    with pytest.raises(ConfigError, match="a tokenizer of kind 'bert': core knows 'gpt2' and 'llama'"):
        build(model="bert")
    with pytest.raises(ConfigError, match="splits text as 'tekken' before BPE: core knows deepseek-r1-qwen, default"):
        build(model="gpt2", pre="tekken")
    with pytest.raises(ConfigError, match=r"no metadata key 'tokenizer\.ggml\.bos_token_id'"):
        build(model="gpt2", add_bos_token=True)
