"""The engine in this process, for scripts and benchmarks."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any

import msgspec

from core.config import EngineConfig
from core.engine.defaults import read_defaults
from core.engine.engine import Engine
from core.engine.front import Front
from core.engine.output import Delta, TextOutput
from core.errors import CoreError, DeviceError, RequestError
from core.model.chat_template import render
from core.model.source import open_source
from core.plan import Plan
from core.plugin import loader
from core.request import Logprobs, SamplingParams, new_request_id


class RequestOutput(msgspec.Struct, frozen=True, kw_only=True):
    """A finished request.

    finish_reason   "stop" or "length"
    stop_reason     the stop string or stop id that ended it, where the client named it
    num_cached      prompt tokens taken from the prefix cache
    index           which of a prompt's `n` outputs this is
    logprobs        of token_ids; prompt_logprobs: of prompt_ids from the second on; where asked for
    """

    request_id: str
    prompt_ids: list[int]
    text: str
    token_ids: list[int]
    finish_reason: str
    stop_reason: str | int | None
    num_cached: int
    index: int = 0
    logprobs: list[Logprobs] = []
    prompt_logprobs: list[Logprobs] = []


Prompt = str | Sequence[int]
Progress = Callable[[int, int], None]


class LLM:
    """A model, ready to generate. Takes the fields of `EngineConfig`; close it, or use it in a `with` statement.

    progress   called with bytes loaded and bytes in all

    Raises: ConfigError, PluginError when what was asked for cannot be had.
    """

    def __init__(self, model: str = "smollm2", *, progress: Progress | None = None, **options: Any) -> None:
        known = set(EngineConfig.__struct_fields__)
        unknown = sorted(set(options) - known)
        if unknown:
            raise TypeError(f"LLM has no option {unknown[0]}: choose among {', '.join(sorted(known))}")
        config = EngineConfig(model=model, **options)
        specs = list(dict.fromkeys(loader.model_specs().values()))
        source = open_source(model, loader.weights_packages(), specs)
        self._template = source.chat_template
        self._special_tokens = source.special_tokens
        self._generation_config = source.generation_config
        self.tokenizer = source.tokenizer()
        self._engine = Engine(config, progress)
        self._front = Front(self._engine.info(), source.eos_ids, self.tokenizer.encode)

    @property
    def plan(self) -> Plan:
        return self._engine.plan

    @property
    def engine(self) -> Engine:
        return self._engine

    def generate(
        self, prompts: Prompt | Sequence[Prompt], sampling: SamplingParams | Sequence[SamplingParams] | None = None
    ) -> list[RequestOutput]:
        """Continue each prompt (text, or token ids). Results stand in the order of the prompts, `n` for each.

        Raises: RequestError for a prompt or parameter that cannot be served, before anything runs;
        DeviceError when a step fails.
        """
        batch = _as_batch(prompts)
        each = [sampling or SamplingParams()] * len(batch) if not isinstance(sampling, Sequence) else list(sampling)
        if len(each) != len(batch):
            raise RequestError(f"{len(each)} sampling parameters for {len(batch)} prompts: give one, or one each")
        runs = [
            _Run(self, prompt, params, index)
            for prompt, params in zip(batch, each, strict=True)
            for index in range(max(1, params.n))
        ]
        by_id = {run.request.request_id: run for run in runs}
        try:
            for run in runs:
                self._engine.add(run.request)
            while self._engine.busy:
                for output in self._engine.step():
                    run = by_id[output.request_id]
                    if output.error:
                        raise (RequestError if output.refused else DeviceError)(output.error)
                    run.push(output)
        except BaseException:
            for request_id in by_id:
                self._engine.abort(request_id)
            raise
        return [run.result() for run in runs]

    def stream(self, prompt: Prompt, sampling: SamplingParams | None = None) -> Iterator[Delta]:
        """Continue one prompt, piece by piece. Raises as `generate`."""
        run = _Run(self, prompt, sampling or SamplingParams())
        self._engine.add(run.request)
        try:
            while self._engine.busy:
                for output in self._engine.step():
                    if output.error:
                        raise (RequestError if output.refused else DeviceError)(output.error)
                    if output.request_id == run.request.request_id and not run.done:
                        yield run.push(output)
        finally:
            self._engine.abort(run.request.request_id)

    def chat_prompt(self, messages: Sequence[Mapping[str, Any]]) -> list[int]:
        """Token ids of a conversation, ready for the answer. Raises: RequestError without a chat template."""
        if self._template is None:
            raise RequestError("this model has no chat template: use generate with a plain prompt", "messages")
        text = render(self._template, list(messages), add_generation_prompt=True, special_tokens=self._special_tokens)
        return self.tokenizer.encode(text, add_special_tokens=False)

    def chat(self, messages: Sequence[Mapping[str, Any]], sampling: SamplingParams | None = None) -> RequestOutput:
        """Answer a conversation: a list of {"role", "content"}. Raises as `generate`."""
        return self.generate([self.chat_prompt(messages)], sampling)[0]

    def default_sampling(self, **otherwise: Any) -> SamplingParams:
        """The sampling that the model's generation_config.json proposes; `otherwise` where it says nothing.

        Raises: ConfigError for a value that no request could have.
        """
        return SamplingParams(**(otherwise | read_defaults(self._generation_config, self._engine.vocab_size)))

    def close(self) -> None:
        """Free the device and end other ranks."""
        self._engine.close()

    def __enter__(self) -> LLM:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _as_batch(prompts: Prompt | Sequence[Prompt]) -> list[Prompt]:
    if isinstance(prompts, str) or (prompts and isinstance(prompts[0], int)):
        return [prompts]  # type: ignore[list-item]
    return list(prompts)  # type: ignore[arg-type]


class _Run:
    """One request of `LLM`."""

    def __init__(self, llm: LLM, prompt: Prompt, sampling: SamplingParams, index: int = 0) -> None:
        ids = llm.tokenizer.encode(prompt) if isinstance(prompt, str) else list(prompt)
        self._engine = llm.engine
        self.request = llm._front.request(ids, sampling, request_id=new_request_id("gen"), index=index)
        self._index = index
        self._logprobs: list[Logprobs] = []
        self._prompt_logprobs: list[Logprobs] = []
        self._text_output = TextOutput(llm.tokenizer, sampling, ids)
        self._texts: list[str] = []
        self._ids: list[int] = []
        self._last: Delta | None = None
        self._num_cached = 0

    @property
    def done(self) -> bool:
        return self._last is not None and self._last.finish_reason is not None

    def push(self, output: Any) -> Delta:
        delta = self._text_output.push(output)
        self._texts.append(delta.text)
        self._ids += delta.token_ids
        self._logprobs += delta.logprobs
        self._prompt_logprobs += delta.prompt_logprobs
        self._num_cached = output.num_cached
        self._last = delta
        if delta.finish_reason and not output.finish_reason:
            self._engine.abort(output.request_id)
        return delta

    def result(self) -> RequestOutput:
        last = self._last
        if last is None or last.finish_reason is None:
            raise CoreError(f"request {self.request.request_id} ended without a finish reason")
        return RequestOutput(
            request_id=self.request.request_id,
            prompt_ids=self.request.prompt_ids,
            text="".join(self._texts),
            token_ids=self._ids,
            finish_reason=last.finish_reason,
            stop_reason=last.stop_reason,
            num_cached=self._num_cached,
            index=self._index,
            logprobs=self._logprobs,
            prompt_logprobs=self._prompt_logprobs,
        )
