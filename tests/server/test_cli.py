"""The command line: numbers, one-line errors, and the commands that do not serve."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import typer
from processes import CORE, run_core, run_here

from server.commands.options import parse_count, parse_kernels


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("4096", 4096),
        ("32K", 32768),
        ("32k", 32000),
        ("25.6k", 25600),
        ("1M", 2**20),
        ("1.5M", 1572864),
        ("2g", 2 * 10**9),
    ],
)
def test_counts(text: str, count: int) -> None:
    assert parse_count(text) == count


@pytest.mark.parametrize("text", ["", "k", "1.5", "-1", "1e3", "1.0001k", "12Q", "0x10"])
def test_wrong_counts(text: str) -> None:
    with pytest.raises(typer.BadParameter):
        parse_count(text)


def test_kernels() -> None:
    assert parse_kernels(["rms_norm=reference", "rope=cpu"]) == {"rms_norm": "reference", "rope": "cpu"}
    for pair in ("rms_norm", "=cpu", "rms_norm="):
        with pytest.raises(typer.BadParameter):
            parse_kernels([pair])


def test_help_is_fast_and_light() -> None:
    """The commands import what they need only when they run."""
    before = os.times()
    for args in ([], ["--help"], ["serve", "--help"], ["bench", "latency", "--help"]):
        assert run_core(*args).returncode == 0
    after = os.times()  # of processors, since others may keep them busy
    assert after.children_user + after.children_system - before.children_user - before.children_system < 4 * 0.5
    heavy = "('torch', 'fastapi', 'zmq', 'tokenizers', 'matplotlib', 'onnx')"
    loaded = f"import server.cli, sys; server.cli.add_commands(); print([m for m in {heavy} if m in sys.modules])"
    assert subprocess.run([sys.executable, "-c", loaded], capture_output=True, text=True, check=True).stdout == "[]\n"


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["nothing"], ["nothing"]),
        (["serve", "--prot", "5"], ["--prot"]),
        (["serve", "--max-num-seqs", "zz"], ["--max-num-seqs", "zz"]),
        (["serve", "--port", "70000"], ["--port", "65535"]),
        (["serve", "--on-engine-failure", "dance"], ["dance", "restart"]),
        (["serve", "--kernel", "rms_norm"], ["rms_norm", "ROW=PROVIDER"]),
        (["plan", "--device", "warp"], ["warp", "cpu"]),
        (["plan", "--weights", "half", "--device", "null"], ["half", "packed"]),
        (["plan", "--dtype", "float99", "--device", "null"], ["float99", "bfloat16"]),
        (["plan", "--max-model-len", "100K", "--device", "null"], ["102400", "8192"]),
        (["plan", "--kernel", "warp=cpu", "--device", "null"], ["warp"]),
        (["plan", "--kernel", "rope=warp", "--device", "null"], ["rope", "warp"]),
        (["plan", "--tensor-parallel-size", "2", "--device", "null"], ["tensor_parallel_size", "2", "3"]),
        (["plan", "--fallback", "maybe", "--device", "null"], ["maybe", "deny"]),
        (["generate", "--device", "null", "-p", "x", "--temperature", "-1"], ["temperature", "-1"]),
        (["generate", "--device", "null", "-p", "x", "--max-tokens", "9999"], ["max_tokens", "9999", "8192"]),
        (["convert", "nowhere/", "/tmp/x"], ["nowhere"]),
    ],
)
def test_errors_are_one_line_and_exit_code_2(args: list[str], words: list[str]) -> None:
    done = run_core(*args) if args[0] == "nothing" else run_here(*args)
    assert done.returncode == 2
    [line] = done.stderr.splitlines()
    assert line.startswith("error: ")
    for word in words:
        assert word in line


def test_devices() -> None:
    found = {d["name"]: d for d in json.loads(run_here("devices", "--json").stdout)}
    assert found["null"]["distribution"] == "core"
    assert found["null"]["implicit"] is False
    assert "bfloat16" in found["cpu"]["dtypes"]
    listed = run_here("devices").stdout
    assert "cpu" in listed
    assert "null" in listed


def test_plan() -> None:
    plan = json.loads(run_here("plan", "--device", "null", "--max-model-len", "1K", "--json").stdout)
    values = {v["name"]: v for v in plan["plan"]}
    assert values["max_model_len"]["value"] == "1024"
    assert values["max_model_len"]["decided_by"] == "asked for"
    assert values["device"]["value"] == "null"
    assert {"attn_paged", "linear", "sample"} <= {k["row"] for k in plan["kernels"]}
    assert "max_model_len" in run_here("plan", "--device", "null").stdout


def test_plan_says_which_weights_stay_packed() -> None:
    args = ("plan", "--device", "null", "--weights", "packed")
    plan = json.loads(run_here(*args, "--json").stdout)
    values = {v["name"]: (v["value"], v["decided_by"]) for v in plan["plan"]}
    assert values["weights"] == ("packed", "asked for")
    [note] = plan["notes"]
    assert note.startswith("121 of 121 weights stay packed, 120 in q4_1 and 1 in q8_0: 92 MiB instead of 256")
    assert "weights stay packed, 120 in q4_1 and 1 in q8_0" in run_here(*args).stdout


def test_kernel_override_is_in_the_plan() -> None:
    args = ("plan", "--device", "null", "--kernel", "rms_norm=reference", "--json")
    kernels = {k["row"]: k for k in json.loads(run_here(*args).stdout)["kernels"]}
    assert kernels["rms_norm"]["provider"] == "reference"
    assert kernels["linear"]["provider"] == "null"


def test_generate() -> None:
    """On the null device each id follows the one before; after the ids of "one two" come those of other words."""
    from server.models import open_model

    tokenizer = open_model("smollm2").tokenizer()
    last = tokenizer.encode("one two")[-1]
    done = run_core("generate", "--device", "null", "--raw", "-p", "one two", "--max-tokens", "12")
    assert done.returncode == 0
    assert done.stdout == tokenizer.decode(range(last + 1, last + 13)) + "\n"


def test_generate_several_outputs_with_logprobs() -> None:
    """min_p 1 leaves nothing but the likeliest token, so that outputs drawn at random are equal."""
    args = ("generate", "--device", "null", "--raw", "-p", "one two", "--max-tokens", "3", "--sampling-seed", "1")
    more = ("--n", "2", "--logprobs", "2", "--temperature", "1", "--min-p", "1", "--min-tokens", "2")
    done = run_here(*args, *more)
    assert done.returncode == 0, done.stderr
    first, second = done.stdout.split("[1]\n")
    assert first == "[0]\n" + second
    assert second.count("-5.80") == 6
    refused = run_here(*args, "--frequency-penalty", "101")
    assert refused.returncode == 2
    assert "frequency_penalty is 101" in refused.stderr


def test_chat() -> None:
    """Two turns and the end; the second prompt holds the first turn."""
    done = subprocess.run(
        [CORE, "chat", "--device", "null", "--max-tokens", "3"], input="Hi\nAgain\n", capture_output=True, text=True,
        timeout=120, check=True,
    )  # fmt: skip
    assert done.stdout.count("> ") == 3


@pytest.mark.heavy
def test_convert_writes_what_core_and_others_read(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    assert run_core("convert", "smollm2", str(folder)).returncode == 0
    assert {"config.json", "tokenizer.json", "model.safetensors"} <= {p.name for p in folder.iterdir()}
    again = run_core("convert", "smollm2", str(folder))
    assert again.returncode == 2
    assert "holds a checkpoint" in again.stderr
    args = ("generate", "--device", "null", "--raw", "-p", "one two", "--max-tokens", "12")
    assert run_core(args[0], str(folder), *args[1:]).stdout == run_core(*args).stdout


@pytest.mark.heavy
def test_bench_measures_what_was_asked() -> None:
    args = ("--device", "null", "--batch-size", "2", "--prefill-len", "64", "--output-len", "8", "--num-iters", "1")
    measured = json.loads(run_core("bench", "latency", *args, "--json").stdout)
    assert [r["case"] for r in measured["results"]] == ["decode, batch 2, context 128", "prefill 64"]
    assert all(r["median"] > 0 and r["runner"] == "core" for r in measured["results"])
    assert "torch 2" in measured["versions"][0]
    args = ("--device", "null", "--num-prompts", "3", "--input-len", "16", "--output-len", "8")
    assert "3 requests, 16 in, 8 out" in run_core("bench", "throughput", *args).stdout


@pytest.mark.heavy
def test_bench_beside_transformers() -> None:
    args = ("--batch-size", "2", "--prefill-len", "64", "--output-len", "4", "--num-iters", "1", "--json")
    done = run_core("bench", "latency", "--peer", "transformers", *args, timeout_s=280)
    assert done.stderr == ""
    measured = json.loads(done.stdout)
    assert [r["runner"] for r in measured["results"]] == ["core", "transformers"] * 2
    assert any(v.startswith("transformers 5") for v in measured["versions"])


def test_a_full_disk_is_one_line() -> None:
    with Path("/dev/full").open("w") as full:
        done = subprocess.run([CORE, "devices", "--json"], stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr.startswith("error: No space left")
    assert len(done.stderr.splitlines()) == 1


def test_a_reader_that_is_gone_ends_the_command_without_a_word() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "w") as pipe:
        done = subprocess.run([CORE, "devices", "--json"], stdout=pipe, stderr=subprocess.PIPE, text=True, check=False)
    assert (done.returncode, done.stderr) == (1, "")


@pytest.mark.parametrize("args", [("convert", "smollm2"), ("train-mtp", "smollm2", "--out")])
def test_a_file_where_a_folder_is_to_be(tmp_path: Path, args: tuple[str, ...]) -> None:
    (tmp_path / "taken").touch()
    done = run_core(*args, str(tmp_path / "taken"))
    assert done.returncode == 2
    assert done.stderr.startswith("error: ")
    assert "taken" in done.stderr
