#!/bin/bash
# From nothing to a trained GPT in about two minutes: installs missing packages, builds, makes a corpus, trains, samples,
# plots, and prints the next steps.  make quickstart [TEXT=path]   or   scripts/quickstart.sh [path]
# TEXT is any text file or directory. Without it, and without a network: this repository's own text and code, and the
# licence texts that every Debian carries. Everything it makes goes into quickstart/ (QUICKSTART_DIR=DIR: into DIR), which
# is made anew at every call; what was changed or added in it since is moved aside. Relative paths are those of the
# directory where make or this script was called.
set -euo pipefail
FROM=${QUICKSTART_FROM:-$PWD} # make -C: where the user is
cd "$(dirname "$0")/.."

fail() {
    echo "quickstart: $*" >&2
    exit 2
}

# A path of the user's as it is from the repository.
from_here() {
    if [[ -z $1 || $1 == /* || $FROM -ef . ]]; then echo "$1"; else echo "$FROM/$1"; fi
}

TEXT=${1:-${TEXT:-}}
[[ -e $(from_here "$TEXT") || ! -e $TEXT ]] && TEXT=$(from_here "$TEXT")
OUT=$(from_here "${QUICKSTART_DIR:-}")
OUT=${OUT:-quickstart}
[[ $OUT == / ]] || OUT=${OUT%/}
SECONDS_TO_TRAIN=${QUICKSTART_SECONDS:-60}
# Chosen by measurement: doc/recipes.md has the table.
B=12
T=128
MODEL=(-e "starcoder2:L=4,C=128,NH=2,T=$T,embed_norm=1")
TRAIN=(-b "$B" -t "$T" --optimizer muon --momentum 0.9 -l 1e-2 --lr-embedding 3e-2 -k linear -q 0 --beta2 0.99)
MOST_PASSES=12
# shellcheck disable=SC2001 # & in a replacement needs bash 5.2
SHARDS=$(sed 's/[][*?\\]/\\&/g' <<<"$OUT/data") # as a pattern
DATA=(-i "$SHARDS/train_*.bin" -j "$SHARDS/val_*.bin")

say() { printf '\n== %s\n' "$*"; }

[[ -z $TEXT || -r $TEXT ]] || fail "$TEXT: no such file or directory, or not readable"

# $OUT/.quickstart lists what the last call left there: with nothing changed and nothing added, it can be removed.
LIST=$OUT/.quickstart
MADE="made by scripts/quickstart.sh:"
list_made() {
    echo "$MADE"
    find "$OUT/" -mindepth 1 ! -path "$LIST" \( -type d -printf '%P/\n' -o -printf '%P %y %s %T@ %l\n' \) | LC_ALL=C sort
}
[[ -d $OUT || ! (-e $OUT || -L $OUT) ]] || fail "$OUT is no directory; name another one: QUICKSTART_DIR=DIR"
is_made=
[[ -f $LIST && $(head -n 1 "$LIST") == "$MADE" ]] && is_made=1
[[ ! -d $OUT || $is_made || -z $(ls -A "$OUT/") ]] ||
    fail "$OUT has files that are not of a quickstart; move it away, or name another directory: QUICKSTART_DIR=DIR"
if [[ -n $TEXT ]]; then
    text=$(realpath "$TEXT") out=$(realpath -m "$OUT")
    [[ $text/ != "$out"/* ]] || fail "TEXT is in $OUT, which is made anew; copy the text, or set QUICKSTART_DIR=DIR"
    [[ $out/ != "$text"/* ]] || fail "$OUT, where the results go, is in TEXT; set QUICKSTART_DIR=DIR"
fi

say "1/5 installing missing packages"
scripts/install_deps.sh build

say "2/5 building"
make -s -j"$(nproc)" all

say "3/5 making a corpus"
if [[ $is_made ]] && list_made | cmp -s - "$LIST"; then
    echo "removing what an earlier quickstart made in $OUT/"
    find "$OUT/" -mindepth 1 -delete
elif [[ $is_made ]]; then
    n=1
    while [[ -e $OUT.$n || -L $OUT.$n ]]; do n=$((n + 1)); done
    echo "$OUT was changed since an earlier quickstart made it; it was renamed to $OUT.$n" >&2
    mv -T "$OUT" "$OUT.$n"
fi
mkdir -p "$OUT/corpus"
echo "$MADE" >"$LIST"
trap 'list_made >"$LIST"' EXIT
if [[ -n $TEXT ]]; then
    sources=("$TEXT")
else
    # Copied, so that the corpus can be inspected and used again.
    find . \( -path './.*' -o -path ./build -o -path './quickstart*' -o -samefile "$OUT" \) -prune -o -type f \
        \( -name '*.md' -o -name '*.[ch]' -o -name '*.cu*' -o -name '*.py' -o -name '*.sh' -o -name Makefile \) \
        -exec cp --backup=numbered -t "$OUT/corpus" {} +
    find /usr/share/common-licenses -type f -exec cp -t "$OUT/corpus" {} + 2>/dev/null || true
    sources=("$OUT/corpus")
fi
# A small text has few words: a token for every 512 bytes, fewer if the text has not that many, or the bytes themselves.
bytes=$({ du -sbLc "${sources[@]}" 2>/dev/null || true; } | awk 'END { print $1 }') # unreadable files are counted by prepare
for tokenizer in train:4096 train:2048 train:1024 train:512 bytes; do
    [[ $tokenizer =~ [0-9]{4} ]] && ((BASH_REMATCH * 512 > bytes)) && continue
    data/prepare --tokenizer "$tokenizer" -o "$OUT/data" "${sources[@]}" >"$OUT/said" 2>"$OUT/error" && break
    grep -q "gives only" "$OUT/error" || break # else with fewer tokens
done
cat "$OUT/said"
cat "$OUT/error" >&2
tokens=$(awk '$1 == "train" { print $2 }' "$OUT/said")
if (($(awk '$1 == "val" { print $2 }' "$OUT/said") + 0 <= T)); then
    fail "too little text to learn from; set TEXT=PATH to 20 KB or more, a file or a directory"
fi
rm "$OUT/said" "$OUT/error"

say "4/5 training for about a minute"
echo "a sample before training:"
./train_gpt2 "${MODEL[@]}" "${DATA[@]}" -x 0 -v 0 -g 60 | sed -n '/^validation/,/^generated/{//!{s/^ */    /;p}}'
# Some steps without output show how many fit into the time, for the schedule. The best quarter counts, because
# this machine may be busy just now.
mapfile -t milliseconds < <(PRETRAIN_PROGRESS=0 ./train_gpt2 "${MODEL[@]}" "${TRAIN[@]}" "${DATA[@]}" -x 21 -v 0 -s 0 |
    sed -nE 's/^step .* ([0-9.]+) ms .*/\1/p' | sort -g)
steps=$(awk -v ms="${milliseconds[5]}" -v s="$SECONDS_TO_TRAIN" 'BEGIN { print int(s * 1000 / ms / 40) * 40 }')
echo "a step takes ${milliseconds[5]} ms here"
most=$((MOST_PASSES * tokens / (B * T)))
if ((steps > most)); then
    steps=$((most / 40 * 40))
    echo "the text is small: more than $MOST_PASSES passes would memorise it"
fi
((steps >= 40)) || steps=40
echo "$steps steps"
train() {
    ./train_gpt2 "${MODEL[@]}" "${TRAIN[@]}" "${DATA[@]}" -o "$OUT/run" -x "$steps" -u $((steps / 15)) \
        --max-minutes 1.5 -v $((steps / 8)) -m 64 -s $((steps / 4)) -g 120 -n 0
}
if [[ -t 1 ]]; then
    train # with a progress bar
else
    train | awk -v every=$((steps / 20)) '!/^step / || $2 + 0 == 1 || ($2 + 0) % every == 0 { print; fflush() }'
fi

say "5/5 drawing the curve"
/usr/bin/python3 scripts/plot_run.py "$OUT/run" -o "$OUT/curve.png"

printf -v checkpoint %q "$(find "$OUT/run" -maxdepth 1 -name 'step_*' | sort | tail -n 1)"
printf -v typed %q "$OUT"
cat <<END

Done. Results:
  $checkpoint   the model: a checkpoint, and a Hugging Face directory (Starcoder2)
  $typed/curve.png           its curves
  $typed/run/main.log        every step as a line of JSON
Next steps:
  train longer       ./train_gpt2 -o $typed/run -y -x $((4 * steps))
  write text         ./train_gpt2 -e $checkpoint -v 0 -x 0 -g 1000 --prompt "The"
  your own text      make quickstart TEXT=path/to/text
  all options        ./train_gpt2 --help
In llama.cpp:
  write its file     ./train_gpt2 -e $checkpoint -v 0 -x 0 -s 0 --export $typed/model.gguf:q8_0
  talk to it         llama-cli -m $typed/model.gguf -no-cnv -n 200 -p "static int"
END
