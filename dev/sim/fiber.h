// A fiber: a stack on which CUDA threads run, and the switch from one to another. Internal to the
// simulator. x86-64 switches in ten instructions (2 ns); other processors, and SIM_UCONTEXT, take
// swapcontext, which makes a system call.
#pragma once
#include "dev/sim/sanitizers.h"
#include <stddef.h>
#include <stdint.h>
#if !defined(__x86_64__) && !defined(SIM_UCONTEXT)
#define SIM_UCONTEXT
#endif
#ifdef SIM_UCONTEXT
#include <ucontext.h>
#endif

namespace sim {
struct Fiber {
    void *stack_pointer = nullptr; // while it does not run
    char *stack = nullptr;         // lowest address
    size_t stack_bytes = 0;
    void *fake_stack = nullptr; // AddressSanitizer's
#ifdef SIM_UCONTEXT
    ucontext_t context;
#endif
};

// Makes `entry` the function that runs when the fiber is switched to for the first time. It must
// not return. `offset`: bytes to leave free at the top. Stacks a power of two apart would share the
// same few cache sets.
inline void fiber_prepare(Fiber *fiber, void (*entry)(), size_t offset) {
#ifndef SIM_UCONTEXT
    uintptr_t *top =
        (uintptr_t *)(((uintptr_t)fiber->stack + fiber->stack_bytes - offset) & ~(uintptr_t)63);
    *--top = 0; // the return address of entry: where backtraces end
    *--top = (uintptr_t)entry;
    fiber->stack_pointer = top;
#else
    getcontext(&fiber->context);
    fiber->context.uc_stack.ss_sp = fiber->stack;
    fiber->context.uc_stack.ss_size = fiber->stack_bytes - offset;
    fiber->context.uc_link = nullptr;
    makecontext(&fiber->context, entry, 0);
#endif
}

// AddressSanitizer must be told on both sides of a switch. A fiber that starts calls fiber_started
// first.
inline void fiber_started(Fiber *fiber) {
    (void)fiber;
#ifdef SIM_ASAN
    __sanitizer_finish_switch_fiber(fiber ? fiber->fake_stack : nullptr, nullptr, nullptr);
#endif
}

// Leaves `from`, goes on in `to`; returns when somebody switches back. All registers are named as
// destroyed, so the compiler saves exactly those that it needs. 128: the red zone below the stack
// pointer.
static inline __attribute__((always_inline)) void fiber_switch(Fiber *from, Fiber *to) {
#ifdef SIM_ASAN
    __sanitizer_start_switch_fiber(&from->fake_stack, to->stack, to->stack_bytes);
#endif

#ifndef SIM_UCONTEXT
    void **save = &from->stack_pointer, *target = to->stack_pointer;
    asm volatile("leaq -128(%%rsp), %%rsp\n\t"
                 "pushq %%rbp\n\t"
                 "leaq 1f(%%rip), %%rax\n\t"
                 "pushq %%rax\n\t"
                 "movq %%rsp, (%0)\n\t"
                 "movq %1, %%rsp\n\t"
                 "popq %%rax\n\t"
                 "jmp *%%rax\n"
                 "1:\t"
                 "popq %%rbp\n\t"
                 "leaq 128(%%rsp), %%rsp\n\t"
                 : "+D"(save), "+S"(target)
                 :
                 : "rax", "rbx", "rcx", "rdx", "r8", "r9", "r10", "r11", "r12", "r13", "r14", "r15",
                   "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", "xmm9",
                   "xmm10", "xmm11", "xmm12", "xmm13", "xmm14", "xmm15", "memory", "cc");
#else
    swapcontext(&from->context, &to->context);
#endif

    fiber_started(from);
}
} // namespace sim
