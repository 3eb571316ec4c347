"""schemathesis over our own OpenAPI document, against a real server: 2,000 examples of what the document allows and of
what it rules out. Every answer must come soon and be one that the document describes, and nothing ruled out is taken.
"""

import json
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import requests
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from processes import Server, serve

ALLOWED, RULED_OUT = 160, 40
"""Examples for each route with a body."""

OTHERS = 30
"""For a route with a parameter alone. One without any has a single example."""

HANG_S = 20
SHARE = 0.3
CHECKS = ("not_a_server_error", "status_code_conformance", "content_type_conformance", "response_schema_conformance",
          "response_headers_conformance", "negative_data_rejection")  # fmt: skip


@pytest.fixture(scope="module")
def short_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """The null device with a short context: no example generates for long."""
    folder = tmp_path_factory.mktemp("short")
    with serve(folder, "smollm2", "--device", "null", "--max-model-len", "64") as server:
        yield server


def examples(strategy: Any, count: int) -> list[Any]:
    found = []

    @settings(max_examples=count, database=None, derandomize=True, phases=[Phase.generate],
              suppress_health_check=list(HealthCheck))  # fmt: skip
    @given(strategy)
    def collect(case: Any) -> None:
        found.append(case)

    collect()
    return found


def all_examples(base_url: str) -> list[Any]:
    """As schemathesis makes them, for every operation of the document."""
    import schemathesis

    texts = st.dictionaries(st.text(max_size=5), st.integers(), max_size=2).map(json.dumps)
    schemathesis.openapi.format("json-object", texts)
    cases = []
    for found in schemathesis.openapi.from_url(f"{base_url}/openapi.json").get_all_operations():
        operation = found.ok()
        has_body = "requestBody" in operation.definition.raw
        cases += examples(operation.as_strategy(), ALLOWED if has_body else OTHERS)
        if has_body:
            negative = schemathesis.GenerationMode.NEGATIVE
            cases += examples(operation.as_strategy(generation_mode=negative), RULED_OUT)
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
        return "\n".join(map(str, error.exceptions))
    return None


@pytest.mark.heavy
def test_two_thousand_examples(short_server: Server) -> None:
    cases = all_examples(short_server.base_url)
    assert len(cases) >= 2000
    statuses: Counter[tuple[str, int]] = Counter()
    with requests.Session() as session, ThreadPoolExecutor(4) as pool:
        faults = [fault for fault in pool.map(lambda case: fault_of(case, session, statuses), cases) if fault]
    assert not faults, f"{len(faults)} faults:\n" + "\n\n".join(faults[:5])
    by_status = Counter({status: 0 for _, status in statuses})
    for (_, status), count in statuses.items():
        by_status[status] += count
    print(dict(by_status), dict(statuses))  # noqa: T201
    assert by_status.total() == len(cases)
    assert max(by_status) < 500
    assert by_status[200] >= SHARE * len(cases), by_status
    for path in ("chat/completions", "completions", "responses", "messages"):
        assert statuses[f"POST /v1/{path}", 200] >= 0.15 * ALLOWED, path
    assert short_server.post("/v1/completions", {"model": "smollm2", "prompt": "Hi", "max_tokens": 4}).is_success
    assert short_server.get("/kv").json()["num_running"] == 0
