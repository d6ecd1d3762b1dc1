/* A CUDA driver without a GPU: device memory is the host's, and of kernels it knows two, which it
 * runs itself. For the tests of the packages that drive a GPU; each call is written to a log.
 *
 * Signatures follow cuda.h of CUDA 13; handles are small numbers.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef int CUresult;
typedef void *Handle;
typedef uint64_t Pointer;
enum { OK = 0, INVALID = 1, NOT_FOUND = 500 };

static FILE *log_file;
static int contexts; /* how many are on the stack */

static void note(const char *format, ...) {
  if (!log_file) log_file = fopen(getenv("FAKE_CUDA_LOG"), "w");
  va_list args;
  va_start(args, format);
  vfprintf(log_file, format, args);
  va_end(args);
  fputc('\n', log_file);
  fflush(log_file);
}

/* Kernels. */

static const char *const names[] = {"scale", "neighbours"};

static void run(int kernel, void **p, unsigned blocks, unsigned threads) {
  if (kernel == 0) {
    const float *x = *(float **)p[0];
    float *y = *(float **)p[1];
    float alpha = *(float *)p[2], shift = (float)*(_Float16 *)p[3];
    int count = *(int *)p[4];
    int64_t n = *(int64_t *)p[5], d = *(int64_t *)p[6];
    for (int64_t i = 0; i < n * d; ++i) y[i] = x[i] * alpha + shift + (float)count;
  } else {
    const float *x = *(float **)p[0];
    float *y = *(float **)p[1], *between = *(float **)p[2];
    unsigned *arrived = *(unsigned **)p[3];
    unsigned size = blocks * threads;
    if (*arrived != 0) abort();
    for (unsigned i = 0; i < size; ++i) between[i] = x[i];
    for (unsigned i = 0; i < size; ++i) y[i] = between[(i + 1) % size];
  }
}

/* The block of parameters that CU_LAUNCH_PARAM_BUFFER_POINTER passes. */
struct scale { void *x, *y; float alpha; _Float16 shift; int count; int64_t n, d; };

/* The last asynchronous copy to the GPU, done as late as it may be: the array of the host may be
   page-locked, which is read when the stream comes to the copy. */
static void *late_to;
static const void *late_from;
static size_t late_count;

static void finish(void) {
  memcpy(late_to, late_from, late_count);
  late_count = 0;
}

static CUresult launch(const char *how, Handle f, unsigned gx, unsigned gy, unsigned gz, unsigned bx,
                       unsigned by, unsigned bz, unsigned shared, Handle stream, void **params,
                       void **extra) {
  int kernel = (int)(intptr_t)f - 100;
  note("%s %s (%u, %u, %u) (%u, %u, %u) %u %p", how, names[kernel], gx, gy, gz, bx, by, bz, shared,
       stream);
  finish();
  if (contexts == 0) return INVALID;
  if (extra && extra[0]) {
    struct scale *s = extra[1];
    size_t count = *(size_t *)extra[3];
    if (kernel != 0 || count != sizeof *s) return INVALID;
    void *own[] = {&s->x, &s->y, &s->alpha, &s->shift, &s->count, &s->n, &s->d};
    run(kernel, own, gx * gy * gz, bx * by * bz);
  } else {
    run(kernel, params, gx * gy * gz, bx * by * bz);
  }
  return OK;
}

CUresult cuLaunchKernel(Handle f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by,
                        unsigned bz, unsigned shared, Handle stream, void **params, void **extra) {
  return launch("launch", f, gx, gy, gz, bx, by, bz, shared, stream, params, extra);
}

CUresult cuLaunchCooperativeKernel(Handle f, unsigned gx, unsigned gy, unsigned gz, unsigned bx,
                                   unsigned by, unsigned bz, unsigned shared, Handle stream,
                                   void **params) {
  return launch("together", f, gx, gy, gz, bx, by, bz, shared, stream, params, NULL);
}

struct attribute { int id; char pad[4]; union { char bytes[64]; int number; } value; };
struct config {
  unsigned gx, gy, gz, bx, by, bz, shared;
  Handle stream;
  struct attribute *attributes;
  unsigned count;
};

CUresult cuLaunchKernelEx(const struct config *c, Handle f, void **params, void **extra) {
  const char *how = "launch";
  for (unsigned i = 0; i < c->count; ++i) {
    if (c->attributes[i].id == 2 && c->attributes[i].value.number) how = "together";
  }
  return launch(how, f, c->gx, c->gy, c->gz, c->bx, c->by, c->bz, c->shared, c->stream, params,
                extra);
}

static CUresult kernel_number(Handle *f, const char *name) {
  for (int i = 0; i < 2; ++i) {
    if (!strcmp(name, names[i])) {
      *f = (Handle)(intptr_t)(100 + i);
      note("function %s", name);
      return OK;
    }
  }
  return NOT_FOUND;
}

CUresult cuModuleLoadData(Handle *m, const void *image) {
  note("load %.4s", (const char *)image + 1);
  *m = (Handle)7;
  return contexts ? OK : INVALID;
}
CUresult cuModuleLoadDataEx(Handle *m, const void *image, unsigned n, int *o, void **v) {
  return cuModuleLoadData(m, image);
}
CUresult cuModuleUnload(Handle m) { return OK; }
CUresult cuModuleGetFunction(Handle *f, Handle m, const char *name) { return kernel_number(f, name); }
CUresult cuLibraryLoadData(Handle *m, const void *image, int *a, void **b, unsigned c, int *d,
                           void **e, unsigned g) {
  return cuModuleLoadData(m, image);
}
CUresult cuLibraryUnload(Handle m) { return OK; }
CUresult cuLibraryGetKernel(Handle *f, Handle m, const char *name) { return kernel_number(f, name); }
CUresult cuKernelGetLibrary(Handle *m, Handle f) {
  *m = (Handle)7;
  return OK;
}
CUresult cuFuncSetAttribute(Handle f, int key, int value) {
  note("attribute %d %d", key, value);
  return OK;
}
CUresult cuFuncSetBlockShape(Handle f, int x, int y, int z) { return OK; } /* by pycuda, in vain */
CUresult cuKernelSetAttribute(int key, int value, Handle f, int device) {
  return cuFuncSetAttribute(f, key, value);
}
CUresult cuOccupancyMaxActiveBlocksPerMultiprocessor(int *count, Handle f, int threads, size_t b) {
  note("occupancy %d %zu", threads, b);
  *count = 2;
  return OK;
}

/* Devices and contexts. */

CUresult cuInit(unsigned flags) { return OK; }
CUresult cuDriverGetVersion(int *version) {
  const char *given = getenv("FAKE_CUDA_VERSION");
  *version = given ? atoi(given) : 13000;
  return OK;
}
CUresult cuDeviceGetCount(int *count) {
  *count = 1;
  return OK;
}
CUresult cuDeviceGet(int *device, int ordinal) {
  *device = ordinal;
  return OK;
}
CUresult cuDeviceGetName(char *name, int length, int device) {
  snprintf(name, (size_t)length, "Fake H100");
  return OK;
}
CUresult cuDeviceGetUuid(char *uuid, int device) {
  memset(uuid, 1, 16);
  return OK;
}
CUresult cuDeviceGetUuid_v2(char *uuid, int device) { return cuDeviceGetUuid(uuid, device); }
CUresult cuDeviceGetAttribute(int *value, int key, int device) {
  switch (key) {
    case 16: *value = 132; break;    /* MULTIPROCESSOR_COUNT */
    case 75: *value = 9; break;      /* COMPUTE_CAPABILITY_MAJOR */
    case 76: *value = 0; break;      /* COMPUTE_CAPABILITY_MINOR */
    case 95: *value = 1; break;      /* COOPERATIVE_LAUNCH */
    case 115: *value = !getenv("FAKE_CUDA_NO_POOLS"); break; /* MEMORY_POOLS_SUPPORTED */
    case 97: *value = 232448; break; /* MAX_SHARED_MEMORY_PER_BLOCK_OPTIN */
    default: *value = 1024;
  }
  return OK;
}
CUresult cuDevicePrimaryCtxRetain(Handle *context, int device) {
  note("retain %d", device);
  *context = (Handle)5;
  return OK;
}
CUresult cuDevicePrimaryCtxRelease_v2(int device) { return OK; }
CUresult cuDevicePrimaryCtxRelease(int device) { return OK; }
CUresult cuDevicePrimaryCtxGetState(int device, unsigned *flags, int *active) {
  *flags = 0;
  *active = 1;
  return OK;
}
CUresult cuCtxPushCurrent_v2(Handle context) {
  ++contexts;
  return OK;
}
CUresult cuCtxPopCurrent_v2(Handle *context) {
  if (context) *context = (Handle)5;
  --contexts;
  return OK;
}
CUresult cuCtxSetCurrent(Handle context) {
  contexts = context != NULL;
  return OK;
}
CUresult cuCtxGetCurrent(Handle *context) {
  *context = contexts ? (Handle)5 : NULL;
  return OK;
}
CUresult cuCtxGetDevice(int *device) {
  *device = 0;
  return OK;
}
CUresult cuCtxGetApiVersion(Handle context, unsigned *version) {
  *version = 3020;
  return OK;
}
CUresult cuCtxSynchronize(void) { return OK; }

/* Memory. */

CUresult cuMemAlloc_v2(Pointer *p, size_t count) {
  note("allocate %zu", count);
  *p = (Pointer)aligned_alloc(256, (count + 255) / 256 * 256);
  return contexts ? OK : INVALID;
}
CUresult cuMemFree_v2(Pointer p) {
  note("free");
  free((void *)p);
  return contexts ? OK : INVALID;
}
CUresult cuDeviceTotalMem_v2(size_t *count, int device) {
  *count = (size_t)64 << 30;
  return OK;
}
CUresult cuMemPoolCreate(Handle *pool, const void *props) {
  *pool = (Handle)11;
  return OK;
}
CUresult cuMemPoolSetAttribute(Handle pool, int key, void *value) {
  note("pool %p %d %llu", pool, key, *(unsigned long long *)value);
  return OK;
}
CUresult cuMemAllocFromPoolAsync(Pointer *p, size_t count, Handle pool, Handle stream) {
  note("allocate %zu %p", count, stream);
  *p = (Pointer)aligned_alloc(256, (count + 255) / 256 * 256);
  return contexts && pool == (Handle)11 ? OK : INVALID;
}
CUresult cuMemFreeAsync(Pointer p, Handle stream) {
  note("free %p", stream);
  finish();
  free((void *)p);
  return contexts ? OK : INVALID;
}
CUresult cuMemcpyHtoDAsync_v2(Pointer to, const void *from, size_t count, Handle stream) {
  note("upload %zu %p", count, stream);
  finish();
  late_to = (void *)to, late_from = from, late_count = count;
  return OK;
}
CUresult cuMemcpyHtoD_v2(Pointer to, const void *from, size_t count) {
  CUresult status = cuMemcpyHtoDAsync_v2(to, from, count, NULL);
  finish();
  return status;
}
CUresult cuMemcpyDtoHAsync_v2(void *to, Pointer from, size_t count, Handle stream) {
  note("download %zu %p", count, stream);
  finish();
  memcpy(to, (void *)from, count);
  return OK;
}
CUresult cuMemcpyDtoH_v2(void *to, Pointer from, size_t count) {
  return cuMemcpyDtoHAsync_v2(to, from, count, NULL);
}
CUresult cuMemsetD8Async(Pointer to, unsigned char value, size_t count, Handle stream) {
  note("zero %zu %p", count, stream);
  finish();
  memset((void *)to, value, count);
  return OK;
}

/* Streams and events. */

CUresult cuStreamGetCtx(Handle stream, Handle *context) {
  *context = (Handle)5;
  return OK;
}
CUresult cuStreamGetCtx_v2(Handle stream, Handle *context, Handle *green) {
  if (green) *green = NULL;
  return cuStreamGetCtx(stream, context);
}
CUresult cuCtxGetDevice_v2(int *device, Handle context) {
  *device = 0;
  return OK;
}

CUresult cuStreamSynchronize(Handle stream) {
  note("synchronize %p", stream);
  finish();
  return OK;
}
CUresult cuStreamWaitEvent(Handle stream, Handle event, unsigned flags) {
  note("wait %p", stream);
  return OK;
}
CUresult cuEventCreate(Handle *event, unsigned flags) {
  *event = (Handle)9;
  return OK;
}
CUresult cuEventRecord(Handle event, Handle stream) {
  note("record %p", stream);
  return OK;
}
CUresult cuEventSynchronize(Handle event) {
  finish();
  return OK;
}
CUresult cuEventElapsedTime(float *milliseconds, Handle start, Handle end) {
  *milliseconds = 2.5f;
  return OK;
}
CUresult cuEventElapsedTime_v2(float *milliseconds, Handle start, Handle end) {
  return cuEventElapsedTime(milliseconds, start, end);
}
CUresult cuEventDestroy_v2(Handle event) { return OK; }

/* Errors, and how the packages find all this. */

CUresult cuGetErrorString(CUresult status, const char **text) {
  *text = "a fake error";
  return OK;
}
CUresult cuGetErrorName(CUresult status, const char **text) {
  *text = "FAKE";
  return OK;
}

CUresult cuGetProcAddress_v2(const char *name, void **found, int version, uint64_t flags, int *status) {
  char full[128];
  snprintf(full, sizeof full, "%s_v2", name);
  Dl_info own;
  dladdr((void *)cuGetProcAddress_v2, &own);
  void *self = dlopen(own.dli_fname, RTLD_LAZY | RTLD_NOLOAD);
  *found = dlsym(self, full);
  if (!*found) *found = dlsym(self, name);
  if (status) *status = *found ? 0 : 1;
  return *found ? OK : NOT_FOUND;
}
CUresult cuGetProcAddress(const char *name, void **found, int version, uint64_t flags) {
  return cuGetProcAddress_v2(name, found, version, flags, NULL);
}
