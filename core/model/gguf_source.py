"""Weights, config and tokenizer from one GGUF file.

Owns the translation of tensor names, and reading parts of quantised tensors. Refuses families without a spec,
and quantisations that are not listed in `TYPES`.

A family's `gguf_fix(name, array, config)` undoes what conversion did to a tensor. It is called with a column of row
numbers first: where it only reorders rows, just the rows asked for are dequantised; else the whole tensor is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import gguf
import numpy as np

from core.errors import ConfigError
from core.model.gguf_config import read_config, read_eos_ids
from core.model.gguf_reader import GgufFile
from core.model.gguf_tokenizer import build_tokenizer
from core.model.pooling import Pooling, read_gguf
from core.model.tokenizer import Tokenizer

if TYPE_CHECKING:
    import torch

    from core.kernels.schemes import Quantised
    from core.model.spec import ModelSpec

TYPES = ("F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q4_K", "Q5_K", "Q6_K")
_PLAIN = {"F32": "float32", "F16": "float16", "BF16": "bfloat16"}

_SCHEMES = {"Q4_0": "q4_1", "Q4_1": "q4_1", "Q8_0": "q8_0"}
_MOST_SCALE = 65504 / 8  # of Q4_0, whose minimum is 8 times the scale: what float16 holds

# Stands for rope settings, which the config holds: not a tensor of the model.
_NOT_WEIGHTS = ("rope_freqs.weight",)

_OUTER_STEMS = ("model.embed_tokens", "model.norm", "lm_head")
_LAYER_STEMS = (
    *("input_layernorm", "post_attention_layernorm", "pre_feedforward_layernorm", "post_feedforward_layernorm"),
    *(f"self_attn.{part}" for part in ("q_proj", "k_proj", "v_proj", "qkv_proj", "o_proj", "q_norm", "k_norm")),
    "mlp.down_proj",
)


class GgufSource:
    """A `ModelSource` over a GGUF file. `generation_config` is empty: the format has none."""

    def __init__(self, path: Path, name: str, specs: Sequence[ModelSpec]) -> None:
        """Raises: ConfigError when the file is damaged, or its family or a tensor's type is not supported."""
        self.name = name
        self.path = path
        self._file = GgufFile(path)
        arch = self._file.require("general.architecture")
        spec = next((spec for spec in specs if spec.gguf_arch == arch), None)
        if spec is None:
            known = ", ".join(sorted(spec.gguf_arch for spec in specs if spec.gguf_arch)) or "none"
            raise ConfigError(f"{path} is of family {arch!r}: core knows these families in GGUF files: {known}")
        self._fix = spec.gguf_fix
        self._check_types()
        self.config: dict[str, Any] = read_config(self._file, spec.architectures)
        if spec.gguf_config:
            self.config.update(spec.gguf_config(lambda key: self._file.get(f"{arch}.{key}"), self.config))
        self.generation_config: dict[str, Any] = {}
        self._gguf_names = self._translate(arch)

    def _check_types(self) -> None:
        for name, tensor in self._file.tensors.items():
            if tensor.tensor_type.name not in TYPES:
                raise ConfigError(
                    f"tensor {name} of {self._file.path} is of type {tensor.tensor_type.name}: core reads "
                    f"{', '.join(TYPES)}; take a file with one of these"
                )

    def _translate(self, arch: str) -> dict[str, str]:
        """Checkpoint name -> name in the file, for every tensor of the file."""
        arch_id = next(key for key, value in gguf.MODEL_ARCH_NAMES.items() if value == arch)
        num_layers = self.config["num_hidden_layers"]
        name_map = gguf.get_tensor_name_map(arch_id, num_layers)
        # A family without gates of their own has them joined with what they gate, under the same name in GGUF.
        apart = "blk.0.ffn_gate.weight" in self._file.tensors
        inner = ["mlp.gate_proj", "mlp.up_proj"] if apart else ["mlp.gate_up_proj"]
        layer_stems = [*_LAYER_STEMS, *inner]
        stems = [*_OUTER_STEMS, *(f"model.layers.{i}.{stem}" for i in range(num_layers) for stem in layer_stems)]
        out = {}
        for stem in stems:
            gguf_stem = name_map.get_name(stem)
            for suffix in (".weight", ".bias"):
                if gguf_stem and gguf_stem + suffix in self._file.tensors:
                    out[stem + suffix] = gguf_stem + suffix
        unknown = set(self._file.tensors) - set(out.values()) - set(_NOT_WEIGHTS)
        if unknown:
            raise ConfigError(
                f"{self._file.path} has {len(unknown)} tensors that core has no place for, such as {min(unknown)}"
            )
        return out

    @cached_property
    def eos_ids(self) -> list[int]:
        return read_eos_ids(self._file)

    @cached_property
    def special_tokens(self) -> dict[str, str]:
        ids = {key: self._file.get(f"tokenizer.ggml.{key}_token_id") for key in ("bos", "eos", "unknown", "padding")}
        names = {"bos": "bos_token", "eos": "eos_token", "unknown": "unk_token", "padding": "pad_token"}
        tokens = self._file.require("tokenizer.ggml.tokens")
        return {names[key]: tokens[i] for key, i in ids.items() if i is not None}

    @property
    def chat_template(self) -> str | None:
        template: str | None = self._file.get("tokenizer.chat_template")
        return template

    @property
    def pooling(self) -> Pooling | None:
        arch = self._file.require("general.architecture")
        return read_gguf(lambda key: self._file.get(f"{arch}.{key}"))

    @property
    def size_bytes(self) -> int:
        return sum(int(tensor.n_bytes) for tensor in self._file.tensors.values())

    @cached_property
    def _tokenizer(self) -> Tokenizer:
        return build_tokenizer(self._file)

    def tokenizer(self) -> Tokenizer:
        return self._tokenizer

    def names(self) -> list[str]:
        return list(self._gguf_names)

    def shape(self, name: str) -> tuple[int, ...]:
        return tuple(int(size) for size in reversed(self._tensor(name).shape))

    def dtype(self, name: str) -> str:
        stored: str = self._tensor(name).tensor_type.name
        return _PLAIN.get(stored, stored)

    def _tensor(self, name: str) -> Any:
        if name not in self._gguf_names:
            raise ConfigError(f"{self._file.path} has no tensor {name}: it is incomplete, or of another family")
        return self._file.tensors[self._gguf_names[name]]

    def read(self, name: str, rows: slice | None = None, columns: slice | None = None) -> torch.Tensor:
        """As `ModelSource.read`: float32. Blocks lie along rows, so rows are read alone and columns cut afterwards."""
        import torch

        stored_type = self._tensor(name).tensor_type
        stored = self._file.stored(self._gguf_names[name])
        rows = rows or slice(None)
        order = self._row_order(name)
        if order is not None:
            array = gguf.dequantize(stored[order[rows]], stored_type)
        else:
            array = gguf.dequantize(stored, stored_type)
            array = self._fix(name, array, self.config)[rows] if self._fix else array[rows]
        if columns is not None:
            array = array[:, columns]
        return torch.from_numpy(np.require(array, np.float32, "W"))  # a copy only of what the file holds as it is

    def quantised(self, name: str) -> _BlockTensor | None:
        """As `ModelSource.quantised`: tensors of types in `_SCHEMES`, unless the family's fix changes their values."""
        tensor = self._tensor(name)
        if tensor.tensor_type.name not in _SCHEMES:
            return None
        order = self._row_order(name)
        if order is None:
            return None
        return _BlockTensor(name, tensor.tensor_type, self._file.stored(self._gguf_names[name]), order)

    def _row_order(self, name: str) -> np.ndarray | None:
        """The stored row of every row, when the family's fix only reorders rows; None when it changes values.

        Found by fixing a column of row numbers.
        """
        num_rows, *others = self.shape(name)
        numbers = np.arange(num_rows, dtype=np.float64)
        if self._fix is None:
            return numbers.astype(np.int64)
        fixed = self._fix(name, numbers.reshape(num_rows, *[1 for _ in others]), self.config).reshape(-1)
        return fixed.astype(np.int64) if np.array_equal(np.sort(fixed), numbers) else None


class _BlockTensor:
    """A `QuantisedTensor` over the stored blocks: 2 bytes of scale, of Q4_1 2 of minimum, then codes.

    Q4_0 is Q4_1 whose minimum is -8 times the scale, which is exact in float16.

    data    [N, bytes of a row] uint8
    order   the stored row of every row
    """

    def __init__(self, name: str, kind: gguf.GGMLQuantizationType, data: np.ndarray, order: np.ndarray) -> None:
        self.scheme = _SCHEMES[kind.name]
        self._name, self._kind, self._order = name, kind.name, order
        self._blocks = data.reshape(len(data), -1, gguf.GGML_QUANT_SIZES[kind][1])

    def read(self, rows: slice, columns: slice | None = None) -> Quantised:
        import torch

        from core.kernels.schemes import BLOCK, QUANTISED

        part = slice(None) if columns is None else slice(columns.start // BLOCK, columns.stop // BLOCK)
        blocks = self._blocks[self._order[rows]][:, part]
        scale = _halves(blocks, 0)
        if self._kind == "Q8_0":
            codes, minimum = blocks[..., 2:].view(np.int8), []
        else:
            codes = blocks[..., -BLOCK // 2 :]
            minimum = [_halves(blocks, 2) if self._kind == "Q4_1" else self._minimum(scale)]
        parts = (codes.reshape(len(blocks), -1), scale, *minimum)
        return QUANTISED[self.scheme]._make(map(torch.from_numpy, parts))

    def _minimum(self, scale: np.ndarray) -> np.ndarray:
        """Of Q4_0. Raises: ConfigError."""
        if (np.abs(scale) > _MOST_SCALE).any():
            raise ConfigError(
                f"tensor {self._name} has a scale of {np.abs(scale).max()}: packed weights of type Q4_0 take scales up "
                f"to {_MOST_SCALE:.0f}; give --weights dequantised"
            )
        return scale * np.float16(-8)


def _halves(blocks: np.ndarray, at: int) -> np.ndarray:
    """The float16 numbers at byte `at` of each block."""
    return np.ascontiguousarray(blocks[..., at : at + 2]).view(np.float16)[..., 0]


def unpermute_rope(array: np.ndarray, num_heads: int) -> np.ndarray:
    """Puts the rows of a query or key projection back in a checkpoint's order. [heads * D, ...] -> the same.

    GGUF's llama rotates neighbouring dimensions of a head (0 with 1), checkpoints dimensions that lie half a head
    apart (0 with D/2); conversion interleaved the two halves.
    """
    halves = array.reshape(num_heads, array.shape[0] // num_heads // 2, 2, *array.shape[1:])
    return halves.swapaxes(1, 2).reshape(array.shape)


def unpermute_qk(name: str, tensor: np.ndarray, config: Mapping[str, Any]) -> np.ndarray:
    """A `gguf_fix` for families whose conversion interleaves the halves that rope turns: puts them back."""
    if name.endswith(("q_proj.weight", "q_proj.bias")):
        return unpermute_rope(tensor, config["num_attention_heads"])
    if name.endswith(("k_proj.weight", "k_proj.bias")):
        return unpermute_rope(tensor, config["num_key_value_heads"])
    return tensor
