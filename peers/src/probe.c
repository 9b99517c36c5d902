/* Prints, for each name of the malloc family, the library that serves it; then allocates, passes
   and frees on several threads and checks contents and alignment. Exit code 0 means unharmed. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <malloc.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SLOTS 512
static void *_Atomic slots[SLOTS];

static void fail(const char *what) {
    fprintf(stderr, "probe: %s\n", what);
    exit(1);
}

static void *churn(void *seed) {
    uint64_t state = (uintptr_t)seed * 0x9e3779b97f4a7c15u + 1;
    for (int i = 0; i < 200000; i++) {
        state = state * 6364136223846793005u + 1442695040888963407u;
        size_t size = 16 + (state >> 33) % ((i % 1000) ? 1000 : 300000);
        unsigned char *mine = i % 7 ? malloc(size) : aligned_alloc(64, (size + 63) & ~(size_t)63);
        if (!mine || (uintptr_t)mine % 16) fail("no memory or misaligned");
        if (malloc_usable_size(mine) < size) fail("usable size below the request");
        if (i % 11 == 0 && !(mine = realloc(mine, size *= 2))) fail("realloc");
        memcpy(mine, &size, sizeof size);
        mine[size - 1] = (unsigned char)size;
        unsigned char *other = atomic_exchange(&slots[(state >> 20) % SLOTS], mine);
        if (other) {
            size_t was;
            memcpy(&was, other, sizeof was);
            if (other[was - 1] != (unsigned char)was) fail("contents changed");
            free(other);
        }
    }
    return NULL;
}

int main(void) {
    static const char *names[] = {"malloc", "calloc", "realloc", "free", "aligned_alloc",
        "memalign", "posix_memalign", "valloc", "malloc_usable_size"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        Dl_info info;
        void *address = dlsym(RTLD_DEFAULT, names[i]);
        if (!address || !dladdr(address, &info)) fail(names[i]);
        printf("%s %s\n", names[i], info.dli_fname);
    }
    /* Threads that die and leave their objects to others. */
    for (uintptr_t round = 0; round < 3; round++) {
        pthread_t threads[8];
        for (uintptr_t i = 0; i < 8; i++)
            if (pthread_create(&threads[i], NULL, churn, (void *)(round * 8 + i + 1))) fail("thread");
        for (int i = 0; i < 8; i++) pthread_join(threads[i], NULL);
    }
    for (int i = 0; i < SLOTS; i++) free(slots[i]);
    return 0;
}
