/* Vectors as gcc and clang have them on every machine; instructions are named only where the compiler
 * does not find the one that it should.
 *
 * A block is two vectors, as many features as one vector of 64-bit words has draws of 16 bits.
 */
#ifndef ADDNORM_VECTORS_H
#define ADDNORM_VECTORS_H

#include <stdint.h>
#include <string.h>

#include "addnorm.h"

#if defined(__AVX2__)
#include <immintrin.h>
#endif

#if defined(__AVX512F__)
#define WIDE 16
#elif defined(__AVX2__)
#define WIDE 8
#else
#define WIDE 4
#endif
#define BLOCK (2 * WIDE)

#define INLINE static inline __attribute__((always_inline))
#define VECTOR(type, count) __attribute__((vector_size(sizeof(type) * (count)))) type
#define ANYWHERE(type) __attribute__((aligned(sizeof(type)), may_alias))

typedef VECTOR(float, WIDE) floats;
typedef VECTOR(int32_t, WIDE) ints;
typedef VECTOR(uint32_t, WIDE) bits;
typedef VECTOR(uint16_t, WIDE) halves;
typedef VECTOR(int16_t, WIDE) shorts;
typedef VECTOR(int16_t, BLOCK) draws;
typedef VECTOR(uint64_t, BLOCK / 4) words;
typedef VECTOR(float, 4) four;
typedef floats loose_floats ANYWHERE(float);
typedef halves loose_halves ANYWHERE(uint16_t);

typedef uint16_t bf16;
typedef float f32;
typedef struct {
    floats v[2];
} block;

INLINE floats all(float value) { return (floats){0} + value; }

INLINE float sum(floats v) {
    four parts[WIDE / 4], t;
    memcpy(parts, &v, sizeof v);
    t = parts[0];
    for (int i = 1; i < WIDE / 4; i++) t += parts[i];
    return (t[0] + t[2]) + (t[1] + t[3]);
}

/* What is no feature set to 0: all but the first `left` lanes of a block. */
INLINE block cut(block b, int64_t left) {
    ints place = {0};
    for (int i = 0; i < WIDE; i++) place[i] = i;
    for (int i = 0; i < 2; i++)
        b.v[i] = (floats)((bits)b.v[i] & (bits)(place < (int32_t)left - i * WIDE));
    return b;
}

INLINE ints widen_shorts(shorts s) {
#if defined(__AVX512F__)
    return (ints)_mm512_cvtepi16_epi32((__m256i)s);
#elif defined(__AVX2__)
    return (ints)_mm256_cvtepi16_epi32((__m128i)s);
#else
    return __builtin_convertvector(s, ints);
#endif
}

INLINE floats widen(halves h) {
#if defined(__AVX512F__)
    return (floats)((bits)_mm512_cvtepu16_epi32((__m256i)h) << 16);
#elif defined(__AVX2__)
    return (floats)((bits)_mm256_cvtepu16_epi32((__m128i)h) << 16);
#else
    return (floats)(__builtin_convertvector(h, bits) << 16);
#endif
}

/* Loads and stores of a block, of which `left` features are there: the others are read as 0. What is
 * short stands in functions of its own, which keeps the loops small. */
#define SHORT static __attribute__((noinline, unused))

SHORT block load_short_f32(const f32 *from, int64_t left) {
    block b = {{{0}, {0}}};
    memcpy(&b, from, (size_t)left * sizeof *from);
    return b;
}

SHORT block load_short_bf16(const bf16 *from, int64_t left) {
    halves h[2] = {{0}, {0}};
    memcpy(h, from, (size_t)left * sizeof *from);
    return (block){{widen(h[0]), widen(h[1])}};
}

SHORT void store_short_f32(f32 *to, block b, int64_t left) {
    memcpy(to, &b, (size_t)left * sizeof *to);
}

SHORT void store_short_bf16(bf16 *to, block b, int64_t left) {
    for (int i = 0; i < left; i++) to[i] = (bf16)(((bits)b.v[i / WIDE])[i % WIDE] >> 16);
}

INLINE block load_f32(const f32 *from, int64_t left) {
    if (left < BLOCK) return load_short_f32(from, left);
    return (block){{*(const loose_floats *)from, *(const loose_floats *)(from + WIDE)}};
}

INLINE block load_bf16(const bf16 *from, int64_t left) {
    if (left < BLOCK) return load_short_bf16(from, left);
    return (block){{widen(*(const loose_halves *)from), widen(*(const loose_halves *)(from + WIDE))}};
}

INLINE void store_f32(f32 *to, block b, int64_t left) {
    if (left < BLOCK) {
        store_short_f32(to, b, left);
        return;
    }
    *(loose_floats *)to = b.v[0];
    *(loose_floats *)(to + WIDE) = b.v[1];
}

INLINE block round_f32(block b) { return b; }

/* Whether a block may hold what is no number; a level that cannot tell at once says yes. */
INLINE int doubtful(block b) {
#if defined(__AVX512F__)
    return _mm512_cmp_ps_mask((__m512)b.v[0], (__m512)b.v[1], _CMP_UNORD_Q) != 0;
#elif defined(__AVX2__)
    return _mm256_movemask_ps(_mm256_cmp_ps((__m256)b.v[0], (__m256)b.v[1], _CMP_UNORD_Q));
#else
    (void)b;
    return 1;
#endif
}

/* To the nearest bfloat16, ties to even, as torch does; what is no number stays none. */
INLINE block round_bf16(block b) {
    if (__builtin_expect(doubtful(b), 0))
        for (int i = 0; i < 2; i++) {
            const bits none = (bits)(b.v[i] != b.v[i]);
            b.v[i] = (floats)(((bits)b.v[i] & ~none) | (none & 0x7fc00000));
        }
    for (int i = 0; i < 2; i++) {
        const bits u = (bits)b.v[i];
        b.v[i] = (floats)((u + 0x7fff + ((u >> 16) & 1)) & 0xffff0000);
    }
    return b;
}

INLINE void store_bf16(bf16 *to, block b, int64_t left) { /* rounded before */
    if (left < BLOCK) {
        store_short_bf16(to, b, left);
        return;
    }
#if defined(__AVX2__) && !defined(__AVX512F__)
    __m256i both = _mm256_packus_epi32((__m256i)((bits)b.v[0] >> 16), (__m256i)((bits)b.v[1] >> 16));
    _mm256_storeu_si256((__m256i *)to, _mm256_permute4x64_epi64(both, 0xd8));
#else
    for (int i = 0; i < 2; i++)
        *(loose_halves *)(to + i * WIDE) = __builtin_convertvector((bits)b.v[i] >> 16, halves);
#endif
}

/* SplitMix64 (Steele, Lea and Flood, Fast Splittable Pseudorandom Number Generators, 2014): word n
 * of a stream is mix(seed + (n + 1) * GAMMA), four draws; a row begins with a word of its own. */

#define GAMMA 0x9e3779b97f4a7c15u

typedef struct {
    words at;
    draws last; /* the greatest draw that is dropped */
} stream;

/* From a feature on that is the first of a block. */
INLINE stream open_stream(const struct addnorm_rows *p, int64_t row, int64_t feature) {
    const uint64_t word = (uint64_t)row * (uint64_t)((p->dim + 3) / 4) + (uint64_t)feature / 4;
    stream s;
    words step = {0};
    for (int i = 0; i < BLOCK / 4; i++) step[i] = (uint64_t)i * GAMMA;
    s.at = step + ((uint64_t)*p->seed + (word + 1) * GAMMA);
    s.last = (draws){0} + (int16_t)(p->dropped - 32769);
    return s;
}

/* Which features of the next block are kept: all bits of a draw, or none. */
INLINE draws next_block(stream *s) {
    words z = s->at;
    s->at += GAMMA * (BLOCK / 4);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    z = z ^ (z >> 31);
    return (draws)((draws)z > s->last);
}

/* What a block is multiplied with: 0 or `factor`. */
INLINE block factors(const draws *kept, floats factor) {
    shorts half[2];
    block b;
    memcpy(half, kept, sizeof half);
    for (int i = 0; i < 2; i++) b.v[i] = (floats)((bits)widen_shorts(half[i]) & (bits)factor);
    return b;
}

#endif
