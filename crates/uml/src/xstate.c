/* Lets user-mode Linux run on processors whose state is larger than its buffers. Preloaded into linux.uml.
 *
 * Up to Linux 6.1 it keeps the vector registers of a guest's process in 2696 bytes, enough for AVX-512. With AMX a process has
 * 11008 bytes, and PTRACE_SETREGSET takes all of them or none (EFAULT; arch/x86/kernel/fpu/regset.c, xstateregs_set): the guest
 * panics with "ptrace set fp regs failed, errno = 14". Here a part is written over the whole that the process has. */
#define _GNU_SOURCE
#include <cpuid.h>
#include <dlfcn.h>
#include <elf.h>
#include <stdint.h>
#include <string.h>
#include <sys/ptrace.h>
#include <sys/types.h>
#include <sys/uio.h>

/* Where XSTATE_BV is in a state: a bit for each component that is not as the processor initialises it
 * (Intel SDM, volume 1, section 13.4.2). The components from number 2 on are where CPUID's leaf 13 says. */
enum { XSTATE_BV = 512, XSTATE_HEADER = 576, FIRST_EXTENDED = 2, COMPONENTS = 63 };

/* The components that do not lie within the first `len` bytes. Computed once for a length: a hypervisor answers each CPUID, which
 * takes it tens of microseconds, and the guest's kernel comes here for each system call. */
static uint64_t beyond(size_t len) {
    static size_t known_len;
    static uint64_t mask;
    if (len == known_len)
        return mask;
    known_len = len;
    mask = 0;
    for (unsigned i = FIRST_EXTENDED; i < COMPONENTS; i++) {
        unsigned size, offset, ecx, edx;
        if (__get_cpuid_count(13, i, &size, &offset, &ecx, &edx) && size && offset + (size_t)size > len)
            mask |= (uint64_t)1 << i;
    }
    return mask;
}

/* Writes the first `len` bytes of a state over a whole one. Components that are not among them stay as they are in the whole,
 * and so must their bits. */
static void merge(char *whole, const char *part, size_t len) {
    uint64_t kept, written, mask;
    memcpy(&kept, whole + XSTATE_BV, sizeof kept);
    memcpy(whole, part, len);
    if (len < XSTATE_HEADER)
        return;
    memcpy(&written, part + XSTATE_BV, sizeof written);
    mask = beyond(len);
    written = (written & ~mask) | (kept & mask);
    memcpy(whole + XSTATE_BV, &written, sizeof written);
}

long ptrace(enum __ptrace_request request, ...) {
    static long (*next)(enum __ptrace_request, pid_t, void *, void *);
    /* Not on the stack: a kernel's is small. One for all: user-mode Linux traces from one thread. */
    static char whole[1 << 16];
    __builtin_va_list args;
    __builtin_va_start(args, request);
    pid_t pid = __builtin_va_arg(args, pid_t);
    void *addr = __builtin_va_arg(args, void *), *data = __builtin_va_arg(args, void *);
    __builtin_va_end(args);

    if (!next)
        next = (long (*)(enum __ptrace_request, pid_t, void *, void *))dlsym(RTLD_NEXT, "ptrace");
    if (request == PTRACE_SETREGSET && (uintptr_t)addr == NT_X86_XSTATE) {
        const struct iovec *part = data;
        struct iovec all = { whole, sizeof whole };
        long got = next(PTRACE_GETREGSET, pid, addr, &all);
        if (got != 0)
            return got;
        if (part->iov_len < all.iov_len) {
            merge(whole, part->iov_base, part->iov_len);
            return next(request, pid, addr, &all);
        }
    }
    return next(request, pid, addr, data);
}
