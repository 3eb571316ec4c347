"""The ONNX project's cases: all are accounted for, right kernels pass, wrong ones do not, references do not count."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from math import inf
from pathlib import Path

import pytest
import torch
import typer

from conformance.case import STATUSES, Finding, Result
from conformance.mutants import catalogue
from conformance.onnx_cases.command import onnx
from conformance.onnx_cases.exam import cases, examine, is_native, judge
from conformance.onnx_cases.fates import Fate, check, titles
from conformance.onnx_cases.left_out import LEFT_OUT, REASONS
from conformance.onnx_cases.load import OPERATORS, load
from conformance.onnx_cases.map import ADAPTERS, TAKEN
from conformance.onnx_cases.stand import Stand
from conformance.target import Target, host_target, open_target
from core.errors import ConfigError
from core.kernels.bind import REFERENCE
from core.kernels.reference import dense
from core.kernels.row import Implementation
from core.kernels.table import TABLE
from core.plugin.facts import Need, Support
from tests.conformance.test_pytest_plugin import ONLY_NORM
from tests.plugins import install_hostile, install_plugin

NUM_CASES = 317
NUM_TAKEN = 180
LEAST_NATIVE = 157
"""On the CPU."""


def results(target: Target, pattern: str = "") -> dict[str, Result]:
    return {name: examine(name, target) for name in cases() if pattern in name}


@cache
def on_cpu() -> Mapping[str, Result]:
    return results(open_target("cpu"))


@cache
def on_host() -> Mapping[str, Result]:
    return results(host_target())


def failed(found: Mapping[str, Result]) -> list[str]:
    return [f"{r.case} {r.status} {r.message}" for r in found.values() if r.status != "pass"]


def test_every_case_is_in_the_map_once() -> None:
    named = [name for _, names in (*TAKEN, *LEFT_OUT) for name in names.split()]
    assert sorted(named) == sorted(load())
    assert len(named) == NUM_CASES
    assert len(cases()) == NUM_TAKEN
    assert {case.operator for case in load().values()} == set(OPERATORS)


def test_cases_of_an_adapter_are_of_rows_in_the_table() -> None:
    assert {adapter.row for adapter in ADAPTERS.values()} <= set(TABLE)
    assert set(REASONS.values()) == {reason for reason, _ in LEFT_OUT}


def test_all_that_rows_take_passes_on_the_cpu() -> None:
    assert failed(on_cpu()) == []


def test_as_many_pass_by_the_cpus_own_kernels_as_ever() -> None:
    native = [r for r in on_cpu().values() if is_native(r)]
    assert len(native) >= LEAST_NATIVE
    assert {r.provider for r in native} == {"cpu", "cpu-native"}


def test_all_that_rows_take_passes_by_references_and_none_of_it_counts() -> None:
    found = on_host()
    assert failed(found) == []
    assert {r.provider for r in found.values()} == {REFERENCE}
    assert not any(map(is_native, found.values()))
    assert found["rms_normalization_2d_axis1"].message == "by reference: rms_norm"


def test_one_row_by_reference_is_enough_not_to_count() -> None:
    """linear is the CPU's own, scale_add is not."""
    assert on_cpu()["gemm_default_vector_bias"].provider == "cpu"
    assert on_cpu()["gemm_alpha"].provider == REFERENCE
    assert on_cpu()["gemm_alpha"].message == "by reference: scale_add"


def test_a_kernel_that_was_bound_and_not_called_does_not_count() -> None:
    stand = Stand(open_target("cpu"), "rms_norm", "cpu", Need(dtype="float32"))
    kernel = stand.bind("rms_norm", eps=1e-5)
    assert stand.references == ["rms_norm"]
    kernel(torch.ones(1, 4), torch.ones(4))
    assert stand.references == []


def test_a_kernel_that_refuses_a_case_leaves_it_to_the_reference() -> None:
    narrow = Implementation("rms_norm", dense.rms_norm, "narrow", Support(max_k=5))
    found = results(host_target(narrow), "rms_normalization")
    assert failed(found) == []
    assert found["rms_normalization_2d_axis1"].provider == "narrow"
    wide = found["rms_normalization_4d_axis0"]
    assert (wide.provider, wide.message) == (
        REFERENCE,
        "by reference: rms_norm (--kernel rms_norm=narrow: narrow: k 120 is over 5; remove it to use what fits)",
    )


def test_a_dtype_that_the_device_has_not_is_unsupported() -> None:
    target = host_target()
    only_half = replace(target, facts=replace(target.facts, dtypes=("float16",)))
    assert examine("swiglu", only_half).status == "unsupported"
    assert examine("swiglu_float16", only_half).status == "pass"


@pytest.mark.parametrize(
    ("row", "name", "pattern", "least"),
    [
        ("rms_norm", "eps_ignored", "epsilon", 6),
        ("rms_norm", "weight_ignored", "rms_norm", 19),
        ("linear", "bias_ignored", "gemm", 4),
        ("attn_paged", "mask_one_more", "causal", 10),
        ("attn_paged", "mask_one_less", "causal", 20),
        ("attn_paged", "window_one_less", "local_window", 2),
        ("attn_paged", "softcap_ignored", "softcap", 7),
        ("attn_paged", "heads_tiled", "gqa", 8),
        ("attn_paged", "largest_score_not_taken_away", "softmax_large_number", 1),
        ("attn_paged", "pages_in_a_row", "attention", 40),
        ("attn_paged", "padding_not_written", "attention", 4),
    ],
)
def test_wrong_kernels_fail(row: str, name: str, pattern: str, least: int) -> None:
    (mutant,) = (m for m in catalogue() if (m.row, m.name) == (row, name))
    found = results(mutant.target(), pattern)
    assert len(failed(found)) >= least
    assert not any(is_native(r) for r in found.values() if r.status != "pass")


def test_a_pool_of_fewer_bits_leaves_attention_to_the_reference(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install_hostile(monkeypatch, tmp_path / "site")
    found = results(open_target("hostile"), "attention_3d")
    assert failed(found) == []
    assert {r.provider for r in found.values()} == {REFERENCE}
    assert all("the pool of hostile keeps numbers to 0.0" in r.message for r in found.values())


def test_results_are_judged_as_the_package_does() -> None:
    case = load()["gelu_default_2"]
    (name,) = case.outputs
    wanted = case.outputs[name]
    assert judge(case, {name: wanted})[0].ratio == 0
    assert judge(case, {name: wanted * 1.0009})[0].ok
    assert not judge(case, {name: wanted * 1.0011})[0].ok
    assert not judge(case, {name: wanted.double()})[0].ok
    assert not judge(case, {name: wanted[:1]})[0].ok
    assert not judge(case, {name: wanted.where(wanted > 0, float("nan"))})[0].ok
    assert not judge(case, {})[0].ok
    integers = load()["argmax_default_axis_random"]
    (name,) = integers.outputs
    assert not judge(integers, {name: integers.outputs[name] + 1})[0].ok


@pytest.mark.parametrize("kind", ["int2", "uint2", "int4", "uint4", "float4e2m1", "e4m3fn", "e5m2", "int16", "uint16"])
def test_narrow_numbers_are_unpacked(kind: str) -> None:
    """(x - zero point) * scale is what ONNX says it is."""
    case = load()[f"dequantizelinear_{kind}"]
    x, scale, *zero = (value.float() for value in case.inputs.values())
    assert torch.equal((x - zero[0] if zero else x) * scale, *case.outputs.values())


def test_another_version_of_the_package_is_refused() -> None:
    operators = {name: case.operator for name, case in load().items()}
    check(operators)
    assert len(titles(operators)) == NUM_TAKEN
    with pytest.raises(ConfigError, match=r"other cases than the 317 that are known, such as swish: install onnx"):
        check({name: operator for name, operator in operators.items() if name != "swish"})


def test_what_becomes_of_a_case_is_told_by_one_word() -> None:
    def fate(provider: str, status: str) -> str:
        result = Result("onnx/Swish/swish", provider, status, "", (Finding("A", "y", inf),))
        return Fate.of("swish", "Swish", result).fate

    assert [fate("chip", s) for s in STATUSES] == ["device", "failed", "failed", "refused", "waived"]
    assert fate(REFERENCE, "pass") == "reference"
    left = Fate.of("flexattention_double", "FlexAttention", None)
    assert (left.fate, left.message) == ("left out", REASONS["flexattention_double"])


def test_the_command_prints_both_counts(capsys: pytest.CaptureFixture[str]) -> None:
    assert onnx("cpu", only="gemm_*") == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "pass by kernels of cpu, 3 by our references; 0 fail" in out
    assert "8 of 11 cases of onnx" in out
    assert "reference 3 by reference: scale_add" in out
    with pytest.raises(typer.BadParameter, match="no case is called 'nothing'"):
        onnx("cpu", only="nothing")


def test_the_command_tells_what_fails(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install_plugin(monkeypatch, tmp_path / "site", "chip", ONLY_NORM.replace("EPS", "2 * eps"))
    assert onnx("chip", only="rms_*") == 1
    out = " ".join(capsys.readouterr().out.split())
    assert "failed onnx/RMSNormalization/rms_normalization_3d_axis0_epsilon (chip): A Y" in out
    assert out.count("failed onnx/") == 6
