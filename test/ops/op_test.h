// Every op test needs this: tensors that live on the device and in fp64 at once, and their
// comparison.
//
// A test builds OpTensors, calls the op with their .t and the specification with their .v, and
// compares. Every device tensor stands between guard bytes; outputs and the workspace start as NaN,
// so that reading what nobody wrote shows; op_end proves that guards and inputs are as they were.
// Inputs are random numbers from TEST_SEED (default 1, so that a run of the tests can be repeated;
// "random" takes the clock; printed), rounded to their dtype first, so that op and specification
// see the same values. Nothing here knows a backend: memory and copies go through device.h, dtypes
// a device lacks are skipped.
#pragma once
#include "llmc/device.h"
#include "llmc/ops.h"
#include "test/reference/reference.h"
#include "test/test.h"

typedef struct {
    Tensor t;        // on the device
    double *v;       // (numel) the values of an input; where the specification writes an output
    int32_t *tokens; // the values of op_tokens
} OpTensor;

typedef struct {
    int64_t d[TENSOR_MAX_RANK]; // trailing zeros are left out
} OpDims;
#define DIMS(...) ((OpDims){{__VA_ARGS__}})

// One test in each of the three floating dtypes, skipped where the device does not support it. Its
// body knows `dtype`.
extern const DType op_dtypes[3];
#define OP_TEST(name) OP_TEST_WITH(name, NULL, op_teardown)
#define OP_TEST_WITH(name, setup, teardown)                                                        \
    OP_TEST_BODY(name)                                                                             \
    __attribute__((constructor)) static void name##_registers(void) {                              \
        OP_TEST_ADD(name, "_fp32", setup, teardown, 0);                                            \
        OP_TEST_ADD(name, "_fp16", setup, teardown, 1);                                            \
        OP_TEST_ADD(name, "_bf16", setup, teardown, 2);                                            \
    }                                                                                              \
    static void name(__attribute__((unused)) DType dtype)
// In one of them alone, by whose name ThreadSanitizer and MemorySanitizer choose.
#define OP_TEST_BF16(name)                                                                         \
    OP_TEST_BODY(name)                                                                             \
    __attribute__((constructor)) static void name##_registers(void) {                              \
        OP_TEST_ADD(name, "_bf16", NULL, op_teardown, 2);                                          \
    }                                                                                              \
    static void name(__attribute__((unused)) DType dtype)
#define OP_TEST_BODY(name)                                                                         \
    static void name(DType dtype);                                                                 \
    static void name##_in_dtype(void **state) { name(op_dtype(state)); }
#define OP_TEST_ADD(name, suffix, setup, teardown, i)                                              \
    test_add(__LINE__, (struct CMUnitTest){#name suffix, name##_in_dtype, setup, teardown,         \
                                           (void *)&op_dtypes[i]})
DType op_dtype(void **state);
int op_group_setup(void **state);    // device_init, seed
int op_group_teardown(void **state); // device_shutdown
int op_teardown(void **state);       // frees what a failed test left behind

// A case: op_begin plans the workspace for exactly this shape; op_end checks guards and inputs and
// frees everything. The description (printf) stands in front of every failure of the case.
void op_begin(OpsShape shape, const char *format, ...) __attribute__((format(printf, 2, 3)));
void op_end(void);
// The tensors of the next case begin this many bytes behind a multiple of 256, as slices of others
// do: 8 is what the accesses of 16 bytes cannot take.
void op_begin_tensors_at(int64_t bytes);

// N(0, scale^2); must not change
OpTensor op_input(DType dtype, const char *name, OpDims dims, double scale);
OpTensor op_inout(DType dtype, const char *name, OpDims dims, double scale); // the same, may change
OpTensor op_output(DType dtype, const char *name, OpDims dims);              // NaN
OpTensor op_tokens(const char *name, OpDims dims, int64_t V); // i32, uniform in [0, V)
// after the test changed .v or .tokens of an input or inout: rounds, copies
void op_upload(OpTensor *x);
double *op_download(OpTensor x);     // what stands on the device now, as fp64; freed by op_end
double *op_values(Tensor t);         // the same of any device tensor; the caller frees it
void op_poison(OpTensor x);          // every byte of it 0xFF: NaN in all floating dtypes
Tensor op_control(StepControl init); // a StepControl on the device; may change
void op_read(void *host, Tensor t);  // the bytes of a tensor
void op_write(Tensor t, const void *host);

// Relative L2 error |got - want| / |want| at most this: 1e-5 fp32, 1e-3 fp16, 4e-3 bf16 (DESIGN.md,
// section 3). Rounding to p bits is wrong by at most 2^-p, and by 0.4 * 2^-p rms over random
// mantissas: 1.6e-3 for bf16, 2e-4 for fp16. One rounding of the result and a few of intermediates
// (probabilities, dS, logits) add as squares and stay below; a wrong term, a missed row or a second
// pass through bf16 does not. That is a statement about an average: of fewer than 256 values two
// worst roundings may meet, 2 * 2^-8 = 7.8e-3 in bf16, and checks allow twice as much.
double op_tolerance(DType dtype);
double op_limit(DType dtype, int64_t n); // op_tolerance, doubled for few values
// op_limit of as many normal values as would make as little of an average as these: 3 (sum w^2)^2 /
// sum w^4, at most n. One value that outweighs all others brings the error of its own rounding,
// however many they are.
double op_limit_of_values(DType dtype, const double *values, int64_t n);
// The limit is for a gradient of a model of two or three blocks, which the roundings of stored
// tensors alone move by `stored` (ref_gpt2_stored). Within its ops up to eleven values more are
// rounded on the way: logits and dlogits, and in each block probabilities, the same again and dS.
// They add as squares and the norms weigh them by up to 2: 2 * sqrt(11) roundings of 1.6e-3 rms are
// 1.1e-2 in bf16, less than four tolerances. In fp32 there are thirty ops in a row, good to 1e-6
// each, whose errors are those of their sums: 1e-5.
double op_limit_of_gradient(DType dtype, double stored);
double op_relative_error(const double *got, const double *want, int64_t n);
void op_expect(const char *name, double error, double tolerance); // fails unless error <= tolerance
void op_check(OpTensor x, DType precision);                       // device against .v
// with a limit of factor * op_limit_of_values
void op_check_scaled(OpTensor x, DType precision, double factor);
// Where few terms are added they may cancel, and what is left is no more exact than they were:
// op_check, or an error of op_limit(of_terms) per element of terms of this root mean square.
// DTYPE_FP32 where they are added before rounding.
void op_check_terms(OpTensor x, DType precision, DType of_terms, double size);
// both limits
void op_check_scaled_terms(OpTensor x, DType precision, DType of_terms, double size, double factor);
void op_check_values(OpTensor x); // each value as it is, NaN as NaN
// The absolute error of logarithms (lse, losses) counts, since they are used as exp(x): a value
// near 0 is as good as 1.
void op_check_logarithms(OpTensor x, DType precision, double factor);
void op_check_same_bits(OpTensor a, OpTensor b);
// `up` of n values rounded at random went up, each with probability f. The draws are independent:
// the share has a standard deviation of sqrt(f (1-f) / n), and leaves six of them once in 5e8 runs.
void op_expect_share(int64_t up, int64_t n, double f);

// Fails the test; the message begins with the case and ends with the seed.
__attribute__((noreturn, format(printf, 1, 2))) void op_fail(const char *format, ...);

// XXH3 of the bytes of x mixed into digest: for tests of bit-reproducibility.
uint64_t op_digest(uint64_t digest, OpTensor x);

uint64_t op_seed(void);
uint64_t op_seed_of_environment(void); // TEST_SEED, which it prints
void op_random_restart(void);          // the next tensors are those that the program made first
DeviceOptions op_device_options(void); // of the environment: TEST_ATTENTION
void op_restart_device(DeviceOptions options);
// restarts it: GELU in the epilogue of a matmul is what -r cannot repeat
void op_without_fused_gelu(void);
