"""Weights, config and tokenizer from a folder with the layout of a Hugging Face checkpoint.

Refuses folders without config.json, pickle weights, shards that are missing or cut short, and checkpoints that are
quantised. Code that a checkpoint brings is never run: `auto_map` is ignored, and its family is known or it is not.
A checkpoint of a model without its head names tensors without "model." before them; here they have it all the same.
"""

from __future__ import annotations

import json
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from safetensors import SafetensorError, safe_open

from core.errors import ConfigError
from core.model.pooling import Pooling, read_folder
from core.model.tokenizer import Tokenizer, load_tokenizer

if TYPE_CHECKING:
    import torch

_DTYPES = {"F32": "float32", "BF16": "bfloat16", "F16": "float16"}
_PICKLE_SUFFIXES = (".bin", ".pt", ".pth", ".ckpt")
_INDEX = "model.safetensors.index.json"
_SINGLE = "model.safetensors"
_HEAD, _BASE = "lm_head.weight", "model."
_EMBEDDING = "embed_tokens.weight"
_SPECIAL_TOKENS = ("bos_token", "eos_token", "unk_token", "pad_token")


class SafetensorsSource:
    """A `ModelSource` over a folder."""

    def __init__(self, folder: Path, name: str) -> None:
        """Raises: ConfigError naming the file at fault."""
        self.name = name
        self._folder = folder
        if not (folder / "config.json").is_file():
            raise ConfigError(f"{folder} has no config.json: give the folder of a checkpoint, or a .gguf file")
        self.config: dict[str, Any] = _read_json(folder / "config.json")
        self.generation_config: dict[str, Any] = _read_json(folder / "generation_config.json", optional=True)
        quantization = self.config.get("quantization_config")
        if quantization:
            raise ConfigError(
                f"{folder} is quantised with {quantization.get('quant_method', 'an unnamed method')!r}: core reads "
                "float32, bfloat16 and float16 checkpoints, and GGUF files; take one of these"
            )
        self._parts: dict[str, Any] = {}
        for path in self._shards():
            self._open(path)
        if _EMBEDDING in self._parts:
            self._parts = {name if name == _HEAD else _BASE + name: part for name, part in self._parts.items()}

    def _shards(self) -> list[Path]:
        if (self._folder / _INDEX).is_file():
            weight_map = _read_json(self._folder / _INDEX).get("weight_map", {})
            paths = sorted({self._folder / file for file in weight_map.values()})
            for path in paths:
                if not path.is_file():
                    raise ConfigError(f"{self._folder / _INDEX} names {path.name}, which is missing: fetch it again")
            return paths
        if (self._folder / _SINGLE).is_file():
            return [self._folder / _SINGLE]
        paths = sorted(self._folder.glob("*.safetensors"))
        pickles = sorted(p.name for p in self._folder.iterdir() if p.suffix in _PICKLE_SUFFIXES)
        if not paths and pickles:
            raise ConfigError(
                f"{self._folder} has its weights as pickle ({pickles[0]}), which can run code and is refused: convert "
                "them to safetensors (transformers: model.save_pretrained)"
            )
        if not paths:
            raise ConfigError(f"{self._folder} has no *.safetensors: it is not a checkpoint, or was not fetched whole")
        return paths

    def _open(self, path: Path) -> None:
        """Reads the header: names, shapes and dtypes. It is checked against the size of the file."""
        try:
            reader: Any = safe_open(path, framework="numpy")
        except (SafetensorError, OSError) as error:
            raise ConfigError(f"{path} is cut short or damaged ({error}): fetch it again") from error
        for name in reader.keys():  # noqa: SIM118 - not a dict
            self._parts[name] = (path, name, reader.get_slice(name))

    @cached_property
    def _tokenizer_config(self) -> dict[str, Any]:
        return _read_json(self._folder / "tokenizer_config.json", optional=True)

    @cached_property
    def eos_ids(self) -> list[int]:
        ids: set[int] = set()
        for value in (self.generation_config.get("eos_token_id"), self.config.get("eos_token_id")):
            ids.update(value if isinstance(value, list) else [] if value is None else [value])
        if (token := self.special_tokens.get("eos_token")) is not None:
            token_id = self.tokenizer().token_to_id(token)
            ids.update([] if token_id is None else [token_id])
        return sorted(ids)

    @cached_property
    def special_tokens(self) -> dict[str, str]:
        named = {**_read_json(self._folder / "special_tokens_map.json", optional=True), **self._tokenizer_config}
        out = {}
        for key in _SPECIAL_TOKENS:
            token = named.get(key)
            token = token.get("content") if isinstance(token, dict) else token
            if isinstance(token, str):
                out[key] = token
        return out

    @cached_property
    def chat_template(self) -> str | None:
        """The file chat_template.jinja, else the entry of tokenizer_config.json; of several the one named default."""
        path = self._folder / "chat_template.jinja"
        if path.is_file():
            return path.read_text(encoding="utf-8")
        template = self._tokenizer_config.get("chat_template")
        if isinstance(template, list):
            template = {each["name"]: each["template"] for each in template}.get("default")
        return template

    @cached_property
    def pooling(self) -> Pooling | None:
        return read_folder(self._folder, self.config, self.names())

    @property
    def size_bytes(self) -> int:
        return sum(path.stat().st_size for path in {path for path, *_ in self._parts.values()})

    @cached_property
    def _tokenizer(self) -> Tokenizer:
        return load_tokenizer(self._folder)

    def tokenizer(self) -> Tokenizer:
        return self._tokenizer

    def names(self) -> list[str]:
        return list(self._parts)

    def shape(self, name: str) -> tuple[int, ...]:
        return tuple(self._part(name)[-1].get_shape())

    def dtype(self, name: str) -> str:
        stored = self._part(name)[-1].get_dtype()
        if stored not in _DTYPES:
            raise ConfigError(f"tensor {name} of {self._folder} is of type {stored}: core reads {', '.join(_DTYPES)}")
        return _DTYPES[stored]

    def _part(self, name: str) -> Any:
        if name not in self._parts:
            raise ConfigError(f"{self._folder} has no tensor {name}: it is incomplete, or of another family")
        return self._parts[name]

    def read(self, name: str, rows: slice | None = None, columns: slice | None = None) -> torch.Tensor:
        """As `ModelSource.read`. The file is memory-mapped: only the pages of the part are read."""
        self.dtype(name)
        path, stored_name, _ = self._part(name)
        rows = rows or slice(None)
        # Opened anew each time: touched pages of a mapped file count as this process's memory until it is closed.
        with safe_open(path, framework="pt") as reader:
            part = reader.get_slice(stored_name)
            tensor: torch.Tensor = part[rows] if columns is None else part[rows, columns]
        return tensor

    def quantised(self, name: str) -> None:
        """As `ModelSource.quantised`: nothing is, in these files."""


def _read_json(path: Path, optional: bool = False) -> dict[str, Any]:
    if optional and not path.is_file():
        return {}
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path} is not readable as JSON ({error}): fetch it again") from error
    if not isinstance(value, dict):
        raise ConfigError(f"{path} holds a {type(value).__name__}, not an object: fetch it again")
    return value
