// What a run amounted to. See summary.h.
#include "llmc/run/summary.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

struct RunSummary {
    float *times; // seconds of each step, in order: 4 bytes a step is less than its line in main.log
    size_t steps, room;
    bool times_lost; // out of memory: the order statistics are left out
    double seconds, tokens;
    double step_tokens, step_mfu_seconds; // of the last step: tokens, mfu x seconds (FLOP of a step / peak)
    double best_loss;                     // INFINITY: none
    int64_t best_step;
    double first_joules, last_joules; // 0: not known
};

RunSummary *run_summary_create(void) {
    RunSummary *s = calloc(1, sizeof *s);
    if (s) s->best_loss = INFINITY;
    return s;
}

void run_summary_free(RunSummary *s) {
    if (s) free(s->times);
    free(s);
}

static bool reserve_time(RunSummary *s) {
    if (s->steps < s->room) return true;
    const size_t room = s->room ? 2 * s->room : 1024;
    float *grown = realloc(s->times, room * sizeof *grown);
    if (!grown) return false;
    s->times = grown;
    s->room = room;
    return true;
}

void run_summary_step(RunSummary *s, double seconds, double tokens, double mfu) {
    if (!s) return;
    s->times_lost = s->times_lost || !reserve_time(s);
    if (!s->times_lost) s->times[s->steps] = (float)seconds;
    s->steps++;
    s->seconds += seconds;
    s->tokens += tokens;
    s->step_tokens = tokens;
    s->step_mfu_seconds = mfu * seconds;
}

void run_summary_validation(RunSummary *s, int64_t step, double loss) {
    if (!s || !(loss < s->best_loss)) return;
    s->best_loss = loss;
    s->best_step = step;
}

void run_summary_energy(RunSummary *s, double joules) {
    if (!s || !(joules > 0.0)) return;
    if (!(s->first_joules > 0.0)) s->first_joules = joules;
    s->last_joules = joules;
}

// ------------------------------------------------------------------------------------------------------- what is said

static int by_value(const void *a, const void *b) {
    const float x = *(const float *)a, y = *(const float *)b;
    return (x > y) - (x < y);
}

// Nearest rank: the smallest time that at least this share of the steps does not exceed. n > 0.
static double nearest_rank(const float *sorted, size_t n, double share) {
    const size_t rank = (size_t)ceil(share * (double)n);
    return (double)sorted[rank > 0 ? rank - 1 : 0];
}

typedef struct {
    double p50, p99; // seconds; 0: not known
} Spread;

static Spread step_spread(const RunSummary *s) {
    Spread spread = {0.0, 0.0};
    const size_t first = s->steps > 1 ? 1 : 0, n = s->steps - first;
    float *sorted = s->times_lost ? NULL : malloc(n * sizeof *sorted);
    if (!sorted) return spread;
    memcpy(sorted, s->times + first, n * sizeof *sorted);
    qsort(sorted, n, sizeof *sorted, by_value);
    spread.p50 = nearest_rank(sorted, n, 0.50);
    spread.p99 = nearest_rank(sorted, n, 0.99);
    free(sorted);
    return spread;
}

static double energy(const RunSummary *s) { return s->last_joules - s->first_joules; } // 0: not known

static void print_speed(const RunSummary *s, RunLog *log) {
    char tokens[32], time[32], rate[32], p50[32], p99[32], speed[160] = "", mfu[48] = "";
    const Spread spread = step_spread(s);
    if (spread.p50 > 0.0) {
        if (s->step_mfu_seconds > 0.0)
            snprintf(mfu, sizeof mfu, ", mfu %.1f%%", 100.0 * s->step_mfu_seconds / spread.p50);
        snprintf(speed, sizeof speed, " | median %s tok/s%s | step p50 %s ms, p99 %s ms",
                 format_count(s->step_tokens / spread.p50, rate, sizeof rate), mfu,
                 format_fixed(1e3 * spread.p50, 5, 3, p50, sizeof p50),
                 format_fixed(1e3 * spread.p99, 5, 3, p99, sizeof p99));
    }
    runlog_text(log, "summary     %zu step%s, %s tokens, %s in steps%s", s->steps, s->steps == 1 ? "" : "s",
                format_count(s->tokens, tokens, sizeof tokens), format_duration(s->seconds, time, sizeof time), speed);
}

void run_summary_print(const RunSummary *s, RunLog *log) {
    if (!s || s->steps == 0) return;
    print_speed(s, log);
    char best[96] = "", used[96] = "";
    const double joules = energy(s);
    if (isfinite(s->best_loss))
        snprintf(best, sizeof best, "best validation loss %.4f at step %lld", s->best_loss, (long long)s->best_step);
    if (joules > 0.0) {
        const double kwh = joules / 3.6e6;
        snprintf(used, sizeof used, "%s%.4g %s, %.3g J/1K tokens", *best ? " | " : "", kwh < 0.1 ? 1e3 * kwh : kwh,
                 kwh < 0.1 ? "Wh" : "kWh", 1e3 * joules / s->tokens);
    }
    if (*best || *used) runlog_text(log, "            %s%s", best, used);
}

char *run_summary_json(const RunSummary *s) {
    char *json = NULL;
    size_t bytes = 0;
    FILE *f = text_open(&json, &bytes);
    if (s && s->steps > 0) {
        const Spread spread = step_spread(s);
        fprintf(f, "\"steps\":%zu,\"tokens\":%.17g,\"step_seconds\":%.6g", s->steps, s->tokens, s->seconds);
        if (spread.p50 > 0.0) {
            fprintf(f, ",\"tokens_per_second_p50\":%.6g,\"ms_p50\":%.6g,\"ms_p99\":%.6g", s->step_tokens / spread.p50,
                    1e3 * spread.p50, 1e3 * spread.p99);
            if (s->step_mfu_seconds > 0.0) fprintf(f, ",\"mfu_p50\":%.6g", s->step_mfu_seconds / spread.p50);
        }
        if (isfinite(s->best_loss))
            fprintf(f, ",\"best_val_loss\":%.17g,\"best_val_step\":%lld", s->best_loss, (long long)s->best_step);
        if (energy(s) > 0.0) fprintf(f, ",\"energy_joules\":%.9g", energy(s));
    }
    fclose(f);
    return json;
}
