"""A message in the making, and the events that tell of it. Streamed and whole ones are made alike."""

import json
from typing import Any

from core.request import new_request_id
from server.generation import Counts
from server.named_events import Event
from server.reader import CallPart, Read


class MessageWriter:
    """Makes `message`, in the JSON of clients. Each method returns the events that tell what it changed.

    A call that is cut off is streamed as far as it comes; the whole message leaves it out, for it is no JSON.
    """

    def __init__(self, model: str, counts: Counts) -> None:
        self._counts = counts
        self._arguments = ""  # of the call that goes on
        self.message: dict[str, Any] = {
            "id": new_request_id("msg"),
            "type": "message",
            "role": "assistant",
            "model": model,
            "content": [],
            "stop_reason": None,
            "stop_sequence": None,
            "usage": self._usage(),
        }
        self._num_blocks = 0
        self._block: dict[str, Any] | None = None  # the one that goes on

    def begin(self) -> list[Event]:
        self.message["usage"] = self._usage()
        return [{"type": "message_start", "message": {**self.message, "content": []}}]

    def take(self, read: Read) -> list[Event]:
        """What one engine output adds."""
        events: list[Event] = []
        if read.reasoning:
            events += self._open_if_new({"type": "thinking", "thinking": "", "signature": ""})
            events.append(self._grow("thinking", read.reasoning))
        if read.content:
            events += self._open_if_new({"type": "text", "text": ""})
            events.append(self._grow("text", read.content))
        for call in read.calls:
            events += self._called(call)
        if read.finish_reason is not None:
            events += self._close()
            self._stop(read)
        return events

    def end(self) -> list[Event]:
        """After the last output."""
        self.message["usage"] = self._usage()
        delta = {name: self.message[name] for name in ("stop_reason", "stop_sequence")}
        return [
            {"type": "message_delta", "delta": delta, "usage": self.message["usage"]},
            {"type": "message_stop"},
        ]

    def _stop(self, read: Read) -> None:
        by_string = read.finish_reason == "stop" and isinstance(read.stop_reason, str)
        names = {"stop": "end_turn", "length": "max_tokens", "tool_calls": "tool_use"}
        self.message["stop_reason"] = "stop_sequence" if by_string else names[read.finish_reason or "stop"]
        self.message["stop_sequence"] = read.stop_reason if by_string else None

    def _usage(self) -> dict[str, Any]:
        counts = self._counts
        return {
            "input_tokens": counts.prompt - counts.cached,
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": counts.cached,
            "output_tokens": counts.completion,
        }

    def _open(self, block: dict[str, Any]) -> list[Event]:
        events = self._close()
        self._block = block
        self._num_blocks += 1
        self.message["content"].append(block)
        return [*events, {"type": "content_block_start", "index": self._num_blocks - 1, "content_block": {**block}}]

    def _open_if_new(self, block: dict[str, Any]) -> list[Event]:
        return [] if self._block is not None and self._block["type"] == block["type"] else self._open(block)

    def _close(self) -> list[Event]:
        """Ends the block that goes on, if one does."""
        block, self._block = self._block, None
        if block is None:
            return []
        if block["type"] == "tool_use":
            try:
                block["input"] = json.loads(self._arguments)
            except ValueError:
                self.message["content"].remove(block)
        return [{"type": "content_block_stop", "index": self._num_blocks - 1}]

    def _grow(self, kind: str, text: str) -> Event:
        assert self._block is not None
        self._block[kind] += text
        return self._delta(f"{kind}_delta", **{kind: text})

    def _delta(self, kind: str, **more: str) -> Event:
        return {"type": "content_block_delta", "index": self._num_blocks - 1, "delta": {"type": kind, **more}}

    def _called(self, call: CallPart) -> list[Event]:
        events: list[Event] = []
        if call.name:
            events += self._open({"type": "tool_use", "id": call.call_id, "name": call.name, "input": {}})
            self._arguments = ""
        if call.arguments:
            self._arguments += call.arguments
            events.append(self._delta("input_json_delta", partial_json=call.arguments))
        return events
