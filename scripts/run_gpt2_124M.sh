#!/bin/bash
# GPT-2 124M on 10B tokens of FineWeb, on one GPU.
# Usage: scripts/run_gpt2_124M.sh [--plan | --help | options of the trainer]
# Hyperparameters: GPT-3 paper, table 2.1 (125M: 0.5M tokens a step, learning rate 6e-4, warm-up over 375M tokens), as
# in llm.c's scripts/run_gpt2_124M.sh: cosine to 0, weight decay 0.1, warm-up 700 steps. 19,560 steps are 10.26B tokens.
# Results with them: llm.c 3.2847 nats on FineWeb's validation shard after 10B tokens
# (github.com/KellerJordan/modded-nanogpt) and 29.9% on HellaSwag, OpenAI's 124M 29.4%
# (github.com/karpathy/llm.c/discussions/481).
# Memory and time on each GPU, planned: scripts/run_gpt2_124M.sh --plan (needs no GPU).
# shellcheck disable=SC2034
NAME=gpt2_124M CORPUS=fineweb-10B-gpt2 B=${B:-64}
OPTIONS=(-e d12 -t 1024 -d 524288 -x 19560 -l 6e-4 -u 700 -q 0 -c 0.1 -v 250 -s 20000 -g 144)
source "$(dirname "$0")/recipe.sh"
