"""The same weights for all: what core serves, as a folder of safetensors, and as a GGUF file for llama.cpp."""

from collections.abc import Sequence
from pathlib import Path

import gguf
import msgspec

from core.config import EngineConfig
from core.errors import ConfigError
from core.model.convert import convert
from core.model.gguf_source import GgufSource
from server.models import open_model
from server.peers.kinds import Peer

FILE_TYPES = {
    "float32": (gguf.GGMLQuantizationType.F32, gguf.LlamaFileType.ALL_F32),
    "float16": (gguf.GGMLQuantizationType.F16, gguf.LlamaFileType.MOSTLY_F16),
    "bfloat16": (gguf.GGMLQuantizationType.BF16, gguf.LlamaFileType.MOSTLY_BF16),
}
PACKED_TYPES = {
    "Q4_0": (gguf.GGMLQuantizationType.Q4_0, gguf.LlamaFileType.MOSTLY_Q4_0),
    "Q4_1": (gguf.GGMLQuantizationType.Q4_1, gguf.LlamaFileType.MOSTLY_Q4_1),
    "Q8_0": (gguf.GGMLQuantizationType.Q8_0, gguf.LlamaFileType.MOSTLY_Q8_0),
}
REPLACED = ("general.architecture", "general.file_type")


def check(config: EngineConfig, peers: Sequence[Peer], packed_type: str | None = None) -> None:
    """Raises: ConfigError when a peer cannot read the weights that core is to have, or none can be written so."""
    if packed_type is not None and config.weights != "packed":
        raise ConfigError(f"--packed-type {packed_type} is of packed weights: give --weights packed, or leave it out")
    if not peers:
        return
    is_gguf = isinstance(open_model(config.model), GgufSource)
    if packed_type is not None and not is_gguf:
        raise ConfigError(f"--packed-type writes a GGUF model anew, and {config.model} is none: give a .gguf model")
    for peer in peers:
        if peer.kind.gguf and not is_gguf:
            raise ConfigError(f"--peer {peer.name} reads GGUF files, and {config.model} is none: give a .gguf model")
        if config.weights == "packed" and not peer.kind.gguf:
            raise ConfigError(f"--peer {peer.name} cannot read packed weights: leave it out, or --weights packed")


def prepare(config: EngineConfig, peers: Sequence[Peer], scratch: Path) -> tuple[EngineConfig, dict[str, Path]]:
    """What core is to read, and what each peer, by name. Files are written under `scratch`, with weights in
    config.dtype (bfloat16 where core may choose). `peers` have passed `check`.

    With config.weights "packed" nothing is written: core and llama.cpp read the GGUF file as it is.
    """
    source = open_model(config.model)
    stored = source.path if isinstance(source, GgufSource) else None
    if config.weights == "packed" and stored is not None:
        return config, {peer.name: stored for peer in peers}
    folder, file = scratch / "model", scratch / "model.gguf"
    dtype = "bfloat16" if config.dtype == "auto" else config.dtype
    convert(source, folder, dtype)
    if stored is not None and any(peer.kind.gguf for peer in peers):
        write_gguf(stored, file, dtype)
    files = {peer.name: file if peer.kind.gguf else folder for peer in peers}
    return msgspec.structs.replace(config, model=str(folder)), files


def requantise(model: str, packed_type: str, scratch: Path) -> Path:
    """A GGUF file under `scratch` with the matrices of a GGUF model in one of `PACKED_TYPES`."""
    source = open_model(model)
    assert isinstance(source, GgufSource)  # as `check` has it
    file = scratch / f"{packed_type}.gguf"
    write_gguf(source.path, file, packed_type)
    return file


def write_gguf(stored: Path, out: Path, dtype: str) -> None:
    """The GGUF file `stored` with every matrix in `dtype`, one of `FILE_TYPES` or `PACKED_TYPES`. The rest is float32,
    for llama.cpp computes with nothing else there; of `FILE_TYPES`, rounded to `dtype`."""
    kind, file_type = (FILE_TYPES | PACKED_TYPES)[dtype]
    reader = gguf.GGUFReader(stored)
    writer = gguf.GGUFWriter(out, reader.fields["general.architecture"].contents())
    for field in reader.fields.values():
        if field.name.startswith("GGUF.") or field.name in REPLACED:
            continue
        inner = field.types[-1] if field.types[0] == gguf.GGUFValueType.ARRAY else None
        writer.add_key_value(field.name, field.contents(), field.types[0], inner)
    writer.add_file_type(file_type)
    for tensor in reader.tensors:
        values = gguf.dequantize(tensor.data, tensor.tensor_type)
        if values.ndim > 1:
            writer.add_tensor(tensor.name, gguf.quantize(values, kind), raw_dtype=kind)
        elif dtype in PACKED_TYPES:
            writer.add_tensor(tensor.name, values)
        else:
            writer.add_tensor(tensor.name, gguf.dequantize(gguf.quantize(values, kind), kind))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
