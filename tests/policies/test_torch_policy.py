"""A bare `torch.nn.Module` as a policy: what it is given, what it may return, and how it is given back."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import rollout
from rollout.config import EvalConfig
from rollout.errors import PolicyError, UsageError
from rollout.policies.base import PolicySpec, Request
from rollout.policies.load import as_policy
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
    policy = watched(reads(lambda batch: batch["observation.state"]), FULL)
    assert len(policy.infer([NARROW])) == len(policy.infer([FULL])) == 1


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
