#!/bin/bash
# GPT-2 350M on 31.5B tokens of FineWeb, on one GPU.
# Usage: scripts/run_gpt2_350M.sh [--plan | --help | options of the trainer]
# Hyperparameters: GPT-3 paper, table 2.1 (350M: 0.5M tokens a step, learning rate 3e-4), as in llm.c's
# scripts/run_gpt2_350M.sh: 60,000 steps, cosine to 0, weight decay 0.1, warm-up 700 steps; 13.7 hours on 8 A100 80GB
# there. No final loss of that run was found in print.
# Memory and time on each GPU, planned: scripts/run_gpt2_350M.sh --plan (needs no GPU).
# shellcheck disable=SC2034
NAME=gpt2_350M CORPUS=fineweb-100B-gpt2 B=${B:-64}
OPTIONS=(-e d24 -t 1024 -d 524288 -x 60000 -l 3e-4 -u 700 -q 0 -c 0.1 -v 250 -s 100000 -g 144)
source "$(dirname "$0")/recipe.sh"
