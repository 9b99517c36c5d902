/* Does what small programs do, on two threads, and prints its mappings at the end. */
#include "check.h"

#include <pthread.h>
#include <sys/prctl.h>

enum { SLOTS = 300, STEPS = 20000 };

static void *work(void *seed) {
    static _Thread_local void *slots[SLOTS];
    uint64_t state = (uintptr_t)seed;
    for (int step = 0; step < STEPS; step++) {
        void **slot = &slots[next_random(&state) % SLOTS];
        size_t bytes = next_random(&state) % 700;
        if (next_random(&state) % 8 == 0) {
            *slot = realloc(*slot, bytes + 1);
        } else {
            free(*slot);
            *slot = malloc(bytes);
        }
        CHECK(*slot);
        *(char *)*slot = 1;
    }
    return NULL;
}

int main(void) {
    pthread_t thread;
    CHECK(prctl(PR_SET_NAME, "small", 0, 0, 0) == 0);
    CHECK(pthread_create(&thread, NULL, work, (void *)1) == 0);
    work((void *)2);
    CHECK(pthread_join(thread, NULL) == 0);
    FILE *mappings = fopen("/proc/self/smaps", "r");
    CHECK(mappings);
    char line[4096 + 256];
    while (fgets(line, sizeof line, mappings)) fputs(line, stdout);
    return 0;
}
