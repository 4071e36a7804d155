"""Models in and out: Hugging Face directories and llm.c files are trained on, exported, and come back bit by bit."""
import json
import os
import random
import re
import struct
from pathlib import Path

import pytest
from conftest import QUIET, ROOT, checkpoints, train, write_shard

pytest.importorskip("transformers", reason="transformers is not installed: scripts/install_deps.sh test-all")
torch = pytest.importorskip("torch")
pytestmark = pytest.mark.slow  # for what make test does not install

T, VOCAB = 32, 257
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
CONVERT = ["-x", 0, *QUIET]  # nothing is trained, evaluated or sampled
GPT2_DATA = Path(os.environ.get("PRETRAIN_DATA", ROOT.parent / "shared" / "data")) / "gpt2"


def new_model(seed=1, **shape):
    """A GPT-2 by transformers, with random numbers in every tensor: no bias is zero, no LayerNorm weight one."""
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(seed)
    shape = {"n_layer": 2, "n_embd": 64, "n_head": 2, "n_positions": T, "vocab_size": VOCAB, "bos_token_id": 256,
             "eos_token_id": 256, **shape}
    model = GPT2LMHeadModel(GPT2Config(**shape)).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.02 * torch.randn_like(parameter))
    return model


def save(model, directory, dtype="fp32", shard="10GB"):
    model.to(DTYPES[dtype]).save_pretrained(directory, max_shard_size=shard)
    model.float()
    return directory


def tensors(directory):
    """Every tensor of a directory, from one file or all."""
    from safetensors.torch import load_file

    return {name: t for path in sorted(directory.glob("*.safetensors")) for name, t in load_file(path).items()}


def assert_same_bits(a, b):
    """Two directories hold the same tensors: names, types, shapes, and every bit."""
    a, b = tensors(a), tensors(b)
    assert a.keys() == b.keys()
    for name in a:
        assert a[name].dtype == b[name].dtype and a[name].shape == b[name].shape, name
        size = torch.int32 if a[name].dtype == torch.float32 else torch.int16
        assert torch.equal(a[name].view(size), b[name].view(size)), name


# ---------------------------------------------------------------------------------------------------------- bit by bit


@pytest.mark.parametrize("dtype, shard", [("fp32", "10GB"), ("bf16", "10GB"), ("fp16", "10GB"), ("bf16", "100KB")])
def test_a_directory_comes_back_bit_by_bit(dtype, shard, tmp_path):
    given = save(new_model(), tmp_path / "given", dtype, shard)
    assert (given / "model.safetensors").exists() == (shard == "10GB")  # else several files and an index
    train("-e", given, *CONVERT, "--export", f"{tmp_path}/made:{dtype}")
    assert_same_bits(given, tmp_path / "made")
    config = json.loads((tmp_path / "made" / "config.json").read_text())
    assert config["eos_token_id"] == 256 and config["torch_dtype"] == str(DTYPES[dtype]).removeprefix("torch.")


def test_a_directory_of_another_d_ff_comes_back_and_is_the_model_of_transformers(tmp_path):
    from transformers import GPT2LMHeadModel

    model, tokens = new_model(n_inner=72), torch.arange(T)[None]
    given = save(model, tmp_path / "given")
    train("-e", given, *CONVERT, "--export", tmp_path / "made")
    assert_same_bits(given, tmp_path / "made")
    back = GPT2LMHeadModel.from_pretrained(tmp_path / "made").eval()
    assert back.config.n_inner == 72 and torch.equal(back(tokens).logits, model(tokens).logits)


def llmc_tensors(path, model):
    """The tensors of an llm.c file, read as llm.c's own Python does: in its order, under Hugging Face's names."""
    content, config = path.read_bytes(), model.config
    header = struct.unpack("<256i", content[:1024])
    padded = (config.vocab_size + 127) // 128 * 128
    assert header[0] == 20240326 and header[1] in (3, 5)
    assert header[2:8] == (config.n_positions, config.vocab_size, config.n_layer, config.n_head, config.n_embd, padded)
    dtype = torch.float32 if header[1] == 3 else torch.bfloat16
    values = torch.frombuffer(bytearray(content[1024:]), dtype=dtype)
    blocks = ["ln_1.weight", "ln_1.bias", "attn.c_attn.weight", "attn.c_attn.bias", "attn.c_proj.weight",
              "attn.c_proj.bias", "ln_2.weight", "ln_2.bias", "mlp.c_fc.weight", "mlp.c_fc.bias", "mlp.c_proj.weight",
              "mlp.c_proj.bias"]
    names = ["wte.weight", "wpe.weight", *(f"h.{i}.{name}" for name in blocks for i in range(config.n_layer)),
             "ln_f.weight", "ln_f.bias"]
    state, found = model.state_dict(), {}
    for name in names:
        shape = list(state["transformer." + name].shape)
        if re.search(r"c_\w+\.weight", name):
            shape.reverse()  # llm.c keeps (out, in)
        if name == "wte.weight":
            shape[0] = padded
        count = torch.Size(shape).numel()
        found["transformer." + name], values = values[:count].view(shape), values[count:]
    assert len(values) == 0
    return found


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
def test_an_llmc_file_holds_the_tensors_and_comes_back_byte_by_byte(dtype, tmp_path):
    model = new_model()
    given = save(model, tmp_path / "given", dtype)
    train("-e", given, *CONVERT, "--export", f"{tmp_path}/model.bin:{dtype}")
    source = tensors(given)
    for name, ours in llmc_tensors(tmp_path / "model.bin", model).items():
        theirs = source[name]
        if name.endswith("wte.weight"):
            assert ours[VOCAB:].eq(0).all()
            ours = ours[:VOCAB]
        assert torch.equal(ours, theirs.T if re.search(r"c_\w+\.weight", name) else theirs), name
    train("-e", tmp_path / "model.bin", *CONVERT, "--export", f"{tmp_path}/again.bin:{dtype}")
    assert (tmp_path / "again.bin").read_bytes() == (tmp_path / "model.bin").read_bytes()
    train("-e", tmp_path / "model.bin", *CONVERT, "--export", f"{tmp_path}/made:{dtype}")
    assert_same_bits(given, tmp_path / "made")


# ------------------------------------------------------------------------------------------------ fine-tuning of a 124M


# Logits: test/golden.
def test_a_124M_model_of_transformers_is_trained_exported_and_gives_transformers_our_losses(tmp_path):
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(20240520)
    given = tmp_path / "given"
    source = GPT2LMHeadModel(GPT2Config()).eval()
    source.save_pretrained(given)
    choose, windows = random.Random(1), 4
    tokens = [choose.randrange(50257) for _ in range(5 * 2 * T + 1)]
    held_out = [choose.randrange(50257) for _ in range(windows * T + 1)]
    write_shard(tmp_path / "train.bin", tokens)
    write_shard(tmp_path / "val.bin", held_out)
    result = train("-e", given, "-i", tmp_path / "train.bin", "-j", tmp_path / "val.bin", "-t", T, "-b", 2, "-x", 5,
                   "-l", 1e-4, "-v", 100, "-s", 0, "--dtype", "fp32", "--export", tmp_path / "made")
    first, last = (float(x) for x in re.findall(r"validation at step [05] \| loss ([\d.]+)", result.stdout))

    model = GPT2LMHeadModel.from_pretrained(tmp_path / "made").eval()
    batch = torch.tensor([held_out[i * T : i * T + T + 1] for i in range(windows)])
    with torch.no_grad():
        before, after = source(batch[:, :-1]).logits, model(batch[:, :-1]).logits
    for loss, logits in (first, before), (last, after):
        expected = torch.nn.functional.cross_entropy(logits.flatten(0, 1), batch[:, 1:].flatten()).item()
        assert loss == pytest.approx(expected, rel=1e-4)
    moved = (after - before).norm() / before.norm()
    assert moved > 1e-2, "five steps of AdamW move every weight by about 5e-4: the logits of before are not these"


# -------------------------------------------------------------------------------- checkpoints open with their tokenizer

ODD_TEXT = "It's  all\n\n\tright .\u00e9\u4e2d\U0001f600 <|endoftext|> x"


def test_a_checkpoint_opens_in_transformers_with_its_tokenizer(data, tmp_path):
    from transformers import AutoModelForCausalLM, AutoTokenizer, pipeline

    train("-e", f"L=2,C=64,NH=2,T={T}", "-t", T, "-b", 4, *QUIET, *data.flags, "-x", 2, "-o", tmp_path / "run",
          "--export", tmp_path / "export")
    for directory in (checkpoints(tmp_path / "run")[-1], tmp_path / "export"):
        tokenizer = AutoTokenizer.from_pretrained(directory)
        ids = tokenizer.encode(ODD_TEXT.replace("<|endoftext|>", ""))
        assert ids == list(ODD_TEXT.replace("<|endoftext|>", "").encode())
        assert tokenizer.encode("a<|endoftext|>b") == [97, 256, 98]
        assert tokenizer.decode(tokenizer.encode(ODD_TEXT)) == ODD_TEXT
        assert tokenizer.eos_token_id == 256 and len(tokenizer) == VOCAB and tokenizer.model_max_length == T
        assert AutoModelForCausalLM.from_pretrained(directory).config.eos_token_id == 256
        text = pipeline("text-generation", str(directory))("the of ", max_new_tokens=8, do_sample=False)
        assert text[0]["generated_text"].startswith("the of ")


def test_a_model_with_gpt2s_vocabulary_carries_gpt2s_tokenizer(tmp_path):
    from transformers import AutoTokenizer, GPT2Tokenizer

    if not GPT2_DATA.is_dir():
        pytest.skip(f"no GPT-2 vocabulary in {GPT2_DATA} (PRETRAIN_DATA names the folder above it)")
    shard = write_shard(tmp_path / "train.bin", [i * 977 % 50257 for i in range(500)])
    train("-e", f"L=1,C=64,NH=2,T={T},V=50257", "-t", T, "-b", 2, *QUIET, "-i", shard, "-x", 1, "--tokenizer",
          GPT2_DATA, "-o", tmp_path / "run")
    checkpoint = checkpoints(tmp_path / "run")[-1]
    ours = AutoTokenizer.from_pretrained(checkpoint)
    theirs = GPT2Tokenizer(GPT2_DATA / "encoder.json", GPT2_DATA / "vocab.bpe")
    assert ours.encode(ODD_TEXT) == theirs.encode(ODD_TEXT) and ours.decode(ours.encode(ODD_TEXT)) == ODD_TEXT
    assert ours.eos_token_id == 50256 and len(ours) == 50257
    # Who goes on from the checkpoint finds the tokenizer there.
    train("-e", checkpoint, *CONVERT, "--export", tmp_path / "export")
    assert (tmp_path / "export" / "tokenizer.json").read_bytes() == (checkpoint / "tokenizer.json").read_bytes()
