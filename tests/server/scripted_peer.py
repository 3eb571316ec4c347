"""A peer that does as its name says, behind the real `scripts/answer.py`: what `interpreter` writes stands for the
interpreter of its environment."""

import runpy
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import ModuleType
from typing import Any

FIRST_S, STEP_S = 0.1, 0.05
ENDLESS = "import time\nwhile True: time.sleep(1)"


def interpreter(folder: Path, conduct: str) -> Path:
    """An executable that runs what it is given as Python would, with the peer of this file in place of the real one."""
    path = folder / f"python-{conduct}"
    path.write_text(
        f"#!{sys.executable}\nimport sys\nsys.path.insert(0, {str(Path(__file__).parent)!r})\n"
        f"import scripted_peer\nscripted_peer.run({conduct!r})\n"
    )
    path.chmod(0o755)
    return path


def run(conduct: str) -> None:
    script, kind = sys.argv[1:]
    module: Any = ModuleType(f"{kind}_peer")
    module.Peer = lambda asked: Scripted(asked, conduct)
    sys.modules[module.__name__] = module
    sys.argv = [script, kind]
    runpy.run_path(script, run_name="__main__")


class Scripted:
    """Takes FIRST_S until every sequence has a token, and STEP_S for each further one.

    conduct   "right", "chatty" (prints), "spins" (computes while others are measured), "dies" (in a run), "missing" (an
              import fails), "few" (draws one token less), "hangs" (in a run, with a child)
    """

    def __init__(self, asked: dict[str, Any], conduct: str) -> None:
        self._conduct = conduct
        if conduct == "missing":
            raise ModuleNotFoundError("No module named 'engine_of_others'")
        if conduct == "chatty":
            sys.stdout.write("loading, and no JSON\n")
        if conduct == "spins":
            threading.Thread(target=_spin, daemon=True).start()
        self.versions = {"scripted": "1.5"}
        self.settings = {"threads": asked["threads"], "model": asked["model"]}

    def generate(self, prompts: list[list[int]], num_tokens: int, watch: Any) -> None:
        if self._conduct == "dies":
            raise SystemExit("the engine of others fell over")
        if self._conduct == "hangs":
            subprocess.run([sys.executable, "-c", ENDLESS], check=True)
        watch.start()
        for step in range(num_tokens - (self._conduct == "few")):
            time.sleep(STEP_S if step else FIRST_S)
            for sequence in range(len(prompts)):
                watch.drawn(sequence)
            watch.step_done()


def _spin() -> None:
    while True:
        sum(range(1000))
