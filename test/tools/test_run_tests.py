"""dev/run_tests.py: a failure, a crash, a hang or an empty program never looks like success."""
import os
import re
import sys

import pytest
from runs import FAILS, PASSES, ROOT, call
from runs import script as make_script

RUN_TESTS = [sys.executable, ROOT / "dev" / "run_tests.py"]

def run(tmp_path, script, *options):
    make_script(tmp_path / "program", script)
    result = call(*RUN_TESTS, *options, "program", cwd=tmp_path)
    return result.returncode, result.stdout.splitlines()


# What a program does after its first test, which passes; exit code and last line; a line that names it.
PROGRAMS = {
    "nothing more": (PASSES, 0, "1 passed, 0 failed", ""),
    "fail": (PASSES + FAILS, 1, "1 passed, 1 failed", "because"),
    "crash": (PASSES + "echo '[ RUN      ] b'; kill -SEGV $$", 1, "1 passed, 1 failed",
              "FAILED   program: b (ended with status -11)"),
    "end badly": (PASSES + "exit 23", 1, "1 passed, 1 failed", ""),
    "hold no test": ("exit 0", 1, "0 passed, 1 failed", ""),
    "skip": (PASSES + "echo '[ RUN      ] b'; echo no data; echo '[  SKIPPED ] b'", 0, "1 passed, 0 failed, 1 skipped",
             "SKIPPED  1 x no data: program: b"),
}


@pytest.mark.parametrize("what", PROGRAMS)
def test_what_a_program_may_do(what, tmp_path):
    script, code, last, line = PROGRAMS[what]
    found, lines = run(tmp_path, script)
    assert (found, lines[-1]) == (code, last) and (line in lines or not line)
    if what == "fail":
        assert lines[lines.index("FAILED   program: b") + 1] == "         | because"  # again where the eye is: at the end


def test_a_hang_is_ended(tmp_path):
    for seconds in (1, 10, 100):  # the shortest limit in which this machine gets as far as b
        code, lines = run(tmp_path, PASSES + "echo '[ RUN      ] b'; sleep 1000", "--program-seconds", str(seconds))
        if lines[-1].startswith("1 passed"):
            break
    assert (code, lines[-1]) == (1, "1 passed, 1 failed")
    assert "FAILED   program: b (ran out of time)" in lines


def test_pytest_results_are_added(tmp_path):
    (tmp_path / "test_x.py").write_text("def test_good(): pass\ndef test_bad(): assert False\n")
    code, lines = run(tmp_path, PASSES, "--pytest", "test_x.py")
    assert (code, lines[-1]) == (1, "2 passed, 1 failed")


def test_a_program_runs_with_the_settings_before_its_name(tmp_path):
    make_script(tmp_path / "program", "[ \"$SIM_CC$SIM_B\" = 75 ] && " + PASSES)
    for name, code in (("SIM_CC=75@program", 0), ("SIM_CC=80@program", 1), ("SIM_B=5@SIM_CC=7@program", 0)):
        call(*RUN_TESTS, name, cwd=tmp_path, expect=code)


def test_a_check_counts_as_a_test(tmp_path):
    assert run(tmp_path, PASSES, "--check", "true")[1][-1] == "2 passed, 0 failed"
    code, lines = run(tmp_path, PASSES, "--check", "echo reason; exit 3")
    assert (code, lines[-1]) == (1, "1 passed, 1 failed") and "reason" in lines


def test_files_of_pytest_and_programs_run_side_by_side_and_share_the_cores(tmp_path):
    cores = len(os.sched_getaffinity(0))
    (tmp_path / "test_a.py").write_text(
        f"import os, pathlib, time\ndef test_a():\n    assert os.environ['OMP_NUM_THREADS'] == '{max(1, cores // 2)}'\n"
        f"    pathlib.Path('a').touch()\n    while not pathlib.Path('b').exists(): time.sleep(0.01)\n")
    waits = "touch b; until [ -e a ]; do sleep 0.01; done\n"  # one after another, they never end
    code, lines = run(tmp_path, waits + PASSES, "--jobs", "2", "--pytest", "test_a.py")
    assert (code, lines[-1]) == (0, "2 passed, 0 failed")


@pytest.mark.parametrize("content, mark, code, last", [
    ("def test_a(): pass", "slow", 0, "1 passed, 0 failed"),  # none has the mark
    ("import pytest; pytest.skip('no reason', allow_module_level=True)", "", 0, "1 passed, 0 failed, 1 skipped"),
    ("", "", 1, "1 passed, 1 failed")])
def test_a_file_of_pytest_in_which_no_test_runs_fails_unless_all_are_left_out(content, mark, code, last, tmp_path):
    (tmp_path / "test_a.py").write_text(content)
    found, lines = run(tmp_path, PASSES, "--pytest", "test_a.py", "--mark", mark)
    assert (found, lines[-1]) == (code, last)


def test_a_program_waits_for_its_build_and_fails_without_it(tmp_path):
    make_script(tmp_path / "made", PASSES)
    build = "mkdir -p out; mv made out/program"
    result = call(*RUN_TESTS, "--jobs", "2", "--build", f"out/={build}", "A=1@out/program", cwd=tmp_path)
    assert result.stdout.splitlines()[-1] == "1 passed, 0 failed"
    result = call(*RUN_TESTS, "--build", "other/=echo no compiler; exit 3", "other/program", "out/program", cwd=tmp_path, expect=1)
    assert result.stdout.splitlines()[-1] == "1 passed, 2 failed"
    assert "FAILED   other/program (not built)" in result.stdout and "         | no compiler" in result.stdout


def test_what_took_long_in_the_last_run_comes_first_and_what_is_new_before_it(tmp_path):
    (tmp_path / "build").mkdir()
    (tmp_path / "build" / "seconds.json").write_text('{"short": 1, "long": 2}')
    for name in ("short", "long", "new"):
        make_script(tmp_path / name, f"echo {name} >>order\n" + PASSES)
    call(*RUN_TESTS, "--last", "echo last >>order", "short", "long", "new", cwd=tmp_path, expect=0)
    assert (tmp_path / "order").read_text().split() == ["new", "long", "short", "last"]


def test_a_phase_counts_and_its_exit_code_is_that_of_its_command(tmp_path):
    for code in (0, 7):
        call(*RUN_TESTS, "--tally", "tally", "--phase", "build", "--", "bash", "-c", f"exit {code}", cwd=tmp_path, expect=code)
    assert re.fullmatch(r'\{"phase": "build", "seconds": \S+, "processor": \S+\}\n', (tmp_path / "tally").read_text())


def test_the_parts_of_a_test_end_with_one_line_and_their_times(tmp_path):
    (tmp_path / "test_x.py").write_text("import time\ndef test_slow(): time.sleep(1.5)\n")
    (tmp_path / "tally").write_text('{"phase": "install", "seconds": 3}\n{"phase": "build", "seconds": 40}\n')
    code, lines = run(tmp_path, PASSES, "--tally", "tally", "--pytest", "test_x.py")
    assert (code, lines[-1]) == (0, "2 passed, 0 failed")
    assert re.fullmatch(r"in \d+ s: install 3 s, build 40 s, tests \d+ s", lines[-3])
    assert re.fullmatch(r"processor \d+ s: install 0 s, build 0 s, (programs \d+ s, pytest|pytest \d+ s, programs) \d+ s", lines[-2])
    slowest = lines[lines.index("the slowest, in seconds:") + 1:-3]
    assert [line.split()[1] for line in slowest] == ["test_x.test_slow", "program"] and float(slowest[0].split()[0]) >= 1.5
    with open(tmp_path / "tally", "a") as file:
        file.write('{"phase": "build", "seconds": 2}\n')
    code, lines = run(tmp_path, PASSES + FAILS, "--tally", "tally")
    assert (code, lines[-1]) == (1, "3 passed, 1 failed") and ": install 3 s, build 42 s, " in lines[-3]
    # What is said after a build that failed, or after a test that did.
    again = call(*RUN_TESTS, "--tally", "tally", "--status", "2", cwd=tmp_path)
    assert again.stdout.splitlines()[-1] == "3 passed, 1 failed" and "FAILED   program: b" in again.stdout
    (tmp_path / "tally").write_text('{"phase": "install", "seconds": 3}\n')
    again = call(*RUN_TESTS, "--tally", "tally", "--status", "2", cwd=tmp_path)
    assert (again.returncode, again.stdout.splitlines()[-1]) == (1, "0 passed, 1 failed")
