#!/bin/bash
# GPT-2 1558M on 33.6B tokens of FineWeb-Edu, on one GPU.
# Usage: scripts/run_gpt2_1558M.sh [--plan | --help | options of the trainer]
# Hyperparameters of llm.c's scripts/run_gpt2_1558M.sh (github.com/karpathy/llm.c/discussions/677): 1M tokens a step,
# learning rate 6e-4, warm-up 700 steps (2.2%), cosine to a tenth, weight decay 0.1, 32,000 steps; 24 hours on 8 H100
# there. Results with them: HellaSwag of OpenAI's 1558M after some 25,000 steps.
# Memory and time on each GPU, planned: scripts/run_gpt2_1558M.sh --plan (needs no GPU).
# shellcheck disable=SC2034
NAME=gpt2_1558M CORPUS=fineweb-edu-100B-gpt2 B=${B:-16}
OPTIONS=(-e d48 -t 1024 -d 1048576 -x 32000 -l 6e-4 -u 700 -q 0.1 -c 0.1 -v 250 -s 300000 -g 384)
source "$(dirname "$0")/recipe.sh"
