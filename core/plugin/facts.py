"""What devices say about themselves: plain data, no torch.

Devices state facts here; `core/config.py` alone decides what follows from them.
"""

from dataclasses import dataclass, field

DTYPES = ("float32", "bfloat16", "float16")


@dataclass(frozen=True)
class Unavailable:
    """Why a device cannot be used here: one line for the user."""

    reason: str


@dataclass(frozen=True)
class ShapePolicy:
    """The step shapes a device accepts.

    Empty tuples mean that any size will do. Otherwise sizes are padded up to the next listed one, and
    the largest one bounds the scheduler.

    tokens   tokens in a step
    seqs     sequences in a step; also logit rows
    blocks   width of a block table, in pages
    """

    tokens: tuple[int, ...] = ()
    seqs: tuple[int, ...] = ()
    blocks: tuple[int, ...] = ()

    @property
    def dynamic(self) -> bool:
        return not (self.tokens or self.seqs or self.blocks)


@dataclass(frozen=True)
class Peaks:
    """What a device can reach at best, as its vendor states it; None where nothing is stated.

    Conformance probes the same, and says so where a probe is far from it.

    float32, bfloat16, float16   FLOP/s of products of matrices in that dtype
    bytes_per_s                  of memory, read and written together
    """

    float32: float | None = None
    bfloat16: float | None = None
    float16: float | None = None
    bytes_per_s: float | None = None


@dataclass(frozen=True)
class DeviceFacts:
    """One device as its plugin's `probe` found it.

    name                  what `--device` takes
    torch_device_type     what torch calls it: not its identity (several vendors pretend to be another's)
    arch                  free text for people: chip and instruction sets
    count                 devices of this kind in the machine
    memory_bytes          of one device
    host_memory           its memory is the machine's own RAM
    dtypes                that the device computes in, best first
    accelerator           False for the host processor: it is used when no accelerator is found, and
                          fallbacks to references are not refused on it
    implicit              False: never chosen unless asked for by name (simulators, test devices)
    uses_weights          False: the device computes nothing, so weights are not read
    claims                torch device types that this plugin serves instead of the plugin of that name
    torch_extension       distribution that registers the device with torch; its replacements of torch
                          attributes are listed, not refused
    shapes                step shapes the device accepts
    replayed_tokens       where any shape will do: `Device.compile` is for steps of up to so many tokens that all
                          draw, as those of decoding do, drafts included; 0: for none
    step_tokens           tokens past which a larger step computes each of them no faster: the default of
                          max_num_batched_tokens; 0: not known
    max_depth             largest useful pipeline depth (0: host and device share the processor)
    peaks                 what it can reach at best
    """

    name: str
    torch_device_type: str
    arch: str
    count: int
    memory_bytes: int
    dtypes: tuple[str, ...]
    host_memory: bool = False
    accelerator: bool = True
    implicit: bool = True
    uses_weights: bool = True
    claims: tuple[str, ...] = ()
    torch_extension: str | None = None
    shapes: ShapePolicy = field(default_factory=ShapePolicy)
    replayed_tokens: int = 0
    step_tokens: int = 0
    max_depth: int = 1
    peaks: Peaks = field(default_factory=Peaks)


@dataclass(frozen=True)
class Memory:
    """Bytes of device memory that this process may still take, and in all."""

    free_bytes: int
    total_bytes: int


@dataclass(frozen=True)
class Need:
    """What one use of a kernel in a model asks for; None where it does not apply.

    dtype        of the activations
    head_size    D
    page_tokens  tokens in a KV page
    n, k         rows and columns of a weight
    scheme       form of a weight: "dense", "q4_1" or "q8_0" (`core.kernels.schemes`)
    max_seqs     sequences in a step, at most
    max_tokens   tokens in a step, at most
    batch_invariant   a token's bits may not depend on what else is in the step
    """

    dtype: str | None = None
    head_size: int | None = None
    page_tokens: int | None = None
    n: int | None = None
    k: int | None = None
    scheme: str | None = None
    max_seqs: int | None = None
    max_tokens: int | None = None
    batch_invariant: bool = False


@dataclass(frozen=True)
class Support:
    """What an implementation of a kernel takes; None means anything.

    Conformance tests the extremes of every record, so an over-claim fails. Every kernel must give the same bits for the
    same inputs, whatever else runs: that is not a choice, and cases are repeated to see it.

    graph_safe      may be captured and replayed
    batch_invariant a token's bits depend on that token's sequence alone: not on the rest of the step, nor on how
                    the sequence was cut into steps
    """

    dtypes: frozenset[str] | None = None
    head_sizes: frozenset[int] | None = None
    page_sizes: frozenset[int] | None = None
    schemes: frozenset[str] | None = None
    max_n: int | None = None
    max_k: int | None = None
    max_seqs: int | None = None
    max_tokens: int | None = None
    graph_safe: bool = True
    batch_invariant: bool = False

    def refuses(self, need: Need) -> str | None:
        """Why this implementation does not take `need`, or None when it does."""
        among = (
            ("dtype", need.dtype, self.dtypes),
            ("head_size", need.head_size, self.head_sizes),
            ("page_tokens", need.page_tokens, self.page_sizes),
            ("scheme", need.scheme, self.schemes),
        )
        for what, asked, have in among:
            if asked is not None and have is not None and asked not in have:
                return f"{what} {asked} is not among {', '.join(map(str, sorted(have, key=str)))}"
        at_most = (
            ("n", need.n, self.max_n),
            ("k", need.k, self.max_k),
            ("sequences", need.max_seqs, self.max_seqs),
            ("tokens", need.max_tokens, self.max_tokens),
        )
        for what, asked, limit in at_most:
            if asked is not None and limit is not None and asked > limit:
                return f"{what} {asked} is over {limit}"
        if need.batch_invariant and not self.batch_invariant:
            return "not batch-invariant"
        return None
