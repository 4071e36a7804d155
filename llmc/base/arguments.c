// See arguments.h.
#include "llmc/base/arguments.h"

#include "llmc/base/arithmetic.h"
#include "llmc/base/edit_distance.h"
#include "llmc/base/format.h"

#include <ctype.h>
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

ShownArgument argument_shown(const char *text, size_t length) {
    ShownArgument s;
    const size_t n = length >= sizeof s.text ? sizeof s.text - 4 : length;
    for (size_t i = 0; i < n; i++) {
        s.text[i] = text[i];
        if (iscntrl((unsigned char)text[i])) s.text[i] = '?';
    }
    snprintf(s.text + n, sizeof s.text - n, "%s", n < length ? "..." : "");
    return s;
}

Argument argument_split(const char *word) {
    Argument a = {.name = word + 1 + (word[1] == '-')};
    a.length = strcspn(a.name, "=");
    if (a.name[a.length] == '=') a.value = a.name + a.length + 1;
    return a;
}

NearestName argument_nearest(const char *typo, size_t length) {
    NearestName nearest = {.distance = INT_MAX};
    snprintf(nearest.typo, sizeof nearest.typo, "%.32s", argument_shown(typo, length).text);
    return nearest;
}

void argument_nearest_try(NearestName *nearest, const char *dashes, const char *name) {
    const char *typo = nearest->typo;
    if (!name) return;
    // A piece of a name ("batch", "steps") is a better guess than a word of similar letters; among
    // equals, the one with the same first letter ("--lr": -l, not -r). Half of their letters must
    // agree.
    const int edits = strlen(typo) < 3 || !strcasestr(name, typo) ? edit_distance(typo, name) : 1;
    const size_t longer = max_size(strlen(typo), strlen(name));
    const int distance =
        2 * edits + (tolower((unsigned char)typo[0]) != tolower((unsigned char)name[0]));
    if (2 * edits > (int)longer || distance >= nearest->distance) return;
    nearest->distance = distance;
    snprintf(nearest->text, sizeof nearest->text, "%s%s", dashes, name);
}

void argument_nearest_foreign(NearestName *nearest) {
    // nanoGPT's, llm.c's Python, Hugging Face's Trainer, torchtitan's, litgpt's; - and _ are one.
    static const struct {
        const char *name, *ours;
    } foreign[] = {{"epochs", "-x -1, one epoch, or -x STEPS"},
                   {"num-train-epochs", "-x -1, one epoch, or -x STEPS"},
                   {"max-epochs", "-x -1, one epoch, or -x STEPS"},
                   {"num-epochs", "-x -1, one epoch, or -x STEPS"},
                   {"max-iters", "-x STEPS"},
                   {"num-iterations", "-x STEPS"},
                   {"iterations", "-x STEPS"},
                   {"train-iters", "-x STEPS"},
                   {"max-tokens", "--tokens"},
                   {"train-tokens", "--tokens"},
                   {"per-device-train-batch-size", "-b, --batch-size"},
                   {"micro-batch-size", "-b, --batch-size"},
                   {"gradient-accumulation-steps", "-d TOKENS, the tokens of a whole step"},
                   {"global-batch-size", "-d TOKENS, the tokens of a whole step"},
                   {"block-size", "-t TOKENS, the context"},
                   {"seq-len", "-t TOKENS, the context"},
                   {"max-seq-len", "-t TOKENS, the context"},
                   {"context-length", "-t TOKENS, the context"},
                   {"data", "-i GLOB, the shards"},
                   {"dataset", "-i GLOB, the shards"},
                   {"train-file", "-i GLOB, the shards"},
                   {"train-bin", "-i GLOB, the shards"},
                   {"out-dir", "-o DIR"},
                   {"output-dir", "-o DIR"},
                   {"checkpoint-dir", "-o DIR"},
                   {"model-name-or-path", "-e MODEL"},
                   {"init-from", "-e MODEL"},
                   {"resume-from-checkpoint", "-y"},
                   {"precision", "--dtype"},
                   {"bf16", "--dtype bf16"},
                   {"fp16", "--dtype fp16"},
                   {"warmup-iters", "-u STEPS"},
                   {"max-grad-norm", "--grad-clip"},
                   {"save-steps", "-n STEPS"},
                   {"eval-interval", "-v STEPS"},
                   {"gradient-checkpointing", "-r"}};

    char typed[sizeof nearest->typo];
    snprintf(typed, sizeof typed, "%s", nearest->typo);
    for (char *p = typed; *p; p++)
        if (*p == '_') *p = '-';

    for (size_t i = 0; i < sizeof foreign / sizeof *foreign; i++)
        if (strcasecmp(typed, foreign[i].name) == 0)
            snprintf(nearest->text, sizeof nearest->text, "%s", foreign[i].ours);
}

bool argument_unknown(const char *word, const NearestName *nearest, const char *command,
                      Error *err) {
    if (!*nearest->text) return error_set(err, "unknown option %s; %s lists them", word, command);
    return error_set(err, "unknown option %s; did you mean %s?", word, nearest->text);
}

#ifdef __clang__
static const char compiler_name[] = "clang " __clang_version__;
#else
static const char compiler_name[] = "gcc " __VERSION__;
#endif

void program_print_version(void) {
    printf("%s of pretrain.cu, which has no releases: git log -1 in its checkout shows the commit; "
           "compiled by %s\n",
           program_invocation_short_name, compiler_name);
    fflush(stdout);
}
