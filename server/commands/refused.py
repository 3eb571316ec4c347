"""Flags of vLLM that have no effect here yet, or mean something else: each is refused with what to do instead."""

from collections.abc import Sequence

from core.errors import ConfigError

REFUSED = {
    "--api-server-count": "one process serves the API; put a load balancer before several servers",
    "--chat-template-content-format": "templates get text; leave it out",
    "--data-parallel-size": "start several servers, with a load balancer before them",
    "--disable-log-requests": "requests are only logged with --log-format json",
    "--disable-uvicorn-access-log": "there is no such log; --log-format json tells of requests",
    "--enable-expert-parallel": "no family with experts is served yet",
    "--enable-lora": "adapters are not served yet",
    "--kv-cache-dtype": "the KV cache has the dtype of the activations; see --dtype",
    "--kv-transfer-config": "the KV cache is not shared between servers yet",
    "--limit-mm-per-prompt": "only text is served",
    "--lora-modules": "adapters are not served yet",
    "--pipeline-parallel-size": "split layers with --tensor-parallel-size",
    "--quantization": "weights are taken as the model has them: see --weights",
    "--root-path": "have the proxy strip the prefix",
    "--show-hidden-metrics-for-version": "former names are there with --old-metric-names",
    "--speculative-config": "see --speculative",
    "--ssl-ca-certs": "clients' certificates are not asked for; use --api-key",
    "--tokenizer": "the tokenizer is the model's own",
    "--trust-remote-code": "code of models is never run; see models/README.md for how to add a family",
}


def refuse(args: Sequence[str]) -> None:
    """Raises: ConfigError for the first flag that is refused."""
    for arg in args[1:] if args[:1] == ["serve"] else ():
        name = arg.partition("=")[0].replace("_", "-")
        if name in REFUSED:
            raise ConfigError(f"{name} is a flag of vLLM that has no effect here: {REFUSED[name]}")
