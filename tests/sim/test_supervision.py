"""What becomes of workers, and of what they started, when one of them dies, hangs, leaks or cannot be made."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anyio
import pytest

import rollout
from rollout.types import EpisodeResult

MAKER, OTHER = "gym:troublemakers:trouble/Maker-v0", "gym:troublemakers:trouble/Other-v0"
HERE = Path(__file__).parent
DEADLINE_S = 30
ENVIRON = os.environ | {"PYTHONPATH": os.pathsep.join([str(HERE), os.environ.get("PYTHONPATH", "")])}


class Told:
    """A display that keeps what was said."""

    interval_s = 0.05

    def __init__(self) -> None:
        self.notes: list[str] = []

    def start(self, *_: Any) -> None: ...

    def refresh(self) -> None: ...

    def episode(self, result: EpisodeResult) -> None: ...

    def note(self, message: str) -> None:
        self.notes.append(message)

    def finish(self) -> None: ...


def alive(pid: int) -> bool:
    try:
        return ") Z " not in Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False


def logged(log: Path) -> list[int]:
    return [int(line) for line in log.read_text().split()]


def begun(log: Path) -> bool:
    """Whether two episodes are under way."""
    return log.exists() and len(logged(log)) >= 2


def gone(pids: list[int]) -> bool:
    deadline = time.monotonic() + DEADLINE_S
    while any(map(alive, pids)):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


def test_what_a_simulator_started_dies_with_its_worker_also_in_a_session_of_its_own(tmp_path: Path) -> None:
    log = tmp_path / "log"

    async def main() -> list[bool]:
        options = {"how": "orphans", "log": str(log)}
        async with rollout.Engine(MAKER, episodes=4, workers=2, options=options, recycle_after=1) as engine:
            report = await engine.evaluate("zero")
            assert report.success_rate == 1.0
            # Each worker but the last ones is gone, though the forkserver lives.
            await engine.evaluate("zero")
            early = logged(log)[:6]
            return [alive(pid) for pid in early]

    assert not any(anyio.run(main)) or gone(logged(log)[:6])
    assert len(set(logged(log))) >= 3 * 8  # two orphans and a worker for every episode
    assert gone(logged(log))


def killed_in_a_step(engine: rollout.Engine, log: Path, victim: Callable[[], int]) -> Any:
    """Evaluate, and kill `victim` once an episode of every worker has begun."""

    async def main() -> Any:
        async def kill() -> None:
            while not begun(log):  # noqa: ASYNC110 - by another process
                await anyio.sleep(0.02)
            os.kill(victim(), signal.SIGKILL)

        async with engine, anyio.create_task_group() as tasks:
            tasks.start_soon(kill)
            return await engine.evaluate("zero", display=told)

    told = Told()
    return anyio.run(main), told.notes


def test_a_killed_worker_is_noticed_at_once_and_its_episode_measured_by_another(tmp_path: Path) -> None:
    log = tmp_path / "log"
    engine = rollout.Engine(MAKER, episodes=2, workers=2, options={"how": "slow", "log": str(log)})
    report, notes = killed_in_a_step(engine, log, lambda: engine.worker_pids[0])
    assert [e.outcome for e in report.episodes] == ["success", "success"]
    assert sorted(e.attempts for e in report.episodes) == [1, 2]
    (note,) = notes
    assert "killed by SIGKILL (out of memory?" in note
    # Three steps of 0.7 s, once more: a death that only a time limit noticed would have taken a minute.
    assert report.summary.timing.wall_s < 2 * 2.1 + 10


def test_the_run_goes_on_when_the_forkserver_itself_is_killed(tmp_path: Path) -> None:
    log = tmp_path / "log"
    engine = rollout.Engine(MAKER, episodes=3, workers=2, options={"how": "slow", "log": str(log)})
    report, notes = killed_in_a_step(engine, log, lambda: engine._forkserver.pid)
    assert [e.outcome for e in report.episodes] == ["success"] * 3
    assert sum(e.attempts for e in report.episodes) == 5  # both that were under way, again
    assert len(notes) == 2
    assert gone(logged(log))


def test_many_workers_that_die_at_the_same_moment_are_each_reported(tmp_path: Path) -> None:
    async def main() -> Any:
        engine = rollout.Engine(
            MAKER, episodes=16, workers=8, options={"how": "nothing"}, retries=100, reset_timeout_s=60
        )
        async with engine, anyio.create_task_group() as tasks:
            await engine.evaluate("zero")

            async def kill() -> None:
                for _ in range(10):
                    for pid in engine.worker_pids:
                        with_nobody_there(pid)
                    await anyio.sleep(0.05)

            tasks.start_soon(kill)
            return await engine.evaluate("zero", episodes=400)

    def with_nobody_there(pid: int) -> None:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            return

    report = anyio.run(main)
    assert report.summary.overall.n_success == 400


def test_a_step_that_hangs_is_recorded_with_the_line_where_it_hung() -> None:
    options = {"how": "endless"}
    report = rollout.run("zero", MAKER, episodes=2, workers=1, options=options, retries=0, step_timeout_s=1.0)
    assert [e.outcome for e in report.episodes] == ["success", "error"]
    error = report.episodes[1].error
    assert error is not None
    assert (error.type, error.message) == (
        "WorkerTimeout",
        "a step did not end within 1 s (--step-timeout 1): worker 0 was killed",
    )
    assert 'troublemakers.py", line' in error.traceback
    assert "in step" in error.traceback


@pytest.mark.parametrize(
    ("how", "kind", "says"),
    [
        ("refuses", "RuntimeError", "the licence server is not there"),
        ("dies", "WorkerDied", "exited with status 3"),
    ],
)
def test_a_fault_common_to_all_workers_ends_the_run_early_with_one_message(
    how: str, kind: str, says: str
) -> None:
    told = Told()
    report = rollout.run("zero", [MAKER, OTHER], episodes=200, workers=2, options={"how": how}, display=told)
    assert report.summary.overall.n_error == 400
    assert len(report.episodes) == 400
    assert {e.error.type for e in report.episodes if e.error} == {kind}
    (end,) = [note for note in told.notes if "cannot be built" in note]
    assert says in end
    assert sum(e.attempts for e in report.episodes) < 20
    # The traceback, or what the worker printed, is kept once a task and not four hundred times.
    assert sum(bool(e.error.traceback) for e in report.episodes if e.error) <= 6


@pytest.mark.parametrize("workers", [1, 2, 6])
def test_resets_that_kill_their_worker_cost_their_own_episodes_alone(workers: int) -> None:
    options = {"how": "reset dies"}
    report = rollout.run("zero", MAKER, episodes=12, seed=1, workers=workers, options=options, retries=1)
    assert [e.outcome for e in report.episodes] == ["error", "success"] * 6
    assert {e.attempts for e in report.episodes if e.error} == {2}


@pytest.mark.parametrize("how", ["cancels", "exits", "stops", "groups"])
@pytest.mark.parametrize("workers", [0, 1])
def test_what_is_no_ordinary_exception_is_its_episodes_error_all_the_same(how: str, workers: int) -> None:
    report = rollout.run("zero", MAKER, episodes=4, workers=workers, options={"how": how}, retries=0)
    assert [e.outcome for e in report.episodes] == ["success", "error"] * 2


@pytest.mark.parametrize("how", ["close hangs", "close raises"])
def test_a_simulator_that_cannot_be_closed_costs_the_next_task_nothing(how: str) -> None:
    told = Told()
    report = rollout.run("zero", [MAKER, OTHER], episodes=3, workers=1, options={"how": how}, display=told)
    assert [e.outcome for e in report.episodes] == ["success"] * 6
    assert {e.attempts for e in report.episodes} == {1}
    assert not told.notes


def test_a_worker_is_replaced_after_as_many_episodes_as_asked(tmp_path: Path) -> None:
    log = tmp_path / "log"
    rollout.run("zero", MAKER, episodes=7, workers=1, options={"log": str(log)}, recycle_after=3)
    pids = logged(log)
    assert [pids.count(pid) for pid in dict.fromkeys(pids)] == [3, 3, 1]


def test_a_worker_that_leaks_memory_is_replaced_and_the_user_told_once() -> None:
    told = Told()
    peak = 0

    class Watched:
        spec = rollout.PolicySpec(inline=True)

        def infer(self, requests: Any) -> Any:
            nonlocal peak
            for pid in engine.worker_pids:
                pages = Path(f"/proc/{pid}/statm").read_text().split()[1]
                peak = max(peak, int(pages) * os.sysconf("SC_PAGE_SIZE"))
            return [[[0.0, 0.0]] for _ in requests]

    engine = rollout.Engine("gym:badenvs:bad/LeaksMemory-v0", episodes=100, workers=1, horizon=5)

    async def main() -> rollout.Report:
        async with engine:
            return await engine.evaluate(Watched(), display=told)

    report = anyio.run(main)
    assert report.summary.overall.n_error == 0
    assert peak < 500 << 20  # 100 episodes leak 800 MiB
    (note,) = told.notes
    assert "leak memory?" in note


def test_a_parent_that_was_stopped_kills_nobody_for_the_time_that_it_slept(tmp_path: Path) -> None:
    script = (
        "import rollout\n"
        f"report = rollout.run('zero', {MAKER!r}, episodes=2, workers=2, retries=0, step_timeout_s=2.0,"
        f" options={{'how': 'slow', 'log': {str(tmp_path / 'log')!r}}})\n"
        "print(report.success_rate, [e.attempts for e in report.episodes])\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", script], env=ENVIRON, stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            deadline = time.monotonic() + DEADLINE_S
            while not begun(tmp_path / "log"):
                assert time.monotonic() < deadline
                time.sleep(0.02)
            process.send_signal(signal.SIGSTOP)
            time.sleep(3)  # longer than a step may take
            process.send_signal(signal.SIGCONT)
            assert process.communicate(timeout=60)[0] == "1.0 [1, 1]\n"
        finally:
            process.kill()


def test_an_engine_started_without_standard_streams_works(tmp_path: Path) -> None:
    command = (
        f"{sys.executable} -c 'from rollout.cli import main; main()' run {MAKER} --policy zero --episodes 2 "
        f"--out {tmp_path / 'run'} <&- >&- 2>&-"
    )
    done = subprocess.run(["bash", "-c", command], env=ENVIRON, timeout=60, check=False)
    assert done.returncode == 0
    assert (tmp_path / "run" / "summary.json").exists()


def test_where_no_descriptor_is_left_for_a_worker_the_others_do_its_work(tmp_path: Path) -> None:
    script = (
        "import anyio, os, resource, rollout, signal\n"
        "async def main():\n"
        f"    async with rollout.Engine({MAKER!r}, episodes=60, workers=3, options={{'how': 'quick'}}) as engine:\n"
        "        await engine.evaluate('zero')\n"
        "        used = len(os.listdir('/proc/self/fd'))\n"
        "        resource.setrlimit(resource.RLIMIT_NOFILE, (used - 2, used - 2))\n"
        "        os.kill(engine.worker_pids[0], signal.SIGKILL)\n"
        "        report = await engine.evaluate('zero')\n"
        "        print(report.success_rate, len(report.episodes), *report.summary.warnings)\n"
        "anyio.run(main)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], env=ENVIRON, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.stdout.startswith("1.0 60 workers are fewer than asked for"), (done.stdout, done.stderr)


def test_an_engine_that_was_interrupted_or_lost_its_workers_starts_afresh(tmp_path: Path) -> None:
    async def main() -> list[rollout.Report]:
        log = tmp_path / "log"
        options = {"how": "slow", "log": str(log)}
        async with rollout.Engine(MAKER, episodes=3, workers=3, options=options, retries=0) as engine:
            with anyio.move_on_after(DEADLINE_S):
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(engine.evaluate, "zero")
                    while not begun(log):  # noqa: ASYNC110 - by another process
                        await anyio.sleep(0.02)
                    tasks.cancel_scope.cancel()
            after_cancelling = await engine.evaluate("zero")
            for pid in engine.worker_pids:
                os.kill(pid, signal.SIGKILL)
            await anyio.sleep(0.2)
            return [after_cancelling, await engine.evaluate("zero")]

    for report in anyio.run(main):
        assert [e.outcome for e in report.episodes] == ["success"] * 3
        assert {e.attempts for e in report.episodes} == {1}


def test_where_no_descriptor_is_left_for_any_worker_the_run_ends_and_says_so() -> None:
    script = (
        "import anyio, os, resource, rollout\nfrom rollout.errors import UsageError\n"
        "async def main():\n"
        f"    async with rollout.Engine({MAKER!r}, episodes=2, workers=1, recycle_after=1) as engine:\n"
        "        assert (await engine.evaluate('zero')).success_rate == 1.0\n"
        "        used = len(os.listdir('/proc/self/fd'))\n"
        "        resource.setrlimit(resource.RLIMIT_NOFILE, (used, used))\n"
        "        try:\n"
        "            await engine.evaluate('zero')\n"
        "        except UsageError as exc:\n"
        "            print(exc)\n"
        "anyio.run(main)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script],
        env=ENVIRON,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    said = "worker 0 could not be made: Too many open files; what was recorded is kept: make room"
    assert done.stdout.startswith(said), done.stderr
