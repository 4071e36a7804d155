# The CUDA backend for a device: `make train_gpt2cu`. Included by the Makefile, whose variables it uses.
#   ARCHS="80 90"   the GPUs to build for, as compute capabilities: machine code for each, and PTX of the newest, which
#                   newer GPUs compile when the program starts. Default: the GPUs of this machine; without one,
#                   DEFAULT_ARCHS as far as this nvcc knows them. No PTX of 75, which lacks what is taken from 80 on:
#                   a program for 75 alone refuses newer GPUs.
# C files are compiled by $(CC), .cu files by nvcc; objects of every list of architectures have a directory of their own.
# cuDNN is loaded when the program starts (its headers are used where they are), NVML likewise.
# cudart is linked statically and looks for the driver when it is first called, so that the program starts,
# and can say what is missing, on any machine.

NVCC := $(wildcard $(CUDA)/bin/nvcc)

# What the machine has, one compute capability a GPU: nvcc's own question to the driver, or nvidia-smi's. Asked only
# where there is a device file of the driver (dxg: Windows' Linux).
ifneq ($(wildcard /dev/nvidiactl /dev/dxg),)
GPU_ARCHS := $(shell (x=$$($(CUDA)/bin/__nvcc_device_query 2>/dev/null) && echo "$$x" | grep -E '^[0-9, ]+$$' || \
             nvidia-smi --query-gpu=compute_cap --format=csv,noheader 2>/dev/null | grep -E '^[0-9]+\.[0-9]$$') | \
             tr -d . | grep -oE '[0-9]+' | sort -nu)
endif

# Code for 8.0 also runs on 8.6 and 8.9, that for 10.0 on 10.3: four builds instead of eight.
DEFAULT_ARCHS := 75 80 90 100 120
NVCC_ARCHS    := $(if $(NVCC),$(patsubst compute_%,%,$(shell $(NVCC) --list-gpu-arch)))
# What to build for these GPUs: nothing for those before sm_75, such as an old display card beside the one that trains.
# For one that this nvcc does not know, the newest before it of the same major number, whose machine code it runs; else
# the newest before it, whose PTX its driver compiles.
override GPU_ARCHS := $(if $(GPU_ARCHS),$(shell printf '%s\n' $(GPU_ARCHS) | awk -v list="$(NVCC_ARCHS)" \
                      'BEGIN { n = split(list, known) } \
                       { best = 0; \
                         for (i = 1; i <= n; i++) \
                             if (known[i] >= 75 && known[i] <= $$1 + 0 && known[i] > best) best = known[i] + 0; \
                         if (best) print best }' | sort -nu))
ifeq ($(strip $(ARCHS)),)
override ARCHS := $(if $(NVCC),$(or $(GPU_ARCHS),$(filter $(NVCC_ARCHS),$(DEFAULT_ARCHS))))
else ifneq ($(NVCC),)
$(if $(filter-out $(NVCC_ARCHS),$(subst $(comma), ,$(ARCHS))),$(call bad_value,ARCHS,expected some of: $(NVCC_ARCHS)))
endif

space := $(subst ,, )
arch_list   = $(shell printf '%s\n' $(subst $(comma), ,$(1)) | sort -nu)
CUDA_ARCHS  := $(call arch_list,$(ARCHS))
gencode     = $(foreach a,$(1),-gencode arch=compute_$(a)$(comma)code=sm_$(a)) \
              $(foreach a,$(filter-out 75,$(lastword $(1))),-gencode arch=compute_$(a)$(comma)code=compute_$(a))

CUDA_BUILD := build/$(MODE)-cuda-$(subst $(space),-,$(CUDA_ARCHS))
# What nvcc makes of a .cu file does not depend on MODE: one directory for each list of architectures.
kernel_dir   = build/nvcc-$(subst $(space),-,$(1))
KERNEL_BUILD := $(call kernel_dir,$(CUDA_ARCHS))
KERNEL_SRC := $(filter %.cu,$(CUDA_SRC))
CUDA_OBJ   := $(patsubst %.c,$(CUDA_BUILD)/%.o,$(filter %.c,$(CUDA_SRC))) $(KERNEL_SRC:%.cu=$(KERNEL_BUILD)/%.o)
CUDA_LIB   := $(CUDA_BUILD)/libllmc.a
CUDA_LIBS  := $(patsubst %/libcudart_static.a,%,$(firstword $(wildcard \
              $(CUDA)/lib64/libcudart_static.a $(CUDA)/lib/libcudart_static.a $(CUDA)/targets/*/lib/libcudart_static.a)))

# Where the C library declares functions that CUDA's headers declare otherwise: what scripts/cuda_headers.sh makes.
GLIBC_MINOR  := $(if $(NVCC),$(shell echo __GLIBC_MINOR__ | $(CC) -E -P -include features.h -x c - 2>/dev/null | tail -1))
CUDA_HEADERS := $(if $(NVCC),$(shell test "$(GLIBC_MINOR)" -ge 41 2>/dev/null && echo build/cuda-headers))
$(CUDA_HEADERS:%=%/crt/math_functions.h): $(CUDA)/include/crt/math_functions.h scripts/cuda_headers.sh
	$(QUIET)scripts/cuda_headers.sh $(CUDA)/include $(CUDA_HEADERS)

# -Wextra stays away: the code that nvcc generates around kernels does not pass it. Several architectures at a time, as
# many as there are cores to spare.
NVCC_FLAGS := -std=c++17 -O3 -lineinfo -I. $(CUDA_HEADERS:%=-I%) --threads 2 -Xptxas -v \
              $(if $(filter 1,$(WERROR)),-Werror=all-warnings -Xcompiler=-Werror) \
              -Xcompiler -Wall$(comma)-Wshadow$(comma)-ffp-contract=off$(comma)-D_GNU_SOURCE

$(CUDA_BUILD)/llmc/cuda/%.o: llmc/cuda/%.c
	@mkdir -p $(@D)
	$(SAY) CC $<
	$(QUIET)$(COMPILE) -DCUDA_ARCHS='"$(CUDA_ARCHS)"' -isystem $(CUDA)/include -MMD -MP -c $< -o $@

# Where gcc is ccache, ccache also keeps what nvcc makes, which takes minutes.
NVCC_CACHE = $(if $(filter ccache,$(notdir $(realpath $(shell command -v $(firstword $(CC)))))),\
	CCACHE_COMPILERTYPE=nvcc CCACHE_COMPILERCHECK=content CCACHE_EXTRAFILES=$(NVCC) ccache)

# Beside an object stay its PTX for each architecture, which the simulator runs, and what ptxas says of registers,
# shared memory and spills, for `make kernel-report`.
define KERNEL_RULE
$(call kernel_dir,$(1))/%.o: %.cu llmc/cuda/nvcc.sh | $(CUDA_HEADERS:%=%/crt/math_functions.h)
	@mkdir -p $$(@D)
	$$(SAY) NVCC $$<
	$$(QUIET)NVCC=$$(NVCC) $$(NVCC_CACHE) llmc/cuda/nvcc.sh $$(NVCC_FLAGS) $(call gencode,$(1)) -MMD -MP -c $$< -o $$@ \
		>$$(@:.o=.ptxas) 2>&1 || { grep -v '^ptxas info' $$(@:.o=.ptxas); rm -f $$@; exit 1; }
	@llmc/cuda/nvcc.sh --unpack $$@
endef
$(if $(CUDA_ARCHS),$(eval $(call KERNEL_RULE,$(CUDA_ARCHS))))

$(CUDA_LIB): $(HOST_OBJ) $(CUDA_OBJ)
	@rm -f $@
	$(SAY) AR $@
	$(QUIET)ar rcs $@ $^

# rpath: cuBLASLt is found where it was at build time, without LD_LIBRARY_PATH.
LINK_CUDA = $(CXX) $(LDFLAGS) $(CFLAGS_$(MODE)) -fopenmp $^ -o $@ -L$(CUDA_LIBS) -Wl,-rpath,'$(abspath $(CUDA_LIBS))' \
            -lcublasLt -lcudart_static $(1) -lcjson -lxxhash -lpcre2-8 -lz -lzstd -ldl -lrt -lpthread -lm

$(CUDA_BUILD)/train_gpt2cu: $(BUILD)/train_gpt2.o $(CUDA_LIB)
	$(SAY) LINK $@
	$(QUIET)$(LINK_CUDA)

.PHONY: train_gpt2cu cuda-test-programs cuda-library kernel-report need-nvcc need-cublaslt
train_gpt2cu: need-nvcc need-cublaslt $(CUDA_BUILD)/train_gpt2cu ## the CUDA trainer. ARCHS="80 90": for these GPUs; default: this machine's
	@cp -f $(CUDA_BUILD)/$@ $@

need-nvcc:
	@test -n "$(NVCC)" || { echo 'no nvcc: make cuda-toolkit fetches it; a CUDA toolkit (12.4 or newer) elsewhere is given by make train_gpt2cu CUDA=DIR' >&2; exit 1; }
	@test -n "$(CUDA_LIBS)" || { echo 'no libcudart_static.a under $(CUDA): the toolkit is not whole (package cuda-cudart-dev)' >&2; exit 1; }

# `make cuda-toolkit` fetches cuBLASLt, five times the rest, only where there is a GPU.
NO_CUBLASLT := $(if $(wildcard $(CUDA)/wheels.txt),$(if $(wildcard $(CUDA)/lib/libcublasLt.so),,yes))
need-cublaslt:
	@test -z "$(NO_CUBLASLT)" || { echo 'no libcublasLt.so in $(CUDA): make cuda-toolkit LIBRARIES=1 fetches it (375 MB)' >&2; exit 1; }

cuda-library: need-nvcc $(CUDA_LIB)

# Where there are a GPU and a compiler for it, plain `make` builds for it, too.
ifneq ($(and $(NVCC),$(GPU_ARCHS)),)
all: train_gpt2cu
endif

# The tests of ops and model for the device: what `make check-gpu` runs. The ops alone: for dev/bench/gpu_hour.py.
CUDA_TEST_BIN := $(patsubst %.c,$(CUDA_BUILD)/%,$(wildcard test/ops/test_*.c test/golden/test_*.c))
cuda-test-programs: need-nvcc need-cublaslt $(CUDA_TEST_BIN)
build/bench_ops_cu: need-nvcc need-cublaslt $(CUDA_BUILD)/dev/bench/bench_ops
	@cp -f $(CUDA_BUILD)/dev/bench/bench_ops $@

$(CUDA_BUILD)/test/%: $(BUILD)/test/%.o $(TEST_LIB) $(CUDA_LIB)
	@mkdir -p $(@D)
	$(SAY) LINK $@
	$(QUIET)$(call LINK_CUDA,-lcmocka)

$(CUDA_BUILD)/dev/%: $(BUILD)/dev/%.o $(CUDA_LIB)
	@mkdir -p $(@D)
	$(SAY) LINK $@
	$(QUIET)$(LINK_CUDA)

kernel-report: need-nvcc $(KERNEL_SRC:%.cu=$(KERNEL_BUILD)/%.o) ## registers, shared memory and spills of every kernel; fails where a hot one spills
	@$(PYTHON) dev/kernel_report.py $(KERNEL_SRC:%.cu=$(KERNEL_BUILD)/%.ptxas)

# These look into the backend.
$(BUILD)/test/sim/%.o: FLAGS += -isystem $(CUDA)/include
