"""Large arrays lie in shared memory: what was read stays as it was, and no message can lead astray."""

from __future__ import annotations

import errno
import gc
import os
import resource
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, ClassVar

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from hypothesis import given
from hypothesis import strategies as st

import rollout
from rollout import PolicySpec
from rollout.errors import ProtocolError
from rollout.sim.protocol import Shared
from rollout.sim.slab import MOST_SLOTS, SlabReader, SlabWriter, open_slab
from rollout.values import SMALL

SIZE = (48, 64, 3)  # 9 KB: more than is sent


class Pages(gymnasium.Env[Any, Any]):
    """Its picture is one buffer, filled with the number of the step and then the seed."""

    def __init__(self) -> None:
        self.observation_space = spaces.Dict(
            pixels=spaces.Box(0, 255, SIZE, np.uint8), agent_pos=spaces.Box(0, 1e9, (1,), np.float32)
        )
        self.action_space = spaces.Box(-1, 1, (1,), np.float32)
        self._picture = np.zeros(SIZE, np.uint8)

    def _seen(self) -> dict[str, Any]:
        self._picture[...] = (self._seed + self._step) % 251
        return {"pixels": self._picture, "agent_pos": np.float32([self._step])}

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self._seed, self._step = seed or 0, 0
        return self._seen(), {}

    def step(self, action: Any) -> Any:
        self._step += 1
        return self._seen(), 0.0, False, False, {}


class Keeps:
    """Keeps the observations of the last `most` decisions, and looks at all of them at each."""

    def __init__(self, most: int, spec: PolicySpec) -> None:
        self.spec, self._most = spec, most
        self.kept: list[tuple[int, np.ndarray]] = []
        self.checked = 0

    def infer(self, requests: Sequence[Any]) -> Sequence[Any]:
        for request in requests:
            value = (request.episode.seed + request.step) % 251
            picture = request.observation["observation.images.image"]
            self.kept.append((value, picture[-1] if self.spec.n_obs_steps > 1 else picture))
        self.kept = self.kept[-self._most :]
        for value, picture in self.kept:
            assert picture.shape == SIZE
            assert (picture == value).all()
            self.checked += 1
        return [np.zeros((self.spec.chunk_size, 1), np.float32) for _ in requests]


@pytest.mark.parametrize("most", [1, 4, 1000])  # the last is more than there are slots
@pytest.mark.parametrize(
    "spec",
    [PolicySpec(), PolicySpec(inline=True), PolicySpec(n_obs_steps=3, chunk_size=4, n_action_steps=4)],
    ids=["thread", "inline", "history"],
)
def test_who_keeps_an_observation_keeps_it_unchanged(most: int, spec: PolicySpec) -> None:
    policy = Keeps(most, spec)
    report = rollout.run(policy, Pages, horizon=40, episodes=4, workers=2)
    assert [episode.outcome for episode in report.episodes] == ["unknown"] * 4
    assert policy.checked >= 40


class Drawn(Pages):
    """Films itself into the buffer that it returns as its observation."""

    metadata: ClassVar[dict[str, Any]] = {"render_modes": ["rgb_array"]}
    render_mode = "rgb_array"

    def render(self) -> Any:
        self._picture[...] = 255
        return self._picture


@pytest.mark.parametrize("n_obs_steps", [1, 2])
def test_a_film_changes_no_observation(tmp_path: Path, n_obs_steps: int) -> None:
    pytest.importorskip("av")
    policy = Keeps(4, PolicySpec(n_obs_steps=n_obs_steps, chunk_size=3, n_action_steps=3))
    report = rollout.run(
        policy, Drawn, horizon=9, episodes=2, workers=1, video="all", out=str(tmp_path / "run")
    )
    assert report.summary.overall.n_error == 0
    assert policy.checked > 6
    assert all(episode.video for episode in report.episodes)


def test_workers_that_are_replaced_leave_no_descriptor_and_no_memory_behind() -> None:
    opened = []

    class Counts(Keeps):
        def infer(self, requests: Sequence[Any]) -> Sequence[Any]:
            opened.append(len(os.listdir("/proc/self/fd")))
            return super().infer(requests)

    gc.disable()  # the engine must not need it
    try:
        rollout.run(Counts(1, PolicySpec()), Pages, horizon=2, episodes=40, workers=1, recycle_after=1)
    finally:
        gc.enable()
    assert max(opened[40:]) <= max(opened[:40]) + 4  # those that die are told of 0.5 s later


@pytest.mark.parametrize("name", ["memfd_create", "ftruncate"])
def test_a_system_that_shares_no_memory_is_no_obstacle(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    def refuse(*_: Any) -> Any:
        raise OSError(errno.ENOSYS, "not here")

    before = len(os.listdir("/proc/self/fd"))
    monkeypatch.setattr(os, name, refuse)
    assert open_slab() is None
    assert len(os.listdir("/proc/self/fd")) == before
    policy = Keeps(4, PolicySpec())
    report = rollout.run(policy, Pages, horizon=5, episodes=1, workers=1)
    assert report.summary.overall.n_error == 0
    assert policy.checked >= 5


def test_no_descriptor_left_is_told() -> None:
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    highest = max(map(int, os.listdir("/proc/self/fd")))
    resource.setrlimit(resource.RLIMIT_NOFILE, (highest + 2, limits[1]))
    taken: list[int] = []
    try:
        with suppress(OSError):
            while len(taken) <= highest + 2:
                taken.append(os.dup(0))
        with pytest.raises(OSError, match="Too many open files"):
            open_slab()
    finally:
        for descriptor in taken:
            os.close(descriptor)
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)


@pytest.fixture
def ends() -> Iterator[tuple[SlabWriter, SlabReader]]:
    descriptor = open_slab()
    if descriptor is None:
        pytest.skip("no memory without a name on this system")
    reader = SlabReader(descriptor)
    yield SlabWriter(descriptor), reader
    reader.close()
    os.close(descriptor)


def blocks(ends: tuple[SlabWriter, SlabReader]) -> int:
    """Of memory that the slab has."""
    descriptor = ends[0]._descriptor
    assert descriptor is not None
    return os.fstat(descriptor).st_blocks


def put(ends: tuple[SlabWriter, SlabReader], *given: np.ndarray) -> list[np.ndarray]:
    writer, reader = ends
    slot = reader.free_slot()
    writer.begin(slot)
    found = [writer.put(array) for array in given]
    return [reader.array(shared) for shared in found if shared is not None]


@given(st.lists(st.lists(st.integers(SMALL + 1, 5 * SMALL), min_size=1, max_size=3), max_size=6))
def test_arrays_come_out_as_they_went_in_whatever_their_sizes(replies: list[list[int]]) -> None:
    descriptor = open_slab()
    assert descriptor is not None
    ends = SlabWriter(descriptor), SlabReader(descriptor)
    kept: list[tuple[np.ndarray, np.ndarray]] = []
    for number, sizes in enumerate(replies):
        sent = [np.full(size, number, np.uint8) for size in sizes]
        kept += zip(sent, put(ends, *sent), strict=True)
        for one, other in kept:
            assert np.array_equal(one, other)
        if number % 2:
            kept.clear()
    os.close(descriptor)


@pytest.mark.parametrize("dtype", ["|u1", "<f4", ">f8", "<i8", "|b1", "<f2", "<U3", "<M8[us]"])
def test_dtype_and_layout_are_kept(ends: tuple[SlabWriter, SlabReader], dtype: str) -> None:
    array = np.arange(4 * SMALL).reshape(64, -1).astype(dtype)[::-1, ::2]  # not contiguous
    (found,) = put(ends, array)
    assert (found.dtype, found.shape, found.flags.c_contiguous, found.flags.writeable) == (
        np.dtype(dtype),
        array.shape,
        True,
        True,
    )
    assert (found == array).all()


def test_a_slot_is_used_again_when_nobody_refers_to_its_arrays(ends: tuple[SlabWriter, SlabReader]) -> None:
    reader = ends[1]
    picture = np.ones(SIZE, np.uint8)
    (first,) = put(ends, picture)
    view = first[3:, :, 0]
    del first
    (second,) = put(ends, picture * 2)
    assert (view == 1).all()
    assert reader.free_slot() == 2  # the first two are looked at
    del view
    assert reader.free_slot() == 0
    del second
    before = blocks(ends)
    for value in range(50):
        (array,) = put(ends, picture * value)
        assert (array == value).all()
        del array
    assert blocks(ends) == before


def test_without_a_free_slot_arrays_are_sent(ends: tuple[SlabWriter, SlabReader]) -> None:
    kept = [put(ends, np.full(SIZE, value, np.uint8))[0] for value in range(MOST_SLOTS)]
    assert ends[1].free_slot() is None
    assert put(ends, np.zeros(SIZE, np.uint8)) == []
    assert [int(array[0, 0, 0]) for array in kept] == list(range(MOST_SLOTS))


def test_small_arrays_and_those_without_memory_are_sent(ends: tuple[SlabWriter, SlabReader]) -> None:
    writer = ends[0]
    writer.begin(0)
    assert writer.put(np.zeros(SMALL, np.uint8)) is None
    assert writer.put(np.zeros(SMALL + 1, np.uint8)) is not None
    without = SlabWriter(None)
    without.begin(0)
    assert without.put(np.zeros(SIZE, np.uint8)) is None


@pytest.mark.parametrize("array", [np.zeros(9000, object), np.zeros(9000, [("a", "f4"), ("b", "i2")])])
def test_what_cannot_be_sent_cannot_be_shared(ends: tuple[SlabWriter, SlabReader], array: np.ndarray) -> None:
    ends[0].begin(0)
    with pytest.raises(TypeError, match="cannot be sent"):
        ends[0].put(array)


@pytest.mark.parametrize(
    "shared",
    [
        Shared("|u1", (1 << 30, 2), 0),
        Shared("|u1", (100,), (1 << 30) - 50),
        Shared("|u1", (100,), -1),
        Shared("|u1", (-1,), 0),
        Shared("|u1", (0, 10), 0),
        Shared("|u1", (1 << 40, 1 << 40), 0),
        Shared("|u1", (100,), 1 << 62),
        Shared("|O8", (10,), 0),
        Shared("nonsense", (10,), 0),
    ],
    ids=str,
)
def test_a_place_where_no_array_can_be_breaks_the_protocol(
    ends: tuple[SlabWriter, SlabReader], shared: Shared
) -> None:
    put(ends, np.zeros(SIZE, np.uint8))
    with pytest.raises(ProtocolError, match="bad shared array"):
        ends[1].array(shared)


def test_a_worker_cannot_take_the_memory_away(ends: tuple[SlabWriter, SlabReader]) -> None:
    (array,) = put(ends, np.ones(SIZE, np.uint8))
    for size in (0, 1 << 31):
        with pytest.raises(PermissionError):
            os.ftruncate(ends[0]._descriptor or 0, size)
    ends[1].close()
    assert (array == 1).all()
