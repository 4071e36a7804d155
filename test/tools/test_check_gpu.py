"""dev/bench/check_gpu.py with the CPU trainer in place of a GPU's: what it finds, what it skips, and that a report
stands whatever happens."""
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from runs import FAILS, PASSES, ROOT, SIMULATOR, call, script, wait_for

CHECK_GPU = ROOT / "dev" / "bench" / "check_gpu.py"
@pytest.fixture
def tests(tmp_path):
    """A folder of test programs that take no time."""
    for program in ("ops/test_layernorm", "ops/test_small", "ops/test_attention", "ops/test_collectives", "golden/test_golden"):
        script(tmp_path / "tests" / program, PASSES)
    return tmp_path / "tests"


def command(tmp_path, tests, *options, trainer=ROOT / "train_gpt2"):
    return [sys.executable, CHECK_GPU, "--tiny", "--tests", tests, "--output", tmp_path / "out", "--trainer", trainer, *options]


def check(tmp_path, tests, *options, trainer=ROOT / "train_gpt2", **environment):
    result = call(*command(tmp_path, tests, *options, trainer=trainer), env={**os.environ, **environment})
    assert result.returncode in (0, 1), result.stderr
    return result, report(tmp_path)


def report(tmp_path):
    (path,) = (tmp_path / "out").glob("check_*.json")
    assert path.with_suffix(".md").exists()
    return {row["name"]: row for row in json.loads(path.read_text())["checks"]}


def test_a_good_trainer_passes_what_this_machine_can_check(tmp_path, tests):
    result, rows = check(tmp_path, tests)
    assert result.returncode == 0, result.stdout
    passed = {name for name, row in rows.items() if row["result"] == "passed"}
    assert {"op tests", "golden test", "losses of 20 steps, fp32", "two runs, fp32", "resume, fp32",
            "GELU in epilogues, -ge 1", "GELU in epilogues, -ge 2", "attention tests, own", "recompute level 1", "recompute level 2", "recompute level 3", "profile", "NCCL, one GPU"} <= passed
    assert result.stdout.splitlines()[-1].startswith(f"{len(passed)} passed, 0 failed")
    assert rows["compute-sanitizer memcheck"]["result"] in ("passed", "skipped")


def test_a_failed_test_program_fails_the_check_and_is_named(tmp_path, tests):
    script(tests / "ops" / "test_small", PASSES + FAILS)
    result, rows = check(tmp_path, tests, "--only", "op tests")
    assert result.returncode == 1 and rows["op tests"]["result"] == "FAILED"
    assert "test_small: b" in rows["op tests"]["detail"]


def test_a_trainer_whose_losses_are_off_or_do_not_repeat_fails(tmp_path, tests):
    # The stand-ins train with another seed: another curve, and one that no reference has; or with another one each time.
    trainer = script(tmp_path / "trainer", f'exec {ROOT / "train_gpt2"} "$@" --seed 7')
    result, rows = check(tmp_path, tests, "--only", "losses.*fp32|runs, fp32", trainer=trainer)
    assert result.returncode == 1
    assert rows["losses of 20 steps, fp32"]["result"] == "FAILED" and rows["two runs, fp32"]["result"] == "passed"
    script(trainer, f'exec {ROOT / "train_gpt2"} "$@" --seed $$')
    _, rows = check(tmp_path, tests, "--only", "runs, fp32|resume, fp32", trainer=trainer)
    assert rows["two runs, fp32"]["result"] == "FAILED" and "differs" in rows["two runs, fp32"]["detail"]
    assert "resume, fp32" not in rows  # there is nothing to hold it against


def test_without_the_cpu_trainer_the_committed_losses_are_the_reference(tmp_path, tests):
    _, rows = check(tmp_path, tests, "--reference", tmp_path / "none", "--only", "losses")
    row = rows["losses of 20 steps, fp32"]
    assert row["result"] == "passed" and "expected_losses.json" in row["detail"]


@pytest.mark.slow
@pytest.mark.skipif(not SIMULATOR.exists(), reason="no CUDA toolkit: no simulated GPU")
def test_several_gpus_are_checked_where_they_are(tmp_path, tests):
    _, rows = check(tmp_path, tests, "--only", "GPU", trainer=SIMULATOR, SIM_GPUS="2")
    assert {name: row["result"] for name, row in rows.items()} == {"NCCL, one GPU": "passed", "2 GPUs": "passed"}
    assert "the same bits as on one, in bf16; divided: step" in rows["2 GPUs"]["detail"]
    assert rows["2 GPUs"]["detail"].count("ms not hidden") == 3
    script(tests / "ops" / "test_collectives", "exit 1")
    _, rows = check(tmp_path, tests, "--only", "GPU", trainer=SIMULATOR, SIM_GPUS="2")
    assert {name: row["result"] for name, row in rows.items()} == {"NCCL, one GPU": "FAILED", "2 GPUs": "FAILED"}


def test_what_could_be_built_is_checked(tmp_path, tests):
    # make: the trainer is there, of the tests not all.
    tools = script(tmp_path / "bin" / "make", 'case "$*" in *-k*) echo "fatal error: cmocka.h" >&2; exit 2;; esac')
    result, rows = check(tmp_path, tests, "--reference", "sh", "--build", "train_gpt2cu", "cuda-test-programs", "--only",
                         "build|op tests|losses.*fp32", PATH=f"{tools.parent}:{os.environ['PATH']}")
    assert result.returncode == 1 and "cmocka.h" in rows["build the tests"]["detail"]
    assert [rows[name]["result"] for name in ("build", "build the tests", "op tests", "losses of 20 steps, fp32")] == [
        "passed", "FAILED", "passed", "passed"]


def test_a_trainer_that_aborts_with_cudnn_is_checked_with_our_kernels(tmp_path, tests):
    trainer = script(tmp_path / "trainer", f"""
        case "$* " in *"--attention own -ge 0 "*) exec {ROOT / "train_gpt2"} "$@" ;; esac
        echo 'cudnn_plan.c:77: cudnnBackendExecute: CUDNN_STATUS_EXECUTION_FAILED' >&2; kill -ABRT $$ """)
    result, rows = check(tmp_path, tests, "--only", "losses|runs, fp32|resume, fp32", trainer=trainer)
    first = rows["losses of 20 steps, fp32"]
    assert result.returncode == 1 and first["result"] == "FAILED"
    assert "CUDNN_STATUS_EXECUTION_FAILED" in first["detail"] and "it works with --attention own" in first["detail"]
    assert all(rows[name]["result"] == "passed" for name in rows if name != "losses of 20 steps, fp32")
    assert "two runs, fp32" in rows and "resume, fp32" in rows


def test_both_attentions_are_tested_apart_and_leave_no_choices_behind(tmp_path, tests):
    script(tests / "ops" / "test_attention", f'echo "$TEST_ATTENTION $PRETRAIN_CACHE" >>{tmp_path}/seen\n' + PASSES)
    _, rows = check(tmp_path, tests, "--only", "op tests|attention tests")
    seen = [line.split(" ") for line in (tmp_path / "seen").read_text().splitlines()]
    assert [kind for kind, _ in seen] == ["", "own", "cudnn"]
    assert all(cache.startswith("/") and not cache.startswith(str(Path.home() / ".cache")) for _, cache in seen)
    script(tests / "ops" / "test_attention", 'echo "--attention $TEST_ATTENTION: cuDNN not found" >&2; exit 255')
    _, rows = check(tmp_path, tests, "--only", "attention tests")
    assert [row["result"] for row in rows.values()] == ["FAILED", "skipped"]


def test_sanitizers_see_one_dtype_of_four_programs_at_a_time(tmp_path, tests):
    script(tests / "ops" / "test_small", f'echo "$TEST_FILTER" >>{tmp_path}/seen\n' + PASSES)
    tool = script(tmp_path / "bin" / "compute-sanitizer", 'test "$TEST_ATTENTION" = own || exit 1; shift 6; exec "$@"')
    result, _ = check(tmp_path, tests, "--only", "sanitizer", PATH=f"{tool.parent}:{os.environ['PATH']}")
    assert result.returncode == 0, result.stdout
    assert (tmp_path / "seen").read_text().splitlines() == 4 * ["*_bf16"]


def test_the_report_goes_into_the_folder_that_the_environment_names(tmp_path, tests):
    options = command(tmp_path, tests, "--only", "op tests")
    at = options.index("--output")
    call(*options[:at], *options[at + 2:], env={**os.environ, "OUT": str(tmp_path / "out")}, expect=0)
    assert report(tmp_path)["op tests"]["result"] == "passed"


def lay(folder, *names):
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("")


@pytest.fixture
def gpu_libraries(tmp_path, monkeypatch):
    sys.path.insert(0, str(CHECK_GPU.parent))
    import gpu_libraries as module

    for variable in ("CPATH", "LIBRARY_PATH", "LD_LIBRARY_PATH", "CUDNN_LIBRARY", "NCCL_LIBRARY"):
        monkeypatch.setenv(variable, "")  # and put back after the test, whatever it sets
    monkeypatch.setenv("CUDA", str(tmp_path / "cuda"))
    monkeypatch.setattr(module, "FOLDER", tmp_path / "links")
    lay(tmp_path / "cuda", "bin/nvcc", "include/cublasLt.h", "lib64/libcublasLt.so", "lib64/libcublasLt.so.13",
        "lib64/libnvrtc.so.13")
    return module


WHEELS = ("nvidia/cudnn/include/cudnn.h", "nvidia/cudnn/include/cudnn_graph.h", "nvidia/cudnn/lib/libcudnn.so.9",
          "nvidia/nccl/include/nccl.h", "nvidia/nccl/lib/libnccl.so.2",
          "nvidia/cu13/include/cublasLt.h", "nvidia/cu13/include/cuda.h", "nvidia/cu13/lib/libcublasLt.so.13")


def test_cudnn_nccl_and_cublaslt_are_found_in_the_wheels(tmp_path, gpu_libraries):
    lay(tmp_path / "site", *WHEELS)
    for name in ("include/cublasLt.h", "lib64/libcublasLt.so", "lib64/libcublasLt.so.13"):
        (tmp_path / "cuda" / name).unlink()
    found = gpu_libraries.Libraries([tmp_path / "site"], "", [])
    links = {path.name: path.resolve() for kind in ("include", "lib") for path in (tmp_path / "links" / kind).iterdir()}
    assert set(links) == {"cudnn.h", "cudnn_graph.h", "nccl.h", "cublasLt.h", "libcublasLt.so", "libcublasLt.so.13",
                          "libnvrtc.so.13"}  # and not the wheel's cuda.h, which need not be that of this nvcc
    assert all(path.exists() for path in links.values())
    assert found.environment == {
        "CUDNN_LIBRARY": str(tmp_path / "site/nvidia/cudnn/lib/libcudnn.so.9"),
        "NCCL_LIBRARY": str(tmp_path / "site/nvidia/nccl/lib/libnccl.so.2"), "CPATH": str(tmp_path / "links/include"),
        "LIBRARY_PATH": str(tmp_path / "links/lib"), "LD_LIBRARY_PATH": str(tmp_path / "links/lib")}
    assert "site/nvidia/cudnn/lib" in found.report()
    os.environ.update(found.environment)  # a second look, with what the first one set
    again = gpu_libraries.Libraries([tmp_path / "site"], "", [])
    assert {**found.environment, **again.environment} == found.environment and "(CUDNN_LIBRARY)" in again.report()
    assert all(path.exists() for path in links.values()) and (tmp_path / "links/include/cudnn.h").exists()


def test_what_is_where_compiler_and_loader_look_is_left_there(tmp_path, gpu_libraries):
    lay(tmp_path / "usr", "cudnn.h", "nccl.h")
    loader = "".join(f"\t{name} (libc6,x86-64) => /usr/lib/{name}\n"
                     for name in ("libcudnn.so.9", "libnccl.so.2", "libcublasLt.so.13", "libnvrtc.so.13"))
    found = gpu_libraries.Libraries([], loader, [tmp_path / "usr"])
    assert found.environment == {} and "/usr/lib/libcudnn.so.9" in found.report()


def test_a_cudnn_of_the_loader_that_is_too_old_gives_way_to_a_newer_one_of_a_wheel(tmp_path, gpu_libraries):
    """Seen on a machine with cuDNN 9.14 from its distribution and 9.19 beside PyTorch."""
    lay(tmp_path / "usr", "cudnn.h", "nccl.h")
    lay(tmp_path / "site", "nvidia/cudnn/lib/libcudnn.so.9")
    wheel, old = tmp_path / "site/nvidia/cudnn/lib/libcudnn.so.9", tmp_path / "usr/libcudnn.so.9"
    for path, version in ((old, 91400), (wheel, 91900)):
        subprocess.run(["gcc", "-shared", "-x", "c", "-", "-o", path], check=True, text=True,
                       input=f"unsigned long cudnnGetVersion(void) {{ return {version}; }}")
    loader = f"\tlibcudnn.so.9 (libc6,x86-64) => {old}\n"
    found = gpu_libraries.Libraries([tmp_path / "site"], loader, [tmp_path / "usr"])
    assert found.environment["CUDNN_LIBRARY"] == str(wheel) and f"{old} is too old" in "; ".join(found.lines)
    wheel.unlink()
    found = gpu_libraries.Libraries([tmp_path / "site"], loader, [tmp_path / "usr"])
    assert "CUDNN_LIBRARY" not in found.environment  # the trainer says why it does not take this one


def test_a_missing_cudnn_fails_unless_it_is_meant(tmp_path, gpu_libraries):
    found = gpu_libraries.Libraries([], "", [])
    with pytest.raises(gpu_libraries.tools.Failed, match="cudnn.h, libcudnn.so.9.*--no-cudnn"):
        found.report()
    assert "libcudnn.so.9 not found" in found.report(without_cudnn=True)  # nor NCCL, which one GPU does not need
    (tmp_path / "cuda" / "bin" / "nvcc").unlink()
    with pytest.raises(gpu_libraries.tools.Failed, match="missing: nvcc"):
        gpu_libraries.Libraries([], "", []).report(without_cudnn=True)


def test_what_the_time_does_not_suffice_for_is_skipped_and_said(tmp_path, tests):
    result, rows = check(tmp_path, tests, "--seconds", 0)
    assert result.returncode == 1  # nothing was checked: that is no success
    assert all(row["result"] == "skipped" and "time" in row["detail"] for row in rows.values())


def test_a_run_that_is_killed_leaves_what_it_had_found(tmp_path, tests):
    trainer = script(tmp_path / "trainer", "sleep 60")
    process = subprocess.Popen([str(word) for word in command(tmp_path, tests, trainer=trainer)], start_new_session=True,
                               stdout=subprocess.DEVNULL)
    assert wait_for(lambda: list((tmp_path / "out").glob("*.md")) and "golden test" in report(tmp_path), process)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    assert report(tmp_path)["golden test"]["result"] == "passed"
