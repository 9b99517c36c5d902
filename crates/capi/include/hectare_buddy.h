/*
 * A buddy allocator of page frames for one owner, over memory that the caller gives. It never
 * touches the frames, only their numbers, 0 to frames - 1. It takes one bit a frame, and 12 %
 * more. Taking and giving back a block is O(1). See docs/buddy.md.
 *
 * A block of order n is 2^n frames, 0 to 18, that begin at a multiple of as many. Of all blocks
 * that are large enough the lowest is taken, so that high frames stay free. The allocator tracks
 * frames, not blocks: a part of a block may go back, and blocks side by side may go back as one.
 *
 * A call returns 0, or a negative number of errno.h and has then changed nothing. Calls of several
 * threads need a lock of the caller's.
 *
 * No pointer may be NULL, except the memory given to hectare_buddy_create: pointers are not
 * checked.
 */
#ifndef HECTARE_BUDDY_H
#define HECTARE_BUDDY_H

#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct hectare_buddy hectare_buddy;

/* How many bytes an allocator of that many frames needs. 0: more than 2^36 frames. */
size_t hectare_buddy_bytes(size_t frames);

/*
 * Makes an allocator in memory, of bytes bytes, aligned to 8. No frame is free before
 * hectare_buddy_free_range makes it so. NULL if memory is NULL, not aligned or too short, or if
 * there are more than 2^36 frames. The allocator ends when its memory is used otherwise.
 */
hectare_buddy *hectare_buddy_create(void *memory, size_t bytes, size_t frames);

/* Takes a block; its first frame goes to *frame. -ENOMEM: there is none; -EINVAL: no such order. */
int hectare_buddy_alloc(hectare_buddy *buddy, unsigned order, size_t *frame);

/* Gives a block back. -ERANGE: there are no such frames; -EINVAL: no such order, the block does not
 * begin at a multiple of its length, or a part of it is free already. */
int hectare_buddy_free(hectare_buddy *buddy, size_t frame, unsigned order);

/*
 * Takes frames frames in a row that begin at a multiple of align, a power of two, and end at or
 * below limit ((size_t)-1: no limit). The first goes to *first. It takes the lowest place that fits,
 * unless 64 runs below that are too short: then any that it finds. -ENOMEM; -EINVAL.
 */
int hectare_buddy_alloc_range(hectare_buddy *buddy, size_t frames, size_t align, size_t limit,
                              size_t *first);

/* Takes exactly these frames. -ENOMEM: one is not free; -ERANGE; -EINVAL: no frames. */
int hectare_buddy_reserve(hectare_buddy *buddy, size_t first, size_t frames);

/* Gives these frames back, whichever calls took them. -ERANGE; -EINVAL: one is free, or no
 * frames. */
int hectare_buddy_free_range(hectare_buddy *buddy, size_t first, size_t frames);

/* How many frames are free. */
size_t hectare_buddy_free_frames(const hectare_buddy *buddy);

/* How the free frames are laid out. */
struct hectare_buddy_stat {
    size_t frames;             /* managed, free or not */
    size_t free_frames;
    size_t longest_run_frames; /* the most in a row, wherever they begin */
    size_t free_blocks[19];    /* by order; each run counts as the fewest blocks that make it up */
};

/* Writes that to *stat. The time is proportional to the number of runs of free frames. */
void hectare_buddy_stat(const hectare_buddy *buddy, struct hectare_buddy_stat *stat);

#ifdef __cplusplus
}
#endif

#endif
