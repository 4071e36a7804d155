"""The blocks after GPT-2, of each family: they learn, and what an optimizer saves of them is valid; transformers reads their checkpoints and says the same; what cannot be is refused."""
import itertools
import json
import math
import os
import shutil
import struct

import pytest
from conftest import (EXIT_BAD_INPUT, QUIET, ROOT, SIMULATOR, TRAINER, call, checkpoints, cut_back, events, losses, needs_simulator,
                      train, write_shard)
from test_fp8 import CURVE, check_curve
from test_simulator import TOLERANCE
from verify_checkpoint import tensors, verify

T, STEPS, RATE = 32, 30, 1e-3
SHAPE = f"L=2,C=64,NH=4,NKV=2,T={T}"
FAMILIES = {"starcoder2": "Starcoder2ForCausalLM", "llama": "LlamaForCausalLM", "qwen3": "Qwen3ForCausalLM",
            "arcee": "ArceeForCausalLM"}
CLASSES = {**FAMILIES, "normed": "Starcoder2ForCausalLM"}  # with a norm after the embedding
GOLDEN = [*FAMILIES, "qwen2", "llama_biased", "normed"]  # test/golden/tiny_*, as transformers saved them
OPTIMIZERS = ["adamw", "adamw8bit", "adamw-bf16", "adamw-kahan", "lion", "adafactor", "sgd", "muon"]
RUN = ["-t", T, "-b", 4, "-d", 256, "--dtype", "bf16"]
each_family = pytest.mark.parametrize("family", CLASSES)


def model_of(family):
    return ["-e", f"starcoder2:{SHAPE},embed_norm=1" if family == "normed" else f"{family}:{SHAPE}"]


# ------------------------------------------------------------------------------------------------------------- training

@each_family
def test_it_learns_and_its_class_is_named(family, data, tmp_path):
    whole = tmp_path / "whole"
    said = train(*model_of(family), *RUN, *data.flags, "-l", 3e-3, "-u", 3, "-x", 30, "-v", 10, "-s", 15,
                 "-g", 8, "-o", whole).stdout
    assert f"checkpoints load as {CLASSES[family]}" in said
    loss = losses(whole)
    assert loss[1] == pytest.approx(5.55, abs=0.1)  # ln(257), as in test_optimizers.py
    assert sum(loss[step] for step in range(26, 31)) / 5 < loss[1] - 1.2
    assert len(events(whole, "sample")) == 2


# Each optimizer once, each family at least once.
@pytest.mark.parametrize("family, optimizer", zip(itertools.cycle(CLASSES), OPTIMIZERS))
def test_what_every_optimizer_saves_is_valid(family, optimizer, data, tmp_path):
    train(*model_of(family), *RUN, *QUIET, *data.flags, "-x", 3, "--optimizer", optimizer, "-o", tmp_path / "run",
          "--export", f"{tmp_path}/export:bf16")
    assert f", {optimizer}, " in verify(checkpoints(tmp_path / "run")[-1], tmp_path / "export")


# --------------------------------------------------------------------------------------------------- in transformers

@pytest.fixture(scope="module", params=CLASSES)
def trained(request, data, tmp_path_factory):
    """A family, and a checkpoint that has learnt some words."""
    out = tmp_path_factory.mktemp(request.param) / "run"
    rate = 2e-3 if request.param == "normed" else 5e-3  # else, after a rare byte, it says bytes that the text has not
    train(*model_of(request.param), *RUN, *QUIET, *data.flags, "-x", 60, "-l", rate, "-o", out)
    return request.param, checkpoints(out)[-1]


@pytest.mark.slow
def test_transformers_has_the_same_losses_and_says_the_same(trained, data, tmp_path):
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers", minversion="5")
    family, checkpoint = trained
    model, info = transformers.AutoModelForCausalLM.from_pretrained(checkpoint, dtype=torch.float32, output_loading_info=True)
    assert type(model).__name__ == CLASSES[family] and not info["missing_keys"] and not info["unexpected_keys"]
    prompt = "the of and to "
    train("-e", checkpoint, "-x", 0, "-v", 1, "-m", 0, "-s", 1, *data.flags, "-t", T, "-b", 1, "--dtype", "fp32", "-g", T - 1 - len(prompt),
          "--temperature", 0, "--prompt", prompt, "-o", tmp_path / "run")
    tokens = torch.frombuffer(bytearray((data.directory / "val_000000.bin").read_bytes()[1024:]), dtype=torch.uint16).long()
    validation = events(tmp_path / "run", "validation")[-1]
    windows = tokens[: (len(tokens) - 1) // T * T + 1].unfold(0, T + 1, T)
    with torch.no_grad():
        logits = model.eval()(windows[:, :-1]).logits
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), windows[:, 1:].flatten())
        ids = torch.tensor([[256, *prompt.encode()]])  # a text begins after an end-of-text token
        said = model.generate(ids, max_new_tokens=T - 1 - len(prompt), do_sample=False)[0].tolist()
    assert validation["loss"] == pytest.approx(float(loss), abs=2e-5)
    assert events(tmp_path / "run", "sample")[-1]["text"] == bytes(t for t in said if t < 256).decode()


def windows_of_steps(run, steps):
    """The windows (steps, B, T+1) that a run read, as data/whereis finds them."""
    import torch

    windows = []
    for step in range(1, steps + 1):
        rows = [line.split() for line in call(ROOT / "data/whereis", run, step, expect=0).stdout.splitlines()[2:]]
        windows.append([struct.unpack(f"<{T + 1}H", open(row[-1], "rb").read()[int(row[-2]):][:2 * (T + 1)]) for row in rows])
    return torch.tensor(windows)


def matrices_and_vectors(parameters, decay=0.1):
    """The groups of PyTorch's optimizers: matrices decay, vectors do not."""
    parameters = list(parameters)
    return [{"params": [p for p in parameters if (p.dim() == 2) == decays], "weight_decay": decay * decays} for decays in (True, False)]


def steps_in_pytorch(model, windows, *optimizers):
    """Steps of the optimizers on the windows (steps, B, T+1), in fp32: the losses, and the norms before clipping."""
    import torch

    losses, norms = [], []
    for batch in windows:
        logits = model(batch[:, :-1]).logits
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), batch[:, 1:].flatten())
        loss.backward()
        norm = torch.linalg.vector_norm(torch.stack([p.grad.norm() for p in model.parameters()]))
        for p in model.parameters():
            p.grad *= min(1.0, 1.0 / float(norm))
        for optimizer in optimizers:
            optimizer.step()
        model.zero_grad()
        losses.append(float(loss.detach())), norms.append(float(norm))
    return losses, norms


def relative_error(got, want):
    """Of the lengths of two vectors' difference and of the second."""
    return math.dist(got, want) / math.hypot(*want)


@pytest.mark.slow
@pytest.mark.parametrize("family", ["gpt2", *FAMILIES])
def test_thirty_steps_in_fp32_are_those_of_pytorch(family, data, tmp_path):
    """At the limits of test/reference/README.md for ten steps against fp64. The gradient of k's bias is small among its terms: 10
    times."""
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers", minversion="5")
    model = ["-e", f"L=2,C=64,NH=4,T={T}" if family == "gpt2" else f"{family}:{SHAPE}"]
    train(*model, "-x", 0, *QUIET, *data.flags, "--export", tmp_path / "start")
    train("-e", tmp_path / "start", *data.flags, *QUIET, "-t", T, "-b", 4, "--dtype", "fp32", "-x", STEPS, "-l", RATE, "-u", 0,
          "-k", "constant", "--threads", 1, "-o", tmp_path / "run")
    ours = events(tmp_path / "run", "step")
    peer = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "start", dtype=torch.float32).train()
    start = {name: p.detach().clone() for name, p in peer.named_parameters()}
    adamw = torch.optim.AdamW(matrices_and_vectors(peer.parameters()), lr=RATE, betas=(0.9, 0.95), eps=1e-8)
    losses, norms = steps_in_pytorch(peer, windows_of_steps(tmp_path / "run", STEPS), adamw)
    final = transformers.AutoModelForCausalLM.from_pretrained(checkpoints(tmp_path / "run")[-1], dtype=torch.float32)
    moved = {"others": 0.0, "k's bias": 0.0}
    for name, p in final.named_parameters():
        keep = torch.ones_like(p, dtype=torch.bool)
        if name.endswith("c_attn.bias"):  # without RoPE the gradient of k's is zero
            keep[64:128] = False
        kind = "k's bias" if name.endswith("k_proj.bias") else "others"
        want = peer.get_parameter(name).detach()
        error = (p.detach() - want)[keep].norm() / (want - start[name])[keep].norm()
        moved[kind] = max(moved[kind], float(error))
    loss = relative_error([step["loss"] for step in ours], losses)
    norm = relative_error([step["norm"] for step in ours], norms)
    print(f"| {family} | {loss:.1e} | {norm:.1e} |", " | ".join(f"{error:.1e}" for error in moved.values()), "|")
    assert loss <= 1e-5 and norm <= 1e-5 and moved["others"] <= 1e-4 and moved["k's bias"] <= 1e-3


@pytest.mark.slow
def test_thirty_steps_of_groups_in_fp32_are_those_of_pytorch(data, tmp_path):
    """Every value of every group differs from the others'. Limits as above, and for weights near 1 half an ulp a step:
    PyTorch multiplies by 1 - lr decay, rounded."""
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    groups = {  # learning rate, beta1, beta2, eps, decay
        "embedding": (4e-3, 0.9, 0.99, 1e-7, 0.05), "head": (2e-3, 0.8, 0.96, 1e-6, 0.01), "matrices": (RATE, 0.85, 0.97, 1e-8, 0.1),
        "vectors": (5e-4, 0.95, 0.9, 1e-9, 0.2)}
    flags = [f"{group}.{name}={value}" for group, (_, *values) in groups.items()
             for name, value in zip(("beta1", "beta2", "eps", "decay"), values)]
    train(*model_of("llama"), "-x", 0, *QUIET, *data.flags, "--export", tmp_path / "start")
    train("-e", tmp_path / "start", *data.flags, *QUIET, "-t", T, "-b", 4, "--dtype", "fp32", "-x", STEPS, "-l", RATE, "-u", 0, "-k",
          "constant", "--threads", 1, "-o", tmp_path / "run", "--lr-embedding", 4e-3, "--lr-head", 2e-3, "--lr-vectors", 5e-4,
          "--by-group", ",".join(flags))
    peer = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "start").train()
    start = {name: p.detach().clone() for name, p in peer.named_parameters()}
    of_group = {group: [] for group in groups}
    for name, p in peer.named_parameters():
        special = {"model.embed_tokens.weight": "embedding", "lm_head.weight": "head"}
        of_group[special.get(name, "matrices" if p.dim() == 2 else "vectors")].append(p)
    rows = [{"params": of_group[group], "lr": lr, "betas": (beta1, beta2), "eps": eps, "weight_decay": decay}
            for group, (lr, beta1, beta2, eps, decay) in groups.items()]
    losses, norms = steps_in_pytorch(peer, windows_of_steps(tmp_path / "run", STEPS), torch.optim.AdamW(rows))
    ours = events(tmp_path / "run", "step")
    assert relative_error([step["loss"] for step in ours], losses) <= 1e-5
    assert relative_error([step["norm"] for step in ours], norms) <= 1e-5
    final = transformers.AutoModelForCausalLM.from_pretrained(checkpoints(tmp_path / "run")[-1])
    for name, p in final.named_parameters():
        want = peer.get_parameter(name).detach()
        assert (p.detach() - want).norm() <= 1e-4 * (want - start[name]).norm() + STEPS * 2**-24 * want.norm(), name


def sgd_of_pytorch(torch, model):
    """PyTorch adds the decay to the gradient, which ours does not: without it."""
    return [torch.optim.SGD(model.parameters(), lr=RATE, momentum=0.95)]


def lion_of_lucidrains(torch, model):
    """At a tenth of AdamW's rate, as its authors advise."""
    return [pytest.importorskip("lion_pytorch").Lion(matrices_and_vectors(model.parameters()), lr=RATE / 10, betas=(0.9, 0.95))]


class Adafactor:
    """Transformers' over our matrices: q, k and v are one, and gate and up."""

    def __init__(self, torch, model):
        adafactor = pytest.importorskip("transformers.optimization").Adafactor
        packed = [[p for name, p in model.named_parameters() if f".{i}." in name and name.split(".")[-2] in names]
                  for i in range(2) for names in (("q_proj", "k_proj", "v_proj"), ("gate_proj", "up_proj"))]
        self.torch, self.packed = torch, [(torch.nn.Parameter(torch.cat([p.detach() for p in parts])), parts) for parts in packed]
        for whole, parts in self.packed:
            for p, rows in zip(parts, whole.detach().split([len(p) for p in parts])):
                p.data = rows
        alone = [p for p in model.parameters() if all(p is not q for parts in packed for q in parts)]
        self.optimizer = adafactor(matrices_and_vectors(alone + [whole for whole, _ in self.packed]), lr=RATE, scale_parameter=False,
                                   relative_step=False, warmup_init=False)

    def step(self):
        for whole, parts in self.packed:
            whole.grad = self.torch.cat([p.grad for p in parts])
        self.optimizer.step()


def adafactor_of_transformers(torch, model):
    return [Adafactor(torch, model)]


def muon_of_pytorch(torch, model):
    if not hasattr(torch.optim, "Muon"):
        pytest.skip(f"PyTorch {torch.__version__} has no Muon")
    of_muon = [p for name, p in model.named_parameters() if p.dim() == 2 and ".layers." in name]
    others = [p for p in model.parameters() if all(p is not q for q in of_muon)]
    return [torch.optim.Muon(of_muon, lr=RATE, weight_decay=0.1, momentum=0.95, adjust_lr_fn="match_rms_adamw"),
            torch.optim.AdamW(matrices_and_vectors(others), lr=RATE, betas=(0.9, 0.95), eps=1e-8)]


@pytest.mark.slow
@pytest.mark.parametrize("optimizer, make", [("sgd", sgd_of_pytorch), ("lion", lion_of_lucidrains),
                                             ("adafactor", adafactor_of_transformers), ("muon", muon_of_pytorch)])
def test_thirty_steps_of_other_optimizers_in_fp32_are_those_of_pytorch(optimizer, make, data, tmp_path, monkeypatch):
    """Limits as above. Lion takes the sign of a sum: rounding, about 1e-6 of a gradient, turns the sign of 1e-6 of the 110,000
    elements in each of 30 steps, 3 of them; ten times as many may be off by a rate or more."""
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    rate = RATE / 10 if optimizer == "lion" else RATE
    train(*model_of("llama"), "-x", 0, *QUIET, *data.flags, "--export", tmp_path / "start")
    train("-e", tmp_path / "start", *data.flags, *QUIET, "-t", T, "-b", 4, "--dtype", "fp32", "-x", STEPS, "-l",
          rate, "-u", 0, "-k", "constant", "--threads", 1, "-o", tmp_path / "run", "--optimizer", optimizer, "--beta1", 0.9, "--beta2", 0.95, "-c",
          0 if optimizer == "sgd" else 0.1)
    peer = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "start").train()
    start = {name: p.detach().clone() for name, p in peer.named_parameters()}
    with monkeypatch.context() as patched:
        patched.setattr(torch, "bfloat16", torch.float32)  # in which PyTorch's Muon iterates
        losses, norms = steps_in_pytorch(peer, windows_of_steps(tmp_path / "run", STEPS), *make(torch, peer))
    ours = events(tmp_path / "run", "step")
    final = transformers.AutoModelForCausalLM.from_pretrained(checkpoints(tmp_path / "run")[-1])
    moved, turned = {}, 0
    for name, p in final.named_parameters():
        want = peer.get_parameter(name).detach()
        keep = (p.detach() - want).abs() < (rate if optimizer == "lion" else math.inf)
        turned += int((~keep).sum())
        moved[name] = float((p.detach() - want)[keep].norm() / (want - start[name])[keep].norm())
    loss = relative_error([step["loss"] for step in ours], losses)
    norm = relative_error([step["norm"] for step in ours], norms)
    print(f"| {optimizer} | {loss:.1e} | {norm:.1e} | {max(moved.values()):.1e} |", turned)
    assert loss <= 1e-5 and norm <= 1e-5 and max(moved.values()) <= 1e-4 and turned <= 30


# ------------------------------------------------------------------------------------------------- CUDA, simulated

def run_on(trainer, family, out, data, *arguments, **environment):
    env = {**os.environ, "PRETRAIN_CACHE": str(out.parent / "tuning"), **environment}
    train(*model_of(family), "-t", T, "-b", 4, *QUIET, *data.flags, "-o", out, *arguments, trainer=trainer, env=env)
    return out


@needs_simulator
@pytest.mark.parametrize("family, dtype, fp8", [*((family, "bf16", 0) for family in [*CLASSES, "qwen2"]), ("qwen3", "fp32", 0),
                                                ("starcoder2", "fp16", 0), ("llama", "bf16", 1), ("arcee", "bf16", 1)])
def test_the_simulated_gpu_has_the_losses_of_the_cpu(family, dtype, fp8, data, tmp_path):
    """In fp8 a GPU sums products otherwise, and what is rounded to 4 or 3 bits then is another number now and then."""
    arguments = ["-x", 20, "-d", 256, "-l", 1e-3, "-u", 5, "--fp8", fp8]
    cpu_dtype = dtype if dtype != "fp16" else "fp32"
    on_cpu = losses(run_on(TRAINER, family, tmp_path / "cpu", data, *arguments, "--dtype", cpu_dtype))
    simulated = losses(run_on(SIMULATOR, family, tmp_path / "sim", data, *arguments, "--dtype", dtype, SIM_CC="90"))
    assert simulated == pytest.approx(on_cpu, rel=0.01 if fp8 else TOLERANCE[dtype])
    assert on_cpu[20] < on_cpu[1] - 0.3, "nothing was learnt, so nothing was compared"


@pytest.mark.slow
@pytest.mark.parametrize("trainer, family", [
    *(pytest.param(TRAINER, family, id=f"cpu-{family}") for family in FAMILIES),
    *(pytest.param(SIMULATOR, family, id=f"simulator-{family}", marks=needs_simulator) for family in ("starcoder2", "qwen3"))])
def test_each_of_a_hundred_losses_in_fp8_is_within_a_percent_of_bf16(trainer, family, data, tmp_path):
    in_bf16, in_fp8 = (losses(run_on(trainer, family, tmp_path / str(fp8), data, *CURVE, "--fp8", fp8, SIM_CC="90"))
                       for fp8 in (0, 1))
    check_curve(in_fp8, in_bf16)


# ----------------------------------------------------------------------------------------------------------- refusals

def test_blocks_that_no_class_has_train_and_are_said_to_be_for_this_program(data, tmp_path):
    for shape in (SHAPE, f"qwen3:{SHAPE},bias=1", f"starcoder2:{SHAPE},base=0,tied=0"):
        said = train("-e", shape, *RUN, *QUIET, *data.flags, "-x", 2, "-o", tmp_path / "run", "--export", tmp_path / "export").stdout
        assert "no class of transformers loads these blocks" in said and "no class of transformers has these blocks" in said
        checkpoint = checkpoints(tmp_path / "run")[-1]
        verify(checkpoint)
        assert json.loads((checkpoint / "config.json").read_text())["model_type"] == "pretrain_cu"
        train("-e", tmp_path / "export", "-x", 0, *QUIET, "--export", tmp_path / "again")
        assert all((tmp_path / "again" / f).read_bytes() == (tmp_path / "export" / f).read_bytes()
                   for f in ("model.safetensors", "config.json"))
        shutil.rmtree(tmp_path / "run"), shutil.rmtree(tmp_path / "export"), shutil.rmtree(tmp_path / "again")


def test_an_embedding_that_is_no_longer_the_heads_norm_is_refused_and_the_way_out_works(tmp_path):
    shutil.copytree(ROOT / "test/golden/tiny_normed", tmp_path / "model")
    path, config = tmp_path / "model/model.safetensors", tmp_path / "model/config.json"
    content = bytearray(path.read_bytes())
    start = 8 + int.from_bytes(content[:8], "little")
    begin = start + json.loads(content[8:start])["model.embed_tokens.weight"]["data_offsets"][0]
    at = begin + 4 * (5 * 16 + 3)
    content[at:at + 4] = struct.pack("<f", struct.unpack_from("<f", content, at)[0] * (1 + 2**-19))
    path.write_bytes(content)
    error = train("-e", tmp_path / "model", "-x", 0, *QUIET, expect=EXIT_BAD_INPUT).stderr
    assert "is not the norm of the rows of lm_head.weight, at [5, 3]" in error and "embed_norm" in error and error.count("\n") == 1
    fields = json.loads(config.read_text())
    del fields["embed_norm"]
    config.write_text(json.dumps(fields))
    train("-e", tmp_path / "model", "-x", 0, *QUIET, "--export", tmp_path / "untied")
    assert values_of(tmp_path / "untied") == values_of(tmp_path / "model")


# ------------------------------------------------------------------------------------------------ models of others


def values_of(directory):
    """{name: (type, shape, bytes)} of all files of a directory."""
    return {name: (kind, shape, values.tobytes()) for path in directory.glob("*.safetensors")
            for name, (kind, shape, values) in tensors(path)[0].items()}


@pytest.mark.parametrize("name", GOLDEN)
def test_what_transformers_saved_comes_back_bit_by_bit_and_trains_on(name, tmp_path):
    """Its weights and the fields that count are those that transformers wrote, so it loads them again; logits: test/golden."""
    given, dtype = ROOT / "test/golden" / f"tiny_{name}", {"qwen2": "bf16"}.get(name, "fp32")
    train("-e", given, "-x", 0, *QUIET, "--export", f"{tmp_path}/made:{dtype}")
    assert values_of(tmp_path / "made") == values_of(given)
    theirs, ours = (json.loads((d / "config.json").read_text()) for d in (given, tmp_path / "made"))
    theirs["torch_dtype"] = theirs["dtype"]
    other = {key for key in theirs.keys() & ours.keys() if theirs[key] != ours[key]}
    absent = theirs.keys() - ours.keys()
    assert other <= {"initializer_range"} and absent <= {"dtype", "layer_types", "max_window_layers", "pretraining_tp", "transformers_version",
                                    "use_cache", "use_sliding_window"}
    shard = write_shard(tmp_path / "train.bin", [i * 7 % 37 for i in range(500)])
    flags = ["-e", given, "-i", shard, "-t", 16, "-b", 2, *QUIET, "--tokenizer", "none"]
    train(*flags, "-x", 4, "-n", 2, "-o", tmp_path / "run")
    verify(checkpoints(tmp_path / "run")[-1])
    whole = values_of(checkpoints(tmp_path / "run")[-1])
    cut_back(tmp_path / "run")
    train("-o", tmp_path / "run", "-y", 1)
    assert values_of(checkpoints(tmp_path / "run")[-1]) == whole


VARIANTS = {  # of each class in transformers, and how save_pretrained writes it
    "starcoder2": ("Starcoder2", {"sliding_window": None}, "float32", "5GB"),
    "starcoder2 without biases, untied": ("Starcoder2", {"use_bias": False, "tie_word_embeddings": False, "sliding_window": T},
                                          "float32", "40KB"),
    "llama": ("Llama", {"rope_theta": 500000.0}, "bfloat16", "40KB"),
    "llama, tied, with biases and wide heads": ("Llama", {"attention_bias": True, "mlp_bias": True, "head_dim": 32,
                                                          "tie_word_embeddings": True}, "float32", "5GB"),
    "llama with biases of the MLP": ("Llama", {"mlp_bias": True, "num_key_value_heads": 1}, "float16", "5GB"),
    "qwen2": ("Qwen2", {"tie_word_embeddings": True}, "bfloat16", "5GB"),
    "qwen3": ("Qwen3", {"head_dim": 32, "rms_norm_eps": 1e-5}, "bfloat16", "40KB"),
    "qwen3 with biases, tied": ("Qwen3", {"head_dim": 8, "attention_bias": True, "tie_word_embeddings": True}, "float16", "5GB"),
    "arcee": ("Arcee", {}, "float32", "40KB"),
    "arcee with biases": ("Arcee", {"attention_bias": True, "mlp_bias": True, "head_dim": 8}, "bfloat16", "5GB"),
}


@pytest.mark.slow
@pytest.mark.parametrize("variant", VARIANTS)
def test_transformers_and_this_program_read_each_others_models(variant, data, tmp_path):
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers", minversion="5")
    name, settings, dtype, shard = VARIANTS[variant]
    torch.manual_seed(len(variant))
    config = getattr(transformers, name + "Config")(**{
        "vocab_size": 257, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4,
        "num_key_value_heads": 2, "max_position_embeddings": T, "bos_token_id": 256, "eos_token_id": 256, **settings})
    source = getattr(transformers, name + "ForCausalLM")(config)
    with torch.no_grad():
        for parameter in source.parameters():  # no bias is zero, no weight of a norm one
            parameter.add_(0.1 * torch.randn_like(parameter))
    source.to(getattr(torch, dtype)).save_pretrained(tmp_path / "given", max_shard_size=shard)
    assert (tmp_path / "given/model.safetensors.index.json").exists() == (shard == "40KB")
    train("-e", tmp_path / "given", *data.flags, "-t", T, "-b", 4, "-d", 256, "-x", 3, "-l", 1e-3, "-v", 3, "-m", 0, "-s", 0,
          "--dtype", "fp32", "-o", tmp_path / "run")
    read = torch.frombuffer(bytearray((data.directory / "val_000000.bin").read_bytes()[1024:]), dtype=torch.uint16).long()
    windows = read[: (len(read) - 1) // T * T + 1].unfold(0, T + 1, T)
    ours = [event["loss"] for event in events(tmp_path / "run", "validation")]
    for directory, loss in zip((tmp_path / "given", checkpoints(tmp_path / "run")[-1]), ours, strict=True):
        model, info = transformers.AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32, output_loading_info=True)
        assert type(model).__name__ == name + "ForCausalLM" and not info["missing_keys"] and not info["unexpected_keys"]
        with torch.no_grad():
            logits = model.eval()(windows[:, :-1]).logits
        assert loss == pytest.approx(float(torch.nn.functional.cross_entropy(logits.flatten(0, 1), windows[:, 1:].flatten())),
                                     rel=1e-5)
    assert ours[1] < ours[0] - 0.01, "nothing was learnt, so one model was compared twice"
