/* Each case misuses one guarded object after printing its address; `sound` misuses none. */
#include "check.h"
#include "sound.h"
#include <malloc.h>
#include <pthread.h>
#include <signal.h>
#include <sys/auxv.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <sys/wait.h>
#ifndef AT_MINSIGSTKSZ
#define AT_MINSIGSTKSZ 51
#endif

__attribute__((noinline, section("in_allocate"))) static char *allocate(size_t bytes) {
    char *object = malloc(bytes);
    printf("%p\n", (void *)object);
    fflush(stdout);
    return opaque(object);
}

__attribute__((noinline, section("in_release"))) static void release(char *object) {
    free(object);
    opaque(object);
}

static volatile char sink;

static void overflow_read(void) { sink = allocate(64)[64]; }

static void overflow_write(void) {
    char *object = allocate(1000);
    for (int i = 0; i < 2000; i++) ((char *)opaque(object))[i] = 1;
}

static void underflow(void) { sink = allocate(4096)[-1]; }

/* The write is too near to fault; it is found when the object is freed. */
static void overflow_by_one(void) {
    char *object = allocate(100);
    ((char *)opaque(object))[100] = 1;
    release(object);
}

static void underflow_by_one(void) {
    char *object = allocate(100);
    ((char *)opaque(object))[-1] = 1;
    release(object);
}

static void use_after_free(void) {
    char *object = allocate(100);
    release(object);
    sink = ((char *)opaque(object))[12];
}

static void *write_there(void *object) {
    *(char *)object = 1;
    return NULL;
}

static void use_after_free_by_thread(void) {
    char *object = allocate(100);
    release(object);
    pthread_t thread;
    pthread_create(&thread, NULL, write_there, object);
    pthread_join(thread, NULL);
}

/* The handlers have 4 KiB beside what the kernel needs: less than SIGSTKSZ, 8 KiB. */
static void use_after_free_on_small_stack(void) {
    size_t page = (size_t)sysconf(_SC_PAGESIZE), bytes = 4096 + getauxval(AT_MINSIGSTKSZ);
    char *sealed = mmap(NULL, page + bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(sealed != MAP_FAILED && mprotect(sealed, page, PROT_NONE) == 0);
    stack_t other = {.ss_sp = sealed + page, .ss_size = bytes};
    CHECK(sigaltstack(&other, NULL) == 0);
    use_after_free();
}

/* The report must end the process, even in a thread that is being cancelled: that thread must not
   end there instead. */
static void *release_while_cancelled(void *object) {
    pthread_cancel(pthread_self());
    release(object);
    return NULL;
}

static void overflow_while_cancelled(void) {
    char *object = allocate(100);
    ((char *)opaque(object))[100] = 1;
    pthread_t thread;
    pthread_create(&thread, NULL, release_while_cancelled, object);
    pthread_join(thread, NULL);
}

static void double_free(void) {
    char *object = allocate(100);
    release(object);
    release(opaque(object));
}

static void interior(void) { free(opaque(allocate(100) + 16)); }

/* Nothing was ever allocated behind the object: not even the stream's buffer. */
static void behind_the_last(void) {
    setvbuf(stdout, NULL, _IONBF, 0);
    free(allocate(4096) + 4096);
}

/* Where the next object would lie. */
static char *next_place(void) {
    setvbuf(stdout, NULL, _IONBF, 0);
    char *place = (char *)malloc(4096) + 2 * 4096;
    printf("%p\n", (void *)place);
    return opaque(place);
}

static void never_allocated(void) { free(next_place()); }

static void size_of_never_allocated(void) { printf("%zu\n", malloc_usable_size(next_place())); }

static void realloc_freed(void) {
    char *object = allocate(100);
    release(object);
    opaque(realloc(opaque(object), 200));
}

static void usable_size_freed(void) {
    char *object = allocate(100);
    release(object);
    printf("%zu\n", malloc_usable_size(opaque(object)));
}

/* A fault that has nothing to do with a guarded object ends the program as usual. */
static void other_fault(void) {
    allocate(100);
    *(volatile char *)8 = 1;
}

/* The same for a signal that somebody sends. */
static void sent_fault(void) {
    kill(getpid(), SIGSEGV);
    puts("survived");
}

static volatile sig_atomic_t faults;

static void on_fault(int number) {
    (void)number;
    faults++;
    _exit(7);
}

/* Memory that the program itself has sealed; the program touches it, or the library does when it is
   freed. */
static char *sealed(void) {
    char *object = memalign(4096, 100);
    CHECK(mprotect(object, 4096, PROT_NONE) == 0);
    return opaque(object);
}

static void touches_sealed(void) { sink = sealed()[12]; }

static void frees_sealed(void) { free(sealed()); }

static char *volatile freed;

static void touch_freed(int signal) {
    (void)signal;
    sink = freed[0];
}

/* A handler that misuses an object, wherever it has interrupted its thread. */
static void use_after_free_by_handler(void) {
    release(freed = allocate(100));
    signal(SIGVTALRM, touch_freed);
    struct itimerval soon = {{.tv_usec = 1000}, {.tv_usec = 1000}};
    CHECK(setitimer(ITIMER_VIRTUAL, &soon, NULL) == 0);
    for (;;) free(opaque(malloc(100)));
}

/* A program's own handler has precedence. */
static void own_handler(void) {
    signal(SIGSEGV, on_fault);
    sink = allocate(64)[64];
}

/* An object at the start of a page may also be one that the profile knows. */
static void aligned_grows(void) {
    for (int i = 0; i < 200; i++) {
        char *object = aligned_alloc(4096, 100);
        object = realloc(opaque(object), 110);
        CHECK(malloc_usable_size(object) >= 110, "%zu", malloc_usable_size(object));
        memset(opaque(object), 1, 110);
        free(object);
    }
}

/* Locked memory may not go back when it is freed; it must not come back with its old contents. */
static void zeros_where_locked(void) {
    if (mlockall(MCL_CURRENT | MCL_FUTURE)) return;
    for (int i = 0; i < 400; i++) {
        char *object = opaque(calloc(1, 100));
        for (int j = 0; j < 100; j++) CHECK(!object[j], "byte %d of object %d", j, i);
        memset(object, 1, 100);
        free(opaque(object));
    }
}

/* What malloc_info says of guarded objects, and of the memory that all kinds together have. */
static void in_xml(size_t *guarded, size_t *current) {
    static char text[60000];
    FILE *stream = fmemopen(text, sizeof text, "w");
    CHECK(malloc_info(0, stream) == 0);
    fclose(stream);
    const char *total = strstr(text, "<total type=\"guarded\" size=\"");
    const char *system = strstr(text, "<system type=\"current\" size=\"");
    CHECK(total && system, "%s", text);
    *guarded = strtoull(strchr(total, '=') + 17, NULL, 10);
    *current = strtoull(strchr(system, '=') + 17, NULL, 10);
}

/* Each object is a guarded one, until there are as many as possible. */
static void counted(void) {
    char *objects[50];
    size_t guarded[2], current[2], before = mallinfo2().uordblks;
    in_xml(&guarded[0], &current[0]);
    for (int i = 0; i < 50; i++) objects[i] = opaque(malloc(1000));
    size_t bytes = mallinfo2().uordblks - before;
    CHECK(bytes >= 50000 && bytes < 60000, "%zu", bytes);
    in_xml(&guarded[1], &current[1]);
    bytes = guarded[1] - guarded[0];
    CHECK(bytes >= 50000 && bytes < 60000, "%zu", bytes);
    CHECK(current[1] - current[0] >= 50000, "%zu", current[1] - current[0]);
    struct mallinfo2 info = mallinfo2();
    CHECK(info.arena + info.hblkhd >= info.uordblks + info.fordblks, "arena %zu", info.arena);
    for (int i = 0; i < 50; i++) free(objects[i]);
    CHECK(mallinfo2().uordblks - before < 5000, "%zu", mallinfo2().uordblks - before);
}

static void sound(void) { run_soundly(40000, 10); }

int main(int argc, char **argv) {
    static const struct test_case cases[] = {
        CASE(overflow_read), CASE(overflow_write), CASE(underflow), CASE(overflow_by_one),
        CASE(underflow_by_one), CASE(overflow_while_cancelled), CASE(use_after_free), CASE(use_after_free_by_thread),
        CASE(use_after_free_on_small_stack),
        CASE(double_free), CASE(interior), CASE(behind_the_last), CASE(never_allocated),
        CASE(size_of_never_allocated), CASE(realloc_freed), CASE(usable_size_freed),
        CASE(other_fault), CASE(sent_fault), CASE(touches_sealed), CASE(frees_sealed),
        CASE(use_after_free_by_handler), CASE(own_handler), CASE(aligned_grows),
        CASE(zeros_where_locked), CASE(counted), CASE(sound),
    };
    return run_case(cases, sizeof cases / sizeof *cases, argc, argv);
}
