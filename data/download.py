"""Downloads of data/get.py: files over HTTP that are either complete and checked, or not there.

Owns the .part files beside their targets, the connections and the progress line. Knows nothing of corpora. A file is
written as NAME.part, hashed on the way, compared with its checksum (or, where none is known, its size), flushed to disk
and renamed. A NAME.part that a broken or killed download left is continued with an HTTP Range request; a server that
knows no Range sends the file again from its beginning. Standard library only; proxies are those of the environment.
"""
from __future__ import annotations

import errno
import fcntl
import hashlib
import http.client
import os
import queue
import shutil
import socket
import ssl
import sys
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
from dataclasses import dataclass
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1] / "scripts"))
import tool  # noqa: E402

BLOCK = 1 << 18
TIMEOUT = 60  # seconds without a byte
RETRY_STATUS = {408, 429, 500, 502, 503, 504}
MAX_ATTEMPTS = 6  # in a row without a new byte
LONGEST_WAIT = 60


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

    def hasher(self):
        return hashlib.sha1(b"blob %d\0" % self.size) if self.git_sha1 else hashlib.sha256()

    def checksum(self):
        return self.git_sha1 or self.sha256


def format_bytes(n):
    for unit in ("bytes", "KiB", "MiB", "GiB", "TiB"):
        if n < 1024 or unit == "TiB":
            return f"{n:.0f} {unit}" if unit == "bytes" else f"{n:.{0 if n >= 100 else 1 if n >= 10 else 2}f} {unit}"
        n /= 1024


def format_seconds(s):
    s = int(s + 0.5)
    return f"{s}s" if s < 60 else f"{s // 60}m{s % 60:02d}s" if s < 3600 else f"{s // 3600}h{s % 3600 // 60:02d}m"


# ------------------------------------------------------------------------------------------------------------- requests


class Cut(ConnectionError):
    """A body that ended before its length."""


class _Redirects(urllib.request.HTTPRedirectHandler):
    """A token is only sent to the host that it was given for, also after a redirect."""

    def redirect_request(self, req, fp, code, msg, headers, newurl):
        new = super().redirect_request(req, fp, code, msg, headers, newurl)
        token = req.unredirected_hdrs.get("Authorization")
        parts = [urllib.parse.urlsplit(u) for u in (req.full_url, newurl)]
        if new and token and (parts[0].scheme, parts[0].netloc) == (parts[1].scheme, parts[1].netloc):
            new.add_unredirected_header("Authorization", token)
        return new


_opener = urllib.request.build_opener(_Redirects)


def open_url(url, token=None, start=0):
    """The response to a GET of url from byte `start` on. Raises what urllib raises."""
    request = urllib.request.Request(url, headers={"User-Agent": "pretrain.cu data/get.py"})
    if start:
        request.add_header("Range", f"bytes={start}-")
    if token:
        request.add_unredirected_header("Authorization", f"Bearer {token}")
    return _opener.open(request, timeout=TIMEOUT)


def host_of(url):
    return urllib.parse.urlsplit(url).netloc


def _cause(error):
    reason = getattr(error, "reason", error)
    if isinstance(reason, (socket.timeout, TimeoutError)):
        return f"no answer for {TIMEOUT} s"
    if isinstance(reason, OSError) and reason.strerror:
        return reason.strerror
    return str(reason) or type(reason).__name__


def explain(error, url, by_hand):
    """What a failed request means, and what the user can do about it."""
    if isinstance(error, Cut):
        return f"{url}: {error}; run the same command again to resume"
    if isinstance(error, urllib.error.HTTPError):
        if error.code in (401, 403):
            return (f"{url}: access denied (HTTP {error.code}); set HF_TOKEN to a token that may read it, "
                    f"and accept its terms on {host_of(url)} if it has any")
        if error.code == 404:
            return f"{url}: not found (HTTP 404), it may have moved; {by_hand}"
        reason = " ".join(str(error.reason).split())
        return f"{url}: HTTP {error.code} {reason}; run the same command later to resume"
    return f"{host_of(url)} cannot be reached: {_cause(error)}; {by_hand}"


def is_transient(error):
    if isinstance(error, urllib.error.HTTPError):
        return error.code in RETRY_STATUS
    return not isinstance(getattr(error, "reason", error), ssl.SSLCertVerificationError)


_network_errors = (urllib.error.URLError, http.client.HTTPException, ConnectionError, socket.timeout, TimeoutError,
                   ssl.SSLError)


class Patience:
    """How often to try again: MAX_ATTEMPTS in a row without a new byte, with doubling pauses. Where nobody has ever
    answered, the machine is offline, which is reported at once."""

    def __init__(self, by_hand, first_wait, answered=False, stop=None):
        self.by_hand, self.first_wait, self.failures, self.answered = by_hand, first_wait, 0, answered
        self.stop = stop or threading.Event()

    def wait_or_raise(self, error, url):
        if isinstance(error, urllib.error.HTTPError):
            self.answered = True
        self.failures += 1
        if not is_transient(error) or not self.answered or self.failures >= MAX_ATTEMPTS:
            raise Problem(explain(error, url, self.by_hand)) from None
        wait = self.first_wait * 2 ** (self.failures - 1)
        told = getattr(error, "headers", None) and error.headers.get("Retry-After", "")
        if told and told.isdigit():
            wait = max(wait, int(told))
        if self.stop.wait(min(wait, LONGEST_WAIT)):
            raise KeyboardInterrupt


def read_url(url, by_hand, token=None, first_wait=1.0):
    """A small answer (headers, bytes), with retries. by_hand: what to do without it, for messages."""
    patience = Patience(by_hand, first_wait)
    while True:
        try:
            with open_url(url, token) as response:
                return response.headers, response.read()
        except _network_errors as error:
            patience.wait_or_raise(error, url)


# ------------------------------------------------------------------------------------------------------------- one file


class Download:
    """One file being fetched: its .part, its progress, and the hash of the bytes received."""

    def __init__(self, file, token, patience, progress):
        self.file, self.token, self.patience, self.progress = file, token, patience, progress
        self.part = file.path.with_name(file.path.name + ".part")
        self.got, self.hash = 0, file.hasher()
        self.continued = False  # from the .part of an earlier download

    def run(self):
        with open(self.part, "ab") as out:
            try:
                fcntl.flock(out, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise Problem(f"{self.part}: another data/get.py is writing it") from None
            try:
                self.complete(out)
            finally:
                if self.got == 0 and self.file.size != 0 and self.part.exists():
                    self.part.unlink()

    def complete(self, out):
        self.adopt_part(out)
        self.receive(out)
        if not self.is_right() and self.continued:  # perhaps a part of an older version: once more from the start
            self.start_over(out)
            self.receive(out)
        if not self.is_right():
            self.part.unlink()
            raise Problem(f"{self.file.path.name}: wrong checksum: {self.hash.hexdigest()}, expected "
                          f"{self.file.checksum()}; the bad file was removed, run the same command again")
        out.flush()
        os.fsync(out.fileno())
        if os.path.lexists(self.file.path):
            tool.move_aside(self.file.path, "has another size than the published file")
        os.rename(self.part, self.file.path)

    def is_right(self):
        return not self.file.checksum() or self.hash.hexdigest() == self.file.checksum()

    def adopt_part(self, out):
        """Hashes the .part of an earlier download, so that only the remainder is fetched."""
        size = os.fstat(out.fileno()).st_size
        if self.file.size is not None and size > self.file.size:
            out.truncate(0)
            return
        with open(self.part, "rb") as f:
            while self.got < size and (block := f.read(min(BLOCK, size - self.got))):
                self.hash.update(block)
                self.got += len(block)
        self.progress.add(self.got, received=False)
        self.continued = self.got > 0

    def start_over(self, out):
        self.progress.add(-self.got, received=False)
        out.truncate(0)
        self.got, self.hash, self.continued = 0, self.file.hasher(), False

    def receive(self, out):
        while self.file.size is None or self.got < self.file.size:
            try:
                with open_url(self.file.url, self.token, self.got) as response:
                    if self.take(response, out):
                        return
                error = Cut(f"the connection was cut after {self.got} bytes")
            except _network_errors as caught:
                if isinstance(caught, urllib.error.HTTPError) and caught.code == 416 and self.got:
                    self.start_over(out)  # the .part is longer than the file published now
                    self.patience.answered = True
                    caught = Cut("the server refused to resume an earlier download")
                error = caught
            self.patience.wait_or_raise(error, self.file.url)

    def take(self, response, out):
        """Writes the body of one response. True: the file is complete."""
        length = response.headers.get("Content-Length")
        if self.got:
            range_from = response.headers.get("Content-Range", "").partition("-")[0]
            if response.status != 206 or range_from != f"bytes {self.got}":
                self.start_over(out)  # the server does not support Range: this is the whole file, or another range
                if response.status != 200:
                    return False
        total = self.got + int(length) if length and length.isdigit() else self.file.size
        if self.file.size is not None and total != self.file.size:
            raise Problem(f"{self.file.url}: the server announces {total} bytes, expected {self.file.size}; "
                          "the file was changed or the server is wrong; try again later")
        try:
            while block := response.read1(BLOCK):
                if self.patience.stop.is_set():
                    raise KeyboardInterrupt
                out.write(block)
                self.hash.update(block)
                self.got += len(block)
                self.progress.add(len(block))
                self.patience.failures, self.patience.answered = 0, True
        except http.client.IncompleteRead:
            return False
        finally:
            out.flush()
        return total is None or self.got == total


# ------------------------------------------------------------------------------------------------------------- progress


class Progress:
    """A bar on a terminal, else a line every 10 seconds, on stderr; a line on stdout for every finished file."""

    def __init__(self, total, count):
        self.total, self.count = total, count
        self.done = self.received = self.finished = 0
        self.start = self.last = time.monotonic()
        self.lock = threading.Lock()
        # Not in the log of a CI job, which may have a terminal of its own, and not where a line cannot be redrawn.
        self.terminal = sys.stderr.isatty() and os.environ.get("TERM") != "dumb" and not os.environ.get("CI")
        self.every = 0.2 if self.terminal else 10.0

    def add(self, n, received=True):
        with self.lock:
            self.done += n
            self.received += n if received else 0
            now = time.monotonic()
            if now - self.last >= self.every:
                self.last = now
                self.draw(now - self.start)

    def draw(self, passed):
        rate = self.received / passed
        left = (self.total - self.done) / rate if self.total and rate > 0 else -1
        text = f"{100 * self.done / self.total:5.1f}% of " if self.total else ""
        text += format_bytes(self.total or self.done)
        text += f", file {min(self.finished + 1, self.count)}/{self.count}, {format_bytes(rate)}/s"
        text += f", eta {format_seconds(left)}" if left >= 0 else ""
        if not self.terminal:
            print(f"get: {text}", file=sys.stderr, flush=True)
            return
        width = shutil.get_terminal_size().columns
        room = width - len(text) - 8
        if self.total and room >= 10:
            full = int(room * min(1.0, self.done / self.total))
            text = f"[{'#' * full}{'.' * (room - full)}] {text}"
        print(f"\r{text[:width - 1]}\033[K", end="", file=sys.stderr, flush=True)

    def file_done(self, file, how):
        with self.lock:
            self.finished += 1
            self.clear()
            print(f"  {file.path.name}: {format_bytes(file.path.stat().st_size)}, {how}", flush=True)

    def clear(self):
        if self.terminal:
            print("\r\033[K", end="", file=sys.stderr, flush=True)


# ------------------------------------------------------------------------------------------------------------ all files


def check_room(directory, files):
    """Refuses to start a download that does not fit on the disk."""
    needed = sum(f.size or 0 for f in files)
    for f in files:
        part = f.path.with_name(f.path.name + ".part")
        needed -= min(part.stat().st_size, f.size or 0) if part.exists() else 0
    free = shutil.disk_usage(directory).free
    if needed > free:
        raise Problem(f"{directory}: {format_bytes(needed)} needed, but the disk has {format_bytes(free)} free; "
                      "name a directory on another disk with -o, or fewer files with --files")


def explain_os(error, file):
    if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        return (f"{file.path}: cannot be written: {error.strerror}; free some space and run the same command again "
                "to resume")
    return f"{file.path}: cannot be written: {error.strerror or error}"


class Batch:
    """Fetches files a few at a time, in order. The first problem stops all; received bytes are kept."""

    def __init__(self, files, by_hand, token, token_host, first_wait, online):
        self.by_hand, self.token, self.token_host = by_hand, token, token_host
        self.first_wait, self.online = first_wait, online
        sizes = [f.size for f in files]
        self.progress = Progress(0 if None in sizes else sum(sizes), len(files))
        self.waiting, self.stop, self.problems = queue.SimpleQueue(), threading.Event(), []
        for f in files:
            self.waiting.put(f)

    def fetch(self, file):
        token = self.token if host_of(file.url) == self.token_host else None
        Download(file, token, Patience(self.by_hand, self.first_wait, self.online, self.stop), self.progress).run()
        self.progress.file_done(file, "checksum verified" if file.checksum() else "complete; no checksum known")

    def work(self):
        while not self.stop.is_set() and not self.waiting.empty():
            try:
                file = self.waiting.get_nowait()
                self.fetch(file)
            except (KeyboardInterrupt, queue.Empty):
                return
            except (Problem, OSError) as error:
                self.problems.append(error if isinstance(error, Problem) else Problem(explain_os(error, file)))
                self.stop.set()

    def run(self, threads):
        workers = [threading.Thread(target=self.work, daemon=True) for _ in range(threads)]
        try:
            for worker in workers:
                worker.start()
            for worker in workers:
                worker.join()
        finally:
            self.stop.set()
            self.progress.clear()
        if self.problems:
            raise self.problems[0]


def fetch_all(files, directory, by_hand, token=None, token_host=None, connections=4, first_wait=1.0, online=False):
    """Fetches missing files. Existing files of the published size were checked when they were renamed.
    by_hand: what the user can do without a network. token: for token_host only. online: a host has answered."""
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise Problem(f"{directory}: cannot be made: {error.strerror}", 2) from None
    missing = [f for f in files if not (f.path.is_file() and f.size in (None, f.path.stat().st_size))]
    for f in files:
        if f not in missing:
            print(f"  {f.path.name}: {format_bytes(f.path.stat().st_size)}, exists already")
    check_room(directory, missing)
    Batch(missing, by_hand, token, token_host, first_wait, online).run(min(connections, len(missing)))
