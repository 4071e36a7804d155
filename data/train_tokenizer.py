#!/usr/bin/env python3
"""Trains a byte-level BPE vocabulary, as GPT-2 has, on your own text.

  data/train_tokenizer.py corpus/ notes.txt --vocab-size 8192 -o tokenizer.json
  data/prepare --tokenizer tokenizer.json ...

FILE is a text file, a .jsonl file (one JSON object a line, the text in its field "text") or a directory, of which all
.txt and .jsonl files are read, also in its subdirectories. The result is a Hugging Face tokenizer.json of N tokens: the
256 bytes, N - 257 merges, and <|endoftext|> as token N - 1. The same files give the same vocabulary.

Needs Hugging Face's tokenizers; if this Python has none, that of .venv (scripts/install_deps.sh data) is used.
"""
import argparse
import json
import os
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
BLOCK_BYTES = 1 << 20
END_OF_TEXT = "<|endoftext|>"
MAX_TOKEN_BYTES = 128  # GPT-2's longest token; without a bound, long rules of dashes become tokens
MIN_VOCAB, MAX_VOCAB = 257, 1 << 20
NOT_TEXT = {".gz": "gunzip", ".zst": "unzstd", ".parquet": "data/read_parquet.py", ".bin": None, ".safetensors": None}


class BadInput(Exception):
    pass


def import_tokenizers():
    try:
        import tokenizers
        return tokenizers
    except ImportError as error:
        other = ROOT / ".venv" / "bin" / "python"
        if other.exists() and Path(sys.prefix).resolve() != (ROOT / ".venv").resolve():
            os.execv(other, [str(other), *sys.argv])
        raise BadInput(f"needs the Python package tokenizers ({error}); install it: scripts/install_deps.sh data") from error


def find_files(names):
    """The files to read, in an order that does not depend on the machine."""
    files = []
    for name in map(Path, names):
        if name.is_dir():
            found = sorted(p for p in name.rglob("*") if p.suffix in (".txt", ".jsonl") and p.is_file())
            if not found:
                raise BadInput(f"{name}: no .txt or .jsonl file in this directory")
            files += found
        elif not name.is_file():
            raise BadInput(f"{name}: no such file")
        elif name.suffix in NOT_TEXT:
            how = NOT_TEXT[name.suffix]
            raise BadInput(f"{name}: not a text file" + (f"; unpack it first ({how})" if how else ""))
        else:
            files.append(name)
    return files


def read_text(path, count):
    """Blocks of whole lines; a line longer than a block is cut. Bytes that are no UTF-8 are left out."""
    with open(path, encoding="utf-8", errors="ignore", newline="") as file:
        while block := file.read(BLOCK_BYTES):
            block += file.readline(BLOCK_BYTES)
            count(block)
            yield block


def read_jsonl(path, field, count):
    with open(path, encoding="utf-8", errors="replace") as file:
        for number, line in enumerate(file, 1):
            if not line.strip():
                continue
            try:
                text = json.loads(line)[field]
            except ValueError as error:
                raise BadInput(f"{path}: line {number}: not valid JSON: {error}") from error
            except (KeyError, TypeError, IndexError) as error:
                raise BadInput(f'{path}: line {number}: no field "{field}"; --field names the one with the text') \
                    from error
            if not isinstance(text, str):
                raise BadInput(f'{path}: line {number}: "{field}" is {type(text).__name__}, expected a string')
            text = text.encode("utf-8", "replace").decode()  # JSON may hold half a surrogate pair
            count(text)
            yield text


def read_all(files, field, count):
    for path in files:
        yield from read_jsonl(path, field, count) if path.suffix == ".jsonl" else read_text(path, count)


def train(tokenizers, texts, vocab_size, progress):
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE())
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = tokenizers.decoders.ByteLevel()
    tokenizer.post_processor = tokenizers.processors.ByteLevel(trim_offsets=False)
    trainer = tokenizers.trainers.BpeTrainer(vocab_size=vocab_size - 1, min_frequency=2, show_progress=progress,
                                             initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet(),
                                             max_token_length=MAX_TOKEN_BYTES)
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer.add_special_tokens([tokenizers.AddedToken(END_OF_TEXT, normalized=False, special=True)])
    return tokenizer


def write_atomic(path, text):
    temporary = path.with_name(f".tmp-{path.name}-{os.getpid()}")
    try:
        with open(temporary, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def vocab_size(text):
    size = int(text)
    if not MIN_VOCAB <= size <= MAX_VOCAB:
        raise argparse.ArgumentTypeError(f"{size} is out of range, expected {MIN_VOCAB} (bytes and end-of-text) to "
                                         f"{MAX_VOCAB}")
    return size


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="+", metavar="FILE", help="text file, .jsonl file or directory")
    parser.add_argument("--vocab-size", type=vocab_size, required=True, metavar="N",
                        help="tokens in all; a multiple of 128 wastes no row of the model's table")
    parser.add_argument("-o", "--output", type=Path, required=True, metavar="tokenizer.json")
    parser.add_argument("--field", default="text", help="the field of a .jsonl line that holds the text (%(default)s)")
    parser.add_argument("--quiet", action="store_true", help="no progress bar")
    return parser.parse_args()


def run(options):
    tokenizers = import_tokenizers()
    files = find_files(options.files)
    if options.output.is_dir() or not options.output.absolute().parent.is_dir():
        raise BadInput(f"{options.output}: cannot be written: " +
                       ("it is a directory" if options.output.is_dir() else "no such directory"))
    size, begin = 0, time.monotonic()

    def count(text):
        nonlocal size
        size += len(text.encode())

    tokenizer = train(tokenizers, read_all(files, options.field, count), options.vocab_size, not options.quiet)
    tokens = tokenizer.get_vocab_size()
    if size == 0:
        raise BadInput(f"{options.files[0]}: no text to train on")
    if tokens < options.vocab_size:
        raise BadInput(f"the text ({size} bytes) gives only {tokens} tokens: take more text, or --vocab-size {tokens}")
    write_atomic(options.output, tokenizer.to_str(pretty=True))
    print(f"{options.output}: {tokens} tokens ({END_OF_TEXT} is {tokens - 1}) from {size} bytes in {len(files)} "
          f"file{'s' * (len(files) != 1)}, {time.monotonic() - begin:.1f} s")


def main():
    options = parse_arguments()
    try:
        run(options)
    except (BadInput, OSError) as error:
        print(f"train_tokenizer: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
