# pretrain.cu: `make help` lists the targets.
#
# Host code and the CPU backend are C11; every object is compiled once per variant into build/VARIANT/.
#   SIMD=avx512bf16|avx512|none   vector code of the CPU backend; default: what this processor has
#   MODE=release|sanitize         sanitize: AddressSanitizer + UBSan

SHELL := /bin/bash
.DEFAULT_GOAL := all
.DELETE_ON_ERROR:

CC     ?= gcc
MODE   ?= release
CPU_FLAGS := $(shell grep -m1 '^flags' /proc/cpuinfo 2>/dev/null)
SIMD   ?= $(if $(findstring avx512_bf16,$(CPU_FLAGS)),avx512bf16,$(if $(and $(findstring avx512f,$(CPU_FLAGS)),$(findstring avx512bw,$(CPU_FLAGS)),$(findstring avx512vl,$(CPU_FLAGS)),$(findstring avx512dq,$(CPU_FLAGS))),avx512,none))
BUILD  := build/$(MODE)-$(SIMD)

WARNINGS := -Wall -Wextra -Wshadow -Wconversion -Wstrict-prototypes -Wmissing-prototypes -Wno-format-truncation -Werror
CFLAGS_release  := -O3 -g1
CFLAGS_sanitize := -O1 -g -fsanitize=address,undefined -fno-sanitize-recover=all -fno-omit-frame-pointer
SIMD_FLAGS_avx512bf16 := -mavx512f -mavx512bw -mavx512vl -mavx512dq -mavx512bf16 -mfma -mtune=znver3
SIMD_FLAGS_avx512     := -mavx512f -mavx512bw -mavx512vl -mavx512dq -mfma
SIMD_FLAGS_none       :=
# -ffp-contract=off: a*b+c means the same in every build; the vector code asks for fma where it wants it.
CFLAGS += -std=c11 -D_GNU_SOURCE -I. -fopenmp -ffp-contract=off $(WARNINGS) $(CFLAGS_$(MODE))
LDLIBS += -ldnnl -lcjson -lxxhash -lpthread -lm

CPU_SRC  := $(wildcard llmc/cpu/*.c)
HOST_SRC := $(wildcard llmc/*.c llmc/base/*.c llmc/model/*.c llmc/train/*.c llmc/tokens/*.c llmc/store/*.c llmc/run/*.c)
CPU_OBJ  := $(CPU_SRC:%.c=$(BUILD)/%.o)
HOST_OBJ := $(HOST_SRC:%.c=$(BUILD)/%.o)
LIB      := $(BUILD)/libllmc.a

TEST_SRC := $(wildcard test/unit/test_*.c test/ops/test_*.c)
TEST_BIN := $(TEST_SRC:%.c=$(BUILD)/%)
REF_OBJ  := $(patsubst %.c,$(BUILD)/%.o,$(wildcard test/reference/*.c))

.PHONY: all quickstart test test-sanitize bench lint format help clean deps

all: train_gpt2 data/prepare ## the best trainer for this machine, and the data tools

$(CPU_OBJ): CFLAGS += $(SIMD_FLAGS_$(SIMD))

$(BUILD)/%.o: %.c
	@mkdir -p $(@D)
	$(CC) $(CFLAGS) -MMD -MP -c $< -o $@

$(BUILD)/train_gpt2.o: train_gpt2.cu
	@mkdir -p $(@D)
	$(CC) $(CFLAGS) -MMD -MP -x c -c $< -o $@

$(LIB): $(HOST_OBJ) $(CPU_OBJ)
	@rm -f $@
	ar rcs $@ $^

$(BUILD)/train_gpt2: $(BUILD)/train_gpt2.o $(LIB)
	$(CC) $(CFLAGS) $^ -o $@ $(LDFLAGS) $(LDLIBS)

$(BUILD)/prepare: $(BUILD)/data/prepare.o $(LIB)
	$(CC) $(CFLAGS) $^ -o $@ $(LDFLAGS) $(LDLIBS)

train_gpt2: $(BUILD)/train_gpt2 ## the CPU trainer
	@cp -f $< $@

data/prepare: $(BUILD)/prepare ## text -> token shards
	@cp -f $< $@

$(BUILD)/test/%: $(BUILD)/test/%.o $(REF_OBJ) $(LIB)
	@mkdir -p $(@D)
	$(CC) $(CFLAGS) $^ -o $@ $(LDFLAGS) -lcmocka $(LDLIBS)

.PRECIOUS: $(BUILD)/%.o
.SECONDARY:

clean: ## remove everything that was built
	rm -rf build train_gpt2 train_gpt2cu train_gpt2sim data/prepare

help: ## this list
	@grep -hE '^[a-z][a-z0-9_/-]*:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([^:]*):.*## (.*)/  \1\t\2/' | expand -t 20

-include $(shell find build -name '*.d' 2>/dev/null)
