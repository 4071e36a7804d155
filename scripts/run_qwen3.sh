#!/bin/bash
# Qwen3's blocks with Muon, the preset that learned most from the same tokens (doc/recipes.md), at a size of GPT-2.
# Usage: scripts/run_qwen3.sh [d12 | d24 | d36 | d48] [--plan | --help | options of the trainer]
# The size decides the rest: tokens a step, tokens of the run (12 for each weight of the blocks' matrices and of the
# head), rates and weight decay are auto, by nanochat's rules; the header of a run, and --plan, show each with its rule.
# Each can be given: -d N, --ratio R or --tokens N, -l LR, --lr-embedding LR, -c DECAY; and another size with
# -e qwen3:L=16,C=1024. No GPU has run it to the end with this trainer yet.
# shellcheck disable=SC2034
SIZE=d12
if [[ ${1:-} =~ ^d[0-9]+$ ]]; then SIZE=$1 && shift; fi
NAME=qwen3_$SIZE CORPUS=fineweb-10B-gpt2 B=${B:-auto}
[[ $SIZE != d48 ]] || CORPUS=fineweb-100B-gpt2 # for 18.9B tokens
OPTIONS=(-e "qwen3:$SIZE" -t 1024 --optimizer muon --beta2 0.99 -k linear -q 0 -d auto --tokens auto -l auto -c auto
    -r auto -v 250 -s 20000 -g 144)
source "$(dirname "$0")/recipe.sh"
