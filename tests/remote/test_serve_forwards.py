"""Batches of several forms whose policy runs out of memory, without any network."""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np
import pytest
from openpi_peers import request
from served_policies import Plain, Roomy

from rollout.engine.forward import Forward
from rollout.serve.forwards import Alike


def requests(*lengths: int) -> list[Any]:
    return [
        request({"observation.state": np.full(length, float(index))}) for index, length in enumerate(lengths)
    ]


def test_a_form_that_does_not_fit_into_memory_is_asked_for_in_smaller_forwards() -> None:
    policy, notes = Roomy(2), list[str]()
    forward = Alike(policy.infer, notes.append)
    for _ in range(2):
        found = forward(requests(1, 2, 1, 1, 2, 1))
        assert [each.error for each in found] == [None] * 6
        assert [each.chunk[0, 0] for each in found] == list(range(6))
        assert [each.batch for each in found] == [2] * 6
    assert policy.sizes == [2, 2, 2] * 2  # nobody is asked for twice
    assert notes == ["the policy ran out of memory: from now on at most 2 decisions of one form"]


def test_a_batch_of_one_form_is_left_to_the_batcher() -> None:
    policy = Roomy(2)
    with pytest.raises(MemoryError):
        Alike(policy.infer)(requests(1, 1, 1))
    call = Forward(Alike(policy.infer))(requests(1, 1, 1, 1))
    assert (call.fits, call.error, len(call.chunks)) == (2, None, 4)


def test_one_whose_policy_gives_up_fails_alone() -> None:
    def infer(requests: Any) -> list[Any]:
        if requests[0].observation["observation.state"].size > 1:
            raise asyncio.CancelledError("gone")
        return [1.0] * len(requests)

    good, bad = Alike(infer)(requests(1, 2))
    assert (good.chunk, good.error) == (1.0, None)
    assert isinstance(bad.error, asyncio.CancelledError)


def test_one_that_fits_in_no_way_fails_alone() -> None:
    class Narrow(Plain):
        def infer(self, requests: Any) -> Any:
            if requests[0].observation["observation.state"].size > 1:
                raise MemoryError("no room")
            return super().infer(requests)

    found = Alike(Narrow().infer)(requests(1, 2, 1))
    assert [type(each.error) for each in found] == [type(None), MemoryError, type(None)]
