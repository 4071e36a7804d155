"""The tokenizer against Hugging Face's tokenizers and OpenAI's tiktoken: the same tokens for every text.

TOKENIZER_MB=60 compares 60 MB and every character in every surrounding (minutes); the default takes seconds.
"""
import base64
import itertools
import json
import os
import random
import subprocess
import sys
import unicodedata
import warnings

import numpy as np
import pytest

import tokenizer_corpus as corpus
from conftest import PREPARE, ROOT, TRAIN_TOKENIZER

sys.path.insert(0, str(ROOT / "dev" / "bench"))
import native_tokenizer as native  # noqa: E402

tokenizers = pytest.importorskip("tokenizers", reason="tokenizers is missing: scripts/install_deps.sh test")
tiktoken = pytest.importorskip("tiktoken", reason="tiktoken is missing: scripts/install_deps.sh test")

MEGABYTES = float(os.environ.get("TOKENIZER_MB", "4"))
EVERYTHING = MEGABYTES >= 50
TRAINED_SIZES = [512, 4096, 50257 if EVERYTHING else 10000]  # 50,257 take 10 MB of text
GPT2 = corpus.DATA / "gpt2"
GPT2_PATTERN = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
CODE_POINTS = [c for c in range(0x110000) if not 0xD800 <= c < 0xE000]


@pytest.fixture(scope="session")
def library(tmp_path_factory):
    return native.Library(native.build(tmp_path_factory.mktemp("library")))


@pytest.fixture(scope="session")
def texts():
    return corpus.documents(MEGABYTES)


@pytest.fixture(scope="session")
def newer_characters():
    return corpus.newer_characters()


class Vocabulary:
    """One vocabulary in all the forms that the three libraries read."""

    def __init__(self, library, directory, path):
        self.path = path
        self.ours = library.open(path)
        json_path = directory / "tokenizer.json"
        json_path.write_bytes(self.ours.to_json())
        self.huggingface = tokenizers.Tokenizer.from_file(str(path if path.suffix == ".json" else json_path))
        spellings = {self.ours.token(i): i for i in range(self.ours.vocab) if not self.ours.is_special(i)}
        self.tiktoken = tiktoken.Encoding("ours", pat_str=GPT2_PATTERN, mergeable_ranks=spellings,
                                          special_tokens={"<|endoftext|>": self.ours.eot})
        rank_path = directory / "ranks.tiktoken"
        rank_path.write_bytes(b"".join(base64.b64encode(s) + b" %d\n" % i for s, i in spellings.items()))
        self.ours_by_rank = library.open(rank_path)


@pytest.fixture(scope="session")
def gpt2(library, tmp_path_factory):
    if not GPT2.is_dir():
        warnings.warn(f"GPT-2's vocabulary is not at {GPT2}: NOT COMPARED with it (PRETRAIN_DATA names the folder)")
        pytest.skip(f"no {GPT2}")
    return Vocabulary(library, tmp_path_factory.mktemp("gpt2"), GPT2)


@pytest.fixture(scope="session")
def trained(library, tmp_path_factory):
    """Vocabularies of data/train_tokenizer, by size."""
    directory, made = tmp_path_factory.mktemp("trained"), {}
    for size in TRAINED_SIZES:
        (directory / str(size)).mkdir()
        text, path = directory / str(size) / "corpus.jsonl", directory / f"{size}.json"
        texts = corpus.documents(12 if EVERYTHING else 1 if size <= 4096 else 2)
        text.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
        subprocess.run([TRAIN_TOKENIZER, "--vocab-size", str(size), "-o", path, text], check=True, capture_output=True,
                       timeout=600)
        made[size] = Vocabulary(library, directory / str(size), path)
    return made


def first_difference(text, ours, theirs):
    at = next((i for i, (a, b) in enumerate(itertools.zip_longest(ours, theirs)) if a != b), None)
    return f"token {at}: {list(ours[at:at + 5])}, expected {theirs[at:at + 5]}, in {text[:60]!r}..."


def assert_equal_to_tiktoken(tokenizer, reference, texts):
    for text in texts:
        ours, theirs = tokenizer.encode(text), reference.encode_ordinary(text)
        assert ours.tolist() == theirs, first_difference(text, ours.tolist(), theirs)


def assert_equal_to_huggingface(tokenizer, reference, texts):
    for at in range(0, len(texts), 64):
        batch = texts[at:at + 64]
        for text, encoding in zip(batch, reference.encode_batch(batch, add_special_tokens=False)):
            ours, theirs = tokenizer.encode(text), encoding.ids
            assert ours.tolist() == theirs, first_difference(text, ours.tolist(), theirs)


# ------------------------------------------------------------------------------------------------------------ equality

def test_known_values_of_gpt2(gpt2):
    ours = gpt2.ours
    assert ours.encode("Hello world").tolist() == [15496, 995]
    assert ours.encode("\n").tolist() == [198]
    assert ours.encode("<|endoftext|>", special=True).tolist() == [50256] == [ours.eot]
    assert (ours.vocab, ours.token(50256)) == (50257, b"<|endoftext|>")
    shakespeare = corpus.DATA / "tinyshakespeare" / "input.txt"
    if shakespeare.exists():
        assert len(ours.encode(shakespeare.read_bytes())) == 338025


def test_gpt2_gives_tiktokens_tokens(gpt2, texts):
    assert_equal_to_tiktoken(gpt2.ours, gpt2.tiktoken, texts)


def test_gpt2_as_a_rank_file_gives_tiktokens_tokens(gpt2, texts):
    assert_equal_to_tiktoken(gpt2.ours_by_rank, gpt2.tiktoken, texts[::4])


@pytest.mark.slow
def test_gpt2_gives_huggingfaces_tokens(gpt2, texts, newer_characters):
    assert_equal_to_huggingface(gpt2.ours, gpt2.huggingface, corpus.without(texts, newer_characters))


@pytest.mark.slow
@pytest.mark.parametrize("size", TRAINED_SIZES)
def test_a_trained_vocabulary_gives_huggingfaces_tokens(trained, texts, newer_characters, size):
    part = texts if EVERYTHING else texts[TRAINED_SIZES.index(size)::4]
    assert_equal_to_huggingface(trained[size].ours, trained[size].huggingface, corpus.without(part, newer_characters))


@pytest.mark.parametrize("size", TRAINED_SIZES)
def test_a_trained_vocabulary_as_ranks_gives_tiktokens_tokens(trained, texts, size):
    part = texts if EVERYTHING else texts[TRAINED_SIZES.index(size)::4]
    assert_equal_to_tiktoken(trained[size].ours_by_rank, trained[size].tiktoken, part)


def surroundings(code_points, form="a{0}b\n{0}\n"):
    """Texts of all these characters, each between letters and alone on a line."""
    for at in range(0, len(code_points), 4096):
        yield "".join(form.format(chr(c)) for c in code_points[at:at + 4096])


def test_every_character_gives_tiktokens_tokens(trained):
    vocabulary = trained[512]
    assert_equal_to_tiktoken(vocabulary.ours_by_rank, vocabulary.tiktoken, surroundings(CODE_POINTS))
    if EVERYTHING:
        form = "1{0}2 {0}{0} \t{0} '{0}'s {0}'s!{0}"
        assert_equal_to_tiktoken(vocabulary.ours_by_rank, vocabulary.tiktoken, surroundings(CODE_POINTS, form))


def test_every_character_gives_huggingfaces_tokens(trained, newer_characters):
    # The fixture has compared all kinds of characters with tiktoken's already; Hugging Face takes ten times as long.
    old = [c for c in CODE_POINTS if chr(c) not in newer_characters]
    chosen = old if EVERYTHING else [c for c in old if c < 0x3100 or c % 16 == 0]
    vocabulary = trained[512]
    assert_equal_to_huggingface(vocabulary.ours, vocabulary.huggingface, list(surroundings(chosen)))


def test_the_list_of_characters_that_huggingface_does_not_know_is_complete(newer_characters):
    lines = (ROOT / "test" / "e2e" / "newer_characters.txt").read_text().splitlines()
    listed = set()
    for item in " ".join(line for line in lines if not line.startswith("#")).split():
        first, _, last = item.partition("-")
        listed |= set(range(int(first, 16), int(last or first, 16) + 1))
    assert listed == set(map(ord, newer_characters))


@pytest.mark.parametrize("piece", [" ", "a", "ab", "\n", "é", "!", "7", "x_", "語"])
def test_a_very_long_piece_gives_the_same_tokens(gpt2, piece):
    text = piece * (200_000 // len(piece)) + "b"
    ours = gpt2.ours.encode(text).tolist()
    assert ours == gpt2.huggingface.encode(text).ids
    assert ours == gpt2.ours_by_rank.encode(text).tolist() == gpt2.tiktoken.encode_ordinary(text)


def test_random_letters_without_end_give_the_same_tokens(gpt2):
    choose = random.Random(4)
    text = "".join(choose.choice("etaoinshrdlu") for _ in range(150_000))
    ours = gpt2.ours.encode(text).tolist()
    assert ours == gpt2.huggingface.encode(text).ids == gpt2.tiktoken.encode_ordinary(text)


# ------------------------------------------------------------------------------------------------------ other patterns

@pytest.fixture(scope="session")
def by_pattern(library, newer_characters, tmp_path_factory):
    """A vocabulary that Hugging Face has trained with the pattern, in both libraries."""
    made = {}

    def vocabulary(pattern):
        if pattern not in made:
            directory = tmp_path_factory.mktemp(pattern)
            (directory / "in").mkdir()
            texts = corpus.without(corpus.documents(0.4 if EVERYTHING else 0.12), newer_characters)
            corpus.huggingface(texts, pattern, 3000 if EVERYTHING else 1500).save(str(directory / "in" / "tokenizer.json"))
            made[pattern] = Vocabulary(library, directory, directory / "in" / "tokenizer.json")
        return made[pattern]
    return vocabulary


def random_unicode(size):
    choose = random.Random(8)
    return corpus.take(iter(lambda: corpus.random_unicode(choose, 20_000), None), size)


@pytest.mark.parametrize("pattern", corpus.PATTERNS[1:])
def test_another_pattern_gives_huggingfaces_tokens(by_pattern, newer_characters, pattern):
    vocabulary = by_pattern(pattern)
    texts = corpus.without(corpus.documents(0.1) + random_unicode(40_000), newer_characters | corpus.NEWEST_NUMBERS)
    assert_equal_to_huggingface(vocabulary.ours, vocabulary.huggingface, texts)
    for text in texts[::8]:
        tokens = vocabulary.ours.encode(text).tolist()
        assert vocabulary.ours.decode(tokens) == text.encode()
        cut = vocabulary.ours.safe_cut(text.encode())
        head, tail = text.encode()[:cut], text.encode()[cut:]
        assert vocabulary.ours.encode(head).tolist() + vocabulary.ours.encode(tail).tolist() == tokens


@pytest.mark.slow
@pytest.mark.parametrize("pattern", ["llama3", "o200k"])  # the longest two; all have the smaller text above
def test_another_pattern_gives_huggingfaces_tokens_of_8_mb(by_pattern, newer_characters, pattern):
    newer = newer_characters | corpus.NEWEST_NUMBERS
    texts = corpus.without(corpus.documents(8) + random_unicode(2_000_000), newer)
    old = [c for c in CODE_POINTS if chr(c) not in newer and (c < 0x3400 or c % 16 == 0)]
    texts += surroundings(old, "A{0}b{0}B 1{0}2 {0}{0} \t{0} '{0}'s {0}'S!{0}/\r\n/")
    assert_equal_to_huggingface(by_pattern(pattern).ours, by_pattern(pattern).huggingface, texts)


@pytest.mark.parametrize("pattern", corpus.PATTERNS)
def test_what_is_written_with_a_pattern_is_read_equal(library, by_pattern, tmp_path, pattern):
    vocabulary = by_pattern(pattern)
    path = tmp_path / "tokenizer.json"
    path.write_bytes(vocabulary.ours.to_json())
    again, theirs = library.open(path), tokenizers.Tokenizer.from_file(str(path))
    assert (again.fingerprint, again.to_json()) == (vocabulary.ours.fingerprint, vocabulary.ours.to_json())
    assert json.loads(theirs.to_str())["pre_tokenizer"] == json.loads(vocabulary.huggingface.to_str())["pre_tokenizer"]
    document = json.loads(vocabulary.huggingface.to_str())
    for removed, ignore in ((True, False), (False, True)):  # other spellings of the same pattern, and whole pieces
        if pattern in corpus.SPLITS:
            split = document["pre_tokenizer"]["pretokenizers"][0]
            split |= {"behavior": "Removed", "invert": True} if removed else {"behavior": "Isolated", "invert": False}
        if ignore and tuple(map(int, tokenizers.__version__.split(".")[:2])) < (0, 19):
            continue
        document["model"]["ignore_merges"] = ignore
        path.write_text(json.dumps(document))
        again, theirs = library.open(path), tokenizers.Tokenizer.from_file(str(path))
        assert_equal_to_huggingface(again, theirs, corpus.documents(0.05))
    fingerprints = {by_pattern(p).ours.fingerprint for p in corpus.PATTERNS}
    assert len(fingerprints) == len(corpus.PATTERNS)


def like_llama3(by_pattern, directory):
    """A tokenizer.json with the tokens and the template of Llama 3; returns its path."""
    document = json.loads(by_pattern("llama3").huggingface.to_str())
    end, begin = document["added_tokens"][0], dict(document["added_tokens"][0])
    end["content"], begin["content"], begin["id"] = "<|end_of_text|>", "<|begin_of_text|>", end["id"] + 1
    document["added_tokens"].append(begin)
    document["model"]["vocab"].pop("<|endoftext|>", None)
    before, text = {"SpecialToken": {"id": begin["content"], "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}
    document["post_processor"] = {"type": "Sequence", "processors": [
        {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": False, "use_regex": True},
        {"type": "TemplateProcessing", "single": [before, text], "pair": [before, text, {"Sequence": {"id": "B", "type_id": 1}}],
         "special_tokens": {begin["content"]: {"id": begin["content"], "ids": [begin["id"]], "tokens": [begin["content"]]}}}]}
    path = directory / "tokenizer.json"
    path.write_text(json.dumps(document))
    return path


def test_the_begin_and_the_end_of_text_are_those_of_llama3(library, by_pattern, tmp_path):
    path = like_llama3(by_pattern, tmp_path)
    ours, theirs = library.open(path), tokenizers.Tokenizer.from_file(str(path))
    assert ours.token(ours.eot) == b"<|end_of_text|>" and ours.vocab == ours.eot + 2
    path.write_bytes(ours.to_json())
    again = tokenizers.Tokenizer.from_file(str(path))
    for text in ("It's 12345<|end_of_text|>", ""):
        expected = [ours.eot + 1, *ours.encode(text, special=True).tolist()]
        assert theirs.encode(text).ids == again.encode(text).ids == expected
    (tmp_path / "tokenizer_config.json").write_text('{"add_bos_token": true, "bos_token": "<|begin_of_text|>"}')
    library.open(path)
    (tmp_path / "tokenizer_config.json").unlink()
    (tmp_path / "in").mkdir()
    for i, text in enumerate(("Two  documents", "1234")):
        (tmp_path / "in" / f"{i}.txt").write_text(text)
    subprocess.run([PREPARE, "--tokenizer", path, "--split", "train", "-o", tmp_path / "out", tmp_path / "in"], check=True,
                   capture_output=True, timeout=300)
    tokens = np.fromfile(tmp_path / "out" / "train_000000.bin", np.uint16)[512:].tolist()
    assert tokens == [t for text in ("Two  documents", "1234") for t in [ours.eot, *theirs.encode(text).ids]]
    assert (tmp_path / "out" / "tokenizer.json").read_bytes() == path.read_bytes()


def test_a_tokenizer_that_normalizes_to_nfc_is_used_on_text_in_nfc_and_says_so(library, by_pattern, newer_characters, tmp_path):
    document = json.loads(by_pattern("qwen2").huggingface.to_str())
    document["normalizer"] = {"type": "NFC"}
    path = tmp_path / "tokenizer.json"
    path.write_text(json.dumps(document))
    ours, theirs = library.open(path), tokenizers.Tokenizer.from_file(str(path))
    texts = [unicodedata.normalize("NFC", text) for text in corpus.without(corpus.documents(0.05), newer_characters)]
    assert_equal_to_huggingface(ours, theirs, texts)
    assert json.loads(ours.to_json())["normalizer"] == {"type": "NFC"}
    (tmp_path / "a.txt").write_text("e\u0301")
    said = subprocess.run([PREPARE, "--tokenizer", path, "--split", "train", "-o", tmp_path / "out", tmp_path / "a.txt"],
                          check=True, capture_output=True, text=True, timeout=300).stdout
    assert "note: the tokenizer normalizes texts to NFC" in said
    assert ours.decode(ours.encode("e\u0301")).decode() == "e\u0301"


def test_whole_pieces_come_before_merges(library, tmp_path):
    """Llama 3's "ignore_merges": the vocabulary has "abc", which its merges pass over."""
    document = json.loads(library.bytes().to_json())
    document["model"]["vocab"] |= {"ab": 257, "bc": 258, "abc": 259}
    document["model"]["merges"] = ["b c", "a b", "ab c"]
    path = tmp_path / "tokenizer.json"
    for ignore, expected in ((True, [259]), (False, [97, 258])):
        document["model"]["ignore_merges"] = ignore
        path.write_text(json.dumps(document))
        assert library.open(path).encode("abc").tolist() == expected


# ---------------------------------------------------------------------------------------------------------- every byte

def test_what_is_decoded_is_what_was_encoded(gpt2, trained, texts):
    for tokenizer in [gpt2.ours, *(v.ours for v in trained.values())]:
        for text in texts[::16]:
            assert tokenizer.decode(tokenizer.encode(text)) == text.encode()


def test_bytes_that_are_no_utf8_come_back(trained):
    choose, tokenizer = random.Random(3), trained[4096].ours
    for i in range(2000):
        text = choose.randbytes(choose.randrange(200))
        if i % 2:  # text that was cut and damaged
            text = bytearray("Grüße, 世界! 👨‍👩‍👧‍👦  it's\n".encode() * 4)
            for _ in range(8):
                text[choose.randrange(len(text))] = choose.randrange(256)
        assert tokenizer.decode(tokenizer.encode(text)) == bytes(text)


def test_a_byte_that_is_no_utf8_parts_the_text_like_a_replacement_character(library, tmp_path):
    """The rule of doc/tokenizer.md. The vocabulary merges no byte above 127, so that tokens show the pieces."""
    path = tmp_path / "tokenizer.json"
    merges = ["a b", "ab ab", "Ġ ab", "' s", "Ġ Ġ", "ĠĠ ĠĠ"]
    document = json.loads(library.bytes().to_json())
    document["model"]["merges"] = merges
    for i, merge in enumerate(merges):
        document["model"]["vocab"][merge.replace(" ", "")] = 257 + i
    path.write_text(json.dumps(document))
    tokenizer, choose = library.open(path), random.Random(5)
    for _ in range(5000):
        parts = [choose.choice([b"ab", b"abab", b" ", b"    ", b"'s", b"!", b"\xff", b"\x80", b"\xc3", b"\xe4\xb8",
                                b"\xed\xa0\x80", b"\xf0\x9f", "é".encode(), "世".encode()]) for _ in range(8)]
        text = b"".join(parts)
        replaced = b"".join(b"\xef\xbf\xbd" if 0xDC80 <= ord(c) <= 0xDCFF else c.encode()
                            for c in text.decode(errors="surrogateescape"))
        ours = [tokenizer.token(i) for i in tokenizer.encode(text)]
        theirs = [tokenizer.token(i) for i in tokenizer.encode(replaced)]
        assert [t for t in ours if max(t) < 128] == [t for t in theirs if max(t) < 128], text


# ----------------------------------------------------------------------------------------- special tokens, cuts, export

def test_special_tokens_are_tokens_in_prompts_and_text_in_corpora(trained):
    vocabulary, text = trained[4096], "one<|endoftext|>two <|endoftext|><|endoftext|>\n<|endoftext|"
    assert vocabulary.ours.encode(text, special=True).tolist() == vocabulary.huggingface.encode(text).ids
    assert vocabulary.ours.encode(text).tolist() == vocabulary.tiktoken.encode_ordinary(text)
    assert vocabulary.ours.eot not in vocabulary.ours.encode(text).tolist()


def test_added_tokens_are_found_as_huggingface_finds_them(library, trained, tmp_path):
    document = json.loads(trained[512].ours.to_json())
    for i, (content, special, normalized) in enumerate([
            ("<|user|>", True, False), ("    ", False, True), ("  ", False, True), ("ab", False, False),
            ("abc", False, False), ("cd", False, True), (" bcd", False, False),
            ("世", False, True), ("\n", False, False)]):
        document["added_tokens"].append({"id": 512 + i, "content": content, "single_word": False, "lstrip": False,
                                         "rstrip": False, "normalized": normalized, "special": special})
    path = tmp_path / "tokenizer.json"
    path.write_text(json.dumps(document))
    ours, theirs = library.open(path), tokenizers.Tokenizer.from_file(str(path))
    plain = tokenizers.Tokenizer.from_file(str(path))
    plain.encode_special_tokens = True
    choose = random.Random(6)
    for _ in range(3000):
        text = "".join(choose.choice(["a", "b", "c", "d", "ab", " ", "  ", "    ", "世", "\n", "<|user|>",
                                      "<|endoftext|>", "x"]) for _ in range(choose.randrange(20)))
        assert ours.encode(text, special=True).tolist() == theirs.encode(text).ids, text
        assert ours.encode(text).tolist() == plain.encode(text).ids, text
        cut = ours.safe_cut(text.encode())
        whole, data = ours.encode(text).tolist(), text.encode()
        assert ours.encode(data[:cut]).tolist() + ours.encode(data[cut:]).tolist() == whole, (text, cut)


def test_a_text_cut_where_it_is_safe_gives_the_tokens_of_the_whole(gpt2, trained, texts):
    choose = random.Random(7)
    for tokenizer in (gpt2.ours, trained[512].ours):
        cuts = 0
        for text in texts[::8]:
            text = text.encode()[:4000]
            n = choose.randrange(len(text) + 1)
            cut = tokenizer.safe_cut(text[:n])
            cuts += cut > 0
            assert 0 <= cut <= n
            assert (tokenizer.encode(text[:cut]).tolist() + tokenizer.encode(text[cut:]).tolist() ==
                    tokenizer.encode(text).tolist())
        assert cuts > len(texts) // 8 / 2


@pytest.mark.slow
def test_the_exported_tokenizer_loads_in_transformers(gpt2, trained, library, tmp_path):
    transformers = pytest.importorskip("transformers", reason="transformers is missing")
    text = "It's 1776: naïve café,\n\n    return x  # 世界 👍🏽<|endoftext|>"
    for i, ours in enumerate((gpt2.ours, gpt2.ours_by_rank, trained[4096].ours, library.bytes())):
        directory = tmp_path / str(i)
        directory.mkdir()
        (directory / "tokenizer.json").write_bytes(ours.to_json())
        (directory / "config.json").write_text('{"model_type": "gpt2"}')
        fast = transformers.GPT2TokenizerFast(tokenizer_file=str(directory / "tokenizer.json"))
        auto = transformers.AutoTokenizer.from_pretrained(directory)
        expected = ours.encode(text, special=True).tolist()
        assert fast(text)["input_ids"] == auto(text)["input_ids"] == expected
        assert auto.decode(expected) == text and auto.eos_token_id == ours.eot and len(auto) == ours.vocab


def test_the_forms_of_one_vocabulary_have_one_fingerprint_and_one_export(gpt2, library, tmp_path):
    """OpenAI's files, vocab.json and merges.txt as transformers writes them, ranks, llm.c's file, tokenizer.json."""
    ours, directory = gpt2.ours, tmp_path / "hf"
    directory.mkdir()
    gpt2.huggingface.model.save(str(directory))
    llmc = tmp_path / "gpt2_tokenizer.bin"
    tokens = [ours.token(i) for i in range(50257)]
    header = [20240328, 2, 50257, 50256] + [0] * 252
    llmc.write_bytes(b"".join(n.to_bytes(4, "little") for n in header) +
                     b"".join(bytes([len(t)]) + t for t in tokens))
    hf_json = tmp_path / "tokenizer.json"
    gpt2.huggingface.save(str(hf_json), pretty=False)
    for path in (directory, directory / "vocab.json", llmc, hf_json, GPT2 / "encoder.json"):
        other = library.open(path)
        assert other.fingerprint == ours.fingerprint == gpt2.ours_by_rank.fingerprint
        assert other.to_json() == ours.to_json() == gpt2.ours_by_rank.to_json()
        assert other.encode("Hello world").tolist() == [15496, 995]


# --------------------------------------------------------------------------------------------------- fields of any type

VALUES = [None, True, 0, -1, 1.5, "x", [], [1], {}, 2**40]


def places(value, path=()):
    """The places of all fields of a document, but for the entries of the vocabulary and later ones of lists."""
    fields = value.items() if isinstance(value, dict) else enumerate(value[:2]) if isinstance(value, list) else ()
    for key, child in fields:
        yield (*path, key)
        if path + (key,) != ("model", "vocab"):
            yield from places(child, (*path, key))


def test_a_field_of_a_type_that_huggingface_refuses_is_refused(library, trained, tmp_path):
    document, path = json.loads(trained[512].ours.to_json()), tmp_path / "tokenizer.json"
    tokenizers.Tokenizer.from_str(json.dumps(document))
    refused, taken = 0, []
    for place in places(document):
        for value in VALUES:
            changed = json.loads(json.dumps(document))
            parent = changed
            for key in place[:-1]:
                parent = parent[key]
            parent[place[-1]] = value
            path.write_text(json.dumps(changed))
            try:
                tokenizers.Tokenizer.from_str(json.dumps(changed))
            except BaseException as error:  # it raises Exception itself, and what a panic is has no other class
                assert type(error) is Exception or "Panic" in type(error).__name__, error
                refused += 1
                try:
                    library.open(path)
                    taken.append((place, value))
                except native.BadTokenizer:
                    pass
    assert taken == [] and refused > 200


def test_a_tokenizer_that_is_not_utf8_is_refused(library, trained, tmp_path):
    text = trained[512].ours.to_json()
    at = text.index(b"<|endoftext|>") + 3
    (tmp_path / "tokenizer.json").write_bytes(text[:at] + b"\xe8" + text[at:])
    with pytest.raises(native.BadTokenizer):
        library.open(tmp_path / "tokenizer.json")


def test_many_added_tokens_take_no_more_time_than_few(library, trained, tmp_path):
    """Each of 400 begins everywhere in the text and is nowhere in it: compared one by one, that took many minutes. The test
    has no limit of time, but that of the whole."""
    document = json.loads(trained[512].ours.to_json())
    for i in range(400):
        document["added_tokens"].append({"id": 512 + i, "content": "a" * (600 + i) + "b", "single_word": False, "lstrip": False,
                                         "rstrip": False, "normalized": False, "special": False})
    (tmp_path / "tokenizer.json").write_text(json.dumps(document))
    ours = library.open(tmp_path / "tokenizer.json")
    text = "a" * 200_000
    assert ours.safe_cut(text.encode()) == 0
    assert ours.encode(text + "b").tolist()[-1] == 512 + 399
