# Two commands do all the set-up: `make run` and `make test`.
PYTHON ?= python3
BIN := .venv/bin
PAGES := docs/comparison.md docs/reading-the-paper.md

.PHONY: run test lint types pages docs clean

run: .venv/.installed
	$(BIN)/dpmcl run digits

test: .venv/.installed
	$(BIN)/python -m pytest -n 3 --dist worksteal $(PYTEST_ARGS)

lint: .venv/.installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports

types: .venv/.installed
	$(BIN)/mypy

# Writes the figures in the documentation anew, from what is stored under results/.
pages: .venv/.installed
	$(BIN)/dpmcl report results/table1/* --against dpmcl --out docs/results.md
	$(BIN)/cog -r -P -I . -p "from benchmarks import evidence" $(PAGES)

docs: .venv/.installed
	$(BIN)/sphinx-build -W --keep-going -q docs docs/_build

.venv/.installed: pyproject.toml
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --no-compile -e '.[dev]'
	-$(BIN)/python -m compileall -q -j 0 .venv/lib src > /dev/null  # on all cores; pip uses one
	touch $@

clean:
	rm -rf .venv
