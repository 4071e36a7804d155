#!/bin/bash
# From nothing to a trained GPT in about two minutes: installs what is missing, builds, makes a corpus, trains, samples,
# plots, and says what to do next.  make quickstart [TEXT=path]   or   scripts/quickstart.sh [path]
# TEXT is any text file or directory. Without it, and without a network: this repository's own text and code, and the
# licence texts that every Debian carries. Everything it makes goes into quickstart/.
set -euo pipefail
cd "$(dirname "$0")/.."

TEXT=${1:-${TEXT:-}}
OUT=quickstart
# 5.4M parameters on bytes. 500 steps of 4,096 tokens take about a minute on two cores with AVX512-BF16;
# --max-minutes ends slower machines with what they have.
TRAIN_FLAGS=(-e "L=6,C=256,NH=4,T=256" -b 16 -t 256 -l 2e-3 -u 30 -q 0.05 -v 100 -m 64 -g 400 --temperature 0.8)
STEPS=500
MINUTES=1.5

say() { printf '\n== %s\n' "$*"; }

say "1/5 installing what is missing"
scripts/install_deps.sh build

say "2/5 building"
make --no-print-directory -j"$(nproc)" all

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
    find README.md LICENSE Makefile doc llmc data scripts dev test train_gpt2.cu -type f \
        \( -name '*.md' -o -name '*.[ch]' -o -name '*.cu*' -o -name '*.py' -o -name '*.sh' -o -name LICENSE -o -name Makefile \) \
        -exec cp --backup=numbered -t "$OUT/corpus" {} +
    find /usr/share/common-licenses -type f -exec cp -t "$OUT/corpus" {} + 2>/dev/null || true
    sources=("$OUT/corpus")
fi
data/prepare -o "$OUT/data" "${sources[@]}"

say "4/5 training: about a minute"
./train_gpt2 "${TRAIN_FLAGS[@]}" -i "$OUT/data/train_*.bin" -j "$OUT/data/val_*.bin" -o "$OUT/run" \
    -x "$STEPS" -s "$STEPS" --max-minutes "$MINUTES"

say "5/5 drawing the curve"
/usr/bin/python3 scripts/plot_run.py "$OUT/run" -o "$OUT/curve.png"

checkpoint=$(find "$OUT/run" -maxdepth 1 -name 'step_*' | sort | tail -n 1)
cat <<END

Done. What there is now:
  $checkpoint   the checkpoint, a Hugging Face GPT-2 directory
  $OUT/curve.png            the curve
  $OUT/run/main.log         every step as a line of JSON
What to do next:
  train longer       ./train_gpt2 ${TRAIN_FLAGS[*]} -i "$OUT/data/train_*.bin" -j "$OUT/data/val_*.bin" -o $OUT/run -y -x $((4 * STEPS))
  sample             ./train_gpt2 -e $checkpoint -i "$OUT/data/train_*.bin" -j "$OUT/data/val_*.bin" -x 0 -g 1000 --prompt "The "
  your own text      make quickstart TEXT=path/to/text
  all options        ./train_gpt2 --help
END
