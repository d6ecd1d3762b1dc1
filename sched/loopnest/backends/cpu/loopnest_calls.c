/* Calls of kernels: a table of launches, and a call that looks at the arrays of a user first.

   What stands in front of this text defines where the fields of an array of NumPy and of a tuple
   of CPython stand, in bytes (host_call.py). An entry takes its arguments from words of 64 bits:
   addresses, sizes, and scalars at the beginning of a word; slots say in which words they are. */

#define _POSIX_C_SOURCE 200112L
#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

typedef int entry(const uint64_t *words, const int *slots);

typedef struct {
  int64_t count;
  entry **entries;
  const int *widths, *slots; /* of each launch the number of its arguments, and their words */
  int64_t *times;            /* gets the nanoseconds of each, unless it is NULL */
  int threads;               /* at most so many run a launch; 0: as many as OpenMP takes */
  int (*most)(void);         /* OpenMP's own functions; NULL without OpenMP */
  void (*limit)(int);
  const int64_t *home; /* the process whose threads OpenMP has */
} launch_table;

/* The process at hand: to ask the system at each call would cost more than a small kernel. */
static int64_t process;

static void note_fork(void) { process = getpid(); }

__attribute__((constructor)) static void begin(void) {
  note_fork();
  pthread_atfork(NULL, NULL, note_fork);
}

static int64_t now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

static int run_all(const launch_table *own, const uint64_t *words) {
  const int *slots = own->slots;
  for (int64_t i = 0; i < own->count; i++) {
    const int64_t start = own->times ? now() : 0;
    const int status = own->entries[i](words, slots);
    if (status) return status;
    if (own->times) own->times[i] = now() - start;
    slots += own->widths[i];
  }
  return 0;
}

/* Run all launches; return the status of the first to fail. A child of a fork that has not the
   threads of its parent would wait for them for ever, and runs on one. */
int loopnest_run_table(const launch_table *own, const uint64_t *words) {
  const int threads = own->limit == NULL ? 0 : process != *own->home ? 1 : own->threads;
  if (!threads) return run_all(own, words);
  const int before = own->most();
  own->limit(threads);
  const int status = run_all(own, words);
  own->limit(before);
  return status;
}

typedef struct {
  const char *dtype; /* the object that it has as its type */
  int64_t rank;
  const int64_t *shape;
  const int64_t *strides; /* in bytes; NULL: C order */
  uint64_t bytes;         /* from its first element to the end of its last */
  int flags;              /* that it has */
  int is_written;
} array_form;

typedef struct {
  const launch_table *table;
  const uint64_t *words; /* what is the same in all calls */
  int64_t count;
  const char *type; /* numpy.ndarray */
  const array_form *forms;
  int64_t inputs, results, scalars; /* the first words: addresses, then scalars */
  uint64_t begin, end;              /* memory that no input may lie in */
  int64_t is_out; /* whether arrays for results are the caller's, and must be looked at */
} host_call;

#define AT(kind, object, place) (*(kind const *)((object) + (place)))

static int fits(const host_call *own, const char *x, const array_form *form) {
  if (AT(char *, x, TYPE) != own->type || AT(char *, x, DTYPE) != form->dtype) return 0;
  if ((AT(int, x, FLAGS) & form->flags) != form->flags) return 0;
  if (AT(int, x, RANK) != form->rank) return 0;
  const int64_t *shape = AT(int64_t *, x, SHAPE), *strides = AT(int64_t *, x, STRIDES);
  for (int64_t axis = 0; axis < form->rank; axis++) {
    if (shape[axis] != form->shape[axis]) return 0;
    if (form->strides && shape[axis] > 1 && strides[axis] != form->strides[axis]) return 0;
  }
  return 1;
}

static int overlap(uint64_t a, uint64_t a_bytes, uint64_t b, uint64_t b_bytes) {
  return a < b + b_bytes && b < a + a_bytes;
}

/* Whether an array that is written shares memory with another. */
static int is_shared(const host_call *own, const uint64_t *words, int64_t count) {
  for (int64_t i = 0; i < count; i++)
    for (int64_t j = 0; own->forms[i].is_written && j < count; j++)
      if (i != j && overlap(words[i], own->forms[i].bytes, words[j], own->forms[j].bytes)) return 1;
  return 0;
}

static int checked_run(const host_call *own, const char *given, const char *made,
                       const char *scalars, uint64_t *words) {
  const char *const *x = (const char *const *)(given + ITEMS);
  const char *const *y = (const char *const *)(made + ITEMS);
  memcpy(words, own->words, own->count * sizeof *words);
  for (int64_t i = 0; i < own->inputs; i++) {
    if (!fits(own, x[i], &own->forms[i])) return MISFIT;
    words[i] = AT(uint64_t, x[i], DATA);
    if (overlap(words[i], own->forms[i].bytes, own->begin, own->end - own->begin)) return MISFIT;
  }
  for (int64_t i = own->inputs, n = 0; n < own->results; i++, n++) {
    if (own->is_out && !fits(own, y[n], &own->forms[i])) return MISFIT;
    words[i] = AT(uint64_t, y[n], DATA);
  }
  if (is_shared(own, words, own->inputs + (own->is_out ? own->results : 0))) return MISFIT;
  if (own->scalars) memcpy(words + own->inputs + own->results, scalars, own->scalars * sizeof *words);
  return loopnest_run_table(own->table, words);
}

/* Look at the arguments, and run the launches if they are as the table takes them.

   given, made: tuples, of the inputs and of the arrays for results. scalars: a word for each.
   Threads may call at once: the words of a call are its own. */
int loopnest_scalar_call(const host_call *own, const char *given, const char *made,
                         const char *scalars) {
  uint64_t few[64];
  if (AT(int64_t, given, COUNT) != own->inputs) return MISFIT;
  if (own->count <= 64) return checked_run(own, given, made, scalars, few);
  uint64_t *words = malloc(own->count * sizeof *words);
  if (words == NULL) return MISFIT;
  const int status = checked_run(own, given, made, scalars, words);
  free(words);
  return status;
}

/* A call without scalars: one argument less for Python to tell. */
int loopnest_call(const host_call *own, const char *given, const char *made) {
  return loopnest_scalar_call(own, given, made, NULL);
}
