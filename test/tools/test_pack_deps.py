"""scripts/pack_deps.sh: what it packs is what a build then uses, headers and libraries alike."""
import os
import subprocess

from tiny_run import ROOT, script

PACK_DEPS = ROOT / "scripts" / "pack_deps.sh"
LIBRARIES = {"cjson": "cjson/cJSON.h", "xxhash": "xxhash.h", "cmocka": "cmocka.h"}
PROGRAM = """
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cjson/cJSON.h>
#include <xxhash.h>
#include <cmocka.h>
int main(void) {
    cJSON *json = cJSON_Parse("[1]");
    assert_int_equal(cJSON_GetArraySize(json), 1);
    cJSON_Delete(json);
    return XXH3_64bits("", 0) == 0;
}
"""


def pack(*arguments):
    return subprocess.run([PACK_DEPS, *map(str, arguments)], capture_output=True, text=True)


def shell(deps, command, cwd):
    """Runs a command with the packed folder's environment alone."""
    clean = {"PATH": os.environ["PATH"]}
    return subprocess.run(["bash", "-ec", f". {deps}/env.sh; {command}"], capture_output=True, text=True, cwd=cwd,
                          env=clean)


def test_a_program_is_built_and_runs_with_the_packed_files(tmp_path):
    packed = pack(tmp_path / "packed")
    assert packed.returncode == 0, packed.stderr
    deps = (tmp_path / "packed").rename(tmp_path / "elsewhere")  # it may be moved
    (tmp_path / "program.c").write_text(PROGRAM)
    built = shell(deps, "gcc -H program.c -o program -lcjson -lxxhash -lcmocka", tmp_path)
    assert built.returncode == 0, built.stderr
    used = [line.lstrip(". ") for line in built.stderr.splitlines() if line.startswith(".")]
    for header in LIBRARIES.values():
        assert [path for path in used if path.endswith("/" + header)] == [f"{deps}/include/{header}"]
    ran = shell(deps, "ldd program; ./program", tmp_path)
    assert ran.returncode == 0, ran.stdout
    for library in LIBRARIES:
        assert f"=> {deps}/lib/lib{library}.so" in ran.stdout


def test_nothing_in_the_folder_points_out_of_it(tmp_path):
    assert pack(tmp_path / "deps", "cuda").returncode == 0
    for path in (tmp_path / "deps").rglob("*"):
        assert path.resolve().is_relative_to(tmp_path / "deps") and path.exists()


def test_an_unknown_group_is_refused(tmp_path):
    result = pack(tmp_path / "deps", "everything")
    assert result.returncode == 2 and "cuda cpu" in result.stderr and not (tmp_path / "deps").exists()


def test_a_missing_package_is_named(tmp_path):
    script(tmp_path / "dpkg-query", "exit 1")
    environment = dict(os.environ, PATH=f"{tmp_path}:{os.environ['PATH']}")
    result = subprocess.run([PACK_DEPS, tmp_path / "deps"], env=environment, capture_output=True, text=True)
    assert result.returncode == 1 and "libcjson-dev is not installed" in result.stderr
