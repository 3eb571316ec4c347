"""What the heavy tests run in processes of their own: a process takes one kind of simulated device, and keeps it.

`python -m tests.devices.kunlun.programs NAME JSON` calls a function of this module with arguments in JSON, and writes
what it gives as JSON. `run` does that from a test, with the simulator as `chip` describes it.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import torch

from conformance.target import open_target
from core import LLM, ConfigError, EngineConfig, PluginError, RequestOutput, SamplingParams
from core.engine.build import describe

ROOT = Path(__file__).parents[3]
COUNTS = (
    "num_preemptions", "num_swapped", "num_pages_swapped_out", "num_pages_swapped_in", "num_compiles",
    "num_late_compiles", "num_draft_tokens", "num_accepted_tokens",
)  # fmt: skip


def run(program: str, chip: str, *, graphs: bool = False, timeout_s: float = 500, **arguments: Any) -> Any:
    """What a program of this module gives."""
    command = [sys.executable, "-m", "tests.devices.kunlun.programs", program, json.dumps(arguments)]
    env = os.environ | {"KUNLUN_SIM": chip, "KUNLUN_GRAPHS": "1" if graphs else "0"}
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, env=env, timeout=timeout_s, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    return json.loads(done.stdout.splitlines()[-1])


def greedy(num: int, **more: Any) -> SamplingParams:
    return SamplingParams(temperature=0.0, max_tokens=num, ignore_eos=True, **more)


def told(outputs: list[RequestOutput]) -> list[dict[str, Any]]:
    return [{"ids": output.token_ids, "cached": output.num_cached} for output in outputs]


def texts(model: str, waves: list[list[Any]], schedules: list[str], num: int, **options: Any) -> Any:
    """One engine; under each schedule a wave of prompts, twice: the second time, the cache has what is left of them.

    Times are virtual: `all_s` from the first wave to the last, the others of engines of the chip meanwhile.
    """
    from devices.kunlun import sim

    found = []
    with LLM(model, device="kunlun", **options) as llm:
        before = _times()
        for schedule, prompts in zip(schedules, waves, strict=True):
            sim.set_schedule(schedule)
            found.append([told(llm.generate(prompts, greedy(num))) for _ in range(2)])
        llm.engine.scheduler.check_idle()
        seen = llm.engine.inspect()
        times = {name: end - begin for (name, begin), end in zip(before.items(), _times().values(), strict=True)}
        sim.set_schedule("eager")
        return {"found": found, "races": sim.races(), "times": times, **{name: getattr(seen, name) for name in COUNTS}}


def _times() -> dict[str, float]:
    from devices.kunlun import sim

    return {"all_s": sim.now_s(), **{f"{engine}_s": sim.busy_s(engine) for engine in ("compute", "hbm", "h2d", "d2h")}}


def exported(model: str, prompt: list[int], path: str, **options: Any) -> int:
    """Computes a prompt and writes what the cache holds of it to a file. Returns for how many tokens."""
    with LLM(model, device="kunlun", **options) as llm:
        llm.generate([prompt], greedy(1))
        entries = llm.export_kv(prompt)
    Path(path).write_bytes(entries.to_bytes())
    return len(entries.token_ids)


def replays() -> dict[str, Any]:
    """A function that adds to a pool in place, called with tensors that lie here and there."""
    target = open_target("kunlun")
    pool, *given = (torch.full((4,), value, device=target.where) for value in (0.0, 1.0, 20.0, 300.0))
    made = target.device.compile(lambda x, pool: (x * 2, [pool.add_(x)]), ("a shape",), (1,))
    results = [made(x, pool) for x in given]
    return {
        "doubled": [doubled.tolist() for doubled, _ in results],
        "pool": pool.tolist(),
        "in_place": all(back.data_ptr() == pool.data_ptr() for _, [back] in results),
        "given": [x.tolist() for x in given[1:]],
    }


def beside(mib: int) -> dict[str, float]:
    """A copy of so many MiB to the host, aside, between two kernels of a second: when all of it ends, and when each."""
    from devices.kunlun import sim

    target = open_target("kunlun")
    device, host = target.device, target.device.host_empty((mib << 18,), torch.float32)
    there = torch.zeros((mib << 18,), device=target.where)
    device.synchronize()
    begin_s = sim.now_s()

    def compute() -> None:
        sim.launch(lambda x: None, reads=[], writes=[there[:1] * 1], seconds=1.0, name="compute")

    compute()
    with device.aside():
        host.copy_(there, non_blocking=True)
        copied = device.record()
    compute()
    at_once = copied.done()
    copied.synchronize()
    copied_s = sim.now_s() - begin_s
    device.synchronize()
    return {"at_once": at_once, "copied_s": copied_s, "all_s": sim.now_s() - begin_s, "after": copied.done()}


def refusals(asked: list[dict[str, Any]]) -> list[str]:
    """Why the device does not take these configurations."""
    found = []
    for options in asked:
        try:
            describe(EngineConfig(device="kunlun", **options))
        except (ConfigError, PluginError) as error:
            found.append(str(error))
    return found


if __name__ == "__main__":
    sys.stdout.write(json.dumps(globals()[sys.argv[1]](**json.loads(sys.argv[2]))))
