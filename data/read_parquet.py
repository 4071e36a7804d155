#!/usr/bin/env python3
"""Writes the documents of Parquet files as JSON lines, for data/prepare:

  data/read_parquet.py DIR | data/prepare --format jsonl -o SHARDS -

One object a row, {"text": ...}; rows whose text is null are left out and counted. Reads one row group at a time, so
memory does not grow with the file. Directories stand for the *.parquet files in them and below, in the order of their
names; other files are counted, and each file is read once. Needs pyarrow; if this Python has none, the one of .venv
(scripts/install_deps.sh data) is used.
"""
import argparse
import json
import os
import signal
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.append(str(ROOT / "scripts"))
import tool  # noqa: E402


def import_pyarrow():
    try:
        import pyarrow.parquet
        return pyarrow
    except ImportError:
        other = ROOT / ".venv" / "bin" / "python"
        if other.exists() and Path(sys.prefix).resolve() != (ROOT / ".venv").resolve():
            os.execv(other, [str(other), __file__] + sys.argv[1:])
        tool.fail("pyarrow is missing: scripts/install_deps.sh data installs it into .venv")


def find_files(inputs):
    """The inputs, and the *.parquet files below those that are directories. Follows links; reads each file once."""
    files, others, seen = [], [], set()

    def is_new(path):
        real = os.path.realpath(path)
        return real not in seen and not seen.add(real)

    def stop(error):
        raise error

    for name in inputs:
        is_directory = os.path.isdir(name)
        walk = os.walk(name, onerror=stop, followlinks=True) if is_directory and is_new(name) else ()
        inside = [] if is_directory else [Path(name)]
        for folder, folders, names in walk:
            folders[:] = [f for f in folders if not f.startswith(".") and is_new(os.path.join(folder, f))]
            inside += [Path(folder) / n for n in names if not n.startswith(".")]
        found = []
        for path in sorted(inside):
            (found if path == Path(name) or path.suffix == ".parquet" else others).append(path)
        if not found and not files:
            tool.fail(f"{name}: no *.parquet files in this directory")
        files += [path for path in found if is_new(path)]
    for path in files:
        if path.exists() and not path.is_file():  # opening a pipe would wait for its writer
            tool.fail(f"{path}: not a plain file")
    if others:
        print(f"read_parquet: skipped {len(others)} files that are not *.parquet, the first: {others[0]}",
              file=sys.stderr)
    return files


def one_line(error):
    return " ".join(str(error).split()) or type(error).__name__


def texts_of(path, column, pyarrow):
    """The texts of a file, a row group at a time."""
    try:
        file = pyarrow.parquet.ParquetFile(path)
        schema = file.schema_arrow
    except Exception as error:  # for damaged files pyarrow raises whatever its parts raise
        tool.fail(f"{path}: cannot be read as Parquet: {one_line(error)}")
    if schema.names.count(column) != 1:
        if column in schema.names:
            tool.fail(f"{path}: has several columns {column}")
        tool.fail(f"{path}: has no column {column}, only: {', '.join(schema.names)} (--column)")
    kind = schema.field(column).type
    if not (pyarrow.types.is_string(kind) or pyarrow.types.is_large_string(kind)):
        tool.fail(f"{path}: column {column} is {kind}, expected text (--column)")
    for group in range(file.num_row_groups):
        try:
            # to_pylist checks that the text is UTF-8, which Parquet only promises.
            texts = file.read_row_group(group, columns=[column], use_threads=False).column(0).to_pylist()
        except Exception as error:
            tool.fail(f"{path}: row group {group} of {file.num_row_groups} is damaged: {one_line(error)}")
        yield from texts


def read_all(arguments):
    pyarrow = import_pyarrow()
    documents = nulls = bad_files = 0
    for path in find_files(arguments.inputs):
        try:
            for text in texts_of(path, arguments.column, pyarrow):
                if text is None:
                    nulls += 1
                    continue
                sys.stdout.write(json.dumps({"text": text}) + "\n")
                documents += 1
        except tool.Problem as problem:
            if not arguments.skip_bad:
                raise
            bad_files += 1
            print(f"read_parquet: {problem}; the remainder is skipped", file=sys.stderr)
    sys.stdout.flush()
    if nulls or bad_files:
        print(f"read_parquet: {documents} documents; skipped {nulls} rows without text and (parts of) {bad_files} "
              "damaged files", file=sys.stderr)


def interrupted(*_):
    os.write(sys.stderr.fileno(), b"read_parquet: interrupted\n")
    os._exit(130)


def main():
    if signal.getsignal(signal.SIGINT) == signal.default_int_handler:  # an exception could come in the midst of another
        signal.signal(signal.SIGINT, interrupted)
    parser = argparse.ArgumentParser(prog="data/read_parquet.py", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("inputs", nargs="+", metavar="FILE|DIR")
    parser.add_argument("--column", default="text", metavar="NAME", help="the column of the texts (default text)")
    parser.add_argument("--skip-bad", action="store_true", help="continue with the next file after a damaged one")
    read_all(parser.parse_args())


if __name__ == "__main__":
    tool.run(main)
