"""--profile: the table adds up, its FLOPs are those of the formulas, and the training is the same."""
import json

import pytest
from conftest import QUIET, TINY, checkpoints, events, losses, train

STEPS, WARMUP = 3, 5
PROFILE = ["--profile", STEPS]


def profiled(data, run, *options):
    result = train(*TINY, *QUIET, *data.flags, *PROFILE, "-o", run, *options)
    return result.stdout, json.loads((run / "profile.json").read_text())


# With -r: test_recompute.py. Calls, FLOPs and bytes of each op: test/tools/test_predict.py.
def test_the_flops_of_the_table_are_those_of_the_formula(data, tmp_path):
    _, profile = profiled(data, tmp_path, "-d", 6 * 32)  # a micro-batch of 4 and one of 2
    header = events(tmp_path, "run")[0]
    L, C, Vp, T = (header["model"][key] for key in ("L", "C", "Vp", "T"))
    assert profile["flops"] == (72 * L * C * C + 6 * Vp * C + 7 * L * C * (T + 1)) * header["tokens_per_step"]
    assert sum(row["flops"] for row in profile["ops"]) == profile["flops"]


def test_the_floor_is_of_the_faster_of_two_measurements(data, tmp_path):
    """Before the steps, as the run says, and after them."""
    _, profile = profiled(data, tmp_path)
    before = events(tmp_path, "run")[0]["device"]
    for rate in ("matmul_flops", "copy_bandwidth"):
        assert profile[rate] >= before[rate] * (1 - 1e-6) > 0


def test_the_trace_has_every_call_in_order_inside_its_step(data, tmp_path):
    _, profile = profiled(data, tmp_path)
    trace = json.loads((tmp_path / "profile_trace.json").read_text())["traceEvents"]
    steps = [event for event in trace if event["ph"] == "X" and event["tid"] == 1]
    ops = [event for event in trace if event["ph"] == "X" and event["tid"] == 2]
    assert len(steps) == STEPS and len(ops) == STEPS * sum(row["calls"] for row in profile["ops"])
    slack = 0.01  # times are rounded to a nanosecond
    for before, after in zip(ops, ops[1:]):
        assert before["ts"] + before["dur"] <= after["ts"] + slack
    assert ops[0]["ts"] >= 0 and ops[-1]["ts"] + ops[-1]["dur"] <= steps[-1]["ts"] + steps[-1]["dur"] + slack


def test_the_table_is_printed_and_without_o_nothing_is_written(data, tmp_path):
    result = train(*TINY, *QUIET, *data.flags, *PROFILE)
    lines = result.stdout.splitlines()
    assert any(line.startswith("attention_backward qkv 4x32x192") for line in lines)
    assert any(line.startswith("between ops") for line in lines)
    assert any("before, untimed:" in line for line in lines)
    assert "written" not in result.stdout


def test_a_profiled_run_computes_what_the_same_run_computes_without(data, tmp_path):
    total = WARMUP + 2 * STEPS
    train(*TINY, *QUIET, *data.flags, "-x", total, "-o", tmp_path / "plain")
    stdout, _ = profiled(data, tmp_path / "profiled")
    assert losses(tmp_path / "profiled") == losses(tmp_path / "plain")
    assert checkpoints(tmp_path / "profiled") == [] and f"done        {total} steps" in stdout


@pytest.mark.sanitize
def test_a_profile_of_many_micro_steps(data, tmp_path):
    _, profile = profiled(data, tmp_path, "-d", 20 * 4 * 32)
    assert next(row for row in profile["ops"] if row["op"] == "batch_unpack")["calls"] == 20
