"""A family that another distribution brings, made by following models/README.md."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file

from core.errors import ConfigError
from tests.conftest import write_llama
from tests.core.engine.oracle import Recorded, worst_error
from tests.plugins import install_plugin

LLAMA_NORM = "post_attention_layernorm"

# Llama, but for the name of a norm in checkpoints, and a first layer that does not see positions.
FAMILY = """
from core.model.attention import Unturned
from core.model.decoder import Decoder, DecoderLayer
from core.model.decoder_config import DecoderConfig, only, read_decoder
from core.model.spec import ModelSpec
from core.plugin import hookimpl

API = (1, 0)


def read_config(raw, max_len):
    only("quagga", raw, "hidden_act", "silu")
    only("quagga", raw, "stripes", 3)
    return DecoderConfig(**read_decoder(raw, max_len))


def build(config, b):
    def layer(parts):
        return DecoderLayer(
            parts.attention(parts.rotary() if parts.index else Unturned()),
            parts.add_norm("stripe_norm"),
            parts.mlp(),
        )

    return Decoder(config, b, layer)


@hookimpl
def core_models():
    return [ModelSpec(architectures=("QuaggaForCausalLM",), read_config=read_config, build=build)]
"""


@pytest.fixture
def quagga(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A checkpoint of the family, and the family itself installed."""
    install_plugin(monkeypatch, tmp_path / "site", "quagga", FAMILY, group="core.models")
    folder = write_llama(tmp_path / "quagga", num_hidden_layers=2)
    tensors = {}
    for shard in folder.glob("*.safetensors"):
        for name, tensor in load_file(shard).items():
            tensors[name.replace(LLAMA_NORM, "stripe_norm")] = tensor
        shard.unlink()
    (folder / "model.safetensors.index.json").unlink()
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    edit(folder, architectures=["QuaggaForCausalLM"], stripes=3)
    return folder


def edit(folder: Path, **values: object) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **values}))


def transformers_twin(quagga: Path, folder: Path) -> Path:
    """The same model as transformers knows it: SmolLM3 has layers that do not see positions."""
    from transformers import SmolLM3Config, SmolLM3ForCausalLM

    raw = json.loads((quagga / "config.json").read_text())
    names = (
        "vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads",
        "num_key_value_heads", "head_dim", "rms_norm_eps", "rope_parameters",
    )  # fmt: skip
    same = {name: raw[name] for name in names}
    model = SmolLM3ForCausalLM(SmolLM3Config(**same, no_rope_layers=[0, 1], tie_word_embeddings=False, pad_token_id=0))
    tensors = load_file(quagga / "model.safetensors")
    model.load_state_dict({name.replace("stripe_norm", LLAMA_NORM): tensor for name, tensor in tensors.items()})
    model.save_pretrained(folder)
    return folder


def test_a_family_of_another_distribution_is_served(quagga: Path, tmp_path: Path) -> None:
    engine = Recorded(quagga, device="cpu", dtype="float32", num_kv_blocks=20, max_model_len=128)
    runs = engine.run([[5 + i for i in range(40)], [7, 8, 9]], max_tokens=4)
    engine.close()
    assert worst_error(transformers_twin(quagga, tmp_path / "twin"), runs) <= 1e-4


def test_its_refusals_reach_the_user(quagga: Path) -> None:
    edit(quagga, stripes=4)
    with pytest.raises(ConfigError, match="stripes is 4: the quagga family is served with 3 only"):
        Recorded(quagga, device="cpu")
