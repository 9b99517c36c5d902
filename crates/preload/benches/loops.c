/* The loops whose figures docs/malloc.md and docs/evaluation/ quote; run each with LD_PRELOAD.

     cc -O2 -fno-builtin-malloc -pthread -o loops crates/preload/benches/loops.c
     LD_PRELOAD=target/release/libhectare.so ./loops shuffled 60000
     LD_PRELOAD=target/release/libhectare.so ./loops runs 60000 60000 64
     LD_PRELOAD=target/release/libhectare.so ./loops aligned 64 500 20000
     LD_PRELOAD=target/release/libhectare.so ./loops bursts 10000 12000
     LD_PRELOAD=target/release/libhectare.so ./loops append 100000
     LD_PRELOAD=target/release/libhectare.so ./loops table
     LD_PRELOAD=target/release/libhectare.so ./loops blocks 1048592 60 1048592
     LD_PRELOAD=target/release/libhectare.so ./loops mixed 1000 64 40000 350
     LD_PRELOAD=target/release/libhectare.so ./loops hollow 16 30000 8000 1
     LD_PRELOAD=target/release/libhectare.so ./loops again 100000 24300000
     LD_PRELOAD=target/release/libhectare.so ./loops first 4456448 100000 1000000
     LD_PRELOAD=target/release/libhectare.so ./loops holes 40000 50000 5000
     LD_PRELOAD=target/release/libhectare.so ./loops stall 40000 100000
     LD_PRELOAD=target/release/libhectare.so ./loops pause 8000000 400000
     LD_PRELOAD=target/release/libhectare.so ./loops rest 512 20000000
     LD_PRELOAD=target/release/libhectare.so ./loops lull 1048576 500
     LD_PRELOAD=target/release/libhectare.so ./loops expire 4 200 2000000
     LD_PRELOAD=target/release/libhectare.so ./loops zeros 36000 40000 60000
     LD_PRELOAD=target/release/libhectare.so ./loops buffers 4
     LD_PRELOAD=target/release/libhectare.so ./loops threads 3000
     LD_PRELOAD=target/release/libhectare.so ./loops second 16 40000
     LD_PRELOAD=target/release/libhectare.so ./loops scratch 4 8 1
     LD_PRELOAD=target/release/libhectare.so ./loops beside 2 64 50000
     LD_PRELOAD=target/release/libhectare.so ./loops pairs 4 33000
     LD_PRELOAD=target/release/libhectare.so ./loops swing 1 640 640 40000 2
     LD_PRELOAD=target/release/libhectare.so ./loops tree 17 100

   shuffled N            N objects of 16, 64, 128 or 256 bytes, read and freed in random order; best
                         of 9
   runs BYTES MORE LIVE   LIVE blocks of BYTES to BYTES + MORE, replaced at random; best of 5
   aligned ALIGN MOST LIVE   LIVE objects of 1 to MOST bytes at multiples of ALIGN, replaced at
                         random; best of 5
   bursts LEAST MOST     50 to 250 objects of LEAST to MOST bytes are taken, their first bytes
                         written, then freed in the opposite order, over and over; best of 5
   append BYTES          a string grows by realloc, a byte each time, to BYTES, and is freed: the
                         time of a realloc; best of 9
   table                 1.4 million blocks of 1000 bytes are filled; then 20 million reads at
                         random
   blocks BYTES COUNT WRITTEN   COUNT blocks of BYTES, none freed; the first WRITTEN bytes of each
                         are written: peak resident memory, and its ratio to the bytes asked for
   mixed BYTES COUNT LONGER ROUNDS   COUNT objects of BYTES and a block of LONGER, ROUNDS times, all
                         written and none freed: peak resident memory, and its ratio to the bytes
                         asked for
   hollow LEAST MOST COUNT ENDS   COUNT objects of LEAST to MOST bytes, replaced at random 40 times
                         each; the first byte of each is written (1), or the last, too (2): the time
                         of a replacement, and peak resident memory
   again LEAST MOST      a block of LEAST bytes, one three times as long, and so on up to MOST: each
                         is taken, a byte in each page written, and freed, 1000 times; the time of a
                         page of the longest, and all page faults
   first BYTES WRITTEN MORE   a block of BYTES, whose first WRITTEN bytes are written; MORE bytes in
                         objects of 100; the block is freed; as many objects again: peak resident
                         memory
   holes BYTES LONGER COUNT   COUNT blocks of BYTES, all written; every second one is freed; then
                         blocks of LONGER, all written, until they are as many bytes as all the
                         first blocks were: the time of a KiB of the later blocks, and peak resident
                         memory
   stall BYTES COUNT     COUNT blocks of BYTES, all written; every second one is freed; then, five
                         times, a second's sleep and 400 pairs of calls for a longer block, during
                         which idle memory goes back: the longest pair, by this thread's processor
                         time
   pause COUNT KEPT      COUNT objects of 32 to 231 bytes, all but KEPT freed in random order; then,
                         100 times, 20 ms of sleep and 2,000 small objects taken and freed, during
                         which the heap looks for holes: the longest free of the first part and the
                         longest call of the second, as above
   rest BYTES COUNT      COUNT objects of BYTES, their first bytes written; all but one in
                         sixty-four are freed in order: the time of that, the longest free, and
                         resident memory then
   lull BYTES COUNT      COUNT blocks of BYTES are taken, written and freed, eight times; then three
                         seconds without calls; then eight blocks of 200 to 1,600 bytes, each taken
                         and freed a tenth of a second after the last: resident memory before and
                         after these, and the longest pair, by the clock
   expire N BYTES COUNT   COUNT objects of BYTES, their first bytes written; half of them are freed
                         in random order; 1.5 s of few allocations, during which the heap looks for
                         holes; then N threads free the others: the time of a free in each half, by
                         the clock
   zeros BYTES LONGER COUNT   COUNT blocks of BYTES by calloc, of which every second one is freed;
                         then half as many blocks of LONGER by calloc; none is touched: the time of
                         one of the later blocks
   buffers N             N threads, each with 48 buffers of 4 KiB to 1 MiB, replaced at random; the
                         first 32 KiB of each buffer are written
   threads N             N pairs of threads; each thread takes and frees 200 objects of 16 to 515
                         bytes five times, and leaves one object
   second BYTES COUNT    a thread beside the main one takes COUNT objects of BYTES, writes their
                         ends and frees them, over and over; best of 15
   scratch N BYTES EACH   the main thread gives EACH objects of BYTES to each of N threads, in turn;
                         each thread frees them, and then, 20,000 times, allocates an object, writes
                         all of it over and over, and frees it; twice, so that new threads come
                         after old ones: how many of the N ended with an object in a line with
                         another thread's object
   beside N BYTES COUNT   N threads, each of which takes COUNT objects of BYTES, writes their first
                         bytes and frees them, 300 times: the time of a pair, and how often in the
                         end the next object, in order of address, is another thread's
   tree DEPTH TURNS      a full tree of DEPTH levels below its root, of nodes of 16 bytes, taken
                         parents first and freed children first, TURNS times: the time of a node
   pairs N BYTES         N threads, each of which takes a block of BYTES, writes its first byte and
                         frees it, 500,000 times: the processor time of a pair, as the mean of ten
                         turns
   swing N LEAST MOST COUNT ORDER   N threads, each of which takes COUNT objects of LEAST to MOST
                         bytes, writes their first bytes, and frees them in the order in which they
                         came (0), in the opposite order (1) or in random order (2), 100 times
   swing N LEAST MOST COUNT ORDER STAY   as before; each time also takes STAY objects of 100 bytes,
                         which stay */
#include <fcntl.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

static double now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1e9 + t.tv_nsec;
}

static uint64_t state = 88172645463325252u;

static uint64_t draw_of(uint64_t *own) {
    *own ^= *own << 13;
    *own ^= *own >> 7;
    return *own ^= *own << 17;
}

static uint64_t draw(void) {
    return draw_of(&state);
}

static void start_thread(pthread_t *thread, void *(*work)(void *), void *argument) {
    if (pthread_create(thread, NULL, work, argument) != 0) {
        fprintf(stderr, "no thread\n");
        exit(1);
    }
}

static void keep_least(double *least, double value) {
    if (*least == 0 || value < *least) *least = value;
}

static void shuffled(size_t count) {
    static const size_t sizes[] = {16, 64, 128, 256};
    uint64_t **objects = malloc(count * sizeof *objects), sum = 0;
    double taken_ns = 0, freed_ns = 0;
    for (int round = 0; round < 9; round++) {
        double start = now_ns();
        for (size_t i = 0; i < count; i++) {
            objects[i] = malloc(sizes[draw() % 4]);
            *objects[i] = i;
        }
        keep_least(&taken_ns, now_ns() - start);
        for (size_t i = count - 1; i > 0; i--) {
            size_t other = draw() % (i + 1);
            uint64_t *object = objects[i];
            objects[i] = objects[other];
            objects[other] = object;
        }
        start = now_ns();
        for (size_t i = 0; i < count; i++) {
            sum += *objects[i];
            free(objects[i]);
        }
        keep_least(&freed_ns, now_ns() - start);
    }
    printf("malloc %.1f ns, free %.1f ns (sum %llu)\n", taken_ns / count, freed_ns / count, (unsigned long long)sum);
}

static void runs(size_t align, size_t bytes, size_t more, size_t live) {
    char **blocks = calloc(live, sizeof *blocks);
    const int pairs = 100000;
    double least_ns = 0;
    for (int round = 0; round < 5; round++) {
        double start = now_ns();
        for (int i = 0; i < pairs; i++) {
            size_t place = draw() % live, size = bytes + (more > 0 ? draw() % more : 0);
            free(blocks[place]);
            blocks[place] = align > 0 ? aligned_alloc(align, size) : malloc(size);
            blocks[place][0] = blocks[place][size - 1] = 1;
        }
        keep_least(&least_ns, now_ns() - start);
    }
    printf("%.1f ns a pair\n", least_ns / pairs);
}

static void again(size_t least, size_t most) {
    double ns = 0;
    for (size_t size = least; size <= most; size *= 3) {
        double start = now_ns();
        for (int i = 0; i < 1000; i++) {
            volatile char *block = malloc(size);
            for (size_t at = 0; at < size; at += 4096) block[at] = 1;
            free((void *)block);
        }
        ns = (now_ns() - start) / 1000 / ((size + 4095) / 4096);
    }
    struct rusage used;
    getrusage(RUSAGE_SELF, &used);
    printf("%.1f ns a page, %ld faults\n", ns, used.ru_minflt);
}

static void hollow(size_t least, size_t most, size_t count, int ends) {
    char **objects = calloc(count, sizeof *objects);
    double start = now_ns();
    for (size_t i = 0; i < 40 * count; i++) {
        size_t place = draw() % count, size = least + draw() % (most - least + 1);
        free(objects[place]);
        objects[place] = malloc(size);
        objects[place][0] = objects[place][ends == 2 ? size - 1 : 0] = 1;
    }
    double ns = now_ns() - start;
    struct rusage used;
    getrusage(RUSAGE_SELF, &used);
    printf("%.1f ns a replacement, %ld faults, at most %.1f MiB\n", ns / (40 * count), used.ru_minflt, used.ru_maxrss / 1024.);
}

static void bursts(size_t least, size_t most) {
    char *objects[250];
    double least_ns = 0;
    for (int round = 0; round < 5; round++) {
        int pairs = 0;
        double start = now_ns();
        while (pairs < 100000) {
            int count = 50 + draw() % 201;
            for (int i = 0; i < count; i++) {
                size_t size = least + draw() % (most - least + 1);
                objects[i] = memset(malloc(size), 1, size < 32 ? size : 32);
            }
            for (int i = count - 1; i >= 0; i--) free(objects[i]);
            pairs += count;
        }
        keep_least(&least_ns, (now_ns() - start) / pairs);
    }
    printf("%.1f ns a pair\n", least_ns);
}

static void print_most_resident(size_t asked) {
    struct rusage usage;
    getrusage(RUSAGE_SELF, &usage);
    printf("%ld MiB resident at most, %.2f of %zu MiB\n", usage.ru_maxrss >> 10, usage.ru_maxrss * 1024.0 / asked, asked >> 20);
}

static void blocks(size_t bytes, size_t count, size_t written) {
    for (size_t i = 0; i < count; i++) memset(malloc(bytes), 1, written < bytes ? written : bytes);
    print_most_resident(bytes * count);
}

static void mixed(size_t bytes, size_t count, size_t longer, size_t rounds) {
    for (size_t round = 0; round < rounds; round++) {
        for (size_t i = 0; i < count; i++) memset(malloc(bytes), 1, bytes);
        memset(malloc(longer), 1, longer);
    }
    print_most_resident(rounds * (count * bytes + longer));
}

static void first(size_t bytes, size_t written, size_t more) {
    char *block = memset(malloc(bytes), 1, written < bytes ? written : bytes);
    for (int half = 0; half < 2; half++) {
        for (size_t taken = 0; taken < more; taken += 100) memset(malloc(100), 1, 100);
        if (half == 0) free(block);
    }
    struct rusage usage;
    getrusage(RUSAGE_SELF, &usage);
    printf("%.1f MiB resident at most\n", usage.ru_maxrss / 1024.0);
}

static void holes(size_t bytes, size_t longer, size_t count) {
    char **blocks = malloc(count * sizeof *blocks);
    size_t later = bytes * count / longer;
    for (size_t i = 0; i < count; i++) blocks[i] = memset(malloc(bytes), 1, bytes);
    for (size_t i = 0; i < count; i += 2) free(blocks[i]);
    double start = now_ns();
    for (size_t i = 0; i < later; i++) memset(malloc(longer), 1, longer);
    double ns = now_ns() - start;
    struct rusage usage;
    getrusage(RUSAGE_SELF, &usage);
    printf("%.0f ns a KiB, %ld MiB resident at most\n", ns / (later * longer / 1024.0), usage.ru_maxrss >> 10);
}

static const int buffer_pairs = 40000;

static void *fill_buffers(void *nothing) {
    char *buffers[48] = {0};
    uint64_t random = state;
    for (int i = 0; i < buffer_pairs; i++) {
        random = random * 6364136223846793005u + 1442695040888963407u;
        int place = (random >> 33) % 48, shift = 12 + (random >> 40) % 7;
        size_t size = ((size_t)1 << shift) + ((random >> 20) & (((size_t)1 << shift) - 1));
        free(buffers[place]);
        buffers[place] = malloc(size);
        memset(buffers[place], 1, size < 32768 ? size : 32768);
    }
    for (int i = 0; i < 48; i++) free(buffers[i]);
    return nothing;
}

static void buffers(size_t count) {
    pthread_t threads[64];
    double start = now_ns();
    if (count > 64) count = 64;
    for (size_t i = 0; i < count; i++) pthread_create(&threads[i], NULL, fill_buffers, NULL);
    for (size_t i = 0; i < count; i++) pthread_join(threads[i], NULL);
    struct rusage usage;
    getrusage(RUSAGE_SELF, &usage);
    printf("%.1f us a pair, %ld faults, %.1f MiB\n", (now_ns() - start) / 1e3 / buffer_pairs / count, usage.ru_minflt,
           usage.ru_maxrss / 1024.0);
}

static void append(size_t bytes) {
    double best_ns = 1e18;
    for (int turn = 0; turn < 9; turn++) {
        double start = now_ns();
        char *string = NULL;
        for (size_t length = 1; length <= bytes; length++) {
            string = realloc(string, length);
            string[length - 1] = 1;
        }
        free(string);
        double ns = now_ns() - start;
        if (ns < best_ns) best_ns = ns;
    }
    printf("%.1f ns a realloc\n", best_ns / bytes);
}

static void table(void) {
    const size_t count = 1400000;
    char **blocks = malloc(count * sizeof *blocks);
    double start = now_ns();
    for (size_t i = 0; i < count; i++) blocks[i] = memset(malloc(1000), 1, 1000);
    double filled = now_ns();
    long sum = 0;
    for (int i = 0; i < 20000000; i++) sum += blocks[draw() % count][0];
    double end = now_ns();
    struct rusage usage;
    getrusage(RUSAGE_SELF, &usage);
    printf("fill %.2f s, reads %.2f s, %ld faults, %ld MiB (sum %ld)\n", (filled - start) / 1e9, (end - filled) / 1e9,
           usage.ru_minflt, usage.ru_maxrss / 1024, sum);
}

static void *short_life(void *seed) {
    void *objects[200];
    uint64_t number = (uintptr_t)seed;
    for (int round = 0; round < 5; round++) {
        for (int i = 0; i < 200; i++) {
            number = number * 6364136223846793005u + 1442695040888963407u;
            objects[i] = malloc(16 + (number >> 33) % 500);
            *(char *)objects[i] = 1;
        }
        for (int i = 0; i < 200; i++) free(objects[i]);
    }
    return malloc(100);
}

static void threads(size_t count) {
    double start = now_ns();
    for (size_t i = 0; i < count; i++) {
        pthread_t one, other;
        void *left;
        start_thread(&one, short_life, (void *)(2 * i));
        start_thread(&other, short_life, (void *)(2 * i + 1));
        pthread_join(one, &left);
        free(left);
        pthread_join(other, &left);
        free(left);
    }
    printf("%.1f us a pair of threads\n", (now_ns() - start) / 1e3 / count);
}

static size_t second_bytes, second_count;

static void *second_thread(void *unused) {
    char **objects = malloc(second_count * sizeof *objects);
    size_t rounds = 1 + 4000000 / second_count;
    double pair_ns = 0;
    for (int run = 0; run < 15; run++) {
        double start = now_ns();
        for (size_t round = 0; round < rounds; round++) {
            for (size_t i = 0; i < second_count; i++) {
                objects[i] = malloc(second_bytes);
                objects[i][0] = objects[i][second_bytes - 1] = 0;
            }
            for (size_t i = 0; i < second_count; i++) free(objects[i]);
        }
        keep_least(&pair_ns, (now_ns() - start) / rounds / second_count);
    }
    free(objects);
    printf("%.2f ns a pair\n", pair_ns);
    return unused;
}

static void second(size_t bytes, size_t count) {
    pthread_t thread;
    second_bytes = bytes, second_count = count;
    free(malloc(bytes)); /* Gives the main thread a list before the other thread has one. */
    start_thread(&thread, second_thread, NULL);
    pthread_join(thread, NULL);
}

enum { SCRATCHES = 20000, WRITES = 500, LINE = 64, MOST_THREADS = 64 };

static size_t scratch_bytes, scratch_each;
static pthread_barrier_t all_here;

struct scratch {
    void **given;
    uintptr_t last;
    double ns;
};

static void *scratch_lines(void *mine) {
    struct scratch *my = mine;
    pthread_barrier_wait(&all_here);
    for (size_t i = 0; i < scratch_each; i++) free(my->given[i]);
    double start = now_ns();
    for (int turn = 0; turn < SCRATCHES; turn++) {
        volatile uint64_t *words = malloc(scratch_bytes);
        for (int i = 0; i < WRITES; i++) words[i % (scratch_bytes / sizeof *words)]++;
        my->last = (uintptr_t)words;
        free((void *)words);
    }
    my->ns = now_ns() - start;
    pthread_barrier_wait(&all_here);
    return NULL;
}

/* Whether two objects share a line. */
static int share_lines(uintptr_t one, uintptr_t other) {
    return one / LINE <= (other + scratch_bytes - 1) / LINE && other / LINE <= (one + scratch_bytes - 1) / LINE;
}

static void scratch(size_t count, size_t bytes, size_t each) {
    struct scratch all[MOST_THREADS];
    pthread_t threads[MOST_THREADS];
    scratch_bytes = bytes;
    scratch_each = each;
    pthread_barrier_init(&all_here, NULL, count);
    for (int generation = 1; generation <= 2; generation++) {
        double ns = 0;
        size_t sharing = 0;
        for (size_t i = 0; i < count; i++) all[i].given = calloc(each, sizeof *all[i].given);
        for (size_t k = 0; k < each; k++)
            for (size_t i = 0; i < count; i++) all[i].given[k] = malloc(bytes);
        for (size_t i = 0; i < count; i++) pthread_create(&threads[i], NULL, scratch_lines, &all[i]);
        for (size_t i = 0; i < count; i++) pthread_join(threads[i], NULL);
        for (size_t i = 0; i < count; i++) {
            int shares = 0;
            for (size_t k = 0; k < count; k++) shares |= k != i && share_lines(all[i].last, all[k].last);
            sharing += shares;
            ns += all[i].ns;
            free(all[i].given);
        }
        printf("generation %d: %.2f ns a write, %zu of %zu share a line\n", generation, ns / count / SCRATCHES / WRITES,
               sharing, count);
    }
}

static double used_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return t.tv_sec * 1e9 + t.tv_nsec;
}

static double longer(double longest_ns, double start_ns) {
    double ns = used_ns() - start_ns;
    return ns > longest_ns ? ns : longest_ns;
}

static void stall(size_t bytes, size_t count) {
    char **blocks = malloc(count * sizeof *blocks);
    for (size_t i = 0; i < count; i++) memset(blocks[i] = malloc(bytes), 1, bytes);
    for (size_t i = 0; i < count; i += 2) free(blocks[i]);
    double longest_ns = 0;
    for (int i = 0; i < 5 * 400; i++) {
        if (i % 400 == 0) nanosleep(&(struct timespec){ .tv_sec = 1 }, NULL);
        double start = used_ns();
        free(malloc(1200000));
        longest_ns = longer(longest_ns, start);
    }
    printf("longest call: %.2f ms\n", longest_ns / 1e6);
}

/* Makes no call that allocates. */
static long resident_mib(void) {
    char text[128] = "";
    long pages = 0;
    int file = open("/proc/self/statm", O_RDONLY);
    if (file < 0 || read(file, text, sizeof text - 1) <= 0 || sscanf(text, "%*d %ld", &pages) != 1) exit(3);
    close(file);
    return pages / 256;
}

static void rest_of(size_t bytes, size_t count) {
    char **objects = malloc(count * sizeof *objects);
    for (size_t i = 0; i < count; i++) *(objects[i] = malloc(bytes)) = 1;
    double longest_ns = 0, begin_ns = now_ns();
    for (size_t i = 0; i < count; i++) {
        if (i % 64 == 0) continue;
        double start = now_ns();
        free(objects[i]);
        double ns = now_ns() - start;
        if (ns > longest_ns) longest_ns = ns;
    }
    double ms = (now_ns() - begin_ns) / 1e6;
    printf("%.0f ms, longest free: %.2f ms, %ld MiB\n", ms, longest_ns / 1e6, resident_mib());
}

static void lull(size_t bytes, size_t count) {
    char **blocks = malloc(count * sizeof *blocks);
    for (int turn = 0; turn < 8; turn++) {
        for (size_t i = 0; i < count; i++) memset(blocks[i] = malloc(bytes), 1, bytes);
        for (size_t i = 0; i < count; i++) free(blocks[i]);
    }
    nanosleep(&(struct timespec){ .tv_sec = 3 }, NULL);
    long before_mib = resident_mib();
    double longest_ns = 0;
    for (int i = 1; i <= 8; i++) {
        nanosleep(&(struct timespec){ .tv_nsec = 100000000 }, NULL);
        double start = now_ns();
        char *block = malloc(200 * i);
        *block = 1;
        free(block);
        double ns = now_ns() - start;
        if (ns > longest_ns) longest_ns = ns;
    }
    printf("%ld, then %ld MiB, longest pair %.2f ms\n", before_mib, resident_mib(), longest_ns / 1e6);
}

static char **expiring;
static size_t expiring_count, expiring_step;

static void *free_expired(void *first) {
    for (size_t i = (size_t)first; i < expiring_count; i += expiring_step) free(expiring[i]);
    return NULL;
}

static void expire(size_t threads, size_t bytes, size_t count) {
    pthread_t ids[MOST_THREADS];
    expiring = malloc(count * sizeof *expiring);
    expiring_count = count;
    expiring_step = threads;
    for (size_t i = 0; i < count; i++) *(expiring[i] = malloc(bytes)) = 1;
    for (size_t i = count - 1; i > 0; i--) {
        size_t other = draw() % (i + 1);
        char *object = expiring[i];
        expiring[i] = expiring[other];
        expiring[other] = object;
    }
    double start = now_ns();
    for (size_t i = 0; i < count / 2; i++) free(expiring[i]);
    double first_ns = (now_ns() - start) / (count / 2);
    for (int i = 0; i < 30; i++) {
        nanosleep(&(struct timespec){ .tv_nsec = 50000000 }, NULL);
        for (size_t j = 0; j < 2000; j++) free(memset(malloc(200 + j), 1, 1));
        free(memset(malloc(100000), 1, 1));
    }
    expiring += count / 2;
    expiring_count -= count / 2;
    start = now_ns();
    for (size_t i = 0; i < threads; i++) start_thread(&ids[i], free_expired, (void *)i);
    for (size_t i = 0; i < threads; i++) pthread_join(ids[i], NULL);
    printf("%.0f ns a free, then %.0f ns\n", first_ns, (now_ns() - start) / expiring_count);
}

static void zeros(size_t bytes, size_t longer, size_t count) {
    char **blocks = malloc(count * sizeof *blocks), *last = NULL;
    for (size_t i = 0; i < count; i++) blocks[i] = calloc(1, bytes);
    for (size_t i = 0; i < count; i += 2) free(blocks[i]);
    double start = now_ns();
    for (size_t i = 0; i < count / 2; i++) {
        char *block = calloc(1, longer);
        if (!block) exit(3);
        last = block;
    }
    printf("%.2f us each%s\n", (now_ns() - start) / 1e3 / (count / 2), last ? "" : " of none");
}

static void pause_of(size_t count, size_t kept) {
    enum { LATER = 2000 };
    char **objects = malloc((count + LATER) * sizeof *objects);
    for (size_t i = 0; i < count; i++) {
        size_t bytes = 32 + draw() % 200;
        memset(objects[i] = malloc(bytes), 1, bytes);
    }
    for (size_t i = count - 1; i > 0; i--) {
        size_t other = draw() % (i + 1);
        char *object = objects[i];
        objects[i] = objects[other], objects[other] = object;
    }
    double frees_ns = 0, later_ns = 0;
    for (size_t i = kept; i < count; i++) {
        double start = used_ns();
        free(objects[i]);
        frees_ns = longer(frees_ns, start);
    }
    for (int turn = 0; turn < 100; turn++) {
        nanosleep(&(struct timespec){ .tv_nsec = 20000000 }, NULL);
        for (size_t i = 0; i < LATER; i++) {
            double start = used_ns();
            *(objects[kept + i] = malloc(32 + 7 * i % 200)) = 1;
            later_ns = longer(later_ns, start);
        }
        for (size_t i = 0; i < LATER; i++) {
            double start = used_ns();
            free(objects[kept + i]);
            later_ns = longer(later_ns, start);
        }
    }
    printf("longest free: %.2f ms, longest later call: %.2f ms\n", frees_ns / 1e6, later_ns / 1e6);
}

enum { SWINGS = 300 };

static size_t beside_bytes, beside_count;

struct owned {
    char *object;
    struct side *owner;
};

struct side {
    struct owned *objects;
    double ns;
};

static void *use_beside(void *mine) {
    struct side *my = mine;
    pthread_barrier_wait(&all_here);
    double start = now_ns();
    for (int turn = 0; turn < SWINGS; turn++) {
        for (size_t i = 0; i < beside_count; i++) {
            char *object = malloc(beside_bytes);
            object[0] = 1;
            my->objects[i] = (struct owned){object, my};
        }
        if (turn + 1 == SWINGS) break;
        for (size_t i = 0; i < beside_count; i++) free(my->objects[i].object);
    }
    my->ns = now_ns() - start;
    return NULL;
}

static int by_address(const void *one, const void *other) {
    const char *a = ((const struct owned *)one)->object, *b = ((const struct owned *)other)->object;
    return (a > b) - (a < b);
}

static void beside(size_t count, size_t bytes, size_t each) {
    struct side sides[MOST_THREADS];
    pthread_t threads[MOST_THREADS];
    struct owned *all = calloc(count * each, sizeof *all);
    beside_bytes = bytes, beside_count = each;
    pthread_barrier_init(&all_here, NULL, count);
    for (size_t i = 0; i < count; i++) {
        sides[i].objects = all + i * each;
        start_thread(&threads[i], use_beside, &sides[i]);
    }
    double ns = 0;
    for (size_t i = 0; i < count; i++) {
        pthread_join(threads[i], NULL);
        ns += sides[i].ns / count / SWINGS / each;
    }
    qsort(all, count * each, sizeof *all, by_address);
    size_t others = 0;
    for (size_t i = 1; i < count * each; i++) others += all[i].owner != all[i - 1].owner;
    printf("%.2f ns a pair, %zu of %zu objects lie before another thread's\n", ns, others, count * each);
}

enum { AS_TAKEN, AGAINST, DRAWN, TURNS = 100 };

struct swing {
    size_t least, most, count, order, stay;
    uint64_t state;
    double ns;
};

static void *volatile last; // keeps the calls

static void *take_and_free(void *mine) {
    struct swing *my = mine;
    char **objects = malloc(my->count * sizeof *objects);
    pthread_barrier_wait(&all_here);
    for (int turn = 0; turn < TURNS; turn++) {
        double start = now_ns();
        for (size_t i = 0; i < my->count; i++) {
            objects[i] = malloc(my->least + draw_of(&my->state) % (my->most - my->least + 1));
            objects[i][0] = 1;
        }
        my->ns += now_ns() - start;
        for (size_t i = my->count - 1; my->order == DRAWN && i > 0; i--) {
            size_t other = draw_of(&my->state) % (i + 1);
            char *object = objects[i];
            objects[i] = objects[other];
            objects[other] = object;
        }
        start = now_ns();
        for (size_t i = 0; i < my->count; i++) free(objects[my->order == AGAINST ? my->count - 1 - i : i]);
        for (size_t i = 0; i < my->stay; i++) last = memset(malloc(100), 1, 1);
        my->ns += now_ns() - start;
    }
    free(objects);
    return NULL;
}

static void swing(size_t threads, struct swing what) {
    struct swing all[MOST_THREADS];
    pthread_t ids[MOST_THREADS];
    pthread_barrier_init(&all_here, NULL, threads);
    for (size_t i = 0; i < threads; i++) {
        all[i] = what;
        all[i].state = draw();
        start_thread(&ids[i], take_and_free, &all[i]);
    }
    double ns = 0;
    for (size_t i = 0; i < threads; i++) {
        pthread_join(ids[i], NULL);
        ns += all[i].ns / threads / TURNS / what.count;
    }
    struct rusage used;
    getrusage(RUSAGE_SELF, &used);
    printf("%.1f ns a pair, %ld faults, at most %.1f MiB\n", ns, used.ru_minflt, used.ru_maxrss / 1024.);
}

enum { PAIRS = 500000 };

struct node { struct node *left, *right; };

static struct node *grow_tree(size_t depth) {
    struct node *node = malloc(sizeof *node);
    node->left = depth > 0 ? grow_tree(depth - 1) : NULL;
    node->right = depth > 0 ? grow_tree(depth - 1) : NULL;
    return node;
}

static void fell_tree(struct node *node) {
    if (node->left) {
        fell_tree(node->left);
        fell_tree(node->right);
    }
    free(node);
}

static void tree(size_t depth, size_t turns) {
    double start_ns = used_ns();
    for (size_t turn = 0; turn < turns; turn++) fell_tree(grow_tree(depth));
    printf("%.1f ns a node\n", (used_ns() - start_ns) / (double)turns / (double)((2ul << depth) - 1));
}

static void *take_pairs(void *bytes) {
    for (int i = 0; i < PAIRS; i++) {
        volatile char *block = malloc(*(size_t *)bytes);
        block[0] = 1;
        free((char *)block);
    }
    return NULL;
}

static void pairs(size_t threads, size_t bytes) {
    enum { PAIRS_TURNS = 10 };
    pthread_t thread[MOST_THREADS];
    clock_t start = clock();
    for (int turn = 0; turn < PAIRS_TURNS; turn++) {
        for (size_t i = 0; i < threads; i++) start_thread(&thread[i], take_pairs, &bytes);
        for (size_t i = 0; i < threads; i++) pthread_join(thread[i], NULL);
    }
    double ns = (clock() - start) * (1e9 / CLOCKS_PER_SEC);
    printf("%.1f ns a pair\n", ns / PAIRS_TURNS / threads / PAIRS);
}

int main(int argc, char **argv) {
    size_t number[6] = {0};
    for (int i = 2; i < argc && i < 8; i++) number[i - 2] = strtoul(argv[i], NULL, 10);
    if (argc == 3 && strcmp(argv[1], "shuffled") == 0 && number[0] > 0) shuffled(number[0]);
    else if (argc == 5 && strcmp(argv[1], "runs") == 0 && number[0] > 0 && number[2] > 0) runs(0, number[0], number[1], number[2]);
    else if (argc == 5 && strcmp(argv[1], "aligned") == 0 && number[0] > 0 && number[1] > 0 && number[2] > 0) runs(number[0], 1, number[1], number[2]);
    else if (argc == 4 && strcmp(argv[1], "bursts") == 0 && number[0] > 0 && number[1] >= number[0]) bursts(number[0], number[1]);
    else if (argc == 3 && strcmp(argv[1], "append") == 0 && number[0] > 0) append(number[0]);
    else if (argc == 4 && strcmp(argv[1], "pairs") == 0 && number[0] > 0 && number[0] <= MOST_THREADS && number[1] > 0) pairs(number[0], number[1]);
    else if (argc == 4 && strcmp(argv[1], "tree") == 0 && number[0] < 30 && number[1] > 0) tree(number[0], number[1]);
    else if (argc == 2 && strcmp(argv[1], "table") == 0) table();
    else if (argc == 5 && strcmp(argv[1], "blocks") == 0 && number[0] > 0 && number[1] > 0) blocks(number[0], number[1], number[2]);
    else if (argc == 6 && strcmp(argv[1], "mixed") == 0 && number[2] > 0 && number[3] > 0) mixed(number[0], number[1], number[2], number[3]);
    else if (argc == 4 && strcmp(argv[1], "again") == 0 && number[0] > 0 && number[1] >= number[0])
        again(number[0], number[1]);
    else if (argc == 6 && strcmp(argv[1], "hollow") == 0 && number[0] > 0 && number[1] >= number[0] && number[2] > 0 && number[3] - 1 < 2)
        hollow(number[0], number[1], number[2], number[3]);
    else if (argc == 5 && strcmp(argv[1], "first") == 0 && number[0] > 0) first(number[0], number[1], number[2]);
    else if (argc == 5 && strcmp(argv[1], "holes") == 0 && number[0] > 0 && number[1] > 0 && number[0] * number[2] >= number[1])
        holes(number[0], number[1], number[2]);
    else if (argc == 4 && strcmp(argv[1], "stall") == 0 && number[0] > 0 && number[1] > 0) stall(number[0], number[1]);
    else if (argc == 4 && strcmp(argv[1], "pause") == 0 && number[0] > number[1]) pause_of(number[0], number[1]);
    else if (argc == 4 && strcmp(argv[1], "rest") == 0 && number[0] > 0 && number[1] > 0) rest_of(number[0], number[1]);
    else if (argc == 4 && strcmp(argv[1], "lull") == 0 && number[0] > 0 && number[1] > 0) lull(number[0], number[1]);
    else if (argc == 5 && strcmp(argv[1], "expire") == 0 && number[0] > 0 && number[0] <= MOST_THREADS && number[1] > 0 && number[2] > 1)
        expire(number[0], number[1], number[2]);
    else if (argc == 5 && strcmp(argv[1], "zeros") == 0 && number[0] > 0 && number[1] > 0 && number[2] > 1) zeros(number[0], number[1], number[2]);
    else if (argc == 3 && strcmp(argv[1], "buffers") == 0 && number[0] > 0) buffers(number[0]);
    else if (argc == 3 && strcmp(argv[1], "threads") == 0 && number[0] > 0) threads(number[0]);
    else if (argc == 4 && strcmp(argv[1], "second") == 0 && number[0] > 0 && number[1] > 0) second(number[0], number[1]);
    else if (argc == 5 && strcmp(argv[1], "scratch") == 0 && number[0] > 0 && number[0] <= MOST_THREADS && number[1] >= 8)
        scratch(number[0], number[1], number[2]);
    else if (argc == 5 && strcmp(argv[1], "beside") == 0 && number[0] > 0 && number[0] <= MOST_THREADS && number[1] > 0 && number[2] > 0)
        beside(number[0], number[1], number[2]);
    else if ((argc == 7 || argc == 8) && strcmp(argv[1], "swing") == 0 && number[0] > 0 && number[0] <= MOST_THREADS && number[1] > 0 && number[2] >= number[1] && number[3] > 0 && number[4] <= DRAWN)
        swing(number[0], (struct swing){.least = number[1], .most = number[2], .count = number[3], .order = number[4], .stay = number[5]});
    else return fprintf(stderr, "usage: loops shuffled N | runs BYTES MORE LIVE | aligned ALIGN MOST LIVE | bursts LEAST MOST | table | blocks BYTES COUNT WRITTEN | mixed BYTES COUNT LONGER ROUNDS | hollow LEAST MOST COUNT ENDS | again LEAST MOST | first BYTES WRITTEN MORE | holes BYTES LONGER COUNT | stall BYTES COUNT | pause COUNT KEPT | rest BYTES COUNT | expire N BYTES COUNT | zeros BYTES LONGER COUNT | buffers N | threads N | second BYTES COUNT | scratch N BYTES EACH | beside N BYTES COUNT | swing N LEAST MOST COUNT ORDER [STAY]\n"), 2;
    return 0;
}
