"""Simulators imported once, in the process that workers are forked from, instead of in every worker."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import suppress

from rollout.envs.gl import rendering_off
from rollout.envs.registry import load_simulator

__all__ = ["preload_simulators"]


def preload_simulators(families: Sequence[str]) -> None:
    """Call the adapters' `preload`, where they have one, without loading GL.

    Raises nothing: what cannot be imported here is tried again by the worker that needs it, which says what is wrong.
    """
    for family in families:
        with suppress(Exception, SystemExit), rendering_off():
            preload = getattr(load_simulator(family), "preload", None)
            if preload is not None:
                preload()
    for stream in (sys.stdout, sys.stderr):
        with suppress(Exception):
            stream.flush()  # else every worker would print what simulators print when they are imported
