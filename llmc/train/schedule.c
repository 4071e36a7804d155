// The five shapes of schedule.h.
#include "llmc/train/schedule.h"

#include "llmc/base/arithmetic.h"

#include <math.h>

// Share of all steps in which wsd decays: Haegele et al. find little gain beyond 20%. Of
// trapezoid's linear decay nanochat uses 65%, modded-nanogpt 70%.
static const double WSD_DECAY_SHARE = 0.2, TRAPEZOID_DECAY_SHARE = 0.65;

const char *schedule_name(ScheduleKind kind) {
    static const char *const names[] = {
        [SCHEDULE_COSINE] = "cosine",       [SCHEDULE_LINEAR] = "linear",
        [SCHEDULE_CONSTANT] = "constant",   [SCHEDULE_WSD] = "wsd",
        [SCHEDULE_TRAPEZOID] = "trapezoid",
    };
    return names[kind];
}

double schedule_lr(const Schedule *s, int64_t step) {
    const int64_t last = max_i64(s->total - 1, 0);
    step = max_i64(min_i64(step, last), 0);

    if (step < s->warmup) return s->max_lr * ((double)(step + 1) / (double)s->warmup);
    if (s->kind == SCHEDULE_CONSTANT) return s->max_lr;
    if (step == last) return s->max_lr * s->final_fraction;

    int64_t decay_start = s->warmup;
    if (s->kind == SCHEDULE_WSD || s->kind == SCHEDULE_TRAPEZOID) {
        double share = WSD_DECAY_SHARE;
        if (s->kind == SCHEDULE_TRAPEZOID) share = TRAPEZOID_DECAY_SHARE;
        decay_start = max_i64(decay_start, last - llround(share * (double)s->total));
    }
    if (step <= decay_start) return s->max_lr;
    double p = (double)(step - decay_start) / (double)(last - decay_start);
    double remaining = 1.0 - p; // the share of (max - final) that is left; linear
    if (s->kind == SCHEDULE_COSINE) remaining = 0.5 * (1.0 + cos(M_PI * p));
    if (s->kind == SCHEDULE_WSD) remaining = 1.0 - sqrt(p);
    return s->max_lr * (s->final_fraction + (1.0 - s->final_fraction) * remaining);
}

bool schedule_reaches_peak(const Schedule *s) {
    return s->warmup <= s->total && schedule_lr(s, max_i64(s->warmup - 1, 0)) == s->max_lr;
}

bool schedule_reaches_end(const Schedule *s) {
    const double end = s->kind == SCHEDULE_CONSTANT ? s->max_lr : s->max_lr * s->final_fraction;
    return schedule_lr(s, s->total - 1) == end;
}
