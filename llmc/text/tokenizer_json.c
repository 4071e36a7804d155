// See tokenizer_json.h.
#include "llmc/text/tokenizer_json.h"

#include "llmc/base/file.h"
#include "llmc/base/format.h"
#include "llmc/base/json.h"
#include "llmc/base/own_file.h"
#include "llmc/base/path.h"
#include "llmc/text/alphabet.h"
#include "llmc/text/tokenizer.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const size_t MAX_MERGES_BYTES = (size_t)64 << 20;
static const char *const truth[] = {"false", "true"};

static bool is_json_text(const cJSON *item, const char *expected) {
    return item && cJSON_IsString(item) && strcmp(item->valuestring, expected) == 0;
}

static bool refuse_field(const char *field, const cJSON *item, const char *expected, Error *err) {
    char found[64];
    return error_set(err, "%s is %s, expected %s", field, json_describe(item, found, sizeof found),
                     expected);
}

// --------------------------------------------------------------------------- vocabulary and merges

// All entries "token": number. The spellings of added tokens are plain text, not GPT-2's alphabet,
// and which tokens are added is known only later: a name that the alphabet cannot spell is kept as
// it is.
static bool read_vocabulary(Tokenizer *t, const cJSON *vocab, bool plain_allowed, Error *err) {
    for (const cJSON *item = vocab->child; item; item = item->next) {
        char bytes[2 * MAX_TOKEN_BYTES + 1], shown[64];
        size_t n = strlen(item->string), length = 0;
        int64_t number;
        vocabulary_show(item->string, n, shown, sizeof shown);
        if (!json_int_value(item, 0, MAX_TOKENS - 1, &number)) {
            char found[64];
            return error_set(err, "\"%s\" is %s, expected a number from 0 to %d", shown,
                             json_describe(item, found, sizeof found), MAX_TOKENS - 1);
        }
        if (n >= sizeof bytes)
            return error_set(err, "\"%s...\" is longer than %d bytes", shown, MAX_TOKEN_BYTES);

        bool ordinary = alphabet_decode(item->string, n, bytes, &length);
        if (!ordinary && !plain_allowed)
            return error_set(err,
                             "\"%s\" (token %lld) is not spelled in GPT-2's alphabet of bytes: "
                             "expected a byte-level "
                             "vocabulary",
                             shown, (long long)number);
        if (!ordinary) memcpy(bytes, item->string, length = n);
        if (!vocabulary_add(t, number, bytes, length, ordinary, err)) return false;
    }
    return true;
}

// One side of a merge, spelled in the alphabet.
static bool find_part(const Tokenizer *t, const char *text, size_t n, int32_t *token, Error *err) {
    char bytes[2 * MAX_TOKEN_BYTES], shown[64];
    size_t length = 0;
    *token = -1;
    if (n > 0 && n <= sizeof bytes && alphabet_decode(text, n, bytes, &length))
        *token = vocabulary_find(t, bytes, length);
    if (*token < 0)
        return error_set(err, "\"%s\" is not a token of the vocabulary",
                         vocabulary_show(text, n, shown, sizeof shown));
    return true;
}

static bool add_spelled_merge(Tokenizer *t, const char *left, size_t left_n, const char *right,
                              size_t right_n, uint32_t rank, Error *err) {
    int32_t a, b;
    if (!find_part(t, left, left_n, &a, err)) return false;
    if (!find_part(t, right, right_n, &b, err)) return false;
    return vocabulary_merge(t, a, b, rank, err);
}

// "left right", n bytes.
static bool add_merge_line(Tokenizer *t, const char *line, size_t n, uint32_t rank, Error *err) {
    char shown[64];
    const char *space = memchr(line, ' ', n);
    if (!space || memchr(space + 1, ' ', (size_t)(line + n - space - 1)))
        return error_set(err, "\"%s\", expected two tokens and a space between them",
                         vocabulary_show(line, n, shown, sizeof shown));
    return add_spelled_merge(t, line, (size_t)(space - line), space + 1,
                             (size_t)(line + n - space - 1), rank, err);
}

// ---------------------------------------------------------------------------------- tokenizer.json

// The types of fields, as Hugging Face's reader has them; a field that is missing is another
// matter. Whether a value is supported is checked where it is read.
enum { IS_BOOL = cJSON_False | cJSON_True, IS_TEXT = cJSON_String, IS_NONE = cJSON_NULL };
typedef struct {
    const char *key;
    int types; // cJSON's, as bits
    const char *expected;
} FieldTypes;

static const FieldTypes root_types[] = {{"version", IS_TEXT, "\"1.0\""},
                                        {"truncation", IS_NONE | cJSON_Object, "null"},
                                        {"padding", IS_NONE | cJSON_Object, "null"},
                                        {"normalizer", IS_NONE | cJSON_Object, "null or an object"},
                                        {"decoder", IS_NONE | cJSON_Object, "null or an object"},
                                        {0}},
                        model_types[] = {{"dropout", IS_NONE, "null"},
                                         {"unk_token", IS_NONE | IS_TEXT, "null or text"},
                                         {"continuing_subword_prefix", IS_NONE | IS_TEXT, "null"},
                                         {"end_of_word_suffix", IS_NONE | IS_TEXT, "null"},
                                         {"fuse_unk", IS_BOOL, "true or false"},
                                         {"byte_fallback", IS_BOOL, "true or false"},
                                         {"ignore_merges", IS_BOOL, "true or false"},
                                         {0}},
                        added_types[] = {{"single_word", IS_BOOL, "false"},
                                         {"lstrip", IS_BOOL, "false"},
                                         {"rstrip", IS_BOOL, "false"},
                                         {"normalized", IS_BOOL, "true or false"},
                                         {"special", IS_BOOL, "true or false"},
                                         {0}},
                        step_types[] = {{"type", IS_TEXT, "text"},
                                        {"add_prefix_space", IS_BOOL, "true or false"},
                                        {"trim_offsets", IS_BOOL, "true or false"},
                                        {"use_regex", IS_BOOL, "true or false"},
                                        {0}};

// where: of the object, "" or "model."
static bool check_types(const cJSON *object, const char *where, const FieldTypes *fields,
                        Error *err) {
    for (const FieldTypes *f = fields; f->key; f++) {
        const cJSON *item;
        char field[80];
        if (!json_find(object, f->key, &item, err)) return false;
        snprintf(field, sizeof field, "%s%s", where, f->key);
        if (item && !(item->type & f->types)) return refuse_field(field, item, f->expected, err);
    }
    return true;
}

// Its version is checked, and that the decoder, which texts do not depend on, is one.
static bool check_root(const cJSON *root, Error *err) {
    const cJSON *version, *decoder;
    if (!check_types(root, "", root_types, err) || !json_find(root, "version", &version, err) ||
        !json_find(root, "decoder", &decoder, err))
        return false;
    if (version && !is_json_text(version, "1.0"))
        return refuse_field("version", version, "\"1.0\"", err);
    if (!cJSON_IsObject(decoder)) return true;
    static const char *const kinds[] = {"ByteLevel", "Sequence",  "BPEDecoder", "ByteFallback",
                                        "Fuse",      "Metaspace", "Replace",    "Strip",
                                        "WordPiece", "CTC"};
    const cJSON *type = cJSON_GetObjectItemCaseSensitive(decoder, "type");
    size_t i = 0;
    while (i < sizeof kinds / sizeof *kinds && !is_json_text(type, kinds[i])) i++;
    if (i == sizeof kinds / sizeof *kinds)
        return refuse_field("decoder.type", type, "\"ByteLevel\"", err);
    return check_types(decoder, "decoder.", step_types, err);
}

// A field that, if present, must be off: null, false, "" or 0.
static bool check_off(const cJSON *object, const char *where, const char *key, Error *err) {
    const cJSON *item;
    char field[80];
    if (!json_find(object, key, &item, err)) return false;
    if (!item || cJSON_IsNull(item) || cJSON_IsFalse(item) || is_json_text(item, "")) return true;
    if (cJSON_IsNumber(item) && item->valuedouble == 0) return true;
    snprintf(field, sizeof field, "%s%s", where, key);
    return refuse_field(field, item, "none", err);
}

static bool read_model(Tokenizer *t, const cJSON *model, Error *err) {
    const cJSON *type, *vocab, *merges, *whole;
    if (!check_types(model, "model.", model_types, err)) return false;
    if (!json_find(model, "type", &type, err)) return error_prefix(err, "model");
    if (type && !is_json_text(type, "BPE")) return refuse_field("model.type", type, "\"BPE\"", err);

    static const char *const off[] = {"dropout", "continuing_subword_prefix", "end_of_word_suffix"};
    for (size_t i = 0; i < sizeof off / sizeof off[0]; i++)
        if (!check_off(model, "model.", off[i], err)) return false;

    if (!json_get_object(model, "vocab", &vocab, err) ||
        !json_find(model, "ignore_merges", &whole, err))
        return error_prefix(err, "model");
    t->whole_pieces = cJSON_IsTrue(whole);
    if (!read_vocabulary(t, vocab, true, err)) return error_prefix(err, "model.vocab");

    if (!json_find(model, "merges", &merges, err)) return error_prefix(err, "model");
    if (!cJSON_IsArray(merges)) return refuse_field("model.merges", merges, "an array", err);
    uint32_t rank = 0;
    for (const cJSON *item = merges->child; item; item = item->next, rank++) {
        const cJSON *left = NULL, *right = NULL;
        if (cJSON_IsArray(item)) left = item->child;
        if (left) right = left->next;
        bool ok = false;
        if (cJSON_IsString(item))
            ok = add_merge_line(t, item->valuestring, strlen(item->valuestring), rank, err);
        else if (right && cJSON_IsString(left) && cJSON_IsString(right) && !right->next)
            ok = add_spelled_merge(t, left->valuestring, strlen(left->valuestring),
                                   right->valuestring, strlen(right->valuestring), rank, err);
        else
            error_set(err, "expected \"left right\" or [\"left\", \"right\"]");
        if (!ok) return error_prefix(err, "model.merges[%u]", rank);
    }
    return true;
}

// A field that must be `expected`, as JSON: "\"ByteLevel\"", "false".
static bool check_field(const cJSON *object, const char *where, const char *key,
                        const char *expected, Error *err) {
    const cJSON *item;
    char field[80];
    if (!json_find(object, key, &item, err)) return error_prefix(err, "%s", where);
    char *text = cJSON_PrintUnformatted(item);
    const bool ok = text && strcmp(text, expected) == 0;
    cJSON_free(text);
    snprintf(field, sizeof field, "%s.%s", where, key);
    if (!ok) return refuse_field(field, item, expected, err);
    return true;
}

// use_regex: it cuts the text by GPT-2's pattern.
static bool check_byte_level(const cJSON *step, const char *where, bool use_regex, Error *err) {
    return check_field(step, where, "type", "\"ByteLevel\"", err) &&
           (check_types(step, "", step_types, err) || error_prefix(err, "%s", where)) &&
           check_field(step, where, "add_prefix_space", "false", err) &&
           ((use_regex && !cJSON_HasObjectItem(step, "use_regex")) ||
            check_field(step, where, "use_regex", truth[use_regex], err));
}

// ByteLevel, or Digits and then ByteLevel, or Split and then ByteLevel.
static bool read_pre_tokenizer(Tokenizer *t, const cJSON *root, Error *err) {
    static const char where[] = "pre_tokenizer", first[] = "pre_tokenizer.pretokenizers[0]",
                      second[] = "pre_tokenizer.pretokenizers[1]";
    const cJSON *step, *type, *steps, *pattern, *behavior, *regex = NULL;
    if (!json_find(root, where, &step, err)) return false;
    if (!cJSON_IsObject(step)) return refuse_field(where, step, "ByteLevel, as GPT-2 has", err);
    if (!json_find(step, "type", &type, err)) return error_prefix(err, "%s", where);
    if (!is_json_text(type, "Sequence")) return check_byte_level(step, where, true, err);
    if (!json_get_array(step, "pretokenizers", 2, &steps, err))
        return error_prefix(err, "%s", where);
    const cJSON *split = steps->child, *byte_level = split->next;
    if (!cJSON_IsObject(split)) return refuse_field(first, split, "an object", err);
    if (!cJSON_IsObject(byte_level)) return refuse_field(second, byte_level, "an object", err);
    if (!json_find(split, "type", &type, err)) return error_prefix(err, "%s", first);
    if (is_json_text(type, "Digits")) {
        t->pattern = PATTERN_STARCODER;
        return check_field(split, first, "individual_digits", "true", err) &&
               check_byte_level(byte_level, second, true, err);
    }

    // {"type": "Split", "pattern": {"Regex": "..."}, "behavior": "Isolated", "invert": false}.
    // "Removed" and true keep what the pattern matches, which is the same: all patterns match every
    // character.
    if (!check_field(split, first, "type", "\"Split\"", err)) return false;
    if (!json_find(split, "behavior", &behavior, err) ||
        !json_find(split, "pattern", &pattern, err) ||
        (cJSON_IsObject(pattern) && !json_find(pattern, "Regex", &regex, err)))
        return error_prefix(err, "%s", first);
    t->pattern = NUM_PATTERNS;
    for (Pattern i = 0; i < NUM_PATTERNS && t->pattern == NUM_PATTERNS; i++)
        if (is_json_text(regex, pattern_facts[i].regex)) t->pattern = i;
    if (t->pattern == NUM_PATTERNS)
        return refuse_field("pre_tokenizer.pretokenizers[0].pattern.Regex", regex,
                            "GPT-2's, Llama 3's (cl100k's), Qwen2's or o200k's", err);
    const bool inverted = is_json_text(behavior, "Removed");
    if (!inverted && !check_field(split, first, "behavior", "\"Isolated\"", err)) return false;
    if (!check_field(split, first, "invert", truth[inverted], err)) return false;
    return check_byte_level(byte_level, second, false, err);
}

static bool read_added_token(Tokenizer *t, const cJSON *item, Error *err) {
    const cJSON *special, *normalized;
    const char *content;
    int64_t number;
    char bytes[2 * MAX_TOKEN_BYTES];
    size_t length;

    if (!cJSON_IsObject(item)) return error_set(err, "not an object");
    if (!check_types(item, "", added_types, err)) return false;
    if (!json_get_int(item, "id", 0, MAX_TOKENS - 1, &number, err) ||
        !json_get_string(item, "content", &content, err) ||
        !check_off(item, "", "single_word", err) || !check_off(item, "", "lstrip", err) ||
        !check_off(item, "", "rstrip", err) || !json_find(item, "special", &special, err) ||
        !json_find(item, "normalized", &normalized, err))
        return false;

    // Hugging Face uses the vocabulary's number for it, whatever "id" says.
    bool spelled = strlen(content) <= sizeof bytes &&
                   alphabet_decode(content, strlen(content), bytes, &length);
    const int32_t same = spelled ? vocabulary_find(t, bytes, length) : -1;
    if (same >= 0 && same != number)
        return error_set(err, "\"id\" is %lld, but model.vocab has it as %d", (long long)number,
                         same);
    return vocabulary_add_added(t, number, content, cJSON_IsTrue(special),
                                !cJSON_IsFalse(normalized), err);
}

static bool read_added_tokens(Tokenizer *t, const cJSON *root, Error *err) {
    const cJSON *added, *item;
    char shown[64];
    int number = 0;
    if (!json_find(root, "added_tokens", &added, err)) return false;
    if (added && !cJSON_IsArray(added)) return refuse_field("added_tokens", added, "an array", err);
    cJSON_ArrayForEach(item, added) {
        if (!read_added_token(t, item, err)) return error_prefix(err, "added_tokens[%d]", number);
        number++;
    }

    // A token neither made of bytes nor added can never result from a text: the vocabulary is of
    // another kind.
    for (int32_t i = 0; i < t->count; i++) {
        const Token *k = &t->tokens[i];
        if (k->known && !k->ordinary && !k->added)
            return error_set(err,
                             "model.vocab: \"%s\" (token %d) is not spelled in GPT-2's alphabet of "
                             "bytes: expected a "
                             "byte-level vocabulary",
                             vocabulary_show(t->bytes + k->offset, k->length, shown, sizeof shown),
                             i);
    }
    return true;
}

// {"type": "NFC"} is left to the user.
static bool read_normalizer(Tokenizer *t, const cJSON *root, Error *err) {
    const cJSON *step, *type = NULL;
    if (!json_find(root, "normalizer", &step, err) ||
        (cJSON_IsObject(step) && !json_find(step, "type", &type, err)))
        return false;
    t->expects_nfc = is_json_text(type, "NFC");
    if (t->expects_nfc) return true;
    return check_off(root, "", "normalizer", err);
}

// ByteLevel adds no token. A TemplateProcessing may put one special token before the text ("A"):
//   "single": [{"SpecialToken": {"id": "<|begin_of_text|>", "type_id": 0}},
//              {"Sequence": {"id": "A", "type_id": 0}}]
static bool read_post_step(Tokenizer *t, const cJSON *step, const char *where, Error *err) {
    const cJSON *type, *single, *token;
    const char *text;
    if (!cJSON_IsObject(step)) return refuse_field(where, step, "an object", err);
    if (!json_find(step, "type", &type, err)) return error_prefix(err, "%s", where);
    if (!is_json_text(type, "TemplateProcessing"))
        return check_field(step, where, "type", "\"ByteLevel\"", err) &&
               (check_types(step, "", step_types, err) || error_prefix(err, "%s", where));

    if (!json_get_array(step, "single", 2, &single, err)) return error_prefix(err, "%s", where);
    const cJSON *before = single->child, *sequence = before->next;
    if (!cJSON_IsObject(before) || !cJSON_IsObject(sequence) ||
        !cJSON_HasObjectItem(sequence, "Sequence"))
        return error_set(err, "%s.single: expected a special token and then the text", where);
    if (!json_get_object(before, "SpecialToken", &token, err) ||
        !json_get_string(token, "id", &text, err))
        return error_prefix(err, "%s.single[0]", where);

    if (t->begin >= 0) return error_set(err, "%s: a second TemplateProcessing", where);
    t->begin = vocabulary_find_special(t, text);
    if (t->begin < 0)
        return error_set(err, "%s.single[0]: \"%.40s\" is not a special token", where, text);
    return true;
}

static bool read_post_processor(Tokenizer *t, const cJSON *root, Error *err) {
    const cJSON *step, *part, *parts;
    if (!json_find(root, "post_processor", &step, err)) return false;
    if (!step || cJSON_IsNull(step)) return true;
    parts = cJSON_GetObjectItemCaseSensitive(step, "processors");
    if (!cJSON_IsArray(parts)) return read_post_step(t, step, "post_processor", err);
    cJSON_ArrayForEach(part, parts) {
        if (!read_post_step(t, part, "post_processor.processors", err)) return false;
    }
    return true;
}

// ----------------------------------------------------------------------- vocab.json and merges.txt

static bool read_vocab_json(Tokenizer *t, const char *path, const cJSON *root, Error *err) {
    if (!read_vocabulary(t, root, false, err)) return error_prefix(err, "%s", path);

    // The merges are merges.txt next to it, or vocab.bpe next to an encoder.json.
    const char *line;
    char *directory = path_parent(path), *merges = path_join(directory, "merges.txt"),
         *openai = path_join(directory, "vocab.bpe");
    const char *from = merges;
    if (strcmp(path_name(path), "encoder.json") == 0 && file_exists(openai)) from = openai;
    if (strcmp(path_name(path), "encoder.json") != 0 && !file_exists(merges)) from = openai;

    size_t n, at = 0, length;
    uint32_t rank = 0;
    char *text = file_read_all(from, MAX_MERGES_BYTES, &n, err);
    bool ok = text || error_prefix(err, "%s needs its merges", path);
    for (unsigned number = 1; ok && vocabulary_line(text, n, &at, &line, &length); number++) {
        const bool is_header = number == 1 && length >= 8 && memcmp(line, "#version", 8) == 0;
        const bool is_end = length == 0 && at >= n;
        ok = is_header || is_end || add_merge_line(t, line, length, rank++, err) ||
             error_prefix(err, "%s: line %u", from, number);
    }

    if (ok && !vocabulary_finish(t, err)) ok = error_prefix(err, "%s", path);
    if (ok && !vocabulary_check_merges(t, err)) ok = error_prefix(err, "%s", from);
    free(text);
    free(directory);
    free(merges);
    free(openai);
    return ok;
}

// ------------------------------------------------------------------------------------------- files

// JSON strings may hold a NUL, C strings may not: "a\u0000b" would be read as "a".
static bool has_nul(const char *text, size_t n) {
    if (memchr(text, '\0', n)) return true;
    for (const char *p = text; (p = strstr(p, "\\u0000")); p++) {
        size_t backslashes = 0;
        while (p - backslashes > text && p[-1 - (ptrdiff_t)backslashes] == '\\') backslashes++;
        if (backslashes % 2 == 0) return true;
    }
    return false;
}

Tokenizer *tokenizer_read_json(const char *path, const char *text, size_t bytes, Error *err) {
    if (has_nul(text, bytes)) {
        error_set(err, "%s: damaged, or not a tokenizer: it has a NUL character", path);
        return NULL;
    }

    cJSON *root = json_parse(text, bytes, err);
    if (!root) {
        error_prefix(err, "%s", path);
        return NULL;
    }

    Tokenizer *t = vocabulary_new("byte-level BPE of %s", path);
    const cJSON *model = cJSON_GetObjectItemCaseSensitive(root, "model");
    bool ok;
    if (model && !cJSON_IsNumber(model)) { // a number: a vocabulary that has a token "model"
        ok = json_get_object(root, "model", &model, err);
        if (ok) ok = check_root(root, err);
        if (ok) ok = read_normalizer(t, root, err);
        if (ok) ok = check_off(root, "", "truncation", err);
        if (ok) ok = check_off(root, "", "padding", err);
        if (ok) ok = read_pre_tokenizer(t, root, err);
        if (ok) ok = read_model(t, model, err);
        if (ok) ok = read_added_tokens(t, root, err);
        if (ok) ok = read_post_processor(t, root, err);
        if (ok && (!vocabulary_finish(t, err) || !vocabulary_check_merges(t, err)))
            ok = error_prefix(err, "model.vocab");
        if (!ok) error_prefix(err, "%s", path);
    } else if (cJSON_IsNumber(root->child) &&
               !cJSON_GetObjectItemCaseSensitive(root, "model_type")) {
        ok = read_vocab_json(t, path, root, err);
    } else {
        const char *kind = "a JSON file without \"model\" (tokenizer.json) and without numbered "
                           "tokens (vocab.json)";
        if (cJSON_HasObjectItem(root, "weight_map")) kind = "the index of sharded weights";
        if (cJSON_HasObjectItem(root, "tokenizer_class"))
            kind = "a tokenizer_config.json, which has no vocabulary";
        if (cJSON_HasObjectItem(root, "model_type") || cJSON_HasObjectItem(root, "n_embd"))
            kind = "a model's config.json";
        ok = error_set(err, "%s: not a tokenizer but %s", path, kind);
    }

    cJSON_Delete(root);
    if (ok) return t;
    tokenizer_free(t);
    return NULL;
}

// ----------------------------------------------------------------------------------------- writing

// The contents of a JSON string.
static void put_escaped(FILE *out, const char *bytes, size_t n) {
    for (size_t i = 0; i < n; i++) {
        const unsigned char c = (unsigned char)bytes[i];
        if (c == '"' || c == '\\') putc_unlocked('\\', out);
        if (c < 0x20)
            fprintf(out, "\\u%04x", c);
        else
            putc_unlocked(c, out);
    }
}

// A token as spelled in the vocabulary: in the alphabet of bytes, or as it is if it is not made of
// bytes.
static void put_token(FILE *out, const Tokenizer *t, int32_t token) {
    const Token *k = &t->tokens[token];
    char spelled[2 * MAX_TOKEN_BYTES];
    if (k->ordinary)
        put_escaped(out, spelled, alphabet_encode(t->bytes + k->offset, k->length, spelled));
    else
        put_escaped(out, t->bytes + k->offset, k->length);
}

// ------------------------------------------------------------------------------------------ merges

static int compare_rules(const void *a, const void *b) {
    const MergeRule *x = a, *y = b;
    return (x->rank > y->rank) - (x->rank < y->rank);
}

// The merges in order, malloced. A vocabulary of ranks has at most one for each token;
// *unreachable: some token is not made by merging its bytes, only found as a whole piece.
static MergeRule *ordered_merges(const Tokenizer *t, int64_t *count, bool *unreachable) {
    const int64_t most = t->by_rank ? t->count : t->merges.count;
    MergeRule *rules = malloc(((size_t)most + 1) * sizeof *rules);
    *count = 0;
    *unreachable = false;
    REQUIRE_MEMORY(rules, "a tokenizer.json");

    if (!t->by_rank) {
        for (int64_t i = 0; i < t->merges.capacity; i++)
            if (t->merges.slots[i].pair != MERGE_NO_PAIR) rules[(*count)++] = t->merges.slots[i];
        qsort(rules, (size_t)*count, sizeof *rules, compare_rules);
        return rules;
    }

    for (int32_t i = 0; i < t->count; i++) {
        const Token *k = &t->tokens[i];
        int32_t parts[MAX_TOKEN_BYTES];
        if (!k->ordinary || k->length < 2) continue;

        // The merge that makes the token: of the two parts that remain when its bytes are merged by
        // the rules before it. If more remain, merging passes the token over, alone; in a longer
        // piece, later rules may still leave two parts of it. No other two parts are ever left:
        // inside a token, merges come in the order of its bytes alone.
        int64_t n = vocabulary_merge_bytes(t, i, (uint32_t)i, parts);
        if (n != 2) {
            *unreachable = true;
            n = merge_tokens(&t->merges, parts, n, UINT32_MAX, 2);
        }
        if (n != 2) continue;
        rules[(*count)++] =
            (MergeRule){.pair = merge_pair(parts[0], parts[1]), .rank = (uint32_t)i, .merged = i};
    }
    return rules;
}

// From the type on, without the last brace.
static void put_pre_tokenizer(FILE *out, Pattern pattern) {
    static const char byte_level[] =
        "ByteLevel\", \"add_prefix_space\": false, \"trim_offsets\": true, \"use_regex\": ";
    const char *regex = pattern_facts[pattern].regex, *own_regex = "true";
    if (pattern != PATTERN_GPT2) fputs("Sequence\", \"pretokenizers\": [\n    {\"type\": \"", out);
    if (pattern == PATTERN_STARCODER) {
        fputs("Digits\", \"individual_digits\": true},\n    {\"type\": \"", out);
    } else if (pattern != PATTERN_GPT2) {
        own_regex = "false";
        fputs("Split\", \"pattern\": {\"Regex\": \"", out);
        put_escaped(out, regex, strlen(regex));
        fputs("\"}, \"behavior\": \"Isolated\", \"invert\": false},\n    {\"type\": \"", out);
    }
    fprintf(out, "%s%s%s", byte_level, own_regex, pattern != PATTERN_GPT2 ? "}\n  ]" : "");
}

static void put_post_processor(FILE *out, const Tokenizer *t) {
    static const char byte_level[] = "{\"type\": \"ByteLevel\", \"add_prefix_space\": true, "
                                     "\"trim_offsets\": false, \"use_regex\": true}";
    if (t->begin < 0) {
        fputs(byte_level, out);
        return;
    }

    const Token *begin = &t->tokens[t->begin];
    const char *spelled = t->bytes + begin->offset;
    fprintf(out,
            "{\"type\": \"Sequence\", \"processors\": [\n    %s,\n    {\"type\": "
            "\"TemplateProcessing\", ",
            byte_level);
    fputs("\"single\": [{\"SpecialToken\": {\"id\": \"", out);
    put_escaped(out, spelled, begin->length);
    fputs("\", \"type_id\": 0}}, {\"Sequence\": {\"id\": \"A\", \"type_id\": 0}}],\n     \"pair\": "
          "[{\"Sequence\": "
          "{\"id\": "
          "\"A\", \"type_id\": 0}}, {\"Sequence\": {\"id\": \"B\", \"type_id\": 1}}],\n     "
          "\"special_tokens\": {\"",
          out);
    put_escaped(out, spelled, begin->length);
    fputs("\": {\"id\": \"", out);
    put_escaped(out, spelled, begin->length);
    fprintf(out, "\", \"ids\": [%d], \"tokens\": [\"", t->begin);
    put_escaped(out, spelled, begin->length);
    fputs("\"]}}}\n  ]}", out);
}

static void put_added_tokens(FILE *out, const Tokenizer *t) {
    const char *separator = "\n";
    for (int32_t i = 0; i < t->count; i++) {
        const Token *k = &t->tokens[i];
        if (!k->added) continue;
        fprintf(out, "%s    {\"id\": %d, \"content\": \"", separator, i);
        put_escaped(out, t->bytes + k->offset, k->length);
        fprintf(out,
                "\", \"single_word\": false, \"lstrip\": false, \"rstrip\": false, \"normalized\": "
                "%s, \"special\": "
                "%s}",
                truth[k->normalized], truth[k->special]);
        separator = ",\n";
    }
}

static void put_merges(FILE *out, const Tokenizer *t, const MergeRule *rules, int64_t count) {
    for (int64_t i = 0; i < count; i++) {
        fprintf(out, "%s\n      \"", i > 0 ? "," : "");
        put_token(out, t, (int32_t)(rules[i].pair >> 32));
        putc_unlocked(' ', out);
        put_token(out, t, (int32_t)rules[i].pair);
        putc_unlocked('"', out);
    }
}

char *tokenizer_to_json(const Tokenizer *t, size_t *bytes) {
    int64_t count;
    bool unreachable;
    MergeRule *rules = ordered_merges(t, &count, &unreachable);
    static const char *const normalizers[] = {"null", "{\"type\": \"NFC\"}"};
    char *text;
    FILE *out = text_open(&text, bytes);

    fputs("{\n  \"version\": \"1.0\",\n  \"truncation\": null,\n  \"padding\": null,\n  "
          "\"added_tokens\": [",
          out);
    put_added_tokens(out, t);
    fprintf(out, "\n  ],\n  \"normalizer\": %s,\n  \"pre_tokenizer\": {\"type\": \"",
            normalizers[t->expects_nfc]);
    put_pre_tokenizer(out, t->pattern);
    fputs("},\n"
          "  \"post_processor\": ",
          out);
    put_post_processor(out, t);
    fputs(
        ",\n"
        "  \"decoder\": {\"type\": \"ByteLevel\", \"add_prefix_space\": true, \"trim_offsets\": "
        "true, "
        "\"use_regex\": true},\n"
        "  \"model\": {\n    \"type\": \"BPE\",\n    \"dropout\": null,\n    \"unk_token\": null,\n"
        "    \"continuing_subword_prefix\": \"\",\n    \"end_of_word_suffix\": \"\",\n"
        "    \"fuse_unk\": false,\n    \"byte_fallback\": false,\n",
        out);

    // Only if needed: tokenizers before 0.19 does not read a file that has it.
    if (unreachable || (t->whole_pieces && !t->by_rank))
        fputs("    \"ignore_merges\": true,\n", out);

    fputs("    \"vocab\": {", out);
    for (int32_t i = 0; i < t->count; i++) {
        fprintf(out, "%s\n      \"", i > 0 ? "," : "");
        put_token(out, t, i);
        fprintf(out, "\": %d", i);
    }

    fputs("\n    },\n    \"merges\": [", out);
    put_merges(out, t, rules, count);
    fprintf(out, "%s]\n  }\n}\n", count ? "\n    " : "");

    free(rules);
    fclose(out);
    return text;
}

bool tokenizer_write(const Tokenizer *t, const char *path, Error *err) {
    size_t bytes;
    char *json = tokenizer_to_json(t, &bytes);
    const bool ok = own_file_write(path, TOKENIZER_MARK, json, bytes, err);
    free(json);
    return ok;
}
