"""What the vendor's ops take, as far as it is known: core has it as `Support`, the stand-in refuses more.

Sources are named in README.md. None of it is verified on hardware.
"""

DTYPES = ("bfloat16", "float16", "float32")

MAX_SEQS = 1024
"""Sequences in a call of attention: a batch near it gave wrong answers."""

MAX_N = 1 << 17
"""Columns of a product: at 248,320 of them results in float16 were wrong. Wider weights are multiplied in pieces."""

WIDEST_N = 1 << 18
"""What pieces are made of, at most."""

HEAD_SIZES = frozenset({32, 64, 80, 96, 112, 120, 128, 192, 256, 512})

PAGE_SIZES = frozenset({16, 32, 64, 128})

MAX_CONTEXT = 131072
"""Tokens of a sequence."""

COPY_ALIGN_BYTES = 4
"""Where copies between host and device begin that do not block."""
