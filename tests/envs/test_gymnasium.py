"""The Gymnasium adapter, over environments that do what real ones were seen to do."""

from __future__ import annotations

import itertools
import math
import random
import sys
from collections import UserDict
from collections.abc import Callable, Iterator, Mapping
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces

from rollout.envs.base import Step
from rollout.envs.gymnasium import GymnasiumSimulator, to_frame
from rollout.errors import UsageError
from rollout.spaces import describe, rebuild
from rollout.types import EpisodeSpec, Observation, ObservationRequest
from rollout.values import pack, unpack

EVERYTHING = ObservationRequest()
IMAGE = spaces.Box(0, 255, (4, 6, 3), np.uint8)
NUMBERS = itertools.count()


class Toy(gym.Env[Any, Any]):
    """Counts steps; every other behaviour is a keyword argument, given when it is registered."""

    metadata = {"render_modes": ["rgb_array", "ansi"], "render_fps": 12}  # noqa: RUF012

    def __init__(
        self,
        render_mode: str | None = None,
        *,
        seen: Any = None,
        space: Any = None,
        action_space: Any = None,
        reward: Any = 0.0,
        terminated: Any = False,
        truncated: Any = False,
        info: Any = None,
        frame: Any = None,
    ) -> None:
        self.render_mode = render_mode
        self.observation_space = spaces.Box(-np.inf, np.inf, (1,), np.float32) if space is None else space
        self.action_space = action_space or spaces.Discrete(2)
        self.seen = np.zeros(1, np.float32) if seen is None else seen
        self.outcome = (reward, terminated, truncated, info or {})
        self.frame = frame
        self.actions: list[Any] = []
        self.renders = 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        return self.seen, self.outcome[3]

    def step(self, action: Any) -> tuple[Any, Any, Any, Any, Any]:
        self.actions.append(action)
        return self.seen, *self.outcome

    def render(self) -> Any:
        self.renders += 1
        return self.frame


Build = Callable[..., GymnasiumSimulator]


@pytest.fixture
def build() -> Iterator[Build]:
    """Registers an environment, builds its simulator, and forgets both afterwards."""
    ids, simulators = [], []

    def build(
        creator: Callable[..., Any] = Toy,
        *,
        options: Mapping[str, str] | None = None,
        max_episode_steps: int | None = None,
        **kwargs: Any,
    ) -> GymnasiumSimulator:
        ids.append(f"built/Toy{next(NUMBERS)}-v0")
        gym.register(ids[-1], creator, max_episode_steps=max_episode_steps, kwargs=kwargs)
        suite = GymnasiumSimulator.describe(ids[-1], options or {})
        simulators.append(GymnasiumSimulator(suite, 0, options or {}))
        simulators[-1].build()
        return simulators[-1]

    yield build
    for simulator in simulators:
        simulator.close()
    for env_id in ids:
        del gym.registry[env_id]


def spec(simulator: GymnasiumSimulator, seed: int = 0) -> EpisodeSpec:
    info = simulator.info
    return EpisodeSpec(suite=info.suite, task=info.task, task_id=0, episode=0, seed=seed, horizon=100)


def reset(simulator: GymnasiumSimulator, *keys: str, seed: int = 0) -> Observation:
    return simulator.reset(spec(simulator, seed), ObservationRequest(keys=keys) if keys else EVERYTHING)


def one_step(simulator: GymnasiumSimulator, action: Any = 0, observe: bool = True) -> Step:
    reset(simulator)
    return simulator.step(action, observe)


def bare(simulator: GymnasiumSimulator) -> Any:
    return simulator._env.unwrapped


def module(folder: Path, name: str, text: str, monkeypatch: pytest.MonkeyPatch) -> str:
    (folder / f"{name}.py").write_text(text)
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.delitem(sys.modules, name, raising=False)
    return name


# What a name means


def test_an_environment_is_a_suite_of_one_task_called_by_its_id() -> None:
    suite = GymnasiumSimulator.describe("CartPole-v1", {})
    [task] = suite.tasks
    assert suite.suite == "gym:CartPole-v1"
    assert (task.task, task.task_id, task.horizon, task.n_init_states) == ("CartPole-v1", 0, 500, None)
    assert suite.versions == {"gymnasium": gym.__version__}
    assert GymnasiumSimulator.expand("CartPole-v1") == ("CartPole-v1",)


def test_an_id_without_a_version_means_the_newest() -> None:
    assert GymnasiumSimulator.describe("CartPole", {}).tasks[0].task == "CartPole-v1"


def test_an_id_may_name_the_module_that_registers_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    name = module(
        tmp_path,
        "lab_robots",
        """
import gymnasium
gymnasium.register("lab/Arm-v0", "gymnasium.envs.classic_control:PendulumEnv", max_episode_steps=7)
""",
        monkeypatch,
    )
    suite = GymnasiumSimulator.describe(f"{name}:lab/Arm-v0", {})
    assert suite.suite == "gym:lab_robots:lab/Arm-v0"
    assert (suite.tasks[0].task, suite.tasks[0].horizon) == ("lab/Arm-v0", 7)
    simulator = GymnasiumSimulator(suite, 0, {})
    simulator.build()
    assert reset(simulator)["observation.state"].shape == (3,)
    assert [simulator.step([0.0], False).truncated for _ in range(7)] == [False] * 6 + [True]
    simulator.close()
    del gym.registry["lab/Arm-v0"]


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("CartPoel-v1", "no environment 'CartPoel-v1' is registered; did you mean 'CartPole-v1'?"),
        ("CartPole-v7", "no environment 'CartPole-v7' is registered; did you mean 'CartPole-v"),
        ("not a name", "no environment 'not a name' is registered"),
        ("", "no environment '' is registered"),
        ("json:CartPoel-v1", "no environment 'CartPoel-v1' is registered; did you mean 'CartPole-v1'?"),
        (
            "no_such_lab:Arm-v0",
            "cannot import 'no_such_lab': ModuleNotFoundError: No module named 'no_such_lab'",
        ),
        (":Arm-v0", "cannot import ''"),
    ],
)
def test_an_unknown_name_is_one_line_that_says_what_is_near(name: str, says: str) -> None:
    with pytest.raises(UsageError) as caught:
        GymnasiumSimulator.describe(name, {})
    assert says in str(caught.value)
    assert str(caught.value).startswith(f"gym:{name}: ")
    assert "\n" not in str(caught.value)


def test_a_module_that_fails_to_import_says_why_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = module(tmp_path, "lab_broken", "raise OSError('no licence\\n  for this robot')", monkeypatch)
    with pytest.raises(UsageError, match=r"cannot import 'lab_broken': OSError: no licence for this robot$"):
        GymnasiumSimulator.describe(f"{name}:lab/Arm-v0", {})


def test_an_environment_whose_code_is_missing_says_what_is_missing() -> None:
    gym.register("built/NoCode-v0", "no_such_lab.robots:Arm")
    with pytest.raises(UsageError, match=r"cannot load no_such_lab.robots:Arm: ModuleNotFoundError: .*"):
        GymnasiumSimulator.describe("built/NoCode-v0", {})
    del gym.registry["built/NoCode-v0"]


# --set


class Picky(Toy):
    """Keeps what it was made with."""

    def __init__(self, level: Any = None, name: Any = None, render_mode: str | None = None) -> None:
        super().__init__(render_mode)
        self.made = (level, name)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("3", 3),
        ("0.5", 0.5),
        ("true", True),
        ("False", False),
        ("None", None),
        ("null", None),
        ("[1, 2]", [1, 2]),
        ('{"a": 1}', {"a": 1}),
        ("hard", "hard"),
        ('"3"', "3"),
        ("1e", "1e"),
        ("", ""),
    ],
)
def test_options_are_json_where_they_are_json_and_texts_otherwise(
    build: Build, text: str, value: Any
) -> None:
    made = bare(build(Picky, options={"level": text})).made
    assert made == (value, None)
    assert type(made[0]) is type(value)


def test_an_unknown_option_names_the_nearest(build: Build) -> None:
    says = r"^--set levle: gym:\S+ takes no such argument; did you mean 'level'\?"
    with pytest.raises(UsageError, match=says):
        build(Picky, options={"levle": "3"})


def test_an_environment_that_takes_any_keyword_gets_any_option(build: Build) -> None:
    def factory(**kwargs: Any) -> Toy:
        toy = Toy()
        toy.actions = [kwargs]
        return toy

    assert bare(build(factory, options={"anything": "1"})).actions == [{"anything": 1}]


@pytest.mark.parametrize(("text", "horizon"), [("3", 3), ("-1", None), ("null", 9)])
def test_the_time_limit_can_be_set(build: Build, text: str, horizon: int | None) -> None:
    simulator = build(max_episode_steps=9, options={"max_episode_steps": text})
    assert simulator.info.horizon == horizon
    reset(simulator)
    limit = horizon or 20
    truncated = [simulator.step(0, False).truncated for _ in range(limit)]
    assert truncated == [False] * (limit - 1) + [horizon is not None]


def test_a_time_limit_must_be_a_number(build: Build) -> None:
    with pytest.raises(UsageError, match=r"--set max_episode_steps=soon: must be a whole number"):
        build(options={"max_episode_steps": "soon"})


# Building


def test_the_constructor_makes_nothing_and_build_makes_one(build: Build) -> None:
    made: list[Toy] = []

    def factory(render_mode: str | None = None) -> Toy:
        made.append(Toy(render_mode))
        return made[-1]

    simulator = build(factory)
    assert len(made) == 1
    suite = GymnasiumSimulator.describe(simulator.info.task, {})
    GymnasiumSimulator(suite, 0, {}).close()  # never built
    assert len(made) == 1
    reset(simulator)
    reset(simulator)
    assert len(made) == 1


def test_what_a_constructor_draws_does_not_depend_on_what_ran_before(build: Build) -> None:
    class Scattered(Toy):
        def __init__(self, render_mode: str | None = None) -> None:
            super().__init__(render_mode, seen=np.float32([np.random.random()]))
            self.seen = np.append(self.seen, np.float32(random.random()))

    first = reset(build(Scattered), seed=1)["observation.state"]
    np.random.random(5)
    random.random()
    assert reset(build(Scattered), seed=2)["observation.state"].tolist() == first.tolist()


def test_the_environment_can_render_but_never_does_before_it_is_asked(build: Build) -> None:
    simulator = build(frame=np.zeros((4, 4, 3), np.uint8))
    reset(simulator)
    for _ in range(5):
        simulator.step(0, True)
    assert bare(simulator).render_mode == "rgb_array"
    assert bare(simulator).renders == 0
    simulator.render()
    assert bare(simulator).renders == 1


def test_environments_without_the_render_mode_are_made_without_it(build: Build) -> None:
    class Blind(Toy):
        metadata = {"render_modes": ["human"]}  # noqa: RUF012

    class Fixed(Toy):
        def __init__(self) -> None:  # lists rgb_array, but takes no mode
            super().__init__("rgb_array")

    def factory() -> Toy:
        return Toy()

    assert bare(build(Blind)).render_mode is None
    assert bare(build(Fixed)).render_mode == "rgb_array"
    assert bare(build(factory)).render_mode is None
    assert bare(build(render_mode="ansi")).render_mode == "ansi"  # registered so
    assert bare(build(options={"render_mode": "null"})).render_mode is None


def test_the_environment_checker_is_left_out_and_the_other_wrappers_stay(build: Build) -> None:
    names, layer = [], build(max_episode_steps=5)._env
    while layer is not None:
        names.append(type(layer).__name__)
        layer = getattr(layer, "env", None)
    assert names == ["TimeLimit", "OrderEnforcing", "Toy"]


@pytest.mark.parametrize(
    ("fps", "expected"),
    [
        *((12, 12), (29.97, 30), (0.2, 1), (0, 30), (-5, 30), (None, 30), (math.inf, 30), ("fast", 30)),
        *((math.nan, 30), (10**400, 30), (1e9, 30)),
    ],
)
def test_the_frame_rate_is_the_environments_or_30(build: Build, fps: Any, expected: int) -> None:
    class Timed(Toy):
        metadata = {"render_modes": [], "render_fps": fps}  # noqa: RUF012

    assert build(Timed).info.fps == expected


def test_the_task_info_describes_what_was_built(build: Build) -> None:
    position = spaces.Box(-1, 1, (2,), np.float64)
    space = spaces.Dict({"pixels": IMAGE, "agent_pos": position, "n": spaces.Discrete(3)})
    simulator = build(space=space, action_space=spaces.Box(-1, 1, (2,)), max_episode_steps=8)
    info = simulator.info
    assert (info.task_id, info.horizon, info.fps, info.instruction) == (0, 8, 12, "")
    assert info.suite == f"gym:{info.task}"
    assert info.success_rule is not None
    assert rebuild(info.action_space) == spaces.Box(-1, 1, (2,))
    assert {key: rebuild(value) for key, value in info.observation_space.items()} == {
        "observation.images.image": IMAGE,
        "observation.state": spaces.Box(-1, 1, (2,), np.float32),
        "observation.n": spaces.Discrete(3),
    }


def test_a_space_that_is_not_gymnasiums_is_refused_while_building(build: Build) -> None:
    class Odd(gym.Space[Any]):
        pass

    with pytest.raises(TypeError, match="Odd is not one of Gymnasium's spaces"):
        build(space=Odd())
    with pytest.raises(TypeError, match="Odd is not one of Gymnasium's spaces"):
        build(action_space=Odd())


# Seeds


def test_an_episode_depends_on_its_seed_alone(build: Build) -> None:
    class Dice(Toy):
        def throw(self) -> np.ndarray:
            return np.array(
                [
                    np.random.random(),
                    random.random(),
                    self.np_random.random(),
                    self.observation_space.sample()[0],
                    self.action_space.sample(),
                ],
                np.float64,
            )

        def reset(self, **kwargs: Any) -> Any:
            _, info = super().reset(**kwargs)
            return self.throw(), info

        def step(self, action: Any) -> Any:
            return self.throw(), *self.outcome

    space = spaces.Box(-np.inf, np.inf, (5,), np.float64)

    def episode(simulator: GymnasiumSimulator, seed: int) -> list[Any]:
        seen = [reset(simulator, seed=seed)] + [simulator.step(0, True).observation for _ in range(3)]
        return [observation["observation.state"].tolist() for observation in seen if observation]

    fresh = episode(build(Dice, space=space), 7)
    used = build(Dice, space=space)
    other = episode(used, 8)
    used.step(0, True)
    assert episode(used, 7) == fresh
    assert len({tuple(throw) for throw in fresh + other}) == 8


def test_seeds_are_plain_integers_of_any_size(build: Build) -> None:
    class Strict(Toy):
        def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
            assert type(seed) is int
            return super().reset(seed=seed, options=options)

    reset(build(Strict), seed=2**40)
    simulator = build(Strict)
    simulator.reset(spec(simulator, np.int64(5)), EVERYTHING)


def test_an_old_seed_method_is_called_before_every_reset(build: Build) -> None:
    class Legacy(Toy):
        def seed(self, seed: int) -> None:
            self.actions.append(("seed", seed))

        def reset(self, **kwargs: Any) -> Any:
            self.actions.append(("reset", kwargs["seed"]))
            return super().reset(**kwargs)

    simulator = build(Legacy)
    reset(simulator, seed=3)
    reset(simulator, seed=4)
    assert bare(simulator).actions == [("seed", 3), ("reset", 3), ("seed", 4), ("reset", 4)]


def test_a_seed_that_is_a_number_is_left_alone(build: Build) -> None:
    class Numbered(Toy):
        seed = 3

    assert reset(build(Numbered))["observation.state"].shape == (1,)


# The old API


class OldReset(Toy):
    def reset(self) -> Any:  # type: ignore[override]
        return np.zeros(1, np.float32)


class BareReset(Toy):
    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        return np.zeros(1, np.float32)


class FourValues(Toy):
    def step(self, action: Any) -> Any:
        return self.seen, 0.0, False, {}


@pytest.mark.parametrize("limit", [None, 5])  # Gymnasium's TimeLimit unpacks five values of its own
@pytest.mark.parametrize("creator", [OldReset, BareReset, FourValues])
def test_the_old_api_is_named_in_one_line_that_says_what_to_do(
    build: Build, creator: Any, limit: int | None
) -> None:
    with pytest.raises(TypeError, match=r"old Gym API.*shimmy") as caught:
        one_step(build(creator, max_episode_steps=limit))
    assert "\n" not in str(caught.value)


def test_an_old_environment_is_refused_before_its_first_episode(build: Build) -> None:
    with pytest.raises(TypeError, match="old Gym API"):
        build(OldReset)


def test_a_wrapper_that_mends_the_old_api_is_enough(build: Build) -> None:
    class Mended(gym.Wrapper[Any, Any, Any, Any]):
        def reset(self, **kwargs: Any) -> Any:
            return self.env.reset(), {}

    def factory() -> Any:
        return Mended(OldReset())

    assert reset(build(factory))["observation.state"].tolist() == [0]


def test_a_value_error_of_the_environments_own_stays_what_it_is(build: Build) -> None:
    class Broken(Toy):
        def step(self, action: Any) -> Any:
            raise ValueError("not enough fingers")

    with pytest.raises(ValueError, match=r"^not enough fingers$"):
        one_step(build(Broken))


# Observations


STATE = spaces.Box(-1, 1, (2,), np.float64)
ZERO = np.zeros(2)
PICTURE = np.zeros((4, 6, 3), np.uint8)


@pytest.mark.parametrize(
    ("space", "seen", "expected"),
    [
        (IMAGE, PICTURE, {"observation.images.image": "uint8"}),
        (STATE, ZERO, {"observation.state": "float64"}),
        (spaces.Box(0, 255, (2,), np.uint8), ZERO.astype(np.uint8), {"observation.state": "uint8"}),
        (spaces.Box(0, 1, (4, 6, 3)), PICTURE.astype(np.float32), {"observation.state": "float32"}),
        (spaces.Box(0, 255, (4, 6, 2), np.uint8), PICTURE[..., :2], {"observation.state": "uint8"}),
        (spaces.Discrete(3), np.int64(2), {"observation.state": "int64"}),
        (spaces.Text(9), "hello", {"observation.state": "str"}),
        (spaces.Tuple((STATE, spaces.Discrete(3))), (ZERO, 1), {"observation.state": "tuple"}),
        (spaces.Sequence(STATE), (ZERO, ZERO), {"observation.state": "tuple"}),
        (
            spaces.Graph(STATE, None),
            spaces.GraphInstance(ZERO[None], None, None),
            {"observation.state": "GraphInstance"},
        ),
        (spaces.OneOf((STATE, IMAGE)), (np.int64(0), ZERO), {"observation.state": "tuple"}),
        (spaces.Dict(pixels=IMAGE), {"pixels": PICTURE}, {"observation.images.image": "uint8"}),
        (
            spaces.Dict(pixels=spaces.Dict(top=IMAGE, wrist=IMAGE)),
            {"pixels": {"top": PICTURE, "wrist": PICTURE}},
            {"observation.images.top": "uint8", "observation.images.wrist": "uint8"},
        ),
        (
            spaces.Dict(pixels=spaces.Dict(top=IMAGE, depth=STATE)),
            {"pixels": {"top": PICTURE, "depth": ZERO}},
            {"observation.pixels": "dict"},
        ),
        (spaces.Dict(pixels=STATE), {"pixels": ZERO}, {"observation.pixels": "float64"}),
        (
            spaces.Dict(agent_pos=STATE, environment_state=STATE),
            {"agent_pos": ZERO, "environment_state": ZERO},
            {"observation.state": "float32", "observation.environment_state": "float32"},
        ),
        (spaces.Dict(agent_pos=spaces.Discrete(3)), {"agent_pos": 1}, {"observation.state": "int"}),
        (
            spaces.Dict(wrist=IMAGE, state=STATE, n=spaces.MultiBinary(2)),
            {"wrist": PICTURE, "state": ZERO, "n": np.zeros(2, np.int8)},
            {"observation.images.wrist": "uint8", "observation.state": "float64", "observation.n": "int8"},
        ),
        (
            spaces.Dict(arm=spaces.Dict({"b.c/d": IMAGE})),
            {"arm": {"b.c/d": PICTURE}},
            {"observation.arm": "dict"},
        ),
        (spaces.Dict(task=spaces.Discrete(3)), {"task": 1}, {"observation.task": "int"}),
        (
            spaces.Dict(task=spaces.Text(9), language=spaces.Text(9)),
            {"task": "push", "language": "en"},
            {"observation.language": "str"},
        ),
        (spaces.Dict(), {}, {}),
    ],
)
def test_observations_get_lerobots_keys(
    build: Build, space: gym.Space[Any], seen: Any, expected: Mapping[str, str]
) -> None:
    simulator = build(space=space, seen=seen)
    observation = reset(simulator)
    kinds = {key: str(getattr(value, "dtype", type(value).__name__)) for key, value in observation.items()}
    assert kinds == {**expected, "task": "str"}
    assert set(simulator.info.observation_space) - {"task"} == set(expected)
    stepped = simulator.step(0, True).observation
    assert stepped is not None
    assert list(stepped) == list(observation)


def test_a_described_field_is_what_arrives(build: Build) -> None:
    space = spaces.Dict(
        {
            "agent_pos": STATE,
            "pixels": IMAGE,
            "deep": spaces.Dict({"n": spaces.Discrete(3)}),
            "task": spaces.Text(20, charset="push it"),
        }
    )
    seen = {"agent_pos": ZERO, "pixels": PICTURE, "deep": {"n": 1}, "task": "push it"}
    simulator = build(space=space, seen=seen)
    observation = reset(simulator)
    assert set(observation) == set(simulator.info.observation_space)
    for key, described in simulator.info.observation_space.items():
        assert rebuild(described).contains(observation[key])


def test_two_fields_that_would_have_one_key_are_refused_by_name(build: Build) -> None:
    with pytest.raises(UsageError, match=r"'agent_pos' and 'state' would both be 'observation.state': "):
        build(space=spaces.Dict(agent_pos=STATE, state=STATE))
    with pytest.raises(UsageError, match=r"'image' and 'pixels' would both be 'observation.images.image'"):
        build(space=spaces.Dict(image=IMAGE, pixels=IMAGE))


def test_only_the_keys_asked_for_and_the_task_are_produced(build: Build) -> None:
    seen = {"pixels": PICTURE, "agent_pos": ZERO}
    simulator = build(space=spaces.Dict(pixels=IMAGE, agent_pos=STATE), seen=seen)
    assert list(reset(simulator, "observation.state")) == ["observation.state", "task"]
    assert list(simulator.step(0, True).observation or ()) == ["observation.state", "task"]
    assert simulator.step(0, False).observation is None
    assert list(reset(simulator, "task")) == ["task"]
    nothing = simulator.reset(spec(simulator), ObservationRequest(keys=()))
    assert nothing == {"task": ""}
    assert list(reset(simulator)) == ["observation.images.image", "observation.state", "task"]


def test_a_key_that_is_not_there_is_one_line_that_names_the_nearest(build: Build) -> None:
    with pytest.raises(UsageError, match=r"'observation.stat'.* did you mean 'observation.state'\?"):
        reset(build(), "observation.stat")


def test_observations_that_were_packed_at_once_do_not_alias_what_later_steps_change(build: Build) -> None:
    def packed(observation: Any) -> dict[str, Any]:
        values = {key: pack(value) for key, value in observation.items()}
        return {key: unpack(value) for key, value in values.items()}

    class Reusing(Toy):
        def step(self, action: Any) -> Any:
            seen = self.seen
            for array in (seen["a"], seen["deep"]["b"], *seen["list"], seen["graph"].nodes):
                np.add(array, 1, out=array)
            return self.seen, *self.outcome

    space = spaces.Dict(
        a=STATE, deep=spaces.Dict(b=STATE), list=spaces.Tuple((STATE,)), graph=spaces.Graph(STATE, None)
    )
    seen = {
        "a": np.zeros(2),
        "deep": {"b": np.zeros(2)},
        "list": (np.zeros(2),),
        "graph": spaces.GraphInstance(np.zeros((1, 2)), None, None),
    }
    simulator = build(Reusing, space=space, seen=seen)
    kept = [packed(reset(simulator))]
    kept += [packed(simulator.step(0, True).observation) for _ in range(2)]
    start = kept[0]["observation.a"][0]
    for count, observation in enumerate(kept):
        assert observation["observation.a"].tolist() == [start + count] * 2
        assert observation["observation.deep"]["b"].tolist() == [start + count] * 2
        assert observation["observation.list"][0].tolist() == [start + count] * 2
        assert observation["observation.graph"].nodes.tolist() == [[start + count] * 2]


def test_array_likes_become_arrays_of_the_declared_dtype(build: Build) -> None:
    space = spaces.Dict(a=STATE, b=spaces.Box(0, 9, (), np.uint8))
    observation = reset(build(space=space, seen={"a": [0, 1], "b": 3}))
    assert observation["observation.a"].dtype == np.float64
    assert observation["observation.a"].tolist() == [0, 1]
    assert (observation["observation.b"].dtype, observation["observation.b"].shape) == (np.uint8, ())


@pytest.mark.parametrize("seen", [{"b": ZERO}, None, ZERO, 3])
def test_a_missing_field_is_an_error_that_names_it(build: Build, seen: Any) -> None:
    simulator = build(space=spaces.Dict(a=STATE, b=STATE), seen={"a": ZERO, "b": ZERO})
    reset(simulator)
    bare(simulator).seen = seen
    with pytest.raises(ValueError, match="the observation has no 'a', which its space declares"):
        simulator.step(0, True)
    assert simulator.step(0, False).observation is None


# The instruction


class Told(Toy):
    def __init__(self, render_mode: str | None = None, **attributes: Any) -> None:
        info = attributes.pop("info", None)
        text = attributes.pop("text", None)
        space, seen = None, None
        if text is not None:
            space = spaces.Dict(instruction=spaces.Text(40), n=spaces.Discrete(2))
            seen = {"instruction": text, "n": 0}
        super().__init__(render_mode, space=space, seen=seen, info=info)
        for name, value in attributes.items():
            setattr(self, name, value)


@pytest.mark.parametrize(
    ("attributes", "instruction"),
    [
        ({"text": "from obs", "info": {"task": "from info"}, "task": "from env"}, "from obs"),
        ({"text": "", "info": {"task": "from info"}, "task": "from env"}, "from info"),
        ({"info": {"task": "from info"}, "task_description": "from env"}, "from info"),
        ({"info": {"task": 3}, "task_description": "pick up", "task": "pick_up"}, "pick up"),
        ({"task_description": None, "task": 5, "instruction": "last"}, "last"),
        ({"task": "pick_up", "instruction": "last"}, "pick_up"),
        ({"info": {"task": np.str_("numpy text")}}, "numpy text"),
        ({"task": len}, ""),
        ({}, ""),
    ],
)
def test_the_instruction_is_found_wherever_it_is(
    build: Build, attributes: Mapping[str, Any], instruction: str
) -> None:
    simulator = build(Told, **attributes)
    for observation in (reset(simulator), simulator.step(0, True).observation or {}):
        assert observation["task"] == instruction


def test_the_instruction_may_differ_from_episode_to_episode_and_step_to_step(build: Build) -> None:
    class PerEpisode(Toy):
        key = 0

        @property
        def task(self) -> str:
            return f"task {self.key}, {len(self.actions)} steps"

        def reset(self, **kwargs: Any) -> Any:
            self.key = kwargs["seed"]
            self.actions.clear()
            return super().reset(**kwargs)

    simulator = build(PerEpisode)
    assert simulator.info.instruction == "task 0, 0 steps"
    for seed in (4, 9):
        assert reset(simulator, "observation.state", seed=seed)["task"] == f"task {seed}, 0 steps"
        assert (simulator.step(0, True).observation or {})["task"] == f"task {seed}, 1 steps"


# Steps


@pytest.mark.parametrize(
    ("info", "success"),
    [
        ({}, None),
        ({"is_success": None}, None),
        ({"other": 1}, None),
        ({"is_success": True}, True),
        ({"is_success": False}, False),
        ({"success": 1.0}, True),
        ({"success": 0.0}, False),
        ({"success": [[1]]}, True),
        ({"is_success": np.bool_(True)}, True),
        ({"is_success": np.float32(1)}, True),
        ({"is_success": 1}, True),
        ({"is_success": np.array([True])}, True),
        ({"is_success": np.array(0.0)}, False),
        ({"is_success": False, "success": True}, False),
        ({"is_success": None, "success": True}, True),
        ({"is_success": math.nan}, None),
        ({"is_success": np.float64("nan")}, None),
    ],
)
def test_success_is_read_from_the_info_in_all_its_forms(
    build: Build, info: dict[str, Any], success: Any
) -> None:
    assert one_step(build(info=info)).success is success


@pytest.mark.parametrize(
    ("info", "passing", "final"),
    [
        ({"is_success": False, "final_info": {"is_success": True}}, False, True),
        ({"is_success": False, "final_info": UserDict({"is_success": True})}, False, True),
        ({"is_success": True, "final_info": {}}, True, True),
        ({"success": True, "final_info": None}, True, True),
        ({"final_info": {"success": np.array([0])}}, None, False),
    ],
)
def test_the_final_info_is_read_at_the_step_that_ends_the_episode_alone(
    build: Build, info: dict[str, Any], passing: Any, final: Any
) -> None:
    simulator = build(info=info)
    assert one_step(simulator).success is passing
    assert simulator.success_at_reset is bool(passing)
    assert one_step(build(info=info, terminated=True)).success is final
    assert one_step(build(info=info, truncated=True)).success is final


@pytest.mark.parametrize("value", [True, np.bool_(True), np.array([True]), 1, np.array(1), np.float32(1)])
def test_endings_are_read_in_all_their_forms(build: Build, value: Any) -> None:
    ended = one_step(build(terminated=value, truncated=None))
    assert (ended.terminated, ended.truncated) == (True, False)
    cut = one_step(build(terminated=np.bool_(False), truncated=value))
    assert (cut.terminated, cut.truncated) == (False, True)
    assert {type(flag) for flag in (ended.terminated, ended.truncated, cut.terminated)} == {bool}


@pytest.mark.parametrize(
    ("reward", "expected"),
    [
        (0.5, 0.5),
        (np.float32(0.5), 0.5),
        (np.float64(0.5), 0.5),
        (np.array(0.5), 0.5),
        ([0.5], 0.5),
        (np.array([[0.5]]), 0.5),
        (1, 1.0),
        (True, 1.0),
        (np.bool_(True), 1.0),
        (np.int8(-1), -1.0),
        (math.inf, math.inf),
        (np.float32("-inf"), -math.inf),
        (Decimal("0.5"), 0.5),
        (Fraction(1, 2), 0.5),
        (np.array([Decimal("0.5")]), 0.5),
        (10**400, math.inf),
    ],
)
def test_rewards_are_floats_whatever_holds_them(build: Build, reward: Any, expected: float) -> None:
    got = one_step(build(reward=reward)).reward
    assert type(got) is float
    assert got == expected


def test_a_reward_that_is_not_a_number_passes_through(build: Build) -> None:
    assert math.isnan(one_step(build(reward=np.float32("nan"))).reward)


@pytest.mark.parametrize(
    ("outcome", "message"),
    [
        ({"reward": np.zeros(2)}, r"the environment's reward has shape \(2,\)"),
        ({"reward": np.zeros(0)}, r"the environment's reward has shape \(0,\)"),
        ({"reward": None}, "the environment's reward is no number but None"),
        ({"reward": "1.0"}, "the environment's reward is no number but '1.0'"),
        ({"terminated": np.zeros(3, bool)}, r"the environment's terminated has shape \(3,\)"),
        ({"info": {"is_success": np.zeros((2, 1))}}, r"the environment's is_success has shape \(2, 1\)"),
        ({"info": {"success": "yes"}}, "the environment's success is no number but 'yes'"),
    ],
)
def test_what_is_not_one_value_is_an_error_that_names_it(
    build: Build, outcome: Mapping[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        one_step(build(**outcome))


# Rendering


@pytest.mark.parametrize(
    ("rendered", "pixel"),
    [
        (np.full((3, 5, 3), 7, np.uint8), 7),
        ([np.zeros((3, 5, 3), np.uint8), np.full((3, 5, 3), 7, np.uint8)], 7),
        (np.full((3, 5), 7, np.uint8), 7),
        (np.full((3, 5, 1), 7, np.uint8), 7),
        (np.full((3, 5, 4), 7, np.uint8), 7),
        (np.full((3, 5, 3), 0.5, np.float32), 128),
        (np.full((3, 5, 3), 1.0), 255),
        (np.full((3, 5, 3), 200.4), 200),
        (np.full((3, 5, 3), -3.0), 0),
        (np.full((3, 5, 3), np.nan), 0),
        (np.ones((3, 5), bool), 255),
        (np.full((3, 5, 3), 300, np.int64), 255),
        (np.full((3, 5, 3), 7, np.uint8)[::-1, ::-1], 7),
    ],
)
def test_whatever_is_rendered_becomes_a_uint8_rgb_frame(rendered: Any, pixel: int) -> None:
    frame = to_frame(rendered)
    assert (frame.dtype, frame.shape) == (np.uint8, (3, 5, 3))
    assert (frame == pixel).all()


@pytest.mark.parametrize(
    ("rendered", "message"),
    [
        (None, "no frame to film"),
        ([], "no frame to film"),
        ("+--+", r"no picture"),
        (np.zeros((3, 5, 2), np.uint8), r"uint8 \(3, 5, 2\)"),
        (np.zeros((3, 240, 320)), r"float64 \(3, 240, 320\)"),
        (np.zeros((0, 5, 3), np.uint8), r"uint8 \(0, 5, 3\)"),
        (np.zeros((2, 3, 5, 3), np.uint8), r"uint8 \(2, 3, 5, 3\)"),
    ],
)
def test_what_is_no_picture_is_an_error_that_says_what_it_is(rendered: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        to_frame(rendered)


def test_the_simulator_renders_its_environment(build: Build) -> None:
    simulator = build(frame=np.full((5, 3), 0.5))
    reset(simulator)
    assert simulator.render().tolist() == [[[128] * 3] * 3] * 5


# Actions


def test_an_action_reaches_the_environment_as_a_fresh_array(build: Build) -> None:
    simulator = build(action_space=spaces.Box(-1, 1, (2,)))
    chunk = np.array([[0.25, 0.5], [0.75, 1.0]], np.float64)
    reset(simulator)
    for action in chunk:
        simulator.step(action, False)
    chunk[:] = 9
    first, second = bare(simulator).actions
    assert (first.tolist(), second.tolist()) == ([0.25, 0.5], [0.75, 1.0])
    assert (type(first), first.dtype) == (np.ndarray, np.float32)
    assert first.flags.owndata


def test_an_action_outside_of_the_space_names_the_value(build: Build) -> None:
    simulator = build(action_space=spaces.Discrete(3, start=10))
    with pytest.raises(ValueError, match="the action 13 is none of the 3 integers from 10 to 12"):
        one_step(simulator, 13)


# Closing


def test_closing_closes_the_environment_once(build: Build) -> None:
    closed = []

    class Closing(Toy):
        def close(self) -> None:
            closed.append(self)

    simulator = build(Closing)
    simulator.close()
    simulator.close()
    assert len(closed) == 1


# Gymnasium's own


@pytest.mark.parametrize(
    "name", ["CartPole-v1", "Pendulum-v1", "Acrobot-v1", "FrozenLake-v1", "Blackjack-v1", "Taxi"]
)
def test_gymnasiums_own_environments_repeat_their_episodes_exactly(name: str) -> None:
    suite = GymnasiumSimulator.describe(name, {})

    def episode(simulator: GymnasiumSimulator, seed: int) -> list[Any]:
        space = rebuild(simulator.info.action_space)
        space.seed(seed)
        seen: list[Any] = [repr(reset(simulator, seed=seed))]
        for _ in range(30):
            step = simulator.step(space.sample(), True)
            seen.append(repr(step))
            if step.terminated or step.truncated:
                break
        return seen

    first, second = GymnasiumSimulator(suite, 0, {}), GymnasiumSimulator(suite, 0, {})
    first.build()
    second.build()
    expected = episode(first, 5)
    episode(second, 6)
    assert episode(second, 5) == expected
    assert describe(first._env.action_space) == first.info.action_space
    first.close()
    second.close()
