"""dev/bench/check_gpu.py with the CPU trainer in place of a GPU's: what it finds, what it skips, and that a report
stands whatever happens."""
import json
import os
import signal
import stat
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
CHECK_GPU = ROOT / "dev" / "bench" / "check_gpu.py"
PASSES = "echo '[ RUN      ] a'; echo '[       OK ] a'"
FAILS = "echo '[ RUN      ] b'; echo because; echo '[  FAILED  ] b'; exit 1"


def script(path, body):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("#!/bin/sh\n" + body + "\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path


@pytest.fixture
def tests(tmp_path):
    """A folder of test programs that take no time."""
    for program in ("ops/test_layernorm", "ops/test_small", "golden/test_golden"):
        script(tmp_path / "tests" / program, PASSES)
    return tmp_path / "tests"


def command(tmp_path, tests, *options):
    return [sys.executable, CHECK_GPU, "--tiny", "--tests", tests, "--output", tmp_path / "out", *map(str, options)]


def check(tmp_path, tests, *options, trainer=ROOT / "train_gpt2"):
    result = subprocess.run(command(tmp_path, tests, "--trainer", trainer, *options), capture_output=True, text=True,
                            timeout=300)
    assert result.returncode in (0, 1), result.stderr
    return result, report(tmp_path)


def report(tmp_path):
    (path,) = (tmp_path / "out").glob("check_*.json")
    assert path.with_suffix(".md").exists()
    return {row["name"]: row for row in json.loads(path.read_text())["checks"]}


def test_a_good_trainer_passes_what_this_machine_can_check(tmp_path, tests):
    result, rows = check(tmp_path, tests)
    assert result.returncode == 0, result.stdout
    passed = {name for name, row in rows.items() if row["result"] == "passed"}
    assert {"op tests", "golden test", "losses of 20 steps, fp32", "two runs, fp32", "resume, fp32",
            "recompute level 1", "recompute level 2", "recompute level 3", "profile"} <= passed
    assert result.stdout.splitlines()[-1].startswith(f"{len(passed)} passed, 0 failed")
    assert rows["compute-sanitizer memcheck"]["result"] in ("passed", "skipped")


def test_a_failed_test_program_fails_the_check_and_is_named(tmp_path, tests):
    script(tests / "ops" / "test_small", FAILS)
    result, rows = check(tmp_path, tests, "--only", "op tests")
    assert result.returncode == 1 and rows["op tests"]["result"] == "FAILED"
    assert "test_small: b" in rows["op tests"]["detail"]


def test_a_trainer_whose_losses_are_off_fails(tmp_path, tests):
    # The stand-in trains with another seed: another curve, and one that no reference has.
    trainer = script(tmp_path / "trainer", f'exec {ROOT / "train_gpt2"} "$@" --seed 7')
    result, rows = check(tmp_path, tests, "--only", "fp32", trainer=trainer)
    assert result.returncode == 1
    assert rows["losses of 20 steps, fp32"]["result"] == "FAILED"
    assert rows["two runs, fp32"]["result"] == "passed"


def test_a_trainer_that_does_not_repeat_fails(tmp_path, tests):
    trainer = script(tmp_path / "trainer", f'exec {ROOT / "train_gpt2"} "$@" --seed $$')
    _, rows = check(tmp_path, tests, "--only", "runs, fp32|resume, fp32", trainer=trainer)
    assert rows["two runs, fp32"]["result"] == "FAILED" and "differs" in rows["two runs, fp32"]["detail"]
    assert "resume, fp32" not in rows  # there is nothing to hold it against


def test_without_the_cpu_trainer_the_committed_losses_are_the_reference(tmp_path, tests):
    _, rows = check(tmp_path, tests, "--reference", tmp_path / "none", "--only", "losses")
    row = rows["losses of 20 steps, fp32"]
    assert row["result"] == "passed" and "expected_losses.json" in row["detail"]


def test_what_the_time_does_not_suffice_for_is_skipped_and_said(tmp_path, tests):
    result, rows = check(tmp_path, tests, "--seconds", 0)
    assert result.returncode == 1  # nothing was checked: that is no success
    assert all(row["result"] == "skipped" and "time" in row["detail"] for row in rows.values())


def test_a_run_that_is_killed_leaves_what_it_had_found(tmp_path, tests):
    trainer = script(tmp_path / "trainer", "sleep 60")
    process = subprocess.Popen(command(tmp_path, tests, "--trainer", trainer), stdout=subprocess.DEVNULL,
                               start_new_session=True)
    deadline = time.monotonic() + 300
    while not list((tmp_path / "out").glob("*.json")) or "golden test" not in report(tmp_path):
        assert process.poll() is None and time.monotonic() < deadline
        time.sleep(0.05)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    assert report(tmp_path)["golden test"]["result"] == "passed"
