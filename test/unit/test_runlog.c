// The run log: the lines on stdout to the letter, main.log as JSON that survives kills, resumes and
// full disks.
#include "llmc/log/runlog.h"
#include "llmc/model/model_numerics.h"
#include "test/fixture.h"

#include <fcntl.h>
#include <math.h>
#include <sys/resource.h>
#include <unistd.h>

static Error err;

TestFixture test_each = {tmp_setup, tmp_teardown};

static StepReport report(int64_t step) {
    StepReport r = {.step = step,
                    .total = 5000,
                    .control = step_control_initial(1.0f),
                    .lr = 6e-5,
                    .seconds = 0.09831,
                    .tokens = 0.09831 * 666600.0,
                    .mfu = 0.541,
                    .hfu = 0.5414,
                    .eta_seconds = 491};

    r.control.loss = 9.1234f;
    r.control.norm = 1.2345f;
    return r;
}

// A log without files, and what it says on stdout from here on; nothing may fail between the two.
static Capture said;
static RunLog *say(int progress) {
    said = capture_start(stdout);
    return runlog_open(NULL, false, 0, progress, NULL);
}

static char *said_by(RunLog *log) {
    runlog_close(log);
    return capture_end(&said);
}

static void assert_said(RunLog *log, const char *expected) {
    char *text = said_by(log);
    assert_string_equal(text, expected);
    free(text);
}

// The step line of a report, without its newline.
static char *step_line(const StepReport *r) {
    RunLog *log = say(0);
    runlog_step(log, r);
    char *text = said_by(log);
    char *newline = strchr(text, '\n');
    assert_non_null(newline);
    assert_int_equal(newline[1], '\0');
    *newline = '\0';
    return text;
}

static void assert_step_line(const StepReport *r, const char *expected) {
    char *line = step_line(r);
    assert_string_equal(line, expected);
    free(line);
}

// The n-th line of a main.log as an object.
static cJSON *event_at(const char *text, int n) {
    for (; n > 0; n--) {
        text = strchr(text, '\n');
        assert_non_null(text);
        text++;
    }
    cJSON *object = cJSON_ParseWithLength(text, strcspn(text, "\n"));
    assert_non_null(object);
    assert_true(cJSON_IsNumber(cJSON_GetObjectItem(object, "time")));
    return object;
}

// ------------------------------------------------------------------------------------ the terminal

static const Mixture one_corpus = {.count = 1};

TEST(the_step_line_is_the_one_of_the_design) {
    StepReport r = report(12);
    assert_step_line(
        &r, "step   12/5000 | loss 9.1234 | norm 1.2345 | lr 6.00e-05 | 98.31 ms | 666.6K tok/s | "
            "mfu 54.1% hfu 54.1% | eta 8m11s");
}

TEST(columns_stay_in_place_over_a_long_run) {
    StepReport first = report(1), late = report(5000), slow = report(77);
    first.control.loss = 10.98765f, first.control.norm = 123.4f;
    late.control.loss = 2.5f, late.control.norm = 0.04f, late.mfu = 0.098;
    slow.seconds = 12.3456, slow.tokens = 950 * slow.seconds;
    char *a = step_line(&first), *b = step_line(&late), *c = step_line(&slow);
    assert_int_equal(strstr(a, "| eta") - a, strstr(b, "| eta") - b);
    assert_int_equal(strstr(a, "| eta") - a, strstr(c, "| eta") - c);
    assert_non_null(strstr(a, "step    1/5000 | loss 10.988 | norm 123.40 |"));
    assert_non_null(strstr(c, "| 12346 ms |"));
    free(a), free(b), free(c);
}

TEST(what_is_not_known_is_left_out) {
    StepReport r = report(12);
    r.mfu = r.hfu = 0.0, r.eta_seconds = -1.0;
    assert_step_line(&r, "step   12/5000 | loss 9.1234 | norm 1.2345 | lr 6.00e-05 | 98.31 ms | "
                         "666.6K tok/s | eta ?");
}

// Compares what follows the time that is left.
static void assert_line_ends(const StepReport *r, const char *end) {
    char *line = step_line(r);
    const char *found = strstr(strstr(line, "| eta") + 1, "|");
    assert_non_null(found);
    assert_string_equal(found, end);
    free(line);
}

TEST(skipped_steps_say_why) {
    StepReport r = report(12);
    r.control.skip = SKIP_LOSS_OUTLIER, r.control.loss_z = 5.12f;
    assert_line_ends(&r, "| SKIPPED: loss outlier z 5.1");
    r.control.skip = SKIP_NORM_OUTLIER, r.control.norm_z = 7.0f;
    assert_line_ends(&r, "| SKIPPED: gradient norm outlier z 7.0");

    r.control.skip = SKIP_NONFINITE, r.control.bad_tensor = 4;
    r.bad_tensor = "transformer.h.3.attn.c_attn.weight";
    assert_line_ends(&r, "| SKIPPED: gradient of transformer.h.3.attn.c_attn.weight is not finite");

    r.control.bad_tensor = -1, r.control.loss = NAN;
    assert_line_ends(&r, "| SKIPPED: loss is not finite");
    r.control.loss = 3.0f, r.control.norm = INFINITY;
    assert_line_ends(&r, "| SKIPPED: gradient norm is not finite");
}

TEST(a_loss_scale_that_moves_is_told) {
    StepReport r = report(12);
    r.control.loss_scale = 65536.0f, r.last_loss_scale = 32768.0f;
    assert_line_ends(&r, "| loss scale now 65536");
    // An overflow is the way a scale is found, not a fault of the model; a loss that is not finite
    // is one.
    r.control.skip = SKIP_NONFINITE, r.control.bad_tensor = 4, r.control.norm = INFINITY;
    r.control.loss_scale = 32768.0f, r.last_loss_scale = 65536.0f;
    assert_line_ends(&r, "| skipped: overflow, normal in fp16 | loss scale now 32768");
    r.control.loss = NAN, r.bad_tensor = "wte";
    assert_line_ends(&r, "| SKIPPED: gradient of wte is not finite | loss scale now 32768");
    r.control.loss = 3.0f, r.control.loss_scale = r.last_loss_scale = 1.0f; // nothing left to halve
    assert_line_ends(&r, "| SKIPPED: gradient of wte is not finite");
}

TEST(validation_samples_and_text_are_plain_lines) {
    RunLog *log = say(0);
    runlog_text(log, "model %s, %d layers", "d12", 12);
    runlog_field(log, "first step", "%d", 7), runlog_field(log, "", "below it");

    runlog_validation(log, 250, &(ValidationScore){.loss = log1p(1.0), .tokens = 65536},
                      &one_corpus, NULL, 1.25);
    runlog_validation(
        log, 250, &(ValidationScore){.loss = log1p(1.0), .tokens = 65536, .bits_per_byte = 0.98123},
        &one_corpus, NULL, 1.25);
    runlog_choices(log, 250, "hellaswag_val", &(ChoiceScore){10042, 2822, 2968, 0}, 12.34);
    runlog_choices(log, 250, "none", &(ChoiceScore){0, 0, 0, 0}, 0.0);

    runlog_sample(log, 250, "Once\nupon\x1b[2J", 13, false, false);
    runlog_sample(log, 250, "again", 5, false, false);
    runlog_sample(log, 250, "streamed", 8, true, false);
    runlog_sample(log, 500, "later", 5, false, false);

    DeviceSensors sensors = {1754.6, 3201.0, 689.7, 1e9, 61.0, ""};
    runlog_sensors(log, 250, &sensors);
    strcpy(sensors.throttle, "power cap, thermal");
    runlog_sensors(log, 251, &sensors);
    runlog_event(log, "start", "\"ignored\":1"); // no file: nowhere to go

    assert_said(
        log,
        "model d12, 12 layers\nfirst step  7\n            below it\n"
        "validation at step 250 | loss 0.6931 | perplexity 2.00 | 65.54K tokens in 1.2s\n"
        "validation at step 250 | loss 0.6931 | perplexity 2.00 | 0.9812 bits/byte | 65.54K "
        "tokens in 1.2s\n"
        "hellaswag_val at step 250 | accuracy 29.56% (normalised), 28.10% | 2968/10042 | 12.3 s\n"
        "none at step 250 | accuracy 0.00% (normalised), 0.00% | 0/0 | 0.0 s\n"
        "sample at step 250:\n    Once\n    upon\\x1B[2J\n"
        "sample 2 at step 250:\n    again\n"
        "sample at step 500:\n    later\n"
        "gpu at step 250 | 1755 MHz, memory 3201 MHz | 690 W | 61 C\n"
        "gpu at step 251 | 1755 MHz, memory 3201 MHz | 690 W | 61 C | throttled by: power cap, "
        "thermal\n");
}

static const NumericsRow ROWS[] = {
    {"qkv.in", {.count = 200, .sumsq = 800, .amax = 7.5f}, 0.0, false},
    {"fc.gradient",
     {.count = 1000, .sumsq = 0.1, .zero = 10, .underflow = 31, .overflow = 2, .amax = 1e-3f},
     0.0,
     false},
    {"fcprojw.gradient", {.count = 8, .underflow = 0.01, .amax = INFINITY}, 0.0, false},
    {"wte.update", {.count = 100, .sumsq = 1e-4, .amax = 1e-2f}, 1e-4 / (3.26e-4 * 3.26e-4), false},
    {"lnfw.update", {.count = 100, .sumsq = 1e-4, .amax = 1e-2f}, 0.0, false},
    {"wpe.update", {.count = 100, .sumsq = 1e-4, .amax = 1e-2f}, 1e-4 / (0.0187 * 0.0187), false},
};

TEST(the_line_of_numerics_names_the_worst) {
    RunLog *log = say(0);
    runlog_numerics(log, 100, ROWS, 6);
    runlog_numerics(log, 200, ROWS, 1);
    runlog_numerics(log, 300, ROWS, 0); // nothing was counted
    assert_said(log,
                "numerics at step 100 | underflow up to 3.1% (fc.gradient) | overflow up to 0.2% "
                "(fc.gradient) | update/weight 3.3e-04 (wte) to 1.9e-02 (wpe)\n"
                "numerics at step 200 | no underflow | no overflow\n");
}

TEST(the_bar_is_cleared_above_a_line_and_drawn_again_below) {
    unsetenv("LC_ALL"), unsetenv("LC_CTYPE"), unsetenv("LANG");
    setenv("COLUMNS", "80", 1);

    RunLog *log = say(1);
    runlog_text(log, "before");
    StepReport r = report(2500);
    runlog_step(log, &r);
    runlog_text(log, "after");

    char *text = said_by(log);
    const char *bar =
        "step 2500/5000 [#######.......]  50.0% | loss 9.1234 | 666.6K tok/s | eta 8m11s";
    char expected[1024];
    snprintf(expected, sizeof expected, "\r\x1b[Kafter\n%s\r\x1b[K", bar);

    assert_memory_equal(text, "before\n", 7); // no bar yet: nothing to clear
    const char *after = strstr(text, "\r\x1b[Kafter");
    assert_non_null(after);
    assert_string_equal(after, expected);
    assert_memory_equal(after - strlen(bar), bar, strlen(bar)); // it stood below the step line too

    free(text);
}

TEST(a_text_that_is_drawn_takes_the_place_of_the_bar) {
    setenv("COLUMNS", "80", 1);
    RunLog *log = say(1);
    StepReport r = report(2500);
    runlog_step(log, &r);

    assert_true(runlog_stream(log, "Once\tupon \xC3\xA9", 12));
    assert_true(runlog_stream(log, "\x1b[2J\xFF", 5));
    assert_true(runlog_stream(log, "\n", 1));

    char *text = said_by(log);
    const char *streamed = strrchr(text, '\r');
    assert_non_null(streamed);
    assert_string_equal(streamed, "\r\x1b[KOnce\tupon \xC3\xA9\\x1B[2J\\xFF\n");
    free(text);
}

// ---------------------------------------------------------------------------------------- main.log

// Opens the log of dir, does `body` with stdout captured away, closes it, gives main.log.
static char *logged(bool append, int64_t first_step, void (*body)(RunLog *)) {
    Capture c = capture_start(stdout);
    RunLog *log = runlog_open(tmp.path, append, first_step, 0, &err);
    if (log) body(log);
    runlog_close(log);
    free(capture_end(&c));
    if (!log) fail_msg("%s", err.text);
    return read_text(tmp_file("main.log"));
}

// The lines of a main.log, which is freed, but for their times; quotes are ' here.
static void assert_lines(char *text, const char *expected) {
    for (char *at = text, *end; (at = strstr(at, ",\"time\":"));) {
        assert_true(strtod(at + strlen(",\"time\":"), &end) > 0);
        memmove(at, end, strlen(end) + 1);
    }
    for (char *at = text; (at = strchr(at, '"'));) *at = '\'';
    assert_string_equal(text, expected);
    free(text);
}

static void two_steps_and_more(RunLog *log) {
    StepReport r = report(1);
    r.lr = 0.1 + 0.2;
    runlog_step(log, &r);

    r.step = 2;
    r.control.loss = NAN, r.control.norm = INFINITY, r.control.skip = SKIP_NONFINITE,
    r.control.bad_tensor = 3;
    r.bad_tensor = "wte \"x\"", r.control.loss_scale = 512.0f, r.control.loss_z = 1.5f;
    r.control.skipped = 1;
    r.mfu = 0.0;
    runlog_step(log, &r);

    runlog_validation(log, 2, &(ValidationScore){.loss = 4.25, .tokens = 1000000}, &one_corpus,
                      NULL, 2.0);
    runlog_validation(log, 2, &(ValidationScore){.loss = 1e4, .tokens = 1000000}, &one_corpus, NULL,
                      2.0); // exp overflows
    runlog_sample(log, 2, "a\xFF\nb", 4, false, false);

    const DeviceSensors sensors = {1755.0, 3201.0, 690.5, 123456789.25, 61.0, "power cap"};
    runlog_sensors(log, 2, &sensors);
    const DeviceSensors silent = {1755.0, 0.0, 0.0, 0.0, 0.0, ""};
    runlog_sensors(log, 2, &silent);

    runlog_choices(log, 2, "my \"set\"", &(ChoiceScore){4, 1, 3, 0}, 0.5);
    runlog_validation(log, 2,
                      &(ValidationScore){.loss = 4.25, .tokens = 1000000, .bits_per_byte = 1.125},
                      &one_corpus, NULL, 2.0);
}

TEST(every_line_is_one_json_object) {
    char *text = logged(false, 0, two_steps_and_more), expected[2048];
    snprintf(
        expected, sizeof expected,
        "{'event':'step','step':1,'loss':9.12339973,'norm':1.23450005,'lr':0.30000000000000004,'ms'"
        ":98.31,"
        "'tokens_per_second':666600,'mfu':0.541,'hfu':0.5414}\n"
        "{'event':'step','step':2,'loss':null,'norm':null,'lr':0.30000000000000004,'ms':98.31,"
        "'tokens_per_second':666600,'mfu':null,'hfu':0.5414,'loss_z':1.5,'norm_z':0,'loss_scale':"
        "512,'skipped':1,"
        "'skip':'nonfinite','bad_tensor':'wte \\'x\\''}\n"
        "{'event':'validation','step':2,'loss':4.25,'ppl':%.17g,'tokens':1000000,'seconds':2}\n"
        "{'event':'validation','step':2,'loss':10000,'ppl':null,'tokens':1000000,'seconds':2}\n"
        "{'event':'sample','step':2,'index':1,'text':'a\\ufffd\\nb'}\n"
        "{'event':'gpu','step':2,'sm_clock_mhz':1755,'memory_clock_mhz':3201,'power_watts':690.5,"
        "'energy_joules':123456789.25,'temperature_c':61,'throttle':'power cap'}\n"
        "{'event':'gpu','step':2,'sm_clock_mhz':1755,'memory_clock_mhz':null,'power_watts':null,"
        "'energy_joules':null,'temperature_c':null,'throttle':''}\n"
        "{'event':'choices','step':2,'name':'my "
        "\\'set\\'','examples':4,'correct':1,'correct_normalised':3,"
        "'accuracy':0.25,'accuracy_normalised':0.75,'seconds':0.5}\n"
        "{'event':'validation','step':2,'loss':4.25,'ppl':%.17g,'bits_per_byte':1.125,'tokens':"
        "1000000,"
        "'seconds':2}\n",
        exp(4.25), exp(4.25));

    assert_lines(text, expected);
}

static void numerics_of_a_step(RunLog *log) { runlog_numerics(log, 100, ROWS, 6); }

TEST(numerics_are_shares_by_class) {
    assert_lines(
        logged(false, 0, numerics_of_a_step),
        "{'event':'numerics','step':100,"
        "'qkv.in/amax':7.5,'qkv.in/rms':2,'qkv.in/zero':0,'qkv.in/underflow':0,'qkv.in/overflow':0,"
        "'fc.gradient/amax':0.00100000005,'fc.gradient/rms':0.01,'fc.gradient/zero':0.01,"
        "'fc.gradient/underflow':0.031,'fc.gradient/overflow':0.002,"
        "'fcprojw.gradient/amax':null,'fcprojw.gradient/rms':0,'fcprojw.gradient/zero':0,"
        "'fcprojw.gradient/underflow':0.00125,'fcprojw.gradient/overflow':0,"
        "'wte.update/amax':0.00999999978,'wte.update/rms':0.001,'wte.update/zero':0,'wte.update/"
        "underflow':0,"
        "'wte.update/overflow':0,'update_ratio/wte':0.000326,"
        "'lnfw.update/amax':0.00999999978,'lnfw.update/rms':0.001,'lnfw.update/"
        "zero':0,'lnfw.update/underflow':0,"
        "'lnfw.update/overflow':0,"
        "'wpe.update/amax':0.00999999978,'wpe.update/rms':0.001,'wpe.update/zero':0,'wpe.update/"
        "underflow':0,"
        "'wpe.update/overflow':0,'update_ratio/wpe':0.0187}\n");
}

static void three_events(RunLog *log) {
    runlog_event(log, "fields", "\"a\":%d", 1);
    runlog_event(log, "lines", "\n  \"a\": {\"b\": 2}\n");
    runlog_event(log, "none", "%s", "");
}

TEST(events_are_one_line_each_with_their_fields_or_none) {
    assert_lines(logged(false, 0, three_events),
                 "{'event':'fields','a':1}\n{'event':'lines',   'a': {'b': 2} }\n"
                 "{'event':'none'}\n");
}

static void one_event(RunLog *log) { runlog_event(log, "resume", "\"step\":2"); }

static const char EARLIER[] = "{\"event\":\"run\",\"time\":1}\n"
                              "{\"event\":\"step\",\"time\":1,\"step\":1}\n"
                              "no json, but a line\n"
                              "{\"event\":\"step\",\"time\":1,\"step\":2}\n";

TEST(a_resumed_log_loses_the_steps_that_are_run_again) {
    const char *const tails[] = {
        "",
        "{\"event\":\"step\",\"time\":1,\"step\":3}\n{\"event\":\"sample\",\"time\":1,\"step\":3}"
        "\n",
        "{\"event\":\"validation\",\"time\":1,\"step\":3}\n{\"event\":\"stop\",\"time\":1}\n",
        "{\"event\":\"st",                                // killed inside a line
        "{\"event\":\"step\",\"time\":1,\"step\":2}",     // whole but for its newline
        "{\"event\":\"step\",\"time\":1,\"step\":3}\nxy", // both
    };

    for (size_t i = 0; i < sizeof tails / sizeof tails[0]; i++) {
        char content[1024];
        snprintf(content, sizeof content, "%s%s", EARLIER, tails[i]);
        write_text(tmp_file("main.log"), content);
        char *text = logged(true, 2, one_event);

        // It begins with EARLIER and goes on with the one event of this run.
        assert_memory_equal(text, EARLIER, strlen(EARLIER));
        cJSON *event = event_at(text + strlen(EARLIER), 0);
        assert_string_equal(json_string(event, "event"), "resume");
        cJSON_Delete(event);
        assert_string_equal(strchr(text + strlen(EARLIER), '\n'), "\n");

        free(text);
        tmp_teardown(NULL), tmp_setup(NULL);
    }
}

TEST(a_resumed_log_loses_damaged_lines_and_no_others) {
    static const char
        end[] = "{\"event\":\"tuning\",\"time\":1}\n"
                "{\"event\":\"validation\",\"time\":1,\"step\":5}\n",
        later[] = "{\"event\":\"step\",\"time\":1,\"step\":6}\n{\"event\":\"stop\",\"time\":1}\n";
    static const char *const damaged[] = {
        "{\"event\":\"step\",\"time\":1,\"step\":73}\n", // was 3
        "{\"event\":\"step\",\"time\":1,?step\":3}\n",   // ?: a zero
        "?????????????????????????????\n{\"event\":\"step\",\"time\":1,\"step\":?}\n",
    };

    for (size_t i = 0; i < sizeof damaged / sizeof damaged[0]; i++) {
        char content[1024], kept[1024];
        const int n =
            snprintf(content, sizeof content, "%s%s%s%s", EARLIER, damaged[i], end, later);
        for (char *at = content; (at = strchr(at, '?'));) *at = '\0', at += strlen(at) + 1;
        write_bytes(tmp_file("main.log"), content, (size_t)n);

        const int length = snprintf(kept, sizeof kept, "%s%s", EARLIER, end),
                  fd = open(tmp_file("main.log"), O_RDONLY);
        char *text = logged(true, 5, one_event), before[1024];
        // replaced at once, never half rewritten
        assert_int_equal(pread(fd, before, sizeof before, 0), n);
        assert_memory_equal(before, content, (size_t)n);
        close(fd);

        assert_memory_equal(text, kept, (size_t)length);
        cJSON_Delete(event_at(text + length, 0));
        assert_string_equal(strchr(text + length, '\n'), "\n");
        assert_int_equal(entries_of(tmp.path), 2); // and the events
        free(text);
        tmp_teardown(NULL), tmp_setup(NULL);
    }
}

static void two_evaluations_again(RunLog *log) {
    runlog_drop_evaluations(log, 2);
    runlog_validation(log, 2, &(ValidationScore){.loss = 0.0, .tokens = 1}, &one_corpus, NULL, 1.0);
    runlog_sample(log, 2, "b", 1, false, false);
}

TEST(evaluations_that_are_made_again_are_logged_once) {
    char content[1024];
    snprintf(content, sizeof content, "%s%s", EARLIER,
             "{\"event\":\"validation\",\"time\":1,\"step\":2,\"loss\":7}\n"
             "{\"event\":\"choices\",\"time\":1,\"step\":2}\n"
             "{\"event\":\"sample\",\"time\":1,\"step\":2,\"index\":1}\n"
             "{\"event\":\"tuning\",\"time\":1,\"tuning\":\"x\"}\n"
             "{\"event\":\"end\",\"time\":1,\"step\":2}\n");
    write_text(tmp_file("main.log"), content);

    assert_lines(logged(true, 2, two_evaluations_again),
                 "{'event':'run'}\n{'event':'step','step':1}\nno json, but a "
                 "line\n{'event':'step','step':2}\n"
                 "{'event':'tuning','tuning':'x'}\n{'event':'end','step':2}\n"
                 "{'event':'validation','step':2,'loss':0,'ppl':1,'tokens':1,'seconds':1}\n"
                 "{'event':'sample','step':2,'index':1,'text':'b'}\n");
}

TEST(a_resumed_log_may_be_missing_or_empty) {
    char *text = logged(true, 2, one_event);
    cJSON_Delete(event_at(text, 0));
    free(text);
    write_text(tmp_file("main.log"), "");
    text = logged(true, 2, one_event);
    cJSON_Delete(event_at(text, 0));
    free(text);
}

TEST(a_new_run_starts_a_new_log) {
    write_text(tmp_file("main.log"), EARLIER);
    for (int i = 1; i <= 2;
         i++) { // and leaves those of runs before: the second start finds a step 2 too
        char *text = logged(false, 0, one_event), name[32];
        assert_null(strstr(text, "\"run\""));
        free(text);
        snprintf(name, sizeof name, "main.log.%d", i);
        text = read_text(tmp_file(name));
        assert_true((strcmp(text, EARLIER) == 0) == (i == 1));
        free(text);
    }
}

TEST(a_file_of_the_user_is_not_a_log) {
    static const char *const files[] = {"my notes\n", "{\"event\":\"click\",\"time\":1}\n",
                                        "no newline", "\n"};
    for (size_t i = 0; i < sizeof files / sizeof *files; i++)
        for (int append = 0; append < 2; append++) {
            write_text(tmp_file("main.log"), files[i]);

            char *text = logged(append, 2, one_event);
            cJSON_Delete(event_at(text, 0));
            free(text);

            text = read_text(tmp_file("main.log.1"));
            assert_string_equal(text, files[i]);
            free(text);
            tmp_teardown(NULL), tmp_setup(NULL);
        }
}

TEST(a_log_that_cannot_be_opened_is_an_error_with_its_path) {
    assert_int_equal(mkdir(tmp_file("main.log"), 0777), 0);
    assert_error(runlog_open(tmp.path, false, 0, 0, &err),
                 "/main.log: cannot be written: Is a directory");
    write_text(tmp_file("file"), "x");
    assert_error(runlog_open(tmp_file("file"), false, 0, 0, &err), "/file");
}

TEST(a_second_process_is_refused_and_touches_nothing) {
    RunLog *log = runlog_open(tmp.path, false, 0, 0, &err);
    assert_non_null(log);

    runlog_event(log, "run", "\"step\":7");
    // A second descriptor counts as another process does.
    assert_error(runlog_open(tmp.path, true, 3, 0, &err),
                 "/main.log: another process is writing it");
    assert_null(runlog_open(tmp.path, false, 0, 0, &err));

    runlog_event(log, "second", "%s", "");
    runlog_close(log);

    log = runlog_open(tmp.path, true, 7, 0, &err);
    assert_non_null(log);
    runlog_close(log);

    char *text = read_text(tmp_file("main.log"));
    cJSON_Delete(event_at(text, 1)); // both lines are there
    free(text);
}

TEST(without_a_file_for_tensorboard_the_run_goes_on) {
    // One more descriptor and no second one: main.log can be opened, an event file cannot.
    struct rlimit before, few;
    getrlimit(RLIMIT_NOFILE, &before);
    Capture errors = capture_start(stderr);

    const int next = dup(STDOUT_FILENO);
    close(next);
    few = before;
    few.rlim_cur = (rlim_t)next + 1;
    setrlimit(RLIMIT_NOFILE, &few);

    RunLog *log = runlog_open(tmp.path, false, 0, 0, &err);
    setrlimit(RLIMIT_NOFILE, &before);
    char *complaint = capture_end(&errors);

    assert_non_null(log);
    runlog_event(log, "start", "\"step\":1,\"x\":2");
    runlog_close(log);
    assert_non_null(strstr(complaint, "events.out.tfevents."));
    assert_non_null(strstr(complaint, "; the run continues, but TensorBoard will miss values\n"));

    char *text = read_text(tmp_file("main.log"));
    cJSON_Delete(event_at(text, 0));
    free(text), free(complaint);
}

// A limit on the file size stands for a full disk: the third line is written in part.
static void many_events(RunLog *log) {
    struct rlimit before, small;
    getrlimit(RLIMIT_FSIZE, &before);
    small = before;
    small.rlim_cur = 1000; // two lines of 440 bytes and a part; stderr is a file, too
    signal(SIGXFSZ, SIG_IGN);

    char filler[401] = "";
    memset(filler, 'f', 400);
    char json[424];
    snprintf(json, sizeof json, "\"filler\":\"%s\"", filler);

    setrlimit(RLIMIT_FSIZE, &small);
    for (int i = 0; i < 5; i++) runlog_event(log, "e", "%s", json);
    setrlimit(RLIMIT_FSIZE, &before);
    runlog_event(log, "last", "%s", json); // there is room again
}

TEST(a_full_disk_costs_whole_lines_only_and_is_reported_once) {
    // Both captures end before anything is asserted.
    Capture errors = capture_start(stderr);
    char *text = logged(false, 0, many_events);
    char *complaints = capture_end(&errors);

    const char *of_log = strstr(complaints, "main.log: cannot write: ");
    const char *of_events = strstr(complaints, "events.out.tfevents.");
    assert_non_null(of_log);
    assert_null(strstr(of_log + 1, "main.log: cannot write: "));
    assert_non_null(of_events);
    assert_null(strstr(of_events + 1, "events.out.tfevents."));

    const char *second = strchr(complaints, '\n') + 1; // a line for each and nothing else
    assert_ptr_equal(strchr(second, '\n'), complaints + strlen(complaints) - 1);

    int lines = 0;
    for (const char *p = text; *p; p = strchr(p, '\n') + 1, lines++)
        cJSON_Delete(event_at(text, lines));
    assert_int_equal(lines, 3);
    assert_non_null(strstr(text, "\"last\""));

    free(text), free(complaints);
}
