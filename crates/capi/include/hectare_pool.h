/*
 * A pool that packs objects of any length up to a page, such as compressed pages: 8 bytes beside
 * each, no size classes. A handle names an object, which is written and read as a whole, and moves
 * when the pool is compacted. See docs/pools.md.
 *
 * Several threads may make any calls at once, except hectare_pool_destroy, and hectare_pool_remove
 * of an object that another thread uses.
 *
 * Except where a call says otherwise, its pointers must not be NULL: they are not checked.
 */
#ifndef HECTARE_POOL_H
#define HECTARE_POOL_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct hectare_pool hectare_pool;

/* What a pool holds. */
struct hectare_pool_stat {
    size_t objects;
    size_t stored_bytes;    /* their lengths */
    size_t footprint_bytes; /* memory taken for them, with all that it costs */
};

/* A pool without objects: some hundred bytes of malloc's until there are objects. */
hectare_pool *hectare_pool_create(void);

/* Gives all memory back. Does nothing if pool is NULL. */
void hectare_pool_destroy(hectare_pool *pool);

/* How long an object may be: a page of the system. */
size_t hectare_pool_max_bytes(const hectare_pool *pool);

/*
 * Stores the bytes bytes at data. From then on *handle names them; it is never 0. -EINVAL: bytes is
 * 0 (data may then be NULL) or above hectare_pool_max_bytes; -ENOMEM: no memory; -ENOSPC: the pool
 * can name no more objects or address no more memory. Nothing has changed then.
 */
int hectare_pool_put(hectare_pool *pool, const void *data, size_t bytes, uint64_t *handle);

/* How long an object is; 0 for the handle 0. The handle must not have been removed. */
size_t hectare_pool_size(const hectare_pool *pool, uint64_t handle);

/*
 * Copies an object to data, of bytes bytes. -EMSGSIZE: it is longer; -ENOENT: the handle is 0, or
 * its object was removed; -ENOMEM: malloc has no page for the thread's first call. A later put may
 * return the same handle; after that, the call copies the new object. data may be NULL if bytes
 * is 0.
 */
int hectare_pool_get(const hectare_pool *pool, uint64_t handle, void *data, size_t bytes);

/*
 * Forgets an object. -ENOENT: the handle is 0, or its object was removed before; nothing has
 * changed then. A later put may return the same handle; after that, a second remove can take the
 * new object away.
 */
int hectare_pool_remove(hectare_pool *pool, uint64_t handle);

/* Moves objects together, and gives whole pages back. Returns how many bytes those have. */
size_t hectare_pool_compact(hectare_pool *pool);

/* Writes what the pool holds to *stat. */
void hectare_pool_stat(const hectare_pool *pool, struct hectare_pool_stat *stat);

#ifdef __cplusplus
}
#endif

#endif
