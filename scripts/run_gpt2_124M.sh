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
#   limit GPU           memory  datasheet peak        bandwidth  -b 64    max  a step     tokens/s   predicted  all steps  at 50%
#   limit T4             16 GB  fp16     65 TFLOP/s   320 GB/s  no        38  >= 7.16 s  <= 73.20K  -          >= 1d14h   3d05h
#   limit L4             24 GB  bf16    121 TFLOP/s   300 GB/s  no        59  >= 4.23 s  <= 123.9K  -          >= 22h59m  1d21h
#   limit A10            24 GB  bf16    125 TFLOP/s   600 GB/s  no        59  >= 3.73 s  <= 140.4K  -          >= 20h17m  1d16h
#   limit RTX 3090       24 GB  bf16     71 TFLOP/s   936 GB/s  no        59  >= 6.14 s  <= 85.37K  -          >= 1d09h   2d18h
#   limit RTX 4090       24 GB  bf16  165.2 TFLOP/s  1008 GB/s  no        59  >= 2.76 s  <= 189.7K  -          >= 15h00m  1d06h
#   limit RTX 5090       32 GB  bf16  209.5 TFLOP/s  1792 GB/s  yes       84  >= 2.13 s  <= 246.5K  -          >= 11h33m  23h06m
#   limit A100 40GB      40 GB  bf16    312 TFLOP/s  1555 GB/s  yes      107  >= 1.49 s  <= 351.8K  226.7K     >= 8h05m   16h11m
#   limit L40S           48 GB  bf16    362 TFLOP/s   864 GB/s  yes      132  >= 1.42 s  <= 368.0K  -          >= 7h44m   15h28m
#   limit A100 80GB      80 GB  bf16    312 TFLOP/s  2039 GB/s  yes      225  >= 1.45 s  <= 360.3K  235.5K     >= 7h54m   15h48m
#   limit RTX PRO 6000   96 GB  bf16  503.8 TFLOP/s  1792 GB/s  yes      274  >= 0.96 s  <= 546.1K  -          >= 5h12m   10h25m
#   limit H100 PCIe      80 GB  bf16    756 TFLOP/s  2000 GB/s  yes      224  >= 0.67 s  <= 783.1K  -          >= 3h38m   7h16m
#   limit H100 SXM       80 GB  bf16  989.4 TFLOP/s  3350 GB/s  yes      226  >= 0.492 s <= 1.065M  602.5K     >= 2h40m   5h20m
#   limit H200          141 GB  bf16  989.4 TFLOP/s  4800 GB/s  yes      404  >= 0.471 s <= 1.112M  636.5K     >= 2h33m   5h07m
#   limit B200          180 GB  bf16   2250 TFLOP/s  8000 GB/s  yes      512  >= 0.215 s <= 2.439M  -          >= 1h10m   2h20m
# shellcheck disable=SC2034
NAME=gpt2_124M CORPUS=fineweb-10B-gpt2 B=${B:-64}
OPTIONS=(-e d12 -t 1024 -d 524288 -x 19560 -l 6e-4 -u 700 -q 0 -c 0.1 -v 250 -s 20000 -g 144)
source "$(dirname "$0")/recipe.sh"
