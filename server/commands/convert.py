"""`core convert`: any model that can be served, as a Hugging Face folder."""

from pathlib import Path
from typing import Annotated

import typer


def convert(
    model: Annotated[str, typer.Argument(help="A folder, a .gguf file, a hub id, or a weights package.")],
    folder: Annotated[Path, typer.Argument(help="Where to write; it must not hold a model yet.")],
    dtype: Annotated[str, typer.Option(help="float32, bfloat16 or float16.")] = "bfloat16",
) -> None:
    """Write config, safetensors weights and tokenizer to FOLDER."""
    from core.model.convert import convert as write
    from server.models import open_model
    from server.show import log, progress

    source = open_model(model)
    with progress(f"Writing {folder}") as done:
        write(source, folder, dtype, done)
    log.print(f"{model} is in {folder}, in {dtype}", highlight=False)
