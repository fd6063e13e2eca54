"""The contract of `rollout.policies.base.Policy`, as tests that any policy can run."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from types import MappingProxyType
from typing import Any, ClassVar

import numpy as np
from msgspec import Struct

import rollout
from rollout.errors import PolicyError
from rollout.policies.base import Policy, PolicySpec, Request, Session
from rollout.policies.load import as_policy
from rollout.spaces import Box, Choice
from rollout.types import EpisodeSpec, Observation, TaskInfo
from rollout.values import pack, unpack

__all__ = ["PolicyContract"]


class PolicyContract:
    """What every policy must do. Inherit from it in a class whose name begins with `Test`, and set `policy`, as
    `--policy` takes it, and a `target` to act in; small and quick ones, since the policy acts in real episodes.

    Everything here runs on the CPU.
    """

    policy: ClassVar[str]
    policy_args: ClassVar[Mapping[str, Any]] = MappingProxyType({})
    target: ClassVar[str]
    options: ClassVar[Mapping[str, str]] = MappingProxyType({})  # --set
    horizon: ClassVar[int] = 12
    n_episodes: ClassVar[int] = 3
    # By how much an action may depend on what shares its batch: kernels of other shapes round differently.
    atol: ClassVar[float] = 1e-5

    def test_the_spec_can_be_run(self) -> None:
        with self._made() as policy:
            spec = policy.spec
            assert isinstance(spec, PolicySpec), f"spec is {spec!r}"
            assert spec.n_obs_steps >= 1, f"n_obs_steps is {spec.n_obs_steps}"
            assert spec.chunk_size >= 1, f"chunk_size is {spec.chunk_size}"
            assert spec.calls >= 1, f"calls is {spec.calls}"
            assert spec.max_batch is None or spec.max_batch >= 1, f"max_batch is {spec.max_batch}"
            assert spec.n_action_steps is None or spec.n_action_steps >= 1, "n_action_steps is below 1"

    def test_every_request_gets_one_chunk_that_can_be_executed(self) -> None:
        with self._made() as policy:
            log = _Log(policy)
            report = self._run(log)
        assert not log.miscounted, f"{log.miscounted[0]} requests and chunks"
        assert report.summary.overall.n_error == 0
        assert len({request.episode for request in log.asked}) == self.n_episodes, (
            "some episode asked nothing"
        )

    def test_chunks_have_the_action_spaces_shape_and_numbers_that_it_can_take(self) -> None:
        for asked in self._asked_until_refused():
            space = asked.task.action_space
            if isinstance(space, Box | Choice):
                _assert_fits(np.asarray(asked.chunk), space.shape, np.dtype(space.dtype), str(asked))

    def test_chunks_are_as_long_as_the_spec_says(self) -> None:
        with self._made() as policy:
            spec = policy.spec
        for asked in self._asked_until_refused():
            length = len(asked.chunk)
            if spec.chunk_size > 1:
                assert length == spec.chunk_size, (
                    f"{asked} has {length} actions; chunk_size: {spec.chunk_size}"
                )
            least = spec.n_action_steps or 1
            assert length >= least, f"{asked} has {length} actions, of which {least} are to be executed"

    def test_every_action_is_finite(self) -> None:
        for asked in self._asked_until_refused():
            actions = [np.asarray(leaf) for leaf in _leaves(asked.chunk)]
            finite = all(np.isfinite(leaf).all() for leaf in actions if leaf.dtype.kind in "fc")
            assert finite, f"{asked} is not finite"

    def test_the_same_request_gives_the_same_chunk(self) -> None:
        asked = self._asked()
        with self._made() as policy:
            again = _replay(policy, [[request] for request in asked])
        _assert_alike(asked, again, 0.0, "asked once more, of a policy made anew")

    def test_an_episode_after_others_gets_the_same_chunks(self) -> None:
        asked = self._asked()
        with self._made() as policy:
            _replay(policy, [[request] for request in reversed(asked)])
            again = _replay(policy, [[request] for request in asked])
        _assert_alike(asked, again, 0.0, "after other episodes")

    def test_what_shares_the_batch_changes_no_chunk(self) -> None:
        asked = self._asked()
        with self._made() as policy:
            again = _replay(policy, _together(asked))
        _assert_alike(asked, again, self.atol, "in a batch with other episodes")

    def test_episodes_of_other_ages_in_the_batch_change_no_chunk(self) -> None:
        asked = self._asked()
        with self._made() as policy:
            again = _replay(policy, _staggered(asked))
        _assert_alike(asked, again, self.atol, "in a batch with episodes that began earlier or ended")

    def test_the_order_of_a_batch_changes_no_chunk(self) -> None:
        asked = self._asked()
        with self._made() as policy:
            again = _replay(policy, [batch[::-1] for batch in _together(asked)])
        _assert_alike(asked, again, self.atol, "last in its batch instead of first")

    def test_observations_are_left_as_they_are(self) -> None:
        with self._made() as policy:
            log = _Log(policy)
            self._run(log)
        assert not log.overwritten, f"it writes into {log.overwritten[0]}"

    def test_the_engine_gets_the_same_episodes_whatever_it_runs_them_with(self) -> None:
        digests = []
        for workers, max_batch in ((1, 1), (self.n_episodes, 64)):
            with self._made() as policy:
                report = self._run(policy, workers=workers, max_batch=max_batch)
            digests.append([episode.digest for episode in report.episodes])
        assert digests[0] == digests[1], f"one worker and {self.n_episodes} give other episodes"

    @contextmanager
    def _made(self) -> Iterator[Policy]:
        config = rollout.EvalConfig.create(
            targets=(self.target,), policy_args=dict(self.policy_args), device="cpu"
        )
        with as_policy(self.policy, config) as policy:
            yield policy

    def _run(self, policy: Any, *, workers: int = 1, max_batch: int = 1) -> rollout.Report:
        return rollout.run(
            policy,
            self.target,
            episodes=self.n_episodes,
            tasks=(0,),
            horizon=self.horizon,
            options=dict(self.options),
            workers=workers,
            max_batch=max_batch,
            max_wait_ms=0.0 if max_batch == 1 else 20.0,  # so that quick policies see batches too
            device="cpu",
        )

    def _asked(self) -> list[_Asked]:
        """What the engine asks in real episodes, one after the other, and what it gets."""
        with self._made() as policy:
            log = _Log(policy)
            self._run(log)
        return log.asked

    def _asked_until_refused(self) -> list[_Asked]:
        """The same, up to what the engine does not execute."""
        with self._made() as policy:
            log = _Log(policy)
            with suppress(PolicyError):
                self._run(log)
        assert log.asked, "nothing was asked"
        return log.asked


class _Asked(Struct, frozen=True):
    """A request, and the chunk that it got."""

    episode: EpisodeSpec
    task: TaskInfo
    decision: int
    step: int
    observation: Observation
    chunk: Any

    def __str__(self) -> str:
        return f"the chunk of decision {self.decision} of episode {self.episode.episode}"

    def again(self, session: Session) -> Request:
        """The request, of a new session."""
        observation = _copied(self.observation)
        return Request(self.episode, self.task, self.decision, self.step, session, observation)


class _Log:
    """A policy that writes down what it is asked."""

    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        self.asked: list[_Asked] = []
        self.miscounted: list[tuple[int, int]] = []
        self.overwritten: list[str] = []

    @property
    def spec(self) -> PolicySpec:
        return self._policy.spec

    def open_session(self, episode: EpisodeSpec, task: TaskInfo) -> Session:
        return self._policy.open_session(episode, task)

    def infer(self, requests: Sequence[Request]) -> Sequence[Any]:
        before = [_copied(request.observation) for request in requests]
        chunks = self._policy.infer(requests)
        if len(chunks) != len(requests):
            self.miscounted.append((len(requests), len(chunks)))
        for request, observation, chunk in zip(requests, before, chunks, strict=False):
            self.overwritten += [
                key for key, value in observation.items() if pack(request.observation.get(key)) != pack(value)
            ]
            asked = (request.episode, request.task, request.decision, request.step)
            self.asked.append(_Asked(*asked, observation, _copied(list(chunk))))
        return chunks


def _replay(policy: Policy, batches: Iterable[Sequence[_Asked]]) -> dict[tuple[EpisodeSpec, int], Any]:
    """Chunks by episode and decision. A session is opened at an episode's first decision."""
    sessions: dict[EpisodeSpec, Session] = {}
    chunks: dict[tuple[EpisodeSpec, int], Any] = {}
    for batch in batches:
        for asked in batch:
            if asked.episode not in sessions:
                sessions[asked.episode] = policy.open_session(asked.episode, asked.task)
        found = policy.infer([asked.again(sessions[asked.episode]) for asked in batch])
        for asked, chunk in zip(batch, found, strict=True):
            chunks[asked.episode, asked.decision] = _copied(list(chunk))
    return chunks


def _together(asked: Sequence[_Asked]) -> list[list[_Asked]]:
    """The same decision of all episodes at a time."""
    last = max(request.decision for request in asked)
    return [[request for request in asked if request.decision == decision] for decision in range(last + 1)]


def _staggered(asked: Sequence[_Asked]) -> list[list[_Asked]]:
    """Each episode begins one decision after the one before it, so that they end one after the other too."""
    later = {episode: index for index, episode in enumerate(dict.fromkeys(each.episode for each in asked))}
    batches: dict[int, list[_Asked]] = {}
    for each in asked:
        batches.setdefault(each.decision + later[each.episode], []).append(each)
    return [batches[when] for when in sorted(batches)]


def _assert_fits(chunk: np.ndarray, shape: tuple[int, ...], dtype: np.dtype, what: str) -> None:
    single = chunk[np.newaxis] if chunk.shape == shape else chunk
    alone = shape == () and single.ndim == 2 and single.shape[1] == 1  # (chunk_size, 1) for `Discrete`
    assert single.shape[1:] == shape or alone, (
        f"{what} has shape {chunk.shape}, its actions should have {shape}"
    )
    assert chunk.dtype.kind in "biuf", f"{what} is of {chunk.dtype}"
    whole = dtype.kind == "f" or chunk.dtype.kind != "f" or bool((chunk == np.rint(chunk)).all())
    assert whole, f"{what} has fractions, for a space of {dtype}"


def _leaves(value: Any) -> Iterator[Any]:
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list | tuple):
        for item in value:
            yield from _leaves(item)
    elif not isinstance(value, str):
        yield value


def _assert_alike(
    asked: Sequence[_Asked], again: Mapping[tuple[EpisodeSpec, int], Any], atol: float, where: str
) -> None:
    for request in asked:
        found = again[request.episode, request.decision]
        text = f"{where}, decision {request.decision} of episode {request.episode.episode} differs"
        try:
            expected = np.asarray(request.chunk)
            differs = not np.allclose(np.asarray(found), expected, rtol=0.0, atol=atol)
        except (TypeError, ValueError):  # nested actions
            differs = pack(found) != pack(request.chunk)
        assert not differs, text


def _copied(value: Any) -> Any:
    if hasattr(value, "detach"):  # a tensor
        value = value.detach().cpu().numpy()
    if isinstance(value, list):
        return [_copied(item) for item in value]
    if isinstance(value, np.ndarray):
        return value.copy()
    return unpack(pack(value)) if not isinstance(value, dict) else {k: _copied(v) for k, v in value.items()}
