// The simulator executes PTX as it should: each form of an instruction that occurs in our kernels
// gives the bits that the PTX ISA promises. The cases are those of ptx_forms_table.py;
// forms_table.h and the kernels form_0, form_1... are made of them by ptx_forms.py. A case is one
// warp; each lane loads a row of inputs, executes the form and stores its outputs.

#include "dev/sim/sim_control.h"
#include "test/test.h"
#include <cuda_runtime_api.h>
#include <math.h>
#include <stdbool.h>

// How an output is compared. FORM_F32, FORM_F64: where a NaN is expected any NaN will do, since the
// ISA leaves its bits open; all else bit by bit. The two others are results of approximate
// instructions: the expected value is a double, the bound the ISA's: so many units in the last
// place of a float, or relative. What is 0, infinite or NaN is so exactly.
typedef enum { FORM_BITS, FORM_F32, FORM_F64, FORM_F32_ULPS, FORM_F32_RELATIVE } FormKind;
typedef struct {
    const char *form, *kernel;
    int minimum_arch; // compute capability * 10
    int inputs, outputs, rows;
    FormKind kind;
    double bound;
    const uint64_t *in, *out; // (rows, inputs), (rows, outputs)
} FormCase;
#include "forms_table.h"

enum { LANES = 32, MAX_SLOTS = 16 };
#define CASES    ((int)(sizeof form_cases / sizeof *form_cases))
#define OK(call) assert_int_equal(call, cudaSuccess)

static int even(int slots) {
    return slots + slots % 2;
} // the kernels' stride: rows of 16-byte alignment

static float float_of(uint64_t bits) {
    const uint32_t low = (uint32_t)bits;
    float value;
    memcpy(&value, &low, sizeof value);
    return value;
}
static double double_of(uint64_t bits) {
    double value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

// |got - expected| within the bound of an approximate instruction.
static bool is_near(const FormCase *c, uint64_t got_bits, double expected) {
    if (got_bits >> 32) return false;
    const double got = (double)float_of(got_bits);
    if (isnan(expected)) return isnan(got);
    if (isinf(expected)) return got == expected;
    if (expected == 0) return got == 0 && signbit(got) == signbit(expected);
    if (c->kind == FORM_F32_RELATIVE) return fabs(got - expected) <= c->bound * fabs(expected);
    const int exponent = ilogb(expected) < -126 ? -126 : ilogb(expected);
    return fabs(got - expected) <= c->bound * ldexp(1.0, exponent - 23);
}
static bool is_right(const FormCase *c, uint64_t got, uint64_t expected) {
    switch (c->kind) {
    case FORM_F32:
        if (!(expected >> 32) && isnan(float_of(expected)))
            return !(got >> 32) && isnan(float_of(got));
        return got == expected;
    case FORM_F64:
        return isnan(double_of(expected)) ? isnan(double_of(got)) : got == expected;
    case FORM_F32_ULPS:
    case FORM_F32_RELATIVE:
        return is_near(c, got, double_of(expected));
    default:
        return got == expected;
    }
}

static void describe(const char *name, const uint64_t *slots, int count) {
    char text[MAX_SLOTS * 20 + 1] = "";
    for (int i = 0; i < count; i++)
        snprintf(text + strlen(text), sizeof text - strlen(text), " 0x%llx",
                 (unsigned long long)slots[i]);
    print_error("    %-9s%s\n", name, text);
}

static void form_gives_what_the_isa_says(void **state) {
    const FormCase *c = *state;
    const void *kernel = sim_kernel(c->kernel);
    if (!kernel) fail_msg("%s: the simulated architecture has no kernel %s", c->form, c->kernel);
    const int in_stride = even(c->inputs), out_stride = even(c->outputs);
    uint64_t in[LANES * MAX_SLOTS] = {0}, out[LANES * MAX_SLOTS];
    assert_true(in_stride <= MAX_SLOTS && out_stride <= MAX_SLOTS && c->rows <= LANES);
    for (int lane = 0; lane < LANES; lane++)
        memcpy(in + lane * in_stride, c->in + lane % c->rows * c->inputs,
               (size_t)c->inputs * sizeof *in);
    const size_t in_bytes = sizeof *in * (size_t)(LANES * in_stride),
                 out_bytes = sizeof *out * (size_t)(LANES * out_stride);

    void *device_in, *device_out;
    struct {
        unsigned char bytes[sizeof form_parameter];
    } parameter;
    memcpy(parameter.bytes, form_parameter, sizeof form_parameter);
    OK(cudaMalloc(&device_in, in_bytes));
    OK(cudaMalloc(&device_out, out_bytes));
    OK(cudaMemcpy(device_in, in, in_bytes, cudaMemcpyHostToDevice));
    OK(cudaMemset(device_out, FORM_FILL, out_bytes));
    void *arguments[] = {&device_in, &device_out, &parameter}; // a kernel takes those that it has
    OK(cudaLaunchKernel(kernel, (dim3){1, 1, 1}, (dim3){LANES, 1, 1}, arguments, FORM_DYNAMIC_BYTES,
                        NULL));
    OK(cudaDeviceSynchronize());
    OK(cudaMemcpy(out, device_out, out_bytes, cudaMemcpyDeviceToHost));
    OK(cudaFree(device_in));
    OK(cudaFree(device_out));

    int wrong = 0;
    for (int lane = 0; lane < LANES; lane++) {
        const int row = lane % c->rows;
        const uint64_t *got = out + lane * out_stride, *expected = c->out + row * c->outputs;
        bool right = true;
        for (int i = 0; i < c->outputs; i++) right = right && is_right(c, got[i], expected[i]);
        if (right || wrong++ == 8) continue;
        print_error("%s (%s): row %d, lane %d\n", c->form, c->kernel, row, lane);
        describe("inputs", in + lane * in_stride, c->inputs);
        describe("expected", expected, c->outputs);
        describe("got", got, c->outputs);
    }
    if (wrong) fail_msg("%s: %d of %d lanes are wrong", c->form, wrong, LANES);
}

int main(void) {
    int major = 0, minor = 0;
    if (cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, 0) ||
        cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, 0))
        return 1;
    for (int i = 0; i < CASES; i++)
        if (form_cases[i].minimum_arch <= 10 * major + minor)
            test_add(i, (struct CMUnitTest){form_cases[i].form, form_gives_what_the_isa_says, NULL,
                                            NULL, (void *)&form_cases[i]});
    return test_run();
}
