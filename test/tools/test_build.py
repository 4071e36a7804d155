"""What the Makefile asks of the compilers, read from the commands that make would run."""
import os
import re
import shutil

import pytest
from runs import ROOT, call

NVCC = shutil.which("nvcc", path=f"{os.environ['PATH']}:/usr/local/cuda/bin:{ROOT / '.cuda' / 'bin'}")
needs_nvcc = pytest.mark.skipif(not NVCC, reason="no nvcc")


def make(*arguments, **environment):
    kept = {key: value for key, value in os.environ.items() if key not in ("MAKEFLAGS", "MAKELEVEL", "MFLAGS", "WERROR")}
    return call("make", *arguments, cwd=ROOT, env={**kept, **environment})


def commands(*arguments):
    """The lines that `make` with these arguments would run, whatever is built."""
    result = make("-nB", "VERBOSE=1", *arguments)
    assert result.returncode == 0, result.stderr
    return result.stdout.splitlines()


def jobs(*arguments, **environment):
    """How many commands make would run at a time."""
    (flags,) = re.findall(r"^MAKEFLAGS = (.*)", make("-npq", *arguments, **environment).stdout, re.MULTILINE)
    (number,) = re.findall(r"-j(\d+)", flags) or [1]
    return int(number)


@pytest.mark.slow
def test_a_build_takes_all_cores_unless_j_says_otherwise():
    every = int(call("nproc").stdout)
    for goals in ([], ["train_gpt2"], ["train_gpt2", "data/prepare"], ["test-programs"]):
        assert jobs(*goals) == every
        assert [jobs("-j1", *goals), jobs("-j", "3", *goals), jobs(*goals, MAKEFLAGS="-j3")] == [1, 3, 3]
    for goals in (["clean", "all"], ["test"], ["check-gpu"]):  # in their order; these start make themselves
        assert jobs(*goals) == 1
    assert jobs("train_gpt2", MAKELEVEL="1") == 1  # below another make its -j counts
    failed = make("no_such_goal")
    assert failed.returncode == 2 and len(failed.stderr.splitlines()) == 1


@needs_nvcc
@pytest.mark.parametrize("archs, machine_code, ptx",
                         [("75", "75", ""), ("75 90", "75 90", "90"), ("80", "80", "80")])
def test_ptx_is_embedded_for_newer_gpus_but_none_of_sm_75(archs, machine_code, ptx):
    name = f"build/nvcc-{archs.replace(' ', '-')}/llmc/cuda/matmul_kernels.o"
    (line,) = [line for line in commands(f"ARCHS={archs}", name) if "-gencode" in line]
    codes = [word.split("code=")[1] for word in line.split() if "code=" in word]
    assert codes == [f"sm_{a}" for a in machine_code.split()] + [f"compute_{a}" for a in ptx.split()]


X86 = os.uname().machine == "x86_64"
CODES = ["avx512bf16", "avx512", "avx2", "baseline"] if X86 else ["baseline"]


def test_one_program_has_every_vector_code_and_is_of_the_mode_asked_for_last(tmp_path):
    """The real Makefile and compiler, over a trainer and a tool that know nothing but how they were compiled. Each copy
    of the vector code has a function of the same name; what is compiled once has no instructions of its own."""
    tells = f'''#include <stdio.h>
        {" ".join(f"extern const char *(*const cpu_code_{code})(void);" for code in CODES)}
        int main(void) {{
        {" ".join(f'printf("%s ", cpu_code_{code}());' for code in CODES)}
        #ifdef __AVX__
            printf("the program needs AVX ");
        #endif
        #ifdef __SANITIZE_ADDRESS__
            puts("sanitize");
        #else
            puts("release");
        #endif
        }}'''
    code = '''const char *name(void);
        extern const char *(*const CPU_CODE)(void);
        const char *(*const CPU_CODE)(void) = name;'''
    name = '''const char *name(void);
        const char *name(void) {
        #if defined(__AVX512BF16__)
            return "avx512bf16";
        #elif defined(__AVX512F__)
            return "avx512";
        #elif defined(__AVX2__)
            return "avx2";
        #else
            return "baseline";
        #endif
        }'''
    sources = {"train_gpt2.cu": tells, "data/shard.c": tells, "llmc/cuda/sizes.c": "extern int unused;",
               "llmc/cuda/tuning_cache.c": "extern int unused;",
               "llmc/cpu/code.c": code, "llmc/cpu/name.c": name,
               **{f"llmc/cpu/{once}.c": "extern int unused;" for once in ("cpu", "device", "onednn")}}
    for path, text in sources.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text)
    for path in ("Makefile", "llmc/cuda/cuda.mk", "dev/sim/sim.mk"):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / path, tmp_path / path)
    for mode in ("release", "sanitize", "release"):
        result = make("-C", str(tmp_path), "CUDA=none", f"MODE={mode}", "train_gpt2", "data/shard")
        assert result.returncode == 0, result.stderr
        for program in ("train_gpt2", "data/shard"):
            assert call(tmp_path / program).stdout == f"{' '.join(CODES)} {mode}\n", program


def test_only_the_tests_and_lint_make_warnings_errors():
    programs = ["train_gpt2", *(["train_gpt2cu", "train_gpt2sim"] if NVCC else [])]
    compiled = [line for line in commands(*programs) if " -c " in line and "-w" not in line.split()]
    assert len(compiled) > 50 and not any("-Werror" in line for line in compiled)
    compiled = [line for line in commands(*programs, "WERROR=1") if " -c " in line and "-w" not in line.split()]
    assert all("-Werror" in line for line in compiled)
    for target in ("test", "test-all", "test-sanitize", "lint"):
        made = [line for line in commands(target) if "--no-print-directory" in line]
        assert made and all("WERROR=1" in line for line in made), target
