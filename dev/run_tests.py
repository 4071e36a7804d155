#!/usr/bin/env python3
"""Runs the test programs and pytest, and ends with one line: N passed, N failed[, N skipped].

    dev/run_tests.py [--jobs N] [--pytest FILE-OR-DIR ...] [--mark EXPRESSION] [--build PREFIX=COMMAND ...]
                     [--check COMMAND ...] [--last COMMAND ...] [--tally FILE] PROGRAM ...
    dev/run_tests.py --tally FILE --phase NAME -- COMMAND ...

Everything waits in one queue, which N workers empty, the longest first: a program, a file of pytest, a build or a check. A
job's place is that of its processor seconds in the last run here (build/seconds.json). Jobs that are new come before, builds
first.

A program is a cmocka binary, run from the repository root with a time limit; SIM_CC=75@PROGRAM runs it with that environment
variable, A=1@B=2@PROGRAM with both. Each file of pytest is a process, which gets its share of the cores.
--build PREFIX[,PREFIX]=COMMAND: programs whose path begins so wait for it. A build that fails counts as a failure.
--check: a command that counts as one test. --last: another, which runs when everything else has ended.
The output of a program is shown only if it fails. A program that crashes, hangs or has no test counts as a failure. Skipped
tests are listed with their reasons, then the slowest, then the seconds of each phase and of the processor. Exit code 0 only if
nothing failed. Needs only Python.

--tally FILE: the results are also appended there, one JSON object, and the results already in it count: the parts of a long
test end with one line. --phase: runs a command before the tests, and notes its seconds there; lines {"phase": NAME, "seconds":
N} are of such phases, too. --status N: of a `make` that has ended; other than 0 it is a failure, if there was no other.
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
import threading
import time
import xml.etree.ElementTree as ElementTree
from pathlib import Path

PROGRAM_SECONDS = 3600  # ends a hanging program; a busy machine needs far less
PYTEST_SECONDS = 6 * 3600
SKIPS_SHOWN = 3  # names next to each reason
LINES_SHOWN = 15  # of what a failed test printed, in the summary
SLOWEST_SHOWN = 30
NO_TEST_RAN = 5  # pytest's exit status: all of a file are skipped, or have not the mark
SECONDS = "build/seconds.json"  # processor seconds of the jobs of earlier runs
TESTS = "tests"  # the phase of the queue


class Counts:
    def __init__(self):
        self.passed, self.failed, self.skipped = 0, 0, 0
        self.failures, self.skips = [], []
        self.times = []  # (name, seconds) of tests and programs
        self.phases = []  # (name, seconds, processor seconds) of what ran one after another
        self.processor = {}  # kind of job -> processor seconds

    def add(self, other):
        self.passed += other.passed
        self.failed += other.failed
        self.skipped += other.skipped
        self.failures += other.failures
        self.skips += other.skips
        self.times += other.times
        self.phases += other.phases
        for kind, seconds in other.processor.items():
            self.processor[kind] = self.processor.get(kind, 0) + seconds

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
                part.phases = [(entry["phase"], entry["seconds"], entry.get("processor", 0))]
            else:
                vars(part).update(entry)
            total.add(part)
    return total


def run_limited(command, seconds, **options):
    """The exit status, or None if time ran out, when the whole process group is ended; and the processor seconds of the
    process and of those that it waited for."""
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, start_new_session=True, **options)
    is_late = threading.Event()

    def end():
        is_late.set()
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)

    timer = threading.Timer(seconds, end)
    timer.start()
    _, status, usage = os.wait4(process.pid, 0)
    timer.cancel()
    process.returncode = os.waitstatus_to_exitcode(status)
    return (None if is_late.is_set() else process.returncode), usage.ru_utime + usage.ru_stime


def run_captured(command, seconds, **options):
    """run_limited, and what the command printed."""
    with tempfile.TemporaryFile() as captured:
        try:
            status, processor = run_limited(command, seconds, stdout=captured, stderr=subprocess.STDOUT, **options)
        except OSError as error:
            status, processor = 127, 0.0
            captured.write(str(error).encode())
        captured.seek(0)
        return status, processor, captured.read().decode(errors="replace")


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


class Job:
    """Something in the queue. run() gives its Counts; waits_for: builds."""
    first = 0  # among jobs of unknown length

    def __init__(self, name):
        self.name, self.waits_for = name, []

    def begin(self):
        began = time.monotonic()
        counts, processor = self.run()
        counts.processor[self.kind] = processor
        seconds = time.monotonic() - began
        if isinstance(self, Program):
            counts.times.append((self.name, seconds))
        print(f"{seconds:7.1f} s {processor:7.1f} s of processor  {self.name}: {counts.line()}", flush=True)
        return counts, processor


class Program(Job):
    kind = "programs"

    def __init__(self, program, seconds):
        super().__init__(program)
        *settings, self.path = program.split("@")
        self.more, self.seconds = dict(setting.split("=", 1) for setting in settings), seconds

    def run(self):
        environment = test_environment(os.path.basename(self.path), **self.more)
        status, processor, output = run_captured([os.path.join(".", self.path)], self.seconds, env=environment)
        counts = count_cmocka(self.name, output, status)
        if counts.failed:
            print(output, flush=True)
        return counts, processor


class Command(Job):
    """A check, which counts as one test, or a build, which counts where it fails; prints all it says if it fails."""
    def __init__(self, command, kind, first):
        super().__init__(command)
        self.kind, self.first, self.failed = kind, first, False

    def run(self):
        status, processor, output = run_captured(["bash", "-c", self.name], PROGRAM_SECONDS, env=test_environment("check"))
        counts, lines = Counts(), output.splitlines()
        self.failed = status != 0
        if self.failed:
            counts.fail(self.name, output)
        elif self.kind == "checks":
            counts.passed = 1
        print("\n".join(lines if self.failed else lines[-1:]), flush=True)
        return counts, processor


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


class PytestFile(Job):
    kind = "pytest"
    first = 1

    def __init__(self, path, mark, jobs, seconds):
        super().__init__(str(path))
        self.mark, self.jobs, self.seconds = mark, jobs, seconds

    def run(self):
        python = ".venv/bin/python" if os.access(".venv/bin/python", os.X_OK) else "/usr/bin/python3"
        more = {"PYTHONDONTWRITEBYTECODE": "1"}
        if self.jobs > 1:
            more["OMP_NUM_THREADS"] = str(max(1, len(os.sched_getaffinity(0)) // self.jobs))
        with tempfile.TemporaryDirectory() as directory:
            report = os.path.join(directory, "report.xml")
            command = [python, "-m", "pytest", "-q", "-p", "no:cacheprovider", f"--junitxml={report}"]
            command += (["-m", self.mark] if self.mark else []) + [self.name]
            status, processor, output = run_captured(command, self.seconds, env=test_environment("pytest", **more))
            counts = count_junit(report, 0 if status == NO_TEST_RAN else status)
        if status == NO_TEST_RAN and not self.mark and not counts.skipped:
            counts.fail(f"{self.name} (no test ran)", output)
        if counts.failed:
            print(output, flush=True)
        return counts, processor


def pytest_files(path):
    """The files below a folder that pytest would collect, or this one."""
    return sorted(Path(path).rglob("test_*.py")) if os.path.isdir(path) else [path]


def run_queue(jobs, workers):
    """Runs them all, the longest first, and returns the sum of their Counts."""
    total, change = Counts(), threading.Condition()
    try:
        seconds = json.loads(Path(SECONDS).read_text())
    except (OSError, ValueError):
        seconds = {}
    # The sort is stable: jobs of which no more is known keep their order.
    waiting = sorted(jobs, key=lambda job: (job.name in seconds, -seconds.get(job.name, 0), -job.first))
    done = set()

    def is_ready(job):
        return done.issuperset(job.waits_for)

    def work():
        while True:
            with change:
                while waiting and not any(map(is_ready, waiting)):
                    change.wait()
                if not waiting:
                    return
                job = next(filter(is_ready, waiting))
                waiting.remove(job)
            if any(build.failed for build in job.waits_for):
                counts, processor = Counts(), 0.0
                counts.fail(f"{job.name} (not built)")
            else:
                try:
                    counts, processor = job.begin()
                except Exception as error:  # of ours: the other workers go on
                    counts, processor = Counts(), 0.0
                    counts.fail(f"{job.name} ({error!r})")
            with change:
                total.add(counts)
                seconds[job.name] = round(processor, 1)
                done.add(job)
                change.notify_all()

    threads = [threading.Thread(target=work) for _ in range(workers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if os.path.isdir(os.path.dirname(SECONDS)):
        Path(SECONDS).write_text(json.dumps(seconds, indent=0, sort_keys=True))
    return total


@contextlib.contextmanager
def timed(counts, phase):
    began = time.monotonic()
    yield
    counts.phases.append((phase, time.monotonic() - began, sum(counts.processor.values())))


def run_phase(name, command, tally):
    """The exit code of the command; its time is noted if that is 0."""
    began = time.monotonic()
    process = subprocess.Popen(command)  # kept: as garbage it would be waited for
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)

    if status == 0:
        phase = {"phase": name, "seconds": time.monotonic() - began, "processor": usage.ru_utime + usage.ru_stime}
        with open(tally, "a") as file:
            file.write(json.dumps(phase) + "\n")
    return abs(process.returncode)


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
    for name, *both in total.phases:
        phases[name] = [a + b for a, b in zip(phases.get(name, [0, 0]), both)]
    each = ", ".join(f"{name} {seconds:.0f} s" for name, (seconds, _) in phases.items())
    print(f"in {sum(seconds for seconds, _ in phases.values()):.0f} s" + (f": {each}" if each else ""))
    busy = {**{name: processor for name, (_, processor) in phases.items() if name != TESTS}, **total.processor}
    each = ", ".join(f"{name} {seconds:.0f} s" for name, seconds in busy.items())
    print(f"processor {sum(busy.values()):.0f} s" + (f": {each}" if each else ""))
    print(total.line(), flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("programs", nargs="*", metavar="PROGRAM")
    parser.add_argument("--pytest", action="append", default=[], metavar="PATH")
    parser.add_argument("--mark", default="", help="run only pytest tests with this mark")
    parser.add_argument("--build", action="append", default=[], metavar="PREFIX=COMMAND")
    parser.add_argument("--check", action="append", default=[], metavar="COMMAND")
    parser.add_argument("--last", action="append", default=[], metavar="COMMAND")
    parser.add_argument("--phase", metavar="NAME", help="run a command and note its time")
    parser.add_argument("--tally", metavar="FILE", help="results of all parts of a test")
    parser.add_argument("--status", type=int, default=0, help="exit status of the make that has ended")
    parser.add_argument("--jobs", type=int, default=1, help="jobs that run at the same time")
    parser.add_argument("--program-seconds", type=int, default=PROGRAM_SECONDS)
    parser.add_argument("--pytest-seconds", type=int, default=PYTEST_SECONDS)
    options = parser.parse_args()
    if options.phase:
        return run_phase(options.phase, options.programs, options.tally)

    earlier = read_tally(options.tally) if options.tally and os.path.exists(options.tally) else Counts()
    if options.programs and not earlier.times:  # the lists of an earlier part count
        shutil.rmtree(KERNELS, ignore_errors=True)
        if os.path.isdir(os.path.dirname(KERNELS)):
            os.mkdir(KERNELS)

    programs = [Program(program, options.program_seconds) for program in options.programs]
    builds = [(prefixes, Command(command, "builds", first=2))
              for prefixes, command in (build.split("=", 1) for build in options.build)]
    for program in programs:
        program.waits_for = [build for prefixes, build in builds if program.path.startswith(tuple(prefixes.split(",")))]
    files = [PytestFile(file, options.mark, options.jobs, options.pytest_seconds)
             for path in options.pytest for file in pytest_files(path)]
    checks = [Command(command, "checks", first=1) for command in options.check]

    total = Counts()
    with timed(total, TESTS):
        total.add(run_queue([build for _, build in builds] + checks + files + programs, options.jobs))
        for command in options.last:
            total.add(Command(command, "checks", first=0).begin()[0])
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
