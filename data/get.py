#!/usr/bin/env python3
"""Downloads a corpus, an evaluation, a tokenizer or weights by name, complete and checked.

  data/get.py                        the names, with sizes and licences
  data/get.py fineweb-edu-10B        into data/fineweb-edu-10B; prints the next command
  data/get.py fineweb-edu-10B --prepare    and runs it: GPT-2 tokens in data/fineweb-edu-10B/shards

The same command resumes a download that was stopped. Checksums come from the Hugging Face Hub or from the table below.
HF_ENDPOINT (a mirror; GITHUB_RAW for files from GitHub), HF_TOKEN and the proxies of the environment (https_proxy,
no_proxy) are used.
"""
import argparse
import difflib
import fnmatch
import glob
import json
import os
import shlex
import subprocess
import sys
import urllib.parse
from dataclasses import dataclass
from pathlib import Path

from download import File, Problem, fetch_all, format_bytes, host_of, read_url, tool

ROOT = Path(__file__).resolve().parents[1]
TOKENIZER = "gpt2-tokenizer"


def shown(path):
    """A path as typed in the current directory."""
    path = Path(path)
    try:
        return str(path.relative_to(Path.cwd()))
    except ValueError:
        return str(path)


@dataclass
class Source:
    kind: str  # decides the next steps: text, parquet, choices, tokenizer, weights, shards
    size: str
    licence: str
    about: str
    # On the Hugging Face Hub: "datasets/OWNER/NAME" or "models/OWNER/NAME", a folder of it, and patterns of the names
    # in it, in the order in which the files are fetched.
    repo: str = ""
    folder: str = ""
    patterns: tuple = ()
    revision: str = "main"
    # Elsewhere: (URL, sha256, bytes).
    urls: tuple = ()


GITHUB = "https://raw.githubusercontent.com/"
VOCABULARY = ("vocab.json", "merges.txt", "tokenizer.json")
WEIGHTS = ("config.json", "model.safetensors") + VOCABULARY


def _gpt2(name, size, parameters):
    return Source("weights", size, "MIT", f"GPT-2 {parameters} by OpenAI", f"models/openai-community/{name}",
                  patterns=WEIGHTS)


def _shards(repo, size, about, prefix):
    return Source("shards", size, "ODC-By", about, "datasets/" + repo,
                  patterns=(prefix + "_val_*.bin", prefix + "_train_*.bin"))


def _fineweb(name, size, sample, about):
    return Source("parquet", size, "ODC-By", about, "datasets/HuggingFaceFW/" + name, folder="sample/" + sample,
                  patterns=("*.parquet",))


SOURCES = {
    "tinyshakespeare": Source("text", "1.1 MB", "public domain", "a little Shakespeare: 338K GPT-2 tokens", urls=((
        GITHUB + "karpathy/char-rnn/master/data/tinyshakespeare/input.txt",
        "86c4e6aa9db7c042ec79f339dcb96d42b0075e16b8fc2e86bf0ca57e2dc565ed", 1115394),)),
    "tinystories": Source("parquet", "1.0 GB", "CDLA-Sharing-1.0", "2.1M short stories for small models",
                          "datasets/roneneldan/TinyStories", "data", ("*.parquet",)),
    "openwebtext": Source("parquet", "24 GB", "CC0 (packaging)", "8M web pages, what GPT-2 was trained on, remade",
                          "datasets/Skylion007/openwebtext", "plain_text/train", ("*.parquet",),
                          revision="refs/convert/parquet"),
    "fineweb-10B": _fineweb("fineweb", "28 GB", "10BT", "10B tokens of FineWeb"),
    "fineweb-100B": _fineweb("fineweb", "277 GB", "100BT", "100B tokens of FineWeb"),
    "fineweb-edu-10B": _fineweb("fineweb-edu", "28 GB", "10BT", "10B tokens of FineWeb-Edu"),
    "fineweb-edu-100B": _fineweb("fineweb-edu", "280 GB", "100BT", "100B tokens of FineWeb-Edu"),
    "fineweb-10B-gpt2": _shards("kjj0/fineweb10B-gpt2", "20 GB", "FineWeb as shards (modded-nanogpt's)", "fineweb"),
    "fineweb-100B-gpt2": _shards("kjj0/fineweb100B-gpt2", "200 GB", "FineWeb as shards", "fineweb"),
    "fineweb-edu-10B-gpt2": _shards("kjj0/finewebedu10B-gpt2", "20 GB", "FineWeb-Edu as shards", "finewebedu"),
    "fineweb-edu-100B-gpt2": _shards("karpathy/fineweb-edu-100B-gpt2-token-shards", "200 GB",
                                     "FineWeb-Edu as shards (llm.c's)", "edu_fineweb"),
    "hellaswag": Source("choices", "12 MB", "MIT", "10,042 questions: which ending is the right one?", urls=((
        GITHUB + "rowanz/hellaswag/master/data/hellaswag_val.jsonl",
        "0aa3b88843990f3f10a97b9575c94d7b71fb2205240ba04ae4884d9e9c992588", None),)),
    TOKENIZER: Source("tokenizer", "3 MB", "MIT", "GPT-2's vocabulary, 50,257 tokens", "models/openai-community/gpt2",
                      patterns=VOCABULARY),
    "gpt2": _gpt2("gpt2", "0.5 GB", "124M"),
    "gpt2-medium": _gpt2("gpt2-medium", "1.5 GB", "355M"),
    "gpt2-large": _gpt2("gpt2-large", "3.2 GB", "774M"),
    "gpt2-xl": _gpt2("gpt2-xl", "6.4 GB", "1558M"),
}


# ----------------------------------------------------------------------------------------------- which files there are


def endpoint():
    return os.environ.get("HF_ENDPOINT", "").rstrip("/") or "https://huggingface.co"


def hub_file(source, entry, directory):
    """A File of one entry of the Hub's listing, which came over the network: every field is checked."""
    path, size, lfs = entry.get("path"), entry.get("size"), entry.get("lfs") or {}
    name = path.rsplit("/", 1)[-1] if isinstance(path, str) else ""
    if not name or name.startswith(".") or not isinstance(size, int) or size < 0 or not isinstance(lfs, dict):
        raise Problem(f"{endpoint()}: its listing of {source.repo} cannot be read: {str(entry)[:120]}")
    kind = "" if source.repo.startswith("models/") else "datasets/"
    url = (f"{endpoint()}/{kind}{source.repo.split('/', 1)[1]}/resolve/{urllib.parse.quote(source.revision, safe='')}/"
           f"{urllib.parse.quote(path)}")
    sha256 = lfs.get("oid") or lfs.get("sha256")
    return File(url, directory / name, size, sha256, None if sha256 else entry.get("oid"))


def by_hand(source, directory):
    mirror = "HF_ENDPOINT" if source.repo else "GITHUB_RAW"
    return f"copy the files into {shown(directory)} yourself, or set {mirror} to a mirror"


def list_hub(source, directory, wait):
    """The files of source on the Hub, with sizes and checksums, in the order of its patterns. The listing has pages."""
    url = (f"{endpoint()}/api/{source.repo}/tree/{urllib.parse.quote(source.revision, safe='')}"
           + (f"/{source.folder}" if source.folder else ""))
    entries = []
    while url:
        headers, body = read_url(url, by_hand(source, directory), os.environ.get("HF_TOKEN"), wait)
        try:
            page = json.loads(body)
            entries += [e for e in page if e["type"] == "file"]
        except (ValueError, TypeError, KeyError):
            raise Problem(f"{url}: not a listing of files: {body[:60]!r}") from None
        links = [part.split(";") for part in headers.get("Link", "").split(",") if 'rel="next"' in part]
        url = links[0][0].strip(" <>") if links else ""
        if url and not url.startswith(endpoint() + "/"):  # a mirror that passes the Hub's own links on
            parts = urllib.parse.urlsplit(url)
            url = f"{endpoint()}{parts.path}?{parts.query}"
    files = []
    for pattern in source.patterns:
        found = [e for e in entries if fnmatch.fnmatchcase(str(e.get("path")).rsplit("/", 1)[-1], pattern)]
        if not found:
            raise Problem(f"{endpoint()}: {source.repo} has no {pattern} in {source.folder or 'its main folder'}; it "
                          "was reorganised, see its page for the new places")
        files += [hub_file(source, e, directory) for e in sorted(found, key=lambda e: e["path"])]
    return files


def list_files(source, directory, wait):
    if source.repo:
        return list_hub(source, directory, wait)
    base = os.environ.get("GITHUB_RAW", "").rstrip("/")
    return [File(url.replace(GITHUB, base + "/") if base else url, directory / url.rsplit("/", 1)[-1], size, sha256)
            for url, sha256, size in source.urls]


# ------------------------------------------------------------------------------------------------------ what comes next


def tokenizer_directory(directory):
    """GPT-2's vocabulary: next to the fetched files, or where `get.py gpt2-tokenizer` puts it."""
    beside = directory.parent / TOKENIZER
    return beside if (beside / "tokenizer.json").is_file() else ROOT / "data" / TOKENIZER


def program(name):
    path = shown(ROOT / name)
    return path if "/" in path else "./" + path


def commands(source, directory, files):
    """The commands that make what the trainer reads, each a list of processes that are piped into each other; and the
    commands that use it."""
    tokenizer, output = shown(tokenizer_directory(directory)), shown(directory / "shards")
    train, prepare = program("train_gpt2"), [program("data/prepare"), "--tokenizer", tokenizer, "-o", output]
    shards = ["-i", f"{glob.escape(output)}/train_*.bin", "-j", f"{glob.escape(output)}/val_*.bin"]
    if source.kind == "text":
        return [[prepare + [shown(f.path) for f in files]]], [[train, "-e", "L=6,C=384,NH=6,T=256", *shards]]
    if source.kind == "parquet":
        pipeline = [[program("data/read_parquet.py"), shown(directory)], prepare + ["--format", "jsonl", "-"]]
        return [pipeline], [[train, "-e", "d12", *shards]]
    if source.kind == "choices":
        questions, answers = shown(files[0].path), shown(files[0].path.with_suffix(".bin"))
        make = [[[program("data/choices"), "--tokenizer", tokenizer, questions, "-o", answers]]]
        return make, [[train, "-e", "data/gpt2", "-x", "0", "-v", "0", "-s", "0", "--choices", answers]]
    if source.kind == "shards":
        val, some = (f"{glob.escape(shown(directory))}/{pattern}" for pattern in source.patterns)
        return [], [[program("data/shard"), "verify", some, val, "--vocab", "50257"],
                    [train, "-e", "d12", "-i", some, "-j", val]]
    if source.kind == "weights":
        return [], [[train, "-e", shown(directory), "-v", "0", "-x", "0", "-g", "64", "--prompt", "Once upon a time"]]
    return [], [[program("data/prepare"), "--tokenizer", shown(directory), "-o", "data/shards", "FILE..."]]


def text_of(pipeline):
    return " | ".join(shlex.join(process) for process in pipeline)


def run_pipeline(pipeline):
    print("running: " + text_of(pipeline), flush=True)
    for process in pipeline:
        if not Path(process[0]).is_file():
            raise Problem(f"{process[0]}: not built yet; run make {process[0]}, then: {text_of(pipeline)}", 2)
    running, source = [], None
    for process in pipeline:
        last = process is pipeline[-1]
        running.append(subprocess.Popen([str(Path(process[0]).resolve())] + process[1:], stdin=source,
                                        stdout=None if last else subprocess.PIPE))
        if source:
            source.close()  # so that the writer notices when its reader ends
        source = running[-1].stdout
    codes = [p.wait() for p in running]
    # The last process has printed its own message; if it succeeded, a reader before it failed.
    return codes[-1] or next((code if code > 0 else 1 for code in codes if code), 0)


# ---------------------------------------------------------------------------------------------------------------- main


def list_sources():
    print("data/get.py NAME [-o DIR] [--prepare] downloads one of these into data/NAME:\n")
    print(f"  {'name':<22} {'size':>7}  {'licence':<17} what")
    for name, s in SOURCES.items():
        print(f"  {name:<22} {s.size:>7}  {s.licence:<17} {s.about}")
    print("\nThen, for a corpus: data/prepare makes token shards (--prepare does so at once), which ./train_gpt2 -i "
          "reads.\n"
          "Web texts have rights of their own, whatever the licence of the collection. More: doc/data.md")


def get(name, directory, arguments):
    source = SOURCES[name]
    print(f"{name}: {source.about} ({source.licence}) -> {shown(directory)}", flush=True)
    files = list_files(source, directory, arguments.retry_wait)
    files = files[: arguments.files] if arguments.files else files
    fetch_all(files, directory, by_hand(source, directory), os.environ.get("HF_TOKEN"), host_of(endpoint()),
              arguments.connections, arguments.retry_wait, online=bool(source.repo))
    return files


def get_and_prepare(arguments):
    source = SOURCES[arguments.name]
    directory = (Path(arguments.output) if arguments.output else ROOT / "data" / arguments.name).absolute()
    files = get(arguments.name, directory, arguments)
    make, then = commands(source, directory, files)
    tokenizer = tokenizer_directory(directory)
    have_tokenizer = (tokenizer / "tokenizer.json").is_file() or (tokenizer / "vocab.json").is_file()
    # HellaSwag is only useful as tokens: they are made as soon as the tokenizer is known.
    if make and (arguments.prepare or (source.kind == "choices" and have_tokenizer and Path(make[0][0][0]).is_file())):
        if not have_tokenizer:
            get(TOKENIZER, tokenizer, argparse.Namespace(**{**vars(arguments), "files": 0}))
        for pipeline in make:
            if code := run_pipeline(pipeline):
                return code
        make = []
    elif make and not have_tokenizer:
        make = [[[program("data/get.py"), TOKENIZER]]] + make
    print("next:")
    for line in [text_of(pipeline) for pipeline in make] + [shlex.join(command) for command in then]:
        print("  " + line)
    return 0


def main():
    parser = argparse.ArgumentParser(prog="data/get.py", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name", nargs="?", metavar="NAME", help="what to download; default: list the names")
    parser.add_argument("-o", "--output", metavar="DIR", help="output directory (default data/NAME)")
    parser.add_argument("--prepare", action="store_true", help="make token shards with GPT-2's tokenizer afterwards")
    parser.add_argument("--files", type=int, default=0, metavar="N", help="only the first N files of many")
    parser.add_argument("--connections", type=int, default=4, metavar="N", help="files at a time, 1 to 8 (default 4)")
    parser.add_argument("--retry-wait", type=float, default=1.0, metavar="SECONDS",
                        help="pause before the second attempt, doubled for each one after it (default 1)")
    arguments = parser.parse_args()
    if not arguments.name:
        list_sources()
        return 0
    if arguments.name not in SOURCES:
        near = difflib.get_close_matches(arguments.name, SOURCES, 1)
        raise Problem(f"unknown name {arguments.name}; " +
                      (f"did you mean {near[0]}?" if near else "data/get.py without a name lists all names"), 2)
    if not 1 <= arguments.connections <= 8 or arguments.files < 0 or arguments.retry_wait < 0:
        raise Problem("--connections must be 1 to 8, --files and --retry-wait at least 0", 2)
    try:
        return get_and_prepare(arguments)
    except KeyboardInterrupt:
        raise Problem("stopped; the same command resumes it", tool.EXIT_INTERRUPTED) from None


if __name__ == "__main__":
    tool.run(main)
