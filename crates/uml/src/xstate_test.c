/* Writes a part of another process's state, as user-mode Linux does where its buffer is too small for the processor.
 * Ends with 0 if that works, with 1 if the kernel refuses it, with 77 if this processor's state is no larger than the part, and
 * with 2, and a word, if anything else is wrong. */
#include <elf.h>
#include <errno.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ptrace.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

/* The part: the legacy area and the header. The upper halves of the vector registers lie behind it (Intel SDM, volume 1, 13.4). */
enum { XMM0 = 160, XSTATE_BV = 512, PART = 576, UPPER_YMM0 = 576, AVX = 1 << 2 };

static void need(int ok, const char *what) {
    if (!ok) {
        printf("%s (errno %d)\n", what, errno);
        exit(2);
    }
}

static struct iovec state(pid_t child, void *buffer, size_t len) {
    struct iovec part = { buffer, len };
    need(ptrace(PTRACE_GETREGSET, child, (void *)NT_X86_XSTATE, &part) == 0, "reading the state");
    return part;
}

int main(void) {
    static unsigned char before[1 << 16], after[1 << 16], part[PART];
    int status;
    pid_t child = fork();
    need(child >= 0, "fork");
    if (child == 0) {
        ptrace(PTRACE_TRACEME, 0, 0, 0);
        raise(SIGSTOP);
        static const uint64_t ones[4] = { -1, -1, -1, -1 };
        __asm__ volatile("vmovdqu %0, %%ymm0\n\tint3\n\tint3" : : "m"(ones) : "memory");
        _exit(0);
    }
    need(waitpid(child, &status, 0) == child && WIFSTOPPED(status), "the child stops");
    size_t size = state(child, before, sizeof before).iov_len;
    if (size <= PART)
        return 77;
    /* A part from before the upper halves were used: its XSTATE_BV does not speak of them. */
    need(state(child, part, PART).iov_len == PART, "reading a part");
    part[XSTATE_BV] &= ~AVX;
    memset(part + XMM0, 0x5a, 16);
    part[XSTATE_BV] |= 2;

    need(ptrace(PTRACE_CONT, child, 0, 0) == 0 && waitpid(child, &status, 0) == child, "the child goes on");
    need(WIFSTOPPED(status) && WSTOPSIG(status) == SIGTRAP, "the child uses its registers");
    state(child, before, sizeof before);
    need(before[UPPER_YMM0] == 0xff && before[XSTATE_BV] & AVX, "the upper halves are in use");
    struct iovec some = { part, PART };
    if (ptrace(PTRACE_SETREGSET, child, (void *)NT_X86_XSTATE, &some) != 0) {
        need(errno == EFAULT, "writing a part");
        return 1;
    }
    /* The child runs on, so that what is read is what its processor had. */
    need(ptrace(PTRACE_CONT, child, 0, 0) == 0 && waitpid(child, &status, 0) == child, "the child goes on again");
    need(state(child, after, sizeof after).iov_len == size, "reading the whole again");
    memset(before + XMM0, 0x5a, 16);
    need(memcmp(before + XMM0, after + XMM0, 256) == 0, "what was written is there");
    need(memcmp(before + PART, after + PART, size - PART) == 0, "what lies behind the part has not changed");
    need(after[XSTATE_BV] & AVX, "what lies behind the part is in use");

    /* A whole is written as it is. */
    memset(before + UPPER_YMM0, 0x77, 16);
    struct iovec all = { before, size };
    need(ptrace(PTRACE_SETREGSET, child, (void *)NT_X86_XSTATE, &all) == 0, "writing the whole");
    state(child, after, sizeof after);
    need(memcmp(before + PART, after + PART, size - PART) == 0, "the whole was written");
    kill(child, SIGKILL);
    /* Errors come through. */
    waitpid(child, &status, 0);
    need(ptrace(PTRACE_SETREGSET, child, (void *)NT_X86_XSTATE, &some) == -1 && errno == ESRCH, "a process that has ended");
    return 0;
}
