"""data/get.py against a real HTTP server on this machine that can be as bad as the network is."""
import hashlib
import http.server
import json
import os
import random
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.parse
from pathlib import Path

import pytest
from conftest import ROOT, call, kill, on_a_terminal, wait_for
from test_read_parquet import needs_pyarrow, write_parquet

GET = ROOT / "data" / "get.py"
DATA = Path(os.environ.get("PRETRAIN_DATA", ROOT.parent / "shared" / "data"))
TOKENIZER_FILES = ("merges.txt", "tokenizer.json", "vocab.json")
TOKENIZER_REPO, TOKENIZER_LISTING = "models/openai-community/gpt2", "/api/models/openai-community/gpt2/tree/main"
SHARDS_REPO = "datasets/kjj0/fineweb10B-gpt2"


# ---------------------------------------------------------------------------------------------------------- the server

# This machine by another name, for which nobody needs to be asked: a bare system has no /etc/hosts, so no localhost.
ANOTHER_HOST = "127.0.0.2"


class Handler(http.server.BaseHTTPRequestHandler):
    """/api/... lists, .../resolve/... redirects to /cdn/..., /cdn/... gives. What goes wrong stands in hub.faults."""

    protocol_version = "HTTP/1.1"

    def log_message(self, *arguments):
        pass

    def answer(self, status, body=b"", **headers):
        self.send_response(status)
        headers.setdefault("Content-Length", len(body))
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), str(value))
        self.end_headers()
        self.wfile.write(body)

    def do_GET(self):
        url = urllib.parse.urlsplit(self.path)
        hub = self.server.hub
        hub.requests.append((url.path, dict(self.headers), url.netloc))
        fault = hub.faults.get(url.path, [])
        action = fault.pop(0) if fault else None
        if isinstance(action, int):
            return self.answer(action, b"no", **({"Retry-After": 0} if action == 503 else {}))
        if url.path.startswith("/api/"):
            return self.list(hub, url, action)
        if "/resolve/" in url.path and not url.path.startswith("/cdn/"):
            path = "/cdn" + url.path.replace("/datasets/", "/")
            return self.answer(302, Location=f"http://{ANOTHER_HOST}:{hub.port}{path}" if hub.two_hosts else path)
        if url.path not in hub.files:
            return self.answer(404, b"not here")
        return self.give(hub, hub.files[url.path], action)

    def list(self, hub, url, action):
        if action:
            return self.answer(200, action)
        entries = hub.listings.get(url.path)
        if entries is None:
            return self.answer(404)
        first = int(urllib.parse.parse_qs(url.query).get("cursor", ["0"])[0])
        page, more = entries[first:first + 3], first + 3 < len(entries)
        link = {"Link": f'<https://hub.example{url.path}?cursor={first + 3}>; rel="next"'} if more else {}
        return self.answer(200, json.dumps(page).encode(), **link)

    def give(self, hub, data, action):
        wanted = re.fullmatch(r"bytes=(\d+)-", self.headers.get("Range", ""))
        start = int(wanted[1]) if wanted and not hub.no_range else 0
        if start > len(data):
            return self.answer(416)
        self.send_response(206 if start else 200)
        if start:
            self.send_header("Content-Range", f"bytes {start}-{len(data) - 1}/{len(data)}")
        body = data[start:]
        if isinstance(action, tuple) and action[0] == "give":
            body = body.ljust(action[1], b"x")[:action[1]]
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if isinstance(action, tuple) and action[0] == "cut":
            self.wfile.write(body[:action[1]])
            self.close_connection = True
        elif hub.hold:
            at, go_on = hub.hold
            self.wfile.write(body[:at])
            go_on.wait(300)
            self.wfile.write(body[at:])
        elif hub.delay:
            for at in range(0, len(body), 1000):
                self.wfile.write(body[at:at + 1000])
                time.sleep(hub.delay)
        else:
            self.wfile.write(body)


class Hub:
    """Files of repositories as the Hub has them: large ones with a sha256, small ones with a git blob's sha1."""

    def __init__(self):
        self.files, self.listings, self.faults, self.requests = {}, {}, {}, []
        self.no_range = self.two_hosts = False
        self.delay = 0
        self.hold = None  # (bytes, event): every answer stops there until the event
        self.servers = [self.serve("127.0.0.1", 0)]
        self.port = self.servers[0].server_address[1]
        self.servers.append(self.serve(ANOTHER_HOST, self.port))

    def serve(self, host, port):
        server = http.server.ThreadingHTTPServer((host, port), Handler)
        server.daemon_threads, server.hub = True, self
        server.handle_error = lambda *a: None  # a client that is killed is none of its business
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        return server

    def add(self, repo, path, data, revision="main", folder="", large=True, size=None):
        kind, name = repo.split("/", 1)
        self.files[f"/cdn/{name}/resolve/{revision}/{path}"] = data
        entry = {"type": "file", "path": path, "size": len(data) if size is None else size}
        entry["oid"] = hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()
        if large:
            entry["lfs"] = {"oid": hashlib.sha256(data).hexdigest(), "size": len(data), "pointerSize": 134}
            entry["oid"] = "0" * 40
        listing = f"/api/{repo}/tree/{revision}" + (f"/{folder}" if folder else "")
        self.listings.setdefault(listing, []).append(entry)
        return f"/cdn/{name}/resolve/{revision}/{path}"

    def asked(self, path):
        """The first byte that each request for this path asked for."""
        ranges = [headers.get("Range", "bytes=0-") for p, headers, _ in self.requests if p == path]
        return [int(r[6:-1]) for r in ranges]


@pytest.fixture
def hub():
    hub = Hub()
    yield hub
    for server in hub.servers:
        server.shutdown()
        server.server_close()


def environment(hub, **extra):
    clean = {k: v for k, v in os.environ.items() if "proxy" not in k.lower() and not k.startswith("HF_")}
    mirror = f"http://127.0.0.1:{hub.port}" if hub else "http://127.0.0.1:9"
    return {**clean, "HF_ENDPOINT": mirror, "GITHUB_RAW": mirror, **extra}


def start(hub, out, *arguments, **options):
    """data/get.py gpt2-tokenizer, not waited for."""
    options = {"stdout": subprocess.DEVNULL, "env": environment(hub), **options}
    return subprocess.Popen([sys.executable, GET, "gpt2-tokenizer", "-o", out, *arguments], **options)


def get(hub, *arguments, expect=0, **extra):
    result = call(sys.executable, GET, "--retry-wait", 0.01, *arguments, expect=expect, env=environment(hub, **extra), cwd=ROOT)
    assert "Traceback" not in result.stderr
    if expect:
        assert result.stderr.startswith("get: ") and result.stderr.count("\n") == 1, result.stderr
    return result


def random_bytes(n, seed=0):
    return random.Random(seed).randbytes(n)


def add_tokenizer(hub, n=20000):
    """Where they lie, by name."""
    paths = {name: hub.add(TOKENIZER_REPO, name, random_bytes(n, name), large=name == "tokenizer.json")
             for name in TOKENIZER_FILES}
    hub.add(TOKENIZER_REPO, "README.md", b"not wanted")
    return paths


@pytest.fixture
def out(tmp_path):
    return tmp_path / "out"


def check(hub, out, paths):
    assert sorted(os.listdir(out)) == sorted(paths)
    for name, path in paths.items():
        assert (out / name).read_bytes() == hub.files[path]


# ------------------------------------------------------------------------------------------------------- what arrives


def test_files_arrive_whole_and_checked_and_are_not_fetched_again(hub, out):
    paths = add_tokenizer(hub)
    result = get(hub, "gpt2-tokenizer", "-o", out)
    check(hub, out, paths)
    assert result.stdout.count("checksum verified") == 3
    hub.requests.clear()
    again = get(hub, "gpt2-tokenizer", "-o", out)
    assert again.stdout.count("exists already") == 3
    assert all(path.startswith("/api/") for path, _, _ in hub.requests)


def test_a_listing_of_several_pages_is_read_to_its_end_and_val_comes_first(hub, out):
    for i in range(1, 9):
        hub.add(SHARDS_REPO, f"fineweb_train_{i:06d}.bin", random_bytes(100, i))
    hub.add(SHARDS_REPO, "fineweb_val_000000.bin", random_bytes(100, 0))
    get(hub, "fineweb-10B-gpt2", "-o", out, "--files", 3)
    assert sorted(os.listdir(out)) == ["fineweb_train_000001.bin", "fineweb_train_000002.bin", "fineweb_val_000000.bin"]
    result = get(hub, "fineweb-10B-gpt2", "-o", out, "--connections", 1)
    assert len(os.listdir(out)) == 9
    assert f"-i '{out}/fineweb_train_*.bin' -j '{out}/fineweb_val_*.bin'" in result.stdout


CORPUS, SHOWN = "data/read_parquet.py {out} | data/prepare --tokenizer", "./train_gpt2 -e {out} "
FINEWEB, WEIGHTS = "datasets/HuggingFaceFW/fineweb", ("config.json", "model.safetensors") + TOKENIZER_FILES


# What comes from which folder, and the next command.
@pytest.mark.parametrize("name, repo, revision, folder, files, then", [
    ("tinystories", "datasets/roneneldan/TinyStories", "main", "data", ["train-00000-of-00004-2d5a1467fff1081b.parquet"], CORPUS),
    ("openwebtext", "datasets/Skylion007/openwebtext", "refs%2Fconvert%2Fparquet", "plain_text/train", ["0.parquet"], CORPUS),
    ("fineweb-10B", FINEWEB, "main", "sample/10BT", ["000_00000.parquet"], CORPUS),
    ("fineweb-100B", FINEWEB, "main", "sample/100BT", ["000_00000.parquet"], CORPUS),
    ("fineweb-edu-10B", FINEWEB + "-edu", "main", "sample/10BT", ["000_00000.parquet"], CORPUS),
    ("fineweb-edu-100B", FINEWEB + "-edu", "main", "sample/100BT", ["000_00000.parquet"], CORPUS),
    *((name, "models/openai-community/" + name, "main", "", WEIGHTS, SHOWN)
      for name in ("gpt2", "gpt2-medium", "gpt2-large", "gpt2-xl")),
])  # fmt: skip
def test_what_is_wanted_comes_from_its_folder_and_the_next_command_is_shown(hub, out, name, repo, revision, folder, files, then):
    paths = {file: hub.add(repo, f"{folder}/{file}".lstrip("/"), random_bytes(500, file), revision, folder,
                           large=not file.endswith((".json", ".txt"))) for file in files}
    for unwanted in ("README.md", "pytorch_model.bin"):
        hub.add(repo, f"{folder}/{unwanted}".lstrip("/"), b"not wanted", revision, folder)
    said = get(hub, name, "-o", out).stdout
    check(hub, out, paths)
    assert then.format(out=out) in said


def test_a_real_corpus_is_the_one_whose_checksum_is_in_the_table(hub, out):
    if not (DATA / "tinyshakespeare" / "input.txt").exists():
        pytest.skip(f"{DATA}/tinyshakespeare is not there (PRETRAIN_DATA names another folder)")
    path = "/karpathy/char-rnn/master/data/tinyshakespeare/input.txt"
    hub.files[path] = (DATA / "tinyshakespeare" / "input.txt").read_bytes()
    said = get(hub, "tinyshakespeare", "-o", out).stdout
    assert "checksum verified" in said and f"-i '{out}/shards/train_*.bin' -j '{out}/shards/val_*.bin'" in said


# ------------------------------------------------------------------------------------------------------- going on


# What the server does of merges.txt in turn; words of the message, "" where the file arrives all the same; the first byte
# that each request asks for.
SERVERS = {
    "cuts the connection": ([("cut", 10000), ("cut", 0), ("cut", 7), 503], "", [0, 10000, 10000, 10007, 10007]),
    "cuts it before the last byte": ([("cut", 19999)], "", [0, 19999]),
    "is busy": ([503, 429, 502, 504], "", 5 * [0]),
    "stays busy": (100 * [503], "HTTP 503", 6 * [0]),
    "gives too little": ([("give", 19999)], "sent 19999 bytes, expected 20000", [0]),
    "gives too much": ([("give", 20001)], "sent 20001 bytes, expected 20000", [0]),
    "has lost it": (9 * [404], "not found (HTTP 404)", [0]),
    "wants a token": (9 * [401], "set HF_TOKEN", [0]),
    "refuses it": (9 * [403], "set HF_TOKEN", [0]),
}


@pytest.mark.parametrize("name", SERVERS)
def test_a_server_that(name, hub, out):
    faults, words, asked = SERVERS[name]
    paths = add_tokenizer(hub)
    hub.faults[paths["merges.txt"]] = list(faults)
    assert words in get(hub, "gpt2-tokenizer", "-o", out, expect=int(words != "")).stderr
    assert hub.asked(paths["merges.txt"]) == asked
    if words:
        assert "merges.txt" not in os.listdir(out)
    else:
        check(hub, out, paths)


def hold(hub, out, n, *arguments, **options):
    """Starts get.py for files of n bytes, of which a third comes until hub.hold[1] is set."""
    hub.hold = n // 3, threading.Event()
    process = start(hub, out, *arguments, **options)
    parts = [out / (name + ".part") for name in TOKENIZER_FILES]
    assert wait_for(lambda: sum(p.exists() and p.stat().st_size > n // 6 for p in parts) >= 2, process)
    return process


def test_a_kill_in_the_middle_leaves_no_half_file_and_a_rerun_goes_on(hub, out):
    paths = add_tokenizer(hub, 300000)
    kill(hold(hub, out, 300000, "--connections", "2"))
    left = {name: os.stat(out / name).st_size for name in os.listdir(out)}
    assert len(left) == 2 and all(name.endswith(".part") and 50000 < n < 300000 for name, n in left.items())
    hub.hold[1].set()
    hub.requests.clear()
    get(hub, "gpt2-tokenizer", "-o", out)
    check(hub, out, paths)
    assert all(hub.asked(paths[name[:-5]]) == [n] for name, n in left.items())


def test_a_second_download_into_the_directory_is_refused_and_ctrl_c_says_that_the_first_can_go_on(hub, out):
    add_tokenizer(hub, 300000)
    process = hold(hub, out, 300000, stderr=subprocess.PIPE, text=True)
    assert "another data/get.py is writing it" in get(hub, "gpt2-tokenizer", "-o", out, expect=1).stderr
    process.send_signal(signal.SIGINT)
    assert process.communicate(timeout=300)[1] == "get: stopped; the same command resumes it\n"
    assert process.returncode == 130


# Files of 20,000 bytes: what is there of them (bytes of theirs, or others), and where each request begins.
PARTS = {
    "continued by range": ({"merges.txt": 12345, "tokenizer.json": 19999, "vocab.json": 20000}, True,
                           {"merges.txt": [12345], "tokenizer.json": [19999], "vocab.json": []}),
    "started over by a server without ranges": ({"merges.txt": 5000}, False, {"merges.txt": [5000, 0]}),
    "dropped where it is another version's, or too long": ({"merges.txt": b"x" * 500, "vocab.json": b"x" * 20001}, True,
                                                           {"merges.txt": [500, 0], "vocab.json": [0]}),
}


@pytest.mark.parametrize("name", PARTS)
def test_a_part_of_a_file_is(name, hub, out):
    parts, ranges, asked = PARTS[name]
    paths = add_tokenizer(hub)
    hub.no_range = not ranges
    out.mkdir()
    for file, had in parts.items():
        (out / (file + ".part")).write_bytes(had if isinstance(had, bytes) else hub.files[paths[file]][:had])
    get(hub, "gpt2-tokenizer", "-o", out)
    check(hub, out, paths)
    assert {file: hub.asked(paths[file]) for file in asked} == asked


def test_without_a_known_size_a_range_that_the_server_refuses_starts_over(hub, out):
    """tinyshakespeare's table states a size, hellaswag's none: 416 tells that the part is too long."""
    out.mkdir()
    path = "/rowanz/hellaswag/master/data/hellaswag_val.jsonl"
    hub.files[path] = b"y" * 100
    (out / "hellaswag_val.jsonl.part").write_bytes(b"x" * 200)
    assert "wrong checksum" in get(hub, "hellaswag", "-o", out, expect=1).stderr
    assert hub.asked(path) == [200, 0]


# ------------------------------------------------------------------------------------------------------- going wrong


def test_a_wrong_checksum_removes_the_file(hub, out):
    paths = add_tokenizer(hub)
    for name in ("tokenizer.json", "vocab.json"):  # by sha256, by git's sha1
        data = hub.files[paths[name]]
        hub.files[paths[name]] = data[:-1] + bytes([data[-1] ^ 1])
        stderr = get(hub, "gpt2-tokenizer", "-o", out, "--connections", 1, expect=1).stderr
        assert f"{name}: wrong checksum: " in stderr and "the bad file was removed" in stderr
        assert name not in os.listdir(out) and name + ".part" not in os.listdir(out)
        hub.files[paths[name]] = data
        shutil.rmtree(out)
    get(hub, "gpt2-tokenizer", "-o", out)
    check(hub, out, paths)


@pytest.mark.parametrize("name", ["gpt2-tokenizer", "tinyshakespeare"])
def test_offline_says_so_at_once_and_what_else_can_be_done(out, name):
    with socket.socket() as closed:  # bound, but nobody listens: a connection is refused
        closed.bind(("127.0.0.1", 0))
        mirror = "http://127.0.0.1:%d" % closed.getsockname()[1]
        # A second attempt would wait until the limit of get().
        stderr = get(None, name, "-o", out, "--retry-wait", 1000, expect=1, HF_ENDPOINT=mirror,
                     GITHUB_RAW=mirror).stderr
    variable = "GITHUB_RAW" if name == "tinyshakespeare" else "HF_ENDPOINT"
    assert re.search(f"{mirror[7:]} cannot be reached: Failed to connect .*; copy the files into {out} yourself", stderr)
    assert f"or set {variable} to a mirror" in stderr
    assert not out.exists() or os.listdir(out) == []


def test_a_full_disk_is_named_and_nothing_stands_under_the_final_name(hub, out):
    paths = add_tokenizer(hub)
    out.mkdir()
    (out / "merges.txt.part").symlink_to("/dev/full")
    stderr = get(hub, "gpt2-tokenizer", "-o", out, expect=1).stderr
    assert re.search("merges.txt: cannot be written: .+; free some space", stderr)
    assert "merges.txt" not in os.listdir(out)
    get(hub, "gpt2-tokenizer", "-o", out)
    check(hub, out, paths)


def test_what_the_disk_cannot_hold_is_not_begun(hub, out):
    hub.add(SHARDS_REPO, "fineweb_val_000000.bin", b"x", size=1 << 50)
    hub.add(SHARDS_REPO, "fineweb_train_000001.bin", b"x")
    assert "1024 TiB needed, but the disk has" in get(hub, "fineweb-10B-gpt2", "-o", out, expect=1).stderr
    assert os.listdir(out) == []
    (out.parent / "file").write_text("")
    assert "cannot be made" in get(hub, "fineweb-10B-gpt2", "-o", out.parent / "file", expect=2).stderr


# What the server lists; b"": add_tokenizer's files.
@pytest.mark.parametrize("listing, message", [
    ([503, 500], ""), ([404], "not found (HTTP 404)"), ([401], "set HF_TOKEN"), ([403], "set HF_TOKEN"),
    ([b"<html>"], "not a listing"), ([b"{}"], "no "), ([b"[]"], "no "), ([b"[3]"], "not a listing"),
    ([b'[{"type": "file"}]'], "no "),
    ([b'[{"type": "file", "path": "vocab.json", "size": -1}]'], "cannot be read"),
    ([b'[{"type": "file", "path": 7, "size": 1}]'], "no "),
    ([b'[{"type": "file", "path": "vocab.json", "size": 1, "lfs": 3}]'], "cannot be read"),
])  # fmt: skip
def test_a_listing_that_cannot_be_had_or_makes_no_sense_is_refused(hub, out, listing, message):
    paths = add_tokenizer(hub)
    hub.faults[TOKENIZER_LISTING] = listing
    assert message in get(hub, "gpt2-tokenizer", "-o", out, expect=int(message != "")).stderr
    if message:
        assert not out.exists()
    else:
        check(hub, out, paths)


def test_a_listing_cannot_write_elsewhere(hub, out):
    for name in TOKENIZER_FILES:
        hub.add(TOKENIZER_REPO, "../../" + name, b"x")
    get(hub, "gpt2-tokenizer", "-o", out, expect=1)
    assert [p for p in out.parent.rglob("*") if p.is_file()] == []


# ------------------------------------------------------------------------------------------------ tokens and proxies


def test_a_token_goes_to_the_hub_and_not_along_a_redirect_to_another_host(hub, out):
    hub.two_hosts = True
    paths = add_tokenizer(hub)
    get(hub, "gpt2-tokenizer", "-o", out, HF_TOKEN="secret")
    check(hub, out, paths)
    for path, headers, _ in hub.requests:
        assert headers.get("Authorization") == (None if path.startswith("/cdn/") else "Bearer secret")
    hub.requests.clear()
    get(hub, "tinyshakespeare", "-o", out, expect=1, HF_TOKEN="secret", GITHUB_RAW=f"http://{ANOTHER_HOST}:{hub.port}")
    assert [headers.get("Authorization") for _, headers, _ in hub.requests] == [None]


def test_the_proxy_of_the_environment_is_used(hub, out):
    paths = add_tokenizer(hub)
    proxy = f"http://127.0.0.1:{hub.port}"
    get(hub, "gpt2-tokenizer", "-o", out, HF_ENDPOINT="http://hub.example", http_proxy=proxy)
    check(hub, out, paths)
    assert {netloc for _, _, netloc in hub.requests} == {"hub.example"}


# ------------------------------------------------------------------------------------------------------ words and bars


def test_without_a_name_everything_there_is_is_listed(hub):
    said = get(None).stdout
    for name in ("tinyshakespeare", "tinystories", "openwebtext", "fineweb-10B", "fineweb-100B", "fineweb-edu-10B",
                 "fineweb-edu-100B", "hellaswag", "gpt2-tokenizer", "gpt2", "gpt2-medium", "gpt2-large", "gpt2-xl",
                 "fineweb-10B-gpt2"):
        assert re.search(rf"^  {name} +[\d.]+ [MG]B  \S", said, re.MULTILINE)


def test_wrong_usage_is_one_line():
    assert "did you mean fineweb-10B?" in get(None, "finweb-10B", expect=2).stderr
    assert "lists all names" in get(None, "qqqq", expect=2).stderr
    assert "--connections" in get(None, "gpt2", "--connections", 9, expect=2).stderr


def test_progress_is_shown_on_a_terminal(hub, out):
    add_tokenizer(hub, 100000)
    hub.delay = 0.005
    code, shown = on_a_terminal(sys.executable, GET, "gpt2-tokenizer", "-o", out, stdout=subprocess.DEVNULL,
                                env=environment(hub, COLUMNS="100"))
    assert code == 0
    assert re.search(r"Xfers +Live", shown) and re.search(r"\r *100 ", shown)


def test_sizes_are_shown_in_binary_units(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "data")
    import download
    assert [download.format_bytes(n) for n in (0, 1023, 1024, 1 << 20, 5 << 40)] == \
        ["0 bytes", "1023 bytes", "1.00 KiB", "1.00 MiB", "5.00 TiB"]


# ----------------------------------------------------------------------------------------------------- what comes next


@pytest.fixture
def vocabulary(data, tmp_path):
    """Of bytes alone, where it will be found: as a function that puts it there."""
    return lambda: shutil.copytree(data.directory, tmp_path / "gpt2-tokenizer", ignore=shutil.ignore_patterns("*.bin"))


def test_hellaswag_becomes_the_file_that_the_trainer_reads_when_there_is_a_tokenizer(hub, vocabulary, tmp_path):
    out, questions = tmp_path / "hellaswag", b'{"ctx": "Hello", "endings": ["world", "moon"], "label": 1}\n'
    hub.files["/q/hellaswag_val.jsonl"] = questions
    url = ("https://raw.githubusercontent.com/q/hellaswag_val.jsonl", hashlib.sha256(questions).hexdigest(), None)

    def get_with(tokenizer):
        """Another entry in its table, for what only the real file would have the checksum of."""
        code = (f"import sys; sys.path.insert(0, {str(ROOT / 'data')!r}); import get; get.SOURCES['hellaswag'] = "
                f"get.Source('choices', '1 MB', 'MIT', 'questions', urls=({url!r},)); get.TOKENIZER = {tokenizer!r}; "
                "sys.exit(get.main())")
        return call(sys.executable, "-c", code, "hellaswag", "-o", out, expect=0, env=environment(hub), cwd=ROOT).stdout

    said = get_with("is-nowhere")
    assert os.listdir(out) == ["hellaswag_val.jsonl"]
    assert "\n  data/get.py is-nowhere\n" in said and f"-o {out}/hellaswag_val.bin" in said
    vocabulary()
    said = get_with("gpt2-tokenizer")
    assert sorted(os.listdir(out)) == ["hellaswag_val.bin", "hellaswag_val.jsonl"]
    assert f"./train_gpt2 -e data/gpt2 -x 0 -v 0 -s 0 --choices {out}/hellaswag_val.bin" in said


@needs_pyarrow
def test_prepare_after_a_download_makes_shards_of_the_corpus(hub, vocabulary, tmp_path):
    write_parquet(tmp_path / "a.parquet", [f"document {i}: " + "word " * 200 for i in range(300)])
    data = (tmp_path / "a.parquet").read_bytes()
    hub.add("datasets/HuggingFaceFW/fineweb-edu", "sample/10BT/000_00000.parquet", data, folder="sample/10BT")
    vocabulary()
    shards = tmp_path / "fineweb" / "shards"
    result = get(hub, "fineweb-edu-10B", "-o", shards.parent, "--prepare")
    assert "running: data/read_parquet.py" in result.stdout and "300 documents" in result.stdout
    assert {"train_000000.bin", "val_000000.bin", "tokenizer.json"} <= set(os.listdir(shards))
    assert call(ROOT / "data/shard", "verify", shards / "*.bin").stdout.count("as in manifest.json") == 2
    again = call(sys.executable, GET, "fineweb-edu-10B", "-o", shards.parent, "--prepare", expect=2, env=environment(hub), cwd=ROOT)
    assert "--force replaces them" in again.stderr and "Traceback" not in again.stderr
