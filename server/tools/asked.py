"""The tools that a client offers, which of them the model may or must call, and calls of earlier turns."""

from typing import Annotated, Any, ClassVar, Literal

import msgspec
from pydantic import Field, field_validator

from core.errors import RequestError
from server.neutral import Neutral, shown
from server.strict import Strict
from server.tools.narrow import narrowed

MAX_TOOLS = 128

_NAME = "^[A-Za-z0-9_.:/-]{1,128}$"
Name = Annotated[str, Field(pattern=_NAME)]
NAME = {"type": "string", "pattern": _NAME}
"""How a name is described where other code checks it."""

Choice = Literal["none", "auto", "required"]


class Function(Strict):
    """What can be called. `parameters` is the JSON schema of its arguments, an object; without it there are none.

    strict   arguments must be of the schema: they always are
    """

    name: Name
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None

    @field_validator("parameters")
    @classmethod
    def _of_an_object(cls, value: dict[str, Any] | None) -> dict[str, Any] | None:
        kinds = (value or {}).get("type", "object")
        if "object" not in (kinds if isinstance(kinds, list) else [kinds]):
            raise ValueError(f'has the type {shown(kinds)}: arguments are an object, so it must be "object"')
        return value

    @property
    def arguments_schema(self) -> dict[str, Any]:
        """The schema that calls are held to."""
        return narrowed({**(self.parameters or {"properties": {}}), "type": "object"})


class Tool(Strict):
    type: Literal["function"]
    function: Function


class _Chosen(Strict):
    name: Name


class NamedChoice(Strict):
    type: Literal["function"]
    function: _Chosen


class CalledFunction(Strict):
    """`arguments` is the text of a JSON object, or nothing. OpenAI's client sends what it made of that along."""

    name: Name
    arguments: Annotated[str, Field(json_schema_extra={"format": "json-object"})]
    parsed_arguments: Annotated[Any, Field(exclude=True)] = None

    @field_validator("arguments")
    @classmethod
    def _an_object(cls, value: str) -> str:
        try:
            is_object = isinstance(msgspec.json.decode(value or "{}"), dict)
        except (msgspec.DecodeError, RecursionError):
            is_object = False
        if not is_object:
            raise ValueError("must be the text of a JSON object: leave out calls that were cut off")
        return value or "{}"


class Call(Strict):
    """A call that an earlier turn made."""

    neutral: ClassVar[Neutral] = {"index": (*range(MAX_TOOLS),)}
    neutral_prefix = "messages.tool_calls."

    id: str
    type: Literal["function"] = "function"
    function: CalledFunction


class ToolFields(Strict):
    """Fields of a chat that offer tools.

    tool_choice           auto where there are tools and nothing is said
    parallel_tool_calls   false: at most one call in an answer
    """

    tools: Annotated[list[Tool] | None, Field(max_length=MAX_TOOLS)] = None
    tool_choice: Choice | NamedChoice | None = None
    parallel_tool_calls: bool | None = None

    @field_validator("tools")
    @classmethod
    def _different(cls, tools: list[Tool] | None) -> list[Tool] | None:
        names = [tool.function.name for tool in tools or []]
        twice = next((name for name in names if names.count(name) > 1), None)
        if twice:
            raise ValueError(f"two functions are called {twice!r}: give each its own name")
        return tools

    @property
    def choice(self) -> Choice:
        """What to do with `offered`. Raises: RequestError for a choice among tools that are not there."""
        names = [tool.function.name for tool in self.tools or []]
        if isinstance(self.tool_choice, NamedChoice):
            name = self.tool_choice.function.name
            if name not in names:
                raise RequestError(
                    f"tool_choice names {name!r}, which is not in tools: {', '.join(names)}", "tool_choice"
                )
            return "required"
        choice = self.tool_choice or ("auto" if names else "none")
        if choice != "none" and not names:
            raise RequestError(f"tool_choice is {choice!r} and there are no tools: give some", "tool_choice")
        return choice

    @property
    def callable(self) -> list[Function]:
        """The functions that may be called."""
        functions = [tool.function for tool in self.tools or []]
        if isinstance(self.tool_choice, NamedChoice):
            return [each for each in functions if each.name == self.tool_choice.function.name]
        return functions
