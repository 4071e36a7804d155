// The output directory of data/prepare. Everything is made in DIR/.tmp-prepare and moved into DIR when all of it is
// whole, so that no half corpus stands there under final names. Owns DIR while it is claimed (a lock): one run at a
// time.
#pragma once
#include "llmc/text/corpus_journal.h"

typedef struct {
    const char *directory; // must outlive it
    char *staging;         // DIR/.tmp-prepare
    char *journal;         // DIR/.tmp-prepare/journal.json
    char *spool;           // DIR/.tmp-prepare/stdin
    size_t existing;       // bytes of its name that were a directory before
    int lock;              // descriptor of DIR, -1 while it is not ours
} CorpusOutput;

// Makes DIR if needed and locks it; false if another run has it or nothing can be written there.
bool corpus_output_claim(CorpusOutput *o, const char *directory, Error *err);
void corpus_output_release(CorpusOutput *o); // also after a failed claim
// Refuses a directory that has shards.
bool corpus_output_refuse_old(const CorpusOutput *o, Error *err);
bool corpus_output_clear(const CorpusOutput *o, Error *err);   // an empty .tmp-prepare
bool corpus_output_discard(const CorpusOutput *o, Error *err); // none

// The two steps to the final names, in this order, each of which may be done again after an interruption: what an
// earlier run left goes, validation first; the new files come, training first and the manifest last. Should the machine
// stop in between, no complete-looking corpus of two halves stands there.
bool corpus_output_remove_old(const CorpusOutput *o, Error *err);
bool corpus_output_move_new(const CorpusOutput *o, Error *err);
