// A program built for a T4 alone, on a newer GPU: the file of the kernel that device_init asks for
// was (sim.mk). The kernels that the host would choose there hold nothing but a trap in code of
// sm_75, so the driver must have no PTX to compile.
#include "llmc/device.h"
#include "test/test.h"

TEST(a_program_for_sm_75_alone_refuses_a_newer_gpu) {
    Error err;
    const DeviceOptions options = {.attention = ATTENTION_OWN};
    assert_false(device_init(&options, &err));
    assert_non_null(
        strstr(err.text, "(sm_90) cannot run: build with `make train_gpt2cu ARCHS=90`"));
}
