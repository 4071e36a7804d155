// The handle of the CPU backend, its vector code, and the workspace that all ops share. It owns no
// memory: the workspace belongs to the caller.
#include "llmc/cpu/cpu.h"
#include "llmc/base/arithmetic.h"
#include "llmc/base/format.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#if defined(__x86_64__)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

CpuBackend cpu_backend;

// ------------------------------------------------------------------------------------- vector code

// code.c, once each
extern const CpuCode cpu_code_amx, cpu_code_avx512bf16, cpu_code_avx512, cpu_code_avx2,
    cpu_code_baseline;

// In the order of CpuCodeChoice. Of other processors than x86-64 there is only the code that any
// compiler makes.
static const struct {
    const char *name;
    const CpuCode *code;
} codes[CPU_CODES] = {
    [CPU_AUTO] = {"auto", NULL},
#if defined(__x86_64__)
    [CPU_AMX] = {"amx", &cpu_code_amx},
    [CPU_AVX512BF16] = {"avx512bf16", &cpu_code_avx512bf16},
    [CPU_AVX512] = {"avx512", &cpu_code_avx512},
    [CPU_AVX2] = {"avx2", &cpu_code_avx2},
#else
    [CPU_AMX] = {"amx", NULL},
    [CPU_AVX512BF16] = {"avx512bf16", NULL},
    [CPU_AVX512] = {"avx512", NULL},
    [CPU_AVX2] = {"avx2", NULL},
#endif
    [CPU_BASELINE] = {"baseline", &cpu_code_baseline},
};

// Lists the names of the codes in `has`, or of all, separated by commas.
static const char *list_codes(const bool *has, char *text, size_t size) {
    size_t length = 0;
    for (CpuCodeChoice c = CPU_AUTO; c < CPU_CODES; c++)
        if (!has || (c != CPU_AUTO && has[c]))
            length += (size_t)snprintf(text + length, size - length, "%s%s", length ? ", " : "",
                                       codes[c].name);
    return text;
}

bool cpu_choose_code(CpuCodeChoice *wanted, const char *environment, const bool has[CPU_CODES],
                     const char *processor, CpuCodeChoice *chosen, Error *err) {
    char names[80];
    *wanted = CPU_AUTO;
    if (environment && *environment) {
        while (*wanted < CPU_CODES && strcmp(codes[*wanted].name, environment) != 0) ++*wanted;
        if (*wanted == CPU_CODES)
            return error_set(err, "PRETRAIN_CPU=%.40s: expected one of %s", environment,
                             list_codes(NULL, names, sizeof names));
    }
    *chosen = *wanted;
    if (*wanted == CPU_AUTO) *chosen = CPU_AMX;
    while (*wanted == CPU_AUTO && !has[*chosen]) ++*chosen; // the last one is everywhere
    if (!has[*chosen])
        return error_set(err,
                         "PRETRAIN_CPU=%s: this processor (%s) or its operating system does not "
                         "support it; it has %s",
                         codes[*chosen].name, processor, list_codes(has, names, sizeof names));
    return true;
}

#if defined(__x86_64__)
// The processor multiplies tiles of bf16, and Linux, which keeps 8 KiB of tile registers for a
// thread, allows them to this process (since 5.16).
static bool cpu_has_amx(void) {
    // AMX-BF16 and AMX-TILE, which older compilers do not name
    const unsigned amx = 1u << 22 | 1u << 24;
    enum {
        REQUEST_PERMISSION = 0x1023,
        TILE_DATA = 18
    }; // arch_prctl(2): ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA
    unsigned a, b, c, d = 0;
    return __get_cpuid_count(7, 0, &a, &b, &c, &d) && (d & amx) == amx &&
           syscall(SYS_arch_prctl, REQUEST_PERMISSION, TILE_DATA) == 0;
}
#endif

bool cpu_find_code(CpuCodeChoice *wanted, const char *processor, Error *err) {
    bool has[CPU_CODES] = {[CPU_BASELINE] = true};
#if defined(__x86_64__) // libgcc asks cpuid, and xgetbv for the registers that the operating system
                        // saves
    has[CPU_AVX2] = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
    has[CPU_AVX512] = has[CPU_AVX2] && __builtin_cpu_supports("avx512f") &&
                      __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") &&
                      __builtin_cpu_supports("avx512dq");
    has[CPU_AVX512BF16] = has[CPU_AVX512] && __builtin_cpu_supports("avx512bf16");
    has[CPU_AMX] = has[CPU_AVX512BF16] && cpu_has_amx();
#endif
    if (!cpu_choose_code(wanted, getenv("PRETRAIN_CPU"), has, processor, &cpu_backend.code_choice,
                         err))
        return false;
    cpu_backend.code = codes[cpu_backend.code_choice].code;
    cpu_backend.code_name = codes[cpu_backend.code_choice].name;
    return true;
}

// ----------------------------------------------------------------------------- state and workspace

int cpu_threads(void) {
    REQUIRE(cpu_backend.ready, "an op before device_init");
    return cpu_backend.threads;
}

const CpuCode *cpu_code(void) {
    REQUIRE(cpu_backend.ready, "an op before device_init");
    return cpu_backend.code;
}

const BackendOps *backend_ops(void) { return &cpu_code()->ops; }

int64_t ops_workspace_bytes(OpsShape shape) { return cpu_code()->workspace_bytes(shape); }

int64_t ops_head_chunk_rows(OpsShape shape) { return min_i64(shape.B * shape.T, HEAD_CHUNK_ROWS); }

void update_list_free(UpdateList *list) {
    (void)list;
} // each op makes its tables, in the workspace

void ops_set_workspace(void *device_memory, int64_t bytes) {
    REQUIRE((uintptr_t)device_memory % 64 == 0, "the workspace is not 64-byte aligned");
    cpu_backend.workspace = device_memory;
    cpu_backend.workspace_bytes = bytes;
    cpu_backend.workspace_used = 0;
    // The scratch memory of an earlier workspace may be freed.
    if (cpu_backend.onednn) onednn_set_scratch(cpu_backend.onednn, device_memory, bytes);
}

bool ops_workspace_is_set(void) { return cpu_backend.workspace != NULL; }

void *cpu_scratch(const char *op, int64_t bytes) {
    REQUIRE(bytes <= cpu_backend.workspace_bytes,
            "%s: needs %lld bytes of workspace, ops_set_workspace gave %lld", op, (long long)bytes,
            (long long)cpu_backend.workspace_bytes);
    cpu_backend.workspace_used = round_up(bytes, 64);
    if (bytes > 0) return cpu_backend.workspace;
    return NULL;
}

bool backend_computes(DType dtype) { return dtype == DTYPE_FP32 || dtype == DTYPE_BF16; }
