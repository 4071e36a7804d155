"""scripts/run_tests.py: a failure, a crash, a hang or an empty program never looks like success."""
import os
import stat
import subprocess
import sys

RUN_TESTS = os.path.abspath(os.path.join(os.path.dirname(__file__), "..", "..", "scripts", "run_tests.py"))
OK = "echo '[ RUN      ] a'; echo '[       OK ] a'\n"


def run(tmp_path, script, *options):
    program = tmp_path / "program"
    program.write_text("#!/bin/sh\n" + script)
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    command = [sys.executable, RUN_TESTS, *options, "program"]
    result = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
    return result.returncode, result.stdout.splitlines()


def test_passed_tests_are_counted(tmp_path):
    code, lines = run(tmp_path, OK)
    assert (code, lines[-1]) == (0, "1 passed, 0 failed")


def test_a_failed_test_fails_the_run_and_shows_its_output(tmp_path):
    code, lines = run(tmp_path, OK + "echo '[ RUN      ] b'; echo because; echo '[  FAILED  ] b'; exit 1")
    assert (code, lines[-1]) == (1, "1 passed, 1 failed")
    assert "because" in lines
    assert lines[lines.index("FAILED   program: b") + 1] == "         | because"  # again where the eye is: at the end


def test_a_crash_counts_the_running_test(tmp_path):
    code, lines = run(tmp_path, OK + "echo '[ RUN      ] b'; kill -SEGV $$")
    assert (code, lines[-1]) == (1, "1 passed, 1 failed")
    assert "FAILED   program: b (ended with status -11)" in lines


def test_a_hang_is_ended(tmp_path):
    for seconds in (1, 10, 100):  # the shortest limit in which this machine gets as far as b
        code, lines = run(tmp_path, OK + "echo '[ RUN      ] b'; sleep 1000", "--program-seconds", str(seconds))
        if lines[-1].startswith("1 passed"):
            break
    assert (code, lines[-1]) == (1, "1 passed, 1 failed")
    assert "FAILED   program: b (ran out of time)" in lines


def test_a_bad_exit_status_after_good_tests_fails(tmp_path):
    code, lines = run(tmp_path, OK + "exit 23")
    assert (code, lines[-1]) == (1, "1 passed, 1 failed")


def test_a_program_without_tests_fails(tmp_path):
    code, lines = run(tmp_path, "exit 0")
    assert (code, lines[-1]) == (1, "0 passed, 1 failed")


def test_a_skipped_test_is_named_with_its_reason(tmp_path):
    code, lines = run(tmp_path, OK + "echo '[ RUN      ] b'; echo no data; echo '[  SKIPPED ] b'")
    assert (code, lines[-1]) == (0, "1 passed, 0 failed, 1 skipped")
    assert "SKIPPED  1 x no data: program: b" in lines


def test_pytest_results_are_added(tmp_path):
    (tmp_path / "test_x.py").write_text("def test_good(): pass\ndef test_bad(): assert False\n")
    code, lines = run(tmp_path, OK, "--pytest", "test_x.py")
    assert (code, lines[-1]) == (1, "2 passed, 1 failed")


def test_a_program_runs_with_the_settings_before_its_name(tmp_path):
    script = "[ \"$SIM_CC$SIM_B\" = 75 ] && " + OK
    program = tmp_path / "program"
    program.write_text("#!/bin/sh\n" + script)
    program.chmod(0o755)
    for name, code in (("SIM_CC=75@program", 0), ("SIM_CC=80@program", 1), ("SIM_B=5@SIM_CC=7@program", 0)):
        assert subprocess.run([sys.executable, RUN_TESTS, name], capture_output=True, cwd=tmp_path).returncode == code


def test_a_check_counts_as_a_test(tmp_path):
    assert run(tmp_path, OK, "--check", "true")[1][-1] == "2 passed, 0 failed"
    code, lines = run(tmp_path, OK, "--check", "echo reason; exit 3")
    assert (code, lines[-1]) == (1, "1 passed, 1 failed") and "reason" in lines
