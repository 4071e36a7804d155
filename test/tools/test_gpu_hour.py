"""dev/bench/gpu_hour.sh, rehearsed with the CPU trainer: every part on a machine where all is well, where tools are missing,
and where programs fail, hang or print garbage. A part always comes to its end, and the page says what happened."""
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from runs import PASSES, ROOT, call, script, wait_for
from tiny_run import bench_ops

GPU_HOUR = ROOT / "dev" / "bench" / "gpu_hour.sh"
TRAINER = ROOT / "train_gpt2"
FAULTS = {
    "fails": "echo 'no CUDA device was found' >&2; exit 1",
    "aborts": "echo 'CUDNN_STATUS_EXECUTION_FAILED' >&2; kill -ABRT $$",
    "hangs": "sleep 1000",
    "garbage": "head -c 300000 /dev/urandom",
}
PARTS = {"run": 12, "check": 20, "why": 10}  # sections of each, at least

sys.path.insert(0, str(GPU_HOUR.parent))
import gpu_hour  # noqa: E402


@pytest.fixture
def machine(tmp_path):
    """A toolkit, test programs, and a folder of stubs before everything else on the PATH."""
    for name in ("bin/nvcc", "include/cublasLt.h", "lib64/libcublasLt.so", "lib64/libcublasLt.so.13",
                 "lib64/libnvrtc.so.13"):
        script(tmp_path / "cuda" / name, "true")
    for program in ("ops/test_layernorm", "ops/test_attention", "ops/test_collectives", "golden/test_golden"):
        script(tmp_path / "tests" / program, PASSES)
    script(tmp_path / "bin" / "make", "true")
    return tmp_path


def command(machine, part, *options, trainer=TRAINER):
    return [GPU_HOUR, part, "--tiny", "--trainer", trainer, "--reference", "/nonexistent", "--tests", machine / "tests",
            "--output", machine / "out", "--program-of-ops", bench_ops() or "not built", *map(str, options)]


def hour(machine, part, *options, path=None, trainer=TRAINER, **environment):
    environment = {**os.environ, "CUDA": str(machine / "cuda"), "PATH": path or f"{machine}/bin:{os.environ['PATH']}",
                   **environment}
    result = call(*command(machine, part, *options, trainer=trainer), env=environment, timeout=600)
    assert "Traceback" not in result.stderr, result.stderr
    page = (machine / "out" / "verdict.md").read_text()
    assert page in result.stdout
    rows = {}
    if part != "verdict":
        report = json.loads((machine / "out" / f"{part}.json").read_text())
        rows = {row["name"]: row for row in report.get("sections") or report["checks"]}
    return result, rows, page


@pytest.mark.slow
def test_all_parts_pass_where_all_is_well_and_share_one_page(machine):
    assert bench_ops(), "bench_ops is not built: make test-programs"
    for part in ("run", "why", "check"):
        result, rows, page = hour(machine, part)
        assert result.returncode == 0, result.stdout
    assert "Nothing." in page and "did not run" not in page
    lines = {line.split(" | ")[0]: line.split(" | ") for line in page.splitlines()}
    for what in ("| tiny, tokens/s", "| start with it, s", "| ms: attention_backward qkv", "| ms: between ops",
                 "| the same with --attention own -ge 0"):
        assert lines[what][3] != "-" and lines[what][1] == "-"  # nothing was predicted for this machine
    assert len(page.splitlines()) < 70
    alone = json.loads((machine / "out" / "why.json").read_text())["alone"]
    own, cudnn, fast = ([row["op"] for row in alone if row["attention"] == kind] for kind in ("own", "cudnn", "fast"))
    assert own == cudnn and len(set(own)) == len(own) >= 22 and fast == ["attention backward, fast"]
    assert len(own) + len(cudnn) + 1 == len(alone) and all(row["seconds"] > 0 for row in alone)
    assert "## Ops alone" in (machine / "out" / "why.md").read_text()
    assert len(list((machine / "out").iterdir())) == 7  # three parts of two files, and the page
    # A page is made of whatever came back, at any later time.
    (machine / "out" / "why.json").write_text("\x00 damaged")
    _, _, page = hour(machine, "verdict")
    assert "| why | - | - | - | did not run |" in page and "| tiny, tokens/s" in page


@pytest.mark.slow
@pytest.mark.parametrize("part, fault", [
    *(("run", fault) for fault in FAULTS), ("check", "aborts"), ("why", "aborts")])
def test_a_part_outlives_a_trainer_that(machine, part, fault):
    trainer = script(machine / "trainer", FAULTS[fault])
    # What hangs has the whole time: looking for tools alone may take as long on a busy machine.
    more = ["--seconds", 20, "--only", "^(?!tools|libraries)"] if fault == "hangs" else []
    result, rows, page = hour(machine, part, *more, trainer=trainer)
    assert result.returncode == 1 and len(rows) >= PARTS[part] - (2 if more else 0)
    assert "FAILED" in {row["result"] for row in rows.values()} and f"- {part}, " in page
    assert not any(name.startswith(("tiny", "losses", "two runs")) and row["result"] == "passed"
                   for name, row in rows.items())
    assert all(letter.isprintable() or letter == "\n" for letter in page)


# What a broken feature looks like from outside, and the rung of the ladder that must find it.
BROKEN = {"cuDNN": 'case "$* " in *"--attention own "*) ;; *) broken "$@" ;; esac',
          "GELU in epilogues": 'case "$* " in *"-ge 0 "*) ;; *) broken "$@" ;; esac',
          "choices by measurement": '[ "$PRETRAIN_TUNE" = 0 ] || broken "$@"',
          "early launches": '[ "$PRETRAIN_EARLY_LAUNCH" = 0 ] || broken "$@"'}


@pytest.mark.slow
@pytest.mark.parametrize("feature, fault", [("cuDNN", "aborts"), ("GELU in epilogues", "wrong"),
                                            ("choices by measurement", "diverges"), ("early launches", "aborts")])
def test_a_broken_feature_is_found_and_nothing_but_it_is_switched_off(machine, feature, fault):
    seen = machine / "seen"
    broken = {"aborts": FAULTS["aborts"], "diverges": f'exec {TRAINER} "$@" -l 10 -u 0 --grad-clip 0',
              "wrong": f'exec {TRAINER} "$@" --seed 7'}[fault]
    trainer = script(machine / "trainer", f"""
        case "$*" in *--help*) exec {TRAINER} --help ;; esac
        echo "early=$PRETRAIN_EARLY_LAUNCH tune=$PRETRAIN_TUNE $*" >>{seen}
        broken() {{ {broken}; }}
        {BROKEN[feature]}
        exec {TRAINER} "$@" """)
    _, rows, page = hour(machine, "run", "--only", "first steps, |its ops", trainer=trainer)
    for name in gpu_hour.FEATURES:
        row = rows[f"first steps, {name}"]
        assert row["result"] == ("FAILED" if name == feature else "passed"), (name, row)
    detail = rows[f"first steps, {feature}"]["detail"]
    assert "off in all later runs" in detail and f"first steps, {feature}" in page
    assert {"aborts": "CUDNN_STATUS", "diverges": "differ", "wrong": "differ"}[fault] in detail
    assert rows["tiny and its ops"]["result"] == "passed" and "| tiny, tokens/s | - | - | -" not in page
    last = seen.read_text().splitlines()[-1] + " "
    off = {"cuDNN": "--attention own ", "GELU in epilogues": "-ge 0 ", "choices by measurement": "tune=0 ",
           "early launches": "early=0 "}  # fmt: skip
    assert [name for name, text in off.items() if text in last] == [feature]


# The steps succeed, and what they print is no training.
@pytest.mark.parametrize("what, words", [("nan", "losses are not finite"), ("elsewhere", "with new weights it should be near"),
                                         ("nothing", "it succeeded but logged 0 losses")])
def test_steps_that_compute_nothing_are_no_success(machine, what, words):
    losses = {"nan": "float('nan')", "elsewhere": "2.0"}.get(what)
    log = f"""python3 -c "
import json, sys
with open(sys.argv[1] + '/main.log', 'w') as f:
    print(json.dumps(dict(event='run', model=dict(V=257))), file=f)
    for step in range(5): print(json.dumps(dict(event='step', loss={losses})), file=f)
" "$o" """
    trainer = script(machine / "trainer", f"""
        case "$*" in *--help*) exec {TRAINER} --help ;; esac
        while [ $# -gt 0 ]; do [ "$1" = -o ] && o=$2; shift; done
        [ -n "$o" ] && mkdir -p "$o"
        {log if losses else "echo loss nan"}""")
    _, rows, _ = hour(machine, "run", "--only", "first steps, everything", trainer=trainer)
    assert words in rows["first steps, everything off"]["detail"]


def test_wrong_losses_are_the_first_words_of_the_page(machine):
    trainer = script(machine / "trainer", f'exec {TRAINER} "$@" --seed 7')
    _, rows, page = hour(machine, "run", "--only", "losses of 20", trainer=trainer)
    assert rows["losses of 20 steps"]["detail"].startswith("WRONG RESULTS, fp32")
    assert page.splitlines()[2].startswith("**WRONG RESULTS")


def test_memcheck_looks_at_our_kernels_alone(machine):
    script(machine / "bin" / "compute-sanitizer", f"""echo "$*" >{machine}/seen
        while [ "$1" != {TRAINER} ]; do shift; done; exec "$@" """)
    _, rows, _ = hour(machine, "run", "--only", "memcheck")
    assert rows["first steps under memcheck"]["result"] == "passed", rows
    seen = (machine / "seen").read_text()
    assert "--kernel-name kernel_substring=_kernel" in seen and "-ge 0" in seen


@pytest.mark.slow
def test_a_build_that_fails_leaves_what_is_there_to_be_tried(machine):
    script(machine / "bin" / "make", FAULTS["fails"] + "; exit 2")
    _, rows, _ = hour(machine, "run", "--only", "build|first steps, every")
    assert rows["build"]["result"] == "FAILED"
    assert rows["first steps, everything off"]["result"] == "passed"
    assert rows["build cuda-test-programs"]["result"] == "FAILED"


def test_what_is_missing_is_named(machine):
    """Neither compiler nor nvcc, no header, no library, no PyTorch."""
    for tool in ("bash", "sh", "dirname", "env", "git", "cat", "sed", "head", "kill"):
        found = [folder for folder in ("/usr/bin", "/bin") if Path(folder, tool).exists()]
        if found:
            (machine / "bare").mkdir(exist_ok=True)
            (machine / "bare" / tool).symlink_to(Path(found[0], tool))
    (machine / "bare" / "python3").symlink_to(sys.executable)
    result, rows, page = hour(machine, "run", "--only", "tools|libraries|build|memcheck", path=str(machine / "bare"),
                              CUDA=str(machine / "none"))
    assert result.returncode == 1
    for name in ("gcc not found", "make not found", "cmocka.h not found (dev/pack_deps.sh)", "ncu: not found"):
        assert name in rows["tools"]["detail"]
    assert "missing: nvcc" in rows["libraries"]["detail"] and "missing: nvcc" in page
    assert rows["build"]["result"] == "FAILED" and rows["first steps under memcheck"]["result"] == "skipped"


@pytest.mark.parametrize("part", PARTS)
def test_a_part_is_whole_without_what_is_missing(machine, part):
    """nvcc, cuDNN, the headers of cuBLASLt and cmocka, PyTorch: each is named, and everything else is done."""
    assert part != "why" or bench_ops(), "bench_ops is not built: make test-programs"
    (machine / "nothing").mkdir()
    (machine / "nothing" / "torch.py").write_text("raise ImportError('No module named torch')\n")
    (machine / "cuda" / "bin" / "nvcc").unlink()
    script(machine / "bin" / "make", """case "$*" in *-k*) echo 'fatal error: cmocka.h' ;; *) echo 'fatal error: cublasLt.h' ;; esac
        exit 2""")
    script(machine / "bin" / "gcc", "grep -q cmocka ${!#} && exit 1; exec /usr/bin/gcc \"$@\"")
    trainer = script(machine / "trainer", f"""
        case "$*" in *"--attention cudnn"*) echo '--attention cudnn: cuDNN not found' >&2; exit 1 ;; esac
        exec {TRAINER} "$@" """)
    result, rows, page = hour(machine, part, trainer=trainer, PYTHONPATH=str(machine / "nothing"))
    assert result.returncode == 1 and len(rows) >= PARTS[part]
    assert "fatal error: cublasLt.h" in rows["build"]["detail"] and "fatal error: cublasLt.h" in page
    if part == "check":
        assert "fatal error: cmocka.h" in rows["build the tests"]["detail"]
        done = ["op tests", "losses of 20 steps, fp32", "two runs, fp32", "resume, fp32"]
    else:
        assert "missing: nvcc" in rows["libraries"]["detail"] and "missing: nvcc" in page
        assert "cmocka.h not found" in rows["tools"]["detail"] and "PyTorch: not found" in rows["tools"]["detail"]
        done = ["tiny and its ops"] + (["ops alone", "start", "tiny, 3 blocks"] if part == "why" else ["GELU in epilogues"])
        missing = ["PyTorch, tiny", "first steps, cuDNN"] if part == "run" else ["kernels under ncu"]
        assert all(rows[name]["result"] == "skipped" for name in missing)
    assert all(rows[name]["result"] == "passed" for name in done), [rows[name] for name in done]


def test_packed_dependencies_are_used_and_a_damaged_folder_is_no_end(machine):
    seen = machine / "seen"
    script(machine / "bin" / "make", f'echo "$PACKED" >>{seen}')
    for text in ("export PACKED=here", "export PACKED=damaged; return 1"):
        (machine / "deps").mkdir(exist_ok=True)
        (machine / "deps" / "env.sh").write_text(text + "\n")
        hour(machine, "run", "--only", "^build$", DEPS=str(machine / "deps"))
    hour(machine, "run", "--only", "^build$", DEPS=str(machine / "nowhere"), PACKED="none")
    assert seen.read_text().split() == ["here", "damaged", "none"]


NCU = """==PROF== Connected to process 7
"ID","Kernel Name","Metric Name","Metric Unit","Metric Value"
"0","void layernorm_forward_kernel<__nv_bfloat16, (bool)0>(Forward)","gpu__time_duration.sum","nsecond","52,448"
"0","void layernorm_forward_kernel<__nv_bfloat16, (bool)0>(Forward)","gpu__dram_throughput.avg.pct_of_peak_sustained_elapsed","%","81.5"
"1","gelu_forward_kernel","gpu__time_duration.sum","ns","(!) n/a"
"""


def test_ncu_is_read_and_its_failures_are_said(machine):
    (machine / "ncu.csv").write_text(NCU)
    script(machine / "bin" / "ncu", f"cat {machine}/ncu.csv")
    _, rows, _ = hour(machine, "why", "--only", "its ops|ncu")
    assert rows["kernels under ncu"]["detail"] == "layernorm_forward_kernel 52.45 us, 81.5 % of memory"
    for fault, words in (("garbage", "no figures"), ("fails", "no CUDA device")):
        script(machine / "bin" / "ncu", FAULTS[fault])
        _, rows, _ = hour(machine, "why", "--only", "its ops|ncu")
        assert rows["kernels under ncu"]["result"] == "FAILED" and words in rows["kernels under ncu"]["detail"]


@pytest.mark.slow
def test_each_way_to_compute_attention_is_measured_in_the_simulator(machine):
    program, trainer = bench_ops("-sim"), ROOT / "train_gpt2sim"
    if not program or not trainer.exists():
        pytest.skip("the simulator's programs are not built")
    _, rows, _ = hour(machine, "why", "--only", "its ops|alone", "--program-of-ops", program, trainer=trainer,
                      SIM_CUDNN="1", SIM_CUBLASLT_ALGOS="all")
    assert rows["ops alone"]["result"] == "passed", rows["ops alone"]["detail"]
    report = json.loads((machine / "out" / "why.json").read_text())
    assert [row["op"] for row in report["alone"] if row["attention"] == "fast"] == ["attention backward, fast"]
    assert [row["attention"] for row in report["alone"] if row["op"] == "attention backward"] == ["own", "cudnn"]


def test_of_a_program_that_breaks_off_the_figures_so_far_are_kept(machine):
    first = '{"device": "x", "matmul_flops": 1e12, "copy_bandwidth": 0}'
    program = script(machine / "ops", f"""echo '{first}'; echo '{{"op": "qkv forward", "seconds": 0.5, "flops": 1e11, "bytes": 0}}'
        echo '{{"op": "att'; {FAULTS["aborts"]} """)
    _, rows, _ = hour(machine, "why", "--only", "its ops|alone", "--program-of-ops", program)
    assert "CUDNN_STATUS_EXECUTION_FAILED" in rows["ops alone"]["detail"]
    (row,) = json.loads((machine / "out" / "why.json").read_text())["alone"]
    assert row["of_matmul_rate"] == pytest.approx(0.2) and row["of_copy_rate"] is None


H200 = "echo NVIDIA H200, 580.1, 143771 MiB, 700 W, 1980 MHz, 3201 MHz"


def test_on_a_gpu_with_rates_every_row_has_its_prediction_beside_it(machine):
    script(machine / "bin" / "nvidia-smi", H200)
    _, rows, page = hour(machine, "run", "--only", "prediction|its ops")
    assert rows["prediction"]["result"] == "passed" and "tiny, 3 blocks: " in rows["prediction"]["detail"]
    cells = {line.split(" | ")[0]: line.strip("| ").split(" | ") for line in page.splitlines()}
    for what in ("tiny, tokens/s", "ms: matmul_backward_weight fcprojw", "ms: head_loss_backward", "ms: between ops"):
        predicted, _, measured, ratio, judgement = cells[f"| {what}"][1:6]
        assert float(predicted.replace(",", "")) > 0 and float(measured.replace(",", "")) >= 0 and float(ratio) >= 0
        assert judgement in ("below", "above", "as predicted")
    assert cells["| tiny, 3 blocks, tokens/s"][3:] == ["-", "-", "not measured"]
    # A plan that another checkout has left, or that is damaged, is as good as none.
    report = json.loads((machine / "out" / "run.json").read_text())
    for plans in ({"tiny": {}}, {"tiny": []}, [1], {"tiny": dict(report["plans"]["tiny"], devices=[])}):
        (machine / "out" / "run.json").write_text(json.dumps(dict(report, plans=plans)))
        _, _, page = hour(machine, "verdict")
        assert "| tiny, tokens/s | - | - | " in page


@pytest.mark.parametrize("fault", ["fails", "garbage"])
def test_without_a_plan_there_is_a_page_without_predictions(machine, fault):
    script(machine / "bin" / "nvidia-smi", H200)
    trainer = script(machine / "trainer", f"""case "$*" in *--plan*) {FAULTS[fault]} ;; esac; exec {TRAINER} "$@" """)
    _, rows, page = hour(machine, "run", "--only", "prediction|its ops", trainer=trainer)
    assert rows["prediction"]["result"] == "FAILED" and "no plan to predict from" in rows["prediction"]["detail"]
    assert "| tiny, tokens/s | - | - | " in page and "| ms: between ops | - | - | " in page


def test_a_measured_row_is_judged_by_the_range():
    row = gpu_hour.judged("x", [100.0, 90.0, 120.0], 95.0)
    assert row == ("x", "100", "90 to 120", "95", "0.95", "as predicted")
    assert gpu_hour.judged("x", [100.0, 120.0, 90.0], 80.0)[-2:] == ("0.80", "below")
    assert gpu_hour.judged("x", [100.0, 120.0, 90.0], 130.0)[-1] == "above"
    assert gpu_hour.judged("x", None, 1.0) == ("x", "-", "-", "1", "-", "")
    assert gpu_hour.judged("x", [1.0, 1.0, 1.0], None)[-3:] == ("-", "-", "not measured")


def test_a_part_that_is_killed_leaves_its_page(machine):
    trainer = script(machine / "trainer", FAULTS["hangs"])
    process = subprocess.Popen(command(machine, "run", trainer=trainer), stdout=subprocess.DEVNULL, start_new_session=True,
                               env={**os.environ, "CUDA": str(machine / "cuda")})
    assert wait_for((machine / "out" / "verdict.md").exists, process)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    assert "| run | " in (machine / "out" / "verdict.md").read_text()
