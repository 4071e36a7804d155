#!/bin/bash
# From nothing to a trained GPT in about two minutes: installs missing packages, builds, makes a corpus, trains, samples,
# plots, and prints the next steps.  make quickstart [TEXT=path]   or   scripts/quickstart.sh [path]
# TEXT is any text file or directory. Without it, and without a network: this repository's own text and code, and the
# licence texts that every Debian carries. Everything it makes goes into quickstart/.
set -euo pipefail
cd "$(dirname "$0")/.."

TEXT=${1:-${TEXT:-}}
OUT=${QUICKSTART_DIR:-quickstart}
SECONDS_TO_TRAIN=${QUICKSTART_SECONDS:-60}
# Chosen by measurement: doc/recipes.md has the table.
B=12
T=128
MODEL=(-e "L=4,C=128,NH=2,T=$T")
TRAIN=(-b "$B" -t "$T" --optimizer muon -l 1e-2 -q 0 --beta2 0.99)
MOST_PASSES=12
# shellcheck disable=SC2001 # & in a replacement needs bash 5.2
SHARDS=$(sed 's/[][*?\\]/\\&/g' <<<"$OUT/data") # as a pattern
DATA=(-i "$SHARDS/train_*.bin" -j "$SHARDS/val_*.bin")

say() { printf '\n== %s\n' "$*"; }

if [[ -n $TEXT && ! -r $TEXT ]]; then
    echo "quickstart: $TEXT: no such file or directory, or not readable" >&2
    exit 2
fi

say "1/5 installing missing packages"
scripts/install_deps.sh build

say "2/5 building"
make -s -j"$(nproc)" all

say "3/5 making a corpus"
if [[ -e $OUT ]]; then
    echo "removing $OUT/ of an earlier quickstart"
    rm -rf "$OUT"
fi
mkdir -p "$OUT/corpus"
if [[ -n $TEXT ]]; then
    sources=("$TEXT")
else
    # Copied, so that the corpus can be inspected and used again.
    find . \( -path './.*' -o -path ./build -o -path ./quickstart -o -path "./$OUT" \) -prune -o -type f \
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
    echo "quickstart: too little text to learn from; set TEXT=PATH to 20 KB or more, a file or a directory" >&2
    exit 2
fi
rm "$OUT/said" "$OUT/error"

say "4/5 training for about a minute"
echo "a sample before training:"
./train_gpt2 "${MODEL[@]}" "${DATA[@]}" -x 0 -v 0 -g 60 | sed -n '/^validation/,/^generated/{//!{s/^ */    /;p}}'
# Some steps without output show how many fit into the time, for the schedule. The best quarter counts, because
# this machine may be busy just now.
mapfile -t milliseconds < <(./train_gpt2 "${MODEL[@]}" "${TRAIN[@]}" "${DATA[@]}" -x 21 -v 0 -s 0 --progress 0 |
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
  $checkpoint   the model: a checkpoint, and a Hugging Face GPT-2 directory
  $typed/curve.png           its curves
  $typed/run/main.log        every step as a line of JSON
Next steps:
  train longer       ./train_gpt2 -o $typed/run -y -x $((4 * steps))
  write text         ./train_gpt2 -e $checkpoint -v 0 -x 0 -g 1000 --prompt "The "
  your own text      make quickstart TEXT=path/to/text
  all options        ./train_gpt2 --help
END
