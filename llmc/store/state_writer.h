// The values of a model in the form of a file: piece by piece, in the file's element type, with matrices turned where
// the file wants them so. Host memory stays small whatever the model; only a matrix that is turned is held as a whole.
#pragma once
#include "llmc/model/gpt2.h"

typedef struct {
    DType dtype;     // fp32; fp16 and bf16 are rounded to nearest even
    bool transposed; // (out, in) with us, (in, out) in the file
} StateForm;

// Takes the next bytes of the file.
typedef bool StateSink(void *file, const void *data, size_t bytes, Error *err);

// All of tensor index but rows of padding (p->file_rows of them) into the sink. False: the sink failed, or a finite
// value is infinite in the file's type.
bool state_write(const Gpt2 *model, int index, StateForm form, StateSink *sink, void *file, Error *err);

enum { STATE_PIECE_FLOATS = 2 << 20 }; // 8 MiB a piece: large against the cost of a call, small against any model
// Rows of a tensor in a piece. A row has at most 4 C = 262,144 floats, 1 MiB.
static inline int64_t state_piece_rows(const Parameter *p) { return STATE_PIECE_FLOATS / p->cols; }
