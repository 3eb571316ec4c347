"""Real `core serve` processes, on free ports, shared by the tests of the server."""

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import tokenizers
from processes import Server, serve
from tokenizers import processors

BOS = "<|im_start|>"
TEMPLATE = """{{ bos_token }}{% if documents %}[{% for d in documents %}{{ d.text }};{% endfor %}]{% endif %}
{%- if mood is defined %}({{ mood }}){% endif %}{% if reasoning_effort is defined %}<{{ reasoning_effort }}>{% endif %}
{%- for m in messages %}{{ m.role }}:{{ m.content | trim }}|{% endfor %}
{%- if add_generation_prompt %}assistant:{% endif %}"""
"""Looks at everything that a client may give to a template."""


@pytest.fixture(scope="session")
def null_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """smollm2's tokenizer and template before a device whose next token is the last one plus 1."""
    names = ("--served-model-name", "smollm2", "--served-model-name", "other-name")
    folder = tmp_path_factory.mktemp("null")
    with serve(folder, "smollm2", "--device", "null", "--max-model-len", "2K", *names) as server:
        yield server


@pytest.fixture(scope="session")
def cpu_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """smollm2 for real."""
    with serve(tmp_path_factory.mktemp("cpu"), "--device", "cpu") as server:
        yield server


@pytest.fixture(scope="session")
def narrow_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """The null device with one sequence at a time: a long request keeps all others waiting for seconds."""
    with serve(tmp_path_factory.mktemp("narrow"), "--device", "null", "--max-num-seqs", "1") as server:
        yield server


@pytest.fixture(scope="session")
def guarded_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """The null device behind everything that keeps clients out: keys, origins, limits of size and of the queue. It logs
    in JSON. One sequence runs at a time."""
    door = ("--api-key", "first key", "--api-key", "second", "--allowed-origins", '["https://page.example"]')
    limits = ("--max-body-bytes", "20k", "--max-num-queued-reqs", "2", "--max-num-queued-tokens", "1000")
    args = ("--device", "null", "--max-num-seqs", "1", *door, *limits, "--log-format", "json")
    env = {"CORE_API_KEY": "third"}
    with serve(tmp_path_factory.mktemp("guarded"), *args, key="first key", env=env) as server:
        yield server


@pytest.fixture(scope="session")
def curious_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """The null device behind `TEMPLATE`, which requests may replace; with a tokenizer that puts BOS before a text. It
    may reason."""
    from test_start import write_model, write_weights

    folder = tmp_path_factory.mktemp("curious")
    (folder / "template.jinja").write_text(TEMPLATE)
    model = write_weights(write_model(folder / "model", max_position_embeddings=1024))
    backend = tokenizers.Tokenizer.from_file(str(model / "tokenizer.json"))
    backend.post_processor = processors.TemplateProcessing(single=f"{BOS} $A", special_tokens=[(BOS, 1)])
    backend.save(str(model / "tokenizer.json"))
    (model / "tokenizer_config.json").write_text(json.dumps({"bos_token": BOS, "eos_token": "<|im_end|>"}))
    flags = ("--chat-template", str(folder / "template.jinja"), "--trust-request-chat-template")
    names = ("--served-model-name", "smollm2", "--served-model-name", "other-name", "--reasoning-parser", "qwen3")
    with serve(folder, str(model), "--device", "null", *names, *flags) as server:
        yield server


@pytest.fixture(scope="session")
def smollm2() -> Any:
    """smollm2's files, as core opens them."""
    from core.model.source import open_source
    from core.plugin.loader import model_specs, weights_packages

    return open_source("smollm2", weights_packages(), list(model_specs().values()))


@pytest.fixture
def counting(smollm2: Any) -> Callable[[int, int], str]:
    """The text that the null device gives after token `last`: the `count` ids that follow it."""
    tokenizer = smollm2.tokenizer()
    return lambda last, count: tokenizer.decode(list(range(last + 1, last + 1 + count)))
