"""Reasoning over HTTP, behind a template that can switch it off. The null device counts on from the last id."""

import json
from collections.abc import Iterator
from typing import Any

import pytest
from processes import Server, serve

TEMPLATE = """{% for m in messages %}{{ m.role }}:{% if m.reasoning_content %}<think>{{ m.reasoning_content }}</think>
{%- endif %}{{ m.content }}|{% endfor %}{% if add_generation_prompt %}assistant:
{%- if enable_thinking is defined and not enable_thinking %}<think>

</think>

{% endif %}{% endif %}"""
INSIDE = "{{ messages[0].content }}:<think>\n"
ASK = {"model": "smollm2", "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 30, "temperature": 0}
CHOICE = ["red", "blue"]
OFF = {"chat_template_kwargs": {"enable_thinking": False}}
FIVE = {"properties": {"a": {"enum": [5]}}, "required": ["a"], "additionalProperties": False}
TOOLS = [{"type": "function", "function": {"name": "f", "parameters": FIVE}}]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("reasoning")
    (folder / "template.jinja").write_text(TEMPLATE)
    flags = ("--chat-template", str(folder / "template.jinja"), "--trust-request-chat-template")
    with serve(folder, "smollm2", "--device", "null", "--max-model-len", "1K", *flags) as started:
        yield started


@pytest.fixture(scope="module")
def ending(smollm2: Any) -> dict[str, Any]:
    """Parameters that force the end mark upon the model: each token of it is likelier than the next one, and than
    itself once it was drawn; those that were drawn for the begin mark have been made less likely by that."""
    begin, end = (smollm2.tokenizer().encode(mark, add_special_tokens=False) for mark in ("<think>", "</think>"))
    bias = {str(i): 90 - n / 2 + 4 * (i in begin) for n, i in enumerate(end)}
    return {"logit_bias": bias, "presence_penalty": 2, "frequency_penalty": 2}


def post(server: Server, **more: Any) -> Any:
    response = server.post("/v1/chat/completions", ASK | more)
    assert response.status_code == 200, response.text
    return response.json()


def message(server: Server, **more: Any) -> Any:
    """Of a whole answer, after seeing that the same comes as a stream."""
    whole = post(server, **more)["choices"][0]
    response = server.post("/v1/chat/completions", ASK | more | {"stream": True})
    events = response.text.split("\n\n")[:-2]
    choices = [json.loads(event.removeprefix("data: "))["choices"][0] for event in events]
    for field in ("content", "reasoning", "reasoning_content"):
        assert "".join(c["delta"].get(field) or "" for c in choices) == (whole["message"].get(field) or "")
    assert choices[-1]["finish_reason"] == whole["finish_reason"]
    return whole["message"]


def test_a_form_holds_after_the_reasoning(server: Server, ending: dict[str, Any]) -> None:
    """Source: https://github.com/vllm-project/vllm/issues/50948 and
    https://github.com/sgl-project/sglang/issues/9282, where JSON landed in reasoning."""
    for form in ({"guided_choice": CHOICE}, {"guided_json": {"enum": CHOICE}}):
        found = message(server, **form, **ending)
        assert found["content"].strip('"') in CHOICE


def test_a_form_holds_at_once_without(server: Server) -> None:
    found = message(server, guided_choice=CHOICE, **OFF)
    assert found["content"] in CHOICE
    assert "reasoning" not in found


def test_reasoning_in_both_names(server: Server, ending: dict[str, Any]) -> None:
    found = message(server, chat_template=INSIDE, max_tokens=8)
    assert found["reasoning"] == found["reasoning_content"] != ""
    assert found["content"] == ""
    hidden = message(server, chat_template=INSIDE, max_tokens=8, include_reasoning=False)
    assert not {"reasoning", "reasoning_content"} & hidden.keys()
    body = ASK | {"chat_template": INSIDE, "max_tokens": 8, "include_reasoning": False, "stream": True}
    assert server.post("/v1/chat/completions", body).text.count("data: {") == 2  # the role, and the end
    both = message(server, chat_template=INSIDE, guided_choice=CHOICE, max_tokens=40, stop=["</"], **ending)
    assert both["content"] in CHOICE


@pytest.mark.parametrize("more", [{}, {"chat_template": INSIDE}, {"guided_choice": CHOICE}, {"stop": ["</"]}])
def test_reasoning_in_the_content(server: Server, smollm2: Any, more: dict[str, Any]) -> None:
    """As it was written, streamed and whole; stop strings still count after it alone."""
    asked = {"max_tokens": 40, "thinking_token_budget": 7, **more}
    found = message(server, separate_reasoning=False, **asked)
    assert "reasoning" not in found
    answer = post(server, return_token_ids=True, **asked)["choices"][0]
    text = smollm2.tokenizer().decode(answer["token_ids"])
    assert found["content"] == text
    assert text.endswith(answer["message"]["content"])
    assert "</think>" in text
    hidden = message(server, separate_reasoning=False, include_reasoning=False, **asked)
    assert hidden["content"] == answer["message"]["content"]


def test_reasoning_tokens_are_counted(server: Server, ending: dict[str, Any]) -> None:
    def tokens(**more: Any) -> tuple[int, int]:
        usage = post(server, **more)["usage"]
        return usage["completion_tokens_details"]["reasoning_tokens"], usage["completion_tokens"]

    assert tokens(chat_template=INSIDE, max_tokens=8) == (8, 8)
    assert tokens(max_tokens=8, **OFF) == (0, 8)
    reasoning, completion = tokens(guided_choice=CHOICE, **ending)
    assert 2 <= reasoning < completion


@pytest.mark.parametrize("budget", [0, 7])
@pytest.mark.parametrize("more", [{}, {"chat_template": INSIDE}, {"guided_choice": CHOICE}])
def test_a_budget_ends_the_reasoning(server: Server, smollm2: Any, budget: int, more: dict[str, Any]) -> None:
    """An answer of its own follows, with its form where it has one. Without a budget there would be none."""
    found = post(server, thinking_token_budget=budget, return_token_ids=True, max_tokens=40, **more)
    text = smollm2.tokenizer().decode(found["choices"][0]["token_ids"])
    begin, _, rest = text.rpartition("<think>")
    thought, end, answer = rest.partition("</think>")
    assert not begin
    assert end
    assert len(thought) == budget  # each id is a character
    message = found["choices"][0]["message"]
    assert message["content"] in (CHOICE if "guided_choice" in more else [answer.removeprefix("\n\n")])
    assert "reasoning" not in post(server, thinking_token_budget=budget, **OFF)["choices"][0]["message"]


def test_what_has_no_budget(server: Server, null_server: Server) -> None:
    for where, more, words in (
        (null_server, {}, "does not reason"),
        (server, {"chat_template": "{{ messages[0].content }}"}, "does not show"),
        (server, {"thinking_token_budget": -1}, "greater than or equal to 0"),
    ):
        response = where.post("/v1/chat/completions", ASK | {"thinking_token_budget": 5} | more)
        assert response.status_code == 400
        assert response.json()["error"]["param"] == "thinking_token_budget"
        assert words in response.json()["error"]["message"]


def test_a_budget_of_a_message(server: Server) -> None:
    body = {"model": "smollm2", "messages": ASK["messages"], "max_tokens": 40, "temperature": 0}
    body |= {"thinking": {"type": "enabled", "budget_tokens": 7}}
    kinds = [block["type"] for block in server.post("/v1/messages", body).json()["content"]]
    assert kinds == ["thinking", "text"]


@pytest.mark.parametrize("asked", [{"chat_template": INSIDE}, OFF])
def test_stop_strings_count_after_the_reasoning(server: Server, asked: dict[str, Any]) -> None:
    """Source: https://github.com/vllm-project/vllm/issues/52393, where one that the reasoning held ended the answer."""
    found = message(server, **asked)
    text = found.get("reasoning") or found["content"]
    stop = text[20:24]
    stopped = message(server, **asked, stop=[stop])
    if asked is OFF:
        assert stopped["content"] == text[: text.index(stop)]
    else:
        assert stopped["reasoning"] == text
        assert stopped["content"] == ""


def test_calls_come_after_the_reasoning(server: Server, ending: dict[str, Any]) -> None:
    for asked in (ending, OFF):
        found = message(server, tools=TOOLS, tool_choice="required", parallel_tool_calls=False, max_tokens=60, **asked)
        [call] = found["tool_calls"]
        assert json.loads(call["function"]["arguments"]) == {"a": 5}
        assert found["content"] is None


@pytest.mark.parametrize("name", ["reasoning", "reasoning_content"])
def test_reasoning_of_earlier_turns_is_rendered(server: Server, smollm2: Any, name: str) -> None:
    """Source: https://github.com/vllm-project/vllm/pull/42664, where it was dropped."""
    turn = {"role": "assistant", "content": "Hello", name: "Be kind."}
    ids = post(server, messages=[*ASK["messages"], turn], max_tokens=1, return_token_ids=True)["prompt_token_ids"]
    assert "assistant:<think>Be kind.</think>Hello|" in smollm2.tokenizer().decode(ids)


def test_effort_none_switches_reasoning_off(server: Server) -> None:
    assert "reasoning" not in message(server, guided_choice=CHOICE, reasoning_effort="none")
    response = server.post("/v1/chat/completions", ASK | {"reasoning_effort": "high"})
    assert response.status_code == 400
    assert "only 'none'" in response.json()["error"]["message"]


def test_an_answer_goes_on_inside_of_its_reasoning(server: Server) -> None:
    turn = {"role": "assistant", "content": "<think>\nHm"}
    found = message(server, messages=[*ASK["messages"], turn], continue_final_message=True, max_tokens=5)
    assert found["reasoning"]
    assert found["content"] == ""


def test_what_parses_reasoning_is_shown_at_the_start(server: Server) -> None:
    assert "qwen3" in server.log.read_text()
