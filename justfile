# Short names for what CONTRIBUTING.md explains; `just --list` shows them.

# make the workspace's environment from the lock
setup:
    uv sync --frozen --all-extras

# everything that must pass before a merge
test:
    uv run --frozen nox -s tests

# the suites of some members, each in its own environment: just unit weightwire-torch -k packs
unit *arguments:
    uv run --frozen nox -s unit -- {{arguments}}

# one real vLLM server: just real 0.32.0 --quick
real version *options:
    uv run --frozen nox -s real -- vllm=={{version}} {{options}}

# style, layers and the size budget
lint:
    uv run --frozen nox -s lint

# mend what can be mended by itself
fix:
    uv run --frozen ruff check --fix
    uv run --frozen ruff format

# strict types
types:
    uv run --frozen nox -s types

# what the size budget says of each member
budget:
    uv run --frozen python tools/check_budget.py

# every member's wheel, into dist/
wheels:
    uv run --frozen nox -s wheels

# the benchmark scripts: just bench startup
bench *names:
    uv run --frozen nox -s bench -- {{names}}

# train a small model and push it into a live engine
demo *options:
    uv run --frozen weightwire demo {{options}}

# remove what the sessions made
clean:
    rm -rf .nox dist .mypy_cache .ruff_cache .pytest_cache .hypothesis
