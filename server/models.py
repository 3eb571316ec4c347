"""Opening the model that is named on the command line, without torch."""

from core.model.source import ModelSource, open_source
from core.plugin.loader import model_specs, weights_packages


def open_model(name: str) -> ModelSource:
    """Tokenizer, template and metadata; no weights are read. Raises: ConfigError when the model is not to be had."""
    return open_source(name, weights_packages(), list(dict.fromkeys(model_specs().values())))
