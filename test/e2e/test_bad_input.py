"""Input that is read although it is odd, and what is said of it. Input that is refused: test_refusals.py."""
import json
import shutil

import numpy as np
import pytest
from conftest import QUIET, TINY, checkpoints, train

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
    assert f"--prompt c\\x0Aa" in resumed.stdout and "no checkpoint in" in again.stderr


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
