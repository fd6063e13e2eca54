"""The command that runs what was tuned."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from typing import Final

from rollout.tune.recommend import Choice

__all__ = ["run_command"]

OWN: Final = {"--budget": 1, "--json": 0}
"""Options of `rollout tune` that `rollout run` does not have, and how many words follow each."""


def run_command(arguments: Sequence[str], choice: Choice) -> str:
    """`rollout run` with the `arguments` that `rollout tune` was given and with `choice`, quoted for a shell."""
    words = list(arguments)
    end = words.index("--") if "--" in words else len(words)
    kept, at = [], 0
    while at < end:
        name, equals, _ = words[at].partition("=")
        if name in OWN:
            at += 1 if equals else 1 + OWN[name]
        else:
            kept.append(words[at])
            at += 1
    chosen = ["--workers", str(choice.workers), "--max-batch", str(choice.max_batch)]
    return shlex.join(["rollout", "run", *kept, *chosen, *words[end:]])
