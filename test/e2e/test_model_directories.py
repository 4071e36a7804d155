"""What a model's directory holds besides weights and shape is in checkpoints and exports too, or a line names it; a conversion
rounds nothing twice; no tool replaces the files of a model or corpus that is there; exports at once and killed ones."""
import json
import os
import shutil
import signal
import subprocess
import time

import pytest
from conftest import (EXIT_BAD_INPUT, PREPARE, QUIET, TINY, TRAIN_TOKENIZER, TRAINER, call, checkpoints, command, make_text, refused,
                      start, train)

CHOICES = PREPARE.with_name("choices")
CARRIED = ["generation_config.json", "special_tokens_map.json", "added_tokens.json", "chat_template.jinja", "tokenizer_config.json"]


@pytest.fixture(scope="module")
def source(tmp_path_factory, data):
    """A directory as other programs write them, of a byte model with several end tokens and a chat template."""
    directory = tmp_path_factory.mktemp("models") / "source"
    train(*TINY, *QUIET, *data.flags, "-x", 1, "--export", directory)
    edit(directory / "config.json", bos_token_id=7, eos_token_id=[256, 10, 33], pad_token_id=5, use_cache=False, attn_pdrop=0.1,
         embd_pdrop=0.0, task_specific_params={"a": [1, 2.0]})
    edit(directory / "tokenizer_config.json", pad_token="<|endoftext|>", model_max_length=10**30)
    (directory / "generation_config.json").write_text(json.dumps({"eos_token_id": [256, 65], "top_p": 0.9}, indent=2))
    (directory / "special_tokens_map.json").write_text('{"pad_token": "<|endoftext|>"}')
    (directory / "added_tokens.json").write_text('{"<|endoftext|>": 256}')
    (directory / "chat_template.jinja").write_text("{{ messages[0].content }}")
    (directory / "README.md").write_text("a model")
    return directory


def edit(path, **keys):
    path.write_text(json.dumps({**json.loads(path.read_text()), **keys}, indent=2))


def weights(directory):
    """Of each tensor its type, shape and bytes."""
    content = (directory / "model.safetensors").read_bytes()
    start = 8 + int.from_bytes(content[:8], "little")
    entries = json.loads(content[8:start])
    entries.pop("__metadata__")
    return {name: (e["dtype"], e["shape"], content[start + e["data_offsets"][0]:start + e["data_offsets"][1]])
            for name, e in entries.items()}


def config(directory):
    return json.loads((directory / "config.json").read_text())


# ----------------------------------------------------------------------------------------------------------- conversion

@pytest.mark.parametrize("dtype", [[], ["--dtype", "bf16"], ["--dtype", "fp32"]], ids=["auto", "bf16", "fp32"])
def test_a_conversion_keeps_every_bit_whatever_type_the_model_has(dtype, data, source, tmp_path):
    run = tmp_path / "run"
    train(*TINY, *QUIET, *data.flags, "-x", 2, "-o", run, "--dtype", "bf16", "-w", 1)
    checkpoint = checkpoints(run)[-1]
    for name, arguments in {"source": ["-e", source, "-x", 0], "checkpoint": ["-e", checkpoint, "-x", 0],
                            "resumed": ["-o", run, "-y", 1, "-x", 0], "ended": [*TINY, *data.flags, "-o", run, "-y", 1, "-x", 2]}.items():
        if name == "ended":
            arguments = [*arguments, "-w", 0]
        train(*arguments, *QUIET, *dtype, "--export", tmp_path / name)
        expected = source if name == "source" else checkpoint
        assert weights(tmp_path / name) == weights(expected), name


def test_q8_0_is_made_from_the_source_and_new_weights_are_the_seeds(source, tmp_path):
    for name, arguments in {"q8_0": ["-e", source, "--export", "{}.gguf:q8_0"], "bf16": ["-e", source, "--export", "{}:bf16"],
                            "new": [*TINY, "--export", "{}.gguf"]}.items():
        made = []
        for dtype in ("fp32", "bf16"):
            path = tmp_path / f"{name}-{dtype}"
            train(*[str(a).format(path) for a in arguments], "-x", 0, *QUIET, "--dtype", dtype)
            file = path / "model.safetensors" if path.is_dir() else path.with_name(path.name + ".gguf")
            made.append(file.read_bytes())
        assert made[0] == made[1], name


# ------------------------------------------------------------------------------------------- what a directory has besides

def assert_all_there(directory, source):
    for name in CARRIED:
        assert (directory / name).read_bytes() == (source / name).read_bytes(), name
    ours, theirs = config(directory), config(source)
    for key in theirs.keys() - {"torch_dtype"}:
        assert ours[key] == theirs[key] and type(ours[key]) is type(theirs[key]), key


def test_it_survives_training_checkpoints_resumes_and_exports(data, source, tmp_path):
    run = tmp_path / "run"
    shown = train("-e", source, *QUIET, *data.flags, "-b", 4, "-x", 2, "-n", 1, "-o", run, "--export", tmp_path / "a").stdout
    assert "left out    " in shown and "README.md" in shown
    train("-e", source, *QUIET, *data.flags, "-b", 4, "-x", 3, "-o", run, "-y", 1)
    train("-e", tmp_path / "a", *QUIET, "-x", 0, "--export", tmp_path / "b:bf16")
    for directory in (*checkpoints(run), tmp_path / "a", tmp_path / "b"):
        assert_all_there(directory, source)
    first, last = checkpoints(run)[0], checkpoints(run)[-1]
    assert (first / "config.json").read_bytes() == (last / "config.json").read_bytes()
    # A second export replaces the first; not if somebody has changed one of its files.
    train("-e", source, *QUIET, "-x", 0, "--export", tmp_path / "b")
    assert not (tmp_path / "b.1").exists()
    (tmp_path / "b" / "generation_config.json").write_text("{}")
    train("-e", source, *QUIET, "-x", 0, "--export", tmp_path / "b")
    assert (tmp_path / "b.1" / "generation_config.json").read_text() == "{}"


def test_transformers_finds_it(data, source, tmp_path):
    transformers = pytest.importorskip("transformers")
    train("-e", source, *QUIET, *data.flags, "-b", 4, "-x", 1, "--export", tmp_path / "a")
    model = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "a")
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "a")
    assert model.config.eos_token_id == [256, 10, 33] and model.generation_config.eos_token_id == [256, 65]
    assert model.config.bos_token_id == 7 and model.config.pad_token_id == 5 and tokenizer.pad_token == "<|endoftext|>"


def test_the_token_that_ends_the_texts_of_the_data_is_added_to_others(data, source, tmp_path):
    shutil.copytree(source, tmp_path / "source")
    for stated, expected in (([10, 33], [10, 33, 256]), (10, [10, 256]), (None, 256), (50256, 256)):
        edit(tmp_path / "source/config.json", eos_token_id=stated)
        train("-e", tmp_path / "source", *QUIET, *data.flags, "-b", 4, "-x", 1, "--export", tmp_path / "a")
        assert config(tmp_path / "a")["eos_token_id"] == expected


def test_without_a_tokenizer_the_first_token_stays_and_its_files_are_named(data, source, tmp_path):
    shutil.copytree(source, tmp_path / "source")
    for stated in (7, None, 50256, "absent"):
        edit(tmp_path / "source/config.json", bos_token_id=stated)
        if stated == "absent":
            content = config(tmp_path / "source")
            del content["bos_token_id"]
            (tmp_path / "source/config.json").write_text(json.dumps(content))
        shown = train("-e", tmp_path / "source", *QUIET, *data.flags, "-b", 4, "-x", 1, "--tokenizer", "none", "--export",
                      tmp_path / "a").stdout
        assert config(tmp_path / "a").get("bos_token_id", "absent") == stated
    for name in ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "chat_template.jinja"):
        assert name in shown.partition("left out")[2].partition("\n")[0] and not (tmp_path / "a" / name).exists()


def test_gguf_has_it_or_a_line_names_it(data, source, tmp_path):
    gguf = pytest.importorskip("gguf")
    shown = train("-e", source, *QUIET, "-x", 0, "--export", tmp_path / "m.gguf").stdout
    keys = {name: field.contents() for name, field in gguf.GGUFReader(tmp_path / "m.gguf").fields.items()}
    ids = [keys[f"tokenizer.ggml.{name}_token_id"] for name in ("bos", "eos", "eot", "eom", "padding")]
    assert ids == [7, 256, 10, 33, 5] and keys["tokenizer.chat_template"] == "{{ messages[0].content }}"
    assert "warning     it has 3 of the 4 tokens that end a text" in shown and "left out of it: generation_config.json" in shown
    shown = train("-e", source, *QUIET, "-x", 0, "--tokenizer", "none", "--export", tmp_path / "n.gguf").stdout
    assert "warning     it has no vocabulary, which llama.cpp's servers need" in shown
    shown = train("-e", source, *QUIET, "-x", 0, "--export", tmp_path / "m.bin").stdout
    assert "it has none of the 4 tokens that end a text" in shown
    assert "left out of it: tokenizer_config.json, special_tokens_map.json, added_tokens.json, chat_template.jinja, generation_config.json" in shown


def test_a_damaged_generation_config_is_refused(source, tmp_path):
    shutil.copytree(source, tmp_path / "source")
    (tmp_path / "source/generation_config.json").write_text("{")
    refused("-e", tmp_path / "source", "-x", 0, *QUIET, "--export", tmp_path / "a", words=["generation_config.json", "not valid JSON"])


# ------------------------------------------------------------------------------------------------------------- shapes, names

def test_a_shape_that_transformers_refuses_is_named_in_the_header_and_at_the_export(tmp_path):
    for family in ("llama", "arcee"):
        shape = f"{family}:L=1,C=64,NH=3,HS=16,T=16,V=64"
        shown = train("-e", shape, "-x", 0, *QUIET, "--export", tmp_path / family).stdout
        assert "of transformers refuses C = 64 that is no multiple of NH = 3" in shown
        assert "exported" in shown and "for this program: transformers refuses heads that do not divide C" in shown
        shown = train("-e", shape, "-x", 0, *QUIET, "--export", tmp_path / f"{family}.gguf").stdout
        assert ", for this program" not in shown
    assert "refuses" not in train("-e", "qwen3:L=1,C=64,NH=3,HS=16,T=16,V=64", "-x", 0, *QUIET, "--export", tmp_path / "qwen3").stdout


def test_suffixes_are_read_in_any_case_and_those_of_others_are_refused(tmp_path):
    for name in ("m.GGUF", "m.Bin"):
        train(*TINY, *QUIET, "-x", 0, "--export", tmp_path / name)
        assert (tmp_path / name).is_file()
    for name in ("m.pt", "m.PTH", "m.ckpt", "m.onnx", "m.h5", "m.SafeTensors"):
        refused(*TINY, *QUIET, "-x", 0, "--export", tmp_path / name, words=["--export", "name "])
        assert not (tmp_path / name).exists()


def test_a_tilde_after_an_equals_sign_is_the_home_directory(data, source, tmp_path):
    home, here = tmp_path / "home", tmp_path / "here"
    here.mkdir()
    shutil.copytree(data.directory, home / "sh")
    shutil.copytree(source, home / "source")
    make_text(home / "text", documents=3)
    call(PREPARE, "-o", home / "sh2", home / "text", expect=0)
    (home / "q.jsonl").write_text('{"ctx": "a b", "endings": ["c", "d"], "label": 1}\n')
    environment = {**os.environ, "HOME": str(home), "PRETRAIN_CACHE": "off"}
    for words in ([TRAINER, "-e=~/source", "-i=~/sh/train_*.bin:0.5,~/sh2/train_*.bin:0.5", "-j=~/sh/val_*.bin", *QUIET, "-b", 4,
                   "-x", 1, "--output=~/run", "--export=~/model:bf16", "--tokenizer=~/source"],
                  [PREPARE, "--output=~/new", "--tokenizer=~/sh", home / "text"],
                  [TRAIN_TOKENIZER, "--output=~/t.json", "--vocab-size", 260, home / "text"],
                  [CHOICES, "--tokenizer=~/sh", "--output=~/q.bin", home / "q.jsonl"]):
        call(*words, expect=0, cwd=here, env=environment)
    assert not list(here.iterdir())
    assert all((home / name).exists() for name in ("run/main.log", "model/config.json", "new/manifest.json", "t.json", "q.bin"))


# -------------------------------------------------------------------------------------------- files in another role

@pytest.fixture
def place(data, source, tmp_path):
    """A model of ours, one of another program, a corpus, a vocabulary, a run, and texts."""
    shutil.copytree(data.directory, tmp_path / "corpus")
    shutil.copytree(source, tmp_path / "theirs")
    train(*TINY, *QUIET, *data.flags, "-x", 1, "-o", tmp_path / "run", "--export", tmp_path / "ours")
    train(*TINY, *QUIET, "-x", 0, "--export", tmp_path / "ours.bin")
    make_text(tmp_path / "text", documents=3)
    (tmp_path / "vocabulary").mkdir()
    call(TRAIN_TOKENIZER, "--vocab-size", 300, "-o", tmp_path / "vocabulary/tokenizer.json", tmp_path / "text", expect=0)
    (tmp_path / "q.jsonl").write_text('{"ctx": "a b", "endings": ["c", "d"], "label": 1}\n')
    return tmp_path


def contents(place):
    return {path.relative_to(place): path.read_bytes() for path in place.rglob("*") if path.is_file()}


MODELS = ["ours", "theirs", "run/step_00000001"]
IN_A_ROLE = [
    *([PREPARE, "-o", model, "text"] for model in MODELS),
    *([PREPARE, "--force", "--tokenizer", "vocabulary", "-o", model, "text"] for model in MODELS),
    *([TRAIN_TOKENIZER, "--vocab-size", 300, "-o", f"{model}/{name}", "text"] for model in MODELS
      for name in ("tokenizer.json", "config.json", "tokenizer_config.json", "model.safetensors")),
    *([TRAIN_TOKENIZER, "--vocab-size", 300, "-o", f"corpus/{name}", "text"]
      for name in ("tokenizer.json", "manifest.json", "train_000000.bin", "val_000000.bin")),
    [CHOICES, "--tokenizer", "corpus", "q.jsonl", "-o", "corpus/val_000000.bin"],
    [CHOICES, "--tokenizer", "corpus", "q.jsonl", "-o", "theirs/model.safetensors"],
    *([TRAINER, *TINY, *QUIET, "-x", 0, "--export", target]
      for target in ("corpus", "vocabulary", "run", "run/step_00000001", "corpus/train_000000.bin", "theirs/pytorch_model.bin")),
]


@pytest.mark.parametrize("words", IN_A_ROLE, ids=lambda words: "-".join([words[0].name, *(str(w) for w in words[1:] if "/" in str(w))]))
def test_files_of_a_model_or_a_corpus_are_not_replaced(words, place):
    before = contents(place)
    result = call(*words, cwd=place, env={**os.environ, "PRETRAIN_CACHE": "off"})
    assert result.returncode == EXIT_BAD_INPUT and result.stderr.count("\n") == 1, result.stderr
    assert contents(place) == before


def test_a_vocabulary_that_belongs_to_nothing_is_moved_aside_unless_it_is_the_same(place):
    mine = place / "vocabulary/tokenizer.json"
    before = mine.read_bytes()
    call(PREPARE, "-o", place / "vocabulary", "--tokenizer", mine, place / "text", expect=0)
    assert mine.read_bytes() == before and not mine.with_name("tokenizer.json.1").exists()
    for shard in (place / "vocabulary").glob("*.bin"):
        shard.unlink()
    (place / "vocabulary/manifest.json").unlink()
    result = call(PREPARE, "-o", place / "vocabulary", place / "text", expect=0)
    assert mine.with_name("tokenizer.json.1").read_bytes() == before and "tokenizer.json.1" in result.stderr


def test_examples_do_not_replace_a_model(place):
    before = (place / "ours.bin").read_bytes()
    result = call(CHOICES, "--tokenizer", place / "corpus", place / "q.jsonl", "-o", place / "ours.bin", expect=0)
    assert (place / "ours.bin.1").read_bytes() == before and "ours.bin.1" in result.stderr


# ---------------------------------------------------------------------------------------------- at once, and killed

@pytest.mark.parametrize("target", ["model", "m.gguf", "m.bin"])
def test_exports_at_once_leave_one_whole(target, source, tmp_path):
    """Of two models, several times; each process ends well."""
    kinds = [["-e", source], TINY]
    whole = {}
    for i, kind in enumerate(kinds):
        train(*kind, *QUIET, "-x", 0, "--export", tmp_path / f"{i}" / target)
        path = tmp_path / f"{i}" / target
        whole[i] = contents(path) if path.is_dir() else path.read_bytes()
    for _ in range(5):
        both = [subprocess.Popen(command(*kind, *QUIET, "-x", 0, "--export", tmp_path / "at" / target), stdout=subprocess.DEVNULL)
                for kind in kinds * 2]
        assert [process.wait(timeout=300) for process in both] == [0] * 4
        path = tmp_path / "at" / target
        assert (contents(path) if path.is_dir() else path.read_bytes()) in whole.values()
        assert [entry.name for entry in (tmp_path / "at").iterdir()] == [target]


@pytest.mark.parametrize("target", ["model", "m.gguf", "m.bin"])
def test_the_next_export_removes_what_a_killed_one_has_left(target, tmp_path):
    big = ["-e", "L=4,C=512,NH=8,T=64,V=50257", *QUIET, "-x", 0]
    left = False
    while not left:
        process = start(*big, "--export", tmp_path / target)
        while process.poll() is None and not any(".tmp-" in entry.name for entry in tmp_path.iterdir()):
            time.sleep(0.001)
        process.send_signal(signal.SIGKILL)
        process.wait()
        left = any(".tmp-" in entry.name for entry in tmp_path.iterdir())
        for whole in tmp_path.glob(f"{target}*" if not left else "nothing"):
            shutil.rmtree(whole) if whole.is_dir() else whole.unlink()
    train(*TINY, *QUIET, "-x", 0, "--export", tmp_path / "another")  # to another name
    assert not [entry.name for entry in tmp_path.iterdir() if ".tmp-" in entry.name]
