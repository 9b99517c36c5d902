/* Allocation before main, after main, in forked children, under signals. */
#include "check.h"
#include <dlfcn.h>
#include <limits.h>
#include <fcntl.h>
#include <malloc.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <spawn.h>
#include <stdatomic.h>
#include <sys/resource.h>
#include <sys/time.h>
#include <sys/wait.h>

extern char **environ;

/* Objects of all sizes come and go. Each is checked to be still what it was. */
static void churn(uint64_t seed, int count) {
    enum { SLOTS = 64 };
    unsigned char *slots[SLOTS] = {0};
    size_t sizes[SLOTS] = {0};
    uint64_t random = seed * 0x9e3779b97f4a7c15ull + 1;
    for (int i = 0; i < count; i++) {
        int slot = next_random(&random) % SLOTS;
        if (slots[slot]) {
            CHECK(slots[slot][0] == slot && slots[slot][sizes[slot] - 1] == slot);
            free(slots[slot]);
        }
        sizes[slot] = random_size(&random) % 400000 + 1;
        slots[slot] = malloc(sizes[slot]);
        CHECK(slots[slot]);
        slots[slot][0] = slots[slot][sizes[slot] - 1] = slot;
    }
    for (int i = 0; i < SLOTS; i++) free(slots[i]);
}

/* Waits for a child, which must have found nothing wrong. The alarm finds a deadlock. */
static void reap(pid_t child) {
    int status = 0;
    CHECK(child > 0);
    CHECK(waitpid(child, &status, 0) == child);
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0, "the child's status is %#x", status);
}

static void *early, *early_handle;

static void before_all(void) {
    early = malloc(1000);
    if (early) memset(early, 7, 1000);
    free(malloc(100000));
    early_handle = dlopen(NULL, RTLD_NOW);
}

/* Runs before every constructor of every library. */
__attribute__((section(".preinit_array"), used)) static void (*preinit)(void) = before_all;

static void preinit_allocates(void) {
    CHECK(early && ((char *)early)[999] == 7);
    CHECK(early_handle && dlsym(early_handle, "malloc") == malloc);
    free(early);
}

static void *constructed;

__attribute__((constructor)) static void construct(void) {
    constructed = calloc(1000, 10);
    churn(1, 200);
}

__attribute__((destructor)) static void destruct(void) {
    free(constructed);
    churn(2, 200);
}

static void constructors_and_destructors(void) {
    CHECK(constructed && ((char *)constructed)[5000] == 0);
}

static void at_exit(void) {
    free(constructed);
    constructed = malloc(50);
    churn(3, 200);
}

static void atexit_allocates(void) {
    for (int i = 0; i < 40; i++) CHECK(atexit(at_exit) == 0);
}

static void quick_exit_allocates(void) {
    CHECK(at_quick_exit(at_exit) == 0);
    quick_exit(0);
}

static pthread_key_t first_key, last_key;

/* Comes back in every round of destructors that the C library makes. */
static void destroy(void *value) {
    int left = *(int *)value;
    free(value);
    churn(left, 100);
    int *again = malloc(sizeof *again);
    *again = left - 1;
    pthread_setspecific(left % 2 ? first_key : last_key, left > 1 ? again : NULL);
    if (left <= 1) free(again);
}

static void *with_keys(void *seed) {
    int *one = malloc(sizeof *one), *two = malloc(sizeof *two);
    *one = *two = 4;
    pthread_setspecific(first_key, one);
    churn((uintptr_t)seed, 300);
    pthread_setspecific(last_key, two);
    return NULL;
}

static void thread_destructors_after_ours(void) {
    pthread_key_create(&first_key, destroy);
    /* Keys beyond the first 32 live in memory that the C library allocates. */
    pthread_key_t filler;
    for (int i = 0; i < 60; i++) pthread_key_create(&filler, NULL);
    pthread_key_create(&last_key, destroy);
    for (int round = 0; round < 50; round++) {
        pthread_t threads[8];
        for (uintptr_t i = 0; i < 8; i++)
            CHECK(pthread_create(&threads[i], NULL, with_keys, (void *)i) == 0);
        for (int i = 0; i < 8; i++) pthread_join(threads[i], NULL);
    }
}

static void *brief(void *seed) {
    churn((uintptr_t)seed, 50);
    return malloc(10);
}

static void threads_do_not_leak(void) {
    size_t middle = 0;
    for (uintptr_t i = 0; i < 4000; i++) {
        if (i == 1000) middle = resident_bytes();
        pthread_t thread;
        void *left = NULL;
        CHECK(pthread_create(&thread, NULL, brief, (void *)(i % 10)) == 0);
        pthread_join(thread, &left);
        free(left);
    }
    size_t end = resident_bytes();
    CHECK(end < middle + 3000000, "%zu bytes after 1000 threads, %zu after 4000", middle, end);
}

/* The least stack that a thread may have is enough for whatever the heap does on it, also in a
   thread that ends, and in the first thread that needs what is made once. */
static void least_stack(void) {
    pthread_attr_t attributes;
    pthread_attr_init(&attributes);
    CHECK(pthread_attr_setstacksize(&attributes, PTHREAD_STACK_MIN) == 0);
    for (uintptr_t i = 0; i < 2000; i += 8) {
        pthread_t threads[8];
        for (uintptr_t j = 0; j < 8; j++)
            CHECK(pthread_create(&threads[j], &attributes, brief, (void *)(i + j)) == 0);
        for (int j = 0; j < 8; j++) {
            void *left = NULL;
            pthread_join(threads[j], &left);
            free(left);
        }
    }
}

static volatile int stop;

static void *allocate_until_stopped(void *seed) {
    for (uint64_t i = 0; !stop; i++) churn((uintptr_t)seed * 1000 + i, 500);
    return NULL;
}

static pthread_t workers[6];

static void start_workers(void) {
    for (uintptr_t i = 0; i < 6; i++)
        CHECK(pthread_create(&workers[i], NULL, allocate_until_stopped, (void *)i) == 0);
}

static void stop_workers(void) {
    stop = 1;
    for (int i = 0; i < 6; i++) pthread_join(workers[i], NULL);
}

static void *one_thread(void *seed) {
    churn((uintptr_t)seed, 100);
    return NULL;
}

static void child_work(uint64_t seed) {
    alarm(20);
    churn(seed, 300);
    pthread_t thread;
    CHECK(pthread_create(&thread, NULL, one_thread, NULL) == 0);
    pthread_join(thread, NULL);
    free(malloc((size_t)100 << 20));
    _exit(0);
}

static void fork_while_threads_allocate(void) {
    start_workers();
    for (int i = 0; i < 150; i++) {
        pid_t child = fork();
        if (child == 0) child_work(i);
        reap(child);
    }
    stop_workers();
}

static int handled;

static void handle(void) {
    churn(++handled, 100);
}

static void fork_handlers_allocate(void) {
    for (int i = 0; i < 20; i++) CHECK(pthread_atfork(handle, handle, handle) == 0);
    start_workers();
    for (int i = 0; i < 20; i++) {
        pid_t child = fork();
        if (child == 0) child_work(i);
        reap(child);
    }
    stop_workers();
    CHECK(handled == 20 * 20 * 2, "%d", handled);
}

/* A thread that forks waits, with locks of the heap held, for a thread that frees much. Meanwhile a
   third thread registers more handlers than the C library has room for, so that it allocates. */
static char *big[2];
static atomic_int stage;

static void *free_big(void *unused) {
    stage = 1;
    for (int i = 0; i < 2; i++) free(big[i]);
    return unused;
}

static void *fork_once(void *unused) {
    while (stage < 1) sched_yield();
    usleep(1000);
    stage = 2;
    pid_t child = fork();
    if (child == 0) _exit(0);
    reap(child);
    return unused;
}

static void *register_many(void *unused) {
    while (stage < 2) sched_yield();
    usleep(5000);
    for (int i = 0; i < 60; i++) CHECK(pthread_atfork(NULL, NULL, NULL) == 0);
    return unused;
}

static void *free_fork_and_register(void *unused) {
    size_t bytes = (size_t)256 << 20;
    for (int i = 0; i < 2; i++) {
        big[i] = calloc(1, bytes);
        for (size_t at = 0; at < bytes; at += 4096) big[i][at] = 1;
    }
    void *(*const each[])(void *) = {register_many, fork_once, free_big};
    pthread_t threads[3];
    for (int i = 0; i < 3; i++) CHECK(pthread_create(&threads[i], NULL, each[i], NULL) == 0);
    for (int i = 0; i < 3; i++) pthread_join(threads[i], NULL);
    return unused;
}

static void fork_while_handlers_are_registered(void) {
    for (int i = 0; i < 3; i++) run_in_child(free_fork_and_register, NULL);
}

static void fork_of_fork(void) {
    start_workers();
    for (int i = 0; i < 20; i++) {
        pid_t child = fork();
        if (child == 0) {
            alarm(20);
            churn(i, 100);
            pid_t grandchild = fork();
            if (grandchild == 0) child_work(i + 1);
            reap(grandchild);
            _exit(0);
        }
        reap(child);
    }
    stop_workers();
}

/* Several threads fork while others allocate. Before and after that, a thread that is alone
   forks. */
static void *fork_some(void *seed) {
    for (int i = 0; i < 30; i++) {
        churn((uintptr_t)seed * 100 + i, 50);
        pid_t child = fork();
        if (child == 0) child_work(i);
        reap(child);
    }
    return NULL;
}

static void many_threads_fork(void) {
    fork_some(NULL);
    start_workers();
    pthread_t threads[4];
    for (uintptr_t i = 0; i < 4; i++)
        CHECK(pthread_create(&threads[i], NULL, fork_some, (void *)i) == 0);
    for (int i = 0; i < 4; i++) pthread_join(threads[i], NULL);
    stop_workers();
    fork_some(NULL);
}

static void *ask_until_stopped(void *unused) {
    while (!stop) mallinfo2();
    return unused;
}

/* Statistics take the heap's locks one by one; a fork takes all of them. */
static void fork_while_statistics_are_asked(void) {
    pthread_t threads[2];
    for (int i = 0; i < 2; i++)
        CHECK(pthread_create(&threads[i], NULL, ask_until_stopped, NULL) == 0);
    alarm(50);
    for (int i = 0; i < 500; i++) {
        pid_t child = fork();
        if (child == 0) _exit(0);
        reap(child);
    }
    alarm(0);
    stop = 1;
    for (int i = 0; i < 2; i++) pthread_join(threads[i], NULL);
}

static ssize_t write_with_memory(void *unused, const char *text, size_t bytes) {
    /* The block is so long that no thread keeps one: each is taken under the heap's lock. */
    char *copy = malloc(3 << 20);
    CHECK(copy);
    memcpy(copy, text, bytes);
    free(copy);
    return unused ? 0 : (ssize_t)bytes;
}

static void *flush_until_stopped(void *unused) {
    FILE *stream = fopencookie(NULL, "w", (cookie_io_functions_t){ .write = write_with_memory });
    CHECK(stream);
    while (!stop) {
        for (int i = 0; i < 100; i++) fputc('x', stream);
        fflush(NULL);
    }
    fclose(stream);
    return unused;
}

/* A thread that flushes all streams holds the C library's list of them, and writes to these streams
   may allocate. */
static void fork_while_streams_are_flushed(void) {
    pthread_t thread;
    CHECK(pthread_create(&thread, NULL, flush_until_stopped, NULL) == 0);
    alarm(50);
    for (int i = 0; i < 2000; i++) {
        pid_t child = fork();
        if (child == 0) {
            fflush(NULL);
            FILE *stream = fopen("/dev/null", "w");
            CHECK(stream && fclose(stream) == 0);
            _exit(0);
        }
        reap(child);
    }
    alarm(0);
    stop = 1;
    pthread_join(thread, NULL);
}

static pthread_barrier_t have_caches;

static void *wait_with_cache(void *unused) {
    churn(1, 10);
    pthread_barrier_wait(&have_caches);
    pause();
    return unused;
}

/* In a forked child there is one thread, and at most one cache. */
static void fork_forgets_threads(void) {
    pthread_barrier_init(&have_caches, NULL, 9);
    pthread_t thread;
    for (int i = 0; i < 8; i++)
        CHECK(pthread_create(&thread, NULL, wait_with_cache, NULL) == 0);
    pthread_barrier_wait(&have_caches);
    FILE *text = tmpfile();
    pid_t child = fork();
    if (child == 0) {
        dup2(fileno(text), STDERR_FILENO);
        malloc_stats();
        _exit(0);
    }
    reap(child);
    rewind(text);
    int caches = -1;
    for (char line[200]; fgets(line, sizeof line, text);)
        sscanf(line, "hectare: threads with caches of their own %d", &caches);
    CHECK(caches >= 0 && caches <= 1, "%d", caches);
}

/* Makes runs of one length, fills them and frees them, until the thread keeps runs, if it may. */
static void churn_runs(void) {
    enum { COUNT = 24, BYTES = 70000 };
    char *runs[COUNT];
    for (int round = 0; round < 200; round++) {
        for (int i = 0; i < COUNT; i++) {
            runs[i] = malloc(BYTES);
            for (int at = 0; at < BYTES; at += 512) ((volatile char *)runs[i])[at] = 1;
        }
        for (int i = 0; i < COUNT; i++) free(runs[i]);
    }
}

static void *ask_in_use(void *bytes) {
    *(size_t *)bytes = mallinfo2().uordblks;
    return NULL;
}

/* How many bytes of freed runs this thread keeps. The thread counts them as free, others as in
   use. */
static size_t kept_here(void) {
    size_t to_others = 0;
    pthread_t thread;
    CHECK(pthread_create(&thread, NULL, ask_in_use, &to_others) == 0);
    pthread_join(thread, NULL);
    size_t to_itself = mallinfo2().uordblks;
    return to_others > to_itself ? to_others - to_itself : 0;
}

static void keeps_much(const char *when) {
    churn_runs();
    size_t kept = kept_here();
    CHECK(kept > 1 << 20, "%s: %zu", when, kept);
}

static void *keep_and_wait(void *unused) {
    churn_runs();
    pthread_barrier_wait(&have_caches);
    pause();
    return unused;
}

static void *wait_idle(void *unused) {
    pause();
    return unused;
}

static void *keep_and_end(void *unused) {
    keeps_much("another thread of the child");
    return unused;
}

/* For a child: its threads may keep runs, one after another. */
static void pass_loans_on(void) {
    pthread_t thread;
    keeps_much("the child");
    malloc_trim(0);
    CHECK(kept_here() < 200000, "%zu", kept_here());
    CHECK(pthread_create(&thread, NULL, keep_and_end, NULL) == 0);
    pthread_join(thread, NULL);
    keeps_much("once that thread has ended");
}

/* The child's own threads may have what was lent to threads that the child does not have. The
   child's child has what was lent to the thread that forks. */
static void fork_forgets_loans(void) {
    pthread_barrier_init(&have_caches, NULL, 9);
    pthread_t thread;
    for (int i = 0; i < 8; i++) CHECK(pthread_create(&thread, NULL, keep_and_wait, NULL) == 0);
    pthread_barrier_wait(&have_caches);
    churn_runs();
    CHECK(kept_here() < 1 << 20, "%zu: the others have no loan", kept_here());
    pid_t child = fork();
    if (child == 0) {
        alarm(20);
        pass_loans_on();
        CHECK(pthread_create(&thread, NULL, wait_idle, NULL) == 0);
        pid_t grandchild = fork();
        if (grandchild == 0) {
            alarm(20);
            pass_loans_on();
            _exit(0);
        }
        reap(grandchild);
        _exit(0);
    }
    reap(child);
}

/* The page faults of a fork and of the child's end, in both processes. */
static double faults_of_a_fork(void) {
    enum { FORKS = 100 };
    struct rusage before[2], after[2];
    getrusage(RUSAGE_SELF, &before[0]);
    getrusage(RUSAGE_CHILDREN, &before[1]);
    for (int i = 0; i < FORKS; i++) {
        pid_t child = fork();
        if (child == 0) _exit(0);
        reap(child);
    }
    getrusage(RUSAGE_SELF, &after[0]);
    getrusage(RUSAGE_CHILDREN, &after[1]);
    long faults = after[0].ru_minflt - before[0].ru_minflt + after[1].ru_minflt - before[1].ru_minflt;
    return (double)faults / FORKS;
}

/* A process of one thread takes no lock for a fork. The locks lie on many pages, each of which
   would be written to in both processes. */
static void fork_of_one_thread_touches_little(void) {
    churn(1, 3000);
    double alone = faults_of_a_fork();
    pthread_t thread;
    CHECK(pthread_create(&thread, NULL, one_thread, NULL) == 0);
    double beside_another = faults_of_a_fork();
    pthread_join(thread, NULL);
    CHECK(alone + 25 < beside_another, "%.1f alone, %.1f with two threads", alone, beside_another);
}

/* A small program touches few pages of the library's state, which is half a megabyte. Each place
   for a region of the heap lies on pages of its own, and there are 32 such places. */
static void little_of_the_state_is_touched(void) {
    free(opaque(malloc(100)));
    malloc_trim(0);
    FILE *maps = fopen("/proc/self/maps", "r");
    int pagemap = open("/proc/self/pagemap", O_RDONLY);
    CHECK(maps && pagemap >= 0);
    char line[4096 + 256], rights[8];
    unsigned long start, end, behind = 0, touched = 0, pages = 0;
    while (fgets(line, sizeof line, maps)) {
        CHECK(sscanf(line, "%lx-%lx %7s", &start, &end, rights) == 3);
        int is_state = start == behind && !strchr(line, '/');
        behind = strstr(line, "libhectare.so") && rights[1] == 'w' ? end : 0;
        if (!is_state) continue;
        for (unsigned long page = start / 4096; page < end / 4096; page++) {
            uint64_t entry;
            CHECK(pread(pagemap, &entry, sizeof entry, (off_t)(page * sizeof entry)) == sizeof entry);
            touched += entry >> 63;
            pages++;
        }
    }
    fclose(maps);
    close(pagemap);
    CHECK(pages > 64, "%lu pages: where is it?", pages);
    CHECK(touched > 0 && touched < 24, "%lu of %lu pages", touched, pages);
}

#if __GLIBC__ > 2 || (__GLIBC__ == 2 && __GLIBC_MINOR__ >= 34)
pid_t _Fork(void);
#else
#include <sys/syscall.h>
static pid_t _Fork(void) { return (pid_t)syscall(SYS_fork); }
#endif

/* _Fork calls no handlers. A child may allocate if the other threads of its parent were at rest. If
   they were allocating, it may do what POSIX allows, which is to exec. */
static void raw_fork(void) {
    for (int i = 0; i < 50; i++) {
        churn(i, 50);
        pid_t child = _Fork();
        if (child == 0) child_work(i);
        reap(child);
    }
    start_workers();
    for (int i = 0; i < 50; i++) {
        pid_t child = _Fork();
        if (child == 0) {
            execl("/bin/true", "true", NULL);
            _exit(9);
        }
        reap(child);
    }
    stop_workers();
}

static void vfork_and_spawn(void) {
    start_workers();
    for (int i = 0; i < 50; i++) {
        pid_t child = vfork();
        if (child == 0) {
            execl("/bin/true", "true", NULL);
            _exit(9);
        }
        reap(child);
        char *const arguments[] = {"true", NULL};
        CHECK(posix_spawn(&child, "/bin/true", NULL, NULL, arguments, environ) == 0);
        reap(child);
    }
    CHECK(system("exit 3") == 3 << 8);
    FILE *stream = popen("echo heard", "r");
    char line[20];
    CHECK(stream && fgets(line, sizeof line, stream) && strcmp(line, "heard\n") == 0);
    CHECK(pclose(stream) == 0);
    stop_workers();
}

static volatile sig_atomic_t signals;

static void on_signal(int number) {
    (void)number;
    signals++;
    errno = 1;
}

static void signals_during_malloc(void) {
    struct sigaction action = {.sa_handler = on_signal, .sa_flags = SA_RESTART};
    sigaction(SIGALRM, &action, NULL);
    sigaction(SIGUSR1, &action, NULL);
    struct itimerval timer = {{0, 500}, {0, 500}};
    setitimer(ITIMER_REAL, &timer, NULL);
    start_workers();
    /* A signal that finds another pending is lost, so this counts those that arrive. */
    for (int i = 0; signals < 1000; i++) {
        pthread_kill(workers[i % 6], SIGUSR1);
        churn(i, 20);
    }
    stop_workers();
}

/* One thread allocates what another frees, round and round. */
enum { HANDS = 4, OBJECTS = 20000 };
static void *objects[HANDS][OBJECTS];
static pthread_barrier_t barrier;

static void *hand_over(void *number) {
    uintptr_t own = (uintptr_t)number;
    for (int round = 0; round < 12; round++) {
        for (int i = 0; i < OBJECTS; i++) {
            unsigned char *p = malloc(16 + i % 200);
            p[0] = p[15] = own;
            objects[own][i] = p;
        }
        pthread_barrier_wait(&barrier);
        uintptr_t other = (own + 1) % HANDS;
        for (int i = 0; i < OBJECTS; i++) {
            unsigned char *p = objects[other][i];
            CHECK(p[0] == other && p[15] == other);
            free(p);
        }
        pthread_barrier_wait(&barrier);
    }
    return NULL;
}

static void objects_change_hands(void) {
    pthread_barrier_init(&barrier, NULL, HANDS);
    pthread_t threads[HANDS];
    for (uintptr_t i = 0; i < HANDS; i++) pthread_create(&threads[i], NULL, hand_over, (void *)i);
    for (int i = 0; i < HANDS; i++) pthread_join(threads[i], NULL);
    CHECK(resident_bytes() < 60000000, "%zu", resident_bytes());
}

int main(int argc, char **argv) {
    static const struct test_case cases[] = {
        CASE(preinit_allocates), CASE(constructors_and_destructors), CASE(atexit_allocates),
        CASE(quick_exit_allocates), CASE(thread_destructors_after_ours), CASE(threads_do_not_leak), CASE(least_stack),
        CASE(fork_while_threads_allocate), CASE(fork_handlers_allocate), CASE(fork_while_handlers_are_registered), CASE(fork_of_fork),
        CASE(many_threads_fork), CASE(fork_while_statistics_are_asked), CASE(fork_while_streams_are_flushed),
        CASE(fork_forgets_threads), CASE(fork_forgets_loans),
        CASE(fork_of_one_thread_touches_little), CASE(little_of_the_state_is_touched),
        CASE(raw_fork), CASE(vfork_and_spawn), CASE(signals_during_malloc),
        CASE(objects_change_hands),
    };
    return run_case(cases, sizeof cases / sizeof *cases, argc, argv);
}
