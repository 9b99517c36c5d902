/* Calls that an unwinder must find its way through. Each allocates at its end, and there prints the
   return addresses of its callers as glibc's backtrace() sees them: one line for each call,
   innermost first. */
#include "check.h"
#include <alloca.h>
#include <execinfo.h>
#include <pthread.h>
#include <signal.h>

#define NEVER_INLINE __attribute__((noinline, noclone))

static void *kept[64];
static int kept_count;
/* What a signal's handler returns to. Its caller called nothing. */
static void *trampoline;

NEVER_INLINE static void allocate(const char *how) {
    void *frames[64];
    int count = backtrace(frames, 64);
    kept[kept_count++] = opaque(malloc(100));
    printf("%s", how);
    /* The first address is in this very function, at another place. */
    for (int i = 1; i < count; i++) {
        int is_interrupted = frames[i - 1] == trampoline;
        /* Printed one byte further, as return addresses are. */
        printf(" %p", (void *)((char *)frames[i] + is_interrupted));
    }
    printf("\n");
}

NEVER_INLINE static int recursion(int depth, const char *how) {
    if (depth == 0) {
        allocate(how);
        return 1;
    }
    return depth + recursion(depth - 1, how);
}

/* The stack pointer moves by an amount that only the frame pointer knows. */
NEVER_INLINE static int moving_stack(int bytes) {
    char *room = opaque(alloca((size_t)bytes));
    room[0] = 1;
    recursion(3, "alloca");
    return room[0];
}

/* The frame is aligned beyond what a caller promises, so an expression gives its place. */
NEVER_INLINE static int realigned(int bytes) {
    char aligned[256] __attribute__((aligned(128)));
    char *room = opaque(alloca((size_t)bytes));
    CHECK((uintptr_t)opaque(aligned) % 128 == 0);
    room[0] = 1;
    recursion(2, "realigned");
    return room[0];
}

/* In the part that `apart.ld` moves. */
__attribute__((section(".between"))) static int compare(const void *a, const void *b) {
    if (kept_count < 8) recursion(1, "qsort");
    return *(const int *)a - *(const int *)b;
}

static void on_signal(int number) {
    (void)number;
    trampoline = __builtin_return_address(0);
    recursion(2, "signal");
}

NEVER_INLINE static void signalled(int flags) {
    static char stack[1 << 16];
    stack_t other = {.ss_sp = stack, .ss_size = sizeof stack};
    CHECK(sigaltstack(&other, NULL) == 0);
    struct sigaction action = {.sa_handler = on_signal, .sa_flags = flags};
    CHECK(sigaction(SIGUSR1, &action, NULL) == 0);
    CHECK(raise(SIGUSR1) == 0);
}

static void *thread(void *argument) {
    recursion(4, "thread");
    return argument;
}

int main(void) {
    void *first[4];
    /* This loads what backtrace needs. */
    CHECK(backtrace(first, 4) > 0);
    recursion(20, "recursion");
    moving_stack(1000);
    realigned(500);
    int numbers[] = {3, 1, 2, 5, 4};
    qsort(numbers, 5, sizeof *numbers, compare);
    signalled(0);
    signalled(SA_ONSTACK);
    pthread_t other;
    CHECK(pthread_create(&other, NULL, thread, NULL) == 0 && pthread_join(other, NULL) == 0);
    return 0;
}
