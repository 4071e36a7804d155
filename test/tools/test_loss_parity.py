"""dev/bench/loss_parity.py on two configurations of a tiny model: what it runs, what it knows when it is called again,
and what its tables say; the search for a rate and the steps to a loss on curves that are known."""
import json
import math
import random
import sys

import pytest
from runs import ROOT, call, script

SCRIPT = ROOT / "dev/bench/loss_parity.py"
WORDS = "the of and to in that it was for on are with as his they at be this from have or by one had not but".split()
sys.path.insert(0, str(SCRIPT.parent))
import loss_parity as parity  # noqa: E402


def run(directory, *options):
    text = directory / "text" / "input.txt"
    if not text.exists():
        text.parent.mkdir()
        choose = random.Random(1)
        text.write_text(" ".join(choose.choice(WORDS) for _ in range(20000)))
    return call(sys.executable, SCRIPT, "--output", directory / "runs", "--results", directory, "--text", text,
                "--model=-e L=1,C=64,NH=1,T=32 -t 32 -b 4", "--steps", 5, "--seeds", 1, 2, "--tuning-seeds", 3,
                "--val-sequences", 4, "--only", "adamw-fp32,adamw-bf16-sr", *options)


@pytest.mark.slow
def test_two_configurations_are_tuned_compared_and_remembered_and_one_may_fail(tmp_path):
    result = run(tmp_path)
    assert result.returncode == 0, result.stdout + result.stderr
    (path,) = tmp_path.glob("loss_parity_*.json")
    report = json.loads(path.read_text())
    assert [entry["name"] for entry in report["results"]] == ["adamw-fp32", "adamw-bf16-sr"]
    for entry in report["results"]:
        rates = [float(rate) for rate in entry["tuning"]]
        assert all(second == pytest.approx(2 * first) for first, second in zip(rates, rates[1:]))
        assert rates[0] < entry["rate"] < rates[-1]  # the best has a worse one on both sides
        assert entry["tuning"][str(entry["rate"])] == min(entry["tuning"].values())
        assert set(entry["final"]) == {"1", "2"} and 0 < entry["final"]["1"] != entry["final"]["2"] < 6
        assert entry["curves"]["1"][0][0] == 0 and entry["curves"]["1"][-1] == [5, entry["final"]["1"]]
    page = path.with_suffix(".md").read_text()
    assert "| AdamW, fp32 |" in page and "| +0.0000 | +0.0 |" in page

    known = json.loads((tmp_path / "runs/runs.json").read_text())
    assert result.stdout.count(" runs made, ") == len(known)
    again = run(tmp_path)
    assert again.returncode == 0 and " runs made, " not in again.stdout  # nothing was run
    without = {key: run for key, run in known.items() if "--seed 2" not in key or "bf16" not in key}
    (tmp_path / "runs/runs.json").write_text(json.dumps(without))
    assert run(tmp_path).stdout.count(" runs made, ") == 1  # as after a kill: what is missing
    assert json.loads(path.read_text())["results"] == report["results"]

    # A configuration that fails is named, and the others are reported.
    (tmp_path / "runs/runs.json").write_text(json.dumps({key: run for key, run in known.items() if "-w 0" not in key}))
    result = run(tmp_path, "--trainer", script(tmp_path / "trainer", 'echo "no such precision" >&2\nexit 1'))
    assert result.returncode == 1
    assert "adamw-bf16-sr: exit code 1: no such precision" in result.stdout
    page = path.with_suffix(".md").read_text()
    assert "| AdamW, fp32 |" in page and "No figures for adamw-bf16-sr: exit code 1: no such precision" in page


def test_an_unknown_configuration_is_an_error_with_the_names(tmp_path):
    result = run(tmp_path, "--only", "adamw-fp32,sophia")
    assert result.returncode == 1 and "unknown sophia" in result.stderr


@pytest.mark.parametrize("best", [0.001, 0.004, 0.125])
def test_the_grid_grows_until_the_best_rate_is_inside(best):
    rate, tuning = parity.tune({"rate": 0.004}, lambda rate: abs(math.log2(rate / best)) ** 1.5)
    nearest = min((0.004 * 2.0 ** k for k in range(-9, 9)), key=lambda rate: abs(math.log2(rate / best)))
    assert rate == nearest and {rate / 2, rate, rate * 2} <= set(tuning)


def test_rates_that_diverge_are_the_worst():
    rate, tuning = parity.tune({"rate": 1.0}, lambda rate: math.inf if rate > 0.5 else 1 + abs(rate - 0.5))
    assert rate == 0.5 and tuning[1.0] == math.inf


def test_steps_to_a_loss_lie_on_the_lines_between_validations():
    curve = [[0, 5.0], [10, 3.0], [20, 3.5], [30, 2.0]]
    assert parity.first_step_below(curve, 4.0) == 5
    assert parity.first_step_below(curve, 3.0) == 10
    assert parity.first_step_below(curve, 2.75) == 25
    assert parity.first_step_below(curve, 1.9) is None


def made_up(name, finals, curve=()):
    curves = {str(seed): [[0, 5.0], *curve, [100, loss]] for seed, loss in enumerate(finals)}
    return {"name": name, "what": name, "rate": 1e-3, "final": {seed: c[-1][1] for seed, c in curves.items()},
            "curves": curves}


def test_the_sentences_say_what_the_figures_say():
    base = made_up("adamw-fp32", [2.00, 2.02, 2.01])
    others = [base, made_up("close", [2.01, 2.03, 2.02]), made_up("worse", [2.06, 2.05, 2.04]),
              made_up("muon", [1.90, 1.92, 1.91], curve=[[60, 2.1], [80, 1.95]]), made_up("muon-75", [2.0, 2.03, 2.0])]
    said = parity.verdicts(others, base, 100)
    assert said[0].startswith("AdamW fp32 itself varies by 0.0200 ")
    assert said[1] == "As good, within that: close (+0.0100), muon-75 (+0.0000)."
    assert said[2] == "Better by more than that: muon (-0.1000)."
    assert said[3] == "Worse by more than that: worse (+0.0400)."
    assert "in 72% of the steps" in said[4]  # at 73.3, 70.7 and 72 on the line from 2.1 at 60 to 1.95 at 80
    assert said[5].endswith("and reaches its loss in 2 of 3 seeds.")
    assert parity.verdicts([base, made_up("muon", [1.9, 2.1, 1.9])], base, 100)[-1].startswith("Muon does not reach")
