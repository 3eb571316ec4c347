"""schemathesis over our own OpenAPI document, against real servers: 2,000 examples of what the document allows and of
what it rules out, and some hundred for a model that computes. Every answer must come soon and be one that the document
describes, and nothing ruled out is taken.
"""

import json
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import requests
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from processes import Server, serve

OTHERS = 30
"""Examples for a route with a parameter alone. One without any has a single example."""

HANG_S = 60
SHARE = 0.3
CHECKS = ("not_a_server_error", "status_code_conformance", "content_type_conformance", "response_schema_conformance",
          "response_headers_conformance", "negative_data_rejection")  # fmt: skip


def examples(strategy: Any, count: int) -> list[Any]:
    found = []

    @settings(max_examples=count, database=None, derandomize=True, phases=[Phase.generate],
              suppress_health_check=list(HealthCheck))  # fmt: skip
    @given(strategy)
    def collect(case: Any) -> None:
        found.append(case)

    collect()
    return found


def all_examples(base_url: str, allowed: int, ruled_out: int) -> list[Any]:
    """As schemathesis makes them, for every operation of the document: so many for each that has a body."""
    import schemathesis

    texts = st.dictionaries(st.text(max_size=5), st.integers(), max_size=2).map(json.dumps)
    schemathesis.openapi.format("json-object", texts)
    cases = []
    for found in schemathesis.openapi.from_url(f"{base_url}/openapi.json").get_all_operations():
        operation = found.ok()
        has_body = "requestBody" in operation.definition.raw
        cases += examples(operation.as_strategy(), allowed if has_body else OTHERS)
        if has_body:
            negative = schemathesis.GenerationMode.NEGATIVE
            cases += examples(operation.as_strategy(generation_mode=negative), ruled_out)
    return cases


def fault_of(case: Any, session: requests.Session, statuses: Counter[tuple[str, int]]) -> str | None:
    """What is wrong with the answer to an example."""
    from schemathesis.checks import CHECKS as REGISTRY
    from schemathesis.core.failures import FailureGroup

    try:
        response = case.call(session=session, timeout=HANG_S)
        statuses[f"{case.method} {case.path}", response.status_code] += 1
        case.validate_response(response, checks=[REGISTRY.get_one(name) for name in CHECKS])
    except requests.RequestException as error:
        return f"no answer ({error}) to {case.as_curl_command()}"
    except FailureGroup as error:
        what = "\n".join(map(str, error.exceptions))
        return f"{what}\n{case.as_curl_command()}\n{response.status_code} {response.text[:500]}"
    return None


def check(server: Server, cases: list[Any]) -> Counter[tuple[str, int]]:
    """Number of answers by operation and status."""
    statuses: Counter[tuple[str, int]] = Counter()
    with requests.Session() as session, ThreadPoolExecutor(4) as pool:
        faults = [fault for fault in pool.map(lambda case: fault_of(case, session, statuses), cases) if fault]
    assert not faults, f"{len(faults)} faults:\n" + "\n\n".join(faults[:5])
    assert statuses.total() == len(cases)
    num_taken = sum(count for (_, status), count in statuses.items() if status < 300)
    print(f"{num_taken} of {len(cases)} were answered 2xx", dict(statuses))  # noqa: T201
    assert num_taken >= SHARE * len(cases)
    assert max(status for _, status in statuses) < 500
    assert server.post("/v1/completions", {"model": "smollm2", "prompt": "Hi", "max_tokens": 4}).is_success
    assert server.get("/kv").json()["num_running"] == 0
    return statuses


@pytest.mark.heavy
@pytest.mark.timeout(900)
def test_two_thousand_examples(tmp_path: Path) -> None:
    """On the null device. With a short context no example generates for long."""
    with serve(tmp_path, "smollm2", "--device", "null", "--max-model-len", "64") as server:
        cases = all_examples(server.base_url, allowed=160, ruled_out=40)
        assert len(cases) >= 2000
        statuses = check(server, cases)
    for path in ("chat/completions", "completions", "responses", "messages"):
        assert statuses[f"POST /v1/{path}", 200] >= 24, path


@pytest.mark.heavy
@pytest.mark.timeout(900)
def test_hundreds_of_examples_with_a_model(tmp_path: Path) -> None:
    """smollm2 on the cpu device, with few choices in a request: here they take time."""
    with serve(tmp_path, "smollm2", "--device", "cpu", "--max-model-len", "64") as server:
        cases = all_examples(server.base_url, allowed=50, ruled_out=2)
        few = [case for case in cases if not (isinstance(case.body, dict) and is_more_than(case.body.get("n"), 4))]
        assert len(few) > 500
        check(server, few)


def is_more_than(value: Any, most: int) -> bool:
    return isinstance(value, int | float) and value > most
