"""An inference engine for large language models whose core knows no chip.

from core import LLM, SamplingParams

with LLM("smollm2") as llm:
    print(llm.chat([{"role": "user", "content": "Name the capital of France."}]).text)
"""

from typing import TYPE_CHECKING, Any

from core.config import EngineConfig
from core.errors import CapacityError, ConfigError, CoreError, DeviceError, PluginError, RequestError
from core.request import SamplingParams, Structured

if TYPE_CHECKING:
    from core.engine.entries import KVEntries
    from core.engine.llm import LLM, EmbeddingOutput, RequestOutput

__version__ = "0.1.0"

__all__ = [
    "LLM",
    "CapacityError",
    "ConfigError",
    "CoreError",
    "DeviceError",
    "EmbeddingOutput",
    "EngineConfig",
    "KVEntries",
    "PluginError",
    "RequestError",
    "RequestOutput",
    "SamplingParams",
    "Structured",
    "__version__",
]


def __getattr__(name: str) -> Any:
    """Loads what needs torch only when it is used."""
    if name in ("LLM", "EmbeddingOutput", "RequestOutput"):
        from core.engine import llm

        return getattr(llm, name)
    if name == "KVEntries":
        from core.engine.entries import KVEntries

        return KVEntries
    raise AttributeError(f"module 'core' has no attribute {name!r}")
