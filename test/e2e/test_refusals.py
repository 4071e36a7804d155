"""Every row of test/refusals.txt: a command that cannot be, its exit code and the line it says.

The head of the table says how a row is written. This file, run as a program, prints what the
commands of its standard input say, as rows; with --left it lists the refusals in the sources of
some directories whose words are in no row and no other test.
"""
import json
import os
import pickle
import re
import shlex
import shutil
import stat
import struct
import sys
import tempfile
from pathlib import Path

import pytest
from conftest import (PREPARE, ROOT, TRAIN_TOKENIZER, TRAINER, call, checkpoints, make_text,
                      write_shard, write_state)

pytestmark = pytest.mark.sanitize

TABLE = ROOT / "test/refusals.txt"
LONGEST = 1200  # bytes of a line


# -------------------------------------------------------------------------------------------- world

LFS = b"version https://git-lfs.github.com/spec/v1\noid sha256:" + b"a" * 64 + b"\nsize 485200\n"
PAGE = b"<!DOCTYPE html><html><title>Not found</title></html>" + b" " * 1200
TOKENS = b"".join((i % 257).to_bytes(2, "little") for i in range(5000))
NUMPY = b"\x93NUMPY\x01\x00v\x00" + b"{'descr': '<u2', 'shape': (5000,), }".ljust(117) + b"\n"
QUESTION = {"ctx": "a b", "endings": ["c", "d"], "label": 1}


def words_of(*words, kind="I", room=256):
    """The header of a binary file."""
    return struct.pack(f"<{room}{kind}", *words, *[0] * (room - len(words)))


# What people give by mistake, and what is damaged. All kinds: test/unit/test_foreign_file.c.
FILES = {
    "-dash.txt": b"some text\n" * 50,
    "text/one": b"1",
    "text/binary": b"\0\0",
    "text/empty.jsonl": b"",
    "text/blank.jsonl": b"\n\n \n",
    "text/nothing.jsonl": b'{"text": ""}\n' * 3,
    "text/half.jsonl": b'{"text": "x"}\n{"text"',
    "text/content.jsonl": b'{"content": "x"}\n',
    "text/plain.txt.gz": b"plain text",
    "text/plain.txt.zst": b"plain text",
    "text/a.parquet": b"PAR1" + bytes(100) + b"PAR1",
    "text/short.txt": b"too short",
    "given/file": b"a file",
    "given/lfs": LFS,
    "given/page": PAGE,
    "given/torch": b"PK\3\4".ljust(30) + b"archive/data.pkl",
    "given/piece": b"\n\x0e\n\x05<unk>\x15\x00\x00\x00\x00\x18\x02" * 20,
    "given/pickle": pickle.dumps({"a": 1}),
    "given/tokens.bin": TOKENS,
    "given/numpy.bin": NUMPY + TOKENS,
    "given/llama3.bin": words_of(20240801, 7, 5000) + words_of(kind="I", room=5000),
    "given/header.bin": words_of(20240520, 1)[:1023],
    "given/shard.gguf": b"not a model",
    "given/questions.jsonl": json.dumps(QUESTION).encode(),
    "given/label.jsonl": json.dumps({**QUESTION, "label": 2}).encode(),
    "given/long.jsonl": json.dumps({**QUESTION, "endings": ["c" * 40000, "d"]}).encode(),
    "given/blank.jsonl": b"\n",
    "tokenizer/tokenizer.json": b"{}",
    "options/options.json": b'{"train-data":"x","xxh3": "0"}',
}
# Fields of the header of a shard of 40 tokens that has these otherwise.
GOOD_SHARD = {0: 20240520, 1: 2, 2: 2, 3: 300, 4: 40, 6: 1}
SHARDS = {"version": {1: 3}, "bytes": {2: 3}, "vocab": {3: 65537}, "eot": {6: 302},
          "count": {4: 41}, "less": {4: 39}, "negative": {5: -1}}
# A manifest.json beside a shard a.bin of 100 tokens; the shards are those of "train".
STATED = {"file": "a.bin", "tokens": 100, "bytes": 1224, "xxh3": "0" * 16}
MANIFESTS = {
    "missing": [{"file": "b.bin"}], "list": [3], "nameless": [{}], "no_array": 3,
    "tokens": [{**STATED, "tokens": 101}], "sum": [STATED], "digits": [{**STATED, "xxh3": "0x1"}],
}
# Changes of a config.json of test/golden. All fields: test_huggingface_config.c.
CONFIGS = {
    "mistral": ("qwen3", {"model_type": "mistral"}),
    "norm": ("qwen3", {"model_type": "pretrain_cu", "norm": "none"}),
    "both": ("normed", {"tie_word_embeddings": True}),
    "llama_of_qwen2": ("qwen2", {"model_type": "llama", "architectures": ["LlamaForCausalLM"]}),
    "untied": ("llama_biased", {"tie_word_embeddings": False}),
}


def parts_of(model):
    """The header of its safetensors, and the data."""
    content = (model / "model.safetensors").read_bytes()
    start = 8 + int.from_bytes(content[:8], "little")
    return json.loads(content[8:start]), content[start:]


def write_parts(model, header, data):
    text = json.dumps(header).encode()
    (model / "model.safetensors").write_bytes(len(text).to_bytes(8, "little") + text + data)


def add_head(model):
    """A head beside the embedding, with other weights."""
    header, data = parts_of(model)
    embedding = header["transformer.wte.weight"]
    size = embedding["data_offsets"][1] - embedding["data_offsets"][0]
    header["lm_head.weight"] = {**embedding, "data_offsets": [len(data), len(data) + size]}
    write_parts(model, header, data + struct.pack("<f", 1.5) * (size // 4))


def make_infinite(model):
    header, data = parts_of(model)
    weights = header["transformer.h.1.mlp.c_fc.weight"]
    at = weights["data_offsets"][0] + 4 * (4 * weights["shape"][1] + 44)
    write_parts(model, header, data[:at] + struct.pack("<f", float("inf")) + data[at + 4:])


def put(name, content):
    return lambda directory: (directory / name).write_bytes(content)


def cut_weights(directory):
    os.truncate(directory / "model.safetensors", 2000)


def change_T(run):
    state = json.loads((checkpoints(run)[-1] / "trainer.json").read_text())
    write_state(checkpoints(run)[-1], {**state, "T": 16})


# Copies of a model or a run, and what was done to them.
DAMAGED = {
    "hf_rubbish": ("hf", put("model.safetensors", b"rubbish" * 99)),
    "hf_lfs": ("hf", put("model.safetensors", LFS)),
    "hf_cut": ("hf", cut_weights),
    "hf_no_json": ("hf", put("config.json", b"{ no json")),
    "hf_page": ("hf", put("config.json", PAGE)),
    "hf_no_config": ("hf", lambda model: (model / "config.json").unlink()),
    "hf_inf": ("hf", make_infinite),
    "hf_untied": ("hf", add_head),
    "damaged": ("run", lambda run: cut_weights(checkpoints(run)[-1])),
    "other_T": ("run", change_T),
}


def make_files(world):
    for name, content in FILES.items():
        (world / name).parent.mkdir(exist_ok=True)
        (world / name).write_bytes(content)
    for name in "empty", "alias", "gone", "given/directory.bin", "given/directory.gguf":
        (world / name).mkdir()
    os.mkfifo(world / "text/fifo")
    (world / "link").symlink_to("nowhere")
    make_text(world / "docs", documents=20)
    for name, fields in SHARDS.items():
        header = [{**GOOD_SHARD, **fields}.get(i, 0) for i in range(256)]
        (world / f"given/{name}.bin").write_bytes(words_of(*header, kind="i") + bytes(80))
    for name, shards in {**MANIFESTS, "sides": None}.items():
        (world / "manifest" / name).mkdir(parents=True)
        sides = {"val": {"shards": []}, **({"train": {"shards": shards}} if shards else {})}
        (world / "manifest" / name / "manifest.json").write_text(json.dumps(sides))
        write_shard(world / "manifest" / name / "a.bin", list(range(100)), vocab=257)
    write_shard(world / "given/wide.bin", [1] * 100, vocab=300)
    write_shard(world / "given/few.bin", [1] * 20, vocab=257)
    write_shard(world / "given/beyond.bin", [1] * 20 + [60000] * 80)
    write_shard(world / "given/later.bin", [1] * 40 + [60000] + [1] * 500)
    for name, label, last in ("label", 2, 2), ("long", 0, 33):  # a question with two completions
        words = [65535, 2 * (10 + last), 0, label, 2, 1, 7, 1, 8, last, *last * [9]]
        content = words_of(20240522, 1, 1, words[1]) + words_of(*words, kind="H", room=len(words))
        (world / f"given/{name}.choices").write_bytes(content)
    for name, (golden, fields) in CONFIGS.items():
        model = shutil.copytree(ROOT / f"test/golden/tiny_{golden}", world / "config" / name)
        config = json.loads((model / "config.json").read_text())
        (model / "config.json").write_text(json.dumps({**config, **fields}))


def make_world(world):
    """Files, and what the programs make of them: corpora, tokenizers, models and runs."""
    make_files(world)

    def make(command, *arguments):
        call(command, *arguments, cwd=world, expect=0)

    make(PREPARE, "-o", "sh", "docs")
    make(PREPARE, "-o", "two", "docs/001.txt", "docs/003.txt", "docs/005.txt")
    for i in (1, 2):
        texts = [f"docs/00{i}.txt", f"docs/00{i + 2}.txt"]
        make(PREPARE, "-o", f"own{i}", "--tokenizer", "train:270", *texts)
    make(TRAIN_TOKENIZER, "--vocab-size", 270, "-o", "other one.json", "docs")
    (world / "alias/copy_train.bin").symlink_to("../sh/val_000000.bin")
    (world / "alias/more_train.bin").symlink_to("../sh/train_000000.bin")
    for name in "train", "val":
        shutil.copy(world / f"sh/{name}_000000.bin", world / f"gone/{name}.bin")
    shutil.copy(world / "gone/train.bin", world / "gone/text.bin")

    tiny = shlex.split(f"{TRAINER} -e L=2,C=64,NH=2,T=32 -t 32 -b 4 -v 0 -s 0 --threads 1")
    shards = ["-i", "sh/train_*.bin"]
    make(*tiny, *shards, "-x", 1, "-o", "run", "--export", "hf")
    make(*tiny, *shards, "-x", 1, "-o", "run72", "--d-ff", 72, "--export", "hf72")
    make(*tiny, "-x", 1, "-o", "mixed", "-i", "sh/train_*.bin:0.7,two/train_*.bin:0.3")
    make(*tiny, "-x", 1, "-o", "seen", "-v", 1, "-m", 4, "-i", "gone/train.bin")
    make(*tiny, "-x", 0, "-e", "L=1,C=64,NH=2,T=32,V=300", "--export", "hf300")
    (world / "hf300/tokenizer.json").unlink(missing_ok=True)
    (world / "gone/val.bin").unlink()
    for name, (of, change) in DAMAGED.items():
        change(shutil.copytree(world / of, world / name))


@pytest.fixture(scope="session")
def world(tmp_path_factory):
    """The directory in which the commands run."""
    directory = tmp_path_factory.mktemp("world")
    make_world(directory)
    return directory


def files_of(world):
    paths = (path for path in world.rglob("*") if path.name != ".lock")
    stats = {path: path.lstat() for path in paths}
    return {path: (s.st_size, s.st_mtime_ns) for path, s in stats.items()
            if not stat.S_ISDIR(s.st_mode)}


# --------------------------------------------------------------------------------------------- rows


def program(name):
    found = TRAINER if name == "train" else TRAINER.with_name(name)
    return found if found.is_file() else ROOT / "data" / name


def pattern_of(line):
    """Of a line in which ... is any text, and << >> are around what is advised."""
    parts = line.replace("FILE...", "FILE\0").split("...")
    text = ".*".join(re.escape(part) for part in parts)
    return text.replace("\0", r"\.\.\.").replace("<<", "(").replace(">>", ")")


class Row:
    def __init__(self, text, names):
        self.command, _, said = text.partition(" => ")
        self.code, self.line = re.fullmatch(r"(?:(\d+), (.*))?", said).groups()
        self.names, self.advice, self.environment = names, [], {}
        words = shlex.split(self.command)
        while named := re.fullmatch("([A-Z_]+)=(.*)", words[0]):
            self.environment[named[1]] = named[2]
            words = words[1:]
        self.name, *words = [*names.get(words[0], words[:1]), *words[1:]]
        words = [re.sub(r"\{(\d+)(.)\}", lambda m: int(m[1]) * m[2], word) for word in words]
        self.words = [re.sub(r"\\x(..)", lambda m: chr(int(m[1], 16)), word) for word in words]

    def run(self, world):
        environment = {**os.environ, **self.environment}
        return call(program(self.name), *self.words, cwd=world, env=environment, timeout=120)

    def follow(self, advised, command, world):
        """Types what a message advises, as it is; afterwards the directory is as it was."""
        typed = command.replace("{}", advised).replace("DIR", "made").replace("FILE...", "docs")
        first, _, rest = typed.partition(" ")
        words = self.names.get(first, [first])
        if words[0].isidentifier() and program(words[0]).is_file():
            first = shlex.join([str(program(words[0])), *words[1:]])
        before = set(world.rglob("*"))
        call("bash", "-c", f"{first} {rest}", cwd=world, expect=0)
        for path in sorted(set(world.rglob("*")) - before, reverse=True):
            path.rmdir() if path.is_dir() else path.unlink()


def alternatives(line):
    """A line for each word of {a|b|c}, with this word in place of {}."""
    found = re.search(r"\{([^{}]*\|[^{}]*)\}", line)
    if not found:
        return [line]
    return [line.replace(found[0], word).replace("{}", word) for word in found[1].split("|")]


def read_table(lines):
    names, rows = {}, []
    for line in lines:
        line = line.rstrip("\n")
        if named := re.fullmatch(r"([A-Z][A-Z0-9_]*) = (.*)", line):
            names[named[1]] = shlex.split(named[2])
        elif line[:2] == "> ":
            rows[-1].advice.append(line[2:])
        elif line and line[0] != "#":
            rows += [Row(one, names) for one in alternatives(line)]
    return rows


def said_by(result):
    """The last line, without the program that says it."""
    return re.sub(r"^\S*?(\w+): ", "", (result.stderr.splitlines() or [""])[-1], count=1)


ROWS = read_table(TABLE.read_text().splitlines())


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.command[:100])
def test_a_command_that_cannot_be_ends_with_its_line(row, world):
    before = files_of(world)
    result = row.run(world)
    lines, is_resume = result.stderr.splitlines(), "-y" in row.words
    assert result.returncode == int(row.code) and lines, (result.stdout[-1000:], result.stderr)

    last = lines[-1]
    found = re.fullmatch(pattern_of(row.line), said_by(result))
    assert found, last
    assert program(row.name).name in last.partition(": ")[0] and len(last) < LONGEST
    assert not any(c < " " and c != "\n" for c in result.stderr), "control characters"
    for part in last.partition(": ")[2].split("; "):
        paths = re.findall(r"[^\s:;,'(]*/[^\s:;,')]+", part)
        assert len(paths) == len(set(paths)), f"a path is there twice: {last}"

    began = row.code == "1" or is_resume
    assert began or len(lines) == 1, result.stderr
    assert began or row.name != "train" or result.stdout == "", result.stdout
    assert files_of(world) == before, "files have changed"
    for command in row.advice:
        row.follow(found[1], command, world)


# ---------------------------------------------------------------------------------- what has no row

# What no command on a CPU can reach, and why.
UNREACHED = {
    "must be a multiple of T =": "T is at least 1 by then: test_options.c calls it with 0",
    "/dev/null cannot be opened": "for processes whose output is dropped",
    "the choices of process 0 do not fit this GPU": "takes two GPUs",
}
STRING = r'"(?:[^"\\\n]|\\.)*"'
# A call, or a row of a table: {condition, "-y: ..."}.
REFUSES = re.compile(rf'\berror_set\(\s*[^"(),]+,\s*((?:{STRING}|PRI\w+|\s)+)|'
                     rf'\{{[^{{}}"]+,\s*("-{STRING[1:]})\}}')


def refusals_of(directory):
    """The texts by which the sources of a directory refuse: (file, line, format)."""
    for path in sorted((ROOT / directory).glob("*.c")):
        source = path.read_text()
        for found in REFUSES.finditer(source):
            parts = re.findall(STRING, found[1] or found[2])
            text = "".join(part[1:-1] for part in parts).replace('\\"', '"')
            yield path.relative_to(ROOT), source.count("\n", 0, found.start()) + 1, text


def left_in(directory):
    """Those of which no row and no test has the longest words between two values."""
    tests = [path for path in (ROOT / "test").rglob("*")
             if path.suffix in (".c", ".h", ".py") and path.name != Path(__file__).name]
    joined = [re.sub(r'"\s*\n\s*"', "", path.read_text()) for path in tests]
    asked = "\n".join([TABLE.read_text(), *joined]).replace('\\"', '"')
    for path, line, text in refusals_of(directory):
        parts = re.split(r"%[-+ #0-9.*]*(?:ll|z|l)?[a-zA-Z%]?", text)
        longest = max(parts, key=len).strip(" '\"(),;:")
        if longest not in asked and longest[:24] not in asked:
            yield f"{path}:{line}: {text}"


def test_every_refusal_of_the_options_has_a_row():
    left = [text for text in left_in("llmc/run") if not any(known in text for known in UNREACHED)]
    assert not left, "add rows to test/refusals.txt for:\n" + "\n".join(left)


def main(arguments):
    if arguments[:1] == ["--left"]:
        for name in arguments[1:] or ["llmc/run", "llmc/data", "llmc/store", "data"]:
            print("\n".join(left_in(name)))
        return
    table = TABLE.read_text().splitlines()
    names = [line for line in table if re.match("[A-Z][A-Z0-9_]* = ", line)]
    with tempfile.TemporaryDirectory() as directory:
        make_world(Path(directory))
        for row in read_table([*names, *sys.stdin]):
            result = row.run(directory)
            print(f"{row.command} => {result.returncode}, {said_by(result)}", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
