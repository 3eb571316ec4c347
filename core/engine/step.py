"""What travels between the scheduler and the runner: plain data, one message each way per step.

The runner keeps a copy of what it needs of each sequence under a row number, and learns of changes from the plan.
"""

import msgspec

from core.errors import DeviceError
from core.request import Logprobs, Request


class StepDropped(DeviceError):
    """A step was given up before its masks came."""


class NewSequence(msgspec.Struct, frozen=True, array_like=True):
    """A sequence that takes over `row`.

    token_ids   every id known so far
    tables      per KV group, the page of each block-table entry (0: no longer needed)
    request     for its sampling parameters; without the prompt, which token_ids has
    num_prompt  how many of token_ids are the prompt
    """

    row: int
    token_ids: list[int]
    tables: list[list[int]]
    request: Request
    num_prompt: int


class Transfer(msgspec.Struct, frozen=True, array_like=True):
    """Pages of one sequence, or some of them, on their way to the host, or back.

    number       transfers are numbered from 1; they start in this order, and are complete in this order
    to_host      else from there
    pages        per KV group, on the device
    host_pages   per KV group, their places on the host
    layers       of the group, from the first one up to the second one; None: all
    """

    number: int
    to_host: bool
    pages: list[list[int]]
    host_pages: list[list[int]]
    layers: tuple[int, int] | None = None


class StepPlan(msgspec.Struct, frozen=True, array_like=True):
    """One ragged batch.

    rows, starts, counts   per item: the sequence's row, the position of its first token, how many tokens
    samples                per item: whether its last token is followed by a draw
    edits                  (row, KV group, position, page): block-table entries that changed; applied after `new`
    scores                 per item: whether log-probabilities of the prompt tokens after each of its tokens are wanted
    drawn                  (row, id): ids drawn before, of rows whose draws depend on them
    masked                 of the draws, in order, the numbers of those that wait for a mask: it comes after the plan,
                           while the step runs (int32 [len(masked), ceil(V / 32)], as bytes; none: the step is dropped)
    embeds                 of the draws, in order, the numbers of those whose hidden states are wanted
    transfers              to start before this step, after all that was launched so far
    transferred            number of the last transfer that is over in the first rank: others wait for it, because this
                           step may use its pages
    waits                  there is nothing to compute: the step ends when the oldest transfer does
    drafts                 per item, ids guessed to follow its last token: they are computed with it, `counts` has them,
                           and there is a draw after each of them, too; empty: no item has any
    foretells              draft layers follow: they compute all tokens, and foretell ids after each draw

    An id at a position that the runner was not given, and no draft, is the last one drawn for that row: after drafts
    that were right, if it came with any.
    """

    new: list[NewSequence]
    rows: list[int]
    starts: list[int]
    counts: list[int]
    samples: list[bool]
    edits: list[tuple[int, int, int, int]]
    scores: list[bool]
    drawn: list[tuple[int, int]]
    masked: list[int] = msgspec.field(default_factory=list)
    embeds: list[int] = msgspec.field(default_factory=list)
    transfers: list[Transfer] = msgspec.field(default_factory=list)
    transferred: int = 0
    waits: bool = False
    drafts: list[list[int]] = msgspec.field(default_factory=list)
    foretells: bool = False

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to run, and no new sequence to tell of."""
        return not (self.rows or self.new or self.transfers or self.waits)

    @property
    def num_tokens(self) -> int:
        return sum(self.counts)

    @property
    def num_drafts(self) -> list[int]:
        """Of each item."""
        return list(map(len, self.drafts)) or [0] * len(self.rows)

    @property
    def num_draws(self) -> int:
        return sum(self.samples) + sum(self.num_drafts)


class StepOutput(msgspec.Struct, frozen=True, array_like=True):
    """What a step drew.

    ids              per draw of the plan, in order; -1 where the logits were not numbers
    accepted         per item that draws, how many of its drafts are what was drawn in their places, from the left;
                     empty where there were none
    logprobs         per draw; None where the request asked for none; empty when none did
    prompt_logprobs  per scoring item: of the prompt tokens that follow its tokens
    foretold         per draw: ids that draft layers foretell to follow it; empty where they did not
    hidden           per entry of the plan's `embeds`: the hidden state after the last norm, float32, little-endian
    transferred      number of the last transfer that is complete, and with it all before; 0: none
    late             whether a transfer started with the step or before was still under way when it had computed; None:
                     there was none, or nothing to compute
    foretelling_s    what draft layers added to the time of the step
    compiled         something was compiled for its shape meanwhile: its time tells nothing of others
    """

    ids: list[int]
    logprobs: list[Logprobs | None] = msgspec.field(default_factory=list)
    prompt_logprobs: list[list[Logprobs]] = msgspec.field(default_factory=list)
    hidden: list[bytes] = msgspec.field(default_factory=list)
    transferred: int = 0
    late: bool | None = None
    foretold: list[list[int]] = msgspec.field(default_factory=list)
    foretelling_s: float = 0.0
    accepted: list[int] = msgspec.field(default_factory=list)
    compiled: bool = False
