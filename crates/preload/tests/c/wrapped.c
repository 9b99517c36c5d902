/* A program that replaces the family by functions that call glibc's own names for it, and put a
   header before each object. */

#include "check.h"
#include <malloc.h>

void *__libc_malloc(size_t), *__libc_calloc(size_t, size_t), *__libc_realloc(void *, size_t);
void __libc_free(void *);

#define HEADER 16

static int calls;

/* The object behind the header of a block, and the block of an object. */
static void *object_of(char *block) { return block ? block + HEADER : NULL; }
static void *block_of(char *object) { return object ? object - HEADER : NULL; }

void *malloc(size_t bytes) {
    calls++;
    return object_of(__libc_malloc(HEADER + bytes));
}

void *calloc(size_t count, size_t bytes) {
    calls++;
    return object_of(__libc_calloc(1, HEADER + count * bytes));
}

void *realloc(void *object, size_t bytes) {
    calls++;
    return object_of(__libc_realloc(block_of(object), HEADER + bytes));
}

void free(void *object) {
    calls++;
    __libc_free(block_of(object));
}

int main(void) {
    int before = calls;
    char *p = opaque(malloc(100));
    p = opaque(realloc(p, 100000));
    free(p);
    p = opaque(calloc(10, 10));
    CHECK(p[99] == 0);
    CHECK(calls == before + 4);
    p = opaque(reallocarray(p, 20, 20));
    free(p);
    CHECK(calls == before + 6, "reallocarray calls whatever realloc the program has");
    return 0;
}
