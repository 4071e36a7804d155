"""data/prepare with byte-level BPE vocabularies: the tokens that Hugging Face tokenizers gives, in bounded memory."""
import gzip
import json
import os
import random
import resource
import struct
import subprocess
from pathlib import Path

import pytest
import tokenizers

from conftest import PREPARE, ROOT, WORDS
from test_prepare import prepare

DATA = Path(os.environ.get("PRETRAIN_DATA", ROOT.parent / "shared" / "data"))
SCRIPTS = ["The quick brown fox's jumps, don't they?", "Быстрая лиса перепрыгнула", "敏捷的棕色狐狸跳过了懒狗。",
           "네모 상자 안의 글", "def f(x):\n    return x[1:] + 17", "الثعلب البني السريع", "😀👩‍👩‍👧🇩🇪",
           "  \t \n\n   ", "1234567 3.14e-10", "naïve café ÅÄÖ"]


def mixed_text(characters, seed):
    choose = random.Random(seed)
    parts = []
    while sum(map(len, parts)) < characters:
        parts.append(choose.choice(SCRIPTS) + choose.choice(["", " ", "\n", "\n\n", "\n  "]))
        parts.append(" ".join(choose.choice(WORDS) for _ in range(choose.randrange(30))))
    return "".join(parts)


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A tokenizer of 1000 tokens as Hugging Face trains it."""
    path = tmp_path_factory.mktemp("tokenizer") / "tokenizer.json"
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE())
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = tokenizers.decoders.ByteLevel()
    trainer = tokenizers.trainers.BpeTrainer(vocab_size=1000, special_tokens=["<|endoftext|>"], show_progress=False,
                                             initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet())
    tokenizer.train_from_iterator([mixed_text(100_000, 1)], trainer)
    tokenizer.save(str(path))
    return path


@pytest.fixture(scope="module")
def gpt2():
    if not (DATA / "gpt2" / "encoder.json").exists():
        pytest.skip(f"SKIPPED: no GPT-2 vocabulary in {DATA}/gpt2 (PRETRAIN_DATA names the folder above it)")
    return DATA / "gpt2"


def hugging_face(path):
    if path.is_file():
        return tokenizers.Tokenizer.from_file(str(path))
    tokenizer = tokenizers.ByteLevelBPETokenizer.from_file(str(path / "encoder.json"), str(path / "vocab.bpe"))
    tokenizer.add_special_tokens(["<|endoftext|>"])
    return tokenizer


def parts_of(out, side, eot):
    """The token lists of a side's documents."""
    parts = []
    for path in sorted(out.glob(f"{side}_*.bin")):
        data = path.read_bytes()
        header = struct.unpack("<256i", data[:1024])
        assert header[1] == 1 and header[6] == eot + 1
        for token in struct.unpack(f"<{header[2]}H", data[1024:]):
            if token == eot:
                parts.append([])
            else:
                parts[-1].append(token)
    return parts


def compare(tokenizer_path, out, documents):
    """Each part of each document has the tokens that Hugging Face gives its text; long documents lie on both sides."""
    tokenizer = hugging_face(tokenizer_path)
    eot = tokenizer.token_to_id("<|endoftext|>")
    encode = lambda text: tokenizer.encode(text).ids  # noqa: E731
    decode = lambda tokens: tokenizer.decode(tokens)  # noqa: E731
    train, val = parts_of(out, "train", eot), parts_of(out, "val", eot)
    for part in train + val:
        assert part == encode(decode(part))
    texts = sorted(decode(part) for part in train + val)
    whole = [text for text in texts if text in documents]
    cut = [text for text in texts if text not in documents]
    long = [text for text in documents if len(text.encode()) > 64 * 1024]
    assert len(whole) == len(documents) - len(long) and len(cut) == 2 * len(long)
    for text in long:
        (head,), (tail,) = [t for t in cut if text.startswith(t)], [t for t in cut if text.endswith(t)]
        assert head + tail == text and head.endswith("\n") and 0.05 < len(tail.encode()) / len(text.encode()) < 0.15
        # A safe place: the tokens of the parts are those of the whole.
        assert encode(head) + encode(tail) == encode(text)


@pytest.mark.parametrize("vocabulary", ["trained", "gpt2"])
@pytest.mark.parametrize("form", ["txt", "jsonl"])
def test_the_tokens_are_those_of_hugging_face(tmp_path, out, request, vocabulary, form):
    path = request.getfixturevalue(vocabulary)
    documents = [mixed_text(200 + 17 * i, i) for i in range(60)] + [mixed_text(400_000, 1000)]
    documents.append(mixed_text(100_000, 1001).replace("\n", "\r\n"))
    corpus = tmp_path / "corpus"
    corpus.mkdir()
    if form == "txt":
        for i, text in enumerate(documents):
            (corpus / f"{i:03d}.txt").write_bytes(text.encode())
    else:
        (corpus / "all.jsonl").write_text("\n".join(json.dumps({"text": text}) for text in documents))
    prepare("-o", out, "--tokenizer", path, corpus)
    compare(path, out, documents)
    written = tokenizers.Tokenizer.from_file(str(out / "tokenizer.json"))
    assert written.encode(documents[3]).ids == hugging_face(path).encode(documents[3]).ids


def test_more_than_65536_tokens_take_four_bytes(tmp_path, out, trained):
    model = json.loads(trained.read_text())
    for i in range(70_000):  # special tokens: they only fill the vocabulary
        model["model"]["vocab"].setdefault(f"<filler{i}>", len(model["model"]["vocab"]))
    big = tmp_path / "tokenizer.json"
    big.write_text(json.dumps(model))
    text = mixed_text(300_000, 5)
    (tmp_path / "a.txt").write_bytes(text.encode())
    prepare("-o", out, "--tokenizer", big, tmp_path / "a.txt")
    tokenizer = hugging_face(trained)
    tokens = []
    for side in ("train", "val"):
        data = (out / f"{side}_000000.bin").read_bytes()
        header = struct.unpack("<256i", data[:1024])
        count = header[4]
        assert header[:4] == (20240520, 2, 4, len(model["model"]["vocab"])) and len(data) == 1024 + 4 * count
        tokens += struct.unpack(f"<{count}I", data[1024:])[1:]
    assert tokens == tokenizer.encode(text).ids


def test_a_run_without_a_safe_place_is_kept_byte_by_byte(tmp_path, out, trained):
    text = "a" * 900_000 + "\u20ac" * 300_000
    (tmp_path / "a.txt").write_bytes(text.encode())
    prepare("-o", out, "--tokenizer", trained, tmp_path / "a.txt")
    tokenizer = hugging_face(trained)
    eot = tokenizer.token_to_id("<|endoftext|>")
    parts = parts_of(out, "train", eot) + parts_of(out, "val", eot)
    assert tokenizer.decode([token for part in parts for token in part]) == text


@pytest.mark.parametrize("form", ["txt", "jsonl", "txt.gz"])
def test_memory_does_not_grow_with_the_corpus(tmp_path, out, trained, form):
    """A single file of 60 MB with 48 MiB of memory; 27 are needed for 6 MB, 33 for 60 and for 180."""
    text = mixed_text(1_000_000, 2)
    if form == "jsonl":
        data = "".join(json.dumps({"text": text[i:i + 3000]}) + "\n" for i in range(0, len(text), 3000)).encode()
    else:
        data = text.encode()
    times = 60_000_000 // len(data) + 1
    path = tmp_path / f"corpus.{form}"
    path.write_bytes(gzip.compress(data, 1) * times if form == "txt.gz" else data * times)

    def limit():
        resource.setrlimit(resource.RLIMIT_STACK, (1 << 20,) * 2)  # of each thread: they count
        resource.setrlimit(resource.RLIMIT_DATA, (48 << 20,) * 2)

    result = subprocess.run([PREPARE, "-o", out, "--threads", "2", "--tokenizer", trained, path], capture_output=True,
                            text=True, preexec_fn=limit, timeout=300)
    assert result.returncode == 0, result.stderr
