#!/usr/bin/env python3
"""Measures the tokenizer against Hugging Face's tokenizers, OpenAI's tiktoken and, where it is
installed, gigatoken: the same text in memory, the same vocabulary, the same threads, in one run.
Prints a Markdown table with machine, versions and command.

  .venv/bin/python dev/bench/bench_tokenizer.py                      # GPT-2's vocabulary of $PRETRAIN_DATA, its texts
  .venv/bin/python dev/bench/bench_tokenizer.py --vocabulary tokenizer.json my.txt
  .venv/bin/python dev/bench/bench_tokenizer.py --train              # data/train_tokenizer against BpeTrainer
  .venv/bin/python dev/bench/bench_tokenizer.py --patterns           # one thread, each pattern, 8192 tokens of its own

Every result is compared: a line of the table means that the tokens were equal. A cell is 10^6 bytes
of text per second of wall time and then per second of processor time, which is more reliable on a
shared machine; each the best of the rounds. Ours and gigatoken begin each round with empty caches,
as a new run does, and in the lines "warm" with those of the round before, of the same text;
tokenizers keeps its cache over the rounds, tiktoken has none. Each is called in its fastest form.
--train: wall time, processor time and peak memory of a process that reads JSON lines and trains on
all cores, in turns.
"""
import argparse
import importlib
import importlib.metadata
import importlib.util
import json
import os
import platform
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
DATA = Path(os.environ.get("PRETRAIN_DATA", ROOT / ".." / "shared" / "data"))
PATTERN = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
DOCUMENT = 50_000  # characters
THREADS = (1, 2)
TRAINED = (1024, 8192, 50257)
sys.path[:0] = [str(ROOT / "dev" / "bench"), str(ROOT / "test" / "e2e")]
import native_tokenizer  # noqa: E402
import tokenizer_corpus as corpus  # noqa: E402

sys.path.append(str(Path(__file__).resolve().parents[2] / "scripts"))
import tool  # noqa: E402


def documents_of(text, size):
    text = text[:size]
    return [text[at:at + DOCUMENT] for at in range(0, len(text), DOCUMENT)]


def own_texts(files, size):
    return {Path(name).name: documents_of(Path(name).read_text(errors="replace"), size) for name in files}


def standard_texts(size):
    """English: WikiText and Shakespeare. Code: C headers and Python of this system. Mixed: the corpus of the tests."""
    english = "\n".join(text for text in corpus.real_documents())
    code = []
    for folder, pattern in (("/usr/include", "*.h"), ("/usr/lib/python3.11", "*.py")):
        files = (path for path in sorted(Path(folder).rglob(pattern)) if path.is_file())
        code += corpus.take((text for path in files for text in corpus.blocks(path)), size // 2)
    return {"English": documents_of(english, size), "code": documents_of("\n".join(code), size),
            "mixed scripts": documents_of("\n".join(corpus.take(corpus.generated_documents(), size // 2)), size)}


def in_threads(count, work):
    """Runs work(part) for parts 0 .. count - 1, each in a thread; the results in order."""
    results = [None] * count

    def run(part):
        results[part] = work(part)

    threads = [threading.Thread(target=run, args=(part,)) for part in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return results


def split_texts(texts, parts):
    """Neighbours in `parts` lists."""
    step = -(-len(texts) // parts)
    return [texts[i * step:(i + 1) * step] for i in range(parts)]


class Clock:
    """Wall time and processor time of all threads since it was made."""

    def __init__(self):
        self.begin = time.perf_counter(), time.process_time()

    def read(self):
        return time.perf_counter() - self.begin[0], time.process_time() - self.begin[1]


class Ours:
    """warm: the encoders of the round before, which know the words of these texts."""

    def __init__(self, library, path, threads, warm=False):
        self.threads, self.warm, self.encoders = threads, warm, None
        self.tokenizer = library.open(path)

    def __call__(self, texts):
        encoded = [[text.encode() for text in part] for part in split_texts(texts, self.threads)]
        if not self.warm or not self.encoders:
            self.encoders = [native_tokenizer.Encoder(self.tokenizer) for _ in encoded]
        encoders = self.encoders
        for encoder, part in zip(encoders, encoded):
            encoder.reserve(sum(map(len, part)))
        clock = Clock()
        counts = in_threads(self.threads, lambda i: encoders[i].encode_all(encoded[i]))
        return clock.read(), [token for encoder, n in zip(encoders, counts) for token in encoder.all[:n]]


class HuggingFace:
    def __init__(self, tokenizer, threads):
        # A batch has the RAYON_NUM_THREADS that main sets. The fast form computes no offsets.
        self.batch = getattr(tokenizer, "encode_batch_fast", tokenizer.encode_batch)
        self.tokenizer, self.threads = tokenizer, threads

    def __call__(self, texts):
        batches = [texts] if self.threads > 1 else [[text] for text in texts]
        clock = Clock()
        result = [self.batch(batch, add_special_tokens=False) for batch in batches]
        seconds = clock.read()
        return seconds, [token for batch in result for encoding in batch for token in encoding.ids]


class TikToken:
    def __init__(self, encoding, threads):
        self.encoding, self.threads = encoding, threads

    def __call__(self, texts):
        clock = Clock()
        if self.threads == 1:
            result = [self.encoding.encode_ordinary(text) for text in texts]
        else:
            result = self.encoding.encode_ordinary_batch(texts, num_threads=self.threads)
        seconds = clock.read()
        return seconds, [token for tokens in result for token in tokens]


class GigaToken:
    """warm: as of Ours."""

    def __init__(self, gigatoken, path, threads, warm=False):
        self.gigatoken, self.path, self.threads, self.warm = gigatoken, str(path), threads, warm
        self.tokenizer = None

    def __call__(self, texts):
        if not self.warm or not self.tokenizer:
            self.tokenizer = self.gigatoken.Tokenizer(self.path)
        source = self.gigatoken.BytesSource([text.encode() for text in texts])
        clock = Clock()
        result = self.tokenizer.encode_batch(source, parallel=self.threads > 1)
        seconds = clock.read()
        return seconds, [token for tokens in result.to_list() for token in tokens]


def machine():
    with open("/proc/cpuinfo") as file:
        names = [line.split(":")[1].strip() for line in file if line.startswith("model name")]
    return f"{names[0] if names else platform.machine()}, {os.cpu_count()} cores, Linux {platform.release()}"


def measure(contestants, texts, rounds):
    """{name: (wall, processor) seconds}; the rounds go around, so that a slow moment of the machine meets everyone."""
    best, tokens = {}, None
    for _ in range(rounds):
        for name, encode in contestants.items():
            seconds, result = encode(texts)
            tokens = tokens or result
            if result != tokens:
                sys.exit(f"bench_tokenizer: {name} gives other tokens than the first one")
            best[name] = tuple(map(min, best.get(name, seconds), seconds))
    return best, len(tokens)


# ------------------------------------------------------------------------------------------------------------ training

# A process of its own, so that its memory is Hugging Face's and nobody else's.
HUGGINGFACE_TRAINING = """ import json, sys, tokenizers tokenizer =
tokenizers.Tokenizer(tokenizers.models.BPE()) tokenizer.pre_tokenizer =
tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False) trainer =
tokenizers.trainers.BpeTrainer(vocab_size=int(sys.argv[2]) - 1, min_frequency=2,
show_progress=False,
                                         initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet(),
                                         max_token_length=128)
with open(sys.argv[1]) as file:
    tokenizer.train_from_iterator((json.loads(line)["text"] for line in file), trainer)
tokenizer.save(sys.argv[3])
"""


# Runs a command and prints wall seconds, processor seconds and peak bytes. A small process: what
# one forks begins with the memory of its parent, and the peak would be that.
MEASURE = """
import os, sys, time
begin = time.perf_counter()
child = os.posix_spawn(sys.argv[1], sys.argv[1:], os.environ, file_actions=[
    (os.POSIX_SPAWN_OPEN, 1, os.devnull, os.O_WRONLY, 0)])
_, status, usage = os.wait4(child, 0)
print(time.perf_counter() - begin, usage.ru_utime + usage.ru_stime, usage.ru_maxrss * 1024)
sys.exit(status != 0)
"""


def run_measured(command):
    """Wall seconds, processor seconds and peak MB of a process."""
    result = subprocess.run([sys.executable, "-S", "-c", MEASURE, *map(str, command)], stdout=subprocess.PIPE, text=True)
    if result.returncode != 0:
        sys.exit(f"bench_tokenizer: {command[0]} failed")
    wall, processor, peak = map(float, result.stdout.split())
    return wall, processor, peak / 1e6


def merges_of(path):
    merges = json.loads(path.read_text())["model"]["merges"]
    return [" ".join(merge) if isinstance(merge, list) else merge for merge in merges]


def bench_training(tokenizers, options, directory):
    texts = corpus.take(corpus.real_documents(), int(options.megabytes * 1e6)) if not options.files else \
        [text for name in options.files for text in corpus.blocks(Path(name))]
    if not options.files:
        left = int(options.megabytes * 1e6) - sum(len(text.encode()) for text in texts)
        texts += corpus.take(corpus.system_documents(), left)
    texts = corpus.without(texts, corpus.newer_characters())
    lines, out = directory / "texts.jsonl", directory / "tokenizer.json"
    lines.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    size = sum(len(text.encode()) for text in texts)
    print(f"{machine()}; {size / 1e6:.1f} MB; best of {options.rounds}; `{' '.join(sys.argv)}`\n")
    print("| tokens | pretrain.cu: s (processor s) | MB | "
          f"tokenizers {tokenizers.__version__}: s (processor s) | MB | times as fast | of the memory |")
    print("| ---: " * 7 + "|")
    for vocab in TRAINED:
        commands = {"ours": [ROOT / "data/train_tokenizer", "--vocab-size", str(vocab), "-o", out, lines],
                    "theirs": [sys.executable, "-c", HUGGINGFACE_TRAINING, lines, str(vocab), out]}
        best, merges = {}, None
        for _ in range(options.rounds):
            for name, command in commands.items():
                figures = run_measured(command)
                merges = merges or merges_of(out)
                if merges_of(out) != merges:
                    sys.exit(f"bench_tokenizer: the merges for {vocab} tokens differ")
                best[name] = tuple(map(min, best.get(name, figures), figures))
        ours, theirs = best["ours"], best["theirs"]
        print(f"| {vocab} | {ours[0]:.2f} ({ours[1]:.2f}) | {ours[2]:.0f} | {theirs[0]:.1f} ({theirs[1]:.1f}) | "
              f"{theirs[2]:.0f} | {theirs[0] / ours[0]:.0f} | {ours[2] / theirs[2]:.2f} |", flush=True)


def bench_patterns(tokenizers, options, directory, library):
    """Each pattern with a vocabulary trained on the text; per processor second, and against GPT-2's pattern."""
    texts = corpus.without([text for part in standard_texts(int(options.megabytes * 1e6)).values() for text in part],
                           corpus.newer_characters())
    size, path = sum(len(text.encode()) for text in texts) / 1e6, directory / "tokenizer.json"
    lines = directory / "texts.jsonl"
    lines.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    contestants, counts = {}, {}
    for pattern in corpus.PATTERNS:
        subprocess.run([ROOT / "data/train_tokenizer", "--vocab-size", "8192", "--pattern", pattern, "-o", path, lines],
                       check=True, stdout=subprocess.DEVNULL)
        contestants[pattern] = [Ours(library, path, 1), HuggingFace(tokenizers.Tokenizer.from_file(str(path)), 1)]
    best = {}
    for _ in range(options.rounds):
        for pattern, both in contestants.items():
            (ours, tokens), (theirs, expected) = [encode(texts) for encode in both]
            if tokens != expected:
                sys.exit(f"bench_tokenizer: {pattern}: other tokens than Hugging Face's")
            figures = ours[1], theirs[1]
            best[pattern], counts[pattern] = tuple(map(min, best.get(pattern, figures), figures)), len(tokens)
    print(f"{machine()}; {size:.1f} MB; best of {options.rounds}; `{' '.join(sys.argv)}`\n")
    print(f"| pattern | bytes a token | pretrain.cu: MB per processor second | of gpt2's | tokenizers "
          f"{tokenizers.__version__} | times as fast |\n" + "| --- " + "| ---: " * 5 + "|")
    for pattern, (ours, theirs) in best.items():
        print(f"| `{pattern}` | {size * 1e6 / counts[pattern]:.2f} | {size / ours:.1f} | {best['gpt2'][0] / ours:.2f} | "
              f"{size / theirs:.2f} | {theirs / ours:.0f} |")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="*", metavar="FILE", help="UTF-8 text; default: English, code and mixed scripts")
    parser.add_argument("--vocabulary", default=DATA / "gpt2", type=Path, help="as for tokenizer_open (%(default)s)")
    parser.add_argument("--train", action="store_true", help="measure training, not encoding")
    parser.add_argument("--patterns", action="store_true", help="measure every pattern")
    parser.add_argument("--megabytes", type=float, help="of each text at most (8; --train: 40)")
    parser.add_argument("--rounds", type=int, default=3, help="(%(default)s)")
    options = parser.parse_args()
    os.environ["RAYON_NUM_THREADS"] = str(max(THREADS))
    try:
        import tiktoken
        import tokenizers
    except ImportError as error:
        sys.exit(f"bench_tokenizer: {error}; install it: scripts/install_deps.sh test, then run .venv/bin/python")
    installed = importlib.util.find_spec("gigatoken")
    gigatoken = importlib.import_module("gigatoken") if installed else None
    options.megabytes = options.megabytes or (40 if options.train else 8)
    if options.train:
        with tempfile.TemporaryDirectory() as directory:
            return bench_training(tokenizers, options, Path(directory))
    with tempfile.TemporaryDirectory() as directory:
        library = native_tokenizer.Library(native_tokenizer.build(directory))
        if options.patterns:
            return bench_patterns(tokenizers, options, Path(directory), library)
        try:
            ours = library.open(options.vocabulary)
        except native_tokenizer.BadTokenizer as error:
            sys.exit(f"bench_tokenizer: {error}")
        exported = Path(directory) / "tokenizer.json"
        exported.write_bytes(ours.to_json())
        huggingface = tokenizers.Tokenizer.from_file(str(exported))
        ranks = {ours.token(i): i for i in range(ours.vocab) if not ours.is_special(i)}
        encoding = tiktoken.Encoding("bench", pat_str=PATTERN, mergeable_ranks=ranks, special_tokens={})
        contestants = {}
        for n in THREADS:
            contestants |= {("pretrain.cu", n): Ours(library, options.vocabulary, n),
                            ("pretrain.cu, warm", n): Ours(library, options.vocabulary, n, True),
                            (f"tiktoken {tiktoken.__version__}", n): TikToken(encoding, n),
                            (f"tokenizers {tokenizers.__version__}", n): HuggingFace(huggingface, n)}
            if gigatoken:
                version = importlib.metadata.version("gigatoken")
                contestants |= {(f"gigatoken {version}", n): GigaToken(gigatoken, exported, n),
                                (f"gigatoken {version}, warm", n):
                                    GigaToken(gigatoken, exported, n, True)}
        size = int(options.megabytes * 1e6)
        texts = own_texts(options.files, size) if options.files else standard_texts(size)
        results = {}
        newer = corpus.newer_characters()  # which Hugging Face's tables do not have: doc/tokenizer.md
        for kind in texts:
            texts[kind] = corpus.without(texts[kind], newer)
            results[kind] = measure(contestants, texts[kind], options.rounds)
    sizes = {kind: sum(len(text.encode()) for text in texts[kind]) for kind in texts}
    print(f"{machine()}; {ours.vocab} tokens; best of {options.rounds}; `{' '.join(sys.argv)}`\n")
    heads = [f"{kind}, {sizes[kind] / 1e6:.1f} MB, {sizes[kind] / results[kind][1]:.2f} bytes a token"
             for kind in texts]
    print("| MB/s (per processor second) | " + " | ".join(heads) + " |")
    print("| --- |" + " ---: |" * len(texts))
    for name in contestants:
        rates = [[sizes[kind] / seconds / 1e6 for seconds in results[kind][0][name]] for kind in texts]
        cells = [f"{wall:.1f} ({processor:.1f})" for wall, processor in rates]
        print(f"| {name[0]}, {name[1]} thread{'s' * (name[1] > 1)} | " + " | ".join(cells) + " |")


if __name__ == "__main__":
    tool.run(main)
