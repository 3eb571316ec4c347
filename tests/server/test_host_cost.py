"""`core bench host`: every part of a step is measured in each of them."""

from __future__ import annotations

from server.host_cost import prefix_costs, step_costs, summary


def test_what_a_step_costs_the_host() -> None:
    costs = step_costs(4, 20, context=32)
    assert min(len(each) for each in costs.values()) > 15
    assert {"schedule", "pack"} <= costs.keys()
    for each in (costs | prefix_costs(1024, 5)).values():
        median, p99 = summary(each)
        assert 0 < median <= p99
