// The learning rate of a step: a linear warm-up, then one of five shapes, each reaching its end
// exactly. It is a pure function of the step, so a resume needs no state for it.
#pragma once
#include <stdbool.h>
#include <stdint.h>

typedef enum {
    SCHEDULE_COSINE,
    SCHEDULE_LINEAR,
    SCHEDULE_CONSTANT,
    SCHEDULE_WSD,
    SCHEDULE_TRAPEZOID
} ScheduleKind;

typedef struct {
    ScheduleKind kind;
    double max_lr;
    double final_fraction; // final lr / max lr: reached at the last step
    int64_t warmup;        // steps: step s < warmup has max_lr * (s + 1) / warmup
    int64_t total;         // steps of the run
} Schedule;

const char *schedule_name(ScheduleKind kind); // as -k takes it: "cosine", ...

// lr of step 0 .. total-1. With p = (s - warmup) / (total - 1 - warmup) in [0, 1] after the
// warm-up:
//   cosine     max * (f + (1 - f) (1 + cos(pi p)) / 2)       Loshchilov, Hutter, "SGDR", 2016
//   linear     max * (f + (1 - f) (1 - p))
//   constant   max
//   wsd        max, then over the last 20% of steps down with 1 - sqrt to f  (Haegele et al., 2024)
//   trapezoid  max, then over the last 65% of steps down linearly to f       (nanochat, 2026)
// The last step has max * f to the last bit (constant: max), unless the warm-up still covers it. s
// >= total gives the lr of the last step, s < 0 the lr of the first.
double schedule_lr(const Schedule *schedule, int64_t step);
// Whether a step of the run has max_lr, and whether the last has what the schedule ends with: a
// warm-up as long as the run, or a run of one step, leaves out one of them.
bool schedule_reaches_peak(const Schedule *schedule);
bool schedule_reaches_end(const Schedule *schedule);
