/* Portable SIMD: vectors of gcc and clang, and loads and stores of float32 and bfloat16.
 *
 * All arithmetic is in float32 on the compiler's generic vector types, so that one source serves
 * every level. Intrinsics appear only where the compiler does not find the best instruction
 * itself.
 *
 *   vector   LANES floats: 4 (portable), 8 (AVX2) or 16 (AVX-512)
 *   block    two vectors, the unit in which kernels walk over features. The last block of a row
 *            may be short: functions with `valid` touch only the first `valid` features in memory.
 */
#ifndef ADDNORM_VECTORS_H
#define ADDNORM_VECTORS_H

#include <stdint.h>
#include <string.h>

#if defined(__AVX2__)
#include <immintrin.h>
#endif

#if defined(__AVX512F__)
#define LANES 16
#elif defined(__AVX2__)
#define LANES 8
#else
#define LANES 4
#endif
#define BLOCK (2 * LANES)

#define INLINE static inline __attribute__((always_inline))
#define VECTOR(type, count) __attribute__((vector_size(sizeof(type) * (count)))) type
#define UNALIGNED(type) __attribute__((aligned(sizeof(type)), may_alias))

typedef VECTOR(float, LANES) vfloat;
typedef VECTOR(int32_t, LANES) vint;
typedef VECTOR(uint32_t, LANES) vuint;
typedef VECTOR(uint16_t, LANES) vhalf;
typedef VECTOR(int16_t, LANES) vshort;
typedef VECTOR(float, 4) float4;
/* For loads and stores at any address of an element. */
typedef vfloat vfloat_unaligned UNALIGNED(float);
typedef vhalf vhalf_unaligned UNALIGNED(uint16_t);

typedef uint16_t bf16; /* the upper half of a float32 */
typedef float f32;
typedef struct {
    vfloat v[2];
} block;

INLINE vfloat vset(float value) { return (vfloat){0} + value; }

/* Sum of all lanes, in an order that does not depend on the compiler. */
INLINE float vsum(vfloat v) {
    float4 parts[LANES / 4], t;
    memcpy(parts, &v, sizeof v);
    t = parts[0];
    for (int i = 1; i < LANES / 4; i++) t += parts[i];
    return (t[0] + t[2]) + (t[1] + t[3]);
}

/* Set all but the first `valid` lanes of a block to 0. */
INLINE block mask_tail(block b, int64_t valid) {
    vint lane = {0};
    for (int i = 0; i < LANES; i++) lane[i] = i;
    for (int i = 0; i < 2; i++)
        b.v[i] = (vfloat)((vuint)b.v[i] & (vuint)(lane < (int32_t)valid - i * LANES));
    return b;
}

INLINE vint int16_to_int32(vshort s) {
#if defined(__AVX512F__)
    return (vint)_mm512_cvtepi16_epi32((__m256i)s);
#elif defined(__AVX2__)
    return (vint)_mm256_cvtepi16_epi32((__m128i)s);
#else
    return __builtin_convertvector(s, vint);
#endif
}

INLINE vfloat bf16_to_f32(vhalf h) {
#if defined(__AVX512F__)
    return (vfloat)((vuint)_mm512_cvtepu16_epi32((__m256i)h) << 16);
#elif defined(__AVX2__)
    return (vfloat)((vuint)_mm256_cvtepu16_epi32((__m128i)h) << 16);
#else
    return (vfloat)(__builtin_convertvector(h, vuint) << 16);
#endif
}

/* Loads and stores of a block. The first `valid` features are in memory, the others are read as 0.
 * The short case is in functions that are not inlined, which keeps the loops over whole blocks
 * small. */
#define NOINLINE static __attribute__((noinline, unused))

NOINLINE block load_tail_f32(const f32 *from, int64_t valid) {
    block b = {{{0}, {0}}};
    memcpy(&b, from, (size_t)valid * sizeof *from);
    return b;
}

NOINLINE block load_tail_bf16(const bf16 *from, int64_t valid) {
    vhalf h[2] = {{0}, {0}};
    memcpy(h, from, (size_t)valid * sizeof *from);
    return (block){{bf16_to_f32(h[0]), bf16_to_f32(h[1])}};
}

NOINLINE void store_tail_f32(f32 *to, block b, int64_t valid) {
    memcpy(to, &b, (size_t)valid * sizeof *to);
}

NOINLINE void store_tail_bf16(bf16 *to, block b, int64_t valid) {
    for (int i = 0; i < valid; i++) to[i] = (bf16)(((vuint)b.v[i / LANES])[i % LANES] >> 16);
}

INLINE block load_f32(const f32 *from, int64_t valid) {
    if (valid < BLOCK) return load_tail_f32(from, valid);
    return (block){{*(const vfloat_unaligned *)from, *(const vfloat_unaligned *)(from + LANES)}};
}

INLINE block load_bf16(const bf16 *from, int64_t valid) {
    if (valid < BLOCK) return load_tail_bf16(from, valid);
    return (block){{bf16_to_f32(*(const vhalf_unaligned *)from),
                    bf16_to_f32(*(const vhalf_unaligned *)(from + LANES))}};
}

INLINE void store_f32(f32 *to, block b, int64_t valid) {
    if (valid < BLOCK) {
        store_tail_f32(to, b, valid);
        return;
    }
    *(vfloat_unaligned *)to = b.v[0];
    *(vfloat_unaligned *)(to + LANES) = b.v[1];
}

INLINE block round_f32(block b) { return b; }

/* Return nonzero if a block may contain NaN; always so on a level without a quick test. */
INLINE int may_contain_nan(block b) {
#if defined(__AVX512F__)
    return _mm512_cmp_ps_mask((__m512)b.v[0], (__m512)b.v[1], _CMP_UNORD_Q) != 0;
#elif defined(__AVX2__)
    return _mm256_movemask_ps(_mm256_cmp_ps((__m256)b.v[0], (__m256)b.v[1], _CMP_UNORD_Q));
#else
    (void)b;
    return 1;
#endif
}

/* Round to the nearest bfloat16, ties to even, as torch does; NaN stays NaN. The result is
 * float32. */
INLINE block round_bf16(block b) {
    if (__builtin_expect(may_contain_nan(b), 0))
        for (int i = 0; i < 2; i++) {
            const vuint nan = (vuint)(b.v[i] != b.v[i]);
            b.v[i] = (vfloat)(((vuint)b.v[i] & ~nan) | (nan & 0x7fc00000));
        }
    for (int i = 0; i < 2; i++) {
        const vuint u = (vuint)b.v[i];
        b.v[i] = (vfloat)((u + 0x7fff + ((u >> 16) & 1)) & 0xffff0000);
    }
    return b;
}

INLINE void store_bf16(bf16 *to, block b, int64_t valid) { /* b: from round_bf16 */
    if (valid < BLOCK) {
        store_tail_bf16(to, b, valid);
        return;
    }
#if defined(__AVX2__) && !defined(__AVX512F__)
    const __m256i low = (__m256i)((vuint)b.v[0] >> 16), high = (__m256i)((vuint)b.v[1] >> 16);
    const __m256i both = _mm256_packus_epi32(low, high);
    _mm256_storeu_si256((__m256i *)to, _mm256_permute4x64_epi64(both, 0xd8));
#else
    for (int i = 0; i < 2; i++)
        *(vhalf_unaligned *)(to + i * LANES) = __builtin_convertvector((vuint)b.v[i] >> 16, vhalf);
#endif
}

/* One vector at any address. */
INLINE vfloat vload(const float *from) {
    vfloat v;
    memcpy(&v, from, sizeof v);
    return v;
}

INLINE void vstore(float *to, vfloat v) { memcpy(to, &v, sizeof v); }

#endif
