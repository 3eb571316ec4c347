"""Out-of-tree plugins at the command line: the first token, and one line for each that cannot be used."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from core.model.tokenizer import load_tokenizer
from core.plugin import Device
from tests.core.engine.oracle import reference
from tests.plugins import BARE_PLUGIN, install_plugin
from tests.server.processes import run_core, run_here, serve
from tests.shares import quick_of

COMMANDS = {"serve": ("serve", "--port", "0"), "plan": ("plan",)}
either_command = pytest.mark.parametrize("command", quick_of(COMMANDS, "plan"))
"""What all commands refuse alike: in this process, and through the server's."""
ACCELERATOR = ("host_memory=True, implicit=False,", "")
BROKEN = {
    "no_import": ("", "import no_such_library\n", ["ModuleNotFoundError", "no_such_library"]),
    "no_probe": ("return DeviceFacts(", "raise OSError('no driver')\n        dict(", ["OSError: no driver"]),
    "too_new": ("API = (1, 0)", "API = (3, 0)", ["API 3", "speaks 1", "update core"]),
    "too_old": ("API = (1, 0)", "API = (-1, 0)", ["API -1", "speaks 1", "update the plugin"]),
    "no_version": ("API = (1, 0)", "", ["API = None", "(major, minor)"]),
    "misnamed": ('name="misnamed"', 'name="other"', ["name = 'other'", "misnamed"]),
    "bad_hook": ("", "@hookimpl\ndef core_devcie():\n    pass\n", ["unknown hook", "core_devcie"]),
}


def install(monkeypatch: pytest.MonkeyPatch, folder: Path, name: str, old: str = "", new: str = "") -> None:
    source = BARE_PLUGIN.replace('name="bare"', f'name="{name}"')
    assert old in source
    install_plugin(monkeypatch, folder / name, name, source.replace(old, new) if old else source + new)


def refused(*args: str) -> str:
    """The one line on stderr of a command that must fail."""
    done = run_core(*args) if args[0] == "serve" else run_here(*args)
    assert done.returncode == 2, done.stderr
    assert done.stdout == ""
    [line] = done.stderr.splitlines()
    assert line.startswith("error: ")
    return line


def test_devices_lists_every_plugin_with_its_reason(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name, (old, new, _) in BROKEN.items():
        install(monkeypatch, tmp_path, name, old, new)
    install(monkeypatch, tmp_path, "bare")
    install(monkeypatch, tmp_path, "patched", "API = (1, 0)", "API = (1, 0)\ntorch.add = lambda *_: 0\n")
    done = run_core("devices", "--json")
    assert (done.returncode, done.stderr) == (0, "")
    found = {device["name"]: device for device in json.loads(done.stdout)}
    for name, (_, _, words) in BROKEN.items():
        assert all(word in found[name]["reason"] for word in words), found[name]
        assert found[name]["distribution"] == f"{name}_plugin"
    assert "plugin patched replaces torch.add" in found["patched"]["reason"]
    assert found["bare"]["arch"] == "a test"
    assert found["cpu"]["count"] == 1


@pytest.mark.parametrize("name", ["no_import", "no_probe", pytest.param("too_new", marks=pytest.mark.heavy)])
def test_a_broken_device_asked_for(
    name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, tiny_llama_dir: Path
) -> None:
    old, new, words = BROKEN[name]
    install(monkeypatch, tmp_path, name, old, new)
    # The two that vendors meet first go through the server's processes, others through one.
    command = "serve" if name in ("no_probe", "too_new") else "plan"
    line = refused(*COMMANDS[command], str(tiny_llama_dir), "--device", name)
    assert all(word in line for word in [f"device {name} cannot be used", *words]), line


@either_command
def test_two_live_accelerators(
    command: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, tiny_llama_dir: Path
) -> None:
    for name in ("warp", "weft"):
        install(monkeypatch, tmp_path, name, *ACCELERATOR)
    line = refused(*COMMANDS[command], str(tiny_llama_dir))
    assert line == "error: devices warp and weft are both here: choose with --device warp, for example"


@either_command
def test_a_device_that_is_not_there(
    command: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, tiny_llama_dir: Path
) -> None:
    install(monkeypatch, tmp_path, "bare")
    line = refused(*COMMANDS[command], str(tiny_llama_dir), "--device", "warp")
    assert line.startswith("error: device warp is not known: choose among bare, cpu, ")
    assert line.endswith(", or install the plugin that provides it")


@either_command
@pytest.mark.parametrize("place", quick_of(["import", "open"], "open"))
def test_a_plugin_that_patches(
    place: str, command: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, tiny_llama_dir: Path
) -> None:
    monkeypatch.setattr(Device, "seed", Device.seed)  # put back what `plan` replaces in this process
    patch = "import core.plugin; core.plugin.Device.seed = lambda self, seed: None"
    old = {"import": "API = (1, 0)", "open": 'return torch.device("cpu")'}[place]
    install(monkeypatch, tmp_path, "patched", old, f"{patch}; {old}")
    line = refused(*COMMANDS[command], str(tiny_llama_dir), "--device", "patched", "--fallback", "allow")
    assert "plugin patched replaces core.plugin.device.Device.seed: a plugin may not change core; remove" in line


@either_command
def test_kernels_that_cannot_be_loaded(
    command: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, tiny_llama_dir: Path
) -> None:
    new = "@hookimpl\ndef core_kernels():\n    import libwarp\n"
    install(monkeypatch, tmp_path, "bare", "", new)
    line = refused(*COMMANDS[command], str(tiny_llama_dir), "--device", "bare", "--fallback", "allow")
    assert "the kernels of device bare cannot be loaded: ModuleNotFoundError: No module named 'libwarp'" in line


def test_an_accelerator_without_kernels_is_not_served_silently(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, tiny_llama_dir: Path
) -> None:
    install(monkeypatch, tmp_path, "warp")
    line = refused("plan", str(tiny_llama_dir), "--device", "warp")
    assert "device warp has no native kernel for act_mul (no implementation)" in line
    assert "--fallback allow" in line


def test_the_first_token_of_a_bare_plugin(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, tiny_llama_dir: Path
) -> None:
    """Four methods and the packaging: at most 80 lines, and the same token as transformers'."""
    install(monkeypatch, tmp_path, "bare")
    files = [path for path in (tmp_path / "bare").rglob("*") if path.is_file() and path.suffix != ".pyc"]
    assert sum(len(path.read_text().splitlines()) for path in files) <= 80

    prompt = [5, 90, 7, 200, 11]
    logits = reference(str(tiny_llama_dir))(torch.tensor([prompt])).logits[0, -1]
    with serve(tmp_path, str(tiny_llama_dir), "--device", "bare", "--fallback", "allow") as server:
        body = {"model": str(tiny_llama_dir), "prompt": prompt, "max_tokens": 1, "temperature": 0, "ignore_eos": True}
        answer = server.post("/v1/completions", body)
    assert answer.status_code == 200, answer.text
    wanted = load_tokenizer(tiny_llama_dir).decode([int(logits.argmax())])
    assert [choice["text"] for choice in answer.json()["choices"]] == [wanted]
