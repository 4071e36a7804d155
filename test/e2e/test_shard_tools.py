"""data/shard, data/whereis and data/choices, as a user runs them.

whereis is held against the trainer itself: in a model whose logits do not depend on its input, the loss of a step tells
which tokens were its targets, so a step that had read one window (or one token) beside the named ones would show.
"""
import json
import math
import os
import random
import struct
import subprocess
from pathlib import Path

import pytest

from conftest import (BYTE_EOT, BYTE_VOCAB, ROOT, TRAINER, call, checkpoints, events, kill, losses, start, train, wait_for,
                      write_shard)

pytestmark = pytest.mark.sanitize

T, V, C = 32, 256, 64


def program(name):
    beside = TRAINER.with_name(name)
    return beside if beside.is_file() else ROOT / "data" / name


def tool(name, *arguments, expect=0, warns=False):
    result = call(program(name), *arguments, expect=expect)
    if expect == 0 and not warns:
        assert result.stderr == ""
    else:
        assert all(line.startswith(f"{name}: ") for line in result.stderr.splitlines()) and result.stderr
    return result


# ------------------------------------------------------------------------------------------------------------- whereis


def write_safetensors(path, tensors):
    """name -> (shape, values), in fp32."""
    header, offset = {}, 0
    for name, (shape, values) in tensors.items():
        assert math.prod(shape) == len(values)
        header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [offset, offset + 4 * len(values)]}
        offset += 4 * len(values)
    text = json.dumps(header).encode()
    data = b"".join(struct.pack(f"<{len(values)}f", *values) for _, values in tensors.values())
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)


def write_transparent_model(directory, logits):
    """A GPT-2 that gives these logits whatever it reads: all weights are zero but the bias of the last layernorm, which
    is the first unit vector, and the first column of wte, which holds the logits."""
    directory.mkdir()
    zeros = {"attn.c_attn.weight": [C, 3 * C], "attn.c_attn.bias": [3 * C], "attn.c_proj.weight": [C, C],
             "attn.c_proj.bias": [C], "mlp.c_fc.weight": [C, 4 * C], "mlp.c_fc.bias": [4 * C],
             "mlp.c_proj.weight": [4 * C, C], "mlp.c_proj.bias": [C], "ln_1.weight": [C], "ln_1.bias": [C],
             "ln_2.weight": [C], "ln_2.bias": [C]}
    tensors = {"transformer.h.0." + name: (shape, [0.0] * math.prod(shape)) for name, shape in zeros.items()}
    tensors["transformer.wte.weight"] = ([V, C], [x for logit in logits for x in [logit] + [0.0] * (C - 1)])
    tensors["transformer.wpe.weight"] = ([T, C], [0.0] * (T * C))
    tensors["transformer.ln_f.weight"] = ([C], [0.0] * C)
    tensors["transformer.ln_f.bias"] = ([C], [1.0] + [0.0] * (C - 1))
    write_safetensors(directory / "model.safetensors", tensors)
    (directory / "config.json").write_text(json.dumps(
        {"model_type": "gpt2", "activation_function": "gelu_new", "n_embd": C, "n_layer": 1, "n_head": 2,
         "n_positions": T, "vocab_size": V, "layer_norm_epsilon": 1e-5}))


class Glass:
    """A corpus and a model through which one sees what was read."""

    def __init__(self, directory):
        choose = random.Random(7)
        self.logits = [choose.uniform(-3, 3) for _ in range(V)]
        self.model, self.shards = directory / "model", directory / "shards"
        write_transparent_model(self.model, self.logits)
        self.shards.mkdir()
        self.tokens = {}
        for name, n in (("a", 300), ("b", 513), ("c", 1000)):  # 9, 16 and 31 windows, and tokens that belong to none
            path = write_shard(self.shards / f"{name}.bin", [choose.randrange(V) for _ in range(n)])
            self.tokens[str(path)] = struct.unpack(f"<{n}H", path.read_bytes()[1024:])
        self.windows = sum((len(tokens) - 1) // T for tokens in self.tokens.values())
        self.flags = ["-e", self.model, "-t", T, "-i", self.shards / "*.bin", "--dtype", "fp32", "-l", "1e-30",
                      "-c", 0, "-v", 0, "-s", 0]

    def loss(self, places):
        """Of a step whose windows begin at these (file, token)."""
        log_sum = math.log(sum(math.exp(x) for x in self.logits))
        targets = [self.logits[t] for file, at in places for t in self.tokens[file][at + 1:at + 1 + T]]
        return log_sum - sum(targets) / len(targets)


@pytest.fixture(scope="module")
def glass(tmp_path_factory):
    return Glass(tmp_path_factory.mktemp("glass"))


def whereis(run, step, *pattern):
    """The rows of the table, as dictionaries."""
    lines = tool("whereis", run, step, *pattern).stdout.splitlines()
    names = lines[1].split()
    rows = [dict(zip(names, line.split())) for line in lines[2:]]
    return [{k: v if k == "file" else int(v) for k, v in row.items()} for row in rows]


# fp32 sums of 160 losses near 6: relative error below 160 * 2^-24 = 1e-5, and the log has 9 digits.
TOLERANCE = 1e-4


def check_steps(glass, run, steps, position):
    """Every step read exactly what whereis says, from this position on; and would be seen to differ had its last window
    been the neighbour, or had it begun one token beside."""
    logged = losses(run)
    for step in steps:
        rows = whereis(run, step)
        places = [(row["file"], row["token"]) for row in rows]
        assert abs(logged[step] - glass.loss(places)) < TOLERANCE
        assert [row["position"] for row in rows] == list(range(position, position + len(rows)))
        assert all(row["byte"] == 1024 + 2 * row["token"] for row in rows)
        assert all(row["epoch"] == row["position"] // glass.windows + 1 for row in rows)
        position += len(rows)
        file, at = places[-1]
        neighbour = (file, at + T if at + 2 * T < len(glass.tokens[file]) else at - T)
        assert abs(logged[step] - glass.loss(places[:-1] + [neighbour])) > 2 * TOLERANCE
        assert abs(logged[step] - glass.loss([(f, a - 1 if a else 1) for f, a in places])) > 2 * TOLERANCE
    return position


def test_whereis_names_what_was_read_across_epochs_and_after_a_resume_with_another_batch(glass, tmp_path):
    run = tmp_path / "run"
    train(*glass.flags, "-o", run, "-b", 4, "-d", 5 * T, "-x", 14)
    assert [row["micro-batch"] for row in whereis(run, 1)] == [1, 1, 1, 1, 2]
    train("-o", run, "-y", "-b", 3, "-d", 7 * T, "-x", 24)
    assert [row["micro-batch"] for row in whereis(run, 15)] == [1, 1, 1, 2, 2, 2, 3]
    assert check_steps(glass, run, range(1, 25), 0) == 14 * 5 + 10 * 7 > 2 * glass.windows


def test_whereis_names_what_was_read_after_a_kill(glass, tmp_path):
    run = tmp_path / "run"
    process = start(*glass.flags, "-o", run, "-b", 2, "-d", 3 * T, "-x", 100000, "-n", 4)
    assert wait_for(lambda: len(losses(run)) > 20 and checkpoints(run), process)
    kill(process)
    last = int(checkpoints(run)[-1].name.split("_")[1])
    train("-o", run, "-y", "-x", last + 6)
    assert max(losses(run)) == last + 6
    check_steps(glass, run, range(last - 3, last + 7), 3 * (last - 4))


def test_with_overfit_every_step_reads_the_windows_of_the_first(glass, tmp_path):
    run = tmp_path / "run"
    train(*glass.flags, "-o", run, "-b", 4, "-d", 5 * T, "-x", 3, "-a", 1)
    assert whereis(run, 3) == whereis(run, 1)
    assert len(set(losses(run).values())) == 1
    assert abs(losses(run)[3] - glass.loss([(r["file"], r["token"]) for r in whereis(run, 3)])) < TOLERANCE


def test_whereis_looks_for_shards_where_it_is_told_and_refuses_another_corpus(glass, tmp_path):
    run, moved = tmp_path / "run", tmp_path / "moved"
    train(*glass.flags, "-o", run, "-b", 4, "-x", 2)
    moved.mkdir()
    for path in glass.shards.glob("*.bin"):
        (moved / path.name).write_bytes(path.read_bytes())
    rows = whereis(run, 2, moved / "*.bin")
    assert [row["token"] for row in rows] == [row["token"] for row in whereis(run, 2)]
    assert rows[0]["file"].startswith(str(moved))
    write_shard(moved / "a.bin", [1] * 301)  # as many windows, one token more
    assert "the corpus has changed" in tool("whereis", run, 2, moved / "*.bin", expect=2).stderr
    assert "no token shards match" in tool("whereis", run, 2, moved / "nothing*", expect=2).stderr
    for step in (0, "x", "99999999999999999999"):
        assert "STEP" in tool("whereis", run, step, expect=2).stderr
    assert "main.log: cannot be read" in tool("whereis", tmp_path, 1, expect=2).stderr


# --------------------------------------------------------------------------------------------------------------- shard


def documents_of(text):
    return [BYTE_EOT if c == "|" else ord(c) for c in text]


def test_list_counts_tokens_and_documents_of_every_version(tmp_path):
    ours = write_shard(tmp_path / "a.bin", documents_of("|one|two"), vocab=BYTE_VOCAB, eot=BYTE_EOT)
    theirs = write_shard(tmp_path / "b.bin", [50256, 15496, 995])  # as llm.c writes it: nothing stated
    wide = [20240520, 2, 4, 100000, 3, 0, 1] + [0] * 249
    (tmp_path / "c.bin").write_bytes(struct.pack("<256i3I", *wide, 0, 70000, 0))
    lines = [line.split() for line in tool("shard", "list", tmp_path / "*.bin").stdout.splitlines()]
    assert lines[1] == ["1", "8", "2", "257", "256", "2", str(ours)]
    assert lines[2] == ["1", "3", "2", "-", "-", "-", str(theirs)]
    assert lines[3] == ["2", "3", "4", "100000", "0", "2", str(tmp_path / "c.bin")]
    assert lines[4] == ["total", "14", "4", "3", "files"]
    assert tool("shard", "list", "--eot", 50256, theirs).stdout.split("\n")[1].split()[5] == "1"


def test_verify_names_the_first_bad_token_and_goes_on_with_the_next_file(tmp_path):
    tokens = [5] * 300000
    good = write_shard(tmp_path / "good.bin", tokens, vocab=100)
    tokens[262143] = tokens[299999] = 100  # the last of the first MiB as 32-bit numbers, and the very last
    bad = write_shard(tmp_path / "bad.bin", tokens, vocab=100)
    result = tool("shard", "verify", bad, good, expect=2)
    assert f"{bad}: token 262143 (byte {1024 + 2 * 262143}) is 100, expected below the vocabulary, 100" in result.stderr
    assert f"{good}: 300000 tokens" in result.stdout and "2 files: 1 bad" in result.stdout
    unstated = write_shard(tmp_path / "theirs.bin", [50256, 50257, 3])
    assert "no vocabulary stated" in tool("shard", "verify", unstated).stdout
    assert "token 1 (byte 1026) is 50257" in tool("shard", "verify", "--vocab", 50257, unstated, expect=2).stderr


def test_verify_compares_with_the_manifest(tmp_path):
    for name in ("a.bin", "b.bin"):
        write_shard(tmp_path / name, list(range(100)), vocab=257)
    xxh3 = tool("shard", "verify", tmp_path / "a.bin").stdout.split("xxh3 ")[1][:16]
    entries = [{"file": name, "tokens": 100, "bytes": 1224, "xxh3": xxh3} for name in ("a.bin", "b.bin")]
    manifest = tmp_path / "manifest.json"
    manifest.write_text(json.dumps({"train": {"shards": entries[:1]}, "val": {"shards": entries[1:]}}))
    assert tool("shard", "verify", tmp_path / "*.bin").stdout.count("as in manifest.json") == 2
    data = bytearray((tmp_path / "b.bin").read_bytes())
    data[1100] ^= 1
    (tmp_path / "b.bin").write_bytes(data)
    assert f"b.bin: {manifest}: states checksum {xxh3}" in tool("shard", "verify", tmp_path / "*.bin", expect=2).stderr


def test_a_foreign_or_damaged_file_is_named_and_the_others_are_listed(tmp_path):
    write_shard(tmp_path / "a.bin", [1, 2, 3])
    write_shard(tmp_path / "b.bin", [1, 2, 3], count=4)
    write_shard(tmp_path / "c.bin", [1, 2, 3], magic=20240522)
    (tmp_path / "d.bin").write_bytes(b"short")
    result = tool("shard", "list", tmp_path / "*.bin", expect=2)
    assert [line.split(": ")[1][-5:] for line in result.stderr.splitlines()] == ["b.bin", "c.bin", "d.bin"]
    assert len(result.stdout.splitlines()) == 2
    assert "no token shards match" in tool("shard", "verify", tmp_path / "nothing*", expect=2).stderr


def test_show_gives_the_tokens_of_a_place(tmp_path):
    text = 'a "quote"\n\ttab \\ ' + "\u00e9"
    path = write_shard(tmp_path / "a.bin", [BYTE_EOT, *text.encode(), 0xFF, 7], vocab=BYTE_VOCAB, eot=BYTE_EOT)
    lines = tool("shard", "show", path).stdout.splitlines()
    assert lines[0].split(maxsplit=2) == ["0", "256", '"<|endoftext|>"']
    assert lines[3].split(maxsplit=2) == ["3", "34", '"\\""']
    assert lines[10].split(maxsplit=2) == ["10", "10", '"\\n"']
    assert [line.split(maxsplit=2)[2] for line in lines[-2:]] == ['"\\xFF"', '"\\x07"']
    assert len(tool("shard", "show", path, "--at", 5, "--count", 3).stdout.splitlines()) == 3
    assert "--at 99: " in tool("shard", "show", path, "--at", 99, expect=2).stderr


def test_show_prints_no_control_character_that_a_token_spells(tmp_path):
    (tmp_path / "text").write_text("\u009b2J \u0085\n" * 100)  # a terminal's escape, as one character
    tool("prepare", "-o", tmp_path / "shards", "--tokenizer", "train:260", "--val-fraction", 0, tmp_path / "text")
    shown = tool("shard", "show", tmp_path / "shards" / "train_*.bin").stdout
    assert '"\\xC2\\x9B"' in shown
    assert not any(0x80 <= ord(c) < 0xA0 for c in shown)


# ------------------------------------------------------------------------------------------------------------- choices


def test_choices_reads_pipes_and_ends_on_lines_without_an_end(tmp_path):
    """Endless zeros; and a device is not replaced by what is written."""
    os.mkfifo(tmp_path / "pipe")
    choices = ["choices", "--tokenizer", "bytes", "-o", tmp_path / "q.bin"]
    assert "/dev/zero: not JSON lines but a file that begins with zeros" in tool(*choices, "/dev/zero", expect=2).stderr
    (tmp_path / "long.jsonl").write_text("a" * (2 << 20))
    assert "line 1: the line is longer than" in tool(*choices, tmp_path / "long.jsonl", expect=2).stderr
    (tmp_path / "q.jsonl").write_text('{"ctx": "a", "endings": ["b", "c"], "label": 0}\n')
    piped = f"{program('choices')} --tokenizer bytes -o {tmp_path}/q.bin <(sleep 0.2; cat {tmp_path}/q.jsonl)"
    subprocess.run(["bash", "-c", piped], check=True, cwd=ROOT, capture_output=True, timeout=300)
    result = tool("choices", "--tokenizer", "bytes", "-o", tmp_path / "pipe", tmp_path / "q.jsonl", expect=1)
    assert "it exists and is not a plain file" in result.stderr and (tmp_path / "pipe").is_fifo()


def read_choices(path):
    """The examples of a multiple-choice file: (label, context, endings), after every length has been checked."""
    data = path.read_bytes()
    header = struct.unpack("<256i", data[:1024])
    words = struct.unpack(f"<{(len(data) - 1024) // 2}H", data[1024:])
    assert header[:2] == (20240522, 1) and not any(header[4:253])
    assert data[4 * 253:1024] == b"pretrain.cu\0"
    examples, at, longest = [], 0, 0
    while at < len(words):
        start, size, index, label, count, n = words[at:at + 6]
        assert (start, index) == (65535, len(examples))
        context, end = words[at + 6:at + 6 + n], at + 6 + n
        endings = []
        for _ in range(count):
            endings.append(words[end + 1:end + 1 + words[end]])
            end += 1 + words[end]
        assert size == 2 * (end - at)
        examples.append((label, bytes(context), [bytes(e) for e in endings]))
        at, longest = end, max(longest, size)
    assert header[2:4] == (len(examples), longest)
    return examples


def test_choices_writes_examples_of_both_forms(tmp_path):
    (tmp_path / "q.jsonl").write_text(
        '{"ind": 24, "ctx_a": "A man", "ctx": "A man sits. he", "label": 3, "endings": ["is", "was", "be", "sat."]}\n'
        '\n{"context": "\\u00e9", "choices": ["x", ""], "label": "1"}\r\n')
    tool("choices", "--tokenizer", "bytes", tmp_path / "q.jsonl", "-o", tmp_path / "q.bin")
    assert read_choices(tmp_path / "q.bin") == [(3, b"A man sits. he", [b" is", b" was", b" be", b" sat."]),
                                                (1, "\u00e9".encode(), [b" x", b" "])]


def test_the_endings_of_an_empty_context_follow_the_token_that_begins_a_text(tmp_path):
    (tmp_path / "q.jsonl").write_text(json.dumps({**GOOD, "ctx": ""}) + "\n")
    tool("choices", "--tokenizer", "bytes", tmp_path / "q.jsonl", "-o", tmp_path / "q.bin")
    words = [word for word, in struct.iter_unpack("<H", (tmp_path / "q.bin").read_bytes()[1024:])]
    assert words[5:] == [1, BYTE_EOT, 2, *b" b", 2, *b" c"]


GOOD = {"ctx": "a", "endings": ["b", "c"], "label": 0}
BAD_LINES = {
    "not valid JSON": '{"ctx": "a"',
    "not an object": "3",
    'neither "ctx" nor "context"; its fields are "endings", "label"': json.dumps({"endings": ["b", "c"], "label": 0}),
    'neither "endings" nor "choices"': json.dumps({"ctx": "a", "label": 0}),
    "the context is not text": json.dumps({**GOOD, "ctx": 3}),
    "1 endings, expected 2 to 16": json.dumps({**GOOD, "endings": ["b"]}),
    "17 endings, expected 2 to 16": json.dumps({**GOOD, "endings": ["b"] * 17}),
    "an ending is not text": json.dumps({**GOOD, "endings": ["b", None]}),
    '"label" is 2, expected 0 to 1': json.dumps({**GOOD, "label": 2}),
    '"label" is missing': json.dumps({"ctx": "a", "endings": ["b", "c"]}),
    '"label" is stated twice': '{"ctx": "a", "endings": ["b", "c"], "label": 0, "label": 1}',
    "more than 65534 bytes": json.dumps({**GOOD, "ctx": "a" * 40000}),
    "NUL character": json.dumps({**GOOD, "ctx": "a\0b"}),
    "longer than 1048576 bytes": json.dumps({**GOOD, "ctx": "a" * 1100000}),
}


@pytest.mark.parametrize("message", BAD_LINES)
def test_a_bad_line_is_named_with_its_number_and_nothing_is_written(tmp_path, message):
    path, out = tmp_path / "q.jsonl", tmp_path / "q.bin"
    path.write_text(json.dumps(GOOD) + "\n" + BAD_LINES[message] + "\n" + json.dumps(GOOD) + "\n")
    result = tool("choices", "--tokenizer", "bytes", path, "-o", out, expect=2)
    assert result.stderr.startswith(f"choices: {path}: line 2: ") and message in result.stderr
    assert sorted(os.listdir(tmp_path)) == ["q.jsonl"]
    skipped = tool("choices", "--tokenizer", "bytes", path, "-o", out, "--skip-bad", warns=True)
    assert "skipped 1 bad line\n" in skipped.stdout
    assert len(read_choices(out)) == 2


def test_the_trainer_answers_as_the_tokens_of_the_file_say(glass, tmp_path):
    """In the transparent model the loss of an ending is known, so the two accuracies are, too."""
    choose = random.Random(3)
    log_sum = math.log(sum(math.exp(x) for x in glass.logits))
    right, right_normalised = 0, 0
    with open(tmp_path / "q.jsonl", "w") as out:
        for _ in range(50):
            endings = ["".join(choose.choice("abcdefgh") for _ in range(choose.randrange(1, 12))) for _ in range(4)]
            label = choose.randrange(4)
            out.write(json.dumps({"ctx": "who " * choose.randrange(1, 4), "endings": endings, "label": label}) + "\n")
            losses_of = [[log_sum - glass.logits[b] for b in b" " + e.encode()] for e in endings]
            right += min(range(4), key=lambda k: sum(losses_of[k])) == label
            right_normalised += min(range(4), key=lambda k: sum(losses_of[k]) / len(losses_of[k])) == label
    tool("choices", "--tokenizer", "bytes", tmp_path / "q.jsonl", "-o", tmp_path / "q.bin")
    train(*glass.flags, "-x", 0, "-v", 1, "-j", glass.shards / "a.bin", "--choices", tmp_path / "q.bin", "-o",
          tmp_path / "run")
    [said] = events(tmp_path / "run", "choices")
    assert (said["examples"], said["correct"], said["correct_normalised"]) == (50, right, right_normalised)


def test_endings_are_encoded_with_a_space_before_them_in_gpt2_tokens(tmp_path):
    gpt2 = Path(os.environ.get("PRETRAIN_DATA", ROOT.parent / "shared" / "data")) / "gpt2"
    if not gpt2.is_dir():
        pytest.skip(f"{gpt2} is not there (PRETRAIN_DATA names another folder)")
    (tmp_path / "q.jsonl").write_text('{"ctx": "Hello", "endings": ["world", "<|endoftext|>"], "label": 0}\n')
    tool("choices", "--tokenizer", gpt2, tmp_path / "q.jsonl", "-o", tmp_path / "q.bin")
    words = [word for word, in struct.iter_unpack("<H", (tmp_path / "q.bin").read_bytes()[1024:])]
    assert words[:9] == [65535, 2 * len(words), 0, 0, 2, 1, 15496, 1, 995]  # "Hello", " world"
    assert 50256 not in words  # the spelling of a special token is text
