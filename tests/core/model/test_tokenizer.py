"""Encoding, decoding bit by bit, and stop strings: the same however the stream is cut."""

import json
import shutil
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import decoders, models, processors
from transformers import AutoTokenizer

from core.errors import ConfigError, RequestError
from core.model.tokenizer import Detokenizer, StopStrings, Tokenizer, load_tokenizer

TEXTS = [
    "",
    "hello world",
    "  two  spaces \n\n\tand tabs ",
    "größer 你好 👍🏽 é\u0301 \x00",
    "<|im_start|>user\nhi<|im_end|>\n",
    "def f(x):\n    return x[1234]",
]


@pytest.fixture(scope="module")
def byte_level(tiny_llama_dir: Path) -> Tokenizer:
    return load_tokenizer(tiny_llama_dir)


@pytest.fixture(scope="module")
def sentencepiece() -> Tokenizer:
    """A vocabulary of bytes, letters and a few words, with the decoder that Llama 2 has."""
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *"▁abcdeé你", "▁a", "▁ab", "cd"]
    backend = tokenizers.Tokenizer(
        models.BPE(
            {token: i for i, token in enumerate(tokens)},
            [("▁", "a"), ("▁a", "b"), ("c", "d")],
            unk_token="<unk>",
            byte_fallback=True,
        )
    )
    backend.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    backend.add_special_tokens(tokens[:3])
    return Tokenizer(backend)


def stream(tokenizer: Tokenizer, ids: list[int], sizes: list[int], context: list[int], skip: bool) -> str:
    """`ids` cut into pieces of `sizes`, over and over."""
    detokenizer = Detokenizer(tokenizer, context, skip)
    out, start = "", 0
    while start < len(ids):
        size = sizes[0]
        sizes = [*sizes[1:], size]
        out += detokenizer.push(ids[start : start + size])
        start += size
    return out + detokenizer.finish()


@given(data=st.data(), sizes=st.lists(st.integers(1, 5), min_size=1, max_size=4), skip=st.booleans())
@pytest.mark.parametrize("kind", ["byte_level", "sentencepiece"])
def test_stream_equals_whole(kind: str, data: st.DataObject, sizes: list[int], skip: bool, request) -> None:
    tokenizer: Tokenizer = request.getfixturevalue(kind)
    ids = data.draw(st.lists(st.integers(0, tokenizer.vocab_size + 3), max_size=30))
    whole = tokenizer.decode(ids, skip)
    assert stream(tokenizer, ids, sizes, [], skip) == whole
    cut = data.draw(st.integers(0, min(8, len(ids))))
    before, detokenizer = tokenizer.decode(ids[:cut], skip), Detokenizer(tokenizer, [], skip)
    if detokenizer.push(ids[:cut]) == before:
        assert before + stream(tokenizer, ids[cut:], sizes, ids[:cut], skip) == whole


@given(text=st.text(), sizes=st.lists(st.integers(1, 5), min_size=1, max_size=4))
def test_text_comes_back(byte_level: Tokenizer, text: str, sizes: list[int]) -> None:
    ids = byte_level.encode(text)
    assert byte_level.decode(ids, skip_special_tokens=False) == text
    assert stream(byte_level, ids, sizes, [], False) == text


@given(ids=st.lists(st.integers(0, 400), max_size=30), skip=st.booleans())
def test_decode_is_the_library_s(byte_level: Tokenizer, tiny_llama_dir: Path, ids: list[int], skip: bool) -> None:
    library = tokenizers.Tokenizer.from_file(str(tiny_llama_dir / "tokenizer.json"))
    assert byte_level.decode(ids, skip) == library.decode(ids, skip_special_tokens=skip)


def test_sentencepiece_decode_is_the_library_s(sentencepiece: Tokenizer) -> None:
    for text in ["▁ab▁cd", "▁你é▁", "ab", "▁▁a"]:
        ids = [*sentencepiece.encode(text), 1]
        assert sentencepiece.decode(ids) == sentencepiece._backend.decode(ids)
    assert sentencepiece.decode([3 + byte for byte in "👍".encode()]) == "👍"


def test_character_in_pieces_is_never_shown_in_part(byte_level: Tokenizer) -> None:
    pieces = byte_level.encode("👾")
    assert len(pieces) > 2
    detokenizer = Detokenizer(byte_level)
    assert [detokenizer.push([piece]) for piece in pieces] == [*[""] * (len(pieces) - 1), "👾"]
    assert detokenizer.finish() == ""


def test_broken_character_is_shown_once_it_is_certain(byte_level: Tokenizer) -> None:
    first, *_ = byte_level.encode("👾")
    detokenizer = Detokenizer(byte_level)
    assert detokenizer.push([first]) == ""
    assert detokenizer.push(byte_level.encode("a")) == "\ufffda"
    assert detokenizer.push([first]) == ""
    assert detokenizer.finish() == "\ufffd"


def test_context_keeps_a_leading_space(sentencepiece: Tokenizer) -> None:
    word = [sentencepiece.token_to_id("▁ab")]
    assert Detokenizer(sentencepiece).push(word) == "ab"
    assert Detokenizer(sentencepiece, word).push(word) == " ab"
    assert Detokenizer(sentencepiece, [1]).push(word) == "ab"


def test_token_bytes(byte_level: Tokenizer, sentencepiece: Tokenizer) -> None:
    assert byte_level.token_bytes(1) == b"<|im_start|>"
    assert b"".join(map(byte_level.token_bytes, byte_level.encode(" é\n"))) == " é\n".encode()
    assert sentencepiece.token_bytes(3 + 0xE4) == b"\xe4"
    assert sentencepiece.token_bytes(sentencepiece.vocab_size) == b""


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("around", [None, ["<|endoftext|>:0", "$A:0"], ["<|endoftext|>:0", "$A:0", "<|im_end|>:0"]])
@pytest.mark.parametrize("flag", [True, False])
def test_ids_are_transformers(text: str, around: list | None, flag: bool, tiny_llama_dir: Path, tmp_path: Path) -> None:
    """tokenizer.json decides what is added to a text; the flags of tokenizer_config.json are history."""
    folder = Path(shutil.copytree(tiny_llama_dir, tmp_path / "copy"))
    backend = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    if around:
        special_tokens = [("<|endoftext|>", 0), ("<|im_end|>", 2)]
        backend.post_processor = processors.TemplateProcessing(single=around, pair=None, special_tokens=special_tokens)
    backend.save(str(folder / "tokenizer.json"))
    config = json.loads((folder / "tokenizer_config.json").read_text())
    (folder / "tokenizer_config.json").write_text(json.dumps({**config, "add_bos_token": flag}))
    ours, theirs = load_tokenizer(folder), AutoTokenizer.from_pretrained(folder)
    for add in (True, False):
        assert ours.encode(text, add_special_tokens=add) == theirs.encode(text, add_special_tokens=add)


def test_vocabulary(byte_level: Tokenizer) -> None:
    assert byte_level.vocab_size == 384
    assert byte_level.special_ids == {0, 1, 2}
    assert byte_level.id_to_token(2) == "<|im_end|>"
    assert byte_level.token_to_id("<|im_end|>") == 2
    assert byte_level.id_to_token(384) is None


def test_truncation_in_the_file_is_not_applied(tiny_llama_dir: Path, tmp_path: Path) -> None:
    backend = tokenizers.Tokenizer.from_file(str(tiny_llama_dir / "tokenizer.json"))
    backend.enable_truncation(2)
    backend.enable_padding(length=5)
    backend.save(str(tmp_path / "tokenizer.json"))
    assert len(load_tokenizer(tmp_path).encode("hello world")) > 5


def test_half_a_character_is_refused(byte_level: Tokenizer) -> None:
    with pytest.raises(RequestError, match="half of a character at position 2"):
        byte_level.encode("ab\ud800")


def remove(path: Path) -> None:
    path.unlink()


def spoil(path: Path) -> None:
    path.write_text("{}")


def no_decoder(path: Path) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text()), "decoder": None}))


def other_decoder(path: Path) -> None:
    decoder = {"type": "WordPiece", "prefix": "##", "cleanup": True}
    path.write_text(json.dumps({**json.loads(path.read_text()), "decoder": decoder}))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (remove, r"has no tokenizer\.json"),
        (spoil, "cannot be read"),
        (no_decoder, "has no decoder"),
        (other_decoder, "decodes with 'WordPiece'"),
    ],
)
def test_refused(change: Callable[[Path], None], message: str, tiny_llama_dir: Path, tmp_path: Path) -> None:
    shutil.copy(tiny_llama_dir / "tokenizer.json", tmp_path)
    change(tmp_path / "tokenizer.json")
    with pytest.raises(ConfigError, match=message):
        load_tokenizer(tmp_path)


def naive_stop(text: str, stops: list[str]) -> tuple[str, str | None]:
    found = [(text.find(stop), -len(stop), stop) for stop in stops if stop in text]
    if not found:
        return text, None
    start, _, stop = min(found)
    return text[:start], stop


@given(
    text=st.text("abc", max_size=30),
    stops=st.lists(st.text("abc", min_size=1, max_size=4), min_size=1, max_size=4),
    sizes=st.lists(st.integers(1, 4), min_size=1, max_size=4),
)
def test_stop_strings_do_not_depend_on_the_cuts(text: str, stops: list[str], sizes: list[int]) -> None:
    finder, out, matched, start = StopStrings(stops), "", None, 0
    while start < len(text):
        size = sizes[0]
        sizes = [*sizes[1:], size]
        emitted, matched = finder.push(text[start : start + size])
        out += emitted
        start += size
    emitted, matched = finder.flush()
    assert (out + emitted, matched) == naive_stop(text, stops)


def test_only_a_possible_start_of_a_stop_is_held_back() -> None:
    finder = StopStrings(["\n\nUser:", "</s>"])
    assert finder.push("hello\n") == ("hello", None)
    assert finder.push("world") == ("\nworld", None)
    assert finder.push("<") == ("", None)
    assert finder.push("/s") == ("", None)
    assert finder.push("> more") == ("", "</s>")
    assert finder.push("even more") == ("", "</s>")
    assert finder.flush() == ("", "</s>")
    assert StopStrings([]).push("all of it") == ("all of it", None)


def test_a_stop_string_may_be_part_of_the_output() -> None:
    finder = StopStrings(["###", "##a"], included=True)
    assert finder.push("one #") == ("one ", None)
    assert finder.push("#a two") == ("##a", "##a")
    assert finder.push("more") == ("", "##a")
    finder = StopStrings(["##"], included=True)
    assert (finder.push("one #"), finder.flush()) == (("one ", None), ("#", None))


def test_other_threads_run_while_a_long_text_is_encoded(byte_level: Tokenizer) -> None:
    text = "word " * 400_000
    work = threading.Thread(target=byte_level.encode, args=(text,))
    began_s, longest_s = time.monotonic(), 0.0
    last_s = began_s
    work.start()
    while work.is_alive():
        time.sleep(0.002)
        now_s = time.monotonic()
        longest_s, last_s = max(longest_s, now_s - last_s), now_s
    assert longest_s < (last_s - began_s) / 2
