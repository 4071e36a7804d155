// Content of a corpus besides plain UTF-8 text: files of other kinds, JSON, spellings of
// end-of-text. Each is counted by its kind, with its first file and the next step, so that nothing
// is left out, or trained on unasked, in silence.
#pragma once
#include "llmc/text/corpus_options.h"

// Judges a file by its first n bytes, unpacked and without a byte order mark; text[n] may be
// overwritten; is_all: the file has no more. NULL: the file is read as *format. Else it is skipped:
// returns its kind, and in *advice the next step
// ("" if there is none). Input that is read but may not be intended is added to *notes.
const char *corpus_content(const CorpusOptions *o, const InputFile *file, char *text, int64_t n,
                           bool is_all, CorpusFormat *format, KindCounts *notes, Error *advice);

// Notes each spelling of end-of-text in a text.
void corpus_note_markers(const char *path, const char *text, int64_t n, KindCounts *notes);
void corpus_note_bytes(const CorpusOptions *o, const char *path, const char *text, int64_t n,
                       KindCounts *notes);
