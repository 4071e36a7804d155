"""dev/bench/bench_gpu.py with the CPU trainer and tiny shapes: every section gives its figures, a lack of memory or of
time is said, and a report stands after every section."""
import json
import math
import os
import sys

import pytest
from runs import ROOT, call, script

BENCH_GPU = ROOT / "dev" / "bench" / "bench_gpu.py"
TORCH_GPU = ROOT / "dev" / "bench" / "torch_gpu.py"
sys.path.insert(0, str(BENCH_GPU.parent))
import bench_gpu  # noqa: E402
import peer  # noqa: E402


def bench(output, *options, trainer=ROOT / "train_gpt2"):
    result = call(sys.executable, BENCH_GPU, "--tiny", "--trainer", trainer, "--output", output, *options, timeout=900,
                  env={**os.environ, "PRETRAIN_SPEED": "on"})
    (path,) = output.glob("gpu_*.json")
    return result, json.loads(path.read_text()), path.with_suffix(".md").read_text()


def sections(report):
    return {row["name"]: row for row in report["sections"]}


@pytest.mark.slow
def test_every_section_passes_and_the_page_has_rows_with_time_utilisation_memory_and_command(tmp_path):
    result, report, page = bench(tmp_path)
    assert result.returncode == 0, result.stdout
    for name in ("tiny and its ops", "start", "tiny, 3 blocks", "recomputation", "micro-batch and context"):
        assert sections(report)[name]["result"] == "passed", sections(report)[name]["detail"]
    groups = [row["group"] for row in report["runs"]]
    assert groups.count("models") == 2 and groups.count("recompute") == 3 and groups.count("sweep") == 2
    assert [row["options"] for row in report["runs"] if row["group"] == "gelu"] == ["-ge 0", "-ge 1", "-ge 2"]
    for row in report["runs"]:
        assert row["ms"] > 0 and row["mfu"] > 0 and row["memory_peak"] > 0 and "--profile" in row["command"]
        assert row["tokens_per_second"] == pytest.approx(row["B"] * row["T"] / row["ms"] * 1e3)
        assert row["loader_wait"] >= 0 and row["profile"]["ops"] and row["device"]["matmul_flops"] > 0
    assert [row["name"] for row in report["start"]][:2] == ["without tuning cache", "with it"]
    assert all(0 < row["seconds"] < row["process_seconds"] + 1 for row in report["start"])
    for title in ("## Models", "## Recomputation", "## Op by op", "## Matmuls and attention", "## Sections"):
        assert title in page
    assert "between ops" in page and "| matmul_forward qkvw |" in page
    assert report["machine"]["cpu"] in page and report["command"] in page


def test_power_is_the_mean_between_two_readings_of_the_energy(tmp_path):
    reading = {"event": "gpu", "sm_clock_mhz": 1980, "memory_clock_mhz": 3201, "power_watts": 1, "temperature_c": 60}
    reading["throttle"] = ""
    lines = [dict(reading, step=step, time=step, energy_joules=5000 + 600 * step) for step in (6, 12, 40)]
    assert bench_gpu.sensors(tmp_path, 25) == {}
    (tmp_path / "main.log").write_text("".join(json.dumps(line) + "\n" for line in lines))
    found = bench_gpu.sensors(tmp_path, 25)  # step 40 is no longer one of those that count
    assert found["power_watts"] == 600 and bench_gpu.state(found) == "1980 MHz, 600 W, 60 C"


def test_the_largest_micro_batch_that_fits_is_found(tmp_path):
    # The stand-in has no room for more than 2 sequences.
    trainer = script(tmp_path / "trainer", f"""
        B=$(echo "$@" | sed 's/.* -b \\([0-9]*\\) .*/\\1/')
        [ $B -gt 2 ] && exec {ROOT / "train_gpt2"} "$@" -e d48 -b 60000 -t 1024  # a real refusal
        exec {ROOT / "train_gpt2"} "$@" """)
    _, report, _ = bench(tmp_path / "out", "--only", "ops|context", trainer=trainer)
    assert {row["B"] for row in report["runs"] if row["group"] == "models"} == {2}
    assert "B=8 T=16 skipped" in sections(report)["micro-batch and context"]["detail"]


def test_a_trainer_that_always_fails_fails_every_section_with_its_words(tmp_path):
    trainer = script(tmp_path / "trainer", "echo 'no CUDA device was found' >&2; exit 1")
    result, report, _ = bench(tmp_path / "out", "--only", "^tiny|start", trainer=trainer)
    rows = sections(report)
    assert result.returncode == 1 and rows["start"]["result"] == "skipped"
    for name in ("tiny and its ops", "tiny, 3 blocks"):
        assert rows[name]["result"] == "FAILED" and "no CUDA device" in rows[name]["detail"]


@pytest.mark.slow
@pytest.mark.parametrize("fault", ["kill -ABRT $$", "sleep 1000", "head -c 100000 /dev/urandom; exit 139"])
def test_a_trainer_that_breaks_with_cudnn_is_measured_with_our_kernels(tmp_path, fault):
    trainer = script(tmp_path / "trainer", f"""
        case "$* " in *"--attention own -ge 0 "*) exec {ROOT / "train_gpt2"} "$@" ;; esac
        {fault} """)
    for seconds in (40, 160):  # the shortest budget that leaves this machine time for both
        result, report, page = bench(tmp_path / f"out{seconds}", "--only", "^tiny", "--seconds", seconds, trainer=trainer)
        if report["runs"]:
            break
    rows = sections(report)
    assert result.returncode == 1
    assert rows["tiny and its ops"]["result"] == "FAILED"
    assert "it works with --attention own -ge 0" in rows["tiny and its ops"]["detail"]
    assert rows["tiny, 3 blocks"]["result"] != "FAILED"  # no second fault: the runs after it are all safe
    assert {row["options"] for row in report["runs"]} == {"--attention own -ge 0"}
    assert all(letter.isprintable() or letter == "\n" for letter in page)


def test_time_between_the_steps_does_not_go_unseen(tmp_path):
    assert bench_gpu.hidden_between_steps({"ms": 100.0, "boundary_ms": 100.9}) is None
    assert "102.00 ms from step to step" in bench_gpu.hidden_between_steps({"ms": 100.0, "boundary_ms": 102.0})


@pytest.mark.slow
def test_the_pytorch_step_has_our_losses_and_learns(tmp_path):
    """Eager, on a CPU; one batch over and over."""
    if call("/usr/bin/python3", "-c", "import torch").returncode != 0:
        pytest.skip("/usr/bin/python3 has no PyTorch: scripts/install_deps.sh test-all")
    _, report, page = bench(tmp_path / "out", "--only", "^tiny and its ops|^PyTorch, tiny$")
    row = report["torch"][0]
    assert row["refused"] is None and row["ratio"] > 0
    assert len(row["our_losses"]) == len(row["losses"]) == 3
    assert row["losses"][0] == pytest.approx(math.log(257), rel=0.02)
    assert f"{row['our_losses'][0]:.5f}" in page
    weights = tmp_path / "weights"
    model = "L=2,C=32,NH=2,V=61,T=16"
    call(ROOT / "train_gpt2", "-e", model, "-x", 0, "-v", 0, "-s", 0, "--export", weights, expect=0)
    shard = peer.write_shard(tmp_path / "shard_000.bin", 4 * 16 + 1, 61)
    command = ["/usr/bin/python3", TORCH_GPU, weights, shard, 4, 16, "--device", "cpu",
               "--dtype", "fp32"]
    row = json.loads(call(*command, "--steps", 60, expect=0).stdout)
    assert row["loss"] < 3.5 and row["tokens_per_second"] > 0  # ln 61 = 4.1 at the start
