"""`core bench peers`: the lines spoken with a peer in a process of its own, what becomes of peers that misbehave, the
same weights for all, bounds, and what is shown. Real peers are set up by hand: server/peers/README.md."""

import ast
import json
import os
import re
import runpy
import time
import venv
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path

import gguf
import numpy as np
import psutil
import pytest
import torch
from processes import run_core, run_here
from scripted_peer import FIRST_S, STEP_S, interpreter

from core.errors import ConfigError
from core.kv.groups import KVGroup
from server.compare import Comparison
from server.measure import Case, Result, measure
from server.models import open_model
from server.peers.idle import turns
from server.peers.kinds import KINDS, Peer, parse_peers
from server.peers.limits import Sizes, bound, measure_limits, sizes
from server.peers.process import SCRIPTS, PeerProcess
from server.peers.report import Report, cells
from server.peers.weights import write_gguf

LATE = 0.5  # a busy machine wakes sleepers late, and never early
Open = Callable[..., PeerProcess]
Children = Callable[[], set[psutil.Process]]


@pytest.fixture
def opened(tmp_path: Path) -> Open:
    def open_peer(conduct: str, time_limit_s: float = 60.0) -> PeerProcess:
        peer = Peer("transformers", interpreter(tmp_path, conduct))
        asked = {"model": "m", "scratch": str(tmp_path), "threads": 2, "dtype": "bfloat16"}
        return PeerProcess(peer, asked, tmp_path / f"{conduct}.log", time_limit_s)

    return open_peer


def all_children() -> set[psutil.Process]:
    return set(psutil.Process().children(recursive=True))


@pytest.fixture
def children() -> Children:
    """Those that the test started: servers of other tests may be up."""
    before = all_children()
    return lambda: all_children() - before


def test_times_are_what_the_peer_took(opened: Open, children: Children) -> None:
    """Prefill ends with the first tokens; decoding counts the tokens after them, of all sequences."""
    with opened("right") as peer:
        assert peer.versions == "scripted 1.5, threads 2, model m"
        timing = peer.generate([[1, 2], [3, 4], [5, 6]], 5)
        assert timing.num_decoded == 12
        assert FIRST_S <= timing.first_s < FIRST_S + LATE
        assert 4 * STEP_S <= timing.total_s - timing.first_s < 4 * STEP_S + LATE
        wanted = [Case("decode", 2, 4, 3), Case("prefill", 1, 8, 1)]
        [[decode], [prefill]] = measure([peer], wanted, 1, 100, lambda done, total: None)
    assert 4 / (2 * STEP_S + LATE) < decode.median <= 4 / (2 * STEP_S)
    assert 8 / (FIRST_S + LATE) < prefill.median <= 8 / FIRST_S
    assert not children()


def test_what_a_peer_prints_is_no_answer(opened: Open, tmp_path: Path) -> None:
    with opened("chatty") as peer:
        assert peer.generate([[1]], 2).num_decoded == 1
    assert "no JSON" in (tmp_path / "chatty.log").read_text()


def test_a_peer_that_is_not_installed(opened: Open, children: Children) -> None:
    with pytest.raises(ConfigError, match=r"transformers ended with code 1: .*README.*No module named 'engine_of_oth"):
        opened("missing")
    assert not children()


def test_what_is_no_interpreter(tmp_path: Path, children: Children) -> None:
    """Nothing that can be started, and a program that says something else."""
    for content, words in (
        ("\0" * 64, "cannot be started"),
        ("#!/bin/sh\nread x\necho hello\n", "b'hello', which is no"),
    ):
        python = tmp_path / "python"
        python.write_text(content)
        python.chmod(0o755)
        with pytest.raises(ConfigError, match=rf"openvino.* {words}"):
            PeerProcess(Peer("openvino", python), {"threads": 1}, tmp_path / "log", 20)
    assert not children()


def test_a_peer_that_dies(opened: Open, children: Children) -> None:
    with (
        opened("dies") as peer,
        pytest.raises(ConfigError, match=r"ended with code 1.* the engine of others fell over"),
    ):
        peer.generate([[1]], 2)
    assert not children()


def test_a_peer_that_draws_less(opened: Open) -> None:
    with opened("few") as peer, pytest.raises(ConfigError, match=r"drew \[3, 3\] tokens where 4 were asked"):
        peer.generate([[1], [2]], 4)


def test_a_peer_that_hangs(opened: Open, children: Children) -> None:
    """It ends, with its children."""
    peer = opened("hangs", 2)
    start_s = time.monotonic()
    with pytest.raises(ConfigError, match=r"gave no answer within 2 s: raise --time-limit"), peer:
        peer.generate([[1]], 2)
    assert 2 <= time.monotonic() - start_s < 2 + 10 * LATE
    assert not children()


def test_a_peer_that_does_not_even_read(opened: Open, children: Children) -> None:
    """The request is longer than what a pipe holds."""
    peer = opened("right", 2)
    [process] = children()
    process.suspend()
    with pytest.raises(ConfigError, match=r"gave no answer within 2 s"), peer:
        peer.generate([[1] * 200_000], 2)
    assert not children()


def test_who_is_not_idle_is_found(opened: Open) -> None:
    """Threads that spin while others are measured; not what a peer computes in its own turn."""
    with opened("right") as quiet, opened("spins") as busy:
        first, second = turns([quiet, busy])
        assert first.idle_share == 0
        for turn in (first, second):
            turn.generate([[1]], 8)
    assert second.idle_share > 0.1
    assert first.idle_share < 0.02


@pytest.mark.parametrize(
    ("pairs", "words"),
    [
        (["transformers"], ["transformers", "NAME=PYTHON"]),
        (["warp=/bin/sh"], ["warp", "llama.cpp", "openvino"]),
        (["openvino=/nowhere/python"], ["openvino", "/nowhere/python", "README"]),
        (["openvino=/etc"], ["/etc", "README"]),
        (["openvino=/bin/sh", "openvino=/bin/sh"], ["openvino", "2 times"]),
    ],
)
def test_wrong_peers(pairs: list[str], words: list[str]) -> None:
    with pytest.raises(ConfigError) as raised:
        parse_peers(pairs)
    for word in words:
        assert word in str(raised.value)


def test_every_kind_has_its_script() -> None:
    assert {f"{kind.script}_peer.py" for kind in KINDS.values()} == {p.name for p in SCRIPTS.glob("*_peer.py")}


def test_every_kind_is_explained() -> None:
    """How each is set up stands in the table, and all that is installed for it is pinned."""
    guide = (SCRIPTS.parent / "README.md").read_text()
    for name in KINDS:
        assert any(f"`{name}`" in line for line in guide.splitlines() if line.startswith("| `")), name
    files = list((SCRIPTS.parent / "requirements").glob("*.txt"))
    assert {file.stem for file in files} == {"llama.cpp", "openvino", "vllm"}
    for file in files:
        assert f"--no-deps -r server/peers/requirements/{file.name}`" in guide
        for line in file.read_text().splitlines():
            assert re.fullmatch(r"#.*|[\w.-]+==[\w.+]+( ; sys_platform [!=]= \"linux\")?", line), line


def test_vllm_without_its_openmp(tmp_path: Path) -> None:
    """Its environment is checked before anything is loaded."""
    venv.create(tmp_path / "env", symlinks=True)
    peer = Peer("vllm", tmp_path / "env" / "bin" / "python")
    asked = {"model": "m", "scratch": str(tmp_path), "threads": 2, "dtype": "bfloat16"}
    with pytest.raises(ConfigError, match=r"vllm ended with code 1: .*README.*libiomp5.so is not there: intel-openmp"):
        PeerProcess(peer, asked, tmp_path / "log", 60)


def test_vllm_has_the_threads_that_are_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    """As many, and those of the OpenMP that binds them."""
    check = runpy.run_path(str(SCRIPTS / "vllm_peer.py"))["check_threads"]
    for found, cores, words in ((1, {0}, "1 threads where 2"), (2, {0, 1}, "not bound"), (2, {1}, "")):
        monkeypatch.setattr(os, "sched_getaffinity", lambda _, cores=cores: cores)
        with pytest.raises(SystemExit, match=words) if words else nullcontext():
            check(found, 2)


def test_scripts_import_nothing_of_ours() -> None:
    """They run where core is not installed."""
    ours = {"conformance", "core", "devices", "models", "server", "tests"}
    for script in SCRIPTS.glob("*.py"):
        nodes = list(ast.walk(ast.parse(script.read_text())))
        names = {item.name for node in nodes if isinstance(node, ast.Import) for item in node.names}
        names |= {node.module or "" for node in nodes if isinstance(node, ast.ImportFrom)}
        assert names
        assert not ours & {name.partition(".")[0] for name in names}


def write_q4_1(stored: Path) -> None:
    """A GGUF file with a matrix in Q4_1, a norm, and some metadata."""
    values = {"blk.0.ffn_up.weight": np.random.default_rng(0).normal(size=(4, 64)).astype(np.float32)}
    values["output_norm.weight"] = values["blk.0.ffn_up.weight"][0].copy()
    writer = gguf.GGUFWriter(stored, "llama")
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_Q4_1)
    writer.add_context_length(77)
    writer.add_token_list(["a", "ä", "<end>"])
    q4_1 = gguf.GGMLQuantizationType.Q4_1
    writer.add_tensor("blk.0.ffn_up.weight", gguf.quantize(values["blk.0.ffn_up.weight"], q4_1), raw_dtype=q4_1)
    writer.add_tensor("output_norm.weight", values["output_norm.weight"])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def test_gguf_has_the_same_values(tmp_path: Path) -> None:
    """Matrices as they are rounded anywhere else, what else there is rounded, too, and all of the metadata."""
    stored, out = tmp_path / "stored.gguf", tmp_path / "out.gguf"
    write_q4_1(stored)
    write_gguf(stored, out, "bfloat16")
    before, after = gguf.GGUFReader(stored), gguf.GGUFReader(out)
    assert after.fields["llama.context_length"].contents() == 77
    assert after.fields["tokenizer.ggml.tokens"].contents() == ["a", "ä", "<end>"]
    assert after.fields["general.file_type"].contents() == gguf.LlamaFileType.MOSTLY_BF16
    for old, new in zip(before.tensors, after.tensors, strict=True):
        expected = torch.tensor(gguf.dequantize(old.data, old.tensor_type)).bfloat16().float()
        assert np.array_equal(gguf.dequantize(new.data, new.tensor_type), expected.numpy())
    assert [t.tensor_type.name for t in after.tensors] == ["BF16", "F32"]


def test_gguf_packed_anew(tmp_path: Path) -> None:
    """Matrices in the type that is asked, and the rest as it was."""
    stored, out = tmp_path / "stored.gguf", tmp_path / "out.gguf"
    write_q4_1(stored)
    write_gguf(stored, out, "Q8_0")
    before, after = gguf.GGUFReader(stored), gguf.GGUFReader(out)
    assert after.fields["general.file_type"].contents() == gguf.LlamaFileType.MOSTLY_Q8_0
    assert [t.tensor_type.name for t in after.tensors] == ["Q8_0", "F32"]
    [matrix, norm], [wanted, same] = after.tensors, before.tensors
    values = gguf.dequantize(wanted.data, wanted.tensor_type)
    assert np.abs(gguf.dequantize(matrix.data, matrix.tensor_type) - values).max() < np.abs(values).max() / 127
    assert np.array_equal(norm.data, same.data)


def test_bounds() -> None:
    """By hand: a step reads 8 GB at 2 GB/s; 3 multiplications and additions for each token at 12e9 operations."""
    limits = {"read": [1.0, 2.0, 9.0], "bfloat16": [24.0, 12.0, 6.0]}
    model = Sizes(inner=2_000_000_000, head=1_000_000_000, step_bytes=8_000_000_000)
    assert bound(Case("decode", 1, 128, 64), limits, model, "bfloat16") == 0.25
    assert bound(Case("decode", 100, 128, 64), limits, model, "bfloat16") == 2
    assert bound(Case("prefill", 1, 512, 1), limits, model, "bfloat16") == 3


def test_bounds_count_what_is_cached() -> None:
    """By hand: beside 8 GB of weights, 1 MB for each of 1000 tokens of 8 sequences, of which a window keeps 100."""
    limits = {"read": [1.0], "bfloat16": [1e6]}
    groups = (KVGroup(num_layers=5, num_kv_heads=50, head_size=1000), KVGroup(5, 50, 1000, retain=100))
    model = Sizes(1, 1, 8_000_000_000, groups)
    assert model.kv_bytes(1000) == 1_000_000_000 + 100_000_000
    assert bound(Case("decode", 8, 1000, 64), limits, model, "bfloat16") == 8 / (8 + 8 * 1.1)


def test_sizes_are_those_of_the_checkpoint(tiny_llama_dir: Path) -> None:
    """Embeddings are looked up, not multiplied with; norms are no matrices."""
    layer = 2 * 64 * 64 + 2 * 64 * 32 + 3 * 64 * 128
    source = open_model(str(tiny_llama_dir))
    groups = (KVGroup(3, 2, 16),)
    assert sizes(source, 2, groups, 4) == Sizes(3 * layer, 384 * 64, 2 * (3 * layer + 384 * 64), groups, 4)
    assert sizes(source, None, groups, 4).step_bytes == source.size_bytes


def test_limits_are_rates() -> None:
    """Of this machine, so only roughly known: no processor does a thousandth of these, or a thousand times as much."""
    limits = measure_limits("bfloat16")
    assert list(limits) == ["read", "bfloat16", "int8"]
    for name, rates in limits.items():
        assert len(rates) == 3
        assert 0.2 < min(rates) <= max(rates) < 1e5, name


def test_core_stands_beside_the_best_peer() -> None:
    case = Case("decode", 8, 128, 64)
    rates = (("core", [30.0, 10.0, 20.0]), ("slow", [5.0, 5.0, 5.0]), ("fast", [40.0, 40.0, 1.0]))
    columns, [row] = cells([[Result(case, name, each) for name, each in rates]], [80.0])
    assert columns == ["case", "core", "slow", "fast", "core / best peer", "bound", "core / bound"]
    assert row[1:] == ["20.0 (10.0 to 30.0)", "5.0 (5.0 to 5.0)", "40.0 (1.0 to 40.0)", "0.50", "80", "0.25"]


def test_bounds_that_are_passed_are_too_low() -> None:
    for most, said in ((9.0, True), (11.0, False)):
        results = [[Result(Case("decode", 8, 128, 64), "core", [10.0])]]
        report = Report("m", "bfloat16", 2, {}, {"read": [1.0]}, [most], Comparison(results, [], "x"))
        assert any("bounds are too low" in line for line in report.notes()) == said


@pytest.mark.heavy
def test_the_command(tiny_llama_dir: Path, tmp_path: Path) -> None:
    """Two peers beside core, on one folder of weights; results for programs and in a folder."""
    out = tmp_path / "out"
    args = ["--batch-size", "2", "--input-len", "8", "--output-len", "4", "--prefill-len", "16", "--threads", "1"]
    args += [f"--peer={name}={interpreter(tmp_path, 'right')}" for name in ("transformers", "openvino")]
    done = run_core("bench", "peers", str(tiny_llama_dir), "--device", "cpu", *args, "--out", str(out), "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found == json.loads((out / "speed.json").read_text())
    names = ["core", "transformers", "openvino"]
    assert [runner["name"] for runner in found["runners"]] == names
    assert [(r["case"], r["runner"]) for r in found["results"]] == [
        (case, name) for case in ("decode, batch 2, context 8", "prefill 16") for name in names
    ]
    assert all(len(r["tokens_per_s"]) == 3 and r["median"] > 0 for r in found["results"])
    assert (found["weights"], found["threads"]) == ("bfloat16", 1)
    assert [len(rates) for rates in found["limits_1e9_per_s"].values()] == [6, 6, 6]
    versions = [runner["versions"] for runner in found["runners"]]
    assert "torch 2" in versions[0]
    assert "threads 1" in versions[1]
    read = {each.partition("model ")[2] for each in versions[1:]}
    assert len(read) == 1  # the same weights
    lines = (out / "speed.md").read_text().splitlines()
    assert lines[2].startswith("| case | core | transformers | openvino | core / best peer | bound |")
    assert any(line.startswith("- openvino: scripted 1.5") for line in lines)
    for words in ("prefill 16", "transformers", "tokens per second"):
        assert words in (out / "speed.svg").read_text()
    assert {path.name for path in out.glob("*.log")} == {"transformers.log", "openvino.log"}


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["--peer", "llama.cpp=/bin/sh"], ["llama.cpp", ".gguf"]),
        (["--peer", "transformers=/bin/sh", "--weights", "packed"], ["transformers", "packed"]),
        (["--peer", "transformers=/bin/sh", "--packed-type", "Q8_0"], ["--packed-type Q8_0", "--weights packed"]),
        (["--peer", "llama.cpp=/bin/sh", "--packed-type", "Q8_0", "--weights", "packed"], ["--packed-type", ".gguf"]),
        (["--peer", "transformers=/bin/sh", "--out", "."], ["--out", "empty"]),
        (["--peer", "transformers=/bin/sh", "--num-iters", "2"], ["num-iters", "3"]),
        ([], ["--peer"]),
    ],
)
def test_refused(args: list[str], words: list[str], tiny_llama_dir: Path) -> None:
    done = run_here("bench", "peers", str(tiny_llama_dir), "--device", "cpu", *args)
    assert done.returncode == 2
    [line] = done.stderr.splitlines()
    for word in words:
        assert word in line
