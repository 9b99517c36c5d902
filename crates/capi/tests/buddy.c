/* Uses every name of hectare_buddy.h. Exits with 0 if all of it does what the header says. */
#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "check.h"
#include "hectare_buddy.h"

enum { FRAMES = 10000, ORDERS = 7 };

static unsigned long long state = 1;

static size_t random_below(size_t bound) {
    state = state * 6364136223846793005ULL + 1442695040888963407ULL;
    return (size_t)(state >> 33) % bound;
}

int main(void) {
    CHECK(hectare_buddy_bytes(((size_t)1 << 36) + 1) == 0);
    size_t bytes = hectare_buddy_bytes(FRAMES);
    CHECK(bytes > FRAMES / 8 && bytes < FRAMES);
    char *memory = malloc(bytes + 8);
    CHECK(memory != NULL);
    /* The memory was used before. All of it but `bytes` stays as it was. */
    memset(memory, 0xa5, bytes + 8);
    CHECK(hectare_buddy_create(memory, SIZE_MAX, ((size_t)1 << 36) + 1) == NULL);
    CHECK(hectare_buddy_create(NULL, bytes, FRAMES) == NULL);
    CHECK(hectare_buddy_create(memory, bytes - 1, FRAMES) == NULL);
    CHECK(hectare_buddy_create(memory + 4, bytes, FRAMES) == NULL);
    hectare_buddy *buddy = hectare_buddy_create(memory, bytes, FRAMES);
    CHECK(buddy != NULL);

    size_t frame = 77;
    CHECK(hectare_buddy_free_frames(buddy) == 0);
    CHECK(hectare_buddy_alloc(buddy, 0, &frame) == -ENOMEM && frame == 77);
    CHECK(hectare_buddy_alloc(buddy, 256, &frame) == -EINVAL && frame == 77);
    CHECK(hectare_buddy_free_range(buddy, 0, FRAMES) == 0);
    CHECK(hectare_buddy_free_range(buddy, 0, 1) == -EINVAL);
    CHECK(hectare_buddy_free_range(buddy, FRAMES - 1, 2) == -ERANGE);
    CHECK(hectare_buddy_reserve(buddy, 3, 1) == 0 && hectare_buddy_reserve(buddy, 3, 1) == -ENOMEM);
    CHECK(hectare_buddy_alloc(buddy, 2, &frame) == 0 && frame == 4);
    CHECK(hectare_buddy_alloc_range(buddy, 5, 1, SIZE_MAX, &frame) == 0 && frame == 8);
    CHECK(hectare_buddy_alloc_range(buddy, 5, 3, SIZE_MAX, &frame) == -EINVAL);
    CHECK(hectare_buddy_alloc_range(buddy, 5, 1, 12, &frame) == -ENOMEM && frame == 8);
    CHECK(hectare_buddy_alloc_range(buddy, 4, 1, 16, &frame) == -ENOMEM && frame == 8);
    CHECK(hectare_buddy_alloc_range(buddy, 4, 1, 17, &frame) == 0 && frame == 13);
    CHECK(hectare_buddy_free_range(buddy, 13, 4) == 0);
    CHECK(hectare_buddy_free_frames(buddy) == FRAMES - 10);
    CHECK(hectare_buddy_free(buddy, 5, 2) == -EINVAL);
    CHECK(hectare_buddy_free(buddy, 4, 2) == 0 && hectare_buddy_free(buddy, 4, 2) == -EINVAL);
    CHECK(hectare_buddy_free(buddy, FRAMES + 240, 4) == -ERANGE);
    CHECK(hectare_buddy_alloc(buddy, 19, &frame) == -EINVAL);
    CHECK(hectare_buddy_free(buddy, 0, 300) == -EINVAL);
    CHECK(hectare_buddy_free_range(buddy, 8, 5) == 0 && hectare_buddy_free_range(buddy, 3, 1) == 0);
    CHECK(hectare_buddy_free_frames(buddy) == FRAMES);

    /* 10,000 frames are blocks of orders 13, 10, 9, 8 and 4; without frame 4096 there are others. */
    struct hectare_buddy_stat stat;
    hectare_buddy_stat(buddy, &stat);
    CHECK(stat.frames == FRAMES && stat.free_frames == FRAMES && stat.longest_run_frames == FRAMES);
    for (unsigned order = 0; order < 19; order++)
        CHECK(stat.free_blocks[order] == ((FRAMES >> order) & 1));
    CHECK(hectare_buddy_reserve(buddy, 4096, 1) == 0);
    hectare_buddy_stat(buddy, &stat);
    CHECK(stat.frames == FRAMES && stat.free_frames == FRAMES - 1);
    CHECK(stat.longest_run_frames == FRAMES - 4097);
    CHECK(stat.free_blocks[13] == 0 && stat.free_blocks[12] == 1 && stat.free_blocks[0] == 1);
    CHECK(hectare_buddy_free(buddy, 4096, 0) == 0);

    /* Beside a shadow: no frame has two owners, and none is lost. */
    enum { SLOTS = 400 };
    static unsigned char owned[FRAMES];
    static struct { size_t frame; unsigned order; int used; } slots[SLOTS];
    size_t live = 0;
    for (int step = 0; step < 200000; step++) {
        size_t slot = random_below(SLOTS);
        unsigned order = slots[slot].order;
        if (slots[slot].used) {
            CHECK(hectare_buddy_free(buddy, slots[slot].frame, order) == 0);
            for (size_t at = 0; at < (size_t)1 << order; at++) owned[slots[slot].frame + at] = 0;
            live -= (size_t)1 << order;
            slots[slot].used = 0;
        } else {
            order = (unsigned)random_below(ORDERS);
            int told = hectare_buddy_alloc(buddy, order, &frame);
            CHECK(told == 0 || told == -ENOMEM);
            if (told != 0) continue;
            CHECK(frame % ((size_t)1 << order) == 0);
            for (size_t at = 0; at < (size_t)1 << order; at++) CHECK(!owned[frame + at]++);
            live += (size_t)1 << order;
            slots[slot].frame = frame, slots[slot].order = order, slots[slot].used = 1;
        }
        CHECK(hectare_buddy_free_frames(buddy) == FRAMES - live);
    }
    for (size_t at = bytes; at < bytes + 8; at++) CHECK((unsigned char)memory[at] == 0xa5);
    free(memory);
    return 0;
}
