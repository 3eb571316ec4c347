"""The engine in this process, for scripts and benchmarks."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from core.config import EngineConfig
from core.engine.defaults import read_defaults
from core.engine.engine import Engine
from core.engine.entries import KVEntries
from core.engine.front import Front
from core.engine.output import Delta, TextOutput
from core.errors import CoreError, DeviceError, RequestError
from core.model.chat_template import render
from core.model.source import open_source
from core.plan import Plan
from core.plugin import loader
from core.request import Logprobs, Request, SamplingParams, SequenceOutput, new_request_id


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


class EmbeddingOutput(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """The embedding of a prompt: float32, as many as the model's hidden size.

    num_cached   prompt tokens taken from the prefix cache
    """

    request_id: str
    prompt_ids: list[int]
    embedding: npt.NDArray[np.float32]
    num_cached: int


Prompt = str | Sequence[int]
Progress = Callable[[int, int], None]


class LLM:
    """A model, ready to generate. Takes the fields of `EngineConfig`; close it, or use it in a `with` statement.

    progress    called with bytes loaded and bytes in all
    compiling   on a device that compiles steps: called with shapes done and shapes in all

    Raises: ConfigError, PluginError when what was asked for cannot be had.
    """

    def __init__(
        self,
        model: str = "smollm2",
        *,
        progress: Progress | None = None,
        compiling: Progress | None = None,
        **options: Any,
    ) -> None:
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
        self._engine = Engine(config, progress, compiling=compiling)
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
        self._serve([run.request for run in runs], lambda output: by_id[output.request_id].push(output))
        return [run.result() for run in runs]

    def embed(self, prompts: Prompt | Sequence[Prompt]) -> list[EmbeddingOutput]:
        """The embedding of each prompt (text, or token ids), in the order of the prompts.

        It is the hidden state of the prompt's last token, normalised where the model's files say so.

        Raises: RequestError for a model that declares no last-token pooling, and for a prompt that cannot be served,
        before anything runs; DeviceError when a step fails.
        """
        requests = [
            self._front.embed_request(self._prompt_ids(prompt), request_id=new_request_id("embd"))
            for prompt in _as_batch(prompts)
        ]
        outputs: dict[str, SequenceOutput] = {}
        self._serve(requests, lambda output: outputs.update({output.request_id: output}))
        return [
            EmbeddingOutput(
                request_id=request.request_id,
                prompt_ids=request.prompt_ids,
                embedding=np.frombuffer(outputs[request.request_id].embedding, "<f4").astype(np.float32),
                num_cached=outputs[request.request_id].num_cached,
            )
            for request in requests
        ]

    def export_kv(self, prompt: Prompt) -> KVEntries:
        """What the KV cache holds of a prompt, for `import_kv` of another engine: of its longest prefix in whole pages
        that was computed here for requests without a cache salt.

        Raises: RequestError where nothing of it is cached, and where entries cannot be exported.
        """
        return self._engine.export_kv(self._prompt_ids(prompt))

    def import_kv(self, entries: KVEntries) -> str:
        """Take in entries of another engine with the same model. Returns their provenance: requests that name it in
        `SamplingParams.kv_provenance` rest on them, as long as they are cached; no other request does.

        Raises: RequestError when they do not fit; CapacityError when there are not enough pages.
        """
        return self._engine.import_kv(entries)

    def _serve(self, requests: Sequence[Request], take: Callable[[SequenceOutput], object]) -> None:
        """Run these requests to their ends; `take` gets each output. Whatever stops it ends them all.

        Raises: RequestError for one that the engine refused; DeviceError when a step failed.
        """
        try:
            for request in requests:
                self._engine.add(request)
            while self._engine.busy:
                for output in self._engine.step():
                    if output.error:
                        raise (RequestError if output.refused else DeviceError)(output.error)
                    take(output)
        except BaseException:
            for request in requests:
                self._engine.abort(request.request_id)
            raise

    def _prompt_ids(self, prompt: Prompt) -> list[int]:
        """Token ids of a prompt; around a text come the tokens that its tokenizer puts there."""
        return self.tokenizer.encode(prompt) if isinstance(prompt, str) else list(prompt)

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
        ids = llm._prompt_ids(prompt)
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
