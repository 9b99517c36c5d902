/* Does what programs do, on several threads and in a child, and prints its mappings at the end. */
#include "check.h"

#include <malloc.h>
#include <pthread.h>

enum { SLOTS = 4000, STEPS = 100000, THREADS = 4 };

/* Objects of all sizes, each allocated and freed in a different way. */
static void *work(void *seed) {
    static _Thread_local void *slots[SLOTS];
    uint64_t state = (uintptr_t)seed;
    for (int step = 0; step < STEPS; step++) {
        void **slot = &slots[next_random(&state) % SLOTS];
        size_t bytes = random_size(&state);
        switch (next_random(&state) % 8) {
        case 0:
            free(*slot);
            *slot = calloc(1, bytes);
            break;
        case 1:
            *slot = realloc(*slot, bytes + 1);
            break;
        case 2:
            free(*slot);
            CHECK(posix_memalign(slot, 64, bytes) == 0);
            break;
        default:
            free(*slot);
            *slot = malloc(bytes);
        }
        CHECK(*slot || bytes == 0);
        if (bytes) *(char *)*slot = 1;
    }
    for (int i = 0; i < SLOTS; i++) {
        CHECK(malloc_usable_size(slots[i]) > 0 || !slots[i]);
        free(slots[i]);
    }
    return NULL;
}

int main(void) {
    pthread_t threads[THREADS];
    for (uintptr_t i = 0; i < THREADS; i++) {
        CHECK(pthread_create(&threads[i], NULL, work, (void *)(i + 1)) == 0);
    }
    for (int i = 0; i < THREADS; i++) CHECK(pthread_join(threads[i], NULL) == 0);
    run_in_child(work, (void *)7);
    for (int i = 0; i < 3; i++) {
        char *huge = opaque(malloc(64 << 20));
        /* The block grows in place; if something lies behind it, it moves to a mapping of its
           own. */
        char *behind = i > 0 ? opaque(malloc(64 << 20)) : NULL;
        CHECK(huge && (behind || i == 0));
        huge[0] = 1;
        huge = realloc(huge, 128 << 20);
        CHECK(huge && huge[0] == 1);
        free(behind);
        free(huge);
    }
    malloc_trim(0);
    FILE *mappings = fopen("/proc/self/smaps", "r");
    CHECK(mappings);
    char line[4096 + 256];
    while (fgets(line, sizeof line, mappings)) fputs(line, stdout);
    return 0;
}
