"""data/prepare that was killed leaves no corpus, and the same command makes a whole one. test/unit/test_corpus_run.c kills
after every block, and between the moves to the final names."""
import gzip
import json
import os
import random
import re
import resource
import shutil
import signal
import subprocess

import pytest

from conftest import PREPARE, WORDS
from test_prepare import prepare, read_shard

OPTIONS = ["--shard-tokens", "100K", "--threads", "2"]


def make_corpus(directory, megabytes=4):
    """Lines, packed lines, a long text, a long packed one, short ones: every way through the reader."""
    directory.mkdir()
    choose = random.Random(5)
    words = " ".join(choose.choice(WORDS) for _ in range(200_000)).encode()  # 0.8 MB

    def text(n):
        start = choose.randrange(len(words) // 2)
        return b"%d " % choose.randrange(10**9) + words[start:start + n]

    def lines(count):
        return b"".join(json.dumps({"text": text(choose.randrange(1, 3000)).decode()}).encode() + b"\n"
                        for _ in range(count))

    for i in range(megabytes // 4):
        (directory / f"{i}a.jsonl").write_bytes(lines(600))
        (directory / f"{i}b.jsonl.gz").write_bytes(gzip.compress(lines(600), 1))
        (directory / f"{i}c.txt").write_bytes(b"\n".join(text(700) for _ in range(1500)))
        (directory / f"{i}d.txt.gz").write_bytes(gzip.compress(b"\n".join(text(700) for _ in range(1500)), 1))
        for k in range(40):
            (directory / f"{i}e{k:02d}.txt").write_bytes(text(500))
        (directory / f"{i}f").write_bytes(b"\0binary")
    return directory


def contents(directory):
    return {path.name: path.read_bytes() for path in directory.iterdir()}


def final_names(out):
    return sorted(name for name in os.listdir(out) if not name.startswith(".")) if out.exists() else []


def processor_seconds():
    """What all processes that were waited for have computed."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def run_and_kill(arguments, seconds):
    """Starts data/prepare, and the kernel ends it when it has computed so many seconds, however long that takes on a busy
    machine. Whether it was still running."""
    def limit():  # a timer outlives exec; SIGPROF, which nobody handles, ends a process as SIGKILL does
        signal.setitimer(signal.ITIMER_PROF, max(seconds, 1e-3))

    result = subprocess.run([PREPARE, *map(str, arguments)], stdout=subprocess.DEVNULL, preexec_fn=limit, timeout=300)
    assert result.returncode in (0, -signal.SIGPROF)
    return result.returncode != 0


@pytest.mark.parametrize("threads", [1, 3])
def test_the_shards_do_not_depend_on_the_number_of_threads(tmp_path, out, threads):
    corpus = make_corpus(tmp_path / "corpus")
    prepare("-o", out, "--shard-tokens", "300K", "--threads", "2", corpus)
    prepare("-o", tmp_path / "other", "--shard-tokens", "300K", "--threads", threads, corpus)
    assert contents(out) == contents(tmp_path / "other")


def test_a_run_that_is_killed_again_and_again_leaves_no_corpus_until_one_is_whole(tmp_path, out):
    corpus = make_corpus(tmp_path / "corpus", 12)
    before = processor_seconds()
    prepare("-o", tmp_path / "whole", *OPTIONS, corpus)
    duration = processor_seconds() - before
    choose = random.Random(11)
    kills = 0
    for _ in range(12):  # how many kills hit is chance
        if not run_and_kill(["-o", out, *OPTIONS, corpus], choose.uniform(0, 0.8 * duration)):
            shutil.rmtree(out)
            continue
        kills += 1
        names = final_names(out)
        assert "manifest.json" not in names
        # No shard for validation is there before all for training are.
        if any(name.startswith("val") for name in names):
            assert [n for n in names if n.startswith("train")] == \
                [n for n in final_names(tmp_path / "whole") if n.startswith("train")]
        for name in names:
            if name.endswith(".bin"):
                read_shard(out / name)
    assert kills > 0
    prepare("-o", out, *OPTIONS, corpus)
    assert contents(out) == contents(tmp_path / "whole")


def test_bad_input_leaves_nothing_and_skip_bad_passes_it(tmp_path, out):
    corpus = make_corpus(tmp_path / "corpus")
    (corpus / "z.jsonl").write_text('{"text": "good"}\n{"bad\n')
    stderr = prepare("-o", out, *OPTIONS, corpus, expect=2).stderr
    assert "z.jsonl: line 2: not valid JSON" in stderr and not out.exists()
    prepare("-o", out, *OPTIONS, "--skip-bad", corpus)


def test_a_full_disk_is_reported_and_leaves_nothing(tmp_path, out):
    """A limit on the size of files stands for the disk."""
    corpus = make_corpus(tmp_path / "corpus")

    def limit():
        resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))

    result = subprocess.run([PREPARE, "-o", out, *OPTIONS, corpus], capture_output=True, text=True, preexec_fn=limit,
                            restore_signals=False, timeout=300)  # Python ignores SIGXFSZ, and so does its child
    assert result.returncode == 1
    assert re.search(r"cannot write the shard: File too large \(.*\)\n$", result.stderr)
    assert not out.exists()
