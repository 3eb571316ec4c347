"""The form that a client wants its output to have: OpenAI's response_format, vLLM's structured_outputs and its older
guided_* fields, SGLang's regex, ebnf and json_schema.

One request has one form at most. What core cannot enforce it refuses before anything is generated.
"""

from typing import Annotated, Any, ClassVar, Literal, NamedTuple

import msgspec
from pydantic import BeforeValidator, Field, model_validator

from core.errors import RequestError
from core.request import Structured
from server.neutral import Neutral
from server.strict import Strict


class Form(NamedTuple):
    """A form, and the field of the body that asks for it."""

    structured: Structured
    field: str


def _text(value: Any) -> str:
    """A schema, or what else is JSON, as core takes it."""
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()


class Structure(Strict):
    """One tag of a structural tag: `begin`, JSON by a schema, `end`."""

    neutral_prefix = "structures."

    begin: str = Field(min_length=1)
    form: dict[str, Any] = Field(alias="schema")
    end: str


Structures = Annotated[list[Structure], Field(min_length=1)]
Triggers = Annotated[list[Annotated[str, Field(min_length=1)]], Field(min_length=1)]


class Tags(Strict):
    """Fields of a structural tag: today's `format`, which core reads, or `structures` and `triggers`."""

    format: dict[str, Any] | None = None
    structures: Structures | None = None
    triggers: Triggers | None = None

    def tags(self) -> Structured:
        """Raises: ValueError when it is not one of the two kinds."""
        if self.format is not None and self.structures is None and self.triggers is None:
            return Structured("structural_tag", _text({"format": self.format}))
        if self.format is not None or self.structures is None or self.triggers is None:
            raise ValueError("a structural tag has either format, or structures and triggers")
        for each in self.structures:
            if not each.begin.startswith(tuple(self.triggers)):
                raise ValueError(f"begin {each.begin!r} starts with none of the triggers")
        shown = [each.model_dump(by_alias=True) for each in self.structures]
        return Structured("structural_tag", _text({"structures": shown, "triggers": self.triggers}))


class StructuralTag(Tags):
    """vLLM's, of which the type may be left out."""

    type: Literal["structural_tag"] = "structural_tag"

    @model_validator(mode="after")
    def _of_a_kind(self) -> "StructuralTag":
        self.tags()
        return self


def _from_text(value: Any) -> Any:
    try:
        return msgspec.json.decode(value) if isinstance(value, str) else value
    except msgspec.DecodeError as error:
        raise ValueError(f"is not JSON: {error}") from None


class _NamedSchema(Strict):
    """`strict` says whether the schema must be kept to: it always is. Name and description are the client's own."""

    name: str | None = None
    description: str | None = None
    strict: bool | None = None
    form: dict[str, Any] | bool = Field(alias="schema")


class ResponseFormat(Tags):
    """OpenAI's: `text`, `json_object`, `json_schema`; and vLLM's `structural_tag`."""

    type: Literal["text", "json_object", "json_schema", "structural_tag"]
    json_schema: _NamedSchema | None = None

    @model_validator(mode="after")
    def _fields_of_the_type(self) -> "ResponseFormat":
        if self.json_schema is None and self.type == "json_schema":
            raise ValueError("json_schema is missing for type json_schema")
        of = {"json_schema": "json_schema", **dict.fromkeys(Tags.model_fields, "structural_tag")}
        for name, kind in of.items():
            if getattr(self, name) is not None and self.type != kind:
                raise ValueError(f"{name} is no field of type {self.type}")
        self.structured()
        return self

    def structured(self) -> Structured | None:
        if self.json_schema is not None:
            return Structured("json_schema", _text(self.json_schema.form))
        if self.type == "structural_tag":
            return self.tags()
        return Structured("json_object") if self.type == "json_object" else None


class StructuredOutputs(Strict):
    """vLLM's. `json` and `structural_tag` may be text."""

    neutral: ClassVar[Neutral] = {
        "disable_additional_properties": (False,),
        "disable_any_whitespace": (False,),
        "disable_fallback": (False, True),  # there is none
        "whitespace_pattern": (),
    }
    neutral_prefix = "structured_outputs."

    form: str | dict[str, Any] | bool | None = Field(None, alias="json")
    regex: str | None = None
    choice: list[str] | None = None
    grammar: str | None = None
    json_object: bool | None = None
    structural_tag: Annotated[StructuralTag | None, BeforeValidator(_from_text)] = None

    def structured(self) -> list[Structured]:
        asked = _given(json_schema=self.form, regex=self.regex, choice=self.choice, grammar=self.grammar)
        if self.json_object:
            asked.append(Structured("json_object"))
        if self.structural_tag is not None:
            asked.append(self.structural_tag.tags())
        return asked


def _given(**kinds: Any) -> list[Structured]:
    return [Structured(kind, _text(value)) for kind, value in kinds.items() if value is not None]


class FormFields(Strict):
    """Fields of a body that ask for a form."""

    response_format: ResponseFormat | None = None
    structured_outputs: StructuredOutputs | None = None
    guided_json: str | dict[str, Any] | bool | None = None
    guided_regex: str | None = None
    guided_choice: list[str] | None = None
    guided_grammar: str | None = None
    json_schema: str | None = None
    regex: str | None = None
    ebnf: str | None = None

    @property
    def form(self) -> Form | None:
        """Raises: RequestError when it is not one."""
        asked = [
            Form(Structured(kind, _text(value)), field) for field, kind, value in self._plain() if value is not None
        ]
        if self.response_format is not None and (structured := self.response_format.structured()):
            asked.append(Form(structured, "response_format"))
        if self.structured_outputs is not None:
            asked += [Form(each, "structured_outputs") for each in self.structured_outputs.structured()]
        if len(asked) > 1:
            kinds = " and ".join(f"{form.field} ({form.structured.kind})" for form in asked)
            raise RequestError(f"{kinds} ask for {len(asked)} forms: an output can have one; choose", asked[1].field)
        return asked[0] if asked else None

    def _plain(self) -> list[tuple[str, str, Any]]:
        return [
            ("guided_json", "json_schema", self.guided_json),
            ("guided_regex", "regex", self.guided_regex),
            ("guided_choice", "choice", self.guided_choice),
            ("guided_grammar", "grammar", self.guided_grammar),
            ("json_schema", "json_schema", self.json_schema),
            ("regex", "regex", self.regex),
            ("ebnf", "grammar", self.ebnf),
        ]
