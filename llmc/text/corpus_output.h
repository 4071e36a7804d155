// The output directory of a corpus. Everything is made in DIR/.tmp-prepare, manifest.json last, and
// moved into DIR when it is complete. A run that ends before leaves .tmp-prepare, and the next
// claim removes it with what had been moved already. Files of others are never removed: they are
// renamed, or refused.
#pragma once
#include "llmc/text/corpus_shards.h"

typedef struct {
    const char *path; // DIR, which must outlive this
    // DIR/.tmp-prepare, and files in it; replaced: the manifest of the corpus that is replaced
    char *staging, *manifest, *tokenizer, *replaced;
    size_t existing; // length of the part of path that existed before
    int lock;        // descriptor of the locked directory; -1: not locked
    bool is_moving;  // shards of an unfinished corpus may have their final names
} CorpusOutput;

// Makes the directory if needed and locks it. force: its corpus may be replaced. False: another run
// holds the lock, it is not writable, or it has a corpus. Release it in any case.
bool corpus_output_claim(CorpusOutput *o, const char *path, bool force, Error *err);
// Moves the shards of a finished writer in staging, tokenizer and manifest to their final names.
// If it fails, it takes back what it moved.
bool corpus_output_publish(CorpusOutput *o, const CorpusWriter *writer, Error *err);
// Unlocks the directory. Unless it was published, removes what was made in it.
void corpus_output_release(CorpusOutput *o, bool is_published);
