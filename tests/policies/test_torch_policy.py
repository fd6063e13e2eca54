"""A bare `torch.nn.Module` as a policy: what it is given, what it may return, and how it is given back."""

from __future__ import annotations

import itertools
import json
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import anyio
import numpy as np
import pytest
import torch
from torch import nn

import rollout
from rollout.config import EvalConfig
from rollout.errors import PolicyError, UsageError
from rollout.policies.base import PolicySpec, Request
from rollout.policies.device import bucket
from rollout.policies.load import as_policy
from rollout.policies.memory import row, stacked
from rollout.policies.torch import TorchPolicy
from rollout.types import EpisodeSpec

COUNT = "gym:toys:toy/Count-v0"
SPEC = EpisodeSpec(suite="s", task="t", task_id=0, episode=0, seed=0, horizon=9)


def request(**observation: Any) -> Request:
    named = {key.replace("__", "."): value for key, value in observation.items()}
    return Request(SPEC, None, 0, 0, None, named)  # type: ignore[arg-type]  # no test here looks at the task


def config(**settings: Any) -> EvalConfig:
    return EvalConfig.create(targets=("gym:x",), **settings)


class Recording(nn.Module):
    """Keeps what it was given and returns what `answer` makes of the number of rows."""

    def __init__(self, answer: Callable[[int], Any] = lambda rows: torch.zeros(rows, 2)) -> None:
        super().__init__()
        self.given: list[dict[str, Any]] = []
        self.answer = answer

    def forward(self, batch: dict[str, Any]) -> Any:
        self.given.append(batch)
        return self.answer(len(next(iter(batch.values()))))


def infer(module: nn.Module, *requests: Request, **settings: Any) -> Any:
    with as_policy(module, config(**settings)) as policy:
        return policy.infer(requests)


def test_a_module_gets_batched_tensors_and_text_as_lists() -> None:
    module = Recording()
    state = np.array([1.0, 2.0])
    infer(
        module,
        request(observation__state=state, task="lift"),
        request(observation__state=state * 2, task="drop"),
        deterministic=False,
    )
    (batch,) = module.given
    assert batch["observation.state"].dtype == torch.float32
    assert batch["observation.state"].tolist() == [[1.0, 2.0], [2.0, 4.0]]
    assert batch["task"] == ["lift", "drop"]


@pytest.mark.parametrize("history", [(), (3,)])
def test_images_become_channels_first_floats_between_0_and_1(history: tuple[int, ...]) -> None:
    module = Recording()
    image = np.zeros((*history, 4, 6, 3), np.uint8)
    image[..., 1, 2, 0] = 255
    infer(module, request(observation__images__top=image))
    tensor = module.given[0]["observation.images.top"]
    assert tensor.shape == (1, *history, 3, 4, 6)
    assert tensor.dtype == torch.float32
    assert tensor.sum() == max(1, *history, 1)
    assert (tensor[..., 0, 1, 2] == 1.0).all()


def test_integers_stay_integers_and_other_precisions_follow_the_dtype() -> None:
    module = Recording()
    infer(
        module,
        request(observation__mode=np.array([3]), observation__state=np.zeros(1, np.float16)),
        dtype="bf16",
    )
    assert module.given[0]["observation.mode"].dtype == torch.int64
    assert module.given[0]["observation.state"].dtype == torch.bfloat16


@pytest.mark.parametrize(
    ("answer", "shape"),
    [
        (lambda rows: torch.ones(rows, 2), (2,)),
        (lambda rows: torch.ones(rows, 5, 2), (5, 2)),
        (lambda rows: torch.ones(rows, dtype=torch.int64), ()),
        (lambda rows: torch.ones(rows, 2, dtype=torch.bfloat16), (2,)),
    ],
)
def test_each_request_gets_its_row_as_an_array(answer: Callable[[int], Any], shape: tuple[int, ...]) -> None:
    chunks = infer(Recording(answer), *[request(x=np.zeros(1))] * 3)
    assert [np.shape(chunk) for chunk in chunks] == [shape] * 3
    assert all((np.asarray(chunk) == 1).all() for chunk in chunks)


@pytest.mark.parametrize(
    "answer", [lambda rows: None, lambda rows: torch.ones(rows + 1, 2), lambda rows: torch.tensor(1)]
)
def test_anything_but_one_row_a_request_is_refused(answer: Callable[[int], Any]) -> None:
    with pytest.raises(TypeError, match="for a batch of 1"):
        infer(Recording(answer), request(x=np.zeros(1)))


def test_a_row_is_bit_identical_whatever_shares_its_batch() -> None:
    torch.manual_seed(0)
    module = nn.Sequential(
        Pick(), nn.Linear(17, 65), nn.GELU(approximate="tanh"), nn.Linear(65, 33), nn.SiLU(), nn.Linear(33, 3)
    )
    rows = [request(x=row) for row in np.random.default_rng(0).standard_normal((13, 17)).astype(np.float32)]
    alone = [infer(module, row)[0] for row in rows]
    together = infer(module, *rows)
    backwards = infer(module, *rows[::-1])[::-1]
    for one, two, three in zip(alone, together, backwards, strict=True):
        assert one.tobytes() == two.tobytes() == three.tobytes()


class Pick(nn.Module):
    def forward(self, batch: dict[str, Any]) -> torch.Tensor:
        x: torch.Tensor = batch["x"]
        return x


def test_a_module_is_evaluated_without_gradients_in_evaluation_mode_and_given_back_as_it_was() -> None:
    class Checked(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm = nn.BatchNorm1d(2)
            nn.init.constant_(self.norm.weight, 1 / 3)  # which bfloat16 would round
            self.frozen = nn.Dropout(0.5).eval()

        def forward(self, batch: dict[str, Any]) -> torch.Tensor:
            assert not self.training
            assert torch.is_inference_mode_enabled()
            result: torch.Tensor = self.norm(batch["x"])
            return result

    module = Checked()
    before = {name: value.clone() for name, value in module.state_dict().items()}
    infer(module, request(x=np.ones(2)), dtype="bf16")
    assert module.training
    assert module.norm.training
    assert not module.frozen.training
    after = module.state_dict()
    assert all(
        torch.equal(before[name], after[name]) and before[name].dtype == after[name].dtype for name in before
    )
    assert all(weight.requires_grad for weight in module.parameters())


def test_a_module_whose_forward_fails_is_given_back_too() -> None:
    module = nn.Linear(2, 2)  # takes no dict
    with pytest.raises(TypeError):
        infer(module, request(x=np.ones(2)), dtype="fp16")
    assert module.training
    assert module.weight.dtype == torch.float32


def test_a_history_of_observations_comes_as_a_time_axis_oldest_first() -> None:
    class Remembering(Recording):
        spec = PolicySpec(n_obs_steps=3, chunk_size=2, n_action_steps=2)

    module = Remembering(lambda rows: torch.zeros(rows, 2, 2))
    report = rollout.run(module, COUNT, episodes=1, workers=0)
    assert [e.steps for e in report.episodes] == [6]
    key = next(key for key in module.given[0] if key != "task")
    seen = [batch[key][..., 0].tolist() for batch in module.given]  # the number of the step
    assert seen == [[[0, 0, 0]], [[0, 1, 2]], [[2, 3, 4]]]


@pytest.mark.parametrize("shape", [(3,), (4, 3), (1, 4, 2), (0, 2)])
def test_actions_of_another_shape_stop_the_run_and_say_where(shape: tuple[int, ...]) -> None:
    module = Recording(lambda rows: torch.zeros(rows, *shape))
    with pytest.raises(
        PolicyError, match=r"shape \(.*\) instead of \(chunk_size, 2\) \(in .*Count-v0 episode 0, step 0\)"
    ):
        rollout.run(module, COUNT, episodes=1, workers=0)


def test_a_modules_own_spec_and_session_are_used() -> None:
    class Own(Recording):
        spec = PolicySpec(observation_keys=("observation.state",), chunk_size=4, n_action_steps=2)

        def open_session(self, episode: Any, task: Any) -> list[Any]:
            return [episode]

    with as_policy(Own(), config()) as policy:
        assert isinstance(policy, TorchPolicy)
        assert policy.spec.n_action_steps == 2
        assert policy.open_session(SPEC, None) == [SPEC]  # type: ignore[arg-type]
    with as_policy(Recording(), config()) as policy:
        assert policy.spec == PolicySpec(n_action_steps=None)
        assert policy.open_session(SPEC, None) is None  # type: ignore[arg-type]


@pytest.mark.parametrize(("device", "says"), [("cudaa", "not a device"), ("cuda:99", "CUDA|cannot be moved")])
def test_a_device_that_is_not_there_is_one_line(device: str, says: str) -> None:
    with pytest.raises(UsageError, match=says) as caught:
        infer(nn.Linear(1, 1), request(x=np.zeros(1)), device=device)
    assert "\n" not in str(caught.value)


def watched(module: nn.Module, *requests: Request) -> TorchPolicy:
    with as_policy(module, config(deterministic=False)) as policy:
        assert isinstance(policy, TorchPolicy)
        for each in requests:
            policy.infer([each])
        return policy


def entries(**batch: Any) -> set[str]:
    return set(batch)


FULL = request(
    observation__state=np.ones(2), observation__images__top=np.zeros((2, 2, 3), np.uint8), task="lift"
)
NARROW = request(observation__state=np.ones(2), task="lift")


def reads(*uses: Callable[[dict[str, Any]], Any]) -> nn.Module:
    """A module without a spec whose n-th forward uses its batch as the n-th function says."""

    class Reading(nn.Module):
        def forward(self, batch: dict[str, Any]) -> torch.Tensor:
            uses[min(len(seen), len(uses) - 1)](batch)
            seen.append(batch)
            return torch.zeros(1, 2)

    seen: list[Any] = []
    return Reading()


@pytest.mark.parametrize(
    ("use", "keys"),
    [
        (lambda batch: batch["observation.state"], ("observation.state",)),
        (lambda batch: batch.get("observation.state"), ("observation.state",)),
        (lambda batch: ("observation.images.top" in batch, batch["task"]), ("observation.images.top",)),
        (lambda batch: None, ()),
        (lambda batch: {**batch}, None),
        (dict, None),
        (lambda batch: list(batch.items()), None),
        (lambda batch: [key for key in batch], None),  # noqa: C416
        (lambda batch: entries(**batch), None),
    ],
)
def test_a_bare_module_is_given_what_its_first_forward_used(use: Callable[[Any], Any], keys: Any) -> None:
    assert watched(reads(use), FULL).spec.observation_keys == keys


def test_episodes_that_still_deliver_the_rest_can_share_a_batch_with_those_that_do_not() -> None:
    with as_policy(reads(lambda batch: batch["observation.state"]), config(deterministic=False)) as policy:
        for each in (FULL, NARROW, FULL):
            assert len(policy.infer([each])) == 1


@pytest.mark.parametrize(
    "late",
    [
        lambda batch: batch["observation.images.top"],
        lambda batch: batch.get("observation.images.top"),
        lambda batch: "observation.images.top" in batch,
        list,
        dict,
    ],
)
def test_what_a_bare_module_reads_only_later_stops_the_run_and_says_what_to_do(
    late: Callable[[Any], Any],
) -> None:
    module = reads(lambda batch: batch["observation.state"], late)
    with pytest.raises(LookupError, match=r"PolicySpec\(observation_keys"):
        watched(module, FULL, NARROW)


def test_with_a_spec_or_several_targets_nothing_is_guessed() -> None:
    module = reads(lambda batch: batch["observation.state"])
    with as_policy(module, EvalConfig.create(targets=("gym:x", "gym:y"))) as policy:
        policy.infer([FULL])
        assert policy.spec.observation_keys is None
    module.spec = PolicySpec()  # type: ignore[assignment]
    assert watched(module, FULL).spec.observation_keys is None


class Stochastic(nn.Module):
    """Returns its noise."""

    spec = PolicySpec(observation_keys=("x",), noise_shape=(3, 2))

    def forward(self, batch: dict[str, Any]) -> torch.Tensor:
        noise: torch.Tensor = batch["noise"]
        return noise


def decisions(count: int) -> list[Request]:
    return [
        Request(SPEC, None, decision, decision, None, {"x": np.zeros(1), "task": "t"})  # type: ignore[arg-type]
        for decision in range(count)
    ]


def test_a_module_that_asks_for_noise_gets_each_decisions_own() -> None:
    asked = decisions(5)
    together = infer(Stochastic(), *asked, deterministic=False)
    alone = [infer(Stochastic(), request)[0] for request in asked]
    assert together[0].shape == (3, 2)
    assert [one.tobytes() for one in together] == [one.tobytes() for one in alone]
    assert len({one.tobytes() for one in together}) == len(asked)
    expected = torch.randn(3, 2, generator=torch.Generator().manual_seed(asked[3].noise_seed))
    assert torch.equal(torch.from_numpy(together[3]), expected)


class Recurrent(nn.Module):
    """Adds up what it sees: (sum, (number of decisions,)) is its state."""

    spec = PolicySpec(observation_keys=("observation.state",))
    failing = False

    def initial_state(self) -> Any:
        return {"sum": torch.zeros(2), "count": (torch.zeros(()),)}

    def forward(self, batch: dict[str, Any], state: Any) -> Any:
        total = state["sum"] + batch["observation.state"]
        if self.failing:
            raise RuntimeError("oh")
        actions = 1e-3 * (total + state["count"][0][:, None])
        return actions, {"sum": total, "count": (state["count"][0] + 1,)}


def test_a_recurrent_module_keeps_each_episodes_state_apart_and_in_step() -> None:
    module = Recurrent()
    reports = [
        rollout.run(
            module,
            COUNT,
            episodes=40,
            workers=workers,
            max_batch=batch,
            deterministic=False,
            max_wait_ms=wait,
        )
        for workers, batch, wait in ((1, 1, 0.0), (4, 4, 20.0))  # episodes enough for the workers to meet
    ]
    assert reports[1].summary.timing is not None
    assert (reports[1].summary.timing.mean_batch or 0) > 1
    digests = [[episode.digest for episode in report.episodes] for report in reports]
    assert digests[0] == digests[1]
    # Of the first episode, seed 1000: at step t it has seen the steps 0 to t, and its seed t + 1 times.
    sums = [sum(range(t + 1)) + t + (t + 1) * 1000 + t for t in range(reports[0].episodes[0].steps)]
    assert reports[0].episodes[0].sum_reward == pytest.approx(1e-3 * sum(sums))


def test_a_forward_that_fails_leaves_the_state_as_it_was() -> None:
    module = Recurrent()
    with as_policy(module, config()) as policy:
        session = policy.open_session(SPEC, None)  # type: ignore[arg-type]
        asked = Request(SPEC, None, 0, 0, session, {"observation.state": np.ones(2, np.float32)})  # type: ignore[arg-type]
        module.failing = True
        with pytest.raises(RuntimeError, match="oh"):
            policy.infer([asked])
        assert session.state["sum"].tolist() == [0, 0]
        module.failing = False
        policy.infer([asked])
        assert session.state["sum"].tolist() == [1, 1]


def test_a_recurrent_module_that_returns_no_state_is_told_so() -> None:
    class Forgetful(Recurrent):
        def forward(self, batch: dict[str, Any], state: Any) -> Any:
            return batch["observation.state"]

    with pytest.raises(PolicyError, match=r"returns \(actions, new state\)"):
        rollout.run(Forgetful(), COUNT, episodes=1, workers=0)


def test_requests_of_other_shapes_share_a_batch_of_requests_though_not_a_forward() -> None:
    module = Recording()
    states = [np.zeros(3, np.float32), np.zeros(5, np.float32), np.ones(3, np.float32)]
    chunks = infer(module, *(request(observation__state=state) for state in states), deterministic=False)
    assert len(chunks) == 3
    assert [batch["observation.state"].shape for batch in module.given] == [(2, 3), (1, 5)]


def test_targets_that_name_their_observations_otherwise_share_no_forward() -> None:
    module = Recording()
    state = np.zeros(3, np.float32)
    infer(module, request(observation__state=state), request(observation__angle=state), deterministic=False)
    assert [set(batch) for batch in module.given] == [{"observation.state"}, {"observation.angle"}]


def test_a_module_may_keep_what_it_was_given_and_reuse_what_it_returned() -> None:
    class Reusing(Recording):
        spec = PolicySpec()

        def __init__(self) -> None:
            super().__init__()
            self.buffer = torch.zeros(1, 2)

        def forward(self, batch: dict[str, Any]) -> torch.Tensor:
            self.given.append(batch)
            self.buffer.copy_(batch["observation.state"])
            return self.buffer

    module = Reusing()
    states = [np.full(2, value, np.float32) for value in range(3)]
    images = [np.full((2, 2, 3), value, np.uint8) for value in range(3)]
    asked = [
        request(observation__state=state, observation__images__top=image)
        for state, image in zip(states, images, strict=True)
    ]
    chunks = infer(module, *asked)
    assert [chunk.tolist() for chunk in chunks] == [[0, 0], [1, 1], [2, 2]]
    assert [batch["observation.state"].tolist() for batch in module.given] == [[[0, 0]], [[1, 1]], [[2, 2]]]
    tops = [batch["observation.images.top"].mul(255).round().unique().tolist() for batch in module.given]
    assert tops == [[0], [1], [2]]


@pytest.mark.parametrize(("rows", "size"), [(1, 1), (3, 4), (9, 16), (17, 24), (32, 32), (33, 48), (49, 64)])
def test_padded_batches_have_few_sizes(rows: int, size: int) -> None:
    assert bucket(rows) == size


def test_where_batches_are_padded_a_row_is_repeated_and_not_answered() -> None:
    module = Recording()
    asked = [request(observation__state=np.full(2, value, np.float32)) for value in range(3)]
    padded = TorchPolicy(module, device=torch.device("cpu"), dtype=torch.float32, rows=None, pads=True)
    assert len(padded.infer(asked)) == 3
    assert module.given[0]["observation.state"].tolist() == [[0, 0], [1, 1], [2, 2], [2, 2]]


@pytest.mark.skipif(shutil.which("g++") is None, reason="torch.compile needs a C++ compiler")
def test_a_compiled_module_is_compiled_for_padded_batches_and_gives_the_same_actions() -> None:
    script = Path(__file__).parent / "compiled_module.py"
    done = subprocess.run(
        [sys.executable, str(script)], capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["sizes"] == [4]
    assert found["largest"] < 1e-6


def test_where_the_time_goes_is_known() -> None:
    report = rollout.run(Recurrent(), COUNT, episodes=2, workers=1)
    assert report.summary.timing is not None
    policy = report.summary.timing.policy
    assert policy is not None
    assert policy.forward_s is not None
    assert policy.collate_s is not None
    assert policy.copy_s is not None
    assert policy.forward_s > 0
    assert policy.collate_s > 0
    spent = policy.forward_s + policy.collate_s + policy.copy_s
    busy = report.summary.timing.policy_busy * report.summary.timing.wall_s
    assert spent <= busy + 1e-3
    assert set(policy.batches) == {1}
    assert policy.batches[1].forwards == report.summary.timing.decisions
    assert policy.idle_s + busy == pytest.approx(report.summary.timing.wall_s)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("cuda_graphs", [False, True])
@pytest.mark.parametrize("deterministic", [False, True])
def test_on_a_gpu_the_rows_are_those_of_the_cpu(cuda_graphs: bool, deterministic: bool) -> None:
    class Net(nn.Module):
        spec = PolicySpec(
            observation_keys=("observation.state", "observation.images.top"), cuda_graphs=cuda_graphs
        )

        def __init__(self) -> None:
            super().__init__()
            self.state, self.image = nn.Linear(7, 5), nn.Conv2d(3, 5, 3)

        def forward(self, batch: dict[str, Any]) -> torch.Tensor:
            seen: torch.Tensor = self.image(batch["observation.images.top"]).mean((-1, -2))
            return torch.tanh(self.state(batch["observation.state"]) + seen)

    torch.manual_seed(0)
    module, rng = Net(), np.random.default_rng(0)
    asked = [
        request(
            observation__state=rng.standard_normal(7).astype("f4"),
            observation__images__top=rng.integers(0, 255, (16, 16, 3)).astype("u1"),
            task="t",
        )
        for _ in range(21)
    ]
    expected = infer(module, *asked, device="cpu")
    with as_policy(module, config(device="cuda", deterministic=deterministic)) as policy:
        for start, end in ((0, 21), (0, 1), (1, 3), (3, 21)):  # buffers and graphs are used again
            found = policy.infer(asked[start:end])
            np.testing.assert_allclose(found, expected[start:end], atol=1e-3)


def test_a_recurrent_module_needs_no_spec_and_follows_the_dtype() -> None:
    class Cell(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.cell = nn.GRUCell(2, 2)

        def initial_state(self) -> Any:
            return torch.zeros(2)

        def forward(self, batch: dict[str, Any], state: Any) -> Any:
            hidden = self.cell(batch["observation.state"], state)
            return hidden, hidden

    for dtype in ("fp32", "bf16"):
        assert rollout.run(Cell(), COUNT, episodes=1, workers=0, dtype=dtype).summary.overall.n_error == 0


class Pair(NamedTuple):
    hidden: torch.Tensor
    steps: torch.Tensor


def test_a_state_keeps_its_structure_and_whole_numbers_stay_whole() -> None:
    one = Pair(torch.zeros(3), torch.tensor(1))
    together = stacked([one, Pair(torch.ones(3), torch.tensor(2))], torch.device("cpu"), torch.bfloat16)
    assert isinstance(together, Pair)
    assert (together.hidden.dtype, together.steps.dtype) == (torch.bfloat16, torch.int64)
    assert row(together, 1).steps == 2


def test_a_module_is_given_back_only_when_no_forward_runs_in_it_any_more() -> None:
    inside, go_on = threading.Event(), threading.Event()

    class Slow(nn.Module):
        spec = PolicySpec(observation_keys=("observation.state",))

        def __init__(self) -> None:
            super().__init__()
            self.norm = nn.BatchNorm1d(2)

        def forward(self, batch: dict[str, Any]) -> torch.Tensor:
            inside.set()
            assert go_on.wait(30)
            result: torch.Tensor = self.norm(batch["observation.state"])
            return result

    module = Slow()

    async def main() -> None:
        async with rollout.Engine(COUNT, episodes=2, workers=2) as engine, anyio.create_task_group() as tasks:
            tasks.start_soon(engine.evaluate, module)
            await anyio.to_thread.run_sync(inside.wait)
            threading.Timer(0.2, go_on.set).start()
            tasks.cancel_scope.cancel()

    anyio.run(main)
    assert module.training
    assert module.norm.num_batches_tracked == 0  # it never ran in training mode


def test_out_of_memory_in_a_deterministic_forward_of_several_rows_says_what_helps() -> None:
    class Large(nn.Module):
        def forward(self, batch: dict[str, Any]) -> torch.Tensor:
            raise torch.OutOfMemoryError("CUDA out of memory")

    policy = TorchPolicy(Large(), device=torch.device("cpu"), dtype=torch.float32, rows=8)
    with pytest.raises(PolicyError, match=r"8 rows .* --no-deterministic"):
        policy.infer(decisions(3))


def test_memory_that_runs_out_over_the_new_states_leaves_all_of_them_as_they_were(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with as_policy(Recurrent(), config(deterministic=False)) as policy:
        sessions = [policy.open_session(SPEC, None) for _ in range(4)]  # type: ignore[arg-type]
        asked = [
            Request(SPEC, None, 0, 0, session, {"observation.state": np.ones(2, np.float32)})  # type: ignore[arg-type]
            for session in sessions
        ]
        taken = itertools.count()

        def failing(states: Any, index: int) -> Any:
            if next(taken) == 2:
                raise torch.OutOfMemoryError
            return row(states, index)

        monkeypatch.setattr("rollout.policies.torch.row", failing)
        with pytest.raises(torch.OutOfMemoryError):
            policy.infer(asked)
        assert [session.state["sum"].tolist() for session in sessions] == [[0, 0]] * 4


def test_a_modules_versions_reach_the_record() -> None:
    class Known(Recording):
        versions = {"checkpoint": "abc"}  # noqa: RUF012

    with as_policy(Known(), config()) as policy:
        assert policy.versions == {"checkpoint": "abc"}  # type: ignore[attr-defined]
