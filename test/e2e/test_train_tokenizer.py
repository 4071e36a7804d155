"""data/train_tokenizer and data/prepare --tokenizer train:N: the merges of Hugging Face's BpeTrainer, in its order, made
of the training text alone.

TOKENIZER_MB=60 trains on 10 MB of each kind of text, up to 50,257 tokens (half an hour, nearly all of it Hugging
Face's); the default takes seconds.
"""
import gzip
import json
import os
import random
import resource
import signal
import subprocess
from pathlib import Path

import pytest

import tokenizer_corpus as corpus
from conftest import PREPARE, ROOT, TRAIN_TOKENIZER, call
from test_prepare import prepare
from test_prepare_interrupted import contents, processor_seconds

EVERYTHING = float(os.environ.get("TOKENIZER_MB", "4")) >= 50
SIZES = [300, 1024, 8192, 50257] if EVERYTHING else [300, 1024, 8192]
CORPUS_BYTES = 10_000_000 if EVERYTHING else 400_000


def train(*arguments, expect=0, **options):
    result = call(TRAIN_TOKENIZER, *arguments, expect=expect, **options)
    if expect != 0:
        assert result.stderr.startswith("train_tokenizer: ") and result.stderr.count("\n") == 1, result.stderr
    return result


def model_of(path):
    return json.loads(path.read_text())["model"]


# ------------------------------------------------------------------------------------------------- texts of five kinds

def english():
    texts = list(corpus.real_documents())
    for folder in ("/usr/share/common-licenses", "/usr/share/perl", "/usr/share/doc"):
        texts += [text for path in sorted(Path(folder).rglob("*")) if path.is_file() and path.suffix != ".gz"
                  for text in corpus.blocks(path)]
    return corpus.take(texts, CORPUS_BYTES)


def code():
    """This repository, half of it with Windows' ends of lines, then the C and Python of the system."""
    own = [text for pattern in ("llmc/*/*.[ch]", "test/*/*.[ch]", "dev/*/*.py") for path in sorted(ROOT.glob(pattern))
           for text in corpus.blocks(path)]
    own = corpus.take(own, CORPUS_BYTES)
    own[::2] = [text.replace("\n", "\r\n") for text in own[::2]]
    others = (text for folder, pattern in (("/usr/include", "*.h"), ("/usr/lib/python3", "*.py"))
              for path in sorted(Path(folder).rglob(pattern)) if path.is_file() for text in corpus.blocks(path))
    return ["\n".join(own)] + corpus.take(others, CORPUS_BYTES // 2)


def words_of(choose, first, last, count):
    return ["".join(chr(choose.randint(first, last)) for _ in range(choose.choice([1, 2, 2, 2, 3, 4])))
            for _ in range(count)]


def japanese():
    """Words of Han and kana, the frequent ones often, with their own punctuation and no spaces."""
    choose = random.Random(1)
    words = words_of(choose, 0x4E00, 0x56FF, 6000) + words_of(choose, 0x3041, 0x3096, 2000) + \
        words_of(choose, 0x30A1, 0x30FA, 1000)
    choose.shuffle(words)
    texts, size = [], 0
    while size < CORPUS_BYTES:
        parts = [words[min(int(choose.paretovariate(0.7)), len(words)) - 1] +
                 choose.choice(["", "", "", "、", "。", "。\n", "「", "」", "１２", "2024"]) for _ in range(2000)]
        texts.append("".join(parts))
        size += len(texts[-1].encode())
    return texts


def emoji_and_marks():
    """Joined emoji, and letters with any number of combining marks."""
    choose = random.Random(2)
    texts = []
    while sum(len(text.encode()) for text in texts) < CORPUS_BYTES:
        parts = [choose.choice(corpus.EMOJI) * choose.choice([1, 1, 2, 5]) + choose.choice(["", " ", "\u200d", "\ufe0f"])
                 if choose.random() < 0.5 else
                 choose.choice("aeiounç") + "".join(chr(choose.randint(0x300, 0x320)) for _ in range(choose.randrange(4)))
                 for _ in range(3000)]
        texts.append("".join(parts))
    return texts


def one_line():
    """No end of line anywhere: words, long runs of one character and of two, digits, base64."""
    choose = random.Random(3)
    vocabulary = words_of(choose, 0x61, 0x7A, 5000)
    parts, size = [], 0
    while size < CORPUS_BYTES:
        kind = choose.randrange(100)
        if kind < 80:
            part = " ".join(vocabulary[min(int(choose.paretovariate(0.6)), 5000) - 1] for _ in range(50))
        elif kind < 83:
            part = choose.choice(["a", "=", " ", "\t", "0", "語", "ab", "-+"]) * choose.randrange(1, 2000)
        elif kind < 90:
            part = str(choose.randrange(10**60))
        else:
            part = "".join(choose.choice("ABCDEFGHabcdefgh0123456789+/") for _ in range(300))
        parts.append(part + choose.choice(["", " ", ".", ", "]))
        size += len(parts[-1].encode())
    return ["".join(parts)]


def every_script():
    texts = []
    for text in corpus.generated_documents():
        if sum(map(len, texts)) > CORPUS_BYTES // 2:
            return texts
        texts.append(text)


@pytest.fixture(scope="session")
def newer_characters():
    pytest.importorskip("tiktoken", reason="tiktoken is missing: scripts/install_deps.sh test")
    return corpus.newer_characters()


def huggingface(texts, vocab, pattern="gpt2"):
    """The merges and tokens of the real package, <|endoftext|> last."""
    pytest.importorskip("tokenizers", reason="tokenizers is missing: scripts/install_deps.sh test")
    model = json.loads(corpus.huggingface(texts, pattern, vocab).to_str())["model"]
    merges = [" ".join(merge) if isinstance(merge, list) else merge for merge in model["merges"]]
    return merges, model["vocab"] | {"<|endoftext|>": len(model["vocab"])}


@pytest.mark.parametrize("kind", [english, code, *(pytest.param(kind, marks=pytest.mark.slow)
                                                 for kind in (japanese, emoji_and_marks, one_line, every_script))])
def test_the_merges_are_those_of_hugging_face_in_the_same_order(tmp_path, newer_characters, kind):
    texts = [text for text in corpus.without(kind(), newer_characters) if text]
    jsonl = tmp_path / "texts.jsonl"
    jsonl.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    alone = tmp_path / "alone.txt"
    alone.write_bytes(texts[0].encode())
    for inputs, read, sizes in ((jsonl, texts, SIZES), (alone, texts[:1], [700])):
        for size in sizes:
            merges, vocab = huggingface(read, size)
            out = tmp_path / f"{size}.json"
            if len(vocab) < size:  # both stop where no pair occurs twice
                said = train("--vocab-size", size, "-o", out, inputs, expect=2).stderr
                assert f"gives only {len(vocab)} tokens" in said and f"--vocab-size {len(vocab)}\n" in said
                train("--vocab-size", len(vocab), "-o", out, inputs)
            else:
                train("--vocab-size", size, "-o", out, inputs)
            model = model_of(out)
            assert model["merges"] == merges
            assert model["vocab"] == vocab
            if len(vocab) < size:
                break


@pytest.mark.parametrize("pattern", [p if p == "llama3" else pytest.param(p, marks=pytest.mark.slow)
                                     for p in corpus.PATTERNS[1:]])
@pytest.mark.parametrize("kind", [code, *(pytest.param(kind, marks=pytest.mark.slow)
                                          for kind in (english, emoji_and_marks, one_line, every_script))])
def test_the_merges_with_another_pattern_are_those_of_hugging_face(tmp_path, newer_characters, kind, pattern):
    texts = [text for text in corpus.without(kind(), newer_characters) if text]
    jsonl = tmp_path / "texts.jsonl"
    jsonl.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    merges, vocab = huggingface(texts, 3000, pattern)
    train("--vocab-size", len(vocab), "--pattern", pattern, "-o", tmp_path / "t.json", jsonl)
    assert model_of(tmp_path / "t.json")["merges"] == merges
    assert model_of(tmp_path / "t.json")["vocab"] == vocab
    theirs = json.loads(corpus.huggingface(["a"], pattern, 257).to_str())["pre_tokenizer"]
    assert json.loads((tmp_path / "t.json").read_text())["pre_tokenizer"] == theirs


def test_prepare_trains_with_the_pattern_that_is_named(tmp_path):
    (tmp_path / "a.txt").write_text("HELLO'S 12345  world\n\n" * 3000 + distinct_words(2000))
    prepare("--tokenizer", "train:400:llama3", "--val-fraction", 0, "-o", tmp_path / "s", tmp_path / "a.txt")
    train("--vocab-size", 400, "--pattern", "llama3", "-o", tmp_path / "t.json", tmp_path / "a.txt")
    made = tmp_path / "s" / "tokenizer.json"
    assert made.read_bytes() == (tmp_path / "t.json").read_bytes()
    assert "345" not in model_of(made)["vocab"] and "123" in model_of(made)["vocab"]
    prepare("--tokenizer", made, "--val-fraction", 0, "-o", tmp_path / "again", tmp_path / "a.txt")
    shard = "train_000000.bin"
    assert (tmp_path / "s" / shard).read_bytes() == (tmp_path / "again" / shard).read_bytes()
    assert json.loads((tmp_path / "s/manifest.json").read_text())["tokenizer"]["name"].endswith("train:400:llama3")


@pytest.mark.parametrize("tokenizer, message", [
    ("train:400:llama4", 'no pattern is named "llama4", expected gpt2, starcoder, llama3, qwen2 or o200k'),
    ("train:400:", 'no pattern is named "", expected gpt2'),
    ("train:256:llama3", "expected train:N with N from 257"),
    ("train::llama3", "expected train:N with N from 257"),
    ("train:9999:qwen2", "or --tokenizer train:257:qwen2"),
])
def test_a_pattern_that_is_not_known_is_refused(tmp_path, tokenizer, message):
    (tmp_path / "a.txt").write_text("too short")
    said = prepare("--tokenizer", tokenizer, "--val-fraction", 0, "-o", tmp_path / "s", tmp_path / "a.txt",
                   expect=2).stderr
    assert message in said, said


def test_the_vocabulary_depends_neither_on_threads_nor_on_the_order_of_files(tmp_path):
    folder = tmp_path / "in"
    (folder / "deep").mkdir(parents=True)
    for i, text in enumerate(corpus.take(corpus.generated_documents(), 300_000)):
        name = folder / ("deep" if i % 2 else "") / f"{i:03d}.{['txt', 'jsonl', 'c.gz', 'jsonl.gz'][i % 4]}"
        data = (json.dumps({"text": text}) if "jsonl" in name.name else text).encode(errors="replace")
        name.write_bytes(gzip.compress(data) if name.suffix == ".gz" else data)
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    made = []
    for threads, inputs in ((1, [folder]), (2, [folder]), (7, files[::-1]), (3, files[1::2] + files[::2])):
        train("--vocab-size", 700, "--threads", threads, "-o", tmp_path / "t.json", *inputs)
        made.append((tmp_path / "t.json").read_bytes())
    assert len(set(made)) == 1


def test_standard_input_gives_what_the_file_gives(tmp_path):
    text = distinct_words(20_000).encode()
    (tmp_path / "a.txt").write_bytes(text)
    train("--vocab-size", 500, "-o", tmp_path / "file.json", tmp_path / "a.txt")
    subprocess.run([TRAIN_TOKENIZER, "--vocab-size", "500", "-o", "pipe.json", "--format", "txt", "-"], check=True,
                   input=gzip.compress(text), cwd=tmp_path, capture_output=True, timeout=300)
    assert (tmp_path / "file.json").read_bytes() == (tmp_path / "pipe.json").read_bytes()
    assert sorted(os.listdir(tmp_path)) == ["a.txt", "file.json", "pipe.json"]


@pytest.mark.parametrize("name, content, arguments, message", [
    ("a.txt", b"too short", [], "the text for training (9 bytes, 2 distinct words) gives only 257 tokens, because no other "
                                "pair occurs twice; use more text, or --vocab-size 257"),
    ("a.txt", b"", [], "no text to read: skipped 1 x empty, the first: "),
    ("a.txt", b"\0", [], "no text to read: skipped 1 x binary, the first: a.txt"),
    ("a.jsonl", b'{"text": "x"}\n{"text"', [], "a.jsonl: line 2: not valid JSON"),
    ("a.jsonl", b'{"content": "x"}\n', [], 'line 1: has no field "text"; --field'),
    ("a.gz", b"x", [], "a.gz: damaged: "),
    ("a.txt", b"x", ["--vocab-size", 256], "--vocab-size 256: expected a number from 257 to 1048576"),
    ("a.txt", b"x", ["--vocab-size", 1048577], "--vocab-size 1048577: expected a number from 257 to 1048576"),
    ("a.txt", b"x", ["-o", "nowhere/t.json"], "nowhere/t.json: cannot be written: No such file or directory: there is no 'nowhere'"),
    ("a.txt", b"x", ["-o", "."], ".: cannot be written: it is a directory"),
    ("a.txt", b"x", ["missing.txt"], "missing.txt: cannot read: No such file"),
    ("a.txt", b"x", ["-"], "give --format jsonl or --format txt"),
    ("a.txt", b"x", ["--tokens", 300], "unknown option --tokens; " + str(ROOT / "data/train_tokenizer --help lists them")),
])
def test_bad_input_is_named_in_one_line_and_nothing_is_made(tmp_path, name, content, arguments, message):
    (tmp_path / name).write_bytes(content)
    usual = [word for pair in (("--vocab-size", 300), ("-o", "out.json")) if pair[0] not in arguments for word in pair]
    said = train(name, *usual, *arguments, cwd=tmp_path, expect=2).stderr
    assert message in said, said
    assert os.listdir(tmp_path) == [name]


def test_bad_lines_can_be_skipped_and_are_counted(tmp_path):
    (tmp_path / "a.jsonl").write_bytes(b'{"text": "aaaa bbbb"}\n{"text"\n{"text": "aaaa bbbb"}\n')
    said = train("--vocab-size", 261, "--skip-bad", "-o", tmp_path / "t.json", tmp_path / "a.jsonl").stdout
    assert "261 tokens (<|endoftext|> is 260) from 2 documents, 18 bytes" in said
    assert "skipped 1 x not valid JSON, the first: " in said


def distinct_words(count):
    choose = random.Random(4)
    return " ".join("".join(choose.choices("abcdefghijklmnop", k=choose.randrange(3, 12))) for _ in range(count))


def test_an_old_file_stays_as_it_is_until_the_new_one_is_whole(tmp_path):
    """Killed after more and more processor time, and on a disk that is full; then with room and time."""
    (tmp_path / "a.txt").write_text(distinct_words(60_000))
    out = tmp_path / "t.json"
    train("--vocab-size", 300, "-o", out, tmp_path / "a.txt")
    old = out.read_bytes()
    whole = ["--vocab-size", "3000", "-o", out, tmp_path / "a.txt"]
    before = processor_seconds()
    train("--vocab-size", 3000, "-o", tmp_path / "whole.json", tmp_path / "a.txt")
    seconds = processor_seconds() - before
    for part in range(1, 9):
        result = subprocess.run([TRAIN_TOKENIZER, *whole], capture_output=True, timeout=300, preexec_fn=lambda: (
            signal.setitimer(signal.ITIMER_PROF, max(seconds * part / 9, 1e-3))))
        assert out.read_bytes() == old or result.returncode == 0
        out.write_bytes(old)
    said = train(*whole, expect=1, restore_signals=False,  # Python ignores SIGXFSZ, and so does its child
                 preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))).stderr
    assert "t.json" in said and "File too large" in said and out.read_bytes() == old
    train(*whole)
    assert out.read_bytes() == (tmp_path / "whole.json").read_bytes()


@pytest.mark.skipif("sanitize" in str(os.environ.get("TRAINER")), reason="it needs more memory")
def test_memory_that_is_not_there_is_one_line(tmp_path):
    """From too little to start to enough. A limit on what the process may map for data, not on what is resident."""
    (tmp_path / "a.txt").write_text(distinct_words(200_000))
    codes = []
    for megabytes in range(6, 80, 6):
        def limit(megabytes=megabytes):
            resource.setrlimit(resource.RLIMIT_STACK, (1 << 20,) * 2)  # of each thread: they count
            resource.setrlimit(resource.RLIMIT_DATA, (megabytes << 20,) * 2)

        result = subprocess.run([TRAIN_TOKENIZER, "--vocab-size", "5000", "--threads", "2", "-o", tmp_path / "t.json",
                                 tmp_path / "a.txt"], capture_output=True, text=True, preexec_fn=limit, timeout=300)
        codes.append(result.returncode)
        assert result.returncode in (0, 1, 2), result
        assert result.returncode == 0 or (result.stderr.count("\n") == 1 and
                                          ("memory" in result.stderr or "cannot start a thread" in result.stderr)), result
        assert (tmp_path / "t.json").exists() == (result.returncode == 0)
        (tmp_path / "t.json").unlink(missing_ok=True)
    assert codes[0] != 0 and codes[-1] == 0


# ---------------------------------------------------------------------------------------- data/prepare --tokenizer train:N

def short_documents(count, seed):
    choose = random.Random(seed)
    words = ["".join(choose.choices("etaoinshrdlu", k=choose.randrange(2, 9))) for _ in range(300)]
    return [" ".join(choose.choices(words, k=choose.randrange(5, 60))) + "\n" for _ in range(count)]


def write_lines(path, texts):
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    return path


def sides_of(tmp_path, texts):
    """Which of these documents are for training and which for validation, as data/prepare divides them."""
    out = tmp_path / "sides"
    prepare("-o", out, "--force", "--format", "jsonl", "--val-fraction", 0.2, write_lines(tmp_path / "pool", texts))
    sides = []
    for side in ("train", "val"):
        data = b"".join(path.read_bytes()[1024:] for path in sorted(out.glob(f"{side}_*.bin")))
        tokens = memoryview(data).cast("H")
        text = "".join("\0" if token == 256 else chr(token) for token in tokens)
        sides.append(text.split("\0")[1:])
    return sides


def test_other_validation_text_changes_no_merge(tmp_path):
    """Short documents go to one side as a whole, by their own hash: those for validation are replaced."""
    for_training, for_validation = sides_of(tmp_path, short_documents(800, 1))
    _, others = sides_of(tmp_path, short_documents(800, 2))
    assert min(map(len, (for_training, for_validation, others))) > 50
    for name, validation in (("one", for_validation), ("two", others)):
        corpus_file = write_lines(tmp_path / f"{name}.jsonl", for_training[:300] + validation + for_training[300:])
        prepare("-o", tmp_path / name, "--val-fraction", 0.2, "--tokenizer", "train:600", corpus_file)
    train("--vocab-size", 600, "-o", tmp_path / "alone.json", write_lines(tmp_path / "alone.jsonl", for_training))
    made = [(tmp_path / path).read_bytes() for path in ("one/tokenizer.json", "two/tokenizer.json", "alone.json")]
    assert made[0] == made[1] == made[2]
    assert (tmp_path / "one/train_000000.bin").read_bytes() == (tmp_path / "two/train_000000.bin").read_bytes()
    assert (tmp_path / "one/val_000000.bin").read_bytes() != (tmp_path / "two/val_000000.bin").read_bytes()


@pytest.mark.parametrize("form, sizes, newline", [
    ("txt", [900_000], "\n"), ("txt", [900_000], "\r\n"), ("jsonl", [900_000, 200_000], "\n"),  # the end of each
    ("txt.gz", [400_000], "\n"), ("txt", [2800, 2200], "\n"), ("jsonl", [3000, 2500], "\r\n"),  # few: cut as well
])
def test_other_text_in_the_validation_part_of_documents_changes_no_merge(tmp_path, form, sizes, newline):
    made, texts = [], {}
    for name in ("one", "two"):
        folder = tmp_path / f"in {name}"
        folder.mkdir()
        documents = []
        for seed, size in enumerate(sizes):
            words = "".join(short_documents(size // 40, 10 + seed)).split()
            text = newline.join(" ".join(words[i:i + 6]) for i in range(0, len(words), 6))[:size - 2] + newline
            if name == "two":  # the last twentieth; a tenth is for validation
                at = len(text) - len(text) // 20
                text = text[:at] + "".join("xyz"[ord(c) % 3] if c.isalpha() else c for c in text[at:])
            documents.append(text)
        texts[name] = documents
        if form == "jsonl":
            write_lines(folder / "a.jsonl", documents)
        for i, text in enumerate(documents if form != "jsonl" else []):
            data = text.encode()
            (folder / f"{i}.{form}").write_bytes(gzip.compress(data) if form == "txt.gz" else data)
        prepare("-o", tmp_path / name, "--tokenizer", "train:400", folder)
        made.append(contents(tmp_path / name))
    assert texts["one"] != texts["two"] and made[0]["val_000000.bin"] != made[1]["val_000000.bin"]
    for files in made:
        assert json.loads(files["manifest.json"])["options"]["cut_all"] == (sizes[0] < 64 * 1024)
    assert made[0]["tokenizer.json"] == made[1]["tokenizer.json"]
    assert made[0]["train_000000.bin"] == made[1]["train_000000.bin"]


def test_a_corpus_is_encoded_with_the_vocabulary_that_is_written_beside_it(tmp_path):
    folder = tmp_path / "in"
    folder.mkdir()
    write_lines(folder / "a.jsonl", short_documents(500, 3))
    (folder / "b.txt").write_text("".join(short_documents(5000, 4)))
    prepare("-o", tmp_path / "trained", "--tokenizer", "train:512", folder)
    manifest = json.loads((tmp_path / "trained" / "manifest.json").read_text())
    assert manifest["tokenizer"]["name"] == "byte-level BPE of train:512"
    assert (manifest["tokenizer"]["vocab"], manifest["tokenizer"]["eot"]) == (512, 511)
    prepare("-o", tmp_path / "given", "--tokenizer", tmp_path / "trained" / "tokenizer.json", folder)
    trained, given = contents(tmp_path / "trained"), contents(tmp_path / "given")
    assert all(trained[name] == given[name] for name in trained if name != "manifest.json")
    piped = subprocess.run([PREPARE, "-o", tmp_path / "piped", "--tokenizer", "train:512", "--format", "jsonl", "-"],
                           input=(folder / "a.jsonl").read_bytes(), capture_output=True, timeout=300)
    assert piped.returncode == 0, piped.stderr
    prepare("-o", tmp_path / "file", "--tokenizer", "train:512", folder / "a.jsonl")
    assert (tmp_path / "piped" / "train_000000.bin").read_bytes() == (tmp_path / "file" / "train_000000.bin").read_bytes()


@pytest.mark.parametrize("tokenizer, content, message", [
    ("train:300", "few words\n", "gives only 257 tokens, because no other pair occurs twice; use more text, or "
                                 "--tokenizer train:257\n"),
    ("train:256", "x", "--tokenizer train:256: expected train:N with N from 257 (bytes and end-of-text) to 1048576\n"),
    ("train:1048577", "x", "--tokenizer train:1048577: expected train:N"),
    ("train:", "x", "--tokenizer train:: expected train:N"),
    ("train:300", "", "no text to read: skipped 1 x empty, the first: "),
    ("train:300", "x", "1 bytes of text cannot be divided into training and validation; give more"),
])
def test_what_cannot_be_trained_is_one_line_and_leaves_nothing(tmp_path, tokenizer, content, message):
    (tmp_path / "a.txt").write_text(content)
    said = prepare("-o", tmp_path / "out", "--tokenizer", tokenizer, tmp_path / "a.txt", expect=2).stderr
    assert message in said, said
    assert os.listdir(tmp_path) == ["a.txt"]
