// Checkpoints: what is saved comes back to the same bits, and whatever happens to the files or to
// the process, there is either a checkpoint that verifies or a clear word about why not.

#include "llmc/base/directory.h"
#include "llmc/base/file.h"
#include "llmc/base/random.h"
#include "llmc/store/checkpoint.h"
#include "llmc/store/optimizer_file.h"
#include "llmc/store/trainer_json.h"
#include "llmc/store/weights_file.h"
#include "llmc/text/tokenizer_open.h"
#define DEVICE_THREADS 1
#include "test/fixture.h"
#include "test/unit/device_fixture.h"
#include "test/unit/store_fixture.h"
#include "test/unit/tiny_model.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <malloc.h>
#include <math.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <time.h>

static Model *model; // a small one in fp32, for tests that are not about its values

// V = 130 leaves rows of padding, C = 80 is no multiple of the transposition's strips.
static const ModelConfig config = {.max_T = 16, .V = 130, .Vp = 256, .L = 2, .NH = 4, .C = 80};

static Model *make_model(void) {
    return model_of(
        (ModelOptions){.config = config, .dtype = DTYPE_FP32, .train = true, .B = 1, .T = 16});
}

static TrainerState make_state(int64_t step) {
    TrainerState s = {.step = step,
                      .position = 3 * step,
                      .T = 16,
                      .seed = 1337,
                      .best_val_loss = 3.25,
                      .eot = 129};
    s.control = step_control_initial(1.0f);
    // given by save: never freed here
    s.options_json = (char *)"{\"batch-size\": 4, \"output\": \"out\"}";
    return s;
}

#define TRAINER_FILE tmp_file("step_00000001/trainer.json")

static void save(int64_t step) {
    TrainerState s = make_state(step);
    assert_ok(checkpoint_save(tmp.path, model, &s, &err));
}

// Flips one bit of a file.
static void flip(const char *path, size_t byte) {
    size_t n;
    AUTO_FREE unsigned char *data = read_bytes(path, &n);
    assert_true(byte < n);
    data[byte] ^= 4;
    write_bytes(path, data, n);
}

// The checkpoint that a resume would take must be this one; words, if any, are in the lines about
// those it skips.
static void assert_latest(const char *name, const char *const *words) {
    char *path, *skipped;
    assert_ok(checkpoint_find_latest(tmp.path, &path, &skipped, &err));
    assert_string_equal(path, tmp_file(name));
    for (; words && *words; words++)
        if (!skipped || !strstr(skipped, *words))
            fail_msg("'%s' is not in: %s", *words, skipped ? skipped : "nothing");
    free(path), free(skipped);
}
#define ASSERT_SKIPPED(name, ...) assert_latest(name, (const char *const[]){__VA_ARGS__, NULL})

// ------------------------------------------------------------------------------------- the content

TEST(the_trainers_state_comes_back_exactly) {
    TrainerState s = make_state(123456789012), back;

    s.position = ((int64_t)1 << 53) - 1;
    s.seed = UINT64_MAX;
    s.best_val_loss = 1.0 / 3.0;
    s.control.loss = (float)NAN;
    s.control.norm = (float)INFINITY;
    s.control.grad_factor = 1.0f / 3.0f;
    s.control.loss_z = -0.1f;
    s.control.norm_z = 1.17549449e-38f; // about FLT_MIN; smaller ones the CPU backend takes for 0
    s.control.skip = SKIP_NONFINITE;
    s.control.bad_tensor = 7;
    s.control.skipped = 3;
    s.control.loss_scale = 65536.0f;
    s.control.good_steps = 99;
    s.control.micro_steps = UINT32_MAX;
    s.control.updates = INT32_MAX;

    s.train = (DataFacts){((int64_t)1 << 53) - 1, UINT64_MAX, UINT64_MAX - 1};
    SourceState sources[] = {{(char *)"a \"b\"/*.bin", 999999, 7, {1, 2, 8}},
                             {(char *)"c", 1, 0, {3, 4, 0}},
                             {(char *)"d", 0, 5, {6, 7, 9}}};
    s.sources = sources, s.source_count = 3, s.mixture_start = 12;

    for (int i = 0; i < 200; i++)
        outlier_window_push(&s.control.loss_window, philox_uniform(philox(1, 2, (uint64_t)i).v[0]));
    for (int i = 0; i < 5; i++) outlier_window_push(&s.control.norm_window, 1.0f / (float)(i + 3));

    assert_ok(checkpoint_save(tmp.path, model, &s, &err));
    assert_latest("step_123456789012", NULL);
    assert_ok(checkpoint_load_state(tmp_file("step_123456789012"), &back, &err));

    assert_int_equal(back.step, s.step);
    assert_int_equal(back.position, s.position);
    assert_int_equal(back.T, s.T);
    assert_true(back.seed == s.seed);
    assert_true(back.best_val_loss == s.best_val_loss);
    assert_int_equal(back.eot, s.eot);
    assert_int_equal(back.optimizer, OPTIMIZER_ADAMW);
    assert_memory_equal(&back.train, &s.train, sizeof s.train);
    assert_int_equal(back.val.tokens, 0);

    assert_int_equal(back.mixture_start, 12);
    assert_int_equal(back.source_count, 3);
    for (int i = 0; i < 3; i++) {
        assert_string_equal(back.sources[i].pattern, sources[i].pattern);
        assert_int_equal(back.sources[i].weight, sources[i].weight);
        assert_int_equal(back.sources[i].drawn, sources[i].drawn);
        assert_memory_equal(&back.sources[i].facts, &sources[i].facts, sizeof sources[i].facts);
    }

    assert_true(isnan(back.control.loss));
    back.control.loss = s.control.loss; // which NaN it is does not matter
    assert_memory_equal(&back.control, &s.control, sizeof s.control);
    assert_string_equal(back.options_json, "{\"batch-size\":4,\"output\":\"out\"}");
    trainer_state_free(&back);
}

TEST(what_is_not_known_yet_comes_back_as_such) {
    TrainerState s = make_state(1), back;
    s.best_val_loss = (double)INFINITY; // no validation
    s.eot = -1, s.options_json = NULL;
    assert_ok(checkpoint_save(tmp.path, model, &s, &err));
    assert_ok(checkpoint_load_state(tmp_file("step_00000001"), &back, &err));
    assert_true(isinf(back.best_val_loss) && back.best_val_loss > 0 && back.eot == -1);
    assert_string_equal(back.options_json, "{}");
    trainer_state_free(&back);
}

TEST(a_model_of_another_shape_is_refused) {
    ModelOptions options = *model_options(model);
    options.config.max_T = 32;
    options.T = 32;
    Model *other = model_of(options);

    save(1);
    assert_error(weights_file_load(other, tmp_file("step_00000001"), &err),
                 "a model of L=2,C=80,NH=4,V=130,T=16, expected L=2,C=80,NH=4,V=130,T=32");
    assert_error(
        optimizer_file_load(other, tmp_file("step_00000001"), &err),
        "optimizer.safetensors: tensor exp_avg.transformer.wpe.weight is not the fp32 tensor");

    const ModelConfig others[] = {{.max_T = 16, .V = 130, .Vp = 256, .L = 3, .NH = 4, .C = 80},
                                  {.max_T = 16, .V = 130, .Vp = 256, .L = 2, .NH = 5, .C = 80},
                                  {.max_T = 16, .V = 130, .Vp = 256, .L = 2, .NH = 4, .C = 64},
                                  {.max_T = 16, .V = 131, .Vp = 256, .L = 2, .NH = 4, .C = 80}};

    options = *model_options(model);
    options.config.d_ff = 72;
    assert_error(weights_file_load(model_of(options), tmp_file("step_00000001"), &err),
                 "a model of d_ff = 320, expected 72");

    for (size_t i = 0; i < sizeof others / sizeof *others; i++) {
        options = *model_options(model);
        options.config = others[i];
        assert_error(weights_file_load(model_of(options), tmp_file("step_00000001"), &err),
                     ", expected L=");
    }
}

// ------------------------------------------------------------------------------ which one is taken

TEST(the_newest_that_verifies_is_found_and_the_others_named) {
    for (int64_t step = 1; step <= 5; step++) save(step);
    flip(tmp_file("step_00000005/optimizer.safetensors"), 5000);
    assert_int_equal(truncate(tmp_file("step_00000004/model.safetensors"), 1000), 0);
    unlink(tmp_file("step_00000003/trainer.json"));
    unlink(tmp_file("step_00000002/config.json"));
    ASSERT_SKIPPED("step_00000001", "step_00000005/optimizer.safetensors: checksum ", "\n",
                   "step_00000004/model.safetensors: 1000 bytes, expected ",
                   "step_00000003/trainer.json: cannot open",
                   "step_00000002/config.json: No such file");
}

// The tokenizer is saved too, and the manifest then covers it. The byte one has more tokens than
// the model here, which is not this module's business.
static void save_with_tokenizer(int64_t step) {
    TrainerState s = make_state(step);
    Tokenizer *bytes = tokenizer_bytes(&err);
    s.tokenizer = bytes;
    assert_ok(checkpoint_save(tmp.path, model, &s, &err));
    tokenizer_free(bytes);
}

TEST(the_tokenizer_is_part_of_a_checkpoint_that_has_one) {
    save(1);
    save_with_tokenizer(2);
    assert_int_equal(entries_of(tmp_file("step_00000001")), 4);
    assert_int_equal(entries_of(tmp_file("step_00000002")), 6);

    Tokenizer *bytes = tokenizer_bytes(&err),
              *back = tokenizer_open(tmp_file("step_00000002"), &err);
    if (!back) fail_msg("%s", err.text);
    assert_true(tokenizer_fingerprint(back) == tokenizer_fingerprint(bytes));
    tokenizer_free(back);
    tokenizer_free(bytes);

    assert_latest("step_00000002", NULL);
    unlink(tmp_file("step_00000002/tokenizer_config.json"));
    // it never had one
    ASSERT_SKIPPED("step_00000001", "step_00000002/tokenizer_config.json: No such file");
    assert_ok(checkpoint_rotate(tmp.path, 1, 0, 2, &err)); // what is not whole takes nobody's place
    assert_true(file_exists(tmp_file("step_00000001")));
}

TEST(a_directory_without_checkpoints_has_none) {
    char *path, *skipped;
    assert_int_equal(mkdir(tmp_file("step_12"), 0755), 0); // not a name of ours
    assert_int_equal(mkdir(tmp_file("step_00000012"), 0755), 0);
    assert_int_equal(mkdir(tmp_file("step_-0000012"), 0755), 0);
    assert_int_equal(mkdir(tmp_file("step_1234567890123456789"), 0755), 0); // 19 digits

    bool exists = true;
    assert_ok(checkpoint_exists(tmp.path, &exists, &err));
    assert_false(exists);
    assert_ok(checkpoint_exists(tmp_file("none"), &exists, &err));
    assert_false(exists);

    assert_false(checkpoint_find_latest(tmp_file("none"), &path, &skipped, &err));
    assert_string_equal(err.text, "");
    assert_null(skipped);

    save(13);
    assert_ok(checkpoint_exists(tmp.path, &exists, &err));
    assert_true(exists);

    write_text(tmp_file("file"), "x");
    assert_error(checkpoint_find_latest(tmp_file("file"), &path, &skipped, &err),
                 "file: cannot open the directory: Not a directory");
}

// This system call fails from here on.
static void fail_call(int number, int error) {
    struct sock_filter filter[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (uint32_t)number, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | (uint32_t)error),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    const struct sock_fprog program = {.len = sizeof filter / sizeof filter[0], .filter = filter};
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 ||
        prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) != 0)
        _exit(77);
}

static int wrong_where_directories_fail(void *context) {
    char *path, *skipped;
    bool exists;
    static const char expected[] = ": cannot read the directory: Input/output error";
    (void)context, fail_call(SYS_getdents64, EIO);
    const bool found =
        checkpoint_find_latest(tmp.path, &path, &skipped, &err) || !strstr(err.text, expected);
    return found || checkpoint_exists(tmp.path, &exists, &err) || !strstr(err.text, expected);
}

static int wrong_where_files_fail(void *context) {
    char *path, *skipped;
    (void)context, fail_call(SYS_pread64, EIO);
    const bool found = checkpoint_find_latest(tmp.path, &path, &skipped, &err);
    return found || !strstr(err.text, ": its checkpoints cannot be read now: Input/output error");
}

static int wrong_where_names_are_stale(void *context) {
    bool exists;
    (void)context, fail_call(SYS_newfstatat, ESTALE);
    return checkpoint_exists(tmp.path, &exists, &err) && !exists;
}

TEST(what_cannot_be_read_now_is_not_taken_for_absent_or_damaged) {
    int (*const wrong[])(void *) = {wrong_where_directories_fail, wrong_where_files_fail,
                                    wrong_where_names_are_stale};
    char said[64];
    save(1);
    for (int i = 0; i < 3; i++) {
        const int status = status_of_child(wrong[i], NULL, said, sizeof said);
        if (WEXITSTATUS(status) == 77) skip(); // no seccomp here
        if (status != 0) fail_msg("case %d", i);
    }
}

TEST(a_renamed_checkpoint_is_not_taken_for_a_newer_one) {
    save(1);
    save(2);
    assert_int_equal(rename(tmp_file("step_00000001"), tmp_file("step_00000003")), 0);
    ASSERT_SKIPPED("step_00000002", "written at step 1, not at this directory's");
}

// ------------------------------------------------------------------------------------------ saving

TEST(saving_removes_what_killed_runs_left) {
    assert_ok(directory_make(tmp_file(".tmp-step_00000001"), &err));
    assert_ok(directory_make(tmp_file(".tmp-step_00000007"), &err));
    write_text(tmp_file(".tmp-step_00000007/model.safetensors"),
               "half: {\"__metadata__\":{" SAFETENSORS_MARK);
    write_text(tmp_file(".tmp-step_00000007/config.json.tmp-123"), "");
    // one that was open when it was removed
    write_bytes(tmp_file(".tmp-step_00000007/.nfs0001"), "", 0);
    write_bytes(tmp_file(".tmp-probe.tmp-123"), "", 0); // of directory_check_writable, killed
    save(1);
    assert_int_equal(entries_of(tmp.path), 1);
    assert_int_equal(entries_of(tmp_file("step_00000001")), 4);
}

TEST(the_same_step_may_be_saved_again_and_files_of_others_stay_in_sight) {
    save(1);
    write_text(tmp_file("step_00000001/notes.txt"), "mine");
    write_text(tmp_file("step_00000001/.nfs0001"), "a file that is open elsewhere is nobody's");

    TrainerState s = make_state(1), back;
    s.position = 77;
    assert_ok(checkpoint_save(tmp.path, model, &s, &err));
    assert_ok(checkpoint_load_state(tmp_file("step_00000001"), &back, &err));
    assert_int_equal(back.position, 77);
    trainer_state_free(&back);

    assert_int_equal(entries_of(tmp_file("step_00000001")), 4);
    assert_true(file_exists(tmp_file("step_00000001.1/notes.txt")));
    assert_int_equal(entries_of(tmp.path), 2);

    assert_ok(checkpoint_save(tmp.path, model, &s, &err)); // with nothing of others in it
    assert_int_equal(entries_of(tmp.path), 2);
    assert_latest("step_00000001", NULL);
}

TEST(a_model_of_others_in_the_place_of_a_checkpoint_stays_in_sight) {
    static const char *const names[] = {"step_00000001", ".tmp-step_00000001"};
    for (int i = 0; i < 2; i++) {
        char name[64];
        assert_ok(directory_make(tmp_file(names[i]), &err));
        snprintf(name, sizeof name, "%s/model.safetensors", names[i]);
        write_text(tmp_file(name), "mine");

        save(1);
        assert_int_equal(entries_of(tmp_file("step_00000001")), 4);

        snprintf(name, sizeof name, "step_00000001.%d/model.safetensors", i + 1);
        AUTO_FREE char *text = read_text(tmp_file(name));
        assert_string_equal(text, "mine");
    }
}

// RLIMIT_FSIZE makes writes fail at some byte as a full disk does; each limit stops in another
// file.
TEST(a_failed_save_leaves_the_checkpoints_before_it) {
    save(1);
    struct stat model_file;
    assert_int_equal(stat(tmp_file("step_00000001/model.safetensors"), &model_file), 0);
    const rlim_t limits[] = {0, (rlim_t)model_file.st_size / 2, (rlim_t)model_file.st_size + 100};
    const char *const files[] = {"model.safetensors: cannot write",
                                 "model.safetensors: cannot write",
                                 "optimizer.safetensors: cannot write"};

    for (int i = 0; i < 3; i++) {
        TrainerState s = make_state(2);

        limit_file_size(limits[i]);
        const bool ok = checkpoint_save(tmp.path, model, &s, &err);
        limit_file_size(RLIM_INFINITY);

        assert_false(ok);
        assert_message(files[i]);
        assert_int_equal(entries_of(tmp.path), 1);
        assert_latest("step_00000001", NULL);
    }
}

// Saves with so much more address space than is in use now; 0: it is saved, or there was an error,
// or a bug report.
enum {
    OUT_OF_MEMORY = 1,
    CLAIMED
}; // out_of_memory in llmc/base/error.h; a save that nobody can read

typedef struct {
    TrainerState state;
    rlim_t more;
} Save;

static int save_within(void *context) {
    const Save *s = context;
    long pages = 0;
    TrainerState back;
    malloc_trim(0); // what earlier tests have freed counts as in use
    FILE *f = fopen("/proc/self/statm", "r");
    if (!f || fscanf(f, "%ld", &pages) != 1) return 2;
    fclose(f);
    limit_resource(RLIMIT_AS, (rlim_t)pages * (rlim_t)sysconf(_SC_PAGESIZE) + s->more);
    const bool ok = checkpoint_save(tmp.path, model, &s->state, &err);
    limit_resource(RLIMIT_AS, RLIM_INFINITY);
    return ok && !checkpoint_load_state(tmp_file("step_00000001"), &back, &err) ? CLAIMED : 0;
}

TEST(a_save_that_runs_out_of_memory_never_claims_to_be_one) {
#ifdef __SANITIZE_ADDRESS__
    print_message("AddressSanitizer needs the address space for itself\n");
    skip();
#endif

    enum { PROMPT = 12 << 20 }; // its text is put together in memory that doubles
    Save s = {.state = make_state(1)};
    AUTO_FREE char *json = malloc(PROMPT + 64);
    char said[512];

    const int n = sprintf(json, "{\"prompt\": \"");
    memset(json + n, 'x', PROMPT);
    memcpy(json + n + PROMPT, "\"}", sizeof "\"}");
    s.state.options_json = json;

    for (s.more = 0; s.more < 48u << 20; s.more += 1u << 19) {
        const int status = status_of_child(save_within, &s, said, sizeof said);
        if (!WIFEXITED(status) || WEXITSTATUS(status) > OUT_OF_MEMORY)
            fail_msg("with %lld bytes to spare", (long long)s.more);
    }
}

// This program, started again as "test_checkpoint DIR": saves one step after the other until it is
// killed.
static int save_until_killed(const char *directory) {
    if (start_device(NULL) != 0) return 1;
    model = make_model();
    TrainerState s = make_state(0);
    char *path, *skipped;

    if (checkpoint_find_latest(directory, &path, &skipped, &err)) {
        if (!checkpoint_load_state(path, &s, &err)) return 1;
        free(path);
    }

    for (;; s.step++, s.position++)
        for (int again = 0; again < 2; again++) // the second one replaces the first
            if (!checkpoint_save(directory, model, &s, &err) ||
                !checkpoint_rotate(directory, 2, 0, s.step, &err))
                return 1;
}

// The highest step that a checkpoint is named after.
static int64_t last_name(void) {
    long long step = 0, found;
    DIR *directory = opendir(tmp.path);
    assert_non_null(directory);
    for (struct dirent *entry; (entry = readdir(directory));)
        if (sscanf(entry->d_name, "step_%lld", &found) == 1 && found > step) step = found;
    closedir(directory);
    return step;
}

TEST(a_kill_at_any_moment_leaves_a_checkpoint_that_verifies) {
    char self[PATH_MAX] = {0};
    assert_true(readlink("/proc/self/exe", self, sizeof self - 1) > 0);
    save(0);
    int64_t last = 0;
    const char *wanted = getenv("KILLS");

    for (int round = 0, rounds = wanted ? atoi(wanted) : 12; round < rounds; round++) {
        int status;
        pid_t child = fork();
        if (child == 0) {
            prctl(PR_SET_PDEATHSIG, SIGKILL); // it does not outlive a test that failed
            execl(self, self, tmp.path, (char *)NULL), _exit(1);
        }

        // It must get one step further, and then a random part of a few saves.
        while (last_name() <= last && waitpid(child, &status, WNOHANG) == 0) usleep(1000);
        usleep(philox(7, 7, (uint64_t)round).v[0] % 20000);
        kill(child, SIGKILL);
        assert_int_equal(waitpid(child, &status, 0), child);
        assert_true(WIFSIGNALED(status)); // it did not end by itself, with an error

        char *path, *skipped;
        TrainerState s;
        assert_ok(checkpoint_find_latest(tmp.path, &path, &skipped, &err));
        if (skipped) fail_msg("%s", skipped); // no half checkpoint had its final name
        assert_ok(checkpoint_load_state(path, &s, &err));
        assert_true(s.step > last);
        last = s.step;
        trainer_state_free(&s);
        free(path);
    }
}

// ---------------------------------------------------------------------------------------- rotation

TEST(rotation_does_not_count_what_is_no_checkpoint) {
    for (int64_t step = 1; step <= 4; step++) save(step);
    unlink(tmp_file("step_00000004/trainer.json"));
    assert_int_equal(truncate(tmp_file("step_00000003/model.safetensors"), 10), 0);
    save(5);
    assert_ok(checkpoint_rotate(tmp.path, 2, 0, 5, &err));
    assert_false(file_exists(tmp_file("step_00000001")));
    assert_true(file_exists(tmp_file("step_00000002/trainer.json")));
    assert_latest("step_00000005", NULL);
}

// A resume skipped step 9, which only its checksum gives away, and continued from step 1.
TEST(rotation_goes_by_the_step_and_never_removes_what_was_saved_or_resumed_from) {
    const struct timespec ahead[2] = {{.tv_sec = time(NULL) + 1000}, {.tv_sec = time(NULL) + 1000}};

    save(1);
    save(9);
    flip(tmp_file("step_00000009/model.safetensors"), 5000);
    assert_int_equal(utimensat(AT_FDCWD, tmp_file("step_00000009/trainer.json"), ahead, 0), 0);

    assert_ok(checkpoint_rotate(tmp.path, 1, 0, 1, &err)); // at the resume
    assert_latest("step_00000001", (const char *[]){"step_00000009", NULL});

    save(2);
    assert_ok(checkpoint_rotate(tmp.path, 1, 0, 2, &err));
    assert_false(file_exists(tmp_file("step_00000001")));
    assert_true(file_exists(tmp_file("step_00000009")));
    assert_latest("step_00000002", NULL);
}

TEST(of_a_checkpoint_that_is_a_link_only_the_link_is_replaced_or_removed) {
    assert_ok(directory_make(tmp_file("elsewhere"), &err));
    for (int64_t step = 1; step <= 3; step++) {
        char name[64], place[64];
        save(step);
        if (step == 3) break;
        snprintf(name, sizeof name, "step_%08lld", (long long)step);
        snprintf(place, sizeof place, "elsewhere/%s", name);
        assert_int_equal(rename(tmp_file(name), tmp_file(place)), 0);
        assert_int_equal(symlink(place, tmp_file(name)), 0);
    }

    save(2); // over the link
    assert_ok(checkpoint_rotate(tmp.path, 2, 0, 3, &err));
    assert_int_equal(entries_of(tmp.path), 3);
    assert_int_equal(entries_of(tmp_file("elsewhere/step_00000001")), 4);
    assert_int_equal(entries_of(tmp_file("elsewhere/step_00000002")), 4);

    struct stat st;
    assert_int_equal(lstat(tmp_file("step_00000002"), &st), 0);
    assert_true(S_ISDIR(st.st_mode));
}

// The files of a directory are moved one by one where it cannot be renamed; `moved` of them are
// when a kill comes.
static void move_some(const char *from, const char *to, const char *const *moved) {
    assert_true(mkdir(tmp_file(to), 0755) == 0 || errno == EEXIST);
    for (; *moved; moved++) {
        char source[96], target[96];
        snprintf(source, sizeof source, "%s/%s", from, *moved);
        snprintf(target, sizeof target, "%s/%s", to, *moved);
        assert_int_equal(rename(tmp_file(source), tmp_file(target)), 0);
    }
}

TEST(what_a_kill_left_of_a_save_or_a_removal_is_completed_at_the_next_start) {
    static const char step[] = "step_00000002", temporary[] = ".tmp-step_00000002";
    save(1);
    save(2);

    // the last call of a save, or the first of a removal
    assert_int_equal(rename(tmp_file(step), tmp_file(temporary)), 0);
    checkpoint_clean(tmp.path);
    assert_latest(step, NULL);

    // a removal
    move_some(step, temporary, (const char *const[]){"trainer.json", "config.json", NULL});
    checkpoint_clean(tmp.path);
    assert_latest(step, NULL);

    // A save over another one, whose files are larger.
    assert_int_equal(rename(tmp_file(step), tmp_file(temporary)), 0);
    save_with_tokenizer(2);
    assert_latest(step, NULL);
    assert_int_equal(entries_of(tmp.path), 2);

    move_some(step, temporary, (const char *const[]){"trainer.json", "model.safetensors", NULL});
    write_text(tmp_file("step_00000002/trainer.json"), "{\"best_val_loss\": 0, \"xxh3\": 1}");
    checkpoint_clean(tmp.path);
    assert_latest(step, NULL);
    assert_int_equal(entries_of(tmp_file(step)), 6);

    // Half of a save: its manifest comes last.
    move_some(step, temporary, (const char *const[]){"model.safetensors", "config.json", NULL});
    checkpoint_clean(tmp.path);
    assert_int_equal(entries_of(tmp.path), 2);
    ASSERT_SKIPPED("step_00000001", "step_00000002/model.safetensors: No such file");
}

TEST(rotation_leaves_what_holds_files_of_others_and_removes_the_rest) {
    for (int64_t step = 1; step <= 5; step++) save(step);
    assert_ok(directory_make(tmp_file("step_00000002/eval"), &err));
    write_bytes(tmp_file("step_00000003/notes.txt"), "mine", 4);
    assert_error(checkpoint_rotate(tmp.path, 1, 0, 5, &err),
                 "step_00000003 is kept: notes.txt in it was not written by this program");
    assert_int_equal(entries_of(tmp.path), 3);
    assert_int_equal(entries_of(tmp_file("step_00000002")), 5);
    assert_int_equal(entries_of(tmp_file("step_00000003")), 5);
    assert_latest("step_00000005", NULL);
}

// --------------------------------------------------------------------------------------- any bytes

// A run without validation has no "val", one that only evaluated no "train".
static void state_refuses(FieldChange change, const char *name) {
    const bool may_be_missing = strcmp(name, "train") == 0 || strcmp(name, "val") == 0 ||
                                strcmp(name, "mixture") == 0 ||
                                strcmp(name, "learning_rate") == 0; // earlier versions have none
    TrainerState s;

    err.text[0] = '\0';
    seal_again(TRAINER_FILE);
    const bool ok = checkpoint_load_state(tmp_file("step_00000001"), &s, &err);
    const bool is_newer = strcmp(name, "contents") == 0; // checkpoints of before have none

    if (ok != (change == FIELD_MISSING && (may_be_missing || is_newer)))
        fail_msg("\"%s\", change %d: %s", name, (int)change, err.text);
    if (change == FIELD_TWICE) assert_message("is stated twice");
    trainer_state_free(&s);
}

TEST(every_field_of_a_trainer_file_is_there_once_and_of_its_kind) {
    TrainerState s = make_state(1);
    s.train = (DataFacts){1000, 7, 1}, s.val = (DataFacts){100, 8, 2};
    s.sources = &(SourceState){(char *)"web", 1, 0, {1000, 7, 1}}, s.source_count = 1;
    assert_ok(checkpoint_save(tmp.path, model, &s, &err));
    AUTO_FREE char *text = read_text(TRAINER_FILE);
    memcpy(strstr(text, ",\n  \"xxh3\": \""), "\n}\n",
           4); // the checksum of the file itself; state_refuses adds it
    write_text(TRAINER_FILE, text);
    change_every_field(TRAINER_FILE, "options", state_refuses);
}

TEST(a_file_in_place_of_a_directory_is_an_error) {
    char *path, *skipped;
    bool exists;
    const TrainerState s = make_state(1);

    write_text(tmp_file("plain"), "text");
    assert_error(checkpoint_save(tmp_file("plain/run"), model, &s, &err), "plain/run");
    assert_error(checkpoint_find_latest(tmp_file("plain"), &path, &skipped, &err), "plain");
    assert_error(checkpoint_exists(tmp_file("plain"), &exists, &err), "plain");
    assert_error(checkpoint_exists(tmp_file("plain/run"), &exists, &err), "plain/run");
    assert_error(checkpoint_rotate(tmp_file("plain"), 1, 0, 1, &err), "plain");
    assert_true(checkpoint_newest_bytes(tmp_file("plain")) == 0);

    checkpoint_clean(tmp_file("plain"));
    assert_true(file_exists(tmp_file("plain")));
}

// -------------------------------------------------------------------------------------------- main

static int start(void **state) {
    if (start_device(state) != 0) return -1;
    model = make_model();
    return 0;
}

static int stop(void **state) {
    models_destroy(state);
    return stop_device(state);
}
TestFixture test_each = {setup, tmp_teardown}, test_all = {start, stop};

int main(int argc, char **argv) {
    if (argc > 1) return save_until_killed(argv[1]);
    return test_run();
}
