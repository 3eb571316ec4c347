"""The peers that are known: which script speaks for each, which file of the model it reads, and its settings.

Owns what `--peer NAME=PYTHON` means. Refuses names that are not known and interpreters that are not there.
"""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from core.errors import ConfigError

GUIDE = "set it up as server/peers/README.md says"


@dataclass(frozen=True)
class Kind:
    """A way to run a peer.

    script     scripts/{script}_peer.py runs in the peer's environment
    gguf       reads a GGUF file, else a Hugging Face folder
    preload    a library that it asks to be loaded before all else, by its linker name: it is where the system has it
    settings   handed to the script
    """

    script: str
    gguf: bool = False
    preload: str | None = None
    settings: Mapping[str, str] = field(default_factory=dict)


KINDS = {
    "llama.cpp": Kind("llama_cpp", gguf=True, settings={"flash_attention": "auto"}),
    "llama.cpp-no-flash": Kind("llama_cpp", gguf=True, settings={"flash_attention": "off"}),
    "openvino": Kind("openvino"),
    "transformers": Kind("transformers"),
    "vllm": Kind("vllm", preload="tcmalloc_minimal", settings={"execution": "compiled"}),
    "vllm-eager": Kind("vllm", preload="tcmalloc_minimal", settings={"execution": "eager"}),
}


@dataclass(frozen=True)
class Peer:
    """A peer that was asked for, and the interpreter of its environment."""

    name: str
    python: Path

    @property
    def kind(self) -> Kind:
        return KINDS[self.name]


def parse_peers(pairs: Sequence[str]) -> list[Peer]:
    """`["llama.cpp=env/bin/python"]` -> its peers. Raises: ConfigError for what cannot be run, or stands twice."""
    peers = [_parse(pair) for pair in pairs]
    names = [peer.name for peer in peers]
    for name in names:
        if names.count(name) > 1:
            raise ConfigError(f"--peer {name} stands {names.count(name)} times: a peer is measured once; leave one")
    return peers


def _parse(pair: str) -> Peer:
    name, equals, path = pair.partition("=")
    if not equals:
        raise ConfigError(f"--peer {pair}: write NAME=PYTHON, the interpreter of the peer's environment")
    if name not in KINDS:
        raise ConfigError(f"--peer {name} is not known: choose among {', '.join(KINDS)}")
    python = Path(path).expanduser().absolute()  # not resolved: an environment's python is a link, and known by it
    if not (python.is_file() and os.access(python, os.X_OK)):
        raise ConfigError(f"--peer {name}: {path} is no interpreter; {GUIDE}")
    return Peer(name, python)
