"""Every row of test/refusals.txt: a command that cannot be, its exit code and the one line that it says.

The head of the table says how a row is written. A row without `=>` is no test yet: this file, run as a program, prints
what the commands of its standard input say, as rows. With --left it lists the refusals of some directories whose words
are in no row and no other test.
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
from pathlib import Path

import pytest
from conftest import PREPARE, ROOT, TRAIN_TOKENIZER, TRAINER, call, checkpoints, make_text, write_shard, write_state

pytestmark = pytest.mark.sanitize

TABLE = ROOT / "test/refusals.txt"
LONGEST = 1200
QUIET = "-v 0 -s 0 --threads 1"


# --------------------------------------------------------------------------------------------------------------- world

LFS = b"version https://git-lfs.github.com/spec/v1\noid sha256:" + b"a" * 64 + b"\nsize 485200\n"
PAGE = b"<!DOCTYPE html><html><title>Not found</title></html>" + b" " * 1200
TOKENS = b"".join((i % 257).to_bytes(2, "little") for i in range(5000))
GOOD = {"ctx": "a b", "endings": ["c", "d"], "label": 1}
# What people give by mistake, and what is damaged. The kinds of foreign files: test/unit/test_foreign_file.c.
FILES = {
    "text/one": b"1",
    "text/binary": b"\0\0",
    "text/empty.jsonl": b"",
    "text/blank.jsonl": b"\n\n \n",
    "text/nothing.jsonl": b'{"text": ""}\n' * 3,
    "text/plain.txt.gz": b"plain text",
    "text/plain.txt.zst": b"plain text",
    "text/a.parquet": b"PAR1" + bytes(100) + b"PAR1",
    "-dash.txt": b"some text\n" * 50,
    "text/short.txt": b"too short",
    "text/half.jsonl": b'{"text": "x"}\n{"text"',
    "text/content.jsonl": b'{"content": "x"}\n',
    "given/tokens.bin": TOKENS,
    "given/numpy.bin": b"\x93NUMPY\x01\x00v\x00" + b"{'descr': '<u2', 'shape': (5000,), }".ljust(117) + b"\n" + TOKENS,
    "given/llama3.bin": struct.pack("<256i", 20240801, 7, 5000, *[0] * 253) + struct.pack("<5000i", *[1] * 5000),
    "given/lfs": LFS,
    "given/page": PAGE,
    "given/torch": b"PK\3\4".ljust(30) + b"archive/data.pkl",
    "given/piece": b"\n\x0e\n\x05<unk>\x15\x00\x00\x00\x00\x18\x02" * 20,
    "given/pickle": pickle.dumps({"a": 1}),
    "given/file": b"a file",
    "given/shard.gguf": b"not a model",
    "given/header.bin": struct.pack("<256i", 20240520, 1, *[0] * 254)[:1023],
    "given/questions.jsonl": json.dumps(GOOD).encode(),
    "given/label.jsonl": json.dumps({**GOOD, "label": 2}).encode(),
    "given/blank.jsonl": b"\n",
}
# Fields of a shard's header, 20240520, 2, 2 (bytes a token), 300, 0, 0, 1 in a good one, and the tokens behind it.
SHARDS = {
    "version": {1: 3}, "bytes": {2: 3}, "vocab": {3: 65537}, "eot": {6: 302}, "count": {4: 41}, "less": {4: 39},
    "negative": {5: -1},
}
# Changes of a config.json of test/golden. All fields: test_huggingface_config.c, test_weights_file.c.
CONFIGS = {
    "mistral": {"model_type": "mistral", "of": "qwen3"},
    "norm": {"model_type": "pretrain_cu", "norm": "none", "of": "qwen3"},
    "both": {"tie_word_embeddings": True, "of": "normed"},
    "llama_of_qwen2": {"model_type": "llama", "architectures": ["LlamaForCausalLM"], "of": "qwen2"},
    "untied": {"tie_word_embeddings": False, "of": "llama_biased"},
}


def damaged(world, name, change, of="hf"):
    """A copy of the model in a directory, in which `change` has been at work."""
    change(shutil.copytree(world / of, world / name))


def change_weights(directory, name, change):
    """Changes one fp32 tensor of a model by its bytes."""
    path = directory / "model.safetensors"
    content = bytearray(path.read_bytes())
    start = 8 + int.from_bytes(content[:8], "little")
    begin, end = json.loads(content[8:start])[name]["data_offsets"]
    content[start + begin:start + end] = change(content[start + begin:start + end])
    path.write_bytes(content)


def add_head(directory):
    """A head beside the embedding, with other weights."""
    path = directory / "model.safetensors"
    content = path.read_bytes()
    start = 8 + int.from_bytes(content[:8], "little")
    header = json.loads(content[8:start])
    embedding, end = header["transformer.wte.weight"], len(content) - start
    size = embedding["data_offsets"][1] - embedding["data_offsets"][0]
    header["lm_head.weight"] = {**embedding, "data_offsets": [end, end + size]}
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + content[start:] + struct.pack("<f", 1.5) * (size // 4))


def change_state(run, **fields):
    checkpoint = checkpoints(run)[-1]
    write_state(checkpoint, {**json.loads((checkpoint / "trainer.json").read_text()), **fields})


def make_world(world):
    for name, content in FILES.items():
        (world / name).parent.mkdir(exist_ok=True)
        (world / name).write_bytes(content)
    make_text(world / "docs", documents=20)
    os.mkfifo(world / "text/fifo")
    (world / "empty").mkdir()
    call(PREPARE, "-o", "sh", "docs", cwd=world, expect=0)
    call(PREPARE, "-o", "two", "docs/001.txt", "docs/003.txt", "docs/005.txt", cwd=world, expect=0)
    write_shard(world / "given/wide.bin", [1] * 100, vocab=300)
    write_shard(world / "given/beyond.bin", [1] * 20 + [60000] * 80)
    write_shard(world / "given/few.bin", [1] * 20, vocab=257)
    write_shard(world / "given/later.bin", [1] * 40 + [60000] + [1] * 500)
    for name, label, last in ("label", 2, 2), ("long", 0, 33):
        words = [65535, 0, 0, label, 2, 1, 7, 1, 8, last, *last * [9]]
        words[1] = 2 * len(words)
        header = struct.pack("<256i", 20240522, 1, 1, words[1], *[0] * 252)
        (world / f"given/{name}.choices").write_bytes(header + struct.pack(f"<{len(words)}H", *words))

    for name, fields in SHARDS.items():
        header = {0: 20240520, 1: 2, 2: 2, 3: 300, 4: 40, 6: 1, **fields}
        (world / f"given/{name}.bin").write_bytes(struct.pack("<256i", *[header.get(i, 0) for i in range(256)]) + bytes(80))
    for name, change in CONFIGS.items():
        model = shutil.copytree(ROOT / "test/golden" / f"tiny_{change['of']}", world / "config" / name)
        config = {**json.loads((model / "config.json").read_text()), **change}
        (model / "config.json").write_text(json.dumps(config))

    tiny = shlex.split(f"{TRAINER} -e L=2,C=64,NH=2,T=32 -t 32 -b 4 {QUIET} -i sh/train_*.bin")
    call(*tiny, "-x", 1, "-o", "run", "--export", "hf", cwd=world, expect=0)
    call(*tiny, "-x", 1, "-o", "run72", "--d-ff", 72, "--export", "hf72", cwd=world, expect=0)
    call(*tiny, "-x", 1, "-o", "mixed", "-i", "sh/train_*.bin:0.7,two/train_*.bin:0.3", cwd=world, expect=0)
    call(*tiny, "-x", 0, "-e", "L=1,C=64,NH=2,T=32,V=300", "--export", "hf300", cwd=world, expect=0)
    (world / "hf300/tokenizer.json").unlink(missing_ok=True)
    for name, change in {"damaged": lambda at: os.truncate(checkpoints(at)[-1] / "model.safetensors", 2000),
                         "other_T": lambda at: change_state(at, T=16)}.items():
        change(shutil.copytree(world / "run", world / name))

    def put(name, content):
        return lambda at: (at / name).write_bytes(content)

    def inf(weights):
        at = 4 * (4 * 256 + 44)
        return weights[:at] + struct.pack("<f", float("inf")) + weights[at + 4:]

    damaged(world, "hf_rubbish", put("model.safetensors", b"rubbish" * 99))
    damaged(world, "hf_lfs", put("model.safetensors", LFS))
    damaged(world, "hf_cut", lambda at: os.truncate(at / "model.safetensors", 2000))
    damaged(world, "hf_no_json", put("config.json", b"{ no json"))
    damaged(world, "hf_page", put("config.json", PAGE))
    damaged(world, "hf_inf", lambda at: change_weights(at, "transformer.h.1.mlp.c_fc.weight", inf))
    damaged(world, "hf_no_config", lambda at: (at / "config.json").unlink())
    damaged(world, "hf_untied", add_head)
    call(TRAIN_TOKENIZER, "--vocab-size", 270, "-o", "other one.json", "docs", cwd=world, expect=0)
    (world / "link").symlink_to("nowhere")
    (world / "alias").mkdir()
    (world / "alias/copy_train.bin").symlink_to("../sh/val_000000.bin")
    (world / "alias/more_train.bin").symlink_to("../sh/train_000000.bin")
    for name in "given/directory.bin", "given/directory.gguf", "tokenizer":
        (world / name).mkdir()
    (world / "tokenizer/tokenizer.json").write_text("{}")
    (world / "gone").mkdir()
    for name in "train", "val":
        shutil.copy(world / f"sh/{name}_000000.bin", world / f"gone/{name}.bin")
    call(*tiny, "-x", 1, "-o", "seen", "-v", 1, "-m", 4, "-i", "gone/train.bin", cwd=world, expect=0)
    (world / "gone/val.bin").unlink()
    (world / "gone/train.bin").rename(world / "gone/text.bin")
    shutil.copy(world / "gone/text.bin", world / "gone/train.bin")
    for i in (1, 2):
        call(PREPARE, "-o", f"own{i}", "--tokenizer", "train:270", f"docs/00{i}.txt", f"docs/00{i + 2}.txt", cwd=world, expect=0)
    (world / "options").mkdir()
    (world / "options/options.json").write_bytes(b'{"train-data":"x","xxh3": "0"}')


@pytest.fixture(scope="session")
def world(tmp_path_factory):
    """Where the commands of the table run: corpora, models, runs, and files that are none of them."""
    directory = tmp_path_factory.mktemp("world")
    make_world(directory)
    return directory


# ---------------------------------------------------------------------------------------------------------------- rows


def program(name):
    found = TRAINER if name == "train" else TRAINER.with_name(name)
    return found if found.is_file() else ROOT / "data" / name


class Row:
    def __init__(self, text, names, number):
        self.text, self.number, self.names, self.advice = text, number, names, []
        command, self.arrow, said = text.partition(" => ")
        found = re.fullmatch(r"(\d+), (.*)", said, re.S)
        assert found or not self.arrow, f"{TABLE.name}:{number}: expected `command => exit code, line`"
        self.code, self.line = (int(found[1]), found[2]) if found else (None, None)
        words = shlex.split(command)
        while words[0] in names:
            words = [*names[words[0]], *words[1:]]
        words = [re.sub(r"\{(\d+)(.)\}", lambda m: int(m[1]) * m[2], word) for word in words]
        words = [word.encode().decode("unicode_escape") if "\\x" in word else word for word in words]
        self.environment = {}
        while re.fullmatch("[A-Z_]+=.*", words[0], re.S):
            name, _, self.environment[name] = words.pop(0).partition("=")
        while words[0] in names:
            words = [*names[words[0]], *words[1:]]
        self.name, self.words = words[0], words[1:]

    def run(self, world):
        return call(program(self.name), *self.words, cwd=world, env={**os.environ, **self.environment}, timeout=120)

    def follow(self, advised, command, world):
        """Types what a message advises, as it is there; afterwards the world is as it was."""
        first, _, rest = command.replace("{}", advised).replace("DIR", "made").replace("FILE...", "docs").partition(" ")
        words = self.names.get(first, [first])
        if words[0].isidentifier() and program(words[0]).is_file():
            first = shlex.join([str(program(words[0])), *words[1:]])
        before = set(world.rglob("*"))
        call("bash", "-c", f"{first} {rest}", cwd=world, expect=0)
        for path in sorted(set(world.rglob("*")) - before, reverse=True):
            path.rmdir() if path.is_dir() else path.unlink()


def said_by(result):
    """The last line, without the program that says it."""
    lines = result.stderr.splitlines() or [""]
    return re.sub(r"^\S*?(\w+): ", "", lines[-1], count=1)


def alternatives(line):
    """A line for each word of {a|b|c}, with this word in place of {}."""
    found = re.search(r"\{([^{}]*\|[^{}]*)\}", line)
    for word in found[1].split("|") if found else []:
        yield line.replace(found[0], word).replace("{}", word)
    if not found:
        yield line


def read_table(lines):
    names, rows = {}, []
    for number, line in enumerate(lines, 1):
        line = line.rstrip("\n")
        if named := re.fullmatch(r"([A-Z][A-Z0-9_]*) = (.*)", line):
            names[named[1]] = shlex.split(named[2])
        elif line[:2] == "> ":
            rows[-1].advice.append(line[2:])
        elif line and line[0] != "#":
            rows += [Row(one, names, number) for one in alternatives(line)]
    return rows


ROWS = read_table(TABLE.read_text().splitlines()) if TABLE.exists() else []


def files_of(world):
    stats = {path: path.lstat() for path in world.rglob("*") if path.name != ".lock"}
    return {path: (s.st_size, s.st_mtime_ns) for path, s in stats.items() if not stat.S_ISDIR(s.st_mode)}


def pattern_of(line):
    """Of a line in which ... is any text, and <<...>> what is advised."""
    text = ".*".join(re.escape(part) for part in line.replace("FILE...", "FILE\0").split("..."))
    return text.replace("\0", r"\.\.\.").replace("<<", "(").replace(">>", ")")


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.text.partition(" => ")[0][:100])
def test_a_command_that_cannot_be_ends_with_its_line(row, world):
    before = files_of(world)
    result = row.run(world)
    said = result.stderr.splitlines()
    assert result.returncode == row.code and said, (result.stdout[-1000:], result.stderr)
    line = re.fullmatch(pattern_of(row.line), said_by(result))
    assert line, said[-1]
    assert result.stdout == "" or row.code == 1 or row.name != "train" or "-y" in row.words, result.stdout
    assert len(said[-1]) < LONGEST and re.match(rf"\S*{row.name if row.name != 'train' else TRAINER.name}: ", said[-1])
    for part in said[-1].partition(": ")[2].split("; "):
        paths = re.findall(r"[^\s:;,'(]*/[^\s:;,')]+", part)
        assert len(paths) == len(set(paths)), f"a path is there twice: {said[-1]}"
    assert not any(c < " " and c != "\n" for c in result.stderr), "control characters"
    assert len(said) == 1 or row.code == 1 or "-y" in row.words, result.stderr
    assert files_of(world) == before, "files have changed"
    for command in row.advice:
        row.follow(line[1], command, world)


# ------------------------------------------------------------------------------------------------------ what has no row


def refusals_of(directory):
    """The texts by which the sources of a directory refuse: (file, line, format)."""
    texts = r'((?:\s*(?:"(?:[^"\\\n]|\\.)*"|PRI\w+))+)'
    calls = re.compile(r'\berror_set\(\s*(?:[^"(),]+,)\s*' + texts + r'|\{[^{}"]+,\s*("-(?:[^"\\\n]|\\.)*")\}')
    for path in sorted((ROOT / directory).glob("*.c")):
        source = path.read_text()
        for found in calls.finditer(source):
            literal = "".join(re.findall(r'"((?:[^"\\\n]|\\.)*)"|PRI', found[1] or found[2]))
            yield path.relative_to(ROOT), source.count("\n", 0, found.start()) + 1, literal.replace('\\"', '"')


def left_in(directory):
    """Those of which no row and no test has the longest words between two values."""
    tests = [path for path in (ROOT / "test").rglob("*.[cph]*") if path.suffix in (".c", ".h", ".py")]
    asked = "\n".join([TABLE.read_text(), *(re.sub(r'"\s*\n\s*"', "", path.read_text()) for path in tests)])
    asked = asked.replace('\\"', '"')
    for path, line, text in refusals_of(directory):
        parts = re.split(r"%[-+ #0-9.*]*(?:ll|z|l)?[a-zA-Z%]?", text)
        longest = max(parts, key=len).strip(" '\"(),;:")
        if longest not in asked and longest[:24] not in asked:
            yield f"{path}:{line}: {text}"


# What no command on a CPU can reach, and why.
UNREACHED = {
    "must be a multiple of T =": "T is at least 1 by then: test_options.c calls it with 0",
    "/dev/null cannot be opened": "for processes whose output is dropped",
    "the choices of process 0 do not fit this GPU": "takes two GPUs",
}


def test_every_refusal_of_the_options_has_a_row():
    left = [text for text in left_in("llmc/run") if not any(reason in text for reason in UNREACHED)]
    assert not left, "add rows to test/refusals.txt for:\n" + "\n".join(left)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--left"]:
        for name in sys.argv[2:] or ["llmc/run", "llmc/data", "llmc/store", "data"]:
            print("\n".join(left_in(name)))
    else:
        import tempfile
        with tempfile.TemporaryDirectory() as directory:
            make_world(Path(directory))
            names = [line for line in TABLE.read_text().splitlines() if re.match("[A-Z][A-Z0-9_]* = ", line)]
            for row in read_table([*names, *sys.stdin]):
                result = row.run(directory)
                print(f"{row.text.partition(' => ')[0]} => {result.returncode}, {said_by(result)}", flush=True)
