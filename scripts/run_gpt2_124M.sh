#!/bin/bash
# GPT-2 124M on 10B tokens of FineWeb, on one GPU.
# Usage: scripts/run_gpt2_124M.sh [--plan | --help | options of the trainer]
# Hyperparameters: GPT-3 paper, table 2.1 (125M: 0.5M tokens a step, learning rate 6e-4, warm-up over 375M tokens), as
# in llm.c's scripts/run_gpt2_124M.sh: cosine to 0, weight decay 0.1, warm-up 700 steps. 19,560 steps are 10.26B tokens.
# Results with them: llm.c 3.2847 nats on FineWeb's validation shard after 10B tokens
# (github.com/KellerJordan/modded-nanogpt) and 29.9% on HellaSwag, OpenAI's 124M 29.4%
# (github.com/karpathy/llm.c/discussions/481).
#
# Planned (scripts/run_gpt2_124M.sh --plan, CPU build; computed from datasheets, not measured):
#   planned     total         20.5 GiB  with -b 64 -r 0 in bf16, laid out for the cpu backend of this machine
#   limit GPU           memory  datasheet peak        bandwidth  -b 64    max  a step     tokens/s   all steps  at 50%
#   limit T4             16 GB  fp16     65 TFLOP/s   320 GB/s  no        38  >= 7.28 s  <= 71.98K  >= 1d15h   3d07h
#   limit L4             24 GB  bf16    121 TFLOP/s   300 GB/s  no        59  >= 4.36 s  <= 120.2K  >= 23h41m  1d23h
#   limit A10            24 GB  bf16    125 TFLOP/s   600 GB/s  no        59  >= 3.8 s   <= 138.0K  >= 20h38m  1d17h
#   limit RTX 3090       24 GB  bf16     71 TFLOP/s   936 GB/s  no        59  >= 6.18 s  <= 84.80K  >= 1d09h   2d19h
#   limit RTX 4090       24 GB  bf16  165.2 TFLOP/s  1008 GB/s  no        59  >= 2.8 s   <= 187.1K  >= 15h13m  1d06h
#   limit RTX 5090       32 GB  bf16  209.5 TFLOP/s  1792 GB/s  yes       84  >= 2.15 s  <= 244.0K  >= 11h40m  23h20m
#   limit A100 40GB      40 GB  bf16    312 TFLOP/s  1555 GB/s  yes      107  >= 1.52 s  <= 346.0K  >= 8h13m   16h27m
#   limit L40S           48 GB  bf16    362 TFLOP/s   864 GB/s  yes      132  >= 1.47 s  <= 356.8K  >= 7h58m   15h57m
#   limit A100 80GB      80 GB  bf16    312 TFLOP/s  2039 GB/s  yes      227  >= 1.47 s  <= 355.7K  >= 8h00m   16h01m
#   limit RTX PRO 6000   96 GB  bf16  503.8 TFLOP/s  1792 GB/s  yes      276  >= 0.982 s <= 534.1K  >= 5h20m   10h40m
#   limit H100 PCIe      80 GB  bf16    756 TFLOP/s  2000 GB/s  yes      227  >= 0.689 s <= 761.1K  >= 3h44m   7h29m
#   limit H100 SXM       80 GB  bf16  989.4 TFLOP/s  3350 GB/s  yes      228  >= 0.504 s <= 1.041M  >= 2h44m   5h28m
#   limit H200          141 GB  bf16  989.4 TFLOP/s  4800 GB/s  yes      412  >= 0.479 s <= 1.094M  >= 2h36m   5h12m
#   limit B200          180 GB  bf16   2250 TFLOP/s  8000 GB/s  yes      512  >= 0.22 s  <= 2.385M  >= 1h11m   2h23m
# shellcheck disable=SC2034
NAME=gpt2_124M CORPUS=fineweb-10B-gpt2 B=${B:-64}
OPTIONS=(-e d12 -t 1024 -d 524288 -x 19560 -l 6e-4 -u 700 -q 0 -c 0.1 -v 250 -s 20000 -g 144)
source "$(dirname "$0")/recipe.sh"
