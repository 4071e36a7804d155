"""dev/pack_deps.sh: what it packs is what a build then uses, headers and libraries alike."""
import os

from runs import ROOT, call, script

PACK_DEPS = ROOT / "dev" / "pack_deps.sh"
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


def shell(deps, command, cwd):
    """stdout and stderr of a command with the packed folder's environment alone."""
    result = call("bash", "-ec", f". {deps}/env.sh; {command}", cwd=cwd, env={"PATH": os.environ["PATH"]}, expect=0)
    return result.stdout, result.stderr


def test_a_program_is_built_and_runs_with_the_packed_files(tmp_path):
    call(PACK_DEPS, tmp_path / "packed", expect=0)
    deps = (tmp_path / "packed").rename(tmp_path / "elsewhere")  # it may be moved
    (tmp_path / "program.c").write_text(PROGRAM)
    _, headers = shell(deps, "gcc -H program.c -o program -lcjson -lxxhash -lcmocka", tmp_path)
    used = [line.lstrip(". ") for line in headers.splitlines() if line.startswith(".")]
    for header in LIBRARIES.values():
        assert [path for path in used if path.endswith("/" + header)] == [f"{deps}/include/{header}"]
    libraries, _ = shell(deps, "ldd program; ./program", tmp_path)
    for library in LIBRARIES:
        assert f"=> {deps}/lib/lib{library}.so" in libraries


def test_nothing_in_the_folder_points_out_of_it(tmp_path):
    call(PACK_DEPS, tmp_path / "deps", "cuda", expect=0)
    for path in (tmp_path / "deps").rglob("*"):
        assert path.resolve().is_relative_to(tmp_path / "deps") and path.exists()


def test_an_unknown_group_and_a_missing_package_are_named(tmp_path):
    assert "expected cuda or cpu" in call(PACK_DEPS, tmp_path / "deps", "everything", expect=2).stderr
    script(tmp_path / "dpkg-query", "exit 1")
    environment = dict(os.environ, PATH=f"{tmp_path}:{os.environ['PATH']}")
    assert "libcjson-dev is not installed" in call(PACK_DEPS, tmp_path / "deps", env=environment, expect=1).stderr
    assert not (tmp_path / "deps" / "env.sh").exists()
