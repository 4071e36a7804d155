"""GGUF files in llama.cpp itself: every family in every type gives the log-probabilities of our weights, the same text and
the same tokens, and gguf's own reader finds the keys and bytes that it would write."""
import json
import random
import subprocess
import sys
import urllib.request

import numpy as np
import pytest
import tokenizer_corpus as corpus
from conftest import PREPARE, QUIET, ROOT, TRAIN_TOKENIZER, WORDS, call, checkpoints, events, refused, train

pytest.importorskip("xllamacpp", reason="xllamacpp is missing: scripts/install_deps.sh test-all")
gguf = pytest.importorskip("gguf", reason="gguf is missing: scripts/install_deps.sh test-all")
pytestmark = pytest.mark.slow  # for what make test does not install

PROMPT, GREEDY = 41, 100  # tokens
# Heads, MLP and head of their own in all forms; a row of 72 or 40 is no multiple of q8_0's blocks of 32.
MODELS = {
    "gpt2": ("L=2,C=64,NH=4", []), "gpt2-72": ("L=1,C=64,NH=1", ["--d-ff", 72]),
    "starcoder2": ("starcoder2:L=2,C=64,NH=4,NKV=2", []), "starcoder2-untied": ("starcoder2:L=1,C=40,NH=2,tied=0", []),
    "llama": ("llama:L=2,C=64,NH=4,NKV=2", []), "qwen2": ("qwen2:L=2,C=64,NH=4,NKV=2", []),
    "llama-tied": ("llama:L=2,C=64,NH=4,NKV=1,HS=32,tied=1,bias=1", ["--d-ff", 88]),
    "qwen3": ("qwen3:L=2,C=64,NH=4,NKV=2,HS=32", []), "qwen3-untied": ("qwen3:L=2,C=64,NH=2,tied=0,base=500000", []),
    "starcoder2-normed": ("starcoder2:L=2,C=64,NH=4,NKV=2,embed_norm=1", []), "qwen3-normed": ("qwen3:L=2,C=72,NH=4,HS=16,embed_norm=1", []),
    "arcee": ("arcee:L=2,C=64,NH=4,NKV=2", []), "arcee-tied": ("arcee:L=1,C=40,NH=4,HS=8,tied=1", ["--d-ff", 72]),
}
TYPES = {"f32": gguf.GGMLQuantizationType.F32, "f16": gguf.GGMLQuantizationType.F16, "bf16": gguf.GGMLQuantizationType.BF16,
         "q8_0": gguf.GGMLQuantizationType.Q8_0}
# llama.cpp rounds activations to the type of the weights, and its GELU is a table in fp16.
LIMITS = {"f32": 1e-5, "f16": 3e-3, "bf16": 2e-2, "q8_0": 6e-2}
GELU_LIMIT = 2e-3


@pytest.fixture(scope="module")
def shards(tmp_path_factory):
    """Shards of words, made with a vocabulary of their own."""
    directory, choose = tmp_path_factory.mktemp("words"), random.Random(1)
    text = "".join(json.dumps({"text": " ".join(choose.choice(WORDS) for _ in range(400))}) + "\n" for _ in range(60))
    (directory / "text.jsonl").write_text(text)
    subprocess.run([PREPARE, "-o", directory / "data", "--tokenizer", "train:300", directory / "text.jsonl"], check=True,
                   capture_output=True, timeout=300)
    return directory / "data"


@pytest.fixture(scope="module", params=MODELS)
def model(request, shards, tmp_path_factory):
    """A model that has learnt some words: its name, and its checkpoint."""
    shape, more = MODELS[request.param]
    out = tmp_path_factory.mktemp(request.param) / "run"
    train("-e", f"{shape},T=160", *more, "-i", f"{shards}/train_*.bin", "-t", 64, "-b", 4, "-x", 60, "-l", 5e-3, "--dtype", "fp32",
          *QUIET, "-o", out)
    return request.param, checkpoints(out)[-1]


def export(checkpoint, path, *options):
    train("-e", checkpoint, "-x", 0, *QUIET, "--export", path, *options)
    return path


# ------------------------------------------------------------------------------------------------- our model in fp64

def tensors_of(directory):
    """The tensors of a Hugging Face directory in fp32."""
    content = (directory / "model.safetensors").read_bytes()
    start = 8 + int.from_bytes(content[:8], "little")
    found = {}
    for name, entry in json.loads(content[8:start]).items():
        if name != "__metadata__":
            begin, end = entry["data_offsets"]
            values = np.frombuffer(content[start + begin:start + end], "<f4").reshape(entry["shape"])
            found[name] = np.ascontiguousarray(values.T) if name.startswith("transformer.h.") and values.ndim == 2 else values
    return found


def log_probabilities(directory, tokens):
    """Of all tokens after each of these (T, V), as transformers defines the classes."""
    config = json.loads((directory / "config.json").read_text())
    w = {name: values.astype(np.float64) for name, values in tensors_of(directory).items()}
    is_gpt2 = config["model_type"] == "gpt2"
    layers, heads = (config[key] for key in (("n_layer", "n_head") if is_gpt2 else ("num_hidden_layers", "num_attention_heads")))
    shared = heads // config.get("num_key_value_heads", heads)

    def linear(x, name):
        return x @ w[name + ".weight"].T + w.get(name + ".bias", 0.0)

    def norm(x, name):
        if name + ".bias" in w:
            x = x - x.mean(-1, keepdims=True)
            eps = config.get("layer_norm_epsilon", config.get("norm_epsilon"))
            return x / np.sqrt((x * x).mean(-1, keepdims=True) + eps) * w[name + ".weight"] + w[name + ".bias"]
        return x / np.sqrt((x * x).mean(-1, keepdims=True) + config["rms_norm_eps"]) * w[name + ".weight"]

    def rotate(x):
        size = x.shape[-1]
        angles = np.outer(np.arange(len(tokens)), float(config["rope_theta"]) ** (-np.arange(0, size, 2) / size))
        a, b, cos, sin = x[..., :size // 2], x[..., size // 2:], np.cos(angles), np.sin(angles)
        return np.concatenate([a * cos - b * sin, b * cos + a * sin], -1)

    def gelu(x):
        return 0.5 * x * (1.0 + np.tanh(np.sqrt(2.0 / np.pi) * (x + 0.044715 * x**3)))

    def split(x):
        return x.reshape(len(tokens), -1, head_size).swapaxes(0, 1)

    if is_gpt2:
        x = w["transformer.wte.weight"][tokens] + w["transformer.wpe.weight"][:len(tokens)]
        block, names = "transformer.h.%d.", ("ln_1", "attn.c_proj", "ln_2", "mlp.c_fc", "mlp.c_proj")
        final, head = "transformer.ln_f", "transformer.wte"
    else:
        x = w["model.embed_tokens.weight"][tokens]
        fc = [name for name in ("c_fc", "up_proj") if f"model.layers.0.mlp.{name}.weight" in w][0]
        block, names = "model.layers.%d.", ("input_layernorm", "self_attn.o_proj", "post_attention_layernorm", f"mlp.{fc}",
                                            "mlp.c_proj" if fc == "c_fc" else "mlp.down_proj")
        final, head = "model.norm", "lm_head" if "lm_head.weight" in w else "model.embed_tokens"
    head_size = config.get("head_dim", x.shape[-1] // heads)
    for i in range(layers):
        norm1, proj, norm2, fc, fcproj = (block % i + name for name in names)
        h = norm(x, norm1)
        if is_gpt2:
            q, k, v = (split(part) for part in np.split(linear(h, block % i + "attn.c_attn"), 3, -1))
        else:
            q, k, v = (split(linear(h, block % i + f"self_attn.{c}_proj")) for c in "qkv")
            if config["model_type"] == "qwen3":
                q, k = norm(q, block % i + "self_attn.q_norm"), norm(k, block % i + "self_attn.k_norm")
            q, k = rotate(q), rotate(k)
        scores = q @ np.repeat(k, shared, 0).swapaxes(1, 2) / np.sqrt(head_size)
        scores = np.exp(np.where(np.tri(len(tokens), dtype=bool), scores, -np.inf))
        attended = scores / scores.sum(-1, keepdims=True) @ np.repeat(v, shared, 0)
        x = x + linear(attended.swapaxes(0, 1).reshape(len(tokens), -1), proj)
        h = norm(x, norm2)
        u = linear(h, fc)
        if config["model_type"] == "arcee":
            u = np.maximum(u, 0.0) ** 2
        elif config.get("hidden_act") == "silu":
            gate = linear(h, block % i + "mlp.gate_proj")
            u = gate / (1.0 + np.exp(-gate)) * u
        else:
            u = gelu(u)
        x = x + linear(u, fcproj)
    logits = norm(x, final) @ w[head + ".weight"].T
    return logits - np.log(np.exp(logits).sum(-1, keepdims=True))


# ------------------------------------------------------------------------------------------------------- llama.cpp

# In fp32 on one thread. It ends by _exit: the end of the server hangs now and then.
SERVER = """
import os, sys, xllamacpp as x
p = x.CommonParams()
p.model.path, p.n_ctx, p.n_parallel, p.warmup, p.verbosity = sys.argv[1], 141, 1, False, -1
p.cache_type_k = p.cache_type_v = x.ggml_type.GGML_TYPE_F32
p.flash_attn_type = x.llama_flash_attn_type.LLAMA_FLASH_ATTN_TYPE_DISABLED
p.cpuparams.n_threads = p.cpuparams_batch.n_threads = 1
server = x.Server(p)
print(server.listening_address, flush=True)
sys.stdin.read()
os._exit(0)
"""


class Llama:
    """A file in llama.cpp's server, a process that ends when this object is gone."""

    def __init__(self, path):
        self.process = subprocess.Popen([sys.executable, "-c", SERVER, path], text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                        stderr=subprocess.DEVNULL)
        self.address = next((line.strip() for line in self.process.stdout if line.startswith("http")), None)
        assert self.address, f"llama.cpp does not load {path}"

    def __del__(self):
        self.process.communicate()

    def ask(self, what, **fields):
        request = urllib.request.Request(f"{self.address}/{what}", json.dumps(fields).encode(),
                                         {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=300) as answer:
            return json.load(answer)

    def log_probabilities(self, prompt, vocab):
        """After the prompt. The sampled token has to be a letter, or they are those of another one."""
        answer = self.ask("completion", prompt=prompt, n_predict=1, temperature=0, n_probs=vocab, grammar="root ::= [a-z]")
        found = {entry["id"]: entry["logprob"] for entry in answer["completion_probabilities"][0]["top_logprobs"]}
        return np.array([found[i] for i in range(vocab)])

    def greedy(self, prompt):
        return self.ask("completion", prompt=prompt, n_predict=GREEDY, temperature=0, return_tokens=True)["tokens"]

    def tokens(self, text):
        return self.ask("tokenize", content=text, add_special=False, parse_special=False)["tokens"]


def spellings(path):
    """The bytes of each token of a tokenizer.json, those of special tokens left out."""
    bytes_of = {chr(c): c for c in [*range(33, 127), *range(161, 173), *range(174, 256)]}
    bytes_of.update({chr(256 + i): c for i, c in enumerate(c for c in range(256) if c not in bytes_of.values())})
    content = json.loads(path.read_text())
    special = {token["id"] for token in content["added_tokens"]}
    return {i: b"" if i in special else bytes(bytes_of[c] for c in token) for token, i in content["model"]["vocab"].items()}


def tokens_of_shard(path):
    content = path.read_bytes()
    assert int.from_bytes(content[4:8], "little") == 1  # 2 bytes a token
    return np.frombuffer(content[1024:], "<u2").tolist()


@pytest.mark.parametrize("dtype", TYPES)
def test_llama_cpp_gives_the_log_probabilities_of_our_weights(dtype, model, shards, tmp_path):
    name, checkpoint = model
    prompt = tokens_of_shard(shards / "val_000000.bin")[:PROMPT]
    ours = log_probabilities(checkpoint, prompt)[-1]
    export(checkpoint, f"{tmp_path}/m.gguf:{dtype}")
    theirs = Llama(tmp_path / "m.gguf").log_probabilities(prompt, len(ours))
    difference = np.abs(theirs - ours).max()
    print(f"| {name} | {dtype} | {difference:.1e} |")
    assert difference < max(LIMITS[dtype], GELU_LIMIT if name[:4] in ("gpt2", "star") else 0)
    assert ours.max() - ours.min() > 3  # it has learnt something


def test_both_say_the_same(model, shards, tmp_path):
    name, checkpoint = model
    prompt = "the of and to in that it was for on"
    train("-e", checkpoint, "-x", 0, "-v", 0, "-s", 1, "-i", f"{shards}/train_*.bin", "--dtype", "fp32", "-g", GREEDY,
          "--temperature", 0, "--prompt", prompt, "-o", tmp_path / "run")
    ours = events(tmp_path / "run", "sample")[-1]["text"]
    llama, bytes_of = Llama(export(checkpoint, tmp_path / "m.gguf")), spellings(checkpoint / "tokenizer.json")
    tokens = [len(bytes_of) - 1, *llama.tokens(prompt)]  # a text begins after an end-of-text token
    assert ours == b"".join(bytes_of[i] for i in tokens + llama.greedy(tokens)).decode()


def test_the_log_probabilities_are_the_trainers(model, shards, tmp_path):
    checkpoint = model[1]
    train("-e", checkpoint, "-x", 0, "-v", 1, "-s", 0, "-m", 0, "-i", f"{shards}/train_*.bin", "-t", 64, "-b", 1, "--dtype", "fp32",
          "-o", tmp_path / "run")
    tokens = tokens_of_shard(shards / "val_000000.bin")
    windows = [tokens[i:i + 65] for i in range(0, len(tokens) - 64, 64)]
    ours = [-log_probabilities(checkpoint, window[:64])[np.arange(64), window[1:]] for window in windows]
    assert events(tmp_path / "run", "validation")[-1]["loss"] == pytest.approx(np.mean(ours), abs=2e-6)


# -------------------------------------------------------------------------------------------------------------- tokens

@pytest.fixture(scope="module")
def texts():
    """200 KB of odd text, without characters that are younger than the oldest of the tables of Unicode."""
    pytest.importorskip("tokenizers"), pytest.importorskip("tiktoken")
    return corpus.without(corpus.documents(0.2), corpus.newer_characters())


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    sys.path.insert(0, str(ROOT / "dev" / "bench"))
    import native_tokenizer

    return native_tokenizer.Library(native_tokenizer.build(tmp_path_factory.mktemp("library")))


@pytest.mark.parametrize("vocabulary", ["bytes", "GPT-2's", "gpt2", "starcoder", "llama3", "qwen2"])
def test_both_have_the_same_tokens(vocabulary, texts, library, tmp_path):
    """The built-in one, GPT-2's, and one with each pattern; the model has rows without a token."""
    path, vocab = {"bytes": ("bytes", 264), "GPT-2's": (corpus.DATA / "gpt2", 50304)}.get(
        vocabulary, (tmp_path / "tokenizer.json", 3072))
    if vocab == 3072:
        (tmp_path / "text.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in corpus.documents(1)))
        call(TRAIN_TOKENIZER, "--vocab-size", 3000, "--pattern", vocabulary, "-o", path, tmp_path / "text.jsonl", expect=0)
    if vocabulary == "GPT-2's" and not path.is_dir():
        pytest.skip(f"no GPT-2 vocabulary in {path} (PRETRAIN_DATA names the folder above it)")
    train("-e", f"L=1,C=32,NH=1,T=16,V={vocab}", "--tokenizer", path, "-x", 0, *QUIET, "--export", tmp_path / "m.gguf")
    ours, llama = library.bytes() if path == "bytes" else library.open(path), Llama(tmp_path / "m.gguf")
    for text in texts:
        assert llama.tokens(text) == ours.encode(text).tolist(), text[:80]


def test_what_a_template_puts_before_a_text_is_before_it_there_too(shards, tmp_path):
    content, token = json.loads((shards / "tokenizer.json").read_text()), "<|begin_of_text|>"
    begin = len(content["model"]["vocab"])
    content["model"]["vocab"][token] = begin
    content["added_tokens"].append({**content["added_tokens"][0], "id": begin, "content": token})
    content["post_processor"] = {"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": token, "type_id": 0}},
                                                                          {"Sequence": {"id": "A", "type_id": 0}}]}
    (tmp_path / "tokenizer.json").write_text(json.dumps(content))
    train("-e", f"L=1,C=32,NH=1,T=16,V={begin + 1}", "--tokenizer", tmp_path / "tokenizer.json", "-x", 0, *QUIET, "--export",
          tmp_path / "m.gguf")
    tokens = Llama(tmp_path / "m.gguf").ask("tokenize", content="the", add_special=True)["tokens"]
    assert tokens[0] == begin and len(tokens) > 1 and begin not in tokens[1:]


@pytest.mark.parametrize("ignored", [False, True])
def test_merges_of_llama_3s_pattern_are_obeyed_or_ignored_as_the_tokenizer_says(ignored, library, tmp_path):
    """a b c -> ab c, although abc is a token: unless merges are ignored for a piece that is one."""
    path = tmp_path / "tokenizer.json"
    (tmp_path / "text.txt").write_text("a b c\n" * 100)
    call(TRAIN_TOKENIZER, "--vocab-size", 257, "--pattern", "llama3", "-o", path, tmp_path / "text.txt", expect=0)
    content = json.loads(path.read_text())
    content["model"]["vocab"].update({"ab": 257, "bc": 258, "abc": 259})
    content["model"].update(merges=["a b", "b c", "a bc"], ignore_merges=ignored)
    path.write_text(json.dumps(content))
    train("-e", "L=1,C=32,NH=1,T=16,V=260", "--tokenizer", path, "-x", 0, *QUIET, "--export", tmp_path / "m.gguf")
    ours, llama = library.open(path), Llama(tmp_path / "m.gguf")
    for text in ("abc", "abc abcab 12345 abc\n\n's", "bc"):
        assert llama.tokens(text) == ours.encode(text).tolist(), text
    assert llama.tokens("abc") == ([259] if ignored else [257, content["model"]["vocab"]["c"]])


def test_a_pattern_that_llama_cpp_does_not_have_is_refused(tmp_path):
    (tmp_path / "text.txt").write_text("the the the of of of " * 100)
    call(TRAIN_TOKENIZER, "--vocab-size", 260, "--pattern", "o200k", "-o", tmp_path / "tokenizer.json", tmp_path / "text.txt", expect=0)
    refused("-e", "L=1,C=32,NH=1,T=16,V=300", "--tokenizer", tmp_path / "tokenizer.json", "-x", 0, *QUIET, "--export", tmp_path / "m.gguf",
            words=["llama.cpp would split texts into other tokens than"])


# -------------------------------------------------------------------------------------------------- gguf's own reader

def permuted(values, heads):
    """Rows of q or k in the order of llama.cpp's converter: the halves of a head alternate."""
    return values.reshape(heads, 2, -1, *values.shape[1:]).swapaxes(1, 2).reshape(values.shape)


@pytest.mark.parametrize("dtype", TYPES)
def test_gguf_reads_the_keys_and_bytes_that_it_would_write(dtype, model, tmp_path):
    _, checkpoint = model
    config = json.loads((checkpoint / "config.json").read_text())
    reader = gguf.GGUFReader(export(checkpoint, tmp_path / f"m.gguf:{dtype}").with_name("m.gguf"))
    keys, family = {key: field.contents() for key, field in reader.fields.items()}, config["model_type"]
    tensors = {tensor.name: tensor for tensor in reader.tensors}
    names = gguf.get_tensor_name_map({name: arch for arch, name in gguf.MODEL_ARCH_NAMES.items()}[family], 2)
    for name, values in tensors_of(checkpoint).items():
        tensor = tensors.pop(names.get_name(name, (".weight", ".bias")))
        if family in ("llama", "arcee") and (".q_proj" in name or ".k_proj" in name):
            values = permuted(values, config["num_attention_heads" if ".q_proj" in name else "num_key_value_heads"])
        of_file = values.ndim == 2 and not name.endswith("wpe.weight")
        expected = TYPES[dtype] if of_file else TYPES["f32"]
        if expected == TYPES["q8_0"] and values.shape[1] % 32:
            expected = TYPES["f16"]
        assert tensor.tensor_type == expected and tensor.shape.tolist() == list(values.shape[::-1]), name
        assert tensor.data.tobytes() == gguf.quants.quantize(values, expected).tobytes(), name
    assert not tensors
    size = {"n_positions": "context_length", "max_position_embeddings": "context_length", "n_embd": "embedding_length",
            "hidden_size": "embedding_length", "n_layer": "block_count", "num_hidden_layers": "block_count",
            "n_inner": "feed_forward_length", "intermediate_size": "feed_forward_length", "n_head": "attention.head_count",
            "num_attention_heads": "attention.head_count", "num_key_value_heads": "attention.head_count_kv",
            "head_dim": "attention.key_length", "vocab_size": "vocab_size", "rope_theta": "rope.freq_base",
            "rms_norm_eps": "attention.layer_norm_rms_epsilon", "norm_epsilon": "attention.layer_norm_epsilon",
            "layer_norm_epsilon": "attention.layer_norm_epsilon"}
    for key, value in config.items():
        if key in size and value is not None:
            assert keys[f"{family}.{size[key]}"] == pytest.approx(value, rel=1e-6), key
    assert keys["general.architecture"] == family and keys["tokenizer.ggml.eos_token_id"] == config["eos_token_id"]
    file_type = {"f32": "ALL_F32", "f16": "MOSTLY_F16", "bf16": "MOSTLY_BF16", "q8_0": "MOSTLY_Q8_0"}[dtype]
    assert keys["general.file_type"] == gguf.LlamaFileType[file_type]
    tokenizer = json.loads((checkpoint / "tokenizer.json").read_text())
    assert keys["tokenizer.ggml.tokens"] == list(tokenizer["model"]["vocab"])
    assert keys["tokenizer.ggml.merges"] == tokenizer["model"]["merges"]
    assert keys["tokenizer.ggml.token_type"] == [1] * (len(keys["tokenizer.ggml.tokens"]) - 1) + [3]
