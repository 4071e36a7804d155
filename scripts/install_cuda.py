#!/usr/bin/env python3
"""Puts a CUDA toolkit into .cuda/ of the checkout: nvcc, and the headers and libraries that this project uses.

    scripts/install_cuda.py [--libraries]              (make cuda-toolkit)

NVIDIA publishes its toolkit as Python wheels, on PyPI or on the index that pip is configured for. A wheel is a zip
file, and most servers send parts of a file, so only the needed parts are fetched: 75 MB, not 900. cuBLASLt, 375 MB, is
needed to link train_gpt2cu and is fetched only if there is a GPU, or with --libraries. Needs neither root nor pip.

A toolkit is complete or absent: it is made in .cuda.partial and renamed at the end. Every wheel has a file RECORD with
the SHA-256 of its other files; the SHA-256 of RECORD is pinned here, and a wheel that differs is refused.
"""
import argparse
import base64
import csv
import fcntl
import hashlib
import html
import http.client
import io
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
import urllib.error
import urllib.parse
import urllib.request
import zipfile
import zlib
from pathlib import Path

import tool

# Wheel, version, the files to take (a pattern of paths in the toolkit), SHA-256 of its RECORD. The versions belong to
# one release, CUDA 13.0 update 2. To switch to another, change them here: the refusal shows the new SHA-256.
WHEELS = [
    ("nvidia-cuda-nvcc", "13.0.88", "bin/|include/", "2f429d8464ce06dc6125e9c7484ccb36b348e9c8cbdf8e782b4c011f10e7f397"),
    ("nvidia-nvvm", "13.0.88", "nvvm/", "5faab277dc014500098dd1b41d904afadc29c5f94f4e2a62157e26138a645ac2"),
    ("nvidia-cuda-crt", "13.0.88", "include/", "689d1847121911088437dfce899d26daccdb29f0e46d21e04de5ba3a2f1871bb"),
    ("nvidia-cuda-runtime", "13.0.96", "include/|lib/.*[.]a", "34c7a65651597fd8a376b049b69bb26db399a9ea443a7a142ccd34f5a10f79c4"),
    ("nvidia-cuda-cccl", "13.0.85", "include/", "7a0a2577268c4080833dbb7d7cde0949261e9b6eadac014a8409be1b885c9725"),
    ("nvidia-cudnn-cu13", "9.19.0.56", "include/", "f3d7140798fccda99fb75841ff41c5dd88de4bc6bd5bffb49200c9b7bf791ca8"),
    ("nvidia-cublas", "13.1.0.3", "include/", "35a31bf9f5d4fa709c63a127c3b0651f3ccfec462c422cf8bf5d9e964301de59"),
]
LIBRARIES = {"nvidia-cublas": "|lib/libcublasLt"}
TOOLKIT = Path(__file__).resolve().parents[1] / ".cuda"
DRIVER_FILES = ["/dev/nvidiactl", "/dev/dxg"]  # exist where there is a GPU; dxg: Windows' Linux
CHUNK = 8 << 20  # bytes a request
DAMAGED = (zipfile.BadZipFile, zlib.error, EOFError, KeyError, ValueError)  # raised by zipfile


class Failure(Exception):
    pass


def pip_setting(name):
    """The setting in PIP_NAME or in pip's configuration; empty without either, and without pip."""
    command = [sys.executable, "-m", "pip", "config", "get", f"global.{name}"]
    return os.environ.get("PIP_" + name.upper().replace("-", "_")) or \
        subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True).stdout.strip()


def get(url, **headers):
    parts = urllib.parse.urlsplit(url)
    user, at, host = parts.netloc.rpartition("@")
    request = urllib.request.Request(parts._replace(netloc=host).geturl(), headers=headers)
    if at:  # unredirected: not sent to the target of a redirection
        secret = base64.b64encode(urllib.parse.unquote(user).encode()).decode()
        request.add_unredirected_header("Authorization", "Basic " + secret)
    try:
        return urllib.request.urlopen(request, timeout=60)
    except urllib.error.URLError as error:
        raise OSError(f"{request.full_url}: {error.reason}") from None


class RemoteFile(io.RawIOBase):
    """A file on a server that sends parts of it, as zipfile reads one: seek, tell, read."""

    def __init__(self, url, size):
        self.url, self.size, self.position, self.start, self.window = url, size, 0, 0, b""

    def seekable(self):
        return True

    def tell(self):
        return self.position

    def seek(self, offset, whence=os.SEEK_SET):
        self.position = offset + {os.SEEK_SET: 0, os.SEEK_CUR: self.position, os.SEEK_END: self.size}[whence]
        return self.position

    def fetch(self, start, end):
        for attempts_left in 2, 1, 0:
            try:
                with get(self.url, Range=f"bytes={start}-{end - 1}") as response:
                    self.start, self.window = start, response.read()
                if len(self.window) == end - start:
                    return
                raise OSError(f"{self.url}: asked for {end - start} bytes, got {len(self.window)}")
            except (OSError, http.client.HTTPException):
                if not attempts_left:
                    raise

    def read(self, count=-1):
        end = self.size if count < 0 else min(self.position + count, self.size)
        if not self.start <= self.position <= end <= self.start + len(self.window):
            # More than requested, on both sides: zipfile also reads a few bytes here and there.
            start = max(0, self.position - (32 << 10))
            self.fetch(start, min(max(end, start + (256 << 10)), self.size))
        data = self.window[self.position - self.start:end - self.start]
        self.position = end
        return data


def open_wheel(index, name, version):
    """The wheel for this machine as a file."""
    page = f"{index.rstrip('/')}/{name}/"
    with get(page, Accept="text/html") as response:
        links = re.findall(r"""href=["']([^"'#]+)""", response.read().decode())
    for url in (urllib.parse.urljoin(page, html.unescape(link)) for link in links):
        file = urllib.parse.unquote(url).rpartition("/")[2]
        if not file.startswith(f"{name.replace('-', '_')}-{version}-") or not file.endswith("x86_64.whl"):
            continue
        with get(url, Range="bytes=0-0") as response:
            if response.status == 206:
                return RemoteFile(url, int(str(response.headers["Content-Range"]).rpartition("/")[2]))
            print(f"  {name}: this server cannot send parts of files, so the whole wheel is fetched", flush=True)
            whole = tempfile.TemporaryFile()
            shutil.copyfileobj(response, whole, CHUNK)
            return whole
    raise Failure(f"the index has no {name} {version} for x86_64")


def unpack(file, name, version, pattern, pinned, directory):
    """Writes the files that match the pattern into directory; returns their size in the wheel."""
    wheel = zipfile.ZipFile(file)
    record = wheel.read(f"{name.replace('-', '_')}-{version}.dist-info/RECORD")
    found = hashlib.sha256(record).hexdigest()
    if found != pinned:
        raise Failure(f"{name} {version} is not the pinned wheel: the SHA-256 of its RECORD is {found}, not {pinned}")
    # nvidia/cu13/bin/nvcc is bin/nvcc of the toolkit.
    files = [(wheel.getinfo(row[0]), row[1], row[0].split("/", 2)[2]) for row in csv.reader(record.decode().splitlines())
             if row[0].startswith("nvidia/") and re.match(pattern, row[0].split("/", 2)[2])]
    size, total, done = sum(f[0].compress_size for f in files), sum(f[0].file_size for f in files), 0
    line = f"  {size / 1e6:6.1f} MB  {name} {version}"
    terminal = sys.stdout.isatty() and os.environ.get("TERM") != "dumb" and not os.environ.get("CI")
    print(line, end="\r" if terminal else "\n", flush=True)
    for member, checksum, path in files:
        target, sha256 = directory / path, hashlib.sha256()
        target.parent.mkdir(parents=True, exist_ok=True)
        with wheel.open(member) as source, open(target, "wb") as output:
            while chunk := source.read(CHUNK):
                sha256.update(chunk)
                output.write(chunk)
                done += len(chunk)
                print(end=f"{line} {100 * done // total:4} %\r" if terminal else "", flush=True)
        if checksum != "sha256=" + base64.urlsafe_b64encode(sha256.digest()).decode().rstrip("="):
            raise Failure(f"{name} {version}: {member.filename} is not the file that RECORD names")
        target.chmod(0o755 if member.external_attr >> 16 & 0o100 else 0o644)
    print(end="\n" if terminal else "")
    return size


def install(wheels, partial):
    """Makes the toolkit in partial, then renames it into place."""
    new, old = partial / "new", partial / "old"
    shutil.rmtree(new, ignore_errors=True)  # left by a killed call
    if pip_setting("cert"):
        os.environ["SSL_CERT_FILE"] = pip_setting("cert")
    index, size = pip_setting("index-url") or "https://pypi.org/simple", 0
    for name, version, pattern, pinned in wheels:
        with open_wheel(index, name, version) as file:
            size += unpack(file, name, version, pattern, pinned, new)
    (new / "lib64").symlink_to("lib")
    for library in (new / "lib").glob("*.so.*"):
        library.with_name(library.name.partition(".so.")[0] + ".so").symlink_to(library.name)
    (new / "wheels.txt").write_text(stamp(wheels))
    if os.path.lexists(TOOLKIT):
        shutil.rmtree(old, ignore_errors=True)
        TOOLKIT.rename(old)
    new.rename(TOOLKIT)
    print(f"install_cuda: {TOOLKIT.name} is complete, {size / 1e6:.0f} MB fetched; NVIDIA's licences apply to it")


def install_alone(wheels):
    partial = TOOLKIT.with_name(TOOLKIT.name + ".partial")
    partial.mkdir(exist_ok=True)
    for path in [TOOLKIT] * (os.path.lexists(TOOLKIT) and not (TOOLKIT / "wheels.txt").is_file()) + sorted(
            path for path in partial.iterdir() if path.name not in ("new", "old")):
        raise Failure(f"{path} was not made by this script; move it away")
    lock = os.open(partial, os.O_RDONLY)  # held until the program ends
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise Failure(f"another process is writing {partial}") from None
    try:
        install(wheels, partial)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def stamp(wheels):
    return "".join(" ".join(wheel) + "\n" for wheel in wheels)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--libraries", action="store_true", help="fetch cuBLASLt even without a GPU")
    for_linking = [(name, version, pattern + LIBRARIES.get(name, ""), pinned) for name, version, pattern, pinned in WHEELS]
    wheels = for_linking if parser.parse_args().libraries or any(map(os.path.exists, DRIVER_FILES)) else WHEELS
    try:
        if (platform.system(), platform.machine()) != ("Linux", "x86_64"):
            raise Failure(f"the wheels are for Linux on x86_64, not {platform.system()} on {platform.machine()}")
        made = TOOLKIT / "wheels.txt"
        if made.exists() and made.read_text() in (stamp(wheels), stamp(for_linking)):
            print(f"install_cuda: {TOOLKIT.name} is complete")
        else:
            install_alone(wheels)
    except KeyboardInterrupt:
        tool.fail("interrupted, no toolkit was made", tool.EXIT_INTERRUPTED)
    except (Failure, OSError, http.client.HTTPException, *DAMAGED) as error:
        tool.fail(f"no toolkit was made: {error}", tool.EXIT_FAILED)


if __name__ == "__main__":
    tool.run(main)
