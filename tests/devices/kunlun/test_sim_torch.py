"""The simulated chip as a torch device: operators, views, memory, streams, saved files, threads, models."""

from __future__ import annotations

import copy
import gc
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import pytest
import torch

from devices.kunlun import sim
from devices.kunlun.sim.backend import extension
from tests.devices.kunlun.simulated import SCHEDULES, machine, pinned, stream, zeros

pytestmark = pytest.mark.heavy


@pytest.fixture(scope="module", autouse=True)
def _machine() -> Iterator[None]:
    with machine(sim.Chip(count=2, memory_bytes=64 << 20, schedule="lazy")):
        yield


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    """Whatever a test did was in order."""
    sim.set_schedule("lazy")
    yield
    torch.accelerator.synchronize()
    assert sim.races() == []


X = torch.randn(6, 8, generator=torch.Generator().manual_seed(0))
OPERATORS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "arithmetic": lambda x: torch.softmax(x @ x.T + 1, -1),
    "in place": lambda x: x.clone().add_(1).mul_(x),
    "out": lambda x: torch.add(x, 1, out=torch.empty(0, device=x.device)),
    "out of another shape": lambda x: torch.add(x[:2], 1, out=x.new_empty(2, 8)),
    "list": lambda x: torch.cat([x, x[:2]]),
    "several results": lambda x: torch.topk(x, 3).values + torch.max(x, 1).values[:, None],
    "shape known late": lambda x: x[x > 0],
    "index by the host": lambda x: x[torch.tensor([3, 1])],
    "index by the device": lambda x: x[torch.tensor([3, 1]).to(x.device)],
    "index put": lambda x: x.clone().index_put_((torch.tensor([1, 2]).to(x.device),), x[:2]),
    "transposed": lambda x: x.t()[1:3, ::2].contiguous(),
    "write to a view": lambda x: (lambda y: (y[:, 1:3].zero_(), y)[1])(x.clone()),
    "unfold is a view": lambda x: (lambda y: (y.unfold(0, 2, 2)[0].zero_(), y)[1])(x.clone()),
    "view of another dtype": lambda x: x.view(torch.int32).view(torch.int16)[:, ::3].contiguous(),
    "expanded": lambda x: x[:1].expand(5, 8) + x[:5],
    "reduced": lambda x: x.sum() + x.mean(0).norm(),
    "bfloat16": lambda x: (x.bfloat16() @ x.bfloat16().T).float(),
    "complex": lambda x: torch.view_as_real(torch.view_as_complex(x.view(6, 4, 2)) * 1j),
    "attention": lambda x: torch.nn.functional.scaled_dot_product_attention(*[x.view(1, 2, 3, 8)] * 3),
    "empty": lambda x: x[:0] + x[:0],
    "cumulative": lambda x: torch.where(x > 0, x, 0.0).cumsum(-1),
}


@pytest.mark.parametrize("name", OPERATORS)
def test_operators_compute_what_the_host_computes(name: str) -> None:
    mine, theirs = OPERATORS[name](X.to("kunlun")), OPERATORS[name](X)
    assert mine.device == torch.device("kunlun:0")
    assert (mine.shape, mine.dtype) == (theirs.shape, theirs.dtype)
    torch.testing.assert_close(mine.cpu(), theirs, rtol=0, atol=1e-6 if name == "attention" else 0)


def test_views_share_memory() -> None:
    x = X.to("kunlun")
    assert x.t().stride() == X.t().stride()
    assert x[2:].data_ptr() == x.data_ptr() + 2 * 8 * 4
    x.t()[3] = 7
    assert torch.equal(x.cpu()[:, 3], torch.full((6,), 7.0))


def test_gradients() -> None:
    with torch.enable_grad():
        w, v = X.to("kunlun").requires_grad_(), X.clone().requires_grad_()
        for y in (w, v):
            (y * y).sum().backward()
    assert w.grad is not None
    assert v.grad is not None
    assert torch.equal(w.grad.cpu(), v.grad)


def test_devices_do_not_mix() -> None:
    with pytest.raises(RuntimeError, match=r"Expected all tensors to be on the same device|is on the host"):
        X.to("kunlun") @ X.T
    with pytest.raises(RuntimeError, match=r"same device|are mixed"):
        X.to("kunlun:0") @ X.T.to("kunlun:1")
    with pytest.raises(sim.SimulatedFault, match="there is no device kunlun:2: 2 are simulated"):
        torch.empty(1, device="kunlun:2")


def test_copies_between_devices() -> None:
    there = (X.to("kunlun:1") * 2).to("kunlun:0")
    assert there.device.index == 0
    assert torch.equal(there.cpu(), X * 2)
    with torch.accelerator.device_index(1):
        assert torch.ones(2, device="kunlun").device.index == 1


def test_random_numbers_follow_the_seed() -> None:
    torch.manual_seed(3)
    mine = torch.randn(5, device="kunlun").cpu()
    torch.manual_seed(3)
    assert torch.equal(mine, torch.randn(5))


def test_saved_and_loaded(tmp_path: Path) -> None:
    x = X.to("kunlun:1")
    torch.save({"x": x, "column": x[:, 2]}, tmp_path / "x.pt")
    here, host = torch.load(tmp_path / "x.pt"), torch.load(tmp_path / "x.pt", map_location="cpu")
    assert (here["x"].device.index, host["x"].device.type) == (1, "cpu")
    for loaded in (here, host):
        assert torch.equal(loaded["x"].cpu(), X)
        assert torch.equal(loaded["column"].cpu(), X[:, 2])
    assert torch.equal(copy.deepcopy(x).cpu(), X)


def test_new_memory_is_poison() -> None:
    x = torch.ones(1000, device="kunlun")
    del x
    assert set(torch.empty(1000, dtype=torch.uint8, device="kunlun").tolist()) == {0xA5}
    assert set(torch.empty(1000, dtype=torch.uint8, pin_memory=True).tolist()) == {0xA5}


def test_memory_is_counted() -> None:
    gc.collect()
    torch.accelerator.synchronize()
    before = torch.accelerator.memory_allocated()
    x = torch.empty(1000, device="kunlun")
    assert torch.accelerator.memory_allocated() - before == 4096
    free, total = torch.accelerator.get_memory_info()
    assert (total, total - free) == (64 << 20, before + 4096)
    del x
    assert torch.accelerator.memory_allocated() == before


def test_memory_of_another_stream_comes_back_when_it_is_needed() -> None:
    with stream():
        x = torch.empty(40 << 20, dtype=torch.uint8, device="kunlun")
        sim.launch(lambda x: x.fill_(1), [], [x])
        del x
    assert torch.empty(40 << 20, dtype=torch.uint8, device="kunlun").numel() == 40 << 20


def test_pinned_memory() -> None:
    assert pinned(8).is_pinned()
    assert not torch.zeros(8).is_pinned()
    assert torch.empty(8, pin_memory=True).is_pinned()
    assert X.to("kunlun").to("cpu", non_blocking=True).is_pinned()
    torch.accelerator.synchronize()


def test_a_copy_is_asynchronous_with_pinned_memory_only() -> None:
    ran: list[int] = []
    x = zeros(8)
    for host, expected in ((pinned(8), []), (torch.zeros(8, dtype=torch.uint8), [1])):
        ran.clear()
        sim.launch(lambda x: ran.append(1), [x], [])
        host.copy_(x, non_blocking=True)
        assert ran == expected
        torch.accelerator.synchronize()


def test_streams_and_events() -> None:
    x, mine, other = zeros(8), stream(), stream()
    with mine:
        assert torch.accelerator.current_stream() == mine
        sim.launch(lambda x: x.add_(1), [], [x], seconds=1e-3)
        begun = torch.Event(device="kunlun", enable_timing=True)
        begun.record()
        sim.launch(lambda x: x.add_(1), [], [x], seconds=2e-3)
        done = torch.Event(device="kunlun", enable_timing=True)
        done.record()
    assert torch.accelerator.current_stream() != mine
    assert not mine.query()
    other.wait_stream(mine)
    with other:
        sim.launch(lambda x: x.mul_(5), [], [x])
    other.synchronize()
    assert done.query()
    assert begun.elapsed_time(done) == pytest.approx(2.0)
    assert x.tolist() == [10] * 8


def test_an_error_of_a_kernel_is_raised_where_it_is_waited_for() -> None:
    x = zeros(8)
    sim.launch(lambda x: x.view(3), [x], [])
    with pytest.raises(RuntimeError, match="shape '\\[3\\]' is invalid"):
        torch.accelerator.synchronize()
    assert x.tolist() == [0] * 8


def test_declarations_are_checked() -> None:
    x = zeros(8).view(4, 2)
    with pytest.raises(sim.SimulatedFault, match="attn declares row 4 of 4 rows"):
        sim.launch(lambda x: x, [(x, [0, 4])], [], name="attn")
    with pytest.raises(sim.SimulatedFault, match="declares rows by a tensor on kunlun:0"):
        sim.launch(lambda x: x, [(x, torch.tensor([0]).to("kunlun"))], [])


def test_in_inference_mode_and_out_of_it() -> None:
    x = zeros(8)
    with torch.inference_mode():
        sim.launch(lambda x: x.add_(1), [], [x])
        y = x + 1
        sim.launch(lambda y: y.add_(1), [], [y])
    assert (x.tolist(), y.tolist()) == ([1] * 8, [3] * 8)


@pytest.mark.parametrize("mode", [torch.inference_mode, torch.no_grad])
@pytest.mark.parametrize("inside", [True, False])
def test_what_is_read_back_in_inference_mode(mode: Callable[[], AbstractContextManager[None]], inside: bool) -> None:
    """Whether the tensor was made in it, or before."""
    before = X.to("kunlun")
    with mode():
        x = X.to("kunlun") if inside else before
        for mine, theirs in ((x, X), (x[1:3, ::2], X[1:3, ::2]), (x.t(), X.t())):
            assert torch.equal(mine.cpu(), theirs)
            assert torch.equal(mine.to("cpu"), theirs)
            assert torch.equal(mine.to("cpu", torch.float64), theirs.double())
            assert mine.tolist() == theirs.tolist()
            assert mine[1, 1].item() == theirs[1, 1].item()
        assert (x[0, :2] + 1).sum().item() == (X[0, :2] + 1).sum().item()
    assert torch.equal(x.cpu(), X)


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_collectives(schedule: str) -> None:
    sim.set_schedule(schedule)
    xs = [X.to(f"kunlun:{i}") * (i + 1) for i in range(2)]
    gathered = sim.all_gather(xs)
    sim.all_reduce(xs)
    assert all(torch.equal(x.cpu(), X + X * 2) for x in xs)
    assert all(torch.equal(x.cpu(), torch.cat([X, X * 2])) for x in gathered)
    xs[1].zero_()
    sim.broadcast(xs, 1)
    assert not xs[0].cpu().any()
    sim.send(gathered[0][:6], xs[1])
    assert torch.equal(xs[1].cpu(), X)
    with pytest.raises(sim.SimulatedFault, match="all_reduce is given tensors on"):
        sim.all_reduce([xs[0], xs[0]])


def test_tensors_may_be_freed_by_other_threads() -> None:
    """Kernels take the GIL under the simulator's lock, and destructors the lock under the GIL."""
    sim.set_schedule("seed:1")
    done = threading.Event()
    handed: list[torch.Tensor] = []

    def free() -> None:
        while not done.is_set() or handed:
            if handed:
                handed.pop()

    thread = threading.Thread(target=free)
    thread.start()
    try:
        for _ in range(2000):
            x = torch.ones(64, device="kunlun")
            sim.launch(lambda x: x.add_(1), [], [x])
            handed.append(x + 1)
    finally:
        done.set()
        thread.join(60)
    assert not thread.is_alive()


def test_a_machine_starts_anew_only_when_nothing_lives() -> None:
    x = zeros(8)
    with pytest.raises(sim.SimulatedFault, match=r"the simulator cannot start anew: tensors hold .* bytes"):
        sim.start(sim.Chip())
    assert x.tolist() == [0] * 8


def python(program: str) -> str:
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout + done.stderr


def test_what_is_left_runs_at_exit_and_is_raised_there() -> None:
    said = python(
        """
import torch
from devices.kunlun import sim
sim.load()
sim.start(sim.Chip(schedule="lazy"))
x = torch.zeros(8, device="kunlun")
sim.launch(lambda x: print("ran"), [x], [], name="last")
with torch.Stream(device="kunlun") as other:
    sim.launch(lambda: None, [], [])
    torch.accelerator.synchronize()
    sim.launch(lambda x: None, [x], [], name="copy")
del x
"""
    )
    assert "ran" in said
    assert "early free" in said


def test_before_the_start() -> None:
    said = python(
        """
import torch
from devices.kunlun import sim
sim.load()
print(torch.accelerator.is_available(), torch.accelerator.device_count())
try:
    torch.empty(1, device="kunlun")
except sim.SimulatedFault as fault:
    print(fault)
"""
    )
    assert said == "False 0\nthe simulator is not started: call devices.kunlun.sim.start first\n"


_COMPILER = """#!/bin/sh
echo "$@" >> {log}
for last; do :; done
case "$1" in -shared) sleep 1; cp {library} "$last";; *) touch "$last";; esac
"""


def test_processes_that_want_it_at_once_build_it_once(tmp_path: Path) -> None:
    """With a compiler that hands out what is built already."""
    compiler, log = tmp_path / "compiler", tmp_path / "log"
    compiler.write_text(_COMPILER.format(log=log, library=extension().__file__))
    compiler.chmod(0o755)
    env = {**os.environ, "XDG_CACHE_HOME": str(tmp_path), "CXX": str(compiler)}
    program = "from devices.kunlun import sim; sim.load(); sim.start(sim.Chip())"
    running = [subprocess.Popen([sys.executable, "-c", program], env=env) for _ in range(2)]
    assert [process.wait(120) for process in running] == [0, 0]
    assert sum(line.startswith("-shared") for line in log.read_text().splitlines()) == 1
    assert len(list(tmp_path.rglob("*.so"))) == 1


def test_a_model_of_transformers_says_the_same(tiny_llama_dir: Path) -> None:
    from transformers import LlamaForCausalLM

    model = LlamaForCausalLM.from_pretrained(tiny_llama_dir, dtype=torch.float32).eval()
    prompt = torch.arange(2, 26).view(2, 12)
    expected = model.generate(prompt, max_new_tokens=8, do_sample=False)
    model.to("kunlun")
    assert torch.equal(model.generate(prompt.to("kunlun"), max_new_tokens=8, do_sample=False).cpu(), expected)
