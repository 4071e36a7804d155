"""What an option does is known to one table: settings that an optimizer does not read are named, a plan is checked against
the GPU that it is for, and a variable of the environment is refused as an option is."""
import itertools
import json
import os
import re

import pytest
from conftest import EXIT_BAD_INPUT, QUIET, TINY, checkpoints, refused, same_state, train

ONE = ["-e", "llama:L=1,C=32,NH=1,T=16", "-t", 16, "-b", 2, *QUIET, "--threads", 1, "--dtype", "fp32", "-l", "1e-2", "-x", 2, "-q", 1]
GROUPS = ("embedding", "head", "matrices", "vectors")
# A value that no table has; decay of vectors too.
SETTINGS = {"beta1": 0.5, "beta2": 0.6, "eps": 0.5, "decay": 0.7}
OPTIONS = {"beta1": "--beta1", "beta2": "--beta2", "eps": "--eps", "decay": "-c", "momentum": "--momentum"}


# Rules, not states: the other optimizers are AdamW in other formats.
@pytest.mark.parametrize("optimizer", ["adamw", "lion", "adafactor", "sgd", "muon"])
def test_a_setting_changes_a_group_or_is_named_as_without_effect(optimizer, data, tmp_path):
    def run(name, *more):
        said = train(*ONE, "--optimizer", optimizer, "-i", data.train, "-o", tmp_path / name, *more).stdout
        line = re.search("^options +without effect in this run: (.*)$", said, re.M)
        return checkpoints(tmp_path / name)[-1], line[1] if line else ""

    usual, said = run("usual", "--by-group", "vectors.decay=0.1")
    assert said == ""
    for group, (name, value) in itertools.product(GROUPS, SETTINGS.items()):
        part = f"{group}.{name}={value}"
        other, said = run(part, "--by-group", f"vectors.decay=0.1,{part}" if part[:8] != "vectors." else
                          f"{part},vectors.decay=0.1" if name != "decay" else part)
        assert same_state(usual, other) == (f"--by-group {part} (--optimizer {optimizer} has no use for it there)" in said), part
    for name, value in [*SETTINGS.items(), ("momentum", 0.3)]:
        other, said = run(name, OPTIONS[name], value, "--by-group", "vectors.decay=0.1")
        assert same_state(usual, other) == (f"{OPTIONS[name]} (--optimizer {optimizer} has no use for it)" in said), name


def test_a_part_that_is_given_twice_is_named(data):
    said = train(*TINY, *QUIET, *data.flags, "-x", 1, "--by-group", "vectors.decay=0.1,embedding.eps=1e-6,vectors.decay=0.2",
                 "-b", 2, "-b", 3).stdout
    assert "given twice, the last counts: --batch-size 4, then 2; --batch-size 2, then 3; " \
           "--by-group vectors.decay=0.1, then vectors.decay=0.2\n" in said
    result = train("--plan", "json", "-e", "d12", "-b", 2, "-b", 3, "--gpu", "h100")
    assert result.stderr == "given twice, the last counts: --batch-size 2, then 3\n" and json.loads(result.stdout)


# ------------------------------------------------------------------------------------------------------- another machine


PLAN = ["--plan", "-e", "d12", "-b", 4]


@pytest.mark.parametrize("gpu, flags, words", [
    ("t4", ["--dtype", "bf16"], "--dtype bf16: not available on T4; use fp16"),
    ("h100,t4", ["--dtype", "bf16"], "--dtype bf16: not available on T4; use fp16"),
    ("a100", ["--dtype", "bf16", "--fp8"], "--fp8: A100 80GB has no fp8 matmuls"),
    ("t4", ["--dtype", "fp16"], None),
    ("t4", ["--dtype", "auto"], None),
    ("t4", [], None),
    ("h100", ["--dtype", "fp16"], None),
    ("h100", ["--dtype", "bf16", "--fp8"], None),
    ("24G", ["--dtype", "fp16"], None),
])
@pytest.mark.parametrize("form", ["text", "json", "sizes"])
def test_a_plan_is_checked_against_the_gpu_that_it_is_for(form, gpu, flags, words, tmp_path):
    arguments = ["--plan", form, *PLAN[1:], "--gpu", gpu, *flags]
    if words:
        refused(*arguments, words=[words])
    elif form != "sizes" or (gpu != "24G" and "--fp8" not in flags):  # for which it has no rates
        train(*arguments)


# --------------------------------------------------------------------------------------------- variables of the environment


@pytest.mark.parametrize("name, good, bad", [
    *((f"PRETRAIN_{name}", ["0", "1", ""], ["yes", "2", "-1", " 1", "1x", "off"])
      for name in ("PROGRESS", "COMM_OVERLAP", "EARLY_LAUNCH", "GRAPHS", "NUMA", "TUNE")),
    ("PRETRAIN_COMM_TIMEOUT", ["1", "600", ""], ["0", "1e3", "10 s", "1000001", "99999999999999999999"]),
    ("PRETRAIN_CPU", ["baseline"], ["sse9"]),
    ("COMM_START_SECONDS", ["0.5", "60", ""], ["0", "soon", "1e9"]),
    ("COMM_STOP_SECONDS", ["0.5", "60", ""], ["-1", "5 s", "nan"]),
])
def test_a_variable_with_a_value_that_means_nothing_is_refused(name, good, bad, data):
    for value in good:
        train(*PLAN, "--gpu", "h100", env={**os.environ, name: value})
    for value in bad:
        result = train(*TINY, *QUIET, *data.flags, "-x", 1, env={**os.environ, name: value}, expect=None)
        assert result.returncode in (1, EXIT_BAD_INPUT) and len(result.stderr.splitlines()) == 1, result.stderr
        assert f"{name}={value}: " in result.stderr or f"{name} is '{value}'; expected seconds" in result.stderr


# ------------------------------------------------------------------------------------------------------ -e at a resume


def test_a_resume_takes_the_words_of_the_start_and_no_other_model(data, tmp_path):
    run, model, other = (tmp_path / name for name in ("run", "model", "other"))
    shape = ["-e", "qwen3:L=2,C=64,NH=2,T=32"]  # whose epsilon is 1e-6
    train(*shape, *TINY[2:], *QUIET, *data.flags, "-x", 1, "--export", model)
    config = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(json.dumps({**config, "rms_norm_eps": 1e-3}))
    train(*TINY[2:], *QUIET, *data.flags, "-e", model, "-x", 1, "-o", run)
    train("-e", model, "--export", other, "-x", 0, *QUIET)
    for step, words in enumerate((["-e", model], shape, ["-e", f"{model.parent}/./model"]), 2):
        assert f"step {step}/{step} " in train("-o", run, "-y", "-x", step, *words).stdout
    for wrong in (other, "runs/none", "org/model"):
        refused("-o", run, "-y", "-x", 9, "-e", wrong, words=[f"-e {wrong}: the run in ", "leave out -e"])
    refused("-o", run, "-y", "-x", 9, "-e", "qwen3:L=3,C=64,NH=2,T=32", words=["has a different shape (qwen3:L=2,C=64,NH=2"])
    (again,) = re.findall(r"different shape \((.*)\)", train("-o", run, "-y", "-e", "d6", expect=EXIT_BAD_INPUT).stderr)
    assert "step 5/5 " in train("-o", run, "-y", "-x", 5, "-e", again).stdout  # the words of the message
