/* A handler of the signal by which a misuse ends the program. It allocates, as handlers do that
   report crashes: by then no lock of the heap may be held. */
#include <signal.h>

/* Objects of this many bytes must not be asked for, since one is broken; 0 if none is. */
static size_t broken_bytes;

static void allocate(int signal) {
    static void *all[2048];
    (void)signal;
    alarm(10);
    for (size_t bytes = 8; bytes <= 100 << 20; bytes += bytes / 8 + 8) {
        if (broken_bytes > bytes - bytes / 4 && broken_bytes < bytes + bytes / 4) continue;
        int count = bytes <= 1000 ? 2048 : bytes <= 100000 ? 32 : 1;
        for (int i = 0; i < count; i++) all[i] = opaque(malloc(bytes));
        for (int i = 0; i < count; i++) free(all[i]);
    }
    alarm(0);
}

static inline void allocate_when_aborted(void) { signal(SIGABRT, allocate); }
