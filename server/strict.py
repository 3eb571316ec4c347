"""How bodies are checked: unknown fields are refused by name, and every error says which field is at fault."""

import re
from itertools import chain
from typing import Annotated, Any, ClassVar, TypeVar

import msgspec
from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    GetJsonSchemaHandler,
    ValidationError,
    WithJsonSchema,
    model_validator,
)
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema

from core.errors import RequestError
from server.neutral import Neutral, shown, without_neutral

MAX_DEPTH = 128
"""Levels of a body: what works on schemas recurses, and grammars take no deeper ones."""


def whole(value: Any) -> Any:
    """In JSON 4.0 is an integer too. Beyond 64 bits no field takes one."""
    return int(value) if isinstance(value, float) and value.is_integer() and abs(value) < 2**63 else value


Int = Annotated[int, BeforeValidator(whole)]

TEXT: JsonSchemaValue = {"type": "string"}


def of_kinds(**kinds: dict[str, JsonSchemaValue]) -> WithJsonSchema:
    """How objects are described that other code checks: type -> the other fields that must be there."""
    described = [
        {"type": "object", "properties": {"type": {"const": kind}, **fields}, "required": ["type", *fields]}
        for kind, fields in kinds.items()
    ]
    return WithJsonSchema({"anyOf": described})


class Strict(BaseModel):
    """A JSON object with known fields alone.

    neutral          see `server.neutral`: fields without effect, and the values that ask for none
    neutral_prefix   where this object stands in the body
    """

    model_config = ConfigDict(extra="forbid", strict=True)

    neutral: ClassVar[Neutral] = {}
    neutral_prefix: ClassVar[str] = ""

    @model_validator(mode="before")
    @classmethod
    def _drop_neutral(cls, value: Any) -> Any:
        return without_neutral(value, cls.neutral, cls.neutral_prefix)

    @classmethod
    def __get_pydantic_json_schema__(cls, core_schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        schema = handler.resolve_ref_schema(handler(core_schema))
        neutral = {name: {"enum": [*values, None]} for name, values in cls.neutral.items()}
        schema["properties"] = {**schema.get("properties", {}), **neutral}
        return schema


BodyT = TypeVar("BodyT", bound=Strict)


def parse(raw: bytes, kind: type[BodyT]) -> BodyT:
    """The checked body. Raises: RequestError naming the field at fault."""
    return checked(decoded(raw), kind)


def decoded(raw: bytes) -> dict[str, Any]:
    """The fields of a body. Raises: RequestError when it is not a JSON object."""
    try:
        value = msgspec.json.decode(raw)
    except (msgspec.DecodeError, RecursionError) as error:
        raise RequestError(f"the body is not JSON: {error}") from None
    if not isinstance(value, dict):
        raise RequestError("the body must be a JSON object")
    _check_depth(value)
    if _LONG_NUMBER.search(raw):
        _check_integers(value)
    return value


_LONG_NUMBER = re.compile(rb"[0-9]{19}")


def _check_integers(body: dict[str, Any]) -> None:
    """Neither the engine nor what encodes bodies takes integers of more than 64 bits."""
    for name, value in body.items():
        rest = [value]
        while rest:
            each = rest.pop()
            if isinstance(each, int) and not -(2**63) <= each < 2**64:
                raise RequestError(f"{name} has the integer {each}: it must be one of 64 bits", name)
            rest += each.values() if isinstance(each, dict) else each if isinstance(each, list) else []


def _check_depth(value: Any) -> None:
    level, depth = [value], 0
    while level:
        depth += 1
        if depth > MAX_DEPTH:
            raise RequestError(f"the body is nested more than {MAX_DEPTH} levels deep; make it flatter")
        inner = chain.from_iterable(each.values() if isinstance(each, dict) else each for each in level)
        level = [each for each in inner if isinstance(each, dict | list)]


def checked(value: Any, kind: type[BodyT]) -> BodyT:
    """A decoded object, checked. Raises: RequestError naming the field at fault."""
    try:
        return kind.model_validate(value)
    except ValidationError as error:
        raise _as_request_error(error) from None


_KIND = re.compile(r"str|int|float|bool|[A-Z].*|.*\[.*")
"""Names that pydantic has for the kinds of a value, among those of fields."""

_OR_CLASS = re.compile(r" or instance of \w+")


def _as_request_error(error: ValidationError) -> RequestError:
    """Says what is wrong with the first field that is: where it may be of several kinds, of the kind that fits best."""
    found = error.errors(include_url=False, include_context=False)
    field = found[0]["loc"][:1]
    places = [(_place(each["loc"]), each) for each in found if each["loc"][:1] == field]
    path, first = max(places, key=lambda place: place[0].count("."))
    param = str(field[0]) if field else None
    if first["type"] == "extra_forbidden":
        return RequestError(f"{path} is not a field of this request; leave it out", param)
    if first["type"] == "missing":
        return RequestError(f"{path} is missing", param)
    if first["type"] == "value_error":  # ours say what the value is
        reason = first["msg"].removeprefix("Value error, ")
        colon = "" if reason.startswith(("is ", "has ")) else ":"
        return RequestError(f"{path}{colon} {reason}" if path else reason, param)
    reasons = dict.fromkeys(_OR_CLASS.sub("", each["msg"]) for place, each in places if place == path)
    return RequestError(f"{path} is {shown(first['input'])}: {'; or: '.join(reasons)}", param)


def _place(loc: tuple[int | str, ...]) -> str:
    """Where in the body, without the kinds that pydantic tried there."""
    return ".".join(str(part) for part in loc if isinstance(part, int) or not _KIND.fullmatch(part))
