#!/bin/bash
# GPT-2 774M on 150B tokens of FineWeb, on one GPU.
# Usage: scripts/run_gpt2_774M.sh [--plan | --help | options of the trainer]
# Hyperparameters: GPT-3 paper, table 2.1 (760M: 0.5M tokens a step, learning rate 2.5e-4), as in llm.c's
# scripts/run_gpt2_774M.sh: 286,102 steps, cosine to 0, weight decay 0.1, warm-up 700 steps; 135 hours on 8 A100 80GB
# there. The 100B tokens are read one and a half times. No final loss of that run was found in print.
# Memory and time on each GPU, planned: scripts/run_gpt2_774M.sh --plan (needs no GPU).
# shellcheck disable=SC2034
NAME=gpt2_774M CORPUS=fineweb-100B-gpt2 B=${B:-32}
OPTIONS=(-e d36 -t 1024 -d 524288 -x 286102 -l 2.5e-4 -u 700 -q 0 -c 0.1 -v 250 -s 300000 -g 144)
source "$(dirname "$0")/recipe.sh"
