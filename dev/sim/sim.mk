# The CUDA backend without a GPU: the objects that nvcc makes for train_gpt2cu, with the simulator in the place of the
# CUDA runtime and cuBLASLt, and their PTX, translated to C++, in the place of their machine code. Included by the
# Makefile, whose variables it uses. Two more values of MODE than the Makefile has:
#   MODE=tsan   ThreadSanitizer. The simulator's core is not instrumented: it tells TSan what synchronises
#   MODE=msan   MemorySanitizer (clang). Without OpenMP; results and arguments of libraries count as initialised
# CUDA kernels are single-threaded in both, and slower: 5 to 10 times. The sanitizers' builds hold PTX of sm_90 only.

# The op tests that ThreadSanitizer and MemorySanitizer run: every kernel once.
SIM_SHORT := $(addprefix ops/test_,attention blocks decode embedding fp8 gradient_add head_loss layernorm matmul optimizer \
	optimizer_adafactor optimizer_rounding optimizer_update small statistics)

# The GPUs that the program is built for: as far as this nvcc knows them, all; for the sanitizers one.
SIM_ALL_ARCHS := $(filter $(NVCC_ARCHS),$(DEFAULT_ARCHS))
SIM_ARCHS   := $(if $(filter release,$(MODE)),$(SIM_ALL_ARCHS),90)
$(if $(NVCC),$(if $(filter-out $(SIM_ALL_ARCHS),$(SIM_ARCHS)),$(call bad_value,SIM_ARCHS,expected some of: $(SIM_ALL_ARCHS))))
SIM_KERNELS := $(call kernel_dir,$(SIM_ARCHS))
ifneq ($(SIM_ARCHS),$(CUDA_ARCHS))
$(eval $(call KERNEL_RULE,$(SIM_ARCHS)))
endif
# Of these, the PTX that is translated, for the sanitizers that of one. The sources have one text for sm_75, one up to
# sm_89 and one from sm_90 on. The code of newer GPUs is for ptxas alone (dev/kernel_report.py): a simulated one runs that
# of sm_90.
SIM_PTX := $(if $(filter release,$(MODE)),$(or $(filter 75 80 90,$(SIM_ARCHS)),$(SIM_ARCHS)),90)
SIM_CPP := $(SIM_KERNELS)/ptx-$(subst $(space),-,$(SIM_PTX))

SIM_BUILD := build/$(MODE)-sim$(if $(filter release,$(MODE)),$(if $(filter-out $(SIM_ARCHS),$(SIM_ALL_ARCHS)),-$(subst $(space),-,$(SIM_ARCHS))))
# The simulator without the libraries: what a program of kernels alone needs.
SIM_CORE_OBJ   := $(addprefix $(SIM_BUILD)/dev/sim/,$(addsuffix .o,block device graph grid kernels memory ptx stream workers))
SIM_KERNEL_OBJ := $(KERNEL_SRC:%.cu=$(SIM_BUILD)/%.o)
# The emulated cuDNN and NCCL take the places of the files that load the real ones.
SIM_C_SRC      := $(filter-out llmc/cuda/cudnn_library.c llmc/cuda/nccl_library.c,$(filter %.c,$(CUDA_SRC)))
SIM_LIB_OBJ    := $(HOST_OBJ) $(patsubst %.cpp,$(SIM_BUILD)/%.o,$(wildcard dev/sim/*.cpp)) $(SIM_C_SRC:%.c=$(SIM_BUILD)/%.o) \
	$(KERNEL_SRC:%.cu=$(SIM_KERNELS)/%.o)
SIM_LIB        := $(SIM_BUILD)/libllmc.a

CFLAGS_tsan := -O2 -g -fsanitize=thread -fno-omit-frame-pointer
# param-retval: what crosses a call by value is checked there and needs no shadow, so libraries that are not
# instrumented (cmocka calling a test) cannot hand over a stale one. The objects of nvcc are not instrumented either:
# what they write to the stack of a caller has to count as initialised. To see where a value comes from that nobody
# wrote, add -fsanitize-memory-track-origins.
CFLAGS_msan := -O1 -g -fsanitize=memory -fsanitize-memory-param-retval \
	-fno-omit-frame-pointer -DXXH_INLINE_ALL -Wno-unknown-pragmas -Wno-for-loop-analysis -Wno-unused-command-line-argument
ifeq ($(MODE),msan)
CC     := clang
CXX    := clang++
FLAGS  := $(filter-out -fopenmp,$(FLAGS)) -mllvm -msan-poison-stack=0
endif

# fmaf as an instruction, not as a call of libm. No bits change: a*b+c is not contracted.
SIM_CPU := $(if $(and $(findstring avx2,$(CPU_FLAGS)),$(findstring fma,$(CPU_FLAGS)),$(findstring bmi2,$(CPU_FLAGS))),-march=x86-64-v3)
CXXFLAGS_SIM = -std=c++17 -D_GNU_SOURCE $(SIM_CPU) -I. -isystem $(CUDA)/include -fno-strict-aliasing -ffp-contract=off
CORE_FLAGS  := $(if $(filter tsan,$(MODE)),-g1 -DSIM_TSAN,$(CFLAGS_$(MODE))) $(if $(filter tsan sanitize,$(MODE)),-O2) -Wall -Wextra -Wshadow -Wno-unknown-pragmas \
	$(if $(filter 1,$(WERROR)),-Werror)
# Translated kernels. -O1: more takes longer to compile than the tests take to run. ASan and UBSan have nothing to add to
# what the simulator checks of every access; what the translator writes for an instruction they see once, in the forms.
FORM_FLAGS   := $(if $(filter release,$(MODE)),,$(CFLAGS_$(MODE))) -O1 -g1 -w
KERNEL_FLAGS := $(if $(filter tsan msan,$(MODE)),$(CFLAGS_$(MODE))) -O1 -g1 -w

.PRECIOUS: $(SIM_CPP)/%.cpp build/nvcc-90/%.cpp build/nvcc-90/%.o
$(SIM_CPP)/%.cpp: $(SIM_KERNELS)/%.o dev/sim/translate.py
	@mkdir -p $(@D)
	$(SAY) PTX $*
	$(QUIET)$(PYTHON) dev/sim/translate.py $@ $(foreach a,$(SIM_PTX),$(<:.o=.compute_$(a).ptx))

# A quarter of all translated code, in three dtypes, widths and forms each: -O1 takes 30 s more than its tests gain.
$(SIM_BUILD)/llmc/cuda/layernorm.o: KERNEL_FLAGS += $(if $(filter release sanitize,$(MODE)),-O0)

$(SIM_BUILD)/llmc/%.o: $(SIM_CPP)/llmc/%.cpp
	@mkdir -p $(@D)
	$(SAY) SIM $<
	$(QUIET)$(CXX) $(CXXFLAGS_SIM) $(KERNEL_FLAGS) -MMD -MP -c $< -o $@

$(SIM_BUILD)/llmc/cuda/%.o: llmc/cuda/%.c
	@mkdir -p $(@D)
	$(SAY) SIM $<
	$(QUIET)$(COMPILE) -DCUDA_ARCHS='"$(SIM_ARCHS)"' -isystem $(CUDA)/include -MMD -MP -c $< -o $@

$(SIM_BUILD)/dev/sim/%.o: dev/sim/%.cpp
	@mkdir -p $(@D)
	$(SAY) SIM $<
	$(QUIET)$(CXX) $(CXXFLAGS_SIM) $(CORE_FLAGS) -MMD -MP -c $< -o $@

$(SIM_LIB): $(SIM_LIB_OBJ)
	@rm -f $@
	$(SAY) AR $@
	$(QUIET)ar rcs $@ $^

# Translated kernels register themselves: they are linked whole, not out of the library.
LINK_SIM = $(CXX) $(LDFLAGS) $(CFLAGS_$(MODE)) $(if $(filter msan,$(MODE)),,-fopenmp) $^ -o $@ $(LINK_FLAGS) \
	-lcmocka -lcjson -lxxhash -lpcre2-8 -lz -lzstd -lpthread -ldl -lm

# PLAN_APART=1 of the simulated trainer: test/sim/plan_apart.c.
APART := memory_plan_offset memory_plan_total model_create model_forward_backward model_forward
$(SIM_BUILD)/train_gpt2sim: LINK_FLAGS += $(APART:%=-Wl,--wrap=%)
$(SIM_BUILD)/train_gpt2sim: $(BUILD)/train_gpt2.o $(BUILD)/test/sim/plan_apart.o $(SIM_KERNEL_OBJ) $(SIM_LIB)
	$(SAY) LINK $@
	$(QUIET)$(LINK_SIM)

# An op that overruns its part of the workspace: test/sim/scratch_apart.c.
$(SIM_SHORT:%=$(SIM_BUILD)/test/%) $(SIM_BUILD)/test/ops/test_random_shapes: LINK_FLAGS += -Wl,--wrap=cuda_scratch
$(SIM_SHORT:%=$(SIM_BUILD)/test/%) $(SIM_BUILD)/test/ops/test_random_shapes: $(BUILD)/test/sim/scratch_apart.o

$(SIM_BUILD)/test/%: $(BUILD)/test/%.o $(SIM_KERNEL_OBJ) $(TEST_LIB) $(SIM_LIB)
	@mkdir -p $(@D)
	$(SAY) LINK $@
	$(QUIET)$(LINK_SIM)

$(BUILD)/test/sim/%.o: FLAGS += -isystem $(CUDA)/include

# The ops alone, as dev/bench/gpu_hour.py times them on a GPU.
$(SIM_BUILD)/dev/bench/bench_ops: $(BUILD)/dev/bench/bench_ops.o $(SIM_KERNEL_OBJ) $(SIM_LIB)
	@mkdir -p $(@D)
	$(SAY) LINK $@
	$(QUIET)$(LINK_SIM)

# Programs of kernels that need nothing but the simulator, for sm_90: mistakes planted for test_faults, the benchmark.
ifneq ($(SIM_KERNELS),build/nvcc-90)
ifneq ($(filter-out 90,$(CUDA_ARCHS)),)
$(eval $(call KERNEL_RULE,90))
endif
endif
build/nvcc-90/%.cpp: build/nvcc-90/%.o dev/sim/translate.py
	$(QUIET)$(PYTHON) dev/sim/translate.py $@ $(@:.cpp=.compute_90.ptx)

# Messages, for programs that do not link the whole library.
ERROR_OBJ := $(addprefix $(BUILD)/llmc/base/,error.o format.o utf8.o)

$(SIM_BUILD)/test/sim/faults $(SIM_BUILD)/dev/sim/bench: $(SIM_BUILD)/%: build/nvcc-90/%.cpp $(SIM_CORE_OBJ) $(ERROR_OBJ)
	@mkdir -p $(@D)
	$(SAY) LINK $@
	$(QUIET)$(CXX) $(CXXFLAGS_SIM) $(KERNEL_FLAGS) -c $< -o $@.o
	$(QUIET)$(CXX) $(CFLAGS_$(MODE)) $@.o $(<:.cpp=.o) $(filter %.o,$^) -o $@ -lpthread

# The forms of PTX instructions, each with worked-out results, as a module that no host code launches.
SIM_FORMS := $(SIM_CPP)/test/sim
$(SIM_FORMS)/forms.cpp: test/sim/ptx_forms.py test/sim/ptx_forms_table.py dev/sim/translate.py
	@mkdir -p $(@D)
	$(SAY) PTX test/sim/ptx_forms.py
	$(QUIET)for a in $(SIM_PTX); do $(PYTHON) $< --ptx $$a >$(@D)/forms.compute_$$a.ptx || exit; done
	$(QUIET)$(PYTHON) $< --table >$(@D)/forms_table.h
	$(QUIET)$(PYTHON) dev/sim/translate.py $@ $(SIM_PTX:%=$(@D)/forms.compute_%.ptx)
$(SIM_BUILD)/test/sim/forms.o: $(SIM_FORMS)/forms.cpp
	@mkdir -p $(@D)
	$(SAY) SIM $<
	$(QUIET)$(CXX) $(CXXFLAGS_SIM) $(FORM_FLAGS) -MMD -MP -c $< -o $@
$(BUILD)/test/sim/test_ptx_forms.o: FLAGS += -I$(SIM_FORMS)
$(BUILD)/test/sim/test_ptx_forms.o: $(SIM_FORMS)/forms.cpp
$(SIM_BUILD)/test/sim/test_ptx_forms: $(SIM_BUILD)/test/sim/forms.o

# A program of which one file was built for sm_75 alone.
ifneq ($(filter-out 75,$(CUDA_ARCHS)),)
$(eval $(call KERNEL_RULE,75))
endif
$(SIM_BUILD)/test/sim/test_old_image: build/nvcc-75/llmc/cuda/matmul_kernels.o $(BUILD)/test/sim/test_old_image.o \
		$(SIM_KERNEL_OBJ) $(TEST_LIB) $(SIM_LIB)
	@mkdir -p $(@D)
	$(SAY) LINK $@
	$(QUIET)$(LINK_SIM)

# cuDNN's own library judges our graphs, with a driver that only says yes.
CUDNN_GRAPH_OBJ := $(addprefix $(SIM_BUILD)/llmc/cuda/,cudnn_graph.o cudnn_library.o cudnn_plan.o library_loader.o) \
	$(ERROR_OBJ) $(addprefix $(BUILD)/llmc/,tensor.o model/gpu_sizes.o)
$(SIM_BUILD)/test/sim/test_cudnn_graphs: $(BUILD)/test/sim/test_cudnn_graphs.o $(TEST_LIB) $(CUDNN_GRAPH_OBJ) \
		| $(SIM_BUILD)/test/sim/fake_libcuda/libcuda.so.1
	$(SAY) LINK $@
	$(QUIET)$(LINK_SIM)
$(SIM_BUILD)/test/sim/fake_libcuda/libcuda.so.1: test/sim/fake_libcuda.c
	@mkdir -p $(@D)
	$(SAY) LINK $@
	$(QUIET)$(CC) -std=c11 $(WARNINGS) -shared -fPIC -Wl,-soname,libcuda.so.1 $< -o $@

# The file that loads NCCL, with NCCL's own library where the toolkit has it, and one that is too old.
NCCL_REAL := $(firstword $(wildcard $(foreach d,lib64 lib targets/*/lib,$(CUDA)/$d/libnccl.so.2)))
$(BUILD)/test/sim/test_nccl_library.o: FLAGS += -DNCCL_REAL='"$(NCCL_REAL)"'
$(SIM_BUILD)/test/sim/test_nccl_library: $(BUILD)/test/sim/test_nccl_library.o $(TEST_LIB) \
		$(SIM_BUILD)/llmc/cuda/nccl_library.o $(SIM_BUILD)/llmc/cuda/library_loader.o $(ERROR_OBJ) | $(SIM_BUILD)/test/sim/fake_nccl.so
	$(SAY) LINK $@
	$(QUIET)$(LINK_SIM)
$(SIM_BUILD)/test/sim/fake_nccl.so: test/sim/fake_nccl.c
	@mkdir -p $(@D)
	$(SAY) LINK $@
	$(QUIET)$(CC) -std=c11 $(WARNINGS) -shared -fPIC $< -o $@

# NVML of three drivers, which differ in a name.
$(SIM_BUILD)/test/sim/test_facts: | $(patsubst %,$(SIM_BUILD)/test/sim/fake_nvml_%.so,EventReasons ThrottleReasons Nothing)
$(SIM_BUILD)/test/sim/fake_nvml_%.so: test/sim/fake_nvml.c
	@mkdir -p $(@D)
	$(SAY) LINK $@
	$(QUIET)$(CC) -std=c11 $(WARNINGS) -shared -fPIC -DTHROTTLE=nvmlDeviceGetCurrentClocks$* $< -o $@

train_gpt2sim: need-nvcc $(SIM_BUILD)/train_gpt2sim ## the CUDA trainer on the simulator, for tests
	@cp -f $(SIM_BUILD)/train_gpt2sim $@

# What the tests run, by mode. Without nvcc there is no simulator; without clang no MemorySanitizer.
SIM_TEST_BIN := $(if $(NVCC),$(patsubst %.c,$(SIM_BUILD)/%,$(wildcard test/ops/test_*.c test/golden/test_*.c test/sim/test_*.c test/invariants/test_*.c)))
# Tests under a setting of the simulator, SETTING=VALUE@PROGRAM. Each test of an op and of golden values runs once, with
# device memory that host code cannot touch and numbers as inexact as hardware may give them, as on a GPU. Tests of whole
# models compare the bits of two runs and ask nothing of the numbers, random shapes are many; a test that knows exact results
# where numbers are rounded to nearest runs both ways.
SIM_HARDWARE := SIM_NUMERICS=hardware
SIM_OPS   := $(filter $(SIM_BUILD)/test/ops/% $(SIM_BUILD)/test/golden/%,$(SIM_TEST_BIN))
SIM_PLAIN  := $(addprefix $(SIM_BUILD)/test/ops/test_,model offload threads generation recompute random_shapes)
SIM_BOTH     := $(addprefix $(SIM_BUILD)/test/,ops/test_fp8 sim/test_gemm_plan sim/test_ptx_forms)
SIM_RUN       = $(if $(NVCC),$(patsubst %,SIM_PROTECT=1@%,$(SIM_PLAIN)) \
	$(patsubst %,$(SIM_HARDWARE)@SIM_PROTECT=1@%,$(filter-out $(SIM_PLAIN),$(SIM_OPS))) \
	$(patsubst %,$(SIM_HARDWARE)@%,$(filter-out $(SIM_OPS),$(SIM_BOTH))) \
	$(patsubst %,SIM_PROTECT=1@%,$(filter $(SIM_OPS),$(SIM_BOTH))) $(filter-out $(SIM_OPS),$(SIM_TEST_BIN)) \
	$(call SIM_AS,75) $(call SIM_AS,80,TEST_FILTER=*_bf16@))
# Instructions and every kernel as other GPUs; the others simulate an sm_90. $(call SIM_AS,GPU,TEST_FILTER@ or nothing)
SIM_AS        = $(patsubst %,$(SIM_HARDWARE)@SIM_CC=$1@$2$(SIM_BUILD)/test/%,$(SIM_SHORT)) $(SIM_HARDWARE)@SIM_CC=$1@$(SIM_BUILD)/test/sim/test_ptx_forms
SIM_CLANG    := $(if $(NVCC),$(shell command -v clang++))
SIM_ASAN_BIN := $(if $(NVCC),$(SIM_SHORT:%=build/sanitize-sim/test/%))
SIM_LONG_ASAN_BIN := $(SIM_TEST_BIN:$(SIM_BUILD)/%=build/sanitize-sim/%)
# Also what several streams do. An OpenMP that is not instrumented looks like a race where it has several threads.
SIM_TSAN_BIN  := $(if $(NVCC),$(addprefix build/tsan-sim/test/,$(SIM_SHORT) ops/test_offload sim/test_nccl))
# Threads hardly depend on the dtype: `make test-all` checks one, `make test-sanitize` all, and with MemorySanitizer what
# was never written, which elsewhere is NaN in memory (registers apart).
SIM_CHECKED   := *_bf16
test-sanitize: SIM_CHECKED := *
SIM_TSAN_RUN   = $(foreach t,$(SIM_TSAN_BIN),OMP_NUM_THREADS=1@$(if $(filter $(SIM_SHORT:%=build/tsan-sim/test/%),$t),TEST_FILTER=$(SIM_CHECKED)@)$t)
SIM_TSAN_STEP := $(if $(NVCC),OMP_NUM_THREADS=1@TEST_FILTER=a_step_makes_no_synchronising_call@build/tsan-sim/test/sim/test_step)
SIM_MSAN_BIN := $(if $(SIM_CLANG),$(SIM_SHORT:%=build/msan-sim/test/%))
SIM_FAULTS   := $(if $(NVCC),$(foreach m,release sanitize tsan $(if $(SIM_CLANG),msan),build/$m-sim/test/sim/faults))

.PHONY: sim-test-programs sim-asan-programs sim-tsan-programs sim-sanitize-programs sim-msan-programs sim-faults sim-bench
sim-test-programs: $(SIM_TEST_BIN) $(SIM_BUILD)/dev/bench/bench_ops sim-faults
sim-asan-programs: $(SIM_ASAN_BIN)
sim-tsan-programs: $(SIM_TSAN_BIN) $(lastword $(subst @, ,$(SIM_TSAN_STEP)))
sim-sanitize-programs:
	$(MAKE) --no-print-directory -s MODE=sanitize sim-asan-programs
	$(MAKE) --no-print-directory -s MODE=tsan sim-tsan-programs
sim-msan-programs:
	$(if $(SIM_MSAN_BIN),$(MAKE) --no-print-directory -s MODE=msan $(SIM_MSAN_BIN))
sim-faults:
	$(foreach f,$(SIM_FAULTS),$(MAKE) --no-print-directory -s MODE=$(patsubst build/%-sim/test/sim/faults,%,$f) $f &&) true

sim-bench: $(SIM_BUILD)/dev/sim/bench ## what a thread, a barrier and a shuffle cost in the simulator
	$<

.PHONY: mutation
mutation: need-nvcc ## plant mistakes in kernels and their PTX, one at a time, and show which test catches each (dev/mutation)
	$(PYTHON) dev/mutation/mutate.py
