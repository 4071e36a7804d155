"""A checkpoint is a Hugging Face GPT-2 directory: transformers loads it and finds the same loss on the same tokens."""
import struct

import pytest
from conftest import QUIET, Data, checkpoints, events, train

# make test-all brings transformers into .venv; where that was not possible, this is skipped and the runner says so.
pytest.importorskip("transformers", reason="transformers is not installed: scripts/install_deps.sh test-all")
torch = pytest.importorskip("torch")
pytestmark = pytest.mark.slow  # for what make test does not install

T, WINDOWS = 64, 16


def windows(path):
    """The first windows of a shard: T + 1 tokens each, one every T."""
    content = path.read_bytes()[1024 : 1024 + 2 * (WINDOWS * T + 1)]
    tokens = torch.tensor(struct.unpack(f"<{len(content) // 2}H", content))
    return torch.stack([tokens[i * T : i * T + T + 1] for i in range(WINDOWS)])


def transformers_loss(directory, batch):
    from transformers import GPT2LMHeadModel

    model = GPT2LMHeadModel.from_pretrained(directory).double().eval()
    with torch.no_grad():
        logits = model(batch[:, :-1]).logits
    return torch.nn.functional.cross_entropy(logits.flatten(0, 1), batch[:, 1:].flatten()).item()


def test_from_pretrained_gives_our_loss(data, tmp_path):
    out = tmp_path / "run"
    train("-e", f"L=3,C=96,NH=4,T={T}", "-t", T, "-b", 4, "--dtype", "fp32", *QUIET, *data.flags, "-o", out, "-x", 40,
          "-l", 3e-3)
    checkpoint = checkpoints(out)[-1]
    # Exactly the windows that transformers gets, as a shard of their own.
    source = sorted(data.directory.glob("val_*.bin"))[0]
    content = bytearray(source.read_bytes()[: 1024 + 2 * (WINDOWS * T + 1)])
    content[8:12] = struct.pack("<i", WINDOWS * T + 1)
    (tmp_path / "val_0.bin").write_bytes(content)
    train("-e", checkpoint, "-t", T, "-b", 4, "--dtype", "fp32", "-s", 0, "-v", 1, "-m", 0, "-x", 0, "-i", data.train,
          "-j", Data(tmp_path).val, "-o", tmp_path / "eval")
    point = events(tmp_path / "eval", "validation")[0]
    assert point["tokens"] == WINDOWS * T
    assert point["loss"] == pytest.approx(transformers_loss(checkpoint, windows(source)), rel=1e-4)


def test_the_vocabulary_in_the_file_is_not_padded(data, tmp_path):
    from transformers import GPT2LMHeadModel

    out = tmp_path / "run"
    train("-e", f"L=1,C=64,NH=2,T={T}", "-t", T, "-b", 2, *QUIET, *data.flags, "-o", out, "-x", 1)
    model = GPT2LMHeadModel.from_pretrained(checkpoints(out)[-1])
    assert tuple(model.transformer.wte.weight.shape) == (257, 64)
    assert model.config.n_layer == 1 and model.config.n_positions == T
