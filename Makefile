# pretrain.cu: `make help` lists the targets.
#
# Host code and the CPU backend are C11; every object is compiled once per variant into build/VARIANT/. CUDA kernels are
# compiled by nvcc; the simulator of dev/sim runs the PTX that it leaves, translated to C++.
#   SIMD=avx512bf16|avx512|none   vector code of the CPU backend; default: what this processor has
#   MODE=release|sanitize         sanitize: AddressSanitizer + UBSan. For the simulator also tsan and msan (clang)
#   CUDA=DIR                      the CUDA toolkit; default: that of the nvcc on the PATH, /usr/local/cuda, or .cuda,
#                                 which `make cuda-toolkit` makes
#   WERROR=1                      a warning ends the build; the tests and lint set it: they run here, users have other
#                                 compilers
#   VERBOSE=1                     shows the whole commands
#   -j N                          N commands at a time; default: as many as there are cores

SHELL := /bin/bash
comma := ,
.DEFAULT_GOAL := all
.DELETE_ON_ERROR:

# A build takes all cores, unless -j says otherwise (make 4.3 shows it neither here nor in the sub-makes). Not where the
# order of goals counts, or a goal starts make itself.
ONE_BY_ONE := clean deps cuda-toolkit cuda-toolkit-if-missing quickstart test test-all test-rest test-sanitize lint check-gpu bench-gpu
ifeq ($(MAKELEVEL)$(filter -j%,$(MAKEFLAGS) $(shell echo "$$MAKEFLAGS"))$(filter $(ONE_BY_ONE),$(MAKECMDGOALS)),0)
MAKEFLAGS += -j$(shell nproc)
endif

ifeq ($(origin CC),default)
CC := gcc
endif
MODE   ?= release
CPU_FLAGS := $(shell grep -m1 '^flags' /proc/cpuinfo 2>/dev/null)
SIMD   ?= $(if $(findstring avx512_bf16,$(CPU_FLAGS)),avx512bf16,$(if $(and $(findstring avx512f,$(CPU_FLAGS)),$(findstring avx512bw,$(CPU_FLAGS)),$(findstring avx512vl,$(CPU_FLAGS)),$(findstring avx512dq,$(CPU_FLAGS))),avx512,none))
BUILD  := build/$(MODE)-$(SIMD)

WARNINGS := -Wall -Wextra -Wshadow -Wconversion -Wstrict-prototypes -Wmissing-prototypes -Wno-format-truncation \
            $(if $(filter 1,$(WERROR)),-Werror)
CFLAGS_release  := -O3 -g1
CFLAGS_sanitize := -O1 -g -fsanitize=address,undefined -fno-sanitize-recover=all -fno-omit-frame-pointer
SIMD_FLAGS_avx512bf16 := -mavx512f -mavx512bw -mavx512vl -mavx512dq -mavx512bf16 -mfma -mtune=znver3
SIMD_FLAGS_avx512     := -mavx512f -mavx512bw -mavx512vl -mavx512dq -mfma
# Wide vectors only pass between inlined functions; without this gcc notes that their calling convention changed once.
SIMD_FLAGS_none       := -Wno-psabi
# -ffp-contract=off: a*b+c means the same in every build; the vector code asks for fma where it wants it.
# -fno-math-errno: a root is one instruction, also in loops that become vector code.
CFLAGS += -std=c11 -D_GNU_SOURCE -I. -fopenmp -ffp-contract=off -fno-math-errno $(WARNINGS) $(CFLAGS_$(MODE))
# MPI, for several processes: where its headers are. The library is loaded at run time. Without MPI everything builds.
MPICC    ?= mpicc
MPI_WORDS  := $(shell $(MPICC) -show 2>/dev/null)
MPI_CFLAGS := $(if $(MPI_WORDS),-DHAVE_MPI $(patsubst -I%,-isystem %,$(filter -I%,$(MPI_WORDS))))
LDLIBS += -ldnnl -lcjson -lxxhash -lpcre2-8 -lz -lzstd -lpthread -ldl -lm

CPU_SRC  := $(wildcard llmc/cpu/*.c)
# llmc/cuda/sizes.c is arithmetic of shapes, without CUDA: the planner of every build asks it.
HOST_SRC := $(wildcard llmc/*.c llmc/base/*.c llmc/model/*.c llmc/train/*.c llmc/data/*.c llmc/text/*.c llmc/store/*.c llmc/run/*.c llmc/comm/*.c) \
            llmc/cuda/sizes.c
CPU_OBJ  := $(CPU_SRC:%.c=$(BUILD)/%.o)
HOST_OBJ := $(HOST_SRC:%.c=$(BUILD)/%.o)
LIB      := $(BUILD)/libllmc.a

# The CUDA toolkit, if there is one: for the device (llmc/cuda/cuda.mk) and for the simulator (dev/sim/sim.mk).
CUDA     ?= $(patsubst %/bin/nvcc,%,$(firstword $(shell command -v nvcc) $(wildcard /usr/local/cuda/bin/nvcc .cuda/bin/nvcc)))
CUDA_SRC := $(filter-out llmc/cuda/sizes.c,$(wildcard llmc/cuda/*.c llmc/cuda/*.cu))

TEST_SRC := $(wildcard test/unit/test_*.c test/ops/test_*.c test/golden/test_*.c)
TEST_BIN := $(TEST_SRC:%.c=$(BUILD)/%)
# What tests link besides the library: their main, the fp64 specification and the helper around op calls.
TEST_OBJ := $(patsubst %.c,$(BUILD)/%.o,test/test.c $(wildcard test/reference/*.c) test/ops/op_test.c)
TEST_LIB := $(BUILD)/libtest.a

# One short line a file.
QUIET := $(if $(VERBOSE),,@)
SAY    = $(if $(VERBOSE),@:,@printf '  %-5s%s\n')

# Debian's own Python: the one that Debian's numpy, matplotlib and torch are for.
PYTHON ?= $(firstword $(wildcard /usr/bin/python3) python3)

.PHONY: all quickstart test test-all test-sanitize bench lint format help clean deps FORCE

# Each C file of data/ is a program of that name.
DATA_TOOLS := $(patsubst %.c,%,$(wildcard data/*.c))

all: train_gpt2 $(DATA_TOOLS) ## the best trainer for this machine, and the data tools

# device.c runs before it is known whether the processor has these instructions.
$(filter-out $(BUILD)/llmc/cpu/device.o,$(CPU_OBJ)) $(BUILD)/test/unit/test_simd.o: CFLAGS += $(SIMD_FLAGS_$(SIMD))

# Compiled again when MPI comes or goes.
MPI_OBJ := $(BUILD)/llmc/comm/channel_mpi.o
$(MPI_OBJ): CFLAGS += $(MPI_CFLAGS)
$(MPI_OBJ): $(BUILD)/mpi.flags
$(BUILD)/mpi.flags: FORCE
	@mkdir -p $(@D)
	@echo '$(MPI_CFLAGS)' | cmp -s - $@ || echo '$(MPI_CFLAGS)' >$@

$(BUILD)/%.o: %.c
	@mkdir -p $(@D)
	$(SAY) CC $<
	$(QUIET)$(CC) $(CFLAGS) -MMD -MP -c $< -o $@

$(BUILD)/train_gpt2.o: train_gpt2.cu
	@mkdir -p $(@D)
	$(SAY) CC $<
	$(QUIET)$(CC) $(CFLAGS) -MMD -MP -x c -c $< -o $@

$(LIB): $(HOST_OBJ) $(CPU_OBJ)
	@rm -f $@
	$(SAY) AR $@
	$(QUIET)ar rcs $@ $^

$(BUILD)/train_gpt2: $(BUILD)/train_gpt2.o $(LIB)
	$(SAY) LINK $@
	$(QUIET)$(CC) $(CFLAGS) $^ -o $@ $(LDFLAGS) $(LDLIBS)

$(DATA_TOOLS:data/%=$(BUILD)/%): $(BUILD)/%: $(BUILD)/data/%.o $(LIB)
	$(SAY) LINK $@
	$(QUIET)$(CC) $(CFLAGS) $^ -o $@ $(LDFLAGS) $(LDLIBS)

# Programs outside of build/ are copies, of the variant that was asked for last. Times do not tell: one built a week ago
# is the right one now.
COPY = $(QUIET)cmp -s $< $@ || cp -f $< $@

train_gpt2: $(BUILD)/train_gpt2 FORCE ## the CPU trainer
	$(COPY)

$(DATA_TOOLS): data/%: $(BUILD)/% FORCE
	$(COPY)

FORCE:

$(TEST_LIB): $(TEST_OBJ)
	@rm -f $@
	$(SAY) AR $@
	$(QUIET)ar rcs $@ $^

$(BUILD)/test/%: $(BUILD)/test/%.o $(TEST_LIB) $(LIB)
	$(SAY) LINK $@
	$(QUIET)$(CC) $(CFLAGS) $^ -o $@ $(LDFLAGS) -lcmocka $(LDLIBS)

# It compiles the sampler itself, to count what that does.
$(BUILD)/test/unit/test_sampler.o: CFLAGS += -finstrument-functions

# It counts the plans that a search makes.
$(BUILD)/test/unit/test_planner_fit: LDFLAGS += -Wl,--wrap=gpt2_plan

# The one part of llmc/cuda that needs no CUDA.
$(BUILD)/test/unit/test_tuning_cache: $(BUILD)/llmc/cuda/tuning_cache.o

.PRECIOUS: $(BUILD)/%.o

include llmc/cuda/cuda.mk
include dev/sim/sim.mk

# ------------------------------------------------------------------------------------------------- install, try, measure

deps: ## install what building and testing need (Debian, Ubuntu)
	scripts/install_deps.sh build test test-all lint

.PHONY: cuda-toolkit cuda-toolkit-if-missing
cuda-toolkit: ## nvcc and what else it takes from NVIDIA's Python wheels into .cuda. LIBRARIES=1: to link without a GPU, too
	$(PYTHON) scripts/install_cuda.py $(if $(filter 1,$(LIBRARIES)),--libraries)

# For the CI. One that is there but older than this checkout is made anew.
cuda-toolkit-if-missing: $(if $(filter-out .cuda,$(CUDA)),,cuda-toolkit)

quickstart: ## install, build, train a minute on real text, sample, plot. TEXT=path for your own text
	scripts/quickstart.sh "$(TEXT)"

bench: all $(BUILD)/dev/bench/bench_step $(BUILD)/dev/bench/bench_loader ## speed tables into dev/bench/results
	$(PYTHON) dev/bench/bench_cpu.py --build $(BUILD)

$(BUILD)/dev/%: $(BUILD)/dev/%.o $(LIB)
	$(SAY) LINK $@
	$(QUIET)$(CC) $(CFLAGS) $^ -o $@ $(LDFLAGS) $(LDLIBS)

# BACKEND=sim: the same scripts with the simulator and tiny sizes, to try them out where there is no GPU.
ifeq ($(BACKEND),sim)
GPU_FLAGS := --tiny --trainer ./train_gpt2sim --output $(SIM_BUILD)/results
CHECK_GPU := --tests $(SIM_BUILD)/test --build train_gpt2sim sim-test-programs
BENCH_GPU := --build train_gpt2sim
else
CHECK_GPU := --tests $(CUDA_BUILD)/test --build train_gpt2cu cuda-test-programs
BENCH_GPU := --build train_gpt2cu
endif

.PHONY: check-gpu bench-gpu
check-gpu: ## op tests, training, resume, sanitizers on the GPU, into OUT=DIR or dev/bench/results; under 10 minutes
	$(PYTHON) dev/bench/check_gpu.py $(GPU_FLAGS) $(CHECK_GPU)

bench-gpu: ## speed tables of the GPU, and PyTorch beside them, into OUT=DIR or dev/bench/results; under 10 minutes
	$(PYTHON) dev/bench/bench_gpu.py $(GPU_FLAGS) $(BENCH_GPU)

# ---------------------------------------------------------------------------------------------------------------- tests

SUBMAKE := $(MAKE) --no-print-directory -s -j$(shell nproc) WERROR=1

RUN_TESTS = scripts/run_tests.py --jobs $(shell nproc) --tally $(TALLY) --pytest test/e2e --pytest test/tools

# What the parts of a test took and found; run_tests.py sums it up. $(call phase,NAME,COMMAND)
TALLY := build/tally
phase  = @mkdir -p build; SECONDS=0; $(2) && printf '{"phase": "%s", "seconds": %d}\n' $(1) $$SECONDS >>$(TALLY)

# For who has just cloned this: some of everything, in at most eight minutes on two cores with nothing installed and
# nothing built. What takes long for what it finds is in SLOW_TESTS, in SIM_SLOW_TESTS (dev/sim/sim.mk), or marked `slow`
# in pytest. With a CUDA toolkit: the CUDA trainer for one GPU, and what nvcc made of its kernels in the simulator.
test: ## install what is missing, build, test: some of everything, under 8 minutes on 2 cores
	@rm -f $(TALLY)
	$(call phase,install,scripts/install_deps.sh build test)
	$(call phase,build,$(SUBMAKE) all test-programs)
	$(if $(NVCC),$(call phase,build,$(SUBMAKE) ARCHS=$(QUICK_ARCH) SIM_ARCHS=$(QUICK_ARCH) train_gpt2sim sim-quick-programs $(QUICK_CUDA)),@echo "$(NO_CUDA)")
	@$(RUN_TESTS) --mark 'not slow' $(QUICK_TEST_BIN) $(SIM_QUICK_BIN) $(SIM_HARDWARE)

# Then the rest: what `make test` leaves out, the op tests a second time in plain C (SIMD=none), the CUDA trainer for every
# generation of GPUs, all of the simulator's tests with the PTX of each, also as other GPUs and under the sanitizers.
test-all: ## make test, and then slow runs, plain C, all GPUs, sanitizers, thread and memory checkers: under an hour
	@$(MAKE) -s test || grep -qs passed $(TALLY) # a test that failed keeps none from running
	$(call phase,install,scripts/install_deps.sh build test test-all)
	@$(MAKE) -s test-rest

.PHONY: test-rest
test-rest: # make looks for clang anew: it may have come just now
	$(call phase,build,$(SUBMAKE) SIMD=none op-test-programs)
	$(if $(NVCC),$(call phase,build,$(SUBMAKE) train_gpt2sim sim-test-programs sim-sanitize-programs))
	$(if $(NVCC),$(call phase,build,$(SUBMAKE) $(if $(NO_CUBLASLT),cuda-library,train_gpt2cu) ARCHS="$(SIM_ARCHS)"))
	@CUDNN_GRAPHS=all $(RUN_TESTS) --mark slow \
		$(if $(NVCC),--check "scripts/kernel_report.py --ran build/kernels $(SIM_KERNELS)/llmc/cuda/*.ptxas") \
		$(filter-out $(QUICK_TEST_BIN),$(sort $(TEST_BIN) $(OP_TEST_BIN_PLAIN))) $(SIM_TEST_BIN) $(SIM_OTHER_GPUS) \
		$(SIM_HARDWARE_ALL) $(SIM_ASAN_BIN) $(SIM_TSAN_BIN) $(SIM_TSAN_STEP) $(SIM_MSAN_BIN)

SLOW_TESTS     := $(addprefix $(BUILD)/test/,unit/test_planner_fit ops/test_random_shapes)
QUICK_TEST_BIN := $(filter-out $(SLOW_TESTS),$(sort $(TEST_BIN)))
# Not over the trainer of a machine that has a GPU, perhaps another one.
QUICK_CUDA     := $(if $(NO_CUBLASLT),cuda-library,$(if $(GPU_ARCHS),build/$(MODE)-cuda-$(QUICK_ARCH)/train_gpt2cu,train_gpt2cu))

NO_CUDA := WARNING: no CUDA toolkit here: the kernels and the simulator are not tested (make cuda-toolkit fetches one, 75 MB; CUDA=DIR says where one is)

# The test programs and the end-to-end tests that are marked `sanitize`, with the trainers built the same way. Under
# ThreadSanitizer and MemorySanitizer in all dtypes.
test-sanitize: ## tests under AddressSanitizer, UBSan and leak detection; kernels in all dtypes under TSan and MSan
	scripts/install_deps.sh build test test-all
	$(SUBMAKE) MODE=sanitize test-programs sanitized-trainer
	$(if $(NVCC),$(SUBMAKE) MODE=sanitize build/sanitize-sim/train_gpt2sim $(SIM_LONG_ASAN_BIN))
	$(if $(NVCC),$(SUBMAKE) sim-sanitize-programs sim-faults)
	@TRAINER=build/sanitize-$(SIMD)/train_gpt2 SIM_TRAINER=build/sanitize-sim/train_gpt2sim \
		TEST_FILTER='*' scripts/run_tests.py \
		--jobs $(shell nproc) --pytest test/e2e --mark sanitize \
		$(TEST_BIN:$(BUILD)/%=build/sanitize-$(SIMD)/%) $(SIM_LONG_ASAN_BIN) $(SIM_TSAN_BIN) $(SIM_TSAN_STEP) $(SIM_MSAN_BIN)

OP_TEST_BIN_PLAIN := $(patsubst %.c,build/$(MODE)-none/%,$(wildcard test/ops/test_*.c))

.PHONY: test-programs op-test-programs sanitized-trainer
test-programs: $(TEST_BIN) $(BUILD)/dev/bench/bench_ops
op-test-programs: $(OP_TEST_BIN_PLAIN)
sanitized-trainer: $(BUILD)/train_gpt2 $(DATA_TOOLS:data/%=$(BUILD)/%)

# ----------------------------------------------------------------------------------------------------------------- style

SOURCES := $(sort $(wildcard *.cu llmc/*.[ch] llmc/*/*.[ch] llmc/*/*.cu llmc/*/*.cuh data/*.[ch] dev/*/*.[ch] \
           dev/sim/*.cpp dev/sim/*.cu test/*.[ch] test/*/*.[ch] test/*/*.cu))
# What clang-tidy reads: the C of it; without a CUDA toolkit not what includes its headers.
TIDIED := $(filter %.c train_gpt2.cu,$(if $(CUDA),$(SOURCES),$(filter-out llmc/cuda/% test/sim/%,$(SOURCES))))
# clang 14 knows _Float16 only where AVX512-FP16 is switched on; nothing is compiled here, only read.
TIDY_FLAGS := -std=c11 -D_GNU_SOURCE -I. -fopenmp $(if $(CPU_FLAGS),$(SIMD_FLAGS_avx512bf16) -mavx512fp16) $(if $(CUDA),-isystem $(CUDA)/include) $(if $(NVCC),-I$(SIM_FORMS))

lint: ## compiler warnings, clang-format, clang-tidy, Python syntax
	scripts/install_deps.sh build lint
	$(SUBMAKE) all test-programs $(if $(NVCC),$(SIM_FORMS)/forms.cpp)
	clang-format --dry-run -Werror $(SOURCES)
	@printf '%s\n' $(TIDIED) | xargs -P$(shell nproc) -I{} clang-tidy --quiet {} -- -x c $(TIDY_FLAGS)
	find scripts data dev test -name '*.py' -print0 | \
		xargs -0 $(PYTHON) -c 'import ast, sys; [ast.parse(open(f).read(), f) for f in sys.argv[1:]]'

format: ## clang-format every source in place
	clang-format -i $(SOURCES)

clean: ## remove everything that was built
	rm -rf build train_gpt2 train_gpt2cu train_gpt2sim $(DATA_TOOLS)

help: ## this list
	@grep -hE '^[a-z][a-z0-9_/-]*:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([^:]*):.*## (.*)/  \1\t\2/' | expand -t 20

-include $(shell find build -name '*.d' 2>/dev/null)
