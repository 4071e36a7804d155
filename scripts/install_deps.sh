#!/bin/bash
# Installs the packages that pretrain.cu needs. Debian and Ubuntu; elsewhere it lists the packages.
#   scripts/install_deps.sh [build] [data] [test] [test-all] [compilers] [lint]        default: build
# Asks dpkg first: if everything is installed, apt and the network are not used.
# The groups data (Parquet files), test and test-all make a Python environment, .venv; without a network the
# tests that need it are skipped and say so.
set -euo pipefail
cd "$(dirname "$0")/.."

BUILD_PACKAGES=(gcc libc6-dev make libdnnl-dev libcjson-dev libxxhash-dev libpcre2-dev zlib1g-dev libzstd-dev
    python3 python3-numpy python3-matplotlib)
TEST_PACKAGES=(curl g++ libcmocka-dev libopenmpi-dev openmpi-bin python3-pytest python3-venv)
TEST_ALL_PACKAGES=(clang libclang-rt-dev python3-torch libopenblas0-pthread python3-venv slurmctld slurmd slurm-client munge
    gcc-aarch64-linux-gnu libc6-dev-arm64-cross)
# What test/tools/test_compilers.py builds with, as far as the distribution has it.
COMPILERS=(gcc-11 gcc-13 gcc-14 clang-{14,16,18,19} libomp-dev)
LINT_PACKAGES=(g++ libcmocka-dev clang-format clang-tidy)
# pyarrow 18 takes Debian 12's numpy; later ones want numpy 2.
DATA_PYTHON=(pyarrow==18.1.0)
TEST_PYTHON=(tokenizers==0.15.2 tiktoken==0.14.0 tensorboard==2.21.0 zstandard==0.25.0)
# transformers 4.36 takes Debian 12's torch 1.13; later ones want a newer torch.
TEST_ALL_PYTHON=(transformers==4.36.2 nbconvert==7.17.2 ipykernel==7.4.0 xllamacpp==2026.10.11549 gguf==0.19.0)

say() { echo "install_deps: $*"; }

wanted=()
optional=()
python=()
for group in "${@:-build}"; do
    case $group in
    build) wanted+=("${BUILD_PACKAGES[@]}") ;;
    data) wanted+=(python3-venv curl) && python+=("${DATA_PYTHON[@]}") ;;
    test) wanted+=("${TEST_PACKAGES[@]}") && python+=("${DATA_PYTHON[@]}" "${TEST_PYTHON[@]}") ;;
    test-all) wanted+=("${TEST_ALL_PACKAGES[@]}") && python+=("${TEST_ALL_PYTHON[@]}") ;;
    compilers) optional+=("${COMPILERS[@]}") ;;
    lint) wanted+=("${LINT_PACKAGES[@]}") ;;
    *) say "unknown group '$group'; expected build, data, test, test-all, compilers or lint" >&2 && exit 2 ;;
    esac
done

if ! command -v dpkg-query >/dev/null || ! command -v apt-get >/dev/null; then
    say "not Debian or Ubuntu; make sure that these are installed (Debian's names): ${wanted[*]}"
    exit 0
fi

is_installed() { [[ $(dpkg-query -W -f '${db:Status-Status}' "$1" 2>/dev/null) == installed ]]; }

missing=()
for package in "${wanted[@]}"; do
    is_installed "$package" || missing+=("$package")
done
absent=()
for package in "${optional[@]}"; do
    is_installed "$package" && continue
    if apt-cache show "$package" >/dev/null 2>&1; then missing+=("$package"); else absent+=("$package"); fi
done
((${#absent[@]} == 0)) || say "apt has no ${absent[*]}: tests that need them are skipped"

# apt-get waits for dpkg's lock by itself, but not for the lock on the package lists.
apt_update() {
    for attempt in 1 2 3 4 5; do
        "${as_root[@]}" apt-get -q update && return
        say "apt-get update failed (attempt $attempt of 5); trying again in 10 s"
        sleep 10
    done
    say "apt-get update keeps failing; installing from the package lists as they are"
}

if ((${#missing[@]} > 0)); then
    as_root=(env DEBIAN_FRONTEND=noninteractive)
    if ((EUID != 0)); then
        if ! command -v sudo >/dev/null; then
            say "missing: ${missing[*]}" >&2
            say "not root and no sudo here; run as root: apt-get install ${missing[*]}" >&2
            exit 1
        fi
        as_root=(sudo "${as_root[@]}")
    fi
    say "installing ${missing[*]}"
    apt_update
    "${as_root[@]}" apt-get -q -y -o DPkg::Lock::Timeout=300 -o Dpkg::Use-Pty=0 --no-install-recommends install \
        "${missing[@]}" </dev/null
fi

# Are these packages in .venv, each in the required version?
has_python() {
    local check='import importlib.metadata as m, sys
for name, _, version in (p.partition("==") for p in sys.argv[1:]):
    if m.version(name) != version: sys.exit(1)'
    [[ -x .venv/bin/python ]] && .venv/bin/python -c "$check" "$@" 2>/dev/null
}

if ((${#python[@]} > 0)) && ! has_python "${python[@]}"; then
    say "making .venv with ${python[*]}"
    if ! { /usr/bin/python3 -m venv --system-site-packages .venv &&
        .venv/bin/python -m pip install -q --disable-pip-version-check "${python[@]}" </dev/null; }; then
        say "WARNING: .venv is incomplete; the tools and tests that need it will say so" >&2
    fi
fi
