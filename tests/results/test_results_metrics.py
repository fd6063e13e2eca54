"""`rollout export --metrics`: one flat object of numbers, also of a run that has not come to its end."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
from sample_records import KEYS, at, header, result

from rollout.errors import ResultsError, UsageError
from rollout.results.efficiency import Efficiency, Limit, Shares
from rollout.results.export import eval_info
from rollout.results.journal import EPISODES, Journal
from rollout.results.metrics import flat_metrics, read_metrics, write_metrics
from rollout.results.summary import Timing, summarize, write_summary
from rollout.types import EpisodeResult, Outcome
from test_docs import code, page, section

TIMING = Timing(
    wall_s=12.0,
    episodes_per_s=0.5,
    steps_per_s=40.0,
    decisions=0,
    steps=0,
    mean_batch=None,
    policy_busy=0.0,
    worker_utilisation=0.0,
    bound_by=Limit.START_UP,
)
LEROBOTS = ("pc_success", "n_episodes", "avg_sum_reward", "eval_s")


def recorded(out: Path, results: list[EpisodeResult]) -> Path:
    with Journal.create(out, header()) as journal:
        for item in results:
            journal.append(item, None)
    return out


def test_the_names_that_lerobots_dashboard_reads_hold_what_eval_info_holds() -> None:
    results = [at(key, Outcome.SUCCESS if key[2] else Outcome.FAILURE) for key in KEYS]
    results.append(at(("libero:spatial", 3, 0), Outcome.ERROR))
    metrics, overall = flat_metrics(results, 7, TIMING), eval_info(results, TIMING).overall
    assert {name: metrics[name] for name in LEROBOTS} == {name: getattr(overall, name) for name in LEROBOTS}
    assert (metrics["pc_success"], metrics["n_episodes"]) == (pytest.approx(200 / 3), 6)
    assert (metrics["eval_s"], metrics["eval_ep_s"], metrics["steps_per_s"]) == (12.0, 2.0, 40.0)


def test_every_suite_and_task_has_the_same_numbers_under_its_name() -> None:
    results = [at(key, Outcome.SUCCESS if key[1] else Outcome.FAILURE) for key in KEYS]
    metrics = flat_metrics(results, 10, None)
    assert metrics["suites/metaworld:mt10/pc_success"] == 50.0
    assert metrics["tasks/metaworld:mt10/task-0/pc_success"] == 0.0
    assert metrics["tasks/metaworld:mt10/task-1/pc_success"] == 100.0
    assert metrics["tasks/metaworld:mt10/task-1/n_episodes"] == 3
    assert (metrics["n_planned"], metrics["n_missing"]) == (10, 4)
    of_a_task = {name.rpartition("/")[2] for name in metrics if name.startswith("tasks/")}
    assert of_a_task == {name.rpartition("/")[2] for name in metrics if name.startswith("suites/")}
    assert of_a_task < {name for name in metrics if "/" not in name}


def test_a_tasks_names_do_not_depend_on_the_other_suites_of_the_run() -> None:
    def of_mt10(results: list[EpisodeResult]) -> set[str]:
        return {name for name in flat_metrics(results, 1, None) if name.startswith("tasks/metaworld:mt10/")}

    alone = of_mt10([at(("metaworld:mt10", 0, 0))])
    assert alone
    assert of_mt10([at(("metaworld:mt10", 0, 0)), at(("metaworld:mt50", 0, 0))]) == alone


def test_two_tasks_of_one_name_are_told_apart() -> None:
    twins = [at(("s", 0, 0)), at(("s", 1, 0), Outcome.FAILURE)]
    metrics = flat_metrics(
        [result(0, item.outcome, suite="s", task_id=item.task_id) for item in twins], 2, None
    )
    assert metrics["tasks/s/reach-v3/0/pc_success"] == 100.0
    assert metrics["tasks/s/reach-v3/1/pc_success"] == 0.0


def test_an_error_enters_no_rate_and_is_counted_as_itself() -> None:
    metrics = flat_metrics([result(0), result(1, Outcome.ERROR)], 2, None)
    counts = ("n_episodes", "n_success", "n_failure", "n_unknown", "n_error", "n_missing")
    assert metrics["pc_success"] == 100.0
    assert [metrics[name] for name in counts] == [1, 1, 0, 0, 1, 0]


def test_the_interval_is_in_percent_around_the_rate() -> None:
    metrics = flat_metrics([result(0), result(1, Outcome.FAILURE)], 2, None)
    low, rate, high = (metrics[name] for name in ("pc_success_low", "pc_success", "pc_success_high"))
    assert low is not None
    assert rate is not None
    assert high is not None
    assert 0 < low < rate == 50.0 < high < 100


def test_the_file_is_one_flat_object_of_numbers_and_nulls(tmp_path: Path) -> None:
    results = [result(0, Outcome.UNKNOWN, sum_reward=None, max_reward=None, nonfinite_reward=True)]
    write_metrics(tmp_path / "metrics.json", flat_metrics(results, 1, TIMING))
    loaded = json.loads((tmp_path / "metrics.json").read_text(), parse_constant=pytest.fail)
    assert loaded["pc_success"] is None
    assert loaded["avg_sum_reward"] is None
    for name, value in loaded.items():
        assert value is None or (type(value) in (int, float) and math.isfinite(value)), name


def test_a_journal_without_a_summary_gives_what_is_on_record(tmp_path: Path) -> None:
    run = recorded(tmp_path / "run", [at(key) for key in KEYS[:4]])
    with (run / EPISODES).open("ab") as file:
        file.write(b'{"suite":"metaworld:mt10","ta')  # torn: the run is being written to, or was killed
    metrics = read_metrics(run)
    assert (metrics["n_episodes"], metrics["n_planned"], metrics["n_missing"]) == (4, 6, 2)
    assert (metrics["eval_s"], metrics["eval_ep_s"], metrics["steps_per_s"]) == (None, None, None)


def test_a_run_without_an_episode_has_nulls(tmp_path: Path) -> None:
    metrics = read_metrics(recorded(tmp_path / "run", []))
    assert (metrics["n_episodes"], metrics["pc_success"], metrics["avg_steps"]) == (0, None, None)
    assert not [name for name in metrics if "/" in name]


def test_the_time_comes_from_the_summary_unless_that_is_older_than_the_records(tmp_path: Path) -> None:
    results = [at(key) for key in KEYS]
    run = recorded(tmp_path / "run", results)
    write_summary(run, summarize(results, len(KEYS), timing=TIMING))
    assert read_metrics(run)["eval_s"] == 12.0
    assert read_metrics(run)["eta"] is None  # a summary of before there was one
    shares = Shares(
        start_up=0, build=0.5, reset=0, simulate=0.25, render=0, wait=0, other=0, idle=0.25, policy=0.1
    )
    efficiency = Efficiency(eta=0.75, shares=shares)
    write_summary(run, summarize(results, len(KEYS), timing=TIMING, efficiency=efficiency))
    metrics = read_metrics(run)
    assert [metrics[name] for name in ("eta", "bound_s", "share_build", "share_policy")] == [
        0.75,
        None,
        0.5,
        0.1,
    ]
    write_summary(run, summarize(results[:2], len(KEYS), timing=TIMING))  # then it was resumed
    assert read_metrics(run)["eval_s"] is None


def test_a_damaged_summary_is_said(tmp_path: Path) -> None:
    run = recorded(tmp_path / "run", [at(KEYS[0])])
    (run / "summary.json").write_text("{}")
    with pytest.raises(ResultsError, match=r"summary\.json: not a run's summary"):
        read_metrics(run)


@pytest.mark.parametrize("name", ["empty", "missing", "file"])
def test_what_is_no_results_directory_is_refused(name: str, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match=r"is not a results directory: .*episodes\.jsonl") as refused:
        read_metrics(tmp_path / name)
    assert "\n" not in str(refused.value)


def test_a_link_is_written_through_and_stays_one(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "target")
    write_metrics(tmp_path / "link", {"pc_success": 50.0})
    assert (tmp_path / "link").is_symlink()
    assert json.loads((tmp_path / "target").read_text()) == {"pc_success": 50.0}


def test_a_place_that_cannot_be_written_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(ResultsError, match=r"cannot write .*nowhere"):
        write_metrics(tmp_path / "nowhere" / "metrics.json", {})


def test_every_name_is_told_where_a_reader_looks_for_it() -> None:
    names = {name for name in flat_metrics([], 0, None) if "/" not in name}
    assert len(names) > len(LEROBOTS)
    assert names - code(section(page("results.md"), "metrics.json")) == set()
