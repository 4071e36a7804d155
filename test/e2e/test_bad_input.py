"""Input that is read although it is odd, and what is said of it. Input that is refused: test_refusals.py."""
import json
import resource
import shutil

import numpy as np
import pytest
from conftest import (EXIT_BAD_INPUT, EXIT_RUN_FAILED, PREPARE, QUIET, TINY, TRAIN_TOKENIZER, TRAINER, call,
                      checkpoints, refused, start, train, wait_for)

pytestmark = pytest.mark.sanitize


def test_a_note_is_one_line_whatever_an_options_text_holds(data, tmp_path):
    """Newlines and control characters in a text: none moves the cursor or begins a line."""
    odd = "a\nstep 9\x1b[2J\r"
    run = [*TINY, *QUIET, *data.flags, "-o", tmp_path / odd]
    repeated = train(*run, "-x", 1, "--prompt", odd, "--prompt", odd + "b")
    resumed = train(*run, "-y", "-x", 2, "--prompt", "c\n" + odd)
    shutil.rmtree(checkpoints(tmp_path / odd)[-1])
    shutil.rmtree(checkpoints(tmp_path / odd)[-1])
    again = train("-o", tmp_path / odd, "-y", "-x", 1, "-s", 0)
    for said in (repeated.stdout, resumed.stdout, again.stdout, again.stderr):
        assert said and "\nstep 9" not in said and "\x1b" not in said, said
    assert "given twice, the last counts: --prompt a\\x0Astep 9\\x1B[2J\\x0D, then" in repeated.stdout
    assert "--prompt c\\x0Aa" in resumed.stdout and "no checkpoint in" in again.stderr


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
