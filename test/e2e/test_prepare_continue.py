"""data/prepare that was killed goes on where it was and ends with the same bytes; nothing half done is ever seen."""
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

OPTIONS = ["--shard-tokens", "300K", "--journal-seconds", "0.01", "--threads", "2"]


@pytest.fixture
def out(tmp_path):
    return tmp_path / "shards"


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
        if (out / ".tmp-prepare" / "journal.json").exists() and not final_names(out):
            return
        assert process.returncode in (0, -signal.SIGKILL)
        shutil.rmtree(out, ignore_errors=True)
    pytest.fail("100 runs were over before they could be killed")


def went_on_at(said):
    """The byte behind which a run went on; None: it began anew."""
    match = re.search(r"going on with an unfinished run, behind (\d+) of", said)
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


@pytest.mark.parametrize("moment", range(6))
def test_a_run_killed_at_any_journal_is_continued_from_there(tmp_path, out, moment):
    """Killed as soon as the journal says so much, instead of by the clock: every phase of a corpus is met."""
    corpus = make_corpus(tmp_path / "corpus", 4)
    prepare("-o", tmp_path / "whole", *OPTIONS, corpus)
    total = sum(path.stat().st_size for path in corpus.iterdir())
    journal = out / ".tmp-prepare" / "journal.json"

    def has_come_far():
        try:
            return json.loads(journal.read_text())["bytes_read"] >= moment / 6 * total
        except (FileNotFoundError, NotADirectoryError):
            return False

    kill_when(has_come_far, out, *OPTIONS, "--journal-seconds", 0, corpus)
    result = prepare("-o", out, *OPTIONS, corpus)
    assert went_on_at(result.stderr) >= moment / 6 * total
    assert contents(out) == contents(tmp_path / "whole")


def interrupted(tmp_path, out, *options):
    """An unfinished run over a corpus: its directory and the corpus."""
    corpus = make_corpus(tmp_path / "corpus", 4)
    kill_when((out / ".tmp-prepare" / "journal.json").exists, out, *OPTIONS, "--journal-seconds", 0, *options, corpus)
    return corpus


@pytest.mark.parametrize("change, words", [
    ("touch", "corpus has changed"),
    ("grow", "corpus has changed"),
    ("option", "the options are others"),
    ("inputs", "the inputs are others"),
    ("journal", "journal.json: not valid JSON"),
    ("journal numbers", "tokens, "),
    ("shard", "is missing"),
])
def test_what_has_changed_starts_over_and_says_so(tmp_path, out, change, words):
    corpus = interrupted(tmp_path, out)
    arguments = [corpus]
    journal = out / ".tmp-prepare" / "journal.json"
    if change == "touch":
        os.utime(corpus / "0e00.txt", (1, 1))
    elif change == "grow":
        (corpus / "0e00.txt").write_text("another text")
    elif change == "option":
        arguments = ["--val-fraction", "0.2", corpus]
    elif change == "inputs":
        arguments = [corpus / "0a.jsonl", corpus / "0c.txt"]
    elif change == "journal":
        journal.write_bytes(journal.read_bytes()[:-100])
    elif change == "journal numbers":
        state = json.loads(journal.read_text())
        state["train_tokens"] += 1
        journal.write_text(json.dumps(state))
    else:
        for path in (out / ".tmp-prepare").glob("*.bin*"):
            path.unlink()
    result = prepare("-o", out, *OPTIONS, *arguments)
    assert "cannot go on with the unfinished run" in result.stderr and "starting over" in result.stderr
    assert words in result.stderr, result.stderr
    prepare("-o", tmp_path / "fresh", *OPTIONS, *arguments)
    assert contents(out) == contents(tmp_path / "fresh")


def test_a_bad_line_is_passed_by_a_second_run_that_goes_on_with_skip_bad(tmp_path, out):
    corpus = make_corpus(tmp_path / "corpus", 4)
    (corpus / "z.jsonl").write_text('{"text": "good"}\n{"bad\n')
    options = [*OPTIONS, "--journal-seconds", "0"]
    stderr = prepare("-o", out, *options, corpus, expect=2).stderr
    assert "z.jsonl: line 2: not valid JSON" in stderr and "the same command goes on from there" in stderr
    assert final_names(out) == []
    result = prepare("-o", out, *options, "--skip-bad", corpus)
    total = sum(path.stat().st_size for path in corpus.iterdir())
    assert went_on_at(result.stderr) > 0.9 * total
    prepare("-o", tmp_path / "fresh", *options, "--skip-bad", corpus)
    assert contents(out) == contents(tmp_path / "fresh")


def test_standard_input_starts_over_and_says_so(tmp_path, out):
    interrupted(tmp_path, out)
    data = b'{"text": "a line of text for standard input"}\n' * 100
    result = subprocess.run([PREPARE, "-o", out, "--format", "jsonl", "-"], input=data, capture_output=True, timeout=300)
    assert result.returncode == 0, result.stderr
    assert b"standard input cannot be read again; starting over" in result.stderr


@pytest.mark.parametrize("phase", ["replace", "move"])
def test_a_run_killed_while_it_moves_its_shards_is_completed(tmp_path, out, phase):
    """The state on the disk between the two steps of the end, made from a whole run."""
    corpus = make_corpus(tmp_path / "corpus", 4)
    prepare("-o", tmp_path / "whole", *OPTIONS, corpus)
    staging = out / ".tmp-prepare"
    kill_when((staging / "journal.json").exists, out, *OPTIONS, "--journal-seconds", 0, corpus)
    state = json.loads((staging / "journal.json").read_text())
    manifest = json.loads((tmp_path / "whole" / "manifest.json").read_text())
    for side in ("train", "val"):
        state[side] = [{key: shard[key] for key in ("tokens", "bytes", "xxh3")} for shard in manifest[side]["shards"]]
        state[f"{side}_tokens"], state[f"{side}_open_tokens"] = manifest[side]["tokens"], 0
    state["phase"] = phase
    (staging / "journal.json").write_text(json.dumps(state))
    for path in staging.glob("*.bin*"):
        path.unlink()
    for i, path in enumerate(sorted((tmp_path / "whole").iterdir())):
        moved = phase == "move" and path.name.startswith("train") and i % 2 == 0
        ((out if moved else staging) / path.name).write_bytes(path.read_bytes())
    if phase == "replace":  # what an earlier run left
        (out / "train_000077.bin").write_bytes(b"old")
        (out / "val_000000.bin").write_bytes(b"old")
    prepare("-o", out, *OPTIONS, corpus)
    assert contents(out) == contents(tmp_path / "whole")


def test_a_full_disk_is_reported_and_the_run_goes_on_when_there_is_room(tmp_path, out):
    """A limit on the size of files stands for the disk."""
    corpus = make_corpus(tmp_path / "corpus", 4)
    options = ["--journal-seconds", "0", "--shard-tokens", "2M"]

    def limit():
        resource.setrlimit(resource.RLIMIT_FSIZE, (2_000_000, 2_000_000))

    result = subprocess.run([PREPARE, "-o", out, *options, corpus], capture_output=True, text=True, preexec_fn=limit,
                            restore_signals=False, timeout=300)  # Python ignores SIGXFSZ, and so does its child
    assert result.returncode == 1
    assert "cannot write the shard: File too large; what is done is kept" in result.stderr
    assert final_names(out) == []
    assert went_on_at(prepare("-o", out, *options, corpus).stderr) > 0
    prepare("-o", tmp_path / "whole", *options, corpus)
    assert contents(out) == contents(tmp_path / "whole")
