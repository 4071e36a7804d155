"""Varied text for the equality tests of the tokenizer: documents of real and of generated text, always the same ones.

documents(megabytes) mixes all kinds in fixed shares: prose, code and translations found on this system, and generated
text of many scripts, emoji, white space of all kinds, control characters, contractions, random Unicode.
"""
import os
import random
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
DATA = Path(os.environ.get("PRETRAIN_DATA", ROOT / ".." / "shared" / "data"))
DOCUMENT = 100_000  # characters, about

SPACES = " \t\n\r\v\f\u0085\u00a0\u1680\u2000\u2003\u2009\u200a\u2028\u2029\u202f\u205f\u3000"
NEARLY_SPACES = "\u180e\u200b\u200c\u200d\u2060\ufeff\x1c\x1d\x1e\x1f\x00\x7f\u00ad"
# First and last character of the letters of some scripts.
SCRIPTS = {
    "Latin": (0x61, 0x7A), "Latin-1": (0xC0, 0xFF), "Vietnamese": (0x1EA0, 0x1EF9), "Greek": (0x391, 0x3C9),
    "Cyrillic": (0x410, 0x44F), "Armenian": (0x561, 0x586), "Hebrew": (0x5D0, 0x5EA), "Arabic": (0x620, 0x64A),
    "Devanagari": (0x900, 0x97F), "Bengali": (0x980, 0x9FE), "Tamil": (0xB80, 0xBFF), "Thai": (0xE01, 0xE5B),
    "Tibetan": (0xF00, 0xFBC), "Georgian": (0x10D0, 0x10FF), "Ethiopic": (0x1200, 0x137C), "Khmer": (0x1780, 0x17F9),
    "Hiragana": (0x3041, 0x3096), "Katakana": (0x30A1, 0x30FA), "Han": (0x4E00, 0x9FA5), "Hangul": (0xAC00, 0xD7A3),
    "Gothic": (0x10330, 0x1034A), "Cuneiform": (0x12000, 0x12399), "Mathematical": (0x1D400, 0x1D7CB),
    "Han extension B": (0x20000, 0x2A6DF),
}
DIGITS = "0123456789٠١٢٣٤٥٦٧٨٩०१२३४५๐๑๒½¾²³ⅠⅡⅢ①②③〇"
MARKS = ".,;:!?'\"()[]{}<>/\\|@#$%^&*-_=+~`«»„“”‘’…—–、。「」（）！？٪؟।\u0301\u0308\u20ac\u2122\ufffd"
CONTRACTIONS = ["'s", "'t", "'re", "'ve", "'m", "'ll", "'d", "'S", "'RE", "’s", "''s", "'", "'l", "'r", "'v", "' s",
                "'sat", "'rest", "'llama", " 's", "1's", "'s1", "!'s", "'ſ", "'re've", "'ve'"]
EMOJI = ["👨‍👩‍👧‍👦", "🏳️‍🌈", "👍🏽", "🇩🇪🇫🇷", "☃️", "😀", "🤷🏾‍♀️", "1️⃣", "🧑‍🚀", "❤️‍🔥"]


def script_text(choose, size):
    first, last = SCRIPTS[choose.choice(list(SCRIPTS))]
    words = []
    while size > 0:
        word = "".join(chr(choose.randint(first, last)) for _ in range(choose.randint(1, 12)))
        word += choose.choice(["", "", "", choose.choice(MARKS), choose.choice(CONTRACTIONS), choose.choice(DIGITS)])
        words.append(word)
        size -= len(word) + 1
    return " ".join(words)


def emoji_text(choose, size):
    return "".join(choose.choice(EMOJI + [" ", "a", "!", "\u200d", "\ufe0f"]) for _ in range(size // 3))


def space_text(choose, size):
    parts = []
    while size > 0:
        space = choose.choice(SPACES + "    \n\n" + NEARLY_SPACES)
        run = space * choose.choice([1, 1, 2, 3, 4, 8, 40, choose.randint(1, 3000)])
        parts.append(run + choose.choice(["", "a", "word", "1", "!", "'s", choose.choice(SPACES + NEARLY_SPACES)]))
        size -= len(parts[-1])
    return "".join(parts)


def mixed_text(choose, size):
    kinds = [lambda: choose.choice(CONTRACTIONS), lambda: choose.choice(SPACES), lambda: choose.choice(MARKS),
             lambda: choose.choice(DIGITS), lambda: chr(choose.randrange(128)), lambda: choose.choice(NEARLY_SPACES),
             lambda: choose.choice(["a", "the", " of", "xyz", "Ünï", "e\u0301"])]
    return "".join(choose.choice(kinds)() for _ in range(size // 2))


def control_text(choose, size):
    return "".join(chr(choose.choice([choose.randrange(32), choose.randrange(256)])) for _ in range(size))


def random_unicode(choose, size):
    planes = [0x80, 0x800, 0x10000, 0x20000, 0x30000, 0x110000]
    characters = (choose.randrange(choose.choice(planes)) for _ in range(size))
    return "".join(chr(c) for c in characters if not 0xD800 <= c < 0xE000)


def long_pieces(choose, size):
    """Runs without an end of piece: of one character, of few, of many."""
    alphabet = choose.choice(["a", "ab", "-", "=-", "0", "é", "abcdefghijklmnopqrstuvwxyz", "語漢字", "!?.,"])
    return "".join(choose.choice(alphabet) for _ in range(min(size, 20_000)))


def code_text(choose, size):
    lines = []
    while size > 0:
        indent = choose.choice(["    ", "\t", "  "]) * choose.randrange(6)
        lines.append(f"{indent}{choose.choice(['if', 'for', 'return', '//', '#', 'x_1'])} "
                     f"{choose.choice(MARKS)}foo_bar{choose.randrange(10 ** 6)}({choose.choice(DIGITS)}, 'it''s')"
                     + choose.choice(["", " ", ";  ", "\r"]))
        size -= len(lines[-1])
    return "\n".join(lines)


GENERATED = [script_text, emoji_text, space_text, mixed_text, control_text, random_unicode, long_pieces, code_text]


def blocks(path):
    """A file's text in documents; what is not UTF-8 is replaced. A NUL near its beginning: no text."""
    try:
        data = path.read_bytes()
    except OSError:
        return
    if b"\0" not in data[:4096]:
        text = data.decode(errors="replace")
        for at in range(0, len(text), DOCUMENT):
            yield text[at:at + DOCUMENT]


def system_documents():
    """Code in C, Python, Perl, Tcl and shell, locales of all languages, and documentation, a few of each in turn."""
    patterns = [("/usr/include", "*.h"), ("/usr/share/i18n/locales", "*"), ("/usr/lib/python3", "*.py"),
                ("/usr/share/perl", "*.p[lm]"), ("/usr/share/doc", "*"), ("/usr/lib/python3.11", "*.py"),
                ("/usr/share", "*.xml"), ("/usr/share", "*.txt"), ("/usr/share/vim", "*")]
    lists = [iter(sorted(p for p in Path(folder).rglob(pattern) if p.is_file() and p.stat().st_size < 4 << 20))
             for folder, pattern in patterns if Path(folder).is_dir()]
    while lists:
        for files in list(lists):
            path = next(files, None)
            if path is None:
                lists.remove(files)
            else:
                yield from blocks(path)


def real_documents():
    for name in ("tinyshakespeare/input.txt", "wikitext2/test.txt", "wikitext2/valid.txt"):
        yield from blocks(DATA / name)


def generated_documents():
    choose = random.Random(20240328)
    while True:
        for kind in GENERATED:
            yield kind(choose, choose.randrange(100, 20_000))


def take(texts, size):
    """The texts of which there are `size` bytes, or all."""
    taken = []
    for text in texts:
        if size <= 0:
            break
        taken.append(text)
        size -= len(text.encode())
    return taken


# The patterns of Hugging Face's files, by the names that data/prepare has for them.
LLAMA3 = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
SPLITS = {
    "llama3": LLAMA3,
    "qwen2": LLAMA3.replace("{1,3}", ""),
    "o200k": "|".join([
        r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
        r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
        r"\p{N}{1,3}", r" ?[^\s\p{L}\p{N}]+[\r\n/]*", r"\s*[\r\n]+", r"\s+(?!\S)", r"\s+"]),
}
PATTERNS = ["gpt2", "starcoder", *SPLITS]
# Of Unicode 17: Digits of tokenizers 0.23 knows them already, its expressions do not.
NEWEST_NUMBERS = {chr(c) for c in (*range(0x11DE0, 0x11DEA), *range(0x16FF4, 0x16FF7))}


def pre_tokenizer(pattern):
    """Hugging Face's, as the models' files have it."""
    from tokenizers import Regex, pre_tokenizers
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=pattern not in SPLITS)
    if pattern == "gpt2":
        return byte_level
    first = pre_tokenizers.Split(Regex(SPLITS[pattern]), "isolated") if pattern in SPLITS else \
        pre_tokenizers.Digits(individual_digits=True)
    return pre_tokenizers.Sequence([first, byte_level])


def huggingface(texts, pattern, vocab):
    """The tokenizer that the real package trains: byte-level BPE, <|endoftext|> last."""
    from tokenizers import AddedToken, Tokenizer, models, pre_tokenizers, trainers
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizer(pattern)
    tokenizer.train_from_iterator(texts, trainers.BpeTrainer(
        vocab_size=vocab - 1, min_frequency=2, show_progress=False, max_token_length=128,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet()))
    tokenizer.add_special_tokens([AddedToken("<|endoftext|>", normalized=False)])
    return tokenizer


def documents(megabytes):
    size = int(megabytes * 1e6)
    texts = take(real_documents(), size // 4) + take(generated_documents(), size // 4)
    return texts + take(system_documents(), size - sum(len(text.encode()) for text in texts))


def newer_characters():
    """The characters that tiktoken calls letters, numbers or marks and Hugging Face does not: those that came into Unicode
    after the version that its Oniguruma knows. Computed from the two libraries themselves."""
    import tiktoken
    import tokenizers
    code_points, newer = [c for c in range(0x110000) if not 0xD800 <= c < 0xE000], set()
    for kind in (r"\p{L}", r"\p{N}", r"\p{M}", r"\s"):
        matcher = tiktoken.Encoding("kind", pat_str=kind, mergeable_ranks={bytes([i]): i for i in range(256)},
                                    special_tokens={})
        splitter = tokenizers.pre_tokenizers.Split(tokenizers.Regex(kind), "removed", invert=True)
        for at in range(0, len(code_points), 8192):
            block = "".join(map(chr, code_points[at:at + 8192]))
            theirs = {c for piece, _ in splitter.pre_tokenize_str(block) for c in piece}
            newer |= set(bytes(matcher.encode_ordinary(block)).decode()) ^ theirs
    return newer


def without(texts, characters):
    table = {ord(c): None for c in characters}
    return [text.translate(table) for text in texts]
