"""The page that Prometheus scrapes: what the API process counts and what the engine does, under vLLM's names.

What vLLM has no name for begins with `core:`. `FORMER_NAMES` are what vLLM called some of them before; dashboards and
routers still ask for those, so an operator can have both (--old-metric-names). What the engine counts starts again with
a new engine; Prometheus expects that.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate

from prometheus_client import Metric
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.exposition import choose_encoder
from prometheus_client.utils import floatToGoString

from core.engine.snapshot import Snapshot
from core.engine.step_sizes import BOUNDS
from server.metrics import Record

FORMER_NAMES = {
    "kv_cache_usage_perc": "gpu_cache_usage_perc",
    "inter_token_latency_seconds": "time_per_output_token_seconds",
    "prefix_cache_queries": "gpu_prefix_cache_queries",
    "prefix_cache_hits": "gpu_prefix_cache_hits",
}

Labels = dict[str, str]


@dataclass(frozen=True)
class Exposition:
    """All metrics, as prometheus_client asks a registry for them.

    labels      of every one: model_name and engine
    cache       what the KV cache is, as labels of cache_config_info
    old_names   also under `FORMER_NAMES`
    snapshot    of the engine; without it what the engine counts is left out, because it is not known
    """

    record: Record
    labels: Labels
    cache: Labels
    old_names: bool
    snapshot: Snapshot | None = None

    def write(self, snapshot: Snapshot | None, accept: str) -> tuple[bytes, str]:
        """Text, and its media type, which the `Accept` header chooses."""
        encode, media_type = choose_encoder(accept)
        return encode(replace(self, snapshot=snapshot)), media_type

    def collect(self) -> Iterator[Metric]:
        for metric in (*self._of_requests(), *self._of_engine()):
            yield metric
            former = FORMER_NAMES.get(metric.name.removeprefix("vllm:"))
            if self.old_names and former:
                yield _renamed(metric, f"vllm:{former}")

    def _of_requests(self) -> Iterator[Metric]:
        r = self.record
        yield self._counter("prompt_tokens", "Prompt tokens of requests that got a first output.", r.prompt_tokens)
        yield self._counter("generation_tokens", "Tokens generated.", r.generation_tokens)
        ended = CounterMetricFamily(
            "vllm:request_success", "Requests that ended.", labels=self._names("finished_reason")
        )
        for reason, count in r.ended_by.items():
            ended.add_metric([*self.labels.values(), reason], count)
        yield ended
        for name, text, histogram in (
            ("time_to_first_token_seconds", "From arrival to the first token.", r.first_token_s),
            ("inter_token_latency_seconds", "Between tokens of one request.", r.token_s),
            ("request_time_per_output_token_seconds", "A request's mean time between tokens.", r.per_token_s),
            ("e2e_request_latency_seconds", "From arrival to the last token.", r.e2e_s),
            ("request_queue_time_seconds", "From arrival until the engine took it up.", r.queue_s),
            ("request_prefill_time_seconds", "From then to the first token.", r.prefill_s),
            ("request_decode_time_seconds", "From the first token to the last.", r.decode_s),
            ("request_inference_time_seconds", "From when the engine took it up to the last token.", r.inference_s),
            ("request_prompt_tokens", "Prompt tokens of a request.", r.request_prompt),
            ("request_generation_tokens", "Tokens generated for a request.", r.request_generation),
            ("request_max_num_generation_tokens", "Tokens of a client request's longest choice.", r.request_most),
            ("request_params_n", "Choices asked for.", r.asked_n),
            ("request_params_max_tokens", "Limits asked for.", r.asked_most),
        ):
            yield self._histogram(name, text, histogram.bounds, histogram.counts, histogram.sum)

    def _of_engine(self) -> Iterator[Metric]:
        s = self.snapshot
        yield self._info("cache_config_info", "What the KV cache is.", self.cache)
        none = {"max_lora": "0", "running_lora_adapters": "", "waiting_lora_adapters": ""}
        yield self._info("lora_requests_info", "Adapters in use; none is served yet.", none)
        if s is None:
            return
        yield self._gauge("num_requests_running", "Requests that the engine runs.", s.num_running)
        yield self._gauge("num_requests_waiting", "Requests that wait for the engine.", s.num_waiting)
        used = max(group.num_used / group.num_pages for group in s.groups)
        yield self._gauge("kv_cache_usage_perc", "KV pages in use by requests, 1 is all of them.", used)
        yield self._gauge("num_requests_swapped", "Requests whose KV pages are on the host.", s.num_on_host)
        used = max(group.num_host_used / max(1, group.num_host_pages) for group in s.groups)
        yield self._gauge("cpu_cache_usage_perc", "KV pages on the host in use by preempted requests.", used)
        yield self._counter("num_preemptions", "Preemptions.", s.num_preemptions)
        yield self._counter("preemptions_swapped", "Those by copying to the host.", s.num_swapped, "core")
        yield self._counter("swaps_refused", "Those that found no room there.", s.num_swaps_refused, "core")
        yield self._counter("pages_swapped_out", "KV pages copied to the host.", s.num_pages_swapped_out, "core")
        yield self._counter("pages_swapped_in", "KV pages copied back.", s.num_pages_swapped_in, "core")
        yield self._counter("prefix_cache_queries", "Prompt tokens looked for in the cache.", s.num_prefix_queries)
        yield self._counter("prefix_cache_hits", "Those that were found.", s.num_prefix_hits)
        yield self._counter("compiles", "Functions that the device compiled.", s.num_compiles, "core")
        yield self._counter("compile_seconds", "What compiling them took.", s.compile_s, "core")
        yield self._counter("late_compiles", "Those that requests waited for.", s.num_late_compiles, "core")
        if s.num_accepted_at:
            yield from self._of_drafts(s)
        sizes = s.num_steps_by_tokens
        yield self._histogram("iteration_tokens_total", "Tokens of a step.", BOUNDS, sizes, s.num_step_tokens)

    def _of_drafts(self, s: Snapshot) -> Iterator[Metric]:
        yield self._counter("spec_decode_num_drafts", "Draws that came with drafts.", s.num_drafts)
        yield self._counter("spec_decode_num_draft_tokens", "Drafts.", s.num_draft_tokens)
        yield self._counter("spec_decode_num_accepted_tokens", "Drafts that were right.", s.num_accepted_tokens)
        followed = "Steps in which the device foretold drafts."
        yield self._counter("foretelling_steps", followed, s.num_foretelling_steps, "core")
        yield self._counter("foretelling_seconds", "What that added to them.", s.foretelling_s, "core")
        name, text = "vllm:spec_decode_num_accepted_tokens_per_pos", "Those by their place among the drafts of a draw."
        metric = CounterMetricFamily(name, text, labels=self._names("position"))
        for position, num in enumerate(s.num_accepted_at):
            metric.add_metric([*self.labels.values(), str(position)], num)
        yield metric

    def _names(self, *more: str) -> list[str]:
        return [*self.labels, *more]

    def _gauge(self, name: str, text: str, value: float) -> Metric:
        metric = GaugeMetricFamily(f"vllm:{name}", text, labels=self._names())
        metric.add_metric(list(self.labels.values()), value)
        return metric

    def _info(self, name: str, text: str, labels: Labels) -> Metric:
        metric = GaugeMetricFamily(f"vllm:{name}", text, labels=self._names(*labels))
        metric.add_metric([*self.labels.values(), *labels.values()], 1)
        return metric

    def _counter(self, name: str, text: str, value: float, whose: str = "vllm") -> Metric:
        metric = CounterMetricFamily(f"{whose}:{name}", text, labels=self._names())
        metric.add_metric(list(self.labels.values()), value)
        return metric

    def _histogram(self, name: str, text: str, bounds: Sequence[float], counts: list[int], total: float) -> Metric:
        metric = HistogramMetricFamily(f"vllm:{name}", text, labels=self._names())
        ends = [*map(floatToGoString, bounds), "+Inf"]
        metric.add_metric(list(self.labels.values()), list(zip(ends, accumulate(counts), strict=True)), total)
        return metric


def _renamed(metric: Metric, name: str) -> Metric:
    former = Metric(name, f"Former name of {metric.name}.", metric.type)
    former.samples = [sample._replace(name=sample.name.replace(metric.name, name, 1)) for sample in metric.samples]
    return former
