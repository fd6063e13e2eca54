# `just` alone lists these. Everything runs in the environment that the README's first command makes.

bin := if path_exists(".venv/bin") == "true" { justfile_directory() / ".venv/bin/" } else { "" }

_default:
    @just --list

# MT10 with the scripted experts
run *args="metaworld:mt10 --policy expert --episodes 3":
    {{bin}}rollout run {{args}}

# the test suite; `just test tests/engine` for a part of it
test *args:
    {{bin}}python -m pytest {{args}}

# the long tests that `just test` leaves out: every case of parity, long horizons, many seeds; a quarter of an hour
soak *args:
    {{bin}}python -m pytest -m soak {{args}}

# linter, formatter, types and Dockerfiles
check:
    {{bin}}ruff check .
    {{bin}}ruff format --check .
    {{bin}}mypy
    docker/check

# mend what the linter and the formatter can
fix:
    {{bin}}ruff check --fix .
    {{bin}}ruff format .

# how fast evaluation is, beside its peers: `just bench --list`, `just bench transport --quick`
bench *args:
    {{bin}}rollout bench {{args}}

# every LIBERO and Meta-World task against a plain loop, bit for bit; half an hour
parity *args:
    {{bin}}python tests/parity/everything.py {{args}}

# train the example policy and evaluate it
example:
    {{bin}}python examples/train_mt10.py

# build the documentation into site/
docs:
    {{bin}}mkdocs build --strict

# the documentation with live reload
docs-serve:
    {{bin}}mkdocs serve
