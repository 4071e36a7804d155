"""The tokenizer of llmc/text as a Python object, for tests and measurements: compiled into a shared library, called
by ctypes. Several Encoders may work at a time: ctypes releases Python's lock during a call."""
import ctypes
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SOURCES = [ROOT / "llmc" / "text" / f"{name}.c" for name in (
    "alphabet", "bpe_trainer", "char_kinds", "encoder", "merges", "pieces", "spellings", "tokenizer", "tokenizer_json", "tokenizer_open",
    "tokenizer_ranks", "vocabulary", "word_counts")]
SOURCES += sorted((ROOT / "llmc" / "base").glob("*.c"))


class Error(ctypes.Structure):
    _fields_ = [("text", ctypes.c_char * 1024)]


class BadTokenizer(Exception):
    pass


def build(directory):
    """Compiles the library into a directory, with the flags of the Makefile; returns its path."""
    out = Path(directory) / "libtokenizer.so"
    subprocess.run(["gcc", "-std=c11", "-D_GNU_SOURCE", f"-I{ROOT}", "-O3", "-g1", "-fPIC", "-shared", *SOURCES, "-o",
                    out, "-lcjson", "-lxxhash", "-lpcre2-8", "-lm"], check=True)
    return out


class Library:
    def __init__(self, path):
        pointer, i32, i64, text = ctypes.c_void_p, ctypes.c_int32, ctypes.c_int64, ctypes.c_char_p
        self.c = ctypes.CDLL(str(path))
        for name, result, *arguments in (
                ("tokenizer_bytes", pointer, pointer), ("tokenizer_open", pointer, text, pointer),
                ("tokenizer_free", None, pointer), ("tokenizer_vocab", i64, pointer), ("tokenizer_eot", i32, pointer),
                ("tokenizer_fingerprint", ctypes.c_uint64, pointer),
                ("tokenizer_is_special", ctypes.c_bool, pointer, i32),
                ("tokenizer_decode", pointer, pointer, i32, pointer), ("encoder_create", pointer, pointer),
                ("encoder_free", None, pointer), ("encoder_encode", i64, pointer, text, i64, pointer),
                ("encoder_encode_special", i64, pointer, text, i64, pointer),
                ("tokenizer_safe_cut", i64, pointer, text, i64),
                ("tokenizer_to_json", pointer, pointer, pointer)):
            function = getattr(self.c, name)
            function.restype, function.argtypes = result, arguments
        self.c.free = ctypes.CDLL(None).free
        self.c.free.argtypes = [pointer]

    def open(self, path):
        return Tokenizer(self.c, path)

    def bytes(self):
        return Tokenizer(self.c, None)


class Tokenizer:
    def __init__(self, c, path):
        self.c, error = c, Error()
        self.t = (c.tokenizer_bytes(ctypes.byref(error)) if path is None else
                  c.tokenizer_open(str(path).encode(), ctypes.byref(error)))
        if not self.t:
            raise BadTokenizer(error.text.decode(errors="replace"))
        self.vocab, self.eot = c.tokenizer_vocab(self.t), c.tokenizer_eot(self.t)
        self.fingerprint = c.tokenizer_fingerprint(self.t)
        self.encoder = Encoder(self)

    def encode(self, text, special=False):
        return self.encoder.encode(text, special)

    def token(self, number):
        length = ctypes.c_size_t()
        pointer = self.c.tokenizer_decode(self.t, number, ctypes.byref(length))
        return ctypes.string_at(pointer, length.value)

    def decode(self, tokens):
        if not hasattr(self, "table"):
            self.table = [self.token(i) for i in range(self.vocab)]
        return b"".join(map(self.table.__getitem__, tokens))

    def is_special(self, number):
        return self.c.tokenizer_is_special(self.t, number)

    def safe_cut(self, text):
        return self.c.tokenizer_safe_cut(self.t, text, len(text))

    def to_json(self):
        length = ctypes.c_size_t()
        pointer = self.c.tokenizer_to_json(self.t, ctypes.byref(length))
        text = ctypes.string_at(pointer, length.value)
        self.c.free(pointer)
        return text


class Encoder:
    """One thread's. encode returns an array that is good until the next call."""

    def __init__(self, tokenizer):
        self.c, self.tokenizer = tokenizer.c, tokenizer
        self.e = self.c.encoder_create(tokenizer.t)
        self.room = 0

    def encode(self, text, special=False):
        text = text.encode() if isinstance(text, str) else bytes(text)
        if self.room < len(text) or not self.room:
            self.room = len(text) + 1
            self.out = (ctypes.c_int32 * self.room)()
        function = self.c.encoder_encode_special if special else self.c.encoder_encode
        return memoryview(self.out).cast("B").cast("i")[:function(self.e, text, len(text), self.out)]

    def reserve(self, total):
        """Room for encode_all of texts of this length together; the pages are touched."""
        self.all = memoryview((ctypes.c_int32 * (total + 1))()).cast("B").cast("i")
        ctypes.memset(ctypes.addressof(ctypes.c_int32.from_buffer(self.all)), 1, 4 * total)

    def encode_all(self, texts):
        """Tokens of texts of bytes, one behind the other in self.all; returns how many."""
        count, begin = 0, ctypes.addressof(ctypes.c_int32.from_buffer(self.all))
        for text in texts:
            count += self.c.encoder_encode(self.e, text, len(text), begin + 4 * count)
        return count
