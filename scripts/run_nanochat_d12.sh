#!/bin/bash
# A public setting: nanochat's d12 (scripts/base_train.py at 92d63d4), 12 blocks of 768 channels and 12 tokens for each
# weight of blocks and head, 2^19 a step. It publishes marks of d24: 0.71800 bits/byte, CORE 0.2626.
# Usage: scripts/run_nanochat_d12.sh [--plan | --help | options of the trainer]
# As there: RMSNorm, RoPE of base 100,000, QK-norm, ReLU^2 of 4 C, no biases, 6 heads of 128, context 2048, a head of
# its own, a warm-up of 40 steps, then constant and down to 5% over the last 65%; beta; tokens a step and of the run,
# rates and decay by its rules (llmc/train/recipe.h).
# Different here: GPT-2's vocabulary of 50,257, not an own one of 32,768, so that the head counts 38.6M weights, not
# 25.2M, and the run 1.48B tokens, not 1.32B; FineWeb-Edu, not ClimbMix, so that bits/byte do not compare; full
# attention, not windows; no value embeddings, smear, backout, residual and x0 scalars, softcap, norm after the
# embedding; Muon without second moments, with 5 steps of Newton-Schulz and constant momentum; decay of the matrices is
# constant, not cautious. HellaSwag is scored, not CORE. No class of transformers has these blocks (QK-norm in Arcee's).
# No GPU has run it with this trainer yet.
# shellcheck disable=SC2034
NAME=nanochat_d12 CORPUS=fineweb-edu-10B-gpt2 B=${B:-32}
OPTIONS=(-e "arcee:d12,NH=6,qk_norm=1,base=100000,T=2048" -t 2048 --optimizer muon -d auto --tokens auto -l auto -c auto
    --beta1 0.8 --by-group "embedding.beta2=0.995,head.beta2=0.96,embedding.decay=0.01,head.decay=0.01" -k trapezoid
    -q 0.05 -u 40 -v 250 -s 0)
source "$(dirname "$0")/recipe.sh"
