"""data/prepare on JSON Lines and on compressed inputs: the same documents as Python reads, and bad ones named."""
import gzip
import json
import random
import subprocess

import pytest
import zstandard

from conftest import PREPARE
from test_prepare import documents, prepare

pytestmark = pytest.mark.sanitize


def all_documents(out):
    return sorted(documents(out, "train") + documents(out, "val"))


def make_texts(count, seed=0):
    choose = random.Random(seed)
    alphabet = "abc xyz\n\t\"\\/\x7f\x00\x1f\u00e9\u20ac\u4e2d\U0001F600 "
    return ["".join(choose.choice(alphabet) for _ in range(choose.randrange(1, 700))) for _ in range(count)]


def to_lines(texts, seed=0, field="text"):
    """The same objects as json.dumps writes them, in several styles."""
    choose = random.Random(seed)
    lines = []
    for i, text in enumerate(texts):
        item = {"id": i, "meta": {"score": float("nan"), field: "inner", "list": [1, None, {}]}, field: text}
        if choose.random() < 0.5:
            item = dict(reversed(item.items()))
        style = {"ensure_ascii": choose.random() < 0.5, "separators": choose.choice([(",", ":"), (" , ", " : ")])}
        lines.append(json.dumps(item, **style))
    return lines


def compress(path, data, packing, parts=1):
    """Writes data, in so many members or frames."""
    step = -(-len(data) // parts)
    pieces = [data[i:i + step] for i in range(0, len(data), step)]
    pack = {"": bytes, ".gz": gzip.compress, ".zst": zstandard.ZstdCompressor().compress}[packing]
    path = path.with_name(path.name + packing)
    path.write_bytes(b"".join(map(pack, pieces)))
    return path


@pytest.mark.parametrize("packing, parts", [("", 1), (".gz", 1), (".gz", 5), (".zst", 1), (".zst", 5)])
def test_lines_become_the_documents_that_python_reads(tmp_path, out, packing, parts):
    texts = make_texts(300)
    data = "\n".join(to_lines(texts)).encode() + b"\n\n  \r\n"
    path = compress(tmp_path / "corpus.jsonl", data, packing, parts)
    result = prepare("-o", out, path)
    assert all_documents(out) == sorted(text.encode() for text in texts)
    assert f"300 documents, {sum(len(t.encode()) for t in texts)} bytes" in result.stdout


def python_text(line):
    """What Python's json says of a line: the text, or None for a line that is not to be taken."""
    try:
        item = json.loads(line.decode())
        text = item["text"]
        return text.encode() if isinstance(text, str) else None  # encode refuses half surrogate pairs
    except (ValueError, KeyError, TypeError, RecursionError):
        return None


def test_damaged_lines_are_taken_or_skipped_as_python_does(tmp_path, out):
    """Lines with bytes changed, removed, inserted: thousands of near misses of the grammar."""
    choose = random.Random(7)
    lines = [line.encode() for line in to_lines(make_texts(400, seed=1), seed=1)]
    lines += [b'{"text": "%s"}' % escape for escape in
              [b"\\ud83d\\ude00", b"\\ud83d", b"\\ude00", b"\\ud83d\\u0041", b"\\u0000", b"\\U0041", b"\\u00g0"]] * 20
    damaged = []
    for line in lines * 8:
        line = bytearray(line)
        for _ in range(choose.choice([0, 1, 1, 2])):
            at = choose.randrange(len(line))
            kind = choose.randrange(4)
            if kind == 0:
                line[at] = choose.choice(b'"\\{}[],:0123456789eE+-. \x00\x1f\x80\xc3\xed\xf0ntfu')
            elif kind == 1:
                del line[at]
            elif kind == 2:
                line[at:at] = choose.choice([b'"', b"\\", b"\\u", b"\\ud800", b"}", b"{", b"[1]", b",", b"null", b"-"])
            else:
                line = line[:at + 1]
            if not line:
                line = bytearray(b"x")
        damaged.append(bytes(line).replace(b"\n", b" "))
    (tmp_path / "damaged.jsonl").write_bytes(b"\n".join(damaged) + b"\n")
    expected = [python_text(line) for line in damaged]
    taken = [text for text in expected if text]
    refused = sum(text is None and bool(line.strip(b" \t\r")) for text, line in zip(expected, damaged))
    assert len(taken) > 500 and refused > 500
    prepare("-o", out, "--skip-bad", tmp_path / "damaged.jsonl")
    assert all_documents(out) == sorted(taken)
    skipped = json.loads((out / "manifest.json").read_text())["skipped"]
    assert sum(skipped.values()) - skipped["empty"] == refused


def test_another_field_and_another_name(tmp_path, out):
    texts = make_texts(100)
    (tmp_path / "corpus.json").write_text("\n".join(to_lines(texts, field="content")))
    prepare("-o", out, "--format", "jsonl", "--field", "content", tmp_path / "corpus.json")
    assert all_documents(out) == sorted(text.encode() for text in texts)


def test_directories_mix_all_forms(tmp_path, out):
    texts = make_texts(60)
    docs = tmp_path / "docs"
    docs.mkdir()
    compress(docs / "a.jsonl", "\n".join(to_lines(texts[:20])).encode(), ".gz")
    (docs / "b.ndjson").write_text("\n".join(to_lines(texts[20:40])))
    plain = [text.replace("\0", "") + "." for text in texts[40:]]
    for i, text in enumerate(plain):
        compress(docs / f"c{i}.txt", text.encode(), ["", ".gz", ".zst"][i % 3])
    prepare("-o", out, docs)
    assert all_documents(out) == sorted(text.encode() for text in texts[:40] + plain)


@pytest.mark.parametrize("packing", [".gz", ".zst"])
def test_a_long_compressed_text_is_cut_as_the_plain_one(tmp_path, out, packing):
    data = "".join(f"line {i} of a long text\n" for i in range(40000)).encode()
    (tmp_path / "plain.txt").write_bytes(data)
    prepare("-o", out, tmp_path / "plain.txt")
    prepare("-o", tmp_path / "packed", compress(tmp_path / "packed.txt", data, packing, parts=3))
    for side in ("train", "val"):
        assert documents(out, side) == documents(tmp_path / "packed", side)


@pytest.mark.parametrize("packing", ["", ".gz", ".zst"])
@pytest.mark.parametrize("form", ["txt", "jsonl"])
def test_standard_input_gives_what_the_file_gives(tmp_path, out, form, packing):
    text = "".join(f"line {i} of a text\n" for i in range(20000))
    data = text.encode() if form == "txt" else "\n".join(to_lines(make_texts(200))).encode()
    path = compress(tmp_path / f"corpus.{form}", data, packing)
    prepare("-o", out, path)
    subprocess.run([PREPARE, "-o", tmp_path / "piped", "--format", form, "-"], input=path.read_bytes(), check=True,
                   capture_output=True, timeout=300)
    for name in ("train_000000.bin", "val_000000.bin"):
        assert (out / name).read_bytes() == (tmp_path / "piped" / name).read_bytes()


def test_more_standard_input_than_is_kept_is_read_on(out):
    """64 MiB are kept for a second pass; what comes behind goes straight through."""
    numbered = b"".join(json.dumps({"text": f"{i} " * 2000}).encode() + b"\n" for i in range(8000))
    subprocess.run([PREPARE, "-o", out, "--format", "jsonl", "-"], input=numbered, check=True,
                   capture_output=True, timeout=300)
    assert len(numbered) > 64 << 20
    assert json.loads((out / "manifest.json").read_text())["documents"] == 8000


TOO_LONG = "a line of 33 MiB"  # made in the test: pytest shows parameters


@pytest.mark.parametrize("line, words, kind", [
    ('{"text": "cut', ["not valid JSON", "closing quote"], "not_json"),
    ('{"title": "no text"}', ['has no field "text"', "--field"], "no_field"),
    ('{"text": 17}', ['field "text" is not a string'], "no_string"),
    ('{"text": null}', ['field "text" is not a string'], "no_string"),
    ('["text"]', ["expected an object"], "not_json"),
    ('{"text": "\\ud800"}', ["half of a surrogate pair"], "half_surrogate"),
    (b'{"text": "\xff"}', ["0xFF, is not UTF-8"], "not_utf8"),
    (TOO_LONG, ["longer than 32 MiB"], "too_long"),
])
@pytest.mark.parametrize("packing", ["", ".gz"])
def test_a_bad_line_is_named_and_can_be_skipped(tmp_path, out, line, words, kind, packing):
    line = b'{"text": "%s"}' % (b"a" * (33 << 20)) if line is TOO_LONG else line
    line = line if isinstance(line, bytes) else line.encode()
    good = [f'{{"text": "line number {i} is good"}}'.encode() for i in range(3000)]
    lines = good[:2500] + [line] + good[2500:2700] + [line] + good[2700:]
    path = compress(tmp_path / "corpus.jsonl", b"\n".join(lines), packing)
    stderr = prepare("-o", out, path, expect=2).stderr
    assert f"{path}: line 2501: " in stderr and "--skip-bad" in stderr
    assert all(word in stderr for word in words), stderr
    assert not out.exists()
    result = prepare("-o", out, "--skip-bad", path)
    assert "skipped 2 x " in result.stdout and f"the first: {path}: line 2501: " in result.stdout
    manifest = json.loads((out / "manifest.json").read_text())
    assert manifest["skipped"][kind] == 2 and manifest["documents"] == 3000
    assert len(all_documents(out)) == 3000


def damage(data, kind):
    """Bytes of a compressed file, cut or broken in the middle."""
    middle = len(data) // 2
    return data[:middle] if kind == "cut" else data[:middle] + bytes(64) + data[middle + 64:]


@pytest.mark.parametrize("packing", [".gz", ".zst"])
@pytest.mark.parametrize("kind", ["cut", "broken"])
def test_a_damaged_compressed_file_is_named_and_can_be_skipped_from_the_damage_on(tmp_path, out, packing, kind):
    choose = random.Random(3)
    texts = ["%d %x" % (i, choose.getrandbits(400)) for i in range(20000)]
    path = compress(tmp_path / "corpus.jsonl", "\n".join(to_lines(texts)).encode(), packing)
    path.write_bytes(damage(path.read_bytes(), kind))
    (tmp_path / "whole.jsonl").write_text("\n".join(to_lines(make_texts(50))))
    stderr = prepare("-o", out, path, tmp_path / "whole.jsonl", expect=2).stderr
    assert stderr.startswith(f"prepare: {path}: ")
    assert "damaged: " in stderr or "not valid JSON" in stderr  # what comes out before zlib notices
    assert not out.exists()
    result = prepare("-o", out, "--skip-bad", path, tmp_path / "whole.jsonl")
    assert "skipped 1 x compressed file damaged, the first: " + str(path) in result.stdout
    found = {document.decode(errors="replace") for document in all_documents(out)}
    before = [text for text in texts if text in found]
    assert 1000 < len(before) < len(texts) and before == texts[:len(before)]  # from the damage on
    assert len(found) == len(before) + len(set(make_texts(50)))


@pytest.mark.parametrize("packing", [".gz", ".zst"])
@pytest.mark.parametrize("lines", [100, 50000])  # a document inside a block, and one that is measured first
def test_a_damaged_compressed_text_keeps_what_stands_before_the_damage(tmp_path, out, packing, lines):
    choose = random.Random(3)
    text = b"".join(b"%x\n" % choose.getrandbits(400) for _ in range(lines))
    path = compress(tmp_path / "one.txt", text, packing, parts=10)
    path.write_bytes(damage(path.read_bytes(), "cut"))
    stderr = prepare("-o", out, path, expect=2).stderr
    assert f"{path}: damaged: truncated near byte" in stderr
    prepare("-o", out, "--skip-bad", path)
    (train,), (val,) = documents(out, "train"), documents(out, "val")
    kept = train + val
    assert text.startswith(kept) and 0.3 < len(kept) / len(text) < 0.6


def test_zeros_behind_a_gzip_file_are_padding_and_text_is_damage(tmp_path, out):
    text = b"some text\n" * 100
    (tmp_path / "a.txt.gz").write_bytes(gzip.compress(text) + bytes(1000))
    prepare("-o", out, tmp_path / "a.txt.gz")
    assert b"".join(documents(out, "train") + documents(out, "val")) == text
    (tmp_path / "a.txt.gz").write_bytes(gzip.compress(text) + b"more")
    assert "incorrect header check" in prepare("-o", out, "--force", tmp_path / "a.txt.gz", expect=2).stderr
