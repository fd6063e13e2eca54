"""Waiting for what blocks, without having to wait for it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from threading import Thread
from typing import Any, TypeVar

__all__ = ["in_thread"]

T = TypeVar("T")


async def in_thread(function: Callable[[], T]) -> T:
    """What `function` returns or raises. Where this is cancelled, its thread is left behind: loading a checkpoint takes
    minutes, and Ctrl-C must not. A daemon, as the pools of asyncio and anyio are joined at exit."""
    loop = asyncio.get_running_loop()
    answer: asyncio.Future[T] = loop.create_future()

    def settle(setter: Callable[[Any], None], value: Any) -> None:
        if not answer.done():  # cancelled meanwhile
            setter(value)

    def run() -> None:
        try:
            outcome: tuple[Callable[[Any], None], Any] = (answer.set_result, function())
        except BaseException as exc:
            outcome = (answer.set_exception, exc)
        with suppress(RuntimeError):  # the loop is closed
            loop.call_soon_threadsafe(settle, *outcome)

    Thread(target=run, name="rollout-loading", daemon=True).start()
    return await answer
