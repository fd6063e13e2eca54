"""More misbehaviour of the kinds that `badenvs` has, and some of its environments made to tell more.

`gym:siblings:sib/<Name>-v0`. As there, an episode's behaviour depends on its seed (`key`) alone: what goes wrong goes
wrong in episodes with `key % 4 == 1`, and the others succeed at step 4.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from types import MappingProxyType
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from badenvs import HugeMessages, ThreadReport, _Base


class CheckedMessages(HugeMessages):
    """Rewards the checksum of the action that arrived, which the policy can compare."""

    def _after(self, action: Any) -> Any:
        super()._after(action)
        return float(self.crc), self.t >= 3, False


class ToldThreads(ThreadReport):
    """Shows the policy what `ThreadReport` found."""

    def __init__(self, **kw: Any) -> None:
        super().__init__(**kw)
        self.observation_space = spaces.Dict(limits=spaces.Text(200, charset="0123456789None, "))

    def _obs(self) -> Any:
        info = super()._info()
        keys = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
        return {"limits": ",".join(str(info[key]) for key in keys)}


class Sibling(_Base):
    """Misbehaves at step 2 of the episodes that should, in the way that `how` names."""

    def __init__(self, how: str, **kw: Any) -> None:
        super().__init__(**kw)
        self.how = how

    @property
    def due(self) -> bool:
        return self.key % 4 == 1 and self.t == 2

    def _info(self) -> Any:
        return {"is_success": self.t >= 4}

    def _after(self, action: Any) -> Any:
        return 0.0, self.t >= 4, False


class Signals(Sibling):
    """Returns `SIGNALS[how]` in place of what a step returns: (reward, terminated, truncated, info)."""

    SIGNALS: dict[str, dict[str, Any]] = {  # noqa: RUF012
        "reward list": {"reward": [0.5]},
        "reward text": {"reward": "0.5"},
        "reward none": {"reward": None},
        "reward huge": {"reward": 10**400},
        "terminated text": {"terminated": "False"},
        "terminated array": {"terminated": np.zeros(3, bool)},
        "success text": {"info": {"success": "yes"}},
        "success pair": {"info": {"success": np.zeros(2)}},
        "success huge": {"info": {"is_success": 10**400}},
        "info none": {"info": None},
        "info list": {"info": [("is_success", True)]},
        "info cyclic": {"info": {}},
        "info odd": {"info": {}},
    }

    def step(self, action: Any) -> Any:
        seen, reward, terminated, truncated, info = super().step(action)
        if not self.due:
            return seen, reward, terminated, truncated, info
        told = self.SIGNALS[self.how]
        if self.how == "info cyclic":
            info = info | {"array": np.ones(3), "class": type, "text": "\ud800", "task": "lift \ud800"}
            info["self"] = info
        elif self.how == "info odd":
            info = Unreadable(info)
        return (
            seen,
            told.get("reward", reward),
            told.get("terminated", terminated),
            truncated,
            told.get("info", info) if told.get("info", True) != {} else info,
        )


class Unreadable(dict[str, Any]):
    """A dict that lets nobody read it."""

    def get(self, *_: Any) -> Any:
        raise RuntimeError("do not look")

    __getitem__ = __iter__ = keys = __bool__ = __eq__ = get  # type: ignore[assignment]


class Failing(Sibling):
    """Says at every step that it failed, but returns `INFOS[how]` at the last step of the episodes that misbehave."""

    INFOS: dict[str, Any] = {  # noqa: RUF012
        "none": None,
        "list": [("is_success", True)],
        "odd": Unreadable(is_success=True),
        "final odd": {"is_success": False, "final_info": Unreadable(is_success=True)},
        "final array": {"is_success": False, "final_info": np.array([{"is_success": True}])},
        "final proxy": {"is_success": False, "final_info": MappingProxyType({"is_success": True})},
    }

    def _info(self) -> Any:
        last = self.key % 4 == 1 and self.t == (1 if self.how == "early" else 4)
        return self.INFOS.get(self.how) if last else {"is_success": False}


class Stale(Sibling):
    """Goes on showing the `final_info` of the episode before; every one with `key % 4 == 1` is a success."""

    last: Any = None

    def _info(self) -> Any:
        if self.t >= 4:
            self.last = {"is_success": self.key % 4 == 1}
        return {"is_success": False, "final_info": self.last}


class OtherSeed(Sibling):
    """Has a `seed` that is not the old method `seed(s)`."""

    @property
    def seed(self) -> Any:
        match self.how:
            case "number":
                return 5
            case "no argument":
                return lambda: None
            case "two arguments":
                return lambda a, b: None
            case "attribute":
                raise AttributeError("seed")
            case _:
                raise RuntimeError("not seeded yet")

    def __getattr__(self, name: str) -> Any:
        raise RuntimeError(f"who asks for {name}?")


class Resets(Sibling):
    """Returns `how` from its reset."""

    def reset(self, **kw: Any) -> Any:
        seen, info = super().reset(**kw)
        return {"three": (seen, info, 0), "list": [seen, info], "none": None}[self.how]


class NoTruth:
    """An object that raises whatever it is asked."""

    def __bool__(self) -> bool:
        raise RuntimeError("no truth in me")

    def __repr__(self) -> str:
        raise RuntimeError("no name either")


class Success(Sibling):
    """Reports an object that has no truth value as its success."""

    def _info(self) -> Any:
        return {"is_success": NoTruth() if self.due else self.t >= 4}


class Endings(Sibling):
    """Leaves the step in ways that are no ordinary exception."""

    def _after(self, action: Any) -> Any:
        if self.due:
            self._leave()
        return super()._after(action)

    def _leave(self) -> None:  # noqa: PLR0912
        match self.how:
            case "interrupt":
                raise KeyboardInterrupt
            case "panic":
                raise type("PanicException", (BaseException,), {})("index out of bounds")
            case "generator":
                raise GeneratorExit
            case "exit":
                sys.exit(3)
            case "exit text":
                sys.exit("no licence")
            case "os exit":
                os._exit(0)
            case "surrogates":
                raise RuntimeError("cannot read \udcff")
            case "huge":
                raise RuntimeError("x" * 50_000_000)
            case "recursion":
                self._leave()
            case "cause of itself":
                first, second = ValueError("first"), ValueError("second")
                first.__cause__, second.__cause__ = second, first
                raise first
            case "close too":
                self.close = self._raise  # type: ignore[method-assign]
                self._raise()
            case "fork":
                os.fork()
            case "descriptors":
                os.closerange(0, 20)
            case "message":
                raise Wordy

    def _raise(self) -> None:
        raise RuntimeError("broken for good")


class Wordy(Exception):
    """Its text is no text."""

    def __str__(self) -> str:
        return 3  # type: ignore[return-value]  # noqa: PLE0307


class Untidy(Sibling):
    """Changes the process that it runs in, at once and in every episode, and does its work all the same."""

    def __init__(self, **kw: Any) -> None:
        super().__init__(how="untidy", **kw)
        np.seterr(all="raise")
        os.chdir("/")
        os.umask(0o777)
        os.environ.clear()
        sys.path.clear()
        sys.stdout = sys.stderr = None  # type: ignore[assignment]
        for daemon in (False, True):
            threading.Thread(target=time.sleep, args=(3600,), daemon=daemon).start()

    def _after(self, action: Any) -> Any:
        for descriptor in (1, 2):
            os.write(descriptor, b"no line ends here " * 50_000)
        return super()._after(action)

    def _obs(self) -> Any:
        return np.array([1e-50])  # as float32, that is an underflow


class Lacking(gym.Env[Any, Any]):
    """Lacks `what`: a space, or manners in its constructor."""

    def __init__(self, what: str, render_mode: str | None = None) -> None:
        self.render_mode = render_mode
        if what != "action_space":
            self.action_space = spaces.Discrete(2)
        if what != "observation_space":
            self.observation_space = spaces.Discrete(2)
        if what == "manners":
            sys.exit(0)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        return 0, {}


class Observing(Sibling):
    """Observes `SEEN[how]` in place of the declared float32 (2,)."""

    SEEN: dict[str, Any] = {  # noqa: RUF012
        "list": [1.0, 2.0],
        "whole numbers": np.array([1, 2]),
        "other byte order": np.array([1, 2], ">f4"),
        "text": "nothing",
        "none": None,
        "one number": 1.0,
        "longer": np.zeros(3, np.float32),
        "ragged": [[1.0], [2.0, 3.0]],
        "complex": np.zeros(2, complex),
        "objects": np.array([None, None]),
        "beyond float32": np.array([1.0, -1e300]),
    }

    def __init__(self, **kw: Any) -> None:
        super().__init__(**kw)
        self.observation_space = spaces.Box(-np.inf, np.inf, (2,), np.float32)

    def _obs(self) -> Any:
        return self.SEEN[self.how] if self.due else np.full(2, self.t, np.float32)


class Nested(Sibling):
    """Observes a dict in a dict and a tuple, some part of which is as `how` says."""

    GOOD: dict[str, Any] = {  # noqa: RUF012
        "arm": {"pose": np.zeros(2, np.float32), "grip": np.int64(1)},
        "pair": (np.zeros(1, np.float32), np.int64(2)),
    }
    SEEN: dict[str, dict[str, Any]] = {  # noqa: RUF012
        "missing": {"arm": {"grip": 1}},
        "no dict": {"arm": 3},
        "longer": {"arm": {"pose": np.zeros(3, np.float32), "grip": 1}},
        "text": {"arm": {"pose": "nothing", "grip": 1}},
        "fraction": {"arm": {"pose": np.zeros(2, np.float32), "grip": 1.5}},
        "two numbers": {"arm": {"pose": np.zeros(2, np.float32), "grip": [1, 2]}},
        "beyond float32": {"pair": (np.array([1e300]), 2)},
        "short": {"pair": (np.zeros(1, np.float32),)},
        "no tuple": {"pair": {"0": 1}},
        "undeclared": {"arm": {**GOOD["arm"], "debug": NoTruth()}, "debug": NoTruth()},
        "proxy": {"arm": MappingProxyType(GOOD["arm"])},
        "wider": {"arm": {"pose": np.zeros(2), "grip": np.array(1, np.int32)}, "pair": ([0.0], 2)},
        "list": {"pair": [[0.0], np.array(2)]},
    }

    def __init__(self, **kw: Any) -> None:
        super().__init__(**kw)
        pose, width = (spaces.Box(-np.inf, np.inf, (n,), np.float32) for n in (2, 1))
        self.observation_space = spaces.Dict(
            arm=spaces.Dict(pose=pose, grip=spaces.Discrete(3)),
            pair=spaces.Tuple((width, spaces.Discrete(3))),
        )

    def _obs(self) -> Any:
        return self.GOOD | (self.SEEN[self.how] if self.due else {})


class Aliasing(_Base):
    """Hands out views on arrays that it goes on writing into, flipped and transposed ones too."""

    def __init__(self, **kw: Any) -> None:
        super().__init__(**kw)
        self.picture = np.zeros((64, 48, 3), np.uint8)
        self.state = np.zeros(4, np.float64)
        self.observation_space = spaces.Dict(
            picture=spaces.Box(0, 255, (48, 64, 3), np.uint8),
            state=spaces.Box(-np.inf, np.inf, (2,), np.float64),
            pair=spaces.Tuple((spaces.Box(-np.inf, np.inf, (2,), np.float64), spaces.Discrete(9))),
        )

    def _obs(self) -> Any:
        self.picture[:] = 10 * self.t
        self.picture[0] = 10 * self.t + 1
        self.state[:] = self.t, -1, self.t + 0.5, -1
        view = self.state[::2]
        view.flags.writeable = False
        return {"picture": self.picture.transpose(1, 0, 2)[::-1, ::-1], "state": view, "pair": (view, self.t)}


class Autoresets(_Base):
    """Resets itself in the step that ends its episode, as wrappers of Gymnasium's older versions did."""

    def _info(self) -> Any:
        return {}

    def _after(self, action: Any) -> Any:
        return 1.0, self.t >= 3, False

    def step(self, action: Any) -> Any:
        seen, reward, terminated, truncated, info = super().step(action)
        if terminated:
            final = {"is_success": True}
            info = {"final_observation": seen, "final_info": final}
            seen, _ = self.reset(seed=77)
        return seen, reward, terminated, truncated, info

    def render(self) -> Any:
        return np.full((64, 64, 3), 200 if self.key == 77 else 20 * self.t, np.uint8)


class BadText(_Base):
    """Its instruction, known from the first reset on, has a lone surrogate, wherever an instruction may be."""

    began = False

    @property
    def task(self) -> str:
        if not self.began:
            raise RuntimeError("no task before the first reset")
        return "lift the \ud83d cube"

    def reset(self, **kw: Any) -> Any:
        self.began = True
        return super().reset(**kw)

    def __init__(self, where: str = "attribute", **kw: Any) -> None:
        super().__init__(**kw)
        self.where = where
        if where == "observation":
            self.observation_space = spaces.Dict(
                task=spaces.Text(64), t=spaces.Box(-np.inf, np.inf, (1,), np.float32)
            )

    def _obs(self) -> Any:
        seen = super()._obs()
        return {"task": self.task, "t": seen} if self.where == "observation" else seen

    def _info(self) -> Any:
        return {"is_success": self.t >= 2} | ({"task": self.task} if self.where == "info" else {})

    def _after(self, action: Any) -> Any:
        return 0.0, self.t >= 2, False


class Owns(_Base):
    """Has arguments of its own called as ours are."""

    def __init__(self, settle_steps: int = 0, init_states: str = "", render_mode: str | None = None) -> None:
        super().__init__(render_mode=render_mode)
        self.owned = (settle_steps, init_states)

    def _info(self) -> Any:
        return {"is_success": self.owned == (7, "some")}

    def _after(self, action: Any) -> Any:
        return 0.0, self.t >= 2, False


for _class in (
    *(CheckedMessages, ToldThreads, Signals, Success, Endings, Untidy, Lacking, Observing, Aliasing),
    *(Autoresets, BadText, Owns, Failing, Stale, OtherSeed, Resets, Nested),
):
    gym.register(
        f"sib/{_class.__name__}-v0",
        f"siblings:{_class.__name__}",
        disable_env_checker=True,
        order_enforce=False,
    )
