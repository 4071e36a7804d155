#!/bin/bash
# Fuzzes the readers of test/fuzz one after another and prints a line for each; `make fuzz` builds and runs it.
#   SECONDS_EACH=60     for each reader; or
#   RUNS=1000000        inputs for each reader
#   READERS="shards log"  these alone
#   SEED=1              of libFuzzer: the same inputs again (with RUNS, and an empty build/fuzz/corpus)
# What a reader did not survive is left in build/fuzz/artifacts, and `READER=NAME build/fuzz/fuzz FILE` repeats it. The inputs
# that reach new branches stay in build/fuzz/corpus/NAME: the next run begins with them.
set -u
cd "$(dirname "$0")/../.."
fuzz=build/fuzz/fuzz failed=0
limit=(-max_total_time="${SECONDS_EACH:-60}")
[[ ${RUNS:-} ]] && limit=(-runs="$RUNS")
# Inputs of at most 64 KiB; 10 s for one: far more than any takes.
options=(-seed="${SEED:-1}" -max_len=65536 -rss_limit_mb=2048 -timeout=10 -print_final_stats=1
    -artifact_prefix=build/fuzz/artifacts/)
mkdir -p build/fuzz/artifacts
printf '%-16s %9s %7s %7s %9s %7s %8s\n' reader inputs 'a sec' edges features corpus seconds
for reader in ${READERS:-$(READER='' $fuzz)}; do
    corpus=build/fuzz/corpus/$reader log=build/fuzz/$reader.log
    mkdir -p "$corpus"
    READER=$reader SEEDS=$corpus $fuzz >/dev/null
    start=$SECONDS
    # A block of 64 MiB is too much for such files. zstd's windows have up to 128 MiB here.
    memory=64
    [[ $reader == packed ]] && memory=160
    # OpenMP of the library needs one thread; a freed block is kept in the quarantine for a while; and the shadow of a
    # large block is written, which costs half of mapping it anew.
    READER=$reader OMP_NUM_THREADS=1 nice -n "${NICE:-0}" \
        env ASAN_OPTIONS=quarantine_size_mb=16:detect_leaks=1:clear_shadow_mmap_threshold=1073741824 \
        $fuzz "${limit[@]}" "${options[@]}" -malloc_limit_mb=$memory "$corpus" >"$log" 2>&1
    status=$?
    awk -v reader="$reader" -v seconds=$((SECONDS - start)) '
        / cov: / { for (i = 1; i < NF; i++) { if ($i == "cov:") cov = $(i+1); if ($i == "ft:") ft = $(i+1)
                   if ($i == "corp:") split($(i+1), corp, "/") } }
        /stat::number_of_executed_units/ { runs = $2 } /stat::average_exec_per_sec/ { rate = $2 }
        END { printf "%-16s %9d %7d %7d %9d %7d %8d\n", reader, runs, rate, cov, ft, corp[1], seconds }' "$log"
    if ((status != 0)); then
        failed=1
        grep -aE '^bug:|^==.*ERROR|SUMMARY|Test unit written' "$log" | sed 's/^/    /'
    fi
done
exit $failed
