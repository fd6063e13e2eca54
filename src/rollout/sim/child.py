"""What a process just forked does to become a worker: everything between the fork and `serve`."""

from __future__ import annotations

import faulthandler
import io
import os
import signal
import sys
import traceback
from collections.abc import Callable
from contextlib import suppress
from typing import NoReturn

from rollout.sim.descendants import adopt_orphans, die_with_parent

__all__ = ["become_worker"]


def become_worker(serve: Callable[[], None], log: int, let_go: Callable[[], None]) -> NoReturn:
    """Serve in a session and group of its own, with `log` as its standard streams, and exit.

    `let_go` closes what is the forkserver's, `log` included.
    """
    status = 1
    try:
        os.setsid()
        die_with_parent(signal.SIGKILL)
        # What a simulator starts stays below its worker, also in a session of its own: when the worker is gone,
        # the forkserver knows an orphan by being its parent.
        adopt_orphans()
        if hasattr(os, "SCHED_BATCH"):
            # Workers compute: being woken must not take the core from the parent, who feeds the others (a third
            # of the CPU time per message: rollout bench transport).
            os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
        signal.set_wakeup_fd(-1)
        for number in (signal.SIGCHLD, signal.SIGTERM, signal.SIGINT):
            signal.signal(number, signal.SIG_DFL)
        os.dup2(log, 1)
        os.dup2(log, 2)
        # Where a crash or a time-out met it: the record of the episode has the last lines of the log.
        faulthandler.enable(2)
        faulthandler.register(signal.SIGTERM, file=2, chain=True)
        for stream in (sys.stdout, sys.stderr):
            if isinstance(stream, io.TextIOWrapper):
                stream.reconfigure(line_buffering=True)  # a killed process flushes nothing
        let_go()
        serve()
        status = 0
    except SystemExit as exc:
        status = exc.code if isinstance(exc.code, int) else int(exc.code is not None)
    except BaseException:
        traceback.print_exc()
    finally:
        for stream in (sys.stdout, sys.stderr):
            with suppress(Exception):
                stream.flush()
        # No interpreter shutdown: simulators' __del__ and atexit hooks print EGL tracebacks, or hang.
        os._exit(status & 0xFF)
