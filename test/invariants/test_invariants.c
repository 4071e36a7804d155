// The tests prove that a run keeps every bit where it has to: after a resume, whatever the backward
// pass computes again, wherever the optimizer's state lives, whoever computes a part of a step,
// whoever watches, in whichever words it was said. For every pair of values that a run may be made
// of (table.h) there is a row; with TEST_INVARIANTS=all each family, optimizer and precision meets
// every invariant.
//
// A run is the trainer itself, in a process that fork makes (trainer.h); what is compared are its
// log and its files.
#include "dev/sim/sim_control.h"
#include "test/invariants/pairs.h"
#include "test/invariants/trainer.h"

#include <glob.h>
#include <xxhash.h>

static bool is_simulated(void) { return sim_set_schedule != NULL; }
static bool is_asked_here(const Invariant *v) {
    return v->where == ON_BOTH || (v->where == ON_GPU) == is_simulated();
}
static bool takes_all(void) {
    const char *all = getenv("TEST_INVARIANTS");
    return all && strcmp(all, "all") == 0;
}

// --------------------------------------------------------------------------------------- the table

#define LENGTH(array) ((int)(sizeof(array) / sizeof *(array)))

static const struct {
    const Value *values;
    int count;
} dimensions[] = {
    [FAMILY] = {family_values, LENGTH(family_values)},
    [OPTIMIZER] = {optimizer_values, LENGTH(optimizer_values)},
    [PRECISION] = {precision_values, LENGTH(precision_values)},
    [DATA] = {data_values, LENGTH(data_values)},
    [STEP] = {step_values, LENGTH(step_values)},
    [SCHEDULE] = {schedule_values, LENGTH(schedule_values)},
    [UPDATE] = {update_values, LENGTH(update_values)},
    [KEPT] = {kept_values, LENGTH(kept_values)},
    [CONTEXT] = {context_values, LENGTH(context_values)},
    [INVARIANT] = {NULL, LENGTH(invariants)},
};

static const Value *value_of(int dimension, int i) {
    return dimension == INVARIANT ? &invariants[i].value : &dimensions[dimension].values[i];
}

// The words of a row without its invariant.
static void row_words(const Row *row, bool otherwise, char *words, size_t size) {
    const int64_t T = atoi(context_values[row->values[CONTEXT]].words + strlen("-t "));
    int n = snprintf(words, size, "-o run -n 0 -v 0 -s 0 --tokenizer none");
    // a fused GELU is not repeated
    if (is_simulated()) n += snprintf(words + n, size - (size_t)n, " -ge 0");

    for (int d = 0; d < INVARIANT; d++) {
        const Value *v = value_of(d, row->values[d]);
        n += snprintf(words + n, size - (size_t)n, " %s",
                      otherwise && v->again ? v->again : v->words);
    }

    n += snprintf(words + n, size - (size_t)n, " -d %lld",
                  (long long)(step_values[row->values[STEP]].windows * T));
    if ((size_t)n >= size) fail_msg("the words of a row are too long");
}

// ------------------------------------------------------------------------------------------- a run

enum { WORDS = 1024, LOG = 4096 };

// A run leaves this.
typedef struct {
    char losses[LOG]; // and norms, rates and scales, by step
    int steps;
    uint64_t evaluations; // all that was validated
    // the newest checkpoint: its tensors; where it is in its run; all of its bytes
    uint64_t weights, state, files;
} Ending;

static const char *number_text(const cJSON *object, const char *key, char text[32]) {
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(object, key);
    snprintf(text, 32, " %s %.17g", key, cJSON_IsNumber(item) ? item->valuedouble : -1.0);
    return text;
}

static void read_log(const char *directory, Ending *o) {
    char path[PATH_MAX], text[4][32];
    size_t n = 0;
    snprintf(path, sizeof path, "%s/run/main.log", directory);
    AUTO_FREE char *log = read_text(path);

    for (char *line = strtok(log, "\n"); line; line = strtok(NULL, "\n")) {
        cJSON *event = cJSON_Parse(line);
        if (n > sizeof o->losses / 2) fail_msg("%s: more steps than there is room for", path);
        if (event && strcmp(json_string(event, "event"), "step") == 0) {
            o->steps++;
            n += (size_t)snprintf(o->losses + n, sizeof o->losses - n, "step %g%s%s%s%s\n",
                                  json_number(event, "step"), number_text(event, "loss", text[0]),
                                  number_text(event, "norm", text[1]),
                                  number_text(event, "lr", text[2]),
                                  number_text(event, "loss_scale", text[3]));
        }

        if (event && strcmp(json_string(event, "event"), "validation") == 0) {
            cJSON_DeleteItemFromObjectCaseSensitive(event, "time");
            cJSON_DeleteItemFromObjectCaseSensitive(event, "seconds");
            char *said = cJSON_PrintUnformatted(event);
            o->evaluations = XXH3_64bits_withSeed(said, strlen(said), o->evaluations);
            cJSON_free(said);
        }

        cJSON_Delete(event);
    }
}

// trainer.json without what says how the run was made, watched and saved.
static uint64_t state_of(const char *text) {
    static const char *const others[] = {"options", "tuning", "best_val_loss", "files", "xxh3"};
    cJSON *state = cJSON_Parse(text);
    if (!state) fail_msg("trainer.json is no JSON");
    cJSON_DeleteItemFromObjectCaseSensitive(cJSON_GetObjectItemCaseSensitive(state, "data"), "val");
    for (int i = 0; i < LENGTH(others); i++)
        cJSON_DeleteItemFromObjectCaseSensitive(state, others[i]);
    char *rest = cJSON_Print(state);
    const uint64_t digest = XXH3_64bits(rest, strlen(rest));
    cJSON_free(rest);
    cJSON_Delete(state);
    return digest;
}

static glob_t files_like(const char *directory, const char *pattern) {
    char path[PATH_MAX];
    glob_t found = {0};
    snprintf(path, sizeof path, "%s/%s", directory, pattern);
    glob(path, 0, NULL, &found);
    return found;
}

static Ending ending_of(const char *directory) {
    Ending o = {.losses = ""};
    glob_t checkpoints = files_like(directory, "run/step_*");
    if (checkpoints.gl_pathc == 0) fail_msg("%s: no checkpoint", directory);
    glob_t files = files_like(checkpoints.gl_pathv[checkpoints.gl_pathc - 1], "*");

    for (size_t i = 0; i < files.gl_pathc; i++) {
        size_t n;
        AUTO_FREE unsigned char *bytes = read_bytes(files.gl_pathv[i], &n);
        const bool is_state = strstr(files.gl_pathv[i], "/trainer.json") != NULL;
        o.files = XXH3_64bits_withSeed(bytes, n, o.files);
        if (is_state)
            o.state = state_of((char *)bytes);
        else
            o.weights = XXH3_64bits_withSeed(bytes, n, o.weights);
    }

    globfree(&files);
    globfree(&checkpoints);
    read_log(directory, &o);
    return o;
}

// Runs the trainer; nothing else than success is expected.
static void run(const char *directory, const char *words, const char *environment, int processes) {
    const int code = trainer_run(directory, words, environment, processes);
    char path[PATH_MAX];
    if (code == 0) return;
    snprintf(path, sizeof path, "%s/stderr", directory);
    AUTO_FREE char *said = read_text(path);
    fail_msg("exit code %d of %s %s (%d processes): %s", code, environment, words, processes, said);
}

static TmpDir run_directory(void) {
    static int number;
    TmpDir dir;
    char name[32];
    snprintf(name, sizeof name, "%d", ++number);
    snprintf(dir.path, sizeof dir.path, "%s", tmp_file(name));
    if (mkdir(dir.path, 0777) != 0) perror(dir.path), abort();
    return dir;
}

static Ending ending_of_run(const char *words, const char *environment, int processes) {
    const TmpDir dir = run_directory();
    run(dir.path, words, environment, processes);
    const Ending o = ending_of(dir.path);
    tmpdir_remove(&dir);
    return o;
}

// The ending of these words; run once.
static const Ending *plain(const char *words) {
    static struct {
        char *words;
        Ending ending;
    } * known;
    static int count;

    for (int i = 0; i < count; i++)
        if (strcmp(known[i].words, words) == 0) return &known[i].ending;

    const Ending made = ending_of_run(words, "", 1);
    if (made.steps < 3) fail_msg("%d steps are too few to compare: %s", made.steps, words);
    known = realloc(known, (size_t)(count + 1) * sizeof *known);
    known[count].words = strdup(words);
    known[count].ending = made;
    return &known[count++].ending;
}

// ---------------------------------------------------------------------------------------- its data

// Tokens that a model can learn something of.
static void write_tokens(const char *name, int first, int n) {
    enum { HEADER = 256 };
    const int32_t header[HEADER] = {20240520, 1, n, 257, [6] = 256 + 1};
    AUTO_FREE uint16_t *tokens = malloc((size_t)n * sizeof *tokens);
    for (int i = 0; i < n; i++) tokens[i] = (uint16_t)(first + (7 * i * i + i / 5) % 80);
    FILE *f = fopen(tmp_file(name), "wb");
    if (!f || fwrite(header, sizeof header, 1, f) != 1 ||
        fwrite(tokens, 2, (size_t)n, f) != (size_t)n)
        abort();
    fclose(f);
}

static int setup(void **state) {
    static const char *const corpora[] = {"web", "code", "more"};
    char name[64];
    tmp_setup(state);

    mkdir(tmp_file("data"), 0777);
    for (int i = 0; i < LENGTH(corpora); i++) {
        snprintf(name, sizeof name, "data/%s", corpora[i]);
        mkdir(tmp_file(name), 0777);
        snprintf(name, sizeof name, "data/%s/train_0.bin", corpora[i]);
        write_tokens(name, 80 * i, i == 0 ? 4001 : 1501);
        snprintf(name, sizeof name, "data/%s/val_0.bin", corpora[i]);
        write_tokens(name, 80 * i, 1001);
    }

    setenv("PRETRAIN_NUMA", "0", 1);
    setenv("PRETRAIN_PROGRESS", "0", 1);
    setenv("PRETRAIN_CACHE", tmp_file("tuning"), 1); // what one run measures, all take
    setenv("SIM_GPUS", "4", 1);
    setenv("SIM_CC", "90", 1);
    return 0;
}

TestFixture test_all = {setup, tmp_teardown};

// ------------------------------------------------------------------------------------------- a row

static const char *difference(const Ending *a, const Ending *b, bool same_files) {
    if (strcmp(a->losses, b->losses) != 0) return "the losses differ";
    if (a->weights != b->weights) return "the weights or the optimizer's state differ";
    if (a->state != b->state) return "trainer.json differs";
    if (same_files && a->evaluations != b->evaluations) return "the validations differ";
    if (same_files && a->files != b->files) return "the files of the checkpoint differ";
    return NULL;
}

// Removes the checkpoints after the first `count`.
static void cut_back(const char *directory, size_t count) {
    glob_t checkpoints = files_like(directory, "run/step_*");
    for (size_t i = count; i < checkpoints.gl_pathc; i++) {
        TmpDir later;
        snprintf(later.path, sizeof later.path, "%s", checkpoints.gl_pathv[i]);
        tmpdir_remove(&later);
    }
    globfree(&checkpoints);
}

// From one checkpoint, another one in each row, or from all, the last one first.
static const char *check_resumed(const Invariant *v, const char *words, int number) {
    const TmpDir dir = run_directory();
    char saving[WORDS + 16], again[WORDS];
    const char *found = NULL;

    snprintf(saving, sizeof saving, "%s -n 2 -nk 0", words);
    run(dir.path, saving, "", v->first);
    snprintf(again, sizeof again, "-o run -y %s", v->value.words);
    const Ending whole = ending_of(dir.path);
    if (v->first > 1) found = difference(plain(saving), &whole, true);

    glob_t checkpoints = files_like(dir.path, "run/step_*");
    const size_t last = checkpoints.gl_pathc - 1;
    globfree(&checkpoints);
    if (last == 0) fail_msg("one checkpoint is too few: %s", words);

    for (size_t keep = takes_all() ? last : 1 + (size_t)number % last; !found && keep >= 1;
         keep--) {
        cut_back(dir.path, keep);
        run(dir.path, again, v->environment, v->processes);
        const Ending resumed = ending_of(dir.path);
        found = difference(&whole, &resumed, v->same_files);
        if (!takes_all()) break;
    }

    tmpdir_remove(&dir);
    return found;
}

static const char *check_other(const Invariant *v, const Row *row, const char *words) {
    char other[2 * WORDS];
    if (v->change == SPELLED) row_words(row, true, other, sizeof other);
    if (v->change == OTHER) snprintf(other, sizeof other, "%s %s", words, v->value.words);
    const Ending o = ending_of_run(other, v->environment, v->processes);
    return difference(plain(words), &o, v->same_files);
}

static int failures; // of a test

static void check_row(const Row *row, int number) {
    const Invariant *v = &invariants[row->values[INVARIANT]];
    char words[WORDS];
    row_words(row, false, words, sizeof words);
    const char *found =
        v->change == RESUMED ? check_resumed(v, words, number) : check_other(v, row, words);
    if (!found) return;
    failures++;
    print_error("%s: %s: train_gpt2 %s\n", v->name, found, words);
}

// ---------------------------------------------------------------------------------------- the rows

static Pairs pairs;

static void pairs_begin(void) {
    memset(&pairs, 0, sizeof pairs);
    pairs.value = value_of;
    for (int d = 0; d < DIMENSIONS; d++) {
        pairs.counts[d] = dimensions[d].count;
        if (dimensions[d].count > MOST_VALUES) fail_msg("more than %d values", MOST_VALUES);
    }
    for (int i = 0; i < LENGTH(precision_values); i++)
        pairs.absent[PRECISION][i] = (precision_values[i].has & HAS_FP16) && !is_simulated();
    for (int i = 0; i < LENGTH(invariants); i++)
        pairs.absent[INVARIANT][i] = !is_asked_here(&invariants[i]);
}

// Every pair of values.
static int check_pairs(int invariant) {
    int count = 0;
    Row row;
    pairs_begin();
    while (pairs_next(&pairs, &row)) {
        if (row.values[INVARIANT] != invariant) continue;
        check_row(&row, pairs.rows);
        count++;
    }
    return count;
}

// Every family, optimizer and precision, which meet a third of the invariants: any three of these
// four meet. The other values change from row to row, whatever the invariant.
static int check_threes(int invariant) {
    int count = 0;
    pairs_begin();
    for (int f = 0; f < pairs.counts[FAMILY]; f++)
        for (int o = 0; o < pairs.counts[OPTIMIZER]; o++)
            for (int p = 0; p < pairs.counts[PRECISION]; p++) {
                Row row;
                for (int d = 0; d < DIMENSIONS; d++) row.values[d] = ANY;
                row.values[FAMILY] = f, row.values[OPTIMIZER] = o, row.values[PRECISION] = p;
                row.values[INVARIANT] = 0;
                if (!pairs_allow(&pairs, &row, OPTIMIZER, o) ||
                    !pairs_allow(&pairs, &row, FAMILY, f))
                    continue;
                if (!pairs_fill(&pairs, &row)) continue;

                pairs_take(&pairs, &row);
                row.values[INVARIANT] = invariant;
                if ((f + o + p + invariant) % 3 != 0 ||
                    !pairs_allow(&pairs, &row, INVARIANT, invariant))
                    continue;
                check_row(&row, pairs.rows);
                count++;
            }
    return count;
}

static void check_invariant(void **state) {
    const Invariant *v = *state;
    const int i = (int)(v - invariants);
    failures = 0;
    const int count = takes_all() ? check_threes(i) : check_pairs(i);
    print_message("%d rows\n", count);
    assert_true(count > 0);
    if (failures > 0) fail_msg("%d of %d rows differ", failures, count);
}

__attribute__((constructor)) static void register_invariants(void) {
    static char names[LENGTH(invariants)][128];
    for (int i = 0; i < LENGTH(invariants); i++) {
        if (!is_asked_here(&invariants[i])) continue;
        snprintf(names[i], sizeof names[i], "a_run_%s_has_the_same_bits", invariants[i].name);
        test_add(i, (struct CMUnitTest){names[i], check_invariant, NULL, NULL,
                                        (void *)(uintptr_t)&invariants[i]});
    }
}

// -------------------------------------------------------------------------- what makes another run

// Otherwise two rows of the table would be one, and a comparison of them would show nothing.
TEST(each_value_of_the_table_makes_another_run) {
    enum { MOST = DIMENSIONS * MOST_VALUES };
    uint64_t weights[MOST];
    char words[WORDS];
    int count = 0;

    pairs_begin();
    for (int d = 0; d < INVARIANT; d++)
        for (int i = d == FAMILY ? 0 : 1; i < pairs.counts[d]; i++) {
            Row row = {{0}};
            row.values[PRECISION] = 1;
            row.values[d] = i;
            const bool is_same = d == KEPT || (d == UPDATE && i > 2) || (d == CONTEXT && i > 2);
            if (is_same || (d == PRECISION && i == 1) || pairs.absent[d][i]) continue;

            row_words(&row, false, words, sizeof words);
            weights[count] = plain(words)->weights;
            for (int other = 0; other < count; other++)
                if (weights[other] == weights[count]) fail_msg("as another row: %s", words);
            count++;
        }
}

// Options by which a resume could not be that run.
TEST(a_resume_refuses_what_would_be_another_run_by_its_name) {
    static const struct {
        const char *words, *names;
    } refused[] = {{"--seed 5", "--seed 5"},
                   {"-t 80", "-t 80"},
                   {"-e L=3,C=48,NH=3,T=96", "-e L=3"},
                   {"--d-ff 80", "--d-ff 80"},
                   {"--optimizer lion", "--optimizer"}};
    char words[WORDS], again[WORDS], path[PATH_MAX];
    const Row row = {{0}};
    const TmpDir dir = run_directory();

    row_words(&row, false, words, sizeof words);
    run(dir.path, words, "", 1);
    snprintf(path, sizeof path, "%s/stderr", dir.path);

    for (int i = 0; i < LENGTH(refused); i++) {
        unlink(path);
        snprintf(again, sizeof again, "-o run -y %s -x 9", refused[i].words);
        assert_int_equal(trainer_run(dir.path, again, "", 1), EXIT_BAD_INPUT);
        AUTO_FREE char *said = read_text(path);
        if (!strstr(said, refused[i].names)) fail_msg("%s: %s", refused[i].words, said);
    }

    tmpdir_remove(&dir);
}
