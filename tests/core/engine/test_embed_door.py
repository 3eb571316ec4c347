"""Who may ask for embeddings, and how: the front, `LLM.embed`, checkpoints without a head, the engine's process."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path

import msgspec
import numpy as np
import pytest
import tokenizers
from tokenizers import processors
from transformers import AutoModel, AutoTokenizer, Qwen3Config

from core import LLM, EmbeddingOutput, EngineConfig, RequestError, SamplingParams
from core.engine.client import EngineClient
from core.engine.front import Front
from core.errors import ConfigError
from core.kv.prefix import KEY_BYTES
from tests.conftest import write_llama, write_tokenizer
from tests.core.engine.embedding import Server, worst_error
from tests.models.tiny import declare_pooling

EXACT = 1e-5
TEXTS = ["the quick brown fox", "größer naïve café 你好", ""]
GREEDY = SamplingParams(temperature=0.0, max_tokens=4)


@pytest.fixture(scope="session")
def pooled_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny Llama with normalised embeddings, whose tokenizer ends each text with id 2."""
    folder = declare_pooling(write_llama(tmp_path_factory.mktemp("pooled") / "llama"))
    backend = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    backend.post_processor = processors.TemplateProcessing(single="$A <|im_end|>", special_tokens=[("<|im_end|>", 2)])
    backend.save(str(folder / "tokenizer.json"))
    return folder


def test_texts_and_ids(pooled_dir):
    """Texts are encoded as transformers does it, with the end that the tokenizer appends."""
    oracle = AutoTokenizer.from_pretrained(pooled_dir)
    with LLM(str(pooled_dir), device="cpu", dtype="float32", num_kv_blocks=100) as llm:
        outs = llm.embed([*TEXTS, [5, 6, 7]])
        assert [out.prompt_ids for out in outs] == [*oracle(TEXTS)["input_ids"], [5, 6, 7]]
        assert all(out.prompt_ids[-1] == 2 for out in outs[:3])
        assert len({out.request_id for out in outs}) == 4
        for out in outs:
            assert isinstance(out, EmbeddingOutput)
            assert (out.embedding.dtype, out.embedding.shape) == (np.float32, (64,))
            assert out.embedding.flags.writeable
        prompts, vectors = [out.prompt_ids for out in outs], [out.embedding for out in outs]
        assert worst_error(pooled_dir, prompts, vectors, normalize=True) <= EXACT
        assert [len(llm.embed(prompt)) for prompt in ("one text", [5, 6, 7], [])] == [1, 1, 0]
        long = list(range(3, 100))
        assert [llm.embed(long)[0].num_cached for _ in range(2)] == [0, 96]
        assert llm.generate(TEXTS[0], GREEDY)[0].prompt_ids == outs[0].prompt_ids
        assert not llm.engine.busy


@pytest.mark.parametrize(
    ("prompt", "message"),
    [
        ([], "the prompt is empty"),
        ([5] * 513, "the prompt is 513 tokens: the limit is 512, max_model_len 512; shorten it"),
        ([384], "token id 384 is not in the vocabulary"),
    ],
)
def test_prompts_that_are_refused(pooled_dir, prompt, message):
    with LLM(str(pooled_dir), device="null") as llm:
        with pytest.raises(RequestError, match=message) as caught:
            llm.embed([[5, 6], prompt])
        assert caught.value.param == "prompt"
        assert not llm.engine.busy
        assert len(llm.embed([[5] * 512])) == 1


def test_a_model_that_declares_nothing_is_refused(tiny_llama_dir):
    with LLM(str(tiny_llama_dir), device="null") as llm, pytest.raises(RequestError, match="declare no pooling"):
        llm.embed("text")


def test_another_pooling_is_refused_and_the_model_generates(make_llama):
    folder = declare_pooling(make_llama(), "pooling_mode_mean_tokens")
    with LLM(str(folder), device="null") as llm:
        with pytest.raises(
            RequestError, match="declare the pooling 'mean': core makes embeddings of the last token only"
        ):
            llm.embed("text")
        assert llm.generate([5], GREEDY)[0].token_ids == [6, 7, 8, 9]


def test_requests_are_resolved(pooled_dir):
    server = Server(pooled_dir, device="null", block_size=4)
    request = server.front.embed_request(range(10), request_id="r", priority=3, cache_salt="s")
    assert (request.request_id, request.prompt_ids, request.priority) == ("r", list(range(10)), 3)
    assert (request.max_tokens, request.temperature, request.stop_ids) == (0, 0.0, [])
    assert request.pooling == server.engine.info().pooling
    assert len(request.prefix_keys) == 2 * KEY_BYTES
    assert request.prefix_keys != server.front.embed_request(range(10), request_id="r").prefix_keys
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(request), type=type(request)) == request
    server.engine.close()


# Checkpoints without a head


def headless(folder: Path, tied: bool, architecture: str = "Qwen3Model") -> Path:
    """As `AutoModel` writes it: tensors without "model." before their names."""
    config = Qwen3Config(
        vocab_size=384, hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, head_dim=16, max_position_embeddings=512, tie_word_embeddings=tied,
        bos_token_id=0, eos_token_id=2, initializer_range=0.1,
    )  # fmt: skip
    AutoModel.from_config(config).save_pretrained(folder)
    write_tokenizer(folder)
    raw = json.loads((folder / "config.json").read_text())
    assert raw["architectures"] == ["Qwen3Model"]
    (folder / "config.json").write_text(json.dumps({**raw, "architectures": [architecture]}))
    return folder


@pytest.mark.parametrize("architecture", ["Qwen3Model", "Qwen3ForCausalLM"])
@pytest.mark.parametrize("tied", [True, False])
def test_a_checkpoint_without_a_head(tmp_path, tied, architecture):
    folder = declare_pooling(headless(tmp_path / "m", tied, architecture), normalize=False)
    prompt = list(range(3, 70))
    with LLM(str(folder), device="cpu", dtype="float32", num_kv_blocks=50) as llm:
        assert worst_error(folder, [prompt], [llm.embed(prompt)[0].embedding]) <= EXACT
        if tied:
            assert len(llm.generate(prompt, GREEDY)[0].token_ids) == 4
        else:
            with pytest.raises(RequestError, match=r"no head \(lm_head.weight\): ask it for embeddings"):
                llm.generate(prompt, GREEDY)


def test_without_a_head_and_without_embeddings_there_is_nothing_to_serve(tmp_path):
    with pytest.raises(ConfigError, match=r"has no tensor lm_head\.weight"):
        LLM(str(headless(tmp_path / "m", tied=False)), device="cpu")


# The engine's process


def hidden(token_id: int) -> list[float]:
    """What the device without arithmetic gives, normalised."""
    return [float(i == token_id % 64) for i in range(64)]


def run(folder: Path, scenario: Callable[[EngineClient], object]) -> None:
    async def main() -> None:
        config = EngineConfig(model=str(folder), device="null", max_num_batched_tokens=8, num_kv_blocks=200)
        client = await EngineClient.start(config)
        try:
            await scenario(client)
        finally:
            await client.stop()

    asyncio.run(main())


def test_through_the_client(pooled_dir):
    """Each is one message, beside streams of tokens."""

    async def scenario(client: EngineClient) -> None:
        front = Front(client.info, [])
        assert client.info.pooling is not None

        async def tokens(name: str) -> list[int]:
            request = front.request([100], GREEDY, request_id=name)
            return [i async for output in client.add(request) for i in output.new_ids]

        asked = [front.embed_request([9] * length + [last], request_id=f"e{last}") for length, last in
                 ((0, 3), (7, 70), (30, 383))]  # fmt: skip
        outputs, ids = await asyncio.gather(
            asyncio.gather(*map(client.embed, asked)), asyncio.gather(*[tokens(f"g{i}") for i in range(5)])
        )
        assert ids == [[101, 102, 103, 104]] * 5
        for request, output in zip(asked, outputs, strict=True):
            assert (output.request_id, output.finish_reason, output.new_ids) == (request.request_id, "stop", [])
            assert np.frombuffer(output.embedding, "<f4").tolist() == hidden(request.prompt_ids[-1])

    run(pooled_dir, scenario)


def test_the_client_aborts_what_nobody_waits_for(pooled_dir):
    async def scenario(client: EngineClient) -> None:
        front = Front(client.info, [])
        many = [asyncio.create_task(client.embed(front.embed_request([i] * 500, request_id=str(i)))) for i in range(60)]
        while (await client.inspect(0)).num_running == 0:
            await asyncio.sleep(0.005)
        for task in many[1:]:
            task.cancel()
        results = await asyncio.gather(*many, return_exceptions=True)
        assert not isinstance(results[0], BaseException)
        assert results[0].embedding
        assert any(isinstance(result, asyncio.CancelledError) for result in results)
        while (held := await client.inspect(0)).num_running + held.num_waiting:
            await asyncio.sleep(0.005)
        assert held.groups[0].num_used == 0
        waiting = asyncio.create_task(client.embed(front.embed_request([7] * 512, request_id="last")))
        await asyncio.sleep(0)
        await client.abort("last")
        assert (await waiting).finish_reason in ("abort", "stop")

    run(pooled_dir, scenario)
