// device.h on the CPU backend: memory, copies, events, facts, the measured speed.
#include "llmc/cpu/cpu.h"
#include "llmc/cpu/host_memory.h"
#include "llmc/device.h"
#include "llmc/speed.h"
#include "test/fixture.h"
#include "test/unit/device_fixture.h"

#include <math.h>
#include <sys/mman.h>

static Error err;

TestFixture test_all = {start_device, stop_device};

static bool all_zero(const unsigned char *p, size_t n) {
    for (size_t i = 0; i < n; i++)
        if (p[i] != 0) return false;
    return true;
}

// The kernel says it, by another way than the backend's.
static const char *best_vector_code(void) {
    bool avx2 = false, avx512 = false, bf16 = false, amx = false;
    char flags[8192];
    FILE *f = fopen("/proc/cpuinfo", "r");

    while (f && fgets(flags, sizeof flags, f)) {
        if (strncmp(flags, "flags", 5) != 0) continue;
        avx2 = strstr(flags, " avx2 ") && strstr(flags, " fma ");
        avx512 = avx2 && strstr(flags, " avx512f ") && strstr(flags, " avx512bw ") &&
                 strstr(flags, " avx512vl ") && strstr(flags, " avx512dq ");
        bf16 = avx512 && strstr(flags, " avx512_bf16 ");
        amx = bf16 && strstr(flags, " amx_tile ") && strstr(flags, " amx_bf16 ");
        break;
    }

    if (f) fclose(f);
    return amx ? "amx" : bf16 ? "avx512bf16" : avx512 ? "avx512" : avx2 ? "avx2" : "baseline";
}

TEST(the_vector_code_is_the_best_of_the_processor_or_the_one_asked_for) {
    bool has[CPU_CODES] = {[CPU_AVX2] = true, [CPU_BASELINE] = true};
    const struct {
        const char *environment;
        CpuCodeChoice chosen, limit; // limit: of the library
    } cases[] = {{NULL, CPU_AVX2, CPU_AUTO},
                 {"", CPU_AVX2, CPU_AUTO},
                 {"auto", CPU_AVX2, CPU_AUTO},
                 {"baseline", CPU_BASELINE, CPU_BASELINE},
                 {"avx2", CPU_AVX2, CPU_AVX2}};

    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        CpuCodeChoice wanted, chosen;
        assert_ok(cpu_choose_code(&wanted, cases[i].environment, has, "Old", &chosen, &err));
        assert_int_equal(chosen, cases[i].chosen);
        assert_int_equal(wanted, cases[i].limit);
    }

    CpuCodeChoice wanted, chosen;
    assert_error(cpu_choose_code(&wanted, "avx512", has, "Old", &chosen, &err),
                 "PRETRAIN_CPU=avx512: this processor (Old)");
    assert_message("it has avx2, baseline");
    assert_error(cpu_choose_code(&wanted, "sse9", has, "Old", &chosen, &err), "PRETRAIN_CPU=sse9");
    assert_message("auto, amx, avx512bf16, avx512, avx2, baseline");
}

TEST(denormals_are_zero_in_every_worker_as_operands_and_as_results) {
#if !defined(__x86_64__) && !defined(__aarch64__)
    skip();
#endif
    volatile const float small = 0x1p-126f, half = 0.5f, denormal = 0x1p-140f, large = 0x1p100f;
    int wrong = 0;
#pragma omp parallel reduction(+ : wrong)
    wrong += small * half != 0 || denormal * large != 0;
    assert_int_equal(wrong, 0);
}

TEST(the_facts_name_the_machine) {
    const DeviceFacts *f = device_facts();
    assert_string_equal(f->backend, "cpu");
    assert_non_null(strstr(f->name, "2 threads"));

    char code[64];
    const char *asked = getenv("PRETRAIN_CPU");
    snprintf(code, sizeof code, "vector code %s, oneDNN ",
             asked && *asked ? asked : best_vector_code());
    assert_non_null(strstr(f->libraries, code));

    assert_int_equal(f->units, 2);
    assert_true(f->memory_free > 0 && f->memory_free <= f->memory_total);
    assert_true(f->supports[DTYPE_FP32] && f->supports[DTYPE_BF16] && !f->supports[DTYPE_FP16]);
    assert_true(f->supports[f->default_dtype]);
    assert_string_equal(f->attention, ""); // one way only: nothing to tell

    DeviceSensors sensors = {.power_watts = 1.0};
    assert_false(device_sensors(&sensors)); // a CPU has none
    assert_true(sensors.power_watts == 0.0);
}

TEST(the_device_starts_again_after_a_shutdown_but_not_with_an_impossible_number_of_threads) {
    device_shutdown();
    assert_error(device_init(&(DeviceOptions){.threads = -3}, &err), "-3 threads");
    assert_ok(device_init(&(DeviceOptions){.threads = 1}, &err));
    assert_int_equal(device_facts()->units, 1);
    assert_non_null(strstr(device_facts()->name, "1 thread"));
    device_shutdown();
    assert_int_equal(start_device(NULL), 0);
}

TEST(bits_depend_on_the_vector_code_the_library_and_the_threads) {
    AUTO_FREE char *here = device_tuning();
    assert_non_null(strstr(here, device_facts()->libraries));

    // "": of a version that did not tell
    assert_true(device_restore_tuning(here) && device_restore_tuning(""));
    assert_false(device_restore_tuning("vector code of another processor"));

    char *threads = strrchr(here, ','), other[256];
    assert_non_null(threads);
    assert_int_equal(atoi(threads + 1), device_facts()->units);
    *threads = '\0';

    assert_true(device_restore_tuning(here)); // of a version that did not name them
    snprintf(other, sizeof other, "%s, %d threads", here, 10 * device_facts()->units);
    assert_false(device_restore_tuning(other));
}

TEST(allocated_memory_is_zeroed_and_aligned) {
    // below and above where huge pages are asked for
    const size_t sizes[] = {1, 4097, (2 << 20) + 3, (9 << 20) + 1};
    for (int round = 0; round < 2; round++) // the second round may get memory that was written
        for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
            unsigned char *p = device_alloc(sizes[i], &err);
            assert_non_null(p);
            assert_int_equal((uintptr_t)p % 256, 0);
            assert_true(all_zero(p, sizes[i]));
            memset(p, 0xAB, sizes[i]);
            device_free(p);
        }
}

TEST(more_than_there_is_is_refused_naming_the_bytes) {
    assert_error(device_alloc((size_t)1 << 55, &err), "36028797018963968 bytes");
    assert_message("free of");
    assert_error(device_alloc(device_facts()->memory_total + 1, &err), "out of memory");
}

TEST(the_peak_follows_what_was_taken) {
    size_t bytes = 96 << 20, before = device_memory_peak();
    void *p = device_alloc(bytes, &err);
    assert_non_null(p);
    size_t during = device_memory_peak();
    assert_true(during >= bytes);
    // Earlier peaks may hide the growth, but nothing may add more than pages and the allocator's
    // bookkeeping to it.
    assert_true(during <= before + bytes + (4 << 20));
    device_free(p);
    assert_true(device_memory_peak() >= during);
}

TEST(events_measure_time_and_are_done_at_once) {
    DeviceEvent *start = device_event_create(&err), *stop = device_event_create(&err);
    assert_true(start && stop);
    device_event_record(start, STREAM_COMPUTE);
    void *work = device_alloc(8 << 20, &err);
    device_event_record(stop, STREAM_COMPUTE);
    device_event_wait(stop);
    device_stream_wait(STREAM_COPY, stop);
    assert_true(device_event_done(stop));
    assert_true(device_event_seconds(start, stop) > 0.0);
    device_free(work), device_event_destroy(start), device_event_destroy(stop);
}

TEST(the_measured_speed_is_positive_and_leaves_no_peak) {
    const DType dtypes[] = {DTYPE_FP32, DTYPE_BF16};
    for (int i = 0; i < 2; i++) {
        DeviceSpeed speed;

        // Libraries and the allocator keep what they took the first time; 64 MiB of buffers come
        // and go each time.
        assert_true(speed_measure(dtypes[i], 64 << 20, &speed, &err));
        assert_true(speed.matmul_flops > 0 && isfinite(speed.matmul_flops));
        assert_true(speed.copy_bandwidth > 0 && isfinite(speed.copy_bandwidth));

        const size_t kept = host_memory_status("VmRSS:");
        assert_true(speed_measure(dtypes[i], 64 << 20, &speed, &err));
        assert_true(host_memory_status("VmHWM:") < kept + (32 << 20));
    }

    assert_true(device_facts()->cache_bytes >= 16 << 20); // a copy of a large run passes through
    DeviceSpeed unsupported;
    assert_error(speed_measure(DTYPE_FP16, 0, &unsupported, &err), "fp16");
}

// 1024 rows of 4 x 768 in bf16: a product whose pieces take scratch. Access to the old workspace
// ends the test.
TEST(nothing_reads_or_writes_a_workspace_that_was_taken_back) {
    const OpsShape shape = {
        .B = 1, .T = 1024, .C = 768, .NH = 12, .Vp = 128, .num_tensors = 1, .dtype = DTYPE_BF16};
    const size_t bytes = (size_t)ops_workspace_bytes(shape), matrix = 1024 * 3072 * 2;
    char *workspace = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    char *memory = device_alloc(3 * matrix, &err);
    DeviceSpeed speed;

    assert_true(workspace != MAP_FAILED && memory);

    ops_set_workspace(workspace, (int64_t)bytes);
    matmul_forward(tensor_make(memory, DTYPE_BF16, "out", 1024, 3072, 0, 0),
                   tensor_make(memory + matrix, DTYPE_BF16, "in", 1024, 768, 0, 0),
                   tensor_make(memory + 2 * matrix, DTYPE_BF16, "weight", 3072, 768, 0, 0),
                   tensor_none());

    ops_set_workspace(NULL, 0);
    assert_int_equal(munmap(workspace, bytes), 0);

    assert_true(speed_measure(DTYPE_FP32, 64 << 20, &speed, &err));
    assert_true(speed_measure(DTYPE_BF16, 64 << 20, &speed, &err));
    device_free(memory);
}
