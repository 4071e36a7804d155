// Fuzzing of every reader of the project. An input is a set of files (or messages) for one reader,
// in one buffer; a reader looks at them and aborts when it has accepted what it should not have.
// fuzz.c is the driver, for libFuzzer
// (`make fuzz`) and as a test program of damaged inputs; readers.c has the table.
#pragma once
#include "llmc/base/error.h"
#include "llmc/text/tokenizer.h"
#include "test/unit/mutate.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { MAX_PIECES = 6, FUZZ_MOST_BYTES = 1 << 18 };

typedef struct {
    unsigned char *bytes; // malloced
    size_t n;
    bool absent; // the file does not exist
} Piece;

typedef struct {
    bool repaired; // checksums are made right before the reader sees the files, so that it looks at
                   // what is behind them
    uint8_t variant; // a parameter of the reader, as the step of a resume
    Piece pieces[MAX_PIECES];
} FuzzInput;

typedef struct {
    const char *name;
    const char *files[MAX_PIECES + 1]; // in the scratch directory, NULL-terminated
    int seeds;
    // writes valid files number i, with the writers of the project where it has one
    void (*seed)(int i);
    // Makes the checksums right. NULL: the format has none.
    void (*repair)(FuzzInput *in);
    // Reads the files. True: accepted. Aborts by bug_report when something was accepted that must
    // not be.
    bool (*read)(const FuzzInput *in);
    bool changes_files; // so they are written for every input
    bool in_memory;     // the pieces are messages: no files
    // Damage of single files that must be refused, a bit for each file: cut anywhere, with any bit
    // flipped (where there are checksums), replaced by a file of another kind, which the message
    // then names.
    unsigned cut, flipped, foreign;
    bool names_file; // each message of a refusal has its name
} FuzzReader;

extern const FuzzReader fuzz_readers[]; // ends with a nameless row
extern Error fuzz_error;                // why the last input was refused

// Once, before the first input; the scratch directory is there.
void fuzz_set_up(void);
const char *fuzz_path(const char *name); // in the scratch directory; "": the directory itself. In
                                         // one of a few buffers

// The file of this name, NULL if it is absent.
void fuzz_replace(Piece *p, const void *bytes, size_t n); // a copy
// Whether a message is one line of UTF-8, without control characters.
bool fuzz_is_line(const Error *message);

// texts.c
extern Tokenizer *fuzz_toy; // a small one, which fuzz_set_up opens
void fuzz_tokenizer_json_seed(int i);
bool fuzz_tokenizer_json_read(const FuzzInput *in);
void fuzz_vocab_seed(int i);
bool fuzz_vocab_read(const FuzzInput *in);
void fuzz_ranks_seed(int i);
bool fuzz_ranks_read(const FuzzInput *in);
void fuzz_llmc_tokenizer_seed(int i);
bool fuzz_llmc_tokenizer_read(const FuzzInput *in);
void fuzz_pieces_seed(int i);
bool fuzz_pieces_read(const FuzzInput *in);
void fuzz_json_line_seed(int i);
bool fuzz_json_line_read(const FuzzInput *in);
void fuzz_packed_seed(int i);
bool fuzz_packed_read(const FuzzInput *in);
void fuzz_documents_seed(int i);
bool fuzz_documents_read(const FuzzInput *in);

// inside.c
void fuzz_choice_lines_seed(int i);
bool fuzz_choice_lines_read(const FuzzInput *in);
void fuzz_shard_tool_seed(int i);
void fuzz_shard_tool_repair(FuzzInput *in);
bool fuzz_shard_tool_read(const FuzzInput *in);
void fuzz_whereis_seed(int i);
bool fuzz_whereis_read(const FuzzInput *in);
void fuzz_tcp_server_seed(int i);
bool fuzz_tcp_server_read(const FuzzInput *in);
void fuzz_tcp_client_seed(int i);
bool fuzz_tcp_client_read(const FuzzInput *in);
void fuzz_watch_seed(int i);
bool fuzz_watch_read(const FuzzInput *in);
