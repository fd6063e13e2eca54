"""The contract of `rollout.envs.base.Simulator`, as tests that any adapter can run."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from types import MappingProxyType
from typing import Any, ClassVar, Final

try:
    import pytest
except ImportError as exc:
    raise ImportError("rollout.testing needs pytest; run: pip install pytest") from exc

from msgspec import structs

import rollout
from rollout.envs.base import Simulator
from rollout.envs.registry import load_simulator, missing_requirement, resolve
from rollout.policies.builtin import RandomPolicy
from rollout.testing.members import shortcomings
from rollout.testing.play import UNKNOWN_KEY, Ask, Described, Episode, Part, Play, Played, run
from rollout.types import SuiteInfo, TaskInfo

__all__ = ["SimulatorContract"]

NOT_A_VALUE: Final = "?"


class _Watching(RandomPolicy):
    """Acts as `random` does, and reads everything."""

    spec = rollout.PolicySpec()


class SimulatorContract:
    """What every simulator must do. Inherit from it in a class whose name begins with `Test`, and set `target`.

    The simulator runs in fresh processes: two that play episodes, one that lists the suite, and the engine's workers.
    """

    target: ClassVar[str]
    task_id: ClassVar[int] = 0
    options: ClassVar[Mapping[str, str]] = MappingProxyType({})  # --set; small pictures save time
    bad_options: ClassVar[Mapping[str, str]] = MappingProxyType({})  # more values that must be refused
    free_options: ClassVar[frozenset[str]] = frozenset()  # options that take any text
    constant_keys: ClassVar[frozenset[str]] = frozenset()  # observations that never change
    can_film: ClassVar[bool] = True  # False: `render` may raise
    n_steps: ClassVar[int] = 12  # of each episode; random actions
    timeout_s: ClassVar[float] = 300.0  # for a process that builds the simulator and plays episodes

    # What the class says of itself

    def test_the_class_has_every_member_of_a_simulator(self) -> None:
        adapter = self._adapter
        lacking = shortcomings(adapter)
        assert not lacking, "\n".join(lacking)
        assert adapter.family == self._family, "`family` must be the name of the entry point"

    def test_every_name_and_alias_stands_for_suites(self) -> None:
        adapter = self._adapter
        for target in (*(f"{adapter.family}:{name}" for name in adapter.names), *adapter.aliases):
            family, suites = resolve(target)
            assert family == adapter.family, f"{target} leads to {family}"
            assert suites, f"{target} stands for no suite"

    def test_bad_options_are_refused(self) -> None:
        accepted = self._described.accepted
        assert not accepted, "describe must raise UsageError: " + "; ".join(accepted)

    def test_the_suite_lists_its_tasks(self) -> None:
        suite = self._suite
        assert suite.suite == f"{self._family}:{self._name}", f"the suite calls itself {suite.suite}"
        assert suite.tasks, "it has no task"
        ids = [task.task_id for task in suite.tasks]
        assert ids == list(range(len(ids))), f"task ids count from 0: {ids}"
        for task in suite.tasks:
            assert task.horizon is None or task.horizon >= 1, f"{task.task}: horizon {task.horizon}"
            assert task.n_init_states is None or task.n_init_states >= 1, f"{task.task}: no initial state"

    def test_the_constructor_imports_no_simulator_and_loads_no_gl(self) -> None:
        early = self._first.early
        assert not early, f"before build: {', '.join(early)}"

    # What it tells of its task

    def test_the_built_task_is_the_listed_one(self) -> None:
        task, listed = self._task, self._suite.task(self.task_id)
        expected = (self._suite.suite, listed.task, listed.task_id, listed.horizon)
        found = (task.suite, task.task, task.task_id, task.horizon)
        assert found == expected, f"info says {found}, describe says {expected}"
        if listed.instruction:
            assert task.instruction == listed.instruction, f"info's instruction is {task.instruction!r}"
        assert task.fps >= 1, f"{task.fps} frames a second"
        assert task.observation_space or task.instruction, "there is nothing to observe"

    def test_observations_are_in_their_spaces(self) -> None:
        outside = [text for episode in self._everything for text in episode.outside]
        assert not outside, "\n".join(outside)

    def test_every_observation_changes_at_some_time(self) -> None:
        seen = [values for episode in self._first.episodes for values in episode.observations.values()]
        for key in self._task.observation_space.keys() - self.constant_keys:
            values = {values.get(key) for values in seen}
            assert len(values) > 1, f"{key} is always the same, in {len(seen)} observations of two episodes"

    def test_sampled_actions_are_accepted(self) -> None:
        episode = self._first.episodes[0]
        ended = any(any(ending[:2]) for ending in episode.endings)
        assert ended or len(episode.rewards) == self.n_steps, f"it took {len(episode.rewards)} actions"

    def test_rewards_and_endings_have_their_types(self) -> None:
        wrong = [text for episode in self._everything for text in episode.flags]
        assert not wrong, "\n".join(wrong)

    def test_success_is_told_only_where_there_is_a_rule_for_it(self) -> None:
        told = any(success is not None for episode in self._everything for *_, success in episode.endings)
        assert self._task.success_rule is not None or not told, "success is told, but success_rule is None"
        assert self._task.success_rule != "", "success_rule must be words, or None"

    # An episode is a function of its spec alone

    def test_the_same_spec_gives_the_same_episode_in_another_process(self) -> None:
        _assert_alike(self._first.episodes[0], self._second.episodes[0], "in another process")

    def test_an_episode_after_others_is_the_same(self) -> None:
        first, _, again = self._first.episodes
        _assert_alike(first, again, "after other episodes")

    def test_the_engine_gets_the_same_episodes_whatever_it_runs_them_with(self) -> None:
        one = self._digests(RandomPolicy(), workers=1)
        two = self._digests(_Watching(), workers=2)
        assert one == two, "one worker without observations and two with all of them give other episodes"

    # Looking changes nothing

    def test_looking_at_fewer_steps_changes_nothing(self) -> None:
        full = self._first.episodes[0]
        _, fourth, last, blind, *_ = self._second.episodes
        _assert_alike(full, fourth, "where every fourth step is looked at")
        _assert_alike(full, last, "where no step but the last is looked at")
        _assert_alike(full, blind, "where no key is asked for")

    def test_filming_changes_nothing_and_gives_pictures(self) -> None:
        if not self.can_film:
            pytest.skip("can_film is False")
        [filmed] = [episode for episode in self._second.episodes if episode.film or episode.pictures]
        assert not filmed.pictures, "\n".join(filmed.pictures)
        assert len(filmed.film) == len(filmed.rewards) + 1, f"{len(filmed.film)} pictures"
        _assert_alike(self._first.episodes[0], filmed, "where every step is filmed")

    def test_only_what_was_asked_for_is_delivered(self) -> None:
        wrong = [
            f"asked for {episode.asked}: {text}" for episode in self._everything for text in episode.unasked
        ]
        assert not wrong, "\n".join(wrong)

    def test_a_key_asked_for_alone_has_the_same_value(self) -> None:
        singles = [episode for episode in self._second.episodes if episode.asked]
        assert len(singles) == len(self._task.observation_space), "not every key was asked for"
        for alone in singles:
            _assert_alike(self._first.episodes[0], alone, f"where {alone.asked} is asked for")

    def test_an_unknown_key_is_refused(self) -> None:
        for played in (self._first, self._second):
            assert played.unknown_key is None, f"reset with the key {UNKNOWN_KEY!r}: {played.unknown_key}"

    def test_what_was_delivered_stays_as_it_was(self) -> None:
        altered = dict.fromkeys((*self._first.altered, *self._second.altered))
        assert not altered, "\n".join(altered)

    def test_closing_twice_is_harmless_and_the_end_silent(self) -> None:
        for played in (self._first, self._second):
            assert played.closing is None, played.closing
            noise = [word for word in ("Traceback", "Exception ignored") if word in played.stderr]
            assert not noise, played.stderr

    # How that is found out

    @property
    def _family(self) -> str:
        return resolve(self.target)[0]

    @property
    def _name(self) -> str:
        names = resolve(self.target)[1]
        assert len(names) == 1, f"{self.target} stands for several suites: test them one by one"
        return names[0]

    @property
    def _adapter(self) -> type[Simulator]:
        adapter = load_simulator(self._family)
        missing = missing_requirement(adapter)
        assert missing is None, missing
        return adapter

    @property
    def _described(self) -> Described:
        options = [name for name in self._adapter.options if not name.endswith("*")]
        bad = {name: NOT_A_VALUE for name in options if name not in self.free_options} | dict(
            self.bad_options
        )
        ask = Ask(
            family=self._family,
            name=self._name,
            options=dict(self.options),
            bad_options=tuple(bad.items()),
        )
        described = run(ask, Described, self.timeout_s)
        assert described.error is None, described.error
        return described

    @property
    def _suite(self) -> SuiteInfo:
        suite = self._described.suite
        assert suite is not None
        return suite

    @property
    def _first(self) -> Played:
        """Every step looked at; then another episode; then the first one again."""
        return self._checked(0)

    @property
    def _second(self) -> Played:
        """The same episode again and again, looked at in different ways."""
        return self._checked(1)

    def _checked(self, index: int) -> Played:
        with ThreadPoolExecutor(2) as pool:  # building takes seconds: both at once, the first time
            played = list(pool.map(lambda play: run(play, Played, self.timeout_s), self._plays()))[index]
        assert played.error is None, played.error
        return played

    def _plays(self) -> tuple[Play, Play]:
        first = (Part(episode=0), Part(episode=1), Part(episode=0))
        second = (
            Part(episode=0),
            Part(episode=0, every=4),
            Part(episode=0, every=0),
            Part(episode=0, keys=()),
            *([Part(episode=0, every=4, film=True)] if self.can_film else ()),
        )
        play = Play(
            family=self._family,
            suite=self._suite,
            task_id=self.task_id,
            options=dict(self.options),
            n_steps=self.n_steps,
            parts=first,
        )
        return play, structs.replace(play, parts=second, single_keys=True)

    @property
    def _everything(self) -> tuple[Episode, ...]:
        return (*self._first.episodes, *self._second.episodes)

    @property
    def _task(self) -> TaskInfo:
        task = self._first.task
        assert task is not None
        return task

    def _digests(self, policy: Any, *, workers: int) -> list[str | None]:
        report = rollout.run(
            policy,
            self.target,
            tasks=(self.task_id,),
            episodes=2,
            horizon=self.n_steps,
            options=dict(self.options),
            workers=workers,
        )
        errors = [episode.error for episode in report.episodes if episode.error is not None]
        assert not errors, errors[0].traceback or errors[0].message
        return [episode.digest for episode in report.episodes]


def _assert_alike(full: Episode, other: Episode, where: str) -> None:
    """That `other` is the episode `full` as far as it goes, wherever both were looked at."""
    n_steps = len(other.rewards)
    for what in ("rewards", "endings"):
        expected, found = getattr(full, what)[:n_steps], getattr(other, what)
        wrong = [
            step for step, pair in enumerate(zip(expected, found, strict=False), 1) if pair[0] != pair[1]
        ]
        assert not wrong, f"{where}, {what} differ from step {wrong[0]} on"
        assert len(expected) == n_steps, f"{where}, the episode ends later, at step {n_steps}"
    for step, values in other.observations.items():
        for key, value in values.items():
            assert full.observations[step].get(key) == value, (
                f"{where}, {key} differs {f'at step {step}' if step else 'after the reset'}"
            )
