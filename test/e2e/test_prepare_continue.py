"""data/prepare that was killed resumes at its last complete shard and ends with the same bytes; nothing half done is ever
seen. test/unit/test_corpus_run.c kills after every block, changes and damages what is found, and ends the last moves."""
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

from conftest import PREPARE, WORDS, kill, wait_for
from test_prepare import prepare, read_shard

OPTIONS = ["--shard-tokens", "100K", "--threads", "2"]


def make_corpus(directory, megabytes=8):
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
    machine; what it said, and whether it was still running."""
    def limit():  # a timer outlives exec; SIGPROF, which nobody handles, ends a process as SIGKILL does
        signal.setitimer(signal.ITIMER_PROF, max(seconds, 1e-3))

    result = subprocess.run([PREPARE, *map(str, arguments)], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
                            preexec_fn=limit, timeout=300)
    assert result.returncode in (0, -signal.SIGPROF)
    return result.stderr.decode(), result.returncode != 0


def kill_when(condition, out, *arguments):
    """An unfinished run, killed as soon as condition() holds. One that was through before we looked is done again."""
    for _ in range(100):
        process = subprocess.Popen([PREPARE, "-o", out, *map(str, arguments)], stdout=subprocess.DEVNULL,
                                   stderr=subprocess.DEVNULL)
        wait_for(condition, process)
        kill(process)
        if (out / ".tmp-prepare" / "manifest.json").exists() and not final_names(out):
            return
        assert process.returncode in (0, -signal.SIGKILL)
        shutil.rmtree(out, ignore_errors=True)
    pytest.fail("100 runs were over before they could be killed")


def went_on_at(said):
    """The byte behind which a run went on; None: it began anew."""
    match = re.search(r"resuming an unfinished run after (\d+) of", said)
    return int(match.group(1)) if match else None


@pytest.mark.parametrize("threads", [1, 3])
def test_the_shards_do_not_depend_on_the_number_of_threads(tmp_path, out, threads):
    corpus = make_corpus(tmp_path / "corpus", 4)
    prepare("-o", out, "--shard-tokens", "300K", "--threads", "2", corpus)
    prepare("-o", tmp_path / "other", "--shard-tokens", "300K", "--threads", threads, corpus)
    assert contents(out) == contents(tmp_path / "other")


def kill_until_done(out, whole, corpus, choose, seconds):
    """Starts the run, kills it at random within `seconds`, starts it again, until it is done. Returns the number of kills
    and the places where the runs went on."""
    places, kills = [], 0
    while True:
        said, was_running = run_and_kill(["-o", out, *OPTIONS, corpus], choose.uniform(0, seconds))
        places.append(went_on_at(said))
        kills += was_running
        # No shard for validation stands there before all for training do.
        names = final_names(out)
        if any(name.startswith("val") for name in names):
            assert [n for n in names if n.startswith("train")] == \
                [n for n in final_names(whole) if n.startswith("train")]
        for name in names:
            if name.endswith(".bin"):
                read_shard(out / name)
        if not was_running or kills > 100:
            break
    if "manifest.json" not in final_names(out):
        prepare("-o", out, *OPTIONS, corpus)
    return kills, [place for place in places if place is not None]


def test_a_run_that_is_killed_again_and_again_ends_with_the_same_bytes(tmp_path):
    corpus = make_corpus(tmp_path / "corpus")
    before = processor_seconds()
    prepare("-o", tmp_path / "whole", *OPTIONS, corpus)
    duration = processor_seconds() - before
    choose = random.Random(11)
    kills = went_on = 0
    for attempt in range(20):  # how many kills hit is chance
        out = tmp_path / f"out{attempt}"
        hits, places = kill_until_done(out, tmp_path / "whole", corpus, choose, duration / (1 + attempt % 4))
        assert contents(out) == contents(tmp_path / "whole")
        assert not (out / ".tmp-prepare").exists()
        assert places == sorted(places)  # it never fell back
        kills, went_on = kills + hits, went_on + len(places)
        if kills >= 8 and went_on >= 4:
            return
    pytest.fail(f"only {kills} kills hit and {went_on} runs went on in 20 attempts")


def interrupted(tmp_path, out, *options):
    """An unfinished run over a corpus: its directory and the corpus."""
    corpus = make_corpus(tmp_path / "corpus", 4)
    kill_when((out / ".tmp-prepare" / "manifest.json").exists, out, *OPTIONS, *options, corpus)
    return corpus


def test_a_bad_line_is_passed_by_a_second_run_that_goes_on_with_skip_bad(tmp_path, out):
    corpus = make_corpus(tmp_path / "corpus", 4)
    (corpus / "z.jsonl").write_text('{"text": "good"}\n{"bad\n')
    stderr = prepare("-o", out, *OPTIONS, corpus, expect=2).stderr
    assert "z.jsonl: line 2: not valid JSON" in stderr and "the same command resumes there" in stderr
    assert final_names(out) == []
    result = prepare("-o", out, *OPTIONS, "--skip-bad", corpus)
    total = sum(path.stat().st_size for path in corpus.iterdir())
    assert went_on_at(result.stderr) > 0.9 * total
    prepare("-o", tmp_path / "fresh", *OPTIONS, "--skip-bad", corpus)
    assert contents(out) == contents(tmp_path / "fresh")


def test_standard_input_starts_over_and_says_so(tmp_path, out):
    interrupted(tmp_path, out)
    data = b'{"text": "a line of text for standard input"}\n' * 100
    result = subprocess.run([PREPARE, "-o", out, "--format", "jsonl", "-"], input=data, capture_output=True, timeout=300)
    assert result.returncode == 0, result.stderr
    assert b"standard input cannot be read again; starting over" in result.stderr


def test_a_full_disk_is_reported_and_the_run_goes_on_when_there_is_room(tmp_path, out):
    """A limit on the size of files stands for the disk."""
    corpus = interrupted(tmp_path, out)

    def limit():
        resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))

    result = subprocess.run([PREPARE, "-o", out, *OPTIONS, corpus], capture_output=True, text=True, preexec_fn=limit,
                            restore_signals=False, timeout=300)  # Python ignores SIGXFSZ, and so does its child
    assert result.returncode == 1
    assert re.search(r"cannot write the shard: File too large \(.*\); finished shards are kept", result.stderr)
    assert final_names(out) == []
    assert went_on_at(prepare("-o", out, *OPTIONS, corpus).stderr) > 0
    prepare("-o", tmp_path / "whole", *OPTIONS, corpus)
    assert contents(out) == contents(tmp_path / "whole")
