/* Each case misuses one pointer, after printing its address. */
#include "check.h"
#include "aborting.h"
#include <malloc.h>
#include <pthread.h>
#include <sys/mman.h>

static void *tell(void *p) {
    printf("%p\n", p);
    fflush(stdout);
    return opaque(p);
}

static void double_free_at_once(void) {
    void *p = malloc(100);
    tell(p);
    free(p);
    free(opaque(p));
}

/* So many objects come and go between the two frees that no cache still holds the first. */
static void double_free_late(void) {
    static void *all[50000];
    void *p = NULL;
    for (int i = 0; i < 50000; i++) all[i] = malloc(100);
    p = all[25000];
    tell(p);
    for (int i = 0; i < 50000; i++) free(all[i]);
    for (int i = 0; i < 2000; i++) all[i] = malloc(3000);
    for (int i = 0; i < 2000; i++) free(all[i]);
    free(opaque(p));
}

static void *free_it(void *p) {
    free(p);
    return NULL;
}

static void double_free_other_thread(void) {
    void *p = malloc(100);
    tell(p);
    pthread_t thread;
    pthread_create(&thread, NULL, free_it, p);
    pthread_join(thread, NULL);
    free(opaque(p));
}

/* The report must end the process, even in a thread that is being cancelled: that thread must not
   end there instead. */
static void *free_while_cancelled(void *p) {
    pthread_cancel(pthread_self());
    free(p);
    return NULL;
}

static void double_free_while_cancelled(void) {
    void *p = malloc(100);
    tell(p);
    free(p);
    pthread_t thread;
    pthread_create(&thread, NULL, free_while_cancelled, opaque(p));
    pthread_join(thread, NULL);
}

/* The mark that tells a double free at once is overwritten in between. The object's slab tells
   it. */
static void double_free_of_written(void) {
    static void *others[50000];
    char *p = malloc(100);
    for (int i = 0; i < 50000; i++) others[i] = malloc(100);
    tell(p);
    free(p);
    memset(opaque(p), 0, 100);
    free(opaque(p));
    broken_bytes = 100;
    for (int i = 0; i < 50000; i++) free(others[i]);
    malloc_trim(0);
}

static void double_free_large(void) {
    void *p = malloc(200000);
    tell(p);
    free(p);
    free(opaque(p));
}

static void double_free_huge(void) {
    void *p = malloc(100 << 20);
    tell(p);
    free(p);
    free(opaque(p));
}

static void interior_small(void) {
    char *p = malloc(1000);
    free(tell(p + 16));
}

static void interior_of_freed(void) {
    char *p = malloc(1000);
    free(p);
    free(tell(p + 16));
}

static void interior_large(void) {
    char *p = malloc(200000);
    free(tell(p + 8192));
}

static void interior_huge(void) {
    char *p = malloc(100 << 20);
    free(tell(p + (50 << 20)));
}

static void foreign_stack(void) {
    _Alignas(16) char object[64];
    free(tell(object));
}

static void foreign_static(void) {
    static _Alignas(16) char object[64];
    free(tell(object));
}

static void foreign_mapping(void) {
    char *p = mmap(NULL, 1 << 20, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    free(tell(p + 4096));
}

static void misaligned(void) {
    char *p = malloc(1000);
    free(tell(p + 1));
}

/* In the midst of free pages of the heap. */
static void never_allocated(void) {
    char *first = malloc(200000), *p = malloc(200000), *last = malloc(200000);
    tell(p + 8192);
    free(p);
    free(opaque(p + 8192));
    free(first), free(last);
}

/* In the heap's address space, far behind all that the heap has handed out. */
static void never_reached(void) {
    char *p = malloc(100);
    free(tell((char *)(((uintptr_t)p & ~(uintptr_t)0xfffff) + ((size_t)1 << 30))));
}

static void realloc_freed(void) {
    char *p = malloc(100);
    tell(p);
    free(p);
    opaque(realloc(opaque(p), 5000));
}

static void realloc_interior(void) {
    char *p = malloc(1000);
    opaque(realloc(tell(p + 16), 5000));
}

static void realloc_foreign(void) {
    static _Alignas(16) char object[64];
    opaque(realloc(tell(object), 5000));
}

static void usable_size_freed(void) {
    char *p = malloc(100);
    tell(p);
    free(p);
    printf("%zu\n", malloc_usable_size(opaque(p)));
}

static void usable_size_interior(void) {
    char *p = malloc(1000);
    printf("%zu\n", malloc_usable_size(tell(p + 16)));
}

/* Writes to a freed object; the damage is seen when the object's turn comes again. */
static void corrupted_free_list(void) {
    char *p = malloc(100);
    tell(p);
    free(p);
    memset(opaque(p), 0x41, 32);
    broken_bytes = 100;
    for (int i = 0; i < 10000; i++) opaque(malloc(100));
}

int main(int argc, char **argv) {
    static const struct test_case cases[] = {
        CASE(double_free_at_once), CASE(double_free_late), CASE(double_free_other_thread), CASE(double_free_while_cancelled),
        CASE(double_free_of_written), CASE(double_free_large), CASE(double_free_huge), CASE(interior_small), CASE(interior_of_freed),
        CASE(interior_large), CASE(interior_huge), CASE(foreign_stack), CASE(foreign_static),
        CASE(foreign_mapping), CASE(misaligned), CASE(never_allocated),
        CASE(never_reached), CASE(realloc_freed),
        CASE(realloc_interior), CASE(realloc_foreign), CASE(usable_size_freed),
        CASE(usable_size_interior), CASE(corrupted_free_list),
    };
    allocate_when_aborted();
    return run_case(cases, sizeof cases / sizeof *cases, argc, argv);
}
