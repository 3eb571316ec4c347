"""What keeps the parts apart: no device named in core, light imports, layers."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
SOURCES = sorted((ROOT / "core").rglob("*.py"))
DEVICE_NAMES = re.compile(r"\b(cuda|rocm|hip|xpu|npu|kunlun|tpu|xla)\b", re.IGNORECASE)


def python(program: str) -> str:
    """What `program` prints in a fresh interpreter outside the tree."""
    command = [sys.executable, "-W", "error", "-c", program]
    return subprocess.run(command, capture_output=True, text=True, check=True, cwd="/").stdout


def test_core_names_no_device() -> None:
    found = [
        f"{path.relative_to(ROOT)}:{number}: {line.strip()}"
        for path in SOURCES
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if DEVICE_NAMES.search(line)
    ]
    assert not found
    assert len(SOURCES) > 20


def test_core_imports_with_everything_else_blocked() -> None:
    program = """
import sys
for name in ("torch", "conformance", "devices", "models", "server", "transformers", "fastapi", "triton"):
    sys.modules[name] = None
import core
print(sorted(core.__all__))
"""
    assert "LLM" in python(program)


def test_public_names() -> None:
    """The names users import, each of which is there."""
    program = "import core; print(*sorted(core.__all__)); [getattr(core, name) for name in core.__all__]"
    assert python(program).split() == sorted(
        [
            "LLM", "CapacityError", "ConfigError", "CoreError", "DeviceError", "EmbeddingOutput", "EngineConfig",
            "KVEntries", "PluginError", "RequestError", "RequestOutput", "SamplingParams", "Structured", "__version__",
        ]
    )  # fmt: skip


@pytest.mark.parametrize(
    "module", ["server.app", "server.run", "core.engine.client", "core.engine.front", "server.models"]
)
def test_the_api_process_needs_no_torch(module: str) -> None:
    assert python(f"import sys; sys.modules['torch'] = None; import {module}; print('ok')") == "ok\n"


def test_layers() -> None:
    """The import contracts of pyproject.toml."""
    done = subprocess.run(
        [Path(sys.executable).parent / "lint-imports", "--no-cache"],
        capture_output=True,
        text=True,
        cwd=ROOT,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    assert "0 broken" in done.stdout


def test_files_stay_readable() -> None:
    """300 lines at most, 120 as a rule."""
    everything = [
        p for folder in ("conformance", "core", "devices", "models", "server") for p in (ROOT / folder).rglob("*.py")
    ]
    too_long = {str(p.relative_to(ROOT)): n for p in everything if (n := len(p.read_text().splitlines())) > 300}
    assert not too_long
