"""Evaluations end to end: real worker processes, toy environments."""

from __future__ import annotations

import asyncio
import json
import os
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import anyio
import msgspec
import numpy as np
import pytest
import torch

import rollout
from rollout import EpisodeResult, PolicySpec, Request
from rollout.errors import PolicyError, UsageError
from rollout.results.journal import read_actions, read_journal
from rollout.types import Outcome
from rollout.values import Array, unpack_array

COUNT, FAULTY = "gym:toys:toy/Count-v0", "gym:toys:toy/Faulty-v0"


class Half:
    """Always half speed; notes what it was asked."""

    def __init__(self, chunk: int = 1, keys: tuple[str, ...] | None = None, n_obs_steps: int = 1) -> None:
        self.spec = PolicySpec(
            observation_keys=keys, chunk_size=chunk, n_action_steps=chunk, n_obs_steps=n_obs_steps
        )
        self.requests: list[Request] = []

    def infer(self, requests: Sequence[Request]) -> Sequence[Any]:
        self.requests += requests
        chunk = self.spec.chunk_size
        return [np.full((chunk, 2), 0.5, np.float32) for _ in requests]


def same(episodes: Sequence[EpisodeResult]) -> list[tuple[Any, ...]]:
    """What must not depend on how an episode was run."""
    return [(e.task, e.episode, e.seed, e.outcome, e.steps, e.sum_reward, e.digest) for e in episodes]


def test_every_planned_episode_is_measured_with_its_exact_result() -> None:
    report = rollout.run(Half(), COUNT, episodes=6, workers=2)
    assert [e.episode for e in report.episodes] == [0, 1, 2, 3, 4, 5]
    assert [e.seed for e in report.episodes] == [1000, 1001, 1002, 1003, 1004, 1005]
    assert [e.success for e in report.episodes] == [True, False, True, False, True, False]
    assert [e.steps for e in report.episodes] == [6, 12, 5, 12, 7, 12]  # 5 + seed % 3, or the time limit
    assert [e.truncated for e in report.episodes] == [False, True] * 3
    assert report.episodes[0].sum_reward == pytest.approx(6.0)
    assert report.success_rate == 0.5
    assert report.tasks["toy/Count-v0"].mean_steps == 9.0


@pytest.mark.parametrize(
    "settings",
    [{"workers": 4}, {"workers": 0}, {"workers": 3, "max_batch": 1}, {"workers": 3, "max_wait_ms": 5.0}],
)
def test_results_do_not_depend_on_how_they_were_computed(settings: dict[str, Any]) -> None:
    plain = rollout.run("random", "gym:CartPole-v1", episodes=8, workers=1)
    other = rollout.run("random", "gym:CartPole-v1", episodes=8, **settings)
    assert same(plain.episodes) == same(other.episodes)
    assert len({e.digest for e in plain.episodes}) == 8


def test_debugging_in_the_parent_leaves_its_environment_variables_alone() -> None:
    rollout.run("random", COUNT, episodes=1, workers=0)  # whatever importing Gymnasium itself sets
    before = dict(os.environ)
    rollout.run("random", COUNT, episodes=1, workers=0)
    assert dict(os.environ) == before


def test_shards_see_every_task_and_add_up_to_the_whole_run() -> None:
    whole = rollout.run("random", COUNT, episodes=5, workers=2)
    parts = [rollout.run("random", COUNT, episodes=5, workers=2, shard=(k, 2)) for k in (1, 2)]
    merged = sorted((e for part in parts for e in part.episodes), key=lambda e: e.episode)
    assert same(merged) == same(whole.episodes)
    assert [len(part.episodes) for part in parts] == [3, 2]


def test_an_environment_without_a_success_signal_has_no_success_rate() -> None:
    report = rollout.run("random", "gym:CartPole-v1", episodes=2, workers=1)
    assert {e.outcome for e in report.episodes} == {Outcome.UNKNOWN}
    assert {e.success for e in report.episodes} == {None}
    assert report.success_rate is None
    assert report.ci95 is None
    assert report.summary.overall.mean_return is not None


@pytest.mark.parametrize(
    "space",
    [
        "box",
        "unbounded",
        "discrete",
        "binary",
        "multi",
        "text",
        "tuple",
        "dict",
        "sequence",
        "graph",
        "oneof",
    ],
)
@pytest.mark.parametrize("policy", ["random", "zero"])
def test_every_action_space_can_be_acted_in_and_observed(space: str, policy: str) -> None:
    class Watching:
        """Forwards to a built-in policy, but reads everything."""

        def __init__(self) -> None:
            from rollout.policies.load import load_policy

            self.inner = load_policy(policy, {})
            self.seen: list[Any] = []

        def open_session(self, episode: Any, task: Any) -> Any:
            return self.inner.open_session(episode, task)

        def infer(self, requests: Sequence[Request]) -> Sequence[Any]:
            self.seen += [r.observation for r in requests]
            return self.inner.infer(requests)  # type: ignore[no-any-return]

    watching = Watching()
    report = rollout.run(watching, "gym:toys:toy/Echo-v0", episodes=2, workers=0, options={"space": space})
    assert [e.error for e in report.episodes] == [None, None]
    assert report.success_rate == 1.0
    assert len(watching.seen) == 6
    assert set(watching.seen[0]) == {"observation.last", "observation.t", "task"}


def test_a_chunk_is_one_round_trip_and_ends_with_the_episode() -> None:
    policy = Half(chunk=4)
    report = rollout.run(policy, COUNT, episodes=2, workers=1)
    assert [e.steps for e in report.episodes] == [6, 12]
    assert [(r.episode.episode, r.decision, r.step) for r in policy.requests] == [
        (0, 0, 0),
        (0, 1, 4),
        (1, 0, 0),
        (1, 1, 4),
        (1, 2, 8),
    ]
    assert [r.observation["observation.state"].tolist() for r in policy.requests[:2]] == [
        [0, 1000],
        [4, 1000],
    ]
    assert same(report.episodes) == same(rollout.run(Half(chunk=1), COUNT, episodes=2, workers=1).episodes)


def test_n_action_steps_overrides_the_policys_own() -> None:
    policy = Half(chunk=4)
    rollout.run(policy, COUNT, episodes=1, workers=1, n_action_steps=3)
    assert [r.step for r in policy.requests] == [0, 3]


class Counting:
    """Returns t for step t."""

    spec = PolicySpec(chunk_size=8, n_action_steps=8)

    def infer(self, requests: Sequence[Request]) -> Sequence[Any]:
        return [np.repeat(np.arange(r.step, r.step + 8)[:, None], 2, 1) for r in requests]


class Remembered(Counting):
    """Counts what it returned itself, in its session; over three chunks of four, of which two are executed."""

    spec = PolicySpec(chunk_size=4, n_action_steps=2)

    def open_session(self, episode: Any, task: Any) -> list[int]:
        return [0]

    def infer(self, requests: Sequence[Request]) -> Sequence[Any]:
        chunks = [np.repeat(np.arange(r.session[0], r.session[0] + 4)[:, None], 2, 1) for r in requests]
        for request in requests:
            request.session[0] += 2
        return chunks


def executed(out: Path) -> list[np.ndarray]:
    found = []
    for actions in read_actions(out).values():
        assert isinstance(actions.actions, Array)
        found.append(unpack_array(actions.actions))
    return found


@pytest.mark.parametrize(
    ("policy", "settings"),
    [
        (Counting(), {}),
        (Counting(), {"n_action_steps": 3}),
        (Counting(), {"max_batch": 3, "max_wait_ms": 5}),
        (Counting(), {"temporal_ensemble": 0.01}),  # all chunks agree on every step
        (Remembered(), {}),
    ],
)
def test_action_t_is_executed_at_step_t_of_every_episode_whatever_their_lengths(
    policy: Any, settings: dict[str, Any], tmp_path: Path
) -> None:
    report = rollout.run(
        policy, "gym:toys:toy/Uneven-v0", episodes=24, workers=8, out=tmp_path / "run", **settings
    )
    assert [episode.steps for episode in report.episodes] == [
        1 + (1000 + number) * 7919 % 40 for number in range(24)
    ]
    for actions in executed(tmp_path / "run"):
        np.testing.assert_allclose(actions, np.repeat(np.arange(len(actions))[:, None], 2, 1), atol=1e-5)


def test_clipped_actions_are_in_the_record_and_counted(tmp_path: Path) -> None:
    report = rollout.run(
        Counting(), COUNT, episodes=1, workers=1, clip_actions=True, out=tmp_path / "run", display="none"
    )
    [episode] = report.episodes
    [actions] = executed(tmp_path / "run")
    assert actions[:, 0].tolist() == [0, 1, 1, 1, 1, 1]
    assert episode.clipped == 4  # 1 is in the bounds
    assert report.summary.clipped_actions == 4
    _, [record] = read_journal(tmp_path / "run")
    assert record.clipped == 4


def test_a_policy_says_how_many_calls_run_at_once_and_how_many_requests_each_takes() -> None:
    together = threading.Barrier(2)

    class Waiting(Half):
        def __init__(self) -> None:
            super().__init__()
            self.spec = PolicySpec(calls=2, max_batch=1)

        def infer(self, requests: Sequence[Request]) -> Sequence[Any]:
            assert len(requests) == 1
            if requests[0].decision == 0:
                together.wait(20)  # two episodes are in here at the same time
            return super().infer(requests)

    assert rollout.run(Waiting(), COUNT, episodes=2, workers=2, max_wait_ms=50).summary.overall.n_error == 0


def test_history_holds_the_steps_inside_a_chunk() -> None:
    policy = Half(chunk=4, n_obs_steps=3)
    rollout.run(policy, COUNT, episodes=2, workers=1)
    seen = [r.observation["observation.state"][:, 0].tolist() for r in policy.requests]
    assert seen == [[0, 0, 0], [2, 3, 4], [0, 0, 0], [2, 3, 4], [6, 7, 8]]


def test_only_the_keys_that_a_policy_reads_are_sent() -> None:
    policy = Half(keys=())
    rollout.run(policy, COUNT, episodes=1, workers=1)
    assert {tuple(r.observation) for r in policy.requests} == {("task",)}


def test_observations_are_the_policys_own_to_write_to() -> None:
    class Scribbling(Half):
        def infer(self, requests: Sequence[Request]) -> Sequence[Any]:
            for r in requests:
                array = r.observation["observation.state"]
                assert array.flags.c_contiguous
                array[:] = -1
            return super().infer(requests)

    policy = Scribbling()
    report = rollout.run(policy, COUNT, episodes=2, workers=1)
    assert [e.steps for e in report.episodes] == [6, 12]
    assert all((r.observation["observation.state"] == -1).all() for r in policy.requests)


def test_results_are_written_and_read_back_alike(tmp_path: Path) -> None:
    report = rollout.run(Half(), COUNT, episodes=4, workers=2, out=tmp_path / "run")
    lines = (tmp_path / "run" / "episodes.jsonl").read_text().splitlines()
    assert len(lines) == 5
    assert [json.loads(line)["episode"] for line in lines[1:]] == [
        0,
        1,
        2,
        3,
    ]  # the plan's order, not the finishing one
    header, records = read_journal(tmp_path / "run")
    assert tuple(records) == report.episodes
    assert header.policy == "test_evaluate:Half"
    assert {"rollout-engine", "torch", "gymnasium"} <= set(header.versions)
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert summary["overall"]["n_success"] == 2
    assert summary["tasks"]["toy/Count-v0"]["success_rate"] == 0.5
    assert json.loads((tmp_path / "run" / "eval_info.json").read_text())["overall"]["pc_success"] == 50.0
    actions = read_actions(tmp_path / "run")
    first = actions[report.episodes[0].key].actions
    assert isinstance(first, Array)
    assert unpack_array(first).tolist() == [[0.5, 0.5]] * 6


def test_a_resumed_run_ends_in_the_same_records(tmp_path: Path) -> None:
    whole = rollout.run("random", COUNT, episodes=6, workers=2, out=tmp_path / "a")
    rollout.run("random", COUNT, episodes=6, workers=2, out=tmp_path / "b")
    journal = tmp_path / "b" / "episodes.jsonl"
    lines = journal.read_bytes().splitlines(keepends=True)
    journal.write_bytes(b"".join(lines[:3]) + lines[3][:20])  # as a kill in the middle of a write leaves it
    resumed = rollout.run("random", COUNT, episodes=6, workers=2, out=tmp_path / "b", resume=True)
    assert same(resumed.episodes) == same(whole.episodes)
    assert resumed.summary.timing is not None
    assert resumed.summary.timing.steps == sum(e.steps for e in whole.episodes[2:])
    with pytest.raises(UsageError, match="seed 1000 -> 7"):
        rollout.run("random", COUNT, episodes=6, workers=1, out=tmp_path / "b", resume=True, seed=7)
    with pytest.raises(UsageError, match="--resume"):
        rollout.run("random", COUNT, episodes=6, workers=1, out=tmp_path / "b")


def test_an_exception_in_a_simulator_is_that_episodes_error_and_the_run_goes_on() -> None:
    report = rollout.run(Half(), FAULTY, episodes=6, workers=2)
    assert [e.outcome for e in report.episodes] == [
        "success",
        "error",
        "success",
        "failure",
        "success",
        "error",
    ]
    error = report.episodes[1].error
    assert error is not None
    assert (error.type, error.message) == ("RuntimeError", "the arm fell off")
    assert "toys.py" in error.traceback
    assert report.episodes[1].attempts == 1  # never retried: it would only happen again
    assert report.success_rate == 3 / 4


@pytest.mark.parametrize(
    ("how", "says"),
    [
        ("exit", "exited with status 3"),
        ("segfault", "SIGSEGV"),
        ("kill", "SIGKILL"),
        ("hang", "did not end within 2 s (--step-timeout 2)"),
        ("hangup", "broke the protocol"),
        ("garbage", "broke the protocol"),
    ],
)
def test_a_workers_death_is_retried_and_then_recorded_with_its_cause(how: str, says: str) -> None:
    report = rollout.run(
        Half(), FAULTY, episodes=2, workers=2, retries=1, step_timeout_s=2.0, options={"how": how}
    )
    assert [e.outcome for e in report.episodes] == ["success", "error"]
    error = report.episodes[1].error
    assert error is not None
    assert says in error.message
    assert "hello from the simulator" in error.traceback  # the last lines that it printed
    assert report.episodes[1].attempts == 2


def test_an_episode_whose_worker_died_once_gives_the_same_result(tmp_path: Path) -> None:
    quiet = rollout.run("random", COUNT, episodes=2, workers=1)
    options = {"how": "kill", "once": str(tmp_path / "killed")}
    shaken = rollout.run("random", FAULTY, episodes=2, workers=1, options=options)
    assert [e.attempts for e in shaken.episodes] == [1, 2]
    assert [e.steps for e in shaken.episodes] == [e.steps for e in quiet.episodes]


@pytest.mark.parametrize("how", ["flood", "ask"])
def test_what_a_simulator_prints_or_asks_never_reaches_the_terminal(
    how: str, capfd: pytest.CaptureFixture[str]
) -> None:
    report = rollout.run(Half(), FAULTY, episodes=2, workers=1, options={"how": how})
    assert report.episodes[0].outcome is Outcome.SUCCESS
    assert capfd.readouterr() == ("", "")
    if how == "ask":
        assert report.episodes[1].error is not None
        assert report.episodes[1].error.type == "EOFError"


def test_a_worker_that_dies_while_filming_leaves_no_torso_of_a_video(tmp_path: Path) -> None:
    pytest.importorskip("av")
    options = {"how": "kill"}
    rollout.run(Half(), FAULTY, episodes=2, workers=1, retries=0, options=options, out=tmp_path, video="all")
    videos = [path.name for path in (tmp_path / "videos").rglob("*.mp4")]
    assert videos == ["episode_0000.mp4"]


def test_videos_are_kept_as_asked_and_named_in_the_record(tmp_path: Path) -> None:
    pytest.importorskip("av")
    kept = {}
    for video in ("all", "failures", 1):
        out = tmp_path / str(video)
        report = rollout.run(Half(), COUNT, episodes=3, workers=2, out=out, video=video)
        kept[video] = [e.episode for e in report.episodes if e.video is not None]
        assert all((out / e.video).is_file() for e in report.episodes if e.video is not None)
        assert len(list(out.rglob("*.mp4"))) == len(kept[video])
    assert kept == {"all": [0, 1, 2], "failures": [1], 1: [0]}


def test_a_simulator_that_cannot_be_built_is_reported_once_and_recorded_for_every_episode() -> None:
    report = rollout.run(Half(), FAULTY, episodes=5, workers=2, options={"how": "build"})
    assert {e.outcome for e in report.episodes} == {Outcome.ERROR}
    assert {e.error.message for e in report.episodes if e.error} == {"no such robot"}
    assert report.success_rate is None


def test_a_policy_that_raises_stops_the_run_and_is_never_a_failure(tmp_path: Path) -> None:
    class Broken(Half):
        def infer(self, requests: Sequence[Request]) -> Sequence[Any]:
            if any(r.episode.episode == 3 for r in requests):
                raise ZeroDivisionError("weights are sulking")
            return super().infer(requests)

    with pytest.raises(PolicyError, match="weights are sulking"):
        rollout.run(Broken(), COUNT, episodes=4, workers=1, out=tmp_path / "run")
    _, records = read_journal(tmp_path / "run")
    assert [r.episode for r in records] == [0, 1, 2]  # what was measured is kept
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["complete"] is False


def test_a_simulator_is_not_stepped_with_an_action_that_is_not_finite() -> None:
    class Sick(Half):
        def infer(self, requests: Sequence[Request]) -> Sequence[Any]:
            return [np.full((1, 2), np.nan) for _ in requests]

    with pytest.raises(PolicyError, match=r"not finite.*Count-v0 episode 0, step 0"):
        rollout.run(Sick(), COUNT, episodes=1, workers=1)


def test_an_open_engine_evaluates_twice_without_restarting_a_worker_or_rebuilding(tmp_path: Path) -> None:
    log = tmp_path / "log"

    async def main() -> tuple[list[Any], list[tuple[int, ...]]]:
        async with rollout.Engine(COUNT, episodes=4, workers=2, options={"log": str(log)}) as engine:
            reports, pids = [], []
            for _ in range(2):
                reports.append(same((await engine.evaluate(Half())).episodes))
                pids.append(engine.worker_pids)
            return reports, pids

    reports, pids = anyio.run(main)
    assert reports[0] == reports[1]
    assert pids[0] == pids[1]
    assert len(set(pids[0])) == 2
    assert log.read_text().count("built") == 2
    assert log.read_text().count("closed") == 2


def test_an_engine_that_refused_an_evaluation_does_the_next_one(tmp_path: Path) -> None:
    async def main() -> int:
        async with rollout.Engine(COUNT, episodes=1, workers=1, protocol="lerobot") as engine:
            await engine.evaluate(Half(), out=tmp_path)
            with pytest.raises(UsageError, match="already holds a run"):
                await engine.evaluate(Half(), out=tmp_path)
            with pytest.raises(UsageError, match="cannot act in gym"):
                await engine.evaluate("expert")
            return len((await engine.evaluate(Half())).episodes)

    assert anyio.run(main) == 1


def test_an_engine_evaluates_one_policy_at_a_time() -> None:
    async def main() -> list[str]:
        refused: list[str] = []
        async with rollout.Engine(COUNT, episodes=1, workers=1) as engine:

            async def evaluate() -> None:
                try:
                    await engine.evaluate(Half())
                except UsageError as exc:
                    refused.append(str(exc))

            async with anyio.create_task_group() as tasks:
                tasks.start_soon(evaluate)
                tasks.start_soon(evaluate)
        return refused

    [line] = anyio.run(main)
    assert "evaluating already" in line


@pytest.mark.parametrize(
    "wrong",
    [
        {"calls": 0},
        {"max_batch": 0},
        {"n_action_steps": 0},
        {"n_obs_steps": 0},
        {"chunk_size": 0},
        {"temporal_ensemble": float("nan")},
    ],
)
def test_a_spec_that_cannot_be_run_is_one_line(wrong: dict[str, Any]) -> None:
    policy = Half()
    policy.spec = PolicySpec(**wrong)
    with pytest.raises(UsageError, match=f"its spec has {next(iter(wrong))}"):
        rollout.run(policy, COUNT, episodes=1, workers=1)


def test_what_a_policy_does_wrong_outside_of_infer_is_blamed_on_it_too() -> None:
    class Unready(Half):
        def open_session(self, episode: Any, task: Any) -> Any:
            raise KeyError("no such task")

    class Forgetful(Half):
        def infer(self, requests: Sequence[Request]) -> Sequence[Any]:
            return [torch.zeros(1, 2, requires_grad=True) for _ in requests]

    for policy, says in (
        (Unready(), "open_session raised KeyError.*episode 0"),
        (Forgetful(), "requires grad.*episode 0"),
    ):
        with pytest.raises(PolicyError, match=says):
            rollout.run(policy, COUNT, episodes=1, workers=1)


MEANT_FOR_OTHERS = [
    asyncio.CancelledError("its client gave up"),
    GeneratorExit("its generator"),
    BaseExceptionGroup("its tasks", [asyncio.CancelledError()]),
]


class Gone:
    """An action that is none once it is looked at."""

    def __init__(self, error: BaseException) -> None:
        self._error = error

    def __array__(self, *_: Any, **__: Any) -> np.ndarray:
        raise self._error


class GivesUp(Half):
    """Raises `error` in the method called `where`."""

    def __init__(self, error: BaseException, where: str, inline: bool) -> None:
        super().__init__()
        self.spec = PolicySpec(inline=inline)
        self._error, self._where = error, where

    def open_session(self, episode: Any, task: Any) -> Any:
        if self._where == "open_session":
            raise self._error

    def infer(self, requests: Sequence[Request]) -> Sequence[Any]:
        if self._where == "chunk":
            return [Gone(self._error) for _ in requests]
        raise self._error


@pytest.mark.parametrize("error", MEANT_FOR_OTHERS, ids=lambda error: type(error).__name__)
@pytest.mark.parametrize("inline", [False, True])
@pytest.mark.parametrize("where", ["open_session", "infer", "chunk"])
def test_what_a_policy_raises_is_no_cancellation_of_the_run(
    error: BaseException, inline: bool, where: str
) -> None:
    # In its thread, where an answer is copied, what a chunk raises counts as the policy's own call's.
    says = "the policy returned" if where == "chunk" and inline else f"raised {type(error).__name__}"
    with pytest.raises(PolicyError, match=says) as caught:
        rollout.run(GivesUp(error, where, inline), COUNT, episodes=2, workers=1)
    cause = caught.value.__cause__
    assert cause is error or (cause is not None and cause.__cause__ is error)


@pytest.mark.parametrize("opened", [False, True])
def test_a_policy_whose_making_is_cancelled_by_itself_is_blamed_for_it(
    opened: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def made(*_: Any, **__: Any) -> Any:
        raise asyncio.CancelledError("no answer")

    @contextmanager
    def as_policy(*_: Any) -> Iterator[Any]:
        yield made()

    if opened:  # in a thread
        monkeypatch.setattr("rollout.opening.is_opened", lambda spec: True)
        monkeypatch.setattr("rollout.opening.as_policy", as_policy)
    else:
        monkeypatch.setattr("toys.made", made, raising=False)
    with pytest.raises(PolicyError, match="making the policy raised CancelledError: no answer"):
        rollout.run("toys:made", COUNT, episodes=1, workers=0)


def test_an_objects_versions_are_in_the_record_whatever_it_leaves_out(tmp_path: Path) -> None:
    class Versioned(Half):
        versions = {"checkpoint": "abc", "recipe": "7"}  # noqa: RUF012

    rollout.run(Versioned(), COUNT, episodes=1, workers=1, out=tmp_path)
    header, _ = read_journal(tmp_path)
    assert header.config["checkpoint"] == "abc"
    assert header.versions["recipe"] == "7"


def test_no_process_and_no_descriptor_is_left_behind() -> None:
    before = set(os.listdir("/proc/self/fd"))

    async def main() -> tuple[int, ...]:
        async with rollout.Engine(FAULTY, episodes=4, workers=3) as engine:
            await engine.evaluate(Half())
            return engine.worker_pids

    pids = anyio.run(main)
    assert pids
    assert not [pid for pid in pids if Path(f"/proc/{pid}").exists()]
    assert len(os.listdir("/proc/self/fd")) <= len(before)


@pytest.mark.parametrize("use_uvloop", [False, True])
def test_a_bare_module_is_a_policy_under_either_event_loop(use_uvloop: bool) -> None:
    class Linear(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.head = torch.nn.Linear(2, 2)

        def forward(self, batch: dict[str, Any]) -> torch.Tensor:
            assert not self.training
            assert batch["task"] == [""] * len(batch["task"])
            return torch.tanh(self.head(batch["observation.state"] / 1000)).unsqueeze(1)

    module = Linear()
    module.train()

    async def main() -> rollout.Report:
        return await rollout.evaluate(module, COUNT, episodes=4, workers=2)

    report = anyio.run(main, backend_options={"use_uvloop": use_uvloop})
    assert report.success_rate == 0.5
    assert module.training  # given back as it was


@pytest.mark.metaworld
@pytest.mark.gl
def test_a_bare_module_that_reads_a_state_has_no_camera_rendered_for_it_and_the_same_episodes() -> None:
    withheld = set()

    class Reach(torch.nn.Module):
        def forward(self, batch: dict[str, Any]) -> torch.Tensor:
            withheld.add(getattr(batch, "withheld", None))
            state = batch["observation.environment_state"]
            return torch.cat(((state[:, 36:39] - state[:, :3]) * 10, torch.ones(len(state), 1)), 1).clamp(
                -1, 1
            )

    told = Reach()
    told.spec = PolicySpec(observation_keys=("observation.environment_state",))  # type: ignore[assignment]
    silent, spoken = (
        rollout.run(module, "metaworld:reach-v3", episodes=4, workers=2, horizon=60)
        for module in (Reach(), told)
    )
    assert same(silent.episodes) == same(spoken.episodes)
    assert silent.success_rate == 1.0
    camera_and_hand = frozenset({"observation.images.corner2", "observation.state"})
    assert withheld == {frozenset(), camera_and_hand, None}  # its first forward, its others, and with a spec


def test_inside_a_running_loop_run_says_what_to_do() -> None:
    async def main() -> None:
        rollout.run("random", COUNT)

    with pytest.raises(UsageError, match=r"await rollout\.evaluate"):
        anyio.run(main)


@pytest.mark.parametrize(
    ("targets", "settings", "says"),
    [
        ("gym:CartPol-v1", {}, "CartPole-v1"),
        ("metaworld:mt11", {}, "metaworld:mt10"),
        ("libero_spatiall", {}, "libero_spatial"),
        ("gmy:CartPole-v1", {}, "gmy"),
        ("gym:toys:toy/Endless-v0", {}, "--horizon"),
        ("gym:no_such_module:X-v0", {}, "no_such_module"),
        (COUNT, {"tasks": (4,)}, "--tasks 4"),
        (COUNT, {"episodes": 0}, "at least 1"),
        (COUNT, {"episods": 3}, "episodes"),
        (COUNT, {"seed": "x"}, "seed"),
        (COUNT, {"video": "all"}, "out"),
        (COUNT, {"shard": (3, 2)}, "shard"),
        ("metaworld:reach-v3", {"options": {"cameraa": "x"}}, "camera"),
    ],
)
def test_bad_input_is_one_line_that_names_what_is_valid(
    targets: str, settings: dict[str, Any], says: str
) -> None:
    with pytest.raises(UsageError) as caught:
        rollout.run("random", targets, **({"episodes": 1, "workers": 1} | settings))
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("policy", "says"),
    [
        ("randon", "'random'"),
        ("test_evaluate:Hal", "'Half'"),
        ("no_such_module:x", "no_such_module"),
        (object(), "infer"),
        ("expert", "cannot act in gym"),
        ("openpi", "openpi:ws://"),
        ("opnepi:ws://localhost:8000", "did you mean 'openpi'?"),
    ],
)
def test_a_bad_policy_is_one_line(policy: Any, says: str) -> None:
    with pytest.raises(UsageError) as caught:
        rollout.run(policy, COUNT, episodes=1, workers=1)
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


def test_the_longest_horizon_is_the_engines_and_marks_the_episode_truncated() -> None:
    report = rollout.run(Half(), "gym:toys:toy/Endless-v0", episodes=2, workers=1, horizon=30)
    assert [(e.steps, e.terminated, e.truncated) for e in report.episodes] == [
        (6, True, False),
        (30, False, True),
    ]


def test_the_fingerprint_covers_what_affects_results_and_nothing_else() -> None:
    from rollout.config import AFFECTS_RESULTS

    config = rollout.EvalConfig.create(targets=(COUNT,))
    for name, value in {
        "workers": 3,
        "max_batch": 2,
        "retries": 0,
        "display": "json",
        "video": "none",
    }.items():
        assert msgspec.structs.replace(config, **{name: value}).fingerprint("p") == config.fingerprint("p")
    for name, value in {"seed": 3, "episodes": 2, "horizon": 5, "tasks": (0,), "n_action_steps": 2}.items():
        assert name in AFFECTS_RESULTS
        assert msgspec.structs.replace(config, **{name: value}).fingerprint("p") != config.fingerprint("p")
    assert config.fingerprint("p") != config.fingerprint("q")


def test_a_run_from_before_a_setting_existed_is_known_by_the_same_hash() -> None:
    plain = rollout.EvalConfig.create(targets=(COUNT,))
    assert "clip_actions" not in plain.identity("p")
    for name, value in (("clip_actions", True), ("temporal_ensemble", 0.0)):
        changed = plain.replaced(**{name: value})
        assert changed.identity("p")[name] == value
        assert changed.fingerprint("p") != plain.fingerprint("p")


def test_a_module_whose_import_hangs_is_a_usage_error_after_the_time_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "hangs_when_imported.py").write_text("import time\ntime.sleep(600)\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(UsageError, match="while listing its tasks"):
        rollout.run("zero", "gym:hangs_when_imported:Env-v0", start_timeout_s=1.0, workers=1)
