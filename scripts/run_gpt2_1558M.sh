#!/bin/bash
# GPT-2 1558M on 33.6B tokens of FineWeb-Edu, on one GPU.
# Usage: scripts/run_gpt2_1558M.sh [--plan | --help | options of the trainer]
# Hyperparameters of llm.c's scripts/run_gpt2_1558M.sh (github.com/karpathy/llm.c/discussions/677): 1M tokens a step,
# learning rate 6e-4, warm-up 700 steps (2.2%), cosine to a tenth, weight decay 0.1, 32,000 steps; 24 hours on 8 H100
# there. Results with them: HellaSwag of OpenAI's 1558M after some 25,000 steps.
#
# Planned (scripts/run_gpt2_1558M.sh --plan, CPU build; computed from datasheets, not measured):
#   planned     total         64.0 GiB  with -b 16 -r 0 in bf16, laid out for the cpu backend of this machine
#   limit GPU           memory  datasheet peak        bandwidth  -b 16    max  a step     tokens/s   predicted  all steps  at 50%
#   limit T4             16 GB  fp16     65 TFLOP/s   320 GB/s  no      none  -          -          -          -          -
#   limit L4             24 GB  bf16    121 TFLOP/s   300 GB/s  no      none  -          -          -          -          -
#   limit A10            24 GB  bf16    125 TFLOP/s   600 GB/s  no      none  -          -          -          -          -
#   limit RTX 3090       24 GB  bf16     71 TFLOP/s   936 GB/s  no      none  -          -          -          -          -
#   limit RTX 4090       24 GB  bf16  165.2 TFLOP/s  1008 GB/s  no      none  -          -          -          -          -
#   limit RTX 5090       32 GB  bf16  209.5 TFLOP/s  1792 GB/s  no         1  >= 50.3 s  <= 20.84K  -          >= 18d15h  37d06h
#   limit A100 40GB      40 GB  bf16    312 TFLOP/s  1555 GB/s  no         4  >= 34.4 s  <= 30.50K  20.28K     >= 12d17h  25d11h
#   limit L40S           48 GB  bf16    362 TFLOP/s   864 GB/s  no         7  >= 31 s    <= 33.86K  -          >= 11d11h  22d22h
#   limit A100 80GB      80 GB  bf16    312 TFLOP/s  2039 GB/s  yes       18  >= 34 s    <= 30.81K  20.73K     >= 12d14h  25d05h
#   limit RTX PRO 6000   96 GB  bf16  503.8 TFLOP/s  1792 GB/s  yes       25  >= 21.6 s  <= 48.45K  -          >= 8d00h   16d00h
#   limit H100 PCIe      80 GB  bf16    756 TFLOP/s  2000 GB/s  yes       18  >= 14.7 s  <= 71.29K  -          >= 5d10h   10d21h
#   limit H100 SXM       80 GB  bf16  989.4 TFLOP/s  3350 GB/s  yes       18  >= 11.1 s  <= 94.87K  56.05K     >= 4d02h   8d04h
#   limit H200          141 GB  bf16  989.4 TFLOP/s  4800 GB/s  yes       42  >= 10.9 s  <= 96.62K  57.91K     >= 4d00h   8d00h
#   limit B200          180 GB  bf16   2250 TFLOP/s  8000 GB/s  yes       58  >= 4.85 s  <= 216.4K  -          >= 1d19h   3d14h
# shellcheck disable=SC2034
NAME=gpt2_1558M CORPUS=fineweb-edu-100B-gpt2 B=${B:-16}
OPTIONS=(-e d48 -t 1024 -d 1048576 -x 32000 -l 6e-4 -u 700 -q 0.1 -c 0.1 -v 250 -s 300000 -g 384)
source "$(dirname "$0")/recipe.sh"
