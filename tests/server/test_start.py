"""A server that cannot start says why in one line and ends with exit code 2: no traceback, no half-started process."""

import json
import socket
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from processes import run_core
from safetensors.numpy import save_file

from server.models import open_model
from tests.shares import quick_of

TINY = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": 49152, "hidden_size": 64,
    "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
    "max_position_embeddings": 512, "rms_norm_eps": 1e-5, "torch_dtype": "float32", "tie_word_embeddings": True,
    "hidden_act": "silu", "rope_theta": 10000.0,
}  # fmt: skip


def write_model(folder: Path, **config: Any) -> Path:
    """A folder with config and tokenizer, and no weights."""
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(TINY | config))
    open_model("smollm2").tokenizer().save(folder / "tokenizer.json")
    return folder


def write_weights(folder: Path) -> Path:
    """One of the model's tensors, all zeros."""
    save_file({"model.embed_tokens.weight": np.zeros((49152, 64), np.float32)}, folder / "model.safetensors")
    return folder


def refused(*args: str) -> str:
    done = run_core("serve", *args, "--port", "0")
    lines = done.stderr.splitlines()
    assert done.returncode == 2, done.stderr
    assert lines[-1].startswith("error: ")
    assert "Traceback" not in done.stderr
    assert len(lines) == 1, done.stderr
    return lines[0]


@pytest.mark.parametrize(
    ("model", "word"), quick_of([("./nothing-here", "nothing-here"), ("smollm3", "smollm2")], ("smollm3", "smollm2"))
)
def test_missing_model(model: str, word: str) -> None:
    assert word in refused(model)


def test_unknown_architecture(tmp_path: Path) -> None:
    folder = write_weights(write_model(tmp_path / "m", architectures=["WarpForCausalLM"]))
    line = refused(str(folder), "--device", "null")
    assert "WarpForCausalLM" in line
    assert "LlamaForCausalLM" in line


@pytest.mark.heavy
def test_missing_weights(tmp_path: Path) -> None:
    assert "safetensors" in refused(str(write_model(tmp_path / "m")), "--device", "cpu")


@pytest.mark.heavy
def test_pickle_weights(tmp_path: Path) -> None:
    folder = write_model(tmp_path / "m")
    (folder / "pytorch_model.bin").write_bytes(b"\x80\x04N.")
    assert "safetensors" in refused(str(folder), "--device", "cpu")


def test_missing_tensors(tmp_path: Path) -> None:
    folder = write_weights(write_model(tmp_path / "m"))
    assert "model.layers.0" in refused(str(folder), "--device", "cpu")


@pytest.mark.heavy
def test_truncated_weights(tmp_path: Path) -> None:
    folder = write_weights(write_model(tmp_path / "m"))
    whole = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(whole[: len(whole) // 2])
    assert "model.safetensors" in refused(str(folder), "--device", "cpu")


@pytest.mark.heavy
def test_truncated_gguf(tmp_path: Path) -> None:
    path = tmp_path / "short.gguf"
    path.write_bytes(b"GGUF\x03\x00\x00\x00")
    assert "short.gguf" in refused(str(path), "--device", "cpu")


@pytest.mark.heavy
def test_absurd_length(tmp_path: Path) -> None:
    assert "8192" in refused("smollm2", "--device", "null", "--max-model-len", "1000G")


@pytest.mark.heavy
def test_unknown_device() -> None:
    assert "warp" in refused("--device", "warp")


@pytest.mark.heavy
def test_no_room_for_one_sequence() -> None:
    line = refused("--device", "null", "--num-kv-blocks", "4", "--max-model-len", "1K")
    assert "max_model_len" in line


def test_port_in_use() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        done = run_core("serve", "--device", "null", "--port", str(taken.getsockname()[1]))
    assert done.returncode == 2
    assert "--port" in done.stderr.splitlines()[-1]


@pytest.mark.parametrize("host", quick_of(["256.1.1.1", "no-such-host.invalid"], "256.1.1.1"))
def test_wrong_host(host: str) -> None:
    assert host in refused("--device", "null", "--host", host)


@pytest.mark.parametrize("flag", [("--api-key", ""), ("--max-body-bytes", "0")])
def test_a_door_that_lets_everybody_in_or_nobody(flag: tuple[str, str]) -> None:
    """An empty key is what every request has that brings none: such a server would be open."""
    assert flag[0] in refused("--device", "null", *flag)
