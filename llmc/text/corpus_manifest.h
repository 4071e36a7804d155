// manifest.json beside the shards: what they were made from, with which tokenizer and options, and what they hold.
// The same run gives the same file: it states no times.
#pragma once
#include "llmc/text/corpus_journal.h"

// Writes path. j: the finished run.
bool corpus_manifest_write(const char *path, const CorpusRequest *request, const CorpusJournal *j, Error *err);
