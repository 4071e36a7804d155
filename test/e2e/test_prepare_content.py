"""What a corpus holds besides plain text: links, other formats, JSON, spelled markers. Nothing is left out, and nothing is
trained on unasked, without a line that counts it and says what to do; what the line says to type works."""
import bz2
import gzip
import io
import json
import lzma
import os
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile

import pytest

from conftest import PREPARE, ROOT, TRAIN_TOKENIZER, WORDS, call
from test_prepare import documents, prepare

pytestmark = pytest.mark.sanitize

TEXT = "".join(f"line {i} of a text\n" for i in range(100)).encode()
OBJECTS = [{"id": i, "text": f"text number {i} of some"} for i in range(50)]
LINES = "".join(json.dumps(o) + "\n" for o in OBJECTS).encode()
ALL = ["--val-fraction", "0"]


def train_documents(out):
    return documents(out, "train")


def texts_of(objects):
    return [o["text"].encode() for o in objects]


# ---------------------------------------------------------------------------------------------------- links and names


def test_links_are_followed_once_under_their_own_names(tmp_path, out):
    """The cache of the Hugging Face Hub: every file is a link to one without a suffix."""
    blobs, snap = tmp_path / "blobs", tmp_path / "snap"
    blobs.mkdir(), snap.mkdir(), (tmp_path / "more").mkdir()
    (blobs / "aaaa").write_bytes(b"from a text")
    (blobs / "bbbb").write_bytes(b'{"text": "from a line"}\n')
    (tmp_path / "more" / "c.txt").write_bytes(b"from a directory")
    (snap / "a.txt").symlink_to("../blobs/aaaa")
    (snap / "b.jsonl").symlink_to("../blobs/bbbb")
    (snap / "d").symlink_to("../more")
    (snap / "again.txt").symlink_to("../blobs/aaaa")
    (snap / "inside").symlink_to("d")
    (snap / "loop").symlink_to(".")
    (snap / "nothing").symlink_to("gone")
    said = prepare("-o", out, *ALL, snap).stdout
    assert train_documents(out) == [b"from a text", b"from a line", b"from a directory"]
    assert f"note: 3 x symbolic link that was followed, the first: {snap}/a.txt\n" in said
    assert f"skipped 3 x read already by another name, the first: {snap}/again.txt\n" in said
    assert f"skipped 1 x link that leads nowhere, the first: {snap}/nothing\n" in said
    # From above: the files under their own names, and no link a second time.
    prepare("--force", "-o", out, *ALL, tmp_path / "blobs", tmp_path / "snap", tmp_path / "more")
    assert train_documents(out) == [b"from a text", b"from a line", b"from a directory"]


def test_a_link_to_the_directory_above_is_no_loop(tmp_path, out):
    corpus = tmp_path / "corpus"
    corpus.mkdir()
    (tmp_path / "beside.txt").write_bytes(b"beside")
    (corpus / "a.txt").write_bytes(b"inside")
    (corpus / "up").symlink_to(tmp_path)
    prepare("-o", out, *ALL, corpus)
    assert train_documents(out) == [b"inside", b"beside"]


def test_a_file_is_read_once_whatever_its_names(tmp_path, out):
    corpus = tmp_path / "corpus"
    corpus.mkdir()
    (corpus / "a.txt").write_bytes(b"first")
    os.link(corpus / "a.txt", corpus / "b.txt")
    (corpus / "c.txt").write_bytes(b"first")  # equal, but another file
    said = prepare("-o", out, *ALL, corpus).stdout
    assert train_documents(out) == [b"first", b"first"]
    assert f"skipped 1 x read already by another name, the first: {corpus}/b.txt\n" in said
    said = prepare("--force", "-o", out, *ALL, corpus / "c.txt", corpus, corpus, corpus / "a.txt").stdout
    assert train_documents(out) == [b"first", b"first"]
    assert "skipped 4 x read already by another name" in said


# -------------------------------------------------------------------------------------------------------- other kinds


def tar_of(mode):
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode=mode) as tar:
        info = tarfile.TarInfo("in.txt")
        info.size = len(TEXT)
        tar.addfile(info, io.BytesIO(TEXT))
    return out.getvalue()


def zip_of():
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        archive.writestr("in.txt", TEXT)
    return out.getvalue()


def packed_by(*command):
    def pack():
        if not shutil.which(command[0]):
            pytest.skip(f"needs {command[0]}")
        return subprocess.run(command, input=TEXT, capture_output=True, check=True).stdout
    return pack


UTF16 = TEXT.decode().encode("utf-16")
FOREIGN = {  # the file, its kind, and what its advice makes of it
    "a.txt.bz2": (lambda: bz2.compress(TEXT), "compressed by bzip2", [TEXT]),
    "a.jsonl.xz": (lambda: lzma.compress(LINES), "compressed by xz", texts_of(OBJECTS)),
    "a.txt.lz4": (packed_by("lz4", "-c"), "compressed by lz4", [TEXT]),
    "twice.txt.gz": (lambda: gzip.compress(gzip.compress(TEXT)), "compressed by gzip", [TEXT]),
    "utf16.txt": (lambda: UTF16, "UTF-16 text", [TEXT]),
    "utf32.txt": (lambda: TEXT.decode().encode("utf-32"), "UTF-32 text", [TEXT]),
    "utf16.txt.gz": (lambda: gzip.compress(UTF16), "UTF-16 text", [TEXT]),
    "a.tar": (lambda: tar_of("w"), "a tar archive", [TEXT]),
    "a.tar.gz": (lambda: tar_of("w:gz"), "a tar archive", [TEXT]),
    "a.zip": (zip_of, "a zip archive", [TEXT]),
    "array.json": (lambda: json.dumps(OBJECTS).encode(), "JSON that is not JSON Lines", texts_of(OBJECTS)),
    "array.txt": (lambda: json.dumps(OBJECTS, indent=1).encode(), "JSON that is not JSON Lines", texts_of(OBJECTS)),
    "array.jsonl": (lambda: json.dumps(OBJECTS).encode(), "JSON that is not JSON Lines", texts_of(OBJECTS)),
    "array.json.gz": (lambda: gzip.compress(json.dumps(OBJECTS).encode()), "JSON that is not JSON Lines",
                      texts_of(OBJECTS)),
    "long array.json": (lambda: json.dumps([{"text": "x" * 3000}] * 200).encode(), "JSON that is not JSON Lines",
                        [b"x" * 3000] * 200),
    "pretty.json": (lambda: json.dumps(OBJECTS[0], indent=4).encode(), "JSON that is not JSON Lines",
                    texts_of(OBJECTS[:1])),
    "objects.jsonl": (lambda: b"\n".join(json.dumps(o, indent=2).encode() for o in OBJECTS),
                      "JSON that is not JSON Lines", texts_of(OBJECTS)),
    "strings.json": (lambda: json.dumps(["a", "b"]).encode(), "JSON that is not JSON Lines", None),
    "config.json": (lambda: b'{"n_layer": 12}\n', "JSON without the field", None),
    "pointer.jsonl.gz": (lambda: b"version https://git-lfs.github.com/spec/v1\noid sha256:12\nsize 3\n",
                         "a Git LFS pointer", None),
    "paper.pdf": (lambda: b"%PDF-1.7\n" + TEXT, "a PDF document", None),
    "page.jsonl": (lambda: b"<!DOCTYPE html><html></html>\n", "a web page (HTML)", None),
}


@pytest.mark.parametrize("name", FOREIGN)
def test_what_is_no_text_is_named_with_a_step_that_works(tmp_path, out, name):
    make, kind, result = FOREIGN[name]
    corpus = tmp_path / "it's here"
    corpus.mkdir()
    (corpus / "README.md").write_bytes(b"about the corpus")
    (corpus / name).write_bytes(make())
    said = prepare("-o", out, *ALL, corpus).stdout
    assert train_documents(out) == [b"about the corpus"]
    assert f"  skipped 1 x {kind}, the first: {corpus}/{name}; " in said, said
    assert json.loads((out / "manifest.json").read_text())["skipped"][kind] == 1
    stderr = prepare("-o", tmp_path / "refused", corpus / name, expect=2).stderr
    assert stderr.startswith(f"prepare: {corpus}/{name}: is {kind}; "), stderr
    said = prepare("--skip-bad", "--force", "-o", out, *ALL, corpus / name, corpus / "README.md").stdout
    assert f"  skipped 1 x {kind}" in said
    if result is None:
        return
    advice = stderr.split(f": is {kind}; ", 1)[1].strip().split("; for lines: ")[-1]
    made, advised = tmp_path / "made", advice.split(", then give the directory NEW")
    command = re.sub(r"\bDIR\b", f"{made} --val-fraction 0", advised[0]) if len(advised) == 1 else \
        re.sub(r"\bNEW\b", str(tmp_path / "new"), advised[0])
    subprocess.run(["bash", "-euc", command], cwd=ROOT, check=True, capture_output=True)
    if len(advised) == 2:
        prepare("-o", made, *ALL, tmp_path / "new")
    assert train_documents(made) == result


def test_parquet_is_named_with_a_command_that_works(tmp_path, out):
    parquet = pytest.importorskip("pyarrow.parquet", reason="pyarrow is missing: scripts/install_deps.sh test")
    import pyarrow
    parquet.write_table(pyarrow.table({"text": ["one", "two"]}), tmp_path / "a.parquet")
    stderr = prepare("-o", out, tmp_path / "a.parquet", expect=2).stderr
    command = stderr.split("is Parquet; ", 1)[1].replace("DIR", f"{out} --val-fraction 0")
    path = f"{os.path.dirname(sys.executable)}:{os.environ['PATH']}"
    subprocess.run(["bash", "-euc", command], cwd=ROOT, check=True, capture_output=True, env=os.environ | {"PATH": path})
    assert train_documents(out) == [b"one", b"two"]


@pytest.mark.parametrize("name, packed", [("a.txt", bytes), ("a.json", bytes), ("a", gzip.compress),
                                          ("a.json.gz", gzip.compress), ("a.txt", gzip.compress)])
@pytest.mark.parametrize("lines", [LINES, LINES.replace(b"\n", b"\r\n"), b"\xef\xbb\xbf" + LINES, LINES[:-1], b"\n" + LINES])
def test_lines_of_json_are_read_as_lines_whatever_the_name(tmp_path, out, name, packed, lines):
    (tmp_path / name).write_bytes(packed(lines))
    said = prepare("-o", out, *ALL, tmp_path / name).stdout
    assert train_documents(out) == texts_of(OBJECTS)
    assert f"note: 1 x JSON Lines by its content, the first: {tmp_path}/{name}; --format txt trains on it as text" in said
    prepare("--force", "-o", out, *ALL, "--format", "txt", tmp_path / name)
    assert train_documents(out) == [lines.removeprefix(b"\xef\xbb\xbf")]


@pytest.mark.parametrize("text", [
    b"[1] Smith et al.\n", b"[1]\nfootnote\n", b"{% extends 'a' %}\n", b"{\\bf bold} text\n", b'{ "quoted" text }\n',
    b"{\n  int x;\n}\n", b'["quoted"] text\n', b"[link](there)\n", b"[ ] to do\n", b"{}\nempty\n", b"{'python': 1}\n", b"["])
def test_text_that_begins_like_json_is_text(tmp_path, out, text):
    (tmp_path / "a.txt").write_bytes(text)
    said = prepare("-o", out, *ALL, tmp_path / "a.txt").stdout
    assert train_documents(out) == [text] and "note" not in said


def test_a_bad_line_in_lines_of_another_name_is_reported_as_one(tmp_path, out):
    (tmp_path / "a.txt").write_bytes(LINES + b'{"text": \n')
    assert "a.txt: line 51: not valid JSON" in prepare("-o", out, tmp_path / "a.txt", expect=2).stderr


def test_a_zero_byte_in_a_long_first_line_is_reported_with_its_line(tmp_path, out):
    (tmp_path / "a").write_bytes(b'{"text": "a"}\0' + b"x" * 8_000_000 + b"\n" + LINES)
    assert "line 1: not valid JSON: something after the object" in prepare("-o", out, tmp_path / "a", expect=2).stderr


def test_packed_files_are_known_by_their_first_bytes(tmp_path, out):
    (tmp_path / "a.txt").write_bytes(gzip.compress(TEXT))
    prepare("-o", out, *ALL, tmp_path / "a.txt")
    assert train_documents(out) == [TEXT]
    (tmp_path / "b.txt.zst").write_bytes(gzip.compress(TEXT))
    prepare("--force", "-o", out, *ALL, tmp_path / "b.txt.zst")
    assert train_documents(out) == [TEXT]


@pytest.mark.parametrize("size", [10, 100_000, 700_000])
@pytest.mark.parametrize("packed", [bytes, gzip.compress])
def test_a_byte_order_mark_is_no_text_and_ends_of_lines_stay(tmp_path, out, size, packed):
    text = b"a line that ends in Windows\r\n" * (size // 29 + 1)
    (tmp_path / "a.txt").write_bytes(packed(b"\xef\xbb\xbf" + text))
    prepare("-o", out, tmp_path / "a.txt")
    assert b"".join(documents(out, "train") + documents(out, "val")) == text


def test_bytes_that_are_not_utf_8_are_counted_and_kept(tmp_path, out):
    (tmp_path / "a.txt").write_bytes("déjà vu €\n".encode() + "déjà vu\n".encode("latin-1"))
    said = prepare("-o", out, *ALL, tmp_path / "a.txt").stdout
    assert f"note: 2 x byte that is not UTF-8, the first: {tmp_path}/a.txt; they stay as they are; if it is Latin-1: " \
        f"iconv -f LATIN1 -t UTF-8 {tmp_path}/a.txt | data/prepare --format txt -o DIR -\n" in said


# ------------------------------------------------------------------------------------------------------------- markers

END = b"<|endoftext|>"


def stories(count, size=400, end=b"\n" + END + b"\n"):
    words = [word.encode() for word in WORDS]
    texts = [b" ".join(words[(i * 7 + k * k) % len(words)] for k in range(1 + (i * 37) % (size // 3))) for i in range(count)]
    return texts, end.join(texts)


@pytest.mark.parametrize("packed", [bytes, gzip.compress])
def test_markers_that_become_text_are_noted(tmp_path, out, packed):
    text = b"".join((END if i % 7 else b"</s>") + b" abc" for i in range(60_000))
    (tmp_path / "a.txt").write_bytes(packed(text))
    said = prepare("-o", out, tmp_path / "a.txt").stdout
    where = f"as text, the first: {tmp_path}/a.txt; --split-at"
    for mark in (END, b"</s>"):
        (found,) = re.findall(f"note: (\\d+) x {re.escape(mark.decode())} {where} '{re.escape(mark.decode())}' ends documents there\n", said)
        assert 0 <= text.count(mark) - int(found) <= len(text) // (200 << 10)  # those that the end of a block cuts


@pytest.mark.parametrize("end", [b"\n" + END + b"\n", END, b"\r\n" + END + b"\r\n", b"\n" + END + b"\n\n" + END + b"\n"])
@pytest.mark.parametrize("threads", [1, 3])
def test_documents_end_at_the_marker_exactly(tmp_path, out, end, threads):
    texts, text = stories(3000, end=end)
    (tmp_path / "a.txt").write_bytes(END + b"\n" + text + end)
    (tmp_path / "b.txt.gz").write_bytes(gzip.compress(text))
    said = prepare("-o", out, *ALL, "--threads", threads, "--split-at", END.decode(), tmp_path / "a.txt",
                   tmp_path / "b.txt.gz").stdout
    line_end = {END: b"", b"\r\n" + END + b"\r\n": b"\r\n"}.get(end, b"\n")
    assert train_documents(out) == [t + line_end for t in texts] + [t + line_end for t in texts[:-1]] + texts[-1:]
    assert "note" not in said and "skipped" not in said
    assert json.loads((out / "manifest.json").read_text())["options"]["split_at"] == END.decode()


def test_long_documents_between_markers_are_cut_like_files(tmp_path, out):
    texts = [b"line of text\n" * n for n in (30_000, 2, 100_000)]
    (tmp_path / "a.txt").write_bytes(END.join(texts))
    prepare("-o", out, "--split-at", END.decode(), tmp_path / "a.txt")
    for i, text in enumerate(texts):
        (tmp_path / f"{i}.txt").write_bytes(text)
    prepare("-o", tmp_path / "apart", *(tmp_path / f"{i}.txt" for i in range(3)))
    for side in ("train", "val"):
        assert (out / f"{side}_000000.bin").read_bytes() == (tmp_path / "apart" / f"{side}_000000.bin").read_bytes()


def test_a_document_of_more_than_32_MiB_between_markers_is_bad_input(tmp_path, out):
    with open(tmp_path / "a.txt", "wb") as f:
        f.write(b"first" + END + b"word " * 7_000_000 + END[:5] + END + b"last")
    stderr = prepare("-o", out, "--split-at", END.decode(), tmp_path / "a.txt", expect=2).stderr
    assert "a.txt: a document before the next --split-at is longer than 32 MiB" in stderr
    prepare("-o", out, *ALL, "--skip-bad", "--split-at", END.decode(), tmp_path / "a.txt")
    assert train_documents(out) == [b"first", b"last"]


def test_markers_in_the_fields_of_lines(tmp_path, out):
    (tmp_path / "a.jsonl").write_text(json.dumps({"text": "one\n<|endoftext|>\ntwo<|endoftext|>"}) + "\n"
                                      + '{"text": "three\\u003c|endoftext|>four"}\n')
    said = prepare("-o", out, *ALL, tmp_path / "a.jsonl").stdout
    assert "note: 3 x <|endoftext|> as text" in said
    prepare("--force", "-o", out, *ALL, "--split-at", END.decode(), tmp_path / "a.jsonl")
    assert train_documents(out) == [b"one\n", b"two", b"three", b"four"]


def test_a_marker_is_no_part_of_a_vocabulary(tmp_path):
    texts, text = stories(300)
    (tmp_path / "a.txt").write_bytes(text)
    (tmp_path / "b.jsonl").write_text("".join(json.dumps({"text": t.decode() + "\n" * (i < 299)}) + "\n"
                                              for i, t in enumerate(texts)))
    call(TRAIN_TOKENIZER, "--vocab-size", 300, "-o", tmp_path / "a.json", "--split-at", END.decode(), tmp_path / "a.txt")
    call(TRAIN_TOKENIZER, "--vocab-size", 300, "-o", tmp_path / "b.json", tmp_path / "b.jsonl")
    assert (tmp_path / "a.json").read_bytes() == (tmp_path / "b.json").read_bytes()
    said = call(TRAIN_TOKENIZER, "--vocab-size", 300, "-o", tmp_path / "c.json", tmp_path / "a.txt").stdout
    assert "note: 299 x <|endoftext|> as text" in said


@pytest.mark.parametrize("mark", ["", "x" * 256])
def test_a_marker_has_1_to_255_bytes(tmp_path, mark):
    (tmp_path / "a.txt").write_bytes(TEXT)
    assert "--split-at: expected a text of 1 to 255 bytes" in \
        call(PREPARE, "-o", tmp_path / "o", "--split-at", mark, tmp_path / "a.txt", expect=2).stderr
