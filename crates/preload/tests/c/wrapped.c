/* A program that replaces the family by functions which call glibc's own names for it. */

#include "check.h"
#include <malloc.h>

void *__libc_malloc(size_t), *__libc_calloc(size_t, size_t), *__libc_realloc(void *, size_t);
void __libc_free(void *);

static int calls;

void *malloc(size_t bytes) {
    calls++;
    return __libc_malloc(bytes);
}

void *calloc(size_t count, size_t bytes) {
    calls++;
    return __libc_calloc(count, bytes);
}

void *realloc(void *object, size_t bytes) {
    calls++;
    return __libc_realloc(object, bytes);
}

void free(void *object) {
    calls++;
    __libc_free(object);
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
    return 0;
}
