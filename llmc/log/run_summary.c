// See run_summary.h.
#include "llmc/log/run_summary.h"

#include "llmc/base/arithmetic.h"
#include "llmc/base/format.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void step_time_add(StepTime *t, double seconds) {
    static const double WINDOW = 30.0;
    const double kept = t->after_first ? exp(-seconds / WINDOW) : 0.0;
    t->after_first = t->mean > 0.0;
    t->steps = kept * t->steps + 1;
    t->seconds = kept * t->seconds + seconds;
    t->mean = t->seconds / t->steps;
}

void run_summary_free(RunSummary *s) { free(s->times); }

void run_summary_step(RunSummary *s, double seconds, double tokens, double mfu) {
    if (s->steps == s->capacity) {
        s->capacity = max_size(2 * s->capacity, 1024);
        s->times = realloc(s->times, s->capacity * sizeof *s->times);
        REQUIRE_MEMORY(s->times, "the times of the steps");
    }
    s->times[s->steps++] = (float)seconds;
    s->seconds += seconds;
    s->tokens += tokens;
    s->step_tokens = tokens;
    s->step_mfu_seconds = mfu * seconds;
}

void run_summary_validation(RunSummary *s, int64_t step, double loss) {
    if (isnan(loss) || (s->has_best && loss >= s->best_loss)) return;
    s->has_best = true;
    s->best_loss = loss;
    s->best_step = step;
}

void run_summary_energy(RunSummary *s, double joules) {
    if (!(joules > 0.0)) return;
    if (!(s->first_joules > 0.0)) s->first_joules = joules;
    s->last_joules = joules;
}

// Nearest rank: the smallest time that at least this share of the steps does not exceed. n > 0.
static double nearest_rank(const double *sorted, size_t n, double share) {
    const size_t rank = (size_t)ceil(share * (double)n);
    return sorted[rank - (rank > 0)];
}

// Derived from the steps; 0: unknown.
typedef struct {
    double p50, p99; // seconds
    double tokens_per_second, mfu, joules;
} RunFigures;

static RunFigures figures_of(const RunSummary *s) {
    RunFigures f = {.joules = s->last_joules - s->first_joules};
    const size_t first = s->steps > 1, n = s->steps - first;
    double *sorted = malloc(n * sizeof *sorted);
    REQUIRE_MEMORY(sorted, "the times of the steps");
    for (size_t i = 0; i < n; i++) sorted[i] = (double)s->times[first + i];
    qsort(sorted, n, sizeof *sorted, arithmetic_ascending);
    f.p50 = nearest_rank(sorted, n, 0.50);
    f.p99 = nearest_rank(sorted, n, 0.99);
    free(sorted);
    if (!(f.p50 > 0.0)) return f;
    f.tokens_per_second = s->step_tokens / f.p50;
    f.mfu = s->step_mfu_seconds / f.p50;
    return f;
}

void run_summary_print(const RunSummary *s, RunLog *log) {
    if (s->steps == 0) return;
    char tokens[32], time[32], rate[32], p50[32], p99[32];
    char speed[160] = "", mfu[48] = "", best[96] = "", used[96] = "";
    const RunFigures f = figures_of(s);

    const char *unit = "kWh";
    double energy = f.joules / 3.6e6;
    if (energy < 0.1) {
        energy *= 1e3;
        unit = "Wh";
    }

    if (f.mfu > 0.0) snprintf(mfu, sizeof mfu, ", mfu %.1f%%", 100.0 * f.mfu);
    if (f.p50 > 0.0)
        snprintf(speed, sizeof speed, " | median %s tok/s%s | step p50 %s ms, p99 %s ms",
                 format_count(f.tokens_per_second, rate, sizeof rate), mfu,
                 format_fixed(1e3 * f.p50, 5, 3, p50, sizeof p50),
                 format_fixed(1e3 * f.p99, 5, 3, p99, sizeof p99));

    runlog_field(log, "summary", "%zu step%s, %s tokens, %s in steps%s", s->steps,
                 format_plural((int64_t)s->steps), format_count(s->tokens, tokens, sizeof tokens),
                 format_duration(s->seconds, time, sizeof time), speed);

    if (s->has_best)
        snprintf(best, sizeof best, "best validation loss %.4f at step %lld", s->best_loss,
                 (long long)s->best_step);
    if (f.joules > 0.0)
        snprintf(used, sizeof used, "%s%.4g %s, %.3g J/1K tokens", *best ? " | " : "", energy, unit,
                 1e3 * f.joules / s->tokens);

    if (*best || *used) runlog_field(log, "", "%s%s", best, used);
}

char *run_summary_json(const RunSummary *s) {
    char *json = NULL;
    size_t bytes = 0;
    FILE *out = text_open(&json, &bytes);

    if (s->steps > 0) {
        const RunFigures f = figures_of(s);
        const struct {
            const char *key;
            double value;
            int digits;
            bool known;
        } fields[] = {{"steps", (double)s->steps, 17, true},
                      {"tokens", s->tokens, 17, true},
                      {"step_seconds", s->seconds, 6, true},
                      {"tokens_per_second_p50", f.tokens_per_second, 6, f.p50 > 0.0},
                      {"ms_p50", 1e3 * f.p50, 6, f.p50 > 0.0},
                      {"ms_p99", 1e3 * f.p99, 6, f.p50 > 0.0},
                      {"mfu_p50", f.mfu, 6, f.mfu > 0.0},
                      {"best_val_loss", s->best_loss, 17, s->has_best},
                      {"best_val_step", (double)s->best_step, 17, s->has_best},
                      {"energy_joules", f.joules, 9, f.joules > 0.0}};
        for (size_t i = 0; i < sizeof fields / sizeof *fields; i++)
            if (fields[i].known)
                fprintf(out, ",\"%s\":%.*g", fields[i].key, fields[i].digits, fields[i].value);
    }

    fclose(out);
    return json;
}
