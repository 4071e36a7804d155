"""What the Makefile asks of the compilers, read from the commands that make would run."""
import os
import re
import shutil

import pytest
from runs import ROOT, call, script

NVCC = shutil.which("nvcc", path=f"{os.environ['PATH']}:/usr/local/cuda/bin:{ROOT / '.cuda' / 'bin'}")
needs_nvcc = pytest.mark.skipif(not NVCC, reason="no nvcc")

X86 = os.uname().machine == "x86_64"
CODES = ["amx", "avx512bf16", "avx512", "avx2", "baseline"] if X86 else ["baseline"]


def make(*arguments, timeout=300, **environment):
    of_make = ("MAKEFLAGS", "MAKELEVEL", "MFLAGS", "MAKEOVERRIDES", "WERROR", "MODE", "CFLAGS", "CPPFLAGS", "LDFLAGS")
    kept = {key: value for key, value in os.environ.items() if key not in of_make}
    return call("make", *arguments, cwd=ROOT, timeout=timeout, env={**kept, **environment})


def commands(*arguments, **environment):
    """The lines that `make` with these arguments would run, whatever is built."""
    result = make("-nB", "VERBOSE=1", *arguments, **environment)
    assert result.returncode == 0, result.stderr
    return result.stdout.splitlines()


def jobs(*arguments, **environment):
    """How many commands make would run at a time."""
    (flags,) = re.findall(r"^MAKEFLAGS = (.*)", make("-npq", *arguments, **environment).stdout, re.MULTILINE)
    (number,) = re.findall(r"-j(\d+)", flags) or [1]
    return int(number)


def refusal(*arguments, **environment):
    """What make says when it refuses before it runs anything."""
    result = make("-n", *arguments, **environment)
    assert result.returncode == 2 and not result.stdout and len(result.stderr.splitlines()) == 1
    return re.fullmatch(r"\S+:\d+: \*\*\* (.*)\.  Stop\.\n", result.stderr)[1]


@pytest.mark.parametrize("variable, expected", [
    ("MODE=realease", "expected one of: release sanitize coverage tsan msan"),
    ("MODE=release sanitize", "expected one of: release sanitize coverage tsan msan"),
    ("WERROR=yes", "expected one of: 0 1"),
    ("CUDA=/nowhere", "there is no /nowhere/bin/nvcc; expected the directory of a CUDA toolkit or none"),
    ("MPICC=no-mpicc", '"no-mpicc -show" says nothing; MPICC=none builds without MPI'),
    ("CC=no-such-cc", "no such compiler; make deps installs gcc")])
def test_an_unknown_value_of_a_build_variable_is_refused_with_those_there_are(variable, expected):
    name, _, value = variable.partition("=")
    assert refusal(variable) == f"{variable}: {expected}"
    assert refusal(**{name: value}) == f"{variable} in the environment: {expected}"


def test_variables_of_the_command_line_are_known_and_have_known_values():
    for variable in ("VERBOSE=yes", "LIBRARIES=all", "BACKEND=gpu"):
        assert refusal(variable).startswith(f"{variable}: expected one of: ")
    assert refusal("ARCH=90").startswith("ARCH=90: there is no such variable; there are ARCHS BACKEND ")
    if NVCC:
        assert re.fullmatch(r"ARCHS=8\.6: expected some of: .*\b90\b.*", refusal("ARCHS=8.6"))
        assert re.fullmatch(r"SIM_ARCHS=99: expected some of: .*\b90\b.*", refusal("SIM_ARCHS=99"))


def test_common_names_in_the_environment_mean_nothing_to_make():
    common = dict(VERBOSE="9", SECONDS="never", BACKEND="gpu", LIBRARIES="x", BUILD="/tmp", GPU_ARCHS="1", RUNS="x",
                  READERS="x", SEED="x", NICE="x", V="1", OUT="x", TEXT="x", FLAGS="-O0", LINK="ld", LIBS="-lx")
    for goal in ("train_gpt2", "fuzz"):
        plain = sorted(commands(goal))
        assert sorted(commands(goal, **common)) == plain
        assert sorted(commands(goal, MODE="", ARCHS="")) == plain  # empty is as good as not set


CHANGES_RESULTS = ["-ffast-math", "-Ofast", "-funsafe-math-optimizations", "-fassociative-math", "-freciprocal-math",
                   "-ffinite-math-only", "-fno-signed-zeros", "-mfpmath=387", "-fsingle-precision-constant"]


def test_flags_that_change_results_are_refused_wherever_they_come_from():
    for variable in ("CFLAGS", "CPPFLAGS", "LDFLAGS", "LDLIBS"):
        for flag in CHANGES_RESULTS:
            assert refusal(f"{variable}=-g {flag}") == f"{variable}=-g {flag}: results change with {flag}; leave it out"
            assert "in the environment: results change" in refusal(**{variable: flag})
    assert "results change with -ffast-math" in refusal("LDFLAGS=-Wl,-s,-ffast-math")
    assert "results change with -ffast-math" in refusal("CC=gcc -ffast-math")
    for flag in ("--use_fast_math", "-use_fast_math", "-ftz=true", "--prec-div=false", "-prec-sqrt=false", "-fmad=false"):
        for variable in ("NVCC_APPEND_FLAGS", "NVCC_PREPEND_FLAGS"):
            assert f"results change with {flag}" in refusal(**{variable: flag})
    assert not make("-n", "help", CFLAGS="-ffast-math").returncode  # where nothing is compiled


NUMBERS = """#include <stdio.h>
    #include <xmmintrin.h>
    float product(float a, float b, float c) { return a * b + c; }
    float sum(const float *x) { float s = 0; for (int i = 0; i < 64; i++) s += x[i] / 3.0f; return s; }
    int finite(float x) { return x == x && x - x == 0; }
    int main(void) { printf("%x", _mm_getcsr() & 0x8040); return 0; }"""


@pytest.mark.slow
@pytest.mark.skipif(not X86, reason="the control register of x86")
def test_the_users_flags_are_taken_and_ours_have_the_last_word(tmp_path):
    """The commands of the Makefile on a program that shows its code and whether denormals are switched off. A compiler
    that adds -ffast-math by itself is undone, too; -march=native does not change what a copy of the vector code has."""
    (tmp_path / "number.c").write_text(NUMBERS)
    fast = tmp_path / "fast-cc"
    fast.write_text('#!/bin/sh\nexec gcc -ffast-math -ffp-contract=fast "$@"\n')
    fast.chmod(0o755)

    def built(*variables):
        lines = commands(*variables, "CUDA=none", "MPICC=none", "build/release/shard")
        (compile_line,) = [line for line in lines if line.endswith("-c data/shard.c -o build/release/data/shard.o")]
        (link_line,) = [line for line in lines if " -o build/release/shard " in line]
        compiled = compile_line.replace("-MMD -MP -c data/shard.c", "-S number.c").replace("build/release/data/shard.o", "number.s")
        linked = re.sub(r"(?:build/release/\S+ )+-o build/release/shard", "number.s -o number", link_line)
        for line in (compiled.replace("-g1", "-g0").replace("-Wmissing-prototypes", ""), linked):
            result = call("bash", "-c", line, cwd=tmp_path)
            assert result.returncode == 0, result.stderr
        return (tmp_path / "number.s").read_text(), call("./number", cwd=tmp_path).stdout

    plain = built()
    assert plain[1] == "0"
    for variables in (["CFLAGS=-O0 -std=c99 -flto -ffp-contract=fast"], ["CPPFLAGS=-O1 -U_GNU_SOURCE"], ["LDFLAGS=-Wl,-O1"],
                      [f"CC={fast}"], ["LDLIBS=-lm"]):
        assert built(*variables) == plain, variables
    for variables in ([], ["CFLAGS=-march=native"], ["CFLAGS=-mavx512f -mavx512bf16"]):
        for code in CODES:
            name = f"build/release/llmc/cpu/{code}/matmul.o"
            (line,) = [line for line in commands(*variables, name) if line.endswith(name)]
            defined = call("bash", "-c", re.sub(r"-MMD.*", "-dM -E -x c /dev/null", line)).stdout
            found = [macro for macro in ("__AMX_BF16__", "__AVX512BF16__", "__AVX512F__", "__AVX2__") if f"#define {macro} " in defined]
            assert found == ["__AMX_BF16__", "__AVX512BF16__", "__AVX512F__", "__AVX2__"][CODES.index(code):], (code, variables)


def test_make_test_compiles_what_this_machine_runs_and_make_all_of_the_program():
    def compiled(lines):
        return {re.search(r" -c (\S+) ", line)[1]: line for line in lines if " -c " in line and "/llmc/cpu/" not in line}

    def codes(lines):
        return {code for code in CODES for line in lines if f" -o build/release/llmc/cpu/{code}/matmul.o" in line}

    quick, product = commands("quick-programs"), commands("all", "CUDA=none")
    assert codes(product) == set(CODES) >= codes(quick) >= {"baseline"}
    flags = set(open("/proc/cpuinfo").read().split())
    assert all((code in codes(quick)) == (code in flags) for code in CODES if code == "avx2")
    assert not any("nvcc" in line or "dev/sim" in line for line in quick)
    files = compiled(quick)
    assert " -O0 " in files["test/unit/test_plan.c"] and " -O3 " not in files["test/unit/test_plan.c"]
    for computes in ("test/reference/attention.c", "test/ops/test_attention.c", "llmc/model/model.c"):
        assert " -O3 " in files[computes] and " -O0 " not in files[computes]


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


def test_one_program_has_every_vector_code_and_is_of_the_mode_asked_for_last(tmp_path):
    """The real Makefile and compiler, over a trainer and a tool that know nothing but how they were compiled. Each copy
    of the vector code has a function of the same name; what is compiled once has no instructions of its own, and a tool
    needs no copy."""
    def tells(codes):
        return f'''#include <stdio.h>
        {" ".join(f"extern const char *(*const cpu_code_{code})(void);" for code in codes)}
        int main(void) {{
        {" ".join(f'printf("%s ", cpu_code_{code}());' for code in codes)}
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
        #if defined(__AMX_BF16__)
            return "amx";
        #elif defined(__AVX512BF16__)
            return "avx512bf16";
        #elif defined(__AVX512F__)
            return "avx512";
        #elif defined(__AVX2__)
            return "avx2";
        #else
            return "baseline";
        #endif
        }'''
    sources = {"train_gpt2.cu": tells(CODES), "data/shard.c": tells([]), "data/tool.c": "extern int unused;",
               "llmc/cpu/code.c": code, "llmc/cpu/name.c": name,
               **{f"llmc/cpu/{once}.c": "extern int unused;" for once in ("collectives_mpi", "cpu", "device", "host_memory", "onednn")}}
    for path, text in sources.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text)
    for path in ("Makefile", "llmc/cuda/cuda.mk", "dev/sim/sim.mk"):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / path, tmp_path / path)
    (tmp_path / "build" / "other" / "apt.conf.d").mkdir(parents=True)  # not a file of dependencies
    for mode in ("release", "sanitize", "release"):
        result = make("-C", str(tmp_path), "CUDA=none", f"MODE={mode}", "train_gpt2", "data/shard")
        assert result.returncode == 0, result.stderr
        assert call(tmp_path / "train_gpt2").stdout == f"{' '.join(CODES)} {mode}\n"
        assert call(tmp_path / "data" / "shard").stdout == f"{mode}\n"


def test_only_the_tests_and_lint_make_warnings_errors():
    programs = ["train_gpt2", *(["train_gpt2cu", "train_gpt2sim"] if NVCC else [])]
    compiled = [line for line in commands(*programs) if " -c " in line and "-w" not in line.split()]
    assert len(compiled) > 50 and not any("-Werror" in line for line in compiled)
    compiled = [line for line in commands(*programs, "WERROR=1") if " -c " in line and "-w" not in line.split()]
    assert all("-Werror" in line for line in compiled)
    for target in ("test", "test-all", "test-sanitize", "lint"):
        made = [line for line in commands(target) if "--no-print-directory" in line]
        assert made and all("WERROR=1" in line for line in made), target


@pytest.mark.parametrize("known, gpus, expected", [
    ("75 80 86 89 90 100 120", "61 86", "86"), ("75 80 90", "75 90 61", "75 90"), ("75 80 86 89 90 100 120", "70", ""),
    ("75 80 86 89 90 100 120", "103", "100"), ("75 80 86 89 90 100 120", "121 90", "90 120"), ("75 80 90", "103", "90"),
    ("75 80 90 100 103 120 121", "103 121", "103 121")])
def test_make_builds_for_the_gpus_of_the_machine_or_the_nearest_ones(tmp_path, known, gpus, expected):
    """The CPU trainer in any case; an old GPU beside others, or one that this nvcc does not know, is no error."""
    script(tmp_path / "bin" / "nvcc", f"printf 'compute_%s\\n' {known}")
    (tmp_path / "lib64").mkdir()
    (tmp_path / "lib64" / "libcudart_static.a").touch()
    lines = commands("all", f"CUDA={tmp_path}", f"GPU_ARCHS={gpus}")
    assert any("-o build/release/train_gpt2 " in line for line in lines)
    assert {arch for line in lines for arch in re.findall(r"code=sm_(\d+)", line)} == set(expected.split())
    assert bool(expected) == any("-o build/release-cuda-" in line for line in lines)
