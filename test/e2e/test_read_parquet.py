"""data/read_parquet.py: the texts of Parquet files as JSON lines. pyarrow writes the files, in the Python of .venv."""
import json
import os
import random
import signal
import subprocess
import sys

import pytest
from conftest import ROOT, call

READ_PARQUET = ROOT / "data" / "read_parquet.py"
VENV = ROOT / ".venv" / "bin" / "python"
needs_pyarrow = pytest.mark.skipif(not VENV.exists() or call(VENV, "-c", "import pyarrow.parquet").returncode != 0,
                                   reason="pyarrow is missing: scripts/install_deps.sh data installs it")


def write_parquet(path, texts, column="text", group=10):
    """By pyarrow, in the Python that has it; a column of that name twice where it is "twice"."""
    code = ("import sys, json; import pyarrow as pa, pyarrow.parquet as pq; path, column, group = json.loads(sys.argv[1]); "
            "t = json.load(sys.stdin); pq.write_table(pa.table([list(range(len(t))), t], "
            "['text', 'text'] if column == 'twice' else ['id', column]), path, row_group_size=group)")
    call(VENV, "-c", code, json.dumps([str(path), column, group]), input=json.dumps(texts), expect=0)


def read_parquet(*arguments, expect=0):
    result = call(READ_PARQUET, *arguments, expect=expect)
    assert "Traceback" not in result.stderr
    return result


@needs_pyarrow
def test_every_row_becomes_a_line_in_the_order_of_files_and_rows(tmp_path):
    texts = ["plain", "two\nlines", "\u00e9 \U0001f600 \u2028", "", None, '"quoted" \\'] * 7
    for name, part in (("b", texts[20:]), ("a", texts[:20])):
        write_parquet(tmp_path / f"{name}.parquet", part)
    result = read_parquet(tmp_path)
    assert [json.loads(line) for line in result.stdout.splitlines()] == [{"text": t} for t in texts if t is not None]
    assert "35 documents; skipped 7 rows without text" in result.stderr
    write_parquet(tmp_path / "c.txt", ["x"], column="content")
    assert read_parquet(tmp_path / "c.txt", "--column", "content").stdout == '{"text": "x"}\n'


@needs_pyarrow
def test_a_directory_is_read_with_all_below_it_and_other_files_are_counted(tmp_path):
    corpus = tmp_path / "corpus"
    (corpus / "data").mkdir(parents=True)
    write_parquet(tmp_path / "blob", ["linked"])
    write_parquet(corpus / "b.parquet", ["b"])
    write_parquet(corpus / "data" / "a.parquet", ["a"])
    (corpus / "README.md").write_text("about")
    (corpus / "link.parquet").symlink_to("../blob")
    (corpus / "up").symlink_to(".")
    (corpus / "round").symlink_to("round")
    result = read_parquet(corpus, corpus / "b.parquet")
    assert [json.loads(line)["text"] for line in result.stdout.splitlines()] == ["b", "a", "linked"]
    assert f"read_parquet: skipped 2 files that are not *.parquet, the first: {corpus}/README.md\n" in result.stderr


@needs_pyarrow
def test_a_wrong_column_names_those_that_there_are(tmp_path):
    write_parquet(tmp_path / "a.parquet", ["x"], column="content")
    assert "has no column text, only: id, content" in read_parquet(tmp_path, expect=2).stderr
    assert "column id is int64, expected text" in read_parquet(tmp_path, "--column", "id", expect=2).stderr
    (tmp_path / "empty").mkdir()
    assert "no *.parquet files" in read_parquet(tmp_path / "empty", expect=2).stderr
    assert "missing.parquet: cannot be read" in read_parquet(tmp_path / "missing.parquet", expect=2).stderr


@needs_pyarrow
def test_a_damaged_file_is_named_and_skipped_when_that_is_wanted(tmp_path):
    texts = [f"{i} " + "text " * 50 for i in range(100)]
    write_parquet(tmp_path / "b.parquet", texts)
    whole = (tmp_path / "b.parquet").read_bytes()
    (tmp_path / "c.parquet").write_bytes(whole)
    damaged = bytearray(whole)
    for at in range(len(whole) // 2, len(whole) // 2 + 300):
        damaged[at] ^= 0x5A
    for data, message in ((bytes(damaged), "row group"), (whole[:-100], "cannot be read as Parquet"), (b"", "cannot")):
        (tmp_path / "b.parquet").write_bytes(data)
        result = read_parquet(tmp_path, expect=2)
        assert f"{tmp_path}/b.parquet: " in result.stderr and message in result.stderr
        assert result.stderr.count("\n") == 1
        result = read_parquet(tmp_path, "--skip-bad")
        assert "1 damaged files" in result.stderr
        assert [json.loads(line)["text"] for line in result.stdout.splitlines()][-100:] == texts


@needs_pyarrow
def test_what_is_no_file_and_what_no_reader_expects_are_one_line(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", "/dev/zero"):
        assert read_parquet(path, expect=2).stderr == f"read_parquet: {path}: not a plain file\n"
    write_parquet(tmp_path / "twice.parquet", ["a"], column="twice")
    assert "several columns text" in read_parquet(tmp_path / "twice.parquet", expect=2).stderr


@needs_pyarrow
@pytest.mark.parametrize("signals, said, codes", [([signal.SIGINT], (b"read_parquet: interrupted\n", b""), (130, 1)),
                                                  ([], (b"",), (128 + signal.SIGPIPE,))], ids=["an interrupt", "a reader that ends early"])
def test_a_reader_survives(signals, said, codes, tmp_path):
    write_parquet(tmp_path / "a.parquet", ["text " * 1000] * 2000)
    process = subprocess.Popen([READ_PARQUET, tmp_path], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    process.stdout.readline()  # it writes, and waits at the full pipe
    for number in signals:
        process.send_signal(number)
    process.stdout.close()
    assert process.stderr.read() in said and process.wait() in codes


@needs_pyarrow
def test_memory_does_not_grow_with_the_file(tmp_path):
    """By the counts of Python and of Arrow, of all that was theirs at a time: a row group as it is read, and as texts."""
    count = ("import os, runpy, sys, tracemalloc; sys.argv = sys.argv[1:]; import pyarrow; tracemalloc.start()\n"
             "try: runpy.run_path(sys.argv[0], run_name='__main__')\n"
             "finally: print(tracemalloc.get_traced_memory()[1] + pyarrow.default_memory_pool().max_memory(), "
             "file=sys.stderr)")
    peaks = []
    for rows in (100, 4000):  # 1 and 40 MB of text that does not compress, in row groups of 1 MB
        choose = random.Random(rows)
        write_parquet(tmp_path / "a.parquet", [choose.randbytes(5000).hex() for _ in range(rows)], group=100)
        peaks.append(int(call(VENV, "-c", count, READ_PARQUET, tmp_path, expect=0).stderr))
    assert 1_000_000 < peaks[0] and peaks[1] < 2 * peaks[0], peaks


def test_without_pyarrow_the_command_that_installs_it_is_named(tmp_path):
    (tmp_path / "data").mkdir()
    script = tmp_path / "data" / "read_parquet.py"  # where there is no .venv beside data/
    script.write_bytes(READ_PARQUET.read_bytes())
    (tmp_path / "scripts").mkdir()
    (tmp_path / "scripts" / "tool.py").write_bytes((ROOT / "scripts" / "tool.py").read_bytes())
    (tmp_path / "pyarrow.py").write_text("raise ImportError('none')\n")
    result = call(sys.executable, script, "x", expect=2, env={**os.environ, "PYTHONPATH": str(tmp_path)})
    assert result.stderr == "read_parquet: pyarrow is missing: scripts/install_deps.sh data installs it into .venv\n"
