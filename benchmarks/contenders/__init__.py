"""What is measured: one module a contender, each run as `python -m` in a process of its own (see `benchmarks.job`)."""
