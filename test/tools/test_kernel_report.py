"""dev/kernel_report.py: a hot kernel that spills fails the report, one that may spill does so within its limit; so do
kernels that no test ran, and launches that a GPU would refuse."""
import sys

from runs import ROOT, call

PTXAS = """ptxas info    : Compiling entry function '{name}' for 'sm_{arch}'
ptxas info    : Function properties for {name}
    {spill} bytes stack frame, {spill} bytes spill stores, {spill} bytes spill loads
ptxas info    : Used {registers} registers, used 1 barriers, 512 bytes smem
"""
PTX = ".visible .entry {name}(\n\t.param .u64 {name}_param_0\n)\n.maxntid {bounds}, 1, 1\n{{\n\tret;\n}}\n"


def report(tmp_path, *kernels, registers=40, options=()):
    path = tmp_path / "a.ptxas"
    path.write_text("".join(PTXAS.format(name=name, arch=arch, spill=spill, registers=registers)
                            for name, arch, spill in kernels))
    result = call(sys.executable, ROOT / "dev" / "kernel_report.py", *options, path)
    return result.returncode, result.stdout, result.stderr


def report_launches(tmp_path, *launches, arch=90, registers=40, bounds=1024):
    """adamw_kernel, with 512 bytes of static shared memory, and launches as (architecture, threads, dynamic bytes)."""
    (tmp_path / "ran").mkdir(exist_ok=True)
    for i, (ran_on, threads, dynamic) in enumerate(launches):
        (tmp_path / "ran" / f"test_{i}").write_text(f"a {ran_on} adamw_kernel 3 {threads} {dynamic}\n")
    (tmp_path / f"a.compute_{arch}.ptx").write_text(PTX.format(name="adamw_kernel", bounds=bounds))
    return report(tmp_path, ("adamw_kernel", arch, 0), registers=registers, options=("--ran", tmp_path / "ran"))


def test_kernels_are_listed_by_architecture_and_none_is_no_success(tmp_path):
    code, out, _ = report(tmp_path, ("adamw_kernel", 80, 0), ("adamw_kernel", 90, 0))
    line = next(line for line in out.splitlines() if line.startswith("adamw_kernel"))
    assert code == 0 and line.split()[1:] == ["512", "40", "40"]
    assert report(tmp_path)[0] != 0


def test_a_spill_fails_and_names_the_kernel_unless_it_may_spill_so_much(tmp_path):
    code, _, err = report(tmp_path, ("adamw_kernel", 80, 0), ("gelu_kernel", 90, 16))
    assert code == 1 and "gelu_kernel" in err and "adamw_kernel" not in err
    assert [report(tmp_path, ("step_control_kernel", 80, spill))[0] for spill in (104, 256)] == [0, 1]


def test_launches_that_fit_are_listed_with_their_programs(tmp_path):
    code, out, _ = report_launches(tmp_path, (90, 256, 0), (90, 128, 1024))
    assert code == 0 and " 256 threads +   1024 bytes  test_0, test_1" in out


def test_a_kernel_that_no_test_ran_fails(tmp_path):
    code, _, err = report_launches(tmp_path)
    assert code == 1 and "adamw_kernel: not run by any test" in err


def test_static_and_dynamic_shared_memory_must_fit_the_gpu(tmp_path):
    assert report_launches(tmp_path, (75, 256, 65536 - 512), arch=75)[0] == 0
    code, _, err = report_launches(tmp_path, (75, 256, 65536), arch=75)
    assert code == 1 and "512 static + 65536 dynamic bytes of shared memory, sm_75 has 65536" in err


def test_a_launch_on_a_gpu_with_less_shared_memory_counts_where_none_was_recorded(tmp_path):
    assert report_launches(tmp_path, (90, 256, 200 << 10), arch=75)[0] == 0
    assert report_launches(tmp_path, (90, 256, 227 << 10), arch=100)[0] == 1


def test_registers_must_be_enough_for_all_threads(tmp_path):
    assert report_launches(tmp_path, (90, 1024, 0), registers=64)[0] == 0
    code, _, err = report_launches(tmp_path, (90, 1024, 0), registers=65)  # 72 are taken
    assert code == 1 and "1024 threads of 65 registers on sm_90: 73728 of 65536" in err
    assert report_launches(tmp_path, (90, 1000, 0), registers=65)[0] == 1  # by whole warps


def test_a_block_larger_than_its_launch_bounds_fails(tmp_path):
    code, _, err = report_launches(tmp_path, (90, 256, 0), bounds=128)
    assert code == 1 and "256 threads, __launch_bounds__ says 128" in err


CUOBJDUMP = """#!/bin/sh
cat <<'CODE'
		Function : _kernel
        /*0000*/                   LDC R1, c[0x0][0x28] ;      /* 0x1 */
        /*0010*/                   LDG.E R2, [R4] ;            /* 0x1 */
        /*0020*/              @!P0 BRA 0x50 ;                  /* 0x1 */
        /*0030*/                   ISETP.GT P1, PT, R2, R3, PT ;  /* 0x1 */
        /*0040*/                   FSEL R2, R2, -INF , P1 ;    /* 0x1 */
        /*0050*/                   MUFU.EX2 R2, R2 ;           /* 0x1 */
        /*0060*/              @P2 BRA 0x80 ;                   /* 0x1 */
        /*0070*/                   STG.E [R4], R2 ;            /* 0x1 */
        /*0080*/              @P3 BRA 0x10 ;                   /* 0x1 */
        /*0090*/                   EXIT ;                      /* 0x1 */
        /*00a0*/                   BRA 0xa0;                   /* 0x1 */
        /*00b0*/                   NOP;                        /* 0x1 */
CODE
"""


def test_instructions_of_an_element_are_those_of_the_loop_without_masks_and_fill_the_page(tmp_path, monkeypatch):
    """The loop has LDG, two branches, MUFU, STG and its own branch; of the mask nothing, of what stores everything."""
    (tmp_path / "cuobjdump").write_text(CUOBJDUMP)
    (tmp_path / "cuobjdump").chmod(0o755)
    page = tmp_path / "page.md"
    page.write_text("before\n<!-- made by dev/kernel_report.py -->\nold\n<!-- end of kernels -->\nafter\n")
    script = tmp_path / "run.py"
    script.write_text(f"import sys; sys.path.insert(0, {str(ROOT / 'dev')!r}); import kernel_report as k\n"
                      "k.ELEMENTS = [('loop', '_kernel', [(0, 2)], 4, 'logit'), ('whole', '_kernel', [(None, 4)], 8, 'x')]\n"
                      "k.main()\n")
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    result = call(sys.executable, script, "--elements", "--write", page, "a.o")
    assert result.returncode == 0, result.stderr
    lines = page.read_text().splitlines()
    assert lines[0] == "before" and lines[-1] == "after" and "old" not in lines
    assert [line.split(" | ")[2:5] for line in lines if line.startswith(("| loop", "| whole"))] == [
        ["4", "3.0", "0.50"], ["8", "2.0", "0.25"]]  # fmt: skip
