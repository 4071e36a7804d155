"""Bad options and bad files: one clear line on stderr, exit code 2, nothing started and nothing left behind."""
import json
import os
import pickle
import resource
import shutil

import numpy as np
import pytest
from conftest import (EXIT_BAD_INPUT, EXIT_RUN_FAILED, PREPARE, QUIET, TINY, TRAINER, TRAIN_TOKENIZER, call, checkpoints, refused, start,
                      train, wait_for, write_shard)

pytestmark = pytest.mark.sanitize

# name: (options after the good ones, words of the message). Every form of a value: test/unit/test_options.c.
OPTIONS = {
    "an unknown option names the nearest": (["--batchsize", "4"], ["--batchsize", "batch-size"]),
    "a total batch that does not fit names its neighbours": (["-d", "100"], ["100", "96", "128"]),
    "an MLP that is no multiple of 8": (["--d-ff", "100"], ["--d-ff 100", "multiple of 8", "96 or 104"]),
    "a context longer than the model's": (["-t", "64"], ["64", "32"]),
    "an unknown schedule": (["-k", "sawtooth"], ["sawtooth", "cosine"]),
    "an unknown model": (["-e", "d13x"], ["d13x"]),
    "heads that do not divide the channels": (["-e", "L=1,C=64,NH=5,T=32"], ["64", "5"]),
    "a vocabulary smaller than the data's": (["-e", "L=1,C=64,NH=2,T=32,V=100"], ["100", "257"]),
    "no such shard": (["-i", "no/such_*.bin"], ["no/such_*.bin"]),
    "a model by no name": (["-e", "d0"], ["'d0' is not a model", "d12"]),
    "no model": (["-e", ""], ["the model is empty", "d12"]),
    "a part of a shape twice": (["-e", "L=1,L=2"], ["L=2", "given twice"]),
    "a comma after the last GPU": (["--plan", "--gpu", "h200,"], ["--gpu h200,", "comma"]),
    "an unknown GPU": (["--plan", "--gpu", "h300,t4"], ["no such GPU; did you mean H200?"]),
    "blocks that the model has not": (["-r", "3x2,0"], ["from 1 to 1 after x: the model has 2"]),
    "a choice of 5000 letters": (["-r", "x" * 5000], ["expected 0 .. 3"]),
    "nothing to profile": (["--profile", 3, "-x", 0], ["--profile", "-x 0"]),
    "state in slices": (["--optimizer", "muon", "--offload", "optimizer"], ["--offload optimizer", "whole matrices"]),
    "an export over another file": (["--export", "README.md"], ["--export README.md", "this is a file"]),
    "an export of an unknown type": (["--export", "no/model:int8"], ["int8", "fp32"]),
    "q8_0 in a directory": (["--export", "no/model:q8_0"], ["only GGUF models hold q8_0"]),
    "a tokenizer that is not there": (["--tokenizer", "/no/such/file"], ["--tokenizer: /no/such/file"]),
    "no such model directory": (["-e", "./no/such/model"], ["no/such/model"]),
    "a model's name for other programs": (["-e", "gpt2"], ["-e d12", "get.py", "gpt2", "-e data/gpt2"]),
    "a model of a hub": (["-e", "Qwen/Qwen3-0.6B"], ["huggingface.co", "hf download"]),
    "a family without a size": (["-e", "llama"], ["is a family", "-e llama:d12"]),
    "epochs": (["--epochs", 3], ["unknown option --epochs", "-x -1", "-x STEPS"]),
    "another trainer's name": (["--output_dir", "x"], ["unknown option --output_dir", "-o DIR"]),
}


@pytest.mark.parametrize("name", OPTIONS)
def test_option(name, data, tmp_path):
    arguments, words = OPTIONS[name]
    refused(*TINY, *QUIET, *data.flags, "-x", 1, "-o", tmp_path / "run", *arguments, words=words)
    assert not (tmp_path / "run").exists()


def test_one_message_is_one_line_whatever_an_options_text_holds(data, tmp_path):
    """Newlines and control characters in every text: none moves the cursor or begins a line."""
    odd = "a\nstep 9\x1b[2J\r"
    for option in ("-e", "-i", "-j", "--choices", "--tokenizer", "--attention", "-r", "-d", "--dtype", f"--{odd}",
                   "--gpu"):
        arguments = [*TINY, *QUIET, *data.flags, "-v", 1, "-x", 1, option, f"{odd}/{option}"]
        result = train(*arguments, expect=None)
        assert result.returncode == EXIT_BAD_INPUT, (option, result)
        assert result.stderr.count("\n") == 1 and "\x1b" not in result.stderr, (option, result.stderr)
    run = [*TINY, *QUIET, *data.flags, "-o", tmp_path / odd]
    repeated = train(*run, "-x", 1, "--prompt", odd, "--prompt", odd + "b")
    resumed = train(*run, "-y", "-x", 2, "--prompt", "c\n" + odd)
    shutil.rmtree(checkpoints(tmp_path / odd)[-1])
    shutil.rmtree(checkpoints(tmp_path / odd)[-1])
    again = train("-o", tmp_path / odd, "-y", "-x", 1, "-s", 0)
    for said in (repeated.stdout, resumed.stdout, again.stdout, again.stderr):
        assert said and "\nstep 9" not in said and "\x1b" not in said, said
    assert "given twice, the last counts: --prompt a\\x0Astep 9\\x1B[2J\\x0D, then" in repeated.stdout
    assert f"--prompt c\\x0Aa" in resumed.stdout and "no checkpoint in" in again.stderr


def test_an_output_directory_that_cannot_be_written(data, tmp_path):
    (tmp_path / "file").write_text("")
    refused(*TINY, *QUIET, *data.flags, "-x", 1, "-o", tmp_path / "file" / "run", words=[str(tmp_path / "file")])


# Every other way for a shard to be wrong: test/unit/test_shards.c.
def test_a_shard_of_another_vocabulary_is_refused(tmp_path):
    write_shard(tmp_path / "bad.bin", [1] * 20 + [60000] * 80)
    refused(*TINY, *QUIET, "-i", tmp_path / "bad.bin", "-j", "", "-x", 1, words=["bad.bin", "60000", "50257"])


def test_a_token_beyond_the_vocabulary_is_named_with_file_and_offset(tmp_path):
    write_shard(tmp_path / "bad.bin", [1] * 40 + [60000] + [1] * 500)
    # Found while reading: the run has started by then.
    refused("-e", "L=1,C=64,NH=2,T=32,V=257", "-t", 32, "-b", 4, *QUIET, "-i", tmp_path / "bad.bin", "-j", "", "-x", 20,
            words=["bad.bin", "60000", "40"], expect=EXIT_RUN_FAILED)


# Files that people give by mistake. The table of all kinds: test/unit/test_foreign_file.c.
LFS = b"version https://git-lfs.github.com/spec/v1\noid sha256:" + b"a" * 64 + b"\nsize 485200\n"
TOKENS = b"".join((i % 257).to_bytes(2, "little") for i in range(5000))
PAGE = b"<!DOCTYPE html><html><title>Not found</title></html>" + b" " * 1200
NUMPY = b"\x93NUMPY\x01\x00v\x00" + b"{'descr': '<u2', 'shape': (5000,), }".ljust(117) + b"\n" + TOKENS
LLAMA = np.array([20240801, 7, 5000] + [0] * 253 + [1] * 5000, "<i4").tobytes()
SENTENCEPIECE = b"\n\x0e\n\x05<unk>\x15\x00\x00\x00\x00\x18\x02" * 20
FOREIGN = {
    "nanoGPT's tokens as a shard": ("-i", TOKENS, "not a token shard"),
    "NumPy's array as a shard": ("-i", NUMPY, "not a token shard but a NumPy array (.npy): make shards of its text"),
    "tokens of llm.c's Llama 3 as a shard": ("-i", LLAMA, "not a token shard but a token shard of llm.c for Llama 3"),
    "an LFS pointer as a shard": ("-i", LFS, "not a token shard but a Git LFS pointer: fetch the file itself with"),
    "a web page as a shard": ("-i", PAGE, "not a token shard but a web page (HTML): fetch the file itself"),
    "an LFS pointer as a model": ("-e", LFS, "not a model but a Git LFS pointer"),
    "PyTorch's checkpoint as a model": ("-e", b"PK\3\4".ljust(30) + b"archive/data.pkl", "but a PyTorch checkpoint"),
    "SentencePiece as a tokenizer": ("--tokenizer", SENTENCEPIECE, "not a tokenizer but a SentencePiece model"),
    "a pickle as a tokenizer": ("--tokenizer", pickle.dumps({"a": 1}), "not a tokenizer but a Python pickle"),
}


@pytest.mark.parametrize("name", FOREIGN)
def test_a_file_of_another_program_is_named(name, data, tmp_path):
    option, content, words = FOREIGN[name]
    (tmp_path / "given.bin").write_bytes(content)
    refused(*TINY, *QUIET, *data.flags, "-x", 1, option, tmp_path / "given.bin", words=["given.bin: not a ", words])


def change_weights(directory, change):
    """Writes the model's safetensors again after change(tensors), which maps names to arrays."""
    path = directory / "model.safetensors"
    data = path.read_bytes()
    length = int.from_bytes(data[:8], "little")
    header = json.loads(data[8:8 + length])
    header.pop("__metadata__", None)
    tensors = {name: np.frombuffer(data[8 + length:], "<f4", (e["data_offsets"][1] - e["data_offsets"][0]) // 4,
                                   e["data_offsets"][0]).reshape(e["shape"]).copy() for name, e in header.items()}
    tensors = change(tensors) or tensors
    header, end = {}, 0
    for name, tensor in tensors.items():
        header[name] = {"dtype": "F32", "shape": tensor.shape, "data_offsets": [end, end + tensor.nbytes]}
        end += tensor.nbytes
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + b"".join(t.tobytes() for t in tensors.values()))


@pytest.fixture
def exported(data, tmp_path):
    train(*TINY, *QUIET, *data.flags, "-x", 1, "--export", tmp_path / "hf")
    return tmp_path / "hf"


def test_a_weight_that_is_not_finite_is_named_before_anything_starts(exported, data):
    def overflow(tensors):
        tensors["transformer.h.1.mlp.c_fc.weight"][4, 44] = np.inf
    change_weights(exported, overflow)
    refused("-e", exported, "-t", 32, *QUIET, *data.flags, "-x", 1,
            words=["hf: tensor transformer.h.1.mlp.c_fc.weight has a value that is not finite, inf at [4, 44]"])


def test_a_head_that_is_not_tied_is_refused(exported):
    def untie(tensors):
        tensors["lm_head.weight"] = -tensors["transformer.wte.weight"]
    change_weights(exported, untie)
    refused("-e", exported, *QUIET, "-x", 0,
            words=["lm_head.weight differs from transformer.wte.weight, at [0, 0]", "in GPT-2's class only tied heads"])


def test_a_head_of_its_own_is_taken_where_the_configuration_has_one(data, tmp_path):
    model = tmp_path / "hf"
    train("-e", "qwen3:L=1,C=64,NH=1,T=32,tied=0", "-b", 4, *QUIET, *data.flags, "-x", 1, "--export", model)
    config = (model / "config.json").read_text()
    (model / "config.json").write_text(config.replace('"tie_word_embeddings": false', '"tie_word_embeddings": true'))
    refused("-e", model, *QUIET, "-x", 1, "-i", "no/such_*.bin", words=["lm_head.weight differs", '"tie_word_embeddings" true', "to false"])
    (model / "config.json").write_text(config)
    train("-e", model, *QUIET, "-x", 0)


def test_each_damaged_checkpoint_has_a_line_of_its_own(data, tmp_path):
    run = tmp_path / "run"
    train(*TINY, *QUIET, *data.flags, "-x", 3, "-n", 1, "-nk", 0, "-o", run)
    for checkpoint in checkpoints(run):
        with open(checkpoint / "model.safetensors", "r+b") as file:
            file.seek(5000)
            file.write(b"x")
    lines = train(*TINY, *QUIET, *data.flags, "-x", 4, "-y", "-o", run, expect=EXIT_BAD_INPUT).stderr.splitlines()
    assert [line.split("/model.safetensors: checksum")[0] for line in lines[:-1]] == [str(c) for c in reversed(checkpoints(run))]
    assert "no checkpoint in" in lines[-1]


def test_a_run_whose_lock_was_removed_is_still_active(data, tmp_path):
    run = tmp_path / "run"
    first = start(*TINY, *QUIET, *data.flags, "-x", 10**7, "-o", run)
    try:
        wait_for(lambda: (run / "main.log").exists() and (run / ".lock").exists())
        (run / ".lock").unlink()
        refused(*TINY, *QUIET, *data.flags, "-x", 10, "-y", "-o", run, expect=EXIT_RUN_FAILED,
                words=["in use by another process, whose .lock was removed"])
    finally:
        first.kill()
        first.wait()


def test_no_memory_under_a_limit_names_the_limit(data):
    def limit():
        resource.setrlimit(resource.RLIMIT_AS, (300 << 20, 300 << 20))
    said = train("-e", "L=2,C=64,NH=2,T=32", "-b", "auto", *QUIET, *data.flags, "-x", 1, "--threads", 1, expect=EXIT_BAD_INPUT,
                 preexec_fn=limit).stderr
    assert "ulimit -v" in said and " -" not in said.split("but only")[1].split("available")[0]


def test_the_version_is_printed():
    for program in [TRAINER, PREPARE, TRAIN_TOKENIZER, *(PREPARE.with_name(name) for name in ("choices", "shard", "whereis"))]:
        said = call(program, "--version", expect=0).stdout
        assert said.count("\n") == 1 and "pretrain.cu" in said and ("gcc" in said or "clang" in said)


def test_a_path_of_each_tool_names_its_first_failure(tmp_path):
    (tmp_path / "text.txt").write_text("some text\n" * 100)
    (tmp_path / "q.jsonl").write_text('{"ctx": "a", "endings": ["b", "c"], "label": 0}\n')
    missing = f"there is no '{tmp_path}/no'"
    for arguments in ([TRAIN_TOKENIZER, "--vocab-size", 300, tmp_path / "text.txt", "-o", tmp_path / "no/such/tokenizer.json"],
                      [TRAIN_TOKENIZER, "--vocab-size", 300, tmp_path / "no/text.txt", "-o", tmp_path / "tokenizer.json"],
                      [PREPARE.with_name("choices"), "--tokenizer", "bytes", tmp_path / "q.jsonl", "-o", tmp_path / "no/q.bin"],
                      [PREPARE.with_name("choices"), "--tokenizer", "bytes", tmp_path / "no/q.jsonl", "-o", tmp_path / "q.bin"],
                      [PREPARE, "-o", tmp_path / "out", tmp_path / "no/text.txt"],
                      [PREPARE.with_name("shard"), "list", tmp_path / "no/x.bin"]):
        assert missing in call(*arguments, expect=None).stderr, arguments


def test_a_tokenizer_far_smaller_than_the_vocabulary_is_reported(data, tmp_path):
    train("-e", "L=1,C=32,NH=1,T=32,V=50260", "-b", 2, *QUIET, "-i", data.train, "-x", 1, "--export", tmp_path / "hf")
    said = train("-e", tmp_path / "hf", *QUIET, "-x", 0, "-g", 4, "--prompt", "hello").stderr
    assert "tokenizer.json has 257 tokens, but the model has a vocabulary of 50260" in said


def test_names_and_settings_that_transformers_reads_are_read(exported):
    def generated():
        return train("-e", exported, *QUIET, "-x", 0, "-g", 8, "--threads", 1).stdout.splitlines()
    expected = [line for line in generated() if line.startswith("  ")]
    assert expected
    for old, new in (("transformer.wte.weight", "lm_head.weight"), ("", "_orig_mod."), ("_orig_mod.", "module.")):
        change_weights(exported, lambda tensors: {new + name[len(old):] if name.startswith(old) else name: tensor
                                                  for name, tensor in tensors.items()})
        assert [line for line in generated() if line.startswith("  ")] == expected
    config = (exported / "config.json").read_text()
    for old, new in (("n_embd", "hidden_size"), ("n_layer", "num_hidden_layers"), ("n_head", "num_attention_heads")):
        config = config.replace(f'"{old}"', f'"{new}"')
    (exported / "config.json").write_text(config)
    assert [line for line in generated() if line.startswith("  ")] == expected


# What may stand where a model directory is expected. Every other way to be wrong: test/unit/test_weights_file.c.
MODELS = {
    "weights that are no safetensors": lambda directory: (directory / "model.safetensors").write_bytes(b"rubbish" * 99),
    "a configuration that is no JSON": lambda directory: (directory / "config.json").write_text("{ no json"),
    "weights that are an LFS pointer": lambda directory: (directory / "model.safetensors").write_bytes(LFS),
    "a configuration that is a web page": lambda directory: (directory / "config.json").write_bytes(PAGE),
    "a cut weights file": lambda directory: os.truncate(directory / "model.safetensors", 2000),
}


@pytest.mark.parametrize("name", MODELS)
def test_model_directory(name, data, tmp_path):
    model = tmp_path / "run" / "step_00000001"
    train(*TINY, *QUIET, *data.flags, "-x", 1, "-o", tmp_path / "run")
    MODELS[name](model)
    refused("-e", model, "-t", 32, *QUIET, *data.flags, "-x", 1, words=["step_00000001"])
