"""One measurement: a contender's process, from its job to its answer."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks.job import Job, Measured, Unavailable
from benchmarks.workload import Case, Contender

__all__ = ["run_contender"]

FOLDER = Path(__file__).resolve().parents[1]
"""Where `import benchmarks` finds this package."""


def run_contender(workload: str, case: Case, contender: Contender, seconds: float) -> Measured:
    """Run `contender` on `case` in a fresh process, under its own interpreter, in an empty working directory.

    Raises `Unavailable` with one line where that gives no value. However it ends, its process group is gone then.
    """
    job = Job(workload, {**case.parameters, **contender.parameters}, seconds)
    with (
        tempfile.TemporaryDirectory(prefix="rollout-bench-", ignore_cleanup_errors=True) as empty,
        tempfile.TemporaryFile() as stdout,
        tempfile.TemporaryFile() as stderr,
    ):
        process = subprocess.Popen(
            [_interpreter(contender), "-m", f"benchmarks.contenders.{contender.module}"],
            stdin=subprocess.PIPE,
            stdout=stdout,
            stderr=stderr,
            cwd=empty,
            env=_environ(contender),
            start_new_session=True,  # Ctrl-C is ours, and its children end with it
        )
        try:
            process.communicate(json.dumps(asdict(job)).encode(), timeout=case.timeout_s)
        except subprocess.TimeoutExpired:
            raise Unavailable(f"no answer within {case.timeout_s:g} s") from None
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        return _answer(process.returncode, _text(stdout), _text(stderr))


def _interpreter(contender: Contender) -> str:
    if contender.peer is None:
        return sys.executable
    from benchmarks.peers import interpreter

    python: str = interpreter(contender.peer)
    return python


def _environ(contender: Contender) -> dict[str, str]:
    """With this package importable, in the contender and in its workers, and before whatever else is called so.

    A peer gets nothing else: what is on the user's path is for another interpreter.
    """
    users = os.environ.get("PYTHONPATH") if contender.peer is None else None
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, (str(FOLDER), users)))}


def _text(file: Any) -> str:
    file.seek(0)
    text: str = file.read().decode(errors="replace")
    return text.strip()


def _answer(code: int, stdout: str, stderr: str) -> Measured:
    try:
        reply = json.loads(stdout.splitlines()[-1])
        if "error" not in reply:
            return Measured(float(reply["value"]), reply.get("extra") or {})
    except (IndexError, ValueError, KeyError, TypeError):
        last = stderr.splitlines()[-1] if stderr else "it printed nothing"
        raise Unavailable(f"exit code {code} and no answer: {last}") from None
    raise Unavailable(str(reply["error"]))
