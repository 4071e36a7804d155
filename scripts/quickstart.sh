#!/bin/bash
# From nothing to a trained GPT in about two minutes: installs what is missing, builds, makes a corpus, trains, samples,
# plots, and says what to do next.  make quickstart [TEXT=path]   or   scripts/quickstart.sh [path]
# TEXT is any text file or directory. Without it, and without a network: this repository's own text and code, and the
# licence texts that every Debian carries. Everything it makes goes into quickstart/.
set -euo pipefail
cd "$(dirname "$0")/.."

TEXT=${1:-${TEXT:-}}
OUT=quickstart
SECONDS_TO_TRAIN=60
MODEL=(-e "L=6,C=256,NH=4,T=128") # 4.9M parameters on bytes
# Many small steps: of 1.35M tokens, batches of 2,048 made a validation loss of 2.26, batches of 768 one of 1.75 after 75% of them.
TRAIN=(-b 6 -t 128 -l 1e-3 -q 0.05 --beta2 0.99)
DATA=(-i "$OUT/data/train_*.bin" -j "$OUT/data/val_*.bin")

say() { printf '\n== %s\n' "$*"; }

say "1/5 installing what is missing"
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
    # Copied, so that the corpus can be looked at and used again.
    find . \( -path './.*' -o -path ./build -o -path "./$OUT" \) -prune -o -type f \
        \( -name '*.md' -o -name '*.[ch]' -o -name '*.cu*' -o -name '*.py' -o -name '*.sh' -o -name Makefile \) \
        -exec cp --backup=numbered -t "$OUT/corpus" {} +
    find /usr/share/common-licenses -type f -exec cp -t "$OUT/corpus" {} + 2>/dev/null || true
    sources=("$OUT/corpus")
fi
data/prepare -o "$OUT/data" "${sources[@]}"

say "4/5 training for about a minute"
# Some steps without output tell how many fit into the time (the schedule needs to know): the best quarter counts, as
# this machine may be busy just now.
mapfile -t milliseconds < <(./train_gpt2 "${MODEL[@]}" "${TRAIN[@]}" "${DATA[@]}" -x 21 -v 0 -s 0 |
    sed -nE 's/^step .* ([0-9.]+) ms .*/\1/p' | sort -g)
steps=$(awk -v ms="${milliseconds[5]}" -v s="$SECONDS_TO_TRAIN" \
    'BEGIN { n = int(s * 1000 / ms / 40) * 40; print (n < 40 ? 40 : n > 4000 ? 4000 : n) }')
echo "a step takes ${milliseconds[5]} ms here: $steps steps"
./train_gpt2 "${MODEL[@]}" "${TRAIN[@]}" "${DATA[@]}" -o "$OUT/run" -x "$steps" -u $((steps / 15)) \
    --max-minutes 1.5 -v $((steps / 8)) -m 64 -s "$steps" -g 400

say "5/5 drawing the curve"
/usr/bin/python3 scripts/plot_run.py "$OUT/run" -o "$OUT/curve.png"

checkpoint=$(find "$OUT/run" -maxdepth 1 -name 'step_*' | sort | tail -n 1)
cat <<END

Done. What there is now:
  $checkpoint   the model: a checkpoint, and a Hugging Face GPT-2 directory
  $OUT/curve.png           its curves
  $OUT/run/main.log        every step as a line of JSON
What to do next:
  train longer       ./train_gpt2 -o $OUT/run -y -x $((4 * steps))
  write text         ./train_gpt2 -e $checkpoint -v 0 -x 0 -g 1000 --prompt "The "
  your own text      make quickstart TEXT=path/to/text
  all options        ./train_gpt2 --help
END
