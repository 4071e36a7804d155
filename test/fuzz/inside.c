// Readers whose functions are static: their source is part of this file, which is compiled once for
// each of them
// (-DFUZZ_TCP and so on). The rows of the table in readers.c have their names.
#include "test/fuzz/fuzz.h"

#ifdef FUZZ_CHOICE_LINES // -------------------------------------------------------------------------------
                         // data/choices

int choices_main(int argc, char **argv);
#define main choices_main
#include "data/choices.c"
#undef main

void fuzz_choice_lines_seed(int i) {
    static const char *const lines[] = {
        "{\"ctx\": \"A man sits\", \"endings\": [\"down.\", \"up.\"], \"label\": 1}\n\n"
        "{\"context\": \"hello\", \"choices\": [\"a\", \"b\", \"world\"], \"label\": 0}\n",
        "{\"ctx\": \"\xc3\xa9\", \"endings\": [\"a\", \"b\"], \"label\": \"1\"}\n{\"ctx\": 3}\nnot "
        "json\n"
        "{\"ctx\": \"x\", \"endings\": [\"a\", \"b\"], \"label\": 0}"};
    write_text(fuzz_path("choices.jsonl"), lines[i]);
}

// The reader of the trainer takes what the tool writes.
bool fuzz_choice_lines_read(const FuzzInput *in) {
    char input[PATH_MAX], output[PATH_MAX];
    snprintf(input, sizeof input, "%s", fuzz_path("choices.jsonl"));
    snprintf(output, sizeof output, "%s", fuzz_path("made.bin"));
    const ChoiceOptions options = {input, output, "bytes", in->variant % 2 == 1, false};

    static Choices c; // its megabytes and the encoder serve all inputs
    if (!c.encoder) {
        c.tokenizer = tokenizer_named("bytes", &fuzz_error);
        c.encoder = c.tokenizer ? encoder_create(c.tokenizer) : NULL;
        c.line = malloc(MAX_LINE + 2);
        c.text = malloc(MAX_LINE + 2);
        c.tokens = malloc((MAX_LINE + 2) * sizeof *c.tokens);
        REQUIRE(c.encoder && c.line && c.text && c.tokens, "%s", fuzz_error.text);
    }

    c.options = &options, c.examples = c.bad = c.longest = 0;
    c.stream = text_open(&c.data, &c.bytes);
    const bool ok = read_input(&c, &fuzz_error) && write_output(&c, &fuzz_error);

    ChoiceSets sets;
    if (ok) {
        REQUIRE(choices_open(&sets, output, 257, &fuzz_error), "written, but refused: %s",
                fuzz_error.text);
        REQUIRE(choices_count(sets.sets[0]) == c.examples, "%lld examples were written",
                (long long)c.examples);
        choices_close(&sets);
    }

    fclose(c.stream);
    free(c.data);
    return ok;
}

#elif defined                                                                                      \
    FUZZ_SHARD_TOOL // ----------------------------------------------------------------------------
                    // data/shard

int shard_main(int argc, char **argv);
#define main shard_main
#include "data/shard.c"
#include "llmc/base/clock.h"
#include "llmc/text/tokenizer_json.h"
#undef main

#include <math.h>
#include <xxhash.h>

static void write_manifest(void) {
    int64_t bytes;
    uint64_t xxh3;
    file_checksum(fuzz_path("d/train_000000.bin"), &bytes, &xxh3, NULL);
    char text[400];
    snprintf(
        text, sizeof text,
        "{\"format\": 1, \"train\": {\"tokens\": 40, \"shards\": [{\"file\": \"train_000000.bin\", "
        "\"tokens\": 40, "
        "\"bytes\": %lld, \"xxh3\": \"%016llx\"}]}, \"val\": {\"tokens\": 0, \"shards\": []}}\n",
        (long long)bytes, (unsigned long long)xxh3);
    write_text(fuzz_path("d/manifest.json"), text);
}

void fuzz_shard_tool_seed(int i) {
    uint16_t tokens[40];
    for (int t = 0; t < 40; t++) tokens[t] = (uint16_t)(t == 7 ? 256 : t * 7 % 256);

    ShardWriter *w = shard_writer_open(fuzz_path("d/train_000000.bin"), 2, 257, 256, &fuzz_error);
    REQUIRE(w && shard_writer_append(w, tokens, 40, &fuzz_error) &&
                shard_writer_commit(w, &fuzz_error),
            "%s", fuzz_error.text);

    if (i != 1) write_manifest();
    if (i != 2) return;

    Tokenizer *t = tokenizer_bytes(&fuzz_error);
    REQUIRE(t && tokenizer_write(t, fuzz_path("d/tokenizer.json"), &fuzz_error), "%s",
            fuzz_error.text);
    tokenizer_free(t);
}

// Bytes and checksum of the shard in the manifest.
void fuzz_shard_tool_repair(FuzzInput *in) {
    Piece *p = &in->pieces[1];
    unsigned char *at = memmem(p->bytes, p->n, "\"xxh3\": \"", 9);
    char hex[17];
    if (!at || p->bytes + p->n - at < 25) return;
    snprintf(hex, sizeof hex, "%016llx",
             (unsigned long long)XXH3_64bits(in->pieces[0].bytes, in->pieces[0].n));
    memcpy(at + 9, hex, 16);
}

bool fuzz_shard_tool_read(const FuzzInput *in) {
    static const char *const commands[] = {"verify", "list", "show"};
    static Look l;
    l.command = commands[in->variant % 3], l.tokenizer = "", l.count = 32, l.eot = -1;
    l.at = l.vocab = l.files = l.bad = l.tokens = l.documents = 0; // not the block, which is large

    visit_pattern(&l, fuzz_path("d/*.bin"));
    const bool ok = l.bad == 0;
    const Piece *m = &in->pieces[1];

    // verify: an entry for the shard means that it has this checksum.
    if (ok && *l.command == 'v' && !m->absent && !in->pieces[0].absent) {
        cJSON *root = json_parse((const char *)m->bytes, m->n, &fuzz_error);
        const cJSON *entry = NULL;
        char *directory = path_parent(fuzz_path("d/train_000000.bin"));
        REQUIRE(root && find_entry(root, directory, "train_000000.bin", &entry, &fuzz_error),
                "accepted: a manifest, %s", fuzz_error.text);
        const char *xxh3 = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(entry, "xxh3"));
        char hex[17];
        snprintf(hex, sizeof hex, "%016llx",
                 (unsigned long long)XXH3_64bits(in->pieces[0].bytes, in->pieces[0].n));
        REQUIRE(!entry || (xxh3 && strcasecmp(xxh3, hex) == 0), "accepted: checksum %s for %s",
                xxh3 ? xxh3 : "none", hex);
        free(directory);
        cJSON_Delete(root);
    }

    return ok;
}

#elif defined                                                                                      \
    FUZZ_WHEREIS // -----------------------------------------------------------------------------
                 // data/whereis

int whereis_main(int argc, char **argv);
#define main whereis_main
#include "data/whereis.c"
#undef main

void fuzz_whereis_seed(int i) {
    char text[2000], *at = text;

    for (int k = 0; k <= i; k++)
        at += sprintf(
            at,
            "{\"event\":\"run\",\"time\":1.5,\"options\":{\"train-data\":\"x*.bin\",\"tokenizer\":"
            "\"\","
            "\"overfit\":%d,\"seed\":1337},\"model\":{\"T\":4,\"B\":2},\"train\":{\"tokens\":93,"
            "\"windows\":23,"
            "\"shards\":1%s},\"start_step\":%d,\"total_steps\":99,\"tokens_per_step\":%d}\n"
            "{\"event\":\"step\",\"step\":1}\n",
            0, k == 1 ? ",\"start\":0,\"sources\":[{\"weight\":1,\"drawn\":7}]" : "", 5 * k, 16);
    write_text(fuzz_path("w/main.log"), text);

    uint16_t tokens[93] = {0};
    ShardWriter *w = shard_writer_open(fuzz_path("w/a.bin"), 2, 257, 256, &fuzz_error);
    REQUIRE(w && shard_writer_append(w, tokens, 93, &fuzz_error) &&
                shard_writer_commit(w, &fuzz_error),
            "%s", fuzz_error.text);
}

bool fuzz_whereis_read(const FuzzInput *in) {
    char run[PATH_MAX], shards[PATH_MAX], step[24];
    snprintf(run, sizeof run, "%s", fuzz_path("w"));
    snprintf(shards, sizeof shards, "%s", fuzz_path("w/a.bin"));
    snprintf(step, sizeof step, "%d", 1 + in->variant);
    char *argv[] = {(char *)"whereis", run, step, shards, NULL};
    return whereis_main(4, argv) == EXIT_OK;
}

#elif defined FUZZ_TCP // --------------------------------------------------------------------
                       // messages between processes

#include "llmc/comm/channel_tcp.c"

enum { SIZE = 3, BYTES = 16 }; // of the run, and of a gather

static const Place place = {
    .launcher = "", .size = SIZE, .host = "127.0.0.1", .port = 1, .run_id = "run 7"};

// A socket from which these bytes can be read, and then nothing: the peer has sent them and closed
// its side.
static int socket_of(const Piece *p, int *peer) {
    int pair[2];
    REQUIRE(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, pair) == 0, "%s",
            strerror(errno));
    if (p->n > 0 && write(pair[1], p->bytes, p->n) < 0)
        REQUIRE(errno == EAGAIN, "%s", strerror(errno));
    shutdown(pair[1], SHUT_WR);
    *peer = pair[1];
    return pair[0];
}

static Hello hello_of(uint32_t rank) {
    Hello h = {.magic = HELLO_MAGIC, .size = SIZE, .rank = rank, .run_id = "run 7", .host = "node"};
    return h;
}

// Seed 0: both come, and gather. 1: one too many, and one that gathers something else.
void fuzz_tcp_server_seed(int i) {
    static const char *const names[] = {"one", "two", "three"};
    for (uint32_t k = 0; k < (i == 0 ? 2 : 3); k++) {
        struct __attribute__((packed)) {
            Hello hello;
            Frame frame;
            char data[BYTES];
        } m = {hello_of(k == 2 ? 1 : k + 1), {FRAME_MAGIC, FRAME_GATHER, 1, BYTES}, "data"};
        if (i == 1 && k == 1) m.frame.kind = FRAME_BROADCAST;
        write_bytes(fuzz_path(names[k]), &m, sizeof m);
    }
}

static int tcp_sockets[PURPOSES * SIZE];

static void tcp_begin(int rank) {
    memset(&tcp, 0, sizeof tcp);
    memset(tcp_sockets, -1, sizeof tcp_sockets);
    tcp.rank = rank, tcp.size = SIZE, tcp.sockets = tcp_sockets;
    tcp.deadline = now_seconds() + 60;
}

static void tcp_end(void) {
    for (int i = 0; i < PURPOSES * SIZE; i++)
        if (tcp.sockets[i] >= 0) close(tcp.sockets[i]);
    tcp.sockets = NULL;
}

// Process 0 of three: whatever connects and sends. True: all came, and the gather was complete.
bool fuzz_tcp_server_read(const FuzzInput *in) {
    int peers[3] = {-1, -1, -1}, admitted = 0, arrived = 0;
    Error refusal = {""};

    tcp_begin(0);
    for (int i = 0; i < 3; i++) {
        if (in->pieces[i].absent) continue;
        Hello hello;
        const int fd = socket_of(&in->pieces[i], &peers[i]);
        if (tcp_move(fd, POLLIN, &hello, sizeof hello, now_seconds() + 60) == MOVED &&
            tcp_admit(&place, fd, hello, &refusal))
            admitted++;
        else
            close(fd);
    }

    for (int i = 0; i < PURPOSES * SIZE; i++) arrived += tcp.sockets[i] >= 0;
    REQUIRE(arrived == admitted && tcp.sockets[0] < 0, "%d have come, %d were admitted", arrived,
            admitted);
    REQUIRE(fuzz_is_line(&refusal), "the message of a refusal");

    char all[SIZE * BYTES] = "mine";
    bool ok = false;
    if (tcp.sockets[1] >= 0 && tcp.sockets[2] >= 0) {
        ok = tcp_exchange(EXCHANGE_GATHER, all, all, BYTES, &fuzz_error);
        REQUIRE(ok || fuzz_is_line(&fuzz_error), "the message of a failure");
        REQUIRE(ok || !tcp_exchange(EXCHANGE_GATHER, all, all, BYTES, &fuzz_error),
                "a channel that has failed works again");
    }

    for (int i = 0; i < 3; i++)
        if (peers[i] >= 0) close(peers[i]);
    tcp_end();
    return ok || in->variant == 1; // the second seed is refused, as it should be
}

void fuzz_tcp_client_seed(int i) {
    struct {
        Frame accepted, answer;
        char data[SIZE * BYTES];
    } m = {{FRAME_MAGIC, FRAME_ACCEPTED, 0, 0}, {FRAME_MAGIC, FRAME_GATHER, 1, BYTES}, "all data"};
    struct {
        Frame frame;
        char text[20];
    } refused = {{FRAME_MAGIC, FRAME_ERROR, 0, 20}, "rank 1 is taken, why"};

    if (i == 1)
        write_bytes(fuzz_path("server"), &refused, sizeof refused);
    else
        write_bytes(fuzz_path("server"), &m, i == 0 ? sizeof m : sizeof m - 9);
}

// Process 1, whatever process 0 answers. True: accepted, and the answer to a gather came.
bool fuzz_tcp_client_read(const FuzzInput *in) {
    static const Frame ACCEPTED = {FRAME_MAGIC, FRAME_ACCEPTED, 0, 0};
    int peer;

    tcp_begin(1);

    const int fd = socket_of(&in->pieces[0], &peer);
    const Moved moved = tcp_hear(fd, &ACCEPTED, NULL, 0, tcp.deadline, &fuzz_error);
    const bool refused = moved == REFUSED;
    bool ok = moved == MOVED;
    tcp.sockets[0] = fd;

    if (ok) {
        char data[BYTES] = "mine", all[SIZE * BYTES];
        ok = tcp_exchange(EXCHANGE_GATHER, data, all, BYTES, &fuzz_error);
    }

    REQUIRE(ok || fuzz_is_line(&fuzz_error), "the message of a failure");
    close(peer);
    tcp_end();
    return ok || refused || in->variant == 2; // the third seed fails, as it should
}

#elif defined FUZZ_WATCH // ----------------------------------------------------------------------
                         // messages of the watch

#include "llmc/comm/watch.c"

void fuzz_watch_seed(int i) {
    static const char *const names[] = {"one", "two"};
    for (int k = 0; k < 2; k++) {
        WatchMessage message = {""}; // it ends as it should
        if (i > 0 && k == 1) snprintf(message.text, sizeof message.text, "process 2 (c) has ended");
        write_bytes(fuzz_path(names[k]), &message, i == 2 ? sizeof message - 1 : sizeof message);
    }
}

// Process 0 of three hears the others. A failure has a message, which is a line.
bool fuzz_watch_read(const FuzzInput *in) {
    static const char hosts[3][64] = {"a", "b", "c"};
    struct pollfd polls[3] = {{.fd = -1}, {.fd = -1}, {.fd = -1}};
    int others[3];

    memset(&watch, 0, sizeof watch);
    watch.options = (WatchOptions){.rank = 0, .size = 3, .hosts = hosts, .seconds = 10};
    watch.polls = polls;

    for (int r = 1; r < 3; r++) {
        const Piece *p = &in->pieces[r - 1];
        int pair[2];
        REQUIRE(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, pair) == 0, "%s",
                strerror(errno));
        if (p->n > 0 && write(pair[1], p->bytes, p->n) < 0)
            REQUIRE(errno == EAGAIN, "%s", strerror(errno));
        if (in->variant % 2) shutdown(pair[1], SHUT_WR);
        polls[r].fd = pair[0], others[r] = pair[1];
    }

    for (int r = 1; r < 3 && !watch.has_failed; r++) watch_hear(r);
    REQUIRE(!watch_has_failed(&fuzz_error) || fuzz_error.text[0], "a failure without a word");
    REQUIRE(fuzz_is_line(&fuzz_error), "a message that is not one line of UTF-8");

    for (int r = 1; r < 3; r++) {
        watch_close(r);
        close(others[r]);
    }

    return true;
}

#endif
