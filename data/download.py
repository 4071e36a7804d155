"""Downloads of data/get.py by curl: files that are either complete and checked, or not there.

A file is named NAME.part until it is complete, has its checksum (or, where none is known, its size) and is on the disk.
The .part that a broken or killed download left is continued. Knows nothing of corpora.
"""
import fcntl
import hashlib
import json
import os
import shutil
import subprocess
import sys
import time
import urllib.parse
from dataclasses import dataclass
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1] / "scripts"))
import tool  # noqa: E402

# curl ends with this program, however this one ends; a transfer without a byte for a minute has failed.
CURL = ["setpriv", "--pdeathsig", "TERM", "curl", "-q", "--fail", "--location", "--globoff", "--proto", "=http,https",
        "--continue-at", "-", "--connect-timeout", "60", "--speed-time", "60", "--parallel", "--parallel-immediate",
        "--write-out", "%{filename_effective} %{exitcode} %{http_code} %{errormsg}\n", "--config", "-"]
WRITE_ERROR, NO_RANGES, BAD_CERTIFICATE = 23, 33, 60  # exit codes of curl
BUSY = (408, 429, 500, 502, 503, 504)
MAX_ATTEMPTS, MAX_WAIT = 6, 60  # in a row without a new byte; seconds between two


class Problem(tool.Problem):
    """One line for the user. code: 1 the machine or the network failed, 2 the request is wrong."""

    def __init__(self, text, code=tool.EXIT_FAILED):
        super().__init__(text, code)


@dataclass
class File:
    url: str
    path: Path
    size: int | None = None  # of the published file; None: unknown
    sha256: str | None = None
    git_sha1: str | None = None  # of the git blob, with a size: what the Hub states for small files

    @property
    def part(self):
        return self.path.with_name(self.path.name + ".part")

    def received(self):
        return self.part.stat().st_size if self.part.exists() else 0

    def is_there(self):
        """A file of the published size was checked when it was renamed."""
        return self.path.is_file() and self.size in (None, self.path.stat().st_size)

    def finish(self):
        """Checks the complete .part and renames it."""
        if self.size not in (None, size := self.received()):
            self.part.unlink()
            raise Problem(f"{self.url}: the server sent {size} bytes, expected {self.size}; the file was changed or "
                          "the server is wrong; try again later")
        expected = self.git_sha1 or self.sha256
        with open(self.part, "rb") as part:
            checksum = hashlib.sha1(b"blob %d\0" % self.size) if self.git_sha1 else hashlib.sha256()
            while block := part.read(1 << 20):
                checksum.update(block)
            os.fsync(part)
        if expected and checksum.hexdigest() != expected:
            self.part.unlink()
            raise Problem(f"{self.path.name}: wrong checksum: {checksum.hexdigest()}, expected {expected}; the bad "
                          "file was removed, run the same command again")
        if os.path.lexists(self.path):
            tool.move_aside(self.path, "has another size than the published file")
        self.part.rename(self.path)
        return "checksum verified" if expected else "complete; no checksum known"


def format_bytes(n):
    for unit in ("bytes", "KiB", "MiB", "GiB", "TiB"):
        if n < 1024 or unit == "TiB":
            return f"{n:.0f} {unit}" if unit == "bytes" else f"{n:.{0 if n >= 100 else 1 if n >= 10 else 2}f} {unit}"
        n /= 1024


def run_curl(files, token, options, lock):
    """Runs curl once for all files. Returns {name of the .part: (exit code, HTTP status, message)}."""
    config = [f"header = {json.dumps('Authorization: Bearer ' + token)}"] if token else []
    config += [f"url = {json.dumps(f.url)}\noutput = {f.part.name}" for f in files]
    shows = sys.stderr.isatty() and not os.environ.get("CI") and os.environ.get("TERM") != "dumb"
    command = CURL + list(options) + ([] if shows else ["--silent", "--no-progress-meter"])
    try:
        result = subprocess.run(command, input="\n".join(config).encode(), stdout=subprocess.PIPE, check=False,
                                cwd=files[0].path.parent, pass_fds=[lock])
    except FileNotFoundError as error:
        raise Problem(f"{error.filename} is missing: apt-get install curl util-linux", 2) from None
    answers = [line.split(" ", 3) for line in result.stdout.decode(errors="replace").splitlines()]
    return {name: (int(code), int(status), message) for name, code, status, message in answers}


def explain(file, code, status, message, by_hand):
    """What a failed transfer means, and what the user can do about it."""
    host = urllib.parse.urlsplit(file.url).netloc
    if status in (401, 403):
        return (f"{file.url}: access denied (HTTP {status}); set HF_TOKEN to a token that may read it, and accept its "
                f"terms on {host} if it has any")
    if status == 404:
        return f"{file.url}: not found (HTTP 404), it may have moved; {by_hand}"
    if code == WRITE_ERROR:
        return f"{file.path}: cannot be written: {message}; free some space and run the same command again to resume"
    if status == 0:
        return f"{host} cannot be reached: {message}; {by_hand}"
    return f"{file.url}: HTTP {status}, {message}; run the same command again to resume"


def fetch_all(files, by_hand, token=None, options=(), first_wait=1.0, online=False, say=print):
    """Fetches the missing files into their directory. by_hand: what the user can do without a network. online: a host
    has answered; where none ever did, the machine is offline, which is reported at once."""
    directory = files[0].path.parent
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise Problem(f"{directory}: cannot be made: {error.strerror}", 2) from None
    lock = os.open(directory, os.O_RDONLY)  # curl inherits it
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise Problem(f"{directory}: another data/get.py is writing it") from None
    for f in files:
        if f.is_there():
            say(f"  {f.path.name}: {format_bytes(f.path.stat().st_size)}, exists already")
        elif f.size is not None and f.received() > f.size:
            f.part.unlink()
    missing = [f for f in files if not f.is_there()]
    needed, free = sum((f.size or 0) - f.received() for f in missing), shutil.disk_usage(directory).free
    if needed > free:
        raise Problem(f"{directory}: {format_bytes(needed)} needed, but the disk has {format_bytes(free)} free; "
                      "name a directory on another disk with -o, or fewer files with --files")
    failures = 0
    while missing:
        before = {f.part: f.received() for f in missing}
        wanted = [f for f in missing if f.received() != f.size]
        answers = run_curl(wanted, token, options, lock) if wanted else {}
        left, problem = [], None
        for f in missing:
            code, status, message = answers.get(f.part.name, (0 if f.received() == f.size else 1, 0, "no answer"))
            online |= status > 0
            if before[f.part] and (code == NO_RANGES or status == 416):
                f.part.unlink()
            elif code == 0:
                try:
                    say(f"  {f.path.name}: {format_bytes(f.received())}, {f.finish()}")
                    continue
                except Problem:
                    if not before[f.part]:  # else the .part was perhaps of an older version
                        raise
            else:
                problem = Problem(explain(f, code, status, message, by_hand))
                if f.received() == 0:
                    f.part.unlink(missing_ok=True)
                if status >= 400 and status not in BUSY or code in (WRITE_ERROR, BAD_CERTIFICATE) or not online:
                    raise problem
            left.append(f)
        missing, failures = left, failures + 1
        if any(f.received() > before[f.part] for f in missing):
            failures = 1
        if problem and failures >= MAX_ATTEMPTS:
            raise problem
        if problem:
            time.sleep(min(first_wait * 2 ** (failures - 1), MAX_WAIT))
    os.close(lock)
