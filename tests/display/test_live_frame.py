"""What the live view shows, and that it fits."""

from __future__ import annotations

import re

import pytest
from rich.cells import cell_len

from rollout.display.base import WorkerState
from rollout.display.frame import View, compose
from rollout.display.rates import Rates
from rollout.display.tasks import choose
from rollout.display.text import ErrorLines, count, duration, label, one_line, percent, tell_apart
from rollout.results.efficiency import Limit

RATES = Rates(
    steps_per_s=1234.0, decisions_per_s=120.0, mean_batch=7.9, policy_busy=0.35, bound=Limit.SIMULATORS
)
BOWLS = (
    "between the plate and the ramekin",
    "next to the ramekin",
    "from table center",
    "on the cookie box",
    "in the top drawer of the wooden cabinet",
    "on the ramekin",
    "next to the cookie box",
    "on the stove",
    "next to the plate",
    "on the wooden cabinet",
)


def bowl(index: int) -> str:
    return f"pick up the black bowl {BOWLS[index % 10]} and place it on the plate"


@pytest.fixture
def lines(make):
    """Compose a frame, as lines of text."""

    def composed(counters, width=80, height=24, plan=None, **view):
        defaults = {
            "plan": plan or make.plan(),
            "counters": counters,
            "elapsed_s": 12.0,
            "eta": "eta 15 s",
            "rates": RATES,
            "finished": (),
        }
        frame = compose(View(**defaults | view), width, height)
        return ["".join(text for text, _ in line) for line in frame]

    return composed


@pytest.mark.parametrize("width", [80, 99, 100, 119, 120, 160, 240])
@pytest.mark.parametrize("height", [10, 24, 45])
@pytest.mark.parametrize("n_tasks", [1, 10, 130])
def test_no_line_is_wider_than_the_terminal_and_no_frame_is_higher(make, lines, width, height, n_tasks):
    counters = make.counters(
        n_tasks,
        episodes=50,
        workers=16,
        suite="libero:spatial",
        instruction=bowl,
        name=lambda index: bowl(index).replace(" ", "_"),
    )
    for index in range(n_tasks):
        make.end(counters, index, successes=30, failures=3, errors=2)
    counters.steps, counters.retries = 1000, 12
    counters.workers = [state for state in WorkerState if state != "starting" for _ in range(11)]
    plan = make.plan(
        policy="lerobot:outputs/train/act_libero/checkpoints/last/pretrained_model",
        workers=16,
        targets=("libero:spatial", "libero:object", "libero:goal", "libero:10"),
        out="runs/" + "x" * 60,
    )
    shown = lines(counters, width, height, plan)
    assert max(map(cell_len, shown)) <= width
    assert len(shown) <= height - 1
    assert shown[-1].startswith("1,234 steps/s")


@pytest.mark.parametrize("width", [1, 10, 39])
@pytest.mark.parametrize("height", [1, 2, 5])
def test_a_tiny_terminal_gets_what_fits_and_no_error(make, lines, width, height):
    assert 1 <= len(lines(make.counters(10), width, height)) <= max(1, height - 1)


def test_before_anything_is_done_no_share_and_no_end_is_claimed(make, lines):
    shown = "\n".join(lines(make.counters(), eta="eta unknown", rates=None))
    assert "0/12 episodes  12 s  eta unknown" in shown
    assert "no step yet" in shown
    assert "0 %" not in shown


def test_a_row_shows_successes_rate_and_interval(make, lines):
    counters = make.counters(2, episodes=20)
    make.end(counters, 0, successes=12, failures=2)
    shown = lines(counters)
    row = next(line for line in shown if "task-0-v3" in line)
    assert row.split()[-6:] == ["14/20", "12", "86", "%", "60–96", "%"]
    assert not any("error" in line for line in shown)


def test_errors_are_a_column_of_their_own_and_enter_no_rate(make, lines):
    counters = make.counters(2, episodes=20)
    make.end(counters, 0, successes=3, errors=2)
    shown = lines(counters)
    assert next(line for line in shown if "task-0-v3" in line).split()[-7:] == [
        "5/20",
        "3",
        "100",
        "%",
        "44–100",
        "%",
        "2",
    ]
    assert any(line.endswith("errors") for line in shown)


def test_an_environment_without_a_success_signal_shows_a_dash_for_its_rate(make, lines):
    counters = make.counters(1, episodes=20)
    make.end(counters, 0, unknown=5)
    assert next(line for line in lines(counters) if "task-0-v3" in line).split()[-2:] == ["5/20", "–"]


def test_a_task_with_nothing_but_errors_has_no_rate(make, lines):
    counters = make.counters(1, episodes=20)
    make.end(counters, 0, errors=5)
    assert next(line for line in lines(counters) if "task-0-v3" in line).split()[-2:] == ["5/20", "5"]


def test_columns_end_at_the_same_cell_in_every_row(make, lines):
    counters = make.counters(
        10,
        episodes=100,
        suite="libero:spatial",
        instruction=bowl,
        name=lambda index: bowl(index).replace(" ", "_"),
    )
    for index in range(10):
        make.end(counters, index, successes=index * 10 + 1, failures=1)
    table = [line for line in lines(counters) if "/100 " in line or "all 10 " in line]
    assert len(table) == 11
    assert len({len(line) for line in table}) == 1
    assert len({re.search(r"/1000?", line).end() for line in table}) == 1


def test_the_bar_of_tasks_is_full_only_when_all_is_done(make, lines):
    counters = make.counters(1, episodes=1000)
    make.end(counters, 0, successes=999)
    assert "━╸  999/1000" in lines(counters)[1]
    assert "99 %" in lines(counters)[1]
    make.end(counters, 0, successes=1)
    assert "━━  1000/1000" in lines(counters)[1]
    assert "100 %" in lines(counters)[1]
    assert "eta" not in lines(counters)[1]


def test_tasks_that_begin_alike_can_be_told_apart_at_80_columns(make, lines):
    counters = make.counters(
        10, suite="libero:spatial", instruction=bowl, name=lambda index: bowl(index).replace(" ", "_")
    )
    rows = [line for line in lines(counters) if "0/4 " in line][:10]
    for where, row in zip(BOWLS, rows, strict=True):
        assert f"…{where}"[:30] in row


def test_a_wide_terminal_shows_the_whole_instruction_beside_the_name(make, lines):
    counters = make.counters(3, instruction="reach target number {}".format)
    wide, narrow = "\n".join(lines(counters, 160)), "\n".join(lines(counters, 60))
    assert "task-1-v3    reach target number 1" in wide
    assert "task-1-v3" in narrow
    assert "reach" not in narrow


def test_suites_are_named_only_where_there_are_several_and_room(make, lines):
    counters = make.counters(2)
    assert "suite" not in "\n".join(lines(counters, 160))
    counters.tasks |= make.counters(2, suite="metaworld:ml10").tasks
    assert "task-1-v3    metaworld:ml10" in "\n".join(lines(counters, 160))


def test_with_more_tasks_than_lines_active_ones_come_first_then_the_latest_finished(make, lines):
    counters = make.counters(50, episodes=2)
    for index in range(30):
        make.end(counters, index, successes=2)
    for index in (40, 41, 42):
        list(counters.tasks.values())[index].active = 1
    finished = [("metaworld:mt10", index) for index in range(30)]
    shown = lines(counters, 80, 16, finished=finished)
    rows = [line.split()[2] for line in shown if line.startswith(("✓", "▸"))]
    assert rows == [f"task-{index}-v3" for index in (40, 41, 42, 29, 28, 27, 26, 25)]
    assert any(line.strip() == "… and 42 more: 25 done, 17 waiting" for line in shown)
    assert any("all 50 tasks" in line and "60/100" in line for line in shown)


def test_every_task_is_either_shown_or_counted(make):
    counters = make.counters(20)
    for room in range(25):
        shown, hidden = choose(counters.tasks, (), room)
        assert len(shown) + len(hidden) == 20
        assert len(shown) + bool(hidden) <= max(room, 1)


def test_workers_are_a_strip_of_letters_where_it_fits_and_always_counted(make, lines):
    counters = make.counters(workers=0)
    counters.workers = [
        WorkerState.STEPPING,
        WorkerState.STEPPING,
        WorkerState.STEPPING,
        WorkerState.WAITING,
        WorkerState.IDLE,
        WorkerState.STARTING,
    ]
    assert "workers  sssw·+  3 stepping  1 waiting  1 starting  1 idle" in lines(counters)
    counters.workers *= 20
    assert "workers  60 stepping  20 waiting  20 starting  20 idle" in lines(counters)


def test_the_line_of_rates_says_what_bounds_the_run_even_where_little_fits(make, lines):
    counters = make.counters()
    counters.steps = 1
    assert lines(counters, 160)[-1] == (
        "1,234 steps/s  120 decisions/s  mean batch 7.9  policy 35 % busy  "
        "bound by the simulators: more cores"
    )
    assert lines(counters, 100)[-1].endswith("policy 35 % busy  bound by the simulators")
    assert lines(counters, 40)[-1] == "1,234 steps/s  bound: simulators"


def test_the_last_frame_leaves_the_tasks_to_the_table_of_results(make, lines):
    counters = make.counters()
    make.end(counters, 0, successes=1)
    shown = lines(counters, ended=True)
    assert len(shown) == 2
    assert shown[1].endswith("1/12 episodes  8 %  12 s  stopped")


def test_control_characters_of_a_simulator_never_reach_the_terminal(make, lines):
    counters = make.counters(1, name=lambda index: "a\x1b[2Jb\nc")
    assert any("ab c" in line for line in lines(counters))


def test_wide_characters_keep_the_columns_aligned(make, lines):
    counters = make.counters(2, name=lambda index: ("拾起黑色的碗并放在盘子上" * 4, "plain")[index])
    rows = [line for line in lines(counters) if "0/4" in line]
    assert len({cell_len(row[: row.index("0/4")]) for row in rows}) == 1


def test_an_underscored_name_gives_way_to_the_instruction_that_it_repeats():
    assert label("pick_up_the_bowl", "pick up the bowl") == "pick up the bowl"
    assert label("KITCHEN_SCENE3_turn_on_the_stove", "turn on the stove") == "turn on the stove"
    assert label("reach-v3", "reach a position") == "reach-v3"
    assert label("x" * 41, "reach a position") == "reach a position"
    assert label("CartPole-v1", "") == "CartPole-v1"


def test_shared_words_stay_where_names_fit_or_share_too_little():
    names = ["pick up the milk", "pick up the soup"]
    assert tell_apart(names, 16) == names
    assert tell_apart(names, 10) == ["…milk", "…soup"]
    assert tell_apart(["pick a", "pick b"], 3) == ["pick a", "pick b"]
    assert tell_apart(["the same", "the same"], 3) == ["the same", "the same"]


def test_only_all_reads_100_percent_and_only_none_0():
    assert [percent(share) for share in (0.0, 0.001, 0.5, 0.999, 1.0)] == [
        "0 %",
        "1 %",
        "50 %",
        "99 %",
        "100 %",
    ]


def test_rates_and_durations_are_short():
    assert [count(value) for value in (0, 9.94, 9.96, 9999.4, 9999.6, 99_949, 99_951)] == [
        "0.0",
        "9.9",
        "10",
        "9,999",
        "10.0k",
        "99.9k",
        "100k",
    ]
    assert [duration(value) for value in (0.2, 59.6, 200, 3599.7, 7500)] == [
        "0 s",
        "1 min 00 s",
        "3 min 20 s",
        "1 h 00 min",
        "2 h 05 min",
    ]


def test_an_error_is_told_with_its_first_line_until_it_repeats(make):
    errors = ErrorLines(most_alike=2)
    told = [errors.tell(make.error("killed by SIGKILL\nlog", episode=episode)) for episode in range(3)]
    assert told == [
        "error: metaworld:mt10 reach-v3 episode 0: WorkerDied: killed by SIGKILL",
        "error: metaworld:mt10 reach-v3 episode 1: WorkerDied: killed by SIGKILL "
        "(more of these are only counted)",
        None,
    ]
    assert errors.tell(make.error("another")) is not None
    assert errors.tell(make.result()) is None


def test_errors_that_differ_in_numbers_are_alike(make):
    errors = ErrorLines(most_alike=3)
    told = [errors.tell(make.error(f"exploded in episode {n}", episode=n)) for n in range(1000)]
    assert [line is None for line in told] == [False] * 3 + [True] * 997


def test_a_task_that_its_suite_repeats_is_named_once(make):
    result = make.error("gone", suite="gym:module:some/Env-v0", task="some/Env-v0")
    assert ErrorLines().tell(result) == "error: some/Env-v0 episode 3: WorkerDied: gone"


def test_an_episode_that_was_never_tried_has_no_line_of_its_own(make):
    errors = ErrorLines()
    assert errors.tell(make.error("no such robot", attempts=0)) is None
    assert errors.tell(make.error("no such robot", attempts=1)) is not None


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("\x1b[1;31mred\x1b[0m and\n\tblue", "red and blue"),
        ("\x1b]8;;http://x\x1b\\link\x1b]8;;\x07!", "link!"),
        ("\x9b2Jcleared\x1bc \x1b(B", "cleared"),
        ("\x1b]0;a title without an end", "0;a title without an end"),
        ("left\u202eright\x00\x7f\ud800", "left right"),
        ("\x1b\x1b[0m[2Jnested", "[2Jnested"),
        ("漢字 é [0.1, 0.2] \\x1b[2J", "漢字 é [0.1, 0.2] \\x1b[2J"),
    ],
)
def test_a_line_has_no_codes_for_a_terminal(text, shown):
    assert one_line(text) == shown
    assert one_line(text).isprintable()
