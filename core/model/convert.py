"""Writes a model, from whatever format, as a Hugging Face folder with plain safetensors.

Owns the layout of that folder. Refuses to write into a folder that holds a checkpoint already.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from core.errors import ConfigError
from core.model.pooling import write_folder
from core.model.source import ModelSource
from core.plugin.facts import DTYPES

if TYPE_CHECKING:
    import torch

MAX_SHARD_BYTES = 2 << 30

Progress = Callable[[int, int], None]


def convert(
    source: ModelSource,
    out_dir: Path,
    dtype: str,
    progress: Progress = lambda done, total: None,
    max_shard_bytes: int = MAX_SHARD_BYTES,
) -> None:
    """Writes config.json, generation_config.json, tokenizer files and model*.safetensors with tensors in `dtype`;
    where the model declares last-token pooling, that too.

    progress        called with (tensors done, tensors in all) after each tensor
    max_shard_bytes a file is closed before it would grow beyond; also about the memory needed

    config.json is written last: a folder without it is no checkpoint.
    Raises: ConfigError when `dtype` is unknown or out_dir holds a checkpoint.
    """
    if dtype not in DTYPES:
        raise ConfigError(f"dtype {dtype!r} is not known: use {', '.join(DTYPES)}")
    if (out_dir / "config.json").exists():
        raise ConfigError(f"{out_dir} holds a checkpoint already: give another folder")
    out_dir.mkdir(parents=True, exist_ok=True)
    _write_weights(source, out_dir, dtype, progress, max_shard_bytes)
    _write_tokenizer(source, out_dir)
    write_folder(source.pooling, out_dir)
    eos_ids = source.eos_ids
    generation = {**source.generation_config, **({"eos_token_id": eos_ids} if eos_ids else {})}
    _write_json(out_dir / "generation_config.json", generation)
    config = {key: value for key, value in source.config.items() if key not in ("dtype", "torch_dtype")}
    _write_json(out_dir / "config.json", {**config, "torch_dtype": dtype})


def _write_weights(source: ModelSource, out_dir: Path, dtype: str, progress: Progress, max_shard_bytes: int) -> None:
    import torch

    target = getattr(torch, dtype)
    names = source.names()
    shards = _Shards(out_dir, max_shard_bytes)
    for done, name in enumerate(names, start=1):
        shards.add(name, source.read(name).to(target))
        progress(done, len(names))
    shards.close()


class _Shards:
    """Collects tensors and writes a file whenever enough have come; `close` gives the files their final names."""

    def __init__(self, out_dir: Path, max_bytes: int) -> None:
        self._out_dir = out_dir
        self._max_bytes = max_bytes
        self._tensors: dict[str, torch.Tensor] = {}
        self._num_bytes = 0
        self._total_bytes = 0
        self._written: list[tuple[Path, list[str]]] = []

    def add(self, name: str, tensor: torch.Tensor) -> None:
        num_bytes = tensor.numel() * tensor.element_size()
        if self._tensors and self._num_bytes + num_bytes > self._max_bytes:
            self._write()
        self._tensors[name] = tensor.contiguous()
        self._num_bytes += num_bytes

    def _write(self) -> None:
        from safetensors.torch import save_file

        path = self._out_dir / f"model-{len(self._written) + 1:05}.safetensors.part"
        save_file(self._tensors, path, metadata={"format": "pt"})
        self._written.append((path, list(self._tensors)))
        self._total_bytes += self._num_bytes
        self._tensors, self._num_bytes = {}, 0

    def close(self) -> None:
        self._write()
        num_files = len(self._written)
        weight_map = {}
        for i, (path, names) in enumerate(self._written, start=1):
            final = "model.safetensors" if num_files == 1 else f"model-{i:05}-of-{num_files:05}.safetensors"
            path.rename(self._out_dir / final)
            weight_map.update(dict.fromkeys(names, final))
        if num_files > 1:
            index = {"metadata": {"total_size": self._total_bytes}, "weight_map": weight_map}
            _write_json(self._out_dir / "model.safetensors.index.json", index)


def _write_tokenizer(source: ModelSource, out_dir: Path) -> None:
    source.tokenizer().save(out_dir / "tokenizer.json")
    config: dict[str, Any] = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "clean_up_tokenization_spaces": False,
        "model_max_length": source.config.get("max_position_embeddings"),
        **source.special_tokens,
    }
    if source.chat_template is not None:
        config["chat_template"] = source.chat_template
    _write_json(out_dir / "tokenizer_config.json", config)


def _write_json(path: Path, value: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
