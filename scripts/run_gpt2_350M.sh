#!/bin/bash
# GPT-2 350M on 31.5B tokens of FineWeb, on one GPU.
# Usage: scripts/run_gpt2_350M.sh [--plan | --help | options of the trainer]
# Hyperparameters: GPT-3 paper, table 2.1 (350M: 0.5M tokens a step, learning rate 3e-4), as in llm.c's
# scripts/run_gpt2_350M.sh: 60,000 steps, cosine to 0, weight decay 0.1, warm-up 700 steps; 13.7 hours on 8 A100 80GB
# there. No final loss of that run was found in print.
#
# Planned (scripts/run_gpt2_350M.sh --plan, CPU build; computed from datasheets, not measured):
#   planned     total         54.6 GiB  with -b 64 -r 0 in bf16, laid out for the cpu backend of this machine
#   limit GPU           memory  datasheet peak        bandwidth  -b 64    max  a step     tokens/s   all steps  at 50%
#   limit T4             16 GB  fp16     65 TFLOP/s   320 GB/s  no         9  >= 20 s    <= 26.20K  >= 13d21h  27d18h
#   limit L4             24 GB  bf16    121 TFLOP/s   300 GB/s  no        18  >= 11.6 s  <= 45.04K  >= 8d02h   16d04h
#   limit A10            24 GB  bf16    125 TFLOP/s   600 GB/s  no        18  >= 10.4 s  <= 50.28K  >= 7d05h   14d11h
#   limit RTX 3090       24 GB  bf16     71 TFLOP/s   936 GB/s  no        18  >= 17.4 s  <= 30.21K  >= 12d01h  24d02h
#   limit RTX 4090       24 GB  bf16  165.2 TFLOP/s  1008 GB/s  no        18  >= 7.75 s  <= 67.69K  >= 5d09h   10d18h
#   limit RTX 5090       32 GB  bf16  209.5 TFLOP/s  1792 GB/s  no        27  >= 5.99 s  <= 87.58K  >= 4d03h   8d07h
#   limit A100 40GB      40 GB  bf16    312 TFLOP/s  1555 GB/s  no        37  >= 4.16 s  <= 125.9K  >= 2d21h   5d18h
#   limit L40S           48 GB  bf16    362 TFLOP/s   864 GB/s  no        46  >= 3.91 s  <= 134.0K  >= 2d17h   5d10h
#   limit A100 80GB      80 GB  bf16    312 TFLOP/s  2039 GB/s  yes       84  >= 4.08 s  <= 128.4K  >= 2d20h   5d16h
#   limit RTX PRO 6000   96 GB  bf16  503.8 TFLOP/s  1792 GB/s  yes      103  >= 2.67 s  <= 196.7K  >= 1d20h   3d16h
#   limit H100 PCIe      80 GB  bf16    756 TFLOP/s  2000 GB/s  yes       84  >= 1.84 s  <= 284.2K  >= 1d06h   2d13h
#   limit H100 SXM       80 GB  bf16  989.4 TFLOP/s  3350 GB/s  yes       84  >= 1.36 s  <= 384.2K  >= 22h44m  1d21h
#   limit H200          141 GB  bf16  989.4 TFLOP/s  4800 GB/s  yes      156  >= 1.32 s  <= 398.3K  >= 21h56m  1d19h
#   limit B200          180 GB  bf16   2250 TFLOP/s  8000 GB/s  yes      210  >= 0.597 s <= 878.6K  >= 9h56m   19h53m
# shellcheck disable=SC2034
NAME=gpt2_350M CORPUS=fineweb-100B-gpt2 B=${B:-64}
OPTIONS=(-e d24 -t 1024 -d 524288 -x 60000 -l 3e-4 -u 700 -q 0 -c 0.1 -v 250 -s 100000 -g 144)
source "$(dirname "$0")/recipe.sh"
