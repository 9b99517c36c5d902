/* Uses every name of tlsf.h. Exits with 0 if all of it does what the header says. */
#include "check.h"
#include "tlsf.h"

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static _Alignas(64) char memory[128 * 1024];
static _Alignas(64) char more[32 * 1024];

struct sums {
    size_t used_blocks, free_blocks, bytes;
};

static void count(void* ptr, size_t size, int used, void* user)
{
    struct sums* sums = user;
    CHECK((uintptr_t)ptr % tlsf_align_size() == 0);
    sums->bytes += size;
    if (used)
        sums->used_blocks++;
    else
        sums->free_blocks++;
}

/* A block that lies at a multiple of 4096 by chance can be resized without room at another such
 * multiple. */
static void resize_where_aligned_by_chance(void)
{
    tlsf_t tlsf = tlsf_create_with_pool(memory, sizeof memory);
    /* The smallest blocks lie 32 bytes apart, blocks of 40 bytes 48. */
    if ((uintptr_t)tlsf_malloc(tlsf, 40) % 32 == 0)
        CHECK(tlsf_malloc(tlsf, 40) != NULL);
    char* block;
    do {
        block = tlsf_malloc(tlsf, 1);
        CHECK(block != NULL);
    } while ((uintptr_t)block % 4096 != 0);
    *block = 'x';
    CHECK(tlsf_malloc(tlsf, 1) != NULL);
    void* hole = tlsf_malloc(tlsf, 1000);
    while (tlsf_malloc(tlsf, 1) != NULL)
        ;
    tlsf_free(tlsf, hole);
    block = tlsf_realloc(tlsf, block, 900);
    CHECK(block == hole && *block == 'x');
    tlsf_destroy(tlsf);
}

int main(int argc, char** argv)
{
    resize_where_aligned_by_chance();
    CHECK(tlsf_create(memory + 1) == NULL && tlsf_create(NULL) == NULL);
    /* Nothing is written to memory that is too short for a heap. */
    memset(memory, 0xa5, tlsf_size());
    CHECK(tlsf_create_with_pool(memory, 0) == NULL);
    CHECK(tlsf_create_with_pool(memory, tlsf_size() - 1) == NULL);
    for (size_t at = 0; at < tlsf_size(); at++)
        CHECK((unsigned char)memory[at] == 0xa5);
    CHECK(tlsf_create_with_pool(memory, tlsf_size()) == NULL);
    tlsf_t tlsf = tlsf_create_with_pool(memory, sizeof memory);
    CHECK(tlsf != NULL);
    pool_t pool = tlsf_get_pool(tlsf);
    CHECK((char*)pool == memory + tlsf_size());
    CHECK(tlsf_check(tlsf) == 0 && tlsf_check_pool(pool) == 0);
    CHECK(tlsf_check_pool(NULL) < 0);

    CHECK(tlsf_align_size() == 16 && tlsf_alloc_overhead() <= 8);
    CHECK(tlsf_block_size_min() <= 24 && tlsf_block_size_max() >= (size_t)64 << 30);

    struct tlsf_stat stat, then;
    tlsf_stat(tlsf, &stat);
    CHECK(stat.pools == 1 && stat.used_bytes == 0 && stat.peak_used_bytes == 0);
    CHECK(stat.free_bytes == sizeof memory - tlsf_size() - tlsf_pool_overhead());
    CHECK(stat.largest_allocatable_bytes == stat.free_bytes - tlsf_alloc_overhead());
    void* all = tlsf_malloc(tlsf, stat.largest_allocatable_bytes);
    tlsf_stat(tlsf, &then);
    CHECK(all && then.free_bytes == 0 && then.largest_allocatable_bytes == 0);
    tlsf_free(tlsf, all);
    tlsf_stat(tlsf, &then);
    CHECK(then.used_bytes == 0 && then.peak_used_bytes == stat.free_bytes);

    CHECK(tlsf_malloc(tlsf, 0) == NULL && tlsf_realloc(tlsf, NULL, 0) == NULL);
    CHECK(tlsf_memalign(tlsf, 64, 0) == NULL && tlsf_memalign(tlsf, 48, 100) == NULL);
    CHECK(tlsf_memalign(tlsf, 0, 100) == NULL && tlsf_memalign(tlsf, SIZE_MAX / 2 + 1, 1) == NULL);
    CHECK(tlsf_malloc(tlsf, SIZE_MAX) == NULL && tlsf_memalign(tlsf, 64, SIZE_MAX) == NULL);
    CHECK(tlsf_malloc(tlsf, tlsf_block_size_max()) == NULL);
    CHECK(tlsf_malloc(tlsf, tlsf_block_size_max() + 1) == NULL && tlsf_check(tlsf) == 0);
    char* least = tlsf_malloc(tlsf, 1);
    CHECK(least && tlsf_block_size(least) == tlsf_block_size_min());
    tlsf_free(tlsf, least);
    char* a = tlsf_malloc(tlsf, 1000);
    char* b = tlsf_memalign(tlsf, 1024, 2000);
    CHECK(a && b && (uintptr_t)a % 16 == 0 && (uintptr_t)b % 1024 == 0);
    CHECK(tlsf_block_size(a) >= 1000 && tlsf_block_size(b) >= 2000 && tlsf_block_size(NULL) == 0);
    memset(a, 'a', 1000);
    memset(b, 'b', 2000);

    char* c = tlsf_realloc(tlsf, NULL, 300);
    CHECK(c != NULL);
    b = tlsf_realloc(tlsf, b, 9000);
    CHECK(b && (uintptr_t)b % 16 == 0 && b[0] == 'b' && b[1999] == 'b');
    CHECK(tlsf_realloc(tlsf, b, sizeof memory) == NULL && b[1999] == 'b');
    CHECK(tlsf_realloc(tlsf, b, SIZE_MAX) == NULL && b[1999] == 'b');
    CHECK(tlsf_realloc(tlsf, c, 0) == NULL);

    /* With used neighbours the blocks move. */
    char* row[4];
    for (int at = 0; at < 4; at++)
        CHECK((row[at] = tlsf_memalign(tlsf, 4096, 100)) != NULL);
    for (int at = 0; at < 4; at++) {
        row[at] = tlsf_realloc(tlsf, row[at], 5000);
        CHECK(row[at] && (uintptr_t)row[at] % 16 == 0);
    }
    for (int at = 0; at < 4; at++)
        tlsf_free(tlsf, row[at]);

    struct sums sums = {0};
    tlsf_walk_pool(pool, count, &sums);
    CHECK(sums.used_blocks == 2);
    CHECK(sums.bytes + (sums.used_blocks + sums.free_blocks) * tlsf_alloc_overhead()
          == sizeof memory - tlsf_size() - tlsf_pool_overhead());
    tlsf_walk_pool(pool, NULL, NULL);

    CHECK(tlsf_malloc(tlsf, 120 * 1024) == NULL);
    void* fill[256];
    size_t filled = 0;
    while (filled < 256 && (fill[filled] = tlsf_malloc(tlsf, 500)) != NULL)
        filled++;
    CHECK(filled > 100 && filled < 256);
    CHECK(tlsf_add_pool(tlsf, more + 8, 1000) == NULL && tlsf_add_pool(tlsf, NULL, 1000) == NULL);
    CHECK(tlsf_add_pool(tlsf, more, 16) == NULL && tlsf_add_pool(tlsf, more, SIZE_MAX) == NULL);
    tlsf_remove_pool(tlsf, NULL);
    tlsf_walk_pool(NULL, count, NULL);
    CHECK(tlsf_add_pool(tlsf, memory, sizeof memory) == NULL);
    CHECK(tlsf_add_pool(tlsf, memory, tlsf_size()) == NULL && tlsf_check(tlsf) == 0);
    pool_t second = tlsf_add_pool(tlsf, more, sizeof more);
    CHECK(second == more && tlsf_check_pool(second) == 0);
    char* whole = tlsf_malloc(tlsf, sizeof more - tlsf_pool_overhead() - tlsf_alloc_overhead());
    CHECK(whole >= more && whole < more + sizeof more);
    tlsf_remove_pool(tlsf, second); /* in use: stays */
    CHECK(tlsf_check(tlsf) == 0);
    tlsf_free(tlsf, whole);
    tlsf_remove_pool(tlsf, second);
    memset(more, 0xff, sizeof more);
    CHECK(tlsf_check(tlsf) == 0);

    /* The pool's size, in the word before the header of its first block. */
    size_t* size = (size_t*)((char*)pool + tlsf_pool_overhead()) - 2;
    size_t good = *size;
    for (int bit = 0; bit < 64; bit++) {
        if (bit == 1) /* only tells whose the pool is */
            continue;
        *size = good ^ (size_t)1 << bit;
        CHECK(tlsf_check(tlsf) < 0 && tlsf_check_pool(pool) < 0);
    }
    *size = good;
    CHECK(tlsf_check(tlsf) == 0 && tlsf_check_pool(pool) == 0);

    if (argc > 1 && strcmp(argv[1], "double-free") == 0) {
        tlsf_free(tlsf, a);
        tlsf_free(tlsf, a);
        return 0;
    }
    if (argc > 1 && strcmp(argv[1], "double-realloc") == 0) {
        tlsf_free(tlsf, a);
        tlsf_realloc(tlsf, a, 2000);
        return 0;
    }
    if (argc > 1 && strcmp(argv[1], "overrun") == 0) {
        memset(a, 0xee, tlsf_block_size(a) + 8);
        CHECK(tlsf_check(tlsf) < 0 && tlsf_check_pool(pool) < 0);
        return 0;
    }
    while (filled > 0)
        tlsf_free(tlsf, fill[--filled]);
    tlsf_free(tlsf, a);
    tlsf_free(tlsf, b);
    tlsf_free(tlsf, NULL);
    memset(&sums, 0, sizeof sums);
    tlsf_walk_pool(pool, count, &sums);
    CHECK(sums.used_blocks == 0 && sums.free_blocks == 1);
    tlsf_destroy(tlsf);

    tlsf = tlsf_create(memory);
    CHECK(tlsf != NULL && tlsf_malloc(tlsf, 1) == NULL);
    tlsf_destroy(tlsf);
    return 0;
}
