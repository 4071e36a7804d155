# The CUDA backend under the simulator: the sources of llmc/cuda compiled for the host, and what is linked with them.
# Included by the Makefile, whose variables it uses. Two more values of MODE than the Makefile has:
#   MODE=tsan   ThreadSanitizer. The simulator's core is not instrumented: it tells TSan what synchronises
#   MODE=msan   MemorySanitizer (clang). Without OpenMP; results and arguments of libraries count as initialised
# CUDA kernels are single-threaded in both, and slower: 5 to 10 times.

# The op tests that ThreadSanitizer and MemorySanitizer run: every kernel once.
SIM_SHORT := $(addprefix ops/test_,attention decode embedding fp8 gradient_add head_loss layernorm matmul optimizer \
	optimizer_adafactor optimizer_rounding optimizer_update small statistics)

SIM_BUILD := build/$(MODE)-sim
# The simulator proper, and all there is in dev/sim: with the emulated libraries. Where there is an emulated cuDNN it
# takes the place of the file that loads the real one.
SIM_CORE_OBJ := $(addprefix $(SIM_BUILD)/dev/sim/,$(addsuffix .o,block device graph grid memory shared_memory stream warp_ops workers))
SIM_SRC      := $(wildcard dev/sim/*.cpp) \
	$(filter-out $(if $(wildcard dev/sim/cudnn_sim.cpp),llmc/cuda/cudnn_library.c),$(CUDA_SRC))
SIM_OBJ      := $(patsubst %,$(SIM_BUILD)/%.o,$(basename $(SIM_SRC)))
SIM_LIB      := $(SIM_BUILD)/libllmc.a

CFLAGS_tsan := -O2 -g -fsanitize=thread -fno-omit-frame-pointer
# param-retval: what crosses a call by value is checked there and needs no shadow, so libraries that are not
# instrumented (cmocka calling a test) cannot hand over a stale one.
CFLAGS_msan := -O1 -g -fsanitize=memory -fsanitize-memory-param-retval -fsanitize-memory-track-origins \
	-fno-omit-frame-pointer -DXXH_INLINE_ALL -D_Float16=__fp16 -mf16c -Wno-unknown-pragmas -Wno-for-loop-analysis -Wno-unused-command-line-argument
ifeq ($(MODE),msan)
CC     := clang
CXX    := clang++
CFLAGS := $(filter-out -fopenmp -Wno-format-truncation,$(CFLAGS)) $(CFLAGS_msan)
endif

# fmaf as an instruction, not as a call of libm. No bits change: a*b+c is not contracted. Not with MemorySanitizer, which
# takes vectorised conversions of values that are not used for uses (clang 14).
ifneq ($(MODE),msan)
SIM_ARCH := $(if $(and $(findstring avx2,$(CPU_FLAGS)),$(findstring fma,$(CPU_FLAGS)),$(findstring bmi2,$(CPU_FLAGS))),-march=x86-64-v3)
endif
CXX_WARNINGS := -Wall -Wextra -Wshadow -Wno-unknown-pragmas -Werror
SIM_INCLUDE  := -DCUDA_SIM -I. -Idev/sim/include -isystem $(CUDA)/include
CXXFLAGS_SIM  = -std=c++17 -D_GNU_SOURCE $(SIM_ARCH) $(SIM_INCLUDE) -fno-strict-aliasing -ffp-contract=off $(CXX_WARNINGS)
CORE_FLAGS   := $(if $(filter tsan,$(MODE)),-O2 -g1 -DSIM_TSAN,$(CFLAGS_$(MODE)))

$(SIM_BUILD)/%.o: %.cu
	@mkdir -p $(@D)
	$(SAY) SIM $<
	$(QUIET)$(CXX) -x c++ $(CXXFLAGS_SIM) $(CFLAGS_$(MODE)) -MMD -MP -c $< -o $@

$(SIM_BUILD)/llmc/cuda/%.o: llmc/cuda/%.c
	@mkdir -p $(@D)
	$(SAY) SIM $<
	$(QUIET)$(CC) $(CFLAGS) -isystem $(CUDA)/include -MMD -MP -c $< -o $@

$(SIM_BUILD)/dev/sim/%.o: dev/sim/%.cpp
	@mkdir -p $(@D)
	$(SAY) SIM $<
	$(QUIET)$(CXX) $(CXXFLAGS_SIM) $(CORE_FLAGS) -MMD -MP -c $< -o $@

$(SIM_LIB): $(HOST_OBJ) $(SIM_OBJ)
	@rm -f $@
	$(SAY) AR $@
	$(QUIET)ar rcs $@ $^

LINK_SIM = $(CXX) $(CFLAGS_$(MODE)) $(if $(filter msan,$(MODE)),,-fopenmp) $^ -o $@ $(LDFLAGS) $(SIM_LDFLAGS) \
	-lcmocka -lcjson -lxxhash -lpcre2-8 -lz -lzstd -lpthread -ldl -lm

$(SIM_BUILD)/train_gpt2sim: $(BUILD)/train_gpt2.o $(SIM_LIB)
	$(SAY) LINK $@
	$(QUIET)$(LINK_SIM)

$(SIM_BUILD)/test/%: $(BUILD)/test/%.o $(REF_LIB) $(SIM_LIB)
	@mkdir -p $(@D)
	$(SAY) LINK $@
	$(QUIET)$(LINK_SIM)

$(BUILD)/test/sim/%.o: CFLAGS += -isystem $(CUDA)/include

# Programs of kernels that need nothing but the simulator: mistakes planted for test_faults, and the benchmark.
$(SIM_BUILD)/test/sim/faults $(SIM_BUILD)/dev/sim/bench: %: %.o $(SIM_CORE_OBJ)
	$(SAY) LINK $@
	$(QUIET)$(CXX) $(CFLAGS_$(MODE)) $^ -o $@ -lpthread

# cuDNN's own library judges our graphs, with a driver that only says yes.
CUDNN_GRAPH_OBJ := $(addprefix $(SIM_BUILD)/llmc/cuda/cudnn_,graph.o library.o pass.o plan.o) \
	$(BUILD)/llmc/base/error.o $(BUILD)/llmc/tensor.o
$(SIM_BUILD)/test/sim/test_cudnn_graphs: $(BUILD)/test/sim/test_cudnn_graphs.o $(CUDNN_GRAPH_OBJ) \
		| $(SIM_BUILD)/test/sim/fake_libcuda/libcuda.so.1
	$(SAY) LINK $@
	$(QUIET)$(LINK_SIM)
$(SIM_BUILD)/test/sim/fake_libcuda/libcuda.so.1: test/sim/fake_libcuda.c
	@mkdir -p $(@D)
	$(SAY) LINK $@
	$(QUIET)$(CC) -std=c11 $(WARNINGS) -shared -fPIC -Wl,-soname,libcuda.so.1 $< -o $@

train_gpt2sim: $(SIM_BUILD)/train_gpt2sim ## the CUDA trainer on the simulator, for tests
	@cp -f $< $@

# What the tests run, by mode. Without a CUDA toolkit, whose headers it needs, there is no simulator; without clang no
# MemorySanitizer.
SIM_TEST_BIN := $(if $(CUDA),$(patsubst %.c,$(SIM_BUILD)/%,$(wildcard test/ops/test_*.c test/golden/test_*.c test/sim/test_*.c)))
SIM_CLANG    := $(if $(CUDA),$(shell command -v clang++))
SIM_ASAN_BIN := $(if $(CUDA),$(SIM_SHORT:%=build/sanitize-sim/test/%))
SIM_LONG_ASAN_BIN := $(SIM_TEST_BIN:$(SIM_BUILD)/%=build/sanitize-sim/%)
SIM_TSAN_BIN := $(if $(CUDA),$(SIM_SHORT:%=build/tsan-sim/test/%))
SIM_MSAN_BIN := $(if $(SIM_CLANG),$(SIM_SHORT:%=build/msan-sim/test/%))
SIM_FAULTS   := $(if $(CUDA),$(foreach m,release sanitize tsan $(if $(SIM_CLANG),msan),build/$m-sim/test/sim/faults))

.PHONY: sim-test-programs sim-sanitize-programs sim-faults sim-bench
sim-test-programs: $(SIM_TEST_BIN) sim-faults
sim-sanitize-programs:
	$(MAKE) --no-print-directory -s MODE=sanitize $(SIM_ASAN_BIN)
	$(MAKE) --no-print-directory -s MODE=tsan $(SIM_TSAN_BIN)
	$(if $(SIM_MSAN_BIN),$(MAKE) --no-print-directory -s MODE=msan $(SIM_MSAN_BIN))
sim-faults:
	$(foreach f,$(SIM_FAULTS),$(MAKE) --no-print-directory -s MODE=$(patsubst build/%-sim/test/sim/faults,%,$f) $f &&) true

sim-bench: $(SIM_BUILD)/dev/sim/bench ## what a thread, a barrier and a shuffle cost in the simulator
	$<
