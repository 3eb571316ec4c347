"""How a model makes one embedding of a text's hidden states, as its files declare it.

Owns the two declarations there are: modules.json with the config of its pooling module, as sentence-transformers writes
them, and `pooling_type` in GGUF files. What core does not serve keeps its name here, and is refused where a request
asks for it (`core.engine.front`): a model may still generate.

Served is last-token pooling, with or without normalisation. A prefix found in the cache has no hidden states, and the
last token of a prompt is always computed; so this is the pooling for which any prefix may be taken from the cache.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from core.errors import ConfigError

LAST = "last"
MODULES = "modules.json"
_GGUF_KINDS = {1: "mean", 2: "cls", 3: LAST, 4: "rank"}
_LEAST_NORM = 1e-12  # as sentence-transformers: a vector of zeros stays one

T = TypeVar("T")


class Pooling(msgspec.Struct, frozen=True):
    """One model's declaration.

    kind        "last": the hidden state of the last token, after the last norm; or the name of another pooling
    normalize   the embedding has an L2 norm of 1
    headless    the checkpoint has no head to draw tokens with: embeddings are all that it gives
    """

    kind: str
    normalize: bool
    headless: bool = False

    def finish(self, hidden: bytes) -> bytes | None:
        """The embedding that a hidden state makes: float32, little-endian, both. None where it is no numbers."""
        import numpy as np  # requests are known in processes that never need it

        row = np.frombuffer(hidden, "<f4")
        if not np.isfinite(row).all():
            return None
        if not self.normalize:
            return hidden
        wide = row.astype(np.float64)  # squares of float32 fit
        return (wide / max(float(np.linalg.norm(wide)), _LEAST_NORM)).astype("<f4").tobytes()


class _Module(msgspec.Struct):
    """An entry of modules.json: `type` is a Python class, `path` the folder with its config.json."""

    type: str
    path: str = ""


def read_folder(folder: Path, config: Mapping[str, Any], names: list[str]) -> Pooling | None:
    """What a checkpoint folder declares; None: nothing.

    config   the model's config.json
    names    of its tensors, as `ModelSource` has them

    Raises: ConfigError naming the file that cannot be read.
    """
    if not (folder / MODULES).is_file():
        return None
    modules = _decode(folder / MODULES, list[_Module])
    classes = [module.type.rpartition(".")[2] for module in modules]
    if "Pooling" not in classes:
        return None
    path = folder / modules[classes.index("Pooling")].path / "config.json"
    kind = _mode(_decode(path, dict[str, Any]))
    normalize = classes[-1] == "Normalize"
    if classes != ["Transformer", "Pooling", *["Normalize"] * normalize]:
        kind = f"{kind}, in modules {', '.join(classes)}"
    if config.get("is_causal") is False or config.get("use_bidirectional_attention"):
        kind = _bidirectional(kind)
    headless = "lm_head.weight" not in names and config.get("tie_word_embeddings") is False
    return Pooling(kind, normalize, headless)


def write_folder(pooling: Pooling | None, folder: Path) -> None:
    """Declares last-token pooling in a checkpoint folder, so that `read_folder` finds it; any other is left out."""
    if pooling is None or pooling.kind != LAST:
        return
    modules = [("Transformer", ""), ("Pooling", "1_Pooling"), *[("Normalize", "2_Normalize")] * pooling.normalize]
    entries = [
        {"idx": i, "name": str(i), "path": path, "type": f"sentence_transformers.models.{name}"}
        for i, (name, path) in enumerate(modules)
    ]
    (folder / MODULES).write_bytes(msgspec.json.format(msgspec.json.encode(entries)))
    (folder / "1_Pooling").mkdir(exist_ok=True)
    (folder / "1_Pooling" / "config.json").write_bytes(b'{"pooling_mode_lasttoken": true}')


def _mode(config: Mapping[str, Any]) -> str:
    """The pooling's name: an entry that is true, of the older format, or the one entry of the newer."""
    named = config.get("pooling_mode")
    older = [key.removeprefix("pooling_mode_") for key, on in config.items() if key.startswith("pooling_mode_") and on]
    modes = [named] if isinstance(named, str) else named or older
    short = "+".join(str(mode).removesuffix("_tokens").removesuffix("_token") for mode in modes)
    return LAST if short == "lasttoken" else short or "nothing"


def read_gguf(get: Callable[[str], Any]) -> Pooling | None:
    """What a GGUF file declares; `get` reads the metadata of its family. None: nothing, or no pooling.

    The format has no word for normalisation. llama.cpp's server, for which it was made, always normalises.
    """
    number = get("pooling_type")
    if not number:
        return None
    kind = _GGUF_KINDS.get(number, f"type {number}")
    return Pooling(_bidirectional(kind) if get("attention.causal") is False else kind, normalize=True)


def _bidirectional(kind: str) -> str:
    return f"{kind}, after bidirectional attention"


def _decode(path: Path, kind: type[T]) -> T:
    try:
        return msgspec.json.decode(path.read_bytes(), type=kind)
    except (OSError, msgspec.DecodeError) as error:
        raise ConfigError(f"{path}, which declares embeddings, cannot be read ({error}): fetch it again") from error
