/* PTX instructions of CUDA text on a CPU: products and loads of matrices that a warp executes
   together, and copies in flight. Included by cuda_on_cpu.h, behind threads and where they meet.

   Where a lane has an element is written here as the tables of the PTX ISA say it ("Warp-level
   matrix instructions"), whatever the package believes. Operands are numbers in `w`; `at` has the
   places of each operand's registers, in the order of the text. */

/* Copies in flight: cp.async. Nothing is known of the target until the copy lands, at a time that a
   seed decides: when a thread stops, at the latest at the wait for its group. */

struct Copy {
  unsigned char *to;
  const unsigned char *from;
  unsigned bytes, taken, group;
};
struct Flight {
  Copy copies[256];
  unsigned count, closed;
};

static void cpu_fail(const char *reason);
static unsigned cpu_random(unsigned below);
static unsigned char *cpu_shared_place(uint64_t address, unsigned bytes);

static void cpu_land(Flight &flight, unsigned place) {
  Copy copy = flight.copies[place];
  flight.copies[place] = flight.copies[--flight.count];
  for (unsigned n = 0; n < copy.bytes; n++) {
    if (copy.to[n] != 0xff) cpu_fail("bytes in flight were stored to");
    copy.to[n] = n < copy.taken ? copy.from[n] : 0;
  }
}
static void cpu_land_some(Flight &flight) {
  for (unsigned n = flight.count; n-- > 0;) {
    if (cpu_random(4) == 0) cpu_land(flight, n);
  }
}
static void ptx_cp_async_ca_shared_global(uint64_t *w, const int *at) {
  Flight &flight = *cpu_thread->flight;
  unsigned bytes = w[at[2]], taken = w[at[3]];
  Copy copy = {cpu_shared_place(w[at[0]], bytes), (const unsigned char *)w[at[1]], bytes, taken,
               flight.closed};
  if (bytes != 4 && bytes != 8 && bytes != 16) cpu_fail("cp.async of other than 4, 8, 16 bytes");
  if (taken > bytes) cpu_fail("cp.async takes more than it copies");
  if (w[at[0]] % bytes || (taken && w[at[1]] % bytes)) cpu_fail("cp.async is not aligned");
  if (flight.count == 256) cpu_fail("more than 256 copies of a thread are in flight");
  for (unsigned n = 0; n < flight.count; n++) {
    if (flight.copies[n].to < copy.to + bytes && copy.to < flight.copies[n].to + flight.copies[n].bytes)
      cpu_fail("two copies in flight to one place");
  }
  memset(copy.to, 0xff, bytes);
  flight.copies[flight.count++] = copy;
}
static void ptx_cp_async_commit_group(uint64_t *, const int *) { cpu_thread->flight->closed++; }
static void ptx_cp_async_wait_group(uint64_t *w, const int *at) {
  Flight &flight = *cpu_thread->flight;
  for (unsigned n = flight.count; n-- > 0;) {
    if (flight.copies[n].group + w[at[0]] < flight.closed) cpu_land(flight, n);
  }
}

/* What the lanes of a warp offer each other: words, from where the text calls to where all met. */

static unsigned cpu_words(unsigned lane, unsigned word) {
  unsigned result, number = cpu_thread->number / 32 * 32 + lane;
  const Thread &other = cpu_blocks[cpu_thread->block].threads[number];
  memcpy(&result, other.offered + 4 * word, 4);
  return result;
}
static void cpu_offer(const unsigned *words, unsigned count) {
  memcpy(cpu_thread->offered, words, 4 * count);
  cpu_warp(~0u, cpu_thread->line * 4);
}
static void cpu_taken() { cpu_warp(~0u, cpu_thread->line * 4 + 1); }

/* mma: D = A B + C. */

struct Element { int row, column; };
typedef Element (*Lanes)(int lane, int i);

static Element lanes_a_16(int lane, int i) {
  int row = lane >> 2, t = lane % 4;
  return {i < 2 || (4 <= i && i < 6) ? row : row + 8, t * 2 + (i & 1) + (i < 4 ? 0 : 8)};
}
static Element lanes_b_16(int lane, int i) {
  return {lane % 4 * 2 + (i & 1) + (i < 2 ? 0 : 8), lane >> 2};
}
static Element lanes_a_tf32(int lane, int i) {
  int row = lane >> 2, column = lane % 4;
  return {i == 0 || i == 2 ? row : row + 8, i == 0 || i == 1 ? column : column + 4};
}
static Element lanes_b_tf32(int lane, int i) {
  return {i == 0 ? lane % 4 : lane % 4 + 4, lane >> 2};
}
static Element lanes_a_8(int lane, int i) {
  int row = lane >> 2, t = lane % 4;
  return {i < 4 || (8 <= i && i < 12) ? row : row + 8, t * 4 + (i & 3) + (i < 8 ? 0 : 16)};
}
static Element lanes_b_8(int lane, int i) {
  return {lane % 4 * 4 + (i & 3) + (i < 4 ? 0 : 16), lane >> 2};
}
static Element lanes_d(int lane, int i) {
  return {i < 2 ? lane >> 2 : (lane >> 2) + 8, lane % 4 * 2 + (i & 1)};
}

static double value_f16(unsigned word, int part) {
  _Float16 result;
  uint16_t bits = word >> 16 * part;
  memcpy(&result, &bits, 2);
  return (double)result;
}
static double value_bf16(unsigned word, int part) {
  return cpu_bits<float>(word >> 16 * part << 16);
}
static double value_tf32(unsigned word, int) { return cpu_bits<float>(word & ~0x1fffu); }
static double value_s8(unsigned word, int part) { return (int8_t)(word >> 8 * part); }

/* All terms together, each cut off at two bits below 2^-23 of the largest, and their sum to 24 bits:
   as measured (tools/results). */
static float cpu_sum(const double *terms, int count) {
  double largest = 0, total = 0;
  for (int n = 0; n < count; n++) {
    total += terms[n];
    largest = fabs(terms[n]) > largest ? fabs(terms[n]) : largest;
  }
  if (!isfinite(total) || largest == 0) return (float)total;
  int exponent;
  frexp(largest, &exponent);
  total = 0;
  for (int n = 0; n < count; n++) total += trunc(ldexp(terms[n], 26 - exponent));
  double fraction = frexp(total, &count);
  return (float)ldexp(trunc(ldexp(fraction, 24)), count - 24 + exponent - 26);
}

template <int K, int PARTS, bool FLOATS>
static void cpu_mma(uint64_t *w, const int *at, Lanes a, Lanes b, double (*value)(unsigned, int)) {
  unsigned words[6];
  for (int n = 0; n < 6; n++) words[n] = w[at[4 + n]];
  cpu_offer(words, 6);
  double left[16][K], right[K][8], terms[K + 1];
  for (int lane = 0; lane < 32; lane++) {
    for (int i = 0; i < 4 * PARTS; i++) {
      Element e = a(lane, i);
      left[e.row][e.column] = value(cpu_words(lane, i / PARTS), i % PARTS);
    }
    for (int i = 0; i < 2 * PARTS; i++) {
      Element e = b(lane, i);
      right[e.row][e.column] = value(cpu_words(lane, 4 + i / PARTS), i % PARTS);
    }
  }
  cpu_taken();
  for (int i = 0; i < 4; i++) {
    Element e = lanes_d(cpu_lane(), i);
    unsigned before = w[at[10 + i]];
    terms[K] = FLOATS ? (double)cpu_bits<float>(before) : (double)(int)before;
    for (int k = 0; k < K; k++) terms[k] = left[e.row][k] * right[k][e.column];
    if (FLOATS) {
      w[at[i]] = cpu_bits<unsigned>(cpu_sum(terms, K + 1));
    } else {
      int64_t total = 0;
      for (int k = 0; k <= K; k++) total += (int64_t)terms[k];
      w[at[i]] = (unsigned)total;
    }
  }
}
static void ptx_mma_sync_aligned_m16n8k16_row_col_f32_f16_f16_f32(uint64_t *w, const int *at) {
  cpu_mma<16, 2, true>(w, at, lanes_a_16, lanes_b_16, value_f16);
}
static void ptx_mma_sync_aligned_m16n8k16_row_col_f32_bf16_bf16_f32(uint64_t *w, const int *at) {
  cpu_mma<16, 2, true>(w, at, lanes_a_16, lanes_b_16, value_bf16);
}
static void ptx_mma_sync_aligned_m16n8k8_row_col_f32_tf32_tf32_f32(uint64_t *w, const int *at) {
  cpu_mma<8, 1, true>(w, at, lanes_a_tf32, lanes_b_tf32, value_tf32);
}
static void ptx_mma_sync_aligned_m16n8k32_row_col_s32_s8_s8_s32(uint64_t *w, const int *at) {
  cpu_mma<32, 4, false>(w, at, lanes_a_8, lanes_b_8, value_s8);
}

/* ldmatrix: lane 8 j + r names row r of matrix j, 16 bytes. */

static void cpu_ldmatrix(uint64_t *w, const int *at, int count, bool transposed) {
  unsigned own = w[at[count]], lane = cpu_lane();
  cpu_offer(&own, 1);
  for (int j = 0; j < count; j++) {
    unsigned char bytes[4];
    for (int half = 0; half < 2; half++) {
      unsigned row = transposed ? lane % 4 * 2 + half : lane / 4;
      unsigned column = transposed ? lane / 4 : lane % 4 * 2 + half;
      unsigned address = cpu_words(8 * j + row, 0);
      if (address % 16) cpu_fail("a row of ldmatrix is not aligned to 16 bytes");
      memcpy(bytes + 2 * half, cpu_shared_place(address, 16) + 2 * column, 2);
    }
    unsigned word;
    memcpy(&word, bytes, 4);
    w[at[j]] = word;
  }
  cpu_taken();
}
static void ptx_ldmatrix_sync_aligned_m8n8_x2_shared_b16(uint64_t *w, const int *at) {
  cpu_ldmatrix(w, at, 2, false);
}
static void ptx_ldmatrix_sync_aligned_m8n8_x4_shared_b16(uint64_t *w, const int *at) {
  cpu_ldmatrix(w, at, 4, false);
}
static void ptx_ldmatrix_sync_aligned_m8n8_x2_trans_shared_b16(uint64_t *w, const int *at) {
  cpu_ldmatrix(w, at, 2, true);
}
static void ptx_ldmatrix_sync_aligned_m8n8_x4_trans_shared_b16(uint64_t *w, const int *at) {
  cpu_ldmatrix(w, at, 4, true);
}
