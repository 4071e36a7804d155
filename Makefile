# pretrain.cu: `make help` lists the targets.
#
# Host code and the CPU backend are C11; every object is compiled into build/MODE/, the vector code of the CPU backend once
# for each set of instructions (CPU_CODES): the program chooses when it starts. CUDA kernels are compiled by nvcc; the
# simulator of dev/sim runs the PTX that it leaves, translated to C++.
#   MODE=release|sanitize|coverage  sanitize: AddressSanitizer + UBSan. For the simulator also tsan and msan (clang)
#   CUDA=DIR                      the CUDA toolkit; default: that of the nvcc on the PATH, /usr/local/cuda, or .cuda,
#                                 which `make cuda-toolkit` makes
#   WERROR=1                      a warning ends the build; the tests and lint set it: they run here, users have other
#                                 compilers
#   VERBOSE=1                     shows the whole commands
#   CC, CPPFLAGS, CFLAGS, LDFLAGS the user's flags come before ours, which have the last word: they decide the results
#   -j N                          N commands at a time; default: as many as there are cores

SHELL := /bin/bash
comma := ,
.DEFAULT_GOAL := all
.DELETE_ON_ERROR:

# A build takes all cores, unless -j says otherwise (make 4.3 shows it neither here nor in the sub-makes). Not where the
# order of goals counts, or a goal starts make itself.
ONE_BY_ONE := clean deps fuzz coverage cuda-toolkit cuda-toolkit-if-missing quickstart test test-sim test-all test-everything test-release test-sanitize lint check-gpu bench-gpu
ifeq ($(MAKELEVEL)$(filter -j%,$(MAKEFLAGS) $(shell echo "$$MAKEFLAGS"))$(filter $(ONE_BY_ONE),$(MAKECMDGOALS)),0)
MAKEFLAGS += -j$(shell nproc)
endif

ifeq ($(origin CC),default)
CC := gcc
endif
ifeq ($(origin CXX),default)
CXX := $(if $(findstring clang,$(CC)),$(subst clang,clang++,$(CC)),g++)
endif
OBJCOPY ?= objcopy
ifeq ($(MODE),)
override MODE := release
endif
CPU_FLAGS := $(shell grep -m1 '^flags' /proc/cpuinfo 2>/dev/null)
has        = $(if $(filter-out $(CPU_FLAGS),$(1)),,$(2))
BUILD  := build/$(MODE)

# What a build is told, and from where. Variables that are not in FROM_ENVIRONMENT have names that mean something else there.
FROM_ENVIRONMENT := MODE CUDA WERROR ARCHS MPICC OBJCOPY PYTHON CC CXX CPPFLAGS CFLAGS LDFLAGS LDLIBS NVCC_PREPEND_FLAGS NVCC_APPEND_FLAGS
COMMAND_LINE := VERBOSE LIBRARIES BACKEND SECONDS GPU_ARCHS SIM_ARCHS BUILD TEXT OUT RUNS READERS SEED NICE FUZZ_CC
VARIABLES    := $(sort $(FROM_ENVIRONMENT) $(COMMAND_LINE))
$(foreach v,VERBOSE LIBRARIES BACKEND SECONDS RUNS READERS SEED NICE GPU_ARCHS,$(if $(filter environment%,$(origin $v)),$(eval undefine $v)))
$(foreach v,$(.VARIABLES),$(if $(filter command,$(origin $v)),$(if $(filter $v,$(VARIABLES)),,\
	$(error $v=$($v): there is no such variable; there are $(VARIABLES)))))
bad_value = $(error $(1)=$($(1))$(if $(filter environment%,$(origin $(1))), in the environment): $(2))
one_of    = $(if $(filter-out $(2),$($(1)))$(word 2,$($(1))),$(call bad_value,$(1),expected one of: $(2)))
$(call one_of,MODE,release sanitize coverage tsan msan)
$(call one_of,BACKEND,cuda sim)
$(foreach v,WERROR VERBOSE LIBRARIES,$(call one_of,$v,0 1))

# Where this make compiles: the compiler runs, and no flag changes results. A flag of the linker counts: with -ffast-math
# it makes the program start with denormals switched off.
CHANGE_RESULTS := -Ofast -ffast-math -funsafe-math-optimizations -fassociative-math -freciprocal-math -ffinite-math-only \
	-fno-signed-zeros -ffp-model=fast -ffp-model=aggressive -fapprox-func -fsingle-precision-constant -fdenormal-fp-math=% -mdaz-ftz \
	-mfpmath=% -fshort-enums -use_fast_math --use_fast_math $(foreach o,ftz prec-div prec-sqrt fmad,-$o% --$o%)
ifneq ($(filter-out $(ONE_BY_ONE) help format,$(or $(MAKECMDGOALS),all)),)
$(if $(shell $(CC) -dumpmachine 2>/dev/null),,$(call bad_value,CC,no such compiler; make deps installs gcc))
$(foreach v,CC CXX CPPFLAGS CFLAGS LDFLAGS LDLIBS NVCC_PREPEND_FLAGS NVCC_APPEND_FLAGS,\
	$(if $(filter $(CHANGE_RESULTS),$(subst $(comma), ,$($v))),\
	$(call bad_value,$v,results change with $(filter $(CHANGE_RESULTS),$(subst $(comma), ,$($v))); leave it out)))
endif

WARNINGS := -Wall -Wextra -Wshadow -Wconversion -Wstrict-prototypes -Wmissing-prototypes -Wno-unknown-warning-option -Wno-format-truncation \
            -Wno-enum-float-conversion -Wno-enum-enum-conversion \
            $(if $(filter 1,$(WERROR)),-Werror)
CFLAGS_release  := -O3 -g1
CFLAGS_coverage := -O0 -g --coverage -fprofile-update=atomic
CFLAGS_sanitize := -O1 -g -fsanitize=address,undefined -fno-sanitize-recover=all -fno-omit-frame-pointer
# The copies of the vector code, best first, and their flags; llmc/cpu/cpu.c has the same list. Each has just what its
# name says, also with -march=native in CFLAGS.
X86       := $(filter x86_64-%,$(or $(shell $(CC) -dumpmachine 2>/dev/null),$(shell uname -m)-))
CPU_CODES := $(if $(X86),amx avx512bf16 avx512 avx2) baseline
AVX512 := avx512f avx512bw avx512vl avx512dq fma
NO_AMX := -mno-amx-tile -mno-amx-bf16
CODE_FLAGS_amx        := $(AVX512:%=-m%) -mavx512bf16 -mtune=znver3 -mamx-tile -mamx-bf16
CODE_FLAGS_avx512bf16 := $(AVX512:%=-m%) -mavx512bf16 -mtune=znver3 $(NO_AMX)
CODE_FLAGS_avx512     := $(AVX512:%=-m%) -mno-avx512bf16 $(NO_AMX)
CODE_FLAGS_avx2       := -mavx2 -mfma -mno-avx512f $(NO_AMX)
CODE_FLAGS_baseline   := $(if $(X86),-mno-avx $(NO_AMX))
# Those that this machine runs.
CODES_HERE := $(filter $(CPU_CODES),$(call has,$(AVX512) avx512_bf16 amx_tile amx_bf16,amx) $(call has,$(AVX512) avx512_bf16,avx512bf16) \
              $(call has,$(AVX512),avx512) $(call has,avx2 fma,avx2) baseline)
code_flags = -Wno-psabi $(CODE_FLAGS_$(1)) $(if $(filter coverage,$(MODE)),-O1 -fno-profile-arcs -fno-test-coverage) -DCPU_CODE=cpu_code_$(1)
# Our flags. -ffp-contract=off: a*b+c means the same in every build; the vector code asks for fma where it wants it.
# -fno-math-errno: a root is one instruction, also in loops that become vector code. -fno-lto: the names of a copy of the
# vector code are hidden in its object.
FLAGS = -std=c11 -D_GNU_SOURCE -I. -fopenmp -fno-fast-math -ffp-contract=off -fno-math-errno -fno-lto $(WARNINGS) $(CFLAGS_$(MODE))
COMPILE = $(CC) $(CPPFLAGS) $(CFLAGS) $(FLAGS)
LINK    = $(CC) $(CFLAGS) $(LDFLAGS) $(FLAGS) $(LINK_FLAGS)
# MPI, for several processes: where its headers are. The library is loaded at run time. Without MPI everything builds.
MPICC    ?= mpicc
MPI_WORDS  := $(shell $(MPICC) -show 2>/dev/null)
$(if $(MPI_WORDS)$(filter file,$(origin MPICC))$(filter none,$(MPICC)),,$(call bad_value,MPICC,"$(MPICC) -show" says nothing; MPICC=none builds without MPI))
MPI_CFLAGS := $(if $(MPI_WORDS),-DHAVE_MPI $(patsubst -I%,-isystem %,$(filter -I%,$(MPI_WORDS))))
LIBS := -ldnnl -lcjson -lxxhash -lpcre2-8 -lz -lzstd -lpthread -ldl -lm

CPU_SRC  := $(wildcard llmc/cpu/*.c)
HOST_SRC := $(wildcard llmc/*.c llmc/base/*.c llmc/model/*.c llmc/train/*.c llmc/data/*.c llmc/text/*.c llmc/store/*.c llmc/plan/*.c llmc/log/*.c llmc/run/*.c llmc/comm/*.c) \
            data/tool.c
# Of llmc/cpu, what any processor runs; the remainder is the vector code.
CPU_ONCE := $(addprefix llmc/cpu/,collectives_mpi.c cpu.c device.c host_memory.c onednn.c)
CPU_OBJ  := $(CPU_ONCE:%.c=$(BUILD)/%.o) $(CPU_CODES:%=$(BUILD)/llmc/cpu/%.o)
HOST_OBJ := $(HOST_SRC:%.c=$(BUILD)/%.o)
LIB      := $(BUILD)/libllmc.a
HOST_LIB := $(BUILD)/libhost.a
# Tests link the vector code that this processor runs, and no other need be compiled for them: the program's table has
# nothing in the others' places, which it never takes.
HERE     := $(BUILD)/here
HERE_LIB := $(HERE)/libllmc.a
HERE_OBJ := $(HOST_OBJ) $(CPU_ONCE:%.c=$(BUILD)/%.o) $(CODES_HERE:%=$(BUILD)/llmc/cpu/%.o)
without   = $(patsubst %,-Wl$(comma)--defsym=cpu_code_%=0,$(1))
HERE_LINK := $(call without,$(filter-out $(CODES_HERE),$(CPU_CODES)))

# The CUDA toolkit, if there is one: for the device (llmc/cuda/cuda.mk) and for the simulator (dev/sim/sim.mk).
ifeq ($(origin CUDA),undefined)
CUDA     := $(patsubst %/bin/nvcc,%,$(firstword $(shell command -v nvcc) $(wildcard /usr/local/cuda/bin/nvcc .cuda/bin/nvcc)))
else ifneq ($(filter-out none,$(CUDA)),)
$(if $(wildcard $(CUDA)/bin/nvcc),,$(call bad_value,CUDA,there is no $(CUDA)/bin/nvcc; expected the directory of a CUDA toolkit or none))
else
override CUDA :=
endif
CUDA_SRC := $(wildcard llmc/cuda/*.c llmc/cuda/*.cu)

TEST_SRC := $(filter-out test/unit/test_simd.c,$(wildcard test/unit/test_*.c test/ops/test_*.c test/golden/test_*.c test/invariants/test_*.c))
TEST_BIN := $(TEST_SRC:%.c=$(BUILD)/%) $(BUILD)/test/fuzz/test_readers $(CODES_HERE:%=$(BUILD)/test/unit/test_simd-%)
# The tests of the ops with the vector code that is not the best one here.
OP_TESTS     := $(patsubst %.c,$(BUILD)/%,$(wildcard test/ops/test_*.c) test/unit/test_gemm.c)
OTHER_CODES  = $(foreach code,$(wordlist 2,9,$(CODES_HERE)),$(patsubst %,PRETRAIN_CPU=$(code)@%,$(1)))
# What tests link besides the library: their main, the fp64 specification and the helper around op calls.
TEST_OBJ := $(patsubst %.c,$(BUILD)/%.o,test/test.c $(wildcard test/reference/*.c) test/ops/op_test.c)
TEST_LIB := $(BUILD)/libtest.a

# One short line a file.
QUIET := $(if $(filter 1,$(VERBOSE)),,@)
SAY    = $(if $(filter 1,$(VERBOSE)),@:,@printf '  %-5s%s\n')

# Debian's own Python: the one that Debian's numpy, matplotlib and torch are for.
PYTHON ?= $(firstword $(wildcard /usr/bin/python3) python3)

.PHONY: all quickstart test test-all test-sanitize bench lint format help clean deps FORCE

# Each C file of data/ but tool.c is a program of that name.
DATA_TOOLS := $(patsubst %.c,%,$(filter-out data/tool.c,$(wildcard data/*.c)))

all: train_gpt2 $(DATA_TOOLS) ## the best trainer for this machine, and the data tools

# Compiled again when MPI comes or goes.
MPI_OBJ := $(BUILD)/llmc/comm/mpi_library.o $(BUILD)/llmc/cpu/collectives_mpi.o
$(MPI_OBJ): FLAGS += $(MPI_CFLAGS)
$(MPI_OBJ): $(BUILD)/mpi.flags
$(BUILD)/mpi.flags: FORCE
	@mkdir -p $(@D)
	@echo '$(MPI_CFLAGS)' | cmp -s - $@ || echo '$(MPI_CFLAGS)' >$@

$(BUILD)/%.o: %.c
	@mkdir -p $(@D)
	$(SAY) CC $<
	$(QUIET)$(COMPILE) -MMD -MP -c $< -o $@

# A copy of the vector code is one object, in which only its table has a name for others. The test of what it is made
# from is compiled with the same flags.
define CODE_RULES
$(BUILD)/llmc/cpu/$(1)/%.o: llmc/cpu/%.c
	@mkdir -p $$(@D)
	$$(SAY) CC '$$< $(1)'
	$$(QUIET)$$(COMPILE) $$(call code_flags,$(1)) -MMD -MP -c $$< -o $$@

$(BUILD)/llmc/cpu/$(1).o: $(patsubst llmc/cpu/%.c,$(BUILD)/llmc/cpu/$(1)/%.o,$(filter-out $(CPU_ONCE),$(CPU_SRC)))
	$$(QUIET)$$(CC) -r -nostdlib $$^ -o $$@
	$$(QUIET)$$(OBJCOPY) --keep-global-symbol=cpu_code_$(1) $$@

$(BUILD)/test/unit/test_simd-$(1).o: test/unit/test_simd.c
	@mkdir -p $$(@D)
	$$(SAY) CC '$$< $(1)'
	$$(QUIET)$$(COMPILE) $$(call code_flags,$(1)) -MMD -MP -c $$< -o $$@
endef
$(foreach code,$(CPU_CODES),$(eval $(call CODE_RULES,$(code))))

$(BUILD)/train_gpt2.o: train_gpt2.cu
	@mkdir -p $(@D)
	$(SAY) CC $<
	$(QUIET)$(COMPILE) -MMD -MP -x c -c $< -o $@

$(LIB): $(HOST_OBJ) $(CPU_OBJ)
	@rm -f $@
	$(SAY) AR $@
	$(QUIET)ar rcs $@ $^

$(HERE_LIB): $(HERE_OBJ)
	@mkdir -p $(@D)
	@rm -f $@
	$(SAY) AR $@
	$(QUIET)ar rcs $@ $^

$(BUILD)/train_gpt2: $(LIB)
$(HERE)/train_gpt2: $(HERE_LIB)
$(HERE)/train_gpt2: LINK_FLAGS += $(HERE_LINK)
$(BUILD)/train_gpt2 $(HERE)/train_gpt2: $(BUILD)/train_gpt2.o
	$(SAY) LINK $@
	$(QUIET)$(LINK) $(filter %.o,$^) $(filter %.a,$^) -o $@ $(LIBS) $(LDLIBS)

# The tools compute nothing and need no vector code, which takes most of the time of a build.
$(HOST_LIB): $(HOST_OBJ) $(CPU_ONCE:%.c=$(BUILD)/%.o)
	@rm -f $@
	$(SAY) AR $@
	$(QUIET)ar rcs $@ $^

$(DATA_TOOLS:data/%=$(BUILD)/%): LINK_FLAGS += $(call without,$(CPU_CODES))
$(DATA_TOOLS:data/%=$(BUILD)/%): $(BUILD)/%: $(BUILD)/data/%.o $(HOST_LIB)
	$(SAY) LINK $@
	$(QUIET)$(LINK) $^ -o $@ $(LIBS) $(LDLIBS)

# Programs outside of build/ are copies, of the mode that was asked for last. Times do not tell: one built a week ago
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

# Parts of the library whose readers are static: their test is compiled with their source (test/fuzz).
FUZZ_INSIDE := choice_lines shard_tool whereis tcp watch

# Half a second a file is saved where nothing is optimised. What computes is: the fp64 reference and the op tests; and what
# has a part of the library in it, or is itself vector code.
$(BUILD)/test/%.o: CFLAGS_release := -O0 -g1
$(BUILD)/test/reference/%.o $(BUILD)/test/ops/%.o $(FUZZ_INSIDE:%=$(BUILD)/test/fuzz/%.o) $(CPU_CODES:%=$(BUILD)/test/unit/test_simd-%.o): CFLAGS_release := -O3 -g1

$(BUILD)/test/%: LINK_FLAGS += $(HERE_LINK)
$(BUILD)/test/%: $(BUILD)/test/%.o $(TEST_LIB) $(HERE_LIB)
	$(SAY) LINK $@
	$(QUIET)$(LINK) $^ -o $@ -lcmocka $(LIBS) $(LDLIBS)

# It counts the plans that a search makes.
$(BUILD)/test/unit/test_plan_fit: LINK_FLAGS += -Wl,--wrap=model_plan

# ------------------------------------------------------------------------------------------------------------- fuzzing

# Every reader of a file or a message: test/fuzz. One program for all; parts whose readers are static are compiled with
# their source. As a test program with any compiler, and for libFuzzer with clang, which sees how far an input comes.
FUZZ_PARTS  := fuzz readers texts $(FUZZ_INSIDE)
FUZZ_TEST   := $(BUILD)/test/fuzz/test_readers
upper        = $(shell echo $(1) | tr a-z A-Z)

$(FUZZ_INSIDE:%=$(BUILD)/test/fuzz/%.o): $(BUILD)/test/fuzz/%.o: test/fuzz/inside.c
	@mkdir -p $(@D)
	$(SAY) CC '$< $*'
	$(QUIET)$(COMPILE) -DFUZZ_$(call upper,$*) -Wno-unused-function -Wno-unused-const-variable -MMD -MP -c $< -o $@

$(FUZZ_TEST): $(FUZZ_PARTS:%=$(BUILD)/test/fuzz/%.o) $(TEST_LIB) $(HERE_LIB)
	$(SAY) LINK $@
	$(QUIET)$(LINK) $^ -o $@ -lcmocka $(LIBS) $(LDLIBS)

# With libFuzzer: what reads is compiled by clang, with AddressSanitizer, UBSan and counters of its branches; the rest,
# such as the vector code, is that of the library.
FUZZ_CC    := clang
FUZZ_BUILD := build/fuzz
FUZZ_FLAGS := -std=c11 -D_GNU_SOURCE -DLIBFUZZER -I. -O1 -g -fno-omit-frame-pointer -ffp-contract=off \
              -fsanitize=fuzzer-no-link,address,undefined -fno-sanitize-recover=all -Wall -Wextra -Wno-unused-function -Wno-unused-const-variable
FUZZ_SRC   := $(wildcard llmc/base/*.c llmc/store/*.c llmc/data/*.c llmc/text/*.c llmc/comm/comm.c) llmc/train/choices.c llmc/run/options.c llmc/run/options_together.c \
              llmc/log/runlog.c llmc/log/main_log.c data/tool.c llmc/model/parameters.c
FUZZ_OBJ   := $(FUZZ_SRC:%.c=$(FUZZ_BUILD)/%.o) $(FUZZ_PARTS:%=$(FUZZ_BUILD)/test/fuzz/%.o)

$(FUZZ_BUILD)/%.o: %.c
	@mkdir -p $(@D)
	$(SAY) CLANG $<
	$(QUIET)$(FUZZ_CC) $(FUZZ_FLAGS) -MMD -MP -c $< -o $@

$(FUZZ_INSIDE:%=$(FUZZ_BUILD)/test/fuzz/%.o): $(FUZZ_BUILD)/test/fuzz/%.o: test/fuzz/inside.c
	@mkdir -p $(@D)
	$(SAY) CLANG '$< $*'
	$(QUIET)$(FUZZ_CC) $(FUZZ_FLAGS) -DFUZZ_$(call upper,$*) -MMD -MP -c $< -o $@

$(FUZZ_BUILD)/fuzz: $(FUZZ_OBJ) build/release/libllmc.a
	$(SAY) LINK $@
	$(QUIET)$(FUZZ_CC) -fsanitize=fuzzer,address,undefined $^ -o $@ \
		-Wl,--wrap=char_kinds_table,--wrap=ZSTD_createDStream,--wrap=ZSTD_freeDStream,--wrap=ZSTD_DCtx_setParameter \
		-lgomp -lcmocka $(LIBS)

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

# For make -C: where the user is.
quickstart: export QUICKSTART_FROM := $(PWD)
quickstart: ## install, build, train a minute on real text, sample, plot. TEXT=path for your own text
	scripts/quickstart.sh

bench: all $(BUILD)/dev/bench/bench_step $(BUILD)/dev/bench/bench_loader ## speed tables into dev/bench/results
	$(PYTHON) dev/bench/bench_cpu.py --build $(BUILD)

$(BUILD)/dev/%: $(BUILD)/dev/%.o $(LIB)
	$(SAY) LINK $@
	$(QUIET)$(LINK) $^ -o $@ $(LIBS) $(LDLIBS)

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

# What the parts of a test took and found; run_tests.py sums it up. $(call phase,NAME,COMMAND)
TALLY    := build/tally
phase     = dev/run_tests.py --tally $(TALLY) --phase $(1) -- $(2)
install   = @mkdir -p build; SECONDS=0; scripts/install_deps.sh $(1) && printf '{"phase": "install", "seconds": %d}\n' $$SECONDS >>$(TALLY)
RUN_TESTS = dev/run_tests.py --jobs $(shell nproc) --tally $(TALLY)

# For who has just cloned this: what a machine can get wrong, which is its compiler, libraries, processor and file system.
# At most eight minutes on two cores with the packages installed and nothing built, or 710 seconds of processor; 480 were
# measured on 2026-11-28: 110 to build, 100 for the programs, 270 for pytest. So it leaves out the simulator (test-sim),
# the tests of developers' tools (test/tools), the copies of the vector code that this processor does not run, SLOW_TESTS,
# and what is marked `slow` in pytest because it takes long for what it finds.
test: ## install what is missing, build, and test what this machine can get wrong: 8 minutes on 2 cores
	@rm -f $(TALLY)
	$(call install,build test)
	$(call phase,build,$(SUBMAKE) quick-programs)
	@$(if $(NVCC),echo "$(MORE_WITH_CUDA)")
	@TRAINER=$(HERE)/train_gpt2 $(RUN_TESTS) --mark "not slow and not simulator" --pytest test/e2e --pytest test/faults \
		$(QUICK_TEST_BIN) $(QUICK_OTHER_CODES)

# What a change of the CUDA backend can get wrong: what nvcc made of the kernels, on the simulated GPU.
.PHONY: test-sim
test-sim: need-nvcc ## what nvcc makes of the CUDA kernels, on a simulated GPU: 15 minutes on 2 cores
	@rm -f $(TALLY)
	$(call install,build test)
	$(call phase,build,$(SUBMAKE) all quick-programs train_gpt2sim sim-test-programs)
	@$(RUN_TESTS) --mark simulator --pytest test/e2e $(SIM_RUN)

# All of both, and the rest: slow runs, developers' tools, all op tests with all vector code of this machine, the CUDA
# trainer for every generation of GPUs, the simulator under the sanitizers. One queue for all that is not needed to
# begin: whatever takes long, no core waits for it.
test-all: ## everything: test, test-sim, slow runs, tools, all vector code, all GPUs, sanitizers: 40 minutes on 2 cores
	@rm -f $(TALLY)
	$(call install,build test test-all $(if $(filter 1,$(OTHER_COMPILERS)),compilers))
	@OTHER_COMPILERS=$(OTHER_COMPILERS) $(MAKE) -s test-everything # which looks for clang anew: it may have come just now

# Builds with other compilers (test/tools/test_compilers.py) differ where flags or the headers that all sources include
# differ: test-all makes them when one of the last 20 commits or the working tree has changed these, or nobody knows.
OTHER_COMPILERS ?= $(if $(shell git diff --quiet HEAD~20 -- Makefile llmc/base/*.h 2>/dev/null && echo same),0,1)
.PHONY: test-release
test-release: export OTHER_COMPILERS = 1
test-release: ## test-all, with every compiler
	@$(MAKE) -s test-all

# The host code and the CPU backend for aarch64: compiled, not linked and not run (dev/aarch64/emulate.sh does). The
# libraries' headers are this machine's.
AARCH64 := CC="aarch64-linux-gnu-gcc -idirafter /usr/include -idirafter /usr/include/$(shell gcc -print-multiarch)" OBJCOPY=aarch64-linux-gnu-objcopy BUILD=build/aarch64 MPICC=none

.PHONY: test-everything
test-everything:
	$(if $(NVCC),,@echo "$(NO_CUDA)")
	$(call phase,build,$(SUBMAKE) all test-programs $(if $(NVCC),train_gpt2sim sim-test-programs $(if $(NO_CUBLASLT),cuda-library,train_gpt2cu) ARCHS="$(SIM_ARCHS)"))
	@CUDNN_GRAPHS=all $(RUN_TESTS) --pytest test/e2e --pytest test/faults --pytest test/tools \
		$(if $(NVCC),--build 'build/sanitize-sim/$(comma)build/tsan-sim/=$(SUBMAKE) SIM_ARCHS="$(SIM_ARCHS)" sim-sanitize-programs') \
		$(if $(shell command -v aarch64-linux-gnu-gcc),--check '$(SUBMAKE) $(AARCH64) host-objects') \
		$(if $(shell command -v $(FUZZ_CC)),--check "make -s fuzz SECONDS=2") \
		$(if $(and $(NVCC),$(filter 90,$(SIM_ARCHS))),--check "dev/oldest_ptxas.py $(SIM_KERNELS)/llmc/cuda/*.compute_90.ptx $(if $(filter 75,$(SIM_ARCHS)),$(SIM_KERNELS)/llmc/cuda/*.compute_75.ptx)") \
		$(if $(NVCC),--last "dev/kernel_report.py --ran build/kernels $(SIM_KERNELS)/llmc/cuda/*.ptxas") \
		$(SLOW_TESTS) TEST_INVARIANTS=all@$(BUILD)/test/invariants/test_invariants $(SIM_TSAN_RUN) $(SIM_TSAN_STEP) \
		$(SIM_ASAN_BIN) $(SIM_RUN) $(filter-out %/test_invariants,$(QUICK_TEST_BIN)) \
		$(call OTHER_CODES,$(OP_TESTS) $(GOLDEN_TEST)) # what takes long comes first

SLOW_TESTS     := $(addprefix $(BUILD)/test/,unit/test_plan_fit ops/test_random_shapes)
QUICK_TEST_BIN := $(filter-out $(SLOW_TESTS),$(sort $(TEST_BIN)))
GOLDEN_TEST    := $(addprefix $(BUILD)/test/golden/,test_golden test_golden_blocks test_golden_classes)
# What runs in seconds, with the narrow vectors.
QUICK_OTHER_CODES := $(filter PRETRAIN_CPU=avx2@% PRETRAIN_CPU=baseline@%,$(call OTHER_CODES,$(GOLDEN_TEST) $(addprefix $(BUILD)/test/,unit/test_gemm $(SIM_SHORT))))

MORE_WITH_CUDA := make test-sim also runs the CUDA kernels, on a simulated GPU: 15 minutes on 2 cores
NO_CUDA := WARNING: no CUDA toolkit here: the kernels and the simulator are not tested (make cuda-toolkit fetches one, 75 MB; CUDA=DIR says where one is)

# The test programs and the end-to-end tests that are marked `sanitize`, with the trainers built the same way. Under
# ThreadSanitizer and MemorySanitizer in all dtypes.
test-sanitize: ## tests under AddressSanitizer, UBSan and leak detection; kernels in all dtypes under TSan and MSan
	scripts/install_deps.sh build test test-all
	$(SUBMAKE) MODE=sanitize test-programs sanitized-trainer
	$(if $(NVCC),$(SUBMAKE) MODE=sanitize build/sanitize-sim/train_gpt2sim $(SIM_LONG_ASAN_BIN))
	$(if $(NVCC),$(SUBMAKE) sim-sanitize-programs sim-msan-programs sim-faults)
	@TRAINER=build/sanitize/train_gpt2 SIM_TRAINER=build/sanitize-sim/train_gpt2sim \
		TEST_FILTER='*' dev/run_tests.py \
		--jobs $(shell nproc) --pytest test/e2e --mark sanitize \
		$(TEST_BIN:$(BUILD)/%=build/sanitize/%) $(SIM_LONG_ASAN_BIN) $(SIM_TSAN_RUN) $(SIM_TSAN_STEP) $(SIM_MSAN_BIN)

# Every reader, SECONDS=60 each, with libFuzzer; with another compiler the test program, which needs no clang.
.PHONY: fuzz coverage
fuzz: ## fuzz every reader of files and messages, SECONDS=60 each (clang; RUNS=N inputs each, READERS="shards log")
	@$(if $(shell command -v $(FUZZ_CC)),$(SUBMAKE) $(FUZZ_BUILD)/fuzz && SECONDS_EACH=$(or $(SECONDS),60) RUNS=$(RUNS) READERS="$(READERS)" SEED=$(SEED) NICE=$(NICE) test/fuzz/run.sh,\
		echo "WARNING: no clang here (apt-get install clang libclang-rt-dev): damaged inputs without libFuzzer" && \
		$(SUBMAKE) $(FUZZ_TEST) && $(FUZZ_TEST))

coverage: ## which lines and branches of the readers and the store the tests execute; what they leave, with the reasons
	$(SUBMAKE) MODE=coverage coverage-programs
	$(PYTHON) test/coverage.py --build build/coverage

.PHONY: coverage-programs quick-programs test-programs sanitized-trainer host-objects
coverage-programs: $(FUZZ_TEST) $(filter $(BUILD)/test/unit/% $(BUILD)/test/invariants/%,$(TEST_BIN)) sanitized-trainer
quick-programs: $(QUICK_TEST_BIN) $(DATA_TOOLS) $(HERE)/train_gpt2
test-programs: $(TEST_BIN) $(BUILD)/dev/bench/bench_ops $(BUILD)/dev/bench/bench_step $(HERE)/train_gpt2
host-objects: $(HOST_OBJ) $(CPU_OBJ) $(BUILD)/train_gpt2.o $(DATA_TOOLS:%=$(BUILD)/%.o)
sanitized-trainer: $(BUILD)/train_gpt2 $(DATA_TOOLS:data/%=$(BUILD)/%)

# ----------------------------------------------------------------------------------------------------------------- style

SOURCES := $(sort $(wildcard *.cu llmc/*.[ch] llmc/*/*.[ch] llmc/*/*.cu llmc/*/*.cuh data/*.[ch] dev/*/*.[ch] \
           dev/sim/*.cpp dev/sim/*.cu test/*.[ch] test/*/*.[ch] test/*/*.cu))
# What clang-tidy reads: the C of it; without a CUDA toolkit not what includes its headers.
TIDIED := $(filter %.c train_gpt2.cu,$(if $(CUDA),$(SOURCES),$(filter-out llmc/cuda/% test/sim/%,$(SOURCES))))
# clang 14 knows _Float16 only where AVX512-FP16 is switched on; nothing is compiled here, only read.
TIDY_FLAGS := -std=c11 -D_GNU_SOURCE -I. -fopenmp $(if $(CPU_FLAGS),$(CODE_FLAGS_amx) -mavx512fp16) -DCPU_CODE=cpu_code_amx $(if $(CUDA),-isystem $(CUDA)/include) $(if $(NVCC),-I$(SIM_FORMS))

lint: ## compiler warnings, clang-format, clang-tidy, Python syntax
	scripts/install_deps.sh build lint
	$(SUBMAKE) all test-programs $(if $(NVCC),$(SIM_FORMS)/forms.cpp)
	clang-format --dry-run -Werror $(SOURCES)
	$(PYTHON) dev/house.py --check
	@printf '%s\n' $(TIDIED) | xargs -P$(shell nproc) -I{} clang-tidy --quiet {} -- -x c $(TIDY_FLAGS)
	find scripts data dev test -name '*.py' -print0 | \
		xargs -0 $(PYTHON) -c 'import ast, sys; [ast.parse(open(f).read(), f) for f in sys.argv[1:]]'

format: ## clang-format every source in place
	clang-format -i $(SOURCES)

clean: ## remove everything that was built
	rm -rf build train_gpt2 train_gpt2cu train_gpt2sim $(DATA_TOOLS)

help: ## this list
	@grep -hE '^[a-z][a-z0-9_/-]*:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([^:]*):.*## (.*)/  \1\t\2/' | expand -t 20

-include $(shell find build -name '*.d' -type f 2>/dev/null)
