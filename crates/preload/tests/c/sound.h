/* A program that misuses nothing, for the fronts that look for misuse. It needs check.h before
   it. */

#include <malloc.h>
#include <pthread.h>
#include <sys/wait.h>

static int churn_steps;

static void *churn(void *seed) {
    enum { SLOTS = 300 };
    unsigned char *slots[SLOTS] = {0};
    size_t sizes[SLOTS] = {0};
    uint64_t random = (uintptr_t)seed + 3;
    for (int i = 0; i < churn_steps; i++) {
        int slot = next_random(&random) % SLOTS;
        size_t bytes = random_size(&random) + 1;
        if (slots[slot]) CHECK(slots[slot][0] == slot % 251 && slots[slot][sizes[slot] - 1] == slot % 251);
        switch (i % 4) {
        case 0: slots[slot] = realloc(slots[slot], bytes); break;
        case 1: free(slots[slot]); slots[slot] = malloc(bytes); break;
        case 2:
            free(slots[slot]);
            CHECK(posix_memalign((void **)&slots[slot], 16 << i % 9, bytes) == 0);
            CHECK((uintptr_t)slots[slot] % (16 << i % 9) == 0);
            break;
        default:
            free(slots[slot]);
            slots[slot] = calloc(1, bytes);
            for (size_t at = 0; at < bytes; at += 61) CHECK(slots[slot][at] == 0);
        }
        CHECK(slots[slot] && (uintptr_t)slots[slot] % 16 == 0 && malloc_usable_size(slots[slot]) >= bytes);
        slots[slot][0] = slots[slot][bytes - 1] = slot % 251;
        sizes[slot] = bytes;
    }
    for (int i = 0; i < SLOTS; i++) free(slots[i]);
    return NULL;
}

/* Four threads and this one churn for `steps` steps each, while `children` children do the same. */
static void run_soundly(int steps, int children) {
    churn_steps = steps;
    pthread_t threads[4];
    for (uintptr_t i = 0; i < 4; i++) pthread_create(&threads[i], NULL, churn, (void *)i);
    churn((void *)9);
    for (int i = 0; i < children; i++) {
        run_in_child(churn, (void *)(uintptr_t)i);
    }
    for (int i = 0; i < 4; i++) pthread_join(threads[i], NULL);
}
