#!/bin/bash
# GPT-2 774M on 150B tokens of FineWeb, on one GPU.
# Usage: scripts/run_gpt2_774M.sh [--plan | --help | options of the trainer]
# Hyperparameters: GPT-3 paper, table 2.1 (760M: 0.5M tokens a step, learning rate 2.5e-4), as in llm.c's
# scripts/run_gpt2_774M.sh: 286,102 steps, cosine to 0, weight decay 0.1, warm-up 700 steps; 135 hours on 8 A100 80GB
# there. The 100B tokens are read one and a half times. No final loss of that run was found in print.
#
# Planned (scripts/run_gpt2_774M.sh --plan, CPU build; computed from datasheets, not measured):
#   planned     total         58.4 GiB  with -b 32 -r 0 in bf16, laid out for the cpu backend of this machine
#   limit GPU           memory  datasheet peak        bandwidth  -b 32    max  a step     tokens/s   predicted  all steps  at 50%
#   limit T4             16 GB  fp16     65 TFLOP/s   320 GB/s  no      none  -          -          -          -          -
#   limit L4             24 GB  bf16    121 TFLOP/s   300 GB/s  no         5  >= 23.7 s  <= 22.11K  -          >= 78d12h  157d00h
#   limit A10            24 GB  bf16    125 TFLOP/s   600 GB/s  no         5  >= 21.8 s  <= 24.02K  -          >= 72d06h  144d12h
#   limit RTX 3090       24 GB  bf16     71 TFLOP/s   936 GB/s  no         5  >= 37.1 s  <= 14.14K  -          >= 122d18h  245d13h
#   limit RTX 4090       24 GB  bf16  165.2 TFLOP/s  1008 GB/s  no         5  >= 16.3 s  <= 32.13K  -          >= 54d00h  108d01h
#   limit RTX 5090       32 GB  bf16  209.5 TFLOP/s  1792 GB/s  no        10  >= 12.7 s  <= 41.26K  -          >= 42d01h  84d03h
#   limit A100 40GB      40 GB  bf16    312 TFLOP/s  1555 GB/s  no        15  >= 8.73 s  <= 60.08K  39.21K     >= 28d21h  57d18h
#   limit L40S           48 GB  bf16    362 TFLOP/s   864 GB/s  no        20  >= 7.96 s  <= 65.89K  -          >= 26d08h  52d16h
#   limit A100 80GB      80 GB  bf16    312 TFLOP/s  2039 GB/s  yes       40  >= 8.62 s  <= 60.85K  40.27K     >= 28d12h  57d01h
#   limit RTX PRO 6000   96 GB  bf16  503.8 TFLOP/s  1792 GB/s  yes       50  >= 5.52 s  <= 94.99K  -          >= 18d06h  36d13h
#   limit H100 PCIe      80 GB  bf16    756 TFLOP/s  2000 GB/s  yes       40  >= 3.77 s  <= 139.0K  -          >= 12d11h  24d23h
#   limit H100 SXM       80 GB  bf16  989.4 TFLOP/s  3350 GB/s  yes       40  >= 2.82 s  <= 185.9K  106.9K     >= 9d08h   18d16h
#   limit H200          141 GB  bf16  989.4 TFLOP/s  4800 GB/s  yes       78  >= 2.76 s  <= 190.3K  111.1K     >= 9d03h   18d06h
#   limit B200          180 GB  bf16   2250 TFLOP/s  8000 GB/s  yes      106  >= 1.24 s  <= 424.2K  -          >= 4d02h   8d04h
# shellcheck disable=SC2034
NAME=gpt2_774M CORPUS=fineweb-100B-gpt2 B=${B:-32}
OPTIONS=(-e d36 -t 1024 -d 524288 -x 286102 -l 2.5e-4 -u 700 -q 0 -c 0.1 -v 250 -s 300000 -g 144)
source "$(dirname "$0")/recipe.sh"
