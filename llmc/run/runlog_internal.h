// What runlog.c (opening, stdout, lines of main.log) and runlog_events.c (the events with numbers) share. For nobody
// else.
#pragma once
#include "llmc/run/append_file.h"
#include "llmc/run/runlog.h"
#include "llmc/run/tensorboard.h"
#include <cjson/cJSON.h>
#include <stdio.h>
#include <sys/stat.h>

struct RunLog {
    AppendFile file;                      // main.log
    char *directory;                      // NULL: none
    struct stat place;                    // what it was when the log was opened
    bool file_failed, tensorboard_failed; // reported already
    TensorBoard *tensorboard;             // NULL: none
    bool progress, utf8;
    char bar[1024];                    // "" until the first step
    double bar_time;                   // now_seconds of its text
    int64_t sample_step, sample_index; // of the last text sample
    cJSON *begun;                      // the events of the step that the log goes on from; NULL: none
};

// A line on stdout, above the bar.
void runlog_print(RunLog *log, const char *text, size_t length);
void runlog_clear_bar(RunLog *log);
// A line of main.log, and nothing else: {"event":EVENT,"time":...,INNER}.
void runlog_write(RunLog *log, const char *event, const char *inner, size_t length);
// Ends the record that tensorboard_begin started; a failure is said once.
void runlog_end_record(RunLog *log);
