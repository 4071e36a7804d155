# shellcheck shell=bash
# The common part of the recipes run_*.sh, which source it last. It finds the trainer and the data, and runs them
# so that calling the recipe again resumes the run. It never writes anything itself.
#   from the recipe       NAME, CORPUS (what data/get.py calls it), B, OPTIONS
#   from the environment  TRAINER  default ./train_gpt2cu, or ./train_gpt2 if that is not built
#                         B DTYPE  micro-batch, bf16|fp16|fp32; default: the recipe's, the machine's fastest
#                         OUT      output directory; default runs/NAME
#                         DATA     directory of the shards; default data/CORPUS
#   arguments             --help, --plan (memory and time, then exits), and options of the trainer: the last one counts
# Paths that are given are relative to the current directory; the defaults are in the repository.
set -euo pipefail
REPOSITORY=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
AT=$REPOSITORY/ # before the name of what is in it
[[ $REPOSITORY -ef . ]] && AT=

fail() {
    printf '%s: %s\n' "$NAME" "$@" >&2
    exit 2
}

has() { [[ " ${*:2} " == *" $1 "* ]]; }

if has --help "$@"; then
    sed -n '2,/^[^#]/{/^#/s/^# \{0,1\}//p}' "$0" | grep -v shellcheck
    echo
    sed -n '2,/^[^#]/{/^#/s/^# \{0,1\}//p}' "${AT}scripts/recipe.sh"
    exit 0
fi

if [[ -z ${TRAINER:-} ]]; then
    TRAINER=${AT:-./}train_gpt2cu
    # To plan needs no GPU; the CUDA trainer does not start without one.
    if [[ ! -x $TRAINER || ($* == *--plan* && -x ${AT}train_gpt2) ]]; then TRAINER=${AT:-./}train_gpt2; fi
fi
[[ -x $TRAINER ]] || fail "$TRAINER is not built; run: make"

OPTIONS+=(-b "$B")
[[ -z ${DTYPE:-} ]] || OPTIONS+=(--dtype "$DTYPE")
if has --plan "$@"; then exec "$TRAINER" "${OPTIONS[@]}" "$@"; fi

DATA=${DATA:-${AT}data/$CORPUS}
# shellcheck disable=SC2001 # & in a replacement needs bash 5.2
SHARDS=$(sed 's/[][*?\\]/\\&/g' <<<"$DATA") # as a pattern
if ! has -i "$@"; then
    for part in train val; do
        compgen -G "$SHARDS/*${part}_*.bin" >/dev/null ||
            fail "no $part shards in $DATA (${part}_*.bin); get them with: ${AT}data/get.py $CORPUS"
    done
    OPTIONS+=(-i "$SHARDS/*train_*.bin" -j "$SHARDS/*val_*.bin")
fi
hellaswag=${AT}data/hellaswag/hellaswag_val.bin
if [[ -e $hellaswag ]]; then
    OPTIONS+=(--choices "$hellaswag")
else
    echo "$NAME: HellaSwag is not scored; to score it, run: ${AT}data/get.py hellaswag" >&2
fi
# exec: signals of a shell, a batch system or a notebook reach the trainer, and its exit code becomes the recipe's.
exec "$TRAINER" "${OPTIONS[@]}" -o "${OUT:-${AT}runs/$NAME}" -y 1 "$@"
