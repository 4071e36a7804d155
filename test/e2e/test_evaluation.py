"""Evaluation as users run it: bits per byte, multiple-choice files on the schedule and with -x 0, the lm-eval harness.

Files are written here, byte by byte. Losses are PyTorch's: test/golden; which of them count: test/unit/test_validation.c and
test_choices.c.
"""
import json
import math
import os
import random
import shutil
import struct
import sys

import pytest
from conftest import (BYTE_EOT, BYTE_VOCAB, EXIT_BAD_INPUT, QUIET, Data, call, checkpoints, events,
                      train, write_shard)

T = 64
ALONE = ["-x", 0, "-v", 0, "-s", 0, "--dtype", "fp32"]


def choice_file(path, examples):
    """examples: (context, [completion, ...], label), all of bytes."""
    records = []
    for index, (context, completions, label) in enumerate(examples):
        texts = [value for text in (context, *completions) for value in (len(text), *text)]
        record = [65535, 2 * (5 + len(texts)), index, label, len(completions), *texts]
        records.append(struct.pack(f"<{len(record)}H", *record))
    header = [20240522, 1, len(examples), max(map(len, records))] + [0] * 252
    path.write_bytes(struct.pack("<256i", *header) + b"".join(records))
    return path


@pytest.fixture(scope="module")
def model(data, tmp_path_factory):
    out = tmp_path_factory.mktemp("evaluation") / "run"
    train("-e", f"L=2,C=64,NH=2,T={T}", "-b", 8, "-x", 60, "-l", 5e-3, *QUIET, *data.flags, "-o", out)
    return checkpoints(out)[-1]


# --------------------------------------------------------------------------------------------------- which step and data


def test_a_checkpoint_is_evaluated_at_its_step_on_the_data_of_its_run(data, tmp_path):
    own = tmp_path / "own"
    shutil.copytree(data.directory, own)
    train("-e", "L=1,C=64,NH=2,T=32", "-x", 2, *QUIET, *Data(own).flags, "-o", tmp_path / "run")
    checkpoint = checkpoints(tmp_path / "run")[-1]
    said = train("-e", checkpoint, "-x", 0, "-s", 1, "--samples", 2, "-g", 4).stdout
    assert "validation at step 2 |" in said and "sample 2 at step 2:" in said
    shutil.rmtree(own)
    refusal = train("-e", checkpoint, "-x", 0, expect=EXIT_BAD_INPUT).stderr
    assert f"-j: no token shards match '{Data(own).val}'" in refusal and "-v 0" in refusal
    train("-e", checkpoint, "-x", 0, *QUIET)


def test_new_weights_that_are_not_trained_take_the_vocabulary_of_the_data(data, tmp_path):
    new = ["-e", "L=1,C=64,NH=2,T=32", "-x", 0, *QUIET, "--export"]
    train(*new, tmp_path / "new", "-i", data.train)
    assert json.loads((tmp_path / "new" / "config.json").read_text())["vocab_size"] == BYTE_VOCAB
    assert (tmp_path / "new" / "tokenizer.json").exists()
    assert "-i: no token shards" in train(*new, tmp_path / "no", "-i", "no/such", expect=EXIT_BAD_INPUT).stderr


# ------------------------------------------------------------------------------------------------------- bits per byte


def test_perplexity_and_bits_per_byte_are_those_of_the_loss_and_the_text(model, tmp_path):
    choose, windows = random.Random(9), 12
    tokens = [choose.choice([BYTE_EOT, *b"the of and "]) for _ in range(windows * T + 1)]
    write_shard(tmp_path / "val_0.bin", tokens, vocab=BYTE_VOCAB, eot=BYTE_EOT)
    said = train("-e", model, "-x", 0, "-s", 0, "-m", 0, "--dtype", "fp32", "-j", Data(tmp_path).val, "-o",
                 tmp_path / "out").stdout
    point = events(tmp_path / "out", "validation")[0]
    text_bytes = sum(token != BYTE_EOT for token in tokens[1:])  # end-of-text is no text; its loss counts
    assert text_bytes < len(tokens) - 1
    assert point["ppl"] == pytest.approx(math.exp(point["loss"]), rel=1e-4)
    assert point["bits_per_byte"] == pytest.approx(point["loss"] * windows * T / math.log(2) / text_bytes, rel=1e-5)
    assert f"{point['bits_per_byte']:.4f} bits/byte" in said


# ----------------------------------------------------------------------------------------------------- multiple choice


def test_choices_are_scored_on_the_schedule_and_a_model_that_knows_one_text_takes_it(tmp_path):
    shard = write_shard(tmp_path / "train_0.bin", list(b"abc." * 2000), vocab=BYTE_VOCAB, eot=BYTE_EOT)
    endings = [b"bc.a", b"xyz.", b"cba.", b"...."]
    path = choice_file(tmp_path / "facts.bin", [(b"abc.a", endings[-(i % 4):] + endings[:-(i % 4)], i % 4) for i in range(40)])
    said = train("-e", "L=1,C=64,NH=2,T=32", "-b", 8, "-l", 5e-3, "-x", 40, "-s", 0, "-v", 20, "-i", shard, "-j", shard,
                 "--choices", path, "-o", tmp_path / "run").stdout
    points = events(tmp_path / "run", "choices")
    assert [point["step"] for point in points] == [0, 20, 40]
    assert points[0]["correct"] < 40
    assert (points[-1]["correct"], points[-1]["correct_normalised"]) == (40, 40)
    assert "facts at step 40 | accuracy 100.00%" in said
    train("-e", checkpoints(tmp_path / "run")[-1], *ALONE, "--choices", f"{path}:7", "-o", tmp_path / "out")
    (point,) = events(tmp_path / "out", "choices")
    assert (point["name"], point["step"], point["examples"], point["correct"]) == ("facts", 40, 7, 7)


# ----------------------------------------------------------------------------------------------- lm-evaluation-harness


def harness_python():
    for python in (os.environ.get("LM_EVAL_PYTHON"), sys.executable):
        if python and call(python, "-c", "import importlib.metadata as m; m.version('lm_eval')").returncode == 0:
            return python
    return None


def test_the_harness_reads_our_checkpoint_and_agrees(model, tmp_path):
    python = harness_python()
    if python is None:
        pytest.skip("lm-evaluation-harness is not installed: pip install lm-eval[hf], or LM_EVAL_PYTHON=...")
    choose = random.Random(4)
    words = lambda n: " ".join(choose.choice("the of and to in that it was for on".split()) for _ in range(n))
    questions = [{"ctx": words(5), "endings": [words(choose.randint(1, 3)) for _ in range(4)], "label": i % 4}
                 for i in range(24)]
    (tmp_path / "words.jsonl").write_text("".join(json.dumps(question) + "\n" for question in questions))
    (tmp_path / "words.yaml").write_text(
        f"task: words\ndataset_path: json\ndataset_kwargs: {{data_files: {{validation: {tmp_path}/words.jsonl}}}}\n"
        "output_type: multiple_choice\nvalidation_split: validation\ndoc_to_text: '{{ctx}}'\n"
        "doc_to_choice: endings\ndoc_to_target: label\nmetric_list: [{metric: acc}]\n")
    call(python, "-m", "lm_eval", "--model", "hf", "--model_args", f"pretrained={model},dtype=float32", "--device", "cpu",
         "--tasks", "words", "--include_path", tmp_path, "--output_path", tmp_path / "results.json", expect=0)
    theirs = json.loads(next(tmp_path.glob("results*.json")).read_text())["results"]["words"]
    ours = choice_file(tmp_path / "words.bin", [(q["ctx"].encode(), [b" " + e.encode() for e in q["endings"]],
                                                 q["label"]) for q in questions])
    train("-e", model, *ALONE, "--choices", ours, "-o", tmp_path / "out")
    assert theirs["acc,none"] * 24 == pytest.approx(events(tmp_path / "out", "choices")[0]["correct"])
