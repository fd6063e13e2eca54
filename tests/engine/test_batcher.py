"""When requests become a batch, and what becomes of a batch."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from typing import Any

import anyio
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rollout.display.base import Counters
from rollout.engine.batch_queue import BatchQueue
from rollout.engine.batcher import Batcher
from rollout.errors import PolicyError
from rollout.policies.base import Request
from rollout.types import EpisodeSpec

SPEC = EpisodeSpec(suite="s", task="t", task_id=0, episode=7, seed=0, horizon=1)


def request(step: int) -> Request:
    return Request(SPEC, None, 0, step, None, {})  # type: ignore[arg-type]  # the batcher never looks at the task


def test_a_greedy_queue_gives_what_waits_at_once() -> None:
    queue: BatchQueue[int] = BatchQueue(max_batch=4)
    for item in range(6):
        queue.put(item, now=0.0)
    assert queue.take(0.0, may_come=99) == [0, 1, 2, 3]
    assert queue.take(0.0, may_come=99) == [4, 5]
    assert queue.take(0.0, may_come=99) == []


def test_a_waiting_queue_gives_a_batch_when_it_is_full() -> None:
    queue: BatchQueue[int] = BatchQueue(max_batch=2, max_wait_s=10.0)
    queue.put(1, now=0.0)
    assert queue.take(0.0, may_come=5) == []
    queue.put(2, now=0.0)
    assert queue.take(0.0, may_come=5) == [1, 2]


def test_a_waiting_queue_gives_a_batch_when_its_oldest_request_has_waited_long_enough() -> None:
    queue: BatchQueue[int] = BatchQueue(max_batch=9, max_wait_s=2.0)
    queue.put(1, now=5.0)
    queue.put(2, now=6.0)
    assert queue.due_in(6.0, may_come=3) == pytest.approx(1.0)
    assert queue.take(6.9, may_come=3) == []
    assert queue.take(7.0, may_come=3) == [1, 2]


def test_a_batch_never_waits_for_requests_that_cannot_come() -> None:
    queue: BatchQueue[int] = BatchQueue(max_batch=9, max_wait_s=1000.0)
    queue.put(1, now=0.0)
    assert queue.take(0.0, may_come=1) == []
    assert queue.take(0.0, may_come=0) == [1]


@given(st.lists(st.one_of(st.none(), st.integers(0, 9)), max_size=50), st.integers(1, 4), st.floats(0, 3))
def test_requests_leave_in_the_order_they_came_and_none_is_lost(
    events: list[int | None], max_batch: int, max_wait_s: float
) -> None:
    queue: BatchQueue[int] = BatchQueue(max_batch, max_wait_s)
    put: list[int] = []
    taken: list[int] = []
    for now, event in enumerate(events):
        if event is None:
            batch = queue.take(float(now), may_come=1)
            assert len(batch) <= max_batch
            taken += batch
        else:
            put.append(event)
            queue.put(event, float(now))
    while batch := queue.take(float("inf"), may_come=0):
        taken += batch
    assert taken == put


async def answers(batcher: Batcher, count: int) -> list[Any]:
    results: list[Any] = [None] * count

    async def ask(step: int) -> None:
        results[step] = await batcher.decide(request(step))

    with anyio.fail_after(10):
        async with anyio.create_task_group() as tasks:
            for step in range(count):
                tasks.start_soon(ask, step)
    return results


@pytest.mark.parametrize(("inline", "sizes"), [(False, [4, 4, 2]), (True, [1] * 10)])
def test_each_request_gets_its_own_answer_and_requests_at_once_share_a_batch(
    inline: bool, sizes: list[int]
) -> None:
    batches: list[int] = []

    def infer(requests: Sequence[Request]) -> Sequence[int]:
        batches.append(len(requests))
        return [r.step * 10 for r in requests]

    async def main() -> tuple[list[Any], Counters]:
        counters = Counters()
        with Batcher(infer, counters, max_batch=4, inline=inline) as batcher:
            return await answers(batcher, 10), counters

    results, counters = anyio.run(main)
    assert results == [step * 10 for step in range(10)]
    assert batches == sizes
    assert (counters.decisions, counters.batches) == (10, len(sizes))


@pytest.mark.parametrize(("inline", "elsewhere"), [(False, True), (True, False)])
def test_the_policy_runs_in_its_own_thread_unless_it_is_debugged(inline: bool, elsewhere: bool) -> None:
    threads: set[int] = set()

    def infer(requests: Sequence[Request]) -> Sequence[None]:
        threads.add(threading.get_ident())
        return [None] * len(requests)

    async def main() -> None:
        with Batcher(infer, Counters(), max_batch=1, inline=inline) as batcher:
            await answers(batcher, 5)

    anyio.run(main)
    assert len(threads) == 1
    assert (threading.get_ident() not in threads) is elsewhere


def test_while_a_forward_runs_the_next_batch_gathers() -> None:
    gate = threading.Event()
    batches: list[int] = []

    def infer(requests: Sequence[Request]) -> Sequence[None]:
        batches.append(len(requests))
        assert gate.wait(10)
        return [None] * len(requests)

    async def main() -> None:
        with Batcher(infer, Counters(), max_batch=64) as batcher, anyio.fail_after(10):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(batcher.decide, request(0))
                await anyio.wait_all_tasks_blocked()  # the first forward has begun, with one request
                for step in range(1, 6):
                    tasks.start_soon(batcher.decide, request(step))
                await anyio.wait_all_tasks_blocked()
                gate.set()

    anyio.run(main)
    assert batches == [1, 5]


@pytest.mark.parametrize("inline", [False, True])
def test_a_policy_that_raises_is_blamed_with_the_episode_named(inline: bool) -> None:
    def infer(requests: Sequence[Request]) -> Sequence[None]:
        raise ZeroDivisionError("oh")

    async def main() -> None:
        with Batcher(infer, Counters(), max_batch=1, inline=inline) as batcher, anyio.fail_after(10):
            await batcher.decide(request(0))

    with pytest.raises(PolicyError, match=r"ZeroDivisionError: oh.*t episode 7") as caught:
        anyio.run(main)
    assert isinstance(caught.value.__cause__, ZeroDivisionError)


@pytest.mark.parametrize("inline", [False, True])
def test_too_few_answers_are_the_policys_fault(inline: bool) -> None:
    async def main() -> None:
        with (
            Batcher(lambda requests: [], Counters(), max_batch=1, inline=inline) as batcher,
            anyio.fail_after(10),
        ):
            await batcher.decide(request(0))

    with pytest.raises(PolicyError, match="0 action chunks for 1 request"):
        anyio.run(main)


class OutOfMemoryError(RuntimeError):
    """Named as torch's."""


@pytest.mark.parametrize(
    "error",
    [
        OutOfMemoryError("CUDA out of memory"),
        RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory"),
        MemoryError(),
    ],
)
def test_a_batch_that_does_not_fit_into_memory_is_halved_until_it_does_and_the_run_goes_on(
    error: Exception,
) -> None:
    sizes: list[int] = []
    notes: list[str] = []

    def infer(requests: Sequence[Request]) -> Sequence[int]:
        sizes.append(len(requests))
        if len(requests) > 3:
            raise error
        return [r.step for r in requests]

    async def main() -> Counters:
        counters = Counters()
        with Batcher(infer, counters, max_batch=16, note=notes.append) as batcher:
            assert await answers(batcher, 16) == list(range(16))
            assert sizes == [16, 8, 4, *[2] * 8]
            sizes.clear()
            assert await answers(batcher, 5) == list(range(5))
        return counters

    counters = anyio.run(main)
    assert sizes == [2, 2, 1]  # it does not try again what did not fit
    assert notes == ["the policy ran out of memory: from now on at most 2 decisions a batch"]
    assert counters.batch_limit == 2
    assert counters.decisions == 21
    assert set(counters.latencies.counts) == {1, 2}


@pytest.mark.parametrize("kind", [np.asarray, torch.tensor])
def test_a_policy_that_returns_an_array_of_all_chunks_may_run_out_of_memory_too(kind: Any) -> None:
    def infer(requests: Sequence[Request]) -> Any:
        if len(requests) > 2:
            raise OutOfMemoryError
        return kind([[[float(r.step)]] for r in requests])

    async def main() -> list[Any]:
        with Batcher(infer, Counters(), max_batch=8) as batcher:
            return await answers(batcher, 5)

    assert [chunk.tolist() for chunk in anyio.run(main)] == [[[float(step)]] for step in range(5)]


@pytest.mark.parametrize("kind", [np.asarray, torch.from_numpy, lambda buffer: [buffer]])
def test_a_policy_may_write_the_next_chunks_into_the_same_buffer(kind: Any) -> None:
    buffer = np.zeros(1)

    def infer(requests: Sequence[Request]) -> Any:
        buffer[:] = requests[0].step
        return [kind(buffer)]

    async def main() -> list[Any]:
        with Batcher(infer, Counters(), max_batch=1) as batcher:
            return await answers(batcher, 50)

    assert [float(np.ravel(chunk)[0]) for chunk in anyio.run(main)] == list(range(50))


def test_a_policy_that_returns_no_sequence_of_chunks_is_blamed_and_nothing_hangs() -> None:
    async def main() -> None:
        with Batcher(lambda requests: None, Counters(), max_batch=4) as batcher, anyio.fail_after(10):  # type: ignore[arg-type,return-value]
            await batcher.decide(request(0))

    with pytest.raises(PolicyError, match="TypeError"):
        anyio.run(main)


def test_after_a_failure_no_further_forward_begins() -> None:
    began: list[int] = []

    def infer(requests: Sequence[Request]) -> Sequence[None]:
        began.append(len(requests))
        raise ZeroDivisionError

    async def main() -> None:
        with Batcher(infer, Counters(), max_batch=1) as batcher:
            await answers(batcher, 5)

    with pytest.raises(ExceptionGroup):
        anyio.run(main)
    assert began == [1]


def test_in_a_server_those_that_wait_are_answered_though_the_policy_raised_for_another() -> None:
    def infer(requests: Sequence[Request]) -> Sequence[int]:
        return [1 // request.step for request in requests]

    async def main() -> list[Any]:
        answered: list[Any] = []

        async def ask(step: int) -> None:
            try:
                answered.append(await batcher.decide(request(step)))
            except PolicyError:
                answered.append("failed")

        with Batcher(infer, Counters(), max_batch=1, goes_on=True) as batcher, anyio.fail_after(10):
            async with anyio.create_task_group() as tasks:
                for step in (0, 1, 0, 1):
                    tasks.start_soon(ask, step)
        return answered

    assert anyio.run(main) == ["failed", 1, "failed", 1]


def test_a_single_decision_that_does_not_fit_ends_the_run() -> None:
    def infer(requests: Sequence[Request]) -> Sequence[int]:
        raise OutOfMemoryError("CUDA out of memory")

    async def main() -> None:
        with Batcher(infer, Counters(), max_batch=4) as batcher:
            await answers(batcher, 4)

    with pytest.raises(ExceptionGroup) as caught:
        anyio.run(main)
    assert caught.group_contains(PolicyError, match="OutOfMemoryError: CUDA out of memory")


def test_several_calls_run_at_once_where_the_policy_allows_it() -> None:
    together = threading.Barrier(3)

    def infer(requests: Sequence[Request]) -> Sequence[int]:
        together.wait(10)  # passes only if three calls are in here at the same time
        time.sleep(0.05)
        return [r.step for r in requests]

    async def main() -> Counters:
        counters = Counters()
        with Batcher(infer, counters, max_batch=1, calls=3) as batcher:
            assert await answers(batcher, 6) == list(range(6))
        return counters

    counters = anyio.run(main)
    assert counters.latencies.counts == {1: 6}
    # Time that three calls share counts once.
    assert 0.05 < counters.policy_busy_s < sum(counters.latencies.seconds[1]) / 1.5


def test_a_batch_does_not_wait_for_an_episode_that_has_ended() -> None:
    async def main() -> None:
        with Batcher(lambda requests: [1], Counters(), max_batch=2, max_wait_s=3600) as batcher:
            batcher.active = 2
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(batcher.decide, request(0))
                await anyio.wait_all_tasks_blocked()
                batcher.active -= 1

    async def limited() -> None:
        with anyio.fail_after(10):
            await main()

    anyio.run(limited)


def test_the_policys_latency_is_known_by_batch_size() -> None:
    async def main() -> Counters:
        counters = Counters()
        with Batcher(lambda requests: requests, counters, max_batch=4) as batcher:
            await answers(batcher, 10)
        return counters

    counters = anyio.run(main)
    assert counters.latencies.counts == {4: 2, 2: 1}
    assert [len(seconds) for seconds in counters.latencies.seconds.values()] == [2, 1]
    assert counters.policy_busy_s > 0
