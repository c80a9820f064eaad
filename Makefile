# Two commands do everything on a machine with Python 3.10 to 3.13 and make:
#   make demo   train a network and ensembles of it on bundled data, and compare them
#   make test   lint, types and tests
PYTHON ?= python3
BIN := .venv/bin
JOBS ?= 2

# learning rates were searched for each method on validation data (docs/demo.md)
DEMO := --methods single:lr=0.0098 multi-head:lr=0.0055 packed:alpha=2,lr=0.0355 deep-ensemble:lr=0.0355 --seeds 0 1 2 \
	--data fashion-mnist-small --train-samples 1500 --ood digits --network convnet --network-option width=2 --epochs 9 \
	--batch 64 --jobs $(JOBS) --threads 1 --no-progress --folder runs/demo

.PHONY: demo test lint types tests slow docs fuzz kill benchmark clean

.venv/installed: pyproject.toml constraints.txt
	$(PYTHON) -c "import sys; sys.exit(not (3, 10) <= sys.version_info[:2] <= (3, 13) and 'covey needs Python 3.10 to 3.13; set PYTHON=')"
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	# timm is tested and torchvision only imported by it: without what both ask for, which is a torch of their own
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt --no-deps timm torchvision
	touch $@

demo: .venv/installed
	OMP_NUM_THREADS=1 $(BIN)/covey compare $(DEMO)

test: lint types tests

lint: .venv/installed
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/lint-imports

types: .venv/installed
	$(BIN)/mypy

tests: .venv/installed
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -rs -n $(JOBS) -m 'not slow'

# tests that take long: the rest of what must pass before a change lands
slow: .venv/installed
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -rs -n $(JOBS) -m slow

# the site, in build/site; warnings are errors
docs: .venv/installed
	OMP_NUM_THREADS=1 $(BIN)/python -m sphinx -W --keep-going -q -b html docs build/site
	@echo "build/site/index.html"

# damages stored files and data in 10,000 ways, and kills training 100 times; minutes each (docs/security.md)
fuzz: .venv/installed
	OMP_NUM_THREADS=1 $(BIN)/python tests/fuzz/run.py $(FUZZ)

kill: .venv/installed
	OMP_NUM_THREADS=1 $(BIN)/python tests/fuzz/kill.py $(KILL)

benchmark: .venv/installed
	$(BIN)/python benchmarks/run.py

clean:
	rm -rf .venv
