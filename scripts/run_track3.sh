#!/bin/bash
# A public mark: 3.28 nats on FineWeb's validation shard after 1.7B tokens (3,250 steps of 524,288) by 12 blocks of 768
# channels: modded-nanogpt, track 3 (records/track_3_optimization, record 36: 3.2787, the mean of 10 runs).
# Usage: scripts/run_track3.sh [--plan | --help | options of the trainer]
# As there: the data, and 10,485,760 tokens of validation; RMSNorm, RoPE of base 1281, QK-norm, ReLU^2 of 4 C, biases,
# 6 heads of 128, a head of its own; Muon with momentum 0.95, no warm-up, no clipping; rates of head and vectors, beta,
# their decay. Converted to the scale of Muon here: its rate, 0.025 / (0.2 sqrt(768)), and decay, 0.05 * 0.2 sqrt(768);
# and to weights that begin at 0.02 and not at 1 the embedding's rate, 0.7 * 0.02, and decay, 0.001 / 0.02.
# Different here: no RMSNorm after the embedding and no softcap of the logits; all of a head is rotated, not half;
# QK-norm has weights; 5 steps of Newton-Schulz, not 12; projections begin at 0.02 / sqrt(24), not at 0; the rate falls
# over the last 65%, not 70%. No class of transformers has these blocks (QK-norm in Arcee's).
# No GPU has run it with this trainer yet: whether it reaches 3.28 is not known.
# shellcheck disable=SC2034
NAME=track3 CORPUS=fineweb-10B-gpt2 B=${B:-64}
OPTIONS=(-e "arcee:d12,NH=6,bias=1,qk_norm=1,base=1281" -t 1024 -d 524288 -x 3250 --optimizer muon -l 0.00451
    --lr-embedding 0.014 --lr-head 0.004 --lr-vectors 0.015 -c 0.277 --beta1 0.8 --beta2 0.95
    --by-group "embedding.decay=0.05,head.decay=0.001,vectors.decay=0.001" -k trapezoid -q 0 -u 0 --grad-clip 0
    -v 125 -m 10240 -s 0)
source "$(dirname "$0")/recipe.sh"
