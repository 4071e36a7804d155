// Tables on the device that name tensors, so that one launch runs over all tensors of a step: a hundred small ones cost
// nothing apart, and the largest is spread over all multiprocessors. Host side; the search for a block's part of the
// work is in update_parts.cuh.
//
// A table has an entry (what a kernel must know) for each tensor of the caller's array, or several, or none. Entries
// that one kernel serves are a group and stand side by side, in the order of their tensors; each is cut into parts, one
// a block. So the tensors [first, first + count) of a group are a run: parts without a gap, one launch.
// Tables are built when an array is met for the first time, found again by its contents, and kept: the only memory that
// the optimizer's kernels own. A steady step looks them up and neither waits nor allocates.
#pragma once
#include "llmc/cuda/backend.h"

#ifdef __cplusplus
extern "C" {
#endif

// The caller's array: n elements of `stride` bytes without padding. op names the caller in messages.
typedef struct {
    const char *op;
    const void *elements;
    int n;
    size_t stride;
} TensorArray;

enum { TABLE_MAX_GROUPS = 16 };

typedef struct {
    int variant; // which kernel, as the caller numbers them
    int begin, end;
} TableGroup;

typedef struct {
    size_t entry_bytes;
    char *entries;        // on the device
    int32_t *first;       // on the device: number of the first part of each entry, and of the end
    const int32_t *parts; // the same on the host
    const int *tensor;    // on the host: which element of the array an entry came from
    TableGroup groups[TABLE_MAX_GROUPS];
    int num_groups;
} UpdateTable;

// Entries of one group that stand side by side. Their parts are first[0] .. first[0] + parts - 1.
typedef struct {
    const void *entries;
    const int32_t *first; // (n + 1)
    int n;
    unsigned parts;
} TableRun;

typedef struct TableDraft TableDraft;
// Lists the entries of an array, in the order of its elements; stops the program where a tensor is wrong.
typedef void TableDescribe(TableDraft *draft, TensorArray array);
void table_add(TableDraft *draft, int variant, int tensor, const void *entry, int64_t parts);

// The table of this array as `describe` sees it. Building one waits for the device.
const UpdateTable *update_table(TensorArray array, size_t entry_bytes, TableDescribe *describe);

// The group of that variant; NULL when no tensor is of it.
const TableGroup *table_group(const UpdateTable *table, int variant);
// What tensors [first, first + count) have in a group, which may be NULL; n = 0 when nothing.
TableRun table_run(const UpdateTable *table, const TableGroup *group, int first, int count);

#ifdef __cplusplus
}
#endif
