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


class BadFile(tool.Problem):
    pass


def import_pyarrow():
    try:
        import pyarrow.parquet
        return pyarrow
    except ImportError:
        other = ROOT / ".venv" / "bin" / "python"
        if other.exists() and Path(sys.prefix).resolve() != (ROOT / ".venv").resolve():
            os.execv(other, [str(other), __file__] + sys.argv[1:])
        raise BadFile("pyarrow is missing: scripts/install_deps.sh data installs it into .venv") from None


def files_below(path, seen):
    """The files of a directory without hidden names, links followed, those in `seen` left out; or the file itself."""
    real = os.path.realpath(path)
    if real in seen:
        return
    seen.add(real)
    if not path.is_dir():
        yield path
        return
    for inside in sorted(path.iterdir()):
        if not inside.name.startswith("."):
            yield from files_below(inside, seen)


def find_files(inputs):
    files, others, seen = [], [], set()
    for name in map(Path, inputs):
        try:
            all_files = list(files_below(name, seen))
        except OSError as error:
            raise BadFile(f"{error.filename}: {error.strerror}") from None
        found = [path for path in all_files if path == name or path.suffix == ".parquet"]
        others += [path for path in all_files if path != name and path.suffix != ".parquet"]
        if not found and name.is_dir() and not files:
            raise BadFile(f"{name}: no *.parquet files in this directory")
        for path in found:
            if path.exists() and not path.is_file():  # opening a pipe would wait for its writer
                raise BadFile(f"{path}: not a plain file")
        files += found
    if others:
        print(f"read_parquet: skipped {len(others)} files that are not *.parquet, the first: {others[0]}",
              file=sys.stderr)
    return files


def one_line(error):
    return " ".join(str(error).split()) or type(error).__name__


class Reader:
    """Reads the files and counts their rows and problems."""

    def __init__(self, pyarrow, column, out):
        self.pyarrow, self.column, self.out = pyarrow, column, out
        self.documents = self.nulls = self.bad_files = 0

    def open(self, path):
        try:
            file = self.pyarrow.parquet.ParquetFile(path)
            schema = file.schema_arrow
        except Exception as error:  # for damaged files pyarrow raises whatever its parts raise
            raise BadFile(f"{path}: cannot be read as Parquet: {one_line(error)}") from None
        if self.column not in schema.names:
            raise BadFile(f"{path}: has no column {self.column}, only: {', '.join(schema.names)} (--column)")
        if schema.names.count(self.column) > 1:
            raise BadFile(f"{path}: has several columns {self.column}")
        kind, types = schema.field(self.column).type, self.pyarrow.types
        if not (types.is_string(kind) or types.is_large_string(kind)):
            raise BadFile(f"{path}: column {self.column} is {kind}, expected text (--column)")
        return file

    def read(self, path):
        file = self.open(path)
        for group in range(file.num_row_groups):
            try:
                # to_pylist checks that the text is UTF-8, which Parquet only promises.
                texts = file.read_row_group(group, columns=[self.column], use_threads=False).column(0).to_pylist()
            except Exception as error:
                raise BadFile(f"{path}: row group {group} of {file.num_row_groups} is damaged: "
                              f"{one_line(error)}") from None
            for text in texts:
                if text is None:
                    self.nulls += 1
                    continue
                self.out.write(json.dumps({"text": text}, ensure_ascii=True))
                self.out.write("\n")
                self.documents += 1


def read_all(arguments):
    reader = Reader(import_pyarrow(), arguments.column, sys.stdout)
    for path in find_files(arguments.inputs):
        try:
            reader.read(path)
        except BadFile as problem:
            if not arguments.skip_bad:
                raise
            reader.bad_files += 1
            print(f"read_parquet: {problem}; the remainder is skipped", file=sys.stderr)
    sys.stdout.flush()
    if reader.nulls or reader.bad_files:
        print(f"read_parquet: {reader.documents} documents; skipped {reader.nulls} rows without text and (parts of) "
              f"{reader.bad_files} damaged files", file=sys.stderr)


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
