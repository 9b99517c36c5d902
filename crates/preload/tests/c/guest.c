/* A library that allocates whenever it can: in its constructor, its destructor, its fork handlers
   and its thread-local storage. */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

static void *kept[100];
static __thread char thread_local_bytes[20000];

static void churn(void) {
    void *all[64];
    for (int i = 0; i < 64; i++) {
        all[i] = malloc((size_t)i * 997);
        if (!all[i]) abort();
        memset(all[i], i, (size_t)i * 997);
    }
    for (int i = 0; i < 64; i++) free(all[i]);
}

void guest_work(void) {
    memset(thread_local_bytes, 1, sizeof thread_local_bytes);
    churn();
}

/* Frees an object of the caller's and returns one that the caller is to free. */
void *guest_exchange(void *object) {
    free(object);
    return malloc(100);
}

/* Makes `count` thread keys, and gives each a value. Returns how many had a value already. */
int guest_keys(int count) {
    int had = 0;
    for (int i = 0; i < count; i++) {
        pthread_key_t key;
        if (pthread_key_create(&key, NULL) != 0) abort();
        had += pthread_getspecific(key) != NULL;
        pthread_setspecific(key, (void *)0x1230);
    }
    return had;
}

#ifndef GUEST_WITHOUT_HANDLERS
__attribute__((constructor)) static void enter_handlers(void) {
    pthread_atfork(churn, churn, churn);
}
#endif

__attribute__((constructor)) static void start(void) {
    for (int i = 0; i < 100; i++) kept[i] = malloc(1000);
    churn();
}

__attribute__((destructor)) static void end(void) {
    for (int i = 0; i < 100; i++) free(kept[i]);
    churn();
}
