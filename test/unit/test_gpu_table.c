// The table of GPUs: its peaks a second time, from units, clocks and widths; and how a user may
// name one.
#include "llmc/plan/gpu_table.h"
#include "test/fixture.h"
#include "test/unit/plan_case.h"

static Error err;

// ----------------------------------------------------------------------------------------- figures

// The clock in MHz that the datasheet counts with, 16-bit FLOP a clock and multiprocessor with fp32
// accumulation; the memory's transfers in MHz x bits of the bus.
static const struct {
    const char *name;
    double mhz, flop, memory_mhz, bus;
} chips[] = {
    {"T4", 1590, 1024, 10000, 256},        {"L4", 2040, 1024, 12502, 192},
    {"A10", 1695, 1024, 12502, 384},       {"RTX 3090", 1695, 512, 19500, 384},
    {"RTX 4090", 2520, 512, 21000, 384},   {"RTX 5090", 2407, 512, 28000, 512},
    {"A100 40GB", 1410, 2048, 2430, 5120}, {"L40S", 2490, 1024, 18000, 384},
    {"A100 80GB", 1410, 2048, 3186, 5120}, {"RTX PRO 6000", 2617, 1024, 28000, 512},
    {"H100 PCIe", 1620, 4096, 3186, 5120}, {"H100 SXM", 1830, 4096, 5238, 5120},
    {"H200", 1830, 4096, 6402, 6144},      {"B200", 1856, 8192, 7992, 8192},
};

TEST(peaks_are_units_times_clock_times_operations_and_the_link_is_that_of_the_generation) {
    int count;
    gpu_table(&count);
    assert_int_equal(count, (int)(sizeof chips / sizeof chips[0]));

    for (int i = 0; i < count; i++) {
        const GpuSpec *gpu = gpu_named(chips[i].name);
        // Datasheets round, to two digits at worst.
        assert_near(gpu->name, gpu->peak_fp16, 1e6 * gpu->num_sms * chips[i].mhz * chips[i].flop,
                    0.02);
        assert_near(gpu->name, gpu->bandwidth, 1e6 * chips[i].memory_mhz * chips[i].bus / 8, 0.025);

        // The older generation of tensor cores has neither bf16 nor TF32; all others do both, TF32
        // at half the rate.
        const bool turing = gpu->compute_capability < 80;
        assert_true(gpu->peak_bf16 == (turing ? 0 : gpu->peak_fp16));
        assert_near(gpu->name, gpu->peak_32, turing ? 8.1e12 : gpu->peak_fp16 / 2, 0.015);

        // PCIe x16: 3 with Turing, 4 with Ampere and Ada, 5 with Hopper and Blackwell; GT/s a lane
        // x 16 lanes x 128/130.
        const double rate = turing ? 8e9 : gpu->compute_capability < 90 ? 16e9 : 32e9;
        assert_near(gpu->name, gpu->link, rate * 16 / 8 * 128 / 130, 1e-3);

        // fp8 came with sm_89, at twice the rate of 16 bits.
        if (gpu->compute_capability < 89)
            assert_true(gpu->peak_fp8 == 0);
        else
            assert_near(gpu->name, gpu->peak_fp8, 2 * gpu->peak_bf16, 0.015);
    }
}

TEST(nvlink_is_links_times_their_rate_where_a_switch_connects_all_gpus) {
    int count;
    const GpuSpec *gpus = gpu_table(&count);

    for (int i = 0; i < count; i++) {
        // Links of a GPU x GB/s of one, one way: 12 x 25 of A100, 18 x 25 of Hopper, 18 x 50 of
        // B200.
        const int cc = gpus[i].compute_capability;
        const bool bridged = strcmp(gpus[i].name, "H100 PCIe") == 0;
        const double expected = cc == 80               ? 12 * 25e9
                                : cc == 90 && !bridged ? 18 * 25e9
                                : cc == 100            ? 18 * 50e9
                                                       : 0;

        if (gpus[i].nvlink != expected)
            fail_msg("%s: %g, expected %g", gpus[i].name, gpus[i].nvlink, expected);
    }
}

TEST(gpus_exchange_over_nvlink_and_over_pcie_where_there_is_none) {
    assert_true(gpu_exchange_rate(gpu_named("H100 SXM")) == 450e9 &&
                gpu_exchange_rate(gpu_named("L4")) == 31.508e9);
    GpuChoice size;
    assert_true(gpu_find(&size, "24G", 3, &err) && gpu_exchange_rate(&size.spec) == 0);
}

// ------------------------------------------------------------------------------------------- names

static void assert_found(const char *text, const char *name) {
    GpuChoice gpu;
    if (!gpu_find(&gpu, text, strlen(text), &err)) fail_msg("%s", err.text);
    assert_string_equal(gpu.spec.name, name);
    assert_true(gpu.spec.memory == gpu_named(name)->memory &&
                gpu.spec.num_sms == gpu_named(name)->num_sms);
}

TEST(case_spaces_dashes_and_gb_do_not_matter) {
    const struct {
        const char *name, *given[5];
    } gpus[] = {{"H200", {"h200"}},
                {"H100 SXM", {"H100", "H100 SXM"}},
                {"H100 PCIe", {"h100-pcie"}},
                {"A100 80GB", {"a100-80", "a100"}},
                {"A100 40GB", {"A100 40GB", "a100_40gb"}},
                {"RTX 4090", {"rtx4090", "rtx-4090", "4090"}},
                {"RTX PRO 6000", {"rtx pro 6000"}},
                {"T4", {"t4"}},
                {"L4", {"l4"}},
                {"L40S", {"L40s"}},
                {"A10", {"a10g"}},
                {"B200", {"b200"}}};

    for (size_t i = 0; i < sizeof gpus / sizeof *gpus; i++)
        for (int k = 0; k < 5 && gpus[i].given[k]; k++)
            assert_found(gpus[i].given[k], gpus[i].name);

    int count;
    const GpuSpec *table = gpu_table(&count);
    for (int i = 0; i < count; i++) assert_found(table[i].name, table[i].name);
}

TEST(a_size_is_a_GPU_of_which_nothing_else_is_known) {
    const struct {
        const char *text;
        double bytes;
    } sizes[] = {{"24G", 24e9},
                 {"16GB", 16e9},
                 {"141g", 141e9},
                 {"11.5 gb", 11.5e9},
                 {"80GiB", 80 * 0x1p30}};

    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        GpuChoice gpu;
        assert_true(gpu_find(&gpu, sizes[i].text, strlen(sizes[i].text), &err));
        assert_true(gpu.spec.memory == sizes[i].bytes);
        assert_string_equal(gpu.spec.name, sizes[i].text);
        assert_true(gpu.spec.bandwidth == 0 && gpu_spec_peak(&gpu.spec, DTYPE_BF16) == 0);
        assert_int_equal(gpu_spec_dtype(&gpu.spec, DTYPE_BF16), DTYPE_BF16);
    }
}

TEST(names_of_any_bytes_and_length_are_refused) {
    GpuChoice gpu;
    assert_false(gpu_find(&gpu, "\xff\xfe", 2, &err));
    char name[3000];
    memset(name, '9', sizeof name);
    for (size_t n = 1; n <= sizeof name; n = 2 * n + 1) assert_false(gpu_find(&gpu, name, n, &err));
}

TEST(a_gpu_without_bf16_computes_in_fp16) {
    assert_int_equal(gpu_spec_dtype(gpu_named("T4"), DTYPE_BF16), DTYPE_FP16);
    assert_int_equal(gpu_spec_dtype(gpu_named("T4"), DTYPE_FP32), DTYPE_FP32);
    assert_int_equal(gpu_spec_dtype(gpu_named("A100 40GB"), DTYPE_BF16), DTYPE_BF16);
    assert_true(gpu_spec_peak(gpu_named("T4"), DTYPE_BF16) == 0);
}
