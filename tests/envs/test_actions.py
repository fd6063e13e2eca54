"""Actions arrive as elements of the action space: equal, of its own types, and nobody else's memory."""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Iterator
from typing import Any

import gymnasium
import msgspec
import numpy as np
import pytest
from gymnasium import spaces

from rollout.envs.actions import converter
from rollout.values import Value, pack, unpack

DECODER = msgspec.msgpack.Decoder(Value)
BOX = spaces.Box(-1, 1, (2,), np.float32)

SPACES = [
    BOX,
    spaces.Box(-1, 1, (), np.float64),
    spaces.Box(-np.inf, np.inf, (2, 3), np.float16),
    spaces.Box(0, 255, (3,), np.uint8),
    spaces.Box(0, 1, (3,), np.bool_),
    spaces.Box(-(2**62), 2**62, (2,), np.int64),
    spaces.Box(-1, 1, (0,), np.float32),
    spaces.Discrete(3, start=10),
    spaces.Discrete(5, start=-2, dtype=np.int8),
    spaces.Discrete(100_000),
    spaces.MultiDiscrete([[3, 4], [5, 6]], start=[[0, 1], [2, -3]]),
    spaces.MultiDiscrete([3, 4], dtype=np.uint8),
    spaces.MultiBinary((2, 2)),
    spaces.Text(8, charset="aé漢"),
    spaces.Tuple((spaces.Discrete(2), BOX, spaces.Tuple(()))),
    spaces.Dict({"move": BOX, "deep": spaces.Dict({"b.c/d": spaces.Discrete(3)})}),
    spaces.Sequence(BOX),
    spaces.Sequence(spaces.Dict(x=BOX)),
    spaces.Sequence(BOX, stack=True),
    spaces.Sequence(spaces.Discrete(4), stack=True),
    spaces.Sequence(spaces.Dict(x=BOX, y=spaces.Tuple((spaces.MultiBinary(2),))), stack=True),
    spaces.Graph(BOX, spaces.Discrete(3)),
    spaces.Graph(spaces.Discrete(3), None),
    spaces.Graph(spaces.Dict(x=BOX), spaces.Tuple((spaces.Discrete(2),))),
    spaces.OneOf((spaces.Discrete(2), BOX, spaces.Tuple((spaces.Text(4),)))),
]


def over_the_wire(value: Any) -> Any:
    return unpack(DECODER.decode(bytearray(msgspec.msgpack.encode(pack(value)))))


def leaves(value: Any) -> Iterator[Any]:
    if isinstance(value, dict):
        value = tuple(value.values())
    if isinstance(value, tuple | list):
        for item in value:
            yield from leaves(item)
    else:
        yield value


@pytest.mark.parametrize("space", SPACES, ids=repr)
def test_every_sample_of_a_space_arrives_as_that_element(space: gymnasium.Space[Any]) -> None:
    convert = converter(space)
    space.seed(0)
    for _ in range(10):
        action = space.sample()
        sent = over_the_wire(action)
        got = convert(sent)
        assert space.contains(got)
        assert type(got) is type(action)
        assert repr(got) == repr(action)  # dtypes included
        theirs = [leaf for leaf in leaves(sent) if isinstance(leaf, np.ndarray)]
        for array in (leaf for leaf in leaves(got) if isinstance(leaf, np.ndarray)):
            assert array.flags.c_contiguous
            assert array.flags.writeable
            assert not any(np.shares_memory(array, other) for other in theirs)


@pytest.mark.parametrize(
    "action",
    [11, np.int64(11), np.int8(11), np.array(11), np.array([11]), 11.0, np.float32(11), np.array([[11.0]])],
)
def test_a_discrete_action_is_a_dict_key_whatever_held_it(action: Any) -> None:
    got = converter(spaces.Discrete(3, start=10))(action)
    assert type(got) is np.int64
    assert {10: "left", 11: "stay", 12: "right"}[got] == "stay"


@pytest.mark.parametrize(
    ("action", "says"),
    [
        (9, "the action 9 is none"),
        (5010, "the action 5010 is none"),
        (np.array([9]), "the action 9 is none"),
        (10.5, "the action 10.5 is none"),
        (math.nan, "the action nan is none"),
        (np.float32("inf"), "the action inf is none"),
        ("11", "type str"),
        (None, "type NoneType"),
        ([11], "type list"),
        (np.array([10, 11]), r"shape \(2,\)"),
        (np.array([]), r"shape \(0,\)"),
    ],
)
@pytest.mark.parametrize("n", [3, 5000])  # with a table, and without
def test_a_discrete_action_outside_of_the_space_is_named(action: Any, says: str, n: int) -> None:
    if says.endswith("none"):
        says = f"^{says} of the {n} integers from 10 to {9 + n}$"
    with pytest.raises(ValueError, match=says):
        converter(spaces.Discrete(n, start=10))(action)


@pytest.mark.parametrize(
    "given",
    [
        [0.25, 0.5],
        (0.25, 0.5),
        np.array([0.25, 0.5], ">f8"),
        np.array([[0.25, 9], [0.5, 9]], np.float32)[:, 0],
    ],
)
def test_a_box_action_takes_the_spaces_dtype_and_order(given: Any) -> None:
    got = converter(BOX)(given)
    assert (got.dtype, got.tolist()) == (np.float32, [0.25, 0.5])
    assert got.flags.c_contiguous


def test_box_actions_are_neither_clipped_nor_checked_against_the_bounds() -> None:
    assert converter(BOX)([5.0, -5.0]).tolist() == [5.0, -5.0]


@pytest.mark.parametrize("space", [BOX, spaces.MultiBinary(2), spaces.MultiDiscrete([3, 3])])
@pytest.mark.parametrize("given", [np.zeros(3), np.zeros((1, 2)), 0.0, []])
def test_a_wrong_shape_is_named(space: gymnasium.Space[Any], given: Any) -> None:
    with pytest.raises(ValueError, match=r"an action of shape \(.*\) for a space of shape \(2,\)"):
        converter(space)(given)


@pytest.mark.parametrize(
    ("space", "given"),
    [
        (spaces.Box(0, 255, (2,), np.uint8), [1.5, 2.0]),
        (spaces.Box(0, 255, (2,), np.uint8), [300, 2]),
        (spaces.Box(0, 255, (2,), np.uint8), [-1, 2]),
        (spaces.MultiDiscrete([3, 3]), [np.nan, 0]),
        (spaces.MultiDiscrete([3, 3]), [np.inf, 0]),
        (spaces.MultiBinary(2), [0.5, 1]),
        (spaces.Box(0, 1, (2,), np.bool_), [0, 2]),
    ],
)
def test_integers_are_never_made_by_rounding_or_wrapping(space: gymnasium.Space[Any], given: Any) -> None:
    with pytest.raises(ValueError, match="is not made of"):
        converter(space)(given)


def test_whole_numbers_of_another_dtype_are_integers() -> None:
    got = converter(spaces.MultiDiscrete([3, 3], dtype=np.int16))(np.array([1.0, 2.0], np.float32))
    assert (got.dtype, got.tolist()) == (np.int16, [1, 2])


def test_dict_actions_get_the_spaces_own_keys_and_order() -> None:
    space = spaces.Dict(OrderedDict([("z", BOX), (7, spaces.Discrete(2))]))
    got = converter(space)(over_the_wire({7: 1, "z": [0, 0]}))
    assert list(got) == ["z", 7]
    assert space.contains(got)


@pytest.mark.parametrize(
    ("space", "action", "says"),
    [
        (spaces.Dict(a=BOX, b=BOX), {"a": [0, 0]}, r"the fields \['a'\], not \['a', 'b'\]"),
        (spaces.Dict(a=BOX), {"a": [0, 0], "c": 1}, r"the fields \['a', 'c'\], not \['a'\]"),
        (spaces.Tuple((BOX, BOX)), ([0, 0],), "1 parts where 2 are expected"),
        (spaces.OneOf((BOX,)), (1, [0, 0]), "none of the 1 integers"),
        (spaces.Sequence(BOX, stack=True), np.zeros((3, 4)), r"shape \(3, 4\)"),
        (spaces.Graph(BOX, None), (np.zeros((3, 4)), None, None), r"shape \(3, 4\)"),
        (spaces.Text(4), 3, "type int where a text is expected"),
    ],
)
def test_a_nested_action_that_does_not_fit_says_where(
    space: gymnasium.Space[Any], action: Any, says: str
) -> None:
    with pytest.raises(ValueError, match=says):
        converter(space)(action)


def test_a_space_of_somebody_elses_is_refused_by_name() -> None:
    class Odd(gymnasium.Space[Any]):
        pass

    with pytest.raises(TypeError, match="Odd is not one of Gymnasium's spaces"):
        converter(spaces.Tuple((Odd(),)))
