"""Functions that the XLA device compiles: what they take over, give back, and refuse."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from core.errors import DeviceError
from core.plugin import DeviceFacts
from devices.xla.device import XlaDevice
from tests.devices.xla.ways import counter_of_compilations, through_jax

pytestmark = pytest.mark.heavy
KEY = ("a test",)


@pytest.fixture(scope="module")
def device() -> XlaDevice:
    device = XlaDevice()
    assert isinstance(device.probe(), DeviceFacts)
    device.open(0)
    return device


def on_host(device: XlaDevice, x: torch.Tensor) -> torch.Tensor:
    host = torch.empty(x.shape, dtype=x.dtype)
    device.d2h(host, x).synchronize()
    return host


@torch.inference_mode()
def test_what_is_given_is_taken_over_and_comes_back_updated(device: XlaDevice) -> None:
    def write(x: torch.Tensor, plane: torch.Tensor, rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return x * 2, plane.index_copy_(0, rows, x)

    num_compiled = counter_of_compilations()
    step = device.compile(write, KEY, (1,))
    first = plane = device.keep(torch.zeros(5, 3))
    host = torch.empty(1, 3)  # as core does, the same memory each time
    for i in range(4):
        doubled, plane = step(host.fill_(i), plane, torch.tensor([i + 1]))
        if i == 0:
            at_first = num_compiled()
    assert on_host(device, plane).tolist() == [[0.0] * 3, [0.0] * 3, [1.0] * 3, [2.0] * 3, [3.0] * 3]
    assert on_host(device, doubled).tolist() == [[6.0] * 3]
    assert num_compiled() == at_first
    with pytest.raises(RuntimeError):
        on_host(device, first)


@torch.inference_mode()
def test_results_may_be_inputs_or_one_another(device: XlaDevice) -> None:
    def several(x: torch.Tensor, w: torch.Tensor) -> dict[str, Any]:
        y = x + w
        return {"both": (y, y), "input": w, "constant": torch.zeros_like(x), "none": None}

    step = device.compile(several, KEY, ())
    w = device.keep(torch.full((2,), 3.0))
    for value in (1.0, 2.0):
        found = step(torch.full((2,), value), w)
        assert [on_host(device, y)[0] for y in found["both"]] == [value + 3] * 2
        assert on_host(device, found["input"])[0] == 3
        assert on_host(device, found["constant"])[0] == 0
        assert found["none"] is None


@torch.inference_mode()
def test_other_shapes_are_refused(device: XlaDevice) -> None:
    step = device.compile(lambda x: x + 1, KEY, ())
    step(torch.zeros(3))
    with pytest.raises(TypeError if through_jax() else DeviceError):
        step(torch.zeros(4))


@torch.inference_mode()
def test_what_would_run_on_the_host_is_refused(device: XlaDevice) -> None:
    """Twice, because a library may say it once."""
    if through_jax():
        from jax.errors import ConcretizationTypeError as Refused
    else:
        Refused = DeviceError
    for _ in range(2):
        step = device.compile(lambda x: x * x.sum().item(), KEY, ())
        with pytest.raises(Refused):
            step(torch.ones(3))
