"""Where a model comes from: a folder, a GGUF file, an installed weights package, or the hub.

Owns what the model argument means, in this order:
1. a short name from a weights package (a folder of that name is written `./name`);
2. a folder, or a file ending in .gguf, that exists;
3. `org/name`: a repository on the hub, downloaded once.
Anything else is refused with the choices. Pickle weights, remote code and quantised checkpoints other than GGUF
are refused. Nothing here imports torch before a tensor is read.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from core.errors import ConfigError
from core.model.weights_package import locate_package

if TYPE_CHECKING:
    import torch

    from core.kernels.schemes import Quantised
    from core.model.pooling import Pooling
    from core.model.spec import ModelSpec, WeightsPackage
    from core.model.tokenizer import Tokenizer

_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]+")
_HUB_FILES = ["*.json", "*.jinja", "*.safetensors"]


class QuantisedTensor(Protocol):
    """A tensor as it is stored, in a scheme of `core.kernels.schemes`."""

    @property
    def scheme(self) -> str: ...

    def read(self, rows: slice, columns: slice | None = None) -> Quantised:
        """Rows and columns of it on the host. Columns begin and end with a block. Not to be written to.

        Raises: ConfigError for numbers that the scheme cannot hold.
        """


class ModelSource(Protocol):
    """A model's files, opened. Tensors have the names of a Hugging Face checkpoint, whatever the format.

    config             config.json, or the same made from metadata
    generation_config  generation_config.json, or empty
    eos_ids            every id that ends the output, ascending
    special_tokens     what templates may name: bos_token, eos_token, unk_token, pad_token -> text
    chat_template      Jinja source, or None
    pooling            how it makes embeddings, or None where it declares none
    size_bytes         of all tensors, as stored
    """

    @property
    def name(self) -> str: ...
    @property
    def config(self) -> Mapping[str, Any]: ...
    @property
    def generation_config(self) -> Mapping[str, Any]: ...
    @property
    def eos_ids(self) -> list[int]: ...
    @property
    def special_tokens(self) -> Mapping[str, str]: ...
    @property
    def chat_template(self) -> str | None: ...
    @property
    def pooling(self) -> Pooling | None: ...
    @property
    def size_bytes(self) -> int: ...

    def tokenizer(self) -> Tokenizer:
        """The tokenizer; built once, then the same object. Raises: ConfigError when it is missing or unknown."""

    def names(self) -> list[str]:
        """Every tensor."""

    def shape(self, name: str) -> tuple[int, ...]:
        """Raises: ConfigError when the tensor is missing."""

    def dtype(self, name: str) -> str:
        """As stored: "float32", "bfloat16", "float16", or a GGUF type such as "Q4_1"."""

    def read(self, name: str, rows: slice | None = None, columns: slice | None = None) -> torch.Tensor:
        """A tensor, or rows (dimension 0) and columns (dimension 1) of it, on the host. Not to be written to.

        Only the part asked for is made. Its dtype is the stored one, or float32 from a GGUF file.
        Slices have step 1. Raises: ConfigError when the tensor is missing or of a type that core cannot read.
        """

    def quantised(self, name: str) -> QuantisedTensor | None:
        """A tensor without dequantising it; None when it is stored in no scheme that weights can stay packed in."""


def open_source(model: str, packages: Sequence[WeightsPackage], specs: Sequence[ModelSpec]) -> ModelSource:
    """Opens the model that `model` means (see the top of this file). `specs` name the families GGUF files may have.

    Raises: ConfigError naming the value and the remedy.
    """
    path = _locate(model, packages)
    if path.is_dir():
        from core.model.safetensors_source import SafetensorsSource

        return SafetensorsSource(path, model)
    if path.suffix == ".gguf":
        from core.model.gguf_source import GgufSource

        return GgufSource(path, model, specs)
    raise ConfigError(
        f"{path} is a file that core does not read: give a folder with config.json and *.safetensors, or a .gguf file"
    )


def _locate(model: str, packages: Sequence[WeightsPackage]) -> Path:
    for package in packages:
        if package.alias == model:
            return locate_package(package)
    path = Path(model).expanduser()
    if model and path.exists():
        return path
    if model.startswith(("/", ".", "~")) or model.endswith(".gguf"):
        raise ConfigError(f"{model} does not exist: give a folder with config.json and *.safetensors, or a .gguf file")
    if _HUB_ID.fullmatch(model):
        return _download(model)
    aliases = ", ".join(sorted(package.alias for package in packages)) or "none installed"
    raise ConfigError(
        f"model {model!r} is not known: give a folder, a .gguf file, org/name on the hub, or a short name ({aliases})"
    )


def _download(model: str) -> Path:
    import httpx
    from huggingface_hub import snapshot_download

    try:
        return Path(snapshot_download(model, allow_patterns=_HUB_FILES, ignore_patterns=["consolidated*"]))
    except (OSError, ValueError, httpx.HTTPError) as error:
        reason = str(error).strip().splitlines()[0]
        raise ConfigError(
            f"model {model!r} is no folder here and could not be had from the hub ({reason}): check the name and the "
            "network, log in with `hf auth login` if the model is gated, or give a local folder"
        ) from error
