/* hectare-tlsf: two-level segregated fit, under the names of Matthew Conte's TLSF 3.1.
 *
 * A control structure (tlsf_t) lives in memory of tlsf_size() bytes that the caller gives. Pools
 * are memory of the caller's, anywhere in the address space.
 *
 * All differences add something: blocks are aligned to 16 bytes, not 8; tlsf_realloc grows into
 * free neighbours on both sides; the largest free block can be allocated; tlsf_free of a pointer to
 * no used block aborts with a message if the header shows it.
 *
 * A tlsf_t must not be NULL, except in tlsf_destroy: it is not checked. What NULL means elsewhere
 * is said at each call.
 */
#ifndef HECTARE_TLSF_H
#define HECTARE_TLSF_H

#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef void* tlsf_t;
typedef void* pool_t;

/* A heap in `mem` of tlsf_size() bytes, without memory or with the rest of `bytes` as its pool.
 * NULL if the memory is NULL, not aligned to tlsf_align_size(), or too small. */
tlsf_t tlsf_create(void* mem);
tlsf_t tlsf_create_with_pool(void* mem, size_t bytes);
/* Does nothing: the memory is the caller's again. */
void tlsf_destroy(tlsf_t tlsf);
/* The pool that tlsf_create_with_pool made. */
pool_t tlsf_get_pool(tlsf_t tlsf);

/* NULL if the memory is NULL, too small, too large, not aligned to tlsf_align_size(), or in part a
 * pool of this heap or the heap's own tlsf_size() bytes. */
pool_t tlsf_add_pool(tlsf_t tlsf, void* mem, size_t bytes);
/* Every block of the pool must be free; otherwise the pool stays. Does nothing if pool is NULL. */
void tlsf_remove_pool(tlsf_t tlsf, pool_t pool);

/* Constant time. NULL if there is no block; tlsf_malloc(0) gives NULL, as TLSF 3.1 does. */
void* tlsf_malloc(tlsf_t tlsf, size_t bytes);
void* tlsf_memalign(tlsf_t tlsf, size_t align, size_t bytes);
/* realloc(NULL, n) is malloc, realloc(p, 0) is free. If the result is NULL otherwise, the block is
 * as it was. As with C's realloc, a block that moves is aligned as by malloc, whatever memalign
 * gave. */
void* tlsf_realloc(tlsf_t tlsf, void* ptr, size_t size);
/* Does nothing if ptr is NULL. */
void tlsf_free(tlsf_t tlsf, void* ptr);

/* Bytes usable in the block of ptr; 0 for NULL. */
size_t tlsf_block_size(void* ptr);

/* What this library costs and allows. */
size_t tlsf_size(void);
size_t tlsf_align_size(void);
size_t tlsf_block_size_min(void);
size_t tlsf_block_size_max(void);
size_t tlsf_pool_overhead(void);
size_t tlsf_alloc_overhead(void);

/* Calls `walker` for each block of the pool; if it is NULL, prints the blocks to standard output.
 * `user` may be NULL. Does nothing if pool is NULL. */
typedef void (*tlsf_walker)(void* ptr, size_t size, int used, void* user);
void tlsf_walk_pool(pool_t pool, tlsf_walker walker, void* user);

/* What a heap holds. Not in TLSF 3.1. Bytes of blocks include their headers. */
struct tlsf_stat {
    size_t pools;
    size_t used_bytes;
    size_t free_bytes;
    size_t peak_used_bytes;           /* the most that were ever in use at once */
    size_t largest_allocatable_bytes; /* what tlsf_malloc can serve now */
};

/* Writes that to *stat. Constant time. */
void tlsf_stat(tlsf_t tlsf, struct tlsf_stat* stat);

/* 0 if sound; negative if not, or if pool is NULL. */
int tlsf_check(tlsf_t tlsf);
int tlsf_check_pool(pool_t pool);

#ifdef __cplusplus
}
#endif

#endif
