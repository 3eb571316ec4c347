"""The table is consistent: whatever is derived from it may rely on what stands there."""

from __future__ import annotations

import inspect
import re
from importlib import import_module

import pytest

from core.kernels.row import Row
from core.kernels.table import _ROWS, KV_BUNDLE, TABLE

ROWS = pytest.mark.parametrize("row", TABLE.values(), ids=TABLE)


def words(text: str) -> set[str]:
    """Names in a part of a row's `shapes`, also without their shape: q_THD is q."""
    names = set(re.findall(r"[a-z][A-Za-z0-9_]*", text))
    return names | {re.sub(r"_[A-Z(][A-Za-z0-9()]*$|_\.*$", "", name).rstrip("_") for name in names}


def test_names_are_unique() -> None:
    assert len(TABLE) == len(_ROWS)
    assert all(name == row.name for name, row in TABLE.items())


def test_rows_of_the_design() -> None:
    names = (
        "attn_plan attn_paged attn_merge embed gather_rows take_ids put_ids kv_layout kv_write kv_gather kv_export "
        "kv_import all_reduce all_gather reduce_scatter all_to_all_v broadcast send recv kv_copy kv_swap copy_rows "
        "linear pack_weight quant_act rms_norm add_rms_norm rope act_mul scale_add softcap penalize "
        "add_bias min_p apply_mask sample logprobs_topk spec_verify"
    )
    assert set(TABLE) == set(names.split())


def test_the_bundle() -> None:
    assert set(KV_BUNDLE) == {
        "attn_plan", "attn_paged", "kv_layout", "kv_write", "kv_gather", "kv_export", "kv_import", "kv_copy", "kv_swap",
    }  # fmt: skip
    assert {row.bundle for row in _ROWS} == {None, "kv"}


def test_production_rows() -> None:
    assert {row.name for row in _ROWS if row.production} == {
        "attn_paged", "kv_write", "linear", "rms_norm", "rope", "act_mul",
    }  # fmt: skip


@ROWS
def test_the_reference_is_a_function_of_its_name(row: Row) -> None:
    """Found again by import, so that tools can name it."""
    module = import_module(row.reference.__module__)
    assert module.__name__.startswith("core.kernels.reference.")
    assert getattr(module, row.name) is row.reference
    assert row.reference.__doc__


@ROWS
def test_the_signature_is_what_shapes_say(row: Row) -> None:
    """Arguments by position stand before the bar, what is fixed (keyword only) after it; parts are not mentioned."""
    taken, _, _ = row.shapes.partition("->")
    by_position, _, fixed = taken.partition("|")
    kinds: dict[str, list[str]] = {"position": [], "keyword": []}
    for parameter in inspect.signature(row.reference).parameters.values():
        kinds["keyword" if parameter.kind is parameter.KEYWORD_ONLY else "position"].append(parameter.name)
    assert set(row.parts) <= set(kinds["keyword"])
    assert set(kinds["position"]) <= words(by_position), row.shapes
    assert set(kinds["keyword"]) - set(row.parts) <= words(fixed), row.shapes
    # In the same order.
    places = [re.search(rf"\b{name}(_|\b)", by_position) for name in kinds["position"]]
    starts = [place.start() for place in places if place]
    assert starts == sorted(starts)
    assert len(starts) == len(kinds["position"])


@ROWS
def test_parts_are_rows_and_end_somewhere(row: Row) -> None:
    for part in row.parts:
        assert not TABLE[part].parts, "parts of parts are not composed"


@ROWS
def test_a_reader_is_a_row_that_stands_alone(row: Row) -> None:
    """Binding follows one step."""
    if row.reader:
        assert (TABLE[row.reader].reader, TABLE[row.reader].bundle, row.parts) == (None, None, ())


@ROWS
def test_what_is_written_is_an_argument(row: Row) -> None:
    names = set(inspect.signature(row.reference).parameters)
    assert {*row.mutates, *row.overwrites} <= names
    assert not set(row.mutates) & set(row.overwrites)
