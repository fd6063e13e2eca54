"""An environment whose module kills the process that imports it, unless the file that `CHAOS_ONCE` names is there."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import chaos_env  # noqa: F401 -- registers the environment

once = Path(os.environ["CHAOS_ONCE"])
if not once.exists():
    once.touch()
    os.kill(os.getpid(), signal.SIGKILL)
