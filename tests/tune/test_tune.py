"""`rollout tune` on real workers that sleep, so that what binds is known beforehand; and `--workers auto`."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anyio
import click
import pytest
from msgspec import structs

import rollout
from rollout.cli import cli
from rollout.display.base import Counters, RunPlan
from rollout.display.select import NullDisplay
from rollout.errors import PolicyError, RolloutError, UsageError
from rollout.resources import cpu_time, machine_time, process_age
from rollout.tune import tune
from rollout.tune.command import run_command
from rollout.tune.curve import Curve
from rollout.tune.forecast import Forecast
from rollout.tune.growth import Growth, Look, Stretch
from rollout.tune.network import Flow
from rollout.tune.recommend import Choice
from rollout.tune.tuning import Tuning

HERE = Path(__file__).parent
SLEEPING = "gym:tune_toys:tune/Sleeping-v0"
BUDGET_S = 4.0
DEADLINE_S = 120


@pytest.fixture(autouse=True)
def _toys_in_the_working_directory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(HERE))


def tuned(policy: Any, target: str = SLEEPING, **values: Any) -> Tuning:
    async def main() -> Tuning:
        with anyio.fail_after(DEADLINE_S):
            return await tune(policy, target, **{"budget_s": BUDGET_S, "episodes": 24, **values})

    return anyio.run(main)


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-c", "from rollout.cli import main; main()", "tune", *arguments]


def environment() -> dict[str, str]:
    return os.environ | {"PYTHONPATH": str(HERE), "COLUMNS": "200"}


def told(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command(*arguments),
        env=environment(),
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
        stdin=subprocess.DEVNULL,
    )


def parsed(line: str) -> dict[str, Any]:
    """The parameters that click reads from a command for a shell."""
    words = shlex.split(line)
    assert words[:2] == ["rollout", "run"]
    run = cli.commands["run"]
    return run.make_context("run", words[2:]).params


# Measuring


def test_a_policy_that_is_slow_binds_and_gets_more_than_one_worker() -> None:
    found = tuned("tune_toys:Slow", workers=2)
    assert found.bound == "policy"
    assert found.workers > 1
    assert found.episodes == 24
    assert [point.simulators for point in found.demand] == sorted({p.simulators for p in found.demand})
    assert found.demand[0].simulators == 1
    assert [point.batch for point in found.supply][:2] == [1, 2]
    assert all(point.forward_s >= 0.2 for point in found.supply)
    assert found.steps_per_decision == 2
    # Alone on a free machine a decision is two steps of 20 ms; sleeping can only take longer.
    assert found.physics_s >= 0.04


def test_simulators_that_sleep_bind_where_the_policy_answers_at_once() -> None:
    found = tuned("tune_toys:Quick")
    assert found.bound == "simulators"
    assert found.workers > 1


def test_pieces_that_end_early_tell_how_long_episodes_are() -> None:
    found = tuned("tune_toys:Quick", horizon=300, options={"length": "8", "step_s": "0.001"})
    assert found.ended > 0
    assert found.steps == pytest.approx(8, abs=2)
    assert tuned("tune_toys:Quick", budget_s=2.0).steps == 400  # none ended: the horizon


def test_a_plan_of_one_episode_needs_one_worker() -> None:
    found = tuned("tune_toys:Quick", episodes=1, budget_s=2.0)
    assert found.workers == 1
    assert found.shards == 1


def test_a_simulator_that_fails_is_named() -> None:
    with pytest.raises(RolloutError, match=r"Broken-v0 episode \d+: ValueError: the gripper fell off"):
        tuned("tune_toys:Quick", "gym:tune_toys:tune/Broken-v0")


def test_a_policy_that_fails_ends_it() -> None:
    with pytest.raises(PolicyError, match="no such weights"):
        tuned("tune_toys:Failing")


@pytest.mark.metaworld
def test_meta_world_with_its_expert() -> None:
    found = tuned("expert", "metaworld:reach-v3", episodes=4, budget_s=8.0)
    assert found.ended > 0
    assert found.steps < 500
    assert found.render is None
    assert found.build_s > found.reset_s > 0


# The command


def test_the_printed_command_runs_the_same_plan(capfd: pytest.CaptureFixture[str]) -> None:
    arguments = [
        SLEEPING,
        "--policy",
        "tune_toys:Slow",
        "--policy-arg",
        "call_s=0.1",
        "--episodes",
        "6",
        "--horizon",
    ]
    arguments += ["20", "--set", "step_s=0.01", "--budget", "2"]
    done = told(*arguments)
    assert done.returncode == 0, done.stderr
    printed = [line for line in done.stdout.splitlines() if line.startswith("rollout run ")]
    assert len(printed) == 1
    params = parsed(printed[0])
    assert params["targets"] == (SLEEPING,)
    assert params["policy"] == "tune_toys:Slow"
    assert params["policy_arg"] == ("call_s=0.1",)
    assert params["options"] == ("step_s=0.01",)
    assert (params["episodes"], params["horizon"]) == (6, 20)
    assert params["workers"] >= 1
    assert params["max_batch"] >= 1
    for label in ("costs", "episodes", "memory", "binds", "run with", "expect", "shards"):
        assert label in done.stdout


def test_a_configuration_file_of_a_run_will_do(tmp_path: Path) -> None:
    file = tmp_path / "run.toml"
    file.write_text(
        f'targets = "{SLEEPING}"\npolicy = "tune_toys:Quick"\n'
        'episodes = 2\nworkers = 7\nout = "runs/x"\nresume = true\n'
    )
    done = told("--config", str(file), "--budget", "1")
    assert done.returncode == 0, done.stderr
    assert parsed(done.stdout.splitlines()[-1])["file"] == str(file)


def test_json_is_strict_and_has_the_command() -> None:
    done = told(SLEEPING, "--policy", "tune_toys:Quick", "--episodes", "2", "--budget=2", "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["bound"] in ("simulators", "policy", "memory", "start-up")
    assert parsed(found["command"])["workers"] == found["workers"]
    assert found["wall_s"] >= found["start_s"] > 0


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        (["a b", "--policy", "p"], "'a b' --policy p"),
        (["t", "--budget", "9", "--policy", "p", "--json"], "t --policy p"),
        (["t", "--budget=9", "--policy=p"], "t --policy=p"),
        (
            ["--policy", "p", "--policy-arg", "text=it's; rm -rf"],
            "--policy p --policy-arg 'text=it'\"'\"'s; rm -rf'",
        ),
    ],
)
def test_the_command_keeps_what_was_given_quoted(given: list[str], kept: str) -> None:
    assert run_command(given, choice()) == f"rollout run {kept} --workers 3 --max-batch 64"


def test_options_stand_before_a_double_dash() -> None:
    assert run_command(["--policy", "p", "--", "t"], choice()) == (
        "rollout run --policy p --workers 3 --max-batch 64 -- t"
    )


def choice() -> Choice:
    settled = Flow(decisions_per_s=1.0, mean_batch=1.0, policy_busy=0.5, cores_busy=0.5)
    told = Forecast(wall_s=1.0, builds=1, decisions=1.0)
    return Choice(workers=3, max_batch=64, flow=settled, forecast=told)


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        ([SLEEPING], 2, "no policy"),
        (["gym:tune_toys:tune/Slepping-v0", "--policy", "random"], 2, "rollout: "),
        (["metawrld:mt10", "--policy", "random"], 2, "did you mean"),
        ([SLEEPING, "--policy", "tune_toys:Slow", "--budget", "0"], 2, "--budget"),
        ([SLEEPING, "--policy", "tune_toys:Slow", "--workers", "3"], 2, "no such option --workers"),
    ],
)
def test_a_mistake_costs_one_line(arguments: list[str], code: int, says: str) -> None:
    done = told(*arguments)
    assert done.returncode == code
    assert says in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_a_policy_that_fails_exits_with_1_and_its_traceback() -> None:
    done = told(SLEEPING, "--policy", "tune_toys:Failing")
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].startswith("rollout: the policy raised RuntimeError: no such weights")
    assert "Traceback" in done.stderr


def test_ctrl_c_leaves_nothing_behind() -> None:
    arguments = command(SLEEPING, "--policy", "tune_toys:Slow", "--budget", "60")
    with subprocess.Popen(
        arguments, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        started = wait_for(lambda: workers_of(process.pid))
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=DEADLINE_S)
    assert process.returncode == 130
    assert errors.splitlines() == ["rollout: stopped by SIGINT"]
    assert wait_for(lambda: not any(Path(f"/proc/{pid}").exists() for pid in started))


def workers_of(pid: int) -> list[int]:
    """The children of the forkserver, the only child of `pid`."""
    try:
        forkserver = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        return [int(child) for each in forkserver for child in children(int(each))]
    except OSError:
        return []


def children(pid: int) -> Iterator[int]:
    for task in Path(f"/proc/{pid}/task").iterdir():
        yield from map(int, (task / "children").read_text().split())


def wait_for(found: Any) -> Any:
    deadline = time.monotonic() + DEADLINE_S
    while time.monotonic() < deadline:
        if value := found():
            return value
        time.sleep(0.05)
    raise AssertionError("it never came")


# `--workers auto`


class Watching(NullDisplay):
    """Keeps the counters and the notes."""

    def __init__(self) -> None:
        self.notes: list[str] = []

    def start(self, plan: RunPlan, counters: Counters) -> None:
        self.counters, self.workers = counters, plan.workers

    def note(self, message: str) -> None:
        self.notes.append(message)


@pytest.fixture
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """A run that lasts seconds looks at itself as one does that lasts hours."""
    monkeypatch.setattr("rollout.growing.INTERVAL_S", 0.1)
    monkeypatch.setattr("rollout.tune.growth.LEAST_S", 0.5)
    monkeypatch.setattr("rollout.tune.growth.LEAST_DECISIONS", 12)


def run(display: Watching, **settings: Any) -> list[str | None]:
    values = {"episodes": 20, "horizon": 20, "options": {"step_s": "0.01"}, "policy_args": {"call_s": 0.1}}
    report = rollout.run("tune_toys:Slow", SLEEPING, display=display, **(values | settings))
    assert report.summary.overall.n_error == 0
    return [episode.digest for episode in report.episodes]


@pytest.mark.usefixtures("_soon")
def test_a_run_takes_on_workers_where_they_pay_and_gives_the_same_episodes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("rollout.api.auto_workers", lambda cores, memory, each: 3)
    grown, fixed = Watching(), Watching()
    digests = run(grown)
    assert grown.workers == 3
    assert len(grown.counters.workers) > 3
    assert any("workers in place of 3" in note for note in grown.notes)
    assert run(fixed, workers=6, max_batch=2) == digests
    assert len(fixed.counters.workers) == 6


@pytest.mark.usefixtures("_soon")
def test_workers_that_were_asked_for_stay_as_many() -> None:
    shown = Watching()
    run(shown, workers=2, episodes=6)
    assert len(shown.counters.workers) == 2
    assert not shown.notes


def test_an_engine_keeps_the_workers_that_it_took_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rollout.api.auto_workers", lambda cores, memory, each: 2)

    async def main() -> tuple[int, int]:
        async with rollout.Engine(SLEEPING, horizon=2) as engine:
            before = len(engine.slots(99))
            engine.first_slots(5)
            return before, len(engine.slots(99))

    assert anyio.run(main) == (2, 5)


def look(at_s: float, decisions: int, busy_s: float, cpu_s: float) -> Look:
    return Look(at_s=at_s, decisions=decisions, busy_s=busy_s, cpu_s=cpu_s, policy_s=at_s, policy_cpu_s=0.0)


CURVE = Curve(((1, 0.2), (4, 0.203)))
AHEAD = Stretch(workers=4, most=64, decisions=1e5, build_s=1.0)


def test_growth_at_most_doubles() -> None:
    growth = Growth(cores=2)
    assert growth.advice(look(0.0, 0, 0.0, 0.0), CURVE, AHEAD) is None  # nothing to compare with
    advice = growth.advice(look(10.0, 160, 16.0, 0.1), CURVE, AHEAD)
    assert advice is not None
    assert advice.workers == 8


@pytest.mark.parametrize(
    ("ahead", "cpu_s"),
    [
        (Stretch(workers=4, most=4, decisions=1e5, build_s=1.0), 0.1),  # no memory, or no episode, for more
        (
            Stretch(workers=4, most=64, decisions=100, build_s=60.0),
            0.1,
        ),  # building takes longer than the rest
        (AHEAD, 20.0),  # the cores are busy
    ],
)
def test_growth_stays_where_more_would_not_pay(ahead: Stretch, cpu_s: float) -> None:
    growth = Growth(cores=2)
    growth.advice(look(0.0, 0, 0.0, 0.0), CURVE, ahead)
    busy_s = max(16.0, 2 * cpu_s)
    assert (
        growth.advice(look(10.0, 160, busy_s, cpu_s), Curve(((1, 0.01),)) if cpu_s > 1 else CURVE, ahead)
        is None
    )


def test_growth_that_did_not_help_is_the_last() -> None:
    growth = Growth(cores=2)
    growth.advice(look(0.0, 0, 0.0, 0.0), CURVE, AHEAD)
    assert growth.advice(look(10.0, 160, 16.0, 0.1), CURVE, AHEAD) is not None
    more = Stretch(workers=8, most=64, decisions=1e5, build_s=1.0)
    assert growth.advice(look(11.0, 180, 18.0, 0.1), CURVE, more) is None
    assert growth.advice(look(21.0, 340, 34.0, 0.2), CURVE, more) is None  # as quick as before
    assert growth.advice(look(31.0, 900, 50.0, 0.3), CURVE, more) is None


def test_growth_that_finds_nothing_looks_less_and_less_often() -> None:
    growth, full = Growth(cores=2), structs.replace(AHEAD, most=4)
    growth.advice(look(0.0, 0, 0.0, 0.0), CURVE, full)
    assert growth.advice(look(4.0, 64, 6.4, 0.1), CURVE, full) is None  # nothing fits
    assert growth.advice(look(8.0, 128, 12.8, 0.2), CURVE, AHEAD) is None  # too soon
    assert growth.advice(look(12.0, 192, 19.2, 0.3), CURVE, AHEAD) is not None


# Clocks of processes


def test_the_cpu_time_of_another_process_is_known() -> None:
    script = "import sys, time\nwhile time.process_time() < 0.3: pass\nprint(flush=True); sys.stdin.read()"
    with subprocess.Popen(
        [sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as busy:
        assert busy.stdout is not None
        busy.stdout.readline()
        assert 0.3 <= cpu_time(busy.pid) < 30
    assert cpu_time(busy.pid) == 0.0  # it is gone


def test_this_process_and_the_machine_have_an_age() -> None:
    before = machine_time()
    assert 0 < process_age() < 1e6
    assert machine_time() >= before > 0


def test_tune_knows_of_no_option_that_run_does_not_have() -> None:
    context = click.Context(cli)
    own = {"budget_s", "as_json"}
    tune_params = {param.name for param in cli.get_command(context, "tune").params}  # type: ignore[union-attr]
    run_params = {param.name for param in cli.get_command(context, "run").params}  # type: ignore[union-attr]
    assert tune_params - run_params == own
    assert not tune_params & {"workers", "max_batch", "out", "resume"}


def test_a_setting_that_cannot_be_run_is_refused() -> None:
    with pytest.raises(UsageError, match="--horizon 0"):
        tuned("tune_toys:Quick", horizon=0)
