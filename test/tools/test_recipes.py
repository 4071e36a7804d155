"""scripts/run_*.sh: what they ask of the trainer, run for real with a tiny model in place of theirs."""
import os
import re
import shutil
import signal
import subprocess

import pytest
from tiny_run import (EXIT_BAD_INPUT, EXIT_INTERRUPTED, ROOT, TINY, call, clean_environment, events,
                      last_step, make_root, same_weights, wait_until)

RECIPES = {
    # parameters, learning rate, final fraction, micro-batch, tokens a step, steps, corpus
    "gpt2_124M": (124_475_904, 6e-4, 0, 64, 524288, 19560, "fineweb-10B-gpt2"),
    "gpt2_350M": (354_871_296, 3e-4, 0, 64, 524288, 60000, "fineweb-100B-gpt2"),
    "gpt2_774M": (774_090_240, 2.5e-4, 0, 32, 524288, 286102, "fineweb-100B-gpt2"),
    "gpt2_1558M": (1_557_686_400, 6e-4, 0.1, 16, 1048576, 32000, "fineweb-edu-100B-gpt2"),
}


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    return make_root(tmp_path_factory.mktemp("root"))


def recipe(root, name, *arguments, **environment):
    return call(root, f"scripts/run_{name}.sh", *arguments, environment=clean_environment(**environment))


@pytest.mark.parametrize("name", RECIPES)
def test_a_recipe_trains_with_the_published_hyperparameters(root, name, tmp_path):
    parameters, rate, final, batch, tokens, steps, corpus = RECIPES[name]
    plan = recipe(root, name, "--plan").stdout
    assert plan.count("GB/s") > 10  # a row for each GPU
    assert f"-b {batch} -r 0, {tokens} tokens a step, {steps} steps" in plan
    millions = float(re.search(r"([0-9.]+)([MB]) parameters", plan)[1]) * (1000 if "B parameters" in plan else 1)
    assert millions == pytest.approx(parameters / 1e6, rel=1e-3)
    run = recipe(root, name, *TINY[:8], "-s", 0, "-x", 1, OUT=tmp_path / "run")
    assert run.returncode == 0, run.stderr
    started = events(tmp_path / "run", "run")[0]
    options, matrices = started["options"], started["groups"]["matrices"]
    assert (options["learning-rate"], options["final-lr-fraction"]) == (rate, final)
    assert (options["warmup"], options["weight-decay"], options["schedule"]) == (700, 0.1, "cosine")
    assert (matrices["beta1"], matrices["beta2"], options["grad-clip"], options["val-every"]) == (0.9, 0.95, 1, 250)
    assert options["train-data"].startswith(f"data/{corpus}/") and options["val-data"].startswith(f"data/{corpus}/")
    assert "HellaSwag is not scored; to score it, run: data/get.py hellaswag" in run.stderr


# What the scripts after GPT-2 ask of the trainer, beside the dial: in the plan, and of a run.
AFTER_GPT2 = {
    ("qwen3",): ("12 blocks of qwen3, 768 channels", "524288 tokens a step, 2828 steps: 1.482B tokens", "fineweb-10B-gpt2",
                 {"optimizer": "muon", "beta2": 0.99, "schedule": "linear", "final-lr-fraction": 0}),
    ("qwen3", "d24"): ("24 blocks of qwen3, 1024 channels", "1048576 tokens a step, 4117 steps: 4.317B tokens",
                       "fineweb-10B-gpt2", {}),
    ("qwen3", "d36"): ("36 blocks of qwen3, 1280 channels", "1048576 tokens a step, 8904 steps: 9.336B tokens",
                       "fineweb-10B-gpt2", {}),
    ("qwen3", "d48"): ("48 blocks of qwen3, 1600 channels", "1048576 tokens a step", "fineweb-100B-gpt2", {}),
    ("track3",): ("6 heads, a head of its own, context 1024", "524288 tokens a step, 3250 steps: 1.704B tokens",
                  "fineweb-10B-gpt2", {"learning-rate": 0.00451, "lr-embedding": 0.014, "lr-head": 0.004, "lr-vectors": 0.015,
                                       "weight-decay": 0.277, "warmup": 0, "schedule": "trapezoid",
                                       "val-sequences": 10240, "grad-clip": 0}),
    ("nanochat_d12",): ("6 heads, a head of its own, context 2048", "524288 tokens a step, 2828 steps: 1.482B tokens",
                        "fineweb-edu-10B-gpt2", {"beta1": 0.8, "warmup": 40, "final-lr-fraction": 0.05, "schedule": "trapezoid",
                                                 "by-group": "embedding.beta2=0.995,head.beta2=0.96,embedding.decay=0.01,head.decay=0.01"}),
}


@pytest.mark.parametrize("words", AFTER_GPT2, ids="-".join)
def test_a_recipe_after_gpt2_plans_and_trains(root, words, tmp_path):
    model, length, corpus, expected = AFTER_GPT2[words]
    name, *size = words
    plan = recipe(root, name, *size, "--plan").stdout
    assert model in plan and length in plan
    assert ("recipe      -l " in plan) == (name != "track3")
    family = "qwen3:" if name == "qwen3" else "arcee:"
    tiny = ["-e", family + TINY[1], *TINY[2:8], "-s", 0, "-v", 0, "--threads", 1, *(["-x", 2] if name == "track3" else ["--tokens", 200])]
    run = recipe(root, name, *size, *tiny, OUT=tmp_path / "run")
    assert run.returncode == 0, run.stderr
    options = events(tmp_path / "run", "run")[0]["options"]
    assert {key: options[key] for key in expected} == expected and options["optimizer"] == "muon"
    assert options["train-data"].startswith(f"data/{corpus}/")
    again = recipe(root, name, *size, *tiny, OUT=tmp_path / "run")
    assert again.returncode == 0 and "done        nothing to do" in again.stdout
    said = recipe(root, name, *size, "--help").stdout
    assert "No GPU has run it" in said and "OPTIONS=(" not in said and "TRAINER" in said


def test_a_directory_of_shards_may_have_any_name(root, tmp_path):
    shards = shutil.copytree(root / "data" / "fineweb-10B-gpt2", tmp_path / "my [own] *shards\\ 'n'")
    run = recipe(root, "gpt2_124M", *TINY[:8], "-s", 0, "-x", 1, OUT=tmp_path / "run", DATA=shards)
    assert run.returncode == 0, run.stderr
    assert "in 1 shard" in run.stdout and "validation at step 1" in run.stdout


def test_a_second_call_goes_on_and_a_third_finds_the_run_done(root):
    assert recipe(root, "gpt2_124M", *TINY, "-x", 20, OUT="runs/whole").returncode == 0
    process = subprocess.Popen(["scripts/run_gpt2_124M.sh", *map(str, TINY), "-x", "1000000"], cwd=root,
                               env=clean_environment(), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    run = root / "runs" / "gpt2_124M"  # where it goes by default
    try:
        wait_until(lambda: last_step(run) > 5, process)
        process.send_signal(signal.SIGTERM)  # reaches the trainer, whose exit code is the recipe's
        assert process.wait(300) == EXIT_INTERRUPTED
    finally:
        process.kill()
    stopped = last_step(run)
    assert recipe(root, "gpt2_124M", *TINY, "-x", stopped + 15).returncode == 0
    assert recipe(root, "gpt2_124M", *TINY, "-x", stopped + 15, OUT="runs/whole").returncode == 0
    assert same_weights(run, root / "runs" / "whole")
    again = recipe(root, "gpt2_124M", *TINY, "-x", stopped + 15)
    assert again.returncode == 0 and "done        nothing to do" in again.stdout
    assert last_step(run) == stopped + 15


def test_environment_and_arguments_take_precedence(root, tmp_path):
    run = recipe(root, "gpt2_350M", *TINY[:4], *TINY[6:], "-x", 2, "-l", "1e-3", B=2, DTYPE="fp32",
                 OUT=tmp_path / "run", DATA="data/fineweb-edu-100B-gpt2")
    assert run.returncode == 0, run.stderr
    options = events(tmp_path / "run", "run")[0]["options"]
    assert (options["batch-size"], options["dtype"], options["learning-rate"]) == (2, "fp32", 1e-3)
    assert options["train-data"] == "data/fineweb-edu-100B-gpt2/*train_*.bin"
    missing = recipe(root, "gpt2_350M", TRAINER="./no_such_trainer")
    assert (missing.returncode, missing.stderr) == (
        EXIT_BAD_INPUT, "gpt2_350M: ./no_such_trainer is not built; run: make\n")


@pytest.mark.parametrize("part", ["train", "val"])
def test_missing_data_are_named_with_the_command_that_gets_them(part, tmp_path):
    root = make_root(tmp_path / "root")
    for shard in (root / "data" / "fineweb-10B-gpt2").glob(f"*{part}*"):
        shard.unlink()
    run = recipe(root, "gpt2_124M")
    assert run.returncode == EXIT_BAD_INPUT
    assert run.stderr == (f"gpt2_124M: no {part} shards in data/fineweb-10B-gpt2 ({part}_*.bin); get them with: "
                          "data/get.py fineweb-10B-gpt2\n")
    assert not (root / "runs").exists()
    assert recipe(root, "gpt2_124M", "--plan").returncode == 0  # needs none


def test_hellaswag_is_scored_where_it_is_there(tmp_path):
    root = make_root(tmp_path / "root")
    (root / "data" / "hellaswag").mkdir()
    (root / "data" / "hellaswag" / "hellaswag_val.bin").write_bytes(b"no such file")
    run = recipe(root, "gpt2_124M", *TINY, "-v", 1, "-x", 1)
    assert run.returncode == EXIT_BAD_INPUT and "hellaswag_val.bin" in run.stderr and "get.py" not in run.stderr


def test_help_says_what_a_recipe_is_and_what_can_be_set(root):
    said = recipe(root, "gpt2_774M", "--help").stdout
    assert "GPT-2 774M on 150B tokens of FineWeb" in said and "TRAINER" in said and "data/get.py" in said
    assert "OPTIONS=(" not in said and "#" not in said and "shellcheck" not in said


def test_recipes_call_names_that_data_get_knows():
    get = ROOT / "data" / "get.py"
    if not get.exists():
        pytest.skip("data/get.py is not there")
    listed = call(ROOT, get, expect=0).stdout
    for corpus in [row[-1] for row in RECIPES.values()] + [row[2] for row in AFTER_GPT2.values()]:
        assert f" {corpus} " in listed


def test_recipes_are_executable_and_short(root):
    for name in [*RECIPES, *{words[0] for words in AFTER_GPT2}]:
        path = root / "scripts" / f"run_{name}.sh"
        assert os.access(path, os.X_OK)
        assert sum(not line.startswith("#") for line in path.read_text().splitlines()) <= 10
