"""Every error that this package raises on purpose."""

from __future__ import annotations


class RolloutError(Exception):
    """Root of all errors raised by `rollout`."""


class UsageError(RolloutError):
    """Raised when the user asked for something that cannot be run: one line that says what to do (exit code 2)."""


class ProtocolError(RolloutError):
    """Raised when bytes on a connection are not a message of the protocol; the connection is unusable after it."""


class SimulatorError(RolloutError):
    """Raised in the parent when code inside a simulator raised; carries the exception as data, never as a pickle."""

    def __init__(self, type_name: str, message: str, traceback: str, *, building: bool = False) -> None:
        super().__init__(f"{type_name}: {message}" if message else type_name)
        self.type_name = type_name
        self.message = message
        self.traceback = traceback
        self.building = (
            building  # raised while the simulator was being built, so every episode of the task would meet it
        )


class WorkerDied(RolloutError):
    """Raised when a worker process ended although it was still needed."""

    log_tail = ""  # what it printed last
    unmade = False  # the system had no process or descriptor left for it


class WorkerTimeout(WorkerDied):
    """Raised when a worker exceeded a time limit and was killed for it."""


class PolicyError(RolloutError):
    """Raised when the policy failed, or returned something that is not an action chunk; it stops the run."""


class ResultsError(RolloutError):
    """Raised when results cannot be written or an existing results directory does not fit this run."""
