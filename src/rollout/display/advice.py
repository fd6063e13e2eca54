"""What to do about an error in an episode: the one table of causes that are known."""

from __future__ import annotations

import re
from typing import Final

from rollout.types import EpisodeFailure

__all__ = ["advice"]

# The exception's name as a whole, a part of its message, and the advice, which may quote that part. First match first.
_KNOWN: Final = tuple(
    (re.compile(kind), re.compile(message), told)
    for kind, message, told in (
        (
            r"WorkerDied",
            r"somebody else sent it",
            "a batch system with a memory limit, perhaps, or the simulator itself",
        ),
        (r"WorkerDied", r"SIGKILL", "fewer --workers need less memory"),
        (
            r"WorkerDied",
            r"SIG(SEGV|ABRT|BUS|ILL|FPE)",
            "a crash in native code, often in a graphics driver: try --render cpu",
        ),
        (
            r"WorkerDied",
            r"exited with status",
            "the simulator ended its process: the traceback has its last words",
        ),
        (
            r"WorkerDied",
            r"no process could be made|could not be made",
            "use fewer --workers, or raise `ulimit -u`",
        ),
        (r"WorkerTimeout", r"--[a-z]+-timeout", r"it hangs, or needs more time: raise \g<0>"),
        (r"WorkerTimeout", r"", "it hangs, or needs more time: raise --step-timeout or --reset-timeout"),
        (r".*", r"old Gym API", "register it wrapped in shimmy's GymV21CompatibilityV0"),
        (
            r".*",
            r"lib(EGL|GL|GLX|OSMesa)\b|\b(EGL|OSMesa|GLFW|GLX|OpenGL)\b",
            "`rollout doctor` names the missing library and what installs it",
        ),
        (
            r"ModuleNotFoundError|DependencyNotInstalled",
            r"",
            "install it into the Python environment that rollout runs in",
        ),
        (
            r"EOFError",
            r"reading a line",
            "it asks a question, and nobody answers: settle it before, or with --set",
        ),
        (r".*", r"no frame to film", "give it a render mode that draws, or leave out --video"),
        (r".*", r"[Oo]ut of memory|Cannot allocate memory", "fewer --workers need less memory"),
        (r"MemoryError", r"", "fewer --workers need less memory"),
        (r".*", r"No space left on device", "make room on that disk"),
        (r"WorkerDied", r"killed by", "something in the simulator, or somebody, sent it this signal"),
        (
            r"WorkerDied|ProtocolError",
            r"",
            "does the simulator close or write to descriptors not its own?",
        ),
        (r".*", r"", "raised inside the simulator: mend it there (--workers 0 for a debugger)"),
    )
)


def advice(failure: EpisodeFailure) -> str:
    """One line that says what to do about `failure`: the fix where its cause is known, else where to look."""
    for kind, message, told in _KNOWN:
        match = message.search(failure.message)
        if match is not None and kind.fullmatch(failure.type):
            return match.expand(told)
    raise AssertionError("the last row takes all")
