/* Each case misuses one guarded object after printing its address; `sound` misuses none. */
#include "check.h"
#include <malloc.h>
#include <pthread.h>
#include <signal.h>
#include <sys/wait.h>

__attribute__((noinline, section("in_allocate"))) static char *allocate(size_t bytes) {
    char *object = malloc(bytes);
    printf("%p\n", (void *)object);
    fflush(stdout);
    return opaque(object);
}

__attribute__((noinline, section("in_release"))) static void release(char *object) {
    free(object);
    opaque(object);
}

static volatile char sink;

static void overflow_read(void) { sink = allocate(64)[64]; }

static void overflow_write(void) {
    char *object = allocate(1000);
    for (int i = 0; i < 2000; i++) ((char *)opaque(object))[i] = 1;
}

static void underflow(void) { sink = allocate(4096)[-1]; }

/* Too near to fault: found when the object is freed. */
static void overflow_by_one(void) {
    char *object = allocate(100);
    ((char *)opaque(object))[100] = 1;
    release(object);
}

static void underflow_by_one(void) {
    char *object = allocate(100);
    ((char *)opaque(object))[-1] = 1;
    release(object);
}

static void use_after_free(void) {
    char *object = allocate(100);
    release(object);
    sink = ((char *)opaque(object))[12];
}

static void *write_there(void *object) {
    *(char *)object = 1;
    return NULL;
}

static void use_after_free_by_thread(void) {
    char *object = allocate(100);
    release(object);
    pthread_t thread;
    pthread_create(&thread, NULL, write_there, object);
    pthread_join(thread, NULL);
}

static void double_free(void) {
    char *object = allocate(100);
    release(object);
    release(opaque(object));
}

static void interior(void) { free(opaque(allocate(100) + 16)); }

static void realloc_freed(void) {
    char *object = allocate(100);
    release(object);
    opaque(realloc(opaque(object), 200));
}

static void usable_size_freed(void) {
    char *object = allocate(100);
    release(object);
    printf("%zu\n", malloc_usable_size(opaque(object)));
}

/* A fault that has nothing to do with a guarded object ends the program as ever. */
static void other_fault(void) {
    allocate(100);
    *(volatile char *)8 = 1;
}

static volatile sig_atomic_t faults;

static void on_fault(int number) {
    (void)number;
    faults++;
    _exit(7);
}

/* A program's own handler has its way. */
static void own_handler(void) {
    signal(SIGSEGV, on_fault);
    sink = allocate(64)[64];
}

static void *churn(void *seed) {
    enum { SLOTS = 300 };
    unsigned char *slots[SLOTS] = {0};
    size_t sizes[SLOTS] = {0};
    uint64_t random = (uintptr_t)seed + 3;
    for (int i = 0; i < 40000; i++) {
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

static void sound(void) {
    pthread_t threads[4];
    for (uintptr_t i = 0; i < 4; i++) pthread_create(&threads[i], NULL, churn, (void *)i);
    churn((void *)9);
    for (int i = 0; i < 10; i++) {
        pid_t child = fork();
        if (child == 0) {
            alarm(20);
            churn((void *)(uintptr_t)i);
            _exit(0);
        }
        int status = 0;
        CHECK(waitpid(child, &status, 0) == child && status == 0, "%#x", status);
    }
    for (int i = 0; i < 4; i++) pthread_join(threads[i], NULL);
}

int main(int argc, char **argv) {
    static const struct test_case cases[] = {
        CASE(overflow_read), CASE(overflow_write), CASE(underflow), CASE(overflow_by_one),
        CASE(underflow_by_one), CASE(use_after_free), CASE(use_after_free_by_thread),
        CASE(double_free), CASE(interior), CASE(realloc_freed), CASE(usable_size_freed),
        CASE(other_fault), CASE(own_handler), CASE(sound),
    };
    return run_case(cases, sizeof cases / sizeof *cases, argc, argv);
}
