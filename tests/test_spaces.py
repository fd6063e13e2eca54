"""Every space of Gymnasium, described in the child and rebuilt in the parent, is the same space."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

import gymnasium
import msgspec
import numpy as np
import pytest
from gymnasium import spaces
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from rollout.spaces import Box, Choice, Fields, Space, describe, rebuild
from rollout.values import unpack_array

DECODER = msgspec.msgpack.Decoder(Space)


def over_the_wire(space: gymnasium.Space[Any]) -> Space:
    return DECODER.decode(bytearray(msgspec.msgpack.encode(describe(space))))


def same(space: gymnasium.Space[Any]) -> gymnasium.Space[Any]:
    """Rebuild `space` and check that both are equal and sample alike from the same seed."""
    rebuilt = rebuild(over_the_wire(space))
    assert rebuilt == space
    assert type(rebuilt) is type(space)
    space.seed(3)
    rebuilt.seed(3)
    assert repr(rebuilt.sample()) == repr(space.sample())
    return rebuilt


BOX_DTYPES = st.one_of(
    hnp.integer_dtypes(endianness="="),
    hnp.unsigned_integer_dtypes(endianness="="),
    hnp.floating_dtypes(endianness="=", sizes=(16, 32, 64)),
    hnp.boolean_dtypes(),
)


@st.composite
def boxes(draw: st.DrawFn) -> spaces.Box:
    dtype = draw(BOX_DTYPES)
    shape = draw(hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=3))
    elements = {"allow_nan": False, "allow_infinity": True} if dtype.kind == "f" else {}
    first, second = (draw(hnp.arrays(dtype, shape, elements=elements)) for _ in range(2))
    low, high = np.asarray(np.minimum(first, second)), np.asarray(np.maximum(first, second))
    if dtype.kind == "f":  # a lower limit of +inf is none
        low[low == np.inf], high[high == -np.inf] = -np.inf, np.inf
    return spaces.Box(low, high, shape, dtype.type)


@st.composite
def choices(draw: st.DrawFn) -> gymnasium.Space[Any]:
    dtype = draw(st.sampled_from([np.int64, np.int32, np.int8, np.uint8]))
    shape = draw(hnp.array_shapes(min_dims=1, max_dims=2, min_side=0, max_side=3))
    nvec = draw(hnp.arrays(dtype, shape, elements=st.integers(1, 60)))
    start = draw(hnp.arrays(dtype, shape, elements=st.integers(0, 60)))
    return draw(
        st.sampled_from(
            [
                spaces.MultiDiscrete(nvec, dtype=dtype, start=start),
                spaces.MultiBinary(5),
                spaces.MultiBinary([2, 3]),
                spaces.MultiBinary(()),
                spaces.Discrete(draw(st.integers(1, 60)), start=draw(st.integers(0, 60)), dtype=dtype),
            ]
        )
    )


TEXTS = st.builds(
    lambda least, more, charset: spaces.Text(least + more, min_length=least, charset=charset),
    st.integers(0, 3),
    st.integers(0, 9),
    st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=9),
)
LEAVES = st.one_of(boxes(), choices(), TEXTS)
NESTED = st.recursive(
    LEAVES,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3).map(spaces.Tuple),
        st.lists(
            st.tuples(st.text(st.characters(exclude_categories=["Cs"]), max_size=4), inner), max_size=3
        ).map(lambda pairs: spaces.Dict(list(dict(pairs).items()))),
        inner.map(spaces.Sequence),
        st.lists(inner, min_size=1, max_size=3).map(spaces.OneOf),
    ),
    max_leaves=6,
)


@given(NESTED)
@settings(max_examples=200, deadline=None)
def test_any_nested_space_is_rebuilt_equal(space: gymnasium.Space[Any]) -> None:
    assert rebuild(over_the_wire(space)) == space


@pytest.mark.parametrize(
    "space",
    [
        spaces.Box(-1, 1, (), np.float32),
        spaces.Box(0, 255, (4, 4, 3), np.uint8),
        spaces.Box(0, 1, (3,), np.float16),
        spaces.Box(0, 1, (2,), np.bool_),
        spaces.Box(-(2**62), 2**62, (2,), np.int64),
        spaces.Box(0, 2**62, (2,), np.uint64),
        spaces.Box(np.array([-np.inf, 0, -1]), np.array([np.inf, np.inf, 1]), dtype=np.float64),
        spaces.Box(-np.inf, np.inf, (2, 0), np.float32),
        spaces.Discrete(5, start=-2),
        spaces.Discrete(3, start=10, dtype=np.int32),
        spaces.MultiDiscrete([[3, 4], [5, 6]], start=[[0, 1], [2, -3]]),
        spaces.MultiDiscrete([3, 4], dtype=np.uint8),
        spaces.MultiBinary(4),
        spaces.MultiBinary([2, 3]),
        spaces.Text(64, charset="aé漢🙂 "),
        spaces.Text(0, min_length=0, charset=""),
        spaces.Dict(),
        spaces.Tuple(()),
        spaces.Dict({"a": spaces.Dict({"b.c/d": spaces.Discrete(3)}), "": spaces.Tuple((spaces.Text(3),))}),
        spaces.Sequence(spaces.Dict(x=spaces.Box(0, 1, (2,)))),
        spaces.Sequence(spaces.Box(0, 1, (2,), np.float64), stack=True),
        spaces.Sequence(spaces.Discrete(4), stack=True),
        spaces.Sequence(spaces.Dict(x=spaces.Box(0, 1, (2,)), y=spaces.Discrete(2)), stack=True),
        spaces.Graph(spaces.Box(0, 1, (2,)), spaces.Discrete(3)),
        spaces.Graph(spaces.Discrete(7), None),
        spaces.Graph(spaces.Dict(x=spaces.Box(0, 1, (2,))), spaces.Tuple((spaces.Discrete(2),))),
        spaces.OneOf((spaces.Discrete(2), spaces.Box(0, 1, (1,)), spaces.Tuple((spaces.Text(4),)))),
    ],
    ids=repr,
)
def test_every_kind_of_space_is_rebuilt_equal_and_samples_alike(space: gymnasium.Space[Any]) -> None:
    rebuilt = same(space)
    assert space.contains(rebuilt.sample())


@pytest.mark.parametrize("dtype", [">f4", ">i8", ">f2"])
def test_a_foreign_byte_order_is_kept(dtype: str) -> None:
    space = spaces.Box(np.zeros(2, dtype), np.ones(2, dtype), dtype=np.dtype(dtype))
    rebuilt = rebuild(over_the_wire(space))
    assert rebuilt == space
    assert rebuilt.dtype.str == dtype


@pytest.mark.parametrize(
    ("low", "high"),
    [
        (-np.inf, np.inf),
        (np.array([-np.inf, 0.0]), np.array([5.0, np.inf])),
    ],
)
def test_an_integer_box_without_limits_samples_alike(low: Any, high: Any) -> None:
    space = spaces.Box(low, high, (2,), np.int32)
    rebuilt = same(space)
    assert rebuilt.bounded_below.tolist() == space.bounded_below.tolist()
    assert rebuilt.bounded_above.tolist() == space.bounded_above.tolist()
    assert abs(int(rebuilt.sample()[1])) < 1000  # not anywhere in 2**32


def test_a_uint64_box_keeps_limits_beyond_int64() -> None:
    space = spaces.Box(2**63, 2**64 - 1, (2,), np.uint64)  # Gymnasium itself cannot sample from it
    assert rebuild(over_the_wire(space)) == space


def test_uint64_choices_keep_counts_beyond_int64() -> None:
    space = spaces.Discrete(2**63 + 5, start=2**62, dtype=np.uint64)
    described = over_the_wire(space)
    assert isinstance(described, Choice)
    assert int(unpack_array(described.n)) == 2**63 + 5
    assert rebuild(described) == space


def test_fields_keep_their_order_and_get_string_names() -> None:
    parts = [("z", spaces.Discrete(2)), ("a", spaces.Discrete(3)), (7, spaces.Discrete(4))]
    described = over_the_wire(spaces.Dict(OrderedDict(parts)))
    assert isinstance(described, Fields)
    assert described.names == ("z", "a", "7")
    assert list(rebuild(described).spaces) == ["z", "a", "7"]


def test_a_description_survives_the_end_of_its_space() -> None:
    space = spaces.Box(np.zeros(3000), np.ones(3000), dtype=np.float64)
    described = over_the_wire(space)
    space.low[:] = 9
    assert isinstance(described, Box)
    assert not unpack_array(described.low).any()


def test_a_rebuilt_space_does_not_alias_its_description() -> None:
    described = over_the_wire(spaces.Box(0, 255, (64, 64, 3), np.uint8))
    rebuild(described).low[:] = 9
    assert isinstance(described, Box)
    assert not unpack_array(described.low).any()


def test_a_subclass_is_described_as_what_it_is() -> None:
    class Gripper(spaces.Box):
        pass

    assert rebuild(over_the_wire(Gripper(0, 1, (1,)))) == spaces.Box(0, 1, (1,))


def test_a_space_of_somebody_elses_is_refused_by_name() -> None:
    class Quaternion(gymnasium.Space[Any]):
        pass

    with pytest.raises(TypeError, match="Quaternion is not one of Gymnasium's spaces"):
        describe(spaces.Dict(q=Quaternion()))
