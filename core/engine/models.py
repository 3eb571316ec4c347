"""From what the user calls a model to its files, its family and its config."""

from __future__ import annotations

from core.errors import ConfigError
from core.model.source import ModelSource, open_source
from core.model.spec import ModelConfig, ModelSpec
from core.plugin import loader


def find_model(name: str) -> tuple[ModelSource, ModelSpec]:
    """Open a model and find its family. Raises: ConfigError when either is not to be had."""
    specs = loader.model_specs()
    source = open_source(name, loader.weights_packages(), list(dict.fromkeys(specs.values())))
    architectures = source.config.get("architectures") or []
    for architecture in architectures:
        if architecture in specs:
            return source, specs[architecture]
    raise ConfigError(
        f"{name}: architecture {', '.join(architectures) or 'not named in config.json'} is not known; "
        f"known are {', '.join(sorted(specs))}"
    )


def read_config(source: ModelSource, spec: ModelSpec, max_len: int | None) -> ModelConfig:
    """The config of a model, at the length asked for. Raises: ConfigError for what cannot be served."""
    raw = dict(source.config)
    if source.pooling and source.pooling.headless:
        raw["tie_word_embeddings"] = True  # the step draws from something; nobody is given what it draws
    read: ModelConfig = spec.read_config(raw, max_len)
    return read
