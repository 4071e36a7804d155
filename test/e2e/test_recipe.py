"""One dial: -d, --tokens, -l and -c auto from the size of the model, and --plan --hours, which chooses that size."""
import json
import re
import shlex

import pytest
from conftest import QUIET, checkpoints, events, same_state, train, write_state

# 2 x 12 x 64^2 weights in blocks, an 864th of d12's: 6e-4 * 864^(1/6) = 1.85e-3; Muon 0.025 / (0.2 * 8) = 0.0156 and
# 0.008 sqrt(12) = 0.0277. Of 5000 tokens 2^19 (5000 / (12 D_ref))^0.383 are 2^12.2, D_ref = 84,934,656 + 257 x 768.
TINY_RECIPE = ["-e", "L=2,C=64,NH=2,T=32", "-t", 32, "-b", 4, "--threads", 1, *QUIET]
MUON = ["--optimizer", "muon"]
STOP = ["--max-minutes", 0.0001]  # after one step


def options_of(run):
    return events(run, "run")[0]["options"]


def lines_of(said, name="recipe"):
    """The lines of a field of the header."""
    found = re.search(rf"^{name:<12}(.*\n(?: {{12}}.*\n)*)", said, re.M)
    return [line.strip() for line in found[1].splitlines()] if found else []


def test_the_header_says_which_rule_made_each_number(data, tmp_path):
    # 2 x 12 x 64^2 + 257 x 64 = 114,752 weights; D_ref has 84,934,656 + 257 x 768: 2^19 (1/741.9)^0.383 = 2^15.35.
    said = train(*TINY_RECIPE, *MUON, "-d", "auto", "--tokens", "auto", "-c", "auto", *STOP, *data.flags,
                 "-o", tmp_path / "run").stdout
    assert lines_of(said)[:4] == [
        "--tokens 1377024: 12 for each of 114.8K matrices of blocks and head (nanochat; --ratio changes it)",
        "-d 32768: 2^19 (D / D_ref)^0.383, to a power of two (nanochat; exponent: arXiv 2505.13738)",
        "-l 0.0156: 0.025 / (0.2 sqrt(C)) max(1, sqrt(batch / 2^19)) (modded-nanogpt; nanochat)",
        "--lr-embedding 0.0277: 0.008 sqrt(768 / C) max(1, sqrt(batch / 2^19)) (nanochat's head)"]
    # 43 steps: 3.5 / (0.0156 * 43) is above 1.
    assert lines_of(said)[4:] == [
        "--lr-vectors 0.015: 0.015 max(1, sqrt(batch / 2^19)) (modded-nanogpt)",
        "-c 1: 3.5 / (-l times steps), at most 1 (nanochat; arXiv 2405.13698)",
        "--by-group embedding.decay 0.01: nanochat's of its head"]
    assert "embedding learning rate 0.0277, weight decay 0.01\n" in said and "vectors learning rate 0.015\n" in said
    assert re.search(r"^step +1/43 ", said, re.M)
    options = options_of(tmp_path / "run")
    names = ("tokens", "total-batch", "learning-rate", "lr-embedding", "lr-vectors", "weight-decay", "by-group")
    chosen = [1377024, 32768, 0.0156, 0.0277, 0.015, 1, "embedding.decay=0.01"]
    assert [options[name] for name in names] == chosen
    state = json.loads((checkpoints(tmp_path / "run")[-1] / "trainer.json").read_text())
    assert [state["options"][name] for name in names] == chosen


def test_adamw_has_the_rate_of_its_size_alone(data, tmp_path):
    said = train(*TINY_RECIPE, "-x", 1, *data.flags, "-o", tmp_path / "run").stdout
    assert lines_of(said) == ["-l 0.00185: GPT-3's table 2.1; 6e-4 (N / 85M)^(-1/6) below 85M; N = 98.30K in blocks"]
    options = options_of(tmp_path / "run")
    assert (options["learning-rate"], options["lr-embedding"], options["weight-decay"]) == (0.00185, -1, 0.1)


@pytest.mark.parametrize("given, expected", [
    (["-d", 256], {"total-batch": 256, "tokens": 1377024, "learning-rate": 0.0156}),
    (["--tokens", 5000], {"tokens": 5000, "total-batch": 4096, "learning-rate": 0.0156}),  # 2^19 (5000 / 1.022e9)^0.383
    (["--ratio", 6], {"tokens": 688512, "total-batch": 32768}),  # the same share of D_ref
    (["-x", 3], {"max-steps": 3, "tokens": 0, "total-batch": 32768, "learning-rate": 0.0156}),
    (["-l", 2e-3], {"learning-rate": 2e-3, "lr-embedding": -1, "weight-decay": 1}),
    (["--lr-embedding", 2e-3], {"learning-rate": 0.0156, "lr-embedding": 2e-3, "lr-vectors": 0.015}),
    (["--lr-vectors", 2e-3], {"lr-embedding": 0.0277, "lr-vectors": 2e-3}),
    (["--by-group", "embedding.decay=0.3"], {"by-group": "embedding.decay=0.3", "weight-decay": 1}),
    (["-c", 0.2], {"weight-decay": 0.2, "learning-rate": 0.0156}),
])
def test_each_number_can_be_given_alone(data, tmp_path, given, expected):
    auto = [word for option in ("-d", "--tokens", "-c") for word in (option, "auto") if option != given[0]]
    if given[0] == "--ratio":
        auto = ["-d", "auto"]
    train(*TINY_RECIPE, *MUON, *auto, *given, *STOP, *data.flags, "-o", tmp_path / "run")
    options = options_of(tmp_path / "run")
    assert {name: options[name] for name in expected} == expected


def test_without_auto_there_is_no_recipe(data):
    assert "recipe" not in train(*TINY_RECIPE, "-l", "1e-3", "-x", 1, *data.flags).stdout
    assert "recipe" not in train("--plan", "-e", "d12", "-d", 524288, "--tokens", "1e9", "--gpu", "h100").stdout


def test_a_step_is_a_multiple_of_the_micro_batches_of_all_processes(data, tmp_path):
    def planned(*flags):
        return json.loads(train("--plan", "json", "-e", "d12", "-d", "auto", *flags).stdout)["devices"]

    assert planned("-b", 12, "--gpus", 2, "--gpu", "h100")[0]["limit"]["step_tokens"] == 21 * 2 * 12 * 1024  # 21.3
    assert [512 % device["batch_size"] for device in planned("-b", "auto", "--gpu", "rtx4090,a100-40,h200")] == [0] * 3
    train(*TINY_RECIPE, *MUON, "-b", "auto", "-d", "auto", "--tokens", 5000, *STOP, *data.flags, "-o", tmp_path / "run")
    options = options_of(tmp_path / "run")
    assert options["total-batch"] == 4096 and 128 % options["batch-size"] == 0


def test_a_resume_keeps_the_numbers_of_the_first_start(data, tmp_path):
    auto = [*TINY_RECIPE, *MUON, "-d", "auto", "--tokens", 7000, "-c", "auto", *data.flags]  # 2 steps
    train(*auto, "-o", tmp_path / "whole")
    train(*auto, "-o", tmp_path / "run", *STOP)
    first = options_of(tmp_path / "run")
    assert (first["total-batch"], first["learning-rate"], first["weight-decay"]) == (4096, 0.0156, 1)
    said = train("-o", tmp_path / "run", "-y").stdout
    assert "resuming after step 1" in said and "recipe" not in said and "step 2/2 " in said
    for event in events(tmp_path / "run", "run"):
        assert {**event["options"], "directory": ""} == {**first, "directory": ""}
    assert same_state(checkpoints(tmp_path / "whole")[-1], checkpoints(tmp_path / "run")[-1])
    said = train(*auto, "-o", tmp_path / "run", "-y").stdout  # auto again
    assert "done        nothing to do" in said and "recipe" not in said and "(was" not in said
    said = train(*auto[:-8], *data.flags, "-d", "auto", "-o", tmp_path / "run", "-y", "--tokens", 16000, "-c", 0.5).stdout
    assert "--tokens 16000 (was 7000)" in said and "step 4/4 " in said and "recipe" not in said
    assert "--weight-decay 0.5 (was 1)" in said and "--learning-rate" not in said and "--total-batch" not in said
    said = train(*TINY_RECIPE, "--ratio", 1, "-o", tmp_path / "run", "-y", *STOP).stdout
    assert lines_of(said) == ["--tokens 114752: 1 for each of 114.8K matrices of blocks and head (nanochat; --ratio changes it)"]
    assert re.search(r"^step +5/29 ", said, re.M)


def test_a_checkpoint_of_an_earlier_version_keeps_its_rate(data, tmp_path):
    train(*TINY_RECIPE, "-l", "6e-4", "-x", 2, *data.flags, "-o", tmp_path / "run")
    (checkpoint,) = checkpoints(tmp_path / "run")
    state = json.loads((checkpoint / "trainer.json").read_text())
    state["options"]["learning-rate"] = -1  # auto
    write_state(checkpoint, state)
    said = train("-o", tmp_path / "run", "-y", "-x", 4).stdout
    assert "steps to 0.0006," in said and "recipe" not in said


def test_a_plan_shows_what_auto_stands_for():
    said = train("--plan", "-e", "qwen3:d24", *MUON, "-d", "auto", "--tokens", "auto", "-c", "auto", "--gpu", "h100",
                 "-b", "auto", "-r", "auto").stdout
    assert lines_of(said)[0].startswith("--tokens 4316934144: 12 for each of 359.7M matrices")
    for line in ("recipe      -d 1048576: ", "recipe      -l 0.00552: ", "recipe      --lr-embedding 0.0098: ",
                 "recipe      --lr-vectors 0.0212: ", "recipe      -c 0.154: ", "1048576 tokens a step, 4117 steps: 4.317B tokens"):
        assert line in said
    assert re.search(r"predicted \d+h\d\dm\n", said)


def seconds_of(text):
    return sum(float(n) * {"d": 86400, "h": 3600, "m": 60, "s": 1}[unit] for n, unit in re.findall(r"([\d.]+)([dhms])", text))


@pytest.mark.parametrize("gpu, hours, flags", [("rtx4090", 10, []), ("h100", 24, ["-e", "d12"]), ("a100-40", 3, ["-e", "llama:d6,V=8192"]),
                                               ("rtx4090", 10, ["--ratio", 40, "--optimizer", "adamw"])])
def test_the_largest_size_that_fits_in_the_time_is_named_and_the_command_for_it(gpu, hours, flags):
    said = train("--plan", "--gpu", gpu, "--hours", hours, *flags).stdout
    assert said.startswith("largest "), "the numbers of the size are in its command, not those of the size that stands for the family"
    rows = re.findall(r"^largest  (=>|  ) (\S+) +([\d.]+[KMB]) +([\d.]+[KMB]) +(\d+)  -b (\d+) -r (\S+) +([\d.]+[KM])  (\S+)$", said, re.M)
    (pick,) = (i for i, row in enumerate(rows) if row[0] == "=>")
    times = [seconds_of(row[-1]) for row in rows]
    assert times == sorted(times) and len(rows) == 5 and pick == 2
    assert times[pick] <= hours * 3600 < times[pick + 1]
    assert ("half the limit of the datasheet" in said) == (gpu == "rtx4090")
    command = said.splitlines()[-1].split("./train_gpt2cu ")[1]
    options = dict(re.findall(r"-(-?[\w-]+) ('[^']*'|\S+)", command))
    assert options["e"] == rows[pick][1] and (options["d"], options["b"], options["r"]) == ("auto",) * 3
    assert ("-ratio" in options) == ("--ratio" in flags) and ("tokens" in command) == ("--ratio" not in flags)
    # The command, as a plan, takes that long.
    again = json.loads(train("--plan", "json", "--gpu", gpu, *shlex.split(command)).stdout)
    (device,) = again["devices"]
    predicted = device["predicted"]["step_seconds"] if gpu != "rtx4090" else [2 * device["limit"]["step_seconds"]]
    assert predicted[0] * device["limit"]["steps"] == pytest.approx(times[pick], rel=0.02)


def test_time_beyond_the_largest_and_of_several_gpus():
    said = train("--plan", "--gpu", "h100", "--hours", 1e5, "--gpus", 8, "--tokens", "1e11").stdout
    assert "=> qwen3:L=48,C=3072" in said and "--gpus 8" in said and "fineweb-100B-gpt2" in said
