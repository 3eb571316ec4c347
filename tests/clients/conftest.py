"""What real clients need: servers, the model as a folder, and programs that live in .venv/clients."""

import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from core.model.pooling import Pooling, write_folder
from tests.conftest import write_llama
from tests.server.processes import Server, run_core, serve

KEY = "of-the-clients"
CLIENT_S = 200

_PROGRAMS = Path(__file__).parents[2] / ".venv" / "clients" / "bin"
_NOWHERE = "http://127.0.0.1:9"  # nothing listens there: whoever asks the internet fails at once


@pytest.fixture(scope="session")
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """smollm2 as `core convert` writes it. Clients take their tokenizer from here."""
    folder = tmp_path_factory.mktemp("converted") / "smollm2"
    done = run_core("convert", "smollm2", str(folder))
    assert done.returncode == 0, done.stderr
    return folder


@pytest.fixture(scope="session")
def server(model_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """smollm2 in float32 on the CPU, behind a key."""
    args = ("--served-model-name", "smollm2", "--device", "cpu", "--dtype", "float32", "--api-key", KEY)
    with serve(tmp_path_factory.mktemp("cpu"), str(model_folder), *args, key=KEY) as started:
        yield started


@pytest.fixture(scope="session")
def open_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """smollm2's tokenizer before the null device, without a key."""
    with serve(tmp_path_factory.mktemp("null"), "smollm2", "--device", "null") as started:
        yield started


@pytest.fixture(scope="session")
def embedder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A tiny model that gives vectors of 64 numbers, behind the same key."""
    folder = tmp_path_factory.mktemp("embedder")
    model = write_llama(folder / "tiny")
    write_folder(Pooling("last", normalize=True), model)
    args = ("--device", "cpu", "--served-model-name", "tiny", "--api-key", KEY)
    with serve(folder, str(model), *args, key=KEY) as started:
        yield started


@pytest.fixture(scope="session")
def run_client(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., str]:
    """run_client(program, *arguments, folder=path, NAME=value): run it there to its end, without the internet; what it
    printed."""

    def run(program: str, *args: str, folder: Path | None = None, **env: str) -> str:
        return _run(folder or tmp_path_factory.mktemp(program), program, args, env)

    return run


def _run(folder: Path, program: str, args: tuple[str, ...], env: dict[str, str]) -> str:
    command = [str(_PROGRAMS / program), *args]
    assert Path(command[0]).exists(), f"no {command[0]}: `make test-heavy` installs it"
    away = {"HF_HOME": str(folder / "hub"), "HF_ENDPOINT": _NOWHERE, "HTTP_PROXY": _NOWHERE, "HTTPS_PROXY": _NOWHERE}
    environment = {**os.environ, **away, "NO_PROXY": "127.0.0.1", "PYTHONPATH": "", **env}
    log = folder / "client.log"
    with log.open("wb") as out:
        process = subprocess.Popen(
            command, stdout=out, stderr=subprocess.STDOUT, cwd=folder, env=environment, start_new_session=True
        )
        try:
            code = process.wait(CLIENT_S)
        finally:
            _end_family(process.pid)
    text = log.read_text(errors="replace")
    assert code == 0, f"{' '.join(command)}: exit code {code}\n{text[-6000:]}"
    return text


def _end_family(group: int) -> None:
    """End what a client left running: its processes share a group."""
    try:
        os.killpg(group, signal.SIGKILL)
    except ProcessLookupError:
        return
