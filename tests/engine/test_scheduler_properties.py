"""The scheduler against a model: any plan, any workers, whatever finishes, dies, or cannot be built, in any order."""

from __future__ import annotations

from collections import Counter
from random import Random

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from rollout.engine.scheduler import Costs, Scheduler, TaskKey
from rollout.types import EpisodeSpec

SECONDS = st.one_of(st.just(0.0), st.floats(1e-3, 1e4))
COSTS = st.builds(Costs, build_s=SECONDS, step_s=SECONDS)
TASKS = st.lists(st.tuples(st.sampled_from(["gym:a", "gym:b", "libero:c"]), st.integers(1, 500)), max_size=5)
ELSEWHERE = ("gym:of-another-evaluation", 0)


class AnyRun(RuleBasedStateMachine):
    """Workers that ask, finish, die and lose their simulators; what the scheduler may do is kept beside it."""

    @initialize(
        tasks=TASKS,
        counts=st.lists(st.integers(1, 6), min_size=5, max_size=5),
        workers=st.integers(1, 5),
        costs=st.dictionaries(st.sampled_from(["gym", "libero"]), COSTS),
    )
    def plan(
        self, tasks: list[tuple[str, int]], counts: list[int], workers: int, costs: dict[str, Costs]
    ) -> None:
        specs = [
            EpisodeSpec(
                suite=suite,
                task=f"t{task_id}",
                task_id=task_id,
                episode=episode,
                seed=episode,
                horizon=horizon,
            )
            for task_id, ((suite, horizon), count) in enumerate(zip(tasks, counts, strict=False))
            for episode in range(count)
        ]
        self.scheduler = Scheduler(specs, costs)
        self.workers = range(workers)
        self.left = {spec.key: spec for spec in specs}  # neither given out nor dropped
        self.handled: Counter[tuple[str, int, int]] = Counter()
        self.running: dict[int, EpisodeSpec] = {}
        self.holds: dict[int, TaskKey | None] = dict.fromkeys(
            self.workers
        )  # the simulator that each has built
        self.claims: dict[int, TaskKey] = {}  # what each was given last, unless it asked since

    def idle(self) -> list[int]:
        return [worker for worker in self.workers if worker not in self.running]

    def tasks_left(self) -> set[TaskKey]:
        return {spec.task_key for spec in self.left.values()}

    def handle(self, spec: EpisodeSpec) -> None:
        self.handled[spec.key] += 1
        assert self.handled[spec.key] == 1, f"{spec.key} was handed out twice"
        del self.left[spec.key]

    def asks(self, worker: int) -> bool:
        """The worker asks. Whether it got an episode."""
        held = self.holds[worker]
        self.claims.pop(worker, None)
        spec = self.scheduler.next(worker, held)
        if spec is None:
            assert held not in self.tasks_left(), f"worker {worker} holds {held}, of which there is more"
            assert self.tasks_left() <= set(self.claims.values()), "a task was left to nobody"
            return False
        self.handle(spec)
        if held in self.tasks_left():
            assert spec.task_key == held, "a simulator that is there was given up for another one"
        self.running[worker], self.claims[worker] = spec, spec.task_key
        return True

    @precondition(lambda self: self.idle())
    @rule(data=st.data())
    def one_asks(self, data: st.DataObject) -> None:
        self.asks(data.draw(st.sampled_from(self.idle())))

    @rule(random=st.randoms(use_true_random=False))
    def all_ask(self, random: Random) -> None:
        workers = self.idle()
        random.shuffle(workers)
        self.somebody_gets_what_is_left(workers)

    def somebody_gets_what_is_left(self, workers: list[int]) -> None:
        left, quiet = len(self.left), not self.running
        got = [self.asks(worker) for worker in workers]
        assert any(got) or not (left and quiet), "nothing runs, and nobody was given any of what is left"

    @precondition(lambda self: self.running)
    @rule(data=st.data(), episode_s=SECONDS, build_s=st.one_of(st.none(), SECONDS))
    def one_finishes(self, data: st.DataObject, episode_s: float, build_s: float | None) -> None:
        worker = data.draw(st.sampled_from(sorted(self.running)))
        spec = self.running.pop(worker)
        self.holds[worker] = spec.task_key
        self.scheduler.measured(spec.task_key, episode_s, build_s)

    @precondition(lambda self: self.running)
    @rule(data=st.data(), again=st.booleans())
    def one_dies_in_its_episode(self, data: st.DataObject, again: bool) -> None:
        """It is tried again where it is, or given up; the scheduler is told of neither."""
        worker = data.draw(st.sampled_from(sorted(self.running)))
        self.holds[worker] = None
        if not again:
            del self.running[worker]

    @precondition(lambda self: self.running)
    @rule(data=st.data())
    def one_cannot_build_its_task(self, data: st.DataObject) -> None:
        worker = data.draw(st.sampled_from(sorted(self.running)))
        key = self.running.pop(worker).task_key
        self.holds[worker] = None
        dropped = self.scheduler.drop(key)
        assert {spec.key for spec in dropped} == {
            spec.key for spec in self.left.values() if spec.task_key == key
        }
        for spec in dropped:
            self.handle(spec)

    @rule(data=st.data(), held=st.sampled_from([None, ELSEWHERE]))
    def one_has_another_simulator(self, data: st.DataObject, held: TaskKey | None) -> None:
        """None at all, or that of an earlier evaluation of the same engine."""
        self.holds[data.draw(st.sampled_from(self.workers))] = held

    @invariant()
    def what_is_left_is_counted(self) -> None:
        assert len(self.scheduler) == len(self.left)

    def teardown(self) -> None:
        """Everybody goes on until nothing is left, which takes no more rounds than there are episodes."""
        for _ in range(len(self.left) + 1):
            for worker, spec in self.running.items():
                self.holds[worker] = spec.task_key
            self.running.clear()
            self.somebody_gets_what_is_left(list(self.workers))
        assert not self.left
        assert not any(self.scheduler.next(worker, held) for worker, held in self.holds.items())


AnyRun.TestCase.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)


class TestAnyRun(AnyRun.TestCase):
    """Every spec is given out or dropped exactly once, and nothing is left while anybody asks."""
