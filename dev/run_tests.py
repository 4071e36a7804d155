#!/usr/bin/env python3
"""Runs the test programs and pytest, and ends with one line: N passed, N failed[, N skipped].

    dev/run_tests.py [--jobs N] [--pytest FILE-OR-DIR ...] [--mark EXPRESSION] [--check COMMAND] [--tally FILE] PROGRAM ...

A program is a cmocka binary, run from the repository root with a time limit, N of them at a time; SIM_CC=75@PROGRAM runs
it with that environment variable, A=1@B=2@PROGRAM with both. pytest runs N files at a time where it has xdist, and gives each
its share of the cores.
--check: a command that is run at the end and counts as one test. The output of a program is shown only if it fails. A
program that crashes, hangs or has no test counts as a failure. Skipped tests are listed with their reasons, then the
slowest, then the time of each phase. Exit code 0 only if nothing failed. Needs only Python.

--tally FILE: the results are also appended there, one JSON object, and the results already in it count: the parts of a long
test end with one line. Lines {"phase": NAME, "seconds": N} are the phases before the tests. --status N: of a `make` that has
ended; other than 0 it is a failure, if there was no other.
"""
import argparse
import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as ElementTree
from concurrent.futures import ThreadPoolExecutor

PROGRAM_SECONDS = 3600  # ends a hanging program; a busy machine needs far less
PYTEST_SECONDS = 6 * 3600
SKIPS_SHOWN = 3  # names next to each reason
LINES_SHOWN = 15  # of what a failed test printed, in the summary
SLOWEST_SHOWN = 30


class Counts:
    def __init__(self):
        self.passed, self.failed, self.skipped = 0, 0, 0
        self.failures, self.skips = [], []
        self.times, self.phases = [], []  # (name, seconds), of tests and programs, and of what ran one after another

    def add(self, other):
        self.passed += other.passed
        self.failed += other.failed
        self.skipped += other.skipped
        self.failures += other.failures
        self.skips += other.skips
        self.times += other.times
        self.phases += other.phases

    def fail(self, name, output=""):
        self.failed += 1
        self.failures.append((name, output.strip().splitlines()))

    def skip(self, name, reason):
        self.skipped += 1
        self.skips.append((reason or "no reason given", name))

    def line(self):
        text = f"{self.passed} passed, {self.failed} failed"
        return text + (f", {self.skipped} skipped" if self.skipped else "")


def read_tally(path):
    """The results of earlier parts."""
    total = Counts()
    with open(path) as file:
        for entry in map(json.loads, file):
            part = Counts()
            if "phase" in entry:
                part.phases = [(entry["phase"], entry["seconds"])]
            else:
                vars(part).update(entry)
            total.add(part)
    return total


def run_limited(command, seconds, **options):
    """The exit status, or None if time ran out: then the whole process group is ended."""
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, start_new_session=True, **options)
    try:
        return process.wait(timeout=seconds)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        return None


def count_cmocka(program, output, status):
    """Counts what cmocka printed: '[ RUN      ] name', then '[       OK ] name', '[  FAILED  ] name' or
    '[  SKIPPED ] name'; what a skipped test printed in between is its reason."""
    counts, running, began = Counts(), None, 0
    for match in re.finditer(r"\[\s+(RUN|OK|FAILED|SKIPPED)\s+\] (.+)$", output, re.MULTILINE):
        tag, name = match.groups()
        if tag == "RUN":
            running, began = name, match.end()
        elif name == running:  # the summary at the end repeats the names of failed tests
            running = None
            if tag == "OK":
                counts.passed += 1
            elif tag == "FAILED":
                counts.fail(f"{program}: {name}", output[began : match.start()])
            else:
                counts.skip(f"{program}: {name}", " ".join(output[began : match.start()].split()))
    ended = "ran out of time" if status is None else f"ended with status {status}"
    if running:
        counts.fail(f"{program}: {running} ({ended})", output[began:])
    elif status != 0 and counts.failed == 0:
        counts.fail(f"{program} ({ended})", output)
    elif counts.passed + counts.failed + counts.skipped == 0:
        counts.fail(f"{program} (no test ran)", output)
    return counts


KERNELS = "build/kernels"  # programs on the simulator leave lists of the kernels that they ran here


def test_environment(name, **more):
    """Tests neither read nor write the file of measured choices (llmc/cuda/tuning.h), and do not measure the machine."""
    if os.path.isdir(KERNELS):
        more["SIM_KERNELS"] = os.path.abspath(os.path.join(KERNELS, name))
    # Idle OpenMP threads that spin would take the processor from concurrent tests.
    return {"PRETRAIN_CACHE": "off", "PRETRAIN_SPEED": "off", "OMP_WAIT_POLICY": "passive", **os.environ, **more}


def run_program(program, seconds):
    began = time.monotonic()
    *settings, path = program.split("@")
    more = dict(setting.split("=") for setting in settings)
    with tempfile.TemporaryFile() as captured:
        try:
            status = run_limited([os.path.join(".", path)], seconds, stdout=captured, stderr=subprocess.STDOUT,
                                 env=test_environment(os.path.basename(path), **more))
        except OSError as error:
            status, message = 127, str(error)
            captured.write(message.encode())
        captured.seek(0)
        output = captured.read().decode(errors="replace")
    counts = count_cmocka(program, output, status)
    counts.times.append((program, time.monotonic() - began))
    print((output if counts.failed else "") + f"{counts.times[0][1]:7.1f} s  {program}: {counts.line()}", flush=True)
    return counts


def count_junit(path, status):
    """Counts pytest's XML report; a test that fails again in its teardown counts once."""
    counts = Counts()
    try:
        cases = ElementTree.parse(path).iter("testcase")
        seen = {}
        for case in cases:
            name = f"{case.get('classname')}.{case.get('name')}"
            kinds = {child.tag for child in case}
            counts.times.append((name, float(case.get("time", 0))))
            if kinds & {"failure", "error"}:
                failure = next(child for child in case if child.tag in ("failure", "error"))
                seen[name] = ("failed", failure.get("message") or failure.text or "")
            elif "skipped" in kinds:
                seen.setdefault(name, ("skipped", case.find("skipped").get("message", "")))
            else:
                seen.setdefault(name, ("passed", ""))
    except (OSError, ElementTree.ParseError):
        counts.fail(f"pytest ({'ran out of time' if status is None else f'ended with status {status}'}, no report)")
        return counts
    for name, (result, reason) in seen.items():
        if result == "passed":
            counts.passed += 1
        elif result == "skipped":
            counts.skip(name, reason)
        else:
            counts.fail(name, reason)
    if status != 0 and counts.failed == 0:
        counts.fail(f"pytest (ended with status {status})")
    return counts


def run_pytest(paths, mark, jobs, seconds):
    python = ".venv/bin/python" if os.access(".venv/bin/python", os.X_OK) else "/usr/bin/python3"
    if subprocess.run([python, "-c", "import xdist"], capture_output=True).returncode != 0:
        jobs = 1  # one at a time, each with all cores
    with tempfile.TemporaryDirectory() as directory:
        report = os.path.join(directory, "report.xml")
        command = [python, "-m", "pytest", "-q", "-p", "no:cacheprovider", f"--junitxml={report}"]
        command += (["-n", str(jobs), "--dist", "loadfile"] if jobs > 1 else []) + (["-m", mark] if mark else []) + paths
        more = {"PYTHONDONTWRITEBYTECODE": "1"}
        if jobs > 1:
            more["OMP_NUM_THREADS"] = str(max(1, len(os.sched_getaffinity(0)) // jobs))
        status = run_limited(command, seconds, env=test_environment("pytest", **more))
        return count_junit(report, status)


def run_check(command):
    """A command that counts as one test; prints its last line, or everything if it fails."""
    result = subprocess.run(command, shell=True, capture_output=True, text=True)
    counts, lines = Counts(), (result.stdout + result.stderr).splitlines()
    if result.returncode == 0:
        counts.passed = 1
    else:
        counts.fail(command, result.stdout + result.stderr)
    print("\n".join(lines[-1:] if result.returncode == 0 else lines), flush=True)
    return counts


@contextlib.contextmanager
def timed(counts, phase):
    began = time.monotonic()
    yield
    counts.phases.append((phase, time.monotonic() - began))


def print_summary(total):
    for reason in sorted({reason for reason, _ in total.skips}):
        names = [name for other, name in total.skips if other == reason]
        shown = ", ".join(names[:SKIPS_SHOWN]) + (", ..." if len(names) > SKIPS_SHOWN else "")
        print(f"SKIPPED  {len(names)} x {reason}: {shown}")
    for name, lines in total.failures:
        # The beginning of a sanitizer's report or an assertion says more than its end.
        print("\n".join([f"FAILED   {name}"] + [f"         | {line[:200]}" for line in lines[:LINES_SHOWN]]))
    print("the slowest, in seconds:")
    for name, seconds in sorted(total.times, key=lambda entry: -entry[1])[:SLOWEST_SHOWN]:
        print(f"{seconds:7.1f}  {name}")
    phases = {}
    for name, seconds in total.phases:
        phases[name] = phases.get(name, 0) + seconds
    each = ", ".join(f"{name} {seconds:.0f} s" for name, seconds in phases.items())
    print(f"in {sum(phases.values()):.0f} s" + (f": {each}" if each else ""))
    print(total.line(), flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("programs", nargs="*", metavar="PROGRAM")
    parser.add_argument("--pytest", action="append", default=[], metavar="PATH")
    parser.add_argument("--mark", default="", help="run only pytest tests with this mark")
    parser.add_argument("--check", action="append", default=[], metavar="COMMAND")
    parser.add_argument("--tally", metavar="FILE", help="results of all parts of a test")
    parser.add_argument("--status", type=int, default=0, help="exit status of the make that has ended")
    parser.add_argument("--jobs", type=int, default=1, help="programs, or files of pytest, that run at the same time")
    parser.add_argument("--program-seconds", type=int, default=PROGRAM_SECONDS)
    parser.add_argument("--pytest-seconds", type=int, default=PYTEST_SECONDS)
    options = parser.parse_args()

    earlier = read_tally(options.tally) if options.tally and os.path.exists(options.tally) else Counts()
    if options.programs and not earlier.times:  # the lists of an earlier part count
        shutil.rmtree(KERNELS, ignore_errors=True)
        if os.path.isdir(os.path.dirname(KERNELS)):
            os.mkdir(KERNELS)

    total = Counts()
    with timed(total, "programs"), ThreadPoolExecutor(options.jobs) as pool:
        for counts in pool.map(lambda program: run_program(program, options.program_seconds), options.programs):
            total.add(counts)
    if options.pytest:
        with timed(total, "pytest"):
            total.add(run_pytest(options.pytest, options.mark, options.jobs, options.pytest_seconds))
    for command in options.check:
        total.add(run_check(command))
    if options.tally and (options.programs or options.pytest):
        with open(options.tally, "a") as file:
            file.write(json.dumps(vars(total)) + "\n")

    earlier.add(total)
    if options.status and not earlier.failed:
        earlier.fail(f"make (ended with status {options.status})")
    if earlier.passed == 0 and earlier.failed == 0:
        earlier.fail("no test ran")
    print_summary(earlier)
    return 1 if earlier.failed else 0


if __name__ == "__main__":
    sys.exit(main())
