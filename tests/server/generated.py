"""A generated device project, installed in an environment of its own: core from a wheel, the project by pip.

What else both need comes from the environment of the tests, through a path file: torch is not installed twice.
"""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent
INSTALL = ("--quiet", "--no-index", "--no-build-isolation", "--disable-pip-version-check")


@dataclass(frozen=True)
class Environment:
    """`bin` of a virtual environment; `wheel` is core's, which is not in it yet. `folder` is for whatever is made."""

    folder: Path
    bin: Path
    wheel: Path

    def attempt(self, *command: str | Path, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
        """Run a command to its end. Its own programs come first, those beside this Python last."""
        variables = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        places = (str(self.bin), os.environ["PATH"], str(Path(sys.executable).parent))
        variables |= {"PATH": os.pathsep.join(places), "COLUMNS": "200"}
        where = cwd or self.folder
        return subprocess.run(command, cwd=where, env=variables, capture_output=True, text=True, check=False)

    def run(self, *command: str | Path, cwd: Path | None = None) -> str:
        """What a command prints, which must succeed."""
        done = self.attempt(*command, cwd=cwd)
        assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"
        return done.stdout

    def install(self, *what: str | Path, cwd: Path) -> None:
        """With pip, from files alone."""
        pip = (sys.executable, "-m", "pip", "--python", self.bin / "python")
        self.run(*pip, "install", *INSTALL, *what, cwd=cwd)


def make_environment(folder: Path) -> Environment:
    """An environment without core, and the wheel of this tree."""
    env = Environment(folder, folder / "env" / "bin", folder)
    env.run(sys.executable, "-m", "venv", "--without-pip", folder / "env")
    tests = sysconfig.get_path("purelib")
    inside = env.run(env.bin / "python", "-c", "import sysconfig; print(sysconfig.get_path('purelib'))").strip()
    (Path(inside) / "tests.pth").write_text(f"{tests}\n")
    build = (sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation")
    env.run(*build, "--wheel-dir", folder, ROOT)
    [wheel] = folder.glob("core-*.whl")
    return Environment(folder, env.bin, wheel)
