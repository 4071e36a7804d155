#!/bin/bash
# Runs an aarch64 build on a processor that QEMU emulates: results count, times do not.
# By hand, as root, on an x86-64 Debian 12:
#   dev/aarch64/emulate.sh train          in an emulated machine: train, resume, also a checkpoint of
#                                         x86, generate, export
#   dev/aarch64/emulate.sh tests [unit/test_json_line ..]   these test programs under this machine's
#                                         kernel; default: all of test/unit, test/ops, test/golden
#   dev/aarch64/emulate.sh machine unit/test_limits ..      these in the emulated machine: ten times
#                                         as slow, for those that test what a kernel does
#
# MACHINE (/var/tmp/aarch64-machine) is an arm64 Debian, made when it is not there (1 GB). The cross
# compiler takes its libraries. The emulated machine has it, this checkout and the programs in
# memory, as its first file system. MACHINE/log-train and log-machine have what was said; the exit
# code is 0 when nothing failed. SECONDS_EACH (3600) ends a test program; TEST_FILTER='scales_*' runs
# the tests of such names.
set -euo pipefail
cd "$(dirname "$0")/../.."
machine=$(realpath -m "${MACHINE:-/var/tmp/aarch64-machine}")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

pack() { (cd "$1" && find . -path ./boot -prune -o -print | cpio --quiet -o -H newc); }

# Unpacks the packages. Their scripts are for the other processor; what is needed of them follows.
make_debian() {
    local debian=$machine/debian
    apt-get -q update
    apt-get -q -y --no-install-recommends install qemu-system-arm qemu-user-static mmdebstrap cpio \
        gcc-aarch64-linux-gnu libc6-dev-arm64-cross
    mkdir -p "$machine"
    mmdebstrap --mode=root --variant=extract --architectures=arm64 \
        --hook-dir=/usr/share/mmdebstrap/hooks/merged-usr \
        --include='?essential' --include=busybox-static,mount,procps,linux-image-cloud-arm64 \
        --include=libc6-dev,libcmocka-dev,libdnnl-dev,libcjson-dev,libxxhash-dev \
        --include=libpcre2-dev,zlib1g-dev,libzstd-dev bookworm "$debian"
    ln -s blas/libblas.so.3 lapack/liblapack.so.3 "$debian/usr/lib/aarch64-linux-gnu"
    ln -sf bash "$debian/usr/bin/sh"
    ln -sf mawk "$debian/usr/bin/awk"
    echo root:x:0:0::/root:/bin/bash >"$debian/etc/passwd"
    echo 127.0.0.1 localhost >"$debian/etc/hosts"
    pack "$debian" >"$work/debian.cpio" && mv "$work/debian.cpio" "$machine/"
}

# The first process of the machine.
write_first() {
    cat >"$1" <<END
#!/bin/bash
export PATH=/usr/sbin:/usr/bin LANG=C.UTF-8 OMP_WAIT_POLICY=passive
export SECONDS_EACH=${SECONDS_EACH:-3600} TEST_FILTER='${TEST_FILTER:-*}'
mount -t proc proc /proc && mount -t sysfs sysfs /sys && mount -t devtmpfs dev /dev
mkdir -p /dev/shm
for directory in /tmp /dev/shm; do mount -t tmpfs tmpfs \$directory; done
ln -s /proc/self/fd /dev/fd
busybox ip link set lo up
ldconfig
cd /job && bash dev/aarch64/job.sh ${*:2} </dev/null
echo "exit code \$?"
busybox poweroff -f
END
    chmod +x "$1"
}

case ${1:-} in
train) programs=(train_gpt2 prepare) ;;
tests | machine)
    if (($# == 1)); then
        [[ $1 == tests ]] || { echo "emulate.sh: machine: name test programs, such as unit/test_limits" >&2 && exit 2; }
        mapfile -t programs < <(cd test && printf '%s\n' {unit,ops,golden}/test_*.c |
            sed 's/\.c$//; s/test_simd$/&-baseline/')
        set -- tests "${programs[@]}"
    fi
    programs=("${@/#/test/}")
    programs=("${programs[@]:1}")
    ;;
*) echo "emulate.sh: '${1:-}': expected train, tests or machine" >&2 && exit 2 ;;
esac
programs=("${programs[@]/#/build/aarch64/}")
[[ -e $machine/debian.cpio ]] || make_debian
libraries=$machine/debian/usr/lib/aarch64-linux-gnu
make -s -j"$(nproc)" WERROR=1 BUILD=build/aarch64 MPICC=none CUDA=none \
    CC="aarch64-linux-gnu-gcc --sysroot=$machine/debian -L$libraries" \
    OBJCOPY=aarch64-linux-gnu-objcopy "${programs[@]}"

if [[ $1 == tests ]]; then
    export EMULATOR="qemu-aarch64-static -cpu max,pauth-impdef=on -L $machine/debian" OMP_WAIT_POLICY=passive
    bash dev/aarch64/job.sh "$@"
    exit
fi

job=$work/root/job
mkdir -p "$job"
write_first "$work/root/first" "$@"
(git ls-files && printf '%s\n' "${programs[@]}") | xargs -d '\n' cp --parents -t "$job"
if [[ $1 == train ]]; then
    make -s CUDA=none build/release/{train_gpt2,prepare}
    bash dev/aarch64/job.sh make build/release "$job/x86"
fi
(cat "$machine/debian.cpio" && pack "$work/root") >"$work/initrd"
qemu-system-aarch64 -machine virt -cpu max,pauth-impdef=on -smp 2 -m 6G -nodefaults -no-reboot \
    -display none -serial stdio -kernel "$machine"/debian/boot/vmlinuz-* -initrd "$work/initrd" \
    -append 'rdinit=/first console=ttyAMA0 quiet panic=-1' </dev/null | tee "$machine/log-$1"
grep -c '^PASS' "$machine/log-$1"
grep -q '^exit code 0' "$machine/log-$1"
