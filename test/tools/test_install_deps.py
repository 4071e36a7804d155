"""scripts/install_deps.sh with stand-ins for dpkg-query, sudo and apt-get: what is asked for, and when."""
import os

from runs import ROOT, call, script

INSTALL_DEPS = ROOT / "scripts" / "install_deps.sh"


def install(tmp_path, dpkg_query, *groups):
    """Runs the script; returns its result and the apt-get calls it made."""
    calls = tmp_path / "calls"
    for name, body in (("dpkg-query", dpkg_query), ("apt-get", f'echo "$@" >>{calls}'), ("sudo", 'exec "$@"')):
        script(tmp_path / name, body)
    environment = dict(os.environ, PATH=f"{tmp_path}:{os.environ['PATH']}")
    result = call(INSTALL_DEPS, *groups, env=environment)
    return result, calls.read_text().splitlines() if calls.exists() else []


def test_nothing_is_called_when_nothing_is_missing(tmp_path):
    result, calls = install(tmp_path, "echo installed", "build", "lint")
    assert (result.returncode, result.stdout, calls) == (0, "", [])


def test_only_what_is_missing_is_installed(tmp_path):
    result, calls = install(tmp_path, '[ "$4" = libdnnl-dev ] && exit 1; echo installed', "build")
    assert result.returncode == 0, result.stderr
    assert calls[0] == "-q update"
    assert len(calls) == 2 and calls[1].endswith("install libdnnl-dev")


def test_a_removed_package_with_leftover_settings_counts_as_missing(tmp_path):
    _, calls = install(tmp_path, '[ "$4" = gcc ] && echo config-files || echo installed', "build")
    assert calls[-1].endswith("install gcc")


def test_an_unknown_group_is_refused(tmp_path):
    result, calls = install(tmp_path, "echo installed", "everything")
    assert result.returncode == 2 and "expected build, data, test, test-all, compilers or lint" in result.stderr and calls == []


def test_a_compiler_that_the_distribution_lacks_is_named_and_left_out(tmp_path):
    script(tmp_path / "apt-cache", '[ "$2" != gcc-14 ]')
    result, calls = install(tmp_path, 'case $4 in gcc-11 | gcc-14) exit 1 ;; esac; echo installed', "compilers")
    assert "apt has no gcc-14: tests that need them are skipped" in result.stdout
    assert calls[-1].endswith("install gcc-11")
