"""scripts/install_cuda.py against an index of small wheels on this machine: what it makes, and what it refuses."""
import base64
import hashlib
import http.server
import io
import os
import socket
import subprocess
import sys
import threading
import zipfile

import pytest
from runs import ROOT, call, kill

VERSION = "1.0"
NVCC = b"#!/bin/sh\necho nvcc\n"
LIBRARY = os.urandom(4 << 20)
# Each with a file that the toolkit does not take.
CONTENTS = {
    "nvidia-compiler": {"nvidia/cu13/bin/nvcc": NVCC, "nvidia/cu13/nvvm/libdevice/l.bc": b"bitcode",
                        "nvidia/cu13/lib/libnvvm.so.4": LIBRARY},
    "nvidia-math": {"nvidia/cu13/include/math.h": b"#pragma once\n", "nvidia/cu13/lib/libmath.so.13": LIBRARY},
    "nvidia-dnn": {"nvidia/dnn/include/dnn.h": b"int dnn;\n" * 50000, "nvidia/dnn/lib/libdnn.so.9": LIBRARY},
}
TAKEN = {"nvidia-compiler": "bin/|nvvm/", "nvidia-math": "include/", "nvidia-dnn": "include/"}


def record(contents):
    def checksum(data):
        return base64.urlsafe_b64encode(hashlib.sha256(data).digest()).decode().rstrip("=")
    return "".join(f"{path},sha256={checksum(data)},{len(data)}\n" for path, data in contents.items()).encode()


PINNED = [(name, VERSION, TAKEN[name], hashlib.sha256(record(files)).hexdigest()) for name, files in CONTENTS.items()]


def wheel(name, contents, recorded):
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        for path, data in contents.items():
            member = zipfile.ZipInfo(path)
            member.external_attr = (0o100744 if "/bin/" in path else 0o100644) << 16
            archive.writestr(member, data)
        archive.writestr(f"{name.replace('-', '_')}-{VERSION}.dist-info/RECORD", record(recorded))
    return file.getvalue()


class Index(http.server.ThreadingHTTPServer):
    """A package index. parts: does it send parts of files? While `stalled` names a wheel, only half of that comes."""

    def __init__(self, parts=True):
        super().__init__(("127.0.0.1", 0), Handler)
        self.parts, self.stalled, self.reached, self.bytes_sent = parts, None, threading.Event(), 0
        self.wheels = {name: wheel(name, files, files) for name, files in CONTENTS.items()}
        threading.Thread(target=self.serve_forever, daemon=True).start()

    @property
    def url(self):
        return f"http://127.0.0.1:{self.server_port}/simple"


class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        name = self.path.strip("/").split("/")[1]
        if self.path.startswith("/simple/"):
            file = f"{name.replace('-', '_')}-{VERSION}-py3-none-manylinux_2_17_x86_64.whl"
            links = [f'<a href="../../files/{name}/{file.replace(VERSION, "0.9")}">older</a>',
                     f'<a href="../../files/{name}/{file}#sha256=1">this one</a>']
            self.answer(200, "".join(links).encode())
            return
        data, wanted = self.server.wheels[name], self.headers.get("Range")
        if not wanted or not self.server.parts:
            self.answer(200, data, stalls=self.server.stalled == name)
            return
        first, last = map(int, wanted.removeprefix("bytes=").split("-"))
        range_sent = f"bytes {first}-{last}/{len(data)}"
        self.answer(206, data[first:last + 1], {"Content-Range": range_sent}, self.server.stalled == name and last > first)

    def answer(self, status, data, headers={}, stalls=False):
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        for key, value in headers.items():
            self.send_header(key, value)
        self.end_headers()
        self.wfile.write(data[:len(data) // 2] if stalls else data)
        self.server.bytes_sent += len(data)
        if stalls:
            self.wfile.flush()
            self.server.reached.set()
            self.rfile.read()  # until the other side is gone

    def log_message(self, *arguments):
        pass


@pytest.fixture(params=[True], ids=["parts"])
def index(request):
    server = Index(request.param)
    yield server
    server.shutdown()
    server.server_close()


with_and_without_parts = pytest.mark.parametrize("index", [True, False], ids=["parts", "no parts"], indirect=True)


def install(toolkit, url, *flags, pinned=PINNED, driver=()):
    """Starts the script with the wheels of this test instead of NVIDIA's."""
    program = f"""
import sys
from pathlib import Path
sys.path.insert(0, {str(ROOT / "scripts")!r})
import install_cuda
install_cuda.WHEELS, install_cuda.LIBRARIES = {pinned!r}, {{"nvidia-math": "|lib/libmath"}}
install_cuda.TOOLKIT, install_cuda.DRIVER_FILES = Path({str(toolkit)!r}), {list(driver)!r}
install_cuda.tool.run(install_cuda.main)"""
    environment = {key: value for key, value in os.environ.items() if not key.lower().endswith("_proxy")}
    environment.update(PIP_INDEX_URL=url, PYTHONDONTWRITEBYTECODE="1")
    return subprocess.Popen([sys.executable, "-c", program, *flags], env=environment, stdout=subprocess.PIPE,
                            stderr=subprocess.PIPE, text=True)


def installed(*arguments, **options):
    process = install(*arguments, **options)
    out, err = process.communicate(timeout=300)
    return process.returncode, out, err


@with_and_without_parts
def test_it_makes_a_toolkit_of_what_is_needed_and_a_second_call_does_nothing(index, tmp_path):
    toolkit = tmp_path / "cuda"
    status, _, err = installed(toolkit, index.url)
    assert (status, err) == (0, "")
    found = {str(path.relative_to(toolkit)) for path in toolkit.rglob("*") if path.is_file()}
    assert found == {"bin/nvcc", "nvvm/libdevice/l.bc", "include/math.h", "include/dnn.h", "wheels.txt"}
    assert (toolkit / "lib64").is_symlink() and [path.name for path in tmp_path.iterdir()] == ["cuda"]
    assert call(toolkit / "bin" / "nvcc").stdout == "nvcc\n"
    assert (toolkit / "include" / "dnn.h").read_bytes() == CONTENTS["nvidia-dnn"]["nvidia/dnn/include/dnn.h"]
    if index.parts:  # libraries, of which there are three, are not fetched
        assert index.bytes_sent < len(LIBRARY)
    before, index.bytes_sent = (toolkit / "bin" / "nvcc").stat(), 0
    assert installed(toolkit, index.url)[0] == 0
    assert index.bytes_sent == 0 and (toolkit / "bin" / "nvcc").stat() == before


@pytest.mark.parametrize("how", ["flag", "driver"])
def test_the_library_to_link_with_comes_when_asked_for_and_where_there_is_a_gpu(index, tmp_path, how):
    toolkit = tmp_path / "cuda"
    assert installed(toolkit, index.url)[0] == 0
    flags, driver = (["--libraries"], []) if how == "flag" else ([], ["/dev/null"])
    assert installed(toolkit, index.url, *flags, driver=driver)[0] == 0
    assert (toolkit / "lib64" / "libmath.so").read_bytes() == LIBRARY
    index.bytes_sent = 0
    assert installed(toolkit, index.url)[0] == 0  # it has all that is asked for now, and more
    assert index.bytes_sent == 0 and (toolkit / "lib64" / "libmath.so").exists()


def test_with_other_versions_pinned_it_is_made_anew(index, tmp_path):
    toolkit = tmp_path / "cuda"
    assert installed(toolkit, index.url, pinned=PINNED[:1])[0] == 0
    assert not (toolkit / "include").exists()
    assert installed(toolkit, index.url)[0] == 0
    assert (toolkit / "include" / "math.h").exists() and [path.name for path in tmp_path.iterdir()] == ["cuda"]


def altered(name, recorded_too):
    contents = {path: data.replace(b"nvcc", b"evil") for path, data in CONTENTS[name].items()}
    return wheel(name, contents, contents if recorded_too else CONTENTS[name])


@pytest.mark.parametrize("recorded_too, complaint", [(True, "is not the pinned wheel"),
                                                     (False, "is not the file that RECORD names")])
def test_an_altered_wheel_is_refused(index, tmp_path, recorded_too, complaint):
    index.wheels["nvidia-compiler"] = altered("nvidia-compiler", recorded_too)
    status, _, err = installed(tmp_path / "cuda", index.url)
    assert status == 1 and complaint in err and "nvidia-compiler 1.0" in err and len(err.splitlines()) == 1
    assert list(tmp_path.iterdir()) == []


def test_a_version_that_the_index_has_not_is_named(index, tmp_path):
    status, _, err = installed(tmp_path / "cuda", index.url, pinned=[("nvidia-math", "2.0", "include/", "0")])
    assert status == 1 and "no nvidia-math 2.0" in err and len(err.splitlines()) == 1


@with_and_without_parts
def test_killed_halfway_it_leaves_no_toolkit_and_the_next_call_makes_one(index, tmp_path):
    toolkit = tmp_path / "cuda"
    index.stalled = "nvidia-dnn"  # the last one
    process = install(toolkit, index.url)
    assert index.reached.wait(300)
    assert not toolkit.exists()
    status, _, err = installed(toolkit, index.url)
    assert status == 1 and "another process" in err
    kill(process)
    assert not toolkit.exists()
    index.stalled = None
    assert installed(toolkit, index.url)[0] == 0
    assert (toolkit / "include" / "dnn.h").exists() and [path.name for path in tmp_path.iterdir()] == ["cuda"]


def test_without_a_network_it_says_so_in_one_line(tmp_path):
    with socket.socket() as nobody:  # bound, not listening: connections are refused
        nobody.bind(("127.0.0.1", 0))
        status, out, err = installed(tmp_path / "cuda", f"http://127.0.0.1:{nobody.getsockname()[1]}/simple")
    assert (status, out) == (1, "") and len(err.splitlines()) == 1 and "refused" in err
    assert list(tmp_path.iterdir()) == []


def test_name_and_password_of_the_index_are_sent(index, tmp_path):
    seen = []

    class Recorder(Handler):
        def log_message(self, *arguments):
            seen.append(self.headers["Authorization"])

    index.RequestHandlerClass = Recorder
    assert installed(tmp_path / "cuda", index.url.replace("http://", "http://me:s%3Acret@"))[0] == 0
    assert set(seen) == {"Basic " + base64.b64encode(b"me:s:cret").decode()}
