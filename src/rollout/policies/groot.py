"""A GR00T server (NVIDIA/Isaac-GR00T, N1.6 and N1.7) as a policy: `gr00t:tcp://HOST:PORT`."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from functools import partial
from importlib import import_module
from typing import Any, ClassVar, Final, Literal

import msgspec
import numpy as np
from msgspec import Struct

from rollout.config import EvalConfig
from rollout.errors import PolicyError, ProtocolError, UsageError
from rollout.policies.base import PolicySpec, PolicySpent, Request, Session
from rollout.policies.groot_client import MEGABYTE, Address, GrootClient, ServerRefused
from rollout.policies.groot_keys import Keys, Layout, Modalities, joined
from rollout.policies.groot_wire import ArrayForm
from rollout.types import EpisodeSpec, Observation, TaskInfo

__all__ = ["GrootPolicy"]

PING_S: Final = 10.0  # a server that is asked for the first time may be answering someone else


class Arguments(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What `--policy-arg` takes."""

    keys: dict[str, str] = {}  # the server's key -> ours, e.g. {"state.x": "observation.state[0:1]"}
    actions: tuple[str, ...] | None = None  # the parts of an action, in order; None: as the server lists them
    arrays: Literal["auto", "npy", "msgpack"] = "auto"  # the form in which arrays are sent
    layout: Literal["auto", "nested", "flat"] = "auto"  # flat: of a server with --use-sim-policy-wrapper
    gripper: Literal["auto", "as_is", "libero"] = "auto"  # auto: libero where all targets are LIBERO's
    seeds: bool = False  # send each request's own seed as options {"seed": [...]}
    timeout_s: float = 60.0
    max_message_mb: float = 256.0  # of an answer
    api_token_env: str = "GR00T_API_TOKEN"

    @classmethod
    def parse(cls, given: Mapping[str, Any]) -> Arguments:
        """Raises `UsageError`."""
        try:
            found = msgspec.convert(dict(given), cls)
        except msgspec.ValidationError as exc:
            raise UsageError(f"policy gr00t: --policy-arg: {exc}") from exc
        if not (0 < found.timeout_s <= 86_400 and 0 < found.max_message_mb <= 100_000):
            raise UsageError("policy gr00t: --policy-arg timeout_s and max_message_mb must be above 0")
        return found


class GrootPolicy:
    """Asks a GR00T server: one request carries the whole batch, and nothing is remembered between requests.

    The server says itself what it reads and returns (`get_modality_config`). Protocol and observations are those of
    NVIDIA/Isaac-GR00T, gr00t/policy/server_client.py and gr00t_policy.py; defaults for LIBERO, the gripper included,
    those of gr00t/eval/sim/LIBERO/libero_env.py.
    """

    locator: ClassVar[str] = "tcp://HOST:PORT"

    def __init__(
        self,
        client: GrootClient,
        modalities: Modalities,
        arguments: Arguments,
        *,
        libero_gripper: bool = False,
    ) -> None:
        self._client, self._seeds, self._libero_gripper = client, arguments.seeds, libero_gripper
        self._keys = Keys(modalities, arguments.keys)
        self._actions = arguments.actions or modalities.action.modality_keys
        self._layout = arguments.layout
        self.spent = PolicySpent()
        self.spec = PolicySpec(
            observation_keys=self._keys.observation_keys,
            n_obs_steps=modalities.n_obs_steps,
            chunk_size=max(1, len(modalities.action.delta_indices)),
            n_action_steps=None,
        )

    @classmethod
    @contextmanager
    def opened(cls, locator: str, config: EvalConfig, /, **arguments: Any) -> Iterator[GrootPolicy]:
        """Connect to the server and learn what it reads; `arguments` are the fields of `Arguments`.

        Raises `UsageError` with one line where nobody answers, or the server's keys cannot be served.
        """
        given, address = Arguments.parse(arguments), Address(locator)
        _require_pyzmq()
        _knock(address)
        client = GrootClient(
            address,
            timeout_s=given.timeout_s,
            max_message_bytes=round(given.max_message_mb * MEGABYTE),
            token=os.environ.get(given.api_token_env) or None,
        )
        with closing(client):
            modalities, form = _introduced(client, given)
            client.hang_up()  # the thread that infers connects anew
            client.arrays = form if given.arrays == "auto" else given.arrays
            yield cls(client, modalities, given, libero_gripper=_libero_gripper(given, config))

    def open_session(self, episode: EpisodeSpec, task: TaskInfo) -> Session:
        """Nothing: a request says all."""

    def infer(self, requests: Sequence[Request]) -> Sequence[np.ndarray]:
        """One `get_action` for all: (B, chunk_size, action_dim) float32.

        Raises `PolicyError` where the server is silent, answers with an error, or with no actions.
        """
        options = {"seed": [request.noise_seed for request in requests]} if self._seeds else None
        answer = self._asked([request.observation for request in requests], options)
        try:
            actions = joined(answer, self._actions, len(requests))
        except ProtocolError as exc:
            raise PolicyError(f"the GR00T server at {self._client.where} answered {exc}") from exc
        if self._libero_gripper:  # it says 0 closed .. 1 open, LIBERO takes -1 open, 1 closed
            actions[..., -1] = -np.sign(2 * actions[..., -1] - 1)
        return list(actions)

    def _asked(self, observations: Sequence[Observation], options: Any) -> Any:
        """The server's answer; `auto` settles on the layout that its first answer asks for."""
        try:
            answer = self._ask(observations, options, "flat" if self._layout == "flat" else "nested")
        except ServerRefused as exc:
            if self._layout != "auto" or not self._keys.asks_for_flat(exc.text):
                raise
            with suppress(ServerRefused):  # then the first answer is the one to tell
                answer = self._ask(observations, options, "flat")
                self._layout = "flat"
                return answer
            raise
        if self._layout == "auto":
            self._layout = "nested"
        return answer

    def _ask(self, observations: Sequence[Observation], options: Any, layout: Layout) -> Any:
        began = time.perf_counter()
        batch = self._keys.batch(observations, layout)
        collated = time.perf_counter()
        answer = self._client.ask("get_action", {"observation": batch, "options": options})
        self.spent.collate += collated - began
        self.spent.forward += time.perf_counter() - collated
        return answer


def _introduced(client: GrootClient, given: Arguments) -> tuple[Modalities, ArrayForm]:
    """What the server says of itself, and how it sends arrays. Raises `UsageError`."""
    ask = partial(client.ask, tries=1, timeout_s=min(given.timeout_s, PING_S))
    try:
        ask("ping")
        told = ask("get_modality_config")
        # Once, before the first episode, as gr00t/eval/rollout_policy.py: a server has one state, if any, for all.
        ask("reset", {"options": None})
        return Modalities.parse(told), _form(told)
    except ServerRefused as exc:
        line = " ".join(exc.text.split())
        raise UsageError(
            f"policy gr00t: the server at {client.where} refuses: {line} (a token is read from {given.api_token_env})"
        ) from exc
    except ProtocolError as exc:
        raise UsageError(f"policy gr00t: the server at {client.where} answered {exc}") from exc
    except PolicyError as exc:
        raise UsageError(f"policy gr00t: {exc}") from exc


def _form(told: Mapping[Any, Any]) -> ArrayForm:
    """N1.7, which sends arrays in msgpack-numpy's form, marks a modality by another name than N1.6."""
    newer = any(isinstance(value, dict) and "__ModalityConfig__" in value for value in told.values())
    return "msgpack" if newer else "npy"


def _libero_gripper(given: Arguments, config: EvalConfig) -> bool:
    if given.gripper == "auto":
        return all(target.startswith(("libero:", "libero_")) for target in config.targets)
    return given.gripper == "libero"


def _knock(address: Address) -> None:
    """ZeroMQ tries for ever, in silence, where nobody listens."""
    try:
        socket.create_connection((address.host, address.port), timeout=PING_S).close()
    except OSError as exc:
        reason = exc.strerror or str(exc) or type(exc).__name__
        raise UsageError(
            f"policy gr00t: no server at {address.url}: {reason}; start one with gr00t/eval/run_gr00t_server.py"
        ) from exc


def _require_pyzmq() -> None:
    try:
        import_module("zmq")
    except ImportError as exc:
        raise UsageError("policy gr00t needs pyzmq: run pip install 'rollout-engine[remote]'") from exc
