"""What a request leaves out: the server's flag, then the model's generation_config.json, then OpenAI's default."""

import json
from pathlib import Path
from typing import Any

import pytest
from processes import Server, serve
from test_start import refused, write_model, write_weights

from core.errors import ConfigError
from server.defaults import resolve
from server.models import open_model

LAST = 5000


def model_with(folder: Path, **entries: Any) -> Path:
    """A tiny Llama with this generation_config.json."""
    (write_weights(write_model(folder)) / "generation_config.json").write_text(json.dumps(entries))
    return folder


def ask(server: Server, model: Path, **body: Any) -> Any:
    response = server.post("/v1/completions", {"model": str(model), "prompt": [LAST], **body})
    assert response.status_code == 200, response.text
    return response.json()


def ids_after(last: int, count: int) -> str:
    return open_model("smollm2").tokenizer().decode(list(range(last + 1, last + 1 + count)))


def test_the_model_decides_what_the_request_leaves_out(tmp_path: Path) -> None:
    model = model_with(tmp_path / "m", temperature=1.5, top_k=1, max_new_tokens=5, do_sample=True, top_p=None)
    with serve(tmp_path, str(model), "--device", "null") as server:
        log = server.log.read_text()
        assert "generation_config.json" in log
        assert "1.5" in log
        assert ask(server, model)["choices"][0]["text"] == ids_after(LAST, 5)
        assert ask(server, model, max_tokens=7)["choices"][0]["text"] == ids_after(LAST, 7)
        assert ask(server, model, top_k=0, seed=1)["choices"][0]["text"] != ids_after(LAST, 5)
        assert ask(server, model, top_k=0, temperature=0)["choices"][0]["text"] == ids_after(LAST, 5)
        # The model's limit gives way to the room left; a client's own does not.
        assert ask(server, model, prompt=[LAST] * 510)["usage"]["completion_tokens"] == 2
        body = {"model": str(model), "prompt": [LAST] * 510, "max_tokens": 5}
        assert server.post("/v1/completions", body).status_code == 400


@pytest.mark.heavy
def test_a_flag_wins_over_the_model(tmp_path: Path) -> None:
    model = model_with(tmp_path / "m", temperature=1.5, max_new_tokens=5)
    flags = ("--generation-config", "none", "--override-generation-config", '{"temperature": 0}')
    with serve(tmp_path, str(model), "--device", "null", *flags) as server:
        assert ask(server, model)["choices"][0]["text"] == ids_after(LAST, 16)
        log = server.log.read_text()
        assert "--override" in log
        assert "generation_config.json" not in log


def test_every_entry_counts(tmp_path: Path) -> None:
    entries = {"temperature": 0.5, "top_k": 9, "top_p": 0.8, "min_p": 0.1, "repetition_penalty": 1.1}
    source = open_model(str(model_with(tmp_path / "m", **entries, max_new_tokens=3, max_length=20)))
    sampling, rows = resolve(source, "auto", '{"top_k": 4}')
    assert {field: getattr(sampling, field) for field in entries} == entries | {"top_k": 4}
    assert sampling.max_tokens == 3
    assert ("top_k", "4", "--override-generation-config") in rows
    assert len(rows) == 6
    assert resolve(source, "none", "{}")[1] == []


def test_gguf_has_none() -> None:
    sampling, rows = resolve(open_model("smollm2"), "auto", "{}")
    assert rows == []
    assert (sampling.temperature, sampling.max_tokens) == (1.0, None)


@pytest.mark.parametrize(
    "override", ["{", "[]", '{"top_j": 1}', '{"top_k": null}', '{"top_k": 1.5}', '{"temperature": -1}']
)
def test_wrong_override(override: str) -> None:
    with pytest.raises(ConfigError, match="--override-generation-config"):
        resolve(open_model("smollm2"), "auto", override)


@pytest.mark.heavy
def test_wrong_generation_config_is_refused_at_start(tmp_path: Path) -> None:
    line = refused(str(model_with(tmp_path / "m", temperature="hot")), "--device", "null")
    assert "generation_config.json" in line
    assert "'hot'" in line
