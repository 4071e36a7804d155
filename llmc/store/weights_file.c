// See weights_file.h: which of the two formats stands at a path, and what both have in common.
#include "llmc/store/weights_file.h"

#include "llmc/store/huggingface.h"
#include "llmc/store/llmc_bin.h"
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

struct WeightsFile {
    ModelConfig config;
    HuggingFace *directory; // one of the two
    LlmcBin *bin;
};

WeightsFile *weights_file_open(const char *path, Error *err) {
    struct stat st;
    if (stat(path, &st) != 0) {
        error_set(err, "%s: cannot open the model: %s", path, strerror(errno));
        return NULL;
    }
    WeightsFile *f = calloc(1, sizeof *f);
    REQUIRE_MEMORY(f != NULL, "the weights");
    if (S_ISDIR(st.st_mode))
        f->directory = huggingface_open(path, &f->config, err);
    else
        f->bin = llmc_bin_open(path, &f->config, err);
    if (f->directory || f->bin) return f;
    free(f);
    return NULL;
}

void weights_file_close(WeightsFile *f) {
    if (!f) return;
    huggingface_close(f->directory);
    llmc_bin_close(f->bin);
    free(f);
}

const ModelConfig *weights_file_config(const WeightsFile *f) { return &f->config; }

int64_t weights_file_eot(const WeightsFile *f) { return f->directory ? huggingface_eot(f->directory) : -1; }

bool weights_file_read(WeightsFile *f, const Parameter *p, int64_t first_row, int64_t rows, float *out, Error *err) {
    REQUIRE(first_row >= 0 && rows >= 0 && first_row + rows <= p->rows, "rows [%lld, %lld) of %s, which has %lld",
            (long long)first_row, (long long)(first_row + rows), p->name, (long long)p->rows);
    int64_t in_file = p->file_rows - first_row; // rows of padding follow
    if (in_file < 0) in_file = 0;
    if (in_file > rows) in_file = rows;
    memset(out + in_file * p->cols, 0, (size_t)((rows - in_file) * p->cols) * sizeof *out);
    if (in_file == 0) return true;
    if (f->directory) return huggingface_read(f->directory, p, first_row, in_file, out, err);
    return llmc_bin_read(f->bin, p, first_row, in_file, out, err);
}
