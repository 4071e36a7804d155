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
import re
import shlex
import subprocess
import sys
import tempfile
import urllib.parse
from dataclasses import dataclass
from pathlib import Path

from download import File, Problem, fetch_all, tool

ROOT = Path(__file__).resolve().parents[1]
TOKENIZER = "gpt2-tokenizer"


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
    urls: tuple = ()  # elsewhere: (URL, sha256, bytes)


GITHUB, HUB_FINEWEB = "https://raw.githubusercontent.com/", "datasets/HuggingFaceFW/fineweb"
VOCABULARY = ("vocab.json", "merges.txt", "tokenizer.json")
WEIGHTS = ("config.json", "model.safetensors") + VOCABULARY
PARQUET = ("*.parquet",)


def _shards(repo, size, about, prefix):
    return Source("shards", size, "ODC-By", about, "datasets/" + repo,
                  patterns=(prefix + "_val_*.bin", prefix + "_train_*.bin"))


SOURCES = {
    "tinyshakespeare": Source("text", "1.1 MB", "public domain", "a little Shakespeare: 338K GPT-2 tokens", urls=((
        GITHUB + "karpathy/char-rnn/master/data/tinyshakespeare/input.txt",
        "86c4e6aa9db7c042ec79f339dcb96d42b0075e16b8fc2e86bf0ca57e2dc565ed", 1115394),)),
    "tinystories": Source("parquet", "1.0 GB", "CDLA-Sharing-1.0", "2.1M short stories for small models",
                          "datasets/roneneldan/TinyStories", "data", PARQUET),
    "openwebtext": Source("parquet", "24 GB", "CC0 (packaging)", "8M web pages, what GPT-2 was trained on, remade",
                          "datasets/Skylion007/openwebtext", "plain_text/train", PARQUET, "refs/convert/parquet"),
    **{f"fineweb{edu}-{n}B": Source("parquet", size, "ODC-By", f"{n}B tokens of FineWeb{edu.title()}",
                                    HUB_FINEWEB + edu, f"sample/{n}BT", PARQUET)
       for edu, n, size in (("", 10, "28 GB"), ("", 100, "277 GB"), ("-edu", 10, "28 GB"), ("-edu", 100, "280 GB"))},
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
    **{name: Source("weights", size, "MIT", f"GPT-2 {n} by OpenAI", f"models/openai-community/{name}", patterns=WEIGHTS)
       for name, size, n in (("gpt2", "0.5 GB", "124M"), ("gpt2-medium", "1.5 GB", "355M"),
                             ("gpt2-large", "3.2 GB", "774M"), ("gpt2-xl", "6.4 GB", "1558M"))},
}


def endpoint():
    return os.environ.get("HF_ENDPOINT", "").rstrip("/") or "https://huggingface.co"


def shown(path):
    """A path as a word for a shell in the current directory."""
    here = Path.cwd()
    return shlex.quote(str(path.relative_to(here) if path.is_relative_to(here) else path))


def program(name):
    path = shown(ROOT / name)
    return path if "/" in path else "./" + path


def read_listing(url, fetch):
    """The files in the listing of a folder on the Hub. It has pages, each with a link to the next one."""
    entries = []
    while url:
        with tempfile.TemporaryDirectory() as scratch:
            page, headers = Path(scratch) / "page", Path(scratch) / "headers"
            fetch([File(url, page)], options=["--dump-header", headers, "--no-progress-meter"], say=lambda line: None)
            body = page.read_bytes()
            links = re.findall(r"(?im)^link:.*?<([^>]*)>; *rel=.?next", headers.read_text("latin-1"))
        try:
            entries += [e for e in json.loads(body) if e["type"] == "file"]
        except (ValueError, TypeError, KeyError):
            raise Problem(f"{url}: not a listing of files: {body[:60]!r}") from None
        # A mirror passes the Hub's own links on.
        url = endpoint() + urllib.parse.urlsplit(links[-1])._replace(scheme="", netloc="").geturl() if links else ""
    return entries


def list_files(source, directory, fetch):
    """The files of source, with sizes and checksums, in the order of its patterns."""
    if source.urls:
        base = os.environ.get("GITHUB_RAW", "").rstrip("/")
        return [File(url.replace(GITHUB, base + "/") if base else url, directory / url.rsplit("/", 1)[-1], size, sha256)
                for url, sha256, size in source.urls]
    revision = urllib.parse.quote(source.revision, safe="")
    folder = "/" + source.folder if source.folder else ""
    entries = read_listing(f"{endpoint()}/api/{source.repo}/tree/{revision}{folder}", fetch)
    files = []
    for pattern in source.patterns:
        found = [e for e in entries if fnmatch.fnmatchcase(str(e.get("path")).rsplit("/", 1)[-1], pattern)]
        if not found:
            raise Problem(f"{endpoint()}: {source.repo} has no {pattern} in {source.folder or 'its main folder'}; it "
                          "was reorganised, see its page for the new places")
        for entry in sorted(found, key=lambda e: e["path"]):  # which came over the network: every field is checked
            path, size, lfs = entry["path"], entry.get("size"), entry.get("lfs") or {}
            name = path.rsplit("/", 1)[-1]
            is_plain = re.fullmatch(r"\w[\w.-]*", name, re.ASCII)
            if not is_plain or not isinstance(size, int) or size < 0 or not isinstance(lfs, dict):
                raise Problem(f"{endpoint()}: its listing of {source.repo} cannot be read: {str(entry)[:120]}")
            kind = source.repo.removeprefix("models/")
            url = f"{endpoint()}/{kind}/resolve/{revision}/{urllib.parse.quote(path)}"
            sha256 = lfs.get("oid") or lfs.get("sha256")
            files.append(File(url, directory / name, size, sha256, None if sha256 else entry.get("oid")))
    return files


def commands(source, directory, files, tokenizer):
    """The command that makes what the trainer reads ("": none), and those that use it."""
    trainer, prepare, here = program("train_gpt2"), program("data/prepare"), shown(directory)
    first, answers = shown(files[0].path), shown(files[0].path.with_suffix(".bin"))
    prepare_shards = f"{prepare} --tokenizer {tokenizer} -o {shown(directory / 'shards')}"
    val, some = source.patterns if source.kind == "shards" else ("shards/val_*.bin", "shards/train_*.bin")
    val, some = (shown(Path(glob.escape(str(directory)), pattern)) for pattern in (val, some))
    return {
        "text": (f"{prepare_shards} {first}", [f"{trainer} -e L=6,C=384,NH=6,T=256 -i {some} -j {val}"]),
        "parquet": (f"{program('data/read_parquet.py')} {here} | {prepare_shards} --format jsonl -",
                    [f"{trainer} -e d12 -i {some} -j {val}"]),
        "choices": (f"{program('data/choices')} --tokenizer {tokenizer} {first} -o {answers}",
                    [f"{trainer} -e data/gpt2 -x 0 -v 0 -s 0 --choices {answers}"]),
        "shards": ("", [f"{program('data/shard')} verify {some} {val} --vocab 50257",
                        f"{trainer} -e d12 -i {some} -j {val}"]),
        "weights": ("", [f"{trainer} -e {here} -v 0 -x 0 -g 64 --prompt 'Once upon a time'"]),
        "tokenizer": ("", [f"{prepare} --tokenizer {here} -o data/shards FILE..."]),
    }[source.kind]


def list_sources():
    print("data/get.py NAME [-o DIR] [--prepare] downloads one of these into data/NAME:\n")
    print(f"  {'name':<22} {'size':>7}  {'licence':<17} what")
    for name, s in SOURCES.items():
        print(f"  {name:<22} {s.size:>7}  {s.licence:<17} {s.about}")
    print("\nThen, for a corpus: data/prepare makes token shards (--prepare does so at once), which ./train_gpt2 -i "
          "reads.\n"
          "Web texts have rights of their own, whatever the licence of the collection. More: doc/data.md")


def get(name, directory, arguments, number):
    """Fetches the first `number` files of a source, all if it is 0, and returns them."""
    source = SOURCES[name]
    print(f"{name}: {source.about} ({source.licence}) -> {shown(directory)}", flush=True)
    mirror = "HF_ENDPOINT" if source.repo else "GITHUB_RAW"

    def fetch(files, **how):
        fetch_all(files, f"copy the files into {shown(directory)} yourself, or set {mirror} to a mirror",
                  os.environ.get("HF_TOKEN") if source.repo else None, first_wait=arguments.retry_wait, **how)

    files = list_files(source, directory, fetch)
    files = files[:number] if number else files
    fetch(files, options=["--parallel-max", str(arguments.connections)], online=bool(source.repo))
    return files


def get_and_prepare(arguments):
    source = SOURCES[arguments.name]
    directory = Path(arguments.output).absolute() if arguments.output else ROOT / "data" / arguments.name
    files = get(arguments.name, directory, arguments, arguments.files)
    tokenizer = directory.parent / TOKENIZER
    if not (tokenizer / "tokenizer.json").is_file():
        tokenizer = ROOT / "data" / TOKENIZER
    has_tokenizer = (tokenizer / "tokenizer.json").is_file() or (tokenizer / "vocab.json").is_file()
    make, then = commands(source, directory, files, shown(tokenizer))
    maker = "data/choices" if source.kind == "choices" else "data/prepare"
    is_built = (ROOT / maker).is_file()
    # HellaSwag is only useful as tokens: they are made as soon as the tokenizer is known.
    if make and (arguments.prepare or (source.kind == "choices" and has_tokenizer and is_built)):
        if not has_tokenizer:
            get(TOKENIZER, tokenizer, arguments, 0)
        print("running: " + make, flush=True)
        if not is_built:
            raise Problem(f"{maker}: not built yet; run make {maker}, then: {make}", 2)
        if code := subprocess.call(["bash", "-o", "pipefail", "-c", make]):
            return code
    elif make:
        then = ([] if has_tokenizer else [f"{program('data/get.py')} {TOKENIZER}"]) + [make] + then
    print("next:", *then, sep="\n  ")
    return 0


def main():
    parser = argparse.ArgumentParser(prog="data/get.py", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name", nargs="?", metavar="NAME", help="what to download; default: list the names")
    parser.add_argument("-o", "--output", type=os.path.expanduser, metavar="DIR", help="output directory (default data/NAME)")
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
