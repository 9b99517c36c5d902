/* Each case does what the hardened front protects against, after printing an address. A case whose
   name begins with `is_` checks a property and ends with status 0. */
#include "check.h"
#include "aborting.h"
#include "sound.h"
#include <malloc.h>
#include <pthread.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>

static void *tell(void *p) {
    printf("%p\n", p);
    fflush(stdout);
    return opaque(p);
}

static void turn_over(size_t bytes, int count) {
    for (int i = 0; i < count; i++) free(opaque(malloc(bytes)));
}

/* The write is seen when the object leaves the quarantine. */
static void write_after_free(void) {
    char *p = malloc(200);
    tell(p);
    free(p);
    ((char *)opaque(p))[150] = 1;
    turn_over(200, 1000);
}

static void overwritten_link(void) {
    void **p = malloc(64);
    tell(p);
    free(p);
    ((void **)opaque(p))[0] = &p;
    turn_over(64, 1000);
}

static void overwritten_mark(void) {
    void **p = malloc(64);
    tell(p);
    free(p);
    ((void **)opaque(p))[1] = NULL;
    turn_over(64, 1000);
}

static void double_free_at_once(void) {
    void *p = malloc(100);
    tell(p);
    free(p);
    free(opaque(p));
}

/* The object's mark is overwritten in between. The quarantine tells the double free. */
static void double_free_of_written(void) {
    char *p = malloc(100);
    tell(p);
    free(p);
    memset(opaque(p), 0, 100);
    free(opaque(p));
}

static void double_free_after_quarantine(void) {
    void *p = malloc(100);
    tell(p);
    free(p);
    turn_over(100, 130);
    free(opaque(p));
}

static void double_free_large(void) {
    void *p = malloc(100000);
    tell(p);
    free(p);
    free(opaque(p));
}

static void double_free_huge(void) {
    void *p = malloc((size_t)64 << 20);
    tell(p);
    free(p);
    free(opaque(p));
}

/* A slot of a slab in use that was never handed out. */
static void never_handed_out(void) {
    char *p = malloc(1000);
    char *slab = (char *)((uintptr_t)p & ~(uintptr_t)0xffff);
    size_t bytes = malloc_usable_size(p);
    free(tell(slab + 50 * bytes));
}

/* The bytes behind the last object of a slab, in front of the sealed page. */
static char *tail(void) {
    char *p = malloc(112);
    size_t bytes = malloc_usable_size(p), room = 0x10000 - sysconf(_SC_PAGESIZE);
    return (char *)((uintptr_t)p & ~(uintptr_t)0xffff) + room / bytes * bytes;
}

static void free_of_tail(void) { free(tell(tail())); }
static void realloc_of_tail(void) { opaque(realloc(tell(tail()), 300)); }
static void size_of_tail(void) { CHECK(malloc_usable_size(tell(tail())) == 0); }

static void interior(void) { free(tell((char *)malloc(1000) + 16)); }

static void foreign(void) {
    static _Alignas(16) char object[64];
    free(tell(object));
}

typedef void (*sized_free)(void *, size_t);
extern void free_sized(void *, size_t);
extern void free_aligned_sized(void *, size_t, size_t);
#pragma weak free_sized
#pragma weak free_aligned_sized

static void wrong_size(void) { free_sized(tell(malloc(100)), 300); }
static void wrong_size_large(void) { free_sized(tell(malloc(100000)), 300000); }
static void wrong_alignment_large(void) {
    void *object = malloc(100000);
    /* Of two in a row, at least one is not aligned to a mebibyte. */
    if ((uintptr_t)object % (1 << 20) == 0) object = malloc(100000);
    free_aligned_sized(tell(object), 1 << 20, 100000);
}
/* Only blocks of more than 1 MiB get room to grow; of others the size is checked as before. */
static void wrong_size_beside_room(void) {
    char *roomy = malloc(2 << 20);
    CHECK(malloc_usable_size(roomy = realloc(roomy, (2 << 20) + 8192)) > (2 << 20) + 65536);
    free_aligned_sized(tell(aligned_alloc(8192, 60000)), 8192, 57000);
}
static void wrong_size_of_aligned(void) { free_aligned_sized(tell(aligned_alloc(4096, 100)), 16, 100); }

/* The next cases end by a fault. */
static void overflow_large(void) {
    size_t bytes = malloc_usable_size(malloc(100000));
    char *p = malloc(100000);
    tell(p + bytes);
    ((volatile char *)opaque(p))[bytes] = 1;
}

static void overflow_huge(void) {
    char *p = malloc((size_t)40 << 20);
    size_t bytes = malloc_usable_size(p);
    tell(p + bytes);
    ((volatile char *)opaque(p))[bytes] = 1;
}

/* Far beyond the object, like a loop without a bound. */
static void overflow_slab(void) {
    char *p = malloc(100);
    tell((char *)(((uintptr_t)p | 0xffff) + 1) - 4096);
    for (int i = 0; i < 65536; i++) ((volatile char *)opaque(p))[i] = 1;
}

static void read_after_free_large(void) {
    char *p = malloc(100000);
    tell(p);
    free(p);
    opaque((void *)(uintptr_t)*(volatile char *)opaque(p));
}

static void is_zero_when_freed(void) {
    for (size_t bytes = 24; bytes <= 8192; bytes *= 2) {
        unsigned char *p = malloc(bytes);
        memset(p, 0x5a, bytes);
        free(p);
        for (size_t i = 16; i < bytes; i++) CHECK(((unsigned char *)opaque(p))[i] == 0);
        CHECK(*(void **)opaque(p) == NULL, "a link to another object");
    }
}

/* An object that has left the quarantine and waits in its slab tells of no other object, either. */
static void is_zero_behind_the_quarantine(void) {
    enum { COUNT = 1000 };
    static unsigned char *objects[COUNT];
    for (size_t bytes = 16; bytes <= 8192; bytes *= 2) {
        for (int i = 0; i < COUNT; i++) memset(objects[i] = malloc(bytes), 0x5a, bytes);
        /* The other objects keep the slabs. */
        for (int i = 0; i < COUNT; i += 2) free(objects[i]);
        for (int i = 0; i < COUNT; i += 2)
            for (size_t at = 0; at < bytes; at++)
                CHECK(((unsigned char *)opaque(objects[i]))[at] == 0 || at / 8 == 1, "%zu of %zu", at, bytes);
        for (int i = 1; i < COUNT; i += 2) free(objects[i]);
    }
}

/* A new object is not the one that was just freed. */
static void is_quarantined(void) {
    for (size_t bytes = 16; bytes <= 2048; bytes *= 2) {
        void *p = malloc(bytes);
        free(p);
        for (int i = 0; i < 100; i++) {
            void *q = malloc(bytes);
            CHECK(q != opaque(p), "%zu bytes, after %d", bytes, i);
            free(q);
        }
    }
}

/* Few neighbours in time are neighbours in place. With the plain front nearly all are. */
static void is_random(void) {
    enum { COUNT = 2000 };
    int neighbours = 0;
    char *last = malloc(64);
    for (int i = 0; i < COUNT; i++) {
        char *next = malloc(64);
        if (next - last == 64 || last - next == 64) neighbours++;
        last = next;
    }
    printf("%d\n", neighbours);
    CHECK(neighbours < COUNT / 5, "%d", neighbours);
}

enum { CHILDREN = 50 };

static void *sleeps(void *unused) {
    pause();
    return unused;
}

/* A child of a raw system call, for which no fork handler runs. */
static pid_t raw_clone(void) { return (pid_t)syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0); }

/* What each of some children draws says nothing of what the others draw. */
static void draw_in_children(pid_t (*make)(void), int count) {
    uint64_t *told = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    CHECK(told != MAP_FAILED);
    free(malloc(64));
    for (int child = 0; child < CHILDREN; child++) {
        pid_t process = make();
        if (process == 0) {
            for (int i = 0; i < count; i++) told[child] = told[child] * 31 + (uintptr_t)malloc(64);
            _exit(0);
        }
        int status = 0;
        CHECK(waitpid(process, &status, 0) == process && status == 0, "%#x", status);
        for (int other = 0; other < child; other++) CHECK(told[child] != told[other], "%d and %d draw alike", child, other);
    }
}

/* From its first draw on, though the child begins with its parent's random numbers and with what
   its parent was to draw from. */
static void is_random_in_each_child(void) {
    draw_in_children(fork, 20);
    pthread_t thread;
    CHECK(pthread_create(&thread, NULL, sleeps, NULL) == 0);
    draw_in_children(fork, 20);
}

/* From its next refill on. */
static void is_random_in_each_raw_child(void) { draw_in_children(raw_clone, 40); }

static void is_sound_with_sizes(void) {
    for (size_t bytes = 0; bytes < 50000000; bytes = bytes < 20000 ? bytes + 13 : bytes * 3 / 2) {
        free_sized(malloc(bytes), bytes);
        free_sized(calloc(1, bytes), bytes);
        for (size_t align = 16; align <= 65536; align *= 8)
            free_aligned_sized(aligned_alloc(align, bytes), align, bytes);
    }
}

/* Sizes go and come back, so that runs freed for one size serve others. The heap may hand out a
   longer run than is asked for; if it has a few pages, it may be longer by more than a quarter. The
   test checks that it has seen that. */
static void is_sound_with_kept_sizes(void) {
    enum { COUNT = 64 };
    static const size_t most[] = {20000, 60000, 300000, 1500000};
    uint64_t random = 1;
    int longer = 0;
    for (size_t k = 0; k < sizeof most / sizeof *most; k++) {
        char *objects[COUNT] = {0};
        size_t bytes[COUNT] = {0}, align[COUNT] = {0};
        for (int i = 0; i < 20000; i++) {
            int j = (int)(next_random(&random) % COUNT);
            if (objects[j]) {
                size_t wanted = (bytes[j] + 4095) / 4096 + 1;
                size_t has = malloc_usable_size(objects[j]) / 4096 + 1;
                longer += align[j] == 0 && has > wanted + wanted / 4;
                if (align[j])
                    free_aligned_sized(objects[j], align[j], bytes[j]);
                else
                    free_sized(objects[j], bytes[j]);
            }
            bytes[j] = 8193 + next_random(&random) % most[k];
            align[j] = i % 8 ? 0 : (size_t)16 << i / 8 % 13;
            objects[j] = align[j] ? aligned_alloc(align[j], bytes[j]) : malloc(bytes[j]);
            CHECK(objects[j]);
            objects[j][0] = 1;
        }
        for (int j = 0; j < COUNT; j++) free(objects[j]);
    }
    CHECK(longer > 0);
}

/* How often a block moves that grows by `step` at a time to `end`. When it is freed, its owner
   gives its size. */
static size_t moves(size_t step, size_t end) {
    size_t moves = 0, bytes = step;
    char *block = malloc(bytes);
    for (; bytes < end; bytes += step) {
        memset(block + bytes - step, (int)(bytes / step % 251), step);
        char *grown = realloc(block, bytes + step);
        CHECK(grown && malloc_usable_size(grown) >= bytes + step);
        moves += grown != block;
        block = grown;
    }
    for (size_t at = 0; at + step < bytes; at += step) CHECK(block[at] == (char)((at / step + 1) % 251), "%zu", at);
    free_sized(block, bytes);
    return moves;
}

/* A string that grows by some bytes at a time moves only where its class or its pages end; a long
   block moves by an eighth at a time. */
static void is_quick_to_grow(void) {
    size_t by_bytes = moves(16, 1000000), by_pages = moves(4096, 32 << 20);
    CHECK(by_bytes < 150 && by_pages < 150, "%zu, %zu", by_bytes, by_pages);
}

/* A process may have some 65,000 mappings, and a sealed page makes two more. */
static void is_frugal_with_mappings(void) {
    for (int i = 0; i < 70000; i++) opaque(malloc(8000));
    for (int i = 0; i < 20000; i++) opaque(malloc(9000));
    CHECK(mappings() < 36000, "%zu", mappings());
}

/* Many slabs of a class. Pages come several at a time; the last page of a slab, which is sealed,
   must not be among them, and must not be written to when the slab is empty again. */
static void is_sound_as_it_shrinks(void) {
    enum { COUNT = 100000 };
    static void *objects[COUNT];
    for (size_t bytes = 16; bytes <= 4096; bytes *= 2) {
        int count = bytes <= 256 ? COUNT : COUNT * 256 / (int)bytes;
        for (int i = 0; i < count; i++) memset(objects[i] = malloc(bytes), 1, bytes);
        for (int i = 0; i < count; i++) free(objects[i]);
    }
}

/* Takes all objects that can be had, and frees them again. Returns how many there were. */
static int fill(size_t bytes) {
    enum { COUNT = 200000 };
    static void *objects[COUNT];
    int count = 0;
    while (count < COUNT && (objects[count] = malloc(bytes))) memset(objects[count++], 1, bytes);
    for (int i = 0; i < count; i++) free(objects[i]);
    return count;
}

/* How many mappings are inaccessible: sealed memory, and a few that are merely reserved. */
static size_t sealed_mappings(void) {
    char line[512];
    size_t count = 0;
    FILE *file = fopen("/proc/self/maps", "r");
    CHECK(file);
    while (fgets(line, sizeof line, file)) count += strstr(line, " ---p ") != NULL;
    fclose(file);
    return count;
}

/* To open a sealed page counts as memory, so at the limit it is refused. The slab or run of that
   page must still serve later. */
static void is_sound_at_its_limit(void) {
    static const size_t sizes[] = {1000, 31000, 200000};
    enum { SIZES = sizeof sizes / sizeof *sizes };
    struct rlimit limit = {100 << 20, RLIM_INFINITY};
    int first[SIZES];
    CHECK(setrlimit(RLIMIT_DATA, &limit) == 0);
    for (int i = 0; i < 10 * SIZES; i++) {
        int count = fill(sizes[i % SIZES]);
        if (i < SIZES)
            CHECK((size_t)(first[i] = count) * sizes[i] > 30 << 20, "%d of %zu", count, sizes[i]);
        CHECK(count > first[i % SIZES] / 2, "%d, not %d", count, first[i % SIZES]);
    }
    CHECK(resident_bytes() < 40 << 20, "%zu", resident_bytes());
    /* Only these mappings: whether the system joins opened memory to its neighbours is chance. */
    CHECK(sealed_mappings() < 1000, "%zu", sealed_mappings());
    limit.rlim_cur = RLIM_INFINITY;
    CHECK(setrlimit(RLIMIT_DATA, &limit) == 0);
    CHECK(fill(1000) > first[0]);
}

static void is_sound(void) { run_soundly(20000, 5); }

/* Memory from the system is zero already: calloc writes none of it. */
static void is_frugal_with_zeros(void) {
    for (size_t bytes = 300000; bytes <= 200 << 20; bytes *= 5) {
        for (int turn = 0; turn < 3; turn++) {
            size_t before = resident_bytes();
            char *p = calloc(1, bytes);
            CHECK(p);
            size_t touched = resident_bytes() - before;
            CHECK(bytes < 16 << 20 || touched < 1 << 20, "%zu bytes of %zu", touched, bytes);
            for (size_t i = 0; i < bytes; i += 4096) CHECK(p[i] == 0 && p[i + 4095 < bytes ? i + 4095 : i] == 0);
            memset(p, 0x5a, bytes);
            free(p);
        }
    }
}

/* The objects that a sealed slab withholds do not count as in use. */
static void is_told_in_numbers(void) {
    static void *all[40000];
    for (size_t bytes = 64; bytes <= 8000; bytes *= 5) {
        size_t before = mallinfo2().uordblks, count = 40000000 / bytes < 40000 ? 40000000 / bytes : 40000;
        for (size_t i = 0; i < count; i++) all[i] = malloc(bytes);
        size_t used = count * malloc_usable_size(all[0]), told = mallinfo2().uordblks - before;
        CHECK(told >= used && told <= used + used / 50, "%zu told, %zu used", told, used);
        for (size_t i = 0; i < count; i++) free(all[i]);
    }
}

int main(int argc, char **argv) {
    static const struct test_case cases[] = {
        CASE(write_after_free), CASE(overwritten_link), CASE(overwritten_mark),
        CASE(double_free_at_once), CASE(double_free_of_written), CASE(double_free_after_quarantine), CASE(double_free_large),
        CASE(double_free_huge), CASE(never_handed_out),
        CASE(free_of_tail), CASE(realloc_of_tail), CASE(size_of_tail), CASE(interior), CASE(foreign),
        CASE(wrong_size), CASE(wrong_size_large), CASE(wrong_alignment_large),
        CASE(wrong_size_of_aligned), CASE(wrong_size_beside_room),
        CASE(overflow_large), CASE(overflow_huge), CASE(overflow_slab),
        CASE(read_after_free_large), CASE(is_zero_when_freed),
        CASE(is_zero_behind_the_quarantine), CASE(is_quarantined),
        CASE(is_random), CASE(is_random_in_each_child), CASE(is_random_in_each_raw_child),
        CASE(is_sound_with_sizes), CASE(is_sound_with_kept_sizes), CASE(is_quick_to_grow),
        CASE(is_frugal_with_mappings), CASE(is_frugal_with_zeros), CASE(is_told_in_numbers), CASE(is_sound_as_it_shrinks),
        CASE(is_sound_at_its_limit), CASE(is_sound),
    };
    allocate_when_aborted();
    return run_case(cases, sizeof cases / sizeof *cases, argc, argv);
}
