/* Programs that load libraries while they run. */
#include "check.h"
#include <dlfcn.h>
#include <pthread.h>

static const char *path;

static void *use_library(void *argument) {
    (void)argument;
    for (int i = 0; i < 50; i++) {
        void *library = dlopen(path, RTLD_NOW);
        CHECK(library, "%s", dlerror());
        void (*work)(void) = (void (*)(void))dlsym(library, "guest_work");
        CHECK(work);
        work();
        dlclose(library);
        CHECK(!dlopen("/no/such/library.so", RTLD_NOW));
        CHECK(strlen(dlerror()) > 0);
    }
    return NULL;
}

/* Loads and unloads a library that allocates: on one thread, then on several at once. */
static void cycle(void) {
    use_library(NULL);
    pthread_t threads[4];
    for (int i = 0; i < 4; i++) pthread_create(&threads[i], NULL, use_library, NULL);
    for (int i = 0; i < 4; i++) pthread_join(threads[i], NULL);
}

/* A library that would find the C library's functions before ours. It is looked for where the
   program's own RUNPATH says. */
static void deep(void) {
    void *library = dlopen(path, RTLD_NOW | RTLD_DEEPBIND);
    CHECK(library, "%s", dlerror());
    void *(*exchange)(void *) = (void *(*)(void *))dlsym(library, "guest_exchange");
    CHECK(exchange);
    for (size_t bytes = 1; bytes < 5000000; bytes = bytes * 3 + 1) {
        void *given = malloc(bytes);
        CHECK(given);
        void *got = exchange(given);
        CHECK(got);
        free(got);
    }
    dlclose(library);
}

/* A C++ library whose names the program does not get to see, nor the names of the libraries that it
   needs. */
static void plugin(void) {
    void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    CHECK(library, "%s", dlerror());
    int (*runs_out)(void) = (int (*)(void))dlsym(library, "plugin_runs_out");
    CHECK(runs_out);
    CHECK(runs_out() == 0);
    dlclose(library);
}

static int (*guest_keys)(int);

static void *use_keys(void *count) {
    free(malloc(100));
    int had = guest_keys((int)(uintptr_t)count);
    CHECK(had == 0 || (uintptr_t)count == 23, "%d keys have a value that is not their library's", had);
    free(malloc(100));
    return NULL;
}

/* A library in a namespace of its own, whose C library also numbers its thread keys from 0 on.
   Threads end well, even if it has so many keys that a value of ours is overwritten. */
static void apart(void) {
    void *library = dlmopen(LM_ID_NEWLM, path, RTLD_NOW);
    CHECK(library, "%s", dlerror());
    guest_keys = (int (*)(int))dlsym(library, "guest_keys");
    CHECK(guest_keys);
    /* They make 32 in all: the values of further keys would lie in memory that one C library takes
       from its own heap, and the other frees. */
    static const uintptr_t counts[] = {1, 8, 23};
    for (int i = 0; i < 3; i++) {
        pthread_t thread;
        CHECK(pthread_create(&thread, NULL, use_keys, (void *)counts[i]) == 0);
        pthread_join(thread, NULL);
    }
}

static void *(*borrowed_malloc)(size_t);
static void (*borrowed_free)(void *);

static void *use_borrowed(void *argument) {
    for (size_t n = 1; n < 50000000; n = n * 2 + 1) {
        char *p = borrowed_malloc(n);
        CHECK(p);
        p[0] = p[n - 1] = 1;
        borrowed_free(p);
    }
    return argument;
}

/* Uses an allocator that is loaded into a running program, beside the program's own. */
static void borrow(void) {
    void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    CHECK(library, "%s", dlerror());
    borrowed_malloc = (void *(*)(size_t))dlsym(library, "malloc");
    borrowed_free = (void (*)(void *))dlsym(library, "free");
    CHECK(borrowed_malloc && borrowed_malloc != malloc);
    pthread_t threads[4];
    for (int i = 0; i < 4; i++) pthread_create(&threads[i], NULL, use_borrowed, NULL);
    use_borrowed(NULL);
    for (int i = 0; i < 4; i++) pthread_join(threads[i], NULL);
    char *p = borrowed_malloc(100);
    strcpy(p, "kept");
    dlclose(library);
    /* The library is never unloaded: its objects are still in use, and so is its thread key. */
    CHECK(strcmp(p, "kept") == 0);
    borrowed_free(p);
}

int main(int argc, char **argv) {
    static const struct test_case cases[] = {CASE(cycle), CASE(deep), CASE(plugin), CASE(apart), CASE(borrow)};
    CHECK(argc > 2);
    path = argv[2];
    return run_case(cases, sizeof cases / sizeof *cases, argc, argv);
}
