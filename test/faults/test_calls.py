"""Calls that fail: whichever system call or allocation of a save, a resume, a prepare or an export fails, libraries'
included, the program does without it, or says so in one line and ends with a stated exit code; what was saved is whole,
and the same command without the fault completes it.

    python test/faults/test_calls.py [EVERY [WORKERS [WORD ...]]]    every call, or one of EVERY; only jobs and classes of
                                                                     calls that are named
"""
import collections
import errno
import os
import re
import shutil
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).resolve().parents[1]))  # for this file as a program; else pytest.ini
from faults.shim import (CLASSES, EXIT_BAD_INPUT, EXIT_RUN_FAILED, PREPARE, SMALL, TRAINER, build, checkpoints, data,  # noqa: E402, F401
                         copy, files_of, losses, make_text, shim, state_of)

TRAIN = [*SMALL, "-v", "2", "-m", "1", "-s", "2", "-g", "4", "-n", "1", "-nk", "0", "--threads", "2"]
HALF = 0  # of what was asked for
# What each class of calls fails with.
ERRORS = {"open": (errno.EACCES, errno.EMFILE), "read": (errno.EIO, HALF), "write": (errno.ENOSPC, HALF),
          "fsync": (errno.EIO,), "rename": (errno.EIO,), "readdir": (errno.EIO,), "mkdir": (errno.ENOSPC,),
          "close": (errno.EIO,), "unlink": (errno.EIO,), "truncate": (errno.EIO,), "stat": (errno.EIO,),
          "lock": (errno.ENOLCK,), "malloc": (errno.ENOMEM,)}


def state_without_times(root):
    """What the next run finds: names and bytes, but no times, sizes of free memory, process ids, and TensorBoard files,
    which nothing reads."""
    def content(path):
        if path.is_dir():
            return None
        text = path.read_bytes().replace(bytes(root), b"")
        return re.sub(rb"\d+\.\d+|\d{7,}", b"#", text) if path.suffix in (".log", ".json") else text
    return hash(tuple((re.sub(r"tmp-(model-)?\d+", "tmp-", str(path.relative_to(root))), content(path))
                      for path in sorted(root.rglob("*")) if "tfevents" not in path.name))


class Job:
    """Something to do in directory `root`, which `before` is copied to if it exists."""

    def __init__(self, shim, place, shards):
        self.shim, self.place, self.shards, self.before = shim, place, shards, place / "before"
        self.completed = set()  # states that the command without a fault has completed

    def start(self):
        """An undisturbed run: what it ends with, and how many calls of each class it makes."""
        root = copy(self.before, self.place / "whole")
        result = self.shim.run(self.command(root), FAULT_COUNTS=self.place / "counts")
        assert result.returncode == 0, result.stderr
        self.said = [line.replace(str(root), "") for line in result.stderr.splitlines()]
        self.whole = root
        self.calls = self.shim.counts(self.place / "counts")[0]

    def check(self, fault):
        """Runs it with one fault; returns (exit code, what it said)."""
        name, error, at, on = fault
        root = copy(self.before, self.place / f"fault{threading.get_ident()}" / "run")
        root.parent.mkdir(exist_ok=True)
        counts = root.parent / "counts"
        result = self.shim.run(self.command(root), FAULT_CLASS=name, FAULT_AT=at, FAULT_ERROR=error, FAULT_COUNTS=counts,
                               **({"FAULT_ON": 1} if on else {}))
        try:
            return self.look(fault, root, counts, result)
        finally:
            shutil.rmtree(root.parent)

    def look(self, fault, root, counts, result):
        name, error, at, on = fault
        _, failed, where = self.shim.counts(counts)
        lines = [line for line in result.stderr.replace(str(root), "").splitlines() if line and line not in self.said]
        told = f"{name} {at}{' and on' if on else ''} fails with {error} at {where}: exit code {result.returncode}, {lines}"
        assert result.returncode in (0, EXIT_RUN_FAILED, EXIT_BAD_INPUT), told
        if result.returncode:
            assert len(lines) == 1 or (on and lines), told
            self.check_left(root, told)
            state = state_without_times(root)
            if state not in self.completed:
                again = self.shim.run(self.command(root))
                assert again.returncode == 0, f"{told}; then {again.stderr}"
                self.check_end(root, told, True)
                self.completed.add(state)
        else:
            assert len(lines) < 2 or on, told
            self.check_end(root, told, bool(lines))
        return failed, result.returncode, lines, told

    def check_left(self, root, told):
        pass


class Save(Job):
    steps = 2

    def command(self, root):
        return [TRAINER, *TRAIN, *self.shards, "-o", root, "-x", str(self.steps), "-y", "1"]

    def saved(self, root, told):
        """Each checkpoint is that of the undisturbed run."""
        for checkpoint in [path for path in root.glob("step_*")]:
            assert state_of(checkpoint) == state_of(self.whole / checkpoint.name), f"{told}; {checkpoint.name}"

    def check_left(self, root, told):
        self.saved(root, told)

    def check_end(self, root, told, has_said):
        self.saved(root, told)
        assert checkpoints(root)[-1].name == f"step_{self.steps:08d}", told
        if not has_said:
            assert losses(root) == losses(self.whole), told
        left = [path.name for path in root.rglob("*.tmp-*")]
        assert left == [] or has_said, f"{told}; {left}"


class Resume(Save):
    steps = 4

    def __init__(self, shim, place, shards):
        super().__init__(shim, place, shards)
        first = Save(shim, place, shards)
        assert shim.run(first.command(self.before)).returncode == 0


class Export(Job):
    def __init__(self, shim, place, shards):
        super().__init__(shim, place, shards)
        run = place / "model"
        assert shim.run(Save(shim, place, shards).command(run)).returncode == 0
        self.models = checkpoints(run)
        assert shim.run(self.command(self.before, self.models[0])).returncode == 0

    def command(self, root, model=None):
        return [TRAINER, "-e", model or self.models[1], "-x", "0", "-v", "0", "-s", "0", "--export", root / "model"]

    def check_left(self, root, told):
        found = {name: content for name, content in files_of(root).items() if name.startswith("model/")}
        assert found in (files_of(self.before), files_of(self.whole)), told

    def check_end(self, root, told, has_said):
        # What cannot be removed has a hidden name, and goes at the next export.
        found = {name: content for name, content in files_of(root).items() if not name.startswith(".tmp-")}
        assert found == files_of(self.whole), told


class Prepare(Job):
    def __init__(self, shim, place, shards):
        super().__init__(shim, place, shards)
        self.text = make_text(place / "text", 12, 60)
        assert shim.run([*self.command(self.before)[:-1], make_text(place / "other", 5, 150)]).returncode == 0

    def command(self, root):
        return [PREPARE, "-o", root, "--force", "--shard-tokens", "1024", "--threads", "2", "--tokenizer", "train:270",
                self.text]

    def check_left(self, root, told):
        if (root / "manifest.json").exists():
            found = {name: content for name, content in files_of(root).items() if not name.startswith(".tmp-prepare")}
            assert found in (files_of(self.before), files_of(self.whole)), told

    def check_end(self, root, told, has_said):
        # A file that may not be read is left out and counted; one that may be read the second time, when its text becomes
        # tokens, is only missing in the counts of words.
        if f"fails with {errno.EACCES} at {self.text}" not in told or "exit code 0" not in told:
            assert files_of(root) == files_of(self.whole), f"{told}; {sorted(files_of(root))}"


JOBS = {"save": Save, "resume": Resume, "export": Export, "prepare": Prepare}


def check_faults(job, classes, first, every, workers):
    """Faults of these classes, one by one; returns [(failed calls, exit code, lines, what was told)]."""
    faults = [(name, error, at, name == "malloc" and at // every % 2 == 1)
              for name in classes for error in ERRORS[name] for at in range(first, job.calls[name] + 1, every)]
    wrong, done = [], []

    def check(fault):
        try:
            done.append(job.check(fault))
        except AssertionError as problem:
            wrong.append(str(problem).splitlines()[0])

    with ThreadPoolExecutor(workers) as pool:
        list(pool.map(check, faults))
    assert wrong == [], "\n".join([f"{len(wrong)} of {len(faults)} faults:", *wrong])
    return done


@pytest.mark.parametrize("name", JOBS)
def test_every_call_that_fails_is_one_line_and_loses_nothing(name, shim, data, tmp_path):
    job = JOBS[name](shim, tmp_path, data.flags)
    job.start()
    done = check_faults(job, [each for each in CLASSES if each != "malloc"], 3, 29, 2)
    done += check_faults(job, ["malloc"], 7, max(job.calls["malloc"] // 20, 1), 2)
    assert sum(failed > 0 for failed, *_ in done) > len(done) // 2


def test_a_prepare_that_fails_while_it_moves_its_files_takes_them_back(shim, tmp_path):
    text = make_text(tmp_path / "text", 12, 60)
    command = [PREPARE, "-o", tmp_path / "out", "--shard-tokens", "1024", "--threads", "1", text]
    for at in range(1, 100):
        result = shim.run(command, FAULT_CLASS="rename", FAULT_AT=at, FAULT_ERROR=errno.EIO, FAULT_UNDER=tmp_path / "out")
        if result.returncode == 0:
            break
        assert result.returncode == EXIT_RUN_FAILED and not (tmp_path / "out").exists(), (at, result.stderr)
    assert at > 5


@pytest.mark.parametrize("name", ["open", "fsync", "rename", "close", "stat", "lock", "truncate", "write"])
def test_a_call_that_fails_once_does_not_end_the_log_of_a_resume(name, shim, data, tmp_path):
    """The resume drops the evaluations of its first step, which puts another file in the place of the log."""
    before, run, errors = tmp_path / "before", tmp_path / "run", (errno.EIO, errno.ENOSPC, errno.EINTR, errno.ESTALE)
    assert shim.run(Save(shim, tmp_path, data.flags).command(before)).returncode == 0
    command = [TRAINER, "-o", run, "-y", "-x", 6, "-n", 0]
    shutil.copytree(before, run)
    assert shim.run(command, FAULT_UNDER=run, FAULT_COUNTS=tmp_path / "counts").returncode == 0
    calls = shim.counts(tmp_path / "counts")[0][name]
    for at in range(1, calls + 1, max(calls // 8, 1)):
        shutil.rmtree(run)
        shutil.copytree(before, run)
        result = shim.run(command, FAULT_CLASS=name, FAULT_AT=at, FAULT_ERROR=errors[at % 4], FAULT_UNDER=run)
        assert result.returncode == 0 or result.stderr
        if result.returncode:
            continue
        logged, said = set(losses(run)), "will miss lines" in result.stderr
        assert len(logged) >= 6 - said and max(logged) >= 5, (name, at, errors[at % 4], sorted(logged), result.stderr)
        assert not said or len(logged) == 6 or "is written again" in result.stdout, (name, at, result.stdout)


@pytest.mark.parametrize("error", [errno.ESTALE, errno.EIO, errno.EINTR])
def test_what_prepare_cannot_look_at_now_is_not_taken_for_missing(error, shim, tmp_path):
    """A corpus that a killed prepare --force was about to replace, and a tokenizer in a directory with another one."""
    text, out, spare = make_text(tmp_path / "text", 12, 60), tmp_path / "out", tmp_path / "spare"
    assert shim.run([PREPARE, "-o", out, text]).returncode == 0
    (out / ".tmp-prepare").mkdir()
    (out / ".tmp-prepare" / "manifest.json").write_bytes((out / "manifest.json").read_bytes())
    whole = {name: content for name, content in files_of(out).items() if "tmp" not in name}
    shutil.copytree(out, spare)
    for at in range(1, 100):
        faults = {"FAULT_CLASS": "stat", "FAULT_AT": at, "FAULT_ERROR": error, "FAULT_COUNTS": tmp_path / "counts"}
        result = shim.run([PREPARE, "-o", out, text], FAULT_UNDER=out, **faults)
        assert result.returncode == EXIT_BAD_INPUT, (at, result.stderr)
        assert {name: content for name, content in files_of(out).items() if "tmp" not in name} == whole, (at, result.stderr)
        if not shim.counts(tmp_path / "counts")[1]:
            break
        shutil.rmtree(out)
        shutil.copytree(spare, out)
    vocabulary = tmp_path / "vocabulary"
    vocabulary.mkdir()
    shutil.copy(out / "tokenizer.json", vocabulary)
    (vocabulary / "vocab.json").write_text('{"a": 0}')
    for at in range(1, 100):
        result = shim.run([PREPARE, "--tokenizer", vocabulary, "-o", tmp_path / f"out{at}", text], FAULT_CLASS="stat", FAULT_AT=at,
                          FAULT_ERROR=error, FAULT_COUNTS=tmp_path / "counts", FAULT_UNDER=vocabulary)
        if result.returncode == 0:
            assert (tmp_path / f"out{at}" / "tokenizer.json").read_bytes() == whole["tokenizer.json"]
        else:
            # What can be looked at again a moment later has a message of its own.
            words = os.strerror(error), "cannot open: No such file", "not a plain file but a directory"
            assert any(each in result.stderr for each in words), (at, result.stderr)
        if not shim.counts(tmp_path / "counts")[1]:
            break


def test_measuring_the_machine_takes_no_more_memory_than_a_small_run(shim, data):
    """Less than two buffers of 32 MB, which are the least that the caches of a processor asked for."""
    result = shim.run([TRAINER, *SMALL, "-v", "0", "-s", "0", "-x", "1", *data.flags], FAULT_ABOVE=40 << 20,
                      PRETRAIN_SPEED="on")
    assert result.returncode == 0 and "limits      measured now" in result.stdout and result.stderr == ""


if __name__ == "__main__":
    import tempfile
    every, workers = [int(word) for word in sys.argv[1:3]] + [1, 2][len(sys.argv[1:3]):]
    words = sys.argv[3:]
    with tempfile.TemporaryDirectory() as place:
        place = Path(place)
        library = build(place)
        library.run([PREPARE, "-o", place / "shards", make_text(place / "text")])
        shards = ["-i", str(place / "shards" / "train_*.bin"), "-j", str(place / "shards" / "val_*.bin")]
        for name in [job for job in JOBS if job in words] or JOBS:
            (place / name).mkdir()
            job = JOBS[name](library, place / name, shards)
            job.start()
            for each in [each for each in CLASSES if each in words] or CLASSES:
                try:
                    done = check_faults(job, [each], 1, every, workers)
                except AssertionError as problem:
                    print(f"{name}: {each}: {problem}", flush=True)
                    continue
                codes = collections.Counter(code for _, code, *_ in done)
                print(f"{name}: {each}: {job.calls[each]} calls, {len(done)} faults, {sum(f > 0 for f, *_ in done)} hit, "
                      f"exit codes {dict(sorted(codes.items()))}, {len(job.completed)} states completed so far", flush=True)
                if "--lines" in words:
                    for line in sorted({line for *_, lines, _ in done for line in lines}):
                        print(f"    {line[:200]}", flush=True)
            shutil.rmtree(place / name)
