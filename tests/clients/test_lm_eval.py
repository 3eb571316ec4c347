"""lm-eval's local-completions before smollm2: log-likelihoods are those of transformers, texts are the server's own."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.server.processes import Server

pytestmark = pytest.mark.heavy

TASKS = Path(__file__).parent / "tasks"


@pytest.fixture(scope="module")
def samples(
    server: Server, model_folder: Path, run_client: Callable[..., str], tmp_path_factory: pytest.TempPathFactory
) -> dict[str, list[dict[str, Any]]]:
    """Task -> what lm-eval logged of each document."""
    out = tmp_path_factory.mktemp("lm-eval")
    folder = shutil.copytree(TASKS, out / "tasks")
    model = f"base_url={server.base_url}/v1/completions,model=smollm2,tokenizer={model_folder},num_concurrent=2"
    run_client(
        *("lm-eval", "run", "--model", "local-completions", "--model_args", model, "--include_path", str(folder)),
        *("--tasks", "facts_choice,facts_text", "--log_samples", "--output_path", str(out)),
        folder=folder,
        OPENAI_API_KEY=server.key,
        HF_HUB_OFFLINE="1",
    )
    found = {}
    for task in ("facts_choice", "facts_text"):
        [log] = out.rglob(f"samples_{task}_*.jsonl")
        found[task] = [json.loads(line) for line in log.read_text().splitlines()]
        assert len(found[task]) == 3
    return found


@pytest.fixture(scope="module")
def model(model_folder: Path) -> tuple[Any, Any]:
    """What transformers makes of the folder, in the server's dtype; and its tokenizer."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model = AutoModelForCausalLM.from_pretrained(model_folder, dtype=torch.float32)
    return model, AutoTokenizer.from_pretrained(model_folder)


def test_log_likelihoods(samples: dict[str, list[dict[str, Any]]], model: tuple[Any, Any]) -> None:
    for sample in samples["facts_choice"]:
        for number, [[logged, is_greedy]] in enumerate(sample["resps"]):
            asked = sample["arguments"][f"gen_args_{number}"]
            total, greedy = _by_transformers(model, asked["arg_0"], asked["arg_1"])
            assert float(logged) == pytest.approx(total, abs=2e-3), asked
            assert is_greedy == str(greedy), asked
    assert [sample["acc"] for sample in samples["facts_choice"]][:2] == [1.0, 1.0]


def test_texts(server: Server, samples: dict[str, list[dict[str, Any]]]) -> None:
    for sample in samples["facts_text"]:
        [[text]] = sample["resps"]
        body = {"model": "smollm2", "prompt": sample["doc"]["question"], "max_tokens": 12, "temperature": 0}
        answer = server.post("/v1/completions", body | {"stop": ["\n", ".", "!", "?"]}).json()
        assert text == answer["choices"][0]["text"]
    assert samples["facts_text"][0]["resps"] == [[" Paris"]]


def _by_transformers(model: tuple[Any, Any], context: str, choice: str) -> tuple[float, bool]:
    """The sum of the log-probabilities of `choice`'s tokens, and whether each is the likeliest."""
    import torch

    network, tokenizer = model
    ids = tokenizer(context + choice, add_special_tokens=False).input_ids
    first = len(tokenizer(context, add_special_tokens=False).input_ids)
    with torch.no_grad():
        logprobs = torch.log_softmax(network(torch.tensor([ids])).logits[0].double(), -1)[first - 1 : -1]
    wanted = torch.tensor(ids[first:])
    total = logprobs.gather(1, wanted[:, None]).sum().item()
    return total, bool((logprobs.argmax(-1) == wanted).all())
