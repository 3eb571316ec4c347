"""A small tokenizer, and grammars over it."""

from __future__ import annotations

import pytest

from core.engine.guidance import GuidanceCompiler
from core.model.tokenizer import Tokenizer, load_tokenizer
from tests.conftest import write_tokenizer
from tests.core.engine.grammars import EOS, VOCAB


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    folder = tmp_path_factory.mktemp("tokenizer")
    write_tokenizer(folder)
    return load_tokenizer(folder)


@pytest.fixture(scope="module")
def compiler(tokenizer: Tokenizer) -> GuidanceCompiler:
    return GuidanceCompiler(tokenizer, VOCAB, [EOS])
