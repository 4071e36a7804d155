"""data/prepare: text files in, shards for training and validation out, and nothing half done."""
import json
import os
import random
import re
import signal
import struct
import subprocess
import time
from pathlib import Path

import pytest

from conftest import (BYTE_EOT, BYTE_VOCAB, EXIT_BAD_INPUT, PREPARE, QUIET, TINY, TRAINER, call, make_text, on_a_terminal,
                      wait_for)

pytestmark = pytest.mark.sanitize

MAGIC = 20240520
NEW_FILES = ["manifest.json", "tokenizer.json", "train_000000.bin", "val_000000.bin"]


def prepare(*arguments, expect=0):
    result = call(PREPARE, *arguments, expect=expect)
    if expect != 0:
        assert result.stderr.startswith("prepare: ") and result.stderr.count("\n") == 1
    return result


def read_shard(path):
    data = path.read_bytes()
    header = struct.unpack("<256i", data[:1024])
    tokens = struct.unpack(f"<{(len(data) - 1024) // 2}H", data[1024:])
    assert header[:4] == (MAGIC, 1, len(tokens), BYTE_VOCAB) and header[6] == BYTE_EOT + 1
    assert all(value == 0 for i, value in enumerate(header) if i not in (0, 1, 2, 3, 6))
    return tokens


def documents(out, side):
    """The documents of a side, as bytes."""
    tokens = [token for path in sorted(out.glob(f"{side}_*.bin")) for token in read_shard(path)]
    assert tokens and tokens[0] == BYTE_EOT
    parts, current = [], None
    for token in tokens:
        if token == BYTE_EOT:
            current = bytearray()
            parts.append(current)
        else:
            current.append(token)
    return [bytes(part) for part in parts]


def make_documents(directory, count, seed=0):
    directory.mkdir()
    choose = random.Random(seed)
    texts = ["".join(choose.choice("abc \n") for _ in range(choose.randrange(1, 900))).encode() for _ in range(count)]
    for i, text in enumerate(texts):
        (directory / f"{i:04d}.txt").write_bytes(text)
    return texts


def test_every_document_arrives_whole_on_one_side_in_order(tmp_path, out):
    texts = make_documents(tmp_path / "text", 200)
    result = prepare("-o", out, tmp_path / "text")
    train, val = documents(out, "train"), documents(out, "val")
    assert sorted(train + val) == sorted(texts)
    assert len(val) > 5
    assert train == [text for text in texts if text in set(train)]
    assert f"200 documents, {sum(map(len, texts))} bytes" in result.stdout
    assert sorted(os.listdir(out)) == NEW_FILES


def test_more_files_move_no_document_to_the_other_side(tmp_path, out):
    make_documents(tmp_path / "text", 100)
    make_documents(tmp_path / "more", 100, seed=1)
    prepare("-o", out, tmp_path / "text")
    prepare("-o", tmp_path / "both", tmp_path / "more", tmp_path / "text")
    for side in ("train", "val"):
        assert set(documents(out, side)) <= set(documents(tmp_path / "both", side))


def test_a_single_large_document_gives_its_end_to_validation(tmp_path, out):
    text = "".join(f"line {i} of a long text\n" for i in range(20000)).encode()
    (tmp_path / "one.txt").write_bytes(text)
    prepare("-o", out, "--val-fraction", "0.2", tmp_path / "one.txt")
    (train,), (val,) = documents(out, "train"), documents(out, "val")
    assert train + val == text
    assert train.endswith(b"\n")
    assert 0.199 < len(val) / len(text) <= 0.2


@pytest.mark.parametrize("options, side, other", [
    (["--val-fraction", "0"], "train", "val"), (["--split", "train"], "train", "val"), (["--split", "val"], "val", "train")])
def test_all_of_the_text_may_go_to_one_side(tmp_path, out, options, side, other):
    texts = make_documents(tmp_path / "text", 30)
    texts.append(b"a line of a long text\n" * 20000)
    (tmp_path / "text" / "long.txt").write_bytes(texts[-1])
    prepare("-o", out, *options, tmp_path / "text")
    assert documents(out, side) == texts and not list(out.glob(f"{other}_*"))
    assert json.loads((out / "manifest.json").read_text())[other] == {"documents": 0, "bytes": 0, "tokens": 0,
                                                                      "shards": []}


def test_few_short_documents_are_each_cut(tmp_path, out):
    (tmp_path / "a").write_bytes(b"hello\nworld\n" * 20)
    result = prepare("-o", out, tmp_path / "a")
    (train,), (val,) = documents(out, "train"), documents(out, "val")
    assert train + val == b"hello\nworld\n" * 20 and len(val) in range(12, 25)
    assert "each was cut" in result.stdout


def test_shards_have_the_size_asked_for(tmp_path, out):
    texts = make_documents(tmp_path / "text", 60)
    prepare("-o", out, "--shard-tokens", "2K", "--val-fraction", "0.3", tmp_path / "text")
    for side in ("train", "val"):
        shards = sorted(out.glob(f"{side}_*.bin"))
        assert [path.name for path in shards] == [f"{side}_{i:06d}.bin" for i in range(len(shards))]
        assert len(shards) > 1 and all(len(read_shard(path)) == 2000 for path in shards[:-1])
    assert sorted(documents(out, "train") + documents(out, "val")) == sorted(texts)


def test_what_is_no_text_is_skipped_and_counted(tmp_path, out):
    texts = make_documents(tmp_path / "text", 100)
    (tmp_path / "text" / "sub").mkdir()
    (tmp_path / "text" / "sub" / "empty").write_bytes(b"")
    (tmp_path / "text" / "sub" / "binary").write_bytes(b"ELF\0more")
    (tmp_path / "text" / ".hidden").write_bytes(b"hidden file")
    (tmp_path / "text" / ".git").mkdir()
    (tmp_path / "text" / ".git" / "config").write_bytes(b"hidden directory")
    (tmp_path / "text" / "link").symlink_to(tmp_path / "text" / "0000.txt")
    (tmp_path / "text" / "loop").symlink_to(tmp_path / "text")
    os.mkfifo(tmp_path / "text" / "fifo")
    result = prepare("-o", out, tmp_path / "text")
    text = tmp_path / "text"
    for line in (f"skipped 1 x binary, the first: {text}/sub/binary", f"skipped 1 x empty, the first: {text}/sub/empty",
                 f"skipped 2 x hidden, the first: {text}/.git",
                 f"skipped 2 x read already by another name, the first: {text}/link",
                 f"skipped 1 x neither a file nor a directory, the first: {text}/fifo"):
        assert f"  {line}\n" in result.stdout, result.stdout
    skipped = json.loads((out / "manifest.json").read_text())["skipped"]
    assert (skipped["binary"], skipped["empty"], skipped["hidden"]) == (1, 1, 2)
    assert sorted(documents(out, "train") + documents(out, "val")) == sorted(texts)


def test_every_byte_but_nul_passes(tmp_path, out):
    text = bytes(range(1, 256)) * 10
    (tmp_path / "bytes").write_bytes(text)
    prepare("-o", out, tmp_path / "bytes")
    assert b"".join(documents(out, "train") + documents(out, "val")) == text


def test_shards_of_an_earlier_run_are_kept_unless_forced(tmp_path, out):
    make_documents(tmp_path / "text", 100)
    make_documents(tmp_path / "other", 100, seed=1)
    prepare("-o", out, "--shard-tokens", "1K", tmp_path / "text", expect=2)  # below the minimum: nothing is made
    assert not out.exists()
    prepare("-o", out, "--shard-tokens", "1024", tmp_path / "text")
    before = {path.name: path.read_bytes() for path in out.iterdir()}
    (out / "notes.txt").write_text("mine")
    result = prepare("-o", out, tmp_path / "other", expect=2)
    count = sum(name.endswith(".bin") for name in before)
    assert f"{out}: has {count} shards of an earlier run" in result.stderr and "--force" in result.stderr
    assert all((out / name).read_bytes() == data for name, data in before.items())
    prepare("-o", out, "--force", tmp_path / "other")
    assert set(os.listdir(out)) == set(NEW_FILES) | {"notes.txt"}


def test_help_is_printed():
    result = prepare("--help")
    for option in ("--output", "--val-fraction", "--shard-tokens", "--force", "--help"):
        assert option in result.stdout


def test_two_runs_into_one_directory_do_not_mix(tmp_path, out):
    make_documents(tmp_path / "text", 400)
    arguments = [PREPARE, "-o", out, "--shard-tokens", "1024", tmp_path / "text"]
    first = subprocess.Popen(arguments, stdout=subprocess.DEVNULL)
    assert wait_for((out / ".tmp-prepare").exists, first)
    result = prepare(*arguments[1:], "--force", expect=2)
    assert "another data/prepare is writing there" in result.stderr
    assert first.wait() == 0
    assert not (out / ".tmp-prepare").exists()


def test_progress_is_shown_on_a_terminal(tmp_path, out):
    (tmp_path / "large.txt").write_bytes(b"some words of a long text\n" * 6_000_000)
    code, shown = on_a_terminal(PREPARE, "-o", out, tmp_path / "large.txt", stdout=subprocess.DEVNULL)
    assert code == 0
    assert "%" in shown and "eta" in shown
    assert "\n" not in shown


@pytest.mark.slow
def test_a_line_every_ten_seconds_where_there_is_no_terminal(tmp_path, out):
    """The run is stopped for ten seconds, so that it is long enough; again, if it was nearly through by then."""
    (tmp_path / "large.txt").write_bytes(b"some words of a long text\n" * 6_000_000)
    for attempt in range(5):
        directory = out / str(attempt)
        process = subprocess.Popen([PREPARE, "-o", directory, tmp_path / "large.txt"], stdout=subprocess.DEVNULL,
                                   stderr=subprocess.PIPE, text=True)
        wait_for(lambda: list((directory / ".tmp-prepare").glob("train*")), process)
        process.send_signal(signal.SIGSTOP)
        time.sleep(10.1)
        process.send_signal(signal.SIGCONT)
        said = process.communicate()[1]
        assert process.returncode == 0
        if said:
            break
    number = r"[0-9.]+"
    line = rf"prepare: {number}% \| {number} [KM]?i?B, {number}[KM]? tokens, {number} [KM]?i?B/s, eta [0-9hms.]+\n"
    assert re.fullmatch(f"({line})+", said), said


def test_the_manifest_tells_what_the_shards_are(tmp_path, out):
    texts = make_documents(tmp_path / "text", 200)
    (tmp_path / "text" / "empty").write_bytes(b"")
    prepare("-o", out, "--shard-tokens", "20K", tmp_path / "text")
    manifest = json.loads((out / "manifest.json").read_text())
    assert manifest["tokenizer"]["vocab"] == BYTE_VOCAB and manifest["tokenizer"]["eot"] == BYTE_EOT
    assert manifest["inputs"] == [{"path": str(tmp_path / "text"), "files": 201, "bytes": sum(map(len, texts))}]
    assert manifest["documents"] == 200 and manifest["skipped"]["empty"] == 1
    for side in ("train", "val"):
        parts, stated = documents(out, side), manifest[side]
        assert stated["documents"] == len(parts) and stated["bytes"] == sum(map(len, parts))
        assert stated["tokens"] == stated["documents"] + stated["bytes"]
        assert [shard["file"] for shard in stated["shards"]] == sorted(path.name for path in out.glob(f"{side}_*.bin"))
        for shard in stated["shards"]:
            path = out / shard["file"]
            assert shard["bytes"] == path.stat().st_size and shard["tokens"] == len(read_shard(path))
            assert re.fullmatch("[0-9a-f]{16}", shard["xxh3"])


def test_the_output_directory_is_not_its_own_input(tmp_path):
    make_documents(tmp_path / "text", 100)
    prepare("-o", tmp_path / "text", tmp_path / "text")
    first = {path.name: path.read_bytes() for path in (tmp_path / "text").glob("*.bin")}
    prepare("--force", "-o", tmp_path / "text", tmp_path / "text")
    assert first == {path.name: path.read_bytes() for path in (tmp_path / "text").glob("*.bin")}


def test_what_is_written_and_printed_is_utf8_whatever_file_names_are(tmp_path):
    name = os.fsencode(tmp_path) + b"/caf\xe9\x1b[2J"  # Latin-1, and a sequence that clears a terminal
    make_text(Path(os.fsdecode(name + b"/text")))
    made = call(PREPARE, "-o", os.fsdecode(name + b"/shards"), os.fsdecode(name + b"/text"), text=False, expect=0)
    assert "caf\\xE9\\x1B\\\\[2J/shards/train_*.bin" in made.stdout.decode()  # as a shell reads it
    json.loads(Path(os.fsdecode(name + b"/shards/manifest.json")).read_bytes().decode())
    run = Path(os.fsdecode(name + b"/run"))
    trained = call(TRAINER, *TINY, *QUIET, "-i", os.fsdecode(name + b"/shards/train_*.bin"), "-x", 1, "-o", run,
                   text=False, expect=0)
    assert "caf\\xE9\\x1B[2J/run/step_00000001" in trained.stdout.decode()
    for line in (run / "main.log").read_bytes().decode().splitlines():
        json.loads(line)
    refused = call(TRAINER, *TINY, "-i", os.fsdecode(name + b"/none_*.bin"), text=False, expect=EXIT_BAD_INPUT)
    assert "caf\\xE9\\x1B[2J/none_" in refused.stderr.decode()


def test_the_forms_of_options_and_words(out, tmp_path):
    (tmp_path / "-text").write_text("some text\n" * 50)
    for i, words in enumerate((["-o", "DIR", "--", "-text"], ["-oDIR", "./-text"], ["./-text", "--output=DIR"],
                               ["-output", "DIR", "./-text"], ["--outp", "DIR", "./-text"], ["-o", "DIR", "--", "-text"])):
        call(PREPARE, *[word.replace("DIR", f"{out}{i}") for word in words], cwd=tmp_path, expect=0)
        assert (tmp_path / f"{out}{i}" / "train_000000.bin").exists()
    said = call(PREPARE, "-o", "no", "./-text", "-o", f"{out}x", cwd=tmp_path, expect=0).stderr
    assert f"prepare: --output was given twice; the last counts, {out}x"[:70] in said and not (tmp_path / "no").exists()
