"""Prompts, the file of texts, and traces of them beside transformers."""

from __future__ import annotations

import itertools
import re
from pathlib import Path

import msgspec
import pytest
import torch

from core.config import EngineConfig
from core.engine.build import assemble
from core.engine.llm import LLM
from core.errors import ConfigError
from core.speculate.material import frequent
from core.speculate.prompts import code_prompts, prompts
from core.speculate.teacher import trace
from core.speculate.texts import GROUP, Order, Text, read_files, read_texts, write_texts
from tests.core.engine.oracle import reference

ORDER = Order(num_texts=GROUP + 6, row_tokens=24, temperatures=(0.0, 1.0), seed=3, held_out=False)


def test_held_out_prompts_are_about_other_topics() -> None:
    learn, held_out = ({*itertools.islice(prompts(kind, 0), 5000)} for kind in (False, True))
    assert len(learn) > 3000
    assert len(held_out) > 300
    assert not learn & held_out


def test_held_out_code_is_in_no_other_prompt() -> None:
    """Neither what it does, nor its name; some prompts are the beginning of it."""
    code = {*itertools.islice(code_prompts(0), 1000)}
    assert len(code) == 128
    others = "\n".join(
        {*itertools.islice(prompts(False, 0), 5000)} | {*itertools.islice(prompts(True, 0), 1000)}
    ).lower()
    begun = re.findall(r'def (\w+)\(.*\):\n    """It (.+)\."""\n', "\n".join(code))
    assert len(begun) == 16
    for name, does in begun:
        assert does not in others
        assert name.replace("_", " ") not in others
        assert sum(does in prompt for prompt in code) == 8


def test_orders_of_prompts_follow_from_the_seed() -> None:
    some = [list(itertools.islice(prompts(False, seed), 10)) for seed in (1, 1, 2)]
    assert some[0] == some[1] != some[2]


@pytest.fixture(scope="module")
def llm(tiny_llama_dir: Path) -> LLM:
    return LLM(str(tiny_llama_dir), device="cpu", dtype="float32", max_model_len=24, enable_prefix_caching=False)


def test_texts_are_written_once(llm: LLM, tmp_path: Path) -> None:
    path, told = tmp_path / "texts.jsonl", []
    texts = write_texts(llm, ORDER, path, lambda done, total: told.append((done, total)))
    assert told == [(GROUP, GROUP + 6), (GROUP + 6, GROUP + 6)]
    assert [text.temperature for text in texts[:3]] == [0.0, 1.0, 0.0]
    assert all(0 < text.num_prompt <= 12 and text.num_prompt < len(text.ids) <= 24 for text in texts)
    greedy = next(text for text in texts if len(text.ids) == 24)
    ids = torch.tensor([greedy.ids])
    wanted = reference(llm.plan.model)(ids).logits[0].argmax(-1)[greedy.num_prompt - 1 : -1]
    assert greedy.ids[greedy.num_prompt :] == wanted.tolist()
    assert write_texts(llm, ORDER, path, lambda done, total: told.append((0, 0))) == texts
    assert len(told) == 2


def test_a_torn_file_is_read_up_to_its_last_whole_group(tmp_path: Path) -> None:
    path = tmp_path / "texts.jsonl"
    line = msgspec.json.encode(Text(ids=[1, 2, 3])) + b"\n"
    for count, torn, kept in (
        (GROUP, b"", GROUP),
        (GROUP + 3, b'{"ids', GROUP),
        (GROUP + 6, b"", GROUP + 6),
        (5, b"", 0),
    ):
        path.write_bytes(line * count + torn)
        assert len(read_texts(path, ORDER)) == kept
        assert path.read_bytes() == line * kept


def test_files_become_rows(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("x" * 25)
    (tmp_path / "b").write_text("yz")
    rows = read_files([str(tmp_path / "a"), str(tmp_path / "b")], lambda text: [ord(c) for c in text], 10)
    assert [len(row.ids) for row in rows] == [10, 10, 2]
    with pytest.raises(ConfigError, match="b has 1 tokens: a text has 2 at least"):
        read_files([str(tmp_path / "b")], lambda text: [1], 10)
    (tmp_path / "c").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigError, match="cannot be read as UTF-8 text"):
        read_files([str(tmp_path / "c")], lambda text: [], 10)


@torch.inference_mode()
def test_traces_are_what_transformers_computes(tiny_llama_dir: Path, tmp_path: Path) -> None:
    """Ragged texts over several steps, and read again from the files alone."""
    torch.manual_seed(0)
    texts = [Text(ids=torch.randint(0, 384, (n,)).tolist(), num_prompt=n // 3) for n in (40, 2, 17, 33, 16)]
    config = EngineConfig(
        model=str(tiny_llama_dir), device="cpu", dtype="float32", max_model_len=40, max_num_batched_tokens=60
    )
    told: list[tuple[int, int]] = []
    found = trace(assemble(config), texts, 40, tmp_path, "t", lambda done, total: told.append((done, total)))
    assert told == [(3, 5), (5, 5)]
    for row, text in enumerate(texts):
        n = len(text.ids)
        whole = reference(str(tiny_llama_dir))(torch.tensor([text.ids]), output_hidden_states=True)
        torch.testing.assert_close(found.hidden_RLE[row, :n], whole.hidden_states[-1][0], atol=1e-4, rtol=1e-4)
        torch.testing.assert_close(found.total_RL[row, :n], whole.logits[0].logsumexp(-1), atol=1e-4, rtol=1e-4)
        assert found.best_RL[row, :n].tolist() == whole.logits[0].argmax(-1).tolist()
        assert found.ids_RL[row].tolist() == text.ids + [0] * (40 - n)
    again = trace(assemble(config), texts, 40, tmp_path, "t", silent_pair)
    assert torch.equal(again.hidden_RLE, found.hidden_RLE)
    assert not list(tmp_path.glob("*.part"))


def silent_pair(done: int, total: int) -> None:
    raise AssertionError("the model was run again")


def test_the_draft_vocabulary_is_what_is_most_frequent(tmp_path: Path) -> None:
    from core.speculate.teacher import Traces

    ids, best = torch.tensor([[3, 3, 5, 9], [5, 7, 0, 0]]), torch.tensor([[5, 3, 9, 2], [1, 7, 8, 8]]).int()
    lens = torch.tensor([4, 2])
    traces = Traces(ids, lens, lens, torch.empty(0), torch.empty(0), best)
    assert frequent(traces, 10, 3).tolist() == [3, 5, 7]  # 3 thrice, 5 thrice, of 7 and 9 the lower
    assert frequent(traces, 10, 99).tolist() == list(range(10))
    assert frequent(traces, 10, 3).dtype == torch.int32
