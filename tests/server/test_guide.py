"""The guide in devices/README.md, "Bring up a chip in a day": every command of it is run, every change is made.

In its ```console blocks, `$ ` begins a command, and what follows must be in what it prints: digits, spaces and lines of
tables aside, and "..." for what is left out. One without output shown must succeed. Its ```diff blocks are applied.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from generated import ROOT, Environment, make_environment

GUIDE = (ROOT / "devices" / "README.md").read_text().partition("## Bring up a chip in a day\n")[2].partition("\n## ")[0]
BLOCK = re.compile(r"^```(console|diff)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
NUM_COMMANDS = 23


def commands(block: str) -> Iterator[tuple[str, list[str]]]:
    """Each command of a console block, with the pieces of output that are shown."""
    for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
        command, _, output = part.partition("\n")
        yield command, [piece for line in output.splitlines() for piece in map(plain, line.split("...")) if piece]


def plain(text: str) -> str:
    """Without digits, lines of tables, and spaces that do not count."""
    return " ".join(re.sub(r"[0-9]+", "#", re.sub("[─-╿]", " ", text)).split())


def follow(env: Environment, command: str, shown: list[str], cwd: Path) -> None:
    if command.startswith("pip install "):
        env.install(*command.split()[2:], cwd=cwd)
        return
    done = env.attempt("bash", "-c", command, cwd=cwd)
    printed = plain(done.stdout + done.stderr)
    assert shown or done.returncode == 0, f"$ {command}\n{printed}"
    for piece in shown:
        assert piece in printed, f"$ {command}\n{piece!r} is not in what it prints:\n{done.stdout}{done.stderr}"


@pytest.mark.heavy
@pytest.mark.timeout(1800)
def test_every_step_of_the_guide(tmp_path: Path) -> None:
    env = make_environment(tmp_path)
    cwd, num_commands = tmp_path, 0
    # The guide names the wheel of a release.
    guide = re.sub(r"core-[0-9.]+-py3-none-any\.whl", env.wheel.name, GUIDE)
    for kind, text in BLOCK.findall(guide):
        if kind == "diff":
            (cwd / "change.diff").write_text(text)
            env.run("git", "apply", "change.diff", cwd=cwd)
            continue
        for command, shown in commands(text):
            num_commands += 1
            if command.startswith("cd "):
                cwd /= command.removeprefix("cd ")
            else:
                follow(env, command, shown, cwd)
    assert num_commands == NUM_COMMANDS
    env.run("python", "-m", "ruff", "check", ".", cwd=cwd)
    env.run("python", "-m", "ruff", "format", "--check", ".", cwd=cwd)


def test_the_guide_is_read_as_it_is_meant() -> None:
    kinds = [kind for kind, _ in BLOCK.findall(GUIDE)]
    assert kinds.count("diff") == 3
    found = [pair for kind, text in BLOCK.findall(GUIDE) if kind == "console" for pair in commands(text)]
    assert len(found) == NUM_COMMANDS
    assert ("core certify --device mychip --bisect", ["no departure"]) in found
