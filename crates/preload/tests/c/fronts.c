/* Threads that use the lists of their CPUs: in trouble, and in great number. */
#include "check.h"
#include <malloc.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/resource.h>
#include <sys/time.h>

enum { SLOTS = 256, MOST_THREADS = 20000 };

/* Objects that change hands. The first word of each says how many bytes it has, and so does the
   last. */
static _Atomic(size_t *) slots[SLOTS];

static void on_signal(int number) { (void)number; }

/* Makes signals interrupt the threads, wherever they are. */
static void interrupt_often(void) {
    signal(SIGPROF, on_signal);
    struct itimerval often = {{0, 100}, {0, 100}};
    setitimer(ITIMER_PROF, &often, NULL);
}

static void hop(uint64_t random, const cpu_set_t *allowed) {
    int cpu = random % CPU_SETSIZE;
    while (!CPU_ISSET(cpu, allowed)) cpu = (cpu + 1) % CPU_SETSIZE;
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(cpu, &one);
    sched_setaffinity(0, sizeof one, &one);
}

static size_t *make(uint64_t *random) {
    size_t words = next_random(random) % 60 + 2;
    size_t *object = malloc(words * sizeof *object);
    CHECK(object);
    object[0] = object[words - 1] = words;
    return object;
}

static void check_and_free(size_t *object) {
    if (!object) return;
    CHECK(object[0] < 62 && object[object[0] - 1] == object[0], "an object of two owners");
    free(object);
}

static void *exchange(void *seed) {
    uint64_t random = (uintptr_t)seed * 0x9e3779b97f4a7c15ull + 1;
    cpu_set_t allowed;
    sched_getaffinity(0, sizeof allowed, &allowed);
    for (int i = 0; i < 40000; i++) {
        check_and_free(atomic_exchange(&slots[next_random(&random) % SLOTS], make(&random)));
        for (int j = 0; j < 4; j++) free(opaque(malloc(24)));
        if (i % 500 == 0) hop(next_random(&random), &allowed);
    }
    return NULL;
}

static pthread_t threads[MOST_THREADS];

static void start(int count, void *(*work)(void *)) {
    pthread_attr_t attributes;
    pthread_attr_init(&attributes);
    pthread_attr_setstacksize(&attributes, 128 << 10);
    for (uintptr_t i = 0; i < (uintptr_t)count; i++)
        CHECK(pthread_create(&threads[i], &attributes, work, (void *)i) == 0);
}

static void join(int count) {
    for (int i = 0; i < count; i++) pthread_join(threads[i], NULL);
}

static void trouble(void) {
    interrupt_often();
    start(16, exchange);
    join(16);
    for (int i = 0; i < SLOTS; i++) check_and_free(slots[i]);
    struct rusage usage;
    getrusage(RUSAGE_SELF, &usage);
    printf("%ld preemptions\n", usage.ru_nivcsw);
}

static pthread_barrier_t begin, here, gone;
static pthread_mutex_t turn = PTHREAD_MUTEX_INITIALIZER;

static void *fall_idle(void *seed) {
    uint64_t random = (uintptr_t)seed * 0x9e3779b97f4a7c15ull + 1;
    void *objects[700];
    /* All exist at once, but run one at a time, so there is never much in use. */
    pthread_barrier_wait(&begin);
    pthread_mutex_lock(&turn);
    for (int i = 0; i < 700; i++) objects[i] = memset(malloc(256), 1, next_random(&random) % 240 + 16);
    for (int i = 0; i < 700; i++) free(objects[i]);
    pthread_mutex_unlock(&turn);
    pthread_barrier_wait(&here);
    pthread_barrier_wait(&gone);
    return NULL;
}

/* Starts threads that use some 180 KB each and then wait until they are let go. */
static void gather(int count) {
    pthread_barrier_init(&begin, NULL, count);
    pthread_barrier_init(&here, NULL, count + 1);
    pthread_barrier_init(&gone, NULL, count + 1);
    start(count, fall_idle);
    pthread_barrier_wait(&here);
}

static void let_go(int count) {
    pthread_barrier_wait(&gone);
    join(count);
}

/* Prints how many KiB 200 such threads keep. */
static void idle(void) {
    size_t before = resident_bytes();
    gather(200);
    printf("%ld\n", ((long)resident_bytes() - (long)before) / 1024);
    let_go(200);
}

/* More threads than have caches of their own. */
static void crowd(void) {
    cpu_set_t allowed;
    sched_getaffinity(0, sizeof allowed, &allowed);
    int cpus = CPU_COUNT(&allowed);
    printf("CPUs %d\n", cpus);
    int count = 16 * cpus + 50;
    gather(count);
    malloc_stats();
    let_go(count);
}

int main(int argc, char **argv) {
    static const struct test_case cases[] = {CASE(trouble), CASE(idle), CASE(crowd)};
    return run_case(cases, sizeof cases / sizeof *cases, argc, argv);
}
