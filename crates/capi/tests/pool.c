/* Uses every name of hectare_pool.h. Exits with 0 if all of it does what the header says. */
#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include "address_space.h"
#include "check.h"
#include "hectare_pool.h"

enum { OBJECTS = 3000, MOST = 4096 };

static unsigned char given[MOST], got[MOST];

static size_t length_of(size_t object) { return object * 37 % MOST + 1; }

static void fill(size_t object) {
    for (size_t at = 0; at < length_of(object); at++) given[at] = (unsigned char)(object * 31 + at * 7);
}

int main(void) {
    static uint64_t handles[OBJECTS];
    struct hectare_pool_stat stat;
    hectare_pool_destroy(NULL);
    hectare_pool *pool = hectare_pool_create();
    CHECK(pool != NULL && hectare_pool_max_bytes(pool) >= MOST);
    CHECK(hectare_pool_put(pool, given, 0, &handles[0]) == -EINVAL && handles[0] == 0);
    CHECK(hectare_pool_put(pool, NULL, 0, &handles[0]) == -EINVAL);
    CHECK(hectare_pool_put(pool, given, hectare_pool_max_bytes(pool) + 1, &handles[0]) == -EINVAL);
    CHECK(hectare_pool_size(pool, 0) == 0 && hectare_pool_get(pool, 0, got, MOST) == -ENOENT);
    CHECK(hectare_pool_remove(pool, 0) == -ENOENT);

    size_t bytes = 0;
    for (size_t object = 0; object < OBJECTS; object++) {
        fill(object);
        CHECK(hectare_pool_put(pool, given, length_of(object), &handles[object]) == 0);
        CHECK(handles[object] != 0 && hectare_pool_size(pool, handles[object]) == length_of(object));
        bytes += length_of(object);
    }
    hectare_pool_stat(pool, &stat);
    CHECK(stat.objects == OBJECTS && stat.stored_bytes == bytes && stat.footprint_bytes > bytes);
    CHECK(stat.footprint_bytes < bytes + bytes / 50);

    /* Two in three objects go. The others move together, and are what they were. */
    for (size_t object = 0; object < OBJECTS; object++) {
        if (object % 3 == 0) continue;
        CHECK(hectare_pool_remove(pool, handles[object]) == 0);
        CHECK(hectare_pool_remove(pool, handles[object]) == -ENOENT);
        CHECK(hectare_pool_get(pool, handles[object], got, MOST) == -ENOENT);
        bytes -= length_of(object);
    }
    hectare_pool_stat(pool, &stat);
    size_t held = stat.footprint_bytes;
    size_t returned = hectare_pool_compact(pool);
    hectare_pool_stat(pool, &stat);
    CHECK(stat.footprint_bytes < held && stat.footprint_bytes + returned >= held);
    CHECK(stat.objects == OBJECTS / 3 && stat.stored_bytes == bytes);
    CHECK(stat.footprint_bytes < bytes + bytes / 20);
    for (size_t object = 0; object < OBJECTS; object += 3) {
        size_t length = length_of(object);
        fill(object);
        CHECK(hectare_pool_get(pool, handles[object], NULL, 0) == -EMSGSIZE);
        if (length > 1) CHECK(hectare_pool_get(pool, handles[object], got, length - 1) == -EMSGSIZE);
        CHECK(hectare_pool_get(pool, handles[object], got, length) == 0);
        CHECK(memcmp(given, got, length) == 0);
    }
    hectare_pool_destroy(pool);

    /* Each pool reserves gigabytes of address space, and gives all of it back at its end. */
    size_t space = address_space();
    for (int round = 0; round < 100; round++) {
        pool = hectare_pool_create();
        CHECK(pool != NULL && hectare_pool_put(pool, given, MOST, &handles[0]) == 0);
        hectare_pool_destroy(pool);
    }
    CHECK(address_space() < space + ((size_t)1 << 30));
    return 0;
}
