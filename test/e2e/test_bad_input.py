"""Bad options and bad files: one clear line on stderr, exit code 2, nothing started and nothing left behind."""
import os
import re

import pytest
from conftest import EXIT_BAD_INPUT, EXIT_RUN_FAILED, QUIET, TINY, train, write_shard

pytestmark = pytest.mark.sanitize

# name: (options after the good ones, words that the message must hold)
OPTIONS = {
    "an unknown option names the nearest": (["--batchsize", "4"], ["--batchsize", "batch-size"]),
    "a missing value": (["-l"], ["-l"]),
    "a batch of 0": (["-b", "0"], ["-b", "0", "1"]),
    "a word for a number": (["-b", "many"], ["-b", "many"]),
    "a total batch that does not fit names its neighbours": (["-d", "100"], ["100", "96", "128"]),
    "a context longer than the model's": (["-t", "64"], ["64", "32"]),
    "a learning rate of nan": (["-l", "nan"], ["-l", "nan"]),
    "an unknown schedule": (["-k", "sawtooth"], ["sawtooth", "cosine"]),
    "an unknown model": (["-e", "d13x"], ["d13x"]),
    "heads that do not divide the channels": (["-e", "L=1,C=64,NH=5,T=32"], ["64", "5"]),
    "a vocabulary smaller than the data's": (["-e", "L=1,C=64,NH=2,T=32,V=100"], ["100", "257"]),
    "no such shard": (["-i", "no/such_*.bin"], ["no/such_*.bin"]),
    "a model by no name": (["-e", "d0"], ["'d0' is no model", "d12"]),
    "no model": (["-e", ""], ["the model is empty", "d12"]),
    "a part of a shape twice": (["-e", "L=1,L=2"], ["L=2", "given before"]),
    "a comma after the last GPU": (["--plan", "--gpu", "h200,"], ["--gpu h200,", "comma"]),
    "a tokenizer that is not there": (["--tokenizer", "/no/such/file"], ["--tokenizer: /no/such/file"]),
    "no such model directory": (["-e", "./no/such/model"], ["no/such/model"]),
}


def refused(*arguments, words, expect=EXIT_BAD_INPUT):
    result = train(*arguments, expect=expect)
    lines = result.stderr.splitlines()
    assert len(lines) == 1, result.stderr
    paths = re.findall(r"/[^\s:;,']+", lines[0].partition(": ")[2])
    assert len(paths) == len(set(paths)), f"a path is there twice: {lines[0]}"
    for word in words:
        assert word in lines[0], f"'{word}' is missing in: {lines[0]}"


@pytest.mark.parametrize("name", OPTIONS)
def test_option(name, data, tmp_path):
    arguments, words = OPTIONS[name]
    refused(*TINY, *QUIET, *data.flags, "-x", 1, "-o", tmp_path / "run", *arguments, words=words)
    assert not (tmp_path / "run").exists()


def test_an_output_directory_that_cannot_be_written(data, tmp_path):
    (tmp_path / "file").write_text("")
    refused(*TINY, *QUIET, *data.flags, "-x", 1, "-o", tmp_path / "file" / "run", words=[str(tmp_path / "file")])


# name: (how the shard is written, words)
SHARDS = {
    "a foreign file": (lambda path: path.write_text("these are no tokens " * 200), ["magic"]),
    "an unknown version": (lambda path: write_shard(path, [1] * 500, version=9), ["version", "9"]),
    "a count larger than the file": (lambda path: write_shard(path, [1] * 500, count=501), ["501"]),
    "a negative count": (lambda path: write_shard(path, [1] * 500, count=-5), ["-5"]),
    "no tokens": (lambda path: write_shard(path, []), []),
    "fewer tokens than a window": (lambda path: write_shard(path, [1] * 32), ["33"]),
    "a truncated header": (lambda path: path.write_bytes(b"\x88\xd9\x34\x01" * 10), []),
    "a token beyond GPT-2's vocabulary": (lambda path: write_shard(path, [1] * 20 + [60000] * 80), ["60000", "50257"]),
    "an empty file": (lambda path: path.write_bytes(b""), []),
    "a directory": (lambda path: path.mkdir(), []),
}


@pytest.mark.parametrize("name", SHARDS)
def test_shard(name, tmp_path):
    make, words = SHARDS[name]
    make(tmp_path / "bad.bin")
    refused(*TINY, *QUIET, "-i", tmp_path / "bad.bin", "-j", "", "-x", 1, words=["bad.bin", *words])


def test_a_token_beyond_the_vocabulary_is_named_with_file_and_offset(tmp_path):
    write_shard(tmp_path / "bad.bin", [1] * 40 + [60000] + [1] * 500)
    # Found while reading: the run has started by then.
    refused("-e", "L=1,C=64,NH=2,T=32,V=257", "-t", 32, "-b", 4, *QUIET, "-i", tmp_path / "bad.bin", "-j", "", "-x", 20,
            words=["bad.bin", "60000", "40"], expect=EXIT_RUN_FAILED)


# What may stand where a model directory is expected: a directory without files, rubbish, a cut weights file.
MODELS = {
    "an empty directory": lambda directory: None,
    "weights that are no safetensors": lambda directory: (directory / "model.safetensors").write_bytes(b"rubbish" * 99),
    "a configuration that is no JSON": lambda directory: (directory / "config.json").write_text("{ no json"),
    "a cut weights file": lambda directory: os.truncate(directory / "model.safetensors", 2000),
    "weights of another shape": lambda directory: replace(directory / "config.json", '"n_embd"', '"n_embd": 128, "x"'),
}


def replace(path, old, new):
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))


@pytest.mark.parametrize("name", MODELS)
def test_model_directory(name, data, tmp_path):
    model = tmp_path / "run" / "step_00000001"
    if name == "an empty directory":
        model.mkdir(parents=True)
    else:
        train(*TINY, *QUIET, *data.flags, "-x", 1, "-o", tmp_path / "run")
        MODELS[name](model)
    refused("-e", model, "-t", 32, *QUIET, *data.flags, "-x", 1, words=["step_00000001"])
