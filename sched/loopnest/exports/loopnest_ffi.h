/* How a function is called by apache-tvm-ffi, with arrays as DLPack describes them: the layouts of
 * what it is given, and the checks of that. A library needs neither package to be built or loaded; the
 * message of an error goes to libtvm_ffi, which is there where it is that which calls.
 *
 * Source: the stable C interface of apache-tvm-ffi (c_api.h), and dlpack.h. */
#ifndef LOOPNEST_FFI_H
#define LOOPNEST_FFI_H

#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#define LN_FFI static inline __attribute__((unused))

/* An argument or a result: which kind of value it is, and the value. */
typedef struct {
  int32_t kind;
  uint32_t rest;
  union { int64_t integer; double real; void *pointer; } value;
} ln_ffi_value;

enum { LN_FFI_NONE = 0, LN_FFI_INTEGER = 1, LN_FFI_BOOL = 2, LN_FFI_REAL = 3,
       LN_FFI_ARRAY = 7, LN_FFI_TENSOR = 70 };
enum { LN_FFI_HEADER = 24 }; /* the bytes of a tensor object in front of its array */

typedef struct {
  void *data;
  int32_t device, number, ndim;
  uint8_t code, bits;
  uint16_t lanes;
  const int64_t *shape, *strides;
  uint64_t offset;
} ln_ffi_array;

extern void TVMFFIErrorSetRaisedFromCStr(const char *kind, const char *message) __attribute__((weak));

/* Tell the caller of an error, by the name of its class in Python; returns what the function returns. */
LN_FFI __attribute__((format(printf, 2, 3))) int ln_ffi_fault(const char *kind, const char *text, ...) {
  char message[512];
  va_list given;
  va_start(given, text);
  vsnprintf(message, sizeof message, text, given);
  va_end(given);
  if (TVMFFIErrorSetRaisedFromCStr) TVMFFIErrorSetRaisedFromCStr(kind, message);
  return -1;
}

/* The array of an argument, NULL where it is none of the type and the rank. */
LN_FFI const ln_ffi_array *ln_ffi_take(const char *kernel, const ln_ffi_value *given, const char *name,
                                       const char *asked, int code, int bits, int ndim) {
  const ln_ffi_array *array = NULL;
  if (given->kind == LN_FFI_ARRAY) array = given->value.pointer;
  if (given->kind == LN_FFI_TENSOR)
    array = (const ln_ffi_array *)((const char *)given->value.pointer + LN_FFI_HEADER);
  if (array == NULL) {
    ln_ffi_fault("TypeError", "%s: %s is no array; pass %s", kernel, name, asked);
  } else if (array->code != code || array->bits != bits || array->lanes != 1) {
    ln_ffi_fault("TypeError", "%s: the elements of %s have another type; pass %s", kernel, name, asked);
  } else if (array->ndim != ndim) {
    ln_ffi_fault("ValueError", "%s: %s has %d axes; pass %s", kernel, name, array->ndim, asked);
  } else if (array->device != 1 && array->device != 3) { /* of the processor, or memory it shares */
    ln_ffi_fault("ValueError", "%s: %s does not lie in the memory of the CPU", kernel, name);
  } else {
    return array;
  }
  return NULL;
}

LN_FFI void *ln_ffi_data(const ln_ffi_array *array) {
  return array->data == NULL ? NULL : (char *)array->data + array->offset;
}

/* The stride of an axis in elements; where an array says none, it is C-contiguous. */
LN_FFI int64_t ln_ffi_stride(const ln_ffi_array *array, int axis) {
  if (array->strides != NULL) return array->strides[axis];
  int64_t found = 1;
  for (int other = array->ndim - 1; other > axis; --other) found *= array->shape[other];
  return found;
}

/* The checks of what is given; each tells of the error that it finds. */

LN_FFI int ln_ffi_counted(const char *kernel, int count, int asked, const char *names) {
  if (count == asked) return 0;
  return ln_ffi_fault("TypeError", "%s takes %d arguments (%s), and %d were given", kernel, asked, names,
                      count);
}

LN_FFI int ln_ffi_extent(const char *kernel, const ln_ffi_array *array, const char *name, int axis,
                         int64_t asked, const char *text) {
  if (array->shape[axis] == asked) return 0;
  return ln_ffi_fault("ValueError", "%s: axis %d of %s has the extent %lld; %s is %lld", kernel, axis, name,
                      (long long)array->shape[axis], text, (long long)asked);
}

/* Elements that do not lie one behind the other. */
LN_FFI int ln_ffi_no_rows(const char *kernel, const ln_ffi_array *array, const char *name) {
  int64_t wanted = 1;
  for (int axis = 0; axis < array->ndim; ++axis)
    if (array->shape[axis] == 0) return 0;
  for (int axis = array->ndim - 1; axis >= 0; --axis) {
    if (array->shape[axis] != 1 && ln_ffi_stride(array, axis) != wanted)
      return ln_ffi_fault("ValueError", "%s: %s is not C-contiguous; pass a copy that is", kernel, name);
    wanted *= array->shape[axis];
  }
  return 0;
}

LN_FFI int ln_ffi_steps(const char *kernel, const ln_ffi_array *array, const char *name, int axis,
                        int64_t asked, const char *text) {
  if (array->shape[axis] <= 1 || ln_ffi_stride(array, axis) == asked) return 0;
  return ln_ffi_fault("ValueError", "%s: axis %d of %s has the stride %lld; %s is %lld", kernel, axis, name,
                      (long long)ln_ffi_stride(array, axis), text, (long long)asked);
}

LN_FFI int ln_ffi_no_number(const char *kernel, const ln_ffi_value *given, int is_real, const char *name) {
  if (given->kind == LN_FFI_INTEGER || given->kind == LN_FFI_BOOL) return 0;
  if (is_real && given->kind == LN_FFI_REAL) return 0;
  return ln_ffi_fault("TypeError", "%s: %s is no %s", kernel, name, is_real ? "number" : "integer");
}

LN_FFI int ln_ffi_refused(const char *kernel, const char *sentence) {
  return ln_ffi_fault("ValueError", "%s: %s", kernel, sentence);
}

LN_FFI double ln_ffi_real(const ln_ffi_value *given) {
  return given->kind == LN_FFI_REAL ? given->value.real : (double)given->value.integer;
}

#endif
