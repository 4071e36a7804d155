// The command line: every form of a value, help and JSON from the one table. What is refused:
// test/refusals.txt.
#include "llmc/base/format.h"
#include "llmc/base/typed_path.h"
#include "llmc/run/options_together.h"
#include "test/fixture.h"

#include <math.h>

enum { MAX_ARGUMENTS = 40 };

TestFixture test_each = {tmp_setup, tmp_teardown};

// Parses "trainer" and the blank-separated words of `line`.
static OptionsResult parse(Options *options, const char *line, Error *err) {
    char copy[1024], *argv[MAX_ARGUMENTS + 1] = {"trainer"}, *rest = NULL;
    int argc = 1;
    snprintf(copy, sizeof copy, "%s", line);
    for (char *word = strtok_r(copy, " ", &rest); word; word = strtok_r(NULL, " ", &rest)) {
        assert_true(argc < MAX_ARGUMENTS);
        argv[argc++] = word;
    }
    argv[argc] = NULL;
    err->text[0] = '\0';
    const OptionsResult result = options_parse(options, argc, argv, err);
    return result == OPTIONS_RUN && !options_check_together(options, err) ? OPTIONS_ERROR : result;
}

static Options parsed(const char *line) {
    Options options;
    Error err;
    OptionsResult result = parse(&options, line, &err);
    if (result != OPTIONS_RUN) fail_msg("%s: %s", line, err.text);
    return options;
}

// "max-steps=-1 plan=json": what this command line makes of options, by their long names.
static void assert_reads(const char *line, const char *expected) {
    Options options = parsed(line);
    char copy[512], *rest = NULL;
    snprintf(copy, sizeof copy, "%s", expected);
    for (char *name = strtok_r(copy, " ", &rest); name; name = strtok_r(NULL, " ", &rest)) {
        char *value = strchr(name, '=');
        *value++ = '\0';
        char buf[OPTION_VALUE];
        const char *found = option_value(option_find(name, strlen(name)), &options, buf);
        if (strcmp(found, value) != 0) fail_msg("%s: --%s is %s, not %s", line, name, found, value);
    }
    options_free(&options);
}

TEST(without_arguments_the_defaults_hold) {
    assert_reads(
        "", "train-data=data/shards/train_*.bin val-data= model=d12 dtype=auto "
            "schedule=cosine output= batch-size=4 context=0 max-steps=-1 warmup=-1 seed=1337 "
            "checkpoint-every=1000 learning-rate=-1 beta2=-1 eps=-1 by-group= grad-clip=1 plan=");
    Options o = parsed("");
    assert_false(options_given(&o, "batch-size"));
    assert_true(o.dtype == DTYPE_COUNT && o.plan == PLAN_NONE);
    options_free(&o);
}

TEST(a_value_may_follow_with_blank_or_equals_one_dash_or_two) {
    const char *const forms[] = {"-b 12",           "-b=12",          "--b 12",
                                 "--b=12",          "-batch-size 12", "-batch-size=12",
                                 "--batch-size 12", "--batch-size=12"};
    for (size_t i = 0; i < sizeof forms / sizeof forms[0]; i++) {
        Options o = parsed(forms[i]);
        assert_int_equal(o.B, 12);
        assert_true(options_given(&o, "batch-size") && options_given(&o, "b"));
        assert_false(options_given(&o, "context"));
        options_free(&o);
    }
}

// The last word of "a|b|c" or "[a|b]" into buf.
static void last_word(const OptionRow *row, char buf[OPTION_VALUE]) {
    const char *last = strrchr(row->metavar, '|') + 1;
    snprintf(buf, OPTION_VALUE, "%.*s", (int)strcspn(last, "]"), last);
}

TEST(every_row_reaches_its_own_field) {
    for (const OptionRow *row = option_table; row->long_name; row++) {
        char line[128], value[OPTION_VALUE] = "some.json", buf[OPTION_VALUE], other[OPTION_VALUE];
        double number = row->min < row->max
                            ? (row->min + row->max > 0.0 ? 0.5 * (row->min + row->max) : row->max)
                            : row->min;

        if (row->type == OPTION_WORD) last_word(row, value);
        if (strcmp(row->long_name, "by-group") == 0) strcpy(value, "vectors.decay=0.5");
        if (row->type < OPTION_STRING)
            format_exact(row->type < OPTION_DOUBLE ? trunc(number) : number, value, sizeof value);

        const char *others = "-o d -y --plan --gpu h100 --max-minutes 60";
        snprintf(line, sizeof line, "%s --%s=%s", others, row->long_name, value);

        Options o = parsed(line), defaults = parsed(others);
        for (const OptionRow *k = option_table; k->long_name;
             k++) // this row has the value, all others their defaults
            assert_string_equal(option_value(k, &o, buf),
                                k == row ? value : option_value(k, &defaults, other));

        options_free(&o);
        options_free(&defaults);
    }
}

TEST(names_are_unique_and_defaults_lie_in_their_ranges) {
    for (const OptionRow *row = option_table; row->long_name; row++) {
        assert_ptr_equal(option_find(row->long_name, strlen(row->long_name)), row);
        if (row->short_name)
            assert_ptr_equal(option_find(row->short_name, strlen(row->short_name)), row);
        if (row->type >= OPTION_STRING) continue;
        const double x =
            strcmp(row->fallback, "auto") == 0 ? row->min : strtod(row->fallback, NULL);
        assert_true(x >= row->min && x <= row->max &&
                    (row->max <= 0x1p53 || row->type == OPTION_DOUBLE));
    }
}

TEST(a_command_line_of_llm_c_is_understood) {
    assert_reads("-i dev/data/train_*.bin -j dev/data/val_*.bin -o log124M -v 250 -s 20000 -g 144 "
                 "-h 0 -b 64 -t 1024 "
                 "-d 524288 -r 0 -z 0",
                 "train-data=dev/data/train_*.bin total-batch=524288");
    assert_reads("-o log -c 0.1 -l 0.0006 -q 0.0 -u 700 -n 5000 -nk 5 -nm 50000 -y 1 -e d12 -sl 3 "
                 "-sg 3 -w 1 -ge -1 -f 1",
                 "weight-decay=0.1 learning-rate=0.0006 final-lr-fraction=0 loss-outlier=3 keep=5 "
                 "major-every=50000 resume=1");
    assert_reads("-pn 1 -pr 0 -pg 1 -pi mpi -ps 127.0.0.1 -pf shared -lg 0 -a 1",
                 "server-ip=127.0.0.1 overfit=1");
}

static DeviceOptions device_of(const char *line) {
    Options o = parsed(line);
    const DeviceOptions device = options_device(&o);
    options_free(&o);
    return device;
}

TEST(the_device_hears_what_the_options_say) {
    DeviceOptions device = device_of("--threads 3");
    assert_true(device.threads == 3 && device.tf32);
    assert_true(device.attention == ATTENTION_AUTO && device.gelu_fusion == GELU_FUSION_AUTO);
    device = device_of("-f 0 --attention cudnn -ge 0");
    assert_false(device.tf32);
    assert_true(device.attention == ATTENTION_CUDNN && device.gelu_fusion == GELU_FUSION_NONE);
    device = device_of("--attention own -ge 2 -lg 100");
    assert_true(device.attention == ATTENTION_OWN && device.gelu_fusion == GELU_FUSION_BOTH);
    device = device_of("--attention fast");
    assert_true(device.attention == ATTENTION_FAST);
    assert_reads("-lg 100", "log-gpu-every=100");
}

TEST(flags_take_a_value_or_none) {
    const char *const cases[][2] = {
        {"-o d -a -y -b 2", "overfit=1 resume=1 batch-size=2"},
        {"-o d -a 1 -y 1 -b 2", "overfit=1 resume=1 batch-size=2"},
        {"-o d -a 0 -y 0 -b 2", "overfit=0 resume=0 batch-size=2"},
        {"-o d -a=0 -y=1 -b 2", "overfit=0 resume=1 batch-size=2"},
        {"-o d -b 2 -a -y", "overfit=1 resume=1 batch-size=2"},
        {"-b 2 --overfit --resume=0", "overfit=1 resume=0 batch-size=2"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        assert_reads(cases[i][0], cases[i][1]);
}

TEST(negative_numbers_are_values) {
    assert_reads("-x -1 -u -1 -b 3", "max-steps=-1 warmup=-1 batch-size=3");
}

TEST(the_last_of_two_equal_options_counts) {
    assert_reads("-b 2 -e d24 -e d36 --batch-size 7", "batch-size=7 model=d36");
}

TEST(never_and_evaluate_only_are_valid) {
    assert_reads("-v 0 -s 0 -x 0 -m 0 -n 0 --temperature 0 --top-k 0",
                 "val-every=0 sample-every=0 max-steps=0 val-sequences=0 checkpoint-every=0");
}

TEST(rates_of_groups_are_those_of_the_table_but_for_the_options) {
    GroupRates r[NUM_GROUPS];
    Error err;
    Options o =
        parsed("-l 0.01 --lr-embedding 0.03 --lr-vectors 0.02 --beta2 0.99 -c 0.2 --by-group "
               "head.beta1=0.8,head.eps=1e-10,vectors.decay=0.5,embedding.beta2=0.995");

    assert_true(options_rates(&o, r, &err));
    assert_true(r[GROUP_EMBEDDING].rate == 0.03 / 0.01 && r[GROUP_HEAD].rate == 0.03 / 0.01);
    assert_true(r[GROUP_MATRIX].rate == 1 && r[GROUP_VECTOR].rate == 0.02 / 0.01);
    assert_true(r[GROUP_EMBEDDING].beta2 == 0.995 && r[GROUP_HEAD].beta2 == 0.99 &&
                r[GROUP_VECTOR].beta2 == 0.99);
    assert_true(r[GROUP_EMBEDDING].beta1 == 0.9 && r[GROUP_HEAD].beta1 == 0.8);
    assert_true(r[GROUP_EMBEDDING].eps == 1e-8 && r[GROUP_HEAD].eps == 1e-10);
    assert_true(r[GROUP_MATRIX].weight_decay == 0.2 && r[GROUP_VECTOR].weight_decay == 0.5);

    options_free(&o);

    o = parsed("--lr-embedding 0.03 --lr-head 6e-3");
    assert_true(options_rates(&o, r, &err) && r[GROUP_HEAD].rate == 6e-3 / 6e-4 &&
                r[GROUP_VECTOR].weight_decay == 0);
    options_free(&o);
}

TEST(auto_is_a_value_where_the_program_may_choose) {
    assert_reads("-b auto -l auto -r auto", "batch-size=0 learning-rate=-1 recompute=auto");
    Options o = parsed("-b auto -l auto -r auto");
    char *json = options_to_json(&o, false);
    options_free(&o);
    o = parsed("");
    assert_true(options_adopt_json(&o, json, false, NULL));
    assert_true(o.B == 0 && o.lr == -1);
    options_free(&o);
    free(json);
}

TEST(a_plan_is_text_unless_it_is_to_be_json) {
    assert_reads("", "plan=");
    assert_reads("--plan", "plan=text");
    assert_reads("--plan json", "plan=json");
    assert_reads("--plan=text --gpu h200", "plan=text");
    assert_reads("--plan d_ff --gpu this", "plan=d_ff gpu=this");
    assert_reads("--plan --gpu h200 --hours 1.5", "plan=text gpu=h200 hours=1.5");
}

// Words of the table are names of enums: each is parsed to the one that has this name elsewhere.
TEST(words_are_those_of_the_modules_that_they_are_for) {
    char line[64];
    for (int k = 0; k < OPTIMIZER_COUNT; k++) {
        snprintf(line, sizeof line, "--optimizer %s", optimizer_name((OptimizerKind)k));
        Options o = parsed(line);
        assert_int_equal(o.optimizer, k);
        options_free(&o);
    }

    for (int k = SCHEDULE_COSINE; k <= SCHEDULE_WSD; k++) {
        snprintf(line, sizeof line, "-k %s", schedule_name((ScheduleKind)k));
        Options o = parsed(line);
        assert_int_equal(o.schedule, k);
        options_free(&o);
    }

    for (int k = DTYPE_FP32; k <= DTYPE_BF16; k++) {
        snprintf(line, sizeof line, "--dtype %s", dtype_name((DType)k));
        Options o = parsed(line);
        assert_int_equal(o.dtype, k);
        options_free(&o);
    }

    Options o = parsed("--plan json --offload optimizer --grad-dtype compute --fp8");
    assert_true(o.plan == PLAN_JSON && o.offload == OFFLOAD_OPTIMIZER &&
                o.grad_dtype == GRADIENTS_COMPUTE);
    options_free(&o);
}

TEST(only_the_state_of_the_optimizer_is_divided) {
    assert_reads("", "zero-stage=1");
    assert_reads("-z 0", "zero-stage=0");
}

TEST(multiple_choice_is_scored_where_something_is_evaluated) {
    assert_reads("-h 1 -v 0 -x 0", "choices=1");
    assert_reads("-h 1", "choices=1");
    assert_reads("-h 0 -v 0", "choices=0");
}

TEST(a_total_batch_is_a_multiple_of_the_context) {
    assert_reads("-d 500000", "total-batch=500000"); // T is not known yet
    // the last micro-step of -b 2 holds one sequence
    assert_true(options_check_total_batch(3 * 1024, 1024, NULL));
    assert_false(options_check_total_batch(1025, 1024, NULL));
    assert_false(options_check_total_batch(1024, 0, NULL));
}

TEST(help_lists_every_row_of_the_table) {
    char *text = NULL;
    size_t bytes = 0;
    FILE *f = open_memstream(&text, &bytes);
    option_print_help(f);
    fclose(f);

    for (const OptionRow *row = option_table; row->long_name; row++) {
        char names[128];
        snprintf(names, sizeof names, "%s%s%s--%s %s", row->short_name ? "\n  -" : "\n  ",
                 row->short_name ? row->short_name : "", row->short_name ? ", " : "",
                 row->long_name, row->metavar);
        if (!strstr(text, names)) fail_msg("--help does not show %s", names);
        assert_non_null(strstr(text, row->group));
    }

    assert_non_null(strstr(text, "[4; 1..65536]"));
    free(text);
}

TEST(help_goes_to_stdout) {
    Options options;
    Error err;
    Capture c = capture_start(stdout);
    OptionsResult result = parse(&options, "-b 8 --help", &err);
    char *text = capture_end(&c);
    assert_int_equal(result, OPTIONS_HELP_SHOWN);
    assert_true(strlen(text) > 1000);
    free(text);
    options_free(&options);
}

TEST(json_holds_every_option_of_a_run_exactly) {
    Options o = parsed(
        "-l 0.1234567890123456789 -d 1099511627776 --seed 9007199254740991 --prompt \"a\\b\x80\"");

    char *json = options_to_json(&o, false);
    cJSON *object = cJSON_Parse(json);
    assert_non_null(object);

    int count = 0;
    for (const OptionRow *row = option_table; row->long_name; row++) {
        char buf[OPTION_VALUE];
        const cJSON *value = cJSON_GetObjectItemCaseSensitive(object, row->long_name);
        if (row->scope == OPTION_OF_PROCESS) continue; // the same bytes however the run is started
        count++;
        if (row->type >= OPTION_STRING)
            assert_true(cJSON_IsString(value));
        else
            assert_true(cJSON_IsNumber(value) &&
                        value->valuedouble == strtod(option_value(row, &o, buf), NULL));
    }

    // and the list of what was chosen for auto
    assert_int_equal(cJSON_GetArraySize(object), count + 1);
    const cJSON *prompt = cJSON_GetObjectItemCaseSensitive(object, "prompt");
    assert_string_equal(prompt->valuestring, "\"a\\b\xEF\xBF\xBD\""); // the stray byte is U+FFFD

    cJSON_Delete(object);
    free(json);
    options_free(&o);
}

TEST(differences_are_one_line_each) {
    Options then = parsed("-b 4 -l 6e-4 -e d12 -o runs/a"),
            now = parsed("-b 8 -l 3e-4 -e d24 -o runs/a -y");

    char *json = options_to_json(&then, false);
    char *lines = options_diff_json(&now, json);

    assert_string_equal(
        lines,
        "--model d24 (was d12)\n--batch-size 8 (was 4)\n--learning-rate 0.0003 (was 0.0006)\n");
    free(lines);

    assert_null(options_diff_json(&then, json));
    free(json);
    options_free(&then);
    options_free(&now);
}

TEST(differences_to_foreign_json_are_told_and_never_crash) {
    Options o = parsed("");

    assert_null(options_diff_json(&o, "{}"));
    assert_null(options_diff_json(&o, "{\"of-a-later-version\": 3}"));

    const char *const foreign[] = {"", "[]", "3", "{\"batch-size\":", "null"};
    for (size_t i = 0; i < sizeof foreign / sizeof foreign[0]; i++)
        assert_null(options_diff_json(&o, foreign[i]));

    char *lines = options_diff_json(&o, "{\"batch-size\": \"4\", \"model\": 7, \"context\": null}");
    assert_string_equal(
        lines,
        "--model d12 (was 7)\n--batch-size 4 (was 4)\n--context 0 (was neither text nor number)\n");
    free(lines);
    options_free(&o);
}

TEST(what_was_not_given_is_adopted_from_the_earlier_run) {
    Options then = parsed("-b 4 -l 0.1 -e d12 -o runs/a -k wsd -x 500 --max-minutes 3"),
            now = parsed("-o runs/b -y -x 900");

    char *json = options_to_json(&then, false);
    assert_true(options_adopt_json(&now, json, false, NULL));

    assert_int_equal(now.B, 4);
    assert_true(now.lr == 0.1);
    assert_int_equal(now.schedule, SCHEDULE_WSD);
    assert_int_equal(now.max_steps, 900); // given now
    assert_string_equal(now.output, "runs/b");
    assert_int_equal(now.resume, 1);
    assert_true(now.max_minutes == 0.0); // of that process only

    char *lines = options_diff_json(&now, json);
    assert_string_equal(lines, "--max-steps 900 (was 500)\n--output runs/b (was runs/a)\n");

    free(lines);
    free(json);
    options_free(&then);
    options_free(&now);
}

TEST(a_list_of_chosen_numbers_that_is_none_is_refused) {
    static const struct {
        const char *json, *why;
    } damaged[] = {{"{\"chosen\":5}", "\"chosen\" is no list"},
                   {"{\"chosen\":[\"no-option\"]}", "\"chosen\" holds what is no option"},
                   {"{\"chosen\":[7]}", "\"chosen\" holds what is no option"}};

    Options o = parsed("-o runs/a -y");
    Error err;
    for (size_t i = 0; i < sizeof damaged / sizeof *damaged; i++) {
        assert_false(options_adopt_json(&o, damaged[i].json, false, &err));
        assert_non_null(strstr(err.text, damaged[i].why));
    }
    options_free(&o);
}

TEST(foreign_values_are_not_adopted) {
    const char *const foreign[] = {"",
                                   "[]",
                                   "null",
                                   "{\"batch-size\": -1}",
                                   "{\"batch-size\": \"4\"}",
                                   "{\"model\": 7}",
                                   "{\"schedule\": \"sawtooth\"}",
                                   "{\"learning-rate\": 1e300}"};

    for (size_t i = 0; i < sizeof foreign / sizeof foreign[0]; i++) {
        Options o = parsed("");
        Error err = {""};
        assert_false(options_adopt_json(&o, foreign[i], false, &err));
        assert_true(strncmp(err.text, "the options of the earlier run: ", 32) == 0);
        options_free(&o);
    }

    Options o = parsed("");
    Error err = {""};
    // The value would be 4, the default.
    assert_false(options_adopt_json(&o, "{\"bach-size\": 3}", false, &err));
    assert_non_null(strstr(err.text, "unknown option \"bach-size\"; did you mean --batch-size?"));
    assert_false(options_adopt_json(&o, "[]", false, &err));
    assert_non_null(strstr(err.text, "not a JSON object"));

    options_free(&o);
}

TEST(of_two_values_the_last_counts_and_both_are_named) {
    Options o =
        parsed("-b 4 -l 0.1 --batch-size 8 -b 8 -l 0.1 -k wsd -k=linear -d auto -d 512 -l auto");
    assert_int_equal(o.B, 8);
    assert_string_equal(
        o.repeated,
        "--batch-size 4, then 8; --schedule wsd, then linear; --total-batch auto, then 512; "
        "--learning-rate 0.1, then auto");
    options_free(&o);
}

static void assert_unused(const char *line, const char *expected) {
    Options o = parsed(line);
    char *unused = options_without_effect(&o, false);
    assert_string_equal(unused ? unused : "", expected);
    free(unused);
    options_free(&o);
}

TEST(options_that_change_nothing_are_named_with_the_reason) {
    assert_unused("-b 4 -v 250 -m 8 -s 100 -g 20 --samples 2", "");

    assert_unused("-v 0 -m 8 -j x", "-j (-v 0), -m (-v 0)");
    assert_unused("-s 0 --samples 4 --prompt a -g 3",
                  "-g (-s 0), --samples (-s 0), --prompt (-s 0)");
    assert_unused("-x 0 -l 1e-3 --optimizer lion",
                  "-l (-x 0 does not train), --optimizer (-x 0 does not train)");
    assert_unused("-nk 3 -nm 5", "-nk (no -o), -nm (no -o)");
    assert_unused("-o d -n 0 -nm 5", "-nm (-n 0)");
    assert_unused("-k constant -q 0.2 --momentum 0.9",
                  "-q (-k constant), --momentum (--optimizer adamw has no use for it)");
    assert_unused("--temperature 0 --top-k 3", "--top-k (--temperature 0)");
    assert_unused("-ge 1 -f 0", "-f (only on a GPU), -ge (only on a GPU)");
    assert_unused("-i dev/data/fineweb10B/fineweb_train_*.bin -j "
                  "dev/data/fineweb10B/fineweb_val_*.bin -o log_gpt2_124M "
                  "-v 250 -s 20000 -g 144 -h 1 -b 64 -t 1024 -d 524288 -r 0 -z 1 -c 0.1 -l 0.0006 "
                  "-q 0.0 -u 700 -n 5000 "
                  "-y 1 -e d12",
                  ""); // llm.c's scripts/run_gpt2_124M.sh
}

// A run that was begun in the directory tmp, as JSON.
static char *begun_in_tmp(const char *line) {
    Options o = parsed(line);
    options_set_string(&o.directory, tmp.path);
    char *json = options_to_json(&o, true);
    options_free(&o);
    return json;
}

TEST(paths_of_a_run_are_those_of_the_directory_where_it_was_begun) {
    char *json = begun_in_tmp(
             "-i sh/train_*.bin -j gone_*.bin -e d12 --tokenizer bytes --choices q.bin -o run"),
         *lines, *again, expected[600];
    Options o = parsed("-o elsewhere/run -y --choices mine.bin");

    assert_int_equal(mkdir(tmp_file("sh"), 0755), 0);
    write_bytes(tmp_file("sh/train_0.bin"), "", 0);
    write_bytes(tmp_file("bytes"), "", 0); // files of the names of what is no file
    write_bytes(tmp_file("d12"), "", 0);

    assert_true(options_adopt_json(&o, json, false, NULL));
    assert_string_equal(o.train_data, tmp_file("sh/train_*.bin"));
    assert_string_equal(o.val_data, "gone_*.bin"); // in neither directory
    assert_string_equal(o.tokenizer, "bytes");
    assert_string_equal(o.model, "d12");

    char *here = path_working_directory();
    snprintf(expected, sizeof expected, "%s/mine.bin", here); // given now
    assert_string_equal(o.choices, expected);
    free(here);

    // They are written as they were, and differences are those of files, not of words.
    again = options_to_json(&o, true);
    cJSON *object = cJSON_Parse(again);
    assert_string_equal(cJSON_GetObjectItemCaseSensitive(object, "directory")->valuestring,
                        tmp.path);
    assert_string_equal(cJSON_GetObjectItemCaseSensitive(object, "train-data")->valuestring,
                        "sh/train_*.bin");

    lines = options_diff_json(&o, json);
    snprintf(expected, sizeof expected,
             "--choices %s (was q.bin)\n--output elsewhere/run (was run)\n", o.choices);
    assert_string_equal(lines, expected);

    cJSON_Delete(object);
    free(again), free(lines), free(json);
    options_free(&o);
}

TEST(paths_of_a_run_whose_directory_is_gone_are_those_of_this_one) {
    char *json = begun_in_tmp("-i sh/train_*.bin");
    cJSON *then = cJSON_Parse(json);
    cJSON_ReplaceItemInObject(then, "directory", cJSON_CreateString("/no/such/directory"));
    char *moved = cJSON_PrintUnformatted(then);
    Options o = parsed("-o d -y");

    assert_true(options_adopt_json(&o, moved, false, NULL));
    assert_string_equal(o.train_data, "sh/train_*.bin");
    assert_string_equal(o.begun_in, "/no/such/directory");

    char *here = path_working_directory();
    assert_string_equal(o.directory, here);

    free(here), free(json), free(moved);
    cJSON_Delete(then);
    options_free(&o);
}
