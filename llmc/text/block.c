// See block.h.
#include "llmc/text/block.h"

#include <stdlib.h>

void corpus_block_reset(CorpusBlock *b) {
    for (int side = 0; side < CORPUS_SIDES; side++) {
        b->num_tokens[side] = 0;
        if (b->token_capacity[side] <= KEPT_BYTES) continue;
        free(b->tokens[side]);
        b->tokens[side] = NULL;
        b->token_capacity[side] = 0;
    }
    if (b->capacity > KEPT_BYTES) {
        free(b->text);
        b->text = NULL;
        b->capacity = 0; // the next user reserves what it needs
    }
    corpus_counts_clear(&b->counts);
    b->n = 0;
    b->status = EXIT_OK;
    b->begins = b->is_document = b->is_short = b->is_encoded = false;
    b->before_n = 0;
}
