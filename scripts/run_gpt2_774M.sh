#!/bin/bash
# GPT-2 774M on 150B tokens of FineWeb, on one GPU.
# Usage: scripts/run_gpt2_774M.sh [--plan | --help | options of the trainer]
# Hyperparameters: GPT-3 paper, table 2.1 (760M: 0.5M tokens a step, learning rate 2.5e-4), as in llm.c's
# scripts/run_gpt2_774M.sh: 286,102 steps, cosine to 0, weight decay 0.1, warm-up 700 steps; 135 hours on 8 A100 80GB
# there. The 100B tokens are read one and a half times. No final loss of that run was found in print.
#
# Planned (scripts/run_gpt2_774M.sh --plan, CPU build; computed from datasheets, not measured):
#   planned     total         58.4 GiB  with -b 32 -r 0 in bf16, laid out for the cpu backend of this machine
#   limit GPU           memory  datasheet peak        bandwidth  -b 32    max  a step     tokens/s   all steps  at 50%
#   limit T4             16 GB  fp16     65 TFLOP/s   320 GB/s  no      none  -          -          -          -
#   limit L4             24 GB  bf16    121 TFLOP/s   300 GB/s  no         5  >= 24.4 s  <= 21.53K  >= 80d15h  161d07h
#   limit A10            24 GB  bf16    125 TFLOP/s   600 GB/s  no         5  >= 22.1 s  <= 23.67K  >= 73d08h  146d16h
#   limit RTX 3090       24 GB  bf16     71 TFLOP/s   936 GB/s  no         5  >= 37.3 s  <= 14.06K  >= 123d10h  246d21h
#   limit RTX 4090       24 GB  bf16  165.2 TFLOP/s  1008 GB/s  no         5  >= 16.5 s  <= 31.75K  >= 54d16h  109d08h
#   limit RTX 5090       32 GB  bf16  209.5 TFLOP/s  1792 GB/s  no        10  >= 12.8 s  <= 40.91K  >= 42d10h  84d20h
#   limit A100 40GB      40 GB  bf16    312 TFLOP/s  1555 GB/s  no        15  >= 8.85 s  <= 59.24K  >= 29d07h  58d14h
#   limit L40S           48 GB  bf16    362 TFLOP/s   864 GB/s  no        20  >= 8.18 s  <= 64.09K  >= 27d02h  54d04h
#   limit A100 80GB      80 GB  bf16    312 TFLOP/s  2039 GB/s  yes       40  >= 8.71 s  <= 60.19K  >= 28d20h  57d16h
#   limit RTX PRO 6000   96 GB  bf16  503.8 TFLOP/s  1792 GB/s  yes       51  >= 5.63 s  <= 93.17K  >= 18d15h  37d06h
#   limit H100 PCIe      80 GB  bf16    756 TFLOP/s  2000 GB/s  yes       41  >= 3.87 s  <= 135.6K  >= 12d19h  25d14h
#   limit H100 SXM       80 GB  bf16  989.4 TFLOP/s  3350 GB/s  yes       41  >= 2.88 s  <= 182.1K  >= 9d12h   19d01h
#   limit H200          141 GB  bf16  989.4 TFLOP/s  4800 GB/s  yes       80  >= 2.8 s   <= 187.5K  >= 9d06h   18d12h
#   limit B200          180 GB  bf16   2250 TFLOP/s  8000 GB/s  yes      107  >= 1.26 s  <= 416.1K  >= 4d04h   8d08h
# shellcheck disable=SC2034
NAME=gpt2_774M CORPUS=fineweb-100B-gpt2 B=${B:-32}
OPTIONS=(-e d36 -t 1024 -d 524288 -x 286102 -l 2.5e-4 -u 700 -q 0 -c 0.1 -v 250 -s 300000 -g 144)
source "$(dirname "$0")/recipe.sh"
