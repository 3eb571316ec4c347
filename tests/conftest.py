"""Models small enough to make anew: no test needs the network."""

from __future__ import annotations

import gc
import json
import os
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

import hypothesis
import pytest
import tokenizers
from tokenizers import decoders, models, pre_tokenizers, trainers

# Read when torch is loaded: see server/cli.py. Tests run beside other work.
os.environ.setdefault("GOMP_SPINCOUNT", "3000")
if "PYTEST_XDIST_WORKER" in os.environ:
    # There is a process of tests for every processor: with more threads, these wait for each other, and models as small
    # as most here take twice the processor time. tests/devices/cpu/test_cpu_threads.py takes two.
    os.environ.setdefault("OMP_NUM_THREADS", "1")

# Times vary on machines that do other work too.
hypothesis.settings.register_profile("core", deadline=None)
hypothesis.settings.load_profile("core")
# Of `make mutation`: a failure is enough, without its smallest example; and the same examples for each mutant.
hypothesis.settings.register_profile(
    "mutation",
    deadline=None,
    derandomize=True,
    phases=[hypothesis.Phase.explicit, hypothesis.Phase.generate],
)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """What is there when tests begin, stays: 800,000 objects of modules and tests. To look through all of them for
    garbage, again and again, would take a tenth of the time. What tests leave is looked through as ever."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.collect()
        gc.freeze()
        gc.enable()


CHAT_TEMPLATE = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
_SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
_VOCAB_SIZE = 384
_CORPUS = [
    "the quick brown fox jumps over the lazy dog and then the dog sleeps there for the whole day",
    "def add(a, b):\n    return a + b\n\nfor i in range(10):\n    print(add(i, 2024))\n",
    "user assistant system question answer hello world, how are you today? 1 2 3 4 5",
    "größer naïve café 你好世界 こんにちは 👍🏽 😀",
]


def write_tokenizer(folder: Path) -> None:
    """A byte-level BPE tokenizer of 384 tokens with a chat template; ids 0, 1, 2 are special, 2 ends a turn."""
    backend = tokenizers.Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=_VOCAB_SIZE,
        special_tokens=_SPECIAL,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    backend.train_from_iterator(_CORPUS * 4, trainer)
    backend.save(str(folder / "tokenizer.json"))
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": "<|endoftext|>",
        "eos_token": "<|im_end|>",
        "chat_template": CHAT_TEMPLATE,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(config))


def write_llama(folder: Path, **config: Any) -> Path:
    """A random Llama: 384 tokens, hidden size 64, 4 heads, 2 KV heads, 3 layers, float32, in shards of 200 kB."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    settings = {
        "vocab_size": _VOCAB_SIZE,
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "max_position_embeddings": 512,
        "tie_word_embeddings": False,
        "bos_token_id": 0,
        "eos_token_id": 2,
        "initializer_range": 0.1,
    }
    torch.manual_seed(0)
    model = LlamaForCausalLM(LlamaConfig(**{**settings, **config}))
    with torch.no_grad():
        for name, tensor in model.named_parameters():
            if name.endswith(("norm.weight", "bias")):
                tensor.normal_(1.0 if "norm" in name else 0.0, 0.1)
    folder.mkdir(parents=True, exist_ok=True)
    model.save_pretrained(folder, max_shard_size="200KB")
    write_tokenizer(folder)
    return folder


@pytest.fixture(scope="session", autouse=True)
def _certificates_of_tests(tmp_path_factory: pytest.TempPathFactory) -> None:
    """What tests certify is not kept for the user."""
    os.environ["CORE_CERTIFICATES"] = str(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="session")
def tiny_llama_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint folder: see `write_llama` and `write_tokenizer`. Not to be written to."""
    return write_llama(tmp_path_factory.mktemp("tiny-llama") / "tiny")


@pytest.fixture
def make_llama(tmp_path: Path) -> Callable[..., Path]:
    """make_llama("name", attention_bias=True): a folder as `tiny_llama_dir`, with other config values."""
    return lambda name="model", **config: write_llama(tmp_path / name, **config)
