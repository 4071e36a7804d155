// Standard input as a file: what is read twice (a text, whose length decides where it is cut; a corpus of few
// documents, which is cut in a second pass) must lie somewhere. Owns nothing but the file it writes.
#pragma once
#include "llmc/text/corpus_inputs.h"

// Copies standard input into the file `path`, up to its end or to `limit` bytes; what is behind the limit is left to be
// read from the descriptor that *in names. path must outlive it. *bytes: of the file.
bool corpus_spool_stdin(const char *path, int64_t limit, InputStdin *in, int64_t *bytes, Error *err);
