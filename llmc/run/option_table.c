// The option table and what is read from it alone: names, the nearest name, values as text, --help.
#include "llmc/run/options.h"

#include "llmc/base/format.h"

#include <ctype.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>

static const char DATA[] = "Data";
static const char MODEL[] = "Model";
static const char BATCH[] = "Batch and length";
static const char UPDATE[] = "Optimisation";
static const char EVALUATION[] = "Evaluation and samples";
static const char OUTPUT[] = "Output";
static const char MACHINE[] = "Machine";

// Type and place of a field; the type is the compiler's word, so row and struct cannot disagree.
#define TYPE_OF(value)                                                                                                 \
    _Generic(value, int : OPTION_INT, int64_t : OPTION_INT64, double : OPTION_DOUBLE, char * : OPTION_STRING)
#define FIELD(name) TYPE_OF(((Options *)0)->name), offsetof(Options, name)

// The largest integer that JSON readers keep exactly, and a step count nobody reaches: enough, and never an overflow.
#define MAX_EXACT 9007199254740991.0
#define MAX_STEPS 1e12
// What the doubles beta may be: below 1, or the moments never move.
#define BELOW_ONE 0.999999

#define ONE_PROCESS "accepted for llm.c command lines; one process in this version"

// clang-format off
static const OptionRow TABLE[] = {
    {DATA, "train-data", "i", FIELD(train_data), "data/shards/train_*.bin", 0, 0, "GLOB",
     "token shards to train on; quote the pattern"},
    {DATA, "val-data",   "j", FIELD(val_data),   "data/shards/val_*.bin",   0, 0, "GLOB",
     "token shards to validate on"},
    {DATA, "tokenizer",  NULL, FIELD(tokenizer), "", 0, 0, "PATH",
     "tokenizer.json, a directory with one or with vocab.json + merges.txt, a tiktoken rank file, llm.c's "
     "gpt2_tokenizer.bin, bytes, or none; default: the one beside the weights or the shards"},

    {MODEL, "model",          "e",  FIELD(model),     "d12",  0, 0, "MODEL",
     "d6 d12 d24 d36 d48, gpt3:c768, L=6,C=384,NH=6,T=256, a GPT-2 directory of Hugging Face's form, an llm.c .bin"},
    {MODEL, "dtype",          NULL, FIELD(dtype),     "auto", 0, 0, "auto|bf16|fp16|fp32",
     "type of weights and activations; auto: the fastest of this machine"},
    {MODEL, "master-weights", "w",  FIELD(master),    "1",    0, 1, "[0|1]",
     "keep fp32 master weights beside bf16 or fp16"},
    {MODEL, "recompute",      "r",  FIELD(recompute), "0",    0, 0, "LEVEL",
     "less memory, more time: 1 GELU, 2 and LayerNorm, 3 whole blocks are computed again in the backward pass; "
     "gelu+qkv: these ops; 3/2: every second block; 3x4,0x8: 4 blocks, then 8; auto: the least that fits"},
    {MODEL, "grad-dtype",     NULL, FIELD(grad_dtype), "fp32", 0, 0, "fp32|compute",
     "type in which gradients are kept and accumulated; compute: that of --dtype, rounded stochastically"},
    {MODEL, "offload",        NULL, FIELD(offload),   "none", 0, 0, "none|optimizer",
     "optimizer: its state and the master weights live in host memory"},
    {MODEL, "fp8",            NULL, FIELD(fp8),       "0",    0, 1, "[0|1]",
     "the matmuls of the blocks in fp8 (e4m3, gradients e5m2), with --dtype bf16; GPUs from sm_89"},
    {MODEL, "fp8-scaling",    NULL, FIELD(fp8_scaling), "current", 0, 0, "current|delayed",
     "scales of fp8 tensors: from their own largest value, or from those of the last 16 steps"},

    {BATCH, "batch-size",  "b",  FIELD(B),           "4",   0,     65536, "auto|B",
     "sequences in a micro-batch; auto: as many as fit into memory"},
    {BATCH, "context",     "t",  FIELD(T),           "0",   0,   1048576, "T",
     "tokens in a sequence; 0: the model's longest context, at most 1024"},
    {BATCH, "total-batch", "d",  FIELD(total_batch), "0",   0,    0x1p40, "TOKENS",
     "tokens in a step, a multiple of T, by gradient accumulation; 0: B*T"},
    {BATCH, "max-steps",   "x",  FIELD(max_steps),   "-1", -1, MAX_STEPS, "STEPS",
     "steps of the run; -1: one epoch of the training data; 0: evaluate and sample only"},
    {BATCH, "tokens",      NULL, FIELD(tokens),      "0",   0,     1e18, "TOKENS",
     "length of the run in tokens, such as 10e9, instead of -x; 0: as -x says"},
    {BATCH, "max-minutes", NULL, FIELD(max_minutes), "0",   0,       1e7, "MINUTES",
     "save and stop after this time; 0: no limit"},
    {BATCH, "overfit",     "a",  FIELD(overfit),     "0",   0,         1, "[0|1]",
     "train on one batch over and over: its loss must go to 0"},

    {UPDATE, "optimizer",         NULL, FIELD(optimizer),      "adamw",      0,         0,
     "adamw|adamw8bit|adamw-bf16|adamw-kahan|lion|adafactor|sgd|muon",
     "adamw8bit: moments in 8 bits; adamw-bf16, adamw-kahan: moments in bf16, no master weights"},
    {UPDATE, "learning-rate",     "l",  FIELD(lr),             "auto",      -1,        10, "auto|LR",
     "highest learning rate; auto: the optimizer's own, 6e-4 for AdamW"},
    {UPDATE, "warmup",            "u",  FIELD(warmup),         "-1",        -1, MAX_STEPS, "STEPS",
     "steps until the learning rate is reached; -1: 2% of the steps, at most 700"},
    {UPDATE, "final-lr-fraction", "q",  FIELD(final_fraction), "0.1",        0,         1, "F",
     "learning rate of the last step, as a fraction of the highest"},
    {UPDATE, "schedule",          "k",  FIELD(schedule),       "cosine",     0,         0, "cosine|linear|constant|wsd",
     "learning rate after the warm-up"},
    {UPDATE, "weight-decay",      "c",  FIELD(weight_decay),   "0.1",        0,        10, "DECAY",
     "of the matrices (AdamW); vectors are not decayed"},
    {UPDATE, "beta1",             NULL, FIELD(beta1),          "0.9",        0, BELOW_ONE, "BETA",
     "decay of the first moment"},
    {UPDATE, "beta2",             NULL, FIELD(beta2),          "0.95",       0, BELOW_ONE, "BETA",
     "decay of the second moment"},
    {UPDATE, "eps",               NULL, FIELD(eps),            "1e-8",   1e-16,         1, "EPS",
     "added to the root of the second moment"},
    {UPDATE, "momentum",          NULL, FIELD(momentum),       "0.95",       0, BELOW_ONE, "BETA",
     "of SGD and Muon"},
    {UPDATE, "grad-clip",         NULL, FIELD(grad_clip),      "1",          0,       1e9, "NORM",
     "largest norm of the gradient; 0: never clip"},
    {UPDATE, "loss-outlier",      "sl", FIELD(loss_outlier),   "0",          0,       1e6, "Z",
     "skip a step whose loss is this many standard deviations above the last 128; 0: never"},
    {UPDATE, "norm-outlier",      "sg", FIELD(norm_outlier),   "0",          0,       1e6, "Z",
     "the same for the norm of the gradient"},
    {UPDATE, "seed",              NULL, FIELD(seed),           "1337",       0, MAX_EXACT, "SEED",
     "of initial weights, data order, samples and rounding"},

    {EVALUATION, "val-every",     "v",  FIELD(val_every),     "250",  0, MAX_STEPS, "STEPS",
     "validate every so many steps; 0: never"},
    {EVALUATION, "val-sequences", "m",  FIELD(val_sequences), "64",   0, MAX_STEPS, "N",
     "sequences to validate on, spread over the data; 0: all"},
    {EVALUATION, "sample-every",  "s",  FIELD(sample_every),  "1000", 0, MAX_STEPS, "STEPS",
     "write a text every so many steps; 0: never"},
    {EVALUATION, "sample-tokens", "g",  FIELD(sample_tokens), "128",  1,   1048576, "TOKENS",
     "its length"},
    {EVALUATION, "temperature",   NULL, FIELD(temperature),   "0.8",  0,       100, "T",
     "0: always the most likely token"},
    {EVALUATION, "top-k",         NULL, FIELD(top_k),         "50",   0,       1e9, "K",
     "draw from the K most likely tokens; 0: from all"},
    {EVALUATION, "top-p",         NULL, FIELD(top_p),         "1",    0x1p-20,      1, "P",
     "draw from the likeliest tokens that have this probability together; 1: from all"},
    {EVALUATION, "samples",       NULL, FIELD(samples),       "1",    1,      1024, "N",
     "texts drawn side by side from the same prompt"},
    {EVALUATION, "prompt",        NULL, FIELD(prompt),        "",     0,         0, "TEXT",
     "how a sample begins; default: with end-of-text"},
    {EVALUATION, "interactive",   NULL, FIELD(interactive),   "0",    0,         1, "[0|1]",
     "with -x 0: answer prompts from stdin, line by line"},
    {EVALUATION, "hellaswag",     "h",  FIELD(hellaswag),     "0",    0,         1, "0|1",
     "score HellaSwag at every validation: data/hellaswag/hellaswag_val.bin, or --choices; help is --help"},
    {EVALUATION, "choices",       NULL, FIELD(choices),       "",     0,         0, "GLOB",
     "multiple-choice files in the form of llm.c's HellaSwag, scored at every validation"},
    {EVALUATION, "choice-examples", NULL, FIELD(choice_examples), "0", 0,     1e9, "N",
     "examples to score of each of them; 0: all"},

    {OUTPUT, "output",           "o",  FIELD(output),           "",      0,         0, "DIR",
     "directory for checkpoints and main.log; default: nothing is written"},
    {OUTPUT, "checkpoint-every", "n",  FIELD(checkpoint_every), "1000",  0, MAX_STEPS, "STEPS",
     "save every so many steps and at the end; 0: only at the end"},
    {OUTPUT, "keep",             "nk", FIELD(keep),             "2",     0,       1e6, "N",
     "newest checkpoints to keep; 0: all"},
    {OUTPUT, "major-every",      "nm", FIELD(major),            "0",     0, MAX_STEPS, "STEPS",
     "keep those of every so many steps for ever; 0: none"},
    {OUTPUT, "resume",           "y",  FIELD(resume),           "0",     0,         1, "[0|1]",
     "go on from the newest checkpoint in DIR that is whole"},
    {OUTPUT, "reset-optimizer",  NULL, FIELD(reset_optimizer),  "0",     0,         1, "[0|1]",
     "with -y: go on with new moments, for another optimizer than the checkpoint's"},
    {OUTPUT, "progress",         NULL, FIELD(progress),         "-1",   -1,         1, "[-1|0|1]",
     "progress bar; -1: when stdout is a terminal"},
    {OUTPUT, "tensorboard",      NULL, FIELD(tensorboard),      "1",     0,         1, "[0|1]",
     "write TensorBoard's event file into DIR"},
    {OUTPUT, "export",           NULL, FIELD(export_path),      "",      0,         0, "PATH",
     "at the end write the weights as an llm.c model (PATH ends in .bin) or a Hugging Face directory"},
    {OUTPUT, "export-dtype",     NULL, FIELD(export_dtype),     "fp32",  0,         0, "fp32|bf16|fp16",
     "type of the exported weights; llm.c has no fp16"},

    {MACHINE, "threads",       NULL, FIELD(threads),       "0",   0, 1024, "N",
     "threads of the CPU backend; 0: all cores this process may use"},
    {MACHINE, "plan",          NULL, FIELD(plan),          "",    0,    0, "[text|json]",
     "print what this run would take, on this machine and on GPUs, and end"},
    {MACHINE, "gpu",           NULL, FIELD(gpu),           "",    0,    0, "GPU",
     "with --plan: for these only, such as h200, rtx4090, t4 or a size like 24G; several are joined by commas"},
    {MACHINE, "price",         NULL, FIELD(price),         "0",   0,  1e6, "DOLLARS",
     "with --plan: of an hour of the GPU, for the cost of the run"},
    {MACHINE, "numerics-every", NULL, FIELD(numerics_every), "0", 0, MAX_STEPS, "STEPS",
     "log largest values, underflow, overflow and update sizes of all kinds of tensors every so many steps; 0: never"},
    {MACHINE, "profile",       NULL, FIELD(profile),       "0",   0, 1000, "STEPS",
     "time every op of so many steps, print the table and end; the trace goes to -o DIR"},
    {MACHINE, "tf32",          "f",  FIELD(tf32),          "1",   0,    1, "[0|1]",
     "TF32 tensor cores for fp32 on GPUs that have them"},
    {MACHINE, "attention",     NULL, FIELD(attention),     "auto", 0,   0, "auto|cudnn|own",
     "kernels on a GPU; auto: the faster of cuDNN and our own, measured when the run starts"},
    {MACHINE, "gelu-fusion",   "ge", FIELD(gelu_fusion),   "-1", -1,    2, "LEVEL",
     "GELU inside matmuls of a GPU: 0 none, 1 forward, 2 forward and backward; -1: backward if measured to be faster"},
    {MACHINE, "log-gpu-every", "lg", FIELD(log_gpu_every), "0",   0, MAX_STEPS, "STEPS",
     "show and log clocks, power and temperature of the GPU every so many steps; 0: never"},
    {MACHINE, "zero-stage",    "z",  FIELD(zero_stage),    "0",   0,    0, "STAGE",
     ONE_PROCESS},
    {MACHINE, "num-processes", "pn", FIELD(num_processes), "1",   1,    1, "N",
     ONE_PROCESS},
    {MACHINE, "process-rank",  "pr", FIELD(process_rank),  "0",   0,    0, "RANK",
     ONE_PROCESS},
    {MACHINE, "gpus-per-node", "pg", FIELD(gpus_per_node), "1",   1,    1, "N",
     ONE_PROCESS},
    {MACHINE, "init-method",   "pi", FIELD(init_method),   "",    0,    0, "METHOD",
     ONE_PROCESS},
    {MACHINE, "server-ip",     "ps", FIELD(server_ip),     "",    0,    0, "IP",
     ONE_PROCESS},
    {MACHINE, "fs-path",       "pf", FIELD(fs_path),       "",    0,    0, "PATH",
     ONE_PROCESS},
};
// clang-format on

enum { NUM_ROWS = sizeof TABLE / sizeof TABLE[0] };
_Static_assert(NUM_ROWS <= 128, "Options.given has one bit a row");

const OptionRow *option_table(int *count) {
    *count = NUM_ROWS;
    return TABLE;
}

bool option_is_flag(const OptionRow *row) { return row->metavar[0] == '['; }

bool option_is_choice(const OptionRow *row) { return row->type == OPTION_STRING && strchr(row->metavar, '|'); }

bool option_may_be_auto(const OptionRow *row) { return strncmp(row->metavar, "auto|", 5) == 0; }
double option_least(const OptionRow *row) { return row->min + (option_may_be_auto(row) ? 1 : 0); }

const char *option_flag_value(const OptionRow *row, char *buf, int size) {
    const char *first = row->metavar + 1; // behind the bracket
    if (row->type != OPTION_STRING) return "1";
    snprintf(buf, (size_t)size, "%.*s", (int)strcspn(first, "|]"), first);
    return buf;
}

// ------------------------------------------------------------------------------------------------------------- names

static bool same_name(const char *a, const char *name, size_t length) {
    return a && strlen(a) == length && memcmp(a, name, length) == 0;
}

const OptionRow *option_find(const char *name, size_t length) {
    for (int i = 0; i < NUM_ROWS; i++) {
        if (same_name(TABLE[i].long_name, name, length) || same_name(TABLE[i].short_name, name, length))
            return &TABLE[i];
    }
    return NULL;
}

static bool same_letter(char a, char b) { return tolower((unsigned char)a) == tolower((unsigned char)b); }
static int min3(int a, int b, int c) { return a < b ? (a < c ? a : c) : (b < c ? b : c); }

// Damerau-Levenshtein distance (optimal string alignment): insertions, deletions, substitutions and swaps of
// neighbours, each 1; capitals do not matter. Damerau, "A technique for computer detection and correction of spelling
// errors", 1964.
enum { LONGEST_NAME = 32 };
static int edit_distance(const char *a, const char *b) {
    int n = (int)strlen(a), m = (int)strlen(b);
    int d[LONGEST_NAME + 1][LONGEST_NAME + 1];
    for (int i = 0; i <= n; i++) d[i][0] = i;
    for (int j = 0; j <= m; j++) d[0][j] = j;
    for (int i = 1; i <= n; i++) {
        for (int j = 1; j <= m; j++) {
            d[i][j] = min3(d[i - 1][j] + 1, d[i][j - 1] + 1, d[i - 1][j - 1] + !same_letter(a[i - 1], b[j - 1]));
            bool swapped = i > 1 && j > 1 && same_letter(a[i - 1], b[j - 2]) && same_letter(a[i - 2], b[j - 1]);
            if (swapped && d[i - 2][j - 2] + 1 < d[i][j]) d[i][j] = d[i - 2][j - 2] + 1;
        }
    }
    return d[n][m];
}

// A piece of a name ("batch", "steps") is a better guess than a word of similar letters; among equals, the one with
// the same first letter ("--lr": -l, not -r). INT_MAX: they have less than half of their letters in common.
static int name_distance(const char *typo, const char *name) {
    const int edits = strlen(typo) >= 3 && strcasestr(name, typo) ? 1 : edit_distance(typo, name);
    const size_t longer = strlen(typo) > strlen(name) ? strlen(typo) : strlen(name);
    return 2 * edits > (int)longer ? INT_MAX : 2 * edits + !same_letter(typo[0], name[0]);
}

bool option_nearest(const char *typo, char *buf, int size) {
    char word[LONGEST_NAME + 1];
    snprintf(word, sizeof word, "%s", typo);
    int nearest = INT_MAX;
    for (int i = 0; i < NUM_ROWS; i++) {
        const char *names[] = {TABLE[i].long_name, TABLE[i].short_name};
        for (int k = 0; k < 2; k++) {
            if (!names[k]) continue;
            int distance = name_distance(word, names[k]);
            if (distance >= nearest) continue;
            nearest = distance;
            snprintf(buf, (size_t)size, "%s%s", k == 0 ? "--" : "-", names[k]);
        }
    }
    return nearest < INT_MAX;
}

// ------------------------------------------------------------------------------------------------------------ values

const void *option_field(const OptionRow *row, const Options *options) { return (const char *)options + row->offset; }

double option_number(const OptionRow *row, const Options *options) {
    const void *field = option_field(row, options);
    return row->type == OPTION_INT     ? (double)*(const int *)field
           : row->type == OPTION_INT64 ? (double)*(const int64_t *)field
                                       : *(const double *)field;
}

const char *option_string(const OptionRow *row, const Options *options) {
    return *(char *const *)option_field(row, options);
}

char *option_text(const OptionRow *row, const Options *options) {
    if (row->type == OPTION_STRING) return strdup(option_string(row, options));
    const double x = option_number(row, options);
    char text[40];
    return strdup(option_may_be_auto(row) && x == row->min ? "auto" : format_exact(x, text, sizeof text));
}

// -------------------------------------------------------------------------------------------------------------- --help

enum { HELP_COLUMN = 36, PAGE_WIDTH = 110 };

// Upper limits from here on guard against typing errors; nobody plans by them. Messages still name them.
static const double NO_CONCERN = 1e6;

// Prints words from column HELP_COLUMN on, in lines of at most PAGE_WIDTH columns.
static void print_wrapped(FILE *out, const char *text) {
    int column = HELP_COLUMN;
    while (*text) {
        int word = (int)strcspn(text, " ");
        if (column > HELP_COLUMN && column + 1 + word > PAGE_WIDTH) {
            fprintf(out, "\n%*s", HELP_COLUMN, "");
            column = HELP_COLUMN;
        }
        column += fprintf(out, "%s%.*s", column > HELP_COLUMN ? " " : "", word, text);
        text += word;
        text += strspn(text, " ");
    }
    fputc('\n', out);
}

// "[4; 1..65536]": default and range. Choices and flags already show theirs beside the name.
static void describe_values(const OptionRow *row, char *buf, size_t size) {
    if (row->type == OPTION_STRING && !*row->fallback) {
        buf[0] = '\0';
    } else if (row->type == OPTION_STRING || option_is_flag(row) || row->min == row->max) {
        snprintf(buf, size, " [%s]", row->fallback);
    } else if (row->max >= NO_CONCERN) {
        snprintf(buf, size, " [%s; %g..]", row->fallback, option_least(row));
    } else {
        snprintf(buf, size, " [%s; %.15g..%.15g]", row->fallback, option_least(row), row->max);
    }
}

static void print_row(FILE *out, const OptionRow *row) {
    char names[128], values[128], text[512];
    snprintf(names, sizeof names, "  %s%s%s--%s %s", row->short_name ? "-" : "", row->short_name ? row->short_name : "",
             row->short_name ? ", " : "", row->long_name, row->metavar);
    describe_values(row, values, sizeof values);
    snprintf(text, sizeof text, "%s%s", row->help, values);
    fprintf(out, "%-*s", HELP_COLUMN, names);
    if (strlen(names) >= HELP_COLUMN) fprintf(out, "\n%*s", HELP_COLUMN, "");
    print_wrapped(out, text);
}

void option_print_help(FILE *out, const char *program) {
    fprintf(out,
            "Pretrains GPT-2 models.\n"
            "\n"
            "usage: %s [options]\n"
            "  values: -b 4, -b=4, --batch-size 4 or --batch-size=4; [default; smallest..largest]\n"
            "\n"
            "Examples\n"
            "  %s -e d12 -b 4 -t 1024 -d 524288 -x 5000 -o runs/124M     train, save to runs/124M\n"
            "  %s -e d12 -b 4 -t 1024 -d 524288 -x 5000 -o runs/124M -y  go on where it stopped\n"
            "  %s -e runs/124M/step_00005000 -x 0 -v 1 -m 0              evaluate and sample only\n",
            program, program, program, program);
    int count;
    const OptionRow *rows = option_table(&count);
    for (int i = 0; i < count; i++) {
        if (i == 0 || rows[i].group != rows[i - 1].group) fprintf(out, "\n%s\n", rows[i].group);
        print_row(out, &rows[i]);
    }
    fprintf(out, "\n%-*sthis page\n", HELP_COLUMN, "  --help");
}
