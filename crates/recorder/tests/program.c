/* The program that the recorder's tests record: one case for each argument. */
#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/capability.h>
#include <malloc.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#define CHECK(x) do { if (!(x)) { fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #x); exit(9); } } while (0)

void hectare_trace_marker(uint64_t) __attribute__((weak));
static void mark(uint64_t value) { if (hectare_trace_marker) hectare_trace_marker(value); }

/* Keeps the compiler from pairing malloc and free away. */
static __thread void *volatile sink;
static void *kept(void *p) { sink = p; return sink; }

/* Early and late calls: before main, after exit has begun. */
static void *early;
__attribute__((constructor)) static void before_main(void) { early = malloc(70001); }
__attribute__((destructor)) static void after_main(void) { free(kept(malloc(70003))); }
static void at_exit(void) { free(kept(malloc(70002))); }

/* The C library's own names reach it past the recorder. */
extern void *__libc_malloc(size_t);
extern void __libc_free(void *);

static void family(void) {
    mark(1);
    void *a = kept(malloc(101));
    void *b = kept(calloc(3, 34));
    a = kept(realloc(a, 103));
    a = kept(realloc(a, 40004));
    void *c = kept(realloc(NULL, 105));
    void *d = kept(reallocarray(NULL, 2, 53));
    void *e = kept(aligned_alloc(64, 128));
    void *f = kept(memalign(200, 109)); /* rounded up to 256 */
    void *g; CHECK(posix_memalign(&g, 4096, 110) == 0); kept(g);
    void *h = kept(valloc(111));
    void *i = kept(pvalloc(112));
    CHECK(malloc_usable_size(a) >= 40004);
    CHECK(malloc_usable_size(NULL) == 0);
    CHECK((uintptr_t)f % 256 == 0 && (uintptr_t)g % 4096 == 0 && (uintptr_t)h % 4096 == 0);
    free(NULL);
    errno = 77;
    void *big = malloc(PTRDIFF_MAX); CHECK(big == NULL && errno == ENOMEM);
    CHECK(kept(realloc(a, PTRDIFF_MAX)) == NULL);
    errno = 77;
    CHECK(reallocarray(a, SIZE_MAX, 2) == NULL && errno == ENOMEM);
    errno = 77;
    CHECK(kept(calloc(SIZE_MAX, 2)) == NULL && errno == ENOMEM);
    errno = 77;
    CHECK(kept(pvalloc(SIZE_MAX)) == NULL && errno == ENOMEM);
    CHECK(kept(memalign(SIZE_MAX, PTRDIFF_MAX)) == NULL); /* there is no such power of two */
    void *unseen = __libc_malloc(50);
    CHECK(kept(realloc(unseen, PTRDIFF_MAX)) == NULL);
    __libc_free(unseen);
    CHECK(realloc(c, 0) == NULL);
    errno = 77;
    free(a); free(b); free(d); free(e); free(f); free(g); free(h); free(i);
    CHECK(errno == 77);
    mark(2);
}

/* Blocks whose allocation the recorder has not seen, in places where it had seen others. */
void free_sized(void *, size_t) __attribute__((weak));
static void unseen(void) {
    mark(1);
    void *a = kept(malloc(200));
    void *behind = kept(malloc(16)); /* so that the first has to move */
    void *b = kept(realloc(a, 100000));
    CHECK(a != b);
    for (int i = 0; i < 2; i++) {
        CHECK(kept(__libc_malloc(200)) == a); /* the C library gives out what was freed last */
        free(a);
    }
    void *c = kept(realloc(__libc_malloc(300), 500));
    CHECK(realloc(kept(__libc_malloc(50)), 0) == NULL);
    void *refused = kept(__libc_malloc(50));
    CHECK(realloc(refused, PTRDIFF_MAX) == NULL);
    __libc_free(refused);
    void *d = kept(pvalloc(0));
    if (free_sized) free_sized(b, 100000); else free(b);
    free(behind); free(c); free(d);
    mark(2);
}

/* Producers hand objects over; consumers free them, so the addresses are handed out again at once
   to whoever asks next. The size tells who made an object, and for whom. */
enum { PAIRS = 4, HANDED = 10000 };
static void *volatile box[PAIRS];
static void *produce(void *pair) {
    intptr_t p = (intptr_t)pair;
    for (int i = 0; i < HANDED; i++) {
        void *object = malloc(1000 + p);
        while (__atomic_load_n(&box[p], __ATOMIC_ACQUIRE)) sched_yield();
        __atomic_store_n(&box[p], object, __ATOMIC_RELEASE);
        free(kept(malloc(2000 + p)));
    }
    return NULL;
}
static void *consume(void *pair) {
    intptr_t p = (intptr_t)pair;
    for (int i = 0; i < HANDED; i++) {
        void *object;
        while (!(object = __atomic_exchange_n(&box[p], NULL, __ATOMIC_ACQ_REL))) sched_yield();
        free(object);
        free(kept(malloc(3000 + p)));
    }
    return NULL;
}
static void hand_over(void) {
    pthread_t threads[2 * PAIRS];
    for (intptr_t p = 0; p < PAIRS; p++) {
        CHECK(!pthread_create(&threads[2 * p], NULL, produce, (void *)p));
        CHECK(!pthread_create(&threads[2 * p + 1], NULL, consume, (void *)p));
    }
    for (int t = 0; t < 2 * PAIRS; t++) pthread_join(threads[t], NULL);
}

static volatile int stop;
static void *churn(void *unused) {
    while (!stop) free(kept(malloc(500)));
    return unused;
}
static int child_of(int raw) {
    if (!raw) return fork();
    return (int)syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0);
}
static void fork_in_threads(int raw) {
    pthread_t threads[3];
    for (int t = 0; t < 3; t++) CHECK(!pthread_create(&threads[t], NULL, churn, NULL));
    for (int round = 0; round < 20; round++) {
        void *inherited = kept(malloc(4001));
        int child = child_of(raw);
        CHECK(child >= 0);
        if (child == 0) {
            free(inherited);
            for (int i = 0; i < 10; i++) free(kept(malloc(4002)));
            _exit(0);
        }
        int status;
        CHECK(waitpid(child, &status, 0) == child && status == 0);
        free(inherited);
    }
    stop = 1;
    for (int t = 0; t < 3; t++) pthread_join(threads[t], NULL);
}

/* Processes that end while their threads are in the midst of calls. */
static void *churn_on(void *unused) {
    for (;;) free(kept(malloc(12345)));
    return unused;
}
static void sudden(void) {
    for (int round = 0; round < 60; round++) {
        int child = fork();
        CHECK(child >= 0);
        if (child == 0) {
            pthread_t thread;
            for (int t = 0; t < 4; t++) CHECK(!pthread_create(&thread, NULL, churn_on, NULL));
            usleep(2000);
            _exit(0);
        }
        int status;
        CHECK(waitpid(child, &status, 0) == child && status == 0);
    }
}

/* What the owner may not write into, only the system's administrator can. */
static void mask(void) {
    struct __user_cap_header_struct header = {_LINUX_CAPABILITY_VERSION_3, 0};
    struct __user_cap_data_struct none[2] = {{0}};
    CHECK(syscall(SYS_capset, &header, none) == 0);
    umask(0777);
    int child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        for (int i = 0; i < 50000; i++) free(kept(malloc(7501)));
        _exit(0);
    }
    int status;
    CHECK(waitpid(child, &status, 0) == child && status == 0);
}

/* Servers write their title over the environment, where the name of the trace stood. */
extern char **environ;
static void title(void) {
    free(kept(malloc(9001)));
    for (char **entry = environ; *entry; entry++) memset(*entry, 'x', strlen(*entry));
    int child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        for (int i = 0; i < 100; i++) free(kept(malloc(9002)));
        _exit(0);
    }
    int status;
    CHECK(waitpid(child, &status, 0) == child && status == 0);
}

static pthread_key_t key;
static void on_end(void *value) { free(value); }
static void *short_life(void *unused) {
    pthread_setspecific(key, malloc(5001));
    free(kept(malloc(5002)));
    return unused;
}
static void short_threads(void) {
    pthread_key_create(&key, on_end);
    for (int t = 0; t < 300; t++) {
        pthread_t thread;
        CHECK(!pthread_create(&thread, NULL, short_life, NULL));
        pthread_join(thread, NULL);
    }
}

/* A daemon closes every descriptor it does not know, and gets the same numbers again. */
static void close_descriptors(const char *file) {
    free(kept(malloc(6001)));
    for (int fd = 3; fd < 1024; fd++) close(fd);
    int fds[8];
    for (int i = 0; i < 8; i++) CHECK((fds[i] = open(file, O_RDONLY)) >= 0);
    for (int i = 0; i < 200000; i++) free(kept(malloc(6002)));
    CHECK(open(file, O_RDONLY) == fds[7] + 1); /* the recorder has kept none */
    for (int i = 0; i < 8; i++) CHECK(close(fds[i]) == 0);
}

/* The C library frees the text that `strerror` made for a thread after all destructors of keys. */
static int count_maps(void) {
    FILE *maps = fopen("/proc/self/maps", "r");
    int lines = 0;
    for (int c; (c = getc(maps)) != EOF;) lines += c == '\n';
    fclose(maps);
    return lines;
}
/* A thread that was joined is there for the system a little longer. */
static void wait_until_alone(void) {
    for (int tasks = 0; tasks != 1; usleep(1000)) {
        DIR *folder = opendir("/proc/self/task");
        tasks = -2;
        while (readdir(folder)) tasks++;
        closedir(folder);
    }
}
static void *free_late(void *unused) { kept(strerror(77777)); return unused; }
static void *free_at_once(void *unused) { free(kept(malloc(5008))); return unused; }
static long resident_pages(void) {
    long size, resident;
    FILE *statm = fopen("/proc/self/statm", "r");
    CHECK(fscanf(statm, "%ld %ld", &size, &resident) == 2);
    fclose(statm);
    return resident;
}
static void many_threads(void) {
    /* A further arena would be a further part of the recorder's table. */
    CHECK(mallopt(M_ARENA_MAX, 1));
    long before = 0;
    for (int i = 0; i < 8200; i++) {
        pthread_t thread;
        if (i == 200) before = resident_pages();
        if (i == 8199) wait_until_alone();
        CHECK(!pthread_create(&thread, NULL, i % 2 ? free_late : free_at_once, NULL));
        CHECK(!pthread_join(thread, NULL));
    }
    /* This thread's chunk has become one of 256 KiB. A tape that each thread kept would be 1 MiB, one that
       each late thread kept half of it. */
    CHECK(resident_pages() < before + 100);
}
static void late_threads(void) {
    int before = count_maps();
    for (int i = 0; i < 300; i++) {
        pthread_t thread;
        CHECK(pthread_create(&thread, NULL, free_late, NULL) == 0);
        CHECK(pthread_join(thread, NULL) == 0);
    }
    CHECK(count_maps() < before + 50);
}

/* A destructor in the last round, after the recorder's own, makes a child, which frees what its parent
   made as late. */
static pthread_key_t last_key;
static void fork_late(void *round) {
    if ((intptr_t)round < 4) {
        CHECK(!pthread_setspecific(last_key, (void *)((intptr_t)round + 1)));
        return;
    }
    void *inherited = kept(malloc(5003));
    int child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        void *own = kept(malloc(5004));
        free(inherited);
        free(own);
        _exit(0);
    }
    int status;
    CHECK(waitpid(child, &status, 0) == child && status == 0);
    free(inherited);
}
static void *ends_late(void *unused) {
    free(kept(malloc(5005)));
    CHECK(!pthread_setspecific(last_key, (void *)1));
    return unused;
}
static void late_fork(void) {
    pthread_t thread;
    CHECK(!pthread_key_create(&last_key, fork_late));
    CHECK(!pthread_create(&thread, NULL, ends_late, NULL));
    CHECK(!pthread_join(thread, NULL));
}

/* Three threads make calls after their end. The second makes a child that uses the memory of all three
   (vfork), while the first has its calls still before it; the third comes when the child is gone. */
static volatile int begun, first_is_late, child_is_gone, third_is_gone;
static __thread int makes_child;
static void vfork_late(void *round) {
    if ((intptr_t)round < 4) {
        CHECK(!pthread_setspecific(last_key, (void *)((intptr_t)round + 1)));
        return;
    }
    if (!makes_child) {
        free(kept(malloc(5006)));
        first_is_late = 1;
        while (!child_is_gone) sched_yield();
        for (int i = 0; i < 10; i++) free(kept(malloc(5006)));
        return;
    }
    while (!first_is_late) sched_yield();
    int child = vfork();
    CHECK(child >= 0);
    if (child == 0) {
        free(kept(malloc(5007)));
        _exit(0);
    }
    int status;
    CHECK(waitpid(child, &status, 0) == child && status == 0);
    child_is_gone = 1;
    while (!third_is_gone) sched_yield();
    for (int i = 0; i < 10; i++) free(kept(malloc(5007)));
}
static void *vforks_late(void *makes) {
    makes_child = makes != NULL;
    free(kept(malloc(5005)));
    __atomic_fetch_add(&begun, 1, __ATOMIC_SEQ_CST);
    while (begun < 2) sched_yield();
    CHECK(!pthread_setspecific(last_key, (void *)1));
    return NULL;
}
static void late_vfork(void) {
    pthread_t threads[3];
    CHECK(!pthread_key_create(&last_key, vfork_late));
    CHECK(!pthread_create(&threads[0], NULL, vforks_late, NULL));
    CHECK(!pthread_create(&threads[1], NULL, vforks_late, &makes_child));
    while (!child_is_gone) sched_yield();
    CHECK(!pthread_create(&threads[2], NULL, free_late, NULL));
    CHECK(!pthread_join(threads[2], NULL));
    third_is_gone = 1;
    for (int t = 0; t < 2; t++) CHECK(!pthread_join(threads[t], NULL));
    /* Completes the tapes of all who are gone. */
    wait_until_alone();
    CHECK(!pthread_create(&threads[2], NULL, free_late, NULL));
    CHECK(!pthread_join(threads[2], NULL));
}

/* Neither is malloc a place at which a thread may be cancelled. */
static volatile int marked;
static void *cancelled(void *count) {
    free(kept(malloc(1)));
    while (!marked) sched_yield();
    for (int i = 0; i < 100000; i++) { free(kept(malloc(4001))); ++*(int *)count; }
    pthread_testcancel();
    return NULL;
}
static void cancel(void) {
    int count = 0;
    pthread_t thread;
    CHECK(pthread_create(&thread, NULL, cancelled, &count) == 0);
    CHECK(pthread_cancel(thread) == 0);
    marked = 1;
    void *result;
    CHECK(pthread_join(thread, &result) == 0);
    CHECK(result == PTHREAD_CANCELED && count == 100000);
    for (int i = 0; i < 100000; i++) free(kept(malloc(4002)));
}

/* The program fills its address space, so that there is none for more of the recorder's tables. */
static void crowded(void) {
    unsigned long pages = 0;
    FILE *statm = fopen("/proc/self/statm", "r");
    CHECK(fscanf(statm, "%lu", &pages) == 1);
    fclose(statm);
    rlim_t most = pages * sysconf(_SC_PAGESIZE) + (200 << 20);
    struct rlimit limit = {most, most};
    CHECK(setrlimit(RLIMIT_AS, &limit) == 0);
    void *blocks[200];
    int count = 0;
    while (count < 200 && (blocks[count] = kept(malloc(1 << 20)))) count++;
    while (count > 0) free(blocks[--count]);
}

static void timed(void) {
    mark(1);
    usleep(100000);
    for (int i = 0; i < 20000; i++) free(kept(malloc(6006)));
    mark(2);
}

/* Far more is recorded than files of this process may hold. */
static void limited(void) {
    struct rlimit limit = {65536, 65536};
    setrlimit(RLIMIT_FSIZE, &limit);
    for (int i = 0; i < 500000; i++) free(kept(malloc(9001)));
}

/* The recorder calls the system by this name. A signal may end these calls before they have done
   anything: here two times of three. Others are refused, or take long. */
static volatile int interrupting, refusing, refusal, is_holding;
static __thread int holds;
long syscall(long number, ...) {
    static long (*next)(long, ...);
    static int calls;
    long a[6];
    va_list list;
    va_start(list, number);
    for (int i = 0; i < 6; i++) a[i] = va_arg(list, long);
    va_end(list);
    if (interrupting && (number == SYS_openat || number == SYS_fallocate) && ++calls % 3) {
        errno = EINTR;
        return -1;
    }
    if (refusing && number == refusing) {
        errno = refusal;
        return -1;
    }
    if (holds && number == SYS_fallocate) {
        is_holding = 1;
        usleep(50000);
    }
    if (!next) next = dlsym(RTLD_NEXT, "syscall");
    return next(number, a[0], a[1], a[2], a[3], a[4], a[5]);
}
static void interrupted(void) {
    interrupting = 1;
    for (int i = 0; i < 200000; i++) free(kept(malloc(6003)));
    interrupting = 0;
}

static void refused(long number, int error) {
    refusal = error;
    refusing = number;
    for (int i = 0; i < 200000; i++) {
        errno = 77;
        free(kept(malloc(6004)));
        CHECK(errno == 77);
    }
    refusing = 0;
}

/* What was the error output is another file by then. */
static void other_output(void) {
    CHECK(dup2(memfd_create("other", 0), 2) == 2);
    refused(SYS_fallocate, ENOSPC);
    CHECK(lseek(2, 0, SEEK_END) == 0);
}

/* The thread that waits for the recorder's lock has a higher priority than the one that holds it, and
   shares a processor with it. Without the right to such priorities the two have equal ones. */
static void *of_priority(void *priority) {
    struct sched_param param = {.sched_priority = (int)(intptr_t)priority};
    int error = pthread_setschedparam(pthread_self(), SCHED_FIFO, &param);
    CHECK(error == 0 || error == EPERM);
    holds = param.sched_priority == 1;
    while (!holds && !is_holding) usleep(1000);
    for (int i = 0; i < 1000; i++) free(kept(malloc(6005)));
    return NULL;
}
static void priorities(void) {
    alarm(30);
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(sched_getcpu(), &one);
    CHECK(sched_setaffinity(0, sizeof one, &one) == 0);
    pthread_t threads[2];
    for (intptr_t t = 0; t < 2; t++) {
        CHECK(!pthread_create(&threads[t], NULL, of_priority, (void *)(t + 1)));
    }
    for (int t = 0; t < 2; t++) CHECK(!pthread_join(threads[t], NULL));
}

/* 12 MiB of objects that are written, and 40 MB of which a fifth is. */
static void take_memory(void) {
    for (int i = 0; i < 25000; i++) memset(kept(malloc(500)), 1, 500);
    for (int i = 0; i < 200; i++) memset(kept(malloc(200000)), 1, 40000);
}

int main(int argc, char **argv) {
    CHECK(argc >= 2 && early);
    alarm(240);
    atexit(at_exit);
    if (!strcmp(argv[1], "family")) family();
    else if (!strcmp(argv[1], "unseen")) unseen();
    else if (!strcmp(argv[1], "hand-over")) hand_over();
    else if (!strcmp(argv[1], "fork")) fork_in_threads(0);
    else if (!strcmp(argv[1], "raw-fork")) fork_in_threads(1);
    else if (!strcmp(argv[1], "sudden")) sudden();
    else if (!strcmp(argv[1], "mask")) mask();
    else if (!strcmp(argv[1], "short-threads")) short_threads();
    else if (!strcmp(argv[1], "late-threads")) late_threads();
    else if (!strcmp(argv[1], "many-threads")) many_threads();
    else if (!strcmp(argv[1], "timed")) timed();
    else if (!strcmp(argv[1], "late-fork")) late_fork();
    else if (!strcmp(argv[1], "late-vfork")) late_vfork();
    else if (!strcmp(argv[1], "cancel")) cancel();
    else if (!strcmp(argv[1], "crowded")) crowded();
    else if (!strcmp(argv[1], "close")) close_descriptors(argv[0]);
    else if (!strcmp(argv[1], "title")) title();
    else if (!strcmp(argv[1], "limited")) limited();
    else if (!strcmp(argv[1], "interrupted")) interrupted();
    else if (!strcmp(argv[1], "full-disk")) refused(SYS_fallocate, ENOSPC);
    else if (!strcmp(argv[1], "other-root")) refused(SYS_openat, ENOENT);
    else if (!strcmp(argv[1], "plain-files")) refused(SYS_fallocate, EOPNOTSUPP);
    else if (!strcmp(argv[1], "other-output")) other_output();
    else if (!strcmp(argv[1], "priorities")) priorities();
    else if (!strcmp(argv[1], "holds")) take_memory();
    else if (!strcmp(argv[1], "holds-and-ends")) { take_memory(); _exit(0); }
    else if (!strcmp(argv[1], "exec")) { free(kept(malloc(7001))); execl(argv[0], argv[0], "family", NULL); exit(8); }
    else if (!strcmp(argv[1], "killed")) { for (int i = 0; i < 50000; i++) free(kept(malloc(8001))); raise(SIGKILL); }
    else if (!strcmp(argv[1], "aborts")) { for (int i = 0; i < 500; i++) kept(malloc(8002)); abort(); }
    else exit(7);
    free(early);
    return 0;
}
