"""/v1/embeddings on a real model: vectors beside the engine's own, in both encodings; and what is refused."""

import base64
import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from processes import Server, serve

from core import LLM
from core.model.pooling import Pooling, write_folder

TEXTS = ["the quick brown fox", "hello world, how are you today?", "def add(a, b)"]
SIZE = 64


def make_model(plain: Path, folder: Path, **config: Any) -> Path:
    """The tiny Llama, which now declares embeddings."""
    shutil.copytree(plain, folder)
    write_folder(Pooling("last", normalize=True), folder)
    settings = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(settings | config))
    return folder


@pytest.fixture(scope="module")
def embedder(tiny_llama_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Trained to be cut to 16 or 32 numbers, as its config says."""
    folder = tmp_path_factory.mktemp("embedder")
    model = make_model(tiny_llama_dir, folder / "tiny", matryoshka_dimensions=[16, 32])
    with serve(folder, str(model), "--device", "cpu", "--served-model-name", "tiny") as server:
        yield server


@pytest.fixture(scope="module")
def vectors(tiny_llama_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> list[np.ndarray]:
    """What the engine makes of the texts in this process."""
    model = make_model(tiny_llama_dir, tmp_path_factory.mktemp("here") / "tiny")
    with LLM(str(model), device="cpu") as llm:
        return [output.embedding for output in llm.embed(TEXTS)]


def ask(server: Server, **body: Any) -> Any:
    answer = server.post("/v1/embeddings", {"model": "tiny", **body})
    assert answer.status_code == 200, answer.text
    return answer.json()


def test_both_encodings_are_the_engines_vectors(embedder: Server, vectors: list[np.ndarray]) -> None:
    numbers = ask(embedder, input=TEXTS)
    coded = ask(embedder, input=TEXTS, encoding_format="base64")
    assert [item["index"] for item in numbers["data"]] == [0, 1, 2]
    for number, code, wanted in zip(numbers["data"], coded["data"], vectors, strict=True):
        got = np.frombuffer(base64.b64decode(code["embedding"]), "<f4")
        np.testing.assert_array_equal(np.array(number["embedding"], np.float32), got)
        np.testing.assert_allclose(got, wanted, atol=1e-6)
        assert abs(float(np.linalg.norm(got)) - 1) < 1e-5


def test_texts_and_their_ids_are_the_same(embedder: Server) -> None:
    ids = [embedder.post("/tokenize", {"prompt": text}).json()["tokens"] for text in TEXTS]
    one, many = ask(embedder, input=TEXTS[0]), ask(embedder, input=ids)
    assert ask(embedder, input=ids[0])["data"] == one["data"]
    np.testing.assert_allclose(many["data"][0]["embedding"], one["data"][0]["embedding"], atol=1e-6)
    assert many["usage"] == {"prompt_tokens": sum(map(len, ids)), "total_tokens": sum(map(len, ids))}


def test_the_official_client(embedder: Server, vectors: list[np.ndarray]) -> None:
    """It asks for base64 by itself."""
    answer = embedder.openai.embeddings.create(model="tiny", input=TEXTS, dimensions=16)
    for item, wanted in zip(answer.data, vectors, strict=True):
        cut = wanted[:16] / np.linalg.norm(wanted[:16])
        np.testing.assert_allclose(np.array(item.embedding), cut, atol=1e-6)


@pytest.mark.parametrize(
    ("body", "param", "words"),
    [
        ({"input": TEXTS[0], "dimensions": 17}, "dimensions", ["17", "16, 32, 64"]),
        ({"input": TEXTS[0], "dimensions": 0}, "dimensions", ["0"]),
        ({"input": []}, "input", ["empty"]),
        ({"input": ["x", [1]]}, "input", ["one kind"]),
        ({"input": ["x"] * 2049}, "input", ["2049", "2048"]),
        ({"input": [[10**6]]}, "prompt", ["1000000"]),
        ({"input": [5] * 513}, "prompt", ["513", "512"]),
        ({"input": ""}, "prompt", ["empty"]),
        ({"input": "x", "encoding_format": "int8"}, "encoding_format", ["float", "base64"]),
        ({"input": "x", "truncate": True}, "truncate", ["leave it out"]),
        ({}, "input", ["missing"]),
    ],
)
def test_refusals(embedder: Server, body: dict[str, Any], param: str, words: list[str]) -> None:
    answer = embedder.post("/v1/embeddings", {"model": "tiny", **body})
    assert answer.status_code == 400
    error = answer.json()["error"]
    assert error["param"] == param
    for word in words:
        assert word in error["message"]
    ask(embedder, input=TEXTS[0])


def test_they_are_counted(embedder: Server) -> None:
    before = embedder.metrics()
    usage = ask(embedder, input=TEXTS)["usage"]
    after = embedder.metrics()
    assert after["prompt_tokens_total"] - before["prompt_tokens_total"] == usage["prompt_tokens"]
    stopped = 'request_success_total{finished_reason="stop"}'
    assert after[stopped] - before[stopped] == 3
    assert after["time_to_first_token_seconds_count"] == before["time_to_first_token_seconds_count"]


def test_a_model_without_pooling(null_server: Server) -> None:
    answer = null_server.post("/v1/embeddings", {"model": "smollm2", "input": "x"})
    assert answer.status_code == 400
    assert "no pooling" in answer.json()["error"]["message"]
