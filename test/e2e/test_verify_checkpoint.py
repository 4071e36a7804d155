"""scripts/verify_checkpoint.py, a second reader of checkpoints: takes what every optimizer saves, and names what is wrong. (The
tests of resuming have every checkpoint verified by it: test/runs.py.)"""
import json
import shutil
import struct
import sys

import pytest
from conftest import QUIET, ROOT, TINY, call, checkpoints, train
from verify_checkpoint import verify, xxh3

OPTIMIZERS = ["adamw", "adamw8bit", "adamw-bf16", "adamw-kahan", "lion", "adafactor", "sgd", "muon"]


@pytest.fixture(scope="module")
def saved(data, tmp_path_factory):
    """{optimizer: (checkpoint, exported directory)}, weights in bf16."""
    out = tmp_path_factory.mktemp("runs")
    runs = {}
    for optimizer in OPTIMIZERS:
        run, export = out / optimizer, out / f"{optimizer}-export"
        train(*TINY, *QUIET, *data.flags, "-d", 128, "-x", 3, "--optimizer", optimizer, "--dtype", "bf16", "-o", run,
              *(["-w", 0] if optimizer == "lion" else []), "--export", f"{export}:bf16")
        runs[optimizer] = checkpoints(run)[-1], export
    return runs


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_what_every_optimizer_saves_is_valid_and_its_export_is_the_master_weights_rounded(optimizer, saved):
    checkpoint, export = saved[optimizer]
    assert f"step 3, 118592 weights, {optimizer}, " in verify(checkpoint, export)


def test_the_command_names_each_directory_and_its_fault(saved, tmp_path):
    checkpoint, _ = saved["adamw"]
    result = call(sys.executable, ROOT / "scripts/verify_checkpoint.py", checkpoint.parent, tmp_path, expect=1)
    assert result.stdout.endswith("valid\n") and result.stderr == f"{tmp_path}: no checkpoint\n"


@pytest.fixture
def copy(saved, tmp_path):
    return lambda optimizer: shutil.copytree(saved[optimizer][0], tmp_path / saved[optimizer][0].name)


def flip(path, at, bit=4):
    data = bytearray(path.read_bytes())
    data[at] ^= bit
    path.write_bytes(data)


def seal(checkpoint, change=lambda state: None):
    """The fields changed, and all checksums made right again: only the content can give it away."""
    path = checkpoint / "trainer.json"
    state = json.loads(path.read_text())
    state.pop("xxh3", None)
    for name, facts in state["files"].items():
        data = (checkpoint / name).read_bytes()
        facts |= {"bytes": len(data), "xxh3": xxh3(data)}
    change(state)
    body = json.dumps(state)[:-1].encode()
    path.write_bytes(body + b',\n  "xxh3": "%s"\n}\n' % xxh3(body).encode())


@pytest.mark.parametrize("name", ["trainer.json", "model.safetensors", "config.json", "optimizer.safetensors"])
def test_a_flipped_bit_of_any_file_is_found(name, copy):
    checkpoint = copy("adamw")
    size = (checkpoint / name).stat().st_size
    for at in (size // 3, size - 5):
        flip(checkpoint / name, at)
        with pytest.raises(ValueError):
            verify(checkpoint)
        flip(checkpoint / name, at)
    assert verify(checkpoint)


def set_field(*keys, value):
    def change(state):
        for key in keys[:-1]:
            state = state[key]
        state[keys[-1]] = value
    return change


@pytest.mark.parametrize("change, words", [
    (set_field("position", value=2), "position"), (set_field("step", value=4), "step 4 in step_00000003"),
    (set_field("seed", value="x"), "seed x"), (set_field("best_val_loss", value="nan"), "best_val_loss"),
    (set_field("optimizer", value="lion"), "is of"), (set_field("control", "skipped", value=9), "skipped"),
    (set_field("control", "loss_scale", value=0), "loss_scale"), (set_field("new", value=1), "unknown {'new'}"),
    (set_field("control", "loss_window", "count", value=200), "window"), (lambda state: state["files"].pop("config.json"), "listed"),
])
def test_a_field_that_cannot_be_is_named(change, words, copy):
    checkpoint = copy("adamw")
    seal(checkpoint)
    assert verify(checkpoint)
    seal(checkpoint, change)
    with pytest.raises(ValueError, match=words):
        verify(checkpoint)


def tensor_at(path, name):
    """Of a safetensors file: where the tensor begins."""
    data = path.read_bytes()
    length, = struct.unpack("<Q", data[:8])
    return 8 + length + json.loads(data[8:8 + length])[name]["data_offsets"][0]


@pytest.mark.parametrize("optimizer, file, tensor, value, words", [
    ("adamw", "model", "transformer.wte.weight", 0x7FC00000, "not finite"),
    ("adamw", "optimizer", "exp_avg_sq.transformer.wpe.weight", 0xBF800000, "negative"),
    ("adamw-kahan", "model", "transformer.ln_f.bias", 0x3F812345, "no BF16 weight"),
    ("lion", "model", "transformer.ln_f.bias", 0x3F812345, "no BF16 weight"),
])
def test_values_that_cannot_be_are_found_behind_right_checksums(optimizer, file, tensor, value, words, copy):
    checkpoint = copy(optimizer)
    path = checkpoint / f"{file}.safetensors"
    at = tensor_at(path, tensor)
    data = bytearray(path.read_bytes())
    data[at:at + 4] = struct.pack("<I", value)
    path.write_bytes(data)
    seal(checkpoint)
    with pytest.raises(ValueError, match=words):
        verify(checkpoint)


def test_an_export_of_other_weights_is_found(saved, copy):
    checkpoint, export = saved["adamw"]
    other = saved["sgd"][1]
    with pytest.raises(ValueError, match="differs from the checkpoint's weights"):
        verify(checkpoint, other)


def test_a_tensor_of_another_shape_is_found(copy):
    checkpoint = copy("adamw")
    path = checkpoint / "model.safetensors"
    path.write_bytes(path.read_bytes().replace(b'"shape":[64,192]', b'"shape":[192,64]'))
    seal(checkpoint)
    with pytest.raises(ValueError, match="expected"):
        verify(checkpoint)
