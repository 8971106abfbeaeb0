# Two commands: `make demo` runs the whole loop on real weights, `make test` the test suite.
PYTHON := .venv/bin/python

.PHONY: demo test setup lint format sanitize clean

demo: setup  ## trace, plan, convert, train, convert back, evaluate, report: on this machine
	$(PYTHON) -m layertracer demo

test: setup lint  ## the test suite
	$(PYTHON) -m pytest $(PYTEST_ARGS)

setup:  ## .venv with pinned packages, and the extension
	@scripts/setup.sh

lint: setup  ## style of Python and C++
	@.venv/bin/ruff check --quiet .
	@.venv/bin/ruff format --quiet --check .
	@find csrc tests/csrc -name '*.cpp' -o -name '*.cu' -o -name '*.h' -o -name '*.cuh' -o -name '*.inc' | xargs -r .venv/bin/clang-format --dry-run --Werror

sanitize:  ## the kernels under AddressSanitizer and UndefinedBehaviorSanitizer
	@scripts/sanitize.sh

format: setup  ## let the formatters mend the style
	.venv/bin/ruff check --quiet --fix .
	.venv/bin/ruff format --quiet .
	find csrc tests/csrc -name '*.cpp' -o -name '*.cu' -o -name '*.h' -o -name '*.cuh' -o -name '*.inc' | xargs -r .venv/bin/clang-format -i

clean:  ## remove what the build and the demo wrote
	rm -rf build demo .pytest_cache .ruff_cache *.egg-info
