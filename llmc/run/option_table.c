// The option table, and --help, which shows it. What is typed is read in options.c.
#include "llmc/run/options.h"

#include <string.h>

static const char DATA[] = "Data";
static const char MODEL[] = "Model";
static const char BATCH[] = "Batch and length";
static const char UPDATE[] = "Optimisation";
static const char EVALUATION[] = "Evaluation and samples";
static const char OUTPUT[] = "Output";
static const char MACHINE[] = "Machine";

// Type and place of a field; the type is the compiler's word, so row and struct cannot disagree. Enums are unsigned.
#define TYPE_OF(value)                                                                                                 \
    _Generic(value, int : OPTION_INT, int64_t : OPTION_INT64, double : OPTION_DOUBLE, char * : OPTION_STRING,          \
             unsigned : OPTION_WORD)
#define FIELD(name) .type = TYPE_OF(((Options *)0)->name), .offset = offsetof(Options, name)

// The largest integer that JSON readers keep exactly, and a step count nobody reaches: enough, and never an overflow.
#define MAX_EXACT 9007199254740991.0
#define MAX_STEPS 1e12
// What the doubles beta may be: below 1, or the moments never move.
#define BELOW_ONE 0.999999

// The values of words whose enum is in another order than they are, or begins elsewhere.
static const unsigned DTYPES[] = {DTYPE_COUNT, DTYPE_BF16, DTYPE_FP16, DTYPE_FP32};
static const unsigned EXPORT_DTYPES[] = {DTYPE_FP32, DTYPE_BF16, DTYPE_FP16};
static const unsigned PLAN_FORMS[] = {PLAN_TEXT, PLAN_JSON};

#define ONE_PROCESS "accepted for llm.c command lines; one process in this version"

// clang-format off
const OptionRow option_table[] = {
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
     "type of weights and activations; auto: the fastest of this machine", OPTION_OF_RUN, DTYPES},
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
     "save and stop after this time; 0: no limit", OPTION_OF_PROCESS},
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
     "with -x 0: answer prompts from stdin, line by line", OPTION_OF_PROCESS},
    {EVALUATION, "hellaswag",     "h",  FIELD(hellaswag),     "0",    0,         1, "0|1",
     "score HellaSwag at every validation: data/hellaswag/hellaswag_val.bin, or --choices; help is --help"},
    {EVALUATION, "choices",       NULL, FIELD(choices),       "",     0,         0, "GLOB",
     "multiple-choice files in the form of llm.c's HellaSwag, scored at every validation"},
    {EVALUATION, "choice-examples", NULL, FIELD(choice_examples), "0", 0,     1e9, "N",
     "examples to score of each of them; 0: all"},

    {OUTPUT, "output",           "o",  FIELD(output),           "",      0,         0, "DIR",
     "directory for checkpoints and main.log; default: nothing is written", OPTION_OF_PLACE},
    {OUTPUT, "checkpoint-every", "n",  FIELD(checkpoint_every), "1000",  0, MAX_STEPS, "STEPS",
     "save every so many steps and at the end; 0: only at the end"},
    {OUTPUT, "keep",             "nk", FIELD(keep),             "2",     0,       1e6, "N",
     "newest checkpoints to keep; 0: all"},
    {OUTPUT, "major-every",      "nm", FIELD(major),            "0",     0, MAX_STEPS, "STEPS",
     "keep those of every so many steps for ever; 0: none"},
    {OUTPUT, "resume",           "y",  FIELD(resume),           "0",     0,         1, "[0|1]",
     "go on from the newest checkpoint in DIR that is whole", OPTION_OF_PROCESS},
    {OUTPUT, "reset-optimizer",  NULL, FIELD(reset_optimizer),  "0",     0,         1, "[0|1]",
     "with -y: go on with new moments, for another optimizer than the checkpoint's", OPTION_OF_PROCESS},
    {OUTPUT, "progress",         NULL, FIELD(progress),         "-1",   -1,         1, "[-1|0|1]",
     "progress bar; -1: when stdout is a terminal", OPTION_OF_PROCESS},
    {OUTPUT, "tensorboard",      NULL, FIELD(tensorboard),      "1",     0,         1, "[0|1]",
     "write TensorBoard's event file into DIR"},
    {OUTPUT, "export",           NULL, FIELD(export_path),      "",      0,         0, "PATH",
     "at the end write the weights as an llm.c model (PATH ends in .bin) or a Hugging Face directory"},
    {OUTPUT, "export-dtype",     NULL, FIELD(export_dtype),     "fp32",  0,         0, "fp32|bf16|fp16",
     "type of the exported weights; llm.c has no fp16", OPTION_OF_RUN, EXPORT_DTYPES},

    {MACHINE, "threads",       NULL, FIELD(threads),       "0",   0, 1024, "N",
     "threads of the CPU backend; 0: all cores this process may use"},
    {MACHINE, "plan",          NULL, FIELD(plan),          "",    0,    0, "[text|json]",
     "print what this run would take, on this machine and on GPUs, and end", OPTION_OF_PROCESS, PLAN_FORMS},
    {MACHINE, "gpu",           NULL, FIELD(gpu),           "",    0,    0, "GPU",
     "with --plan: for these only, such as h200, rtx4090, t4 or a size like 24G; several are joined by commas",
     OPTION_OF_PROCESS},
    {MACHINE, "price",         NULL, FIELD(price),         "0",   0,  1e6, "DOLLARS",
     "with --plan: of an hour of the GPU, for the cost of the run", OPTION_OF_PROCESS},
    {MACHINE, "numerics-every", NULL, FIELD(numerics_every), "0", 0, MAX_STEPS, "STEPS",
     "log largest values, underflow, overflow and update sizes of all kinds of tensors every so many steps; 0: never"},
    {MACHINE, "profile",       NULL, FIELD(profile),       "0",   0, 1000, "STEPS",
     "time every op of so many steps, print the table and end; the trace goes to -o DIR", OPTION_OF_PROCESS},
    {MACHINE, "tf32",          "f",  FIELD(tf32),          "1",   0,    1, "[0|1]",
     "TF32 tensor cores for fp32 on GPUs that have them"},
    {MACHINE, "attention",     NULL, FIELD(attention),     "auto", 0,   0, "auto|cudnn|own",
     "kernels on a GPU; auto: the faster of cuDNN and our own, measured when the run starts"},
    {MACHINE, "gelu-fusion",   "ge", FIELD(gelu_fusion),   "-1", -1,    2, "LEVEL",
     "GELU inside matmuls of a GPU: 0 none, 1 forward, 2 forward and backward; -1: backward if measured to be faster"},
    {MACHINE, "log-gpu-every", "lg", FIELD(log_gpu_every), "0",   0, MAX_STEPS, "STEPS",
     "show and log clocks, power and temperature of the GPU every so many steps; 0: never"},
    {MACHINE, "zero-stage",    "z",  FIELD(zero_stage),    "0",   0,    0, "STAGE", ONE_PROCESS},
    {MACHINE, "num-processes", "pn", FIELD(num_processes), "1",   1,    1, "N", ONE_PROCESS},
    {MACHINE, "process-rank",  "pr", FIELD(process_rank),  "0",   0,    0, "RANK", ONE_PROCESS},
    {MACHINE, "gpus-per-node", "pg", FIELD(gpus_per_node), "1",   1,    1, "N", ONE_PROCESS},
    {MACHINE, "init-method",   "pi", FIELD(init_method),   "",    0,    0, "METHOD", ONE_PROCESS},
    {MACHINE, "server-ip",     "ps", FIELD(server_ip),     "",    0,    0, "IP", ONE_PROCESS},
    {MACHINE, "fs-path",       "pf", FIELD(fs_path),       "",    0,    0, "PATH", ONE_PROCESS},
    {0},
};
// clang-format on
_Static_assert(sizeof option_table / sizeof *option_table <= 129, "Options.given has one bit a row");

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
    if (!*row->fallback) {
        buf[0] = '\0';
    } else if (row->type >= OPTION_STRING || option_is_flag(row) || row->min == row->max) {
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
    for (const OptionRow *row = option_table; row->long_name; row++) {
        if (row == option_table || row->group != row[-1].group) fprintf(out, "\n%s\n", row->group);
        print_row(out, row);
    }
    fprintf(out, "\n%-*sthis page\n", HELP_COLUMN, "  --help");
}
