"""scripts/kernel_report.py: a hot kernel that spills fails the report, one that may spill does so within its limit."""
import os
import subprocess
import sys

REPORT = os.path.abspath(os.path.join(os.path.dirname(__file__), "..", "..", "scripts", "kernel_report.py"))
PTXAS = """ptxas info    : Compiling entry function '{name}' for 'sm_{arch}'
ptxas info    : Function properties for {name}
    {spill} bytes stack frame, {spill} bytes spill stores, {spill} bytes spill loads
ptxas info    : Used 40 registers, used 1 barriers, 512 bytes smem
"""


def report(tmp_path, *kernels):
    path = tmp_path / "a.ptxas"
    path.write_text("".join(PTXAS.format(name=name, arch=arch, spill=spill) for name, arch, spill in kernels))
    result = subprocess.run([sys.executable, REPORT, str(path)], capture_output=True, text=True)
    return result.returncode, result.stdout, result.stderr


def test_kernels_without_spills_are_listed_by_architecture(tmp_path):
    code, out, _ = report(tmp_path, ("adamw_kernel", 80, 0), ("adamw_kernel", 90, 0))
    line = next(line for line in out.splitlines() if line.startswith("adamw_kernel"))
    assert code == 0 and line.split()[1:] == ["512", "40", "40"]


def test_a_spill_fails_and_names_the_kernel(tmp_path):
    code, _, err = report(tmp_path, ("adamw_kernel", 80, 0), ("gelu_kernel", 90, 16))
    assert code == 1 and "gelu_kernel" in err and "adamw_kernel" not in err


def test_a_kernel_that_may_spill_has_a_limit(tmp_path):
    assert report(tmp_path, ("step_control_kernel", 80, 104))[0] == 0
    assert report(tmp_path, ("step_control_kernel", 80, 256))[0] == 1


def test_files_without_kernels_are_no_success(tmp_path):
    assert report(tmp_path)[0] != 0
