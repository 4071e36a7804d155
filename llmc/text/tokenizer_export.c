// Writes a tokenizer as a Hugging Face tokenizer.json: one line per token and merge, the same bytes every time.
#include "llmc/base/atomic_file.h"
#include "llmc/text/bpe_alphabet.h"
#include "llmc/text/tokenizer_vocabulary.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

// Growing text; out of memory is remembered.
typedef struct {
    char *data;
    size_t length, capacity;
    bool failed;
} Text;

static void append(Text *text, const char *bytes, size_t n) {
    if (!text->failed && text->length + n + 1 > text->capacity) {
        size_t capacity = 2 * text->capacity + n + 4096;
        char *grown = realloc(text->data, capacity);
        text->failed = !grown;
        if (grown) text->data = grown, text->capacity = capacity;
    }
    if (text->failed) return;
    memcpy(text->data + text->length, bytes, n);
    text->length += n;
    text->data[text->length] = '\0';
}

__attribute__((format(printf, 2, 3))) static void append_format(Text *text, const char *format, ...) {
    char line[256];
    va_list args;
    va_start(args, format);
    int n = vsnprintf(line, sizeof line, format, args);
    va_end(args);
    REQUIRE(n >= 0 && n < (int)sizeof line, "a line of %d characters", n);
    append(text, line, (size_t)n);
}

// The inside of a JSON string.
static void append_escaped(Text *text, const char *bytes, size_t n) {
    for (size_t i = 0; i < n; i++) {
        unsigned char c = (unsigned char)bytes[i];
        if (c == '"' || c == '\\')
            append_format(text, "\\%c", c);
        else if (c < 0x20)
            append_format(text, "\\u%04x", c);
        else
            append(text, bytes + i, 1);
    }
}

// A token as the vocabulary has it: in the alphabet of bytes, or, if it is not made of bytes, as it is.
static void append_token(Text *text, const Tokenizer *t, int32_t token) {
    const Token *k = &t->tokens[token];
    char spelled[2 * MAX_TOKEN_BYTES];
    size_t n = k->length;
    if (k->ordinary)
        n = alphabet_encode(t->bytes + k->offset, k->length, spelled);
    else
        memcpy(spelled, t->bytes + k->offset, k->length);
    append_escaped(text, spelled, n);
}

static void append_added_tokens(Text *text, const Tokenizer *t) {
    append_format(text, "  \"added_tokens\": [");
    const char *separator = "\n";
    for (int32_t i = 0; i < t->count; i++) {
        const Token *k = &t->tokens[i];
        if (!k->added) continue;
        append_format(text, "%s    {\"id\": %d, \"content\": \"", separator, i);
        append_escaped(text, t->bytes + k->offset, k->length);
        append_format(text,
                      "\", \"single_word\": false, \"lstrip\": false, \"rstrip\": false, \"normalized\": %s, "
                      "\"special\": %s}",
                      k->normalized ? "true" : "false", k->special ? "true" : "false");
        separator = ",\n";
    }
    append_format(text, "\n  ],\n");
}

static void append_vocabulary(Text *text, const Tokenizer *t) {
    append_format(text, "    \"vocab\": {");
    for (int32_t i = 0; i < t->count; i++) {
        append_format(text, "%s      \"", i ? ",\n" : "\n");
        append_token(text, t, i);
        append_format(text, "\": %d", i);
    }
    append_format(text, "\n    },\n");
}

// ------------------------------------------------------------------------------------------------------------- merges

static int compare_rules(const void *a, const void *b) {
    const MergeRule *x = a, *y = b;
    return (x->rank > y->rank) - (x->rank < y->rank);
}

// The two tokens that token is made of when it is merged from its bytes by the rules before it; false: not two.
static bool last_merge(const Tokenizer *t, int32_t token, MergeRule *rule) {
    const Token *k = &t->tokens[token];
    int32_t parts[MAX_TOKEN_BYTES];
    for (uint32_t i = 0; i < k->length; i++) parts[i] = t->byte_tokens[(unsigned char)t->bytes[k->offset + i]];
    int64_t n = merge_tokens(&t->merges, parts, k->length, (uint32_t)token);
    if (n == 2) *rule = (MergeRule){.pair = merge_pair(parts[0], parts[1]), .rank = (uint32_t)token, .merged = token};
    return n == 2;
}

// The merges in their order, malloced. Of a vocabulary of ranks these are one for each token; *unreachable: some token
// is not made by merging, only found as a whole piece.
static MergeRule *ordered_merges(const Tokenizer *t, int64_t *count, bool *unreachable) {
    int64_t most = t->by_rank ? t->count : t->merges.count;
    MergeRule *rules = malloc(((size_t)most + 1) * sizeof *rules);
    *count = 0, *unreachable = false;
    if (!rules) return NULL;
    if (!t->by_rank) {
        for (int64_t i = 0; i < t->merges.capacity; i++)
            if (t->merges.slots[i].pair != MERGE_NO_PAIR) rules[(*count)++] = t->merges.slots[i];
        qsort(rules, (size_t)*count, sizeof *rules, compare_rules);
        return rules;
    }
    for (int32_t i = 0; i < t->count; i++) {
        if (!t->tokens[i].ordinary || t->tokens[i].length < 2) continue;
        if (last_merge(t, i, &rules[*count]))
            ++*count;
        else
            *unreachable = true;
    }
    return rules;
}

static bool append_model(Text *text, const Tokenizer *t) {
    int64_t count;
    bool unreachable;
    MergeRule *rules = ordered_merges(t, &count, &unreachable);
    if (!rules) return false;
    append_format(text, "  \"model\": {\n    \"type\": \"BPE\",\n    \"dropout\": null,\n    \"unk_token\": null,\n"
                        "    \"continuing_subword_prefix\": \"\",\n    \"end_of_word_suffix\": \"\",\n"
                        "    \"fuse_unk\": false,\n    \"byte_fallback\": false,\n");
    // Only where it is needed: tokenizers before 0.19 does not read a file that has it.
    if (unreachable || (t->whole_pieces && !t->by_rank)) append_format(text, "    \"ignore_merges\": true,\n");
    append_vocabulary(text, t);
    append_format(text, "    \"merges\": [");
    for (int64_t i = 0; i < count; i++) {
        append_format(text, "%s      \"", i ? ",\n" : "\n");
        append_token(text, t, (int32_t)(rules[i].pair >> 32));
        append(text, " ", 1);
        append_token(text, t, (int32_t)rules[i].pair);
        append(text, "\"", 1);
    }
    append_format(text, "%s]\n  }\n}\n", count ? "\n    " : "");
    free(rules);
    return true;
}

char *tokenizer_to_json(const Tokenizer *t, size_t *bytes, Error *err) {
    Text text = {0};
    append_format(&text, "{\n  \"version\": \"1.0\",\n  \"truncation\": null,\n  \"padding\": null,\n");
    append_added_tokens(&text, t);
    append_format(&text,
                  "  \"normalizer\": null,\n  \"pre_tokenizer\": {\"type\": \"ByteLevel\", \"add_prefix_space\": "
                  "false, \"trim_offsets\": true, \"use_regex\": true},\n");
    append_format(&text,
                  "  \"post_processor\": {\"type\": \"ByteLevel\", \"add_prefix_space\": true, \"trim_offsets\": "
                  "false, \"use_regex\": true},\n");
    append_format(&text, "  \"decoder\": {\"type\": \"ByteLevel\", \"add_prefix_space\": true, \"trim_offsets\": true, "
                         "\"use_regex\": true},\n");
    if (append_model(&text, t) && !text.failed) {
        *bytes = text.length;
        return text.data;
    }
    free(text.data);
    error_set(err, "%s: out of memory for its tokenizer.json", t->name);
    return NULL;
}

bool tokenizer_write(const Tokenizer *t, const char *path, Error *err) {
    size_t bytes;
    char *json = tokenizer_to_json(t, &bytes, err);
    bool ok = json && file_write_atomic(path, json, bytes, err);
    free(json);
    return ok;
}
