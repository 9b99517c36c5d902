/* Threads whose end the C library cannot report, since it has no memory for a key's value; and
   forks that it cannot report at first. (Linked so that libraries call the functions of this
   program.) */
#include "check.h"
#include <dlfcn.h>
#include <malloc.h>
#include <pthread.h>

static volatile int refuses, refused;

int pthread_setspecific(pthread_key_t key, const void *value) {
    static int (*set)(pthread_key_t, const void *);
    if (refuses && value) {
        refused++;
        errno = ENOMEM;
        return ENOMEM;
    }
    if (!set) set = (int (*)(pthread_key_t, const void *))dlsym(RTLD_NEXT, "pthread_setspecific");
    return set(key, value);
}

/* Set until main begins. */
static volatile int refuses_handlers = 1;
static int handlers_refused, handlers_entered;

/* What pthread_atfork calls. */
int __register_atfork(void (*prepare)(void), void (*parent)(void), void (*child)(void), void *library) {
    typedef int enter(void (*)(void), void (*)(void), void (*)(void), void *);
    if (refuses_handlers) {
        handlers_refused++;
        return ENOMEM;
    }
    handlers_entered++;
    return ((enter *)dlsym(RTLD_NEXT, "__register_atfork"))(prepare, parent, child, library);
}

/* Makes small objects, and runs of one length, as often as a thread must ask for them before it
   keeps runs. */
static void churn(void) {
    enum { COUNT = 24 };
    void *small[COUNT], *runs[COUNT];
    for (int round = 0; round < 100; round++) {
        for (int i = 0; i < COUNT; i++) {
            small[i] = opaque(malloc(16 << i % 8));
            runs[i] = opaque(malloc(70000));
            CHECK(small[i] && runs[i]);
        }
        for (int i = 0; i < COUNT; i++) {
            free(small[i]);
            free(runs[i]);
        }
    }
}

static size_t in_use(void) {
    struct mallinfo2 info = mallinfo2();
    return info.uordblks + info.hblkhd;
}

/* The memory that caches themselves take. */
static size_t metadata(void) {
    static char text[60000];
    FILE *stream = fmemopen(text, sizeof text, "w");
    CHECK(malloc_info(0, stream) == 0);
    fclose(stream);
    const char *at = strstr(text, "<system type=\"metadata\" size=\"");
    CHECK(at, "%s", text);
    return strtoull(at + strlen("<system type=\"metadata\" size=\""), NULL, 10);
}

/* How many threads have a cache of their own. */
static int caches(void) {
    FILE *text = tmpfile();
    int saved = dup(STDERR_FILENO), count = -1;
    dup2(fileno(text), STDERR_FILENO);
    malloc_stats();
    dup2(saved, STDERR_FILENO);
    close(saved);
    rewind(text);
    for (char line[200]; fgets(line, sizeof line, text);)
        sscanf(line, "hectare: threads with caches of their own %d", &count);
    fclose(text);
    return count;
}

static void *brief(void *object) {
    errno = 77;
    free(object);
    CHECK(errno == 77, "%d", errno);
    churn();
    return NULL;
}

static void join_new(void *(*run)(void *), void *argument) {
    pthread_t thread;
    CHECK(pthread_create(&thread, NULL, run, argument) == 0);
    CHECK(pthread_join(thread, NULL) == 0);
}

static void nothing_is_lost(void) {
    for (int i = 0; i < 3; i++) join_new(brief, malloc(100));
    size_t before = in_use(), of_caches = metadata();
    int had = caches();
    refuses = 1;
    for (int i = 0; i < 100; i++) join_new(brief, malloc(100));
    refuses = 0;
    CHECK(refused >= 100, "%d", refused);
    CHECK(in_use() < before + 100000, "%zu more", in_use() - before);
    CHECK(metadata() < of_caches + 100000, "%zu more", metadata() - of_caches);
    CHECK(caches() == had, "%d, not %d", caches(), had);
}

static void *begin_refused(void *unused) {
    int had = caches();
    refuses = 1;
    churn();
    CHECK(caches() == had, "%d, not %d", caches(), had);
    refuses = 0;
    churn();
    CHECK(caches() == had + 1, "%d after %d", caches(), had);
    return unused;
}

/* A thread is refused once, but not for good. */
static void asked_again(void) {
    churn();
    int had = caches();
    refuses = 1;
    join_new(begin_refused, NULL);
    CHECK(refused > 0 && caches() == had, "%d, not %d", caches(), had);
}

static volatile int ends;

static void *churn_on(void *unused) {
    while (!ends) churn();
    return unused;
}

static void *churn_once(void *unused) {
    churn();
    return unused;
}

/* No thread has a cache before fork handlers are registered. */
static void forks_are_seen_to_later(void) {
    refuses_handlers = 1;
    churn();
    CHECK(handlers_refused > 1 && caches() == 0, "%d, %d", handlers_refused, caches());
    refuses_handlers = 0;
    churn();
    CHECK(handlers_entered == 1 && caches() == 1, "%d, %d", handlers_entered, caches());
    pthread_t thread;
    CHECK(pthread_create(&thread, NULL, churn_on, NULL) == 0);
    for (int i = 0; i < 100; i++) run_in_child(churn_once, NULL);
    ends = 1;
    CHECK(pthread_join(thread, NULL) == 0);
}

int main(int argc, char **argv) {
    static const struct test_case cases[] = {
        CASE(nothing_is_lost), CASE(asked_again), CASE(forks_are_seen_to_later)};
    refuses_handlers = 0;
    return run_case(cases, sizeof cases / sizeof *cases, argc, argv);
}
