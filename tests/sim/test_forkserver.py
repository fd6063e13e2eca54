"""The forkserver and its parent when there are very many orders, and when one of the two is killed."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
import textwrap
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import anyio
import pytest

import rollout
from rollout.sim.forkserver import Event
from rollout.sim.processes import Forkserver
from rollout.sim.transport import open_pipes

DEADLINE_S = 60


def alive(pid: int) -> bool:
    try:
        return ") Z " not in Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False


async def until(condition: Callable[[], bool]) -> None:
    with anyio.fail_after(DEADLINE_S):
        while not condition():  # noqa: ASYNC110 - by another process
            await anyio.sleep(0.02)


def module(directory: Path, name: str, code: str) -> str:
    (directory / f"{name}.py").write_text(textwrap.dedent(code))
    return name


@pytest.fixture
def many_descriptors() -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(4096, hard), hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


# More than the socket holds.
ORDERS = 400
# Reads no order before the file that it waits for is there, as an import that takes long does.
WAITS = """
    import os, time
    while not os.path.exists({gate!r}):
        time.sleep(0.01)
"""


@pytest.mark.usefixtures("many_descriptors")
def test_more_orders_than_the_socket_holds_are_all_obeyed_in_turn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    gate = tmp_path / "gate"
    waits = module(tmp_path, "waits_for_gate", WAITS.format(gate=str(gate)))
    events: dict[int, list[str]] = {}

    async def main() -> None:
        async with Forkserver(preload=[waits]) as forkserver:
            before, pid = descriptors(), forkserver.pid
            for _ in range(ORDERS):
                ours, theirs = open_pipes()
                told: list[str] = []
                worker = forkserver.fork(theirs, lambda event, told=told: told.append(type(event).__name__))
                events[worker] = told
                forkserver.kill(worker, 0.0)
                ours.close()
                theirs.close()
            assert descriptors() > before  # those that wait
            gate.touch()
            await until(lambda: sum(map(len, events.values())) == 2 * ORDERS)
            assert (descriptors(), forkserver.pid) == (before, pid)

    anyio.run(main)
    assert Counter(map(tuple, events.values())) == {("Forked", "Exited"): ORDERS}


@pytest.mark.usefixtures("many_descriptors")
def test_orders_that_wait_when_the_forkserver_is_killed_are_each_told_of_its_death(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    waits = module(tmp_path, "waits_for_ever", WAITS.format(gate=str(tmp_path / "never")))
    events: list[Event] = []

    async def main() -> None:
        before = descriptors()
        async with Forkserver(preload=[waits]) as forkserver:
            for _ in range(ORDERS):
                ours, theirs = open_pipes()
                forkserver.fork(theirs, events.append)
                ours.close()
                theirs.close()
            os.kill(forkserver.pid, signal.SIGKILL)
            await until(lambda: len(events) == ORDERS)
            assert descriptors() <= before

    anyio.run(main)
    assert {getattr(event, "status", None) for event in events} == {-signal.SIGKILL}


PARENT = """
    import sys
    import anyio
    from rollout.sim.processes import Forkserver

    async def main():
        async with Forkserver(preload=[{preload!r}]):
            await anyio.sleep(300)

    sys.path.insert(0, {path!r})
    anyio.run(main)
"""


def test_a_parent_that_is_killed_takes_a_forkserver_with_it_that_is_importing_still(tmp_path: Path) -> None:
    log = tmp_path / "pid"
    code = f"""
        import os, time
        with open({str(log)!r}, "w") as file:
            print(os.getpid(), file=file)
        time.sleep(300)
    """
    script = textwrap.dedent(
        PARENT.format(preload=module(tmp_path, "hangs_in_import", code), path=str(tmp_path))
    )
    with subprocess.Popen([sys.executable, "-c", script]) as parent:
        try:
            anyio.run(until, lambda: log.exists() and log.read_text().endswith("\n"))
        finally:
            parent.kill()
    forkserver = int(log.read_text())
    anyio.run(until, lambda: not alive(forkserver))


def test_a_forkserver_whose_parent_is_gone_before_it_starts_ends_at_once_whatever_was_ordered() -> None:
    script = """
        import os, socket
        from rollout.sim.forkserver import main
        parent, ours = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        parent.send(b"an order that nobody reads")
        parent.close()
        main(ours.detach(), ["there_is_no_such_module"], [])
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)],
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")


# Two processes in sessions of their own, one of them only forked; then an episode that does not end.
STARTS = """
    import os, subprocess, sys, time
    import gymnasium as gym
    import numpy as np

    SPACE = gym.spaces.Box(-1, 1, (1,), np.float32)

    class Starts(gym.Env):
        observation_space = action_space = SPACE

        def reset(self, *, seed=None, options=None):
            sleep = [sys.executable, "-S", "-c", "import time; time.sleep(300)"]
            log(subprocess.Popen(sleep, start_new_session=True).pid)
            if os.fork() == 0:
                os.setsid()
                log(os.getpid())
                while True:
                    time.sleep(300)
            time.sleep(300)

    def log(pid):
        with open({log!r}, "a") as file:
            file.write(f"{{pid}}\\n")

    gym.register("starts/Starts-v0", Starts, max_episode_steps=9)
"""


def test_what_simulators_started_in_sessions_of_their_own_dies_with_the_forkserver(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    log = tmp_path / "log"
    starts = module(tmp_path, "starts_processes", STARTS.format(log=str(log)))

    def logged() -> list[int]:
        return [int(line) for line in log.read_text().split()] if log.exists() else []

    async def main() -> None:
        async with (
            rollout.Engine(f"gym:{starts}:starts/Starts-v0", episodes=1, workers=1) as engine,
            anyio.create_task_group() as tasks,
        ):
            tasks.start_soon(engine.evaluate, "zero")
            await until(lambda: len(logged()) == 2)
            first = logged()
            assert all(map(alive, first))
            assert engine._forkserver is not None
            os.kill(engine._forkserver.pid, signal.SIGKILL)
            await until(lambda: not any(map(alive, first)))
            await until(lambda: len(logged()) == 4)  # the episode again, with another forkserver
            os.kill(engine._forkserver.pid, signal.SIGKILL)
            tasks.cancel_scope.cancel()  # also one whose death nobody has seen before the engine is closed

    anyio.run(main)
    anyio.run(until, lambda: not any(map(alive, logged())))
