"""What the end-to-end tests share: the trainer as a command, a small corpus as shards, and runs of a tiny model.

TRAINER and SIM_TRAINER name the trainers (test/runs.py); `make test-sanitize` points them at the sanitized ones.
"""
import json
import os
import random
import re
import resource
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).resolve().parents[1]))  # for the programs of test/faults; else pytest.ini
from runs import (EXIT_BAD_INPUT, EXIT_INTERRUPTED, EXIT_RUN_FAILED, ROOT, SIMULATOR, TRAINER, call, checkpoints,  # noqa: E402, F401
                  events, kill, losses, on_a_terminal, same_run, same_state, script, wait_for, why_no_mpi, write_shard)

from verify_checkpoint import xxh3  # noqa: E402

needs_simulator = pytest.mark.skipif(not SIMULATOR.exists(),
                                     reason="train_gpt2sim is not built: that takes a CUDA toolkit")
needs_mpi = pytest.mark.skipif(bool(why_no_mpi()), reason=why_no_mpi())


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    """What needs the simulator is no part of make test."""
    for item in items:
        if needs_simulator.mark in item.iter_markers("skipif"):
            item.add_marker("simulator")


PREPARE = TRAINER.with_name("prepare") if TRAINER.with_name("prepare").is_file() else ROOT / "data" / "prepare"
TRAIN_TOKENIZER = PREPARE.with_name("train_tokenizer")

BYTE_VOCAB, BYTE_EOT = 257, 256
WORDS = "the of and to in that it was for on are with as his they at be this from have or by one had not but".split()

# A model whose steps take a few milliseconds, and a run that neither evaluates, samples nor saves unless asked to.
TINY = ["-e", "L=2,C=64,NH=2,T=32", "-t", "32", "-b", "4"]
QUIET = ["-v", "0", "-s", "0"]
MEASURED = {**os.environ, "PRETRAIN_SPEED": "on"}  # mfu is known


class Data:
    """A directory of shards and the options that name it."""

    def __init__(self, directory):
        self.directory = directory
        self.train, self.val = str(directory / "train_*.bin"), str(directory / "val_*.bin")
        self.flags = ["-i", self.train, "-j", self.val]


def make_text(directory, documents=60, words=400):
    directory.mkdir(parents=True, exist_ok=True)
    choose = random.Random(1)
    for i in range(documents):
        (directory / f"{i:03d}.txt").write_text(" ".join(choose.choice(WORDS) for _ in range(words)) + ".\n")
    return directory


@pytest.fixture(scope="session")
def data(tmp_path_factory):
    """Byte-level shards of some text, made by data/prepare."""
    text = make_text(tmp_path_factory.mktemp("text"))
    out = tmp_path_factory.mktemp("shards")
    subprocess.run([PREPARE, "-o", out, text], check=True, capture_output=True, timeout=300)
    return Data(out)


@pytest.fixture
def out(tmp_path):
    """A directory for shards that is not there yet."""
    return tmp_path / "shards"


def command(*arguments, trainer=TRAINER):
    return [str(trainer), *map(str, arguments)]


def train(*arguments, trainer=TRAINER, expect=0, timeout=300, **options):
    """Runs the trainer to its end and checks the exit code."""
    return call(*command(*arguments, trainer=trainer), expect=expect, timeout=timeout, cwd=ROOT, **options)


def refused(*arguments, words, expect=EXIT_BAD_INPUT):
    """It ends with one line on stderr that holds these words and names no path twice."""
    result = train(*arguments, expect=expect)
    lines = result.stderr.splitlines()
    assert len(lines) == 1 and len(lines[0]) < 1200, result.stderr
    paths = re.findall(r"/[^\s:;,']+", lines[0].partition(": ")[2])
    assert len(paths) == len(set(paths)), f"a path is there twice: {lines[0]}"
    for word in words:
        assert word in lines[0], f"'{word}' is missing in: {lines[0]}"


def run_tiny(trainer, out, data, *arguments, **environment):
    """Runs TRAINER or SIMULATOR on the tiny model, with a cache of tuned matmuls beside the run; returns out."""
    env = {**os.environ, "PRETRAIN_CACHE": str(out.parent / "tuning"), **environment}
    train(*TINY, *QUIET, *data.flags, "-o", out, *arguments, trainer=trainer, timeout=300, env=env)
    return out


def limit_file_size(size):
    """A preexec_fn: files end there, with EFBIG."""
    def limit():
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))

    return limit


def start(*arguments, before=(), **options):
    """Starts the trainer, as an argument of `before`; its own words go nowhere, so that no pipe can fill up."""
    nowhere = {name: subprocess.DEVNULL for name in ("stdin", "stdout", "stderr")}
    return subprocess.Popen([*before, *command(*arguments)], cwd=ROOT, **{**nowhere, **options})


def cut_back(run, kept=1):
    """Makes it a run that was killed after its first `kept` checkpoints; returns it."""
    for later in checkpoints(run)[kept:]:
        shutil.rmtree(later)
    return run


def write_state(checkpoint, state):
    """Its trainer.json with these fields, and their checksum."""
    body = json.dumps({key: value for key, value in state.items() if key != "xxh3"})[:-1].encode()
    (checkpoint / "trainer.json").write_bytes(body + b',\n  "xxh3": "%s"\n}\n' % xxh3(body).encode())
