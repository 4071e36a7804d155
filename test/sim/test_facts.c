// The tests compare what the CUDA backend says a GPU can do with the datasheets, and check the
// sensors' library, which is not linked.
#include "llmc/cuda/datasheet.h"
#include "llmc/cuda/nvml.h"
#include "test/test.h"

#include <math.h>
#include <unistd.h>

// Attributes as the driver reports them, and the figures of the datasheet: TFLOP/s of the tensor
// cores in 16 bits and in fp8 with fp32 accumulation, without sparsity, and GB/s.
static const struct {
    GpuAttributes gpu;
    double tflops, fp8_tflops, bandwidth;
} datasheets[] = {
    {{"Tesla T4", 75, 40, 1590000, 5001000, 256}, 65, 0, 320},
    {{"NVIDIA GeForce RTX 2080 Ti", 75, 68, 1545000, 7000000, 352}, 53.8, 0, 616},
    {{"NVIDIA A100-SXM4-80GB", 80, 108, 1410000, 1593000, 5120}, 312, 0, 2039},
    {{"NVIDIA A10", 86, 72, 1695000, 6251000, 384}, 125, 0, 600},
    {{"NVIDIA GeForce RTX 3090", 86, 82, 1695000, 9751000, 384}, 71, 0, 936},
    {{"NVIDIA L4", 89, 58, 2040000, 6251000, 192}, 121, 242.5, 300},
    {{"NVIDIA L40S", 89, 142, 2520000, 9001000, 384}, 362, 733, 864},
    {{"NVIDIA GeForce RTX 4090", 89, 128, 2520000, 10501000, 384}, 165.2, 330.3, 1008},
    {{"NVIDIA H100 PCIe", 90, 114, 1755000, 1593000, 5120}, 756, 1513, 2000},
    {{"NVIDIA H100 80GB HBM3", 90, 132, 1980000, 2619000, 5120}, 989.4, 1978.9, 3350},
    {{"NVIDIA H200", 90, 132, 1980000, 3201000, 6144}, 989.4, 1978.9, 4800},
    {{"NVIDIA B200", 100, 148, 1965000, 3996000, 8192}, 2250, 4500, 8000},
    {{"NVIDIA RTX PRO 6000 Blackwell", 120, 188, 2617000, 14001000, 512}, 503.8, 1007.6, 1792},
    {{"NVIDIA GeForce RTX 5090", 120, 170, 2407000, 14001000, 512}, 209.5, 419, 1792},
};
// Vendors round, and boards of one name differ a little in clock: 3%.
static const double TOLERANCE = 0.03;

static void assert_near(const char *gpu, const char *what, double got, double expected) {
    if (!(fabs(got / expected - 1.0) <= TOLERANCE))
        fail_msg("%s: %s %g, expected %g", gpu, what, got, expected);
}

TEST(peaks_are_those_of_the_datasheets) {
    for (size_t i = 0; i < sizeof datasheets / sizeof *datasheets; i++) {
        const GpuAttributes *gpu = &datasheets[i].gpu;
        assert_near(gpu->name, "fp16 TFLOP/s", gpu_peak_flops(gpu, DTYPE_FP16, true) * 1e-12,
                    datasheets[i].tflops);
        assert_near(gpu->name, "GB/s", gpu_peak_bandwidth(gpu) * 1e-9, datasheets[i].bandwidth);

        const double bf16 = gpu_peak_flops(gpu, DTYPE_BF16, true),
                     fp8 = gpu_peak_flops(gpu, DTYPE_E4M3, true);
        if (gpu->compute_capability < 80)
            assert_true(bf16 == 0.0);
        else
            assert_near(gpu->name, "bf16 TFLOP/s", bf16 * 1e-12, datasheets[i].tflops);

        assert_true(fp8 == gpu_peak_flops(gpu, DTYPE_E5M2, true));
        if (gpu->compute_capability < 89)
            assert_true(fp8 == 0.0);
        else
            assert_near(gpu->name, "fp8 TFLOP/s", fp8 * 1e-12, datasheets[i].fp8_tflops);
    }
}

TEST(fp8_needs_tensor_cores_and_a_library_that_know_it) {
    static const struct {
        int compute_capability;
        size_t cublaslt;
        bool has_fp8;
    } cases[] = {
        {75, 130000, false}, {80, 130000, false}, {86, 130000, false}, {89, 120002, false},
        {89, 120100, true},  {90, 120405, true},  {90, 130000, true},  {100, 120605, false},
        {100, 120803, true}, {120, 130000, true},
    };

    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        assert_true(gpu_has_fp8(cases[i].compute_capability, cases[i].cublaslt) ==
                    cases[i].has_fp8);
}

TEST(fp32_counts_on_tensor_cores_only_when_tf32_is_allowed) {
    const GpuAttributes h100 = {"NVIDIA H100 80GB HBM3", 90, 132, 1980000, 2619000, 5120};
    const GpuAttributes t4 = {"Tesla T4", 75, 40, 1590000, 5001000, 256};
    assert_near(h100.name, "TF32", gpu_peak_flops(&h100, DTYPE_FP32, true) * 1e-12, 494.7);
    assert_near(h100.name, "fp32", gpu_peak_flops(&h100, DTYPE_FP32, false) * 1e-12, 66.9);
    // it has no TF32
    assert_near(t4.name, "fp32", gpu_peak_flops(&t4, DTYPE_FP32, true) * 1e-12, 8.1);
}

TEST(what_is_not_known_is_zero) {
    const GpuAttributes silent = {"GPU", 90, 132, 0, 0, 0},
                        of_the_future = {"GPU", 140, 200, 2000000, 1, 1};
    const GpuAttributes nearly_known = {"GPU", 103, 160, 1965000, 1, 1};
    assert_true(gpu_peak_flops(&silent, DTYPE_BF16, true) == 0.0 &&
                gpu_peak_bandwidth(&silent) == 0.0);
    assert_true(gpu_peak_flops(&of_the_future, DTYPE_BF16, true) == 0.0);
    // as the 10.0 of its generation
    assert_true(gpu_peak_flops(&nearly_known, DTYPE_BF16, true) > 2e15);
    assert_true(gpu_peak_flops(&nearly_known, DTYPE_I32, true) == 0.0);
}

TEST(versions_read_well) {
    char text[64];
    assert_string_equal(cuda_version_text(13000, text, sizeof text), "13.0");
    assert_string_equal(cuda_version_text(12040, text, sizeof text), "12.4");
}

TEST(throttling_is_told_in_words) {
    char text[128];
    assert_string_equal(cuda_throttle_text(0, text, sizeof text), "");
    // idle, chosen by the user
    assert_string_equal(cuda_throttle_text(0x1 | 0x2 | 0x100, text, sizeof text), "");
    assert_string_equal(cuda_throttle_text(0x4, text, sizeof text), "power cap");
    assert_string_equal(cuda_throttle_text(0x60 | 0x4, text, sizeof text),
                        "power cap, thermal, hardware thermal");
    assert_string_equal(cuda_throttle_text(~0ull, text, 12), "power cap, "); // cut, not overrun
}

TEST(a_machine_without_nvml_has_no_sensors) {
    assert_null(cuda_nvml_open("libno-such-library.so.1", "0000:00:00.0"));
    assert_null(cuda_nvml_open("libm.so.6", "0000:00:00.0")); // a library, but another one
    cuda_nvml_close(NULL);
}

// The libraries that sim.mk builds beside this program.
TEST(why_clocks_are_held_down_is_optional_and_has_two_names) {
    static const char *const libraries[] = {"EventReasons", "ThrottleReasons", "Nothing"};

    for (int i = 0; i < 3; i++) {
        char path[4096];
        const ssize_t length = readlink("/proc/self/exe", path, sizeof path - 64);
        assert_true(length > 0);
        path[length] = '\0';
        snprintf(strrchr(path, '/'), 64, "/fake_nvml_%s.so", libraries[i]);

        CudaNvml *nvml = cuda_nvml_open(path, "0000:00:00.0");
        if (!nvml) fail_msg("no sensors by %s", path);

        DeviceSensors sensors;
        cuda_nvml_read(nvml, &sensors);
        assert_string_equal(sensors.throttle, i < 2 ? "power cap" : "");
        assert_true(sensors.sm_clock_mhz == 1001 && sensors.power_watts == 700 &&
                    sensors.temperature_c == 60);

        cuda_nvml_close(nvml);
    }
}
