/* The contracts of the C names. */
#include "check.h"
#include <dlfcn.h>
#include <linux/userfaultfd.h>
#include <malloc.h>
#include <pthread.h>
#include <sys/ioctl.h>
#include <sys/syscall.h>

static const char *const NAMES[] = {
    "malloc", "free", "calloc", "realloc", "aligned_alloc", "memalign", "posix_memalign", "valloc",
    "pvalloc", "malloc_usable_size", "reallocarray", "free_sized", "free_aligned_sized", "cfree",
    "mallopt", "mallinfo", "mallinfo2", "malloc_info", "malloc_stats", "malloc_trim",
    "__libc_malloc", "__libc_free", "__libc_cfree", "__libc_calloc", "__libc_realloc",
    "__libc_memalign", "__libc_valloc", "__libc_pvalloc", "__posix_memalign",
    /* operator new and new[]: plain, nothrow, aligned, aligned nothrow */
    "_Znwm", "_Znam", "_ZnwmRKSt9nothrow_t", "_ZnamRKSt9nothrow_t", "_ZnwmSt11align_val_t",
    "_ZnamSt11align_val_t", "_ZnwmSt11align_val_tRKSt9nothrow_t",
    "_ZnamSt11align_val_tRKSt9nothrow_t",
    /* operator delete and delete[]: plain, sized, aligned, sized aligned, nothrow, aligned nothrow */
    "_ZdlPv", "_ZdaPv", "_ZdlPvm", "_ZdaPvm", "_ZdlPvSt11align_val_t", "_ZdaPvSt11align_val_t",
    "_ZdlPvmSt11align_val_t", "_ZdaPvmSt11align_val_t", "_ZdlPvRKSt9nothrow_t",
    "_ZdaPvRKSt9nothrow_t", "_ZdlPvSt11align_val_tRKSt9nothrow_t",
    "_ZdaPvSt11align_val_tRKSt9nothrow_t",
};

/* The names belong to the library, or to the file that the environment names. */
static void names_are_ours(void) {
    const char *file = getenv("TEST_FILE") ? getenv("TEST_FILE") : "libhectare.so";
    for (size_t i = 0; i < sizeof NAMES / sizeof *NAMES; i++) {
        void *address = dlsym(RTLD_DEFAULT, NAMES[i]);
        CHECK(address, "%s is nowhere", NAMES[i]);
        Dl_info info;
        CHECK(dladdr(address, &info), "%s", NAMES[i]);
        CHECK(strstr(info.dli_fname, file), "%s is %s's", NAMES[i], info.dli_fname);
    }
}

static void free_keeps_errno(void) {
    size_t sizes[] = {1, 100, 5000, 40000, 300000, 3000000, 70000000};
    for (int round = 0; round < 200; round++) {
        for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
            void *many[20];
            int count = sizes[i] > 1000000 ? 2 : 20;
            for (int j = 0; j < count; j++) CHECK((many[j] = malloc(sizes[i])));
            for (int j = 0; j < count; j++) {
                errno = 4321;
                free(many[j]);
                CHECK(errno == 4321, "%d after free of %zu bytes", errno, sizes[i]);
            }
        }
    }
    errno = 4321;
    free(NULL);
    CHECK(errno == 4321);
    void *p = malloc(100);
    CHECK(errno == 4321, "malloc that succeeds leaves it too");
    errno = 4321;
    CHECK(realloc(p, 0) == NULL);
    CHECK(errno == 4321);
}

/* CHECKs that `expression` is null and sets ENOMEM. */
#define REFUSED(expression)                           \
    do {                                              \
        errno = 0;                                    \
        CHECK((expression) == NULL);                  \
        CHECK(errno == ENOMEM, "errno %d", errno);    \
    } while (0)

static void too_large_is_enomem(void) {
    size_t sizes[] = {(size_t)PTRDIFF_MAX + 1, SIZE_MAX - 4096, SIZE_MAX - 1, SIZE_MAX,
                      (size_t)PTRDIFF_MAX, (size_t)1 << 60};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        volatile size_t n = sizes[i];
        REFUSED(malloc(n));
        REFUSED(calloc(1, n));
        REFUSED(calloc(n, 1));
        REFUSED(memalign(64, n));
        REFUSED(aligned_alloc(4096, n));
        REFUSED(valloc(n));
        REFUSED(pvalloc(n));
        char *p = malloc(100);
        strcpy(p, "still here");
        REFUSED(realloc(p, n));
        REFUSED(reallocarray(p, n, 1));
        CHECK(strcmp(p, "still here") == 0);
        free(p);
        void *place = &place;
        errno = 77;
        CHECK(posix_memalign(&place, 64, n) == ENOMEM);
        CHECK(place == &place && errno == 77);
    }
    REFUSED(memalign((size_t)1 << 62, 10));
    REFUSED(aligned_alloc((size_t)1 << 63, 10));
    void *p = malloc(10);
    CHECK(p, "and all is well again");
    free(p);
}

static void calloc_overflow(void) {
    volatile size_t half = (size_t)1 << 32;
    REFUSED(calloc(half, half));
    REFUSED(calloc(half + 1, half));
    REFUSED(calloc(SIZE_MAX, 2));
    REFUSED(calloc(SIZE_MAX / 2 + 2, 2));
}

static void calloc_is_zero(void) {
    size_t sizes[] = {1, 7, 16, 100, 1000, 4096, 10000, 32768, 32769, 70000, 1000000, 5000000, 40000000};
    for (int round = 0; round < 6; round++) {
        for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
            unsigned char *p = calloc(1, sizes[i]);
            CHECK(p);
            for (size_t j = 0; j < sizes[i]; j++) CHECK(p[j] == 0, "byte %zu of %zu", j, sizes[i]);
            memset(p, 0xa5, sizes[i]);
            free(p);
        }
    }
}

static void posix_memalign_einval(void) {
    size_t bad[] = {0, 1, 2, 3, 4, 7, 12, 24, 48, 65, 4095, SIZE_MAX};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        void *place = &place;
        errno = 99;
        CHECK(posix_memalign(&place, bad[i], 100) == EINVAL, "alignment %zu", bad[i]);
        CHECK(place == &place, "the place is left alone");
        CHECK(errno == 99, "errno is left alone");
    }
    void *place = NULL;
    errno = 99;
    CHECK(posix_memalign(&place, 8, 100) == 0 && place && errno == 99);
    free(place);
}

/* An alignment that is no power of two is rounded up to one, as in glibc 2.36. */
static void odd_alignments(void) {
    size_t odd[] = {0, 3, 17, 24, 48, 100, 4095, 5000, 65537};
    for (size_t i = 0; i < sizeof odd / sizeof *odd; i++) {
        volatile size_t align = odd[i];
        void *all[] = {memalign(align, 96), aligned_alloc(align, 96)};
        for (int j = 0; j < 2; j++) {
            size_t rounded = 1;
            while (rounded < align) rounded *= 2;
            CHECK(all[j] && (uintptr_t)all[j] % rounded == 0, "%p aligned to %zu", all[j], align);
            CHECK(malloc_usable_size(all[j]) >= 96);
        }
        free(all[0]);
        free(all[1]);
    }
    size_t none[] = {((size_t)1 << 63) + 1, SIZE_MAX};
    for (size_t i = 0; i < 2; i++) {
        errno = 0;
        CHECK(!memalign(none[i], 96) && errno == EINVAL);
        errno = 0;
        CHECK(!aligned_alloc(none[i], 96) && errno == EINVAL);
    }
}

static void aligned(void) {
    for (size_t align = 1; align <= (size_t)8 << 20; align *= 2) {
        size_t sizes[] = {0, 1, align - 1, align, align + 1, 3 * align, 100, 33000};
        void *all[8];
        for (int i = 0; i < 8; i++) {
            CHECK((all[i] = memalign(align, sizes[i])));
            CHECK((uintptr_t)all[i] % align == 0, "memalign(%zu, %zu) = %p", align, sizes[i], all[i]);
            memset(all[i], i + 1, sizes[i]);
        }
        for (int i = 0; i < 8; i++) {
            for (size_t j = 0; j < sizes[i]; j += 61) CHECK(((char *)all[i])[j] == i + 1);
            free(all[i]);
        }
        void *p = aligned_alloc(align, 5 * align);
        CHECK(p && (uintptr_t)p % align == 0);
        void *q = NULL;
        if (align >= sizeof(void *)) {
            CHECK(posix_memalign(&q, align, 77) == 0);
            CHECK(q && (uintptr_t)q % align == 0);
        }
        /* An aligned object is like any other. */
        p = realloc(p, 10 * align + 1);
        CHECK(p);
        free(p);
        free(q);
        /* It grows in place only as far as the memory is its own. */
        for (size_t bytes = 8200; bytes < 40000; bytes += 3000) {
            char *grown = realloc(memalign(align, bytes), bytes + bytes / 5);
            CHECK(grown);
            CHECK(malloc_usable_size(grown) >= bytes + bytes / 5, "%zu aligned to %zu", bytes, align);
            free(grown);
        }
    }
    void *p = memalign(48, 10);
    CHECK(p && (uintptr_t)p % 64 == 0, "glibc rounds an odd alignment up");
    free(p);
}

static void least_alignment(void) {
    for (size_t n = 0; n < 3000; n++) {
        void *p = malloc(n), *q = calloc(n, 1), *r = realloc(NULL, n);
        CHECK((uintptr_t)p % 16 == 0 && (uintptr_t)q % 16 == 0 && (uintptr_t)r % 16 == 0);
        free(p), free(q), free(r);
    }
    for (size_t n = 30000; n < 9000000; n += n / 3) {
        void *p = malloc(n);
        CHECK(p && (uintptr_t)p % 16 == 0);
        free(p);
    }
}

static int by_address(const void *a, const void *b) {
    uintptr_t x = *(const uintptr_t *)a, y = *(const uintptr_t *)b;
    return x < y ? -1 : x > y;
}

static void zero_bytes_unique(void) {
    static void *all[3000];
    for (int i = 0; i < 3000; i += 3) {
        all[i] = malloc(0);
        all[i + 1] = calloc(0, 8);
        all[i + 2] = realloc(NULL, 0);
    }
    qsort(all, 3000, sizeof *all, by_address);
    CHECK(all[0]);
    for (int i = 1; i < 3000; i++) CHECK(all[i] != all[i - 1]);
    for (int i = 0; i < 3000; i++) free(all[i]);
}

static void realloc_to_zero(void) {
    for (size_t n = 1; n < 50000000; n = n * 5 + 1) {
        void *p = malloc(n);
        errno = 55;
        CHECK(realloc(p, 0) == NULL, "%zu", n);
        CHECK(errno == 55);
    }
    size_t before = mallinfo2().uordblks + mallinfo2().hblkhd;
    for (int i = 0; i < 1000; i++) {
        char *p = malloc(1000000);
        CHECK(realloc(p, 0) == NULL);
    }
    size_t after = mallinfo2().uordblks + mallinfo2().hblkhd;
    CHECK(after < before + 3000000, "the objects are freed: %zu, %zu", before, after);
}

static void fill(unsigned char *p, size_t n, unsigned seed) {
    for (size_t i = 0; i < n; i++) p[i] = (unsigned char)(i * 31 + i / 251 + seed);
}

static void expect(const unsigned char *p, size_t n, unsigned seed) {
    for (size_t i = 0; i < n; i++)
        CHECK(p[i] == (unsigned char)(i * 31 + i / 251 + seed), "byte %zu of %zu", i, n);
}

static void realloc_keeps_contents(void) {
    uint64_t random = 7;
    unsigned char *p[64] = {0};
    size_t n[64] = {0};
    for (int i = 0; i < 6000; i++) {
        int slot = next_random(&random) % 64;
        size_t want = random_size(&random) + 1;
        if (i % 4 == 0) want = n[slot] + n[slot] / 8 + 1;
        if (want > 20000000) want = 10;
        unsigned char *q = realloc(p[slot], want);
        CHECK(q);
        size_t kept = n[slot] < want ? n[slot] : want;
        expect(q, kept < 4096 ? kept : 4096, slot);
        if (kept) CHECK(q[kept - 1] == (unsigned char)((kept - 1) * 31 + (kept - 1) / 251 + slot));
        fill(q, want, slot);
        p[slot] = q;
        n[slot] = want;
    }
    for (int i = 0; i < 64; i++) {
        expect(p[i], n[i], i);
        free(p[i]);
    }
}

/* If a vector that grows to 512 MiB were copied, that would move 1 GiB and touch both copies;
   moving pages does neither. */
static void realloc_huge_moves_pages(void) {
    size_t before = resident_bytes();
    unsigned char *p = NULL;
    for (size_t n = 1 << 20; n <= (size_t)512 << 20; n *= 2) {
        CHECK((p = realloc(p, n)));
        p[0] = 1;
        p[n - 1] = 2;
        CHECK(n == 1 << 20 || p[n / 2 - 1] == 2);
    }
    size_t grown = resident_bytes() - before;
    CHECK(grown < 64 << 20, "%zu bytes resident for a handful of touched pages", grown);
    free(p);
}

static void reallocarray_case(void) {
    int *p = reallocarray(NULL, 10, sizeof *p);
    CHECK(p);
    for (int i = 0; i < 10; i++) p[i] = i;
    CHECK((p = reallocarray(p, 1000, sizeof *p)));
    for (int i = 0; i < 10; i++) CHECK(p[i] == i);
    volatile size_t half = (size_t)1 << 33;
    REFUSED(reallocarray(p, half, half));
    CHECK(p[9] == 9);
    free(p);
}

static void usable_size(void) {
    CHECK(malloc_usable_size(NULL) == 0);
    for (size_t n = 0; n < 40000000; n = n < 600 ? n + 1 : n + n / 7) {
        unsigned char *p = malloc(n);
        size_t usable = malloc_usable_size(p);
        CHECK(usable >= n, "%zu of %zu", usable, n);
        memset(p, 0xee, usable);
        unsigned char *q = malloc(n);
        memset(q, 0xdd, malloc_usable_size(q));
        for (size_t i = 0; i < usable; i += i < 600 ? 1 : 509) CHECK(p[i] == 0xee);
        free(p);
        free(q);
    }
}

static void valloc_pvalloc(void) {
    size_t page = sysconf(_SC_PAGESIZE);
    for (size_t n = 0; n < 100000; n += 997) {
        /* Beside others: the first object of a slab is aligned by chance. */
        void *before = malloc(n), *p = valloc(n), *q = pvalloc(n), *r = valloc(n);
        CHECK(p && (uintptr_t)p % page == 0);
        CHECK(r && (uintptr_t)r % page == 0);
        CHECK(q && (uintptr_t)q % page == 0);
        CHECK(malloc_usable_size(q) >= page && malloc_usable_size(q) >= n);
        memset(q, 1, (n + page - 1) / page * page);
        free(before), free(p), free(q), free(r);
    }
}

static void sized_frees(void) {
    void (*sized)(void *, size_t) = dlsym(RTLD_DEFAULT, "free_sized");
    void (*aligned_sized)(void *, size_t, size_t) = dlsym(RTLD_DEFAULT, "free_aligned_sized");
    void (*old)(void *) = dlsym(RTLD_DEFAULT, "cfree");
    CHECK(sized && aligned_sized && old);
    for (size_t n = 0; n < 3000000; n = n * 3 + 1) {
        sized(malloc(n), n);
        aligned_sized(aligned_alloc(256, n), 256, n);
        old(malloc(n));
    }
    sized(NULL, 0);
    aligned_sized(NULL, 16, 0);
    old(NULL);
}

static void libc_aliases(void) {
    void *(*a_malloc)(size_t) = dlsym(RTLD_DEFAULT, "__libc_malloc");
    void (*a_free)(void *) = dlsym(RTLD_DEFAULT, "__libc_free");
    void *(*a_calloc)(size_t, size_t) = dlsym(RTLD_DEFAULT, "__libc_calloc");
    void *(*a_realloc)(void *, size_t) = dlsym(RTLD_DEFAULT, "__libc_realloc");
    void *(*a_memalign)(size_t, size_t) = dlsym(RTLD_DEFAULT, "__libc_memalign");
    char *p = a_malloc(100);
    strcpy(p, "of one heap");
    p = realloc(p, 100000);
    p = a_realloc(p, 200);
    CHECK(strcmp(p, "of one heap") == 0);
    free(p);
    a_free(malloc(50));
    free(a_calloc(10, 10));
    p = a_memalign(512, 10);
    CHECK((uintptr_t)p % 512 == 0);
    free(p);
}

static void mallopt_case(void) {
    CHECK(mallopt(M_MMAP_THRESHOLD, 1 << 20) == 1);
    CHECK(mallopt(M_ARENA_MAX, 1) == 1);
}

static size_t in_use(void) {
    struct mallinfo2 info = mallinfo2();
    return info.uordblks + info.hblkhd;
}

/* Allows for what the heap may round up or hold in a thread's cache. */
static int near(size_t value, size_t expected) {
    size_t slack = expected / 8 + 300000;
    return value + slack >= expected && value <= expected + slack;
}

static void mallinfo2_is_true(void) {
    static char *small[20000], *large[50], *huge[3];
    size_t start = in_use();
    for (int i = 0; i < 20000; i++) small[i] = malloc(1000);
    CHECK(near(in_use() - start, 20000 * 1000), "%zu", in_use() - start);
    size_t with_small = in_use();
    for (int i = 0; i < 50; i++) large[i] = malloc(200000);
    CHECK(near(in_use() - with_small, 50 * 200000), "%zu", in_use() - with_small);
    struct mallinfo2 before = mallinfo2();
    for (int i = 0; i < 3; i++) huge[i] = malloc(64 << 20);
    struct mallinfo2 after = mallinfo2();
    CHECK(after.hblks - before.hblks == 3, "%zu", after.hblks - before.hblks);
    CHECK(near(after.hblkhd - before.hblkhd, 3 * (64 << 20)));
    for (int i = 0; i < 20000; i++) free(small[i]);
    for (int i = 0; i < 50; i++) free(large[i]);
    for (int i = 0; i < 3; i++) free(huge[i]);
    CHECK(near(in_use(), start), "%zu, %zu at the start", in_use(), start);
    struct mallinfo2 end = mallinfo2();
    CHECK(end.arena + end.hblkhd >= end.uordblks + end.fordblks,
          "arena %zu, in use %zu, free %zu", end.arena, end.uordblks, end.fordblks);
}

/* With one thread there is nothing to guess: the bytes in use are the sum of the live ones. */
static void mallinfo2_is_exact(void) {
    enum { COUNT = 30000 };
    static void *all[COUNT];
    uint64_t random = 11;
    free(malloc(100));
    size_t start = in_use(), live = 0;
    for (int i = 0; i < 4 * COUNT; i++) {
        int at = next_random(&random) % COUNT;
        if (all[at]) live -= malloc_usable_size(all[at]);
        free(all[at]);
        all[at] = i % 3 ? malloc(random_size(&random)) : NULL;
        if (i % 20000 == 0) all[at] = realloc(all[at], (size_t)50 << 20);
        if (all[at]) live += malloc_usable_size(all[at]);
        if (i % 1000 == 0) CHECK(in_use() - start == live, "%zu, live are %zu", in_use() - start, live);
    }
    for (int i = 0; i < COUNT; i++) free(all[i]);
    CHECK(in_use() == start, "%zu, %zu at the start", in_use(), start);
}

static void mallinfo_agrees(void) {
    void *p = malloc(1000000);
    struct mallinfo2 wide = mallinfo2();
#pragma GCC diagnostic ignored "-Wdeprecated-declarations"
    struct mallinfo narrow = mallinfo();
    CHECK((size_t)narrow.uordblks == wide.uordblks && (size_t)narrow.arena == wide.arena);
    CHECK((size_t)narrow.hblkhd == wide.hblkhd && (size_t)narrow.fordblks == wide.fordblks);
    void *q = malloc((size_t)5 << 30);
    if (q) {
        narrow = mallinfo();
        CHECK(narrow.hblkhd == 0x7fffffff, "too much for an int is the largest int: %d", narrow.hblkhd);
    }
    free(p), free(q);
}

/* A program may copy memory that it never wrote. The old contents of that memory, including the
   heap's own marks of free objects, must not look like damage in the place that they are copied
   to. */
static void untouched_contents_move(void) {
    enum { COUNT = 40 };
    static char *all[COUNT];
    for (int i = 0; i < COUNT; i++) all[i] = malloc(32768);
    for (int i = 0; i < COUNT; i++) free(all[i]);
    malloc_trim((size_t)1 << 40);
    char *run = malloc(65536);
    for (int i = 0; i < COUNT; i++) memcpy(all[i] = malloc(20000), run, 20000);
    free(run);
    for (int i = 0; i < COUNT; i++) {
        all[i] = realloc(all[i], 30000);
        CHECK(malloc_usable_size(all[i]) >= 30000);
    }
    for (int i = 0; i < COUNT; i++) free(all[i]);
}

/* The program serves the faults of a part of an object. That part therefore has a mapping of its
   own, which the system does not move, and the part before it must not be moved alone. */
static void parts_stay_together(void) {
    enum { WORDS = (20 << 20) / sizeof(size_t) };
    int served = (int)syscall(SYS_userfaultfd, UFFD_USER_MODE_ONLY);
    struct uffdio_api api = {.api = UFFD_API};
    CHECK(served >= 0 && ioctl(served, UFFDIO_API, &api) == 0, "%s", strerror(errno));
    size_t *object = malloc(WORDS * sizeof *object);
    for (size_t i = 0; i < WORDS; i++) object[i] = i;
    uintptr_t middle = (uintptr_t)(object + WORDS / 2) & ~(uintptr_t)4095;
    struct uffdio_register part = {.range = {middle, 1 << 20}, .mode = UFFDIO_REGISTER_MODE_MISSING};
    CHECK(ioctl(served, UFFDIO_REGISTER, &part) == 0, "%s", strerror(errno));
    CHECK((object = realloc(object, (size_t)1100 << 20)));
    for (size_t i = 0; i < WORDS; i++) CHECK(object[i] == i, "word %zu", i);
    free(object);
}

/* The number behind `key` in `text`. */
static size_t number_after(const char *text, const char *key) {
    const char *at = strstr(text, key);
    CHECK(at, "%s in:\n%s", key, text);
    return strtoull(at + strlen(key), NULL, 10);
}

static void malloc_info_is_true(void) {
    errno = 0;
    CHECK(malloc_info(1, stdout) == EINVAL, "no options exist");
    static char *all[10000];
    for (int i = 0; i < 10000; i++) all[i] = malloc(3000);
    void *huge = malloc(100 << 20);
    char *text = NULL;
    size_t bytes = 0;
    FILE *stream = open_memstream(&text, &bytes);
    CHECK(malloc_info(0, stream) == 0);
    fclose(stream);
    CHECK(strncmp(text, "<malloc version=\"1\"", 19) == 0, "%s", text);
    CHECK(strcmp(text + bytes - 10, "</malloc>\n") == 0);
    CHECK(near(number_after(text, "<total type=\"small\" size=\""), 30000000));
    CHECK(near(number_after(text, "<total type=\"mmap\" size=\""), 100 << 20));
    CHECK(number_after(text, "<size bytes=\"3072\" slabs=\"") >= 10000 / 22);
    free(text);
    for (int i = 0; i < 10000; i++) free(all[i]);
    free(huge);
}

static void malloc_info_prints(void) { CHECK(malloc_info(0, stdout) == 0); }

static void malloc_stats_prints(void) {
    int ends[2];
    CHECK(pipe(ends) == 0);
    int saved = dup(2);
    void *keep = malloc(123 << 20);
    dup2(ends[1], 2);
    malloc_stats();
    dup2(saved, 2);
    close(ends[1]);
    static char text[60000];
    size_t bytes = 0;
    ssize_t got;
    while ((got = read(ends[0], text + bytes, sizeof text - 1 - bytes)) > 0) bytes += got;
    CHECK(near(number_after(text, "huge objects "), 123 << 20));
    free(keep);
}

enum { TELLERS = 8, HELD = 1500 };
static void *held[TELLERS][HELD];

/* Holds objects of all kinds, including a huge one; others come and go. */
static void *hold(void *number) {
    uintptr_t own = (uintptr_t)number;
    uint64_t random = own + 21;
    for (int i = 0; i < 4 * HELD; i++) {
        void **place = &held[own][next_random(&random) % HELD];
        free(*place);
        *place = malloc(random_size(&random) % 400000);
    }
    for (int i = 0; i < HELD; i++) {
        if (!held[own][i]) held[own][i] = malloc(100);
    }
    free(held[own][0]);
    held[own][0] = malloc((size_t)50 << 20);
    return NULL;
}

/* The value of `key` in the statistics as JSON. */
static size_t exported(const char *key) {
    int (*dump)(const char *) = dlsym(RTLD_DEFAULT, "hectare_stats_dump");
    const char *path = getenv("TEST_PATH");
    CHECK(dump && path && dump(path) == 0);
    static char text[60000];
    FILE *file = fopen(path, "r");
    CHECK(file);
    size_t bytes = fread(text, 1, sizeof text - 1, file);
    fclose(file);
    text[bytes] = 0;
    return number_after(text, key);
}

/* The heap knows what threads left behind when they ended, and each way to ask gives the same
   answer. With threads' own caches the answer is exact; the other fronts round, seal or keep back
   in their own ways. */
static void statistics_of_many_threads(void) {
    int is_exact = getenv("TEST_EXACT") != NULL;
    exported("\"used_bytes\": ");
    size_t start = in_use(), huge = mallinfo2().hblks;
    pthread_t threads[TELLERS];
    for (uintptr_t i = 0; i < TELLERS; i++)
        CHECK(pthread_create(&threads[i], NULL, hold, (void *)i) == 0);
    for (int i = 0; i < TELLERS; i++) pthread_join(threads[i], NULL);
    size_t live = 0;
    for (int i = 0; i < TELLERS; i++) {
        for (int j = 0; j < HELD; j++) live += malloc_usable_size(held[i][j]);
    }
    size_t told = in_use() - start;
    /* For each thread that comes later, the C library keeps some hundred bytes. */
    int is_true = is_exact ? told - live < TELLERS * 500 : near(told, live);
    CHECK(is_true, "%zu, live are %zu", told, live);
    CHECK(mallinfo2().hblks - huge == TELLERS, "%zu huge objects", mallinfo2().hblks - huge);
    CHECK(near(exported("\"used_bytes\": ") - start, live));
    CHECK(exported("\"huge_objects\": ") - huge == TELLERS);
    CHECK(near(exported("\"small_bytes\": ") + exported("\"large_bytes\": ") +
               exported("\"huge_bytes\": ") - start, live));
    char *text = NULL;
    size_t bytes = 0;
    FILE *stream = open_memstream(&text, &bytes);
    CHECK(malloc_info(0, stream) == 0);
    fclose(stream);
    size_t in_xml = number_after(text, "<total type=\"small\" size=\"") +
                    number_after(text, "<total type=\"run\" size=\"") +
                    number_after(text, "<total type=\"mmap\" size=\"");
    CHECK(near(in_xml - start, live), "%zu", in_xml - start);
    /* The figures of the classes add up to their sum as reported. */
    size_t of_classes = 0;
    for (const char *at = text; (at = strstr(at, "<size bytes=\"")); at++)
        of_classes += number_after(at, "bytes=\"") * number_after(at, "used=\"");
    CHECK(of_classes == number_after(text, "<total type=\"small\" size=\""), "%zu", of_classes);
    free(text);
    for (int i = 0; i < TELLERS; i++) {
        for (int j = 0; j < HELD; j++) free(held[i][j]);
    }
    size_t left = in_use() - start;
    /* A quarantine counts as in use: at most 256 KiB for each of 64 classes. */
    CHECK(left < (is_exact ? 60000 : 64 * 256 << 10), "%zu bytes are left", left);
}

static void malloc_trim_gives_back(void) {
    malloc_trim(0);
    size_t start = resident_bytes();
    enum { COUNT = 200000 };
    void **all = malloc(COUNT * sizeof *all);
    for (int i = 0; i < COUNT; i++) memset(all[i] = malloc(500), 1, 500);
    size_t peak = resident_bytes();
    CHECK(peak > start + 90000000);
    for (int i = 0; i < COUNT; i++) free(all[i]);
    free(all);
    malloc_trim(0);
    size_t end = resident_bytes();
    CHECK(end < start + 4000000, "%zu bytes at the start, %zu at the end", start, end);
    /* Reading the size has used, and freed, some of the lists that a trim empties. */
    malloc_trim(0);
    CHECK(malloc_trim(0) == 0, "nothing is left to give back");
    /* The second of two equally long blocks lies ready when it is freed. A trim gives it back,
       too. */
    enum { HUGE_BYTES = 1 << 30 };
    for (int i = 0; i < 2; i++) {
        void *volatile huge = malloc(HUGE_BYTES);
        free(huge);
    }
    int lies_ready = mallinfo2().keepcost >= HUGE_BYTES;
    CHECK(malloc_trim(0) == lies_ready, "whether a block lay ready: %d", lies_ready);
    CHECK(mallinfo2().smblks == 0, "%zu objects still lie on lists", mallinfo2().smblks);
}

/* Blocks that nobody writes to are taken anew. With a huge page for each, all of them would hold
   memory. */
static void untouched_blocks_hold_nothing(void) {
    enum { COUNT = 100 };
    static void *all[COUNT];
    size_t start = resident_bytes();
    for (int round = 0; round < 3; round++) {
        for (int i = 0; i < COUNT; i++) all[i] = malloc(800 << 10);
        size_t bytes = resident_bytes();
        CHECK(bytes < start + 4000000, "%zu bytes at the start, %zu in round %d", start, bytes, round);
        for (int i = 0; i < COUNT; i++) free(all[i]);
    }
}

/* One byte of each buffer is written. Each buffer lies in pages of its own, and one of them is
   enough. */
static void buffers_hold_what_is_written(void) {
    enum { COUNT = 4000 };
    static char *all[COUNT];
    static const size_t sizes[] = {7500, 20000, 40000};
    for (int size = 0; size < 3; size++) {
        size_t start = resident_bytes();
        for (int i = 0; i < COUNT; i++) *(all[i] = malloc(sizes[size])) = 1;
        size_t end = resident_bytes();
        CHECK(end < start + (size_t)COUNT * 4096 + 8000000, "%zu bytes, %zu with those of %zu bytes", start, end, sizes[size]);
        for (int i = 0; i < COUNT; i++) free(all[i]);
        malloc_trim(0);
    }
}

/* The objects are freed in random order, so that nearly to the end each page keeps one. The calls
   that free must therefore see to what is left, for no call comes after them. */
static void a_peak_goes_back(void) {
    enum { COUNT = 1000000 };
    static void *all[COUNT];
    unsigned long long random = 88172645463325252ull;
    memset(all, 1, sizeof all);
    size_t start = resident_bytes();
    for (int i = 0; i < COUNT; i++) {
        size_t bytes = 16 + (size_t)i * 7919 % 497;
        memset(all[i] = malloc(bytes), 1, bytes);
    }
    size_t peak = resident_bytes();
    CHECK(peak > start + 250000000, "%zu bytes at the start, %zu at the peak", start, peak);
    for (int i = COUNT - 1; i >= 0; i--) {
        random ^= random << 13, random ^= random >> 7, random ^= random << 17;
        int other = (int)(random % (unsigned)(i + 1));
        free(all[other]);
        all[other] = all[i];
    }
    size_t end = resident_bytes();
    size_t kept = 16000000;
    const char *configuration = getenv("HECTARE_CONF");
    /* The quarantine holds up to 256 KiB of each of the 24 classes from 16 to 512 bytes. */
    if (configuration && strstr(configuration, "secure")) kept += 24 * (256 << 10);
    CHECK(end < start + kept, "%zu bytes at the start, %zu at the end", start, end);
}

int main(int argc, char **argv) {
    static const struct test_case cases[] = {
        CASE(names_are_ours), CASE(free_keeps_errno), CASE(too_large_is_enomem),
        CASE(calloc_overflow), CASE(calloc_is_zero), CASE(posix_memalign_einval), CASE(odd_alignments), CASE(aligned),
        CASE(least_alignment), CASE(zero_bytes_unique), CASE(realloc_to_zero),
        CASE(realloc_keeps_contents), CASE(realloc_huge_moves_pages),
        CASE(untouched_contents_move), CASE(parts_stay_together),
        {"reallocarray", reallocarray_case}, CASE(usable_size), CASE(valloc_pvalloc),
        CASE(sized_frees), CASE(libc_aliases), {"mallopt", mallopt_case},
        CASE(mallinfo2_is_true), CASE(mallinfo2_is_exact), CASE(mallinfo_agrees), CASE(malloc_info_is_true),
        CASE(malloc_info_prints), CASE(malloc_stats_prints), CASE(statistics_of_many_threads), CASE(malloc_trim_gives_back),
        CASE(a_peak_goes_back), CASE(untouched_blocks_hold_nothing),
        CASE(buffers_hold_what_is_written),
    };
    return run_case(cases, sizeof cases / sizeof *cases, argc, argv);
}
