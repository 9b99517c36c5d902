/* Live objects of known call sites, for the heap profile to find again. Each site is a function in
   a section of its own; the linker tells its bounds. */
#include "check.h"
#include <dlfcn.h>
#include <fcntl.h>
#include <malloc.h>
#include <pthread.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <time.h>

#define SITE(name, allocate)                                                            \
    extern char __start_in_##name[], __stop_in_##name[];                                \
    __attribute__((noinline, section("in_" #name))) static void *name(size_t bytes) {         \
        return opaque(allocate);                                                        \
    }

static void *aligned(size_t bytes) {
    void *object = NULL;
    CHECK(posix_memalign(&object, 64, bytes) == 0);
    return object;
}

SITE(site_small, malloc(bytes))
SITE(site_middle, calloc(1, bytes))
SITE(site_large, malloc(bytes))
SITE(site_huge, malloc(bytes))
SITE(site_aligned, aligned(bytes))
SITE(site_grown, realloc(malloc(bytes / 2), bytes))
/* Objects that are resized in place. */
SITE(site_stays, realloc(malloc(bytes / 4 * 3), bytes))
SITE(site_aligned_stays, realloc(aligned_alloc(4096, bytes / 2), bytes))
SITE(site_brief, malloc(bytes))
SITE(site_thread, malloc(bytes))

enum { SMALL = 400000, MIDDLE = 20000, LARGE = 300, ALIGNED = 50000, GROWN = 10000, STAYS = 1000, ALIGNED_STAYS = 20000, THREADS = 4 };

static void *of_thread(void *argument) {
    for (int i = 0; i < 20000; i++) {
        *(void **)site_thread(200) = argument;
        free(site_brief(1 + i % 3000));
    }
    return argument;
}

/* Allocates objects that stay, amid many that do not. */
static void fill(void) {
    for (int i = 0; i < SMALL; i++) {
        site_small(100);
        if (i % 4 == 0) free(site_brief(i % 500));
        if (i % 1000 == 0) free(site_brief(i % 500000));
    }
    for (int i = 0; i < MIDDLE; i++) site_middle(2000);
    for (int i = 0; i < LARGE; i++) site_large(150000);
    site_huge((size_t)40 << 20);
    for (int i = 0; i < ALIGNED; i++) site_aligned(300);
    for (int i = 0; i < GROWN; i++) site_grown(3000);
    for (int i = 0; i < STAYS; i++) site_stays(32000);
    for (int i = 0; i < ALIGNED_STAYS; i++) site_aligned_stays(2100);
    pthread_t threads[THREADS];
    for (int i = 0; i < THREADS; i++) pthread_create(&threads[i], NULL, of_thread, NULL);
    for (int i = 0; i < THREADS; i++) pthread_join(threads[i], NULL);
}

static void tell(const char *name, char *start, char *stop, size_t bytes) {
    printf("%s %p %p %zu\n", name, (void *)start, (void *)stop, bytes);
}
#define TELL(name, bytes) tell(#name, __start_in_##name, __stop_in_##name, bytes)

static int (*dump)(const char *);

static void sites(void) {
    fill();
    TELL(site_small, (size_t)SMALL * 100);
    TELL(site_middle, (size_t)MIDDLE * 2000);
    TELL(site_large, (size_t)LARGE * 150000);
    TELL(site_huge, (size_t)40 << 20);
    TELL(site_aligned, (size_t)ALIGNED * 300);
    TELL(site_grown, (size_t)GROWN * 3000);
    TELL(site_stays, (size_t)STAYS * 32000);
    TELL(site_aligned_stays, (size_t)ALIGNED_STAYS * 2100);
    TELL(site_thread, (size_t)THREADS * 20000 * 200);
    TELL(site_brief, (size_t)0);
    fflush(stdout);
}

static void by_call(void) {
    const char *path = getenv("TEST_PATH");
    CHECK(dump(path) == 0);
    CHECK(dump("/no/such/directory/file") == ENOENT);
}

/* All objects are freed: the profile must forget them. */
static void all_freed(void) {
    static void *all[200000];
    for (int round = 0; round < 3; round++) {
        for (int i = 0; i < 200000; i++) all[i] = i % 100 ? site_small(i % 300) : site_large(40000);
        for (int i = 0; i < 200000; i++) all[i] = realloc(all[i], i % 700 + 1);
        for (int i = 0; i < 200000; i++) free(all[i]);
    }
}

/* Objects are resized in place, in slabs that the heap gives up because a third of their objects
   has been free for a while. */
static void resized_in_sparse_slabs(void) {
    enum { OBJECTS = 30000, SLEEPS = 500, OTHERS = 500 };
    static void *all[OBJECTS], *others[OTHERS];
    for (int i = 0; i < OBJECTS; i++) all[i] = site_small(1000);
    for (int i = 0; i < OBJECTS; i += 3) free(all[i]);
    for (int i = 0; i < SLEEPS; i++) {
        usleep(3000);
        for (int j = 0; j < OTHERS; j++) others[j] = malloc(64);
        for (int j = 0; j < OTHERS; j++) free(others[j]);
    }
    for (int round = 0; round < 20; round++)
        for (int i = 0; i < OBJECTS; i++)
            if (i % 3 > 0) all[i] = realloc(all[i], 1000);
}

static volatile int stop;

static void *allocate_until_stopped(void *seed) {
    uint64_t random = (uintptr_t)seed + 1;
    void *slots[64] = {0};
    while (!stop) {
        int slot = next_random(&random) % 64;
        free(slots[slot]);
        slots[slot] = malloc(random_size(&random));
    }
    for (int i = 0; i < 64; i++) free(slots[i]);
    return seed;
}

/* How often the statistics were written, by their first lines. */
static int texts(void) {
    static char text[1 << 20];
    ssize_t bytes = pread(STDERR_FILENO, text, sizeof text - 1, 0);
    CHECK(bytes >= 0);
    text[bytes] = 0;
    int count = 0;
    for (const char *at = text; (at = strstr(at, "hectare: mode ")); at++) count++;
    return count;
}

/* Whether the process has begun the profile's file of this number. */
static int has_file(int number) {
    char path[4096];
    snprintf(path, sizeof path, "%s.%d.%d.pb.gz", getenv("TEST_PREFIX"), (int)getpid(), number);
    return access(path, F_OK) == 0;
}

/* Signals that ask for files and statistics find threads anywhere, most often in the heap. If one
   comes while another is pending, the two count as one, and on a machine with much else to do most
   are lost so. Therefore signals are sent until enough were heard. */
static void signals_anywhere(void) {
    int profile = atoi(getenv("TEST_SIGNAL")), statistics = atoi(getenv("TEST_SIGNAL_2"));
    int enough = atoi(getenv("TEST_ENOUGH"));
    pthread_t threads[4];
    for (uintptr_t i = 0; i < 4; i++)
        pthread_create(&threads[i], NULL, allocate_until_stopped, (void *)i);
    for (int i = 0; i % 64 || !has_file(enough) || texts() < enough; i++) {
        pthread_kill(threads[i % 4], i % 2 ? statistics : profile);
        usleep(500);
    }
    stop = 1;
    for (int i = 0; i < 4; i++) pthread_join(threads[i], NULL);
    pid_t child = fork();
    if (child == 0) {
        raise(profile);
        exit(0);
    }
    int status = 0;
    CHECK(waitpid(child, &status, 0) == child && status == 0, "%#x", status);
}

/* A handler finds this thread waiting, and no other exists: the wish is met at once. */
static void signal_while_idle(void) {
    site_middle(100);
    raise(atoi(getenv("TEST_SIGNAL")));
}

static void forks(void) {
    CHECK(dump(NULL) == 0);
    fill();
    pid_t child = fork();
    if (child == 0) {
        alarm(20);
        fill();
        exit(0);
    }
    int status = 0;
    CHECK(waitpid(child, &status, 0) == child && status == 0, "%#x", status);
}

static __attribute__((noinline)) void descend(int calls) {
    if (calls > 0) descend(calls - 1);
    else free(site_brief(100));
    __asm__ volatile("");
}

static void *descend_until_stopped(void *unused) {
    while (!stop) descend(20);
    return unused;
}

/* The processor time of some thousand walks. */
static double walks_of_a_child(void) {
    int ends[2];
    double took;
    CHECK(pipe(ends) == 0);
    pid_t child = fork();
    if (child == 0) {
        for (int i = 0; i < 300; i++) descend(20);
        clock_t begin = clock();
        for (int i = 0; i < 2000; i++) descend(20);
        took = (double)(clock() - begin);
        CHECK(write(ends[1], &took, sizeof took) == sizeof took);
        _exit(0);
    }
    CHECK(read(ends[0], &took, sizeof took) == sizeof took && waitpid(child, NULL, 0) == child);
    close(ends[0]);
    close(ends[1]);
    return took;
}

/* A child whose parent was in a walk when it forked remembers rules like any other process. */
static void forks_amid_walks(void) {
    enum { CHILDREN = 60 };
    pthread_t threads[3];
    for (int i = 0; i < 3; i++) pthread_create(&threads[i], NULL, descend_until_stopped, NULL);
    double took[CHILDREN], least = 1e9;
    for (int i = 0; i < CHILDREN; i++) {
        took[i] = walks_of_a_child();
        if (took[i] < least) least = took[i];
    }
    stop = 1;
    for (int i = 0; i < 3; i++) pthread_join(threads[i], NULL);
    int slow = 0;
    for (int i = 0; i < CHILDREN; i++) slow += took[i] > 4 * least;
    CHECK(slow <= CHILDREN / 10, "%d of %d children take four times as long as the quickest", slow, CHILDREN);
}

static void mode(void) {
    const char *(*text)(void) = dlsym(RTLD_DEFAULT, "hectare_mode");
    CHECK(text);
    puts(text());
    int (*stats)(const char *) = dlsym(RTLD_DEFAULT, "hectare_stats_dump");
    CHECK(stats && stats(getenv("TEST_PATH")) == 0);
    CHECK(dump(NULL) == (getenv("TEST_NO_PROFILE") ? ENOTSUP : 0));
}

#ifdef __x86_64__
/* Allocates with `base` in the register by which, according to its table, its frame is found. No
   compiler writes that. */
void *misled(uintptr_t base);
__asm__(".text\n"
        ".type misled, @function\n"
        "misled:\n"
        ".cfi_startproc\n"
        "push %rbp\n"
        ".cfi_def_cfa_offset 16\n"
        ".cfi_offset %rbp, -16\n"
        "mov %rdi, %rbp\n"
        ".cfi_def_cfa %rbp, 16\n"
        "mov $100, %edi\n"
        "call malloc@PLT\n"
        "pop %rbp\n"
        ".cfi_def_cfa %rsp, 8\n"
        "ret\n"
        ".cfi_endproc\n"
        ".size misled, .-misled\n");

static void *of_misled_thread(void *sealed) {
    uintptr_t end = (uintptr_t)sealed, highest = UINTPTR_MAX;
    uintptr_t bases[] = {0, 0x1000, end - 24, end - 16, end - 12, end - 8, end, end + 64, highest / 2, highest - 15, highest};
    for (size_t i = 0; i < sizeof bases / sizeof *bases; i++) CHECK(misled(bases[i]));
    return NULL;
}

/* Calls `function` on another stack, with `base` as its frame pointer. No table describes this
   function. */
void switched(void *stack, void (*function)(void), void *base);
__asm__(".text\n"
        ".type switched, @function\n"
        "switched:\n"
        "push %rbp\n"
        "push %rbx\n"
        "mov %rsp, %rbx\n"
        "mov %rdi, %rsp\n"
        "mov %rdx, %rbp\n"
        "call *%rsi\n"
        "mov %rbx, %rsp\n"
        "pop %rbx\n"
        "pop %rbp\n"
        "ret\n"
        ".size switched, .-switched\n");
#else
static void *of_misled_thread(void *sealed) { return sealed; }
static void switched(void *stack, void (*function)(void), void *base) { function(); }
#endif

static void allocates(void) { CHECK(malloc(100)); }

/* A coroutine's stack is gone in part when the next one lies beside it, and the next one's first
   frame has any word as its frame pointer. */
static void stack_that_went(void) {
    size_t page = (size_t)sysconf(_SC_PAGESIZE), pages = 16;
    char *stack = mmap(NULL, pages * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(stack != MAP_FAILED);
    switched(stack + pages * page, allocates, NULL);
    char *gone = stack + (pages - 1) * page;
    CHECK(mprotect(gone, page, PROT_NONE) == 0);
    switched(gone, allocates, gone + 64);
}

/* A wrong table harms nobody until stacks are walked by it, and must do no harm then. */
static void misled_by_tables(void) {
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    /* Mapped before the thread's stack, and so above it, where a caller's frame would lie. */
    char *pages = mmap(NULL, 2 * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(pages != MAP_FAILED && mprotect(pages + page, page, PROT_NONE) == 0);
    pthread_t thread;
    CHECK(pthread_create(&thread, NULL, of_misled_thread, pages + page) == 0 && pthread_join(thread, NULL) == 0);
}

/* If two dumps went into one file, it would be neither. */
static void one_at_a_time(void) {
    int (*stats)(const char *) = dlsym(RTLD_DEFAULT, "hectare_stats_dump");
    const char *path = getenv("TEST_PATH");
    static char more[100000];
    int file = open(path, O_RDWR | O_CREAT, 0644);
    CHECK(stats && file >= 0 && write(file, more, sizeof more) == sizeof more);
    CHECK(flock(file, LOCK_EX) == 0);
    CHECK(stats(path) == EBUSY && dump(path) == EBUSY);
    CHECK(lseek(file, 0, SEEK_END) == sizeof more, "it was emptied");
    CHECK(flock(file, LOCK_UN) == 0);
    CHECK(stats(path) == 0 && lseek(file, 0, SEEK_END) < (off_t)sizeof more, "it was not emptied");
    CHECK(dump(path) == 0 && stats("/dev/null") == 0);
    int ends[2];
    char pipe_path[30];
    CHECK(pipe(ends) == 0);
    snprintf(pipe_path, sizeof pipe_path, "/proc/self/fd/%d", ends[1]);
    CHECK(stats(pipe_path) == 0 && read(ends[0], more, 1) == 1 && *more == '{');
}

int main(int argc, char **argv) {
    static const struct test_case cases[] = {
        CASE(sites), CASE(by_call), CASE(all_freed), CASE(resized_in_sparse_slabs), CASE(signals_anywhere),
        CASE(signal_while_idle), CASE(forks), CASE(forks_amid_walks), CASE(mode), CASE(one_at_a_time), CASE(misled_by_tables), CASE(stack_that_went),
    };
    dump = dlsym(RTLD_DEFAULT, "hectare_prof_dump");
    CHECK(dump);
    return run_case(cases, sizeof cases / sizeof *cases, argc, argv);
}
