"""The induction model: a small trained Llama on which a wrong kernel shows, unlike on random weights.

Random weights hardly use attention, so a wrong rotation moves their logits less than bfloat16 does. This model was
trained (`conformance.model.train`) to find tokens again over many pages, by content and by distance alone; what it
answers hangs on each key. Not everything shows: an attention scale that is 10% off moves logits by ten times the noise
of bfloat16, and one that is 1% off by less than that noise; cases of single kernels find these.

The model ships with its hashes, and is not used when they differ.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

from core.errors import ConfigError

SHA256 = {
    "config.json": "2a96b880bd8fe89db7eee52052b453d8a63fc64e760e9bdad4b1535a2b68a130",
    "model.safetensors": "2492e401720598bfe23c89485b2e2ab306fcb922181722fd0d413ddd7d015abd",
    "tokenizer.json": "310f8669c61a351004eceb6c98a2e1a148a170da9f39adc114fb69fd84d7fd86",
}


def induction_path() -> Path:
    """The folder of the model that ships, checked. Raises: ConfigError when a file is not the one that was shipped."""
    folder = Path(__file__).parent / "induction"
    check_induction(folder)
    return folder


def check_induction(folder: Path) -> None:
    """Raises: ConfigError when a file of the model in `folder` is missing or is another."""
    for name, wanted in SHA256.items():
        path = folder / name
        if not path.is_file():
            raise ConfigError(f"{path} is missing: install the package again")
        found = hashlib.sha256(path.read_bytes()).hexdigest()
        if found != wanted:
            raise ConfigError(f"{path} has SHA-256 {found}, not {wanted}: install the package again")
