/*
 * A compressed page store: pages by key, compressed by LZ4, in a pool that packs objects of any
 * length. It does for a program what zram does for a kernel. See docs/store.md.
 *
 * Several threads may make any calls at once, except hectare_store_destroy. A call returns 0, or a
 * negative number of errno.h; everything stored before is then still there.
 *
 * No pointer may be NULL, except the store given to hectare_store_destroy: pointers are not
 * checked.
 */
#ifndef HECTARE_STORE_H
#define HECTARE_STORE_H

#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct hectare_store hectare_store;

/* What a store holds, in bytes and pages. */
struct hectare_store_stat {
    size_t pages;             /* stored */
    size_t original_bytes;    /* those times the size of a page */
    size_t compressed_bytes;  /* what they became */
    size_t pool_bytes;        /* memory taken for that, with all that it costs but the table */
    size_t table_bytes;       /* the table of keys */
    size_t limit_bytes;       /* 0: none */
    size_t same_filled_pages; /* one word fills them: they take no memory */
    size_t raw_pages;         /* kept as they are, since they do not become much shorter */
};

/*
 * A store for keys 0 to pages - 1, 48 bytes each, and pages of page_bytes: a multiple of 8 from 64
 * to 65536. Its pool takes at most limit_bytes, or what it needs if that is 0. As measured, it can
 * exceed the limit by 0.4 %: from 16 MiB on, the store looks at the pool only with every 16th put,
 * and the pool keeps what it took for a page that was refused. The limit includes neither the table
 * of keys nor each thread's buffers, of a page or two. A page that does not become shorter by a
 * sixteenth, or not as short as a page of the system, is kept as it is. NULL if page_bytes is none
 * of these, or there is no memory for so many keys.
 */
hectare_store *hectare_store_create(size_t pages, size_t page_bytes, size_t limit_bytes);

/* Gives all memory back. Does nothing if store is NULL. */
void hectare_store_destroy(hectare_store *store);

/*
 * Stores the page_bytes at page. -ENOSPC: the limit is reached, or the pool can name no more;
 * -ENOMEM: no memory; -EINVAL: no such key. A thread's first call takes some more bytes of
 * malloc's, and making a store some hundred. If malloc has none of these the program aborts.
 */
int hectare_store_put(hectare_store *store, size_t key, const void *page);

/* Copies the page of key to page. -ENOENT: there is none; -EBADMSG: it is damaged; -ENOMEM;
 * -EINVAL. */
int hectare_store_get(hectare_store *store, size_t key, void *page);

/* Forgets the page of key. -ENOENT: there is none; -EINVAL. */
int hectare_store_remove(hectare_store *store, size_t key);

/* Moves what is stored together, and gives whole pages back. Returns how many bytes those have. */
size_t hectare_store_compact(hectare_store *store);

/* Writes what the store holds to *stat. */
void hectare_store_stat(const hectare_store *store, struct hectare_store_stat *stat);

#ifdef __cplusplus
}
#endif

#endif
