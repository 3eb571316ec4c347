"""Who is examined and by what: names, versions, and hashes of files."""

from __future__ import annotations

import hashlib
import platform
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from core import __version__
from core.errors import PluginError
from core.plugin import loader
from core.plugin.identity import Plugin, core_digest, digest_of, plugin_of, tree

HERE = Path(__file__).parent
_SHOWN = ("torch", "numpy", "safetensors", "gguf", "pluggy")


def suite() -> dict[str, str]:
    """The suite: its version, and the hash of every file that decides."""
    return {"version": __version__, "tree_sha256": digest_of(tree(HERE)), "core_sha256": core_digest()}


def plugin(name: str) -> Plugin:
    """The plugin that `--device name` means. Raises: PluginError when it is not installed."""
    for candidate in loader.discover():
        if candidate.name == name and candidate.plugin is not None:
            return plugin_of(name, candidate.distribution, candidate.plugin)
    raise PluginError(f"device {name}: there is no such plugin; `core devices` lists what is installed")


def environment() -> dict[str, str]:
    """What else results may depend on."""
    found = {"python": sys.version.split()[0], "platform": platform.platform(), "machine": platform.machine()}
    for name in _SHOWN:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = "not installed"
    return found


def root_seed(suite_digest: str, plugin_digest: str, nonce: str) -> bytes:
    """The seed of a run: with a nonce from whoever checks, nobody can compute results before."""
    return hashlib.sha256(f"{suite_digest}|{plugin_digest}|{nonce}".encode()).digest()
