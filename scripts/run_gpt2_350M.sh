#!/bin/bash
# GPT-2 350M on 31.5B tokens of FineWeb, on one GPU.
# Usage: scripts/run_gpt2_350M.sh [--plan | --help | options of the trainer]
# Hyperparameters: GPT-3 paper, table 2.1 (350M: 0.5M tokens a step, learning rate 3e-4), as in llm.c's
# scripts/run_gpt2_350M.sh: 60,000 steps, cosine to 0, weight decay 0.1, warm-up 700 steps; 13.7 hours on 8 A100 80GB
# there. No final loss of that run was found in print.
#
# Planned (scripts/run_gpt2_350M.sh --plan, CPU build; computed from datasheets, not measured):
#   planned     total         54.6 GiB  with -b 64 -r 0 in bf16, laid out for the cpu backend of this machine
#   limit GPU           memory  datasheet peak        bandwidth  -b 64    max  a step     tokens/s   predicted  all steps  at 50%
#   limit T4             16 GB  fp16     65 TFLOP/s   320 GB/s  no         9  >= 19.7 s  <= 26.63K  -          >= 13d16h  27d08h
#   limit L4             24 GB  bf16    121 TFLOP/s   300 GB/s  no        18  >= 11.3 s  <= 46.41K  -          >= 7d20h   15d16h
#   limit A10            24 GB  bf16    125 TFLOP/s   600 GB/s  no        18  >= 10.3 s  <= 51.12K  -          >= 7d02h   14d05h
#   limit RTX 3090       24 GB  bf16     71 TFLOP/s   936 GB/s  no        18  >= 17.2 s  <= 30.41K  -          >= 11d23h  23d22h
#   limit RTX 4090       24 GB  bf16  165.2 TFLOP/s  1008 GB/s  no        18  >= 7.64 s  <= 68.60K  -          >= 5d07h   10d14h
#   limit RTX 5090       32 GB  bf16  209.5 TFLOP/s  1792 GB/s  no        27  >= 5.93 s  <= 88.43K  -          >= 4d02h   8d05h
#   limit A100 40GB      40 GB  bf16    312 TFLOP/s  1555 GB/s  no        37  >= 4.1 s   <= 127.9K  82.29K     >= 2d20h   5d16h
#   limit L40S           48 GB  bf16    362 TFLOP/s   864 GB/s  no        46  >= 3.79 s  <= 138.2K  -          >= 2d15h   5d06h
#   limit A100 80GB      80 GB  bf16    312 TFLOP/s  2039 GB/s  yes       83  >= 4.03 s  <= 130.0K  84.91K     >= 2d19h   5d14h
#   limit RTX PRO 6000   96 GB  bf16  503.8 TFLOP/s  1792 GB/s  yes      102  >= 2.61 s  <= 201.1K  -          >= 1d19h   3d14h
#   limit H100 PCIe      80 GB  bf16    756 TFLOP/s  2000 GB/s  yes       83  >= 1.79 s  <= 292.3K  -          >= 1d05h   2d11h
#   limit H100 SXM       80 GB  bf16  989.4 TFLOP/s  3350 GB/s  yes       84  >= 1.33 s  <= 393.0K  221.5K     >= 22h13m  1d20h
#   limit H200          141 GB  bf16  989.4 TFLOP/s  4800 GB/s  yes      153  >= 1.29 s  <= 404.9K  231.7K     >= 21h34m  1d19h
#   limit B200          180 GB  bf16   2250 TFLOP/s  8000 GB/s  yes      208  >= 0.584 s <= 897.9K  -          >= 9h43m   19h27m
# shellcheck disable=SC2034
NAME=gpt2_350M CORPUS=fineweb-100B-gpt2 B=${B:-64}
OPTIONS=(-e d24 -t 1024 -d 524288 -x 60000 -l 3e-4 -u 700 -q 0 -c 0.1 -v 250 -s 100000 -g 144)
source "$(dirname "$0")/recipe.sh"
