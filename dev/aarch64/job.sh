# What emulate.sh runs, from a copy of the checkout; a line PASS or FAIL for each thing.
#   job.sh make BUILD DIRECTORY          shards and runs of BUILD's programs; on both processors
#   job.sh train | machine PROGRAM..     in the emulated machine
#   job.sh tests PROGRAM..               under this kernel, each by the command EMULATOR
what=$1 bin=$PWD/${2:-} text=$PWD/llmc/base failed=0
said=$(mktemp)
trap 'rm -f "$said"' EXIT

# Runs a command; shows what it said when it failed.
try() {
    if "${@:2}" >"$said" 2>&1; then
        echo "PASS $1"
    else
        failed=1 && echo "FAIL $1" && tail -40 "$said"
    fi
}

train() {
    PRETRAIN_CPU=baseline "$bin/train_gpt2" -i 'shards/train_*.bin' -j 'shards/val_*.bin' --threads 2 "$@"
}

new_run() {
    train --dtype "$1" -o "$2" -e L=2,C=32,NH=2,T=32 -b 2 -l 1e-3 -x 20 -n 10 -v 0 -s 0
}

make_all() {
    "$bin/prepare" --tokenizer bytes -o shards "$text" && new_run fp32 fp32 && new_run bf16 bf16
}

# Continues the run $1 after step 10, as $2.
resume() { cp -r "$1" "$2" && rm -r "$2/step_00000020" && train -o "$2" -y; }

same_weights() {
    for part in model optimizer; do
        cmp {"$1","$2"}/step_00000020/$part.safetensors || return
    done
}

again() { new_run "$1" "again-$1" && same_weights "$1" "again-$1"; }
halves() { resume "$1" "half-$1" && same_weights "$1" "half-$1"; }

weights_of() { train -e "$1" -x 0 -s 0 --dtype fp32 "${@:2}"; }
loss() { weights_of "$1" -v 1 | grep -o 'loss [0-9.]*'; }
same_loss() { local first && first=$(loss "$1") && [[ $(loss "$2") == "$first" ]]; }

check_all() {
    try "prepare; train, fp32 and bf16" make_all
    try "shards: the bytes of x86" diff -r -x manifest.json shards ../x86/shards
    for dtype in fp32 bf16; do
        try "$dtype: the same bits again" again $dtype
        try "$dtype: resume, to the bits of the whole run" halves $dtype
        try "$dtype: resume from a checkpoint of x86" resume ../x86/$dtype moved-$dtype
        grep -o '"step":20,"loss":[0-9.]*' {../x86/,,moved-}$dtype/main.log
    done
    try "generate" weights_of fp32/step_00000020 -v 0 -g 40 --prompt 'int '
    for to in hugging_face llmc.bin; do
        try "export $to" weights_of fp32/step_00000020 -v 0 --export $to
        try "import $to: the loss of the checkpoint" same_loss fp32/step_00000020 $to
    done
}

run_tests() {
    for name; do
        # shellcheck disable=SC2086 # EMULATOR is a command and its options
        try "$name" timeout "${SECONDS_EACH:-3600}" ${EMULATOR:-} "build/aarch64/test/$name"
        grep -h '^\[==.* run\|SKIPPED\] [^0-9]*$' "$said"
    done
}

case $what in
make) mkdir "$3" && cd "$3" && make_all ;;
train) bin=$PWD/build/aarch64 && mkdir here && cd here && check_all ;;
tests | machine) run_tests "${@:2}" ;;
*) exit 2 ;;
esac
exit $failed
