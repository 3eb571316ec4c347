"""Command-line options in groups, each declared once: the engine's, for all commands that start one. vLLM's names."""

import inspect
import re
from collections.abc import Callable
from functools import wraps
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from core.config import EngineConfig

FACTORS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "K": 2**10, "M": 2**20, "G": 2**30}


def parse_count(text: str | int) -> int:
    """A whole number: 4096, 32K (binary: 32768), 25.6k (decimal: 25600)."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([kmgKMG]?)", str(text).strip())
    if match is None:
        raise typer.BadParameter(f"{text!r} is not a number like 4096, 32K (x 1024) or 25.6k (x 1000)")
    value = float(match[1]) * FACTORS[match[2]]
    if abs(value - round(value)) > 1e-6:
        raise typer.BadParameter(f"{text!r} is not a whole number")
    return round(value)


def parse_kernels(pairs: list[str]) -> dict[str, str]:
    """`["rms_norm=reference"]` -> `{"rms_norm": "reference"}`."""
    kernels = {}
    for pair in pairs:
        row, _, provider = pair.partition("=")
        if not (row and provider):
            raise typer.BadParameter(f"{pair!r} is not ROW=PROVIDER", param_hint="--kernel")
        kernels[row] = provider
    return kernels


def count(text: str) -> Any:
    """An option that takes a number in the forms of `parse_count`."""
    return typer.Option(parser=parse_count, metavar="N", help=text)


def engine_config(
    model: Annotated[str, typer.Argument(help="A folder, a .gguf file, a hub id, or a weights package.")] = "smollm2",
    *,
    device: Annotated[str | None, typer.Option(help="Device plugin. Default: the accelerator found, else cpu.")] = None,
    dtype: Annotated[str, typer.Option(help="auto, float32, bfloat16 or float16.")] = "auto",
    weights: Annotated[str, typer.Option(help="Quantised weights: dequantised, or packed as stored.")] = "dequantised",
    max_model_len: Annotated[int | None, count("Longest prompt with its output, in tokens.")] = None,
    max_num_seqs: Annotated[int, count("Sequences that run at once.")] = 256,
    max_num_batched_tokens: Annotated[int | None, count("Tokens in one step.")] = None,
    block_size: Annotated[int | None, count("Tokens in a KV page.")] = None,
    num_kv_blocks: Annotated[int | None, count("KV pages. Default: what the memory allows.")] = None,
    memory_utilization: Annotated[
        float | None,
        typer.Option("--memory-utilization", "--gpu-memory-utilization", help="Share of the device's memory to use."),
    ] = None,
    swap_space: Annotated[
        float, typer.Option(metavar="GIB", help="Host memory for preempted sequences; 0: they are computed again.")
    ] = 0.0,
    enable_prefix_caching: Annotated[bool, typer.Option(help="Reuse the KV of equal prompt beginnings.")] = True,
    tensor_parallel_size: Annotated[int, typer.Option(help="Ranks that share every layer.")] = 1,
    pipeline_depth: Annotated[int | None, typer.Option(help="Steps prepared ahead of the running one: 0, 1.")] = None,
    enforce_eager: Annotated[
        bool, typer.Option("--enforce-eager", help="Steps run kernel by kernel: none is compiled or replayed.")
    ] = False,
    batch_invariant: Annotated[
        bool, typer.Option("--batch-invariant", help="Same text whatever else is served; slower.")
    ] = False,
    fallback: Annotated[str | None, typer.Option(help="Kernels without native version: deny, report, allow.")] = None,
    kernel: Annotated[list[str], typer.Option(metavar="ROW=PROVIDER", help="Who provides a kernel; repeatable.")] = [],  # noqa: B006
    seed: Annotated[int, typer.Option(help="Seed of the engine's own random choices.")] = 0,
    kv_events: Annotated[
        str | None, typer.Option(metavar="ENDPOINT", help="Publish changes of the prefix cache: tcp://127.0.0.1:5557.")
    ] = None,
    speculative: Annotated[
        str | None,
        typer.Option(
            metavar="DRAFTER",
            help="Guess ids ahead: ngram[:DRAFTS[:MIN-MAX]], mtp:PATH[:DRAFTS] with what core train-mtp wrote, or "
            "model:MODEL[:DRAFTS] with a smaller model of the same vocabulary.",
        ),
    ] = None,
    profile: Annotated[str | None, typer.Option(metavar="PATH", help="Write a trace of steps and kernels.")] = None,
) -> "EngineConfig":
    from core.config import EngineConfig

    return EngineConfig(
        model=model,
        device=device,
        dtype=dtype,
        weights=weights,
        max_model_len=max_model_len,
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=max_num_batched_tokens,
        block_size=block_size,
        num_kv_blocks=num_kv_blocks,
        memory_utilization=memory_utilization,
        swap_space=swap_space,
        enable_prefix_caching=enable_prefix_caching,
        tensor_parallel_size=tensor_parallel_size,
        pipeline_depth=pipeline_depth,
        enforce_eager=enforce_eager,
        batch_invariant=batch_invariant,
        fallback=fallback,
        kernels=parse_kernels(kernel),
        seed=seed,
        kv_events=kv_events,
        speculative=speculative,
        profile=profile,
    )


Command = Callable[..., None]


def with_options(**groups: Callable[..., Any]) -> Callable[[Command], Command]:
    """Makes a command line of `command(config, ...)`: where a parameter has the name of a group, the options of that
    function stand, and the command gets what the function makes of them."""
    options = {name: inspect.signature(group).parameters for name, group in groups.items()}

    def decorate(command: Command) -> Command:
        @wraps(command)
        def run(**given: Any) -> None:
            for name, group in groups.items():
                given[name] = group(**{option: given.pop(option) for option in options[name]})
            command(**given)

        own = inspect.signature(command).parameters
        shown = [each for name, p in own.items() for each in (options[name].values() if name in options else [p])]
        keyword = [p.replace(kind=inspect.Parameter.KEYWORD_ONLY) for p in shown]
        run.__signature__ = inspect.Signature(keyword)  # type: ignore[attr-defined]
        run.__annotations__ = {}
        return run

    return decorate


with_engine = with_options(config=engine_config)
