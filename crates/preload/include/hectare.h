/* What libhectare.so offers beyond the malloc family of names. Programs that do not link the
   library look the functions up with dlsym(RTLD_DEFAULT, "...") and do without where they are
   missing. All functions may be called by any thread. */
#ifndef HECTARE_H
#define HECTARE_H 1

#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Writes the heap profile to the file `path`, or to the next file of prof_prefix if `path` is
   NULL (`path` is taken as it is, without %p). 0, or an errno value: ENOTSUP when HECTARE_CONF does not say
   prof:true, EBUSY while this file is being written already, ENOMEM when there is no memory for a copy of what is
   known, ENAMETOOLONG, else what the system refused the file with. */
int hectare_prof_dump(const char *path);

/* Writes the statistics as JSON (docs/malloc-configuration.md) to the file `path`, in which %p stands for the
   process number, as it does in HECTARE_CONF. 0, or the errno value that the system refused it with; EINVAL if
   `path` is NULL, EBUSY while this file is being written already, ENAMETOOLONG. */
int hectare_stats_dump(const char *path);

/* Which front serves the program ("auto", "thread", "cpu", "watched", "hardened") and every option
   that is on, as in "front:watched,prof:true,prof_sample:2097152". The text lives as long as the
   process; one that has confined itself (prctl) since then gets another. Never NULL. */
const char *hectare_mode(void);

#ifdef __cplusplus
}
#endif

#endif
