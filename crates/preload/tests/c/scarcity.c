/* Memory that runs out and comes back; system calls that are refused. */
#include "check.h"
#include <dlfcn.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <malloc.h>
#include <pthread.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>

static char **arguments;

/* Runs this program anew, so that the limits hold from its start. */
static int again(const char *marker) {
    if (getenv("TEST_AGAIN")) return 1;
    setenv("TEST_AGAIN", marker, 1);
    execv("/proc/self/exe", arguments);
    CHECK(0, "%s", strerror(errno));
    return 0;
}

static void limit_address_space(size_t bytes) {
    struct rlimit limit = {bytes, bytes};
    CHECK(setrlimit(RLIMIT_AS, &limit) == 0);
}

/* Takes objects of one size until there are no more, and links them through their first word. */
static size_t take_all(size_t bytes, void **list) {
    size_t count = 0;
    for (;;) {
        errno = 0;
        void **object = malloc(bytes);
        if (!object) {
            CHECK(errno == ENOMEM, "errno %d", errno);
            return count;
        }
        *object = *list;
        *list = object;
        count++;
    }
}

static void give_all(void **list) {
    while (*list) {
        void **object = *list;
        *list = *object;
        free(object);
    }
}

static void address_space_limit(void) {
    limit_address_space((size_t)400 << 20);
    if (!again("limited")) return;
    size_t sizes[] = {1000, 40000, 1000000, 200};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        void *list = NULL;
        size_t first = take_all(sizes[i], &list);
        CHECK(first * sizes[i] > (size_t)60 << 20,
              "only %zu objects of %zu bytes", first, sizes[i]);
        errno = 0;
        CHECK(!calloc(1, (size_t)350 << 20) && errno == ENOMEM);
        void *place = NULL;
        CHECK(posix_memalign(&place, 64, (size_t)350 << 20) == ENOMEM);
        /* Objects that exist are whole: a realloc that is refused leaves its object alone. */
        errno = 0;
        CHECK(!realloc(list, (size_t)350 << 20) && errno == ENOMEM);
        give_all(&list);
        malloc_trim(0);
        size_t second = take_all(sizes[i], &list);
        CHECK(second >= first - first / 8, "%zu objects of %zu bytes, then %zu", first, sizes[i], second);
        give_all(&list);
    }
}

/* When smaller objects have taken all address space and are freed, larger ones find room in it. */
static void larger_objects_after_smaller(void) {
    limit_address_space((size_t)400 << 20);
    if (!again("limited")) return;
    size_t sizes[] = {100, 10000, 1000000, 3000000, (size_t)40 << 20};
    size_t most = 0;
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        void *list = NULL;
        size_t bytes = take_all(sizes[i], &list) * sizes[i];
        if (bytes > most) most = bytes;
        CHECK(bytes > most / 2, "%zu bytes in objects of %zu, %zu before", bytes, sizes[i], most);
        if (sizes[i] > 4000000) {
            /* One of them can grow if there is room, and is whole if there is none. */
            void **first = list;
            list = *first;
            memset(first, 7, sizes[i]);
            errno = 0;
            CHECK(!realloc(first, (size_t)350 << 20) && errno == ENOMEM);
            for (size_t at = 0; at < sizes[i]; at += 4095) CHECK(((char *)first)[at] == 7);
            free(first);
        }
        give_all(&list);
    }
}

static void *take_all_once(void *bytes) {
    void *list = NULL;
    size_t count = take_all((uintptr_t)bytes, &list);
    CHECK(count * (uintptr_t)bytes > (size_t)200 << 20, "%zu objects", count);
    give_all(&list);
    return NULL;
}

/* The heap goes on in further regions, each as long as the limit leaves room for. A thread with the
   least possible stack opens them. */
static void regions_on_the_least_stack(void) {
    limit_address_space((size_t)400 << 20);
    if (!again("limited")) return;
    pthread_attr_t attributes;
    pthread_attr_init(&attributes);
    CHECK(pthread_attr_setstacksize(&attributes, PTHREAD_STACK_MIN) == 0);
    for (uintptr_t bytes = 1000; bytes < 1000000; bytes *= 100) {
        pthread_t thread;
        CHECK(pthread_create(&thread, &attributes, take_all_once, (void *)bytes) == 0);
        CHECK(pthread_join(thread, NULL) == 0);
    }
}

/* An object that is to become shorter stays where it is if there is no memory to move it to, even
   if it is guarded or sampled. */
static void shorter_where_memory_is_out(void) {
    limit_address_space((size_t)200 << 20);
    if (!again("limited")) return;
    enum { COUNT = 200 };
    static char *all[COUNT];
    for (int i = 0; i < COUNT; i++) memset(all[i] = malloc(3000), 7, 3000);
    void *list = NULL;
    for (size_t bytes = (size_t)1 << 20; bytes >= 16; bytes /= 2) take_all(bytes, &list);
    for (int i = 0; i < COUNT; i++) {
        char *shorter = realloc(opaque(all[i]), 100);
        CHECK(shorter, "object %d", i);
        for (int at = 0; at < 100; at++) CHECK(shorter[at] == 7, "byte %d of object %d", at, i);
        all[i] = shorter;
        /* The memory that it leaves goes to other objects. */
        take_all(16, &list);
    }
    /* A caller that frees it by its size gives the size that it was to become. */
    void (*sized)(void *, size_t) = dlsym(RTLD_DEFAULT, "free_sized");
    CHECK(sized);
    for (int i = 0; i < COUNT; i++) sized(all[i], 100);
}

/* A limit on memory that may be written to, wherever it comes from. A system without overcommit has
   such a limit for all processes together. Reserved memory does not count; committed memory
   does. */
static void commit_limit(void) {
    struct rlimit limit = {(size_t)300 << 20, (size_t)300 << 20};
    CHECK(setrlimit(RLIMIT_DATA, &limit) == 0);
    if (!again("limited")) return;
    size_t sizes[] = {200, 5000, 100000, 1000000, (size_t)40 << 20};
    for (int round = 0; round < 2; round++) {
        for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
            void *list = NULL;
            size_t bytes = take_all(sizes[i], &list) * sizes[i];
            CHECK(bytes > (size_t)100 << 20 && bytes < (size_t)300 << 20,
                  "%zu bytes in objects of %zu", bytes, sizes[i]);
            give_all(&list);
        }
    }
}

/* A process in a control group is killed when it takes more than the group may have. Freed memory
   must go back before that. */
static void control_group(void) {
    FILE *file = fopen(getenv("TEST_CONTROL_GROUP"), "w");
    CHECK(file && fprintf(file, "%d", getpid()) > 0 && fclose(file) == 0);
    static char *all[100000];
    for (int round = 0; round < 12; round++) {
        size_t bytes = (size_t)500 << round % 12, count = ((size_t)40 << 20) / bytes;
        for (size_t i = 0; i < count; i++) memset(all[i] = malloc(bytes), 1, bytes);
        for (size_t i = 0; i < count; i++) free(all[i]);
    }
}

/* Memory fresh from the system is zero: calloc must not touch it to make it so. */
static void fresh_calloc_is_not_touched(void) {
    size_t start = resident_bytes();
    char *objects[3];
    for (int i = 0; i < 3; i++) objects[i] = calloc(1, (size_t)25 << (20 + i % 2));
    CHECK(resident_bytes() < start + 4000000, "%zu, then %zu", start, resident_bytes());
    for (int i = 0; i < 3; i++) CHECK(objects[i][12345678] == 0);
    for (int i = 0; i < 3; i++) free(objects[i]);
}

static void *touch_some(void *argument) {
    char *p = malloc(100000);
    CHECK(p);
    memset(p, 1, 100000);
    free(p);
    return argument;
}

/* The heap's reservation must leave some address space for stacks and mappings. */
static void limit_leaves_room_for_others(void) {
    limit_address_space((size_t)1 << 30);
    if (!again("limited")) return;
    void *p = malloc(100);
    void *map = mmap(NULL, 128 << 20, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(map != MAP_FAILED);
    pthread_t threads[24];
    for (int i = 0; i < 24; i++) CHECK(pthread_create(&threads[i], NULL, touch_some, NULL) == 0);
    for (int i = 0; i < 24; i++) pthread_join(threads[i], NULL);
    free(p);
}

/* However little address space there is, objects get nearly all that the program and the library do
   not need, even if the limit comes when the heap has begun. An aligned request that finds no place
   takes no address space. */
static void any_limit_is_used(void) {
    if (getenv("TEST_AGAIN")) {
        size_t limit = strtoull(getenv("TEST_AGAIN"), NULL, 10), others = (size_t)8 << 20;
        if (limit % 2) {
            free(malloc(100));
            limit_address_space(limit);
            others = (size_t)16 << 20;
        }
        for (int i = 0; i < 100; i++) free(memalign((size_t)8 << 20, 100));
        void *list = NULL;
        size_t bytes = take_all(1000, &list) * 1000;
        CHECK(bytes > (limit - others) / 10 * 9, "%zu bytes of %zu", bytes, limit);
        give_all(&list);
        return;
    }
    for (double bytes = 17 << 20; bytes < 500 << 20; bytes *= 1.15) {
        for (size_t late = 0; late < 2; late++) {
            pid_t child = fork();
            if (child == 0) {
                size_t limit = (size_t)bytes / 2 * 2 + late;
                char text[24];
                snprintf(text, sizeof text, "%zu", limit);
                if (!late) limit_address_space(limit);
                again(text);
            }
            int status;
            CHECK(waitpid(child, &status, 0) == child && status == 0, "%.0f bytes, %zu: status %x", bytes, late, status);
        }
    }
}

/* How much address space the process has. */
static size_t mapped_bytes(void) {
    size_t pages = 0;
    FILE *file = fopen("/proc/self/statm", "r");
    CHECK(file && fscanf(file, "%zu", &pages) == 1);
    fclose(file);
    return pages * 4096;
}

/* However often a little address space is added, the heap goes on in it, and does not run out of
   places for regions: once there is no limit, it can have all. */
static void limit_is_raised_little_by_little(void) {
    size_t limit = (size_t)40 << 20, bytes = 0;
    struct rlimit none, few = {limit, RLIM_INFINITY};
    CHECK(getrlimit(RLIMIT_AS, &none) == 0);
    free(malloc(100));
    void *list = NULL;
    for (int step = 0; step < 60; step++) {
        CHECK(setrlimit(RLIMIT_AS, &few) == 0);
        bytes += take_all(1000, &list) * 1000;
        CHECK(bytes > few.rlim_cur / 10 * 6, "%zu bytes of %zu in step %d", bytes, (size_t)few.rlim_cur, step);
        few.rlim_cur += 3 << 20;
    }
    CHECK(setrlimit(RLIMIT_AS, &none) == 0);
    for (int i = 0; i < 100000; i++) CHECK(malloc(1000), "object %d without a limit", i);
    give_all(&list);
}

/* Whatever the limit, a quarter of it is left for stacks, libraries and the program's own
   mappings. */
static void any_limit_leaves_room(void) {
    if (getenv("TEST_AGAIN")) {
        struct rlimit limit;
        CHECK(getrlimit(RLIMIT_AS, &limit) == 0);
        free(malloc(100));
        size_t bytes = limit.rlim_cur / 4;
        CHECK(mmap(NULL, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0) != MAP_FAILED,
              "no %zu bytes beside %zu", bytes, mapped_bytes());
        return;
    }
    for (double bytes = 100 << 20; bytes < (double)((size_t)40 << 30); bytes *= 1.07) {
        pid_t child = fork();
        if (child == 0) {
            limit_address_space((size_t)bytes);
            again("limited");
        }
        int status;
        CHECK(waitpid(child, &status, 0) == child && status == 0, "%.0f bytes: status %x", bytes, status);
    }
}

/* Objects of any size get three quarters of what a limit leaves, up to one object: address space
   reserved for small ones serves large ones, too. */
static void any_size_has_room(void) {
    size_t limit = (size_t)1500 << 20;
    limit_address_space(limit);
    if (!again("limited")) return;
    free(malloc(10));
    size_t sizes[] = {(size_t)400 << 20, (size_t)100 << 20, (size_t)40 << 20, (size_t)20 << 20, (size_t)1 << 20, 10000};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        void *list = NULL;
        size_t bytes = take_all(sizes[i], &list) * sizes[i];
        CHECK(bytes + sizes[i] > limit / 4 * 3, "%zu bytes in objects of %zu", bytes, sizes[i]);
        give_all(&list);
        malloc_trim(0);
    }
}

/* A block that grows in small steps is not copied at each step, although a new one would still fit
   beside it: it never exists twice. */
static void grows_where_limited(void) {
    size_t limit = (size_t)1500 << 20, bytes = 0, wanted = 1 << 20, ends[200];
    limit_address_space(limit);
    if (!again("limited")) return;
    char *block = NULL, *grown;
    unsigned count = 0;
    while ((grown = realloc(block, wanted))) {
        block = grown;
        memset(block + bytes, (int)count, wanted - bytes);
        ends[count++] = bytes = wanted;
        wanted += wanted / 10;
    }
    for (unsigned i = 0; i < count; i++) CHECK(block[ends[i] - 1] == (char)i, "after %u of %u steps", i, count);
    CHECK(bytes > limit / 100 * 46, "%zu bytes of %zu", bytes, limit);
    struct rusage used;
    CHECK(getrusage(RUSAGE_SELF, &used) == 0);
    CHECK((size_t)used.ru_maxrss << 10 < bytes / 10 * 11, "%ld KiB were resident for %zu bytes", used.ru_maxrss, bytes);
    free(block);
}

/* Whatever the limit on writable memory, most of it is the program's. */
static void any_limit_leaves_memory(void) {
    if (getenv("TEST_AGAIN")) {
        struct rlimit limit;
        CHECK(getrlimit(RLIMIT_DATA, &limit) == 0);
        void *list = NULL;
        size_t bytes = take_all(1000, &list) * 1000;
        CHECK(bytes > limit.rlim_cur / 10 * 7, "%zu bytes of %zu", bytes, (size_t)limit.rlim_cur);
        give_all(&list);
        return;
    }
    for (double bytes = 12 << 20; bytes < 300 << 20; bytes *= 1.2) {
        pid_t child = fork();
        if (child == 0) {
            struct rlimit limit = {(rlim_t)bytes, (rlim_t)bytes};
            CHECK(setrlimit(RLIMIT_DATA, &limit) == 0);
            again("limited");
        }
        int status;
        CHECK(waitpid(child, &status, 0) == child && status == 0, "%.0f bytes: status %x", bytes, status);
    }
}

/* The thread may get nothing if the limit is below what exists. */
static void *take_and_give(void *stop) {
    while (!__atomic_load_n((int *)stop, __ATOMIC_RELAXED)) {
        char *objects[500];
        for (int i = 0; i < 500; i++)
            if ((objects[i] = malloc(i * 40 + 1))) objects[i][i * 40] = 1;
        for (int i = 0; i < 500; i++) free(objects[i]);
    }
    return NULL;
}

/* A program that limits itself while it runs has as much room as a small heap would have left it.
   It keeps what it has, and the heap grows as far as the limit goes. */
static void limited_by_itself(void) {
    enum { COUNT = 5000, BYTES = 20000 };
    static char *all[2 * COUNT];
    int stop = 0;
    pthread_t other;
    CHECK(pthread_create(&other, NULL, take_and_give, &stop) == 0);
    for (int i = 0; i < COUNT; i++) all[i] = memset(malloc(BYTES), i, BYTES);
    size_t limit_bytes = (size_t)1 << 30;
    struct rlimit none, limit = {limit_bytes, RLIM_INFINITY};
    CHECK(getrlimit(RLIMIT_AS, &none) == 0);
    CHECK(setrlimit(RLIMIT_AS, &limit) == 0);
    size_t bytes = mapped_bytes();
    CHECK(bytes < limit_bytes, "%zu bytes of %zu", bytes, limit_bytes);
    void *map = mmap(NULL, 256 << 20, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(map != MAP_FAILED, "beside %zu bytes", bytes);
    for (int i = COUNT; i < 2 * COUNT; i++) {
        CHECK((all[i] = malloc(BYTES)));
        memset(all[i], i, BYTES);
    }
    CHECK(munmap(map, 256 << 20) == 0);
    /* Once more, by the other name, to less than it has by now: it still keeps all that it has. */
    limit.rlim_cur = (size_t)300 << 20;
    CHECK(prlimit(0, RLIMIT_AS, &limit, NULL) == 0);
    CHECK(mapped_bytes() < bytes, "%zu bytes, %zu before", mapped_bytes(), bytes);
    for (int i = 0; i < 2 * COUNT; i++) CHECK(all[i][0] == (char)i && all[i][BYTES - 1] == (char)i);
    for (int i = 0; i < 2 * COUNT; i += 2) free(all[i]);
    CHECK(setrlimit(RLIMIT_AS, &none) == 0);
    for (int i = 0; i < 2 * COUNT; i += 2) CHECK((all[i] = malloc(BYTES)));
    __atomic_store_n(&stop, 1, __ATOMIC_RELAXED);
    pthread_join(other, NULL);
    for (int i = 0; i < 2 * COUNT; i++) free(all[i]);
}

/* A thread may name its process by the thread's own number. */
static void *limit_by_thread(void *limit) {
    CHECK(prlimit((pid_t)syscall(SYS_gettid), RLIMIT_AS, limit, NULL) == 0);
    return NULL;
}

/* A limit that is set for another process takes nothing from this one, though its own limit leaves
   it hardly any address space. */
static void limits_another_process(void) {
    free(malloc(100));
    pid_t other = fork();
    if (other == 0) {
        pause();
        _exit(0);
    }
    struct rlimit none, own, others = {(size_t)1 << 40, RLIM_INFINITY}, old;
    CHECK(getrlimit(RLIMIT_AS, &none) == 0);
    own = (struct rlimit){mapped_bytes() + (32 << 20), RLIM_INFINITY};
    /* By the system call alone, which the heap does not see. */
    CHECK(syscall(SYS_prlimit64, 0, RLIMIT_AS, &own, NULL) == 0);
    size_t bytes = mapped_bytes();
    CHECK(prlimit(other, RLIMIT_AS, &others, NULL) == 0);
    CHECK(prlimit(other, RLIMIT_AS, NULL, &old) == 0 && old.rlim_cur == others.rlim_cur);
    CHECK(mapped_bytes() == bytes, "%zu bytes, %zu before", mapped_bytes(), bytes);
    CHECK(kill(other, SIGKILL) == 0 && waitpid(other, NULL, 0) == other);
    pthread_t thread;
    CHECK(pthread_create(&thread, NULL, limit_by_thread, &own) == 0);
    CHECK(pthread_join(thread, NULL) == 0);
    CHECK(mapped_bytes() < bytes, "%zu bytes, %zu before", mapped_bytes(), bytes);
    CHECK(prlimit(getpid(), RLIMIT_AS, &none, NULL) == 0);
}

/* A program limits its writable memory, while it runs, to less than it has. It keeps what it has,
   requests for which there is no room are refused, and once the limit goes, all can be had again.
   (Linux makes no limit of 0 bytes.) */
static void limited_below_what_it_has(void) {
    enum { COUNT = 2000 };
    static const size_t sizes[] = {16, 600, 31000, 70000, 3000000};
    enum { SIZES = sizeof sizes / sizeof *sizes };
    static char *all[COUNT];
    static size_t bytes[COUNT];
    int stop = 0;
    pthread_t other;
    CHECK(pthread_create(&other, NULL, take_and_give, &stop) == 0);
    for (int i = 0; i < COUNT; i++) all[i] = memset(malloc(bytes[i] = sizes[i % 4]), i, sizes[i % 4]);
    struct rlimit none, limit = {4096, RLIM_INFINITY};
    CHECK(getrlimit(RLIMIT_DATA, &none) == 0);
    for (; limit.rlim_cur < 100 << 20; limit.rlim_cur *= 12) {
        CHECK(setrlimit(RLIMIT_DATA, &limit) == 0);
        void *list = NULL;
        for (int i = 0; i < SIZES; i++) {
            take_all(sizes[i], &list);
            give_all(&list);
        }
        for (int i = 0; i < COUNT; i++) {
            errno = 0;
            size_t wanted = i % 3 ? bytes[i] * 2 : bytes[i] / 2 + 1;
            char *moved = realloc(opaque(all[i]), wanted);
            CHECK(moved || (errno == ENOMEM && wanted > bytes[i]), "%zu bytes, errno %d", wanted, errno);
            if (moved) all[i] = moved;
            if (moved && wanted < bytes[i]) bytes[i] = wanted;
            for (size_t at = 0; at < bytes[i]; at += 97) CHECK(all[i][at] == (char)i, "byte %zu of object %d", at, i);
        }
        malloc_trim(0);
    }
    CHECK(setrlimit(RLIMIT_DATA, &none) == 0);
    for (int i = 0; i < COUNT; i++) {
        free(all[i]);
        CHECK((all[i] = malloc(31000)));
    }
    __atomic_store_n(&stop, 1, __ATOMIC_RELAXED);
    pthread_join(other, NULL);
    for (int i = 0; i < COUNT; i++) free(all[i]);
}

/* With `reserve:1` the heap takes no more than it needs, and gets all that it needs. */
static void reserves_little(void) {
    size_t start = mapped_bytes(), all = 0;
    CHECK(start < 32 << 20, "%zu bytes", start);
    void *list = NULL;
    for (size_t bytes = 16; bytes < 10 << 20; bytes *= 2) {
        for (size_t sum = 0; sum < 20 << 20; sum += bytes) {
            void **object = malloc(bytes);
            CHECK(object, "after %zu bytes", all);
            memset(object, 0, bytes);
            *object = list;
            list = object;
            all += bytes;
        }
    }
    CHECK(mapped_bytes() < start + 3 * all, "%zu bytes, %zu before", mapped_bytes(), start);
    give_all(&list);
}

/* Makes the kernel answer `error` to the system call `number`. */
static void refuse(int number, int error) {
    struct sock_filter code[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, number, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | error),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog program = {sizeof code / sizeof *code, code};
    CHECK(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0);
    CHECK(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0, "%s", strerror(errno));
}

static void *work(void *seed) {
    uint64_t random = (uintptr_t)seed + 5;
    unsigned char *slots[200] = {0};
    size_t sizes[200] = {0};
    for (int i = 0; i < 20000; i++) {
        int slot = next_random(&random) % 200;
        size_t bytes = random_size(&random) + 1;
        if (slots[slot]) CHECK(slots[slot][0] == slot && slots[slot][sizes[slot] - 1] == slot);
        if (i % 3) {
            slots[slot] = realloc(slots[slot], bytes);
        } else {
            free(slots[slot]);
            slots[slot] = calloc(1, bytes);
            CHECK(slots[slot] && slots[slot][0] == 0 && slots[slot][bytes - 1] == 0);
        }
        CHECK(slots[slot]);
        slots[slot][0] = slots[slot][bytes - 1] = slot;
        sizes[slot] = bytes;
    }
    for (int i = 0; i < 200; i++) free(slots[i]);
    malloc_trim(0);
    return NULL;
}

static void work_on_threads(void) {
    pthread_t threads[3];
    for (uintptr_t i = 0; i < 3; i++) pthread_create(&threads[i], NULL, work, (void *)i);
    work((void *)9);
    for (int i = 0; i < 3; i++) pthread_join(threads[i], NULL);
}

static void no_madvise(void) {
    if (!getenv("TEST_AGAIN")) refuse(SYS_madvise, EPERM);
    if (!again("refused")) return;
    CHECK(madvise(NULL, 0, MADV_DONTNEED) == -1 && errno == EPERM);
    work_on_threads();
}

/* A filter like that of a sandbox: a call that is not on the list kills, in this thread or in
   all. */
static void kill_but_for_plain_calls(int in_all) {
#define ALLOW(number) \
    BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, number, 0, 1), BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)
    struct sock_filter filter[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        ALLOW(SYS_mmap), ALLOW(SYS_munmap), ALLOW(SYS_mprotect), ALLOW(SYS_mremap),
        ALLOW(SYS_brk), ALLOW(SYS_read), ALLOW(SYS_write), ALLOW(SYS_futex),
        ALLOW(SYS_exit_group), ALLOW(SYS_exit), ALLOW(SYS_rt_sigprocmask),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_madvise, 0, 3),
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, args[2])),
        ALLOW(MADV_DONTNEED),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS),
    };
    struct sock_fprog program = {sizeof filter / sizeof *filter, filter};
    CHECK(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0);
    CHECK(prctl(PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0) == 1);
    if (in_all) {
        int flags = SECCOMP_FILTER_FLAG_TSYNC;
        CHECK(syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, flags, &program) == 0, "%s", strerror(errno));
    } else {
        CHECK(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0, "%s", strerror(errno));
    }
}

static int tells_sandbox(void) {
    const char *(*mode)(void) = dlsym(RTLD_DEFAULT, "hectare_mode");
    CHECK(mode);
    return strstr(mode(), "sandbox:true") != NULL;
}

/* The misuse is reported before the filter ends the program. */
static void misuse_in_sandbox(void) {
    char *object = opaque(malloc(100));
    free(object);
    kill_but_for_plain_calls(0);
    *(volatile char *)opaque(object) = 1;
}

static pthread_barrier_t are_all_here;

static void *work_once_confined(void *seed) {
    free(opaque(malloc(200)));
    pthread_barrier_wait(&are_all_here);
    pthread_barrier_wait(&are_all_here);
    return work(seed);
}

/* More threads than have caches of their own, on few processors. */
static void sandboxed_threads(void) {
    enum { THREADS = 40 };
    pthread_t threads[THREADS];
    pthread_barrier_init(&are_all_here, NULL, THREADS + 1);
    for (uintptr_t i = 0; i < THREADS; i++)
        CHECK(pthread_create(&threads[i], NULL, work_once_confined, (void *)i) == 0);
    pthread_barrier_wait(&are_all_here);
    kill_but_for_plain_calls(1);
    pthread_barrier_wait(&are_all_here);
    for (int i = 0; i < THREADS; i++) pthread_join(threads[i], NULL);
    CHECK(tells_sandbox());
}

static void sandboxed(void) {
    free(opaque(malloc(200)));
    CHECK(tells_sandbox() == (getenv("TEST_TOLD") != NULL));
    kill_but_for_plain_calls(0);
    CHECK(tells_sandbox());
    enum { COUNT = 200000 };
    char **all = malloc(COUNT * sizeof *all);
    uint64_t random = 1;
    for (int turn = 0; turn < 2; turn++) {
        for (int i = 0; i < COUNT; i++) {
            size_t bytes = 16 + next_random(&random) % 500;
            all[i] = memset(malloc(bytes), 5, bytes);
        }
        for (int i = 0; i < COUNT; i++) {
            int other = next_random(&random) % COUNT;
            char *object = all[i];
            all[i] = all[other];
            all[other] = object;
        }
        for (int i = 0; i < COUNT; i++) free(all[i]);
    }
    for (size_t mib = 1; mib <= 128; mib *= 2) {
        all[0] = realloc(mib > 1 ? all[0] : NULL, mib << 20);
        CHECK(all[0] != NULL);
        all[0][(mib << 20) - 1] = 1;
    }
    free(all[0]);
    free(all);
    malloc_trim(0);
}

static void no_rseq(void) {
    if (!getenv("TEST_AGAIN")) refuse(SYS_rseq, ENOSYS);
    if (!again("refused")) return;
    work_on_threads();
}

static volatile int is_over;

static void *churn_until_over(void *seed) {
    uint64_t random = (uintptr_t)seed + 1;
    while (!is_over) {
        void *all[50];
        for (int i = 0; i < 50; i++) all[i] = memset(malloc(200), 3, next_random(&random) % 200);
        for (int i = 0; i < 50; i++) free(all[i]);
    }
    return NULL;
}

/* Refused only when the lists of the CPUs are in use: then nobody can take them from the threads. A
   trim goes on without that, and a forked child does not trust its copy of the lists. */
static void no_membarrier(void) {
    free(opaque(malloc(200)));
    refuse(SYS_membarrier, EPERM);
    pthread_t threads[4];
    for (uintptr_t i = 0; i < 4; i++) pthread_create(&threads[i], NULL, churn_until_over, (void *)i);
    for (int i = 0; i < 12; i++) {
        malloc_trim(0);
        run_in_child(work, (void *)(uintptr_t)i);
    }
    is_over = 1;
    for (int i = 0; i < 4; i++) pthread_join(threads[i], NULL);
}

static void no_mremap(void) {
    if (!getenv("TEST_AGAIN")) refuse(SYS_mremap, EPERM);
    if (!again("refused")) return;
    unsigned char *p = malloc(1);
    for (size_t n = 1; n < (size_t)150 << 20; n *= 3) {
        p[0] = 1, p[n - 1] = 2;
        CHECK((p = realloc(p, n * 3)));
        CHECK(p[n - 1] == 2 && (n == 1 || p[0] == 1));
    }
    free(p);
    work_on_threads();
}

/* The kernel limits the number of mappings: a heap that makes many starves the program. */
static void few_mappings(void) {
    static void *all[20000];
    size_t start = mappings();
    for (int i = 0; i < 20000; i++) all[i] = malloc(i % 10 ? 5000 : 500000);
    for (int i = 0; i < 20000; i += 2) free(all[i]);
    malloc_trim(0);
    size_t end = mappings();
    CHECK(end < start + 100, "%zu mappings, %zu at the start", end, start);
    for (int i = 1; i < 20000; i += 2) free(all[i]);
}

/* A mapping of the process, as smaps describes it. */
struct mapping {
    size_t start, end, huge_kib;
    char flags[256];
};

/* Reads the next mapping from FILE. Returns 0 behind the last. */
static int next_mapping(FILE *file, struct mapping *mapping) {
    char line[512];
    size_t start, end;
    while (fgets(line, sizeof line, file)) {
        if (sscanf(line, "%zx-%zx ", &start, &end) == 2) *mapping = (struct mapping){start, end, SIZE_MAX, ""};
        sscanf(line, "AnonHugePages: %zu", &mapping->huge_kib);
        if (sscanf(line, "VmFlags: %255[^\n]", mapping->flags) == 1) return 1;
    }
    return 0;
}

static int is_in(const void *address, const struct mapping *mapping) {
    return mapping->start <= (uintptr_t)address && (uintptr_t)address < mapping->end;
}

/* How many bytes of mappings a dump of the process would contain; IS_DUMPED says whether the
   mapping at ADDRESS is among them. */
static size_t dumped_bytes(const void *address, int *is_dumped) {
    struct mapping mapping;
    size_t bytes = 0;
    FILE *file = fopen("/proc/self/smaps", "r");
    CHECK(file);
    *is_dumped = 0;
    while (next_mapping(file, &mapping)) {
        if (strstr(mapping.flags, " dd")) continue;
        bytes += mapping.end - mapping.start;
        *is_dumped |= is_in(address, &mapping);
    }
    fclose(file);
    return bytes;
}

/* A debugger that dumps the process (gcore) writes all that is mapped and not excluded. So merely
   reserved address space is excluded, and nothing else, even once the heap may no longer say so. */
static void reserve_is_not_dumped(void) {
    enum { COUNT = 80000, BYTES = 1000 };
    for (int confined = 0; confined < 2; confined++) {
        void *last = NULL;
        for (int i = 0; i < COUNT; i++) CHECK((last = malloc(BYTES)));
        int is_dumped;
        size_t bytes = dumped_bytes(last, &is_dumped);
        CHECK(is_dumped, "an object is missing%s", confined ? " in a program that confines itself" : "");
        CHECK(confined || bytes < 512 << 20, "%zu bytes", bytes);
        CHECK(confined || prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0);
    }
}

/* Huge pages come only where the heap asks for them, even if the machine has them everywhere.
   Otherwise a small program would hold two mebibytes more, and the kernel would make huge pages of
   what is left where memory has gone back. */
static void small_without_huge_pages(void) {
    enum { COUNT = 1000, BYTES = 1000 };
    char *object = NULL;
    struct mapping mapping;
    for (int i = 0; i < COUNT; i++) memset(object = malloc(BYTES), 1, BYTES);
    FILE *file = fopen("/proc/self/smaps", "r");
    CHECK(file);
    do CHECK(next_mapping(file, &mapping), "no mapping of the object");
    while (!is_in(object, &mapping));
    fclose(file);
    int has_huge = access("/sys/kernel/mm/transparent_hugepage", F_OK) == 0;
    CHECK(!has_huge || strstr(mapping.flags, " nh"), "%s", mapping.flags);
    CHECK(mapping.huge_kib == 0, "%zu KiB of huge pages", mapping.huge_kib);
}

/* Where they are forgone, the heap has no huge pages, however far it grows. */
static void no_huge_pages(void) {
    enum { COUNT = 60000, BYTES = 1000, LONG_BYTES = 16 << 20 };
    struct mapping mapping;
    size_t huge_kib = 0;
    for (int i = 0; i < COUNT; i++) memset(malloc(BYTES), 1, BYTES);
    for (int i = 0; i < 3; i++) memset(malloc(LONG_BYTES), 1, LONG_BYTES);
    FILE *file = fopen("/proc/self/smaps", "r");
    CHECK(file);
    while (next_mapping(file, &mapping)) huge_kib += mapping.huge_kib == SIZE_MAX ? 0 : mapping.huge_kib;
    fclose(file);
    CHECK(huge_kib == 0, "%zu KiB of huge pages", huge_kib);
}

/* How many bytes the process has of huge pages that were set aside. */
static size_t hugetlb_bytes(void) {
    char line[256];
    size_t kib = 0;
    FILE *file = fopen("/proc/self/smaps_rollup", "r");
    CHECK(file);
    while (fgets(line, sizeof line, file)) sscanf(line, "Private_Hugetlb: %zu", &kib);
    fclose(file);
    return kib << 10;
}

/* With a pool of 64 MiB. The pool is there from the start and never goes; objects that do not fit
   lie in ordinary pages; memory that comes back from the pool reads as zero if that was asked
   for. */
static void hugetlb_pool(void) {
    enum { COUNT = 100000, BYTES = 1000 };
    static char *all[COUNT];
    CHECK(hugetlb_bytes() == 64 << 20, "%zu bytes of huge pages", hugetlb_bytes());
    for (int round = 0; round < 3; round++) {
        for (int i = 0; i < COUNT; i++) memset(all[i] = malloc(BYTES), i + round, BYTES);
        pid_t child = fork();
        for (int i = 0; i < COUNT; i++) {
            CHECK(all[i][0] == (char)(i + round) && all[i][BYTES - 1] == (char)(i + round));
            all[i][1] = 1;
        }
        if (child == 0) _exit(0);
        int status;
        CHECK(waitpid(child, &status, 0) == child && status == 0, "status %x", status);
        for (int i = 0; i < COUNT; i++) free(all[i * 7919ll % COUNT]);
        malloc_trim(0);
        for (size_t bytes = 100000; bytes < 40000000; bytes *= 3) {
            char *zeros = calloc(1, bytes);
            for (size_t i = 0; i < bytes; i++) CHECK(!zeros[i]);
            memset(zeros, 1, bytes);
            free(realloc(zeros, bytes * 2));
        }
    }
    CHECK(hugetlb_bytes() == 64 << 20, "%zu bytes of huge pages", hugetlb_bytes());
}

/* If the kernel promises no more than there can be (its rule 0), neither does the heap. */
static void more_than_there_can_be(void) {
    FILE *rule = fopen("/proc/sys/vm/overcommit_memory", "r");
    if (!rule || getc(rule) == '1') return;
    fclose(rule);
    size_t bytes = (size_t)1 << 44;
    errno = 0;
    CHECK(!malloc(bytes) && errno == ENOMEM);
    CHECK(!calloc(1, bytes) && !aligned_alloc(4096, bytes) && !realloc(malloc(100), bytes));
}

/* A buffer that is freed while it is locked keeps nothing else from going back. */
static void locked_memory_goes_back(void) {
    enum { COUNT = 2000, BYTES = 50000 };
    static void *all[COUNT];
    for (int i = 0; i < COUNT; i++) memset(all[i] = malloc(BYTES), 1, BYTES);
    char *locked = memset(malloc(BYTES), 1, BYTES);
    const int dontneed_locked = 24;
    void *page = (void *)((uintptr_t)locked & ~(uintptr_t)4095);
    if (mlock(locked, BYTES) || madvise(page, 4096, dontneed_locked)) return; /* Before 5.18. */
    free(locked);
    for (int i = 0; i < COUNT; i++)
        if (i % 8) free(all[i]);
    malloc_trim(0);
    CHECK(resident_bytes() < 40 << 20, "%zu", resident_bytes());
}

int main(int argc, char **argv) {
    static const struct test_case cases[] = {
        CASE(address_space_limit), CASE(larger_objects_after_smaller),
        CASE(shorter_where_memory_is_out), CASE(regions_on_the_least_stack),
        CASE(commit_limit), CASE(control_group), CASE(fresh_calloc_is_not_touched),
        CASE(limit_leaves_room_for_others), CASE(any_limit_leaves_room), CASE(any_limit_is_used), CASE(limit_is_raised_little_by_little),
        CASE(any_limit_leaves_memory), CASE(any_size_has_room), CASE(grows_where_limited),
        CASE(limited_by_itself), CASE(limits_another_process), CASE(limited_below_what_it_has), CASE(reserves_little), CASE(no_madvise),
        CASE(sandboxed), CASE(sandboxed_threads), CASE(misuse_in_sandbox), CASE(no_rseq), CASE(no_membarrier), CASE(no_mremap), CASE(few_mappings),
        CASE(more_than_there_can_be), CASE(locked_memory_goes_back),
        CASE(hugetlb_pool), CASE(reserve_is_not_dumped), CASE(small_without_huge_pages), CASE(no_huge_pages),
    };
    arguments = argv;
    return run_case(cases, sizeof cases / sizeof *cases, argc, argv);
}
