"""A response in the making: its items, and the events that tell of them. Streamed and whole ones are made alike."""

import time
from typing import Any

from core.request import new_request_id
from server.generation import Counts
from server.named_events import Event
from server.reader import CallPart, Read
from server.response_api.asked import ResponseBody

_DONE = "completed"


class ResponseWriter:
    """Makes `response`, in the JSON of clients. Each method returns the events that tell what it changed."""

    def __init__(self, body: ResponseBody, response_id: str) -> None:
        self.response: dict[str, Any] = _blank(body, response_id)
        self._num_events = 0
        self._item: dict[str, Any] | None = None  # the one that goes on

    def begin(self) -> list[Event]:
        self.response["status"] = "in_progress"
        return [self._told("created"), self._told("in_progress")]

    def take(self, read: Read) -> list[Event]:
        """What one engine output adds."""
        events: list[Event] = []
        if read.reasoning:
            events += self._said("reasoning", "reasoning_text", read.reasoning)
        if read.content:
            events += self._said("message", "output_text", read.content)
        for call in read.calls:
            events += self._called(call)
        if read.finish_reason is not None:
            is_whole = read.finish_reason != "length"
            events += self._close("completed" if is_whole else "incomplete")
            self.response["status"] = "completed" if is_whole else "incomplete"
            self.response["incomplete_details"] = None if is_whole else {"reason": "max_output_tokens"}
        return events

    def end(self, counts: Counts) -> list[Event]:
        """After the last output."""
        self.response["usage"] = {
            "input_tokens": counts.prompt,
            "input_tokens_details": {"cached_tokens": counts.cached},
            "output_tokens": counts.completion,
            "output_tokens_details": {"reasoning_tokens": counts.reasoning},
            "total_tokens": counts.prompt + counts.completion,
        }
        return [self._told(self.response["status"])]

    def fail(self, message: str) -> list[Event]:
        """Something went wrong: `message` says what."""
        self.response["status"] = "failed"
        self.response["error"] = {"code": "server_error", "message": message}
        return [self._told("failed")]

    def cancel(self) -> None:
        self.response["status"] = "cancelled"

    def _event(self, kind: str, **fields: Any) -> Event:
        self._num_events += 1
        return {"type": f"response.{kind}", "sequence_number": self._num_events - 1, **fields}

    def _told(self, kind: str) -> Event:
        return self._event(kind, response={**self.response, "output": [*self.response["output"]]})

    @property
    def _place(self) -> dict[str, Any]:
        assert self._item is not None
        return {"item_id": self._item["id"], "output_index": len(self.response["output"]) - 1}

    def _open(self, item: dict[str, Any]) -> list[Event]:
        events = self._close(_DONE)
        self._item = item
        self.response["output"].append(item)
        shown = {**item, **({"content": []} if "content" in item else {})}
        return [*events, self._event("output_item.added", output_index=self._place["output_index"], item=shown)]

    def _close(self, status: str) -> list[Event]:
        """Ends the item that goes on, if one does."""
        item = self._item
        if item is None:
            return []
        item["status"] = status
        events = []
        if item["type"] == "function_call":
            done = {"name": item["name"], "arguments": item["arguments"]}
            events.append(self._event("function_call_arguments.done", **self._place, **done))
        else:
            part = item["content"][0]
            kind, where = part["type"], {**self._place, "content_index": 0}
            more: dict[str, Any] = {"logprobs": []} if kind == "output_text" else {}
            events.append(self._event(f"{kind}.done", **where, text=part["text"], **more))
            events.append(self._event("content_part.done", **where, part={**part}))
        events.append(self._event("output_item.done", output_index=self._place["output_index"], item={**item}))
        self._item = None
        return events

    def _said(self, kind: str, part_kind: str, text: str) -> list[Event]:
        events: list[Event] = []
        if self._item is None or self._item["type"] != kind:
            part: dict[str, Any] = {"type": part_kind, "text": ""}
            item: dict[str, Any] = {"type": kind, "status": "in_progress", "content": [part]}
            if kind == "message":
                part |= {"annotations": [], "logprobs": []}
                item |= {"id": new_request_id("msg"), "role": "assistant"}
            else:
                item |= {"id": new_request_id("rs"), "summary": []}
            events += self._open(item)
            events.append(self._event("content_part.added", **self._place, content_index=0, part={**part}))
        assert self._item is not None
        self._item["content"][0]["text"] += text
        more: dict[str, Any] = {"logprobs": []} if part_kind == "output_text" else {}
        return [*events, self._event(f"{part_kind}.delta", **self._place, content_index=0, delta=text, **more)]

    def _called(self, call: CallPart) -> list[Event]:
        events: list[Event] = []
        if call.name:
            item = {"type": "function_call", "id": new_request_id("fc"), "call_id": call.call_id}
            events += self._open({**item, "name": call.name, "arguments": "", "status": "in_progress"})
        if call.arguments:
            assert self._item is not None
            self._item["arguments"] += call.arguments
            events.append(self._event("function_call_arguments.delta", **self._place, delta=call.arguments))
        return events


def _blank(body: ResponseBody, response_id: str) -> dict[str, Any]:
    """What a response repeats of its request, with nothing generated."""
    shown = body.model_dump(mode="json", by_alias=True)
    repeated = ("model", "instructions", "max_output_tokens", "temperature", "top_p", "previous_response_id", "user")
    return {
        "id": response_id,
        "object": "response",
        "created_at": int(time.time()),
        "status": "queued",
        "error": None,
        "incomplete_details": None,
        "output": [],
        "usage": None,
        "background": bool(body.background),
        "store": body.store is not False,
        "parallel_tool_calls": body.parallel_tool_calls is not False,
        "tool_choice": shown["tool_choice"] or ("auto" if body.tools else "none"),
        "tools": shown["tools"] or [],
        "text": {"format": (shown["text"] or {}).get("format") or {"type": "text"}},
        "reasoning": shown["reasoning"] or {"effort": None},
        "metadata": shown["metadata"] or {},
        "truncation": "disabled",
        **{name: shown[name] for name in repeated},
    }
