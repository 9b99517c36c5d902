/* Uses every name of hectare_store.h. Exits with 0 if all of it does what the header says. */
#define _POSIX_C_SOURCE 200809L
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "address_space.h"
#include "check.h"
#include "hectare_store.h"

enum { PAGES = 300, PAGE = 4096 };

static unsigned char page[PAGE], other[PAGE];

/* Lines of text that differ from key to key. */
static void fill(unsigned char *out, size_t key) {
    size_t at = 0, line = 0;
    while (at < PAGE) {
        char text[64];
        int length = snprintf(text, sizeof text, "%zu: line %zu of page %zu\n", key * line, line, key);
        size_t room = PAGE - at;
        memcpy(out + at, text, (size_t)length < room ? (size_t)length : room);
        at += (size_t)length;
        line++;
    }
}

static unsigned long long state = 1;

/* Noise: it does not become shorter. */
static void fill_noise(unsigned char *out, size_t bytes) {
    for (size_t at = 0; at < bytes; at++) {
        state = state * 6364136223846793005ULL + 1442695040888963407ULL;
        out[at] = (unsigned char)(state >> 56);
    }
}

/* Puts pages that lie beside the pool until there is no memory. */
static int use_all_memory(void) {
    enum { LONG_PAGES = 4000, LONG_PAGE = 65536, MORE = 32 << 20 };
    static unsigned char long_page[LONG_PAGE], first[LONG_PAGE];
    hectare_store *store = hectare_store_create(LONG_PAGES, LONG_PAGE, 0);
    CHECK(store != NULL);
    fill_noise(first, LONG_PAGE);
    CHECK(hectare_store_put(store, 0, first) == 0);

    rlim_t most = address_space() + MORE;
    CHECK(setrlimit(RLIMIT_AS, &(struct rlimit){ most, most }) == 0);

    int status = 0;
    size_t key = 1;
    while (key < LONG_PAGES && status == 0) {
        fill_noise(long_page, LONG_PAGE);
        status = hectare_store_put(store, key++, long_page);
    }
    CHECK(status == -ENOMEM && key > 100);
    CHECK(hectare_store_get(store, key - 1, long_page) == -ENOENT);
    CHECK(hectare_store_get(store, 0, long_page) == 0 && memcmp(first, long_page, LONG_PAGE) == 0);
    CHECK(hectare_store_remove(store, 1) == 0 && hectare_store_put(store, 1, first) == 0);
    hectare_store_destroy(store);
    return 0;
}

int main(int argc, char **argv) {
    if (argc > 1 && strcmp(argv[1], "no-memory") == 0) {
        return use_all_memory();
    }
    CHECK(hectare_store_create(10, 100, 0) == NULL);
    hectare_store_destroy(NULL);

    hectare_store *store = hectare_store_create(PAGES, PAGE, 0);
    CHECK(store != NULL);
    CHECK(hectare_store_get(store, 0, page) == -ENOENT);
    CHECK(hectare_store_put(store, PAGES, page) == -EINVAL);
    for (size_t key = 1; key < PAGES; key++) {
        fill(page, key);
        CHECK(hectare_store_put(store, key, page) == 0);
    }
    memset(page, 7, PAGE);
    CHECK(hectare_store_put(store, 0, page) == 0);
    for (size_t key = 1; key < PAGES; key++) {
        fill(page, key);
        CHECK(hectare_store_get(store, key, other) == 0);
        CHECK(memcmp(page, other, PAGE) == 0);
    }

    struct hectare_store_stat stat;
    hectare_store_stat(store, &stat);
    CHECK(stat.pages == PAGES && stat.original_bytes == (size_t)PAGES * PAGE);
    CHECK(stat.same_filled_pages == 1 && stat.raw_pages == 0 && stat.limit_bytes == 0);
    CHECK(stat.compressed_bytes < stat.pool_bytes && stat.pool_bytes < stat.original_bytes / 2);
    CHECK(stat.table_bytes == PAGES * 48);

    for (size_t key = 0; key < PAGES; key++) {
        CHECK(key % 3 == 0 || hectare_store_remove(store, key) == 0);
    }
    CHECK(hectare_store_remove(store, 1) == -ENOENT);
    size_t before = stat.pool_bytes;
    hectare_store_stat(store, &stat);
    size_t held = stat.pool_bytes;
    size_t given = hectare_store_compact(store);
    hectare_store_stat(store, &stat);
    CHECK(stat.pages == PAGES / 3 && stat.pool_bytes + given <= before);
    CHECK(stat.pool_bytes < held && stat.pool_bytes + given >= held);
    fill(page, 3);
    CHECK(hectare_store_get(store, 3, other) == 0 && memcmp(page, other, PAGE) == 0);
    hectare_store_destroy(store);

    /* Pages that do not become shorter, and a limit. */
    store = hectare_store_create(PAGES, PAGE, 256 << 10);
    CHECK(store != NULL);
    int status = 0;
    size_t key = 0;
    while (key < PAGES && status == 0) {
        fill_noise(page, PAGE);
        status = hectare_store_put(store, key++, page);
    }
    CHECK(status == -ENOSPC);
    hectare_store_stat(store, &stat);
    CHECK(stat.raw_pages == stat.pages && stat.pages == key - 1 && stat.limit_bytes == 256 << 10);
    CHECK(stat.same_filled_pages == 0);
    hectare_store_destroy(store);

    CHECK(hectare_store_create((size_t)-1, PAGE, 0) == NULL);

    /* Each store reserves gigabytes of address space, and gives all of it back at its end. */
    size_t space = address_space();
    for (int round = 0; round < 100; round++) {
        store = hectare_store_create(PAGES, PAGE, 0);
        CHECK(store != NULL && hectare_store_put(store, 0, page) == 0);
        hectare_store_destroy(store);
    }
    CHECK(address_space() < space + ((size_t)1 << 30));
    return 0;
}
