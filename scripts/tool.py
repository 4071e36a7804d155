"""What every script here shares: it ends with one line for whatever is wrong outside of it, never with a traceback, and
it writes a file only over an older one of its own.

    def main(): ...; return 0
    if __name__ == "__main__":
        tool.run(main)

A file of ours has a mark, bytes near its beginning or its end that other programs do not write; a file of that name
without it is renamed first, and a line on stderr says so. The standard library is enough for this module.
"""
import argparse
import contextlib
import errno
import os
import re
import signal
import sys

EXIT_FAILED, EXIT_BAD_INPUT, EXIT_INTERRUPTED = 1, 2, 130
NAME = os.path.basename(sys.argv[0]).removesuffix(".py")
MARK_BYTES = 1 << 16
DEBIAN = {"matplotlib": "python3-matplotlib", "numpy": "python3-numpy", "torch": "python3-torch"}


class Problem(Exception):
    """A line for the user, and the exit code."""

    def __init__(self, text, code=EXIT_BAD_INPUT):
        super().__init__(text)
        self.code = code


def fail(text, code=EXIT_BAD_INPUT):
    raise Problem(text, code)


def bad_usage(_parser, message):
    fail(f"{message}; --help shows the usage")


argparse.ArgumentParser.error = bad_usage  # its own prints the usage, several lines, above the message


def shown(text):
    """A name or a text as UTF-8, whatever bytes it has; on one line."""
    return " ".join(os.fsencode(str(text)).decode("utf-8", "replace").split("\n"))


def reason(error):
    """An exception that is not a fault of the script as (line, exit code); None: it is one."""
    if isinstance(error, Problem):
        return str(error), error.code
    if isinstance(error, ImportError) and error.name and not os.path.exists(f"{os.path.dirname(__file__)}/{error.name}.py"):
        package = error.name.partition(".")[0]
        how = f"apt-get install {DEBIAN[package]}, and run it with /usr/bin/python3" if package in DEBIAN else \
            f"install it for {sys.executable}"
        return f"the Python package {package} is missing: {how}", EXIT_BAD_INPUT
    if isinstance(error, KeyboardInterrupt):
        return "interrupted", EXIT_INTERRUPTED
    if isinstance(error, OSError):
        wrong = error.errno in (errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.EACCES, errno.EPERM, errno.ELOOP,
                                errno.ENAMETOOLONG)
        name = "cannot write" if error.filename is None else error.filename
        return f"{name}: {error.strerror or error}", EXIT_BAD_INPUT if wrong else EXIT_FAILED
    if isinstance(error, UnicodeDecodeError):
        return f"the input is not UTF-8: byte {error.start}: {error.reason}", EXIT_BAD_INPUT
    if isinstance(error, re.error):  # of --only
        return f"'{error.pattern}' is no regular expression: {error}", EXIT_BAD_INPUT
    if isinstance(error, (MemoryError, RecursionError)):
        return "out of memory" if isinstance(error, MemoryError) else "the input is nested too deeply", EXIT_FAILED
    return None


def end(code):
    """Without the interpreter's last flush, which would complain of a stdout that is gone or full."""
    with contextlib.suppress(OSError, ValueError):
        sys.stderr.flush()
    os._exit(code)


def run(main, *arguments):
    """Calls main(*arguments) and ends the program with what it returns."""
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(errors="surrogateescape")  # file names that are not UTF-8 are printed as they are
    code = None
    try:
        try:
            code = main(*arguments)
        except SystemExit as wanted:
            code = wanted.code
        if isinstance(code, str):
            print(code, file=sys.stderr)
            code = EXIT_FAILED
        sys.stdout.flush()
    except BrokenPipeError:  # who reads our output has ended, as head does
        end(128 + signal.SIGPIPE)
    except BaseException as error:
        said = reason(error)
        if not said:
            raise
        with contextlib.suppress(OSError):
            sys.stdout.flush()
        line = " ".join(said[0].split("\n"))
        print(f"{NAME}: {line}", file=sys.stderr)
        end(said[1])
    sys.exit(int(code or 0))


def is_ours(path, mark):
    """Whether the file is empty or has the mark."""
    with open(path, "rb") as file:
        head = file.read(MARK_BYTES)
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - MARK_BYTES))
        return not size or mark.encode() in head or mark.encode() in file.read()


def move_aside(path, why="was not written by this program"):
    """Renames a file or directory to the first unused name of PATH.1, PATH.2, ..."""
    n = 1
    while os.path.lexists(f"{path}.{n}"):
        n += 1
    os.rename(path, f"{path}.{n}")
    print(f"{NAME}: {path} {why}; it was renamed to {path}.{n}", file=sys.stderr)


def make_way(path, mark):
    """Before a file with the mark is written: what is there is moved aside unless it is ours."""
    if os.path.isdir(path):
        fail(f"{path}: cannot be written: it is a directory")
    if os.path.lexists(path) and not (os.path.isfile(path) and is_ours(path, mark)):
        if os.path.exists(path) and not os.path.isfile(path):
            fail(f"{path}: cannot be written: it is not a plain file")
        move_aside(path)


@contextlib.contextmanager
def replacing(path, mark, inputs=()):
    """The name of a scratch file, with the same suffix, that becomes path at the end: a reader never sees a part of it.
    inputs: what the file is made from, which it must not be."""
    path = os.fspath(path)
    for source in inputs:
        if os.path.exists(path) and os.path.exists(source) and os.path.samefile(path, source):
            fail(f"{path}: this is an input; name another file for the output")
    scratch = f"{path}.tmp-{os.getpid()}{os.path.splitext(path)[1]}"
    try:
        yield scratch
        make_way(path, mark)
        os.replace(scratch, path)
    except OSError as error:
        fail(f"{path}: cannot be written: {error.strerror or error}")
    finally:
        with contextlib.suppress(OSError):
            os.remove(scratch)
